#!/usr/bin/env python3
"""`stepd inspect` and `stepd quantize`: python3 tests/cli/test_inspect.py build/release/stepd. Standard library only."""
import json
import lzma
import os
import subprocess
import sys
import tempfile
import unittest

STEPD = os.environ.get("STEPD", "build/release/stepd")
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(TOP, "tests", "data")


def run(*args):
    r = subprocess.run([STEPD, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    return r.returncode, r.stdout, r.stderr


def unpack(src, dst):
    os.makedirs(os.path.dirname(dst), exist_ok=True)
    with lzma.open(src) as f, open(dst, "wb") as out:
        out.write(f.read())
    return dst


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        cls.gguf = unpack(DATA + "/gguf-tiny/tiny-llama-f32.gguf.xz", os.path.join(cls.tmp.name, "t.gguf"))
        cls.folder = os.path.join(cls.tmp.name, "awq")
        unpack(DATA + "/folders/q-awq/model.safetensors.xz", cls.folder + "/model.safetensors")
        with open(DATA + "/folders/q-awq/config.json") as f, open(cls.folder + "/config.json", "w") as out:
            out.write(f.read())

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def test_inspect(self):
        code, out, _ = run("inspect", self.gguf)
        self.assertEqual(code, 0)
        for text in ("GGUF version", 'general.architecture = "llama"', "token_embd.weight [", "types:", "plan: weights"):
            self.assertIn(text, out)
        code, out, _ = run("inspect", "--json", self.gguf)
        o = json.loads(out)
        self.assertEqual((code, o["metadata"]["general.architecture"]), (0, "llama"))
        self.assertEqual(sum(t["bytes"] for t in o["tensors"]), sum(t["bytes"] for t in o["types"].values()))
        self.assertGreater(o["plan"]["total_bytes"], 0)

    def test_folder(self):
        code, out, err = run("inspect", "--json", self.folder)
        self.assertEqual(code, 0, err)
        o = json.loads(out)
        self.assertEqual(o["metadata"]["quantization_config.quant_method"], "awq")
        self.assertGreater(o["plan"]["weight_bytes"], 0)
        code, out, _ = run("inspect", self.folder + "/model.safetensors")
        self.assertEqual(code, 0)
        self.assertIn("plan: none:", out)

    def test_quantize(self):
        out = os.path.join(self.tmp.name, "q.gguf")
        code, text, err = run("quantize", self.gguf, out, "q8_0")
        self.assertEqual((code, text), (0, ""), err)
        lines = err.splitlines()
        self.assertIn("blk.0.attn_q.weight: F32 -> Q8_0", err)
        self.assertRegex(lines[-1], r"^\[(\d+)/\1\] ")
        self.assertEqual(run("quantize", "--quiet", self.gguf, out, "Q4_K"), (0, "", ""))
        o = json.loads(run("inspect", "--json", out)[1])
        self.assertIn("Q5_0", o["types"])  # rows of 64: no whole blocks of Q4_K
        self.assertFalse(os.path.exists(out + ".part"))
        self.assertEqual(run("quantize", "--quiet", self.folder, out, "Q8_0"), (0, "", ""))
        self.assertIn("Q8_0", json.loads(run("inspect", "--json", out)[1])["types"])

    def test_errors(self):
        out = os.path.join(self.tmp.name, "no.gguf")
        for args, code, text in ((["inspect"], 2, "usage"), (["inspect", "/none"], 1, "/none"),
                                 (["inspect", DATA + "/gguf-tiny/bad-offset-beyond.gguf"], 1, "bad-offset-beyond"),
                                 (["quantize", self.gguf, out], 2, "types:"),
                                 (["quantize", self.gguf, out, "Q9"], 1, "Q9"),
                                 (["quantize", DATA + "/folders/rwkv", out, "Q8_0"], 1, ".safetensors"),
                                 (["quantize", self.gguf, self.gguf, "Q8_0"], 1, "itself")):
            got = run(*args)
            self.assertEqual(got[0], code, args)
            self.assertIn(text, got[2], args)
        self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        STEPD = sys.argv.pop(1)
    unittest.main()
