/* Tiles of a map that is too large to be done at once: where they lie, and their results blended by ramps where they
 * overlap by a quarter. The order of tiles is fixed, so the result is too. Pure. */
#ifndef ENGINE_IMAGE_TILE_H
#define ENGINE_IMAGE_TILE_H

#include "engine/image/model.h"

#define TILE_SIDE_MAX 128 /* latents, of a side; then 96, 72, 54, 40, 30, 22, 16 */
#define TILE_SIDE_MIN 16  /* smaller ones show: every tile has means of its own */

/* The largest tile of an h x w map of latents whose peak by `peak` stays below m->work_max. ERR_NOMEM: none does. */
typedef size_t tile_peak_fn(struct image_model *m, int h, int w);
int tile_pick(struct image_model *m, tile_peak_fn *peak, int h, int w, struct img_tile *t,
              struct err *e);

/* How many tiles of t's size cover h x w, and where tile i begins (latents). */
int tile_count(const struct img_tile *t, int h, int w);
void tile_at(const struct img_tile *t, int h, int w, int i, int *y0, int *x0);

/* Sums of weighted planes: n_plane of height * width. */
struct tile_canvas {
    float *sum, *weight;
    int n_plane, width, height;
};
int tile_canvas_open(struct tile_canvas *v, int n_plane, int width,
                     int height); /* 0 or ERR_NOMEM */
void tile_canvas_close(struct tile_canvas *v);
/* A tile's planes [n_plane, th, tw] at (x0, y0). */
struct tile_rect {
    int x0, y0, w, h;
};
void tile_canvas_add(struct tile_canvas *v, const float *src, const struct tile_rect *r);
/* Divide by the weights; v->sum is the result. */
void tile_canvas_finish(struct tile_canvas *v);
/* Planes of a rectangle out of [n_plane, height, width]. */
void tile_cut(float *dst, const float *src, int n_plane, int width, int height,
              const struct tile_rect *r);

#endif
