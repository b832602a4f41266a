/* Tokenizer from Mistral's tekken.json: token bytes by rank, one pattern, and special tokens that take
 * the first ids. Merges follow from the ranks: the pair whose joined bytes have the lowest rank. */
#include <jansson.h>

#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

/* The special tokens of versions whose file does not list them, in id order. */
static const char *const tekken_specials[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};

static int set_special(struct tokenizer *t, size_t id, const char *s, size_t n)
{
    char *p = arena_copy(&t->mem, s, n);
    if (!p)
        return ERR_NOMEM;
    t->entry[id] = (struct view){p, n};
    t->type[id] = TOK_T_CONTROL;
    return 0;
}

/* Ids 0 to n_special - 1: the file's list, else the known names; the rest are placeholders. */
static int fill_specials(struct tokenizer *t, const json_t *root, size_t n_special, struct err *e)
{
    const size_t n_known = sizeof tekken_specials / sizeof tekken_specials[0];
    const json_t *list = json_object_get(root, "special_tokens");
    int rc = 0;
    for (size_t i = 0; i < n_special && rc == 0; i++) {
        char name[40];
        snprintf(name, sizeof name, "<SPECIAL_%zu>", i);
        const char *s = i < n_known && !json_is_array(list) ? tekken_specials[i] : name;
        rc = set_special(t, i, s, strlen(s));
    }
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        json_t *rank = json_object_get(v, "rank"), *s = json_object_get(v, "token_str");
        json_int_t id = json_integer_value(rank);
        if (!json_is_integer(rank) || id < 0 || (size_t)id >= n_special || !json_is_string(s))
            return err_set(e, ERR_INVAL, "special_tokens[%zu]: rank or token_str is wrong", i);
        rc = rc ? rc : set_special(t, (size_t)id, json_string_value(s), json_string_length(s));
    }
    return rc ? err_set(e, rc, "out of memory") : 0;
}

/* Entry n_special + i has rank i, so ids order like ranks. */
static int fill_vocab(struct tokenizer *t, const json_t *vocab, size_t n_special, struct err *e)
{
    for (size_t i = 0; i + n_special < (size_t)t->n_vocab; i++) {
        const json_t *v = json_array_get(vocab, i), *b = json_object_get(v, "token_bytes");
        if (json_integer_value(json_object_get(v, "rank")) != (json_int_t)i || !json_is_string(b))
            return err_set(e, ERR_INVAL, "vocab[%zu]: rank or token_bytes is wrong", i);
        struct view text = {json_string_value(b), json_string_length(b)};
        uint8_t *p = arena_alloc(&t->mem, text.len + 1);
        size_t n;
        if (!p)
            return err_set(e, ERR_NOMEM, "out of memory");
        if (tok__base64(text, p, &n) != 0)
            return err_set(e, ERR_PARSE, "vocab[%zu]: token_bytes is no base64", i);
        t->entry[n_special + i] = (struct view){(char *)p, n};
    }
    return 0;
}

static int load(struct tokenizer **out, const json_t *root, struct err *e)
{
    const json_t *cfg = json_object_get(root, "config"), *vocab = json_object_get(root, "vocab");
    json_int_t n_special = json_integer_value(json_object_get(cfg, "default_num_special_tokens"));
    json_int_t n_vocab = json_integer_value(json_object_get(cfg, "default_vocab_size"));
    const char *pattern = json_string_value(json_object_get(cfg, "pattern"));
    if (n_special < 3 || n_special >= n_vocab || n_vocab > TOK_VOCAB_MAX || !pattern)
        return err_set(
            e, ERR_INVAL,
            "config: pattern, default_vocab_size or default_num_special_tokens is wrong");
    if (json_array_size(vocab) < (size_t)(n_vocab - n_special))
        return err_set(e, ERR_INVAL, "vocab: %zu entries, config asks for %lld",
                       json_array_size(vocab), (long long)(n_vocab - n_special));
    struct tokenizer *t = NULL;
    int rc = tok__new(&t, TOK_KIND_BPE, n_vocab, e);
    if (rc != 0)
        return rc;
    *out = t;
    t->order = TOK_BY_RANK;
    t->raw_entries = t->whole_piece = true;
    rc = fill_specials(t, root, (size_t)n_special, e);
    rc = rc ? rc : fill_vocab(t, vocab, (size_t)n_special, e);
    rc = rc ? rc : tok__add_split(t, pattern, TOK_SPLIT_ISOLATE, false, e);
    t->unk = 0;
    t->bos = t->before[t->n_before++] = 1;
    t->eos = 2;
    t->adds_bos = true;
    return rc ? rc : tok__finish(t, e);
}

int tok_open_tekken(struct tokenizer **out, const char *path, struct err *e)
{
    json_error_t je;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &je);
    if (!root)
        return json_error_code(&je) == json_error_cannot_open_file
                   ? err_set(e, ERR_NOTFOUND, "%s: cannot be opened", path)
                   : err_set(e, ERR_PARSE, "%s: line %d: %s", path, je.line, je.text);
    struct tokenizer *t = NULL;
    int rc = load(&t, root, e);
    json_decref(root);
    if (rc != 0) {
        tok_close(t);
        err_prefix(e, "%s", path);
        return rc;
    }
    *out = t;
    return 0;
}
