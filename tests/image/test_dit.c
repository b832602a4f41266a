/* The diffusion transformers of Qwen-Image and Z-Image against diffusers' results on tiny random models: single passes,
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
#include "engine/image/dit_zimage.h"
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
};

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
    if (nn_weights_open(&r->w, r->be, r->dev, p, &e) ||
        img_files_open(&r->f, strcmp(model, "qwen") ? DATA "z-image" : DATA "qwen-image", &e))
        fail_msg("%s", e.text);
    r->n = (struct nn){.be = r->be, .dev = r->dev, .mul = info.mul_dtype};
    struct comp *c = img_files_comp(r->f, "transformer");
    assert_non_null(c);
    int rc = strcmp(model, "qwen") ? dit_zimage_open(&r->z, r->w, c, &e)
                                   : dit_qwen_open(&r->qwen, r->w, c, &e);
    if (rc)
        fail_msg("%s", e.text);
}

static void rig_close(struct rig *r)
{
    nn_close(&r->n);
    dit_qwen_close(r->qwen);
    dit_zimage_close(r->z);
    nn_weights_close(r->w);
    img_files_close(r->f);
    r->be->close(r->dev);
}

/* One case: latents, states, timestep, wanted result. */
struct sample {
    int h, w, n_tok;
    float t;
    const float *latent, *states, *want;
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
    if (r->qwen) {
        for (int i = 0; i < n; i++) {
            out[i] = cond_make(s[i].n_tok, dit_qwen_text_dim(r->qwen));
            memcpy(out[i]->states, s[i].states,
                   (size_t)s[i].n_tok * (size_t)out[i]->dim * sizeof(float));
        }
        return;
    }
    int32_t start[9] = {0};
    float *at[8], *states;
    size_t dim = (size_t)dit_zimage_text_dim(r->z);
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

static void run_rows(struct rig *r, const struct img_row *row, int n)
{
    if (r->qwen)
        dit_qwen_run(r->qwen, &r->n, row, n);
    else
        dit_zimage_run(r->z, &r->n, row, n);
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
        run_rows(r, row, n);
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
    s.latent = need(g, values(&s), name, ".latent");
    s.states = need(g, (size_t)n_tok * 32, name, ".states");
    s.want = need(g, values(&s), name, ".out");
    s.t = need(g, 1, name, ".timestep")[0];
    return s;
}

/* The pipelines' first two calls, and the recorded extra passes. Buffers that they need go to keep[0..4). */
static int samples(const char *model, struct golden *g, struct golden *more, struct sample *s,
                   float **keep)
{
    const struct dit_patch p = {.c = C, .p = 2, .order = DIT_CHANNEL_FIRST};
    if (!strcmp(model, "qwen")) {
        for (int i = 0; i < 2; i++) { /* packed by the pipeline; timesteps are over 1000 */
            char call[32];
            snprintf(call, sizeof call, "denoiser_call%d.", i);
            s[i] = (struct sample){.h = 16, .w = 16, .n_tok = i ? 4 : 12};
            keep[2 * i] = calloc(values(&s[i]), sizeof(float));
            keep[2 * i + 1] = calloc(values(&s[i]), sizeof(float));
            dit_patch_unpack(&p, 16, 16, need(g, values(&s[i]), call, "hidden_states"), 1,
                             keep[2 * i]);
            dit_patch_unpack(&p, 16, 16, need(g, values(&s[i]), call, "output"), 1,
                             keep[2 * i + 1]);
            s[i].latent = keep[2 * i];
            s[i].want = keep[2 * i + 1];
            s[i].states = need(g, 0, call, "encoder_hidden_states");
            s[i].t = need(g, 1, call, "timestep")[0] * 1000;
        }
        s[2] = extra(more, "qwen.a", 10, 6, 21);
        s[3] = extra(more, "qwen.b", 4, 14, 3);
        return 4;
    }
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

static void compare(const char *model, const char *device, const char *isa, enum eng_precision p,
                    double bound)
{
    struct golden *g = golden_open(strcmp(model, "qwen") ? DATA "z-image/golden.safetensors"
                                                         : DATA "qwen-image/golden.safetensors");
    struct golden *more = golden_open(DATA "dit.safetensors");
    struct sample s[4];
    float *keep[4] = {0}, *alone[4], *mixed[4];
    struct rig r;
    assert_true(g && more);
    int n = samples(model, g, more, s, keep);
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
    {"z", Z_CONFIG("64", "[16, 8, 8]", ", \"cap_feat_dim\": 32"), "tensor", ERR_INVAL},
};

static int open_with(struct rig *r, const char *config, struct err *e)
{
    struct comp c = *img_files_comp(r->f, "transformer");
    struct nn_weights *w = NULL;
    struct dit_qwen *q = NULL;
    struct dit_zimage *z = NULL;
    assert_int_equal(config_open_text(&c.cfg, config, strlen(config), "config.json", e), 0);
    assert_int_equal(nn_weights_open(&w, r->be, r->dev, PRECISION_F32, e), 0);
    int rc = r->qwen ? dit_qwen_open(&q, w, &c, e) : dit_zimage_open(&z, w, &c, e);
    dit_qwen_close(q);
    dit_zimage_close(z);
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
    static const char *const models[] = {"qwen", "z"};
    for (int k = 0; k < 2; k++) {
        struct rig r;
        struct err e = {0};
        struct nn_weights *w = NULL;
        struct dit_qwen *q = NULL;
        struct dit_zimage *z = NULL;
        struct img_cond cond = {.n_tok = 32};
        struct img_row row = {.h = 8, .w = 12, .cond = &cond};
        size_t peak[2];
        rig_open(&r, "cpu", NULL, PRECISION_F32, models[k]);
        struct comp *c = img_files_comp(r.f, "transformer");
        struct nn n = {.be = r.be, .mul = r.n.mul};
        assert_int_equal(nn_weights_open(&w, r.be, NULL, PRECISION_F32, &e), 0);
        assert_int_equal(r.qwen ? dit_qwen_open(&q, w, c, &e) : dit_zimage_open(&z, w, c, &e), 0);
        assert_int_equal(nn_weights_bytes(w), nn_weights_bytes(r.w));
        for (int i = 0; i < 2; i++) {
            struct nn *one = i ? &n : &r.n;
            nn_begin(one, true);
            if (r.qwen)
                dit_qwen_run(i ? q : r.qwen, one, &row, 1);
            else
                dit_zimage_run(i ? z : r.z, one, &row, 1);
            assert_int_equal(nn_end(one, &e), 0);
            peak[i] = one->mem.peak;
        }
        assert_true(peak[0] > 0);
        assert_int_equal(peak[0], peak[1]);
        dit_qwen_close(q);
        dit_zimage_close(z);
        nn_weights_close(w);
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
        struct dit_qwen *q = NULL;
        struct dit_zimage *z = NULL;
        assert_int_equal(nn_weights_open(&w, r->be, r->dev, PRECISION_F32, &e), 0);
        mem_fail_after(i, true);
        rc = r->qwen ? dit_qwen_open(&q, w, c, &e) : dit_zimage_open(&z, w, c, &e);
        mem_fail_after(0, false);
        assert_true(rc == 0 || rc == ERR_NOMEM);
        dit_qwen_close(q);
        dit_zimage_close(z);
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
        run_rows(r, row, 1);
        mem_fail_after(0, false);
        rc = nn_end(&r->n, &e);
        assert_true(rc == 0 || rc == ERR_NOMEM);
    }
    assert_int_equal(rc, 0);
    cond->dim++;
    nn_begin(&r->n, false);
    run_rows(r, row, 1);
    assert_int_equal(nn_end(&r->n, &e), ERR_INVAL);
    cond->dim--;
    r->n.mem.cap /= 2;
    nn_begin(&r->n, false);
    run_rows(r, row, 1);
    assert_int_equal(nn_end(&r->n, &e), ERR_NOMEM);
}

static void test_no_memory(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen", "z"};
    float latent[C * 8 * 4] = {0.5f}, out[C * 8 * 4], states[40 * 32] = {1}, *at = out;
    const struct sample s = {
        .h = 8, .w = 4, .n_tok = 40, .t = 500, .latent = latent, .states = states};
    for (int k = 0; k < 2; k++) {
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
        cmocka_unit_test(test_qwen),      cmocka_unit_test(test_zimage),
        cmocka_unit_test(test_damage),    cmocka_unit_test(test_plan),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
