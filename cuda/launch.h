/* How a kernel is launched, for nvcc and for the emulation. Included by cu.h only. */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

struct launch_cfg {
    dim3 grid, block;
    size_t smem; /* dynamic shared memory, bytes, exactly what the kernel uses */
    cudaStream_t stream;
    int cluster;      /* blocks a cluster along x; 0 or 1 = none */
    bool cooperative; /* all blocks resident: grid-wide waits are allowed */
    bool
        pdl; /* programmatic dependent launch: the kernel calls pdl_wait() before it reads what came before */
};

#endif
