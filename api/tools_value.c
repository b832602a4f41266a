/* Values that models write in other ways than JSON: plain text between tags, Python literals, Gemma's notation. */
#include <string.h>

#include "api/api_impl.h"
#include "api/stream_impl.h"

#define NEST_MAX 64

bool st_name_ok(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] <= ' ' || st_in("{}[]()<>\"'=,`", p[i]))
            return false;
    return n >= 1 && n <= 256;
}

/* ---- types ---- */

static unsigned type_of_name(const char *s)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"string", TYPE_STRING}, {"integer", TYPE_NUMBER}, {"number", TYPE_NUMBER},
                 {"boolean", TYPE_BOOL},  {"null", TYPE_NULL},      {"object", TYPE_OBJECT},
                 {"array", TYPE_ARRAY}};
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, s) == 0)
            return names[i].type;
    return 0;
}

static unsigned type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_NULL:
        return TYPE_NULL;
    default:
        return TYPE_BOOL;
    }
}

static unsigned types_of_schema(const json_t *schema, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    json_t *t = json_object_get(schema, "type"), *list = json_object_get(schema, "enum"), *e;
    unsigned types = 0;
    size_t i;
    if (json_is_string(t))
        return type_of_name(json_string_value(t));
    json_array_foreach(t, i, e) types |= type_of_name(json_string_value(e));
    if (types)
        return types;
    json_array_foreach(list, i, e) types |= type_of(e);
    if ((e = json_object_get(schema, "const")))
        types |= type_of(e);
    for (int k = 0; k < 2 && depth < 8; k++)
        json_array_foreach(json_object_get(schema, unions[k]), i, e)
        {
            unsigned u = types_of_schema(e, depth + 1);
            types |= u ? u : TYPE_ANY;
        }
    return types;
}

unsigned st_schema_types(const json_t *schema)
{
    unsigned types = types_of_schema(schema, 0);
    return types ? types : TYPE_ANY;
}

const json_t *st_schema(const struct stream *s, const char *key)
{
    bool known;
    const json_t *p = st_parameters(s, buf_cstr(&s->name), &known);
    return json_object_get(json_object_get(p, "properties"), key);
}

unsigned st_types(const struct stream *s, const char *key)
{
    return st_schema_types(st_schema(s, key));
}

/* ---- literals ---- */

struct lit {
    const char *p, *end, *quote;
    int depth;
    struct buf *out;
};

static void lit_space(struct lit *l)
{
    while (l->p < l->end && st_in(" \t\r\n", *l->p))
        l->p++;
}

static bool lit_is(const struct lit *l, const char *mark)
{
    size_t n = strlen(mark);
    return (size_t)(l->end - l->p) >= n && memcmp(l->p, mark, n) == 0;
}

static void put_code_point(struct buf *b, unsigned c)
{
    char u[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1) {
        u[0] = (char)c;
    } else {
        for (size_t i = n - 1; i > 0; i--, c >>= 6)
            u[i] = (char)(0x80 | (c & 0x3F));
        u[0] = (char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    }
    buf_add(b, u, n);
}

static bool hex(const char *p, int n, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < n; i++) {
        const char *digits = "0123456789abcdef", *d = strchr(digits, p[i] | 0x20);
        if (!p[i] || !d)
            return false;
        *out = *out * 16 + (unsigned)(d - digits);
    }
    return true;
}

/* After a backslash; l->p stands on the character. */
static bool put_escape(struct lit *l, struct buf *text)
{
    static const char from[] = "nrtbfav0", to[] = "\n\r\t\b\f\a\v\0";
    const char *k = memchr(from, *l->p, sizeof from - 1);
    int n = *l->p == 'x' ? 2 : *l->p == 'u' ? 4 : *l->p == 'U' ? 8 : 0;
    unsigned c;
    if (k) {
        buf_char(text, to[k - from]);
    } else if (n) {
        if (l->end - l->p <= n || !hex(l->p + 1, n, &c) || c > 0x10FFFF ||
            (c >= 0xD800 && c < 0xE000))
            return false;
        put_code_point(text, c);
        l->p += n;
    } else if (*l->p != '\n') { /* a backslash at a line's end joins lines */
        if (!st_in("\\'\"/", *l->p))
            buf_char(text, '\\');
        buf_char(text, *l->p);
    }
    l->p++;
    return true;
}

static bool lit_string(struct lit *l)
{
    struct buf text = {0};
    bool ok = false;
    if (l->quote && lit_is(l, l->quote)) {
        l->p += strlen(l->quote);
        const char *e = memmem(l->p, (size_t)(l->end - l->p), l->quote, strlen(l->quote));
        if (e) {
            buf_json(l->out, l->p, (size_t)(e - l->p));
            l->p = e + strlen(l->quote);
        }
        return e != NULL;
    }
    char q = *l->p++;
    while (l->p < l->end && !ok) {
        if (*l->p == q) {
            ok = true;
            l->p++;
        } else if (*l->p == '\\') {
            if (++l->p == l->end || !put_escape(l, &text))
                break;
        } else {
            buf_char(&text, *l->p++);
        }
    }
    if (ok)
        buf_json(l->out, buf_cstr(&text), text.len);
    l->out->failed |= text.failed;
    buf_free(&text);
    return ok;
}

static bool is_number(const char *p, size_t n)
{
    size_t i = n && *p == '-', from = i;
    while (i < n && p[i] >= '0' && p[i] <= '9')
        i++;
    if (i == from || (p[from] == '0' && i - from > 1))
        return false;
    if (i < n && p[i] == '.') {
        from = ++i;
        while (i < n && p[i] >= '0' && p[i] <= '9')
            i++;
        if (i == from)
            return false;
    }
    if (i < n && (p[i] == 'e' || p[i] == 'E')) {
        i += i + 1 < n && (p[i + 1] == '-' || p[i + 1] == '+') ? 2 : 1;
        from = i;
        while (i < n && p[i] >= '0' && p[i] <= '9')
            i++;
        if (i == from)
            return false;
    }
    return i == n;
}

static size_t word_len(const struct lit *l)
{
    size_t n = 0;
    while (l->p + n < l->end && !st_in(" \t\r\n,:]})[({\"'<", l->p[n]))
        n++;
    return n;
}

static bool lit_word(struct lit *l)
{
    static const char *const words[][2] = {{"True", "true"},   {"true", "true"}, {"False", "false"},
                                           {"false", "false"}, {"None", "null"}, {"null", "null"}};
    struct view v = {l->p, word_len(l)};
    l->p += v.len;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (view_is(v, words[i][0])) {
            buf_str(l->out, words[i][1]);
            return true;
        }
    if (!is_number(v.p, v.len))
        return false;
    buf_add(l->out, v.p, v.len);
    return true;
}

static bool lit_value(struct lit *l);

static bool lit_key(struct lit *l)
{
    if ((l->quote && lit_is(l, l->quote)) || *l->p == '"' || *l->p == '\'')
        return lit_string(l);
    size_t n = word_len(l);
    buf_json(l->out, l->p, n);
    l->p += n;
    return n > 0;
}

static bool lit_items(struct lit *l, bool object, char close)
{
    bool first = true;
    l->p++;
    buf_char(l->out, object ? '{' : '[');
    for (;;) {
        lit_space(l);
        if (l->p < l->end && !first && *l->p == ',') {
            l->p++;
            lit_space(l);
        } else if (l->p < l->end && !first && *l->p != close) {
            return false;
        }
        if (l->p == l->end)
            return false;
        if (*l->p == close)
            break;
        if (!first)
            buf_str(l->out, ", ");
        first = false;
        if (object) {
            if (!lit_key(l))
                return false;
            lit_space(l);
            if (l->p == l->end || *l->p++ != ':')
                return false;
            buf_str(l->out, ": ");
        }
        if (!lit_value(l))
            return false;
    }
    l->p++;
    buf_char(l->out, object ? '}' : ']');
    return true;
}

static bool lit_value(struct lit *l)
{
    lit_space(l);
    if (l->p == l->end || l->depth == NEST_MAX)
        return false;
    bool ok;
    l->depth++;
    if ((l->quote && lit_is(l, l->quote)) || *l->p == '"' || *l->p == '\'')
        ok = lit_string(l);
    else if (*l->p == '{')
        ok = lit_items(l, true, '}');
    else if (*l->p == '[' || *l->p == '(')
        ok = lit_items(l, false, *l->p == '[' ? ']' : ')');
    else
        ok = lit_word(l);
    l->depth--;
    return ok;
}

bool st_literal(const char *p, size_t n, const char *quote, struct buf *out)
{
    struct lit l = {.p = p, .end = p + n, .quote = quote, .out = out};
    bool ok = lit_value(&l);
    lit_space(&l);
    return ok && l.p == l.end;
}

size_t st_literal_end(const struct stream *s, size_t at, const char *ends, const char *quote)
{
    int depth = 0;
    char q = 0;
    for (size_t i = at; i < s->n; i++) {
        char c = s->p[i];
        if (quote) {
            if (st_part(s, i, quote))
                return SIZE_MAX;
            if (st_at(s, i, quote)) {
                size_t n = strlen(quote);
                const char *e = memmem(s->p + i + n, s->n - i - n, quote, n);
                if (!e)
                    return SIZE_MAX;
                i = (size_t)(e - s->p) + n - 1;
                continue;
            }
        } else if (q) {
            if (c == '\\')
                i++;
            else if (c == q)
                q = 0;
            continue;
        } else if (c == '"' || c == '\'') {
            q = c;
            continue;
        }
        if (depth == 0 && st_in(ends, c))
            return i;
        depth += c == '{' || c == '[' || c == '(';
        depth -= (c == '}' || c == ']' || c == ')') && depth > 0;
    }
    return SIZE_MAX;
}

/* ---- arguments ---- */

void st_put_text(struct stream *s, const char *p, size_t n)
{
    buf_clear(&s->value);
    buf_json(&s->value, p, n);
    if (s->value.len > 2)
        st_args(s, s->value.p + 1, s->value.len - 2);
}

void st_put_key(struct stream *s, const char *p, size_t n)
{
    buf_clear(&s->value);
    buf_str(&s->value, s->own.first ? "{" : ", ");
    buf_json(&s->value, p, n);
    buf_str(&s->value, ": ");
    st_args(s, s->value.p, s->value.len);
    s->own.first = false;
}

/* A JSON text of one of the types that is no string. */
static bool is_json_of(struct stream *s, const char *p, size_t n, unsigned types)
{
    json_t *v = NULL;
    if (api__json_depth(p, n) > NEST_MAX)
        return false;
    int rc = api__json_load(&v, (struct view){p, n}, JSON_DECODE_ANY, NULL);
    s->failed |= rc == ERR_NOMEM;
    bool ok = v && (type_of(v) & types) && (!json_is_string(v) || types == TYPE_ANY);
    json_decref(v);
    return ok;
}

void st_put_value(struct stream *s, const char *p, size_t n, unsigned types)
{
    const char *t = p;
    size_t k = n;
    while (k && st_in(" \t\r\n", *t))
        t++, k--;
    while (k && st_in(" \t\r\n", t[k - 1]))
        k--;
    if (types != TYPE_STRING && k) {
        if (is_json_of(s, t, k, types)) {
            st_args(s, t, k);
            return;
        }
        struct buf b = {0};
        bool ok = st_literal(t, k, NULL, &b) && is_json_of(s, buf_cstr(&b), b.len, types);
        s->failed |= b.failed;
        if (ok)
            st_args(s, b.p, b.len);
        buf_free(&b);
        if (ok)
            return;
    }
    st_args(s, "\"", 1);
    st_put_text(s, p, n);
    st_args(s, "\"", 1);
}

void st_put_literal(struct stream *s, const char *p, size_t n, const char *quote)
{
    struct buf b = {0};
    if (st_literal(p, n, quote, &b))
        st_args(s, b.p, b.len);
    else
        st_put_value(s, p, n, st_types(s, buf_cstr(&s->key)));
    s->failed |= b.failed;
    buf_free(&b);
}
