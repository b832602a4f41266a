#!/usr/bin/env python3
"""Makes tests/data/encode's cases of decoders, T5 and dense layers, and of GGUF files: weights (fixed seed) and vectors.

    record_embed.py ORACLE_DIR     (torch, transformers, safetensors, gguf)

ORACLE_DIR/{qwen3,qwen2,mistral-swa,t5-encoder,bert,nomic_bert} hold tiny random models in the hub's layout. A golden has
two texts of ids, the second shorter, as input_ids and attention_mask [2, 20], and "embed": what transformers 5.24 gives in
float32 with the case's pooling, dense layers after it, L2-normalised. Each text is run alone."""
import lzma
import os
import shutil
import sys

import gguf
import torch
import transformers
from safetensors.numpy import save
from safetensors.torch import load_file

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "encode")


def texts(n, m):
    g = torch.Generator().manual_seed(11)
    ids = torch.zeros(2, 20, dtype=torch.int64)
    mask = torch.zeros(2, 20, dtype=torch.int64)
    for r, k in enumerate((n, m)):
        ids[r, :k] = torch.randint(3, 512, (k,), generator=g)
        mask[r, :k] = 1
    return ids, mask


def states(model, ids, causal=True):
    n = ids.shape[1]
    args = {} if causal else {"attention_mask": torch.zeros(1, 1, n, n)}
    with torch.no_grad():
        return model(input_ids=ids, **args).last_hidden_state[0]


def dense(seed, n_in, n_out, bias):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(n_out, n_in, generator=g) / n_in ** 0.5
    return w, torch.randn(n_out, generator=g) * 0.1 if bias else None


def write(path, data):
    with lzma.open(path + ".xz", "wb", preset=9) as f:
        f.write(data)


def record(case, model, pool, layers=(), causal=True, lengths=(20, 13)):
    """layers: (weight, bias, tanh) of dense layers, written as N_Dense/model.safetensors."""
    out = os.path.join(OUT, case)
    os.makedirs(out, exist_ok=True)
    ids, mask = texts(*lengths)
    rows = []
    for r in range(2):
        h = states(model, ids[r:r + 1, :int(mask[r].sum())], causal)
        v = h[-1] if pool == "last" else h[0] if pool == "cls" else h.mean(0)
        for w, b, tanh in layers:
            v = w @ v if b is None else w @ v + b
            v = torch.tanh(v) if tanh else v
        rows.append(v / v.norm())
    write(os.path.join(out, "golden.safetensors"),
          save({"input_ids": ids.numpy(), "attention_mask": mask.numpy(), "embed": torch.stack(rows).numpy()}))
    for i, (w, b, tanh) in enumerate(layers):
        sub = os.path.join(out, f"{i + 2}_Dense")
        os.makedirs(sub, exist_ok=True)
        act = "activation.Tanh" if tanh else "linear.Identity"
        with open(os.path.join(sub, "config.json"), "w") as f:
            f.write('{"in_features": %d, "out_features": %d, "bias": %s, "activation_function": "torch.nn.modules.%s"}\n'
                    % (w.shape[1], w.shape[0], "false" if b is None else "true", act))
        t = {"linear.weight": w.numpy()}
        if b is not None:
            t["linear.bias"] = b.numpy()
        with open(os.path.join(sub, "model.safetensors"), "wb") as f:
            f.write(save(t))
    return out


NAMES = {
    "bert": ("encoder.layer.%d.", {
        "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm"}, {
        "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"}),
    "nomic-bert": ("encoder.layers.%d.", {
        "embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
        "emb_ln": "token_embd_norm"}, {
        "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc11": "ffn_up",
        "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm"}),
    "qwen3": ("layers.%d.", {"embed_tokens": "token_embd", "norm": "output_norm"}, {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}),
}


def writer(path, arch, cfg, pooling):
    """With the metadata of llama.cpp's converter."""
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_context_length(cfg.max_position_embeddings)
    w.add_embedding_length(cfg.hidden_size)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(cfg.num_attention_heads)
    w.add_uint32(arch + ".pooling_type", pooling)
    if arch == "qwen3":
        w.add_head_count_kv(cfg.num_key_value_heads)
        w.add_key_length(cfg.head_dim)
        w.add_layer_norm_rms_eps(cfg.rms_norm_eps)
        w.add_rope_freq_base(cfg.rope_parameters["rope_theta"])
    else:
        w.add_layer_norm_eps(cfg.layer_norm_eps)
        w.add_causal_attention(False)
        if arch == "nomic-bert":
            w.add_rope_freq_base(cfg.rope_parameters["rope_theta"])
    return w


def finish(w, path):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with open(path, "rb") as f:
        write(path, f.read())
    os.remove(path)


def write_gguf(case, arch, src, cfg, pooling):
    """The model as llama.cpp's converter names it."""
    path = os.path.join(OUT, case, "model.gguf")
    w = writer(path, arch, cfg, pooling)
    layer, outer, inner = NAMES[arch]
    table = {k + s: v + s for k, v in outer.items() for s in (".weight", ".bias")}
    for i in range(cfg.num_hidden_layers):
        table |= {layer % i + k + s: f"blk.{i}.{v}{s}" for k, v in inner.items() for s in (".weight", ".bias")}
    for name, t in load_file(os.path.join(src, "model.safetensors")).items():
        name = name.removeprefix("bert.").removeprefix("nomic_bert.").removeprefix("model.")
        if name in table:
            w.add_tensor(table[name], t.float().numpy())
    finish(w, path)


def main():
    src = sys.argv[1]
    load = lambda case, cls=transformers.AutoModel: cls.from_pretrained(
        os.path.join(src, case), dtype=torch.float32, attn_implementation="eager").eval()
    qwen3, bert, nomic = load("qwen3"), load("bert"), load("nomic_bert")
    record("qwen3-embed", qwen3, "last")
    record("qwen2-embed", load("qwen2"), "mean", causal=False)
    record("mistral-embed", load("mistral-swa"), "last", lengths=(8, 5))
    w1, w2 = dense(1, 64, 48, True), dense(2, 48, 40, False)
    record("bert-dense", bert, "cls", [(*w1, True), (*w2, False)])
    out = record("t5-embed", load("t5-encoder", transformers.T5EncoderModel), "mean", [(*dense(3, 64, 32, False), False)])
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(os.path.join(src, "t5-encoder", name), os.path.join(out, name))
    record("bert-gguf", bert, "cls")
    write_gguf("bert-gguf", "bert", os.path.join(src, "bert"), bert.config, 2)
    record("nomic-gguf", nomic, "mean")
    write_gguf("nomic-gguf", "nomic-bert", os.path.join(src, "nomic_bert"), nomic.config, 1)
    write_gguf("qwen3-embed", "qwen3", os.path.join(src, "qwen3"), qwen3.config, 3)


if __name__ == "__main__":
    main()
