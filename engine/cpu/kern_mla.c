/* Latent attention of one row: the tokens' vectors, a KV block of 16 at a time, against some heads, by online softmax over
 * those blocks from position 0 up. One order whatever the rows and threads. */
#include "engine/cpu/kern.h"
#include "engine/cpu/vec.h"
#include "engine/cpu/vec_kv.h"

#include <math.h>

#define TOKENS KV_BLOCK_TOKENS

/* A token's codes, times their scale. */
static void codes_load(const struct cpu_mla_row *a, const char *src, float scale, float *out)
{
    const uint8_t *c = (const uint8_t *)src;
    int i = 0;
    for (; a->dtype == DT_I8 && i + VL <= a->dim; i += VL)
        vstore(out + i, vmul(vload_i8((const int8_t *)c + i), vset1(scale)));
    for (; a->dtype == DT_F8 && i + VL <= a->dim; i += VL)
        vstore(out + i, vmul(vload_f8(c + i), vset1(scale * F8_UNIT)));
    for (; i < a->dim; i++)
        out[i] = (a->dtype == DT_I8 ? (float)(int8_t)c[i] : quant_e4m3(c[i])) * scale;
}

/* n tokens as floats, rows of `pad` with zeros behind their dim values. */
static void block_load(const struct cpu_mla_row *a, const char *block, int n, float *out)
{
    const struct cpu_kv_geom g = {.dtype = a->dtype, .head_dim = a->dim};
    const float *scale = (const float *)(const void *)(block + cpu_kv_k_bytes(&g));
    const size_t es = dtype_bytes(a->dtype);
    for (int t = 0; t < n; t++, out += a->pad) {
        const char *src = block + (size_t)(t * a->dim) * es;
        int i = 0;
        if (dtype_is_code(a->dtype)) {
            codes_load(a, src, scale[t], out);
            i = a->dim;
        }
        if (a->dtype == DT_F32)
            memcpy(out, src, (size_t)a->dim * sizeof *out);
        for (; a->dtype == DT_F16 && i + VL <= a->dim; i += VL)
            vstore(out + i, vload_f16((const uint16_t *)(const void *)src + i));
        for (; a->dtype == DT_BF16 && i + VL <= a->dim; i += VL)
            vstore(out + i, vload_bf16((const uint16_t *)(const void *)src + i));
        for (; a->dtype != DT_F32 && i < a->dim; i++) {
            uint16_t h;
            memcpy(&h, src + 2 * i, 2);
            out[i] = a->dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
        }
        memset(out + a->dim, 0, (size_t)(a->pad - a->dim) * sizeof *out);
    }
}

/* One head and n tokens: scores, then state and sums. seen: of these tokens, or NULL. */
static void head_block(const struct cpu_mla_row *a, const float *kv, int n, const float *seen,
                       const float *q, float *state, float *acc)
{
    float s[TOKENS], p[TOKENS], top = state[0];
    for (int t = 0; t < n; t++) {
        struct vf x = vset1(0);
        for (int i = 0; i < a->pad; i += VL)
            x = vfma(vload(q + i), vload(kv + t * a->pad + i), x);
        s[t] = seen && seen[t] == -INFINITY ? -1e30f : vhsum(x);
        top = s[t] > top ? s[t] : top;
    }
    for (int t = n; t < TOKENS; t++)
        s[t] = -1e30f;
    if (!(top > -1e30f)) /* none of them is seen */
        return;
    const float keep = state[0] > -1e30f ? vexp1(state[0] - top) : 0;
    vstore(p, vexp(vsub(vload(s), vset1(top))));
    float sum = state[1] * keep;
    for (int t = 0; t < n; t++)
        sum += p[t];
    for (int i = 0; i < a->rank_pad; i += VL) {
        struct vf x = vmul(vload(acc + i), vset1(keep));
        for (int t = 0; t < n; t++)
            x = vfma(vset1(p[t]), vload(kv + t * a->pad + i), x);
        vstore(acc + i, x);
    }
    state[0] = top;
    state[1] = sum;
}

static void row(const struct cpu_mla_row *a)
{
    float *kv = a->scratch, *acc = kv + TOKENS * a->pad;
    float state[CPU_MLA_HEADS][2];
    for (int h = 0; h < a->n_head; h++) {
        state[h][0] = -1e30f;
        state[h][1] = 0;
        memset(acc + h * a->rank_pad, 0, (size_t)a->rank_pad * sizeof *acc);
    }
    for (int at = 0; at <= a->pos; at += TOKENS) {
        const int n = a->pos + 1 - at < TOKENS ? a->pos + 1 - at : TOKENS;
        block_load(a, a->kv + (size_t)a->table[at / TOKENS] * a->block_bytes, n, kv);
        for (int h = 0; h < a->n_head; h++)
            head_block(a, kv, n, a->seen ? a->seen + at : NULL, a->q + h * a->pad, state[h],
                       acc + h * a->rank_pad);
    }
    for (int h = 0; h < a->n_head; h++)
        for (int i = 0; i < a->rank; i++)
            a->dst[h * a->rank + i] = acc[h * a->rank_pad + i] / state[h][1];
}

static void index_row(const struct cpu_index_row *a)
{
    const struct cpu_mla_row tokens = {.dtype = a->dtype, .dim = a->dim, .pad = a->pad};
    for (int at = 0; at <= a->pos; at += TOKENS) {
        const int n = a->pos + 1 - at < TOKENS ? a->pos + 1 - at : TOKENS;
        block_load(&tokens, a->kv + (size_t)a->table[at / TOKENS] * a->block_bytes, n, a->scratch);
        for (int t = 0; t < n; t++) {
            const float *k = a->scratch + t * a->pad;
            float sum = 0;
            for (int h = 0; h < a->n_head; h++) {
                struct vf x = vset1(0);
                for (int i = 0; i < a->pad; i += VL)
                    x = vfma(vload(a->q + h * a->pad + i), vload(k + i), x);
                const float s = vhsum(x);
                sum += s > 0 ? a->weight[h] * s : 0;
            }
            a->score[at + t] = sum;
        }
    }
}

#define TABLE_(isa) const struct cpu_mla_kern cpu_mla_##isa = {.row = row, .index = index_row}
#define TABLE(isa)  TABLE_(isa)
TABLE(CPU_ISA);
