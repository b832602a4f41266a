/* The Stable Diffusion family from text to pixels through the engine's door, against diffusers' pipelines on tiny random
 * models (record_pipe_sd.py) and on models/tiny-t2i. Pictures of different sizes and step numbers beside each other give
 * the bytes that they give alone. What a model is follows from its files; what does not fit is refused by name. */
#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/cpu/dispatch.h"
#include "engine/engine.h"
#include "engine/image/model.h"
#include "tests/golden.h"
#include "tests/image_comp.h"
#include "tests/image_run.h"

#define DATA     "tests/data/image/"
#define PROMPT   "the cat in the hat"
#define NEGATIVE "a dog"
#define SHOTS    5

static uint8_t rgb[32 * 32 * 3], mask[32 * 32];

/* As record_pipe_sd.py's picture(). */
static void picture_make(void)
{
    for (int y = 0; y < 32; y++)
        for (int x = 0; x < 32; x++) {
            uint8_t *p = rgb + 3 * (y * 32 + x);
            p[0] = (uint8_t)(x * 7 + y * 3);
            p[1] = (uint8_t)(x * 2 + y * 11);
            p[2] = (uint8_t)(x * 5 + y * 5);
            mask[y * 32 + x] = x >= 16 ? 255 : 0;
        }
}

struct shot {
    const char *name; /* in golden.safetensors */
    const char *negative;
    int width, height;
    float guidance, refiner; /* refiner: part of the steps before it */
    float strength;          /* 0: from nothing */
    bool masked;
};
static const struct set {
    const char *dir, *refiner;
    struct shot shot[SHOTS];
} sets[] = {
    {DATA "pipe-sd2",
     NULL,
     {{"plain", "", 32, 32, 1, 0, 0, false},
      {"guided", NEGATIVE, 40, 24, 5, 0, 0, false},
      {"empty", "", 32, 32, 5, 0, 0, false},
      {"edit", NEGATIVE, 32, 32, 5, 0, 0.6f, false},
      {"mask", NEGATIVE, 32, 32, 5, 0, 1, true}}},
    {DATA "pipe-lcm",
     NULL,
     {{"plain", "", 32, 32, 8.5f, 0, 0, false}, {"low", "", 40, 24, 3, 0, 0, false}}},
    {DATA "pipe-inpaint", NULL, {{"mask", NEGATIVE, 32, 32, 5, 0, 1, true}}},
    {DATA "pipe-sdxl",
     DATA "pipe-refiner",
     {{"plain", "", 32, 32, 1, 0, 0, false},
      {"guided", NEGATIVE, 40, 24, 5, 0, 0, false},
      {"empty", "", 32, 32, 5, 0, 0, false},
      {"edit", NEGATIVE, 32, 32, 5, 0, 0.6f, false},
      {"refined", NEGATIVE, 32, 32, 5, 0.5f, 0, false}}},
};
#define N_SET 4

static struct engine *model_open(const struct set *s, const char *device, const char *isa,
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
    struct img_params p = {.prompt = PROMPT,
                           .negative = s->negative,
                           .width = s->width,
                           .height = s->height,
                           .steps = 4,
                           .guidance = s->guidance,
                           .strength = s->strength,
                           .seed = 11,
                           .refiner_switch = s->refiner,
                           .init = s->strength > 0 ? rgb : NULL,
                           .mask = s->masked ? mask : NULL};
    if (img_job_open(g, &p, &j, &e))
        fail_msg("%s: %s", s->name, e.text);
    return j;
}

static const float *want(struct golden *g, const struct shot *s, const char *what, size_t *n)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", s->name, what);
    return golden_f32(g, key, n);
}

/* Largest difference to the reference's -1..1, in steps of a byte, outside of what a mask keeps. */
static double pixels_off(const struct img_job *j, const float *want)
{
    int w, h;
    const uint8_t *px = img_job_pixels(j, &w, &h);
    double most = 0;
    assert_non_null(px);
    for (int i = 0; i < w * h; i++)
        for (int c = 0; c < 3; c++) {
            double d = (double)px[3 * i + c] - 127.5 * ((double)want[c * w * h + i] + 1);
            d = d < 0 ? -d : d;
            if (!(j->p.mask && !j->p.mask[i]) && d > most)
                most = d;
        }
    return most;
}

/* All shots of a set alone against the reference, then all together against themselves. */
static void set_check(const struct set *s, const char *device, const char *isa,
                      enum eng_precision precision, double bound, double bound_px)
{
    char path[128];
    uint8_t *alone[SHOTS];
    struct img_job *j[SHOTS];
    int n = 0, w, h;
    snprintf(path, sizeof path, "%s/golden.safetensors", s->dir);
    struct golden *g = golden_open(path);
    assert_non_null(g);
    struct engine *m = model_open(s, device, isa, precision);
    for (; n < SHOTS && s->shot[n].name; n++) {
        size_t k = 0, k_px = 0;
        const struct shot *t = &s->shot[n];
        j[n] = job_open(m, t);
        image_run_finish(m, &j[n], 1);
        const float *z = want(g, t, "latents", &k), *px = want(g, t, "image", &k_px);
        assert_true(z && px && k == j[n]->n && k_px == 3 * (size_t)(t->width * t->height));
        double d = image_error(j[n]->x, z, k), d_px = pixels_off(j[n], px);
        if (!(d <= bound) || !(d_px <= bound_px))
            fail_msg("%s %s on %s %s: latents %.3g off, at most %.3g; pixels %.3g, at most %.3g",
                     s->dir, t->name, device, isa ? isa : "", d, bound, d_px, bound_px);
        alone[n] = malloc(k_px);
        memcpy(alone[n], img_job_pixels(j[n], &w, &h), k_px);
        img_job_close(m, j[n]);
    }
    for (int i = 0; i < n; i++)
        j[i] = job_open(m, &s->shot[i]);
    image_run_finish(m, j, n);
    for (int i = 0; i < n; i++) {
        const uint8_t *px = img_job_pixels(j[i], &w, &h);
        assert_memory_equal(px, alone[i], (size_t)(w * h * 3));
        img_job_close(m, j[i]);
        free(alone[i]);
    }
    eng_close(m);
    golden_close(g);
}

static void test_sets(void **st)
{
    (void)st;
    for (int i = 0; i < N_SET; i++) {
        set_check(&sets[i], "ref", NULL, PRECISION_F32, 2e-4, 0.6);
        for (int k = 0; k < CPU_N_ISA; k++)
            if (cpu_isa_usable(k))
                set_check(&sets[i], "cpu", cpu_isas[k].name, PRECISION_F32, 2e-4, 0.6);
            else
                print_message("cpu table %s: not on this machine\n", cpu_isas[k].name);
        set_check(&sets[i], "cpu", NULL, PRECISION_DEFAULT, 0.2, 40);
    }
}

/* ---- the trained model: its own goldens, from recorded noise ---- */

static void tiny_check(struct engine *m, struct golden *g, enum img_sampler sampler,
                       enum img_schedule schedule, const char *key, int steps)
{
    char name[64];
    size_t n = 0, n_z = 0, n_px = 0;
    struct err e = {0};
    struct img_job *j = NULL;
    struct img_params p = {.prompt = "a red apple on a blue background",
                           .negative = "",
                           .width = 64,
                           .height = 64,
                           .steps = steps,
                           .guidance = 4,
                           .sampler = sampler,
                           .schedule = schedule};
    assert_int_equal(img_job_open(m, &p, &j, &e), 0);
    assert_int_equal(eng_image_step(m, &j, 1, NULL, &e), 0);
    const float *noise = golden_f32(g, "pipe.noise", &n);
    const float *cond = golden_f32(g, "pipe.cond", &n_z),
                *none = golden_f32(g, "pipe.uncond", &n_px);
    assert_true(noise && n == j->n && cond && none && n_z == 32 * 128);
    assert_true(image_error(j->phase[0].cond->states, cond, n_z) < 1e-4);
    assert_true(image_error(j->phase[0].uncond->states, none, n_px) < 1e-4);
    for (size_t i = 0; i < n; i++)
        j->x[i] = noise[i] * j->phase[0].table->init_sigma;
    snprintf(name, sizeof name, "pipe.%s.%d.latents", key, steps);
    const float *z = golden_f32(g, name, &n_z);
    assert_true(z && n_z == (size_t)(steps + 1) * n);
    for (int i = 1; i <= steps; i++) {
        assert_int_equal(eng_image_step(m, &j, 1, NULL, &e), 0);
        double d = image_error(j->x, z + (size_t)i * n, n);
        if (!(d < 1e-3))
            fail_msg("%s: latents after step %d are %.3g off", name, i, d);
    }
    snprintf(name, sizeof name, "pipe.%s.%d.image", key, steps);
    const float *px = golden_f32(g, name, &n_px);
    assert_true(px && n_px == 3 * 64 * 64);
    assert_int_equal(eng_image_step(m, &j, 1, NULL, &e), 0);
    assert_true(pixels_off(j, px) < 1.5);
    img_job_close(m, j);
}

static void test_tiny_t2i(void **st)
{
    (void)st;
    struct set tiny = {"models/tiny-t2i", NULL, {{0}}};
    struct engine *m = model_open(&tiny, "cpu", NULL, PRECISION_F32);
    struct golden *g = golden_open(DATA "tiny-t2i.safetensors.xz");
    assert_non_null(g);
    const struct eng_image_info *f = eng_info(m)->image;
    assert_int_equal(f->size_default, 64);
    assert_int_equal(f->size_step, 4);
    assert_int_equal(f->prompt_tokens_max, 32);
    assert_int_equal(f->sampler_default, IMG_SAMPLER_DDIM);
    assert_true(f->negative && f->edit && f->steps_default > 10 && f->guidance_default > 7);
    tiny_check(m, g, IMG_SAMPLER_DEFAULT, IMG_SCHEDULE_DEFAULT, "ddim", 20);
    tiny_check(m, g, IMG_SAMPLER_EULER, IMG_SCHEDULE_DEFAULT, "euler", 20);
    tiny_check(m, g, IMG_SAMPLER_EULER, IMG_SCHEDULE_KARRAS, "euler_karras", 20);
    tiny_check(m, g, IMG_SAMPLER_DPMPP_2M, IMG_SCHEDULE_DEFAULT, "dpmpp_2m", 20);
    golden_close(g);
    eng_close(m);
}

/* ---- what the files say ---- */

/* A folder of links to a model's files, so that some can be others. */
struct copy {
    char dir[64];
};

static void put(const struct copy *c, const char *file, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", c->dir, file);
    unlink(path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Replace `from` by `to` in a file of the copy. */
static void edit(const struct copy *c, const char *file, const char *from, const char *to)
{
    char path[256], text[8192], out[8192];
    snprintf(path, sizeof path, "%s/%s", c->dir, file);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *at = strstr(text, from);
    if (!at)
        fail_msg("%s: no %s", file, from);
    snprintf(out, sizeof out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    put(c, file, out);
}

static void link_tree(const char *from, const char *to)
{
    char cwd[256];
    DIR *d = opendir(from);
    assert_true(d && getcwd(cwd, sizeof cwd));
    for (struct dirent *f; (f = readdir(d));) {
        char a[512], b[512], full[800];
        struct stat st;
        if (f->d_name[0] == '.')
            continue;
        snprintf(a, sizeof a, "%.200s/%.200s", from, f->d_name);
        snprintf(b, sizeof b, "%.200s/%.200s", to, f->d_name);
        assert_int_equal(stat(a, &st), 0);
        if (S_ISDIR(st.st_mode)) {
            assert_int_equal(mkdir(b, 0700), 0);
            link_tree(a, b);
        } else {
            snprintf(full, sizeof full, "%s/%s", cwd, a);
            assert_int_equal(symlink(full, b), 0);
        }
    }
    closedir(d);
}

static void copy_make(struct copy *c, const char *dir)
{
    snprintf(c->dir, sizeof c->dir, "/tmp/stepd-pipe-XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    link_tree(dir, c->dir);
}

static int drop_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st;
    (void)flag;
    (void)at;
    return remove(path);
}

static void copy_drop(struct copy *c)
{
    assert_int_equal(nftw(c->dir, drop_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static int try_open(const struct copy *c, struct engine **g, struct err *e)
{
    struct eng_opts o = {.path = c->dir, .device = "cpu", .precision = PRECISION_F32};
    *g = NULL;
    return eng_open(g, &o, e);
}

/* Few-step models, recognised by their scheduler or name; others keep guidance. */
static void test_defaults(void **st)
{
    (void)st;
    static const struct {
        const char *dir, *file, *from, *to;
        int steps;
        float guidance;
        enum img_sampler sampler;
    } rows[] = {
        {"pipe-sd2", "model_index.json", "{", "{", 30, 7.5f, IMG_SAMPLER_DEFAULT},
        {"pipe-lcm", "model_index.json", "{", "{", 4, 8.5f, IMG_SAMPLER_LCM},
        {"pipe-sdxl", "model_index.json", "{", "{", 30, 5, IMG_SAMPLER_EULER},
        {"pipe-sdxl", "model_index.json", "{", "{\"_name_or_path\": \"some/XL-Turbo\",", 4, 1,
         IMG_SAMPLER_EULER},
        {"pipe-sdxl", "scheduler/scheduler_config.json", "leading", "trailing", 4, 1,
         IMG_SAMPLER_EULER},
        {"pipe-sdxl", "scheduler/scheduler_config.json", "EulerDiscrete", "EulerAncestralDiscrete",
         30, 5, IMG_SAMPLER_EULER_A},
        {"pipe-sdxl", "scheduler/scheduler_config.json", "EulerDiscreteScheduler", "LCMScheduler",
         4, 1, IMG_SAMPLER_LCM},
        {"pipe-sdxl", "scheduler/scheduler_config.json", "EulerDiscreteScheduler",
         "UniPCMultistepScheduler", 30, 5, IMG_SAMPLER_DPMPP_2M},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct copy c;
        struct engine *g;
        struct err e = {0};
        char dir[64];
        snprintf(dir, sizeof dir, DATA "%s", rows[i].dir);
        copy_make(&c, dir);
        edit(&c, rows[i].file, rows[i].from, rows[i].to);
        if (try_open(&c, &g, &e))
            fail_msg("%zu: %s", i, e.text);
        const struct eng_image_info *f = eng_info(g)->image;
        assert_int_equal(f->steps_default, rows[i].steps);
        assert_float_equal(f->guidance_default, rows[i].guidance, 1e-6);
        assert_int_equal(f->sampler_default, rows[i].sampler);
        assert_int_equal(f->negative, strcmp(rows[i].dir, "pipe-lcm") != 0);
        eng_close(g);
        copy_drop(&c);
    }
}

static void test_refused(void **st)
{
    (void)st;
    static const struct {
        const char *dir, *file, *from, *to;
        int rc;
        const char *says;
    } bad[] = {
        {"pipe-sd2", "model_index.json", "\"CLIPTokenizer\"", "null", ERR_NOTFOUND, "tokenizer"},
        {"pipe-sd2", "model_index.json", "\"AutoencoderKL\"", "null", ERR_NOTFOUND, "vae"},
        {"pipe-sd2", "model_index.json", "\"PNDMScheduler\"", "null", ERR_NOTFOUND, "scheduler"},
        {"pipe-sd2", "model_index.json", "\"CLIPTextModel\"", "null", ERR_NOTFOUND, "text_encoder"},
        {"pipe-sd2", "scheduler/scheduler_config.json", "PNDMScheduler", "OddScheduler",
         ERR_UNSUPPORTED, "OddScheduler"},
        {"pipe-sd2", "scheduler/scheduler_config.json", "PNDMScheduler",
         "FlowMatchEulerDiscreteScheduler", ERR_UNSUPPORTED, "flow"},
        {"pipe-sd2", "scheduler/scheduler_config.json", "\"v_prediction\"", "\"odd\"",
         ERR_UNSUPPORTED, "prediction_type"},
        {"pipe-sd2", "scheduler/scheduler_config.json", "0.012", "\"0.012\"", ERR_INVAL,
         "beta_end"},
        {"pipe-sd2", "scheduler/scheduler_config.json", "\"trained_betas\": null",
         "\"trained_betas\": [0.1]", ERR_UNSUPPORTED, "trained_betas"},
        {"pipe-sdxl", "model_index.json", "\"CLIPTextModel\"", "null", ERR_INVAL, "context"},
        {"pipe-sdxl", "model_index.json", "\"CLIPTextModelWithProjection\"", "null", ERR_INVAL,
         "context"},
        {"pipe-sdxl", "model_index.json", "\"force_zeros_for_empty_prompt\": true",
         "\"force_zeros_for_empty_prompt\": 3", ERR_INVAL, "force_zeros"},
        {"pipe-sdxl", "unet/config.json", "\"addition_time_embed_dim\": 8",
         "\"addition_time_embed_dim\": 6", ERR_INVAL, "projection_class_embeddings_input_dim"},
        {"pipe-sd2", "model_index.json", "StableDiffusionPipeline", "OddPipeline", ERR_UNSUPPORTED,
         "OddPipeline"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct copy c;
        struct engine *g;
        struct err e = {0};
        char dir[64];
        snprintf(dir, sizeof dir, DATA "%s", bad[i].dir);
        copy_make(&c, dir);
        edit(&c, bad[i].file, bad[i].from, bad[i].to);
        int rc = try_open(&c, &g, &e);
        if (rc != bad[i].rc || !strstr(e.text, bad[i].says))
            fail_msg("%zu: %d %s", i, rc, e.text);
        assert_null(g);
        copy_drop(&c);
    }
}

/* Every allocation of opening and of a picture fails once: an error, and the next picture is right. */
static void test_no_memory(void **st)
{
    (void)st;
    struct err e = {0};
    struct eng_opts o = {.path = DATA "pipe-sdxl", .device = "cpu", .precision = PRECISION_F32};
    long k = 1;
    for (int rc = 1; rc && k < 100000; k += 1 + k / 3) {
        struct engine *g = NULL;
        mem_fail_after(k, true);
        rc = eng_open(&g, &o, &e);
        mem_fail_after(0, false);
        if (rc) {
            if (rc != ERR_NOMEM)
                fail_msg("%ld: %d %s", k, rc, e.text);
        }
        eng_close(g);
    }
    assert_true(k < 100000);
    struct engine *m = model_open(&sets[3], "cpu", NULL, PRECISION_F32);
    for (long i = 1; i < 12; i++) {
        struct img_job *j = job_open(m, &sets[3].shot[1]);
        mem_fail_after(i, false);
        int rc = eng_image_step(m, &j, 1, NULL, &e);
        mem_fail_after(0, false);
        if (rc)
            assert_int_equal(rc, ERR_NOMEM);
        image_run_finish(m, &j, 1);
        img_job_close(m, j);
    }
    eng_close(m);
}

/* The memory plan finds and counts what opening would take. */
static void test_plan(void **st)
{
    (void)st;
    struct err e = {0};
    struct eng_memory plan;
    struct eng_opts o = {.path = DATA "pipe-sdxl", .device = "cpu", .precision = PRECISION_F32};
    assert_int_equal(eng_memory_plan(&o, &plan, &e), 0);
    struct engine *g =
        model_open(&(struct set){.dir = DATA "pipe-sdxl"}, "cpu", NULL, PRECISION_F32);
    assert_int_equal(plan.weights, eng_info(g)->weight_bytes);
    assert_int_equal(plan.image_size, 32);
    assert_true(plan.image_encode > 0 && plan.image_denoise > 0 && plan.image_decode > 0);
    eng_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets),      cmocka_unit_test(test_tiny_t2i),
        cmocka_unit_test(test_defaults),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_plan),
    };
    picture_make();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
