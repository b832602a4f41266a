/* Routes that the server answers itself: no model work, no lock beyond a snapshot of counters. */
#include "server/srv.h"

#include "engine/base/thread.h"

bool srv_health_alive(struct srv *s, struct err *why)
{
    for (int i = 0; i < s->n_model; i++) {
        struct sched_stats st;
        struct err e = {0};
        if (worker_state(s->m[i].w, &e) == WORKER_FAILED) {
            err_set(why, ERR_DEVICE, "engine of %s failed: %.150s", s->m[i].name, e.text);
            return false;
        }
        if (!s->m[i].ready)
            continue;
        worker_stats(s->m[i].w, &st);
        double age = (double)(clock_us() - st.heartbeat_us) / 1e6;
        /* An idle engine sleeps and has no heartbeat. */
        if (st.running + st.waiting > 0 && age > s->conf->stuck_timeout) {
            err_set(why, ERR_TIMEOUT, "engine of %s has made no step for %.0f s", s->m[i].name,
                    age);
            return false;
        }
    }
    return true;
}

static void answer(struct xchg *x, int status, const char *state, const char *why)
{
    struct buf *b = &x->call.out;
    buf_fmt(b, "{\"status\":\"%s\"", state);
    if (why) {
        buf_str(b, ",\"message\":");
        buf_json(b, why, strlen(why));
    }
    buf_str(b, "}\n");
    x->call.status = status;
    x->call.out_type = "application/json";
    x->call.done = true;
}

static void metrics_answer(struct xchg *x)
{
    metrics_write(x->s, &x->call.out);
    x->call.status = 200;
    x->call.out_type = "text/plain; version=0.0.4; charset=utf-8";
    x->call.done = true;
}

/* /live: the process works. /health: and its engines do. /ready: and it wants traffic. */
void srv_health_answer(struct xchg *x)
{
    struct srv *s = x->s;
    const char *path = x->call.route->path;
    struct err why = {0};
    if (strcmp(path, "/metrics") == 0)
        metrics_answer(x);
    else if (!srv_health_alive(s, &why))
        answer(x, 503, "failed", why.text);
    else if (strcmp(path, "/live") == 0)
        answer(x, 200, "ok", NULL);
    else if (!s->ready)
        answer(x, 503, "loading", "the model is loading");
    else if (s->draining && strcmp(path, "/ready") == 0)
        answer(x, 503, "draining", "the server is shutting down");
    else
        answer(x, 200, s->draining ? "draining" : "ok", NULL);
}
