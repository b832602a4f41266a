/* op_rope_kv and op_attn: each table against ref over head sizes, grouping, lengths, windows and KV dtypes;
 * equal bits however the rows are cut into steps, mixed with others, or spread over threads. */
#include "tests/ops/ops_test.h"

/* One model shape and the sequences that run through it. */
struct shape {
    int n_head, n_kv_head, head_dim, n_rot;
    enum rope_style style;
    enum dtype dt;
    int window;
    float softcap;
    bool qk_norm, sinks, alibi;
};

#define MAX_SEQ 3
/* Rows of sequences, and how they are cut into steps. */
struct plan {
    int n_seq, len[MAX_SEQ];
    int chunk;    /* tokens of a sequence in a step */
    bool reverse; /* sequences in the other order, blocks at other numbers */
    bool alone;   /* one sequence a step */
};

struct model {
    const struct ot_back *x;
    const struct shape *s;
    struct dev_kv *kv;
    struct tensor freq, qn, kn, sinks, alibi;
    int n_block, stride;
    int32_t *table; /* [MAX_SEQ, stride] */
};

/* Backends of the default precision: what they multiply in. */
static bool by_tiles[OT_MAX], by_words[OT_MAX];

static void add_default(int isa, bool *is)
{
    ot_precision = PRECISION_DEFAULT;
    for (int threads = 1; threads <= 3; threads++) {
        ot_add(&cpu_backend, cpu_isas[isa].name, threads);
        is[ot_n - 1] = true;
    }
}

/* Behind all others: the default precision where the processor has tiles, or multiplies words, with 1, 2 and 3 threads. */
static int attn_open(void **st)
{
    ot_open(st);
    const int words = CPU_N_ISA - 2, tiles = CPU_N_ISA - 1;
    if (cpu_isa_usable(words) && __builtin_cpu_supports("avx512vnni"))
        add_default(words, by_words);
    else
        print_message("SKIP products of words: this processor has none\n");
    if (cpu_isa_usable(tiles))
        add_default(tiles, by_tiles);
    else
        print_message("SKIP tile products: this processor has none\n");
    return 0;
}

static void model_open(struct model *m, const struct ot_back *x, const struct shape *s,
                       const struct plan *p)
{
    struct err e = {0};
    int longest = 1;
    for (int i = 0; i < p->n_seq; i++)
        longest = p->len[i] > longest ? p->len[i] : longest;
    *m = (struct model){.x = x, .s = s, .stride = (longest + 15) / 16};
    m->n_block = 1 + MAX_SEQ * m->stride;
    struct kv_desc k = {.n_layer = 2,
                        .n_kv_head = s->n_kv_head,
                        .head_dim = s->head_dim,
                        .n_block = m->n_block,
                        .dtype = s->dt};
    assert_int_equal(x->b->kv_open(x->d, &m->kv, &k, &e), 0);
    m->table = malloc(sizeof(int32_t) * (size_t)(MAX_SEQ * m->stride));
    for (int i = 0; i < MAX_SEQ * m->stride; i++) /* scattered, a permutation */
        m->table[i] = 1 + (p->reverse ? MAX_SEQ * m->stride - 1 - i : i);
    float f[256], w[512];
    for (int i = 0; i < s->n_rot / 2; i++)
        f[i] = powf(10000, -2.0f * (float)i / (float)s->n_rot);
    m->freq = ot_tensor(x, 1, s->n_rot / 2, f);
    for (int i = 0; i < s->head_dim; i++)
        w[i] = 1 + 0.01f * (float)(i % 7);
    m->qn = s->qk_norm ? ot_tensor(x, 1, s->head_dim, w) : (struct tensor){0};
    m->kn = s->qk_norm ? ot_tensor(x, 1, s->head_dim, w) : (struct tensor){0};
    for (int i = 0; i < s->n_head; i++) /* from nothing at all to more than every score */
        w[i] = i == 0 ? -INFINITY : i == 1 ? 60 : (float)i - 3;
    m->sinks = s->sinks ? ot_tensor(x, 1, s->n_head, w) : (struct tensor){0};
    for (int i = 0; i < s->n_head; i++)
        w[i] = powf(2, -1 - (float)i);
    m->alibi = s->alibi ? ot_tensor(x, 1, s->n_head, w) : (struct tensor){0};
}

static void model_close(struct model *m)
{
    ot_take(m->x, m->freq, NULL);
    if (m->s->qk_norm) {
        ot_take(m->x, m->qn, NULL);
        ot_take(m->x, m->kn, NULL);
    }
    if (m->s->sinks)
        ot_take(m->x, m->sinks, NULL);
    if (m->s->alibi)
        ot_take(m->x, m->alibi, NULL);
    m->x->b->kv_close(m->x->d, m->kv);
    free(m->table);
}

/* Rows of one step. */
struct step {
    int32_t tok[4096], pos[4096], start[MAX_SEQ + 1], table[4096];
    int64_t at[4096]; /* row of the whole data that each row is */
    int n_row, n_seq;
};

static int layer_ops(struct model *m, struct tensor qkv, struct tensor dst)
{
    const struct shape *s = m->s;
    struct op_rope_kv r = {.qkv = qkv,
                           .n_head = s->n_head,
                           .n_kv_head = s->n_kv_head,
                           .head_dim = s->head_dim,
                           .n_rot = s->n_rot,
                           .style = s->style,
                           .inv_freq = m->freq,
                           .attn_factor = 1,
                           .q_norm = m->qn,
                           .k_norm = m->kn,
                           .v_norm = m->kn,
                           .norm_eps = 1e-6f,
                           .kv = m->kv,
                           .layer = 1};
    int rc = m->x->b->rope_kv(m->x->d, &r);
    if (rc)
        return rc;
    struct op_attn a = {.dst = dst,
                        .qkv = qkv,
                        .n_head = s->n_head,
                        .n_kv_head = s->n_kv_head,
                        .head_dim = s->head_dim,
                        .scale = 1 / sqrtf((float)s->head_dim),
                        .window = s->window,
                        .softcap = s->softcap,
                        .sinks = m->sinks,
                        .alibi = m->alibi,
                        .kv = m->kv,
                        .layer = 1};
    return m->x->b->attn(m->x->d, &a);
}

static void step_run(struct model *m, struct step *t, const float *data, float *out)
{
    const struct ot_back *x = m->x;
    int64_t hd = m->s->head_dim, cols = (m->s->n_head + 2 * m->s->n_kv_head) * hd;
    int64_t oc = m->s->n_head * hd;
    float *in = malloc(sizeof(float) * (size_t)(t->n_row * cols));
    float *o = malloc(sizeof(float) * (size_t)(t->n_row * oc));
    for (int i = 0; i < t->n_row; i++)
        memcpy(in + i * cols, data + t->at[i] * cols, sizeof(float) * (size_t)cols);
    struct step_meta meta = {.n_row = t->n_row,
                             .n_seq = t->n_seq,
                             .tok = t->tok,
                             .pos = t->pos,
                             .seq_start = t->start,
                             .block_table = t->table,
                             .block_stride = m->stride};
    assert_int_equal(x->b->step_begin(x->d, &meta), 0);
    struct tensor qkv = ot_tensor(x, t->n_row, cols, in), dst = ot_tensor(x, t->n_row, oc, NULL);
    assert_int_equal(layer_ops(m, qkv, dst), 0);
    ot_take(x, dst, o);
    ot_take(x, qkv, NULL);
    for (int i = 0; i < t->n_row; i++)
        memcpy(out + t->at[i] * oc, o + i * oc, sizeof(float) * (size_t)oc);
    free(in);
    free(o);
}

/* All tokens of all sequences, in steps as the plan says; out rows in the data's order. */
static void run(const struct ot_back *x, const struct shape *s, const struct plan *p,
                const float *data, float *out)
{
    struct model m;
    static struct step t;
    int done[MAX_SEQ] = {0}, first[MAX_SEQ], total = 0;
    for (int i = 0; i < p->n_seq; total += p->len[i++])
        first[i] = total;
    model_open(&m, x, s, p);
    for (int left = total; left > 0; left -= t.n_row) {
        t.n_row = t.n_seq = 0;
        for (int k = 0; k < p->n_seq && !(p->alone && t.n_row); k++) {
            int q = p->reverse ? p->n_seq - 1 - k : k, n = p->len[q] - done[q];
            n = n > p->chunk ? p->chunk : n;
            if (n == 0)
                continue;
            t.start[t.n_seq] = t.n_row;
            memcpy(t.table + t.n_seq++ * m.stride, m.table + q * m.stride,
                   sizeof(int32_t) * (size_t)m.stride);
            for (int i = 0; i < n; i++, t.n_row++) {
                t.pos[t.n_row] = done[q];
                t.at[t.n_row] = first[q] + done[q]++;
            }
        }
        t.start[t.n_seq] = t.n_row;
        step_run(&m, &t, data, out);
    }
    model_close(&m);
}

static size_t n_rows(const struct plan *p)
{
    size_t n = 0;
    for (int i = 0; i < p->n_seq; i++)
        n += (size_t)p->len[i];
    return n;
}

static float *new_data(const struct shape *s, size_t rows)
{
    size_t n = rows * (size_t)((s->n_head + 2 * s->n_kv_head) * s->head_dim);
    float *p = malloc(n * sizeof *p);
    ot_fill(p, n, 2);
    return p;
}

static const struct shape shapes[] = {
    {3, 3, 32, 32, ROPE_NORM, DT_F32, 0, 0, false, false, false},
    {9, 3, 64, 64, ROPE_NEOX, DT_F16, 0, 0, false, true, false},
    {8, 1, 128, 128, ROPE_NEOX, DT_BF16, 0, 0, true, false, false},
    {4, 2, 80, 40, ROPE_NORM, DT_F16, 0, 0, false, false, false},
    {2, 1, 256, 256, ROPE_NEOX, DT_F32, 50, 30, false, true, false},
    {6, 2, 64, 64, ROPE_NEOX, DT_BF16, 100, 0, false, false, false},
    {2, 2, 20, 10, ROPE_NEOX, DT_F16, 7, 0, true, false, false},
    {4, 4, 4, 4, ROPE_NONE, DT_F32, 0, 0, false, false, false},
    {8, 2, 64, 64, ROPE_NEOX, DT_F32, 128, 0, false, true, false},
    {6, 3, 32, 2, ROPE_NONE, DT_F16, 0, 0, false, false, true},
    {4, 2, 64, 64, ROPE_NORM, DT_BF16, -48, 0, true, false, false}, /* chunks */
    {16, 1, 96, 96, ROPE_NEOX, DT_F16, 70, 30, false, true, false},
    {2, 1, 512, 128, ROPE_NORM, DT_F16, -300, 0, false, false, true},
    {4, 2, 16, 16, ROPE_NORM, DT_F32, -100, 0, false, false, false},
    {9, 3, 64, 64, ROPE_NEOX, DT_I8, 0, 0, false, false, false},
    {8, 1, 128, 128, ROPE_NEOX, DT_F8, 0, 0, true, true, false},
    {4, 2, 20, 10, ROPE_NORM, DT_F8, 100, 30, false, false, true},
    {2, 2, 5, 4, ROPE_NEOX, DT_I8, 7, 0, false, true, false},
};
#define N_SHAPE (sizeof shapes / sizeof *shapes)

static void test_against_ref(void **st)
{
    (void)st;
    static const struct plan plans[] = {
        {1, {1}, 512, false, false},
        {3, {1, 17, 40}, 512, false, false},
        {2, {150, 65}, 512, false, false},
        {1, {310}, 512, false, false},
    };
    /* a value that is rounded for the KV may round the other way after rope in f32 */
    static const double bounds[] = {
        [DT_F32] = 1e-11, [DT_F16] = 1e-8, [DT_BF16] = 1e-6, [DT_I8] = 1e-6, [DT_F8] = 1e-5};
    for (size_t i = 0; i < N_SHAPE; i++)
        for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
            size_t rows = n_rows(&plans[k]);
            size_t n = rows * (size_t)(shapes[i].n_head * shapes[i].head_dim);
            float *data = new_data(&shapes[i], rows), *want = malloc(n * sizeof *want);
            float *got = malloc(n * sizeof *got);
            run(&ot_backs[0], &shapes[i], &plans[k], data, want);
            for (int b = 1; b < ot_n; b++) {
                if (ot_leave_out(b, i + k) || (ot_emulated(b) && k > 1))
                    continue;
                if (by_words[b] && shapes[i].dt == DT_F16)
                    continue; /* see test_words */
                run(&ot_backs[b], &shapes[i], &plans[k], data, got);
                double bound = bounds[shapes[i].dt];
                if (by_tiles[b] && shapes[i].dt != DT_F32)
                    bound = 1e-5; /* weights and V in bf16 */
                ot_near(&ot_backs[b], "attention", got, want, n, bound);
            }
            free(data);
            free(want);
            free(got);
        }
}

/* Words are nearer to K and V as they came than halves are. */
static void test_words(void **st)
{
    (void)st;
    static const struct plan plans[] = {{3, {1, 17, 40}, 512, false, false},
                                        {2, {310, 65}, 512, false, false}};
    for (size_t i = 0; i < N_SHAPE; i++)
        for (size_t k = 0; k < 2 && shapes[i].dt == DT_F16; k++) {
            struct shape exact = shapes[i];
            exact.dt = DT_F32;
            const size_t rows = n_rows(&plans[k]);
            const size_t n = rows * (size_t)(exact.n_head * exact.head_dim);
            float *data = new_data(&exact, rows), *want = malloc(n * sizeof *want);
            float *got = malloc(n * sizeof *got);
            run(&ot_backs[0], &exact, &plans[k], data, want);
            run(&ot_backs[0], &shapes[i], &plans[k], data, got);
            const double half = ot_nmse(got, want, n);
            for (int b = 1; b < ot_n; b++) {
                if (!by_words[b])
                    continue;
                run(&ot_backs[b], &shapes[i], &plans[k], data, got);
                ot_near(&ot_backs[b], "attention in words", got, want, n, 0.6 * half);
            }
            free(data);
            free(want);
            free(got);
        }
}

/* Sums of products as large as they may be, next to nothing and a lot beside each other. */
static void test_extremes(void **st)
{
    (void)st;
    static const float fill[] = {1, -1, 1e-20f, 60000, 0};
    const struct plan p = {1, {90}, 512, false, false};
    for (int hd = 16; hd <= 512; hd *= 2) {
        struct shape s = {2, 1, hd, 2, ROPE_NONE, DT_F32, 0, 0, false, false, false};
        const size_t n = 90 * (size_t)(2 * hd), cols = 4 * (size_t)hd;
        float *data = new_data(&s, 90), *want = malloc(n * sizeof *want);
        float *got = malloc(n * sizeof *got);
        for (size_t i = 0; i < 90 * cols; i++)
            data[i] = fill[i / cols * 7 % 5] * (i % cols / (size_t)hd == 3 ? data[i] : 1);
        run(&ot_backs[0], &s, &p, data, want);
        s.dt = DT_F16;
        for (int b = 1; b < ot_n; b++) {
            if (!by_words[b])
                continue;
            run(&ot_backs[b], &s, &p, data, got);
            ot_near(&ot_backs[b], "extreme words", got, want, n, 1e-8);
        }
        free(data);
        free(want);
        free(got);
    }
}

/* NaN in a token's K, Inf in its V: in all rows that see it, and in no other. */
static void test_not_finite(void **st)
{
    (void)st;
    enum { LEN = 100, AT = 70, COLS = (4 + 2 * 2) * 64, OUT = 4 * 64 };
    const struct shape s = {4, 2, 64, 64, ROPE_NEOX, DT_F16, 20, 0, false, false, false};
    const struct plan p = {1, {LEN}, 512, false, false};
    float *data = new_data(&s, LEN), *clean = malloc(sizeof(float) * LEN * OUT);
    float *got = malloc(sizeof(float) * LEN * OUT);
    for (int b = 1; b < ot_n; b++) {
        if (!by_words[b])
            continue;
        run(&ot_backs[b], &s, &p, data, clean);
        for (int v = 0; v < 2; v++) { /* of KV head 1 */
            float *x = data + AT * COLS + (v ? 7 * 64 : 5 * 64) + 9, was = *x;
            *x = v ? INFINITY : NAN;
            run(&ot_backs[b], &s, &p, data, got);
            *x = was;
            for (int i = 0; i < LEN * OUT; i++) {
                const int row = i / OUT, head = i % OUT / 64;
                const bool sees = row >= AT && row < AT + 20 && head / 2 == 1;
                assert_true(sees ? !isfinite(got[i]) : !memcmp(&got[i], &clean[i], sizeof *got));
            }
        }
    }
    free(data);
    free(clean);
    free(got);
}

static void test_same_bits(void **st)
{
    (void)st;
    static const struct plan plans[] = {
        {3, {600, 33, 270}, 600, false, false}, {3, {600, 33, 270}, 1, false, false},
        {3, {600, 33, 270}, 7, true, false},    {3, {600, 33, 270}, 64, false, true},
        {3, {600, 33, 270}, 512, true, false},
    };
    bool few = false;
#ifdef __SANITIZE_ADDRESS__
    few = true;
    print_message("SKIP all shapes but three: too slow under the sanitizer\n");
#endif
    for (size_t i = 1; i < N_SHAPE; i++) {
        if (few && i > 2 && i != N_SHAPE - 1)
            continue;
        size_t rows = n_rows(&plans[0]), n = rows * (size_t)(shapes[i].n_head * shapes[i].head_dim);
        float *data = new_data(&shapes[i], rows), *want = malloc(n * sizeof *want);
        float *got = malloc(n * sizeof *got);
        for (int b = 1; b < ot_n; b++) {
            if (ot_leave_out(b, i) || (ot_emulated(b) && i > 2 && i + 2 < N_SHAPE))
                continue;
            if (ot_backs[b].threads < 2) /* what more threads must equal */
                run(&ot_backs[b], &shapes[i], &plans[0], data, want);
            bool slow = strcmp(ot_backs[b].isa, "scalar") == 0;
            for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
                if (slow && (k == 0 || (i > 3 && i + 1 < N_SHAPE)))
                    continue;
                if (ot_emulated(b) && (k == 0 || k == 3))
                    continue;
                run(&ot_backs[b], &shapes[i], &plans[k], data, got);
                ot_same(&ot_backs[b], "chunks", got, want, n);
            }
        }
        free(data);
        free(want);
        free(got);
    }
}

/* One layer of 9 heads over 3 KV heads of 64: a prefill of 512, then one row at position 4095. $STEPD_ISA: one
 * table only. */
static void bench(enum dtype dt, const char *name)
{
    enum { LEN = 4096, ROWS = 512, REP = 5 };
    const struct shape s = {9, 3, 64, 64, ROPE_NEOX, dt, 0, 0, false, false, false};
    const struct plan p = {1, {LEN}, LEN, false, false};
    static struct step t;
    const char *isa = getenv("STEPD_ISA");
    const struct kv_desc k = {.n_layer = 1, .n_kv_head = 3, .head_dim = 64, .dtype = dt};
    float *data = new_data(&s, ROWS);
    for (int b = 1; b < ot_n; b++) {
        const struct ot_back *x = &ot_backs[b];
        if (ot_emulated(b) || (isa && (!x->isa || strcmp(x->isa, isa))))
            continue;
        struct model m;
        model_open(&m, x, &s, &p);
        struct tensor qkv = ot_tensor(x, ROWS, 15 * 64, data),
                      dst = ot_tensor(x, ROWS, 9 * 64, NULL);
        memcpy(t.table, m.table, sizeof(int32_t) * (size_t)m.stride);
        double us[2];
        for (int one = 0; one < 2; one++) {
            int n = one ? 1 : ROWS, from = one ? LEN - 1 : 0;
            t.start[1] = n;
            for (int i = 0; i < n; i++)
                t.pos[i] = from + i;
            struct step_meta meta = {.n_row = n,
                                     .n_seq = 1,
                                     .tok = t.tok,
                                     .pos = t.pos,
                                     .seq_start = t.start,
                                     .block_table = t.table,
                                     .block_stride = m.stride};
            qkv.shape[0] = dst.shape[0] = n;
            x->b->step_begin(x->d, &meta);
            assert_int_equal(layer_ops(&m, qkv, dst), 0);
            int64_t t0 = clock_us();
            for (int i = 0; i < REP * (one ? 20 : 1); i++)
                layer_ops(&m, qkv, dst);
            us[one] = (double)(clock_us() - t0) / (REP * (one ? 20 : 1));
        }
        qkv.shape[0] = dst.shape[0] = ROWS;
        printf("%-28s %-4s prefill 512: %8.1f us %6.1f GFLOP/s   decode at 4096: %7.1f us %6.2f "
               "GB/s\n",
               x->name, name, us[0], 4e-3 * 9 * 64 * ROWS * ROWS / 2 / us[0], us[1],
               1e-3 * (double)(x->b->kv_block_bytes(&k) / KV_BLOCK_TOKENS) * LEN / us[1]);
        ot_take(x, qkv, NULL);
        ot_take(x, dst, NULL);
        model_close(&m);
    }
    free(data);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_ref), cmocka_unit_test(test_words),
        cmocka_unit_test(test_extremes),    cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_same_bits),
    };
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        attn_open(NULL);
        bench(DT_F16, "f16");
        bench(DT_I8, "int8");
        bench(DT_F8, "fp8");
        return ot_close(NULL);
    }
    return cmocka_run_group_tests(tests, attn_open, ot_close);
}
