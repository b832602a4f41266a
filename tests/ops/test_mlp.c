/* op_mlp: the bits of the three ops it stands for, in every table, precision and format, for few and many rows, with gate and
 * up as two parts or one, with widths that can't be taken in one go; what it refuses. */
#include "ops_test.h"

#include "engine/quant/quant.h"

#define N_IN    256
#define N_OUT   48
#define FF_MOST 96 /* of the forms of test_norm_waits */

struct shape {
    enum quant_fmt fmt, down;
    int64_t ff;
    bool one_part, single, bias;
    enum act_kind act;
};

static const struct shape shapes[] = {
    {QF_Q4_1, QF_Q4_1, 160, false, false, false, ACT_SILU},
    {QF_Q4_0, QF_Q8_0, 96, true, false, true, ACT_GELU_TANH},
    {QF_Q4_K, QF_Q6_K, 512, false, false, true, ACT_SILU},
    {QF_Q5_0, QF_Q4_K, 256, false, true, true, ACT_GELU_ERF},
    {QF_Q6_K, QF_F16, 64, false, false, false, ACT_SWIGLU_OAI},
    {QF_BF16, QF_BF16, 128, false, false, true, ACT_SILU},
    {QF_Q8_0, QF_BF16, 1056, false, false, false, ACT_RELU2},
    {QF_F32, QF_F32, 72, false, false, true, ACT_SILU}, /* no multiple of 32: three ops */
    {QF_F16, QF_F16, 40, true, true, false, ACT_RELU},
};
static const int64_t rows[] = {1, 3, 16, 17, 70, 300};

/* Random values in the format; *data is to be freed when the weight is closed. */
static struct weight_part part_make(enum quant_fmt fmt, int64_t n_out, int64_t n_in, void **data)
{
    const struct quant_format *f = quant_format_get((uint32_t)fmt);
    const size_t n = (size_t)(n_out * n_in), row = (size_t)n_in / (size_t)f->block_len;
    float *x = malloc(n * sizeof *x);
    ot_fill(x, n, 0.1f);
    *data = malloc((size_t)n_out * row * (size_t)f->block_bytes);
    f->encode(x, *data, (int64_t)n);
    free(x);
    return (struct weight_part){.fmt = fmt, .data = *data, .n_out = n_out};
}

struct block {
    struct weight_desc in, out;
    void *data[3];
    float *x, *bias; /* bias: both products' */
};

static void block_make(struct block *b, const struct shape *s)
{
    *b = (struct block){
        .in = {.name = "in", .n_in = N_IN, .n_part = s->single || s->one_part ? 1 : 2},
        .out = {.name = "out", .n_in = s->ff, .n_part = 1}};
    const int64_t width = s->single ? s->ff : 2 * s->ff;
    for (int i = 0; i < b->in.n_part; i++)
        b->in.part[i] = part_make(s->fmt, width / b->in.n_part, N_IN, &b->data[i]);
    b->out.part[0] = part_make(s->down, N_OUT, s->ff, &b->data[2]);
    b->x = malloc(300 * N_IN * sizeof *b->x);
    ot_fill(b->x, 300 * N_IN, 1);
    b->bias = malloc((size_t)(width + N_OUT) * sizeof *b->bias);
    ot_fill(b->bias, (size_t)(width + N_OUT), 0.5f);
}

static void block_free(struct block *b)
{
    for (int i = 0; i < 3; i++)
        free(b->data[i]);
    free(b->x);
    free(b->bias);
}

static struct tensor vector(const struct ot_back *o, int64_t n, const float *p)
{
    struct tensor t = ot_tensor(o, 1, n, p);
    t.n_dim = 1;
    t.shape[0] = n;
    t.stride[0] = 1;
    return t;
}

/* One op or three, of m rows. */
static void block_run(const struct ot_back *o, const struct block *b, const struct shape *s,
                      int64_t m, bool three, float *y)
{
    struct dev_weight *in, *out;
    struct err e = {0};
    assert_int_equal(o->b->weight_open(o->d, &in, &b->in, &e), 0);
    assert_int_equal(o->b->weight_open(o->d, &out, &b->out, &e), 0);
    const int64_t width = s->single ? s->ff : 2 * s->ff;
    struct tensor x = ot_tensor(o, m, N_IN, b->x), gu = ot_tensor(o, m, width, NULL),
                  ff = ot_tensor(o, m, s->ff, NULL), d = ot_tensor(o, m, N_OUT, NULL);
    struct tensor bi = {0}, bo = {0};
    if (s->bias) {
        bi = vector(o, width, b->bias);
        bo = vector(o, N_OUT, b->bias + width);
    }
    struct op_mlp a = {
        .in = {.dst = gu, .src = x, .w = in, .bias = bi},
        .act = {.dst = ff, .gate_up = gu, .act = s->act, .single = s->single, .limit = 0.5f},
        .out = {.dst = d, .src = ff, .w = out, .bias = bo}};
    if (three) {
        assert_int_equal(o->b->linear(o->d, &a.in), 0);
        assert_int_equal(o->b->act_mul(o->d, &a.act), 0);
        assert_int_equal(o->b->linear(o->d, &a.out), 0);
    } else {
        assert_int_equal(o->b->mlp(o->d, &a), 0);
    }
    ot_take(o, x, NULL);
    ot_take(o, gu, NULL);
    ot_take(o, ff, NULL);
    ot_take(o, d, y);
    if (s->bias) {
        o->b->buf_free(o->d, bi.buf);
        o->b->buf_free(o->d, bo.buf);
    }
    o->b->weight_close(o->d, in);
    o->b->weight_close(o->d, out);
}

static void shape_check(const struct shape *s)
{
    struct block b;
    float *one = malloc(300 * N_OUT * sizeof *one), *three = malloc(300 * N_OUT * sizeof *three);
    block_make(&b, s);
    for (int i = 0; i < ot_n; i++) {
        const struct ot_back *o = &ot_backs[i];
        if (!o->b->mlp)
            continue;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            if (rows[r] > 70 && o->threads != 2) /* the slow tables: a few are enough */
                continue;
            if (rows[r] != 17 && o->threads > 2) /* more threads than processors wait long */
                continue;
            block_run(o, &b, s, rows[r], false, one);
            block_run(o, &b, s, rows[r], true, three);
            ot_same(o, "mlp", one, three, (size_t)rows[r] * N_OUT);
        }
    }
    free(one);
    free(three);
    block_free(&b);
}

static void test_bits(void **st)
{
    (void)st;
    static const enum eng_precision all[] = {PRECISION_F32, PRECISION_DEFAULT, PRECISION_INT8};
    for (size_t p = 0; p < sizeof all / sizeof *all; p++) {
        int n_run = 0;
        ot_precision = all[p];
        ot_open(NULL);
        for (int i = 0; i < ot_n; i++)
            n_run += ot_backs[i].b->mlp != NULL;
        assert_true(n_run >= 3); /* a table with one thread, the best with two and four */
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            shape_check(&shapes[i]);
        ot_close(NULL);
    }
}

/* Norms before a block, before its second product alone and before a read; `settle`: each is done before what follows.
 * h [300, N_IN]: the last norm's; y: the products', two of [300, N_OUT] and one in [600, ff]. */
static void norms_run(const struct ot_back *o, const struct block *b, const struct shape *s,
                      bool settle, float *h, float *y)
{
    const int64_t n = 300;
    struct dev_weight *in, *out;
    struct err e = {0};
    assert_int_equal(o->b->weight_open(o->d, &in, &b->in, &e), 0);
    assert_int_equal(o->b->weight_open(o->d, &out, &b->out, &e), 0);
    struct tensor x = ot_tensor(o, n, N_IN, b->x), add = ot_tensor(o, n, N_IN, b->x),
                  t = ot_tensor(o, n, N_IN, NULL), gu = ot_tensor(o, n, 2 * s->ff, NULL),
                  ff = ot_tensor(o, n, s->ff, b->x), ff2 = ot_tensor(o, n, s->ff, b->x),
                  d = ot_tensor(o, n, N_OUT, NULL), d2 = ot_tensor(o, n, N_OUT, NULL),
                  /* A product over what the norm read, of rows that other tasks make later. */
        over = ot_tensor(o, 2 * n, s->ff, NULL), low = over, high = over;
    low.shape[0] = high.shape[0] = n;
    high.shape[1] = N_OUT;
    high.off += (size_t)(64 * s->ff) * sizeof(float);
    assert_int_equal(
        o->b->write(o->d, over.buf, over.off, b->x, (size_t)(n * s->ff) * sizeof(float)), 0);
    const struct op_rmsnorm norm[] = {{.dst = t, .x = x, .add = add, .eps = 1e-5f},
                                      {.dst = ff2, .x = ff2, .eps = 1e-5f},
                                      {.dst = t, .x = x, .add = t, .eps = 1e-5f},
                                      {.dst = ff2, .x = low, .eps = 1e-5f}};
    const struct op_mlp mlp = {.in = {.dst = gu, .src = t, .w = in},
                               .act = {.dst = ff, .gate_up = gu},
                               .out = {.dst = d, .src = ff, .w = out}};
    const struct op_linear linear = {.dst = d2, .src = ff2, .w = out},
                           above = {.dst = high, .src = ff2, .w = out};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(o->b->rmsnorm(o->d, &norm[i]), 0);
        if (settle)
            assert_int_equal(o->b->sync(o->d), 0);
        if (i == 0)
            assert_int_equal(o->b->mlp(o->d, &mlp), 0);
        if (i == 1)
            assert_int_equal(o->b->linear(o->d, &linear), 0);
        if (i == 3)
            assert_int_equal(o->b->linear(o->d, &above), 0);
    }
    ot_take(o, t, h);
    ot_take(o, d, y);
    ot_take(o, d2, y + n * N_OUT);
    ot_take(o, over, y + 2 * n * N_OUT);
    ot_take(o, x, NULL);
    ot_take(o, add, NULL);
    ot_take(o, gu, NULL);
    ot_take(o, ff, NULL);
    ot_take(o, ff2, NULL);
    o->b->weight_close(o->d, in);
    o->b->weight_close(o->d, out);
}

static void test_norm_waits(void **st)
{
    (void)st;
    static const struct shape forms[] = {
        {QF_Q4_0, QF_Q8_0, 96, false, false, false, ACT_SILU},
        {QF_BF16, QF_BF16, 96, false, false, false, ACT_SILU},
        {QF_F32, QF_F32, 72, false, false, false, ACT_SILU}, /* rows are padded first */
    };
    const size_t nh = 300 * N_IN, ny = 2 * 300 * N_OUT + 600 * FF_MOST;
    float *h[2], *y[2];
    for (int i = 0; i < 2; i++) {
        h[i] = malloc(nh * sizeof *h[i]);
        y[i] = malloc(ny * sizeof *y[i]);
    }
    ot_precision = PRECISION_DEFAULT;
    ot_add(&cpu_backend, NULL, 1);
    ot_add(&cpu_backend, NULL, 2);
    for (size_t i = 0; i < 2 * sizeof forms / sizeof *forms; i++) {
        const struct ot_back *o = &ot_backs[i % 2];
        struct block b;
        block_make(&b, &forms[i / 2]);
        for (int k = 0; k < 2; k++)
            norms_run(o, &b, &forms[i / 2], k, h[k], y[k]);
        ot_same(o, "norm", h[0], h[1], nh);
        ot_same(o, "product of a norm", y[0], y[1], ny);
        block_free(&b);
    }
    ot_close(NULL);
    for (int i = 0; i < 2; i++) {
        free(h[i]);
        free(y[i]);
    }
}

/* Tensors that do not fit each other. */
static void test_refuses(void **st)
{
    (void)st;
    const struct shape s = {QF_Q4_0, QF_Q4_0, 64, false, false, false, ACT_SILU};
    struct block b;
    struct err e = {0};
    struct dev_weight *in, *out;
    block_make(&b, &s);
    ot_precision = PRECISION_DEFAULT;
    ot_add(&cpu_backend, NULL, 2);
    const struct ot_back *o = &ot_backs[0];
    assert_int_equal(o->b->weight_open(o->d, &in, &b.in, &e), 0);
    assert_int_equal(o->b->weight_open(o->d, &out, &b.out, &e), 0);
    struct tensor x = ot_tensor(o, 4, N_IN, b.x), gu = ot_tensor(o, 4, 128, NULL),
                  ff = ot_tensor(o, 4, 64, NULL), d = ot_tensor(o, 4, N_OUT, NULL);
    const struct op_mlp good = {.in = {.dst = gu, .src = x, .w = in},
                                .act = {.dst = ff, .gate_up = gu},
                                .out = {.dst = d, .src = ff, .w = out}};
    assert_int_equal(o->b->mlp(o->d, &good), 0);
    struct op_mlp a = good;
    a.in.w = NULL;
    assert_int_equal(o->b->mlp(o->d, &a), ERR_INVAL);
    a = good;
    a.out.w = in;
    assert_int_equal(o->b->mlp(o->d, &a), ERR_INVAL);
    a = good;
    a.act.dst.shape[0] = a.act.gate_up.shape[0] = 3;
    assert_int_equal(o->b->mlp(o->d, &a), ERR_INVAL);
    a = good;
    a.out.dst.buf = 0;
    assert_int_equal(o->b->mlp(o->d, &a), ERR_INVAL);
    a = good;
    a.act.single = true;
    assert_int_equal(o->b->mlp(o->d, &a), ERR_INVAL);
    ot_take(o, x, NULL);
    ot_take(o, gu, NULL);
    ot_take(o, ff, NULL);
    ot_take(o, d, NULL);
    o->b->weight_close(o->d, in);
    o->b->weight_close(o->d, out);
    ot_close(NULL);
    block_free(&b);
}

/* No memory for the scratch is an error, and the next try has it. */
static void test_memory(void **st)
{
    (void)st;
    const struct shape s = {QF_Q4_0, QF_Q4_0, 64, false, false, false, ACT_SILU};
    struct block b;
    struct err e = {0};
    struct dev_weight *in, *out;
    block_make(&b, &s);
    ot_add(&cpu_backend, NULL, 1);
    const struct ot_back *o = &ot_backs[0];
    assert_int_equal(o->b->weight_open(o->d, &in, &b.in, &e), 0);
    assert_int_equal(o->b->weight_open(o->d, &out, &b.out, &e), 0);
    struct tensor x = ot_tensor(o, 4, N_IN, b.x), gu = ot_tensor(o, 4, 128, NULL),
                  ff = ot_tensor(o, 4, 64, NULL), d = ot_tensor(o, 4, N_OUT, NULL);
    const struct op_mlp a = {.in = {.dst = gu, .src = x, .w = in},
                             .act = {.dst = ff, .gate_up = gu},
                             .out = {.dst = d, .src = ff, .w = out}};
    for (int i = 0; i < 3; i++) {
        mem_fail_after(i ? 2 : 1, true); /* what was had before is kept */
        assert_int_equal(o->b->mlp(o->d, &a), ERR_NOMEM);
        mem_fail_after(0, false);
    }
    assert_int_equal(o->b->mlp(o->d, &a), 0);
    ot_take(o, x, NULL);
    ot_take(o, gu, NULL);
    ot_take(o, ff, NULL);
    ot_take(o, d, NULL);
    o->b->weight_close(o->d, in);
    o->b->weight_close(o->d, out);
    ot_close(NULL);
    block_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_norm_waits),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
