/* Flattening: keywords of schemas that must all hold, merged into one conj. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/schema_impl.h"
#include "engine/base/hash.h"

struct conj *sc__conj_new(struct sc *s)
{
    struct conj *c = arena_alloc(&s->mem, sizeof *c);
    if (!c) {
        sc__fail(s, ERR_LIMIT, NULL, "the schema takes too much memory");
        return NULL;
    }
    c->types = T_ALL;
    c->max_len = c->max_items = c->max_props = -1;
    return c;
}

static bool list_copy(struct sc *s, struct list *l)
{
    struct list old = *l;
    *l = (struct list){0};
    for (int i = 0; i < old.n; i++)
        if (!sc__add(s, l, old.v[i]))
            return false;
    return true;
}

struct conj *sc__conj_copy(struct sc *s, const struct conj *c)
{
    struct conj *r = sc__conj_new(s);
    if (!r)
        return NULL;
    *r = *c;
    r->choice = arena_array(&s->mem, (size_t)c->n_choice + 1, sizeof *r->choice);
    r->cap_choice = c->n_choice;
    if (!r->choice)
        return NULL;
    if (c->n_choice)
        memcpy(r->choice, c->choice, (size_t)c->n_choice * sizeof *r->choice);
    struct list *all[] = {&r->not_values, &r->multiple, &r->pattern,  &r->not_pattern,
                          &r->format,     &r->array,    &r->contains, &r->object,
                          &r->required,   &r->names,    &r->seen};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!list_copy(s, all[i]))
            return NULL;
    return r;
}

unsigned sc__type_of(const json_t *v)
{
    if (json_is_real(v)) {
        double d = json_real_value(v);
        return d == floor(d) && fabs(d) < 1e15 ? T_INT : T_REAL;
    }
    return json_is_null(v)      ? T_NULL
           : json_is_boolean(v) ? T_BOOL
           : json_is_integer(v) ? T_INT
           : json_is_string(v)  ? T_STR
           : json_is_array(v)   ? T_ARR
                                : T_OBJ;
}

const json_t *sc__keep(struct sc *s, json_t *made)
{
    if (!made || json_array_append_new(s->made, made)) {
        sc__fail(s, ERR_NOMEM, NULL, "no memory");
        return NULL;
    }
    return made;
}

static struct made **made_bucket(struct sc *s, const json_t *of)
{
    return &s->made_of[hash_u64((uint64_t)(uintptr_t)of) % MEMO_BUCKETS];
}

const json_t *sc__made(struct sc *s, const json_t *of, const char *key)
{
    for (const struct made *m = *made_bucket(s, of); m; m = m->next)
        if (m->of == of && m->key == key)
            return m->made;
    return NULL;
}

const json_t *sc__made_note(struct sc *s, const json_t *of, const char *key, const json_t *made)
{
    struct made **head = made_bucket(s, of), *m = made ? arena_alloc(&s->mem, sizeof *m) : NULL;
    if (m) { /* else it is made again */
        *m = (struct made){*head, of, key, made};
        *head = m;
    }
    return made;
}

/* ---- $ref ---- */

/* One step of a JSON pointer; *p moves behind it. */
static const json_t *pointer_step(const json_t *at, const char **p)
{
    char key[512];
    size_t n = 0;
    for (; **p && **p != '/'; (*p)++) {
        char c = **p;
        if (n + 1 >= sizeof key)
            return NULL;
        if (c == '~' && ((*p)[1] == '0' || (*p)[1] == '1')) {
            c = *++*p == '0' ? '~' : '/';
        } else if (c == '%' && (*p)[1] && (*p)[2]) {
            char hex[3] = {(*p)[1], (*p)[2], 0}, *end;
            long v = strtol(hex, &end, 16);
            if (*end || v == 0)
                return NULL;
            c = (char)v;
            *p += 2;
            if (c == '~' && ((*p)[1] == '0' || (*p)[1] == '1'))
                c = *++*p == '0' ? '~' : '/';
        }
        key[n++] = c;
    }
    key[n] = 0;
    if (json_is_object(at))
        return json_object_get(at, key);
    if (json_is_array(at) && n && strspn(key, "0123456789") == n && n < 8)
        return json_array_get(at, (size_t)strtol(key, NULL, 10));
    return NULL;
}

static const json_t *follow(const json_t *at, const char *pointer)
{
    while (at && *pointer == '/') {
        pointer++;
        at = pointer_step(at, &pointer);
    }
    return *pointer ? NULL : at;
}

/* The schema below `at` with this $anchor or $id. */
static const json_t *find_named(const json_t *at, const char *key, const char *name, int depth)
{
    const json_t *r = NULL;
    if (depth > 100)
        return NULL;
    if (json_is_object(at)) {
        const char *own = json_string_value(json_object_get(at, key)), *k;
        json_t *v;
        /* what has an address of its own has anchors of its own */
        const char *id = json_string_value(json_object_get(at, "$id"));
        if (depth && id && *id != '#' && key[1] != 'i')
            return NULL;
        if (own && strcmp(own, name) == 0)
            return at;
        json_object_foreach((json_t *)at, k, v)
        {
            if (strcmp(k, "enum") != 0 && strcmp(k, "const") != 0 &&
                (r = find_named(v, key, name, depth + 1)))
                return r;
        }
    } else if (json_is_array(at)) {
        for (size_t i = 0; i < json_array_size(at); i++)
            if ((r = find_named(json_array_get(at, i), key, name, depth + 1)))
                return r;
    }
    return NULL;
}

const json_t *sc__resolve(struct sc *s, const char *ref)
{
    const json_t *base = s->root, *r = NULL;
    const char *hash = strchr(ref, '#');
    size_t n = hash ? (size_t)(hash - ref) : strlen(ref);
    if (n) {
        char id[512];
        if (n >= sizeof id)
            n = sizeof id - 1;
        memcpy(id, ref, n);
        id[n] = 0;
        base = find_named(s->root, "$id", id, 0);
        if (!base)
            base = find_named(s->root, "id", id, 0);
    }
    const char *frag = hash ? hash + 1 : "";
    if (base && (!*frag || *frag == '/'))
        r = follow(base, frag);
    else if (base) {
        r = find_named(base, "$anchor", frag, 0);
        if (!r)
            r = find_named(base, "$dynamicAnchor", frag, 0);
    }
    if (!r && base) { /* drafts up to 7: an id that is a fragment */
        r = find_named(s->root, "$id", ref, 0);
        if (!r)
            r = find_named(s->root, "id", ref, 0);
    }
    if (!r)
        sc__fail(s, ERR_INVAL, "$ref", "'%.80s' is not in this schema (others are not fetched)",
                 ref);
    return r;
}

/* ---- keywords ---- */

struct kw {
    struct sc *s;
    struct conj *c;
    const json_t *schema, *v;
    const char *key;
};

static int bad(struct kw *k, const char *want)
{
    sc__fail(k->s, ERR_INVAL, k->key, "expected %s", want);
    return ERR_INVAL;
}

static int done(bool ok)
{
    return ok ? 0 : ERR_NOMEM;
}

static unsigned type_named(const char *t)
{
    static const struct {
        const char *name;
        unsigned bits;
    } all[] = {{"null", T_NULL},  {"boolean", T_BOOL}, {"integer", T_INT}, {"number", T_NUM},
               {"string", T_STR}, {"array", T_ARR},    {"object", T_OBJ},  {"any", T_ALL}};
    for (size_t i = 0; t && i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, t) == 0)
            return all[i].bits;
    return 0;
}

static int kw_type(struct kw *k)
{
    unsigned bits = 0;
    if (json_is_array(k->v)) {
        for (size_t i = 0; i < json_array_size(k->v); i++) {
            unsigned t = type_named(json_string_value(json_array_get(k->v, i)));
            if (!t)
                return bad(k, "names of JSON types");
            bits |= t;
        }
    } else {
        bits = type_named(json_string_value(k->v));
    }
    if (!bits)
        return bad(k, "'null', 'boolean', 'integer', 'number', 'string', 'array', 'object' or a "
                      "list of these");
    k->c->types &= bits;
    return 0;
}

static int kw_values(struct kw *k)
{
    bool one = strcmp(k->key, "const") == 0;
    if (!one && !json_is_array(k->v))
        return bad(k, "an array");
    const json_t *list = one ? sc__keep(k->s, json_pack("[O]", k->v)) : k->v;
    if (!list)
        return ERR_NOMEM;
    if (k->c->values) { /* those that are in both */
        json_t *both = json_array();
        for (size_t i = 0; both && i < json_array_size(list); i++)
            for (size_t m = 0; m < json_array_size(k->c->values); m++)
                if (json_equal(json_array_get(list, i), json_array_get(k->c->values, m)))
                    json_array_append(both, json_array_get(list, i));
        list = sc__keep(k->s, both);
    }
    k->c->values = list;
    return list ? 0 : ERR_NOMEM;
}

static int kw_bound(struct kw *k)
{
    bool open = strncmp(k->key, "exclusive", 9) == 0, low = strstr(k->key, "in") != NULL;
    struct conj *c = k->c;
    if (open && json_is_boolean(k->v)) /* draft 4: read with minimum and maximum */
        return 0;
    if (!json_is_number(k->v))
        return bad(k, "a number");
    double d = json_number_value(k->v);
    low = strstr(k->key, "Minimum") || strcmp(k->key, "minimum") == 0;
    if (!open)
        open =
            json_is_true(json_object_get(k->schema, low ? "exclusiveMinimum" : "exclusiveMaximum"));
    if (low && (!c->has_lo || d > c->lo || (d >= c->lo && open))) {
        c->has_lo = true;
        c->lo = d;
        c->lo_open = open;
    } else if (!low && (!c->has_hi || d < c->hi || (d <= c->hi && open))) {
        c->has_hi = true;
        c->hi = d;
        c->hi_open = open;
    }
    return 0;
}

static int kw_size(struct kw *k)
{
    static const struct {
        const char *key;
        size_t off;
        bool max;
    } all[] = {{"minLength", offsetof(struct conj, min_len), false},
               {"maxLength", offsetof(struct conj, max_len), true},
               {"minItems", offsetof(struct conj, min_items), false},
               {"maxItems", offsetof(struct conj, max_items), true},
               {"minProperties", offsetof(struct conj, min_props), false},
               {"maxProperties", offsetof(struct conj, max_props), true}};
    double d = json_is_number(k->v) ? json_number_value(k->v) : -1;
    if (!(d >= 0) || d != floor(d))
        return bad(k, "a non-negative integer");
    int64_t n = d > 1e9 ? 1000000000 : (int64_t)d;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t *at = (int64_t *)((char *)k->c + all[i].off);
        if (strcmp(all[i].key, k->key) != 0)
            continue;
        if (all[i].max && (*at < 0 || n < *at))
            *at = n;
        else if (!all[i].max && n > *at)
            *at = n;
    }
    return 0;
}

static int kw_multiple(struct kw *k)
{
    if (!json_is_number(k->v) || json_number_value(k->v) <= 0)
        return bad(k, "a number above 0");
    return done(sc__add(k->s, &k->c->multiple, k->v));
}

static int kw_pattern(struct kw *k)
{
    if (!json_is_string(k->v))
        return bad(k, "a string");
    bool f = strcmp(k->key, "format") == 0;
    return done(sc__add(k->s, f ? &k->c->format : &k->c->pattern, k->v));
}

static int kw_not_pattern(struct kw *k)
{
    return done(sc__add(k->s, &k->c->not_pattern, k->v));
}

static int kw_not_enum(struct kw *k)
{
    return done(sc__add(k->s, &k->c->not_values, k->v));
}

static int kw_array(struct kw *k)
{
    struct list *l = &k->c->array;
    return done((l->n && l->v[l->n - 1] == k->schema) || sc__add(k->s, l, k->schema));
}

static int kw_object(struct kw *k)
{
    struct list *l = &k->c->object;
    bool adds = strcmp(k->key, "additionalProperties") == 0;
    if (!adds && !json_is_object(k->v))
        return bad(k, "an object");
    return done((l->n && l->v[l->n - 1] == k->schema) || sc__add(k->s, l, k->schema));
}

static int kw_unique(struct kw *k)
{
    k->c->unique |= json_is_true(k->v);
    return 0;
}

static int kw_contains(struct kw *k)
{
    return done(sc__add(k->s, &k->c->contains, k->schema));
}

static int kw_required(struct kw *k)
{
    if (json_is_boolean(k->v)) /* draft 3, beside the property: its object decides */
        return 0;
    if (!json_is_array(k->v))
        return bad(k, "an array of strings");
    for (size_t i = 0; i < json_array_size(k->v); i++) {
        const json_t *name = json_array_get(k->v, i);
        if (!json_is_string(name))
            return bad(k, "an array of strings");
        bool twice = false;
        for (int m = 0; m < k->c->required.n; m++)
            twice |= json_equal((json_t *)k->c->required.v[m], (json_t *)name);
        if (!twice && !sc__add(k->s, &k->c->required, name))
            return ERR_NOMEM;
    }
    return 0;
}

static int kw_names(struct kw *k)
{
    return done(sc__add(k->s, &k->c->names, k->v));
}

static int kw_ref(struct kw *k)
{
    if (!json_is_string(k->v))
        return bad(k, "a string");
    const json_t *to = sc__resolve(k->s, json_string_value(k->v));
    return to ? sc__flatten(k->s, k->c, to) : ERR_INVAL;
}

/* Whether a part of the schema has an address of its own. */
static bool has_inner_id(const json_t *at, int depth)
{
    const char *key;
    json_t *v;
    if (depth > 100)
        return true;
    if (json_is_array(at))
        for (size_t i = 0; i < json_array_size(at); i++)
            if (has_inner_id(json_array_get(at, i), depth + 1))
                return true;
    if (!json_is_object(at))
        return false;
    if (depth && json_is_string(json_object_get(at, "$id")))
        return true;
    json_object_foreach((json_t *)at, key, v)
    {
        if (strcmp(key, "enum") != 0 && strcmp(key, "const") != 0 && has_inner_id(v, depth + 1))
            return true;
    }
    return false;
}

/* Where the whole schema is one document the outermost anchor is the only one, and the reference is a plain one. */
static int kw_dynamic(struct kw *k)
{
    if (has_inner_id(k->s->root, 0)) {
        sc__fail(k->s, ERR_UNSUPPORTED, k->key, "beside an inner '$id' is not supported");
        return ERR_UNSUPPORTED;
    }
    return kw_ref(k);
}

static int kw_all(struct kw *k)
{
    int rc = 0;
    if (!json_is_array(k->v) || !json_array_size(k->v))
        return bad(k, "a non-empty array of schemas");
    for (size_t i = 0; i < json_array_size(k->v) && !rc; i++)
        rc = sc__flatten(k->s, k->c, json_array_get(k->v, i));
    return rc;
}

static int add_choice(struct sc *s, struct conj *c, const json_t *alts, const char *key)
{
    struct choice ch = {.exclusive = strcmp(key, "oneOf") == 0,
                        .lenient = strcmp(key, KEY_SOME_OF) == 0};
    for (size_t i = 0; i < json_array_size(alts); i++)
        if (!sc__add(s, &ch.alt, json_array_get(alts, i)))
            return ERR_NOMEM;
    if (ch.alt.n == 1)
        return sc__flatten(s, c, ch.alt.v[0]);
    if (c->n_choice == c->cap_choice) {
        int cap = c->cap_choice ? c->cap_choice * 2 : 4;
        struct choice *p = arena_array(&s->mem, (size_t)cap, sizeof *p);
        if (!p) {
            sc__fail(s, ERR_LIMIT, NULL, "the schema takes too much memory");
            return ERR_LIMIT;
        }
        if (c->n_choice)
            memcpy(p, c->choice, (size_t)c->n_choice * sizeof *p);
        c->choice = p;
        c->cap_choice = cap;
    }
    c->choice[c->n_choice++] = ch;
    return 0;
}

static int kw_choice(struct kw *k)
{
    if (!json_is_array(k->v) || !json_array_size(k->v))
        return bad(k, "a non-empty array of schemas");
    return add_choice(k->s, k->c, k->v, k->key);
}

/* Flatten what `key` (of v) stands for. */
static int flatten_made(struct kw *k, const char *key, json_t *made)
{
    const json_t *m = sc__made_note(k->s, k->v, key, sc__keep(k->s, made));
    return m ? sc__flatten(k->s, k->c, m) : ERR_NOMEM;
}

static int kw_if(struct kw *k)
{
    const json_t *old = sc__made(k->s, k->v, k->key);
    if (old)
        return sc__flatten(k->s, k->c, old);
    json_t *then = json_object_get(k->schema, "then"), *other = json_object_get(k->schema, "else");
    json_t *yes = then ? json_pack("{s:[O,O]}", "allOf", k->v, then) : json_incref((json_t *)k->v);
    json_t *no = json_pack("{s:O}", "not", k->v);
    if (!then && !other) {
        json_decref(yes);
        json_decref(no);
        return 0;
    }
    if (no && other)
        no = json_pack("{s:[o,O]}", "allOf", no, other);
    if (!yes || !no) {
        json_decref(yes);
        json_decref(no);
        sc__fail(k->s, ERR_NOMEM, NULL, "no memory");
        return ERR_NOMEM;
    }
    return flatten_made(k, k->key, json_pack("{s:[o,o]}", "anyOf", yes, no));
}

/* dependentRequired, dependentSchemas, dependencies: without the key, or with what it asks for. */
static int kw_depend(struct kw *k)
{
    const char *name;
    json_t *v;
    int rc = 0;
    if (!json_is_object(k->v))
        return bad(k, "an object");
    json_object_foreach((json_t *)k->v, name, v)
    {
        const json_t *old = sc__made(k->s, k->v, name);
        if (old && (rc = sc__flatten(k->s, k->c, old)))
            break;
        if (old)
            continue;
        json_t *asks = json_is_array(v)    ? json_pack("{s:O}", "required", v)
                       : json_is_string(v) ? json_pack("{s:[O]}", "required", v)
                                           : json_incref(v);
        json_t *absent = json_pack("{s:{s:b}}", "properties", name, 0);
        json_t *present = json_pack("{s:s,s:[s]}", "type", "object", "required", name);
        rc = flatten_made(k, name,
                          json_pack("{s:[o,{s:[o,o]}]}", "anyOf", absent, "allOf", present, asks));
        if (rc)
            break;
    }
    return rc;
}

static int kw_not(struct kw *k)
{
    const json_t *no = sc__negate(k->s, k->v, 0);
    if (gr_failed(k->s->b, NULL))
        return ERR_INVAL;
    if (!no) {
        sc__fail(k->s, ERR_UNSUPPORTED, "not", "of this schema is not supported");
        return ERR_UNSUPPORTED;
    }
    return sc__flatten(k->s, k->c, no);
}

/* Where no other schema of the same place evaluates anything, unevaluated means additional. */
static int kw_unevaluated(struct kw *k)
{
    static const char *const appl[] = {"$ref",     "$dynamicRef", "allOf", "anyOf",
                                       "oneOf",    "if",          "not",   "dependentSchemas",
                                       "contains", NULL};
    if (json_is_true(k->v))
        return 0;
    for (int i = 0; appl[i]; i++)
        if (json_object_get(k->schema, appl[i])) {
            sc__fail(k->s, ERR_UNSUPPORTED, k->key, "beside '%s' is not supported", appl[i]);
            return ERR_UNSUPPORTED;
        }
    if (strcmp(k->key, "unevaluatedItems") == 0)
        return kw_array(k);
    struct list *l = &k->c->object;
    return done((l->n && l->v[l->n - 1] == k->schema) || sc__add(k->s, l, k->schema));
}

static int kw_refuse(struct kw *k)
{
    sc__fail(k->s, ERR_UNSUPPORTED, k->key, "is not supported");
    return ERR_UNSUPPORTED;
}

static const struct {
    const char *key;
    int (*fn)(struct kw *k);
} keywords[] = {
    {"type", kw_type},
    {"enum", kw_values},
    {"const", kw_values},
    {"minimum", kw_bound},
    {"maximum", kw_bound},
    {"exclusiveMinimum", kw_bound},
    {"exclusiveMaximum", kw_bound},
    {"multipleOf", kw_multiple},
    {"divisibleBy", kw_multiple},
    {"minLength", kw_size},
    {"maxLength", kw_size},
    {"pattern", kw_pattern},
    {"format", kw_pattern},
    {"items", kw_array},
    {"prefixItems", kw_array},
    {"additionalItems", kw_array},
    {"minItems", kw_size},
    {"maxItems", kw_size},
    {"uniqueItems", kw_unique},
    {"contains", kw_contains},
    {"properties", kw_object},
    {"patternProperties", kw_object},
    {"additionalProperties", kw_object},
    {"required", kw_required},
    {"propertyNames", kw_names},
    {"minProperties", kw_size},
    {"maxProperties", kw_size},
    {"$ref", kw_ref},
    {"$dynamicRef", kw_dynamic},
    {"$recursiveRef", kw_dynamic},
    {"allOf", kw_all},
    {"anyOf", kw_choice},
    {"oneOf", kw_choice},
    {KEY_SOME_OF, kw_choice},
    {"if", kw_if},
    {"not", kw_not},
    {"dependentRequired", kw_depend},
    {"dependentSchemas", kw_depend},
    {"dependencies", kw_depend},
    {"unevaluatedProperties", kw_unevaluated},
    {"unevaluatedItems", kw_unevaluated},
    {"extends", kw_refuse},
    {"disallow", kw_refuse},
    {KEY_NOT_ENUM, kw_not_enum},
    {KEY_NOT_PATTERN, kw_not_pattern},
};

int sc__flatten(struct sc *s, struct conj *c, const json_t *schema)
{
    if (gr_failed(s->b, NULL) || (++s->calls % 32 == 0 && !gr_in_time(s->b)))
        return ERR_INVAL;
    if (json_is_true(schema))
        return 0;
    if (json_is_false(schema)) {
        c->never = true;
        return 0;
    }
    if (!json_is_object(schema)) {
        sc__fail(s, ERR_INVAL, NULL, "a schema must be an object or a boolean");
        return ERR_INVAL;
    }
    for (int i = 0; i < c->seen.n; i++)
        if (c->seen.v[i] == schema)
            return 0;
    if (!sc__add(s, &c->seen, schema))
        return ERR_NOMEM;
    if (c->seen.n > 2000) {
        sc__fail(s, ERR_LIMIT, NULL, "over 2000 schemas must hold at once");
        return ERR_LIMIT;
    }
    const char *key;
    json_t *v;
    int rc = 0;
    json_object_foreach((json_t *)schema, key, v)
    {
        for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
            if (strcmp(keywords[i].key, key) == 0) {
                struct kw k = {s, c, schema, v, keywords[i].key};
                rc = keywords[i].fn(&k);
                break;
            }
        if (rc)
            return rc;
    }
    return 0;
}
