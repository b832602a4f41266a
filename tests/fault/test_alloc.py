#!/usr/bin/env python3
"""The n-th allocation fails: at start, and at every sampled place of a script of 14 requests. Each answer must be right or
the right error, nothing may crash or leak (the sanitizer variant tells), and the same request must work afterwards.
The hook is in debug and sanitizer builds only; a release build has none, which is said."""
import ctypes
import http.client
import json
import os
import re
import signal
import sys
import time
import unittest

from rig import REPORT, SLOW, VARIANT, Daemon, start, stream_text, tiny_model

LIBC = ctypes.CDLL(None, use_errno=True)
FAULT = "fault: an allocation failed on request"
SIGNAL = signal.SIGRTMIN + 1
BUDGET = float(os.environ.get("FAULT_SECONDS", "40"))  # of the sweep; the sample grows with it

C = {"model": "m", "max_tokens": 4, "ignore_eos": True, "seed": 1}
CHAT = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Say hello."}]
CALLS = [{"role": "user", "content": "Weather?"},
         {"role": "assistant", "content": None, "tool_calls": [
             {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"city": "Bern"}'}}]},
         {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}]
SCRIPT = [
    ("GET", "/v1/models", None),
    ("GET", "/metrics", None),
    ("POST", "/v1/completions", {**C, "prompt": "hello"}),
    ("POST", "/v1/completions", {**C, "prompt": "hello " * 300, "max_tokens": 2}),
    ("POST", "/v1/completions", {**C, "prompt": ["a", "b"], "n": 2}),
    ("POST", "/v1/completions", {**C, "prompt": "hello", "stream": True, "max_tokens": 40}),
    ("POST", "/v1/completions", {**C, "prompt": "hello", "logprobs": 2, "stop": ["zq", "xv"]}),
    ("POST", "/v1/completions", {**C, "prompt": "hello", "logit_bias": {"5": -100, "6": 3}, "seed": 7}),
    ("POST", "/v1/chat/completions", {**C, "messages": CHAT}),
    ("POST", "/v1/chat/completions", {**C, "messages": CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("POST", "/v1/chat/completions", {**C, "messages": []}),
    ("POST", "/v1/chat/completions", {**C, "messages": CALLS}),
    ("POST", "/detokenize", {"model": "m", "tokens": list(range(40))}),
    ("POST", "/tokenize", {"model": "m", "prompt": "hello world"}),
]


def essence(path, status, raw):
    """What must not change from run to run: status, and the text without ids, times and prefix hits."""
    text = raw.decode()
    if path == "/metrics":
        return status, text.splitlines()[:1]
    return status, re.sub(r'"(id|created|cached_tokens)":\s*("[^"]*"|\d+)', "", text)


def ask(d, step):
    method, path, body = step
    status, _, raw = d.request(method, path, body)
    return status, raw


class Alloc(unittest.TestCase):
    def arm(self, d, k):
        self.assertEqual(LIBC.sigqueue(d.p.pid, SIGNAL, ctypes.c_void_p(k)), 0)

    def fired(self, d):
        return d.output().count(FAULT)

    def check_failed(self, step, want, status, raw):
        """An answer while an allocation failed: as ever, or an error in OpenAI's shape, or a stream that says so."""
        method, path, body = step
        if essence(path, status, raw) == want:
            return
        if status == 200 and body and body.get("stream"):
            self.assertIsNone(stream_text(raw), "a stream that lost something ended as if it had not")
            return
        self.assertIn(status, (400, 500, 503), raw)
        e = json.loads(raw)["error"]
        self.assertTrue(e["message"] and e["type"], raw)

    def test_script(self):
        """Each step with its k-th allocation failing, k growing until the step no longer reaches it."""
        end = time.monotonic() + BUDGET * SLOW / 4
        tried, last = 0, {}
        with start(env={"FAULT_ALLOC": "0"}) as d:
            want = [essence(s[1], *ask(d, s)) for s in SCRIPT]
            self.assertEqual([w[0] for w in want], [200] * 10 + [400, 200, 200, 200])
            for k in sample(end):
                for i, step in enumerate(SCRIPT):
                    if i in last:
                        continue
                    before = self.fired(d)
                    self.arm(d, k)
                    with self.subTest(step=i, k=k):
                        try:
                            status, raw = ask(d, step)
                        except OSError as e:  # a connection that could not be served may be closed
                            self.assertIsNone(d.p.poll(), e)
                            status = None
                        except http.client.IncompleteRead:  # a stream cut short, for all to see
                            self.assertTrue(step[2] and step[2].get("stream"))
                            status = None
                        self.arm(d, 0)
                        if status is not None:
                            self.check_failed(step, want[i], status, raw)
                        self.assertEqual(essence(step[1], *ask(d, step)), want[i], "the next one is not as ever")
                    tried += 1
                    if self.fired(d) == before:
                        last[i] = k
                if len(last) == len(SCRIPT):
                    break
            self.assertGreater(self.fired(d), 40)
            print(f"{tried} requests, {self.fired(d)} failed allocations, {len(last)} of {len(SCRIPT)} steps to their end")

    def test_start(self):
        """At start: a clear end with code 2, or a daemon that works."""
        k, worked = 1, 0
        end = time.monotonic() + 10 * SLOW / 4
        while time.monotonic() < end and not worked:
            d = Daemon("--device", "null", model=tiny_model(), ready=False, env={"FAULT_ALLOC": str(k)})
            try:
                d.wait_ready()
            except AssertionError:
                self.assertEqual(d.p.poll(), 2, (k, d.output()))
                self.assertRegex(d.output(), r"memory", k)
            else:
                worked = FAULT not in d.output()
                self.assertEqual(d.stop(), 0)
            self.assertNotRegex(d.output(), REPORT, k)
            k = k * 3 // 2 + 1
        self.assertGreater(k, 8)


def sample(end):
    """1, 2, ... densely, then wider; no new one after `end`."""
    k = 1
    while time.monotonic() < end:
        yield k
        k += 1 + (k // 12 if k > 100 else 0)


if __name__ == "__main__":
    if VARIANT == "release":
        print("skip: a release build has no hook for failing allocations; the asan variant runs this")
        sys.exit(77)
    unittest.main()
