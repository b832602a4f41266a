#!/usr/bin/env python3
"""Matrices of a GGUF file in the types that llama.cpp quantises to and stepd reads: by its own quantiser, called in the Python
package xllamacpp through ctypes.

    ggml_types.py IN OUT TYPE LAYERS     (numpy, gguf, xllamacpp)"""
import ctypes
import glob
import os
import re
import struct
import sys

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
TYPES = ["Q2_K", "Q3_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"]
ALIGN = 32


def library():
    """Of this interpreter, or of an environment of the tests."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    places = sys.path + glob.glob(os.path.join(top, ".venv-[bq]*", "lib", "python*", "site-packages"))
    found = [f for p in places for f in glob.glob(os.path.join(p, "xllamacpp", "*.so"))]
    if not found:
        raise SystemExit("no xllamacpp, whose quantiser makes these types: conf/setup.sh quantisers")
    lib = ctypes.CDLL(found[0])
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                        ctypes.c_int64, ctypes.c_void_p]
    return lib


def quantise(lib, w, kind):
    """Bytes of rows w; every column counts alike (an importance matrix of ones)."""
    w = np.ascontiguousarray(w, np.float32)
    out = np.zeros(gguf.quant_shape_to_byte_shape(w.shape, kind), np.uint8)
    same = np.ones(w.shape[1], np.float32)
    lib.ggml_quantize_init(int(kind))
    n = lib.ggml_quantize_chunk(int(kind), w.ctypes.data, out.ctypes.data, 0, *w.shape, same.ctypes.data)
    if n != out.size:
        raise RuntimeError(f"{kind.name}: {n} bytes instead of {out.size}")
    return out


def retype(src, dst, kind, layers):
    """Writes src again as dst, the matrices of its first `layers` layers in `kind` where their rows are whole blocks of it, all
    else as it is. Returns how many matrices and weights these are."""
    lib, kind, r = library(), Q[kind], gguf.GGUFReader(src)
    data, infos, at, n, size = [], b"", 0, 0, 0
    for t in r.tensors:
        m = re.match(r"blk\.(\d+)\.(?:attn|ffn)_\w+\.weight$", t.name)
        rows, as_type = t.data, t.tensor_type
        if m and int(m.group(1)) < layers and len(t.shape) == 2 and t.shape[0] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            as_type, n, size = kind, n + 1, size + int(t.n_elements)
            rows = quantise(lib, gguf.dequantize(t.data, t.tensor_type), kind)
        name = t.name.encode()
        infos += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(t.shape)}QIQ", len(t.shape), *map(int, t.shape), int(as_type), at)
        data.append(rows)
        at += -(-rows.nbytes // ALIGN) * ALIGN
    assert r.alignment == ALIGN
    with open(dst, "wb") as f:
        f.write(r.data[:int(r.tensors[0].field.offset)].tobytes() + infos)
        for rows in data:
            f.write(bytes(-f.tell() % ALIGN))
            f.write(rows.tobytes())
    return n, size


if __name__ == "__main__":
    retype(*sys.argv[1:4], int(sys.argv[4]))
