/* Running a body twice: dry for its memory, then for real. See model.h. */
#include "engine/image/model.h"

size_t imodel__peak(struct image_model *m, const struct image_body *b)
{
    m->nn.yield = NULL;
    nn_begin(&m->nn, true);
    b->fn(m, b->arg);
    return m->nn.rc ? 0 : m->nn.mem.peak;
}

int imodel__run(struct image_model *m, const struct image_body *b, size_t *peak, struct err *e)
{
    size_t need = imodel__peak(m, b);
    if (peak)
        *peak = need;
    if (m->nn.rc)
        return nn_end(&m->nn, e);
    if (need > m->work_max)
        return err_set(e, ERR_NOMEM,
                       "an image step needs %zu MiB of work memory, %zu MiB are allowed",
                       need >> 20, m->work_max >> 20);
    int rc = nn_reserve(&m->nn, need);
    if (rc)
        return err_set(e, rc, "no device memory for an image step: %zu MiB", need >> 20);
    nn_begin(&m->nn, false);
    m->nn.yield = b->yield;
    b->fn(m, b->arg);
    rc = nn_end(&m->nn, e);
    m->nn.yield = NULL;
    return rc;
}
