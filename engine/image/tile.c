/* See tile.h. */
#include "engine/image/tile.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

int tile_pick(struct image_model *m, tile_peak_fn *peak, int h, int w, struct img_tile *t,
              struct err *e)
{
    int side = TILE_SIDE_MAX;
    size_t need;
    do {
        t->h = h < side ? h : side;
        t->w = w < side ? w : side;
        need = peak(m, t->h, t->w);
        side = side * 3 / 4;
    } while (need > m->work_max && side >= TILE_SIDE_MIN);
    if (need <= m->work_max || need == SIZE_MAX)
        return 0; /* SIZE_MAX: no tile can be done, and doing it says why */
    return err_set(e, ERR_NOMEM,
                   "the autoencoder needs %zu MiB even in the smallest tiles, %zu are allowed",
                   need >> 20, m->work_max >> 20);
}

/* Tiles along one side: at 0, step, 2 step, ..., the last one moved back to the edge. */
static int along(int all, int tile)
{
    int step = tile * 3 / 4;
    return all <= tile ? 1 : (all - tile + step - 1) / step + 1;
}
static int begin(int i, int all, int tile)
{
    int at = i * (tile * 3 / 4);
    return all <= tile ? 0 : at + tile > all ? all - tile : at;
}

int tile_count(const struct img_tile *t, int h, int w)
{
    return along(h, t->h) * along(w, t->w);
}

void tile_at(const struct img_tile *t, int h, int w, int i, int *y0, int *x0)
{
    int nx = along(w, t->w);
    *y0 = begin(i / nx, h, t->h);
    *x0 = begin(i % nx, w, t->w);
}

int tile_canvas_open(struct tile_canvas *v, int n_plane, int width, int height)
{
    size_t plane = (size_t)width * (size_t)height;
    *v = (struct tile_canvas){.n_plane = n_plane, .width = width, .height = height};
    v->sum = mem_calloc(plane * (size_t)n_plane, sizeof *v->sum);
    v->weight = mem_calloc(plane, sizeof *v->weight);
    return v->sum && v->weight ? 0 : ERR_NOMEM;
}

void tile_canvas_close(struct tile_canvas *v)
{
    free(v->sum);
    free(v->weight);
    *v = (struct tile_canvas){0};
}

/* Weight of place i of n: a ramp over a quarter at the ends that have a neighbour. */
static float ramp_at(int i, int n, bool before, bool behind)
{
    float w = 1, ramp = (float)(n / 4 > 0 ? n / 4 : 1), v;
    if (before && (v = ((float)i + 0.5f) / ramp) < w)
        w = v;
    if (behind && (v = ((float)(n - 1 - i) + 0.5f) / ramp) < w)
        w = v;
    return w;
}

void tile_canvas_add(struct tile_canvas *v, const float *src, const struct tile_rect *r)
{
    size_t plane = (size_t)v->width * (size_t)v->height, tile = (size_t)r->w * (size_t)r->h;
    for (int y = 0; y < r->h; y++) {
        float wy = ramp_at(y, r->h, r->y0 > 0, r->y0 + r->h < v->height);
        for (int x = 0; x < r->w; x++) {
            float w = wy * ramp_at(x, r->w, r->x0 > 0, r->x0 + r->w < v->width);
            size_t at = (size_t)(r->y0 + y) * (size_t)v->width + (size_t)(r->x0 + x);
            size_t from = (size_t)y * (size_t)r->w + (size_t)x;
            v->weight[at] += w;
            for (size_t c = 0; c < (size_t)v->n_plane; c++)
                v->sum[c * plane + at] += w * src[c * tile + from];
        }
    }
}

void tile_canvas_finish(struct tile_canvas *v)
{
    size_t plane = (size_t)v->width * (size_t)v->height;
    for (size_t i = 0; i < plane * (size_t)v->n_plane; i++)
        v->sum[i] /= v->weight[i % plane];
}

void tile_cut(float *dst, const float *src, int n_plane, int width, int height,
              const struct tile_rect *r)
{
    for (int c = 0; c < n_plane; c++)
        for (int y = 0; y < r->h; y++)
            memcpy(dst + ((size_t)c * (size_t)r->h + (size_t)y) * (size_t)r->w,
                   src + ((size_t)c * (size_t)height + (size_t)(r->y0 + y)) * (size_t)width + r->x0,
                   (size_t)r->w * sizeof(float));
}
