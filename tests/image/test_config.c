/* engine/load/config: typed access, what it says about wrong values, what text it refuses, failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/load/config.h"
#include "tests/tree.h"

static struct config *from(const char *text)
{
    struct config *c = NULL;
    struct err e = {0};
    int rc = config_open_text(&c, text, strlen(text), "some/config.json", &e);
    if (rc)
        print_error("%s\n", e.text);
    assert_int_equal(rc, 0);
    return c;
}

static const char good[] =
    "{\"n\": 7, \"f\": 2.5, \"whole\": 3.0, \"yes\": true, \"no\": false, \"s\": \"te\\u0078t\","
    " \"nil\": null, \"list\": [5, 10, 20.0], \"half\": [0.5], \"names\": [\"a\", \"b\"],"
    " \"pair\": [null, null], \"a\": {\"b\": {\"c\": 9, \"z\": null}}, \"a.b\": 1,"
    " \"big\": 9007199254740993, \"empty\": [], \"inf\": -Infinity, \"nan\": NaN,"
    " \"up\": [Infinity, \"-Infinity\"]}";

static void test_good(void **state)
{
    (void)state;
    struct err e = {0};
    struct config *c = from(good);
    assert_int_equal(config_int(c, "n", 0, 0, 10), 7);
    assert_int_equal(config_int(c, "whole", 0, 0, 10), 3);
    assert_int_equal(config_int(c, "absent", -4, 0, 10), -4);
    assert_int_equal(config_int(c, "nil", 12, 0, 10), 12);
    assert_int_equal(config_int(c, "big", 0, 0, INT64_MAX), 9007199254740993);
    assert_true(config_num(c, "f", 0, 0, 10) == 2.5 && config_num(c, "n", 0, 0, 10) == 7);
    assert_true(config_bool(c, "yes", false) && !config_bool(c, "no", true));
    assert_true(config_bool(c, "absent", true));
    assert_string_equal(config_str(c, "s", ""), "text");
    assert_null(config_str(c, "absent", NULL));
    assert_true(config_has(c, "n") && config_has(c, "a.b.c") && config_has(c, "pair"));
    assert_false(config_has(c, "nil") || config_has(c, "a.b.z") || config_has(c, "a.x.c") ||
                 config_has(c, "n.x") || config_has(c, ""));
    /* a key with a dot in it comes before a path */
    assert_int_equal(config_int(c, "a.b", 0, 0, 10), 1);
    assert_int_equal(config_int(c, "a.b.c", 0, 0, 10), 9);
    assert_int_equal(config_len(c, "list"), 3);
    assert_int_equal(config_int_at(c, "list", 2, 0, 100), 20);
    assert_int_equal(config_len(c, "n"), 1);
    assert_int_equal(config_int_at(c, "n", 0, 0, 100), 7);
    assert_true(config_num_at(c, "half", 0) == 0.5);
    assert_string_equal(config_str_at(c, "names", 1), "b");
    assert_int_equal(config_len(c, "absent") + config_len(c, "nil") + config_len(c, "empty"), 0);
    assert_true(config_null_at(c, "pair", 1) && !config_null_at(c, "names", 1));
    assert_false(config_null_at(c, "pair", 2) || config_null_at(c, "nil", 0) ||
                 config_null_at(c, "pair", -1));
    /* what Python writes for numbers that JSON has not */
    assert_true(config_num(c, "inf", 0, -DBL_MAX, DBL_MAX) == -DBL_MAX);
    assert_false(config_has(c, "nan"));
    assert_true(config_num_at(c, "up", 0) == DBL_MAX);
    assert_string_equal(config_str_at(c, "up", 1), "-Infinity");
    config_need(c, "n");
    assert_int_equal(config_error(c, &e), 0);
    assert_int_equal(config_n_key(c), 18);
    assert_string_equal(config_key_at(c, 0), "n");
    assert_string_equal(config_key_at(c, 17), "up");
    config_close(c);
    config_close(NULL);
}

enum ask { INT, NUM, BOOL, STR, LEN, INT_AT, NUM_AT, STR_AT, NEED };

static void ask(struct config *c, enum ask what, const char *key, int i)
{
    switch (what) {
    case INT:
        assert_int_equal(config_int(c, key, 3, 1, 8), 3);
        break;
    case NUM:
        assert_true(config_num(c, key, 3, 1, 8) == 3);
        break;
    case BOOL:
        assert_true(config_bool(c, key, true));
        break;
    case STR:
        assert_string_equal(config_str(c, key, "def"), "def");
        break;
    case LEN:
        assert_int_equal(config_len(c, key), 0);
        break;
    case INT_AT:
        assert_int_equal(config_int_at(c, key, i, 1, 8), 1);
        break;
    case NUM_AT:
        assert_true(config_num_at(c, key, i) == 0);
        break;
    case STR_AT:
        assert_string_equal(config_str_at(c, key, i), "");
        break;
    case NEED:
        config_need(c, key);
        break;
    }
}

static void test_complaints(void **state)
{
    (void)state;
    static const struct {
        enum ask what;
        const char *key;
        int i;
        const char *text;
    } cases[] = {
        {INT, "s", 0, "'s' must be a whole number from 1 to 8"},
        {INT, "f", 0, "'f' must be a whole number"},
        {INT, "big", 0, "'big' must be a whole number"},
        {INT, "yes", 0, "'yes' must be a whole number"},
        {INT, "list", 0, "'list' must be a whole number"},
        {INT, "inf", 0, "'inf' must be a whole number"},
        {NUM, "s", 0, "'s' must be a number from 1 to 8"},
        {NUM, "inf", 0, "'inf' must be a number"},
        {NUM, "nope", 0, NULL},
        {BOOL, "n", 0, "'n' must be true or false"},
        {STR, "n", 0, "'n' must be a text"},
        {STR, "list", 0, "'list' must be a text"},
        {LEN, "s", 0, "'s' must be a list"},
        {LEN, "a", 0, "'a' must be a list"},
        {INT_AT, "list", 3, "'list' has no element 3"},
        {INT_AT, "list", -1, "'list' has no element -1"},
        {INT_AT, "n", 1, "'n' has no element 1"},
        {INT_AT, "absent", 0, "'absent' has no element 0"},
        {INT_AT, "half", 0, "'half' element 0 must be a whole number from 1 to 8"},
        {INT_AT, "list", 1, "'list' element 1 must be a whole number"},
        {NUM_AT, "names", 0, "'names' element 0 must be a number"},
        {STR_AT, "list", 0, "'list' element 0 must be a text"},
        {STR_AT, "pair", 1, "'pair' element 1 must be a text"},
        {NEED, "absent", 0, "'absent' is missing"},
        {NEED, "nil", 0, "'nil' is missing"},
        {NEED, "a.b.z", 0, "'a.b.z' is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config *c = from(good);
        struct err e = {0};
        ask(c, cases[i].what, cases[i].key, cases[i].i);
        if (!cases[i].text) {
            assert_int_equal(config_error(c, &e), 0);
            config_close(c);
            continue;
        }
        config_need(c, "another"); /* the first complaint stays */
        assert_int_equal(config_error(c, &e), ERR_INVAL);
        if (!strstr(e.text, cases[i].text))
            print_error("%s: '%s'\n", cases[i].text, e.text);
        assert_non_null(strstr(e.text, cases[i].text));
        assert_non_null(strstr(e.text, "some/config.json: "));
        assert_int_equal(config_error(c, NULL), ERR_INVAL);
        config_close(c);
    }
}

static void refuse(const char *text, size_t n, int code, const char *why)
{
    struct config *c = NULL;
    struct err e = {0};
    int rc = config_open_text(&c, text, n, "x.json", &e);
    if (rc != code || !strstr(e.text, why))
        print_error("%.60s: %d %s\n", text, rc, e.text);
    assert_int_equal(rc, code);
    assert_null(c);
    assert_non_null(strstr(e.text, why));
    assert_non_null(strstr(e.text, "x.json: "));
    assert_int_equal(config_open_text(&c, text, n, "x.json", NULL), code);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "line"},
        {"[]", "no object"},
        {"3", "line 1"},
        {"{\"a\": 1", "line 1"},
        {"{\"a\": 1}\n\n{", "line 3"},
        {"{\"a\": 1,\n\"a\": 2}", "duplicate"},
        {"{\"a\": -Inf}", "line 1"},
        {"{\"a\": InfinityNaN}", "line 1"},
        {"{\"a\xff\": 1}", "line 1"},
        {"{\"a\": 1e999}", "line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse(bad[i].text, strlen(bad[i].text), ERR_PARSE, bad[i].why);
    refuse("{\"a\": \"x\0y\"}", 12, ERR_PARSE, "line 1");
    char deep[256];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    refuse(deep, sizeof deep, ERR_PARSE, "nested deeper");
    size_t n = ((size_t)16 << 20) + 1;
    char *big = malloc(n);
    memset(big, ' ', n);
    big[0] = '{';
    big[n - 1] = '}';
    refuse(big, n, ERR_LIMIT, "at most");
    big[n - 2] = '}';
    struct config *c = NULL;
    assert_int_equal(config_open_text(&c, big, n - 1, "x", NULL), 0);
    config_close(c);
    free(big);
    /* every cut of a good text is refused, and none reads past its end */
    for (size_t k = 0; k + 1 < sizeof good; k++) {
        char *cut = malloc(k + 1);
        memcpy(cut, good, k);
        assert_int_equal(config_open_text(&c, cut, k, "x", NULL), ERR_PARSE);
        free(cut);
    }
}

static void test_files(void **state)
{
    (void)state;
    char dir[TREE_PATH];
    struct err e = {0};
    struct config *c = NULL;
    tree_make(dir);
    assert_int_equal(config_open(&c, tree_path(dir, "none.json"), &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "none.json"));
    assert_int_equal(config_open(&c, dir, &e), ERR_INVAL);
    tree_text(dir, "c.json", "");
    assert_int_equal(config_open(&c, tree_path(dir, "c.json"), &e), ERR_PARSE);
    tree_text(dir, "c.json", "{\"k\": [1,\n 2}");
    assert_int_equal(config_open(&c, tree_path(dir, "c.json"), &e), ERR_PARSE);
    assert_non_null(strstr(e.text, "c.json: line 2"));
    tree_text(dir, "c.json", good);
    assert_int_equal(config_open(&c, tree_path(dir, "c.json"), &e), 0);
    config_need(c, "missing");
    assert_int_equal(config_error(c, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "c.json: 'missing' is missing"));
    config_close(c);
    tree_remove(dir);
}

static void test_nomem(void **state)
{
    (void)state;
    long k = 1;
    for (;; k++) {
        struct config *c = NULL;
        struct err e = {0};
        mem_fail_after(k, true);
        int rc = config_open_text(&c, good, strlen(good), "x", &e);
        mem_fail_after(0, false);
        config_close(c);
        if (rc == 0)
            break;
        assert_int_equal(rc, ERR_NOMEM);
        assert_int_equal(e.code, ERR_NOMEM);
    }
    assert_true(k > 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),    cmocka_unit_test(test_complaints),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_files),
        cmocka_unit_test(test_nomem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
