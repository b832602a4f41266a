/* See audio.h: requests in and out, admission. Steps are in audio_step.c. */
#include "sched/audio_impl.h"

#include "engine/base/mem.h"

static void leave(struct lane *lane, struct lane_req *q)
{
    struct audio_lane *l = (struct audio_lane *)lane;
    struct sreq *own = sreq(q);
    if (!own->job)
        return;
    aud_job_close(l->g, own->job);
    own->job = NULL;
    l->n_job--;
}

static void report(const struct lane_req *q, struct event *ev)
{
    const struct sreq *own = (const struct sreq *)q;
    ev->n_prompt = own->n_prompt;
    ev->n_output = own->n_output;
    ev->encode_us = own->encode_us;
    ev->decode_us = own->decode_us;
    ev->first_token_us = own->first_us;
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
    l->base = (struct lane){
        .clock = o->clock, .emit = o->emit, .arg = o->arg, .leave = leave, .report = report};
    l->list = mem_calloc((size_t)info->n_slot, sizeof *l->list);
    l->handle = mem_calloc((size_t)info->n_slot, sizeof *l->handle);
    if (!l->list || !l->handle) {
        audio_lane_close(l);
        return err_set(e, ERR_NOMEM, "speech lane: no memory for %d recordings", info->n_slot);
    }
    *out = l;
    return 0;
}

void audio_lane_close(struct audio_lane *l)
{
    if (!l)
        return;
    lane_clear(&l->base);
    free(l->list);
    free(l->handle);
    free(l);
}

void audio_lane_submit(struct audio_lane *l, struct request *r)
{
    lane_tick(&l->base);
    if (!r->audio || !r->audio->mel) {
        lane_refuse(&l->base, r, ERR_INVAL, "the model transcribes speech, nothing else");
        return;
    }
    struct sreq *q = mem_calloc(1, sizeof *q);
    if (q)
        lane_add(&l->base, &q->base, r);
    else
        lane_refuse(&l->base, r, ERR_NOMEM, "no memory for a recording");
}

void audio_lane_cancel(struct audio_lane *l, uint64_t req)
{
    lane_cancel(&l->base, req);
}

void audio_lane_interrupt(struct audio_lane *l)
{
    l->base.interrupted = true;
}

void audio_lane_fail_all(struct audio_lane *l, int code, const char *text)
{
    lane_fail_all(&l->base, code, text);
}

/* A recording that can't be opened beside others waits for them; alone, it never can. */
static void admit(struct audio_lane *l)
{
    for (struct lane_req *q = l->base.head, *next; q && l->n_job < l->info->n_slot; q = next) {
        struct sreq *own = sreq(q);
        struct err e = {0};
        next = q->next;
        if (own->job)
            continue;
        int rc = aud_job_open(l->g, &q->r->audio->p, &own->job, &e);
        if ((rc == ERR_NOMEM && l->n_job) || rc == ERR_AGAIN)
            break;
        if (rc) {
            lane_end(&l->base, q, rc, e.text);
            continue;
        }
        q->scheduled_us = l->base.now;
        l->n_job++;
    }
}

int audio_lane_step(struct audio_lane *l, struct err *e)
{
    struct err local = {0};
    e = e ? e : &local;
    lane_tick(&l->base);
    lane_expire(&l->base);
    admit(l);
    int rc = audio__step(l, e);
    lane_end_cancelled(&l->base);
    if (rc < 0)
        lane_fail_all(&l->base, rc, e->text);
    lane_bury(&l->base);
    return rc;
}

bool audio_lane_idle(const struct audio_lane *l)
{
    return !l->base.n_req;
}

int audio_lane_live(const struct audio_lane *l)
{
    return l->base.n_req;
}

/* A job of a step brings a window and its request's end. */
size_t audio_lane_events_max(const struct audio_lane *l, size_t extra)
{
    return 2 * (size_t)l->info->n_slot + extra;
}

void audio_lane_stats_get(const struct audio_lane *l, struct sched_stats *out)
{
    *out = l->base.st;
    out->audio.jobs = l->n_job;
    out->running = l->n_job;
    out->waiting = l->base.n_req - l->n_job;
    if (out->audio.us_per_second > 0 && l->sound_per_req > 0)
        out->requests_per_s = 1e6 / (out->audio.us_per_second * l->sound_per_req);
}

int audio_lane_check(const struct audio_lane *l, struct err *e)
{
    int jobs = 0, rc = lane_check(&l->base, e);
    if (rc)
        return rc;
    for (struct lane_req *q = l->base.head; q; q = q->next) {
        const struct aud_job *job = sreq(q)->job;
        if (job && aud_job_stage(job) >= AUD_DONE)
            return err_set(e, ERR_INTERNAL, "request %d: its job is finished", (int)q->order);
        jobs += job != NULL;
    }
    if (jobs != l->n_job || jobs > l->info->n_slot)
        return err_set(e, ERR_INTERNAL, "%d jobs, counted %d", l->n_job, jobs);
    return 0;
}
