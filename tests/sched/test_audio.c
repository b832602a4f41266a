/* sched/audio: the speech lane on the fake engine and a fake clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "sched/audio.h"
#include "tests/fake_engine.h"

#define IDS 400

/* What the client of a request knows. */
struct client {
    int64_t n_frame;
    int language, n_piece, last; /* last: its final event's kind, 0 before */
    int code;
    char text[600];
    int64_t done_us;
};

static struct {
    struct engine *g;
    struct audio_lane *l;
    struct client c[IDS];
    uint64_t last_id;
    uint64_t cancel_in_pause; /* id, once */
    bool interrupt;
} rig;

static void append(char text[600], const char *more)
{
    size_t n = strlen(text);
    snprintf(text + n, 600 - n, "%s", more);
}

static void on_event(void *arg, const struct event *ev)
{
    struct client *c = &rig.c[ev->req];
    (void)arg;
    assert_true(ev->req > 0 && ev->req < IDS && !c->last);
    if (ev->kind == EV_AUDIO) {
        append(c->text, ev->audio->seg[0].text);
        c->n_piece++;
    } else {
        c->last = (int)ev->kind;
        c->code = ev->err.code;
        c->done_us = fake_now_us;
        assert_true(ev->kind == EV_DONE || ev->kind == EV_ERROR);
    }
    event_drop(ev);
}

static int64_t on_pause(void *arg)
{
    (void)arg;
    if (rig.cancel_in_pause)
        audio_lane_cancel(rig.l, rig.cancel_in_pause);
    rig.cancel_in_pause = 0;
    if (rig.interrupt)
        audio_lane_interrupt(rig.l);
    rig.interrupt = false;
    return 0;
}

static void rig_open(int n_slot)
{
    struct err e = {0};
    fake_reset_audio(n_slot);
    memset(rig.c, 0, sizeof rig.c);
    rig.last_id = 0;
    assert_int_equal(eng_open(&rig.g, &(struct eng_opts){0}, &e), 0);
    struct audio_opts o = {.clock = fake_clock, .emit = on_event, .pause = on_pause};
    assert_int_equal(audio_lane_open(&rig.l, rig.g, &o, &e), 0);
}

static void rig_close(void)
{
    audio_lane_close(rig.l);
    assert_int_equal(fake_count.jobs_open, 0);
    eng_close(rig.g);
}

static struct request *make(int64_t n_frame, int language)
{
    struct request *r = request_new();
    r->id = ++rig.last_id;
    r->n = 1;
    r->arrival_us = fake_now_us;
    r->audio = req_audio_new();
    r->audio->mel = xcalloc(1, sizeof *r->audio->mel);
    r->audio->mel->n_frame = n_frame;
    r->audio->mel->n_sample = n_frame * AUD_HOP;
    r->audio->p.mel = r->audio->mel;
    r->audio->p.language = language;
    rig.c[r->id].n_frame = n_frame;
    rig.c[r->id].language = language;
    return r;
}

static uint64_t submit(struct request *r)
{
    uint64_t id = r->id;
    audio_lane_submit(rig.l, r);
    return id;
}

static int step(void)
{
    struct err e = {0};
    int rc = audio_lane_step(rig.l, &e);
    if (audio_lane_check(rig.l, &e))
        fail_msg("%s", e.text);
    return rc;
}

static void run(void)
{
    for (int i = 0; !audio_lane_idle(rig.l); i++) {
        assert_true(i < 5000);
        assert_true(step() >= 0);
    }
    assert_int_equal(step(), 0);
}

/* The client has all of its text. */
static void whole(uint64_t id)
{
    const struct client *c = &rig.c[id];
    char want[600] = "", one[32];
    int n = (int)((c->n_frame + 199) / 200);
    for (int i = 0; i < n; i++) {
        fake_says(c->n_frame, c->language, i, one);
        append(want, one);
    }
    assert_int_equal(c->last, EV_DONE);
    assert_int_equal(c->n_piece, n);
    assert_string_equal(c->text, want);
}

static void test_texts(void **s)
{
    (void)s;
    rig_open(3);
    uint64_t id[7];
    for (int i = 0; i < 7; i++)
        id[i] = submit(make(100 + 330 * i, i));
    assert_int_equal(audio_lane_live(rig.l), 7);
    run();
    for (int i = 0; i < 7; i++)
        whole(id[i]);
    assert_int_equal(fake_count.jobs_open_max, 3);
    struct sched_stats st = {0};
    audio_lane_stats_get(rig.l, &st);
    assert_int_equal(st.audio.recordings, 7);
    assert_int_equal(st.audio.windows, fake_count.audio_encodes);
    assert_int_equal(st.audio.decode_rows, fake_count.audio_rows);
    assert_true(st.audio.seconds > 76.2 && st.audio.seconds < 76.4 && st.audio.us_per_second > 0);
    /* rows of several recordings go together */
    assert_true(fake_count.audio_rows > 2 * fake_count.audio_decodes);
    rig_close();
}

static void test_words(void **s)
{
    (void)s;
    rig_open(2);
    struct request *r = make(500, 1);
    r->audio->p.words = true;
    uint64_t a = submit(r), b = submit(make(500, 2));
    run();
    whole(a);
    whole(b);
    assert_int_equal(fake_count.audio_aligns, 3);
    rig_close();
}

static void test_order(void **s)
{
    (void)s;
    rig_open(1);
    uint64_t a = submit(make(200, 1)), b = submit(make(200, 2));
    struct request *r = make(200, 3);
    r->priority = -1;
    uint64_t c = submit(r);
    run();
    assert_true(rig.c[c].done_us < rig.c[a].done_us && rig.c[a].done_us < rig.c[b].done_us);
    rig_close();
}

static void test_cancel(void **s)
{
    (void)s;
    rig_open(1);
    uint64_t a = submit(make(900, 1)), b = submit(make(300, 2)), c = submit(make(300, 3));
    step();
    audio_lane_cancel(rig.l, b); /* waits */
    assert_int_equal(rig.c[b].last, EV_DONE);
    assert_int_equal(rig.c[b].n_piece, 0);
    fake.audio.ops = 4;
    rig.cancel_in_pause = a; /* in its own step: that ends at once */
    int64_t before = fake_now_us;
    assert_int_equal(step(), 1);
    assert_int_equal(fake_now_us - before, 250);
    assert_int_equal(rig.c[a].last, EV_DONE);
    audio_lane_cancel(rig.l, a);
    audio_lane_cancel(rig.l, 77);
    run();
    whole(c);
    struct sched_stats st = {0};
    audio_lane_stats_get(rig.l, &st);
    assert_int_equal(st.cancelled, 2);
    rig_close();
}

/* One of two in a step leaves: the other one's step goes on. */
static void test_cancel_beside(void **s)
{
    (void)s;
    rig_open(2);
    uint64_t a = submit(make(150, 1)), b = submit(make(150, 1));
    step();
    step(); /* both windows are encoded */
    rig.cancel_in_pause = a;
    uint64_t rows = fake_count.audio_rows;
    step();
    assert_int_equal(fake_count.audio_rows, rows + 2);
    assert_int_equal(rig.c[a].last, EV_DONE);
    rig.interrupt = true;
    step();
    run();
    whole(b);
    rig_close();
}

static void test_time(void **s)
{
    (void)s;
    rig_open(1);
    uint64_t a = submit(make(2000, 1));
    struct request *r = make(200, 2);
    r->queue_deadline_us = fake_now_us + 3000;
    uint64_t b = submit(r);
    r = make(200, 3);
    r->deadline_us = fake_now_us + 5000;
    uint64_t c = submit(r);
    run();
    whole(a);
    assert_int_equal(rig.c[b].last, EV_ERROR);
    assert_int_equal(rig.c[b].code, ERR_TIMEOUT);
    assert_int_equal(rig.c[c].code, ERR_TIMEOUT);
    r = make(2000, 4);
    r->deadline_us = fake_now_us + 5000;
    uint64_t d = submit(r);
    run();
    assert_int_equal(rig.c[d].code, ERR_TIMEOUT);
    rig_close();
}

static void test_errors(void **s)
{
    (void)s;
    struct err e = {0};
    rig_open(2);
    fake.audio.bad_language = 9;
    uint64_t a = submit(make(300, 9)), b = submit(make(300, 1));
    run();
    assert_int_equal(rig.c[a].code, ERR_INVAL);
    whole(b);
    struct request *r = request_new(); /* of another kind */
    r->id = ++rig.last_id;
    submit(r);
    assert_int_equal(rig.c[rig.last_id].code, ERR_INVAL);
    fake.audio.fail_window = 2;
    uint64_t c = submit(make(700, 1)), d = submit(make(150, 1));
    run();
    assert_int_equal(rig.c[c].code, ERR_NOMEM);
    assert_int_equal(rig.c[c].n_piece, 2);
    whole(d);
    fake.fail_step = fake_count.steps + 3;
    uint64_t f = submit(make(700, 1)), g = submit(make(700, 1)), h = submit(make(700, 1));
    int rc = 1;
    while (rc == 1)
        rc = step();
    assert_int_equal(rc, ERR_DEVICE);
    assert_true(rig.c[f].code == ERR_DEVICE && rig.c[g].code == ERR_DEVICE &&
                rig.c[h].code == ERR_DEVICE);
    rig_close();
    fake_reset(8);
    assert_int_equal(eng_open(&rig.g, &(struct eng_opts){0}, &e), 0);
    assert_int_equal(audio_lane_open(&rig.l, rig.g, &(struct audio_opts){.emit = on_event}, &e),
                     ERR_INVAL);
    eng_close(rig.g);
}

/* Too little memory for all at once: fewer in a step, and fewer open. */
static void test_memory(void **s)
{
    (void)s;
    rig_open(4);
    fake.audio.decode_nomem = 1;
    uint64_t id[4];
    for (int i = 0; i < 4; i++)
        id[i] = submit(make(400, i));
    run();
    for (int i = 0; i < 4; i++)
        whole(id[i]);
    assert_true(fake_count.audio_nomem > 0);
    fake.audio.decode_nomem = 0;
    fake.audio.open_nomem = 2;
    fake_count.jobs_open_max = 0;
    for (int i = 0; i < 4; i++)
        id[i] = submit(make(400, i));
    run();
    for (int i = 0; i < 4; i++)
        whole(id[i]);
    assert_int_equal(fake_count.jobs_open_max, 2);
    rig_close();
}

/* Arrivals and cancels at random: who was not cancelled has all of its text. */
static void test_random(void **s)
{
    (void)s;
    rig_open(3);
    bool gone[IDS] = {false};
    uint32_t at = 0;
    fake.audio.ops = 3;
    while (rig.last_id < 300 || !audio_lane_idle(rig.l)) {
        double u = rng_uniform(11, at++);
        if (u < 0.2 && rig.last_id < 300) {
            struct request *r = make(1 + (int64_t)(rng_uniform(12, at) * 1500), 1 + (int)(u * 20));
            r->priority = (int)(rng_uniform(13, at) * 3);
            r->audio->p.words = rng_uniform(14, at) < 0.3;
            submit(r);
        } else if (u < 0.24 && rig.last_id) {
            uint64_t id = 1 + (uint64_t)(rng_uniform(15, at) * (double)rig.last_id);
            gone[id] |= !rig.c[id].last;
            if (u < 0.22)
                rig.cancel_in_pause = id;
            else
                audio_lane_cancel(rig.l, id);
        }
        assert_true(step() >= 0);
    }
    int n = 0;
    for (uint64_t id = 1; id <= rig.last_id; id++) {
        assert_int_equal(rig.c[id].last, EV_DONE);
        if (gone[id])
            continue;
        whole(id);
        n++;
    }
    assert_true(n > 100);
    rig_close();
}

static void test_fail_all(void **s)
{
    (void)s;
    rig_open(2);
    uint64_t id[5];
    for (int i = 0; i < 5; i++)
        id[i] = submit(make(700, i));
    step();
    audio_lane_fail_all(rig.l, ERR_DRAINING, "closing");
    for (int i = 0; i < 5; i++)
        assert_int_equal(rig.c[id[i]].code, ERR_DRAINING);
    assert_true(audio_lane_idle(rig.l));
    submit(make(700, 1)); /* left inside: freed without an event */
    step();
    rig_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),         cmocka_unit_test(test_words),
        cmocka_unit_test(test_order),         cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_beside), cmocka_unit_test(test_time),
        cmocka_unit_test(test_errors),        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_random),        cmocka_unit_test(test_fail_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
