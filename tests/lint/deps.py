#!/usr/bin/env python3
"""Checks the include table: which folder may include which. Prints every breach; exit 1 if any.

The rules are the project's boundaries: server knows HTTP, api knows JSON, sched knows block numbers, engine
knows bytes, backends know arithmetic. System headers: jansson only where JSON is read, uv and microhttpd only in
server/, CUDA only in cuda/."""
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE = "engine/base/"
# What every backend must do the same way: shape checks of ops, the sampler's random numbers.
SHARED = ["engine/ops_check.h", "engine/rng.h"]
# folder -> prefixes of our own headers that it may include; itself is always allowed
RULES = {
    "engine/base": [],
    "conf": [BASE],
    "engine/load": [BASE, "engine/quant/", "engine/tensor.h", "engine/ops.h"],
    "engine/quant": [BASE],
    "engine/text": [BASE, "engine/load/", "engine/quant/", "engine/grammar.h"],
    "engine/models": [BASE, "engine/"],
    "engine/image": [BASE, "engine/"],
    "engine/nn": [BASE, "engine/"],
    "engine/encode": [BASE, "engine/"],
    "engine/audio": [BASE, "engine/"],
    "engine/ref": [BASE, "engine/ops.h", "engine/ops_types.h", "engine/tensor.h", "engine/backend.h", "engine/quant/"] + SHARED,
    "engine/cpu": [BASE, "engine/ops.h", "engine/ops_types.h", "engine/tensor.h", "engine/backend.h", "engine/quant/"] + SHARED,
    "engine": [BASE, "engine/"],
    "cuda": [BASE, "engine/ops.h", "engine/ops_types.h", "engine/tensor.h", "engine/backend.h", "engine/quant/"] + SHARED,
    "sched": [BASE, "engine/engine.h"],
    "api": [BASE, "sched/request.h", "engine/text/"],
    "server": [BASE, "conf/", "api/route.h", "sched/worker.h", "sched/request.h"],
}
# file -> extra headers, each with its reason
EXCEPTIONS = {
    "server/pull.c": ["api/hub.h"],  # a hub's listing is JSON, so api/ reads it
    "server/inspect.c": ["engine/engine.h", "engine/tools.h"],  # files are looked at and converted without a request
    "server/plan.c": ["engine/engine.h"],  # `stepd plan` asks the engine's door for sizes, without a request
}
SYSTEM = {
    "jansson.h": ("api", "engine/load", "engine/text", "engine/image"),
    "uv.h": ("server",),
    "microhttpd.h": ("server",),
    "curl/curl.h": ("server",),
    "ini.h": ("conf", "server"),
    "pcre2.h": ("engine/text", "api"),
    "utf8proc.h": ("engine/text", "api"),
    "gnutls/": ("server",),
    "png.h": ("api",),
    "jpeglib.h": ("api",),
    "webp/": ("api",),
    "sndfile.h": ("api",),
    "samplerate.h": ("api",),
    "zlib.h": ("engine/audio",),
    "cuda": ("cuda",),
}


def folder_of(path):
    parts = os.path.dirname(path)
    while parts and parts not in RULES:
        parts = os.path.dirname(parts)
    return parts


def check(path, bad):
    me = folder_of(path)
    with open(os.path.join(TOP, path), encoding="utf-8") as f:
        text = f.read()
    for line in re.finditer(r'^\s*#\s*include\s+(["<])([^">]+)[">]', text, re.M):
        kind, name = line.groups()
        if kind == '"':
            ok = [me + "/"] + RULES[me] + EXCEPTIONS.get(path, [])
            mine = os.path.dirname(name) == me
            if not mine and not any(name == p or (p.endswith("/") and name.startswith(p)) for p in ok):
                bad.append(f"{path}: includes {name}, which {me}/ may not")
        else:
            for key, folders in SYSTEM.items():
                if (name == key or name.startswith(key)) and me not in folders:
                    bad.append(f"{path}: includes <{name}>, which {me}/ may not")


def main():
    bad, n = [], 0
    for root, dirs, files in os.walk(TOP):
        dirs[:] = [d for d in dirs if not d.startswith(".") and d not in ("build", "tests", "node_modules", "models_")]
        for name in files:
            path = os.path.relpath(os.path.join(root, name), TOP)
            if name.endswith((".c", ".h", ".cu", ".cuh")) and folder_of(path):
                n += 1
                check(path, bad)
    print("\n".join(bad) if bad else f"lint: includes of {n} files are as the table says")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
