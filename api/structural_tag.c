/* Structural tags: free text with islands of a given form, as xgrammar describes them and vLLM and SGLang take them. Two
 * shapes: {"structures": [{begin, schema, end}], "triggers": [...]}, and {"format": {...}}, a tree of formats.
 *
 * Free text is any text without a trigger in it; where a trigger comes, one of the tags that begin with it does. */
#include <stdlib.h>
#include <string.h>

#include "api/structured.h"
#include "engine/base/mem.h"

enum { LIST_MAX = 256 };

struct stag {
    struct gr_builder *b;
    const struct api_model *m;
    struct schema_err *e;
    const char *const
        *end;     /* what ends the tag around, so that no text in it holds it; NULL-terminated */
    char at[160]; /* where we are, for messages */
};

/* ---- errors and paths ---- */

static gr_expr bad(struct stag *s, const char *sub, const char *why)
{
    if (!*s->e->where)
        snprintf(s->e->where, sizeof s->e->where, "%.100s%s%s", s->at, *s->at && *sub ? "." : "",
                 sub);
    return gr_fail(s->b, ERR_INVAL, "%s", why);
}

/* Go down to a member (i < 0) or an element of one; returns the length to come back to. */
static size_t go(struct stag *s, const char *key, long i)
{
    size_t n = strlen(s->at);
    snprintf(s->at + n, sizeof s->at - n, i < 0 ? "%s%s" : "%s%s[%ld]", n ? "." : "", key, i);
    return n;
}

static void back(struct stag *s, size_t n)
{
    s->at[n] = 0;
}

static const char *text_of(struct stag *s, const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    if (!text)
        bad(s, key, "expected a string");
    return text;
}

/* A list of texts (of none where it may lack) as a NULL-terminated array that the caller frees; NULL after a failure. */
static const char **texts_of(struct stag *s, const json_t *o, const char *key, bool may_lack)
{
    const json_t *v = json_object_get(o, key);
    size_t n = json_is_array(v) ? json_array_size(v) : 0;
    bool ok = json_is_array(v) ? (n > 0 || may_lack) && n <= LIST_MAX : may_lack && !v;
    for (size_t i = 0; ok && i < n; i++)
        ok = json_string_length(json_array_get(v, i)) > 0;
    if (!ok) {
        bad(s, key, "expected an array of 1 to 256 non-empty strings");
        return NULL;
    }
    const char **list = mem_alloc((n + 1) * sizeof *list);
    if (!list) {
        gr_fail(s->b, ERR_NOMEM, "no memory");
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        list[i] = json_string_value(json_array_get(v, i));
    list[n] = NULL;
    return list;
}

static bool flag(struct stag *s, const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_boolean(v) && !json_is_null(v))
        bad(s, key, "expected a boolean");
    return json_is_true(v);
}

/* ---- text ---- */

/* Any text that has none of these in it. Control tokens are in no text, so they need no look-out. */
static gr_expr text_without(struct stag *s, const char *const *one, const char *const *two)
{
    struct view stop[2 * LIST_MAX];
    size_t n = 0;
    for (int k = 0; k < 2; k++)
        for (const char *const *p = k ? two : one; p && *p && n < 2 * LIST_MAX; p++)
            if (!gram_mark_is_control(s->m, *p))
                stop[n++] = view_str(*p);
    return gr_text_until(s->b, stop, n, false);
}

static gr_expr add(struct stag *s, const json_t *f);

static gr_expr add_schema(struct stag *s, const json_t *o, const char *key)
{
    struct schema_opts opts = {0};
    struct schema_err e = {0};
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return schema_any(s->b, &opts);
    if (!json_is_object(v) && !json_is_boolean(v))
        return bad(s, key, "expected a JSON schema");
    gr_expr x = schema_add(s->b, v, &opts, &e);
    if (x == GR_FAIL && !*s->e->where && e.err.code) {
        size_t n = go(s, key, -1);
        snprintf(s->e->where, sizeof s->e->where, "%.90s%s%.60s", s->at, *e.where ? "." : "",
                 e.where);
        back(s, n);
        s->e->err = e.err;
    }
    return x;
}

/* ---- tags ---- */

/* begin, content, one of the ends. The older shape has a schema for its content. */
static gr_expr add_tag(struct stag *s, const json_t *t, bool old)
{
    const char *begin = json_is_object(t) ? text_of(s, t, "begin") : NULL;
    const json_t *end = json_object_get(t, "end");
    const char *one[2] = {json_string_value(end), NULL}, **many = NULL;
    const char *const *outer = s->end, *const *ends = one;
    if (!begin)
        return json_is_object(t) ? GR_FAIL : bad(s, "", "expected an object");
    if (json_is_array(end)) {
        ends = many = texts_of(s, t, "end", false);
        if (!many)
            return GR_FAIL;
    } else if (!one[0]) {
        return bad(s, "end", "expected a string");
    }
    if (*ends && **ends)
        s->end = ends;
    gr_expr inside, close = gr_never(s->b);
    if (old) {
        inside = add_schema(s, t, "schema");
    } else {
        size_t n = go(s, "content", -1);
        inside = add(s, json_object_get(t, "content"));
        back(s, n);
    }
    for (size_t i = 0; ends[i]; i++)
        close = gr_alt2(s->b, close, gram_mark(s->b, s->m, ends[i]));
    s->end = outer;
    free(many);
    return gr_seq2(s->b, gr_seq2(s->b, gram_mark(s->b, s->m, begin), inside), close);
}

/* One of a list of tags. `triggers`: each has to begin with one of these. */
static gr_expr any_tag(struct stag *s, const json_t *o, const char *key,
                       const char *const *triggers)
{
    const json_t *list = json_object_get(o, key);
    size_t n_tag = json_array_size(list);
    gr_expr out = gr_never(s->b);
    if (n_tag < 1 || n_tag > LIST_MAX)
        return bad(s, key, "expected an array of 1 to 256 tags");
    for (size_t i = 0; i < n_tag; i++) {
        const json_t *t = json_array_get(list, i);
        const char *begin = json_string_value(json_object_get(t, "begin"));
        size_t n = go(s, key, (long)i);
        bool fits = !triggers || !begin;
        for (const char *const *p = triggers; p && *p && !fits; p++)
            fits = strncmp(begin, *p, strlen(*p)) == 0;
        gr_expr x = fits ? add_tag(s, t, strcmp(key, "structures") == 0)
                         : bad(s, "begin", "it begins with none of the triggers");
        out = gr_alt2(s->b, out, x);
        back(s, n);
    }
    return out;
}

static gr_expr triggered(struct stag *s, const json_t *o, const char *key)
{
    struct gr_builder *b = s->b;
    const char **triggers = texts_of(s, o, "triggers", false);
    const char **no = triggers ? texts_of(s, o, "excludes", true) : NULL;
    gr_expr out = GR_FAIL;
    if (no) {
        bool must = flag(s, o, "at_least_one"), once = flag(s, o, "stop_after_first");
        const char *all[2 * LIST_MAX + 1];
        size_t n = 0;
        for (size_t i = 0; triggers[i]; i++)
            all[n++] = triggers[i];
        for (size_t i = 0; no[i]; i++)
            all[n++] = no[i];
        all[n] = NULL;
        gr_expr tag = any_tag(s, o, key, triggers), text = text_without(s, all, s->end);
        gr_expr more = gr_repeat(b, gr_seq2(b, tag, text), 0, GR_INF);
        if (once)
            out = must ? tag : gr_seq2(b, text, gr_opt(b, tag));
        else
            out = must ? gr_seq2(b, tag, gr_seq2(b, text, more)) : gr_seq2(b, text, more);
    }
    free(no);
    free(triggers);
    return out;
}

static gr_expr separated(struct stag *s, const json_t *o)
{
    struct gr_builder *b = s->b;
    const char *sep = text_of(s, o, "separator");
    bool must = flag(s, o, "at_least_one"), once = flag(s, o, "stop_after_first");
    gr_expr tag = sep ? any_tag(s, o, "tags", NULL) : GR_FAIL;
    if (tag == GR_FAIL)
        return GR_FAIL;
    gr_expr next = gr_seq2(b, gram_mark(b, s->m, sep), tag);
    gr_expr all = once ? tag : gr_seq2(b, tag, gr_repeat(b, next, 0, GR_INF));
    return must ? all : gr_opt(b, all);
}

/* ---- formats ---- */

/* The end around bounds texts at the end of a sequence only. */
static gr_expr several(struct stag *s, const json_t *o, bool sequence)
{
    const json_t *list = json_object_get(o, "elements");
    const char *const *end = s->end;
    size_t n_el = json_array_size(list);
    if (n_el < 1 || n_el > LIST_MAX)
        return bad(s, "elements", "expected an array of 1 to 256 formats");
    gr_expr out = sequence ? gr_empty(s->b) : gr_never(s->b);
    for (size_t i = 0; i < n_el; i++) {
        size_t n = go(s, "elements", (long)i);
        s->end = sequence && i + 1 < n_el ? NULL : end;
        gr_expr x = add(s, json_array_get(list, i));
        out = sequence ? gr_seq2(s->b, out, x) : gr_alt2(s->b, out, x);
        back(s, n);
    }
    s->end = end;
    return out;
}

static gr_expr repeated(struct stag *s, const json_t *o, const int32_t range[2])
{
    size_t n = go(s, "content", -1);
    gr_expr x = add(s, json_object_get(o, "content"));
    back(s, n);
    return gr_repeat(s->b, x, range[0], range[1]);
}

static gr_expr add_text(struct stag *s, const json_t *o)
{
    const char **no = texts_of(s, o, "excludes", true);
    gr_expr x = no ? text_without(s, no, s->end) : GR_FAIL;
    free(no);
    return x;
}

static gr_expr add_const(struct stag *s, const json_t *o)
{
    const char *text = text_of(s, o, "value");
    return text ? gram_mark(s->b, s->m, text) : GR_FAIL;
}

static gr_expr add_regex(struct stag *s, const json_t *o)
{
    const char *text = text_of(s, o, "pattern");
    return text ? gr_regex(s->b, view_str(text), GR_UTF8, 0) : GR_FAIL;
}

static gr_expr add_grammar(struct stag *s, const json_t *o)
{
    const char *text = text_of(s, o, "grammar");
    return text ? gr_grammar_text(s->b, view_str(text)) : GR_FAIL;
}

static gr_expr add_json(struct stag *s, const json_t *o)
{
    const char *style = json_string_value(json_object_get(o, "style"));
    if (style && strcmp(style, "json") != 0)
        return bad(s, "style", "only 'json' is supported");
    return add_schema(s, o, "json_schema");
}

static gr_expr add(struct stag *s, const json_t *f)
{
    static const int32_t opt[2] = {0, 1}, star[2] = {0, GR_INF}, plus[2] = {1, GR_INF};
    static const struct {
        const char *name;
        gr_expr (*add)(struct stag *s, const json_t *o);
    } plain[] = {{"json_schema", add_json}, {"const_string", add_const},
                 {"any_text", add_text},    {"regex", add_regex},
                 {"grammar", add_grammar},  {"tags_with_separator", separated}};
    const char *type = json_string_value(json_object_get(f, "type"));
    if (!type)
        return bad(s, json_is_object(f) ? "type" : "", "expected a format with a 'type'");
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].name) == 0)
            return plain[i].add(s, f);
    if (strcmp(type, "sequence") == 0 || strcmp(type, "or") == 0)
        return several(s, f, *type == 's');
    if (strcmp(type, "tag") == 0)
        return add_tag(s, f, false);
    if (strcmp(type, "triggered_tags") == 0)
        return triggered(s, f, "tags");
    if (strcmp(type, "optional") == 0)
        return repeated(s, f, opt);
    if (strcmp(type, "star") == 0 || strcmp(type, "plus") == 0)
        return repeated(s, f, *type == 's' ? star : plus);
    return bad(s, "type", "this type of format is not supported");
}

gr_expr structural_tag_add(struct gr_builder *b, const struct api_model *m, const json_t *tag,
                           struct schema_err *e)
{
    struct stag s = {.b = b, .m = m, .e = e};
    if (json_object_get(tag, "structures"))
        return triggered(&s, tag, "structures");
    go(&s, "format", -1);
    return add(&s, json_object_get(tag, "format"));
}
