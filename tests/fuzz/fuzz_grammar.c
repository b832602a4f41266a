/* Schemas, regular expressions and grammar texts come from clients: any text compiles or is refused within its limits, and what
 * compiles can be followed: every token of a mask is accepted, and there is no dead end. The first byte says what the
 * rest is, the second where the walk goes. */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "api/schema.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "tests/unxz.h"

const char *const fuzz_seeds[] = {"tests/data/fuzz/schema-*.json", "tests/data/fuzz/grammar-*", NULL};

static struct tokenizer *tok;
static struct grammar_vocab *vocab;

static void open_vocab(void)
{
    struct err e;
    char path[128];
    if (vocab)
        return;
    CHECK(!unxz_temp("tests/data/tokenizers/bert-minilm.tokenizer.json.xz", path, sizeof path));
    CHECK(!tok_open_hf(&tok, path, &e));
    remove(path);
    CHECK(!grammar_vocab_open(&vocab, tok, tok_n_vocab(tok), &e));
}

/* Some steps at random. */
static void follow(struct grammar *g, uint64_t seed)
{
    struct grammar_state *s;
    size_t n_word = ((size_t)tok_n_vocab(tok) + 31) / 32;
    uint32_t *bits = xmalloc(n_word * 4);
    int rc = grammar_state_open(&s, g);
    CHECK(rc == 0 || rc == ERR_LIMIT);
    for (int step = 0; !rc && step < 12; step++) {
        int any = grammar_mask(s, bits, n_word);
        if (any == ERR_LIMIT)
            break;
        CHECK(any >= 0);
        if (!any)
            break; /* this vocabulary has few bytes */
        seed = hash_u64(seed);
        size_t w = seed % n_word;
        while (!bits[w])
            w = (w + 1) % n_word;
        int32_t id = (int32_t)(w * 32) + __builtin_ctz(bits[w]);
        rc = grammar_accept(s, id);
        CHECK(rc == 0 || rc == ERR_LIMIT);
    }
    if (s)
        grammar_state_close(s);
    free(bits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct gr_limits lim = {.max_us = 200000, .max_expr = 100000, .max_state = 4000, .max_bytes = 4 << 20};
    struct gr_builder *b;
    struct grammar *g = NULL;
    struct schema_err e = {0};
    json_t *schema = NULL;
    gr_expr root;
    if (n < 2 || n > 1 << 13)
        return 0;
    open_vocab();
    struct view text = {(const char *)data + 2, n - 2};
    CHECK(!gr_builder_open(&b, vocab, &lim));
    if (data[0] == 'r') {
        root = gr_regex(b, text, data[1] & 1 ? GR_JSON : GR_UTF8, data[1] & 2 ? GR_SEARCH : 0);
    } else if (data[0] == 'g') {
        root = gr_grammar_text(b, text);
    } else {
        schema = json_loadb((const char *)data, n, JSON_REJECT_DUPLICATES, NULL);
        root = schema ? schema_add(b, schema, NULL, &e) : gr_fail(b, ERR_PARSE, "not JSON");
    }
    int rc = gr_compile(b, root, &g, &e.err);
    CHECK(rc == 0 ? g != NULL : g == NULL && e.err.code == rc && e.err.text[0]);
    gr_builder_close(b);
    json_decref(schema);
    if (g)
        follow(g, data[1]);
    grammar_unref(g);
    return 0;
}
