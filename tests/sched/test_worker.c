/* sched/worker: the thread, its mailboxes, bounds, drain, failure. Also run under the thread
 * sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "sched/mailbox.h"
#include "sched/worker.h"
#include "tests/fake_engine.h"

static _Atomic int n_notify;
static bool ahead; /* every test runs with look-ahead and without */

static void reset(int32_t n_block)
{
    fake_reset(n_block);
    fake.info.lookahead = ahead;
}

static void on_notify(void *arg)
{
    (void)arg;
    n_notify++;
}

static struct worker *start(struct worker_opts o)
{
    struct worker *w;
    struct err e;
    o.notify = on_notify;
    assert_int_equal(worker_start(&w, &o, &e), 0);
    return w;
}

static void pause_ms(int ms)
{
    struct timespec ts = {.tv_nsec = ms * 1000000L};
    nanosleep(&ts, NULL);
}

static void wait_phase(struct worker *w, enum worker_phase p)
{
    for (int i = 0; i < 5000 && worker_state(w, NULL) != p; i++)
        pause_ms(1);
    assert_int_equal(worker_state(w, NULL), p);
}

static struct request *make(uint64_t id, int32_t n_prompt, int32_t max_tokens)
{
    struct request *r = request_new();
    r->id = id;
    r->prompt = xcalloc((size_t)n_prompt, sizeof *r->prompt);
    for (int32_t i = 0; i < n_prompt; i++)
        r->prompt[i] = (int32_t)(id % 100) + i;
    r->n_prompt = n_prompt;
    r->n = 1;
    r->max_tokens = max_tokens;
    r->prompt_logprobs = -1;
    r->samp.n_top = -1;
    r->samp.repetition_penalty = 1;
    return r;
}

/* Poll until the last event of `want` requests has come; counts by kind go to n_kind. */
static void collect(struct worker *w, int want, int n_kind[EV_ERROR + 1], struct event *last)
{
    struct event ev[16];
    int done = 0;
    for (int i = 0; i < 20000 && done < want; i++) {
        int n = worker_poll(w, ev, 16);
        for (int k = 0; k < n; k++) {
            n_kind[ev[k].kind]++;
            if (ev[k].kind == EV_DONE || ev[k].kind == EV_ERROR) {
                done++;
                *last = ev[k];
            }
        }
        if (!n)
            pause_ms(1);
    }
    assert_int_equal(done, want);
}

static void test_serve(void **st)
{
    (void)st;
    reset(40);
    int n[EV_ERROR + 1] = {0};
    struct event last;
    struct sched_stats s;
    n_notify = 0;
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    assert_string_equal(worker_engine(w)->backend, "fake");
    for (uint64_t id = 1; id <= 20; id++)
        assert_int_equal(worker_submit(w, make(id, 20, 10)), 0);
    collect(w, 20, n, &last);
    assert_int_equal(n[EV_TOKEN], 200);
    assert_int_equal(n[EV_FINISH], 20);
    assert_int_equal(n[EV_DONE], 20);
    assert_int_equal(last.n_output, 10);
    assert_true(last.scheduled_us > 0 && last.first_token_us >= last.scheduled_us &&
                last.done_us >= last.first_token_us);
    assert_true(n_notify > 0);
    pause_ms(250);
    worker_stats(w, &s);
    assert_int_equal(s.generated_tokens, 200);
    assert_int_equal(s.prompt_tokens + s.prefix_hits, 400);
    assert_int_equal(s.running + s.waiting, 0);
    assert_int_equal(s.blocks_used, 0);
    assert_true(clock_us() - s.heartbeat_us < 5000000); /* beats while idle */
    uint64_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += s.step_tokens_hist[i];
    assert_int_equal(sum, s.steps);
    worker_stop(w);
    worker_stop(NULL);
    assert_int_equal(fake_count.opens, fake_count.closes);
}

static void test_heartbeat(void **st)
{
    (void)st;
    reset(40);
    struct sched_stats a, b;
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    pause_ms(20);
    worker_stats(w, &a);
    b = a;
    for (int i = 0; i < 100 && b.heartbeat_us == a.heartbeat_us; i++) {
        pause_ms(20);
        worker_stats(w, &b);
    }
    assert_true(b.heartbeat_us > a.heartbeat_us);
    assert_int_equal(b.steps, 0);
    worker_stop(w);
}

static void test_bounds(void **st)
{
    (void)st;
    reset(200);
    fake.us_step = 2000;
    fake.sleep = true;
    int n[EV_ERROR + 1] = {0}, ok = 0, full = 0;
    struct event last;
    struct worker *w = start((struct worker_opts){.max_running = 2, .max_queue = 3});
    wait_phase(w, WORKER_READY);
    for (uint64_t id = 1; id <= 12; id++) {
        struct request *r = make(id, 8, 200);
        int rc = worker_submit(w, r);
        ok += rc == 0;
        full += rc == ERR_FULL;
        if (rc)
            request_free(r); /* still ours */
    }
    assert_int_equal(ok, 5); /* two run, three wait */
    assert_int_equal(full, 7);
    for (uint64_t id = 1; id <= 12; id++)
        worker_cancel(w, id);
    collect(w, 5, n, &last);
    assert_int_equal(n[EV_DONE], 5);
    worker_stop(w);

    fake.sleep = true;
    w = start((struct worker_opts){.max_running = 1, .max_queue_tokens = 50});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_submit(w, make(1, 40, 200)), 0);
    struct sched_stats s = {0};
    for (int i = 0; i < 2000 && !s.running; i++, pause_ms(1))
        worker_stats(w, &s);
    assert_int_equal(worker_submit(w, make(2, 40, 2)), 0);
    struct request *r = make(3, 40, 2);
    assert_int_equal(worker_submit(w, r), ERR_FULL);
    request_free(r);
    assert_int_equal(worker_submit(w, make(4, 10, 2)), 0);
    worker_stop(w); /* with work inside */
}

static void test_finish_and_cancel(void **st)
{
    (void)st;
    reset(200);
    fake.us_step = 1000;
    fake.sleep = true;
    struct event ev;
    int n[EV_ERROR + 1] = {0}, got = 0;
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    struct request *r = make(1, 8, 200);
    r->n = 2;
    assert_int_equal(worker_submit(w, r), 0);
    for (int i = 0; i < 5000 && got < 6; i++) {
        if (worker_poll(w, &ev, 1))
            got += ev.kind == EV_TOKEN;
        else
            pause_ms(1);
    }
    assert_true(got >= 6);
    worker_finish_choice(w, 1, 0, 1);
    worker_finish_choice(w, 1, 7, 1); /* no such choice */
    worker_finish_choice(w, 9, 0, 1); /* no such request */
    worker_finish_choice(w, 1, 1, 2);
    collect(w, 1, n, &ev);
    assert_int_equal(ev.kind, EV_DONE);
    assert_int_equal(ev.n_output, 3);
    assert_int_equal(n[EV_FINISH], 0);
    worker_stop(w);
}

static void test_drain(void **st)
{
    (void)st;
    reset(200);
    fake.us_step = 1000;
    fake.sleep = true;
    int n[EV_ERROR + 1] = {0};
    struct event last;
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_submit(w, make(1, 8, 20)), 0);
    worker_drain(w, clock_us() + 60000000);
    struct request *r = make(2, 8, 20);
    assert_int_equal(worker_submit(w, r), ERR_DRAINING);
    request_free(r);
    collect(w, 1, n, &last);
    assert_int_equal(n[EV_TOKEN], 20); /* what was inside ends as usual */
    wait_phase(w, WORKER_STOPPED);
    worker_stop(w);

    fake.us_step = 20000;
    w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_submit(w, make(1, 8, 240)), 0);
    worker_drain(w, clock_us() + 50000);
    collect(w, 1, n, &last);
    assert_int_equal(last.kind, EV_ERROR);
    assert_int_equal(last.err.code, ERR_DRAINING);
    wait_phase(w, WORKER_STOPPED);
    worker_stop(w);
}

/* The fifth step fails, in one of the two places. */
static void fails_at(uint64_t *where)
{
    reset(40);
    *where = 5;
    int n[EV_ERROR + 1] = {0};
    struct event last;
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_submit(w, make(1, 8, 20)), 0);
    collect(w, 1, n, &last);
    assert_int_equal(last.kind, EV_ERROR);
    assert_int_equal(last.err.code, ERR_DEVICE);
    wait_phase(w, WORKER_FAILED);
    struct request *r = make(2, 8, 20);
    assert_int_equal(worker_submit(w, r), ERR_DEVICE);
    request_free(r);
    worker_drain(w, clock_us());
    worker_stop(w);
    assert_int_equal(fake_count.opens, fake_count.closes);
}

static void test_failure(void **st)
{
    (void)st;
    reset(40);
    fake.fail_open = ERR_IO;
    struct err e = {0};
    struct worker *w = start((struct worker_opts){.eng = {.path = "none", .device = "cpu"}});
    wait_phase(w, WORKER_FAILED);
    worker_state(w, &e);
    assert_int_equal(e.code, ERR_IO);
    assert_null(worker_engine(w));
    struct request *r = make(1, 8, 20);
    assert_int_equal(worker_submit(w, r), ERR_DEVICE);
    request_free(r);
    worker_stop(w);
    for (int at_end = 0; at_end < 2; at_end++)
        fails_at(at_end ? &fake.fail_end : &fake.fail_step);
}

/* Nobody polls: the ring fills, the thread waits instead of dropping events, and goes on later. */
static void test_back_pressure(void **st)
{
    (void)st;
    reset(200);
    int n[EV_ERROR + 1] = {0};
    struct event last;
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    for (uint64_t id = 1; id <= 16; id++)
        assert_int_equal(worker_submit(w, make(id, 8, 200)), 0);
    pause_ms(300);
    struct sched_stats s;
    worker_stats(w, &s);
    assert_true(s.generated_tokens < 3200);
    assert_true(clock_us() - s.heartbeat_us < 5000000);
    collect(w, 16, n, &last);
    assert_int_equal(n[EV_TOKEN], 3200);
    worker_stop(w);
}

static void *submitter(void *arg)
{
    struct worker *w = arg;
    for (uint64_t id = 1000; id < 1100; id++) {
        struct request *r = make(id, 30, 5);
        r->n = 3;
        int rc = worker_submit(w, r);
        assert_true(rc == 0 || rc == ERR_FULL);
        if (rc)
            request_free(r);
        if (id % 3 == 0)
            worker_cancel(w, id);
    }
    return NULL;
}

static void test_two_senders(void **st)
{
    (void)st;
    reset(30);
    struct event ev[32];
    pthread_t t;
    struct sched_stats s = {0};
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    assert_int_equal(thread_start(&t, "submitter", submitter, w), 0);
    int done = 0;
    for (int i = 0; i < 20000 && done < 100; i++) {
        int n = worker_poll(w, ev, 32);
        for (int k = 0; k < n; k++)
            done += ev[k].kind == EV_DONE;
        worker_stats(w, &s);
        if (!n)
            pause_ms(1);
    }
    pthread_join(t, NULL);
    assert_int_equal(done, 100);
    worker_stop(w);
}

static void test_loading(void **st)
{
    (void)st;
    reset(30);
    struct worker *w = start((struct worker_opts){0});
    struct request *r = make(1, 8, 2);
    int rc = worker_submit(w, r); /* too early, or just in time */
    assert_true(rc == ERR_AGAIN || rc == 0);
    if (rc)
        request_free(r);
    worker_stop(w);
}

static void test_no_memory(void **st)
{
    (void)st;
    struct err e = {0};
    struct worker *w = NULL;
    reset(30);
    for (long k = 1; k <= 2; k++) {
        mem_fail_after(k, false);
        assert_int_equal(worker_start(&w, &(struct worker_opts){0}, &e), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_null(w);
    }
    struct mailbox m;
    assert_int_equal(mailbox_init(&m, 1), 0);
    assert_int_equal(mailbox_send(&m, (struct msg){.kind = MSG_CANCEL}), 0);
    mem_fail_after(1, false);
    assert_int_equal(mailbox_send(&m, (struct msg){.kind = MSG_CANCEL}), ERR_NOMEM);
    mem_fail_after(0, false);
    assert_int_equal(mailbox_send(&m, (struct msg){.kind = MSG_SUBMIT, .r = make(1, 3, 3)}), 0);
    mailbox_free(&m);
}

/* ---- an image model ---- */

static struct request *make_image(uint64_t id, int side, int steps, int n)
{
    struct request *r = request_new();
    r->id = id;
    r->n = n;
    r->image = req_image_new();
    r->image->p = (struct img_params){.prompt = xstrdup("a red cube"),
                                      .negative = xstrdup(""),
                                      .width = side,
                                      .height = side,
                                      .steps = steps,
                                      .guidance = 7,
                                      .seed = id};
    r->image->previews = 2;
    r->image->progress = true;
    return r;
}

/* Like collect, freeing the pictures. */
static void collect_images(struct worker *w, int want, int n_kind[EV_ERROR + 1], struct event *last)
{
    struct event ev[16];
    int done = 0;
    for (int i = 0; i < 20000 && done < want; i++) {
        int n = worker_poll(w, ev, 16);
        for (int k = 0; k < n; k++) {
            n_kind[ev[k].kind]++;
            if (ev[k].kind == EV_IMAGE)
                assert_non_null(ev[k].px);
            img_pixels_free(ev[k].px);
            if (ev[k].kind == EV_DONE || ev[k].kind == EV_ERROR) {
                done++;
                *last = ev[k];
            }
        }
        if (!n)
            pause_ms(1);
    }
    assert_int_equal(done, want);
}

static void test_images(void **st)
{
    (void)st;
    fake_reset_image();
    int n[EV_ERROR + 1] = {0};
    struct event last;
    struct sched_stats s;
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_engine(w)->image->size_default, 64);
    for (uint64_t id = 1; id <= 10; id++)
        assert_int_equal(worker_submit(w, make_image(id, 64, 6, 2)), 0);
    worker_finish_choice(w, 3, 0, 0); /* of no picture: ignored */
    worker_cancel(w, 77);
    assert_int_equal(worker_submit(w, make(11, 20, 5)), 0); /* words */
    collect_images(w, 11, n, &last);
    assert_int_equal(n[EV_IMAGE], 20);
    assert_int_equal(n[EV_IMAGE_STEP], 120);
    assert_int_equal(n[EV_DONE], 10);
    assert_int_equal(n[EV_ERROR], 1);
    pause_ms(250);
    worker_stats(w, &s);
    assert_int_equal(s.image.images, 20);
    assert_int_equal(s.image.job_steps, 120);
    assert_int_equal(s.running + s.waiting + s.image.jobs + s.image.waiting, 0);
    /* Left in the mailbox when the worker stops: freed with it. */
    assert_int_equal(worker_submit(w, make_image(20, 64, 2, 2)), 0);
    pause_ms(50);
    worker_stop(w);
    assert_int_equal(fake_count.opens, fake_count.closes);
    assert_int_equal(fake_count.jobs_open, 0);

    reset(40); /* and a model of words makes no pictures */
    memset(n, 0, sizeof n);
    w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_submit(w, make_image(1, 64, 2, 1)), 0);
    collect(w, 1, n, &last);
    assert_int_equal(last.err.code, ERR_INVAL);
    worker_stop(w);
}

static void test_image_queue(void **st)
{
    (void)st;
    fake_reset_image();
    fake.image.fit_rows = 1;
    fake.image.us_step = 3000;
    fake.sleep = true;
    int n[EV_ERROR + 1] = {0}, ok = 0, rc = 0;
    struct event last;
    struct sched_stats s = {0};
    struct worker *w = start((struct worker_opts){.max_queue_images = 4});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_submit(w, make_image(100, 64, 50, 1)), 0);
    for (int i = 0; i < 1000 && !s.running; i++) {
        pause_ms(1);
        worker_stats(w, &s);
    }
    assert_int_equal(s.running, 1);
    for (uint64_t id = 1; id <= 8; id++) {
        struct request *r = make_image(id, 64, 2, 3);
        rc = worker_submit(w, r);
        ok += rc == 0;
        if (rc)
            request_free(r);
    }
    assert_int_equal(ok, 4);
    assert_int_equal(rc, ERR_FULL);
    for (int i = 0; i < 1000 && s.waiting < 4; i++) {
        pause_ms(1);
        worker_stats(w, &s);
    }
    assert_int_equal(s.waiting, 4);
    assert_int_equal(s.image.waiting, 12);
    worker_cancel(w, 100);
    collect_images(w, 5, n, &last);
    worker_stats(w, &s);
    assert_true(s.image.us_per_image > 9000);
    worker_drain(w, clock_us() + 10000000);
    wait_phase(w, WORKER_STOPPED);
    assert_int_equal(worker_engine(w)->image->size_max, 1024); /* though the engine is closed */
    worker_stop(w);
}

/* A step of seconds: the heart beats in it, the queue is kept, a cancel and a stop end it. */
static void test_image_long_step(void **st)
{
    (void)st;
    fake_reset_image();
    fake.image.us_step = 20000000;
    fake.image.ops = 1000;
    fake.sleep = true;
    int n[EV_ERROR + 1] = {0};
    struct event last;
    struct sched_stats a, b = {0};
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    int64_t from = clock_us();
    assert_int_equal(worker_submit(w, make_image(1, 64, 4, 1)), 0);
    pause_ms(250);
    worker_stats(w, &a);
    for (int i = 0; i < 1000 && (b.heartbeat_us <= a.heartbeat_us || b.waiting != 1); i++) {
        if (i == 0)
            assert_int_equal(worker_submit(w, make_image(2, 64, 4, 1)), 0);
        pause_ms(5);
        worker_stats(w, &b);
    }
    assert_true(b.heartbeat_us > a.heartbeat_us);
    assert_int_equal(b.waiting, 1);
    worker_cancel(w, 1);
    collect_images(w, 1, n, &last);
    assert_int_equal(last.req, 1);
    assert_int_equal(last.kind, EV_DONE);
    worker_stop(w); /* in the step of the second */
    assert_true(clock_us() - from < 15000000);
    assert_int_equal(fake_count.jobs_open, 0);
}

/* Only one fake engine can be open: the test is the other user of the device. */
static void test_image_turns(void **st)
{
    (void)st;
    fake_reset_image();
    fake.image.us_step = 2000;
    fake.sleep = true;
    int n[EV_ERROR + 1] = {0};
    struct event last;
    struct turn *t = turn_open((int[TURN_N_CLASS]){67, 33});
    struct turn_user *text = turn_join(t, TURN_TEXT);
    struct worker *w = start((struct worker_opts){.turn = t});
    wait_phase(w, WORKER_READY);
    turn_take(text);
    assert_int_equal(worker_submit(w, make_image(1, 64, 10, 1)), 0);
    pause_ms(30);
    assert_int_equal(fake_count.image_steps, 0); /* the device is ours */
    turn_give(text);
    for (int i = 0; i < 5; i++) {
        turn_take(text);
        pause_ms(2);
        turn_give(text);
    }
    collect_images(w, 1, n, &last);
    assert_int_equal(n[EV_DONE], 1);
    assert_true(turn_used_us(t, TURN_IMAGE) >= 20000);
    worker_stop(w);
    turn_leave(text);
    turn_close(t);

    reset(40);
    memset(n, 0, sizeof n);
    t = turn_open((int[TURN_N_CLASS]){67, 33});
    w = start((struct worker_opts){.turn = t});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_submit(w, make(1, 20, 10)), 0);
    collect(w, 1, n, &last);
    /* A device with its own queue takes no turns. */
    assert_true(ahead ? turn_used_us(t, TURN_TEXT) == 0 : turn_used_us(t, TURN_TEXT) > 0);
    worker_stop(w);
    turn_close(t);
}

/* ---- an encoder ---- */

static struct request *make_texts(uint64_t id, int n)
{
    struct request *r = make(id, 8 * n, 1);
    r->encode = req_encode_new(n, false);
    for (int i = 1; i <= n; i++)
        r->encode->start[i] = 8 * i;
    return r;
}

static void test_encoder(void **st)
{
    (void)st;
    fake_reset_encoder();
    struct event ev[16];
    struct sched_stats s;
    int n_vec = 0, n_done = 0, n_error = 0;
    struct worker *w = start((struct worker_opts){0});
    wait_phase(w, WORKER_READY);
    assert_int_equal(worker_engine(w)->encoder->dim, 4);
    for (uint64_t id = 1; id <= 30; id++)
        assert_int_equal(worker_submit(w, make_texts(id, 1 + (int)id % 5)), 0);
    worker_finish_choice(w, 3, 0, 0); /* of no text: ignored */
    worker_cancel(w, 77);
    assert_int_equal(worker_submit(w, make(31, 20, 5)), 0); /* wants words */
    for (int i = 0; i < 20000 && n_done + n_error < 31; i++) {
        int n = worker_poll(w, ev, 16);
        for (int k = 0; k < n; k++) {
            n_vec += ev[k].kind == EV_EMBED && ev[k].vec;
            n_done += ev[k].kind == EV_DONE;
            n_error += ev[k].kind == EV_ERROR;
            event_drop(&ev[k]);
        }
        if (!n)
            pause_ms(1);
    }
    assert_int_equal(n_vec, 30);
    assert_int_equal(n_done, 30);
    assert_int_equal(n_error, 1);
    pause_ms(250);
    worker_stats(w, &s);
    assert_int_equal(s.prompt_tokens, 8 * 90);
    assert_int_equal(s.running + s.waiting, 0);
    /* Left in the mailbox when the worker stops: freed with it. */
    assert_int_equal(worker_submit(w, make_texts(40, 3)), 0);
    pause_ms(50);
    worker_stop(w);
    assert_int_equal(fake_count.opens, fake_count.closes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serve),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_encoder),
        cmocka_unit_test(test_image_queue),
        cmocka_unit_test(test_image_turns),
        cmocka_unit_test(test_image_long_step),
        cmocka_unit_test(test_heartbeat),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_finish_and_cancel),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_two_senders),
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_no_memory),
    };
    int rc = cmocka_run_group_tests_name("in turn", tests, NULL, NULL);
    ahead = true;
    return rc + cmocka_run_group_tests_name("ahead", tests, NULL, NULL);
}
