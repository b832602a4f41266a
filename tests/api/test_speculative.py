#!/usr/bin/env python3
"""Speculation in the daemon: equal bytes with it and without, greedy and drawn, alone and in company, streamed and whole, with
log-probabilities, penalties and stop strings; fewer steps where a text repeats itself; metrics; models that can't. Standard
library only."""
import concurrent.futures
import json
import os
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
sys.path.insert(0, os.path.join(TOP, "tests", "api"))
from daemon import SMOLLM2, SLOW, Daemon  # noqa: E402
from test_states import make_folder  # noqa: E402

CODE = """def total(values):
    result = 0
    for value in values:
        result = result + value
    return result
"""
PROMPTS = [
    "Print this code again without any change:\n\n" + CODE,
    "Count from one to twenty in words, then count from one to twenty in words again.",
    "Write a short poem about the sea.",
]
KINDS = [
    {"temperature": 0},
    {"temperature": 0.7, "seed": 11, "top_p": 0.9, "logprobs": True, "top_logprobs": 3},
    {"temperature": 0, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    {"temperature": 0.3, "seed": 5, "n": 2, "min_tokens": 20},
    {"temperature": 0, "stop": ["result + ", "ten", "waves"]},
    {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": {
        "type": "object", "properties": {"lines": {"type": "array", "items": {"type": "object", "properties": {
            "number": {"type": "integer"}, "text": {"type": "string", "maxLength": 12}}, "required": ["number", "text"],
            "additionalProperties": False}, "minItems": 4}}, "required": ["lines"], "additionalProperties": False}}}},
    {"temperature": 0, "prediction": {"type": "content", "content": CODE.replace("result", "sum")}},
]
MOST = 48 if SLOW == 1 else 24


def ask(d, prompt, **kw):
    s, r = d.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": MOST, **kw}, timeout=180)
    assert s == 200, r
    usage = {k: r["usage"][k] for k in ("prompt_tokens", "completion_tokens", "completion_tokens_details")}
    return json.dumps([r["choices"], usage])


def ask_streamed(d, prompt, **kw):
    """(text, tokens) of a streamed answer."""
    s, body = d.post("/v1/chat/completions", {
        "model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": MOST, "stream": True,
        "stream_options": {"include_usage": True}, **kw}, timeout=180)
    assert s == 200, body
    text, n = "", None
    for line in body.splitlines():
        if not line.startswith("data: {"):
            continue
        f = json.loads(line[6:])
        n = f["usage"]["completion_tokens"] if f.get("usage") else n
        for c in f["choices"]:
            text += c["delta"].get("content") or ""
    return text, n


def all_answers(d):
    out = [ask(d, p, **k) for p in PROMPTS for k in KINDS]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        out += pool.map(lambda pk: ask(d, pk[0], **pk[1]), [(p, k) for p in PROMPTS for k in KINDS[:2]])
    return out + [ask_streamed(d, p, **KINDS[0]) for p in PROMPTS]


class Speculative(unittest.TestCase):
    def test_same_bytes(self):
        got = {}
        for kind in ("none", "ngram"):
            with Daemon("--device", "cpu", "--speculative", kind, model=SMOLLM2) as d:
                got[kind] = all_answers(d)
                drafts = d.metric("vllm:spec_decode_num_drafts_total")
                tried = d.metric("vllm:spec_decode_num_draft_tokens_total")
                right = d.metric("vllm:spec_decode_num_accepted_tokens_total")
                print(f"{kind}: {drafts:.0f} drafts, {tried:.0f} tokens, {right:.0f} right, {d.metric('stepd:steps_total'):.0f} steps, "
                      f"{d.metric('vllm:generation_tokens_total'):.0f} tokens")
                s, text = d.get("/metrics")
                places = [line for line in text.splitlines() if line.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total{")]
                self.assertEqual(sum(float(p.split()[-1]) for p in places), right)
                if kind == "none":
                    self.assertEqual((drafts, tried, right), (0, 0, 0))
                else:
                    self.assertGreater(right, 0)
                    self.assertLess(right, tried)
                    self.assertIn('position="7"', places[-1])
        for a, b in zip(got["none"], got["ngram"]):
            self.assertEqual(a, b)

    def tiny(self, *args, model):
        """Answers of a tiny model whose greedy texts go round in circles; drafts and right ones."""
        with Daemon("--ctx-size", "256", "--max-sequences", "4", "--kv-bytes", "8MiB", *args, model=model) as d:
            def ask_tiny(i):
                s, r = d.post("/v1/completions", {
                    "model": "m", "prompt": "one two three one two three " * (1 + i % 2), "max_tokens": 40, "ignore_eos": True,
                    "logprobs": 2, "temperature": [0, 0.2, 0][i], "seed": i, "repetition_penalty": [1, 1, 1.01][i]}, timeout=180)
                self.assertEqual(s, 200, r)
                return r["choices"]
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                got = [ask_tiny(0), *pool.map(ask_tiny, range(3))]
            return got, d.metric("vllm:spec_decode_num_draft_tokens_total"), d.metric("vllm:spec_decode_num_accepted_tokens_total"), d.output()

    def test_devices(self):
        """On every device, with a draft model too: equal bytes."""
        with tempfile.TemporaryDirectory(prefix="stepd-spec-") as tmp:
            model, small = (make_folder(os.path.join(tmp, c), c) for c in ("qwen3", "llama"))
            for device in ("cpu", "cuda-emu"):
                plain = self.tiny("--device", device, "--speculative", "none", model=model)
                for more in (["ngram"], ["draft", "--draft-model", small], ["draft", "--draft-model", model]):
                    got = self.tiny("--device", device, "--speculative", *more, model=model)
                    print(f"{device} {more[0]}: {got[1]:.0f} drafts, {got[2]:.0f} right")
                    self.assertEqual(got[0], plain[0])
                    self.assertGreater(got[2], 0)
                    self.assertEqual(plain[1], 0)

    def refused(self, *args, model=SMOLLM2):
        with self.assertRaises(AssertionError) as c:
            Daemon("--device", "cpu", *args, model=model)
        return str(c.exception)

    def test_refused(self):
        with tempfile.TemporaryDirectory(prefix="stepd-spec-") as tmp:
            small = make_folder(os.path.join(tmp, "m"), "llama")
            self.assertIn("it has other tokens than 'm': number", self.refused("--speculative", "draft", "--draft-model", small))
            self.assertIn("need each other", self.refused("--speculative", "draft"))
            self.assertIn("need each other", self.refused("--draft-model", small))
            recurrent = make_folder(os.path.join(tmp, "r"), "mamba2")
            self.assertIn("recurrent", self.refused("--speculative", "draft", "--draft-model", recurrent, model=small))
            self.assertIn("nothing.gguf", self.refused("--speculative", "draft", "--draft-model", os.path.join(tmp, "nothing.gguf")))

    def test_prediction(self):
        """An answer foretold: the same one, in a fraction of the steps; what was right is counted."""
        kw = {"temperature": 0, "max_tokens": 60}
        with Daemon("--device", "cpu", model=SMOLLM2) as d:
            def run(**more):
                before = d.metric("stepd:steps_total")
                s, r = d.chat(PROMPTS[2], **kw, **more)
                self.assertEqual(s, 200, r)
                return r["choices"][0]["message"]["content"], r["usage"], d.metric("stepd:steps_total") - before
            text, usage, steps = run()
            self.assertEqual(usage["completion_tokens_details"], {
                "reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0})
            again, usage, fewer = run(prediction={"type": "content", "content": text})
            self.assertEqual(again, text)
            print(f"{steps:.0f} steps, foretold {fewer:.0f}: {usage}")
            self.assertGreater(usage["completion_tokens_details"]["accepted_prediction_tokens"], 50)
            self.assertLess(usage["completion_tokens_details"]["rejected_prediction_tokens"], 10)
            self.assertLess(fewer, steps / 2)
            parts = [{"type": "text", "text": text[:40]}, {"type": "text", "text": text[40:]}]
            self.assertEqual(run(prediction={"type": "content", "content": parts})[:2], (text, usage))
            again, usage, _ = run(prediction={"type": "content", "content": "7 8 9 10 11 12 13"})
            self.assertEqual(again, text)
            self.assertEqual(usage["completion_tokens_details"]["accepted_prediction_tokens"], 0)
            self.assertGreater(usage["completion_tokens_details"]["rejected_prediction_tokens"], 7)
            for nothing in (None, {"type": "content", "content": ""}):
                self.assertEqual(run(prediction=nothing)[0], text)

    def test_recurrent(self):
        """A state can't be taken back: a note, and no drafts."""
        with tempfile.TemporaryDirectory(prefix="stepd-spec-") as tmp:
            with Daemon("--device", "cpu", "--speculative", "ngram", model=make_folder(os.path.join(tmp, "m"), "mamba2")) as d:
                self.assertIn("speculation is off", d.output())
                s, r = d.post("/v1/completions", {"model": "m", "prompt": "one two one two one two one", "max_tokens": 60, "temperature": 0,
                                                  "ignore_eos": True})
                self.assertEqual((s, r["usage"]["completion_tokens"]), (200, 60))
                self.assertEqual(d.metric("vllm:spec_decode_num_drafts_total"), 0)


if __name__ == "__main__":
    unittest.main()
