/* Input of /v1/responses: items -> chat messages. What the model said in one turn (reasoning, text, calls) is several
 * items and one message. */
#include "api/responses_impl.h"
#include "engine/base/thread.h"

struct turn {
    struct api_call *c;
    struct gen *g;
    struct resp *r;
    json_t *said; /* the assistant message that further items of the turn join; borrowed */
    char at[96];  /* the item's path */
    int source;
};

const char *resp_id(const struct gen *g)
{
    return g->id + strlen("resp_");
}

static int bad_at(struct turn *x, const char *sub, const char *code, const char *why)
{
    char param[160];
    snprintf(param, sizeof param, "%s%s%s", x->at, *sub ? "." : "", sub);
    return talk_bad(x->c, param, code, why);
}

static int need_str(struct turn *x, json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return bad_at(x, key, "missing_required_parameter", "a string is required.");
    if (!json_is_string(v))
        return bad_at(x, key, "invalid_type", "expected a string.");
    return 0;
}

/* ---- content ---- */

/* The text of a content part, appended. `what` names the list: "content", "output", "summary". */
static int part_text(struct turn *x, json_t *p, const char *what, size_t k, struct buf *text)
{
    static const char *const texts[] = {"input_text",   "output_text",    "text",
                                        "summary_text", "reasoning_text", "refusal"};
    char sub[64];
    const char *type = json_string_value(json_object_get(p, "type"));
    snprintf(sub, sizeof sub, "%s[%zu].type", what, k);
    if (!json_is_object(p) || !type)
        return bad_at(x, sub, "missing_required_parameter", "a content part needs its type.");
    size_t i = 0, n = sizeof texts / sizeof *texts;
    while (i < n && strcmp(texts[i], type) != 0)
        i++;
    if (i == n)
        return strncmp(type, "input_", 6) == 0
                   ? bad_at(x, sub, "unsupported_value",
                            "this model takes text only, no images, audio or files.")
                   : bad_at(x, sub, "invalid_value", "unknown type of content.");
    json_t *t = json_object_get(p, strcmp(type, "refusal") == 0 ? "refusal" : "text");
    snprintf(sub, sizeof sub, "%s[%zu].text", what, k);
    if (!json_is_string(t))
        return bad_at(x, sub, t ? "invalid_type" : "missing_required_parameter",
                      "expected a string.");
    if (k)
        buf_char(text, '\n');
    buf_add(text, json_string_value(t), json_string_length(t));
    return 0;
}

/* A string or parts -> text. */
static int content_text(struct turn *x, json_t *o, const char *what, struct buf *text)
{
    json_t *v = json_object_get(o, what), *p;
    size_t k;
    if (json_is_string(v)) {
        buf_add(text, json_string_value(v), json_string_length(v));
        return 0;
    }
    if (!v || json_is_null(v))
        return bad_at(x, what, "missing_required_parameter", "it is required.");
    if (!json_is_array(v))
        return bad_at(x, what, "invalid_type", "expected a string or an array.");
    json_array_foreach(v, k, p) if (part_text(x, p, what, k, text)) return ERR_INVAL;
    return text->failed ? api__nomem(x->c) : 0;
}

static json_t *text_json(const struct buf *b)
{
    return b->failed ? NULL : json_stringn(b->p ? b->p : "", b->len);
}

/* ---- items ---- */

/* An item as input_items shows it: with an id, a status, and content in parts. */
static int keep_item(struct turn *x, json_t *item, const char *type, const char *prefix)
{
    json_t *copy = talk_object(item), *content = json_object_get(item, "content");
    const char *role = json_string_value(json_object_get(item, "role"));
    bool out = role && strcmp(role, "assistant") == 0, bad = !copy;
    if (!bad && !json_is_string(json_object_get(item, "id"))) {
        char id[96];
        snprintf(id, sizeof id, "%s_%s%02d", prefix, resp_id(x->g), x->r->n_id++);
        bad |= json_object_set_new(copy, "id", json_string(id)) != 0;
    }
    bad |= !bad && json_object_set_new(copy, "type", json_string(type));
    if (!bad && !json_is_string(json_object_get(item, "status")) && strcmp(type, "reasoning") != 0)
        bad |= json_object_set_new(copy, "status", json_string("completed")) != 0;
    if (!bad && json_is_string(content)) {
        json_t *part =
            json_pack("{s:s, s:O}", "type", out ? "output_text" : "input_text", "text", content);
        if (out)
            bad |= json_object_set_new(part, "annotations", json_array()) ||
                   json_object_set_new(part, "logprobs", json_array());
        bad |= json_object_set_new(copy, "content", json_pack("[o]", part)) != 0;
    }
    if (bad) {
        json_decref(copy);
        return api__nomem(x->c);
    }
    return json_array_append_new(x->r->items, copy) ? api__nomem(x->c) : 0;
}

/* The assistant's message that an item joins: the open one, or a new one if it has `key` already. */
static json_t *said(struct turn *x, const char *key)
{
    if (x->said && !json_object_get(x->said, key))
        return x->said;
    json_t *m = json_pack("{s:s}", "role", "assistant");
    if (talk_message(x->c, &x->r->t, m, x->source))
        return NULL;
    x->said = m;
    return m;
}

static int add_message(struct turn *x, json_t *item)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    struct buf text = {0};
    const char *role = json_string_value(json_object_get(item, "role"));
    size_t i = 0;
    if (need_str(x, item, "role"))
        return ERR_INVAL;
    while (i < 4 && strcmp(role, roles[i]) != 0)
        i++;
    if (i == 4)
        return bad_at(x, "role", "invalid_value",
                      "expected 'user', 'assistant', 'system' or 'developer'.");
    int rc = content_text(x, item, "content", &text);
    if (!rc && i == 1) {
        json_t *m = said(x, json_object_get(x->said, "tool_calls") ? "tool_calls" : "content");
        rc = !m ? ERR_INVAL : 0;
        if (m && json_object_set_new(m, "content", text_json(&text)))
            rc = api__nomem(x->c);
    } else if (!rc) {
        json_t *m = json_pack("{s:s, s:o}", "role", role, "content", text_json(&text));
        rc = talk_message(x->c, &x->r->t, m, x->source);
        x->said = NULL;
    }
    buf_free(&text);
    return rc ? rc : keep_item(x, item, "message", "msg");
}

static int add_call(struct turn *x, json_t *item)
{
    if (need_str(x, item, "call_id") || need_str(x, item, "name") || need_str(x, item, "arguments"))
        return ERR_INVAL;
    json_t *m = said(x, "");
    if (!m)
        return ERR_INVAL;
    json_t *calls = json_object_get(m, "tool_calls");
    if (!calls && json_object_set_new(m, "tool_calls", json_array()))
        return api__nomem(x->c);
    calls = json_object_get(m, "tool_calls");
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(item, "call_id"),
                             "type", "function", "function", "name", json_object_get(item, "name"),
                             "arguments", json_object_get(item, "arguments"));
    if (json_array_append_new(calls, call))
        return api__nomem(x->c);
    return keep_item(x, item, "function_call", "fc");
}

static int add_result(struct turn *x, json_t *item)
{
    struct buf text = {0};
    int rc = need_str(x, item, "call_id") || content_text(x, item, "output", &text) ? ERR_INVAL : 0;
    if (!rc)
        rc = talk_message(x->c, &x->r->t,
                          json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id",
                                    json_object_get(item, "call_id"), "content", text_json(&text)),
                          x->source);
    x->said = NULL;
    buf_free(&text);
    return rc ? rc : keep_item(x, item, "function_call_output", "fco");
}

/* Thoughts in the clear, or else their summary; encrypted ones of other servers say nothing here. */
static int add_reasoning(struct turn *x, json_t *item)
{
    struct buf text = {0};
    const char *what = json_array_size(json_object_get(item, "content")) ? "content" : "summary";
    json_t *v = json_object_get(item, what);
    int rc = 0;
    if (v && !json_is_null(v))
        rc = content_text(x, item, what, &text);
    if (!rc && text.len) {
        x->said = NULL; /* thoughts begin a turn */
        json_t *m = said(x, "reasoning_content");
        rc = m ? 0 : ERR_INVAL;
        if (m && json_object_set_new(m, "reasoning_content", text_json(&text)))
            rc = api__nomem(x->c);
    }
    buf_free(&text);
    if (!rc && !json_object_get(item, "summary") &&
        json_object_set_new(item, "summary", json_array()))
        rc = api__nomem(x->c);
    return rc ? rc : keep_item(x, item, "reasoning", "rs");
}

static int add_item(struct turn *x, json_t *item);

static json_t *by_id(json_t *list, const char *id)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        const char *is = json_string_value(json_object_get(v, "id"));
        if (is && strcmp(is, id) == 0)
            return v;
    }
    return NULL;
}

/* Parse what was stored. 0 or ERR_NOMEM. */
static int load(const struct response_kept *k, json_t **response, json_t **items)
{
    int rc = api__json_load(items, (struct view){k->items.p, k->items.len}, 0, NULL);
    return rc ? rc
              : api__json_load(response, (struct view){k->response.p, k->response.len}, 0, NULL);
}

/* An item of an answer that is stored. */
static int add_reference(struct turn *x, json_t *item)
{
    struct response_kept k = {0};
    json_t *response = NULL, *items = NULL, *found = NULL;
    struct view id = {json_string_value(json_object_get(item, "id")),
                      json_string_length(json_object_get(item, "id"))};
    int rc = need_str(x, item, "id");
    if (rc)
        return rc;
    rc = id.len ? response_store_item(x->c->api->responses, id, x->c->owner, clock_us(), &k)
                : ERR_NOTFOUND;
    if (!rc)
        rc = load(&k, &response, &items);
    if (!rc) {
        found = by_id(json_object_get(response, "output"), id.p);
        found = found ? found : by_id(items, id.p);
    }
    if (rc == ERR_NOMEM)
        rc = api__nomem(x->c);
    else if (!found)
        rc = bad_at(x, "id", "invalid_value", "no stored response has an item of this id.");
    else
        rc = add_item(x, found);
    response_kept_free(&k);
    json_decref(response);
    json_decref(items);
    return rc;
}

static int add_item(struct turn *x, json_t *item)
{
    if (!json_is_object(item))
        return bad_at(x, "", "invalid_type", "expected an object.");
    json_t *t = json_object_get(item, "type");
    const char *type = json_string_value(t);
    if (t && !json_is_null(t) && !type)
        return bad_at(x, "type", "invalid_type", "expected a string.");
    if (!type) /* {"role", "content"}, or {"id"} */
        type = json_object_get(item, "role") || !json_object_get(item, "id") ? "message"
                                                                             : "item_reference";
    if (strcmp(type, "message") == 0)
        return add_message(x, item);
    if (strcmp(type, "function_call") == 0)
        return add_call(x, item);
    if (strcmp(type, "function_call_output") == 0)
        return add_result(x, item);
    if (strcmp(type, "reasoning") == 0)
        return add_reasoning(x, item);
    if (strcmp(type, "item_reference") == 0)
        return add_reference(x, item);
    return bad_at(x, "type", "unsupported_value",
                  "expected 'message', 'function_call', 'function_call_output', 'reasoning' or "
                  "'item_reference'.");
}

/* What an earlier answer was given, and what it said. */
static int add_history(struct turn *x, json_t *o)
{
    struct response_kept k = {0};
    struct view id = {0};
    json_t *response = NULL, *items = NULL, *v;
    size_t i;
    if (api__get_str(x->c, o, "previous_response_id", &id))
        return ERR_INVAL;
    if (!id.p)
        return 0;
    int rc = response_store_get(x->c->api->responses, id, x->c->owner, clock_us(), &k);
    if (rc == ERR_NOTFOUND)
        return api__bad(x->c, "previous_response_id", "previous_response_not_found",
                        "Previous response with id '%.*s' not found.",
                        id.len > 80 ? 80 : (int)id.len, id.p);
    if (!rc)
        rc = load(&k, &response, &items);
    if (rc)
        rc = api__nomem(x->c);
    snprintf(x->at, sizeof x->at, "previous_response_id");
    x->source = -2;
    json_array_foreach(items, i, v) rc = rc ? rc : add_item(x, v);
    json_array_foreach(json_object_get(response, "output"), i, v) rc = rc ? rc : add_item(x, v);
    response_kept_free(&k);
    json_decref(response);
    json_decref(items);
    return rc;
}

static int add_input(struct turn *x, json_t *o)
{
    json_t *in = json_object_get(o, "input"), *v;
    size_t i;
    if (json_is_string(in)) {
        json_t *m = json_pack("{s:s, s:O}", "role", "user", "content", in);
        x->source = -3;
        snprintf(x->at, sizeof x->at, "input");
        int rc = m ? add_message(x, m) : api__nomem(x->c);
        json_decref(m);
        return rc;
    }
    if (!in || json_is_null(in))
        return api__bad(x->c, "input", "missing_required_parameter",
                        "Missing required parameter: 'input'.");
    if (!json_is_array(in))
        return api__bad(x->c, "input", "invalid_type",
                        "Invalid type for 'input': expected a string or an array of items, but got "
                        "%s.",
                        api__json_type(in));
    if (!json_array_size(in))
        return talk_bad(x->c, "input", "empty_array", "at least one item is expected.");
    if (json_array_size(in) > (size_t)x->c->api->o.max_messages)
        return talk_bad(x->c, "input", "array_above_max_length", "too many items.");
    json_array_foreach(in, i, v)
    {
        x->source = (int)i;
        talk_at(x->at, sizeof x->at, "input", i, "");
        if (add_item(x, v))
            return ERR_INVAL;
    }
    return 0;
}

/* A turn of thoughts alone: chat wants content or calls. */
static int fill_content(struct api_call *c, const struct talk *t)
{
    size_t i;
    json_t *m;
    json_array_foreach(
        json_object_get(t->chat, "messages"), i,
        m) if (!json_object_get(m, "content") && !json_object_get(m, "tool_calls") &&
               json_object_set_new(m, "content", json_string(""))) return api__nomem(c);
    return 0;
}

int resp_input(struct api_call *c, struct gen *g, json_t *o)
{
    struct turn x = {.c = c, .g = g, .r = g->own, .source = -1};
    struct view rules = {0};
    x.r->items = json_array();
    if (!x.r->items)
        return api__nomem(c);
    if (api__get_str(c, o, "instructions", &rules))
        return ERR_INVAL;
    if (rules.len && talk_message(c, &x.r->t,
                                  json_pack("{s:s, s:O}", "role", "system", "content",
                                            json_object_get(o, "instructions")),
                                  -1))
        return ERR_INVAL;
    if (add_history(&x, o) || add_input(&x, o))
        return ERR_INVAL;
    return fill_content(c, &x.r->t);
}
