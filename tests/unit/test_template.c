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
        bool ok = json_is_null(want)
                      ? rc != 0
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

/* --- limits and hostile templates --- */
static json_t *some_vars(void)
{
    json_t *v = json_pack("{s:s, s:[i,i,i], s:{s:s}}", "s", "text", "l", 1, 2, 3, "d", "k", "v");
    assert_non_null(v);
    return v;
}

static void expect_code(const char *src, int code)
{
    struct buf out = {0};
    json_t *vars = some_vars();
    int rc = run(src, vars, &out);
    if (rc != code)
        print_message("%.80s: %s\n", src, buf_cstr(&out));
    assert_int_equal(rc, code);
    buf_free(&out);
    json_decref(vars);
}

/* head, `n` times mid, then tail */
static char *repeat(const char *head, const char *mid, size_t n, const char *tail)
{
    struct buf b = {0};
    buf_str(&b, head);
    for (size_t i = 0; i < n; i++)
        buf_str(&b, mid);
    buf_str(&b, tail);
    return buf_take(&b, NULL);
}

static void expect_repeat(const char *head, const char *mid, size_t n, const char *tail, int code)
{
    char *src = repeat(head, mid, n, tail);
    expect_code(src, code);
    free(src);
}

static void test_codes(void **st)
{
    (void)st;
    expect_code("{% if %}", ERR_PARSE);
    expect_code("{{ 'x", ERR_PARSE);
    expect_code("\xff", ERR_PARSE);
    expect_code("{% include 'x' %}", ERR_UNSUPPORTED);
    expect_code("{% import 'x' as y %}", ERR_UNSUPPORTED);
    expect_code("{% extends 'x' %}", ERR_UNSUPPORTED);
    expect_code("{{ s|nope }}", ERR_UNSUPPORTED);
    expect_code("{{ nope() }}", ERR_INVAL);
    expect_code("{{ s.__class__.__mro__ }}", ERR_INVAL);
    expect_code("{{ d.__init__() }}", ERR_INVAL);
    expect_code("{{ '%n' % s }}", ERR_UNSUPPORTED);
    expect_code("{{ '%*d' % (1, 2) }}", ERR_UNSUPPORTED);
    expect_code("{{ '{0.__class__.__init__}'.format(s) }}", ERR_INVAL);
    expect_code("{{ 9223372036854775807 + 1 }}", ERR_INVAL);
    expect_code("{{ -9223372036854775807 - 2 }}", ERR_INVAL);
    expect_code("{{ (-9223372036854775807 - 1) // -1 }}", ERR_INVAL);
    expect_code("{{ 1 // 0 }}", ERR_INVAL);
    expect_code("{{ strftime_now('%500000d') }}", ERR_UNSUPPORTED);
}

static void test_error_text(void **st)
{
    (void)st;
    struct buf out = {0};
    json_t *vars = some_vars();
    assert_int_equal(run("a\nb{{ raise_exception('no ' ~ s) }}", vars, &out), ERR_INVAL);
    assert_string_equal(buf_cstr(&out), "no text");
    assert_int_equal(run("a\n\n{{ s.x.y }}", vars, &out), ERR_INVAL);
    assert_string_equal(buf_cstr(&out), "template line 3: 'x' is undefined");
    assert_int_equal(run("a\n{% if s %}\n{{ 1 + }}", vars, &out), ERR_PARSE);
    assert_string_equal(buf_cstr(&out),
                        "template line 3: expected an expression, got the end of the tag");
    buf_free(&out);
    json_decref(vars);
}

static void test_time(void **st)
{
    (void)st;
    struct buf out = {0};
    json_t *vars = some_vars();
    assert_int_equal(run("{{ strftime_now('%Y-%m-%d %H') }}{{ strftime_now('') }}", vars, &out), 0);
    assert_string_equal(buf_cstr(&out), "2026-01-15 12");
    buf_free(&out);
    json_decref(vars);
}

static void hostile(void)
{
    expect_repeat("{{ ", "(", 100000, "", ERR_LIMIT);
    expect_repeat("{{ ", "[", 100000, "", ERR_LIMIT);
    expect_repeat("{{ ", "not ", 100000, "1 }}", ERR_LIMIT);
    expect_repeat("{{ ", "-", 100000, "1 }}", ERR_LIMIT);
    expect_repeat("{{ 1", "+1", 100000, " }}", ERR_LIMIT);
    expect_repeat("{{ s", ".x", 100000, " }}", ERR_LIMIT);
    expect_repeat("{{ s", "|trim", 100000, " }}", ERR_LIMIT);
    expect_repeat("{{ s", " if s else s", 100000, " }}", ERR_LIMIT);
    expect_repeat("", "{% if s %}", 100000, "", ERR_LIMIT);
    expect_repeat("", "{% for x in l %}", 100000, "", ERR_LIMIT);
    expect_repeat("{{ 1", ",1", 100000, " }}x", 0);
    expect_repeat("{{ 1", "~1", 100000, " }}x", 0);
    expect_repeat("", "{% for x in range(9999) %}", 6,
                  "{% endfor %}{% endfor %}{% endfor %}"
                  "{% endfor %}{% endfor %}{% endfor %}",
                  ERR_LIMIT);
    expect_repeat("{{ f(", "1,", 300, ") }}", ERR_LIMIT);
    expect_code("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ERR_LIMIT);
    expect_code("{% macro f(a=f()) %}{% endmacro %}{{ f() }}", ERR_LIMIT);
    expect_code("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", ERR_LIMIT);
    expect_code("{% for x in range(100000) %}x{% endfor %}", ERR_LIMIT);
    expect_code("{{ range(1000000000000)|length }}", ERR_LIMIT);
    expect_code("{{ 'x' * 1000000000000 }}", ERR_LIMIT);
    expect_code("{{ [1] * 1000000000000 }}", ERR_LIMIT);
    expect_code("{{ 'x'.center(1000000000000) }}", ERR_LIMIT);
    expect_code("{{ '%999999999d' % 1 }}", ERR_LIMIT);
    expect_code("{{ '{:999999999}'.format(1) }}", ERR_LIMIT);
    expect_code("{{ l|slice(99999999999)|list }}", ERR_INVAL);
    expect_code("{{ l|batch(99999999999, 1)|list }}", ERR_LIMIT);
    expect_code("{{ s|indent(99999999999) }}", ERR_LIMIT);
    expect_code("{{ s|tojson(indent=999999999999) }}", ERR_LIMIT);
    expect_code("{% set ns = namespace(x='ab') %}{% for i in range(100) %}"
                "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
                ERR_LIMIT);
    expect_code("{% set ns = namespace(x=[1]) %}{% for i in range(100) %}"
                "{% set ns.x = ns.x + ns.x %}{% endfor %}",
                ERR_LIMIT);
    expect_code("{% set ns = namespace(x='a') %}{% for i in range(100) %}"
                "{% set ns.x = ns.x.replace('a', 'aaaa') %}{% endfor %}",
                ERR_LIMIT);
    expect_code("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", ERR_LIMIT);
    expect_code("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}", ERR_LIMIT);
    expect_code("{% set ns = namespace(x=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}"
                "{% endfor %}{{ ns.x|tojson }}",
                ERR_LIMIT);
    expect_code(
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(500) %}{% set ns.x = [ns.x] %}"
        "{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        ERR_LIMIT);
}

static void *hostile_thread(void *arg)
{
    (void)arg;
    hostile();
    return NULL;
}

/* On a stack that is small for a thread pool: depth limits must bite before the stack ends. */
static void test_hostile(void **st)
{
    (void)st;
    pthread_attr_t a;
    pthread_t t;
    assert_int_equal(pthread_attr_init(&a), 0);
    assert_int_equal(pthread_attr_setstacksize(&a, (size_t)4 << 20), 0);
    assert_int_equal(pthread_create(&t, &a, hostile_thread, NULL), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    pthread_attr_destroy(&a);
}

static void test_limits(void **st)
{
    (void)st;
    static const char loop[] = "{% for x in l %}{{ x }}{% endfor %}";
    struct buf out = {0};
    json_t *vars = some_vars(), *deep = json_array();
    assert_int_equal(
        run_lim(loop, sizeof(loop) - 1, vars, &(struct api_template_limits){.max_loop = 2}, &out),
        ERR_LIMIT);
    assert_int_equal(
        run_lim(loop, sizeof(loop) - 1, vars, &(struct api_template_limits){.max_output = 2}, &out),
        ERR_LIMIT);
    assert_int_equal(
        run_lim(loop, sizeof(loop) - 1, vars, &(struct api_template_limits){.max_steps = 5}, &out),
        ERR_LIMIT);
    buf_clear(&out);
    assert_int_equal(
        run_lim(loop, sizeof(loop) - 1, vars,
                &(struct api_template_limits){.max_loop = 3, .max_output = 3, .max_steps = 30},
                &out),
        0);
    assert_string_equal(buf_cstr(&out), "123");
    for (int i = 0; i < 200; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    json_object_set_new(vars, "deep", deep);
    assert_int_equal(run("{{ deep }}", vars, &out), ERR_LIMIT);
    /* Lists in themselves, and loops over a list that grows. */
    static const char *const endless[] = {
        "{% set q = [] %}{% set _ = q.append(q) %}{% set _ = q.append(q) %}{{ q }}",
        "{% set q = [] %}{% set _ = q.append(q) %}{% set _ = q.append(q) %}{{ q|tojson }}",
        "{% set q = [] %}{% set _ = q.append(q) %}{% set p = [] %}{% set _ = p.append(p) %}{{ q == "
        "p }}",
        "{% set d = {} %}{% set _ = d.update(d=d, e=d) %}{{ d }}",
        "{% set q = [1] %}{% for x in q %}{% set _ = q.append(x) %}{% endfor %}",
        "{% set q = [1] %}{% for x in range(99) %}{% set _ = q.extend(q) %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++)
        assert_int_equal(run(endless[i], vars, &out), ERR_LIMIT);
    buf_clear(&out);
    assert_int_equal(run("unused names are not read", vars, &out), 0);
    buf_free(&out);
    json_decref(vars);
}

/* The k-th allocation fails, for every k until none does. */
static void test_no_memory(void **st)
{
    (void)st;
    static const char src[] = "{% macro m(a) %}{{ a|upper }}{% endmacro %}{% for x in l %}"
                              "{{ m('v' ~ x) }}{{ d|tojson }}{{ '%s' % s }}{% endfor %}";
    char *big = repeat(src, "{{ s.split('e')|join('-') }}", 400, "");
    json_t *vars = some_vars();
    int failures = 0;
    for (long k = 1; k < 200; k++) {
        struct buf out = {0};
        mem_fail_after(k, k % 2);
        int rc = run(big, vars, &out);
        mem_fail_after(0, false);
        if (rc)
            assert_int_equal(rc, ERR_NOMEM);
        failures += rc != 0;
        buf_free(&out);
        if (rc == 0)
            break;
    }
    assert_true(failures > 5 && failures < 190);
    free(big);
    json_decref(vars);
}

/* One compiled template, many renders; growth in place must not show in values that are still held. */
static void test_reuse(void **st)
{
    (void)st;
    static const char src[] =
        "{% set k = 'a' 'b' %}{% set x = k ~ s %}{% set y = k ~ '2' %}{{ x }}{{ y }}{{ k }}";
    struct api_template *t = NULL;
    struct err e;
    json_t *vars = some_vars();
    assert_int_equal(api_template_compile(&t, src, sizeof(src) - 1, &e), 0);
    for (int i = 0; i < 3; i++) {
        struct buf out = {0};
        assert_int_equal(api_template_render(t, vars, NULL, NULL, &out, &e), 0);
        assert_string_equal(buf_cstr(&out), "abtextab2ab");
        buf_free(&out);
    }
    api_template_free(t);
    api_template_free(NULL);
    json_decref(vars);
}

/* 1 MB of text through concatenation in a loop, a macro and a list: linear, so within the steps. */
static void test_linear(void **st)
{
    (void)st;
    static const char src[] =
        "{% set ns = namespace(s='', l=[]) %}{% for i in range(5000) %}{% set ns.s = ns.s ~ part %}"
        "{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.s }}{{ ns.l|length }}";
    char part[201];
    struct buf out = {0};
    memset(part, 'p', 200);
    part[200] = 0;
    json_t *vars = json_pack("{s:s}", "part", part);
    assert_int_equal(run(src, vars, &out), 0);
    assert_int_equal(out.len, 5000 * 200 + 4);
    buf_free(&out);
    json_decref(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_syntax),     cmocka_unit_test(test_codes),
        cmocka_unit_test(test_error_text), cmocka_unit_test(test_time),
        cmocka_unit_test(test_hostile),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
