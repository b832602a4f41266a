/* Real chat templates against the texts that transformers' renderer gave for the same conversations,
 * byte for byte. Where that renderer failed, ours must fail too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/template.h"
#include "tests/unxz.h"

#define DATA "tests/data/chat-templates/chat-templates.json.xz"

/* What the renderer of the expected texts does to a message that carries reasoning. */
static void mirror_reasoning(json_t *messages)
{
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m)
    {
        json_t *a = json_object_get(m, "reasoning_content"), *b = json_object_get(m, "thinking");
        if (a && !b)
            json_object_set(m, "thinking", a);
        if (b && !a)
            json_object_set(m, "reasoning_content", b);
    }
}

static json_t *variables(json_t *all, json_t *c)
{
    json_t *vars = json_deep_copy(json_object_get(all, "special_tokens"));
    json_t *messages = json_deep_copy(json_object_get(c, "messages"));
    mirror_reasoning(messages);
    json_object_update_missing(vars, json_object_get(c, "kwargs"));
    json_object_set_new(vars, "messages", messages);
    json_t *gen = json_object_get(c, "add_generation_prompt"), *tools = json_object_get(c, "tools");
    json_t *docs = json_object_get(c, "documents");
    json_object_set(vars, "add_generation_prompt", gen ? gen : json_true());
    json_object_set(vars, "tools", tools ? tools : json_null());
    json_object_set(vars, "documents", docs ? docs : json_null());
    return vars;
}

struct score {
    int texts, texts_equal, errors, errors_hit;
};

static void show_difference(const char *name, const char *id, const char *want, const char *got,
                            const char *why)
{
    size_t i = 0;
    while (want[i] && want[i] == got[i])
        i++;
    size_t from = i > 40 ? i - 40 : 0;
    if (why[0])
        print_message("%s, %s: %s\n", name, id, why);
    else
        print_message("%s, %s: differs at byte %zu\n  want ...%.100s\n  got  ...%.100s\n", name, id,
                      i, want + from, got + from);
}

static void run_case(struct score *s, const struct api_template *t, const char *why, json_t *vars,
                     const char *name, const char *id, json_t *want)
{
    static const struct tm now = {.tm_year = 126,
                                  .tm_mon = 0,
                                  .tm_mday = 15,
                                  .tm_hour = 12,
                                  .tm_min = 34,
                                  .tm_sec = 56,
                                  .tm_wday = 4,
                                  .tm_yday = 14};
    struct buf out = {0};
    struct err e = {0};
    int rc = t ? api_template_render(t, vars, &now, NULL, &out, &e) : ERR_PARSE;
    if (json_is_string(want)) {
        s->texts++;
        bool same = rc == 0 && out.len == json_string_length(want) &&
                    memcmp(buf_cstr(&out), json_string_value(want), out.len) == 0;
        s->texts_equal += same;
        if (!same)
            show_difference(name, id, json_string_value(want), buf_cstr(&out), t ? e.text : why);
    } else {
        s->errors++;
        s->errors_hit += rc != 0;
        if (rc == 0)
            print_message("%s, %s: a text where an error is right\n", name, id);
    }
    buf_free(&out);
}

static void run_template(struct score *s, json_t *all, json_t *row)
{
    const char *name = json_string_value(json_object_get(row, "name")), *id;
    json_t *src = json_object_get(row, "source"), *want;
    struct api_template *t = NULL;
    struct err e = {0};
    api_template_compile(&t, json_string_value(src), json_string_length(src), &e);
    json_object_foreach(json_object_get(row, "expected"), id, want)
    {
        json_t *vars = variables(all, json_object_get(json_object_get(all, "cases"), id));
        run_case(s, t, e.text, vars, name, id, want);
        json_decref(vars);
    }
    api_template_free(t);
}

static void test_goldens(void **st)
{
    (void)st;
    size_t n = 0;
    struct score s = {0};
    size_t i;
    json_t *row;
    json_error_t je;
    char *text = unxz_read(DATA, &n);
    assert_non_null(text);
    json_t *all = json_loadb(text, n, 0, &je);
    assert_non_null(all);
    free(text);
    json_array_foreach(json_object_get(all, "templates"), i, row) run_template(&s, all, row);
    json_decref(all);
    print_message("%d of %d texts equal, %d of %d errors\n", s.texts_equal, s.texts, s.errors_hit,
                  s.errors);
    assert_int_equal(s.texts, 3157);
    assert_int_equal(s.errors, 642);
    assert_int_equal(s.texts_equal, 3157);
    assert_int_equal(s.errors_hit, 642);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_goldens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
