/* The CUDA runtime API for the host side, which is C17: NVIDIA's own header, or emu_rt.h, which declares the part that
 * we use under the same names and is implemented by emu_rt.cc. */
#ifndef CUDA_RT_H
#define CUDA_RT_H

#ifdef CUDA_EMU
#include "cuda/emu_rt.h"
#else
#include <cuda_runtime_api.h>
#endif

#endif
