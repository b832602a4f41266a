/* From options and file to sizes: architecture, hyper-parameters, weight plan, limits, memory. Nothing of
 * a device is opened here, so the memory plan and the load share every check. */
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/engine_impl.h"

#include <stdio.h>
#include <string.h>

#define LAYOUT_VERSION 2 /* raise when KV bytes of equal inputs change */

int eng__file_open(struct ckpt **out, const struct eng_opts *o, struct err *e)
{
    *out = NULL;
    if (!o->path || !o->path[0])
        return err_set(e, ERR_INVAL, "no model file is given");
    return ckpt_open(out, o->path, e);
}

static int limit(int *out, const char *name, int value, int standard, int max, struct err *e)
{
    if (value < 0 || value > max)
        return err_set(e, ERR_INVAL, "%s is %d, expected 0 to %d", name, value, max);
    *out = value ? value : standard;
    return 0;
}

int eng__limits_set(struct eng_info *info, const struct eng_opts *o, struct err *e)
{
    int rc = limit(&info->max_seqs, "max_seqs", o->max_seqs, 64, 65536, e);
    if (rc || (rc = limit(&info->max_rows, "max_rows", o->max_rows, 512, 1 << 20, e)))
        return rc;
    info->block_len = KV_BLOCK_TOKENS;
    int n;
    rc = limit(&n, "n_state", o->n_state, 0, 1 << 20, e);
    if (rc)
        return rc;
    return limit(&info->max_logit_rows, "max_logit_rows", o->max_logit_rows, info->max_seqs + 64,
                 1 << 20, e);
}

static int arch_find(struct layout *l, struct err *e)
{
    struct view name;
    int rc = ckpt_arch(l->file, &name, e);
    if (rc)
        return rc;
    l->model.arch = model_arch_find(name, ckpt_is_hf(l->file));
    if (!l->model.arch)
        return err_set(e, ERR_UNSUPPORTED,
                       "architecture \"%.*s\" is not known; docs/models.md lists those that are",
                       (int)(name.len > 60 ? 60 : name.len), name.p);
    ckpt_prefix_set(l->file, l->model.arch->name);
    snprintf(l->info.arch, sizeof l->info.arch, "%s", l->model.arch->name);
    return 0;
}

static int hparams_read(struct layout *l, struct err *e)
{
    struct model_hp *hp = &l->model.hp;
    int rc = l->model.arch->hparams(hp, l->file, e);
    if (!rc)
        model_layers_set(hp);
    return rc;
}

static int weights_find(struct layout *l, struct err *e)
{
    struct model *m = &l->model;
    m->layer = mem_calloc((size_t)m->hp.n_layer, sizeof *m->layer);
    m->kind = mem_calloc((size_t)m->hp.n_layer, sizeof *m->kind);
    if (!m->layer || !m->kind)
        return err_set(e, ERR_NOMEM, "no memory for %d layers", m->hp.n_layer);
    for (int i = 0; i < m->hp.n_layer; i++) {
        const struct layer_hp *y = &m->hp.layer[i];
        m->kind[i] = KIND_MIX(y->mixer) | KIND_FFN(y->ffn) | (unsigned)y->user * KIND_USER(0);
        if (y->beside)
            m->kind[i] |= KIND_MIX(y->beside);
    }
    l->table = (struct weight_table){.row = m->arch->weight,
                                     .n_row = m->arch->n_weight,
                                     .dim = m->hp.dim,
                                     .n_layer = m->hp.n_layer,
                                     .kind = m->kind,
                                     .hf_layer =
                                         m->arch->hf_layer ? m->arch->hf_layer : "model.layers.%d.",
                                     .hf_ignore = m->arch->hf_ignore,
                                     .hp = &m->hp,
                                     .global = m,
                                     .layer = m->layer,
                                     .layer_bytes = sizeof *m->layer};
    return weights_plan_open(&l->weights, l->file, &l->table, e);
}

/* Same inputs, same KV bytes: prefixes of another layout must never be taken for equal. */
static uint64_t layout_id(const struct layout *l, const struct eng_opts *o)
{
    const uint64_t parts[] = {
        LAYOUT_VERSION,
        (uint64_t)l->kv[0].dtype,
        (uint64_t)l->kv[0].n_layer,
        (uint64_t)l->kv[0].n_kv_head,
        (uint64_t)l->kv[0].head_dim,
        (uint64_t)l->kv[1].n_layer,
        (uint64_t)l->kv[1].n_kv_head,
        (uint64_t)l->kv[1].head_dim,
        (uint64_t)o->precision,
        KV_BLOCK_TOKENS,
        (uint64_t)l->state.n_layer,
        (uint64_t)l->state.n,
    };
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        h = hash_u64(h ^ parts[i]);
    return h;
}

/* Slots for states: a running sequence needs one, the others keep the states of texts that may come again. Without a
 * wish, at most half of what is free goes to them where there is KV too. */
static int state_set(struct layout *l, const struct eng_opts *o, size_t fixed, struct err *e)
{
    struct state_desc *s = &l->state;
    int n_layer = model_state_layers(&l->model.hp);
    size_t slot, all, room = l->mem.available - l->mem.available / 10;
    if (n_layer == 0)
        return 0;
    if (!l->model.be->state_open)
        return err_set(e, ERR_UNSUPPORTED,
                       "device %s has no operations for the recurrent layers of %s",
                       l->model.be->name, l->model.arch->name);
    *s = (struct state_desc){.n_layer = n_layer, .n = l->model.hp.state.n};
    if (s->n <= 0 || !ck_mul((size_t)s->n, (size_t)n_layer, &slot) || !ck_mul(slot, 4, &slot) ||
        slot > INT64_MAX / 4)
        return err_set(e, ERR_LIMIT, "recurrent states of %lld values a layer do not fit",
                       (long long)s->n);
    room = room > fixed ? room - fixed : 0;
    if (l->kv[0].n_layer > 0 && !o->n_state)
        room /= 2;
    size_t most = room / slot, want = (size_t)(o->n_state ? o->n_state : l->info.max_seqs + 64);
    if (most < 1 || (o->n_state && most < want))
        return err_set(e, ERR_NOMEM, "%zu recurrent states of %zu MiB do not fit into %zu MiB",
                       o->n_state ? want : 1, slot >> 20, room >> 20);
    s->n_slot = (int32_t)(most < want ? most : want);
    all = slot * (size_t)s->n_slot;
    l->mem.state = l->info.state_bytes = all;
    l->info.n_state = s->n_slot;
    return 0;
}

static int memory_set(struct layout *l, const struct eng_opts *o, struct err *e)
{
    struct model *m = &l->model;
    struct eng_memory *mem = &l->mem;
    struct kv_plan kv;
    size_t fixed;
    model_kv_describe(&m->hp, l->kv);
    int rc = eng_kv_dtype(o->kv_dtype, o->precision, &l->kv[0].dtype, e);
    l->kv[1].dtype = l->kv[0].dtype;
    if (rc)
        return rc;
    weights_plan_round(l->weights, o->quantize);
    mem->file = ckpt_file_bytes(l->file);
    mem->weights = weights_plan_bytes(l->weights, m->be, o->precision);
    mem->available = eng_memory_available("");
    if (m->be->memory) { /* weights, KV and activations live in the device's own */
        size_t total;
        if (m->be->memory(&mem->available, &total))
            return err_set(e, ERR_UNSUPPORTED, "device %s does not tell its memory: is there a GPU?",
                           m->be->name);
    }
    m->hp.n_ctx_run = o->n_ctx; /* what is served, if it is said */
    /* f32 is the widest activation of any backend. */
    rc = model_work_open(m, DT_F32, l->info.max_rows, l->info.max_logit_rows, e);
    if (rc)
        return rc;
    mem->work = m->work.bytes;
    if (!ck_add(mem->weights, mem->work, &fixed))
        return err_set(e, ERR_LIMIT, "the weights do not fit in memory");
    rc = state_set(l, o, fixed, e);
    if (rc)
        return rc;
    fixed += mem->state; /* it is below what is available */
    struct kv_request r = {.dtype = o->kv_dtype,
                           .precision = o->precision,
                           .kv_bytes = o->kv_bytes,
                           .n_ctx = o->n_ctx,
                           .n_ctx_model = m->hp.n_ctx,
                           .max_seqs = l->info.max_seqs,
                           .available = mem->available,
                           .fixed = fixed};
    rc = eng_kv_plan(&kv, l->kv, MODEL_POOLS, &r, m->be, e);
    if (rc)
        return rc;
    mem->kv = kv.bytes;
    mem->kv_per_token = kv.block_bytes / KV_BLOCK_TOKENS;
    mem->n_ctx = l->info.n_ctx = kv.n_ctx;
    mem->n_block = l->info.n_block = kv.n_block;
    mem->total = fixed + kv.bytes; /* eng_kv_plan kept it under `available` */
    return 0;
}

static int layout_fill(struct layout *l, const struct eng_opts *o, struct err *e)
{
    int rc = eng__limits_set(&l->info, o, e);
    if (rc || (rc = backend_find(o->device, &l->model.be, e)) ||
        (rc = eng__file_open(&l->file, o, e)) || (rc = arch_find(l, e)) ||
        (rc = hparams_read(l, e)) || (rc = weights_find(l, e)) || (rc = memory_set(l, o, e)))
        return rc;
    l->info.n_vocab = l->model.hp.n_vocab;
    l->info.weight_bytes = l->mem.weights;
    l->info.kv_bytes = l->mem.kv;
    l->info.work_bytes = l->mem.work;
    l->info.layout_id = layout_id(l, o);
    return 0;
}

/* Defaults that a file may leave out. */
static void layout_init(struct layout *l)
{
    *l = (struct layout){0};
    l->model.hp = (struct model_hp){.rope_base = 10000,
                                    .rope_factor = 1,
                                    .rope_beta_fast = 32,
                                    .rope_beta_slow = 1,
                                    .rope_low_freq = 1,
                                    .rope_high_freq = 4,
                                    .norm_eps = -1, /* not read yet */
                                    .residual_scale = 1,
                                    .logit_scale = 1,
                                    .embd_scale = 1};
}

int eng__layout_describe(struct layout *l, const char *path, struct ckpt_notes *notes,
                         struct err *e)
{
    layout_init(l);
    int rc = ckpt_open(&l->file, path, e);
    if (!rc)
        ckpt_notes_set(l->file, notes);
    if (rc || (rc = arch_find(l, e)) || (rc = hparams_read(l, e)) || (rc = weights_find(l, e)))
        eng__layout_close(l);
    return rc;
}

int eng__layout_open(struct layout *l, const struct eng_opts *o, struct err *e)
{
    layout_init(l);
    int rc = layout_fill(l, o, e);
    if (rc)
        eng__layout_close(l);
    return rc;
}

void eng__layout_close(struct layout *l)
{
    weights_plan_close(l->weights);
    ckpt_close(l->file);
    free(l->model.layer);
    free(l->model.kind);
    *l = (struct layout){0};
}
