"""Tensors of tiny models as rows of bytes, and the orders of rows that to_gguf.py needs. Standard library only."""
import array
import math
import struct

SIZE = {"F32": 4, "F16": 2, "BF16": 2}


class Tensor:
    """Rows of `shape`, outermost first, as they lie in a safetensors file."""

    def __init__(self, shape, dtype, data):
        self.shape, self.dtype, self.data = list(shape), dtype, data

    def floats(self):
        if self.dtype == "F32":
            return array.array("f", self.data)
        if self.dtype == "F16":
            return array.array("f", struct.unpack("<%de" % (len(self.data) // 2), self.data))
        wide = bytearray(2 * len(self.data))
        wide[2::4], wide[3::4] = self.data[0::2], self.data[1::2]
        return array.array("f", bytes(wide))

    def map(self, fn):
        return Tensor(self.shape, "F32", array.array("f", map(fn, self.floats())).tobytes())

    def f32(self):
        return Tensor(self.shape, "F32", self.floats().tobytes())

    def times(self, factor):
        return self if factor == 1 else self.map(lambda v: v * factor)

    def reshape(self, *shape):
        assert math.prod(shape) == math.prod(self.shape)
        return Tensor(shape, self.dtype, self.data)

    def squeeze(self):
        return self.reshape(*[n for n in self.shape if n != 1])

    def take(self, rows):
        """Those of its rows, in that order."""
        n = len(self.data) // self.shape[0]
        rows = list(rows)
        return Tensor([len(rows)] + self.shape[1:], self.dtype, b"".join(self.data[r * n:r * n + n] for r in rows))

    def turned(self):
        """The last two dimensions exchanged."""
        *outer, n, m = self.shape
        size, out = SIZE[self.dtype], []
        for at in range(0, len(self.data), n * m * size):
            one = self.data[at:at + n * m * size]
            cells = [one[i:i + size] for i in range(0, len(one), size)]
            out += [cells[i * m + j] for j in range(m) for i in range(n)]
        return Tensor(outer + [m, n], self.dtype, b"".join(out))

    def second(self, part):
        """part(n) of the second dimension's n rows: of each expert of a stacked tensor."""
        n = self.shape[1]
        flat = self.reshape(self.shape[0] * n, *self.shape[2:])
        rows = list(part(n))
        got = flat.take(e * n + r for e in range(self.shape[0]) for r in rows)
        return got.reshape(self.shape[0], len(rows), *self.shape[2:])


def stack(tensors):
    assert len({(t.dtype, tuple(t.shape)) for t in tensors}) == 1
    return Tensor([len(tensors)] + tensors[0].shape, tensors[0].dtype, b"".join(t.data for t in tensors))


def permute(t, n_head):
    """Rows of rotated halves to those of neighbouring pairs."""
    d = t.shape[0] // n_head
    return t.take(h * d + k * (d // 2) + j for h in range(n_head) for j in range(d // 2) for k in range(2))


def tiled(n_key, per_key, width):
    """Rows of value heads, grouped by key head, in the order that repeats the key heads as a whole."""
    return [(k * per_key + v) * width + i for v in range(per_key) for k in range(n_key) for i in range(width)]
