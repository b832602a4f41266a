"""Metadata keys of GGUF files from the config.json of a tiny folder, as llama.cpp's converter writes them: functions of
(folder, keys so far) for to_gguf.py's FAMILIES. Standard library only."""
import math


def keys_text(c, k):
    """What most models have; k is filled."""
    pairs = (("context_length", ("max_position_embeddings", "n_ctx", "n_positions")), ("embedding_length", ("hidden_size", "n_embd")),
             ("feed_forward_length", ("intermediate_size", "n_inner")), ("attention.head_count", ("num_attention_heads", "n_head")),
             ("attention.head_count_kv", ("num_key_value_heads",)),
             ("expert_count", ("num_local_experts", "num_experts")),
             ("expert_used_count", ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")),
             ("expert_group_count", ("n_group",)), ("expert_group_used_count", ("topk_group",)),
             ("attention.key_length", ("head_dim",)), ("attention.value_length", ("head_dim",)))
    k["block_count"] = c.n_layer
    for key, names in pairs:
        if c.get(*names) is not None:
            k[key] = c.get(*names)
    for key, names in (("attention.layer_norm_rms_epsilon", ("rms_norm_eps", "norm_eps")),
                       ("attention.layer_norm_epsilon", ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"))):
        if c.get(*names) is not None:
            k[key] = float(c.get(*names))
    func = {"softmax": 1, "sigmoid": 2}.get(c.get("scoring_func", "score_function"))
    if func:
        k["expert_gating_func"] = func
    keys_rope(c, k)


def keys_rope(c, k):
    kind, r = c.rope.get("rope_type", c.rope.get("type")), c.rope
    if kind in ("linear", "yarn"):
        k["rope.scaling.type"], k["rope.scaling.factor"] = kind, float(r["factor"])
    if kind == "yarn":
        k["rope.scaling.original_context_length"] = r["original_max_position_embeddings"]
        for key, name in (("yarn_attn_factor", "attention_factor"), ("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if r.get(name) is not None:
                k["rope.scaling." + key] = float(r[name])
    if kind == "longrope":
        k["rope.scaling.type"] = "longrope"
    if "mrope_section" in r:
        k["rope.dimension_sections"] = (r["mrope_section"] + [0] * 4)[:4]
    theta = r.get("rope_theta", c.get("rope_theta", "rotary_emb_base"))
    if theta is not None:
        k["rope.freq_base"] = float(theta)
    local = c.rope_local.get("rope_theta", c.get("rope_local_base_freq"))
    if local is not None:
        k["rope.freq_base_swa"] = float(local)


def keys_llama(c, k):
    keys_text(c, k)
    k["vocab_size"] = c.get("vocab_size")
    k["rope.dimension_count"] = c.head_dim


def keys_rotated(c, k):
    keys_text(c, k)
    k["rope.dimension_count"] = c.rotated()


def keys_only(*names):
    """Of the usual keys those alone: converters that write their own list."""
    def fill(c, k):
        every = {}
        keys_text(c, every)
        for n in names:
            if n in every:
                k[n] = every[n]
    return fill


SHAPE = ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count")
SHAPE_KV = SHAPE + ("attention.head_count_kv",)
RMS, NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


def plus(first, fill):
    def both(c, k):
        first(c, k)
        k.update(fill(c))
    return both


def windows(c):
    """The window and which layers have it."""
    w = c.get("sliding_window")
    out = {} if w is None else {"attention.sliding_window": w}
    if w is not None and c.get("layer_types"):
        out["attention.sliding_window_pattern"] = [t == "sliding_attention" for t in c.get("layer_types")]
    return out


def keys_phi3(c, k):
    keys_only(*SHAPE_KV, RMS, "rope.freq_base")(c, k)
    k["rope.scaling.original_context_length"] = c.rope.get("original_max_position_embeddings") or c.get(
        "original_max_position_embeddings", "max_position_embeddings")
    k["rope.dimension_count"] = c.rotated()
    k["attention.sliding_window"] = c.get("sliding_window", default=0)
    if "long_factor" in c.rope:
        orig = k["rope.scaling.original_context_length"]
        scale = k["context_length"] / orig
        k["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(orig)) if scale > 1 else 1.0


def keys_mistral3(c, k):
    keys_llama(c, k)
    if c.get("model_type") == "ministral3":
        k["rope.scaling.yarn_log_multiplier"] = float(c.rope["mscale_all_dim"])
        k["attention.temperature_scale"] = float(c.rope["llama_4_scaling_beta"])


def keys_granite(c, k):
    keys_llama(c, k)
    for key, name in (("attention.scale", "attention_multiplier"), ("embedding_scale", "embedding_multiplier"),
                      ("residual_scale", "residual_multiplier"), ("logit_scale", "logits_scaling")):
        if c.get(name):
            k[key] = float(c.get(name))


def keys_old(n_ctx, more=lambda c: {}):
    """Models whose MLP is four times as wide as they are."""
    def fill(c, k):
        d = c.get("hidden_size", "n_embed", "d_model")
        k.update({"block_count": c.n_layer, "context_length": n_ctx(c), "embedding_length": d, "feed_forward_length": 4 * d,
                  "attention.head_count": c.n_head, NORM: float(c.get("layer_norm_epsilon", default=1e-5)), **more(c)})
    return fill


def falcon_kv(c):
    return c.get("num_kv_heads") if c.get("new_decoder_architecture") else 1 if c.get("multi_query") else c.n_head


def keys_granite_hybrid(c, k):
    keys_granite(c, k)
    attends = [t in ("attention", "full_attention") for t in c.get("layer_types")]
    k.update({"attention.head_count_kv": [c.n_kv if a else 0 for a in attends], "context_length": 1 << 20, "rope.scaling.finetuned": False,
              "expert_shared_feed_forward_length": c.get("shared_intermediate_size"), "ssm.conv_kernel": c.get("mamba_d_conv"),
              "ssm.state_size": c.get("mamba_d_state"), "ssm.group_count": c.get("mamba_n_groups"),
              "ssm.inner_size": c.get("mamba_expand") * c.get("hidden_size"), "ssm.time_step_rank": c.get("mamba_n_heads")})


def keys_nemotron_h(c, k):
    keys_text(c, k)
    kinds = c.get("layers_block_type")
    moe = "moe" in kinds
    k.update({"attention.head_count_kv": [c.n_kv if t == "full_attention" else 0 for t in kinds], "context_length": 1 << 20,
              "feed_forward_length": [c.get("moe_intermediate_size" if moe else "intermediate_size") if t in ("moe", "mlp") else 0 for t in kinds],
              "ssm.conv_kernel": c.get("conv_kernel"), "ssm.state_size": c.get("ssm_state_size"), "ssm.group_count": c.get("n_groups"),
              "ssm.inner_size": c.get("mamba_num_heads") * c.get("mamba_head_dim"), "ssm.time_step_rank": c.get("mamba_num_heads"),
              "rope.scaling.finetuned": False})
    if moe:
        expert_keys(c, k)
        k["expert_shared_feed_forward_length"] = c.get("moe_shared_expert_intermediate_size")
    else:
        for name in [n for n in k if n.startswith("expert_")]:
            del k[name]


def keys_lfm2(c, k):
    keys_text(c, k)
    k["attention.head_count_kv"] = [0 if t == "conv" else c.n_kv for t in c.get("layer_types")]
    k["vocab_size"], k["shortconv.l_cache"] = c.get("vocab_size"), c.get("conv_L_cache")
    ff = c.get("block_ff_dim", "intermediate_size")
    if c.get("block_auto_adjust_ff_dim"):
        ff = int(c.get("block_ffn_dim_multiplier", default=1) * int(2 * ff / 3))
        ff += -ff % c.get("block_multiple_of")
    k["feed_forward_length"] = ff


def ssm_size(c, name, default=None):
    return c.get(name, "mamba_" + name, default=default)


def keys_mamba(c, k):
    d = c.get("hidden_size", "d_model")
    k.update({"block_count": c.n_layer, "context_length": 1 << 20, "embedding_length": d, "feed_forward_length": 0,
              "attention.head_count": 0, "ssm.conv_kernel": c.get("conv_kernel", default=4),
              "ssm.inner_size": c.get("intermediate_size", default=2 * d), "ssm.state_size": c.get("state_size", default=16),
              "ssm.time_step_rank": c.get("time_step_rank", default=-(d // -16)), RMS: float(c.get("layer_norm_epsilon", default=1e-5)),
              "ssm.dt_b_c_rms": c.get("model_type") == "falcon_mamba"})


def keys_mamba2(c, k):
    d = c.get("hidden_size", "d_model")
    inner = c.get("mamba_d_ssm", "intermediate_size", default=2 * d)
    k.update({"block_count": c.n_layer, "context_length": 1 << 20, "embedding_length": d, "feed_forward_length": 0,
              "attention.head_count": 0, "ssm.conv_kernel": c.get("conv_kernel", "mamba_d_conv", default=4), "ssm.inner_size": inner,
              "ssm.state_size": c.get("state_size", "mamba_d_state", default=128),
              "ssm.time_step_rank": inner // c.get("mamba_d_head", "head_dim", default=64),
              "ssm.group_count": ssm_size(c, "n_groups", 1), RMS: float(c.get("layer_norm_epsilon", "rms_norm_eps", default=1e-5))})


def keys_falcon_h1(c, k):
    keys_mamba2(c, k)
    k.update({"vocab_size": c.get("vocab_size"), "context_length": c.get("max_position_embeddings"),
              "feed_forward_length": c.get("intermediate_size"), "attention.head_count": c.n_head, "attention.head_count_kv": c.n_kv,
              "attention.key_length": c.head_dim, "attention.value_length": c.head_dim, "rope.freq_base": float(c.rope["rope_theta"])})


def keys_qwen3_next(c, k):
    keys_qwen35(c, k)
    keys_qwen_moe(c, k)
    del k["rope.dimension_sections"]


def keys_jamba(c, k):
    keys_only(*SHAPE, RMS, "expert_count", "expert_used_count")(c, k)
    at, every = c.get("attn_layer_offset"), c.get("attn_layer_period")
    k.update({"attention.head_count_kv": [c.n_kv if i >= at and (i - at) % every == 0 else 0 for i in range(c.n_layer)],
              "ssm.conv_kernel": c.get("mamba_d_conv"), "ssm.inner_size": c.get("mamba_expand") * c.get("hidden_size"),
              "ssm.state_size": c.get("mamba_d_state"), "ssm.time_step_rank": c.get("mamba_dt_rank")})


def keys_qwen35(c, k):
    keys_text(c, k)
    k.update({"ssm.conv_kernel": c.get("linear_conv_kernel_dim"), "ssm.state_size": c.get("linear_key_head_dim"),
              "ssm.group_count": c.get("linear_num_key_heads"), "ssm.time_step_rank": c.get("linear_num_value_heads"),
              "ssm.inner_size": c.get("linear_value_head_dim") * c.get("linear_num_value_heads"),
              "full_attention_interval": c.get("full_attention_interval", default=4), "rope.dimension_count": c.rotated(0.25)})
    k.setdefault("rope.dimension_sections", [11, 11, 10, 0])


def expert_keys(c, k):
    """Of a mixture of experts; a folder's defaults are written as its library means them."""
    for key, names in (("expert_feed_forward_length", ("moe_intermediate_size",)), ("expert_count", ("n_routed_experts",)),
                       ("expert_shared_count", ("n_shared_experts",)), ("leading_dense_block_count", ("first_k_dense_replace",)),
                       ("expert_weights_norm", ("norm_topk_prob",))):
        if c.get(*names) is not None:
            k[key] = c.get(*names)
    if c.get("routed_scaling_factor") is not None:
        k["expert_weights_scale"] = float(c.get("routed_scaling_factor"))


def keys_glm4_moe(c, k):
    keys_text(c, k)
    expert_keys(c, k)
    k.update({"rope.dimension_count": c.rotated(0.5), "expert_gating_func": 2})


def keys_qwen_moe(c, k):
    keys_text(c, k)
    k["expert_feed_forward_length"] = c.get("moe_intermediate_size")
    if c.get("shared_expert_intermediate_size") is not None:
        k["expert_shared_feed_forward_length"] = c.get("shared_expert_intermediate_size")


def keys_ernie_moe(c, k):
    keys_text(c, k)
    k.update({"expert_count": c.get("moe_num_experts"), "expert_used_count": c.get("moe_k"), "interleave_moe_layer_step": c.get("moe_layer_interval"),
              "leading_dense_block_count": c.get("moe_layer_start_index"), "expert_feed_forward_length": c.get("moe_intermediate_size"),
              "expert_shared_count": c.get("moe_num_shared_experts"),
              # the converter's own sum comes out so for the published sizes only
              "expert_shared_feed_forward_length": c.get("moe_intermediate_size") * c.get("moe_num_shared_experts")})


def keys_deepseek2(c, k):
    keys_text(c, k)
    expert_keys(c, k)
    rank, rot = c.get("kv_lora_rank"), c.get("qk_rope_head_dim")
    k.update({"attention.head_count_kv": 1, "vocab_size": c.get("vocab_size"), "attention.kv_lora_rank": rank,
              "attention.key_length": rank + rot, "attention.value_length": rank, "rope.dimension_count": rot,
              "attention.key_length_mla": c.get("qk_nope_head_dim") + rot, "attention.value_length_mla": c.get("v_head_dim"),
              "expert_gating_func": 1 if c.arch == "DeepseekV2ForCausalLM" else 2})
    if not c.get("norm_topk_prob"):
        k.pop("expert_weights_norm", None)
    if c.get("q_lora_rank") is not None:
        k["attention.q_lora_rank"] = c.get("q_lora_rank")
    if c.rope.get("mscale_all_dim") is not None:
        k["rope.scaling.yarn_log_multiplier"] = 0.1 * c.rope["mscale_all_dim"]


def keys_llama4(c, k):
    keys_llama(c, k)
    k.update({"feed_forward_length": c.get("intermediate_size_mlp"), "expert_feed_forward_length": c.get("intermediate_size"),
              "interleave_moe_layer_step": c.get("interleave_moe_layer_step")})


def keys_gemma4(c, k):
    keys_text(c, k)
    k.update(windows(c))
    wide = {"head_dim": c.get("global_head_dim"), "num_key_value_heads": c.get("num_global_key_value_heads"),
            **next(iter((c.get("per_layer_config") or {"": {}}).values()))}
    local = k["attention.sliding_window_pattern"]
    k.update({"attention.key_length": wide["head_dim"], "attention.value_length": wide["head_dim"], "rope.dimension_count": wide["head_dim"],
              "attention.key_length_swa": c.head_dim, "attention.value_length_swa": c.head_dim, "rope.dimension_count_swa": c.head_dim,
              "attention.shared_kv_layers": c.get("num_kv_shared_layers", default=0),
              "embedding_length_per_layer_input": c.get("hidden_size_per_layer_input", default=0)})
    if wide["num_key_value_heads"] is not None:
        k["attention.head_count_kv"] = [c.n_kv if own else wide["num_key_value_heads"] for own in local]
    if c.get("final_logit_softcapping") is not None:
        k["final_logit_softcapping"] = float(c.get("final_logit_softcapping"))
    if c.get("moe_intermediate_size") is not None:
        k["expert_feed_forward_length"] = c.get("moe_intermediate_size")
    if c.get("use_double_wide_mlp"):
        first = c.n_layer - c.get("num_kv_shared_layers", default=0)
        k["feed_forward_length"] = [c.get("intermediate_size") * (1 if i < first else 2) for i in range(c.n_layer)]


def keys_kimi_linear(c, k):
    keys_text(c, k)
    expert_keys(c, k)
    rank, rot = c.get("kv_lora_rank"), c.get("qk_rope_head_dim")
    k.update({"context_length": c.get("model_max_length"), "vocab_size": c.get("vocab_size"), "ssm.conv_kernel": c.get("linear_conv_kernel_dim"),
              "kda.head_dim": c.get("linear_head_dim"), "attention.kv_lora_rank": rank, "rope.dimension_count": rot,
              "attention.head_count_kv": [1 if t == "full_attention" else 0 for t in c.get("layer_types")],
              "attention.key_length": rank + rot, "attention.key_length_mla": c.get("qk_nope_head_dim") + rot,
              "attention.value_length_mla": c.get("v_head_dim"), "expert_shared_count": c.get("num_shared_experts"), "expert_gating_func": 2,
              "leading_dense_block_count": c.get("mlp_layer_types").count("dense")})
    del k["attention.value_length"]


def keys_dbrx(c, k):
    attn, ffn = c.get("attn_config"), c.get("ffn_config")
    k.update({"block_count": c.n_layer, "context_length": c.get("max_seq_len"), "embedding_length": c.get("d_model"), NORM: 1e-5,
              "feed_forward_length": ffn["ffn_hidden_size"], "attention.head_count": c.n_head, "attention.head_count_kv": attn["kv_n_heads"],
              "rope.freq_base": float(attn["rope_theta"]), "attention.clamp_kqv": float(attn["clip_qkv"]),
              "expert_count": ffn["moe_num_experts"], "expert_used_count": ffn["moe_top_k"]})
