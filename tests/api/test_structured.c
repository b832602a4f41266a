/* Structural tags, and formats of answers that come after reasoning: which texts are allowed, and what is refused. */
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
#include "engine/base/mem.h"
#include "tests/talk_run.h"

#define CHAT "/v1/chat/completions"

static struct talk_run run;

static int setup(void **state)
{
    (void)state;
    talk_run_open(&run);
    talk_run_serve(&run, "plain", "{% for m in messages %}{{ m.content }}\n{% endfor %}");
    talk_run_serve(&run, "opened",
                   "{% for m in messages %}{{ m.content }}\n{% endfor %}{# </think> #}<think>\n");
    talk_run_serve(&run, "harmony",
                   "<|channel|><|message|>{{ messages[0].content }}<|end|><|start|>assistant");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    talk_run_close(&run);
    return 0;
}

/* ---- which texts are allowed ---- */

/* The call that a chat of this model with these fields makes. */
static void start(struct api_call *c, const char *model, const char *fields)
{
    char body[2000];
    snprintf(body, sizeof body,
             "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],%s}", model,
             fields);
    api_run_start(run.api, c, CHAT, body);
    if (c->done)
        fail_msg("%s: %s", fields, buf_cstr(&c->out));
    assert_non_null(c->req[0]->samp.grammar);
}

enum { NO, PART, WHOLE }; /* not the beginning of a text; the beginning of one; one */

/* The next token of a text: a byte, but for names of control tokens, which come as those. */
static int32_t next_token(const char **text)
{
    static const char *const names[] = {"<|im_start|>", "<think>", "</think>"};
    const struct tokenizer *tok = run.api->model[0].text->tok;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        int32_t id = tok_find(tok, names[i], n);
        if (strncmp(*text, names[i], n) != 0 || !tok_is_control(tok, id))
            continue;
        *text += n;
        return id;
    }
    return run.byte_id[(unsigned char)*(*text)++];
}

static int allowed(struct api_call *c, const char *text)
{
    struct grammar_state *s;
    int rc = 0;
    assert_int_equal(grammar_state_open(&s, c->req[0]->samp.grammar), 0);
    while (*text && !rc)
        rc = grammar_accept(s, next_token(&text));
    int got = rc ? NO : grammar_may_end(s) ? WHOLE : PART;
    grammar_state_close(s);
    return got;
}

struct want {
    const char *text;
    int what;
};

static void expect(const char *model, const char *fields, const struct want *w)
{
    struct api_call c;
    start(&c, model, fields);
    for (; w->text; w++) {
        int got = allowed(&c, w->text);
        if (got != w->what)
            fail_msg("%s: %s is %d", fields, w->text, got);
    }
    api_call_free(&c);
}

#define INT_SCHEMA "{\"type\":\"integer\",\"minimum\":0,\"maximum\":9}"
#define OLD                                                                                        \
    "\"response_format\":{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f=a>\","       \
    "\"schema\":" INT_SCHEMA ",\"end\":\"</f>\"},{\"begin\":\"<f=b>\",\"schema\":{\"enum\":["      \
    "\"x\"]},\"end\":\"</f>\"}],\"triggers\":[\"<f=\"]}"

static void test_structures(void **state)
{
    (void)state;
    static const struct want w[] = {{"", WHOLE},
                                    {"free text, even <f and <g=", WHOLE},
                                    {"so <f=a>7</f> and <f=b>\"x\"</f> too", WHOLE},
                                    {"<f=a>7</f>", WHOLE},
                                    {"<f=a>7</f><f=a>8</f>", WHOLE},
                                    {"<<f=a>7</f>", WHOLE},
                                    {"<f=", PART},
                                    {"<f=a>7", PART},
                                    {"<f=c", NO},
                                    {"<f=a>x", NO},
                                    {"<f=a>7</g", NO},
                                    {"<f=b>7", NO},
                                    {NULL, 0}};
    expect("plain", OLD, w);
    /* the same as a text, in vLLM's other field */
    expect(
        "plain",
        "\"structured_outputs\":{\"structural_tag\":\"{\\\"type\\\":\\\"structural_tag\\\","
        "\\\"structures\\\":[{\\\"begin\\\":\\\"<f=a>\\\",\\\"schema\\\":{\\\"type\\\":"
        "\\\"integer\\\"},\\\"end\\\":\\\"</f>\\\"},{\\\"begin\\\":\\\"<f=b>\\\",\\\"schema\\\":{"
        "\\\"enum\\\":[\\\"x\\\"]},\\\"end\\\":\\\"</f>\\\"}],\\\"triggers\\\":[\\\"<f=\\\"]}\"}",
        w);
}

#define FORMAT(f)    "\"response_format\":{\"type\":\"structural_tag\",\"format\":" f "}"
#define TAG(b, c, e) "{\"type\":\"tag\",\"begin\":\"" b "\",\"content\":" c ",\"end\":\"" e "\"}"
#define CONST(v)     "{\"type\":\"const_string\",\"value\":\"" v "\"}"
#define ANY          "{\"type\":\"any_text\"}"
#define SCHEMA       "{\"type\":\"json_schema\",\"json_schema\":" INT_SCHEMA "}"

static void test_formats(void **state)
{
    (void)state;
    expect("plain", FORMAT(SCHEMA), (struct want[]){{"5", WHOLE}, {"x", NO}, {NULL, 0}});
    expect("plain", FORMAT("{\"type\":\"regex\",\"pattern\":\"a+b\"}"),
           (struct want[]){{"aab", WHOLE}, {"b", NO}, {NULL, 0}});
    expect("plain", FORMAT("{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"a\\\" | \\\"b\\\"\"}"),
           (struct want[]){{"a", WHOLE}, {"c", NO}, {NULL, 0}});
    expect(
        "plain",
        FORMAT("{\"type\":\"sequence\",\"elements\":[" CONST(
            "a") ",{\"type\":\"or\","
                 "\"elements\":[" CONST("b") "," CONST(
                     "c") "]},{\"type\":\"optional\","
                          "\"content\":" CONST("d") "},{\"type\":\"plus\","
                                                    "\"content\":" CONST("e") "},{"
                                                                              "\"t"
                                                                              "ype"
                                                                              "\":"
                                                                              "\"s"
                                                                              "tar"
                                                                              "\","
                                                                              "\"c"
                                                                              "ont"
                                                                              "ent"
                                                                              "\""
                                                                              ":" CONST("f") "}]}"),
        (struct want[]){{"abe", WHOLE}, {"acdeeff", WHOLE}, {"ab", PART}, {"ad", NO}, {NULL, 0}});
    /* text in a tag goes up to the tag's end, wherever it stands in it */
    expect(
        "plain", FORMAT(TAG("<a>", ANY, "</a>")),
        (struct want[]){
            {"<a>x < y</a>", WHOLE}, {"<a></a>", WHOLE}, {"<a></a>x", NO}, {"x", NO}, {NULL, 0}});
    expect(
        "plain",
        FORMAT(TAG("<a>", "{\"type\":\"sequence\",\"elements\":[" CONST("1") "," ANY "]}", "</a>")),
        (struct want[]){{"<a>1x</a>", WHOLE}, {"<a>x", NO}, {"<a>1</a>x", NO}, {NULL, 0}});
    expect("plain",
           FORMAT("{\"type\":\"tag\",\"begin\":\"(\",\"content\":" ANY ",\"end\":[\")\",\"]\"]}"),
           (struct want[]){{"(x)", WHOLE}, {"(x]", WHOLE}, {"(x]y", NO}, {NULL, 0}});
    expect("plain", FORMAT("{\"type\":\"any_text\",\"excludes\":[\"bad\"]}"),
           (struct want[]){{"good ba", WHOLE}, {"a bad", NO}, {NULL, 0}});
    /* a control token's name is that token */
    expect("plain", FORMAT(TAG("<|im_start|>", SCHEMA, ".")),
           (struct want[]){{"<|im_start|>5.", WHOLE}, {"<", NO}, {NULL, 0}});
}

#define TAGS TAG("<a>", SCHEMA, ";") "," TAG("<b>", ANY, ";")
#define TRIGGERED(more)                                                                            \
    FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\",\"<b\"],\"tags\":[" TAGS "]" more "}")
#define SEPARATED(more)                                                                            \
    FORMAT("{\"type\":\"tags_with_separator\",\"separator\":\", \",\"tags\":[" TAGS "]" more "}")

static void test_tags(void **state)
{
    (void)state;
    expect("plain", TRIGGERED(""),
           (struct want[]){{"", WHOLE}, {"x <a>5; y <b>z;", WHOLE}, {"<a>x", NO}, {NULL, 0}});
    expect("plain", TRIGGERED(",\"at_least_one\":true"),
           (struct want[]){{"", PART}, {"x", NO}, {"<a>5; y", WHOLE}, {NULL, 0}});
    expect("plain", TRIGGERED(",\"stop_after_first\":true"),
           (struct want[]){{"x", WHOLE}, {"x<a>5;", WHOLE}, {"x<a>5;y", NO}, {NULL, 0}});
    expect("plain", TRIGGERED(",\"excludes\":[\"no\"]"),
           (struct want[]){{"yes", WHOLE}, {"no", NO}, {"<a>5;no", NO}, {NULL, 0}});
    expect("plain", SEPARATED(""),
           (struct want[]){
               {"", WHOLE}, {"<a>5;, <b>x;", WHOLE}, {"<a>5;<", NO}, {"x", NO}, {NULL, 0}});
    expect("plain", SEPARATED(",\"at_least_one\":true,\"stop_after_first\":true"),
           (struct want[]){{"", PART}, {"<a>5;", WHOLE}, {"<a>5;,", NO}, {NULL, 0}});
}

static void test_tags_refused(void **state)
{
    (void)state;
#define RF "response_format"
    static const struct {
        const char *fields, *param, *code;
    } bad[] = {
        {"\"response_format\":{\"type\":\"structural_tag\"}", RF, "invalid_value"},
        {"\"structured_outputs\":{\"structural_tag\":5}", "structured_outputs.structural_tag",
         "invalid_value"},
        {"\"structured_outputs\":{\"structural_tag\":\"{\"}", "structured_outputs.structural_tag",
         "invalid_value"},
        {OLD ",\"guided_regex\":\"a\"", "guided_regex", "invalid_value"},
        {"\"guided_json\":\"{}\",\"json_schema\":\"{}\"", "json_schema", "invalid_value"},
        {FORMAT("5"), RF ".format", "invalid_value"},
        {FORMAT("{}"), RF ".format.type", "invalid_value"},
        {FORMAT("{\"type\":\"magic\"}"), RF ".format.type", "invalid_value"},
        {FORMAT("{\"type\":\"const_string\"}"), RF ".format.value", "invalid_value"},
        {FORMAT("{\"type\":\"sequence\",\"elements\":[" ANY ",{\"type\":\"tag\",\"begin\":1}]}"),
         RF ".format.elements[1].begin", "invalid_value"},
        {FORMAT("{\"type\":\"tag\",\"begin\":\"a\",\"end\":\"b\"}"), RF ".format.content",
         "invalid_value"},
        {FORMAT("{\"type\":\"tag\",\"begin\":\"a\",\"content\":" ANY "}"), RF ".format.end",
         "invalid_value"},
        {FORMAT("{\"type\":\"tag\",\"begin\":\"a\",\"content\":" ANY ",\"end\":[]}"),
         RF ".format.end", "invalid_value"},
        {FORMAT(
             "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"string\",\"pattern\":\"(\"}}"),
         RF ".format.json_schema.pattern", "invalid_value"},
        {FORMAT("{\"type\":\"json_schema\",\"style\":\"glm_xml\",\"json_schema\":{}}"),
         RF ".format.style", "invalid_value"},
        {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"\"],\"tags\":[]}"),
         RF ".format.triggers", "invalid_value"},
        {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"x\"],\"tags\":[" TAGS "]}"),
         RF ".format.tags[0].begin", "invalid_value"},
        {FORMAT("{\"type\":\"tags_with_separator\",\"separator\":\"\",\"tags\":[]}"),
         RF ".format.tags", "invalid_value"},
        {FORMAT("{\"type\":\"tags_with_separator\",\"separator\":\"\",\"at_least_one\":1,\"tags\":"
                "[" TAGS "]}"),
         RF ".format.at_least_one", "invalid_value"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct api_call c;
        char body[1000];
        snprintf(body, sizeof body,
                 "{\"model\":\"plain\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],%s}",
                 bad[i].fields);
        api_run_start(run.api, &c, CHAT, body);
        api_run_error(&c, 400, bad[i].param, bad[i].code);
        api_call_free(&c);
    }
}

/* Each allocation fails once: a grammar, or an error of the server. */
static void test_no_memory(void **state)
{
    (void)state;
    bool again = true;
    for (long k = 1; again && k < 20000; k += 1 + k / 40) {
        struct api_call c;
        char body[1000];
        snprintf(body, sizeof body,
                 "{\"model\":\"plain\",\"messages\":[{\"role\":\"user\",\"content\":\"%ld\"}],%s}",
                 k, TRIGGERED(",\"excludes\":[\"never\"]"));
        mem_fail_after(k, true);
        api_run_start(run.api, &c, CHAT, body);
        again = c.done;
        mem_fail_after(0, false);
        if (again)
            assert_int_equal(c.status, 503);
        api_call_free(&c);
    }
    assert_false(again);
}

/* ---- a format after reasoning ---- */

#define JSON                                                                                       \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","               \
    "\"schema\":" INT_SCHEMA "}}"

static void test_after_reasoning(void **state)
{
    (void)state;
    static const struct want may[] = {{"5", WHOLE},
                                      {"<think>any { text", PART},
                                      {"<think>x</think>", PART},
                                      {"<think>x</think>\n\n5", WHOLE},
                                      {"<think></think>5", WHOLE},
                                      {"<think>x</think>y", NO},
                                      {"<think>5</think>5</think>", NO},
                                      {"x", NO},
                                      {NULL, 0}};
    static const struct want must[] = {
        {"5", PART},          {"any { text", PART}, {"x</think>\n\n5", WHOLE},
        {"</think>5", WHOLE}, {"x</think>y", NO},   {NULL, 0}};
    static const struct want channel[] = {
        {"5", NO},
        {"<|channel|>final<|message|>5", WHOLE},
        {"<|channel|>final <|constrain|>json<|message|>5", WHOLE},
        {"<|channel|>final<|message|>x", NO},
        {"<|channel|>analysis<|message|>any { text<|end|><|start|>assistant<|channel|>final"
         "<|message|>5",
         WHOLE},
        {"<|channel|>analysis<|message|>any<|end|><|start|>assistant<|channel|>analysis", NO},
        {NULL, 0}};
    static const struct want plain[] = {{"5", WHOLE}, {"<", NO}, {NULL, 0}};
    expect("t", JSON, may);
    expect("opened", JSON, must);
    expect("harmony", JSON, channel);
    expect("plain", JSON, plain);
    /* every way to say a format, also where it is compiled for the second time */
    expect("opened", "\"guided_regex\":\"5\"", must);
    expect("opened", "\"guided_regex\":\"5\"", must);
    expect("t", "\"guided_choice\":[\"5\"]", may);
    expect("t", FORMAT(SCHEMA), may);
    expect("opened", "\"grammar\":\"root ::= \\\"5\\\"\"", must);
}

/* The answer is what comes after the reasoning, in parts of its own. */
static void test_answer(void **state)
{
    (void)state;
    static const char *const models[] = {"t", "opened", "harmony"};
    static const char *const texts[] = {
        "<think>hm</think>\n\n5", "hm</think>\n\n5",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>5"};
    for (int i = 0; i < 3; i++) {
        struct api_call c;
        start(&c, models[i], JSON);
        assert_int_equal(allowed(&c, texts[i]), WHOLE);
        for (const char *p = texts[i]; *p;)
            api_run_token(&c, 0, 0, next_token(&p));
        api_run_done(&c, 0, 0);
        json_t *v = api_run_answer(&c);
        json_t *m = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "message");
        assert_string_equal(api_run_str(m, "content"), "5");
        assert_string_equal(api_run_str(m, "reasoning_content"), "hm");
        json_decref(v);
        api_call_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_structures),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_tags_refused),
        cmocka_unit_test(test_after_reasoning),
        cmocka_unit_test(test_answer),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
