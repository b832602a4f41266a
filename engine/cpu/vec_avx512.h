/* Sixteen lanes in one zmm. Included by vec.h alone, which says what the functions mean. */
#ifndef ENGINE_CPU_VEC_AVX512_H
#define ENGINE_CPU_VEC_AVX512_H

#include <immintrin.h>

struct vf {
    __m512 v;
};
#define VEC_FN2(name, op)                                                                          \
    VI struct vf name(struct vf a, struct vf b)                                                    \
    {                                                                                              \
        return (struct vf){_mm512_##op##_ps(a.v, b.v)};                                            \
    }
VEC_FN2(vadd, add)
VEC_FN2(vsub, sub)
VEC_FN2(vmul, mul)
VEC_FN2(vdiv, div)
VEC_FN2(vmax, max)
VEC_FN2(vmin, min)
VI __mmask16 vec_first(int n) /* lanes below n, n in 0..16 */
{
    return (__mmask16)((1u << n) - 1);
}
VI struct vf vset1(float x)
{
    return (struct vf){_mm512_set1_ps(x)};
}
VI struct vf vload(const float *p)
{
    return (struct vf){_mm512_loadu_ps(p)};
}
VI struct vf vloadn(const float *p, int n)
{
    return (struct vf){_mm512_maskz_loadu_ps(vec_first(n), p)};
}
VI void vstore(float *p, struct vf a)
{
    _mm512_storeu_ps(p, a.v);
}
VI void vstoren(float *p, struct vf a, int n)
{
    _mm512_mask_storeu_ps(p, vec_first(n), a.v);
}
VI struct vf vfma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm512_fmadd_ps(a.v, b.v, c.v)};
}
/* a where x < y, else b */
VI struct vf vsel_lt(struct vf x, struct vf y, struct vf a, struct vf b)
{
    return (struct vf){_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
/* v in lanes [lo, hi), `other` elsewhere; 0 <= lo, hi <= 16 */
VI struct vf vkeep(struct vf v, int lo, int hi, struct vf other)
{
    __mmask16 m = (__mmask16)(vec_first(hi) & ~vec_first(lo));
    return (struct vf){_mm512_mask_blend_ps(m, other.v, v.v)};
}
/* One bit a lane. */
VI uint32_t vbits_gt(struct vf a, struct vf b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
VI uint32_t vbits_nan(struct vf a)
{
    return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
}
VI uint32_t vbits_eq(struct vf a, struct vf b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}
/* 2^n for the integer n in the low bits of a float made by adding 1.5 * 2^23 */
VI struct vf vexp2_magic(struct vf t)
{
    __m512i n =
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(t.v), _mm512_set1_epi32(127)), 23);
    return (struct vf){_mm512_castsi512_ps(n)};
}
VI struct vf vabs(struct vf a)
{
    return (struct vf){_mm512_abs_ps(a.v)};
}
VI struct vf vload_f16(const uint16_t *p)
{
    return (struct vf){_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p))};
}
VI struct vf vload_bf16(const uint16_t *p)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return (struct vf){_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
VI void vstore_f16(uint16_t *p, struct vf a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
VI void vstore_bf16(uint16_t *p, struct vf a)
{
    __m512i u = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(
        _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(64));
    r = _mm512_mask_blend_epi32((__mmask16)vbits_nan(a), r, quiet);
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(r));
}
VI __m256 vec_fold(struct vf a, __m256 *hi)
{
    *hi = _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a.v), 1));
    return _mm512_castps512_ps256(a.v);
}

#endif
