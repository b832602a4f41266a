/* Opening and running an encoder model. See encode.h. */
#include "engine/encode/encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/encode/encoder.h"
#include "engine/engine.h"
#include "engine/kv.h"

struct encode_model {
    struct comp comp;
    struct source *src;
    const struct backend *be;
    enum eng_precision precision;
    struct nn_weights *weights;
    struct nn nn;
    const struct encoder_ops *ops;
    void *net;
    int32_t n_vocab;
    int width;
    struct encode_dense dense[ENCODE_DENSE_MAX]; /* after the pooling */
    int n_dense;
    struct eng_encoder_info info;
    size_t work_max;   /* bytes of the work buffer at most */
    struct err failed; /* code != 0: the device failed; sticky */
};

static int facts(struct encode_model *m, const struct eng_opts *o, struct err *e)
{
    struct eng_encoder_info said = {0};
    int rc = encode__files_read(o->path, m->comp.cfg, &said, e);
    if (rc)
        return rc;
    m->ops->facts(m->net, &m->info, &m->n_vocab, &m->width);
    if (!m->info.n_label && (rc = encode__dense_open(m->dense, &m->n_dense, o->path, m->width, e)))
        return rc;
    if (m->n_dense)
        m->info.dim = m->dense[m->n_dense - 1].n_out;
    if (said.n_tok_max && said.n_tok_max < m->info.n_tok_max)
        m->info.n_tok_max = said.n_tok_max;
    if (o->n_ctx > 0 && o->n_ctx < m->info.n_tok_max)
        m->info.n_tok_max = o->n_ctx;
    m->info.pooling = said.pooling;
    memcpy(m->info.prompt, said.prompt, sizeof said.prompt);
    return 0;
}

static int open_all(struct encode_model *m, const struct eng_opts *o, struct eng_info *info,
                    bool plan, struct err *e)
{
    int rc;
    if ((rc = nn_backend(&m->nn, o, "encoders", e)))
        return rc;
    m->be = m->nn.be;
    /* Vectors are kept beside vectors made elsewhere and compared by small differences: on a CPU the default is f32,
     * where bf16 products would move a value by 1e-3. */
    bool exact = o->precision == PRECISION_DEFAULT && strcmp(m->be->name, "cpu") == 0;
    m->precision = exact ? PRECISION_F32 : o->precision;
    if ((rc = encode__model_config(&m->comp.cfg, o->path, e)) ||
        (rc = source_open(&m->src, o->path, e)))
        return rc;
    m->ops = encode__family(m->comp.cfg, o->path);
    if (!m->ops)
        return err_set(e, ERR_UNSUPPORTED, "config.json: model_type '%.60s' is no known encoder",
                       config_str(m->comp.cfg, "model_type", ""));
    snprintf(m->comp.name, sizeof m->comp.name, "encoder");
    m->comp.map =
        (struct source_map){.src = m->src, .find = source_gguf(m->src) ? encode__gguf_find : NULL};
    if ((!plan && (rc = nn_open(&m->nn, o, m->precision, "run encoders", info, e))) ||
        (rc = nn_weights_open(&m->weights, m->be, m->nn.dev, m->precision, e)) ||
        (rc = m->ops->open(&m->net, m->weights, &m->comp, e)) || (rc = facts(m, o, e)))
        return rc;
    m->work_max = o->work_bytes ? o->work_bytes : nn_memory(m->be) / 2;
    info->weight_bytes = nn_weights_bytes(m->weights);
    info->n_ctx = m->info.n_tok_max;
    info->n_vocab = m->n_vocab;
    info->max_rows = o->max_rows > 0 ? o->max_rows : 512;
    info->encoder = &m->info;
    snprintf(info->arch, sizeof info->arch, "%.31s", config_str(m->comp.cfg, "model_type", ""));
    return 0;
}

int encode_model_open(struct encode_model **out, const struct eng_opts *o, struct eng_info *info,
                      struct err *e)
{
    struct encode_model *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the encoder");
    int rc = open_all(m, o, info, false, e);
    if (rc) {
        err_prefix(e, "%s", o->path);
        encode_model_close(m);
        return rc;
    }
    info->work_bytes = m->work_max;
    *out = m;
    return 0;
}

void encode_model_close(struct encode_model *m)
{
    if (!m)
        return;
    nn_close(&m->nn);
    if (m->ops)
        m->ops->close(m->net);
    encode__dense_close(m->dense, m->n_dense);
    nn_weights_close(m->weights);
    if (m->nn.dev)
        m->be->close(m->nn.dev);
    source_close(m->src);
    config_close(m->comp.cfg);
    free(m);
}

/* ---- a batch ---- */

struct run {
    int32_t *start, *ids, *pos, *type; /* of one piece of memory, start first */
    float *states;
    float *row;    /* two rows of any layer after the pooling; NULL without one */
    float *scores; /* [n, n_label], NULL in a plan */
    struct encoder_batch b;
    struct encode_model *m;
};

static int check_rows(const struct encode_model *m, const struct eng_encode_row *rows, int n,
                      struct err *e)
{
    int32_t n_vocab = m->n_vocab;
    if (n < 1 || n > ENG_ENCODE_ROWS)
        return err_set(e, ERR_INVAL, "encode: %d texts in a batch", n);
    for (int i = 0; i < n; i++) {
        if (rows[i].n < 1 || rows[i].n > m->info.n_tok_max || rows[i].second < 0 || !rows[i].out)
            return err_set(e, ERR_INVAL, "encode: a text of %d tokens, 1 to %d are possible",
                           rows[i].n, m->info.n_tok_max);
        for (int32_t k = 0; k < rows[i].n; k++)
            if (rows[i].ids[k] < 0 || rows[i].ids[k] >= n_vocab)
                return err_set(e, ERR_INVAL, "encode: token id %d is outside the vocabulary",
                               rows[i].ids[k]);
    }
    return 0;
}

static size_t row_width(const struct encode_model *m)
{
    int most = m->width;
    for (int i = 0; i < m->n_dense; i++)
        most = m->dense[i].n_out > most ? m->dense[i].n_out : most;
    return (size_t)most;
}

static int run_fill(struct run *r, const struct encode_model *m, const struct eng_encode_row *rows,
                    int n)
{
    size_t all = 0, width = (size_t)m->width;
    for (int i = 0; i < n; i++)
        all += (size_t)rows[i].n;
    r->start = mem_alloc(((size_t)n + 1 + 3 * all) * sizeof *r->start);
    r->states = m->info.n_label ? NULL : mem_alloc(all * width * sizeof *r->states);
    if (m->n_dense && !(r->row = mem_alloc(2 * row_width(m) * sizeof *r->row)))
        return ERR_NOMEM;
    if (!r->start || (!r->states && !m->info.n_label))
        return ERR_NOMEM;
    r->ids = r->start + n + 1;
    r->pos = r->ids + all;
    r->type = r->pos + all;
    int32_t at = 0;
    for (int i = 0; i < n; i++) {
        r->start[i] = at;
        m->ops->positions(m->net, rows[i].ids, rows[i].n, r->pos + at);
        for (int32_t k = 0; k < rows[i].n; k++, at++) {
            r->ids[at] = rows[i].ids[k];
            r->type[at] = k >= rows[i].second && m->info.n_type > 1;
        }
    }
    r->start[n] = at;
    r->b = (struct encoder_batch){n, r->ids, r->pos, r->type, r->start};
    return 0;
}

/* x [n, d] into out [d]; sums in double and in this order. */
static void pool(enum eng_pooling how, const float *x, int32_t n, size_t d, float *out)
{
    const float *one = how == ENG_POOL_LAST ? x + (size_t)(n - 1) * d : x;
    if (how == ENG_POOL_CLS || how == ENG_POOL_LAST) {
        memcpy(out, one, d * sizeof *out);
        return;
    }
    for (size_t c = 0; c < d; c++) {
        double sum = 0;
        float most = x[c];
        for (int32_t i = 0; i < n; i++) {
            float v = x[(size_t)i * d + c];
            sum += (double)v;
            most = v > most ? v : most;
        }
        out[c] = how == ENG_POOL_MAX ? most : (float)(sum / n);
    }
}

/* A text's states [n, width] to its vector. */
static void finish(const struct encode_model *m, const struct run *r, const float *states,
                   int32_t n, float *out)
{
    float *from = r->row, *to = m->n_dense ? r->row + row_width(m) : NULL;
    pool(m->info.pooling, states, n, (size_t)m->width, m->n_dense ? from : out);
    for (int i = 0; i < m->n_dense; i++) {
        bool last = i == m->n_dense - 1;
        encode__dense_run(&m->dense[i], from, last ? out : to);
        float *t = from;
        from = to;
        to = t;
    }
}

static void net_run(struct nn *n, void *arg)
{
    const struct run *r = arg;
    r->m->ops->run(r->m->net, n, &r->b, r->states, r->scores);
}

static int run_device(struct run *r, struct err *e)
{
    struct encode_model *m = r->m;
    return nn_do(&m->nn,
                 &(struct nn_body){.fn = net_run, .arg = r, .what = "a batch", .most = m->work_max},
                 NULL, e);
}

int encode_model_run(struct encode_model *m, const struct eng_encode_row *rows, int n,
                     struct err *e)
{
    struct run r = {.m = m};
    size_t width = (size_t)m->width, n_label = (size_t)m->info.n_label;
    if (m->failed.code)
        return err_set(e, m->failed.code, "%s", m->failed.text);
    int rc = check_rows(m, rows, n, e);
    if (rc)
        return rc;
    r.scores = mem_alloc(((size_t)n * n_label + 1) * sizeof *r.scores);
    rc = r.scores ? run_fill(&r, m, rows, n) : ERR_NOMEM;
    if (rc)
        err_set(e, rc, "no memory for a batch of %d texts", n);
    else
        rc = run_device(&r, e);
    for (int i = 0; i < n && !rc; i++) {
        if (n_label)
            memcpy(rows[i].out, r.scores + (size_t)i * n_label, n_label * sizeof *r.scores);
        else
            finish(m, &r, r.states + (size_t)r.start[i] * width, rows[i].n, rows[i].out);
    }
    if (rc == ERR_DEVICE)
        err_set(&m->failed, rc, "%s", e ? e->text : "the device failed");
    free(r.scores);
    free(r.start);
    free(r.states);
    free(r.row);
    return rc;
}

/* ---- the memory plan: everything found and counted, nothing opened ---- */

/* A batch of one longest text: what any step must be able to do. */
static int plan_work(struct encode_model *m, size_t *out, struct err *e)
{
    int32_t start[2] = {0, m->info.n_tok_max};
    struct run r = {.m = m, .b = {.n = 1, .start = start}};
    *out = nn_peak(&m->nn, &(struct nn_body){.fn = net_run, .arg = &r});
    return nn_end(&m->nn, e);
}

int encode_model_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e)
{
    struct eng_info info = {0};
    *out = (struct eng_memory){0};
    struct encode_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the plan");
    int rc = open_all(m, o, &info, true, e);
    if (!rc)
        rc = plan_work(m, &out->work, e);
    if (rc)
        err_prefix(e, "%s", o->path);
    else
        nn_plan(&m->nn, m->src, &info, out);
    encode_model_close(m);
    return rc;
}
