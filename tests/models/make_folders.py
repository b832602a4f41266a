#!/usr/bin/env python3
"""Tiny random models of decoder families with the reference implementation's results, into tests/data/folders/CASE.

    make_folders.py [CASE ...]     (torch, transformers, safetensors; all cases without arguments)

Every case is seeded, runs in float32 on the CPU, and its weights are rounded to bf16 before its results are made. Matrices
have a deviation of 1 / sqrt(inputs), norms and biases are spread, so that a term that is left out shows. See
record_folders.py for what a case holds."""
import json
import lzma
import math
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMPT = [1, 73, 105, 33, 300, 17, 260, 499, 5, 5, 5, 42, 311, 87, 88, 402, 7, 256, 19, 480, 13, 200, 61, 350]
SHORT = [1, 400, 22, 9, 310]
LONGER = [1, 400, 22, 9, 310, 77, 41, 3, 222, 150, 61, 8, 9, 10, 500, 499, 33, 44, 55]
NEW = 16
DENSE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256)
FOUR = {**DENSE, "num_hidden_layers": 4}
SLIDE = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]

CASES = {
    "olmo2": ("olmo2", DENSE),
    "olmo3": ("olmo3", dict(FOUR, sliding_window=8, layer_types=SLIDE)),
    "olmo": ("olmo", DENSE),
    "cohere": ("cohere", dict(DENSE, logit_scale=0.25)),
    "cohere2": ("cohere2", dict(FOUR, head_dim=16, sliding_window=8, logit_scale=0.25, layer_types=SLIDE)),
    "starcoder2": ("starcoder2", dict(DENSE, sliding_window=8)),
    "ernie4_5": ("ernie4_5", dict(DENSE, head_dim=16)),
    "llama-linear-rope": ("llama", dict(DENSE, rope_scaling=dict(rope_type="linear", rope_theta=10000.0, factor=2.0))),
    "llama-dynamic-rope": ("llama", dict(DENSE, rope_scaling=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0))),
    "llama-bias": ("llama", dict(DENSE, attention_bias=True, mlp_bias=True, head_dim=40)),
    "mistral-yarn": ("ministral3", dict(DENSE, head_dim=16, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0,
        beta_fast=32.0, beta_slow=1.0, llama_4_scaling_beta=0.1))),
    "qwen2-window": ("qwen2", dict(DENSE, use_sliding_window=True, sliding_window=8, max_window_layers=1)),
    "bitnet": ("bitnet", DENSE),
    "bitnet-silu": ("bitnet", dict(DENSE, hidden_act="silu")),
    "stablelm": ("stablelm", dict(DENSE, use_qkv_bias=True, partial_rotary_factor=0.25)),
    "stablelm-parallel": ("stablelm", dict(DENSE, use_parallel_residual=True, partial_rotary_factor=0.5)),
    "granite": ("granite", dict(DENSE, embedding_multiplier=3.0, logits_scaling=1.5, residual_multiplier=0.7, attention_multiplier=0.2)),
    "glm": ("glm", dict(DENSE, head_dim=16, partial_rotary_factor=0.5, attention_bias=True)),
    "glm4": ("glm4", dict(DENSE, head_dim=16, partial_rotary_factor=0.5, attention_bias=True)),
    "phi": ("phi", dict(DENSE, partial_rotary_factor=0.5)),
    "phi4": ("phi3", dict(DENSE, partial_rotary_factor=0.75, sliding_window=8, num_attention_heads=2, num_key_value_heads=1)),
    "gpt_neox-serial": ("gpt_neox", dict(DENSE, num_key_value_heads=None, use_parallel_residual=False, rotary_pct=0.25, attention_bias=False)),
    "gptj": ("gptj", dict(n_embd=64, n_layer=2, n_head=4, n_positions=128, rotary_dim=8)),
    "gpt_bigcode": ("gpt_bigcode", dict(n_embd=64, n_layer=2, n_head=4, n_positions=128, n_inner=96)),
    "opt": ("opt", dict(hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128,
                        word_embed_proj_dim=64)),
    "nemotron": ("nemotron", dict(DENSE, partial_rotary_factor=0.5, head_dim=16)),
    "seed_oss": ("seed_oss", dict(DENSE, head_dim=16, attention_bias=True, attention_out_bias=False)),
    "exaone4": ("exaone4", dict(FOUR, sliding_window=8, sliding_window_pattern=4, layer_types=SLIDE, head_dim=16)),
    "arcee": ("arcee", DENSE),
    "helium": ("helium", dict(DENSE, head_dim=16)),
    "gemma": ("gemma", dict(DENSE, head_dim=32)),
    "phi3-longrope-long": ("phi3", dict(DENSE, rope_scaling=dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.05 * i for i in range(8)],
        long_factor=[1.0 + 0.5 * i for i in range(8)], original_max_position_embeddings=16), original_max_position_embeddings=16)),
    "falcon": ("falcon", dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, multi_query=True, parallel_attn=True,
                              bias=False, alibi=False, new_decoder_architecture=False)),
    "falcon-new": ("falcon", dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
                                  new_decoder_architecture=True, bias=False, alibi=False, parallel_attn=True)),
    "falcon-alibi": ("falcon", dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, multi_query=False,
                                    parallel_attn=False, bias=True, alibi=True)),
    "bloom": ("bloom", dict(hidden_size=64, n_layer=2, n_head=4)),
    "mpt": ("mpt", dict(d_model=64, n_layers=2, n_heads=4, max_seq_len=128, expansion_ratio=2)),
}

HALF = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
GEMMA4 = dict(FOUR, head_dim=16, global_head_dim=32, sliding_window=8, hidden_size_per_layer_input=8, vocab_size_per_layer_input=512)
MLA = dict(DENSE, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
           n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24, first_k_dense_replace=1, n_group=1,
           topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True)
CASES |= {
    "llama4-tuned": ("llama4_text", dict(FOUR, head_dim=16, intermediate_size_mlp=80, num_local_experts=4, interleave_moe_layer_step=2,
                                         attention_chunk_size=8, floor_scale=4, attn_scale=0.5, use_qk_norm=False)),
    "llama4-whole": ("llama4_text", dict(FOUR, head_dim=16, intermediate_size_mlp=80, num_local_experts=4, interleave_moe_layer_step=2)),
    "nemotron_h-free": ("nemotron_h", dict(  # no dt is small enough to be bounded
        hidden_size=64, intermediate_size=96, head_dim=16, num_attention_heads=4, num_key_value_heads=2, conv_kernel=4, chunk_size=8,
        mamba_head_dim=16, mamba_num_heads=8, n_groups=2, ssm_state_size=16, max_position_embeddings=256,
        layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"])),
    "nemotron_h_moe-free": ("nemotron_h", dict(
        hidden_size=64, intermediate_size=96, head_dim=16, num_attention_heads=4, num_key_value_heads=2, conv_kernel=4, chunk_size=8,
        mamba_head_dim=16, mamba_num_heads=8, n_groups=2, ssm_state_size=16, max_position_embeddings=256, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, moe_shared_expert_intermediate_size=32,
        layers_block_type=["linear_attention", "moe", "full_attention", "moe"])),
    "mistral-temper": ("ministral3", dict(DENSE, head_dim=16, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=8, mscale=1.0, mscale_all_dim=1.0,
        beta_fast=32.0, beta_slow=1.0, llama_4_scaling_beta=0.3))),
    "gemma4-shared": ("gemma4_text", dict(GEMMA4, layer_types=HALF, num_kv_shared_layers=2, use_double_wide_mlp=True,
                                          attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=5.0)),
    "gemma4-moe": ("gemma4_text", dict(GEMMA4, layer_types=SLIDE, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=4,
                                       top_k_experts=2, moe_intermediate_size=24)),
    "kimi_k2": ("deepseek_v3", MLA),
    # heads enough that no two scores of the index are zero: which of equal ones torch chooses is not said
    "deepseek_v32": ("deepseek_v32", dict(MLA, index_n_heads=24, index_head_dim=16, index_topk=8)),
    "dbrx": ("dbrx", dict(d_model=64, n_heads=4, n_layers=2, max_seq_len=128, attn_config=dict(clip_qkv=0.8, kv_n_heads=2, rope_theta=10000.0),
                          ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2))),
    "stablelm-qknorm": ("stablelm", dict(DENSE, qk_layernorm=True, partial_rotary_factor=0.25)),
    "cohere-qknorm": ("cohere", dict(DENSE, use_qk_norm=True, logit_scale=0.25)),
    "phi-qknorm": ("phi", dict(DENSE, qk_layernorm=True, partial_rotary_factor=0.5)),
}
# What other programs' folders say of the same model.
CONFIG = {"kimi_k2": dict(architectures=["KimiK2ForCausalLM"], model_type="kimi_k2")}

TEXT = dict(FOUR, num_hidden_layers=2, vocab_size=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
MROPE = dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 3, 3])
EYE = dict(depth=1, hidden_size=32, in_channels=3, intermediate_size=48, num_heads=2, patch_size=14, spatial_merge_size=2,
           temporal_patch_size=2)
VISION = dict(image_token_id=500, video_token_id=501, vision_start_token_id=502, vision_end_token_id=503)
CASES |= {  # the text of models that see
    "qwen2_vl": ("qwen2_vl", dict(VISION, text_config=dict(TEXT, rope_parameters=MROPE),
                                  vision_config=dict(depth=1, embed_dim=32, hidden_size=64, mlp_ratio=2, num_heads=2, patch_size=14))),
    "qwen2_5_vl": ("qwen2_5_vl", dict(VISION, text_config=dict(TEXT, rope_parameters=MROPE),
                                      vision_config=dict(EYE, out_hidden_size=64, fullatt_block_indexes=[0], window_size=56))),
    "qwen3_vl": ("qwen3_vl", dict(VISION, text_config=dict(TEXT, head_dim=16, rope_parameters=dict(MROPE, mrope_interleaved=True)),
                                  vision_config=dict(EYE, out_hidden_size=64, num_position_embeddings=64, deepstack_visual_indexes=[0]))),
    "llava": ("llava", dict(image_token_index=500, image_seq_length=16, text_config=dict(TEXT, model_type="llama"), vision_config=dict(
        model_type="clip_vision_model", hidden_size=32, image_size=28, patch_size=7, intermediate_size=64, num_attention_heads=2,
        num_hidden_layers=2, projection_dim=24))),
    "mistral3": ("mistral3", dict(image_token_index=500, text_config=dict(TEXT, model_type="mistral", head_dim=16, sliding_window=None),
                                  vision_config=dict(model_type="pixtral", hidden_size=32, image_size=28, patch_size=14, num_channels=3,
                                                     intermediate_size=64, num_attention_heads=2, num_hidden_layers=1, head_dim=16))),
}


def spread(model, seed, tied):
    g = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings()
    for name, p in model.named_parameters():
        low = name.lower()
        with torch.no_grad():
            if p.ndim >= 2 and any(k in low for k in ("embed", "wte", "wpe")):
                p.copy_(torch.randn(p.shape, generator=g) * (0.12 if tied else 0.7))
            elif p.ndim >= 2:
                p.copy_(torch.randn(p.shape, generator=g) * (1.5 if tied else 1) / math.sqrt(p[0].numel()))
            elif low.endswith("weight"):
                near = 1.0 if abs(float(p.float().mean()) - 1) < 0.3 else 0.0
                p.copy_(near + 0.15 * torch.randn(p.shape, generator=g))
            else:
                p.copy_(0.1 * torch.randn(p.shape, generator=g))
    for name, b in model.named_buffers():
        if name.endswith("layer_scalar"):
            b.copy_(1 + 0.15 * torch.randn(b.shape, generator=g))
    with torch.no_grad():
        if head is not None and not tied:
            head.weight.mul_(2)
        for v in model.state_dict().values():
            if v.is_floating_point():
                v.copy_(v.to(torch.bfloat16).float())


def make(kind, kw, seed):
    sees = "vision_config" in kw
    own = {} if sees else dict(vocab_size=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    cfg = AutoConfig.for_model(kind, **own, **{k: v for k, v in kw.items() if v is not None})
    torch.manual_seed(seed)
    model = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_config(
        # Falcon's eager code adds its slopes twice, the one that is used by default once
        cfg, attn_implementation="sdpa" if kind == "falcon" else "eager").float().eval()
    spread(model, seed, bool(getattr(cfg, "tie_word_embeddings", False)))
    return model


@torch.no_grad()
def greedy(model, ids):
    out, least = [], 1e9
    for _ in range(NEW):
        top = torch.topk(model(torch.tensor([ids + out]), use_cache=False).logits[0, -1], 2)
        out.append(int(top.indices[0]))
        least = min(least, float(top.values[0] - top.values[1]))
    return out, least


@torch.no_grad()
def record(case):
    kind, kw = CASES[case]
    best = None
    for seed in range(1, 41):
        model = make(kind, kw, seed)
        ids, least = greedy(model, PROMPT)
        if max(ids) >= 500 and "vision_config" in kw:  # would stand for a picture
            continue
        score = min(len(set(ids)), 6) * 10 + min(least, 1)
        if best is None or score > best[0]:
            best = score, seed
        if least > 0.02 and len(set(ids)) >= 6:
            break
    model = make(kind, kw, best[1])
    ids, least = greedy(model, PROMPT)
    golden = {"input_ids": torch.tensor([PROMPT]), "short_ids": torch.tensor([LONGER if case.endswith("-long") else SHORT]), "greedy_ids": torch.tensor(ids)}
    for name in ("input", "short"):
        golden["logits" if name == "input" else "short_logits"] = model(golden[name + "_ids"], use_cache=False).logits[0].contiguous()
    out = os.path.join(TOP, "tests", "data", "folders", case)
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as d:
        model.to(torch.bfloat16).save_pretrained(d)
        config = json.load(open(os.path.join(d, "config.json")))
        config |= CONFIG.get(case, {})
        data = open(os.path.join(d, "model.safetensors"), "rb").read()
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    for name, raw in (("model.safetensors", data), ("golden.safetensors", save(golden))):
        with lzma.open(os.path.join(out, name + ".xz"), "wb", preset=9) as f:
            f.write(raw)
    print(case, "seed", best[1], "least margin %.3f" % least, sum(os.path.getsize(os.path.join(out, n)) for n in os.listdir(out)), "bytes", flush=True)


torch.set_num_threads(1)
if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        try:
            record(name)
        except Exception as e:
            if sys.argv[1:]:
                raise
            print(name, "FAILED", repr(e)[:300], flush=True)
