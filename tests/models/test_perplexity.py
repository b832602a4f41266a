#!/usr/bin/env python3
"""Perplexity of a text by weight type: the default chat model in every type of GGUF files and every layout of folders that is
read, served, against what the reference implementation makes of the same weights (tests/data/real/perplexity.json, recorded by
perplexity.py). What stepd does not write itself is made by ggml_types.py and layouts.py. With arguments: those types only."""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import SMOLLM2, STEPD, Daemon  # noqa: E402

PYTHON = os.path.join(TOP, ".venv-quantisers", "bin", "python")
LAYERS = "6"  # as recorded
WRITTEN = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4")
# Largest difference from the reference. Products of bf16 in the default precision; in f32 sums differ in their order alone.
BOUND = {"default": 0.01, "f32": 0.0002}
with open(os.path.join(TOP, "tests", "data", "real", "perplexity.json")) as _f:
    RECORD = json.load(_f)


def make(kind, folder):
    """The model in a type or layout: its path, as a temporary file or folder of `folder`."""
    if kind == "FILE":
        return SMOLLM2
    path = os.path.join(folder, kind + (".gguf" if kind.isupper() else ""))
    if kind in WRITTEN:
        cmd = [STEPD, "quantize", "--quiet", SMOLLM2, path, kind]
    else:
        if not os.path.exists(PYTHON):
            raise unittest.SkipTest(f"{kind}: no .venv-quantisers (conf/setup.sh quantisers)")
        cmd = [PYTHON, os.path.join(TOP, "tests", "models", "ggml_types.py" if kind.isupper() else "layouts.py"), SMOLLM2, path, kind, LAYERS]
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    if r.returncode:
        raise AssertionError(f"{cmd}: {r.stdout}")
    return path


def perplexity(path, precision):
    ids = RECORD["ids"]
    with Daemon("--precision", precision, model=path) as d:
        s, a = d.post("/v1/completions", {"model": "m", "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0},
                      timeout=300)
    if s != 200:
        raise AssertionError(a)
    lp = a["choices"][0]["logprobs"]["token_logprobs"][1:len(ids)]
    assert len(lp) == len(ids) - 1 and all(x is not None for x in lp)
    return math.exp(-sum(lp) / len(lp))


@unittest.skipUnless(os.path.exists(SMOLLM2), "skipped: the default chat model is not here (stepd pull smollm2-135m)")
class Perplexity(unittest.TestCase):
    def check(self, kind):
        want = RECORD["types"][kind]
        with tempfile.TemporaryDirectory() as tmp:
            path = make(kind, tmp)
            got = {p: perplexity(path, p) for p in BOUND}
        print(f"{kind}: {got['default']:.4f}, f32 {got['f32']:.4f}, reference {want:.4f}", flush=True)
        for p, x in got.items():
            self.assertLess(abs(x / want - 1), BOUND[p], f"{kind}, {p}: {x}, recorded {want}")


def _test(kind):
    return lambda self: self.check(kind)


for _kind in RECORD["types"]:
    if len(sys.argv) < 2 or _kind in sys.argv[1:]:
        setattr(Perplexity, "test_" + _kind, _test(_kind))

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
