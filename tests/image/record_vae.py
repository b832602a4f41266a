#!/usr/bin/env python3
"""Record what diffusers' autoencoders make of seeded pictures and latents, for test_vae.c.
usage: record_vae.py MODELS OUT.safetensors
MODELS/<case>/vae are diffusers components, MODELS/<case>/golden.safetensors holds one decoding. Needs torch, diffusers, safetensors."""
import os
import sys

import torch
from diffusers import AutoencoderKL, AutoencoderKLQwenImage, AutoencoderKLWan
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
CASES = {
    "sd15": AutoencoderKL,
    "flux-dev": AutoencoderKL,
    "qwen-image": AutoencoderKLQwenImage,
    "wan": AutoencoderKLWan,
}
FOLDER = {"wan": "qwen-image"}  # the same tensors and keys under the other class
GOLDEN = ("sd15", "sdxl", "flux-dev", "flux-schnell", "z-image", "qwen-image")
SIZES = ((5, 9), (8, 4))  # of the latents


def scale(vae, z):
    """Latents as a denoiser sees them."""
    c = vae.config
    if "latents_mean" in c and c.latents_mean is not None:
        shape = [1, -1] + [1] * (z.dim() - 2)
        return (z - torch.tensor(c.latents_mean).view(shape)) / torch.tensor(c.latents_std).view(shape)
    return (z - (c.shift_factor or 0)) * c.scaling_factor


@torch.inference_mode()
def record(models, case, out):
    vae = CASES[case].from_pretrained(
        os.path.join(models, FOLDER.get(case, case), "vae"), torch_dtype=torch.float32)
    video = CASES[case] is not AutoencoderKL
    levels = vae.config.dim_mult if video else vae.config.block_out_channels
    factor = 2 ** (len(levels) - 1)
    g = torch.Generator().manual_seed(7)
    for i, (h, w) in enumerate(SIZES):
        rgb = torch.rand(1, 3, h * factor, w * factor, generator=g) * 2 - 1
        x = rgb.unsqueeze(2) if video else rgb
        mean = vae.encode(x).latent_dist.mean
        dec = vae.decode(mean).sample
        back = scale(vae, mean)
        for name, t in (("rgb", rgb), ("latent", back), ("decoded", dec)):
            out[f"{case}.{i}.{name}"] = t.reshape(-1).contiguous().clone()


def main():
    out = {}
    for case in CASES:
        record(sys.argv[1], case, out)
    for case in GOLDEN:
        t = load_file(os.path.join(sys.argv[1], case, "golden.safetensors"))
        for name in ("vae_latents_in", "vae_decoded"):
            out[f"{case}.{name}"] = t[name].reshape(-1).contiguous()
    save_file(out, sys.argv[2])
    print(len(out), "tensors", os.path.getsize(sys.argv[2]), "bytes")


main()
