/* Tools for models whose chat template knows none: the Hermes way as plain text. */
#include <stdlib.h>
#include <string.h>

#include "api/gen.h"

static const char ahead[] =
    "You may call functions to help with the user's request. The functions, as JSON, one a line:\n"
    "<tools>\n";
static const char after[] =
    "</tools>\n\nTo call a function, answer with a JSON object of its name and arguments between "
    "these marks, once for each call:\n"
    "<tool_call>\n{\"name\": \"function name\", \"arguments\": {\"argument\": \"value\"}}\n"
    "</tool_call>";

static char *dump(const json_t *v)
{
    return json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
}

static void add_json(struct buf *b, const json_t *v)
{
    char *s = dump(v);
    b->failed |= !s;
    if (s)
        buf_str(b, s);
    free(s);
}

static int set_text(json_t *m, const char *role, struct buf *b)
{
    int rc = b->failed || (role && json_object_set_new(m, "role", json_string(role))) ||
             json_object_set_new(m, "content", json_stringn(buf_cstr(b), b->len));
    buf_free(b);
    return rc ? ERR_NOMEM : 0;
}

static int calls_as_text(json_t *m)
{
    json_t *calls = json_object_get(m, "tool_calls"), *tc;
    struct buf b = {0};
    size_t i;
    buf_str(&b, json_string_value(json_object_get(m, "content")));
    json_array_foreach(calls, i, tc)
    {
        json_t *fn = json_object_get(tc, "function"), *args = json_object_get(fn, "arguments");
        buf_str(&b, b.len ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ");
        add_json(&b, json_object_get(fn, "name"));
        buf_str(&b, ", \"arguments\": ");
        if (args)
            add_json(&b, args);
        else
            buf_str(&b, "{}");
        buf_str(&b, "}\n</tool_call>");
    }
    json_object_del(m, "tool_calls");
    return set_text(m, NULL, &b);
}

static int result_as_text(json_t *m)
{
    struct buf b = {0};
    buf_str(&b, "<tool_response>\n");
    buf_str(&b, json_string_value(json_object_get(m, "content")));
    buf_str(&b, "\n</tool_response>");
    json_object_del(m, "tool_call_id");
    return set_text(m, "user", &b);
}

static int instruct(json_t *messages, const json_t *tools)
{
    json_t *first = json_array_get(messages, 0), *t;
    const char *role = json_string_value(json_object_get(first, "role"));
    bool there = role && strcmp(role, "system") == 0;
    struct buf b = {0};
    size_t i;
    if (there && json_string_length(json_object_get(first, "content"))) {
        buf_str(&b, json_string_value(json_object_get(first, "content")));
        buf_str(&b, "\n\n");
    }
    buf_str(&b, ahead);
    json_array_foreach((json_t *)tools, i, t)
    {
        add_json(&b, t);
        buf_char(&b, '\n');
    }
    buf_str(&b, after);
    if (!there) {
        first = json_pack("{s:s, s:s}", "role", "system", "content", "");
        if (json_array_insert_new(messages, 0, first)) {
            buf_free(&b);
            return ERR_NOMEM;
        }
    }
    return set_text(first, NULL, &b);
}

int chat_tools_as_text(json_t *messages, const json_t *tools)
{
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        int rc = 0;
        if (json_object_get(m, "tool_calls"))
            rc = calls_as_text(m);
        else if (role && (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0))
            rc = result_as_text(m);
        if (rc)
            return rc;
    }
    return tools ? instruct(messages, tools) : 0;
}
