#!/usr/bin/env python3
"""Pictures that api/picture writes, read with Pillow: the pixels, and the generation parameters where the programs that show them look
(Pillow's text of a PNG file; the EXIF user comment as piexif reads it, which is what AUTOMATIC1111's web UI calls)."""
import io
import math
import os
import subprocess
import sys
import tempfile
import unittest

import piexif
import piexif.helper
from PIL import Image, ImageChops, ImageStat

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(TOP, "build", os.environ.get("VARIANT", "release"), "tests", "unit", "test_picture")
TEXTS = [None, "a cat, 35mm\nNegative prompt: blurry\nSteps: 20, Seed: 1", "caf\u00e9 \u00a9", "\u732b \U0001F408 <lora:x:1>"]
SIZE = (61, 47)
LOSSLESS = {("png", i) for i in range(4)} | {("webp", 3)}
# Least PSNR in dB of colours, by format and quality (30, 89, 95, 100).
LEAST = {"jpeg": (29, 35, 37, 43), "webp": (28, 33, 35, math.inf)}


def psnr(a, b):
    rms = ImageStat.Stat(ImageChops.difference(a, b)).rms
    mean = sum(v * v for v in rms) / len(rms)
    return 10 * math.log10(255 * 255 / mean) if mean else math.inf


class Written(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([PROGRAM, "--write", cls.folder.name], check=True, cwd=TOP)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def each(self, *formats):
        for f in formats:
            for alpha in (0, 1):
                for i in range(4):
                    with self.subTest(format=f, alpha=alpha, i=i):
                        with open(f"{self.folder.name}/{f}-{alpha}-{i}", "rb") as file:
                            data = file.read()
                        with open(f"{self.folder.name}/{f}-{alpha}-{i}.raw", "rb") as file:
                            raw = Image.frombytes("RGBA" if alpha else "RGB", SIZE, file.read())
                        yield f, alpha, i, data, raw

    def test_pixels(self):
        n = 0
        for f, alpha, i, data, raw in self.each("png", "jpeg", "webp"):
            im = Image.open(io.BytesIO(data))
            self.assertEqual(im.format, f.upper())
            self.assertEqual(im.size, SIZE)
            n += 1
            if (f, i) in LOSSLESS:
                self.assertEqual(im.mode, raw.mode)
                self.assertEqual(im.tobytes(), raw.tobytes())
                continue
            if f == "jpeg" and alpha:  # over white
                white = Image.new("RGBA", SIZE, (255, 255, 255, 255))
                raw = Image.alpha_composite(white, raw).convert("RGB")
                # The alpha of the test pattern jumps between 255 and 0: hard edges, which 4:2:0 smears.
                self.assertGreater(psnr(im, raw), (20, 24, 30, 38)[i])
                continue
            if alpha:  # what full transparency hides is lost
                self.assertGreater(psnr(im.getchannel("A"), raw.getchannel("A")), 40)
                black = Image.new("RGBA", SIZE, (0, 0, 0, 255))
                im, raw = (Image.alpha_composite(black, p) for p in (im, raw))
                self.assertGreater(psnr(im.convert("RGB"), raw.convert("RGB")), 25)
                continue
            self.assertGreaterEqual(psnr(im, raw), LEAST[f][i])
        self.assertEqual(n, 24)

    def test_png_text(self):
        for f, alpha, i, data, raw in self.each("png"):
            im = Image.open(io.BytesIO(data))
            im.load()
            self.assertEqual(im.text.get("parameters"), TEXTS[i])
            self.assertEqual(im.info.get("parameters"), TEXTS[i])
            self.assertEqual(b"iTXt" in data, i == 3)

    def test_exif(self):
        for f, alpha, i, data, raw in self.each("jpeg", "webp"):
            im = Image.open(io.BytesIO(data))
            exif = im.info.get("exif")
            if TEXTS[i] is None:
                self.assertIsNone(exif)
                continue
            comment = im.getexif().get_ifd(0x8769)[0x9286]
            self.assertEqual(comment, b"UNICODE\0" + TEXTS[i].encode("utf-16-be"))
            comment = piexif.load(exif)["Exif"][piexif.ExifIFD.UserComment]
            self.assertEqual(piexif.helper.UserComment.load(comment), TEXTS[i])


if __name__ == "__main__":
    sys.exit(unittest.main())
