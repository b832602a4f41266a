/* Chats of a model that thinks and calls tools: its tokens by hand, answers streamed and whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/text/tokenizer.h"
#include "tests/api_run.h"
#include "tests/unxz.h"

#define MODEL "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz"
#define CHAT  "/v1/chat/completions"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"     \
    "\"object\"}}}]"

static struct api *api;
static struct tokenizer *tok;
static int32_t byte_id[256];

static int setup(void **state)
{
    (void)state;
    char path[64];
    struct err e;
    api = api_run_open(MODEL, RUN_CTX, &tok);
    for (int32_t id = 0; id < tok_n_vocab(tok); id++) {
        struct view v = tok_bytes(tok, id, false);
        if (v.len == 1)
            byte_id[(unsigned char)v.p[0]] = id;
    }
    assert_int_equal(unxz_temp(MODEL, path, sizeof path), 0);
    int m = api_model_add(api, "t", NULL, path, "tests/data/tools/think.jinja", &e);
    assert_int_equal(m, 1);
    api_model_ready(api, m, &(struct eng_info){.n_ctx = RUN_CTX, .n_vocab = tok_n_vocab(tok)});
    remove(path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    api_close(api);
    return 0;
}

/* The answer of a chat with more members in its body, when the model writes `text`. */
static json_t *chat(const char *extra, bool stream, const char *text, enum finish_reason why)
{
    struct api_call c;
    char body[4096];
    snprintf(
        body, sizeof body,
        "{\"model\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":%s%s%s}",
        stream ? "true" : "false", *extra ? "," : "", extra);
    api_run_start(api, &c, CHAT, body);
    if (c.done)
        fail_msg("%.*s", (int)c.out.len, c.out.p);
    for (const char *p = text; *p && !c.done; p++)
        api_run_token(&c, 0, 0, byte_id[(unsigned char)*p]);
    api_run_finish(&c, 0, 0, why);
    api_run_done(&c, 0, 0);
    json_t *a = api_run_answer(&c);
    api_call_free(&c);
    return a;
}

static void add(json_t *o, const char *key, const json_t *piece)
{
    const char *old = json_string_value(json_object_get(o, key)), *s = json_string_value(piece);
    if (!s)
        return;
    char *both = malloc(strlen(old ? old : "") + strlen(s) + 1);
    memcpy(both, old ? old : "", strlen(old ? old : "") + 1);
    memcpy(both + strlen(both), s, strlen(s) + 1);
    json_object_set_new(o, key, json_string(both));
    free(both);
}

/* The message that the frames of a stream make. */
static json_t *fold(json_t *frames, const char **finish)
{
    json_t *m = json_object(), *calls = json_array(), *f, *k;
    size_t i, j;
    json_array_foreach(frames, i, f)
    {
        json_t *ch = json_array_get(json_object_get(f, "choices"), 0),
               *d = json_object_get(ch, "delta");
        add(m, "content", json_object_get(d, "content"));
        add(m, "reasoning_content", json_object_get(d, "reasoning_content"));
        if (json_is_string(json_object_get(ch, "finish_reason")))
            *finish = json_string_value(json_object_get(ch, "finish_reason"));
        json_array_foreach(json_object_get(d, "tool_calls"), j, k)
        {
            json_t *fn = json_object_get(k, "function");
            size_t at = (size_t)json_integer_value(json_object_get(k, "index"));
            if (json_object_get(k, "id")) {
                assert_int_equal(at, json_array_size(calls));
                json_array_append_new(calls,
                                      json_pack("{s:O}", "name", json_object_get(fn, "name")));
            }
            assert_int_equal(at + 1, json_array_size(calls));
            add(json_array_get(calls, at), "arguments", json_object_get(fn, "arguments"));
        }
    }
    json_object_set_new(m, "calls", calls);
    return m;
}

struct want {
    const char *extra, *text, *content, *reasoning, *name, *args, *finish;
    int thoughts; /* reasoning tokens */
    enum finish_reason why;
};

static void check(const struct want *w)
{
    json_t *a = chat(w->extra, false, w->text, w->why), *ch, *m, *k, *d;
    const char *finish = NULL;
    ch = json_array_get(json_object_get(a, "choices"), 0);
    m = json_object_get(ch, "message");
    if (w->content)
        assert_string_equal(json_string_value(json_object_get(m, "content")), w->content);
    else
        assert_true(json_is_null(json_object_get(m, "content")));
    k = json_object_get(m, "reasoning_content");
    assert_true(w->reasoning ? k && strcmp(json_string_value(k), w->reasoning) == 0 : !k);
    k = json_object_get(json_array_get(json_object_get(m, "tool_calls"), 0), "function");
    assert_int_equal(json_array_size(json_object_get(m, "tool_calls")), w->name ? 1 : 0);
    if (w->name) {
        assert_string_equal(json_string_value(json_object_get(k, "name")), w->name);
        assert_string_equal(json_string_value(json_object_get(k, "arguments")), w->args);
    }
    assert_string_equal(json_string_value(json_object_get(ch, "finish_reason")), w->finish);
    d = json_object_get(json_object_get(a, "usage"), "completion_tokens_details");
    assert_int_equal(api_run_int(d, "reasoning_tokens"), w->thoughts);
    json_decref(a);

    a = chat(w->extra, true, w->text, w->why);
    m = fold(a, &finish);
    k = json_object_get(m, "content");
    assert_string_equal(k ? json_string_value(k) : "", w->content ? w->content : "");
    k = json_object_get(m, "reasoning_content");
    assert_true(w->reasoning ? k && strcmp(json_string_value(k), w->reasoning) == 0 : !k);
    k = json_array_get(json_object_get(m, "calls"), 0);
    if (w->name) {
        assert_string_equal(json_string_value(json_object_get(k, "name")), w->name);
        assert_string_equal(json_string_value(json_object_get(k, "arguments")), w->args);
    }
    assert_string_equal(finish, w->finish);
    json_decref(m);
    json_decref(a);
}

static void answers(void **state)
{
    (void)state;
    static const char call[] =
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"STOP\"}}</tool_call>";
    static const struct want w[] = {
        {"", "Hello", "Hello", NULL, NULL, NULL, "stop", 0, FINISH_STOP},
        {"", call, call, NULL, NULL, NULL, "stop", 0, FINISH_STOP}, /* no tools */
        {TOOLS ",\"tool_choice\":\"none\"", call, call, NULL, NULL, NULL, "stop", 0, FINISH_STOP},
        {TOOLS, call, NULL, NULL, "f", "{\"a\": \"STOP\"}", "tool_calls", 0, FINISH_STOP},
        {TOOLS ",\"stop\":\"STOP\"", call, NULL, NULL, "f", "{\"a\": \"STOP\"}", "tool_calls", 0,
         FINISH_STOP},
        {TOOLS, "Hm <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", "Hm", NULL, "f",
         "{\"a\": ", "length", 0, FINISH_LENGTH},
        {"\"stop\":\"STOP\"", "<think>a STOP b</think>\n\nc STOP d", "c ", "a STOP b", NULL, NULL,
         "stop", 16, FINISH_STOP},
        {"\"reasoning_effort\":\"high\"", "ab</think>c", "c", "ab", NULL, NULL, "stop", 10,
         FINISH_STOP},
        {"\"chat_template_kwargs\":{\"enable_thinking\":true}", "abc", "", "abc", NULL, NULL,
         "length", 3, FINISH_LENGTH},
        {"\"chat_template_kwargs\":{\"enable_thinking\":true},\"reasoning_effort\":\"none\"",
         "ab</think>c", "c", "ab", NULL, NULL, "stop", 10, FINISH_STOP},
        {"\"reasoning_effort\":\"none\"", "abc", "abc", NULL, NULL, NULL, "stop", 0, FINISH_STOP},
        {"\"reasoning_effort\":\"low\",\"include_reasoning\":false", "ab</think>c", "c", NULL, NULL,
         NULL, "stop", 10, FINISH_STOP},
    };
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        check(&w[i]);
}

/* Only tokens of the answer's text have log-probabilities. */
static void logprobs(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        json_t *a = chat(TOOLS ",\"logprobs\":true", stream,
                         "<think>ab</think>cd<tool_call>{\"name\":\"f\"}</tool_call>", FINISH_STOP);
        json_t *l = api_run_logprobs(a, 0);
        assert_int_equal(json_array_size(l), 2);
        json_decref(l);
        json_decref(a);
    }
}

static struct request *request(const char *extra, struct api_call *c)
{
    static char body[4096];
    snprintf(body, sizeof body,
             "{\"model\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
             *extra ? "," : "", extra);
    api_run_start(api, c, CHAT, body);
    assert_false(c->done);
    return c->req[0];
}

static void bounds(void **state)
{
    (void)state;
    struct api_call c;
    struct request *r = request("\"thinking_token_budget\":7,\"reasoning_effort\":\"high\"", &c);
    assert_non_null(r->think);
    assert_int_equal(r->think->budget, 7);
    assert_true(r->think->inside && r->think->n_close > 0 && r->think->n_force > 0);
    api_call_free(&c);
    r = request("\"max_reasoning_tokens\":0", &c);
    assert_true(r->think && !r->think->inside && r->think->n_open > 0);
    api_call_free(&c);
    r = request("\"thinking_token_budget\":-1", &c);
    assert_null(r->think);
    api_call_free(&c);
    r = request(TOOLS ",\"tool_choice\":\"required\"", &c);
    assert_non_null(r->samp.grammar);
    api_call_free(&c);
    r = request(TOOLS, &c);
    assert_null(r->samp.grammar);
    api_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(logprobs),
        cmocka_unit_test(bounds),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
