/* Tiles: every place is covered, blending equal tiles gives the map back, the smallest tile that fits is found. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/image/tile.h"

#define N_PLANE 3

static void one(int h, int w, int th, int tw)
{
    struct img_tile t = {.h = th < h ? th : h, .w = tw < w ? tw : w};
    struct tile_canvas v;
    size_t n = (size_t)h * (size_t)w * N_PLANE;
    float *map = malloc(n * sizeof *map), *part = malloc(n * sizeof *part);
    for (size_t i = 0; i < n; i++)
        map[i] = (float)(i * 2654435761u % 1000) / 100 - 5;
    assert_int_equal(tile_canvas_open(&v, N_PLANE, w, h), 0);
    for (int i = 0; i < tile_count(&t, h, w); i++) {
        struct tile_rect r = {.w = t.w, .h = t.h};
        tile_at(&t, h, w, i, &r.y0, &r.x0);
        assert_in_range(r.y0, 0, h - t.h);
        assert_in_range(r.x0, 0, w - t.w);
        tile_cut(part, map, N_PLANE, w, h, &r);
        tile_canvas_add(&v, part, &r);
    }
    tile_canvas_finish(&v);
    for (size_t i = 0; i < n; i++)
        assert_true(fabsf(v.sum[i] - map[i]) < 1e-5f); /* NaN where no tile was */
    tile_canvas_close(&v);
    free(map);
    free(part);
}

static void test_identity(void **st)
{
    (void)st;
    static const int side[] = {1, 7, 8, 16, 17, 31, 64, 65};
    for (size_t a = 0; a < sizeof side / sizeof *side; a++)
        for (size_t b = 0; b < sizeof side / sizeof *side; b++)
            for (int tile = 8; tile <= 40; tile += 5)
                one(side[a], side[b], tile, tile + 3);
}

/* 1000 bytes a latent */
static size_t peak_of(struct image_model *m, int h, int w)
{
    (void)m;
    return (size_t)h * (size_t)w * 1000;
}

static void test_pick(void **st)
{
    (void)st;
    struct image_model m = {.work_max = 128 * 128 * 1000};
    struct img_tile t = {0};
    struct err e = {0};
    assert_int_equal(tile_pick(&m, peak_of, 300, 200, &t, &e), 0);
    assert_int_equal(t.h, 128);
    assert_int_equal(t.w, 128);
    m.work_max--; /* the next smaller one */
    assert_int_equal(tile_pick(&m, peak_of, 300, 200, &t, &e), 0);
    assert_int_equal(t.h, 96);
    m.work_max = 50 * 1000; /* a low map: only its length shrinks */
    assert_int_equal(tile_pick(&m, peak_of, 3, 200, &t, &e), 0);
    assert_int_equal(t.h, 3);
    assert_in_range(t.w, 8, 16);
    m.work_max = 8 * 8 * 1000 - 1;
    assert_int_equal(tile_pick(&m, peak_of, 300, 200, &t, &e), ERR_NOMEM);
    assert_non_null(strstr(e.text, "smallest tiles"));
}

static void test_no_memory(void **st)
{
    (void)st;
    for (int i = 1; i <= 2; i++) {
        struct tile_canvas v;
        mem_fail_after(i, false);
        assert_int_equal(tile_canvas_open(&v, 3, 10, 10), ERR_NOMEM);
        mem_fail_after(0, false);
        tile_canvas_close(&v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_identity), cmocka_unit_test(test_pick),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
