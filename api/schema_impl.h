/* Private to the schema compiler. A set of schemas that must all hold is flattened into one `struct conj` of merged
 * keywords and a list of choices (anyOf, oneOf, and what is rewritten as them: if, dependencies, not); the choices are
 * multiplied out, and each resulting conj becomes a grammar expression. Keywords that are rewritten become synthetic
 * schemas, owned by the compiler. */
#ifndef API_SCHEMA_IMPL_H
#define API_SCHEMA_IMPL_H

#include "api/schema.h"
#include "engine/base/arena.h"

enum schema_type {
    T_NULL = 1,
    T_BOOL = 2,
    T_INT = 4,
    T_REAL = 8, /* numbers that are no integers */
    T_STR = 16,
    T_ARR = 32,
    T_OBJ = 64,
    T_NUM = T_INT | T_REAL,
    T_ALL = 127
};

/* Keywords of our own in synthetic schemas. */
#define KEY_NOT_ENUM    "\001not_enum"
#define KEY_NOT_PATTERN "\001not_pattern"
/* anyOf of what a negation leaves: an alternative that is not supported is left out. */
#define KEY_SOME_OF "\001some_of"

struct list { /* of json_t * or of conj parts; arena memory */
    const json_t **v;
    int n, cap;
};

struct choice {
    struct list alt;
    bool exclusive; /* oneOf */
    bool lenient;   /* KEY_SOME_OF */
};

struct conj {
    unsigned types;
    bool never;
    const json_t *values;   /* array: enum, const; NULL = any */
    struct list not_values; /* arrays */
    double lo, hi;          /* with has_lo, has_hi */
    bool has_lo, has_hi, lo_open, hi_open;
    struct list multiple;     /* numbers */
    int64_t min_len, max_len; /* characters; max -1 = none; likewise below */
    struct list pattern, not_pattern, format;
    struct list array; /* schemas with prefixItems, items, additionalItems */
    int64_t min_items, max_items;
    bool unique;
    struct list contains; /* schemas that have it */
    struct list object;   /* schemas with properties, patternProperties, additionalProperties */
    struct list required; /* strings */
    struct list names;    /* propertyNames' schemas */
    int64_t min_props, max_props;
    struct choice *choice; /* [n_choice] */
    int n_choice, cap_choice;
    const char *
        key; /* of items that differ: the member in which they do; "" is the item itself; NULL: none */
    struct list seen; /* schemas in it */
};

struct memo {
    struct memo *next;
    struct list key;
    gr_expr rule;
};
#define MEMO_BUCKETS 256

/* What was made of a schema for one of its keywords. Made once, so that a recursive schema finds itself again. */
struct made {
    struct made *next;
    const json_t *of;
    const char *key; /* by its address */
    const json_t *made;
};

struct sc {
    struct gr_builder *b;
    const struct schema_opts *o;
    struct schema_err *e;
    const json_t *root;
    struct arena mem;
    json_t *made; /* array of synthetic schemas */
    struct memo *memo[MEMO_BUCKETS];
    struct made *made_of[MEMO_BUCKETS];
    char path[1024];
    size_t path_len;
    int depth, branches;
    unsigned calls;                      /* of sc__flatten */
    gr_expr ws, any, any_object, string; /* GR_FAIL until made */
    int32_t key_count;                   /* texts of the last list's keys; GR_INF */
};

/* schema.c */
gr_expr sc__fail(struct sc *s, int code, const char *keyword, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
bool sc__add(struct sc *s, struct list *l, const json_t *v);
/* The language of what all of `items` allow. */
gr_expr sc__set(struct sc *s, const struct list *items);
/* Push a path element for messages; returns what sc__leave takes. */
size_t sc__enter(struct sc *s, const char *key, const char *name);
void sc__leave(struct sc *s, size_t mark);
gr_expr sc__ws(struct sc *s);
gr_expr sc__conj(struct sc *s, const struct conj *c); /* without choices */
gr_expr sc__expand(struct sc *s, struct conj *c);     /* with them */

/* schema_flat.c */
struct conj *sc__conj_new(struct sc *s);
struct conj *sc__conj_copy(struct sc *s, const struct conj *c);
int sc__flatten(struct sc *s, struct conj *c, const json_t *schema); /* 0 or ERR_* (noted) */
const json_t *sc__resolve(struct sc *s, const char *ref);
const json_t *sc__made(struct sc *s, const json_t *of, const char *key); /* NULL: not yet */
const json_t *sc__made_note(struct sc *s, const json_t *of, const char *key, const json_t *made);
const json_t *sc__keep(struct sc *s, json_t *made); /* take a synthetic value over; NULL: failed */
unsigned sc__type_of(const json_t *v);

/* schema_not.c: a schema of instances that `schema` does not allow (perhaps not all of them); NULL: none can be said,
 * which is not noted. */
const json_t *sc__negate(struct sc *s, const json_t *schema, int depth);

/* schema_check.c: 1 the value is valid, 0 not, -1 cannot be told. */
int sc__holds(struct sc *s, const json_t *schema, const json_t *v, int depth);
int sc__holds_conj(struct sc *s, const struct conj *c, const json_t *v, int depth);
/* Whether no instance can match both; false also when it cannot be told. */
bool sc__disjoint(struct sc *s, const json_t *x, const json_t *y, int depth);

/* one kind each */
gr_expr sc__number(struct sc *s, const struct conj *c);
gr_expr sc__string(struct sc *s, const struct conj *c);
/* What stands between the quotes, as a regular expression. */
gr_expr sc__string_body(struct sc *s, const struct conj *c);
gr_expr sc__array(struct sc *s, const struct conj *c);
gr_expr sc__object(struct sc *s, const struct conj *c);
/* schema_unique.c: an array's items that differ; and one of them, in c->key. */
gr_expr sc__unique(struct sc *s, const struct conj *c);
gr_expr sc__keyed(struct sc *s, const struct conj *c);
gr_expr sc__key(struct sc *s, const struct list *set); /* the value of the member c->key */
gr_expr sc__item(struct sc *s, const struct conj *c, size_t i,
                 const json_t *extra); /* schema_array.c */
void sc__items(const json_t *a, const json_t **prefix, const json_t **rest);
gr_expr sc__sep(struct sc *s);
gr_expr sc__brackets(struct sc *s, gr_expr inside, bool may_be_empty, bool may_be_full);
gr_expr sc__value(struct sc *s, const json_t *v); /* a constant */
/* Regular expression of a format, or NULL. */
const char *sc__format(const char *name);
/* A key or string constant with its quotes. */
gr_expr sc__quoted(struct sc *s, const char *text, size_t n);

#endif
