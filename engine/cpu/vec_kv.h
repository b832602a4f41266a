/* Loads of sixteen eight-bit codes as floats, see engine/quant/kv8.h. Only kern_*.c include this, after vec.h. */
#ifndef ENGINE_CPU_VEC_KV_H
#define ENGINE_CPU_VEC_KV_H

#include "engine/cpu/vec.h"

/* vload_f8 gives e4m3 values divided by this: the bits of a half whose exponent is 8 too low. Subnormals are exact. */
#define F8_UNIT 256.0f

#if defined(CPU_ISA_avx512) || defined(CPU_ISA_amx)
VI struct vf vload_i8(const int8_t *p)
{
    return (struct vf){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)))};
}
#elif defined(CPU_ISA_avx2)
VI struct vf vload_i8(const int8_t *p)
{
    __m256i lo = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p));
    __m256i hi = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8)));
    return (struct vf){_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
}
#else
typedef int8_t vec4b __attribute__((vector_size(4)));
VI struct vf vload_i8(const int8_t *p)
{
    struct vf r;
    for (int i = 0; i < VL / 4; i++) {
        vec4b b;
        memcpy(&b, p + 4 * i, sizeof b);
        r.v[i] = __builtin_convertvector(b, vec4);
    }
    return r;
}
#endif

#if defined(CPU_ISA_scalar)
VI struct vf vload_f8(const uint8_t *p)
{
    uint16_t h[VL];
    for (int i = 0; i < VL; i++)
        h[i] = (uint16_t)((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7);
    return vload_f16(h);
}
#else
VI __m256i vec_f8_half(const uint8_t *p) /* the sign is in bits 15 and 14 at first */
{
    __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p));
    return _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((short)0xbfff));
}
#if defined(CPU_ISA_avx2)
VI struct vf vload_f8(const uint8_t *p)
{
    __m256i w = vec_f8_half(p);
    return (struct vf){_mm256_cvtph_ps(_mm256_castsi256_si128(w)),
                       _mm256_cvtph_ps(_mm256_extracti128_si256(w, 1))};
}
#else
VI struct vf vload_f8(const uint8_t *p)
{
    return (struct vf){_mm512_cvtph_ps(vec_f8_half(p))};
}
#endif
#endif

#endif
