#!/usr/bin/env python3
"""Fits the linear preview of a model's latents (engine/image/latent_rgb.c): pictures of fixed seeds are made and decoded,
and the colours of each latent's pixels, 0..1, are explained by its channels and a bias by least squares.
usage: fit_preview.py MODEL_DIR [PROMPT...]      Needs torch, diffusers."""
import sys

import torch
from diffusers import StableDiffusionPipeline

torch.set_num_threads(1)
PROMPTS = ["a red circle on a white background", "two green squares on a black background", "a blue star", "a yellow sun",
           "a cat", "a purple triangle on an orange background", "a pizza", "a car", "a tree", "three pink hearts",
           "a brown dog", "a cyan ring on a grey background"]


@torch.no_grad()
def main():
    pipe = StableDiffusionPipeline.from_pretrained(sys.argv[1], torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    rows, colours = [], []
    for i, prompt in enumerate(sys.argv[2:] or PROMPTS):
        z = pipe(prompt, num_inference_steps=12, guidance_scale=4.0, output_type="latent",
                 generator=torch.Generator().manual_seed(i)).images
        rgb = (pipe.vae.decode(z / pipe.vae.config.scaling_factor).sample / 2 + 0.5).clamp(0, 1)
        rgb = torch.nn.functional.adaptive_avg_pool2d(rgb, z.shape[-2:])
        rows.append(torch.cat([z, torch.ones_like(z[:, :1])], 1)[0].flatten(1).T)
        colours.append(rgb[0].flatten(1).T)
    a, b = torch.cat(rows).double(), torch.cat(colours).double()
    x = torch.linalg.lstsq(a, b).solution
    left = ((a @ x - b) ** 2).mean().sqrt().item()
    print(f"{len(a)} latents, root of the mean square error {left:.3f} (of the plain mean {b.std(0).mean().item():.3f})")
    for r in x:
        print("    {" + ", ".join(f"{v:.4f}f" for v in r) + "},")


main()
