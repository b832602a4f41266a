/* Rotary frequencies: plain, linear scaling, YaRN, and the file's own factors (llama 3). */
#include "engine/base/mem.h"
#include "engine/models/model.h"

#include <math.h>

/* Dimension pair whose wave turns `rot` times within the original context (Peng et al. 2023, eq. 17). */
static double yarn_dim(const struct model_hp *hp, double rot)
{
    return hp->n_rot * log(hp->rope_ctx_orig / (rot * 2 * M_PI)) / (2 * log((double)hp->rope_base));
}

static void yarn_apply(struct model_hp *hp, double *f)
{
    double low = floor(yarn_dim(hp, (double)hp->rope_beta_fast));
    double high = ceil(yarn_dim(hp, (double)hp->rope_beta_slow));
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

void model_rope_freqs(struct model_hp *hp, float *inv_freq)
{
    double f[512]; /* n_rot <= 1024: model_hp_common */
    int n = hp->n_rot / 2;
    hp->attn_factor = 1;
    for (int i = 0; i < n; i++)
        f[i] = pow((double)hp->rope_base, -2.0 * i / hp->n_rot);
    if (hp->rope_scaling == ROPE_SCALING_LINEAR)
        for (int i = 0; i < n; i++)
            f[i] /= (double)hp->rope_factor;
    if (hp->rope_scaling == ROPE_SCALING_YARN)
        yarn_apply(hp, f);
    if (hp->rope_scaling == ROPE_SCALING_LLAMA3)
        llama3_apply(hp, f);
    for (int i = 0; i < n; i++)
        inv_freq[i] = (float)f[i];
}

int model_rope_open(struct model *m, struct err *e)
{
    float f[512], local[512], factor[512];
    int n = m->hp.n_rot / 2;
    size_t bytes = (size_t)n * sizeof *f;
    model_rope_freqs(&m->hp, f);
    if (m->rope_factors.buf) {
        int rc = m->be->read(m->dev, m->rope_factors.buf, m->rope_factors.off, factor, bytes);
        if (rc)
            return err_set(e, rc, "tensor rope_freqs.weight: %s", err_name(rc));
        for (int i = 0; i < n; i++) {
            if (!(factor[i] > 0) || !isfinite(factor[i]))
                return err_set(e, ERR_INVAL, "tensor rope_freqs.weight holds %g at %d",
                               (double)factor[i], i);
            f[i] /= factor[i];
        }
    }
    /* Local layers: their own base, never scaled. */
    for (int i = 0; i < n; i++)
        local[i] = m->hp.rope_base_local > 0
                       ? (float)pow((double)m->hp.rope_base_local, -2.0 * i / m->hp.n_rot)
                       : f[i];
    if (m->be->buf_alloc(m->dev, 2 * bytes, &m->rope_buf))
        return err_set(e, ERR_NOMEM, "no device memory for rope frequencies");
    int rc = m->be->write(m->dev, m->rope_buf, 0, f, bytes);
    if (!rc)
        rc = m->be->write(m->dev, m->rope_buf, bytes, local, bytes);
    if (rc)
        return err_set(e, rc, "rope frequencies: %s", err_name(rc));
    m->inv_freq = (struct tensor){
        .dtype = DT_F32, .n_dim = 1, .shape = {n}, .stride = {1}, .buf = m->rope_buf};
    m->inv_freq_local = m->inv_freq;
    m->inv_freq_local.off = bytes;
    return 0;
}

void model_rope_close(struct model *m)
{
    if (m->rope_buf)
        m->be->buf_free(m->dev, m->rope_buf);
    m->rope_buf = 0;
}
