/* Inside of the fake engine, shared by its files. */
#ifndef TESTS_FAKE_ENGINE_IMPL_H
#define TESTS_FAKE_ENGINE_IMPL_H

#include "tests/fake_engine.h"

#define POISON (-7)

/* Like KV, a slot's content depends on all tokens up to it, not only on its own. */
struct slot {
    int32_t tok;
    uint64_t hash; /* of the sequence up to here */
};

#define OUT_MAX 1024

/* A begun step: what it found, until its end shows it. */
struct open_step {
    const struct step_plan *plan;
    struct sample_out out[OUT_MAX];
    int n_out;
    uint64_t number;
    int64_t done_us;
};

/* A recurrent state: how many tokens it has seen, and their hash. */
struct state {
    int32_t n; /* POISON: written by nobody */
    uint64_t hash;
};

struct engine {
    struct slot *slot;   /* [n_block, block_len] */
    struct state *state; /* [n_state] */
    bool failed;
    bool second;              /* the small model beside the first */
    struct open_step ring[2]; /* [turn] is the next one's */
    int turn, n_open;
    int64_t busy_us; /* the device is, until then */
};

extern struct engine *fake_the_engine; /* the open one */

#endif
