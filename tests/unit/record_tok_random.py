#!/usr/bin/env python3
"""Records what Hugging Face tokenizers makes of 100,000 random strings a family: tests/data/tokenizers/random.txt.

    record_tok_random.py [FAMILY FROM N]     (the package tokenizers; with arguments: prints those strings' ids)

The strings come from a linear congruential generator that tests/unit/test_tok_random.c repeats. A line is a family and
the FNV-1a digest of the ids of each thousand of strings. (Decoded texts are not recorded: the vocabularies are cut down,
and the library then numbers special tokens otherwise than their file says.)"""
import itertools
import lzma
import os
import sys

from tokenizers import Tokenizer

DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "tokenizers")
FAMILIES = ("qwen3", "gptoss", "deepseek_v3", "whisper-multilingual", "bert-minilm")
N, GROUP = 100000, 1000
MASK = (1 << 64) - 1
# First and last code point of each class, chosen with equal weight. Not in it: U+061D, punctuation since Unicode 14, which
# the library's tables are older than.
CLASSES = ((0x61, 0x7A), (0x61, 0x7A), (0x61, 0x7A), (0x61, 0x7A), (0x41, 0x5A), (0x20, 0x20), (0x20, 0x20), (0x30, 0x39),
           (0x21, 0x2F), (0x3A, 0x40), (0x09, 0x0D), (0x5B, 0x60), (0xA0, 0x17F), (0x370, 0x4FF), (0x4E00, 0x9FFF),
           (0x1F300, 0x1F64F), (0x300, 0x36F), (0x5D0, 0x5EA), (0x620, 0x64A), (0x905, 0x939), (0xAC00, 0xD7A3), (0x2000, 0x206F),
           (0x3041, 0x30FF), (0xE000, 0xE0FF), (0x27, 0x27))


def strings():
    x = 20260101

    def rand(n):
        nonlocal x
        x = (x * 6364136223846793005 + 1442695040888963407) & MASK
        return (x >> 33) % n

    for _ in range(N):
        n = 1 + rand(40)
        s = []
        while len(s) < n:
            lo, hi = CLASSES[rand(len(CLASSES))]
            for _ in range(1 + rand(4)):  # runs, as in real text
                s.append(lo + rand(hi - lo + 1))
        yield "".join(map(chr, s))


def fnv(h, data):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def main():
    for family in FAMILIES if len(sys.argv) < 2 else sys.argv[1:2]:
        with lzma.open(os.path.join(DATA, family + ".tokenizer.json.xz"), "rt", encoding="utf-8") as f:
            tok = Tokenizer.from_str(f.read())
        tok.no_truncation()
        tok.no_padding()
        if len(sys.argv) > 2:
            first, n = int(sys.argv[2]), int(sys.argv[3])
            for i, text in enumerate(itertools.islice(strings(), first, first + n)):
                print(f"{first + i}:", *tok.encode(text, add_special_tokens=False).ids)
            continue
        out, h, n = [], 0xCBF29CE484222325, 0
        for s in strings():
            ids = tok.encode(s, add_special_tokens=False).ids
            h = fnv(h, b"".join(i.to_bytes(4, "little") for i in ids) + b"|")
            n += 1
            if n % GROUP == 0:
                out.append(f"{h:016x}")
                h = 0xCBF29CE484222325
        print(family, *out, flush=True)


main()
