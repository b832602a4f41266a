/* Inside of the grammar builder; private to this folder. Expressions are kept once each: equal ones have equal
 * handles, so what was computed for one (its automaton) is found again. */
#ifndef ENGINE_TEXT_GRAMMAR_EXPR_H
#define ENGINE_TEXT_GRAMMAR_EXPR_H

#include "engine/text/grammar_impl.h"

enum expr_kind {
    X_EMPTY,
    X_NEVER,
    X_RANGE,    /* one byte a..b */
    X_LIT,      /* b->lit bytes a .. a + b */
    X_SEQ,      /* b->kid a .. a + b */
    X_ALT,      /* likewise */
    X_REP,      /* a, b..c times */
    X_RULE,     /* rule a */
    X_LEX,      /* a as one automaton */
    X_AND,      /* a and b */
    X_NOT,      /* not a */
    X_COUNTED,  /* b..c characters a */
    X_BOUNDED,  /* a, of c characters b at most */
    X_MULTIPLE, /* of a */
    X_SET,      /* kid a .. a + 2b, then its spec: b->set[c] */
    X_KEY,      /* a, of which each text comes once in the X_UNIQUE around it */
    X_UNIQUE,   /* kid a, then kids a + 1: b->set[c] */
    X_BOL,      /* only at the start of the automaton's text */
    X_EOL       /* only at its end */
};
struct expr {
    uint8_t kind;
    int32_t a, b, c;
};

struct set_spec {
    uint64_t must;
    int32_t min, max;
};

struct gr_rule {
    char name[64];
    gr_expr body; /* GR_FAIL: not set */
};

struct gr_builder {
    struct grammar_vocab *v;
    struct gr_limits o;
    int64_t deadline_us; /* by gr__cpu_us */
    struct err err;
    struct expr *x;
    size_t n_x, cap_x;
    int32_t *slot; /* hash of expressions: index + 1 */
    size_t n_slot;
    int32_t *kid;
    size_t n_kid, cap_kid;
    struct buf lit;
    struct gr_rule *rule;
    size_t n_rule, cap_rule;
    struct set_spec *set;
    size_t n_set, cap_set;
    struct dfa **dfa; /* [n_dfa] by expression, NULL until wanted */
    size_t n_dfa;
    gr_expr any[3]; /* gr_any, 0 = not built (expression 0 is the empty text) */
};

gr_expr gr__add(struct gr_builder *b, enum expr_kind kind, int32_t x, int32_t y, int32_t z);
gr_expr gr__range(struct gr_builder *b, int lo, int hi);
/* One of e, in their order. */
gr_expr gr__alt_flat(struct gr_builder *b, const gr_expr *e, size_t n);
/* One of the X_LIT e. (grammar_tree.c) */
gr_expr gr__alt_texts(struct gr_builder *b, const gr_expr *e, size_t n);
/* Time that this thread has worked: a busy machine refuses no schema. */
int64_t gr__cpu_us(void);
/* Room for n more elements of an array; false is noted as a failure. */
bool gr__grow(struct gr_builder *b, void *arrayp, size_t n, size_t *cap, size_t size);
/* The automaton of a regular expression, owned by the builder. `most` states (0 = the builder's limit). NULL: failed. */
const struct dfa *gr__dfa_of(struct gr_builder *b, gr_expr e, size_t most);
/* An automaton of NFA construction (grammar_nfa.c), not cached. */
int gr__nfa_dfa(struct gr_builder *b, gr_expr e, size_t most, struct dfa **out);

#endif
