/* FLUX.1's denoiser against diffusers: its goldens' calls and all steps of both variants, other sizes (record_flux.py),
 * pictures of different sizes in one pass; what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/image/dit.h"
#include "engine/image/dit_flux.h"
#include "engine/image/sched_config.h"
#include "tests/golden.h"
#include "tests/image_comp.h"

#define DATA "tests/data/image/"
#define C    4 /* latent channels of the tiny models */

static struct image_back backs[IMAGE_BACKS], backs16[IMAGE_BACKS];
static int n_back, n_back16;

struct model {
    struct comp c;
    struct nn_weights *w;
    struct dit_flux *m;
    struct nn n;
};

static int model_try(struct model *x, const struct image_back *b, struct err *e)
{
    int rc = nn_weights_open(&x->w, b->be, b->dev, b->precision, e);
    image_nn_open(&x->n, b);
    return rc ? rc : dit_flux_open(&x->m, x->w, &x->c, e);
}

static void model_close(struct model *x)
{
    dit_flux_close(x->m);
    nn_weights_close(x->w);
    if (x->n.be)
        nn_close(&x->n);
    image_comp_close(&x->c);
    *x = (struct model){0};
}

static void model_open(struct model *x, const struct image_back *b, const char *name)
{
    struct err e = {0};
    char dir[128];
    *x = (struct model){0};
    snprintf(dir, sizeof dir, DATA "%s/transformer", name);
    if (image_comp_open(&x->c, dir, "transformer", &e) || model_try(x, b, &e))
        fail_msg("%s on %s: %s", name, b->name, e.text);
}

/* As a pipeline does it: dry for the memory, then for real in just that much. */
static void pass(struct model *x, struct img_row *row, int n)
{
    struct err e = {0};
    struct img_row bare[4];
    for (int i = 0; i < n; i++) {
        bare[i] = row[i];
        bare[i].latent = bare[i].out = NULL;
    }
    nn_begin(&x->n, true);
    dit_flux_run(x->m, &x->n, bare, n);
    assert_int_equal(nn_end(&x->n, &e), 0);
    size_t peak = x->n.mem.peak;
    assert_int_equal(x->n.mem.n, 0);
    assert_int_equal(nn_reserve(&x->n, peak), 0);
    nn_begin(&x->n, false);
    dit_flux_run(x->m, &x->n, row, n);
    if (nn_end(&x->n, &e))
        fail_msg("%s", e.text);
    assert_int_equal(x->n.mem.n, 0);
    assert_int_equal(x->n.mem.peak, peak);
}

static const float *need(struct golden *g, const char *a, const char *b, size_t n)
{
    char key[96];
    size_t got = 0;
    snprintf(key, sizeof key, "%s%s", a, b);
    const float *p = golden_f32(g, key, &got);
    if (!p || got != n)
        fail_msg("%s: %zu values, expected %zu", key, got, n);
    return p;
}

static void near(const struct image_back *b, const char *what, const float *got, const float *ref,
                 size_t n, double bound)
{
    double err = image_error(got, ref, n);
    if (!(err < bound))
        fail_msg("%s: %s is off by %g, bound %g", b->name, what, err, bound);
}

/* ---- the goldens: 16 x 16 latents, 16 text tokens ---- */

#define SIDE 16
#define N    (C * SIDE * SIDE)
static const struct dit_patch patch = {.c = C, .p = 2, .order = DIT_CHANNEL_FIRST};

static struct img_cond golden_cond(struct golden *g)
{
    struct img_cond c = {.n_tok = 16, .dim = 32, .n_pooled = 32};
    c.states = (float *)(uintptr_t)need(g, "denoiser_call0.", "encoder_hidden_states", 16 * 32);
    c.pooled = (float *)(uintptr_t)need(g, "denoiser_call0.", "pooled_projections", 32);
    return c;
}

static void calls(const struct image_back *b, const char *name, struct golden *g, double bound)
{
    struct model x;
    struct img_cond cond = golden_cond(g);
    float in[N], out[N], packed[N];
    model_open(&x, b, name);
    assert_int_equal(dit_flux_info(x.m).channels, C);
    assert_int_equal(dit_flux_guidance(x.m), !strcmp(name, "flux-dev"));
    for (int i = 0; i < 2; i++) {
        char call[32];
        snprintf(call, sizeof call, "denoiser_call%d.", i);
        dit_patch_unpack(&patch, SIDE, SIDE, need(g, call, "hidden_states", N), 1, in);
        struct img_row r = {.h = SIDE, .w = SIDE, .latent = in, .out = out, .cond = &cond};
        r.timestep = need(g, call, "timestep", 1)[0] * 1000;
        r.guidance = 3.5f;
        pass(&x, &r, 1);
        dit_patch_pack(&patch, SIDE, SIDE, out, packed);
        near(b, call, packed, need(g, call, "output", N), N, bound);
    }
    model_close(&x);
}

/* Four steps of the scheduler that the folder names. */
static void steps(const struct image_back *b, const char *name, struct golden *g, double bound)
{
    struct model x;
    struct err e = {0};
    struct config *cfg;
    struct nsched_config sc;
    struct nsched_table *t;
    struct nsched_state st;
    struct img_cond cond = golden_cond(g);
    float lat[N], out[N], packed[N];
    char path[128];
    model_open(&x, b, name);
    snprintf(path, sizeof path, DATA "%s/scheduler/scheduler_config.json", name);
    assert_int_equal(config_open(&cfg, path, &e), 0);
    assert_int_equal(nsched_config_read(&sc, cfg, &e), 0);
    sc.sigmas_given = true;
    assert_int_equal(nsched_table_open(&t, &sc, 4, SIDE / 2 * SIDE / 2, &e), 0);
    assert_int_equal(nsched_state_open(&st, N, 0), 0);
    memcpy(lat, need(g, "latents_unpacked", "", N), sizeof lat);
    for (int i = 0; i < 4; i++) {
        char key[40];
        struct img_row r = {.h = SIDE, .w = SIDE, .latent = lat, .out = out, .cond = &cond};
        r.timestep = t->timestep[i];
        r.guidance = 3.5f;
        pass(&x, &r, 1);
        nsched_step(t, &st, i, lat, out, NULL);
        dit_patch_pack(&patch, SIDE, SIDE, lat, packed);
        snprintf(key, sizeof key, "latents_after_step_%d", i);
        near(b, key, packed, need(g, key, "", N), N, bound);
    }
    nsched_state_close(&st);
    nsched_table_close(t);
    config_close(cfg);
    model_close(&x);
}

static void golden(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, DATA "%s/golden.safetensors", name);
    struct golden *g = golden_open(path);
    assert_non_null(g);
    for (int b = 0; b < n_back; b++) {
        calls(&backs[b], name, g, 1e-4);
        steps(&backs[b], name, g, 1e-4);
    }
    for (int b = 0; b < n_back16; b++) {
        calls(&backs16[b], name, g, 0.05);
        steps(&backs16[b], name, g, 0.05);
    }
    golden_close(g);
}

static void test_dev(void **st)
{
    (void)st;
    golden("flux-dev");
}

static void test_schnell(void **st)
{
    (void)st;
    golden("flux-schnell");
}

/* ---- other sizes, alone and together ---- */

#define PASSES 3
static const struct {
    int h, w, n_tok;
    float t, guidance;
} sizes[PASSES] = {{6, 10, 9, 321.25f, 2}, {12, 4, 16, 999, 6.5f}, {2, 2, 1, 7.5f, 1}};

static void together(const struct image_back *b, struct golden *g, double bound)
{
    struct model x;
    struct img_cond cond[PASSES];
    struct img_row row[PASSES];
    const float *want[PASSES];
    float *alone[PASSES];
    model_open(&x, b, "flux-dev");
    for (int i = 0; i < PASSES; i++) {
        size_t n = (size_t)(C * sizes[i].h * sizes[i].w);
        char name[4] = {(char)('0' + i), '.', 0};
        cond[i] = (struct img_cond){.n_tok = sizes[i].n_tok, .dim = 32, .n_pooled = 32};
        cond[i].states = (float *)(uintptr_t)need(g, name, "states", (size_t)sizes[i].n_tok * 32);
        cond[i].pooled = (float *)(uintptr_t)need(g, name, "pooled", 32);
        want[i] = need(g, name, "out", n);
        row[i] = (struct img_row){.h = sizes[i].h,
                                  .w = sizes[i].w,
                                  .latent = need(g, name, "latent", n),
                                  .cond = &cond[i],
                                  .timestep = sizes[i].t,
                                  .guidance = sizes[i].guidance};
        row[i].out = alone[i] = malloc(n * sizeof(float));
        pass(&x, &row[i], 1);
        near(b, name, alone[i], want[i], n, bound);
        row[i].out = malloc(n * sizeof(float));
    }
    pass(&x, row, PASSES);
    for (int i = 0; i < PASSES; i++) {
        assert_memory_equal(row[i].out, alone[i],
                            (size_t)(C * sizes[i].h * sizes[i].w) * sizeof(float));
        free(row[i].out);
        free(alone[i]);
    }
    model_close(&x);
}

static void test_sizes(void **st)
{
    (void)st;
    struct golden *g = golden_open(DATA "flux.safetensors");
    assert_non_null(g);
    for (int b = 0; b < n_back; b++)
        together(&backs[b], g, 1e-4);
    for (int b = 0; b < n_back16; b++)
        together(&backs16[b], g, 0.05);
    golden_close(g);
}

/* ---- wrong states, no memory ---- */

static void test_errors(void **st)
{
    (void)st;
    struct model x;
    struct err e = {0};
    float states[32] = {0}, latent[C * 4] = {0}, out[C * 4], first[C * 4];
    struct img_cond cond = {
        .n_tok = 1, .dim = 32, .n_pooled = 32, .states = states, .pooled = states};
    struct img_row r = {.h = 2, .w = 2, .latent = latent, .out = out, .cond = &cond};
    model_open(&x, &backs[n_back - 1], "flux-dev");
    pass(&x, &r, 1);
    memcpy(first, out, sizeof out);
    for (int i = 0; i < 2; i++) {
        struct img_cond wrong = cond;
        *(i ? &wrong.dim : &wrong.n_pooled) = 16;
        r.cond = &wrong;
        nn_begin(&x.n, false);
        dit_flux_run(x.m, &x.n, &r, 1);
        assert_int_equal(nn_end(&x.n, &e), ERR_INVAL);
    }
    r.cond = &cond;
    for (int k = 1;; k++) { /* every allocation of a pass */
        mem_fail_after(k, false);
        nn_begin(&x.n, false);
        dit_flux_run(x.m, &x.n, &r, 1);
        int rc = nn_end(&x.n, &e);
        mem_fail_after(0, false);
        if (!rc)
            break;
        assert_int_equal(rc, ERR_NOMEM);
        assert_true(k < 100);
    }
    assert_memory_equal(out, first, sizeof out);
    model_close(&x);
    for (int k = 1, rc = 1; rc; k++) { /* and of opening */
        assert_int_equal(image_comp_open(&x.c, DATA "flux-dev/transformer", "transformer", &e), 0);
        mem_fail_after(k, false);
        rc = model_try(&x, &backs[n_back - 1], &e);
        mem_fail_after(0, false);
        if (rc)
            assert_int_equal(rc, ERR_NOMEM);
        assert_true(k < 2000);
        model_close(&x);
    }
}

static void test_refused(void **st)
{
    (void)st;
#define BASE                                                                                       \
    "\"in_channels\": 16, \"num_layers\": 1, \"num_single_layers\": 2, \"attention_head_dim\": "   \
    "16, "                                                                                         \
    "\"num_attention_heads\": 2, \"pooled_projection_dim\": 32"
    static const struct {
        const char *json;
        int code;
        const char *say;
    } row[] = {
        {"{" BASE ", \"joint_attention_dim\": 32, \"axes_dims_rope\": [4, 4, 4]}", ERR_INVAL,
         "axes_dims_rope"},
        {"{" BASE ", \"joint_attention_dim\": 32, \"axes_dims_rope\": [3, 5, 8]}", ERR_INVAL,
         "axes_dims_rope"},
        {"{" BASE ", \"joint_attention_dim\": 32, \"axes_dims_rope\": [8, 8]}", ERR_INVAL,
         "axes_dims_rope"},
        {"{" BASE
         ", \"joint_attention_dim\": 32, \"axes_dims_rope\": [4, 4, 8], \"patch_size\": 2}",
         ERR_UNSUPPORTED, "patch_size"},
        {"{" BASE
         ", \"joint_attention_dim\": 32, \"axes_dims_rope\": [4, 4, 8], \"out_channels\": 8}",
         ERR_UNSUPPORTED, "out_channels"},
        {"{" BASE ", \"joint_attention_dim\": \"x\", \"axes_dims_rope\": [4, 4, 8]}", ERR_INVAL,
         "joint_attention_dim"},
        {"{" BASE ", \"joint_attention_dim\": 48, \"axes_dims_rope\": [4, 4, 8]}", ERR_INVAL,
         "context_embedder"},
        {"{\"in_channels\": 384, \"joint_attention_dim\": 32, \"attention_head_dim\": 16, "
         "\"num_attention_heads\": 2, \"axes_dims_rope\": [4, 4, 8]}",
         ERR_INVAL, "x_embedder"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct model x = {0};
        struct err e = {0};
        assert_int_equal(image_comp_open(&x.c, DATA "flux-dev/transformer", "transformer", &e), 0);
        config_close(x.c.cfg);
        x.c.cfg = NULL;
        assert_int_equal(
            config_open_text(&x.c.cfg, row[i].json, strlen(row[i].json), "config.json", &e), 0);
        int rc = model_try(&x, &backs[0], &e);
        if (rc != row[i].code || !strstr(e.text, row[i].say))
            fail_msg("%s: got %s \"%s\"", row[i].json, err_name(rc), e.text);
        model_close(&x);
    }
}

static int open_all(void **st)
{
    (void)st;
    n_back = image_backs_open(backs, PRECISION_F32);
    n_back16 = image_backs_open(backs16, PRECISION_DEFAULT);
    return 0;
}

static int close_all(void **st)
{
    (void)st;
    image_backs_close(backs, n_back);
    image_backs_close(backs16, n_back16);
    return 0;
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_dev),    cmocka_unit_test(test_schnell), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_errors), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(t, open_all, close_all);
}
