/* cu_embed: dst[i,:] = scale * w[tok[i],:] + pos[pos[i],:] in f32. A token may be one that the last sample chose (negative, see cu_step).
 * Packed weights are read where they lie: row r of a panel is in lanes 4 (r % 8) to 4 (r % 8) + 3 of tile r / 8. */
#include "cuda/kern.cuh"
#include "cuda/weight.h"

#define THREADS 128

/* Levels of IQ4, FP4 (doubled) and NF4. */
__constant__ const float embed_levels[3][16] = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
     -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
     0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f}};

struct embed_args {
    float *dst;
    int64_t ld;
    const cu_count *count;
    const int32_t *tok, *sampled, *pos;
    cu_part part[3], table; /* table: of positions, where has_pos */
    int64_t n_in;
    int32_t stages, has_pos;
    float scale;
};

__device__ __forceinline__ int code_at(const cu_part &p, const unsigned char *half, int lane,
                                       int tile, int e)
{
    int bits = p.bits, at = 0, code = 0;
    if (bits == 8)
        return half[((tile / 2 * 32 + lane) * 2 + tile % 2) * 8 + e];
    const unsigned char *q = half;
    if (bits >= 4) {
        code = q[(lane * 4 + tile) * 4 + e / 2] >> 4 * (e % 2) & 15;
        q += 512, bits -= 4, at = 4;
    }
    if (bits >= 2) {
        code |= (q[(lane * 4 + tile) * 2 + e / 4] >> 2 * (e % 4) & 3) << at;
        q += 256, bits -= 2, at += 2;
    }
    return bits ? code | (q[lane * 4 + tile] >> e & 1) << at : code;
}

__device__ __forceinline__ float value_at(const cu_part &p, int64_t row, int64_t k, int64_t n_in,
                                          int stages)
{
    if (p.bits == 32)
        return ((const float *)p.data)[row * n_in + k];
    const int r = (int)(row % CU_PANEL), c = (int)(k % 32), tile = r / 8,
              lane = r % 8 * 4 + c % 8 / 2;
    const int e = c / 16 * 4 + c % 16 / 8 * 2 + c % 2, in_stage = (int)(k % CU_STAGE);
    const unsigned char *unit =
        (const unsigned char *)p.data + (row / CU_PANEL * stages + k / CU_STAGE) * p.unit_bytes;
    const unsigned char *half = unit + in_stage / 32 * (p.bits * CU_PANEL * 32 / 8);
    if (p.bits == 16)
        return load1((const bf16 *)half + (tile * 32 + lane) * 8 + e);
    const int code = code_at(p, half, lane, tile, e), groups = CU_STAGE / p.group,
              g = in_stage / p.group;
    const __half *s =
        (const __half *)(unit + p.bits * CU_PANEL * CU_STAGE / 8) + (g * 8 + r % 8) * 4 + tile;
    const float level =
        !p.levels ? (float)(code - p.offset)
        : p.bits == 8
            ? __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3)))
            : embed_levels[p.levels == 1 ? 0 : p.levels - 2][code];
    const float v = p.min ? __fmaf_rn(level, __half2float(*s), __half2float(s[groups * CU_PANEL]))
                          : __fmul_rn(level, __half2float(*s));
    return __fmul_rn(v, p.row_scale[row]);
}

static __global__ void __launch_bounds__(THREADS) embed(embed_args a)
{
    const int64_t i = blockIdx.x;
    if (i >= a.count->n_row)
        return;
    const int t = a.tok[i];
    int64_t row = t >= 0 ? t : a.sampled[-1 - t];
    int p = 0;
    while (p < 2 && row >= a.part[p].n_out)
        row -= a.part[p++].n_out;
    for (int64_t k = threadIdx.x; k < a.n_in; k += THREADS) {
        float v = __fmul_rn(value_at(a.part[p], row, k, a.n_in, a.stages), a.scale);
        if (a.has_pos)
            v = __fadd_rn(v, value_at(a.table, a.pos[i], k, a.n_in, a.stages));
        a.dst[i * a.ld + k] = v;
    }
}

/* ------------------------------------------------------------------ launch */

extern "C" int cu_embed(const struct cu_embed *a, const struct cu_step *s, cu_stream st)
{
    if (!mat_ok(&a->dst) || a->dst.dt != CU_F32 || a->dst.cols != a->w->n_in ||
        (a->pos && (a->pos->n_in != a->w->n_in || a->pos->n_part != 1)))
        return CU_BAD;
    if (s->row_max <= 0)
        return 0;
    embed_args e = {};
    e.dst = (float *)a->dst.p;
    e.ld = a->dst.ld;
    e.count = s->count;
    e.tok = s->tok;
    e.sampled = s->sampled;
    e.n_in = a->w->n_in;
    e.stages = (int)(a->w->n_in_pad / CU_STAGE);
    e.scale = a->scale;
    for (int i = 0; i < a->w->n_part; i++)
        e.part[i] = a->w->part[i];
    if (a->pos) {
        e.table = a->pos->part[0];
        e.pos = s->pos;
        e.has_pos = 1;
    }
    launch_cfg c = {
        dim3((unsigned)s->row_max), dim3(THREADS), 0, (cudaStream_t)st, 0, false, false};
    return launched(launch(c, embed, e));
}
