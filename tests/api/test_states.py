#!/usr/bin/env python3
"""Recurrent and hybrid models in the daemon: equal answers alone, in company, after a hit and after preemption; how much of
a prompt is found again; the metrics; state-slots. Standard library only."""
import concurrent.futures
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import STEPD, Daemon  # noqa: E402

DATA = os.path.join(TOP, "tests", "data")
TEXT = "A server takes a request, makes a plan, fills a batch, runs a step and streams the tokens. The cache keeps the blocks. "


def make_folder(dir, case):
    os.makedirs(dir)
    for src, dst in ((f"folders/{case}/model.safetensors.xz", "model.safetensors"), ("tiny-bpe/tokenizer.json.xz", "tokenizer.json")):
        with lzma.open(os.path.join(DATA, src)) as f, open(os.path.join(dir, dst), "wb") as g:
            shutil.copyfileobj(f, g)
    shutil.copy(os.path.join(DATA, f"folders/{case}/config.json"), dir)
    shutil.copy(os.path.join(DATA, "tiny-bpe/tokenizer_config.json"), dir)
    return dir


class States(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="stepd-states-")
        self.addCleanup(self.tmp.cleanup)

    def folder(self, case):
        return make_folder(os.path.join(self.tmp.name, case), case)

    def ask(self, d, prompt, most=40, **more):
        s, r = d.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": True, **more})
        self.assertEqual(s, 200, r)
        return [c["text"] for c in r["choices"]], r["usage"]

    def metric(self, d, name):
        s, text = d.get("/metrics")
        return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{")][0]

    def check(self, case, *args):
        """The same text whatever the company; a second time most of the prompt is found, and a talk goes on from its answer."""
        with Daemon("--device", "cpu", *args, model=self.folder(case)) as d:
            prompts = [TEXT[i * 7:] for i in range(6)]
            alone = [self.ask(d, p)[0] for p in prompts]
            again, usage = self.ask(d, prompts[0])
            n = usage["prompt_tokens"]
            self.assertEqual(again, alone[0])
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], (n - 1) // 16 * 16)
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                self.assertEqual(list(pool.map(lambda p: self.ask(d, p, cache_salt="other")[0], prompts)), alone)
            three, usage = self.ask(d, prompts[0], 12, n=3)
            self.assertEqual(len(set(three)), 1)
            self.assertTrue(alone[0][0].startswith(three[0]))
            self.assertEqual(self.metric(d, "vllm:num_preemptions_total"), 0)
            self.assertGreater(self.metric(d, "stepd:state_snapshots"), 1)
            return alone

    def test_recurrent(self):
        self.check("mamba2")

    def test_hybrid(self):
        plenty = self.check("lfm2")
        with Daemon("--device", "cpu", "--state-slots", "3", model=os.path.join(self.tmp.name, "lfm2")) as d:
            with concurrent.futures.ThreadPoolExecutor(6) as pool:  # three at a time
                got = list(pool.map(lambda i: self.ask(d, TEXT[i * 7:])[0], range(6)))
            self.assertEqual(got, plenty)
            self.assertEqual(self.metric(d, "stepd:state_slots"), 3)

    def test_plan(self):
        r = subprocess.run([STEPD, "plan", "--json", "--state-slots", "10", self.folder("mamba2")], capture_output=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stderr)
        m = json.loads(r.stdout)[0]
        self.assertEqual((m["kv_bytes"], m["state_bytes"]), (0, 10 * 3 * (3 * 192 + 128 * 16) * 4))
        r = subprocess.run([STEPD, "plan", "--state-slots", "10", os.path.join(self.tmp.name, "mamba2")], capture_output=True, timeout=60)
        self.assertIn(b"states", r.stdout)


if __name__ == "__main__":
    unittest.main()
