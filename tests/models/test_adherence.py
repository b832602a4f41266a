#!/usr/bin/env python3
"""Pictures of models/tiny-t2i follow 60 prompts that the model never saw as well as diffusers' do: the daemon at its default
precision, with the seeds of tests/data/image/adherence.json (tests/image/record_adherence.py)."""
import base64
import concurrent.futures
import io
import json
import os
import sys
import unittest

from PIL import Image

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TOP, "tests"), os.path.join(TOP, "tests/models")]
import adherence  # noqa: E402
from daemon import Daemon  # noqa: E402

POINTS = 3.0  # per cent; a picture of 60 is 1.7


def rows(width, height, dot=None, ground=adherence.COLOURS["cyan"]):
    """A background with a square of (name, x, y, side) on it."""
    out = [[ground] * width for _ in range(height)]
    if dot:
        name, x0, y0, side = dot
        for y in range(y0, y0 + side):
            for x in range(x0, x0 + side):
                out[y][x] = adherence.COLOURS[name]
    return out


class Adherence(unittest.TestCase):
    def test_measure(self):
        """The measure itself, on drawn pictures."""
        for cell in range(9):
            x, y = (2, 22, 44)[cell % 3], (2, 22, 44)[cell // 3]
            self.assertEqual(adherence.look(rows(64, 64, ("green", x, y, 18))), ("cyan", "green", cell))
        self.assertEqual(adherence.look(rows(64, 64)), ("cyan", None, None))
        for name, value in adherence.COLOURS.items():
            self.assertEqual(adherence.look(rows(64, 64, ground=value))[0], name)
        asked = [{"colour": "green", "background": "cyan", "place": 8}, {"colour": "red", "background": "cyan", "place": 8}]
        self.assertEqual(adherence.score(asked, [rows(64, 64, ("green", 44, 44, 18))] * 2),
                         {"background": 100, "colour": 50, "position": 100, "both": 50})

    def test_prompts(self):
        asked = adherence.prompts()
        self.assertEqual(len({a["prompt"] for a in asked}), 60)
        for a in asked:
            self.assertIn((a["colour"], a["shape"], a["background"]), adherence.held_out())

    def test_as_diffusers(self):
        with open(os.path.join(TOP, "tests/data/image/adherence.json")) as f:
            want = json.load(f)
        self.assertEqual([p["prompt"] for p in want["prompts"]], [p["prompt"] for p in adherence.prompts()])
        with Daemon("--threads", "2", "tiny-t2i=" + os.path.join(TOP, "models/tiny-t2i")) as d, \
                concurrent.futures.ThreadPoolExecutor(8) as pool:
            def draw(p):
                s, a = d.post("/v1/images/generations", {
                    "prompt": p["prompt"], "size": "64x64", "seed": p["seed"], "steps": want["steps"], "guidance_scale": want["guidance"],
                    "sampler": "ddim"}, timeout=300)
                self.assertEqual(s, 200, a)
                return adherence.rows_of(Image.open(io.BytesIO(base64.b64decode(a["data"][0]["b64_json"]))))
            got = adherence.score(want["prompts"], list(pool.map(draw, want["prompts"])))
        print("diffusers", want["score"], "here", got)
        for k, v in want["score"].items():
            self.assertLessEqual(abs(got[k] - v), POINTS, k)


if __name__ == "__main__":
    unittest.main()
