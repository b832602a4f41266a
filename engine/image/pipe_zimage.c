/* Z-Image (Z-Image team 2025), diffusers' ZImagePipeline: a Qwen3 text encoder's last but one hidden layer, a transformer
 * of one stream, FLUX.1's autoencoder. guidance_scale g adds g times the difference of the two predictions, so 0 is one
 * pass: what the distilled Turbo wants. */
#include "engine/base/mem.h"
#include "engine/image/dit_zimage.h"
#include "engine/image/latent_rgb.h"
#include "engine/image/pipe_parts.h"

#include <stdlib.h>

#define PROMPT_TOKENS 512

struct zimage {
    struct pipe_lm text;
    struct dit_zimage *dit;
};

static int zimage_open(struct pipe *p, struct err *e)
{
    struct zimage *z = mem_calloc(1, sizeof *z);
    if (!z)
        return err_set(e, ERR_NOMEM, "no memory for the pipeline");
    p->state = z;
    struct comp *c;
    int rc = pipe_lm_open(p, &z->text, 1, &c, e);
    rc = rc ? rc : dit_zimage_open(&z->dit, p->weights, c, e);
    if (rc)
        return rc;
    struct dit_info dit = dit_zimage_info(z->dit);
    rc = pipe_lm_fit(p, &z->text, &dit, e);
    if (rc)
        return rc;
    /* Qwen3's chat template for one user message, with thinking on: nothing is put behind the assistant's line. */
    z->text.prompt.before = "<|im_start|>user\n";
    z->text.prompt.after = "<|im_end|>\n<|im_start|>assistant\n";
    z->text.prompt.tokens_max = PROMPT_TOKENS;
    p->sched.sigmas_given = true;
    pipe_flow_info(p, &dit);
    p->guidance_off = 0;
    p->preview = p->c == 16 ? latent_rgb_flux : NULL;
    /* Both models are of one shape; the distilled one is known by its smaller shift. */
    bool turbo = p->sched.shift <= 3;
    p->info.size_default = 128 * p->factor / p->info.size_step * p->info.size_step;
    p->info.steps_default = turbo ? 8 : 50;
    p->info.guidance_default = turbo ? 0 : 4;
    p->info.negative = true;
    p->info.prompt_tokens_max = PROMPT_TOKENS;
    return 0;
}

static void zimage_close(struct pipe *p)
{
    struct zimage *z = p->state;
    if (!z)
        return;
    pipe_lm_close(&z->text);
    dit_zimage_close(z->dit);
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
    int rc = lm_prompt_run(&z->text.prompt, n, text, n_text, &s, e);
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

const struct pipe_class pipe_zimage = {
    .name = "ZImagePipeline ZImageImg2ImgPipeline ZImageInpaintPipeline",
    .open = zimage_open,
    .close = zimage_close,
    .encode = zimage_encode,
    .denoise = zimage_denoise,
    .guide = zimage_guide,
    .decode = pipe_vae_decode,
    .encode_image = pipe_vae_encode,
};
