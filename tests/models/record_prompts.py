#!/usr/bin/env python3
"""Records tests/data/smollm2/prompts.json.xz: how the reference implementation scores prompts, and what prompts it makes of
conversations.

    python record_prompts.py MODEL.gguf OUT_DIR

Needs torch 2.13.0, transformers 5.24.0, accelerate, gguf. The weights of the GGUF file are dequantised to f32 and run with f32
arithmetic, eager attention. `scores`: texts with their ids, the log-probability of each token but the first, the best TOP
tokens at its place, and the greedy tokens that follow with theirs. `chats`: conversations, arguments of apply_chat_template, and
the text that it gives."""
import json
import lzma
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers as tr

N_NEW, TOP = 4, 3
TEXTS = ["The capital of France is Paris, and the capital of Italy is",
         "def add(a, b):\n    \"\"\"Sum of two numbers.\"\"\"\n    return",
         "caf\u00e9 na\u00efve \u2014 \U0001F600 \u4f60\u597d",
         "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
         "Once upon a time, in a small village by the sea, there lived an old fisherman who had never once in his life"]
U = {"role": "user", "content": "Name a colour."}
A = {"role": "assistant", "content": "The colour is"}
CHATS = [([U], {"add_generation_prompt": True}),
         ([U], {"add_generation_prompt": False}),
         ([{"role": "system", "content": "Be brief."}, U], {"add_generation_prompt": True}),
         ([U, A], {"continue_final_message": True}),
         ([U, {**A, "content": "The colour is "}], {"continue_final_message": True}),
         ([U, {**A, "content": "  The colour is\n\n"}], {"continue_final_message": True}),
         ([U, {**A, "content": ""}], {"continue_final_message": True}),
         ([U, {**A, "content": "user"}], {"continue_final_message": True}),
         ([U, A, U, A], {"continue_final_message": True}),
         ([U], {"continue_final_message": True}),
         ([U, A], {"add_generation_prompt": True}),
         ([U, A], {"add_generation_prompt": False})]


def score(model, tok, text):
    ids = tok(text, add_special_tokens=False).input_ids
    lp = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    new, rows = list(ids), []
    for i in range(1, len(ids)):
        v, k = torch.topk(lp[i - 1], TOP)
        rows.append(dict(logprob=round(float(lp[i - 1, ids[i]]), 5), top=[[int(a), round(float(b), 5)] for a, b in zip(k, v)]))
    out = []
    for _ in range(N_NEW):
        last = torch.log_softmax(model(torch.tensor([new])).logits[0, -1].double(), -1)
        v, k = torch.topk(last, 2)
        new.append(int(k[0]))
        out.append(dict(id=int(k[0]), logprob=round(float(v[0]), 5), gap=round(float(v[0] - v[1]), 5)))
    return dict(text=text, ids=ids, rows=rows, new=out)


def main():
    path, out = sys.argv[1:3]
    torch.set_num_threads(int(os.environ.get("ORACLE_THREADS", "1")))
    d, f = os.path.dirname(os.path.abspath(path)), os.path.basename(path)
    tok = tr.AutoTokenizer.from_pretrained(d, gguf_file=f)
    model = tr.AutoModelForCausalLM.from_pretrained(d, gguf_file=f, dtype=torch.float32, attn_implementation="eager").eval()
    chats = []
    for messages, kw in CHATS:
        text = tok.apply_chat_template(messages, tokenize=False, **kw)
        chats.append(dict(messages=messages, kw=kw, text=text, ids=tok(text, add_special_tokens=False).input_ids))
    with torch.no_grad():
        scores = [score(model, tok, t) for t in TEXTS]
    with lzma.open(os.path.join(out, "prompts.json.xz"), "wt", preset=9) as h:
        json.dump(dict(torch=torch.__version__, transformers=tr.__version__, scores=scores, chats=chats), h, indent=0)
        h.write("\n")
    for s in scores:
        print(len(s["ids"]), s["rows"][:2], s["new"])
    for c in chats:
        print(c["kw"], repr(c["text"]))


if __name__ == "__main__":
    main()
