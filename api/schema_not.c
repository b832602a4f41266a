/* Negation: "not" is pushed inwards until it disappears. What cannot be negated is left out of the result, which then
 * says less than it could, but nothing wrong. */
#include <string.h>

#include "api/schema_impl.h"

#define PAIRS_MAX 8 /* branches of oneOf, of which two may hold */

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

/* None of them, or two. */
static void not_one(json_t *alts, const json_t *v)
{
    size_t n = json_array_size(v);
    not_any(alts, v);
    for (size_t i = 0; i < n && n <= PAIRS_MAX; i++)
        for (size_t k = 0; k < i; k++)
            add(alts, json_pack("{s:[O,O]}", "allOf", json_array_get(v, i), json_array_get(v, k)));
}

/* Keywords that look at others of their schema, or say something of parts. */
static bool of_parts(json_t *alts, const json_t *schema, const char *key, json_t *v)
{
    const char *name;
    json_t *x;
    if (strcmp(key, "items") == 0 && !json_is_array(v) && !json_object_get(schema, "prefixItems")) {
        add(alts, json_pack("{s:s,s:{s:O}}", "type", "array", "contains", "not", v));
    } else if (strcmp(key, "contains") == 0 && !json_object_get(schema, "minContains") &&
               !json_object_get(schema, "maxContains")) {
        add(alts, json_pack("{s:s,s:{s:O}}", "type", "array", "items", "not", v));
    } else if (strcmp(key, "additionalProperties") == 0 && json_is_false(v) &&
               !json_object_get(schema, "patternProperties")) {
        /* more members than are known */
        json_int_t n = (json_int_t)json_object_size(json_object_get(schema, "properties"));
        add(alts, json_pack("{s:s,s:I}", "type", "object", "minProperties", n + 1));
    } else if (strcmp(key, "if") == 0) {
        json_t *yes = json_object_get(schema, "then"), *no = json_object_get(schema, "else");
        if (yes)
            add(alts, json_pack("{s:[O,{s:O}]}", "allOf", v, "not", yes));
        if (no)
            add(alts, json_pack("{s:[{s:O},{s:O}]}", "allOf", "not", v, "not", no));
    } else if (strncmp(key, "depende", 7) == 0) {
        json_object_foreach(v, name, x)
        {
            json_t *asks = json_is_array(x) ? json_pack("{s:O}", "required", x) : json_incref(x);
            add(alts,
                json_pack("{s:s,s:[s],s:o}", "type", "object", "required", name, "not", asks));
        }
    } else {
        return false;
    }
    return true;
}

/* Keywords that allow or forbid something, but whose negation is left out. */
static bool asserts(const char *key)
{
    static const char *const all[] = {"multipleOf",
                                      "uniqueItems",
                                      "patternProperties",
                                      "propertyNames",
                                      "additionalProperties",
                                      "additionalItems",
                                      "prefixItems",
                                      "items",
                                      "contains",
                                      "$dynamicRef",
                                      "$recursiveRef",
                                      "unevaluatedProperties",
                                      "unevaluatedItems",
                                      "format" /* an annotation to some */,
                                      "extends",
                                      "disallow",
                                      "divisibleBy",
                                      KEY_SOME_OF,
                                      NULL};
    for (int i = 0; all[i]; i++)
        if (strcmp(all[i], key) == 0)
            return true;
    return false;
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
    else if (strcmp(key, "oneOf") == 0)
        not_one(alts, v);
    else if (strcmp(key, "not") == 0)
        json_array_append(alts, v);
    else
        not_bound(alts, key, v);
}

static const char NEGATED[] = "not";

const json_t *sc__negate(struct sc *s, const json_t *schema, int depth)
{
    const char *key;
    json_t *v, *alts;
    bool asserted = false;
    if (json_is_boolean(schema))
        return sc__keep(s, json_boolean(json_is_false(schema)));
    if (!json_is_object(schema) || depth > 16)
        return NULL;
    if (!json_object_size(schema))
        return sc__keep(s, json_false());
    const json_t *old = sc__made(s, schema, NEGATED);
    if (old)
        return old;
    alts = json_array();
    json_object_foreach((json_t *)schema, key, v)
    {
        if (strcmp(key, "$ref") == 0 && json_is_string(v)) {
            const json_t *to = sc__resolve(s, json_string_value(v));
            const json_t *no = to ? sc__negate(s, to, depth + 1) : NULL;
            if (no)
                json_array_append(alts, (json_t *)no);
            asserted = true;
        } else if (!of_parts(alts, schema, key, v)) {
            one_keyword(alts, key, v);
        }
        asserted |= asserts(key);
    }
    if (!alts || !json_array_size(alts)) {
        json_decref(alts); /* what allows everything, negated, allows nothing */
        return alts && !asserted ? sc__keep(s, json_false()) : NULL;
    }
    return sc__made_note(s, schema, NEGATED, sc__keep(s, json_pack("{s:o}", KEY_SOME_OF, alts)));
}
