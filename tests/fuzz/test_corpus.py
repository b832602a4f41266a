#!/usr/bin/env python3
"""Every fuzz target on its stored corpus, under AddressSanitizer and UBSan: what once failed stays mended, and no target or seed is
lost. `make fuzz` runs the same programs, with coverage, for as long as asked."""
import glob
import os
import re
import subprocess
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAMES = sorted(os.path.basename(p)[len("fuzz_"):-2] for p in glob.glob(os.path.join(TOP, "tests/fuzz/fuzz_*.c")))
# What comes from clients and model files: requests, templates, schemas and grammars, their steps, tool calls.
NEEDED = {"request", "template", "grammar", "step", "stream"}


class Corpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run(["make", "-s", "-j2", "VARIANT=asan"] + [f"build/asan/fuzz/{n}" for n in NAMES], cwd=TOP, check=True)

    def test_targets(self):
        self.assertLessEqual(NEEDED, set(NAMES))

    def test_corpus(self):
        for name in NAMES:
            with self.subTest(target=name):
                r = subprocess.run([f"build/asan/fuzz/{name}", "-t", "0"], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, timeout=300)
                self.assertEqual(r.returncode, 0, r.stdout[-3000:])
                self.assertRegex(r.stdout, rf"(?m)^{name}: 0 runs, [1-9]\d* inputs kept")

    def test_seeds(self):
        """No stored input is left out: each matches the pattern of some target."""
        patterns = []
        for name in NAMES:
            with open(os.path.join(TOP, f"tests/fuzz/fuzz_{name}.c"), encoding="utf-8") as f:
                seeds = re.search(r"fuzz_seeds\[\] = \{(.*?)\}", f.read(), re.S)
            self.assertIsNotNone(seeds, name)
            patterns += re.findall(r'"([^"]+)"', seeds.group(1))
        used = {p for x in patterns for p in glob.glob(os.path.join(TOP, x))}
        stored = set(glob.glob(os.path.join(TOP, "tests/data/fuzz/*"))) - {os.path.join(TOP, "tests/data/fuzz/SOURCES")}
        self.assertEqual(stored - used, set())


if __name__ == "__main__":
    unittest.main()
