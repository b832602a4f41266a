/* How large the KV pool is: bytes by block, and how many blocks fit what memory there is. Any thread. */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include "engine/ops.h"

/* Bytes that this process may still take: the least of the machine's available memory and what every
 * control group above it leaves (page cache counts as free). `root` is "" or a directory that holds
 * proc/ and sys/ (tests). SIZE_MAX when nothing can be read. */
size_t eng_memory_available(const char *root);

struct kv_request {
    const char *dtype; /* "auto" or NULL, "f32", "f16", "bf16", "int8", "fp8", "fp8_e4m3" */
    enum eng_precision precision;
    size_t kv_bytes;     /* wanted pool; 0 = max_seqs / 4 full contexts */
    int32_t n_ctx;       /* wanted context; 0 = n_ctx_model, or less when memory is short */
    int32_t n_ctx_model; /* what the model was made for */
    int max_seqs;
    size_t available; /* for everything, bytes */
    size_t fixed;     /* bytes for weights and work, taken first */
};
struct kv_plan {
    int32_t n_block, n_ctx;
    size_t block_bytes, bytes;
};
/* ERR_INVAL for a dtype that does not exist. "auto": f32 for PRECISION_F32, else f16. */
int eng_kv_dtype(const char *name, enum eng_precision p, enum dtype *out, struct err *e);
/* k [n]: pools whose blocks have the same numbers; everything but n_block is set, which is filled. Where none has layers,
 * blocks have no bytes and only stand for text. ERR_NOMEM or ERR_LIMIT name the sizes. */
int eng_kv_plan(struct kv_plan *out, struct kv_desc *k, int n, const struct kv_request *r,
                const struct backend *be, struct err *e);

#endif
