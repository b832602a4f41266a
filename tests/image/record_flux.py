#!/usr/bin/env python3
"""Record single passes of the tiny FLUX transformer at other sizes than its golden's, for test_flux.c.
usage: record_flux.py MODELS OUT.safetensors
MODELS/flux-dev is a diffusers folder. Needs torch, diffusers, safetensors."""
import os
import sys

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from safetensors.torch import save_file

torch.set_num_threads(1)
# height and width of the latents, text tokens, timestep (of 1000), guidance
PASSES = ((6, 10, 9, 321.25, 2.0), (12, 4, 16, 999.0, 6.5), (2, 2, 1, 7.5, 1.0))


@torch.inference_mode()
def main():
    m = FluxTransformer2DModel.from_pretrained(
        os.path.join(sys.argv[1], "flux-dev", "transformer"), torch_dtype=torch.float32)
    c = m.config
    g = torch.Generator().manual_seed(11)
    out = {}
    for i, (h, w, n_tok, t, guidance) in enumerate(PASSES):
        ch = c.in_channels // 4
        latent = torch.randn(1, ch, h, w, generator=g)
        states = torch.randn(1, n_tok, c.joint_attention_dim, generator=g)
        pooled = torch.randn(1, c.pooled_projection_dim, generator=g)
        res = m(
            hidden_states=FluxPipeline._pack_latents(latent, 1, ch, h, w),
            encoder_hidden_states=states,
            pooled_projections=pooled,
            timestep=torch.tensor([t]) / 1000,
            guidance=torch.tensor([guidance]),
            img_ids=FluxPipeline._prepare_latent_image_ids(1, h // 2, w // 2, "cpu", torch.float32),
            txt_ids=torch.zeros(n_tok, 3),
        ).sample
        res = FluxPipeline._unpack_latents(res, h * 8, w * 8, 8)
        for name, x in (("latent", latent), ("states", states), ("pooled", pooled), ("out", res)):
            out[f"{i}.{name}"] = x.reshape(-1).contiguous().clone()
    save_file(out, sys.argv[2])
    print(len(out), "tensors", os.path.getsize(sys.argv[2]), "bytes")


main()
