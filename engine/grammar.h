/* Grammars that bound what a choice may write: the engine's door to them. A `struct grammar` is compiled from a JSON
 * schema, a regular expression, a list of choices or a grammar text by engine/text/grammar_build.h (pool threads) for
 * one vocabulary; it is immutable, counted, and shared by choices and threads. A `struct grammar_state` is where one
 * choice stands in it: one thread at a time (the engine's). */
#ifndef ENGINE_GRAMMAR_H
#define ENGINE_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct grammar;
struct grammar *grammar_ref(struct grammar *g); /* one more holder; NULL is fine */
void grammar_unref(struct grammar *g);          /* NULL is fine */
size_t grammar_bytes(const struct grammar *g);  /* memory that it holds, about */

struct grammar_state;
/* At the grammar's start; holds a reference. ERR_NOMEM. */
int grammar_state_open(struct grammar_state **out, struct grammar *g);
void grammar_state_close(struct grammar_state *s); /* NULL is fine */
/* dst, of the same grammar, stands where src does. ERR_NOMEM, ERR_LIMIT: dst is good for another copy only. */
int grammar_state_copy(struct grammar_state *dst, const struct grammar_state *src);

/* Bits of the tokens that may come next: bit id % 32 of bits[id / 32], all n_word words are written. Control tokens are
 * allowed where the grammar names them only; tokens that end an answer are the caller's business (grammar_may_end).
 * Returns whether any bit is set. ERR_NOMEM, ERR_LIMIT (too ambiguous) are negative. */
int grammar_mask(struct grammar_state *s, uint32_t *bits, size_t n_word);
/* Go on by a token. ERR_INVAL: the grammar does not allow it, nothing changed. ERR_NOMEM, ERR_LIMIT. */
int grammar_accept(struct grammar_state *s, int32_t token);
/* The text so far is whole. */
bool grammar_may_end(const struct grammar_state *s);
/* Nothing can follow: the text is whole, and every next token would break it. */
bool grammar_must_end(const struct grammar_state *s);

#endif
