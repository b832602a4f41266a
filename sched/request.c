/* See request.h. */
#include "sched/request.h"

#include "engine/base/mem.h"

struct request *request_new(void)
{
    return mem_calloc(1, sizeof(struct request));
}

void request_free(struct request *r)
{
    if (!r)
        return;
    if (r->image) {
        free((void *)r->image->p.prompt);
        free((void *)r->image->p.negative);
        free((void *)r->image->p.init);
        free((void *)r->image->p.mask);
        free(r->image);
    }
    free(r->prompt);
    free(r->samp.bias);
    free(r->samp.mask);
    grammar_unref(r->samp.grammar);
    free(r);
}

struct req_image *req_image_new(void)
{
    return mem_calloc(1, sizeof(struct req_image));
}

struct img_pixels *img_pixels_new(int width, int height)
{
    size_t n;
    if (width < 1 || height < 1 || !ck_mul((size_t)width, (size_t)height, &n) ||
        !ck_mul(n, 3, &n) || !ck_add(n, sizeof(struct img_pixels), &n))
        return NULL;
    struct img_pixels *p = mem_alloc(n);
    if (p) {
        p->width = width;
        p->height = height;
    }
    return p;
}

void img_pixels_free(struct img_pixels *p)
{
    free(p);
}
