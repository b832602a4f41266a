/* Speculation: tokens that are likely to come are computed beside the one that is due, and kept as far as the engine
 * chooses the same. Private to sched/.
 *
 *   tok:  ... known | d1 d2 d3        a step computes the last known token and the drafts; row i chooses what follows d_i
 *   rows:         t0  t1 t2 t3        t0 == d1, t1 == d2, t2 != d3: t0 t1 t2 come out, d3's KV is given back
 *
 * A row's logits do not depend on its company and its draw follows from (seed, position), so the tokens are those of
 * one step each. Drafts stand behind the known tokens, so histories (penalties) are right in every row that counts.
 *
 * A sequence has a guess at any time: a place in a text (its own, or the prediction that came with the request) where
 * its last tokens came before. Guesses are made and judged whether or not they are computed: how often they are right, by
 * the length of the match, is known at no cost. How many drafts a step takes follows from that and from how long steps of
 * so many rows were found to take: none, where more rows cost more than they bring. Engine thread only. */
#ifndef SCHED_SPEC_H
#define SCHED_SPEC_H

#include "sched/draft.h"
#include "sched/ngram.h"
#include "sched/worker.h"

#define SPEC_ROWS_MAX 64 /* rows of a step with drafts */
#define SPEC_CLASSES  7  /* of matches, by their length */

struct spec_score { /* of guesses, the right ones and all */
    float hit, seen;
};

/* Of one sequence. */
struct spec {
    struct ngram text;
    int32_t at;   /* the guess for the next token is the one at this place; -1: no guess */
    int32_t len;  /* equal tokens before it */
    bool foreign; /* the place is in the prediction, not in its own text */
    int32_t lost; /* where in the prediction the last guess failed */
    struct spec_score score[SPEC_CLASSES];
    struct draft_seq small; /* what a small model has of it */
    struct spec_score by_model;
    bool model;      /* the drafts are that model's */
    uint32_t forced; /* drafts that a grammar leaves no choice about */
    int n_cand;      /* drafts to be had, written behind the known tokens */
    int n_draft;     /* of those, in the step being planned */
    double p;        /* that all of them are right */
};

/* Of the scheduler. */
struct speculator {
    double us[SPEC_ROWS_MAX +
              1]; /* length of a step of so many rows, no prompts in it; 0 = not known */
    uint32_t n_seen[SPEC_ROWS_MAX + 1];
    int64_t end_us;          /* when the last step ended; 0: there was a pause */
    struct drafter *drafter; /* NULL: there is no small model */
    double us_draft;         /* of a step of it; 0 = not known */
    int64_t drafted_us;      /* its share of the time since end_us */
    bool pays;               /* it did when last looked at */
    int n_skipped;           /* looks not taken since */
    int dear;                /* with this many rows, or more, drafts did not pay; 0: they do */
};

#endif
