/* The parts that most pipelines open alike. See pipe_parts.h. */
#include "engine/image/pipe_parts.h"
#include "engine/image/sched_config.h"
#include "engine/image/vae.h"

int pipe_parts_find(struct pipe *p, const char *const *name, int n, struct comp **out,
                    struct err *e)
{
    for (int i = 0; i < n; i++)
        if (!(out[i] = img_files_comp(p->files, name[i])))
            return err_set(e, ERR_NOTFOUND, "%s has no %s", p->files->pipeline, name[i]);
    return 0;
}

int pipe_flow_open(struct pipe *p, const struct dit_info *dit, struct err *e)
{
    static const char *const name[] = {"vae", "scheduler"};
    struct comp *c[2];
    int rc;
    if ((rc = pipe_parts_find(p, name, 2, c, e)) || (rc = vae_open(&p->vae, p->weights, c[0], e)) ||
        (rc = nsched_config_read(&p->sched, c[1]->cfg, e)))
        return rc;
    if (vae_channels(p->vae) != dit->channels)
        return err_set(e, ERR_INVAL, "the vae has %d channels, the transformer %d",
                       vae_channels(p->vae), dit->channels);
    if (p->sched.kind != NSCHED_FLOW)
        return err_set(e, ERR_UNSUPPORTED, "scheduler: a flow matching one is needed");
    return 0;
}

void pipe_flow_info(struct pipe *p, const struct dit_info *dit)
{
    p->c = dit->channels;
    p->factor = vae_factor(p->vae);
    p->patch = dit->patch;
    int step = p->factor * p->patch;
    p->info = (struct eng_image_info){.size_min = 4 * step,
                                      .size_max = 4096,
                                      .size_step = step,
                                      .pixels_max = (int64_t)2048 * 2048,
                                      .steps_max = 200,
                                      .guidance_max = 30,
                                      .edit = vae_has_encoder(p->vae),
                                      .sampler_default = IMG_SAMPLER_FLOW_EULER};
}

int pipe_lm_open(struct pipe *p, struct pipe_lm *m, int skip, struct comp **dit, struct err *e)
{
    static const char *const name[] = {"tokenizer", "text_encoder", "transformer", "vae",
                                       "scheduler"};
    struct comp *c[5];
    int rc;
    if ((rc = pipe_parts_find(p, name, 5, c, e)) || (rc = enc_tokenizer_open(&m->tok, c[0], e)) ||
        (rc = lm_enc_open(&m->lm, p->weights, c[1], skip, e)))
        return rc;
    m->prompt.tok = m->tok;
    m->prompt.lm = m->lm;
    m->prompt.skip = skip;
    *dit = c[2];
    return 0;
}

int pipe_lm_fit(struct pipe *p, const struct pipe_lm *m, const struct dit_info *dit, struct err *e)
{
    int rc = pipe_flow_open(p, dit, e);
    if (!rc && lm_enc_dim(m->lm) != dit->text_dim)
        rc = err_set(e, ERR_INVAL, "the text encoder's states are %d wide, the transformer's %d",
                     lm_enc_dim(m->lm), dit->text_dim);
    return rc;
}

void pipe_lm_close(struct pipe_lm *m)
{
    tok_close(m->tok);
    lm_enc_close(m->lm);
}

void pipe_vae_decode(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in)
{
    vae_decode(p->vae, n, in, n_in);
}

void pipe_vae_encode(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in)
{
    vae_encode(p->vae, n, in, n_in);
}
