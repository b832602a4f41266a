/* Qwen-Image (Wu et al. 2025), diffusers' QwenImagePipeline: the text side of Qwen2.5-VL, a transformer of two streams,
 * Wan's autoencoder on one frame, guidance whose result keeps the length of the conditional prediction. */
#include "engine/base/mem.h"
#include "engine/image/dit_qwen.h"
#include "engine/image/latent_rgb.h"
#include "engine/image/pipe_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_TOKENS 512

struct qwen {
    struct pipe_lm text;
    struct dit_qwen *dit;
};

static const char before[] =
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, "
    "text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
static const char after[] = "<|im_end|>\n<|im_start|>assistant\n";
#define TEMPLATE_TOKENS 34 /* of `before`: not seen by the transformer */

static int qwen_open(struct pipe *p, struct err *e)
{
    struct qwen *q = mem_calloc(1, sizeof *q);
    if (!q)
        return err_set(e, ERR_NOMEM, "no memory for the pipeline");
    p->state = q;
    struct comp *c;
    int rc = pipe_lm_open(p, &q->text, 0, &c, e);
    rc = rc ? rc : dit_qwen_open(&q->dit, p->weights, c, e);
    if (rc)
        return rc;
    struct dit_info dit = dit_qwen_info(q->dit);
    rc = pipe_lm_fit(p, &q->text, &dit, e);
    if (rc)
        return rc;
    q->text.prompt.before = before;
    q->text.prompt.after = after;
    q->text.prompt.drop = TEMPLATE_TOKENS;
    q->text.prompt.tokens_max = PROMPT_TOKENS;
    p->sched.sigmas_given = true;
    pipe_flow_info(p, &dit);
    p->preview = p->c == 16 ? latent_rgb_wan : NULL;
    p->info.size_default = 166 * p->factor / p->info.size_step * p->info.size_step;
    p->info.steps_default = 50;
    p->info.guidance_default = 4;
    p->info.negative = true;
    p->info.prompt_tokens_max = PROMPT_TOKENS;
    return 0;
}

static void qwen_close(struct pipe *p)
{
    struct qwen *q = p->state;
    if (!q)
        return;
    pipe_lm_close(&q->text);
    dit_qwen_close(q->dit);
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
    size_t dim = (size_t)lm_enc_dim(q->text.lm);
    for (int i = 0; i < n_text && i < ENC_TEXTS; i++)
        some[i] = text[i][0] ? text[i] : " "; /* the negative prompt that the model's authors use */
    int rc = lm_prompt_run(&q->text.prompt, n, some, n_text, &s, e);
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

const struct pipe_class pipe_qwen = {
    .name = "QwenImagePipeline QwenImageImg2ImgPipeline QwenImageInpaintPipeline",
    .open = qwen_open,
    .close = qwen_close,
    .encode = qwen_encode,
    .denoise = qwen_denoise,
    .guide = qwen_guide,
    .decode = pipe_vae_decode,
    .encode_image = pipe_vae_encode,
};
