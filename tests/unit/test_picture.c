/* api/picture against what Pillow read in the same files (tests/data/image/odd), its own files, and resampling.
 *   test_picture                 the tests
 *   test_picture --write FOLDER  writes pictures for test_picture.py, which reads them with Pillow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include <gnutls/crypto.h>

#include "api/picture.h"
#include "api/picture_impl.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "tests/unxz.h"

#define DIR "tests/data/image/odd/"

static struct picture read_ok(const char *name)
{
    char path[256];
    size_t n;
    struct picture p;
    struct err e = {0};
    snprintf(path, sizeof path, DIR "%s", name);
    char *data = unxz_read(path, &n);
    assert_non_null(data);
    if (picture_decode(&p, data, n, NULL, &e))
        fail_msg("%s: %s", name, e.text);
    free(data);
    return p;
}

/* ---- decoding ---- */

static void hex(char *to, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(to + 2 * i, 3, "%02x", p[i]);
}

static double block_mean(const struct picture *p, int bx, int by, int c)
{
    int x0 = bx * p->width / 8, x1 = (bx + 1) * p->width / 8;
    int y0 = by * p->height / 8, y1 = (by + 1) * p->height / 8;
    double sum = 0;
    x1 = x1 > x0 ? x1 : x0 + 1;
    y1 = y1 > y0 ? y1 : y0 + 1;
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++)
            sum += p->rgba[((size_t)y * (size_t)p->width + (size_t)x) * 4 + (size_t)c];
    return sum / ((x1 - x0) * (y1 - y0));
}

static void check_file(char *line)
{
    char *at = NULL, *field[6], digest[65];
    for (int i = 0; i < 6; i++) {
        field[i] = strtok_r(i ? NULL : line, " ", &at);
        assert_non_null(field[i]);
    }
    struct picture p = read_ok(field[0]);
    if (p.width != strtol(field[1], NULL, 10) || p.height != strtol(field[2], NULL, 10) ||
        p.alpha != (field[3][0] == '1'))
        fail_msg("%s: %d x %d, alpha %d", field[0], p.width, p.height, p.alpha);
    for (int i = 0; i < 8 * 8 * 4; i++) {
        unsigned want;
        assert_int_equal(sscanf(field[5] + 2 * i, "%2x", &want), 1);
        double got = block_mean(&p, i / 4 % 8, i / 32, i % 4);
        if (fabs(got - want) > 1.5)
            fail_msg("%s: block %d, %d, channel %d: %.1f, not %u", field[0], i / 4 % 8, i / 32,
                     i % 4, got, want);
    }
    if (field[4][0] != '-') {
        uint8_t sum[32];
        size_t n = (size_t)p.width * (size_t)p.height * 4;
        assert_int_equal(gnutls_hash_fast(GNUTLS_DIG_SHA256, p.rgba, n, sum), 0);
        hex(digest, sum, 32);
        if (strcmp(digest, field[4]) != 0)
            fail_msg("%s: other pixels than recorded", field[0]);
    }
    picture_free(&p);
    assert_null(p.rgba);
}

static void test_files(void **st)
{
    size_t n;
    char *text = unxz_read(DIR "expected.txt", &n), *at = NULL;
    int files = 0;
    (void)st;
    assert_non_null(text);
    for (char *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at))
        if (line[0] != '#') {
            check_file(line);
            files++;
        }
    assert_int_equal(files, 40);
    free(text);
}

static void test_refused(void **st)
{
    static const struct {
        const char *name;
        int code;
        const char *text;
    } t[] = {
        {"bad-12bit.jpg", ERR_UNSUPPORTED, "precision 12"},
        {"bad-bomb.jpg", ERR_LIMIT, "60000 x 60000"},
        {"bad-bomb.png", ERR_LIMIT, "60000 x 60000"},
        {"bad-crc.png", ERR_PARSE, "broken PNG"},
        {"bad-empty.png", ERR_PARSE, "empty"},
        {"bad-not-an-image.jpg", ERR_PARSE, "no image file"},
        {"bad-scans.jpg", ERR_LIMIT, "scans"},
        {"bad-work.jpg.xz", ERR_LIMIT, "18 scans"},
        {"bad-truncated.jpg", ERR_PARSE, "broken JPEG"},
        {"cat.bmp", ERR_UNSUPPORTED, "a BMP image: send PNG, JPEG or WebP"},
        {"rocket-anim.gif", ERR_UNSUPPORTED, "a GIF image: send PNG, JPEG or WebP"},
    };
    (void)st;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char path[256];
        size_t n;
        struct picture p = {1, 1, true, NULL};
        struct err e = {0};
        snprintf(path, sizeof path, DIR "%s", t[i].name);
        char *data = unxz_read(path, &n);
        assert_non_null(data);
        int rc = picture_decode(&p, data, n, NULL, &e);
        if (rc != t[i].code || e.code != rc || !strstr(e.text, t[i].text))
            fail_msg("%s: %d (%s)", t[i].name, rc, e.text);
        assert_null(p.rgba);
        assert_int_equal(p.width, 0);
        free(data);
    }
}

static void test_named_formats(void **st)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *name;
    } t[] = {
        {"II*\0xxxx", 8, "a TIFF"},
        {"\0\0\0\x20"
         "ftypavif",
         12, "an AVIF"},
        {"\0\0\0\x20"
         "ftypheic",
         12, "a HEIC"},
        {"<svg xmlns", 10, "an SVG"},
        {"%PDF-1.7", 8, "a PDF"},
        {"\xff\x0a\x11", 3, "a JPEG XL"},
        {"8BPS", 4, "a PSD"},
    };
    (void)st;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct picture p;
        struct err e = {0};
        assert_int_equal(picture_decode(&p, t[i].bytes, t[i].n, NULL, &e), ERR_UNSUPPORTED);
        if (strncmp(e.text, t[i].name, strlen(t[i].name)) != 0)
            fail_msg("%s: %s", t[i].name, e.text);
    }
}

/* A TIFF block with one entry, type and value as given; 0 bytes of value behind it. */
static size_t make_tiff(uint8_t *to, bool big, unsigned type, unsigned count, unsigned value)
{
    const uint32_t fields[] = {8, 1, 0x112, type, count};
    static const int bytes[] = {4, 2, 2, 2, 4};
    size_t n = 4;
    memcpy(to, big ? "MM\0*" : "II*\0", 4);
    for (int i = 0; i < 6; i++) {
        int w = i < 5 ? bytes[i] : type == 3 ? 2 : 4;
        uint32_t v = i < 5 ? fields[i] : value;
        for (int k = 0; k < w; k++)
            to[n++] = (uint8_t)(v >> 8 * (big ? w - 1 - k : k));
    }
    return n;
}

static void test_orientation(void **st)
{
    uint8_t b[64] = "Exif\0";
    (void)st;
    for (int big = 0; big < 2; big++)
        for (unsigned type = 3; type <= 4; type++) {
            for (unsigned v = 0; v < 12; v++) {
                size_t n = make_tiff(b + 6, big, type, 1, v);
                int want = v >= 1 && v <= 8 ? (int)v : 1;
                assert_int_equal(picture__exif_orientation(b + 6, n), want);
                assert_int_equal(picture__exif_orientation(b, n + 6), want);
            }
            size_t n = make_tiff(b, big, type, 1, 6);
            for (size_t cut = 0; cut < n; cut++) {
                uint8_t *copy = memcpy(xmalloc(cut), b, cut);
                assert_int_equal(picture__exif_orientation(copy, cut), 1);
                free(copy);
            }
            assert_int_equal(picture__exif_orientation(b, make_tiff(b, big, 2, 1, 6)), 1);
            assert_int_equal(picture__exif_orientation(b, make_tiff(b, big, type, 2, 6)), 1);
            memcpy(b, "Exif\0", 6);
        }
    /* A directory that points outside, one that says 65535 entries. */
    size_t n = make_tiff(b, false, 3, 1, 6);
    memset(b + 4, 0xff, 4);
    assert_int_equal(picture__exif_orientation(b, n), 1);
    n = make_tiff(b, false, 3, 1, 6);
    memset(b + 8, 0xff, 3);
    assert_int_equal(picture__exif_orientation(b, n), 1);
}

/* ---- encoding ---- */

/* Smooth with some detail, so that lossy formats can show what they can; alpha over the whole range. */
static uint8_t *make_pixels(int w, int h, bool alpha)
{
    int step = alpha ? 4 : 3;
    uint8_t *p = xmalloc((size_t)w * (size_t)h * (size_t)step), *at = p;
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) {
            for (int c = 0; c < 3; c++)
                *at++ =
                    (uint8_t)lrint(127.5 + 60 * sin(x * 0.07 + c) + 55 * cos(y * 0.05 + 2 * c) +
                                   (double)(hash_u64((uint64_t)(y * w + x) * 4 + (uint64_t)c) % 7));
            if (alpha)
                *at++ = (uint8_t)((x * 5 + y * 3) & 255);
        }
    return p;
}

static double psnr(const uint8_t *px, int step, const struct picture *got)
{
    double sum = 0;
    size_t n = (size_t)got->width * (size_t)got->height;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++) {
            double d = px[i * (size_t)step + c] - got->rgba[i * 4 + c];
            sum += d * d;
        }
    return sum > 0 ? 10 * log10(255 * 255 / (sum / (double)(3 * n))) : INFINITY;
}

static bool same_pixels(const uint8_t *px, bool alpha, const struct picture *got)
{
    size_t n = (size_t)got->width * (size_t)got->height, step = alpha ? 4 : 3;
    for (size_t i = 0; i < n; i++)
        if (memcmp(px + i * step, got->rgba + i * 4, step) != 0 ||
            (!alpha && got->rgba[i * 4 + 3] != 255))
            return false;
    return true;
}

static void round_trip(int w, int h, bool alpha, enum picture_format f, int quality, double least)
{
    struct picture_encode o = {f, quality, "a cat\nSteps: 20"};
    struct buf out = {0};
    struct picture p;
    struct err e = {0};
    uint8_t *px = make_pixels(w, h, alpha);
    buf_str(&out, "before");
    if (picture_write(&out, px, w, h, alpha, &o, &e))
        fail_msg("%s %d x %d: %s", picture_name(f), w, h, e.text);
    assert_memory_equal(out.p, "before", 6);
    if (picture_decode(&p, out.p + 6, out.len - 6, NULL, &e))
        fail_msg("%s %d x %d: %s", picture_name(f), w, h, e.text);
    assert_int_equal(p.width, w);
    assert_int_equal(p.height, h);
    assert_int_equal(p.alpha, alpha && f != PICTURE_JPEG);
    double db = psnr(px, alpha ? 4 : 3, &p);
    if (isinf(least) ? !same_pixels(px, alpha, &p) : db < least)
        fail_msg("%s %d x %d, alpha %d, quality %d: %.1f dB", picture_name(f), w, h, alpha, quality,
                 db);
    picture_free(&p);
    buf_free(&out);
    free(px);
}

static void test_lossless(void **st)
{
    static const int sizes[][2] = {{1, 1}, {1, 7}, {17, 5}, {64, 64}, {200, 3}, {129, 257}};
    (void)st;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int alpha = 0; alpha < 2; alpha++) {
            round_trip(sizes[i][0], sizes[i][1], alpha, PICTURE_PNG, 0, INFINITY);
            round_trip(sizes[i][0], sizes[i][1], alpha, PICTURE_WEBP, 100, INFINITY);
        }
}

static void test_lossy(void **st)
{
    (void)st;
    round_trip(200, 120, false, PICTURE_JPEG, 100, 45);
    round_trip(200, 120, false, PICTURE_JPEG, 90, 37);
    round_trip(200, 120, false, PICTURE_JPEG, 75, 33);
    round_trip(200, 120, false, PICTURE_JPEG, 0, 14);
    round_trip(199, 121, false, PICTURE_WEBP, 95, 37);
    round_trip(199, 121, false, PICTURE_WEBP, 50, 30);
    round_trip(199, 121, true, PICTURE_WEBP, 90, 20);
    round_trip(3, 2, false, PICTURE_WEBP, 0, 10);
    round_trip(1, 1, false, PICTURE_JPEG, 95, 30);
}

static void test_jpeg_flattens(void **st)
{
    static const uint8_t px[] = {200, 0, 0, 0, 200, 0, 0, 255, 200, 0, 0, 128};
    struct picture_encode o = {PICTURE_JPEG, 100, NULL};
    (void)st;
    for (int i = 0; i < 3; i++) {
        struct buf out = {0};
        struct picture p;
        struct err e = {0};
        uint8_t many[8 * 8 * 4];
        for (size_t k = 0; k < sizeof many; k += 4)
            memcpy(many + k, px + i * 4, 4);
        assert_int_equal(picture_write(&out, many, 8, 8, true, &o, &e), 0);
        assert_int_equal(picture_decode(&p, out.p, out.len, NULL, &e), 0);
        double a = px[i * 4 + 3] / 255.0;
        assert_true(fabs(p.rgba[0] - (200 * a + 255 * (1 - a))) < 3);
        assert_true(fabs(p.rgba[1] - 255 * (1 - a)) < 3);
        picture_free(&p);
        buf_free(&out);
    }
}

/* Sampling factors of the first component, from the frame header. */
static int jpeg_sampling(const struct buf *b)
{
    for (size_t i = 0; i + 12 < b->len; i++)
        if (memcmp(b->p + i, "\xff\xc0\0\x11\x08", 5) == 0)
            return (unsigned char)b->p[i + 11];
    return -1;
}

static void test_jpeg_sampling(void **st)
{
    uint8_t *px = make_pixels(40, 30, false);
    (void)st;
    for (int q = 89; q <= 90; q++) {
        struct picture_encode o = {PICTURE_JPEG, q, NULL};
        struct buf out = {0};
        struct err e = {0};
        assert_int_equal(picture_write(&out, px, 40, 30, false, &o, &e), 0);
        assert_int_equal(jpeg_sampling(&out), q < 90 ? 0x22 : 0x11);
        buf_free(&out);
    }
    free(px);
}

static bool holds(const struct buf *b, const void *what, size_t n)
{
    return memmem(b->p, b->len, what, n) != NULL;
}

static int write_text(struct buf *out, enum picture_format f, const char *text, struct err *e)
{
    static const uint8_t px[3 * 4] = {9, 8, 7};
    struct picture_encode o = {f, 90, text};
    return picture_write(out, px, 2, 2, false, &o, e);
}

static void test_text(void **st)
{
    struct buf out = {0};
    struct err e = {0};
    (void)st;
    assert_int_equal(write_text(&out, PICTURE_PNG, "caf\xc3\xa9", &e), 0);
    assert_true(holds(&out, "tEXtparameters\0caf\xe9", 20 - 1));
    buf_clear(&out);
    assert_int_equal(write_text(&out, PICTURE_PNG, "\xe7\x8c\xab", &e), 0);
    assert_true(holds(&out, "iTXtparameters\0\0\0\0\0\xe7\x8c\xab", 22));
    for (enum picture_format f = PICTURE_JPEG; f <= PICTURE_WEBP; f++) {
        buf_clear(&out);
        assert_int_equal(write_text(&out, f, "a\xe7\x8c\xab\xf0\x9f\x90\x88", &e), 0);
        assert_true(holds(&out, "UNICODE\0\0a\x73\x2b\xd8\x3d\xdc\x08", 16));
    }
    buf_clear(&out);
    assert_int_equal(write_text(&out, PICTURE_PNG, "\xff", &e), ERR_INVAL);
    assert_int_equal(out.len, 0);
    buf_free(&out);
}

static void test_long_text(void **st)
{
    struct buf out = {0};
    struct err e = {0};
    char *s = xcalloc(70000, 1);
    (void)st;
    memset(s, 'x', 40000); /* too long for a marker as UTF-16, not as ASCII */
    assert_int_equal(write_text(&out, PICTURE_JPEG, s, &e), 0);
    assert_true(holds(&out, "ASCII\0\0\0xxx", 11));
    buf_clear(&out);
    memset(s, 'x', 65475); /* the most that fits */
    assert_int_equal(write_text(&out, PICTURE_JPEG, s, &e), 0);
    buf_clear(&out);
    s[65475] = 'x';
    assert_int_equal(write_text(&out, PICTURE_JPEG, s, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "parameters"));
    assert_int_equal(out.len, 0);
    assert_int_equal(write_text(&out, PICTURE_WEBP, s, &e), 0);
    buf_clear(&out);
    assert_int_equal(write_text(&out, PICTURE_PNG, s, &e), 0);
    buf_free(&out);
    free(s);
}

static void test_write_errors(void **st)
{
    uint8_t *px = make_pixels(64, 64, true);
    (void)st;
    for (enum picture_format f = PICTURE_PNG; f <= PICTURE_WEBP; f++) {
        struct picture_encode o = {f, 80, NULL};
        struct buf out = {.limit = 300};
        struct err e = {0};
        buf_str(&out, "kept");
        assert_int_equal(picture_write(&out, px, 64, 64, true, &o, &e), ERR_LIMIT);
        assert_int_equal(out.len, 4);
        assert_string_equal(out.p, "kept");
        buf_free(&out);
        assert_int_equal(picture_write(&out, px, 0, 64, true, &o, &e), ERR_INVAL);
    }
    struct picture_encode o = {PICTURE_JPEG, 80, NULL};
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(picture_write(&out, px, 70000, 1, false, &o, &e), ERR_LIMIT);
    o.format = PICTURE_WEBP;
    assert_int_equal(picture_write(&out, px, 1, 16384, false, &o, &e), ERR_LIMIT);
    assert_null(out.p);
    free(px);
    assert_string_equal(picture_type(PICTURE_JPEG), "image/jpeg");
    assert_string_equal(picture_name(PICTURE_WEBP), "webp");
}

/* ---- resampling ---- */

/* Largest difference of colours times alpha, and of alpha, from `want`. */
static double worst(const struct picture *p, const uint8_t *want)
{
    double most = 0;
    for (size_t i = 0; i < (size_t)p->width * (size_t)p->height; i++)
        for (size_t c = 0; c < 4; c++) {
            double v = p->rgba[i * 4 + c];
            if (c < 3)
                v *= p->rgba[i * 4 + 3] / 255.0;
            most = fmax(most, fabs(v - want[i * 4 + c]));
        }
    return most;
}

static unsigned u16(const char *p)
{
    return (unsigned char)p[0] | (unsigned)(unsigned char)p[1] << 8;
}

static void test_resize(void **st)
{
    size_t n, at = 0;
    char *want = unxz_read(DIR "resize.bin.xz", &n);
    struct picture in = read_ok("astronaut-rgba.png"), p;
    int sets = 0;
    (void)st;
    assert_non_null(want);
    struct picture opaque = {in.width, in.height, false, xmalloc(128 * 128 * 4)};
    memcpy(opaque.rgba, in.rgba, 128 * 128 * 4);
    for (size_t i = 3; i < 128 * 128 * 4; i += 4)
        opaque.rgba[i] = 255;
    for (; at < n; sets++) {
        int w = (int)u16(want + at), h = (int)u16(want + at + 2);
        const struct picture *from = u16(want + at + 4) ? &opaque : &in;
        assert_int_equal(picture_resize(&p, from, w, h), 0);
        assert_int_equal(p.alpha, from->alpha);
        double d = worst(&p, (const uint8_t *)want + at + 6);
        if (d > 2)
            fail_msg("to %d x %d: off by %.1f", w, h, d);
        at += 6 + (size_t)w * (size_t)h * 4;
        picture_free(&p);
    }
    assert_int_equal(sets, 7);
    assert_int_equal(picture_resize(&p, &in, 128, 128), 0);
    assert_memory_equal(p.rgba, in.rgba, 128 * 128 * 4);
    picture_free(&p);
    picture_free(&in);
    picture_free(&opaque);
    free(want);
}

static void test_resize_flat(void **st)
{
    static const int to[][2] = {{1, 1}, {7, 3}, {2, 100}, {333, 1}, {21, 13}};
    struct picture in = {21, 13, false, xmalloc(21 * 13 * 4)}, p;
    (void)st;
    for (size_t i = 0; i < 21 * 13; i++)
        memcpy(in.rgba + i * 4, (const uint8_t[]){1, 254, 77, 255}, 4);
    for (size_t k = 0; k < sizeof to / sizeof *to; k++) {
        assert_int_equal(picture_resize(&p, &in, to[k][0], to[k][1]), 0);
        for (int i = 0; i < to[k][0] * to[k][1]; i++)
            assert_memory_equal(p.rgba + (size_t)i * 4, in.rgba, 4);
        picture_free(&p);
    }
    picture_free(&in);
}

/* ---- files for the reader in Python ---- */

static int write_files(const char *folder)
{
    static const char *const texts[] = {
        NULL, "a cat, 35mm\nNegative prompt: blurry\nSteps: 20, Seed: 1", "caf\xc3\xa9 \xc2\xa9",
        "\xe7\x8c\xab \xf0\x9f\x90\x88 <lora:x:1>"};
    static const int quality[] = {30, 89, 95, 100};
    for (int i = 0; i < 3 * 2 * 4; i++) {
        struct picture_encode o = {(enum picture_format)(i / 8), quality[i % 4], texts[i % 4]};
        bool alpha = i / 4 % 2;
        char path[512];
        struct buf out = {0};
        struct err e = {0};
        uint8_t *px = make_pixels(61, 47, alpha);
        snprintf(path, sizeof path, "%s/%s-%d-%d", folder, picture_name(o.format), alpha, i % 4);
        FILE *f = fopen(path, "wb");
        if (!f || picture_write(&out, px, 61, 47, alpha, &o, &e) ||
            fwrite(out.p, 1, out.len, f) != out.len || fclose(f)) {
            fprintf(stderr, "%s: %s\n", path, e.text);
            return 1;
        }
        buf_free(&out);
        snprintf(path, sizeof path, "%s/%s-%d-%d.raw", folder, picture_name(o.format), alpha,
                 i % 4);
        f = fopen(path, "wb");
        if (!f || fwrite(px, alpha ? 4 : 3, 61 * 47, f) != 61 * 47 || fclose(f))
            return 1;
        free(px);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_named_formats), cmocka_unit_test(test_orientation),
        cmocka_unit_test(test_lossless),      cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_jpeg_flattens), cmocka_unit_test(test_jpeg_sampling),
        cmocka_unit_test(test_text),          cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_write_errors),  cmocka_unit_test(test_resize),
        cmocka_unit_test(test_resize_flat),
    };
    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_files(argv[2]);
    return cmocka_run_group_tests_name("picture", tests, NULL, NULL);
}
