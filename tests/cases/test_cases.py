#!/usr/bin/env python3
"""Runs the bug-report cases against the real daemon: without a key, with a key and an allowed origin, and with a model that
wants its begin-of-text token before everything. Every case must pass; one that needs a model which is not there is skipped."""
import json
import lzma
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import SLOW, SMOLLM2, STEPD, TOP, Daemon  # noqa: E402

MISSING = {}
HERE = os.path.join(TOP, "tests", "cases")
MINILM = os.path.join(os.path.dirname(SMOLLM2), "all-minilm-l6-v2")
if not os.path.isdir(MINILM):
    MISSING["C51"] = "the model all-minilm-l6-v2, which is not pulled"


def wants_bos(folder):
    """The tiny test model, whose file now says that texts begin with <|bos|>, and a chat template that writes it, too."""
    with lzma.open(os.path.join(TOP, "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz")) as f:
        data = bytearray(f.read())
    key = b"tokenizer.ggml.add_bos_token"
    at = data.index(key) + len(key) + 4  # behind the value's type
    assert data[at] == 0
    data[at] = 1
    model, template = os.path.join(folder, "bos.gguf"), os.path.join(folder, "bos.jinja")
    with open(model, "wb") as f:
        f.write(data)
    with open(template, "w") as f:
        f.write("{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    return model, template


def run(*args):
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "out.json")
        subprocess.run([sys.executable, os.path.join(HERE, "run_cases.py"), "--model", "smollm2-135m", "--cases",
                        os.path.join(HERE, "open.jsonl"), "--json", out, "--timeout", str(60 * SLOW),
                        *args], timeout=1200 * SLOW, stdout=subprocess.DEVNULL)
        with open(out) as f:
            return {r["id"]: r for r in json.load(f)}


def main():
    cmd = f"{STEPD} serve smollm2-135m={{model}} {{args}}"
    pictures = f"tiny-t2i={os.path.join(TOP, 'models', 'tiny-t2i')}"
    vectors = [f"minilm={MINILM}"] if "C51" not in MISSING else []
    with Daemon(pictures, *vectors, model=SMOLLM2, name="smollm2-135m") as d:
        res = run("--url", d.url, "--ref-chat-tokens", "32", "--have", "tools,prefill", "--image-model", "tiny-t2i", *(["--embed-model", "minilm"] if vectors else []), "--server-cmd", cmd, "--gguf", SMOLLM2)
    with Daemon("--api-key", "sk-case", "--cors-allow-origin", "http://ui.example", model=SMOLLM2,
                name="smollm2-135m") as d:
        keyed = run("--url", d.url, "--key", "sk-case", "--have", "cors_allow=http://ui.example", "--only", "C47")
    with tempfile.TemporaryDirectory() as tmp:
        model, template = wants_bos(tmp)
        # The tokenizers library says: bos, and 22 tokens of the template's text without it.
        with Daemon("--chat-template", template, model=model, name="smollm2-135m") as d:
            bos = run("--url", d.url, "--bos", "<|bos|>", "--ref-chat-tokens", "23", "--have", "bos", "--only", "C12")
    res.update(keyed)
    res.update(bos)
    failed = []
    for cid, r in sorted(res.items()):
        word = r.get("result") or r.get("status")
        if cid in MISSING:
            print(f"{cid} skipped: needs {MISSING[cid]}" + (" -- passes: take it off the list" if word == "PASS" else ""))
        elif word != "PASS":
            failed.append(cid)
            print(f"{cid} {word}: {json.dumps(r)[:600]}")
    n = sum((r.get("result") or r.get("status")) == "PASS" for r in res.values())
    print(f"{n} of {len(res)} cases pass")
    print(f"{n} passed, {len(failed)} failed, {len(res) - n - len(failed)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
