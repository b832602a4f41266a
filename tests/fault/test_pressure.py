#!/usr/bin/env python3
"""Real model, short of KV blocks: answers of many requests that push each other out are those of a run with room; the
prefix cache and salts change what is computed, never what is answered."""
import concurrent.futures
import json
import unittest

from rig import SMOLLM2, Daemon

N = 24
TOKENS = 56
TOPICS = ("rivers", "clocks", "bread", "ships", "music", "stones", "paper", "horses", "salt", "wind", "glass", "tea")
LONG = "The quick brown fox jumps over the lazy dog while the old clock in the hall strikes seven. " * 6


def prompts():
    return [f"{i}: {LONG[:2 * i]} Tell me about {TOPICS[i % len(TOPICS)]}." for i in range(N)]


def ask(d, text, tokens=TOKENS, **kw):
    s, r = d.chat(text, max_tokens=tokens, ignore_eos=True, temperature=0.8, seed=len(text), **kw)
    if s != 200:
        raise AssertionError((s, r))
    return r


def storm(d, texts):
    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        return [r["choices"][0]["message"]["content"] for r in pool.map(lambda t: ask(d, t), texts)]


def cached(r):
    return r["usage"]["prompt_tokens_details"]["cached_tokens"]


class Pressure(unittest.TestCase):
    def test_storm(self):
        """KV for about 3 of 24 requests: all finish, none differs from its run with room."""
        texts = prompts()
        with Daemon(model=SMOLLM2) as d:
            want = storm(d, texts)
            self.assertEqual(d.metric("vllm:num_preemptions_total"), 0)
        # 23,760 bytes a token in 16 bits; a request takes about 112 tokens with its template
        with Daemon("--kv-bytes", str(3 * 112 * 23760), "--ctx-size", "256", "--request-timeout", "0", "--queue-timeout",
                    "0", model=SMOLLM2) as d:
            got = storm(d, texts)
            preempted = d.metric("vllm:num_preemptions_total")
            left = d.metric("vllm:kv_cache_usage_perc"), d.metric("vllm:num_requests_running")
        self.assertEqual(got, want)
        print(f"{preempted:.0f} preemptions; use afterwards {left}")
        self.assertEqual(left[1], 0)
        self.assertGreater(preempted, 0, "no pressure: the pool is too large for this test")

    def test_prefix_cache_and_salts(self):
        text = LONG + "What strikes seven?"
        answers = {}
        for cache in ("yes", "no"):
            with Daemon("--prefix-cache", cache, model=SMOLLM2) as d:
                first, again = ask(d, text, 12), ask(d, text, 12)
                a, b, a2 = (ask(d, text, 12, cache_salt=s) for s in ("alice", "bob", "alice"))
                answers[cache] = [r["choices"][0]["message"]["content"] for r in (first, again, a, b, a2)]
                hits = [cached(r) for r in (first, again, a, b, a2)]
            if cache == "yes":
                self.assertEqual([hits[0], hits[2], hits[3]], [0, 0, 0], "a salt must share with nobody else")
                self.assertGreater(hits[1], 32)
                self.assertGreater(hits[4], 32)
            else:
                self.assertEqual(hits, [0] * 5)
        self.assertEqual(answers["yes"], answers["no"])
        self.assertEqual(len(set(answers["yes"])), 1, json.dumps(answers["yes"]))


if __name__ == "__main__":
    unittest.main()
