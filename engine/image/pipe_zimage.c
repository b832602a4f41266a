/* Z-Image (Z-Image team 2025), diffusers' ZImagePipeline: a Qwen3 text encoder's last but one hidden layer, a transformer
 * of one stream, FLUX.1's autoencoder. guidance_scale g adds g times the difference of the two predictions, so 0 is one
 * pass: what the distilled Turbo wants. */
#include "engine/base/mem.h"
#include "engine/image/dit_zimage.h"
#include "engine/image/latent_rgb.h"
#include "engine/image/lm_prompt.h"
#include "engine/image/sched_config.h"
#include "engine/image/vae.h"

#include <stdlib.h>

#define PROMPT_TOKENS 512

struct zimage {
    struct tokenizer *tok;
    struct lm_enc *lm;
    struct dit_zimage *dit;
    struct vae *vae;
    struct lm_prompt prompt;
};

/* Every component, and that they fit each other. What was opened before an error is closed by zimage_close. */
static int parts_open(struct pipe *p, struct zimage *z, struct err *e)
{
    static const char *const names[] = {"tokenizer", "text_encoder", "transformer", "vae",
                                        "scheduler"};
    struct comp *c[5];
    int rc;
    for (int i = 0; i < 5; i++)
        if (!(c[i] = img_files_comp(p->files, names[i])))
            return err_set(e, ERR_NOTFOUND, "%s has no %s", p->files->pipeline, names[i]);
    if ((rc = enc_tokenizer_open(&z->tok, c[0], e)) ||
        (rc = lm_enc_open(&z->lm, p->weights, c[1], 1, e)) ||
        (rc = dit_zimage_open(&z->dit, p->weights, c[2], e)) ||
        (rc = vae_open(&z->vae, p->weights, c[3], e)) ||
        (rc = nsched_config_read(&p->sched, c[4]->cfg, e)))
        return rc;
    if (lm_enc_dim(z->lm) != dit_zimage_text_dim(z->dit))
        return err_set(e, ERR_INVAL, "the text encoder's states are %d wide, the transformer's %d",
                       lm_enc_dim(z->lm), dit_zimage_text_dim(z->dit));
    if (vae_channels(z->vae) != dit_zimage_channels(z->dit))
        return err_set(e, ERR_INVAL, "the vae has %d channels, the transformer %d",
                       vae_channels(z->vae), dit_zimage_channels(z->dit));
    if (p->sched.kind != NSCHED_FLOW)
        return err_set(e, ERR_UNSUPPORTED, "scheduler: a flow matching one is needed");
    return 0;
}

static int zimage_open(struct pipe *p, struct err *e)
{
    struct zimage *z = mem_calloc(1, sizeof *z);
    if (!z)
        return err_set(e, ERR_NOMEM, "no memory for the pipeline");
    p->state = z;
    int rc = parts_open(p, z, e);
    if (rc)
        return rc;
    /* Qwen3's chat template for one user message, with thinking on: nothing is put behind the assistant's line. */
    z->prompt = (struct lm_prompt){.tok = z->tok,
                                   .lm = z->lm,
                                   .before = "<|im_start|>user\n",
                                   .after = "<|im_end|>\n<|im_start|>assistant\n",
                                   .skip = 1,
                                   .tokens_max = PROMPT_TOKENS};
    p->sched.sigmas_given = true;
    p->c = vae_channels(z->vae);
    p->factor = vae_factor(z->vae);
    p->patch = dit_zimage_patch(z->dit);
    p->guidance_off = 0;
    p->preview = p->c == 16 ? latent_rgb_flux : NULL;
    int step = p->factor * p->patch;
    /* Both models are of one shape; the distilled one is known by its smaller shift. */
    bool turbo = p->sched.shift <= 3;
    p->info = (struct eng_image_info){.size_default = 128 * p->factor / step * step,
                                      .size_min = 4 * step,
                                      .size_max = 4096,
                                      .size_step = step,
                                      .pixels_max = (int64_t)2048 * 2048,
                                      .steps_default = turbo ? 8 : 50,
                                      .steps_max = 200,
                                      .guidance_default = turbo ? 0 : 4,
                                      .guidance_max = 30,
                                      .negative = true,
                                      .edit = vae_has_encoder(z->vae),
                                      .prompt_tokens_max = PROMPT_TOKENS,
                                      .sampler_default = IMG_SAMPLER_FLOW_EULER};
    return 0;
}

static void zimage_close(struct pipe *p)
{
    struct zimage *z = p->state;
    if (!z)
        return;
    tok_close(z->tok);
    lm_enc_close(z->lm);
    dit_zimage_close(z->dit);
    vae_close(z->vae);
    free(z);
    p->state = NULL;
}

/* States of the prompts, and what the transformer makes of them whatever the timestep. */
static int zimage_encode(struct pipe *p, struct nn *n, const char *const *text, int n_text,
                         struct img_cond **out, struct err *e)
{
    struct zimage *z = p->state;
    struct lm_states s;
    float *at[ENC_TEXTS];
    int rc = lm_prompt_run(&z->prompt, n, text, n_text, &s, e);
    for (int i = 0; i < n_text && !rc; i++) {
        int n_tok = s.start[i + 1] - s.start[i];
        out[i] = img_cond_new(dit_zimage_caption_rows(n_tok), dit_zimage_dim(z->dit), 0);
        if (!out[i]) {
            rc = err_set(e, ERR_NOMEM, "no memory for a prompt");
            break;
        }
        out[i]->prompt_tokens = n_tok;
        at[i] = out[i]->states;
    }
    if (!rc)
        dit_zimage_caption(z->dit, n,
                           &(struct dit_zimage_text){
                               .n = n_text, .start = s.start, .states = s.states, .out = at});
    lm_prompt_free(&s);
    return rc;
}

static void zimage_denoise(struct pipe *p, struct nn *n, const struct img_row *row, int n_row)
{
    dit_zimage_run(((struct zimage *)p->state)->dit, n, row, n_row);
}

/* An effective scale of 1 + scale in the usual way of counting. */
static void zimage_guide(float *cond, const float *uncond, float scale, int c, int h, int w)
{
    size_t n = (size_t)c * (size_t)h * (size_t)w;
    for (size_t i = 0; i < n; i++)
        cond[i] += scale * (cond[i] - uncond[i]);
}

static void zimage_decode(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in)
{
    vae_decode(((struct zimage *)p->state)->vae, n, in, n_in);
}

static void zimage_encode_image(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in)
{
    vae_encode(((struct zimage *)p->state)->vae, n, in, n_in);
}

const struct pipe_class pipe_zimage = {
    .name = "ZImagePipeline ZImageImg2ImgPipeline ZImageInpaintPipeline",
    .open = zimage_open,
    .close = zimage_close,
    .encode = zimage_encode,
    .denoise = zimage_denoise,
    .guide = zimage_guide,
    .decode = zimage_decode,
    .encode_image = zimage_encode_image,
};
