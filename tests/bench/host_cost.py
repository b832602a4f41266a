#!/usr/bin/env python3
"""What the host costs: instructions of the whole server process for each generated token and for each request, by module.

    tests/bench/host_cost.py [--streams 256] [--keep] [--json]
    tests/bench/host_cost.py --time [--streams 256]
    tests/bench/host_cost.py --prompts
    tests/bench/host_cost.py --all

Without --time: the daemon under valgrind --tool=callgrind, a device that emits scripted tokens at a fixed pace (`--device null
--null-step`), streamed chat answers of two lengths from as many clients; the difference of the two counts over the difference in
tokens is the cost of a token, what is left of the shorter one is the cost of a request. Counts hardly vary from run to run.
With --prompts: instructions of one request of about 100, 10,000 and 100,000 prompt tokens, and wall time without valgrind, when it
is new and when the prefix cache has it: body, template, tokens, blocks, plan.
With --time: CPU seconds (user and system) of the daemon at full speed, the share of time in which the device had to wait, and the
latency of /health meanwhile; figures of the machine and of what else runs on it.
With --all: everything, and the scheduler's share of a step (bench_sched), beside what is aimed at; ends with 1 where a step of 256
rows is planned and harvested in 100 us or more.
--keep writes tests/bench/history/DATE-COMMIT-host.json; --json prints one JSON object."""
import argparse
import collections
import datetime
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
import daemon as d  # noqa: E402

SHORT, LONG = 4, 20  # output tokens of an answer
LIBS = (("libmicrohttpd", "libmicrohttpd"), ("libuv", "libuv"), ("jansson", "json"), ("pcre2", "pcre"), ("libgnutls", "tls"))
FOLDERS = (("server/", "http"), ("api/", "api"), ("sched/", "sched"), ("engine/text/", "tokenizer"), ("engine/base/", "base"),
           ("engine/", "engine"), ("conf/", "conf"))


def module(obj, source):
    """The part of the program that a function belongs to."""
    for word, name in LIBS:
        if word in obj:
            return name
    if obj == "???":
        return "pcre"  # code made at run time
    if "stepd" in obj:
        return next((name for part, name in FOLDERS if "/" + part in "/" + source), "other")
    return "libc" if "/libc" in obj or "/ld-" in obj else "other"


def self_costs(path):
    """{(module, function): instructions} of one part of a profile: each function's own, without what it calls."""
    names = {"ob": {}, "fl": {}, "fn": {}}
    obj = source = fn = ""
    own = collections.Counter()
    skip = False

    def name(kind, text):
        m = re.match(r"\((\d+)\)(?: (.*))?$", text)
        if m.group(2) is not None:
            names[kind][m.group(1)] = m.group(2)
        return names[kind].get(m.group(1), "???")

    with open(path) as f:
        for line in f:
            key, eq, rest = line.rstrip("\n").partition("=")
            if eq and key in ("ob", "cob"):
                got = name("ob", rest)
                obj = got if key == "ob" else obj
            elif eq and key in ("fl", "fi", "fe", "cfi", "cfl"):
                got = name("fl", rest)
                source = got if key in ("fl", "fi", "fe") else source
            elif eq and key in ("fn", "cfn"):
                got = name("fn", rest)
                fn = got if key == "fn" else fn
            elif eq and key == "calls":
                skip = True
            elif line[:1].isdigit() or line[:1] in "+-*":
                if not skip:
                    own[module(obj, source), fn] += int(line.split()[1])
                skip = False
    return own


def bench(port, streams, requests, tokens):
    cmd = [d.STEPD, "bench", "--url", f"http://127.0.0.1:{port}", "--model", "m", "--concurrency", str(streams), "--requests",
           str(requests), "--prompt-tokens", "110", "--max-tokens", str(tokens), "--json"]
    out = json.loads(subprocess.run(cmd, stdout=subprocess.PIPE, check=True, cwd=TOP).stdout)
    if out["failed"] or out["requests"] != requests:
        sys.exit(f"{out['failed']} of {requests} requests failed")
    return out


def wait_ready(port, p, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until and p.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"the daemon did not become ready: {p.args}")


def daemon(port, model, streams, step, before=()):
    cmd = [*before, d.STEPD, "serve", "--port", str(port), "--device", "null", "--null-step", step, "--no-access-log",
           "--max-sequences", str(max(streams, 64)), "--step-tokens", "65536", "--max-queue", "8192", "--queue-timeout", "0",
           "m=" + model]
    return subprocess.Popen(cmd, cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def counted(model, streams, step, loads):
    """Instructions, by module and function, of each of the loads (called with the port) but the first, which warms up."""
    port = d.free_port()
    with tempfile.TemporaryDirectory(prefix="stepd-cost-") as tmp:
        out = os.path.join(tmp, "out")
        p = daemon(port, model, streams, step, ["valgrind", "-q", "--tool=callgrind", "--fair-sched=yes",
                                                "--callgrind-out-file=" + out])
        try:
            wait_ready(port, p, 300)
            for load in loads:
                load(port)
                subprocess.run(["callgrind_control", "-d", str(p.pid)], check=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        finally:
            p.terminate()
            p.wait()
        return [self_costs(f"{out}.{i + 1}") for i in range(1, len(loads))]


def per_token(model, streams, step="250ms"):
    """{"per_token": {module: n}, "per_request": {module: n}, "token": n, "request": n, "functions": [[n, module, name]]}."""
    def load(tokens):
        return lambda port: bench(port, streams, streams, tokens)

    short, long = counted(model, streams, step, [load(SHORT), load(SHORT), load(LONG)])
    each = {k: (long[k] - short[k]) / (streams * (LONG - SHORT)) for k in long.keys() | short.keys()}
    token, request = collections.Counter(), collections.Counter()
    for (mod, _), n in each.items():
        token[mod] += n
    for key, n in short.items():
        request[key[0]] += n / streams - each[key] * SHORT
    top = sorted(((round(n, 1), mod, fn) for (mod, fn), n in each.items()), reverse=True)[:40]
    once = sorted(((round(n / streams - each[k] * SHORT), *k) for k, n in short.items()), reverse=True)[:40]
    return {"streams": streams, "token": round(sum(token.values())), "request": round(sum(request.values())),
            "per_token": {k: round(n, 1) for k, n in token.most_common()},
            "per_request": {k: round(n) for k, n in request.most_common()}, "functions": top, "functions_per_request": once}


def long_context(model, folder):
    """A copy of a GGUF file that says that its context has a million tokens: nothing is computed here."""
    with open(model, "rb") as f:
        data = bytearray(f.read())
    at = re.search(rb"\.context_length", data).end() + 4
    data[at:at + 4] = struct.pack("<I", 1 << 20)
    path = os.path.join(folder, "long.gguf")
    with open(path, "wb") as f:
        f.write(data)
    return path


def prompt(n, seed, per_token):
    """English words for about n tokens, of as many characters each."""
    with open(os.path.join(TOP, "LICENSE")) as f:
        words = f.read().split()
    rnd, out, size = random.Random(seed), [], 0
    while size < n * per_token:
        out.append(rnd.choice(words))
        size += len(out[-1]) + 1
    return " ".join(out)


def ask(port, text, sizes=None):
    """Milliseconds of one chat request with one token as its answer; its tokens and cached tokens are added to sizes."""
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": text}]})
    q = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body.encode(), {"Content-Type": "application/json"})
    t = time.perf_counter()
    with urllib.request.urlopen(q, timeout=300) as r:
        usage = json.loads(r.read())["usage"]
    if sizes is not None:
        sizes.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    return (time.perf_counter() - t) * 1e3


def prompt_counts(model, sizes=(100, 10000, 100000), per_token=4.2):
    """[{"tokens", "instructions", "modules"}] for prompts of about so many tokens."""
    with tempfile.TemporaryDirectory(prefix="stepd-cost-") as tmp:
        tokens = []

        def load(n):
            return lambda port: ask(port, prompt(n, n, per_token), tokens)

        parts = counted(long_context(model, tmp), 64, "0", [load(50)] + [load(n) for n in sizes])
        out = []
        for (n, _), own in zip(tokens[1:], parts):
            mods = collections.Counter()
            for (mod, _), k in own.items():
                mods[mod] += k
            out.append({"tokens": n, "instructions": sum(mods.values()), "modules": dict(mods.most_common())})
        return out


def prompt_times(model, sizes=(100, 1000, 4000, 10000, 100000), per_token=4.2):
    """[{"tokens", "new_ms", "cached_ms"}]: the best of several requests."""
    with tempfile.TemporaryDirectory(prefix="stepd-cost-") as tmp:
        port = d.free_port()
        p = daemon(port, long_context(model, tmp), 64, "0")
        try:
            wait_ready(port, p, 60)
            out = []
            for n in sizes:
                tokens = []
                new = min(ask(port, prompt(n, i, per_token), tokens) for i in range(5))
                cached = min(ask(port, prompt(n, 4, per_token), tokens) for i in range(5))
                out.append({"tokens": tokens[-1][0], "cached": tokens[-1][1], "new_ms": round(new, 2),
                            "cached_ms": round(cached, 2)})
            return out
        finally:
            p.terminate()
            p.wait()


def health_latency(port, stop, into):
    """Ask again and again over one connection, ahead of other work on this machine where that is allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO) + 90))
    except OSError:
        pass
    ask = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        while not stop.is_set():
            t = time.perf_counter()
            s.sendall(ask)
            if not s.recv(4096).startswith(b"HTTP/1.1 200"):
                sys.exit("the health check failed")
            into.append((time.perf_counter() - t) * 1e3)
            time.sleep(0.0037)


def metric(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as r:
        return float(re.search(rf"^{name}\{{.*\}} (\S+)$", r.read().decode(), re.M).group(1))


def cpu_us(pid):
    with open(f"/proc/{pid}/stat") as f:
        part = f.read().rpartition(")")[2].split()
    tick = 1e6 / os.sysconf("SC_CLK_TCK")
    return float(part[11]) * tick, float(part[12]) * tick


def timed(model, streams, step="5ms", tokens=256):
    port = d.free_port()
    p = daemon(port, model, streams, step)
    ms, stop = [], threading.Event()
    try:
        wait_ready(port, p, 60)
        bench(port, streams, streams, SHORT)
        before, gap = cpu_us(p.pid), metric(port, "stepd:step_gap_seconds_total")
        t = threading.Thread(target=health_latency, args=(port, stop, ms))
        t.start()
        r = bench(port, streams, 2 * streams, tokens)
        stop.set()
        t.join()
        after, gap = cpu_us(p.pid), metric(port, "stepd:step_gap_seconds_total") - gap
    finally:
        stop.set()
        p.terminate()
        p.wait()
    n = r["output_tokens"]
    ms.sort()
    user, system = (after[0] - before[0]) / n, (after[1] - before[1]) / n
    return {"streams": streams, "step": step, "user_us_per_token": round(user, 2), "system_us_per_token": round(system, 2),
            "us_per_token": round(user + system, 2), "device_waits": round(gap / r["seconds"], 5),
            "ttft_ms": r["ttft_ms"], "tpot_ms": r["tpot_ms"], "output_tokens_per_s": r["output_tokens_per_s"],
            "health_ms": {"n": len(ms), "p50": round(ms[len(ms) // 2], 2), "p99": round(ms[int(len(ms) * 0.99)], 2)}}


def step_times():
    """What bench_sched prints: [{"rows", "prompt_tokens", "us_median", ...}]."""
    r = subprocess.run([os.path.join(os.path.dirname(d.STEPD), "tests/bench/bench_sched"), d.SMOLLM2], stdout=subprocess.PIPE,
                       stderr=subprocess.DEVNULL, text=True)
    return [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]


def everything(model, streams):
    f = {"load_average_before": os.getloadavg()[0], "steps": step_times(), "time": timed(model, streams),
         "prompts": prompt_times(model)}
    if shutil.which("valgrind"):
        f["counts"] = per_token(model, streams)
        f["prompt_counts"] = prompt_counts(model)
    return f


def report(f):
    """Prints figures beside aims. Whether the step's is reached: the others depend on what else runs here."""
    t = f["time"]
    step = max(s["us_median"] for s in f["steps"] if s["rows"] == 256)
    for what, v, most, unit in (("a step of 256 rows, planned and harvested", step, 100, "us"),
                                (f"CPU time of a token at {t['streams']} streams", t["us_per_token"], 8, "us"),
                                ("/health under load, 99th percentile", t["health_ms"]["p99"], 2, "ms"),
                                ("time in which the device waited", 100 * t["device_waits"], 1, "%")):
        print(f"{what:45} {v:8.2f} {unit}  {'ok' if v < most else f'not under {most}'}")
    for p in f["prompts"]:
        print(f"prompt of {p['tokens']:6} tokens: new {p['new_ms']:8.2f} ms, {p['cached']} cached {p['cached_ms']:8.2f} ms")
    if "counts" in f:
        print(f"instructions: {f['counts']['token']} a token, {f['counts']['request']} a request")
        for p in f["prompt_counts"]:
            print(f"  prompt of {p['tokens']:6} tokens: {p['instructions'] / p['tokens']:.0f} a prompt token")
    return step < 100


def keep(figures):
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TOP, stdout=subprocess.PIPE, text=True)
    now, commit = datetime.datetime.now(datetime.timezone.utc), git.stdout.strip() or "unknown"
    path = os.path.join(TOP, "tests", "bench", "history", f"{now.strftime('%Y-%m-%d')}-{commit}-host.json")
    with open(path, "w") as f:
        json.dump(dict({"date": now.strftime("%Y-%m-%dT%H:%MZ"), "commit": commit}, **figures), f, indent=1)
        f.write("\n")
    return os.path.relpath(path, TOP)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--streams", type=int, default=256)
    a.add_argument("--model", default=d.SMOLLM2)
    a.add_argument("--step", help="time of a step")
    a.add_argument("--time", action="store_true")
    a.add_argument("--prompts", action="store_true")
    a.add_argument("--all", action="store_true")
    a.add_argument("--keep", action="store_true")
    a.add_argument("--json", action="store_true")
    o = a.parse_args()
    if not o.time and not o.all and not shutil.which("valgrind"):
        sys.exit("valgrind is not installed")
    if o.all:
        figures = everything(o.model, o.streams)
    elif o.prompts:
        figures = {"counts": prompt_counts(o.model), "times": prompt_times(o.model)}
    else:
        figures = (timed if o.time else per_token)(o.model, o.streams, **({"step": o.step} if o.step else {}))
    if o.keep:
        figures["kept"] = keep(figures)
    if o.json:
        print(json.dumps(figures))
    elif o.all:
        sys.exit(0 if report(figures) else 1)
    elif o.prompts:
        print("\n".join(json.dumps(x) for x in figures["counts"] + figures["times"]))
    elif o.time:
        print("\n".join(f"{k:22} {v}" for k, v in figures.items()))
    else:
        print(f"{o.streams} streams: {figures['token']} instructions a token, {figures['request']} a request")
        for k in figures["per_token"]:
            print(f"  {k:14} {figures['per_token'][k]:10.1f} {figures['per_request'].get(k, 0):12}")
        for what in ("functions", "functions_per_request"):
            print(what.replace("_", " ").replace("functions per", "of a").replace("functions", "of a token"))
            for n, mod, fn in figures[what]:
                print(f"    {n:9.1f}  {mod:14} {fn}")


if __name__ == "__main__":
    main()
