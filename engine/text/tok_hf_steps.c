/* The pipeline of a tokenizer.json: normalizers, pre-tokenizers, decoders, post-processors. What is not
 * known is refused by name: a step left out would change ids silently. */
#include "engine/base/mem.h"
#include "engine/text/tok_hf_impl.h"

#define DEPTH_MAX 8 /* nested Sequences */

static int unsupported(const char *where, struct view type, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: %s '%.*s' is not supported", where,
                   (int)(type.len < 60 ? type.len : 60), type.p);
}

/* The steps of a Sequence, or NULL for a single step. */
static const json_t *steps_of(const json_t *s)
{
    static const char *const names[] = {"normalizers", "pretokenizers", "decoders", "processors"};
    for (size_t i = 0; view_is(hf__str(s, "type"), "Sequence") && i < 4; i++)
        if (json_is_array(json_object_get(s, names[i])))
            return json_object_get(s, names[i]);
    return NULL;
}

bool hf__uses(const json_t *step, const char *type)
{
    size_t i;
    json_t *s;
    if (view_is(hf__str(step, "type"), type))
        return true;
    json_array_foreach(steps_of(step), i, s) if (view_is(hf__str(s, "type"), type)) return true;
    return false;
}

/* A pattern {"String": ...} or {"Regex": ...} as regex text. */
static int pattern_text(const json_t *step, struct buf *b, struct err *e)
{
    const json_t *p = json_object_get(step, "pattern");
    struct view re = hf__str(p, "Regex"), str = hf__str(p, "String");
    buf_add(b, re.p, re.len);
    for (size_t i = 0; i < str.len; i++) {
        if ((uint8_t)str.p[i] < 0x80 && !tok__is_word((uint8_t)str.p[i]))
            buf_fmt(b, "\\x{%02X}", (unsigned)(uint8_t)str.p[i]);
        else
            buf_char(b, str.p[i]);
    }
    if (b->failed)
        return err_set(e, ERR_NOMEM, "tokenizer.json: out of memory");
    return b->len ? 0 : err_set(e, ERR_INVAL, "tokenizer.json: pattern is absent or empty");
}

/* ---- normalizers ---- */

static int b64_value(char c)
{
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(set, c) : NULL;
    return p ? (int)(p - set) : -1;
}

int tok__base64(struct view v, uint8_t *out, size_t *n)
{
    uint32_t acc = 0;
    int bits = 0;
    size_t k = 0;
    while (v.len && v.p[v.len - 1] == '=')
        v.len--;
    for (size_t i = 0; i < v.len; i++) {
        int x = b64_value(v.p[i]);
        if (x < 0)
            return ERR_PARSE;
        acc = acc << 6 | (uint32_t)x;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[k++] = (uint8_t)(acc >> bits);
        }
    }
    *n = k;
    return 0;
}

/* Precompiled: base64 of SentencePiece's map. */
static int charsmap_step(struct tokenizer *t, const json_t *step, struct tok_norm *op,
                         struct err *e)
{
    struct view v = hf__str(step, "precompiled_charsmap");
    uint8_t *blob = arena_alloc(&t->mem, v.len + 1);
    size_t n = 0;
    op->map = arena_alloc(&t->mem, sizeof *op->map);
    op->flags = 1;
    if (!blob || !op->map)
        return err_set(e, ERR_NOMEM, "tokenizer.json: out of memory");
    if (tok__base64(v, blob, &n) != 0)
        return err_set(e, ERR_PARSE, "tokenizer.json: precompiled_charsmap is no base64");
    return tok__charsmap_open(op->map, blob, n, e);
}

/* Replace: a String is matched literally, a Regex by the pattern engine. */
static int replace_step(struct tokenizer *t, const json_t *step, struct tok_norm *op, struct err *e)
{
    struct view str = hf__str(json_object_get(step, "pattern"), "String");
    if (hf__keep(t, hf__str(step, "content"), &op->b) != 0 || hf__keep(t, str, &op->a) != 0)
        return err_set(e, ERR_NOMEM, "tokenizer.json: out of memory");
    if (str.len)
        return 0;
    struct buf b = {0};
    op->op = TOK_NORM_REGEX;
    int rc = pattern_text(step, &b, e);
    rc = rc ? rc : tok__re_open(&op->re, buf_cstr(&b), b.len, e);
    buf_free(&b);
    return rc;
}

/* strip_accents null means "as lowercase". */
static int bert_step(struct tokenizer *t, const json_t *step, struct err *e)
{
    bool lower = !json_is_false(json_object_get(step, "lowercase"));
    const json_t *strip = json_object_get(step, "strip_accents");
    int rc = tok__bert_norm(t, !json_is_false(json_object_get(step, "clean_text")),
                            !json_is_false(json_object_get(step, "handle_chinese_chars")),
                            json_is_boolean(strip) ? json_is_true(strip) : lower, lower);
    return rc ? err_set(e, rc, "tokenizer.json: too many normalizers") : 0;
}

static const struct norm_name {
    const char *type;
    enum tok_norm_op op;
} norm_names[] = {
    {"NFC", TOK_NORM_NFC},         {"NFD", TOK_NORM_NFD},
    {"NFKC", TOK_NORM_NFKC},       {"NFKD", TOK_NORM_NFKD},
    {"Lowercase", TOK_NORM_LOWER}, {"StripAccents", TOK_NORM_STRIP_MARKS},
    {"Prepend", TOK_NORM_PREPEND}, {"Replace", TOK_NORM_REPLACE},
    {"Strip", TOK_NORM_STRIP},     {"Precompiled", TOK_NORM_CHARSMAP},
};

static int add_normalizer(struct tokenizer *t, const json_t *s, int depth, struct err *e)
{
    struct view type = hf__str(s, "type");
    if (!s || json_is_null(s))
        return 0;
    if (view_is(type, "Sequence") && depth < DEPTH_MAX) {
        size_t i;
        json_t *x;
        json_array_foreach(json_object_get(s, "normalizers"), i, x)
        {
            int rc = add_normalizer(t, x, depth + 1, e);
            if (rc != 0)
                return rc;
        }
        return 0;
    }
    if (view_is(type, "BertNormalizer"))
        return bert_step(t, s, e);
    for (size_t i = 0; i < sizeof norm_names / sizeof norm_names[0]; i++) {
        if (!view_is(type, norm_names[i].type))
            continue;
        struct tok_norm *op = tok__add_norm(t, norm_names[i].op);
        if (!op)
            return err_set(e, ERR_LIMIT, "tokenizer.json: too many normalizers");
        if (op->op == TOK_NORM_CHARSMAP)
            return charsmap_step(t, s, op, e);
        if (op->op == TOK_NORM_REPLACE)
            return replace_step(t, s, op, e);
        if (op->op == TOK_NORM_STRIP)
            op->flags = (json_is_false(json_object_get(s, "strip_left")) ? 0u : 1u) |
                        (json_is_false(json_object_get(s, "strip_right")) ? 0u : 2u);
        if (op->op == TOK_NORM_PREPEND && hf__keep(t, hf__str(s, "prepend"), &op->a) != 0)
            return err_set(e, ERR_NOMEM, "tokenizer.json: out of memory");
        return 0;
    }
    return unsupported("normalizer", type, e);
}

/* ---- pre-tokenizers ---- */

static int split_mode(const json_t *s, enum tok_split_mode *m, bool *repeat, struct err *e)
{
    struct view v = hf__str(s, "behavior");
    *repeat = view_is(v, "Contiguous");
    if (v.len == 0 || *repeat || view_is(v, "Isolated"))
        *m = TOK_SPLIT_ISOLATE;
    else if (view_is(v, "Removed"))
        *m = TOK_SPLIT_REMOVE;
    else if (view_is(v, "MergedWithPrevious"))
        *m = TOK_SPLIT_PREV;
    else if (view_is(v, "MergedWithNext"))
        *m = TOK_SPLIT_NEXT;
    else
        return unsupported("split behavior", v, e);
    return 0;
}

/* Split by `re`, or by the step's own pattern when re is NULL. */
static int add_pattern(struct tokenizer *t, const json_t *s, const char *re, struct err *e)
{
    enum tok_split_mode mode = TOK_SPLIT_ISOLATE;
    bool repeat, invert = json_is_true(json_object_get(s, "invert"));
    struct buf b = {0};
    int rc = split_mode(s, &mode, &repeat, e);
    if (rc != 0)
        return rc;
    if (invert && mode != TOK_SPLIT_ISOLATE && mode != TOK_SPLIT_REMOVE)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: inverted split that merges");
    if (repeat)
        buf_str(&b, "(?:");
    if (re)
        buf_str(&b, re);
    else
        rc = pattern_text(s, &b, e);
    if (repeat)
        buf_str(&b, ")+");
    if (rc == 0 && memchr(buf_cstr(&b), 0, b.len))
        rc = err_set(e, ERR_UNSUPPORTED, "tokenizer.json: pattern with a NUL character");
    if (rc == 0)
        rc = tok__add_split(t, buf_cstr(&b), mode, invert, e);
    buf_free(&b);
    return rc;
}

/* A mark (Metaspace's U+2581, ByteLevel's space) in front of segments. */
static int add_mark(struct tokenizer *t, enum tok_norm_op op, struct view mark, unsigned flags,
                    struct err *e)
{
    struct tok_norm *n = tok__add_norm(t, op);
    if (!n)
        return err_set(e, ERR_LIMIT, "tokenizer.json: too many normalizers");
    n->flags = flags;
    return hf__keep(t, mark, &n->a) == 0 ? 0
                                         : err_set(e, ERR_NOMEM, "tokenizer.json: out of memory");
}

/* The mark and how it is put in front: `prepend_scheme`, or older files' add_prefix_space. */
static unsigned mark_flags(const json_t *s)
{
    struct view scheme = hf__str(s, "prepend_scheme");
    if (view_is(scheme, "never") ||
        (!scheme.len && json_is_false(json_object_get(s, "add_prefix_space"))))
        return 0;
    return TOK_MARK_ONCE | (view_is(scheme, "first") ? TOK_MARK_FIRST : TOK_MARK_ALWAYS);
}

static int add_metaspace(struct tokenizer *t, const json_t *s, bool words, struct err *e)
{
    struct view mark = hf__str(s, "replacement");
    if (mark.len && !view_is(mark, TOK_MARK))
        return unsupported("Metaspace replacement", mark, e);
    int rc =
        add_mark(t, words ? TOK_NORM_WORDS : TOK_NORM_MARK, VIEW_LIT(TOK_MARK), mark_flags(s), e);
    if (rc != 0 || json_is_false(json_object_get(s, "split")))
        return rc;
    return tok__add_split(t, TOK_MARK, TOK_SPLIT_NEXT, false, e);
}

/* Only the cut and the space: letters for bytes are the model's concern here. */
static int add_byte_level(struct tokenizer *t, const json_t *s, struct err *e)
{
    int rc = 0;
    /* cuts that came before would each get the space: no known file does that */
    if (json_is_true(json_object_get(s, "add_prefix_space"))) {
        if (t->n_split)
            return err_set(e, ERR_UNSUPPORTED,
                           "tokenizer.json: ByteLevel add_prefix_space after a split");
        rc = add_mark(t, TOK_NORM_MARK, VIEW_LIT(" "), TOK_MARK_ALWAYS | TOK_MARK_ONCE, e);
    }
    if (rc == 0 && !json_is_false(json_object_get(s, "use_regex")))
        rc = tok__add_split(t,
                            "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                            "\\s+(?!\\S)|\\s+",
                            TOK_SPLIT_ISOLATE, false, e);
    return rc;
}

static int add_pre_list(struct tokenizer *t, const json_t *s, int depth, struct err *e);

static int add_pre(struct tokenizer *t, const json_t *s, int depth, struct err *e)
{
    struct view type = hf__str(s, "type");
    if (!s || json_is_null(s))
        return 0;
    if (view_is(type, "Sequence") && depth < DEPTH_MAX)
        return add_pre_list(t, json_object_get(s, "pretokenizers"), depth, e);
    if (view_is(type, "ByteLevel"))
        return add_byte_level(t, s, e);
    if (view_is(type, "Metaspace"))
        return add_metaspace(t, s, false, e);
    if (view_is(type, "Split"))
        return add_pattern(t, s, NULL, e);
    if (view_is(type, "Digits"))
        return tok__add_split(
            t, json_is_true(json_object_get(s, "individual_digits")) ? "\\p{N}" : "\\p{N}+",
            TOK_SPLIT_ISOLATE, false, e);
    if (view_is(type, "Punctuation"))
        return add_pattern(t, s, "[\\p{P}$+<=>^`|~]", e);
    if (view_is(type, "WhitespaceSplit"))
        return tok__add_split(t, "\\s+", TOK_SPLIT_REMOVE, false, e);
    if (view_is(type, "Whitespace"))
        return tok__add_split(t, "\\w+|[^\\w\\s]+", TOK_SPLIT_REMOVE, true, e);
    if (view_is(type, "BertPreTokenizer"))
        return tok__bert_split(t, e);
    return unsupported("pre_tokenizer", type, e);
}

static int add_pre_list(struct tokenizer *t, const json_t *list, int depth, struct err *e)
{
    size_t i;
    json_t *s;
    int rc = 0;
    json_array_foreach(list, i, s)
    {
        json_t *next = json_array_get(list, i + 1);
        if (view_is(hf__str(s, "type"), "WhitespaceSplit") &&
            view_is(hf__str(next, "type"), "Metaspace")) {
            rc = add_metaspace(t, next, true, e);
            i++;
        } else {
            rc = add_pre(t, s, depth + 1, e);
        }
        if (rc != 0)
            break;
    }
    return rc;
}

/* ---- decoders and post-processors ---- */

static int read_decoder(struct tokenizer *t, const json_t *s, int depth, struct err *e)
{
    struct view type = hf__str(s, "type");
    if (!s || json_is_null(s) || view_is(type, "ByteLevel") || view_is(type, "Fuse") ||
        view_is(type, "BPEDecoder"))
        return 0;
    if (view_is(type, "Sequence") && depth < DEPTH_MAX) {
        size_t i;
        json_t *x;
        int rc = 0;
        json_array_foreach(json_object_get(s, "decoders"), i, x) rc =
            rc ? rc : read_decoder(t, x, depth + 1, e);
        return rc;
    }
    if (view_is(type, "WordPiece")) {
        t->strip_first = true;
        t->word_glue = !json_is_false(json_object_get(s, "cleanup"));
    } else if (view_is(type, "Metaspace")) {
        t->strip_first = mark_flags(s) != 0;
    } else if (view_is(type, "Strip")) {
        t->strip_first = json_integer_value(json_object_get(s, "start")) == 1;
    } else if (view_is(type, "ByteFallback")) {
        t->fffd_per_byte = true;
    } else if (!view_is(type, "Replace")) {
        return unsupported("decoder", type, e);
    }
    return 0;
}

static void wrap_add(int32_t *list, int *n, json_int_t id, int32_t n_vocab)
{
    if (*n < TOK_WRAP_MAX && id >= 0 && id < n_vocab)
        list[(*n)++] = (int32_t)id;
}

/* Special tokens of the single-text template, before and after the text. */
static void template_ids(struct tokenizer *t, const json_t *s)
{
    size_t i, k;
    json_t *x, *id;
    bool after = false;
    json_array_foreach(json_object_get(s, "single"), i, x)
    {
        const json_t *sp = json_object_get(x, "SpecialToken");
        after |= json_object_get(x, "Sequence") != NULL;
        struct view name = hf__str(sp, "id");
        const json_t *def =
            json_object_getn(json_object_get(s, "special_tokens"), name.p, name.len);
        json_array_foreach(json_object_get(def, "ids"), k, id)
            wrap_add(after ? t->after : t->before, after ? &t->n_after : &t->n_before,
                     json_integer_value(id), t->n_vocab);
    }
}

/* Ids around a prompt. */
static int read_post(struct tokenizer *t, const json_t *s, int depth, struct err *e)
{
    struct view type = hf__str(s, "type");
    if (!s || json_is_null(s) || view_is(type, "ByteLevel"))
        return 0;
    if (view_is(type, "Sequence") && depth < DEPTH_MAX) {
        size_t i;
        json_t *x;
        int rc = 0;
        json_array_foreach(json_object_get(s, "processors"), i, x) rc =
            rc ? rc : read_post(t, x, depth + 1, e);
        return rc;
    }
    if (view_is(type, "TemplateProcessing")) {
        template_ids(t, s);
        return 0;
    }
    if (view_is(type, "RobertaProcessing") || view_is(type, "BertProcessing")) {
        json_t *cls = json_array_get(json_object_get(s, "cls"), 1);
        json_t *sep = json_array_get(json_object_get(s, "sep"), 1);
        wrap_add(t->before, &t->n_before, json_is_integer(cls) ? json_integer_value(cls) : -1,
                 t->n_vocab);
        wrap_add(t->after, &t->n_after, json_is_integer(sep) ? json_integer_value(sep) : -1,
                 t->n_vocab);
        return 0;
    }
    return unsupported("post_processor", type, e);
}

int hf__steps(struct tokenizer *t, const json_t *root, struct err *e)
{
    int rc = add_normalizer(t, json_object_get(root, "normalizer"), 0, e);
    rc = rc ? rc : add_pre(t, json_object_get(root, "pre_tokenizer"), 0, e);
    rc = rc ? rc : read_decoder(t, json_object_get(root, "decoder"), 0, e);
    return rc ? rc : read_post(t, json_object_get(root, "post_processor"), 0, e);
}
