/* Image ops at the default precision: every CPU table and the emulated GPU's two paths against the reference, on data
 * that bf16 holds exactly, so that a product's bound is that of its sums. Head sizes that tensor cores take padded, row
 * and key numbers around their tiles, channels that are no vector; the same bits for a segment alone and between others,
 * but for a GPU that need not (batch_invariant off). */
#include "tests/ops/ops_test.h"

#define SOLO 1 /* the segment that is also computed alone */

/* Segments of rows; [1] alone. */
static const int32_t maps_h[] = {5, 8, 1, 3}, maps_w[] = {7, 8, 3, 9},
                     maps[] = {0, 35, 99, 102, 129};
static const int32_t half_h[] = {3, 4, 1, 2}, half_w[] = {4, 4, 2, 5},
                     halves[] = {0, 12, 28, 30, 40};
static const int32_t twice_h[] = {10, 16, 2, 5}, twice_w[] = {14, 16, 6, 18},
                     twices[] = {0, 140, 396, 408, 498};
static const int32_t rows_q[] = {0, 1, 66, 130, 193};       /* of 1, 65, 64, 63 */
static const int32_t rows_long[] = {0, 300, 365, 429, 492}; /* of 300, 65, 64, 63 */
static const int32_t rows_odd[] = {0, 1, 2, 272, 289};      /* of 1, 1, 270, 17 */
enum { MAPS, HALVES, TWICES, ROWS_Q, ROWS_LONG, ROWS_ODD, N_LAYOUT };
static const struct image_meta all = {N_LAYOUT,
                                      {{4, maps, maps_h, maps_w},
                                       {4, halves, half_h, half_w},
                                       {4, twices, twice_h, twice_w},
                                       {4, rows_q, NULL, NULL},
                                       {4, rows_long, NULL, NULL},
                                       {4, rows_odd, NULL, NULL}}};
static int32_t alone_start[N_LAYOUT][2];
static struct image_meta alone;

#define DATA_MAX 1100000
static float data_a[DATA_MAX], data_b[DATA_MAX];
static float want[DATA_MAX], got[DATA_MAX], solo[DATA_MAX];

static float rounded(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}

static int64_t rows_of(const struct image_meta *m, int layout)
{
    return m->layout[layout].start[m->layout[layout].n_seg];
}
/* Of the data, where a tensor of this layout begins: segment SOLO alone begins where it lies in company. */
static int64_t first_of(const struct image_meta *m, int layout)
{
    return m == &alone ? all.layout[layout].start[SOLO] : 0;
}

static enum dtype mul_of(const struct ot_back *x)
{
    struct backend_info info;
    x->b->info(x->d, &info);
    return info.mul_dtype;
}

/* [rows, cols] between guards, of the backend's product dtype or f32; rows of `ld` values. */
static struct tensor tensor_new(const struct ot_back *x, enum dtype d, int64_t rows, int64_t cols,
                                const float *from)
{
    size_t e = dtype_bytes(d), n = (size_t)(rows * cols), bytes = n * e + 2 * OT_GUARD;
    char *raw = malloc(bytes);
    dev_buf b = 0;
    assert_non_null(raw);
    memset(raw, 0xA5, bytes);
    for (size_t i = 0; from && i < n; i++) {
        uint16_t h = f32_to_bf16(from[i]);
        memcpy(raw + OT_GUARD + i * e, d == DT_F32 ? (const void *)&from[i] : &h, e);
    }
    assert_int_equal(x->b->buf_alloc(x->d, bytes, &b), 0);
    assert_int_equal(x->b->write(x->d, b, 0, raw, bytes), 0);
    memset(raw, 0x5A, bytes); /* write has its own copy, however late the device reads */
    free(raw);
    return tensor_2d(d, b, OT_GUARD, rows, cols);
}

static int64_t take(const struct ot_back *x, struct tensor t, float *out)
{
    size_t e = dtype_bytes(t.dtype), n = (size_t)(t.shape[0] * t.shape[1]),
           bytes = n * e + 2 * OT_GUARD;
    unsigned char *raw = malloc(bytes);
    assert_non_null(raw);
    assert_true(n <= DATA_MAX);
    assert_int_equal(x->b->read(x->d, t.buf, 0, raw, bytes), 0);
    for (size_t i = 0; i < OT_GUARD; i++)
        if (raw[i] != 0xA5 || raw[bytes - 1 - i] != 0xA5)
            fail_msg("%s: wrote outside its output", x->name);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, raw + OT_GUARD + i * e, sizeof h);
        out[i] = bf16_to_f32(h);
        if (t.dtype == DT_F32)
            memcpy(&out[i], raw + OT_GUARD + i * e, sizeof *out);
    }
    free(raw);
    x->b->buf_free(x->d, t.buf);
    return (int64_t)n;
}

static void drop(const struct ot_back *x, struct tensor t)
{
    if (t.buf)
        x->b->buf_free(x->d, t.buf);
}

static void begin(const struct ot_back *x, const struct image_meta *m)
{
    assert_int_equal(x->b->image_begin(x->d, m), 0);
}

typedef int64_t op_fn(const struct ot_back *x, const struct image_meta *m, int variant, float *dst);

static int
    n_exact; /* backends whose rows have the same bits in any company; behind them those that need not */

/* One variant on every backend; `at`: where segment SOLO begins in the result. */
static void sweep(const char *name, op_fn *fn, int variant, int64_t at, double bound)
{
    char what[80];
    snprintf(what, sizeof what, "%s variant %d", name, variant);
    int64_t n = fn(&ot_backs[0], &all, variant, want);
    for (int i = 1; i < ot_n; i++) {
        const struct ot_back *x = &ot_backs[i];
        assert_int_equal(fn(x, &all, variant, got), n);
        ot_near(x, what, got, want, (size_t)n, bound);
        if (i >= n_exact)
            continue;
        int64_t k = fn(x, &alone, variant, solo);
        ot_same(x, what, solo, got + at, (size_t)k);
    }
}

/* ---- products ---- */

static struct dev_weight *weight(const struct ot_back *x, int64_t n_in, int64_t n_out)
{
    struct dev_weight *w = NULL;
    struct weight_desc d = {
        .name = "w", .n_in = n_in, .n_part = 1, .part = {{QF_F32, data_b, n_out}}};
    assert_int_equal(x->b->weight_open(x->d, &w, &d, NULL), 0);
    return w;
}

static const struct conv_case {
    int k, stride, pad, up, in, out, c_in, c_out;
} convs[] = {{3, 1, 1, 0, MAPS, MAPS, 12, 20},   {1, 1, 0, 0, MAPS, MAPS, 33, 7},
             {3, 2, 1, 0, MAPS, HALVES, 8, 16},  {3, 2, 0, 0, MAPS, HALVES, 16, 9},
             {3, 1, 1, 1, MAPS, TWICES, 5, 24},  {1, 2, 0, 0, MAPS, HALVES, 4, 4},
             {3, 1, 1, 0, MAPS, MAPS, 40, 130},  {1, 1, 0, 0, MAPS, MAPS, 64, 64},
             {3, 1, 1, 1, HALVES, MAPS, 18, 12}, {3, 1, 1, 0, MAPS, MAPS, 3, 32}};
#define N_CONV 10

/* Odd variants: a bias, a vector a map and a residual that is the destination itself. */
static int64_t run_conv(const struct ot_back *x, const struct image_meta *m, int variant,
                        float *dst)
{
    const struct conv_case *c = &convs[variant / 2];
    struct dev_weight *w = weight(x, (int64_t)c->k * c->k * c->c_in, c->c_out);
    struct op_conv op = {.w = w,
                         .in = c->in,
                         .out = c->out,
                         .k = c->k,
                         .stride = c->stride,
                         .pad = c->pad,
                         .up = c->up};
    int64_t n = rows_of(m, c->out);
    op.src =
        tensor_new(x, mul_of(x), rows_of(m, c->in), c->c_in, data_a + first_of(m, c->in) * c->c_in);
    op.dst = tensor_new(x, DT_F32, n, c->c_out,
                        variant % 2 ? data_b + first_of(m, c->out) * c->c_out : NULL);
    if (variant % 2) {
        op.bias = tensor_new(x, DT_F32, 1, c->c_out, data_a + 9);
        op.vec = tensor_new(x, DT_F32, m->layout[c->out].n_seg, c->c_out,
                            data_a + 1000 + (m == &alone ? SOLO * c->c_out : 0));
        op.add = op.dst;
    }
    begin(x, m);
    assert_int_equal(x->b->conv(x->d, &op), 0);
    n = take(x, op.dst, dst);
    drop(x, op.src);
    drop(x, op.bias);
    drop(x, op.vec);
    x->b->weight_close(x->d, w);
    return n;
}

static void test_conv(void **st)
{
    (void)st;
    for (int v = 0; v < 2 * N_CONV; v++)
        sweep("conv", run_conv, v,
              (int64_t)all.layout[convs[v / 2].out].start[SOLO] * convs[v / 2].c_out, 1e-10);
}

/* Products of an image step: as many rows as the layouts have, from one to more than any tile. */
static const struct {
    int layout, n_in, n_out;
} linears[] = {{ROWS_ODD, 72, 40}, {ROWS_ODD, 1280, 130}, {ROWS_LONG, 520, 64}, {ROWS_Q, 63, 5}};

static int64_t run_linear(const struct ot_back *x, const struct image_meta *m, int variant,
                          float *dst)
{
    int64_t n_in = linears[variant].n_in, n_out = linears[variant].n_out;
    int y = linears[variant].layout;
    struct dev_weight *w = weight(x, n_in, n_out);
    struct tensor src =
                      tensor_new(x, mul_of(x), rows_of(m, y), n_in, data_a + first_of(m, y) * n_in),
                  bias = tensor_new(x, DT_F32, 1, n_out, data_a + 5),
                  to = tensor_new(x, DT_F32, rows_of(m, y), n_out, NULL);
    begin(x, m);
    struct op_linear op = {.dst = to, .src = src, .w = w, .bias = bias};
    op.bias.n_dim = 1;
    op.bias.shape[0] = n_out;
    op.bias.stride[0] = 1;
    assert_int_equal(x->b->linear(x->d, &op), 0);
    int64_t n = take(x, to, dst);
    drop(x, src);
    drop(x, bias);
    x->b->weight_close(x->d, w);
    return n;
}

static void test_linear(void **st)
{
    (void)st;
    for (int v = 0; v < 4; v++)
        sweep("linear", run_linear, v,
              (int64_t)all.layout[linears[v].layout].start[SOLO] * linears[v].n_out, 1e-10);
}

/* ---- attention ---- */

static const struct attend_case {
    int head_dim, n_head, n_kv_head, q, kv;
    bool causal, biased;
} attends[] = {
    {40, 2, 2, ROWS_Q, ROWS_Q, false, false},      {40, 4, 2, ROWS_Q, ROWS_LONG, false, false},
    {64, 2, 1, ROWS_LONG, ROWS_LONG, true, false}, {64, 2, 2, ROWS_Q, ROWS_ODD, false, false},
    {72, 2, 1, ROWS_Q, ROWS_LONG, false, false},   {80, 1, 1, ROWS_LONG, ROWS_LONG, true, false},
    {128, 4, 1, ROWS_Q, ROWS_ODD, false, false},   {160, 2, 2, ROWS_Q, ROWS_ODD, false, false},
    {512, 1, 1, ROWS_Q, ROWS_Q, false, false},     {12, 6, 2, ROWS_LONG, ROWS_LONG, true, false},
    {24, 2, 1, ROWS_Q, ROWS_LONG, false, true},    {64, 2, 2, ROWS_Q, ROWS_Q, true, true}};
#define N_ATTEND 12

static int64_t run_attend(const struct ot_back *x, const struct image_meta *m, int variant,
                          float *dst)
{
    const struct attend_case *c = &attends[variant];
    int64_t dq = (int64_t)c->n_head * c->head_dim, dk = (int64_t)c->n_kv_head * c->head_dim,
            nq = rows_of(m, c->q), nk = rows_of(m, c->kv);
    struct tensor q = tensor_new(x, DT_F32, nq, dq, data_a + first_of(m, c->q) * dq),
                  kv = tensor_new(x, DT_F32, nk, 2 * dk, data_b + first_of(m, c->kv) * 2 * dk),
                  bias = {0};
    struct op_attend op = {.dst = tensor_new(x, mul_of(x), nq, dq, NULL),
                           .q = q,
                           .k = tensor_cols(kv, 0, dk),
                           .v = tensor_cols(kv, dk, dk),
                           .n_head = c->n_head,
                           .n_kv_head = c->n_kv_head,
                           .head_dim = c->head_dim,
                           .scale = 1.5f / sqrtf((float)c->head_dim),
                           .causal = c->causal,
                           .q_layout = c->q,
                           .kv_layout = c->kv};
    if (c->biased) {
        bias = tensor_new(x, DT_F32, c->n_head, 65 * 300, data_a + 77);
        op.bias = bias;
        op.bias_cols = 300;
    }
    begin(x, m);
    assert_int_equal(x->b->attend(x->d, &op), 0);
    int64_t n = take(x, op.dst, dst);
    drop(x, q);
    drop(x, kv);
    drop(x, bias);
    return n;
}

static void test_attend(void **st)
{
    (void)st;
    for (int v = 0; v < N_ATTEND; v++)
        sweep("attend", run_attend, v,
              (int64_t)all.layout[attends[v].q].start[SOLO] * attends[v].n_head *
                  attends[v].head_dim,
              1e-4);
}

/* ---- norms and rows: results in f32, then in the products' dtype ---- */

static const struct {
    int c, groups;
    float mean; /* of the rows, whose spread is 1 */
} groups[] = {{24, 8, 0}, {20, 4, 0}, {6, 3, 1000}, {130, 1, 0}, {64, 32, 30}};

static int64_t run_group(const struct ot_back *x, const struct image_meta *m, int variant,
                         float *dst)
{
    static float shifted[129 * 130];
    int64_t c = groups[variant / 2].c, n = rows_of(m, MAPS);
    for (int64_t i = 0; i < n * c; i++)
        shifted[i] = groups[variant / 2].mean + data_a[first_of(m, MAPS) * c + i];
    struct op_group_norm op = {.groups = groups[variant / 2].groups,
                               .eps = 1e-5f,
                               .layout = MAPS,
                               .act = (enum image_act)(variant % 6)};
    op.x = tensor_new(x, DT_F32, n, c, shifted);
    op.dst = tensor_new(x, variant % 2 ? mul_of(x) : DT_F32, n, c, NULL);
    op.w = tensor_new(x, DT_F32, 1, c, data_b);
    op.b = tensor_new(x, DT_F32, 1, c, data_b + 500);
    begin(x, m);
    assert_int_equal(x->b->group_norm(x->d, &op), 0);
    n = take(x, op.dst, dst);
    drop(x, op.x);
    drop(x, op.w);
    drop(x, op.b);
    return n;
}

/* Bits of variant: 1 the products' dtype, 2 weight and bias, 4 scale and shift, 8 without mean. */
static int64_t layer_cols(int variant)
{
    return variant < 8 ? 52 : 35;
}
static int64_t run_layer(const struct ot_back *x, const struct image_meta *m, int variant,
                         float *dst)
{
    int64_t d = layer_cols(variant), n = rows_of(m, MAPS);
    struct op_layer_norm op = {.eps = 1e-6f, .layout = variant & 4 ? MAPS : -1, .rms = variant & 8};
    op.x = tensor_new(x, DT_F32, n, d, data_a + first_of(m, MAPS) * d);
    op.dst = tensor_new(x, variant & 1 ? mul_of(x) : DT_F32, n, d, NULL);
    if (variant & 2) {
        op.w = tensor_new(x, DT_F32, 1, d, data_b);
        op.b = tensor_new(x, DT_F32, 1, d, data_b + 500);
    }
    if (variant & 4) {
        int64_t at = m == &alone ? SOLO * d : 0, n_seg = m->layout[MAPS].n_seg;
        op.scale = tensor_new(x, DT_F32, n_seg, d, data_a + 700 + at);
        op.shift = tensor_new(x, DT_F32, n_seg, d, data_a + 1700 + at);
    }
    begin(x, m);
    assert_int_equal(x->b->layer_norm(x->d, &op), 0);
    n = take(x, op.dst, dst);
    struct tensor used[] = {op.x, op.w, op.b, op.scale, op.shift};
    for (int i = 0; i < 5; i++)
        drop(x, used[i]);
    return n;
}

/* Bit 1: from the products' dtype, 2: to it; the rest is the activation. */
static int64_t run_act(const struct ot_back *x, const struct image_meta *m, int variant, float *dst)
{
    int64_t n = rows_of(m, MAPS), d = 21;
    struct op_act op = {.act = (enum image_act)(variant / 4)};
    op.x = tensor_new(x, variant & 1 ? mul_of(x) : DT_F32, n, d, data_a + first_of(m, MAPS) * d);
    op.dst = tensor_new(x, variant & 2 ? mul_of(x) : DT_F32, n, d, NULL);
    begin(x, m);
    assert_int_equal(x->b->act(x->d, &op), 0);
    n = take(x, op.dst, dst);
    drop(x, op.x);
    return n;
}

static void test_rows(void **st)
{
    (void)st;
    int64_t at = all.layout[MAPS].start[SOLO];
    for (int v = 0; v < 10; v++)
        sweep("group_norm", run_group, v, at * groups[v / 2].c,
              v % 2                    ? 1e-5
              : groups[v / 2].mean > 0 ? 1e-8
                                       : 1e-10);
    for (int v = 0; v < 16; v++)
        sweep("layer_norm", run_layer, v, at * layer_cols(v), v & 1 ? 1e-5 : 1e-10);
    for (int v = 0; v < 24; v++)
        sweep("act", run_act, v, at * 21, v & 2 ? 1e-5 : 1e-10);
}

/* The reference in f32; the rest at the default precision, loose ones last. */
static int backs_open(void **st)
{
    static const char *const path[] = {"sm_90/fwd", "sm_80/rev", "sm_90/1", "sm_80/2"};
    const struct backend *b;
    struct err e = {0};
    (void)st;
    ot_add(&ref_backend, NULL, 0);
    ot_precision = PRECISION_DEFAULT;
    for (int i = 0; i < CPU_N_ISA; i++)
        if (cpu_isa_usable(i))
            ot_add(&cpu_backend, cpu_isas[i].name, i % 2 ? 1 : 3);
    ot_add_gpu();
    bool gpu = ot_backs[ot_n - 1].b != &cpu_backend;
    int rc = backend_find("cuda-emu", &b, &e);
    if (rc)
        print_message("SKIP cuda-emu: %s\n", e.text);
    for (int i = 0; i < 2 && !rc; i++)
        ot_add(b, path[i], 1);
    n_exact = ot_n;
    ot_loose = true;
    for (int i = 2; i < 4 && !rc; i++)
        ot_add(b, path[i], 1);
    if (gpu)
        ot_add_gpu();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conv), cmocka_unit_test(test_linear),
                                       cmocka_unit_test(test_attend), cmocka_unit_test(test_rows)};
    ot_fill(data_a, DATA_MAX, 1);
    ot_fill(data_b, DATA_MAX, 1);
    for (int i = 0; i < DATA_MAX; i++) {
        data_a[i] = rounded(data_a[i]);
        data_b[i] = rounded(data_b[i]);
    }
    alone = all;
    for (int i = 0; i < N_LAYOUT; i++) {
        struct image_layout *y = &alone.layout[i];
        alone_start[i][1] = y->start[SOLO + 1] - y->start[SOLO];
        *y = (struct image_layout){1, alone_start[i], y->h ? y->h + SOLO : NULL,
                                   y->h ? y->w + SOLO : NULL};
    }
    return cmocka_run_group_tests(tests, backs_open, ot_close);
}
