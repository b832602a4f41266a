/* Sixteen lanes in two ymm. Included by vec.h alone, which says what the functions mean. */
#ifndef ENGINE_CPU_VEC_AVX2_H
#define ENGINE_CPU_VEC_AVX2_H

#include <immintrin.h>

struct vf {
    __m256 a, b;
};
#define VEC_FN2(name, op)                                                                          \
    VI struct vf name(struct vf x, struct vf y)                                                    \
    {                                                                                              \
        return (struct vf){_mm256_##op##_ps(x.a, y.a), _mm256_##op##_ps(x.b, y.b)};                \
    }
VEC_FN2(vadd, add)
VEC_FN2(vsub, sub)
VEC_FN2(vmul, mul)
VEC_FN2(vdiv, div)
VEC_FN2(vmax, max)
VEC_FN2(vmin, min)
VI __m256i vec_lt(int first, int n) /* all ones in lanes whose index first + i is below n */
{
    __m256i i =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), i);
}
VI struct vf vset1(float x)
{
    return (struct vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
VI struct vf vload(const float *p)
{
    return (struct vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
VI struct vf vloadn(const float *p, int n)
{
    return (struct vf){_mm256_maskload_ps(p, vec_lt(0, n)),
                       _mm256_maskload_ps(p + 8, vec_lt(8, n))};
}
VI void vstore(float *p, struct vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
VI void vstoren(float *p, struct vf x, int n)
{
    _mm256_maskstore_ps(p, vec_lt(0, n), x.a);
    _mm256_maskstore_ps(p + 8, vec_lt(8, n), x.b);
}
VI struct vf vfma(struct vf x, struct vf y, struct vf z)
{
    return (struct vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
VI struct vf vsel_lt(struct vf x, struct vf y, struct vf p, struct vf q)
{
    return (struct vf){_mm256_blendv_ps(q.a, p.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
                       _mm256_blendv_ps(q.b, p.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
VI struct vf vkeep(struct vf v, int lo, int hi, struct vf other)
{
    __m256i ma = _mm256_andnot_si256(vec_lt(0, lo), vec_lt(0, hi));
    __m256i mb = _mm256_andnot_si256(vec_lt(8, lo), vec_lt(8, hi));
    return (struct vf){_mm256_blendv_ps(other.a, v.a, _mm256_castsi256_ps(ma)),
                       _mm256_blendv_ps(other.b, v.b, _mm256_castsi256_ps(mb))};
}
#define VEC_BITS(cmp, x, y)                                                                        \
    ((uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((x).a, (y).a, cmp)) |                              \
     (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((x).b, (y).b, cmp)) << 8)
VI uint32_t vbits_gt(struct vf x, struct vf y)
{
    return VEC_BITS(_CMP_GT_OQ, x, y);
}
VI uint32_t vbits_nan(struct vf x)
{
    return VEC_BITS(_CMP_UNORD_Q, x, x);
}
VI uint32_t vbits_eq(struct vf x, struct vf y)
{
    return VEC_BITS(_CMP_EQ_OQ, x, y);
}
VI __m256 vec_exp2_half(__m256 t)
{
    __m256i n = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}
VI struct vf vexp2_magic(struct vf t)
{
    return (struct vf){vec_exp2_half(t.a), vec_exp2_half(t.b)};
}
VI struct vf vabs(struct vf x)
{
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return (struct vf){_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
VI struct vf vload_f16(const uint16_t *p)
{
    return (struct vf){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                       _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)))};
}
VI __m256 vec_bf16_half(const uint16_t *p)
{
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
VI struct vf vload_bf16(const uint16_t *p)
{
    return (struct vf){vec_bf16_half(p), vec_bf16_half(p + 8)};
}
VI void vstore_f16(uint16_t *p, struct vf x)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
VI __m256i vec_to_bf16_half(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(
        _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(64));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, quiet, nan);
}
VI void vstore_bf16(uint16_t *p, struct vf x)
{
    __m256i w = _mm256_packus_epi32(vec_to_bf16_half(x.a), vec_to_bf16_half(x.b));
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(w, 0xd8));
}
VI __m256 vec_fold(struct vf x, __m256 *hi)
{
    *hi = x.b;
    return x.a;
}

#endif
