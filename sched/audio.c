/* See audio.h: requests in and out, admission. Steps are in audio_step.c. */
#include "sched/audio_impl.h"

#include "engine/base/mem.h"
#include "engine/base/thread.h"

static int64_t clock_default(void *arg)
{
    (void)arg;
    return clock_us();
}

int audio_lane_open(struct audio_lane **out, struct engine *g, const struct audio_opts *o,
                    struct err *e)
{
    const struct eng_audio_info *info = eng_info(g)->audio;
    if (!info)
        return err_set(e, ERR_INVAL, "speech lane: the model does not transcribe");
    struct audio_lane *l = mem_calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "speech lane: no memory");
    l->g = g;
    l->info = info;
    l->o = *o;
    if (!l->o.clock)
        l->o.clock = clock_default;
    l->list = mem_calloc((size_t)info->n_slot, sizeof *l->list);
    l->handle = mem_calloc((size_t)info->n_slot, sizeof *l->handle);
    if (!l->list || !l->handle) {
        audio_lane_close(l);
        return err_set(e, ERR_NOMEM, "speech lane: no memory for %d recordings", info->n_slot);
    }
    *out = l;
    return 0;
}

static void job_close(struct audio_lane *l, struct sreq *q)
{
    if (!q->job)
        return;
    aud_job_close(l->g, q->job);
    q->job = NULL;
    l->n_job--;
}

static void take_out(struct audio_lane *l, struct sreq *q)
{
    job_close(l, q);
    q->ended = true;
    *(q->prev ? &q->prev->next : &l->head) = q->next;
    *(q->next ? &q->next->prev : &l->tail) = q->prev;
    l->n_req--;
    q->next = l->dead;
    l->dead = q;
}

static void bury(struct audio_lane *l)
{
    while (l->dead) {
        struct sreq *q = l->dead;
        l->dead = q->next;
        request_free(q->r);
        free(q);
    }
}

void audio_lane_close(struct audio_lane *l)
{
    if (!l)
        return;
    while (l->head)
        take_out(l, l->head);
    bury(l);
    free(l->list);
    free(l->handle);
    free(l);
}

/* q NULL: refused before it was anything. */
static void emit_last(struct audio_lane *l, const struct request *r, const struct sreq *q, int code,
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
        ev.n_prompt = q->n_prompt;
        ev.n_output = q->n_output;
        ev.encode_us = q->encode_us;
        ev.decode_us = q->decode_us;
        ev.scheduled_us = q->scheduled_us;
        ev.first_token_us = q->first_us;
    }
    l->o.emit(l->o.arg, &ev);
}

void audio__end(struct audio_lane *l, struct sreq *q, int code, const char *text)
{
    CHECK(!q->ended);
    take_out(l, q);
    emit_last(l, q->r, q, code, text);
}

void audio_lane_submit(struct audio_lane *l, struct request *r)
{
    l->now = l->o.clock(l->o.arg);
    struct sreq *q = r->audio && r->audio->mel ? mem_calloc(1, sizeof *q) : NULL;
    if (!q) {
        emit_last(l, r, NULL, r->audio && r->audio->mel ? ERR_NOMEM : ERR_INVAL,
                  r->audio && r->audio->mel ? "no memory for a recording"
                                            : "the model transcribes speech, nothing else");
        request_free(r);
        return;
    }
    q->r = r;
    q->order = ++l->n_arrived;
    struct sreq *after = l->tail;
    while (after && after->r->priority > r->priority)
        after = after->prev;
    q->prev = after;
    q->next = after ? after->next : l->head;
    *(after ? &after->next : &l->head) = q;
    *(q->next ? &q->next->prev : &l->tail) = q;
    l->n_req++;
}

/* In a pause the engine is using the jobs of the step: they are closed when it has ended. */
void audio_lane_cancel(struct audio_lane *l, uint64_t req)
{
    struct sreq *q = l->head;
    while (q && q->r->id != req)
        q = q->next;
    if (!q || q->cancelled)
        return;
    l->now = l->o.clock(l->o.arg);
    l->st.cancelled++;
    if (l->n_step) {
        q->cancelled = true;
        l->n_cancelled++;
        return;
    }
    audio__end(l, q, 0, NULL);
    bury(l);
}

void audio_lane_interrupt(struct audio_lane *l)
{
    l->interrupted = true;
}

static void end_cancelled(struct audio_lane *l)
{
    for (struct sreq *q = l->head, *next; q && l->n_cancelled; q = next) {
        next = q->next;
        if (!q->cancelled)
            continue;
        l->n_cancelled--;
        audio__end(l, q, 0, NULL);
    }
    l->n_cancelled = 0; /* others ended by themselves */
}

void audio_lane_fail_all(struct audio_lane *l, int code, const char *text)
{
    l->now = l->o.clock(l->o.arg);
    while (l->head)
        audio__end(l, l->head, code, text);
    bury(l);
}

static void expire(struct audio_lane *l)
{
    for (struct sreq *q = l->head, *next; q; q = next) {
        next = q->next;
        const struct request *r = q->r;
        if (r->deadline_us && l->now >= r->deadline_us)
            audio__end(l, q, ERR_TIMEOUT, "the deadline of the request has passed");
        else if (r->queue_deadline_us && !q->scheduled_us && l->now >= r->queue_deadline_us)
            audio__end(l, q, ERR_TIMEOUT, "the request waited too long in the queue");
    }
}

/* A recording that can't be opened beside others waits for them; alone, it never can. */
static void admit(struct audio_lane *l)
{
    for (struct sreq *q = l->head, *next; q && l->n_job < l->info->n_slot; q = next) {
        struct err e = {0};
        next = q->next;
        if (q->job)
            continue;
        int rc = aud_job_open(l->g, &q->r->audio->p, &q->job, &e);
        if ((rc == ERR_NOMEM && l->n_job) || rc == ERR_AGAIN)
            break;
        if (rc) {
            audio__end(l, q, rc, e.text);
            continue;
        }
        q->scheduled_us = l->now;
        l->n_job++;
    }
}

int audio_lane_step(struct audio_lane *l, struct err *e)
{
    struct err local = {0};
    e = e ? e : &local;
    l->now = l->o.clock(l->o.arg);
    expire(l);
    admit(l);
    int rc = audio__step(l, e);
    end_cancelled(l);
    if (rc < 0)
        audio_lane_fail_all(l, rc, e->text);
    bury(l);
    return rc;
}

bool audio_lane_idle(const struct audio_lane *l)
{
    return !l->n_req;
}

int audio_lane_live(const struct audio_lane *l)
{
    return l->n_req;
}

/* A job of a step brings a window and its request's end. */
size_t audio_lane_events_max(const struct audio_lane *l, size_t extra)
{
    return 2 * (size_t)l->info->n_slot + extra;
}

void audio_lane_stats_get(const struct audio_lane *l, struct sched_stats *out)
{
    *out = l->st;
    out->audio.jobs = l->n_job;
    out->running = l->n_job;
    out->waiting = l->n_req - l->n_job;
    if (out->audio.us_per_second > 0 && l->sound_per_req > 0)
        out->requests_per_s = 1e6 / (out->audio.us_per_second * l->sound_per_req);
}

int audio_lane_check(const struct audio_lane *l, struct err *e)
{
    int n = 0, jobs = 0;
    for (const struct sreq *q = l->head; q; q = q->next, n++) {
        if (q->ended ||
            (q->next && (q->next->prev != q || q->next->r->priority < q->r->priority ||
                         (q->next->r->priority == q->r->priority && q->next->order < q->order))))
            return err_set(e, ERR_INTERNAL, "request %d: not in its place", n);
        if (q->job && aud_job_stage(q->job) >= AUD_DONE)
            return err_set(e, ERR_INTERNAL, "request %d: its job is finished", n);
        jobs += q->job != NULL;
    }
    if (n != l->n_req || jobs != l->n_job || jobs > l->info->n_slot || l->dead || l->n_step)
        return err_set(e, ERR_INTERNAL, "%d requests and %d jobs, counted %d and %d", l->n_req,
                       l->n_job, n, jobs);
    return 0;
}
