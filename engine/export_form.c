/* See export_form.h. */
#include "engine/export_form.h"

#include <stdio.h>
#include <string.h>

/* The name behind "blk.N.", and N. */
static const char *stem(const struct gguf_tensor *t, int *layer)
{
    int at = 0;
    *layer = 0;
    sscanf(t->name.p, "blk.%d.%n", layer, &at);
    return t->name.p + at;
}

static bool is(const char *name, const char *stem_of)
{
    size_t n = strlen(stem_of);
    return strncmp(name, stem_of, n) == 0 && (name[n] == 0 || name[n] == '.');
}

/* ---- order of heads ---- */

/* Heads of values lie from `from` on, `width` rows (values, columns) each, two such runs behind each other in some. */
struct heads {
    int64_t from, width;
    bool columns, vector;
};

static bool heads_of(const struct export_form *f, const struct gguf_tensor *t, struct heads *h)
{
    const struct model_hp *hp = f->hp;
    const int64_t keys = 2 * hp->dim[DIM_S_KEYS], d = hp->state.head_dim;
    const struct {
        const char *name;
        struct heads h;
    } known[] = {
        {"attn_qkv.weight", {keys, d, false, false}},
        {"attn_gate.weight", {0, d, false, false}},
        {"ssm_beta.weight", {0, 1, false, false}},
        {"ssm_alpha.weight", {0, 1, false, false}},
        {"ssm_conv1d.weight", {keys * hp->state.n_conv, d * hp->state.n_conv, false, true}},
        {"ssm_dt.bias", {0, 1, false, true}},
        {"ssm_a", {0, 1, false, true}},
        {"ssm_out.weight", {0, d, true, false}}};
    int layer;
    const char *name = stem(t, &layer);
    if (name == t->name.p || hp->layer[layer].mixer != MIX_DELTA)
        return false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            *h = known[i].h;
            return true;
        }
    return false;
}

/* The folder's place for place i: there heads of values lie by their head of keys. */
static int64_t place(const struct export_form *f, const struct heads *h, int64_t i)
{
    const struct state_hp *s = &f->hp->state;
    if (i < h->from)
        return i;
    int64_t head = (i - h->from) / h->width, n_key = s->n_key_head, per = s->n_head / n_key;
    return h->from + (head % n_key * per + head / n_key) * h->width + (i - h->from) % h->width;
}

/* ---- factors ---- */

static float or_1(float f)
{
    return f == 0 ? 1 : f;
}

/* Of row r. */
static float factor(const struct export_form *f, const struct gguf_tensor *t, int64_t r)
{
    const struct model_hp *hp = f->hp;
    const struct mup_hp *m = &hp->mup;
    int layer;
    const char *name = stem(t, &layer);
    const struct {
        const char *name;
        float by;
    } known[] = {{"token_embd", or_1(hp->embd_scale)},
                 {"output", or_1(hp->logit_scale)},
                 {"attn_q", or_1(m->qkv)},
                 {"attn_k", or_1(m->qkv) * or_1(m->k)},
                 {"attn_v", or_1(m->qkv)},
                 {"attn_output", or_1(m->attn_out)},
                 {"ssm_out", or_1(m->ssm_out)},
                 {"ffn_gate", or_1(m->gate)},
                 {"ffn_down", or_1(m->down)}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(name, known[i].name))
            return known[i].by;
    if (!is(name, "ssm_in"))
        return 1;
    const int64_t d = hp->dim[DIM_S_INNER], bc = (int64_t)hp->state.n_group * hp->state.n_state;
    const int64_t width[] = {d, d, bc, bc};
    int zone = 0;
    while (zone < 4 && r >= width[zone])
        r -= width[zone++];
    return or_1(m->ssm[zone]);
}

/* ---- */

bool export_form_touches(const struct export_form *f, const struct gguf_tensor *t)
{
    struct heads h;
    bool one = true;
    for (int64_t r = 0; r < t->dim[1] && one && f->scaled; r++)
        one = factor(f, t, r) == 1;
    return !one ||
           (heads_of(f, t, &h) && h.columns && f->hp->state.n_head != f->hp->state.n_key_head);
}

int64_t export_form_row(const struct export_form *f, const struct gguf_tensor *t, int64_t r)
{
    struct heads h;
    return f->cycle && heads_of(f, t, &h) && !h.columns && !h.vector ? place(f, &h, r) : r;
}

void export_form_values(const struct export_form *f, const struct gguf_tensor *t, int64_t r,
                        bool vector, float *v, float *tmp)
{
    struct heads h;
    int64_t n = vector ? t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3] : t->dim[0];
    for (int64_t i = 0; i < n && f->scaled; i++)
        v[i] *= factor(f, t, vector ? i : r);
    if (!f->cycle || !heads_of(f, t, &h) || (!h.columns && !h.vector))
        return;
    memcpy(tmp, v, (size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = tmp[place(f, &h, i)];
}

void export_form_hp(const struct export_form *f, struct model_hp *hp, const struct model_hp *file)
{
    if (f->cycle)
        hp->state.cycle = file->state.cycle;
    if (!f->scaled)
        return;
    hp->mup = file->mup;
    hp->embd_scale = file->embd_scale;
    hp->logit_scale = file->logit_scale;
}
