/* Decoding in tiles through the engine's door, on models/tiny-t2i: a picture whose whole decoding does not fit into the work
 * memory stays close to the whole one and shows no seam, its bytes are the same in any company, what does not fit at all is
 * refused and can be done later; the memory plan's figures are what a run really needs, to the byte. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "engine/engine_impl.h"
#include "engine/image/tile.h"

#define F 4 /* pixels a latent */

static struct engine *model_open(size_t work_bytes)
{
    struct eng_opts o = {
        .path = "models/tiny-t2i", .device = "cpu", .n_threads = 2, .work_bytes = work_bytes};
    struct engine *g = NULL;
    struct err e = {0};
    if (eng_open(&g, &o, &e))
        fail_msg("%s", e.text);
    return g;
}

static struct img_job *job_open(struct engine *g, int w, int h, int steps)
{
    struct img_job *j = NULL;
    struct err e = {0};
    struct img_params p = {.prompt =
                               "a green square in the bottom right corner on a cyan background",
                           .negative = "",
                           .width = w,
                           .height = h,
                           .steps = steps,
                           .guidance = 4,
                           .seed = 3};
    if (img_job_open(g, &p, &j, &e))
        fail_msg("%s", e.text);
    return j;
}

/* Up to, not including, `stage`; the first error or 0. */
static int go(struct engine *g, struct img_job *j, enum img_stage stage, struct err *e)
{
    int rc = 0;
    while (!rc && img_job_stage(j) < stage)
        rc = eng_image_step(g, &j, 1, NULL, e);
    return rc;
}

static void must(struct engine *g, struct img_job *j, enum img_stage stage)
{
    struct err e = {0};
    if (go(g, j, stage, &e))
        fail_msg("%s", e.text);
}

static size_t bytes_of(const struct img_job *j)
{
    return (size_t)j->p.width * (size_t)j->p.height * 3;
}

static double psnr(const uint8_t *a, const uint8_t *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return 10 * log10(255 * 255 * (double)n / (sum > 0 ? sum : 1));
}

/* Mean step of brightness from column x - 1 to x, over all rows and channels; `down`: of rows. */
static double edge(const struct img_job *j, const uint8_t *p, int x, bool down)
{
    int w = j->p.width, n = down ? w : j->p.height;
    double sum = 0;
    for (int i = 0; i < n; i++)
        for (int c = 0; c < 3; c++) {
            int at = down ? x * w + i : i * w + x, before = down ? at - w : at - 1;
            sum += abs(p[at * 3 + c] - p[before * 3 + c]);
        }
    return sum / n / 3;
}

/* How much rougher than the whole decoding a tiled one is where a tile of `side` latents begins or ends, at the worst. */
static double seam(const struct img_job *j, const uint8_t *tiled, const uint8_t *whole, int side)
{
    double worst = 0;
    for (int down = 0; down < 2; down++) {
        int all = down ? j->h : j->w, step = side * 3 / 4;
        for (int at = 0, end = 0; !end && all > side; at += step) {
            end = at + side >= all;
            int from = (end ? all - side : at) * F, to = from + side * F;
            for (int k = 0; k < 2; k++) {
                int x = k ? to : from;
                if (x <= 0 || x >= all * F)
                    continue;
                double d = edge(j, tiled, x, down) - edge(j, whole, x, down);
                worst = d > worst ? d : worst;
            }
        }
    }
    return worst;
}

/* A job's latents decoded once more with other work memory. */
static int again(struct engine *g, struct img_job *j, size_t work, struct err *e)
{
    g->image->work_max = work;
    j->stage = IMG_DECODE;
    j->decode_bytes = 0;
    return eng_image_step(g, &j, 1, NULL, e);
}

/* Every side that tiles take, from the largest that does not hold the picture to the smallest. */
static void test_close_to_whole(void **st)
{
    (void)st;
    static const int size[][2] = {{256, 256}, {200, 136}};
    static const int side[] = {54, 40, 30, 22, 16};
    struct err e = {0};
    struct engine *g = model_open(0);
    for (int i = 0; i < 2; i++) {
        struct img_job *j = job_open(g, size[i][0], size[i][1], 4);
        must(g, j, IMG_DONE);
        size_t n = bytes_of(j);
        uint8_t *whole = malloc(n);
        assert_non_null(whole);
        memcpy(whole, j->rgb, n);
        for (int k = 0; k < 5; k++) {
            int h = side[k] < j->h ? side[k] : j->h, w = side[k] < j->w ? side[k] : j->w;
            if (h == j->h && w == j->w)
                continue;
            memset(j->rgb, 0, n);
            assert_int_equal(again(g, j, imodel__decode_peak(g->image, h, w), &e), 0);
            double d = psnr(j->rgb, whole, n), s = seam(j, j->rgb, whole, side[k]);
            print_message("%dx%d in tiles of %dx%d: %.1f dB, seams %.2f\n", size[i][0], size[i][1],
                          w, h, d, s);
            assert_true(memcmp(j->rgb, whole, n) != 0); /* it was tiled */
            assert_true(d > 36 && s < 0.6);             /* measured 39 and more, 0.3 and less */
        }
        free(whole);
        g->image->work_max = SIZE_MAX; /* for the next one */
        img_job_close(g, j);
    }
    eng_close(g);
}

/* Tiles because of eng_opts alone; others beside it, whole and tiled, change nothing. */
static void test_company(void **st)
{
    (void)st;
    struct err e = {0};
    struct engine *g = model_open(0);
    struct img_job *j = job_open(g, 256, 256, 2);
    assert_int_equal(go(g, j, IMG_DENOISE, &e), 0);
    size_t denoise = imodel__denoise_peak(g->image, &j, 1);
    size_t whole = img_job_decode_bytes(g, j);
    assert_true(denoise < whole); /* so that only the decoding is too large */
    img_job_close(g, j);
    eng_close(g);

    g = model_open(whole - 1);
    assert_int_equal(eng_info(g)->work_bytes, whole - 1);
    j = job_open(g, 256, 256, 2);
    must(g, j, IMG_DONE);
    struct img_job *k[4] = {job_open(g, 64, 64, 2), job_open(g, 256, 256, 2),
                            job_open(g, 200, 136, 2), job_open(g, 64, 64, 2)};
    for (int i = 0; i < 4; i++)
        must(g, k[i], IMG_DECODE);
    assert_int_equal(eng_image_step(g, k, 4, NULL, &e), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(img_job_stage(k[i]), IMG_DONE);
    assert_memory_equal(k[1]->rgb, j->rgb, bytes_of(j));
    assert_memory_equal(k[0]->rgb, k[3]->rgb, bytes_of(k[0]));
    struct engine *large = model_open(0);
    struct img_job *small = job_open(large, 64, 64, 2), *same = job_open(large, 256, 256, 2);
    must(large, small, IMG_DONE);
    must(large, same, IMG_DONE);
    assert_memory_equal(k[0]->rgb, small->rgb, bytes_of(small)); /* whole with either limit */
    assert_true(memcmp(same->rgb, j->rgb, bytes_of(j)) != 0);
    img_job_close(large, small);
    img_job_close(large, same);
    eng_close(large);
    for (int i = 0; i < 4; i++)
        img_job_close(g, k[i]);
    img_job_close(g, j);
    eng_close(g);
}

/* Less than the smallest tile: refused by a text with both figures; the same latents decode once there is more. */
static void test_smallest(void **st)
{
    (void)st;
    struct err e = {0};
    struct engine *g = model_open(0);
    struct img_job *j = job_open(g, 96, 96, 2);
    must(g, j, IMG_DECODE);
    size_t tile = imodel__decode_peak(g->image, TILE_SIDE_MIN, TILE_SIDE_MIN), n = j->n;
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    memcpy(x, j->x, n * sizeof *x);
    assert_int_equal(again(g, j, tile - 1, &e), ERR_NOMEM);
    assert_non_null(strstr(e.text, "smallest tiles"));
    assert_int_equal(img_job_stage(j), IMG_DECODE);
    assert_memory_equal(j->x, x, n * sizeof *x);
    assert_int_equal(again(g, j, tile, &e), 0);
    assert_int_equal(img_job_stage(j), IMG_DONE);
    assert_int_equal(again(g, j, SIZE_MAX, &e), 0);
    struct img_job *whole = job_open(g, 96, 96, 2);
    must(g, whole, IMG_DONE);
    assert_memory_equal(j->rgb, whole->rgb, bytes_of(j));
    free(x);
    img_job_close(g, j);
    img_job_close(g, whole);
    eng_close(g);
}

/* A step that does not fit: none of the jobs, by eng_image_fit; ERR_NOMEM by the step; and nothing has moved. */
static void test_denoising(void **st)
{
    (void)st;
    struct err e = {0};
    struct engine *g = model_open(0);
    struct img_job *j[2] = {job_open(g, 64, 64, 2), job_open(g, 96, 64, 2)};
    assert_int_equal(eng_image_step(g, j, 2, NULL, &e), 0);
    size_t one = imodel__denoise_peak(g->image, j, 1), two = imodel__denoise_peak(g->image, j, 2);
    assert_true(one < two);
    static const int fit[] = {0, 1, 1, 2};
    const size_t work[] = {one - 1, one, two - 1, two};
    for (int i = 0; i < 4; i++) {
        g->image->work_max = work[i];
        assert_int_equal(eng_image_fit(g, j, 2), fit[i]);
        if (i % 2 == 0) {
            assert_int_equal(eng_image_step(g, j, i ? 2 : 1, NULL, &e), ERR_NOMEM);
            assert_non_null(strstr(e.text, "work memory"));
            assert_int_equal(img_job_step(j[0]) + img_job_step(j[1]), 0);
        }
    }
    assert_int_equal(eng_image_step(g, j, 2, NULL, &e), 0);
    for (int i = 0; i < 2; i++) {
        must(g, j[i], IMG_DONE);
        struct img_job *same = job_open(g, j[i]->p.width, j[i]->p.height, 2);
        must(g, same, IMG_DONE);
        assert_memory_equal(same->rgb, j[i]->rgb, bytes_of(same));
        img_job_close(g, same);
        img_job_close(g, j[i]);
    }
    eng_close(g);
}

/* The plan's figures are those of a picture of the model's own size: enough to the byte, one byte less is not. */
static void test_plan(void **st)
{
    (void)st;
    struct err e = {0};
    struct eng_memory m;
    struct eng_opts o = {.path = "models/tiny-t2i", .device = "cpu"};
    assert_int_equal(eng_memory_plan(&o, &m, &e), 0);
    assert_int_equal(m.image_size, 64);
    const struct {
        enum img_stage stage;
        size_t bytes;
    } need[] = {
        {IMG_ENCODE, m.image_encode}, {IMG_DENOISE, m.image_denoise}, {IMG_DECODE, m.image_decode}};
    for (int i = 0; i < 3; i++) {
        struct engine *g = model_open(0);
        struct img_job *j = job_open(g, m.image_size, m.image_size, 1);
        must(g, j, need[i].stage);
        g->image->work_max = need[i].bytes - 1;
        assert_int_equal(eng_image_step(g, &j, 1, NULL, &e), ERR_NOMEM);
        assert_int_equal(img_job_stage(j), need[i].stage);
        g->image->work_max = need[i].bytes; /* both prompts, one after the other where they must */
        assert_int_equal(eng_image_step(g, &j, 1, NULL, &e), 0);
        img_job_close(g, j);
        eng_close(g);
    }
    assert_int_equal(m.image_decode_tiled, m.image_decode); /* the picture is one smallest tile */
    size_t work = m.image_encode > m.image_denoise ? m.image_encode : m.image_denoise;
    assert_int_equal(m.work, m.image_decode > work ? m.image_decode : work);
    struct engine *g = model_open(m.work);
    struct img_job *j = job_open(g, m.image_size, m.image_size, 1);
    must(g, j, IMG_DONE);
    img_job_close(g, j);
    eng_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_close_to_whole), cmocka_unit_test(test_company),
        cmocka_unit_test(test_smallest),       cmocka_unit_test(test_denoising),
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
