/* Chat messages -> prompt tokens: check and normalise the messages, render the model's template, tokenise.
 *
 * Text that a client wrote never becomes a control token, whatever it spells: before rendering, a
 * noncharacter that occurs nowhere in the request is put inside every spelling of a control token in the
 * messages; after rendering it is taken out again and the tokenizer is told not to recognise special
 * tokens across those places. */
#include <ctype.h>
#include <stdlib.h>

#include "api/gen.h"
#include "api/stream_impl.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

struct chat_ctx {
    struct api_call *c;
    struct gen *g;
    json_t *out; /* normalised messages */
    char param[96];
    char sent[4];     /* the separator, 3 bytes of UTF-8 */
    bool any_spelled; /* some text spells a control token */
    bool developer;   /* the template knows the role */
    bool last_calls;  /* the last message has tool calls */
    bool as_text;     /* it knows no tools: calls and results become text */
};

static int bad_at(struct chat_ctx *x, const char *sub, const char *code, const char *text)
{
    char param[160];
    snprintf(param, sizeof param, "%s%s%s", x->param, *sub ? "." : "", sub);
    return api__bad(x->c, param, code, "Invalid '%s': %s", param, text);
}

/* Case-insensitive search of the body for `word`, in one pass. */
static bool body_has(const struct api_call *c, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = c->body; (p = memchr(p, '\\', c->body_len - (size_t)(p - c->body))); p++)
        if (c->body_len - (size_t)(p - c->body) > n && strncasecmp(p + 1, word, n) == 0)
            return true;
    return false;
}

/* Choose a noncharacter U+FDD0..U+FDEF that the body does not hold. */
static int pick_separator(struct chat_ctx *x)
{
    for (int k = 0; k < 32; k++) {
        char s[4] = {(char)0xEF, (char)0xB7, (char)(0x90 + k), 0};
        char esc[8]; /* the body may spell it as an escape */
        snprintf(esc, sizeof esc, "ufd%x%x", 0xd + k / 16, k % 16);
        if (!memmem(x->c->body, x->c->body_len, s, 3) && !body_has(x->c, esc)) {
            memcpy(x->sent, s, 4);
            return 0;
        }
    }
    return api__bad(x->c, "messages", "invalid_value",
                    "The messages hold too many noncharacters (U+FDD0 to U+FDEF).");
}

/* In m->control[lo, hi), whose texts agree before byte k: the first that is not below c there (above c with
 * `past`). Texts that end before it are below any c. */
static int control_bound(const struct api_model *m, int lo, int hi, size_t k, int c, bool past)
{
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const struct view *v = &m->control[mid];
        int at = k < v->len ? (unsigned char)v->p[k] : -1;
        if (at < c || (past && at == c))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Length of the longest control token that s spells at its start, or 0. */
static size_t control_at(const struct api_model *m, const char *s, size_t n)
{
    size_t best = 0;
    int lo = 0, hi = m->n_control;
    for (size_t k = 0; k < n; k++) {
        int c = (unsigned char)s[k];
        lo = control_bound(m, lo, hi, k, c, false);
        hi = control_bound(m, lo, hi, k, c, true);
        if (lo == hi)
            break;
        if (m->control[lo].len == k + 1) /* the shortest of a range sorts first */
            best = k + 1;
    }
    return best;
}

/* Client text with separators inside control spellings; a new JSON string. */
static json_t *guard(struct chat_ctx *x, const char *s, size_t n)
{
    struct buf b = {0};
    const struct api_model *m = x->g->m;
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        if (!m->control_first[(unsigned char)s[i]])
            continue;
        size_t k = control_at(m, s + i, n - i);
        if (k < 2)
            continue;
        int head = utf8_len(s + i, n - i); /* JSON strings are UTF-8: > 0 */
        buf_add(&b, s + from, i + (size_t)head - from);
        buf_add(&b, x->sent, 3);
        from = i + (size_t)head;
        i += k - 1;
        x->any_spelled = true;
    }
    if (from == 0)
        return json_stringn(s, n);
    buf_add(&b, s + from, n - from);
    json_t *v = b.failed ? NULL : json_stringn(b.p, b.len);
    buf_free(&b);
    return v;
}

/* The same for every string of a value, keys too; a new value, NULL without memory. Depth: the body's limit. */
static json_t *guard_all(struct chat_ctx *x, json_t *v)
{
    json_t *out, *e;
    const char *key;
    size_t i;
    bool bad = false;
    if (json_is_string(v))
        return guard(x, json_string_value(v), json_string_length(v));
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, e) bad |= json_array_append_new(out, guard_all(x, e)) != 0;
    } else if (json_is_object(v)) {
        out = json_object();
        json_object_foreach(v, key, e)
        {
            json_t *k = guard(x, key, strlen(key));
            bad |= !k || json_object_set_new(out, json_string_value(k), guard_all(x, e));
            json_decref(k);
        }
    } else {
        return json_incref(v);
    }
    if (bad)
        json_decref(out);
    return bad ? NULL : out;
}

/* ---- messages ---- */

static int part_text(struct chat_ctx *x, json_t *p, size_t k, struct buf *text)
{
    char at[48];
    const char *type = json_string_value(json_object_get(p, "type"));
    snprintf(at, sizeof at, "content[%zu].type", k);
    if (!json_is_object(p) || !type)
        return bad_at(x, at, "invalid_value", "a content part needs a 'type'.");
    if (strcmp(type, "text") == 0 || strcmp(type, "refusal") == 0 ||
        strcmp(type, "input_text") == 0) {
        json_t *t = json_object_get(p, strcmp(type, "refusal") == 0 ? "refusal" : "text");
        snprintf(at, sizeof at, "content[%zu].text", k);
        if (!json_is_string(t))
            return bad_at(x, at, "invalid_type", "a text part needs its text as a string.");
        if (k)
            buf_char(text, '\n');
        buf_add(text, json_string_value(t), json_string_length(t));
        return 0;
    }
    if (strcmp(type, "image_url") == 0 || strcmp(type, "input_audio") == 0 ||
        strcmp(type, "file") == 0 || strcmp(type, "video_url") == 0)
        return bad_at(x, "content", NULL, "this model takes text only, no images, audio or files.");
    return bad_at(x, at, "invalid_value", "unknown content part type.");
}

/* content (string, parts, null) -> "content" of the normalised message. */
static int put_content(struct chat_ctx *x, json_t *msg, json_t *m, bool may_lack)
{
    json_t *v = json_object_get(msg, "content");
    struct buf text = {0};
    int rc = 0;
    if (!v || json_is_null(v)) {
        if (!may_lack)
            return bad_at(x, "content", "invalid_type",
                          "expected a string or an array of content parts, but got null.");
        return json_object_set_new(m, "content", json_string("")) ? api__nomem(x->c) : 0;
    }
    if (json_is_string(v))
        return json_object_set_new(m, "content",
                                   guard(x, json_string_value(v), json_string_length(v)))
                   ? api__nomem(x->c)
                   : 0;
    if (!json_is_array(v))
        return bad_at(x, "content", "invalid_type",
                      "expected a string or an array of content parts.");
    if (json_array_size(v) == 0)
        return bad_at(x, "content", "empty_array", "expected at least one content part.");
    for (size_t k = 0; !rc && k < json_array_size(v); k++)
        rc = part_text(x, json_array_get(v, k), k, &text);
    if (!rc &&
        (text.failed || json_object_set_new(m, "content", guard(x, buf_cstr(&text), text.len))))
        rc = api__nomem(x->c);
    buf_free(&text);
    return rc;
}

static bool name_ok(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) {
        if (strchr(" \t\r\n\v\f<|\\/>", s[i]))
            return false;
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    }
    return chars >= 1 && chars <= 64;
}

/* The arguments of an earlier call: an object where their text is one. Its own depth counts, for it comes from
 * inside a string that the body's check has skipped. */
static int parse_arguments(struct chat_ctx *x, json_t *fn)
{
    json_t *args = json_object_get(fn, "arguments");
    if (x->g->m->args_text && !x->as_text) {
        char *text = json_is_object(args) ? json_dumps(args, 0) : NULL;
        int rc = json_is_object(args) &&
                 (!text || json_object_set_new(fn, "arguments", json_string(text)));
        free(text);
        return rc ? api__nomem(x->c) : 0;
    }
    if (!json_is_string(args))
        return 0;
    const char *s = json_string_value(args);
    size_t n = json_string_length(args);
    if (api__json_depth(s, n) > x->c->api->o.max_json_depth)
        return bad_at(x, "tool_calls", "invalid_value", "arguments are nested too deep.");
    json_t *v = NULL;
    if (api__json_load(&v, (struct view){s, n}, 0, NULL) == ERR_NOMEM)
        return api__nomem(x->c);
    if (json_is_object(v))
        return json_object_set_new(fn, "arguments", v) ? api__nomem(x->c) : 0;
    json_decref(v);
    return 0;
}

/* Some templates take ids of 9 letters and digits only: others are mapped to such. */
static int put_id(struct chat_ctx *x, json_t *o, const char *key)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    static const struct hash_key fixed = {0x746f6f6c2063616cu, 0x6c20696473206f66u};
    json_t *v = json_object_get(o, key);
    const char *s = json_string_value(v);
    size_t n = json_string_length(v), k = 0;
    char id[10] = "";
    if (!x->g->m->format.family->brief_id || !s)
        return 0;
    while (k < n && isalnum((unsigned char)s[k]))
        k++;
    if (n == 9 && k == n)
        return 0;
    uint64_t h = hash_bytes(fixed, s, n);
    for (int i = 0; i < 9; i++, h /= 36)
        id[i] = digits[h % 36];
    return json_object_set_new(o, key, json_string(id)) ? api__nomem(x->c) : 0;
}

/* Templates want to know whose result a message is; the client may have said so by the call's id only. */
static int name_result(struct chat_ctx *x, json_t *m)
{
    const char *id = json_string_value(json_object_get(m, "tool_call_id"));
    json_t *old, *tc;
    size_t i, k;
    if (!id || json_object_get(m, "name"))
        return 0;
    json_array_foreach(x->out, i, old)
    {
        json_array_foreach(json_object_get(old, "tool_calls"), k, tc)
        {
            const char *is = json_string_value(json_object_get(tc, "id"));
            json_t *name = json_object_get(json_object_get(tc, "function"), "name");
            if (is && strcmp(is, id) == 0 && json_object_set(m, "name", name))
                return api__nomem(x->c);
        }
    }
    return 0;
}

/* Tool calls of an earlier turn (or the one function_call of old), as templates want them. */
static int put_tool_calls(struct chat_ctx *x, json_t *msg, json_t *m)
{
    json_t *calls = json_object_get(msg, "tool_calls"),
           *old = json_object_get(msg, "function_call");
    json_t *copy, *tc, *all;
    size_t i;
    int rc = 0;
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return bad_at(x, "tool_calls", "invalid_type", "expected an array.");
    if (json_array_size(calls) > 0)
        copy = json_deep_copy(calls);
    else if (json_is_object(old))
        copy = json_pack("[{s:s, s:o}]", "type", "function", "function", json_deep_copy(old));
    else
        return 0;
    if (!copy)
        return api__nomem(x->c);
    json_array_foreach(copy, i, tc)
    {
        json_t *fn = json_object_get(tc, "function");
        if (rc)
            break;
        if (!json_is_object(fn) || !json_is_string(json_object_get(fn, "name")))
            rc =
                bad_at(x, "tool_calls", "invalid_value", "each call needs a function with a name.");
        else
            rc = parse_arguments(x, fn);
        if (!rc)
            rc = put_id(x, tc, "id");
    }
    all = rc ? NULL : guard_all(x, copy);
    json_decref(copy);
    if (rc)
        return rc;
    return json_object_set_new(m, "tool_calls", all) ? api__nomem(x->c) : 0;
}

static int put_strings(struct chat_ctx *x, json_t *msg, json_t *m)
{
    static const char *const keys[] = {"name", "tool_call_id", "reasoning_content", "reasoning",
                                       "thinking"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *v = json_object_get(msg, keys[i]);
        if (!v || json_is_null(v))
            continue;
        if (!json_is_string(v))
            return bad_at(x, keys[i], "invalid_type", "expected a string.");
        if (i == 0 && !name_ok(json_string_value(v), json_string_length(v)))
            return bad_at(x, "name", "invalid_value",
                          "1 to 64 characters without spaces or any of < | \\ / >.");
        if (json_object_set_new(m, keys[i], guard(x, json_string_value(v), json_string_length(v))))
            return api__nomem(x->c);
    }
    /* Templates know the same text under either name. */
    json_t *rc = json_object_get(m, "reasoning_content"), *th = json_object_get(m, "thinking");
    int bad = 0;
    if (rc && !th)
        bad = json_object_set(m, "thinking", rc);
    else if (th && !rc)
        bad = json_object_set(m, "reasoning_content", th);
    return bad ? api__nomem(x->c) : 0;
}

static int empty_to_null(json_t *m)
{
    return json_string_length(json_object_get(m, "content")) == 0 &&
           json_object_set_new(m, "content", json_null());
}

static int one_message(struct chat_ctx *x, json_t *msg)
{
    static const char *const roles[] = {"system", "user",     "assistant",
                                        "tool",   "function", "developer"};
    if (!json_is_object(msg))
        return bad_at(x, "", "invalid_type", "expected an object.");
    json_t *rv = json_object_get(msg, "role");
    if (!rv || json_is_null(rv))
        return bad_at(x, "role", "missing_required_parameter", "missing required parameter.");
    const char *role = json_string_value(rv);
    size_t k = 0, n_roles = sizeof roles / sizeof *roles;
    while (role && k < n_roles && strcmp(roles[k], role) != 0)
        k++;
    if (!role)
        return bad_at(x, "role", "invalid_type", "expected a string.");
    if (k == n_roles)
        return bad_at(x, "role", "invalid_value",
                      "expected 'system', 'developer', 'user', 'assistant' or 'tool'.");
    if (strcmp(role, "developer") == 0 && !x->developer)
        role = "system";
    json_t *m = json_object();
    if (!m || json_array_append_new(x->out, m) || json_object_set_new(m, "role", json_string(role)))
        return api__nomem(x->c);
    json_t *calls = json_object_get(msg, "tool_calls");
    x->last_calls = json_array_size(calls) > 0;
    bool may_lack = x->last_calls || json_is_object(json_object_get(msg, "function_call")) ||
                    json_is_string(json_object_get(msg, "refusal"));
    if (put_content(x, msg, m, may_lack && strcmp(role, "assistant") == 0) ||
        (x->g->m->calls_null && x->last_calls && empty_to_null(m)) || put_strings(x, msg, m) ||
        put_tool_calls(x, msg, m) || put_id(x, m, "tool_call_id"))
        return ERR_INVAL;
    return name_result(x, m);
}

static int messages(struct chat_ctx *x, json_t *o)
{
    json_t *v = json_object_get(o, "messages");
    if (!v || json_is_null(v))
        return api__bad(x->c, "messages", "missing_required_parameter",
                        "Missing required parameter: 'messages'.");
    if (!json_is_array(v))
        return api__bad(x->c, "messages", "invalid_type",
                        "Invalid type for 'messages': expected an array of objects, but got %s.",
                        api__json_type(v));
    size_t n = json_array_size(v);
    if (n == 0)
        return api__bad(x->c, "messages", "empty_array",
                        "Invalid 'messages': empty array. Expected at least one message.");
    if (n > (size_t)x->c->api->o.max_messages)
        return api__bad(x->c, "messages", "array_above_max_length",
                        "Invalid 'messages': at most %d messages.", x->c->api->o.max_messages);
    for (size_t i = 0; i < n; i++) {
        snprintf(x->param, sizeof x->param, "messages[%zu]", i);
        if (one_message(x, json_array_get(v, i)))
            return ERR_INVAL;
    }
    return 0;
}

/* ---- template ---- */

/* A vocabulary may hold entries that are no UTF-8; JSON has no text for them. */
static json_t *token_text(const char *s)
{
    return json_string(utf8_valid(s, strlen(s)) ? s : "");
}

static int add_kwargs(struct chat_ctx *x, json_t *o, json_t *vars)
{
    json_t *kw = json_object_get(o, "chat_template_kwargs"), *copy;
    if (!kw || json_is_null(kw))
        return 0;
    if (!json_is_object(kw))
        return api__bad(x->c, "chat_template_kwargs", "invalid_type",
                        "Invalid type for 'chat_template_kwargs': expected an object.");
    static const char *const own[] = {"chat_template", "tokenize"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (json_object_get(kw, own[i])) {
            char param[64];
            snprintf(param, sizeof param, "chat_template_kwargs.%s", own[i]);
            return api__bad(x->c, param, "unsupported_value",
                            "Invalid '%s': it is no variable of a template.", param);
        }
    copy = guard_all(x, kw);
    int bad = !copy || json_object_update(vars, copy);
    json_decref(copy);
    return bad ? api__nomem(x->c) : 0;
}

/* Variables by which templates switch reasoning; the client's own chat_template_kwargs come first. */
static int add_effort(struct chat_ctx *x, json_t *vars)
{
    const struct api_model *m = x->g->m;
    const char *effort = x->g->effort;
    if (!effort)
        return 0;
    bool off = strcmp(effort, "none") == 0, bad = false;
    if (strcmp(m->format.family->name, "harmony") == 0) {
        if (off || strcmp(effort, "minimal") == 0)
            effort = "low";
        else if (strcmp(effort, "xhigh") == 0 || strcmp(effort, "max") == 0)
            effort = "high";
    }
    if (m->flag_enable && !json_object_get(vars, "enable_thinking"))
        bad |= json_object_set_new(vars, "enable_thinking", json_boolean(!off)) != 0;
    if (m->flag_thinking && !json_object_get(vars, "thinking"))
        bad |= json_object_set_new(vars, "thinking", json_boolean(!off)) != 0;
    if (!json_object_get(vars, "reasoning_effort") && !(off && !m->flag_effort))
        bad |= json_object_set_new(vars, "reasoning_effort", json_string(effort)) != 0;
    return bad ? api__nomem(x->c) : 0;
}

int chat_vars_functions(const struct api_model *m, json_t *vars, json_t *tools,
                        const struct tm *now)
{
    char date[32];
    size_t i;
    json_t *t, *list;
    if (!m->flag_functions)
        return 0;
    list = json_array();
    json_array_foreach(tools, i, t) json_array_append(list, json_object_get(t, "function"));
    char *text =
        json_array_size(list) == json_array_size(tools) ? json_dumps(list, JSON_INDENT(4)) : NULL;
    json_decref(list);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", now);
    int bad = !text || json_object_set_new(vars, "functions", json_string(text)) ||
              json_object_set_new(vars, "datetime", json_string(date));
    free(text);
    return bad ? ERR_NOMEM : 0;
}

static int add_tools(struct chat_ctx *x, json_t *vars)
{
    time_t created = (time_t)x->c->created;
    struct tm now;
    json_t *tools = NULL;
    if (x->g->tools && !(tools = guard_all(x, x->g->tools)))
        return api__nomem(x->c);
    int bad = 0;
    if (x->as_text)
        bad = chat_tools_as_text(x->out, tools);
    if (tools && !x->as_text)
        bad |= json_object_set(vars, "tools", tools) || json_object_set(vars, "xml_tools", tools);
    else
        bad |=
            json_object_set_new(vars, "tools", x->g->m->tools_empty ? json_array() : json_null());
    localtime_r(&created, &now);
    bad |= chat_vars_functions(x->g->m, vars, tools, &now);
    json_decref(tools);
    return bad ? api__nomem(x->c) : 0;
}

static int add_vars(struct chat_ctx *x, json_t *o, json_t *vars, bool generate)
{
    const struct text_model *t = x->g->m->text;
    if (add_kwargs(x, o, vars) || add_effort(x, vars) || add_tools(x, vars))
        return ERR_INVAL;
    /* After the client's: its arguments cannot replace these. */
    int bad = json_object_set(vars, "messages", x->out);
    bad |= json_object_set_new(vars, "documents", json_null());
    bad |= json_object_set_new(vars, "add_generation_prompt", json_boolean(generate));
    bad |= json_object_set_new(vars, "bos_token", token_text(t->bos_token));
    bad |= json_object_set_new(vars, "eos_token", token_text(t->eos_token));
    if (t->unk_token && *t->unk_token)
        bad |= json_object_set_new(vars, "unk_token", token_text(t->unk_token));
    if (t->pad_token && *t->pad_token)
        bad |= json_object_set_new(vars, "pad_token", token_text(t->pad_token));
    return bad ? api__nomem(x->c) : 0;
}

/* The final message is to be continued: its end is marked by two separators, which nothing else has next to each other, and
 * a space, by which it is seen whether the template trims. */
static int mark_final(struct chat_ctx *x)
{
    json_t *last = json_array_get(x->out, json_array_size(x->out) - 1);
    struct buf b = {0};
    if (x->last_calls)
        return api__bad(x->c, "continue_final_message", "invalid_value",
                        "The final message ends in tool calls, so it cannot be continued.");
    buf_str(&b, json_string_value(json_object_get(last, "content")));
    buf_fmt(&b, "%s%s ", x->sent, x->sent);
    int bad = b.failed || json_object_set_new(last, "content", json_stringn(b.p, b.len));
    buf_free(&b);
    return bad ? api__nomem(x->c) : 0;
}

/* Cut the rendered text there, so that the model goes on with it. */
static int cut_final(struct chat_ctx *x, struct buf *text)
{
    char tag[8];
    size_t n = (size_t)snprintf(tag, sizeof tag, "%s%s", x->sent, x->sent), at = SIZE_MAX, from = 0;
    for (const char *p; text->len && (p = memmem(text->p + from, text->len - from, tag, n));
         from = at + n)
        at = (size_t)(p - text->p);
    if (at == SIZE_MAX)
        return api__bad(
            x->c, "continue_final_message", "invalid_value",
            "The final message does not appear in the rendered prompt, so it cannot be continued.");
    if (at + n >= text->len || text->p[at + n] != ' ')
        while (at && strchr(" \t\r\n", text->p[at - 1])) /* so it trims before the mark, too */
            at--;
    text->len = at;
    return 0;
}

/* Take the separators out, noting where they were, and encode. */
static int encode(struct chat_ctx *x, struct buf *text)
{
    const struct tokenizer *tok = x->g->m->text->tok;
    size_t n_cut = 0, to = 0, cap = x->any_spelled ? text->len / 3 + 1 : 1;
    size_t *cut = mem_alloc(cap * sizeof *cut);
    if (!cut)
        return api__nomem(x->c);
    for (size_t i = 0; i < text->len;) {
        if (x->any_spelled && text->len - i >= 3 && memcmp(text->p + i, x->sent, 3) == 0) {
            cut[n_cut++] = to;
            i += 3;
        } else {
            text->p[to++] = text->p[i++];
        }
    }
    text->len = to;
    struct tok_ids *ids = &x->g->prompt[0].ids;
    int rc = tok_encode_cuts(tok, (struct view){text->p, text->len}, TOK_SPECIAL,
                             (struct tok_cuts){cut, n_cut}, ids);
    /* A model that wants bos gets it once, whether the template writes it or not. */
    int32_t bos = tok_bos(tok);
    if (!rc && tok_adds_bos(tok) && bos >= 0 && (ids->n == 0 || ids->id[0] != bos)) {
        rc = tok_ids_add(ids, bos);
        if (!rc) {
            memmove(ids->id + 1, ids->id, (ids->n - 1) * sizeof *ids->id);
            ids->id[0] = bos;
        }
    }
    free(cut);
    if (rc == ERR_NOMEM)
        return api__nomem(x->c);
    return rc ? api__bad(x->c, "messages", "invalid_value", "The prompt could not be tokenised.")
              : 0;
}

static int render(struct chat_ctx *x, json_t *vars, struct buf *text)
{
    struct api_model *m = x->g->m;
    struct err e;
    struct tm now;
    time_t t = (time_t)x->c->created;
    localtime_r(&t, &now);
    const struct api_opts *o = &x->c->api->o;
    struct api_template_limits lim = {.max_steps = o->template_max_steps,
                                      .max_loop = o->template_max_loop,
                                      .max_output = o->template_max_bytes};
    int rc = api_template_render(m->tmpl, vars, &now, &lim, text, &e);
    if (rc == ERR_NOMEM)
        return api__nomem(x->c);
    return rc ? api__bad(x->c, "messages", NULL,
                         "The model's chat template refused the messages: %s", e.text)
              : 0;
}

/* The text's end without white space is that of `mark`. */
static bool ends_with(const struct buf *t, const char *mark)
{
    size_t n = strlen(mark), len = t->len;
    while (n && strchr(" \t\r\n", mark[n - 1]))
        n--;
    while (len && strchr(" \t\r\n", t->p[len - 1]))
        len--;
    return n && len >= n && memcmp(t->p + len - n, mark, n) == 0;
}

/* Where in the answer's format the model goes on after this prompt. */
static void pick_format(struct chat_ctx *x, const struct buf *text, bool go_on)
{
    const struct chat_format *f = &x->g->m->format;
    struct stream_opts *p = &x->g->parse;
    uint64_t seed;
    random_bytes(&seed, sizeof seed);
    p->id_seed = seed;
    p->tools = x->g->tools;
    p->family = x->g->tools || f->family->whole || f->family->wraps ? f->family : NULL;
    p->think_open = f->think_open;
    p->think_close = f->think_close;
    p->thinking = f->think_open && ends_with(text, f->think_open);
    if (go_on && f->think_open) { /* the final message may stop within reasoning */
        json_t *last = json_array_get(x->out, json_array_size(x->out) - 1);
        const char *s = json_string_value(json_object_get(last, "content"));
        const char *open = s ? strstr(s, f->think_open) : NULL;
        p->thinking = open && !strstr(open, f->think_close);
        if (!p->thinking)
            p->think_open = p->think_close = NULL;
    }
}

int chat_prompt(struct api_call *c, struct gen *g, json_t *o)
{
    struct chat_ctx x = {.c = c, .g = g};
    struct buf text = {0};
    bool generate = true, go_on = false;
    if (!g->m->tmpl)
        return api__bad(c, "model", "unsupported_value",
                        "The model '%s' has no usable chat template%s%s; use /v1/completions or "
                        "serve it with --chat-template.",
                        g->m->name, g->m->tmpl_error ? ": " : "",
                        g->m->tmpl_error ? g->m->tmpl_error : "");
    if (api__get_bool(c, o, "continue_final_message", &go_on))
        return ERR_INVAL;
    generate = !go_on;
    if (api__get_bool(c, o, "add_generation_prompt", &generate))
        return ERR_INVAL;
    if (go_on && generate)
        return api__bad(
            c, "continue_final_message", "invalid_value",
            "'continue_final_message' and 'add_generation_prompt' cannot both be true.");
    x.developer = g->m->developer;
    x.as_text = !g->m->format.declares;
    g->continues = go_on;
    json_t *vars = json_object();
    x.out = json_array();
    int rc = vars && x.out ? 0 : api__nomem(c);
    if (!rc)
        rc = pick_separator(&x);
    if (!rc)
        rc = messages(&x, o);
    if (!rc && go_on)
        rc = mark_final(&x);
    if (!rc)
        rc = add_vars(&x, o, vars, generate);
    if (!rc)
        rc = render(&x, vars, &text);
    if (!rc && go_on)
        rc = cut_final(&x, &text);
    if (!rc)
        pick_format(&x, &text, go_on);
    if (!rc)
        rc = encode(&x, &text);
    buf_free(&text);
    json_decref(vars);
    json_decref(x.out);
    return rc;
}
