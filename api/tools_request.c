/* Tools of a chat request: checked, brought to one form, chosen from. */
#include <string.h>

#include "api/gen.h"

#define TOOLS_MAX 1024

static int bad(struct api_call *c, const char *param, const char *code, const char *text)
{
    return api__bad(c, param, code, "Invalid '%s': %s", param, text);
}

static bool name_ok(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(s[i] >= 'a' && s[i] <= 'z') && !(s[i] >= 'A' && s[i] <= 'Z') &&
            !(s[i] >= '0' && s[i] <= '9') && !strchr("_-.", s[i]))
            return false;
    return n >= 1 && n <= 128;
}

/* One function of "tools" or "functions" under its path; appended to g->tools. */
static int add_function(struct api_call *c, struct gen *g, json_t *fn, const char *at)
{
    char param[96];
    json_t *name = json_object_get(fn, "name"), *text = json_object_get(fn, "description"),
           *args = json_object_get(fn, "parameters"), *strict = json_object_get(fn, "strict");
    if (!json_is_object(fn))
        return bad(c, at, fn ? "invalid_type" : "missing_required_parameter",
                   "expected an object.");
    snprintf(param, sizeof param, "%s.name", at);
    if (!json_is_string(name))
        return bad(c, param, name ? "invalid_type" : "missing_required_parameter",
                   "expected a string.");
    if (!name_ok(json_string_value(name), json_string_length(name)))
        return bad(c, param, "invalid_value",
                   "1 to 128 letters, digits, '_', '-' or '.' are expected.");
    snprintf(param, sizeof param, "%s.description", at);
    if (text && !json_is_null(text) && !json_is_string(text))
        return bad(c, param, "invalid_type", "expected a string.");
    snprintf(param, sizeof param, "%s.parameters", at);
    if (args && !json_is_null(args) && !json_is_object(args))
        return bad(c, param, "invalid_type", "expected a JSON schema, an object.");
    const char *type = json_string_value(json_object_get(args, "type"));
    if (type && strcmp(type, "object") != 0)
        return bad(c, param, "invalid_value", "the schema of arguments must be of type 'object'.");
    snprintf(param, sizeof param, "%s.strict", at);
    bool is_strict = false;
    if (strict && api__bool_at(c, strict, param, &is_strict))
        return ERR_INVAL;
    g->strict |= is_strict;
    json_t *copy = json_copy(fn);
    int rc = copy ? 0 : -1;
    if (!rc && (!args || json_is_null(args))) /* templates read it */
        rc = json_object_set_new(copy, "parameters",
                                 json_pack("{s:s, s:{}}", "type", "object", "properties"));
    if (!rc && (!text || json_is_null(text)))
        rc = json_object_set_new(copy, "description", json_string(""));
    json_t *tool = rc ? NULL : json_pack("{s:s, s:O}", "type", "function", "function", copy);
    json_decref(copy);
    return json_array_append_new(g->tools, tool) ? api__nomem(c) : 0;
}

static int add_tools(struct api_call *c, struct gen *g, json_t *list, const char *field)
{
    char at[64];
    size_t i;
    json_t *t;
    if (!json_is_array(list))
        return api__bad(c, field, "invalid_type",
                        "Invalid type for '%s': expected an array, but got %s.", field,
                        api__json_type(list));
    if (json_array_size(list) > TOOLS_MAX)
        return bad(c, field, "array_above_max_length", "1024 at most are expected.");
    g->tools = json_array();
    if (!g->tools)
        return api__nomem(c);
    json_array_foreach(list, i, t)
    {
        const char *type = json_string_value(json_object_get(t, "type"));
        if (strcmp(field, "functions") == 0) {
            snprintf(at, sizeof at, "functions[%zu]", i);
            if (add_function(c, g, t, at))
                return ERR_INVAL;
            continue;
        }
        snprintf(at, sizeof at, "tools[%zu]", i);
        if (!json_is_object(t))
            return bad(c, at, "invalid_type", "expected an object.");
        snprintf(at, sizeof at, "tools[%zu].type", i);
        if (!type)
            return bad(c, at, "missing_required_parameter", "expected 'function'.");
        if (strcmp(type, "function") != 0)
            return bad(c, at, "unsupported_value", "only tools of type 'function' are supported.");
        snprintf(at, sizeof at, "tools[%zu].function", i);
        if (add_function(c, g, json_object_get(t, "function"), at))
            return ERR_INVAL;
    }
    return 0;
}

static const char *known_name(const struct gen *g, const char *name)
{
    size_t i;
    json_t *t;
    json_array_foreach(g->tools, i, t)
    {
        const char *is = json_string_value(json_object_get(json_object_get(t, "function"), "name"));
        if (name && is && strcmp(name, is) == 0)
            return is;
    }
    return NULL;
}

static int pick_function(struct api_call *c, struct gen *g, json_t *fn, const char *param)
{
    json_t *v = json_object_get(fn, "name");
    if (!json_is_string(v))
        return bad(c, param, v ? "invalid_type" : "missing_required_parameter",
                   "the name of a function is expected.");
    g->only_call = known_name(g, json_string_value(v));
    if (!g->only_call)
        return api__bad(c, param, "invalid_value", "Invalid '%s': there is no tool '%.128s'.",
                        param, json_string_value(v));
    g->must_call = true;
    return 0;
}

/* {"mode": "auto" or "required", "tools": [...]}: the others are left out. */
static int allow_tools(struct api_call *c, struct gen *g, json_t *v)
{
    static const char at[] = "tool_choice.allowed_tools";
    json_t *in = json_object_get(v, "allowed_tools"), *list, *kept = json_array(), *t, *u;
    size_t i, k;
    int rc = kept ? 0 : api__nomem(c);
    in = json_is_object(in) ? in : v;
    const char *mode = json_string_value(json_object_get(in, "mode"));
    list = json_object_get(in, "tools");
    if (!rc && !json_is_array(list))
        rc = bad(c, "tool_choice.allowed_tools.tools", "invalid_type", "expected an array.");
    if (!rc && (!mode || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0)))
        rc = bad(c, "tool_choice.allowed_tools.mode", "invalid_value",
                 "expected 'auto' or 'required'.");
    json_array_foreach(list, i, t)
    {
        json_t *f = json_object_get(t, "function");
        const char *name = json_string_value(json_object_get(f ? f : t, "name"));
        if (!rc && !known_name(g, name))
            rc = bad(c, at, "invalid_value", "it names a tool that 'tools' does not have.");
    }
    json_array_foreach(g->tools, k, u)
    {
        const char *is = json_string_value(json_object_get(json_object_get(u, "function"), "name"));
        bool keep = false;
        json_array_foreach(list, i, t)
        {
            json_t *f = json_object_get(t, "function");
            const char *name = json_string_value(json_object_get(f ? f : t, "name"));
            keep |= is && name && strcmp(is, name) == 0;
        }
        if (!rc && keep && json_array_append(kept, u))
            rc = api__nomem(c);
    }
    if (rc) {
        json_decref(kept);
        return rc;
    }
    json_decref(g->tools);
    g->tools = kept;
    g->must_call = strcmp(mode, "required") == 0;
    if (g->must_call && !json_array_size(kept))
        return bad(c, at, "invalid_value", "a call is required, but no tool is allowed.");
    return 0;
}

static int choose(struct api_call *c, struct gen *g, json_t *v, bool *none)
{
    static const char want[] = "expected 'none', 'auto', 'required' or {\"type\": \"function\", "
                               "\"function\": {\"name\": ...}}.";
    const char *word = json_string_value(v);
    const char *type = json_string_value(json_object_get(v, "type"));
    bool any = json_array_size(g->tools) > 0;
    if (!v || json_is_null(v))
        return 0;
    *none = word && strcmp(word, "none") == 0;
    if (*none || (word && strcmp(word, "auto") == 0))
        return 0;
    if (!any && (json_is_string(v) || json_is_object(v)))
        return bad(c, "tool_choice", "invalid_value", "there are no tools to choose from.");
    if (word && (strcmp(word, "required") == 0 || strcmp(word, "any") == 0)) {
        g->must_call = true;
        return 0;
    }
    if (!json_is_object(v))
        return bad(c, "tool_choice", word ? "invalid_value" : "invalid_type", want);
    if (!type || strcmp(type, "function") == 0) {
        json_t *fn = json_object_get(v, "function");
        if (json_is_object(fn))
            return pick_function(c, g, fn, "tool_choice.function.name");
        return pick_function(c, g, v, "tool_choice.name");
    }
    if (strcmp(type, "allowed_tools") == 0)
        return allow_tools(c, g, v);
    return bad(c, "tool_choice.type", "invalid_value", "expected 'function' or 'allowed_tools'.");
}

/* function_call of old: "none", "auto" or {"name": ...}. */
static int choose_old(struct api_call *c, struct gen *g, json_t *v, bool *none)
{
    const char *word = json_string_value(v);
    if (!v || json_is_null(v))
        return 0;
    *none = word && strcmp(word, "none") == 0;
    if (*none || (word && strcmp(word, "auto") == 0))
        return 0;
    if (json_is_object(v) && json_array_size(g->tools))
        return pick_function(c, g, v, "function_call.name");
    return bad(c, "function_call", "invalid_value",
               json_is_object(v) ? "there are no functions to choose from."
                                 : "expected 'none', 'auto' or {\"name\": ...}.");
}

int chat_tools(struct api_call *c, struct gen *g, json_t *o)
{
    json_t *tools = json_object_get(o, "tools"), *old = json_object_get(o, "functions");
    bool none = false, parallel;
    if (tools && !json_is_null(tools) && add_tools(c, g, tools, "tools"))
        return ERR_INVAL;
    if (old && !json_is_null(old) && !g->tools && add_tools(c, g, old, "functions"))
        return ERR_INVAL;
    if (choose(c, g, json_object_get(o, "tool_choice"), &none) ||
        choose_old(c, g, json_object_get(o, "function_call"), &none))
        return ERR_INVAL;
    /* A small model that is made to call never stops calling: one call, unless more are asked for. */
    parallel = !g->must_call;
    if (api__get_bool(c, o, "parallel_tool_calls", &parallel))
        return ERR_INVAL;
    if (none || !json_array_size(g->tools)) {
        json_decref(g->tools);
        g->tools = NULL;
        g->strict = false;
        return 0;
    }
    g->parse.max_calls = parallel && !g->only_call ? 0 : 1;
    return 0;
}
