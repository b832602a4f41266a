#!/usr/bin/env python3
"""Perplexity of a fixed text by weight type, against the reference implementation on the same weights dequantised.

    perplexity.py [--layers N] [--record FILE] STEPD MODEL [TYPE ...]     (numpy, gguf, torch, transformers, xllamacpp)

MODEL: a GGUF file of the kinds of ARCHS. A TYPE in capitals is a GGUF file made of it: by `stepd quantize`, or, where stepd only
reads the type, by llama.cpp's quantiser (ggml_types.py); the gguf package dequantises it. FILE is the file itself. One in small
letters is a folder in the layout of another tool, made by layouts.py of the model's bf16 values, which says what its values
are. These two quantise the first --layers layers (6): the quantisers take long, and a model all in two bits says
nothing any more; the other layers stay as they are.

`stepd serve` gives the log-probability of every token of the text (LICENSE, its first 2400 characters), in the default precision and with
--precision f32; transformers the same in float32. Prints a table; exit 1 when a type is off by more than 1 %. --record adds
the reference's perplexities to a file of tests/data/real, which test_perplexity.py holds the server to."""
import argparse
import http.client
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "models"))
import ggml_types  # noqa: E402
import layouts  # noqa: E402

WRITTEN = ["F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4"]
ARCHS = ["llama", "qwen2"]
N_CHARS = 2400


def post(port, path, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    data = r.read()
    if r.status != 200:
        raise RuntimeError(data.decode())
    return json.loads(data)


def ours(stepd, path, text, port, extra):
    p = subprocess.Popen([stepd, "serve", "m=" + path, "--threads", "1", "--port", str(port), *extra], stderr=subprocess.DEVNULL)
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
        assert len(lp) == len(ids) - 1
        return ids, math.exp(-sum(lp) / len(lp))
    finally:
        p.terminate()
        p.wait()


class Reference:
    def __init__(self, file):
        self.config = AutoConfig.from_pretrained(os.path.dirname(file), gguf_file=os.path.basename(file))
        if self.config.model_type not in ARCHS:
            raise SystemExit(f"{self.config.model_type}: its tensors' names are not known here")
        self.model = AutoModelForCausalLM.from_config(self.config).float().eval()
        self.slots, self.seen = self.model.state_dict(), {}

    def set(self, name, w):
        self.slots[name].copy_(torch.from_numpy(np.array(w, np.float32)))

    def perplexity(self, ids):
        with torch.no_grad():
            t = torch.tensor([ids])
            lp = torch.log_softmax(self.model(t).logits[0, :-1].double(), -1)
        return math.exp(-lp.gather(1, t[0, 1:, None]).mean().item())

    def of_gguf(self, path):
        """The file's values under the folder's names, heads of Llama's queries and keys in the folder's order."""
        names = set()
        for t in gguf.GGUFReader(path).tensors:
            name, short = layouts.hub_name(t.name)
            names.add(name)
            same = (int(t.tensor_type), zlib.crc32(t.data.tobytes()))
            if self.seen.get(name) == same:
                continue
            self.seen[name] = same
            w = gguf.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)])
            if self.config.model_type == "llama":
                w = layouts.hub_rows(w, short, self.config.num_attention_heads, self.config.num_key_value_heads)
            self.set(name, w)
        self.tie(names)
        missing = [n for n in self.slots if n not in names and n != "lm_head.weight"]
        assert not missing, missing

    def tie(self, names):
        if "lm_head.weight" not in names:
            self.slots["lm_head.weight"].copy_(self.slots["model.embed_tokens.weight"])

    def of_dict(self, weights):
        self.seen = {}
        for name, w in weights.items():
            self.set(name, w)
        self.tie(weights)


class Maker:
    """Makes the model in a type and gives the reference its values."""

    def __init__(self, stepd, file, layers, tmp):
        self.stepd, self.file, self.layers, self.tmp = stepd, os.path.abspath(file), layers, tmp
        self.ref, self.llama = Reference(self.file), None

    def make(self, kind):
        path = os.path.join(self.tmp, kind)
        if kind in layouts.CASES:
            self.llama = self.llama or layouts.Llama(self.file)
            self.ref.of_dict(self.llama.write(kind, path, self.layers))
            return path, os.path.getsize(os.path.join(path, "model.safetensors"))
        path += ".gguf"
        if kind == "FILE":
            path = self.file
        elif kind in WRITTEN:
            subprocess.run([self.stepd, "quantize", "--quiet", self.file, path, kind], check=True)
        else:
            n, size = ggml_types.retype(self.file, path, kind, self.layers)
            print(f"{kind}: {n} matrices of {size / 1e6:.1f} million weights", file=sys.stderr)
        self.ref.of_gguf(path)
        return path, os.path.getsize(path)

    def drop(self, path):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif path != self.file:
            os.remove(path)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--layers", type=int, default=6)
    a.add_argument("--record")
    a.add_argument("stepd")
    a.add_argument("model")
    a.add_argument("types", nargs="*", default=WRITTEN + ggml_types.TYPES + list(layouts.CASES))
    a = a.parse_args()
    with open(os.path.join(TOP, "LICENSE")) as f:
        text = f.read()[:N_CHARS]
    bad, record = 0, {"ids": [], "types": {}}
    if a.record and os.path.exists(a.record):
        with open(a.record) as f:
            record = json.load(f)
    with tempfile.TemporaryDirectory() as tmp:
        maker = Maker(a.stepd, a.model, a.layers, tmp)
        print("| type | MiB | default precision | `--precision f32` | transformers | largest difference |\n| --- | --- | --- | --- | --- | --- |",
              flush=True)
        for i, kind in enumerate(a.types):
            path, size = maker.make(kind)
            ids, x = ours(a.stepd, path, text, 18300 + 2 * i, [])
            _, y = ours(a.stepd, path, text, 18301 + 2 * i, ["--precision", "f32"])
            r = maker.ref.perplexity(ids)
            off = max(abs(x / r - 1), abs(y / r - 1))
            bad |= not off <= 0.01
            print(f"| {kind} | {size / 2**20:.1f} | {x:.4f} | {y:.4f} | {r:.4f} | {100 * off:.3f} % |", flush=True)
            maker.drop(path)
            record["ids"], record["types"][kind] = ids, round(r, 6)
            if a.record:
                with open(a.record, "w") as f:
                    json.dump(record, f)
    return bad


if __name__ == "__main__":
    sys.exit(main())
