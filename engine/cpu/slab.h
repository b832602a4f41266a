/* Memory for packed weights: large mappings on huge pages, handed out front to back. A layer's matrices are
 * smaller than a huge page; one by one they would lie on 4 KiB pages, and a decode step, which reads every weight
 * once, would wait for page walks. Nothing is freed singly. Engine thread. */
#ifndef ENGINE_CPU_SLAB_H
#define ENGINE_CPU_SLAB_H

#include <stddef.h>

struct cpu_slab; /* NULL is an empty one */

/* 64-aligned, zeroed by the kernel, untouched; NULL when it can't be had. *s grows as needed. */
void *cpu_slab_take(struct cpu_slab **s, size_t bytes);
void cpu_slab_free(struct cpu_slab **s); /* all of it; *s becomes NULL */

#endif
