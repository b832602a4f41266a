/* Where the last tokens of a text came before: an index of its runs of 2 to 4 tokens. It forgets: a slot holds the latest
 * run that fell into it, and what it says is compared with the text. Memory is fixed at opening, work per token constant.
 * Engine thread only. */
#ifndef SCHED_NGRAM_H
#define SCHED_NGRAM_H

#include <stdbool.h>
#include <stdint.h>

#define NGRAM_MIN 2
#define NGRAM_MAX 4

struct ngram {     /* zero: closed */
    int32_t *slot; /* [mask + 1] position behind the run, 0 = none */
    uint32_t mask;
    int32_t n; /* tokens that are in */
};

int ngram_open(struct ngram *x, int32_t n_max); /* for a text of about n_max tokens. ERR_NOMEM */
void ngram_close(struct ngram *x);
/* Take in tok[x->n .. n): from now on a run can be found whose next token is one of them. */
void ngram_extend(struct ngram *x, const int32_t *tok, int32_t n);
/* The position of the token that followed the last NGRAM_MAX, or fewer, tokens of tok[n] when they came before; -1. *len:
 * how many tokens before it are equal, at most `most`. All of tok[n] must be in. */
int32_t ngram_find(const struct ngram *x, const int32_t *tok, int32_t n, int32_t most,
                   int32_t *len);
/* Equal tokens before tok[a] and before tok[b], at most `most`. */
int32_t ngram_equal(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b, int32_t most);

#endif
