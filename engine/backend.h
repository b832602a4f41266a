/* Picks the backend: the CPU one is linked in; a GPU one is a plug-in (stepd-cuda.so,
 * stepd-cuda-emu.so) that exports `const struct backend stepd_backend`. */
#ifndef ENGINE_BACKEND_H
#define ENGINE_BACKEND_H

#include "engine/ops.h"

extern const struct backend cpu_backend; /* engine/cpu */
extern const struct backend ref_backend; /* engine/ref: plain C, double accumulation: the truth */

/* device: "auto" (or NULL: cuda if its plug-in loads and a device opens, else cpu), "cpu", "ref", "cuda",
 * "cuda-emu". Plug-ins are looked for beside the executable, then in the installed library folder; the
 * environment variable STEPD_LIBDIR replaces both. ERR_NOTFOUND when a plug-in can't be loaded, with the
 * loader's reason; ERR_UNSUPPORTED on another BACKEND_ABI. Static storage. */
int backend_find(const char *device, const struct backend **out, struct err *e);

#endif
