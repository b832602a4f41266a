#!/usr/bin/env python3
"""`stepd quantize` of folders. Every case of tests/data/folders becomes a GGUF file that gives its logits, greedy ids and equal
bytes (test_folders), or is refused with the reason that stands here; keys and tensors are those of to_gguf.py, which
test_gguf_families.py holds to llama.cpp's own converter."""
import json
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "models"))
import test_gguf_families as families  # noqa: E402
import to_gguf  # noqa: E402

BUILD = os.path.join(TOP, "build", os.environ.get("VARIANT", "release"))
REFUSED = {
    "bitnet-silu": "architecture bitnet-b1.58: a GGUF file can't say which activation it has",
    "falcon-alibi": "architecture falcon: ",
    "llama-dynamic-rope": "architecture llama: a GGUF file can't say rope_type \"dynamic\"",
    "nemotron_h": "architecture nemotron_h: a GGUF file can't say the bounds of dt",
    "nemotron_h_dense": "architecture nemotron_h: a GGUF file ",
    "opt": "tensor model.decoder.embed_positions.weight has no place in a GGUF file",
    "qwen2-window": "architecture qwen2: a GGUF file can't say ",
    "rwkv": "tensor rwkv.embeddings.weight has no place in a GGUF file",
}
# Keys that the converter writes and these files need not have: what is read without them is the same.
NEEDLESS = {"rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
            "rope.scaling.yarn_log_multiplier", "attention.sliding_window", "rope.freq_base_swa", "ssm.dt_b_c_rms", "n_deepstack_layers",
            "attention.layer_norm_rms_epsilon"}
# A context that a scaling makes longer is written as long as it is served.
OTHER = {"context_length"}


def plain(case, to):
    """The case's folder, unpacked, without its golden."""
    os.makedirs(to)
    at = os.path.join(to_gguf.FOLDERS, case)
    for name in os.listdir(at):
        if name.startswith("golden"):
            continue
        if name.endswith(".xz"):
            with lzma.open(os.path.join(at, name)) as f, open(os.path.join(to, name[:-3]), "wb") as g:
                shutil.copyfileobj(f, g)
        else:
            shutil.copy(os.path.join(at, name), to)
    return to


def flat(shape):
    return [n for n in shape if n != 1]


class Export(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp()
        cls.made, cls.said = {}, {}
        for case in families.cases():
            path = os.path.join(cls.dir, case + ".gguf")
            r = subprocess.run([os.path.join(BUILD, "stepd"), "quantize", "--quiet", plain(case, os.path.join(cls.dir, case)), path, "F32"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
            cls.said[case] = (r.returncode, r.stdout)
            if r.returncode == 0:
                cls.made[case] = path

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)

    def test_refusals(self):
        for case, (rc, text) in self.said.items():
            if case in REFUSED:
                self.assertEqual(rc, 1, case)
                self.assertIn(REFUSED[case], text)
                self.assertFalse(os.path.exists(os.path.join(self.dir, case + ".gguf")))
                self.assertFalse(os.path.exists(os.path.join(self.dir, case + ".gguf.part")))
            else:
                self.assertTrue(rc == 0 or re.search(r"architecture [\w.-]+: a GGUF file |tensor .* has no place in a GGUF file", text),
                                f"{case}: {text}")
        self.assertEqual(set(REFUSED) - set(self.said), set())
        self.assertGreaterEqual(len(self.made), 114)
        print(f"{len(self.made)} folders are written; refused: {', '.join(sorted(set(self.said) - set(self.made)))}")

    def test_tied_factors(self):
        """One matrix can't hold the embedding's factor and the head's."""
        folder = os.path.join(self.dir, "tied")
        shutil.copytree(os.path.join(self.dir, "falcon_h1_factors"), folder)
        path = os.path.join(folder, "model.safetensors")
        with open(path, "rb") as f:
            raw = f.read()
        n = struct.unpack_from("<Q", raw)[0]
        head, data, out = json.loads(raw[8:8 + n]), raw[8 + n:], b""
        head.pop("lm_head.weight")
        for name, v in head.items():
            if name != "__metadata__":
                a, b = v["data_offsets"]
                v["data_offsets"] = [len(out), len(out) + b - a]
                out += data[a:b]
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + out)
        r = subprocess.run([os.path.join(BUILD, "stepd"), "quantize", "--quiet", folder, folder + ".gguf", "F32"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(r.returncode, 1)
        self.assertIn("architecture falcon-h1: a GGUF file can't say two factors of one matrix", r.stdout)
        self.assertFalse(os.path.exists(folder + ".gguf"))

    def test_the_same_model(self):
        args = [f"{path}={case}" for case, path in self.made.items()]
        r = subprocess.run([os.path.join(BUILD, "tests", "models", "test_folders")] + args, cwd=TOP, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=600)
        self.assertEqual(r.returncode, 0, r.stdout[-4000:])
        self.assertEqual(re.findall(r"^\[       OK \] (\S+)$", r.stdout, re.M), sorted(self.made))

    def test_as_the_converter(self):
        n = 0
        for case, path in self.made.items():
            if to_gguf.why_not(case) is not None:
                continue
            other = os.path.join(self.dir, "other.gguf")
            to_gguf.convert(case, other)
            with open(other, "rb") as f, open(path, "rb") as g:
                want, got = families.read(f.read()), families.read(g.read())
            self.assertEqual(want[0]["general.architecture"], got[0]["general.architecture"])
            x, y = families.of_model(want[0]), families.of_model(got[0])
            self.assertEqual(set(x) - set(y) - NEEDLESS - families.VERSIONS, set(), case)
            for k in set(x) & set(y) - OTHER:
                near = isinstance(x[k], float) and abs(x[k] - y[k]) <= abs(x[k]) * 1e-6
                self.assertTrue(near or x[k] == y[k], f"{case} {k}: {x[k]}, {y[k]}")
            self.assertEqual(want[1].keys(), got[1].keys(), case)
            for name, t in want[1].items():
                u = got[1][name]
                self.assertEqual(flat(t.shape), flat(u.shape), f"{case} {name}")
                v, w = t.floats(), u.floats()
                if v != w:
                    self.assertLess(max(abs(p - q) for p, q in zip(v, w)), 1e-6, f"{case} {name}")
            n += 1
        self.assertGreater(n, 74)
        print(f"{n} files have the converter's keys and tensors")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
