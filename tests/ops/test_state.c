/* Ops of recurrent layers: each table against ref, guards around outputs; a sequence's rows have the same bits in one step,
 * and in chunks over several slots beside another sequence. */
#include "tests/ops/ops_test.h"

enum { ROWS = 23, WIDTH = 512, OUT = 128, PARAMS = 2048, SLOTS = 5, FLOATS = 4096 };

struct run {
    const struct ot_back *o;
    struct dev_state *pool;
    struct tensor in, dst, p; /* [n, WIDTH], [n, OUT], [1, PARAMS] */
};
struct kase {
    const char *name;
    int64_t cols; /* of dst */
    int (*op)(const struct run *r);
    double bound;
};

static struct tensor cols(struct tensor t, int64_t from, int64_t n)
{
    return tensor_cols(t, from, n);
}

static struct state_at at(const struct run *r)
{
    return (struct state_at){.pool = r->pool, .layer = 1, .off = 5};
}

static int conv(const struct run *r)
{
    struct op_state_conv a = {.dst = cols(r->dst, 0, 37),
                              .x = cols(r->in, 3, 37),
                              .w = cols(r->p, 0, 37 * 4),
                              .bias = cols(r->p, 200, 37),
                              .k = 4,
                              .silu = true,
                              .at = at(r)};
    return r->o->b->state_conv(r->o->d, &a);
}

static int conv_gates(const struct run *r)
{
    struct op_state_conv a = {.dst = cols(r->dst, 0, 37),
                              .mul = cols(r->dst, 37, 37),
                              .x = cols(r->in, 3, 37),
                              .in_gate = cols(r->in, 40, 37),
                              .out_gate = cols(r->in, 80, 37),
                              .w = cols(r->p, 0, 37 * 3),
                              .k = 3,
                              .at = at(r)};
    return r->o->b->state_conv(r->o->d, &a);
}

static int shift(const struct run *r)
{
    struct op_state_shift a = {.dst = cols(r->dst, 0, 111),
                               .x = cols(r->in, 3, 37),
                               .mix = cols(r->p, 0, 111),
                               .n_mix = 3,
                               .at = at(r)};
    return r->o->b->state_shift(r->o->d, &a);
}

static int wkv(const struct run *r)
{
    struct op_state_wkv a = {.dst = cols(r->dst, 0, 37),
                             .r = cols(r->in, 0, 37),
                             .k = cols(r->in, 40, 37),
                             .v = cols(r->in, 80, 37),
                             .decay = cols(r->p, 1024, 37),
                             .first = cols(r->p, 40, 37),
                             .at = at(r)};
    return r->o->b->state_wkv(r->o->d, &a);
}

/* As Mamba has it: a number of A for each value of the state. */
static int scan_wide(const struct run *r)
{
    struct op_state_scan a = {.dst = cols(r->dst, 0, 21),
                              .x = cols(r->in, 0, 21),
                              .dt = cols(r->in, 40, 21),
                              .dt_bias = cols(r->p, 0, 21),
                              .b = cols(r->in, 80, 18),
                              .c = cols(r->in, 120, 18),
                              .a = cols(r->p, 1024, 21 * 18),
                              .skip = cols(r->p, 40, 21),
                              .n_head = 21,
                              .head_dim = 1,
                              .n_group = 1,
                              .n_state = 18,
                              .dt_max = INFINITY,
                              .at = at(r)};
    return r->o->b->state_scan(r->o->d, &a);
}

static int scan_heads(const struct run *r)
{
    struct op_state_scan a = {.dst = cols(r->dst, 0, 30),
                              .x = cols(r->in, 0, 30),
                              .dt = cols(r->in, 40, 6),
                              .b = cols(r->in, 80, 80),
                              .c = cols(r->in, 160, 80),
                              .a = cols(r->p, 1024, 6),
                              .n_head = 6,
                              .head_dim = 5,
                              .n_group = 2,
                              .n_state = 40,
                              .dt_min = 0.3f,
                              .dt_max = 1.1f,
                              .at = at(r)};
    return r->o->b->state_scan(r->o->d, &a);
}

static int delta(const struct run *r)
{
    struct op_state_delta a = {.dst = cols(r->dst, 0, 80),
                               .q = cols(r->in, 0, 48),
                               .k = cols(r->in, 50, 48),
                               .v = cols(r->in, 100, 80),
                               .g = cols(r->in, 180, 4),
                               .g_bias = cols(r->p, 0, 4),
                               .a = cols(r->p, 1024, 4),
                               .beta = cols(r->in, 184, 4),
                               .n_head = 4,
                               .n_key_head = 2,
                               .dk = 24,
                               .dv = 20,
                               .scale = 0.2f,
                               .eps = 1e-6f,
                               .at = at(r)};
    return r->o->b->state_delta(r->o->d, &a);
}

/* A gate a key channel, heads of keys in turns. */
static int delta_wide(const struct run *r)
{
    struct op_state_delta a = {.dst = cols(r->dst, 0, 80),
                               .q = cols(r->in, 0, 48),
                               .k = cols(r->in, 50, 48),
                               .v = cols(r->in, 100, 80),
                               .g = cols(r->in, 200, 96),
                               .g_bias = cols(r->p, 0, 96),
                               .a = cols(r->p, 1024, 4),
                               .beta = cols(r->in, 184, 4),
                               .n_head = 4,
                               .n_key_head = 2,
                               .dk = 24,
                               .dv = 20,
                               .cycle = true,
                               .scale = 1,
                               .eps = 1e-6f,
                               .at = at(r)};
    return r->o->b->state_delta(r->o->d, &a);
}

static int norm_gate(const struct run *r)
{
    struct op_gated_norm a = {.dst = cols(r->dst, 0, 60),
                              .x = cols(r->in, 0, 60),
                              .gate = cols(r->in, 80, 60),
                              .w = cols(r->p, 0, 20),
                              .group = 20,
                              .eps = 1e-5f};
    return r->o->b->gated_norm(r->o->d, &a);
}

static int gate_norm(const struct run *r)
{
    struct op_gated_norm a = {.dst = cols(r->dst, 0, 60),
                              .x = cols(r->in, 0, 60),
                              .gate = cols(r->in, 80, 60),
                              .w = cols(r->p, 0, 60),
                              .group = 30,
                              .gate_first = true,
                              .act = GATE_SIGMOID,
                              .eps = 1e-5f};
    return r->o->b->gated_norm(r->o->d, &a);
}

static int gate_alone(const struct run *r)
{
    struct op_gated_norm a = {
        .dst = cols(r->dst, 0, 60), .x = cols(r->in, 0, 60), .gate = cols(r->in, 80, 60)};
    return r->o->b->gated_norm(r->o->d, &a);
}

static const struct kase kases[] = {
    {"conv", 37, conv, 1e-11},
    {"conv, gates", 74, conv_gates, 1e-11},
    {"shift", 111, shift, 1e-12},
    {"wkv", 37, wkv, 1e-11},
    {"scan", 21, scan_wide, 1e-10},
    {"scan, heads", 30, scan_heads, 1e-10},
    {"delta", 80, delta, 1e-10},
    {"delta, wide", 80, delta_wide, 1e-10},
    {"norm, gate", 60, norm_gate, 1e-11},
    {"gate, norm", 60, gate_norm, 1e-11},
    {"gate", 60, gate_alone, 1e-11},
};

static float data[2][ROWS * WIDTH], params[PARAMS];

/* What a step computes: seq_n[s] rows of data[s] from row seq_from[s] on. Rows of sequence 1 go to out. */
struct part {
    int from[2], n[2];
    int32_t src[2], dst[2];
};

static void step(const struct ot_back *o, struct dev_state *pool, const struct kase *k,
                 const struct part *p, float *out)
{
    static float in[2 * ROWS * WIDTH], got[2 * ROWS * OUT];
    static int32_t tok[2 * ROWS], pos[2 * ROWS], table[8];
    int n = p->n[0] + p->n[1], first = p->n[0];
    int32_t start[] = {0, p->n[0], n};
    struct step_meta m = {.n_row = n,
                          .n_seq = 2,
                          .tok = tok,
                          .pos = pos,
                          .seq_start = start,
                          .block_table = table,
                          .block_stride = 4,
                          .state_src = p->src,
                          .state_dst = p->dst};
    for (int s = 0; s < 2; s++)
        memcpy(in + (size_t)(s ? first : 0) * WIDTH, data[s] + (size_t)p->from[s] * WIDTH,
               (size_t)p->n[s] * WIDTH * sizeof *in);
    struct run r = {.o = o, .pool = pool};
    memset(got, 0, sizeof got);
    r.in = ot_tensor(o, n, WIDTH, in);
    r.dst = ot_tensor(o, n, OUT, got);
    r.p = ot_tensor(o, 1, PARAMS, params);
    assert_int_equal(o->b->step_begin(o->d, &m), 0);
    if (k->op(&r))
        fail_msg("%s: %s: refused", o->name, k->name);
    ot_take(o, r.in, NULL);
    ot_take(o, r.p, NULL);
    ot_take(o, r.dst, got);
    for (int i = first; i < n; i++)
        memcpy(out + (size_t)(p->from[1] + i - first) * OUT, got + (size_t)i * OUT,
               OUT * sizeof *out);
}

static struct dev_state *pool_open(const struct ot_back *o)
{
    struct dev_state *pool = NULL;
    struct state_desc d = {.n_slot = SLOTS, .n_layer = 2, .n = FLOATS};
    struct err e = {0};
    assert_int_equal(o->b->state_open(o->d, &pool, &d, &e), 0);
    return pool;
}

static void test_ops(void **st)
{
    (void)st;
    static float want[ROWS * OUT], whole[ROWS * OUT], cut[ROWS * OUT];
    static const struct part all = {.n = {0, ROWS}, .src = {-1, -1}, .dst = {1, 0}};
    static const struct part cuts[] = {
        {.from = {0, 0}, .n = {2, 7}, .src = {-1, -1}, .dst = {4, 1}},
        {.from = {2, 7}, .n = {1, 1}, .src = {4, 1}, .dst = {4, 2}},
        {.from = {3, 8}, .n = {9, ROWS - 8}, .src = {4, 2}, .dst = {3, 2}},
    };
    struct dev_state *truth = pool_open(&ot_backs[0]);
    ot_fill(data[0], ROWS * WIDTH, 1);
    ot_fill(data[1], ROWS * WIDTH, 1);
    ot_fill(params, PARAMS, 1);
    for (int i = 1024; i < PARAMS; i++) /* decays */
        params[i] = -fabsf(params[i]) - 0.05f;
    for (int b = 0; b < ot_n; b++) {
        const struct ot_back *o = &ot_backs[b];
        struct dev_state *pool = pool_open(o);
        for (size_t k = 0; k < sizeof kases / sizeof *kases; k++) {
            step(&ot_backs[0], truth, &kases[k], &all, want);
            step(o, pool, &kases[k], &all, whole);
            ot_near(o, kases[k].name, whole, want, ROWS * OUT, kases[k].bound);
            for (size_t i = 0; i < 3; i++)
                step(o, pool, &kases[k], &cuts[i], cut);
            ot_same(o, kases[k].name, cut, whole, ROWS * OUT);
        }
        o->b->state_close(o->d, pool);
    }
    ot_backs[0].b->state_close(ot_backs[0].d, truth);
}

/* What a forward may get wrong is refused. */
static void test_refused(void **st)
{
    (void)st;
    static int32_t tok[2], pos[2], start[] = {0, 2}, table[4], src[] = {-1}, dst[] = {0};
    for (int b = 0; b < ot_n; b++) {
        const struct ot_back *o = &ot_backs[b];
        struct err e = {0};
        struct dev_state *pool = pool_open(o), *none = NULL;
        struct step_meta m = {.n_row = 2,
                              .n_seq = 1,
                              .tok = tok,
                              .pos = pos,
                              .seq_start = start,
                              .block_table = table,
                              .block_stride = 4};
        struct run r = {.o = o, .pool = pool};
        assert_int_equal(o->b->state_open(o->d, &none, &(struct state_desc){.n_slot = 1}, &e),
                         ERR_INVAL);
        r.in = ot_tensor(o, 2, WIDTH, data[0]);
        r.dst = ot_tensor(o, 2, OUT, NULL);
        r.p = ot_tensor(o, 1, PARAMS, params);
        assert_int_equal(o->b->step_begin(o->d, &m), 0);
        assert_int_equal(conv(&r), ERR_INVAL); /* a step without slots */
        m.state_src = src;
        m.state_dst = dst;
        dst[0] = SLOTS;
        assert_int_equal(o->b->step_begin(o->d, &m), 0);
        assert_int_equal(scan_heads(&r), ERR_INVAL);
        dst[0] = 0;
        r.pool = NULL;
        assert_int_equal(delta(&r), ERR_INVAL);
        r.pool = pool;
        r.in.shape[0] = 1;
        assert_int_equal(wkv(&r), ERR_INVAL);
        assert_int_equal(shift(&r), ERR_INVAL);
        r.in.shape[0] = 2;
        ot_take(o, r.in, NULL);
        ot_take(o, r.dst, NULL);
        ot_take(o, r.p, NULL);
        o->b->state_close(o->d, pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ops), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, ot_open, ot_close);
}
