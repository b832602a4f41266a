/* Every class of image pipeline from text to pixels on the emulated GPU (IMAGE_DEVICE in the environment: on another):
 * in f32 against diffusers' pictures on tiny random models, in bf16 within a stated distance of them; pictures of
 * different sizes and step numbers beside each other give the bytes that they give alone. IMAGE_CUDA=all in the
 * environment: every order of threads and both paths of code (make test-long); otherwise one of each. An argument: the
 * one test to run. */
#include <dlfcn.h>
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
#include "tests/image_run.h"

#define DATA  "tests/data/image/"
#define CAT   "a red cat on a mat"
#define BIRDS "two blue birds, in the rain; 12 drops"
#define HAT   "the cat in the hat"
#define SHOTS 3

static bool thorough;
static const char *gpu = "cuda-emu";
struct emu_stats { /* as in cuda/emu_rt.h, which is not for programs outside cuda/ */
    uint64_t mallocs, frees, launches, graph_launches, copies, syncs;
    uint64_t other[5];
};
static int (*rt_fail)(const char *, long); /* cuda/emu_rt.h */
static void (*rt_stats)(struct emu_stats *);
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
static const struct set sd2 = {DATA "pipe-sd2",
                               NULL,
                               DATA "pipe-sd2/golden.safetensors",
                               true,
                               40,
                               false,
                               {{"plain.image", HAT, "", 32, 32, 4, 1, 11, 0},
                                {"guided.image", HAT, "a dog", 40, 24, 4, 5, 11, 0}}};
static const struct set lcm = {DATA "pipe-lcm",
                               NULL,
                               DATA "pipe-lcm/golden.safetensors",
                               true,
                               40,
                               true,
                               {{"plain.image", HAT, "", 32, 32, 4, 8.5f, 11, 0},
                                {"low.image", HAT, "", 40, 24, 4, 3, 11, 0}}};
static const struct set sdxl = {DATA "pipe-sdxl",
                                DATA "pipe-refiner",
                                DATA "pipe-sdxl/golden.safetensors",
                                true,
                                40,
                                false,
                                {{"refined.image", HAT, "a dog", 32, 32, 4, 5, 11, 0.5f},
                                 {"guided.image", HAT, "a dog", 40, 24, 4, 5, 11, 0}}};
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
    return image_run_open(&o);
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
    struct img_job *j[SHOTS] = {0};
    for (int i = 0; i < n; i++)
        j[i] = job_open(g, &s[i]);
    image_run_finish(g, j, n);
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
    struct engine *m = open_model(s, gpu, isa, precision);
    pictures(m, s->shot, n, px);
    for (int i = 0; i < n; i++) {
        const struct shot *t = &s->shot[i];
        size_t bytes = (size_t)(3 * t->width * t->height);
        float *want = wanted(s, t);
        double d = off(px[i], want, bytes);
        print_message("%s %d, %s %s: %.2f of 255\n", s->dir, i, isa ? isa : gpu,
                      precision == PRECISION_F32 ? "f32" : "bf16", d);
        if (!(d <= bound))
            fail_msg("%s %d on %s: off by %.2f of 255, at most %.2f", s->dir, i, isa ? isa : gpu, d,
                     bound);
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
    if (!rt_fail) { /* a real one has neither orders nor paths to choose */
        check(s, NULL, PRECISION_F32, s->shot[0].golden ? 0.6 : 1.0, SHOTS);
        check(s, NULL, PRECISION_DEFAULT, s->loose, SHOTS);
        return;
    }
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

static long allocations(void)
{
    struct emu_stats s = {0};
    rt_stats(&s);
    return (long)s.mallocs;
}

/* Each allocation of a picture's steps fails once: that step says so and has changed nothing (or has found another way,
 * as prompts that are encoded one by one), the next ones give the picture that there would have been. */
static void test_no_memory(void **st)
{
    (void)st;
    if (!rt_fail)
        skip();
    static const struct shot shot = {NULL, HAT, "a dog", 16, 24, 2, 5, 11, 0};
    int failed = 0, last;
    uint8_t *want, px[3 * 16 * 24];
    struct engine *g = open_model(&sd2, "cuda-emu", "/fwd", PRECISION_DEFAULT);
    pictures(g, &shot, 1, &want);
    eng_close(g);
    long k = 1, from = 0;
    for (bool more = true; more; k++) {
        struct err e = {0};
        g = open_model(&sd2, "cuda-emu", "/fwd", PRECISION_DEFAULT);
        struct img_job *j = job_open(g, &shot);
        assert_int_equal(rt_fail("alloc", k), 0);
        last = failed;
        from = allocations();
        while (img_job_stage(j) != IMG_DONE) {
            int rc = eng_image_step(g, &j, 1, NULL, &e);
            if (rc && (rc != ERR_NOMEM || failed > last))
                fail_msg("allocation %ld: %s %s", k, err_name(rc), e.text);
            failed += rc != 0;
        }
        rt_fail("alloc", 0);
        more = allocations() - from >= k; /* else there is no k-th */
        int w, h;
        memcpy(px, img_job_pixels(j, &w, &h), sizeof px);
        assert_memory_equal(px, want, sizeof px);
        img_job_close(g, j);
        eng_close(g);
    }
    print_message("%ld allocations, each failed once; %d failed a step\n", k - 2, failed);
    assert_true(k - 2 > 4 && failed > 3);
    free(want);
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

/* 0; 77: this build has no such device beside it, which is said. The emulation's hooks, when it is that. */
static int device_find(void)
{
    const struct backend *b;
    struct err e = {0};
    char path[1024];
    const char *dir = getenv("STEPD_LIBDIR"), *other = getenv("IMAGE_DEVICE");
    gpu = other ? other : gpu;
    if (backend_find(gpu, &b, &e)) {
        printf("skipped: %s\n0 passed, 0 failed, 10 skipped\n", e.text);
        return 77;
    }
    if (strcmp(gpu, "cuda-emu") != 0)
        return 0;
    snprintf(path, sizeof path, "%s/stepd-cuda-emu.so", dir ? dir : "build/release");
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    rt_fail = so ? (int (*)(const char *, long))(uintptr_t)dlsym(so, "emu_rt_fail") : NULL;
    rt_stats = so ? (void (*)(struct emu_stats *))(uintptr_t)dlsym(so, "emu_rt_stats") : NULL;
    if (!rt_fail)
        printf("%s has no hooks\n", path);
    return !rt_fail;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SET(qwen), SET(zimage), SET(sd3),  SET(flux_dev), SET(flux_schnell),
        SET(sd2),  SET(lcm),    SET(sdxl), SET(tiny_t2i), cmocka_unit_test(test_no_memory),
    };
    const char *all = getenv("IMAGE_CUDA");
    int rc = device_find();
    thorough = all && !strcmp(all, "all");
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return rc ? rc : cmocka_run_group_tests(tests, schnell_make, schnell_drop);
}
