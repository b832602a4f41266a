/* Fields of /v1/messages -> fields of chat. A user's message with results of tools is one message each and the rest. */
#include "api/messages_impl.h"

const char *const msg_fields[] = {"model", "messages", "system", "max_tokens", "stream",
                                  "stop_sequences", "temperature", "top_p", "top_k", "tools",
                                  "tool_choice", "thinking", "metadata", "service_tier",
                                  "output_config", "output_format", "cache_control",
                                  "inference_geo", "container", "mcp_servers", "context_management",
                                  /* of this server's chat */
                                  "seed", "min_p", "priority", "cache_salt", "ignore_eos",
                                  "min_tokens", "chat_template_kwargs", "timeout", NULL};
static const char *const same[] = {"model",      "stream",  "temperature", "top_p",
                                   "top_k",      "seed",    "min_p",       "priority",
                                   "cache_salt", "timeout", "ignore_eos",  "chat_template_kwargs",
                                   "min_tokens", NULL};

/* One message being taken apart. */
struct piece {
    struct api_call *c;
    struct talk *t;
    char at[64];
    int source;
    bool assistant;
    struct buf text, thought;
    json_t *calls;
};

static int bad_at(struct piece *x, const char *sub, const char *code, const char *why)
{
    char param[160];
    snprintf(param, sizeof param, "%s%s%s", x->at, *sub ? "." : "", sub);
    return talk_bad(x->c, param, code, why);
}

static json_t *text_json(const struct buf *b)
{
    return b->failed ? NULL : json_stringn(b->p ? b->p : "", b->len);
}

/* A member that must be a string; `at`: the path of the object. */
static int need_str(struct api_call *c, json_t *o, const char *at, const char *key)
{
    char param[160];
    json_t *v = json_object_get(o, key);
    snprintf(param, sizeof param, "%s.%s", at, key);
    if (!v || json_is_null(v))
        return talk_bad(c, param, "missing_required_parameter", "a string is required.");
    return json_is_string(v) ? 0 : talk_bad(c, param, "invalid_type", "expected a string.");
}

/* A string, or an array of text blocks, under its path -> text. */
static int plain_text(struct api_call *c, json_t *v, const char *at, struct buf *text)
{
    char param[160];
    size_t i;
    json_t *b;
    if (json_is_string(v))
        buf_add(text, json_string_value(v), json_string_length(v));
    else if (!json_is_array(v))
        return talk_bad(c, at, v ? "invalid_type" : "missing_required_parameter",
                        "expected a string or an array of text blocks.");
    json_array_foreach(v, i, b)
    {
        const char *type = json_string_value(json_object_get(b, "type"));
        talk_at(param, sizeof param, at, i, "");
        if (!json_is_object(b))
            return talk_bad(c, param, "invalid_type", "expected an object.");
        if (!type || strcmp(type, "text") != 0)
            return talk_bad(c, talk_at(param, sizeof param, at, i, "type"),
                            type ? "unsupported_value" : "missing_required_parameter",
                            "only 'text' is supported here.");
        if (need_str(c, b, param, "text"))
            return ERR_INVAL;
        json_t *s = json_object_get(b, "text");
        if (i)
            buf_char(text, '\n');
        buf_add(text, json_string_value(s), json_string_length(s));
    }
    return text->failed ? api__nomem(c) : 0;
}

static int get_system(struct api_call *c, struct talk *t, json_t *o)
{
    struct buf text = {0};
    json_t *v = json_object_get(o, "system");
    if (!v || json_is_null(v))
        return 0;
    int rc = plain_text(c, v, "system", &text);
    if (!rc && text.len)
        rc = talk_message(
            c, t, json_pack("{s:s, s:o}", "role", "system", "content", text_json(&text)), -1);
    buf_free(&text);
    return rc;
}

/* ---- blocks of a message ---- */

static int add_text(struct piece *x, json_t *b, const char *at)
{
    json_t *s = json_object_get(b, "text");
    if (need_str(x->c, b, at, "text"))
        return ERR_INVAL;
    if (x->text.len)
        buf_char(&x->text, '\n');
    buf_add(&x->text, json_string_value(s), json_string_length(s));
    return x->text.failed ? api__nomem(x->c) : 0;
}

static int add_thought(struct piece *x, json_t *b, const char *at)
{
    json_t *s = json_object_get(b, "thinking");
    if (need_str(x->c, b, at, "thinking"))
        return ERR_INVAL;
    buf_add(&x->thought, json_string_value(s), json_string_length(s));
    return x->thought.failed ? api__nomem(x->c) : 0;
}

static int add_call(struct piece *x, json_t *b, const char *at)
{
    char param[160];
    json_t *in = json_object_get(b, "input");
    if (need_str(x->c, b, at, "id") || need_str(x->c, b, at, "name"))
        return ERR_INVAL;
    snprintf(param, sizeof param, "%s.input", at);
    if (!json_is_object(in))
        return talk_bad(x->c, param, in ? "invalid_type" : "missing_required_parameter",
                        "expected an object.");
    char *args = json_dumps(in, 0);
    json_t *call = args ? json_pack("{s:O, s:s, s:{s:O, s:s}}", "id", json_object_get(b, "id"),
                                    "type", "function", "function", "name",
                                    json_object_get(b, "name"), "arguments", args)
                        : NULL;
    free(args);
    if (!x->calls)
        x->calls = json_array();
    return json_array_append_new(x->calls, call) ? api__nomem(x->c) : 0;
}

/* The result of a tool: a message of its own, at once, for it comes before the user's own words. */
static int add_result(struct piece *x, json_t *b, const char *at)
{
    char param[160];
    struct buf text = {0};
    json_t *v = json_object_get(b, "content");
    if (need_str(x->c, b, at, "tool_use_id"))
        return ERR_INVAL;
    snprintf(param, sizeof param, "%s.content", at);
    int rc = v && !json_is_null(v) ? plain_text(x->c, v, param, &text) : 0;
    if (!rc)
        rc = talk_message(x->c, x->t,
                          json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id",
                                    json_object_get(b, "tool_use_id"), "content", text_json(&text)),
                          x->source);
    buf_free(&text);
    return rc;
}

static int add_block(struct piece *x, json_t *b, size_t k)
{
    char at[128], param[160];
    const char *type = json_string_value(json_object_get(b, "type"));
    snprintf(at, sizeof at, "%s.content[%zu]", x->at, k);
    snprintf(param, sizeof param, "%s.type", at);
    if (!json_is_object(b))
        return talk_bad(x->c, at, "invalid_type", "expected an object.");
    if (!type)
        return talk_bad(x->c, param, "missing_required_parameter", "a block needs its type.");
    if (strcmp(type, "text") == 0)
        return add_text(x, b, at);
    if (strcmp(type, "thinking") == 0 && x->assistant)
        return add_thought(x, b, at);
    if (strcmp(type, "redacted_thinking") == 0 && x->assistant)
        return 0; /* of another server: nobody here can read it */
    if (strcmp(type, "tool_use") == 0 && x->assistant)
        return add_call(x, b, at);
    if (strcmp(type, "tool_result") == 0 && !x->assistant)
        return add_result(x, b, at);
    if (strcmp(type, "image") == 0 || strcmp(type, "document") == 0)
        return talk_bad(x->c, param, "unsupported_value",
                        "this model takes text only, no images or documents.");
    return talk_bad(x->c, param, "unsupported_value",
                    x->assistant ? "expected 'text', 'thinking' or 'tool_use'."
                                 : "expected 'text' or 'tool_result'.");
}

static int finish_message(struct piece *x, bool plain, size_t n_block)
{
    json_t *m;
    if (!x->assistant && !plain && !x->text.len && n_block)
        return 0; /* results only */
    m = json_pack("{s:s, s:o}", "role", x->assistant ? "assistant" : "user", "content",
                  text_json(&x->text));
    bool bad = !m;
    if (!bad && x->calls) {
        bad |= json_object_set(m, "tool_calls", x->calls) != 0;
        if (!x->text.len)
            bad |= json_object_set_new(m, "content", json_null()) != 0;
    }
    if (!bad && x->thought.len)
        bad |= json_object_set_new(m, "reasoning_content", text_json(&x->thought)) != 0;
    if (bad) {
        json_decref(m);
        return api__nomem(x->c);
    }
    return talk_message(x->c, x->t, m, x->source);
}

static int one_message(struct piece *x, json_t *m)
{
    size_t k, n = 0;
    int rc = 0;
    json_t *b, *v = json_object_get(m, "content");
    const char *role = json_string_value(json_object_get(m, "role"));
    if (!json_is_object(m))
        return bad_at(x, "", "invalid_type", "expected an object.");
    if (need_str(x->c, m, x->at, "role"))
        return ERR_INVAL;
    x->assistant = strcmp(role, "assistant") == 0;
    if (!x->assistant && strcmp(role, "user") != 0)
        return bad_at(x, "role", "invalid_value",
                      "expected 'user' or 'assistant'; what a system message says stands in "
                      "'system'.");
    if (json_is_string(v)) {
        buf_add(&x->text, json_string_value(v), json_string_length(v));
    } else if (json_is_array(v)) {
        n = json_array_size(v);
        json_array_foreach(v, k, b) rc = rc ? rc : add_block(x, b, k);
    } else {
        rc = bad_at(x, "content", v ? "invalid_type" : "missing_required_parameter",
                    "expected a string or an array of blocks.");
    }
    return rc ? rc : finish_message(x, json_is_string(v), n);
}

/* An assistant's message at the end is the beginning of the answer. */
static int go_on(struct api_call *c, struct talk *t)
{
    json_t *list = json_object_get(t->chat, "messages");
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0 || json_object_get(last, "tool_calls") ||
        !json_string_length(json_object_get(last, "content")))
        return 0;
    if (json_object_set_new(t->chat, "continue_final_message", json_true()) ||
        json_object_set_new(t->chat, "add_generation_prompt", json_false()))
        return api__nomem(c);
    return 0;
}

static int get_messages(struct api_call *c, struct talk *t, json_t *o)
{
    json_t *list = json_object_get(o, "messages"), *m;
    size_t i;
    if (!list || json_is_null(list))
        return talk_bad(c, "messages", "missing_required_parameter", "it is required.");
    if (!json_is_array(list))
        return talk_bad(c, "messages", "invalid_type", "expected an array.");
    if (!json_array_size(list))
        return talk_bad(c, "messages", "empty_array", "at least one message is expected.");
    json_array_foreach(list, i, m)
    {
        struct piece x = {.c = c, .t = t, .source = (int)i};
        talk_at(x.at, sizeof x.at, "messages", i, "");
        int rc = one_message(&x, m);
        buf_free(&x.text);
        buf_free(&x.thought);
        json_decref(x.calls);
        if (rc)
            return rc;
    }
    return go_on(c, t);
}

/* ---- tools ---- */

static int one_tool(struct api_call *c, json_t *out, json_t *tool, size_t i)
{
    static const char *const keys[] = {"name", "description", "strict"};
    char at[64];
    const char *type = json_string_value(json_object_get(tool, "type"));
    json_t *schema = json_object_get(tool, "input_schema"), *fn = json_object();
    bool bad = !fn;
    talk_at(at, sizeof at, "tools", i, "");
    if (json_is_object(tool) && (!type || strcmp(type, "custom") == 0) && json_is_object(schema)) {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *v = json_object_get(tool, keys[k]);
            bad |= v && json_object_set(fn, keys[k], v);
        }
        bad |= json_object_set(fn, "parameters", schema) != 0;
        json_t *t = json_pack("{s:s, s:O}", "type", "function", "function", fn);
        json_decref(fn);
        return json_array_append_new(out, t) || bad ? api__nomem(c) : 0;
    }
    json_decref(fn);
    if (!json_is_object(tool))
        return talk_bad(c, at, "invalid_type", "expected an object.");
    if (type && strcmp(type, "custom") != 0)
        return talk_bad(c, talk_at(at, sizeof at, "tools", i, "type"), "unsupported_value",
                        "this server runs no tools of its own; only 'custom' is supported.");
    return talk_bad(c, talk_at(at, sizeof at, "tools", i, "input_schema"),
                    schema ? "invalid_type" : "missing_required_parameter",
                    "expected a JSON schema, an object.");
}

static int get_tools(struct api_call *c, struct talk *t, json_t *o)
{
    json_t *list, *out, *tool;
    size_t i;
    if (talk_tools(c, t, o, &list, &out))
        return ERR_INVAL;
    json_array_foreach(list, i, tool) if (one_tool(c, out, tool, i)) return ERR_INVAL;
    return 0;
}

static int get_choice(struct api_call *c, struct talk *t, json_t *o)
{
    static const char *const words[][2] = {
        {"auto", "auto"}, {"any", "required"}, {"none", "none"}, {"tool", NULL}};
    json_t *v = json_object_get(o, "tool_choice"), *out = NULL;
    const char *type = json_string_value(json_object_get(v, "type"));
    bool alone = false;
    size_t i = 0;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_object(v))
        return talk_bad(c, "tool_choice", "invalid_type", "expected an object.");
    while (type && i < 4 && strcmp(type, words[i][0]) != 0)
        i++;
    if (!type || i == 4)
        return talk_bad(c, "tool_choice.type",
                        type ? "invalid_value" : "missing_required_parameter",
                        "expected 'auto', 'any', 'tool' or 'none'.");
    if (api__bool_at(c, json_object_get(v, "disable_parallel_tool_use"),
                     "tool_choice.disable_parallel_tool_use", &alone) ||
        (!words[i][1] && need_str(c, v, "tool_choice", "name")))
        return ERR_INVAL;
    out = words[i][1] ? json_string(words[i][1])
                      : json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name",
                                  json_object_get(v, "name"));
    if (json_object_set_new(t->chat, "tool_choice", out) ||
        (alone && json_object_set_new(t->chat, "parallel_tool_calls", json_false())))
        return api__nomem(c);
    return 0;
}

/* ---- the rest ---- */

/* {"type": "enabled", "budget_tokens"}, "adaptive" or "disabled". */
static int get_thinking(struct api_call *c, struct gen *g, struct talk *t, json_t *o)
{
    json_t *v = json_object_get(o, "thinking");
    const char *type = json_string_value(json_object_get(v, "type")), *effort = NULL;
    json_t *n = json_object_get(v, "budget_tokens");
    const char *show = json_string_value(json_object_get(v, "display"));
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_object(v))
        return talk_bad(c, "thinking", "invalid_type", "expected an object.");
    if (type && strcmp(type, "disabled") == 0)
        effort = "none";
    else if (type && strcmp(type, "enabled") == 0)
        effort = "medium";
    else if (!type || strcmp(type, "adaptive") != 0)
        return talk_bad(c, "thinking.type", type ? "invalid_value" : "missing_required_parameter",
                        "expected 'enabled', 'adaptive' or 'disabled'.");
    if (effort && *effort == 'm' && !(json_is_integer(n) && json_integer_value(n) > 0))
        return talk_bad(c, "thinking.budget_tokens",
                        n ? "invalid_value" : "missing_required_parameter",
                        "a number of tokens is expected.");
    if (effort && json_object_set_new(t->chat, "reasoning_effort", json_string(effort)))
        return api__nomem(c);
    if (effort && *effort == 'm' && json_object_set(t->chat, "thinking_token_budget", n))
        return api__nomem(c);
    (void)g;
    return show && strcmp(show, "omitted") == 0 &&
                   json_object_set_new(t->chat, "include_reasoning", json_false())
               ? api__nomem(c)
               : 0;
}

/* output_config: {"effort", "format"}; format also as output_format. */
static int get_output(struct api_call *c, struct talk *t, json_t *o)
{
    json_t *v = json_object_get(o, "output_config"), *f = json_object_get(o, "output_format");
    if (v && !json_is_null(v) && !json_is_object(v))
        return talk_bad(c, "output_config", "invalid_type", "expected an object.");
    json_t *effort = json_object_get(v, "effort");
    if (json_object_get(v, "format"))
        f = json_object_get(v, "format");
    if (effort && !json_is_null(effort) && json_object_set(t->chat, "reasoning_effort", effort))
        return api__nomem(c);
    if (!f || json_is_null(f))
        return 0;
    const char *type = json_string_value(json_object_get(f, "type"));
    if (!type || strcmp(type, "json_schema") != 0)
        return talk_bad(c, "output_config.format.type",
                        type ? "invalid_value" : "missing_required_parameter",
                        "expected 'json_schema'.");
    if (json_object_set_new(t->chat, "response_format",
                            json_pack("{s:s, s:{s:s, s:O?}}", "type", "json_schema", "json_schema",
                                      "name", "output", "schema", json_object_get(f, "schema"))))
        return api__nomem(c);
    return 0;
}

static int get_max(struct api_call *c, struct msg *m, json_t *o)
{
    int64_t range[2] = {1, INT32_MAX}, n = -1;
    if (api__get_int(c, o, "max_tokens", range, &n))
        return ERR_INVAL;
    if (n < 0 && !m->counting)
        return talk_bad(c, "max_tokens", "missing_required_parameter", "it is required.");
    return n > 0 && json_object_set_new(m->t.chat, "max_completion_tokens", json_integer(n))
               ? api__nomem(c)
               : 0;
}

/* What would change the answer, and is not done here. */
static int refuse_others(struct api_call *c, json_t *o)
{
    static const char *const no[] = {"container", "mcp_servers", "context_management"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        json_t *v = json_object_get(o, no[i]);
        if (v && !json_is_null(v) && !(json_is_array(v) && !json_array_size(v)))
            return talk_bad(c, no[i], "unsupported_parameter", "this server does not support it.");
    }
    return 0;
}

int msg_input(struct api_call *c, struct gen *g, json_t *o)
{
    struct msg *m = g->own;
    struct talk *t = &m->t;
    json_t *stop = json_object_get(o, "stop_sequences");
    g->most_stop = GEN_STOP_MAX;
    if (api__check_fields(c, o, msg_fields, msg_fields) || refuse_others(c, o) ||
        get_max(c, m, o) || talk_copy(c, t, o, same) || get_system(c, t, o) ||
        get_messages(c, t, o) || get_tools(c, t, o) || get_choice(c, t, o) ||
        get_thinking(c, g, t, o) || get_output(c, t, o))
        return ERR_INVAL;
    if (stop && !json_is_null(stop) && !json_is_array(stop))
        return talk_bad(c, "stop_sequences", "invalid_type", "expected an array of strings.");
    return stop && json_object_set(t->chat, "stop", stop) ? api__nomem(c) : 0;
}
