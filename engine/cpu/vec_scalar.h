/* Sixteen lanes in four xmm, which every x86-64 has. Included by vec.h alone, which says what the functions
 * mean. */
#ifndef ENGINE_CPU_VEC_SCALAR_H
#define ENGINE_CPU_VEC_SCALAR_H

typedef float vec4 __attribute__((vector_size(16)));
typedef int32_t vec4i __attribute__((vector_size(16)));
typedef uint16_t vec4h __attribute__((vector_size(8)));

struct vf {
    vec4 v[VL / 4];
};
#define VEC_EACH(expr)                                                                             \
    struct vf r;                                                                                   \
    for (int i = 0; i < VL / 4; i++)                                                               \
        r.v[i] = (expr);                                                                           \
    return r
#define VEC_FN2(name, expr)                                                                        \
    VI struct vf name(struct vf a, struct vf b)                                                    \
    {                                                                                              \
        VEC_EACH(expr);                                                                            \
    }
VI vec4 vec_pick(vec4i m, vec4 a, vec4 b) /* a where m is all ones, b where 0 */
{
    return (vec4)((m & (vec4i)a) | (~m & (vec4i)b));
}
VEC_FN2(vadd, a.v[i] + b.v[i])
VEC_FN2(vsub, a.v[i] - b.v[i])
VEC_FN2(vmul, a.v[i] * b.v[i])
VEC_FN2(vdiv, a.v[i] / b.v[i])
VEC_FN2(vmax, vec_pick(a.v[i] > b.v[i], a.v[i], b.v[i]))
VEC_FN2(vmin, vec_pick(a.v[i] < b.v[i], a.v[i], b.v[i]))
VI struct vf vset1(float x)
{
    VEC_EACH(((vec4){x, x, x, x}));
}
VI struct vf vload(const float *p)
{
    struct vf r;
    memcpy(&r, p, sizeof r);
    return r;
}
VI struct vf vloadn(const float *p, int n)
{
    if (n == VL)
        return vload(p);
    float t[VL] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return vload(t);
}
VI void vstore(float *p, struct vf a)
{
    memcpy(p, &a, sizeof a);
}
VI void vstoren(float *p, struct vf a, int n)
{
    if (n == VL)
        vstore(p, a);
    else
        memcpy(p, &a, (size_t)n * sizeof *p);
}
VI struct vf vfma(struct vf a, struct vf b, struct vf c)
{
    VEC_EACH(a.v[i] * b.v[i] + c.v[i]);
}
VI struct vf vsel_lt(struct vf x, struct vf y, struct vf a, struct vf b)
{
    VEC_EACH(vec_pick(x.v[i] < y.v[i], a.v[i], b.v[i]));
}
VI struct vf vkeep(struct vf v, int lo, int hi, struct vf other)
{
    const vec4i lane = {0, 1, 2, 3};
    VEC_EACH(vec_pick((lane + 4 * i >= lo) & (lane + 4 * i < hi), v.v[i], other.v[i]));
}
VI uint32_t vec_bits4(vec4i m, int i)
{
    return (uint32_t)((m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8)) << (4 * i);
}
#define VEC_BITS(expr)                                                                             \
    uint32_t r = 0;                                                                                \
    for (int i = 0; i < VL / 4; i++)                                                               \
        r |= vec_bits4(expr, i);                                                                   \
    return r
VI uint32_t vbits_gt(struct vf a, struct vf b)
{
    VEC_BITS(a.v[i] > b.v[i]);
}
VI uint32_t vbits_nan(struct vf a)
{
    VEC_BITS(a.v[i] != a.v[i]);
}
VI uint32_t vbits_eq(struct vf a, struct vf b)
{
    VEC_BITS(a.v[i] == b.v[i]);
}
VI struct vf vexp2_magic(struct vf t)
{
    VEC_EACH((vec4)(((vec4i)t.v[i] + 127) << 23));
}
VI struct vf vabs(struct vf a)
{
    VEC_EACH((vec4)((vec4i)a.v[i] & 0x7fffffff));
}
VI uint16_t vec_to_f16(float f)
{
    uint32_t u = vec_bits(f), sign = (u >> 16) & 0x8000, r;
    u &= 0x7fffffffu;
    if (u >= 0x47800000u) /* 65536 and up, Inf, NaN */
        r = u > 0x7f800000u ? 0x7e00 | ((u >> 13) & 0x3ff) : 0x7c00;
    else if (u < 0x38800000u) /* below 2^-14: adding 0.5 rounds at the subnormal step */
        r = vec_bits(vec_float(u) + 0.5f) - 0x3f000000u;
    else
        r = (u - 0x38000000u + 0xfff + ((u >> 13) & 1)) >> 13;
    return (uint16_t)(r | sign);
}
VI vec4i vec_widen(const uint16_t *p)
{
    vec4h h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, vec4i);
}
/* Exponent and fraction into place, rebased by an exact product (subnormals too); Inf and NaN get the full
 * exponent back. */
VI vec4 vec_from_f16(vec4i w)
{
    vec4i f = (vec4i)((vec4)((w & 0x7fff) << 13) * 0x1p112f);
    f |= ((w & 0x7c00) == 0x7c00) & 0x7f800000;
    return (vec4)(f | (w & 0x8000) << 16);
}
VI struct vf vload_f16(const uint16_t *p)
{
    VEC_EACH(vec_from_f16(vec_widen(p + 4 * i)));
}
VI struct vf vload_bf16(const uint16_t *p)
{
    VEC_EACH((vec4)(vec_widen(p + 4 * i) << 16));
}
VI void vstore_f16(uint16_t *p, struct vf a)
{
    float t[VL];
    vstore(t, a);
    for (int i = 0; i < VL; i++)
        p[i] = vec_to_f16(t[i]);
}
VI void vstore_bf16(uint16_t *p, struct vf a)
{
    float t[VL];
    vstore(t, a);
    for (int i = 0; i < VL; i++)
        p[i] = f32_to_bf16(t[i]);
}

#endif
