/* Opening a speech model, and running one step of it. See model.h. */
#include "engine/audio/model.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/encode/encode.h"
#include "engine/kv.h"

#define SLOTS_DEFAULT 4

static int tokens_open(struct audio_model *m, const char *dir, struct err *e)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (n < 0 || n >= PATH_MAX)
        return err_set(e, ERR_LIMIT, "path is too long");
    int rc = tok_open_hf(&m->tok, path, e);
    return rc ? rc : aud_tokens_open(&m->t, m->tok, dir, whisper_dims(m->net), e);
}

static void facts(struct audio_model *m)
{
    const struct whisper_dims *d = whisper_dims(m->net);
    m->info = (struct eng_audio_info){.n_mel = d->n_mel,
                                      .n_frame = 2 * d->n_sound,
                                      .n_tok_prompt = d->n_text / 2 - 1,
                                      .multilingual = m->t.multilingual,
                                      .words = m->t.n_align > 0};
    for (int i = 0; i < AUD_LANGUAGES; i++)
        m->info.language[i] = m->t.multilingual ? m->t.lang[i] >= 0 : i == 0;
}

/* As many slots as were asked for, or as half of what is free holds. */
static int slots_open(struct audio_model *m, const struct eng_opts *o, struct err *e)
{
    enum dtype d;
    int want = o->max_audio > 0 ? o->max_audio : SLOTS_DEFAULT;
    int rc = eng_kv_dtype(o->kv_dtype, m->precision, &d, e);
    if (rc)
        return rc;
    if (want > AUD_SLOTS_MAX)
        want = AUD_SLOTS_MAX;
    size_t each = whisper_slot_bytes(m->net, m->be, d), fit = nn_memory(m->be) / 2 / each;
    if (fit < 1)
        return err_set(e, ERR_NOMEM, "a recording needs %zu MiB, and there is too little memory",
                       each >> 20);
    m->info.n_slot = fit < (size_t)want ? (int)fit : want;
    m->kv_bytes = each * (size_t)m->info.n_slot;
    return whisper_slots_open(m->net, &m->nn, d, m->info.n_slot, e);
}

static int buffers_open(struct audio_model *m, struct err *e)
{
    size_t vocab = (size_t)m->t.n_vocab, slots = (size_t)m->info.n_slot;
    m->n_logits = (int)slots + 2; /* a prefix needs up to three */
    m->logits = mem_calloc((size_t)m->n_logits * vocab, sizeof *m->logits);
    m->mel = mem_calloc((size_t)m->info.n_frame * (size_t)m->info.n_mel, sizeof *m->mel);
    return m->logits && m->mel ? 0 : err_set(e, ERR_NOMEM, "no memory for logits");
}

static int open_all(struct audio_model *m, const struct eng_opts *o, struct eng_info *info,
                    bool plan, struct err *e)
{
    int rc;
    if ((rc = nn_backend(&m->nn, o, "speech models", e)))
        return rc;
    m->be = m->nn.be;
    m->precision = o->precision;
    if ((rc = encode__config_open(&m->comp.cfg, o->path, e)) ||
        (rc = source_open(&m->src, o->path, e)))
        return rc;
    snprintf(m->comp.name, sizeof m->comp.name, "whisper");
    m->comp.map = (struct source_map){.src = m->src};
    if (!config_has(m->comp.cfg, "model_type") && (rc = aud_ct2_map(m, o->path, e)))
        return rc;
    if ((!plan && (rc = nn_open(&m->nn, o, m->precision, "run speech models", info, e))) ||
        (rc = nn_weights_open(&m->weights, m->be, m->nn.dev, m->precision, e)) ||
        (rc = whisper_open(&m->net, m->weights, &m->comp, e)) || (rc = tokens_open(m, o->path, e)))
        return rc;
    facts(m);
    if ((rc = slots_open(m, o, e)) || (rc = buffers_open(m, e)))
        return rc;
    info->weight_bytes = nn_weights_bytes(m->weights);
    info->kv_bytes = m->kv_bytes;
    info->n_ctx = whisper_dims(m->net)->n_text;
    info->n_vocab = m->t.n_vocab;
    info->max_rows = o->max_rows > 0 ? o->max_rows : 512;
    info->audio = &m->info;
    snprintf(info->arch, sizeof info->arch, "whisper");
    return 0;
}

int audio_model_open(struct audio_model **out, const struct eng_opts *o, struct eng_info *info,
                     struct err *e)
{
    struct audio_model *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the model");
    int rc = open_all(m, o, info, false, e);
    if (rc) {
        err_prefix(e, "%s", o->path);
        audio_model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void audio_model_close(struct audio_model *m)
{
    if (!m)
        return;
    nn_close(&m->nn);
    whisper_close(m->net);
    nn_weights_close(m->weights);
    if (m->nn.dev)
        m->be->close(m->nn.dev);
    aud_tokens_close(&m->t);
    tok_close(m->tok);
    source_close(m->src);
    config_close(m->comp.cfg);
    free(m->logits);
    free(m->mel);
    free(m);
}

/* ---- the memory plan ---- */

static void count_window(struct nn *n, void *arg)
{
    whisper_encode(arg, n, NULL, 0, NULL);
}

static int plan_work(struct audio_model *m, size_t *out, struct err *e)
{
    *out = nn_peak(&m->nn, &(struct nn_body){.fn = count_window, .arg = m->net});
    return nn_end(&m->nn, e);
}

int audio_model_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e)
{
    struct eng_info info = {0};
    *out = (struct eng_memory){0};
    struct audio_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the plan");
    int rc = open_all(m, o, &info, true, e);
    if (!rc)
        rc = plan_work(m, &out->work, e);
    if (rc)
        err_prefix(e, "%s", o->path);
    else
        nn_plan(&m->nn, m->src, &info, out);
    audio_model_close(m);
    return rc;
}

/* ---- running ---- */

int audio__run(struct audio_model *m, const struct img_yield *y,
               void (*fn)(struct nn *n, void *arg), void *arg, struct err *e)
{
    return nn_do(&m->nn, &(struct nn_body){.fn = fn, .arg = arg, .what = "a step", .yield = y},
                 NULL, e);
}
