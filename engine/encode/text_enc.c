/* Text encoders that image models have too, as encoders of texts for vectors: decoder-only language models
 * (Qwen3-Embedding, e5-mistral, gte-Qwen2: sentence-transformers folders of a decoder with a pooling) and T5's encoder
 * (sentence-t5, gtr-t5). */
#include "engine/encode/encoder.h"

#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/image/encoders.h"

_Static_assert(ENC_TEXTS >= ENG_ENCODE_ROWS, "a batch is one run");

/* Positions are counted by the encoders themselves. */
static void positions(const void *p, const int32_t *ids, int32_t n, int32_t *pos)
{
    (void)p;
    (void)ids;
    for (int32_t i = 0; i < n; i++)
        pos[i] = i;
}

/* ---- decoders ---- */

static int lm_open(void **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct lm_enc *m = NULL;
    *out = NULL;
    /* gte-Qwen2's own code looks in both directions where the library's looks back only: nothing but code says so */
    if (config_has(c->cfg, "auto_map") && !config_has(c->cfg, "is_causal"))
        return err_set(
            e, ERR_UNSUPPORTED,
            "config.json: auto_map: the model brings code of its own; put \"is_causal\": "
            "false beside it if that attends in both directions (gte-Qwen2), else true");
    int rc = lm_enc_open(&m, w, c, 0, e);
    *out = m;
    return rc;
}

static void lm_close(void *m)
{
    lm_enc_close(m);
}

static void lm_facts(const void *p, struct eng_encoder_info *out, int32_t *n_vocab, int *width)
{
    out->dim = *width = lm_enc_dim(p);
    out->n_tok_max = lm_enc_len_max(p);
    out->n_type = 1;
    *n_vocab = (int32_t)lm_enc_vocab(p);
}

static void lm_run(void *p, struct nn *n, const struct encoder_batch *b, float *states,
                   float *scores)
{
    (void)scores;
    lm_enc_run(p, n, &(struct enc_batch){b->n, b->ids, b->start}, 0, states);
}

static const char *const lm_types[] = {"qwen3", "qwen2", "mistral", "llama", NULL};

const struct encoder_ops encoder_lm = {.types = lm_types,
                                       .needs_pooling = true,
                                       .open = lm_open,
                                       .close = lm_close,
                                       .facts = lm_facts,
                                       .positions = positions,
                                       .run = lm_run};

/* ---- T5 ---- */

#define T5_LEN 512 /* tokens that the published ones were trained on */

struct t5_enc {
    struct t5 *t5;
    int32_t n_pos;
};

static void t5_enc_close(void *p)
{
    struct t5_enc *m = p;
    if (m)
        t5_close(m->t5);
    free(m);
}

static int t5_enc_open(void **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct t5_enc *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the encoder");
    m->n_pos = (int32_t)config_int(c->cfg, "n_positions", T5_LEN, 1, 4096);
    int rc = t5_open(&m->t5, w, c, e);
    if (rc)
        t5_enc_close(m);
    else
        *out = m;
    return rc;
}

static void t5_facts(const void *p, struct eng_encoder_info *out, int32_t *n_vocab, int *width)
{
    const struct t5_enc *m = p;
    out->dim = *width = t5_dim(m->t5);
    out->n_tok_max = m->n_pos;
    out->n_type = 1;
    *n_vocab = (int32_t)t5_vocab(m->t5);
}

static void t5_enc_run(void *p, struct nn *n, const struct encoder_batch *b, float *states,
                       float *scores)
{
    struct t5_enc *m = p;
    (void)scores;
    t5_run(m->t5, n, &(struct enc_batch){b->n, b->ids, b->start}, states);
}

static const char *const t5_types[] = {"t5", "umt5", NULL};

const struct encoder_ops encoder_t5 = {.types = t5_types,
                                       .needs_pooling = true,
                                       .open = t5_enc_open,
                                       .close = t5_enc_close,
                                       .facts = t5_facts,
                                       .positions = positions,
                                       .run = t5_enc_run};
