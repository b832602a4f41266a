#!/usr/bin/env python3
"""What structured output costs: compile times and mask times of bench_grammar over the real schemas of tests/data, with a vocabulary of
over 128,000 tokens. Prints them and keeps them in tests/bench/history/DATE-COMMIT-grammar.json. Fails where the median mask takes
50 us or more."""
import datetime
import json
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = "build/release/tests/bench/bench_grammar"
DATA = ("tests/data/tokenizers/qwen3.tokenizer.json.xz", "tests/data/json-schema/real.jsonl.xz")
MOST_US, LEAST_TOKENS = 50, 128000


def cpu_model():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


def main():
    before = os.getloadavg()[0]
    text = subprocess.run([TOOL, *DATA], cwd=TOP, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(text, end="")
    figures = {}
    for name, n, rest in re.findall(r"^(\w[\w, ]*?) +n=(\d+) +(.*) us$", text, re.M):
        figures[name] = dict({k: float(v) for k, v in re.findall(r"(\w+) +([\d.]+)", rest)}, n=int(n))
    tokens = int(re.search(r"vocabulary of (\d+) tokens", text).group(1))
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TOP, stdout=subprocess.PIPE, text=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    commit = git.stdout.strip() or "unknown"
    kept = {"date": now.strftime("%Y-%m-%dT%H:%MZ"), "commit": commit, "cpu": cpu_model(), "load_average_before": before,
            "vocabulary": tokens, "us": figures, "text": text.splitlines()}
    path = os.path.join(TOP, "tests", "bench", "history", f"{now.strftime('%Y-%m-%d')}-{commit}-grammar.json")
    with open(path, "w") as f:
        json.dump(kept, f, indent=1)
        f.write("\n")
    print(f"kept in {os.path.relpath(path, TOP)}")
    median = max(figures["mask, first"]["median"], figures["mask, again"]["median"])
    ok = tokens >= LEAST_TOKENS and median < MOST_US
    print(f"median of a mask: {median:.1f} us with {tokens} tokens: {'ok' if ok else f'not under {MOST_US} us'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
