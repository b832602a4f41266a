/* Structured output: OpenAI's response_format, vLLM's structured_outputs and guided_*, llama-server's grammar and
 * json_schema, SGLang's regex and ebnf. One of them a request. */
#include "api/structured.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

#define CHOICES_MAX 10000

enum kind { NOTHING, JSON_SCHEMA, JSON_ANY, REGEX, CHOICE, GRAMMAR, TAG };

struct wanted {
    enum kind kind;
    const char *field; /* of the request that asked */
    const json_t *v;   /* schema, text or list */
    char param[80];    /* where v stands */
    json_t *parsed;    /* a schema that came as a text, or NULL */
    struct schema_opts o;
    const struct api_model *m;
    const struct gen *think_first; /* what may stand before it; NULL: nothing */
};

static gr_expr language(struct gr_builder *b, const struct wanted *w, struct schema_err *e)
{
    struct view text = {json_string_value(w->v), json_string_length(w->v)};
    gr_expr alt = GR_FAIL;
    switch (w->kind) {
    case JSON_SCHEMA:
        return schema_add(b, w->v, &w->o, e);
    case JSON_ANY:
        return schema_any_object(b, &w->o);
    case REGEX:
        return gr_regex(b, text, GR_UTF8, 0);
    case GRAMMAR:
        return gr_grammar_text(b, text);
    case TAG:
        return structural_tag_add(b, w->m, w->v, e);
    default: {
        size_t n = json_array_size(w->v);
        gr_expr *kid = mem_alloc(n * sizeof *kid);
        if (!kid)
            return gr_fail(b, ERR_NOMEM, "no memory");
        for (size_t i = 0; i < n; i++) {
            const json_t *one = json_array_get(w->v, i);
            kid[i] = gr_lit(b, json_string_value(one), json_string_length(one));
        }
        alt = gr_alt(b, kid, n);
        free(kid);
        return alt;
    }
    }
}

static gr_expr build(struct gr_builder *b, void *arg, struct schema_err *e)
{
    const struct wanted *w = arg;
    gr_expr x = language(b, w, e);
    return w->think_first ? gr_seq2(b, tools_answer_prefix(b, w->think_first), x) : x;
}

/* ---- reading ---- */

/* Note what a field asks for; two that ask are one too many. */
static int want(struct api_call *c, struct wanted *w, enum kind kind, const char *field,
                const char *param, const json_t *v)
{
    if (w->kind != NOTHING)
        return api__bad(c, field, "invalid_value",
                        "'%s' and '%s' both say what the answer looks like: send one of them.",
                        w->field, field);
    w->kind = kind;
    w->field = field;
    w->v = v;
    snprintf(w->param, sizeof w->param, "%s", param);
    return 0;
}

static int want_text(struct api_call *c, struct wanted *w, enum kind kind, const char *field,
                     const char *param, const json_t *v)
{
    if (!v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)))
        return 0; /* some clients always send the field */
    if (!json_is_string(v))
        return api__bad(c, param, "invalid_type",
                        "Invalid type for '%s': expected a string, but got %s.", param,
                        api__json_type(v));
    return want(c, w, kind, field, param, v);
}

/* An object or its text: *v, which w keeps. `what` it should be, for messages. */
static int parse_text(struct api_call *c, struct wanted *w, const char *param, const char *what,
                      const json_t **v)
{
    json_error_t je;
    struct view text = {json_string_value(*v), json_string_length(*v)};
    if (!json_is_string(*v))
        return 0;
    json_decref(w->parsed); /* of a field before: then this one is too many */
    w->parsed = NULL;
    if (api__json_depth(text.p, text.len) > c->api->o.max_json_depth ||
        api__json_load(&w->parsed, text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je))
        return api__bad(c, param, "invalid_value", "Invalid '%s': not the text of a %s.", param,
                        what);
    *v = w->parsed;
    return 0;
}

/* A schema as an object, or as its text. */
static int want_schema(struct api_call *c, struct wanted *w, const char *field, const char *param,
                       const json_t *v)
{
    if (!v || json_is_null(v))
        return 0;
    if (parse_text(c, w, param, "JSON schema", &v))
        return ERR_INVAL;
    if (!json_is_object(v) && !json_is_boolean(v))
        return api__bad(c, param, "invalid_type",
                        "Invalid type for '%s': expected a JSON schema, but got %s.", param,
                        api__json_type(v));
    return want(c, w, JSON_SCHEMA, field, param, v);
}

/* A structural tag as an object, or as its text. */
static int want_tag(struct api_call *c, struct wanted *w, const char *field, const char *param,
                    const json_t *v)
{
    if (!v || json_is_null(v))
        return 0;
    if (parse_text(c, w, param, "structural tag", &v))
        return ERR_INVAL;
    if (!json_object_get(v, "structures") && !json_object_get(v, "format"))
        return api__bad(c, param, "invalid_value",
                        "Invalid '%s': expected an object with 'structures' and 'triggers', or "
                        "with a 'format'.",
                        param);
    return want(c, w, TAG, field, param, v);
}

static int want_choice(struct api_call *c, struct wanted *w, const char *field, const char *param,
                       const json_t *v)
{
    if (!v || json_is_null(v) || (json_is_array(v) && !json_array_size(v)))
        return 0;
    bool ok = json_is_array(v) && json_array_size(v) > 0 && json_array_size(v) <= CHOICES_MAX;
    for (size_t i = 0; ok && i < json_array_size(v); i++)
        ok = json_is_string(json_array_get(v, i)) && json_string_length(json_array_get(v, i)) > 0;
    if (!ok)
        return api__bad(c, param, "invalid_value",
                        "Invalid '%s': expected an array of 1 to %d non-empty strings.", param,
                        CHOICES_MAX);
    return want(c, w, CHOICE, field, param, v);
}

static int response_format(struct api_call *c, struct wanted *w, json_t *o)
{
    json_t *rf = json_object_get(o, "response_format");
    if (!rf || json_is_null(rf))
        return 0;
    if (!json_is_object(rf))
        return api__bad(c, "response_format", "invalid_type",
                        "Invalid type for 'response_format': expected an object, but got %s.",
                        api__json_type(rf));
    const char *type = json_string_value(json_object_get(rf, "type"));
    if (type && strcmp(type, "text") == 0)
        return 0;
    if (type && strcmp(type, "json_object") == 0) {
        json_t *s = json_object_get(rf, "schema"); /* llama-server's way */
        if (s && !json_is_null(s))
            return want_schema(c, w, "response_format", "response_format.schema", s);
        return want(c, w, JSON_ANY, "response_format", "response_format", NULL);
    }
    if (type && strcmp(type, "structural_tag") == 0)
        return want_tag(c, w, "response_format", "response_format", rf);
    if (!type || strcmp(type, "json_schema") != 0)
        return api__bad(c, "response_format.type", "invalid_value",
                        "Invalid 'response_format.type': expected 'text', 'json_object', "
                        "'json_schema' or 'structural_tag'.");
    json_t *js = json_object_get(rf, "json_schema");
    if (!js && json_object_get(rf, "schema"))
        return want_schema(c, w, "response_format", "response_format.schema",
                           json_object_get(rf, "schema"));
    if (!json_is_object(js))
        return api__bad(c, "response_format.json_schema",
                        js ? "invalid_type" : "missing_required_parameter",
                        "Missing required parameter: 'response_format.json_schema', an object.");
    json_t *name = json_object_get(js, "name"), *strict = json_object_get(js, "strict");
    bool any = false;
    if (name && !json_is_null(name) && !json_is_string(name))
        return api__bad(
            c, "response_format.json_schema.name", "invalid_type",
            "Invalid type for 'response_format.json_schema.name': expected a string, but got %s.",
            api__json_type(name));
    if (api__bool_at(c, strict, "response_format.json_schema.strict", &any))
        return ERR_INVAL;
    json_t *s = json_object_get(js, "schema");
    if (!s || json_is_null(s))
        return want(c, w, JSON_ANY, "response_format", "response_format", NULL);
    return want_schema(c, w, "response_format", "response_format.json_schema.schema", s);
}

static int structured_outputs(struct api_call *c, struct wanted *w, json_t *o)
{
    json_t *so = json_object_get(o, "structured_outputs");
    const char *f = "structured_outputs";
    bool any = false;
    if (!so || json_is_null(so))
        return 0;
    if (!json_is_object(so))
        return api__bad(c, f, "invalid_type",
                        "Invalid type for 'structured_outputs': expected an object, but got %s.",
                        api__json_type(so));
    if (api__bool_at(c, json_object_get(so, "disable_any_whitespace"),
                     "structured_outputs.disable_any_whitespace", &w->o.compact) ||
        api__bool_at(c, json_object_get(so, "json_object"), "structured_outputs.json_object", &any))
        return ERR_INVAL;
    if (want_schema(c, w, f, "structured_outputs.json", json_object_get(so, "json")) ||
        want_text(c, w, REGEX, f, "structured_outputs.regex", json_object_get(so, "regex")) ||
        want_choice(c, w, f, "structured_outputs.choice", json_object_get(so, "choice")) ||
        want_text(c, w, GRAMMAR, f, "structured_outputs.grammar", json_object_get(so, "grammar")))
        return ERR_INVAL;
    if (want_tag(c, w, f, "structured_outputs.structural_tag",
                 json_object_get(so, "structural_tag")))
        return ERR_INVAL;
    return any ? want(c, w, JSON_ANY, f, f, NULL) : 0;
}

static int read_fields(struct api_call *c, struct wanted *w, json_t *o)
{
    if (response_format(c, w, o) || structured_outputs(c, w, o) ||
        want_schema(c, w, "guided_json", "guided_json", json_object_get(o, "guided_json")) ||
        want_text(c, w, REGEX, "guided_regex", "guided_regex",
                  json_object_get(o, "guided_regex")) ||
        want_choice(c, w, "guided_choice", "guided_choice", json_object_get(o, "guided_choice")) ||
        want_text(c, w, GRAMMAR, "guided_grammar", "guided_grammar",
                  json_object_get(o, "guided_grammar")) ||
        want_schema(c, w, "json_schema", "json_schema", json_object_get(o, "json_schema")) ||
        want_text(c, w, GRAMMAR, "grammar", "grammar", json_object_get(o, "grammar")) ||
        want_text(c, w, REGEX, "regex", "regex", json_object_get(o, "regex")) ||
        want_text(c, w, GRAMMAR, "ebnf", "ebnf", json_object_get(o, "ebnf")))
        return ERR_INVAL;
    return 0;
}

int structured_params(struct api_call *c, struct gen *g, json_t *o)
{
    struct wanted w = {.m = g->m, .think_first = g->think_first ? g : NULL};
    int rc = read_fields(c, &w, o);
    if (!rc && w.kind != NOTHING) {
        char *text = w.v ? json_dumps(w.v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        struct buf key = {0};
        buf_fmt(&key, "%d %d %d ", (int)w.kind, w.o.compact,
                !g->think_first     ? 0
                : g->parse.thinking ? 1
                                    : 2);
        if (text)
            buf_str(&key, text);
        struct gram_job job = {.build = build, .arg = &w, .param = w.param};
        if (!key.failed && (text || !w.v)) /* without a key it is made each time */
            job.key = (struct view){key.p, key.len};
        free(text);
        rc = gram_make(c, g->m, &job, &g->samp.grammar);
        buf_free(&key);
    }
    json_decref(w.parsed);
    return rc;
}
