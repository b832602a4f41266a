/* Opening an image model: files, device, pipelines, limits. See model.h. */
#include "engine/backend.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/image/tile.h"
#include "engine/image/vae.h"
#include "engine/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COND_BYTES (64u << 20)

#define PIPELINE(sym) extern const struct pipe_class sym;
#include "engine/image/pipelines.def"
#undef PIPELINE
static const struct pipe_class *const classes[] = {
#define PIPELINE(sym) &sym,
#include "engine/image/pipelines.def"
#undef PIPELINE
    NULL};

/* A class's name is a list: "StableDiffusionPipeline StableDiffusionImg2ImgPipeline". */
static bool has_name(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; (p = strstr(p, name)); p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == 0 || p[n] == ' '))
            return true;
    return false;
}

static const struct pipe_class *class_find(const char *name, struct err *e)
{
    char known[200] = "";
    for (int i = 0; classes[i]; i++) {
        if (*name && has_name(classes[i]->name, name))
            return classes[i];
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%.*s", i ? ", " : "",
                 (int)strcspn(classes[i]->name, " "), classes[i]->name);
    }
    err_set(e, ERR_UNSUPPORTED, "pipeline \"%.60s\" is not known; known: %s", name, known);
    return NULL;
}

static int pipe_open(struct image_model *m, const char *path, enum eng_precision precision,
                     struct err *e)
{
    struct pipe *p = &m->pipe[m->n_pipe];
    *p = (struct pipe){.be = m->be, .dev = m->nn.dev, .patch = 1, .guidance_off = 1};
    int rc = img_files_open(&p->files, path, e);
    if (rc)
        return rc;
    m->n_pipe++; /* from here on closed by imodel_close */
    const struct pipe_class *cls = class_find(p->files->pipeline, e);
    if (!cls)
        return e ? e->code : ERR_UNSUPPORTED;
    rc = nn_weights_open(&p->weights, m->be, m->nn.dev, precision, e);
    if (rc)
        return rc;
    p->cls = cls;
    return cls->open(p, e);
}

static void pipe_close(struct pipe *p)
{
    if (p->cls)
        p->cls->close(p);
    vae_close(p->vae);
    nn_weights_close(p->weights);
    img_files_close(p->files);
}

static int refiner_check(const struct image_model *m, struct err *e)
{
    const struct pipe *a = &m->pipe[0], *b = &m->pipe[1];
    bool kind = a->sched.kind == b->sched.kind;
    if (b->c_extra && b->c_extra != a->c_extra)
        return err_set(e, ERR_INVAL, "the refiner is an inpainting model, the base model is not");
    if (a->c == b->c && a->factor == b->factor && kind)
        return 0;
    return err_set(e, ERR_INVAL, "the refiner's latents or scheduler are not the base model's");
}

static int open_all(struct image_model *m, const struct eng_opts *o, struct eng_info *info,
                    bool plan, struct err *e)
{
    int rc;
    if ((rc = nn_backend(&m->nn, o, "image models", e)))
        return rc;
    m->be = m->nn.be;
    if (!plan && (rc = nn_open(&m->nn, o, o->precision, "make pictures", info, e)))
        return rc;
    if ((rc = pipe_open(m, o->path, o->precision, e)) ||
        (o->refiner && *o->refiner &&
         ((rc = pipe_open(m, o->refiner, o->precision, e)) || (rc = refiner_check(m, e)))))
        return rc;
    m->cache = cond_cache_new(o->cond_bytes ? o->cond_bytes : COND_BYTES);
    if (!m->cache)
        return err_set(e, ERR_NOMEM, "no memory for the prompt cache");
    for (int i = 0; i < m->n_pipe; i++)
        info->weight_bytes += nn_weights_bytes(m->pipe[i].weights);
    m->work_max = o->work_bytes ? o->work_bytes : nn_memory(m->be) / 2;
    m->info = m->pipe[0].info;
    m->info.refiner = m->n_pipe > 1;
    if (m->info.refiner && !m->info.refiner_switch_default)
        m->info.refiner_switch_default = 0.8f;
    snprintf(m->info.pipeline, sizeof m->info.pipeline, "%.47s", m->pipe[0].files->pipeline);
    snprintf(info->arch, sizeof info->arch, "%.31s", m->info.pipeline);
    info->image = &m->info;
    return 0;
}

int imodel_open(struct image_model **out, const struct eng_opts *o, struct eng_info *info,
                struct err *e)
{
    *out = NULL;
    struct image_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the image model");
    int rc = open_all(m, o, info, false, e);
    if (rc) {
        imodel_close(m);
        return rc;
    }
    info->work_bytes = m->work_max;
    *out = m;
    return 0;
}

void imodel_close(struct image_model *m)
{
    if (!m)
        return;
    nn_close(&m->nn);
    for (int i = m->n_pipe; i-- > 0;)
        pipe_close(&m->pipe[i]);
    cond_cache_free(m->cache);
    if (m->nn.dev)
        m->be->close(m->nn.dev);
    free(m);
}

/* ---- the memory plan: everything found and counted, nothing opened ---- */

struct plan_text {
    struct pipe *p;
    const char *text;
    int rc;
    struct err *e;
};

static void encode_body(struct image_model *m, void *arg)
{
    struct plan_text *t = arg;
    struct img_cond *c = NULL;
    t->rc = t->p->cls->encode(t->p, &m->nn, &t->text, 1, &c, t->e);
    img_cond_drop(c);
}

struct plan_rows {
    struct pipe *p;
    struct img_row r[2];
    int n;
};

static void rows_body(struct image_model *m, void *arg)
{
    struct plan_rows *r = arg;
    r->p->cls->denoise(r->p, &m->nn, r->r, r->n);
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The longest prompt; one step of a picture of `side` pixels with the model's own guidance. */
static int plan_pipe(struct image_model *m, struct pipe *p, int side, struct eng_memory *out,
                     struct err *e)
{
    size_t n = (size_t)p->info.prompt_tokens_max;
    char *text = mem_calloc(n * 2 + 1, 1);
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for the plan");
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * 2, "a ", 2);
    struct plan_text t = {.p = p, .text = text, .e = e};
    size_t peak = imodel__peak(m, &(struct image_body){.fn = encode_body, .arg = &t});
    for (; !peak && !t.rc && n; peak = imodel__peak(m, &(struct image_body){encode_body, &t, NULL}))
        text[2 * (n /= 2)] = 0; /* the encoder has fewer positions than the pipeline's prompts */
    free(text);
    if (t.rc)
        return t.rc;
    out->image_encode = most(out->image_encode, peak);
    int h = side / p->factor;
    bool two = !p->embedded_guidance && p->info.guidance_default > p->guidance_off;
    struct img_cond cond = {.n_tok = p->info.prompt_tokens_max};
    struct plan_rows r = {.p = p, .n = two ? 2 : 1};
    r.r[0] = r.r[1] =
        (struct img_row){.h = h, .w = h, .width = side, .height = side, .cond = &cond};
    peak = imodel__peak(m, &(struct image_body){.fn = rows_body, .arg = &r});
    out->image_denoise = most(out->image_denoise, peak);
    return 0;
}

static int plan_work(struct image_model *m, struct eng_memory *out, struct err *e)
{
    int side = m->pipe[0].info.size_default, h = side / m->pipe[0].factor, rc = 0;
    for (int i = 0; i < m->n_pipe && !rc; i++)
        rc = plan_pipe(m, &m->pipe[i], side, out, e);
    if (rc)
        return rc;
    int tile = h < TILE_SIDE_MIN ? h : TILE_SIDE_MIN;
    out->image_decode = imodel__decode_peak(m, h, h);
    out->image_decode_tiled = imodel__decode_peak(m, tile, tile);
    out->image_size = side;
    return 0;
}

int imodel_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e)
{
    struct eng_info info = {0};
    *out = (struct eng_memory){0};
    struct image_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the plan");
    int rc = open_all(m, o, &info, true, e);
    for (int i = 0; !rc && i < m->n_pipe; i++)
        for (int k = 0; k < m->pipe[i].files->n_src; k++)
            out->file += source_bytes(m->pipe[i].files->src[k]);
    if (!rc)
        rc = plan_work(m, out, e);
    if (!rc) {
        size_t work = out->image_decode;
        if (work > m->work_max)
            work = out->image_decode_tiled;
        work = work > out->image_denoise ? work : out->image_denoise;
        out->work = work > out->image_encode ? work : out->image_encode;
        out->weights = info.weight_bytes;
        out->total = out->weights + out->work;
        out->available = nn_memory(m->be);
    }
    imodel_close(m);
    return rc;
}
