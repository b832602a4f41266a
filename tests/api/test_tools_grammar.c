/* Forced calls: whatever a model writes under a family's grammar, the family reads as one call with arguments that keep
 * to the schema. Random walks through the grammars stand for models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/stream_impl.h"
#include "api/structured.h"
#include "tests/api_run.h"

#define MODEL "tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz"

static struct api *api;
static struct tokenizer *tok;
static json_t *tools;

static const char *const families[] = {
#define FAMILY(table, mark, mark2) #table,
#include "api/tools.def"
#undef FAMILY
};

static int setup(void **state)
{
    (void)state;
    api = api_run_open(MODEL, RUN_CTX, &tok);
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"pick\",\"strict\":true,"
                       "\"parameters\":{\"type\":\"object\",\"properties\":{"
                       "\"c\":{\"type\":\"string\",\"enum\":[\"red\",\"blue\"]},\"k\":{\"type\":"
                       "\"integer\",\"minimum\":0,\"maximum\":99},"
                       "\"b\":{\"type\":\"boolean\"}},\"required\":[\"c\",\"k\"],"
                       "\"additionalProperties\":false}}},"
                       "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{"
                       "\"type\":\"object\",\"properties\":{},"
                       "\"additionalProperties\":false}}}]",
                       0, NULL);
    assert_non_null(tools);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(tools);
    api_close(api);
    return 0;
}

static uint64_t seed = 1;
static uint32_t rnd(uint32_t n)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)(seed % n);
}

/* A text of the grammar; 0 when none was found in time. */
static bool walk(struct grammar *gr, struct buf *out)
{
    size_t n_word = ((size_t)tok_n_vocab(tok) + 31) / 32;
    uint32_t *bits = malloc(n_word * sizeof *bits);
    struct grammar_state *s;
    bool ok = false;
    buf_clear(out);
    assert_int_equal(grammar_state_open(&s, gr), 0);
    for (int step = 0; step < 2000; step++) {
        if (grammar_may_end(s) && (grammar_must_end(s) || rnd(3) == 0)) {
            ok = true;
            break;
        }
        assert_true(grammar_mask(s, bits, n_word) > 0);
        int32_t id = (int32_t)rnd((uint32_t)tok_n_vocab(tok));
        while (!(bits[id / 32] >> (id % 32) & 1))
            id = (id + 1) % tok_n_vocab(tok);
        assert_int_equal(grammar_accept(s, id), 0);
        struct view v = tok_bytes(tok, id, true);
        buf_add(out, v.p, v.len);
    }
    grammar_state_close(s);
    free(bits);
    return ok;
}

static void fold_event(void *ctx, const struct stream_event *ev)
{
    assert_int_equal(stream_fold_add(ctx, ev), 0);
}

static void check_call(const char *family, const char *text, const struct stream_call *k)
{
    json_t *args = json_loads(buf_cstr(&k->args), JSON_REJECT_DUPLICATES, NULL);
    bool ok = json_is_object(args) && k->ended;
    if (ok && strcmp(k->name, "pick") == 0) {
        const char *c = json_string_value(json_object_get(args, "c"));
        json_t *n = json_object_get(args, "k"), *b = json_object_get(args, "b");
        ok = c && (strcmp(c, "red") == 0 || strcmp(c, "blue") == 0) && json_is_integer(n) &&
             json_integer_value(n) >= 0 && json_integer_value(n) <= 99 &&
             (!b || json_is_boolean(b)) && json_object_size(args) == (b ? 3 : 2);
    } else if (ok) {
        ok = strcmp(k->name, "now") == 0 && json_object_size(args) == 0;
    }
    if (!ok)
        fail_msg("%s: %s\n%s %s", family, text, k->name, buf_cstr(&k->args));
    json_decref(args);
}

static void forced(const char *name, bool several, bool named)
{
    struct api_call c = {.api = api};
    struct buf text = {0};
    struct gen g = {.m = &api->model[0], .tools = tools, .must_call = true};
    int walks = 0;
    g.parse.family = tools_family(name);
    g.parse.tools = tools;
    g.parse.max_calls = several ? 0 : 1;
    g.only_call = named ? "pick" : NULL;
    assert_non_null(g.parse.family);
    if (tools_grammar(&c, &g))
        fail_msg("%s: %.*s", name, (int)c.out.len, c.out.p);
    assert_non_null(g.samp.grammar);
    for (int k = 0; k < 24; k++) {
        struct stream_fold fold = {0};
        struct stream_opts o = g.parse;
        struct stream *s;
        if (!walk(g.samp.grammar, &text))
            continue;
        walks++;
        o.event = fold_event;
        o.ctx = &fold;
        assert_int_equal(stream_open(&s, &o), 0);
        assert_int_equal(stream_push(s, buf_cstr(&text), text.len), 0);
        assert_int_equal(stream_finish(s), 0);
        stream_close(s);
        if (fold.text.len || fold.n_call < 1 || (!several && fold.n_call != 1))
            fail_msg("%s: %d calls and \"%s\" from %s", name, fold.n_call, buf_cstr(&fold.text),
                     buf_cstr(&text));
        for (int i = 0; i < fold.n_call; i++)
            check_call(name, buf_cstr(&text), &fold.call[i]);
        assert_true(!named || strcmp(fold.call[0].name, "pick") == 0);
        stream_fold_free(&fold);
    }
    if (!walks)
        fail_msg("%s: %d walks: %.300s", name, walks, buf_cstr(&text));
    buf_free(&text);
    grammar_unref(g.samp.grammar);
    api_call_free(&c);
}

static void every_family(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        forced(families[i], false, false);
        forced(families[i], false, true);
        forced(families[i], true, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
