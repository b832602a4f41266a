#!/usr/bin/env python3
"""Give the tiny FLUX folders tokenizers, and record what diffusers' pipelines make of texts, for test_pipe_flux.c.
usage: record_pipe_flux.py DATA CLIP_TOKENIZER
DATA holds flux-dev (whole) and flux-schnell (what differs). CLIP_TOKENIZER is a folder with vocab.json and merges.txt.
T5's vocabulary is made here: letters and a few pieces of the texts. Needs torch, transformers, diffusers, safetensors."""
import json
import os
import shutil
import sys

import torch
from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxImg2ImgPipeline, FluxPipeline,
                       FluxTransformer2DModel)
from diffusers.pipelines.flux import pipeline_flux_img2img as flux_img2img
from safetensors.torch import save_file
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5Tokenizer

torch.set_num_threads(1)
DATA, CLIP = sys.argv[1:]
N_VOCAB = 512  # of the text encoders
FIRST = "a red cat on a mat"
OTHER = "two blue birds, in the rain; 12 drops"


def tokenizers():
    """CLIP's vocabulary without some bytes that no text here has, so that the encoder's ids reach to its end."""
    d = os.path.join(DATA, "flux-dev")
    one, two = os.path.join(d, "tokenizer"), os.path.join(d, "tokenizer_2")
    os.makedirs(one, exist_ok=True)
    os.makedirs(two, exist_ok=True)
    vocab = list(json.load(open(os.path.join(CLIP, "vocab.json"))))
    byte = vocab[200:200 + (len(vocab) - N_VOCAB) // 2]
    vocab = [v for v in vocab if v not in byte and v.removesuffix("</w>") not in byte]
    assert len(vocab) == N_VOCAB, len(vocab)
    json.dump({v: i for i, v in enumerate(vocab)}, open(os.path.join(one, "vocab.json"), "w"), ensure_ascii=False)
    shutil.copy(os.path.join(CLIP, "merges.txt"), one)
    json.dump(dict(bos_token="<|startoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>",
                   pad_token="<|endoftext|>", tokenizer_class="CLIPTokenizer", model_max_length=77),
              open(os.path.join(one, "tokenizer_config.json"), "w"))
    pieces = ["\u2581", *"etaoinshrdlucmfwygpbvkxqjz", *"0123456789.,;:!?-", "\u2581a", "\u2581the", "\u2581cat", "at",
              "in", "\u2581r", "\u2581b", "ed", "er", "\u2581two", "lue", "ps", "12"]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + [(p, -2.0 - 0.1 * i / len(p)) for i, p in enumerate(pieces)]
    T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512).save_pretrained(two)
    for case in ("flux-dev", "flux-schnell"):
        path = os.path.join(DATA, case, "model_index.json")
        index = json.load(open(path))
        index["tokenizer"] = ["transformers", "CLIPTokenizer"]
        index["tokenizer_2"] = ["transformers", "T5TokenizerFast"]
        json.dump(index, open(path, "w"), indent=2)


def pipeline(case, cls=FluxPipeline):
    d, own = os.path.join(DATA, "flux-dev"), os.path.join(DATA, case)
    f32 = dict(torch_dtype=torch.float32)
    p = cls(
        transformer=FluxTransformer2DModel.from_pretrained(own, subfolder="transformer", **f32),
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(own, subfolder="scheduler"),
        vae=AutoencoderKL.from_pretrained(d, subfolder="vae", **f32),
        text_encoder=CLIPTextModel.from_pretrained(d, subfolder="text_encoder", **f32),
        text_encoder_2=T5EncoderModel.from_pretrained(d, subfolder="text_encoder_2", **f32),
        tokenizer=CLIPTokenizer.from_pretrained(os.path.join(d, "tokenizer")),
        tokenizer_2=T5Tokenizer.from_pretrained(os.path.join(d, "tokenizer_2")),
    )
    p.set_progress_bar_config(disable=True)
    return p


def edit(out):
    """Image to image from the mean of the encoder's distribution."""
    flux_img2img.retrieve_latents = lambda enc, **_: enc.latent_dist.mode()
    p = pipeline("flux-dev", FluxImg2ImgPipeline)
    rgb = torch.randint(0, 256, (20, 28, 3), generator=torch.Generator().manual_seed(5))
    out["edit.rgb"] = rgb.int()
    for name, strength, steps in (("edit.0", 0.6, 5), ("edit.1", 1.0, 3)):
        img = p(OTHER, image=(rgb.permute(2, 0, 1).float() / 255)[None], strength=strength, width=28, height=20,
                num_inference_steps=steps, guidance_scale=3.5, generator=torch.Generator().manual_seed(9),
                max_sequence_length=512, output_type="pt").images[0]
        out[name] = img.permute(1, 2, 0).contiguous()


@torch.inference_mode()
def main():
    tokenizers()
    out = {}

    def shot(name, p, prompt, w, h, seed, **more):
        g = torch.Generator().manual_seed(seed)
        img = p(prompt, width=w, height=h, generator=g, output_type="pt", **more).images[0]
        out[name] = img.permute(1, 2, 0).contiguous()

    p = pipeline("flux-dev")
    out["clip"] = p.tokenizer(OTHER, padding="max_length", max_length=77, return_tensors="pt").input_ids.int()
    out["t5"] = p.tokenizer_2(OTHER, padding="max_length", max_length=24, return_tensors="pt").input_ids.int()
    shot("dev.0", p, FIRST, 28, 20, 42, num_inference_steps=4, guidance_scale=3.5, max_sequence_length=512)
    shot("dev.1", p, OTHER, 16, 36, 7, num_inference_steps=3, guidance_scale=2.0, max_sequence_length=512)
    edit(out)
    p = pipeline("flux-schnell")
    shot("schnell.0", p, FIRST, 28, 20, 42, num_inference_steps=4, max_sequence_length=256)
    shot("schnell.1", p, OTHER, 16, 36, 7, num_inference_steps=2, max_sequence_length=256)
    path = os.path.join(DATA, "pipe_flux.safetensors")
    save_file(out, path)
    print({k: (tuple(v.shape), v.float().min().item(), v.float().max().item()) for k, v in out.items()})
    print(out["clip"].tolist()[0][:30], out["t5"].tolist())


main()
