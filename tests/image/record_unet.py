#!/usr/bin/env python3
"""Records tests/data/image/unet-*: tiny UNets of random weights in the shapes of known families, and what diffusers makes
of fixed inputs.  usage: record_unet.py [CASE...]      Needs torch, diffusers, safetensors; same seeds, same bytes.

A case's golden.safetensors holds for every input i: i.latent [c_in, h, w], i.context [n_tok, dim], i.timestep [1],
where the case has them i.pooled, i.ids, i.guidance (the scale), and i.out [c_out, h, w]."""
import os
import sys

import torch
from diffusers import UNet2DConditionModel
from diffusers.pipelines.latent_consistency_models.pipeline_latent_consistency_text2img import LatentConsistencyModelPipeline
from safetensors.torch import save_file

torch.set_num_threads(1)
HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "image")
CROSS2 = dict(down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))
CROSS3 = dict(down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
              up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"))
BASE = dict(sample_size=16, in_channels=4, out_channels=4, norm_num_groups=4, layers_per_block=1)
CASES = {
    # as SD 2.x: heads a level, linear projections; sizes that do not halve evenly
    "sd2": dict(BASE, **CROSS3, block_out_channels=(8, 16, 24), attention_head_dim=[2, 4, 3], use_linear_projection=True,
                cross_attention_dim=20, layers_per_block=2),
    # as the SDXL refiner: five ids, two layers a transformer
    "refiner": dict(BASE, **CROSS2, block_out_channels=(8, 16), attention_head_dim=[2, 4], use_linear_projection=True,
                    transformer_layers_per_block=2, cross_attention_dim=20, addition_embed_type="text_time",
                    addition_time_embed_dim=8, projection_class_embeddings_input_dim=12 + 5 * 8),
    # as LCM distillations: the guidance scale is an input
    "lcm": dict(BASE, **CROSS2, block_out_channels=(8, 16), attention_head_dim=2, cross_attention_dim=20, time_cond_proj_dim=16),
    # as inpainting models: mask and masked latents beside the latents
    "inpaint": dict(BASE, **CROSS2, block_out_channels=(8, 16), attention_head_dim=2, cross_attention_dim=20, in_channels=9),
    # as small distillations: no middle block, numbers of layers a level
    "nomid": dict(BASE, **CROSS2, block_out_channels=(8, 16), attention_head_dim=2, cross_attention_dim=20, mid_block_type=None,
                  layers_per_block=[1, 2], center_input_sample=True, flip_sin_to_cos=False, freq_shift=1),
    # as SSD-1B: a middle block of one resnet, transformers of different depth inside a block
    "ssd": dict(BASE, **CROSS3, block_out_channels=(8, 16, 16), attention_head_dim=[2, 4, 4], cross_attention_dim=20,
                mid_block_type="UNetMidBlock2D", transformer_layers_per_block=[[1], [2], [1]],
                reverse_transformer_layers_per_block=[[1, 1], [1, 2], [2, 1]]),
}
INPUTS = [(16, 16, 11, 501.0), (18, 14, 7, 37.5), (5, 9, 1, 999.0)]


def spread(model, seed):
    """Weights of order-one gain, norms and biases spread: a term left out shows."""
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        x = torch.randn(p.shape, generator=g)
        if p.dim() > 1:
            x *= 0.8 / p[0].numel() ** 0.5
        elif "norm" in name and name.endswith("weight"):
            x = 1 + 0.2 * x
        else:
            x *= 0.1
        p.data.copy_(x.bfloat16().float())


@torch.no_grad()
def record(name, config, seed):
    torch.manual_seed(seed)
    unet = UNet2DConditionModel(**config).eval()
    spread(unet, seed)
    out = os.path.join(HERE, "unet-" + name)
    os.makedirs(out, exist_ok=True)
    unet.save_config(out)
    save_file({k: v.bfloat16().contiguous() for k, v in unet.state_dict().items()},
              os.path.join(out, "diffusion_pytorch_model.safetensors"))
    g, gold = torch.Generator().manual_seed(seed + 100), {}
    for i, (h, w, n_tok, t) in enumerate(INPUTS):
        x = torch.randn(1, config["in_channels"], h, w, generator=g)
        ctx = torch.randn(1, n_tok, config["cross_attention_dim"], generator=g)
        v, kw = {"latent": x[0], "context": ctx[0], "timestep": torch.tensor([t])}, {}
        if "addition_embed_type" in config:
            v["pooled"] = torch.randn(12, generator=g)
            v["ids"] = torch.tensor([128.0, 96.0, 0.0, 16.0, 6.0 if i else 2.5])
            kw["added_cond_kwargs"] = {"text_embeds": v["pooled"][None], "time_ids": v["ids"][None]}
        if "time_cond_proj_dim" in config:
            v["guidance"] = torch.tensor([8.5 - 3 * i])
            kw["timestep_cond"] = LatentConsistencyModelPipeline.get_guidance_scale_embedding(
                None, v["guidance"] - 1, config["time_cond_proj_dim"])
        v["out"] = unet(x, torch.tensor([t]), ctx, **kw).sample[0]
        assert v["out"].isfinite().all() and v["out"].std() > 0.01, v["out"].std()
        gold.update({f"{i}.{k}": t_.float().contiguous().clone() for k, t_ in v.items()})
    save_file(gold, os.path.join(out, "golden.safetensors"))
    print(name, sum(p.numel() for p in unet.parameters()), "parameters, out std", [round(float(gold[f"{i}.out"].std()), 3) for i in range(3)])


for k, (name, config) in enumerate(CASES.items()):
    if not sys.argv[1:] or name in sys.argv[1:]:
        record(name, config, 10 + k)
