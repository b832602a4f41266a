/* Writes a one-layer GGUF model with pseudo-random weights, right or wrong in one chosen way: what loader
 * tests feed to eng_open. Test programs only. */
#ifndef TESTS_TINY_GGUF_H
#define TESTS_TINY_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "engine/quant/quant.h"

/* The good model: 2 heads, 1 KV head, head size 16. */
enum { TINY_EMBD = 32, TINY_FF = 64, TINY_VOCAB = 64, TINY_CTX = 128 };

struct tiny_edit {       /* zero = the good llama model */
    const char *arch;    /* "llama" */
    const char *drop;    /* a tensor or a key to leave out */
    const char *tensor;  /* this tensor is written with: */
    int64_t dim[2];      /*   these dimensions (dim[1] 0 = one dimension; both 0: its own), */
    enum quant_fmt fmt;  /*   this format */
    const char *key;     /* this u32 key (after "ARCH.") is written as: */
    uint32_t value;      /*   this */
    const char *scaling; /* rope.scaling.type */
    const char *extra;   /* one more F32 tensor of 16 values, all `extra_value` */
    float extra_value;
};

/* Name of the new temporary file in path[size]; the caller removes it. 0 or -1. */
int tiny_gguf_write(char *path, size_t size, const struct tiny_edit *edit);

#endif
