/* See audio.h: the next step, and what it brought. */
#include "sched/audio_impl.h"

#include "engine/base/mem.h"

/* Whether somebody still wants the step that runs. */
static bool wanted(const struct audio_lane *l)
{
    if (l->base.interrupted)
        return false;
    for (int i = 0; i < l->base.n_step && l->base.n_cancelled; i++)
        if (!l->list[i]->base.cancelled)
            return true;
    return !l->base.n_cancelled;
}

/* Called by the engine between operations; what others did meanwhile is not this step's time. */
static int pause_step(void *arg)
{
    struct audio_lane *l = arg;
    if (l->o.pause)
        l->paused_us += l->o.pause(l->o.arg);
    return wanted(l) ? 0 : ERR_CANCELLED;
}

/* Windows to encode first, then words to align, one at a time; then all that decode. */
static enum aud_stage choose(struct audio_lane *l)
{
    static const enum aud_stage order[] = {AUD_ENCODE, AUD_ALIGN, AUD_DECODE};
    l->n_list = 0;
    for (int k = 0; k < 3; k++) {
        for (struct lane_req *r = l->base.head; r; r = r->next) {
            struct sreq *q = sreq(r);
            if (!q->job || aud_job_stage(q->job) != order[k])
                continue;
            l->list[l->n_list++] = q;
            if (order[k] != AUD_DECODE)
                return order[k];
        }
        if (l->n_list)
            return order[k];
    }
    return AUD_DONE;
}

/* A request's times count its steps whole: that is what its client waited. */
static void account(struct audio_lane *l, enum aud_stage stage, int n, int64_t us)
{
    struct audio_stats *st = &l->base.st.audio;
    for (int i = 0; i < n; i++)
        *(stage == AUD_ENCODE ? &l->list[i]->encode_us : &l->list[i]->decode_us) += us;
    *(stage == AUD_ENCODE  ? &st->encode_us
      : stage == AUD_ALIGN ? &st->align_us
                           : &st->decode_us) += us;
    st->windows += stage == AUD_ENCODE;
    l->base.st.step_us_total += us;
    l->base.st.steps++;
    if (stage != AUD_DECODE)
        return;
    st->decode_steps++;
    st->decode_rows += (uint64_t)n;
}

static void take_piece(struct audio_lane *l, struct sreq *q)
{
    struct aud_piece *p = aud_job_take(q->job);
    if (!p)
        return;
    int64_t seek = aud_job_seek(q->job);
    double sound = (double)(seek - q->seek) * AUD_HOP / AUD_RATE;
    q->seek = seek;
    l->base.st.audio.seconds += sound;
    if (!q->first_us)
        q->first_us = l->base.now;
    struct event ev = {.kind = EV_AUDIO, .req = q->base.r->id, .stop_token = -1, .audio = p};
    l->base.emit(l->base.arg, &ev);
}

static void finish(struct audio_lane *l, struct sreq *q)
{
    double sound = (double)q->base.r->audio->mel->n_sample / AUD_RATE;
    double us = (double)(q->encode_us + q->decode_us) / (sound > 0 ? sound : 1);
    double *rate = &l->base.st.audio.us_per_second;
    *rate = *rate > 0 ? 0.8 * *rate + 0.2 * us : us;
    l->sound_per_req = l->sound_per_req > 0 ? 0.8 * l->sound_per_req + 0.2 * sound : sound;
    l->base.st.audio.recordings++;
    lane_end(&l->base, &q->base, 0, NULL);
}

static void harvest(struct audio_lane *l, int n)
{
    for (int i = 0; i < n; i++) {
        struct sreq *q = l->list[i];
        int32_t prompt = q->n_prompt, output = q->n_output;
        if (q->base.ended || q->base.cancelled)
            continue;
        aud_job_tokens(q->job, &q->n_prompt, &q->n_output);
        l->base.st.prompt_tokens += (uint64_t)(q->n_prompt - prompt);
        l->base.st.generated_tokens += (uint64_t)(q->n_output - output);
        l->base.st.audio.retries += (uint64_t)aud_job_retries(q->job);
        take_piece(l, q);
        if (aud_job_stage(q->job) == AUD_DONE)
            finish(l, q);
        else if (aud_job_stage(q->job) == AUD_FAILED)
            lane_end(&l->base, &q->base, ERR_NOMEM, "no memory for the text of a window");
    }
}

static int run(struct audio_lane *l, int n, int64_t *us, struct err *e)
{
    const struct img_yield y = {.fn = pause_step, .arg = l};
    lane_tick(&l->base);
    int64_t begin = l->base.now;
    l->paused_us = 0;
    l->base.interrupted = false;
    for (int i = 0; i < n; i++)
        l->handle[i] = l->list[i]->job;
    l->base.n_step = n;
    int rc = eng_audio_step(l->g, l->handle, n, &y, e);
    l->base.n_step = 0;
    lane_tick(&l->base);
    *us = l->base.now - begin - l->paused_us;
    return rc;
}

/* Halves the step until it fits; who is left over is in line for the next one. */
int audio__step(struct audio_lane *l, struct err *e)
{
    int64_t us;
    enum aud_stage stage = choose(l);
    for (int n = l->n_list; n; n /= 2) {
        int rc = run(l, n, &us, e);
        if (rc == ERR_DEVICE)
            return rc;
        if (!rc) {
            account(l, stage, n, us);
            harvest(l, n);
            return 1;
        }
        if (n == 1 && rc != ERR_CANCELLED)
            lane_end(&l->base, &l->list[0]->base, rc, e->text);
        if (n == 1 || rc == ERR_CANCELLED) {
            *e = (struct err){0};
            return 1;
        }
    }
    return 0;
}
