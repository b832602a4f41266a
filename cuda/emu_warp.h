/* Barriers, warp exchange, fences. Part of emu.h. */
#ifndef CUDA_EMU_WARP_H
#define CUDA_EMU_WARP_H

inline void __syncthreads(EMU_AT)
{
    emu::barrier(0, 0, 0, true, file, line);
}
inline int __syncthreads_count(int p, EMU_AT)
{
    return emu::barrier(0, 0, p != 0, true, file, line);
}
inline int __syncthreads_or(int p, EMU_AT)
{
    return emu::barrier(0, 0, p != 0, true, file, line) != 0;
}
inline int __syncthreads_and(int p, EMU_AT)
{
    return emu::barrier(0, 0, p == 0, true, file, line) == 0;
}
void __syncwarp(unsigned mask = 0xffffffffu, EMU_AT);

template <class T> inline T __shfl_sync(unsigned m, T v, int src, int w = 32, EMU_AT)
{
    struct In {
        T v;
        int src;
    } in{v, src};
    T r = v;
    emu::collective(m, "__shfl_sync", &in, &r, file, line, [&](emu::Collective &c) {
        for (int i = 0; i < 32; i++)
            if (c.arrived >> i & 1) { /* every lane names its own source */
                int s = (i & ~(w - 1)) | (((const In *)c.in[i])->src & (w - 1));
                if (c.arrived >> s & 1)
                    memcpy(c.out[i], &((const In *)c.in[s])->v, sizeof(T));
                else
                    memset(c.out[i], 0xFF, sizeof(T));
            }
    });
    return r;
}
template <class T> inline T __shfl_xor_sync(unsigned m, T v, int x, int w = 32, EMU_AT)
{
    return emu::exchange(m, "__shfl_xor_sync", v, file, line,
                         [=](int i) { return ((i ^ x) & ~(w - 1)) > (i & ~(w - 1)) ? -1 : i ^ x; });
}
template <class T> inline T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32, EMU_AT)
{
    return emu::exchange(m, "__shfl_down_sync", v, file, line,
                         [=](int i) { return (i & (w - 1)) + (int)d >= w ? -1 : i + (int)d; });
}
template <class T> inline T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32, EMU_AT)
{
    return emu::exchange(m, "__shfl_up_sync", v, file, line,
                         [=](int i) { return (i & (w - 1)) < (int)d ? -1 : i - (int)d; });
}
inline unsigned __ballot_sync(unsigned m, int p, EMU_AT)
{
    return emu::reduce(m, "__ballot_sync", p ? 1u << emu::cur->lane : 0u, file, line,
                       [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned m, int p, EMU_AT)
{
    return __ballot_sync(m, p, file, line) != 0;
}
inline int __all_sync(unsigned m, int p, EMU_AT)
{
    return __ballot_sync(m, !p, file, line) == 0;
}
inline unsigned __reduce_add_sync(unsigned m, unsigned v, EMU_AT)
{
    return emu::reduce(m, "__reduce_add_sync", v, file, line,
                       [](unsigned a, unsigned b) { return a + b; });
}
inline int __reduce_max_sync(unsigned m, int v, EMU_AT)
{
    return emu::reduce(m, "__reduce_max_sync", v, file, line,
                       [](int a, int b) { return a > b ? a : b; });
}
inline int __reduce_min_sync(unsigned m, int v, EMU_AT)
{
    return emu::reduce(m, "__reduce_min_sync", v, file, line,
                       [](int a, int b) { return a < b ? a : b; });
}
inline void __threadfence()
{
    emu::fence();
}
inline void __threadfence_block()
{
    emu::fence();
}
inline void __nanosleep(unsigned, EMU_AT)
{
    emu::yield(file, line);
}

#endif
