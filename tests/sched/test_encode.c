/* sched/encode: the encoder lane on the fake engine and a fake clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "sched/encode.h"
#include "tests/fake_engine.h"

#define EVENTS 4000

static struct {
    struct engine *g;
    struct encode_lane *l;
    struct event ev[EVENTS];
    int n_ev;
    uint64_t last_id;
} rig;

static void on_event(void *arg, const struct event *ev)
{
    (void)arg;
    assert_true(rig.n_ev < EVENTS);
    rig.ev[rig.n_ev++] = *ev;
}

static void rig_open(int32_t step_tokens)
{
    struct err e = {0};
    rig.n_ev = 0;
    assert_int_equal(eng_open(&rig.g, &(struct eng_opts){0}, &e), 0);
    struct encode_opts o = {.step_tokens = step_tokens, .clock = fake_clock, .emit = on_event};
    assert_int_equal(encode_lane_open(&rig.l, rig.g, &o, &e), 0);
}

static void rig_close(void)
{
    encode_lane_close(rig.l);
    eng_close(rig.g);
    for (int i = 0; i < rig.n_ev; i++)
        event_drop(&rig.ev[i]);
}

/* n rows of len tokens each; what they are follows from the id. */
static struct request *make(int n, int32_t len)
{
    struct request *r = request_new();
    r->id = ++rig.last_id;
    r->n = 1;
    r->arrival_us = fake_now_us;
    r->n_prompt = n * len;
    r->prompt = xmalloc((size_t)r->n_prompt * sizeof *r->prompt);
    r->encode = req_encode_new(n, true);
    for (int i = 0; i < n; i++) {
        r->encode->start[i + 1] = (i + 1) * len;
        r->encode->second[i] = len / 2;
    }
    for (int32_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = (int32_t)(r->id * 7 + (uint64_t)i) % 1000;
    return r;
}

static uint64_t submit(int n, int32_t len)
{
    struct request *r = make(n, len);
    uint64_t id = r->id;
    encode_lane_submit(rig.l, r);
    return id;
}

static int step(void)
{
    struct err e = {0}, c = {0};
    int rc = encode_lane_step(rig.l, &e);
    if (encode_lane_check(rig.l, &c))
        fail_msg("%s", c.text);
    return rc;
}

static const struct event *find(uint64_t id, enum event_kind kind)
{
    for (int i = 0; i < rig.n_ev; i++)
        if (rig.ev[i].req == id && rig.ev[i].kind == kind)
            return &rig.ev[i];
    return NULL;
}

/* The request's vectors are those of its texts alone, and its last event says how many tokens. */
static void check_vectors(uint64_t id, int n, int32_t len)
{
    const struct event *v = find(id, EV_EMBED), *end = find(id, EV_DONE);
    uint64_t was = rig.last_id;
    float want[4];
    assert_non_null(v);
    assert_true(end > v);
    assert_int_equal(end->n_prompt, n * len);
    rig.last_id = id - 1;
    struct request *r = make(n, len);
    rig.last_id = was;
    for (int i = 0; i < n; i++) {
        fake_vector(r->prompt + i * len, len, len / 2, want);
        assert_memory_equal(v->vec + i * 4, want, sizeof want);
    }
    request_free(r);
}

static void test_batches(void **st)
{
    (void)st;
    fake_reset_encoder();
    rig_open(40);
    assert_true(encode_lane_idle(rig.l));
    assert_int_equal(step(), 0);
    uint64_t many = submit(100, 8), one = submit(1, 8), long_one = submit(1, 64);
    assert_int_equal(encode_lane_live(rig.l), 3);
    assert_int_equal(encode_lane_waiting_tokens(rig.l), 872);
    assert_int_equal(
        step(), 1); /* the small one is in the first batch, though a hundred rows were before it */
    check_vectors(one, 1, 8);
    while (step() > 0)
        assert_true(fake_count.max_rows <= 64); /* a row longer than the budget goes alone */
    check_vectors(many, 100, 8);
    check_vectors(long_one, 1, 64);
    assert_int_equal(fake_count.rows, 872);
    assert_true(encode_lane_idle(rig.l));
    struct sched_stats s;
    encode_lane_stats_get(rig.l, &s);
    assert_int_equal(s.prompt_tokens, 872);
    assert_int_equal(s.running + s.waiting, 0);
    assert_true(s.requests_per_s > 0);
    rig_close();
}

static void test_priority(void **st)
{
    (void)st;
    fake_reset_encoder();
    rig_open(16);
    uint64_t later = submit(4, 16);
    struct request *r = make(2, 16);
    r->priority = -1;
    uint64_t first = r->id;
    encode_lane_submit(rig.l, r);
    assert_int_equal(step(), 1);
    assert_int_equal(step(), 1);
    check_vectors(first, 2, 16);
    assert_null(find(later, EV_EMBED));
    while (step() > 0)
        ;
    check_vectors(later, 4, 16);
    rig_close();
}

static void test_refused(void **st)
{
    (void)st;
    fake_reset_encoder();
    rig_open(0);
    uint64_t too_long = submit(1, 65), empty = submit(1, 0);
    struct request *text = make(1, 4);
    free(text->encode->start);
    free(text->encode->second);
    free(text->encode);
    text->encode = NULL;
    encode_lane_submit(rig.l, text);
    assert_int_equal(find(too_long, EV_ERROR)->err.code, ERR_CONTEXT);
    assert_int_equal(find(empty, EV_ERROR)->err.code, ERR_INVAL);
    assert_int_equal(find(rig.last_id, EV_ERROR)->err.code, ERR_INVAL);
    assert_true(encode_lane_idle(rig.l));
    rig_close();
}

/* Neither a token that the engine refuses nor a lack of memory is a neighbour's trouble. */
static void test_neighbours(void **st)
{
    (void)st;
    fake_reset_encoder();
    fake.encode.nomem_tokens = 20;
    rig_open(200);
    uint64_t a = submit(3, 8), b;
    struct request *bad = make(2, 8);
    bad->prompt[9] = 1000;
    b = bad->id;
    encode_lane_submit(rig.l, bad);
    uint64_t big = submit(1, 40), c = submit(2, 8);
    while (step() > 0)
        ;
    check_vectors(a, 3, 8);
    check_vectors(c, 2, 8);
    assert_int_equal(find(b, EV_ERROR)->err.code, ERR_INVAL);
    assert_int_equal(find(big, EV_ERROR)->err.code, ERR_NOMEM);
    assert_null(find(b, EV_EMBED));
    rig_close();
}

static void test_cancel_and_deadlines(void **st)
{
    (void)st;
    fake_reset_encoder();
    rig_open(8);
    uint64_t gone = submit(5, 8);
    struct request *r = make(5, 8), *q = make(5, 8);
    r->deadline_us = fake_now_us + 500;
    q->queue_deadline_us = fake_now_us + 1;
    uint64_t late = r->id, queued = q->id;
    encode_lane_submit(rig.l, r);
    encode_lane_submit(rig.l, q);
    step();
    encode_lane_cancel(rig.l, gone);
    encode_lane_cancel(rig.l, 12345678);
    assert_int_equal(find(gone, EV_DONE)->n_prompt, 8); /* what it cost */
    assert_null(find(gone, EV_EMBED));
    while (step() > 0)
        ;
    assert_int_equal(find(late, EV_ERROR)->err.code, ERR_TIMEOUT);
    assert_int_equal(find(queued, EV_ERROR)->err.code, ERR_TIMEOUT);
    rig_close();
}

static void test_device_failure(void **st)
{
    (void)st;
    fake_reset_encoder();
    fake.fail_step = 2;
    rig_open(8);
    uint64_t a = submit(1, 8), b = submit(2, 8);
    assert_int_equal(step(), 1);
    assert_int_equal(step(), ERR_DEVICE);
    check_vectors(a, 1, 8);
    assert_int_equal(find(b, EV_ERROR)->err.code, ERR_DEVICE);
    assert_true(encode_lane_idle(rig.l));
    submit(3, 8); /* closed with a request inside */
    rig_close();
}

/* Without memory for its vectors a request ends by an error. */
static void test_nomem(void **st)
{
    (void)st;
    fake_reset_encoder();
    rig_open(8);
    for (int k = 1; k <= 2; k++) {
        struct request *r = make(1, 8);
        uint64_t id = r->id;
        mem_fail_after(k, true);
        encode_lane_submit(rig.l, r);
        mem_fail_after(0, false);
        assert_int_equal(find(id, EV_ERROR)->err.code, ERR_NOMEM);
    }
    struct encode_lane *l;
    mem_fail_after(1, true);
    assert_int_equal(encode_lane_open(&l, rig.g, &(struct encode_opts){0}, NULL), ERR_NOMEM);
    mem_fail_after(0, false);
    fake.info.encoder = NULL;
    assert_int_equal(encode_lane_open(&l, rig.g, &(struct encode_opts){0}, NULL), ERR_INVAL);
    rig_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_cancel_and_deadlines),
        cmocka_unit_test(test_device_failure),
        cmocka_unit_test(test_nomem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
