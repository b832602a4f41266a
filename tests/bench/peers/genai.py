#!/usr/bin/env python3
"""OpenVINO GenAI: ContinuousBatchingPipeline, which reads the GGUF file itself, behind wrap.py."""
import os
import sys


class Engine:
    def __init__(self, path, slots, tokens, threads):
        import openvino_genai as genai
        self.genai = genai
        sc = genai.SchedulerConfig()
        sc.max_num_seqs = slots
        sc.max_num_batched_tokens = 512
        sc.num_kv_blocks = 0
        sc.cache_size = int(os.environ.get("BENCH_KV_GB", "4"))
        sc.enable_prefix_caching = True
        sc.dynamic_split_fuse = True
        self.pipe = genai.ContinuousBatchingPipeline(path, sc, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.tokenizer = self.pipe.get_tokenizer()
        self.running, self.next_id = {}, 0

    def start(self, req):
        text = req.prompt
        if req.messages is not None:
            text = self.tokenizer.apply_chat_template(req.messages, add_generation_prompt=True)
        ids = self.tokenizer.encode(text, add_special_tokens=False).input_ids
        req.n_prompt = ids.shape[1]
        c = self.genai.GenerationConfig()
        c.max_new_tokens, c.ignore_eos, c.do_sample = req.max_tokens, req.ignore_eos, False
        req.handle = self.pipe.add_request(self.next_id, ids, c)
        self.running[self.next_id] = req
        self.next_id += 1

    def cancel(self, req):
        for i, r in list(self.running.items()):
            if r is req:
                r.handle.cancel()
                del self.running[i]

    def busy(self):
        return bool(self.running)

    def step(self):
        self.pipe.step()
        out, finished = [], self.genai.GenerationStatus.RUNNING
        for i, req in list(self.running.items()):
            ids = []
            while req.handle.can_read():
                for part in req.handle.read().values():
                    ids += part.generated_ids
            done = req.handle.get_status() != finished and not req.handle.can_read()
            req.n_output += len(ids)
            if ids or done:
                out.append((req, self.tokenizer.decode(ids) if ids else "", done))
            if done:
                del self.running[i]
        return out


def main(path, port, slots, tokens, threads):
    import openvino
    import openvino_genai  # noqa: F401  (the import is not the engine's time)
    from wrap import say_loaded, serve
    kind = "a GGUF copy with Q5_0 as Q8_0" if path.endswith(".q8.gguf") else "GGUF"
    say_loaded(f"openvino-genai {openvino.__version__}: {kind} read by itself, ContinuousBatchingPipeline behind a small server of this bench, "
               f"{threads} threads, at most {slots} sequences, 512 tokens a step, prefix caching, its own default precisions")
    serve(Engine(path, slots, tokens, threads), port)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
else:
    from peers import base

    class OpenVino(base.Peer):
        name, venv = "OpenVINO", ".venv-bench-openvino"

        @classmethod
        def prepare(cls, model):
            """The same values in types that its reader knows; no file where the model itself will do."""
            cls.convert("gguf_q8.py", model, cls.made(model, ".q8.gguf"))

        def command(self, job):
            copy = self.made(job.model, ".q8.gguf")
            return [self.python(), os.path.abspath(__file__), copy if os.path.exists(copy) else job.model, str(job.port), str(job.slots),
                    str(job.tokens), str(job.threads)], {}
