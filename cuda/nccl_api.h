/* What we use of NVIDIA's collective library: a table of its functions and our own declarations of its types and values
 * (NCCL 2.14 or later; they are part of its binary interface). Communicators are non-blocking: a call may answer
 * NCCL_IN_PROGRESS, then get_async_error tells when it is through. */
#ifndef CUDA_NCCL_API_H
#define CUDA_NCCL_API_H

#include "cuda/rt.h"
#include "engine/base/err.h"

struct nccl_comm;
struct nccl_id {
    char b[128];
};
enum nccl_result {
    NCCL_OK = 0,
    NCCL_CUDA = 1,
    NCCL_SYSTEM = 2,
    NCCL_INTERNAL = 3,
    NCCL_ARGUMENT = 4,
    NCCL_USAGE = 5,
    NCCL_REMOTE = 6,
    NCCL_IN_PROGRESS = 7
};
enum nccl_type {
    NCCL_I8 = 0,
    NCCL_U8 = 1,
    NCCL_I32 = 2,
    NCCL_F16 = 6,
    NCCL_F32 = 7,
    NCCL_F64 = 8,
    NCCL_BF16 = 9
};
enum nccl_op { NCCL_SUM = 0, NCCL_MAX = 2 };

/* The head of the library's configuration; it copies `size` bytes and takes its defaults for the rest. */
struct nccl_config {
    size_t size;
    unsigned magic, version; /* NCCL_MAGIC, NCCL_VERSION */
    int blocking;
};
#define NCCL_MAGIC   0xcafebeefu
#define NCCL_VERSION 21400u /* the layout above, not what is installed */

/* Names in the library: "nccl" and what stands behind the member. Sizes count elements. */
struct nccl_api {
    int (*get_unique_id)(struct nccl_id *id); /* GetUniqueId */
    int (*init)(struct nccl_comm **comm, int n_rank, struct nccl_id id, int rank,
                struct nccl_config *config); /* CommInitRankConfig */
    int (*all_reduce)(const void *send, void *recv, size_t n, int type, int op,
                      struct nccl_comm *comm, cudaStream_t st); /* AllReduce */
    int (*all_gather)(const void *send, void *recv, size_t n, int type, struct nccl_comm *comm,
                      cudaStream_t st); /* AllGather */
    int (*reduce_scatter)(const void *send, void *recv, size_t n, int type, int op,
                          struct nccl_comm *comm, cudaStream_t st); /* ReduceScatter */
    int (*broadcast)(const void *send, void *recv, size_t n, int type, int root,
                     struct nccl_comm *comm, cudaStream_t st); /* Broadcast */
    int (*send)(const void *p, size_t n, int type, int peer, struct nccl_comm *comm,
                cudaStream_t st); /* Send */
    int (*recv)(void *p, size_t n, int type, int peer, struct nccl_comm *comm,
                cudaStream_t st);                                /* Recv */
    int (*group_start)(void);                                    /* GroupStart */
    int (*group_end)(void);                                      /* GroupEnd */
    int (*finalize)(struct nccl_comm *comm);                     /* CommFinalize */
    int (*destroy)(struct nccl_comm *comm);                      /* CommDestroy */
    int (*abort)(struct nccl_comm *comm);                        /* CommAbort */
    int (*get_async_error)(struct nccl_comm *comm, int *result); /* CommGetAsyncError */
    const char *(*get_error_string)(int result);                 /* GetErrorString */
    const char *(*get_last_error)(struct nccl_comm *comm);       /* GetLastError */
};

/* Fills `out` from the shared library `lib`, which stays loaded. ERR_NOTFOUND with the loader's reason. */
int nccl_api_load(const char *lib, struct nccl_api *out, struct err *e);

#ifdef CUDA_EMU
/* The same functions on the CPU (nccl_emu.c): ranks are threads of this process that meet by the id. */
extern const struct nccl_api nccl_emu;
#endif

#endif
