/* See image.h: requests in and out, admission. Steps are in image_step.c. */
#include "sched/image_impl.h"

#include "engine/base/mem.h"
#include "engine/base/thread.h"

#define RUNNING_DEFAULT 8
/* Where a step's time is proportional to its rows: more jobs in it only make each of them wait. */
#define ROWS_CPU     2048
#define ROWS_DEFAULT 16384
#define AGE_US       1000000

static int64_t clock_default(void *arg)
{
    (void)arg;
    return clock_us();
}

int image_lane_open(struct image_lane **out, struct engine *g, const struct image_opts *o,
                    struct err *e)
{
    const struct eng_image_info *info = eng_info(g)->image;
    if (!info)
        return err_set(e, ERR_INVAL, "image lane: the model makes no pictures");
    struct image_lane *l = mem_calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "image lane: no memory");
    l->g = g;
    l->info = info;
    l->o = *o;
    if (l->o.max_running <= 0)
        l->o.max_running = RUNNING_DEFAULT;
    if (l->o.step_rows <= 0)
        l->o.step_rows = strncmp(eng_info(g)->backend, "cpu", 3) ? ROWS_DEFAULT : ROWS_CPU;
    if (l->o.age_us <= 0)
        l->o.age_us = AGE_US;
    if (!l->o.clock)
        l->o.clock = clock_default;
    size_t n = (size_t)l->o.max_running;
    l->live = mem_calloc(n, sizeof *l->live);
    l->list = mem_calloc(n, sizeof *l->list);
    l->handle = mem_calloc(n, sizeof *l->handle);
    if (!l->live || !l->list || !l->handle) {
        image_lane_close(l);
        return err_set(e, ERR_NOMEM, "image lane: no memory for %zu pictures", n);
    }
    *out = l;
    return 0;
}

static void unlist(struct image_lane *l, struct ireq *q)
{
    *(q->prev ? &q->prev->next : &l->head) = q->next;
    *(q->next ? &q->next->prev : &l->tail) = q->prev;
    l->n_req--;
}

static void bury(struct image_lane *l)
{
    while (l->dead) {
        struct ireq *q = l->dead;
        l->dead = q->next;
        request_free(q->r);
        free(q);
    }
}

/* What a job held is free now: whoever waited for memory may try again. */
void image__job_close(struct image_lane *l, struct ijob *j)
{
    int at = 0;
    if (!j->job)
        return;
    img_job_close(l->g, j->job);
    j->job = NULL;
    while (l->live[at] != j)
        at++;
    for (l->n_live--; at < l->n_live; at++)
        l->live[at] = l->live[at + 1];
    j->req->n_live--;
    l->blocked = false;
    for (int i = 0; i < l->n_live; i++)
        l->live[i]->stuck = false;
}

/* Moves to the list of the dead: the step being made may still name it. */
static void take_out(struct image_lane *l, struct ireq *q)
{
    for (int i = 0; i < q->n_opened; i++)
        image__job_close(l, &q->job[i]);
    q->ended = true;
    unlist(l, q);
    q->next = l->dead;
    l->dead = q;
    l->blocked = false;
}

/* q NULL: refused before it was anything. Usage counts finished pictures, also of a request that was cancelled. */
static void emit_last(struct image_lane *l, const struct request *r, const struct ireq *q, int code,
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
        ev.encode_us = q->stage_us[IMG_ENCODE];
        ev.denoise_us = q->stage_us[IMG_DENOISE];
        ev.decode_us = q->stage_us[IMG_DECODE];
        ev.scheduled_us = q->scheduled_us;
        ev.first_token_us = q->first_us;
    }
    l->o.emit(l->o.arg, &ev);
}

void image__req_end(struct image_lane *l, struct ireq *q, int code, const char *text)
{
    CHECK(!q->ended);
    take_out(l, q);
    emit_last(l, q->r, q, code, text);
}

void image_lane_close(struct image_lane *l)
{
    if (!l)
        return;
    while (l->head)
        take_out(l, l->head);
    bury(l);
    free(l->live);
    free(l->list);
    free(l->handle);
    free(l);
}

/* Arrival counts, not what is left: encoding and decoding cost about the same for all. */
bool image__before(const struct ireq *a, const struct ireq *b)
{
    return a->r->priority != b->r->priority ? a->r->priority < b->r->priority : a->order < b->order;
}

/* Sizes, steps and the rest are the engine's to judge, when the job is opened. */
static int check_request(const struct request *r, struct err *e)
{
    if (!r->image || !r->image->p.prompt)
        return err_set(e, ERR_INVAL, "the model makes pictures, it does not answer in words");
    if (r->n < 1 || r->n > REQ_N_MAX)
        return err_set(e, ERR_INVAL, "n: %d is not in 1 to %d", r->n, REQ_N_MAX);
    return 0;
}

void image_lane_submit(struct image_lane *l, struct request *r)
{
    struct err e = {0};
    struct ireq *q = NULL;
    l->now = l->o.clock(l->o.arg);
    int rc = check_request(r, &e);
    if (!rc && !(q = mem_calloc(1, sizeof *q + (size_t)r->n * sizeof q->job[0])))
        rc = err_set(&e, ERR_NOMEM, "no memory for %d pictures", r->n);
    if (rc) {
        emit_last(l, r, NULL, rc, e.text);
        request_free(r);
        return;
    }
    q->r = r;
    q->order = ++l->n_arrived;
    for (int i = 0; i < r->n; i++)
        q->job[i] = (struct ijob){.req = q, .index = i};
    q->prev = l->tail;
    *(l->tail ? &l->tail->next : &l->head) = q;
    l->tail = q;
    l->n_req++;
    l->blocked = false; /* it may be smaller, or more urgent, than the one that did not fit */
}

/* In a pause the engine is using the jobs of the step: they are closed when it has ended. */
void image_lane_cancel(struct image_lane *l, uint64_t req)
{
    struct ireq *q = l->head;
    while (q && q->r->id != req)
        q = q->next;
    if (!q)
        return;
    l->now = l->o.clock(l->o.arg);
    if (q->cancelled)
        return;
    l->st.cancelled++;
    if (l->n_step) {
        q->cancelled = true;
        l->n_cancelled++;
        return;
    }
    image__req_end(l, q, 0, NULL);
    bury(l);
}

void image_lane_interrupt(struct image_lane *l)
{
    l->interrupted = true;
}

/* What was cancelled while the step ran. */
static void end_cancelled(struct image_lane *l)
{
    for (struct ireq *q = l->head, *next; q && l->n_cancelled; q = next) {
        next = q->next;
        if (!q->cancelled)
            continue;
        l->n_cancelled--;
        image__req_end(l, q, 0, NULL);
    }
    l->n_cancelled = 0;
}

void image_lane_fail_all(struct image_lane *l, int code, const char *text)
{
    l->now = l->o.clock(l->o.arg);
    while (l->head)
        image__req_end(l, l->head, code, text);
    bury(l);
}

/* Few requests are inside, and a step takes milliseconds at least: no list by deadline. */
static void expire(struct image_lane *l)
{
    for (struct ireq *q = l->head, *next; q; q = next) {
        next = q->next;
        const struct request *r = q->r;
        if (r->deadline_us && l->now >= r->deadline_us)
            image__req_end(l, q, ERR_TIMEOUT, "the deadline of the request has passed");
        else if (r->queue_deadline_us && !q->scheduled_us && l->now >= r->queue_deadline_us)
            image__req_end(l, q, ERR_TIMEOUT, "the request waited too long in the queue");
    }
}

/* Whose next picture starts next: the most urgent request, of those the one with the least at work, of those the
 * oldest. NULL: none has one. */
static struct ireq *next_in_line(const struct image_lane *l)
{
    struct ireq *best = NULL;
    for (struct ireq *q = l->head; q; q = q->next) {
        if (q->n_opened == q->r->n)
            continue;
        if (!best || q->r->priority < best->r->priority ||
            (q->r->priority == best->r->priority && q->n_live < best->n_live))
            best = q;
    }
    return best;
}

/* The next picture of q gets its job if it fits beside the live ones. 1: it did; 0: it must wait; negative: it can't
 * be made. */
static int job_open(struct image_lane *l, struct ireq *q, struct err *e)
{
    struct ijob *j = &q->job[q->n_opened];
    struct img_params p = q->r->image->p;
    struct img_job *job = NULL;
    p.seed += (uint64_t)j->index;
    int rc = img_job_open(l->g, &p, &job, e);
    if (rc)
        return rc == ERR_NOMEM && l->n_live ? 0 : rc;
    for (int i = 0; i < l->n_live; i++)
        l->handle[i] = l->live[i]->job;
    l->handle[l->n_live] = job;
    /* Alone it is tried whatever the estimate says: the engine may get by with tiles. */
    if (l->n_live && eng_image_fit(l->g, l->handle, l->n_live + 1) <= l->n_live) {
        img_job_close(l->g, job);
        return 0;
    }
    j->job = job;
    j->rows = q->rows = img_job_rows(job);
    q->steps = img_job_steps(job);
    if (!q->n_opened)
        q->turn_us = l->now;
    l->live[l->n_live++] = j;
    q->n_live++;
    q->n_opened++;
    return 1;
}

/* In line, without passing the one that does not fit: a large picture would wait for ever behind small ones. */
static void admit(struct image_lane *l)
{
    struct err e = {0};
    struct ireq *q;
    for (int i = 0; i < l->n_live; i++)
        if (l->live[i]->stuck)
            return; /* more work would not leave more memory */
    while (!l->blocked && l->n_live < l->o.max_running && (q = next_in_line(l))) {
        int rc = job_open(l, q, &e);
        if (rc < 0)
            image__req_end(l, q, rc, e.text);
        else if (!rc)
            l->blocked = true;
    }
}

/* Requests end while the lists of the step still name them; they are freed last. */
int image_lane_step(struct image_lane *l, struct err *e)
{
    struct err local = {0};
    l->now = l->o.clock(l->o.arg);
    expire(l);
    admit(l);
    int rc = image__run(l, e ? e : &local);
    end_cancelled(l);
    if (rc < 0)
        image_lane_fail_all(l, rc, (e ? e : &local)->text);
    bury(l);
    return rc;
}

bool image_lane_idle(const struct image_lane *l)
{
    return !l->n_req;
}

int image_lane_live(const struct image_lane *l)
{
    return l->n_req;
}

size_t image_lane_events_max(const struct image_lane *l, size_t extra)
{
    return 2 * (size_t)l->o.max_running + extra;
}

/* Device time of a picture before the first is finished: from the steps that one has made. */
static double guess_us(const struct image_lane *l)
{
    for (int i = 0; i < l->n_live; i++) {
        const struct ijob *j = l->live[i];
        int done = img_job_step(j->job);
        if (done)
            return (double)j->device_us / done * img_job_steps(j->job);
    }
    return 0;
}

void image_lane_stats_get(const struct image_lane *l, struct sched_stats *out)
{
    *out = l->st;
    out->image.jobs = l->n_live;
    for (const struct ireq *q = l->head; q; q = q->next) {
        out->running += q->scheduled_us != 0;
        out->waiting += !q->scheduled_us;
        out->image.waiting += q->r->n - q->n_opened;
    }
    if (out->image.us_per_image <= 0)
        out->image.us_per_image = guess_us(l);
    if (out->image.us_per_image > 0)
        out->requests_per_s = 1e6 / out->image.us_per_image;
}

/* Counters are derived twice, from the requests and from the lists. */
int image_lane_check(const struct image_lane *l, struct err *e)
{
    int n_req = 0, n_live = 0;
    for (const struct ireq *q = l->head; q; q = q->next, n_req++) {
        int live = 0;
        if (q->ended || q->next == q || (q->next && q->next->prev != q))
            return err_set(e, ERR_INTERNAL, "request %d: listed, though it has ended", n_req);
        for (int i = 0; i < q->r->n; i++)
            live += q->job[i].job != NULL;
        if (live != q->n_live || q->n_opened != live + q->n_done || q->n_done >= q->r->n)
            return err_set(e, ERR_INTERNAL, "request %d: %d of %d pictures live, %d finished",
                           n_req, live, q->n_opened, q->n_done);
        n_live += live;
    }
    if (n_req != l->n_req || n_live != l->n_live || n_live > l->o.max_running || l->dead)
        return err_set(e, ERR_INTERNAL, "%d requests and %d jobs, counted %d and %d", l->n_req,
                       l->n_live, n_req, n_live);
    for (int i = 0; i < l->n_live; i++)
        if (!l->live[i]->job || img_job_stage(l->live[i]->job) == IMG_DONE)
            return err_set(e, ERR_INTERNAL, "live job %d is finished", i);
    return 0;
}
