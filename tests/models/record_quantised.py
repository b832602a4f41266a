#!/usr/bin/env python3
"""Makes tests/data/folders/q-* and gpt_oss-mxfp4: a tiny model quantised as other tools store it, with the reference's results.

    record_quantised.py ORACLE_DIR [CASE ...]     (numpy, safetensors, torch, transformers)

Takes ORACLE_DIR/llama (tiny random weights; cases q-mla-*: a DeepSeek V3 made here), quantises its matrices here (plain
rounding), writes them in each tool's layout, and lets transformers run the dequantised weights in float32. Greedy ids are
cut where the choice is close."""
import json
import lzma
import os
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save, save_file

import make_folders

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], np.float32)


def t(a):
    return torch.from_numpy(np.array(a, order="C"))


def ints(w, bits, group, g_idx=None, sym=False):
    """Codes, zeros [groups, out], scales (f16) of w [out, in]."""
    n = w.shape[1]
    g_idx = np.arange(n) // group if g_idx is None else g_idx
    top = (1 << bits) - 1
    q = np.zeros(w.shape, np.int64)
    scale = np.zeros((g_idx.max() + 1, w.shape[0]), np.float16)
    zero = np.zeros(scale.shape, np.int64)
    for g in range(len(scale)):
        part = w[:, g_idx == g]
        lo, hi = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if sym:
            s = (2 * np.abs(part).max(1) / top).astype(np.float16)
            z = np.full(w.shape[0], (top + 1) // 2)
        else:
            s = ((hi - lo) / top).astype(np.float16)
            z = np.clip(np.round(-lo / s.astype(np.float32)), 1, top).astype(np.int64)
        scale[g], zero[g] = s, z
        q[:, g_idx == g] = np.clip(np.round(part / s.astype(np.float32)[:, None]) + z[:, None], 0, top)
    deq = scale.astype(np.float32)[g_idx].T * (q - zero[g_idx].T).astype(np.float32)
    return q, zero, scale, deq


def pack(q, bits, axis):
    """A stream of codes along an axis, lowest bits first, into 32-bit words."""
    q = np.moveaxis(q, axis, -1)
    b = (q[..., None] >> np.arange(bits)) & 1
    b = b.reshape(*q.shape[:-1], -1, 32).astype(np.uint64)
    w = (b << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
    return np.moveaxis(w, -1, axis)


FUSED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")  # products of one input; a loader may stack them


def gptq(bits, group, act=False, v2=False, apart=False):
    """act: columns in the order of their activations, which depends on a product's input alone; apart: as if it did not, and
    what is stacked is rounded to f16 for want of one order."""
    def make(name, w, out, rng):
        n = w.shape[1]
        gs = n if group < 0 else group
        g_idx = np.arange(n) // gs
        if act:
            g_idx = rng.permutation(g_idx) if apart else order_of(name, n, gs, rng)
        q, z, s, deq = ints(w, bits, gs, g_idx)
        out[name + ".qweight"] = t(pack(q.T, bits, 0))
        out[name + ".qzeros"] = t(pack(z if v2 else (z - 1) & ((1 << bits) - 1), bits, 1))
        out[name + ".scales"] = t(s)
        out[name + ".g_idx"] = t(g_idx.astype(np.int32))
        return deq.astype(np.float16).astype(np.float32) if apart and name.endswith(FUSED) else deq
    conf = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act, "sym": False,
            "checkpoint_format": "gptq_v2" if v2 else "gptq"}
    return conf, make


def awq():
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def rows(q):
        q = q.reshape(q.shape[0], -1, 8)[:, :, order]
        return pack(q.reshape(q.shape[0], -1), 4, 1)

    def make(name, w, out, rng):
        q, z, s, deq = ints(w, 4, 32)
        out[name + ".qweight"], out[name + ".qzeros"], out[name + ".scales"] = t(rows(q.T)), t(rows(z)), t(s)
        return deq
    return {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, make


def ct(fmt, **weights):
    return {"quant_method": "compressed-tensors", "format": fmt, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def order_of(name, n, group, rng):
    """Groups of columns in activation order."""
    if name.endswith(FUSED):
        rng = np.random.default_rng([*name.rsplit(".", 1)[0].encode()])
    return rng.permutation(np.arange(n) // group)


def ct_packed(bits, sym, act=False):
    def make(name, w, out, rng):
        g_idx = order_of(name, w.shape[1], 32, rng) if act else None
        q, z, s, deq = ints(w, bits, 32, g_idx, sym=sym)
        if act:
            out[name + ".weight_g_idx"] = t(g_idx.astype(np.int32))
        out[name + ".weight_packed"] = t(pack(q, bits, 1))
        out[name + ".weight_scale"] = t(s.T)
        out[name + ".weight_shape"] = torch.tensor(w.shape, dtype=torch.int64)
        if not sym:
            out[name + ".weight_zero_point"] = t(pack(z.T, bits, 0))
        return deq
    return ct("pack-quantized", num_bits=bits, type="int", symmetric=sym, strategy="group", group_size=32), make


def ct_int8(name, w, out, rng):
    s = (np.abs(w).max(1, keepdims=True) / 127).astype(np.float32)
    q = np.clip(np.round(w / s), -128, 127).astype(np.int8)
    out[name + ".weight"], out[name + ".weight_scale"] = t(q), t(s)
    return q.astype(np.float32) * s


def fp8(kind):
    def make(name, w, out, rng):
        n, k = w.shape
        if kind == "tensor":
            s = np.full((1, 1), np.abs(w).max() / 448, np.float32)
            full = s
        elif kind == "channel":
            s = full = (np.abs(w).max(1, keepdims=True) / 448).astype(np.float32)
        else:
            a, b = -(-n // 32), -(-k // 32)
            s = np.zeros((a, b), np.float32)
            for i in range(a):
                for j in range(b):
                    s[i, j] = np.abs(w[32 * i:32 * i + 32, 32 * j:32 * j + 32]).max() / 448
            full = np.repeat(np.repeat(s, 32, 0)[:n], 32, 1)[:, :k]
        q = t(w / full).to(torch.float8_e4m3fn)
        out[name + ".weight"] = q
        out[name + (".weight_scale_inv" if kind == "block" else ".weight_scale")] = \
            t(s.reshape(-1) if kind == "tensor" else s)
        if kind == "tensor":
            out[name + ".input_scale"] = torch.tensor([0.5])
        return q.float().numpy() * full
    conf = {"quant_method": "fp8", "weight_block_size": [32, 32]} if kind == "block" else \
        ct("float-quantized", num_bits=8, type="float", strategy=kind)
    return conf, make


def fp4_codes(x):
    return np.abs(x[..., None] - FP4).argmin(-1)


def nibbles(c):
    return (c[..., 0::2] | c[..., 1::2] << 4).astype(np.uint8)


def nvfp4(modelopt):
    def make(name, w, out, rng):
        x = w.reshape(w.shape[0], -1, 16)
        g = np.float32(448 * 6 / np.abs(w).max())
        s = t(np.abs(x).max(2) / 6 * g).to(torch.float8_e4m3fn)
        inv = np.float32(1) / g
        eff = s.float().numpy() * inv
        c = fp4_codes(x / eff[:, :, None]).reshape(w.shape)
        if modelopt:
            out[name + ".weight"], out[name + ".weight_scale_2"] = t(nibbles(c)), torch.tensor(inv)
        else:
            out[name + ".weight_packed"], out[name + ".weight_global_scale"] = t(nibbles(c)), torch.tensor([g])
        out[name + ".weight_scale"] = s
        return FP4[c] * np.repeat(eff, 16, 1)
    return ({"quant_method": "modelopt", "quant_algo": "NVFP4"} if modelopt else
            ct("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16)), make


def mx(w):
    x = w.reshape(*w.shape[:-1], -1, 32)
    e = np.clip(np.floor(np.log2(np.abs(x).max(-1))) - 2 + 127, 0, 254).astype(np.uint8)
    s = np.exp2(e.astype(np.float32) - 127)
    c = fp4_codes(x / s[..., None])
    return c, e, (FP4[c] * s[..., None]).reshape(w.shape)


def mxfp4(name, w, out, rng):
    c, e, deq = mx(w)
    out[name + ".weight_packed"], out[name + ".weight_scale"] = t(nibbles(c.reshape(w.shape))), t(e)
    return deq


BNB_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32) / np.float32(12)


def nf4(double, kind="nf4", table16=NF4):
    def make(name, w, out, rng):
        x = w.reshape(-1, 64)
        absmax = np.abs(x).max(1).astype(np.float32)
        state = {"quant_type": kind, "blocksize": 64, "dtype": "float32", "shape": list(w.shape)}
        p = name + ".weight"
        if double:
            offset = np.float32(absmax.mean())
            table = np.linspace(-1, 1, 256).astype(np.float32)
            pad = np.zeros(-(-len(absmax) // 256) * 256, np.float32)
            pad[:len(absmax)] = absmax - offset
            top = np.abs(pad.reshape(-1, 256)).max(1).astype(np.float32)
            q = np.abs(pad.reshape(-1, 256)[..., None] / top[:, None, None] - table).argmin(-1)
            absmax = (table[q] * top[:, None]).reshape(-1)[:len(absmax)] + offset
            out[p + ".absmax"] = t(q.reshape(-1)[:len(absmax)].astype(np.uint8))
            out[p + ".nested_absmax"], out[p + ".nested_quant_map"] = t(top), t(table)
            state.update(nested_blocksize=256, nested_offset=float(offset), nested_dtype="float32")
        else:
            out[p + ".absmax"] = t(absmax)
        c = np.abs(x[..., None] / absmax[:, None, None] - table16).argmin(-1)
        flat = c.reshape(-1)
        out[p] = t((flat[0::2] << 4 | flat[1::2]).astype(np.uint8)[:, None])
        out[p + ".quant_map"] = t(table16)
        out[p + ".quant_state.bitsandbytes__" + kind] = t(np.frombuffer(json.dumps(state).encode(), np.uint8).copy())
        return (table16[c] * absmax[:, None]).reshape(w.shape)
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}, make


def llm_int8(name, w, out, rng):
    scb = np.abs(w).max(1).astype(np.float32)
    q = np.round(w * (127 / scb[:, None])).astype(np.int8)
    out[name + ".weight"], out[name + ".SCB"] = t(q), t(scb)
    out[name + ".weight_format"] = torch.tensor(0, dtype=torch.uint8)
    return q.astype(np.float32) * (scb[:, None] / 127)


CASES = {
    "q-gptq4": gptq(4, 32), "q-gptq4-act": gptq(4, 32, act=True), "q-gptq4-apart": gptq(4, 32, act=True, apart=True),
    "q-gptq3-act": gptq(3, 32, act=True), "q-gptq8-act": gptq(8, 32, act=True, v2=True), "q-gptq3": gptq(3, 32), "q-gptq2": gptq(2, 32),
    "q-gptq8": gptq(8, -1, v2=True), "q-awq": awq(), "q-ct-int4": ct_packed(4, True),
    "q-ct-int4-act": ct_packed(4, True, act=True), "q-ct-int4-zero": ct_packed(4, False), "q-ct-w8": ct_packed(8, True),
    "q-ct-int8": (ct("int-quantized", num_bits=8, type="int", strategy="channel"), ct_int8),
    "q-fp8-tensor": fp8("tensor"), "q-fp8-channel": fp8("channel"), "q-fp8-block": fp8("block"),
    "q-nvfp4": nvfp4(False), "q-nvfp4-mo": nvfp4(True),
    "q-mxfp4": (ct("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32), mxfp4),
    "q-bnb-nf4": nf4(False), "q-bnb-nf4-double": nf4(True), "q-bnb-fp4": nf4(False, "fp4", BNB_FP4),
    "q-bnb-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}, llm_int8),
}
# Latent attention, whose kv_b_proj is read turned: every layout that such a matrix may come in. Blocks of scales are 32 x 32
# (heads of 32 + 32 rows of it: as 128 x 128 in the published weights), others are multiplied out.
MLA = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
           max_position_embeddings=256, q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
           n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32, first_k_dense_replace=1, n_group=1,
           topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True)
MLA_CASES = {"q-mla-fp8": "q-fp8-block", "q-mla-fp8-channel": "q-fp8-channel", "q-mla-gptq": "q-gptq4-act", "q-mla-awq": "q-awq",
             "q-mla-ct4": "q-ct-int4", "q-mla-int8": "q-ct-int8", "q-mla-nvfp4": "q-nvfp4", "q-mla-nf4": "q-bnb-nf4"}


def mla(case, seed):
    conf, quantise = CASES[MLA_CASES[case]]
    model = make_folders.make("deepseek_v3", MLA, seed)
    golden = {"input_ids": torch.tensor([make_folders.PROMPT]), "short_ids": torch.tensor([make_folders.SHORT]),
              "greedy_ids": torch.tensor([1])}
    rng, stored, plain = np.random.default_rng(1), {}, {}
    with tempfile.TemporaryDirectory() as d:
        model.to(torch.bfloat16).save_pretrained(d)
        base = load_file(os.path.join(d, "model.safetensors"))
        with open(os.path.join(d, "config.json")) as f:
            config = json.load(f)
    for name, w in base.items():
        if w.ndim == 2 and "layers" in name and not name.endswith("mlp.gate.weight"):
            plain[name] = t(quantise(name[:-len(".weight")], w.float().numpy(), stored, rng).astype(np.float32))
        else:
            stored[name], plain[name] = w, w.float()
    write(case, config, conf, stored, plain, golden)


def results(config, weights, golden):
    from transformers import AutoConfig, AutoModelForCausalLM
    if config["model_type"] == "deepseek_v3":  # its own loader stacks the experts
        with tempfile.TemporaryDirectory() as d:
            save_file(weights, os.path.join(d, "model.safetensors"), {"format": "pt"})
            with open(os.path.join(d, "config.json"), "w") as f:
                json.dump(config, f)
            model, info = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager",
                                                               output_loading_info=True)
            assert not any(info.values()), info
            model.eval()
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).float().eval()
        missing = model.load_state_dict(weights, strict=False)
        assert not missing.unexpected_keys and all("rotary" in k for k in missing.missing_keys), missing
    out = {}
    with torch.no_grad():
        for name in ("input", "short"):
            out[name + "_ids"] = golden[name + "_ids"]
            ids = golden[name + "_ids"].long().reshape(1, -1)
            out["logits" if name == "input" else "short_logits"] = model(ids).logits[0].contiguous()
        ids, greedy = golden["input_ids"].long().reshape(1, -1), []
        for _ in range(16):
            top = model(ids).logits[0, -1].topk(2)
            if top.values[0] - top.values[1] < 0.01:
                break
            greedy.append(int(top.indices[0]))
            ids = torch.cat([ids, top.indices[:1].reshape(1, 1)], 1)
    assert len(greedy) >= 4, greedy
    out["greedy_ids"] = torch.tensor(greedy, dtype=golden["greedy_ids"].dtype)
    return out


def gpt_oss(oracle):
    """The whole model as it is published: experts in MXFP4, two values a byte, the even one low; the rest in bf16. The
    weights that the reference runs are unpacked by its own function."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    src = os.path.join(oracle, "gpt_oss")
    with open(os.path.join(src, "config.json")) as f:
        config = json.load(f)
    stored, plain = {}, {}
    for name, w in load_file(os.path.join(src, "model.safetensors")).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = w.bfloat16()
            plain[name] = stored[name].float()
            continue
        x = w.float().transpose(1, 2).numpy()  # [experts, out, in]
        x = x.reshape(*x.shape[:2], -1, 32)
        e = np.floor(np.log2(np.abs(x).max(-1))) - 2
        c = np.abs(x[..., None] / np.exp2(e)[..., None, None] - FP4).argmin(-1)
        stored[name + "_blocks"] = t((c[..., 0::2] | c[..., 1::2] << 4).astype(np.uint8))
        stored[name + "_scales"] = t((e + 127).astype(np.uint8))
        plain[name] = convert_moe_packed_tensors(stored[name + "_blocks"], stored[name + "_scales"], dtype=torch.float32)
        assert plain[name].shape == w.shape
    conf = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                               "model.embed_tokens", "lm_head"]}
    write("gpt_oss-mxfp4", config, conf, stored, plain, load_file(os.path.join(src, "golden.safetensors")))


def write(case, config, conf, stored, plain, golden):
    out = os.path.join(TOP, "tests", "data", "folders", case)
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump({**config, "quantization_config": conf}, f, indent=1)
    for file, data in (("model", stored), ("golden", results(dict(config), plain, golden))):
        with lzma.open(os.path.join(out, file + ".safetensors.xz"), "wb", preset=9) as f:
            f.write(save({k: v.clone().contiguous() for k, v in data.items()}))
    print(case, sum(os.path.getsize(os.path.join(out, n)) for n in os.listdir(out)), "bytes", flush=True)


def main():
    src, wanted = os.path.join(sys.argv[1], "llama"), sys.argv[2:] or [*CASES, *MLA_CASES, "gpt_oss-mxfp4"]
    with open(os.path.join(src, "config.json")) as f:
        config = json.load(f)
    base = load_file(os.path.join(src, "model.safetensors"))
    golden = load_file(os.path.join(src, "golden.safetensors"))
    for case in wanted:
        if case == "gpt_oss-mxfp4":
            gpt_oss(sys.argv[1])
            continue
        if case in MLA_CASES:
            mla(case, 2 if case == "q-mla-nf4" else 1)
            continue
        conf, make = CASES[case]
        rng, stored, plain = np.random.default_rng(1), {}, {}
        for name, w in base.items():
            if w.ndim == 2 and "layers" in name:
                plain[name] = t(make(name[:-len(".weight")], w.float().numpy(), stored, rng).astype(np.float32))
            else:
                stored[name] = w.bfloat16()
                plain[name] = stored[name].float()
        write(case, config, conf, stored, plain, golden)


if __name__ == "__main__":
    main()
