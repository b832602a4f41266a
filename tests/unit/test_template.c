/* Chat-template engine: syntax and semantics against jinja2's own results, limits, hostile templates,
 * allocation failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "api/template.h"
#include "engine/base/mem.h"

#define SYNTAX "tests/data/chat-templates/syntax.json"

static const struct tm now = {.tm_year = 126, .tm_mday = 15, .tm_hour = 12, .tm_wday = 4};

/* Compile and render once; the text or the error's text lands in *out. */
static int run_lim(const char *src, size_t n, json_t *vars, const struct api_template_limits *lim,
                   struct buf *out)
{
    struct api_template *t = NULL;
    struct err e = {0};
    int rc = api_template_compile(&t, src, n, &e);
    if (rc == 0)
        rc = api_template_render(t, vars, &now, lim, out, &e);
    api_template_free(t);
    if (rc) {
        assert_int_equal(rc, e.code);
        assert_true(e.text[0] != 0);
        buf_clear(out);
        buf_str(out, e.text);
    }
    return rc;
}

static int run(const char *src, json_t *vars, struct buf *out)
{
    return run_lim(src, strlen(src), vars, NULL, out);
}

static void test_syntax(void **st)
{
    (void)st;
    json_error_t je;
    json_t *all = json_load_file(SYNTAX, 0, &je), *row;
    assert_non_null(all);
    size_t i;
    int bad = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row)
    {
        const json_t *want = json_array_get(row, 1);
        const char *src = json_string_value(json_array_get(row, 0));
        struct buf out = {0};
        int rc = run(src, json_object_get(all, "vars"), &out);
        bool ok = json_is_null(want) ? rc != 0
                                     : rc == 0 && strcmp(buf_cstr(&out), json_string_value(want)) == 0;
        if (!ok)
            print_message("%s\n   want %s\n   got  %s%s\n", src,
                          json_is_null(want) ? "an error" : json_string_value(want),
                          rc ? "error: " : "", buf_cstr(&out));
        bad += !ok;
        buf_free(&out);
    }
    assert_true(i > 700);
    json_decref(all);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_syntax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
