#!/usr/bin/env python3
"""A Hugging Face folder (bf16 safetensors, tokenizer.json, chat template) from a GGUF file, for servers that read only folders.

    hf_folder.py FILE.gguf OUT_FOLDER

transformers' own reader does it: weights are dequantised, so the numbers are those of the GGUF file rounded to bf16. Run by an
environment that has torch, transformers and gguf (conf/setup.sh bench makes .venv-bench-vllm so)."""
import os
import shutil
import sys


def main(path, out):
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    folder, name = os.path.split(os.path.abspath(path))
    part = out + ".part"
    shutil.rmtree(part, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16)
    model.hf_quantizer = None  # the matrices are plain bf16 by now: nothing about them is quantised
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(part)
    if not tokenizer.chat_template:
        field = gguf.GGUFReader(path).fields.get("tokenizer.chat_template")
        tokenizer.chat_template = field.contents() if field else None
    tokenizer.save_pretrained(part)
    os.rename(part, out)


if __name__ == "__main__":
    main(*sys.argv[1:3])
