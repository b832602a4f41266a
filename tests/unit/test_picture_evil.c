/* Files that lie: api/picture on cut and changed files, with little memory, and with memory that ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <glob.h>
#include <malloc.h>

#include "api/picture.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "tests/unxz.h"

/* The libraries' own allocations, which mem.h does not see: this program's malloc stands before the C library's, except
 * under sanitizers, which need theirs. 0 = off, k = the k-th from now fails. */
static long lib_fail, lib_count;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static bool fails(void)
{
    lib_count++;
    return lib_fail > 0 && --lib_fail == 0;
}
void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    return fails() ? NULL : __libc_realloc(p, n);
}
#else
#define OWN_MALLOC 0
#endif

struct file {
    char *name;
    uint8_t *p;
    size_t n;
    int w, h; /* upright */
};

static struct file files[64];
static int n_file;
/* Changed files are decoded by the thousand: none may take long. */
static const struct picture_limits small = {.side_max = 512, .pixels_max = 200000};

static int setup(void **st)
{
    static const char *const kinds[] = {"png", "jpg", "webp"};
    (void)st;
    for (int i = 0; i < 3; i++) {
        char pattern[64];
        glob_t g;
        snprintf(pattern, sizeof pattern, "tests/data/image/odd/*.%s", kinds[i]);
        if (glob(pattern, 0, NULL, &g))
            return -1;
        for (size_t k = 0; k < g.gl_pathc && n_file < 64; k++) {
            struct file *f = &files[n_file];
            struct picture p;
            f->p = (uint8_t *)unxz_read(g.gl_pathv[k], &f->n);
            if (picture_decode(&p, f->p, f->n, NULL, NULL)) {
                free(f->p);
                continue;
            }
            f->w = p.width;
            f->h = p.height;
            f->name = xstrdup(strrchr(g.gl_pathv[k], '/') + 1);
            picture_free(&p);
            n_file++;
        }
        globfree(&g);
    }
    return n_file == 40 ? 0 : -1;
}

static int teardown(void **st)
{
    (void)st;
    for (int i = 0; i < n_file; i++) {
        free(files[i].name);
        free(files[i].p);
    }
    return 0;
}

/* Hash of the pixels, 0 on failure. Fresh memory is filled with `fill` where the C library's allocator is used. */
static uint64_t decode(const struct file *f, const uint8_t *p, size_t n, int fill, int *rc)
{
    struct picture pic = {7, 7, true, NULL};
    struct err e = {0};
    struct hash_key k = {1, 2};
    mallopt(M_PERTURB, fill);
    *rc = picture_decode(&pic, p, n, &small, &e);
    mallopt(M_PERTURB, 0);
    if (*rc) {
        if (pic.rgba || pic.width || e.code != *rc || !e.text[0] ||
            (*rc != ERR_PARSE && *rc != ERR_UNSUPPORTED && *rc != ERR_LIMIT))
            fail_msg("%s: %d (%s)", f->name, *rc, e.text);
        return 0;
    }
    size_t bytes = (size_t)pic.width * (size_t)pic.height * 4;
    assert_true(pic.width >= 1 && pic.height >= 1 && bytes <= 800000);
    uint64_t h = hash_bytes(k, pic.rgba, bytes);
    picture_free(&pic);
    return h;
}

/* Decodes an exactly sized copy, so that a read past its end is seen, twice with other rubbish in memory: pixels that
 * nobody wrote would show what was there before. */
static int try_bytes(const struct file *f, const uint8_t *p, size_t n, const char *what)
{
    uint8_t *copy = memcpy(xmalloc(n), p, n);
    int rc, rc2;
    uint64_t a = decode(f, copy, n, 0x55, &rc), b = decode(f, copy, n, 0x2A, &rc2);
    free(copy);
    if (rc != rc2 || a != b)
        fail_msg("%s, %s: %d then %d, or other pixels", f->name, what, rc, rc2);
    return rc;
}

static void test_cut(void **st)
{
    char what[64];
    (void)st;
    for (int i = 0; i < n_file; i++) {
        const struct file *f = &files[i];
        size_t step = f->n / 40 + 1;
        for (size_t n = 0; n < f->n; n += n < 40 || n + 20 > f->n ? 1 : step) {
            snprintf(what, sizeof what, "cut to %zu of %zu bytes", n, f->n);
            if (try_bytes(f, f->p, n, what) != ERR_PARSE)
                fail_msg("%s, %s, was read", f->name, what);
        }
        for (size_t left = 1; left <= 20 && left < f->n; left++)
            if (try_bytes(f, f->p, f->n - left, "cut at its end") != ERR_PARSE)
                fail_msg("%s without its last %zu bytes was read", f->name, left);
        assert_int_equal(try_bytes(f, f->p, f->n, "whole"), 0);
    }
}

static void test_changed(void **st)
{
    char what[64];
    int read = 0, refused = 0;
    uint64_t seed = 1;
    (void)st;
    for (int i = 0; i < 2000; i++) {
        const struct file *f = &files[i % n_file];
        uint8_t *p = memcpy(xmalloc(f->n), f->p, f->n);
        /* Headers as often as pixels. */
        size_t span = i / n_file % 2 && f->n > 200 ? 200 : f->n;
        for (uint64_t k = 0; k < 1 + seed % 3; k++) {
            uint64_t r = hash_u64(seed++);
            size_t at = (r >> 16) % span;
            p[at] = (uint8_t)(r & 1 ? p[at] ^ 1u << (r >> 1 & 7) : r >> 8);
        }
        snprintf(what, sizeof what, "change %d", i);
        *(try_bytes(f, p, f->n, what) ? &refused : &read) += 1;
        free(p);
    }
    /* Neither all nor none: the changes reach the decoders. */
    assert_true(read > 100 && refused > 500);
}

static void test_png_changes_are_seen(void **st)
{
    (void)st;
    for (int i = 0; i < n_file; i++) {
        const struct file *f = &files[i];
        if (f->p[0] != 0x89)
            continue;
        uint8_t *p = memcpy(xmalloc(f->n), f->p, f->n);
        /* Every byte of a PNG file is under a checksum or part of the frame that holds them. */
        for (size_t at = 0; at < f->n; at += f->n / 50 + 1) {
            p[at] ^= 0x10;
            if (!try_bytes(f, p, f->n, "one bit changed"))
                fail_msg("%s: a change at %zu went unnoticed", f->name, at);
            p[at] ^= 0x10;
        }
        free(p);
    }
}

/* ---- limits ---- */

static int with_limits(const struct file *f, int side, int64_t pixels, size_t bytes)
{
    struct picture_limits l = {side, pixels, bytes};
    struct picture p;
    struct err e = {0};
    int rc = picture_decode(&p, f->p, f->n, &l, &e);
    if (rc && (e.code != rc || !e.text[0] || p.rgba))
        fail_msg("%s: %d (%s)", f->name, rc, e.text);
    picture_free(&p);
    return rc;
}

static void test_limits(void **st)
{
    (void)st;
    for (int i = 0; i < n_file; i++) {
        const struct file *f = &files[i];
        int side = f->w > f->h ? f->w : f->h;
        int64_t pixels = (int64_t)f->w * f->h;
        if (pixels == 1)
            continue;
        assert_int_equal(with_limits(f, side, pixels, 0), 0);
        /* One block for the JPEG library's state; the pixels would be the next. */
        mem_fail_after(2, true);
        int by_side = with_limits(f, side - 1, 0, 0);
        mem_fail_after(2, true);
        int by_pixels = with_limits(f, 0, pixels - 1, 0);
        mem_fail_after(2, true);
        int by_bytes = with_limits(f, 0, 0, (size_t)pixels * 4 - 1);
        mem_fail_after(0, false);
        if (by_side != ERR_LIMIT || by_pixels != ERR_LIMIT || by_bytes != ERR_LIMIT)
            fail_msg("%s: %d %d %d", f->name, by_side, by_pixels, by_bytes);
        /* No room for what the libraries need beside the pixels, then more and more; never another error. */
        for (size_t bytes = (size_t)pixels * 4; bytes < 4u << 20; bytes += bytes / 3) {
            int rc = with_limits(f, 0, 0, bytes);
            if (rc != 0 && rc != ERR_LIMIT)
                fail_msg("%s: %d with %zu bytes", f->name, rc, bytes);
        }
        assert_int_equal(with_limits(f, 0, 0, 4u << 20), 0);
    }
}

static const struct file *find(const char *name)
{
    for (int i = 0; i < n_file; i++)
        if (strcmp(files[i].name, name) == 0)
            return &files[i];
    fail_msg("no file %s", name);
    return NULL;
}

/* The smallest bytes_max with which the file is read, to 256 bytes. */
static size_t least_bytes(const struct file *f)
{
    size_t no = 1, yes = 4u << 20;
    while (yes - no > 256) {
        size_t mid = no + (yes - no) / 2;
        *(with_limits(f, 0, 0, mid) ? &no : &yes) = mid;
    }
    return yes;
}

static void test_memory_is_counted(void **st)
{
    (void)st;
    /* Turning takes a second picture. */
    long turned = (long)least_bytes(find("rocket-exif2.jpg"));
    long plain = (long)least_bytes(find("rocket-exif1.jpg"));
    assert_in_range(turned - plain, 96 * 64 * 4 - 2000, 96 * 64 * 4 + 2000);
    /* Progressive files keep all coefficients; the other libraries need memory too. */
    assert_int_equal(with_limits(find("coffee-progressive.jpg"), 0, 0, 300 * 200 * 4 + 100000),
                     ERR_LIMIT);
    assert_int_equal(with_limits(find("coffee-palette.png"), 0, 0, 300 * 200 * 4 + 10000),
                     ERR_LIMIT);
    assert_int_equal(with_limits(find("coffee.webp"), 0, 0, 300 * 200 * 8), ERR_LIMIT);
}

/* ---- memory that ends ---- */

static void test_decode_nomem(void **st)
{
    (void)st;
    for (int i = 0; i < n_file; i++) {
        const struct file *f = &files[i];
        int rc = ERR_NOMEM;
        for (long k = 1; rc; k++) {
            struct picture p;
            struct err e = {0};
            mem_fail_after(k, false);
            rc = picture_decode(&p, f->p, f->n, NULL, &e);
            mem_fail_after(0, false);
            if (rc ? rc != ERR_NOMEM || p.rgba || !e.text[0] : !p.rgba)
                fail_msg("%s: %d (%s) when allocation %ld fails", f->name, rc, e.text, k);
            assert_true(k < 100);
            picture_free(&p);
        }
    }
}

static void test_encode_nomem(void **st)
{
    const struct file *f = find("astronaut-rgba.png");
    struct picture p;
    (void)st;
    assert_int_equal(picture_decode(&p, f->p, f->n, NULL, NULL), 0);
    for (int i = 0; i < 3 * 2 * 2; i++) {
        struct picture_encode o = {(enum picture_format)(i / 4), i & 1 ? 100 : 80,
                                   i & 2 ? "caf\xc3\xa9" : NULL};
        int rc = ERR_NOMEM;
        for (long k = 1; rc; k++) {
            struct buf out = {0};
            struct err e = {0};
            buf_str(&out, "x");
            mem_fail_after(k, false);
            rc = picture_write(&out, p.rgba, p.width, p.height, true, &o, &e);
            mem_fail_after(0, false);
            if (rc ? rc != ERR_NOMEM || out.len != 1 || !e.text[0] : out.len < 100)
                fail_msg("%s: %d (%s) when allocation %ld fails", picture_name(o.format), rc,
                         e.text, k);
            assert_true(k < 100);
            buf_free(&out);
        }
    }
    picture_free(&p);
}

static void lib_nomem_decode(const char *name)
{
    const struct file *f = find(name);
    int rc = -1;
    for (long k = 1; rc; k++) {
        struct picture p;
        struct err e = {0};
        lib_fail = k;
        rc = picture_decode(&p, f->p, f->n, NULL, &e);
        lib_fail = 0;
        /* The WebP demuxer does not say why it found no picture. */
        if (rc ? (rc != ERR_NOMEM && rc != ERR_PARSE) || p.rgba || !e.text[0] : !p.rgba)
            fail_msg("%s: %d (%s) when allocation %ld fails", name, rc, e.text, k);
        if (rc == ERR_PARSE && !strstr(name, "webp"))
            fail_msg("%s: %s when allocation %ld fails", name, e.text, k);
        assert_true(k < 300);
        picture_free(&p);
    }
}

static void lib_nomem_encode(const struct picture_encode *o)
{
    const struct file *f = find("astronaut-rgba.png");
    struct picture p;
    int rc = -1;
    assert_int_equal(picture_decode(&p, f->p, f->n, NULL, NULL), 0);
    for (long k = 1; rc; k++) {
        struct buf out = {0};
        struct err e = {0};
        lib_fail = k;
        rc = picture_write(&out, p.rgba, p.width, p.height, true, o, &e);
        lib_fail = 0;
        if (rc ? rc != ERR_NOMEM || out.len || !e.text[0] : out.len < 100)
            fail_msg("%s: %d (%s) when allocation %ld fails", picture_name(o->format), rc, e.text,
                     k);
        assert_true(k < 3000);
        buf_free(&out);
    }
    picture_free(&p);
}

/* Not lossless WebP: before 1.3.3 libwebp follows a pointer that a failed allocation of its Huffman tables left unset. */
static void test_library_nomem(void **st)
{
    static const char *const names[] = {
        "astronaut-adam7.png", "cat-exif6.png", "cat-baseline.jpg", "coffee-cmyk.jpg",
        "rocket-exif5.jpg",    "coffee.webp",   "rocket-anim.webp", "coffee-progressive.jpg"};
    (void)st;
    if (!OWN_MALLOC) {
        print_message("skip: the sanitizer's allocator cannot be made to fail\n");
        skip();
    }
    long before = lib_count;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        lib_nomem_decode(names[i]);
    for (int i = 0; i < 3 * 2; i++)
        lib_nomem_encode(&(struct picture_encode){(enum picture_format)(i / 2), i % 2 ? 100 : 80,
                                                  "caf\xc3\xa9"});
    assert_true(lib_count > before + 100);
}

static void test_resize_nomem(void **st)
{
    uint8_t px[8 * 8 * 4] = {0};
    struct picture in = {8, 8, true, px}, out;
    int rc = ERR_NOMEM;
    long k = 1;
    (void)st;
    for (; rc; k++) {
        mem_fail_after(k, false);
        rc = picture_resize(&out, &in, 5, 13);
        mem_fail_after(0, false);
        assert_true(rc == 0 || (rc == ERR_NOMEM && !out.rgba));
        assert_true(k < 100);
    }
    assert_true(k > 10);
    picture_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_png_changes_are_seen),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_memory_is_counted),
        cmocka_unit_test(test_decode_nomem),
        cmocka_unit_test(test_encode_nomem),
        cmocka_unit_test(test_library_nomem),
        cmocka_unit_test(test_resize_nomem),
    };
    return cmocka_run_group_tests_name("picture_evil", tests, setup, teardown);
}
