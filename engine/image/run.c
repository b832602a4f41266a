/* Running a body twice: dry for its memory, then for real. See model.h. */
#include "engine/image/model.h"

struct call {
    struct image_model *m;
    const struct image_body *b;
};

static void call(struct nn *n, void *arg)
{
    const struct call *c = arg;
    (void)n; /* the model's */
    c->b->fn(c->m, c->b->arg);
}

size_t imodel__peak(struct image_model *m, const struct image_body *b)
{
    return nn_peak(&m->nn, &(struct nn_body){.fn = call, .arg = &(struct call){m, b}});
}

int imodel__run(struct image_model *m, const struct image_body *b, size_t *peak, struct err *e)
{
    struct call c = {m, b};
    return nn_do(
        &m->nn,
        &(struct nn_body){
            .fn = call, .arg = &c, .what = "an image step", .most = m->work_max, .yield = b->yield},
        peak, e);
}
