/* Stable Diffusion 3 and 3.5 (Esser et al. 2024), diffusers' StableDiffusion3Pipeline: two CLIP encoders and a T5, which
 * may be left out, a transformer of two streams, AutoencoderKL. A prompt is
 *
 *   rows     CLIP 1 | CLIP 2 | zeros      77, penultimate hidden states side by side
 *            T5                           256, filled up with the padding token, which is seen
 *   pooled   CLIP 1 | CLIP 2              projected */
#include "engine/base/mem.h"
#include "engine/image/dit_sd3.h"
#include "engine/image/latent_rgb.h"
#include "engine/image/pipe_parts.h"

#include <stdlib.h>
#include <string.h>

#define T5_TOKENS 256

struct sd3 {
    struct {
        struct clip *clip;
        struct tokenizer *tok;
        int32_t pad;
    } text[2];
    struct t5 *t5; /* NULL: its states are zeros */
    struct tokenizer *t5_tok;
    int n_clip, n_tok, dim,
        n_pooled; /* rows of CLIP; rows, columns and pooled values of a prompt */
    struct dit_sd3 *dit;
};

/* ---- opening ---- */

/* The two CLIPs, whose last layers the pooled text needs although the states stop one before, and T5 if it is there. */
static int texts_open(struct pipe *p, struct sd3 *s, int pooled_dim, struct err *e)
{
    static const char *const encoder[2] = {"text_encoder", "text_encoder_2"};
    static const char *const tokenizer[3] = {"tokenizer", "tokenizer_2", "tokenizer_3"};
    struct comp *c, *t;
    int rc = 0, wide = 0;
    for (int i = 0; i < 2; i++) {
        if ((rc = pipe_parts_find(p, &encoder[i], 1, &c, e)) ||
            (rc = pipe_parts_find(p, &tokenizer[i], 1, &t, e)) ||
            (rc = enc_tokenizer_open(&s->text[i].tok, t, e)) ||
            (rc = clip_open(&s->text[i].clip, p->weights, c, 0, e)))
            return rc;
        s->text[i].pad = enc_pad_id(s->text[i].tok, t);
        s->n_pooled += clip_projection(s->text[i].clip);
        wide += clip_dim(s->text[i].clip);
    }
    s->n_clip = clip_positions(s->text[0].clip);
    if (clip_positions(s->text[1].clip) != s->n_clip)
        return err_set(e, ERR_INVAL, "text_encoder has %d positions, text_encoder_2 %d", s->n_clip,
                       clip_positions(s->text[1].clip));
    s->n_tok = s->n_clip + T5_TOKENS;
    if (wide > s->dim || s->n_pooled != pooled_dim)
        return err_set(
            e, ERR_INVAL,
            "the CLIP encoders give %d wide states and %d pooled values, the transformer "
            "reads %d and %d",
            wide, s->n_pooled, s->dim, pooled_dim);
    c = img_files_comp(p->files, "text_encoder_3");
    if (!c || !c->map.src)
        return 0;
    if ((rc = pipe_parts_find(p, &tokenizer[2], 1, &t, e)) ||
        (rc = enc_tokenizer_open(&s->t5_tok, t, e)) || (rc = t5_open(&s->t5, p->weights, c, e)))
        return rc;
    if (t5_dim(s->t5) != s->dim)
        return err_set(e, ERR_INVAL, "text_encoder_3's states are %d wide, the transformer's %d",
                       t5_dim(s->t5), s->dim);
    return 0;
}

/* Every component, and that they fit each other. What was opened before an error is closed by sd3_close. */
static int parts_open(struct pipe *p, struct sd3 *s, struct dit_info *dit, struct err *e)
{
    static const char *const name[3] = {"transformer", "vae", "scheduler"};
    struct comp *c[3];
    int rc;
    if ((rc = pipe_parts_find(p, name, 3, c, e)) ||
        (rc = dit_sd3_open(&s->dit, p->weights, c[0], e)))
        return rc;
    *dit = dit_sd3_info(s->dit);
    s->dim = dit->text_dim;
    rc = texts_open(p, s, dit->pooled_dim, e);
    return rc ? rc : pipe_flow_open(p, dit, e);
}

static int sd3_open(struct pipe *p, struct err *e)
{
    struct sd3 *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for the pipeline");
    p->state = s;
    struct dit_info dit;
    int rc = parts_open(p, s, &dit, e);
    if (rc)
        return rc;
    pipe_flow_info(p, &dit);
    p->preview = p->c == 16 ? latent_rgb_sd3 : NULL;
    int step = p->info.size_step, most = dit_sd3_tokens_max(s->dit) * step;
    int side = dit_sd3_sample_size(s->dit) * p->factor / step * step;
    p->info.size_default = side < most ? side : most;
    p->info.size_max = most < 4096 ? most : 4096;
    p->info.steps_default = 28;
    p->info.guidance_default = 7;
    p->info.negative = true;
    p->info.prompt_tokens_max = T5_TOKENS;
    return 0;
}

static void sd3_close(struct pipe *p)
{
    struct sd3 *s = p->state;
    if (!s)
        return;
    for (int i = 0; i < 2; i++) {
        clip_close(s->text[i].clip);
        tok_close(s->text[i].tok);
    }
    t5_close(s->t5);
    tok_close(s->t5_tok);
    dit_sd3_close(s->dit);
    free(s);
    p->state = NULL;
}

/* ---- prompts ---- */

/* Host memory of one encoder's run: n texts of `len` ids. */
struct texts {
    int n, len;
    int32_t *ids, *start, *at; /* [n, len], [n + 1], [n] */
    float *states, *pooled;    /* [n, len, dim], [n, projection] */
};

static int texts_alloc(struct texts *t, int n, int len, int dim, int n_pooled)
{
    size_t ids = (size_t)n * (size_t)len, states;
    *t = (struct texts){.n = n, .len = len};
    if (!ck_mul(ids, (size_t)dim, &states) ||
        !ck_add(states, (size_t)n * (size_t)n_pooled, &states))
        return ERR_NOMEM;
    t->ids = mem_calloc(ids + 2 * (size_t)n + 1, sizeof *t->ids);
    t->states = mem_calloc(states, sizeof *t->states);
    if (!t->ids || !t->states)
        return ERR_NOMEM;
    t->start = t->ids + ids;
    t->at = t->start + n + 1;
    t->pooled = t->states + ids * (size_t)dim;
    for (int i = 0; i < n; i++)
        t->start[i + 1] = t->start[i] + len;
    return 0;
}

static void texts_free(struct texts *t)
{
    free(t->ids);
    free(t->states);
}

/* Columns [at, at + dim) of rows [from, from + len) of every prompt. */
static void states_copy(const struct texts *t, const struct sd3 *s, int from, int at, int dim,
                        struct img_cond **out)
{
    size_t d = (size_t)dim, all = (size_t)s->dim, len = (size_t)t->len;
    for (size_t i = 0; i < (size_t)t->n; i++)
        for (size_t r = 0; r < len; r++)
            memcpy(out[i]->states + ((size_t)from + r) * all + (size_t)at,
                   t->states + (i * len + r) * d, d * sizeof(float));
}

/* The k-th CLIP's part of all prompts. Returns errors of the host; those of the run stay in n. */
static int clip_texts(const struct sd3 *s, struct nn *n, int k, const char *const *text,
                      struct texts *t, struct img_cond **out)
{
    struct clip *m = s->text[k].clip;
    int rc = texts_alloc(t, t->n, s->n_clip, clip_dim(m), clip_projection(m));
    for (int i = 0; i < t->n && !rc; i++) {
        int32_t *ids = t->ids + (ptrdiff_t)i * t->len;
        int n_real;
        rc = enc_clip_ids(s->text[k].tok, text[i], t->len, s->text[k].pad, ids, &n_real);
        t->at[i] = rc ? 0 : clip_eos_at(m, ids, t->len);
        if (!rc && out[i]->prompt_tokens < n_real)
            out[i]->prompt_tokens = n_real;
    }
    if (rc)
        return rc;
    clip_run(m, n, &(struct enc_batch){t->n, t->ids, t->start},
             &(struct clip_out){.skip = 1, .states = t->states, .at = t->at, .pooled = t->pooled});
    if (n->dry || n->rc)
        return 0;
    states_copy(t, s, 0, k ? clip_dim(s->text[0].clip) : 0, clip_dim(m), out);
    size_t d = (size_t)clip_projection(m), at = k ? (size_t)clip_projection(s->text[0].clip) : 0;
    for (size_t i = 0; i < (size_t)t->n; i++)
        memcpy(out[i]->pooled + at, t->pooled + i * d, d * sizeof(float));
    return 0;
}

/* T5's rows of all prompts; without one they stay zeros. */
static int t5_texts(const struct sd3 *s, struct nn *n, const char *const *text, struct texts *t,
                    struct img_cond **out)
{
    int rc = texts_alloc(t, t->n, T5_TOKENS, s->dim, 0);
    for (int i = 0; i < t->n && !rc; i++) {
        int n_real;
        rc = enc_t5_ids(s->t5_tok, text[i], t->len, t->ids + (ptrdiff_t)i * t->len, &n_real);
        if (!rc && out[i]->prompt_tokens < n_real)
            out[i]->prompt_tokens = n_real;
    }
    if (rc)
        return rc;
    t5_run(s->t5, n, &(struct enc_batch){t->n, t->ids, t->start}, t->states);
    if (!n->dry && !n->rc)
        states_copy(t, s, s->n_clip, 0, s->dim, out);
    return 0;
}

static int sd3_encode(struct pipe *p, struct nn *n, const char *const *text, int n_text,
                      struct img_cond **out, struct err *e)
{
    struct sd3 *s = p->state;
    int rc = 0;
    for (int i = 0; i < n_text && !rc; i++)
        if (!(out[i] = img_cond_new(s->n_tok, s->dim, s->n_pooled)))
            rc = ERR_NOMEM;
    for (int k = 0; k < (s->t5 ? 3 : 2) && !rc; k++) {
        struct texts t = {.n = n_text};
        rc = k < 2 ? clip_texts(s, n, k, text, &t, out) : t5_texts(s, n, text, &t, out);
        texts_free(&t);
    }
    return rc ? err_set(e, rc, "encoding a prompt: %s", err_name(rc)) : 0;
}

/* ---- denoising, pixels ---- */

static void sd3_denoise(struct pipe *p, struct nn *n, const struct img_row *row, int n_row)
{
    dit_sd3_run(((struct sd3 *)p->state)->dit, n, row, n_row);
}

const struct pipe_class pipe_sd3 = {
    .name = "StableDiffusion3Pipeline StableDiffusion3Img2ImgPipeline "
            "StableDiffusion3InpaintPipeline",
    .open = sd3_open,
    .close = sd3_close,
    .encode = sd3_encode,
    .denoise = sd3_denoise,
    .decode = pipe_vae_decode,
    .encode_image = pipe_vae_encode,
};
