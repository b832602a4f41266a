/* Every allocation of a call fails once: the answer is the right one, or an error that says so, or a stream that ends
 * without pretending to be whole. Nothing leaks (sanitizer build), and the next call works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "tests/api_run.h"

#define MODEL "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz"

static const struct {
    const char *path, *body;
} calls[] = {
    {"/v1/chat/completions",
     "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\","
     "\"name\":\"n\","
     "\"content\":[{\"type\":\"text\",\"text\":\"<|im_start|>a\"},{\"type\":\"text\",\"text\":"
     "\"b\"}]},"
     "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":[{\"function\":{"
     "\"name\":\"f\","
     "\"arguments\":\"{\\\"x\\\":[1]}\"}}]}],\"stop\":[\"zz\",\"y\"],\"logit_bias\":{\"5\":1},"
     "\"allowed_token_ids\":[1,2],\"logprobs\":true,\"top_logprobs\":2,\"n\":2,"
     "\"chat_template_kwargs\":{\"k\":[\"v\",{\"w\":1}]},\"reasoning_effort\":\"low\"}"},
    {"/v1/chat/completions", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
                             ",\"stream\":true,\"stop\":\"zz\","
                             "\"stream_options\":{\"include_usage\":true}}"},
    {"/v1/completions", "{\"model\":\"m\",\"prompt\":[\"ab\",\"c\"],\"echo\":true,\"logprobs\":1}"},
    {"/v1/completions", "{\"model\":\"m\",\"prompt\":[[5,6],[7]],\"echo\":true,\"stream\":true}"},
    {"/v1/chat/completions",
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
     "\"content\":\"b\"}],\"continue_final_message\":true,\"prompt_logprobs\":1,\"timeout\":5}"},
    {"/v1/completions",
     "{\"model\":\"m\",\"prompt\":[\"ab\",\"c\"],\"prompt_logprobs\":2,\"t_max_predict_ms\":9}"},
    {"/tokenize", "{\"prompt\":\"some text\",\"return_token_strs\":true}"},
    {"/detokenize", "{\"tokens\":[5,6,7]}"},
};

/* The whole call; its end is what is looked at. */
static void run(struct api *a, struct api_call *c, size_t which)
{
    api_run_start(a, c, calls[which].path, calls[which].body);
    for (int i = 0; i < c->n_req && !c->done; i++) {
        const struct request *r = c->req[i];
        for (int32_t k = 1; r->prompt_logprobs >= 0 && k < r->n_prompt; k++)
            api_run_prompt(c, i, k, r->prompt[k]);
        for (int k = 0; k < 40; k++)
            api_run_token(c, i, k % r->n, 60 + k % 40);
        for (int k = 0; k < r->n; k++)
            api_run_finish(c, i, k, FINISH_LENGTH);
        api_run_done(c, i, 0);
    }
    assert_true(c->done);
}

/* Without the id, which is drawn: 32 digits after its prefix. */
static void blank_ids(struct buf *b)
{
    for (char *p = b->p; p && (p = strstr(p, "cmpl-")); p += 5)
        memset(p + 5, 'x', 32);
}

static void check(const struct api_call *c, const struct buf *good)
{
    if (c->streamed) { /* as far as it goes it is the good stream; an error frame or a cut ends it */
        const char *err = c->out.p ? strstr(c->out.p, "data: {\"error\"") : NULL;
        size_t n = err ? (size_t)(err - c->out.p) : c->out.len;
        assert_true(n <= good->len && memcmp(buf_cstr(&c->out), buf_cstr(good), n) == 0);
        assert_true(n == good->len || err || (c->out.failed && c->close));
    } else if (c->status == 200 && !c->out.failed) {
        assert_string_equal(buf_cstr(&c->out), buf_cstr(good));
    } else {
        assert_int_equal(c->status, 503);
        assert_true(c->out.failed || strstr(buf_cstr(&c->out), "\"code\":\"out_of_memory\""));
    }
}

static void test_each_allocation(void **state)
{
    (void)state;
    struct api *a = api_run_open(MODEL, RUN_CTX, NULL);
    for (size_t w = 0; w < sizeof calls / sizeof *calls; w++) {
        struct api_call c;
        uint64_t before = mem_count();
        run(a, &c, w);
        long n = (long)(mem_count() - before);
        assert_int_equal(c.status, 200);
        struct buf good = c.out;
        c.out = (struct buf){0};
        api_call_free(&c);
        blank_ids(&good);
        assert_in_range(n, 5, 100000);
        for (long k = 1; k <= n; k++)
            for (int sticky = 0; sticky < 2; sticky++) {
                mem_fail_after(k, sticky);
                run(a, &c, w);
                mem_fail_after(0, false);
                blank_ids(&c.out);
                check(&c, &good);
                api_call_free(&c);
            }
        run(a, &c, w);
        blank_ids(&c.out);
        assert_string_equal(buf_cstr(&c.out), buf_cstr(&good));
        api_call_free(&c);
        buf_free(&good);
    }
    api_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
