/* See image.h: requests in and out, admission. Steps are in image_step.c. */
#include "sched/image_impl.h"

#include "engine/base/mem.h"

#define RUNNING_DEFAULT 8
/* Where a step's time is proportional to its rows: more jobs in it only make each of them wait. */
#define ROWS_CPU     2048
#define ROWS_DEFAULT 16384
#define AGE_US       1000000

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

static void leave(struct lane *lane, struct lane_req *q)
{
    struct image_lane *l = (struct image_lane *)lane;
    struct ireq *own = ireq(q);
    for (int i = 0; i < own->n_opened; i++)
        image__job_close(l, &own->job[i]);
    l->blocked = false;
}

/* Usage counts finished pictures, also of a request that was cancelled. */
static void report(const struct lane_req *q, struct event *ev)
{
    const struct ireq *own = (const struct ireq *)q;
    ev->n_prompt = own->n_prompt;
    ev->n_output = own->n_output;
    ev->encode_us = own->stage_us[IMG_ENCODE];
    ev->denoise_us = own->stage_us[IMG_DENOISE];
    ev->decode_us = own->stage_us[IMG_DECODE];
    ev->first_token_us = own->first_us;
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
    l->base = (struct lane){
        .clock = o->clock, .emit = o->emit, .arg = o->arg, .leave = leave, .report = report};
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

void image_lane_close(struct image_lane *l)
{
    if (!l)
        return;
    lane_clear(&l->base);
    free(l->live);
    free(l->list);
    free(l->handle);
    free(l);
}

/* Arrival counts, not what is left: encoding and decoding cost about the same for all. */
bool image__before(const struct ireq *a, const struct ireq *b)
{
    const struct request *p = a->base.r, *q = b->base.r;
    return p->priority != q->priority ? p->priority < q->priority : a->base.order < b->base.order;
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
    lane_tick(&l->base);
    int rc = check_request(r, &e);
    if (!rc && !(q = mem_calloc(1, sizeof *q + (size_t)r->n * sizeof q->job[0])))
        rc = err_set(&e, ERR_NOMEM, "no memory for %d pictures", r->n);
    if (rc) {
        lane_refuse(&l->base, r, rc, e.text);
        return;
    }
    for (int i = 0; i < r->n; i++)
        q->job[i] = (struct ijob){.req = q, .index = i};
    lane_add(&l->base, &q->base, r);
    l->blocked = false; /* it may be smaller, or more urgent, than the one that did not fit */
}

void image_lane_cancel(struct image_lane *l, uint64_t req)
{
    lane_cancel(&l->base, req);
}

void image_lane_interrupt(struct image_lane *l)
{
    l->base.interrupted = true;
}

void image_lane_fail_all(struct image_lane *l, int code, const char *text)
{
    lane_fail_all(&l->base, code, text);
}

/* Whose next picture starts next: the most urgent request, of those the one with the least at work, of those the
 * oldest. NULL: none has one. */
static struct ireq *next_in_line(const struct image_lane *l)
{
    struct ireq *best = NULL;
    for (struct lane_req *q = l->base.head; q; q = q->next) {
        struct ireq *own = ireq(q);
        if (own->n_opened == q->r->n)
            continue;
        if (!best || (q->r->priority == best->base.r->priority && own->n_live < best->n_live))
            best = own;
    }
    return best;
}

/* The next picture of q gets its job if it fits beside the live ones. 1: it did; 0: it must wait; negative: it can't
 * be made. */
static int job_open(struct image_lane *l, struct ireq *q, struct err *e)
{
    struct ijob *j = &q->job[q->n_opened];
    struct img_params p = q->base.r->image->p;
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
        q->turn_us = l->base.now;
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
            lane_end(&l->base, &q->base, rc, e.text);
        else if (!rc)
            l->blocked = true;
    }
}

int image_lane_step(struct image_lane *l, struct err *e)
{
    struct err local = {0};
    e = e ? e : &local;
    lane_tick(&l->base);
    lane_expire(&l->base);
    admit(l);
    int rc = image__run(l, e);
    lane_end_cancelled(&l->base);
    if (rc < 0)
        lane_fail_all(&l->base, rc, e->text);
    lane_bury(&l->base);
    return rc;
}

bool image_lane_idle(const struct image_lane *l)
{
    return !l->base.n_req;
}

int image_lane_live(const struct image_lane *l)
{
    return l->base.n_req;
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
    *out = l->base.st;
    out->image.jobs = l->n_live;
    for (struct lane_req *q = l->base.head; q; q = q->next) {
        out->running += q->scheduled_us != 0;
        out->waiting += !q->scheduled_us;
        out->image.waiting += q->r->n - ireq(q)->n_opened;
    }
    if (out->image.us_per_image <= 0)
        out->image.us_per_image = guess_us(l);
    if (out->image.us_per_image > 0)
        out->requests_per_s = 1e6 / out->image.us_per_image;
}

/* Counters are derived twice, from the requests and from the lists. */
int image_lane_check(const struct image_lane *l, struct err *e)
{
    int n_live = 0, rc = lane_check(&l->base, e);
    if (rc)
        return rc;
    for (struct lane_req *r = l->base.head; r; r = r->next) {
        const struct ireq *q = ireq(r);
        int live = 0;
        for (int i = 0; i < r->r->n; i++)
            live += q->job[i].job != NULL;
        if (live != q->n_live || q->n_opened != live + q->n_done || q->n_done >= r->r->n)
            return err_set(e, ERR_INTERNAL, "request %d: %d of %d pictures live, %d finished",
                           (int)r->order, live, q->n_opened, q->n_done);
        n_live += live;
    }
    if (n_live != l->n_live || n_live > l->o.max_running)
        return err_set(e, ERR_INTERNAL, "%d jobs, counted %d", l->n_live, n_live);
    for (int i = 0; i < l->n_live; i++)
        if (!l->live[i]->job || img_job_stage(l->live[i]->job) == IMG_DONE)
            return err_set(e, ERR_INTERNAL, "live job %d is finished", i);
    return 0;
}
