#!/usr/bin/env python3
"""ik_llama.cpp by the PyPI package ik-llama-cpp-python. The package has the library and no server, so this file is one:
slots with continuous batching over llama_decode, as llama-server has them (the prompts of waiting slots share what a batch has
left beside one token of each running slot; a slot keeps its text, and a prompt goes to the slot with the longest common
beginning), greedy sampling. In front of it: wrap.py."""
import ctypes
import os
import sys

N_BATCH = 2048


def common(a, b):
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


class Slot:
    def __init__(self, seq):
        self.seq, self.req = seq, None
        self.cached = []  # tokens whose keys and values are there
        self.todo = []    # tokens to compute: the rest of the prompt, or the last one sampled


class Engine:
    def __init__(self, path, slots, tokens, threads):
        import numpy as np
        from ik_llama_cpp import _ctypes_api as C
        self.np, self.C, self.lib = np, C, C._lib
        self.lib.llama_model_meta_val_str.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
        self.lib.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        C.llama_backend_init()
        mp = C.llama_model_default_params()
        mp.repack_tensors = True
        self.model = C.llama_model_load_from_file(path.encode(), mp)
        p = C.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_seq_max = slots * tokens, N_BATCH, slots
        p.n_threads = p.n_threads_batch = threads
        # Its flash attention ends the process with more than one sequence in a batch (iqk_fa_templates.h: GGML_ASSERT(S > 0)).
        p.flash_attn = False
        self.ctx = C.llama_init_from_model(self.model, p)
        if not self.model or not self.ctx:
            raise SystemExit("ik_llama.cpp does not load this model")
        self.n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(self.model))
        self.slots, self.waiting, self.ids = [Slot(i) for i in range(slots)], [], {}
        self.make_batch()
        self.template = self.chat_template()

    def make_batch(self):
        np, C = self.np, self.C
        b = self.batch = C.llama_batch_init(N_BATCH, 0, 1)
        array = np.ctypeslib.as_array
        self.token, self.pos, self.logits = array(b.token, (N_BATCH,)), array(b.pos, (N_BATCH,)), array(b.logits, (N_BATCH,))
        array(b.n_seq_id, (N_BATCH,))[:] = 1
        self.seq = np.zeros(N_BATCH, np.int32)
        for i in range(N_BATCH):
            b.seq_id[i] = ctypes.cast(self.seq.ctypes.data + 4 * i, ctypes.POINTER(ctypes.c_int32))

    def meta(self, key):
        buf = ctypes.create_string_buffer(1 << 16)
        n = self.lib.llama_model_meta_val_str(self.model, key, buf, len(buf))
        return buf.value.decode() if n > 0 else ""

    def chat_template(self):
        import jinja2
        env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        return env.from_string(self.meta(b"tokenizer.chat_template") or
                               "{% for m in messages %}{{ m.content }}\n{% endfor %}")

    def tokenise(self, text):
        raw = text.encode()
        buf = (ctypes.c_int32 * (len(raw) + 8))()
        n = self.C.llama_tokenize(self.model, raw, len(raw), buf, len(buf), False, True)
        return buf[:n]

    def text(self, token):
        buf = ctypes.create_string_buffer(256)
        n = self.C.llama_token_to_piece(self.model, token, buf, 256, 0, False)
        return buf.raw[:max(n, 0)].decode("utf-8", "replace")

    def start(self, req):
        if req.messages is None:
            text = req.prompt
        else:
            text = self.template.render(messages=req.messages, add_generation_prompt=True, bos_token="", eos_token="")
        req.ids = self.tokenise(text)
        req.n_prompt = len(req.ids)
        self.waiting.append(req)

    def cancel(self, req):
        if req in self.waiting:
            self.waiting.remove(req)
        for s in self.slots:
            if s.req is req:
                s.req, s.todo = None, []

    def busy(self):
        return bool(self.waiting) or any(s.req for s in self.slots)

    def admit(self):
        while self.waiting and any(not s.req for s in self.slots):
            req = self.waiting.pop(0)
            s = max((s for s in self.slots if not s.req), key=lambda s: common(s.cached, req.ids))
            n = min(common(s.cached, req.ids), len(req.ids) - 1)
            self.lib.llama_kv_cache_seq_rm(self.ctx, s.seq, n, -1)
            s.req, s.cached, s.todo = req, s.cached[:n], req.ids[n:]

    def fill(self):
        """Rows of the next batch; [(slot, row of its logits)] of those whose prompt ends in it."""
        n, ends = 0, []
        for s in sorted((s for s in self.slots if s.req), key=lambda s: len(s.todo)):
            k = min(len(s.todo), N_BATCH - n)
            if not k:
                continue
            self.token[n:n + k] = s.todo[:k]
            self.pos[n:n + k] = range(len(s.cached), len(s.cached) + k)
            self.seq[n:n + k] = s.seq
            self.logits[n:n + k] = 0
            s.cached += s.todo[:k]
            s.todo = s.todo[k:]
            n += k
            if not s.todo:
                self.logits[n - 1] = 1
                ends.append((s, n - 1))
        return n, ends

    def step(self):
        self.admit()
        n, ends = self.fill()
        self.batch.n_tokens = n
        if self.C.llama_decode(self.ctx, self.batch):
            raise SystemExit("llama_decode failed")
        out = []
        for s, row in ends:
            p = self.C.llama_get_logits_ith(self.ctx, row)
            t = int(self.np.ctypeslib.as_array(p, (self.n_vocab,)).argmax())
            s.req.n_output += 1
            end = s.req.n_output >= s.req.max_tokens or (not s.req.ignore_eos and self.C.llama_token_is_eog(self.model, t))
            out.append((s.req, self.text(t), end))
            s.todo = [t]
            if end:
                s.req, s.todo = None, []
        return out


def main(path, port, slots, tokens, threads):
    import importlib.metadata
    import ik_llama_cpp  # noqa: F401  (loads the library)
    import jinja2  # noqa: F401
    import numpy  # noqa: F401
    from wrap import say_loaded, serve
    from ik_llama_cpp import _ctypes_api as C
    C._lib.llama_print_system_info.restype = ctypes.c_char_p
    say_loaded(f"ik-llama-cpp-python {importlib.metadata.version('ik-llama-cpp-python')} behind a small server of this bench (the package has "
               f"none): {threads} threads, {slots} sequences of {tokens} tokens in one cache, KV f16, no flash attention (it aborts with several sequences in a batch), run-time repacking, "
               f"n_batch {N_BATCH}, n_ubatch 512; {' '.join(C._lib.llama_print_system_info().decode().split())}")
    serve(Engine(path, slots, tokens, threads), port)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
else:
    from peers import base

    class Ik(base.Peer):
        name, venv = "ik_llama.cpp", ".venv-bench-ik"

        def command(self, job):
            return [self.python(), os.path.abspath(__file__), job.model, str(job.port), str(job.slots), str(job.tokens),
                    str(job.threads)], {}
