"""What is measured: loads for a running server. A cell is one load at one number of streams; `stepd bench` makes it, the same for all."""
import json
import os
import subprocess

TEMPLATE = 30  # tokens that a chat template adds to a message, about: prompts are that many words shorter


class Cell:
    """requests 0: twice the streams, four at least. `seconds` caps the cell: what is not answered by then is cut and counted."""

    def __init__(self, name, streams, prompt, tokens, **more):
        self.name, self.streams, self.prompt, self.tokens = name, streams, prompt, tokens
        self.requests = more.pop("requests", 0) or max(4, 2 * streams)
        self.warmup = more.pop("warmup", min(streams, 4))
        self.seconds = more.pop("seconds", 10)
        self.shared, self.turns = more.pop("shared", 0), more.pop("turns", 1)
        self.without = more.pop("without", ())  # kinds that this cell is not run at
        self.rounds = more.pop("rounds", 5)
        if more:
            raise TypeError(f"cell {name}: {', '.join(more)}")

    def key(self):
        return f"{self.name}, {self.streams} stream{'s' if self.streams > 1 else ''}"

    def need(self):
        """Tokens that one sequence of it comes to, with room for templates that are longer than thought."""
        return (self.prompt + self.tokens) * self.turns + 128

    def command(self, binary, url, model, seed):
        words = max(1, self.prompt - TEMPLATE)
        cmd = [binary, "bench", "--url", url, "--model", model, "--concurrency", str(self.streams), "--requests", str(self.requests),
               "--warmup", str(self.warmup), "--prompt-tokens", str(words), "--max-tokens", str(self.tokens), "--seed", str(seed), "--json"]
        if self.seconds:
            cmd += ["--seconds", str(self.seconds)]
        if self.shared:
            cmd += ["--shared-prefix", str(min(self.shared, words))]
        if self.turns > 1:
            cmd += ["--turns", str(self.turns)]
        return cmd


def run(cell, server, seed, realtime=0):
    """Figures of one cell at one server, or {"error": text}."""
    binary = os.environ.get("STEPD", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "release", "stepd"))
    cmd = cell.command(binary, server.url, server.model, seed)
    if realtime:
        cmd = ["chrt", "-r", str(realtime + 1), *cmd]
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=cell.seconds * 2 + 600)
    try:
        return figures(json.loads(r.stdout), cell)
    except (ValueError, KeyError, ZeroDivisionError):
        return {"error": (r.stderr or r.stdout)[-300:] or f"exit status {r.returncode}"}


def figures(j, cell):
    """What the table shows, of the load generator's report."""
    if j["requests"] + j.get("cut", 0) == 0:
        return {"error": f"{j['failed']} requests failed"}
    f = {"output_tokens_per_s": j["output_tokens_per_s"], "ttft_ms": j["ttft_ms"]["p50"], "tpot_ms": j["tpot_ms"]["p50"],
         "prompt_tokens": j["prompt_tokens"] / max(1, j["requests"]), "requests": j["requests"], "failed": j["failed"],
         "cut": j.get("cut", 0), "seconds": j["seconds"]}
    if not j["tpot_ms"]["p50"]:
        del f["tpot_ms"]  # not one second token in the time given
    if cell.turns > 1:
        f["ttft_ms"] = j["ttft_later_ms"]["p50"]  # with all that was said before
    elif cell.streams == 1 and f["ttft_ms"] and f["prompt_tokens"]:
        f["prefill_tokens_per_s"] = f["prompt_tokens"] / f["ttft_ms"] * 1e3
    return f


SHORT = "140 tokens"


def plan(size):
    """Groups of cells that share a start of the servers: [(name, cells)]."""
    if size == "quick":
        return [("short", [Cell(SHORT, n, 140, 64, seconds=8, rounds=2) for n in (1, 4, 16)])]
    full = size == "full"
    # Two of stepd's ways are left out of longer ones, and where many streams or several long ones come together the servers that need
    # minutes for it. Where time is short loads above 4000 tokens at once run fewer rounds, under a limit that lets a fast server finish.
    slow = ("stepd avx2", "stepd plain", "llama.cpp", "ik_llama.cpp")
    short = [Cell(SHORT, n, 140, 64, seconds=60 if full else 10 if n == 64 else 6, rounds=5, requests=n if n == 64 and not full else 0,
                  without=slow[2:] if n > 4 and not full else ()) for n in (1, 4, 16, 64)]

    def cell(name, n, prompt, **more):
        limit = min(max(6, n * prompt // 800), 30)
        rounds = 5 if full or n * prompt <= 4000 else 2 if n * prompt <= 16000 else 1
        return Cell(name, n, prompt, 64, seconds=10 * limit if full else limit, rounds=rounds, warmup=0,
                    without=slow[:2] if full or n == 1 else slow, **more)
    middle = [cell("1000 tokens", n, 1000, requests=max(n, 3)) for n in (1, 4, 16, 64)]
    middle += [cell("1000 tokens, 900 of them shared", n, 1000, shared=900, requests=n + 4) for n in ((1, 4, 16, 64) if full else (16,))]
    middle += [cell("conversations of 4 turns of 100 tokens", n, 100, turns=4, requests=4 * n) for n in ((1, 4, 16, 64) if full else (4,))]
    long = [cell("4000 tokens", n, 4000, requests=max(n, 2)) for n in (1, 4, 16, 64)]
    return [("short", short), ("middle", middle), ("long", long)]
