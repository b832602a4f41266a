/* Work that the api hands to the pool (encoding a picture) while its call waits or goes on. A job holds nothing of its
 * exchange but a link, which is cut when the exchange ends first; its result is then dropped by its own `done`. */
#include "server/srv.h"

#include "engine/base/mem.h"

struct srv_job {
    struct srv *s;
    struct xchg *x; /* NULL: has ended */
    struct api_job *j;
    uv_work_t work;
    struct srv_job *prev, *next; /* of x */
};

/* Pool thread: touches the job alone. */
static void on_pool(uv_work_t *w)
{
    struct srv_job *k = w->data;
    k->j->run(k->j);
}

static void unlink_job(struct srv_job *k)
{
    if (!k->x)
        return;
    *(k->prev ? &k->prev->next : &k->x->jobs) = k->next;
    if (k->next)
        k->next->prev = k->prev;
}

static void on_done(uv_work_t *w, int status)
{
    struct srv_job *k = w->data;
    struct srv *s = k->s;
    struct xchg *x = k->x;
    (void)status; /* a job is never cancelled: it would not know */
    unlink_job(k);
    s->in_pool--;
    k->j->done(x ? &x->call : NULL, k->j);
    free(k);
    if (x) {
        srv_call_commands(x);
        srv_jobs_start(x);
        srv_call_settle(x);
    }
    srv_loop_pump(s);
}

/* false: no memory, nothing has happened. */
static bool start(struct xchg *x, struct api_job *j)
{
    struct srv_job *k = mem_calloc(1, sizeof(*k));
    if (!k)
        return false;
    k->s = x->s;
    k->x = x;
    k->j = j;
    k->work.data = k;
    if (uv_queue_work(&x->s->loop, &k->work, on_pool, on_done)) {
        free(k);
        return false;
    }
    k->next = x->jobs;
    if (k->next)
        k->next->prev = k;
    x->jobs = k;
    x->s->in_pool++;
    return true;
}

void srv_jobs_start(struct xchg *x)
{
    struct api_call *c = &x->call;
    while (c->job) {
        struct api_job *j = c->job;
        c->job = j->next;
        j->next = NULL;
        if (x->gone) {
            j->done(NULL, j);
        } else if (!start(x, j)) { /* no memory for the pool's sake: the loop does it */
            j->run(j);
            j->done(c, j);
        }
    }
}

void srv_jobs_leave(struct xchg *x)
{
    for (struct srv_job *k = x->jobs; k; k = k->next)
        k->x = NULL;
    x->jobs = NULL;
    while (x->call.job) {
        struct api_job *j = x->call.job;
        x->call.job = j->next;
        j->done(NULL, j);
    }
}
