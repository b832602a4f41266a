/* The device of models that are not language decoders. See nn.h. */
#include "engine/nn/nn.h"

#include <stdio.h>

#include "engine/backend.h"
#include "engine/engine.h"
#include "engine/kv.h"

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
