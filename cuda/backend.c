/* The CUDA backend: device, buffers, weights, KV pool. See ops.h for the contract. Exports stepd_backend; the emulated
 * build of the same source is the device "cuda-emu". */
#include "cuda/backend_impl.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)DT_F32 == CU_F32 && (int)DT_F16 == CU_F16 && (int)DT_BF16 == CU_BF16 &&
                   (int)DT_I8 == CU_I8 && (int)DT_F8 == CU_F8,
               "dtypes");
_Static_assert((int)ACT_SILU == CU_ACT_SILU && (int)ACT_GELU_ERF == CU_ACT_GELU_ERF &&
                   (int)ACT_SWIGLU_OAI == CU_ACT_SWIGLU_OAI,
               "activations");
_Static_assert((int)ROPE_NORM == CU_ROPE_NORM && (int)ROPE_NONE == CU_ROPE_NONE, "rotations");
_Static_assert(KV_BLOCK_TOKENS == CU_BLOCK_TOKENS, "KV block");

int cu__check(struct dev *d, cudaError_t e, const char *what)
{
    if (d->failed)
        return d->failed;
    if (e == cudaSuccess)
        return 0;
    log_error("cuda", "op=%s error=%s text=\"%s\"", what, cudaGetErrorName(e),
              cudaGetErrorString(e));
    d->failed = ERR_DEVICE;
    return d->failed;
}

int cu__launched(struct dev *d, int rc, const char *what)
{
    if (rc == CU_BAD)
        log_error("cuda", "op=%s error=\"its kernel refuses these shapes\"", what);
    return rc == CU_BAD ? ERR_INVAL : cu__check(d, (cudaError_t)rc, what);
}

void *cu__ptr(const struct dev *d, const struct tensor *t)
{
    size_t n, end;
    if (t->buf == 0 || t->buf > (dev_buf)d->n_buf || !d->bufs[t->buf - 1].p || !ops_extent(t, &n) ||
        !ck_add(n, t->off, &end) || end > d->bufs[t->buf - 1].n || t->off % 2 != 0)
        return NULL;
    return (char *)d->bufs[t->buf - 1].p + t->off;
}

int cu__grow(struct dev *d, struct grow *g, size_t bytes, bool zero)
{
    size_t want = bytes + bytes / 4;
    if (bytes <= g->n)
        return 0;
    if (want < bytes)
        return ERR_NOMEM;
    int rc = cu__check(d, cudaStreamSynchronize(d->stream), "grow");
    if (rc)
        return rc;
    void *p = NULL;
    if (cudaMalloc(&p, want) != cudaSuccess) {
        cudaGetLastError();
        return ERR_NOMEM;
    }
    cudaFree(g->p);
    g->p = p;
    g->n = want;
    return zero ? cu__check(d, cudaMemsetAsync(p, 0, want, d->stream), "clear") : 0;
}

int cu__pinned(struct dev *d, struct grow *g, size_t n)
{
    if (n <= g->n)
        return 0;
    cudaFreeHost(g->p);
    *g = (struct grow){0};
    int rc = cu__check(d, cudaMallocHost(&g->p, n + n / 4), "pinned memory");
    if (!rc)
        g->n = n + n / 4;
    return rc;
}

static void slots_close(struct dev *d)
{
    for (int i = 0; i < N_SLOT; i++) {
        cudaFreeHost(d->slot[i].meta.p);
        cudaFreeHost(d->slot[i].sample.p);
        cudaFreeHost(d->slot[i].out.p);
        if (d->slot[i].done)
            cudaEventDestroy(d->slot[i].done);
    }
}

static void dev_close(struct dev *d)
{
    if (!d)
        return;
    if (d->stream)
        cudaStreamSynchronize(d->stream);
    cu__graphs_drop(d);
    cu_lt_close(d->lt);
    slots_close(d);
    cu__image_close(d);
    struct grow *all[] = {&d->dev_lone, &d->dev_meta, &d->dev_sample, &d->dev_out, &d->dev_seen,
                          &d->ws,       &d->attn_ws,  &d->flags,      &d->moe_ws,  &d->cols};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cudaFree(all[i]->p);
    cudaFree(d->sampled);
    for (int i = 0; i < d->n_buf; i++)
        cudaFree(d->bufs[i].p);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    free(d->bufs);
    free(d->rec);
    free(d);
}

/* "sm_80", "sm_80/rev", "/7": the path to take, and in emulation the order of threads. */
static int isa_parse(struct dev *d, const char *isa, struct err *e)
{
    const char *slash = isa ? strchr(isa, '/') : NULL;
    size_t n = !isa ? 0 : slash ? (size_t)(slash - isa) : strlen(isa);
    if (n == 5 && (!strncmp(isa, "sm_80", n) || !strncmp(isa, "sm_90", n))) {
        int cc = isa[3] == '8' ? 80 : 90;
        d->cc = cc < d->cc ? cc : d->cc;
    } else if (n) {
        return err_set(e, ERR_INVAL, "isa '%.32s': known are sm_80, sm_90", isa);
    }
#ifdef CUDA_EMU
    if (slash)
        emu_set_order(slash + 1);
#else
    if (slash)
        return err_set(e, ERR_INVAL, "isa '%.32s': an order of threads is for the emulation", isa);
#endif
    return 0;
}

static int device_pick(struct dev *d, struct err *e)
{
    int n = 0, major = 0, minor = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n < 1)
        return err_set(e, ERR_NOTFOUND, "no CUDA device: %s",
                       rc != cudaSuccess ? cudaGetErrorString(rc) : "none found");
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    d->cc = major * 10 + minor;
    d->wide = minor == 0 && major <= 10; /* 8.0, 9.0, 10.0; its other members have 99 KiB */
    if (major < 8)
        return err_set(e, ERR_UNSUPPORTED, "the GPU has compute capability %d.%d; 8.0 is the least",
                       major, minor);
    if (cudaSetDevice(0) != cudaSuccess ||
        cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking) != cudaSuccess)
        return err_set(e, ERR_DEVICE, "the GPU does not open: %s",
                       cudaGetErrorString(cudaGetLastError()));
    for (int i = 0; i < N_SLOT; i++)
        if (cudaEventCreateWithFlags(&d->slot[i].done, cudaEventDisableTiming) != cudaSuccess)
            return err_set(e, ERR_DEVICE, "no CUDA event: %s",
                           cudaGetErrorString(cudaGetLastError()));
    return 0;
}

static int dev_open(struct dev **out, const struct backend_opts *o, struct err *e)
{
    const char *env = getenv("STEPD_CUDA_GRAPHS");
    struct dev *d = mem_calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_NOMEM, "no memory for the CUDA backend");
    d->f32 = o->precision == PRECISION_F32;
    d->loose = o->loose;
    d->graphs = !(env && env[0] == '0');
    int rc = device_pick(d, e);
    if (!rc)
        rc = isa_parse(d, o->isa, e);
    if (rc) {
        dev_close(d);
        return rc;
    }
    if (d->loose && !d->f32 && cu_lt_open(&d->lt)) {
        d->lt = NULL; /* our own products serve */
        log_info("cuda", "cublaslt=missing products=own");
    }
    if (o->precision == PRECISION_INT8)
        log_info("cuda", "precision=int8 has no products of its own here: bf16 is used");
    *out = d;
    return 0;
}

static void dev_info(const struct dev *d, struct backend_info *out)
{
    *out = (struct backend_info){
        .mul_dtype = d->f32 ? DT_F32 : DT_BF16, .n_threads = 1, .lookahead = true};
#ifdef CUDA_EMU
    const char *name = "cuda-emu";
#else
    const char *name = "cuda";
#endif
    snprintf(out->name, sizeof out->name, "%s sm_%d %s", name, d->cc, d->f32 ? "f32" : "bf16");
}

static int dev_memory(size_t *free_bytes, size_t *total)
{
    return cudaMemGetInfo(free_bytes, total) == cudaSuccess ? 0 : ERR_DEVICE;
}

/* ---- buffers ---- */

static int buf_alloc(struct dev *d, size_t bytes, dev_buf *out)
{
    int i = 0;
    void *p = NULL;
    if (d->failed)
        return d->failed;
    while (i < d->n_buf && d->bufs[i].p)
        i++;
    if (i == d->n_buf) {
        struct cu_buf *all = mem_realloc(d->bufs, ((size_t)i + 1) * sizeof *all);
        if (!all)
            return ERR_NOMEM;
        d->bufs = all;
        d->bufs[d->n_buf++] = (struct cu_buf){0};
    }
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return ERR_NOMEM;
    }
    d->bufs[i] = (struct cu_buf){p, bytes};
    *out = (dev_buf)i + 1;
    return cu__check(d, cudaMemsetAsync(p, 0, bytes, d->stream), "clear");
}

static struct cu_buf *buf_find(struct dev *d, dev_buf b, size_t off, size_t n)
{
    size_t end;
    if (b == 0 || b > (dev_buf)d->n_buf || !d->bufs[b - 1].p || !ck_add(off, n, &end) ||
        end > d->bufs[b - 1].n)
        return NULL;
    return &d->bufs[b - 1];
}

/* Before memory that ops name goes away: nothing runs, and no graph is kept that would take an equal address for it. */
static void quiet(struct dev *d)
{
    cu__flush(d);
    cudaStreamSynchronize(d->stream);
    cu__graphs_drop(d);
}

static void buf_free(struct dev *d, dev_buf b)
{
    struct cu_buf *p = buf_find(d, b, 0, 0);
    if (!p)
        return;
    quiet(d);
    cudaFree(p->p);
    *p = (struct cu_buf){0};
}

static int buf_write(struct dev *d, dev_buf b, size_t off, const void *src, size_t n)
{
    struct cu_buf *p = buf_find(d, b, off, n);
    int rc = p ? cu__flush(d) : ERR_INVAL;
    if (rc || n == 0)
        return rc;
    return cu__check(
        d, cudaMemcpyAsync((char *)p->p + off, src, n, cudaMemcpyHostToDevice, d->stream), "write");
}

static int buf_read(struct dev *d, dev_buf b, size_t off, void *dst, size_t n)
{
    struct cu_buf *p = buf_find(d, b, off, n);
    int rc = p ? cu__flush(d) : ERR_INVAL;
    if (rc || n == 0)
        return rc;
    rc = cu__check(
        d, cudaMemcpyAsync(dst, (char *)p->p + off, n, cudaMemcpyDeviceToHost, d->stream), "read");
    return rc ? rc : cu__check(d, cudaStreamSynchronize(d->stream), "read");
}

/* ---- weights and KV ---- */

static void weight_close(struct dev *d, struct dev_weight *w)
{
    if (!w)
        return;
    quiet(d);
    cu__tables_drop(d);
    cudaFree(w->mem);
    cudaFree(w->col);
    free(w);
}

/* Packs on the host and copies; the staging memory is this weight's size. */
static int weight_upload(struct dev *d, struct dev_weight *w, const struct weight_desc *desc,
                         size_t bytes, struct err *e)
{
    void *host = mem_aligned(64, bytes);
    int rc = host ? cu_weight_pack(&w->w, desc, host) : ERR_NOMEM;
    if (rc)
        err_set(e, rc, "%s: no host memory for %zu bytes of packing", desc->name, bytes);
    else if (cudaMalloc(&w->mem, bytes) != cudaSuccess)
        rc = err_set(e, ERR_NOMEM, "%s: %zu bytes do not fit into the GPU's memory", desc->name,
                     bytes);
    else if ((rc = cu__check(
                  d, cudaMemcpyAsync(w->mem, host, bytes, cudaMemcpyHostToDevice, d->stream),
                  "weight")) ||
             (rc = cu__check(d, cudaStreamSynchronize(d->stream), "weight")))
        err_set(e, rc, "%s: the copy to the GPU failed", desc->name);
    free(host);
    cudaGetLastError();
    return rc;
}

/* The order of its columns. */
static int col_upload(struct dev *d, struct dev_weight *w, const struct weight_desc *desc,
                      struct err *e)
{
    const size_t n = (size_t)desc->n_in * sizeof *desc->col;
    int rc = cudaMalloc(&w->col, n) == cudaSuccess ? 0 : ERR_NOMEM;
    if (!rc)
        rc = cu__check(d, cudaMemcpyAsync(w->col, desc->col, n, cudaMemcpyHostToDevice, d->stream),
                       "weight");
    if (!rc)
        rc = cu__check(d, cudaStreamSynchronize(d->stream), "weight");
    cudaGetLastError();
    w->w.col = w->col;
    return rc ? err_set(e, rc, "%s: its order of columns does not get to the GPU", desc->name) : 0;
}

static int weight_open(struct dev *d, struct dev_weight **out, const struct weight_desc *desc,
                       struct err *e)
{
    size_t bytes;
    int rc = ops_check_weight(desc, e);
    if (rc)
        return rc;
    struct dev_weight *w = mem_calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "%s: no memory", desc->name);
    rc = d->lt ? cu_weight_plan_lt(&w->w, desc, &bytes, e)
               : cu_weight_plan(&w->w, desc, d->f32, &bytes, e);
    if (!rc)
        rc = weight_upload(d, w, desc, bytes, e);
    if (!rc && desc->col)
        rc = col_upload(d, w, desc, e);
    if (rc) {
        weight_close(d, w);
        return rc;
    }
    cu_weight_bind(&w->w, w->mem);
    *out = w;
    return 0;
}

static size_t weight_bytes(const struct weight_desc *w, enum eng_precision p)
{
    struct cu_weight plan;
    size_t n = 0;
    return cu_weight_plan(&plan, w, p == PRECISION_F32, &n, NULL) ? 0 : n;
}

static struct cu_kv kv_shape(const struct kv_desc *k)
{
    return (struct cu_kv){.n_layer = k->n_layer,
                          .n_kv_head = k->n_kv_head,
                          .head_dim = k->head_dim,
                          .n_block = k->n_block,
                          .dt = (int32_t)k->dtype,
                          .k_only = k->k_only};
}

static size_t kv_block_bytes(const struct kv_desc *k)
{
    struct cu_kv s = kv_shape(k);
    return cu_kv_layer_block_bytes(&s) * (size_t)k->n_layer;
}

static void kv_close(struct dev *d, struct dev_kv *kv)
{
    if (!kv)
        return;
    quiet(d);
    cudaFree(kv->kv.p);
    free(kv);
}

static int kv_open(struct dev *d, struct dev_kv **out, const struct kv_desc *k, struct err *e)
{
    size_t bytes;
    int rc = ops_check_kv(k, e);
    if (rc)
        return rc;
    struct dev_kv *kv = mem_calloc(1, sizeof *kv);
    if (!kv || !ck_mul(kv_block_bytes(k), (size_t)k->n_block, &bytes)) {
        free(kv);
        return err_set(e, ERR_NOMEM, "no memory for a KV pool of %d blocks", (int)k->n_block);
    }
    kv->desc = *k;
    kv->kv = kv_shape(k);
    if (cudaMalloc(&kv->kv.p, bytes) != cudaSuccess) {
        cudaGetLastError();
        kv_close(d, kv);
        return err_set(e, ERR_NOMEM, "a KV pool of %zu bytes does not fit into the GPU's memory",
                       bytes);
    }
    *out = kv;
    return 0;
}

static int dev_sync(struct dev *d)
{
    int rc = cu__flush(d);
    if (!rc)
        rc = cu__check(d, cudaStreamSynchronize(d->stream), "sync");
    while (!rc && d->n_open)
        cu__sample_fill(d);
    return rc;
}

extern __attribute__((visibility("default"))) const struct backend stepd_backend;
const struct backend stepd_backend = {.abi = BACKEND_ABI,
#ifdef CUDA_EMU
                                      .name = "cuda-emu",
#else
                                      .name = "cuda",
#endif
                                      .open = dev_open,
                                      .close = dev_close,
                                      .info = dev_info,
                                      .memory = dev_memory,
                                      .buf_alloc = buf_alloc,
                                      .buf_free = buf_free,
                                      .write = buf_write,
                                      .read = buf_read,
                                      .weight_open = weight_open,
                                      .weight_close = weight_close,
                                      .weight_bytes = weight_bytes,
                                      .kv_open = kv_open,
                                      .kv_close = kv_close,
                                      .kv_block_bytes = kv_block_bytes,
                                      .step_begin = cu__step_begin,
                                      .sync = dev_sync,
                                      .sample_wait = cu__sample_wait,
                                      .embed = cu__embed,
                                      .rmsnorm = cu__rmsnorm,
                                      .linear = cu__linear,
                                      .rope_kv = cu__rope_kv,
                                      .attn = cu__attn,
                                      .act_mul = cu__act_mul,
                                      .gather = cu__gather,
                                      .scale = cu__scale,
                                      .sample = cu__sample,
                                      .kv_copy = cu__kv_copy,
                                      .state_open = cu__state_open,
                                      .state_close = cu__state_close,
                                      .image_begin = cu__image_begin,
#define IMAGE_FIELD(name) .name = cu__##name,
                                      OPS_IMAGE_LIST(IMAGE_FIELD) OPS_STATE_LIST(IMAGE_FIELD)
                                          OPS_MOE_LIST(IMAGE_FIELD) OPS_MLA_LIST(IMAGE_FIELD)
#undef IMAGE_FIELD
};
