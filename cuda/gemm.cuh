/* What the products with packed weights share: formats, how a lane's codes become its fragments, the choice by format. */
#ifndef CUDA_GEMM_CUH
#define CUDA_GEMM_CUH

#include "cuda/gemm.h"
#include "cuda/kern.cuh"
#include "cuda/ptx.cuh"

/* What a code stands for; the numbers of enum quant_level. */
enum { LV_INT, LV_IQ4, LV_E4M3, LV_FP4, LV_NF4 };

template <int BITS_, int GROUP_, bool MIN_, int OFFSET_, int LEVELS_> struct Fmt {
    static constexpr int BITS = BITS_, GROUP = GROUP_, OFFSET = OFFSET_, LEVELS = LEVELS_;
    static constexpr bool MIN = MIN_;
    static constexpr int CODES = BITS * CU_PANEL * CU_STAGE / 8; /* bytes of a unit */
    static constexpr int UNIT =
        CODES + (GROUP ? CU_STAGE / (GROUP ? GROUP : 1) * CU_PANEL * 2 * (MIN ? 2 : 1) : 0);
};

struct gemm_args {
    float *dst;
    int64_t ld_dst;
    const bf16 *src;
    int64_t ld_src;
    const char *units;
    const float *row_scale, *bias;
    float *ws;
    int32_t *counter;
    const cu_count *count;
    cu_after after;
    int32_t rows, n_in, n_out, panels, stages, splits, slow, n_pad;
};

/* IQ4: four codes (the lower 16 bits of v) to four bytes of level + 128, by byte permutes: a table in memory would be
 * read at 16 addresses a warp. */
__device__ __forceinline__ uint32_t iq4_levels(uint32_t v)
{
    const uint32_t low = __byte_perm(0x3f2d1801u, 0x766a5d4fu, v & 0x7777u),
                   high = __byte_perm(0xa6998d81u, 0xf1d9c5b5u, v & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (v & 0x8888u) >> 1);
}

/* The same for e2m1 doubled: 128 + 0 1 2 3 4 6 8 12, 0 -1 -2 -3 -4 -6 -8 -12. */
__device__ __forceinline__ uint32_t fp4_levels(uint32_t v)
{
    const uint32_t low = __byte_perm(0x83828180u, 0x8c888684u, v & 0x7777u),
                   high = __byte_perm(0x7d7e7f80u, 0x74787a7cu, v & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (v & 0x8888u) >> 1);
}

/* NF4's levels as bf16: the upper (lower) bytes of four of them. */
__device__ __forceinline__ uint32_t nf4_upper(uint32_t v)
{
    const uint32_t low = __byte_perm(0xbebfbfbfu, 0x00bdbebeu, v & 0x7777u),
                   high = __byte_perm(0x3e3e3e3du, 0x3f3f3f3eu, v & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (v & 0x8888u) >> 1);
}
__device__ __forceinline__ uint32_t nf4_lower(uint32_t v)
{
    const uint32_t low = __byte_perm(0xca063280u, 0x00ba3d92u, v & 0x7777u),
                   high = __byte_perm(0xad7c25a3u, 0x803910e2u, v & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (v & 0x8888u) >> 1);
}

/* code - offset in f32, exact for codes below 2^23: no conversion from integer, which is a slow instruction. */
__device__ __forceinline__ float level_of(uint32_t code, int offset)
{
    return __uint_as_float(0x4b000000u | code) - (float)(8388608 + offset);
}

/* The e4m3 that a code is. */
__device__ __forceinline__ float e4m3_of(uint32_t code)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3)));
}

/* The eight values of tile t in half c of a unit, as the B fragments of two k steps. s: scales (and mins) of the two
 * steps. */
template <class F>
__device__ __forceinline__ void decode(uint32_t (&b)[2][2], const char *unit, int c, int t,
                                       int lane, const float (&s)[2], const float (&m)[2])
{
    const char *half = unit + c * (F::CODES / 2);
    if (F::BITS == 16) {
        const uint4 v = *(const uint4 *)(half + (t * 32 + lane) * 16);
        b[0][0] = v.x, b[0][1] = v.y, b[1][0] = v.z, b[1][1] = v.w;
        return;
    }
    uint32_t lo = 0, hi = 0, p2 = 0, p1 = 0;
    if (F::BITS == 8) {
        const uint2 v = *(const uint2 *)(half + ((t / 2 * 32 + lane) * 2 + t % 2) * 8);
        lo = v.x, hi = v.y;
    }
    const int after4 = F::BITS >= 4 ? 512 : 0;
    if (F::BITS >= 4 && F::BITS < 8)
        lo = *(const uint32_t *)(half + (lane * 4 + t) * 4);
    uint32_t low_lo = 0, low_hi = 0; /* NF4's other bytes */
    if (F::LEVELS == LV_IQ4) {
        hi = iq4_levels(lo >> 16);
        lo = iq4_levels(lo);
    } else if (F::LEVELS == LV_FP4) {
        hi = fp4_levels(lo >> 16);
        lo = fp4_levels(lo);
    } else if (F::LEVELS == LV_NF4) {
        low_hi = nf4_lower(lo >> 16), low_lo = nf4_lower(lo);
        hi = nf4_upper(lo >> 16), lo = nf4_upper(lo);
    }
    if (F::BITS == 2 || F::BITS == 3 || F::BITS == 6)
        p2 = *(const uint16_t *)(half + after4 + (lane * 4 + t) * 2);
    if (F::BITS == 3 || F::BITS == 5)
        p1 = *(const uint8_t *)(half + after4 + (F::BITS == 3 ? 256 : 0) + lane * 4 + t);
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
        float w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = e + i;
            uint32_t code;
            if (F::BITS == 8 || F::LEVELS)
                code = (at < 4 ? lo : hi) >> 8 * (at & 3) & 255;
            else if (F::BITS >= 4)
                code = (lo >> 4 * at & 15) | (F::BITS == 5 ? (p1 >> at & 1) << 4 : 0) |
                       (F::BITS == 6 ? (p2 >> 2 * at & 3) << 4 : 0);
            else
                code = (p2 >> 2 * at & 3) | (F::BITS == 3 ? (p1 >> at & 1) << 2 : 0);
            float level;
            if (F::LEVELS == LV_E4M3)
                level = e4m3_of(code);
            else if (F::LEVELS == LV_NF4)
                level = __uint_as_float(code << 24 |
                                        ((at < 4 ? low_lo : low_hi) >> 8 * (at & 3) & 255) << 16);
            else
                level = level_of(code, F::LEVELS ? 128 : F::OFFSET);
            w[i] = F::MIN ? __fmaf_rn(level, s[e / 4], m[e / 4]) : __fmul_rn(level, s[e / 4]);
        }
        const __nv_bfloat162 v = __floats2bfloat162_rn(w[0], w[1]);
        memcpy(&b[e / 4][e / 2 % 2], &v, 4);
    }
}

/* Scales of half c for the lane's row in each tile: [tile][k step]. */
template <class F>
__device__ __forceinline__ void scales_of(float (&s)[4][2], float (&m)[4][2], const char *unit,
                                          int c, int lane)
{
    if (F::GROUP == 0)
        return;
    const int groups = F::GROUP ? CU_STAGE / (F::GROUP ? F::GROUP : 1) : 1;
#pragma unroll
    for (int ks = 0; ks < 2; ks++) {
        const int g = F::GROUP == 32 ? c : c * 2 + ks;
        const __half *h = (const __half *)(unit + F::CODES) + (g * 8 + lane / 4) * 4;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            s[t][ks] = __half2float(h[t]);
            m[t][ks] = F::MIN ? __half2float(h[groups * CU_PANEL + t]) : 0;
        }
    }
}

__device__ __forceinline__ float finish(const gemm_args &a, float v, int r, int col)
{
    if (a.row_scale)
        v = __fmul_rn(v, a.row_scale[col]);
    return after_do(a.after, a.bias ? __fadd_rn(v, a.bias[col]) : v, r, col);
}

/* Run<Fmt>::go(args, row bound, stream) of the part's format. */
template <template <class> class Run>
static int by_format(const struct cu_part *p, const gemm_args &a, int n, cu_stream st)
{
    switch (p->bits) {
    case 2:
        return Run<Fmt<2, 16, true, 0, LV_INT>>::go(a, n, st);
    case 3:
        return Run<Fmt<3, 16, false, 4, LV_INT>>::go(a, n, st);
    case 4:
        if (p->levels == LV_IQ4)
            return Run<Fmt<4, 32, false, 0, LV_IQ4>>::go(a, n, st);
        if (p->levels == LV_NF4)
            return Run<Fmt<4, 32, false, 0, LV_NF4>>::go(a, n, st);
        if (p->levels == LV_FP4)
            return p->group == 32 ? Run<Fmt<4, 32, false, 0, LV_FP4>>::go(a, n, st)
                                  : Run<Fmt<4, 16, false, 0, LV_FP4>>::go(a, n, st);
        return p->min ? Run<Fmt<4, 32, true, 0, LV_INT>>::go(a, n, st)
                      : Run<Fmt<4, 32, false, 8, LV_INT>>::go(a, n, st);
    case 5:
        return p->min ? Run<Fmt<5, 32, true, 0, LV_INT>>::go(a, n, st)
                      : Run<Fmt<5, 32, false, 16, LV_INT>>::go(a, n, st);
    case 6:
        return Run<Fmt<6, 16, false, 32, LV_INT>>::go(a, n, st);
    case 8:
        if (p->levels == LV_E4M3)
            return Run<Fmt<8, 32, false, 0, LV_E4M3>>::go(a, n, st);
        if (p->min)
            return Run<Fmt<8, 32, true, 128, LV_INT>>::go(a, n, st);
        return p->group == 32 ? Run<Fmt<8, 32, false, 128, LV_INT>>::go(a, n, st)
                              : Run<Fmt<8, 16, false, 128, LV_INT>>::go(a, n, st);
    case 16:
        return Run<Fmt<16, 0, false, 0, LV_INT>>::go(a, n, st);
    default:
        return CU_BAD;
    }
}

/* The arguments but for split K, which is off. */
static inline gemm_args gemm_fill(const struct cu_linear *a, int part, int64_t col,
                                  const struct cu_step *s)
{
    const struct cu_part *p = &a->w->part[part];
    const int n = rows_max(s, a->rows);
    gemm_args g = {};
    g.splits = 1;
    g.panels = (int)((p->n_out + CU_PANEL - 1) / CU_PANEL);
    g.n_pad = (n + 63) / 64 * 64;
    g.dst = (float *)a->dst.p + col;
    g.ld_dst = a->dst.ld;
    g.src = (const bf16 *)a->src.p;
    g.ld_src = a->src.ld;
    g.units = (const char *)p->data;
    g.row_scale = p->row_scale;
    g.bias = a->bias ? a->bias + col : nullptr;
    g.count = s->count;
    g.after = after_from(a->after, col);
    g.rows = (int)a->rows;
    g.n_in = (int)a->w->n_in;
    g.n_out = (int)p->n_out;
    g.stages = (int)(a->w->n_in_pad / CU_STAGE);
    g.slow = a->w->n_in % 8 || a->src.ld % 8 || (uintptr_t)a->src.p % 16;
    return g;
}

#endif
