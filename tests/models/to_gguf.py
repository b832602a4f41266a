#!/usr/bin/env python3
"""A tiny folder of tests/data/folders as the GGUF file that llama.cpp's converter makes of such a model: names of keys and
tensors, permuted rows, 1 + w norms, -exp(A_log), split and stacked tensors, factors of frequencies.

    to_gguf.py CASE [FILE]      (FILE: CASE.gguf)

Matrices keep their type, vectors and norms become F32, as do matrices that are multiplied here. No tokenizer is written: a
tiny model has none. Families whose GGUF layout differs are rows of FAMILIES; what there is no layout for says why in NONE.
Standard library only."""
import array
import json
import lzma
import math
import os
import re
import struct
import sys

from gguf_keys import (NORM, RMS, SHAPE, SHAPE_KV, falcon_kv, keys_dbrx, keys_deepseek2, keys_ernie_moe, keys_falcon_h1,
                       keys_gemma4, keys_glm4_moe, keys_granite, keys_granite_hybrid, keys_jamba, keys_kimi_linear, keys_lfm2,
                       keys_llama, keys_llama4, keys_mamba, keys_mamba2, keys_mistral3, keys_nemotron_h, keys_old, keys_only,
                       keys_phi3, keys_qwen35, keys_qwen3_next, keys_qwen_moe, keys_rotated, keys_text, plus, ssm_size,
                       windows)
from gguf_tensor import SIZE, Tensor, permute, stack, tiled  # noqa: F401

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = os.path.join(TOP, "tests", "data", "folders")
GGML = {"F32": 0, "F16": 1, "BF16": 30}

# Architectures of folders without a GGUF layout.
NONE = {
    "GPTJForCausalLM": "llama.cpp names its tensors but has no converter and does not run it",
    "HeliumForCausalLM": "llama.cpp has no converter for Helium",
    "OPTForCausalLM": "llama.cpp has no converter for OPT",
    "RwkvForCausalLM": "llama.cpp converts RWKV 6 and 7 only",
}
# Cases whose model a GGUF file cannot say.
NO_CASE = {
    "falcon-alibi": "llama.cpp rotates every Falcon",
    "llama4": "llama.cpp's chunks have 8192 positions",
    "llama4-tuned": "llama.cpp's chunks have 8192 positions",
    "llama-dynamic-rope": "the converter writes nothing for \"dynamic\"",
    "nemotron_h": "transformers bounds dt from below, which no key says",
    "nemotron_h_dense": "transformers bounds dt from below, which no key says",
    "phi-qknorm": "llama.cpp has no norms of q and k in Phi-2",
    "qwen2-window": "the converter writes no sliding window for Qwen2",
}


class Folder:
    """config.json, its text part on top, and the tensors by their names in a plain language model."""

    def __init__(self, path):
        def opened(name, mode):
            full = os.path.join(path, name)
            return open(full, mode) if os.path.exists(full) else lzma.open(full + ".xz", mode)

        with opened("config.json", "rt") as f:
            c = json.load(f)
        self.config = {**c, **c.get("text_config", {})}
        self.arch = c["architectures"][0]
        rope = c.get("rope_parameters") or self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        self.rope = rope.get("full_attention", rope)
        self.rope_local = rope.get("sliding_attention", {})
        with opened("model.safetensors", "rb") as f:
            raw = f.read()
        n = struct.unpack_from("<Q", raw)[0]
        head = json.loads(raw[8:8 + n])
        self.tensors = {}
        for name, v in head.items():
            if name != "__metadata__" and not re.search(r"visual\.|vision_|projector\.|^mtp\.", name):
                a, b = v["data_offsets"]
                self.tensors[self.plain(name)] = Tensor(v["shape"], v["dtype"], raw[8 + n + a:8 + n + b])

    @staticmethod
    def plain(name):
        for before, now in (("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", "")):
            if name.startswith(before):
                return now + name[len(before):]
        return name

    def get(self, *names, default=None):
        return next((self.config[n] for n in names if self.config.get(n) is not None), default)

    @property
    def n_layer(self):
        return self.get("num_hidden_layers", "n_layer", "n_layers") or len(self.config["layers_block_type"])

    @property
    def n_head(self):
        return self.get("num_attention_heads", "n_head", "n_heads")

    @property
    def n_kv(self):
        return self.get("num_key_value_heads", default=self.n_head)

    @property
    def head_dim(self):
        return self.get("head_dim") or self.get("hidden_size", "n_embd") // self.n_head

    def partial(self, default=1.0):
        return self.rope.get("partial_rotary_factor", self.get("partial_rotary_factor", "rotary_pct", default=default))

    def rotated(self, default=1.0):
        return int(self.head_dim * self.partial(default))


# ---- names

GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.gate_up_proj": "ffn_up"}
NORMS_4 = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
           "post_feedforward_layernorm": "post_ffw_norm"}
GPT2 = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm", "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
BLOOM = {"transformer.word_embeddings": "token_embd", "transformer.word_embeddings_layernorm": "token_embd_norm", "transformer.ln_f": "output_norm",
         "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
         "mlp.dense_4h_to_h": "ffn_down"}
SSM = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "dt_bias": "ssm_dt.bias", "A_log": "ssm_a",
       "D": "ssm_d", "norm": "ssm_norm", "out_proj": "ssm_out"}
MAMBA = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm", "norm": "attn_norm",
         **{"mixer." + a: b for a, b in SSM.items()}}
DELTA = {"post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
         "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
         **{"linear_attn." + a: SSM[a] for a in ("conv1d", "dt_bias", "A_log", "norm", "out_proj")}}

EXPERTS = {"mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
           "mlp.gate": "ffn_gate_inp", "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
           "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
           "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
           "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
MIXTRAL = {"block_sparse_moe.experts.w1": "ffn_gate_exps", "block_sparse_moe.experts.w2": "ffn_down_exps", "block_sparse_moe.experts.w3": "ffn_up_exps",
           "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias"}
GPT_OSS = {"post_attention_layernorm": "post_attention_norm", "self_attn.sinks": "attn_sinks.weight", "mlp.router": "ffn_gate_inp",
           "mlp.experts.down_proj": "ffn_down_exps.weight", "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
           "mlp.experts.gate_up_proj": "ffn_gate_up.weight", "mlp.experts.gate_up_proj_bias": "ffn_gate_up.bias"}
MLA = {**EXPERTS, "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.q_a_layernorm": "attn_q_a_norm",
       "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b"}
GRANITE_MOE = {"block_sparse_moe.input_linear": "ffn_gate_up", "block_sparse_moe.output_linear": "ffn_down_exps",
               "block_sparse_moe.router.layer": "ffn_gate_inp"}


def name_of(names, hf):
    """(its name in a GGUF file, the number of its layer or None)"""
    m = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)$", hf)
    base = m.group(2) if m else hf
    suffix = re.search(r"\.(weight|bias)$", base)
    stem = base[:suffix.start()] if suffix else base
    every = {**GLOBAL, **LAYER, **names}
    if stem not in every:
        sys.exit(f"no name for {hf}")
    full = every[stem] + (suffix.group(0) if suffix else "")
    full = full.removesuffix("!.weight")  # a name without the ending
    return (f"blk.{m.group(1)}.{full}", int(m.group(1))) if m else (full, None)


# ---- tensors: (c, name in the folder, tensor) -> tensor, or None to leave it out, or {what stands for its name's last part: tensor}

def same(c, name, t):
    return t


def permuted(c, name, t):
    m = re.search(r"\.([qk])_proj\.(weight|bias)$", name)
    return permute(t, c.n_head if m.group(1) == "q" else c.n_kv) if m else t


def norm_plus_1(c, name, t):
    return t.map(lambda v: v + 1) if name.endswith("norm.weight") else t


def gpt2(c, name, t):
    return t.turned() if re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name) else t


def gptneox(c, name, t):
    if "query_key_value" not in name:
        return t
    n, d = c.n_head, t.shape[0] // c.n_head // 3
    return t.take(h * 3 * d + part * d + i for part in range(3) for h in range(n) for i in range(d))


def falcon(c, name, t):
    """Groups of queries with a key and a value behind them, to all queries, all keys, all values."""
    if "query_key_value" not in name:
        return t
    n_kv, d = falcon_kv(c), c.head_dim
    per = c.n_head // n_kv
    heads = [g * (per + 2) + i for g in range(n_kv) for i in range(per)]
    heads += [g * (per + 2) + per + i for i in range(2) for g in range(n_kv)]
    return t.take(h * d + i for h in heads for i in range(d))


def conv(c, name, t):
    return t.squeeze() if re.search(r"conv\.conv|conv1d\.weight", name) else t


def mamba(c, name, t):
    if name.endswith(".A_log"):
        t = t.map(lambda v: -math.exp(v))
    return conv(c, name, t)


def mamba2(c, name, t):
    t = mamba(c, name, t)
    if re.search(r"\.(A_log|D)$", name):
        return t.reshape(t.shape[0], 1)
    if re.search(r"\.(mixer|mamba)\.norm\.weight$", name):
        groups = ssm_size(c, "n_groups", 1)
        return t.reshape(groups, t.shape[0] // groups)
    return t


def falcon_h1(c, name, t):
    """A GGUF file's weights hold the factors. No key says where the norm stands: behind the gate."""
    g, factor = c.get, 1.0
    t = mamba2(c, name, t)
    for part, value in (("down_proj", g("mlp_multipliers")[1]), ("gate_proj", g("mlp_multipliers")[0]),
                        ("k_proj", g("key_multiplier") * g("attention_in_multiplier")), ("q_proj", g("attention_in_multiplier")),
                        ("v_proj", g("attention_in_multiplier")), ("o_proj", g("attention_out_multiplier")),
                        ("out_proj", g("ssm_out_multiplier")), ("lm_head", g("lm_head_multiplier")),
                        ("embed_tokens", g("embedding_multiplier"))):
        if re.search(r"(^|\.)%s\." % part, name):
            factor = value
    if ".in_proj." not in name:
        return t.times(factor)
    inner, state = g("mamba_d_ssm"), g("mamba_n_groups") * g("mamba_d_state")
    by = [m * g("ssm_in_multiplier") for m, n in zip(g("ssm_multipliers"), (inner, inner, state, state, g("mamba_n_heads"))) for _ in range(n)]
    width = t.shape[1]
    return Tensor(t.shape, "F32", array.array("f", (v * by[i // width] for i, v in enumerate(t.floats()))).tobytes())


def qwen3_next(c, name, t):
    """q, k, v and output gate lie by heads of keys."""
    if name.endswith("norm.weight") and ".linear_attn." not in name:
        return t.map(lambda v: v + 1)
    if "in_proj_qkvz" not in name:
        return mamba(c, name, t)
    n, dk = c.get("linear_num_key_heads"), c.get("linear_key_head_dim")
    dv = c.get("linear_num_value_heads") // n * c.get("linear_value_head_dim")
    q, k, v, z = ([h * 2 * (dk + dv) + at + i for h in range(n) for i in range(width)]
                  for at, width in ((0, dk), (dk, dk), (2 * dk, dv), (2 * dk + dv, dv)))
    return {"attn_qkv.weight": t.take(q + k + v), "attn_gate.weight": t.take(z)}


def qwen35(c, name, t):
    if name.endswith("norm.weight") and ".linear_attn." not in name:
        return t.map(lambda v: v + 1)
    if ".linear_attn." not in name:
        return t
    t = mamba(c, name, t)
    n_key, n_value, d = c.get("linear_num_key_heads"), c.get("linear_num_value_heads"), c.get("linear_value_head_dim")
    keys = 2 * n_key * c.get("linear_key_head_dim")
    wide, one = tiled(n_key, n_value // n_key, d), tiled(n_key, n_value // n_key, 1)
    if re.search(r"in_proj_qkv|conv1d", name):
        return t.take(list(range(keys)) + [keys + r for r in wide])
    if "in_proj_z" in name:
        return t.take(wide)
    if "out_proj" in name:
        return t.turned().take(wide).turned()
    return t if name.endswith("norm.weight") else t.take(one)


def gpt_oss(c, name, t):
    """Experts [inputs, outputs], rows of gate and up in turn."""
    if re.search(r"experts\.(gate_up|down)_proj$", name):
        t = t.turned()
    if "gate_up_proj" not in name:
        return t
    end = ".bias" if name.endswith("_bias") else ".weight"
    return {part + end: t.second(lambda n, i=i: range(i, n, 2)) for i, part in enumerate(("ffn_gate_exps", "ffn_up_exps"))}


def granite_moe(c, name, t):
    if "shared_mlp.input_linear" in name:
        n = t.shape[0] // 2
        return {"ffn_gate_shexp.weight": t.take(range(n)), "ffn_up_shexp.weight": t.take(range(n, 2 * n))}
    if "input_linear" not in name:
        return mamba2(c, name, t) if ".mamba." in name else permuted(c, name, t)
    n = t.shape[1] // 2
    return {"ffn_gate_exps.weight": t.second(lambda _: range(n)), "ffn_up_exps.weight": t.second(lambda _: range(n, 2 * n))}


def mla(c, name, t):
    """The keys' part of kv_b stands turned, so that it multiplies the queries."""
    if "kv_b_proj" not in name:
        return t
    n, v = c.get("qk_nope_head_dim"), c.get("v_head_dim")
    heads = t.reshape(c.n_head, n + v, t.shape[1])
    return {"attn_k_b.weight": heads.second(lambda _: range(n)).turned(), "attn_v_b.weight": heads.second(lambda _: range(n, n + v))}


def llama4(c, name, t):
    """Experts lie turned, gate and up in one."""
    if name.endswith("experts.down_proj"):
        return t.turned()
    if not name.endswith("experts.gate_up_proj"):
        return t
    t = t.turned()
    return {f"ffn_{part}_exps.weight": t.second(lambda n, at=at: range(n // 2 * at, n // 2 * (at + 1))) for at, part in ((0, "gate"), (1, "up"))}


def dbrx(c, name, t):
    if ".experts.mlp." not in name:
        return t
    t = t.reshape(c.get("ffn_config")["moe_num_experts"], c.get("ffn_config")["ffn_hidden_size"], c.get("d_model"))
    return t.turned() if name.endswith(".w2") else t


def kimi_linear(c, name, t):
    if name.endswith(".A_log"):
        return t.map(lambda v: -math.exp(v))
    return mla(c, name, t.reshape(1, t.shape[0], 1, t.shape[2]) if "conv1d" in name else t)


# ---- tensors that a folder has as numbers of its config

def extra_gemma4(c):
    """Pairs that stand still: their frequency is divided by so much."""
    dim = c.get("global_head_dim") or next(iter(c.get("per_layer_config").values()))["head_dim"]
    turn = int(dim * c.partial() / 2)
    return {"rope_freqs.weight": vector([1.0] * turn + [1e30] * (dim // 2 - turn))}



def extra_llama3(c):
    r = c.rope
    if r.get("rope_type") != "llama3":
        return {}
    old, low, high = r["original_max_position_embeddings"], r["low_freq_factor"], r["high_freq_factor"]
    out = []
    for i in range(0, c.head_dim, 2):
        wave = 2 * math.pi * r.get("rope_theta", c.get("rope_theta")) ** (i / c.head_dim)
        smooth = (old / wave - low) / (high - low)
        out.append(1.0 if wave < old / high else r["factor"] if wave > old / low else 1 / ((1 - smooth) / r["factor"] + smooth))
    return {"rope_freqs.weight": vector(out)}


def extra_phi3(c):
    return {f"rope_factors_{n}.weight": vector(c.rope[n + "_factor"]) for n in ("long", "short") if n + "_factor" in c.rope}


def vector(values):
    return Tensor([len(values)], "F32", array.array("f", values).tobytes())


# ---- families: architecture of the folder -> (of the GGUF file, keys, other names, tensors, extra tensors)

def family(arch, keys=keys_text, names=(), tensor=same, extra=lambda c: {}):
    return {"arch": arch, "keys": keys, "names": dict(names), "tensor": tensor, "extra": extra}


LLAMA = family("llama", keys_llama, (), permuted, extra_llama3)
MAMBA_1 = family("mamba", keys_mamba, MAMBA, mamba)
FAMILIES = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": {**LLAMA, "keys": plus(keys_llama, windows)},  # the window as mistral's own file has it
    "LlavaForConditionalGeneration": LLAMA,
    "Ministral3ForCausalLM": {**LLAMA, "arch": "mistral3", "keys": keys_mistral3},
    "Mistral3ForConditionalGeneration": {**LLAMA, "arch": "mistral3", "keys": keys_mistral3},
    "ArceeForCausalLM": {**LLAMA, "arch": "arcee"},
    "SmolLM3ForCausalLM": {**LLAMA, "arch": "smollm3"},
    "GraniteForCausalLM": {**LLAMA, "arch": "granite", "keys": keys_granite},
    "OlmoForCausalLM": family("olmo", plus(keys_text, lambda c: {NORM: 1e-5}), (), permuted),
    "Olmo2ForCausalLM": family("olmo2", keys_text, NORMS_4),
    "Olmo3ForCausalLM": family("olmo2", plus(keys_text, windows), NORMS_4),
    "Exaone4ForCausalLM": family("exaone4", plus(keys_text, lambda c: {"vocab_size": c.get("vocab_size"), **windows(c)}), NORMS_4, same, extra_llama3),
    "Ernie4_5ForCausalLM": family("ernie4_5"),
    "SeedOssForCausalLM": family("seed_oss", keys_text, {"post_attention_layernorm": "post_attention_norm"}),
    "Qwen2ForCausalLM": family("qwen2"),
    "Qwen3ForCausalLM": family("qwen3"),
    "Qwen2VLForConditionalGeneration": family("qwen2vl"),
    "Qwen2_5_VLForConditionalGeneration": family("qwen2vl"),
    "Qwen3VLForConditionalGeneration": family("qwen3vl", plus(keys_text, lambda c: {
        "n_deepstack_layers": len(c.get("vision_config")["deepstack_visual_indexes"])})),
    "Qwen3_5ForCausalLM": family("qwen35", keys_qwen35, DELTA, qwen35),
    "GemmaForCausalLM": family("gemma", plus(keys_only(*SHAPE_KV, RMS), lambda c: {
        "attention.key_length": c.head_dim, "attention.value_length": c.head_dim}), (), norm_plus_1),
    "Gemma2ForCausalLM": family("gemma2", plus(keys_only(*SHAPE_KV, RMS), lambda c: {
        "attention.key_length": c.head_dim, "attention.value_length": c.head_dim, "attention.sliding_window": c.get("sliding_window"),
        "attn_logit_softcapping": c.get("attn_logit_softcapping"), "final_logit_softcapping": c.get("final_logit_softcapping")}),
                               NORMS_4, norm_plus_1),
    "Gemma3ForCausalLM": family("gemma3", plus(keys_text, lambda c: {"attention.sliding_window": c.get("sliding_window")}), NORMS_4, norm_plus_1),
    "CohereForCausalLM": family("command-r", plus(keys_text, lambda c: {"logit_scale": c.get("logit_scale"), "rope.scaling.type": "none"})),
    "Cohere2ForCausalLM": family("cohere2", plus(keys_rotated, lambda c: {
        "logit_scale": c.get("logit_scale"), "rope.scaling.type": "none", "attention.sliding_window": c.get("sliding_window"),
        "vocab_size": c.get("vocab_size")})),
    "GlmForCausalLM": family("chatglm", plus(keys_only(*SHAPE_KV, RMS, "rope.freq_base"), lambda c: {"rope.dimension_count": c.rotated(0.5)})),
    "Glm4ForCausalLM": family("glm4", plus(keys_text, lambda c: {"rope.dimension_count": c.rotated(0.5)}), {
        "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}),
    "PhiForCausalLM": family("phi2", plus(keys_only(*SHAPE_KV, NORM), lambda c: {"rope.dimension_count": c.rotated()}), {
        "model.final_layernorm": "output_norm", "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}),
    "Phi3ForCausalLM": family("phi3", keys_phi3, (), same, extra_phi3),
    # the converters would round the weights to three values
    "BitNetForCausalLM": family("bitnet", plus(keys_text, lambda c: {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}), {
        "self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"}),
    "StableLmForCausalLM": family("stablelm", plus(keys_only(*SHAPE_KV, NORM), lambda c: {
        "rope.dimension_count": c.rotated(0.25), "use_parallel_residual": c.get("use_parallel_residual", default=True)}), {
            f"self_attn.{a}_layernorm.norms": f"attn_{a}_norm" for a in "qk"}),
    "NemotronForCausalLM": family("nemotron", plus(keys_text, lambda c: {
        "vocab_size": c.get("vocab_size"), NORM: c.get("norm_eps"), "rope.dimension_count": c.rotated(0.5), "rope.scaling.type": "none"}),
                                  (), norm_plus_1),
    # the window has no key there; without it this model is another
    "Starcoder2ForCausalLM": family("starcoder2", plus(keys_text, windows), {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}),
    "FalconForCausalLM": family("falcon", keys_old(lambda c: 2048, lambda c: {"attention.head_count_kv": falcon_kv(c)}), {
        **BLOOM, "ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"}, falcon),
    "BloomForCausalLM": family("bloom", keys_old(lambda c: c.get("seq_length", "hidden_size"), lambda c: {
        "attention.head_count_kv": c.n_head}), BLOOM, gptneox),
    "MptForCausalLM": family("mpt", keys_old(lambda c: c.get("max_seq_len"), lambda c: {
        "attention.max_alibi_bias": float(c.get("attn_config")["alibi_bias_max"])}), {
            "transformer.wte": "token_embd", "transformer.norm_f": "output_norm", "norm_1": "attn_norm", "norm_2": "ffn_norm",
            "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down"}),
    "MixtralForCausalLM": {**LLAMA, "names": MIXTRAL},
    "Qwen2MoeForCausalLM": family("qwen2moe", keys_qwen_moe, EXPERTS),
    "Qwen3NextForCausalLM": family("qwen3next", keys_qwen3_next, {
        **DELTA, **EXPERTS, "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_qkvz": "attn_qkv"}, qwen3_next),
    "JambaForCausalLM": family("jamba", keys_jamba, {
        "model.final_layernorm": "output_norm", "pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp",
        **{f"feed_forward.{e}{a}_proj": f"ffn_{a}{x}" for e, x in (("", ""), ("experts.", "_exps")) for a in ("gate", "up", "down")},
        **{"mamba." + a: b for a, b in SSM.items()}, **{f"mamba.{a}_layernorm": f"ssm_{a}_norm" for a in ("dt", "b", "c")}}, mamba),
    "Qwen3MoeForCausalLM": family("qwen3moe", keys_qwen_moe, EXPERTS),
    "Ernie4_5_MoeForCausalLM": family("ernie4_5-moe", keys_ernie_moe, {**EXPERTS, "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"}),
    "OlmoeForCausalLM": family("olmoe", keys_text, EXPERTS),
    "Glm4MoeForCausalLM": family("glm4moe", keys_glm4_moe, {**EXPERTS, "post_attention_layernorm": "post_attention_norm"}),
    "MiniMaxM2ForCausalLM": family("minimax-m2", plus(keys_text, lambda c: {
        "expert_feed_forward_length": c.get("intermediate_size"), "rope.dimension_count": c.get("rotary_dim"), "expert_gating_func": 2}), MIXTRAL),
    "GraniteMoeForCausalLM": family("granitemoe", keys_granite, GRANITE_MOE, granite_moe),
    "GraniteMoeHybridForCausalLM": family("granitehybrid", keys_granite_hybrid, {
        **GRANITE_MOE, "shared_mlp.input_linear": "ffn_gate_up_shexp", "shared_mlp.output_linear": "ffn_down_shexp",
        **{"mamba." + a: b for a, b in SSM.items()}}, granite_moe),
    "NemotronHForCausalLM": family("nemotron_h", keys_nemotron_h, {
        **MAMBA, **{f"mixer.{a}_proj": LAYER[f"self_attn.{a}_proj"] for a in "qkvo"},
        **{"mixer." + a.removeprefix("mlp."): b for a, b in {**LAYER, **EXPERTS}.items() if a.startswith("mlp.")}}, mamba2),
    "Llama4ForCausalLM": family("llama4", keys_llama4, {
        **{"feed_forward." + a: LAYER["mlp." + a] for a in ("gate_proj", "up_proj", "down_proj")},
        **{"feed_forward." + a.removeprefix("mlp."): b for a, b in EXPERTS.items()}, "feed_forward.router": "ffn_gate_inp",
        "feed_forward.experts.down_proj": "ffn_down_exps.weight", "feed_forward.experts.gate_up_proj": "."}, llama4, extra_llama3),
    "Gemma4ForCausalLM": family("gemma4", keys_gemma4, {
        **NORMS_4, "model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm", "layer_scalar": "layer_output_scale.weight", "router.proj": "ffn_gate_inp",
        "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2"}, same, extra_gemma4),
    "KimiLinearForCausalLM": family("kimi-linear", keys_kimi_linear, {
        **MLA, **MIXTRAL, **{"block_sparse_moe." + a.removeprefix("mlp."): b for a, b in {**LAYER, **EXPERTS}.items() if a.startswith("mlp.")},
        **{f"self_attn.{a}_conv1d": f"ssm_conv1d_{a}" for a in "qkv"}, **{f"self_attn.{a}_proj": f"ssm_{a}" for a in ("f_a", "f_b", "g_a", "g_b")},
        "self_attn.b_proj": "ssm_beta", "self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias", "self_attn.o_norm": "ssm_norm"}, kimi_linear),
    "DbrxForCausalLM": family("dbrx", keys_dbrx, {
        "transformer.wte": "token_embd", "transformer.norm_f": "output_norm", "norm_attn_norm.attn.Wqkv": "attn_qkv",
        "norm_attn_norm.attn.out_proj": "attn_output", "norm_attn_norm.norm_1": "attn_norm", "norm_attn_norm.norm_2": "attn_output_norm",
        "ffn.router.layer": "ffn_gate_inp", "ffn.experts.mlp.w1": "ffn_gate_exps.weight", "ffn.experts.mlp.v1": "ffn_up_exps.weight",
        "ffn.experts.mlp.w2": "ffn_down_exps.weight"}, dbrx),
    "KimiK2ForCausalLM": family("deepseek2", keys_deepseek2, MLA, mla),
    "GptOssForCausalLM": family("gpt-oss", plus(keys_text, lambda c: {
        "attention.sliding_window": c.get("sliding_window"), "expert_feed_forward_length": c.get("intermediate_size")}), GPT_OSS, gpt_oss),
    "DeepseekV2ForCausalLM": family("deepseek2", keys_deepseek2, MLA, mla),
    "DeepseekV3ForCausalLM": family("deepseek2", keys_deepseek2, MLA, mla),
    "GPT2LMHeadModel": family("gpt2", plus(keys_only(*SHAPE, NORM), lambda c: {"feed_forward_length": 4 * c.get("n_embd")}), GPT2, gpt2),
    "GPTBigCodeForCausalLM": family("starcoder", plus(keys_only(*SHAPE, NORM), lambda c: {"attention.head_count_kv": 1}), GPT2),
    "GPTNeoXForCausalLM": family("gptneox", plus(keys_only(*SHAPE, NORM), lambda c: {
        "rope.dimension_count": c.rotated(0.25), "use_parallel_residual": c.get("use_parallel_residual", default=True)}), {
            "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output",
            "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down"}, gptneox),
    "Lfm2ForCausalLM": family("lfm2", keys_lfm2, {
        "model.embedding_norm": "token_embd_norm", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "conv.conv": "shortconv.conv",
        "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj", "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm", "self_attn.out_proj": "attn_output", "feed_forward.w1": "ffn_gate",
        "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down"}, conv),
    "MambaForCausalLM": MAMBA_1,
    "FalconMambaForCausalLM": MAMBA_1,
    "Mamba2ForCausalLM": family("mamba2", keys_mamba2, MAMBA, mamba2),
    "FalconH1ForCausalLM": family("falcon-h1", keys_falcon_h1, {
        "model.final_layernorm": "output_norm", "pre_ff_layernorm": "ffn_norm!", "feed_forward.gate_proj": "ffn_gate",
        "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down", **{"mamba." + a: b for a, b in SSM.items()}}, falcon_h1),
}


# ---- the file

def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(v):
    """Its type and bytes."""
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    parts = [value(x) for x in v]
    return struct.pack("<I", 9) + parts[0][:4] + struct.pack("<Q", len(v)) + b"".join(p[4:] for p in parts)


def stays(name, t):
    """Whether a tensor keeps its type."""
    return len(t.shape) > 1 and name.endswith(".weight") and not re.search(
        r"_norm(_[12])?\.weight$|ssm_conv1d|shortconv\.conv|ffn_gate_inp|position_embd", name)


def arch_of(config):
    """general.architecture. The BitNet with squared ReLU has bitnet.cpp's name."""
    arch = FAMILIES[config["architectures"][0]]["arch"]
    if arch == "nemotron_h" and "moe" in config["layers_block_type"]:
        return "nemotron_h_moe"
    return "bitnet-b1.58" if arch == "bitnet" and config["hidden_act"] == "relu2" else arch


def write(path, arch, keys, tensors):
    table, data = b"", b""
    for name, t in tensors.items():
        if not stays(name, t):
            t = t.f32()
        data += bytes(-len(data) % 32)
        table += text(name) + struct.pack("<I", len(t.shape)) + b"".join(struct.pack("<Q", n) for n in reversed(t.shape))
        table += struct.pack("<IQ", GGML[t.dtype], len(data))
        data += t.data
    every = {"general.architecture": arch, "general.file_type": 32, **{f"{arch}.{k}": v for k, v in keys.items()}}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(every)) + b"".join(text(k) + value(v) for k, v in every.items()) + table
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)


def why_not(case):
    """None, or why there is no GGUF file of that case."""
    if case in NO_CASE:
        return NO_CASE[case]
    c = config_of(case)
    if "quantization_config" in c:
        return "packed weights: a format of folders"
    arch = c["architectures"][0]
    return NONE.get(arch) or (None if arch in FAMILIES else f"{arch}: not written here yet")


def config_of(case):
    with open(os.path.join(FOLDERS, case, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def experts_stacked(tensors):
    """Those of experts, or norms of heads, that lie apart, as one tensor under a name without the number."""
    out, parts = {}, {}
    for name, t in tensors.items():
        m = re.match(r"(.*\.(?:experts|norms)\.)(\d+)\.(.*)$", name)
        if m:
            parts.setdefault(m.group(1) + m.group(3), {})[int(m.group(2))] = t
        else:
            out[name] = t
    return {**out, **{name: stack([p[i] for i in range(len(p))]) for name, p in parts.items()}}


def convert(case, path):
    c = Folder(os.path.join(FOLDERS, case))
    f = FAMILIES[c.arch]
    keys, tensors = {}, {}
    f["keys"](c, keys)
    for hf, t in experts_stacked(c.tensors).items():
        name, layer = name_of(f["names"], hf)
        t = f["tensor"](c, hf, t)
        if isinstance(t, dict):
            tensors.update({f"blk.{layer}.{part}": one for part, one in t.items()})
        elif t is not None:
            tensors[name] = t
    tensors.update(f["extra"](c))
    write(path, arch_of(c.config), keys, tensors)
    return arch_of(c.config)


if __name__ == "__main__":
    why = why_not(sys.argv[1])
    if why:
        sys.exit(f"{sys.argv[1]}: {why}")
    print(convert(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else sys.argv[1] + ".gguf"))
