/* Vector kernels of layers with a recurrent state: kern_state.c is compiled once per ISA and exports cpu_state_<isa>. A
 * call takes one sequence's rows one after the other, for some channels or one head; states are read from `src` (NULL:
 * zeros) and left in `dst`, which may be the same. No allocation, no threads, no checks. */
#ifndef ENGINE_CPU_KERN_STATE_H
#define ENGINE_CPU_KERN_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CPU_CONV_MAX 8 /* STATE_CONV_MAX, STATE_KEY_MAX */
#define CPU_KEY_MAX  256

struct cpu_rows { /* NULL p: absent */
    float *p;
    int64_t ld;
};
struct cpu_span { /* rows [from, to) of the step, and a state */
    int from, to;
    const float *src;
    float *dst;
};

struct cpu_conv_state {
    struct cpu_rows dst, mul, x, in, out;
    const float *w, *bias;
    int64_t d;
    int k;
    bool silu;
};
struct cpu_scan_state {
    struct cpu_rows dst, x, dt, b, c;
    const float *dt_bias, *a, *skip;
    int n_head, head_dim, per_group, n_state;
    bool wide; /* a [n_head, n_state] */
    float dt_min, dt_max;
};
struct cpu_delta_state {
    struct cpu_rows dst, q, k, v, g, beta;
    const float *g_bias, *a;
    int n_head, n_key_head, dk, dv;
    bool cycle, wide;
    float scale, eps;
};
struct cpu_wkv_state {
    struct cpu_rows dst, r, k, v;
    const float *decay, *first;
    int64_t d;
};
struct cpu_shift_state {
    struct cpu_rows dst, x;
    const float *mix;
    int64_t d;
    int n_mix;
};
struct cpu_gated_args {
    struct cpu_rows dst, x, gate;
    const float *w;
    int64_t cols, group;
    bool sigmoid, each, norm, gate_first; /* each: w [cols] */
    float eps;
};

struct cpu_state_kern {
    /* Channels [at, at + 16) or fewer. */
    void (*conv)(const struct cpu_conv_state *a, const struct cpu_span *s, int64_t at);
    void (*wkv)(const struct cpu_wkv_state *a, const struct cpu_span *s, int64_t at);
    void (*shift)(const struct cpu_shift_state *a, const struct cpu_span *s, int64_t at);
    /* Head h. */
    void (*scan)(const struct cpu_scan_state *a, const struct cpu_span *s, int h);
    void (*delta)(const struct cpu_delta_state *a, const struct cpu_span *s, int h);
    void (*gated_norm)(const struct cpu_gated_args *a, int64_t row);
};
extern const struct cpu_state_kern cpu_state_scalar, cpu_state_avx2, cpu_state_avx512,
    cpu_state_amx;

#endif
