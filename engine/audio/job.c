/* Jobs: a recording goes through window after window, each decoded at rising temperatures until its text looks sound. The
 * order of things is that of the published transcribe(). See model.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/audio/model.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/engine_impl.h"

static int check(const struct audio_model *m, const struct aud_params *p, struct err *e)
{
    const struct eng_audio_info *i = &m->info;
    if (!p->mel || p->mel->maker || p->mel->n_mel != i->n_mel)
        return err_set(e, ERR_INVAL, "audio: no spectrum of %d bands", i->n_mel);
    if (p->language >= AUD_LANGUAGES || (p->language >= 0 && !i->language[p->language]))
        return err_set(e, ERR_INVAL, "language: the model does not know it");
    if (p->translate && !i->multilingual)
        return err_set(e, ERR_UNSUPPORTED, "translation: the model knows English only");
    if (p->words && !i->words)
        return err_set(e, ERR_UNSUPPORTED, "words: the model does not say which heads align");
    if (p->n_heat < 1 || p->n_heat > AUD_HEATS_MAX)
        return err_set(e, ERR_INVAL, "temperature: %d of them", p->n_heat);
    for (int k = 0; k < p->n_heat; k++)
        if (!(p->heat[k] >= 0 && p->heat[k] <= 10))
            return err_set(e, ERR_INVAL, "temperature must be 0 to 10");
    for (int32_t k = 0; k < p->n_prompt; k++)
        if (p->prompt[k] < 0 || p->prompt[k] >= m->t.eot)
            return err_set(e, ERR_INVAL, "prompt: token %d is no text", p->prompt[k]);
    return 0;
}

static int free_slot(const struct audio_model *m)
{
    for (int s = 0; s < m->info.n_slot; s++)
        if (!m->used[s])
            return s;
    return -1;
}

/* What the decoder sees before it writes: the text so far (or the prompt), then start, language and task. */
static void begin_attempt(struct aud_job *j)
{
    const struct aud_tokens *t = &j->m->t;
    int n = 0, keep = j->m->info.n_tok_prompt;
    j->begun = false;
    j->sum_logprob = 0;
    j->no_speech = 0;
    if (!j->detect) {
        size_t all = j->history.n - j->history_from,
               from = all > (size_t)keep ? j->history.n - (size_t)keep : j->history_from;
        if (all) {
            j->seq[n++] = t->prev;
            memcpy(j->seq + n, j->history.id + from, (j->history.n - from) * sizeof *j->seq);
            n += (int)(j->history.n - from);
        }
    }
    j->sot_at = n;
    j->seq[n++] = t->sot;
    if (t->multilingual && !j->detect) {
        j->seq[n++] = t->lang[j->language];
        j->seq[n++] = j->p.translate ? t->translate : t->transcribe;
    }
    j->n_prefix = j->n_seq = n;
}

int aud_window_next(struct aud_job *j)
{
    int64_t left = j->p.mel->n_frame - j->seek;
    if (left <= 0) {
        j->stage = AUD_DONE;
        return 0;
    }
    j->n_content = left < j->m->info.n_frame ? left : j->m->info.n_frame;
    j->stage = AUD_ENCODE;
    j->heat = 0;
    return 0;
}

int aud_job_open(struct engine *g, const struct aud_params *p, struct aud_job **out, struct err *e)
{
    struct audio_model *m = g->audio;
    *out = NULL;
    if (!m)
        return err_set(e, ERR_INVAL, "audio: the model does not transcribe");
    int rc = check(m, p, e), slot = free_slot(m);
    if (rc)
        return rc;
    if (slot < 0)
        return err_set(e, ERR_AGAIN, "audio: all %d slots are taken", m->info.n_slot);
    const struct whisper_dims *d = whisper_dims(m->net);
    struct aud_job *j = mem_calloc(1, sizeof *j);
    if (j) {
        j->seq = mem_calloc((size_t)d->n_text + 8, sizeof *j->seq);
        if (p->words)
            j->states = mem_alloc((size_t)d->n_sound * (size_t)d->d * sizeof *j->states);
        rc = !j->seq || (p->words && !j->states);
        for (int32_t i = 0; !rc && i < p->n_prompt; i++)
            rc = tok_ids_add(&j->history, p->prompt[i]);
    }
    if (!j || rc) {
        aud_job_close(g, j);
        return err_set(e, ERR_NOMEM, "audio: no memory for a recording");
    }
    j->m = m;
    j->p = *p;
    j->slot = slot;
    j->language = p->language >= 0 || !m->t.multilingual ? (p->language > 0 ? p->language : 0) : -1;
    j->detect = j->language < 0;
    m->used[slot] = true;
    aud_window_next(j);
    *out = j;
    return 0;
}

void aud_job_close(struct engine *g, struct aud_job *j)
{
    (void)g;
    if (!j)
        return;
    if (j->m)
        j->m->used[j->slot] = false;
    aud_piece_free(j->made);
    aud_piece_free(j->piece);
    tok_ids_free(&j->history);
    free(j->states);
    free(j->seq);
    free(j);
}

enum aud_stage aud_job_stage(const struct aud_job *j)
{
    return j->stage;
}

struct aud_piece *aud_job_take(struct aud_job *j)
{
    struct aud_piece *p = j->piece;
    j->piece = NULL;
    return p;
}

int64_t aud_job_seek(const struct aud_job *j)
{
    return j->seek < j->p.mel->n_frame ? j->seek : j->p.mel->n_frame;
}

int aud_job_retries(struct aud_job *j)
{
    int n = j->n_retry;
    j->n_retry = 0;
    return n;
}

void aud_job_tokens(const struct aud_job *j, int32_t *n_prompt, int32_t *n_output)
{
    *n_prompt = j->n_prompt;
    *n_output = j->n_output;
}

/* ---- steps ---- */

struct encode_run {
    struct aud_job *j;
};

static void encode_fn(struct nn *n, void *arg)
{
    struct aud_job *j = ((struct encode_run *)arg)->j;
    whisper_encode(j->m->net, n, j->m->mel, j->slot, j->states);
}

static int encode(struct audio_model *m, struct aud_job *j, const struct img_yield *y,
                  struct err *e)
{
    const struct aud_mel *mel = j->p.mel;
    size_t c = (size_t)m->info.n_mel;
    for (int64_t r = 0; r < m->info.n_frame; r++) {
        float *to = m->mel + (size_t)r * c;
        if (j->seek + r < mel->n_row)
            memcpy(to, mel->v + (size_t)(j->seek + r) * c, c * sizeof *to);
        else
            for (size_t i = 0; i < c; i++)
                to[i] = mel->silence;
    }
    int rc = audio__run(m, y, encode_fn, &(struct encode_run){j}, e);
    if (rc)
        return rc;
    begin_attempt(j);
    j->stage = AUD_DECODE;
    return 0;
}

struct decode_run {
    struct audio_model *m;
    struct whisper_row row[AUD_SLOTS_MAX];
    int n;
};

static void decode_fn(struct nn *n, void *arg)
{
    struct decode_run *r = arg;
    whisper_decode(r->m->net, n, r->row, r->n, r->m->logits, NULL);
}

/* The row of a job: its prefix with the logits at the start token (is there speech?) and at its end; or one token. */
static struct whisper_row row_of(const struct aud_job *j)
{
    if (j->begun)
        return (struct whisper_row){j->slot, j->seq + j->n_seq - 1, 1, j->n_seq - 1, 1};
    return (struct whisper_row){j->slot, j->seq, j->n_prefix, 0, j->n_prefix - j->sot_at};
}

/* z: the logits of the job's row, the first of them. */
static int take_logits(struct aud_job *j, float *z)
{
    struct audio_model *m = j->m;
    size_t vocab = (size_t)m->t.n_vocab;
    int n_text = whisper_dims(m->net)->n_text;
    if (j->detect) {
        j->language = aud_pick_language(&m->t, z);
        j->detect = false;
        begin_attempt(j);
        return 0;
    }
    if (!j->begun) {
        j->no_speech = aud_prob(z, m->t.n_vocab, m->t.no_speech);
        j->n_prompt += j->n_prefix;
        z += (size_t)(j->n_prefix - j->sot_at - 1) * vocab;
        j->begun = true;
    }
    int n = j->n_seq - j->n_prefix;
    struct aud_pick k = aud_pick_next(&m->t, z, j->seq + j->n_prefix, n, j->p.heat[j->heat],
                                      rng_uniform(j->p.seed, (uint32_t)j->n_drawn));
    j->n_drawn++;
    j->n_output++;
    j->sum_logprob += (double)k.logprob;
    if (k.token != m->t.eot)
        j->seq[j->n_seq++] = k.token;
    if (k.token == m->t.eot || n + 1 >= n_text / 2 || j->n_seq >= n_text)
        return aud_window_end(j);
    return 0;
}

static int decode(struct audio_model *m, struct aud_job *const *jobs, int n,
                  const struct img_yield *y, struct err *e)
{
    struct decode_run r = {.m = m, .n = n};
    int n_logit = 0, rows = 0;
    for (int i = 0; i < n; i++) {
        r.row[i] = row_of(jobs[i]);
        n_logit += r.row[i].n_logit;
        rows += r.row[i].n_tok;
    }
    if (rows > WHISPER_ROWS)
        return err_set(e, ERR_NOMEM, "%d rows are more than a step takes", rows);
    /* start, language and task at most */
    size_t bytes = (size_t)n_logit * (size_t)m->t.n_vocab * sizeof *m->logits;
    if (n_logit > m->n_logits) {
        float *more = mem_realloc(m->logits, bytes);
        if (!more)
            return err_set(e, ERR_NOMEM, "no memory for logits");
        m->logits = more;
        m->n_logits = n_logit;
    }
    int rc = audio__run(m, y, decode_fn, &r, e);
    float *z = m->logits;
    for (int i = 0; i < n && !rc; i++) {
        if (take_logits(jobs[i], z))
            jobs[i]->stage = AUD_FAILED;
        z += (size_t)r.row[i].n_logit * (size_t)m->t.n_vocab;
    }
    return rc;
}

int audio_model_step(struct audio_model *m, struct aud_job *const *jobs, int n,
                     const struct img_yield *y, struct err *e)
{
    int rc = 0;
    if (m->failed.code)
        return err_set(e, m->failed.code, "%s", m->failed.text);
    for (int i = 1; i < n; i++)
        if (jobs[i]->stage != jobs[0]->stage)
            return err_set(e, ERR_INVAL, "audio step: jobs of different stages");
    if (n < 1 || n > m->info.n_slot || (n > 1 && jobs[0]->stage != AUD_DECODE))
        return err_set(e, ERR_INVAL, "audio step: %d jobs", n);
    switch (jobs[0]->stage) {
    case AUD_ENCODE:
        rc = encode(m, jobs[0], y, e);
        break;
    case AUD_DECODE:
        rc = decode(m, jobs, n, y, e);
        break;
    case AUD_ALIGN:
        rc = aud_words(jobs[0], y, e);
        if (!rc && aud_window_done(jobs[0]))
            jobs[0]->stage = AUD_FAILED;
        break;
    case AUD_DONE:
    case AUD_FAILED:
        return err_set(e, ERR_INVAL, "audio step: a job is finished");
    }
    if (rc == ERR_DEVICE)
        err_set(&m->failed, rc, "%s", e ? e->text : "the device failed");
    return rc;
}

int eng_audio_step(struct engine *g, struct aud_job *const *jobs, int n, const struct img_yield *y,
                   struct err *e)
{
    if (!g->audio)
        return err_set(e, ERR_INVAL, "audio: the model does not transcribe");
    return audio_model_step(g->audio, jobs, n, y, e);
}
