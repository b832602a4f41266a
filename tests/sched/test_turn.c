/* sched/turn: shares, claims, pauses of a long step, with real threads and a real clock. What is compared is time as
 * the turn object measured it, so a slow machine changes the figures little. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "engine/base/thread.h"
#include "sched/turn.h"

static atomic_int holders; /* never two */

struct task {
    struct turn *t;
    enum turn_class c;
    int64_t until_us, start_us;
    int hold_us, n_op, away_us; /* a step: n_op operations of hold_us, a yield after each */
    /* out */
    int n_step, n_take;
    int64_t worst_wait_us, yielded_us;
    pthread_t thread;
};

static void sleep_us(int64_t us)
{
    struct timespec ts = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&ts, NULL);
}

static void *use(void *arg)
{
    struct task *k = arg;
    struct turn_user *u = turn_join(k->t, k->c);
    if (k->start_us > clock_us())
        sleep_us(k->start_us - clock_us());
    while (clock_us() < k->until_us) {
        int64_t from = clock_us();
        turn_take(u);
        k->n_take++;
        if (clock_us() - from > k->worst_wait_us)
            k->worst_wait_us = clock_us() - from;
        assert_int_equal(atomic_fetch_add(&holders, 1), 0);
        for (int i = 0; i < k->n_op; i++) {
            sleep_us(k->hold_us);
            atomic_fetch_sub(&holders, 1);
            k->yielded_us += turn_yield(u);
            assert_int_equal(atomic_fetch_add(&holders, 1), 0);
        }
        k->n_step++;
        atomic_fetch_sub(&holders, 1);
        turn_give(u);
        if (k->away_us)
            sleep_us(k->away_us);
    }
    turn_leave(u);
    return NULL;
}

static void run(struct task *k, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(thread_start(&k[i].thread, "turn", use, &k[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(k[i].thread, NULL);
}

static double part_of_images(struct turn *t)
{
    double x = (double)turn_used_us(t, TURN_IMAGE), y = (double)turn_used_us(t, TURN_TEXT);
    return x / (x + y);
}

/* Text steps of 3 ms with a short way back, images of 10 ms in operations of 1 ms: 1/3 of the time is theirs. */
static void test_share(void **st)
{
    (void)st;
    struct turn *t = turn_open((int[TURN_N_CLASS]){67, 33});
    int64_t end = clock_us() + 700000;
    struct task k[] = {
        {.t = t, .c = TURN_TEXT, .until_us = end, .hold_us = 3000, .n_op = 1, .away_us = 50},
        {.t = t, .c = TURN_IMAGE, .until_us = end, .hold_us = 1000, .n_op = 10},
    };
    run(k, 2);
    assert_in_range((int)(100 * part_of_images(t)), 24, 44);
    assert_true(k[1].yielded_us > 0);
    turn_close(t);
}

/* Several users of a class share what the class has; nobody starves. */
static void test_many(void **st)
{
    (void)st;
    struct turn *t = turn_open((int[TURN_N_CLASS]){1, 1});
    int64_t end = clock_us() + 700000;
    struct task k[4];
    for (int i = 0; i < 4; i++)
        k[i] = (struct task){.t = t,
                             .c = i < 3 ? TURN_TEXT : TURN_IMAGE,
                             .until_us = end,
                             .hold_us = 1000,
                             .n_op = 2};
    run(k, 4);
    assert_in_range((int)(100 * part_of_images(t)), 40, 60);
    for (int i = 0; i < 4; i++) {
        assert_true(k[i].n_step > 5);
        assert_true(k[i].worst_wait_us < 300000);
    }
    turn_close(t);
}

/* Text that comes after 300 ms of images alone gets the device within an operation, and then its share: neither all
 * that it did not use before, nor less. */
static void test_no_credit(void **st)
{
    (void)st;
    struct turn *t = turn_open((int[TURN_N_CLASS]){50, 50});
    int64_t now = clock_us();
    struct task k[] = {
        {.t = t, .c = TURN_IMAGE, .until_us = now + 900000, .hold_us = 2000, .n_op = 250},
        {.t = t,
         .c = TURN_TEXT,
         .start_us = now + 300000,
         .until_us = now + 900000,
         .hold_us = 2000,
         .n_op = 1},
    };
    run(k, 2);
    /* Of 600 ms together half is text's; the last picture step goes on alone. */
    int text_ms = (int)(turn_used_us(t, TURN_TEXT) / 1000);
    assert_in_range(text_ms, 200, 400);
    assert_true(k[1].worst_wait_us < 100000);
    turn_close(t);
}

/* A class that used much is not punished when the other comes. */
static void test_no_debt(void **st)
{
    (void)st;
    struct turn *t = turn_open((int[TURN_N_CLASS]){50, 50});
    int64_t now = clock_us();
    struct task k[] = {
        {.t = t, .c = TURN_TEXT, .until_us = now + 600000, .hold_us = 2000, .n_op = 1},
        {.t = t,
         .c = TURN_IMAGE,
         .start_us = now + 300000,
         .until_us = now + 600000,
         .hold_us = 2000,
         .n_op = 4},
    };
    run(k, 2);
    assert_true(k[0].worst_wait_us < 100000);
    assert_in_range((int)(100 * part_of_images(t)), 15, 36);
    turn_close(t);
}

static void test_alone(void **st)
{
    (void)st;
    struct turn *t = turn_open((int[TURN_N_CLASS]){67, 33});
    struct turn_user *u = turn_join(t, TURN_IMAGE);
    turn_take(u);
    int64_t from = clock_us();
    for (int i = 0; i < 1000000; i++)
        assert_int_equal(turn_yield(u), 0);
    int64_t us = clock_us() - from;
    print_message("a yield with nobody waiting: %.1f ns\n", (double)us / 1000);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(us < 200000); /* 0.2 us each on a busy machine: no lock, no clock */
#endif
    turn_give(u);
    assert_true(turn_used_us(t, TURN_IMAGE) >= us);
    assert_int_equal(turn_used_us(t, TURN_TEXT), 0);
    turn_leave(u);
    turn_close(t);
    turn_close(NULL);
    turn_leave(NULL);
    turn_take(NULL);
    turn_give(NULL);
    assert_int_equal(turn_yield(NULL), 0);
}

/* A long turn of text (a prefill of 60 ms) is paid back in pieces: no short step after it waits as long. */
static void test_pieces(void **st)
{
    (void)st;
    struct turn *t = turn_open((int[TURN_N_CLASS]){50, 50});
    struct turn_user *u = turn_join(t, TURN_TEXT);
    int64_t now = clock_us(), worst = 0, until = 0;
    struct task k = {
        .t = t, .c = TURN_IMAGE, .until_us = now + 500000, .hold_us = 1000, .n_op = 100};
    assert_int_equal(thread_start(&k.thread, "turn", use, &k), 0);
    for (int i = 0; i < 40; i++) {
        int64_t from = clock_us();
        turn_take(u);
        if (i > 20 && clock_us() - from > worst)
            worst = clock_us() - from;
        assert_int_equal(atomic_fetch_add(&holders, 1), 0);
        sleep_us(i == 20 ? 60000 : 4000);
        atomic_fetch_sub(&holders, 1);
        turn_give(u);
        if (i == 20)
            until = turn_used_us(t, TURN_IMAGE);
    }
    /* 6 ms and an operation by the rule, 60 without it. What it is owed comes all the same: more than text's 4 ms a turn. */
    assert_true(worst < 30000);
    assert_true(turn_used_us(t, TURN_IMAGE) - until > 19 * 5000);
    turn_leave(u);
    pthread_join(k.thread, NULL);
    turn_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),   cmocka_unit_test(test_share),
        cmocka_unit_test(test_many),    cmocka_unit_test(test_no_credit),
        cmocka_unit_test(test_no_debt), cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
