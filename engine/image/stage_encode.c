/* The first stage: prompts to hidden states, pictures that are edited to latents, the starting noise. See model.h. */
#include "engine/base/mem.h"
#include "engine/image/tile.h"

#include <stdlib.h>
#include <string.h>

#define TEXTS 16 /* encoded in one run */

struct texts {
    struct pipe *p;
    const char *text[TEXTS];
    struct img_cond *out[TEXTS];
    int n, rc;
    struct err *e;
};

static void texts_body(struct image_model *m, void *arg)
{
    struct texts *t = arg;
    for (int i = 0; i < t->n; i++) {
        img_cond_drop(t->out[i]); /* of the dry run */
        t->out[i] = NULL;
    }
    if (!t->rc)
        t->rc = t->p->cls->encode(t->p, &m->nn, t->text, t->n, t->out, t->e);
}

/* Encode what t holds; every text's result goes to the cache. The caller drops t->out. */
static int texts_run(struct image_model *m, int pipe, struct texts *t, const struct img_yield *y)
{
    int rc = imodel__run(m, &(struct image_body){texts_body, t, y}, NULL, t->e);
    if (t->rc)
        rc = t->rc;
    for (int i = 0; i < t->n && !rc; i++)
        cond_cache_put(m->cache, pipe, t->text[i], t->out[i]);
    return rc;
}

struct want {
    const char *text;
    struct img_cond **to;
};

/* Which encodings the jobs still need of a pipe; [2 n]. */
static int wants(struct image_model *m, int pipe, struct img_job *const *j, int n, struct want *w)
{
    const struct pipe *p = &m->pipe[pipe];
    int n_want = 0;
    for (int i = 0; i < n; i++) {
        if (pipe >= j[i]->n_phase)
            continue;
        struct job_phase *f = &j[i]->phase[pipe];
        if (!f->cond)
            w[n_want++] = (struct want){j[i]->p.prompt, &f->cond};
        bool two = !p->embedded_guidance && j[i]->p.guidance > p->guidance_off;
        if (two && !f->uncond && (*j[i]->p.negative || !p->zero_negative))
            w[n_want++] = (struct want){j[i]->p.negative, &f->uncond};
    }
    return n_want;
}

/* The distinct texts of w that neither the cache has nor an earlier batch gave, TEXTS at a time or as many as the work
 * memory holds. */
static int texts_encode(struct image_model *m, int pipe, struct want *w, int n_want,
                        const struct img_yield *y, struct err *e)
{
    int rc = 0, left = n_want, most = TEXTS;
    while (left && !rc) {
        struct texts t = {.p = &m->pipe[pipe], .e = e};
        for (int i = 0; i < n_want; i++) {
            int k = 0;
            if (!w[i].text ||
                (!*w[i].to && (*w[i].to = cond_cache_get(m->cache, pipe, w[i].text)))) {
                left -= w[i].text != NULL;
                w[i].text = NULL;
                continue;
            }
            while (k < t.n && strcmp(t.text[k], w[i].text) != 0)
                k++;
            if (k == t.n && t.n < most)
                t.text[t.n++] = w[i].text;
        }
        if (!t.n)
            break;
        rc = texts_run(m, pipe, &t, y);
        for (int k = 0; k < t.n; k++) {
            for (int i = 0; i < n_want && !rc; i++)
                if (w[i].text && !strcmp(w[i].text, t.text[k])) {
                    *w[i].to = t.out[k];
                    t.out[k]->refs++;
                    w[i].text = NULL;
                    left--;
                }
            img_cond_drop(t.out[k]);
        }
        if (rc == ERR_NOMEM && t.n > 1) {
            most = t.n / 2;
            rc = 0;
        }
    }
    return rc;
}

/* Zeros in place of an empty negative prompt, where the model was trained so. */
static int zero_conds(struct image_model *m, int pipe, struct img_job *const *j, int n,
                      struct err *e)
{
    const struct pipe *p = &m->pipe[pipe];
    for (int i = 0; i < n; i++) {
        if (pipe >= j[i]->n_phase)
            continue;
        struct job_phase *f = &j[i]->phase[pipe];
        bool two = !p->embedded_guidance && j[i]->p.guidance > p->guidance_off;
        if (!two || f->uncond)
            continue;
        f->uncond = img_cond_new(f->cond->n_tok, f->cond->dim, f->cond->n_pooled);
        if (!f->uncond)
            return err_set(e, ERR_NOMEM, "no memory for a prompt");
    }
    return 0;
}

static int prompts_encode(struct image_model *m, int pipe, struct img_job *const *j, int n,
                          const struct img_yield *y, struct err *e)
{
    struct want *w = mem_calloc((size_t)n * 2, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for %d prompts", n);
    int n_want = wants(m, pipe, j, n, w);
    int rc = texts_encode(m, pipe, w, n_want, y, e);
    free(w);
    return rc ? rc : zero_conds(m, pipe, j, n, e);
}

struct encode_image {
    struct pipe *p;
    struct img_tile *t;
};
static void image_body(struct image_model *m, void *arg)
{
    struct encode_image *a = arg;
    a->p->cls->encode_image(a->p, &m->nn, a->t, 1);
}

static size_t image_peak(struct image_model *m, int h, int w)
{
    struct img_tile t = {.h = h, .w = w};
    struct encode_image a = {&m->pipe[0], &t};
    size_t peak = imodel__peak(m, &(struct image_body){image_body, &a, NULL});
    return peak ? peak : SIZE_MAX;
}

static int tiles_encode(struct image_model *m, struct img_tile *whole, struct img_tile *t,
                        struct tile_canvas *v, const struct img_yield *y, struct err *e)
{
    struct encode_image a = {&m->pipe[0], t};
    int f = a.p->factor, rc = 0, n = tile_count(t, whole->h, whole->w);
    for (int i = 0; i < n && !rc; i++) {
        struct tile_rect r = {.w = t->w, .h = t->h};
        tile_at(t, whole->h, whole->w, i, &r.y0, &r.x0);
        tile_cut(t->rgb, whole->rgb, 3, whole->w * f, whole->h * f,
                 &(struct tile_rect){r.x0 * f, r.y0 * f, r.w * f, r.h * f});
        rc = imodel__run(m, &(struct image_body){image_body, &a, y}, NULL, e);
        if (!rc)
            tile_canvas_add(v, t->latent, &r);
    }
    if (!rc) {
        tile_canvas_finish(v);
        memcpy(whole->latent, v->sum,
               (size_t)a.p->c * (size_t)whole->h * (size_t)whole->w * sizeof(float));
    }
    return rc;
}

static int encode_tiled(struct image_model *m, struct img_tile *whole, const struct img_yield *y,
                        struct err *e)
{
    const struct pipe *p = &m->pipe[0];
    struct img_tile t = {0};
    struct tile_canvas v;
    int rc = tile_pick(m, image_peak, whole->h, whole->w, &t, e);
    if (rc)
        return rc;
    size_t tile = (size_t)t.w * (size_t)t.h;
    rc = tile_canvas_open(&v, p->c, whole->w, whole->h);
    t.latent = mem_alloc(tile * (size_t)p->c * sizeof(float));
    t.rgb = mem_alloc(tile * (size_t)(p->factor * p->factor) * 3 * sizeof(float));
    if (rc || !t.latent || !t.rgb)
        rc = err_set(e, ERR_NOMEM, "no memory for a picture's tiles");
    else
        rc = tiles_encode(m, whole, &t, &v, y, e);
    tile_canvas_close(&v);
    free(t.latent);
    free(t.rgb);
    return rc;
}

int imodel__encode_image(struct image_model *m, struct img_tile *t, const struct img_yield *y,
                         struct err *e)
{
    struct encode_image a = {&m->pipe[0], t};
    if (!a.p->cls->encode_image)
        return err_set(e, ERR_UNSUPPORTED, "this model does not edit pictures");
    size_t peak = image_peak(m, t->h, t->w);
    if (peak != SIZE_MAX && peak > m->work_max)
        return encode_tiled(m, t, y, e);
    return imodel__run(m, &(struct image_body){image_body, &a, y}, NULL, e);
}

/* RGB8 -> [3, H, W] in [-1, 1]; pixels to repaint become 0 where `mask` is given. */
static void to_float(const struct img_params *p, const uint8_t *mask, float *dst)
{
    size_t n = (size_t)p->width * (size_t)p->height;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++) {
            float v = (float)p->init[i * 3 + c] / 255;
            dst[c * n + i] = mask && mask[i] >= 128 ? 0 : 2 * v - 1;
        }
}

/* The mask at latent resolution, nearest pixel, 1 = keep. */
static void mask_shrink(struct img_job *j)
{
    for (int y = 0; y < j->h; y++)
        for (int x = 0; x < j->w; x++) {
            size_t py = (size_t)y * (size_t)j->p.height / (size_t)j->h;
            size_t px = (size_t)x * (size_t)j->p.width / (size_t)j->w;
            j->keep[y * j->w + x] = j->p.mask[py * (size_t)j->p.width + px] < 128;
        }
}

static int image_start(struct img_job *j, const struct img_yield *y, struct err *e)
{
    size_t n = (size_t)j->p.width * (size_t)j->p.height;
    struct img_tile t = {.h = j->h, .w = j->w, .latent = j->clean};
    t.rgb = mem_alloc(n * 3 * sizeof(float));
    if (!t.rgb)
        return err_set(e, ERR_NOMEM, "no memory for a picture");
    to_float(&j->p, NULL, t.rgb);
    int rc = imodel__encode_image(j->m, &t, y, e);
    if (!rc && j->keep)
        mask_shrink(j);
    if (!rc && j->extra && j->p.mask) { /* mask, then what is outside of it */
        size_t map = (size_t)j->h * (size_t)j->w;
        for (size_t i = 0; i < map; i++)
            j->extra[i] = 1 - j->keep[i];
        to_float(&j->p, j->p.mask, t.rgb);
        t.latent = j->extra + map;
        rc = imodel__encode_image(j->m, &t, y, e);
    }
    free(t.rgb);
    return rc;
}

/* An inpainting denoiser asked for a picture from nothing: all is to be painted. */
static void extra_blank(struct img_job *j)
{
    size_t map = (size_t)j->h * (size_t)j->w;
    for (size_t i = 0; j->extra && !j->p.mask && i < map; i++)
        j->extra[i] = 1;
}

static void latents_start(struct img_job *j)
{
    const struct nsched_table *t = j->phase[0].table;
    if (!j->clean) {
        job__randn(j, j->x, j->n);
        for (size_t i = 0; i < j->n; i++)
            j->x[i] *= t->init_sigma;
        return;
    }
    job__randn(j, j->noise, j->n);
    if (j->keep && j->step == 0) { /* full strength: nothing of what is repainted shows through */
        for (size_t i = 0; i < j->n; i++)
            j->x[i] = j->noise[i] * t->init_sigma;
        return;
    }
    nsched_add_noise(t, j->step, j->clean, j->noise, j->x, j->n);
}

int imodel__encode(struct image_model *m, struct img_job *const *j, int n,
                   const struct img_yield *y, struct err *e)
{
    int rc = 0;
    for (int p = 0; p < m->n_pipe && !rc; p++)
        rc = prompts_encode(m, p, j, n, y, e);
    for (int i = 0; i < n && !rc; i++)
        if (j[i]->p.init)
            rc = image_start(j[i], y, e);
    for (int i = 0; i < n && !rc; i++) {
        const struct job_phase *f = &j[i]->phase[0];
        j[i]->prompt_tokens = f->cond->prompt_tokens + (f->uncond ? f->uncond->prompt_tokens : 0);
        extra_blank(j[i]);
        latents_start(j[i]);
        j[i]->stage = IMG_DENOISE;
    }
    return rc;
}
