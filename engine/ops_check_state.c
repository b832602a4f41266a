/* Shape checks of the state ops; see backend.h. */
#include "engine/backend.h"

#define WANT(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return ERR_INVAL;                                                                      \
    } while (0)

static bool is_f32(const struct tensor *t, const struct step_meta *m, int64_t cols)
{
    return ops_is_2d(t, DT_F32, m->n_row, cols);
}

static bool is_opt(const struct tensor *t, const struct step_meta *m, int64_t cols)
{
    return !t->buf || is_f32(t, m, cols);
}

static bool is_mul(const struct tensor *t, enum dtype mul, int64_t rows, int64_t cols)
{
    return ops_is_2d(t, t->dtype == mul ? mul : DT_F32, rows, cols);
}

int ops_check_state_pool(const struct state_desc *s, struct err *e)
{
    if (s->n_slot <= 0 || s->n_layer <= 0 || s->n <= 0)
        return err_set(e, ERR_INVAL, "state pool: %d slots, %d layers of %lld values",
                       (int)s->n_slot, s->n_layer, (long long)s->n);
    return 0;
}

int ops_check_state_at(const struct state_at *at, const struct state_desc *s, int64_t need,
                       const struct step_meta *m)
{
    WANT(at->layer >= 0 && at->layer < s->n_layer && at->off >= 0 && need > 0 &&
         need <= s->n - at->off);
    WANT(m->n_seq == 0 || (m->state_src && m->state_dst));
    for (int i = 0; i < m->n_seq; i++)
        WANT(m->state_src[i] >= -1 && m->state_src[i] < s->n_slot && m->state_dst[i] >= 0 &&
             m->state_dst[i] < s->n_slot);
    return 0;
}

int ops_check_state_conv(const struct op_state_conv *a, enum dtype mul, const struct step_meta *m)
{
    int64_t d = a->x.shape[1];
    WANT(a->k >= 2 && a->k <= STATE_CONV_MAX && is_f32(&a->x, m, d) && is_f32(&a->dst, m, d));
    WANT(!a->mul.buf || is_mul(&a->mul, mul, m->n_row, d));
    WANT(is_opt(&a->in_gate, m, d) && is_opt(&a->out_gate, m, d));
    WANT(ops_is_vec(&a->w, d * a->k, false) && ops_is_vec(&a->bias, d, true));
    return 0;
}

int ops_check_state_scan(const struct op_state_scan *a, const struct step_meta *m)
{
    int64_t d = (int64_t)a->n_head * a->head_dim, n = (int64_t)a->n_group * a->n_state;
    WANT(a->n_head > 0 && a->head_dim > 0 && a->n_group > 0 && a->n_head % a->n_group == 0);
    WANT(a->n_state > 0 && a->n_state <= STATE_KEY_MAX && a->dt_min <= a->dt_max);
    WANT(is_f32(&a->x, m, d) && is_f32(&a->dst, m, d) && is_f32(&a->dt, m, a->n_head));
    WANT(is_f32(&a->b, m, n) && is_f32(&a->c, m, n));
    WANT(ops_is_vec(&a->a, a->n_head, false) ||
         ops_is_vec(&a->a, (int64_t)a->n_head * a->n_state, false));
    WANT(ops_is_vec(&a->dt_bias, a->n_head, true) && ops_is_vec(&a->skip, a->n_head, true));
    return 0;
}

int ops_check_state_delta(const struct op_state_delta *a, const struct step_meta *m)
{
    int64_t keys = (int64_t)a->n_key_head * a->dk, values = (int64_t)a->n_head * a->dv;
    int64_t gates = a->g.shape[1];
    WANT(a->n_key_head > 0 && a->n_head > 0 && a->n_head % a->n_key_head == 0);
    WANT(a->dk > 0 && a->dk <= STATE_KEY_MAX && a->dv > 0 && a->eps >= 0);
    WANT(is_f32(&a->q, m, keys) && is_f32(&a->k, m, keys));
    WANT(is_f32(&a->v, m, values) && is_f32(&a->dst, m, values));
    WANT(gates == a->n_head || gates == (int64_t)a->n_head * a->dk);
    WANT(is_f32(&a->g, m, gates) && ops_is_vec(&a->g_bias, gates, true));
    WANT(is_f32(&a->beta, m, a->n_head) && ops_is_vec(&a->a, a->n_head, false));
    return 0;
}

int ops_check_state_wkv(const struct op_state_wkv *a, enum dtype mul, const struct step_meta *m)
{
    int64_t d = a->k.shape[1];
    WANT(is_f32(&a->r, m, d) && is_f32(&a->k, m, d) && is_f32(&a->v, m, d));
    WANT(is_mul(&a->dst, mul, m->n_row, d));
    WANT(ops_is_vec(&a->decay, d, false) && ops_is_vec(&a->first, d, false));
    return 0;
}

int ops_check_state_shift(const struct op_state_shift *a, enum dtype mul, const struct step_meta *m)
{
    int64_t d = a->x.shape[1];
    WANT(a->n_mix > 0 && a->n_mix <= 8 && is_mul(&a->x, mul, m->n_row, d));
    WANT(is_mul(&a->dst, mul, m->n_row, d * a->n_mix) && ops_is_vec(&a->mix, d * a->n_mix, false));
    return 0;
}

int ops_check_gated_norm(const struct op_gated_norm *a, enum dtype mul)
{
    int64_t n = a->x.shape[0], d = a->x.shape[1];
    WANT(is_mul(&a->x, mul, -1, d) && is_mul(&a->dst, mul, n, d));
    WANT(!a->gate.buf || ops_is_2d(&a->gate, DT_F32, n, d));
    WANT(a->group >= 0 && (a->group == 0 || d % a->group == 0) && a->eps >= 0);
    WANT(!a->w.buf ||
         (a->group > 0 && (ops_is_vec(&a->w, d, false) || ops_is_vec(&a->w, a->group, false))));
    return 0;
}
