/* The loader of the collective library, and ccl.h on top of it. */
#include "cuda/ccl.h"
#include "cuda/nccl_api.h"

#include "engine/base/mem.h"
#include "engine/base/thread.h"

#include <dlfcn.h>
#include <stdbool.h>

#define LIBRARY "libnccl.so.2"

struct cu_ccl {
    struct nccl_api api;
    struct nccl_comm *comm; /* NULL: aborted */
    int rank, n_rank, timeout_ms;
    bool in_group;
    const char *op; /* the last operation, for messages */
};

int nccl_api_load(const char *lib, struct nccl_api *out, struct err *e)
{
    static const char *const names[] = {
        "ncclGetUniqueId",   "ncclCommInitRankConfig", "ncclAllReduce",      "ncclAllGather",
        "ncclReduceScatter", "ncclBroadcast",          "ncclSend",           "ncclRecv",
        "ncclGroupStart",    "ncclGroupEnd",           "ncclCommFinalize",   "ncclCommDestroy",
        "ncclCommAbort",     "ncclCommGetAsyncError",  "ncclGetErrorString", "ncclGetLastError"};
    enum { N = sizeof names / sizeof *names };
    void *sym[N];
    _Static_assert(sizeof sym == sizeof *out, "one name for each member, in order");
    void *so = dlopen(lib, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return err_set(e, ERR_NOTFOUND, "collectives: %s", dlerror());
    for (int i = 0; i < N; i++) {
        sym[i] = dlsym(so, names[i]);
        if (!sym[i]) {
            dlclose(so);
            return err_set(e, ERR_NOTFOUND,
                           "collectives: %s has no %s; NCCL 2.14 or later is needed", lib,
                           names[i]);
        }
    }
    memcpy(out, sym, sizeof *out); /* ISO C has no cast from an object to a function pointer */
    return 0;
}

static int api_get(struct nccl_api *out, struct err *e)
{
#ifdef CUDA_EMU
    (void)e;
    *out = nccl_emu;
    return 0;
#else
    return nccl_api_load(LIBRARY, out, e);
#endif
}

static void drop(struct cu_ccl *c)
{
    if (c->in_group) /* the library counts open groups for each thread */
        (void)c->api.group_end();
    if (c->comm)
        c->api.abort(c->comm);
    c->comm = NULL;
    c->in_group = false;
}

/* Reports result `rc` of c->op and aborts. */
static int failed(struct cu_ccl *c, int rc, struct err *e)
{
    int code = rc == NCCL_ARGUMENT || rc == NCCL_USAGE ? ERR_INVAL : ERR_DEVICE;
    const char *more = c->comm ? c->api.get_last_error(c->comm) : NULL;
    err_set(e, code, "rank %d of %d: %s: %s%s%s", c->rank, c->n_rank, c->op,
            c->api.get_error_string(rc), more && *more ? ": " : "", more && *more ? more : "");
    drop(c);
    return code;
}

static int late(struct cu_ccl *c, struct err *e)
{
    const char *more = c->api.get_last_error(c->comm);
    err_set(e, ERR_TIMEOUT, "rank %d of %d: %s: not done after %d ms%s%s", c->rank, c->n_rank,
            c->op, c->timeout_ms, more && *more ? ": " : "", more && *more ? more : "");
    drop(c);
    return ERR_TIMEOUT;
}

static int64_t deadline(const struct cu_ccl *c)
{
    return clock_us() + (int64_t)c->timeout_ms * 1000;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Until the library's answer `rc` to c->op is final. */
static int settle(struct cu_ccl *c, int rc, struct err *e)
{
    int64_t end = deadline(c);
    while (rc == NCCL_IN_PROGRESS) {
        int r = c->api.get_async_error(c->comm, &rc);
        if (r)
            rc = r;
        if (rc == NCCL_IN_PROGRESS) {
            if (clock_us() >= end)
                return late(c, e);
            nap();
        }
    }
    return rc ? failed(c, rc, e) : 0;
}

/* The answer to one operation: inside a group the end of the group waits. */
static int done(struct cu_ccl *c, int rc, struct err *e)
{
    if (c->in_group && rc == NCCL_IN_PROGRESS)
        return 0;
    return settle(c, rc, e);
}

static int begin(struct cu_ccl *c, const char *op, struct err *e)
{
    if (!c->comm)
        return err_set(e, ERR_DEVICE, "rank %d of %d: %s: aborted after an error in %s", c->rank,
                       c->n_rank, op, c->op);
    c->op = op;
    return 0;
}

/* Ranks outside 0 .. n_rank - 1 are refused before the library sees them; nothing is aborted. */
static int check_peer(const struct cu_ccl *c, const char *op, int peer, struct err *e)
{
    if (peer >= 0 && peer < c->n_rank)
        return 0;
    return err_set(e, ERR_INVAL, "rank %d of %d: %s: no rank %d", c->rank, c->n_rank, op, peer);
}

int cu_ccl_id_make(struct cu_ccl_id *id, struct err *e)
{
    struct nccl_api api;
    struct nccl_id x;
    if (api_get(&api, e))
        return e ? e->code : ERR_NOTFOUND;
    int rc = api.get_unique_id(&x);
    if (rc)
        return err_set(e, ERR_DEVICE, "collectives: no id: %s", api.get_error_string(rc));
    memcpy(id->b, x.b, sizeof id->b);
    return 0;
}

struct cu_ccl *cu_ccl_open(int rank, int n_rank, const struct cu_ccl_id *id, int timeout_ms,
                           struct err *e)
{
    if (n_rank < 1 || rank < 0 || rank >= n_rank || timeout_ms < 1) {
        err_set(e, ERR_INVAL, "rank %d of %d: open: rank, count or timeout of %d ms is wrong", rank,
                n_rank, timeout_ms);
        return NULL;
    }
    struct cu_ccl *c = mem_calloc(1, sizeof *c);
    if (!c) {
        err_set(e, ERR_NOMEM, "rank %d of %d: open: out of memory", rank, n_rank);
        return NULL;
    }
    *c = (struct cu_ccl){.rank = rank, .n_rank = n_rank, .timeout_ms = timeout_ms, .op = "open"};
    if (api_get(&c->api, e)) {
        free(c);
        return NULL;
    }
    struct nccl_config config = {sizeof config, NCCL_MAGIC, NCCL_VERSION, 0};
    struct nccl_id x;
    memcpy(x.b, id->b, sizeof x.b);
    if (settle(c, c->api.init(&c->comm, n_rank, x, rank, &config), e)) {
        free(c);
        return NULL;
    }
    return c;
}

void cu_ccl_close(struct cu_ccl *c)
{
    if (!c)
        return;
    c->op = "close";
    if (c->in_group)
        drop(c);
    if (c->comm && !settle(c, c->api.finalize(c->comm), NULL))
        c->api.destroy(c->comm);
    free(c);
}

int cu_ccl_all_reduce(struct cu_ccl *c, const struct cu_ccl_args *a, enum cu_ccl_op op,
                      struct err *e)
{
    int rc = begin(c, "all_reduce", e);
    if (rc)
        return rc;
    rc = c->api.all_reduce(a->send, a->recv, a->n, (int)a->type, (int)op, c->comm, a->stream);
    return done(c, rc, e);
}

int cu_ccl_all_gather(struct cu_ccl *c, const struct cu_ccl_args *a, struct err *e)
{
    int rc = begin(c, "all_gather", e);
    if (rc)
        return rc;
    rc = c->api.all_gather(a->send, a->recv, a->n, (int)a->type, c->comm, a->stream);
    return done(c, rc, e);
}

int cu_ccl_reduce_scatter(struct cu_ccl *c, const struct cu_ccl_args *a, enum cu_ccl_op op,
                          struct err *e)
{
    int rc = begin(c, "reduce_scatter", e);
    if (rc)
        return rc;
    rc = c->api.reduce_scatter(a->send, a->recv, a->n, (int)a->type, (int)op, c->comm, a->stream);
    return done(c, rc, e);
}

int cu_ccl_broadcast(struct cu_ccl *c, const struct cu_ccl_args *a, int root, struct err *e)
{
    int rc = check_peer(c, "broadcast", root, e);
    if (!rc)
        rc = begin(c, "broadcast", e);
    if (rc)
        return rc;
    rc = c->api.broadcast(a->send, a->recv, a->n, (int)a->type, root, c->comm, a->stream);
    return done(c, rc, e);
}

int cu_ccl_send(struct cu_ccl *c, const struct cu_ccl_args *a, int peer, struct err *e)
{
    int rc = check_peer(c, "send", peer, e);
    if (!rc)
        rc = begin(c, "send", e);
    if (rc)
        return rc;
    rc = c->api.send(a->send, a->n, (int)a->type, peer, c->comm, a->stream);
    return done(c, rc, e);
}

int cu_ccl_recv(struct cu_ccl *c, const struct cu_ccl_args *a, int peer, struct err *e)
{
    int rc = check_peer(c, "recv", peer, e);
    if (!rc)
        rc = begin(c, "recv", e);
    if (rc)
        return rc;
    rc = c->api.recv(a->recv, a->n, (int)a->type, peer, c->comm, a->stream);
    return done(c, rc, e);
}

int cu_ccl_group_start(struct cu_ccl *c, struct err *e)
{
    int rc = begin(c, "group_start", e);
    if (rc)
        return rc;
    rc = c->api.group_start();
    if (rc)
        return failed(c, rc, e);
    c->in_group = true;
    return 0;
}

int cu_ccl_group_end(struct cu_ccl *c, struct err *e)
{
    int rc = begin(c, "group", e);
    if (rc)
        return rc;
    c->in_group = false;
    rc = c->api.group_end();
    /* The emulation's end knows no communicator: what is open tells get_async_error. */
    return settle(c, rc ? rc : NCCL_IN_PROGRESS, e);
}

int cu_ccl_wait(struct cu_ccl *c, cudaStream_t st, struct err *e)
{
    if (!c->comm)
        return begin(c, "wait", e);
    int64_t end = deadline(c);
    for (;;) {
        int rc = NCCL_OK, r = c->api.get_async_error(c->comm, &rc);
        if (r || (rc && rc != NCCL_IN_PROGRESS))
            return failed(c, r ? r : rc, e);
        cudaError_t q = cudaStreamQuery(st);
        if (q == cudaSuccess && !rc)
            return 0;
        if (q != cudaSuccess && q != cudaErrorNotReady) {
            err_set(e, ERR_DEVICE, "rank %d of %d: %s: %s", c->rank, c->n_rank, c->op,
                    cudaGetErrorString(q));
            drop(c);
            return ERR_DEVICE;
        }
        if (clock_us() >= end)
            return late(c, e);
        nap();
    }
}
