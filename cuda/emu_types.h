/* The CUDA types that kernels and host code use, for a build by plain g++: dim3, short vectors, half, bfloat16 and fp8.
 * Names, members and alignment are NVIDIA's, so that one source compiles both ways. Conversions round to nearest even,
 * keep subnormals and turn every NaN into the canonical one, as the hardware's cvt instructions do. */
#ifndef CUDA_EMU_TYPES_H
#define CUDA_EMU_TYPES_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* x, y, z, w of T; the 2- and 4-element ones are aligned to their size, at most 16 bytes */
#define EMU_VEC(T, V)                                                                              \
    struct V##1                                                                                    \
    {                                                                                              \
        T x;                                                                                       \
    };                                                                                             \
    struct alignas(2 * sizeof(T)) V##2                                                             \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    struct V##3                                                                                    \
    {                                                                                              \
        T x, y, z;                                                                                 \
    };                                                                                             \
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) V##4                                   \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    inline V##1 make_##V##1(T x)                                                                   \
    {                                                                                              \
        return {x};                                                                                \
    }                                                                                              \
    inline V##2 make_##V##2(T x, T y)                                                              \
    {                                                                                              \
        return {x, y};                                                                             \
    }                                                                                              \
    inline V##3 make_##V##3(T x, T y, T z)                                                         \
    {                                                                                              \
        return {x, y, z};                                                                          \
    }                                                                                              \
    inline V##4 make_##V##4(T x, T y, T z, T w)                                                    \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
EMU_VEC(signed char, char)
EMU_VEC(unsigned char, uchar)
EMU_VEC(short, short)
EMU_VEC(unsigned short, ushort)
EMU_VEC(int, int)
EMU_VEC(unsigned, uint)
EMU_VEC(long, long)
EMU_VEC(unsigned long, ulong)
EMU_VEC(long long, longlong)
EMU_VEC(unsigned long long, ulonglong)
EMU_VEC(float, float)
EMU_VEC(double, double)
#undef EMU_VEC

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
    operator uint3() const
    {
        return {x, y, z};
    }
};

namespace emu
{
/* The bits of one type as another of the same size. */
template <class D, class S> inline D bits(const S &s)
{
    static_assert(sizeof(D) == sizeof(S), "sizes differ");
    D d;
    memcpy((void *)&d, (const void *)&s, sizeof d);
    return d;
}

inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
    if (e == 0) {
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    return bits<float>(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13);
}

inline uint16_t half_from_float(float f)
{
    uint32_t u = bits<uint32_t>(f), a = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    if (a > 0x7f800000u)
        return 0x7fff;
    if (a >= 0x477ff000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) /* subnormal: the adder rounds at 2^-24 */
        return (uint16_t)(sign | (bits<uint32_t>(bits<float>(a) + 0.5f) - 0x3f000000u));
    a += 0xfffu + (a >> 13 & 1u);
    return (uint16_t)(sign | (a - (112u << 23)) >> 13);
}

inline float bf16_to_float(uint16_t h)
{
    return bits<float>((uint32_t)h << 16);
}

inline uint16_t bf16_from_float(float f)
{
    uint32_t u = bits<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* hi + err, known exactly, as a float rounded to odd: a later rounding to fewer bits is then the only one. */
inline float round_odd(double hi, double err)
{
    float f = (float)hi;
    if (!(fabsf(f) <= FLT_MAX))
        return f;
    double r = hi - (double)f + err;
    uint32_t u = bits<uint32_t>(f);
    if (r == 0 || (u & 1u))
        return f;
    if (f == 0)
        return bits<float>(r < 0 ? 0x80000001u : 1u);
    return bits<float>((r > 0) == !(u >> 31) ? u + 1 : u - 1);
}

/* a * b + c, where the product is exact in double, ready for one rounding to 16 bits */
inline float fma_odd(float a, float b, float c)
{
    double p = (double)a * b, s = p + c;
    if (!(fabs(s) <= DBL_MAX))
        return (float)s;
    double t = s - p;
    return round_odd(s, (p - (s - t)) + (c - t));
}

/* A small float with M mantissa bits and the given bias. `top` is the largest finite code, `over` what overflow gives
 * without saturation, `nan` the code of NaN. */
template <int M, int BIAS>
inline uint8_t fp8_from_float(float f, bool sat, uint8_t top, uint8_t over, uint8_t nan)
{
    uint32_t u = bits<uint32_t>(f), a = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
    if (a > 0x7f800000u)
        return nan;
    uint32_t c;
    if (a >= 0x7f800000u)
        c = 0xff;                              /* any code beyond the top */
    else if (a < (uint32_t)(128 - BIAS) << 23) /* the adder rounds at the last subnormal bit */
        c = bits<uint32_t>(bits<float>(a) + bits<float>((uint32_t)(151 - BIAS - M) << 23)) -
            ((uint32_t)(151 - BIAS - M) << 23);
    else
        c = (a + (1u << (22 - M)) - 1 + (a >> (23 - M) & 1u) - ((uint32_t)(127 - BIAS) << 23)) >>
            (23 - M);
    if (c > top)
        c = sat ? top : over;
    return (uint8_t)(sign | c);
}

template <int M, int BIAS> inline float fp8_to_float(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80) << 24, v = c & 0x7fu;
    float f = v >> M ? bits<float>((v << (23 - M)) + ((uint32_t)(127 - BIAS) << 23))
                     : (float)v * bits<float>((uint32_t)(128 - BIAS - M) << 23);
    if (M == 3 ? v == 0x7f : v > 0x7c)
        f = NAN;
    else if (M == 2 && v == 0x7c)
        f = INFINITY;
    return bits<float>(bits<uint32_t>(f) | sign);
}
} // namespace emu

#include "cuda/emu_half.h"

#endif
