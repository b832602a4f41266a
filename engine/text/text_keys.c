/* See text_keys.h. Byte-level BPE becomes "gpt2" with the pre-tokeniser that cuts as the folder's does, BPE of characters with
 * bytes as fallback "llama" with scores in the order of merges. Unigram, WordPiece and the rest are refused. */
#include "engine/text/text_keys.h"

#include <limits.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/load/gguf_write.h"
#include "engine/text/text_model.h"
#include "engine/text/tok_hf_impl.h"

#define KEY(x) "tokenizer.ggml." x

/* What tokenizers are told apart by: words, cases, contractions, numbers, runs of spaces and line ends, punctuation, other
 * scripts, composed and decomposed letters, symbols. */
static const char probe[] =
    "Hello, world! I'm sure they'll see it's we've HELLO'S WE'LL he'd you're don't 'tis\n"
    "3.14159 1234567890 12 345 6-7 2024/11/30 $1,000.50 50% x=y+z; a_b __init__ fooBar "
    "HTTPServer2\n\n\n"
    "  two   three    four\t\ttab \r\n\r\n end  \n \n   if (x != 0) {\n\treturn -1; // no\n    }\n"
    "caf\xc3\xa9 cafe\xcc\x81 \xc3\x85ngstr\xc3\xb6m na\xc3\xafve \xc4\xb0stanbul \xef\xac\x81ne "
    "\xce\xb1\xce\xb2\xce\xb3 \xce\x91\xce\x98 \xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 "
    "\xd0\xbc\xd0\xb8\xd1\x80! "
    "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c\xe3\x80\x82 "
    "\xe3\x81\x93\xe3\x82\x93\xe3\x81\xab\xe3\x81\xa1\xe3\x81\xaf \xe3\x82\xab\xe3\x82\xbf "
    "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 \xd8\xb9\xd8\xb1\xd8\xa8\xd9\x8a "
    "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8"
    "\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80 \xd9\xa1\xd9\xa2\xd9\xa3 "
    "\xf0\x9f\x98\x80\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd "
    "\xe2\x82\xac\xe2\x89\xa0\xe2\x88\x9e \xe2\x80\x9cquoted\xe2\x80\x9d \xe2\x80\x94 (a) [b] <c> "
    "#d @e /f/g ... ?! "
    "\xc2\xa0nbsp\xe3\x80\x80wide\n'S 'T A'B  c'D!!\n@@##$$ ^&* ~`|\\ <|x|> </s> 007 "
    "\xc2\xbd\xe2\x85\xa3";

static int nomem(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the tokenizer's keys");
}

/* ---- which tokenizer ---- */

/* The i-th pre-tokeniser in place of a tokenizer's own steps cuts the probe as they do. */
static int pre_equal(const struct tokenizer *t, const struct buf *want, struct view name,
                     bool *equal, struct err *e)
{
    struct tokenizer c = *t;
    struct buf got = {0};
    c.n_norm = c.n_split = 0;
    int rc = tok__pre_apply(&c, name, e);
    rc = rc ? rc : tok__pieces(&c, VIEW_LIT(probe), &got);
    *equal = !rc && c.byte_level && c.whole_piece == t->whole_piece &&
             c.whole_newline == t->whole_newline && got.len == want->len &&
             !memcmp(got.p, want->p, got.len);
    for (int i = 0; i < c.n_split; i++)
        tok__re_close(c.split[i].re);
    buf_free(&got);
    return rc;
}

static int pre_find(const struct tokenizer *t, struct view *out, struct err *e)
{
    struct buf want = {0};
    bool equal = false;
    int rc = tok__pieces(t, VIEW_LIT(probe), &want);
    for (int i = 0; !rc && !equal; i++) {
        *out = tok__pre_name(i);
        if (!out->len)
            rc = err_set(e, ERR_UNSUPPORTED,
                         "the tokenizer cuts text as no pre-tokenizer of GGUF files does");
        else
            rc = pre_equal(t, &want, *out, &equal, e);
    }
    buf_free(&want);
    return rc;
}

/* ---- entries ---- */

static void put_tokens(struct gguf_kvs *k, const struct tokenizer *t, int32_t n)
{
    char name[32];
    gguf_put_list(k, KEY("tokens"), GGUF_STRING, (uint64_t)n);
    for (int32_t i = 0; i < n; i++) {
        struct view v = i < t->n_vocab ? t->entry[i] : (struct view){0};
        if (!v.len) {
            snprintf(name, sizeof name, "[PAD%d]", i);
            v = view_str(name);
        }
        gguf_put_text(&k->b, v);
    }
    gguf_put_list(k, KEY("token_type"), GGUF_I32, (uint64_t)n);
    for (int32_t i = 0; i < n; i++) {
        bool there = i < t->n_vocab && t->entry[i].len;
        int32_t type = there ? t->type[i] : TOK_T_UNUSED;
        bool byte = there && !t->byte_level && type == TOK_T_NORMAL && t->entry[i].len == 6 &&
                    view_starts(t->entry[i], "<0x") && t->entry[i].p[5] == '>';
        type = byte ? TOK_T_BYTE : type;
        if (i == t->unk && !t->byte_level && type != TOK_T_BYTE)
            type = TOK_T_UNKNOWN;
        buf_add(&k->b, &type, sizeof type);
    }
}

/* "left right", or ["left", "right"]; false: neither. */
static bool merge_parts(json_t *m, struct view *l, struct view *r)
{
    if (json_is_array(m)) {
        json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        *l = (struct view){json_string_value(a), json_string_length(a)};
        *r = (struct view){json_string_value(b), json_string_length(b)};
    } else {
        const char *s = json_string_value(m), *sp = s && *s ? strchr(s + 1, ' ') : NULL;
        *l = (struct view){s, sp ? (size_t)(sp - s) : 0};
        *r = sp ? (struct view){sp + 1, json_string_length(m) - l->len - 1} : (struct view){0};
    }
    return l->len && r->len;
}

static void put_merges(struct gguf_kvs *k, json_t *list)
{
    size_t i;
    json_t *m;
    struct view l, r;
    gguf_put_list(k, KEY("merges"), GGUF_STRING, json_array_size(list));
    json_array_foreach(list, i, m)
    {
        uint64_t len;
        if (!merge_parts(m, &l, &r)) /* the tokenizer's own reader has refused such a file */
            continue;
        len = l.len + 1 + r.len;
        buf_add(&k->b, &len, sizeof len);
        buf_add(&k->b, l.p, l.len);
        buf_char(&k->b, ' ');
        buf_add(&k->b, r.p, r.len);
    }
}

/* The earlier an entry is merged, the higher its score. */
static int put_scores(struct gguf_kvs *k, const struct tokenizer *t, int32_t n, json_t *list,
                      struct err *e)
{
    float *score = mem_calloc((size_t)n, sizeof *score);
    size_t i;
    json_t *m;
    struct view l, r;
    struct buf both = {0};
    if (!score)
        return nomem(e);
    for (int32_t id = 0; id < n; id++)
        score[id] = t->score && id < t->n_vocab ? t->score[id] : -1e9f;
    json_array_foreach(list, i, m)
    {
        if (t->score || !merge_parts(m, &l, &r))
            continue;
        buf_clear(&both);
        buf_add(&both, l.p, l.len);
        buf_add(&both, r.p, r.len);
        int32_t id = both.failed ? -1 : tok__map_find(&t->map, both.p, both.len);
        if (id >= 0 && id < n && score[id] < -1e8f)
            score[id] = -(float)i;
    }
    gguf_put_list(k, KEY("scores"), GGUF_F32, (uint64_t)n);
    buf_add(&k->b, score, (size_t)n * sizeof *score);
    free(score);
    buf_free(&both);
    return 0;
}

/* ---- ids ---- */

static void put_id(struct gguf_kvs *k, const char *key, int32_t id)
{
    if (id >= 0)
        gguf_put_u32(k, key, (uint32_t)id);
}

/* Ids that end an answer beside eos and those that their text tells: two keys are there for them. */
static void put_stops(struct gguf_kvs *k, const struct tokenizer *t)
{
    static const char *const keys[] = {KEY("eot_token_id"), KEY("eom_token_id")};
    int n = 0;
    for (int i = 0; i < t->n_stop && n < 2; i++)
        if (t->stop[i] != t->eos)
            put_id(k, keys[n++], t->stop[i]);
}

static void put_ids(struct gguf_kvs *k, const struct text_model *m)
{
    const struct tokenizer *t = m->tok;
    put_id(k, KEY("bos_token_id"), t->bos);
    put_id(k, KEY("eos_token_id"), t->eos);
    put_id(k, KEY("unknown_token_id"), t->unk);
    put_id(k, KEY("padding_token_id"), tok_find(t, m->pad_token, strlen(m->pad_token)));
    put_stops(k, t);
    gguf_put_bool(k, KEY("add_bos_token"), t->n_before && t->before[0] == t->bos);
    gguf_put_bool(k, KEY("add_eos_token"), t->n_after && t->after[0] == t->eos);
}

/* ---- the whole ---- */

/* model.merges of a tokenizer.json; *root holds it. */
static json_t *merges_open(const char *dir, json_t **root)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= (int)sizeof path)
        return NULL;
    *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
    return json_object_get(json_object_get(*root, "model"), "merges");
}

static bool has_tokenizer(const char *dir)
{
    static const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model",
                                        "spiece.model", "merges.txt"};
    char path[PATH_MAX];
    struct stat st;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (snprintf(path, sizeof path, "%s/%s", dir, names[i]) < (int)sizeof path &&
            !stat(path, &st))
            return true;
    return false;
}

static int put_model(struct gguf_kvs *k, const struct tokenizer *t, int32_t n, json_t *merges,
                     struct err *e)
{
    bool chars = !t->byte_level && !t->raw_entries && t->byte_fallback;
    const char *what = t->kind == TOK_KIND_UNIGRAM     ? "unigram"
                       : t->kind == TOK_KIND_WORDPIECE ? "WordPiece"
                       : t->word_end.len               ? "BPE with marked word ends"
                       : t->order == TOK_BY_RANK       ? "BPE by rank"
                       : !t->byte_level && !chars      ? "BPE without bytes"
                                                       : NULL;
    struct view pre = {0};
    int rc = 0;
    if (what)
        return err_set(e, ERR_UNSUPPORTED,
                       "a tokenizer of this kind (%s) can't be written to a GGUF file", what);
    if (!chars && (rc = pre_find(t, &pre, e)))
        return rc;
    gguf_put_str(k, KEY("model"), view_str(chars ? "llama" : "gpt2"));
    gguf_put_str(k, KEY("pre"), chars ? VIEW_LIT("default") : pre);
    put_tokens(k, t, n);
    if (!chars) {
        put_merges(k, merges);
        return 0;
    }
    bool prefix = false;
    for (int i = 0; i < t->n_norm; i++)
        prefix = prefix || t->norm[i].op == TOK_NORM_PREPEND ||
                 (t->norm[i].op == TOK_NORM_MARK &&
                  t->norm[i].flags & (TOK_MARK_ALWAYS | TOK_MARK_FIRST));
    gguf_put_bool(k, KEY("add_space_prefix"), prefix);
    return put_scores(k, t, n, merges, e);
}

int text_keys_write(struct gguf_kvs *k, const char *dir, int64_t n_vocab, bool *have, struct err *e)
{
    struct text_model *m = NULL;
    json_t *root = NULL, *merges;
    *have = has_tokenizer(dir);
    if (!*have)
        return 0;
    int rc = text_model_open(&m, dir, e);
    if (rc)
        return rc;
    merges = merges_open(dir, &root);
    int32_t n = m->tok->n_vocab < n_vocab ? (int32_t)n_vocab : m->tok->n_vocab;
    if (m->tok->n_vocab > n_vocab)
        rc = err_set(e, ERR_INVAL, "%s: %d tokens, but the embedding has %lld rows", dir,
                     m->tok->n_vocab, (long long)n_vocab);
    rc = rc ? rc : put_model(k, m->tok, n, merges, e);
    if (!rc) {
        put_ids(k, m);
        if (m->name && *m->name)
            gguf_put_str(k, "general.name", view_str(m->name));
        if (m->chat_template)
            gguf_put_str(k, "tokenizer.chat_template", view_str(m->chat_template));
        rc = k->b.failed ? nomem(e) : 0;
    }
    json_decref(root);
    text_model_close(m);
    return rc;
}

/* ---- the check ---- */

static int encode_equal(const struct tokenizer *a, const struct tokenizer *b, struct view s,
                        unsigned flags, struct err *e)
{
    struct tok_ids x = {0}, y = {0};
    int rc = tok_encode(a, s.p, s.len, flags, &x);
    rc = rc ? rc : tok_encode(b, s.p, s.len, flags, &y);
    if (rc)
        err_set(e, rc, "the tokenizers can't be compared: %s", err_name(rc));
    else if (x.n != y.n || memcmp(x.id, y.id, x.n * sizeof *x.id) != 0)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "a GGUF file's tokenizer would make other tokens of a text than the folder's");
    tok_ids_free(&x);
    tok_ids_free(&y);
    return rc;
}

static int entries_equal(const struct tokenizer *a, const struct tokenizer *b, struct err *e)
{
    for (int32_t i = 0; i < a->n_vocab; i++) {
        struct view x = tok_bytes(a, i, true), y = tok_bytes(b, i, true);
        if (a->entry[i].len && !view_eq(x, y))
            return err_set(
                e, ERR_UNSUPPORTED,
                "a GGUF file's tokenizer would read token %d otherwise than the folder's", i);
    }
    for (int i = 0; i < a->n_stop; i++) {
        int k = 0;
        while (k < b->n_stop && b->stop[k] != a->stop[i])
            k++;
        if (k == b->n_stop)
            return err_set(e, ERR_UNSUPPORTED,
                           "a GGUF file can't say that token %d ends an answer, too", a->stop[i]);
    }
    return 0;
}

int text_keys_check(const char *dir, const char *file, struct err *e)
{
    struct text_model *a = NULL, *b = NULL;
    static const struct view texts[] = {VIEW_LIT(probe), VIEW_LIT("a"), VIEW_LIT(" a"),
                                        VIEW_LIT("\n\n  a b")};
    int rc = text_model_open(&a, dir, e);
    rc = rc ? rc : text_model_open(&b, file, e);
    rc = rc ? rc : entries_equal(a->tok, b->tok, e);
    for (size_t i = 0; !rc && i < sizeof texts / sizeof *texts; i++) {
        rc = encode_equal(a->tok, b->tok, texts[i], 0, e);
        rc = rc ? rc : encode_equal(a->tok, b->tok, texts[i], TOK_SPECIAL | TOK_BOS_EOS, e);
    }
    text_model_close(a);
    text_model_close(b);
    return rc;
}
