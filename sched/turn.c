/* See turn.h. One lock; the device is handed over, never grabbed: who gives it up names the next holder, who alone is
 * woken. Each class has a virtual time, busy time over weight, and the least one has the best claim.
 *
 * Between two steps a thread is away for some microseconds. If its class lost its claim in that gap, the other would
 * take the device in each of them, whatever it had used. So a class counts as busy until WARM_US after it gave the
 * device back, and a waiter with a worse claim waits that long for it. */
#include "sched/turn.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

#define WARM_US 1000
/* However much a class is owed, it takes it in pieces while another waits: at most 1.5 times a usual turn of the waiting
 * one (over their shares), so that a long turn (a prefill) is not followed by a pause as long. Debts shrink still. */
#define PIECE     1.5
#define PIECE_MIN 2000 /* microseconds */

struct turn_user {
    struct turn *t;
    enum turn_class c;
    pthread_cond_t wake;
    struct turn_user *next; /* in its class's queue */
};

struct turn {
    pthread_mutex_t lock;
    struct turn_class_state {
        int share;
        double v;                        /* microseconds used over share */
        int64_t used_us, warm_us;        /* counts as busy until warm_us */
        int64_t usual_us;                /* a turn: the shorter ones count, it grows slowly */
        struct turn_user *first, **last; /* waiting, in order */
    } c[TURN_N_CLASS];
    struct turn_user *holder;
    int64_t since_us; /* the holder's time up to here is accounted for */
    int64_t taken_us; /* when it took the device */
    int n_user;
    atomic_int n_wait; /* read without the lock by turn_yield */
};

struct turn *turn_open(const int share[TURN_N_CLASS])
{
    struct turn *t = mem_calloc(1, sizeof *t);
    if (!t)
        return NULL;
    CHECK(!pthread_mutex_init(&t->lock, NULL));
    for (int i = 0; i < TURN_N_CLASS; i++) {
        t->c[i].share = share[i] > 0 ? share[i] : 1;
        t->c[i].last = &t->c[i].first;
    }
    atomic_init(&t->n_wait, 0);
    return t;
}

void turn_close(struct turn *t)
{
    if (!t)
        return;
    CHECK(!t->n_user);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

struct turn_user *turn_join(struct turn *t, enum turn_class c)
{
    struct turn_user *u = mem_calloc(1, sizeof *u);
    pthread_condattr_t attr;
    if (!u)
        return NULL;
    u->t = t;
    u->c = c;
    CHECK(!pthread_condattr_init(&attr));
    CHECK(!pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
    CHECK(!pthread_cond_init(&u->wake, &attr));
    pthread_condattr_destroy(&attr);
    pthread_mutex_lock(&t->lock);
    t->n_user++;
    pthread_mutex_unlock(&t->lock);
    return u;
}

void turn_leave(struct turn_user *u)
{
    if (!u)
        return;
    pthread_mutex_lock(&u->t->lock);
    CHECK(u->t->holder != u);
    u->t->n_user--;
    pthread_mutex_unlock(&u->t->lock);
    pthread_cond_destroy(&u->wake);
    free(u);
}

static void charge(struct turn *t, int64_t now)
{
    struct turn_class_state *c = &t->c[t->holder->c];
    int64_t us = now - t->since_us;
    c->used_us += us;
    c->v += (double)us / c->share;
    t->since_us = now;
}

/* Waits, holds, or has just given it back. */
static bool busy(const struct turn *t, int c, int64_t now)
{
    return t->c[c].first || (t->holder && (int)t->holder->c == c) || now < t->c[c].warm_us;
}

/* A class that comes back: level with the busy ones, or all of them at zero if there is none. */
static void arrive(struct turn *t, int c, int64_t now)
{
    bool any = false;
    double least = 0;
    if (busy(t, c, now))
        return;
    if (t->holder)
        charge(t, now); /* what it has used so far is no credit of the one that slept */
    for (int i = 0; i < TURN_N_CLASS; i++)
        if (i != c && busy(t, i, now) && (!any || t->c[i].v < least)) {
            least = t->c[i].v;
            any = true;
        }
    if (!any)
        for (int i = 0; i < TURN_N_CLASS; i++)
            t->c[i].v = 0;
    else if (t->c[c].v < least)
        t->c[c].v = least;
}

/* front: u was in the middle of its turn. */
static void enqueue(struct turn *t, struct turn_user *u, bool front)
{
    struct turn_class_state *c = &t->c[u->c];
    if (front || !c->first) {
        u->next = c->first;
        if (!c->first)
            c->last = &u->next;
        c->first = u;
    } else {
        u->next = NULL;
        *c->last = u;
        c->last = &u->next;
    }
    atomic_fetch_add_explicit(&t->n_wait, 1, memory_order_relaxed);
}

static void hand(struct turn *t, int to, int64_t now)
{
    struct turn_class_state *c = &t->c[to];
    struct turn_user *u = c->first;
    c->first = u->next;
    if (!c->first)
        c->last = &c->first;
    atomic_fetch_sub_explicit(&t->n_wait, 1, memory_order_relaxed);
    t->holder = u;
    t->since_us = t->taken_us = now;
    pthread_cond_signal(&u->wake);
}

/* The device is free: name the next holder, or nobody while a class with a better claim is only away for a moment;
 * *until is then when to ask again. */
static void pick(struct turn *t, int64_t now, int64_t *until)
{
    int best = -1;
    for (int i = 0; i < TURN_N_CLASS; i++)
        if (t->c[i].first && (best < 0 || t->c[i].v < t->c[best].v))
            best = i;
    *until = 0;
    if (best < 0)
        return;
    for (int i = 0; i < TURN_N_CLASS; i++)
        if (!t->c[i].first && now < t->c[i].warm_us && t->c[i].v < t->c[best].v &&
            *until < t->c[i].warm_us)
            *until = t->c[i].warm_us;
    if (*until) {
        pthread_cond_signal(&t->c[best].first->wake); /* it watches the clock */
        return;
    }
    hand(t, best, now);
}

/* Has the holder had its piece while class i waits? */
static bool piece_over(const struct turn *t, int i, int64_t now)
{
    double piece = PIECE * (double)t->c[i].usual_us * t->c[t->holder->c].share / t->c[i].share;
    return (double)(now - t->taken_us) >= (piece > PIECE_MIN ? piece : PIECE_MIN);
}

/* Until u holds the device. A wake-up without reason finds it with somebody else, or free and asks again: harmless. */
static void wait_for(struct turn *t, struct turn_user *u)
{
    int64_t until = 0;
    while (t->holder != u) {
        if (!t->holder)
            pick(t, clock_us(), &until);
        if (t->holder == u)
            break;
        if (t->holder || !until) {
            pthread_cond_wait(&u->wake, &t->lock);
            continue;
        }
        struct timespec ts = {.tv_sec = until / 1000000, .tv_nsec = until % 1000000 * 1000};
        pthread_cond_timedwait(&u->wake, &t->lock, &ts);
    }
}

void turn_take(struct turn_user *u)
{
    if (!u)
        return;
    struct turn *t = u->t;
    pthread_mutex_lock(&t->lock);
    CHECK(t->holder != u);
    arrive(t, (int)u->c, clock_us());
    enqueue(t, u, false);
    wait_for(t, u);
    pthread_mutex_unlock(&t->lock);
}

void turn_give(struct turn_user *u)
{
    if (!u)
        return;
    struct turn *t = u->t;
    int64_t until, now = clock_us();
    pthread_mutex_lock(&t->lock);
    CHECK(t->holder == u);
    charge(t, now);
    struct turn_class_state *c = &t->c[u->c];
    int64_t turn_us = now - t->taken_us;
    c->usual_us = turn_us < c->usual_us || !c->usual_us
                      ? turn_us
                      : c->usual_us + (turn_us - c->usual_us) / 16;
    c->warm_us = now + WARM_US;
    t->holder = NULL;
    pick(t, now, &until);
    pthread_mutex_unlock(&t->lock);
}

int64_t turn_yield(struct turn_user *u)
{
    if (!u || !atomic_load_explicit(&u->t->n_wait, memory_order_relaxed))
        return 0;
    struct turn *t = u->t;
    int64_t until, from = clock_us(), waited = 0;
    int next = -1;
    pthread_mutex_lock(&t->lock);
    CHECK(t->holder == u);
    charge(t, from);
    for (int i = 0; i < TURN_N_CLASS; i++)
        if (i != (int)u->c && t->c[i].first && (next < 0 || t->c[i].v < t->c[next].v) &&
            (t->c[i].v < t->c[u->c].v || piece_over(t, i, from)))
            next = i;
    if (next >= 0) {
        bool owed = t->c[next].v < t->c[u->c].v;
        t->holder = NULL;
        enqueue(t, u, true); /* its class goes on with this step before any other */
        if (owed)
            pick(t, from, &until);
        else
            hand(t, next, from);
        wait_for(t, u);
        waited = clock_us() - from;
    }
    pthread_mutex_unlock(&t->lock);
    return waited;
}

int64_t turn_used_us(struct turn *t, enum turn_class c)
{
    pthread_mutex_lock(&t->lock);
    int64_t us = t->c[c].used_us;
    pthread_mutex_unlock(&t->lock);
    return us;
}
