#!/usr/bin/env python3
"""The GPU fails under a serving daemon, in emulation: clients get an error object, the process ends with a code of its own; a
GPU without room for the model is told at start. Before that: answers in company are those alone."""
import json
import os
import subprocess
import sys
import threading
import unittest

from rig import SLOW, STEPD, Daemon, completion, tiny_model

PLUGIN = os.path.join(os.path.dirname(os.path.abspath(STEPD)), "stepd-cuda-emu.so")
ARGS = ("--device", "cuda-emu", "--ctx-size", "512", "--kv-bytes", "4MiB")
LONG = {"model": "m", "prompt": "hello", "max_tokens": 300, "ignore_eos": True}


class Cuda(unittest.TestCase):
    def test_company(self):
        prompts = [f"{i} the quick brown fox jumps over the lazy dog " * 3 for i in range(3)]
        with Daemon(*ARGS, model=tiny_model()) as d:
            self.assertIn("cuda-emu", d.output())

            def ask(i):
                s, b = completion(d, prompt=prompts[i], max_tokens=24, temperature=0)
                self.assertEqual(s, 200, b)
                return b["choices"][0]["text"]

            alone = [ask(i) for i in range(3)]
            got = [None] * 3
            ts = [threading.Thread(target=lambda i=i: got.__setitem__(i, ask(i))) for i in range(3)]
            for t in ts:
                t.start()
            for t in ts:
                t.join()
            self.assertEqual(got, alone)
            self.assertGreater(d.metric("vllm:prefix_cache_hits_total") or 0, 0)

    def test_loose(self):
        """Rows that need not be alike: wgmma and cuBLASLt (its emulated double) compute the long prompt, the words stay."""
        prompt = "the quick brown fox jumps over the lazy dog " * 14
        got = []
        for args in ((), ("--batch-invariant", "no")):
            with Daemon(*ARGS, *args, model=tiny_model()) as d:
                s, b = completion(d, prompt=prompt, max_tokens=4, temperature=0)
                self.assertEqual(s, 200, b)
                self.assertGreater(b["usage"]["prompt_tokens"], 128)
                got.append(b["choices"][0]["text"])
        self.assertEqual(got[0], got[1])

    def fails(self, what):
        d = Daemon(*ARGS, model=tiny_model(), env={"STEPD_EMU_FAIL": what})
        got = {}

        def whole():
            got["whole"] = d.request("POST", "/v1/completions", json.dumps(LONG))

        t = threading.Thread(target=whole)
        t.start()
        status, _, raw = d.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}))
        t.join()
        self.assertEqual(d.p.wait(30 * SLOW), 70, d.output())
        self.assertEqual((got["whole"][0], json.loads(got["whole"][2])["error"]["code"]), (503, "engine_failed"), what)
        frames = [json.loads(f[6:]) for f in raw.decode().split("\n\n") if f.startswith("data: {")]
        self.assertEqual(status, 200)
        self.assertEqual(frames[-1]["error"]["type"], "server_error")
        self.assertNotIn("[DONE]", raw.decode())
        self.assertRegex(d.output(), r"error cuda op=\w+ error=cudaError")
        self.assertNotRegex(d.output(), r"ERROR: \w+Sanitizer|runtime error:")

    def test_launch(self):
        self.fails("launch:250")

    def test_late_error(self):
        self.fails("async:250")

    def test_no_room(self):
        p = subprocess.run([STEPD, "serve", "--port", "0", *ARGS, tiny_model()], env={**os.environ, "STEPD_EMU_FAIL": "alloc:2"},
                           capture_output=True, text=True, timeout=30 * SLOW)
        self.assertEqual(p.returncode, 2, p.stderr)
        self.assertRegex(p.stderr, "GPU's memory|device memory")

    def test_no_plugin(self):
        for device, code in (("cuda", 2), ("cuda-emu", 2)):
            p = subprocess.run([STEPD, "serve", "--port", "0", "--device", device, tiny_model()],
                               env={**os.environ, "STEPD_LIBDIR": "/nonexistent"}, capture_output=True, text=True, timeout=30 * SLOW)
            self.assertEqual(p.returncode, code, p.stderr)
            self.assertIn(f"device {device}: plug-in", p.stderr)


if __name__ == "__main__":
    if not os.path.exists(PLUGIN):
        print(f"skipped: {PLUGIN} is not built (make cuda-emu)")
        sys.exit(77)
    unittest.main()
