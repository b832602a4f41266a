#!/usr/bin/env python3
"""A Hugging Face folder is served like a file: plan, list, chat, defaults and ends of generation_config.json, template of
tokenizer_config.json or chat_template.jinja, the null device. Standard library only."""
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import STEPD, Daemon  # noqa: E402

DATA = os.path.join(TOP, "tests", "data")


def make_folder(dir, **generation):
    def unpack(src, dst):
        with lzma.open(os.path.join(DATA, src)) as f, open(os.path.join(dir, dst), "wb") as g:
            shutil.copyfileobj(f, g)
    os.makedirs(dir)
    unpack("folders/llama/model.safetensors.xz", "model.safetensors")
    unpack("tiny-bpe/tokenizer.json.xz", "tokenizer.json")
    shutil.copy(os.path.join(DATA, "folders/llama/config.json"), dir)
    shutil.copy(os.path.join(DATA, "tiny-bpe/tokenizer_config.json"), dir)
    with open(os.path.join(dir, "generation_config.json"), "w") as f:
        json.dump(generation, f)
    return dir


class Folder(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="stepd-folder-")
        self.addCleanup(self.tmp.cleanup)

    def folder(self, name="tiny", **generation):
        return make_folder(os.path.join(self.tmp.name, name), **generation)

    def test_plan(self):
        r = subprocess.run([STEPD, "plan", "--json", self.folder()], capture_output=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stderr)
        m = json.loads(r.stdout)[0]
        # 3 layers of 2 KV heads: K and V of 16 halves, two scales
        self.assertEqual((m["context_tokens"], m["kv_bytes_per_token"]), (256, 3 * 2 * (2 * 16 * 2 + 2 * 4)))
        self.assertGreater(m["weight_bytes"], 100000)

    def test_chat(self):
        ask = {"max_tokens": 12, "logprobs": True, "top_logprobs": 2, "ignore_eos": True}
        with Daemon("--device", "cpu", "--precision", "f32", model=self.folder(temperature=0, eos_token_id=[2, 7])) as d:
            s, r = d.get("/v1/models")
            self.assertEqual((s, r["data"][0]["max_model_len"], r["data"][0]["meta"]["n_vocab"]), (200, 256, 512))
            s, a = d.chat("The quick brown fox", **ask)
            self.assertEqual((s, a["usage"]["completion_tokens"]), (200, 12), a)
            s, b = d.chat("The quick brown fox", **ask)  # greedy is this folder's default
            self.assertEqual(a["choices"], b["choices"])
            self.assertEqual(a["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["token"],
                             a["choices"][0]["logprobs"]["content"][0]["token"])
            s, t = d.post("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
            s, t = d.post("/detokenize", {"model": "m", "tokens": t["tokens"]})
            self.assertIn("<|im_start|>user\nhi<|im_end|>", json.dumps(t).encode().decode("unicode_escape"))

    def test_ends(self):
        """A token that eos_token_id names ends the answer where the model chooses it."""
        ask = {"model": "m", "max_tokens": 5, "temperature": 0}
        with Daemon("--device", "cpu", "--precision", "f32", model=self.folder("a", eos_token_id=[2])) as d:
            for prompt in "hello", "one two", "The fox", "a", "b", "c", "x", "42":  # one whose answer begins with a whole text
                s, r = d.post("/v1/completions", {**ask, "prompt": prompt, "max_tokens": 1})
                self.assertEqual((s, r["choices"][0]["finish_reason"]), (200, "length"), r)
                s, t = d.post("/tokenize", {"model": "m", "prompt": r["choices"][0]["text"], "add_special_tokens": False})
                if t["count"] == 1:
                    break
        self.assertEqual(t["count"], 1)
        with Daemon("--device", "cpu", "--precision", "f32", model=self.folder("b", eos_token_id=[2, t["tokens"][0]])) as d:
            s, r = d.post("/v1/completions", {**ask, "prompt": prompt})
            self.assertEqual((s, r["choices"][0]["finish_reason"], r["choices"][0]["text"]), (200, "stop", ""), r)

    def test_template_file(self):
        """chat_template.jinja wins over tokenizer_config.json; a bad default is refused with its name."""
        path = self.folder()
        with open(os.path.join(path, "chat_template.jinja"), "w") as f:
            f.write("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
        with Daemon("--device", "null", model=path) as d:
            s, t = d.post("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
            s, t = d.post("/detokenize", {"model": "m", "tokens": t["tokens"]})
            self.assertIn("[user]hi", json.dumps(t))
        path = self.folder("bad", temperature="hot")
        r = subprocess.run([STEPD, "serve", "--port", "0", path], capture_output=True, timeout=60)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn(b"temperature", r.stderr + r.stdout)

    def test_null(self):
        with Daemon("--device", "null", model=self.folder()) as d:
            s, r = d.chat("hi", max_tokens=9, ignore_eos=True)
            self.assertEqual((s, r["usage"]["completion_tokens"]), (200, 9), r)
            self.assertGreater(len(r["choices"][0]["message"]["content"].strip()), 8)


if __name__ == "__main__":
    unittest.main()
