#!/usr/bin/env python3
"""Every family's GGUF layout. Where tests/data/gguf-cases has a folder's file of llama.cpp's own converter (test_gguf runs those),
to_gguf.py makes the same keys and tensors of it; what it makes of the other folders gives the logits, greedy ids and equal bytes
of its folder (test_folders, on the reference, a table of the CPU, some on the emulation)."""
import lzma
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "models"))
import to_gguf  # noqa: E402

VERSIONS = {"vocab_size", "full_attention_interval", "rope.dimension_sections"}  # keys that some versions of the converter write
OWN = os.path.join(TOP, "tests", "data", "gguf-cases")
PROGRAM = os.path.join(TOP, "build", os.environ.get("VARIANT", "release"), "tests", "models", "test_folders")


def read(raw):
    """({key: value}, {name: tensor}) of a file's bytes."""
    at = 24
    n_tensor, n_key = struct.unpack_from("<QQ", raw, 8)

    def number(form):
        nonlocal at
        v = struct.unpack_from("<" + form, raw, at)[0]
        at += struct.calcsize("<" + form)
        return v

    def string():
        nonlocal at
        n = number("Q")
        at += n
        return raw[at - n:at].decode()

    def one(kind):
        if kind == 8:
            return string()
        if kind == 9:
            kind, n = number("I"), number("Q")
            return [one(kind) for _ in range(n)]
        return number("BbHhIif?  Qqd"[kind])

    keys, table, tensors = {}, [], {}
    for _ in range(n_key):
        name = string()
        keys[name] = one(number("I"))
    for _ in range(n_tensor):
        name = string()
        shape = [number("Q") for _ in range(number("I"))][::-1]
        table.append((name, shape, number("I"), number("Q")))
    at += -at % 32
    for name, shape, kind, offset in table:
        dtype = next(n for n, v in to_gguf.GGML.items() if v == kind)
        tensors[name] = to_gguf.Tensor(shape, dtype, raw[at + offset:at + offset + math.prod(shape) * to_gguf.SIZE[dtype]])
    return keys, tensors


def cases():
    return sorted(n for n in os.listdir(to_gguf.FOLDERS) if os.path.isdir(os.path.join(to_gguf.FOLDERS, n)))


def own(case):
    """The converter's own file."""
    return os.path.join(OWN, case + ".gguf.xz")


def of_model(keys):
    """Keys of the model, without the architecture's name (of what is converted as "llama" by some versions)."""
    arch = keys["general.architecture"]
    return {k[len(arch) + 1:]: v for k, v in keys.items() if k.startswith(arch + ".")}


class Families(unittest.TestCase):
    def equal(self, a, b, what):
        self.assertEqual(a[1].keys(), b[1].keys(), what)
        x, y = of_model(a[0]), of_model(b[0])
        self.assertEqual((set(x) ^ set(y)) - VERSIONS, set(), what)
        for k in set(x) & set(y):
            near = isinstance(x[k], float) and abs(x[k] - y[k]) <= abs(x[k]) * 1e-6
            self.assertTrue(near or x[k] == y[k], f"{what} {k}: {x[k]}, {y[k]}")
        for name in a[1]:
            t, u = a[1][name], b[1][name]
            self.assertEqual(t.shape, u.shape, f"{what} {name}")
            v, w = t.floats(), u.floats()
            if v != w:  # products are rounded otherwise
                self.assertLess(max(abs(p - q) for p, q in zip(v, w)), 1e-6, f"{what} {name}")

    def test_as_the_converter(self):
        n = 0
        with tempfile.TemporaryDirectory() as d:
            for case in cases():
                if not os.path.exists(own(case)) or to_gguf.why_not(case) is not None:
                    continue
                path = os.path.join(d, case + ".gguf")
                to_gguf.convert(case, path)
                with open(path, "rb") as f, lzma.open(own(case)) as g:
                    self.equal(read(g.read()), read(f.read()), case)
                n += 1
        self.assertGreater(n, 25)
        print(f"{n} files are as llama.cpp's converter writes them")

    def test_every_other_case(self):
        with tempfile.TemporaryDirectory() as d:
            wanted = [c for c in cases() if to_gguf.why_not(c) is None and not os.path.exists(own(c))]
            args = []
            for case in wanted:
                path = os.path.join(d, case + ".gguf")
                to_gguf.convert(case, path)
                args.append(f"{path}={case}")
            r = subprocess.run([PROGRAM] + args, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        ok = re.findall(r"^\[       OK \] (\S+)$", r.stdout, re.M)
        if sys.argv[1:] == ["-v"] or r.returncode:
            print(r.stdout)
        self.assertEqual(r.returncode, 0)
        self.assertEqual(ok, wanted)
        self.assertEqual(len(re.findall(r"^  ref  .*largest difference", r.stdout, re.M)), len(wanted))
        print(f"{len(wanted)} files: {', '.join(wanted)}")

    def test_reasons(self):
        """What is not converted has a reason; no reason is of a case that is gone, and none of what is converted."""
        names = cases()
        for case in to_gguf.NO_CASE:
            self.assertIn(case, names)
        found = {to_gguf.config_of(c)["architectures"][0] for c in names}
        self.assertFalse(set(to_gguf.NONE) & set(to_gguf.FAMILIES))
        self.assertEqual(set(to_gguf.NONE) - found, set())
        print("not converted:", "; ".join(f"{c}: {to_gguf.why_not(c)}" for c in names if to_gguf.why_not(c)))

    def test_a_difference_is_seen(self):
        """Files that are wrong in one thing each fail."""
        g = to_gguf
        granite, olmo = g.FAMILIES["GraniteForCausalLM"], g.FAMILIES["Olmo3ForCausalLM"]
        for what, case, changed in (
                ("a tensor", "granite", dict(granite, tensor=lambda c, n, t: None if n.endswith("1.mlp.up_proj.weight") else
                                             granite["tensor"](c, n, t))),
                ("the order of rows", "granite", dict(granite, tensor=g.same)),
                ("a factor", "granite", dict(granite, keys=g.keys_llama)),
                ("layers with a window", "olmo3", dict(olmo, keys=g.plus(olmo["keys"], lambda c: {
                    "attention.sliding_window_pattern": [True] * c.n_layer})))):
            with self.subTest(what), tempfile.TemporaryDirectory() as d, unittest.mock.patch.dict(
                    g.FAMILIES, {g.config_of(case)["architectures"][0]: changed}):
                path = os.path.join(d, case + ".gguf")
                g.convert(case, path)
                r = subprocess.run([PROGRAM, f"{path}={case}"], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
                self.assertNotEqual(r.returncode, 0)
                self.assertIn("[  FAILED  ] " + case, r.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
