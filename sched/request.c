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
    if (r->encode) {
        free(r->encode->start);
        free(r->encode->second);
        free(r->encode);
    }
    if (r->audio) {
        aud_mel_free(r->audio->mel);
        free(r->audio->prompt);
        free(r->audio);
    }
    free(r->prompt);
    free(r->predict);
    free(r->think);
    free(r->samp.bias);
    free(r->samp.mask);
    grammar_unref(r->samp.grammar);
    free(r);
}

struct req_image *req_image_new(void)
{
    return mem_calloc(1, sizeof(struct req_image));
}

struct req_audio *req_audio_new(void)
{
    return mem_calloc(1, sizeof(struct req_audio));
}

struct req_encode *req_encode_new(int n_row, bool pairs)
{
    struct req_encode *x = mem_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->n_row = n_row;
    x->start = mem_calloc((size_t)n_row + 1, sizeof *x->start);
    x->second = pairs ? mem_calloc((size_t)n_row, sizeof *x->second) : NULL;
    if (x->start && (x->second || !pairs))
        return x;
    free(x->start);
    free(x->second);
    free(x);
    return NULL;
}

void event_copy(struct event *dst, const struct event *src)
{
    size_t n = sizeof *dst;
    if (src->kind == EV_TOKEN || src->kind == EV_PROMPT)
        n = src->tok.n_top > 0 ? offsetof(struct event, err)
                               : offsetof(struct event, tok) + offsetof(struct sample_out, top_id);
    memcpy(dst, src, n);
}

void event_drop(const struct event *ev)
{
    img_pixels_free(ev->px);
    free(ev->vec);
    aud_piece_free(ev->audio);
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
