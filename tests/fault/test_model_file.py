#!/usr/bin/env python3
"""Damaged, strange and unreadable model files: the daemon ends with a code and a text, or serves; never a signal, never
a hang. `stepd plan` reads the same headers through the same code and is quick, so it gets the many variants."""
import os
import random
import shutil
import re
import subprocess
import unittest

from rig import DIR, REPORT, SLOW, SMOLLM2, STEPD, Daemon, tiny_model

FLIPS = int(os.environ.get("FAULT_FLIPS", "1000"))


def serve(path, timeout=60):
    """(exit code, output) of a daemon that must not get far."""
    r = subprocess.run([STEPD, "serve", "--port", "0", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=timeout * SLOW)
    return r.returncode, r.stdout.decode("utf-8", "replace")


class ModelFile(unittest.TestCase):
    def refused(self, path, text):
        code, out = serve(path)
        self.assertEqual(code, 2, (path, out))
        self.assertRegex(out, r"stepd: .*" + text)
        self.assertNotRegex(out, REPORT)

    def temp(self, data, name="x.gguf"):
        path = os.path.join(DIR.name, name)
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def test_cut(self):
        with open(tiny_model(), "rb") as f:
            data = f.read()
        for n, text in ((0, "empty"), (3, "too few"), (4, "too few"), (7, "too few"), (8, "too few"), (23, "too few"),
                        (24, "count"), (200, "."), (len(data) // 2, "beyond"), (len(data) - 1, "beyond|end")):
            with self.subTest(n=n):
                self.refused(self.temp(data[:n]), text)

    def test_cut_real(self):
        size = os.path.getsize(SMOLLM2)
        path = os.path.join(DIR.name, "cut.gguf")
        with open(SMOLLM2, "rb") as f, open(path, "wb") as o:
            o.write(f.read(size // 2))
        self.refused(path, "tensor")
        os.unlink(path)

    def test_strange(self):
        fifo = os.path.join(DIR.name, "fifo.gguf")
        os.mkfifo(fifo)
        self.refused(fifo, ".")
        self.refused("/dev/null", ".")
        self.refused(DIR.name, "tokenizer")
        self.refused(os.path.join(DIR.name, "absent.gguf"), "no such file")
        link = os.path.join(DIR.name, "loop.gguf")
        os.symlink(link, link)
        self.refused(link, ".")
        self.refused(self.temp(b"hello, world\n" * 9), "not a GGUF file")
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        self.refused(self.temp(pointer), "pointer of Git LFS")
        self.refused(self.temp(pointer, "y.safetensors"), "pointer of Git LFS")
        self.refused("Org/Model-1B", "stepd pull hf:Org/Model-1B")
        self.refused("./Org/Model-1B", "no such file or folder: ./Org/Model-1B$")
        self.refused(self.temp(b"\x02\0\0\0\0\0\0\0{}", "x.safetensors"), "give its folder or a GGUF file")

    def test_permission(self):
        path = self.temp(b"GGUF", "secret.gguf")
        os.chmod(path, 0)
        if os.geteuid() != 0:
            self.refused(path, "[Pp]ermission denied")
            return
        # root reads everything: drop to another user for the child, with a copy of the program that it can reach
        os.chmod(DIR.name, 0o755)
        program = shutil.copy(STEPD, DIR.name)
        r = subprocess.run([program, "plan", path], stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * SLOW,
                           user=65534, group=65534, extra_groups=[])
        self.assertEqual(r.returncode, 1, r)
        self.assertIn(b"Permission denied", r.stderr)

    def test_flips(self):
        """Single bytes of the header changed, seeded; the whole file is mapped sparse, so only the header is copied."""
        with open(SMOLLM2, "rb") as f:
            head = bytearray(f.read(3 << 20))
        size = os.path.getsize(SMOLLM2)
        path = os.path.join(DIR.name, "flip.gguf")
        with open(path, "wb") as f:
            f.write(head)
            f.truncate(size)
        at = header_bytes(head)
        rnd = random.Random(54)
        refused = 0
        with open(path, "r+b", buffering=0) as f:
            for i in range(FLIPS):
                # Half of them where the structure is: keys up to the vocabulary, and the tensor records.
                pos = rnd.randrange(at) if i % 2 else rnd.choice((rnd.randrange(2000), at - 1 - rnd.randrange(16000)))
                old = head[pos]
                os.pwrite(f.fileno(), bytes([old ^ rnd.randrange(1, 256)]), pos)
                r = subprocess.run([STEPD, "plan", path], stdin=subprocess.DEVNULL, capture_output=True,
                                   timeout=20 * SLOW)
                os.pwrite(f.fileno(), bytes([old]), pos)
                self.assertIn(r.returncode, (0, 1), (pos, r))
                self.assertIsNone(re.search(REPORT, r.stderr.decode("utf-8", "replace")), (pos, r))
                if r.returncode:
                    refused += 1
                    self.assertRegex(r.stderr.decode("utf-8", "replace"), r"stepd plan: .*: .{8,}")
        self.assertGreater(refused, FLIPS // 20)
        self.assertLess(refused, FLIPS)
        print(f"{refused} of {FLIPS} flips refused")

    def test_flips_vocabulary(self):
        """Flips in the real vocabulary, which only a server reads: refused or ready, on the null device."""
        with open(SMOLLM2, "rb") as f:
            head = bytearray(f.read(3 << 20))
        path = os.path.join(DIR.name, "vocab.gguf")
        with open(path, "wb") as f:
            f.write(head)
            f.truncate(os.path.getsize(SMOLLM2))
        rnd = random.Random(56)
        ran = 0
        with open(path, "r+b", buffering=0) as f:
            for _ in range(12):
                pos = rnd.randrange(2000, header_bytes(head))
                os.pwrite(f.fileno(), bytes([head[pos] ^ rnd.randrange(1, 256)]), pos)
                d = Daemon("--device", "null", model=path, ready=False)
                try:
                    d.wait_ready()
                except AssertionError:
                    self.assertEqual(d.p.poll(), 2, (pos, d.output()))
                else:
                    ran += 1
                    self.assertEqual(d.stop(), 0)
                self.assertNotRegex(d.output(), REPORT)
                os.pwrite(f.fileno(), head[pos:pos + 1], pos)
        print(f"{ran} of 12 serve")

    def test_flips_served(self):
        """A smaller file with flips anywhere is refused or answers."""
        with open(tiny_model(), "rb") as f:
            data = f.read()
        at = header_bytes(data)
        rnd = random.Random(55)
        ran = 0
        for i in range(16):
            bad = bytearray(data)
            for _ in range(1 + i % 3):
                bad[rnd.randrange(at if i % 4 else len(bad))] ^= 1 << rnd.randrange(8)
            d = Daemon(model=self.temp(bad), ready=False)
            try:
                d.wait_ready()
            except AssertionError:
                self.assertEqual(d.p.poll(), 2, d.output())
            else:
                ran += 1
                s, _ = d.post("/v1/completions", {"model": "m", "prompt": "hello", "max_tokens": 4})
                self.assertIn(s, (200, 400, 500))
                d.stop()
            self.assertNotRegex(d.output(), REPORT)
        print(f"{ran} of 16 flipped files serve")


def header_bytes(data):
    """Where the last tensor record ends: after its name, dimensions, type and offset."""
    at = max(data.rfind(b"output_norm.weight"), data.rfind(b"blk."))
    end = at
    while 0x20 < data[end] < 0x7f:
        end += 1
    return end + 40


if __name__ == "__main__":
    unittest.main()
