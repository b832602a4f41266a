#!/usr/bin/env python3
"""Makes tests/data/encode's GGUF encoders in K types: BERT in each, nomic-BERT with one for each kind of matrix.

    record_embed_k.py     (numpy, torch, transformers, safetensors, gguf)

Blocks are of random bits (fixed seed) with small scales; the reference runs what gguf's decoders make of them, in float32.
Goldens as record_embed.py has them."""
import os
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import record_embed as base  # noqa: E402

WIDTH = 256
# bytes of a block, where its f16 factors are, and how large they are
K = {"Q2_K": (84, {80: 4e-3, 82: 6e-3}), "Q3_K": (110, {108: 1e-3}), "Q4_K": (144, {0: 2e-4, 2: 1.5e-3}), "Q5_K": (176, {0: 1e-4, 2: 1.5e-3}),
     "Q6_K": (210, {208: 4e-5})}


def blocks(rng, kind, rows, cols):
    size, factors = K[kind]
    b = rng.integers(0, 256, (rows * cols // 256, size), np.uint8)
    for at, f in factors.items():
        b[:, at:at + 2] = np.frombuffer(np.float16(f).tobytes(), np.uint8)
    return b.reshape(rows, -1)


def make(case, arch, model, pooling, kind_of):
    rng, cfg = np.random.default_rng(5), model.config
    os.makedirs(os.path.join(base.OUT, case), exist_ok=True)
    layer, outer, inner = base.NAMES[arch]
    table = {k + s: v + s for k, v in outer.items() for s in (".weight", ".bias")}
    for i in range(cfg.num_hidden_layers):
        table |= {layer % i + k + s: f"blk.{i}.{v}{s}" for k, v in inner.items() for s in (".weight", ".bias")}
    tensors = {}
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)  # the names of the hub's files
        file = os.path.join(tmp, "model.safetensors")
        state = load_file(file)
        quantised(state, tensors, table, rng, kind_of)
        save_file(state, file, metadata={"format": "pt"})
        model = type(model).from_pretrained(tmp, dtype=torch.float32, attn_implementation="eager").eval()
    base.record(case, model, "cls" if pooling == 2 else "mean")
    path = os.path.join(base.OUT, case, "model.gguf")
    w = base.writer(path, arch, cfg, pooling)
    for name, (data, kind) in tensors.items():
        w.add_tensor(name, data, raw_dtype=kind)
    base.finish(w, path)


def quantised(state, tensors, table, rng, kind_of):
    """state: what its matrices' blocks mean; tensors: those of the GGUF file."""
    for name in sorted(state):
        plain = name.removeprefix("bert.").removeprefix("nomic_bert.")
        if plain not in table:
            continue
        to, t = table[plain], state[name]
        if t.ndim == 2 and "position" not in to and "token_types" not in to:
            kind = gguf.GGMLQuantizationType[kind_of(to)]
            b = blocks(rng, kind.name, *t.shape)
            state[name] = torch.from_numpy(gguf.dequantize(b, kind).reshape(t.shape).astype(np.float32))
            tensors[to] = (b, kind)
        else:
            tensors[to] = (t.numpy(), None)


def main():
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 512,
             "max_position_embeddings": 64, "initializer_range": 0.05, "attn_implementation": "eager"}
    for kind in K:
        torch.manual_seed(3)
        bert = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False).float().eval()
        make("bert-" + kind.lower(), "bert", bert, 2, lambda name, kind=kind: kind)
    torch.manual_seed(4)
    cfg = transformers.AutoConfig.for_model("nomic_bert", **sizes)
    nomic = transformers.AutoModel.from_config(cfg).float().eval()
    kinds = {"token_embd": "Q3_K", "attn_qkv": "Q4_K", "attn_output": "Q5_K", "ffn_up": "Q6_K", "ffn_gate": "Q2_K", "ffn_down": "Q4_K"}
    make("nomic-k", "nomic-bert", nomic, 1, lambda name: kinds[name.split(".")[-2]])


if __name__ == "__main__":
    main()
