/* Deadlines of connections that MHD does not keep: slow heads, slow bodies, readers that stop, silent streams. Once
 * a second while there are connections; no timer without. */
#include "server/srv.h"

#include <sys/socket.h>

#include "engine/base/thread.h"
#include "server/tcp_info.h"

void srv_conn_kept(struct conn *k, bool kept)
{
    k->s->n_kept += kept - k->kept;
    k->kept = kept;
}

void srv_conn_phase(struct conn *k, enum conn_phase p)
{
    k->since_us = clock_us();
    srv_conn_kept(k, p == CONN_WAIT);
    if (p == CONN_WAIT) {
        k->seen_bytes = tcp_info_received(k->fd);
        k->head_us = 0;
    } else if (p == CONN_HEAD && !k->head_us) {
        k->head_us = k->since_us;
    }
    k->phase = p;
}

void srv_conn_shut(struct conn *k)
{
    (void)shutdown(k->fd, SHUT_RDWR);
    if (k->x)
        srv_call_resume(k->x);
}

static bool over(int64_t us, double limit_s)
{
    return (double)us > limit_s * 1e6;
}

static void timed_out(struct conn *k, const char *text)
{
    k->s->metrics.timed_out_connections++;
    srv_reply_raw(k, 408, ERR_TIMEOUT, text);
    srv_conn_shut(k);
}

static void check_stream(struct conn *k, int64_t idle_us)
{
    struct xchg *x = k->x;
    const struct conf *c = k->s->conf;
    if (!x || x->in_pool) /* the call belongs to the pool thread */
        return;
    if (x->queued && !x->suspended && !x->stalled && srv_call_unsent(x) &&
        over(idle_us, c->stall_timeout)) {
        x->stalled = true;
        srv_conn_shut(k);
        return;
    }
    if (x->call.stream && !x->call.done && x->suspended && c->sse_ping > 0 &&
        over(idle_us, c->sse_ping)) {
        /* From here on the status is settled: errors become frames. */
        x->call.streamed = true;
        buf_str(&x->call.out, ": ping\n\n");
        k->since_us = clock_us();
        srv_call_resume(x);
    }
}

static void check(struct conn *k, int64_t now)
{
    const struct conf *c = k->s->conf;
    int64_t age = now - k->since_us;
    double body_s = (double)age / 1e6;
    if (k->half_closed && k->phase <= CONN_BODY && age > 500000) {
        srv_conn_shut(k); /* nothing more can come */
        return;
    }
    switch (k->phase) {
    case CONN_WAIT:
        /* Bytes without a request: a head is under way, unknown to us until its first line is complete. */
        if (!k->head_us && tcp_info_received(k->fd) > k->seen_bytes)
            k->head_us = now;
        if (k->head_us && over(now - k->head_us, c->head_timeout))
            timed_out(k, "The request head was not complete in time.");
        break;
    case CONN_HEAD:
        if (over(now - k->head_us, c->head_timeout))
            timed_out(k, "The request head was not complete in time.");
        break;
    case CONN_BODY:
        if (body_s > c->body_timeout ||
            (body_s > 5 && (double)k->body_bytes < (double)c->body_min_rate * body_s))
            timed_out(k, "The request body did not come in time.");
        break;
    case CONN_WORK:
    case CONN_SEND:
        check_stream(k, age);
        break;
    case CONN_CUT:
        if (age > 2000000)
            srv_conn_shut(k);
        break;
    }
}

void srv_sweep_timer(uv_timer_t *t)
{
    struct srv *s = t->data;
    int64_t now = clock_us();
    for (struct conn *k = s->conns, *next; k; k = next) {
        next = k->next;
        check(k, now);
    }
    if (!s->conns)
        uv_timer_stop(t);
    srv_loop_pump(s);
}

void srv_sweep_arm(struct srv *s)
{
    if (!uv_is_active((uv_handle_t *)&s->sweep))
        uv_timer_start(&s->sweep, srv_sweep_timer, 1000, 1000);
}
