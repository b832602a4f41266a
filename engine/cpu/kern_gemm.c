/* GEMM kernels on f32 activations. `exact`, for every layout, forms w = D * q + M as the reference decoder does and
 * multiplies that; `fast`, for codes that stand for levels, factors each group, y += D * sum(q x). Whole numbers are
 * multiplied in integers, or in tiles, where not `exact`. Compiled once per ISA. The order of every output's reduction depends on the layout only:
 * a row gives the same bits in any block of rows. */
#include "engine/cpu/gemm_vec.h"

/* q[4i + b + 16h] - bias of every lane; i may be a variable, b and h are constants. `word` is nib[i], or
 * q[i + 4h] for 8 bits; high[] are the planes shifted right by i. */
INLINE vf q_value(const struct gemm_spec s, vu word, const vu *high, int b, int h)
{
    if (s.level == LEVEL_E4M3)
        return v_e4m3(word >> 8 * b);
    if (s.bits == 8)
        return v_small(word >> 8 * b & 255, s.bias);
    vu q = word >> (8 * b + 4 * h);
    if (s.level != LEVEL_INT)
        return v_level16(s.level, q);
#if LANES == 16
    if (s.bits == 4) { /* the permutation looks at the low four bits of its index only */
        const float z = (float)-s.bias;
        const __m512 level =
            _mm512_setr_ps(z, z + 1, z + 2, z + 3, z + 4, z + 5, z + 6, z + 7, z + 8, z + 9, z + 10,
                           z + 11, z + 12, z + 13, z + 14, z + 15);
        return (vf)_mm512_permutexvar_ps((__m512i)q, level);
    }
#endif
    q &= 15;
    const int at = gemm_high_bit(b + 16 * h);
    for (int plane = 0; plane < s.bits - 4; plane++) {
        const int to = 4 + plane;
        q |= (at >= to ? high[plane] >> (at - to) : high[plane] << (to - at)) & (1u << to);
    }
    return v_small(q, s.bias);
}

/* Add the values of one group (k < 16 and / or k >= 16 of the chunk) times x to two sums a row. */
INLINE void group_dot(const struct gemm_spec s, const int n, const uint8_t *chunk, const int h0,
                      const int h1, const float *x, int64_t ldx, const vf *scale, vf (*sum)[2])
{
    vu high0[2] = {{0}};
    for (int plane = 0; plane < s.bits - 4 && s.bits < 8; plane++)
        high0[plane] = v_load_u(chunk + (size_t)(4 + plane) * LANES * 4);
    UNROLL(1) /* four times the code and the compile time, for nothing */
    for (int i = 0; i < 4; i++) {
        vu high[2] = {high0[0] >> i, high0[1] >> i};
        UNROLL(2)
        for (int h = h0; h < h1; h++) {
            vu word = v_load_u(chunk + (size_t)(i + (s.bits == 8 ? 4 * h : 0)) * LANES * 4);
            UNROLL(4)
            for (int b = 0; b < 4; b++) {
                vf w = q_value(s, word, high, b, h);
                if (scale)
                    w = s.has_min ? w * scale[0] + scale[1] : w * scale[0];
                UNROLL(8)
                for (int r = 0; r < n; r++)
                    sum[r][b & 1] = v_fma(w, v_set(x[r * ldx + 4 * i + b + 16 * h]), sum[r][b & 1]);
            }
        }
    }
}

INLINE void quant_rows(const struct gemm_call *c, const struct gemm_spec s, const bool exact,
                       const int n, int p, int64_t row)
{
    const uint8_t *scales = c->panel + (size_t)p * c->panel_bytes;
    const uint8_t *chunk = scales + gemm_scale_bytes(s, c->n_in, LANES);
    const float *x = c->x + row * c->ldx;
    const int per = GEMM_CHUNK / s.group;
    vf acc[ROWS_MAX], sum[ROWS_MAX][2];
    UNROLL(8)
    for (int r = 0; r < n; r++)
        acc[r] = sum[r][0] = sum[r][1] = v_set(0);
    for (int64_t g = 0; g < c->n_in / GEMM_CHUNK * per; x += GEMM_CHUNK) {
        UNROLL(2)
        for (int j = 0; j < per; j++, g++) {
            vf scale[2];
            const int h0 = per == 2 ? j : 0, h1 = per == 2 ? j + 1 : 2;
            group_scale(scales, s, g, &scale[0], &scale[1]);
            if (exact) {
                group_dot(s, n, chunk, h0, h1, x, c->ldx, scale, sum);
                continue;
            }
            group_dot(s, n, chunk, h0, h1, x, c->ldx, NULL, sum);
            UNROLL(8)
            for (int r = 0; r < n; r++) {
                acc[r] = v_fma(scale[0], sum[r][0] + sum[r][1], acc[r]);
                sum[r][0] = sum[r][1] = v_set(0);
            }
        }
        chunk += gemm_chunk_bytes(s, LANES);
    }
    UNROLL(8)
    for (int r = 0; r < n && exact; r++)
        acc[r] = sum[r][0] + sum[r][1];
    rows_store(c, p, row, n, acc);
}

INLINE void dense_rows(const struct gemm_call *c, const enum gemm_layout l, const int n, int p,
                       int64_t row)
{
    const uint8_t *w = c->panel + (size_t)p * c->panel_bytes;
    const float *x = c->x + row * c->ldx;
    const size_t bytes = LANES * (l == GL_F32 ? 4 : 2);
    vf acc[ROWS_MAX], sum[ROWS_MAX][2];
    UNROLL(8)
    for (int r = 0; r < n; r++)
        sum[r][0] = sum[r][1] = v_set(0);
    for (int64_t k = 0; k < c->n_in; k += 4, w += 4 * bytes) {
        vf v[4];
        for (int i = 0; i < 2; i++) {
            if (l == GL_BF16) { /* k and k + 2 share a word */
                vu pair = v_load_u(w + (size_t)i * LANES * 4);
                v[i] = (vf)(pair << 16);
                v[i + 2] = (vf)(pair & 0xffff0000);
            } else {
                for (int j = 0; j < 4; j += 2)
                    v[i + j] = l == GL_F32 ? (vf)v_load_u(w + (size_t)(i + j) * bytes)
                                           : v_load_f16(w + (size_t)(i + j) * bytes);
            }
        }
        UNROLL(4)
        for (int i = 0; i < 4; i++)
            UNROLL(8)
        for (int r = 0; r < n; r++)
            sum[r][i & 1] = v_fma(v[i], v_set(x[r * c->ldx + k + i]), sum[r][i & 1]);
    }
    UNROLL(8)
    for (int r = 0; r < n; r++)
        acc[r] = sum[r][0] + sum[r][1];
    rows_store(c, p, row, n, acc);
}

/* Cover c->m rows by blocks of ROWS_MAX, ..., 2, 1 rows. */
#define ROW_BLOCKS(call)                                                                           \
    for (; ROWS_MAX >= 8 && c->m - row >= 8; row += 8)                                             \
        call(ROWS_MAX >= 8 ? 8 : 1);                                                               \
    for (; ROWS_MAX >= 4 && c->m - row >= 4; row += 4)                                             \
        call(ROWS_MAX >= 4 ? 4 : 1);                                                               \
    for (; c->m - row >= 2; row += 2)                                                              \
        call(2);                                                                                   \
    for (; row < c->m; row++)                                                                      \
        call(1);

#define QUANT_FN(fn, is_exact, ...)                                                                \
    static void fn(const struct gemm_call *c)                                                      \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        const bool exact = is_exact;                                                               \
        for (int p = 0; p < c->n_panel; p++) {                                                     \
            int64_t row = 0;                                                                       \
            ROW_BLOCKS(QUANT)                                                                      \
        }                                                                                          \
    }
#define QUANT(n)     quant_rows(c, s, exact, n, p, row)
#define X(name, ...) QUANT_FN(exact_##name, true, __VA_ARGS__)
GEMM_QUANT_LAYOUTS(X)
#undef X
#ifndef CPU_ISA_amx
#define X(name, ...) QUANT_FN(fast_##name, false, __VA_ARGS__)
GEMM_LEVEL_LAYOUTS(X)
#undef X
#endif

#define DENSE(n) dense_rows(c, layout, n, p, row)
#define DENSE_FN(fn, l)                                                                            \
    static void fn(const struct gemm_call *c)                                                      \
    {                                                                                              \
        const enum gemm_layout layout = l;                                                         \
        for (int p = 0; p < c->n_panel; p++) {                                                     \
            int64_t row = 0;                                                                       \
            ROW_BLOCKS(DENSE)                                                                      \
        }                                                                                          \
    }
DENSE_FN(dense_f32, GL_F32)
DENSE_FN(dense_f16, GL_F16)
DENSE_FN(dense_bf16, GL_BF16)

#define TABLE_OF(isa)  cpu_gemm_##isa
#define TABLE(isa)     TABLE_OF(isa)
#define INT8_OF(isa)   gemm__int8_##isa
#define INT8(isa)      INT8_OF(isa)
#define BF16_OF(isa)   gemm__bf16_##isa
#define BF16_KERN(isa) BF16_OF(isa)
#define TEXT_OF(isa)   #isa
#define TEXT(isa)      TEXT_OF(isa)

const struct cpu_gemm_kern TABLE(CPU_ISA) = {
    .name = TEXT(CPU_ISA),
    .lanes = LANES,
#ifndef CPU_ISA_amx
    .int8 = &INT8(CPU_ISA),
#endif
    .exact = {[GL_F32] = dense_f32,
              [GL_F16] = dense_f16,
              [GL_BF16] = dense_bf16,
#define X(name, ...) [GL_##name] = exact_##name,
              GEMM_QUANT_LAYOUTS(X)
#undef X
    },
    .fast = {[GL_F32] = dense_f32,
             [GL_F16] = dense_f16,
             [GL_BF16] = dense_bf16,
#ifndef CPU_ISA_amx
#define X(name, ...) [GL_##name] = fast_##name,
             GEMM_LEVEL_LAYOUTS(X)
#undef X
#endif
    },
#if LANES == 16
    .bf16 = &BF16_KERN(CPU_ISA),
#endif
#ifdef CPU_ISA_amx
    .fixed = &gemm__fixed_amx,
#endif
};
