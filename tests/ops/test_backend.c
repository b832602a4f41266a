/* Backends as objects: ISA choice, buffers, KV copies, failed allocation, bad shapes, no allocation in a warm
 * step, and K/V conversion to half precision and to codes alike in every table. */
#include "tests/ops/ops_test.h"

#include "engine/quant/kv8.h"

static void test_isa(void **st)
{
    (void)st;
    struct err e = {0};
    const struct cpu_isa *isa = NULL;
    assert_int_equal(cpu_isa_pick(&isa, "sse9", &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "'sse9'"));
    for (int i = 0; i < CPU_N_ISA; i++) {
        assert_non_null(strstr(e.text, cpu_isas[i].name));
        struct err f = {0};
        int rc = cpu_isa_pick(&isa, cpu_isas[i].name, &f);
        assert_int_equal(rc, cpu_isa_usable(i) ? 0 : ERR_UNSUPPORTED);
        if (rc == 0)
            assert_string_equal(isa->name, cpu_isas[i].name);
    }
    assert_true(cpu_isa_usable(0));
    assert_false(cpu_isa_usable(-1));
    assert_int_equal(cpu_isa_pick(&isa, NULL, &e), 0);
    int best = CPU_N_ISA - 1;
    while (!cpu_isa_usable(best))
        best--;
    assert_string_equal(isa->name, cpu_isas[best].name);
}

static void test_open(void **st)
{
    (void)st;
    struct err e = {0};
    struct dev *d = NULL;
    struct backend_info info;
    assert_int_equal(cpu_backend.open(&d, &(struct backend_opts){.isa = "mmx"}, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "mmx"));
    assert_int_equal(cpu_backend.open(&d, &(struct backend_opts){.n_threads = -1}, &e), ERR_INVAL);
    assert_int_equal(ref_backend.open(&d, &(struct backend_opts){.isa = "avx2"}, &e), ERR_INVAL);
    assert_null(d);
    struct backend_opts o = {.n_threads = 1, .isa = "scalar", .precision = PRECISION_F32};
    assert_int_equal(cpu_backend.open(&d, &o, &e), 0);
    cpu_backend.info(d, &info);
    assert_string_equal(info.name, "cpu scalar f32");
    assert_int_equal(info.n_threads, 1);
    cpu_backend.close(d);
    for (long k = 1; k < 40; k++) { /* each allocation of an open in turn */
        struct dev *x = NULL;
        mem_fail_after(k, true);
        int rc = cpu_backend.open(&x, &o, &e);
        mem_fail_after(0, false);
        if (rc == 0) {
            cpu_backend.close(x);
            return;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_null(x);
    }
    fail_msg("open never came through");
}

static void test_buffers(void **st)
{
    (void)st;
    for (int b = 0; b < ot_n; b++) {
        const struct backend *k = ot_backs[b].b;
        struct dev *d = ot_backs[b].d;
        dev_buf buf[40], again;
        char in[100], out[100];
        for (int i = 0; i < 40; i++)
            assert_int_equal(k->buf_alloc(d, (size_t)(i * 10), &buf[i]), 0);
        assert_int_equal(k->read(d, buf[39], 0, out, 100), 0);
        for (int i = 0; i < 100; i++)
            assert_int_equal(out[i], 0);
        memset(in, 7, sizeof in);
        assert_int_equal(k->write(d, buf[39], 290, in, 100), 0);
        assert_int_equal(k->write(d, buf[39], 291, in, 100), ERR_INVAL);
        assert_int_equal(k->write(d, buf[39], SIZE_MAX, in, 2), ERR_INVAL);
        assert_int_equal(k->write(d, 0, 0, in, 1), ERR_INVAL);
        assert_int_equal(k->read(d, 9999, 0, out, 1), ERR_INVAL);
        assert_int_equal(k->read(d, buf[39], 290, out, 100), 0);
        assert_memory_equal(in, out, 100);
        k->buf_free(d, buf[3]);
        k->buf_free(d, buf[3]); /* twice is nothing */
        assert_int_equal(k->read(d, buf[3], 0, out, 1), ERR_INVAL);
        assert_int_equal(k->buf_alloc(d, 8, &again), 0);
        assert_int_equal(again, buf[3]);
        if (k == &ref_backend || k == &cpu_backend) { /* a plug-in has its own allocator */
            mem_fail_after(1, true);
            int rc = k->buf_alloc(d, 8, &again);
            mem_fail_after(0, false);
            assert_int_equal(rc, ERR_NOMEM);
        }
        assert_int_equal(k->buf_alloc(d, SIZE_MAX - 64, &again), ERR_NOMEM);
        for (int i = 0; i < 40; i++)
            k->buf_free(d, buf[i]);
    }
}

/* A one-layer model step: 2 rows of a sequence at positions 14.. of blocks given. */
struct mini {
    const struct ot_back *o;
    struct dev_kv *kv;
    struct tensor qkv, dst, freq;
    int32_t pos[2], tok[2], start[2], table[3];
    struct step_meta m;
    struct op_rope_kv r;
    struct op_attn a;
};
enum { HEADS = 2, HD = 32, COLS = (HEADS + 2) * HD };

static void mini_open(struct mini *t, const struct ot_back *o, enum dtype dt, const float *data)
{
    struct err e = {0};
    struct kv_desc k = {.n_layer = 3, .n_kv_head = 1, .head_dim = HD, .n_block = 5, .dtype = dt};
    float f[HD / 2];
    ot_fill(f, HD / 2, 1);
    *t = (struct mini){.o = o, .start = {0, 2}, .table = {1, 2, 3}};
    assert_int_equal(o->b->kv_open(o->d, &t->kv, &k, &e), 0);
    t->qkv = ot_tensor(o, 2, COLS, data);
    t->dst = ot_tensor(o, 2, HEADS * HD, NULL);
    t->freq = ot_tensor(o, 1, HD / 2, f);
    t->m = (struct step_meta){.n_row = 2,
                              .n_seq = 1,
                              .tok = t->tok,
                              .pos = t->pos,
                              .seq_start = t->start,
                              .block_table = t->table,
                              .block_stride = 3};
    t->r = (struct op_rope_kv){.qkv = t->qkv,
                               .n_head = HEADS,
                               .n_kv_head = 1,
                               .head_dim = HD,
                               .n_rot = HD,
                               .style = ROPE_NONE,
                               .inv_freq = t->freq,
                               .attn_factor = 1,
                               .kv = t->kv,
                               .layer = 2};
    t->a = (struct op_attn){.dst = t->dst,
                            .qkv = t->qkv,
                            .n_head = HEADS,
                            .n_kv_head = 1,
                            .head_dim = HD,
                            .scale = 0.2f,
                            .kv = t->kv,
                            .layer = 2};
}

static void mini_close(struct mini *t)
{
    ot_take(t->o, t->qkv, NULL);
    ot_take(t->o, t->dst, NULL);
    ot_take(t->o, t->freq, NULL);
    t->o->b->kv_close(t->o->d, t->kv);
}

static int mini_step(struct mini *t, int pos)
{
    t->pos[0] = pos;
    t->pos[1] = pos + 1;
    int rc = t->o->b->step_begin(t->o->d, &t->m);
    rc = rc ? rc : t->o->b->rope_kv(t->o->d, &t->r);
    return rc ? rc : t->o->b->attn(t->o->d, &t->a);
}

static void mini_read(struct mini *t, float *out)
{
    t->o->b->read(t->o->d, t->dst.buf, t->dst.off, out, sizeof(float) * 2 * HEADS * HD);
}

/* A copied block reads like its source, whatever is then written to the source. */
static void test_kv_copy(void **st)
{
    (void)st;
    float data[2 * COLS], one[2 * HEADS * HD], two[2 * HEADS * HD];
    ot_fill(data, 2 * COLS, 2);
    for (int b = 0; b < ot_n; b++)
        for (int dt = DT_F32; dt <= DT_F8; dt++) {
            struct mini t;
            if (dt == DT_I32)
                continue;
            mini_open(&t, &ot_backs[b], (enum dtype)dt, data);
            for (int pos = 0; pos < 16; pos += 2)
                assert_int_equal(mini_step(&t, pos), 0);
            assert_int_equal(mini_step(&t, 16), 0);
            mini_read(&t, one);
            int32_t src = 1, dst = 4, zero = 0;
            struct op_kv_copy c = {.kv = t.kv, .src = &src, .dst = &dst, .n = 1};
            assert_int_equal(t.o->b->kv_copy(t.o->d, &c), 0);
            float other[2 * COLS];
            ot_fill(other, 2 * COLS, 2);
            t.o->b->write(t.o->d, t.qkv.buf, t.qkv.off, other, sizeof other);
            assert_int_equal(mini_step(&t, 4), 0); /* changes block 1 */
            t.o->b->write(t.o->d, t.qkv.buf, t.qkv.off, data, sizeof data);
            t.table[0] = 4;
            assert_int_equal(mini_step(&t, 16), 0);
            mini_read(&t, two);
            ot_same(t.o, "copied block", two, one, 2 * HEADS * HD);
            t.table[0] = 1;
            assert_int_equal(mini_step(&t, 16), 0);
            mini_read(&t, two);
            assert_memory_not_equal(two, one, sizeof one);
            c.dst = &zero;
            assert_int_equal(t.o->b->kv_copy(t.o->d, &c), ERR_INVAL);
            c.dst = &src;
            assert_int_equal(t.o->b->kv_copy(t.o->d, &c), ERR_INVAL);
            mini_close(&t);
        }
}

/* Stored values come back as V through attention to one token: bits as engine/quant converts. */
static void test_kv_convert(void **st)
{
    (void)st;
    static const float odd[] = {
        0,       -0.0f,   1,          65504,      65519,          1e-7f,          5.9e-8f,
        2.9e-8f, 6.1e-5f, 6.0975e-5f, 1.0009766f, 1.00048828125f, 1.00146484375f, 3.3895e38f,
        1e-40f,  -2.5f};
    float data[2 * COLS] = {0}, got[2 * HEADS * HD];
    for (int i = 0; i < HD; i++) {
        float v = i < 16 ? odd[i] : ot_rand() * 100;
        data[(HEADS + 1) * HD + i] = v;
    }
    for (int b = 0; b < ot_n; b++)
        for (int dt = DT_F16; dt <= DT_BF16; dt++) {
            struct mini t;
            mini_open(&t, &ot_backs[b], (enum dtype)dt, data);
            t.a.scale = 0;
            assert_int_equal(mini_step(&t, 0), 0);
            mini_read(&t, got); /* the first row sees only itself */
            for (int i = 0; i < HD; i++) {
                float v = data[(HEADS + 1) * HD + i];
                float w = dt == DT_F16 ? f16_to_f32(f32_to_f16(v)) : bf16_to_f32(f32_to_bf16(v));
                if (isinf(w) ||
                    w == 0) /* 0 times an infinity, and the sign of zero, are not of interest */
                    continue;
                if (memcmp(&got[i], &w, sizeof w))
                    fail_msg("%s: dtype %d: %a became %a, not %a", t.o->name, dt, (double)v,
                             (double)got[i], (double)w);
            }
            mini_close(&t);
        }
}

/* Codes and scales are those of engine/quant/kv8.h, ties, zeros and what is not finite included. */
static void test_kv_codes(void **st)
{
    (void)st;
    static const float tie[2][15] = {
        {127, 0.5f, 1.5f, -2.5f, 126.5f, -126.5f, 0.49f, -0.51f, 3, -127, 0, 1e-30f, 77, -1, 2},
        {448, 17, 19, -432, 0x1p-10f, 0x3p-10f, -0x5p-10f, 0x1p-6f, 0x1.fp-7f, 440, 0, 1e-30f, -448,
         23, 1},
    };
    static const float bad[] = {INFINITY, -INFINITY, NAN, 1e-45f, 1e-38f};
    float data[2 * COLS] = {0}, got[2 * HEADS * HD], x[HD];
    uint8_t code[HD];
    for (int b = 0; b < ot_n; b++)
        for (int c = 0; c < 14; c++) {
            const bool f8 = c % 2;
            struct mini t;
            for (int i = 0; i < HD; i++)
                x[i] = c < 2   ? (i < 15 ? tie[f8][i] : tie[f8][0] * ot_rand())
                       : c < 4 ? 0
                               : ot_rand() * (c >= 10 ? 1e-44f : 3);
            if (c >= 4)
                x[3] = bad[(c - 4) / 2];
            memcpy(data + (HEADS + 1) * HD, x, sizeof x);
            mini_open(&t, &ot_backs[b], f8 ? DT_F8 : DT_I8, data);
            t.a.scale = 0;
            assert_int_equal(mini_step(&t, 0), 0);
            mini_read(&t, got);
            const float s = f8 ? kv8_pack_f8(code, x, HD) : kv8_pack_i8(code, x, HD);
            assert_true(isnan(s) == (c >= 4 && c < 10));
            for (int i = 0; i < HD; i++) {
                const float w = (f8 ? quant_e4m3(code[i]) : (float)(int8_t)code[i]) * s;
                if (isnan(w) ? !isnan(got[i]) : got[i] < w || got[i] > w)
                    fail_msg("%s: case %d: %a became %a, not %a", t.o->name, c, (double)x[i],
                             (double)got[i], (double)w);
            }
            mini_close(&t);
        }
}

#define BAD(change, call)                                                                          \
    do {                                                                                           \
        struct mini s = t;                                                                         \
        change;                                                                                    \
        if (s.o->b->step_begin(s.o->d, &s.m) == 0)                                                 \
            assert_int_equal(call, ERR_INVAL);                                                     \
    } while (0)

static void test_shapes(void **st)
{
    (void)st;
    float data[2 * COLS] = {0};
    for (int b = 0; b < ot_n; b++) {
        const struct backend *k = ot_backs[b].b;
        struct mini t;
        mini_open(&t, &ot_backs[b], DT_F16, data);
        assert_int_equal(mini_step(&t, 0), 0);
        BAD(s.r.layer = 3, k->rope_kv(s.o->d, &s.r));
        BAD(s.r.style = ROPE_NEOX; s.r.n_rot = 33, k->rope_kv(s.o->d, &s.r));
        BAD(s.r.style = ROPE_NEOX; s.r.n_rot = HD + 2, k->rope_kv(s.o->d, &s.r));
        BAD(s.r.qkv.shape[1]--, k->rope_kv(s.o->d, &s.r));
        BAD(s.r.qkv.off += 4 * 1024, k->rope_kv(s.o->d, &s.r));
        BAD(s.r.kv = NULL, k->rope_kv(s.o->d, &s.r));
        BAD(s.r.q_norm = t.freq, k->rope_kv(s.o->d, &s.r)); /* half as long as a head */
        BAD(s.a.n_head = 3, k->attn(s.o->d, &s.a));
        BAD(s.a.dst.buf = 9999, k->attn(s.o->d, &s.a));
        BAD(s.a.window = INT32_MIN, k->attn(s.o->d, &s.a));
        BAD(s.a.head_dim = 16, k->attn(s.o->d, &s.a));
        t.table[0] = 5; /* no such block */
        BAD((void)0, k->attn(s.o->d, &s.a));
        BAD((void)0, k->rope_kv(s.o->d, &s.r));
        t.table[0] = 0; /* the null block */
        BAD((void)0, k->attn(s.o->d, &s.a));
        t.table[0] = 1;
        t.pos[1] = 48; /* behind the table */
        BAD((void)0, k->rope_kv(s.o->d, &s.r));
        BAD((void)0, k->attn(s.o->d, &s.a));
        t.pos[1] = -1;
        assert_int_equal(k->step_begin(t.o->d, &t.m), ERR_INVAL);
        assert_int_equal(k->attn(t.o->d, &t.a), ERR_INVAL); /* no step */
        t.pos[1] = 1;
        t.start[1] = 1;
        assert_int_equal(k->step_begin(t.o->d, &t.m), ERR_INVAL);
        mini_close(&t);
        struct err e = {0};
        struct dev_kv *kv = NULL;
        struct kv_desc bad = {
            .n_layer = 1, .n_kv_head = 1, .head_dim = 64, .n_block = 2, .dtype = DT_I32};
        assert_int_equal(k->kv_open(t.o->d, &kv, &bad, &e), ERR_INVAL);
        assert_non_null(strstr(e.text, "dtype"));
        bad.dtype = DT_F16;
        bad.n_layer = bad.n_kv_head = bad.n_block = INT32_MAX;
        assert_int_equal(k->kv_open(t.o->d, &kv, &bad, &e), ERR_NOMEM);
        bad.n_layer = 0;
        assert_int_equal(k->kv_open(t.o->d, &kv, &bad, &e), ERR_INVAL);
        struct dev_weight *w = NULL;
        struct weight_desc wd = {
            .name = "blk.0.x", .n_in = 33, .n_part = 1, .part = {{QF_Q8_0, data, 1}}};
        assert_int_equal(k->weight_open(t.o->d, &w, &wd, &e), ERR_INVAL);
        assert_non_null(strstr(e.text, "blk.0.x"));
        wd.part[0].fmt = (enum quant_fmt)5;
        assert_int_equal(k->weight_open(t.o->d, &w, &wd, &e), ERR_UNSUPPORTED);
    }
}

static void test_no_alloc(void **st)
{
    (void)st;
    float data[2 * COLS];
    float logits[4 * 500];
    ot_fill(data, 2 * COLS, 2);
    ot_fill(logits, 4 * 500, 2);
    struct sample_row rows[4];
    struct sample_out out[4];
    for (int i = 0; i < 4; i++)
        rows[i] = (struct sample_row){.temperature = 1,
                                      .top_p = 0.9f,
                                      .top_k = 30 * i,
                                      .target = -1,
                                      .n_top = 5,
                                      .repetition_penalty = 1.1f};
    for (int b = 1; b < ot_n; b++) {
        struct mini t;
        mini_open(&t, &ot_backs[b], DT_F16, data);
        t.r.style = ROPE_NEOX;
        struct tensor x = ot_tensor(t.o, 4, 500, logits);
        struct op_sample s = {.logits = x, .rows = rows, .out = out};
        uint64_t before = 0;
        for (int i = 0; i < 40; i++) {
            if (i == 2)
                before = mem_count();
            assert_int_equal(mini_step(&t, i), 0);
            assert_int_equal(ot_sample(t.o, &s), 0);
        }
        assert_int_equal(mem_count(), before);
        ot_take(t.o, x, NULL);
        mini_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_isa),        cmocka_unit_test(test_open),
        cmocka_unit_test(test_buffers),    cmocka_unit_test(test_kv_copy),
        cmocka_unit_test(test_kv_convert), cmocka_unit_test(test_kv_codes),
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_no_alloc),
    };
    return cmocka_run_group_tests(tests, ot_open, ot_close);
}
