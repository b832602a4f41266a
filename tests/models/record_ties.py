#!/usr/bin/env python3
"""Makes tests/data/folders/deepseek_v32-ties: a DeepSeek V3.2 of four index heads, whose index gives equal scores at the cut.

    record_ties.py ORACLE_DIR     (torch, transformers, safetensors)

A token that no head finds has the score 0 (ReLU), so with few heads several tokens tie; torch.topk promises nothing about
which of them it takes. Of ORACLE_DIR/deepseek_v32 the first such row is 13: the reference's own results are one of several right
ones from there on, as later rows see what row 13 made of it. Here the reference runs with the rule of op_index in torch.topk's
place (of equal scores the earlier position), for all rows; rows before the first tie are held to the results as supplied."""
import lzma
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(TOP, "tests", "data", "folders", "deepseek_v32-ties")
CASE, NEW = "deepseek_v32", 16
whole, ties = torch.Tensor.topk, []


def topk(self, k, dim=-1, **kw):
    """Of index scores [1, rows, positions]: the earlier of equals; anything else as it was."""
    if self.ndim != 3 or self.shape[-1] != self.shape[-2]:
        return whole(self, k, dim=dim, **kw)
    s, i = torch.sort(self, dim=-1, descending=True, stable=True)
    if k < s.shape[-1]:
        ties.extend(r for r in range(k, s.shape[1]) if s[0, r, k - 1] == s[0, r, k])
    return torch.return_types.topk((s[..., :k], i[..., :k]))


@torch.no_grad()
def main():
    src = os.path.join(sys.argv[1], CASE)
    model = AutoModelForCausalLM.from_pretrained(src, dtype=torch.float32, attn_implementation="eager").eval()
    given = load_file(os.path.join(src, "golden.safetensors"))
    golden = {k: given[k] for k in ("input_ids", "short_ids")}
    assert torch.equal(model(given["input_ids"], use_cache=False).logits[0], given["logits"])
    torch.Tensor.topk = topk
    for name in ("input", "short"):
        ids = golden[name + "_ids"]
        golden["logits" if name == "input" else "short_logits"] = model(ids, use_cache=False).logits[0].contiguous()
        if name == "input":
            first = min(ties)
            same = (golden["logits"] - given["logits"]).abs().amax(1) < 1e-5
            assert same[:first].all() and not same[first:].all() and first == 13, (first, same)
    ids, out, least = given["input_ids"], [], 1e9
    for _ in range(NEW):
        last = model(ids, use_cache=False).logits[0, -1]
        top = whole(last, 2)
        least = min(least, float(top.values[0] - top.values[1]))
        out.append(int(top.indices[0]))
        ids = torch.cat([ids, top.indices[:1].reshape(1, 1)], 1)
    assert least > 0.02, least
    golden["greedy_ids"] = torch.tensor(out)
    os.makedirs(OUT, exist_ok=True)
    shutil.copyfile(os.path.join(src, "config.json"), os.path.join(OUT, "config.json"))
    with open(os.path.join(src, "model.safetensors"), "rb") as f:
        weights = f.read()
    for name, data in (("model", weights), ("golden", save(golden))):
        with lzma.open(os.path.join(OUT, name + ".safetensors.xz"), "wb", preset=9) as f:
            f.write(data)
    print(f"rows with ties: {sorted(set(ties))}; least margin {least:.3f}")


main()
