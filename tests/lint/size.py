#!/usr/bin/env python3
"""Checks sizes and a few habits: files <= 800 lines, headers <= 250, functions <= 60 (120 in kernels and for table
literals), parameters <= 7, no header outside engine/base included by more than half of all files, no TODO.
Prints every breach and the medians; exit 1 if any."""
import os
import re
import statistics
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIP = ("build", "node_modules", "models")
# A definition as clang-format leaves it: name and parameters start in column 0, the body's braces too.
HEAD = re.compile(r"^(?!struct|enum|union|typedef|#|/)[A-Za-z_][\w\s\*]*?\b(\w+)\(([^;{}]*)\)(?:\s*__attribute__.*)?\n\{\n", re.M)


def sources():
    for root, dirs, files in os.walk(TOP):
        dirs[:] = [d for d in dirs if not d.startswith(".") and not (root == TOP and d in SKIP) and d != "node_modules"]
        for name in files:
            if name.endswith((".c", ".h", ".cu", ".cuh", ".cc")):
                yield os.path.relpath(os.path.join(root, name), TOP)


def n_params(text):
    text = re.sub(r"\([^()]*\)", "", text).strip()
    return 0 if text in ("", "void") else text.count(",") + 1


def functions(text):
    for m in HEAD.finditer(text):
        end = text.find("\n}", m.end() - 1)
        yield m.group(1), text.count("\n", m.end(), end + 1), n_params(m.group(2))


def main():
    bad, files, sizes, lengths, users = [], list(sources()), [], [], {}
    for path in files:
        with open(os.path.join(TOP, path), encoding="utf-8") as f:
            text = f.read()
        lines = text.count("\n")
        test = path.startswith("tests/")
        limit = 250 if path.endswith(".h") else 800
        if lines > limit:
            bad.append(f"{path}: {lines} lines, at most {limit}")
        if not test:
            sizes.append(lines)
            for name in set(re.findall(r'#include "([^"]+)"', text)):
                users.setdefault(name, []).append(path)
        if re.search(r"\bTODO\b|\bFIXME\b|\bXXX\b", text):
            bad.append(f"{path}: a TODO")
        if path.endswith((".cu", ".cuh")) and path != "cuda/ptx.cuh":
            code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
            for what, why in ((r"\basm\b", "inline assembly belongs in cuda/ptx.cuh"), (r"<<<", "launch only by launch()"),
                              (r"\b__shared__\b", "shared memory only by SHARED and DYN_SHARED")):
                if re.search(what, code):
                    bad.append(f"{path}: {why}")
        kernel = "/kern_" in path or path.startswith("cuda/") or "/gemm_" in path
        for name, n, params in functions(text):
            if not test:
                lengths.append(n)
            if n > (120 if kernel or test else 60):
                bad.append(f"{path}: {name} has {n} lines, at most {120 if kernel or test else 60}")
            if params > 7 and not kernel:
                bad.append(f"{path}: {name} has {params} parameters, at most 7")
    for name, who in users.items():
        if not name.startswith("engine/base/") and len(who) > len(files) / 2:
            bad.append(f"{name}: included by {len(who)} of {len(files)} files")
    print("\n".join(bad))
    if not bad:
        print(f"lint: {len(sizes)} files (median {statistics.median(sizes):.0f} lines), "
              f"{len(lengths)} functions (median {statistics.median(lengths):.0f})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
