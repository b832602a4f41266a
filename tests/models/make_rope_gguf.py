#!/usr/bin/env python3
"""Makes tests/data/gguf-tiny/tiny-llama-{llama3,yarn}.gguf.xz and their goldens: Llama models whose rotation is scaled.

    python make_rope_gguf.py LLAMA3_DIR YARN_DIR OUT_DIR

The folders hold config.json and model.safetensors of a small random Llama of 512 tokens. Weights are written as BF16; the
goldens come from transformers in f32 on those same weights. Needs torch 2.13.0, transformers 5.24.0, gguf, numpy, safetensors.
"""
import json, lzma, math, os, sys, tempfile

import gguf
import numpy as np
import torch
import transformers as tr
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import save


def permute(w, n_head):
    """Half-split rotary rows to the interleaved ones of llama GGUF files."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_factors(rp, dim):
    """What the converter of llama.cpp stores in rope_freqs.weight."""
    out = []
    for i in range(0, dim, 2):
        wave = 2 * math.pi * rp["rope_theta"] ** (i / dim)
        low, high = rp["original_max_position_embeddings"] / rp["low_freq_factor"], rp["original_max_position_embeddings"] / rp["high_freq_factor"]
        smooth = (rp["original_max_position_embeddings"] / wave - rp["low_freq_factor"]) / (rp["high_freq_factor"] - rp["low_freq_factor"])
        out.append(1.0 if wave < high else rp["factor"] if wave > low else 1 / ((1 - smooth) / rp["factor"] + smooth))
    return np.array(out, np.float32)


def write_gguf(path, cfg, t):
    heads, kv, hd, rp = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim, cfg.rope_parameters
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(cfg.max_position_embeddings)
    w.add_embedding_length(cfg.hidden_size)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    w.add_rope_freq_base(rp["rope_theta"])
    w.add_rope_dimension_count(hd)

    def put(name, a):
        a = np.ascontiguousarray(a.float().numpy())
        if a.ndim == 1:
            w.add_tensor(name, a)
        else:
            w.add_tensor(name, gguf.quants.quantize(a, Q.BF16), raw_dtype=Q.BF16)

    if rp["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rp["factor"])
        w.add_rope_scaling_orig_ctx_len(rp["original_max_position_embeddings"])
    else:
        w.add_tensor("rope_freqs.weight", llama3_factors(rp, hd))
    put("token_embd.weight", t["model.embed_tokens.weight"])
    put("output_norm.weight", t["model.norm.weight"])
    if not cfg.tie_word_embeddings:
        put("output.weight", t["lm_head.weight"])
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for i in range(cfg.num_hidden_layers):
        for hf, name in names.items():
            a = t[f"model.layers.{i}.{hf}.weight"]
            if name in ("attn_q", "attn_k"):
                a = torch.from_numpy(permute(a.float().numpy(), heads if name == "attn_q" else kv))
            put(f"blk.{i}.{name}.weight", a)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def golden(model):
    ids = [(i * 37 + 11) % 509 + 3 for i in range(48)]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float()
        cur = list(ids)
        for _ in range(16):
            cur.append(int(model(torch.tensor([cur])).logits[0, -1].argmax()))
    return save({"input_ids": np.array([ids], np.int64), "logits": logits.numpy(), "greedy_ids": np.array(cur[len(ids):], np.int64)})


def main():
    *dirs, out = sys.argv[1:4]
    for name, d in zip(("llama3", "yarn"), dirs):
        model = tr.AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            for p in model.parameters():
                if p.ndim > 1:
                    p.copy_(p.bfloat16().float())
        with tempfile.TemporaryDirectory() as tmp:
            path = os.path.join(tmp, "m.gguf")
            write_gguf(path, model.config, dict(model.state_dict()))
            data = open(path, "rb").read()
        for suffix, b in ((".gguf.xz", data), (".golden.safetensors.xz", golden(model))):
            with lzma.open(os.path.join(out, f"tiny-llama-{name}{suffix}"), "wb", preset=9) as h:
                h.write(b)


if __name__ == "__main__":
    main()
