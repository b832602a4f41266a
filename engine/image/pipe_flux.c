/* FLUX.1 dev and schnell (Black Forest Labs 2024), diffusers' FluxPipeline: T5's states for the tokens, CLIP's pooled
 * state for the modulation, guidance as an input (dev) or none at all (schnell); one pass a step in either case. */
#include "engine/image/dit_flux.h"

#include "engine/base/mem.h"
#include "engine/image/encoders.h"
#include "engine/image/latent_rgb.h"
#include "engine/image/sched_config.h"
#include "engine/image/vae.h"

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
    struct vae *vae;
    int len; /* tokens of T5 */
};

enum part { TOKENIZER, TOKENIZER_2, CLIP, T5, TRANSFORMER, VAE, SCHEDULER, N_PART };

static int parts_find(struct pipe *p, struct comp *c[N_PART], struct err *e)
{
    static const char *const name[N_PART] = {"tokenizer",      "tokenizer_2", "text_encoder",
                                             "text_encoder_2", "transformer", "vae",
                                             "scheduler"};
    for (int i = 0; i < N_PART; i++)
        if (!(c[i] = img_files_comp(p->files, name[i])))
            return err_set(e, ERR_NOTFOUND, "%s has no %s", p->files->pipeline, name[i]);
    return 0;
}

/* Opens all parts and checks that they fit each other. What is open after an error is flux_close's. */
static int parts_open(struct pipe *p, struct flux *f, struct err *e)
{
    struct comp *c[N_PART];
    int rc;
    if ((rc = parts_find(p, c, e)) || (rc = enc_tokenizer_open(&f->tok_clip, c[TOKENIZER], e)) ||
        (rc = enc_tokenizer_open(&f->tok_t5, c[TOKENIZER_2], e)) ||
        (rc = clip_open(&f->clip, p->weights, c[CLIP], 0, e)) ||
        (rc = t5_open(&f->t5, p->weights, c[T5], e)) ||
        (rc = dit_flux_open(&f->dit, p->weights, c[TRANSFORMER], e)) ||
        (rc = vae_open(&f->vae, p->weights, c[VAE], e)) ||
        (rc = nsched_config_read(&p->sched, c[SCHEDULER]->cfg, e)))
        return rc;
    f->pad = enc_pad_id(f->tok_clip, c[TOKENIZER]);
    if (t5_dim(f->t5) != dit_flux_text_dim(f->dit))
        return err_set(e, ERR_INVAL, "text_encoder_2's states are %d wide, the transformer's %d",
                       t5_dim(f->t5), dit_flux_text_dim(f->dit));
    if (clip_dim(f->clip) != dit_flux_pooled_dim(f->dit))
        return err_set(e, ERR_INVAL, "text_encoder's states are %d wide, the transformer's %d",
                       clip_dim(f->clip), dit_flux_pooled_dim(f->dit));
    if (clip_positions(f->clip) > CLIP_TOKENS)
        return err_set(e, ERR_UNSUPPORTED, "text_encoder has %d positions, at most %d",
                       clip_positions(f->clip), CLIP_TOKENS);
    if (vae_channels(f->vae) != dit_flux_channels(f->dit))
        return err_set(e, ERR_INVAL, "the vae has %d channels, the transformer %d",
                       vae_channels(f->vae), dit_flux_channels(f->dit));
    if (p->sched.kind != NSCHED_FLOW)
        return err_set(e, ERR_UNSUPPORTED, "scheduler: a flow matching one is needed");
    p->sched.sigmas_given = true;
    return 0;
}

static int flux_open(struct pipe *p, struct err *e)
{
    struct flux *f = mem_calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ERR_NOMEM, "no memory for the pipeline");
    p->state = f;
    int rc = parts_open(p, f, e);
    if (rc)
        return rc;
    /* The two published models differ in nothing but this input, and in what they were distilled to. */
    bool dev = dit_flux_guidance(f->dit);
    f->len = dev ? TOKENS_DEV : TOKENS_SCHNELL;
    p->c = vae_channels(f->vae);
    p->factor = vae_factor(f->vae);
    p->patch = 2;
    p->embedded_guidance = true;
    p->preview = p->c == 16 ? latent_rgb_flux : NULL;
    int step = p->factor * p->patch;
    p->info = (struct eng_image_info){.size_default = 128 * p->factor,
                                      .size_min = 4 * step,
                                      .size_max = 4096,
                                      .size_step = step,
                                      .pixels_max = (int64_t)2048 * 2048,
                                      .steps_default = dev ? 28 : 4,
                                      .steps_max = 200,
                                      .guidance_default = dev ? 3.5f : 0,
                                      .guidance_max = 100,
                                      .edit = vae_has_encoder(f->vae),
                                      .prompt_tokens_max = f->len,
                                      .sampler_default = IMG_SAMPLER_FLOW_EULER};
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
    vae_close(f->vae);
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

static void flux_decode(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in)
{
    vae_decode(((struct flux *)p->state)->vae, n, in, n_in);
}

static void flux_encode_image(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in)
{
    vae_encode(((struct flux *)p->state)->vae, n, in, n_in);
}

const struct pipe_class pipe_flux = {
    .name = "FluxPipeline FluxImg2ImgPipeline FluxInpaintPipeline",
    .open = flux_open,
    .close = flux_close,
    .encode = flux_encode,
    .denoise = flux_denoise,
    .decode = flux_decode,
    .encode_image = flux_encode_image,
};
