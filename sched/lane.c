/* See lane.h. */
#include "sched/lane.h"

#include "engine/base/mem.h"
#include "engine/base/thread.h"

void lane_tick(struct lane *l)
{
    l->now = l->clock ? l->clock(l->arg) : clock_us();
}

void lane_add(struct lane *l, struct lane_req *q, struct request *r)
{
    q->r = r;
    q->order = ++l->n_arrived;
    struct lane_req *after = l->tail;
    while (after && after->r->priority > r->priority)
        after = after->prev;
    q->prev = after;
    q->next = after ? after->next : l->head;
    *(after ? &after->next : &l->head) = q;
    *(q->next ? &q->next->prev : &l->tail) = q;
    l->n_req++;
}

/* q NULL: refused before it was anything. */
static void emit_last(struct lane *l, const struct request *r, const struct lane_req *q, int code,
                      const char *text)
{
    struct event ev = {.kind = code ? EV_ERROR : EV_DONE,
                       .req = r->id,
                       .stop_token = -1,
                       .arrival_us = r->arrival_us,
                       .done_us = l->now};
    if (code)
        err_set(&ev.err, code, "%s", text);
    if (q) {
        ev.scheduled_us = q->scheduled_us;
        l->report(q, &ev);
    }
    l->emit(l->arg, &ev);
}

void lane_refuse(struct lane *l, struct request *r, int code, const char *text)
{
    emit_last(l, r, NULL, code, text);
    request_free(r);
}

static void take_out(struct lane *l, struct lane_req *q)
{
    if (l->leave)
        l->leave(l, q);
    q->ended = true;
    *(q->prev ? &q->prev->next : &l->head) = q->next;
    *(q->next ? &q->next->prev : &l->tail) = q->prev;
    l->n_req--;
    q->next = l->dead;
    l->dead = q;
}

void lane_end(struct lane *l, struct lane_req *q, int code, const char *text)
{
    CHECK(!q->ended);
    take_out(l, q);
    emit_last(l, q->r, q, code, text);
}

void lane_bury(struct lane *l)
{
    while (l->dead) {
        struct lane_req *q = l->dead;
        l->dead = q->next;
        request_free(q->r);
        if (l->drop)
            l->drop(q);
        free(q);
    }
}

void lane_cancel(struct lane *l, uint64_t req)
{
    struct lane_req *q = l->head;
    while (q && q->r->id != req)
        q = q->next;
    if (!q || q->cancelled)
        return;
    lane_tick(l);
    l->st.cancelled++;
    if (l->n_step) {
        q->cancelled = true;
        l->n_cancelled++;
        return;
    }
    lane_end(l, q, 0, NULL);
    lane_bury(l);
}

void lane_end_cancelled(struct lane *l)
{
    for (struct lane_req *q = l->head, *next; q && l->n_cancelled; q = next) {
        next = q->next;
        if (!q->cancelled)
            continue;
        l->n_cancelled--;
        lane_end(l, q, 0, NULL);
    }
    l->n_cancelled = 0; /* others ended by themselves */
}

void lane_fail_all(struct lane *l, int code, const char *text)
{
    lane_tick(l);
    while (l->head)
        lane_end(l, l->head, code, text);
    lane_bury(l);
}

void lane_expire(struct lane *l)
{
    for (struct lane_req *q = l->head, *next; q; q = next) {
        next = q->next;
        const struct request *r = q->r;
        if (r->deadline_us && l->now >= r->deadline_us)
            lane_end(l, q, ERR_TIMEOUT, "the deadline of the request has passed");
        else if (r->queue_deadline_us && !q->scheduled_us && l->now >= r->queue_deadline_us)
            lane_end(l, q, ERR_TIMEOUT, "the request waited too long in the queue");
    }
}

void lane_clear(struct lane *l)
{
    while (l->head)
        take_out(l, l->head);
    lane_bury(l);
}

int lane_check(const struct lane *l, struct err *e)
{
    int n = 0;
    for (const struct lane_req *q = l->head; q; q = q->next, n++)
        if (q->ended ||
            (q->next && (q->next->prev != q || q->next->r->priority < q->r->priority ||
                         (q->next->r->priority == q->r->priority && q->next->order < q->order))))
            return err_set(e, ERR_INTERNAL, "request %d: not in its place", n);
    if (n != l->n_req || l->dead || l->n_step)
        return err_set(e, ERR_INTERNAL, "%d requests, counted %d, or one that is not buried",
                       l->n_req, n);
    return 0;
}
