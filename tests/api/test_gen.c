/* Token events to answers: stop strings, hold-back, log-probabilities, echo, usage, commands; each streamed and
 * whole, against an oracle that works on the whole text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/text/detok.h"
#include "tests/api_run.h"

#define MODEL "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz"
#define CHAT  "/v1/chat/completions"
#define COMP  "/v1/completions"

static struct api *api;
static struct tokenizer *tok;
static int32_t byte_id[256]; /* the token of each byte */

static int setup(void **state)
{
    (void)state;
    api = api_run_open(MODEL, RUN_CTX, &tok);
    for (int b = 0; b < 256; b++)
        byte_id[b] = -1;
    for (int32_t id = 0; id < tok_n_vocab(tok); id++) {
        struct view v = tok_bytes(tok, id, false);
        if (v.len == 1)
            byte_id[(unsigned char)v.p[0]] = id;
    }
    for (int b = 0; b < 256; b++)
        assert_true(byte_id[b] >= 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    api_close(api);
    return 0;
}

/* ---- one call with given tokens ---- */

struct result {
    char *text;
    char finish[16];
    json_t *logprobs;
    int n_finish_cmd, n_cancel_cmd;
    int32_t keep;
    json_t *answer;
};

static void result_free(struct result *r)
{
    free(r->text);
    json_decref(r->logprobs);
    json_decref(r->answer);
}

static void count_commands(struct api_call *c, struct result *r)
{
    for (int i = 0; i < c->n_cmd; i++) {
        if (c->cmd[i].kind == API_FINISH_CHOICE) {
            r->n_finish_cmd++;
            r->keep = c->cmd[i].keep;
        } else {
            r->n_cancel_cmd++;
        }
    }
    c->n_cmd = 0;
}

/* One choice: these tokens, then the end by `why`. `extra` holds more members of the body. */
static struct result one(const char *path, const char *extra, bool stream, const int32_t *ids,
                         size_t n)
{
    struct api_call c;
    struct result r = {0};
    char body[6000];
    bool chat = path[4] == 'c' && path[5] == 'h';
    snprintf(body, sizeof body, "{\"model\":\"m\",%s,\"stream\":%s%s}",
             chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                  : "\"prompt\":\"hi there\",\"max_tokens\":1000",
             stream ? "true" : "false", extra);
    api_run_start(api, &c, path, body);
    if (c.done)
        fail_msg("%s: %s", body, buf_cstr(&c.out));
    for (size_t i = 0; i < n; i++) {
        api_run_token(&c, 0, 0, ids[i]);
        count_commands(&c, &r);
    }
    api_run_finish(&c, 0, 0, FINISH_LENGTH);
    api_run_done(&c, 0, 3);
    count_commands(&c, &r);
    assert_true(c.done);
    assert_int_equal(c.status, 200);
    r.answer = api_run_answer(&c);
    r.text = api_run_text(r.answer, 0);
    r.logprobs = api_run_logprobs(r.answer, 0);
    snprintf(r.finish, sizeof r.finish, "%s", api_run_finish_reason(r.answer, 0));
    api_call_free(&c);
    return r;
}

/* Both kinds of one call must agree; the whole one's result. */
static struct result both(const char *path, const char *extra, const int32_t *ids, size_t n)
{
    struct result w = one(path, extra, false, ids, n), s = one(path, extra, true, ids, n);
    assert_string_equal(s.text, w.text);
    assert_string_equal(s.finish, w.finish);
    assert_int_equal(s.n_finish_cmd, w.n_finish_cmd);
    assert_int_equal(s.keep, w.keep);
    if (!json_equal(s.logprobs, w.logprobs))
        fail_msg("log-probabilities differ:\n%s\n%s", json_dumps(s.logprobs, JSON_ENCODE_ANY),
                 json_dumps(w.logprobs, JSON_ENCODE_ANY));
    result_free(&s);
    return w;
}

/* Text as tokens of one byte each. */
static size_t bytes(const char *s, int32_t *ids)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        ids[i] = byte_id[(unsigned char)s[i]];
    return n;
}

/* ---- stop strings ---- */

static void expect(const char *extra, const char *text, const char *want, const char *finish)
{
    int32_t ids[200];
    size_t n = bytes(text, ids);
    struct result r = both(CHAT, extra, ids, n);
    assert_string_equal(r.text, want);
    assert_string_equal(r.finish, finish);
    assert_int_equal(r.n_finish_cmd, strcmp(finish, "stop") == 0);
    assert_int_equal(r.n_cancel_cmd, 0);
    result_free(&r);
}

static void test_stop(void **state)
{
    (void)state;
    expect(",\"stop\":\"END\"", "one END two", "one ", "stop");
    expect(",\"stop\":[\"END\"],\"include_stop_str_in_output\":true", "one END two", "one END",
           "stop");
    expect(",\"stop\":\"END\"", "one EN", "one EN", "length"); /* held back, then given */
    expect(",\"stop\":\"aab\"", "aaaab", "aa", "stop");
    expect(",\"stop\":[\"abcd\",\"bc\"]", "xabcdx", "xa", "stop"); /* bc is complete first */
    expect(",\"stop\":[\"cd\",\"bcd\"]", "abcd", "a", "stop");     /* the longest of two */
    expect(",\"stop\":[]", "plain", "plain", "length");
    expect(",\"stop\":\"é\"", "caf\xc3\xa9 x", "caf", "stop");
    expect(",\"stop\":\"x\",\"min_tokens\":3", "xxyzx!", "xxyz", "stop");
    expect(",\"stop\":\"x\",\"min_tokens\":5", "xxyzx", "xxyzx", "length");
}

/* A stop string cut into tokens at every place. */
static void test_stop_over_borders(void **state)
{
    (void)state;
    const char *text = "ab\xf0\x9f\x98\x80"
                       "cd";
    int32_t ids[16];
    size_t n = bytes(text, ids);
    for (size_t from = 0; from < n; from++)
        for (size_t to = from + 1; to <= n; to++) {
            char extra[64], want[16] = "";
            if (((unsigned char)text[from] & 0xC0) == 0x80 ||
                (to < n && ((unsigned char)text[to] & 0xC0) == 0x80))
                continue; /* JSON cannot say half a character */
            snprintf(extra, sizeof extra, ",\"stop\":\"%.*s\"", (int)(to - from), text + from);
            memcpy(want, text, from);
            expect(extra, text, want, "stop");
        }
}

static void test_in_flight_tokens(void **state)
{
    (void)state;
    int32_t ids[64];
    size_t n = bytes("go STOP more STOP more", ids);
    struct result r = both(CHAT, ",\"stop\":\"STOP\"", ids, n);
    assert_string_equal(r.text, "go ");
    assert_int_equal(r.n_finish_cmd, 1); /* once, whatever comes after */
    assert_int_equal(r.keep, 7);
    json_t *u = json_object_get(r.answer, "usage");
    assert_int_equal(json_integer_value(json_object_get(u, "completion_tokens")), 7);
    result_free(&r);
}

/* ---- characters over tokens ---- */

static void test_split_characters(void **state)
{
    (void)state;
    int32_t ids[64];
    size_t n = bytes("\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80!", ids);
    struct result r = both(CHAT, ",\"logprobs\":true", ids, n);
    assert_string_equal(r.text, "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80!");
    assert_int_equal(json_array_size(r.logprobs), n);
    result_free(&r);
    n = bytes("a\xf0\x9f\x98", ids); /* never completed */
    r = both(COMP, ",\"logprobs\":1", ids, n);
    assert_string_equal(r.text, "a\xef\xbf\xbd");
    assert_int_equal(json_array_size(r.logprobs), n);
    result_free(&r);
}

/* ---- echo ---- */

/* echo with and without log-probabilities: the same text, whatever the prompt is made of. */
static void test_echo(void **state)
{
    (void)state;
    static const char *const prompts[] = {"\"The sky\"", "[72,101,108]",
                                          "\"caf\\u00e9 \\ud83d\\ude00\"", "\"<|im_start|>user\""};
    for (size_t k = 0; k < sizeof prompts / sizeof *prompts; k++)
        for (int mode = 0; mode < 4; mode++) {
            struct api_call c;
            char body[300];
            snprintf(body, sizeof body,
                     "{\"model\":\"m\",\"prompt\":%s,\"echo\":true,\"max_tokens\":4,"
                     "\"logprobs\":%s,\"stream\":%s}",
                     prompts[k], mode & 1 ? "2" : "null", mode & 2 ? "true" : "false");
            api_run_start(api, &c, COMP, body);
            assert_false(c.done);
            int32_t n = c.req[0]->n_prompt;
            struct buf want = {0};
            assert_int_equal(tok_decode(tok, c.req[0]->prompt, (size_t)n, true, &want), 0);
            buf_str(&want, "ok");
            assert_int_equal(c.req[0]->prompt_logprobs, mode & 1 ? 2 : -1);
            for (int32_t i = 1; (mode & 1) && i < n; i++)
                api_run_prompt(&c, 0, i, c.req[0]->prompt[i]);
            api_run_token(&c, 0, 0, byte_id['o']);
            api_run_token(&c, 0, 0, byte_id['k']);
            api_run_finish(&c, 0, 0, FINISH_STOP);
            api_run_done(&c, 0, 0);
            json_t *v = api_run_answer(&c), *lp = api_run_logprobs(v, 0);
            char *text = api_run_text(v, 0);
            assert_string_equal(text, buf_cstr(&want));
            if (mode & 1) {
                struct buf joined = {0};
                assert_int_equal(json_array_size(lp), n + 2);
                assert_true(json_is_null(json_array_get(json_array_get(lp, 0), 1)));
                for (size_t i = 0; i < json_array_size(lp); i++)
                    buf_str(&joined, json_string_value(json_array_get(json_array_get(lp, i), 0)));
                assert_string_equal(buf_cstr(&joined), text);
                buf_free(&joined);
            }
            free(text);
            buf_free(&want);
            json_decref(lp);
            json_decref(v);
            api_call_free(&c);
        }
}

/* Scoring only: no output token at all. */
static void test_score(void **state)
{
    (void)state;
    struct api_call c;
    api_run_start(
        api, &c, COMP,
        "{\"model\":\"m\",\"prompt\":\"abc\",\"echo\":true,\"max_tokens\":0,\"logprobs\":0}");
    int32_t n = c.req[0]->n_prompt;
    assert_int_equal(c.req[0]->max_tokens, 0);
    for (int32_t i = 1; i < n; i++)
        api_run_prompt(&c, 0, i, c.req[0]->prompt[i]);
    api_run_finish(&c, 0, 0, FINISH_LENGTH);
    api_run_done(&c, 0, 0);
    json_t *v = api_run_answer(&c);
    char *text = api_run_text(v, 0);
    assert_string_equal(text, "abc");
    json_t *u = json_object_get(v, "usage");
    assert_int_equal(json_integer_value(json_object_get(u, "prompt_tokens")), n);
    assert_int_equal(json_integer_value(json_object_get(u, "completion_tokens")), 0);
    free(text);
    json_decref(v);
    api_call_free(&c);
}

/* An SPM vocabulary drops the space before a text's first word. The answer of a completion is no first word. */
static void test_first_space(void **state)
{
    (void)state;
    struct tokenizer *t;
    struct api *a = api_run_open("tests/data/tokenizers/ggml-vocab-llama-spm.gguf.xz", RUN_CTX, &t);
    int32_t id = tok_find(t, "\xe2\x96\x81of", 5);
    assert_true(id > 0);
    for (int mode = 0; mode < 3; mode++) {
        static const char *const extra[] = {"", ",\"echo\":true", ",\"echo\":true,\"logprobs\":0"};
        struct api_call c;
        char body[200];
        snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":\"The capital\"%s}", extra[mode]);
        api_run_start(a, &c, COMP, body);
        assert_false(c.done);
        for (int32_t i = 1; mode == 2 && i < c.req[0]->n_prompt; i++)
            api_run_prompt(&c, 0, i, c.req[0]->prompt[i]);
        api_run_token(&c, 0, 0, id);
        api_run_done(&c, 0, 0);
        json_t *v = api_run_answer(&c);
        char *text = api_run_text(v, 0);
        assert_string_equal(text, mode ? "The capital of" : " of");
        free(text);
        json_decref(v);
        api_call_free(&c);
    }
    api_close(a);
}

/* ---- usage, errors ---- */

static void test_usage(void **state)
{
    (void)state;
    struct api_call c;
    api_run_start(api, &c, COMP,
                  "{\"model\":\"m\",\"prompt\":[\"one\",\"two three\"],\"n\":2,\"stream\":true,"
                  "\"stream_options\":{\"include_usage\":true}}");
    assert_int_equal(c.n_req, 2);
    int32_t n_prompt = c.req[0]->n_prompt + c.req[1]->n_prompt;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            for (int j = 0; j <= i + k; j++)
                api_run_token(&c, i, k, byte_id['a' + j]);
    api_run_done(&c, 1, 5);
    assert_false(c.done);
    api_run_done(&c, 0, 2);
    assert_true(c.done);
    json_t *v = api_run_answer(&c), *f, *u;
    size_t k, n_usage = 0;
    json_array_foreach(v, k, f)
    {
        u = json_object_get(f, "usage");
        assert_non_null(u);
        if (json_is_null(u))
            continue;
        n_usage++;
        assert_int_equal(k, json_array_size(v) - 1);
        assert_int_equal(json_array_size(json_object_get(f, "choices")), 0);
        assert_int_equal(json_integer_value(json_object_get(u, "prompt_tokens")), n_prompt);
        assert_int_equal(json_integer_value(json_object_get(u, "completion_tokens")), 8);
        assert_int_equal(json_integer_value(json_object_get(u, "total_tokens")), n_prompt + 8);
        u = json_object_get(u, "prompt_tokens_details");
        assert_int_equal(json_integer_value(json_object_get(u, "cached_tokens")), 7);
    }
    assert_int_equal(n_usage, 1);
    assert_int_equal(c.n_prompt, n_prompt);
    assert_int_equal(c.n_output, 8);
    assert_int_equal(c.n_cached, 7);
    json_decref(v);
    api_call_free(&c);
}

static void test_engine_error(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct api_call c;
        struct result r = {0};
        struct event ev = {.kind = EV_ERROR, .err = {ERR_DEVICE, "the engine failed"}};
        api_run_start(api, &c, COMP, "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"],\"stream\":true}");
        if (late)
            api_run_token(&c, 0, 0, byte_id['x']);
        api_event(&c, 1, &ev);
        count_commands(&c, &r);
        assert_true(c.done);
        assert_int_equal(r.n_cancel_cmd, 1);
        json_t *v = api_run_answer(&c);
        if (late) {
            assert_int_equal(c.status, 200);
            json_t *e = json_object_get(json_array_get(v, json_array_size(v) - 1), "error");
            assert_string_equal(json_string_value(json_object_get(e, "code")), "engine_failed");
        } else {
            assert_int_equal(c.status, 503);
            assert_string_equal(c.out_type, "application/json");
            assert_string_equal(c.header[0].name, "Retry-After");
            assert_int_equal(json_object_size(json_object_get(v, "error")), 4);
        }
        size_t len = c.out.len;
        api_run_token(&c, 0, 0, byte_id['x']); /* nothing after the end */
        assert_int_equal(c.out.len, len);
        json_decref(v);
        api_call_free(&c);
    }
}

/* ---- random token streams against the oracle ---- */

static uint64_t seed;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

enum { N_MAX = 3, LEN_MAX = 40, STOPS = 4 };
static const char *const pieces[] = {"a", "b",    "ab",  "\xc3\xa9", "\xf0\x9f\x98\x80",
                                     "c", "\xc3", "\x98"};

struct plan {
    int n, n_stop, min_tokens;
    bool include;
    char stop[STOPS][16];
    int32_t ids[N_MAX][LEN_MAX];
    size_t len[N_MAX];
    char want[N_MAX][400];
    bool stopped[N_MAX];
    int32_t keep[N_MAX];
};

/* What must come out of choice k, from the text as a whole: after each token, is any stop string complete that starts
 * where it may? The first complete byte decides. */
static void oracle(struct plan *p, int k)
{
    struct detok d;
    struct buf t = {0};
    size_t seen = 0, from = 0;
    detok_init(&d, tok, false);
    for (size_t i = 0; i <= p->len[k] && !p->stopped[k]; i++) {
        if (i < p->len[k])
            detok_push(&d, p->ids[k][i], &t);
        else
            detok_flush(&d, &t);
        if (i < (size_t)p->min_tokens && i < p->len[k])
            from = t.len;
        for (; seen < t.len && !p->stopped[k]; seen++) {
            size_t best = 0, end = seen + 1;
            for (int s = 0; s < p->n_stop; s++) {
                size_t n = strlen(p->stop[s]);
                if (n > best && n <= end - (from < end ? from : end) &&
                    memcmp(t.p + end - n, p->stop[s], n) == 0)
                    best = n;
            }
            if (!best)
                continue;
            p->stopped[k] = true;
            p->keep[k] = (int32_t)(i < p->len[k] ? i + 1 : i);
            t.len = p->include ? end : end - best;
        }
    }
    assert_true(t.len < sizeof p->want[k]);
    memcpy(p->want[k], buf_cstr(&t), t.len);
    p->want[k][t.len] = 0;
    buf_free(&t);
}

static void add_piece(char *to, const char *piece)
{
    memcpy(to + strlen(to), piece, strlen(piece) + 1);
}

static void make_plan(struct plan *p)
{
    *p = (struct plan){.n = 1 + (int)rnd(N_MAX), .n_stop = (int)rnd(STOPS + 1)};
    p->include = rnd(2);
    p->min_tokens = rnd(3) ? 0 : (int)rnd(10);
    for (int s = 0; s < p->n_stop; s++)
        for (uint32_t j = 0, n = 1 + rnd(3); j < n; j++)
            add_piece(p->stop[s], pieces[rnd(6)]);
    for (int k = 0; k < p->n; k++) {
        p->len[k] = rnd(LEN_MAX + 1);
        for (size_t i = 0; i < p->len[k];) {
            const char *s = pieces[rnd(8)];
            int32_t id = tok_find(tok, s, strlen(s));
            if (id >= 0 && rnd(2))
                p->ids[k][i++] = id;
            else
                for (; *s && i < p->len[k]; s++)
                    p->ids[k][i++] = byte_id[(unsigned char)*s];
        }
        oracle(p, k);
    }
}

static void plan_body(const struct plan *p, char *body, size_t size, bool stream, bool chat,
                      bool lp)
{
    size_t n = (size_t)snprintf(
        body, size, "{\"model\":\"m\",%s,\"n\":%d,\"min_tokens\":%d,\"stream\":%s%s%s,\"stop\":[",
        chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
             : "\"prompt\":\"hi\",\"max_tokens\":100",
        p->n, p->min_tokens, stream ? "true" : "false",
        p->include ? ",\"include_stop_str_in_output\":true" : "",
        !lp    ? ""
        : chat ? ",\"logprobs\":true"
               : ",\"logprobs\":0");
    for (int s = 0; s < p->n_stop; s++)
        n += (size_t)snprintf(body + n, size - n, "%s\"%s\"", s ? "," : "", p->stop[s]);
    snprintf(body + n, size - n, "]}");
}

/* Every token of every choice, in an order drawn from order_seed; a stopped choice may get some more. */
static void play(struct plan *p, struct api_call *c, uint64_t order_seed)
{
    size_t at[N_MAX] = {0};
    bool over[N_MAX] = {false};
    int n_cmd[N_MAX] = {0};
    seed = order_seed;
    for (int left = p->n; left;) {
        int k = (int)rnd((uint32_t)p->n);
        if (over[k])
            continue;
        if (at[k] < p->len[k]) {
            api_run_token(c, 0, k, p->ids[k][at[k]++]);
        } else {
            if (rnd(2) || !p->stopped[k]) /* a choice that was told to finish need not say so */
                api_run_finish(c, 0, k, FINISH_LENGTH);
            over[k] = true;
            left--;
        }
        for (int i = 0; i < c->n_cmd; i++) {
            assert_int_equal(c->cmd[i].kind, API_FINISH_CHOICE);
            assert_int_equal(c->cmd[i].choice, k);
            assert_int_equal(c->cmd[i].keep, p->keep[k]);
            assert_true(p->stopped[k]);
            assert_int_equal(++n_cmd[k], 1);
        }
        c->n_cmd = 0;
    }
    api_run_done(c, 0, 0);
    assert_true(c->done);
    assert_int_equal(c->n_cmd, 0);
}

static void check_plan(struct plan *p, json_t *v)
{
    for (int k = 0; k < p->n; k++) {
        char *text = api_run_text(v, k);
        if (strcmp(text, p->want[k]) != 0)
            fail_msg("choice %d of %d: \"%s\", wanted \"%s\"", k, p->n, text, p->want[k]);
        assert_string_equal(api_run_finish_reason(v, k), p->stopped[k] ? "stop" : "length");
        free(text);
    }
}

#ifdef __SANITIZE_ADDRESS__
#define CASES 3000
#else
#define CASES 10000
#endif

static void test_random(void **state)
{
    (void)state;
    static struct plan p;
    int n_stopped = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        char body[2][800];
        struct api_call c[2];
        json_t *v[2];
        seed = i;
        make_plan(&p);
        bool chat = rnd(2), lp = rnd(2);
        for (int stream = 0; stream < 2; stream++) {
            plan_body(&p, body[stream], sizeof body[stream], stream, chat, lp);
            api_run_start(api, &c[stream], chat ? CHAT : COMP, body[stream]);
            if (c[stream].done)
                fail_msg("%s: %s", body[stream], buf_cstr(&c[stream].out));
            play(&p, &c[stream], i * 31 + 7);
            v[stream] = api_run_answer(&c[stream]);
            check_plan(&p, v[stream]);
        }
        for (int k = 0; lp && k < p.n; k++) {
            json_t *a = api_run_logprobs(v[0], k), *b = api_run_logprobs(v[1], k);
            assert_true(json_equal(a, b));
            assert_true(p.stopped[k] || json_array_size(a) == p.len[k]);
            json_decref(a);
            json_decref(b);
        }
        n_stopped += p.stopped[0];
        for (int s = 0; s < 2; s++) {
            json_decref(v[s]);
            api_call_free(&c[s]);
        }
    }
    assert_in_range(n_stopped, CASES * 3 / 10, CASES * 9 / 10); /* the cases are of both kinds */
}

/* While it streams, text is late by no more than what may become a stop string. */
static void test_hold_back(void **state)
{
    (void)state;
    struct api_call c;
    const char *text = "xyEyENyENxEND";
    size_t held[] = {0, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2};
    api_run_start(api, &c, CHAT,
                  "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                  "\"stream\":true,\"stop\":[\"END\"]}");
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        api_run_token(&c, 0, 0, byte_id[(unsigned char)text[i]]);
        json_t *v = api_run_answer(&c);
        char *t = api_run_text(v, 0);
        assert_int_equal(strlen(t), i + 1 - held[i]);
        free(t);
        json_decref(v);
    }
    api_call_free(&c); /* before its end, as when a client leaves */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_over_borders),
        cmocka_unit_test(test_in_flight_tokens),
        cmocka_unit_test(test_split_characters),
        cmocka_unit_test(test_echo),
        cmocka_unit_test(test_score),
        cmocka_unit_test(test_first_space),
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_engine_error),
        cmocka_unit_test(test_hold_back),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
