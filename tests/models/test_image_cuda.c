/* Every class of image pipeline from text to pixels on the emulated GPU: in f32 against diffusers' pictures on tiny
 * random models, in bf16 within a stated distance of them; pictures of different sizes and step numbers beside each
 * other give the bytes that they give alone. IMAGE_CUDA=all in the environment: every order of threads and both paths
 * of code (make test-long); otherwise one of each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "tests/golden.h"

#define DATA  "tests/data/image/"
#define CAT   "a red cat on a mat"
#define BIRDS "two blue birds, in the rain; 12 drops"
#define SHOTS 3

static bool thorough;
static char schnell[64]; /* a folder of links: what schnell shares with dev is stored once */

struct shot {
    const char *golden; /* NULL: the picture is compared with the CPU backend's */
    const char *prompt, *negative;
    int width, height, steps;
    float guidance;
    uint64_t seed;
    float refiner; /* part of the steps before it */
};
/* Distances are in steps of a byte; half a step is rounding. */
struct set {
    const char *dir, *refiner, *goldens;
    bool planar;  /* the goldens are [3, h, w] in -1..1, else [h, w, 3] in 0..1 */
    double loose; /* at the default precision */
    bool slow;    /* whose default precision waits for the long form */
    struct shot shot[SHOTS];
};
static const struct set qwen = {DATA "qwen-image",
                                NULL,
                                DATA "dit.safetensors",
                                false,
                                24,
                                false,
                                {{"qwen.c.image", CAT, "", 56, 40, 4, 4, 42, 0},
                                 {"qwen.d.image", BIRDS, "x", 32, 64, 3, 1, 7, 0}}};
static const struct set zimage = {DATA "z-image",
                                  NULL,
                                  DATA "dit.safetensors",
                                  false,
                                  24,
                                  false,
                                  {{"z.c.image", CAT, "blurry", 28, 20, 4, 3, 42, 0},
                                   {"z.d.image", BIRDS, "x", 16, 36, 3, 0, 7, 0}}};
static const struct set sd3 = {DATA "sd3",
                               NULL,
                               DATA "dit.safetensors",
                               false,
                               24,
                               true,
                               {{"sd3.c.image", CAT, "blurry", 28, 20, 4, 4, 42, 0},
                                {"sd3.d.image", BIRDS, "x", 16, 36, 3, 1, 7, 0}}};
static const struct set flux_dev = {
    DATA "flux-dev",
    NULL,
    DATA "pipe_flux.safetensors",
    false,
    24,
    false,
    {{"dev.0", CAT, "", 28, 20, 4, 3.5f, 42, 0}, {"dev.1", BIRDS, "", 16, 36, 3, 2, 7, 0}}};
static const struct set flux_schnell = {
    schnell,
    NULL,
    DATA "pipe_flux.safetensors",
    false,
    24,
    true,
    {{"schnell.0", CAT, "", 28, 20, 4, 0, 42, 0}, {"schnell.1", BIRDS, "", 16, 36, 2, 3.5f, 7, 0}}};
static const struct set tiny_t2i = {
    "models/tiny-t2i",
    NULL,
    NULL,
    false,
    24,
    false,
    {{NULL, "a red apple on a blue background", "", 64, 64, 2, 4, 11, 0},
     {NULL, "a green star", "", 48, 32, 1, 1, 3, 0}}};

static struct engine *open_model(const struct set *s, const char *device, const char *isa,
                                 enum eng_precision precision)
{
    struct eng_opts o = {.path = s->dir,
                         .refiner = s->refiner,
                         .device = device,
                         .isa = isa,
                         .precision = precision,
                         .n_threads = 2};
    struct engine *g = NULL;
    struct err e = {0};
    if (eng_open(&g, &o, &e))
        fail_msg("%s: %s", s->dir, e.text);
    assert_non_null(eng_info(g)->image);
    return g;
}

static struct img_job *job_open(struct engine *g, const struct shot *s)
{
    struct img_job *j = NULL;
    struct err e = {0};
    struct img_params p = {.prompt = s->prompt,
                           .negative = s->negative,
                           .width = s->width,
                           .height = s->height,
                           .steps = s->steps,
                           .guidance = s->guidance,
                           .strength = 1,
                           .seed = s->seed,
                           .refiner_switch = s->refiner};
    if (img_job_open(g, &p, &j, &e))
        fail_msg("%s: %s", s->prompt, e.text);
    return j;
}

/* n pictures, those of one stage beside each other; px[i] is the caller's to free. */
static void pictures(struct engine *g, const struct shot *s, int n, uint8_t **px)
{
    struct img_job *j[SHOTS];
    struct err e = {0};
    for (int i = 0; i < n; i++)
        j[i] = job_open(g, &s[i]);
    for (int stage = IMG_ENCODE; stage < IMG_DONE;) {
        struct img_job *now[SHOTS];
        int k = 0;
        for (int i = 0; i < n; i++)
            if ((int)img_job_stage(j[i]) == stage)
                now[k++] = j[i];
        if (!k)
            stage++;
        else if (eng_image_step(g, now, k, NULL, &e))
            fail_msg("stage %d: %s", stage, e.text);
    }
    for (int i = 0; i < n; i++) {
        int w, h;
        const uint8_t *p = img_job_pixels(j[i], &w, &h);
        assert_non_null(p);
        assert_true(w == s[i].width && h == s[i].height);
        px[i] = malloc((size_t)(3 * w * h));
        assert_non_null(px[i]);
        memcpy(px[i], p, (size_t)(3 * w * h));
        img_job_close(g, j[i]);
    }
}

/* What the pictures should be, in 0..255. */
static float *wanted(const struct set *s, const struct shot *t)
{
    size_t n = (size_t)(3 * t->width * t->height), got = 0;
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    if (!t->golden) {
        uint8_t *px;
        struct engine *m = open_model(s, "cpu", NULL, PRECISION_F32);
        pictures(m, t, 1, &px);
        for (size_t i = 0; i < n; i++)
            v[i] = px[i];
        free(px);
        eng_close(m);
        return v;
    }
    struct golden *g = golden_open(s->goldens);
    const float *x = g ? golden_f32(g, t->golden, &got) : NULL;
    if (!x || got != n)
        fail_msg("%s: %s: %zu values, expected %zu", s->goldens, t->golden, got, n);
    for (size_t i = 0; i < n; i++)
        v[i] = s->planar ? 127.5f * (x[i % 3 * (n / 3) + i / 3] + 1) : 255 * x[i];
    golden_close(g);
    return v;
}

static double off(const uint8_t *px, const float *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)px[i] - (double)want[i];
        most = d > most ? d : -d > most ? -d : most;
    }
    return most;
}

/* The set's pictures together against the reference, and the last `n_alone` of them alone. */
static void check(const struct set *s, const char *isa, enum eng_precision precision, double bound,
                  int n_alone)
{
    uint8_t *px[SHOTS], *one;
    int n = 0;
    while (n < SHOTS && s->shot[n].prompt)
        n++;
    struct engine *m = open_model(s, "cuda-emu", isa, precision);
    pictures(m, s->shot, n, px);
    for (int i = 0; i < n; i++) {
        const struct shot *t = &s->shot[i];
        size_t bytes = (size_t)(3 * t->width * t->height);
        float *want = wanted(s, t);
        double d = off(px[i], want, bytes);
        print_message("%s %d, %s %s: %.2f of 255\n", s->dir, i, isa,
                      precision == PRECISION_F32 ? "f32" : "bf16", d);
        if (!(d <= bound))
            fail_msg("%s %d on %s: off by %.2f of 255, at most %.2f", s->dir, i, isa, d, bound);
        if (i >= n - n_alone) {
            pictures(m, t, 1, &one);
            assert_memory_equal(one, px[i], bytes);
            free(one);
        }
        free(want);
        free(px[i]);
    }
    eng_close(m);
}

static void check_all(const struct set *s)
{
    static const char *const order[] = {"sm_90/fwd", "sm_80/rev", "sm_80/1", "sm_90/2"};
    /* a reference of bytes is rounded itself */
    double bound = s->shot[0].golden ? 0.6 : 1.0;
    for (int i = 0; i < (thorough ? 4 : 1); i++)
        check(s, order[i], PRECISION_F32, bound, thorough ? SHOTS : 1);
    for (int i = thorough ? 0 : 3; i < 4 && (thorough || !s->slow); i++)
        check(s, order[i], PRECISION_DEFAULT, s->loose, thorough ? SHOTS : 0);
}

static void test_set(void **st)
{
    check_all(*st);
}

/* flux-schnell's own parts, and flux-dev's where it has none. */
static const char *const parts[] = {"flux-dev/text_encoder",  "flux-dev/text_encoder_2",
                                    "flux-dev/tokenizer",     "flux-dev/tokenizer_2",
                                    "flux-dev/vae",           "flux-schnell/transformer",
                                    "flux-schnell/scheduler", "flux-schnell/model_index.json"};
#define N_PART (sizeof parts / sizeof *parts)

static int schnell_make(void **st)
{
    char cwd[256], old[512], new[160];
    (void)st;
    snprintf(schnell, sizeof schnell, "/tmp/stepd-schnell-XXXXXX");
    if (!mkdtemp(schnell) || !getcwd(cwd, sizeof cwd))
        return 1;
    for (size_t i = 0; i < N_PART; i++) {
        snprintf(old, sizeof old, "%s/" DATA "%s", cwd, parts[i]);
        snprintf(new, sizeof new, "%s%s", schnell, strchr(parts[i], '/'));
        if (symlink(old, new))
            return 1;
    }
    return 0;
}

static int schnell_drop(void **st)
{
    char path[160];
    (void)st;
    for (size_t i = 0; i < N_PART; i++) {
        snprintf(path, sizeof path, "%s%s", schnell, strchr(parts[i], '/'));
        unlink(path);
    }
    return rmdir(schnell);
}

#define SET(s)                                                                                     \
    {                                                                                              \
#s, test_set, NULL, NULL, (void *)(uintptr_t) & (s)                                        \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        SET(qwen), SET(zimage), SET(sd3), SET(flux_dev), SET(flux_schnell), SET(tiny_t2i),
    };
    const struct backend *b;
    struct err e = {0};
    const char *all = getenv("IMAGE_CUDA");
    if (backend_find("cuda-emu", &b, &e)) {
        printf("skipped: %s\n0 passed, 0 failed, %zu skipped\n", e.text,
               sizeof tests / sizeof *tests);
        return 77;
    }
    thorough = all && !strcmp(all, "all");
    return cmocka_run_group_tests(tests, schnell_make, schnell_drop);
}
