/* Families of call formats found from 131 published chat templates; and calls that a template renders come back when
 * its family reads them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_impl.h"
#include "api/stream_impl.h"
#include "tests/unxz.h"

#define DATA "tests/data/chat-templates/chat-templates.json.xz"
#define ASK  "Which town is it today?"

static json_t *all, *tools;

/* Templates whose calls of earlier turns are none that a family reads. */
static const char *const no_calls[] = {
    "ik-MiroThinker", /* no Jinja: it sets members of the request's objects */
    NULL,
};

/* Those that write any value between quotation marks, as it is. */
static const char *const lossy[] = {"vllm-tool_chat_template_llama4_pythonic", NULL};

static bool listed(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

struct sample {
    const char *name, *args;
};
static const struct sample plain[] = {
    {"get_weather", "{\"city\": \"Z\\u00fcrich (HB), it's\"}"},
    {"search_docs", "{\"query\": \"a < b\"}"},
};
static const struct sample full[] = {
    {"get_weather", "{\"city\": \"Z\\u00fcrich \\\"HB\\\"\"}"},
    {"search_docs", "{\"query\": \"a < b\", \"k\": 3, \"threshold\": 0.5, \"exact\": true}"},
};
static const struct sample *samples = full;

static void call_id(char *id, size_t size, bool kimi, int i)
{
    if (kimi) /* whose ids have the name in them */
        snprintf(id, size, "functions.%s:%d", samples[i].name, i);
    else
        snprintf(id, size, "abcdefg%02d", i);
}

/* The conversation with n calls, their arguments as objects or texts. */
static json_t *conversation(int n, bool text, bool null, bool kimi)
{
    json_t *calls = json_array(), *list = json_array();
    json_array_append_new(list, json_pack("{s:s, s:s}", "role", "user", "content", ASK));
    for (int i = 0; i < n; i++) {
        char id[64];
        call_id(id, sizeof id, kimi, i);
        json_t *args = text ? json_string(samples[i].args) : json_loads(samples[i].args, 0, NULL);
        json_array_append_new(calls,
                              json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function",
                                        "function", "name", samples[i].name, "arguments", args));
    }
    json_array_append_new(list,
                          json_pack("{s:s, s:o, s:o}", "role", "assistant", "content",
                                    null ? json_null() : json_string(""), "tool_calls", calls));
    for (int i = 0; i < n; i++) {
        char id[64];
        call_id(id, sizeof id, kimi, i);
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:s}", "role", "tool", "name",
                                        samples[i].name, "tool_call_id", id, "content", "21"));
    }
    return list;
}

static void fold_event(void *ctx, const struct stream_event *ev)
{
    assert_int_equal(stream_fold_add(ctx, ev), 0);
}

/* Whether what `text` says after the question has the first n calls. */
static bool reads_back(const struct tool_family *f, const char *text, int n)
{
    struct stream_fold fold = {0};
    struct stream_opts o = {.family = f, .tools = tools, .event = fold_event, .ctx = &fold};
    struct stream *s;
    const char *p = strstr(text, ASK);
    if (!p)
        return false;
    p += strlen(ASK);
    bool marked = f->whole;
    for (const char *const *m = f->open; m && *m; m++)
        marked |= strstr(p, *m) != NULL;
    if (!marked && f->bare)
        p = strpbrk(p, f->bare);
    if (!p)
        return false;
    assert_int_equal(stream_open(&s, &o), 0);
    assert_int_equal(stream_push(s, p, strlen(p)), 0);
    assert_int_equal(stream_finish(s), 0);
    stream_close(s);
    bool ok = fold.n_call == n;
    for (int i = 0; i < n && ok; i++) {
        json_t *got = json_loads(buf_cstr(&fold.call[i].args), 0, NULL),
               *want = json_loads(samples[i].args, 0, NULL);
        ok = strcmp(fold.call[i].name, samples[i].name) == 0 && json_equal(got, want);
        json_decref(got);
        json_decref(want);
    }
    stream_fold_free(&fold);
    return ok;
}

static bool render(const struct api_template *t, json_t *messages, struct buf *out)
{
    struct api_template_limits lim = {0};
    struct tm now = {.tm_mday = 1, .tm_year = 126};
    struct err e;
    json_t *vars = json_pack("{s:O, s:O, s:s, s:s, s:b}", "messages", messages, "tools", tools,
                             "bos_token", "", "eos_token", "", "add_generation_prompt", 0);
    json_object_set_new(vars, "functions", json_string("[]")); /* FireFunction's */
    json_object_set_new(vars, "datetime", json_string("2026-01-01"));
    buf_clear(out);
    int rc = api_template_render(t, vars, &now, &lim, out, &e);
    json_decref(vars);
    return rc == 0;
}

static bool round_trip(const char *source, size_t n_source, const struct tool_family *f)
{
    struct api_template *t;
    struct err e;
    struct buf out = {0};
    bool ok = false;
    assert_int_equal(api_template_compile(&t, source, n_source, &e), 0);
    for (int k = 0; k < 8 && !ok; k++) {
        int n = k < 4 ? 2 : 1;
        json_t *messages = conversation(n, k & 1, k & 2, strcmp(f->name, "kimi") == 0);
        ok = render(t, messages, &out) && reads_back(f, buf_cstr(&out), n);
        json_decref(messages);
        if (!ok && getenv("SHOW"))
            printf("%d: %s\n", k, out.p ? out.p : "");
    }
    buf_free(&out);
    api_template_free(t);
    return ok;
}

static void templates(void **state)
{
    (void)state;
    size_t i;
    json_t *t;
    int n = 0, bad = 0;
    json_array_foreach(json_object_get(all, "templates"), i, t)
    {
        const char *name = json_string_value(json_object_get(t, "name"));
        json_t *source = json_object_get(t, "source");
        struct chat_format f;
        tools_detect(json_string_value(source), false, &f);
        bool calls = strstr(json_string_value(source), "tool_calls") != NULL;
        if (getenv("SHOW"))
            printf("%-50s %-14s %s %s\n", name, f.family->name, f.declares ? "tools" : "-",
                   f.think_close ? f.think_close : "-");
        if (!f.declares || !calls || listed(no_calls, name))
            continue;
        n++;
        samples = listed(lossy, name) ? plain : full;
        if (!round_trip(json_string_value(source), json_string_length(source), f.family)) {
            print_error("%s: calls of the family %s do not come back\n", name, f.family->name);
            bad++;
        }
    }
    assert_int_equal(bad, 0);
    assert_true(n > 75);
}

static int setup(void **state)
{
    (void)state;
    size_t n;
    json_error_t e;
    api__json_init();
    char *text = unxz_read(DATA, &n);
    assert_non_null(text);
    all = json_loadb(text, n, 0, &e);
    free(text);
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                       "\"description\":\"d\",\"parameters\":{\"type\":"
                       "\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":"
                       "\"d\"}},\"required\":[\"city\"]}}},"
                       "{\"type\":\"function\",\"function\":{\"name\":\"search_docs\","
                       "\"description\":\"d\",\"parameters\":{\"type\":"
                       "\"object\",\"properties\":{\"query\":{\"type\":\"string\",\"description\":"
                       "\"d\"},\"k\":{\"type\":\"integer\","
                       "\"description\":\"d\"},\"threshold\":{\"type\":\"number\",\"description\":"
                       "\"d\"},\"exact\":{\"type\":\"boolean\","
                       "\"description\":\"d\"}},\"required\":[\"query\"]}}}]",
                       0, &e);
    assert_non_null(all);
    assert_non_null(tools);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(all);
    json_decref(tools);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
