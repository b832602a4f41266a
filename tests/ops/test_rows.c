/* Row ops: rmsnorm, act_mul, scale, gather, embed, linear. Each table against ref, guards around outputs, and
 * a row's bits the same alone, in company and over threads. */
#include "tests/ops/ops_test.h"

static const int64_t dims[] = {1, 3, 15, 16, 17, 64, 100, 576, 1003, 4096};
static const int64_t counts[] = {1, 5, 33};
#define N_DIM   (sizeof dims / sizeof *dims)
#define N_COUNT (sizeof counts / sizeof *counts)

/* What one run of an op gave: `out` is dst (n values), `x` the operand changed in place. */
struct result {
    float *out, *x;
};

typedef void op_fn(const struct ot_back *b, int64_t n, int64_t d, const float *data,
                   struct result r);

/* data holds 3 n d values. The op runs on all rows, on each backend; then the last row runs alone. */
static void sweep(op_fn *op, double bound)
{
    for (size_t i = 0; i < N_DIM; i++)
        for (size_t k = 0; k < N_COUNT; k++) {
            int64_t d = dims[i], n = counts[k];
            size_t size = (size_t)(n * d);
            float *data = malloc(3 * size * sizeof *data),
                  *row = malloc(3 * (size_t)d * sizeof *row);
            struct result want = {calloc(size, 4), calloc(size, 4)};
            struct result got = {calloc(size, 4), calloc(size, 4)};
            struct result one = {calloc((size_t)d, 4), calloc((size_t)d, 4)};
            ot_fill(data, 3 * size, 4);
            for (int p = 0; p < 3; p++)
                memcpy(row + p * d, data + p * n * d + (n - 1) * d, (size_t)d * sizeof *row);
            op(&ot_backs[0], n, d, data, want);
            for (int b = 1; b < ot_n; b++) {
                op(&ot_backs[b], n, d, data, got);
                ot_near(&ot_backs[b], "out", got.out, want.out, size, bound);
                ot_near(&ot_backs[b], "in place", got.x, want.x, size, bound);
                op(&ot_backs[b], 1, d, row, one);
                ot_same(&ot_backs[b], "alone", one.out, got.out + (n - 1) * d, (size_t)d);
                ot_same(&ot_backs[b], "alone", one.x, got.x + (n - 1) * d, (size_t)d);
            }
            free(data);
            free(row);
            struct result *all[] = {&want, &got, &one};
            for (int p = 0; p < 3; p++) {
                free(all[p]->out);
                free(all[p]->x);
            }
        }
}

static void norm_add(const struct ot_back *b, int64_t n, int64_t d, const float *data,
                     struct result r)
{
    float *w = malloc((size_t)d * sizeof *w);
    for (int64_t i = 0; i < d; i++)
        w[i] = 0.5f + 0.01f * (float)(i % 90);
    struct tensor x = ot_tensor(b, n, d, data), add = ot_tensor(b, n, d, data + n * d);
    struct tensor dst = ot_tensor(b, n, d, NULL), tw = ot_tensor(b, 1, d, w);
    struct op_rmsnorm a = {.dst = dst, .x = x, .add = add, .w = tw, .eps = 1e-5f};
    assert_int_equal(b->b->rmsnorm(b->d, &a), 0);
    ot_take(b, dst, r.out);
    ot_take(b, x, r.x);
    ot_take(b, add, NULL);
    ot_take(b, tw, NULL);
    free(w);
}

/* dst = x, no addition; then only an addition. */
static void norm_in_place(const struct ot_back *b, int64_t n, int64_t d, const float *data,
                          struct result r)
{
    struct tensor x = ot_tensor(b, n, d, data), add = ot_tensor(b, n, d, data + n * d);
    float *ones = malloc((size_t)d * sizeof *ones);
    for (int64_t i = 0; i < d; i++)
        ones[i] = 1;
    struct tensor w = ot_tensor(b, 1, d, ones);
    free(ones);
    struct op_rmsnorm a = {.dst = x, .x = x, .w = w, .eps = 1e-6f};
    assert_int_equal(b->b->rmsnorm(b->d, &a), 0);
    struct op_rmsnorm only = {.x = x, .add = add};
    assert_int_equal(b->b->rmsnorm(b->d, &only), 0);
    ot_take(b, x, r.x);
    ot_take(b, add, NULL);
    ot_take(b, w, NULL);
}

/* Layer norm of a sum, with a bias; then RMS norm without weights of the same, in place over it. */
static void norm_center(const struct ot_back *b, int64_t n, int64_t d, const float *data,
                        struct result r)
{
    struct tensor x = ot_tensor(b, n, d, data), add = ot_tensor(b, n, d, data + n * d);
    struct tensor dst = ot_tensor(b, n, d, NULL);
    float *v = malloc(2 * (size_t)d * sizeof *v);
    for (int64_t i = 0; i < 2 * d; i++)
        v[i] = 0.5f + 0.01f * (float)(i % 90);
    struct tensor w = ot_tensor(b, 1, d, v), bias = ot_tensor(b, 1, d, v + d);
    free(v);
    struct op_rmsnorm a = {
        .dst = dst, .x = x, .add = add, .w = w, .b = bias, .eps = 1e-2f, .center = true};
    assert_int_equal(b->b->rmsnorm(b->d, &a), 0);
    struct op_rmsnorm bare = {.dst = x, .x = x, .eps = 1e-5f};
    assert_int_equal(b->b->rmsnorm(b->d, &bare), 0);
    ot_take(b, dst, r.out);
    ot_take(b, x, r.x);
    ot_take(b, add, NULL);
    ot_take(b, w, NULL);
    ot_take(b, bias, NULL);
}

/* Layer norm without weights of the middle columns of wider rows: the others stay. */
static void norm_columns(const struct ot_back *b, int64_t n, int64_t d, const float *data,
                         struct result r)
{
    int64_t from = d / 3, cols = d - from - d / 4;
    struct tensor x = ot_tensor(b, n, d, data), in = tensor_cols(x, from, cols);
    struct op_rmsnorm a = {.dst = in, .x = in, .eps = 1e-2f, .center = true};
    assert_int_equal(b->b->rmsnorm(b->d, &a), 0);
    a.center = false;
    assert_int_equal(b->b->rmsnorm(b->d, &a), 0);
    ot_take(b, x, r.x);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < d; k++)
            if (k < from || k >= from + cols)
                assert_memory_equal(&r.x[i * d + k], &data[i * d + k], sizeof *data);
}

static void act(const struct ot_back *b, int64_t n, int64_t d, const float *data, struct result r,
                enum act_kind kind)
{
    struct tensor g = ot_tensor(b, n, 2 * d, NULL), dst = ot_tensor(b, n, d, NULL);
    for (int64_t i = 0; i < n; i++) /* gate and up of a row stand together */
        for (int p = 0; p < 2; p++)
            b->b->write(b->d, g.buf, g.off + (size_t)(i * 2 + p) * (size_t)d * 4,
                        data + p * n * d + i * d, (size_t)d * 4);
    struct op_act_mul a = {.dst = dst, .gate_up = g, .act = kind, .limit = 1.5f};
    assert_int_equal(b->b->act_mul(b->d, &a), 0);
    ot_take(b, dst, r.out);
    ot_take(b, g, NULL);
}
/* Without a second factor. */
static void act_single(const struct ot_back *b, int64_t n, int64_t d, const float *data,
                       struct result r)
{
    struct tensor g = ot_tensor(b, n, d, data), dst = ot_tensor(b, n, d, NULL);
    struct op_act_mul a = {.dst = dst, .gate_up = g, .act = ACT_GELU_TANH, .single = true};
    assert_int_equal(b->b->act_mul(b->d, &a), 0);
    ot_take(b, dst, r.out);
    a.dst = g, a.act = ACT_RELU2;
    assert_int_equal(b->b->act_mul(b->d, &a), 0);
    ot_take(b, g, r.x);
}
static void act_relu(const struct ot_back *b, int64_t n, int64_t d, const float *p, struct result r)
{
    act(b, n, d, p, r, ACT_RELU);
}
static void act_relu2(const struct ot_back *b, int64_t n, int64_t d, const float *p,
                      struct result r)
{
    act(b, n, d, p, r, ACT_RELU2);
}
static void act_oai(const struct ot_back *b, int64_t n, int64_t d, const float *p, struct result r)
{
    act(b, n, d, p, r, ACT_SWIGLU_OAI);
}
static void act_silu(const struct ot_back *b, int64_t n, int64_t d, const float *p, struct result r)
{
    act(b, n, d, p, r, ACT_SILU);
}
static void act_tanh(const struct ot_back *b, int64_t n, int64_t d, const float *p, struct result r)
{
    act(b, n, d, p, r, ACT_GELU_TANH);
}
static void act_erf(const struct ot_back *b, int64_t n, int64_t d, const float *p, struct result r)
{
    act(b, n, d, p, r, ACT_GELU_ERF);
}

static void scale_cap(const struct ot_back *b, int64_t n, int64_t d, const float *data,
                      struct result r)
{
    struct tensor x = ot_tensor(b, n, d, data);
    struct op_scale a = {.x = x, .scale = 1.5f, .softcap = 3};
    assert_int_equal(b->b->scale(b->d, &a), 0);
    a.softcap = 0;
    assert_int_equal(b->b->scale(b->d, &a), 0);
    ot_take(b, x, r.x);
}

/* Rows of a step by their positions; outside of one there are none. */
static void test_scale_temper(void **st)
{
    (void)st;
    enum { N = 3, D = 5 };
    int32_t tok[N] = {0}, pos[N] = {0, 7, 4099}, start[] = {0, 1, 2, 3}, table[N] = {1, 1, 1};
    const double want[N] = {1.5, 1.5 * (1 + 0.3 * log(3)), 1.5 * (1 + 0.3 * log(1026))};
    float x[N * D], got[N * D];
    struct step_meta m = {.n_row = N,
                          .n_seq = N,
                          .tok = tok,
                          .pos = pos,
                          .seq_start = start,
                          .block_table = table,
                          .block_stride = 1};
    ot_fill(x, N * D, 1);
    for (int b = 0; b < ot_n; b++) {
        const struct ot_back *o = &ot_backs[b];
        assert_int_equal(o->b->step_begin(o->d, &m), 0);
        struct tensor t = ot_tensor(o, N, D, x), part = t;
        struct op_scale a = {.x = t, .scale = 1.5f, .temper = 0.3f, .temper_from = 1};
        assert_int_equal(o->b->scale(o->d, &a), ERR_INVAL);
        a.temper_every = 4;
        part.shape[0] = N - 1;
        a.x = part;
        assert_int_equal(o->b->scale(o->d, &a), ERR_INVAL);
        a.x = t;
        assert_int_equal(o->b->scale(o->d, &a), 0);
        ot_take(o, t, got);
        for (int i = 0; i < N * D; i++)
            assert_true(fabs((double)got[i] - want[i / D] * (double)x[i]) < 1e-6);
    }
}

static void test_rmsnorm(void **st)
{
    (void)st;
    sweep(norm_add, 1e-12);
    sweep(norm_in_place, 1e-12);
    sweep(norm_center, 1e-11);
    sweep(norm_columns, 1e-11);
}

static void test_act(void **st)
{
    (void)st;
    sweep(act_silu, 1e-12);
    sweep(act_tanh, 1e-12);
    sweep(act_erf, 1e-12);
    sweep(act_relu, 1e-12);
    sweep(act_relu2, 1e-12);
    sweep(act_oai, 1e-12);
    sweep(act_single, 1e-12);
}

static void test_scale(void **st)
{
    (void)st;
    sweep(scale_cap, 1e-12);
}

/* Activations at the ends of the range: finite in, finite out, tails go to 0 or x. */
static void test_act_range(void **st)
{
    (void)st;
    static const float x[] = {0,  -0.0f, 1e-30f, -1e-30f, 8,     -8,
                              60, -60,   1e4f,   -1e4f,   1e30f, -1e30f};
    enum { N = sizeof x / sizeof *x };
    float gate_up[2 * N], got[N], want[N];
    for (int i = 0; i < N; i++) {
        gate_up[i] = x[i];
        gate_up[N + i] = 1;
    }
    for (int kind = ACT_SILU; kind <= ACT_RELU; kind++)
        for (int b = 0; b < ot_n; b++) {
            const struct ot_back *o = &ot_backs[b];
            struct tensor g = ot_tensor(o, 1, 2 * N, gate_up), dst = ot_tensor(o, 1, N, NULL);
            struct op_act_mul a = {.dst = dst, .gate_up = g, .act = (enum act_kind)kind};
            /* x^3 overflows in f32 at 1e30: tanh saturates all the same */
            assert_int_equal(o->b->act_mul(o->d, &a), 0);
            ot_take(o, dst, b ? got : want);
            ot_take(o, g, NULL);
            for (int i = 0; b && i < N; i++) {
                float tol = 1e-6f + 1e-6f * fabsf(want[i]);
                if (!(fabsf(got[i] - want[i]) <= tol))
                    fail_msg("%s: act %d of %g: %g, not %g", o->name, kind, (double)x[i],
                             (double)got[i], (double)want[i]);
            }
        }
}

/* A weight of three parts in different formats, by row and by product; then gather. */
static void test_weights(void **st)
{
    (void)st;
    enum { IN = 256, OUT = 40, ROWS = 37 };
    static const enum quant_fmt fmts[][3] = {{QF_F32, QF_F16, QF_BF16}, {QF_Q8_0, QF_F32, QF_F16}};
    static float w[3 * OUT * IN], x[ROWS * IN], want[ROWS * 3 * OUT], got[ROWS * 3 * OUT];
    static float e_want[ROWS * IN], e_got[ROWS * IN], g_got[2 * IN], bias[3 * OUT];
    static char raw[3][OUT * IN * 4];
    static int32_t tok[ROWS], pos[ROWS], start[] = {0, ROWS}, table[16];
    static const int32_t logit_row[] = {2, ROWS - 1};
    for (int i = 0; i < ROWS; i++) {
        tok[i] = i * 7 % (3 * OUT);
        pos[i] = i;
    }
    struct step_meta m = {.n_row = ROWS,
                          .n_seq = 1,
                          .n_logit = 2,
                          .tok = tok,
                          .pos = pos,
                          .seq_start = start,
                          .block_table = table,
                          .block_stride = 16,
                          .logit_row = logit_row};
    for (size_t f = 0; f < 2; f++) {
        struct weight_desc d = {.name = "test.weight", .n_in = IN, .n_part = 3, .rows = true};
        ot_fill(w, 3 * OUT * IN, 1);
        ot_fill(x, ROWS * IN, 1);
        ot_fill(bias, 3 * OUT, 1);
        for (int p = 0; p < 3; p++) {
            const struct quant_format *q = quant_format_get(fmts[f][p]);
            q->encode(w + p * OUT * IN, raw[p], OUT * IN);
            d.part[p] = (struct weight_part){fmts[f][p], raw[p], OUT};
        }
        for (int b = 0; b < ot_n; b++) {
            const struct ot_back *o = &ot_backs[b];
            struct dev_weight *dw;
            struct err e = {0};
            assert_int_equal(o->b->weight_open(o->d, &dw, &d, &e), 0);
            assert_int_equal(o->b->step_begin(o->d, &m), 0);
            struct tensor tx = ot_tensor(o, ROWS, IN, x), ty = ot_tensor(o, ROWS, 3 * OUT, NULL);
            struct tensor te = ot_tensor(o, ROWS, IN, NULL), tg = ot_tensor(o, 2, IN, NULL);
            struct tensor tb = ot_tensor(o, 1, 3 * OUT, bias);
            struct op_linear l = {.dst = ty, .src = tx, .w = dw, .bias = tb};
            assert_int_equal(o->b->linear(o->d, &l), 0);
            struct op_embed em = {.dst = te, .w = dw, .scale = 1.25f};
            assert_int_equal(o->b->embed(o->d, &em), 0);
            em.pos = dw; /* as a table of positions it has three parts: refused */
            assert_int_equal(o->b->embed(o->d, &em), ERR_INVAL);
            struct op_gather g = {.dst = tg, .src = te};
            assert_int_equal(o->b->gather(o->d, &g), 0);
            ot_take(o, ty, b ? got : want);
            ot_take(o, te, b ? e_got : e_want);
            ot_take(o, tg, g_got);
            ot_take(o, tx, NULL);
            ot_take(o, tb, NULL);
            o->b->weight_close(o->d, dw);
            ot_same(o, "gather", g_got, e_want + 2 * IN, IN);
            ot_same(o, "gather", g_got + IN, e_want + (ROWS - 1) * IN, IN);
            if (b) {
                ot_same(o, "embed", e_got, e_want, ROWS * IN);
                ot_near(o, "linear", got, want, ROWS * 3 * OUT, 1e-11);
            }
        }
    }
}

/* Learned positions: their row is added; a position that the table lacks is refused. */
static void test_positions(void **st)
{
    (void)st;
    enum { IN = 64, TOKS = 20, CTX = 30 };
    static float w[(TOKS + CTX) * IN], got[2 * IN];
    static int32_t tok[] = {3, 19}, pos[] = {7, 29}, start[] = {0, 1, 2}, table[8], row[] = {0, 1};
    struct step_meta m = {.n_row = 2,
                          .n_seq = 2,
                          .n_logit = 2,
                          .tok = tok,
                          .pos = pos,
                          .seq_start = start,
                          .block_table = table,
                          .block_stride = 4,
                          .logit_row = row};
    ot_fill(w, (TOKS + CTX) * IN, 1);
    struct weight_desc d = {.name = "words",
                            .n_in = IN,
                            .n_part = 1,
                            .part = {{QF_F32, w, TOKS}},
                            .rows = true,
                            .only_rows = true};
    struct weight_desc p = d;
    p.part[0] = (struct weight_part){QF_F32, w + TOKS * IN, CTX};
    for (int b = 0; b < ot_n; b++) {
        const struct ot_back *o = &ot_backs[b];
        struct dev_weight *dw, *dp;
        struct err e = {0};
        assert_int_equal(o->b->weight_open(o->d, &dw, &d, &e), 0);
        assert_int_equal(o->b->weight_open(o->d, &dp, &p, &e), 0);
        pos[1] = CTX - 1;
        assert_int_equal(o->b->step_begin(o->d, &m), 0);
        struct tensor t = ot_tensor(o, 2, IN, NULL);
        struct op_embed em = {.dst = t, .w = dw, .scale = 2, .pos = dp};
        assert_int_equal(o->b->embed(o->d, &em), 0);
        ot_take(o, t, got);
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < IN; k++) {
                float want = 2 * w[tok[i] * IN + k] + w[(TOKS + pos[i]) * IN + k];
                assert_memory_equal(&got[i * IN + k], &want, sizeof want);
            }
        t = ot_tensor(o, 2, IN, NULL);
        em.dst = t;
        pos[1] = CTX;
        assert_int_equal(o->b->step_begin(o->d, &m), 0);
        assert_int_equal(o->b->embed(o->d, &em), ERR_INVAL);
        ot_take(o, t, NULL);
        o->b->weight_close(o->d, dp);
        o->b->weight_close(o->d, dw);
    }
}

static void bench(void)
{
    enum { D = 4096, N = 256, REP = 20 };
    float *data = malloc(3 * sizeof(float) * N * D);
    ot_fill(data, 3 * N * D, 1);
    for (int b = 1; b < ot_n; b++) {
        const struct ot_back *o = &ot_backs[b];
        struct tensor x = ot_tensor(o, N, D, data), dst = ot_tensor(o, N, D, NULL);
        struct tensor g = ot_tensor(o, N, 2 * D, data), w = ot_tensor(o, 1, D, data);
        struct op_rmsnorm n = {.dst = dst, .x = x, .w = w, .eps = 1e-5f};
        struct op_act_mul a = {.dst = dst, .gate_up = g, .act = ACT_SILU};
        int64_t t0 = clock_us();
        for (int i = 0; i < REP; i++)
            o->b->rmsnorm(o->d, &n);
        int64_t t1 = clock_us();
        for (int i = 0; i < REP; i++)
            o->b->act_mul(o->d, &a);
        int64_t t2 = clock_us();
        double us_n = (double)(t1 - t0) / REP, us_a = (double)(t2 - t1) / REP;
        printf("%-28s rmsnorm %d x %d: %7.1f us %6.2f GB/s   silu: %7.1f us %6.2f GB/s\n", o->name,
               N, D, us_n, 8e-3 * N * D / us_n, us_a, 12e-3 * N * D / us_a);
        ot_take(o, x, NULL);
        ot_take(o, dst, NULL);
        ot_take(o, g, NULL);
        ot_take(o, w, NULL);
    }
    free(data);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),   cmocka_unit_test(test_act),
        cmocka_unit_test(test_scale),     cmocka_unit_test(test_scale_temper),
        cmocka_unit_test(test_act_range), cmocka_unit_test(test_weights),
        cmocka_unit_test(test_positions),
    };
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        ot_open(NULL);
        bench();
        return ot_close(NULL);
    }
    return cmocka_run_group_tests(tests, ot_open, ot_close);
}
