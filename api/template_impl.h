/* Inside of the chat-template engine (template*.c only). Data flow:
 *
 *   source --lex--> struct ttok[] --parse--> struct tnode tree (arena of the template, read-only)
 *   jansson vars --> struct tv  --exec/eval over the tree--> struct tsb (arena of the render) --> buf
 *
 * Errors leave by tmpl__fail, a longjmp to the single setjmp of compile or render. That is sound
 * because nothing between owns memory: every byte comes from the run's arena. */
#ifndef API_TEMPLATE_IMPL_H
#define API_TEMPLATE_IMPL_H

#include <setjmp.h>
#include <stdbool.h>

#include "api/template.h"
#include "engine/base/arena.h"
#include "engine/base/hash.h"

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
    bool group;         /* a groupby pair: has .grouper and .list */
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

/* --- tokens and tree --- */
enum ttok_type {
    TOK_EOF,
    TOK_DATA,
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STR,
    TOK_NUM,
    TOK_OP,
};
#define OP2(a, b) (((a) << 8) | (b))
enum { OP_IN = 1, OP_NOT_IN = 2 };
struct ttok {
    uint8_t type;
    int32_t op, line;
    struct tv val; /* TV_STR for data, names, strings; a number for TOK_NUM */
};

enum tnode_kind {
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NEG,
    N_POS,
    N_BIN,
    N_CMP,
    N_AND,
    N_OR,
    N_NOT,
    N_COND,
    N_CONCAT,
    N_CAPTURED,
    N_BODY,
    N_DATA,
    N_PRINT,
    N_IF,
    N_FOR,
    N_SET,
    N_SETBLOCK,
    N_MACRO,
    N_CALLBLOCK,
    N_FILTERBLOCK,
    N_WITH,
    N_SCOPE,
    N_BREAK,
    N_CONTINUE,
};
enum { USES_VARARGS = 1, USES_KWARGS = 2, USES_CALLER = 4 };
struct targs {
    struct tnode **pos, **kwv;
    struct tstr **kwn;
    int n_pos, n_kw;
    struct tnode *dyn, *dyn_kw;
};
/* Meaning of the fields by kind: see the constructor in template_parse*.c. */
struct tnode {
    uint8_t kind, flag;
    uint16_t depth;  /* 1 + deepest child */
    int32_t line, x; /* x: operator or symbol */
    struct tnode *a, *b, *c, *d;
    struct tnode **kid;
    int n;
    struct tv val;
    struct targs *args;
    const struct tfn *fn;
};

struct api_template {
    struct arena arena;
    struct tnode *root;
    struct tstr **sym; /* names of variables */
    int n_sym;
};

/* --- one compile or render --- */
#define TMPL_MAX_NEST 2500 /* C recursion of exec and eval */

struct tmpl_run {
    jmp_buf jb;
    struct err *e;
    int code;
    struct arena arena;
    struct api_template_limits lim;
    int64_t steps;
    int line, nest, calls; /* nest: C recursion of eval and exec; calls: macros and loops */
    const struct api_template *t;
    struct tv *root; /* by symbol */
    struct tscope *scope;
    struct tsb *out;
    struct tv captured;
    const struct tm *now;
    struct hash_key key;
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

/* template_lex.c, template_parse.c, template_stmt.c */
struct ttok *tmpl__lex(struct tmpl_run *r, const char *src, size_t n);
struct parser {
    struct tmpl_run *r;
    struct ttok *tok;
    struct api_template *t;
    int nest, loops, sym_cap;
    uint8_t uses; /* USES_* of the macro being parsed */
};
struct tnode *tmpl__node(struct parser *p, int kind);
struct tnode *tmpl__node_done(struct parser *p, struct tnode *n); /* sets depth, checks it */
void tmpl__node_push(struct parser *p, struct tnode *n, struct tnode *kid);
bool tmpl__tok_is(const struct parser *p, const char *name); /* current token is this name */
bool tmpl__tok_op(const struct parser *p, int op);
bool tmpl__skip_op(struct parser *p, int op);
bool tmpl__skip_name(struct parser *p, const char *name);
void tmpl__expect_op(struct parser *p, int op);
struct tv tmpl__expect_name(struct parser *p);
int32_t tmpl__symbol(struct parser *p, struct tstr *name);
void tmpl__unexpected(struct parser *p, const char *want) __attribute__((noreturn));
void tmpl__enter(struct parser *p);
struct tnode *tmpl__expr(struct parser *p, bool cond); /* cond: inline if allowed */
struct tnode *tmpl__tuple(struct parser *p, bool cond, const char *stop);
struct tnode *tmpl__target(struct parser *p, bool ns);
struct tnode *tmpl__filters(struct parser *p, struct tnode *in, bool first);
struct tnode *tmpl__unary(struct parser *p);
struct tnode *tmpl__body(struct parser *p, const char *const *ends);
struct tnode *tmpl__parse(struct parser *p); /* the whole template */

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

/* template_format.c: printf-style, str.format */
struct tv tmpl__percent(struct tmpl_run *r, struct tv fmt, struct tv arg);
struct tv tmpl__format(struct tmpl_run *r, struct tv fmt, struct tv *a, const struct tcall *c);

/* template_eval.c, template_exec.c */
struct tv tmpl__eval(struct tmpl_run *r, const struct tnode *n);
enum { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
int tmpl__exec(struct tmpl_run *r, const struct tnode *n);
struct tv tmpl__call(struct tmpl_run *r, struct tv f, const struct tcall *c);
struct tv tmpl__call_fn(struct tmpl_run *r, const struct tfn *f, struct tv self,
                        const struct tcall *c);
struct tv tmpl__call_macro(struct tmpl_run *r, const struct tmacro *m, const struct tcall *c);
struct tv tmpl__call_loop(struct tmpl_run *r, struct tloop *l, const struct tcall *c);
void tmpl__set(struct tmpl_run *r, int32_t sym, struct tv v);
struct tv tmpl__getattr(struct tmpl_run *r, struct tv o, struct tv name);
struct tv tmpl__getitem(struct tmpl_run *r, struct tv o, struct tv key);
struct tv tmpl__add(struct tmpl_run *r, struct tv a, struct tv b);
bool tmpl__contains(struct tmpl_run *r, struct tv item, struct tv box);

/* Tables, sorted by nothing: short linear search at compile time. NULL when absent. */
const struct tfn *tmpl__filter(const char *name, size_t n);
const struct tfn *tmpl__filter_seq(const char *name, size_t n); /* template_filter_seq.c */
const struct tfn *tmpl__test(const char *name, size_t n);
const struct tfn *tmpl__global(const char *name, size_t n);
/* Method of a value's type; *blocked: the name exists but the sandbox hides it. */
const struct tfn *tmpl__method(struct tv o, const char *name, size_t n, bool *blocked);
const struct tfn *tmpl__str_method(const char *name, size_t n);
const struct tfn *tmpl__fn_find(const struct tfn *tab, const char *name, size_t n);

#endif
