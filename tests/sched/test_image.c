/* sched/image: the image lane on the fake engine and a fake clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "sched/image.h"
#include "tests/fake_engine.h"

#define EVENTS 20000

static struct {
    struct engine *g;
    struct image_lane *l;
    struct event ev[EVENTS];
    int n_ev, n_pause;
    int cancel_at, interrupt_at; /* which pause; 0 = none */
    uint64_t cancel_id;
    uint64_t last_id;
} rig;

static void on_event(void *arg, const struct event *ev)
{
    (void)arg;
    assert_true(rig.n_ev < EVENTS);
    rig.ev[rig.n_ev++] = *ev;
}

static int64_t on_pause(void *arg)
{
    (void)arg;
    rig.n_pause++;
    if (rig.n_pause == rig.cancel_at)
        image_lane_cancel(rig.l, rig.cancel_id);
    if (rig.n_pause == rig.interrupt_at)
        image_lane_interrupt(rig.l);
    fake_now_us += 500; /* another model had the device */
    return 500;
}

static void rig_open_rows(int max_running, int64_t step_rows, int64_t age_us)
{
    struct err e = {0};
    rig.n_ev = rig.n_pause = rig.cancel_at = rig.interrupt_at = 0;
    assert_int_equal(eng_open(&rig.g, &(struct eng_opts){0}, &e), 0);
    struct image_opts o = {.max_running = max_running,
                           .step_rows = step_rows,
                           .age_us = age_us,
                           .clock = fake_clock,
                           .emit = on_event,
                           .pause = on_pause};
    assert_int_equal(image_lane_open(&rig.l, rig.g, &o, &e), 0);
}

static void rig_open(int max_running)
{
    rig_open_rows(max_running, 0, 0);
}

static void events_free(void)
{
    for (int i = 0; i < rig.n_ev; i++) {
        img_pixels_free(rig.ev[i].px);
        rig.ev[i].px = NULL;
    }
}

static void rig_close(void)
{
    image_lane_close(rig.l);
    eng_close(rig.g);
    events_free();
    assert_int_equal(fake_count.jobs_open, 0);
}

static struct request *make(int text, int side, int steps, int n)
{
    struct request *r = request_new();
    char prompt[32];
    snprintf(prompt, sizeof prompt, "picture %d", text);
    r->id = ++rig.last_id;
    r->n = n;
    r->arrival_us = fake_now_us;
    r->image = req_image_new();
    r->image->p = (struct img_params){.prompt = xstrdup(prompt),
                                      .negative = xstrdup("ugly"),
                                      .width = side,
                                      .height = side,
                                      .steps = steps,
                                      .guidance = 7,
                                      .seed = (uint64_t)text * 10};
    return r;
}

static uint64_t submit(int text, int side, int steps, int n)
{
    struct request *r = make(text, side, steps, n);
    uint64_t id = r->id;
    image_lane_submit(rig.l, r);
    return id;
}

static int step(void)
{
    struct err e = {0}, c = {0};
    int rc = image_lane_step(rig.l, &e);
    if (image_lane_check(rig.l, &c))
        print_error("%s\n", c.text);
    assert_int_equal(c.code, 0);
    return rc;
}

static void run_all(void)
{
    for (int i = 0; i < 100000 && !image_lane_idle(rig.l); i++)
        assert_true(step() == 1 || image_lane_idle(rig.l)); /* it may end by an error */
    assert_true(image_lane_idle(rig.l));
    assert_int_equal(step(), 0);
}

static const struct event *find(uint64_t id, enum event_kind kind, int nth)
{
    for (int i = 0; i < rig.n_ev; i++)
        if (rig.ev[i].req == id && rig.ev[i].kind == kind && nth-- == 0)
            return &rig.ev[i];
    return NULL;
}

static int count(uint64_t id, enum event_kind kind)
{
    int n = 0;
    while (find(id, kind, n))
        n++;
    return n;
}

static int place(uint64_t id, enum event_kind kind)
{
    const struct event *ev = find(id, kind, 0);
    assert_non_null(ev);
    return (int)(ev - rig.ev);
}

/* The picture of an event is the one that its parameters make, whatever ran beside it. */
static void same_picture(const struct event *ev, int text, int side, int steps)
{
    char prompt[32];
    snprintf(prompt, sizeof prompt, "picture %d", text);
    struct img_params p = {.prompt = prompt,
                           .negative = "ugly",
                           .width = side,
                           .height = side,
                           .steps = steps,
                           .seed = (uint64_t)text * 10 + (uint64_t)ev->choice};
    uint8_t *want = fake_picture(&p);
    assert_non_null(ev->px);
    assert_int_equal(ev->px->width, side);
    assert_int_equal(ev->px->height, side);
    assert_memory_equal(ev->px->rgb, want, (size_t)side * (size_t)side * 3);
    free(want);
}

static void test_one(void **st)
{
    (void)st;
    fake_reset_image();
    rig_open(0);
    struct request *r = make(1, 64, 4, 1);
    r->image->progress = true;
    uint64_t id = r->id;
    image_lane_submit(rig.l, r);
    assert_int_equal(image_lane_live(rig.l), 1);
    run_all();
    assert_int_equal(count(id, EV_IMAGE_STEP), 4);
    for (int i = 0; i < 4; i++) {
        const struct event *ev = find(id, EV_IMAGE_STEP, i);
        assert_int_equal(ev->index, i + 1);
        assert_int_equal(ev->total, 4);
        assert_null(ev->px);
    }
    assert_true(find(id, EV_IMAGE_STEP, 0)->eta_us > find(id, EV_IMAGE_STEP, 2)->eta_us);
    const struct event *px = find(id, EV_IMAGE, 0), *done = find(id, EV_DONE, 0);
    same_picture(px, 1, 64, 4);
    assert_int_equal(px->n_prompt, 9);
    assert_int_equal(px->n_output, 64);
    assert_ptr_equal(done, &rig.ev[rig.n_ev - 1]);
    assert_int_equal(done->n_prompt, 9);
    assert_int_equal(done->n_output, 64);
    /* 128 rows are 200 us: pauses do not count */
    assert_int_equal(done->encode_us, 1000);
    assert_int_equal(done->denoise_us, 4 * 1200);
    assert_int_equal(done->decode_us, 1000);
    assert_int_equal(done->done_us - done->scheduled_us, 6800 + rig.n_pause * 500);
    assert_int_equal(rig.n_pause, 6);
    struct sched_stats s;
    image_lane_stats_get(rig.l, &s);
    assert_int_equal(s.image.images, 1);
    assert_int_equal(s.image.steps, 4);
    assert_int_equal(s.image.job_steps, 4);
    assert_int_equal(s.image.stage_us[IMG_DENOISE], 4800);
    assert_true(s.image.us_per_image > 6790 && s.image.us_per_image < 6810);
    assert_int_equal(s.image.step_rows_hist[1], 4);
    rig_close();
}

static void test_previews(void **st)
{
    (void)st;
    static const struct {
        int previews, steps, at[8], n;
    } want[] = {{0, 10, {0}, 0},       {1, 10, {5}, 1},   {3, 20, {5, 10, 15}, 3},
                {3, 10, {3, 5, 8}, 3}, {2, 4, {2, 3}, 2}, {8, 4, {1, 2, 3}, 3},
                {3, 1, {0}, 0}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        fake_reset_image();
        rig_open(0);
        struct request *r = make(1, 128, want[i].steps, 1);
        uint64_t id = r->id;
        r->image->previews = want[i].previews;
        image_lane_submit(rig.l, r);
        run_all();
        assert_int_equal(count(id, EV_IMAGE_STEP), want[i].n);
        for (int k = 0; k < want[i].n; k++) {
            const struct event *ev = find(id, EV_IMAGE_STEP, k);
            assert_int_equal(ev->index, want[i].at[k]);
            assert_int_equal(ev->px->width, 16);
            assert_int_equal(ev->px->height, 16);
        }
        assert_int_equal(count(id, EV_IMAGE), 1);
        rig_close();
    }
}

/* Pictures of a request and of others run in the same steps; none is changed by it. */
static void test_company(void **st)
{
    (void)st;
    fake_reset_image();
    rig_open(8);
    uint64_t a = submit(1, 64, 5, 4), b = submit(2, 128, 3, 2), c = submit(3, 64, 9, 1);
    run_all();
    assert_int_equal(count(a, EV_IMAGE), 4);
    assert_int_equal(count(b, EV_IMAGE), 2);
    for (int i = 0; i < 4; i++)
        same_picture(find(a, EV_IMAGE, i), 1, 64, 5);
    for (int i = 0; i < 2; i++)
        same_picture(find(b, EV_IMAGE, i), 2, 128, 3);
    same_picture(find(c, EV_IMAGE, 0), 3, 64, 9);
    assert_int_equal(find(a, EV_DONE, 0)->n_output, 4 * 64);
    assert_true(fake_count.image_steps < 4 * 7 + 2 * 5 + 11); /* fewer than one after the other */
    rig_close();
}

/* Small pictures pass a huge one. */
static void test_small_first(void **st)
{
    (void)st;
    fake_reset_image();
    rig_open(8);
    uint64_t huge = submit(1, 1024, 20, 1); /* 32768 rows a step: 52.2 ms */
    for (int i = 0; i < 3; i++)
        step();
    uint64_t small[4];
    for (int i = 0; i < 4; i++)
        small[i] = submit(10 + i, 64, 20, 1); /* 128 rows a step */
    run_all();
    for (int i = 0; i < 4; i++)
        assert_true(place(small[i], EV_DONE) < place(huge, EV_DONE));
    /* None of them waited for a step of the huge one: 22 of their own, of four. */
    const struct event *d = find(small[3], EV_DONE, 0);
    assert_true(d->done_us - d->arrival_us < 22 * (1000 + 800 + 500) + 1000);
    rig_close();
}

/* But a stream of small ones that never ends does not keep it from being made. */
static void test_no_starvation(void **st)
{
    (void)st;
    fake_reset_image();
    rig_open_rows(4, 600, 1000);
    uint64_t huge = submit(1, 512, 20, 1); /* 8192 rows a step: 13.8 ms */
    int64_t from = fake_now_us;
    for (int i = 0; i < 100000 && !count(huge, EV_DONE); i++) {
        while (image_lane_live(rig.l) < 4)
            submit(i, 64, 5, 1);
        step();
        assert_true(rig.n_ev < EVENTS - 100);
    }
    assert_int_equal(count(huge, EV_IMAGE), 1);
    same_picture(find(huge, EV_IMAGE, 0), 1, 512, 20);
    int64_t took = fake_now_us - from, own = 20 * 13800 + 2000;
    print_message(
        "a huge picture beside an endless stream of small ones: %.1f times its own time\n",
        (double)took / (double)own);
    assert_true(took < 11 * own);
    assert_true(took > 4 * own); /* and it does not take more than its turn */
    rig_close();
}

/* Where company makes nothing faster, equal pictures end one after the other, the first in its own time. */
static void test_one_by_one(void **st)
{
    (void)st;
    fake_reset_image();
    rig_open_rows(8, 128, 0);
    uint64_t id[4];
    for (int i = 0; i < 4; i++)
        id[i] = submit(i, 64, 10, 1);
    uint64_t many = submit(9, 64, 10, 3);
    run_all();
    int64_t before = 0;
    for (int i = 0; i < 4; i++) {
        const struct event *d = find(id[i], EV_DONE, 0);
        assert_true(before == 0 || d->done_us - before > 10 * 1200);
        before = d->done_us;
    }
    assert_true(find(many, EV_IMAGE, 1)->choice == 1); /* in order, each as early as it can be */
    assert_true(place(id[3], EV_DONE) < place(many, EV_IMAGE));
    rig_close();
}

/* A request of many pictures does not keep a single one waiting until all of them are finished. */
static void test_fair_n(void **st)
{
    (void)st;
    fake_reset_image();
    fake.image.fit_rows = 4 * 128;
    rig_open(8);
    uint64_t many = submit(1, 64, 10, 8);
    step();
    step();
    uint64_t one = submit(2, 64, 10, 1);
    run_all();
    assert_true(place(one, EV_DONE) < place(many, EV_DONE));
    assert_int_equal(count(many, EV_IMAGE), 8);
    rig_close();
}

static void test_priority(void **st)
{
    (void)st;
    fake_reset_image();
    rig_open(1);
    uint64_t a = submit(1, 64, 3, 1), b = submit(2, 64, 3, 1);
    struct request *r = make(3, 64, 3, 1);
    r->priority = -1;
    uint64_t c = r->id;
    step();
    image_lane_submit(rig.l, r);
    run_all();
    assert_true(place(a, EV_DONE) < place(c, EV_DONE)); /* what is at work stays */
    assert_true(place(c, EV_DONE) < place(b, EV_DONE));
    rig_close();

    fake_reset_image();
    rig_open_rows(8, 128, 0); /* one in a step */
    a = submit(1, 64, 6, 1);
    step();
    step();
    r = make(2, 64, 6, 1);
    r->priority = -1;
    b = r->id;
    image_lane_submit(rig.l, r);
    run_all();
    assert_true(place(b, EV_DONE) < place(a, EV_DONE));
    rig_close();
}

static void test_fit(void **st)
{
    (void)st;
    fake_reset_image();
    fake.image.fit_rows = 1000;
    rig_open(8);
    uint64_t id[6];
    for (int i = 0; i < 6; i++)
        id[i] = submit(i, i == 3 ? 1024 : 128, 4,
                       2); /* 512 rows; the large one never fits with others */
    run_all();
    assert_int_equal(fake_count.jobs_open_max, 2); /* one at work, one that did not fit */
    for (int i = 0; i < 6; i++) {
        assert_int_equal(count(id[i], EV_IMAGE), 2);
        same_picture(find(id[i], EV_IMAGE, 1), i, i == 3 ? 1024 : 128, 4);
    }
    rig_close();
}

/* Too little memory to decode: fewer at once, then alone, then when the others are gone. */
static void test_decode_nomem(void **st)
{
    (void)st;
    fake_reset_image();
    fake.image.decode_alone = true;
    rig_open(8);
    uint64_t id = submit(1, 64, 4, 8);
    run_all();
    assert_int_equal(count(id, EV_IMAGE), 8);
    assert_true(fake_count.image_nomem > 0);
    for (int i = 0; i < 8; i++)
        same_picture(find(id, EV_IMAGE, i), 1, 64, 4);
    rig_close();

    /* While the longer one is open nothing can be decoded: the finished latents wait for it. */
    fake_reset_image();
    fake.image.decode_jobs = 1;
    rig_open(8);
    uint64_t a = submit(1, 64, 2, 1), b = submit(2, 64, 30, 1);
    run_all();
    /* The long one ends by it, since both hold what neither can have; the short one is whole. */
    assert_int_equal(count(a, EV_DONE) + count(b, EV_DONE), 1);
    assert_int_equal(count(a, EV_ERROR) + count(b, EV_ERROR), 1);
    assert_int_equal(count(a, EV_IMAGE), count(a, EV_DONE));
    const struct event *bad = count(a, EV_ERROR) ? find(a, EV_ERROR, 0) : find(b, EV_ERROR, 0);
    assert_int_equal(bad->err.code, ERR_NOMEM);
    rig_close();

    /* The first of several is decoded before the memory ends: it is kept. */
    fake_reset_image();
    fake.image.decode_partial = true;
    rig_open(8);
    a = submit(1, 64, 4, 3);
    b = submit(2, 64, 4, 2);
    run_all();
    assert_int_equal(count(a, EV_IMAGE), 3);
    assert_int_equal(count(b, EV_IMAGE), 2);
    for (int i = 0; i < 3; i++)
        same_picture(find(a, EV_IMAGE, i), 1, 64, 4);
    rig_close();

    /* One that can never be decoded fails alone. */
    fake_reset_image();
    fake.image.nomem_width = 128;
    rig_open(8);
    a = submit(1, 64, 4, 2);
    b = submit(2, 128, 4, 1);
    uint64_t c = submit(3, 64, 4, 1);
    run_all();
    assert_int_equal(find(b, EV_ERROR, 0)->err.code, ERR_NOMEM);
    assert_int_equal(count(b, EV_DONE), 0);
    assert_int_equal(count(a, EV_IMAGE), 2);
    assert_int_equal(count(c, EV_DONE), 1);
    rig_close();
}

static void test_cancel(void **st)
{
    (void)st;
    fake_reset_image();
    rig_open(1);
    uint64_t a = submit(1, 64, 10, 2), b = submit(2, 64, 10, 1);
    for (int i = 0; i < 5; i++)
        step();
    image_lane_cancel(rig.l, 999);
    image_lane_cancel(rig.l, b); /* waiting */
    image_lane_cancel(rig.l, a); /* at work */
    image_lane_cancel(rig.l, a);
    assert_true(image_lane_idle(rig.l));
    assert_int_equal(fake_count.jobs_open, 0);
    assert_int_equal(count(a, EV_DONE) + count(b, EV_DONE), 2);
    assert_int_equal(count(a, EV_IMAGE), 0);
    assert_true(find(a, EV_DONE, 0)->denoise_us > 0);
    assert_int_equal(find(b, EV_DONE, 0)->scheduled_us, 0);
    assert_int_equal(step(), 0);
    rig_close();
}

/* Cancelled while a step runs: alone in it, the step ends between two operations; in company it ends for the others. */
static void test_cancel_in_step(void **st)
{
    (void)st;
    fake_reset_image();
    fake.image.ops = 10;
    rig_open(2);
    uint64_t a = submit(1, 64, 10, 1);
    step();
    step();
    int64_t from = fake_now_us;
    rig.cancel_id = a;
    rig.cancel_at = rig.n_pause + 3;
    assert_int_equal(step(), 1);
    assert_true(image_lane_idle(rig.l));
    assert_int_equal(count(a, EV_DONE), 1);
    assert_int_equal(fake_now_us - from, 3 * (120 + 500));
    assert_int_equal(fake_count.jobs_open, 0);
    image_lane_cancel(rig.l, a);

    uint64_t b = submit(2, 64, 4, 1), c = submit(3, 64, 4, 1), d = submit(4, 64, 4, 1);
    step();
    step();
    rig.cancel_id = b;
    rig.cancel_at = rig.n_pause + 3;
    step();
    assert_int_equal(count(b, EV_DONE), 1);
    rig.cancel_id = d; /* not at work in the step that runs, or not yet there */
    rig.cancel_at = rig.n_pause + 3;
    step();
    run_all();
    assert_int_equal(count(b, EV_IMAGE), 0);
    assert_int_equal(count(d, EV_IMAGE), 0);
    assert_int_equal(count(d, EV_DONE), 1);
    same_picture(find(c, EV_IMAGE, 0), 3, 64, 4);

    uint64_t e = submit(5, 64, 4, 1); /* an interrupted step is made again */
    step();
    rig.interrupt_at = rig.n_pause + 2;
    assert_int_equal(step(), 1);
    run_all();
    same_picture(find(e, EV_IMAGE, 0), 5, 64, 4);
    assert_int_equal(find(e, EV_IMAGE, 0)->index, 4);
    struct sched_stats s;
    image_lane_stats_get(rig.l, &s);
    assert_int_equal(s.cancelled, 3);
    rig_close();
}

static void test_deadlines(void **st)
{
    (void)st;
    fake_reset_image();
    rig_open(1);
    struct request *r = make(1, 64, 50, 1);
    r->deadline_us = fake_now_us + 20000;
    uint64_t a = r->id;
    image_lane_submit(rig.l, r);
    r = make(2, 64, 2, 1);
    r->queue_deadline_us = fake_now_us + 5000;
    uint64_t b = r->id;
    image_lane_submit(rig.l, r);
    r = make(3, 64, 2, 1);
    r->queue_deadline_us = fake_now_us + 30000;
    uint64_t c = r->id;
    image_lane_submit(rig.l, r);
    run_all();
    assert_int_equal(find(a, EV_ERROR, 0)->err.code, ERR_TIMEOUT);
    assert_non_null(strstr(find(a, EV_ERROR, 0)->err.text, "deadline"));
    assert_int_equal(find(b, EV_ERROR, 0)->err.code, ERR_TIMEOUT);
    assert_non_null(strstr(find(b, EV_ERROR, 0)->err.text, "queue"));
    assert_int_equal(count(c, EV_DONE), 1);
    assert_int_equal(count(c, EV_IMAGE), 1);
    rig_close();
}

static void test_bad(void **st)
{
    (void)st;
    fake_reset_image();
    fake.image.bad_width = 256;
    rig_open(4);
    uint64_t good = submit(1, 64, 2, 1), bad = submit(2, 256, 2, 3);
    struct request *r = make(3, 64, 2, 1);
    r->n = 0;
    uint64_t none = r->id;
    image_lane_submit(rig.l, r);
    r = request_new(); /* a question in words */
    r->id = ++rig.last_id;
    r->n = 1;
    uint64_t words = r->id;
    image_lane_submit(rig.l, r);
    run_all();
    assert_int_equal(count(good, EV_DONE), 1);
    assert_int_equal(find(bad, EV_ERROR, 0)->err.code, ERR_LIMIT);
    assert_non_null(strstr(find(bad, EV_ERROR, 0)->err.text, "width"));
    assert_int_equal(find(none, EV_ERROR, 0)->err.code, ERR_INVAL);
    assert_int_equal(find(words, EV_ERROR, 0)->err.code, ERR_INVAL);
    rig_close();

    fake_reset(8); /* a text model has no image lane */
    struct err e = {0};
    struct image_lane *l = NULL;
    assert_int_equal(eng_open(&rig.g, &(struct eng_opts){0}, &e), 0);
    assert_int_equal(image_lane_open(&l, rig.g, &(struct image_opts){0}, &e), ERR_INVAL);
    eng_close(rig.g);
    image_lane_close(NULL);
}

static void test_device(void **st)
{
    (void)st;
    fake_reset_image();
    fake.fail_step = 4;
    rig_open(4);
    uint64_t a = submit(1, 64, 5, 2), b = submit(2, 64, 5, 4);
    for (int i = 0; i < 3; i++)
        assert_int_equal(step(), 1);
    struct err e = {0};
    assert_int_equal(image_lane_step(rig.l, &e), ERR_DEVICE);
    assert_int_equal(e.code, ERR_DEVICE);
    assert_int_equal(find(a, EV_ERROR, 0)->err.code, ERR_DEVICE);
    assert_int_equal(find(b, EV_ERROR, 0)->err.code, ERR_DEVICE);
    assert_true(image_lane_idle(rig.l));
    rig_close();
}

/* Every allocation of a small run fails once: all requests end, nothing leaks. */
static void test_nomem(void **st)
{
    (void)st;
    for (long k = 1; k < 60; k++) {
        fake_reset_image();
        rig_open(2);
        struct request *r = make(1, 64, 3, 3);
        r->image->previews = 1;
        uint64_t id = r->id;
        mem_fail_after(k, false);
        image_lane_submit(rig.l, r);
        run_all();
        mem_fail_after(0, false);
        assert_int_equal(count(id, EV_DONE) + count(id, EV_ERROR), 1);
        if (count(id, EV_ERROR))
            assert_int_equal(find(id, EV_ERROR, 0)->err.code, ERR_NOMEM);
        rig_close();
    }
}

/* ---- random arrivals, sizes, cancels, failures ---- */
struct sent {
    uint64_t id;
    int side, steps, n;
    bool cancelled, ended;
};

static void check_request(const struct sent *q, int text)
{
    int images = count(q->id, EV_IMAGE), last = count(q->id, EV_DONE) + count(q->id, EV_ERROR);
    uint32_t seen = 0;
    assert_int_equal(last, 1);
    assert_int_equal(count(q->id, EV_ERROR), 0);
    assert_true(q->cancelled ? images <= q->n : images == q->n);
    for (int i = 0; i < images; i++) {
        const struct event *ev = find(q->id, EV_IMAGE, i);
        assert_false(seen >> ev->choice & 1);
        seen |= 1u << ev->choice;
        same_picture(ev, text, q->side, q->steps);
    }
    int order = place(q->id, EV_DONE);
    for (int i = order + 1; i < rig.n_ev; i++)
        assert_true(rig.ev[i].req != q->id);
}

static void simulate(uint64_t seed)
{
    enum { N = 60 };
    struct sent sent[N];
    uint64_t x = seed;
#define RANDOM(n) ((int)((x = hash_u64(x + 1)) % (uint64_t)(n)))
    fake_reset_image();
    fake.image.fit_rows = 500 + RANDOM(4000);
    fake.image.nomem_every = (uint32_t)RANDOM(2) * 5;
    fake.image.decode_alone = RANDOM(2);
    fake.image.decode_partial = RANDOM(2);
    fake.image.ops = RANDOM(5);
    int running = 1 + RANDOM(10), rows = RANDOM(5000), age = RANDOM(20000);
    rig_open_rows(running, rows, age);
    int n = 0;
    while (n < N || !image_lane_idle(rig.l)) {
        for (int k = RANDOM(3); k && n < N; k--, n++) {
            struct sent q = {
                .side = 64 + 64 * RANDOM(4), .steps = 1 + RANDOM(8), .n = 1 + RANDOM(5)};
            struct request *r = make(n, q.side, q.steps, q.n);
            r->priority = RANDOM(3);
            r->image->previews = RANDOM(4);
            r->image->progress = RANDOM(2);
            q.id = r->id;
            sent[n] = q;
            image_lane_submit(rig.l, r);
        }
        if (n && RANDOM(12) == 0) {
            struct sent *q = &sent[RANDOM(n)];
            if (count(q->id, EV_DONE) == 0) {
                q->cancelled = true;
                rig.cancel_id = q->id;
                rig.cancel_at = rig.n_pause + RANDOM(6);
                if (rig.cancel_at == rig.n_pause)
                    image_lane_cancel(rig.l, q->id);
            }
        }
        step();
        rig.cancel_at = 0; /* perhaps it came too late */
    }
    for (int i = 0; i < N; i++)
        check_request(&sent[i], i);
    assert_true(fake_count.image_rows_max <= fake.image.fit_rows || fake.image.fit_rows < 2048);
    struct sched_stats s;
    image_lane_stats_get(rig.l, &s);
    assert_int_equal(s.running + s.waiting + s.image.jobs + s.image.waiting, 0);
    rig_close();
#undef RANDOM
}

static void test_sim(void **st)
{
    (void)st;
    for (uint64_t seed = 1; seed <= 12; seed++)
        simulate(seed * 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),           cmocka_unit_test(test_previews),
        cmocka_unit_test(test_company),       cmocka_unit_test(test_small_first),
        cmocka_unit_test(test_no_starvation), cmocka_unit_test(test_one_by_one),
        cmocka_unit_test(test_fair_n),        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_fit),           cmocka_unit_test(test_decode_nomem),
        cmocka_unit_test(test_cancel),        cmocka_unit_test(test_cancel_in_step),
        cmocka_unit_test(test_deadlines),     cmocka_unit_test(test_bad),
        cmocka_unit_test(test_device),        cmocka_unit_test(test_nomem),
        cmocka_unit_test(test_sim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
