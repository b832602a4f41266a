#!/usr/bin/env python3
"""Side by side in one run: stepd, stepd held to AVX2, and llama.cpp's server on the same GGUF file.

    compare.py [--rounds 3] [--streams 1,4,16] [--prompt 110] [--tokens 64] [--model FILE] [--only stepd]

Each round starts each server afresh, waits for its first answered request, measures it at every number of streams with
`stepd bench` as the load generator for both, reads its memory, stops it, and goes on to the other; the order turns
from round to round. Prints medians and the ratio, and keeps them with every single figure in
tests/bench/history/DATE-COMMIT.json. Prompts are distinct words: with the chat template about 140 tokens (the server's own count is in the
output). Both use every core, greedy sampling, and go on past the end of text. llama.cpp is the server inside the PyPI package
xllamacpp: its own defaults, but 16 slots in one shared cache (kv_unified), 320 tokens of context a slot, no log output. That package is built for AVX2 at most (its own line about itself is printed and
kept), so the fair column for kernels is "stepd avx2"; the column "stepd" is what a user of this machine gets."""
import argparse
import configparser
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
from daemon import STEPD, free_port  # noqa: E402

KINDS = ("stepd", "stepd avx2", "llama.cpp")
SLOTS, SLOT_TOKENS = 16, 320
METRICS = (  # key, heading, unit, more is better
    ("output_tokens_per_s", "output tokens", "tokens/s", True),
    ("ttft", "time to first token, median", "ms", False),
    ("tpot", "time per output token, median", "ms", False),
)


def serve_llama(path, port):
    """Child process: prints when the library is loaded, then serves until it is killed."""
    import xllamacpp
    with open("/proc/self/status") as f:
        rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    print(json.dumps({"loaded": time.time(), "rss_kib": rss,
                      "version": f"xllamacpp {xllamacpp.__version__}; {' '.join(xllamacpp.get_system_info().split())}"}), flush=True)
    p = xllamacpp.CommonParams()
    p.model.path = path
    p.port = port
    p.n_parallel = SLOTS
    p.n_ctx = SLOTS * SLOT_TOKENS
    p.kv_unified = True
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    p.verbosity = 0
    server = xllamacpp.Server(p)
    print(json.dumps({"url": server.listening_address}), flush=True)
    while True:
        time.sleep(3600)


class Server:
    """One started server; `start_s` is from its start to its first answered request."""

    def __init__(self, kind, path):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.TemporaryFile()
        self.base_kib = 0
        began = time.time()
        if kind.startswith("stepd"):
            self.model = "bench"
            cmd = [STEPD, "serve", f"bench={path}", "--port", str(self.port), "--no-access-log"]
            if kind == "stepd avx2":
                cmd += ["--isa", "avx2"]
            self.p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        else:
            self.model = os.path.basename(path)
            self.p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--serve-llama", path, str(self.port)],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)
            first = json.loads(self.p.stdout.readline() or self.fail())
            # The interpreter and the import are not llama.cpp's: time and memory count from here.
            began, self.base_kib, self.version = first["loaded"], first["rss_kib"], first["version"]
        self.answered(began)

    def fail(self):
        self.stop()
        self.log.seek(0)
        raise SystemExit("server failed:\n" + self.log.read().decode("utf-8", "replace")[-3000:])

    def answered(self, began):
        body = json.dumps({"model": self.model, "max_tokens": 1, "temperature": 0,
                           "messages": [{"role": "user", "content": "Hi"}]}).encode()
        while time.time() < began + 120:
            if self.p.poll() is not None:
                self.fail()
            try:
                req = urllib.request.Request(self.url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(req, timeout=60) as r:
                    r.read()
                self.start_s = time.time() - began
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.01)
        self.fail()

    def load(self, a, streams, seed):
        n = max(4, 2 * streams)
        cmd = [STEPD, "bench", "--url", self.url, "--model", self.model, "--concurrency", str(streams), "--requests", str(n),
               "--warmup", str(streams), "--prompt-tokens", str(a.prompt), "--max-tokens", str(a.tokens), "--seed", str(seed),
               "--json"]
        r = subprocess.run(cmd, stdout=subprocess.PIPE, timeout=900)
        if r.returncode:
            self.fail()
        j = json.loads(r.stdout)
        return {"output_tokens_per_s": j["output_tokens_per_s"], "ttft": j["ttft_ms"]["p50"], "tpot": j["tpot_ms"]["p50"],
                "prompt_tokens_each": j["prompt_tokens"] / max(1, j["requests"]), "output_tokens": j["output_tokens"],
                "requests": j["requests"]}

    def rss_mb(self):
        with open(f"/proc/{self.p.pid}/status") as f:
            kib = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
        return (kib - self.base_kib) * 1024 / 1e6

    def stop(self):
        self.p.terminate()
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()


def one_round(kind, path, a, seed):
    s = Server(kind, path)
    try:
        out = {"start_s": s.start_s, "rss_start_mb": s.rss_mb()}
        for n in a.streams:
            out[str(n)] = s.load(a, n, seed)
        out["rss_mb"] = s.rss_mb()
        out["version"] = getattr(s, "version", None)
    finally:
        s.stop()
    return out


def cpu_model():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")


def default_model():
    ini = configparser.ConfigParser(comment_prefixes=(";",))
    ini.read(os.path.join(TOP, "conf", "models.ini"))
    return os.path.join(os.environ.get("STEPD_MODELS", os.path.join(TOP, "models")), ini["smollm2-135m"]["file"])


def table(runs, a):
    kinds = [k for k in runs if runs[k]]
    ratios = kinds[:-1] if kinds[-1] == "llama.cpp" else []
    lines = ["| | " + " | ".join(kinds + [k + " / llama.cpp" for k in ratios]) + " |",
             "|---|" + "---|" * (len(kinds) + len(ratios))]

    def row(name, pick, form):
        med = [statistics.median(pick(r) for r in runs[k]) for k in kinds]
        ratio = "".join(f" {m / med[-1]:.2f} |" for m in med[:len(ratios)])
        lines.append(f"| {name} | " + " | ".join(form.format(m) for m in med) + " |" + ratio)

    for n in a.streams:
        for key, name, unit, _ in METRICS:
            row(f"{n} streams: {name}, {unit}", lambda r: r[str(n)][key], "{:.1f}")
    row("start to first answered request, s", lambda r: r["start_s"], "{:.2f}")
    row("resident memory after the load, MB", lambda r: r["rss_mb"], "{:.0f}")
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--serve-llama"]:
        return serve_llama(sys.argv[2], int(sys.argv[3]))
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--streams", type=lambda s: [int(x) for x in s.split(",")], default=[1, 4, 16])
    ap.add_argument("--prompt", type=int, default=110, help="words of each prompt")
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--model", default=default_model())
    ap.add_argument("--only", choices=KINDS)
    a = ap.parse_args()
    if max(a.streams) > SLOTS:
        ap.error(f"at most {SLOTS} streams: llama.cpp's server has that many slots here")
    cores, before = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if before > 0.3 * cores:
        print(f"warning: the load average is {before:.1f} on {cores} cores before the start; figures of a busy machine mean little: "
              "llama.cpp's threads wait by spinning and suffer most", flush=True)
    kinds = [a.only] if a.only else list(KINDS)
    runs = {k: [] for k in kinds}
    for r in range(a.rounds):
        for k in kinds if r % 2 == 0 else kinds[::-1]:
            runs[k].append(one_round(k, a.model, a, r + 1))
            print(f"round {r + 1} {k:11} start {runs[k][-1]['start_s']:.2f} s  " + "  ".join(
                f"{n} streams {runs[k][-1][str(n)]['output_tokens_per_s']:.1f} tokens/s" for n in a.streams), flush=True)
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TOP, stdout=subprocess.PIPE, text=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    each = runs[kinds[0]][0][str(a.streams[0])]["prompt_tokens_each"]
    where = {"date": now.strftime("%Y-%m-%dT%H:%MZ"), "commit": git.stdout.strip() or "unknown", "cpu": cpu_model(),
             "cores": cores, "load_average_before": before, "model": os.path.basename(a.model),
             "rounds": a.rounds, "prompt_tokens": each, "max_tokens": a.tokens}
    text = table(runs, a)
    for k in kinds:
        if runs[k][0]["version"]:
            where[k] = runs[k][0]["version"]
            print(f"\n{k}: {where[k]}")
    print(f"\n{where['cpu']}, {where['cores']} cores; {where['model']}; prompts of {each:.0f} tokens, {a.tokens} new; medians "
          f"of {a.rounds} rounds\n\n{text}")
    folder = os.path.join(TOP, "tests", "bench", "history")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{now.strftime('%Y-%m-%d')}-{where['commit']}.json")
    with open(path, "w") as f:
        json.dump(dict(where, runs=runs, table=text), f, indent=1)
        f.write("\n")
    print(f"\nkept in {os.path.relpath(path, TOP)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
