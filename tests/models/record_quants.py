#!/usr/bin/env python3
"""Packs bit patterns and expected values of GGUF's formats for tests/unit/test_quant.

Usage: record_quants.py QUANTS.safetensors OUT.bin.xz. The input holds TYPE.random, TYPE.random_dequant and, where the
reference encodes, TYPE.src, TYPE.quant, TYPE.dequant, as the Python package gguf makes them."""
import json
import lzma
import struct
import sys


def main():
    with open(sys.argv[1], "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        data = f.read()
    out = b""
    order = ["random", "random_dequant", "src", "quant", "dequant"]
    head.pop("__metadata__", None)
    for name in sorted(head, key=lambda s: (s.split(".")[0], order.index(s.split(".")[1]))):
        lo, hi = head[name]["data_offsets"]
        out += name.encode().ljust(24, b"\0") + struct.pack("<Q", hi - lo) + data[lo:hi]
    with lzma.open(sys.argv[2], "wb", preset=9 | lzma.PRESET_EXTREME) as f:
        f.write(out)


main()
