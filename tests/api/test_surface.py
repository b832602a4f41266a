#!/usr/bin/env python3
"""What requests of a running server say beyond sampling: limits of time. Null device. Standard library only."""
import os
import sys
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import Daemon, tiny_model  # noqa: E402


class Surface(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon("--device", "null", "--ctx-size", "1000000", model=tiny_model())

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)

    def test_timeout(self):
        """An answer that is not whole at its deadline ends with an error, and the server goes on."""
        body = {"model": "m", "prompt": "hi", "ignore_eos": True, "max_tokens": 999000, "timeout": 0.3}
        t = time.monotonic()
        s, r = self.d.post("/v1/completions", body)
        self.assertEqual((s, r["error"]["code"]), (503, "timeout"))
        self.assertLess(time.monotonic() - t, 20)
        frames = self.d.stream("/v1/completions", {**body, "stream": True})
        self.assertIn('"timeout"', frames[-1])
        s, r = self.d.post("/v1/completions", {**body, "max_tokens": 5, "timeout": 60})
        self.assertEqual((s, r["usage"]["completion_tokens"]), (200, 5))


if __name__ == "__main__":
    unittest.main()
