/* See image.h: which live jobs make the next step together, and how a step that does not fit is made smaller. */
#include "sched/image_impl.h"

#define OVERDUE_STEPS 8 /* a request gets at least one part in nine of the device */

/* Jobs of a stage in line, into list. */
static void gather(struct image_lane *l, enum img_stage stage)
{
    l->n_list = 0;
    for (int i = 0; i < l->n_live; i++) {
        struct ijob *j = l->live[i];
        if (img_job_stage(j->job) != stage || j->stuck)
            continue;
        int at = l->n_list++;
        for (; at && image__before(j->req, l->list[at - 1]->req); at--)
            l->list[at] = l->list[at - 1];
        l->list[at] = j;
    }
    for (int i = 0; i < l->n_list; i++)
        l->handle[i] = l->list[i]->job;
    if (l->n_list > 1) {
        int fit = eng_image_fit(l->g, l->handle, l->n_list);
        l->n_list = fit < 1 ? 1 : fit < l->n_list ? fit : l->n_list;
    }
}

/* A job that had no memory alone is not asked again before another has ended. */
static bool ready(const struct ijob *j)
{
    return !j->stuck && img_job_stage(j->job) == IMG_DENOISE;
}

/* What the order of requests is made of. */
static void weigh(const struct image_lane *l, struct ireq *q)
{
    int64_t patience = OVERDUE_STEPS * q->last_us;
    if (patience < l->o.age_us)
        patience = l->o.age_us;
    q->overdue = l->base.now - q->turn_us > patience;
    q->left = (double)(q->base.r->n - q->n_opened) * (double)q->rows * (double)q->steps;
    for (int i = 0; i < q->n_opened; i++)
        if (q->job[i].job)
            q->left += (double)q->job[i].rows *
                       (img_job_steps(q->job[i].job) - img_job_step(q->job[i].job));
}

/* Whether a comes before b in a denoising step. */
static bool first(const struct ijob *a, const struct ijob *b)
{
    const struct ireq *p = a->req, *q = b->req;
    if (p == q) /* its pictures end one by one, too */
        return img_job_step(a->job) != img_job_step(b->job)
                   ? img_job_step(a->job) > img_job_step(b->job)
                   : a->index < b->index;
    if (p->base.r->priority != q->base.r->priority)
        return p->base.r->priority < q->base.r->priority;
    if (p->overdue != q->overdue)
        return p->overdue;
    if (p->overdue && p->turn_us != q->turn_us)
        return p->turn_us < q->turn_us;
    if (p->left < q->left || p->left > q->left)
        return p->left < q->left;
    return p->base.order < q->base.order;
}

/* Tens of jobs at most, and a step that takes milliseconds: no heap. */
static struct ijob *next_job(const struct image_lane *l)
{
    struct ijob *best = NULL;
    for (int i = 0; i < l->n_live; i++) {
        struct ijob *j = l->live[i];
        if (ready(j) && !j->seen && (!best || first(j, best)))
            best = j;
    }
    return best;
}

/* The jobs of the next denoising step, in order, while memory and rows allow; the first goes whatever its size. Less
 * urgent ones may fill up what is left: up to step_rows they cost the first ones nothing. */
static void choose(struct image_lane *l)
{
    int64_t rows = 0;
    l->n_list = 0;
    for (int i = 0; i < l->n_live; i++) {
        l->live[i]->seen = false;
        weigh(l, l->live[i]->req);
    }
    for (struct ijob *j; (j = next_job(l));) {
        j->seen = true;
        if (l->n_list && rows + j->rows > l->o.step_rows)
            continue; /* a smaller one may still go */
        l->handle[l->n_list] = j->job;
        if (l->n_list && eng_image_fit(l->g, l->handle, l->n_list + 1) <= l->n_list)
            continue;
        rows += j->rows;
        l->list[l->n_list++] = j;
    }
}

/* Whether somebody still wants the step that runs. */
static bool wanted(const struct image_lane *l)
{
    if (l->base.interrupted)
        return false;
    for (int i = 0; i < l->base.n_step && l->base.n_cancelled; i++)
        if (!l->list[i]->req->base.cancelled)
            return true;
    return !l->base.n_cancelled;
}

/* Called by the engine between operations; what others did meanwhile is not this step's time. */
static int pause_step(void *arg)
{
    struct image_lane *l = arg;
    if (l->o.pause)
        l->paused_us += l->o.pause(l->o.arg);
    return wanted(l) ? 0 : ERR_CANCELLED;
}

/* A job's part of the step's time goes by its rows. A request's stage time counts the step once, however many of its
 * pictures are in it: that is what its client waited. */
static void account(struct image_lane *l, enum img_stage stage, int n, int64_t us)
{
    struct image_stats *st = &l->base.st.image;
    double rows = 0;
    for (int i = 0; i < n; i++) {
        l->list[i]->req->counted = false;
        rows += (double)l->list[i]->rows;
    }
    for (int i = 0; i < n; i++) {
        struct ijob *j = l->list[i];
        double part = rows > 0 ? (double)j->rows / rows : 1.0 / n;
        j->device_us += (int64_t)(part * (double)us);
        if (stage == IMG_DENOISE) {
            j->req->turn_us = l->base.now;
            j->req->last_us = us;
        }
        if (!j->req->counted)
            j->req->stage_us[stage] += us;
        j->req->counted = true;
        if (stage == IMG_DECODE) {
            const struct img_params *p = &j->req->base.r->image->p;
            double now = part * (double)us / ((double)p->width * p->height);
            l->decode_us_px = l->decode_us_px > 0 ? 0.7 * l->decode_us_px + 0.3 * now : now;
        }
    }
    st->stage_us[stage] += us;
    l->base.st.step_us_total += us;
    l->base.st.steps++;
    if (stage != IMG_DENOISE)
        return;
    int b = 0;
    while (b < 15 && rows > (double)(64 << b))
        b++;
    st->step_rows_hist[b]++;
    st->step_rows_sum += rows;
    st->steps++;
    st->job_steps += (uint64_t)n;
}

/* The first jobs of list have moved on from `stage`. */
static void harvest(struct image_lane *l, enum img_stage stage, int n)
{
    for (int i = 0; i < n; i++) {
        struct ijob *j = l->list[i];
        if (j->req->base.ended || j->req->base.cancelled)
            continue;
        if (stage == IMG_ENCODE)
            j->req->n_prompt = img_job_tokens(j->job);
        else if (stage == IMG_DENOISE)
            image__emit_step(l, j);
        if (img_job_stage(j->job) == IMG_DONE)
            image__emit_picture(l, j);
    }
}

/* One job alone failed. With too little memory it waits while others hold some of it; else its request ends. */
static void job_failed(struct image_lane *l, struct ijob *j, int rc, const char *text)
{
    if (rc == ERR_NOMEM)
        for (int i = 0; i < l->n_live; i++)
            if (l->live[i] != j && !l->live[i]->stuck) {
                j->stuck = true;
                return;
            }
    lane_end(&l->base, &j->req->base, rc, text);
}

/* The first n of list into the engine; *us: without pauses. */
static int run_step(struct image_lane *l, int n, int64_t *us, struct err *e)
{
    const struct img_yield y = {.fn = pause_step, .arg = l};
    lane_tick(&l->base);
    int64_t begin = l->base.now;
    l->paused_us = 0;
    l->base.interrupted = false;
    for (int i = 0; i < n; i++) {
        l->handle[i] = l->list[i]->job;
        if (!l->list[i]->req->base.scheduled_us)
            l->list[i]->req->base.scheduled_us = begin;
    }
    l->base.n_step = n;
    int rc = eng_image_step(l->g, l->handle, n, &y, e);
    l->base.n_step = 0;
    lane_tick(&l->base);
    *us = l->base.now - begin - l->paused_us;
    return rc;
}

/* The jobs among list[0..n) that moved on though the step failed: what they brought is kept. */
static int harvest_moved(struct image_lane *l, enum img_stage stage, int n)
{
    int moved = 0;
    for (int i = 0; i < n; i++) {
        struct ijob *j = l->list[i];
        if (img_job_stage(j->job) == stage)
            continue;
        l->list[i] = l->list[moved];
        l->list[moved++] = j;
    }
    if (moved)
        harvest(l, stage, moved);
    return moved;
}

/* Halves the step until it fits. Whoever is left over is in line for the next one, so no retry is needed here. */
static int run_list(struct image_lane *l, enum img_stage stage, struct err *e)
{
    int64_t us;
    for (int n = l->n_list;; n /= 2) {
        int rc = run_step(l, n, &us, e);
        if (rc == ERR_DEVICE)
            return rc;
        if (!rc) {
            account(l, stage, n, us);
            harvest(l, stage, n);
            return 1;
        }
        int moved = stage == IMG_DECODE ? harvest_moved(l, stage, n) : 0;
        if (moved || n == 1 || rc == ERR_CANCELLED) {
            if (!moved && rc != ERR_CANCELLED)
                job_failed(l, l->list[0], rc, e->text);
            *e = (struct err){0};
            return 1; /* what is left comes with the next step */
        }
    }
}

/* Finished latents first: they hold the most and need the least. New prompts next, so that their pictures can join. */
int image__run(struct image_lane *l, struct err *e)
{
    static const enum img_stage order[] = {IMG_DECODE, IMG_ENCODE, IMG_DENOISE};
    if (!l->n_live)
        return 0;
    for (int i = 0; i < 3; i++) {
        if (order[i] == IMG_DENOISE)
            choose(l);
        else
            gather(l, order[i]);
        if (l->n_list)
            return run_list(l, order[i], e);
    }
    CHECK(!"every live job is stuck"); /* job_failed leaves one that is not */
    return 0;
}
