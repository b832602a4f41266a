/* Inside of the grammar files; private to this folder.
 *
 * A compiled grammar is a recursive transition network over bytes. Its nodes are terminals (each a DFA), calls of
 * rules, alternatives and counted repetitions. A state of it is a set of threads; between two bytes every thread
 * stands inside a terminal:
 *
 *   thread { node, DFA state, count } --> frame { node to go on with, its count } --> frame --> ... --> 0
 *
 * Frames are interned in their grammar_state, so equal stacks are equal numbers. */
#ifndef ENGINE_TEXT_GRAMMAR_IMPL_H
#define ENGINE_TEXT_GRAMMAR_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/text/grammar_build.h"

/* ---- automata (grammar_dfa.c, grammar_nfa.c) ---- */

#define DFA_DEAD 0xFFFFu
struct
    dfa { /* trimmed: every state is reached and reaches an accepting one; state 0 is the start */
    int32_t n_state, n_class; /* n_state 0: no text */
    uint8_t cls[256];
    uint16_t *next;  /* [n_state, n_class]; DFA_DEAD */
    uint8_t *accept; /* [n_state] DFA_* */
    uint64_t hash;
};
#define DFA_ACCEPT 1
#define DFA_OUT    2 /* has an edge */
#define DFA_CHAR   4 /* between two characters (gr__dfa_mark) */

static inline uint16_t dfa_step(const struct dfa *d, uint16_t s, uint8_t byte)
{
    return d->next[(size_t)s * (size_t)d->n_class + d->cls[byte]];
}
void gr__dfa_free(struct dfa *d); /* NULL is fine */
size_t gr__dfa_bytes(const struct dfa *d);
/* Operations: 0, ERR_NOMEM, ERR_LIMIT (over max_state states). */
int gr__dfa_and(struct dfa **out, const struct dfa *x, const struct dfa *y, size_t max_state);
int gr__dfa_not(struct dfa **out, const struct dfa *x, size_t max_state);
/* x's texts, all of which are in y; states where y accepts get DFA_CHAR. */
int gr__dfa_mark(struct dfa **out, const struct dfa *x, const struct dfa *y, size_t max_state);
/* Make `next` and `accept` of `raw` (n_state states, all reached) a trimmed, small automaton; takes raw over. */
int gr__dfa_finish(struct dfa **out, struct dfa *raw);
bool gr__dfa_has(const struct dfa *d, const void *text, size_t n);

/* ---- vocabulary (grammar_vocab.c) ---- */

struct trie_node {
    uint32_t end; /* index after its subtree: nodes are in depth-first order */
    int32_t tok;  /* first of its tokens in trie_tok */
    uint16_t n_tok;
    uint8_t byte, depth; /* depth of the root's children is 1; saturates */
};
#define TRIE_DEPTH 255 /* longer tokens are never allowed */

/* What a terminal allows from one of its states, whatever follows it. */
struct lmask_exit { /* the terminal may end inside a token */
    uint32_t node;  /* of the trie: what follows must go on below it */
    int32_t n_char; /* counted terminals: characters finished on the way */
};
struct lmask_tok {
    int32_t tok, n_char; /* characters finished, and needed to end */
};
struct lmask {
    uint32_t *bits; /* [n_word] tokens that stay in the terminal, or end with it */
    struct lmask_exit *exit;
    size_t n_exit;
    struct lmask_tok *tok; /* counted terminals: those of bits, by falling n_char */
    size_t n_tok;
};

struct term { /* a DFA, shared by grammars of a vocabulary that have the same */
    struct dfa *d;
    bool counted;
    uint16_t *
        rest; /* [n_state] counted: characters at least to an accepting state, the current one included */
    int32_t *texts;    /* [n_state] keys: how many texts are left, GR_INF; else NULL */
    struct lmask **l1; /* [n_state], entries set once, under the vocabulary's lock */
    size_t bytes;
    int refs; /* grammars */
    struct term *next;
};

#define TERM_BUCKETS 1024
struct grammar_vocab {
    atomic_int refs;
    int32_t n_vocab;
    size_t n_word;
    char *text;             /* all tokens' bytes */
    uint32_t *off;          /* [n_vocab + 1] */
    struct trie_node *node; /* [n_node], node 0 is the root */
    uint32_t n_node;
    int32_t *trie_tok;    /* token ids by trie order */
    pthread_mutex_t lock; /* of terms and of grammars' mask caches */
    struct term *term[TERM_BUCKETS];
    size_t kept; /* bytes of terms and their masks */
};
/* First byte of what stands for a control token in the trie; then its id, most significant byte first. */
#define CONTROL_BYTE 0xFF
#define CONTROL_LEN  5

/* The vocabulary's term of this DFA (taken over), one more reference. NULL: ERR_NOMEM. */
struct term *gr__term_get(struct grammar_vocab *v, struct dfa *d, bool counted);
int gr__term_texts(struct grammar_vocab *v, struct term *t); /* make t->texts; 0 or ERR_NOMEM */
int32_t gr__term_least(const struct dfa *d); /* fewest characters of a text of a marked DFA */
void gr__term_put(struct grammar_vocab *v, struct term *t);
/* Mask of a state of t; *own: the caller frees it (gr__lmask_free). NULL: ERR_NOMEM. */
const struct lmask *gr__lmask(struct grammar_vocab *v, struct term *t, uint16_t state, bool *own,
                              uint64_t *visits); /* nodes it took are added */
void gr__lmask_free(struct lmask *m);

/* ---- the network (grammar_compile.c) ---- */

enum node_kind {
    N_TERM,  /* a: terminal; then next */
    N_CALL,  /* a: entry of a rule; then next */
    N_ALT,   /* kid[a .. a + n) */
    N_COUNT, /* a: entry of a body that ends in N_RET, min..max times; then next */
    N_SET, /* members kid[a .. a + 2n): entry as the first, entry as a later one; each at most once */
    N_UNIQUE, /* kid[a] the first item, kid[a + 1] each later one, whose keys differ */
    N_RET
};
struct gnode {
    uint8_t kind;
    int32_t a, n, next; /* N_TERM: n = 1 where it is a key */
    int32_t min, max;   /* N_COUNT, N_SET, N_UNIQUE, counted N_TERM */
    uint64_t must;      /* N_SET: members that have to come */
};

#define L2_SLOTS 128
struct l2_entry {
    uint64_t key;
    uint32_t *bits; /* NULL: free */
};

struct grammar {
    atomic_int refs;
    struct grammar_vocab *v;
    struct gnode *node;
    int32_t n_node, entry;
    int32_t *kid;
    int32_t n_kid;
    struct term **term;
    int32_t n_term;
    size_t bytes;
    bool unique; /* has N_UNIQUE: states keep what was written */
    struct l2_entry l2[L2_SLOTS];
};

/* ---- states (grammar_state.c) ---- */

struct gframe {
    int32_t node, parent; /* parent 0: the bottom */
    uint64_t val;
    int32_t chain; /* next of its hash bucket */
    uint64_t hash; /* of the whole stack */
};
struct gthread {
    int32_t node, frame;
    int32_t count; /* of a key: where it began */
    uint16_t state;
};
struct gconfig {
    struct gthread *t;
    int32_t n, cap;
    bool may_end;
};
#define GR_MAX_THREAD 2048
#define GR_MAX_FRAME  (1 << 20)

struct gr_seen { /* closure: what was entered already */
    int32_t node, frame;
    uint64_t val;
    uint32_t stamp;
};

struct grammar_state {
    struct grammar *g;
    struct gconfig now, tmp;
    struct gframe *frame; /* [n_frame], 0 unused */
    int32_t n_frame, cap_frame;
    int32_t *bucket; /* [n_bucket], power of two */
    int32_t n_bucket;
    struct gr_seen *seen; /* [n_seen], power of two */
    uint32_t n_seen, seen_used, stamp;
    struct gr_seen *todo; /* closure's stack */
    int32_t n_todo, cap_todo;
    struct gconfig level[TRIE_DEPTH + 1]; /* of walks */
    uint32_t *scratch;                    /* [n_word] */
    uint64_t visits;                      /* trie nodes of the current mask */
    /* Where grammar->unique: what was written, and behind it what a walk tries. */
    char *text;
    size_t cap_text;
    int32_t len, pos, base; /* written; bytes up to now; where a walk began */
};

/* All threads that stand where `node` is entered with `val` on top of `frame`, added to c. 0 or ERR_*. */
int gr__enter(struct grammar_state *s, struct gconfig *c, int32_t node, uint64_t val,
              int32_t frame);
/* Start of building c: empty, and nothing seen. */
void gr__config_begin(struct grammar_state *s, struct gconfig *c);
/* c after one byte into out (not c). */
int gr__step(struct grammar_state *s, const struct gconfig *c, uint8_t byte, struct gconfig *out);
/* The frame of this content and hash; < 0 on failure. */
int32_t gr__frame(struct grammar_state *s, int32_t node, uint64_t val, int32_t parent, uint64_t h);
int32_t gr__frame_get(struct grammar_state *s, int32_t node, uint64_t val, int32_t parent);
/* Forget frames from n_frame on. */
void gr__frames_cut(struct grammar_state *s, int32_t n_frame);

/* ---- lists of items that differ (grammar_unique.c) ---- */

/* Texts that lead from each state to an end; the caller frees. NULL: no memory. */
int32_t *gr__texts(const struct dfa *d);
int32_t gr__keys(const struct grammar_state *s, uint64_t newest); /* of a list */
/* A key that ends at s->pos: 0 and the frame to go on with; ERR_INVAL: it was there before; ERR_NOMEM, ERR_LIMIT. */
int gr__key_end(struct grammar_state *s, const struct gthread *t, int32_t *frame);
int32_t gr__key_any(struct grammar_state *s, const struct gthread *t); /* as if some new one */
/* Whether the key that stands at s->pos can still become a new one. */
bool gr__key_alive(const struct grammar_state *s, const struct gthread *t);
uint64_t gr__key_hash(const struct grammar_state *s,
                      const struct gthread *t); /* for masks that are kept */
/* Take the tokens out of bits after which the key could only be one that was there. */
void gr__key_forbid(const struct grammar_state *s, const struct gthread *t, uint32_t *bits);
/* Write the bytes that lead to a trie node behind the text; how many. */
int32_t gr__trie_path(struct grammar_state *s, uint32_t node);
int gr__text_room(struct grammar_state *s, size_t n); /* for n more bytes and a walk */

#endif
