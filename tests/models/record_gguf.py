#!/usr/bin/env python3
"""Makes tests/data/gguf-cases/CASE.gguf.xz of the folders of tests/data/folders with llama.cpp's own converter, so that names,
keys and what is permuted, transposed or added to are that program's and not ours.

    record_gguf.py LLAMA_CPP_DIR [CASE ...]     (torch, transformers 4 or 5, numpy, safetensors; all cases without arguments)

LLAMA_CPP_DIR holds convert_hf_to_gguf.py and gguf-py. The folders have no tokenizer, so the converter's vocabulary is left out; their
configurations are of transformers 5 and are told to the converter in the older words. Prints what could not be converted."""
import json
import lzma
import os
import sys
import tempfile
import traceback
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
FOLDERS, OUT = TOP / "tests" / "data" / "folders", TOP / "tests" / "data" / "gguf-cases"

# What the format or the converter can't say, so that the file is another model than the folder's.
NOT = {
    "mistral-swa": "no window in llama's keys", "qwen2-window": "the same", "starcoder2": "the same",
    "llama3-rope": "the original context is taken for 8192", "llama-yarn": "not written for llama", "llama-dynamic-rope": "the same",
    "phi": "as many K heads as Q heads are written", "gpt_bigcode": "n_inner is taken for four times n_embd",
    "llama-bias": "one of llama is enough", "llama-linear-rope": "the same", "llava": "the same", "falcon_h1": "falcon_h1_factors has more",
    "phi4": "phi3 has as much", "phi3-longrope-long": "the same",
}


def older(c):
    """rope_parameters as rope_theta and rope_scaling; dtype as torch_dtype; also of the object text_config."""
    c = dict(c)
    if isinstance(c.get("text_config"), dict):
        c["text_config"] = older(c["text_config"])
    rp = c.pop("rope_parameters", None)
    if rp and "rope_type" not in rp:  # by kind of layer: Gemma's
        local = rp.get("sliding_attention", {})
        rp = rp.get("full_attention", local)
        if local:
            c.setdefault("rope_local_base_freq", local.get("rope_theta"))
    if rp:
        c.setdefault("rope_theta", rp.get("rope_theta"))
        if rp.get("partial_rotary_factor") is not None:
            c.setdefault("partial_rotary_factor", rp["partial_rotary_factor"])
        if rp.get("rope_type", "default") != "default" or "mrope_section" in rp:
            c["rope_scaling"] = {**rp, "type": rp["rope_type"]}
    if "dtype" in c:
        c["torch_dtype"] = c.pop("dtype")
    c = {k: v for k, v in c.items() if v is not None}
    for new, old in (("n_positions", "n_ctx"), ("rope_theta", "rotary_emb_base"), ("rms_norm_eps", "layernorm_epsilon"),
                     ("partial_rotary_factor", "rotary_pct"), ("max_position_embeddings", "seq_length")):
        if new in c:
            c.setdefault(old, c[new])
    return c


def convert(conv, case, folder, path, **more):
    with open(folder / "config.json", encoding="utf-8") as f:
        arch = json.load(f)["architectures"][0]
    cls = conv.ModelBase.from_model_architecture(arch)
    cls.set_vocab = cls._create_vocab_sentencepiece = cls._set_vocab_gpt2 = lambda self: None
    hparams = conv.ModelBase.load_hparams(folder, False) if conv.ModelBase.load_hparams.__code__.co_argcount == 2 else conv.ModelBase.load_hparams(folder)
    hparams = older(hparams)
    if arch == "Lfm2ForCausalLM":
        hparams.setdefault("block_ff_dim", hparams["intermediate_size"])
    if arch == "FalconH1ForCausalLM":
        hparams.setdefault("head_dim", hparams["hidden_size"] // hparams["num_attention_heads"])
    if "rotary_pct" not in hparams and arch == "Cohere2ForCausalLM":
        hparams["rotary_pct"] = 1.0
    if arch == "FalconH1ForCausalLM":  # products of weights and factors are no bf16
        hparams["torch_dtype"] = "float32"
    kind = {"float32": "ALL_F32", "float16": "MOSTLY_F16"}.get(hparams.get("torch_dtype"), "MOSTLY_BF16")
    m = cls(folder, conv.gguf.LlamaFileType[kind], path, hparams=hparams, **more)
    m.write()


def main():
    sys.path[:0] = [os.path.join(sys.argv[1], "gguf-py"), sys.argv[1]]
    import transformers  # looks for mistral_common, before there is a stand-in
    for name in ("", ".tokens", ".tokens.tokenizers", ".tokens.tokenizers.base", ".tokens.tokenizers.multimodal",
                 ".tokens.tokenizers.tekken", ".tokens.tokenizers.sentencepiece", ".tokens.tokenizers.utils"):
        sys.modules.setdefault("mistral_common" + name, mock.MagicMock())  # of tokenizers only
    transformers.AutoConfig, transformers.AutoTokenizer
    import convert_hf_to_gguf as conv
    OUT.mkdir(exist_ok=True)
    for case in sys.argv[2:] or sorted(p.name for p in FOLDERS.iterdir() if p.is_dir()):
        if case in NOT or (FOLDERS / case / "config.json").exists() and "quantization_config" in (FOLDERS / case / "config.json").read_text():
            print(f"{case}: left out: {NOT.get(case, 'quantised')}")
            continue
        with tempfile.TemporaryDirectory() as tmp:
            folder, path = Path(tmp) / case, Path(tmp) / "out.gguf"
            folder.mkdir()
            for p in (FOLDERS / case).iterdir():
                if p.name.startswith("golden"):
                    continue
                data = lzma.decompress(p.read_bytes()) if p.suffix == ".xz" else p.read_bytes()
                if p.name == "config.json":
                    data = json.dumps(older(json.loads(data))).encode()
                (folder / p.name.removesuffix(".xz")).write_bytes(data)
            try:
                convert(conv, case, folder, path)
            except (Exception, SystemExit) as e:
                print(f"{case}: not converted: {e!r:.200}" + "".join(traceback.format_tb(e.__traceback__)[-1:]).replace("\n", " "), flush=True)
                continue
            if case == "qwen2":  # also in parts
                (OUT / "split").mkdir(exist_ok=True)
                convert(conv, case, folder, Path(tmp) / "qwen2.gguf", split_max_tensors=16)
                for p in Path(tmp).glob("qwen2-0*.gguf"):
                    (OUT / "split" / (p.name + ".xz")).write_bytes(lzma.compress(p.read_bytes(), preset=9))
            data = lzma.compress(path.read_bytes(), preset=9)
            (OUT / f"{case}.gguf.xz").write_bytes(data)
            print(f"{case}: {len(data)} bytes", flush=True)


main()
