/* Latent attention: what is written to the pool and what attention makes of it, every backend and table against the
 * reference, in all types of the pool; equal bits in one step, in chunks and beside another sequence. */
#include "tests/ops/ops_test.h"

#define N_TOK 37 /* of the first sequence; three blocks */
#define N_TWO 21 /* of the second */

struct shape {
    int n_head, n_nope, n_rope, rank;
    enum rope_style style;
    enum dtype kv;
};

static const struct shape shapes[] = {
    {4, 16, 8, 32, ROPE_NORM, DT_F32},    {3, 8, 4, 20, ROPE_NEOX, DT_F32},
    {17, 16, 8, 48, ROPE_NORM, DT_F16},   {2, 32, 16, 64, ROPE_NORM, DT_BF16},
    {2, 128, 64, 512, ROPE_NORM, DT_F32}, {3, 16, 8, 36, ROPE_NORM, DT_I8},
    {2, 32, 16, 64, ROPE_NEOX, DT_F8},
};

static int values(const struct shape *s)
{
    return s->n_head * s->rank;
}

/* Inputs of all tokens of one sequence. */
struct seq {
    int n;
    float *q, *kv, *abs;
};

static void seq_make(struct seq *x, const struct shape *s, int n)
{
    size_t q = (size_t)(n * s->n_head * (s->n_nope + s->n_rope)),
           kv = (size_t)(n * (s->rank + s->n_rope));
    *x = (struct seq){n, malloc(q * sizeof(float)), malloc(kv * sizeof(float)),
                      malloc((size_t)(n * values(s)) * sizeof(float))};
    ot_fill(x->q, q, 2);
    ot_fill(x->kv, kv, 2);
    ot_fill(x->abs, (size_t)(n * values(s)), 1);
}

static void seq_free(struct seq *x)
{
    free(x->q);
    free(x->kv);
    free(x->abs);
}

struct world {
    const struct shape *s;
    const struct ot_back *x;
    struct dev_kv *kv;
    struct tensor norm, freq;
};

/* Rows [at, at + n) of a sequence; n 0: not there. */
struct rows {
    const struct seq *s;
    int at, n;
    float *out;
};

/* Two sequences in one step. */
static void step(const struct world *w, struct rows u, struct rows v)
{
    const struct seq *a = u.s, *b = v.s;
    const int at = u.at, n = u.n, bt = v.at, m = v.n;
    float *a_out = u.out, *b_out = v.out;
    static const int32_t table[2][4] = {{3, 1, 6, 2}, {5, 4, 7, 8}};
    static int32_t tok[128], pos[128];
    const struct shape *s = w->s;
    const struct ot_back *x = w->x;
    int rows = n + m, qw = s->n_head * (s->n_nope + s->n_rope), kw = s->rank + s->n_rope;
    int32_t start[3] = {0, n, rows}, logit[1] = {0};
    float *q = malloc((size_t)(rows * qw) * sizeof *q),
          *kv = malloc((size_t)(rows * kw) * sizeof *kv),
          *abs = malloc((size_t)(rows * values(s)) * sizeof *abs),
          *out = malloc((size_t)(rows * values(s)) * sizeof *out);
    for (int i = 0; i < rows; i++) {
        const struct seq *y = i < n ? a : b;
        int t = i < n ? at + i : bt + i - n;
        pos[i] = t;
        memcpy(q + i * qw, y->q + t * qw, (size_t)qw * sizeof *q);
        memcpy(kv + i * kw, y->kv + t * kw, (size_t)kw * sizeof *kv);
        memcpy(abs + i * values(s), y->abs + t * values(s), (size_t)values(s) * sizeof *abs);
    }
    struct step_meta meta = {.n_row = rows,
                             .n_seq = m ? 2 : 1,
                             .n_logit = 1,
                             .tok = tok,
                             .pos = pos,
                             .seq_start = start,
                             .block_table = table[0],
                             .block_stride = 4,
                             .logit_row = logit};
    assert_int_equal(x->b->step_begin(x->d, &meta), 0);
    struct tensor tq = ot_tensor(x, rows, qw, q), tkv = ot_tensor(x, rows, kw, kv),
                  ta = ot_tensor(x, (int64_t)rows * s->n_head, s->rank, abs),
                  nope = ot_tensor(x, (int64_t)rows * s->n_head, s->n_nope, NULL),
                  dst = ot_tensor(x, (int64_t)rows * s->n_head, s->rank, NULL);
    struct op_mla_kv o = {.q = tq,
                          .q_nope = nope,
                          .kv = tkv,
                          .norm = w->norm,
                          .norm_eps = 1e-6f,
                          .n_head = s->n_head,
                          .n_nope = s->n_nope,
                          .n_rope = s->n_rope,
                          .rank = s->rank,
                          .style = s->style,
                          .inv_freq = w->freq,
                          .attn_factor = 1.25f,
                          .kv_pool = w->kv,
                          .layer = 1};
    assert_int_equal(x->b->mla_kv(x->d, &o), 0);
    struct op_mla_attn p = {.dst = dst,
                            .q_abs = ta,
                            .q = tq,
                            .n_head = s->n_head,
                            .n_nope = s->n_nope,
                            .n_rope = s->n_rope,
                            .rank = s->rank,
                            .scale = 0.125f,
                            .kv_pool = w->kv,
                            .layer = 1};
    assert_int_equal(x->b->mla_attn(x->d, &p), 0);
    ot_take(x, dst, out);
    memcpy(a_out + at * values(s), out, (size_t)(n * values(s)) * sizeof *out);
    if (m)
        memcpy(b_out + bt * values(s), out + n * values(s), (size_t)(m * values(s)) * sizeof *out);
    float *got = malloc((size_t)(rows * s->n_head * s->n_nope) * sizeof *got);
    ot_take(x, nope, got); /* the part that is not rotated, as it was */
    for (int i = 0; i < rows * s->n_head; i++)
        assert_memory_equal(got + i * s->n_nope, q + i * (s->n_nope + s->n_rope),
                            (size_t)s->n_nope * sizeof *got);
    ot_take(x, tq, NULL);
    ot_take(x, tkv, NULL);
    ot_take(x, ta, NULL);
    free(got);
    free(q);
    free(kv);
    free(abs);
    free(out);
}

static void world_open(struct world *w, const struct shape *s, const struct ot_back *x,
                       const float *norm)
{
    float freq[32];
    struct err e = {0};
    struct kv_desc k = {.n_layer = 2,
                        .n_kv_head = 1,
                        .head_dim = s->rank + s->n_rope,
                        .n_block = 9,
                        .dtype = s->kv,
                        .k_only = true};
    for (int i = 0; i < s->n_rope / 2; i++)
        freq[i] = (float)pow(100, -2.0 * i / s->n_rope);
    *w = (struct world){.s = s, .x = x};
    if (x->b->kv_open(x->d, &w->kv, &k, &e))
        fail_msg("%s: %s", x->name, e.text);
    w->norm = ot_tensor(x, 1, s->rank, norm);
    w->freq = ot_tensor(x, 1, s->n_rope / 2, freq);
}

static void world_close(struct world *w)
{
    ot_take(w->x, w->norm, NULL);
    ot_take(w->x, w->freq, NULL);
    w->x->b->kv_close(w->x->d, w->kv);
}

static void check(const struct shape *s, const struct ot_back *x, const struct seq *a,
                  const struct seq *b, const float *norm, float *want)
{
    size_t n = (size_t)(N_TOK * values(s));
    float *whole = malloc(n * sizeof *whole), *parts = malloc(n * sizeof *parts),
          *other = malloc(n * sizeof *other);
    struct world w;
    world_open(&w, s, x, norm);
    step(&w, (struct rows){a, 0, N_TOK, whole}, (struct rows){0});
    world_close(&w);
    world_open(&w, s, x, norm);
    for (int at = 0, bt = 0; at < N_TOK; at += 7) {
        int left = N_TOK - at < 7 ? N_TOK - at : 7, m = bt < N_TWO ? 3 : 0;
        step(&w, (struct rows){a, at, left, parts}, (struct rows){b, bt, m, other});
        bt += m;
    }
    world_close(&w);
    ot_same(x, "chunks beside another sequence", parts, whole, n);
    if (x == ot_backs)
        memcpy(want, whole, n * sizeof *want);
    else
        ot_near(x, "latent attention", whole, want, n,
                s->kv == DT_F32  ? 1e-10
                : s->kv == DT_F8 ? 1e-5
                                 : 1e-6);
    free(whole);
    free(parts);
    free(other);
}

static void test_mla(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        struct seq a, b;
        float norm[512], *want = malloc((size_t)(N_TOK * values(s)) * sizeof *want);
        seq_make(&a, s, N_TOK);
        seq_make(&b, s, N_TWO);
        ot_fill(norm, (size_t)s->rank, 1);
        for (int k = 0; k < ot_n; k++)
            if (!ot_leave_out(k, i))
                check(s, &ot_backs[k], &a, &b, norm, want);
        seq_free(&a);
        seq_free(&b);
        free(want);
    }
}

/* One token: its own normalised vector, whatever the scores. */
static void test_one(void **st)
{
    (void)st;
    static const struct shape s = {2, 4, 2, 4, ROPE_NORM, DT_F32};
    const float norm[4] = {1, 2, 3, -1}, kv[6] = {3, -1, 2, 5, 7, 7};
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)kv[i] * (double)kv[i];
    for (int k = 0; k < ot_n; k++) {
        struct seq a;
        struct world w;
        float out[8];
        seq_make(&a, &s, 1);
        memcpy(a.kv, kv, sizeof kv);
        world_open(&w, &s, &ot_backs[k], norm);
        step(&w, (struct rows){&a, 0, 1, out}, (struct rows){0});
        world_close(&w);
        for (int i = 0; i < 8; i++) {
            double v = (double)kv[i % 4] / sqrt(sum / 4 + 1e-6) * (double)norm[i % 4];
            assert_true(fabs((double)out[i] - v) < 1e-5);
        }
        seq_free(&a);
    }
}

/* A pool with room for V, or of another size, is not taken. */
static void test_errors(void **st)
{
    (void)st;
    static const struct shape s = {2, 4, 2, 4, ROPE_NORM, DT_F32};
    for (int k = 0; k < ot_n; k++) {
        const struct ot_back *x = &ot_backs[k];
        struct err e = {0};
        struct dev_kv *kv = NULL;
        struct kv_desc d = {
            .n_layer = 1, .n_kv_head = 1, .head_dim = 6, .n_block = 3, .dtype = DT_F32};
        int32_t zero[2] = {0, 0}, start[2] = {0, 1}, table[1] = {1};
        struct step_meta meta = {.n_row = 1,
                                 .n_seq = 1,
                                 .tok = zero,
                                 .pos = zero,
                                 .seq_start = start,
                                 .block_table = table,
                                 .block_stride = 1};
        size_t both = x->b->kv_block_bytes(&d);
        d.k_only = true;
        assert_true(x->b->kv_block_bytes(&d) * 2 <= both);
        d.k_only = false;
        assert_int_equal(x->b->kv_open(x->d, &kv, &d, &e), 0);
        assert_int_equal(x->b->step_begin(x->d, &meta), 0);
        struct tensor t = ot_tensor(x, 1, 12, NULL), u = ot_tensor(x, 2, 4, NULL);
        struct op_mla_attn p = {.dst = u,
                                .q_abs = u,
                                .q = t,
                                .n_head = s.n_head,
                                .n_nope = s.n_nope,
                                .n_rope = s.n_rope,
                                .rank = s.rank,
                                .scale = 1,
                                .kv_pool = kv};
        assert_int_equal(x->b->mla_attn(x->d, &p), ERR_INVAL);
        struct op_mla_kv o = {.q = t,
                              .q_nope = u,
                              .kv = t,
                              .norm = u,
                              .n_head = s.n_head,
                              .n_nope = s.n_nope,
                              .n_rope = s.n_rope,
                              .rank = s.rank,
                              .kv_pool = kv};
        assert_int_equal(x->b->mla_kv(x->d, &o), ERR_INVAL);
        ot_take(x, t, NULL);
        ot_take(x, u, NULL);
        x->b->kv_close(x->d, kv);
    }
}

/* The index: 40 rows of one sequence, 9 positions of each are chosen; in one step and in chunks, every backend against the
 * reference, in all types of the pool. */
static void index_step(const struct ot_back *x, struct dev_kv *kv, int at, int n, const float *data,
                       float *out)
{
    enum { H = 5, D = 20, ROPE = 8, COLS = 48 };
    static const int32_t table[3] = {2, 4, 1};
    int32_t tok[40] = {0}, pos[40], start[2] = {0, n};
    float freq[ROPE / 2];
    for (int i = 0; i < n; i++)
        pos[i] = at + i;
    for (int i = 0; i < ROPE / 2; i++)
        freq[i] = (float)pow(100, -2.0 * i / ROPE);
    struct step_meta m = {.n_row = n,
                          .n_seq = 1,
                          .tok = tok,
                          .pos = pos,
                          .seq_start = start,
                          .block_table = table,
                          .block_stride = 3};
    assert_int_equal(x->b->step_begin(x->d, &m), 0);
    struct tensor q = ot_tensor(x, n, H * D, data + at * H * D),
                  k = ot_tensor(x, n, D, data + 40 * H * D + at * D),
                  w = ot_tensor(x, n, H, data + 40 * (H + 1) * D + at * H),
                  f = ot_tensor(x, 1, ROPE / 2, freq), seen = ot_tensor(x, n, COLS, NULL);
    struct op_index a = {.q = q,
                         .k = k,
                         .weight = w,
                         .seen = seen,
                         .n_head = H,
                         .dim = D,
                         .n_rope = ROPE,
                         .n_top = 9,
                         .scale = 0.25f,
                         .style = ROPE_NEOX,
                         .inv_freq = f,
                         .attn_factor = 1,
                         .kv_pool = kv,
                         .layer = 1};
    assert_int_equal(x->b->index(x->d, &a), 0);
    a.n_top = 0;
    assert_int_equal(x->b->index(x->d, &a), ERR_INVAL);
    ot_take(x, seen, out + at * COLS);
    ot_take(x, q, NULL);
    ot_take(x, k, NULL);
    ot_take(x, w, NULL);
    ot_take(x, f, NULL);
}

static void test_index(void **st)
{
    (void)st;
    static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_I8, DT_F8};
    static float data[40 * 125], want[40 * 48], got[40 * 48], parts[40 * 48];
    ot_fill(data, sizeof data / sizeof *data, 1);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int b = 0; b < ot_n; b++) {
            const struct ot_back *x = &ot_backs[b];
            struct kv_desc k = {.n_layer = 2,
                                .n_kv_head = 1,
                                .head_dim = 20,
                                .n_block = 5,
                                .dtype = types[t],
                                .k_only = true};
            struct dev_kv *kv;
            struct err e = {0};
            assert_int_equal(x->b->kv_open(x->d, &kv, &k, &e), 0);
            index_step(x, kv, 0, 40, data, b ? got : want);
            for (int at = 0; at < 40; at += 7)
                index_step(x, kv, at, at + 7 > 40 ? 40 - at : 7, data, parts);
            x->b->kv_close(x->d, kv);
            for (int i = 0; i < 40; i++) {
                int n = 0;
                const float *u = (b ? got : want) + i * 48, *v = want + i * 48;
                ot_same(x, "chunks", parts + i * 48, u, (size_t)i + 1);
                for (int p = 0; p <= i; p++) {
                    n += u[p] > -INFINITY;
                    assert_true(u[p] == v[p] || fabsf(u[p] - v[p]) < 1e-4f);
                }
                assert_int_equal(n, i < 9 ? i + 1 : 9);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mla),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, ot_open, ot_close);
}
