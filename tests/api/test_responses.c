/* /v1/responses and its events with given tokens: reasoning, text and calls; what is streamed is what is whole; histories
 * become the prompt that chat makes of them; the store's limits; failures in mid-stream; want of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/response_store.h"
#include "tests/talk_run.h"

#define RESP "/v1/responses"
#define TOOL                                                                                       \
    ",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\","       \
    "\"properties\":{\"x\":{\"type\":\"integer\"}}}}]"

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

/* "reasoning:hm|message:Hi|function_call:f({...})" of an output, with the status of items that are not complete. */
static void tell(json_t *response, char *out, size_t cap)
{
    size_t i, n = 0;
    json_t *v;
    out[0] = 0;
    json_array_foreach(json_object_get(response, "output"), i, v)
    {
        const char *type = api_run_str(v, "type"), *status = api_run_str(v, "status");
        json_t *list = json_object_get(v, "content");
        if (!json_array_size(list))
            list = json_object_get(v, "summary");
        n += (size_t)snprintf(out + n, cap - n, "%s%s:", i ? "|" : "", type);
        if (strcmp(type, "function_call") == 0)
            n += (size_t)snprintf(out + n, cap - n, "%s(%s)", api_run_str(v, "name"),
                                  api_run_str(v, "arguments"));
        else
            n += (size_t)snprintf(out + n, cap - n, "%s",
                                  api_run_str(json_array_get(list, 0), "text"));
        if (strcmp(status, "completed") != 0)
            n += (size_t)snprintf(out + n, cap - n, "[%s]", status);
    }
}

/* The deltas put together: each item's text, as tell would say it. */
static void expect(const char *extra, const char *text, enum finish_reason why, const char *want)
{
    char got[512], body[1024], sum[512] = "";
    for (int stream = 0; stream < 2; stream++) {
        snprintf(body, sizeof body, "{\"model\":\"t\",\"input\":\"hi\",\"stream\":%s%s}",
                 stream ? "true" : "false", extra);
        json_t *a = talk_run_ask(&run, RESP, body, text, why), *e;
        size_t i, n = 0;
        json_array_foreach(a, i, e)
        {
            assert_int_equal(api_run_int(e, "sequence_number"), i);
            if (json_object_get(e, "delta"))
                n += (size_t)snprintf(sum + n, sizeof sum - n, "%s", api_run_str(e, "delta"));
        }
        json_t *last = json_array_get(a, json_array_size(a) - 1);
        tell(stream ? json_object_get(last, "response") : a, got, sizeof got);
        assert_string_equal(got, want);
        if (stream)
            assert_string_equal(api_run_str(last, "type"), why == FINISH_LENGTH
                                                               ? "response.incomplete"
                                                               : "response.completed");
        json_decref(a);
    }
    /* every delta is somewhere in the answer, in order */
    const char *at = want;
    for (const char *p = sum; *p; p++) {
        at = strchr(at, *p);
        assert_non_null(at);
        at++;
    }
}

#define CALL "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"

static void test_items(void **state)
{
    (void)state;
    expect("", "Hi there", FINISH_STOP, "message:Hi there");
    expect("", "Hi th", FINISH_LENGTH, "message:Hi th[incomplete]");
    expect("", "<think>hm</think>Hi", FINISH_STOP, "reasoning:hm|message:Hi");
    expect(",\"reasoning\":{\"summary\":\"auto\"}", "<think>hm</think>Hi", FINISH_STOP,
           "reasoning:hm|message:Hi");
    expect("", "<think>hm", FINISH_LENGTH, "reasoning:hm[incomplete]");
    expect(TOOL, CALL, FINISH_STOP, "function_call:f({\"x\": 1})");
    expect(TOOL, "<think>hm</think>I look." CALL "\n" CALL, FINISH_STOP,
           "reasoning:hm|message:I look.|function_call:f({\"x\": 1})|function_call:f({\"x\": 1})");
    expect(TOOL ",\"parallel_tool_calls\":false", CALL CALL, FINISH_STOP,
           "function_call:f({\"x\": 1})");
    expect(TOOL, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\"", FINISH_LENGTH,
           "function_call:f({\"x\")[incomplete]");
    expect("", "", FINISH_STOP, "");
}

/* A turn of items and the same turn as chat says it are one prompt. */
static void test_history(void **state)
{
    (void)state;
    static const char items[] =
        "{\"model\":\"t\",\"instructions\":\"Be brief.\"" TOOL ",\"input\":["
        "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"hi\"}]},"
        "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":"
        "\"hm\"}]},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
        "\"text\":\"I look.\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\":"
        "1}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\":"
        "2}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"one\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":\"input_"
        "text\","
        "\"text\":\"two\"}]}]}";
    static const char chat[] =
        "{\"model\":\"t\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}}}}}],"
        "\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
        "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"reasoning_content\":"
        "\"hm\","
        "\"content\":\"I look.\",\"tool_calls\":["
        "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{"
        "\\\"x\\\":1}\"}},"
        "{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{"
        "\\\"x\\\":2}\"}}"
        "]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"one\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"two\"}]}";
    talk_run_same_prompt(&run, RESP, items, "/v1/chat/completions", chat);
}

/* An error after the first event: two more, and no end of success. */
static void test_failure(void **state)
{
    (void)state;
    struct api_call c;
    api_run_start(run.api, &c, RESP, "{\"model\":\"t\",\"input\":\"hi\",\"stream\":true}");
    talk_run_text(&run, &c, "Hi");
    api_fail(&c, ERR_DEVICE, NULL, "The engine has failed.", 0);
    json_t *a = api_run_answer(&c);
    size_t n = json_array_size(a);
    json_t *e = json_array_get(a, n - 2), *r = json_array_get(a, n - 1);
    assert_string_equal(api_run_str(e, "type"), "error");
    assert_string_equal(api_run_str(e, "code"), "engine_failed");
    assert_string_equal(api_run_str(r, "type"), "response.failed");
    assert_string_equal(api_run_str(json_object_get(r, "response"), "status"), "failed");
    assert_int_equal(api_run_int(r, "sequence_number"), n - 1);
    json_decref(a);
    api_call_free(&c);
}

static int put(struct response_store *s, const char *id, uint64_t owner, size_t n, int64_t now)
{
    struct response_kept k = {0};
    char item[64];
    snprintf(item, sizeof item, "{\"id\":\"item_%s\"}", id);
    buf_str(&k.items, item);
    for (size_t i = 0; i < n; i++)
        buf_char(&k.response, 'x');
    return response_store_put(s, id, owner, &k, now);
}

static int get(struct response_store *s, const char *id, uint64_t owner, int64_t now)
{
    struct response_kept k = {0};
    int rc = response_store_get(s, view_str(id), owner, now, &k);
    response_kept_free(&k);
    return rc;
}

static void test_store(void **state)
{
    (void)state;
    struct response_store *s = response_store_open(10000, 1000);
    struct response_kept k = {0};
    assert_int_equal(put(s, "a", 1, 3000, 0), 0);
    assert_int_equal(put(s, "b", 1, 3000, 10), 0);
    assert_int_equal(put(s, "c", 2, 9999, 10), ERR_LIMIT);
    assert_int_equal(get(s, "a", 1, 20), 0);
    assert_int_equal(get(s, "a", 2, 20), ERR_NOTFOUND);
    assert_int_equal(response_store_drop(s, view_str("a"), 2, 20), ERR_NOTFOUND);
    assert_int_equal(response_store_item(s, view_str("item_a"), 1, 20, &k), 0);
    response_kept_free(&k);
    assert_int_equal(response_store_item(s, view_str("item_a"), 2, 20, &k), ERR_NOTFOUND);
    assert_int_equal(response_store_item(s, view_str("item_"), 1, 20, &k), ERR_NOTFOUND);
    assert_int_equal(put(s, "c", 2, 5000, 30), 0); /* the oldest goes */
    assert_int_equal(get(s, "a", 1, 30), ERR_NOTFOUND);
    assert_int_equal(get(s, "b", 1, 30), 0);
    assert_true(response_store_bytes(s) <= 10000);
    assert_int_equal(get(s, "b", 1, 1010), ERR_NOTFOUND); /* its time is over */
    assert_int_equal(get(s, "c", 2, 1010), 0);
    assert_int_equal(response_store_drop(s, view_str("c"), 2, 1010), 0);
    assert_int_equal(response_store_bytes(s), 0);
    response_store_close(s);
}

static void test_no_memory(void **state)
{
    (void)state;
    static const char whole[] = "{\"model\":\"t\",\"input\":\"hi\"" TOOL "}";
    static const char stream[] = "{\"model\":\"t\",\"input\":\"hi\",\"stream\":true" TOOL "}";
    talk_run_no_memory(&run, RESP, whole, "<think>hm</think>Hi" CALL);
    talk_run_no_memory(&run, RESP, stream, "<think>hm</think>Hi" CALL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items),     cmocka_unit_test(test_history),
        cmocka_unit_test(test_failure),   cmocka_unit_test(test_store),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
