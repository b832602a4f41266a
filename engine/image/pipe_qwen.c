/* Qwen-Image (Wu et al. 2025), diffusers' QwenImagePipeline: the text side of Qwen2.5-VL, a transformer of two streams,
 * Wan's autoencoder on one frame, guidance whose result keeps the length of the conditional prediction. */
#include "engine/base/mem.h"
#include "engine/image/dit_qwen.h"
#include "engine/image/latent_rgb.h"
#include "engine/image/lm_prompt.h"
#include "engine/image/sched_config.h"
#include "engine/image/vae.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_TOKENS 512

struct qwen {
    struct tokenizer *tok;
    struct lm_enc *lm;
    struct dit_qwen *dit;
    struct vae *vae;
    struct lm_prompt prompt;
};

static const char before[] =
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, "
    "text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
static const char after[] = "<|im_end|>\n<|im_start|>assistant\n";
#define TEMPLATE_TOKENS 34 /* of `before`: not seen by the transformer */

/* Every component, and that they fit each other. What was opened before an error is closed by qwen_close. */
static int parts_open(struct pipe *p, struct qwen *q, struct err *e)
{
    static const char *const names[] = {"tokenizer", "text_encoder", "transformer", "vae",
                                        "scheduler"};
    struct comp *c[5];
    int rc;
    for (int i = 0; i < 5; i++)
        if (!(c[i] = img_files_comp(p->files, names[i])))
            return err_set(e, ERR_NOTFOUND, "%s has no %s", p->files->pipeline, names[i]);
    if ((rc = enc_tokenizer_open(&q->tok, c[0], e)) ||
        (rc = lm_enc_open(&q->lm, p->weights, c[1], 0, e)) ||
        (rc = dit_qwen_open(&q->dit, p->weights, c[2], e)) ||
        (rc = vae_open(&q->vae, p->weights, c[3], e)) ||
        (rc = nsched_config_read(&p->sched, c[4]->cfg, e)))
        return rc;
    if (lm_enc_dim(q->lm) != dit_qwen_text_dim(q->dit))
        return err_set(e, ERR_INVAL, "the text encoder's states are %d wide, the transformer's %d",
                       lm_enc_dim(q->lm), dit_qwen_text_dim(q->dit));
    if (vae_channels(q->vae) != dit_qwen_channels(q->dit))
        return err_set(e, ERR_INVAL, "the vae has %d channels, the transformer %d",
                       vae_channels(q->vae), dit_qwen_channels(q->dit));
    if (p->sched.kind != NSCHED_FLOW)
        return err_set(e, ERR_UNSUPPORTED, "scheduler: a flow matching one is needed");
    return 0;
}

static int qwen_open(struct pipe *p, struct err *e)
{
    struct qwen *q = mem_calloc(1, sizeof *q);
    if (!q)
        return err_set(e, ERR_NOMEM, "no memory for the pipeline");
    p->state = q;
    int rc = parts_open(p, q, e);
    if (rc)
        return rc;
    q->prompt = (struct lm_prompt){.tok = q->tok,
                                   .lm = q->lm,
                                   .before = before,
                                   .after = after,
                                   .drop = TEMPLATE_TOKENS,
                                   .tokens_max = PROMPT_TOKENS};
    p->sched.sigmas_given = true;
    p->c = vae_channels(q->vae);
    p->factor = vae_factor(q->vae);
    p->patch = dit_qwen_patch(q->dit);
    p->preview = p->c == 16 ? latent_rgb_wan : NULL;
    int step = p->factor * p->patch;
    p->info = (struct eng_image_info){.size_default = 166 * p->factor / step * step,
                                      .size_min = 4 * step,
                                      .size_max = 4096,
                                      .size_step = step,
                                      .pixels_max = (int64_t)2048 * 2048,
                                      .steps_default = 50,
                                      .steps_max = 200,
                                      .guidance_default = 4,
                                      .guidance_max = 30,
                                      .negative = true,
                                      .edit = vae_has_encoder(q->vae),
                                      .prompt_tokens_max = PROMPT_TOKENS,
                                      .sampler_default = IMG_SAMPLER_FLOW_EULER};
    return 0;
}

static void qwen_close(struct pipe *p)
{
    struct qwen *q = p->state;
    if (!q)
        return;
    tok_close(q->tok);
    lm_enc_close(q->lm);
    dit_qwen_close(q->dit);
    vae_close(q->vae);
    free(q);
    p->state = NULL;
}

/* out[i]->states: the last hidden states of the prompt's own tokens and the template's end. */
static int qwen_encode(struct pipe *p, struct nn *n, const char *const *text, int n_text,
                       struct img_cond **out, struct err *e)
{
    struct qwen *q = p->state;
    const char *some[ENC_TEXTS];
    struct lm_states s;
    size_t dim = (size_t)lm_enc_dim(q->lm);
    for (int i = 0; i < n_text && i < ENC_TEXTS; i++)
        some[i] = text[i][0] ? text[i] : " "; /* the negative prompt that the model's authors use */
    int rc = lm_prompt_run(&q->prompt, n, some, n_text, &s, e);
    if (rc)
        return rc;
    for (int i = 0; i < n_text && !rc; i++) {
        int n_tok = s.start[i + 1] - s.start[i];
        out[i] = img_cond_new(n_tok, (int)dim, 0);
        if (!out[i]) {
            rc = err_set(e, ERR_NOMEM, "no memory for a prompt");
            break;
        }
        out[i]->prompt_tokens = n_tok;
        if (!n->dry && !n->rc)
            memcpy(out[i]->states, s.states + (size_t)s.start[i] * dim,
                   (size_t)n_tok * dim * sizeof(float));
    }
    lm_prompt_free(&s);
    return rc;
}

static void qwen_denoise(struct pipe *p, struct nn *n, const struct img_row *row, int n_row)
{
    dit_qwen_run(((struct qwen *)p->state)->dit, n, row, n_row);
}

/* Each token, all channels of 2 x 2 latents, is guided and then brought back to the length that the conditional
 * prediction has. */
static void qwen_guide(float *cond, const float *uncond, float scale, int c, int h, int w)
{
    size_t map = (size_t)h * (size_t)w, row = (size_t)w;
    for (int y = 0; y < h; y += 2)
        for (int x = 0; x < w; x += 2) {
            double was = 0, is = 0;
            size_t at = (size_t)y * row + (size_t)x, one[4] = {at, at + 1, at + row, at + row + 1};
            for (int k = 0; k < 4 * c; k++) {
                size_t i = (size_t)(k / 4) * map + one[k % 4];
                float guided = uncond[i] + scale * (cond[i] - uncond[i]);
                was += (double)cond[i] * (double)cond[i];
                is += (double)guided * (double)guided;
                cond[i] = guided;
            }
            float back = is > 0 ? (float)sqrt(was / is) : 1;
            for (int k = 0; k < 4 * c; k++)
                cond[(size_t)(k / 4) * map + one[k % 4]] *= back;
        }
}

static void qwen_decode(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in)
{
    vae_decode(((struct qwen *)p->state)->vae, n, in, n_in);
}

static void qwen_encode_image(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in)
{
    vae_encode(((struct qwen *)p->state)->vae, n, in, n_in);
}

const struct pipe_class pipe_qwen = {
    .name = "QwenImagePipeline QwenImageImg2ImgPipeline QwenImageInpaintPipeline",
    .open = qwen_open,
    .close = qwen_close,
    .encode = qwen_encode,
    .denoise = qwen_denoise,
    .guide = qwen_guide,
    .decode = qwen_decode,
    .encode_image = qwen_encode_image,
};
