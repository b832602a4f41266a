/* engine/quant against the reference's own bits, and conversions over all 16-bit patterns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "engine/base/buf.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/quant/kv8.h"
#include "engine/quant/split.h"
#include "tests/unxz.h"

static const char *const with_encoder[] = {"BF16", "Q4_0",  "Q4_1",  "Q5_0", "Q5_1",
                                           "Q8_0", "MXFP4", "TQ1_0", "TQ2_0"};
static const char *const without[] = {"Q2_K",   "Q3_K",   "Q4_K",    "Q5_K",  "Q6_K",
                                      "IQ4_NL", "IQ4_XS", "IQ1_S",   "IQ1_M", "IQ2_XXS",
                                      "IQ2_XS", "IQ2_S",  "IQ3_XXS", "IQ3_S", "NVFP4"};

static char *golden;
static size_t golden_len;

static int setup(void **st)
{
    (void)st;
    golden = unxz_read("tests/data/quants/ggml-quants.bin.xz", &golden_len);
    return golden ? 0 : -1;
}

static int teardown(void **st)
{
    (void)st;
    free(golden);
    return 0;
}

/* A copy of record TYPE.part (exactly sized, so that a sanitizer sees reads past its end). */
static void *record(const char *type, const char *part, size_t *n)
{
    char want[24] = "";
    snprintf(want, sizeof want, "%s.%s", type, part);
    for (size_t at = 0; at + 32 <= golden_len; at += 32 + *n) {
        uint64_t len;
        memcpy(&len, golden + at + 24, 8);
        *n = len;
        if (memcmp(golden + at, want, 24) == 0)
            return memcpy(xmalloc(len), golden + at + 32, len);
    }
    fail_msg("no record %s", want);
    return NULL;
}

static void same_floats(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], 4) != 0)
            fail_msg("%s: value %zu is %a, expected %a", what, i, (double)a[i], (double)b[i]);
}

static void check_decode(const char *type, const char *from, const char *to)
{
    size_t n_src, n_want;
    const struct quant_format *f = quant_format_by_name(type);
    assert_non_null(f);
    void *src = record(type, from, &n_src);
    float *want = record(type, to, &n_want);
    int64_t n = (int64_t)(n_want / sizeof(float));
    size_t bytes;
    assert_true(quant_row_bytes(f, n, &bytes));
    assert_int_equal(bytes, n_src);
    float *got = xmalloc(n_want);
    f->decode(src, got, n);
    same_floats(type, got, want, (size_t)n);
    free(got);
    free(want);
    free(src);
}

static void test_decode(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        check_decode(without[i], "random", "random_dequant");
    for (size_t i = 0; i < sizeof with_encoder / sizeof *with_encoder; i++) {
        check_decode(with_encoder[i], "random", "random_dequant");
        check_decode(with_encoder[i], "quant", "dequant");
    }
}

static void test_encode(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof with_encoder / sizeof *with_encoder; i++) {
        size_t n_src, n_want;
        const struct quant_format *f = quant_format_by_name(with_encoder[i]);
        float *src = record(f->name, "src", &n_src);
        uint8_t *want = record(f->name, "quant", &n_want), *got = xmalloc(n_want);
        memset(got, 0xa5, n_want);
        f->encode(src, got, (int64_t)(n_src / sizeof(float)));
        for (size_t k = 0; k < n_want; k++)
            if (got[k] != want[k])
                fail_msg("%s: byte %zu (block %zu) is %02x, expected %02x", f->name, k,
                         k / (size_t)f->block_bytes, got[k], want[k]);
        free(src);
        free(want);
        free(got);
    }
}

/* Blocks of one value, of zeros and of what has no meaning: defined, and finite where the input is. */
static void test_encode_edges(void **st)
{
    (void)st;
    float x[256], y[256];
    uint8_t block[256];
    for (size_t i = 1; i < sizeof with_encoder / sizeof *with_encoder; i++) {
        const struct quant_format *f = quant_format_by_name(with_encoder[i]);
        static const float fill[] = {0.0f, -0.0f, 1.0f, -3.5f, 1e-30f, 60000.0f};
        for (size_t k = 0; k < sizeof fill / sizeof *fill; k++) {
            for (int v = 0; v < f->block_len; v++)
                x[v] = fill[k];
            f->encode(x, block, f->block_len);
            f->decode(block, y, f->block_len);
            float part = f->id == QF_MXFP4 ? 0.2f : 0.01f;
            for (int v = 0; v < f->block_len; v++)
                assert_true(fabsf(y[v] - x[v]) <= fabsf(x[v]) * part + 1e-29f);
        }
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int k = 0; k < 3; k++) {
            x[7] = bad[k];
            f->encode(x, block, f->block_len);
            f->decode(block, y, f->block_len);
        }
    }
}

/* Encoders that search: the error of normal values is that of their bits, and what has no meaning is defined. */
static void test_encode_k(void **st)
{
    (void)st;
    static const struct {
        const char *name;
        double bound; /* of the error's square over the values' */
    } k[] = {{"Q4_K", 0.0065}, {"Q5_K", 0.0017}, {"Q6_K", 0.0005}};
    static float x[4096], y[4096];
    static uint8_t b[4096];
    uint32_t state = 7;
    for (int i = 0; i < 4096; i++) {
        x[i] = 0;
        for (int s = 0; s < 12; s++)
            x[i] += (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
    }
    for (size_t f = 0; f < sizeof k / sizeof *k; f++) {
        const struct quant_format *q = quant_format_by_name(k[f].name);
        double err = 0, all = 0;
        q->encode(x, b, 4096);
        q->decode(b, y, 4096);
        for (int i = 0; i < 4096; i++) {
            err += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
            all += (double)x[i] * (double)x[i];
        }
        if (!(err < k[f].bound * all))
            fail_msg("%s: error %g", k[f].name, err / all);
        static const float fill[] = {0.0f, 1.0f, -3.5f, NAN, INFINITY, -INFINITY, 1e30f};
        for (size_t v = 0; v < sizeof fill / sizeof *fill; v++) {
            float z[256];
            for (int i = 0; i < 256; i++)
                z[i] = v < 3 || i == 77 ? fill[v] : x[i];
            q->encode(z, b, 256);
            q->decode(b, y, 256);
            for (int i = 0; i < 256 && v < 3; i++)
                assert_true(fabsf(y[i] - z[i]) <= 0.02f * fabsf(z[i]));
        }
    }
}

/* The value of a half, from the definition. */
static double half_value(uint16_t h)
{
    int exp = h >> 10 & 31, man = h & 1023;
    double v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
    return h & 0x8000 ? -v : v;
}

static void test_halves(void **st)
{
    (void)st;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = f16_to_f32(h), b = bf16_to_f32(h);
        if ((h & 0x7c00) != 0x7c00)
            assert_true((double)f == half_value(h) && !signbit(f) == !(h & 0x8000));
        else if (h & 0x3ff)
            assert_true(isnan(f));
        else
            assert_true(isinf(f) && (f < 0) == (h >> 15));
        if (!isnan(f))
            assert_int_equal(f32_to_f16(f), h);
        else
            assert_true((f32_to_f16(f) & 0x7c00) == 0x7c00 && (f32_to_f16(f) & 0x3ff));
        if (!isnan(b))
            assert_int_equal(f32_to_bf16(b), h);
        else
            assert_true(isnan(bf16_to_f32(f32_to_bf16(b))));
    }
}

/* Rounding: each midpoint between neighbours goes to the even one, and just off it to the nearer. */
static void test_half_rounding(void **st)
{
    (void)st;
    for (uint16_t h = 0; h < 0x7bff; h++) {
        float mid = (float)((half_value(h) + half_value((uint16_t)(h + 1))) / 2);
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        assert_int_equal(f32_to_f16(mid), even);
        assert_int_equal(f32_to_f16(-mid), even | 0x8000);
        assert_int_equal(f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
    }
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(f32_to_f16(1e-40f), 0);
}

static void test_plain(void **st)
{
    (void)st;
    float x[5] = {0.0f, -1.5f, 3.14159274f, 1e9f, -6e-8f}, y[5];
    uint8_t raw[20];
    const struct quant_format *f = quant_format_get(QF_F32);
    f->encode(x, raw, 5);
    f->decode(raw, y, 5);
    same_floats("F32", y, x, 5);
    f = quant_format_get(QF_F16);
    f->encode(x, raw, 5);
    f->decode(raw, y, 5);
    assert_true(y[0] == 0.0f && y[1] == -1.5f && y[2] == 3.140625f && isinf(y[3]));
    assert_true(y[4] == -0x1p-24f);
}

static void test_table(void **st)
{
    (void)st;
    size_t bytes = 7;
    int n = 0;
    for (uint32_t id = 0; id < 100; id++) {
        const struct quant_format *f = quant_format_get(id);
        if (!f)
            continue;
        n++;
        assert_int_equal(f->id, id);
        assert_ptr_equal(quant_format_by_name(f->name), f);
        assert_true(f->block_len > 0 && f->block_bytes > 0 && f->decode);
    }
    assert_int_equal(n, 29);
    assert_null(quant_format_get(4));
    assert_null(quant_format_get(UINT32_MAX));
    assert_null(quant_format_by_name("Q4_9"));
    assert_ptr_equal(quant_format_by_name("q4_k"), quant_format_get(QF_Q4_K));
    const struct quant_format *q = quant_format_get(QF_Q4_K), *w = quant_format_get(QF_F32);
    assert_true(quant_row_bytes(q, 512, &bytes) && bytes == 288);
    assert_true(quant_row_bytes(q, 0, &bytes) && bytes == 0);
    assert_false(quant_row_bytes(q, 511, &bytes));
    assert_false(quant_row_bytes(q, -256, &bytes));
    assert_false(quant_row_bytes(w, INT64_MAX, &bytes));
    assert_int_equal(bytes, 0);
}

/* Formats of our own and those that the reference does not decode, by hand; fp8 at its landmarks (OCP E4M3). */
static void test_own(void **st)
{
    (void)st;
    static const struct {
        uint8_t code;
        float value;
    } e4m3[] = {{0x00, 0},    {0x01, 0x1p-9f}, {0x08, 0x1p-6f}, {0x38, 1},
                {0x3c, 1.5f}, {0x7e, 448},     {0xb8, -1}};
    uint8_t b[292] = {0};
    float x[256], scale = 0.25f, min = -4;
    for (size_t i = 0; i < sizeof e4m3 / sizeof *e4m3; i++)
        assert_true(quant_e4m3(e4m3[i].code) == e4m3[i].value);
    assert_true(isnan(quant_e4m3(0x7f)) && isnan(quant_e4m3(0xff)));
    memcpy(b, &scale, 4);
    b[4] = 0x80;
    b[5] = 0x38;
    b[35] = 3;
    quant_format_get(QF_I8_32)->decode(b, x, 32);
    assert_true(x[0] == -32 && x[1] == 14 && x[2] == 0 && x[31] == 0.75f);
    quant_format_get(QF_F8_32)->decode(b, x, 32);
    assert_true(x[0] == 0 && x[1] == 0.25f);
    quant_format_get(QF_Q8_K)->decode(b, x, 256);
    assert_true(x[0] == -32 && x[1] == 14 && x[31] == 0.75f && x[255] == 0);
    b[4] = 0xf7;
    quant_format_get(QF_F4_16)->decode(b, x, 16);
    assert_true(x[0] == 3 && x[8] == -3 && x[1] == 0 && x[9] == 0.75f && x[2] == 0);
    quant_format_get(QF_NF4_32)->decode(b, x, 32);
    assert_true(x[0] == 0 && x[16] == 0.25f && x[2] == -0.25f);
    b[4] = 0x91;
    quant_format_get(QF_B4_32)->decode(b, x, 32);
    assert_true(x[0] == 0x1p-6f && x[16] == -0x1p-6f);
    memcpy(b + 4, &min, 4);
    b[8] = 100;
    b[9] = 0x5f;
    quant_format_get(QF_I8M_32)->decode(b, x, 32);
    assert_true(x[0] == 21 && x[1] == 19.75f && x[2] == -4);
    quant_format_get(QF_I4_32)->decode(b, x, 32);
    assert_true(x[0] == -3 && x[16] == -2.5f && x[1] == -0.25f && x[17] == -2.75f);
    uint16_t d = f32_to_f16(0.5f);
    memcpy(b, &d, 2);
    b[4] = 0xfe;
    quant_format_get(QF_Q8_1)->decode(b, x, 32);
    assert_true(x[0] == -1);
    b[2] = 0x81;
    quant_format_get(QF_Q1_0)->decode(b, x, 128);
    assert_true(x[0] == 0.5f && x[1] == -0.5f && x[7] == 0.5f && x[8] == -0.5f);
}

/* What backends pack (codes, scales, offsets) gives the decoder's values. */
static void test_split(void **st)
{
    (void)st;
    for (uint32_t id = 0; id < 128; id++) {
        const struct quant_format *f = quant_format_get(id);
        const struct quant_shape *s = quant_shape_get((enum quant_fmt)id);
        if (!f || !s)
            continue;
        uint8_t b[2 * 292], code[512];
        float x[512], scale[32], min[32];
        uint32_t state = id;
        for (size_t i = 0; i < sizeof b; i++)
            b[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24) & 0x5d;
        int n = 2 * f->block_len;
        f->decode(b, x, n);
        quant_split(f->id, b, n, code, scale, min);
        for (int i = 0; i < n; i++) {
            float v = scale[i / 16] * quant_level_value(s, code[i]) + min[i / 16];
            if (isfinite(x[i]) && !(fabsf(v - x[i]) <= 1e-6f * fabsf(x[i])))
                fail_msg("%s: value %d is %g, its parts give %g", f->name, i, (double)x[i],
                         (double)v);
            assert_true(code[i] < 1 << s->bits);
        }
    }
}

/* Codes of the KV cache: the nearest of all, the even one where two are as near; never further than half a step. */
static void test_kv8(void **st)
{
    (void)st;
    uint32_t state = 7;
    for (int i = 0; i < 20000; i++) {
        state = state * 1664525u + 1013904223u;
        float y = ldexpf((float)(int32_t)state * 0x1p-31f, i % 24 - 14); /* to 512 */
        if (i % 5 == 0)
            y = rintf(y * 1024) / 1024; /* ties */
        int best = 0;
        for (int c = 0; c < 256; c++) {
            if ((c & 0x7f) == 0x7f)
                continue;
            float d = fabsf(quant_e4m3((uint8_t)c) - y), old = fabsf(quant_e4m3((uint8_t)best) - y);
            if (d < old || (d <= old && c % 2 == 0 && (signbit(y) != 0) == c >> 7))
                best = c;
        }
        float got = quant_e4m3(kv8_f8(y)), want = quant_e4m3((uint8_t)best);
        if (got < want || got > want)
            fail_msg("e4m3 of %a is %a, not %a", (double)y, (double)got, (double)want);
        float r = rintf(y);
        r = r > 127 ? 127 : r < -127 ? -127 : r;
        assert_int_equal(kv8_i8(y), (int)r);
    }
    uint8_t code[3];
    assert_true(isnan(kv8_pack_i8(code, (float[]){1, NAN, 2}, 3)));
    assert_true(isnan(kv8_pack_f8(code, (float[]){1, -INFINITY, 2}, 3)));
    assert_int_equal(code[0] | code[1] | code[2], 0);
    assert_true(kv8_pack_i8(code, (float[]){0, -0.0f, 0}, 3) == 0);
    assert_int_equal(code[0] | code[1] | code[2], 0);
    assert_true(kv8_pack_i8(code, (float[]){-254, 1, 3}, 3) == 2);
    assert_memory_equal(code, ((uint8_t[]){0x81, 0, 2}), 3); /* 0.5 to 0, 1.5 to 2 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),    cmocka_unit_test(test_decode),
        cmocka_unit_test(test_encode),   cmocka_unit_test(test_encode_edges),
        cmocka_unit_test(test_halves),   cmocka_unit_test(test_half_rounding),
        cmocka_unit_test(test_plain),    cmocka_unit_test(test_own),
        cmocka_unit_test(test_encode_k), cmocka_unit_test(test_split),
        cmocka_unit_test(test_kv8),
    };
    return cmocka_run_group_tests_name("quant", tests, setup, teardown);
}
