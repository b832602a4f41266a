/* Activations on sixteen lanes. Only kern_*.c include this, after vec.h. */
#ifndef ENGINE_CPU_VEC_ACT_H
#define ENGINE_CPU_VEC_ACT_H

VI struct vf silu(struct vf x)
{
    return vdiv(x, vadd(vset1(1), vexp(vsub(vset1(0), x))));
}
/* (1 + tanh(u)) / 2 is the logistic function of 2 u: no cancellation where it is small. */
VI struct vf gelu_tanh(struct vf x)
{
    struct vf x3 = vmul(vmul(x, x), x);
    struct vf u = vmul(vset1(-1.5957691216f), vfma(vset1(0.044715f), x3, x));
    return vdiv(x, vadd(vset1(1), vexp(u)));
}
/* erfc by the Chebyshev fit of Press et al., Numerical Recipes 6.2: relative error below 1.2e-7, so that
 * the negative tail keeps its digits. */
VI struct vf gelu_erf(struct vf x)
{
    static const float c[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                              -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
    struct vf z = vabs(vmul(x, vset1(0.70710678f)));
    struct vf t = vdiv(vset1(1), vfma(vset1(0.5f), z, vset1(1)));
    struct vf p = vset1(c[0]);
    for (int i = 1; i < 10; i++)
        p = vfma(p, t, vset1(c[i]));
    struct vf q = vmul(t, vexp(vsub(p, vmul(z, z))));
    struct vf phi = vsel_lt(x, vset1(0), q, vsub(vset1(2), q));
    return vmul(vmul(vset1(0.5f), x), phi);
}
VI struct vf quick_gelu(struct vf x)
{
    return vdiv(x, vadd(vset1(1), vexp(vmul(vset1(-1.702f), x))));
}

#endif
