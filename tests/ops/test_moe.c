/* Mixtures of experts: routing, products by expert, sums, gates. Every backend and table against the reference; the
 * products also bit for bit against op_linear with one weight and one row. With the arguments `bench [table [threads]]`:
 * times beside a dense product of as much work. */
#include "tests/ops/ops_test.h"

#define N_EXPERT_MAX 24

static struct tensor ints(const struct ot_back *x, int64_t rows, int64_t cols, const int32_t *data)
{
    struct tensor t = ot_tensor(x, rows, cols, (const float *)(const void *)data);
    t.dtype = DT_I32;
    return t;
}

/* What products read: f32, or the same values as bf16. */
static struct tensor mul_tensor(const struct ot_back *x, int64_t rows, int64_t cols,
                                const float *data)
{
    struct backend_info info;
    x->b->info(x->d, &info);
    if (info.mul_dtype == DT_F32)
        return ot_tensor(x, rows, cols, data);
    size_t n = (size_t)(rows * cols);
    uint16_t *half = malloc(n * sizeof *half);
    dev_buf b = 0;
    for (size_t i = 0; i < n; i++)
        half[i] = f32_to_bf16(data[i]);
    assert_int_equal(x->b->buf_alloc(x->d, n * sizeof *half, &b), 0);
    assert_int_equal(x->b->write(x->d, b, 0, half, n * sizeof *half), 0);
    free(half);
    return tensor_2d(DT_BF16, b, 0, rows, cols);
}

static void fill_bf16(float *p, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        p[i] = bf16_to_f32(f32_to_bf16(ot_rand() * scale));
}

/* ---- route ---- */

struct route_case {
    int n, n_expert, n_used, n_group, n_group_used;
    enum route_score score;
    bool top2, renorm, bias;
    float scale;
};

static void route_run(const struct ot_back *x, const struct route_case *c, const float *logits,
                      const float *bias, int32_t *id, float *weight)
{
    struct op_route a = {.logits = ot_tensor(x, c->n, c->n_expert, logits),
                         .id = ints(x, c->n, c->n_used, NULL),
                         .weight = ot_tensor(x, c->n, c->n_used, NULL),
                         .score = c->score,
                         .n_group = c->n_group,
                         .n_group_used = c->n_group_used,
                         .group_top2 = c->top2,
                         .renorm = c->renorm,
                         .scale = c->scale};
    if (c->bias)
        a.select_bias = ot_tensor(x, 1, c->n_expert, bias);
    assert_int_equal(x->b->route(x->d, &a), 0);
    ot_take(x, a.id, (float *)(void *)id);
    ot_take(x, a.weight, weight);
    ot_take(x, a.logits, NULL);
    if (c->bias)
        ot_take(x, a.select_bias, NULL);
}

static const struct route_case routes[] = {
    {5, 4, 2, 0, 0, ROUTE_SOFTMAX, false, true, false, 1},
    {3, 8, 3, 1, 1, ROUTE_SOFTMAX, false, false, false, 1.5f},
    {9, 60, 4, 0, 0, ROUTE_SOFTMAX_USED, false, false, false, 1},
    {4, 128, 8, 0, 0, ROUTE_SIGMOID, false, true, true, 2.5f},
    {7, 64, 6, 8, 3, ROUTE_SIGMOID, true, true, true, 2.5f},
    {6, 40, 4, 8, 2, ROUTE_SOFTMAX, false, false, false, 16},
    {2, 512, 10, 0, 0, ROUTE_SOFTMAX, false, true, false, 1},
    {3, 1024, 64, 32, 16, ROUTE_SIGMOID, true, false, true, 1},
    {4, 1, 1, 0, 0, ROUTE_SIGMOID, false, false, false, 1},
    {1, 16, 16, 0, 0, ROUTE_SOFTMAX, false, true, true, 1},
};

static void test_route(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct route_case *c = &routes[i];
        size_t n_in = (size_t)(c->n * c->n_expert), n_out = (size_t)(c->n * c->n_used);
        float *logits = malloc(n_in * sizeof *logits), bias[OPS_EXPERTS_MAX];
        float *want = malloc(n_out * sizeof *want), *got = malloc(n_out * sizeof *got);
        int32_t *want_id = malloc(n_out * sizeof *want_id), *id = malloc(n_out * sizeof *id);
        ot_fill(logits, n_in, 4);
        ot_fill(bias, (size_t)c->n_expert, 0.5f);
        for (int b = 0; b < ot_n; b++) {
            route_run(&ot_backs[b], c, logits, bias, b ? id : want_id, b ? got : want);
            if (b && memcmp(id, want_id, n_out * sizeof *id) != 0)
                fail_msg("%s: case %zu chose otherwise", ot_backs[b].name, i);
            if (b)
                ot_near(&ot_backs[b], "weights", got, want, n_out, 1e-12);
        }
        free(logits);
        free(want);
        free(got);
        free(want_id);
        free(id);
    }
}

/* By hand: ties go to the lower number, a bias chooses and does not weigh, groups shut out the best expert. */
static void test_route_hand(void **st)
{
    (void)st;
    const float tie[4] = {1, 3, 3, 3}, four[4] = {0, 0.5f, -1, 2}, bias[4] = {0, 0, 5, -5};
    const float six[6] = {9, -9, 5, 4, 8, -8};
    int32_t id[4];
    float w[4];
    for (int b = 0; b < ot_n; b++) {
        const struct ot_back *x = &ot_backs[b];
        struct route_case c = {1, 4, 2, 0, 0, ROUTE_SOFTMAX_USED, false, false, false, 3};
        route_run(x, &c, tie, NULL, id, w);
        assert_true(id[0] == 1 && id[1] == 2);
        assert_true(fabsf(w[0] - 1.5f) < 1e-6f && fabsf(w[1] - 1.5f) < 1e-6f);
        c = (struct route_case){1, 4, 2, 0, 0, ROUTE_SIGMOID, false, true, true, 1};
        route_run(x, &c, four, bias, id, w);
        assert_true(id[0] == 2 && id[1] == 1);
        double p = 1 / (1 + exp(1)), q = 1 / (1 + exp(-0.5));
        assert_true(fabs((double)w[0] - p / (p + q)) < 1e-6);
        /* Sums of two: 0, 9, 0; of one: 9, 5, 8. */
        c = (struct route_case){1, 6, 2, 3, 1, ROUTE_SOFTMAX, false, false, false, 1};
        route_run(x, &c, six, NULL, id, w);
        assert_true(id[0] == 0 && id[1] == 1);
        c = (struct route_case){1, 6, 2, 3, 1, ROUTE_SIGMOID, true, false, false, 1};
        route_run(x, &c, six, NULL, id, w);
        assert_true(id[0] == 2 && id[1] == 3);
    }
}

/* ---- products by expert ---- */

struct product {
    enum quant_fmt fmt[2];
    int64_t part[2]; /* rows of each; 0: one part */
    int64_t n_in, n;
    int n_expert, n_used;
    bool each, bias, in_scale;
    bool sorted; /* each expert's columns lie in an order of its own */
};

static const struct product products[] = {
    {{QF_F32}, {40}, 64, 5, 4, 2, false, false, false, false},
    {{QF_BF16}, {33}, 72, 21, 3, 2, false, true, false, false},
    {{QF_F16}, {16}, 48, 1, 8, 4, false, false, true, false},
    {{QF_Q4_0, QF_Q4_0}, {64, 64}, 96, 7, 6, 3, false, true, false, false},
    {{QF_Q4_1}, {50}, 64, 9, 4, 2, true, false, false, false},
    {{QF_Q5_0, QF_Q5_1}, {20, 37}, 128, 6, 5, 2, false, false, false, false},
    {{QF_Q8_0}, {130}, 320, 40, 2, 1, false, true, true, false},
    {{QF_Q2_K}, {35}, 256, 4, 4, 4, true, true, false, false},
    {{QF_Q3_K}, {17}, 512, 3, 16, 2, false, false, false, false},
    {{QF_Q4_K, QF_Q6_K}, {48, 48}, 512, 11, 7, 3, false, false, false, false},
    {{QF_Q5_K}, {32}, 256, 2, 3, 2, true, false, false, false},
    {{QF_Q6_K}, {64}, 768, 1, 24, 8, false, false, false, false},
    {{QF_IQ4_NL}, {36}, 96, 19, 3, 2, false, false, false, false},
    {{QF_IQ4_XS}, {40}, 256, 70, 2, 2, false, false, false, false},
    {{QF_BF16}, {24}, 1056, 90, 2, 2, true, true, false, false}, /* K in parts on a GPU */
    {{QF_Q4_0, QF_Q8_0}, {40, 24}, 96, 37, 3, 2, false, true, false, true},
    {{QF_Q4_1}, {33}, 64, 70, 2, 1, false, false, true, true},
    {{QF_Q8_0}, {24}, 1056, 9, 4, 2, true, true, false, true},
    {{QF_BF16}, {24}, 72, 5, 4, 2, true, false, true, true},
};

/* Random blocks; halves of scales stay small. */
static uint8_t *blocks(enum quant_fmt fmt, int64_t n_out, int64_t n_in, size_t *bytes)
{
    const struct quant_format *f = quant_format_get((uint32_t)fmt);
    size_t row;
    assert_true(quant_row_bytes(f, n_in, &row));
    *bytes = row * (size_t)n_out;
    uint8_t *w = malloc(*bytes);
    if (f->block_len == 1) {
        for (size_t i = 0; i < *bytes / (size_t)f->block_bytes; i++) {
            float v = ot_rand() * 0.1f;
            uint16_t h = fmt == QF_F16 ? f32_to_f16(v) : f32_to_bf16(v);
            memcpy(w + i * (size_t)f->block_bytes, fmt == QF_F32 ? (void *)&v : (void *)&h,
                   (size_t)f->block_bytes);
        }
        return w;
    }
    for (size_t i = 0; i < *bytes; i++)
        w[i] = (uint8_t)(ot_next() >> 40);
    for (size_t b = 0; b < *bytes; b += (size_t)f->block_bytes) {
        uint16_t h[2] = {f32_to_f16(ot_rand() * 0.002f), f32_to_f16(ot_rand() * 0.01f)};
        int at = fmt == QF_Q2_K ? 80 : fmt == QF_Q3_K ? 108 : fmt == QF_Q6_K ? 208 : 0;
        bool two =
            fmt == QF_Q4_1 || fmt == QF_Q5_1 || fmt == QF_Q4_K || fmt == QF_Q5_K || fmt == QF_Q2_K;
        memcpy(w + b + at, h, two ? 4 : 2);
    }
    return w;
}

struct world {
    const struct product *p;
    int64_t n_out, n_all, n_src;
    uint8_t *data[N_EXPERT_MAX][2];
    int32_t *col[N_EXPERT_MAX];
    float *x, *bias, *scale, *want;
    int32_t *id;
};

static void world_make(struct world *w, const struct product *p)
{
    size_t bytes;
    *w = (struct world){.p = p, .n_out = p->part[0] + p->part[1], .n_all = p->n * p->n_used};
    w->n_src = p->each ? w->n_all : p->n;
    for (int e = 0; e < p->n_expert; e++)
        for (int i = 0; i < 2 && p->part[i]; i++)
            w->data[e][i] = blocks(p->fmt[i], p->part[i], p->n_in, &bytes);
    for (int e = 0; e < p->n_expert && p->sorted; e++) {
        int32_t *col = w->col[e] = malloc((size_t)p->n_in * sizeof *col);
        for (int64_t k = 0; k < p->n_in; k++) { /* each of [0, k] once */
            int64_t at = (int64_t)(ot_next() % (uint64_t)(k + 1));
            col[k] = col[at];
            col[at] = (int32_t)k;
        }
    }
    w->x = malloc((size_t)(w->n_src * p->n_in) * sizeof *w->x);
    fill_bf16(w->x, (size_t)(w->n_src * p->n_in), 1);
    w->bias = malloc((size_t)(p->n_expert * w->n_out) * sizeof *w->bias);
    ot_fill(w->bias, (size_t)(p->n_expert * w->n_out), 1);
    w->scale = malloc((size_t)w->n_all * sizeof *w->scale);
    for (int64_t i = 0; i < w->n_all; i++) /* powers of two: no rounding, whatever the dtype */
        w->scale[i] = ldexpf(1, (int)(ot_next() % 4) - 2);
    w->want = malloc((size_t)(w->n_all * w->n_out) * sizeof *w->want);
    w->id = malloc((size_t)w->n_all * sizeof *w->id);
    for (int64_t i = 0; i < p->n; i++) /* different ones of a row; the last expert gets most */
        for (int j = 0; j < p->n_used; j++) {
            int64_t first = (int64_t)(ot_next() % 3 ? (unsigned)p->n_expert - 1 : ot_next() % 9);
            w->id[i * p->n_used + j] = (int32_t)((first + j) % p->n_expert);
        }
}

static void world_free(struct world *w)
{
    for (int e = 0; e < w->p->n_expert; e++)
        for (int i = 0; i < 2; i++)
            free(w->data[e][i]);
    for (int e = 0; e < w->p->n_expert; e++)
        free(w->col[e]);
    free(w->x);
    free(w->bias);
    free(w->scale);
    free(w->want);
    free(w->id);
}

/* sorted: as p says; else columns as they lie. */
static void weights_make(const struct ot_back *x, const struct world *w, bool sorted,
                         struct dev_weight **out)
{
    for (int e = 0; e < w->p->n_expert; e++) {
        struct err err = {0};
        struct weight_desc d = {
            .name = "expert", .n_in = w->p->n_in, .col = sorted ? w->col[e] : NULL};
        for (int i = 0; i < 2 && w->p->part[i]; i++)
            d.part[d.n_part++] = (struct weight_part){w->p->fmt[i], w->data[e][i], w->p->part[i]};
        if (x->b->weight_open(x->d, &out[e], &d, &err))
            fail_msg("%s: %s", x->name, err.text);
    }
}

/* One row by one weight. plain: the weight knows no order of columns, the row is sorted instead. */
static void alone(const struct ot_back *x, const struct world *w, struct dev_weight **weight,
                  int64_t r, const float *got, bool plain)
{
    const struct product *p = w->p;
    int32_t e = w->id[r];
    float row[2048], out[256];
    const float *from = w->x + (p->each ? r : r / p->n_used) * p->n_in;
    for (int64_t k = 0; k < p->n_in; k++)
        row[k] = from[plain ? w->col[e][k] : k];
    for (int64_t k = 0; k < p->n_in && p->in_scale; k++)
        row[k] *= w->scale[r];
    struct tensor bias = {0}, src = mul_tensor(x, 1, p->n_in, row),
                  dst = ot_tensor(x, 1, w->n_out, NULL);
    if (p->bias)
        bias = ot_tensor(x, 1, w->n_out, w->bias + e * w->n_out);
    assert_int_equal(
        x->b->linear(x->d,
                     &(struct op_linear){.dst = dst, .src = src, .w = weight[e], .bias = bias}),
        0);
    ot_take(x, dst, out);
    ot_same(x, "expert and op_linear", got + r * w->n_out, out, (size_t)w->n_out);
    x->b->buf_free(x->d, src.buf);
    if (p->bias)
        ot_take(x, bias, NULL);
}

/* A step of n rows: products inside one may be cut otherwise than outside. */
static void step_of(const struct ot_back *x, int n)
{
    static int32_t zero[128], start[2];
    start[1] = n;
    struct step_meta m = {.n_row = n, .n_seq = 1, .tok = zero, .pos = zero, .seq_start = start};
    assert_int_equal(x->b->step_begin(x->d, &m), 0);
}

static void product_run(const struct ot_back *x, struct world *w, bool first, double bound)
{
    const struct product *p = w->p;
    if (p->bias)
        step_of(x, (int)p->n);
    size_t n = (size_t)(w->n_all * w->n_out);
    struct dev_weight *weight[N_EXPERT_MAX] = {0};
    weights_make(x, w, true, weight);
    struct op_linear_experts a = {.dst = ot_tensor(x, w->n_all, w->n_out, NULL),
                                  .src = mul_tensor(x, w->n_src, p->n_in, w->x),
                                  .w = weight,
                                  .n_expert = p->n_expert,
                                  .id = ints(x, p->n, p->n_used, w->id)};
    if (p->bias)
        a.bias = ot_tensor(x, 1, p->n_expert * w->n_out, w->bias);
    if (p->in_scale)
        a.in_scale = ot_tensor(x, p->n, p->n_used, w->scale);
    float *got = malloc(n * sizeof *got);
    assert_int_equal(x->b->linear_experts(x->d, &a), 0);
    ot_take(x, a.dst, got);
    if (first)
        memcpy(w->want, got, n * sizeof *got);
    else
        ot_near(x, "experts", got, w->want, n, bound);
    for (int64_t r = 0; r < w->n_all; r += ot_emulated((int)(x - ot_backs)) ? 5 : 1)
        alone(x, w, weight, r, got, false);
    if (p->sorted && !first) { /* the reference sums in the matrix's order */
        struct dev_weight *plain[N_EXPERT_MAX] = {0};
        weights_make(x, w, false, plain);
        for (int64_t r = 0; r < w->n_all; r += ot_emulated((int)(x - ot_backs)) ? 5 : 1)
            alone(x, w, plain, r, got, true);
        for (int e = 0; e < p->n_expert; e++)
            x->b->weight_close(x->d, plain[e]);
    }
    free(got);
    x->b->buf_free(x->d, a.src.buf);
    ot_take(x, a.id, NULL);
    if (p->bias)
        ot_take(x, a.bias, NULL);
    if (p->in_scale)
        ot_take(x, a.in_scale, NULL);
    for (int e = 0; e < p->n_expert; e++)
        x->b->weight_close(x->d, weight[e]);
}

static void products_all(double bound)
{
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        struct world w;
        world_make(&w, &products[i]);
        for (int b = 0; b < ot_n; b++)
            if (!ot_leave_out(b, i))
                product_run(&ot_backs[b], &w, b == 0, bound);
        world_free(&w);
    }
}

static void test_products(void **st)
{
    (void)st;
    products_all(1e-10);
}

/* bf16 where that is faster; integers of 8 bits. */
static void test_products_default(void **st)
{
    (void)st;
    products_all(2e-5);
}

static int open_default(void **st)
{
    ot_close(st);
    ot_precision = PRECISION_DEFAULT;
    return ot_open(st);
}

static int open_int8(void **st)
{
    ot_close(st);
    ot_precision = PRECISION_INT8;
    return ot_open(st);
}

static void test_products_int8(void **st)
{
    (void)st;
    products_all(1e-3);
}

/* ---- sums, gates ---- */

static void test_sum(void **st)
{
    (void)st;
    static const int shape[][3] = {{1, 4, 1}, {5, 33, 2}, {3, 260, 8}, {17, 16, 3}};
    for (int i = 0; i < 16; i++) {
        int n = shape[i / 4][0], d = shape[i / 4][1], k = shape[i / 4][2];
        bool weighted = i & 1, add = i & 2;
        size_t all = (size_t)(n * d);
        float *src = malloc(all * (size_t)k * sizeof *src), *dst = malloc(all * sizeof *dst),
              *want = malloc(all * sizeof *want), *got = malloc(all * sizeof *got), w[64];
        ot_fill(src, all * (size_t)k, 1);
        ot_fill(dst, all, 1);
        ot_fill(w, (size_t)(n * k), 1);
        for (int b = 0; b < ot_n; b++) {
            const struct ot_back *x = &ot_backs[b];
            struct op_experts_sum a = {.dst = ot_tensor(x, n, d, dst),
                                       .src = ot_tensor(x, (int64_t)n * k, d, src),
                                       .add = add};
            if (weighted)
                a.weight = ot_tensor(x, n, k, w);
            assert_int_equal(x->b->experts_sum(x->d, &a), 0);
            ot_take(x, a.dst, b ? got : want);
            ot_take(x, a.src, NULL);
            if (weighted)
                ot_take(x, a.weight, NULL);
            if (b)
                ot_near(x, "sum", got, want, all, 1e-12);
        }
        /* By hand, so that the reference is not taken on trust. */
        double s = add ? (double)dst[1] : 0;
        for (int j = 0; j < k; j++)
            s += (weighted ? (double)w[j] : 1) * (double)src[j * d + 1];
        assert_true(fabs((double)want[1] - s) < 1e-5);
        free(src);
        free(dst);
        free(want);
        free(got);
    }
}

static void test_sigmoid(void **st)
{
    (void)st;
    for (int i = 0; i < 4; i++) {
        int n = i < 2 ? 3 : 7, d = i < 2 ? 37 : 8, g = i & 1 ? d : 1;
        float x0[3 * 37 + 7 * 8], gate[3 * 37 + 7 * 8], want[3 * 37 + 7 * 8], got[3 * 37 + 7 * 8];
        size_t all = (size_t)(n * d);
        ot_fill(x0, all, 2);
        ot_fill(gate, (size_t)(n * g), 20);
        for (int b = 0; b < ot_n; b++) {
            const struct ot_back *x = &ot_backs[b];
            struct tensor t = ot_tensor(x, n, d, x0), q = ot_tensor(x, n, g, gate);
            assert_int_equal(
                x->b->sigmoid_mul(x->d, &(struct op_sigmoid_mul){.dst = t, .x = t, .gate = q}), 0);
            ot_take(x, t, b ? got : want);
            ot_take(x, q, NULL);
            if (b)
                ot_near(x, "gate", got, want, all, 1e-12);
        }
        double v = (double)x0[d] / (1 + exp(-(double)gate[g]));
        assert_true(fabs((double)want[d] - v) < 1e-5);
    }
}

/* ---- what must be refused ---- */

static void test_errors(void **st)
{
    (void)st;
    static const struct product p = {{QF_F32}, {8}, 32, 2, 3, 2, false, false, false, false};
    struct world w;
    world_make(&w, &p);
    for (int b = 0; b < ot_n; b++) {
        const struct ot_back *x = &ot_backs[b];
        struct dev_weight *weight[N_EXPERT_MAX] = {0};
        weights_make(x, &w, true, weight);
        int32_t bad[4] = {0, 3, 1, -1};
        struct tensor id = ints(x, 2, 2, bad), dst = ot_tensor(x, 4, 8, NULL),
                      src = mul_tensor(x, 2, 32, w.x);
        struct op_linear_experts a = {.dst = dst, .src = src, .w = weight, .n_expert = 3, .id = id};
        if (!ot_emulated(b) && strncmp(x->b->name, "cuda", 4) != 0) /* ids are there to see */
            assert_int_equal(x->b->linear_experts(x->d, &a), ERR_INVAL);
        a.dst.shape[0] = 3;
        assert_int_equal(x->b->linear_experts(x->d, &a), ERR_INVAL);
        a.dst.shape[0] = 4;
        a.src.shape[0] = 1;
        assert_int_equal(x->b->linear_experts(x->d, &a), ERR_INVAL);
        a.src.shape[0] = 2;
        a.w = NULL;
        assert_int_equal(x->b->linear_experts(x->d, &a), ERR_INVAL);
        int32_t col[32] = {0};
        struct dev_weight *none = NULL;
        struct err e = {0};
        struct weight_desc d = {.name = "w", .n_in = 32, .n_part = 1, .col = col};
        d.part[0] = (struct weight_part){QF_F32, w.data[0][0], 8};
        d.rows = true; /* a row that is looked up is as it lies */
        assert_int_equal(x->b->weight_open(x->d, &none, &d, &e), ERR_INVAL);
        d.rows = false;
        col[7] = 32;
        assert_int_equal(x->b->weight_open(x->d, &none, &d, &e), ERR_INVAL);
        assert_non_null(strstr(e.text, "column 7 stands for 32 of 32"));
        struct op_route r = {.logits = dst, .id = id, .weight = dst};
        assert_int_equal(x->b->route(x->d, &r), ERR_INVAL);
        struct op_experts_sum s = {.dst = dst, .src = dst, .weight = id};
        assert_int_equal(x->b->experts_sum(x->d, &s), ERR_INVAL);
        struct op_sigmoid_mul g = {.dst = dst, .x = dst, .gate = src};
        assert_int_equal(x->b->sigmoid_mul(x->d, &g), ERR_INVAL);
        x->b->buf_free(x->d, src.buf);
        ot_take(x, dst, NULL);
        ot_take(x, id, NULL);
        for (int i = 0; i < p.n_expert; i++)
            x->b->weight_close(x->d, weight[i]);
    }
    world_free(&w);
}

/* Best of a few, in seconds. */
static double best(const struct ot_back *x, const struct op_linear_experts *a,
                   const struct op_linear *l)
{
    double least = 1e9;
    for (int i = 0; i < 7; i++) {
        int64_t t = clock_us();
        int rc = a ? x->b->linear_experts(x->d, a) : x->b->linear(x->d, l);
        assert_int_equal(rc, 0);
        double s = (double)(clock_us() - t) * 1e-6;
        least = s < least ? s : least;
    }
    return least;
}

/* gate and up of a layer of 64 experts, 8 of a row, 2048 to 2 x 768, against one matrix for as many rows. */
static void bench(const char *isa, int threads)
{
    enum { N_IN = 2048, N_OUT = 1536, N_EXPERT = 64, N_USED = 8, N_MAX = 512 };
    static const int64_t ns[] = {1, 8, 64, 512};
    static int32_t id[N_MAX * N_USED];
    ot_precision = PRECISION_DEFAULT;
    ot_add(&cpu_backend, isa, threads);
    const struct ot_back *x = &ot_backs[0];
    struct dev_weight *w[N_EXPERT];
    struct err e = {0};
    for (int i = 0; i < N_EXPERT; i++) {
        size_t bytes;
        uint8_t *data = blocks(QF_Q4_K, N_OUT, N_IN, &bytes);
        struct weight_desc d = {.name = "w", .n_in = N_IN, .n_part = 1};
        d.part[0] = (struct weight_part){QF_Q4_K, data, N_OUT};
        assert_int_equal(x->b->weight_open(x->d, &w[i], &d, &e), 0);
        free(data);
    }
    for (int i = 0; i < N_MAX; i++) /* different experts of a row */
        for (int k = 0, at = (int)(ot_next() % N_EXPERT); k < N_USED; k++)
            id[i * N_USED + k] = at = (at + 1 + (int)(ot_next() % 7)) % N_EXPERT;
    float *src = malloc(sizeof *src * N_MAX * N_USED * N_IN);
    ot_fill(src, (size_t)N_MAX * N_USED * N_IN, 1);
    printf("%s: us experts, us dense, GFLOP/s experts, dense\n", x->name);
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
        int64_t n = ns[i], all = n * N_USED;
        struct op_linear_experts a = {.dst = ot_tensor(x, all, N_OUT, NULL),
                                      .src = ot_tensor(x, n, N_IN, src),
                                      .w = w,
                                      .n_expert = N_EXPERT,
                                      .id = ints(x, n, N_USED, id)};
        struct op_linear l = {.dst = a.dst, .src = ot_tensor(x, all, N_IN, src), .w = w[0]};
        double s = best(x, &a, NULL), t = best(x, NULL, &l);
        double flop = 2.0 * (double)all * N_IN * N_OUT * 1e-9;
        printf("  %4lld rows: %9.0f %9.0f %8.1f %8.1f\n", (long long)n, s * 1e6, t * 1e6, flop / s,
               flop / t);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "bench")) {
        bench(argc > 2 ? argv[2] : NULL, argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_route_hand),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_sigmoid),
        cmocka_unit_test(test_errors),
        cmocka_unit_test_setup(test_products_default, open_default),
        cmocka_unit_test_setup(test_products_int8, open_int8),
    };
    return cmocka_run_group_tests(tests, ot_open, ot_close);
}
