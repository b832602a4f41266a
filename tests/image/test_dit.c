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
        if (r->qwen)
            dit_qwen_run(r->qwen, &r->n, row, n);
        else
            dit_zimage_run(r->z, &r->n, row, n);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_zimage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
