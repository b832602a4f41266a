#!/usr/bin/env python3
"""Writes a Llama GGUF of random weights, for measuring a device without a real model.

    random_gguf.py FILE --format bf16|q4_k [--shape llama-3-8b|tiny] [--max-bytes N]

Weights are one random block of about 1 MiB again and again: a processor's speed does not depend on their values. There is no
tokenizer. Layers are left out until the file fits --max-bytes (default: nine tenths of the folder's free space); the
last line of output is JSON with the layers and bytes written. Standard library only."""
import argparse
import json
import os
import random
import shutil
import struct

# embedding, feed-forward, heads, KV heads, layers, vocabulary
SHAPES = {"llama-3-8b": (4096, 14336, 32, 8, 32, 128256), "tiny": (256, 512, 4, 2, 2, 320)}
F32, Q4_K, BF16 = 0, 12, 30
U32, FLOAT, STRING = 4, 6, 8
ALIGN = 32


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def block(kind):
    """Random bytes that are modest, finite weights."""
    rng = random.Random(1)
    if kind == F32:
        return struct.pack("<f", 1.0) * 4096
    raw = bytearray(rng.randbytes(144 * 7282))
    if kind == Q4_K:
        for i in range(0, len(raw), 144):  # d and dmin: halves near 1e-3, so that weights are around 0.02
            raw[i + 1], raw[i + 3] = 0x10, 0x14
    else:
        for i in range(1, len(raw), 2):  # about 2^-7 to 2^-6
            raw[i] = 0x3C | raw[i] & 0x80
    return bytes(raw)


def tensors(shape, kind, layers):
    d, ff, heads, kv, _, vocab = shape
    wide, kv_dim = d, d // heads * kv
    yield "token_embd.weight", kind, (d, vocab)
    for i in range(layers):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", F32, (d,)
        yield b + "attn_q.weight", kind, (d, wide)
        yield b + "attn_k.weight", kind, (d, kv_dim)
        yield b + "attn_v.weight", kind, (d, kv_dim)
        yield b + "attn_output.weight", kind, (wide, d)
        yield b + "ffn_norm.weight", F32, (d,)
        yield b + "ffn_gate.weight", kind, (d, ff)
        yield b + "ffn_up.weight", kind, (d, ff)
        yield b + "ffn_down.weight", kind, (ff, d)
    yield "output_norm.weight", F32, (d,)
    yield "output.weight", kind, (d, vocab)


def size(kind, dims):
    n = 1
    for x in dims:
        n *= x
    return n * 4 if kind == F32 else n * 2 if kind == BF16 else n // 256 * 144


def padded(n):
    return (n + ALIGN - 1) // ALIGN * ALIGN


def header(shape, kind, layers):
    d, ff, heads, kv, _, _ = shape
    ints = {"block_count": layers, "embedding_length": d, "feed_forward_length": ff, "attention.head_count": heads,
            "attention.head_count_kv": kv, "context_length": 8192, "rope.dimension_count": d // heads}
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0}
    keys = text("general.architecture") + struct.pack("<I", STRING) + text("llama")
    keys += b"".join(text("llama." + k) + struct.pack("<II", U32, v) for k, v in ints.items())
    keys += b"".join(text("llama." + k) + struct.pack("<If", FLOAT, v) for k, v in floats.items())
    infos, at, n = b"", 0, 0
    for name, k, dims in tensors(shape, kind, layers):
        infos += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", x) for x in dims) + struct.pack("<IQ", k, at)
        at += padded(size(k, dims))
        n += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, n, 1 + len(ints) + len(floats)) + keys + infos
    return head + bytes(padded(len(head)) - len(head)), at


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file")
    p.add_argument("--format", choices=("bf16", "q4_k"), required=True)
    p.add_argument("--shape", choices=SHAPES, default="llama-3-8b")
    p.add_argument("--max-bytes", type=int)
    a = p.parse_args()
    kind, shape = (BF16 if a.format == "bf16" else Q4_K), SHAPES[a.shape]
    limit = a.max_bytes if a.max_bytes is not None else shutil.disk_usage(os.path.dirname(os.path.abspath(a.file))).free * 9 // 10
    layers = shape[4]
    while layers:
        head, data = header(shape, kind, layers)
        if len(head) + data <= limit:
            break
        layers -= 1
    if not layers:
        p.error(f"{limit} bytes do not hold even one layer")
    blocks = {k: block(k) for k in (F32, kind)}
    with open(a.file, "wb") as f:
        f.write(head)
        for _, k, dims in tensors(shape, kind, layers):
            left, b = size(k, dims), memoryview(blocks[k])
            pad = padded(left) - left
            while left:
                left -= f.write(b[:min(left, len(b))])
            f.write(bytes(pad))
    print(json.dumps({"layers": layers, "of": shape[4], "bytes": len(head) + data}))


if __name__ == "__main__":
    main()
