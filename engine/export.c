/* See export.h. The keys are those that the architecture asked for while the folder was opened, with the values that came
 * out; what is wrong about that shows when they are read back. */
#include "engine/export.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine_impl.h"
#include "engine/export_form.h"
#include "engine/load/weights_out.h"
#include "engine/models/rows.h"
#include "engine/text/text_keys.h"

#define EXTRA_MAX 2
#define KEY_MAX   160

struct export
{
    struct layout l;
    struct ckpt_notes notes;
    char *dir;
    struct gguf_kvs kv;
    bool tokenizer;
    struct weight_out *w;
    int n_w, n_extra;
    struct gguf_tensor *t;                      /* [n_w + n_extra] */
    float extra[EXTRA_MAX][MODEL_HEAD_MAX / 2]; /* vectors that the folder has as numbers */
    const char *extra_name[EXTRA_MAX];
    bool
        pairs; /* a GGUF file of the architecture rotates pairs beside each other, the folder halves */
    struct export_form form;
    float *value; /* [2][n_value], the longest row or vector */
    int64_t n_value;
};

/* ---- metadata ---- */

static const char *arch_name(const struct export *x)
{
    const struct model_arch *a = x->l.model.arch;
    return a->gguf ? a->gguf : a->name;
}

static const char *full(const struct export *x, const char *key, char dst[KEY_MAX])
{
    snprintf(dst, KEY_MAX, "%s.%s", arch_name(x), key);
    return dst;
}

/* Whether a model has a use for a key. */
static bool wanted(const struct model_hp *hp, const char *key, bool zero)
{
    bool scaled = hp->rope_scaling == ROPE_SCALING_LINEAR || hp->rope_scaling == ROPE_SCALING_YARN;
    if (!strcmp(key, "attention.layer_norm_rms_epsilon"))
        return hp->norm == NORM_RMS;
    if (!strcmp(key, "attention.layer_norm_epsilon"))
        return hp->norm == NORM_LAYER;
    if (!strcmp(key, "rope.scaling.original_context_length") &&
        hp->rope_scaling == ROPE_SCALING_LONG)
        return true;
    if (!strcmp(key, "rope.scaling.attn_factor"))
        return !zero && (scaled || hp->rope_scaling == ROPE_SCALING_LONG);
    if (!strncmp(key, "rope.scaling.", 13))
        return scaled && !zero;
    if (!strcmp(key, "attention.head_count") || !strcmp(key, "feed_forward_length"))
        return true;
    return !zero;
}

static void put_row(struct export *x, const struct ckpt_note *note)
{
    const struct hp_row *r = note->row;
    const struct model_hp *hp = &x->l.model.hp;
    const char *field = (const char *)hp + r->field;
    char key[KEY_MAX];
    int32_t i = 0;
    float f = 0;
    bool b = false;
    if (r->type == HP_INT)
        memcpy(&i, field, sizeof i);
    else if (r->type == HP_FLOAT)
        memcpy(&f, field, sizeof f);
    else
        memcpy(&b, field, sizeof b);
    double v = r->type == HP_INT ? (double)i : (double)f;
    if (r->type != HP_BOOL &&
        (!wanted(hp, r->key, v == 0) || (v != 0 && (v < r->min || v > r->max))))
        return; /* what no file may say, the architecture has set itself */
    full(x, r->key, key);
    if (r->type == HP_FLOAT && note->given && fabs((double)f * note->v - 1) < 1e-6)
        f = (float)note->v; /* the architecture divides by it */
    if (r->type == HP_INT)
        gguf_put_u32(&x->kv, key, (uint32_t)i);
    else if (r->type == HP_FLOAT)
        gguf_put_f32(&x->kv, key, f);
    else
        gguf_put_bool(&x->kv, key, b);
}

static bool attends(const struct layer_hp *l)
{
    return l->mixer == MIX_ATTN || l->mixer == MIX_MLA || l->beside == MIX_ATTN;
}

/* Layers that differ: bits 1: some attend, 2: some don't, 4: some have an MLP, 8: some don't, 16: a window, 32: none, 64: none
 * rotates though the model could, 128: attention or Qwen's delta nets. */
static unsigned layer_kinds(const struct model_hp *hp)
{
    unsigned k = hp->rope_style != ROPE_NONE ? 64 : 0;
    for (int i = 0; i < hp->n_layer; i++) {
        const struct layer_hp *l = &hp->layer[i];
        k |= attends(l) ? 1 : 2;
        k |= l->ffn != FFN_NONE ? 4 : 8;
        k |= l->window ? 16 : 32;
        k |= l->mixer == MIX_DELTA && !hp->kv_rank ? 128 : 0;
        if (attends(l) && !l->nope)
            k &= ~64u;
    }
    return k;
}

/* Lists by layer in place of one number. true: the key has been written. */
static bool put_by_layer(struct export *x, const char *name, unsigned kinds)
{
    const struct model_hp *hp = &x->l.model.hp;
    /* Every n-th layer attends where the others are delta nets: there is a key for n. */
    bool kv = !strcmp(name, "attention.head_count_kv") && (kinds & 3) == 3 && !(kinds & 128);
    bool ff = !strcmp(name, "feed_forward_length") && (kinds & 12) == 12;
    char key[KEY_MAX];
    if (!kv && !ff)
        return false;
    gguf_put_list(&x->kv, full(x, name, key), GGUF_I32, (uint64_t)hp->n_layer);
    for (int i = 0; i < hp->n_layer; i++) {
        const struct layer_hp *l = &hp->layer[i];
        int32_t v = kv ? (attends(l) ? hp->n_kv_head : 0)
                       : (l->ffn == FFN_NONE  ? 0
                          : l->ffn == FFN_MOE ? hp->moe.n_ff
                                              : hp->n_ff);
        buf_add(&x->kv.b, &v, sizeof v);
    }
    return true;
}

static bool noted(const struct export *x, const char *key)
{
    for (int i = 0; i < x->notes.n; i++)
        if (!strcmp(x->notes.at[i].key, key))
            return true;
    return false;
}

static void put_derived(struct export *x, unsigned kinds)
{
    static const uint32_t gating[] = {
        [ROUTE_SOFTMAX] = 1, [ROUTE_SIGMOID] = 2, [ROUTE_SOFTMAX_USED] = 3};
    const struct model_hp *hp = &x->l.model.hp;
    char key[KEY_MAX];
    if (hp->head_dim && !hp->own_heads)
        gguf_put_u32(&x->kv, full(x, "attention.value_length", key), (uint32_t)hp->head_dim);
    const char *scaling = hp->rope_scaling == ROPE_SCALING_LINEAR && hp->rope_factor < 1e6f
                              ? "linear"
                          : hp->rope_scaling == ROPE_SCALING_YARN ? "yarn"
                          : hp->rope_scaling == ROPE_SCALING_LONG ? "longrope"
                                                                  : NULL;
    if (scaling)
        gguf_put_str(&x->kv, full(x, "rope.scaling.type", key), view_str(scaling));
    if (hp->moe.n_expert > 0)
        gguf_put_u32(&x->kv, full(x, "expert_gating_func", key), gating[hp->moe.score]);
    if (hp->kv_rank > 0) {
        gguf_put_u32(&x->kv, full(x, "attention.key_length_mla", key),
                     (uint32_t)(hp->n_nope + hp->n_rot));
        gguf_put_u32(&x->kv, full(x, "attention.value_length", key), (uint32_t)hp->kv_rank);
    }
    if (hp->kv_rank > 0 && hp->rope_scaling == ROPE_SCALING_YARN && hp->rope_mscale_all > 0)
        gguf_put_f32(&x->kv, full(x, "rope.scaling.yarn_log_multiplier", key),
                     0.1f * hp->rope_mscale_all);
    int32_t dense = 0;
    while (dense < hp->n_layer && hp->layer[dense].ffn == FFN_DENSE)
        dense++;
    if (hp->moe.n_expert > 0 && dense < hp->n_layer && !noted(x, "leading_dense_block_count"))
        gguf_put_u32(&x->kv, full(x, "leading_dense_block_count", key), (uint32_t)dense);
    if (hp->state.inner_norm)
        gguf_put_bool(&x->kv, full(x, "ssm.dt_b_c_rms", key), true);
    if (kinds & 64)
        gguf_put_bool(&x->kv, full(x, "rope.scaling.finetuned", key), false);
    if ((kinds & 48) == 48) {
        gguf_put_list(&x->kv, full(x, "attention.sliding_window_pattern", key), GGUF_BOOL,
                      (uint64_t)hp->n_layer);
        for (int i = 0; i < hp->n_layer; i++)
            buf_char(&x->kv.b, hp->layer[i].window > 0);
    }
}

static int put_keys(struct export *x, struct err *e)
{
    const struct model_hp *hp = &x->l.model.hp;
    unsigned kinds = layer_kinds(hp);
    char key[KEY_MAX];
    gguf_put_str(&x->kv, "general.architecture", view_str(arch_name(x)));
    for (int i = 0; i < x->notes.n; i++) {
        const struct ckpt_note *n = &x->notes.at[i];
        if (put_by_layer(x, n->key, kinds))
            continue;
        full(x, n->key, key);
        if (n->type == CKPT_NOTE_ROW)
            put_row(x, n);
        else if (n->type == CKPT_NOTE_BOOL)
            gguf_put_bool(&x->kv, key, n->v != 0);
        else if (n->type == CKPT_NOTE_NUM)
            gguf_put_f32(&x->kv, key, (float)n->v);
        else if (n->v >= 0 && n->v <= UINT32_MAX)
            gguf_put_u32(&x->kv, key, (uint32_t)n->v);
    }
    put_derived(x, kinds);
    int rc = text_keys_write(&x->kv, x->dir, hp->n_vocab, &x->tokenizer, e);
    return rc ? rc : x->kv.b.failed ? err_set(e, ERR_NOMEM, "no memory for the metadata") : 0;
}

/* ---- tensors ---- */

/* Whether the architecture reads a vector of that name from a GGUF file. */
static bool reads(const struct export *x, const char *name)
{
    const struct model_arch *a = x->l.model.arch;
    for (int i = 0; i < a->n_weight; i++)
        if (a->weight[i].name[0] && !strcmp(a->weight[i].name[0], name))
            return true;
    return false;
}

static int no_form(const struct export *x, const char *what, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "architecture %s: a GGUF file can't say %s", arch_name(x),
                   what);
}

/* Factors of frequencies. */
static int extra_fill(struct export *x, struct err *e)
{
    struct model_hp *hp = &x->l.model.hp;
    size_t bytes = (size_t)hp->n_rot / 2 * sizeof(float);
    if (hp->rope_scaling == ROPE_SCALING_DYNAMIC)
        return no_form(x, "rope_type \"dynamic\"", e);
    if (hp->rope_scaling == ROPE_SCALING_LLAMA3) {
        float scaled[MODEL_HEAD_MAX / 2], plain[MODEL_HEAD_MAX / 2], was = hp->attn_factor;
        if (!reads(x, x->extra_name[x->n_extra] = "rope_freqs.weight"))
            return no_form(x, "rope_type \"llama3\"", e);
        model_rope_freqs(hp, scaled);
        hp->rope_scaling = ROPE_SCALING_NONE;
        model_rope_freqs(hp, plain);
        hp->rope_scaling = ROPE_SCALING_LLAMA3;
        hp->attn_factor = was;
        for (int i = 0; i < hp->n_rot / 2; i++)
            x->extra[0][i] = plain[i] / scaled[i];
        x->n_extra++;
    }
    if (hp->rope_scaling == ROPE_SCALING_LONG) {
        static const char *const names[] = {"rope_factors_long.weight",
                                            "rope_factors_short.weight"};
        for (int k = 0; k < 2; k++) {
            if (!reads(x, x->extra_name[x->n_extra] = names[k]))
                return no_form(x, "rope_type \"longrope\"", e);
            memcpy(x->extra[x->n_extra++], k ? hp->rope_short : hp->rope_long, bytes);
        }
    }
    return 0;
}

/* Mamba 2: a row a head, and a norm's row a group; convolutions of a delta net. */
static void shape_state(const struct model_hp *hp, struct gguf_tensor *t)
{
    int layer = 0, at = 0;
    sscanf(t->name.p, "blk.%d.%n", &layer, &at);
    const char *name = t->name.p + at;
    const struct layer_hp *l = &hp->layer[layer];
    if (at && l->mixer == MIX_DELTA && !strncmp(name, "ssm_conv1d_", 11)) { /* Kimi's */
        t->n_dim = 4;
        t->dim[2] = t->dim[0] / hp->state.n_conv;
        t->dim[0] = hp->state.n_conv;
    }
    if (!at || (l->mixer != MIX_MAMBA2 && l->beside != MIX_MAMBA2))
        return;
    int64_t rows = !strcmp(name, "ssm_a") || !strcmp(name, "ssm_d") ? t->dim[0]
                   : !strcmp(name, "ssm_norm.weight")               ? hp->state.n_group
                                                                    : 0;
    if (rows && t->n_dim == 1 && t->dim[0] % rows == 0) {
        t->n_dim = 2;
        t->dim[0] /= rows;
        t->dim[1] = rows;
    }
}

static void tensor_fill(struct export *x)
{
    for (int i = 0; i < x->n_w; i++) {
        const struct weight_out *w = &x->w[i];
        x->t[i] = (struct gguf_tensor){
            .name = view_str(w->name), .fmt = w->fmt, .n_dim = w->n_dim, .dim = {1, 1, 1, 1}};
        memcpy(x->t[i].dim, w->dim, sizeof w->dim);
        if (!weights_out_is_vector(x->l.weights, w) && export_form_touches(&x->form, &x->t[i]))
            x->t[i].fmt = QF_F32;
        shape_state(&x->l.model.hp, &x->t[i]);
    }
    for (int i = 0; i < x->n_extra; i++)
        x->t[x->n_w + i] = (struct gguf_tensor){.name = view_str(x->extra_name[i]),
                                                .fmt = QF_F32,
                                                .n_dim = 1,
                                                .dim = {x->l.model.hp.n_rot / 2, 1, 1, 1}};
}

static bool has_head(const struct export *x)
{
    for (int i = 0; i < x->n_w; i++)
        if (!strcmp(x->w[i].name, "output.weight"))
            return true;
    return false;
}

static int tensors_open(struct export *x, struct err *e)
{
    const struct model_hp *hp = &x->l.model.hp;
    struct weight_out_rope rope = {.qkv = LAYER(qkv),
                                   .qkv_bias = LAYER(qkv_bias),
                                   .n_q = hp->dim[DIM_Q],
                                   .n_k = hp->dim[DIM_KV],
                                   .head = hp->head_dim,
                                   .rot = hp->n_rot};
    int rc = weights_out_list(&x->w, &x->n_w, x->l.weights, &x->l.table, &rope, e);
    if (rc)
        return rc;
    x->t = mem_calloc((size_t)(x->n_w + x->n_extra) + 1, sizeof *x->t);
    if (!x->t)
        return err_set(e, ERR_NOMEM, "no memory for %d tensors", x->n_w);
    x->form = (struct export_form){.hp = hp, .scaled = !strcmp(arch_name(x), "falcon-h1")};
    tensor_fill(x);
    int64_t most = 1;
    for (int i = 0; i < x->n_w; i++) {
        const int64_t *d = x->t[i].dim;
        int64_t n =
            weights_out_is_vector(x->l.weights, &x->w[i]) ? d[0] * d[1] * d[2] * d[3] : d[0];
        most = n > most ? n : most;
    }
    if (x->form.scaled && hp->embd_scale != hp->logit_scale && !has_head(x))
        return no_form(x, "two factors of one matrix: embedding_multiplier, lm_head_multiplier", e);
    x->value = mem_calloc((size_t)most * 2, sizeof *x->value);
    x->n_value = most;
    return x->value ? 0
                    : err_set(e, ERR_NOMEM, "no memory for a row of %lld values", (long long)most);
}

int export_open(struct export **out, const char *dir, struct err *e)
{
    size_t n = strlen(dir) + 1;
    *out = NULL;
    struct export *x = mem_calloc(1, sizeof *x);
    if (x)
        x->dir = mem_alloc(n);
    if (!x || !x->dir) {
        export_close(x);
        return err_set(e, ERR_NOMEM, "no memory for the folder's model");
    }
    memcpy(x->dir, dir, n);
    int rc = eng__layout_describe(&x->l, dir, &x->notes, e);
    if (rc || (rc = extra_fill(x, e)) || (rc = tensors_open(x, e)) || (rc = put_keys(x, e))) {
        export_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

void export_close(struct export *x)
{
    if (!x)
        return;
    eng__layout_close(&x->l);
    gguf_kvs_free(&x->kv);
    free(x->dir);
    free(x->value);
    free(x->w);
    free(x->t);
    free(x);
}

struct gguf_kvs *export_keys(struct export *x)
{
    return &x->kv;
}

bool export_has_tokenizer(const struct export *x)
{
    return x->tokenizer;
}

int export_n_tensor(const struct export *x)
{
    return x->n_w + x->n_extra;
}

const struct gguf_tensor *export_tensor_at(const struct export *x, int i)
{
    return &x->t[i];
}

bool export_is_vector(const struct export *x, int i)
{
    return i >= x->n_w || weights_out_is_vector(x->l.weights, &x->w[i]);
}

bool export_is_looked_up(const struct export *x, int i)
{
    return i < x->n_w && !weights_out_is_multiplied(x->l.weights, &x->w[i]);
}

int export_row(const struct export *x, int i, int64_t r, void *dst, struct err *e)
{
    if (i >= x->n_w) {
        memcpy(dst, x->extra[i - x->n_w], (size_t)x->t[i].dim[0] * sizeof(float));
        return 0;
    }
    struct weight_out w = x->w[i];
    w.head = x->pairs ? w.head : 0;
    const struct gguf_tensor *t = &x->t[i];
    bool vector = weights_out_is_vector(x->l.weights, &w);
    r = vector ? r : export_form_row(&x->form, t, r);
    if (t->fmt == w.fmt && !vector && !export_form_touches(&x->form, t))
        return weights_out_row(x->l.weights, &w, r, dst, e);
    float *v = x->value, *tmp = v + x->n_value;
    int rc = weights_out_row(x->l.weights, &w, r, w.fmt == QF_F32 ? dst : tmp, e);
    if (rc)
        return rc;
    if (w.fmt != QF_F32)
        quant_format_get((uint32_t)w.fmt)->decode(tmp, dst, t->dim[0]);
    export_form_values(&x->form, t, r, vector, dst, v);
    return 0;
}

int export_files_check(const struct export *x, struct err *e)
{
    return ckpt_check_files(x->l.file, e);
}

/* ---- read back ---- */

/* Frequencies and their factor, however they are said; those that tensors say are equal by making. */
static bool rope_equal(const struct model_hp *f, const struct model_hp *h, struct model_hp *tmp)
{
    float a[2][MODEL_HEAD_MAX / 2], factor[2];
    const struct model_hp *two[2] = {f, h};
    for (int i = 0; i < 2; i++) {
        *tmp = *two[i];
        if (f->rope_scaling == ROPE_SCALING_LLAMA3)
            tmp->rope_scaling = ROPE_SCALING_NONE;
        memcpy(tmp->rope_long, f->rope_long, sizeof f->rope_long);
        memcpy(tmp->rope_short, f->rope_short, sizeof f->rope_short);
        model_rope_freqs(tmp, a[i]);
        factor[i] = tmp->attn_factor;
    }
    for (int i = 0; i < f->n_rot / 2; i++)
        if (fabsf(a[0][i] - a[1][i]) > 1e-6f * fabsf(a[0][i]))
            return false;
    return f->n_rot == h->n_rot && fabsf(factor[0] - factor[1]) <= 1e-6f * fabsf(factor[0]);
}

/* Values that differ by the kind of file and mean the same. */
static void hp_level(struct model_hp *hp)
{
    bool dense = false;
    for (int i = 0; i < hp->n_layer; i++)
        dense = dense || hp->layer[i].ffn == FFN_DENSE;
    if (!dense)
        hp->n_ff = 0, hp->dim[DIM_FF] = hp->dim[DIM_FF2] = 0;
    if (hp->state.n_head) /* a GGUF file has them under one key */
        hp->state.n_rank = 0, hp->dim[DIM_S_RANK] = 0;
    if (hp->kv_rank) /* set before the architecture has its own */
        hp->dim[DIM_HEAD] = hp->dim[DIM_QKV] = 0;
    hp->dim[DIM_CTX] = 0; /* of positions; set before contexts are cut */
    hp->rope_style = ROPE_NONE;
    hp->rope_scaling = ROPE_SCALING_NONE; /* see rope_equal */
    hp->rope_ctx_orig = 0;
    hp->rope_factor = hp->rope_beta_fast = hp->rope_beta_slow = 0;
    hp->rope_attn_factor = hp->rope_log_multiplier = hp->attn_factor = 0;
    hp->rope_low_freq = hp->rope_high_freq = hp->rope_mscale = hp->rope_mscale_all = 0;
    memset(hp->rope_long, 0, sizeof hp->rope_long);
    memset(hp->rope_short, 0, sizeof hp->rope_short);
}

/* The key of the value at byte `at` of the hyper-parameters, for a message. */
static const char *key_at(const struct export *x, size_t at, char dst[KEY_MAX])
{
    static const struct {
        size_t at;
        const char *text;
    } known[] = {{offsetof(struct model_hp, act), "which activation it has"},
                 {offsetof(struct model_hp, state.dt_min), "the bounds of dt"},
                 {offsetof(struct model_hp, state.dt_max), "the bounds of dt"},
                 {offsetof(struct model_hp, state.inner_norm), "where its norms stand"},
                 {offsetof(struct model_hp, state.norm_eps), "the epsilon of its inner norms"}};
    for (int i = 0; i < x->notes.n; i++) {
        const struct hp_row *r = x->notes.at[i].row;
        if (r && at >= r->field && at < r->field + 4)
            return r->key;
    }
    if (at >= offsetof(struct model_hp, layer) &&
        at < offsetof(struct model_hp, layer) + sizeof x->l.model.hp.layer)
        snprintf(dst, KEY_MAX, "what its layer %zu is",
                 (at - offsetof(struct model_hp, layer)) / sizeof(struct layer_hp));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (at >= known[i].at && at < known[i].at + 4)
            return known[i].text;
    return at < offsetof(struct model_hp, layer) ? "all of its config.json" : dst;
}

static int hp_equal(struct export *x, const struct layout *g, struct err *e)
{
    const struct model_hp *f = &x->l.model.hp, *h = &g->model.hp;
    bool differ = f->rope_style != h->rope_style;
    char what[KEY_MAX];
    size_t at = 0;
    x->pairs = differ && f->rope_style == ROPE_NEOX && h->rope_style == ROPE_NORM;
    if (differ && !x->pairs)
        return no_form(x, "how it rotates", e);
    struct model_hp *two = mem_calloc(2, sizeof *two);
    if (!two)
        return err_set(e, ERR_NOMEM, "no memory to compare hyper-parameters");
    two[1] = *h;
    bool rope = rope_equal(f, h, &two[0]);
    two[0] = *f;
    hp_level(&two[0]);
    hp_level(&two[1]);
    /* llama.cpp has one epsilon; Falcon Mamba's two differ by less than anything that shows. */
    if (f->state.inner_norm && fabsf(f->state.norm_eps - h->state.norm_eps) <= 1e-5f)
        two[0].state.norm_eps = two[1].state.norm_eps;
    x->form.cycle = h->state.cycle && !f->state.cycle;
    export_form_hp(&x->form, &two[0], &two[1]);
    const char *a = (const char *)&two[0], *b = (const char *)&two[1];
    while (at < sizeof *f && a[at] == b[at])
        at++;
    free(two);
    if (!rope)
        return no_form(x, "its rope parameters", e);
    return at == sizeof *f ? 0 : no_form(x, key_at(x, at, what), e);
}

int export_check(struct export *x, const char *path, struct err *e)
{
    struct layout g;
    int rc = eng__layout_describe(&g, path, NULL, e);
    if (rc) {
        err_prefix(e, "architecture %s: a GGUF file does not hold it", arch_name(x));
        return rc;
    }
    rc = hp_equal(x, &g, e);
    eng__layout_close(&g);
    return rc || !x->tokenizer ? rc : text_keys_check(x->dir, path, e);
}
