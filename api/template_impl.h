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

#include "api/template_value.h"
#include "engine/base/arena.h"
#include "engine/base/hash.h"

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
    int32_t *own; /* N_BODY of a scope: symbols undefined until it sets them */
    int n_own;
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
struct tnode *tmpl__parse(struct parser *p);             /* the whole template */
void tmpl__scopes(struct parser *p, struct tnode *root); /* template_scope.c: fills tnode.own */

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

#endif
