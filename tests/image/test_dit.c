/* The diffusion transformers of Qwen-Image, Z-Image and SD3.5 against diffusers' results on tiny random models: single passes,
 * sides that differ, filled-up sequences; pictures of different sizes in one pass give the bytes that they give alone;
 * damaged configurations and tensors, lack of memory. See record_dit.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/cpu/dispatch.h"
#include "engine/image/dit.h"
#include "engine/image/dit_qwen.h"
#include "engine/image/dit_sd3.h"
#include "engine/image/dit_zimage.h"
#include "engine/image/files.h"
#include "tests/golden.h"

#define DATA "tests/data/image/"
#define C    4 /* latent channels of both models */

/* A device and what was opened on it. */
struct rig {
    const struct backend *be;
    struct dev *dev;
    struct nn_weights *w;
    struct nn n;
    struct img_files *f;
    struct dit_qwen *qwen;
    struct dit_zimage *z;
    struct dit_sd3 *sd3;
};

/* The transformer of the rig's kind (whichever `like` has) from a component. */
static int model_open(struct rig *r, const struct rig *like, struct nn_weights *w, struct comp *c,
                      struct err *e)
{
    return like->qwen ? dit_qwen_open(&r->qwen, w, c, e)
           : like->z  ? dit_zimage_open(&r->z, w, c, e)
                      : dit_sd3_open(&r->sd3, w, c, e);
}

static void model_close(struct rig *r)
{
    dit_qwen_close(r->qwen);
    dit_zimage_close(r->z);
    dit_sd3_close(r->sd3);
    r->qwen = NULL;
    r->z = NULL;
    r->sd3 = NULL;
}

static void run_rows(struct rig *r, struct nn *n, const struct img_row *row, int n_row)
{
    if (r->qwen)
        dit_qwen_run(r->qwen, n, row, n_row);
    else if (r->z)
        dit_zimage_run(r->z, n, row, n_row);
    else
        dit_sd3_run(r->sd3, n, row, n_row);
}

static const char *folder(const char *model)
{
    return !strcmp(model, "qwen") ? DATA "qwen-image"
           : !strcmp(model, "z")  ? DATA "z-image"
                                  : DATA "sd3";
}
static const char *const models[] = {"qwen", "z", "sd3"};
#define N_MODEL ((int)(sizeof models / sizeof *models))

static void rig_open(struct rig *r, const char *device, const char *isa, enum eng_precision p,
                     const char *model)
{
    struct err e = {0};
    struct backend_info info;
    struct backend_opts o = {.n_threads = 2, .isa = isa, .precision = p};
    *r = (struct rig){0};
    assert_int_equal(backend_find(device, &r->be, &e), 0);
    if (r->be->open(&r->dev, &o, &e))
        fail_msg("%s", e.text);
    r->be->info(r->dev, &info);
    if (nn_weights_open(&r->w, r->be, r->dev, p, &e) || img_files_open(&r->f, folder(model), &e))
        fail_msg("%s", e.text);
    r->n = (struct nn){.be = r->be, .dev = r->dev, .mul = info.mul_dtype};
    struct comp *c = img_files_comp(r->f, "transformer");
    assert_non_null(c);
    int rc = !strcmp(model, "qwen") ? dit_qwen_open(&r->qwen, r->w, c, &e)
             : !strcmp(model, "z")  ? dit_zimage_open(&r->z, r->w, c, &e)
                                    : dit_sd3_open(&r->sd3, r->w, c, &e);
    if (rc)
        fail_msg("%s", e.text);
}

static void rig_close(struct rig *r)
{
    nn_close(&r->n);
    model_close(r);
    nn_weights_close(r->w);
    img_files_close(r->f);
    r->be->close(r->dev);
}

/* One case: latents, states, timestep, wanted result. */
struct sample {
    int h, w, n_tok;
    float t;
    const float *latent, *states, *pooled, *want;
};

static struct img_cond *cond_make(int n_tok, int dim)
{
    struct img_cond *c = calloc(1, sizeof *c);
    c->n_tok = n_tok;
    c->dim = dim;
    c->states = calloc((size_t)n_tok * (size_t)dim, sizeof *c->states);
    return c;
}

static void cond_free(struct img_cond *c)
{
    free(c->states);
    free(c);
}

static void reserve(struct rig *r)
{
    struct err e = {0};
    if (nn_end(&r->n, &e))
        fail_msg("%s", e.text);
    assert_int_equal(r->n.mem.n, 0); /* nothing is left behind */
    assert_int_equal(nn_reserve(&r->n, r->n.mem.peak), 0);
}

static void finish(struct rig *r)
{
    struct err e = {0};
    size_t peak = r->n.mem.peak;
    if (nn_end(&r->n, &e))
        fail_msg("%s", e.text);
    assert_int_equal(r->n.mem.n, 0);
    assert_int_equal(peak, r->n.mem.cap < peak ? 0 : peak);
}

/* What a pass reads of the prompts: Z-Image's captions are made first, all in one run. */
static void conds_make(struct rig *r, const struct sample *s, int n, struct img_cond **out)
{
    if (!r->z) {
        struct dit_info info = r->qwen ? dit_qwen_info(r->qwen) : dit_sd3_info(r->sd3);
        for (int i = 0; i < n; i++) {
            out[i] = cond_make(s[i].n_tok, info.text_dim);
            memcpy(out[i]->states, s[i].states,
                   (size_t)s[i].n_tok * (size_t)out[i]->dim * sizeof(float));
            out[i]->pooled = (float *)(uintptr_t)s[i].pooled;
            out[i]->n_pooled = info.pooled_dim;
        }
        return;
    }
    int32_t start[9] = {0};
    float *at[8], *states;
    size_t dim = (size_t)dit_zimage_info(r->z).text_dim;
    for (int i = 0; i < n; i++) {
        start[i + 1] = start[i] + s[i].n_tok;
        out[i] = cond_make(dit_zimage_caption_rows(s[i].n_tok), dit_zimage_dim(r->z));
        at[i] = out[i]->states;
    }
    states = calloc((size_t)start[n] * dim, sizeof *states);
    for (int i = 0; i < n; i++)
        memcpy(states + (size_t)start[i] * dim, s[i].states,
               (size_t)s[i].n_tok * dim * sizeof *states);
    struct dit_zimage_text t = {.n = n, .start = start, .states = states, .out = at};
    nn_begin(&r->n, true);
    dit_zimage_caption(r->z, &r->n, &t);
    reserve(r);
    nn_begin(&r->n, false);
    dit_zimage_caption(r->z, &r->n, &t);
    finish(r);
    free(states);
}

/* One pass of n samples; out[i] [C, h, w]. */
static void pass(struct rig *r, const struct sample *s, int n, float **out)
{
    struct img_cond *cond[8];
    struct img_row row[8] = {{0}};
    conds_make(r, s, n, cond);
    for (int i = 0; i < n; i++)
        row[i] = (struct img_row){.h = s[i].h, .w = s[i].w, .cond = cond[i], .timestep = s[i].t};
    for (int dry = 1; dry >= 0; dry--) {
        for (int i = 0; i < n && !dry; i++) {
            row[i].latent = s[i].latent;
            row[i].out = out[i];
        }
        nn_begin(&r->n, dry);
        run_rows(r, &r->n, row, n);
        if (dry)
            reserve(r);
        else
            finish(r);
    }
    for (int i = 0; i < n; i++)
        cond_free(cond[i]);
}

/* Largest difference relative to the largest value. */
static double distance(const float *a, const float *b, size_t n)
{
    double top = 0, diff = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i], v = (double)b[i];
        diff = d > diff ? d : -d > diff ? -d : diff;
        top = v > top ? v : -v > top ? -v : top;
        if (a[i] != a[i])
            return 1e9;
    }
    return diff / top;
}

static size_t values(const struct sample *s)
{
    return (size_t)C * (size_t)s->h * (size_t)s->w;
}

static const float *need(struct golden *g, size_t want, const char *prefix, const char *name)
{
    char full[80];
    size_t n;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const float *v = golden_f32(g, full, &n);
    if (!v || (want && n != want))
        fail_msg("golden %s: %zu values, expected %zu", full, n, want);
    return v;
}

static struct sample extra(struct golden *g, const char *name, int h, int w, int n_tok)
{
    struct sample s = {.h = h, .w = w, .n_tok = n_tok};
    bool sd3 = !strncmp(name, "sd3", 3);
    s.latent = need(g, values(&s), name, ".latent");
    s.states = need(g, (size_t)n_tok * (sd3 ? 64 : 32), name, ".states");
    s.pooled = sd3 ? need(g, 48, name, ".pooled") : NULL;
    s.want = need(g, values(&s), name, ".out");
    s.t = need(g, 1, name, ".timestep")[0];
    return s;
}

/* The pipelines' first two calls, and the recorded extra passes; buffers that they need go to keep. */
static int samples_qwen(struct golden *g, struct golden *more, struct sample *s, float **keep)
{
    const struct dit_patch p = {.c = C, .p = 2, .order = DIT_CHANNEL_FIRST};
    for (int i = 0; i < 2; i++) { /* packed by the pipeline; timesteps are over 1000 */
        char call[32];
        snprintf(call, sizeof call, "denoiser_call%d.", i);
        s[i] = (struct sample){.h = 16, .w = 16, .n_tok = i ? 4 : 12};
        float *latent = keep[2 * i] = calloc(values(&s[i]), sizeof(float));
        float *want = keep[2 * i + 1] = calloc(values(&s[i]), sizeof(float));
        dit_patch_unpack(&p, 16, 16, need(g, values(&s[i]), call, "hidden_states"), 1, latent);
        dit_patch_unpack(&p, 16, 16, need(g, values(&s[i]), call, "output"), 1, want);
        s[i].latent = latent;
        s[i].want = want;
        s[i].states = need(g, 0, call, "encoder_hidden_states");
        s[i].t = need(g, 1, call, "timestep")[0] * 1000;
    }
    s[2] = extra(more, "qwen.a", 10, 6, 21);
    s[3] = extra(more, "qwen.b", 4, 14, 3);
    return 4;
}

static int samples_zimage(struct golden *g, struct golden *more, struct sample *s, float **keep)
{
    for (int i = 0; i < 2;
         i++) { /* only the first picture's result is kept, before it is negated */
        char call[32];
        snprintf(call, sizeof call, "denoiser_call%d.", i);
        s[i] = (struct sample){.h = 16, .w = 16, .n_tok = 12};
        keep[i] = calloc(values(&s[i]), sizeof(float));
        const float *v = need(g, values(&s[i]), call, "output");
        for (size_t k = 0; k < values(&s[i]); k++)
            keep[i][k] = -v[k];
        s[i].want = keep[i];
        s[i].latent = need(g, values(&s[i]), call, "arg0.0");
        s[i].states = need(g, 12 * 32, call, "arg2.0");
        s[i].t = 1000 - 1000 * need(g, 2, call, "arg1")[0];
    }
    s[2] = extra(more, "z.a", 10, 6, 37);
    s[3] = extra(more, "z.b", 4, 18, 32);
    return 4;
}

static int samples_sd3(struct golden *g, struct golden *more, struct sample *s)
{
    for (int i = 0; i < 4; i++) { /* both halves of both calls */
        char call[32];
        size_t half = (size_t)i % 2;
        snprintf(call, sizeof call, "denoiser_call%d.", i / 2);
        s[i] = (struct sample){.h = 16, .w = 16, .n_tok = 93};
        s[i].latent = need(g, 0, call, "hidden_states") + half * values(&s[i]);
        s[i].want = need(g, 0, call, "output") + half * values(&s[i]);
        s[i].states = need(g, 2 * 93 * 64, call, "encoder_hidden_states") + half * 93 * 64;
        s[i].pooled = need(g, 2 * 48, call, "pooled_projections") + half * 48;
        s[i].t = need(g, 2, call, "timestep")[half];
    }
    s[4] = extra(more, "sd3.a", 10, 6, 21);
    s[5] = extra(more, "sd3.b", 4, 18, 33);
    return 6;
}

static void compare(const char *model, const char *device, const char *isa, enum eng_precision p,
                    double bound)
{
    char path[64];
    snprintf(path, sizeof path, "%s/golden.safetensors", folder(model));
    struct golden *g = golden_open(path);
    struct golden *more = golden_open(DATA "dit.safetensors");
    struct sample s[6];
    float *keep[6] = {0}, *alone[6], *mixed[6];
    struct rig r;
    assert_true(g && more);
    int n = !strcmp(model, "qwen") ? samples_qwen(g, more, s, keep)
            : !strcmp(model, "z")  ? samples_zimage(g, more, s, keep)
                                   : samples_sd3(g, more, s);
    rig_open(&r, device, isa, p, model);
    for (int i = 0; i < n; i++) {
        alone[i] = calloc(values(&s[i]), sizeof(float));
        mixed[i] = calloc(values(&s[i]), sizeof(float));
        pass(&r, &s[i], 1, &alone[i]);
        double d = distance(alone[i], s[i].want, values(&s[i]));
        if (d > bound)
            fail_msg("%s on %s %s, case %d: off by %g, bound %g", model, device, isa ? isa : "", i,
                     d, bound);
    }
    pass(&r, s, n, mixed);
    for (int i = 0; i < n; i++)
        assert_memory_equal(alone[i], mixed[i], values(&s[i]) * sizeof(float));
    for (int i = 0; i < n; i++) {
        free(alone[i]);
        free(mixed[i]);
        free(keep[i]);
    }
    rig_close(&r);
    golden_close(g);
    golden_close(more);
}

static void every_table(const char *model)
{
    compare(model, "ref", NULL, PRECISION_F32, 1e-4);
    for (int i = 0; i < CPU_N_ISA; i++)
        if (cpu_isa_usable(i))
            compare(model, "cpu", cpu_isas[i].name, PRECISION_F32, 1e-4);
        else
            print_message("cpu table %s: not on this machine\n", cpu_isas[i].name);
    compare(model, "cpu", NULL, PRECISION_DEFAULT, 5e-2);
}

static void test_qwen(void **state)
{
    (void)state;
    every_table("qwen");
}

static void test_zimage(void **state)
{
    (void)state;
    every_table("z");
}

static void test_sd3(void **state)
{
    (void)state;
    every_table("sd3");
}

/* ---- what is refused ---- */

struct damage {
    const char *model, *config, *says;
    int rc;
};
#define Q_CONFIG(heads, head, axes, more)                                                          \
    "{\"in_channels\": 16, \"out_channels\": 4, \"num_layers\": 2, \"attention_head_dim\": " head  \
    ", \"num_attention_heads\": " heads ", \"axes_dims_rope\": " axes more "}"
#define Z_CONFIG(dim, axes, more)                                                                  \
    "{\"in_channels\": 4, \"dim\": " dim ", \"n_heads\": 2, \"n_layers\": 2, "                     \
    "\"n_refiner_layers\": 1, \"axes_dims\": " axes more "}"
static const struct damage damages[] = {
    {"qwen", Q_CONFIG("2", "16", "[8, 4, 4]", ", \"joint_attention_dim\": 48"), "txt_norm.weight",
     ERR_INVAL},
    {"qwen", Q_CONFIG("2", "16", "[8, 4, 6]", ""), "axes_dims_rope", ERR_INVAL},
    {"qwen", Q_CONFIG("2", "16", "[7, 5, 4]", ""), "axes_dims_rope", ERR_INVAL},
    {"qwen", Q_CONFIG("2", "16", "[8, 8]", ""), "axes_dims_rope", ERR_INVAL},
    {"qwen", Q_CONFIG("0", "16", "[8, 4, 4]", ""), "num_attention_heads", ERR_INVAL},
    {"qwen", Q_CONFIG("2", "16", "[8, 4, 4]", ", \"guidance_embeds\": true"), "guidance_embeds",
     ERR_UNSUPPORTED},
    {"qwen", Q_CONFIG("2", "16", "[8, 4, 4]", ", \"use_layer3d_rope\": true"), "use_layer3d_rope",
     ERR_UNSUPPORTED},
    {"qwen", Q_CONFIG("2", "16", "[8, 4, 4]", ", \"patch_size\": 3"), "patch_size", ERR_INVAL},
    {"qwen", Q_CONFIG("2", "16", "[8, 4, 4]", ", \"joint_attention_dim\": \"x\""),
     "joint_attention_dim", ERR_INVAL},
    {"z", Z_CONFIG("32", "[8, 4, 4]", ", \"cap_feat_dim\": 48"), "cap_embedder.0", ERR_INVAL},
    {"z", Z_CONFIG("33", "[8, 4, 4]", ""), "n_heads", ERR_INVAL},
    {"z", Z_CONFIG("32", "[8, 4, 2]", ""), "axes_dims", ERR_INVAL},
    {"z", Z_CONFIG("32", "[8, 4, 4]", ", \"all_patch_size\": [4]"), "all_x_embedder.4-1",
     ERR_NOTFOUND},
    {"sd3", "{\"qk_norm\": \"layer_norm\"}", "qk_norm", ERR_UNSUPPORTED},
    {"sd3", "{\"in_channels\": 4, \"out_channels\": 4}", "pos_embed.proj", ERR_INVAL},
    {"sd3", "{\"caption_projection_dim\": 5}", "caption_projection_dim", ERR_INVAL},
    {"sd3", "{\"num_layers\": 2, \"dual_attention_layers\": [2]}", "dual_attention_layers",
     ERR_INVAL},
    {"z", Z_CONFIG("64", "[16, 8, 8]", ", \"cap_feat_dim\": 32"), "tensor", ERR_INVAL},
};

static int open_with(struct rig *r, const char *config, struct err *e)
{
    struct comp c = *img_files_comp(r->f, "transformer");
    struct nn_weights *w = NULL;
    struct rig other = {0};
    assert_int_equal(config_open_text(&c.cfg, config, strlen(config), "config.json", e), 0);
    assert_int_equal(nn_weights_open(&w, r->be, r->dev, PRECISION_F32, e), 0);
    int rc = model_open(&other, r, w, &c, e);
    model_close(&other);
    nn_weights_close(w);
    config_close(c.cfg);
    return rc;
}

static void test_damage(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        const struct damage *d = &damages[i];
        struct err e = {0};
        struct rig r;
        rig_open(&r, "cpu", NULL, PRECISION_F32, d->model);
        int rc = open_with(&r, d->config, &e);
        if (rc != d->rc || !strstr(e.text, d->says))
            fail_msg("case %zu: %d \"%s\", expected %d naming %s", i, rc, e.text, d->rc, d->says);
        rig_close(&r);
    }
    struct err e = {0};
    struct rig r;
    rig_open(&r, "cpu", NULL, PRECISION_F32, "qwen");
    int rc = open_with(&r,
                       "{\"in_channels\": 16, \"out_channels\": 4, \"num_layers\": 3, "
                       "\"attention_head_dim\": 16, \"num_attention_heads\": 2, "
                       "\"joint_attention_dim\": 32, \"axes_dims_rope\": [8, 4, 4]}",
                       &e);
    assert_int_equal(rc, ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "transformer_blocks.2."));
    rig_close(&r);
}

/* A plan finds and counts the same weights and gives the same work memory as what is opened. */
static void test_plan(void **state)
{
    (void)state;
    for (int k = 0; k < N_MODEL; k++) {
        struct rig r, plan = {0};
        struct err e = {0};
        struct img_cond cond = {.n_tok = 32};
        struct img_row row = {.h = 8, .w = 12, .cond = &cond};
        rig_open(&r, "cpu", NULL, PRECISION_F32, models[k]);
        plan.n = (struct nn){.be = r.be, .mul = r.n.mul};
        assert_int_equal(nn_weights_open(&plan.w, r.be, NULL, PRECISION_F32, &e), 0);
        assert_int_equal(model_open(&plan, &r, plan.w, img_files_comp(r.f, "transformer"), &e), 0);
        assert_int_equal(nn_weights_bytes(plan.w), nn_weights_bytes(r.w));
        nn_begin(&r.n, true);
        run_rows(&r, &r.n, &row, 1);
        nn_begin(&plan.n, true);
        run_rows(&plan, &plan.n, &row, 1);
        assert_int_equal(nn_end(&r.n, &e), 0);
        assert_int_equal(nn_end(&plan.n, &e), 0);
        assert_true(r.n.mem.peak > 0);
        assert_int_equal(r.n.mem.peak, plan.n.mem.peak);
        model_close(&plan);
        nn_weights_close(plan.w);
        rig_close(&r);
    }
}

/* Every allocation of an opening fails once: an error, and nothing is lost. */
static void failing_open(struct rig *r)
{
    struct comp *c = img_files_comp(r->f, "transformer");
    struct err e = {0};
    int rc = -1;
    for (long i = 1; rc && i < 3000; i++) {
        struct nn_weights *w = NULL;
        struct rig other = {0};
        assert_int_equal(nn_weights_open(&w, r->be, r->dev, PRECISION_F32, &e), 0);
        mem_fail_after(i, true);
        rc = model_open(&other, r, w, c, &e);
        mem_fail_after(0, false);
        assert_true(rc == 0 || rc == ERR_NOMEM);
        model_close(&other);
        nn_weights_close(w);
    }
    assert_int_equal(rc, 0);
}

/* The same of a pass, which works again afterwards; then states of another width, then too small a work buffer. */
static void failing_pass(struct rig *r, struct img_row *row, struct img_cond *cond)
{
    struct err e = {0};
    int rc = -1;
    for (long i = 1; rc && i < 200; i++) {
        nn_begin(&r->n, false);
        mem_fail_after(i, true);
        run_rows(r, &r->n, row, 1);
        mem_fail_after(0, false);
        rc = nn_end(&r->n, &e);
        assert_true(rc == 0 || rc == ERR_NOMEM);
    }
    assert_int_equal(rc, 0);
    cond->dim++;
    nn_begin(&r->n, false);
    run_rows(r, &r->n, row, 1);
    assert_int_equal(nn_end(&r->n, &e), ERR_INVAL);
    cond->dim--;
    r->n.mem.cap /= 2;
    nn_begin(&r->n, false);
    run_rows(r, &r->n, row, 1);
    assert_int_equal(nn_end(&r->n, &e), ERR_NOMEM);
}

static void test_no_memory(void **state)
{
    (void)state;
    float latent[C * 8 * 4] = {0.5f}, out[C * 8 * 4], states[40 * 64] = {1}, pooled[48] = {0},
                         *at = out;
    const struct sample s = {.h = 8,
                             .w = 4,
                             .n_tok = 40,
                             .t = 500,
                             .latent = latent,
                             .states = states,
                             .pooled = pooled};
    for (int k = 0; k < N_MODEL; k++) {
        struct rig r;
        struct img_cond *cond;
        rig_open(&r, "cpu", NULL, PRECISION_F32, models[k]);
        failing_open(&r);
        pass(&r, &s, 1, &at); /* makes room in the work buffer */
        conds_make(&r, &s, 1, &cond);
        struct img_row row = {
            .h = 8, .w = 4, .cond = cond, .timestep = 500, .latent = latent, .out = out};
        failing_pass(&r, &row, cond);
        cond_free(cond);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen), cmocka_unit_test(test_zimage),
        cmocka_unit_test(test_sd3),  cmocka_unit_test(test_damage),
        cmocka_unit_test(test_plan), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
