/* Tokenizer from the tokenizer.ggml.* keys of a GGUF file (ggml docs/gguf.md). Entry texts stay in the
 * mapped file. Refuses tokenizer models and pre-tokenisers that it does not know, by name. */
#include <math.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/load/gguf.h"
#include "engine/text/tok_impl.h"

#define KEY(x) "tokenizer.ggml." x

/* An array key of one element type; NULL with *rc = 0 when absent and not needed. */
static const struct gguf_kv *array_of(const struct gguf *g, const char *key, enum gguf_type elem,
                                      bool need, int *rc, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);
    *rc = 0;
    if (!kv && need)
        *rc = err_set(e, ERR_NOTFOUND, "%s: key is absent", key);
    if (kv && (kv->type != GGUF_ARRAY || kv->elem != elem)) {
        *rc = err_set(e, ERR_INVAL, "%s: not an array of the expected type", key);
        return NULL;
    }
    return kv;
}

/* Id under a key, or `def` when the key is absent; def is dropped when outside the vocabulary. */
static int get_id(const struct tokenizer *t, const struct gguf *g, const char *key, int32_t def,
                  int32_t *out, struct err *e)
{
    uint32_t v = 0;
    int rc = gguf_get_u32(g, key, &v, e);
    if (rc == ERR_NOTFOUND) {
        *out = def >= 0 && def < t->n_vocab ? def : -1;
        return 0;
    }
    if (rc != 0)
        return rc;
    if (v == UINT32_MAX) { /* some writers say "none" this way */
        *out = -1;
        return 0;
    }
    if (v >= (uint32_t)t->n_vocab)
        return err_set(e, ERR_INVAL, "%s: %u is outside the vocabulary of %d", key, v, t->n_vocab);
    *out = (int32_t)v;
    return 0;
}

/* A boolean key, or `def` when absent. */
static int get_flag(const struct gguf *g, const char *key, bool def, bool *out, struct err *e)
{
    *out = def;
    int rc = gguf_get_bool(g, key, out, e);
    return rc == ERR_NOTFOUND ? 0 : rc;
}

/* Texts and types. */
static int read_entries(struct tokenizer *t, const struct gguf *g, const struct gguf_kv *tokens,
                        struct err *e)
{
    int rc;
    const struct gguf_kv *types = array_of(g, KEY("token_type"), GGUF_I32, false, &rc, e);
    if (rc == 0 && types && types->n != tokens->n)
        rc = err_set(e, ERR_INVAL, "%s: %llu values for %llu tokens", KEY("token_type"),
                     (unsigned long long)types->n, (unsigned long long)tokens->n);
    for (int32_t i = 0; rc == 0 && i < t->n_vocab; i++) {
        t->entry[i] = gguf_arr_str(tokens, (uint64_t)i);
        int64_t type = types ? gguf_arr_int(types, (uint64_t)i) : TOK_T_NORMAL;
        /* 0 ("undefined") occurs in old files and means plain text */
        t->type[i] = type >= TOK_T_NORMAL && type <= TOK_T_BYTE ? (uint8_t)type : TOK_T_NORMAL;
    }
    return rc;
}

/* tokenizer.ggml.scores: needed by SentencePiece kinds, every value finite. */
static int read_scores(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    int rc;
    const struct gguf_kv *s = array_of(g, KEY("scores"), GGUF_F32, true, &rc, e);
    if (rc != 0)
        return rc;
    if (s->n != (uint64_t)t->n_vocab)
        return err_set(e, ERR_INVAL, "%s: %llu values for %d tokens", KEY("scores"),
                       (unsigned long long)s->n, t->n_vocab);
    t->score = arena_array(&t->mem, (size_t)t->n_vocab, sizeof *t->score);
    if (!t->score)
        return err_set(e, ERR_NOMEM, "tokenizer: out of memory");
    for (int32_t i = 0; i < t->n_vocab; i++) {
        t->score[i] = gguf_arr_f32(s, (uint64_t)i);
        if (!isfinite(t->score[i]))
            return err_set(e, ERR_INVAL, "%s: value %d is not finite", KEY("scores"), i);
    }
    return 0;
}

/* "left right" texts in rank order; the first space after the first byte separates (a left part may
 * start with one). */
static int read_merges(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    int rc;
    const struct gguf_kv *m = array_of(g, KEY("merges"), GGUF_STRING, true, &rc, e);
    if (rc == 0)
        rc = tok__index(t, e);
    if (rc != 0)
        return rc;
    if (m->n > UINT32_MAX / 4 || tok__pairs_init(&t->pairs, (size_t)m->n) != 0)
        return err_set(e, ERR_NOMEM, "%s: out of memory", KEY("merges"));
    for (uint64_t i = 0; i < m->n && rc == 0; i++) {
        struct view v = gguf_arr_str(m, i);
        const char *sp = v.len > 2 ? memchr(v.p + 1, ' ', v.len - 1) : NULL;
        if (!sp)
            return err_set(e, ERR_PARSE, "%s: merge %llu has no two parts", KEY("merges"),
                           (unsigned long long)i);
        struct view l = {v.p, (size_t)(sp - v.p)}, r = {sp + 1, v.len - l.len - 1};
        rc = tok__add_merge(t, (uint32_t)i, l, r, e);
    }
    if (rc != 0)
        err_prefix(e, "%s", KEY("merges"));
    return rc;
}

/* GPT-2 family: pre-tokeniser by name, then merges. */
static int setup_bpe(struct tokenizer *t, const struct gguf *g, struct view model, struct err *e)
{
    struct view pre = VIEW_LIT("default");
    if (view_is(model, "gemma4"))
        pre = VIEW_LIT("gemma4");
    int rc = gguf_get_str(g, KEY("pre"), &pre, e);
    if (rc == ERR_NOTFOUND && !view_is(model, "gemma4"))
        log_warn("text", "%s is absent: text is cut by a generic pattern", KEY("pre"));
    else if (rc != 0 && rc != ERR_NOTFOUND)
        return rc;
    rc = tok__pre_apply(t, pre, e);
    if (rc == 0)
        rc = read_merges(t, g, e);
    t->order = TOK_BY_MERGES;
    t->fffd_per_byte = !t->byte_level;
    return rc;
}

/* SentencePiece BPE: merges by score, bytes as fallback, a space in front unless the file says no. */
static int setup_spm(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    bool prefix;
    int rc = read_scores(t, g, e);
    if (rc == 0)
        rc = get_flag(g, KEY("add_space_prefix"), true, &prefix, e);
    if (rc != 0)
        return rc;
    struct tok_norm *op = tok__add_norm(t, TOK_NORM_MARK);
    op->a = VIEW_LIT(TOK_MARK);
    op->flags = prefix ? TOK_MARK_ALWAYS : 0;
    t->order = TOK_BY_SCORE;
    t->byte_fallback = t->fffd_per_byte = true;
    t->strip_first = prefix;
    t->adds_bos = true;
    return 0;
}

/* SentencePiece unigram with its character map. */
static int setup_unigram(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    int rc = read_scores(t, g, e);
    const struct gguf_kv *map = gguf_kv_find(g, KEY("precompiled_charsmap"));
    bool prefix, squeeze;
    if (rc == 0 && map &&
        !(map->type == GGUF_ARRAY && (map->elem == GGUF_U8 || map->elem == GGUF_I8)))
        rc = err_set(e, ERR_INVAL, "%s: not an array of bytes", KEY("precompiled_charsmap"));
    if (rc == 0)
        rc = get_flag(g, KEY("add_space_prefix"), true, &prefix, e);
    if (rc == 0)
        rc = get_flag(g, KEY("remove_extra_whitespaces"), false, &squeeze, e);
    if (rc != 0)
        return rc;
    if (map) {
        struct tok_norm *op = tok__add_norm(t, TOK_NORM_CHARSMAP);
        op->flags = 1;
        op->map = arena_alloc(&t->mem, sizeof *op->map);
        if (!op->map)
            return err_set(e, ERR_NOMEM, "tokenizer: out of memory");
        rc = tok__charsmap_open(op->map, map->data, (size_t)map->n, e);
        if (rc != 0)
            return rc;
    }
    struct view arch = {0};
    gguf_get_str(g, "general.architecture", &arch, NULL);
    /* T5's tokenizer drops spaces at both ends; XLM-R's keeps one. */
    bool ends = squeeze && view_starts(arch, "t5");
    if (squeeze && !ends) {
        struct tok_norm *op = tok__add_norm(t, TOK_NORM_REGEX);
        op->b = VIEW_LIT(" ");
        rc = tok__re_open(&op->re, " {2,}", 5, e);
    }
    struct tok_norm *op = tok__add_norm(t, TOK_NORM_MARK);
    op->a = VIEW_LIT(TOK_MARK);
    op->flags = (prefix ? TOK_MARK_ALWAYS | TOK_MARK_ONCE : 0u) | (ends ? TOK_MARK_SQUEEZE : 0u);
    t->fuse_unk = t->fffd_per_byte = true;
    t->strip_first = prefix;
    return rc ? rc : tok__add_split(t, TOK_MARK, TOK_SPLIT_NEXT, false, e);
}

/* BERT: in these files U+2581 opens words and continuations are bare. */
static int setup_wordpiece(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    bool lower, strip;
    int rc = get_flag(g, KEY("normalizer.lowercase"), true, &lower, e);
    if (rc == 0)
        rc = get_flag(g, KEY("normalizer.strip_accents"), lower, &strip, e);
    if (rc != 0)
        return rc;
    t->strip_first = t->adds_bos = t->word_glue = true;
    tok__bert_norm(t, true, true, strip, lower);
    return tok__bert_split(t, e);
}

/* bos, eos, unk, the ids around a prompt, and those that end an answer. */
static int read_ids(struct tokenizer *t, const struct gguf *g, struct view model, struct err *e)
{
    bool bert = view_is(model, "bert"), t5 = view_is(model, "t5"), spm = view_is(model, "llama");
    int32_t cls, sep, eot, eom;
    int rc = get_id(t, g, KEY("bos_token_id"), spm ? 1 : -1, &t->bos, e);
    rc = rc ? rc : get_id(t, g, KEY("eos_token_id"), spm ? 2 : t5 ? 1 : -1, &t->eos, e);
    rc = rc ? rc
            : get_id(t, g, KEY("unknown_token_id"),
                     spm    ? 0
                     : bert ? 100
                     : t5   ? 2
                            : -1,
                     &t->unk, e);
    rc = rc ? rc : get_id(t, g, KEY("cls_token_id"), bert ? 101 : -1, &cls, e);
    /* the misspelt key is the one in use */
    rc = rc ? rc : get_id(t, g, KEY("seperator_token_id"), bert ? 102 : -1, &sep, e);
    rc = rc ? rc : get_id(t, g, KEY("eot_token_id"), -1, &eot, e);
    rc = rc ? rc : get_id(t, g, KEY("eom_token_id"), -1, &eom, e);
    bool add_bos, add_eos, add_sep;
    rc = rc ? rc : get_flag(g, KEY("add_bos_token"), t->adds_bos, &add_bos, e);
    rc = rc ? rc : get_flag(g, KEY("add_eos_token"), t5, &add_eos, e);
    rc = rc ? rc : get_flag(g, KEY("add_sep_token"), bert, &add_sep, e);
    if (rc != 0)
        return rc;
    if (bert && t->bos < 0)
        t->bos = cls;
    t->adds_bos = add_bos && t->bos >= 0;
    if (t->adds_bos)
        t->before[t->n_before++] = t->bos;
    if (add_sep && sep >= 0)
        t->after[t->n_after++] = sep;
    else if (add_eos && t->eos >= 0)
        t->after[t->n_after++] = t->eos;
    tok__add_stop(t, t->eos);
    tok__add_stop(t, eot);
    tok__add_stop(t, eom);
    return 0;
}

int tok_open_gguf(struct tokenizer **out, const struct gguf *g, struct err *e)
{
    struct view model;
    int rc = gguf_get_str(g, KEY("model"), &model, e);
    if (rc != 0)
        return rc == ERR_NOTFOUND ? err_set(e, rc, "%s: key is absent", KEY("model")) : rc;
    enum tok_kind kind = view_is(model, "t5")     ? TOK_KIND_UNIGRAM
                         : view_is(model, "bert") ? TOK_KIND_WORDPIECE
                                                  : TOK_KIND_BPE;
    bool spm = view_is(model, "llama");
    if (kind == TOK_KIND_BPE && !spm && !view_is(model, "gpt2") && !view_is(model, "gemma4"))
        return err_set(e, ERR_UNSUPPORTED, "%s: tokenizer '%.*s' is not known", KEY("model"),
                       (int)(model.len < 80 ? model.len : 80), model.p);
    const struct gguf_kv *tokens = array_of(g, KEY("tokens"), GGUF_STRING, true, &rc, e);
    if (rc != 0)
        return rc;
    struct tokenizer *t = NULL;
    rc = tok__new(&t, kind, tokens->n < INT32_MAX ? (int64_t)tokens->n : INT32_MAX, e);
    if (rc == 0)
        rc = read_entries(t, g, tokens, e);
    if (rc == 0)
        rc = kind == TOK_KIND_UNIGRAM     ? setup_unigram(t, g, e)
             : kind == TOK_KIND_WORDPIECE ? setup_wordpiece(t, g, e)
             : spm                        ? setup_spm(t, g, e)
                                          : setup_bpe(t, g, model, e);
    if (rc == 0)
        rc = read_ids(t, g, model, e);
    if (rc == 0)
        rc = tok__finish(t, e);
    if (rc != 0) {
        tok_close(t);
        return rc;
    }
    *out = t;
    return 0;
}
