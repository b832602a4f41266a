#!/usr/bin/env python3
"""Copies tiny random models with their reference results into tests/data/folders/CASE.

    record_folders.py ORACLE_DIR CASE [CASE ...]     (numpy and safetensors)

ORACLE_DIR/CASE holds config.json, model.safetensors and golden.safetensors as transformers 5.24 gave them (float32 run,
weights rounded to their type on disk). Of the results only input_ids, logits, greedy_ids, short_ids and short_logits
are kept."""
import lzma
import os
import shutil
import sys

from safetensors.numpy import load_file, save

KEEP = ("input_ids", "logits", "greedy_ids", "short_ids", "short_logits")
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    src, cases = sys.argv[1], sys.argv[2:]
    for case in cases:
        out = os.path.join(TOP, "tests", "data", "folders", case)
        os.makedirs(out, exist_ok=True)
        shutil.copyfile(os.path.join(src, case, "config.json"), os.path.join(out, "config.json"))
        golden = load_file(os.path.join(src, case, "golden.safetensors"))
        with open(os.path.join(src, case, "model.safetensors"), "rb") as f:
            model = f.read()
        for name, data in (("model.safetensors", model), ("golden.safetensors", save({k: golden[k] for k in KEEP if k in golden}))):
            with lzma.open(os.path.join(out, name + ".xz"), "wb", preset=9) as f:
                f.write(data)
        print(case, sum(os.path.getsize(os.path.join(out, n)) for n in os.listdir(out)), "bytes")


main()
