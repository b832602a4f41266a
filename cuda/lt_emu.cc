/* The emulated cuBLASLt: the functions of lt_api.h over plain host code that runs in the stream's turn. It takes what
 * gemm_lt.c asks for and refuses the rest, with the statuses of the real one. $STEPD_EMU_LT = 0: not installed; refuse: has no
 * algorithm for any shape. */
#include "cuda/lt_api.h"

#include "cuda/emu_rt.h"

#include <list>
#include <stdlib.h>
#include <string.h>

namespace
{

struct Desc {
    int transa = LT_OP_N, transb = LT_OP_N, epilogue = LT_EPILOGUE_NONE;
    const float *bias = nullptr;
};
struct Layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};
struct Pref {
    uint64_t ws = 0;
    int32_t align[4] = {256, 256, 256, 256}; /* A, B, C, D */
};
struct Job { /* columns: d[m, n] = a[k, m]^T b[k, n] */
    const uint16_t *a, *b;
    float *d;
    const float *bias;
    int64_t m, n, k, lda, ldb, ldd;
};
/* Jobs live as long as their handle: a captured graph runs them again. */
struct Handle {
    std::list<Job> jobs;
};

constexpr uint64_t MAGIC =
    0x6c74656d75; /* marks an algorithm; data[1..4] are the alignments that it needs */

float widen(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

void run(void *arg)
{
    const Job &j = *static_cast<const Job *>(arg);
    for (int64_t c = 0; c < j.n; c++)
        for (int64_t r = 0; r < j.m; r++) {
            float sum = 0;
            for (int64_t k = 0; k < j.k; k++)
                sum += widen(j.a[r * j.lda + k]) * widen(j.b[c * j.ldb + k]);
            j.d[c * j.ldd + r] = j.bias ? sum + j.bias[r] : sum;
        }
}

int create(void **h)
{
    *h = new Handle;
    return LT_SUCCESS;
}
int destroy(void *h)
{
    delete static_cast<Handle *>(h);
    return LT_SUCCESS;
}
int desc_create(void **d, int compute, int scale)
{
    if (compute != LT_COMPUTE_F32 || scale != LT_TYPE_F32)
        return LT_INVALID_VALUE;
    *d = new Desc;
    return LT_SUCCESS;
}
int desc_destroy(void *d)
{
    delete static_cast<Desc *>(d);
    return LT_SUCCESS;
}
int desc_set(void *p, int attr, const void *v, size_t n)
{
    Desc *d = static_cast<Desc *>(p);
    int *to = attr == LT_DESC_TRANSA     ? &d->transa
              : attr == LT_DESC_TRANSB   ? &d->transb
              : attr == LT_DESC_EPILOGUE ? &d->epilogue
                                         : nullptr;
    if (to ? n != sizeof *to : attr != LT_DESC_BIAS_POINTER || n != sizeof d->bias)
        return LT_INVALID_VALUE;
    memcpy(to ? (void *)to : (void *)&d->bias, v, n);
    return LT_SUCCESS;
}
int layout_create(void **l, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    if ((type != LT_TYPE_F32 && type != LT_TYPE_BF16) || !rows || !cols || ld < (int64_t)rows)
        return LT_INVALID_VALUE;
    *l = new Layout{type, rows, cols, ld};
    return LT_SUCCESS;
}
int layout_destroy(void *l)
{
    delete static_cast<Layout *>(l);
    return LT_SUCCESS;
}
int pref_create(void **p)
{
    *p = new Pref;
    return LT_SUCCESS;
}
int pref_destroy(void *p)
{
    delete static_cast<Pref *>(p);
    return LT_SUCCESS;
}
int pref_set(void *q, int attr, const void *v, size_t n)
{
    Pref *p = static_cast<Pref *>(q);
    if (attr == LT_PREF_WORKSPACE && n == sizeof p->ws)
        memcpy(&p->ws, v, n);
    else if (attr >= LT_PREF_ALIGN_A && attr <= LT_PREF_ALIGN_D && n == sizeof *p->align)
        memcpy(&p->align[attr - LT_PREF_ALIGN_A], v, n);
    else
        return LT_INVALID_VALUE;
    return LT_SUCCESS;
}

bool agree(const Desc *o, const Layout *a, const Layout *b, const Layout *c, const Layout *d)
{
    return o->transa == LT_OP_T && o->transb == LT_OP_N && a->type == LT_TYPE_BF16 &&
           b->type == LT_TYPE_BF16 && c->type == LT_TYPE_F32 && d->type == LT_TYPE_F32 &&
           a->rows == b->rows && a->cols == d->rows && b->cols == d->cols && c->rows == d->rows &&
           c->cols == d->cols && (o->epilogue == LT_EPILOGUE_BIAS) == (o->bias != nullptr);
}

int heuristic(void *, void *o, void *a, void *b, void *c, void *d, void *q, int most,
              struct lt_heuristic *out, int *n)
{
    const Pref *p = static_cast<Pref *>(q);
    *n = 0;
    if (most < 1)
        return LT_INVALID_VALUE;
    const char *v = getenv("STEPD_EMU_LT");
    if (v && !strcmp(v, "refuse")) /* as the real one tells it: success, none found */
        return LT_SUCCESS;
    if (!agree(static_cast<Desc *>(o), static_cast<Layout *>(a), static_cast<Layout *>(b),
               static_cast<Layout *>(c), static_cast<Layout *>(d)))
        return LT_NOT_SUPPORTED;
    *out = lt_heuristic{};
    out->algo.data[0] = MAGIC;
    for (int i = 0; i < 4; i++)
        out->algo.data[1 + i] = (uint64_t)p->align[i];
    out->algo.data[5] = out->workspace = (size_t)p->ws; /* takes all that it may */
    *n = 1;
    return LT_SUCCESS;
}

int matmul(void *h, void *o, const void *alpha, const void *a, void *la, const void *b, void *lb,
           const void *beta, const void *c, void *lc, void *d, void *ld, const struct lt_algo *algo,
           void *ws, size_t ws_bytes, cu_stream st)
{
    const Desc *op = static_cast<Desc *>(o);
    const Layout *A = static_cast<Layout *>(la), *B = static_cast<Layout *>(lb),
                 *C = static_cast<Layout *>(lc), *D = static_cast<Layout *>(ld);
    const void *at[4] = {a, b, c, d};
    if (!agree(op, A, B, C, D) || *static_cast<const float *>(alpha) != 1 ||
        *static_cast<const float *>(beta) != 0)
        return LT_NOT_SUPPORTED;
    if (algo->data[0] != MAGIC || ws_bytes < algo->data[5])
        return LT_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)at[i] % algo->data[1 + i])
            return LT_INVALID_VALUE;
    auto &jobs = static_cast<Handle *>(h)->jobs;
    jobs.push_back({static_cast<const uint16_t *>(a), static_cast<const uint16_t *>(b),
                    static_cast<float *>(d), op->bias, (int64_t)D->rows, (int64_t)D->cols,
                    (int64_t)A->rows, A->ld, B->ld, D->ld});
    auto s = static_cast<cudaStream_t>(st);
    cudaError_t e = cudaSuccess;
    if (ws_bytes) /* the work space's contents are lost, as on a device */
        e = cudaMemsetAsync(ws, 0xA5, ws_bytes, s);
    if (e == cudaSuccess)
        e = cudaLaunchHostFunc(s, run, &jobs.back());
    return e == cudaSuccess ? LT_SUCCESS : 13; /* execution failed */
}

} // namespace

extern "C" int lt_emu_load(struct lt_api *t)
{
    const char *v = getenv("STEPD_EMU_LT");
    if (v && !strcmp(v, "0"))
        return CU_LT_NO_LIBRARY;
    *t = {create,         destroy,     desc_create,  desc_destroy, desc_set,  layout_create,
          layout_destroy, pref_create, pref_destroy, pref_set,     heuristic, matmul};
    return 0;
}
