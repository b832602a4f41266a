#!/usr/bin/env python3
"""Structured output on MaskBench: every schema with its valid and invalid instances, here and (where its package is installed)
by llguidance, both in one run with one tokenizer. The data is not part of this tree: it is maskbench/data of
guidance-ai/jsonschemabench, 11,306 files {"schema", "tests": [{"valid", "data"}]}.

    maskbench.py DATA_FOLDER --tokenizer tokenizer.json[.xz] [--llguidance] [--jobs 2] [--every 1] [--out results.json]

As in the published figures a schema passes if it compiles, and all of its valid instances are accepted in the order in which they
stand, and none of the invalid ones. Beyond them, a text has to be complete at its end."""
import argparse
import collections
import concurrent.futures
import ctypes
import glob
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(TOP, "build", "release", "tests", "api", "test_schema_grammar")
KEEP = 5  # of so many mask times one is kept


class Ours:
    name = "stepd"

    def __init__(self, tokenizer):
        self.p = subprocess.Popen([TOOL, "tool", tokenizer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TOP, text=True)

    def judge(self, schema, texts):
        self.p.stdin.write(json.dumps({"schema": schema, "texts": texts, "times": True}) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise SystemExit(f"the tool died ({self.p.wait()}) on {json.dumps(schema)[:2000]}")
        r = json.loads(line)
        if r is None:
            return {"error": "not readable as JSON"}
        if not r["ok"]:
            return {"error": r["text"], "where": r["where"]}
        return {"accepts": r["accepts"], "compile": r["us"], "masks": [n / 1000 for n in r["mask_ns"][::KEEP]]}


class Llguidance:
    name = "llguidance"

    def __init__(self, tokenizer):
        import llguidance
        self.lib = llguidance
        self.tok = llguidance.LLTokenizer(tokenizer)
        self.mask = (ctypes.c_uint32 * ((self.tok.vocab_size + 31) // 32))()

    def judge(self, schema, texts):
        t0 = time.thread_time()
        try:
            m0 = self.lib.LLMatcher(self.tok, self.lib.LLMatcher.grammar_from_json_schema(schema), log_level=0)
            error = m0.get_error() if m0.is_error() else None
        except Exception as e:
            error = str(e)
        us = int((time.thread_time() - t0) * 1e6)
        if error:
            return {"error": error}
        accepts, masks = [], []
        for text in texts:
            m, ok = m0.deep_copy(), True
            for t in self.tok.tokenize_str(text):
                t1 = time.thread_time_ns()
                m.unsafe_compute_mask_ptr(ctypes.addressof(self.mask), ctypes.sizeof(self.mask))
                masks.append((time.thread_time_ns() - t1) / 1000)
                if m.is_error() or not self.mask[t // 32] >> (t % 32) & 1 or not m.consume_token(t):
                    ok = False
                    break
            accepts.append(ok and m.is_accepting())
        return {"accepts": accepts, "compile": us, "masks": masks[::KEEP]}


ENGINES = {}


def one(job):
    path, names, tokenizer = job
    with open(path) as f:
        o = json.load(f)
    out = {"file": os.path.basename(path)}
    for name, cls in (("stepd", Ours), ("llguidance", Llguidance)):
        if name not in names:
            continue
        if name not in ENGINES:
            ENGINES[name] = cls(tokenizer)
        r = ENGINES[name].judge(o["schema"], [json.dumps(t["data"], ensure_ascii=False) for t in o["tests"]])
        r["kind"] = "compile error" if "error" in r else "passing"
        if "error" not in r:
            valid = [t["valid"] for t in o["tests"]]
            if any(a and not v for a, v in zip(r["accepts"], valid)):
                r["kind"] = "invalid accepted"
            elif any(v and not a for a, v in zip(r["accepts"], valid)):
                r["kind"] = "valid refused"
            r["valid"] = sum(valid)
            r["valid_accepted"] = sum(v and a for a, v in zip(r["accepts"], valid))
        out[name] = r
    return out


def at(values, share):
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0


def report(name, results):
    rs = [r[name] for r in results]
    kinds = collections.Counter(r["kind"] for r in rs)
    n = len(rs)
    print(f"{name}: {n} schemas: " + ", ".join(f"{k} {kinds[k]} ({100 * kinds[k] / n:.1f} %)"
                                               for k in ("passing", "compile error", "valid refused", "invalid accepted")))
    print(f"   valid instances of what compiles: {sum(r.get('valid_accepted', 0) for r in rs)} of {sum(r.get('valid', 0) for r in rs)} accepted")
    for what in ("compile", "masks"):
        v = sorted(x for r in rs if what in r for x in (r[what] if what == "masks" else [r[what]]))
        if v:
            print(f"   {what:8s} us: mean {sum(v) / len(v):.1f}  " + "  ".join(f"p{p} {at(v, p / 100):.1f}" for p in (50, 75, 90, 95, 99, 99.9)) +
                  f"  worst {v[-1]:.1f}  (n {len(v)})")
    why = collections.Counter(re.sub(r"\d+|\"[^\"]*\"|'[^']*'(?!:)", "..", r["error"])[:90] for r in rs if "error" in r)
    for k, c in why.most_common(25):
        print(f"   {c:5d} {k}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--llguidance", action="store_true")
    p.add_argument("--only", choices=("stepd", "llguidance"))
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--out")
    a = p.parse_args()
    names = [a.only] if a.only else ["stepd"] + ["llguidance"] * a.llguidance
    files = sorted(glob.glob(os.path.join(a.data, "*.json")))[::a.every]
    with tempfile.TemporaryDirectory() as d:
        tokenizer = os.path.abspath(a.tokenizer)
        if tokenizer.endswith(".xz"):
            with lzma.open(tokenizer) as f:
                tokenizer = os.path.join(d, "tokenizer.json")
                with open(tokenizer, "wb") as g:
                    g.write(f.read())
        with concurrent.futures.ProcessPoolExecutor(a.jobs) as pool:
            results = list(pool.map(one, [(f, names, tokenizer) for f in files], chunksize=16))
    for name in names:
        report(name, results)
    if a.out:
        for r in results:
            for name in names:
                r[name].pop("masks", None)
        with open(a.out, "w") as f:
            json.dump(results, f)


if __name__ == "__main__":
    sys.exit(main())
