/* The middle stage: one denoiser pass for the rows of all jobs, guidance, one sampler step each. See model.h. */
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/image/model.h"

#include <stdlib.h>
#include <string.h>

struct pass {
    struct pipe *p;
    struct img_row *row; /* [n] */
    int n;
};

static void pass_body(struct image_model *m, void *arg)
{
    struct pass *a = arg;
    a->p->cls->denoise(a->p, &m->nn, a->row, a->n);
}

/* The one or two rows of a job's next step; with `sizes` only what a dry run looks at. */
static int rows_of(struct img_job *j, struct img_row *row, bool sizes)
{
    struct job_phase *f = &j->phase[j->at];
    const struct nsched_table *t = f->table;
    struct img_row r = {.h = j->h,
                        .w = j->w,
                        .width = j->p.width,
                        .height = j->p.height,
                        .extra = j->extra,
                        .cond = f->cond,
                        .timestep = t->timestep[j->step],
                        .guidance = j->p.guidance};
    if (!sizes) {
        float scale = nsched_input_scale(t, j->step);
        for (size_t i = 0; i < j->n; i++)
            j->in[i] = j->x[i] * scale;
        r.latent = j->in;
        r.out = j->out[0];
    }
    row[0] = r;
    if (!f->uncond)
        return 1;
    r.cond = f->uncond;
    r.negative = true;
    r.out = sizes ? NULL : j->out[1];
    row[1] = r;
    return 2;
}

static void guide(const struct pipe *p, struct img_job *j)
{
    float *c = j->out[0], s = j->p.guidance;
    const float *u = j->out[1];
    if (!j->phase[j->at].uncond)
        return;
    if (p->cls->guide) {
        p->cls->guide(c, u, s, j->c, j->h, j->w);
        return;
    }
    for (size_t i = 0; i < j->n; i++)
        c[i] = u[i] + s * (c[i] - u[i]);
}

/* What the mask keeps is the original at the noise of the next step (Lugmayr et al. 2022, without resampling). */
static void keep_masked(struct img_job *j)
{
    const struct nsched_table *t = j->phase[j->at].table;
    size_t map = (size_t)j->h * (size_t)j->w;
    float *known = j->in; /* free until the next step */
    if (!j->keep || j->extra)
        return;
    nsched_add_noise(t, j->step + 1, j->clean, j->noise, known, j->n);
    for (size_t i = 0; i < j->n; i++)
        if (j->keep[i % map] > 0)
            j->x[i] = known[i];
}

static void advance(struct image_model *m, struct img_job *j)
{
    struct job_phase *f = &j->phase[j->at];
    guide(&m->pipe[f->pipe], j);
    nsched_x0(f->table, j->step, j->x, j->out[0], j->x0, j->n);
    float *noise = NULL;
    if (nsched_wants_noise(f->table, j->step))
        job__randn(j, noise = j->out[1], j->n);
    nsched_step(f->table, &f->state, j->step, j->x, j->out[0], noise);
    keep_masked(j);
    j->done++;
    if (++j->step < f->end)
        return;
    if (++j->at < j->n_phase)
        j->step = j->phase[j->at].first;
    else
        j->stage = IMG_DECODE;
}

/* What decides the work memory of a step: sizes and numbers of tokens, in order. */
static uint64_t rows_key(const struct pass *a)
{
    uint64_t h = hash_u64((uint64_t)(uintptr_t)a->p);
    for (int i = 0; i < a->n; i++) {
        h = hash_u64(h ^ (uint64_t)a->row[i].h << 32 ^ (uint64_t)a->row[i].w);
        h = hash_u64(h ^ (uint64_t)a->row[i].cond->n_tok);
    }
    return h;
}

static size_t pass_peak(struct image_model *m, struct pass *a)
{
    uint64_t key = rows_key(a);
    int i = (int)(key % IMG_SEEN);
    if (m->seen[i].key != key || !m->seen[i].peak) {
        m->seen[i].peak = imodel__peak(m, &(struct image_body){pass_body, a, NULL});
        m->seen[i].key = key;
    }
    return m->seen[i].peak;
}

size_t imodel__denoise_peak(struct image_model *m, struct img_job *const *j, int n)
{
    size_t most = 0;
    for (int p = 0; p < m->n_pipe; p++) {
        struct pass a = {.p = &m->pipe[p], .row = mem_calloc((size_t)n * 2, sizeof *a.row)};
        if (!a.row)
            return SIZE_MAX;
        for (int i = 0; i < n; i++)
            if (j[i]->stage == IMG_DENOISE && j[i]->at == p)
                a.n += rows_of(j[i], a.row + a.n, true);
        size_t peak = a.n ? pass_peak(m, &a) : 0;
        if (a.n && !peak)
            peak = SIZE_MAX; /* the dry run failed: the real one says why */
        most = peak > most ? peak : most;
        free(a.row);
    }
    return most;
}

static int pass_run(struct image_model *m, struct pass *a, const struct img_yield *y, struct err *e)
{
    size_t peak = pass_peak(m, a);
    struct image_body b = {pass_body, a, y};
    if (!peak || peak > m->work_max || nn_reserve(&m->nn, peak))
        return imodel__run(m, &b, NULL, e); /* which says what is wrong */
    nn_begin(&m->nn, false);
    m->nn.yield = y;
    pass_body(m, a);
    m->nn.yield = NULL;
    return nn_end(&m->nn, e);
}

int imodel__denoise(struct image_model *m, struct img_job *const *j, int n,
                    const struct img_yield *y, struct err *e)
{
    struct img_row *row = mem_calloc((size_t)n * 2, sizeof *row);
    int *at = mem_calloc((size_t)n, sizeof *at), rc = 0;
    if (!row || !at)
        rc = err_set(e, ERR_NOMEM, "no memory for %d rows", n);
    for (int i = 0; i < n && !rc; i++)
        at[i] = j[i]->at;
    /* Every pipe's jobs in one pass; nothing moves on before all passes are over. */
    for (int p = 0; p < m->n_pipe && !rc; p++) {
        struct pass a = {.p = &m->pipe[p], .row = row};
        for (int i = 0; i < n; i++)
            if (at[i] == p)
                a.n += rows_of(j[i], row + a.n, false);
        if (a.n)
            rc = pass_run(m, &a, y, e);
    }
    for (int i = 0; i < n && !rc; i++)
        advance(m, j[i]);
    free(row);
    free(at);
    return rc;
}
