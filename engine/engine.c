/* The door: open, step, logits, close. See engine.h. */
#include "engine/audio/model.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/encode/encode.h"
#include "engine/engine_impl.h"
#include "engine/image/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool device_is_null(const struct eng_opts *o)
{
    return o->device && !strcmp(o->device, "null");
}

static int device_open(struct engine *g, const struct eng_opts *o, struct err *e)
{
    struct model *m = &g->l.model;
    struct backend_opts bo = {.n_threads = o->n_threads,
                              .pin = !o->no_pin,
                              .isa = o->isa,
                              .precision = o->precision,
                              .loose = o->loose};
    struct backend_info bi = {0};
    int rc = m->be->open(&m->dev, &bo, e);
    if (rc)
        return rc;
    m->be->info(m->dev, &bi);
    snprintf(g->l.info.backend, sizeof g->l.info.backend, "%s", bi.name);
    g->l.info.lookahead = bi.lookahead && !o->keep_logits;
    rc = model_work_open(m, bi.mul_dtype, g->l.info.max_rows, g->l.info.max_logit_rows, e);
    if (rc)
        return rc;
    g->l.info.work_bytes = m->work.bytes;
    for (int i = 0; i < MODEL_POOLS; i++)
        if (g->l.kv[i].n_layer > 0 && (rc = m->be->kv_open(m->dev, &m->kv[i], &g->l.kv[i], e)))
            return rc;
    if (g->l.state.n_slot > 0 && (rc = m->be->state_open(m->dev, &m->state, &g->l.state, e)))
        return rc;
    m->hp.n_ctx_run = g->l.info.n_ctx;
    rc = weights_open(&g->weights, g->l.weights, m->be, m->dev, e);
    if (!rc)
        rc = model_ple_open(m, e);
    return rc ? rc : model_rope_open(m, e);
}

static int logits_open(struct engine *g, struct err *e)
{
    size_t n;
    if (!ck_mul((size_t)g->l.info.max_logit_rows, (size_t)g->l.info.n_vocab, &n))
        return err_set(e, ERR_LIMIT, "kept logits do not fit in memory");
    g->logits = mem_calloc(n, sizeof *g->logits);
    return g->logits ? 0 : err_set(e, ERR_NOMEM, "no memory for %zu kept logits", n);
}

static bool path_is_image(const struct eng_opts *o)
{
    return o->path && eng_path_is_image(o->path);
}

static int engine_fill(struct engine *g, const struct eng_opts *o, struct err *e)
{
    if (path_is_image(o))
        return imodel_open(&g->image, o, &g->l.info, e);
    if (eng_path_is_encoder(o->path))
        return encode_model_open(&g->encode, o, &g->l.info, e);
    if (eng_path_is_audio(o->path))
        return audio_model_open(&g->audio, o, &g->l.info, e);
    int rc = device_is_null(o) ? eng__null_open(&g->null, &g->l.info, &g->l.mem, o, e)
                               : eng__layout_open(&g->l, o, e);
    for (int i = 0; !rc && i < 2; i++)
        rc = eng_batch_open(&g->batch[i], &g->l.info, e);
    if (rc)
        return rc;
    if (g->null)
        return 0;
    if (o->keep_logits && (rc = logits_open(g, e)))
        return rc;
    return device_open(g, o, e);
}

int eng_open(struct engine **out, const struct eng_opts *o, struct err *e)
{
    *out = NULL;
    struct engine *g = mem_calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "no memory for the engine");
    int rc = engine_fill(g, o, e);
    if (rc) {
        eng_close(g);
        return rc;
    }
    const struct eng_info *i = &g->l.info;
    if (g->image)
        log_info("engine", "pipeline=%s backend=\"%s\" size=%d weights_mib=%zu work_mib=%zu",
                 i->image->pipeline, i->backend, i->image->size_default, i->weight_bytes >> 20,
                 i->work_bytes >> 20);
    else if (g->audio)
        log_info("engine", "arch=%s backend=\"%s\" recordings=%d weights_mib=%zu kv_mib=%zu",
                 i->arch, i->backend, i->audio->n_slot, i->weight_bytes >> 20, i->kv_bytes >> 20);
    else if (g->encode)
        log_info("engine", "arch=%s backend=\"%s\" n_ctx=%d dim=%d labels=%d weights_mib=%zu",
                 i->arch, i->backend, i->n_ctx, i->encoder->dim, i->encoder->n_label,
                 i->weight_bytes >> 20);
    else
        log_info("engine", "arch=%s backend=\"%s\" n_ctx=%d blocks=%d weights_mib=%zu kv_mib=%zu",
                 i->arch, i->backend, i->n_ctx, i->n_block, i->weight_bytes >> 20,
                 i->kv_bytes >> 20);
    *out = g;
    return 0;
}

void eng_close(struct engine *g)
{
    if (!g)
        return;
    struct model *m = &g->l.model;
    if (m->dev) {
        if (g->n_open)
            m->be->sync(m->dev); /* what it still runs uses what goes now */
        weights_close(g->weights);
        model_rope_close(m);
        model_work_close(m);
        for (int i = 0; i < MODEL_POOLS; i++)
            if (m->kv[i])
                m->be->kv_close(m->dev, m->kv[i]);
        if (m->state)
            m->be->state_close(m->dev, m->state);
        m->be->close(m->dev);
    }
    imodel_close(g->image);
    encode_model_close(g->encode);
    audio_model_close(g->audio);
    eng__null_close(g->null);
    eng_batch_close(&g->batch[0]);
    eng_batch_close(&g->batch[1]);
    free(g->logits);
    eng__layout_close(&g->l);
    free(g);
}

const struct eng_info *eng_info(const struct engine *g)
{
    return &g->l.info;
}

/* Everything that talks to the device; *what names the operation that failed. */
static int step_issue(struct engine *g, struct batch *b, const struct step_meta *meta,
                      const char **what)
{
    struct model *m = &g->l.model;
    int n_copy = b->plan->n_copy, rc = 0;
    *what = "kv_copy";
    for (int i = 0; n_copy > 0 && i < MODEL_POOLS; i++) {
        struct op_kv_copy a = {.kv = m->kv[i], .src = b->copy_src, .dst = b->copy_dst, .n = n_copy};
        if (a.kv && (rc = m->be->kv_copy(m->dev, &a)))
            return rc;
    }
    *what = "step_begin";
    if (meta->n_row > 0) {
        rc = m->be->step_begin(m->dev, meta);
        if (rc)
            return rc;
        rc = m->arch->forward(m, meta);
        *what = m->failed_op;
        if (rc)
            return rc;
    }
    struct tensor logits = model_rows(m->work.logits, meta->n_logit);
    if (meta->n_logit > 0 && g->logits) {
        *what = "read";
        rc = m->be->read(m->dev, logits.buf, logits.off, g->logits,
                         (size_t)meta->n_logit * (size_t)g->l.info.n_vocab * sizeof *g->logits);
        if (rc)
            return rc;
    }
    *what = "sample";
    if (meta->n_logit > 0)
        rc = m->be->sample(m->dev,
                           &(struct op_sample){.logits = logits, .rows = b->rows, .out = b->out});
    return rc;
}

/* A step without samples has nothing to wait for but everything. */
static int step_wait(struct engine *g, const struct batch *b, const char **what)
{
    struct model *m = &g->l.model;
    *what = b->n_logit ? "sample_wait" : "sync";
    return b->n_logit ? m->be->sample_wait(m->dev) : m->be->sync(m->dev);
}

/* A step half done leaves KV in an unknown state: no way on. */
static int step_failed(struct engine *g, const char *what, int n_row, int rc, struct err *e)
{
    g->n_open = 0;
    err_set(&g->failed, ERR_DEVICE, "step: op %s of %d rows failed: %s", what, n_row, err_name(rc));
    return err_set(e, ERR_DEVICE, "%s", g->failed.text);
}

#ifndef NDEBUG
/* Fault injection in debug and sanitizer builds: the step numbered $FAULT_STEP fails as a device would, or, with
 * $FAULT_STEP_MS, takes that long. */
static int fault_step(struct engine *g, struct err *e)
{
    const char *at = getenv("FAULT_STEP"), *ms = getenv("FAULT_STEP_MS");
    static long n_step; /* of the process: tests serve one model */
    if (!at || ++n_step != strtol(at, NULL, 10))
        return 0;
    if (ms) {
        usleep((unsigned)strtoul(ms, NULL, 10) * 1000u);
        return 0;
    }
    err_set(&g->failed, ERR_DEVICE, "step %ld failed on request", n_step);
    return err_set(e, ERR_DEVICE, "%s", g->failed.text);
}
#else
#define fault_step(g, e) 0
#endif

int eng_step_begin(struct engine *g, const struct step_plan *p, struct err *e)
{
    struct step_meta meta;
    const char *what = "";
    bool ahead = g->l.info.lookahead;
    struct batch *b = &g->batch[g->turn], *before = &g->batch[!g->turn];
    if (g->failed.code)
        return err_set(e, g->failed.code, "%s", g->failed.text);
    if (g->image || g->encode || g->audio)
        return err_set(e, ERR_INVAL, "step: the model is no language model");
    if (g->n_open > ahead)
        return err_set(e, ERR_INVAL, "step: %d steps are open", g->n_open);
    int rc = fault_step(g, e);
    if (!rc)
        rc = eng_batch_build(b, p, before, ahead, &meta, e);
    if (rc)
        return rc;
    g->n_logit = meta.n_logit;
    if (g->null)
        eng__null_step(g->null, b, meta.n_logit);
    else if ((rc = step_issue(g, b, &meta, &what)) || (!ahead && (rc = step_wait(g, b, &what))))
        return step_failed(g, what, meta.n_row, rc, e);
    g->turn = !g->turn;
    g->n_open++;
    return 0;
}

int eng_step_end(struct engine *g, struct err *e)
{
    const char *what = "";
    if (g->failed.code)
        return err_set(e, g->failed.code, "%s", g->failed.text);
    if (!g->n_open)
        return err_set(e, ERR_INVAL, "step: none is open");
    struct batch *b = &g->batch[g->n_open == 2 ? g->turn : !g->turn];
    int rc = 0;
    if (g->null)
        eng__null_wait(g->null);
    else if (g->l.info.lookahead)
        rc = step_wait(g, b, &what);
    if (rc)
        return step_failed(g, what, b->seq_start[b->plan->n_seq], rc, e);
    g->n_open--;
    eng_batch_scatter(b);
    return 0;
}

int eng_step(struct engine *g, const struct step_plan *p, struct err *e)
{
    if (g->n_open)
        return err_set(e, ERR_INVAL, "step: %d steps are open", g->n_open);
    int rc = eng_step_begin(g, p, e);
    return rc ? rc : eng_step_end(g, e);
}

int eng_encode(struct engine *g, const struct eng_encode_row *rows, int n, struct err *e)
{
    if (!g->encode)
        return err_set(e, ERR_INVAL, "encode: the model is no encoder");
    return encode_model_run(g->encode, rows, n, e);
}

int eng_logits(struct engine *g, int i, float *dst)
{
    if (!g->logits || i < 0 || i >= g->n_logit)
        return ERR_INVAL;
    size_t n = (size_t)g->l.info.n_vocab;
    memcpy(dst, g->logits + (size_t)i * n, n * sizeof *dst);
    return 0;
}

int eng_memory_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e)
{
    if (path_is_image(o))
        return imodel_plan(o, out, e);
    if (eng_path_is_encoder(o->path))
        return encode_model_plan(o, out, e);
    if (eng_path_is_audio(o->path))
        return audio_model_plan(o, out, e);
    if (device_is_null(o)) {
        struct null_device *n = NULL;
        struct eng_info info = {0};
        int rc = eng__null_open(&n, &info, out, o, e);
        eng__null_close(n);
        return rc;
    }
    struct layout *l = mem_calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "no memory for the plan");
    int rc = eng__layout_open(l, o, e);
    if (!rc)
        *out = l->mem;
    eng__layout_close(l);
    free(l);
    return rc;
}
