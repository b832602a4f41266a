/* Stable Diffusion 1, 2 and XL with its refiner, their inpainting, few-step and consistency variants (Rombach et al. 2022;
 * Podell et al. 2023; Luo et al. 2023): one or two CLIP text encoders, a UNet, AutoencoderKL. What a model is follows from
 * its components:
 *
 *   text_encoder                    last hidden states                              SD 1; SD 2's file ends a layer earlier
 *   text_encoder + text_encoder_2   both penultimate ones side by side, the second one's pooled text, six size ids   XL
 *   text_encoder_2                  its penultimate states and pooled text, four size ids and a score          refiner */
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/image/latent_rgb.h"
#include "engine/image/pipe_parts.h"
#include "engine/image/sched_config.h"
#include "engine/image/unet.h"
#include "engine/image/vae.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SD_CLIPS 2

/* Aesthetic scores that the refiner is told of the two halves of a guided pass. */
#define SCORE          6.0f
#define SCORE_NEGATIVE 2.5f

/* The state of a pipe of these classes. */
struct sd {
    struct {
        struct clip *clip;
        struct tokenizer *tok;
        int32_t pad; /* -1: the end token pads (CLIP-L); OpenCLIP's tokenizers pad with 0 */
    } text[SD_CLIPS];
    int n_text, skip;   /* skip: layers left out at the end of every encoder */
    int n_tok, dim;     /* of an encoded prompt: rows, and all encoders' widths together */
    int n_pooled, n_id; /* of what the UNet is told besides; 0: nothing */
    struct unet *unet;
};

/* ---- opening ---- */

/* Encoder number s->n_text. The pooled text comes from the last one, which needs all its layers; one before it loads no
 * layer that no run needs. */
static int text_open(struct pipe *p, struct sd *s, const char *encoder, const char *tokenizer,
                     struct err *e)
{
    struct comp *c = img_files_comp(p->files, encoder), *t;
    int rc = pipe_parts_find(p, &tokenizer, 1, &t, e), k = s->n_text++;
    bool pooled = s->skip && !strcmp(encoder, "text_encoder_2");
    if (!rc)
        rc = enc_tokenizer_open(&s->text[k].tok, t, e);
    if (!rc)
        rc = clip_open(&s->text[k].clip, p->weights, c, pooled ? 0 : s->skip, e);
    if (rc)
        return rc;
    const struct clip *m = s->text[k].clip;
    s->text[k].pad = enc_pad_id(s->text[k].tok, t);
    if (s->n_tok && s->n_tok != clip_positions(m))
        return err_set(e, ERR_INVAL, "%s has %d positions, the other text encoder %d", encoder,
                       clip_positions(m), s->n_tok);
    s->n_tok = clip_positions(m);
    s->dim += clip_dim(m);
    s->n_pooled = pooled ? clip_projection(m) : 0;
    return 0;
}

/* A second encoder is what makes both be read one layer before the last. */
static int texts_open(struct pipe *p, struct sd *s, struct err *e)
{
    bool one = img_files_comp(p->files, "text_encoder"),
         two = img_files_comp(p->files, "text_encoder_2");
    if (!one && !two)
        return err_set(e, ERR_NOTFOUND, "%s has no text_encoder", p->files->pipeline);
    s->skip = two;
    int rc = one ? text_open(p, s, "text_encoder", "tokenizer", e) : 0;
    if (!rc && two)
        rc = text_open(p, s, "text_encoder_2", "tokenizer_2", e);
    return rc;
}

/* The parts fit each other. */
static int check(const struct pipe *p, struct sd *s, struct err *e)
{
    const struct unet_info *u = unet_info(s->unet);
    if (u->context_dim != s->dim)
        return err_set(e, ERR_INVAL, "the text encoders' states are %d wide, the unet's context %d",
                       s->dim, u->context_dim);
    if (vae_channels(p->vae) != u->c_out)
        return err_set(e, ERR_INVAL, "the vae has %d channels, the unet %d", vae_channels(p->vae),
                       u->c_out);
    if (u->c_in != u->c_out && u->c_in != 2 * u->c_out + 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "unet: in_channels %d is neither the latents' %d nor those of inpainting",
                       u->c_in, u->c_out);
    if (p->sched.kind == NSCHED_FLOW)
        return err_set(e, ERR_UNSUPPORTED, "scheduler: flow matching is not for this pipeline");
    if (!u->add_in)
        return 0;
    if (!s->n_pooled)
        return err_set(e, ERR_INVAL, "the unet wants a pooled text, but no encoder projects one");
    s->n_id = (u->add_in - s->n_pooled) / u->add_id_dim;
    if ((s->n_id != 5 && s->n_id != 6) || s->n_pooled + s->n_id * u->add_id_dim != u->add_in)
        return err_set(e, ERR_INVAL,
                       "unet: projection_class_embeddings_input_dim %d is not %d and 5 or 6 ids",
                       u->add_in, s->n_pooled);
    return 0;
}

static int parts_open(struct pipe *p, struct sd *s, struct err *e)
{
    static const char *const name[3] = {"unet", "vae", "scheduler"};
    struct comp *c[3];
    int rc = pipe_parts_find(p, name, 3, c, e);
    if (!rc)
        rc = texts_open(p, s, e);
    if (!rc)
        rc = nsched_config_read(&p->sched, c[2]->cfg, e);
    if (!rc)
        rc = unet_open(&s->unet, p->weights, c[0], e);
    if (!rc)
        rc = vae_open(&p->vae, p->weights, c[1], e);
    return rc ? rc : check(p, s, e);
}

/* Whether the model's name, as its files give it, has this word. */
static bool named(const struct pipe *p, const char *word)
{
    const char *name = config_str(p->files->index, "_name_or_path", "");
    if (!*name && p->files->n_src) {
        const char *path = source_path(p->files->src[0]), *at = strrchr(path, '/');
        name = at ? at + 1 : path;
    }
    size_t n = strlen(word);
    for (; *name; name++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)name[i]) == word[i])
            i++;
        if (i == n)
            return true;
    }
    return false;
}

/* A single file brings no scheduler: what its name says of the training is all there is. A folder's own scheduler is
 * only moved to the spacing that such models were trained with. */
static void sched_by_name(struct pipe *p)
{
    struct nsched_config *c = &p->sched;
    const struct comp *sched = img_files_comp(p->files, "scheduler");
    bool own = sched && sched->dir[0];
    if (!own && named(p, "lcm")) {
        c->kind = NSCHED_LCM;
    } else if (named(p, "turbo") || named(p, "lightning")) {
        if (!own && (c->kind == NSCHED_PNDM || c->kind == NSCHED_DDIM))
            c->kind = NSCHED_EULER;
        if (c->kind == NSCHED_EULER || c->kind == NSCHED_EULER_A)
            c->spacing = SPACING_TRAILING;
    }
}

/* Distilled models make a picture in a few steps without guidance. Their schedulers say so: LCM's own, or Euler from
 * the last training step on ("trailing"), which plain models have only for zero terminal SNR. */
static void steps_set(struct pipe *p, const struct unet_info *u)
{
    const struct nsched_config *c = &p->sched;
    bool euler = c->kind == NSCHED_EULER || c->kind == NSCHED_EULER_A;
    bool few = euler && c->spacing == SPACING_TRAILING && !c->zero_snr;
    p->info.steps_default = 30;
    p->info.guidance_default = u->add_in ? 5.0f : 7.5f;
    if (c->kind == NSCHED_LCM || few) {
        p->info.steps_default = 4;
        p->info.guidance_default = 1;
    }
    if (u->guidance_dim) { /* the scale is an input, so it costs no second pass */
        p->embedded_guidance = true;
        p->info.guidance_default = 8.5f;
    }
}

/* PNDM has no name of its own in requests. */
static enum img_sampler sampler_of(enum nsched_kind k)
{
    switch (k) {
    case NSCHED_DDIM:
        return IMG_SAMPLER_DDIM;
    case NSCHED_EULER:
        return IMG_SAMPLER_EULER;
    case NSCHED_EULER_A:
        return IMG_SAMPLER_EULER_A;
    case NSCHED_DPMPP_2M:
        return IMG_SAMPLER_DPMPP_2M;
    case NSCHED_LCM:
        return IMG_SAMPLER_LCM;
    default:
        return IMG_SAMPLER_DEFAULT;
    }
}

/* The linear factors belong to an autoencoder, which its scale tells. */
static const float (*preview_of(const struct vae *v))[3]
{
    static const struct {
        double scale;
        const float (*factors)[3];
    } known[] = {
        {0.18215, latent_rgb_sd1}, {0.13025, latent_rgb_sdxl}, {0.588434, latent_rgb_tiny}};
    for (size_t i = 0; i < sizeof known / sizeof *known && vae_channels(v) == 4; i++)
        if (fabs(vae_scaling(v) - known[i].scale) < 1e-6)
            return known[i].factors;
    return NULL;
}

/* Any size of whole latents goes: the UNet takes odd maps. Small ones below 8 latents a side have nothing to show. */
static void info_set(struct pipe *p, const struct sd *s)
{
    const struct unet_info *u = unet_info(s->unet);
    p->c = u->c_out;
    p->c_extra = u->c_in - u->c_out;
    p->factor = vae_factor(p->vae);
    p->preview = preview_of(p->vae);
    int side = u->sample_size * p->factor;
    p->info = (struct eng_image_info){.size_default = side,
                                      .size_min = 8 * p->factor,
                                      .size_max = side > 4096 ? side : 4096,
                                      .size_step = p->factor,
                                      .pixels_max = (int64_t)2048 * 2048,
                                      .steps_max = 200,
                                      .guidance_max = 30,
                                      .negative = !u->guidance_dim,
                                      .edit = vae_has_encoder(p->vae),
                                      .prompt_tokens_max = s->n_tok,
                                      .sampler_default = sampler_of(p->sched.kind)};
    if (p->info.pixels_max < (int64_t)side * side)
        p->info.pixels_max = (int64_t)side * side;
    if (p->sched.karras)
        p->info.schedule_default = IMG_SCHEDULE_KARRAS;
    steps_set(p, u);
}

static int sd_open(struct pipe *p, struct err *e)
{
    struct sd *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for the pipeline");
    p->state = s;
    int rc = parts_open(p, s, e);
    if (rc)
        return rc;
    sched_by_name(p);
    info_set(p, s);
    p->zero_negative =
        s->skip && config_bool(p->files->index, "force_zeros_for_empty_prompt", true);
    if (!s->skip && p->sched.steps_offset != 1) {
        /* configurations older than the key: the reference's pipeline sets it too */
        log_debug("image", "scheduler: steps_offset=%d read as 1", p->sched.steps_offset);
        p->sched.steps_offset = 1;
    }
    return config_error(p->files->index, e);
}

static void sd_close(struct pipe *p)
{
    struct sd *s = p->state;
    if (!s)
        return;
    for (int i = 0; i < SD_CLIPS; i++) {
        clip_close(s->text[i].clip);
        tok_close(s->text[i].tok);
    }
    unet_close(s->unet);
    free(s);
    p->state = NULL;
}

/* ---- prompts ---- */

/* Host memory of one run of encoders. */
struct texts {
    int n;
    int32_t *ids;   /* [n, n_tok] */
    int32_t *start; /* [n + 1] */
    int32_t *at;    /* [n] the end token of each */
    float *states;  /* [n, n_tok, dim of one encoder] */
    float *pooled;  /* [n, n_pooled] or NULL */
};

static void texts_free(struct texts *t)
{
    free(t->ids);
    free(t->states);
}

/* Two blocks: the integers, the floats. */
static int texts_alloc(struct texts *t, const struct sd *s, int n)
{
    size_t ids = (size_t)n * (size_t)s->n_tok + 2 * (size_t)n + 1,
           states = (size_t)n * ((size_t)s->n_tok * (size_t)s->dim + (size_t)s->n_pooled);
    *t = (struct texts){.n = n};
    t->ids = mem_calloc(ids, sizeof *t->ids);
    t->states = mem_calloc(states, sizeof *t->states);
    if (!t->ids || !t->states)
        return ERR_NOMEM;
    t->start = t->ids + (size_t)n * (size_t)s->n_tok;
    t->at = t->start + n + 1;
    if (s->n_pooled)
        t->pooled = t->states + (size_t)n * (size_t)s->n_tok * (size_t)s->dim;
    return 0;
}

/* Ids of every text by the k-th encoder's tokenizer; the longest of the encoders' counts is the prompt's. */
static int texts_ids(const struct sd *s, int k, const char *const *text, struct texts *t,
                     struct img_cond **out)
{
    for (int i = 0; i < t->n; i++) {
        int32_t *ids = t->ids + (size_t)i * (size_t)s->n_tok;
        int n_real = 0;
        int rc = enc_clip_ids(s->text[k].tok, text[i], s->n_tok, s->text[k].pad, ids, &n_real);
        if (rc)
            return rc;
        t->start[i + 1] = t->start[i] + s->n_tok;
        t->at[i] = clip_eos_at(s->text[k].clip, ids, s->n_tok);
        if (out[i]->prompt_tokens < n_real)
            out[i]->prompt_tokens = n_real;
    }
    return 0;
}

/* The k-th encoder over all texts; its states become columns of every prompt's. Dry, only the run is counted. */
static int encoder_run(const struct sd *s, struct nn *n, int k, const char *const *text,
                       struct texts *t, struct img_cond **out)
{
    int rc = texts_ids(s, k, text, t, out);
    if (rc)
        return rc;
    struct clip *m = s->text[k].clip;
    bool last = k == s->n_text - 1;
    clip_run(
        m, n, &(struct enc_batch){t->n, t->ids, t->start},
        &(struct clip_out){
            .skip = s->skip, .states = t->states, .at = t->at, .pooled = last ? t->pooled : NULL});
    if (n->rc || n->dry)
        return 0;
    size_t d = (size_t)clip_dim(m), before = k ? (size_t)clip_dim(s->text[0].clip) : 0,
           all = (size_t)s->dim, n_tok = (size_t)s->n_tok, n_pooled = (size_t)s->n_pooled;
    for (size_t i = 0; i < (size_t)t->n; i++) {
        for (size_t r = 0; r < n_tok; r++)
            memcpy(out[i]->states + r * all + before, t->states + (i * n_tok + r) * d,
                   d * sizeof(float));
        if (last && t->pooled)
            memcpy(out[i]->pooled, t->pooled + i * n_pooled, n_pooled * sizeof(float));
    }
    return 0;
}

static int sd_encode(struct pipe *p, struct nn *n, const char *const *text, int n_text,
                     struct img_cond **out, struct err *e)
{
    struct sd *s = p->state;
    struct texts t;
    int rc = texts_alloc(&t, s, n_text);
    for (int i = 0; i < n_text && !rc; i++)
        if (!(out[i] = img_cond_new(s->n_tok, s->dim, s->n_pooled)))
            rc = ERR_NOMEM;
    for (int k = 0; k < s->n_text && !rc; k++)
        rc = encoder_run(s, n, k, text, &t, out);
    texts_free(&t);
    return rc ? err_set(e, rc, "encoding a prompt: %s", err_name(rc)) : 0;
}

/* ---- denoising, pixels ---- */

/* Sizes in pixels, as in training: what was not cropped and not scaled. */
static void ids_set(const struct sd *s, const struct img_row *r, struct unet_row *u)
{
    float h = (float)r->height, w = (float)r->width;
    const float six[6] = {h, w, 0, 0, h, w}; /* original size, crop, target size */
    u->n_id = s->n_id;
    memcpy(u->id, six, sizeof six);
    if (s->n_id == 5)
        u->id[4] = r->negative ? SCORE_NEGATIVE : SCORE;
}

static void sd_denoise(struct pipe *p, struct nn *n, const struct img_row *row, int n_row)
{
    struct sd *s = p->state;
    struct unet_row *u = mem_calloc((size_t)n_row, sizeof *u);
    if (!u) {
        nn_done(n, "unet", ERR_NOMEM);
        return;
    }
    for (int i = 0; i < n_row; i++) {
        const struct img_row *r = &row[i];
        u[i] = (struct unet_row){.h = r->h,
                                 .w = r->w,
                                 .latent = r->latent,
                                 .extra = r->extra,
                                 .timestep = r->timestep,
                                 .guidance = r->guidance,
                                 .n_tok = r->cond->n_tok,
                                 .context = r->cond->states,
                                 .pooled = r->cond->pooled,
                                 .n_pooled = r->cond->n_pooled,
                                 .out = r->out};
        ids_set(s, r, &u[i]);
    }
    unet_run(s->unet, n, u, n_row);
    free(u);
}

const struct pipe_class pipe_sd = {
    .name = "StableDiffusionPipeline StableDiffusionImg2ImgPipeline StableDiffusionInpaintPipeline "
            "LatentConsistencyModelPipeline LatentConsistencyModelImg2ImgPipeline",
    .open = sd_open,
    .close = sd_close,
    .encode = sd_encode,
    .denoise = sd_denoise,
    .decode = pipe_vae_decode,
    .encode_image = pipe_vae_encode,
};
const struct pipe_class pipe_sdxl = {
    .name = "StableDiffusionXLPipeline StableDiffusionXLImg2ImgPipeline "
            "StableDiffusionXLInpaintPipeline",
    .open = sd_open,
    .close = sd_close,
    .encode = sd_encode,
    .denoise = sd_denoise,
    .decode = pipe_vae_decode,
    .encode_image = pipe_vae_encode,
};
