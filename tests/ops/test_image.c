/* Image ops: every CPU table against the reference on ragged shapes, and the same bits for a map alone and between
 * others. */
#include "tests/ops/ops_test.h"

/* Maps of three sizes and a text layout; layout 4, 5: maps 1 and text 1 alone. */
static const int32_t h0[] = {5, 8, 1}, w0[] = {7, 8, 3}, start0[] = {0, 35, 99, 102};
static const int32_t h1[] = {3, 4, 1}, w1[] = {4, 4, 2}, start1[] = {0, 12, 28, 30};
static const int32_t h2[] = {10, 16, 2}, w2[] = {14, 16, 6}, start2[] = {0, 140, 396, 408};
static const int32_t text[] = {0, 77, 78, 400};
static const int32_t one_h[] = {8}, one_w[] = {8}, one_start[] = {0, 64}, one_text[] = {0, 1};
static const int32_t half_h[] = {4}, half_w[] = {4}, half_start[] = {0, 16};
static const int32_t twice_h[] = {16}, twice_w[] = {16}, twice_start[] = {0, 256};

static const struct image_meta all = {
    4, {{3, start0, h0, w0}, {3, start1, h1, w1}, {3, start2, h2, w2}, {3, text, NULL, NULL}}};
/* the second map and text alone */
static const struct image_meta alone = {4,
                                        {{1, one_start, one_h, one_w},
                                         {1, half_start, half_h, half_w},
                                         {1, twice_start, twice_h, twice_w},
                                         {1, one_text, NULL, NULL}}};

#define N_MAX (408 * 96)
static float a_data[N_MAX], b_data[N_MAX], c_data[N_MAX], v_data[4096], want[N_MAX], got[N_MAX],
    solo[N_MAX];

static struct dev_weight *weight(const struct ot_back *x, int64_t n_in, int64_t n_out,
                                 const float *data)
{
    struct dev_weight *w = NULL;
    struct weight_desc d = {
        .name = "w", .n_in = n_in, .n_part = 1, .part = {{QF_F32, data, n_out}}, .rows = true};
    assert_int_equal(x->b->weight_open(x->d, &w, &d, NULL), 0);
    return w;
}

static struct tensor vec(const struct ot_back *x, int64_t n, const float *data)
{
    return ot_tensor(x, 1, n, data);
}

static void drop(const struct ot_back *x, struct tensor t)
{
    if (t.buf)
        x->b->buf_free(x->d, t.buf);
}

/* A backend may have none of the image ops, which is said once. */
static bool has_image_ops(const struct ot_back *x)
{
    static bool told;
    if (!x->b->image_begin && !told)
        print_message("SKIP %s: the backend has no image ops\n", x->name);
    told = told || !x->b->image_begin;
    return x->b->image_begin != NULL;
}

/* fn runs an op on back x with the given meta, data from row `row` on, and leaves the result in dst. */
typedef int64_t op_fn(const struct ot_back *x, const struct image_meta *m, int variant,
                      bool is_alone, float *dst);

static void sweep(const char *name, op_fn *fn, int n_variant, int64_t solo_at(int), double bound)
{
    for (int v = 0; v < n_variant; v++) {
        char what[64];
        snprintf(what, sizeof what, "%s variant %d", name, v);
        int64_t n = fn(&ot_backs[0], &all, v, false, want);
        for (int i = 1; i < ot_n; i++) {
            if (!has_image_ops(&ot_backs[i]))
                continue;
            assert_int_equal(fn(&ot_backs[i], &all, v, false, got), n);
            ot_near(&ot_backs[i], what, got, want, (size_t)n, bound);
            int64_t m = fn(&ot_backs[i], &alone, v, true, solo);
            ot_same(&ot_backs[i], what, solo, got + solo_at(v), (size_t)m);
        }
    }
}

/* ---- convolution: k, stride, pad, up, in, out ---- */
static const struct conv_case {
    int k, stride, pad, up, in, out, c_in, c_out;
} convs[] = {{3, 1, 1, 0, 0, 0, 12, 20}, {1, 1, 0, 0, 0, 0, 33, 7}, {3, 2, 1, 0, 0, 1, 8, 16},
             {3, 2, 0, 0, 0, 1, 16, 9},  {3, 1, 1, 1, 0, 2, 5, 24}, {1, 2, 0, 0, 0, 1, 4, 4},
             {3, 1, 1, 1, 1, 0, 6, 10}};
#define N_CONV 7

static int64_t conv_solo(int v)
{
    return (int64_t)all.layout[convs[v % N_CONV].out].start[1] * convs[v % N_CONV].c_out;
}

/* Variants from N_CONV on: bias, per-map vector and a residual that is the destination itself. */
static int64_t run_conv(const struct ot_back *x, const struct image_meta *m, int variant,
                        bool is_alone, float *dst)
{
    const struct conv_case *c = &convs[variant % N_CONV];
    const struct image_layout *in = &m->layout[c->in], *out = &m->layout[c->out];
    int64_t rows = in->start[in->n_seg], n_out = out->start[out->n_seg];
    int64_t skip = is_alone ? (int64_t)all.layout[c->in].start[1] * c->c_in : 0;
    int64_t skip_out = is_alone ? (int64_t)all.layout[c->out].start[1] * c->c_out : 0;
    bool extra = variant >= N_CONV;
    struct dev_weight *w = weight(x, (int64_t)c->k * c->k * c->c_in, c->c_out, b_data);
    struct op_conv op = {.w = w,
                         .in = c->in,
                         .out = c->out,
                         .k = c->k,
                         .stride = c->stride,
                         .pad = c->pad,
                         .up = c->up};
    op.src = ot_tensor(x, rows, c->c_in, a_data + skip);
    op.dst = ot_tensor(x, n_out, c->c_out, extra ? c_data + skip_out : NULL);
    if (extra) {
        op.bias = vec(x, c->c_out, v_data);
        op.vec = ot_tensor(x, in->n_seg, c->c_out, v_data + 100 + (is_alone ? c->c_out : 0));
        op.add = op.dst;
    }
    assert_int_equal(x->b->image_begin(x->d, m), 0);
    assert_int_equal(x->b->conv(x->d, &op), 0);
    ot_take(x, op.dst, dst);
    drop(x, op.src);
    drop(x, op.bias);
    drop(x, op.vec);
    x->b->weight_close(x->d, w);
    return n_out * c->c_out;
}

static void test_conv(void **st)
{
    (void)st;
    sweep("conv", run_conv, 2 * N_CONV, conv_solo, 1e-10);
}

/* ---- norms: variants pick groups, activation and the optional vectors ---- */
#define C 24
static int64_t rows_solo(int v)
{
    (void)v;
    return 35 * C;
}

static int64_t run_group(const struct ot_back *x, const struct image_meta *m, int variant,
                         bool is_alone, float *dst)
{
    int64_t rows = m->layout[0].start[m->layout[0].n_seg];
    struct op_group_norm op = {
        .groups = (int[]){1, 2, 8, 24}[variant % 4], .eps = 1e-5f, .layout = 0};
    op.act = (enum image_act)(variant % 6);
    op.x = ot_tensor(x, rows, C, a_data + (is_alone ? 35 * C : 0));
    op.dst = ot_tensor(x, rows, C, NULL);
    op.w = vec(x, C, v_data);
    op.b = vec(x, C, v_data + 64);
    assert_int_equal(x->b->image_begin(x->d, m), 0);
    assert_int_equal(x->b->group_norm(x->d, &op), 0);
    ot_take(x, op.dst, dst);
    drop(x, op.x);
    drop(x, op.w);
    drop(x, op.b);
    return rows * C;
}

static int64_t run_layer(const struct ot_back *x, const struct image_meta *m, int variant,
                         bool is_alone, float *dst)
{
    int64_t rows = m->layout[0].start[m->layout[0].n_seg], n_seg = m->layout[0].n_seg;
    struct op_layer_norm op = {.eps = 1e-6f, .layout = variant & 1 ? 0 : -1, .rms = variant & 4};
    op.x = ot_tensor(x, rows, C, a_data + (is_alone ? 35 * C : 0));
    op.dst = ot_tensor(x, rows, C, NULL);
    if (variant & 2) {
        op.w = vec(x, C, v_data);
        op.b = vec(x, C, v_data + 64);
    }
    if (variant & 1) {
        op.scale = ot_tensor(x, n_seg, C, v_data + 200 + (is_alone ? C : 0));
        op.shift = ot_tensor(x, n_seg, C, v_data + 400 + (is_alone ? C : 0));
    }
    assert_int_equal(x->b->image_begin(x->d, m), 0);
    assert_int_equal(x->b->layer_norm(x->d, &op), 0);
    ot_take(x, op.dst, dst);
    struct tensor used[] = {op.x, op.w, op.b, op.scale, op.shift};
    for (int i = 0; i < 5; i++)
        drop(x, used[i]);
    return rows * C;
}

static void test_norms(void **st)
{
    (void)st;
    sweep("group_norm", run_group, 12, rows_solo, 1e-10);
    sweep("layer_norm", run_layer, 8, rows_solo, 1e-10);
}

/* ---- attention: 4 heads over 2 KV heads of 12; maps to maps, maps to text, causal text, with a bias, inside windows ---- */
#define HD 12
static int64_t attend_solo(int v)
{
    return (int64_t)(v == 2 || v == 5 ? 77 : 35) * 4 * HD;
}

static int64_t run_attend(const struct ot_back *x, const struct image_meta *m, int variant,
                          bool is_alone, float *dst)
{
    int q = variant == 2 || variant == 5 ? 3 : 0;
    int kv = variant == 0 || variant == 3 || variant == 4 ? 0 : 3;
    const struct image_layout *ql = &m->layout[q], *kl = &m->layout[kv];
    int64_t nq = ql->start[ql->n_seg], nk = kl->start[kl->n_seg];
    struct op_attend op = {
        .n_head = 4, .n_kv_head = 2, .head_dim = HD, .scale = 0.3f, .causal = variant == 2};
    op.window = variant == 4 ? 3 : variant == 5 ? 20 : 0;
    op.q_layout = q;
    op.kv_layout = kv;
    op.q = ot_tensor(x, nq, 4 * HD, a_data + (is_alone ? all.layout[q].start[1] * 4 * HD : 0));
    struct tensor k =
        ot_tensor(x, nk, 4 * HD, b_data + (is_alone ? all.layout[kv].start[1] * 4 * HD : 0));
    op.k = tensor_cols(k, 0, 2 * HD);
    op.v = tensor_cols(k, 2 * HD, 2 * HD);
    op.dst = ot_tensor(x, nq, 4 * HD, NULL);
    if (variant == 3) {
        op.bias = ot_tensor(x, 4, 64 * 64, c_data);
        op.bias_cols = 64;
    }
    assert_int_equal(x->b->image_begin(x->d, m), 0);
    assert_int_equal(x->b->attend(x->d, &op), 0);
    ot_take(x, op.dst, dst);
    drop(x, op.q);
    drop(x, k);
    drop(x, op.bias);
    return nq * 4 * HD;
}

static void test_attend(void **st)
{
    (void)st;
    sweep("attend", run_attend, 6, attend_solo, 1e-10);
}

/* ---- rows ---- */
static int64_t run_rows(const struct ot_back *x, const struct image_meta *m, int variant,
                        bool is_alone, float *dst)
{
    int64_t rows = m->layout[0].start[m->layout[0].n_seg], n_seg = m->layout[0].n_seg,
            skip = is_alone ? 35 * C : 0;
    struct tensor t = ot_tensor(x, rows, C, a_data + skip), u = {0}, v = {0}, w = {0};
    assert_int_equal(x->b->image_begin(x->d, m), 0);
    if (variant < 6) {
        struct op_act op = {.dst = t, .x = t, .act = (enum image_act)variant};
        assert_int_equal(x->b->act(x->d, &op), 0);
    } else if (variant < 8) {
        u = ot_tensor(x, rows, C, b_data + skip);
        v = variant == 7 ? ot_tensor(x, n_seg, C, v_data + (is_alone ? C : 0)) : v;
        struct op_gate_add op = {
            .x = t, .y = u, .gate = v, .factor = 0.7f, .layout = variant == 7 ? 0 : -1};
        assert_int_equal(x->b->gate_add(x->d, &op), 0);
    } else {
        u = ot_tensor(x, rows, 4, c_data + (is_alone ? 35 * 4 : 0));
        v = ot_tensor(x, rows, 4, c_data + 1000 + (is_alone ? 35 * 4 : 0));
        w = variant == 10 ? w : vec(x, 8, v_data);
        struct op_rotate op = {
            .x = t, .n_head = 3, .head_dim = 8, .norm = w, .eps = 1e-6f, .cos = u, .sin = v};
        op.style = variant == 8 ? ROPE_NORM : ROPE_NEOX;
        assert_int_equal(x->b->rotate(x->d, &op), 0);
    }
    ot_take(x, t, dst);
    drop(x, u);
    drop(x, v);
    drop(x, w);
    return rows * C;
}

static void test_rows(void **st)
{
    (void)st;
    sweep("rows", run_rows, 11, rows_solo, 1e-10);
}

static void test_lookup(void **st)
{
    (void)st;
    const int32_t ids[] = {3, 0, 6, 6}, pos[] = {0, 1, 2, 3}, bad[] = {3, 7, 0, 0};
    for (int i = 0; i < ot_n; i++) {
        const struct ot_back *x = &ot_backs[i];
        if (!x->b->image_begin)
            continue;
        if (!has_image_ops(x))
            continue;
        struct dev_weight *w = weight(x, C, 7, a_data), *p = weight(x, C, 4, b_data);
        struct tensor t = ot_tensor(x, 4, C, NULL),
                      n = {.dtype = DT_I32, .n_dim = 1, .shape = {4}, .stride = {1}};
        struct tensor q;
        assert_int_equal(x->b->buf_alloc(x->d, 32, &n.buf), 0);
        q = n;
        q.off = 16;
        assert_int_equal(x->b->write(x->d, n.buf, 0, ids, 16), 0);
        assert_int_equal(x->b->write(x->d, n.buf, 16, pos, 16), 0);
        struct op_lookup op = {.dst = t, .ids = n, .pos = q, .w = w, .w2 = p};
        assert_int_equal(x->b->lookup(x->d, &op), 0);
        assert_int_equal(x->b->write(x->d, n.buf, 0, bad, 16), 0);
        if (x->b == &ref_backend || x->b == &cpu_backend)
            assert_int_equal(x->b->lookup(x->d, &op), ERR_INVAL);
        ot_take(x, t, got);
        assert_true(got[3 * C] == a_data[6 * C] + b_data[3 * C] &&
                    got[2 * C + 1] == a_data[6 * C + 1] + b_data[2 * C + 1]);
        x->b->buf_free(x->d, n.buf);
        x->b->weight_close(x->d, w);
        x->b->weight_close(x->d, p);
    }
}

static void test_refused(void **st)
{
    (void)st;
    const int32_t bad_start[] = {0, 5, 4}, bad_h[] = {2}, bad_w[] = {3}, five[] = {0, 5};
    struct image_meta m = {1, {{2, bad_start, NULL, NULL}}};
    for (int i = 0; i < ot_n; i++) {
        const struct ot_back *x = &ot_backs[i];
        if (!x->b->image_begin)
            continue;
        if (!has_image_ops(x))
            continue;
        assert_int_equal(x->b->image_begin(x->d, &m), ERR_INVAL);
        assert_int_equal(
            x->b->image_begin(x->d, &(struct image_meta){1, {{1, five, bad_h, bad_w}}}), ERR_INVAL);
        assert_int_equal(x->b->image_begin(x->d, &all), 0);
        struct tensor t = ot_tensor(x, 102, C, a_data), v = vec(x, C, v_data);
        struct op_group_norm g = {.dst = t, .x = t, .w = v, .b = v, .groups = 5, .layout = 0};
        assert_int_equal(x->b->group_norm(x->d, &g), ERR_INVAL);
        g.groups = 4;
        g.layout = 4;
        assert_int_equal(x->b->group_norm(x->d, &g), ERR_INVAL);
        g.layout = 1;
        assert_int_equal(x->b->group_norm(x->d, &g), ERR_INVAL);
        drop(x, t);
        drop(x, v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv), cmocka_unit_test(test_norms),  cmocka_unit_test(test_attend),
        cmocka_unit_test(test_rows), cmocka_unit_test(test_lookup), cmocka_unit_test(test_refused)};
    ot_fill(a_data, N_MAX, 1);
    ot_fill(b_data, N_MAX, 1);
    ot_fill(c_data, N_MAX, 1);
    ot_fill(v_data, 4096, 1);
    return cmocka_run_group_tests(tests, ot_open, ot_close);
}
