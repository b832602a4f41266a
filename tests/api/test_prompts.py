#!/usr/bin/env python3
"""Prompts of the default model against the reference implementation's: their log-probabilities (echo, prompt_logprobs) and what
conversations become. tests/models/record_prompts.py made the figures. Standard library only."""
import json
import lzma
import os
import sys
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import SMOLLM2, Daemon  # noqa: E402

NEAR = 2e-3  # nats, of f32 sums in another order
TIE = 4e-3  # the best two closer than this may change places


class Prompts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with lzma.open(os.path.join(TOP, "tests/data/smollm2/prompts.json.xz")) as f:
            cls.gold = json.load(f)
        cls.d = Daemon("--precision", "f32", "--ctx-size", "512", model=SMOLLM2)

    @classmethod
    def tearDownClass(cls):
        cls.d.__exit__(None, None, None)

    def ask(self, path="/v1/completions", **kw):
        s, r = self.d.post(path, {"model": "m", "temperature": 0, **kw})
        self.assertEqual(s, 200, r)
        return r

    def same_top(self, got, want):
        """got: [log-probability, ...], best first; want: of the reference."""
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertAlmostEqual(a, b, delta=NEAR)

    def check_echo(self, choice, g):
        lp = choice["logprobs"]
        n = len(g["ids"])
        self.assertTrue(choice["text"].startswith(g["text"]))
        self.assertEqual("".join(lp["tokens"]), choice["text"])
        self.assertIsNone(lp["token_logprobs"][0])
        self.assertIsNone(lp["top_logprobs"][0])
        for i, row in enumerate(g["rows"], 1):
            self.assertAlmostEqual(lp["token_logprobs"][i], row["logprob"], delta=NEAR)
            self.same_top(list(lp["top_logprobs"][i].values()), [x[1] for x in row["top"]])
        for i, new in enumerate(g["new"]):
            if new["gap"] < TIE:
                break
            self.assertAlmostEqual(lp["token_logprobs"][n + i], new["logprob"], delta=NEAR)
        self.assertEqual(lp["text_offset"], [len("".join(lp["tokens"][:i])) for i in range(len(lp["tokens"]))])

    def test_echo(self):
        """Each text alone, then all of them in one request, as texts and as token ids."""
        gold = self.gold["scores"]
        kw = {"echo": True, "logprobs": 3, "max_tokens": 4, "ignore_eos": True, "skip_special_tokens": False}
        for g in gold:
            self.check_echo(self.ask(prompt=g["text"], **kw)["choices"][0], g)
        for prompt in ([g["text"] for g in gold], [g["ids"] for g in gold]):
            r = self.ask(prompt=prompt, n=2, **kw)
            self.assertEqual([c["index"] for c in r["choices"]], list(range(2 * len(gold))))
            for c in r["choices"]:
                self.check_echo(c, gold[c["index"] // 2])
            self.assertEqual(r["usage"]["prompt_tokens"], sum(len(g["ids"]) for g in gold))

    def test_prompt_logprobs(self):
        for g in self.gold["scores"]:
            c = self.ask(prompt=g["text"], prompt_logprobs=3, max_tokens=1)["choices"][0]
            lp = c["prompt_logprobs"]
            self.assertEqual(len(lp), len(g["ids"]))
            self.assertIsNone(lp[0])
            for one, id_, row in zip(lp[1:], g["ids"][1:], g["rows"]):
                self.assertAlmostEqual(one[str(id_)]["logprob"], row["logprob"], delta=NEAR)
                ranked = sorted((x["rank"], x["logprob"]) for x in one.values())
                self.same_top([x[1] for x in ranked if x[0] <= 3], [x[1] for x in row["top"]])
                if row["top"][0][0] == id_ and row["top"][0][1] - row["top"][1][1] > TIE:
                    self.assertEqual(one[str(id_)]["rank"], 1)

    def test_chats(self):
        """A conversation becomes the reference's prompt, also where its last message is to be continued."""
        for g in self.gold["chats"]:
            r = self.ask("/v1/chat/completions", messages=g["messages"], max_tokens=1, prompt_logprobs=0, **g["kw"])
            self.assertEqual(r["usage"]["prompt_tokens"], len(g["ids"]), g)
            self.assertEqual([list(x) for x in r["prompt_logprobs"][1:]], [[str(i)] for i in g["ids"][1:]], g)


if __name__ == "__main__":
    unittest.main()
