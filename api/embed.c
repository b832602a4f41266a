/* See embed.h. */
#include "api/embed.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/mem.h"

#define INLINE_FLOATS 16384 /* a larger answer is written on a pool thread */

static const char *const fields[] = {"model",
                                     "user",
                                     "truncate_prompt_tokens",
                                     "truncation_side",
                                     "add_special_tokens",
                                     "priority",
                                     "request_id",
                                     "metadata",
                                     NULL};

void emb_normalise(float *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    double by = sum > 0 ? 1 / sqrt(sum) : 1;
    for (int i = 0; i < n; i++)
        v[i] = (float)((double)v[i] * by);
}

void emb_put_float(struct buf *b, float v)
{
    if (isfinite(v))
        buf_fmt(b, "%.9g", (double)v);
    else
        buf_str(b, "null");
}

/* ---- rows ---- */

int emb_check_count(struct api_call *c, const char *param, size_t n)
{
    if (n == 0)
        return api__bad(c, param, "invalid_value", "Invalid '%s': the array is empty.", param);
    if (n > (size_t)c->api->o.max_inputs)
        return api__bad(c, param, "array_above_max_length",
                        "Invalid '%s': %zu texts, but at most %d are taken in one request.", param,
                        n, c->api->o.max_inputs);
    return 0;
}

/* Room for the row that begins at the end of ids. */
static int row_open(struct emb *e)
{
    if (e->n_row + 2 > e->cap_row) {
        int cap = e->cap_row ? e->cap_row * 2 : 16;
        int32_t *start = mem_realloc(e->start, ((size_t)cap + 1) * sizeof *start);
        e->start = start ? start : e->start;
        int32_t *second = mem_realloc(e->second, (size_t)cap * sizeof *second);
        e->second = second ? second : e->second;
        if (!start || !second)
            return ERR_NOMEM;
        e->cap_row = cap;
    }
    e->start[e->n_row] = (int32_t)e->ids.n;
    return 0;
}

static int too_long(struct api_call *c, const struct emb *e, const char *param, size_t n)
{
    return api__bad(c, param, "context_length_exceeded",
                    "Invalid '%s': it has %zu tokens, but this model takes at most %d. Shorten it, "
                    "or set 'truncate_prompt_tokens' (-1: to what the model takes).",
                    param, n, e->n_max);
}

/* The row [start, end of ids) is complete; `second` is where its second text begins, 0: there is none. */
static int row_close(struct api_call *c, struct emb *e, const char *param, int32_t second)
{
    size_t n = e->ids.n - (size_t)e->start[e->n_row];
    if (n == 0)
        return api__bad(c, param, "invalid_value", "Invalid '%s': it has no tokens.", param);
    if (n > (size_t)e->n_max)
        return too_long(c, e, param, n);
    if (e->ids.n > INT32_MAX / 2)
        return api__bad(c, param, "invalid_value", "The request has too many tokens.");
    e->second[e->n_row] = second ? second : (int32_t)n;
    e->start[++e->n_row] = (int32_t)e->ids.n;
    return 0;
}

static int add_special(struct emb *e, int32_t id)
{
    return id >= 0 && e->special ? tok_ids_add(&e->ids, id) : 0;
}

/* Text alone, no more than `room` tokens of it where truncation is wanted. */
static int add_tokens(struct api_call *c, struct emb *e, const char *param, struct view text,
                      int32_t room)
{
    size_t from = e->ids.n;
    int rc = tok_encode(e->m->text->tok, text.p, text.len, TOK_SPECIAL, &e->ids);
    if (rc == ERR_NOMEM)
        return api__nomem(c);
    if (rc)
        return api__bad(c, param, "invalid_value", "Invalid '%s': it could not be tokenised.",
                        param);
    if (e->truncate && e->ids.n - from > (size_t)(room > 0 ? room : 0))
        e->ids.n = from + (size_t)(room > 0 ? room : 0);
    return 0;
}

static int32_t n_special(const struct emb *e)
{
    return e->special ? (e->before >= 0) + (e->after >= 0) : 0;
}

/* The model's default prompt stands before every text that is embedded. */
static int add_prompted(struct api_call *c, struct emb *e, const char *param, struct view text,
                        int32_t room)
{
    const char *prompt = e->m->encoder.prompt;
    if (!*prompt)
        return add_tokens(c, e, param, text, room);
    struct buf b = {0};
    buf_str(&b, prompt);
    buf_add(&b, text.p, text.len);
    int rc = b.failed ? api__nomem(c)
                      : add_tokens(c, e, param, (struct view){buf_cstr(&b), b.len}, room);
    buf_free(&b);
    return rc;
}

int emb_add_text(struct api_call *c, struct emb *e, const char *param, struct view text)
{
    if (text.len == 0)
        return api__bad(c, param, "invalid_value", "Invalid '%s': the text is empty.", param);
    if (row_open(e) || add_special(e, e->before))
        return api__nomem(c);
    if (add_prompted(c, e, param, text, e->n_max - n_special(e)))
        return ERR_INVAL;
    if (add_special(e, e->after))
        return api__nomem(c);
    return row_close(c, e, param, 0);
}

/* BERT: [CLS] a [SEP] b [SEP]; RoBERTa: <s> a </s></s> b </s>. Truncation takes from b. */
int emb_add_pair(struct api_call *c, struct emb *e, const char *param, struct view a, struct view b)
{
    if (a.len == 0 || b.len == 0)
        return api__bad(c, param, "invalid_value", "Invalid '%s': a text is empty.", param);
    if (row_open(e) || add_special(e, e->before))
        return api__nomem(c);
    if (add_tokens(c, e, param, a, INT32_MAX))
        return ERR_INVAL;
    if (add_special(e, e->after) || (e->m->encoder.double_sep && add_special(e, e->after)))
        return api__nomem(c);
    int32_t second = (int32_t)e->ids.n - e->start[e->n_row];
    if (second + 1 > e->n_max) /* no room for any of b */
        return too_long(c, e, param, (size_t)second);
    if (add_tokens(c, e, param, b, e->n_max - second - (e->special && e->after >= 0)))
        return ERR_INVAL;
    if (add_special(e, e->after))
        return api__nomem(c);
    return row_close(c, e, param, second);
}

int emb_add_ids(struct api_call *c, struct emb *e, const char *param, json_t *list)
{
    size_t k;
    json_t *x;
    if (row_open(e))
        return api__nomem(c);
    json_array_foreach(list, k, x)
    {
        int64_t id = json_is_integer(x) ? json_integer_value(x) : -1;
        if (!json_is_integer(x))
            return api__bad(c, param, "invalid_type",
                            "Invalid '%s': an array of token ids holds %s.", param,
                            api__json_type(x));
        if (id < 0 || id >= e->m->n_vocab)
            return api__bad(c, param, "invalid_value",
                            "Invalid '%s': token id %lld is not in the vocabulary (0 to %d).",
                            param, (long long)id, e->m->n_vocab - 1);
        if (e->truncate && k >= (size_t)e->n_max)
            break;
        if (tok_ids_add(&e->ids, (int32_t)id))
            return api__nomem(c);
    }
    return row_close(c, e, param, 0);
}

/* ---- the call ---- */

/* What the tokenizer puts around a text. */
static int find_special(struct api_call *c, struct emb *e)
{
    struct tok_ids none = {0};
    e->before = e->after = -1;
    int rc = tok_encode(e->m->text->tok, "", 0, TOK_BOS_EOS, &none);
    if (!rc && none.n >= 2) {
        e->before = none.id[0];
        e->after = none.id[none.n - 1];
    } else if (!rc && none.n == 1) {
        *(tok_adds_bos(e->m->text->tok) ? &e->before : &e->after) = none.id[0];
    }
    tok_ids_free(&none);
    return rc ? api__nomem(c) : 0;
}

static int params(struct api_call *c, struct emb *e, json_t *o)
{
    int64_t most = 0, none = INT64_MIN;
    int64_t cut = none;
    struct view side = {0}, user = {0};
    most = e->m->encoder.n_tok_max;
    e->special = true;
    if (api__get_int(c, o, "truncate_prompt_tokens", (int64_t[2]){-1, most}, &cut) ||
        api__get_str(c, o, "truncation_side", &side) || api__get_str(c, o, "user", &user) ||
        api__get_bool(c, o, "add_special_tokens", &e->special) ||
        api__get_int(c, o, "priority", (int64_t[2]){INT32_MIN, INT32_MAX}, &e->priority))
        return ERR_INVAL;
    if (cut == 0)
        return api__bad(c, "truncate_prompt_tokens", "invalid_value",
                        "Invalid 'truncate_prompt_tokens': -1, or 1 to %lld.", (long long)most);
    if (side.p && !view_is(side, "right"))
        return api__bad(c, "truncation_side", "unsupported_value",
                        "Invalid 'truncation_side': only 'right' is supported.");
    e->truncate = cut != none;
    e->n_max = (int32_t)(cut > 0 ? cut : most);
    return find_special(c, e);
}

static void emb_free(struct api_call *c)
{
    struct emb *e = c->priv;
    if (!e)
        return;
    for (int i = 0; e->doc && i < e->n_doc; i++)
        free(e->doc[i]);
    free(e->doc);
    free(e->doc_len);
    free(e->start);
    free(e->second);
    tok_ids_free(&e->ids);
    free(e);
}

/* An answer being written by a pool thread. It owns e and vec: the call may end before it. */
struct emb_job {
    struct api_job job;
    struct emb *e;
    float *vec;
    struct buf out;
};

static void job_run(struct api_job *j)
{
    struct emb_job *x = (struct emb_job *)j;
    x->e->answer(x->e, x->vec, &x->out);
}

static void job_done(struct api_call *c, struct api_job *j)
{
    struct emb_job *x = (struct emb_job *)j;
    if (c) {
        buf_free(&c->out);
        c->out = x->out;
        x->out = (struct buf){0};
        c->done = true;
        api__check_out(c);
    }
    struct api_call own = {.priv = x->e};
    emb_free(&own);
    free(x->vec);
    buf_free(&x->out);
    free(x);
}

static void answer(struct api_call *c, struct emb *e, float *vec, int width)
{
    struct emb_job *x = NULL;
    if ((int64_t)e->n_row * width > INLINE_FLOATS)
        x = mem_calloc(1, sizeof *x);
    if (!x) {
        e->answer(e, vec, &c->out);
        c->done = true;
        free(vec);
        return;
    }
    *x = (struct emb_job){
        .job = {.next = c->job, .run = job_run, .done = job_done}, .e = e, .vec = vec};
    c->priv = NULL;
    c->job = &x->job;
}

static void on_event(struct api_call *c, int req, const struct event *ev)
{
    struct emb *e = c->priv;
    const struct eng_encoder_info *i = e ? &e->m->encoder : NULL;
    (void)req;
    switch (ev->kind) {
    case EV_EMBED:
        c->n_prompt = e->n_prompt;
        answer(c, e, ev->vec, i->n_label ? i->n_label : i->dim);
        break;
    case EV_ERROR:
        api_fail(c, ev->err.code, NULL, ev->err.text, 0);
        break;
    case EV_DONE: /* without vectors: it was cancelled */
        if (!c->done && e)
            api_fail(c, ERR_CANCELLED, NULL, "The request was cancelled.", 0);
        break;
    default:
        event_drop(ev);
    }
}

static int submit(struct api_call *c, struct emb *e)
{
    struct request *r = request_new();
    c->req = mem_calloc(1, sizeof *c->req);
    c->req_id = mem_calloc(1, sizeof *c->req_id);
    struct req_encode *x = r ? r->encode = req_encode_new(e->n_row, true) : NULL;
    if (!x || !c->req || !c->req_id) {
        request_free(r);
        return api__nomem(c);
    }
    c->req[c->n_req++] = r;
    memcpy(x->start, e->start, ((size_t)e->n_row + 1) * sizeof *x->start);
    memcpy(x->second, e->second, (size_t)e->n_row * sizeof *x->second);
    api__request_start(c, r, "", c->api->o.queue_timeout_s);
    r->n = 1;
    r->prompt = e->ids.id;
    r->n_prompt = e->n_prompt = (int32_t)e->ids.n;
    e->ids = (struct tok_ids){0};
    r->priority = (int)e->priority;
    return 0;
}

int emb_run(struct api_call *c, const char *const *known, emb_answer *answer_fn,
            int (*parse)(struct api_call *c, struct emb *e, json_t *o))
{
    json_t *o = api__body(c);
    if (!o)
        return ERR_INVAL;
    int rc = ERR_INVAL;
    const struct api_model *m = api__get_encoder(c, o);
    struct emb *e = m ? mem_calloc(1, sizeof *e) : NULL;
    if (m && !e)
        api__nomem(c);
    if (e) {
        *e = (struct emb){.m = m, .answer = answer_fn, .created = c->created};
        snprintf(e->id, sizeof e->id, "%.80s", c->request_id ? c->request_id : "");
        c->priv = e;
        c->free_priv = emb_free;
        c->on_event = on_event;
        rc = api__check_fields(c, o, fields, known);
        rc = rc ? rc : params(c, e, o);
        rc = rc ? rc : parse(c, e, o);
        rc = rc ? rc : submit(c, e);
    }
    json_decref(o);
    return rc;
}
