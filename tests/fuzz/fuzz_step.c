/* Walking a grammar: whatever tokens are tried in whatever order, the mask says the same of each as the step does, a refused token
 * changes nothing, and a token is what its bytes are one by one. Input: a schema or regular expression, a zero byte, then two bytes
 * a token to try. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "api/schema.h"
#include "engine/base/mem.h"
#include "tests/unxz.h"

const char *const fuzz_seeds[] = {"tests/data/fuzz/step-*", NULL};

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static int32_t n_vocab, byte_token[256]; /* -1: no token of that byte alone */

static void open_vocab(void)
{
    struct err e;
    char path[128];
    if (vocab)
        return;
    CHECK(!unxz_temp("tests/data/tokenizers/deepseek_v3.tokenizer.json.xz", path, sizeof path));
    CHECK(!tok_open_hf(&tok, path, &e));
    remove(path);
    n_vocab = tok_n_vocab(tok);
    CHECK(!grammar_vocab_open(&vocab, tok, n_vocab, &e));
    for (int i = 0; i < 256; i++)
        byte_token[i] = -1;
    for (int32_t id = 0; id < n_vocab; id++) {
        struct view v = tok_bytes(tok, id, false);
        if (v.len == 1 && !tok_is_control(tok, id))
            byte_token[(uint8_t)v.p[0]] = id;
    }
}

static struct grammar *compile(const char *text, size_t n)
{
    static const struct gr_limits lim = {
        .max_us = 200000, .max_expr = 100000, .max_state = 4000, .max_bytes = 4 << 20};
    struct gr_builder *b;
    struct grammar *g = NULL;
    struct schema_err e = {0};
    json_t *schema = *text == '{' ? json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    CHECK(!gr_builder_open(&b, vocab, &lim));
    gr_expr root =
        schema ? schema_add(b, schema, NULL, &e) : gr_regex(b, (struct view){text, n}, GR_UTF8, 0);
    int rc = gr_compile(b, root, &g, &e.err);
    CHECK(rc == 0 ? g != NULL : g == NULL);
    gr_builder_close(b);
    json_decref(schema);
    return g;
}

struct walk {
    struct grammar_state *whole, *bytes; /* the same text, by tokens and by single bytes */
    uint32_t *bits;
    size_t n_word;
};

/* The token's bytes one by one into the other state; false when there is no token for one of them. */
static bool by_bytes(struct walk *w, int32_t id)
{
    struct view v = tok_bytes(tok, id, false);
    for (size_t i = 0; i < v.len; i++) {
        int32_t one = byte_token[(uint8_t)v.p[i]];
        int rc = one < 0 ? ERR_INVAL : grammar_accept(w->bytes, one);
        if (one < 0 || rc == ERR_LIMIT)
            return false;
        CHECK(rc == 0);
    }
    return v.len > 0 && !tok_is_control(tok, id);
}

/* False: the walk ends here. */
static bool try_token(struct walk *w, int32_t id, bool *paired)
{
    int any = grammar_mask(w->whole, w->bits, w->n_word);
    if (any == ERR_LIMIT)
        return false;
    CHECK(any >= 0 && (any > 0 || !grammar_must_end(w->whole) || grammar_may_end(w->whole)));
    bool end = grammar_may_end(w->whole), allowed = w->bits[id / 32] >> (id % 32) & 1;
    int rc = grammar_accept(w->whole, id);
    if (rc == ERR_LIMIT)
        return false;
    CHECK((rc == 0) == allowed);
    if (rc) {
        CHECK(rc == ERR_INVAL && grammar_may_end(w->whole) == end);
        return true;
    }
    *paired = *paired && by_bytes(w, id);
    CHECK(!*paired || (grammar_may_end(w->whole) == grammar_may_end(w->bytes) &&
                       grammar_must_end(w->whole) == grammar_must_end(w->bytes)));
    return !grammar_must_end(w->whole);
}

/* A token of the mask, so that walks get somewhere; -1: none. */
static int32_t allowed_one(struct walk *w, uint32_t pick)
{
    if (grammar_mask(w->whole, w->bits, w->n_word) <= 0)
        return -1;
    size_t at = pick % w->n_word;
    while (!w->bits[at])
        at = (at + 1) % w->n_word;
    return (int32_t)(at * 32) + __builtin_ctz(w->bits[at]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 3 || n > 1 << 13)
        return 0;
    const uint8_t *zero = memchr(data, 0, n);
    if (!zero)
        return 0;
    open_vocab();
    struct grammar *g = compile((const char *)data, (size_t)(zero - data));
    struct walk w = {.n_word = ((size_t)n_vocab + 31) / 32};
    bool paired = true;
    if (!g)
        return 0;
    w.bits = xcalloc(w.n_word, 4);
    int rc = grammar_state_open(&w.whole, g);
    CHECK(rc == 0 || rc == ERR_LIMIT);
    if (!rc)
        CHECK(grammar_state_open(&w.bytes, g) == 0);
    for (const uint8_t *p = zero + 1; !rc && p + 1 < data + n && p < zero + 200; p += 2) {
        uint32_t pick = (uint32_t)p[0] << 8 | p[1];
        int32_t id = p[0] & 0xC0 ? allowed_one(&w, pick) : (int32_t)pick % n_vocab;
        if (id < 0 || !try_token(&w, id, &paired))
            break;
    }
    grammar_state_close(w.whole);
    grammar_state_close(w.bytes);
    free(w.bits);
    grammar_unref(g);
    return 0;
}
