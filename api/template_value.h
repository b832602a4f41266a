/* Values of the chat-template engine (template*.c only): types, text, and the run's memory. A value is
 * 16 bytes, passed by value; what it points to lives in the arena of its render (constants: of its
 * template) and never changes, but for lists, dicts, namespaces, generators and loops. */
#ifndef API_TEMPLATE_VALUE_H
#define API_TEMPLATE_VALUE_H

#include <stdbool.h>

#include "api/template.h"

struct tnode;
/* --- values --- */
enum tv_type {
    TV_UNDEF, /* u.s: name for the message, or NULL */
    TV_NONE,
    TV_BOOL,
    TV_INT,
    TV_FLOAT,
    TV_STR,
    TV_SEQ,  /* everything list-like, see enum tseq_kind */
    TV_DICT, /* insertion order kept */
    TV_NS,   /* namespace(): a dict with settable attributes */
    TV_MACRO,
    TV_FN,     /* global function; u.fn */
    TV_METHOD, /* method bound to a value */
    TV_LOOP,
    TV_CYCLER,
    TV_JOINER,
    TV_MISSING, /* no value at all: unset slot, argument not passed */
};

enum tseq_kind { SEQ_LIST, SEQ_TUPLE, SEQ_RANGE, SEQ_GEN, SEQ_KEYS, SEQ_VALUES, SEQ_ITEMS };

/* Spare room behind a string that grew by concatenation: the newest string may grow in place, older
 * ones keep their own length, so `s = s ~ x` in a loop is linear. */
struct tgrow {
    char *p;
    size_t used, cap;
};
struct tstr { /* UTF-8, not terminated */
    const char *p;
    size_t n;
    struct tgrow *grow; /* NULL: may not grow */
};
struct tv {
    uint8_t t;
    bool safe; /* TV_STR: markup, set by |safe and |escape */
    union {
        bool b;
        int64_t i;
        double f;
        struct tstr *s;
        struct tseq *l;
        struct tdict *d;
        struct tmacro *m;
        struct tmethod *meth;
        struct tloop *loop;
        struct tcycler *cyc;
        const struct tfn *fn;
    } u;
};
struct tseq {
    uint8_t kind;
    bool group;         /* tuple: of groupby, with .grouper and .list; range: cut from another */
    size_t n, cap, pos; /* pos: items already taken from a generator */
    size_t *used;       /* list + list: slots of v in use by all that share it, else NULL */
    struct tv *v;
};
struct tentry {
    struct tv k, v;
    uint64_t h;
};
struct tdict {
    size_t n, cap;
    struct tentry *e;
    uint32_t *slot; /* n_slot (power of two) entry numbers + 1; NULL while small */
    size_t n_slot;
};
struct tcycler { /* also joiner: v[0] is the separator */
    struct tseq *items;
    size_t pos;
};
struct tscope {
    struct tscope *up; /* NULL: next is the root table */
    int n, cap;
    int32_t *sym;
    struct tv *v;
};
struct tmacro {
    const struct tnode *node;
    struct tscope *scope; /* where it was defined */
};
struct tloop {
    const struct tnode *node;
    struct tscope *scope;
    struct tseq *items;
    size_t i;
    int depth;
    struct tv changed; /* last argument of loop.changed(), TV_MISSING at first */
};

/* Arguments of one call. */
struct tcall {
    struct tv *pos;
    int n;
    struct tv *kwv;
    struct tstr **kwn;
    int n_kw;
};
struct tmpl_run;
struct tfn {
    const char *name;
    const char *sig; /* "a,b,c": names bound to a[0..]; NULL: raw call */
    struct tv (*call)(struct tmpl_run *r, struct tv self, struct tv *a, const struct tcall *c);
};
struct tmethod {
    struct tv self;
    const struct tfn *fn;
};

/* String under construction, in the arena. */
struct tsb {
    char *p;
    size_t n, cap;
};

/* template.c: errors, memory. */
void tmpl__fail(struct tmpl_run *r, int code, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
void *tmpl__alloc(struct tmpl_run *r, size_t n, size_t size); /* zeroed, never NULL */
void tmpl__tick(struct tmpl_run *r,
                size_t bytes); /* one step, and one more per 256 bytes of work */
void tmpl__sb_add(struct tmpl_run *r, struct tsb *b, const char *p, size_t n);
void tmpl__sb_str(struct tmpl_run *r, struct tsb *b, const char *s);
void tmpl__sb_pad(struct tmpl_run *r, struct tsb *b, const char *fill, size_t fill_n,
                  int64_t times);
struct tv tmpl__sb_take(struct tmpl_run *r, struct tsb *b);

/* template_value.c */
#define TV(type) ((struct tv){.t = (type)})
struct tv tmpl__bool(bool b);
struct tv tmpl__int(int64_t i);
struct tv tmpl__float(double f);
struct tv tmpl__str(struct tmpl_run *r, const char *p, size_t n); /* copies */
struct tv tmpl__ref(struct tmpl_run *r, const char *p, size_t n); /* bytes must outlive the run */
struct tv tmpl__undef(struct tmpl_run *r, const char *name, size_t n);
struct tv tmpl__seq(struct tmpl_run *r, int kind, size_t cap);
void tmpl__push(struct tmpl_run *r, struct tv seq, struct tv v);
struct tv tmpl__pair(struct tmpl_run *r, struct tv a, struct tv b);
struct tv tmpl__dict(struct tmpl_run *r);
void tmpl__dict_set(struct tmpl_run *r, struct tdict *d, struct tv k, struct tv v);
const struct tv *tmpl__dict_get(struct tmpl_run *r, const struct tdict *d, struct tv k);
struct tv tmpl__from_json(struct tmpl_run *r, const json_t *j, int depth);
bool tmpl__is(struct tv v, const char *s); /* string equal to s */
bool tmpl__truth(struct tv v);
bool tmpl__eq(struct tmpl_run *r, struct tv a, struct tv b, int depth);
int tmpl__cmp(struct tmpl_run *r, struct tv a, struct tv b, int depth); /* TypeError fails */
const char *tmpl__type(struct tv v);
/* All items in order; a generator gives what is left and is empty afterwards. Fails when not iterable. */
struct tseq *tmpl__iter(struct tmpl_run *r, struct tv v);
struct tv tmpl__concat(struct tmpl_run *r, struct tv a, struct tv b); /* two strings */
int64_t tmpl__len(struct tmpl_run *r, struct tv v);
int64_t tmpl__as_int(struct tmpl_run *r, struct tv v, const char *what);
struct tseq *tmpl__sorted(struct tmpl_run *r, struct tseq *keys, struct tseq *vals, bool reverse);

/* template_text.c: text of values, character work */
void tmpl__print(struct tmpl_run *r, struct tsb *b, struct tv v, bool repr, int depth);
struct tv tmpl__to_str(struct tmpl_run *r, struct tv v); /* str(v) */
void tmpl__float_text(struct tmpl_run *r, struct tsb *b, double f);
struct tv tmpl__tojson(struct tmpl_run *r, struct tv in, struct tv *a, const struct tcall *c);
size_t tmpl__char(const char *p, size_t n);   /* bytes of the character at p, 1 for a broken byte */
size_t tmpl__lspace(const char *p, size_t n); /* bytes of leading white space */
size_t tmpl__rspace(const char *p, size_t n); /* length without trailing white space */
bool tmpl__splitline(const char *p, size_t n, size_t *len, size_t *skip); /* false at the end */
void tmpl__escape(struct tmpl_run *r, struct tsb *b, struct tv s);
enum { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP };
struct tv tmpl__case(struct tmpl_run *r, struct tv s, int how);
void tmpl__cp_put(struct tmpl_run *r, struct tsb *b, int32_t cp);
int32_t tmpl__cp_get(const char *p, size_t n, size_t *len);
/* Substring by code points [from, to), both in range. */
struct tv tmpl__substr(struct tmpl_run *r, struct tv s, int64_t from, int64_t to);
const char *tmpl__find(const char *p, size_t n, const char *q, size_t m); /* NULL if absent */

/* Tables, searched when a template is compiled or a method is read. NULL when absent. */
const struct tfn *tmpl__filter(const char *name, size_t n);
const struct tfn *tmpl__filter_seq(const char *name, size_t n); /* template_filter_seq.c */
const struct tfn *tmpl__test(const char *name, size_t n);
const struct tfn *tmpl__global(const char *name, size_t n);
/* Method of a value's type; *blocked: the name exists but the sandbox hides it. */
const struct tfn *tmpl__method(struct tv o, const char *name, size_t n, bool *blocked);
const struct tfn *tmpl__change(struct tv o, const char *name, size_t n); /* template_change.c */
const struct tfn *tmpl__str_method(const char *name, size_t n);
const struct tfn *tmpl__fn_find(const struct tfn *tab, const char *name, size_t n);

#endif
