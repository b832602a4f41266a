/* Atomics and scalar intrinsics of the CUDA language. Part of emu.h. */
#ifndef CUDA_EMU_MATH_H
#define CUDA_EMU_MATH_H

/* ---- atomics: one OS thread runs all fibers, so the compiler's builtins do, and the race detector knows them ---- */
namespace emu
{
template <class T>
using word = std::conditional_t<sizeof(T) == 2, uint16_t,
                                std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
template <class T, class Fn> inline T update(T *p, Fn fn)
{
    word<T> *w = (word<T> *)p, old = __atomic_load_n(w, __ATOMIC_RELAXED), now;
    T a, b;
    do {
        memcpy((void *)&a, &old, sizeof a);
        b = fn(a);
        memcpy((void *)&now, (const void *)&b, sizeof b);
    } while (!__atomic_compare_exchange_n(w, &old, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return a;
}
template <class T> struct same {
    typedef T type;
};
} // namespace emu
#define EMU_ATOMIC(name, expr)                                                                     \
    template <class T> inline T name(T *p, typename emu::same<T>::type v)                          \
    {                                                                                              \
        return emu::update(p, [=](T a) { return (T)(expr); });                                     \
    }
EMU_ATOMIC(atomicAdd, a + v)
EMU_ATOMIC(atomicSub, a - v)
EMU_ATOMIC(atomicMax, a > v ? a : v)
EMU_ATOMIC(atomicMin, a < v ? a : v)
EMU_ATOMIC(atomicOr, a | v)
EMU_ATOMIC(atomicAnd, a &v)
EMU_ATOMIC(atomicExch, ((void)a, v))
#undef EMU_ATOMIC
template <class T>
inline T atomicCAS(T *p, typename emu::same<T>::type is, typename emu::same<T>::type v)
{
    return emu::update(p, [=](T a) { return a == is ? v : a; });
}

/* ---- scalars ---- */
template <class T> inline T __ldg(const T *p)
{
    return *p;
}
template <class T> inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> inline void __stcs(T *p, T v)
{
    *p = v;
}
inline int __float_as_int(float f)
{
    return emu::bits<int>(f);
}
inline unsigned __float_as_uint(float f)
{
    return emu::bits<unsigned>(f);
}
inline float __int_as_float(int i)
{
    return emu::bits<float>(i);
}
inline float __uint_as_float(unsigned i)
{
    return emu::bits<float>(i);
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __frcp_rn(float a)
{
    return 1 / a;
}
inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
inline float __saturatef(float x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}
inline int __float2int_rn(float x)
{
    return (int)nearbyintf(x);
}
inline int __float2int_rd(float x)
{
    return (int)floorf(x);
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    uint64_t v = a | (uint64_t)b << 32;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned k = s >> 4 * i & 15, y = (unsigned)(v >> 8 * (k & 7)) & 255;
        r |= (k & 8 ? (y & 128 ? 255u : 0u) : y) << 8 * i;
    }
    return r;
}
inline int min(int a, int b)
{
    return a < b ? a : b;
}
inline int max(int a, int b)
{
    return a > b ? a : b;
}
inline unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}
inline unsigned max(unsigned a, unsigned b)
{
    return a > b ? a : b;
}
inline int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
inline int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
