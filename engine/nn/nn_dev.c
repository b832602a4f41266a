/* The device of models that are not language decoders. See nn.h. */
#include "engine/nn/nn.h"

#include <stdio.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/engine.h"
#include "engine/kv.h"

int nn_backend(struct nn *n, const struct eng_opts *o, const char *what, struct err *e)
{
    const struct backend *be;
    if (o->device && !strcmp(o->device, "null"))
        return err_set(e, ERR_UNSUPPORTED, "device null has no %s", what);
    int rc = backend_find(o->device, &be, e);
    if (!rc)
        *n = (struct nn){.be = be, .mul = DT_F32, .failed = ""};
    return rc;
}

int nn_open(struct nn *n, const struct eng_opts *o, enum eng_precision precision, const char *work,
            struct eng_info *info, struct err *e)
{
    struct backend_opts bo = {.n_threads = o->n_threads,
                              .pin = !o->no_pin,
                              .isa = o->isa,
                              .precision = precision,
                              .loose = o->loose};
    struct backend_info bi = {0};
    const struct backend *be = n->be;
    struct dev *dev;
    if (!be->image_begin)
        return err_set(e, ERR_UNSUPPORTED, "device %s can't %s", be->name, work);
    int rc = be->open(&dev, &bo, e);
    if (rc)
        return rc;
    be->info(dev, &bi);
    snprintf(info->backend, sizeof info->backend, "%s", bi.name);
    *n = (struct nn){.be = be, .dev = dev, .mul = bi.mul_dtype, .failed = ""};
    return 0;
}

size_t nn_memory(const struct backend *be)
{
    size_t free_bytes = 0, total;
    if (be->memory)
        return be->memory(&free_bytes, &total) ? 0 : free_bytes;
    return eng_memory_available("");
}

size_t nn_peak(struct nn *n, const struct nn_body *b)
{
    n->yield = NULL;
    nn_begin(n, true);
    b->fn(n, b->arg);
    return n->rc ? 0 : n->mem.peak;
}

int nn_do(struct nn *n, const struct nn_body *b, size_t *peak, struct err *e)
{
    size_t need = nn_peak(n, b);
    if (peak)
        *peak = need;
    if (n->rc)
        return nn_end(n, e);
    if (b->most && need > b->most)
        return err_set(e, ERR_NOMEM, "%s needs %zu MiB of work memory, %zu MiB are allowed",
                       b->what, need >> 20, b->most >> 20);
    int rc = nn_reserve(n, need);
    if (rc)
        return err_set(e, rc, "no device memory for %s: %zu MiB", b->what, need >> 20);
    nn_begin(n, false);
    n->yield = b->yield;
    b->fn(n, b->arg);
    rc = nn_end(n, e);
    n->yield = NULL;
    return rc;
}

void nn_plan(const struct nn *n, const struct source *src, const struct eng_info *info,
             struct eng_memory *out)
{
    out->file = source_bytes(src);
    out->weights = info->weight_bytes;
    out->kv = info->kv_bytes;
    out->total = out->weights + out->work + out->kv;
    out->n_ctx = info->n_ctx;
    out->available = nn_memory(n->be);
}
