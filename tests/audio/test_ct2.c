/* CTranslate2's weights file: what is in it, and every way to be broken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/load/ct2.h"
#include "engine/load/source.h"
#include "tests/tree.h"

static char dir[TREE_PATH];

static void u(struct buf *b, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_char(b, (char)(v >> (8 * i)));
}

static void name(struct buf *b, const char *s)
{
    u(b, (uint32_t)strlen(s) + 1, 2);
    buf_add(b, s, strlen(s) + 1);
}

static void head(struct buf *b, uint32_t version, uint32_t n)
{
    u(b, version, 4);
    name(b, "WhisperSpec");
    u(b, 3, 4);
    u(b, n, 4);
}

static void tensor(struct buf *b, const char *what, uint32_t rows, uint32_t cols, uint32_t type,
                   uint32_t bytes)
{
    name(b, what);
    u(b, 2, 1);
    u(b, rows, 4);
    u(b, cols, 4);
    u(b, type, 1);
    u(b, bytes, 4);
    for (uint32_t i = 0; i < bytes; i++)
        buf_char(b, (char)i);
}

/* Two tensors and another name for the second. */
static void good(struct buf *b)
{
    head(b, 6, 2);
    tensor(b, "a/weight", 2, 3, CT2_F32, 24);
    tensor(b, "b/weight", 4, 1, CT2_F16, 8);
    u(b, 2, 4);
    name(b, "c/weight");
    name(b, "b/weight");
    name(b, "d/weight");
    name(b, "of nothing");
}

static int try_open(const struct buf *b, struct err *e)
{
    struct ct2 *c = NULL;
    *e = (struct err){0};
    tree_put(dir, "model.bin", b->p, b->len);
    int rc = ct2_open(&c, tree_path(dir, "model.bin"), e);
    assert_true(!rc == !!c);
    assert_true(!rc || (e->code == rc && strstr(e->text, "model.bin")));
    ct2_close(c);
    return rc;
}

static void test_good(void **s)
{
    (void)s;
    struct buf b = {0};
    struct ct2 *c;
    struct err e = {0};
    char kind[64];
    good(&b);
    tree_put(dir, "model.bin", b.p, b.len);
    const char *path = tree_path(dir, "model.bin");
    assert_true(ct2_sniff(path, kind, sizeof kind));
    assert_string_equal(kind, "WhisperSpec");
    assert_int_equal(ct2_open(&c, path, &e), 0);
    assert_string_equal(ct2_kind(c), "WhisperSpec");
    assert_int_equal(ct2_n_tensor(c), 3);
    const struct ct2_tensor *t = ct2_tensor_find(c, "a/weight");
    assert_true(t && t->n_dim == 2 && t->dim[0] == 2 && t->dim[1] == 3 && t->bytes == 24);
    assert_int_equal(((const uint8_t *)t->data)[23], 23);
    t = ct2_tensor_find(c, "c/weight");
    assert_true(t && t->dtype == CT2_F16 && t->data == ct2_tensor_find(c, "b/weight")->data);
    assert_null(ct2_tensor_find(c, "d/weight"));
    assert_int_equal(ct2_check_file(c, &e), 0);
    ct2_close(c);
    /* as a source of tensors, by folder */
    struct source *src;
    assert_int_equal(source_open(&src, dir, &e), 0);
    assert_int_equal(source_n(src), 2);
    assert_null(source_find(src, "c/weight"));
    assert_true(source_find(src, "b/weight")->fmt == QF_F16);
    source_close(src);
    buf_free(&b);
}

/* Cut off anywhere: an error that names the file, or, between the parts, what is there. */
static void test_cut(void **s)
{
    (void)s;
    struct buf b = {0}, part = {0};
    struct err e;
    int ok = 0;
    good(&b);
    for (size_t n = 1; n < b.len; n++) {
        buf_clear(&part);
        buf_add(&part, b.p, n);
        ok += try_open(&part, &e) == 0;
    }
    assert_int_equal(ok, 1); /* without its list of other names */
    buf_free(&b);
    buf_free(&part);
}

static void expect(void (*make)(struct buf *b), int code, const char *text)
{
    struct buf b = {0};
    struct err e;
    make(&b);
    int rc = try_open(&b, &e);
    if (rc != code || !strstr(e.text, text))
        fail_msg("%d: %s; expected %d, '%s'", rc, e.text, code, text);
    buf_free(&b);
}

static void old(struct buf *b)
{
    head(b, 4, 0);
}

static void many(struct buf *b)
{
    head(b, 6, 0x7fffffff);
}

static void lies(struct buf *b)
{
    head(b, 6, 1);
    tensor(b, "a", 2, 3, CT2_F32, 20);
}

static void huge(struct buf *b)
{
    head(b, 6, 1);
    tensor(b, "a", 0xffffffff, 0xffffffff, CT2_F32, 20);
}

static void strange(struct buf *b)
{
    head(b, 6, 1);
    tensor(b, "a", 2, 3, 9, 24);
}

static void deep(struct buf *b)
{
    head(b, 6, 1);
    name(b, "a");
    u(b, 9, 1);
    for (int i = 0; i < 9; i++)
        u(b, 1, 4);
}

static void no_nul(struct buf *b)
{
    head(b, 6, 1);
    u(b, 2, 2);
    buf_add(b, "ab and more", 11);
}

static void test_bad(void **s)
{
    (void)s;
    expect(old, ERR_UNSUPPORTED, "version 4");
    expect(many, ERR_PARSE, "more than the file can hold");
    expect(lies, ERR_PARSE, "do not hold");
    expect(huge, ERR_PARSE, "do not hold");
    expect(strange, ERR_UNSUPPORTED, "type 9");
    expect(deep, ERR_UNSUPPORTED, "9 dimensions");
    expect(no_nul, ERR_PARSE, "name is broken");
    struct err e = {0};
    struct ct2 *c;
    assert_int_equal(ct2_open(&c, tree_path(dir, "none"), &e), ERR_NOTFOUND);
    assert_false(ct2_sniff(tree_path(dir, "none"), NULL, 0));
    struct buf b = {0};
    good(&b);
    for (long k = 1; k < 4; k++) {
        mem_fail_after(k, false);
        int rc = try_open(&b, &e);
        mem_fail_after(0, false);
        assert_int_equal(rc, ERR_NOMEM);
    }
    buf_free(&b);
}

static int setup(void **s)
{
    (void)s;
    tree_make(dir);
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    tree_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_cut),
                                       cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
