#!/usr/bin/env python3
"""Stable Diffusion 1.5 with random weights: its real shapes, for measuring speed where no checkpoint may be fetched.

    random_sd15.py FOLDER [--seed N]

Writes FOLDER/diffusers (the layout of StableDiffusionPipeline) and FOLDER/sd15.safetensors (the same weights under the names of
the original checkpoint, which stable-diffusion.cpp and other programs read), 2.1 GB of float16 each. Weights are normal with
variance 1 / fan-in, so that activations stay in range; norms are ones and zeros. The vocabulary has CLIP's size but its words are bytes
and fillers: prompts cost the same, and mean nothing. Needs torch, diffusers, transformers and safetensors. Files that are there
already are left as they are."""
import argparse
import json
import os

UNET = {
    "sample_size": 64, "in_channels": 4, "out_channels": 4, "center_input_sample": False, "flip_sin_to_cos": True, "freq_shift": 0,
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
    "block_out_channels": [320, 640, 1280, 1280], "layers_per_block": 2, "downsample_padding": 1, "mid_block_scale_factor": 1,
    "act_fn": "silu", "norm_num_groups": 32, "norm_eps": 1e-05, "cross_attention_dim": 768, "attention_head_dim": 8,
}
VAE = {
    "in_channels": 3, "out_channels": 3, "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "act_fn": "silu", "latent_channels": 4, "norm_num_groups": 32,
    "sample_size": 512, "scaling_factor": 0.18215,
}
CLIP = {
    "vocab_size": 49408, "hidden_size": 768, "intermediate_size": 3072, "projection_dim": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-05,
    "bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 1,
}
SCHEDULER = {
    "_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012,
    "beta_schedule": "scaled_linear", "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1,
    "prediction_type": "epsilon", "timestep_spacing": "leading",
}
INDEX = {
    "_class_name": "StableDiffusionPipeline", "requires_safety_checker": False, "safety_checker": [None, None],
    "feature_extractor": [None, None], "scheduler": ["diffusers", "DDIMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"],
}
L = UNET["layers_per_block"]
# Parts of names, ours to the original's. Diffusers has levels of blocks where the original has one list a direction.
RES = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
       "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}
OUTER = {"time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2", "conv_in": "input_blocks.0.0",
         "conv_norm_out": "out.0", "conv_out": "out.2"}
VAE_ATTN = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}


def unet_name(name):
    head, kind = name.rsplit(".", 1)
    if head in OUTER:
        return f"{OUTER[head]}.{kind}"
    p = name.split(".")
    if p[0] == "mid_block":
        at = f"middle_block.{2 * int(p[2])}" if p[1] == "resnets" else "middle_block.1"
        rest = p[3:]
    else:
        level, what, j, rest = int(p[1]), p[2], int(p[3]), p[4:]
        down = p[0] == "down_blocks"
        if what == "downsamplers":
            return f"input_blocks.{(L + 1) * (level + 1)}.0.op.{kind}"
        if what == "upsamplers":  # behind the attention, which the first level lacks
            at = f"output_blocks.{(L + 1) * level + L}.{1 if level == 0 else 2}"
        elif down:
            at = f"input_blocks.{1 + (L + 1) * level + j}.{0 if what == 'resnets' else 1}"
        else:
            at = f"output_blocks.{(L + 1) * level + j}.{0 if what == 'resnets' else 1}"
    if "resnets" in p:
        rest = [RES[rest[0]]] + rest[1:]
    return ".".join([at] + rest)


def vae_name(name):
    p = name.split(".")
    if p[0] in ("quant_conv", "post_quant_conv"):
        return name
    half, rest = p[0], p[1:]
    if rest[0] == "conv_norm_out":
        rest[0] = "norm_out"
    elif rest[0] == "mid_block":
        if rest[1] == "resnets":
            rest = ["mid", f"block_{int(rest[2]) + 1}"] + rest[3:]
        else:
            rest = ["mid", "attn_1", VAE_ATTN[".".join(rest[3:-1])], rest[-1]]
    elif rest[0] in ("down_blocks", "up_blocks"):
        down = rest[0] == "down_blocks"
        level = int(rest[1]) if down else len(VAE["block_out_channels"]) - 1 - int(rest[1])
        side = "down" if down else "up"
        if rest[2] == "resnets":
            rest = [side, str(level), "block", rest[3]] + ["nin_shortcut" if r == "conv_shortcut" else r for r in rest[4:]]
        else:
            rest = [side, str(level), side + "sample"] + rest[4:]
    return ".".join([half] + rest)


def random_weights(model, gen):
    import torch
    out = {}
    for name, t in model.state_dict().items():
        if "position_ids" in name:
            continue
        if t.dim() == 1:
            w = torch.ones(t.shape) if "norm" in name and name.endswith("weight") else torch.zeros(t.shape)
        else:
            fan_in = t.numel() // t.shape[0] if "embedding" not in name.rsplit(".", 2)[-2] else 2500  # CLIP's tables have sigma 0.02
            w = torch.randn(t.shape, generator=gen) * fan_in ** -0.5
        out[name] = w.half().contiguous()
    return out


def vocabulary(folder):
    """Every byte, alone and at a word's end, then fillers up to CLIP's size; no merges."""
    os.makedirs(folder, exist_ok=True)
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = [b for b in range(256) if b not in plain]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]
    words = letters + [c + "</w>" for c in letters]
    words += [f"filler{i}</w>" for i in range(49406 - len(words))] + ["<|startoftext|>", "<|endoftext|>"]
    with open(os.path.join(folder, "vocab.json"), "w") as f:
        json.dump({w: i for i, w in enumerate(words)}, f)
    with open(os.path.join(folder, "merges.txt"), "w") as f:
        f.write("#version: 0.2\n")
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "bos_token": "<|startoftext|>",
                   "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}, f, indent=1)
    with open(os.path.join(folder, "special_tokens_map.json"), "w") as f:
        json.dump({"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
                   "pad_token": "<|endoftext|>"}, f, indent=1)


def write_json(folder, name, what):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w") as f:
        json.dump(what, f, indent=1)


def save(path, tensors):
    """Under a name that says so until it is whole."""
    from safetensors.torch import save_file
    save_file(tensors, path + ".part", metadata={"format": "pt"})
    os.replace(path + ".part", path)


def make(folder, seed):
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel
    with torch.device("meta"):
        models = {"unet": UNet2DConditionModel(**UNET), "vae": AutoencoderKL(**VAE), "text_encoder": CLIPTextModel(CLIPTextConfig(**CLIP))}
    gen = torch.Generator().manual_seed(seed)
    w = {part: random_weights(m, gen) for part, m in models.items()}
    clip = {k if k.startswith("text_model.") else "text_model." + k: v for k, v in w["text_encoder"].items()}
    top = os.path.join(folder, "diffusers")
    write_json(os.path.join(top, "unet"), "config.json", dict(UNET, _class_name="UNet2DConditionModel"))
    write_json(os.path.join(top, "vae"), "config.json", dict(VAE, _class_name="AutoencoderKL"))
    write_json(os.path.join(top, "text_encoder"), "config.json",
               dict(CLIP, architectures=["CLIPTextModel"], model_type="clip_text_model", dtype="float16"))
    write_json(os.path.join(top, "scheduler"), "scheduler_config.json", SCHEDULER)
    vocabulary(os.path.join(top, "tokenizer"))
    vocabulary(os.path.join(folder, "tokenizer"))  # what a single file lacks
    save(os.path.join(top, "text_encoder", "model.safetensors"), clip)
    save(os.path.join(top, "vae", "diffusion_pytorch_model.safetensors"), w["vae"])
    save(os.path.join(top, "unet", "diffusion_pytorch_model.safetensors"), w["unet"])
    single = {"model.diffusion_model." + unet_name(k): v for k, v in w["unet"].items()}
    for k, v in w["vae"].items():  # the original's attention multiplies by 1x1 convolutions
        name = vae_name(k)
        single["first_stage_model." + name] = v[:, :, None, None] if ".attn_1." in name and v.dim() == 2 else v
    single.update({"cond_stage_model.transformer." + k: v for k, v in clip.items()})
    save(os.path.join(folder, "sd15.safetensors"), single)
    write_json(top, "model_index.json", INDEX)  # last: what is looked for


def ensure(folder, seed=15):
    if not os.path.exists(os.path.join(folder, "diffusers", "model_index.json")):
        make(folder, seed)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("folder")
    ap.add_argument("--seed", type=int, default=15)
    a = ap.parse_args()
    ensure(a.folder, a.seed)
