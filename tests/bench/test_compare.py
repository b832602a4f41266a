#!/usr/bin/env python3
"""The comparison's arithmetic and its table, with servers whose speed is known: a whole run on fakes, each behind the same small
front (peers/wrap.py) that engines without a server of their own get."""
import argparse
import os
import sys
import time
import unittest

BENCH = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [BENCH, os.path.join(BENCH, "..")]
import compare  # noqa: E402
import recipes  # noqa: E402
import report  # noqa: E402
from daemon import SLOW, free_port  # noqa: E402
from peers import KINDS, base  # noqa: E402

FAKE = """
import sys, time
sys.path.insert(0, sys.argv[3])
import wrap
class Engine:
    def __init__(self, step): self.run, self.step_s = [], step
    def start(self, r):
        if r.messages is None: raise ValueError("no messages")
        r.n_prompt = sum(len(m["content"].split()) for m in r.messages)
        self.run.append(r)
    def cancel(self, r): self.run = [x for x in self.run if x is not r]
    def busy(self): return bool(self.run)
    def step(self):
        time.sleep(self.step_s)
        out = []
        for r in self.run:
            r.n_output += 1
            out.append((r, "x", r.n_output >= r.max_tokens))
        self.run = [r for r, _, done in out if not done]
        return out
wrap.say_loaded("a fake")
wrap.serve(Engine(float(sys.argv[2])), int(sys.argv[1]))
"""


class Fake(base.Peer):
    name, step, start_limit = "fake", 0.002, 30 * SLOW

    def command(self, job):
        return [sys.executable, "-c", FAKE, str(job.port), str(self.step * SLOW), os.path.join(BENCH, "peers")], {}


class Slow(Fake):
    name, step = "slow", 0.02


class Ours(Fake):
    name, ours = "stepd", True


class Dead(base.Peer):
    name = "dead"

    def command(self, job):
        return [sys.executable, "-c", "raise SystemExit('no such model')"], {}


class Absent(Fake):
    name, venv = "absent", ".venv-no-such"


class Arithmetic(unittest.TestCase):
    def test_medians_leave_out_errors_and_say_so(self):
        rounds = [{"ttft_ms": 3.0, "requests": 4, "cut": 0}, {"error": "broke"}, {"ttft_ms": 9.0, "requests": 1, "cut": 3},
                  {"ttft_ms": 5.0, "requests": 4, "cut": 0}]
        m = report.medians(rounds)
        self.assertEqual(m["ttft_ms"], 5.0)
        self.assertEqual(m["error"], "broke")
        self.assertAlmostEqual(m["cut"], 0.25)
        self.assertNotIn("tpot_ms", m)

    def test_best_follows_the_direction(self):
        v = {"a": 2.0, "b": 5.0, "c": None}
        self.assertEqual(report.best(v, True), ("b", 5.0))
        self.assertEqual(report.best(v, False), ("a", 2.0))
        self.assertIsNone(report.best({"c": None}, True))

    def test_a_ratio_above_one_is_better_in_both_directions(self):
        self.assertEqual(report.ratio(30.0, 10.0, True), 3.0)
        self.assertEqual(report.ratio(10.0, 30.0, False), 3.0)
        self.assertIsNone(report.ratio(None, 1.0, True))
        self.assertIsNone(report.ratio(1.0, 0.0, True))

    def test_row(self):
        line = report.row("TTFT", {"stepd": 10.0, "p": 25.0, "q": 40.0}, ["stepd"], ["p", "q"], False, ["q"])
        self.assertEqual(line, "| TTFT | 10.0 | 25.0 | 40.0* | p | 2.50 |")

    def test_roofline_line(self):
        lines = report.roofline({"140 tokens, 1 stream": {"stepd": {"tpot_ms": 10.0}}, "140 tokens, 4 streams": {"stepd": {"tpot_ms": 9.0}}},
                                {"read_bytes_per_s": 20e9}, 100e6)
        self.assertEqual(len(lines), 1)
        self.assertIn("50 % of the read bandwidth (100 MB of weights a token, 10.0 of 20.0 GB/s)", lines[0])

    def test_figures_of_a_report(self):
        j = {"requests": 2, "failed": 0, "cut": 0, "seconds": 2.0, "prompt_tokens": 280, "output_tokens": 128,
             "output_tokens_per_s": 64.0, "ttft_ms": {"p50": 70.0}, "tpot_ms": {"p50": 5.0}, "ttft_later_ms": {"p50": 7.0}}
        f = recipes.figures(j, recipes.Cell("x", 1, 140, 64))
        self.assertEqual((f["prompt_tokens"], f["prefill_tokens_per_s"]), (140.0, 2000.0))
        self.assertEqual(recipes.figures(j, recipes.Cell("x", 1, 140, 64, turns=4))["ttft_ms"], 7.0)
        self.assertIn("error", recipes.figures(dict(j, requests=0, failed=2), recipes.Cell("x", 1, 140, 64)))

    def test_plans_stay_within_bounds(self):
        for size in ("quick", "default", "full"):
            plan = recipes.plan(size)
            worst = sum(c.seconds * c.rounds * (len(KINDS) - len(c.without)) for _, cells in plan for c in cells) / 60
            self.assertLess(worst, {"quick": 10, "default": 45, "full": 24 * 60}[size], size)
        self.assertEqual({c.streams for _, cells in recipes.plan("default") for c in cells}, {1, 4, 16, 64})


class WholeRun(unittest.TestCase):
    def run_on(self, kinds, cells):
        names = [k.name for k in kinds]
        compare.KINDS = {k.name: k for k in kinds}
        run = compare.Run(argparse.Namespace(only=names, model="none", lock=None, realtime=0))
        run.all([("fakes", cells)])
        return run, run.results()

    def test_fakes(self):
        cell = recipes.Cell("8 tokens", 2, 40, 8, seconds=20 * SLOW, rounds=2, requests=6)
        run, results = self.run_on((Ours, Slow, Dead, Absent), [cell])
        self.assertEqual(run.kinds, ["stepd", "slow"])
        self.assertIn("no such model", run.absent["dead"])
        self.assertIn("not installed", run.absent["absent"])
        by = results["8 tokens, 2 streams"]
        self.assertEqual([len(run.rounds["8 tokens, 2 streams"][k]) for k in by], [2, 2])
        self.assertGreater(by["slow"]["tpot_ms"], 15 * SLOW)
        self.assertGreater(by["slow"]["tpot_ms"] / by["stepd"]["tpot_ms"], 1.5)
        self.assertLess(by["slow"]["output_tokens_per_s"], 2 / (0.02 * SLOW) + 1)
        text = report.table(results, run.starts, run.kinds)
        self.assertIn("| 8 tokens, 2 streams: TPOT, ms |", text)
        self.assertIn("NOT MEASURED", report.notes(results, run.absent, run.settings))

    def test_a_slow_server_is_cut(self):
        cell = recipes.Cell("long", 2, 40, 10000, seconds=1, rounds=1, requests=4, warmup=0)
        began = time.monotonic()
        run, results = self.run_on((Slow,), [cell])
        self.assertLess(time.monotonic() - began, 60 * SLOW)
        r = run.rounds["long, 2 streams"]["slow"][0]
        self.assertEqual((r["cut"], r["requests"], r["failed"]), (2, 0, 0))
        self.assertGreater(r["tpot_ms"], 15 * SLOW)
        self.assertLess(r["seconds"], 2 * SLOW)
        self.assertIn("* |", report.table(results, run.starts, ["slow"]))
        self.assertIn("cut 100 %", report.notes(results, {}, {}))

    def test_conversations(self):
        cell = recipes.Cell("talk", 1, 40, 4, seconds=20 * SLOW, rounds=1, requests=4, turns=4, warmup=0)
        run, _ = self.run_on((Fake,), [cell])
        r = run.rounds["talk, 1 stream"]["fake"][0]
        # 10 words a turn; an answer is one word of four tokens: 10, 21, 32, 43.
        self.assertEqual((r["requests"], r["prompt_tokens"]), (4, (10 + 21 + 32 + 43) / 4))

    def test_a_server_held_still_does_not_run(self):
        s = Fake(base.Job("none", 1, 64, free_port()))
        try:
            s.hold()
            cell = recipes.Cell("x", 1, 40, 4, seconds=1, warmup=0)
            self.assertEqual(recipes.run(cell, s, 1)["output_tokens_per_s"], 0)
            s.go()
            self.assertGreater(recipes.run(cell, s, 2)["output_tokens_per_s"], 0)
        finally:
            s.stop()


if __name__ == "__main__":
    unittest.main()
