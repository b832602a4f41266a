#!/usr/bin/env python3
"""Record the data of test_encoders.c: tiny random text encoders, what transformers computes with them in f32, and ids of
its tokenizers.  usage: record_encoders.py ORACLE OUT
ORACLE holds the folders of the tiny models (clip-text, t5-encoder, sdxl, ...), each with goldens; OUT gets one folder a
model (those of whole pipelines lie beside it already), tokenizer folders, and goldens.safetensors.xz.  Needs torch, transformers, safetensors."""
import json
import lzma
import os
import shutil
import sys

import torch
import transformers as tr
from safetensors.torch import load_file, save

torch.set_num_threads(1)
SRC, OUT = sys.argv[1], sys.argv[2]
T = {}


def put(name, x):
    x = x.detach()
    T[name] = (x.int() if x.dtype == torch.int64 else x.float() if x.is_floating_point() else x).contiguous().clone()


def copy(case, sub=""):
    """The model's own files under OUT/<case>[-<sub>]."""
    src, dst = os.path.join(SRC, case, sub), os.path.join(OUT, case + ("-" + sub if sub else ""))
    os.makedirs(dst, exist_ok=True)
    shutil.copyfile(os.path.join(src, "config.json"), os.path.join(dst, "config.json"))
    shutil.copyfile(os.path.join(src, "model.safetensors"), os.path.join(dst, "model.safetensors"))


def golden(case, *names):
    g = load_file(os.path.join(SRC, case, "golden.safetensors"))
    for n in names:
        put(case + "." + n, g[n])


def ids(seed, n, top=500):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(3, top, (1, n), generator=g)


def lm(case, cls, sub="", lengths=(7, 24, 33)):
    """Hidden states of prompts of several lengths, each alone."""
    m = cls.from_pretrained(os.path.join(SRC, case, sub), dtype=torch.float32, attn_implementation="eager").eval()
    for i, n in enumerate(lengths):
        x = ids(40 + i, n)
        put(f"{case}.lm{i}.ids", x)
        hs = m(input_ids=x, attention_mask=torch.ones_like(x), output_hidden_states=True).hidden_states
        for k in (1, 2, 3):
            put(f"{case}.lm{i}.skip{k - 1}", hs[-k])


def t5(name, m, lengths):
    for i, n in enumerate(lengths):
        x = ids(60 + i, n)
        put(f"{name}.t{i}.ids", x)
        put(f"{name}.t{i}.states", m(x)[0])


def t5_relu():
    cfg = tr.T5Config(vocab_size=512, d_model=48, d_kv=8, d_ff=80, num_layers=2, num_heads=4, feed_forward_proj="relu", is_encoder_decoder=False)
    torch.manual_seed(11)
    m = tr.T5EncoderModel(cfg).eval()
    for p in m.parameters():
        p.data = (torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.2) + (0 if p.dim() > 1 else 1)).bfloat16().float()
    d = os.path.join(OUT, "t5-relu")
    m.bfloat16().save_pretrained(d)
    for f in os.listdir(d):
        if f not in ("config.json", "model.safetensors"):
            os.unlink(os.path.join(d, f))
    return m.float()


def open_clip():
    """clip-text-gelu's projection as OpenCLIP's files have it: a bare matrix [hidden, projection]."""
    d = os.path.join(OUT, "open-clip")
    os.makedirs(d, exist_ok=True)
    t = load_file(os.path.join(SRC, "clip-text-gelu", "model.safetensors"))
    t["text_projection"] = t.pop("text_projection.weight").t().contiguous()
    with open(os.path.join(d, "model.safetensors"), "wb") as f:
        f.write(save(t))
    shutil.copyfile(os.path.join(SRC, "clip-text-gelu", "config.json"), os.path.join(d, "config.json"))


TEXTS = ["a red circle on a white background", "Hello!world! it's 3d, don't", "", "naïve café 🦊  two  spaces\n\nlines", "the <|endoftext|> the",
         "<|im_start|>system\nDescribe the image<|im_end|>\n<|im_start|>user\na THE heat<|im_end|>\n"]


def clip_tokenizer():
    """CLIP's files with SDXL's padding: '!' is special there, and id 0."""
    src, d = os.path.join(SRC, "tiny-clip-tok"), os.path.join(OUT, "tok-clip-pad")
    os.makedirs(d, exist_ok=True)
    for f in ("vocab.json", "merges.txt"):
        shutil.copyfile(os.path.join(src, f), os.path.join(d, f))
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "!"}
    json.dump(dict(special, pad_token="<|endoftext|>", tokenizer_class="CLIPTokenizer", model_max_length=77), open(os.path.join(d, "tokenizer_config.json"), "w"))
    json.dump(special, open(os.path.join(d, "special_tokens_map.json"), "w"))
    t = tr.CLIPTokenizer.from_pretrained(d)
    put("tok-clip-pad.ids", t(TEXTS, padding="max_length", max_length=24, truncation=True, return_tensors="pt").input_ids)


def qwen_tokenizer():
    """Qwen2's files of a small byte-level vocabulary."""
    d = os.path.join(OUT, "tok-qwen")
    os.makedirs(d, exist_ok=True)
    j = json.load(open(os.path.join(SRC, "tiny-bpe", "tokenizer.json")))
    special = [a["content"] for a in j["added_tokens"]]
    n = len(special)
    vocab = {k: v - n for k, v in j["model"]["vocab"].items() if v >= n}
    json.dump(vocab, open(os.path.join(d, "vocab.json"), "w"), ensure_ascii=False)
    open(os.path.join(d, "merges.txt"), "w").write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in j["model"]["merges"]))
    added = {str(len(vocab) + i): dict(content=s, lstrip=False, rstrip=False, single_word=False, normalized=False, special="tool" not in s and "think" not in s)
             for i, s in enumerate(["<|endoftext|>"] + special)}
    json.dump({v["content"]: int(k) for k, v in added.items()}, open(os.path.join(d, "added_tokens.json"), "w"))
    json.dump(dict(tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=added, bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None,
                   add_prefix_space=False, additional_special_tokens=["<|im_start|>", "<|im_end|>"], model_max_length=131072, errors="replace", split_special_tokens=False), open(os.path.join(d, "tokenizer_config.json"), "w"))
    t = tr.Qwen2Tokenizer.from_pretrained(d)
    for i, s in enumerate(TEXTS):
        put(f"tok-qwen.{i}", torch.tensor(t(s).input_ids or [-1]))
    put("tok-qwen.think", torch.tensor(t("a <think>the</think>").input_ids))


@torch.inference_mode()
def main():
    for case in ("clip-text", "clip-text-gelu"):
        copy(case)
        golden(case, "input_ids", "attention_mask", "hidden_00", "hidden_01", "hidden_02", "last_hidden_state", "text_embeds")
    for case in ("sd15", "sdxl"):
        golden(case, *[f"{p}_{s}" for p in ("prompt", "negative") for s in ("ids", "embeds") + (("pooled",) if case == "sdxl" else ())])
    for case in ("sd15", "flux-dev"):  # the same weights as sdxl's first
        a, b = (open(os.path.join(SRC, x, "text_encoder", "model.safetensors"), "rb").read() for x in (case, "sdxl"))
        assert a == b
    copy("flux-dev", "text_encoder_2")
    golden("flux-dev", "clip_ids", "t5_ids", "prompt_embeds", "pooled")
    for case, cls in (("t5-encoder", tr.T5EncoderModel), ("umt5-encoder", tr.UMT5EncoderModel)):
        copy(case)
        t5(case, cls.from_pretrained(os.path.join(SRC, case), dtype=torch.float32).eval(), (5, 77, 130))
    t5("t5-relu", t5_relu(), (5, 200))
    b = tr.models.t5.modeling_t5.T5Attention._relative_position_bucket
    for n, far in ((32, 128), (8, 16), (32, 256), (64, 512)):
        put(f"bucket.{n}.{far}", b(torch.arange(-700, 701), bidirectional=True, num_buckets=n, max_distance=far))
    copy("qwen3")
    golden("qwen3", "input_ids", "hidden_01", "hidden_02", "hidden_03")
    lm("qwen3", tr.Qwen3ForCausalLM)
    for case, cls in (("qwen-image", tr.Qwen2_5_VLForConditionalGeneration), ("z-image", tr.Qwen3Model)):
        golden(case, "prompt_ids", "negative_ids", "prompt_embeds", "negative_embeds")
        lm(case, cls, "text_encoder")
    open_clip()
    clip_tokenizer()
    qwen_tokenizer()
    with lzma.open(os.path.join(OUT, "goldens.safetensors.xz"), "wb", preset=9) as f:
        f.write(save(T))
    print(len(T), "tensors")


main()
