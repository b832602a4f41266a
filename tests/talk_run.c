/* See talk_run.h. */
#include "tests/talk_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/text/tokenizer.h"
#include "tests/unxz.h"

#define MODEL "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz"

static const char template[] =
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for t in m.tool_calls or [] %}<tool_call>{{ t.function | tojson }}</tool_call>{% endfor %}"
    "{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

void talk_run_serve(struct talk_run *r, const char *name, const char *text)
{
    struct err e = {0};
    char model[64], file[] = "/tmp/stepd-template-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    assert_int_equal(unxz_temp(MODEL, model, sizeof model), 0);
    int at = api_model_add(r->api, name, NULL, model, file, &e);
    if (at < 0)
        fail_msg("%s", e.text);
    unlink(model);
    unlink(file);
    api_model_ready(r->api, at, &(struct eng_info){.n_ctx = RUN_CTX, .n_vocab = r->n_vocab});
}

void talk_run_open(struct talk_run *r)
{
    struct tokenizer *tok;
    r->api = api_run_open(MODEL, RUN_CTX, &tok);
    r->n_vocab = tok_n_vocab(tok);
    for (int32_t id = 0; id < r->n_vocab; id++) {
        struct view v = tok_bytes(tok, id, false);
        if (v.len == 1)
            r->byte_id[(unsigned char)v.p[0]] = id;
    }
    talk_run_serve(r, "t", template);
}

void talk_run_close(struct talk_run *r)
{
    api_close(r->api);
}

void talk_run_text(struct talk_run *r, struct api_call *c, const char *text)
{
    for (; *text && !c->done; text++)
        api_run_token(c, 0, 0, r->byte_id[(unsigned char)*text]);
}

static void whole(struct talk_run *r, struct api_call *c, const char *path, const char *body,
                  const char *text, enum finish_reason why)
{
    api_run_start(r->api, c, path, body);
    if (!c->done)
        talk_run_text(r, c, text);
    if (!c->done)
        api_run_finish(c, 0, 0, why);
    if (!c->done)
        api_run_done(c, 0, 3);
    assert_true(c->done);
}

json_t *talk_run_ask(struct talk_run *r, const char *path, const char *body, const char *text,
                     enum finish_reason why)
{
    struct api_call c;
    whole(r, &c, path, body, text, why);
    if (c.status != 200)
        fail_msg("%s: %s", body, buf_cstr(&c.out));
    json_t *a = api_run_answer(&c);
    api_call_free(&c);
    return a;
}

void talk_run_same_prompt(struct talk_run *r, const char *path_a, const char *body_a,
                          const char *path_b, const char *body_b)
{
    struct api_call a, b;
    api_run_start(r->api, &a, path_a, body_a);
    api_run_start(r->api, &b, path_b, body_b);
    if (a.done || b.done)
        fail_msg("%s%s", buf_cstr(&a.out), buf_cstr(&b.out));
    assert_int_equal(a.req[0]->n_prompt, b.req[0]->n_prompt);
    assert_memory_equal(a.req[0]->prompt, b.req[0]->prompt,
                        (size_t)a.req[0]->n_prompt * sizeof *a.req[0]->prompt);
    api_call_free(&a);
    api_call_free(&b);
}

void talk_run_no_memory(struct talk_run *r, const char *path, const char *body, const char *text)
{
    struct api_call c;
    uint64_t before = mem_count();
    whole(r, &c, path, body, text, FINISH_STOP);
    long n = (long)(mem_count() - before);
    assert_int_equal(c.status, 200);
    api_call_free(&c);
    assert_in_range(n, 20, 100000);
    for (long k = 1; k <= n; k++)
        for (int sticky = 0; sticky < 2; sticky++) {
            mem_fail_after(k, sticky);
            whole(r, &c, path, body, text, FINISH_STOP);
            mem_fail_after(0, false);
            if (c.status != 200 && c.status != 503)
                fail_msg("allocation %ld: %s", k, buf_cstr(&c.out));
            api_call_free(&c);
        }
}
