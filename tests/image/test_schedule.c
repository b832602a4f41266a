/* Schedules and samplers against diffusers: tables, and whole trajectories under the fixed model
 * sin(3 x) (1 + t / 1000); noise against torch. Goldens: tests/data/image/SOURCES. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/image/rand.h"
#include "engine/image/schedule.h"
#include "tests/golden.h"

static struct golden *gold, *tiny;

static int open_goldens(void **st)
{
    (void)st;
    gold = golden_open("tests/data/image/schedulers.safetensors.xz");
    tiny = golden_open("tests/data/image/tiny-t2i.safetensors.xz");
    return gold && tiny ? 0 : -1;
}
static int close_goldens(void **st)
{
    (void)st;
    golden_close(gold);
    golden_close(tiny);
    return 0;
}

static struct nsched_config sd(enum nsched_kind k)
{
    struct nsched_config c;
    nsched_config_default(&c, k);
    c.beta_start = 0.00085;
    c.beta_end = 0.012;
    c.scaled_linear = true;
    return c;
}

static struct row {
    const char *name;
    struct nsched_config c;
    int n_token;
} rows[32];
static int n_row;

static struct nsched_config *add(const char *name, struct nsched_config c)
{
    rows[n_row] = (struct row){name, c, 1024};
    return &rows[n_row++].c;
}

static void fill_rows(void)
{
    struct nsched_config *c = add("ddim", sd(NSCHED_DDIM)), flow;
    c->alpha_to_one = false;
    c->steps_offset = 1;
    c = add("ddim_v_zsnr", sd(NSCHED_DDIM));
    c->prediction = PREDICT_V;
    c->zero_snr = true;
    c->spacing = SPACING_TRAILING;
    add("pndm", sd(NSCHED_PNDM))->steps_offset = 1;
    c = add("euler", sd(NSCHED_EULER));
    c->steps_offset = 1;
    c->spacing = SPACING_LEADING;
    add("euler_karras", sd(NSCHED_EULER))->karras = true;
    add("euler_linspace", sd(NSCHED_EULER));
    add("euler_trailing", sd(NSCHED_EULER))->spacing = SPACING_TRAILING;
    add("dpmpp_2m", sd(NSCHED_DPMPP_2M));
    add("dpmpp_2m_karras", sd(NSCHED_DPMPP_2M))->karras = true;
    add("dpmpp_2m_v", sd(NSCHED_DPMPP_2M))->prediction = PREDICT_V;
    nsched_config_default(&flow, NSCHED_FLOW);
    add("flow_shift1", flow);
    add("flow_shift3", flow)->shift = 3;
    c = add("flow_dynamic", flow);
    c->shift = 3;
    c->dynamic_shift = true;
    c = add("flow_terminal", flow);
    c->dynamic_shift = true;
    c->shift_terminal = 0.02;
    c->max_shift = 0.9;
    c->max_len = 8192;
}

/* |a - b| <= tol * max(1, |b|) */
static void near(const char *what, const char *key, const float *a, const float *b, size_t n,
                 double tol)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= tol * fmax(1, fabs((double)b[i]))))
            fail_msg("%s: %s %zu: %.9g, diffusers %.9g", key, what, i, (double)a[i], (double)b[i]);
}

static const float *want(struct golden *g, const char *key, const char *what, size_t *n)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", key, what);
    return golden_f32(g, name, n);
}

static void tables_equal(struct golden *g, const char *key, const struct nsched_table *t)
{
    size_t n = 0;
    const float *v = want(g, key, "timesteps", &n);
    assert_non_null(v);
    assert_int_equal(n, t->n);
    near("timestep", key, t->timestep, v, n, 1e-6);
    v = want(g, key, "sigmas", &n);
    if (v && t->sigma[0] > 0) {
        assert_int_equal(n, t->n + 1);
        near("sigma", key, t->sigma, v, n, 1e-6);
    }
    v = want(g, key, "init_noise_sigma", &n);
    assert_non_null(v);
    near("init_noise_sigma", key, &t->init_sigma, v, 1, 1e-6);
}

static void trajectory(const char *key, const struct nsched_table *t)
{
    size_t n = 0, m = 0;
    struct nsched_state s;
    const float *x0 = golden_f32(gold, "x0", &n);
    float *x = calloc(n, sizeof *x), *out = calloc(n, sizeof *out);
    assert_int_equal(nsched_state_open(&s, n, 0), 0);
    for (size_t k = 0; k < n; k++)
        x[k] = x0[k] * t->init_sigma;
    for (int i = 0; i < t->n; i++) {
        char name[16];
        float scale = nsched_input_scale(t, i);
        for (size_t k = 0; k < n; k++)
            out[k] = sinf(3 * (x[k] * scale)) * (1 + t->timestep[i] / 1000);
        assert_false(nsched_wants_noise(t, i));
        nsched_step(t, &s, i, x, out, NULL);
        snprintf(name, sizeof name, "x%d", i + 1);
        const float *w = i < 4 ? want(gold, key, name, &m) : NULL;
        if (w)
            near(name, key, x, w, m, 2e-4);
    }
    near("x_final", key, x, want(gold, key, "x_final", &m), m, 2e-3);
    nsched_state_close(&s);
    free(x);
    free(out);
}

static void test_diffusers(void **st)
{
    (void)st;
    for (int r = 0; r < n_row; r++)
        for (int steps = 4; steps <= 20; steps += 16) {
            char key[64];
            struct nsched_table *t = NULL;
            struct err e = {0};
            snprintf(key, sizeof key, "%s.%d", rows[r].name, steps);
            if (nsched_table_open(&t, &rows[r].c, steps, rows[r].n_token, &e))
                fail_msg("%s: %s", key, e.text);
            tables_equal(gold, key, t);
            trajectory(key, t);
            nsched_table_close(t);
        }
}

/* The tables of tiny-t2i's configuration under every sampler. */
static void test_tiny(void **st)
{
    (void)st;
    static const struct {
        const char *name;
        enum nsched_kind kind;
        bool karras;
        enum nsched_spacing spacing;
    } k[] = {{"ddim", NSCHED_DDIM, false, SPACING_LEADING},
             {"ddim_trailing", NSCHED_DDIM, false, SPACING_TRAILING},
             {"euler", NSCHED_EULER, false, SPACING_LEADING},
             {"euler_trailing", NSCHED_EULER, false, SPACING_TRAILING},
             {"euler_karras", NSCHED_EULER, true, SPACING_LEADING},
             {"euler_a", NSCHED_EULER_A, false, SPACING_LEADING},
             {"dpmpp_2m", NSCHED_DPMPP_2M, false, SPACING_LEADING},
             {"dpmpp_2m_karras", NSCHED_DPMPP_2M, true, SPACING_LEADING},
             {"lcm", NSCHED_LCM, false, SPACING_LEADING}};
    int checked = 0;
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        for (int steps = 4; steps <= 20; steps += steps == 4 ? 4 : 12) {
            char key[64];
            size_t n;
            struct nsched_table *t = NULL;
            struct nsched_config c = sd(k[i].kind);
            c.prediction = PREDICT_V;
            c.karras = k[i].karras;
            c.spacing = k[i].spacing;
            c.steps_offset = 1;
            c.alpha_to_one = false;
            snprintf(key, sizeof key, "sched.%s.%d", k[i].name, steps);
            if (!want(tiny, key, "timesteps", &n))
                continue;
            assert_int_equal(nsched_table_open(&t, &c, steps, 256, NULL), 0);
            tables_equal(tiny, key, t);
            nsched_table_close(t);
            checked++;
        }
    assert_true(checked >= 24);
}

static void test_bad(void **st)
{
    (void)st;
    struct nsched_table *t = NULL;
    struct nsched_config c = sd(NSCHED_EULER);
    struct err e = {0};
    assert_int_equal(nsched_table_open(&t, &c, 0, 1, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "steps"));
    assert_int_equal(nsched_table_open(&t, &c, 1001, 1, &e), ERR_INVAL);
    c = sd(NSCHED_LCM);
    assert_int_equal(nsched_table_open(&t, &c, 51, 1, &e), ERR_INVAL);
    for (int kind = NSCHED_DDIM; kind <= NSCHED_FLOW;
         kind++) { /* one step works with every sampler */
        float x = 0.5f, out = 0.1f, noise = 0.2f;
        struct nsched_state s;
        c = sd((enum nsched_kind)kind);
        assert_int_equal(nsched_table_open(&t, &c, 1, 256, &e), 0);
        assert_int_equal(nsched_state_open(&s, 1, 0), 0);
        for (int i = 0; i < t->n; i++)
            nsched_step(t, &s, i, &x, &out, nsched_wants_noise(t, i) ? &noise : NULL);
        assert_true(isfinite(x));
        nsched_state_close(&s);
        nsched_table_close(t);
    }
}

/* torch.randn(n, generator=manual_seed(42)), then torch.randn(5) of the same generator. */
static void test_noise(void **st)
{
    (void)st;
    static const struct {
        int n;
        float first, last, next;
    } k[] = {{1, 0.33669036627f, 0.33669036627f, 0.12880940735f},
             {3, 0.33669036627f, 0.23446236551f, 0.23033303022f},
             {15, 0.33669036627f, -0.98895990849f, 0.95797175169f},
             {16, 1.92691528797f, 0.76244539022f, 0.46165722609f},
             {17, 1.92691528797f, -0.30972677469f, -0.57099938393f},
             {64, 1.92691528797f, 1.38353383541f, 0.13314196467f}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        float x[64], y[5];
        struct torch_mt g;
        torch_mt_seed(&g, 42);
        torch_mt_randn(&g, x, (size_t)k[i].n);
        torch_mt_randn(&g, y, 5);
        near("first", "randn", x, &k[i].first, 1, 2e-6);
        near("last", "randn", x + k[i].n - 1, &k[i].last, 1, 2e-5);
        near("next", "randn", y, &k[i].next, 1, 2e-6);
    }
}

int main(void)
{
    fill_rows();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_diffusers),
                                       cmocka_unit_test(test_tiny), cmocka_unit_test(test_bad),
                                       cmocka_unit_test(test_noise)};
    return cmocka_run_group_tests(tests, open_goldens, close_goldens);
}
