/* Qwen-Image, Z-Image and SD3.5 from text to pixels through the engine's door, against diffusers' pipelines on tiny random
 * models: tokenizer and template, text encoder, noise, guidance, schedule, decoding. Pictures of different sizes and step
 * numbers beside each other give the bytes that they give alone. See record_dit.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/cpu/dispatch.h"
#include "engine/engine.h"
#include "tests/golden.h"
#include "tests/image_run.h"

#define DATA "tests/data/image/"

struct shot {
    const char *golden; /* name in dit.safetensors */
    struct img_params p;
};
#define FIRST "a red cat on a mat"
#define OTHER "two blue birds, in the rain; 12 drops"
static const struct shot qwen[] = {
    {"qwen.c.image",
     {.prompt = FIRST,
      .negative = "",
      .width = 56,
      .height = 40,
      .steps = 4,
      .guidance = 4,
      .seed = 42}},
    {"qwen.d.image",
     {.prompt = OTHER,
      .negative = "x",
      .width = 32,
      .height = 64,
      .steps = 3,
      .guidance = 1,
      .seed = 7}},
};
static const struct shot zimage[] = {
    {"z.c.image",
     {.prompt = FIRST,
      .negative = "blurry",
      .width = 28,
      .height = 20,
      .steps = 4,
      .guidance = 3,
      .seed = 42}},
    {"z.d.image",
     {.prompt = OTHER,
      .negative = "x",
      .width = 16,
      .height = 36,
      .steps = 3,
      .guidance = 0,
      .seed = 7}},
};

static const struct shot sd3[] = {
    {"sd3.c.image",
     {.prompt = FIRST,
      .negative = "blurry",
      .width = 28,
      .height = 20,
      .steps = 4,
      .guidance = 4,
      .seed = 42}},
    {"sd3.d.image",
     {.prompt = OTHER,
      .negative = "x",
      .width = 16,
      .height = 36,
      .steps = 3,
      .guidance = 1,
      .seed = 7}},
};

static struct engine *open_model(const char *path, const char *device, const char *isa,
                                 enum eng_precision precision)
{
    struct eng_opts o = {
        .path = path, .device = device, .isa = isa, .precision = precision, .n_threads = 2};
    return image_run_open(&o);
}

static uint8_t *pixels(struct engine *g, const struct shot *s, int n, size_t *bytes)
{
    struct img_job *j[4] = {0};
    struct err e = {0};
    uint8_t *all = NULL;
    *bytes = 0;
    for (int i = 0; i < n; i++)
        if (img_job_open(g, &s[i].p, &j[i], &e))
            fail_msg("%s", e.text);
    image_run_finish(g, j, n);
    for (int i = 0; i < n; i++) {
        int w, h;
        const uint8_t *px = img_job_pixels(j[i], &w, &h);
        size_t more = (size_t)w * (size_t)h * 3;
        assert_non_null(px);
        assert_int_equal(w, s[i].p.width);
        assert_int_equal(h, s[i].p.height);
        assert_true(img_job_tokens(j[i]) > 0);
        all = realloc(all, *bytes + more);
        memcpy(all + *bytes, px, more);
        *bytes += more;
        img_job_close(g, j[i]);
    }
    return all;
}

/* Largest difference to the reference's 0..1, in steps of a byte. */
static double off(const uint8_t *px, const float *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)px[i] - 255 * (double)want[i];
        most = d > most ? d : -d > most ? -d : most;
    }
    return most;
}

static void compare(const char *path, const struct shot *s, const char *device, const char *isa,
                    enum eng_precision precision, double bound)
{
    struct golden *g = golden_open(DATA "dit.safetensors");
    struct engine *m = open_model(path, device, isa, precision);
    size_t bytes[2], n, all;
    uint8_t *px[2];
    assert_non_null(g);
    for (int i = 0; i < 2; i++) {
        px[i] = pixels(m, &s[i], 1, &bytes[i]);
        const float *want = golden_f32(g, s[i].golden, &n);
        if (!want || n != bytes[i])
            fail_msg("%s: %zu values, expected %zu", s[i].golden, n, bytes[i]);
        double d = off(px[i], want, n);
        if (d > bound)
            fail_msg("%s on %s %s: off by %.2f of 255, bound %.2f", s[i].golden, device,
                     isa ? isa : "", d, bound);
    }
    uint8_t *both = pixels(m, s, 2, &all);
    assert_int_equal(all, bytes[0] + bytes[1]);
    assert_memory_equal(both, px[0], bytes[0]);
    assert_memory_equal(both + bytes[0], px[1], bytes[1]);
    free(both);
    free(px[0]);
    free(px[1]);
    eng_close(m);
    golden_close(g);
}

static void every_table(const char *path, const struct shot *s)
{
    compare(path, s, "ref", NULL, PRECISION_F32, 0.6);
    for (int i = 0; i < CPU_N_ISA; i++)
        if (cpu_isa_usable(i))
            compare(path, s, "cpu", cpu_isas[i].name, PRECISION_F32, 0.6);
        else
            print_message("cpu table %s: not on this machine\n", cpu_isas[i].name);
    compare(path, s, "cpu", NULL, PRECISION_DEFAULT, 24);
}

/* From a picture, half of the steps. */
static void compare_edit(const char *path, const char *golden, int w, int h, const char *negative,
                         float guidance)
{
    uint8_t *init = malloc((size_t)w * (size_t)h * 3);
    for (int i = 0; i < w * h * 3; i++)
        init[i] = (uint8_t)(i / 3 % w * 7 + i / 3 / w * 13 + i % 3 * 50);
    struct shot s[2] = {{golden,
                         {.prompt = FIRST,
                          .negative = negative,
                          .width = w,
                          .height = h,
                          .steps = 5,
                          .guidance = guidance,
                          .strength = 0.5f,
                          .init = init,
                          .seed = 5}}};
    s[1] = s[0];
    compare(path, s, "cpu", NULL, PRECISION_F32, 0.6);
    free(init);
}

static void test_edit(void **state)
{
    (void)state;
    compare_edit(DATA "qwen-image", "qwen.e.image", 40, 48, "", 4);
    compare_edit(DATA "z-image", "z.e.image", 20, 24, "blurry", 3);
    compare_edit(DATA "sd3", "sd3.f.image", 20, 24, "blurry", 4);
}

static void test_qwen(void **state)
{
    (void)state;
    every_table(DATA "qwen-image", qwen);
}

static void test_zimage(void **state)
{
    (void)state;
    every_table(DATA "z-image", zimage);
}

static void test_sd3(void **state)
{
    (void)state;
    every_table(DATA "sd3", sd3);
}

/* The same model without its T5, which many leave out: a folder of links, and an index that says so. */
static void test_sd3_without_t5(void **state)
{
    (void)state;
    static const char *const part[] = {"scheduler", "text_encoder", "text_encoder_2",
                                       "tokenizer", "tokenizer_2",  "transformer",
                                       "vae"};
    static const struct shot shots[] = {
        {"sd3.e.image",
         {.prompt = FIRST,
          .negative = "blurry",
          .width = 28,
          .height = 20,
          .steps = 4,
          .guidance = 4,
          .seed = 42}},
        {"sd3.e.image",
         {.prompt = FIRST,
          .negative = "blurry",
          .width = 28,
          .height = 20,
          .steps = 4,
          .guidance = 4,
          .seed = 42}},
    };
    char dir[] = "/tmp/stepd-sd3-XXXXXX", here[512], from[640], to[640];
    assert_non_null(mkdtemp(dir));
    assert_non_null(getcwd(here, sizeof here));
    snprintf(to, sizeof to, "%s/model_index.json", dir);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs("{\"_class_name\": \"StableDiffusion3Pipeline\", \"text_encoder_3\": [null, null], "
          "\"tokenizer_3\": [null, null]",
          f);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        const char *cls = !strcmp(part[i], "vae") ? "AutoencoderKL" : "x";
        fprintf(f, ", \"%s\": [\"diffusers\", \"%s\"]", part[i], cls);
        snprintf(from, sizeof from, "%s/" DATA "sd3/%s", here, part[i]);
        snprintf(to, sizeof to, "%s/%s", dir, part[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    fputs("}\n", f);
    assert_int_equal(fclose(f), 0);
    compare(dir, shots, "cpu", NULL, PRECISION_F32, 0.6);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        snprintf(to, sizeof to, "%s/%s", dir, part[i]);
        assert_int_equal(unlink(to), 0);
    }
    snprintf(to, sizeof to, "%s/model_index.json", dir);
    assert_int_equal(unlink(to), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen), cmocka_unit_test(test_zimage),
        cmocka_unit_test(test_sd3),  cmocka_unit_test(test_sd3_without_t5),
        cmocka_unit_test(test_edit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
