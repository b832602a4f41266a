/* Tokenizer from a Hugging Face tokenizer.json: vocabulary, added tokens, merges, and the ids that the
 * post-processor puts around a prompt. Names of bos, eos and unk come from tokenizer_config.json beside
 * it. The pipeline's steps are in tok_hf_steps.c. Truncation and padding are the caller's business. */
#include <math.h>

#include "engine/base/mem.h"
#include "engine/text/tok_hf_impl.h"

static int nomem(struct err *e)
{
    return err_set(e, ERR_NOMEM, "tokenizer.json: out of memory");
}

json_t *hf__load(const char *path, json_error_t *e)
{
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, e);
    if (!j && json_error_code(e) == json_error_numeric_overflow)
        j = json_load_file(path, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, e);
    return j;
}

struct view hf__str(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_string(v))
        return (struct view){"", 0};
    return (struct view){json_string_value(v), json_string_length(v)};
}

/* Arena copy of a JSON string: the tree goes away after open. */
int hf__keep(struct tokenizer *t, struct view v, struct view *out)
{
    char *p = arena_copy(&t->mem, v.p, v.len);
    if (!p)
        return ERR_NOMEM;
    *out = (struct view){p, v.len};
    return 0;
}

/* ---- vocabulary ---- */

static int id_of(const json_t *v, const char *what, int64_t *max, struct err *e)
{
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id >= TOK_VOCAB_MAX)
        return err_set(e, ERR_INVAL, "tokenizer.json: %s: id is no number from 0 to %d", what,
                       TOK_VOCAB_MAX - 1);
    if (id > *max)
        *max = id;
    return 0;
}

/* Highest id of vocabulary and added tokens, and the bytes of all texts. */
static int measure(json_t *root, json_t *vocab, int64_t *max, size_t *bytes, struct err *e)
{
    const char *key;
    json_t *v;
    size_t i, len;
    int rc = 0;
    *max = -1;
    *bytes = 0;
    if (json_is_array(vocab)) {
        *max = (int64_t)json_array_size(vocab) - 1;
        json_array_foreach(vocab, i, v) *bytes += json_string_length(json_array_get(v, 0));
    } else if (json_is_object(vocab)) {
        json_object_keylen_foreach(vocab, key, len, v)
        {
            if ((rc = id_of(v, "model.vocab", max, e)) != 0)
                return rc;
            *bytes += len;
        }
    } else {
        return err_set(e, ERR_INVAL, "tokenizer.json: model.vocab is absent or of another type");
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, v)
    {
        rc = id_of(json_object_get(v, "id"), "added_tokens", max, e);
        if (rc != 0)
            return rc;
        *bytes += json_string_length(json_object_get(v, "content"));
    }
    return 0;
}

/* Copy to the pool, which measure() has sized. */
static struct view pooled(char **pool, const char *p, size_t n)
{
    struct view v = {*pool, n};
    memcpy(*pool, p, n);
    *pool += n;
    return v;
}

/* Unigram: [[text, score], ...], the index is the id. */
static int fill_list(struct tokenizer *t, json_t *vocab, char **pool, struct err *e)
{
    size_t i;
    json_t *v;
    t->score = arena_array(&t->mem, (size_t)t->n_vocab, sizeof *t->score);
    if (!t->score)
        return nomem(e);
    json_array_foreach(vocab, i, v)
    {
        json_t *text = json_array_get(v, 0), *score = json_array_get(v, 1);
        if (!json_is_string(text) || !json_is_number(score) || !isfinite(json_number_value(score)))
            return err_set(e, ERR_INVAL, "tokenizer.json: model.vocab[%zu] is no [text, score]", i);
        t->entry[i] = pooled(pool, json_string_value(text), json_string_length(text));
        t->score[i] = (float)json_number_value(score);
    }
    return 0;
}

/* BPE and WordPiece: {text: id}; ids may leave gaps, which stay empty entries. */
static void fill_map(struct tokenizer *t, json_t *vocab, char **pool)
{
    const char *key;
    size_t len;
    json_t *v;
    json_object_keylen_foreach(vocab, key, len, v) t->entry[json_integer_value(v)] =
        pooled(pool, key, len);
}

/* Added tokens replace what the vocabulary has under their id. */
static int fill_added(struct tokenizer *t, json_t *root, char **pool, struct err *e)
{
    size_t i;
    json_t *a;
    json_array_foreach(json_object_get(root, "added_tokens"), i, a)
    {
        json_int_t id = json_integer_value(json_object_get(a, "id"));
        json_t *text = json_object_get(a, "content");
        if (!json_is_string(text))
            return err_set(e, ERR_INVAL, "tokenizer.json: added_tokens[%zu].content is no text", i);
        t->entry[id] = pooled(pool, json_string_value(text), json_string_length(text));
        t->type[id] = json_is_true(json_object_get(a, "special")) ? TOK_T_CONTROL : TOK_T_USER;
        unsigned strip = (json_is_true(json_object_get(a, "lstrip")) ? TOK_STRIP_LEFT : 0u) |
                         (json_is_true(json_object_get(a, "rstrip")) ? TOK_STRIP_RIGHT : 0u) |
                         (json_is_true(json_object_get(a, "single_word")) ? TOK_STRIP_WORD : 0u);
        if (strip && !t->strip && !(t->strip = arena_alloc(&t->mem, (size_t)t->n_vocab)))
            return nomem(e);
        if (strip)
            t->strip[id] = (uint8_t)strip;
    }
    return 0;
}

/* ---- models ---- */

static int unk_by_text(struct tokenizer *t, const json_t *model, struct err *e)
{
    struct view unk = hf__str(model, "unk_token");
    if (!unk.len)
        return 0;
    t->unk = tok__map_find(&t->map, unk.p, unk.len);
    return t->unk >= 0 ? 0
                       : err_set(e, ERR_INVAL,
                                 "tokenizer.json: model.unk_token '%.60s' is no entry", unk.p);
}

/* "left right" in older files, ["left", "right"] in newer ones. */
static int load_merges(struct tokenizer *t, const json_t *model, struct err *e)
{
    const json_t *list = json_object_get(model, "merges");
    size_t i;
    json_t *m;
    if (!json_is_array(list))
        return err_set(e, ERR_INVAL, "tokenizer.json: model.merges is absent or no list");
    if (tok__pairs_init(&t->pairs, json_array_size(list)) != 0)
        return nomem(e);
    json_array_foreach(list, i, m)
    {
        struct view l, r;
        if (json_is_array(m)) {
            json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
            l = (struct view){json_string_value(a), json_string_length(a)};
            r = (struct view){json_string_value(b), json_string_length(b)};
        } else {
            const char *s = json_string_value(m), *sp = s && *s ? strchr(s + 1, ' ') : NULL;
            l = (struct view){s, sp ? (size_t)(sp - s) : 0};
            r = sp ? (struct view){sp + 1, json_string_length(m) - l.len - 1} : (struct view){0};
        }
        if (!l.len || !r.len)
            return err_set(e, ERR_PARSE, "tokenizer.json: model.merges[%zu] has no two parts", i);
        int rc = tok__add_merge(t, (uint32_t)i, l, r, e);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int load_bpe(struct tokenizer *t, const json_t *root, const json_t *model, struct err *e)
{
    if (hf__str(model, "continuing_subword_prefix").len)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.json: model.continuing_subword_prefix is not supported");
    t->order = TOK_BY_MERGES;
    t->byte_level = hf__uses(json_object_get(root, "pre_tokenizer"), "ByteLevel");
    t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    t->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    t->whole_piece = json_is_true(json_object_get(model, "ignore_merges"));
    int rc = hf__keep(t, hf__str(model, "end_of_word_suffix"), &t->word_end);
    if (rc != 0)
        return nomem(e);
    rc = tok__index(t, e);
    rc = rc ? rc : unk_by_text(t, model, e);
    return rc ? rc : load_merges(t, model, e);
}

static int load_wordpiece(struct tokenizer *t, const json_t *model, struct err *e)
{
    struct view cont = hf__str(model, "continuing_subword_prefix");
    if (cont.len && !view_is(cont, "##"))
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.json: model.continuing_subword_prefix '%.20s' is not supported",
                       cont.p);
    const json_t *max = json_object_get(model, "max_input_chars_per_word");
    if (json_is_integer(max) && json_integer_value(max) > 0 && json_integer_value(max) < 10000)
        t->max_word = (int)json_integer_value(max);
    t->node_cont = UINT32_MAX;
    int rc = tok__index(t, e);
    return rc ? rc : unk_by_text(t, model, e);
}

static int load_unigram(struct tokenizer *t, const json_t *model, struct err *e)
{
    const json_t *unk = json_object_get(model, "unk_id");
    if (json_is_integer(unk)) {
        if (json_integer_value(unk) < 0 || json_integer_value(unk) >= t->n_vocab)
            return err_set(e, ERR_INVAL, "tokenizer.json: model.unk_id is outside the vocabulary");
        t->unk = (int32_t)json_integer_value(unk);
        if (t->type[t->unk] == TOK_T_NORMAL)
            t->type[t->unk] = TOK_T_UNKNOWN;
    }
    t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    t->fuse_unk = true;
    return tok__index(t, e);
}

/* *out is set as soon as there is something to close. */
static int load_model(struct tokenizer **out, json_t *root, struct err *e)
{
    json_t *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab");
    struct view type = hf__str(model, "type");
    if (!type.len && json_object_get(model, "merges"))
        type = VIEW_LIT("BPE");
    bool bpe = view_is(type, "BPE"), word = view_is(type, "WordPiece");
    if (!bpe && !word && !view_is(type, "Unigram"))
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: model.type '%.60s' is not supported",
                       type.p);
    if (json_is_array(vocab) == (bpe || word))
        return err_set(e, ERR_INVAL, "tokenizer.json: model.vocab has another type");
    int64_t max;
    size_t bytes;
    int rc = measure(root, vocab, &max, &bytes, e);
    struct tokenizer *t = NULL;
    if (rc == 0)
        rc = tok__new(&t,
                      bpe    ? TOK_KIND_BPE
                      : word ? TOK_KIND_WORDPIECE
                             : TOK_KIND_UNIGRAM,
                      max + 1, e);
    if (rc != 0)
        return rc;
    *out = t;
    char *pool = arena_alloc(&t->mem, bytes + 1);
    if (!pool)
        return nomem(e);
    if (json_is_array(vocab))
        rc = fill_list(t, vocab, &pool, e);
    else
        fill_map(t, vocab, &pool);
    rc = rc ? rc : fill_added(t, root, &pool, e);
    if (rc == 0)
        rc = bpe    ? load_bpe(t, root, model, e)
             : word ? load_wordpiece(t, model, e)
                    : load_unigram(t, model, e);
    return rc;
}

/* ---- tokenizer_config.json ---- */

/* Id of a token named in the config, as text or as an object with `content`. */
static int32_t config_id(const struct tokenizer *t, const json_t *cfg, const char *key)
{
    const json_t *v = json_object_get(cfg, key);
    struct view s = json_is_object(v) ? hf__str(v, "content") : hf__str(cfg, key);
    return s.len ? tok__map_find(&t->map, s.p, s.len) : -1;
}

/* tokenizer_config.json beside .../tokenizer.json; NULL when absent or unreadable. */
static json_t *load_config(const char *path)
{
    static const char from[] = "tokenizer.json";
    size_t n = strlen(path), k = sizeof from - 1;
    struct buf b = {0};
    if (n < k || strcmp(path + n - k, from) != 0)
        return NULL;
    buf_add(&b, path, n - k);
    buf_str(&b, "tokenizer_config.json");
    json_error_t je;
    json_t *cfg = b.failed ? NULL : hf__load(buf_cstr(&b), &je);
    buf_free(&b);
    return cfg;
}

/* bos, eos, unk by name; add_bos_token counts only where the post-processor adds nothing itself. */
static void apply_config(struct tokenizer *t, const json_t *cfg)
{
    t->bos = config_id(t, cfg, "bos_token");
    t->eos = config_id(t, cfg, "eos_token");
    if (t->unk < 0)
        t->unk = config_id(t, cfg, "unk_token");
    if (t->bos < 0 && t->n_before)
        t->bos = t->before[0];
    if (t->n_before == 0 && t->bos >= 0 && json_is_true(json_object_get(cfg, "add_bos_token")))
        t->before[t->n_before++] = t->bos;
    if (t->n_after == 0 && t->eos >= 0 && json_is_true(json_object_get(cfg, "add_eos_token")))
        t->after[t->n_after++] = t->eos;
    t->adds_bos = t->n_before && t->before[0] == t->bos;
    tok__add_stop(t, t->eos);
}

int hf__open(struct tokenizer **out, json_t *root, const json_t *cfg, struct err *e)
{
    struct tokenizer *t = NULL;
    int rc = load_model(&t, root, e);
    rc = rc ? rc : hf__steps(t, root, e);
    if (rc == 0) {
        apply_config(t, cfg);
        rc = tok__finish(t, e);
    }
    if (rc != 0) {
        tok_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int tok_open_hf(struct tokenizer **out, const char *path, struct err *e)
{
    json_error_t je;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &je);
    if (!root)
        return json_error_code(&je) == json_error_cannot_open_file
                   ? err_set(e, ERR_NOTFOUND, "%s: cannot be opened", path)
                   : err_set(e, ERR_PARSE, "%s: line %d: %s", path, je.line, je.text);
    json_t *cfg = load_config(path);
    int rc = hf__open(out, root, cfg, e);
    json_decref(cfg);
    json_decref(root);
    if (rc != 0)
        err_prefix(e, "%s", path);
    return rc;
}
