/* JSON in: the body's syntax and limits, and typed getters that name the field when they refuse. */
#include <ctype.h>
#include <limits.h>
#include <math.h>

#include "api/api_impl.h"

int api__json_depth(const char *s, size_t n)
{
    int depth = 0, most = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char ch = s[i];
        if (in_string) {
            if (ch == '\\')
                i++;
            else if (ch == '"')
                in_string = false;
        } else if (ch == '"') {
            in_string = true;
        } else if (ch == '[' || ch == '{') {
            if (++depth > most)
                most = depth;
        } else if (ch == ']' || ch == '}') {
            depth--;
        }
    }
    return most;
}

static bool media_is_json(const char *type)
{
    if (!type)
        return true;
    size_t n = strcspn(type, ";");
    while (n && isspace((unsigned char)type[n - 1]))
        n--;
    return (n == 16 && strncasecmp(type, "application/json", 16) == 0) ||
           (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
}

/* The path ("messages[0].content") of the value that the first n bytes of a JSON text end in or just after. The text
 * is well formed so far. Empty at the top, and below PATH_DEEPEST levels. */
#define PATH_DEEPEST 64
struct path_level {
    bool array, want_key;
    size_t index;
    struct view key; /* as written, escapes included */
};

static void path_at(const char *s, size_t n, struct buf *out)
{
    struct path_level level[PATH_DEEPEST], *at = level - 1;
    for (size_t i = 0; i < n; i++) {
        size_t from = i + 1;
        if (s[i] == '"') {
            for (i++; i < n && s[i] != '"'; i++)
                i += s[i] == '\\';
            if (at >= level && !at->array && at->want_key)
                at->key = (struct view){s + from, (i < n ? i : n) - from}, at->want_key = false;
        } else if (s[i] == '{' || s[i] == '[') {
            if (at == level + PATH_DEEPEST - 1)
                return;
            *++at = (struct path_level){.array = s[i] == '[', .want_key = true};
        } else if ((s[i] == '}' || s[i] == ']') && at >= level) {
            at--;
        } else if (s[i] == ',' && at >= level) {
            at->index++;
            at->want_key = true;
        }
    }
    for (struct path_level *l = level; l <= at; l++) {
        if (l->array) {
            buf_fmt(out, "[%zu]", l->index);
        } else {
            buf_str(out, out->len ? "." : "");
            buf_add(out, l->key.p, l->key.len);
        }
    }
}

/* A number that neither int64 nor double holds: name its field. */
static void bad_number(struct api_call *c, const json_error_t *je)
{
    struct buf path = {0};
    path_at(c->body, je->position > 0 ? (size_t)je->position : 0, &path);
    const char *param = path.len ? buf_cstr(&path) : NULL;
    api__bad(
        c, param, param && strcmp(param, "seed") == 0 ? "invalid_type" : NULL,
        "Invalid number%s%s: it does not fit a 64-bit integer or a double (line %d, column %d).",
        param ? " for " : "", param ? param : "", je->line, je->column);
    buf_free(&path);
}

/* The key of a duplicate-key error, out of jansson's message: duplicate object key near '"x"'. */
static void bad_json(struct api_call *c, const json_error_t *je)
{
    char key[100] = "";
    const char *at = strstr(je->text, "near '\"");
    if (json_error_code(je) == json_error_duplicate_key && at) {
        snprintf(key, sizeof key, "%s", at + 7);
        key[strcspn(key, "\"")] = 0;
    }
    if (json_error_code(je) == json_error_numeric_overflow)
        bad_number(c, je);
    else if (*key)
        api__bad(c, key, NULL, "Duplicate key '%s' in the request body.", key);
    else if (json_error_code(je) == json_error_null_character ||
             json_error_code(je) == json_error_null_byte_in_key)
        api__bad(c, NULL, NULL,
                 "The request body holds the character \\u0000, which is not allowed.");
    else
        api__bad(c, NULL, NULL,
                 "We could not parse the JSON body of your request: %s (line %d, column %d).",
                 je->text, je->line, je->column);
}

json_t *api__body(struct api_call *c)
{
    if (!media_is_json(c->content_type)) {
        api_fail(c, ERR_MEDIA, NULL, "Content-Type must be application/json.", 0);
        return NULL;
    }
    if (c->body_len == 0) {
        api__bad(c, NULL, NULL, "The request body is empty; a JSON object is expected.");
        return NULL;
    }
    if (api__json_depth(c->body, c->body_len) > c->api->o.max_json_depth) {
        api__bad(c, NULL, NULL, "The JSON body is nested deeper than %d levels.",
                 c->api->o.max_json_depth);
        return NULL;
    }
    json_error_t je;
    json_t *o;
    int rc = api__json_load(&o, (struct view){c->body, c->body_len}, JSON_REJECT_DUPLICATES, &je);
    if (rc == ERR_NOMEM) {
        api__nomem(c);
    } else if (rc) {
        bad_json(c, &je);
    } else if (!json_is_object(o)) {
        api__bad(c, NULL, "invalid_type", "The request body must be a JSON object, not %s.",
                 api__json_type(o));
        json_decref(o);
        o = NULL;
    }
    return o;
}

const char *api__json_type(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a decimal";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

/* Fields that the hosted API has not: any bad value of theirs has one code. */
static const char *code_for(const char *param, const char *code)
{
    static const char *const own[] = {"top_k",
                                      "min_p",
                                      "repetition_penalty",
                                      "min_tokens",
                                      "ignore_eos",
                                      "repeat_penalty",
                                      "priority",
                                      "cache_salt",
                                      "timeout",
                                      "t_max_predict_ms",
                                      "include_stop_str_in_output",
                                      "add_special_tokens",
                                      "skip_special_tokens",
                                      "continue_final_message",
                                      "add_generation_prompt",
                                      NULL};
    for (int i = 0; own[i]; i++)
        if (strcmp(own[i], param) == 0)
            return "invalid_value";
    return code;
}

static int wrong_type(struct api_call *c, const char *param, const char *want, const json_t *v)
{
    return api__bad(c, param, code_for(param, "invalid_type"),
                    "Invalid type for '%s': expected %s, but got %s.", param, want,
                    api__json_type(v));
}

static int out_of_range(struct api_call *c, const char *param, const char *kind, bool below,
                        const char *bound)
{
    char code[48];
    snprintf(code, sizeof code, "%s_%s_value", kind, below ? "below_min" : "above_max");
    return api__bad(c, param, code_for(param, code),
                    "Invalid '%s': %s %s value. Expected a value %s %s.", param, kind,
                    below ? "below minimum" : "above maximum", below ? ">=" : "<=", bound);
}

int api__get_int(struct api_call *c, json_t *o, const char *key, int64_t range[2], int64_t *out)
{
    json_t *v = json_object_get(o, key);
    char bound[32];
    if (!v || json_is_null(v))
        return 0;
    double r = json_is_real(v) ? json_real_value(v) : 0.5;
    int64_t i;
    if (json_is_integer(v))
        i = json_integer_value(v);
    else if (r == floor(r) && fabs(r) < 9e15) /* 5.0 is an integer in JSON Schema */
        i = (int64_t)r;
    else
        return wrong_type(c, key, "an integer", v);
    if (i < range[0] || i > range[1]) {
        snprintf(bound, sizeof bound, "%lld", (long long)(i < range[0] ? range[0] : range[1]));
        return out_of_range(c, key, "integer", i < range[0], bound);
    }
    *out = i;
    return 0;
}

int api__get_num(struct api_call *c, json_t *o, const char *key, double range[2], double *out)
{
    json_t *v = json_object_get(o, key);
    char bound[32];
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_number(v))
        return wrong_type(c, key, "a decimal", v);
    double d = json_number_value(v);
    if (d < range[0] || d > range[1]) {
        snprintf(bound, sizeof bound, "%g", d < range[0] ? range[0] : range[1]);
        return out_of_range(c, key, "decimal", d < range[0], bound);
    }
    *out = d;
    return 0;
}

int api__bool_at(struct api_call *c, const json_t *v, const char *param, bool *out)
{
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return wrong_type(c, param, "a boolean", v);
    *out = json_is_true(v);
    return 0;
}

int api__get_bool(struct api_call *c, json_t *o, const char *key, bool *out)
{
    return api__bool_at(c, json_object_get(o, key), key, out);
}

int api__get_str(struct api_call *c, json_t *o, const char *key, struct view *out)
{
    json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return wrong_type(c, key, "a string", v);
    *out = (struct view){json_string_value(v), json_string_length(v)};
    return 0;
}

static bool in_names(const char *const *list, const char *key)
{
    while (*list && strcmp(*list, key) != 0)
        list++;
    return *list;
}

int api__check_fields(struct api_call *c, json_t *o, const char *const *known,
                      const char *const *own)
{
    const char *key;
    json_t *v;
    char names[160] = "";
    json_object_foreach(o, key, v)
    {
        if (in_names(known, key) || in_names(own, key))
            continue;
        if (c->api->o.strict_fields)
            return api__bad(c, key, "unknown_parameter", "Unknown parameter: '%s'.", key);
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", key);
    }
    if (*names)
        api__header(c, "X-Stepd-Warning", "ignored unknown fields: %s", names);
    return 0;
}

/* Take the model with this name (n bytes) or end the call. */
static struct api_model *find_model(struct api_call *c, const char *name, size_t n)
{
    struct api_model *m = api__model_find(c->api, name, n, &c->model);
    if (!m) {
        char text[300];
        snprintf(text, sizeof text,
                 "The model '%.100s' does not exist. GET /v1/models lists those served.", name);
        api__refuse(c, 404, "model", "model_not_found", text);
    }
    return m;
}

/* It is of the right kind: may it work already? */
static struct api_model *use_model(struct api_call *c, struct api_model *m)
{
    snprintf(c->model_name, sizeof c->model_name, "%s", m->name);
    if (!m->ready || c->loading) {
        api_fail(c, ERR_AGAIN, NULL, "The model is still loading.", 1);
        return NULL;
    }
    return m;
}

enum kind { KIND_TEXT, KIND_ENCODER, KIND_EITHER };

static struct api_model *get_model(struct api_call *c, json_t *o, enum kind kind)
{
    json_t *v = json_object_get(o, "model");
    if (!v || json_is_null(v)) {
        api__bad(c, "model", "missing_required_parameter", "Missing required parameter: 'model'.");
        return NULL;
    }
    if (!json_is_string(v)) {
        wrong_type(c, "model", "a string", v);
        return NULL;
    }
    struct api_model *m = find_model(c, json_string_value(v), json_string_length(v));
    if (m && !m->text) {
        char text[300];
        snprintf(text, sizeof text,
                 "The model '%.100s' makes pictures and is not supported by this endpoint. Did you "
                 "mean to use /v1/images/generations?",
                 m->name);
        api__refuse(c, 404, "model", NULL, text);
        return NULL;
    }
    if (m && kind != KIND_EITHER && m->is_audio) {
        char text[300];
        snprintf(text, sizeof text,
                 "The model '%.100s' transcribes speech and is not supported by this endpoint. Did "
                 "you mean to use /v1/audio/transcriptions?",
                 m->name);
        api__refuse(c, 404, "model", "model_not_supported", text);
        return NULL;
    }
    if (m && kind != KIND_EITHER && m->is_encoder != (kind == KIND_ENCODER)) {
        char text[300];
        snprintf(text, sizeof text,
                 m->is_encoder
                     ? "The model '%.100s' is an encoder and is not supported by this endpoint. "
                       "Did you mean to use /v1/embeddings?"
                     : "The model '%.100s' writes text and is not supported by this endpoint. Did "
                       "you mean to use /v1/chat/completions?",
                 m->name);
        api__refuse(c, 404, "model", "model_not_supported", text);
        return NULL;
    }
    return m ? use_model(c, m) : NULL;
}

struct api_model *api__get_model(struct api_call *c, json_t *o)
{
    return get_model(c, o, KIND_TEXT);
}

struct api_model *api__get_encoder(struct api_call *c, json_t *o)
{
    return get_model(c, o, KIND_ENCODER);
}

struct api_model *api__get_text_model(struct api_call *c, json_t *o)
{
    return get_model(c, o, KIND_EITHER);
}

/* The model that is named, or the first of those that `is` takes. */
static struct api_model *get_special(struct api_call *c, json_t *o,
                                     bool (*is)(const struct api_model *m), const char *cannot,
                                     const char *none)
{
    json_t *v = json_object_get(o, "model");
    struct api_model *m = NULL;
    if (v && !json_is_null(v)) {
        if (!json_is_string(v)) {
            wrong_type(c, "model", "a string", v);
            return NULL;
        }
        m = find_model(c, json_string_value(v), json_string_length(v));
        if (m && !is(m)) {
            api__bad(c, "model", "invalid_value", "The model '%.100s' %s.", m->name, cannot);
            return NULL;
        }
        return m ? use_model(c, m) : NULL;
    }
    for (int i = 0; i < c->api->n_model && !m; i++)
        if (is(&c->api->model[i]))
            m = &c->api->model[c->model = i];
    if (!m)
        api__refuse(c, 404, "model", "model_not_found", none);
    return m ? use_model(c, m) : NULL;
}

static bool makes_pictures(const struct api_model *m)
{
    return !m->text;
}

static bool transcribes(const struct api_model *m)
{
    return m->is_audio;
}

struct api_model *api__get_image_model(struct api_call *c, json_t *o)
{
    return get_special(c, o, makes_pictures, "writes text; it cannot make pictures",
                       "No image model is served.");
}

struct api_model *api__get_audio_model(struct api_call *c, json_t *o)
{
    return get_special(c, o, transcribes, "does not transcribe speech",
                       "No speech model is served.");
}
