/* Picks the instruction set: one row of tables that this processor, its operating system and this process
 * may execute. Any thread; the first call probes, the answer does not change. */
#ifndef ENGINE_CPU_DISPATCH_H
#define ENGINE_CPU_DISPATCH_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/kern.h"

struct cpu_isa {
    const char *name; /* "scalar", "avx2", "avx512", "amx" */
    const struct cpu_gemm_kern *gemm;
    const struct cpu_norm_kern *norm;
    const struct cpu_attn_kern *attn;
    const struct cpu_sample_kern *sample;
    const struct cpu_image_kern *image;
    const struct cpu_state_kern *state;
    const struct cpu_mla_kern *mla;
    const struct cpu_attend_kern *attend; /* NULL: by `attn` */
    const struct cpu_attn_kern *tiles;    /* NULL: by `attn` */
    const struct cpu_attn_kern *words; /* of f16 pools whose values become words; NULL: by `attn` */
};

#define CPU_N_ISA 4
extern const struct cpu_isa cpu_isas[CPU_N_ISA]; /* from the plainest to the best */

/* Can this process run cpu_isas[i]? */
bool cpu_isa_usable(int i);

/* want NULL or "auto": the best usable one. ERR_INVAL for an unknown name (the known ones are listed),
 * ERR_UNSUPPORTED for one that can't run here. */
int cpu_isa_pick(const struct cpu_isa **out, const char *want, struct err *e);

#endif
