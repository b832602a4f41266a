#!/usr/bin/env python3
"""Records how well diffusers' pictures of models/tiny-t2i follow 60 held-out prompts: tests/data/image/adherence.json.
Needs torch and diffusers 0.42.1; run from the top of the sources. --colours: only prints what the model paints for the
twelve names of colours, as backgrounds."""
import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests/models"))
import adherence  # noqa: E402
import torch  # noqa: E402
from diffusers import StableDiffusionPipeline  # noqa: E402

STEPS, GUIDANCE, BATCH = 20, 4.0, 10


def main():
    torch.set_num_threads(1)
    pipe = StableDiffusionPipeline.from_pretrained(os.path.join(TOP, "models/tiny-t2i"), torch_dtype=torch.float32, safety_checker=None)
    pipe.set_progress_bar_config(disable=True)

    def draw(prompts, seeds):
        out = []
        for i in range(0, len(prompts), BATCH):
            noise = [torch.Generator("cpu").manual_seed(s) for s in seeds[i:i + BATCH]]
            out += pipe(prompts[i:i + BATCH], num_inference_steps=STEPS, guidance_scale=GUIDANCE, generator=noise).images
        return out

    if "--colours" in sys.argv:
        names = list(adherence.COLOURS)
        texts = [f"a {'black' if n == 'white' else 'white'} square in the center on {'an' if n == 'orange' else 'a'} {n} background" for n in names]
        for name, image in zip(names, draw(texts, range(len(names)))):
            print(name, adherence.border(adherence.rows_of(image)))
        return
    asked = adherence.prompts()
    pictures = draw([a["prompt"] for a in asked], [a["seed"] for a in asked])
    rows = [adherence.rows_of(p) for p in pictures]
    head = {"source": "diffusers 0.42.1, float32, DDIM", "steps": STEPS, "guidance": GUIDANCE, "score": adherence.score(asked, rows)}
    lines = [json.dumps(dict(a, seen=adherence.look(r))) for a, r in zip(asked, rows)]  # one line a prompt
    with open(os.path.join(TOP, "tests/data/image/adherence.json"), "w") as f:
        f.write(json.dumps(head)[:-1] + ', "prompts": [\n' + ",\n".join(lines) + "\n]}\n")
    print(head["score"])


if __name__ == "__main__":
    main()
