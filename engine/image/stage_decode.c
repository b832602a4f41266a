/* The last stage: latents to pixels, whole where the work memory allows it, else in overlapping tiles that are blended.
 * Whether a picture is tiled depends on its size and the engine's limit alone, never on what else is decoded, so its
 * bytes do not either. See model.h. */
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/image/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GROUP    8   /* pictures decoded in one run */
#define TILE_MAX 128 /* latents, of a side */
#define TILE_MIN 8

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

/* A plane of tiles: positions 0, step, 2 step, ..., the last one moved back to the edge. */
static int tile_count(int all, int tile, int step)
{
    return all <= tile ? 1 : (all - tile + step - 1) / step + 1;
}
static int tile_at(int i, int all, int tile, int step)
{
    int at = i * step;
    return all <= tile ? 0 : at + tile > all ? all - tile : at;
}

/* Weight of pixel i of n: a ramp over `ramp` pixels at the ends that have a neighbour. */
static float ramp_at(int i, int n, int ramp, bool before, bool behind)
{
    float w = 1;
    if (before && i < ramp)
        w = ((float)i + 0.5f) / (float)ramp;
    if (behind && n - 1 - i < ramp) {
        float v = ((float)(n - 1 - i) + 0.5f) / (float)ramp;
        w = v < w ? v : w;
    }
    return w;
}

struct canvas {
    float *sum;    /* [3, H, W] */
    float *weight; /* [H, W] */
    int w, h;      /* pixels */
};

static void blend(struct canvas *v, const struct img_tile *t, int x0, int y0, int f)
{
    int tw = t->w * f, th = t->h * f, ramp_x = tw / 4, ramp_y = th / 4;
    size_t plane = (size_t)v->w * (size_t)v->h, tile = (size_t)tw * (size_t)th;
    for (int y = 0; y < th; y++) {
        float wy = ramp_at(y, th, ramp_y, y0 > 0, y0 + th < v->h);
        for (int x = 0; x < tw; x++) {
            float w = wy * ramp_at(x, tw, ramp_x, x0 > 0, x0 + tw < v->w);
            size_t at = (size_t)(y0 + y) * (size_t)v->w + (size_t)(x0 + x);
            size_t from = (size_t)y * (size_t)tw + (size_t)x;
            v->weight[at] += w;
            for (size_t c = 0; c < 3; c++)
                v->sum[c * plane + at] += w * t->rgb[c * tile + from];
        }
    }
}

static void cut(const struct img_job *j, struct img_tile *t, int x0, int y0)
{
    for (int c = 0; c < j->c; c++)
        for (int y = 0; y < t->h; y++)
            memcpy(t->latent + ((size_t)c * (size_t)t->h + (size_t)y) * (size_t)t->w,
                   j->x + ((size_t)c * (size_t)j->h + (size_t)(y0 + y)) * (size_t)j->w + x0,
                   (size_t)t->w * sizeof(float));
}

static int tiles_decode(struct image_model *m, struct img_job *j, struct img_tile *t,
                        struct canvas *v, const struct img_yield *y, struct err *e)
{
    int f = m->pipe[0].factor, sx = t->w * 3 / 4, sy = t->h * 3 / 4, rc = 0;
    int nx = tile_count(j->w, t->w, sx), ny = tile_count(j->h, t->h, sy);
    for (int i = 0; i < nx * ny && !rc; i++) {
        int x0 = tile_at(i % nx, j->w, t->w, sx), y0 = tile_at(i / nx, j->h, t->h, sy);
        cut(j, t, x0, y0);
        rc = tiles_run(m, t, 1, y, e);
        if (!rc)
            blend(v, t, x0 * f, y0 * f, f);
    }
    size_t plane = (size_t)v->w * (size_t)v->h;
    for (size_t i = 0; i < plane * 3 && !rc; i++)
        v->sum[i] /= v->weight[i % plane];
    return rc;
}

static int decode_tiled(struct image_model *m, struct img_job *j, const struct img_yield *y,
                        struct err *e)
{
    int side = TILE_MAX, f = m->pipe[0].factor;
    struct img_tile t = {0};
    size_t peak;
    do {
        t.h = j->h < side ? j->h : side;
        t.w = j->w < side ? j->w : side;
        peak = imodel__decode_peak(m, t.h, t.w);
        side = side * 3 / 4;
    } while (peak > m->work_max && side >= TILE_MIN);
    if (peak > m->work_max)
        return err_set(e, ERR_NOMEM,
                       "decoding needs %zu MiB even in the smallest tiles, %zu are allowed",
                       peak >> 20, m->work_max >> 20);
    log_debug("image", "decode %dx%d latents in tiles of %dx%d", j->w, j->h, t.w, t.h);
    struct canvas v = {.w = j->p.width, .h = j->p.height};
    size_t plane = (size_t)v.w * (size_t)v.h, tile = (size_t)t.w * (size_t)t.h;
    v.sum = mem_calloc(plane * 3, sizeof *v.sum);
    v.weight = mem_calloc(plane, sizeof *v.weight);
    t.latent = mem_alloc(tile * (size_t)j->c * sizeof(float));
    t.rgb = mem_alloc(tile * (size_t)(f * f) * 3 * sizeof(float));
    int rc = v.sum && v.weight && t.latent && t.rgb
                 ? tiles_decode(m, j, &t, &v, y, e)
                 : err_set(e, ERR_NOMEM, "no memory for a picture's tiles");
    if (!rc) {
        to_pixels(j, v.sum);
        j->stage = IMG_DONE;
    }
    free(v.sum);
    free(v.weight);
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
