#!/usr/bin/env python3
"""A model's folder in the layouts of tools that quantise: plain rounding into each one's packing, and the values that come of it.

    layouts.py GGUF FOLDER CASE LAYERS     (numpy, gguf)

Writes FOLDER: the Llama of a GGUF file in the hub's layout, matrices of its first LAYERS layers as CASE stores them, the rest in
bf16. record_quantised.py makes its tiny folders with the same functions."""
import json
import os
import re
import struct
import sys

import numpy as np

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], np.float32)


class Raw:
    """Values of a type that numpy has not, as the words that a file holds."""

    def __init__(self, dtype, words):
        self.dtype, self.words = dtype, words


def t(a):
    return np.array(a, order="C")


def bf16(w):
    """The nearest, ties to even: the words, and their values."""
    v = np.ascontiguousarray(w, np.float32).view(np.uint32)
    words = ((v + 0x7fff + (v >> 16 & 1)) >> 16).astype(np.uint16)
    return Raw("BF16", words), (words.astype(np.uint32) << 16).view(np.float32)


E4M3 = np.array([(c & 7) / 512 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) for c in range(127)], np.float32)


def e4m3(x):
    """The nearest, ties to even: the codes, and their values. Nothing may be above 448 by more than half a step."""
    a = np.abs(x).astype(np.float32)
    step = np.exp2(np.maximum(np.frexp(a)[1] - 1, -6) - 3).astype(np.float32)
    v = np.rint(a / step) * step
    c = np.searchsorted(E4M3, v).astype(np.uint8)
    assert (E4M3[c] == v).all()
    return Raw("F8_E4M3", c | np.signbit(x).astype(np.uint8) << 7), np.copysign(v, x).astype(np.float32)


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
        out[name + ".weight_shape"] = np.array(w.shape, np.int64)
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
        out[name + ".weight"], q = e4m3(w / full)
        out[name + (".weight_scale_inv" if kind == "block" else ".weight_scale")] = \
            t(s.reshape(-1) if kind == "tensor" else s)
        if kind == "tensor":
            out[name + ".input_scale"] = np.array([0.5], np.float32)
        return q * full
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
        raw, s = e4m3(np.abs(x).max(2) / 6 * g)
        inv = np.float32(1) / g
        eff = s * inv
        c = fp4_codes(x / eff[:, :, None]).reshape(w.shape)
        if modelopt:
            out[name + ".weight"], out[name + ".weight_scale_2"] = t(nibbles(c)), np.array(inv)
        else:
            out[name + ".weight_packed"], out[name + ".weight_global_scale"] = t(nibbles(c)), np.array([g])
        out[name + ".weight_scale"] = raw
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
    out[name + ".weight_format"] = np.array(0, np.uint8)
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


TYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8", "int32": "I32", "int64": "I64"}


def save(path, arrays):
    """A safetensors file of arrays and Raw ones."""
    head, at = {}, 0
    raw = {k: v if isinstance(v, Raw) else Raw(TYPES[v.dtype.name], v) for k, v in arrays.items()}
    for k, v in raw.items():
        head[k] = {"dtype": v.dtype, "shape": v.words.shape, "data_offsets": [at, at + v.words.nbytes]}
        at += v.words.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for v in raw.values():
            f.write(v.words.tobytes())


NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "output": "lm_head"}


def hub_name(name):
    """The hub's name of a GGUF tensor of Llama or Qwen2, and the short one of the matrix."""
    m = re.match(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)$", name)
    to = f"{NAMES[m.group(2)]}.{m.group(3)}"
    return f"model.layers.{m.group(1)}.{to}" if m.group(1) else to, m.group(2)


def hub_rows(w, short, heads, kv_heads):
    """Rows of Llama's queries and keys from GGUF's order into the hub's."""
    if short not in ("attn_q", "attn_k"):
        return w
    return w.reshape(heads if short == "attn_q" else kv_heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


class Llama:
    """A GGUF file's Llama as config.json, tokenizer.json and values by the hub's names."""

    def __init__(self, path):
        import gguf
        r = gguf.GGUFReader(path)
        self.meta = {k: v.contents() for k, v in r.fields.items() if k.startswith(("llama.", "tokenizer."))}
        arch = r.fields["general.architecture"].contents()
        if arch != "llama":
            raise SystemExit(f"{path}: architecture {arch}; this writes Llama alone")
        self.config = self.config_of()
        n, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.values = {}
        for t in r.tensors:
            name, short = hub_name(t.name)
            w = gguf.dequantize(t.data, t.tensor_type).reshape([int(k) for k in reversed(t.shape)])
            self.values[name] = hub_rows(w, short, n, kv)

    def config_of(self):
        m = {k[len("llama."):]: v for k, v in self.meta.items() if k.startswith("llama.")}
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True,
                "hidden_size": m["embedding_length"], "intermediate_size": m["feed_forward_length"],
                "num_hidden_layers": m["block_count"], "num_attention_heads": m["attention.head_count"],
                "num_key_value_heads": m["attention.head_count_kv"], "rms_norm_eps": m["attention.layer_norm_rms_epsilon"],
                "rope_theta": m["rope.freq_base"], "max_position_embeddings": m["context_length"],
                "vocab_size": len(self.meta["tokenizer.ggml.tokens"])}

    def tokenizer(self):
        tokens, kinds = self.meta["tokenizer.ggml.tokens"], self.meta["tokenizer.ggml.token_type"]
        return {"added_tokens": [{"id": i, "content": s, "special": True} for i, s in enumerate(tokens) if kinds[i] == 3],
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                                        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]},
                "decoder": {"type": "ByteLevel"},
                "model": {"type": "BPE", "vocab": {s: i for i, s in enumerate(tokens)}, "merges": self.meta["tokenizer.ggml.merges"]}}

    def write(self, case, to, layers):
        """Writes the folder; returns the values that it holds, by the hub's names."""
        conf, make = CASES[case]
        rng, stored, plain = np.random.default_rng(1), {}, {}
        for name, w in self.values.items():
            m = re.search(r"layers\.(\d+)\.", name)
            raw, w = bf16(w)
            if w.ndim == 2 and m and int(m.group(1)) < layers:
                plain[name] = make(name[:-len(".weight")], w, stored, rng).astype(np.float32)
            else:
                stored[name], plain[name] = raw, w
        os.makedirs(to)
        save(os.path.join(to, "model.safetensors"), stored)
        for file, text in (("config", {**self.config, "quantization_config": conf}), ("tokenizer", self.tokenizer())):
            with open(os.path.join(to, file + ".json"), "w") as f:
                json.dump(text, f)
        return plain


if __name__ == "__main__":
    Llama(sys.argv[1]).write(sys.argv[3], sys.argv[2], int(sys.argv[4]))
