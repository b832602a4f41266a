#!/usr/bin/env python3
"""A copy of a GGUF file with its Q5_0 and Q5_1 tensors as Q8_0, for readers that do not know those types.

    gguf_q8.py IN.gguf OUT.gguf

A Q5_0 block is a scale and 32 integers of -16 to 15, so its Q8_0 block has the same values to the bit; Q5_1 has an offset and
is rounded to the nearest of 255 levels (of the 32 values' largest). Everything else is copied; nothing is written where no tensor
is of these types. Needs numpy."""
import os
import struct
import sys

import numpy as np

SCALAR = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value by its type
STRING, ARRAY = 8, 9
Q5_0, Q5_1, Q8_0 = 6, 7, 8
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), Q5_0: (32, 22), Q5_1: (32, 24), Q8_0: (32, 34), 10: (256, 84), 11: (256, 110),
         12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}  # values, bytes
ALIGN = 32


class Reader:
    def __init__(self, f):
        self.f = f

    def unpack(self, form):
        v = struct.unpack("<" + form, self.f.read(struct.calcsize("<" + form)))
        return v[0] if len(v) == 1 else v

    def string(self):
        return self.f.read(self.unpack("Q"))

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            kind, n = self.unpack("IQ")
            if kind in SCALAR:
                self.f.seek(SCALAR[kind] * n, os.SEEK_CUR)
            else:
                for _ in range(n):
                    self.skip(kind)
        else:
            self.f.seek(SCALAR[kind], os.SEEK_CUR)


def to_q8(data, kind):
    """Q8_0 blocks of Q5_0 or Q5_1 blocks; bytes in, bytes out."""
    b = np.frombuffer(data, np.uint8).reshape(-1, BLOCK[kind][1])
    at = 2 if kind == Q5_0 else 4
    bits = b[:, at:at + 4].copy().view("<u4")
    low = b[:, at + 4:]
    q = np.concatenate([low & 15, low >> 4], 1) | (((bits >> np.arange(32, dtype=np.uint32)) & 1) << 4).astype(np.uint8)
    out = np.empty((len(b), 34), np.uint8)
    if kind == Q5_0:
        out[:, :2] = b[:, :2]
        out[:, 2:] = (q.astype(np.int8) - 16).view(np.uint8)
        return out.tobytes()
    d, m = (b[:, i:i + 2].copy().view("<f2").astype(np.float32) for i in (0, 2))
    x = q * d + m
    scale = (np.abs(x).max(1, keepdims=True) / 127).astype(np.float16)
    s = scale.astype(np.float32)
    out[:, :2] = scale.view(np.uint8)
    out[:, 2:] = np.clip(np.rint(np.divide(x, s, out=np.zeros_like(x), where=s != 0)), -127, 127).astype(np.int8).view(np.uint8)
    return out.tobytes()


def pad(n):
    return -n % ALIGN


def convert(src, dst):
    """Returns how many tensors changed."""
    with open(src, "rb") as f:
        r = Reader(f)
        magic, version, n_tensor, n_kv = r.unpack("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{src} is not a GGUF file of version 2 or 3")
        kv = f.tell()
        for _ in range(n_kv):
            key = r.string()
            if key == b"general.alignment":
                raise ValueError(f"{src} has an alignment of its own")
            r.skip(r.unpack("I"))
        end = f.tell()
        infos = []
        for _ in range(n_tensor):
            name, n_dim = r.string(), r.unpack("I")
            dims = [r.unpack("Q") for _ in range(n_dim)]
            infos.append((name, dims, *r.unpack("IQ")))
        base = f.tell() + pad(f.tell())
        f.seek(kv)
        meta = f.read(end - kv)
        head, place, parts = [], 0, []
        for name, dims, kind, offset in infos:
            per, size = BLOCK[kind]
            n = int(np.prod(dims)) // per
            new = Q8_0 if kind in (Q5_0, Q5_1) else kind
            head.append(struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, new, place))
            parts.append((offset, n * size, kind, n * BLOCK[new][1]))
            place += parts[-1][3] + pad(parts[-1][3])
        if all(p[2] not in (Q5_0, Q5_1) for p in parts):
            return 0
        with open(dst + ".part", "wb") as o:
            o.write(struct.pack("<4sIQQ", magic, version, n_tensor, n_kv) + meta + b"".join(head))
            o.write(bytes(pad(o.tell())))
            for offset, size, kind, size_out in parts:
                f.seek(base + offset)
                data = f.read(size)
                o.write(to_q8(data, kind) if kind in (Q5_0, Q5_1) else data)
                o.write(bytes(pad(size_out)))
    os.rename(dst + ".part", dst)
    return sum(p[2] in (Q5_0, Q5_1) for p in parts)


if __name__ == "__main__":
    print(convert(*sys.argv[1:3]), "tensors changed")
