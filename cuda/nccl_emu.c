/* The collective library on the CPU, for the emulated build: ranks are threads that meet by the id under one mutex. A
 * call first waits for its stream (the runtime's lock is then free: a callback that waits for another rank inside it
 * would stop that rank), then leaves its part; the thread that brings the last part does the work for all. */
#include "cuda/nccl_api.h"

#ifdef CUDA_EMU

#include "engine/base/mem.h"
#include "engine/quant/quant.h"

#include <pthread.h>
#include <stdbool.h>

#define MAX_RANK 64
#define MAX_POST 256

enum part_kind { PART_NONE, PART_ALL_REDUCE, PART_ALL_GATHER, PART_REDUCE_SCATTER, PART_BROADCAST };
struct part {
    enum part_kind kind;
    const void *send;
    void *recv;
    size_t n;
    int type, op, root;
};
struct post { /* a send or a receive without its counterpart */
    int src, dst;
    bool is_recv;
    const void *from;
    void *to;
    size_t n;
    int type;
};
struct meet {
    struct meet *next;
    struct nccl_id id;
    int n_rank, n_came, n_ref;
    int dead; /* result that every rank gets from now on; 0 = alive */
    bool came[MAX_RANK];
    struct part part[MAX_RANK];
    struct post post[MAX_POST]; /* oldest first */
    int n_post;
};
struct nccl_comm {
    struct meet *m;
    int rank;
    char why[64];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct meet *meets;
static uint64_t n_id;

static int emu_get_unique_id(struct nccl_id *id)
{
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&lock);
    uint64_t k = ++n_id;
    pthread_mutex_unlock(&lock);
    memcpy(id->b, &k, sizeof k);
    return NCCL_OK;
}

static int emu_init(struct nccl_comm **comm, int n_rank, struct nccl_id id, int rank,
                    struct nccl_config *config)
{
    *comm = NULL;
    if (n_rank < 1 || n_rank > MAX_RANK || rank < 0 || rank >= n_rank || config->blocking)
        return NCCL_ARGUMENT;
    struct nccl_comm *c = mem_calloc(1, sizeof *c);
    if (!c)
        return NCCL_SYSTEM;
    int rc = NCCL_OK;
    pthread_mutex_lock(&lock);
    struct meet *m = meets;
    while (m && memcmp(&m->id, &id, sizeof id) != 0)
        m = m->next;
    if (!m) {
        m = mem_calloc(1, sizeof *m);
        if (m) {
            m->id = id;
            m->n_rank = n_rank;
            m->next = meets;
            meets = m;
        }
    }
    if (!m)
        rc = NCCL_SYSTEM;
    else if (m->n_rank != n_rank || m->came[rank])
        rc = NCCL_USAGE;
    if (!rc) {
        c->m = m;
        c->rank = rank;
        m->came[rank] = true;
        m->n_came++;
        m->n_ref++;
        *comm = c;
        rc = NCCL_IN_PROGRESS;
        pthread_cond_broadcast(&changed);
    } else {
        free(c);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static size_t type_size(int type)
{
    switch (type) {
    case NCCL_I8:
    case NCCL_U8:
        return 1;
    case NCCL_F16:
    case NCCL_BF16:
        return 2;
    case NCCL_I32:
    case NCCL_F32:
        return 4;
    case NCCL_F64:
        return 8;
    default:
        return 0;
    }
}

/* NaN of either side stays. */
#define JOIN(op, a, b) ((op) == NCCL_SUM ? (a) + (b) : (b) > (a) || (b) != (b) ? (b) : (a))
#define REDUCE(T, A, LOAD, STORE)                                                                  \
    do {                                                                                           \
        A acc = LOAD(((const T *)m->part[0].send)[i]);                                             \
        for (int r = 1; r < m->n_rank; r++) {                                                      \
            A x = LOAD(((const T *)m->part[r].send)[i]);                                           \
            acc = (A)JOIN(op, acc, x);                                                             \
        }                                                                                          \
        ((T *)out)[i] = (T)STORE(acc);                                                             \
    } while (0)
#define SAME(x) (x)

/* Element i of all ranks, in rank order, into out[i]. */
static void reduce_one(const struct meet *m, void *out, size_t i)
{
    int op = m->part[0].op;
    switch (m->part[0].type) {
    case NCCL_I8:
        REDUCE(int8_t, int, SAME, SAME);
        break;
    case NCCL_U8:
        REDUCE(uint8_t, unsigned, SAME, SAME);
        break;
    case NCCL_I32: /* adds as unsigned, which wraps as a GPU does; compares signed */
        if (op == NCCL_SUM)
            REDUCE(uint32_t, uint32_t, SAME, SAME);
        else
            REDUCE(int32_t, int32_t, SAME, SAME);
        break;
    case NCCL_F16:
        REDUCE(uint16_t, float, f16_to_f32, f32_to_f16);
        break;
    case NCCL_BF16:
        REDUCE(uint16_t, float, bf16_to_f32, f32_to_bf16);
        break;
    case NCCL_F32:
        REDUCE(float, float, SAME, SAME);
        break;
    default:
        REDUCE(double, double, SAME, SAME);
    }
}

/* All parts are there: the result is built aside, since a receiver may overlap a sender. Lock held. */
static int exchange(struct meet *m)
{
    const struct part *p = &m->part[0];
    size_t size = type_size(p->type), bytes, all;
    bool wide = p->kind == PART_ALL_GATHER || p->kind == PART_REDUCE_SCATTER;
    for (int r = 1; r < m->n_rank; r++) {
        const struct part *q = &m->part[r];
        if (q->kind != p->kind || q->n != p->n || q->type != p->type || q->op != p->op ||
            q->root != p->root)
            return NCCL_ARGUMENT;
    }
    if (!ck_mul(p->n, size, &bytes) || !ck_mul(bytes, wide ? (size_t)m->n_rank : 1, &all))
        return NCCL_ARGUMENT;
    char *tmp = mem_alloc(all);
    if (!tmp)
        return NCCL_SYSTEM;
    if (p->kind == PART_ALL_GATHER)
        for (int r = 0; r < m->n_rank; r++)
            memcpy(tmp + (size_t)r * bytes, m->part[r].send, bytes);
    else if (p->kind == PART_BROADCAST)
        memcpy(tmp, m->part[p->root].send, bytes);
    else
        for (size_t i = 0; i < all / size; i++)
            reduce_one(m, tmp, i);
    for (int r = 0; r < m->n_rank; r++) {
        struct part *q = &m->part[r];
        if (q->kind == PART_REDUCE_SCATTER)
            memcpy(q->recv, tmp + (size_t)r * bytes, bytes);
        else
            memcpy(q->recv, tmp, all);
        q->kind = PART_NONE;
    }
    free(tmp);
    return NCCL_OK;
}

static bool rank_busy(const struct meet *m, int rank)
{
    bool busy = m->n_came < m->n_rank || m->part[rank].kind != PART_NONE;
    for (int i = 0; i < m->n_post && !busy; i++)
        busy = (m->post[i].is_recv ? m->post[i].dst : m->post[i].src) == rank;
    return busy;
}

/* Lock held, after a change of c's rank that gave `rc`; releases the lock. */
static int settled(struct nccl_comm *c, int rc)
{
    struct meet *m = c->m;
    if (rc && !m->dead)
        m->dead = rc;
    pthread_cond_broadcast(&changed);
    rc = m->dead ? m->dead : rank_busy(m, c->rank) ? NCCL_IN_PROGRESS : NCCL_OK;
    pthread_mutex_unlock(&lock);
    return rc;
}

static int submit(struct nccl_comm *c, cudaStream_t st, struct part p)
{
    if (!type_size(p.type) || (p.op != NCCL_SUM && p.op != NCCL_MAX))
        return NCCL_ARGUMENT;
    if (cudaStreamSynchronize(st) != cudaSuccess)
        return NCCL_CUDA;
    pthread_mutex_lock(&lock);
    struct meet *m = c->m;
    int n = 0, rc = NCCL_OK;
    if (m->part[c->rank].kind != PART_NONE)
        rc = NCCL_USAGE; /* one collective at a time */
    else if (!m->dead)
        m->part[c->rank] = p;
    for (int r = 0; r < m->n_rank; r++)
        n += m->part[r].kind != PART_NONE;
    if (!rc && !m->dead && n == m->n_rank)
        rc = exchange(m);
    return settled(c, rc);
}

static int emu_all_reduce(const void *send, void *recv, size_t n, int type, int op,
                          struct nccl_comm *c, cudaStream_t st)
{
    return submit(c, st, (struct part){PART_ALL_REDUCE, send, recv, n, type, op, 0});
}

static int emu_all_gather(const void *send, void *recv, size_t n, int type, struct nccl_comm *c,
                          cudaStream_t st)
{
    return submit(c, st, (struct part){PART_ALL_GATHER, send, recv, n, type, 0, 0});
}

static int emu_reduce_scatter(const void *send, void *recv, size_t n, int type, int op,
                              struct nccl_comm *c, cudaStream_t st)
{
    return submit(c, st, (struct part){PART_REDUCE_SCATTER, send, recv, n, type, op, 0});
}

static int emu_broadcast(const void *send, void *recv, size_t n, int type, int root,
                         struct nccl_comm *c, cudaStream_t st)
{
    if (root < 0 || root >= c->m->n_rank)
        return NCCL_ARGUMENT;
    return submit(c, st, (struct part){PART_BROADCAST, send, recv, n, type, 0, root});
}

/* Copies if the oldest counterpart of `p` waits, else lets `p` wait. Lock held. */
static int pair(struct meet *m, struct post p)
{
    for (int i = 0; i < m->n_post; i++) {
        struct post q = m->post[i];
        if (q.src != p.src || q.dst != p.dst || q.is_recv == p.is_recv)
            continue;
        if (q.n != p.n || q.type != p.type)
            return NCCL_ARGUMENT;
        memmove(p.is_recv ? p.to : q.to, p.is_recv ? q.from : p.from, p.n * type_size(p.type));
        m->n_post--;
        memmove(&m->post[i], &m->post[i + 1], (size_t)(m->n_post - i) * sizeof p);
        return NCCL_OK;
    }
    if (m->n_post == MAX_POST)
        return NCCL_USAGE;
    m->post[m->n_post++] = p;
    return NCCL_OK;
}

static int submit_post(struct nccl_comm *c, cudaStream_t st, struct post p)
{
    struct meet *m = c->m;
    size_t bytes;
    if (p.src < 0 || p.src >= m->n_rank || p.dst < 0 || p.dst >= m->n_rank || !type_size(p.type) ||
        !ck_mul(p.n, type_size(p.type), &bytes))
        return NCCL_ARGUMENT;
    if (cudaStreamSynchronize(st) != cudaSuccess)
        return NCCL_CUDA;
    pthread_mutex_lock(&lock);
    return settled(c, m->dead ? m->dead : pair(m, p));
}

static int emu_send(const void *p, size_t n, int type, int peer, struct nccl_comm *c,
                    cudaStream_t st)
{
    return submit_post(c, st, (struct post){c->rank, peer, false, p, NULL, n, type});
}

static int emu_recv(void *p, size_t n, int type, int peer, struct nccl_comm *c, cudaStream_t st)
{
    return submit_post(c, st, (struct post){peer, c->rank, true, NULL, p, n, type});
}

/* Calls never wait here, so a group needs nothing. */
static int emu_group(void)
{
    return NCCL_OK;
}

static int emu_finalize(struct nccl_comm *c)
{
    (void)c;
    return NCCL_OK;
}

static int leave(struct nccl_comm *c, bool abort)
{
    pthread_mutex_lock(&lock);
    struct meet *m = c->m;
    if (!m->dead && (abort || rank_busy(m, c->rank)))
        m->dead = NCCL_REMOTE; /* nobody may touch this rank's memory from now on */
    pthread_cond_broadcast(&changed);
    if (--m->n_ref == 0) {
        struct meet **at = &meets;
        while (*at != m)
            at = &(*at)->next;
        *at = m->next;
        free(m);
    }
    pthread_mutex_unlock(&lock);
    free(c);
    return NCCL_OK;
}

static int emu_destroy(struct nccl_comm *c)
{
    return leave(c, false);
}

static int emu_abort(struct nccl_comm *c)
{
    return leave(c, true);
}

/* Waits a little for a change, so that callers need not spin. */
static int emu_get_async_error(struct nccl_comm *c, int *result)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += 2000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&lock);
    if (!c->m->dead && rank_busy(c->m, c->rank))
        pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &t);
    const struct meet *m = c->m;
    *result = m->dead ? m->dead : rank_busy(m, c->rank) ? NCCL_IN_PROGRESS : NCCL_OK;
    pthread_mutex_unlock(&lock);
    return NCCL_OK;
}

static const char *emu_get_error_string(int result)
{
    static const char *const names[] = {"no error",       "CUDA call failed", "system call failed",
                                        "internal error", "invalid argument", "invalid usage",
                                        "remote error",   "in progress"};
    return result >= 0 && result <= NCCL_IN_PROGRESS ? names[result] : "unknown error";
}

/* The first rank that c waits for; "" if none. */
static const char *emu_get_last_error(struct nccl_comm *c)
{
    int who = -1;
    pthread_mutex_lock(&lock);
    const struct meet *m = c->m;
    for (int r = 0; r < m->n_rank && who < 0; r++)
        if (!m->came[r] || (m->part[c->rank].kind != PART_NONE && m->part[r].kind == PART_NONE))
            who = r;
    for (int i = 0; i < m->n_post && who < 0; i++)
        if ((m->post[i].is_recv ? m->post[i].dst : m->post[i].src) == c->rank)
            who = m->post[i].is_recv ? m->post[i].src : m->post[i].dst;
    pthread_mutex_unlock(&lock);
    c->why[0] = '\0';
    if (who >= 0)
        snprintf(c->why, sizeof c->why, "rank %d did not come", who);
    return c->why;
}

const struct nccl_api nccl_emu = {.get_unique_id = emu_get_unique_id,
                                  .init = emu_init,
                                  .all_reduce = emu_all_reduce,
                                  .all_gather = emu_all_gather,
                                  .reduce_scatter = emu_reduce_scatter,
                                  .broadcast = emu_broadcast,
                                  .send = emu_send,
                                  .recv = emu_recv,
                                  .group_start = emu_group,
                                  .group_end = emu_group,
                                  .finalize = emu_finalize,
                                  .destroy = emu_destroy,
                                  .abort = emu_abort,
                                  .get_async_error = emu_get_async_error,
                                  .get_error_string = emu_get_error_string,
                                  .get_last_error = emu_get_last_error};

#endif
