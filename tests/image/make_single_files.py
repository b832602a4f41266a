#!/usr/bin/env python3
"""Turns diffusers folders into what other programs keep: single-file checkpoints and folders of single files.

    make_single_files.py GOLDEN OUT          the fixtures of tests/data/image/single from tiny models
    make_single_files.py GOLDEN OUT --shapes also OUT/shapes: headers of real-size models (needs torch, diffusers)
    make_single_files.py GOLDEN OUT --check  read everything back with diffusers' own converters (needs both)

GOLDEN (tests/data/image) holds sd15, sdxl, sd3, flux-dev, z-image, qwen-image as diffusers folders.
Only the standard library is needed without --shapes and --check."""
import json
import lzma
import os
import shutil
import struct
import sys

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8}


class Tensor:
    """Row-major; data None when only shapes are wanted."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data

    def size(self):
        n = BYTES[self.dtype]
        for d in self.shape:
            n *= d
        return n


def cat(parts):
    a = parts[0]
    data = None if a.data is None else b"".join(p.data for p in parts)
    return Tensor(a.dtype, [sum(p.shape[0] for p in parts)] + a.shape[1:], data)


def swap_halves(t):
    half = None if t.data is None else len(t.data) // 2
    return Tensor(t.dtype, t.shape, t.data and t.data[half:] + t.data[:half])


def transposed(t):
    rows, cols = t.shape
    b = BYTES[t.dtype]
    if t.data is None:
        return Tensor(t.dtype, [cols, rows], None)
    return Tensor(t.dtype, [cols, rows], b"".join(
        t.data[(y * cols + x) * b:(y * cols + x + 1) * b] for x in range(cols) for y in range(rows)))


def reshaped(t, shape):
    return Tensor(t.dtype, shape, t.data)


# ---------------------------------------------------------------- files

def st_read(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(n)), f.read()
    head.pop("__metadata__", None)
    return {k: Tensor(v["dtype"], v["shape"], data[v["data_offsets"][0]:v["data_offsets"][1]])
            for k, v in head.items()}


def st_header(tensors, meta=None):
    head, at = {}, 0
    if meta:
        head["__metadata__"] = meta
    for k in sorted(tensors):
        n = tensors[k].size()
        head[k] = {"dtype": tensors[k].dtype, "shape": tensors[k].shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def st_write(path, tensors, meta=None):
    head = st_header(tensors, meta)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for k in sorted(tensors):
            f.write(tensors[k].data)


def gguf_tokenizer(path):
    """tokenizer.json of a byte-level BPE with Qwen's pre-tokenizer as metadata."""
    with open(path, encoding="utf-8") as f:
        t = json.load(f)
    special = {a["id"] for a in t["added_tokens"]}
    tokens = sorted(t["model"]["vocab"], key=t["model"]["vocab"].get)
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(tokens))],
            "tokenizer.ggml.merges": [" ".join(m) for m in t["model"]["merges"]],
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 0}


GGML = {"F32": 0, "F16": 1, "BF16": 30}


def gguf_str(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def gguf_value(v):
    if isinstance(v, str):
        return struct.pack("<I", 8) + gguf_str(v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    body = b"".join(map(gguf_str, v)) if isinstance(v[0], str) else struct.pack(f"<{len(v)}i", *v)
    return struct.pack("<IIQ", 9, 8 if isinstance(v[0], str) else 5, len(v)) + body


def gguf_write(path, arch, tensors, meta=None):
    """meta: metadata; a key that begins with a dot is the architecture's."""
    meta = {"general.architecture": arch, **(meta or {})}
    kv = [gguf_str(arch + k if k[0] == "." else k) + gguf_value(v) for k, v in meta.items()]
    infos, data = b"", b""
    for k in sorted(tensors):
        t = tensors[k]
        dims = t.shape[::-1] or [1]
        infos += gguf_str(k) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, GGML[t.dtype], len(data))
        data += t.data + b"\0" * (-len(t.data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kv)) + b"".join(kv) + infos
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)


# ---------------------------------------------------------------- names: diffusers -> original

def renamed(name, pairs):
    for a, b in pairs:
        if name.startswith(a):
            return b + name[len(a):]
    return None


RES = [("norm1.", "in_layers.0."), ("conv1.", "in_layers.2."), ("time_emb_proj.", "emb_layers.1."),
       ("norm2.", "out_layers.0."), ("conv2.", "out_layers.3."), ("conv_shortcut.", "skip_connection.")]
OUTER = [("time_embedding.linear_1.", "time_embed.0."), ("time_embedding.linear_2.", "time_embed.2."),
         ("add_embedding.linear_1.", "label_emb.0.0."), ("add_embedding.linear_2.", "label_emb.0.2."),
         ("conv_in.", "input_blocks.0.0."), ("conv_norm_out.", "out.0."), ("conv_out.", "out.2.")]


def unet(sd, config):
    layers, up = config["layers_per_block"], config["up_block_types"]
    out = {}
    for k, t in sd.items():
        p = k.split(".")
        rest = ".".join(p[4:])
        if p[0] == "mid_block":
            rest = ".".join(p[3:])
            new = (f"middle_block.{2 * int(p[2])}." + renamed(rest, RES)) if p[1] == "resnets" else \
                f"middle_block.1.{rest}"
        elif p[0] in ("down_blocks", "up_blocks"):
            down, b = p[0] == "down_blocks", int(p[1])
            blocks = "input_blocks" if down else "output_blocks"
            first = 1 + b * (layers + 1) if down else b * (layers + 1)
            if p[2] == "resnets":
                new = f"{blocks}.{first + int(p[3])}.0." + renamed(rest, RES)
            elif p[2] == "attentions":
                new = f"{blocks}.{first + int(p[3])}.1.{rest}"
            elif down:
                new = f"{blocks}.{first + layers}.0.op.{p[-1]}"
            else:
                new = f"{blocks}.{first + layers}.{2 if 'CrossAttn' in up[b] else 1}.conv.{p[-1]}"
        else:
            new = renamed(k, OUTER)
        out[new] = t
    return out


MID = [("mid_block.resnets.0.", "mid.block_1."), ("mid_block.resnets.1.", "mid.block_2."),
       ("mid_block.attentions.0.group_norm.", "mid.attn_1.norm."), ("mid_block.attentions.0.to_q.", "mid.attn_1.q."),
       ("mid_block.attentions.0.to_k.", "mid.attn_1.k."), ("mid_block.attentions.0.to_v.", "mid.attn_1.v."),
       ("mid_block.attentions.0.to_out.0.", "mid.attn_1.proj_out."), ("conv_norm_out.", "norm_out.")]


def vae(sd, config):
    n, out = len(config["block_out_channels"]), {}
    for k, t in sd.items():
        half, _, rest = k.partition(".")
        p = rest.split(".")
        if half not in ("encoder", "decoder"):
            new = k
        elif p[0] in ("down_blocks", "up_blocks"):
            up = p[0] == "up_blocks"
            at = f"{half}.up.{n - 1 - int(p[1])}" if up else f"{half}.down.{p[1]}"
            tail = ".".join(p[4:]).replace("conv_shortcut", "nin_shortcut")
            new = f"{at}.block.{p[3]}.{tail}" if p[2] == "resnets" else \
                f"{at}.{'upsample' if up else 'downsample'}.{tail}"
        else:
            new = f"{half}." + (renamed(rest, MID) or rest)
            if "attn_1" in new and len(t.shape) == 2:
                t = reshaped(t, t.shape + [1, 1])
        out[new] = t
    return out


def vae_wan(sd, config):
    per, out = config["num_res_blocks"] + 2, {}
    res = [("norm1.", "residual.0."), ("conv1.", "residual.2."), ("norm2.", "residual.3."),
           ("conv2.", "residual.6."), ("conv_shortcut.", "shortcut.")]
    flat = [("conv_in.", "conv1."), ("norm_out.", "head.0."), ("conv_out.", "head.2."),
            ("mid_block.attentions.0.", "middle.1.")]
    for k, t in sd.items():
        half, _, rest = k.partition(".")
        p = rest.split(".")
        if half == "quant_conv":
            new = f"conv1.{rest}"
        elif half == "post_quant_conv":
            new = f"conv2.{rest}"
        elif p[0] == "mid_block" and p[1] == "resnets":
            new = f"{half}.middle.{2 * int(p[2])}." + renamed(".".join(p[3:]), res)
        elif p[0] == "down_blocks":
            tail = ".".join(p[2:])
            new = f"{half}.downsamples.{p[1]}." + (renamed(tail, res) or tail)
        elif p[0] == "up_blocks":
            i = int(p[1]) * per + (int(p[3]) if p[2] == "resnets" else per - 1)
            tail = ".".join(p[4:])
            new = f"{half}.upsamples.{i}." + (renamed(tail, res) or tail)
        else:
            new = f"{half}." + renamed(rest, flat)
        out[new] = t
    return out


def clip(sd):
    return {k if k.startswith("text_") else "text_model." + k: t for k, t in sd.items()}


def openclip(sd):
    out = {}
    sd = {k.removeprefix("text_model."): t for k, t in sd.items()}
    for k, t in sd.items():
        p = k.split(".")
        if p[0] == "encoder":
            at, tail = f"transformer.resblocks.{p[2]}.", ".".join(p[3:])
            if ".q_proj." in k:
                parts = [sd[k.replace("q_proj", c + "_proj")] for c in "qkv"]
                out[f"{at}attn.in_proj_{p[-1]}"] = cat(parts)
            elif ".k_proj." not in k and ".v_proj." not in k:
                out[at + renamed(tail, [("layer_norm1.", "ln_1."), ("layer_norm2.", "ln_2."),
                                        ("mlp.fc1.", "mlp.c_fc."), ("mlp.fc2.", "mlp.c_proj."),
                                        ("self_attn.out_proj.", "attn.out_proj.")])] = t
        elif k == "text_projection.weight":
            out["text_projection"] = transposed(t)
        elif k == "embeddings.position_embedding.weight":
            out["positional_embedding"] = t
        else:
            out[renamed(k, [("embeddings.token_embedding.", "token_embedding."),
                            ("final_layer_norm.", "ln_final.")])] = t
    return out


def flux(sd):
    outer = [("x_embedder.", "img_in."), ("context_embedder.", "txt_in."), ("proj_out.", "final_layer.linear."),
             ("time_text_embed.timestep_embedder.linear_1.", "time_in.in_layer."),
             ("time_text_embed.timestep_embedder.linear_2.", "time_in.out_layer."),
             ("time_text_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."),
             ("time_text_embed.guidance_embedder.linear_2.", "guidance_in.out_layer."),
             ("time_text_embed.text_embedder.linear_1.", "vector_in.in_layer."),
             ("time_text_embed.text_embedder.linear_2.", "vector_in.out_layer.")]
    double = [("norm1.linear.", "img_mod.lin."), ("norm1_context.linear.", "txt_mod.lin."),
              ("attn.norm_q.weight", "img_attn.norm.query_norm.scale"),
              ("attn.norm_k.weight", "img_attn.norm.key_norm.scale"),
              ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
              ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
              ("attn.to_out.0.", "img_attn.proj."), ("attn.to_add_out.", "txt_attn.proj."),
              ("ff.net.0.proj.", "img_mlp.0."), ("ff.net.2.", "img_mlp.2."),
              ("ff_context.net.0.proj.", "txt_mlp.0."), ("ff_context.net.2.", "txt_mlp.2.")]
    single = [("norm.linear.", "modulation.lin."), ("proj_out.", "linear2."),
              ("attn.norm_q.weight", "norm.query_norm.scale"), ("attn.norm_k.weight", "norm.key_norm.scale")]
    out = {}
    for k, t in sd.items():
        p = k.split(".")
        tail = ".".join(p[2:])
        if p[0] == "transformer_blocks":
            at = f"double_blocks.{p[1]}."
            if ".to_q." in k:
                out[f"{at}img_attn.qkv.{p[-1]}"] = cat([sd[k.replace("to_q", "to_" + c)] for c in "qkv"])
            elif ".add_q_proj." in k:
                out[f"{at}txt_attn.qkv.{p[-1]}"] = cat([sd[k.replace("add_q", "add_" + c)] for c in "qkv"])
            elif renamed(tail, double):
                out[at + renamed(tail, double)] = t
        elif p[0] == "single_transformer_blocks":
            at = f"single_blocks.{p[1]}."
            if ".to_q." in k:
                parts = [sd[k.replace("to_q", "to_" + c)] for c in "qkv"]
                out[f"{at}linear1.{p[-1]}"] = cat(parts + [sd[k.replace("attn.to_q", "proj_mlp")]])
            elif renamed(tail, single):
                out[at + renamed(tail, single)] = t
        elif k.startswith("norm_out.linear."):
            out["final_layer.adaLN_modulation.1." + p[-1]] = swap_halves(t)
        else:
            out[renamed(k, outer)] = t
    return out


def sd3(sd):
    outer = [("pos_embed.proj.", "x_embedder.proj."), ("pos_embed.pos_embed", "pos_embed"),
             ("time_text_embed.timestep_embedder.linear_1.", "t_embedder.mlp.0."),
             ("time_text_embed.timestep_embedder.linear_2.", "t_embedder.mlp.2."),
             ("time_text_embed.text_embedder.linear_1.", "y_embedder.mlp.0."),
             ("time_text_embed.text_embedder.linear_2.", "y_embedder.mlp.2."),
             ("context_embedder.", "context_embedder."), ("proj_out.", "final_layer.linear.")]
    inner = [("norm1.linear.", "x_block.adaLN_modulation.1."),
             ("norm1_context.linear.", "context_block.adaLN_modulation.1."),
             ("attn.norm_q.", "x_block.attn.ln_q."), ("attn.norm_k.", "x_block.attn.ln_k."),
             ("attn.norm_added_q.", "context_block.attn.ln_q."), ("attn.norm_added_k.", "context_block.attn.ln_k."),
             ("attn.to_out.0.", "x_block.attn.proj."), ("attn.to_add_out.", "context_block.attn.proj."),
             ("attn2.norm_q.", "x_block.attn2.ln_q."), ("attn2.norm_k.", "x_block.attn2.ln_k."),
             ("attn2.to_out.0.", "x_block.attn2.proj."),
             ("ff.net.0.proj.", "x_block.mlp.fc1."), ("ff.net.2.", "x_block.mlp.fc2."),
             ("ff_context.net.0.proj.", "context_block.mlp.fc1."), ("ff_context.net.2.", "context_block.mlp.fc2.")]
    out, last = {}, max(int(k.split(".")[1]) for k in sd if k.startswith("transformer_blocks."))
    for k, t in sd.items():
        p = k.split(".")
        tail = ".".join(p[2:])
        if p[0] == "transformer_blocks":
            at = f"joint_blocks.{p[1]}."
            fused = {"attn.to_q": "x_block.attn", "attn2.to_q": "x_block.attn2", "attn.add_q_proj": "context_block.attn"}
            which = [f for f in fused if tail.startswith(f + ".")]
            if which:
                parts = [sd[k.replace("to_q", "to_" + c).replace("add_q", "add_" + c)] for c in "qkv"]
                out[f"{at}{fused[which[0]]}.qkv.{p[-1]}"] = cat(parts)
            elif renamed(tail, inner):
                swap = int(p[1]) == last and tail.startswith("norm1_context.")
                out[at + renamed(tail, inner)] = swap_halves(t) if swap else t
        elif k.startswith("norm_out.linear."):
            out["final_layer.adaLN_modulation.1." + p[-1]] = swap_halves(t)
        else:
            out[renamed(k, outer)] = t
    return out


def zimage(sd):
    out = {}
    for k, t in sd.items():
        if ".attention.to_q." in k:
            out[k.replace("to_q", "qkv")] = cat([sd[k.replace("to_q", "to_" + c)] for c in "qkv"])
        elif ".attention.to_k." not in k and ".attention.to_v." not in k:
            out[k.replace("attention.to_out.0.", "attention.out.").replace("attention.norm_q.", "attention.q_norm.")
                .replace("attention.norm_k.", "attention.k_norm.").replace("all_x_embedder.2-1.", "x_embedder.")
                .replace("all_final_layer.2-1.", "final_layer.")] = t
    return out


def t5_gguf(sd):
    part = [("layer.0.layer_norm.", "attn_norm."), ("layer.0.SelfAttention.relative_attention_bias.", "attn_rel_b."),
            ("layer.1.layer_norm.", "ffn_norm."), ("layer.1.DenseReluDense.wi_0.", "ffn_gate."),
            ("layer.1.DenseReluDense.wi_1.", "ffn_up."), ("layer.1.DenseReluDense.wo.", "ffn_down.")]
    part += [(f"layer.0.SelfAttention.{c}.", f"attn_{c}.") for c in "qkvo"]
    out = {}
    for k, t in sd.items():
        p = k.split(".")
        if k.startswith("encoder.block."):
            out[f"enc.blk.{p[2]}." + renamed(".".join(p[3:]), part)] = t
        else:
            out[renamed(k, [("shared.", "token_embd."), ("encoder.final_layer_norm.", "enc.output_norm.")])] = t
    return out


def qwen_gguf(sd):
    part = [("input_layernorm.", "attn_norm."), ("post_attention_layernorm.", "ffn_norm."),
            ("self_attn.o_proj.", "attn_output."), ("self_attn.q_norm.", "attn_q_norm."),
            ("self_attn.k_norm.", "attn_k_norm."), ("mlp.gate_proj.", "ffn_gate."), ("mlp.up_proj.", "ffn_up."),
            ("mlp.down_proj.", "ffn_down.")] + [(f"self_attn.{c}_proj.", f"attn_{c}.") for c in "qkv"]
    out = {}
    for k, t in sd.items():
        k = k.removeprefix("model.")
        p = k.split(".")
        if p[0] == "layers":
            out[f"blk.{p[1]}." + renamed(".".join(p[2:]), part)] = t
        elif p[0] != "visual":
            out[renamed(k, [("embed_tokens.", "token_embd."), ("norm.", "output_norm."), ("lm_head.", "output.")])] = t
    return out


# ---------------------------------------------------------------- fixtures

def component(golden, case, name):
    d = os.path.join(golden, case, name)
    weights = [f for f in os.listdir(d) if f.endswith(".safetensors")]
    with open(os.path.join(d, "config.json"), encoding="utf-8") as f:
        return st_read(os.path.join(d, weights[0])), json.load(f)


def companions(golden, case, out, comps, tokenizers):
    """Configurations and tokenizers: sizes of tiny models are not those of their families. Models that were made
    without a tokenizer get the one of flux-dev's CLIP."""
    for c in comps:
        os.makedirs(os.path.join(out, c), exist_ok=True)
        name = "scheduler_config.json" if c == "scheduler" else "config.json"
        shutil.copy(os.path.join(golden, case, c, name), os.path.join(out, c, name))
    for c in tokenizers:
        d = os.path.join(golden, case, c)
        shutil.copytree(d if os.path.isdir(d) else os.path.join(golden, "flux-dev", "tokenizer"), os.path.join(out, c))


def under(prefix, sd):
    return {prefix + k: t for k, t in sd.items()}


def make_sd(golden, out):
    c = {n: component(golden, "sd15", n) for n in ("unet", "vae", "text_encoder")}
    st_write(os.path.join(out, "sd15.safetensors"), {
        **under("model.diffusion_model.", unet(*c["unet"])), **under("first_stage_model.", vae(*c["vae"])),
        **under("cond_stage_model.transformer.", clip(c["text_encoder"][0]))})
    companions(golden, "sd15", os.path.join(out, "sd15"), ["unet", "vae", "text_encoder", "scheduler"], ["tokenizer"])
    c = {n: component(golden, "sdxl", n) for n in ("unet", "vae", "text_encoder", "text_encoder_2")}
    st_write(os.path.join(out, "sdxl.safetensors"), {
        **under("model.diffusion_model.", unet(*c["unet"])), **under("first_stage_model.", vae(*c["vae"])),
        **under("conditioner.embedders.0.transformer.", clip(c["text_encoder"][0])),
        **under("conditioner.embedders.1.model.", openclip(c["text_encoder_2"][0]))})
    companions(golden, "sdxl", os.path.join(out, "sdxl"),
               ["unet", "vae", "text_encoder", "text_encoder_2", "scheduler"], ["tokenizer", "tokenizer_2"])


def make_dit(golden, out):
    c = {n: component(golden, "flux-dev", n) for n in ("transformer", "vae", "text_encoder", "text_encoder_2")}
    d = os.path.join(out, "flux-dev")
    companions(golden, "flux-dev", d, [*c, "scheduler"], ["tokenizer", "tokenizer_2"])
    st_write(os.path.join(d, "flux1-dev.safetensors"), flux(c["transformer"][0]))
    st_write(os.path.join(d, "clip_l.safetensors"), clip(c["text_encoder"][0]))
    gguf_write(os.path.join(d, "t5-encoder.gguf"), "t5encoder", t5_gguf(c["text_encoder_2"][0]))
    st_write(os.path.join(d, "ae.safetensors"), vae(*c["vae"]))

    c = {n: component(golden, "sd3", n) for n in ("transformer", "vae", "text_encoder", "text_encoder_2",
                                                  "text_encoder_3")}
    st_write(os.path.join(out, "sd3.safetensors"), {
        **under("model.diffusion_model.", sd3(c["transformer"][0])), **under("first_stage_model.", vae(*c["vae"])),
        **under("text_encoders.clip_l.transformer.", clip(c["text_encoder"][0])),
        **under("text_encoders.clip_g.transformer.", clip(c["text_encoder_2"][0])),
        **under("text_encoders.t5xxl.transformer.", c["text_encoder_3"][0])})
    companions(golden, "sd3", os.path.join(out, "sd3"), [*c, "scheduler"], ["tokenizer", "tokenizer_2", "tokenizer_3"])

    c = {n: component(golden, "z-image", n) for n in ("transformer", "vae", "text_encoder")}
    d = os.path.join(out, "z-image")
    companions(golden, "z-image", d, ["transformer", "vae", "scheduler"], ["tokenizer"])
    gguf_write(os.path.join(d, "z-image.gguf"), "lumina2", zimage(c["transformer"][0]))
    gguf_write(os.path.join(d, "qwen3.gguf"), "qwen3", qwen_gguf(c["text_encoder"][0]),
               {".attention.layer_norm_rms_epsilon": 1e-6, ".rope.freq_base": 10000.0, ".attention.head_count": 2,
                **gguf_tokenizer(os.path.join(golden, "z-image", "tokenizer", "tokenizer.json"))})
    st_write(os.path.join(d, "vae.safetensors"), c["vae"][0])

    c = {n: component(golden, "qwen-image", n) for n in ("transformer", "vae", "text_encoder")}
    d = os.path.join(out, "qwen-image")
    companions(golden, "qwen-image", d, ["transformer", "vae", "scheduler"], ["tokenizer"])
    gguf_write(os.path.join(d, "qwen-image.gguf"), "qwen_image", c["transformer"][0])
    gguf_write(os.path.join(d, "qwen2.5-vl.gguf"), "qwen2vl", qwen_gguf(c["text_encoder"][0]),
               {".attention.layer_norm_rms_epsilon": 1e-5, ".rope.freq_base": 1000000.0, ".attention.head_count": 2})
    st_write(os.path.join(d, "qwen_image_vae.safetensors"), vae_wan(*c["vae"]))


# ---------------------------------------------------------------- with diffusers

def check(golden, out):
    """diffusers' converters give the folders' tensors back."""
    import inspect
    import torch
    from diffusers.loaders import single_file_utils as u
    from safetensors.torch import load_file

    def same(what, got, case, name):
        d = os.path.join(golden, case, name)
        want = load_file(os.path.join(d, [f for f in os.listdir(d) if f.endswith(".safetensors")][0]))
        want = {k.removeprefix("text_model."): v for k, v in want.items()}
        got = {k.removeprefix("text_model."): v for k, v in got.items() if "position_ids" not in k}
        assert set(want) == set(got), (what, sorted(set(want) ^ set(got))[:6])
        for k, v in want.items():
            assert torch.equal(v, got[k].reshape(v.shape)), (what, k)
        print(f"{what}: {len(want)} tensors")

    def cfg(case, name):
        with open(os.path.join(golden, case, name, "config.json"), encoding="utf-8") as f:
            return json.load(f)

    for case in ("sd15", "sdxl"):
        sd = load_file(os.path.join(out, case + ".safetensors"))
        same(case + " unet", u.convert_ldm_unet_checkpoint(dict(sd), cfg(case, "unet")), case, "unet")
        same(case + " vae", u.convert_ldm_vae_checkpoint(dict(sd), cfg(case, "vae")), case, "vae")
        same(case + " text_encoder", u.convert_ldm_clip_checkpoint(dict(sd)), case, "text_encoder")
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection
    model = CLIPTextModelWithProjection(CLIPTextConfig(**{k: v for k, v in cfg("sdxl", "text_encoder_2").items()}))
    same("sdxl text_encoder_2", u.convert_open_clip_checkpoint(model, dict(sd), "conditioner.embedders.1.model."),
         "sdxl", "text_encoder_2")
    code = inspect.getsource(u.convert_flux_transformer_checkpoint_to_diffusers).replace("inner_dim = 3072", "inner_dim = 32")
    space = {"torch": torch}
    exec(code, space)
    sd = load_file(os.path.join(out, "flux-dev", "flux1-dev.safetensors"))
    same("flux", space["convert_flux_transformer_checkpoint_to_diffusers"](sd), "flux-dev", "transformer")
    sd = load_file(os.path.join(out, "flux-dev", "ae.safetensors"))
    same("flux vae", u.convert_ldm_vae_checkpoint(sd, cfg("flux-dev", "vae")), "flux-dev", "vae")
    sd = load_file(os.path.join(out, "sd3.safetensors"))
    got = u.convert_sd3_transformer_checkpoint_to_diffusers({k: v for k, v in sd.items() if "diffusion_model" in k})
    same("sd3", got, "sd3", "transformer")
    from gguf import GGUFReader
    sd = {t.name: torch.from_numpy(t.data.copy()).view(torch.bfloat16).reshape([int(x) for x in t.shape[::-1]])
          for t in GGUFReader(os.path.join(out, "z-image", "z-image.gguf")).tensors}
    same("z-image", u.convert_z_image_transformer_checkpoint_to_diffusers(sd), "z-image", "transformer")
    sd = load_file(os.path.join(out, "qwen-image", "qwen_image_vae.safetensors"))
    print("wan vae converted back:", len(u.convert_wan_vae_to_diffusers(sd)))


def shapes(out):
    """Headers of models of the published sizes: names and shapes only."""
    import torch
    import diffusers
    import transformers

    def sd_of(cls, *args, **kw):
        with torch.device("meta"):
            m = cls(*args, **kw)
        return {k: Tensor("F16", list(v.shape), None) for k, v in m.state_dict().items() if "position_ids" not in k}

    made = {}  # component -> tensors under diffusers' names, of the model that is put next

    def put(name, tensors, meta=None, **texts):
        with lzma.open(os.path.join(out, "shapes", name + ".json.xz"), "wb", preset=9) as f:
            f.write(st_header(tensors, meta))
        with lzma.open(os.path.join(out, "shapes", name + ".want.xz"), "wt", preset=9) as f:
            for c, sd in sorted({**made, **texts}.items()):
                for k in sorted(sd):
                    f.write(f"{c} {k} {'x'.join(map(str, sd[k].shape))}\n")
        made.clear()

    def keep(comp, sd):
        made[comp] = sd
        return sd

    os.makedirs(os.path.join(out, "shapes"), exist_ok=True)
    d4 = ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]
    u4 = ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3
    sd15 = dict(cross_attention_dim=768, block_out_channels=(320, 640, 1280, 1280), layers_per_block=2,
                down_block_types=d4, up_block_types=u4, attention_head_dim=8)
    sd2 = dict(sd15, cross_attention_dim=1024, use_linear_projection=True, attention_head_dim=[5, 10, 20, 20])
    xl = dict(cross_attention_dim=2048, block_out_channels=(320, 640, 1280), layers_per_block=2,
              down_block_types=["DownBlock2D"] + d4[:2], up_block_types=u4[1:3] + ["UpBlock2D"],
              attention_head_dim=[5, 10, 20], transformer_layers_per_block=[1, 2, 10], use_linear_projection=True,
              addition_embed_type="text_time", addition_time_embed_dim=256,
              projection_class_embeddings_input_dim=2816)
    refiner = dict(cross_attention_dim=1280, block_out_channels=(384, 768, 1536, 1536), layers_per_block=2,
                   down_block_types=["DownBlock2D"] + d4[:2] + ["DownBlock2D"],
                   up_block_types=["UpBlock2D"] + u4[1:3] + ["UpBlock2D"], attention_head_dim=[6, 12, 24, 24],
                   transformer_layers_per_block=4, use_linear_projection=True, addition_embed_type="text_time",
                   addition_time_embed_dim=256, projection_class_embeddings_input_dim=2560)
    kl = dict(block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4,
              down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4)

    def un(config):
        return under("model.diffusion_model.", unet(keep("unet", sd_of(diffusers.UNet2DConditionModel, **config)), config))

    def au(prefix, **kw):
        config = dict(kl, **kw)
        return under(prefix, vae(keep("vae", sd_of(diffusers.AutoencoderKL, **config)), config))

    def text(width, layers, proj=None, **kw):
        config = transformers.CLIPTextConfig(hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
                                             num_attention_heads=width // 64, projection_dim=proj or width, **kw)
        return sd_of(transformers.CLIPTextModelWithProjection if proj else transformers.CLIPTextModel, config)

    first, l, g = "first_stage_model.", text(768, 12), text(1280, 32, 1280)
    put("sd15", {**un(sd15), **au(first), **under("cond_stage_model.transformer.", clip(l))},
        text_encoder=l)
    put("sd15-inpaint", {**un(dict(sd15, in_channels=9)), **au(first), **under("cond_stage_model.transformer.", clip(l))},
        text_encoder=l)
    h = text(1024, 24)
    put("sd21", {**un(sd2), **au(first), **under("cond_stage_model.model.", openclip(h))},
        {"modelspec.prediction_type": "v"}, text_encoder=h)
    put("sdxl", {**un(xl), **au(first), **under("conditioner.embedders.0.transformer.", clip(l)),
                 **under("conditioner.embedders.1.model.", openclip(g))}, text_encoder=l, text_encoder_2=g)
    put("sdxl-refiner", {**un(refiner), **au(first), **under("conditioner.embedders.0.model.", openclip(g))},
        text_encoder_2=g)
    t5 = sd_of(transformers.T5EncoderModel, transformers.T5Config(
        d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu", vocab_size=32128))
    t5.pop("encoder.embed_tokens.weight", None)
    ae = dict(latent_channels=16, use_quant_conv=False, use_post_quant_conv=False)
    for name, guidance in (("flux-dev", True), ("flux-schnell", False)):
        tr = flux(keep("transformer", sd_of(diffusers.FluxTransformer2DModel, guidance_embeds=guidance)))
        put(name, {**under("model.diffusion_model.", tr), **au("vae.", **ae),
                   **under("text_encoders.clip_l.transformer.", clip(l)),
                   **under("text_encoders.t5xxl.transformer.", t5)}, text_encoder=l, text_encoder_2=t5)
    q3 = sd_of(transformers.Qwen3Model, transformers.Qwen3Config(
        hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, vocab_size=151936))
    put("z-image", {**under("model.diffusion_model.", zimage(keep("transformer", sd_of(diffusers.ZImageTransformer2DModel)))),
                    **au("vae.", **ae), **under("text_encoders.qwen3_4b.transformer.model.", q3)},
        text_encoder=q3)
    q2 = sd_of(transformers.Qwen2Model, transformers.Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152064))
    lp = text(768, 12, 768)
    for name, kw in (("sd3-medium", dict(num_layers=24, num_attention_heads=24, caption_projection_dim=1536,
                                         pos_embed_max_size=192)),
                     ("sd35-large", dict(num_layers=38, num_attention_heads=38, caption_projection_dim=2432,
                                         pos_embed_max_size=192, qk_norm="rms_norm"))):
        put(name, {**under("model.diffusion_model.", sd3(keep("transformer", sd_of(
            diffusers.SD3Transformer2DModel, **kw)))),
            **au(first, **ae), **under("text_encoders.clip_l.transformer.", clip(lp)),
            **under("text_encoders.clip_g.transformer.", clip(g))}, text_encoder=lp, text_encoder_2=g)
    wan = keep("vae", sd_of(diffusers.AutoencoderKLQwenImage))
    from diffusers.loaders import single_file_utils
    back = single_file_utils.convert_wan_vae_to_diffusers(vae_wan(wan, {"num_res_blocks": 2}))
    assert {k: t.shape for k, t in back.items()} == {k: t.shape for k, t in wan.items()}
    put("qwen-image", {**under("model.diffusion_model.", keep("transformer", sd_of(
        diffusers.QwenImageTransformer2DModel))),
                       **under("vae.", vae_wan(wan, {"num_res_blocks": 2})),
                       **under("text_encoders.qwen25_7b.transformer.model.", q2)}, text_encoder=q2)


def pack(out):
    """Large files as .xz: bfloat16 weights shrink by a third."""
    for d, _, files in os.walk(out):
        for f in files:
            path = os.path.join(d, f)
            if f.endswith((".safetensors", ".gguf")):
                with open(path, "rb") as src, lzma.open(path + ".xz", "wb", preset=9) as dst:
                    shutil.copyfileobj(src, dst)
                os.remove(path)


def main():
    golden, out = sys.argv[1:3]
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    make_sd(golden, out)
    make_dit(golden, out)
    if "--shapes" in sys.argv:
        shapes(out)
    if "--check" in sys.argv:
        check(golden, out)
    pack(out)


if __name__ == "__main__":
    main()
