/* half, bfloat16 and fp8 under NVIDIA's names. Part of emu_types.h. */
#ifndef CUDA_EMU_HALF_H
#define CUDA_EMU_HALF_H

/* ---- half and bfloat16: storage with NVIDIA's member name, arithmetic rounded once ---- */

struct __half_raw {
    unsigned short x;
};
struct __half2_raw {
    unsigned short x, y;
};
struct __nv_bfloat16_raw {
    unsigned short x;
};
#define EMU_HALF(H, RAW, X)                                                                        \
    struct H {                                                                                     \
        uint16_t __x;                                                                              \
        H() = default;                                                                             \
        H(RAW r) : __x(r.x)                                                                        \
        {                                                                                          \
        }                                                                                          \
        H(float f) : __x(emu::X##_from_float(f))                                                   \
        {                                                                                          \
        }                                                                                          \
        H(double d) : __x(emu::X##_from_float(emu::round_odd(d, 0)))                               \
        {                                                                                          \
        }                                                                                          \
        H(int i) : H((double)i)                                                                    \
        {                                                                                          \
        }                                                                                          \
        operator RAW() const                                                                       \
        {                                                                                          \
            return {__x};                                                                          \
        }                                                                                          \
        operator float() const                                                                     \
        {                                                                                          \
            return emu::X##_to_float(__x);                                                         \
        }                                                                                          \
    };                                                                                             \
    inline H operator+(H a, H b)                                                                   \
    {                                                                                              \
        return H((float)a + (float)b);                                                             \
    }                                                                                              \
    inline H operator-(H a, H b)                                                                   \
    {                                                                                              \
        return H((float)a - (float)b);                                                             \
    }                                                                                              \
    inline H operator*(H a, H b)                                                                   \
    {                                                                                              \
        return H((float)a * (float)b);                                                             \
    }                                                                                              \
    inline H operator/(H a, H b)                                                                   \
    {                                                                                              \
        return H((float)a / (float)b);                                                             \
    }                                                                                              \
    inline H operator-(H a)                                                                        \
    {                                                                                              \
        return H(RAW{(unsigned short)(a.__x ^ 0x8000)});                                           \
    }                                                                                              \
    inline H &operator+=(H &a, H b)                                                                \
    {                                                                                              \
        return a = a + b;                                                                          \
    }                                                                                              \
    inline H &operator*=(H &a, H b)                                                                \
    {                                                                                              \
        return a = a * b;                                                                          \
    }                                                                                              \
    inline bool operator<(H a, H b)                                                                \
    {                                                                                              \
        return (float)a < (float)b;                                                                \
    }
EMU_HALF(__half, __half_raw, half)
EMU_HALF(__nv_bfloat16, __nv_bfloat16_raw, bf16)
#undef EMU_HALF
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b)
    {
    }
    __half2(__half2_raw r) : x(__half_raw{r.x}), y(__half_raw{r.y})
    {
    }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b)
    {
    }
};
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

/* ---- fp8 ---- */

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float f, __nv_saturation_t s,
                                                __nv_fp8_interpretation_t k)
{
    bool sat = s == __NV_SATFINITE;
    return k == __NV_E4M3 ? emu::fp8_from_float<3, 7>(f, sat, 0x7e, 0x7f, 0x7f)
                          : emu::fp8_from_float<2, 15>(f, sat, 0x7b, 0x7c, 0x7f);
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t c, __nv_fp8_interpretation_t k)
{
    return {emu::half_from_float(k == __NV_E4M3 ? emu::fp8_to_float<3, 7>(c)
                                                : emu::fp8_to_float<2, 15>(c))};
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t c, __nv_fp8_interpretation_t k)
{
    return {__nv_cvt_fp8_to_halfraw((uint8_t)c, k).x,
            __nv_cvt_fp8_to_halfraw((uint8_t)(c >> 8), k).x};
}

/* ---- conversions ---- */

inline float __half2float(__half h)
{
    return h;
}
inline __half __float2half(float f)
{
    return __half(f);
}
inline __half __float2half_rn(float f)
{
    return __half(f);
}
inline float2 __half22float2(__half2 h)
{
    return {h.x, h.y};
}
inline __half2 __floats2half2_rn(float a, float b)
{
    return {__half(a), __half(b)};
}
inline __half2 __halves2half2(__half a, __half b)
{
    return {a, b};
}
inline __half __low2half(__half2 h)
{
    return h.x;
}
inline __half __high2half(__half2 h)
{
    return h.y;
}
inline __half __ushort_as_half(unsigned short u)
{
    return __half_raw{u};
}
inline unsigned short __half_as_ushort(__half h)
{
    return h.__x;
}
inline float __bfloat162float(__nv_bfloat16 h)
{
    return h;
}
inline __nv_bfloat16 __float2bfloat16(float f)
{
    return __nv_bfloat16(f);
}
inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __nv_bfloat16(f);
}
inline float2 __bfloat1622float2(__nv_bfloat162 h)
{
    return {h.x, h.y};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return {a, b};
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    return __nv_bfloat16_raw{u};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.__x;
}
/* each element rounded once; also what atomicAdd does */
inline __half2 operator+(__half2 a, __half2 b)
{
    return {a.x + b.x, a.y + b.y};
}
inline __nv_bfloat162 operator+(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return {a.x + b.x, a.y + b.y};
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return {__half(emu::fma_odd(a.x, b.x, c.x)), __half(emu::fma_odd(a.y, b.y, c.y))};
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c)
{
    return {__nv_bfloat16(emu::fma_odd(a.x, b.x, c.x)), __nv_bfloat16(emu::fma_odd(a.y, b.y, c.y))};
}

#endif
