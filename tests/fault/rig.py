"""Shared by the fault tests: model files, and a short script of requests whose answers can be compared."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SLOW, SMOLLM2, STEPD, TOP, VARIANT, Daemon, free_port, tiny_model  # noqa: E402,F401

DIR = tempfile.TemporaryDirectory(prefix="stepd-fault-")
REPORT = r"ERROR: \w+Sanitizer|runtime error:|WARNING: ThreadSanitizer|stepd: bug"


def start(*args, **kw):
    """A daemon on the null device."""
    return Daemon("--device", "null", *args, model=tiny_model(), **kw)


def completion(d, **kw):
    return d.post("/v1/completions", {"model": d.model, "prompt": "hello", "max_tokens": 4, "ignore_eos": True, **kw})


def stream_text(raw):
    """Text of a completions stream, or None when it ended without [DONE]."""
    frames = [f[6:] for f in raw.decode().split("\n\n") if f.startswith("data: ")]
    if not frames or frames[-1] != "[DONE]":
        return None
    parts = [json.loads(f) for f in frames[:-1]]
    if any("error" in p for p in parts):
        return None
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for p in parts for c in p["choices"])
