/* Jobs at the edges of what they may be, through the engine's door: every allocation that fails, sizes and strengths at their
 * limits, masks of all and of nothing, guidance below 1, single steps, splits for a refiner, a prompt cache with no room, the
 * noise of either generator. Whatever was refused or failed before, the next picture is right. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/engine_impl.h"
#include "engine/image/model.h"

#define SIDE 32

static uint8_t init[SIDE * SIDE * 3], mask[SIDE * SIDE];
static struct engine *tiny; /* models/tiny-t2i */

static struct engine *model_open(const char *dir, const char *refiner, size_t cond_bytes)
{
    struct eng_opts o = {.path = dir,
                         .refiner = refiner,
                         .device = "cpu",
                         .n_threads = 1,
                         .precision = PRECISION_F32,
                         .cond_bytes = cond_bytes};
    struct engine *g = NULL;
    struct err e = {0};
    if (eng_open(&g, &o, &e))
        fail_msg("%s: %s", dir, e.text);
    return g;
}

static const struct img_params base = {.prompt = "a red circle",
                                       .negative = "",
                                       .width = SIDE,
                                       .height = SIDE,
                                       .steps = 3,
                                       .guidance = 3,
                                       .seed = 5};

/* From open to close; the picture goes to rgb [SIDE, SIDE, 3] where it is that large. */
static int draw(struct engine *g, const struct img_params *p, uint8_t *rgb, struct err *e)
{
    struct img_job *j = NULL;
    int rc = img_job_open(g, p, &j, e), w, h;
    while (!rc && img_job_stage(j) != IMG_DONE)
        rc = eng_image_step(g, &j, 1, NULL, e);
    if (rc == 0 && rgb)
        memcpy(rgb, img_job_pixels(j, &w, &h), sizeof init);
    img_job_close(g, j);
    return rc;
}

static void must(struct engine *g, const struct img_params *p, uint8_t *rgb)
{
    struct err e = {0};
    if (draw(g, p, rgb, &e))
        fail_msg("%s", e.text);
}

/* Every allocation of a picture fails once, alone and with all after it, with a cold and a warm prompt cache. */
static void test_no_memory(void **st)
{
    (void)st;
    struct img_params p = base;
    uint8_t want[sizeof init], got[sizeof init];
    p.init = init;
    p.mask = mask;
    p.strength = 0.7f;
    must(tiny, &p, want);
    for (int lasting = 0; lasting < 2; lasting++) {
        long k = 1, failed = 0;
        for (int rc = ERR_NOMEM; rc && k < 10000; k++) {
            char text[48];
            struct err e = {0};
            snprintf(text, sizeof text, "%d %ld", lasting, k); /* not in the cache */
            p.negative = text;
            mem_fail_after(k, lasting);
            rc = draw(tiny, &p, got, &e);
            mem_fail_after(0, false);
            if (rc && (rc != ERR_NOMEM || !*e.text))
                fail_msg("allocation %ld: %d %s", k, rc, e.text);
            failed += rc != 0;
            if (!lasting && k < 200)
                rc = ERR_NOMEM; /* one that is missed only is no end: some are done without */
        }
        print_message("%ld allocations failed a picture\n", failed);
        assert_true(k < 10000 && failed > 15);
        p.negative = "";
        must(tiny, &p, got);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void test_limits(void **st)
{
    (void)st;
    const struct eng_image_info *f = eng_info(tiny)->image;
    int lo = f->size_min, hi = f->size_max, step = f->size_step;
    const struct {
        int w, h, steps, rc;
        float guidance;
        const char *says;
    } rows[] = {
        {lo - step, lo, 1, ERR_INVAL, 1, "width"},
        {lo, hi + step, 1, ERR_INVAL, 1, "height"},
        {lo + 1, lo, 1, ERR_INVAL, 1, "multiple"},
        {INT32_MAX, INT32_MAX, 1, ERR_INVAL, 1, "width"},
        {-64, 64, 1, ERR_INVAL, 1, "width"},
        {hi, hi, 1, ERR_LIMIT, 1, "pixels"},
        {64, 64, 0, ERR_INVAL, 1, "steps"},
        {64, 64, f->steps_max + 1, ERR_INVAL, 1, "steps"},
        {64, 64, 1, ERR_INVAL, -0.1f, "guidance_scale"},
        {64, 64, 1, ERR_INVAL, NAN, "guidance_scale"},
        {64, 64, 1, ERR_INVAL, f->guidance_max + 1, "guidance_scale"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct img_params p = base;
        struct err e = {0};
        p.width = rows[i].w;
        p.height = rows[i].h;
        p.steps = rows[i].steps;
        p.guidance = rows[i].guidance;
        if ((int64_t)hi * hi <= f->pixels_max && rows[i].rc == ERR_LIMIT)
            continue; /* the sides say it already */
        int rc = draw(tiny, &p, NULL, &e);
        if (rc != rows[i].rc || !strstr(e.text, rows[i].says))
            fail_msg("%zu: %d %s", i, rc, e.text);
    }
    struct img_params p = base;
    struct err e = {0};
    p.prompt = NULL;
    assert_int_equal(draw(tiny, &p, NULL, &e), ERR_INVAL);
    p = base;
    p.width = p.height = lo;
    p.steps = 1;
    must(tiny, &p, NULL);
    p.width = lo * 5;
    must(tiny, &p, NULL);
}

/* Up to 1 is one pass and the picture of 1, 0 included; above there are two. */
static void test_guidance(void **st)
{
    (void)st;
    uint8_t one[sizeof init], got[sizeof init];
    struct img_params p = base;
    p.steps = 1;
    p.guidance = 1;
    must(tiny, &p, one);
    static const float low[] = {0, 0.3f, 0.999f};
    for (int i = 0; i < 3; i++) {
        p.guidance = low[i];
        must(tiny, &p, got);
        assert_memory_equal(got, one, sizeof one);
    }
    p.guidance = 1.5f;
    must(tiny, &p, got);
    assert_true(memcmp(got, one, sizeof one) != 0);
}

static double distance(const uint8_t *a, const uint8_t *b)
{
    double sum = 0;
    for (size_t i = 0; i < sizeof init; i++)
        sum += abs(a[i] - b[i]);
    return sum / (double)sizeof init;
}

/* A tiny strength makes one step and hardly changes the picture; a mask of nothing gives the input back, one of all is as
 * none at that place. */
static void test_edits(void **st)
{
    (void)st;
    struct err e = {0};
    struct img_job *j;
    uint8_t little[sizeof init], much[sizeof init], got[sizeof init];
    struct img_params p = base;
    p.init = init;
    p.steps = 4;
    static const float bad[] = {0, -1, 1.01f, NAN};
    for (int i = 0; i < 4; i++) {
        p.strength = bad[i];
        assert_int_equal(draw(tiny, &p, NULL, &e), ERR_INVAL);
        assert_non_null(strstr(e.text, "strength"));
    }
    p.strength = 0.001f;
    assert_int_equal(img_job_open(tiny, &p, &j, &e), 0);
    assert_int_equal(img_job_steps(j), 1);
    while (img_job_stage(j) < IMG_DECODE)
        assert_int_equal(eng_image_step(tiny, &j, 1, NULL, &e), 0);
    double off = 0, all_of = 0; /* what is off in the picture is the autoencoder's */
    for (size_t i = 0; i < j->n; i++) {
        off += (double)(j->x[i] - j->clean[i]) * (double)(j->x[i] - j->clean[i]);
        all_of += (double)j->clean[i] * (double)j->clean[i];
    }
    print_message("latents %.3g off the input's\n", sqrt(off / all_of));
    assert_true(off < 0.01 * all_of);
    img_job_close(tiny, j);
    must(tiny, &p, little);
    p.strength = 1;
    assert_int_equal(img_job_open(tiny, &p, &j, &e), 0);
    assert_int_equal(img_job_steps(j), 4);
    img_job_close(tiny, j);
    must(tiny, &p, much);
    print_message("off the input: strength 0.001 by %.1f, 1 by %.1f\n", distance(little, init),
                  distance(much, init));
    assert_true(distance(little, init) < distance(much, init));
    uint8_t none[SIDE * SIDE] = {0}, all[SIDE * SIDE];
    memset(all, 255, sizeof all);
    p.mask = none;
    must(tiny, &p, got);
    assert_memory_equal(got, init, sizeof init);
    p.mask = all; /* at full strength: a picture from nothing but its noise */
    must(tiny, &p, got);
    p.mask = NULL;
    p.init = NULL;
    must(tiny, &p, much);
    assert_memory_equal(got, much, sizeof got);
    p.mask = all;
    assert_int_equal(draw(tiny, &p, NULL, &e), ERR_INVAL);
}

/* Both models must be left a step; the split's edges are refused by name. */
static void test_refiner(void **st)
{
    (void)st;
    struct engine *g = model_open("tests/data/image/pipe-sdxl", "tests/data/image/pipe-refiner", 0);
    struct img_params p = base;
    struct err e = {0};
    p.steps = 4;
    static const struct {
        float at;
        int rc;
    } rows[] = {{0.5f, 0},          {0.26f, 0},           {0.75f, 0},
                {1e-6f, ERR_INVAL}, {0.9999f, ERR_INVAL}, {1, ERR_INVAL},
                {-0.1f, ERR_INVAL}, {NAN, ERR_INVAL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        p.refiner_switch = rows[i].at;
        int rc = draw(g, &p, NULL, &e);
        if (rc != rows[i].rc || (rc && !strstr(e.text, "refiner_switch")))
            fail_msg("%g: %d %s", (double)rows[i].at, rc, e.text);
    }
    p.refiner_switch = 0.5f;
    p.steps = 1;
    assert_int_equal(draw(g, &p, NULL, &e), ERR_INVAL);
    assert_int_equal(draw(tiny, &p, NULL, &e), ERR_UNSUPPORTED);
    eng_close(g);
}

/* A cache that holds no prompt at all gives the pictures of one that holds all. */
static void test_cache(void **st)
{
    (void)st;
    struct engine *g = model_open("models/tiny-t2i", NULL, 1024);
    uint8_t want[sizeof init], got[sizeof init];
    static const char *const text[] = {"a red circle", "a blue square", "a red circle", ""};
    for (int i = 0; i < 4; i++) {
        struct img_params p = base;
        p.prompt = text[i];
        must(tiny, &p, want);
        must(g, &p, got);
        assert_memory_equal(got, want, sizeof want);
    }
    eng_close(g);

    struct cond_cache *c = cond_cache_new(1024);
    struct img_cond *v[3], *big = img_cond_new(1, 300, 0);
    assert_true(c && big);
    for (int i = 0; i < 3; i++) {
        assert_non_null(v[i] = img_cond_new(1, 64, 0)); /* three are more than 1 KiB */
        cond_cache_put(c, 0, text[i ? i - 1 : 3], v[i]);
        assert_int_equal(v[i]->refs, 2);
    }
    assert_int_equal(v[0]->refs, 1); /* the oldest has gone */
    cond_cache_put(c, 0, "large", big);
    assert_int_equal(big->refs, 1);
    assert_ptr_equal(cond_cache_get(c, 0, text[0]), v[1]);
    assert_null(cond_cache_get(c, 1, text[0]));
    assert_null(cond_cache_get(c, 0, "large"));
    img_cond_drop(v[1]); /* of the look-up */
    cond_cache_free(c);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(v[i]->refs, 1);
        img_cond_drop(v[i]);
    }
    img_cond_drop(big);
    assert_null(img_cond_new(INT32_MAX, INT32_MAX, INT32_MAX) /* more than there is */);
}

/* Either generator: the same picture twice, another one by the other, another by the next seed, ends of the range. */
static void test_noise(void **st)
{
    (void)st;
    uint8_t a[sizeof init], b[sizeof init], cpu[sizeof init];
    struct img_params p = base;
    p.sampler = IMG_SAMPLER_EULER_A; /* noise in every step */
    must(tiny, &p, cpu);
    p.rng = IMG_RNG_PHILOX;
    must(tiny, &p, a);
    must(tiny, &p, b);
    assert_memory_equal(a, b, sizeof a);
    assert_true(memcmp(a, cpu, sizeof a) != 0);
    p.seed++;
    must(tiny, &p, b);
    assert_true(memcmp(a, b, sizeof a) != 0);
    p.seed = UINT64_MAX;
    must(tiny, &p, b);
    p.seed = 0;
    must(tiny, &p, a);
    assert_true(memcmp(a, b, sizeof a) != 0);
}

static int setup(void **st)
{
    (void)st;
    for (int i = 0; i < SIDE * SIDE; i++) {
        init[i * 3] = (uint8_t)(i % SIDE * 8);
        init[i * 3 + 1] = (uint8_t)(i / SIDE * 8);
        init[i * 3 + 2] = 90;
        mask[i] = i % SIDE < 16 ? 255 : 0;
    }
    tiny = model_open("models/tiny-t2i", NULL, 0);
    return 0;
}

static int teardown(void **st)
{
    (void)st;
    eng_close(tiny);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_guidance),  cmocka_unit_test(test_edits),
        cmocka_unit_test(test_refiner),   cmocka_unit_test(test_cache),
        cmocka_unit_test(test_noise),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
