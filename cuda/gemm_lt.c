/* Products by cuBLASLt, where it is installed. See lt_api.h. */
#include "cuda/lt_api.h"

#include "engine/base/mem.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SYMBOL(member, name)                                                                       \
    {                                                                                              \
        offsetof(struct lt_api, member), "cublasLt" name                                           \
    }
static const struct {
    size_t at;
    const char *name;
} symbols[] = {
    SYMBOL(create, "Create"),
    SYMBOL(destroy, "Destroy"),
    SYMBOL(desc_create, "MatmulDescCreate"),
    SYMBOL(desc_destroy, "MatmulDescDestroy"),
    SYMBOL(desc_set, "MatmulDescSetAttribute"),
    SYMBOL(layout_create, "MatrixLayoutCreate"),
    SYMBOL(layout_destroy, "MatrixLayoutDestroy"),
    SYMBOL(pref_create, "MatmulPreferenceCreate"),
    SYMBOL(pref_destroy, "MatmulPreferenceDestroy"),
    SYMBOL(pref_set, "MatmulPreferenceSetAttribute"),
    SYMBOL(heuristic, "MatmulAlgoGetHeuristic"),
    SYMBOL(matmul, "Matmul"),
};
_Static_assert(sizeof symbols / sizeof *symbols == sizeof(struct lt_api) / sizeof(void *),
               "every member of the table has a symbol");

int lt_api_load(struct lt_api *t, void **so, const char *const *names)
{
    *t = (struct lt_api){0};
    *so = NULL;
    for (; *names && !*so; names++)
        *so = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    if (!*so)
        return CU_LT_NO_LIBRARY;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *fn = dlsym(*so, symbols[i].name);
        if (!fn) {
            dlclose(*so);
            *so = NULL;
            *t = (struct lt_api){0};
            return CU_LT_NO_SYMBOL;
        }
        memcpy((char *)t + symbols[i].at, &fn, sizeof fn);
    }
    return 0;
}

/* ---- the cache of algorithms ---- */

#define CACHE 256

/* What an algorithm may depend on. No padding: compared as bytes. */
struct key {
    int64_t ldx, ldd;
    uint64_t ws_bytes;
    int32_t n, n_in, n_out;
    int32_t align[4]; /* x, w, d, bias; 0 = absent */
    int32_t zero;
};
_Static_assert(sizeof(struct key) == 56, "no padding in a key");

struct slot {
    struct key key; /* n = 0: free */
    struct lt_algo algo;
    int status; /* failures are remembered too */
};
struct cu_lt {
    struct lt_api api;
    void *so, *handle;
    uint64_t searches;
    struct slot slot[CACHE];
};

int cu_lt_open(struct cu_lt **out)
{
    if (!out)
        return CU_BAD;
    *out = NULL;
    struct cu_lt *lt = mem_calloc(1, sizeof *lt);
    if (!lt)
        return CU_LT_NO_MEMORY;
#ifdef CUDA_EMU
    int rc = lt_emu_load(&lt->api);
#else
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    int rc = lt_api_load(&lt->api, &lt->so, names);
#endif
    if (!rc && lt->api.create(&lt->handle) != LT_SUCCESS) {
        lt->handle = NULL;
        rc = CU_LT_UNKNOWN;
    }
    if (rc) {
        cu_lt_close(lt);
        return rc;
    }
    *out = lt;
    return 0;
}

void cu_lt_close(struct cu_lt *lt)
{
    if (!lt)
        return;
    if (lt->handle)
        lt->api.destroy(lt->handle);
    if (lt->so)
        dlclose(lt->so);
    free(lt);
}

uint64_t cu_lt_searches(const struct cu_lt *lt)
{
    return lt->searches;
}

/* The cache's place of k: its own, or a free one, or one that gives way. */
static struct slot *slot_of(struct cu_lt *lt, const struct key *k)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    const unsigned char *b = (const unsigned char *)k;
    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ b[i]) * 1099511628211u;
    size_t first = (size_t)(h >> 32) % CACHE;
    for (size_t i = 0; i < 8; i++) {
        struct slot *s = &lt->slot[(first + i) % CACHE];
        if (!s->key.n || !memcmp(&s->key, k, sizeof *k))
            return s;
    }
    lt->slot[first].key.n = 0;
    return &lt->slot[first];
}

/* ---- one product ---- */

/* The greatest power of two up to 256 that divides the address. */
static int32_t alignment(const void *p)
{
    uintptr_t v = (uintptr_t)p | 256;
    return (int32_t)(v & -v);
}

static bool args_ok(const struct cu_lt_args *a)
{
    return a->x && a->w && a->d && a->n >= 0 && a->n_in > 0 && a->n_out > 0 && a->ldx >= a->n_in &&
           a->ldd >= a->n_out && !((uintptr_t)a->x % 2) && !((uintptr_t)a->w % 2) &&
           !((uintptr_t)a->d % 4) && !((uintptr_t)a->bias % 4) && !((uintptr_t)a->ws % 256) &&
           (a->ws || !a->ws_bytes);
}

static int error_of(int status)
{
    switch (status) {
    case LT_SUCCESS:
        return 0;
    case LT_ALLOC_FAILED:
        return CU_LT_NO_MEMORY;
    case LT_INVALID_VALUE: /* the arguments were checked: a library that knows this product differently */
    case LT_NOT_SUPPORTED:
        return CU_LT_NOT_SUPPORTED;
    default:
        return CU_LT_UNKNOWN;
    }
}

struct shape {
    void *desc, *w, *x, *d;
};

/* D^T [n_out, n] = W^T^T * X^T in columns. Members may be NULL after a failure; shape_close takes both. */
static int shape_open(const struct lt_api *t, struct shape *s, const struct cu_lt_args *a,
                      int32_t n)
{
    const int32_t op = LT_OP_T, epilogue = LT_EPILOGUE_BIAS;
    const uint64_t rows = (uint64_t)n, n_in = (uint64_t)a->n_in, n_out = (uint64_t)a->n_out;
    *s = (struct shape){0};
    int rc = t->desc_create(&s->desc, LT_COMPUTE_F32, LT_TYPE_F32);
    if (!rc)
        rc = t->desc_set(s->desc, LT_DESC_TRANSA, &op, sizeof op);
    if (!rc && a->bias)
        rc = t->desc_set(s->desc, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!rc && a->bias)
        rc = t->desc_set(s->desc, LT_DESC_BIAS_POINTER, &a->bias, sizeof a->bias);
    if (!rc)
        rc = t->layout_create(&s->w, LT_TYPE_BF16, n_in, n_out, a->n_in);
    if (!rc)
        rc = t->layout_create(&s->x, LT_TYPE_BF16, n_in, rows, a->ldx);
    return rc ? rc : t->layout_create(&s->d, LT_TYPE_F32, n_out, rows, a->ldd);
}

static void shape_close(const struct lt_api *t, const struct shape *s)
{
    if (s->d)
        t->layout_destroy(s->d);
    if (s->x)
        t->layout_destroy(s->x);
    if (s->w)
        t->layout_destroy(s->w);
    if (s->desc)
        t->desc_destroy(s->desc);
}

/* Asks the library for an algorithm for the key's shape; a status. */
static int search(struct cu_lt *lt, const struct cu_lt_args *a, const struct key *k,
                  struct lt_algo *out)
{
    const struct lt_api *t = &lt->api;
    const int32_t align[4] = {k->align[1], k->align[0], k->align[2], k->align[2]};
    struct lt_heuristic best = {0};
    struct shape s;
    void *pref = NULL;
    int found = 0, rc = shape_open(t, &s, a, k->n);
    lt->searches++;
    if (!rc)
        rc = t->pref_create(&pref);
    if (!rc)
        rc = t->pref_set(pref, LT_PREF_WORKSPACE, &k->ws_bytes, sizeof k->ws_bytes);
    for (int i = 0; i < 4 && !rc; i++)
        rc = t->pref_set(pref, LT_PREF_ALIGN_A + i, &align[i], sizeof align[i]);
    if (!rc)
        rc = t->heuristic(lt->handle, s.desc, s.w, s.x, s.d, s.d, pref, 1, &best, &found);
    if (!rc && !found)
        rc = LT_NOT_SUPPORTED;
    if (!rc)
        rc = best.status;
    *out = best.algo;
    if (pref)
        t->pref_destroy(pref);
    shape_close(t, &s);
    return rc;
}

/* The search is for the bucket's most rows, so that the work space found is enough for all of them. */
static struct key key_of(const struct cu_lt_args *a)
{
    int32_t n = 1;
    while (n < a->n && n < 1 << 30)
        n *= 2;
    return (struct key){.ldx = a->ldx,
                        .ldd = a->ldd,
                        .ws_bytes = a->ws_bytes,
                        .n = n,
                        .n_in = a->n_in,
                        .n_out = a->n_out,
                        .align = {alignment(a->x), alignment(a->w), alignment(a->d),
                                  a->bias ? alignment(a->bias) : 0}};
}

int cu_lt_matmul(struct cu_lt *lt, const struct cu_lt_args *a)
{
    const float one = 1, zero = 0;
    if (!lt || !a || !args_ok(a))
        return CU_BAD;
    if (!a->n)
        return 0;
    const struct key k = key_of(a);
    struct slot *s = slot_of(lt, &k);
    if (!s->key.n) {
        s->status = search(lt, a, &k, &s->algo);
        if (s->status == LT_ALLOC_FAILED) /* may go well the next time */
            return CU_LT_NO_MEMORY;
        s->key = k;
    }
    if (s->status)
        return error_of(s->status);
    struct shape m;
    int rc = shape_open(&lt->api, &m, a, a->n);
    if (!rc)
        rc = lt->api.matmul(lt->handle, m.desc, &one, a->w, m.w, a->x, m.x, &zero, a->d, m.d, a->d,
                            m.d, &s->algo, a->ws, a->ws_bytes, a->st);
    shape_close(&lt->api, &m);
    return error_of(rc);
}
