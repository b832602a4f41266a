#!/usr/bin/env python3
"""The engine fails, or hangs, in the middle of its work. Clients get an error object, health tells, the process ends with a
code of its own, so that a supervisor starts it again. The hook is in debug and sanitizer builds only; a release build has
none, which is said."""
import json
import sys
import threading
import time
import unittest

from rig import SLOW, VARIANT, Daemon, tiny_model


def start(**fault):
    return Daemon("--device", "null", "--stuck-timeout", "1", model=tiny_model(), env={k: str(v) for k, v in fault.items()})


BODY = {"model": "m", "prompt": "hello", "max_tokens": 100000, "ignore_eos": True}


class Engine(unittest.TestCase):
    def test_failed_step(self):
        d = start(FAULT_STEP=8000)  # late enough for both requests to be running
        got = {}

        def whole():
            got["whole"] = d.request("POST", "/v1/completions", json.dumps(BODY))

        t = threading.Thread(target=whole)
        t.start()
        s, h, raw = d.request("POST", "/v1/completions", json.dumps({**BODY, "stream": True}))
        t.join()
        self.assertEqual(s, 200)
        frames = [json.loads(f[6:]) for f in raw.decode().split("\n\n") if f.startswith("data: {")]
        self.assertEqual(frames[-1]["error"]["type"], "server_error")
        self.assertEqual(sorted(frames[-1]["error"]), ["code", "message", "param", "type"])
        self.assertNotIn("[DONE]", raw.decode())
        status, _, body = got["whole"]
        self.assertEqual((status, json.loads(body)["error"]["code"]), (503, "engine_failed"))
        self.assertEqual(d.p.wait(20 * SLOW), 70, d.output())
        self.assertIn("failed", d.output())

    def test_hanging_step(self):
        with start(FAULT_STEP=500, FAULT_STEP_MS=5000) as d:
            t = threading.Thread(target=d.request, args=("POST", "/v1/completions", json.dumps({**BODY, "max_tokens": 2000})))
            t.start()
            seen, end = set(), time.monotonic() + 4.5
            while time.monotonic() < end:
                t0 = time.monotonic()
                seen.add(d.request("GET", "/health")[0])
                self.assertLess(time.monotonic() - t0, 1 * SLOW)  # answered without the engine
                time.sleep(0.1)
            t.join()
            self.assertEqual(seen, {200, 503})
            self.assertEqual(d.request("GET", "/health")[0], 200)  # it went on


if __name__ == "__main__":
    if VARIANT == "release":
        print("skipped: a release build has no hook that fails a step")
        sys.exit(77)
    unittest.main()
