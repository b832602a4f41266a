#!/usr/bin/env python3
"""Records tests/data/smollm2: what the reference implementation answers for the default chat model.

    python record_goldens.py MODEL.gguf PROMPTS.jsonl OUT_DIR

Needs torch 2.13.0, transformers 5.24.0, accelerate, gguf, numpy. The weights of the GGUF file are dequantised to f32
and run with f32 arithmetic, eager attention. PROMPTS.jsonl: one object a line with `turns`.

greedy.json.xz  chat prompts with their ids, greedy ids (at most 64, cut at the end-of-turn token) and the
                smallest gap between the best two logits on the way. A prompt whose gap is under MIN_GAP is
                left out: f32 rounding in another order could tip it.
teacher.bin.xz  texts run once through the model. Little-endian: "STG1", u32 texts; for each u32 n, i32 ids[n], then n
                positions of f32 logsumexp, f32 logits of the TOP best, u16 ids of them.
"""
import json, lzma, os, struct, sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
import transformers as tr

N_PROMPT, N_NEW, MIN_GAP = 24, 64, 4e-3
N_TEXT, N_TOK, TOP = 24, 64, 64
FRANCE = "What is the capital of France?"


def greedy(model, ids, eos):
    """(new ids, smallest gap); the eos token is kept as the last one."""
    new, gap, past, x = [], float("inf"), None, torch.tensor([ids])
    while len(new) < N_NEW:
        o = model(x, past_key_values=past, use_cache=True)
        past = o.past_key_values
        v, k = torch.topk(o.logits[0, -1].float(), 2)
        gap = min(gap, float(v[0] - v[1]))
        new.append(int(k[0]))
        if new[-1] == eos:
            break
        x = k[:1][None]
    return new, gap


def chat_ids(tok, text):
    s = tok.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
    return tok(s, add_special_tokens=False).input_ids


def record_greedy(model, tok, texts):
    eos, rows = tok.convert_tokens_to_ids("<|im_end|>"), []
    for text in [FRANCE] + texts:
        ids = chat_ids(tok, text)
        if len(ids) > 160:
            continue
        new, gap = greedy(model, ids, eos)
        print(len(rows), len(ids), len(new), round(gap, 5), repr(tok.decode(new))[:90], flush=True)
        if gap < MIN_GAP and text != FRANCE:
            continue
        rows.append(dict(prompt=text, ids=ids, greedy=new, gap=round(gap, 5), text=tok.decode(new, skip_special_tokens=True)))
        if len(rows) == N_PROMPT + 1:
            break
    return rows


def record_teacher(model, tok, texts):
    out, n = [], 0
    for text in texts:
        ids = tok(text, add_special_tokens=False).input_ids[:N_TOK]
        if len(ids) < N_TOK:
            continue
        lo = model(torch.tensor([ids])).logits[0].float()
        out.append(struct.pack("<I", len(ids)) + np.array(ids, "<i4").tobytes())
        v, k = torch.topk(lo, TOP)
        lse = torch.logsumexp(lo.double(), -1)
        for i in range(len(ids)):
            out.append(struct.pack("<f", float(lse[i])) + v[i].numpy().astype("<f4").tobytes() + k[i].numpy().astype("<u2").tobytes())
        n += 1
        if n == N_TEXT:
            break
    return b"STG1" + struct.pack("<I", n) + b"".join(out)


def main():
    path, prompts, out = sys.argv[1:4]
    torch.set_num_threads(int(os.environ.get("ORACLE_THREADS", "1")))
    d, f = os.path.dirname(os.path.abspath(path)), os.path.basename(path)
    tok = tr.AutoTokenizer.from_pretrained(d, gguf_file=f)
    model = tr.AutoModelForCausalLM.from_pretrained(d, gguf_file=f, dtype=torch.float32, attn_implementation="eager").eval()
    texts = [json.loads(x)["turns"][0] for x in open(prompts)]
    os.makedirs(out, exist_ok=True)
    with torch.no_grad():
        t = record_teacher(model, tok, [x for x in texts if len(x) > 300])
        with lzma.open(os.path.join(out, "teacher.bin.xz"), "wb", preset=9) as h:
            h.write(t)
        rows = record_greedy(model, tok, [x for x in texts if len(x) < 400])
    with lzma.open(os.path.join(out, "greedy.json.xz"), "wt", preset=9) as h:
        json.dump(dict(torch=torch.__version__, transformers=tr.__version__, min_gap=MIN_GAP, rows=rows), h, indent=0)
        h.write("\n")


if __name__ == "__main__":
    main()
