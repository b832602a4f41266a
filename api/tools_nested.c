/* MiniMax M3: arguments are tags within tags, each behind a mark of the vocabulary (shown as ~):
 *     ~<tool_call>~<invoke name="f">~<city>Bern~</city>~<days>~<item>1~</item>~</days>~</invoke>~</tool_call>
 * An object's members are tags with their names, an array's elements tags named item. Leaves are plain text, whose type
 * follows from the tool's schema. tools_xml.c reads calls and arguments; here is what stands within one argument. */
#include <string.h>

#include "api/stream_impl.h"

#define NEST_MAX 64

struct nest {
    struct stream *s;
    const char *ns;
    int depth;
};

static struct view trim(struct view v)
{
    while (v.len && st_in(" \t\r\n", *v.p))
        v.p++, v.len--;
    while (v.len && st_in(" \t\r\n", v.p[v.len - 1]))
        v.len--;
    return v;
}

/* A tag at the beginning of v: its name; a name of no length where none stands. */
static struct view tag_name(const struct nest *t, struct view v, bool closing)
{
    size_t n = strlen(t->ns), at = n + 1 + closing;
    if (v.len < at || memcmp(v.p, t->ns, n) != 0 || v.p[n] != '<' || (closing && v.p[n + 1] != '/'))
        return (struct view){v.p, 0};
    const char *end = memchr(v.p + at, '>', v.len - at);
    return (struct view){v.p + at, end ? (size_t)(end - v.p) - at : 0};
}

/* Length of the element that begins at v, *inside what its tags hold; 0: its end is missing. */
static size_t element(const struct nest *t, struct view v, struct view name, struct view *inside)
{
    size_t n = strlen(t->ns), head = n + 1 + name.len + 1, i = head;
    int open = 1;
    while (i < v.len) {
        const char *p = memmem(v.p + i, v.len - i, t->ns, n);
        if (!p)
            return 0;
        struct view rest = {p, (size_t)(v.p + v.len - p)};
        struct view end = tag_name(t, rest, true), begin = tag_name(t, rest, false);
        bool closes = end.len == name.len && memcmp(end.p, name.p, name.len) == 0;
        bool opens = begin.len == name.len && memcmp(begin.p, name.p, name.len) == 0;
        open += opens - closes;
        i = (size_t)(p - v.p) + n;
        if (open == 0) {
            *inside = (struct view){v.p + head, (size_t)(p - v.p) - head};
            return i + 2 + name.len + 1;
        }
    }
    return 0;
}

/* Elements with nothing but white space around them. */
static bool well_formed(const struct nest *t, struct view v, bool *items)
{
    struct view inside;
    *items = true;
    for (v = trim(v); v.len; v = trim(v)) {
        struct view name = tag_name(t, v, false);
        size_t n = name.len && *name.p != '/' ? element(t, v, name, &inside) : 0;
        if (!n)
            return false;
        *items &= view_is(name, "item");
        v.p += n;
        v.len -= n;
    }
    return true;
}

static void put(struct nest *t, struct view v, const json_t *schema);

static void put_elements(struct nest *t, struct view v, const json_t *schema, bool array)
{
    struct stream *s = t->s;
    bool first = true;
    st_args(s, array ? "[" : "{", 1);
    for (v = trim(v); v.len; v = trim(v)) {
        struct view name = tag_name(t, v, false), inside = {0};
        size_t n = element(t, v, name, &inside);
        const json_t *sub = json_object_get(schema, "items");
        if (!first)
            st_args(s, ", ", 2);
        first = false;
        if (!array) {
            buf_clear(&s->value);
            buf_json(&s->value, name.p, name.len);
            buf_str(&s->value, ": ");
            st_args(s, s->value.p, s->value.len);
            sub = json_object_getn(json_object_get(schema, "properties"), name.p, name.len);
        }
        put(t, inside, sub);
        v.p += n;
        v.len -= n;
    }
    st_args(s, array ? "]" : "}", 1);
}

static void put(struct nest *t, struct view v, const json_t *schema)
{
    unsigned types = st_schema_types(schema), open = types & (TYPE_OBJECT | TYPE_ARRAY);
    bool items = false, empty = trim(v).len == 0;
    bool tags = open && memmem(v.p, v.len, t->ns, strlen(t->ns)) && t->depth < NEST_MAX &&
                well_formed(t, v, &items);
    t->depth++;
    if (tags || (empty && (types == TYPE_OBJECT || types == TYPE_ARRAY)))
        put_elements(t, v, schema, open == TYPE_ARRAY || (open != TYPE_OBJECT && items));
    else
        st_put_value(t->s, v.p, v.len, types);
    t->depth--;
}

void st_put_nested(struct stream *s, struct view text, const char *ns, const json_t *schema)
{
    struct nest t = {.s = s, .ns = ns};
    put(&t, text, schema);
}
