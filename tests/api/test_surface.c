/* Fields of a request that are no sampling: limits of time, and how the prompt is made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api_impl.h"
#include "tests/talk_run.h"
#include "tests/unxz.h"

#define CHAT "/v1/chat/completions"
#define COMP "/v1/completions"

static struct talk_run run;

static int setup(void **state)
{
    (void)state;
    talk_run_open(&run);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    talk_run_close(&run);
    return 0;
}

#define HI "\"model\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* ---- limits of time ---- */

static const struct {
    const char *path, *body;
} ends[] = {{CHAT, HI},
            {COMP, "\"model\":\"t\",\"prompt\":\"hi\""},
            {"/v1/responses", "\"model\":\"t\",\"input\":\"hi\""},
            {"/v1/messages", "\"max_tokens\":9," HI}};

static void test_timeout(void **state)
{
    (void)state;
    static const char *const bad[] = {"0", "-1", "86401", "\"5\"", "true"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct api_call c;
        char body[400];
        snprintf(body, sizeof body, "{%s,\"timeout\":2.5}", ends[i].body);
        api_run_start(run.api, &c, ends[i].path, body);
        assert_false(c.done);
        assert_int_equal(c.req[0]->deadline_us, c.arrival_us + 2500000);
        api_call_free(&c);
        snprintf(body, sizeof body, "{%s,\"timeout\":null}", ends[i].body);
        api_run_start(run.api, &c, ends[i].path, body);
        assert_int_equal(c.req[0]->deadline_us, 0);
        api_call_free(&c);
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            snprintf(body, sizeof body, "{%s,\"timeout\":%s}", ends[i].body, bad[k]);
            api_run_start(run.api, &c, ends[i].path, body);
            assert_int_equal(c.status, 400);
            assert_non_null(strstr(buf_cstr(&c.out), "'timeout'"));
            api_call_free(&c);
        }
    }
}

/* What the scheduler says at the deadline, before the first token and after it. */
static void test_timeout_passed(void **state)
{
    (void)state;
    struct event ev = {.kind = EV_ERROR, .err = {ERR_TIMEOUT, "the deadline has passed"}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct api_call c;
        char body[400];
        snprintf(body, sizeof body, "{%s,\"timeout\":2.5}", ends[i].body);
        api_run_start(run.api, &c, ends[i].path, body);
        talk_run_text(&run, &c, "some");
        api_event(&c, 0, &ev);
        assert_int_equal(c.status, 503);
        assert_non_null(strstr(buf_cstr(&c.out), i < 3 ? "\"timeout\"" : "\"timeout_error\""));
        api_call_free(&c);
        snprintf(body, sizeof body, "{%s,\"stream\":true}", ends[i].body);
        api_run_start(run.api, &c, ends[i].path, body);
        talk_run_text(&run, &c, "some");
        api_event(&c, 0, &ev);
        assert_true(c.done && c.status == 200);
        assert_non_null(strstr(buf_cstr(&c.out), i < 3 ? "\"timeout\"" : "\"timeout_error\""));
        assert_null(strstr(buf_cstr(&c.out), "[DONE]"));
        api_call_free(&c);
    }
}

/* Writing for too long ends a choice behind a line break, as a limit does. */
static void test_writing_time(void **state)
{
    (void)state;
    for (int streaming = 0; streaming < 2; streaming++) {
        struct api_call c;
        char body[400];
        snprintf(body, sizeof body,
                 "{\"model\":\"t\",\"prompt\":\"hi\",\"t_max_predict_ms\":1,\"stream\":%s}",
                 streaming ? "true" : "false");
        api_run_start(run.api, &c, COMP, body);
        talk_run_text(&run, &c, "one");
        usleep(2000);
        talk_run_text(&run, &c, " two");
        assert_int_equal(c.n_cmd, 0);
        talk_run_text(&run, &c, "\nthree");
        assert_true(c.n_cmd == 1 && c.cmd[0].kind == API_FINISH_CHOICE);
        assert_int_equal(c.cmd[0].keep, 8);
        api_run_done(&c, 0, 0);
        json_t *v = api_run_answer(&c);
        char *text = api_run_text(v, 0);
        assert_string_equal(text, "one two\n");
        assert_string_equal(api_run_finish_reason(v, 0), "length");
        free(text);
        json_decref(v);
        api_call_free(&c);
    }
}

/* ---- prompts of chats ---- */

/* The prompt of this chat, as text. */
static char *prompt_of(const char *fields)
{
    struct api_call c;
    char body[1000];
    struct buf b = {0};
    snprintf(body, sizeof body, "{%s}", fields);
    api_run_start(run.api, &c, CHAT, body);
    if (c.done)
        fail_msg("%s: %s", body, buf_cstr(&c.out));
    const struct tokenizer *t = run.api->model[0].text->tok;
    const struct request *r = c.req[0];
    int32_t from = tok_adds_bos(t) && r->n_prompt && r->prompt[0] == tok_bos(t);
    assert_int_equal(tok_decode(t, r->prompt + from, (size_t)(r->n_prompt - from), true, &b), 0);
    char *s = strdup(buf_cstr(&b));
    buf_free(&b);
    api_call_free(&c);
    return s;
}

static void expect_prompt(const char *fields, const char *want)
{
    char *s = prompt_of(fields);
    assert_string_equal(s, want);
    free(s);
}

#define MSGS(m) "\"messages\":[" m "]"
#define USER    "{\"role\":\"user\",\"content\":\"hi\"}"
#define BODY                                                                                       \
    "{% for m in messages %}({{ m.role }}{% if m.name %}={{ m.name }}{% endif %}){{ m.content }}"  \
    ".\n{% endfor %}{% if add_generation_prompt %}(assistant){% endif %}{{ colour }}{{ "           \
    "eos_token if show }}"
#define TRIMS                                                                                      \
    "{% for m in messages %}({{ m.role }}){{ m.content | trim }}.\n{% endfor %}"                   \
    "{% if add_generation_prompt %}(assistant){% endif %}"

static void test_messages(void **state)
{
    (void)state;
    talk_run_serve(&run, "plain", BODY);
    talk_run_serve(&run, "dev", "{# developer #}{% if 0 %}{{ 'developer' }}{% endif %}" BODY);
#define P "\"model\":\"plain\","
    expect_prompt(P MSGS(USER), "(user)hi.\n(assistant)");
    expect_prompt(P "\"add_generation_prompt\":false," MSGS(USER), "(user)hi.\n");
    expect_prompt(P MSGS("{\"role\":\"developer\",\"content\":\"Be brief.\"}," USER),
                  "(system)Be brief..\n(user)hi.\n(assistant)");
    expect_prompt("\"model\":\"dev\"," MSGS("{\"role\":\"developer\",\"content\":\"Be.\"}," USER),
                  "(developer)Be..\n(user)hi.\n(assistant)");
    expect_prompt(P MSGS("{\"role\":\"user\",\"name\":\"Ann\",\"content\":\"hi\"}"),
                  "(user=Ann)hi.\n(assistant)");
    expect_prompt(P MSGS("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                         "{\"type\":\"text\",\"text\":\"b\"}]}"),
                  "(user)a\nb.\n(assistant)");
    expect_prompt(P MSGS("{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":"
                         "\"no\"}]}," USER),
                  "(assistant)no.\n(user)hi.\n(assistant)");
    /* variables of the template, but for those that are the server's */
    expect_prompt(P "\"chat_template_kwargs\":{\"colour\":\"red\"}," MSGS(USER),
                  "(user)hi.\n(assistant)red");
    expect_prompt(P "\"chat_template_kwargs\":{\"messages\":[],\"eos_token\":\"X\","
                    "\"add_generation_prompt\":false,\"colour\":null}," MSGS(USER),
                  "(user)hi.\n(assistant)None");
}

/* As transformers do it: spaces at the end stay where the template keeps them. */
static void test_continue(void **state)
{
    (void)state;
    talk_run_serve(&run, "trims", TRIMS);
#define GO         "\"continue_final_message\":true,"
#define T          "\"model\":\"trims\","
#define LAST(text) MSGS(USER ",{\"role\":\"assistant\",\"content\":\"" text "\"}")
    expect_prompt(P GO LAST("Hello"), "(user)hi.\n(assistant)Hello");
    expect_prompt(P GO LAST("Hello "), "(user)hi.\n(assistant)Hello ");
    expect_prompt(P GO LAST(" Hello\\n\\n"), "(user)hi.\n(assistant) Hello\n\n");
    expect_prompt(P GO LAST(""), "(user)hi.\n(assistant)");
    expect_prompt(P GO LAST("hi"), "(user)hi.\n(assistant)hi");
    expect_prompt(P GO LAST("."), "(user)hi.\n(assistant).");
    expect_prompt(P GO MSGS(USER), "(user)hi");
    expect_prompt(T GO LAST("Hello"), "(user)hi.\n(assistant)Hello");
    expect_prompt(T GO LAST(" Hello \\n"), "(user)hi.\n(assistant)Hello");
    expect_prompt(P GO MSGS(USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
                                 "\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b \"}]}"),
                  "(user)hi.\n(assistant)a\nb ");
    /* the text that control tokens have is text, also there */
    expect_prompt(P GO LAST("</s>"), "(user)hi.\n(assistant)</s>");
    /* without it the answer is a new message */
    expect_prompt(P LAST("Hello"), "(user)hi.\n(assistant)Hello.\n(assistant)");
}

static void refused(const char *fields, const char *param, const char *code)
{
    struct api_call c;
    char body[600];
    snprintf(body, sizeof body, "{%s}", fields);
    api_run_start(run.api, &c, CHAT, body);
    api_run_error(&c, 400, param, code);
    api_call_free(&c);
}

static void test_messages_refused(void **state)
{
    (void)state;
    talk_run_serve(&run, "silent", "{% for m in messages %}{{ m.role }}{% endfor %}");
    refused("\"model\":\"silent\"," GO LAST("Hello"), "continue_final_message", "invalid_value");
    refused("\"model\":\"t\"," GO "\"add_generation_prompt\":true," LAST("Hello"),
            "continue_final_message", "invalid_value");
    refused("\"model\":\"t\"," GO MSGS(
                USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{"
                     "\"name\":\"f\",\"arguments\":\"{}\"}}]}"),
            "continue_final_message", "invalid_value");
    refused("\"model\":\"t\",\"chat_template_kwargs\":{\"chat_template\":\"x\"}," MSGS(USER),
            "chat_template_kwargs.chat_template", "unsupported_value");
    refused("\"model\":\"t\",\"chat_template_kwargs\":{\"tokenize\":false}," MSGS(USER),
            "chat_template_kwargs.tokenize", "unsupported_value");
}

/* A template that counts its calls in lists. */
static void test_kimi(void **state)
{
    (void)state;
    size_t n, i;
    char *all = unxz_read("tests/data/chat-templates/chat-templates.json.xz", &n);
    json_t *v = json_loadb(all, n, 0, NULL), *t;
    free(all);
    json_array_foreach(json_object_get(v, "templates"), i, t)
    {
        const char *name = api_run_str(t, "name");
        if (strcmp(name, "Kimi-K2-Instruct") == 0 || strcmp(name, "Kimi-K2-Thinking") == 0 ||
            strcmp(name, "moonshotai-Kimi-K2") == 0)
            talk_run_serve(&run, name, api_run_str(t, "source"));
    }
    json_decref(v);
#define CALLED                                                                                     \
    MSGS(USER                                                                                      \
         ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_1\",\"type\":"  \
         "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}}]},{"        \
         "\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"content\":\"one\"}")
    static const char *const want[] = {"## Return of functions.f:0\none",
                                       "## Return of functions.f:0\none", "## Return of call_1"};
    static const char *const names[] = {"Kimi-K2-Instruct", "Kimi-K2-Thinking",
                                        "moonshotai-Kimi-K2"};
    for (i = 0; i < 3; i++) {
        char fields[600];
        snprintf(fields, sizeof fields, "\"model\":\"%s\"," CALLED, names[i]);
        char *s = prompt_of(fields);
        assert_non_null(strstr(s, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
                                  "\"x\": 1}<|tool_call_end|>"));
        if (!strstr(s, want[i]))
            fail_msg("%s", s);
        free(s);
    }
}

/* ---- what goes to the scheduler ---- */

static uint64_t salt_of(const char *salt)
{
    struct api_call c;
    char body[200];
    snprintf(body, sizeof body, "{\"model\":\"t\",\"prompt\":\"x\",\"cache_salt\":%s}", salt);
    api_run_start(run.api, &c, COMP, body);
    uint64_t s = c.req[0]->cache_salt;
    api_call_free(&c);
    return s;
}

static void test_salt_and_priority(void **state)
{
    (void)state;
    assert_int_equal(salt_of("null"), 0);
    assert_true(salt_of("\"a\"") != 0 && salt_of("\"a\"") == salt_of("\"a\""));
    assert_true(salt_of("\"a\"") != salt_of("\"b\"") && salt_of("\"\"") != 0);
    struct api_call c;
    api_run_start(run.api, &c, COMP, "{\"model\":\"t\",\"prompt\":[\"x\",\"y\"],\"priority\":-7}");
    assert_true(c.req[0]->priority == -7 && c.req[1]->priority == -7);
    api_call_free(&c);
}

/* n choices of each of several prompts: choice k of prompt i has the index i * n + k. */
static void test_batch(void **state)
{
    (void)state;
    static const char *const prompts[] = {"[\"a\",\"b\",\"c\"]", "[[97],[98],[99]]"};
    for (int mode = 0; mode < 4; mode++) {
        struct api_call c;
        char body[300];
        snprintf(
            body, sizeof body,
            "{\"model\":\"t\",\"prompt\":%s,\"n\":2,\"echo\":true,\"add_special_tokens\":false,"
            "\"stream\":%s}",
            prompts[mode & 1], mode & 2 ? "true" : "false");
        api_run_start(run.api, &c, COMP, body);
        assert_int_equal(c.n_req, 3);
        for (int i = 2; i >= 0; i--) { /* they end in any order */
            for (int k = 0; k < 2; k++) {
                api_run_token(&c, i, k, run.byte_id['0' + i]);
                api_run_token(&c, i, k, run.byte_id['0' + k]);
                api_run_finish(&c, i, k, FINISH_STOP);
            }
            api_run_done(&c, i, 0);
        }
        json_t *v = api_run_answer(&c);
        for (int i = 0; i < 6; i++) {
            const struct tokenizer *t = run.api->model[0].text->tok;
            char want[16], *text = api_run_text(v, i);
            struct view p = tok_bytes(t, 97 + i / 2, true);
            if (mode & 1)
                snprintf(want, sizeof want, "%.*s%d%d", (int)p.len, p.p, i / 2, i % 2);
            else
                snprintf(want, sizeof want, "%c%d%d", 'a' + i / 2, i / 2, i % 2);
            assert_string_equal(text, want);
            free(text);
        }
        json_decref(v);
        api_call_free(&c);
    }
}

/* ---- prompt_logprobs ---- */

static void test_prompt_logprobs(void **state)
{
    (void)state;
    for (int chat = 0; chat < 2; chat++) {
        struct api_call c;
        api_run_start(run.api, &c, chat ? CHAT : COMP,
                      chat ? "{" HI ",\"prompt_logprobs\":1}"
                           : "{\"model\":\"t\",\"prompt\":\"abc\",\"prompt_logprobs\":1,"
                             "\"echo\":true}");
        assert_int_equal(c.req[0]->prompt_logprobs, 1);
        int32_t n = c.req[0]->n_prompt;
        for (int32_t i = 1; i < n; i++)
            api_run_prompt(&c, 0, i, c.req[0]->prompt[i]);
        talk_run_text(&run, &c, "ok");
        api_run_done(&c, 0, 0);
        json_t *v = api_run_answer(&c);
        char *text = api_run_text(v, 0);
        assert_string_equal(text, chat ? "ok" : "abcok");
        free(text);
        json_t *ch = json_array_get(json_object_get(v, "choices"), 0);
        json_t *lp = json_object_get(chat ? v : ch, "prompt_logprobs");
        assert_int_equal(json_array_size(lp), n);
        assert_true(json_is_null(json_array_get(lp, 0)));
        for (int32_t i = 1; i < n; i++) {
            char id[16];
            json_t *one = json_array_get(lp, (size_t)i), *t;
            snprintf(id, sizeof id, "%d", c.req[0]->prompt[i]);
            t = json_object_get(one, id);
            assert_true(json_object_size(one) >= 1 && json_object_size(one) <= 2);
            assert_true(json_is_real(json_object_get(t, "logprob")));
            assert_true(json_is_string(json_object_get(t, "decoded_token")));
            assert_true(json_is_integer(json_object_get(t, "rank")));
        }
        assert_true(json_is_null(json_object_get(ch, "logprobs")));
        json_decref(v);
        api_call_free(&c);
    }
    refused(HI ",\"prompt_logprobs\":1,\"stream\":true", "prompt_logprobs", "unsupported_value");
    refused(HI ",\"prompt_logprobs\":21", "prompt_logprobs", NULL);
    refused(HI ",\"prompt_logprobs\":-1", "prompt_logprobs", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeout),      cmocka_unit_test(test_timeout_passed),
        cmocka_unit_test(test_writing_time), cmocka_unit_test(test_messages),
        cmocka_unit_test(test_continue),     cmocka_unit_test(test_messages_refused),
        cmocka_unit_test(test_kimi),         cmocka_unit_test(test_salt_and_priority),
        cmocka_unit_test(test_batch),        cmocka_unit_test(test_prompt_logprobs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
