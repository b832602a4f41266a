/* UNets against diffusers' numbers (record_unet.py and the tiny pipelines), on every backend; pictures of different
 * sizes, moments and prompts in company; what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/image/unet.h"
#include "tests/golden.h"
#include "tests/image_comp.h"

#define DATA    "tests/data/image/"
#define N_ROW   3
#define ROW_MAX (4 * 18 * 18)

static struct image_back backs[IMAGE_BACKS], backs16[IMAGE_BACKS];
static int n_back, n_back16;

struct model {
    struct comp c;
    struct nn_weights *w;
    struct unet *m;
    struct nn n;
};

static void model_close(struct model *x)
{
    unet_close(x->m);
    nn_weights_close(x->w);
    if (x->n.be)
        nn_close(&x->n);
    image_comp_close(&x->c);
    *x = (struct model){0};
}

static int model_try(struct model *x, const struct image_back *b, struct err *e)
{
    int rc = nn_weights_open(&x->w, b->be, b->dev, b->precision, e);
    image_nn_open(&x->n, b);
    return rc ? rc : unet_open(&x->m, x->w, &x->c, e);
}

static void model_open(struct model *x, const struct image_back *b, const char *dir)
{
    struct err e = {0};
    *x = (struct model){0};
    if (image_comp_open(&x->c, dir, "unet", &e) || model_try(x, b, &e))
        fail_msg("%s on %s: %s", dir, b->name, e.text);
}

/* Dry for the memory, then for real in just that much. */
static void run(struct model *x, const struct unet_row *rows, int n)
{
    struct err e = {0};
    nn_begin(&x->n, true);
    unet_run(x->m, &x->n, rows, n);
    assert_int_equal(nn_end(&x->n, &e), 0);
    assert_int_equal(x->n.mem.n, 0);
    size_t peak = x->n.mem.peak;
    assert_int_equal(nn_reserve(&x->n, peak), 0);
    nn_begin(&x->n, false);
    unet_run(x->m, &x->n, rows, n);
    if (nn_end(&x->n, &e))
        fail_msg("%s", e.text);
    assert_int_equal(x->n.mem.n, 0);
    assert_int_equal(x->n.mem.peak, peak);
}

static void near(const char *what, const char *back, const float *got, const float *want, size_t n,
                 double bound)
{
    double d = image_error(got, want, n);
    if (!(d <= bound))
        fail_msg("%s on %s: %.3g off, at most %.3g", what, back, d, bound);
}

static const float *value(struct golden *g, int i, const char *what, size_t *n)
{
    char name[64];
    snprintf(name, sizeof name, "%d.%s", i, what);
    return golden_f32(g, name, n);
}

/* Row i of a recorded case. */
static void row_of(struct golden *g, const struct unet_info *f, int i, struct unet_row *r)
{
    static const int size[N_ROW][2] = {{16, 16}, {18, 14}, {5, 9}};
    size_t n = 0;
    *r = (struct unet_row){.h = size[i][0], .w = size[i][1]};
    r->latent = value(g, i, "latent", &n);
    assert_non_null(r->latent);
    assert_int_equal(n, f->c_in * r->h * r->w);
    if (f->c_in > f->c_out)
        r->extra = r->latent + f->c_out * r->h * r->w;
    r->context = value(g, i, "context", &n);
    r->n_tok = (int)n / f->context_dim;
    r->timestep = *value(g, i, "timestep", &n);
    if (f->guidance_dim)
        r->guidance = *value(g, i, "guidance", &n);
    if (f->add_in) {
        r->pooled = value(g, i, "pooled", &n);
        r->n_pooled = (int)n;
        const float *id = value(g, i, "ids", &n);
        r->n_id = (int)n;
        memcpy(r->id, id, n * sizeof *id);
    }
}

static void case_check(const char *name, const struct image_back *b, double bound)
{
    static float alone[N_ROW][ROW_MAX], mixed[N_ROW][ROW_MAX];
    struct unet_row rows[N_ROW], turned[N_ROW];
    struct model x;
    char path[128];
    snprintf(path, sizeof path, DATA "unet-%s", name);
    model_open(&x, b, path);
    snprintf(path, sizeof path, DATA "unet-%s/golden.safetensors", name);
    struct golden *g = golden_open(path);
    assert_non_null(g);
    for (int i = 0; i < N_ROW; i++) {
        size_t n = 0;
        row_of(g, unet_info(x.m), i, &rows[i]);
        const float *want = value(g, i, "out", &n);
        assert_int_equal(n, 4 * rows[i].h * rows[i].w);
        rows[i].out = alone[i];
        run(&x, &rows[i], 1);
        near(path, b->name, alone[i], want, n, bound);
    }
    for (int i = 0; i < N_ROW; i++) {
        turned[i] = rows[N_ROW - 1 - i];
        turned[i].out = mixed[N_ROW - 1 - i];
    }
    run(&x, turned, N_ROW);
    for (int i = 0; i < N_ROW; i++)
        assert_memory_equal(mixed[i], alone[i],
                            sizeof(float) * 4 * (size_t)rows[i].h * (size_t)rows[i].w);
    golden_close(g);
    model_close(&x);
}

static const char *const cases[] = {"sd2", "refiner", "lcm", "inpaint", "nomid", "ssd"};

static void test_cases(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int b = 0; b < n_back; b++)
            case_check(cases[i], &backs[b], 1e-4);
}

static void test_cases_bf16(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int b = 0; b < n_back16; b++)
            case_check(cases[i], &backs16[b], 0.06);
}

/* The two halves of a guided call of a recorded pipeline. */
static void call_check(const char *name, int call, const struct image_back *b, double bound)
{
    static float out[2][4 * 16 * 16];
    struct model x;
    char path[128], key[96];
    size_t n = 0, n_ctx = 0, n_pool = 0;
    snprintf(path, sizeof path, DATA "%s/unet", name);
    model_open(&x, b, path);
    snprintf(path, sizeof path, DATA "%s/golden.safetensors", name);
    struct golden *g = golden_open(path);
    assert_non_null(g);
#define KEY(what) (snprintf(key, sizeof key, "denoiser_call%d." what, call), key)
    const float *in = golden_f32(g, KEY("arg0"), &n), *t = golden_f32(g, KEY("arg1"), &n);
    const int32_t *ti = t ? NULL : golden_i32(g, KEY("arg1"), &n);
    const float *ctx = golden_f32(g, KEY("encoder_hidden_states"), &n_ctx);
    const float *pool = golden_f32(g, KEY("added_cond_kwargs.text_embeds"), &n_pool);
    const float *ids = golden_f32(g, KEY("added_cond_kwargs.time_ids"), &n);
    const float *want = golden_f32(g, KEY("output"), &n);
    assert_true(in && ctx && want && (t || ti) && n == 2 * 4 * 256);
    struct unet_row rows[2];
    for (int i = 0; i < 2; i++) {
        rows[i] = (struct unet_row){.h = 16, .w = 16, .latent = in + i * 1024, .n_tok = 77};
        rows[i].timestep = t ? *t : (float)*ti;
        rows[i].context = ctx + (size_t)i * n_ctx / 2;
        if (pool) {
            rows[i].pooled = pool + (size_t)i * n_pool / 2;
            rows[i].n_pooled = (int)n_pool / 2;
            rows[i].n_id = 6;
            memcpy(rows[i].id, ids + 6 * i, 6 * sizeof *ids);
        }
        rows[i].out = out[i];
    }
    run(&x, rows, 2);
    near(path, b->name, out[0], want, n, bound);
    golden_close(g);
    model_close(&x);
}

static void test_pipelines(void **st)
{
    (void)st;
    for (int b = 0; b < n_back; b++)
        for (int call = 0; call < 2; call++) {
            call_check("sd15", call, &backs[b], 1e-4);
            call_check("sdxl", call, &backs[b], 1e-4);
        }
    for (int b = 0; b < n_back16; b++) {
        call_check("sd15", 0, &backs16[b], 0.06);
        call_check("sdxl", 0, &backs16[b], 0.06);
    }
}

/* Trained weights: models/tiny-t2i, two moments and two prompts at once. */
static void test_tiny_t2i(void **st)
{
    (void)st;
    static float out[2][1024];
    size_t n = 0, dim = 0;
    struct golden *g = golden_open(DATA "tiny-t2i.safetensors.xz");
    assert_non_null(g);
    const float *x = golden_f32(g, "unet.sample", &n);
    const float *h = golden_f32(g, "text_encoder.last_hidden_state", &dim);
    const float *want = golden_f32(g, "unet.batch2_out", &n);
    assert_true(x && h && want && n == 2048 && dim == 6 * 32 * 128);
    struct unet_row r = {.h = 16, .w = 16, .latent = x, .n_tok = 32};
    struct unet_row rows[2] = {r, r};
    rows[0].timestep = 501;
    rows[0].context = h + (ptrdiff_t)5 * 32 * 128;
    rows[0].out = out[0];
    rows[1].timestep = 37;
    rows[1].context = h + (ptrdiff_t)1 * 32 * 128;
    rows[1].out = out[1];
    for (int b = 1; b < n_back + n_back16; b++) { /* ref is too slow for it */
        const struct image_back *k = b < n_back ? &backs[b] : &backs16[b - n_back];
        struct model m;
        model_open(&m, k, "models/tiny-t2i/unet");
        run(&m, rows, 2);
        near("tiny-t2i", k->name, out[0], want, n, b < n_back ? 1e-4 : 0.05);
        model_close(&m);
    }
    golden_close(g);
}

static void config_set(struct model *x, const char *text)
{
    struct err e = {0};
    config_close(x->c.cfg);
    x->c.cfg = NULL;
    if (config_open_text(&x->c.cfg, text, strlen(text), "config.json", &e))
        fail_msg("%s", e.text);
}

#define CONFIG                                                                                     \
    "{\"block_out_channels\": [8, 16], \"layers_per_block\": 1, \"norm_num_groups\": 4, "          \
    "\"down_block_types\": [\"DownBlock2D\", \"CrossAttnDownBlock2D\"], "                          \
    "\"up_block_types\": [\"CrossAttnUpBlock2D\", \"UpBlock2D\"], \"attention_head_dim\": 2, "     \
    "\"cross_attention_dim\": 20, \"in_channels\": 9"

static void test_refused(void **st)
{
    (void)st;
    static const struct {
        const char *config;
        int rc;
        const char *says;
    } bad[] = {
        {CONFIG ", \"class_embed_type\": \"timestep\"}", ERR_UNSUPPORTED, "class_embed_type"},
        {CONFIG ", \"num_class_embeds\": 1000}", ERR_UNSUPPORTED, "num_class_embeds"},
        {CONFIG ", \"dual_cross_attention\": true}", ERR_UNSUPPORTED, "dual_cross_attention"},
        {CONFIG ", \"resnet_time_scale_shift\": \"scale_shift\"}", ERR_UNSUPPORTED,
         "resnet_time_scale_shift"},
        {CONFIG ", \"addition_embed_type\": \"image\"}", ERR_UNSUPPORTED, "addition_embed_type"},
        {CONFIG ", \"addition_embed_type\": \"text_time\"}", ERR_INVAL,
         "projection_class_embeddings_input_dim"},
        {CONFIG ", \"downsample_padding\": 0}", ERR_UNSUPPORTED, "downsample_padding"},
        {CONFIG ", \"mid_block_type\": \"Strange\"}", ERR_UNSUPPORTED, "Strange"},
        {CONFIG ", \"norm_eps\": \"x\"}", ERR_INVAL, "norm_eps"},
        {CONFIG ", \"time_cond_proj_dim\": 16}", ERR_NOTFOUND, "time_embedding.cond_proj"},
        {"{\"block_out_channels\": []}", ERR_INVAL, "block_out_channels"},
        {"{\"block_out_channels\": [8, 16], \"layers_per_block\": [1, 1, 1]}", ERR_INVAL,
         "layers_per_block"},
        {"{\"block_out_channels\": [8, 16], \"down_block_types\": [\"DownBlock2D\", \"Odd\"]}",
         ERR_UNSUPPORTED, "Odd"},
        {"{\"block_out_channels\": [8, 16], \"norm_num_groups\": 3, "
         "\"down_block_types\": [\"DownBlock2D\", \"DownBlock2D\"], "
         "\"up_block_types\": [\"UpBlock2D\", \"UpBlock2D\"]}",
         ERR_INVAL, "groups"},
    };
    struct image_back *b = &backs[n_back - 1];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct model x = {0};
        struct err e = {0};
        assert_int_equal(image_comp_open(&x.c, DATA "unet-inpaint", "unet", &e), 0);
        config_set(&x, bad[i].config);
        int rc = model_try(&x, b, &e);
        if (rc != bad[i].rc || !strstr(e.text, bad[i].says))
            fail_msg("%zu: %d %s", i, rc, e.text);
        assert_null(x.m);
        model_close(&x);
    }
}

/* The right configuration over another model's tensors. */
static void test_wrong_tensors(void **st)
{
    (void)st;
    static const struct {
        const char *dir, *says;
    } bad[] = {{DATA "unet-lcm", "conv_in"},
               {DATA "unet-sd2", "conv_in"},
               {DATA "sd15/unet", "conv_in"},
               {DATA "sd15/text_encoder", "conv_in"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct model x = {0};
        struct err e = {0};
        assert_int_equal(image_comp_open(&x.c, bad[i].dir, "unet", &e), 0);
        config_set(&x, CONFIG "}");
        assert_true(model_try(&x, &backs[n_back - 1], &e) < 0);
        assert_non_null(strstr(e.text, bad[i].says));
        model_close(&x);
    }
}

/* Every allocation of opening fails once: an error, nothing left behind (the address sanitizer's build looks). */
static void test_no_memory(void **st)
{
    (void)st;
    struct model x = {0};
    struct err e = {0};
    assert_int_equal(image_comp_open(&x.c, DATA "unet-inpaint", "unet", &e), 0);
    long k = 1;
    for (int rc = 1; rc && k < 2000; k += 1 + k / 8) {
        struct nn_weights *w = NULL;
        struct unet *m = NULL;
        assert_int_equal(
            nn_weights_open(&w, backs[n_back - 1].be, backs[n_back - 1].dev, PRECISION_F32, &e), 0);
        mem_fail_after(k, true);
        rc = unet_open(&m, w, &x.c, &e);
        mem_fail_after(0, false);
        if (rc)
            assert_int_equal(rc, ERR_NOMEM);
        unet_close(m);
        nn_weights_close(w);
    }
    assert_true(k > 20 && k < 2000);
    model_close(&x);
}

/* Rows that do not suit, and too small a work buffer, are errors of the run. */
static void test_run_errors(void **st)
{
    (void)st;
    static float v[9 * 64], out[4 * 64], ctx[20];
    struct model x;
    struct err e = {0};
    model_open(&x, &backs[n_back - 1], DATA "unet-inpaint");
    struct unet_row ok = {
        .h = 8, .w = 8, .latent = v, .extra = v, .context = ctx, .n_tok = 1, .out = out};
    struct unet_row bad[4] = {ok, ok, ok, ok};
    bad[0].h = 0;
    bad[1].n_tok = 0;
    bad[2].context = NULL;
    bad[3].out = NULL;
    for (int i = 0; i < 4; i++) {
        nn_begin(&x.n, false);
        unet_run(x.m, &x.n, &bad[i], 1);
        assert_int_equal(nn_end(&x.n, &e), ERR_INVAL);
    }
    run(&x, &ok, 1);
    struct unet_row more[2] = {ok, ok};
    nn_begin(&x.n, false);
    unet_run(x.m, &x.n, more, 2);
    assert_int_equal(nn_end(&x.n, &e), ERR_NOMEM);
    assert_non_null(strstr(e.text, "tmp"));
    run(&x, &ok, 1);
    model_close(&x);
}

/* With no device nothing is opened, but everything is found and counted: at least the file's bf16. */
static void test_plan(void **st)
{
    (void)st;
    struct model x = {0};
    struct err e = {0};
    assert_int_equal(image_comp_open(&x.c, DATA "sdxl/unet", "unet", &e), 0);
    assert_int_equal(nn_weights_open(&x.w, &cpu_backend, NULL, PRECISION_F32, &e), 0);
    assert_int_equal(unet_open(&x.m, x.w, &x.c, &e), 0);
    assert_true(nn_weights_bytes(x.w) >= 362676 * sizeof(uint16_t));
    struct unet_row r = {.h = 16, .w = 16, .n_tok = 77};
    x.n = (struct nn){.be = &cpu_backend, .mul = DT_F32};
    nn_begin(&x.n, true);
    unet_run(x.m, &x.n, &r, 1);
    assert_int_equal(nn_end(&x.n, &e), 0);
    assert_true(x.n.mem.peak > 256 * 32 * sizeof(float));
    x.n = (struct nn){0};
    model_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),     cmocka_unit_test(test_cases_bf16),
        cmocka_unit_test(test_pipelines), cmocka_unit_test(test_tiny_t2i),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_wrong_tensors),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_run_errors),
        cmocka_unit_test(test_plan),
    };
    n_back = image_backs_open(backs, PRECISION_F32);
    n_back16 = image_backs_open(backs16, PRECISION_DEFAULT);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    image_backs_close(backs, n_back);
    image_backs_close(backs16, n_back16);
    return rc;
}
