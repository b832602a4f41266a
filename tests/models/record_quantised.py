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

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "models"))
import make_folders  # noqa: E402
from layouts import CASES, FP4, Raw, t  # noqa: E402

# Latent attention, whose kv_b_proj is read turned: every layout that such a matrix may come in. Blocks of scales are 32 x 32
# (heads of 32 + 32 rows of it: as 128 x 128 in the published weights), others are multiplied out.
MLA = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
           max_position_embeddings=256, q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
           n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32, first_k_dense_replace=1, n_group=1,
           topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True)
MLA_CASES = {"q-mla-fp8": "q-fp8-block", "q-mla-fp8-channel": "q-fp8-channel", "q-mla-gptq": "q-gptq4-act", "q-mla-awq": "q-awq",
             "q-mla-ct4": "q-ct-int4", "q-mla-int8": "q-ct-int8", "q-mla-nvfp4": "q-nvfp4", "q-mla-nf4": "q-bnb-nf4"}


def tensor(v):
    if not isinstance(v, Raw):
        return torch.from_numpy(np.array(v))
    words = torch.from_numpy(v.words.view(np.int16) if v.dtype == "BF16" else v.words)
    return words.view({"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}[v.dtype])


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
            plain[name] = tensor(quantise(name[:-len(".weight")], w.float().numpy(), stored, rng).astype(np.float32))
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
        plain[name] = convert_moe_packed_tensors(tensor(stored[name + "_blocks"]), tensor(stored[name + "_scales"]), dtype=torch.float32)
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
            f.write(save({k: (v if isinstance(v, torch.Tensor) else tensor(v)).clone().contiguous() for k, v in data.items()}))
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
                plain[name] = tensor(make(name[:-len(".weight")], w.float().numpy(), stored, rng).astype(np.float32))
            else:
                stored[name] = w.bfloat16()
                plain[name] = stored[name].float()
        write(case, config, conf, stored, plain, golden)


if __name__ == "__main__":
    main()
