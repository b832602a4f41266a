#!/usr/bin/env python3
"""Records tests/data/image/pipe-*: whole pipelines of the Stable Diffusion family with random weights and a tiny CLIP
tokenizer, and what diffusers makes of prompts with them.  usage: record_pipe_sd.py TOKENIZER_DIR
TOKENIZER_DIR: vocab.json and merges.txt of a tiny CLIP tokenizer.  Needs torch, transformers, diffusers, safetensors.

pipe-*/golden.safetensors: for every run NAME: NAME.latents, as the sampler left them, and NAME.image [3, h, w] in -1..1.
The runs are RUNS below; test_pipe_sd.c has the same list. The pipelines' generator is torch's on the CPU with seed 11."""
import json
import os
import shutil
import sys

import diffusers as d
import torch
import transformers as tr
from safetensors.torch import save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
torch.set_num_threads(1)
DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "image")
BETAS = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
UNET = dict(sample_size=16, in_channels=4, out_channels=4, norm_num_groups=4, layers_per_block=1, block_out_channels=(8, 16),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=[2, 4], use_linear_projection=True)
PROMPT, NEGATIVE = "the cat in the hat", "a dog"
SEED = 11
N_VOCAB = 528


def spread(model, seed, gain=0.8):
    """Weights of order-one gain, norms and biases spread: a term left out shows."""
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        x = torch.randn(p.shape, generator=g)
        if "embedding" in name:
            x *= 0.5
        elif p.dim() > 1:
            x *= gain / p[0].numel() ** 0.5
        elif "norm" in name and name.endswith("weight"):
            x = 1 + 0.2 * x
        else:
            x *= 0.1
        p.data.copy_(x.bfloat16().float())
    return model.eval()


def unet(seed, **kw):
    torch.manual_seed(seed)
    return spread(d.UNet2DConditionModel(**{**UNET, **kw}), seed)


def vae(seed, scale):
    torch.manual_seed(seed)
    m = d.AutoencoderKL(block_out_channels=[8, 8], layers_per_block=1, down_block_types=["DownEncoderBlock2D"] * 2,
                        up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=4, norm_num_groups=4, sample_size=32,
                        scaling_factor=scale)
    spread(m, seed)
    m.decoder.conv_out.weight.data.mul_(0.25)
    return m


def text(seed, act="quick_gelu", project=0):
    cfg = tr.CLIPTextConfig(vocab_size=N_VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                            max_position_embeddings=77, projection_dim=project or 16, hidden_act=act, bos_token_id=526,
                            eos_token_id=527, pad_token_id=527)
    torch.manual_seed(seed)
    cls = tr.CLIPTextModelWithProjection if project else tr.CLIPTextModel
    return spread(cls(cfg), seed)


def tokenizer(folder, pad):
    return tr.CLIPTokenizer.from_pretrained(folder, pad_token=pad, model_max_length=77)


def pipes(tok):
    """name -> pipeline"""
    plain = dict(tokenizer=tokenizer(tok, "<|endoftext|>"), safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    out = {}
    out["sd2"] = d.StableDiffusionPipeline(
        unet=unet(1, cross_attention_dim=16), vae=vae(2, 0.18215), text_encoder=text(3, "gelu"),
        scheduler=d.PNDMScheduler(**BETAS, skip_prk_steps=True, steps_offset=1, prediction_type="v_prediction"),
        **{**plain, "tokenizer": tokenizer(tok, "!")})
    out["lcm"] = d.LatentConsistencyModelPipeline(
        unet=unet(4, cross_attention_dim=16, time_cond_proj_dim=16), vae=vae(5, 0.18215), text_encoder=text(6),
        scheduler=d.LCMScheduler(**BETAS), **plain)
    out["inpaint"] = d.StableDiffusionInpaintPipeline(
        unet=unet(7, cross_attention_dim=16, in_channels=9), vae=vae(8, 0.18215), text_encoder=text(9),
        scheduler=d.DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False, steps_offset=1), **plain)
    euler = dict(**BETAS, steps_offset=1, timestep_spacing="leading")
    out["sdxl"] = d.StableDiffusionXLPipeline(
        unet=unet(10, cross_attention_dim=32, addition_embed_type="text_time", addition_time_embed_dim=8,
                  projection_class_embeddings_input_dim=12 + 6 * 8, transformer_layers_per_block=[1, 2]),
        vae=vae(11, 0.13025), text_encoder=text(12), text_encoder_2=text(13, "gelu", 12), tokenizer=tokenizer(tok, "<|endoftext|>"),
        tokenizer_2=tokenizer(tok, "!"), scheduler=d.EulerDiscreteScheduler(**euler), add_watermarker=False)
    out["refiner"] = d.StableDiffusionXLImg2ImgPipeline(
        unet=unet(14, cross_attention_dim=16, addition_embed_type="text_time", addition_time_embed_dim=8,
                  projection_class_embeddings_input_dim=12 + 5 * 8),
        vae=vae(11, 0.13025), text_encoder=None, text_encoder_2=text(13, "gelu", 12), tokenizer=None, tokenizer_2=tokenizer(tok, "!"),
        scheduler=d.EulerDiscreteScheduler(**euler), requires_aesthetics_score=True, add_watermarker=False)
    return out


def picture(w, h):
    """A smooth picture and a mask (1 = repaint) of the size; the test makes the same."""
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    rgb = torch.stack([(x * 7 + y * 3) % 256, (x * 2 + y * 11) % 256, (x * 5 + y * 5) % 256]).float()
    return rgb[None] / 127.5 - 1, ((x >= w // 2)[None, None]).float()


@torch.no_grad()
def run(pipe, w, h, **kw):
    kw = dict(prompt=PROMPT, num_inference_steps=4, generator=torch.Generator().manual_seed(SEED), output_type="latent", **kw)
    if "latents_in" in kw:
        kw["image"] = kw.pop("latents_in")
    elif w:
        kw.update(width=w, height=h)
    z = pipe(**kw).images
    return z, pipe.vae.decode(z / pipe.vae.config.scaling_factor).sample


def save(pipe, folder):
    if os.path.isdir(folder):
        shutil.rmtree(folder)
    pipe.save_pretrained(folder)
    for part in ("unet", "vae", "text_encoder", "text_encoder_2"):
        m = getattr(pipe, part, None)
        if m is not None:
            name = "model.safetensors" if part.startswith("text") else "diffusion_pytorch_model.safetensors"
            save_file({k: v.bfloat16().contiguous() for k, v in m.state_dict().items()}, os.path.join(folder, part, name))
    for part in ("tokenizer", "tokenizer_2"):
        slow = os.path.join(folder, part)
        if os.path.isdir(slow): # the files that published models have
            for f in ("vocab.json", "merges.txt"):
                shutil.copy(os.path.join(sys.argv[1], f), slow)
            if os.path.exists(os.path.join(slow, "tokenizer.json")):
                os.remove(os.path.join(slow, "tokenizer.json"))
    os.system(f"chmod -R u+w {folder}")


def main():
    all_pipes, gold = pipes(sys.argv[1]), {}
    for p in all_pipes.values():
        p.set_progress_bar_config(disable=True)
    gold["sd2"] = {"plain": run(all_pipes["sd2"], 32, 32, guidance_scale=1.0),
                   "guided": run(all_pipes["sd2"], 40, 24, guidance_scale=5.0, negative_prompt=NEGATIVE),
                   "empty": run(all_pipes["sd2"], 32, 32, guidance_scale=5.0)}
    gold["lcm"] = {"plain": run(all_pipes["lcm"], 32, 32, guidance_scale=8.5, original_inference_steps=50),
                   "low": run(all_pipes["lcm"], 40, 24, guidance_scale=3.0, original_inference_steps=50)}
    inpaint, sd2, xl = all_pipes["inpaint"], all_pipes["sd2"], all_pipes["sdxl"]
    for p in inpaint, sd2, xl:
        mean_only(p.vae)
    rgb, mask = picture(32, 32)
    edit = dict(guidance_scale=5.0, negative_prompt=NEGATIVE, image=rgb)
    gold["sd2"]["edit"] = run(d.StableDiffusionImg2ImgPipeline(**sd2.components, requires_safety_checker=False), None, None, strength=0.6, **edit)
    gold["sd2"]["mask"] = run(d.StableDiffusionInpaintPipeline(**sd2.components, requires_safety_checker=False), 32, 32, mask_image=mask, **edit)
    gold["inpaint"] = {"mask": run(inpaint, 32, 32, guidance_scale=5.0, negative_prompt=NEGATIVE, image=rgb, mask_image=mask)}
    refiner = all_pipes["refiner"]
    gold["sdxl"] = {"plain": run(xl, 32, 32, guidance_scale=1.0),
                    "guided": run(xl, 40, 24, guidance_scale=5.0, negative_prompt=NEGATIVE),
                    "empty": run(xl, 32, 32, guidance_scale=5.0)}
    gold["sdxl"]["edit"] = run(d.StableDiffusionXLImg2ImgPipeline(**xl.components, add_watermarker=False), None, None, strength=0.6, **edit)
    half = run(xl, 32, 32, guidance_scale=5.0, negative_prompt=NEGATIVE, denoising_end=0.5)[0]
    gold["sdxl"]["refined"] = run(refiner, 32, 32, guidance_scale=5.0, negative_prompt=NEGATIVE, latents_in=half, denoising_start=0.5)
    for name, pipe in all_pipes.items():
        folder = os.path.join(DATA, "pipe-" + name)
        save(pipe, folder)
        t = {f"{k}.{what}": v[0].contiguous().clone() for k, zi in gold.get(name, {}).items() for what, v in zip(("latents", "image"), zi)}
        for k, v in t.items():
            assert v.isfinite().all()
            print(name, k, tuple(v.shape), f"std {v.std():.3f} max {v.abs().max():.3f}")
        if t:
            save_file(t, os.path.join(folder, "golden.safetensors"))


def mean_only(vae):
    encode = vae.encode
    vae.encode = lambda x: ModeOnly(encode(x))


class ModeOnly:
    """An encoding whose sample is its mean: what is compared does not draw noise there."""

    def __init__(self, out):
        self.latent_dist = self
        self.mean = out.latent_dist.mode()

    def sample(self, generator=None):
        return self.mean


main()
