#!/usr/bin/env python3
"""Records the pictures of tests/data/image/api: what diffusers makes of models/tiny-t2i with a torch CPU generator, for
requests that tests/api/test_images.py sends. An input picture is encoded to the mean of its latents, not to a sample. Needs torch, transformers and diffusers (versions in SOURCES there).

    tests/image/record_api.py"""
import json
import os

import torch
from diffusers import (DDIMScheduler, DPMSolverMultistepScheduler, EulerAncestralDiscreteScheduler, StableDiffusionImg2ImgPipeline,
                       StableDiffusionInpaintPipeline, StableDiffusionPipeline)
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image, ImageDraw

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(TOP, "tests", "data", "image", "api")


def inputs():
    """A picture and a mask whose upper left quarter is to be repainted."""
    im = Image.new("RGB", (64, 64), (235, 235, 235))
    d = ImageDraw.Draw(im)
    d.ellipse((16, 20, 48, 52), fill=(210, 40, 40))
    d.rectangle((4, 4, 20, 14), fill=(40, 60, 200))
    mask = Image.new("L", (64, 64), 0)
    mask.paste(255, (0, 0, 32, 32))
    return im, mask


def main():
    DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mean
    pipe = StableDiffusionPipeline.from_pretrained(os.path.join(TOP, "models", "tiny-t2i"), dtype=torch.float32)
    im, mask = inputs()
    im.save(os.path.join(OUT, "input.png"))
    mask.save(os.path.join(OUT, "mask.png"))
    runs = [
        ("ddim", StableDiffusionPipeline, DDIMScheduler, {}, dict(prompt="a red circle on a white background"), 20, 4.0, 7),
        ("euler_a", StableDiffusionPipeline, EulerAncestralDiscreteScheduler, {}, dict(prompt="a yellow star on a blue background",
         negative_prompt="green"), 12, 3.0, 42),
        ("dpm++2m", StableDiffusionPipeline, DPMSolverMultistepScheduler, {"use_karras_sigmas": True}, dict(
         prompt="a green square on a black background", width=96, height=64), 10, 4.0, 123456789),
        ("img2img", StableDiffusionImg2ImgPipeline, DDIMScheduler, {}, dict(prompt="a blue circle", image=im, strength=0.6), 20, 4.0, 5),
        ("inpaint", StableDiffusionInpaintPipeline, DDIMScheduler, {}, dict(prompt="a green star", image=im, mask_image=mask,
         width=64, height=64, strength=1.0), 20, 4.0, 6),
    ]
    facts = {}
    for name, kind, scheduler, options, kw, steps, guidance, seed in runs:
        p = kind(**pipe.components, requires_safety_checker=False)
        p.scheduler = scheduler.from_config(pipe.scheduler.config, **options)
        p.set_progress_bar_config(disable=True)
        g = torch.Generator("cpu").manual_seed(seed)
        p(num_inference_steps=steps, guidance_scale=guidance, generator=g, **kw).images[0].save(os.path.join(OUT, name + ".png"))
        facts[name] = {"steps": steps, "guidance_scale": guidance, "seed": seed,
                       **{k: v for k, v in kw.items() if isinstance(v, (str, int, float))}}
    with open(os.path.join(OUT, "requests.json"), "w") as f:
        json.dump(facts, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
