#!/usr/bin/env python3
"""Perplexity of a fixed text by weight type, against the reference implementation on the same files.

    perplexity.py STEPD MODEL.gguf [TYPE ...]     (reference: torch, transformers, gguf; else --ours)

Writes MODEL again in each type with `stepd quantize`, asks `stepd serve` for the log-probability of every token of the
text (LICENSE, its first 2400 characters), and lets transformers compute the same from the file's dequantised weights in
float32. Prints a table; exit 1 when a type is off by more than 1 %. --ours: without the reference."""
import http.client
import json
import math
import os
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TYPES = ["BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4"]


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
        for _ in range(600):
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


def reference(path, ids):
    import torch
    from transformers import AutoModelForCausalLM
    m = AutoModelForCausalLM.from_pretrained(os.path.dirname(path), gguf_file=os.path.basename(path),
                                             dtype=torch.float32).eval()
    with torch.no_grad():
        t = torch.tensor([ids])
        lp = torch.log_softmax(m(t).logits[0, :-1].double(), -1)
    return math.exp(-lp.gather(1, t[0, 1:, None]).mean().item())


def main():
    args = [a for a in sys.argv[1:] if a != "--ours"]
    stepd, model, types = args[0], args[1], args[2:] or TYPES
    with open(os.path.join(TOP, "LICENSE")) as f:
        text = f.read()[:2400]
    bad = 0
    print(f"{'type':<8} {'MiB':>7} {'stepd':>9} {'f32':>9} {'reference':>9}  difference")
    with tempfile.TemporaryDirectory() as tmp:
        for i, t in enumerate(types):
            path = os.path.join(tmp, t + ".gguf")
            subprocess.run([stepd, "quantize", "--quiet", model, path, t], check=True)
            ids, a = ours(stepd, path, text, 18300 + 2 * i, [])
            _, b = ours(stepd, path, text, 18301 + 2 * i, ["--precision", "f32"])
            line = f"{t:<8} {os.path.getsize(path) / 2**20:7.1f} {a:9.4f} {b:9.4f}"
            if "--ours" not in sys.argv:
                r = reference(path, ids)
                off = max(abs(a / r - 1), abs(b / r - 1))
                bad |= not off <= 0.01
                line += f" {r:9.4f}  {100 * off:.3f} %"
            print(line, flush=True)
            os.remove(path)
    return bad


sys.exit(main())
