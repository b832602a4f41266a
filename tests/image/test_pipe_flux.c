/* FLUX.1 dev and schnell from text to pixels through the engine's door, against diffusers' pipelines on tiny random
 * models (record_pipe_flux.py); company; what a damaged folder says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/cpu/dispatch.h"
#include "engine/engine.h"
#include "engine/image/encoders.h"
#include "tests/golden.h"
#include "tests/image_comp.h"
#include "tests/image_run.h"

#define DATA  "tests/data/image/"
#define OTHER "two blue birds, in the rain; 12 drops"

static char schnell[64]; /* a folder that links what schnell shares with dev */
static struct golden *gold;

struct shot {
    const char *golden;
    struct img_params p;
};
#define SHOT(name, text, w, h, n, g, s)                                                            \
    {                                                                                              \
        name,                                                                                      \
        {                                                                                          \
            .prompt = text, .negative = "", .width = w, .height = h, .steps = n, .guidance = g,    \
            .seed = s                                                                              \
        }                                                                                          \
    }
static const struct shot dev_shots[] = {
    SHOT("dev.0", "a red cat on a mat", 28, 20, 4, 3.5f, 42),
    SHOT("dev.1", OTHER, 16, 36, 3, 2, 7),
};
static const struct shot schnell_shots[] = {
    SHOT("schnell.0", "a red cat on a mat", 28, 20, 4, 0, 42),
    SHOT("schnell.1", OTHER, 16, 36, 2, 3.5f, 7), /* guidance is not an input: no difference */
};

/* dir/part is what lies at `from` below the test data. */
static void link_part(const char *dir, const char *from, const char *part)
{
    char cwd[256], old[512], new[160];
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(old, sizeof old, "%s/" DATA "%s", cwd, from);
    snprintf(new, sizeof new, "%s/%s", dir, part);
    assert_int_equal(symlink(old, new), 0);
}

static const char *const parts[] = {
    "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2",
    "vae",          "transformer",    "scheduler", "model_index.json"};
#define N_PART (sizeof parts / sizeof *parts)
#define SHARED 5 /* of parts */

static void folder_make(char dir[64], const char *own)
{
    snprintf(dir, 64, "/tmp/stepd-flux-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < N_PART; i++) {
        char from[96];
        snprintf(from, sizeof from, "%s/%s", i < SHARED ? "flux-dev" : own, parts[i]);
        link_part(dir, from, parts[i]);
    }
}

static void part_remove(const char *dir, const char *part)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, part);
    unlink(path);
}

static void folder_remove(const char *dir)
{
    for (size_t i = 0; i < N_PART; i++)
        part_remove(dir, parts[i]);
    rmdir(dir);
}

static struct engine *open_model(const char *path, const char *device, const char *isa,
                                 enum eng_precision precision)
{
    struct eng_opts o = {
        .path = path, .device = device, .isa = isa, .precision = precision, .n_threads = 2};
    return image_run_open(&o);
}

/* Jobs to their end, those of one stage beside each other; their pixels behind each other. */
static uint8_t *pixels(struct engine *g, const struct shot *s, int n, size_t *bytes)
{
    struct img_job *j[2] = {0};
    struct err e = {0};
    uint8_t *all = NULL;
    for (int i = 0; i < n; i++)
        if (img_job_open(g, &s[i].p, &j[i], &e))
            fail_msg("%s", e.text);
    image_run_finish(g, j, n);
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        int w, h;
        const uint8_t *px = img_job_pixels(j[i], &w, &h);
        size_t more = (size_t)w * (size_t)h * 3;
        assert_non_null(px);
        all = realloc(all, *bytes + more);
        memcpy(all + *bytes, px, more);
        *bytes += more;
        assert_true(img_job_tokens(j[i]) > 5 && img_job_tokens(j[i]) < 40); /* filling apart */
        img_job_close(g, j[i]);
    }
    return all;
}

static void near(const char *what, const uint8_t *px, const char *name, size_t n, double bound)
{
    size_t got = 0;
    const float *want = golden_f32(gold, name, &got);
    double most = 0;
    if (!want || got != n)
        fail_msg("%s: %zu values, expected %zu", name, got, n);
    for (size_t i = 0; i < n; i++) {
        double d = (double)px[i] - 255 * (double)want[i];
        most = d > most ? d : -d > most ? -d : most;
    }
    if (most > bound)
        fail_msg("%s on %s: off by %.2f of 255, bound %.2f", name, what, most, bound);
}

static void compare(const char *path, const struct shot *s, const char *device, const char *isa,
                    enum eng_precision precision, double bound)
{
    struct engine *m = open_model(path, device, isa, precision);
    size_t bytes[2], all;
    uint8_t *px[2], *both;
    for (int i = 0; i < 2; i++) {
        px[i] = pixels(m, &s[i], 1, &bytes[i]);
        near(isa ? isa : device, px[i], s[i].golden, bytes[i], bound);
    }
    both = pixels(m, s, 2, &all);
    assert_int_equal(all, bytes[0] + bytes[1]);
    assert_memory_equal(both, px[0], bytes[0]);
    assert_memory_equal(both + bytes[0], px[1], bytes[1]);
    free(both);
    free(px[0]);
    free(px[1]);
    eng_close(m);
}

static void every_table(const char *path, const struct shot *s)
{
    compare(path, s, "ref", NULL, PRECISION_F32, 0.6);
    for (int i = 0; i < CPU_N_ISA; i++)
        if (cpu_isa_usable(i))
            compare(path, s, "cpu", cpu_isas[i].name, PRECISION_F32, 0.6);
    compare(path, s, "cpu", NULL, PRECISION_DEFAULT, 24);
}

static void test_dev(void **st)
{
    (void)st;
    every_table(DATA "flux-dev", dev_shots);
}

static void test_schnell(void **st)
{
    (void)st;
    every_table(schnell, schnell_shots);
}

/* Image to image. */
static void test_edit(void **st)
{
    (void)st;
    static const struct {
        const char *golden;
        float strength;
        int steps, done;
    } row[] = {{"edit.0", 0.6f, 5, 3}, {"edit.1", 1, 3, 3}};
    size_t n, bytes;
    const int32_t *rgb = golden_i32(gold, "edit.rgb", &n);
    uint8_t init[28 * 20 * 3];
    assert_true(rgb && n == sizeof init);
    for (size_t i = 0; i < n; i++)
        init[i] = (uint8_t)rgb[i];
    struct engine *g = open_model(DATA "flux-dev", "cpu", NULL, PRECISION_F32);
    for (int i = 0; i < 2; i++) {
        struct shot s = SHOT("", OTHER, 28, 20, row[i].steps, 3.5f, 9);
        struct img_job *j;
        struct err e = {0};
        s.p.strength = row[i].strength;
        s.p.init = init;
        if (img_job_open(g, &s.p, &j, &e))
            fail_msg("%s", e.text);
        assert_int_equal(img_job_steps(j), row[i].done);
        img_job_close(g, j);
        uint8_t *px = pixels(g, &s, 1, &bytes);
        near("cpu", px, row[i].golden, bytes, 0.6);
        free(px);
    }
    eng_close(g);
}

static void test_info(void **st)
{
    (void)st;
    struct engine *g[2] = {open_model(DATA "flux-dev", "cpu", NULL, PRECISION_F32),
                           open_model(schnell, "cpu", NULL, PRECISION_F32)};
    for (int i = 0; i < 2; i++) {
        const struct eng_image_info *f = eng_info(g[i])->image;
        assert_int_equal(f->steps_default, i ? 4 : 28);
        assert_int_equal(f->prompt_tokens_max, i ? 256 : 512);
        assert_true(f->guidance_default == (i ? 0.0f : 3.5f));
        assert_int_equal(f->size_step, 4);
        assert_false(f->negative);
        assert_true(f->edit);
        assert_string_equal(f->pipeline, "FluxPipeline");
        eng_close(g[i]);
    }
}

/* Ids as the reference's tokenizers give them, a prompt that is too long, and no memory. */
static void test_ids(void **st)
{
    (void)st;
    static const char *const dir[] = {DATA "flux-dev/tokenizer", DATA "flux-dev/tokenizer_2"};
    for (int i = 0; i < 2; i++) {
        struct comp c = {0};
        struct tokenizer *t;
        struct err e = {0};
        int32_t ids[77];
        size_t n;
        int real = 0;
        const int32_t *want = golden_i32(gold, i ? "t5" : "clip", &n);
        assert_true(want && n <= 77);
        snprintf(c.dir, sizeof c.dir, "%s", dir[i]);
        if (enc_tokenizer_open(&t, &c, &e))
            fail_msg("%s", e.text);
        if (i)
            assert_int_equal(enc_t5_ids(t, OTHER, (int)n, ids, &real), 0);
        else
            assert_int_equal(enc_clip_ids(t, OTHER, (int)n, enc_pad_id(t, &c), ids, &real), 0);
        assert_memory_equal(ids, want, n * sizeof *ids);
        assert_int_equal(real, i ? 24 : 30);
        tok_close(t);
    }
}

static void refuse(const char *dir, int code, const char *say)
{
    struct eng_opts o = {.path = dir, .device = "cpu", .precision = PRECISION_F32};
    struct engine *g = NULL;
    struct err e = {0};
    int rc = eng_open(&g, &o, &e);
    if (rc != code || !strstr(e.text, say))
        fail_msg("got %s \"%s\", expected %s \"%s\"", err_name(rc), e.text, err_name(code), say);
    assert_null(g);
}

/* A folder with another model's part in place of one. */
static void test_parts(void **st)
{
    (void)st;
    static const struct {
        const char *part, *from;
        int code;
        const char *say;
    } row[] = {
        {"tokenizer_2", NULL, ERR_NOTFOUND, "tokenizer_2"},
        {"text_encoder_2", NULL, ERR_NOTFOUND, "text_encoder_2"},
        {"transformer", "qwen-image/transformer", ERR_UNSUPPORTED, "transformer: patch_size"},
        {"transformer", "flux-schnell/scheduler", ERR_NOTFOUND, "transformer"},
        {"text_encoder_2", "encoders/t5-encoder", ERR_INVAL, "text_encoder_2's states"},
        {"vae", "qwen-image/vae", ERR_INVAL, "block_out_channels"},
        {"scheduler", "sdxl/scheduler", ERR_UNSUPPORTED, "flow matching"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char dir[64];
        folder_make(dir, "flux-dev");
        part_remove(dir, row[i].part);
        if (row[i].from)
            link_part(dir, row[i].from, row[i].part);
        refuse(dir, row[i].code, row[i].say);
        folder_remove(dir);
    }
}

static int open_all(void **st)
{
    (void)st;
    folder_make(schnell, "flux-schnell");
    gold = golden_open(DATA "pipe_flux.safetensors");
    return gold ? 0 : -1;
}

static int close_all(void **st)
{
    (void)st;
    folder_remove(schnell);
    golden_close(gold);
    return 0;
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_ids),     cmocka_unit_test(test_info),  cmocka_unit_test(test_dev),
        cmocka_unit_test(test_schnell), cmocka_unit_test(test_parts), cmocka_unit_test(test_edit),
    };
    return cmocka_run_group_tests(t, open_all, close_all);
}
