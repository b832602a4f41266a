/* Fields of /v1/responses beside its input -> fields of chat, and the response object's echo of them. */
#include <stdlib.h>

#include "api/responses_impl.h"

const char *const resp_fields[] = {
    "model", "input", "instructions", "previous_response_id", "store", "stream", "stream_options",
    "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "text", "reasoning",
    "max_output_tokens", "temperature", "top_p", "top_logprobs", "include", "truncation",
    "metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "service_tier", "background", "conversation", "prompt", "moderation",
    "context_management",
    /* of this server's chat */
    "seed", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "stop",
    "min_tokens", "ignore_eos", "logit_bias", "priority", "cache_salt", "chat_template_kwargs",
    "timeout", NULL};
/* Chat calls these the same. */
static const char *const same[] = {"model",
                                   "stream",
                                   "parallel_tool_calls",
                                   "temperature",
                                   "top_p",
                                   "seed",
                                   "top_k",
                                   "min_p",
                                   "presence_penalty",
                                   "frequency_penalty",
                                   "repetition_penalty",
                                   "stop",
                                   "min_tokens",
                                   "ignore_eos",
                                   "logit_bias",
                                   "priority",
                                   "cache_salt",
                                   "timeout",
                                   "chat_template_kwargs",
                                   NULL};

/* An object-valued field: NULL when absent; *rc: ERR_INVAL when it is something else. */
static json_t *object_at(struct api_call *c, json_t *o, const char *key, int *rc)
{
    json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v) || json_is_object(v))
        return json_is_object(v) ? v : NULL;
    *rc = api__bad(c, key, "invalid_type", "Invalid type for '%s': expected an object, but got %s.",
                   key, api__json_type(v));
    return NULL;
}

/* One of some words, or absent. */
static int word_at(struct api_call *c, json_t *v, const char *param, const char *const *words)
{
    const char *s = json_string_value(v);
    char text[200];
    size_t n = 0;
    if (!v || json_is_null(v))
        return 0;
    if (!s)
        return talk_bad(c, param, "invalid_type", "expected a string.");
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], s) == 0)
            return 0;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s'%s'", i ? ", " : "expected one of ",
                              words[i]);
    }
    return talk_bad(c, param, "invalid_value", text);
}

static int refuse_others(struct api_call *c, json_t *o)
{
    static const char *const no[] = {"conversation", "prompt", "context_management", "moderation"};
    bool background = false;
    if (api__get_bool(c, o, "background", &background))
        return ERR_INVAL;
    if (background)
        return api__bad(c, "background", "unsupported_value",
                        "'background' is not supported by this server: use 'stream'.");
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        json_t *v = json_object_get(o, no[i]);
        if (v && !json_is_null(v))
            return api__bad(c, no[i], "unsupported_parameter",
                            "'%s' is not supported by this server.", no[i]);
    }
    return 0;
}

static int get_tools(struct api_call *c, struct resp *r, json_t *o)
{
    json_t *list, *out, *v;
    char at[64];
    size_t i;
    if (talk_tools(c, &r->t, o, &list, &out))
        return ERR_INVAL;
    json_array_foreach(list, i, v)
    {
        const char *type = json_string_value(json_object_get(v, "type"));
        if (!json_is_object(v))
            return talk_bad(c, talk_at(at, sizeof at, "tools", i, ""), "invalid_type",
                            "expected an object.");
        if (!type)
            return talk_bad(c, talk_at(at, sizeof at, "tools", i, "type"),
                            "missing_required_parameter", "expected 'function'.");
        if (strcmp(type, "function") != 0)
            return talk_bad(c, talk_at(at, sizeof at, "tools", i, "type"), "unsupported_value",
                            "this server runs no tools of its own; only 'function' is supported.");
        json_t *fn = talk_object(v), *strict = json_object_get(v, "strict");
        if (!fn)
            return api__nomem(c);
        json_object_del(fn, "type");
        if (strict && json_is_null(strict))
            json_object_del(fn, "strict");
        if (json_array_append_new(out, json_pack("{s:s, s:o}", "type", "function", "function", fn)))
            return api__nomem(c);
    }
    return 0;
}

static int get_choice(struct api_call *c, struct resp *r, json_t *o)
{
    json_t *v = json_object_get(o, "tool_choice");
    const char *type = json_string_value(json_object_get(v, "type"));
    if (json_is_object(v) && type && strcmp(type, "function") != 0 &&
        strcmp(type, "allowed_tools") != 0)
        return talk_bad(c, "tool_choice.type", "unsupported_value",
                        "expected 'function' or 'allowed_tools'.");
    return v && json_object_set(r->t.chat, "tool_choice", v) ? api__nomem(c) : 0;
}

/* text.format is chat's response_format, flatter. */
static int get_text(struct api_call *c, struct resp *r, json_t *o)
{
    static const char *const verbosity[] = {"low", "medium", "high", NULL};
    static const char *const keys[] = {"name", "description", "schema", "strict"};
    int rc = 0;
    json_t *text = object_at(c, o, "text", &rc), *f = json_object_get(text, "format");
    if (rc || word_at(c, json_object_get(text, "verbosity"), "text.verbosity", verbosity))
        return ERR_INVAL;
    if (!f || json_is_null(f))
        return 0;
    if (!json_is_object(f))
        return talk_bad(c, "text.format", "invalid_type", "expected an object.");
    const char *type = json_string_value(json_object_get(f, "type"));
    if (!type)
        return talk_bad(c, "text.format.type", "missing_required_parameter",
                        "expected 'text', 'json_object' or 'json_schema'.");
    json_t *out = json_pack("{s:s}", "type", type);
    bool bad = !out || json_object_set_new(r->t.chat, "response_format", out);
    if (!bad && strcmp(type, "json_schema") == 0) {
        json_t *in = json_object();
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            json_t *v = json_object_get(f, keys[i]);
            bad |= v && !json_is_null(v) && json_object_set(in, keys[i], v);
        }
        bad |= json_object_set_new(out, "json_schema", in) != 0;
    }
    return bad ? api__nomem(c) : 0;
}

static int get_reasoning(struct api_call *c, struct resp *r, json_t *o)
{
    static const char *const kinds[] = {"auto", "concise", "detailed", NULL};
    int rc = 0;
    json_t *v = object_at(c, o, "reasoning", &rc);
    json_t *effort = json_object_get(v, "effort"), *sum = json_object_get(v, "summary"),
           *old = json_object_get(v, "generate_summary");
    if (rc || word_at(c, sum, "reasoning.summary", kinds) ||
        word_at(c, old, "reasoning.generate_summary", kinds))
        return ERR_INVAL;
    r->summary = json_is_string(sum) || json_is_string(old);
    return effort && json_object_set(r->t.chat, "reasoning_effort", effort) ? api__nomem(c) : 0;
}

/* What else the answer should hold. Of what this server never makes nothing can be included. */
static int get_include(struct api_call *c, json_t *o, bool *logprobs)
{
    static const char *const words[] = {"message.output_text.logprobs",
                                        "reasoning.encrypted_content",
                                        "file_search_call.results",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        "message.input_image.image_url",
                                        "computer_call_output.output.image_url",
                                        "code_interpreter_call.outputs",
                                        NULL};
    json_t *list = json_object_get(o, "include"), *v;
    char at[64];
    size_t i;
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return talk_bad(c, "include", "invalid_type", "expected an array of strings.");
    json_array_foreach(list, i, v)
    {
        const char *s = json_string_value(v);
        bool known = false;
        talk_at(at, sizeof at, "include", i, "");
        for (int k = 0; s && words[k]; k++)
            known |= strcmp(words[k], s) == 0;
        if (!known)
            return talk_bad(c, at, s ? "invalid_value" : "invalid_type",
                            "it names nothing that an answer can include.");
        *logprobs |= strcmp(s, words[0]) == 0;
    }
    return 0;
}

static int get_logprobs(struct api_call *c, struct resp *r, json_t *o)
{
    int64_t top = -1, range[2] = {0, SAMPLE_TOP_MAX};
    bool want = false;
    if (get_include(c, o, &want) || api__get_int(c, o, "top_logprobs", range, &top))
        return ERR_INVAL;
    if (!want && top <= 0)
        return 0;
    if (json_object_set_new(r->t.chat, "logprobs", json_true()) ||
        (top >= 0 && json_object_set_new(r->t.chat, "top_logprobs", json_integer(top))))
        return api__nomem(c);
    return 0;
}

/* Up to 16 pairs of strings: 64 and 512 characters. */
static int check_metadata(struct api_call *c, json_t *o)
{
    int rc = 0;
    const char *key;
    json_t *v, *m = object_at(c, o, "metadata", &rc);
    if (rc)
        return rc;
    if (json_object_size(m) > 16)
        return talk_bad(c, "metadata", "object_above_max_properties", "16 pairs at most.");
    json_object_foreach(m, key, v)
    {
        char at[160];
        snprintf(at, sizeof at, "metadata.%.64s", key);
        if (!json_is_string(v))
            return talk_bad(c, at, "invalid_type", "expected a string.");
        if (strlen(key) > 64 * 4 || json_string_length(v) > 512 * 4)
            return talk_bad(c, at, "string_above_max_length",
                            "64 characters of name and 512 of value at most.");
    }
    return 0;
}

static int check_rest(struct api_call *c, struct resp *r, json_t *o)
{
    static const char *const cuts[] = {"auto", "disabled", NULL};
    static const char *const strings[] = {"user", "safety_identifier", "prompt_cache_key",
                                          "prompt_cache_retention", "service_tier"};
    int64_t range[2] = {1, INT32_MAX}, n = -1;
    struct view s = {0};
    int rc = 0;
    json_t *cut = json_object_get(o, "truncation"), *so = object_at(c, o, "stream_options", &rc);
    bool stream = false, fog = false;
    if (rc || word_at(c, cut, "truncation", cuts) || check_metadata(c, o) ||
        api__get_int(c, o, "max_tool_calls", range, &n) || api__get_bool(c, o, "stream", &stream) ||
        api__bool_at(c, json_object_get(so, "include_obfuscation"),
                     "stream_options.include_obfuscation", &fog))
        return ERR_INVAL;
    if (so && !stream)
        return api__bad(c, "stream_options", NULL,
                        "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
    r->shorten = json_is_string(cut) && strcmp(json_string_value(cut), "auto") == 0;
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if (api__get_str(c, o, strings[i], &s))
            return ERR_INVAL;
    return 0;
}

int resp_params(struct api_call *c, struct gen *g, json_t *o)
{
    struct resp *r = g->own;
    int64_t most = -1, range[2] = {1, INT32_MAX};
    r->store = true;
    if (refuse_others(c, o) || api__get_bool(c, o, "store", &r->store) ||
        api__get_int(c, o, "max_output_tokens", range, &most) || check_rest(c, r, o) ||
        talk_copy(c, &r->t, o, same) || get_tools(c, r, o) || get_choice(c, r, o) ||
        get_text(c, r, o) || get_reasoning(c, r, o) || get_logprobs(c, r, o))
        return ERR_INVAL;
    if (most > 0 && json_object_set_new(r->t.chat, "max_completion_tokens", json_integer(most)))
        return api__nomem(c);
    return 0;
}

/* ---- the response object ---- */

static int put(json_t *h, json_t *o, const char *key, json_t *otherwise)
{
    json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v)) {
        json_decref(otherwise);
        return json_object_set(h, key, v);
    }
    return json_object_set_new(h, key, otherwise);
}

/* Tools and formats as the schema wants them: with every required member. */
static json_t *shown_tools(json_t *o)
{
    json_t *list = json_array(), *v;
    size_t i;
    json_array_foreach(json_object_get(o, "tools"), i, v)
    {
        json_t *t = talk_object(v);
        bool bad = !t;
        if (!bad && !json_object_get(v, "strict"))
            bad |= json_object_set_new(t, "strict", json_false()) != 0;
        if (!bad && !json_object_get(v, "parameters"))
            bad |= json_object_set_new(t, "parameters", json_null()) != 0;
        if (bad || json_array_append(list, t)) {
            json_decref(t);
            json_decref(list);
            return NULL;
        }
        json_decref(t);
    }
    return list;
}

static json_t *shown_text(json_t *o)
{
    json_t *t = json_object_get(o, "text"), *f = json_object_get(t, "format");
    t = json_is_object(t) ? talk_object(t) : json_object();
    if (t && (!f || json_is_null(f)) &&
        json_object_set_new(t, "format", json_pack("{s:s}", "type", "text"))) {
        json_decref(t);
        return NULL;
    }
    return t;
}

static json_t *shown_reasoning(const struct gen *g, json_t *o)
{
    json_t *v = json_object_get(json_object_get(o, "reasoning"), "summary");
    return json_pack("{s:s?, s:O?}", "effort", g->effort, "summary", json_is_string(v) ? v : NULL);
}

int resp_head(struct api_call *c, struct gen *g, json_t *o)
{
    struct resp *r = g->own;
    json_t *h = json_object();
    bool bad =
        !h || json_object_set_new(h, "id", json_string(g->id)) ||
        json_object_set_new(h, "object", json_string("response")) ||
        json_object_set_new(h, "created_at", json_integer(c->created)) ||
        json_object_set_new(h, "model", json_string(g->m->name)) ||
        json_object_set_new(h, "background", json_false()) ||
        put(h, o, "instructions", json_null()) || put(h, o, "max_output_tokens", json_null()) ||
        put(h, o, "max_tool_calls", json_null()) || put(h, o, "metadata", json_object()) ||
        put(h, o, "parallel_tool_calls", json_true()) ||
        put(h, o, "previous_response_id", json_null()) || put(h, o, "temperature", json_real(1)) ||
        put(h, o, "top_p", json_real(1)) || put(h, o, "tool_choice", json_string("auto")) ||
        put(h, o, "top_logprobs", json_integer(g->n_top > 0 ? g->n_top : 0)) ||
        put(h, o, "truncation", json_string("disabled")) ||
        json_object_set_new(h, "tools", shown_tools(o)) ||
        json_object_set_new(h, "text", shown_text(o)) ||
        json_object_set_new(h, "reasoning", shown_reasoning(g, o)) ||
        json_object_set_new(h, "store", json_boolean(r->store)) ||
        json_object_set_new(h, "service_tier", json_string("default"));
    static const char *const echo[] = {"user", "safety_identifier", "prompt_cache_key"};
    for (size_t i = 0; !bad && i < sizeof echo / sizeof *echo; i++) {
        json_t *v = json_object_get(o, echo[i]);
        bad |= json_is_string(v) && json_object_set(h, echo[i], v);
    }
    char *text = bad ? NULL : json_dumps(h, JSON_COMPACT);
    json_decref(h);
    if (!text)
        return ERR_NOMEM;
    buf_add(&r->head, text, strlen(text) - 1);
    free(text);
    return r->head.failed ? ERR_NOMEM : 0;
}
