/* Sizes of recurrent layers from a file's metadata. */
#include "engine/models/state.h"

#include <stddef.h>

#define INT(k, j, opt, f, lo, hi)                                                                  \
    {                                                                                              \
        k, j, HP_INT, opt, offsetof(struct model_hp, state.f), lo, hi                              \
    }
#define WIDTH_MAX (1 << 20)

static const struct hp_row mamba_rows[] = {
    INT("ssm.conv_kernel", "conv_kernel|mamba_d_conv", false, n_conv, 2, STATE_CONV_MAX),
    INT("ssm.state_size", "state_size|ssm_state_size|mamba_d_state", false, n_state, 1,
        STATE_KEY_MAX),
    INT("ssm.inner_size", "intermediate_size_ssm|mamba_d_ssm", true, d_inner, 1, WIDTH_MAX),
    INT("ssm.time_step_rank", NULL, true, n_rank, 1, WIDTH_MAX),
};

/* Width of the channels: given, or a multiple of the model's. */
static int inner_read(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    double expand = 2;
    int rc = model_hp_read(hp, c, mamba_rows, sizeof mamba_rows / sizeof *mamba_rows, e);
    if (rc)
        return rc;
    rc = ckpt_num(c, NULL, "expand|mamba_expand", &expand, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!(expand > 0 && expand <= 64))
        return err_set(e, ERR_INVAL, "config.json: expand is %g, expected 0 to 64", expand);
    if (hp->state.d_inner == 0)
        hp->state.d_inner = (int32_t)(expand * hp->n_embd);
    hp->state.norm_eps = hp->norm_eps;
    return 0;
}

int model_hp_mamba(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct state_hp *s = &hp->state;
    int64_t *d = hp->dim, rank = 0;
    int rc = inner_read(hp, c, e);
    if (rc)
        return rc;
    static const char ranks[] = "time_step_rank|mamba_dt_rank"; /* a number, or "auto" */
    if (ckpt_is_num(c, ranks, -1)) {
        rc = ckpt_int(c, NULL, ranks, &rank, e);
        if (rc)
            return rc;
        if (rank < 1 || rank > WIDTH_MAX)
            return err_set(e, ERR_INVAL, "config.json: time_step_rank is %lld", (long long)rank);
        s->n_rank = (int32_t)rank;
    }
    if (s->n_rank == 0)
        s->n_rank = (hp->n_embd + 15) / 16; /* "auto" */
    s->dt_max = INFINITY;
    d[DIM_S_INNER] = d[DIM_S_CONV] = s->d_inner;
    d[DIM_S_IN] = 2 * (int64_t)s->d_inner;
    d[DIM_S_X] = (int64_t)s->n_rank + 2 * s->n_state;
    d[DIM_S_A] = (int64_t)s->d_inner * s->n_state;
    return 0;
}

static const struct hp_row mamba2_rows[] = {
    /* a GGUF file's rank is the number of heads */
    INT("ssm.time_step_rank", "num_heads|mamba_num_heads|mamba_n_heads", false, n_head, 1, 16384),
    INT("ssm.group_count", "n_groups|mamba_n_groups", false, n_group, 1, 65536),
    INT(NULL, "head_dim|mamba_head_dim|mamba_d_head", true, head_dim, 1, 65536),
};

/* [least, most] of dt, where a folder bounds it; infinity is written in more than one way, and means no bound. */
static int dt_limits(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    double lo = 0, hi;
    hp->state.dt_max = INFINITY;
    if (ckpt_len(c, NULL, "time_step_limit") != 2)
        return 0;
    int rc = ckpt_num_at(c, NULL, "time_step_limit", 0, &lo, e);
    if (rc)
        return rc;
    hp->state.dt_min = (float)lo;
    if (ckpt_is_num(c, "time_step_limit", 1)) {
        rc = ckpt_num_at(c, NULL, "time_step_limit", 1, &hi, e);
        if (rc)
            return rc;
        hp->state.dt_max = (float)hi;
    }
    if (!(hp->state.dt_min >= 0 && hp->state.dt_min <= hp->state.dt_max))
        return err_set(e, ERR_INVAL, "config.json: time_step_limit is not a range");
    return 0;
}

int model_hp_mamba2(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct state_hp *s = &hp->state;
    int64_t *d = hp->dim;
    int rc = model_hp_read(hp, c, mamba2_rows, sizeof mamba2_rows / sizeof *mamba2_rows, e);
    if (rc)
        return rc;
    if (ckpt_is_hf(c) && s->head_dim) /* unless it is given itself */
        s->d_inner = s->n_head * s->head_dim <= WIDTH_MAX ? s->n_head * s->head_dim : 0;
    if ((rc = inner_read(hp, c, e)) || (rc = dt_limits(hp, c, e)))
        return rc;
    if (s->n_head % s->n_group || s->d_inner % s->n_head) {
        char name[200];
        return err_set(
            e, ERR_INVAL, "%s is %d: must divide %d heads, and those %d channels",
            ckpt_key_text(c, "ssm.group_count", "mamba_n_groups|n_groups", name, sizeof name),
            s->n_group, s->n_head, s->d_inner);
    }
    int32_t by_head = s->d_inner / s->n_head;
    if (ckpt_is_hf(c) && s->head_dim && s->head_dim != by_head)
        return err_set(e, ERR_INVAL, "config.json: heads of %d values, but %d channels in %d heads",
                       s->head_dim, s->d_inner, s->n_head);
    s->head_dim = by_head;
    d[DIM_S_INNER] = s->d_inner;
    d[DIM_S_CONV] = s->d_inner + 2 * (int64_t)s->n_group * s->n_state;
    d[DIM_S_IN] = d[DIM_S_INNER] + d[DIM_S_CONV] + s->n_head;
    return 0;
}

int model_hp_attends(struct model_hp *hp, struct ckpt *c, enum mixer_kind other, struct err *e)
{
    static const char key[] = "attention.head_count_kv";
    int n = ckpt_is_hf(c) ? 0 : ckpt_len(c, key, NULL), rc = 0;
    if (n < 2)
        return 0;
    if (n < hp->n_layer)
        return err_set(e, ERR_INVAL, "%s has %d elements, expected %d", key, n, hp->n_layer);
    for (int i = 0; i < hp->n_layer && !rc; i++) {
        double v = 0;
        rc = ckpt_num_at(c, key, NULL, i, &v, e);
        if (v <= 0)
            hp->layer[i].mixer = (uint8_t)other;
    }
    return rc;
}
