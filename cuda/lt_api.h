/* cuBLASLt without its headers: the functions, structures and values of its stable C interface that gemm_lt.c uses, in
 * declarations of our own. The table is filled from the shared library at run time, so that nothing of it is needed to
 * build or to start; the emulated build fills it from lt_emu.cc, which computes on the host. C17 and C++17.
 *
 * Matrices are column-major there: our row-major [n, k] is its [k, n]. Enums are int, as in C. */
#ifndef CUDA_LT_API_H
#define CUDA_LT_API_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LT_SUCCESS = 0, LT_ALLOC_FAILED = 3, LT_INVALID_VALUE = 7, LT_NOT_SUPPORTED = 15 };
enum { LT_TYPE_F32 = 0, LT_TYPE_BF16 = 14, LT_COMPUTE_F32 = 68 };
enum { LT_OP_N = 0, LT_OP_T = 1 };
enum { LT_EPILOGUE_NONE = 1, LT_EPILOGUE_BIAS = 4 };
enum { LT_DESC_TRANSA = 3, LT_DESC_TRANSB = 4, LT_DESC_EPILOGUE = 7 }; /* 32-bit values */
enum { LT_DESC_BIAS_POINTER = 8 };                                     /* a device pointer */
enum { LT_PREF_WORKSPACE = 1 };                                        /* 64-bit bytes */
enum { LT_PREF_ALIGN_A = 5, LT_PREF_ALIGN_B, LT_PREF_ALIGN_C, LT_PREF_ALIGN_D }; /* 32-bit bytes */

struct lt_algo {
    uint64_t data[8];
};
struct lt_heuristic {
    struct lt_algo algo;
    size_t workspace; /* bytes that the algorithm needs */
    int status;
    float waves;
    int reserved[4];
};

/* Every function returns a status, LT_SUCCESS or another. Objects are opaque; destroy(NULL) is not allowed. */
struct lt_api {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale_type);
    int (*desc_destroy)(void *desc);
    int (*desc_set)(void *desc, int attr, const void *value, size_t bytes);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*pref_create)(void **pref);
    int (*pref_destroy)(void *pref);
    int (*pref_set)(void *pref, int attr, const void *value, size_t bytes);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref,
                     int most, struct lt_heuristic *out, int *n_out);
    /* D = alpha * op(A) * op(B) + beta * C (+ bias of D's rows); alpha, beta on the host. */
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la,
                  const void *b, void *lb, const void *beta, const void *c, void *lc, void *d,
                  void *ld, const struct lt_algo *algo, void *ws, size_t ws_bytes, cu_stream st);
};

/* Values of cudaError_t that this module returns. */
#define CU_LT_NO_MEMORY     2
#define CU_LT_NO_SYMBOL     302 /* a library that lacks a function */
#define CU_LT_NO_LIBRARY    303
#define CU_LT_NOT_SUPPORTED 801 /* no algorithm for this shape: use another product */
#define CU_LT_UNKNOWN       999

/* Fills *t from the first library of the NULL-ended list that loads; *so is then dlclose's. On failure both are zero:
 * CU_LT_NO_LIBRARY, CU_LT_NO_SYMBOL. */
int lt_api_load(struct lt_api *t, void **so, const char *const *names);
#ifdef CUDA_EMU
/* The emulated library; CU_LT_NO_LIBRARY when $STEPD_EMU_LT is 0 (see lt_emu.cc). */
int lt_emu_load(struct lt_api *t);
#endif

/* ---- what cu_linear uses ---- */

struct cu_lt; /* of one device, used by one thread */

/* Loads the library and makes a handle on the current device. 0, CU_BAD for NULL, or CU_LT_*; *out is NULL then and the
 * caller goes on without: cu_linear has products of its own for everything. */
int cu_lt_open(struct cu_lt **out);
/* NULL is allowed. Whatever was enqueued must have ended, and graphs that captured a product must be gone. */
void cu_lt_close(struct cu_lt *lt);

/* d[i, o] = sum over k of x[i, k] * w[o, k], + bias[o]. f32 sums in an order of the library's choice, which changes with
 * n: not for callers that ask for equal bits in any company. All n rows are read and written. */
struct cu_lt_args {
    const void *x;     /* bf16 [n, n_in], ldx elements from row to row */
    const void *w;     /* bf16 [n_out, n_in], dense */
    float *d;          /* [n, n_out], ldd elements from row to row; no part of x, w or bias */
    const float *bias; /* NULL or [n_out] */
    int64_t ldx, ldd;
    int32_t n, n_in, n_out;
    void *ws; /* 256-aligned, free from here to the end of the product; NULL with 0 bytes */
    size_t ws_bytes;
    cu_stream st;
};
/* Enqueues. 0, CU_BAD, CU_LT_NOT_SUPPORTED (nothing was enqueued), another positive cudaError_t. */
int cu_lt_matmul(struct cu_lt *lt, const struct cu_lt_args *a);
/* Searches for an algorithm so far: one a shape (rows up to a power of two, alignments, work space). */
uint64_t cu_lt_searches(const struct cu_lt *lt);

#ifdef __cplusplus
}
#endif
#endif
