/* Negation: "not" is pushed inwards until it disappears. What cannot be negated is left out of the result, which then
 * says less than it could, but nothing wrong. */
#include <string.h>

#include "api/schema_impl.h"

static void add(json_t *alts, json_t *made)
{
    if (made)
        json_array_append_new(alts, made);
}

static void not_type(json_t *alts, const json_t *v)
{
    static const char *const all[] = {"null", "boolean", "number", "string", "array", "object"};
    json_t *rest = json_array();
    for (int i = 0; i < 6; i++) {
        bool named = false;
        size_t n = json_is_array(v) ? json_array_size(v) : 1;
        for (size_t k = 0; k < n; k++) {
            const char *t = json_string_value(json_is_array(v) ? json_array_get(v, k) : v);
            /* "no integer" leaves other numbers out too: they are hard to write and seldom meant */
            named |= t && (strcmp(t, all[i]) == 0 || (i == 2 && strcmp(t, "integer") == 0));
        }
        if (!named)
            json_array_append_new(rest, json_string(all[i]));
    }
    if (json_array_size(rest))
        add(alts, json_pack("{s:o}", "type", rest));
    else
        json_decref(rest);
}

/* minimum and its like: the other bound, and the type that it is about. */
static void not_bound(json_t *alts, const char *key, const json_t *v)
{
    static const struct {
        const char *key, *other, *type;
        int step; /* of sizes */
    } all[] = {{"minimum", "exclusiveMaximum", "number", 0},
               {"maximum", "exclusiveMinimum", "number", 0},
               {"exclusiveMinimum", "maximum", "number", 0},
               {"exclusiveMaximum", "minimum", "number", 0},
               {"minLength", "maxLength", "string", -1},
               {"maxLength", "minLength", "string", 1},
               {"minItems", "maxItems", "array", -1},
               {"maxItems", "minItems", "array", 1},
               {"minProperties", "maxProperties", "object", -1},
               {"maxProperties", "minProperties", "object", 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].key, key) != 0 || !json_is_number(v))
            continue;
        json_int_t n = (json_int_t)json_number_value(v) + all[i].step;
        if (!all[i].step)
            add(alts, json_pack("{s:s,s:O}", "type", all[i].type, all[i].other, v));
        else if (n >= 0)
            add(alts, json_pack("{s:s,s:I}", "type", all[i].type, all[i].other, n));
    }
}

static void not_object(json_t *alts, const char *key, const json_t *v)
{
    const char *name;
    json_t *x;
    if (strcmp(key, "required") == 0) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            const char *k = json_string_value(json_array_get(v, i));
            if (k)
                add(alts, json_pack("{s:s,s:{s:b}}", "type", "object", "properties", k, 0));
        }
        return;
    }
    json_object_foreach((json_t *)v, name, x)
    {
        add(alts, json_pack("{s:s,s:[s],s:{s:{s:O}}}", "type", "object", "required", name,
                            "properties", name, "not", x));
    }
}

static void not_all(json_t *alts, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        add(alts, json_pack("{s:O}", "not", json_array_get(v, i)));
}

static void not_any(json_t *alts, const json_t *v)
{
    json_t *all = json_array();
    not_all(all, v);
    add(alts, json_pack("{s:o}", "allOf", all));
}

static void one_keyword(json_t *alts, const char *key, json_t *v)
{
    if (strcmp(key, "type") == 0)
        not_type(alts, v);
    else if (strcmp(key, "enum") == 0 && json_is_array(v))
        add(alts, json_pack("{s:O}", KEY_NOT_ENUM, v));
    else if (strcmp(key, "const") == 0)
        add(alts, json_pack("{s:[O]}", KEY_NOT_ENUM, v));
    else if (strcmp(key, KEY_NOT_ENUM) == 0)
        add(alts, json_pack("{s:O}", "enum", v));
    else if (strcmp(key, "pattern") == 0 && json_is_string(v))
        add(alts, json_pack("{s:s,s:O}", "type", "string", KEY_NOT_PATTERN, v));
    else if (strcmp(key, KEY_NOT_PATTERN) == 0)
        add(alts, json_pack("{s:s,s:O}", "type", "string", "pattern", v));
    else if (strcmp(key, "required") == 0 || strcmp(key, "properties") == 0)
        not_object(alts, key, v);
    else if (strcmp(key, "allOf") == 0)
        not_all(alts, v);
    else if (strcmp(key, "anyOf") == 0)
        not_any(alts, v);
    else if (strcmp(key, "not") == 0)
        json_array_append(alts, v);
    else
        not_bound(alts, key, v);
}

const json_t *sc__negate(struct sc *s, const json_t *schema, int depth)
{
    const char *key;
    json_t *v, *alts;
    if (json_is_boolean(schema))
        return sc__keep(s, json_boolean(json_is_false(schema)));
    if (!json_is_object(schema) || depth > 16)
        return NULL;
    if (!json_object_size(schema))
        return sc__keep(s, json_false());
    alts = json_array();
    json_object_foreach((json_t *)schema, key, v)
    {
        if (strcmp(key, "$ref") == 0 && json_is_string(v)) {
            const json_t *to = sc__resolve(s, json_string_value(v));
            const json_t *no = to ? sc__negate(s, to, depth + 1) : NULL;
            if (no)
                json_array_append(alts, (json_t *)no);
        } else {
            one_keyword(alts, key, v);
        }
    }
    if (!alts || !json_array_size(alts)) {
        json_decref(alts);
        return NULL;
    }
    return sc__keep(s, json_pack("{s:o}", "anyOf", alts));
}
