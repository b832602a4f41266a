/* Rotary frequencies: plain, linear scaling, NTK by length, YaRN, Llama 3's, and factors of the file. Where a scaling goes
 * by a sequence's length, the longest that is served decides for all: a token's bits must not depend on what follows. */
#include "engine/base/mem.h"
#include "engine/models/model.h"

#include <math.h>
#include <stdlib.h>

/* Dimension pair whose wave turns `rot` times within the original context (Peng et al. 2023, eq. 17). */
static double yarn_dim(const struct model_hp *hp, double rot)
{
    return hp->n_rot * log(hp->rope_ctx_orig / (rot * 2 * M_PI)) / (2 * log((double)hp->rope_base));
}

static void yarn_apply(struct model_hp *hp, double *f)
{
    double low = floor(yarn_dim(hp, (double)hp->rope_beta_fast));
    double high = ceil(yarn_dim(hp, (double)hp->rope_beta_slow));
    if (hp->rope_exact) {
        low = yarn_dim(hp, (double)hp->rope_beta_fast);
        high = yarn_dim(hp, (double)hp->rope_beta_slow);
    }
    low = fmax(low, 0);
    high = fmin(high, hp->n_rot - 1);
    double width = fmax(high - low, 1e-3), s = (double)hp->rope_factor;
    for (int i = 0; i < hp->n_rot / 2; i++) {
        double ramp = fmin(fmax((i - low) / width, 0), 1); /* 1: fully interpolated */
        f[i] = f[i] / s * ramp + f[i] * (1 - ramp);
    }
    double mul = hp->rope_log_multiplier > 0 ? (double)hp->rope_log_multiplier : 0.1;
    hp->attn_factor = (float)(s > 1 ? mul * log(s) + 1 : 1.0);
    if (hp->rope_attn_factor > 0)
        hp->attn_factor *= hp->rope_attn_factor;
}

/* Frequencies that turn seldom in the original context are divided, fast ones kept, a ramp between (Llama 3). */
static void llama3_apply(const struct model_hp *hp, double *f)
{
    double lo = (double)hp->rope_low_freq, hi = (double)hp->rope_high_freq;
    for (int i = 0; i < hp->n_rot / 2; i++) {
        double turns = hp->rope_ctx_orig * f[i] / (2 * M_PI);
        double keep = fmin(fmax((turns - lo) / (hi - lo), 0), 1);
        f[i] = keep * f[i] + (1 - keep) * f[i] / (double)hp->rope_factor;
    }
}

/* Ding et al. 2024. The factor of cos and sin follows from how far the context was stretched, if not given. */
static void long_apply(struct model_hp *hp, double *f, int32_t n_ctx)
{
    const float *by = n_ctx > hp->rope_ctx_orig ? hp->rope_long : hp->rope_short;
    double stretch = hp->rope_ctx_orig > 1 ? (double)hp->n_ctx / hp->rope_ctx_orig : 1;
    for (int i = 0; i < hp->n_rot / 2; i++)
        f[i] /= (double)by[i];
    if (hp->rope_attn_factor > 0)
        hp->attn_factor = hp->rope_attn_factor;
    else if (stretch > 1)
        hp->attn_factor = (float)sqrt(1 + log(stretch) / log((double)hp->rope_ctx_orig));
}

/* The base grows with the longest sequence, past what the model was made for. */
static double dynamic_base(const struct model_hp *hp, int32_t n_ctx)
{
    double s = (double)hp->rope_factor, orig = hp->rope_ctx_orig, d = hp->n_rot;
    if (orig <= 0 || n_ctx <= hp->rope_ctx_orig || d <= 2)
        return (double)hp->rope_base;
    return (double)hp->rope_base * pow(s * n_ctx / orig - (s - 1), d / (d - 2));
}

void model_rope_freqs(struct model_hp *hp, float *inv_freq)
{
    double f[MODEL_HEAD_MAX / 2], base = (double)hp->rope_base;
    int n = hp->n_rot / 2;
    int32_t n_ctx = hp->n_ctx_run ? hp->n_ctx_run : hp->n_ctx;
    hp->attn_factor = 1;
    if (hp->rope_scaling == ROPE_SCALING_DYNAMIC)
        base = dynamic_base(hp, n_ctx);
    for (int i = 0; i < n; i++)
        f[i] = pow(base, -2.0 * i / hp->n_rot);
    if (hp->rope_scaling == ROPE_SCALING_LINEAR || hp->rope_scaling == ROPE_SCALING_PROPORTIONAL)
        for (int i = 0; i < n; i++)
            f[i] /= (double)hp->rope_factor;
    if (hp->rope_scaling == ROPE_SCALING_YARN)
        yarn_apply(hp, f);
    if (hp->rope_scaling == ROPE_SCALING_LLAMA3)
        llama3_apply(hp, f);
    if (hp->rope_scaling == ROPE_SCALING_LONG)
        long_apply(hp, f, n_ctx);
    for (int i = 0; i < n; i++)
        inv_freq[i] = hp->n_turn == 0 || i < hp->n_turn ? (float)f[i] : 0;
}

/* Factors of the file back from the device; untouched where it has none. */
static int factors_read(struct model *m, const struct tensor *t, const char *name, float *out,
                        struct err *e)
{
    int n = m->hp.n_rot / 2;
    if (!t->buf)
        return 0;
    int rc = m->be->read(m->dev, t->buf, t->off, out, (size_t)n * sizeof *out);
    if (rc)
        return err_set(e, rc, "tensor %s: %s", name, err_name(rc));
    for (int i = 0; i < n; i++)
        if (!(out[i] > 0) || !isfinite(out[i]))
            return err_set(e, ERR_INVAL, "tensor %s holds %g at %d", name, (double)out[i], i);
    return 0;
}

/* Slopes of heads (Press et al. 2022): a geometric row for the largest power of two of heads, every second term of a row
 * twice as fine for those left. */
static void alibi_slopes(const struct model_hp *hp, float *slope)
{
    int n = hp->n_head, whole = 1;
    double max = (double)hp->alibi_max, scale = hp->alibi_scale > 0 ? (double)hp->alibi_scale : 1;
    while (whole * 2 <= n)
        whole *= 2;
    for (int i = 0; i < n; i++) {
        double e = i < whole ? max / whole * (i + 1) : max / (2 * whole) * (2 * (i - whole) + 1);
        slope[i] = (float)(pow(2, -e) * scale);
    }
}

/* Behind the frequencies in rope_buf. */
static int alibi_open(struct model *m, size_t off, struct err *e)
{
    int n = m->hp.n_head;
    if (m->hp.alibi_max <= 0)
        return 0;
    float *slope = mem_calloc((size_t)n, sizeof *slope);
    if (!slope)
        return err_set(e, ERR_NOMEM, "no memory for the slopes of %d heads", n);
    alibi_slopes(&m->hp, slope);
    int rc = m->be->write(m->dev, m->rope_buf, off, slope, (size_t)n * sizeof *slope);
    free(slope);
    m->alibi = (struct tensor){
        .dtype = DT_F32, .n_dim = 1, .shape = {n}, .stride = {1}, .buf = m->rope_buf, .off = off};
    return rc ? err_set(e, rc, "slopes: %s", err_name(rc)) : 0;
}

/* Local layers: their own base, never scaled; without one, as the others. Returns how many. */
static int local_freqs(const struct model_hp *hp, const float *f, float *local)
{
    int n_rot = hp->n_rot_local ? hp->n_rot_local : hp->n_rot;
    for (int i = 0; i < n_rot / 2; i++)
        local[i] = hp->rope_base_local > 0
                       ? (float)pow((double)hp->rope_base_local, -2.0 * i / n_rot)
                       : f[i];
    return n_rot / 2;
}

/* n floats at *off of rope_buf, as a vector; *off goes behind them. */
static int vec_put(struct model *m, struct tensor *t, size_t *off, const float *v, int n)
{
    size_t bytes = (size_t)n * sizeof *v;
    *t = (struct tensor){
        .dtype = DT_F32, .n_dim = 1, .shape = {n}, .stride = {1}, .buf = m->rope_buf, .off = *off};
    int rc = m->be->write(m->dev, m->rope_buf, *off, v, bytes);
    *off += bytes;
    return rc;
}

/* Frequencies, slopes, and ones for norms without weights, in one buffer. */
int model_rope_open(struct model *m, struct err *e)
{
    float f[MODEL_HEAD_MAX / 2], local[MODEL_HEAD_MAX / 2], factor[MODEL_HEAD_MAX / 2];
    float ones[MODEL_HEAD_MAX];
    int n = m->hp.n_rot / 2, rc;
    size_t off = 0;
    if (n == 0)
        return 0;
    for (int i = 0; i < MODEL_HEAD_MAX; i++)
        ones[i] = factor[i / 2] = 1;
    if ((rc = factors_read(m, &m->rope_factors, "rope_freqs.weight", factor, e)) ||
        (rc = factors_read(m, &m->rope_long, "rope_factors_long.weight", m->hp.rope_long, e)) ||
        (rc = factors_read(m, &m->rope_short, "rope_factors_short.weight", m->hp.rope_short, e)))
        return rc;
    model_rope_freqs(&m->hp, f);
    for (int i = 0; i < n; i++)
        f[i] /= factor[i];
    int n_local = local_freqs(&m->hp, f, local);
    size_t all = (size_t)(n + n_local + MODEL_HEAD_MAX + m->hp.n_head) * sizeof *f;
    if (m->be->buf_alloc(m->dev, all, &m->rope_buf))
        return err_set(e, ERR_NOMEM, "no device memory for rope frequencies");
    if ((rc = vec_put(m, &m->inv_freq, &off, f, n)) ||
        (rc = vec_put(m, &m->inv_freq_local, &off, local, n_local)) ||
        (rc = vec_put(m, &m->ones, &off, ones, MODEL_HEAD_MAX)))
        return err_set(e, rc, "rope frequencies: %s", err_name(rc));
    return alibi_open(m, off, e);
}

void model_rope_close(struct model *m)
{
    if (m->rope_buf)
        m->be->buf_free(m->dev, m->rope_buf);
    m->rope_buf = 0;
}
