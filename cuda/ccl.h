/* Collectives among the devices of one model: NCCL, loaded when first asked for, or its emulation on the CPU.
 *
 * One struct cu_ccl per rank, used by one thread, with that rank's device current. Operations are put on args.stream, in
 * the same order on every rank; results are there once cu_ccl_wait returned (or by stream order). Every wait ends
 * after the timeout given to cu_ccl_open; the error names the rank and the operation. After any error the communicator
 * is aborted: later calls give ERR_DEVICE, the other ranks get an error too, only cu_ccl_close is left.
 *
 * The emulation waits for the stream, then exchanges on the calling thread before it returns, so an operation outside a
 * group waits for the other ranks itself; it cannot be captured into a graph. It adds in rank order, f16 and bf16 in
 * f32 with one rounding, so equal input gives equal bits.
 *
 * Errors: ERR_NOTFOUND no library, ERR_INVAL wrong arguments (or they differ among ranks), ERR_TIMEOUT, ERR_DEVICE,
 * ERR_NOMEM. */
#ifndef CUDA_CCL_H
#define CUDA_CCL_H

#include "cuda/rt.h"
#include "engine/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cu_ccl;
struct cu_ccl_id {
    char b[128];
};
enum cu_ccl_type {
    CU_CCL_I8 = 0,
    CU_CCL_U8 = 1,
    CU_CCL_I32 = 2,
    CU_CCL_F16 = 6,
    CU_CCL_F32 = 7,
    CU_CCL_F64 = 8,
    CU_CCL_BF16 = 9
};
enum cu_ccl_op { CU_CCL_SUM = 0, CU_CCL_MAX = 2 };

/* Device memory of one operation; send and recv are equal (in place, as each call allows) or do not overlap. */
struct cu_ccl_args {
    const void *send; /* unused by cu_ccl_recv */
    void *recv;       /* unused by cu_ccl_send */
    size_t n;         /* elements, see each call */
    enum cu_ccl_type type;
    cudaStream_t stream;
};

/* A new id: one rank makes it, all open with it, once. */
int cu_ccl_id_make(struct cu_ccl_id *id, struct err *e);

/* Returns when all n_rank ranks came. NULL with *e on error. Release with cu_ccl_close. */
struct cu_ccl *cu_ccl_open(int rank, int n_rank, const struct cu_ccl_id *id, int timeout_ms,
                           struct err *e);
/* Waits for the rank's work, or aborts when that fails. NULL is fine. */
void cu_ccl_close(struct cu_ccl *c);

/* send[n] of all ranks -> recv[n] on all. In place: send == recv. */
int cu_ccl_all_reduce(struct cu_ccl *c, const struct cu_ccl_args *a, enum cu_ccl_op op,
                      struct err *e);
/* send[n] of rank r -> recv[r * n ..] on all. In place: send == recv + rank * n. */
int cu_ccl_all_gather(struct cu_ccl *c, const struct cu_ccl_args *a, struct err *e);
/* send[n_rank * n], reduced; part r -> recv[n] of rank r. In place: recv == send + rank * n. */
int cu_ccl_reduce_scatter(struct cu_ccl *c, const struct cu_ccl_args *a, enum cu_ccl_op op,
                          struct err *e);
/* send[n] of rank `root` -> recv[n] on all. In place: send == recv; only the root's send is read. */
int cu_ccl_broadcast(struct cu_ccl *c, const struct cu_ccl_args *a, int root, struct err *e);
/* send[n] -> recv[n] of rank `peer`, which calls cu_ccl_recv with the same n and type. */
int cu_ccl_send(struct cu_ccl *c, const struct cu_ccl_args *a, int peer, struct err *e);
int cu_ccl_recv(struct cu_ccl *c, const struct cu_ccl_args *a, int peer, struct err *e);

/* Between the two, sends and receives wait for nobody; the end waits for all. Exchanges need it: two ranks that
 * both send first would wait for each other. Groups do not nest. */
int cu_ccl_group_start(struct cu_ccl *c, struct err *e);
int cu_ccl_group_end(struct cu_ccl *c, struct err *e);

/* Returns when everything on `st` is done. */
int cu_ccl_wait(struct cu_ccl *c, cudaStream_t st, struct err *e);

#ifdef __cplusplus
}
#endif
#endif
