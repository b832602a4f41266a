/* POST /v1/rerank and /v1/score: how well texts go together. A classifier with one label (a cross-encoder) reads each
 * pair; other encoders compare vectors by the cosine of their angle. Shapes of the answers as vLLM has them. */
#include "api/embed.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/mem.h"

static const char *const rerank_fields[] = {
    "query", "documents", "top_n", "return_documents", "use_activation", "activation", NULL};
static const char *const score_fields[] = {"text_1", "text_2",         "queries",    "documents",
                                           "items",  "use_activation", "activation", NULL};

/* Scores of the pairs, in order, into v[0 .. n_doc): logits through the logistic function, or cosines. */
static void scores(struct emb *e, float *v)
{
    int d = e->m->encoder.dim;
    if (e->pairs) {
        for (int i = 0; i < e->n_doc && !e->raw; i++)
            v[i] = (float)(1 / (1 + exp(-(double)v[i])));
        return;
    }
    for (int i = 0; i < e->n_row; i++)
        emb_normalise(v + (size_t)i * (size_t)d, d);
    float *out = v; /* never ahead of what is still read: queries come first */
    const float *doc = v + (size_t)e->n_query * (size_t)d;
    float *keep = mem_alloc((size_t)e->n_doc * sizeof *keep);
    for (int i = 0; keep && i < e->n_doc; i++) {
        const float *a = v + (e->n_query > 1 ? (size_t)i * (size_t)d : 0);
        double sum = 0;
        for (int k = 0; k < d; k++)
            sum += (double)a[k] * (double)doc[(size_t)i * (size_t)d + (size_t)k];
        keep[i] = (float)sum;
    }
    for (int i = 0; i < e->n_doc; i++)
        out[i] = keep ? keep[i] : NAN;
    free(keep);
}

struct ranked {
    float score;
    int index;
};

/* Best first; equal ones as they were given. */
static int by_score(const void *pa, const void *pb)
{
    const struct ranked *a = pa, *b = pb;
    if (a->score < b->score || a->score > b->score)
        return a->score < b->score ? 1 : -1;
    return a->index - b->index;
}

static void put_model(struct buf *b, const struct emb *e)
{
    buf_str(b, ",\"model\":");
    buf_json(b, e->m->name, strlen(e->m->name));
}

static void write_rerank(struct emb *e, float *v, struct buf *b)
{
    struct ranked *r = mem_alloc((size_t)e->n_doc * sizeof *r);
    if (!r) {
        b->failed = true;
        return;
    }
    scores(e, v);
    for (int i = 0; i < e->n_doc; i++)
        r[i] = (struct ranked){v[i], i};
    qsort(r, (size_t)e->n_doc, sizeof *r, by_score);
    buf_str(b, "{\"id\":\"rerank-");
    buf_str(b, e->id);
    buf_char(b, '"');
    put_model(b, e);
    buf_fmt(b, ",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d},\"results\":[", e->n_prompt,
            e->n_prompt);
    for (int i = 0; i < e->n_doc && i < e->top_n; i++) {
        buf_fmt(b, "%s{\"index\":%d,", i ? "," : "", r[i].index);
        if (e->doc) {
            buf_str(b, "\"document\":{\"text\":");
            buf_json(b, e->doc[r[i].index], e->doc_len[r[i].index]);
            buf_str(b, "},");
        }
        buf_str(b, "\"relevance_score\":");
        emb_put_float(b, r[i].score);
        buf_char(b, '}');
    }
    buf_str(b, "]}\n");
    free(r);
}

static void write_score(struct emb *e, float *v, struct buf *b)
{
    scores(e, v);
    buf_str(b, "{\"id\":\"score-");
    buf_str(b, e->id);
    buf_fmt(b, "\",\"object\":\"list\",\"created\":%lld", (long long)e->created);
    put_model(b, e);
    buf_str(b, ",\"data\":[");
    for (int i = 0; i < e->n_doc; i++) {
        buf_fmt(b, "%s{\"index\":%d,\"object\":\"score\",\"score\":", i ? "," : "", i);
        emb_put_float(b, v[i]);
        buf_char(b, '}');
    }
    buf_fmt(b, "],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d}}\n", e->n_prompt,
            e->n_prompt);
}

/* ---- requests ---- */

/* A text, or an object with "text" (as other rerankers' clients send documents). */
static bool text_of(json_t *v, struct view *out)
{
    if (json_is_object(v))
        v = json_object_get(v, "text");
    if (!json_is_string(v))
        return false;
    *out = (struct view){json_string_value(v), json_string_length(v)};
    return true;
}

static json_t *at(json_t *v, size_t i)
{
    return json_is_array(v) ? json_array_get(v, json_array_size(v) == 1 ? 0 : i) : v;
}

/* A field with one or several texts; its own name goes to *param. */
static int texts(struct api_call *c, json_t *o, const char *const *names, json_t **out,
                 const char **param)
{
    *out = NULL;
    *param = names[0];
    for (int i = 0; names[i] && !*out; i++) {
        json_t *v = json_object_get(o, names[i]);
        if (!v || json_is_null(v))
            continue;
        *out = v;
        *param = names[i];
    }
    if (!*out)
        return api__bad(c, *param, "missing_required_parameter",
                        "Missing required parameter: '%s'.", *param);
    if (json_is_array(*out))
        return emb_check_count(c, *param, json_array_size(*out));
    struct view v;
    if (!text_of(*out, &v))
        return api__bad(c, *param, "invalid_type",
                        "Invalid type for '%s': expected a string or an array of strings, but got "
                        "%s.",
                        *param, api__json_type(*out));
    return 0;
}

static int text_at(struct api_call *c, json_t *list, size_t i, const char *name, char param[48],
                   struct view *out)
{
    if (json_is_array(list))
        snprintf(param, 48, "%s[%zu]", name, i);
    else
        snprintf(param, 48, "%s", name);
    if (!text_of(at(list, i), out))
        return api__bad(c, param, "invalid_type", "Invalid type for '%s': expected a string.",
                        param);
    return 0;
}

/* Rows for a (1 or n texts) and b (n texts): pairs, or all of a and then all of b. */
static int add_rows(struct api_call *c, struct emb *e, json_t *a, const char *na, json_t *b,
                    const char *nb)
{
    char param[48];
    struct view x, y;
    int n_a = json_is_array(a) ? (int)json_array_size(a) : 1;
    e->n_doc = json_is_array(b) ? (int)json_array_size(b) : 1;
    if (n_a != 1 && n_a != e->n_doc)
        return api__bad(c, na, "invalid_value",
                        "Invalid '%s': %d texts against %d of '%s'; one, or as many, are expected.",
                        na, n_a, e->n_doc, nb);
    e->n_query = n_a;
    for (int i = 0; e->pairs && i < e->n_doc; i++)
        if (text_at(c, a, (size_t)i, na, param, &x) || text_at(c, b, (size_t)i, nb, param, &y) ||
            emb_add_pair(c, e, param, x, y))
            return ERR_INVAL;
    for (int i = 0; !e->pairs && i < n_a; i++)
        if (text_at(c, a, (size_t)i, na, param, &x) || emb_add_text(c, e, param, x))
            return ERR_INVAL;
    for (int i = 0; !e->pairs && i < e->n_doc; i++)
        if (text_at(c, b, (size_t)i, nb, param, &y) || emb_add_text(c, e, param, y))
            return ERR_INVAL;
    return 0;
}

static int common(struct api_call *c, struct emb *e, json_t *o)
{
    const struct eng_encoder_info *i = &e->m->encoder;
    bool act = !i->raw_scores;
    if (i->n_label > 1)
        return api__bad(c, "model", "model_not_supported",
                        "This model has %d labels; one is needed to rank texts.", i->n_label);
    if (api__get_bool(c, o, "activation", &act) || api__get_bool(c, o, "use_activation", &act))
        return ERR_INVAL;
    e->pairs = i->n_label == 1;
    e->raw = !act;
    return 0;
}

/* Copies of the documents for the answer. */
static int keep_documents(struct api_call *c, struct emb *e, json_t *docs)
{
    e->doc = mem_calloc((size_t)e->n_doc, sizeof *e->doc);
    e->doc_len = mem_calloc((size_t)e->n_doc, sizeof *e->doc_len);
    if (!e->doc || !e->doc_len)
        return api__nomem(c);
    for (int i = 0; i < e->n_doc; i++) {
        struct view v = {"", 0};
        text_of(at(docs, (size_t)i), &v);
        e->doc[i] = mem_alloc(v.len + 1);
        if (!e->doc[i])
            return api__nomem(c);
        memcpy(e->doc[i], v.p, v.len);
        e->doc_len[i] = v.len;
    }
    return 0;
}

static int parse_rerank(struct api_call *c, struct emb *e, json_t *o)
{
    static const char *const query[] = {"query", NULL}, *const documents[] = {"documents", NULL};
    json_t *q, *d;
    const char *nq, *nd;
    int64_t top = INT32_MAX;
    bool give = true;
    if (common(c, e, o) || texts(c, o, query, &q, &nq) || texts(c, o, documents, &d, &nd) ||
        api__get_int(c, o, "top_n", (int64_t[2]){0, INT32_MAX}, &top) ||
        api__get_bool(c, o, "return_documents", &give))
        return ERR_INVAL;
    if (json_is_array(q))
        return api__bad(c, "query", "invalid_type",
                        "Invalid type for 'query': expected a string, but got an array.");
    e->top_n = top ? (int)top : INT32_MAX; /* 0: all, as vLLM's default says it */
    if (add_rows(c, e, q, nq, d, nd))
        return ERR_INVAL;
    return give ? keep_documents(c, e, d) : 0;
}

static int parse_score(struct api_call *c, struct emb *e, json_t *o)
{
    static const char *const first[] = {"text_1", "queries", NULL};
    static const char *const second[] = {"text_2", "documents", "items", NULL};
    json_t *a, *b;
    const char *na, *nb;
    if (common(c, e, o) || texts(c, o, first, &a, &na) || texts(c, o, second, &b, &nb))
        return ERR_INVAL;
    return add_rows(c, e, a, na, b, nb);
}

int api_rerank(struct api_call *c)
{
    return emb_run(c, rerank_fields, write_rerank, parse_rerank);
}

int api_score(struct api_call *c)
{
    return emb_run(c, score_fields, write_score, parse_score);
}
