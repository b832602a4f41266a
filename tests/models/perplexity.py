#!/usr/bin/env python3
"""Perplexity of a fixed text by weight type, against the reference implementation on the same weights dequantised.

    perplexity.py STEPD FOLDER [TYPE ...]     (numpy, gguf, safetensors, torch, transformers)

FOLDER: a plain Llama in the hub's layout, with its tokenizer. A TYPE in capitals is written by `stepd quantize FOLDER`, its
tensors dequantised by the gguf package; one in small letters is a layout of other tools, made by record_quantised.py (of the
first LAYERS layers: its plain loops take long), which says what its values are. `stepd serve` gives the log-probability of every token of the text (LICENSE, its first 2400
characters), in the default precision and with --precision f32; transformers the same in float32. Prints a table; exit 1 when
a type is off by more than 1 %."""
import http.client
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "models"))
import record_quantised  # noqa: E402

TYPES = ["F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4", "TQ2_0", "TQ1_0"]
LAYERS = 6
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def post(port, path, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    data = r.read()
    if r.status != 200:
        raise RuntimeError(data.decode())
    return json.loads(data)


def ours(stepd, path, text, port, extra):
    p = subprocess.Popen([stepd, "serve", "m=" + path, "--port", str(port), *extra], stderr=subprocess.DEVNULL)
    try:
        for _ in range(900):
            try:
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                c.request("GET", "/ready")
                if c.getresponse().status == 200:
                    break
            except OSError:
                pass
            time.sleep(0.2)
        ids = post(port, "/tokenize", {"prompt": text})["tokens"]
        o = post(port, "/v1/completions", {"model": "m", "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 0,
                                           "temperature": 0})
        lp = [x for x in o["choices"][0]["logprobs"]["token_logprobs"][:len(ids)] if x is not None]
        return ids, math.exp(-sum(lp) / len(lp))
    finally:
        p.terminate()
        p.wait()


class Reference:
    def __init__(self, folder):
        from transformers import AutoConfig, AutoModelForCausalLM
        self.config = AutoConfig.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_config(self.config).float().eval()

    def perplexity(self, weights, ids):
        self.model.load_state_dict(weights, strict=False)
        with torch.no_grad():
            t = torch.tensor([ids])
            lp = torch.log_softmax(self.model(t).logits[0, :-1].double(), -1)
        return math.exp(-lp.gather(1, t[0, 1:, None]).mean().item())

    def of_gguf(self, path):
        """The file's values under the folder's names, heads of queries and keys in the folder's order."""
        import gguf
        out = {}
        for t in gguf.GGUFReader(path).tensors:
            m = re.match(r"(?:blk\.(\d+)\.)?(\w+)\.weight$", t.name)
            w = gguf.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)]).astype(np.float32)
            if m.group(2) in ("attn_q", "attn_k"):
                n = self.config.num_attention_heads if m.group(2) == "attn_q" else self.config.num_key_value_heads
                w = w.reshape(n, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
            name = NAMES[m.group(2)] + ".weight"
            out[f"model.layers.{m.group(1)}.{name}" if m.group(1) else name] = torch.from_numpy(np.array(w))
        out["lm_head.weight"] = out["model.embed_tokens.weight"]
        return out


def layout(folder, case, to):
    """The folder in another tool's layout; its values."""
    conf, make = record_quantised.CASES[case]
    rng, stored, plain = np.random.default_rng(1), {}, {}
    for name, w in load_file(os.path.join(folder, "model.safetensors")).items():
        m = re.search(r"layers\.(\d+)\.", name)
        if w.ndim == 2 and m and int(m.group(1)) < LAYERS:
            plain[name] = torch.from_numpy(make(name[:-len(".weight")], w.float().numpy(), stored, rng).astype(np.float32))
        else:
            stored[name] = w
            plain[name] = w.float()
    plain["lm_head.weight"] = plain["model.embed_tokens.weight"]
    shutil.copytree(folder, to, ignore=lambda d, names: [n for n in names if n.endswith(".safetensors")])
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(to, "config.json"), "w") as f:
        json.dump({**config, "quantization_config": conf}, f)
    save_file({k: v.clone().contiguous() for k, v in stored.items()}, os.path.join(to, "model.safetensors"))
    return plain


def main():
    stepd, folder, types = sys.argv[1], sys.argv[2], sys.argv[3:] or TYPES + list(record_quantised.CASES)
    with open(os.path.join(TOP, "LICENSE")) as f:
        text = f.read()[:2400]
    bad, ref = 0, Reference(folder)
    print("| type | MiB | default precision | `--precision f32` | transformers | largest difference |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    for i, t in enumerate(types):
        with tempfile.TemporaryDirectory() as tmp:
            path = os.path.join(tmp, t)
            if t.isupper():
                path += ".gguf"
                subprocess.run([stepd, "quantize", "--quiet", folder, path, t], check=True)
                weights, size = ref.of_gguf(path), os.path.getsize(path)
            else:
                weights = layout(folder, t, path)
                size = os.path.getsize(os.path.join(path, "model.safetensors"))
            ids, a = ours(stepd, path, text, 18300 + 2 * i, [])
            _, b = ours(stepd, path, text, 18301 + 2 * i, ["--precision", "f32"])
            r = ref.perplexity(weights, ids)
            off = max(abs(a / r - 1), abs(b / r - 1))
            bad |= not off <= 0.01
            print(f"| {t} | {size / 2**20:.1f} | {a:.4f} | {b:.4f} | {r:.4f} | {100 * off:.3f} % |", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
