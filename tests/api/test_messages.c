/* /v1/messages and its events with given tokens: thinking, text and tool use; what is streamed is what is whole; histories
 * become the prompt that chat makes of them; failures in mid-stream; want of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/talk_run.h"

#define MSG "/v1/messages"
#define TOOL                                                                                       \
    ",\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"x\":{"    \
    "\"type\":\"integer\"}}}}]"
#define HI   "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":500"
#define CALL "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"

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

/* A stream's events folded into a message, each checked for its place. */
static json_t *fold(json_t *events)
{
    size_t i;
    json_t *e, *m = NULL, *content = json_array();
    struct buf text = {0};
    int open = -1, next = 0;
    json_array_foreach(events, i, e)
    {
        const char *type = api_run_str(e, "type");
        json_t *d = json_object_get(e, "delta"), *b = json_object_get(e, "content_block");
        if (strcmp(type, "message_start") == 0) {
            assert_int_equal(i, 0);
            m = json_deep_copy(json_object_get(e, "message"));
        } else if (strcmp(type, "content_block_start") == 0) {
            assert_int_equal(open, -1);
            open = (int)api_run_int(e, "index");
            assert_int_equal(open, next++);
            json_array_append_new(content, json_deep_copy(b));
        } else if (strcmp(type, "content_block_delta") == 0) {
            assert_int_equal(open, api_run_int(e, "index"));
            const char *key = json_object_get(d, "partial_json") ? "partial_json"
                              : json_object_get(d, "thinking")   ? "thinking"
                                                                 : "text";
            buf_str(&text, api_run_str(d, key));
        } else if (strcmp(type, "content_block_stop") == 0) {
            assert_int_equal(open, api_run_int(e, "index"));
            b = json_array_get(content, (size_t)open);
            const char *kind = api_run_str(b, "type");
            json_t *in = json_loads(buf_cstr(&text), 0, NULL);
            if (strcmp(kind, "tool_use") == 0)
                json_object_set_new(b, "input", in ? in : json_object());
            else
                json_object_set_new(b, kind, json_string(buf_cstr(&text)));
            buf_free(&text);
            open = -1;
        } else if (strcmp(type, "message_delta") == 0) {
            assert_int_equal(open, -1);
            json_object_update(m, d);
            json_object_set(m, "usage", json_object_get(e, "usage"));
        } else {
            assert_string_equal(type, i == 1 ? "ping" : "message_stop");
            assert_true(i == 1 || i == json_array_size(events) - 1);
        }
    }
    json_object_set_new(m, "content", content);
    return m;
}

/* Ids are random: they begin as they should, and are taken out. */
static void drop_ids(json_t *m)
{
    size_t i;
    json_t *b;
    assert_int_equal(strncmp(api_run_str(m, "id"), "msg_", 4), 0);
    json_object_del(m, "id");
    json_array_foreach(json_object_get(m, "content"), i, b)
    {
        if (strcmp(api_run_str(b, "type"), "tool_use") == 0)
            assert_int_equal(strncmp(api_run_str(b, "id"), "toolu_", 6), 0);
        json_object_del(b, "id");
    }
}

static void expect(const char *extra, const char *text, enum finish_reason why, const char *content,
                   const char *reason)
{
    char body[1024];
    snprintf(body, sizeof body, "{\"model\":\"t\"," HI "%s}", extra);
    json_t *w = talk_run_ask(&run, MSG, body, text, why);
    snprintf(body, sizeof body, "{\"model\":\"t\",\"stream\":true," HI "%s}", extra);
    json_t *events = talk_run_ask(&run, MSG, body, text, why), *s = fold(events);
    drop_ids(w);
    drop_ids(s);
    char *got = json_dumps(json_object_get(w, "content"), JSON_COMPACT);
    assert_string_equal(got, content);
    assert_string_equal(api_run_str(w, "stop_reason"), reason);
    if (!json_equal(w, s))
        fail_msg("%s\n%s", json_dumps(w, 0), json_dumps(s, 0));
    free(got);
    json_decref(w);
    json_decref(s);
    json_decref(events);
}

#define TEXT(t)  "{\"type\":\"text\",\"text\":\"" t "\"}"
#define THINK(t) "{\"type\":\"thinking\",\"thinking\":\"" t "\",\"signature\":\"\"}"
#define USE      "{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{\"x\":1}}"

static void test_blocks(void **state)
{
    (void)state;
    expect("", "Hi there", FINISH_STOP, "[" TEXT("Hi there") "]", "end_turn");
    expect("", "Hi th", FINISH_LENGTH, "[" TEXT("Hi th") "]", "max_tokens");
    expect(",\"stop_sequences\":[\"th\",\"the\",\"x\"]", "Hi there", FINISH_STOP,
           "[" TEXT("Hi ") "]", "stop_sequence");
    expect("", "<think>hm</think>Hi", FINISH_STOP, "[" THINK("hm") "," TEXT("Hi") "]", "end_turn");
    expect(",\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"}", "<think>hm</think>Hi",
           FINISH_STOP, "[" TEXT("Hi") "]", "end_turn");
    expect(TOOL, "<think>hm</think>I look." CALL "\n" CALL, FINISH_STOP,
           "[" THINK("hm") "," TEXT("I look.") "," USE "," USE "]", "tool_use");
    expect(TOOL ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}",
           CALL CALL, FINISH_STOP, "[" USE "]", "tool_use");
    expect(TOOL, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\"", FINISH_LENGTH,
           "[{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{}}]", "max_tokens");
    expect("", "", FINISH_STOP, "[]", "end_turn");
}

static void test_history(void **state)
{
    (void)state;
    static const char messages[] =
        "{\"model\":\"t\",\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"Be "
        "brief.\"}]" TOOL ",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
                          "\"assistant\",\"content\":["
        "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":\"text\","
        "\"text\":"
        "\"I look.\"},{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"f\",\"input\":{\"x\":1}}]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c1\","
        "\"content\":"
        "\"one\"},{\"type\":\"text\",\"text\":\"And?\"}]}]}";
    static const char chat[] =
        "{\"model\":\"t\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}}}}}],"
        "\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
        "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"reasoning_content\":"
        "\"hm\","
        "\"content\":\"I look.\",\"tool_calls\":["
        "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{"
        "\\\"x\\\":1}\"}}"
        "]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"one\"},"
        "{\"role\":\"user\",\"content\":\"And?\"}]}";
    talk_run_same_prompt(&run, MSG, messages, "/v1/chat/completions", chat);
}

static void test_failure(void **state)
{
    (void)state;
    struct api_call c;
    api_run_start(run.api, &c, MSG, "{\"model\":\"t\",\"stream\":true," HI "}");
    talk_run_text(&run, &c, "Hi");
    api_fail(&c, ERR_DEVICE, NULL, "The engine has failed.", 0);
    const char *last = strstr(buf_cstr(&c.out), "event: error\n");
    assert_non_null(last);
    assert_non_null(strstr(last,
                           "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                           "\"message\":\"The engine has failed.\"}"));
    assert_null(strstr(buf_cstr(&c.out), "message_stop"));
    api_call_free(&c);
}

static void test_no_memory(void **state)
{
    (void)state;
    talk_run_no_memory(&run, MSG, "{\"model\":\"t\"," HI TOOL "}", "<think>hm</think>Hi" CALL);
    talk_run_no_memory(&run, MSG, "{\"model\":\"t\",\"stream\":true," HI TOOL "}",
                       "<think>hm</think>Hi" CALL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
