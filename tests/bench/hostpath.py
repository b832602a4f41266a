"""What the server itself costs: everything but the model. `--device null` emits scripted tokens, so all time is the host's.

The server has one core of its own and the load generator another; CPU time is the server process's own, of /proc/PID/stat."""
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time

BENCH = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [BENCH, os.path.dirname(BENCH)]
from daemon import Daemon, STEPD, tiny_model  # noqa: E402


def cpu_us(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")


def memory_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Pss:"))


def pinned(cpu, realtime):
    """For a child, before it starts."""
    def f():
        os.sched_setaffinity(0, {cpu})
        if realtime:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(realtime))
    return f


def load(url, model, *args, preexec=None):
    r = subprocess.run([STEPD, "bench", "--url", url, "--model", model, "--json", *map(str, args)], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, timeout=600, preexec_fn=preexec)
    if r.returncode:
        raise RuntimeError(f"load generator: {r.stderr[-300:]}")
    return json.loads(r.stdout)


def null_streams(n, tokens=128, realtime=0):
    """CPU of the server process a generated token, with n streams that come and go."""
    cores = sorted(os.sched_getaffinity(0))
    with Daemon("--device", "null", "--max-sequences", str(n), "--max-queue", "4096", "--no-access-log", model=tiny_model(),
                preexec=pinned(cores[0], realtime)) as d:
        generator = pinned(cores[-1], realtime)
        args = ("--concurrency", n, "--prompt-tokens", 32, "--max-tokens", tokens)
        load(d.url, d.model, "--requests", n, *args, preexec=generator)
        before = cpu_us(d.p.pid)
        j = load(d.url, d.model, "--requests", 2 * n, *args, "--seed", 2, preexec=generator)
        used = cpu_us(d.p.pid) - before
    return {"streams": n, "us_per_token": used / j["output_tokens"], "output_tokens_per_s": j["output_tokens_per_s"],
            "tokens": j["output_tokens"]}


def idle_connections(n=10000):
    """Memory of the server process for n connections that say nothing, after one request each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n = min(n, (hard if hard != resource.RLIM_INFINITY else 1 << 20) - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n + 200), hard))
    open_ = []
    with Daemon("--device", "null", "--no-access-log", "--max-connections", str(n + 100), model=tiny_model()) as d:
        before = memory_kib(d.p.pid)
        try:
            for _ in range(n):
                s = socket.create_connection(("127.0.0.1", d.port), timeout=20)
                s.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                open_.append(s)
            answered = sum(s.recv(4096).startswith(b"HTTP/1.1 200") for s in open_)
            after = memory_kib(d.p.pid)
        finally:
            for s in open_:
                s.close()
    return {"connections": n, "answered": answered, "mb": (after - before) * 1024 / 1e6}


def favoured():
    """On a busy machine, before others but with the ordinary scheduler: real-time threads that compute would keep the server's own
    out for a whole time slice, which nobody runs it with."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except PermissionError:
        pass


def health_under_load(model, streams=64, seconds=8):
    """Times of /health, asked every few milliseconds over one connection while the model answers `streams` requests."""
    times = []
    with Daemon("--no-access-log", model=model, preexec=favoured) as d:
        done = threading.Event()

        def work():
            try:
                load(d.url, d.model, "--concurrency", streams, "--requests", 100000, "--prompt-tokens", 110, "--max-tokens", 64,
                     "--seconds", seconds, preexec=favoured)
            finally:
                done.set()
        favoured()
        t = threading.Thread(target=work)
        t.start()
        time.sleep(0.5)
        try:  # what asks must not wait for the processor itself
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except PermissionError:
            pass
        c = http.client.HTTPConnection("127.0.0.1", d.port)
        while not done.is_set():
            began = time.perf_counter()
            c.request("GET", "/health")
            c.getresponse().read()
            times.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.003)
        t.join()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    times.sort()
    return {"asked": len(times), "p50_ms": statistics.median(times), "p99_ms": times[int(len(times) * 0.99)], "streams": streams}


def pinned_all(realtime):
    def f():
        if realtime:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(realtime))
    return f


def prefix_hit(model, tokens=4000, realtime=0):
    """TTFT of a prompt that was never seen, and of the same again."""
    with Daemon("--no-access-log", model=model, preexec=pinned_all(realtime)) as d:
        def ttft(seed):
            return load(d.url, d.model, "--requests", 1, "--prompt-tokens", tokens - 30, "--max-tokens", 2, "--seed", seed,
                        preexec=pinned_all(realtime))["ttft_ms"]["p50"]
        ttft(1)
        cold = [ttft(s) for s in (2, 3, 4)]
        hit = [ttft(s) for s in (2, 3, 4)]
    return {"tokens": tokens, "cold_ms": statistics.median(cold), "hit_ms": statistics.median(hit),
            "hit_percent": 100 * statistics.median(hit) / statistics.median(cold)}


def measure(model, realtime=0):
    """Everything of this file: {name: figures or {"error": text}}."""
    out = {}
    for name, f in (("null, 256 streams", lambda: null_streams(256, realtime=realtime)),
                    ("null, 1024 streams", lambda: null_streams(1024, realtime=realtime)),
                    ("idle connections", idle_connections),
                    ("/health under load", lambda: health_under_load(model)),
                    ("prefix hit", lambda: prefix_hit(model, realtime=realtime))):
        try:
            out[name] = f()
        except (AssertionError, RuntimeError, OSError, KeyError, ValueError) as e:
            out[name] = {"error": str(e)[-400:]}
    return out


def table(m):
    rows = ["| host path | measured | wanted |", "|---|---|---|"]

    def row(name, text, wanted):
        rows.append(f"| {name} | {m[name].get('error') or text(m[name])} | {wanted} |")
    for n in (256, 1024):
        row(f"null, {n} streams", lambda f: f"{f['us_per_token']:.1f} us of CPU a token, {f['output_tokens_per_s']:.0f} tokens/s",
            "< 8 us" if n == 256 else "")
    row("idle connections", lambda f: f"{f['mb']:.0f} MB for {f['connections']} ({f['answered']} answered)", "< 200 MB for 10000")
    row("/health under load", lambda f: f"p50 {f['p50_ms']:.2f}, p99 {f['p99_ms']:.2f} ms of {f['asked']}, {f['streams']} streams", "p99 < 2 ms")
    row("prefix hit", lambda f: f"{f['hit_ms']:.1f} ms against {f['cold_ms']:.0f} cold: {f['hit_percent']:.1f} % ({f['tokens']} tokens)", "<= 3 %")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(measure(sys.argv[1], int((sys.argv[2:] or ["0"])[0]))))
