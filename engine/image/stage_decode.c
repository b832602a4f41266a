/* The last stage: latents to pixels, whole where the work memory allows it, else in overlapping tiles that are blended.
 * Whether a picture is tiled depends on its size and the engine's limit alone, never on what else is decoded, so its
 * bytes do not either. See model.h. */
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/image/tile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GROUP 8 /* pictures decoded in one run */

struct tiles {
    struct pipe *p;
    struct img_tile *t; /* [n] */
    int n;
};

static void tiles_body(struct image_model *m, void *arg)
{
    struct tiles *a = arg;
    a->p->cls->decode(a->p, &m->nn, a->t, a->n);
}

/* Every pipe's latents are alike, but the last one's VAE is the one that its denoiser was trained with. */
static struct pipe *decoder(struct image_model *m)
{
    return &m->pipe[m->n_pipe - 1];
}

static size_t tiles_peak(struct image_model *m, struct img_tile *t, int n)
{
    struct tiles a = {decoder(m), t, n};
    size_t peak = imodel__peak(m, &(struct image_body){tiles_body, &a, NULL});
    return peak ? peak : SIZE_MAX;
}

size_t imodel__decode_peak(struct image_model *m, int h, int w)
{
    return tiles_peak(m, &(struct img_tile){.h = h, .w = w}, 1);
}

static int tiles_run(struct image_model *m, struct img_tile *t, int n, const struct img_yield *y,
                     struct err *e)
{
    struct tiles a = {decoder(m), t, n};
    return imodel__run(m, &(struct image_body){tiles_body, &a, y}, NULL, e);
}

/* [3, H, W] in [-1, 1] -> RGB8, rounded as numpy does; what a mask keeps are the original's own bytes. */
static void to_pixels(struct img_job *j, const float *rgb)
{
    size_t n = (size_t)j->p.width * (size_t)j->p.height;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++) {
            float v = rgb[c * n + i] / 2 + 0.5f;
            v = v > 0 ? v < 1 ? v : 1 : 0; /* NaN is black */
            bool keep = j->p.mask && j->p.mask[i] < 128;
            j->rgb[i * 3 + c] = keep ? j->p.init[i * 3 + c] : (uint8_t)lrintf(v * 255);
        }
}

/* ---- tiles ---- */

static int tiles_decode(struct image_model *m, struct img_job *j, struct img_tile *t,
                        struct tile_canvas *v, const struct img_yield *y, struct err *e)
{
    int f = m->pipe[0].factor, rc = 0, n = tile_count(t, j->h, j->w);
    for (int i = 0; i < n && !rc; i++) {
        struct tile_rect r = {.w = t->w, .h = t->h};
        tile_at(t, j->h, j->w, i, &r.y0, &r.x0);
        tile_cut(t->latent, j->x, j->c, j->w, j->h, &r);
        rc = tiles_run(m, t, 1, y, e);
        if (!rc)
            tile_canvas_add(v, t->rgb, &(struct tile_rect){r.x0 * f, r.y0 * f, r.w * f, r.h * f});
    }
    if (!rc)
        tile_canvas_finish(v);
    return rc;
}

static int decode_tiled(struct image_model *m, struct img_job *j, const struct img_yield *y,
                        struct err *e)
{
    int f = m->pipe[0].factor;
    struct img_tile t = {0};
    struct tile_canvas v;
    int rc = tile_pick(m, imodel__decode_peak, j->h, j->w, &t, e);
    if (rc)
        return rc;
    log_debug("image", "decode %dx%d latents in tiles of %dx%d", j->w, j->h, t.w, t.h);
    size_t tile = (size_t)t.w * (size_t)t.h;
    rc = tile_canvas_open(&v, 3, j->p.width, j->p.height);
    t.latent = mem_alloc(tile * (size_t)j->c * sizeof(float));
    t.rgb = mem_alloc(tile * (size_t)(f * f) * 3 * sizeof(float));
    if (rc || !t.latent || !t.rgb)
        rc = err_set(e, ERR_NOMEM, "no memory for a picture's tiles");
    else
        rc = tiles_decode(m, j, &t, &v, y, e);
    if (!rc) {
        to_pixels(j, v.sum);
        j->stage = IMG_DONE;
    }
    tile_canvas_close(&v);
    free(t.latent);
    free(t.rgb);
    return rc;
}

/* ---- whole pictures ---- */

static int decode_group(struct image_model *m, struct img_job *const *j, int n,
                        const struct img_yield *y, struct err *e)
{
    struct img_tile t[GROUP];
    int rc = 0;
    for (int i = 0; i < n; i++) {
        t[i] = (struct img_tile){.h = j[i]->h, .w = j[i]->w, .latent = j[i]->x};
        t[i].rgb = mem_alloc((size_t)j[i]->p.width * (size_t)j[i]->p.height * 3 * sizeof(float));
        if (!t[i].rgb)
            rc = err_set(e, ERR_NOMEM, "no memory for a picture");
    }
    if (!rc)
        rc = tiles_run(m, t, n, y, e);
    for (int i = 0; i < n; i++) {
        if (!rc) {
            to_pixels(j[i], t[i].rgb);
            j[i]->stage = IMG_DONE;
        }
        free(t[i].rgb);
    }
    return rc;
}

/* How many of j[0..n) decode together; 0: the first one needs tiles. */
static int group_size(struct image_model *m, struct img_job *const *j, int n)
{
    struct img_tile t[GROUP];
    int k = 0;
    for (; k < n && k < GROUP; k++) {
        if (!j[k]->decode_bytes)
            j[k]->decode_bytes = imodel__decode_peak(m, j[k]->h, j[k]->w);
        t[k] = (struct img_tile){.h = j[k]->h, .w = j[k]->w};
        size_t peak = k ? tiles_peak(m, t, k + 1) : j[k]->decode_bytes;
        if (j[k]->decode_bytes > m->work_max || peak > m->work_max)
            break;
    }
    return k;
}

int imodel__decode(struct image_model *m, struct img_job *const *j, int n,
                   const struct img_yield *y, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < n && !rc;) {
        int k = group_size(m, j + i, n - i);
        rc = k ? decode_group(m, j + i, k, y, e) : decode_tiled(m, j[i], y, e);
        i += k ? k : 1;
    }
    return rc;
}
