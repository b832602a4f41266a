#!/usr/bin/env python3
"""Draws docs/tiny-t2i.png: 32 pictures of models/tiny-t2i from a running server, four rows of eight.

    stepd serve tiny-t2i=models/tiny-t2i
    tests/image/contact_sheet.py [URL]            (http://127.0.0.1:8000)

Needs Pillow. Seeds are fixed; nothing is chosen among several tries. Prints the prompts as docs/images.md lists them."""
import base64
import io
import json
import os
import sys
import urllib.request

from PIL import Image

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMPTS = (
    # shapes, most of them triples that the model never saw
    "a red circle on a white background", "a green square in the bottom right corner on a cyan background",
    "a yellow triangle at the top on a blue background", "a blue star in the center on a yellow background",
    "a pink heart on the left on a white background", "an orange ring on the right on a black background",
    "a purple diamond in the top left corner on a gray background", "a white cross in the center on a brown background",
    # several things
    "three blue circles on a white background", "two red squares on a yellow background", "four green stars on a white background",
    "a red star left of a blue ring on a white background", "a yellow circle above a green square on a white background",
    "a small black hexagon inside a large orange circle", "a cyan triangle below a purple square on a white background",
    "a large brown circle on a pink background",
    # fruit, animals and other emoji
    "a red apple", "a banana", "an orange", "a green tree", "a red rose", "a slice of pizza", "a strawberry", "a mushroom",
    "a penguin", "a cat face", "a dog face", "a frog", "a red car", "a blue bus", "a yellow sun", "a blue whale",
)
SIDE, GAP, ACROSS = 64, 4, 8


def draw(url, prompt, seed):
    body = {"prompt": prompt, "size": f"{SIDE}x{SIDE}", "steps": 20, "guidance_scale": 3, "seed": seed}
    request = urllib.request.Request(url + "/v1/images/generations", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as r:
        return Image.open(io.BytesIO(base64.b64decode(json.load(r)["data"][0]["b64_json"])))


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    step = SIDE + GAP
    sheet = Image.new("RGB", (ACROSS * step + GAP, (len(PROMPTS) // ACROSS) * step + GAP), (255, 255, 255))
    for i, prompt in enumerate(PROMPTS):
        sheet.paste(draw(url, prompt, i), (GAP + i % ACROSS * step, GAP + i // ACROSS * step))
        print(f"{i // ACROSS + 1}.{i % ACROSS + 1} {prompt}", flush=True)
    sheet.save(os.path.join(TOP, "docs/tiny-t2i.png"), optimize=True)


if __name__ == "__main__":
    main()
