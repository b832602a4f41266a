/* multipart/form-data as clients send it and as nobody should: boundaries, headers, data that looks like a boundary, every
 * cut. Base64 and the store of pictures are here too: small, and used by the same endpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/base64.h"
#include "api/image_store.h"
#include "api/multipart.h"
#include "engine/base/mem.h"

#define TYPE "multipart/form-data; boundary=QQ"
#define MAX  4

static struct multipart part[MAX];
static struct err e;

static int parse(const char *type, const char *body, size_t n, int *n_part)
{
    /* A copy of exactly that length, so that a sanitizer sees every byte too far. */
    static char *copy;
    free(copy);
    copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, body, n);
    e = (struct err){0};
    int rc = multipart_parse(type, (struct view){copy, n}, part, MAX, n_part, &e);
    assert_true(rc == 0 || e.text[0]);
    return rc;
}

#define FIELD(name, value)                                                                         \
    "--QQ\r\nContent-Disposition: form-data; name=\"" name "\"\r\n\r\n" value "\r\n"
#define FILE_PART(name, value)                                                                     \
    "--QQ\r\nContent-Disposition: form-data; name=\"" name                                         \
    "\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n" value "\r\n"
#define END "--QQ--\r\n"

static void test_fields_and_files(void **state)
{
    static const char body[] =
        FIELD("prompt", "a cat") FILE_PART("image[]", "\0\r\n-\r\n--X\xff") END;
    int n;
    (void)state;
    assert_int_equal(parse(TYPE, body, sizeof body - 1, &n), 0);
    assert_int_equal(n, 2);
    assert_true(view_is(part[0].name, "prompt") && view_is(part[0].data, "a cat"));
    assert_null(part[0].filename.p);
    assert_null(part[0].type.p);
    assert_true(view_is(part[1].name, "image[]") && view_is(part[1].filename, "a.png"));
    assert_true(view_is(part[1].type, "image/png"));
    assert_true(view_eq(part[1].data, VIEW_LIT("\0\r\n-\r\n--X\xff")));
}

static void test_spellings(void **state)
{
    static const struct {
        const char *type, *body, *name, *data;
    } ok[] = {
        {"Multipart/Form-Data; charset=utf-8; Boundary=\"QQ\"", FIELD("a", "b") END, "a", "b"},
        {"multipart/form-data;boundary=QQ;", FIELD("a", "") END, "a", ""},
        {TYPE, "--QQ\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n--QQ--", "a", ""},
        {TYPE, "preamble\r\n" FIELD("a", "b") END "epilogue", "a", "b"},
        {TYPE, "--QQ \t\r\ncontent-disposition:form-data ;name=a\r\nX-Other: 1\r\n\r\nb\r\n--QQ--",
         "a", "b"},
        {TYPE, FIELD("a\\\"b", "c") END, "a\\\"b", "c"},
        {TYPE, FIELD("a", "x--QQ\r\nin data\r\n--QQX\r\n--QQ-\r\n") END, "a",
         "x--QQ\r\nin data\r\n--QQX\r\n--QQ-\r\n"},
        {TYPE,
         "--QQ\r\nContent-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: "
         "BINARY\r\n\r\nb\r\n" END,
         "a", "b"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof ok / sizeof *ok; i++) {
        int n = -1;
        int rc = parse(ok[i].type, ok[i].body, strlen(ok[i].body), &n);
        if (rc || n != 1 || !view_is(part[0].name, ok[i].name) ||
            !view_is(part[0].data, ok[i].data))
            fail_msg("%zu: %d, %d parts, %s", i, rc, n, e.text);
    }
    int n = -1;
    assert_int_equal(parse(TYPE, END, sizeof END - 1, &n), 0);
    assert_int_equal(n, 0);
}

static void test_refused(void **state)
{
    static const struct {
        const char *type, *body;
        int rc;
        const char *text;
    } bad[] = {
        {NULL, FIELD("a", "b") END, ERR_PARSE, "multipart/form-data"},
        {"multipart/form-datax; boundary=QQ", FIELD("a", "b") END, ERR_PARSE, "multipart"},
        {"multipart/form-data", FIELD("a", "b") END, ERR_PARSE, "boundary"},
        {"multipart/form-data; boundary=", FIELD("a", "b") END, ERR_PARSE, "boundary"},
        {"multipart/form-data; boundary=\"QQ", FIELD("a", "b") END, ERR_PARSE, "boundary"},
        {"multipart/form-data; boundary="
         "0123456789012345678901234567890123456789012345678901234567890123456789x",
         "", ERR_PARSE, "boundary"},
        {TYPE, "", ERR_PARSE, "empty"},
        {TYPE, "--YY\r\n\r\n", ERR_PARSE, "not in the body"},
        {TYPE, FIELD("a", "b"), ERR_PARSE, "part 1: the body ends"},
        {TYPE, FIELD("a", "b") "--QQ\r\n", ERR_PARSE, "part 2"},
        {TYPE, "--QQ\r\n\r\nb\r\n" END, ERR_PARSE, "no Content-Disposition"},
        {TYPE, "--QQ\r\nContent-Disposition: form-data\r\n\r\nb\r\n" END, ERR_PARSE, "with a name"},
        {TYPE, "--QQ\r\nContent-Disposition: file; name=\"a\"\r\n\r\nb\r\n" END, ERR_PARSE,
         "form-data"},
        {TYPE, "--QQ\r\nContent-Disposition: form-data; name=\"a\r\n\r\nb\r\n" END, ERR_PARSE,
         "form-data"},
        {TYPE, "--QQ\r\nno colon\r\n\r\nb\r\n" END, ERR_PARSE, "without a name"},
        {TYPE,
         "--QQ\r\nContent-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: "
         "base64\r\n\r\nYg==\r\n" END,
         ERR_UNSUPPORTED, "part 1: Content-Transfer-Encoding"},
        {TYPE, FIELD("a", "") FIELD("a", "") FIELD("a", "") FIELD("a", "") FIELD("a", "") END,
         ERR_LIMIT, "more than 4 parts"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int n;
        int rc = parse(bad[i].type, bad[i].body, strlen(bad[i].body), &n);
        if (rc != bad[i].rc || !strstr(e.text, bad[i].text))
            fail_msg("%zu: %d %s", i, rc, e.text);
    }
}

static void test_long_header(void **state)
{
    struct buf b = {0};
    int n;
    (void)state;
    buf_str(&b, "--QQ\r\nContent-Disposition: form-data; name=\"a\"\r\nX: ");
    for (int i = 0; i < MULTIPART_HEAD_MAX; i++)
        buf_char(&b, 'x');
    buf_str(&b, "\r\n\r\nb\r\n" END);
    assert_int_equal(parse(TYPE, b.p, b.len, &n), ERR_LIMIT);
    assert_non_null(strstr(e.text, "part 1"));
    buf_free(&b);
}

/* A body cut anywhere before its closing boundary is an error, never a shorter form. */
static void test_every_cut(void **state)
{
    static const char body[] = FIELD("a", "b") FILE_PART("image", "\r\n--X") END;
    int n;
    (void)state;
    for (size_t k = 0; k < sizeof body - 1; k++) {
        int rc = parse(TYPE, body, k, &n);
        bool whole = k >= sizeof body - 3; /* only the last line break is missing */
        assert_int_equal(rc, whole ? 0 : ERR_PARSE);
    }
}

/* ---- base64 ---- */

static void test_base64(void **state)
{
    (void)state;
    /* every remainder, and around the lengths of the parts that it is written in */
    for (size_t n = 0; n < 3200; n += n < 100 ? 1 : n % 256 > 252 || n % 256 < 4 ? 1 : 83) {
        struct buf text = {0}, back = {0};
        static uint8_t data[3300];
        for (size_t i = 0; i < n; i++)
            data[i] = (uint8_t)(i * 37 + n);
        base64_write(&text, data, n);
        assert_int_equal(text.len, (n + 2) / 3 * 4);
        assert_int_equal(base64_read(&back, (struct view){text.p, text.len}), 0);
        assert_int_equal(back.len, n);
        assert_memory_equal(n ? back.p : "", data, n);
        buf_clear(&back);
        while (text.len && text.p[text.len - 1] == '=')
            text.len--;
        assert_int_equal(base64_read(&back, (struct view){text.p, text.len}), 0);
        assert_int_equal(back.len, n);
        buf_free(&text);
        buf_free(&back);
    }
    static const struct {
        const char *text, *bytes;
    } known[] = {{"Zm9vYg==", "foob"}, {"Zm9vYmE=", "fooba"}, {" Zm9v\r\nYmFy\n", "foobar"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct buf b = {0};
        assert_int_equal(base64_read(&b, view_str(known[i].text)), 0);
        assert_string_equal(buf_cstr(&b), known[i].bytes);
        buf_free(&b);
    }
    static const char *const bad[] = {"Z", "Zm9vY", "Zm9v=", "Zm=9", "Zm9vYg=", "Zm9-", "Zm9v===="};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf b = {0};
        if (base64_read(&b, view_str(bad[i])) != ERR_PARSE)
            fail_msg("%s was taken", bad[i]);
        buf_free(&b);
    }
}

/* ---- the store ---- */

static int put(struct image_store *s, size_t n, char fill, int64_t now, char *id)
{
    struct buf b = {0};
    for (size_t i = 0; i < n; i++)
        buf_char(&b, fill);
    int rc = image_store_put(s, &b, "image/png", now, id);
    assert_null(b.p);
    return rc;
}

static int get(struct image_store *s, const char *id, int64_t now, size_t n, char fill)
{
    struct buf b = {0};
    const char *type = NULL;
    int64_t left = -1;
    int rc = image_store_get(s, view_str(id), now, &b, &type, &left);
    if (!rc) {
        assert_int_equal(b.len, n);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(b.p[i], fill);
        assert_string_equal(type, "image/png");
        assert_true(left > 0 && left <= 1000);
    }
    buf_free(&b);
    return rc;
}

static void test_store(void **state)
{
    struct image_store *s = image_store_open(100, 1000);
    char a[IMAGE_ID_LEN + 1], b[IMAGE_ID_LEN + 1], c[IMAGE_ID_LEN + 1];
    (void)state;
    assert_non_null(s);
    assert_int_equal(put(s, 40, 'a', 0, a), 0);
    assert_int_equal(put(s, 40, 'b', 500, b), 0);
    assert_int_equal(strspn(a, "0123456789abcdef"), IMAGE_ID_LEN);
    assert_string_not_equal(a, b);
    assert_int_equal(get(s, a, 999, 40, 'a'), 0);
    assert_int_equal(get(s, b, 999, 40, 'b'), 0);
    assert_int_equal(get(s, "00000000000000000000000000000000", 999, 0, 0), ERR_NOTFOUND);
    assert_int_equal(get(s, "", 999, 0, 0), ERR_NOTFOUND);
    assert_int_equal(get(s, a, 1000, 0, 0), ERR_NOTFOUND); /* its time is over */
    assert_int_equal(image_store_bytes(s), 40);
    /* No room: the oldest goes, and no more than needed. */
    assert_int_equal(put(s, 40, 'a', 1001, a), 0);
    assert_int_equal(put(s, 50, 'c', 1002, c), 0);
    assert_int_equal(image_store_bytes(s), 90);
    assert_int_equal(get(s, b, 1003, 0, 0), ERR_NOTFOUND);
    assert_int_equal(get(s, a, 1003, 40, 'a'), 0);
    assert_int_equal(get(s, c, 1003, 50, 'c'), 0);
    assert_int_equal(put(s, 101, 'd', 1004, b), ERR_LIMIT);
    assert_int_equal(image_store_bytes(s), 90);
    assert_int_equal(put(s, 100, 'd', 1004, b), 0);
    assert_int_equal(image_store_bytes(s), 100);
    struct buf bytes = {0};
    buf_str(&bytes, "x");
    mem_fail_after(1, true);
    assert_int_equal(image_store_put(s, &bytes, "image/png", 1005, a), ERR_NOMEM);
    mem_fail_after(0, false);
    assert_int_equal(get(s, b, 1006, 100, 'd'), 0);
    image_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_and_files),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long_header),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
