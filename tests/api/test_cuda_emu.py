#!/usr/bin/env python3
"""The default model on the emulated GPU: the France question, two requests at once, a prompt that is in the cache. Every
product and attention runs through the kernels of cuda/, one fiber a CUDA thread: minutes, so `make test-long` runs it."""
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SMOLLM2, Daemon  # noqa: E402

LIMIT_S = 180


def chat(d, text, **kw):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0, **kw}
    return d.post("/v1/chat/completions", body, timeout=LIMIT_S)


@unittest.skipUnless(os.path.exists(SMOLLM2), "the default model is not here: make pull")
class CudaEmu(unittest.TestCase):
    def test_france(self):
        with Daemon("--device", "cpu", model=SMOLLM2) as d:
            italy = chat(d, "What is the capital of Italy?")[1]["choices"][0]["message"]["content"]
        with Daemon("--device", "cuda-emu", "--ctx-size", "256", model=SMOLLM2) as d:
            start, got = time.monotonic(), {}

            def ask(name, text):
                got[name] = chat(d, text)

            ts = [threading.Thread(target=ask, args=a) for a in (("france", "What is the capital of France?"),
                                                                ("italy", "What is the capital of Italy?"))]
            for t in ts:
                t.start()
            for t in ts:
                t.join()
            again = chat(d, "What is the capital of France?")
            took = time.monotonic() - start
        for status, body in (*got.values(), again):
            self.assertEqual(status, 200, body)
        text = {k: v[1]["choices"][0]["message"]["content"] for k, v in got.items()}
        self.assertEqual(text["france"], "The capital of France is Paris.")
        self.assertEqual(text["italy"], italy)  # whatever the CPU says
        self.assertEqual(again[1]["choices"][0]["message"]["content"], text["france"])
        self.assertGreater(again[1]["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertLess(took, LIMIT_S)
        print(f"three answers in {took:.0f} s")


if __name__ == "__main__":
    unittest.main()
