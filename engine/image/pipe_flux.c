/* FLUX.1 dev and schnell (Black Forest Labs 2024), diffusers' FluxPipeline: T5's states for the tokens, CLIP's pooled
 * state for the modulation, guidance as an input (dev) or none at all (schnell); one pass a step in either case. */
#include "engine/image/dit_flux.h"

#include "engine/base/mem.h"
#include "engine/image/latent_rgb.h"
#include "engine/image/pipe_parts.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS_DEV     512 /* of T5; shorter prompts are filled up, and the filling is seen */
#define TOKENS_SCHNELL 256
#define CLIP_TOKENS    128 /* at most, of which the model's positions are used */

struct flux {
    struct tokenizer *tok_clip, *tok_t5;
    int32_t pad; /* of CLIP's tokenizer */
    struct clip *clip;
    struct t5 *t5;
    struct dit_flux *dit;
    int len; /* tokens of T5 */
};

enum part { TOKENIZER, TOKENIZER_2, CLIP, T5, TRANSFORMER, VAE, SCHEDULER, N_PART };

/* Opens all parts and checks that they fit each other. What is open after an error is flux_close's. */
static int parts_open(struct pipe *p, struct flux *f, struct dit_info *dit, struct err *e)
{
    static const char *const name[N_PART] = {"tokenizer",      "tokenizer_2", "text_encoder",
                                             "text_encoder_2", "transformer", "vae",
                                             "scheduler"};
    struct comp *c[N_PART];
    int rc;
    if ((rc = pipe_parts_find(p, name, N_PART, c, e)) ||
        (rc = enc_tokenizer_open(&f->tok_clip, c[TOKENIZER], e)) ||
        (rc = enc_tokenizer_open(&f->tok_t5, c[TOKENIZER_2], e)) ||
        (rc = clip_open(&f->clip, p->weights, c[CLIP], 0, e)) ||
        (rc = t5_open(&f->t5, p->weights, c[T5], e)) ||
        (rc = dit_flux_open(&f->dit, p->weights, c[TRANSFORMER], e)))
        return rc;
    *dit = dit_flux_info(f->dit);
    if ((rc = pipe_flow_open(p, dit, e)))
        return rc;
    f->pad = enc_pad_id(f->tok_clip, c[TOKENIZER]);
    if (t5_dim(f->t5) != dit->text_dim)
        return err_set(e, ERR_INVAL, "text_encoder_2's states are %d wide, the transformer's %d",
                       t5_dim(f->t5), dit->text_dim);
    if (clip_dim(f->clip) != dit->pooled_dim)
        return err_set(e, ERR_INVAL, "text_encoder's states are %d wide, the transformer's %d",
                       clip_dim(f->clip), dit->pooled_dim);
    if (clip_positions(f->clip) > CLIP_TOKENS)
        return err_set(e, ERR_UNSUPPORTED, "text_encoder has %d positions, at most %d",
                       clip_positions(f->clip), CLIP_TOKENS);
    p->sched.sigmas_given = true;
    return 0;
}

static int flux_open(struct pipe *p, struct err *e)
{
    struct flux *f = mem_calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ERR_NOMEM, "no memory for the pipeline");
    p->state = f;
    struct dit_info dit;
    int rc = parts_open(p, f, &dit, e);
    if (rc)
        return rc;
    /* The two published models differ in nothing but this input, and in what they were distilled to. */
    bool dev = dit_flux_guidance(f->dit);
    f->len = dev ? TOKENS_DEV : TOKENS_SCHNELL;
    pipe_flow_info(p, &dit);
    p->embedded_guidance = true;
    p->preview = p->c == 16 ? latent_rgb_flux : NULL;
    p->info.size_default = 128 * p->factor;
    p->info.steps_default = dev ? 28 : 4;
    p->info.guidance_default = dev ? 3.5f : 0;
    p->info.guidance_max = 100;
    p->info.prompt_tokens_max = f->len;
    return 0;
}

static void flux_close(struct pipe *p)
{
    struct flux *f = p->state;
    if (!f)
        return;
    tok_close(f->tok_clip);
    tok_close(f->tok_t5);
    clip_close(f->clip);
    t5_close(f->t5);
    dit_flux_close(f->dit);
    free(f);
    p->state = NULL;
}

/* One batch of prompts, both encoders. */
struct texts {
    int n, n_clip; /* prompts; tokens of CLIP a prompt */
    int32_t *ids_clip, *ids_t5, *start_clip, *start_t5, *eos, *real;
    float *pooled, *states; /* [n, dim], [n, len, dim] */
};

static void texts_free(struct texts *t)
{
    free(t->ids_clip);
    free(t->pooled);
    free(t->states);
}

/* The six lists of ids are one allocation, behind ids_clip. ERR_NOMEM: texts_free what there is. */
static int texts_alloc(struct texts *t, const struct flux *f, int n)
{
    size_t k = (size_t)n, c = (size_t)clip_positions(f->clip), len = (size_t)f->len;
    t->n = n;
    t->n_clip = (int)c;
    t->ids_clip = mem_calloc(k * (c + len) + 2 * (k + 1) + 2 * k, sizeof *t->ids_clip);
    t->pooled = mem_calloc(k * (size_t)clip_dim(f->clip), sizeof *t->pooled);
    t->states = mem_calloc(k * len * (size_t)t5_dim(f->t5), sizeof *t->states);
    if (!t->ids_clip || !t->pooled || !t->states)
        return ERR_NOMEM;
    t->ids_t5 = t->ids_clip + k * c;
    t->start_clip = t->ids_t5 + k * len;
    t->start_t5 = t->start_clip + k + 1;
    t->eos = t->start_t5 + k + 1;
    t->real = t->eos + k;
    return 0;
}

/* Both encoders' ids, filled up: neither is given a mask, so the filling is part of what they were trained on. */
static int texts_tokenize(struct texts *t, const struct flux *f, const char *const *text)
{
    int rc = 0, ignored;
    for (int i = 0; i < t->n && !rc; i++) {
        int32_t *c = t->ids_clip + i * t->n_clip;
        t->start_clip[i + 1] = (i + 1) * t->n_clip;
        t->start_t5[i + 1] = (i + 1) * f->len;
        rc = enc_clip_ids(f->tok_clip, text[i], t->n_clip, f->pad, c, &ignored);
        if (!rc)
            rc = enc_t5_ids(f->tok_t5, text[i], f->len, t->ids_t5 + i * f->len, &t->real[i]);
        t->eos[i] = clip_eos_at(f->clip, c, t->n_clip);
    }
    return rc;
}

/* The results apart, one a prompt. */
static int texts_give(const struct texts *t, const struct flux *f, struct img_cond **out)
{
    size_t dim = (size_t)t5_dim(f->t5), n_pooled = (size_t)clip_dim(f->clip), len = (size_t)f->len;
    for (int i = 0; i < t->n; i++) {
        struct img_cond *c = out[i] = img_cond_new(f->len, (int)dim, (int)n_pooled);
        if (!c)
            return ERR_NOMEM;
        c->prompt_tokens = t->real[i];
        memcpy(c->states, t->states + (size_t)i * len * dim, len * dim * sizeof *c->states);
        memcpy(c->pooled, t->pooled + (size_t)i * n_pooled, n_pooled * sizeof *c->pooled);
    }
    return 0;
}

static int flux_encode(struct pipe *p, struct nn *n, const char *const *text, int n_text,
                       struct img_cond **out, struct err *e)
{
    struct flux *f = p->state;
    struct texts t = {0};
    CHECK(n_text > 0 && n_text <= ENC_TEXTS);
    int rc = texts_alloc(&t, f, n_text);
    if (!rc)
        rc = texts_tokenize(&t, f, text);
    if (!rc) {
        clip_run(f->clip, n,
                 &(struct enc_batch){.n = n_text, .ids = t.ids_clip, .start = t.start_clip},
                 &(struct clip_out){.at = t.eos, .pooled = t.pooled});
        t5_run(f->t5, n, &(struct enc_batch){.n = n_text, .ids = t.ids_t5, .start = t.start_t5},
               t.states);
        rc = texts_give(&t, f, out);
    }
    texts_free(&t);
    return rc ? err_set(e, rc, "prompts can't be encoded: %s", err_name(rc)) : 0;
}

static void flux_denoise(struct pipe *p, struct nn *n, const struct img_row *row, int n_row)
{
    dit_flux_run(((struct flux *)p->state)->dit, n, row, n_row);
}

const struct pipe_class pipe_flux = {
    .name = "FluxPipeline FluxImg2ImgPipeline FluxInpaintPipeline",
    .open = flux_open,
    .close = flux_close,
    .encode = flux_encode,
    .denoise = flux_denoise,
    .decode = pipe_vae_decode,
    .encode_image = pipe_vae_encode,
};
