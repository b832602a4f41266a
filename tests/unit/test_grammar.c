/* Parts of grammars that tool calls are made of: text up to a mark, and control tokens; and what a grammar state promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/text/grammar_build.h"
#include "tests/unxz.h"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static int32_t n_vocab, control[2]; /* two control tokens */
static uint32_t *bits;
static size_t n_word;

static int setup(void **state)
{
    (void)state;
    struct err e;
    char path[128];
    int n = 0;
    if (unxz_temp("tests/data/tokenizers/deepseek_v3.tokenizer.json.xz", path, sizeof path) ||
        tok_open_hf(&tok, path, &e))
        return -1;
    unlink(path);
    n_vocab = tok_n_vocab(tok);
    n_word = ((size_t)n_vocab + 31) / 32;
    bits = xcalloc(n_word, 4);
    for (int32_t id = 0; id < n_vocab && n < 2; id++)
        if (tok_is_control(tok, id))
            control[n++] = id;
    return n == 2 ? grammar_vocab_open(&vocab, tok, n_vocab, &e) : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(bits);
    grammar_vocab_unref(vocab);
    tok_close(tok);
    return 0;
}

static struct gr_builder *begin(void)
{
    struct gr_builder *b;
    assert_int_equal(gr_builder_open(&b, vocab, NULL), 0);
    return b;
}

static struct grammar *end(struct gr_builder *b, gr_expr e)
{
    struct grammar *g;
    struct err why = {0};
    if (gr_compile(b, e, &g, &why))
        fail_msg("%s", why.text);
    gr_builder_close(b);
    return g;
}

/* A text with its control tokens: \001 and \002 stand for control[0] and control[1]. Masks and steps must agree. */
static bool accepts(struct grammar *g, const char *text)
{
    struct grammar_state *s;
    bool ok = true;
    assert_int_equal(grammar_state_open(&s, g), 0);
    while (*text && ok) {
        size_t n = strcspn(text, "\001\002");
        struct tok_ids ids = {0};
        if (!n) {
            assert_int_equal(grammar_mask(s, bits, n_word) < 0, 0);
            int32_t id = control[*text++ - 1];
            bool in = bits[id / 32] >> (id % 32) & 1;
            ok = grammar_accept(s, id) == 0;
            assert_int_equal(in, ok);
            continue;
        }
        assert_int_equal(tok_encode(tok, text, n, 0, &ids), 0);
        for (size_t i = 0; i < ids.n && ok; i++) {
            assert_true(grammar_mask(s, bits, n_word) >= 0);
            bool in = bits[ids.id[i] / 32] >> (ids.id[i] % 32) & 1;
            ok = grammar_accept(s, ids.id[i]) == 0;
            assert_int_equal(in, ok);
        }
        tok_ids_free(&ids);
        text += n;
    }
    ok = ok && grammar_may_end(s);
    grammar_state_close(s);
    return ok;
}

static void test_until_without(void **state)
{
    (void)state;
    struct gr_builder *b = begin();
    struct view stop[] = {VIEW_LIT("</a>"), VIEW_LIT("STOP")};
    struct grammar *g = end(b, gr_text_until(b, stop, 2, false));
    assert_true(accepts(g, ""));
    assert_true(accepts(g, "free text, < / a > and \xC3\xA9\xF0\x9F\x98\x80\n"));
    assert_true(accepts(g, "</a</a STO"));
    assert_false(accepts(g, "x</a>"));
    assert_false(accepts(g, "x</a>y"));
    assert_false(accepts(g, "xSTOP"));
    assert_false(accepts(g, "STO\001")); /* control tokens are no text */
    grammar_unref(g);
    b = begin();
    g = end(b, gr_text_until(b, NULL, 0, false)); /* nothing stops it */
    assert_true(accepts(g, "STOP </a> anything"));
    assert_false(accepts(g, "a\002"));
    grammar_unref(g);
}

static void test_until_then(void **state)
{
    (void)state;
    struct gr_builder *b = begin();
    struct view stop[] = {VIEW_LIT("aab"), VIEW_LIT("c")};
    struct grammar *g = end(b, gr_text_until(b, stop, 2, true));
    assert_true(accepts(g, "aab"));
    assert_true(accepts(g, "aaab")); /* the mark's own beginning before it */
    assert_true(accepts(g, "xyz aaxaab"));
    assert_true(accepts(g, "abc"));
    assert_false(accepts(g, ""));
    assert_false(accepts(g, "aa"));
    assert_false(accepts(g, "aab aab")); /* the first one ends it */
    assert_false(accepts(g, "cc"));
    grammar_unref(g);
    b = begin();
    gr_expr e = gr_seq2(b, gr_text_until(b, stop, 2, true), gr_str(b, "!"));
    g = end(b, e);
    assert_true(accepts(g, "one c!"));
    assert_false(accepts(g, "one !"));
    assert_false(accepts(g, "one c?"));
    grammar_unref(g);
}

static void test_token(void **state)
{
    (void)state;
    struct gr_builder *b = begin();
    struct view mark = VIEW_LIT("}");
    gr_expr call = gr_seq(b,
                          (gr_expr[]){gr_token(b, control[0]), gr_str(b, "{"),
                                      gr_text_until(b, &mark, 1, true), gr_token(b, control[1])},
                          4);
    struct grammar *g =
        end(b, gr_seq2(b, gr_text_until(b, NULL, 0, false), gr_repeat(b, call, 0, 2)));
    assert_true(accepts(g, ""));
    assert_true(accepts(g, "text"));
    assert_true(accepts(g, "text\001{x}\002"));
    assert_true(accepts(g, "\001{}\002\001{ab}\002"));
    assert_false(accepts(g, "\001{x}")); /* the second token is missing */
    assert_false(accepts(g, "\002"));    /* the wrong one */
    assert_false(accepts(g, "\001{x}\001"));
    assert_false(accepts(g, "\001{\002}\002")); /* inside of text */
    assert_false(accepts(g, "\001{}\002\001{}\002\001{}\002"));
    grammar_unref(g);
}

/* A control token's own text, written as ordinary characters, is not the token. */
static void test_token_as_text(void **state)
{
    (void)state;
    struct gr_builder *b = begin();
    struct view name = tok_bytes(tok, control[0], true);
    struct grammar *g = end(b, gr_token(b, control[0]));
    struct grammar_state *s;
    assert_true(name.len > 1);
    assert_int_equal(grammar_state_open(&s, g), 0);
    assert_int_equal(grammar_mask(s, bits, n_word), 1);
    for (int32_t id = 0; id < n_vocab; id++)
        assert_int_equal(bits[id / 32] >> (id % 32) & 1, id == control[0]);
    assert_int_equal(grammar_accept(s, control[1]), ERR_INVAL);
    assert_int_equal(grammar_accept(s, -1), ERR_INVAL);
    assert_int_equal(grammar_accept(s, n_vocab), ERR_INVAL);
    assert_false(grammar_may_end(s));
    assert_int_equal(grammar_accept(s, control[0]), 0);
    assert_true(grammar_must_end(s));
    assert_int_equal(grammar_mask(s, bits, n_word), 0);
    grammar_state_close(s);
    grammar_unref(g);
}

static void test_token_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct gr_builder *b = begin();
        struct grammar *g = NULL;
        struct err why = {0};
        gr_expr e = gr_token(b, i ? n_vocab + 5 : -1);
        assert_int_not_equal(gr_compile(b, e, &g, &why), 0);
        assert_null(g);
        assert_true(strlen(why.text) > 0);
        gr_builder_close(b);
    }
}

/* Choices of many texts, some of which begin others, allow these and nothing else; the tree of them costs one way at a time. */
static void test_many_texts(void **state)
{
    (void)state;
    enum { N = 3000, LONG = 60 };
    static char text[N][LONG + 16];
    static gr_expr kid[N + 1];
    struct gr_builder *b = begin();
    for (int i = 0; i < N; i++) {
        if (i < LONG) /* a, aa, aaa, ... deeper than the tree goes */
            memset(text[i], 'a', (size_t)i + 1);
        else
            snprintf(text[i], sizeof text[i], "value %d of %d%s", i / 2, i % 7, i % 3 ? "" : "!");
        kid[i] = gr_str(b, text[i]);
    }
    kid[N] = gr_seq2(b, gr_str(b, "v"), gr_repeat(b, gr_str(b, "x"), 1, 9)); /* no text */
    struct grammar *g = end(b, gr_alt(b, kid, N + 1));
    for (int i = 0; i < N; i += i < 200 ? 1 : 97) {
        char other[LONG + 20];
        assert_true(accepts(g, text[i]));
        snprintf(other, sizeof other, "%s?", text[i]);
        assert_false(accepts(g, other));
        if (i >= LONG) {
            snprintf(other, sizeof other, "%.*s", (int)strcspn(text[i], "o"), text[i]);
            assert_false(accepts(g, other));
        }
    }
    assert_true(accepts(g, "vxx"));
    assert_false(accepts(g, "v"));
    assert_false(accepts(g, ""));
    grammar_unref(g);
}

/* Each allocation of a build and a walk fails once: an error, nothing lost. */
static void test_no_memory(void **state)
{
    (void)state;
    struct view mark = VIEW_LIT("</t>");
    int done = 0;
    for (int at = 1; at < 1200 && !done; at++) {
        struct gr_builder *b = NULL;
        struct grammar *g = NULL;
        struct grammar_state *s = NULL;
        struct err why = {0};
        mem_fail_after(at, false);
        int rc = gr_builder_open(&b, vocab, NULL);
        if (!rc) {
            gr_expr many[80];
            for (int i = 0; i < 80; i++) {
                char text[24];
                snprintf(text, sizeof text, "%d of it", i);
                many[i] = gr_str(b, text);
            }
            gr_alt(b, many, 80);
            gr_expr e =
                gr_seq(b,
                       (gr_expr[]){gr_token(b, control[0]), gr_text_until(b, &mark, 1, true),
                                   gr_token(b, control[1])},
                       3);
            rc = gr_compile(b, e, &g, &why);
        }
        if (!rc)
            rc = grammar_state_open(&s, g);
        if (!rc && (rc = grammar_mask(s, bits, n_word)) > 0)
            rc = grammar_accept(s, control[0]);
        if (!rc && (rc = grammar_mask(s, bits, n_word)) > 0)
            rc = 0;
        done = rc == 0;
        mem_fail_after(0, false);
        if (rc && rc != ERR_NOMEM)
            fail_msg("allocation %d: %s %s", at, err_name(rc), why.text);
        grammar_state_close(s);
        grammar_unref(g);
        gr_builder_close(b);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_until_without), cmocka_unit_test(test_until_then),
        cmocka_unit_test(test_token),         cmocka_unit_test(test_token_as_text),
        cmocka_unit_test(test_token_refused), cmocka_unit_test(test_many_texts),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
