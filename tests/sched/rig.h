/* A scheduler on the fake engine with every event recorded, for tests/sched. */
#ifndef TESTS_SCHED_RIG_H
#define TESTS_SCHED_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "sched/sched_impl.h"
#include "tests/fake_engine.h"

#define RIG_EVENTS 20000

static struct rig {
    struct engine *g, *draft; /* draft: with fake.two */
    struct sched *s;
    struct event ev[RIG_EVENTS];
    int n_ev;
    uint64_t last_id;
} rig;

static inline void rig_emit(void *arg, const struct event *ev)
{
    (void)arg;
    assert_true(rig.n_ev < RIG_EVENTS);
    rig.ev[rig.n_ev++] = *ev;
}

/* After fake_reset and changes of `fake`. */
static inline void rig_open(struct sched_opts o)
{
    struct err e = {0};
    rig.n_ev = 0;
    rig.last_id = 0;
    o.clock = fake_clock;
    o.emit = rig_emit;
    assert_int_equal(eng_open(&rig.g, &(struct eng_opts){0}, &e), 0);
    if (fake.two)
        assert_int_equal(eng_open(&rig.draft, &(struct eng_opts){0}, &e), 0);
    o.draft = rig.draft;
    assert_int_equal(sched_open(&rig.s, rig.g, &o, &e), 0);
}

static inline void rig_close(void)
{
    sched_close(rig.s);
    eng_close(rig.draft);
    eng_close(rig.g);
    rig.s = NULL;
    rig.g = rig.draft = NULL;
}

/* Greedy-like request; prompt token i is (text * 7 + i * 3) % 50. */
static inline struct request *rig_request(int text, int32_t n_prompt, int32_t max_tokens)
{
    struct request *r = request_new();
    r->id = ++rig.last_id;
    r->prompt = xcalloc((size_t)n_prompt + 1, sizeof *r->prompt);
    for (int32_t i = 0; i < n_prompt; i++)
        r->prompt[i] = (text * 7 + i * 3) % 50;
    r->n_prompt = n_prompt;
    r->n = 1;
    r->max_tokens = max_tokens;
    r->prompt_logprobs = -1;
    r->samp = (struct req_sampling){.seed = 5, .n_top = -1, .top_p = 1, .repetition_penalty = 1};
    return r;
}

static inline uint64_t rig_submit(int text, int32_t n_prompt, int32_t max_tokens)
{
    struct request *r = rig_request(text, n_prompt, max_tokens);
    uint64_t id = r->id;
    sched_submit(rig.s, r);
    return id;
}

static inline int rig_step(void)
{
    struct err e = {0}, c = {0};
    int rc = sched_step(rig.s, &e);
    if (sched_check(rig.s, &c))
        print_error("%s\n", c.text);
    assert_int_equal(c.code, 0);
    return rc;
}

static inline void rig_run(int most)
{
    for (int i = 0; i < most && !sched_idle(rig.s); i++)
        rig_step();
    assert_true(sched_idle(rig.s));
}

static inline int rig_count(uint64_t id, enum event_kind kind)
{
    int n = 0;
    for (int i = 0; i < rig.n_ev; i++)
        n += rig.ev[i].req == id && rig.ev[i].kind == kind;
    return n;
}

/* The nth (0 = first) event of a kind; NULL. Its place in the order goes to *at (may be NULL). */
static inline const struct event *rig_find(uint64_t id, enum event_kind kind, int nth, int *at)
{
    for (int i = 0; i < rig.n_ev; i++)
        if (rig.ev[i].req == id && rig.ev[i].kind == kind && nth-- == 0) {
            if (at)
                *at = i;
            return &rig.ev[i];
        }
    return NULL;
}

static inline int rig_place(uint64_t id, enum event_kind kind)
{
    int at = -1;
    assert_non_null(rig_find(id, kind, 0, &at));
    return at;
}

#endif
