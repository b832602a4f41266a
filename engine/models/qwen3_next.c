/* Qwen3-Next and Qwen3.5 (Qwen Team 2025, 2026): three layers with a gated delta net (Yang et al. 2024) to one with
 * attention whose output is gated by half of what q's product gives. Norms are 1 + w in a folder (not the delta net's).
 *
 * Rows of the products are brought into one order here: the delta net's [q, k, v, output gate] and [beta, decay], where
 * Qwen3-Next's folders hold them by heads of keys; the attention's gates before its q. A GGUF file of Qwen3.5 has its
 * heads of values in another order: key heads repeat as a whole. */
#include "engine/models/qwen3_next.h"

/* Row of a folder's (and a GGUF's) attn_q for row i: all heads' gates, then all heads' q. */
int64_t qwen3_next_q_row(const struct model_hp *hp, int part, int64_t i)
{
    int64_t hd = hp->head_dim, n = hp->dim[DIM_Q];
    if (part > 0)
        return i;
    return i < n ? i / hd * 2 * hd + hd + i % hd : (i - n) / hd * 2 * hd + (i - n) % hd;
}

/* [q, k, v, z] from what lies by heads of keys: q, k, the v and the z of its value heads. */
int64_t qwen3_next_in_row(const struct model_hp *hp, int part, int64_t i)
{
    const struct state_hp *s = &hp->state;
    int64_t dk = s->d_key, keys = hp->dim[DIM_S_KEYS], values = hp->dim[DIM_S_INNER];
    int64_t dv = values / s->n_key_head, all = 2 * dk + 2 * dv;
    (void)part;
    if (i < keys)
        return i / dk * all + i % dk;
    i -= keys;
    if (i < keys)
        return i / dk * all + dk + i % dk;
    i -= keys;
    if (i < values)
        return i / dv * all + 2 * dk + i % dv;
    i -= values;
    return i / dv * all + 2 * dk + dv + i % dv;
}

/* [beta, decay] from what lies by heads of keys. */
int64_t qwen3_next_ba_row(const struct model_hp *hp, int part, int64_t i)
{
    int64_t n = hp->state.n_head, per = n / hp->state.n_key_head;
    (void)part;
    return i < n ? i / per * 2 * per + i % per : (i - n) / per * 2 * per + per + (i - n) % per;
}

static const struct hp_row rows[] = {
    {"ssm.conv_kernel", "linear_conv_kernel_dim", HP_INT, false,
     offsetof(struct model_hp, state.n_conv), 2, STATE_CONV_MAX},
    {"ssm.state_size", "linear_key_head_dim", HP_INT, false, offsetof(struct model_hp, state.d_key),
     1, STATE_KEY_MAX},
    {"ssm.group_count", "linear_num_key_heads", HP_INT, false,
     offsetof(struct model_hp, state.n_key_head), 1, 65536},
    {"ssm.time_step_rank", "linear_num_value_heads", HP_INT, false,
     offsetof(struct model_hp, state.n_head), 1, 65536},
    {"ssm.inner_size", NULL, HP_INT, true, offsetof(struct model_hp, state.d_inner), 1, 1 << 20},
    {NULL, "linear_value_head_dim", HP_INT, true, offsetof(struct model_hp, state.head_dim), 1,
     65536},
};

static bool layer_type(struct layer_hp *l, struct view type)
{
    l->mixer = view_is(type, "linear_attention") ? MIX_DELTA : MIX_ATTN;
    return l->mixer == MIX_DELTA || view_is(type, "full_attention");
}

int qwen3_next_hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct state_hp *s = &hp->state;
    int64_t every = 4, *d = hp->dim;
    int rc = model_hp_read(hp, c, rows, sizeof rows / sizeof *rows, e);
    if (rc)
        return rc;
    if (s->head_dim == 0)
        s->head_dim = s->d_inner / s->n_head;
    if (s->d_inner == 0 && s->head_dim <= (1 << 20) / s->n_head)
        s->d_inner = s->n_head * s->head_dim; /* what a GGUF file says */
    if (s->head_dim < 1 || s->n_head % s->n_key_head ||
        (s->d_inner && s->d_inner != (int64_t)s->n_head * s->head_dim))
        return err_set(
            e, ERR_INVAL,
            "%s: linear attention has %d heads of %d values over %d heads of keys, %d in all",
            ckpt_is_hf(c) ? "config.json" : "key ssm.time_step_rank", s->n_head, s->head_dim,
            s->n_key_head, s->d_inner);
    rc = ckpt_int(c, "full_attention_interval", "full_attention_interval", &every, e);
    if ((rc && rc != ERR_NOTFOUND) || every < 1)
        return rc ? rc
                  : err_set(e, ERR_INVAL, "%s.full_attention_interval is %lld",
                            ckpt_is_hf(c) ? "config.json" : "key", (long long)every);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].mixer = (i + 1) % every ? MIX_DELTA : MIX_ATTN;
    rc = model_hp_layer_types(hp, c, "layer_types", layer_type, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    s->norm_eps = hp->norm_eps;
    hp->attn_gate = true;
    d[DIM_Q2] = 2 * d[DIM_Q];
    d[DIM_S_KEYS] = (int64_t)s->n_key_head * s->d_key;
    d[DIM_S_INNER] = (int64_t)s->n_head * s->head_dim;
    d[DIM_S_VALUE] = s->head_dim;
    d[DIM_S_CONV] = 2 * d[DIM_S_KEYS] + d[DIM_S_INNER];
    d[DIM_S_IN] = d[DIM_S_CONV] + d[DIM_S_INNER];
    d[DIM_S_BA] = 2 * (int64_t)s->n_head;
    model_state_set(hp);
    return 0;
}
