/* Tensor descriptors. Outside a backend a tensor is only this: never a host pointer. Forwards written
 * against ops.h therefore run unchanged on CPU, GPU and emulation. Plain values; any thread. */
#ifndef ENGINE_TENSOR_H
#define ENGINE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* DT_I8, DT_F8 (e4m3): codes of a KV pool, with a scale beside them (engine/quant/kv8.h); of no tensor. DT_I16: what the CPU
 * may make of an f16 pool (engine/cpu/kv_words.h); nobody else asks for it. */
enum dtype { DT_F32, DT_F16, DT_BF16, DT_I32, DT_I8, DT_F8, DT_I16 };

static inline bool dtype_is_code(enum dtype d)
{
    return d == DT_I8 || d == DT_F8;
}

/* A backend's memory: 0 is no buffer. */
typedef uint32_t dev_buf;

#define TENSOR_DIMS 4
struct tensor {
    enum dtype dtype;
    int n_dim;                   /* 1..4; shape[0] is the outermost, the last is contiguous */
    int64_t shape[TENSOR_DIMS];  /* elements */
    int64_t stride[TENSOR_DIMS]; /* elements; stride[n_dim-1] == 1 */
    dev_buf buf;
    size_t off; /* bytes from the buffer's start */
};

static inline size_t dtype_bytes(enum dtype d)
{
    return dtype_is_code(d) ? 1 : d == DT_F32 || d == DT_I32 ? 4 : 2;
}

/* Row-major [rows, cols] at byte `off` of `buf`. */
static inline struct tensor tensor_2d(enum dtype d, dev_buf buf, size_t off, int64_t rows,
                                      int64_t cols)
{
    return (struct tensor){
        .dtype = d, .n_dim = 2, .shape = {rows, cols}, .stride = {cols, 1}, .buf = buf, .off = off};
}

/* Columns [from, from + n) of a 2-d tensor; shares its memory. */
static inline struct tensor tensor_cols(struct tensor t, int64_t from, int64_t n)
{
    t.off += (size_t)from * dtype_bytes(t.dtype);
    t.shape[1] = n;
    return t;
}

#endif
