#!/usr/bin/env python3
"""llama.cpp: the server inside the PyPI package xllamacpp, which is llama-server as a library."""
import os
import sys
import time


def main(path, port, slots, tokens, threads):
    import xllamacpp
    from wrap import say_loaded
    p = xllamacpp.CommonParams()
    p.model.path = path
    p.model_alias = {"bench"}
    p.port = port
    p.n_parallel = slots
    p.n_ctx = slots * tokens
    p.kv_unified = bool(int(os.environ.get("BENCH_UNIFIED", "0")))
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
    p.verbosity = 0
    say_loaded(f"xllamacpp {xllamacpp.__version__}: {threads} threads, {slots} slots of {tokens} tokens, KV f16, flash attention auto, "
               f"n_batch {p.n_batch}, n_ubatch {p.n_ubatch}; {' '.join(xllamacpp.get_system_info().split())}")
    server = xllamacpp.Server(p)
    assert server.listening_address
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
else:
    from peers import base

    class Llama(base.Peer):
        name, venv = "llama.cpp", ".venv-bench-llama"

        def command(self, job):
            return [self.python(), os.path.abspath(__file__), job.model, str(job.port), str(job.slots), str(job.tokens),
                    str(job.threads)], {}
