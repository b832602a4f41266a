/* MHD's callbacks: connections come and go, requests arrive in pieces, answers are queued. A connection that waits
 * for the engine is suspended; MHD calls again after it was resumed. */
#include "server/srv.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum MHD_Result srv_http_accept(void *arg, const struct sockaddr *addr, socklen_t n)
{
    struct srv *s = arg;
    (void)n;
    if (s->n_conn >= s->max_conn || !peers_allow(s->peers, addr)) {
        s->metrics.refused_connections++;
        return MHD_NO;
    }
    return MHD_YES;
}

/* Dead peers (no FIN, no RST) and readers that never open their window are the kernel's business. */
static void set_socket(int fd, const struct conf *c)
{
    int on = 1, idle = 30, interval = 10, count = 3;
    unsigned user_ms = (unsigned)(c->stall_timeout * 1000) + 2000; /* after our own check */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
}

static struct srv_listener *listener_of(struct srv *s, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *d = MHD_get_connection_info(c, MHD_CONNECTION_INFO_DAEMON);
    for (int i = 0; d && i < s->n_listener; i++)
        if (s->l[i].mhd == d->daemon)
            return &s->l[i];
    return &s->l[0];
}

static void conn_open(struct srv *s, struct MHD_Connection *c, void **ctx)
{
    struct conn *k = mem_calloc(1, sizeof(*k));
    const union MHD_ConnectionInfo *fd, *addr;
    *ctx = k;
    if (!k)
        return; /* its requests are refused */
    fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    *k = (struct conn){.s = s, .mhd = c, .fd = fd->connect_fd, .since_us = clock_us()};
    k->l = listener_of(s, c);
    addr = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    peers_add(s->peers, addr ? addr->client_addr : NULL, &k->peer);
    if (!k->l->unix_path)
        set_socket(k->fd, s->conf);
    k->next = s->conns;
    if (s->conns)
        s->conns->prev = k;
    s->conns = k;
    s->n_conn++;
    srv_gone_watch(k);
    srv_sweep_arm(s);
}

static void conn_close(struct srv *s, struct conn *k)
{
    if (!k)
        return;
    CHECK(!k->x);
    srv_gone_unwatch(k);
    srv_conn_kept(k, false);
    peers_del(s->peers, &k->peer);
    if (k->prev)
        k->prev->next = k->next;
    else
        s->conns = k->next;
    if (k->next)
        k->next->prev = k->prev;
    s->n_conn--;
    free(k->uri);
    free(k);
}

void srv_http_conn(void *arg, struct MHD_Connection *c, void **ctx,
                   enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        conn_open(arg, c, ctx);
    } else {
        conn_close(arg, *ctx);
        *ctx = NULL;
    }
}

static struct conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

void *srv_http_uri(void *arg, const char *uri, struct MHD_Connection *c)
{
    struct conn *k = conn_of(c);
    (void)arg;
    if (!k)
        return NULL;
    size_t n = strlen(uri) + 1;
    free(k->uri);
    k->uri = mem_alloc(n);
    if (k->uri)
        memcpy(k->uri, uri, n);
    srv_conn_phase(k, CONN_HEAD);
    return NULL;
}

static char *copy(const char *s)
{
    if (!s)
        return NULL;
    size_t n = strlen(s) + 1;
    char *d = mem_alloc(n);
    if (d)
        memcpy(d, s, n);
    return d;
}

static struct xchg *xchg_new(struct conn *k, const char *method, const char *url,
                             const char *version)
{
    struct xchg *x = mem_calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    x->s = k->s;
    x->conn = k;
    x->method = copy(method);
    x->path = copy(url);
    if (!x->method || !x->path) {
        free(x->method);
        free(x->path);
        free(x);
        return NULL;
    }
    x->start_us = clock_us();
    x->http_1_0 = strcmp(version, "HTTP/1.0") == 0;
    x->body.limit = (size_t)k->s->conf->max_body_bytes;
    k->x = x;
    k->s->metrics.open_requests++;
    return x;
}

/* First call of a request: the head is complete, no body yet. */
static enum MHD_Result on_head(struct srv *s, struct MHD_Connection *c, const char *url,
                               const char *method, const char *version, void **ctx)
{
    struct conn *k = conn_of(c);
    (void)s;
    if (!k || k->phase == CONN_CUT)
        return MHD_NO;
    struct xchg *x = xchg_new(k, method, url, version);
    if (!x)
        return MHD_NO;
    *ctx = x;
    srv_head_check(x, c, version);
    srv_conn_phase(k, CONN_BODY);
    if (!x->refuse.code || !x->refuse.now)
        return MHD_YES;
    x->prepared = true;
    srv_call_fail(x, x->refuse.code, x->refuse.text, 0);
    x->call.close = true;
    return srv_reply_queue(x, c);
}

/* Room for every body held at once: a crowd of big uploads must not exhaust the memory. */
static bool bodies_full(const struct srv *s, size_t n)
{
    int64_t most = 32 * s->conf->max_body_bytes, sound = 4 * s->conf->max_audio_bytes;
    return s->bodies + n > (size_t)(most > sound ? most : sound);
}

static enum MHD_Result on_body(struct xchg *x, const char *data, size_t n)
{
    struct conn *k = x->conn;
    k->body_bytes += n;
    if (k->phase == CONN_CUT)
        return MHD_YES;
    if (x->refuse.code) {
        /* Answered when all has come, so that the client is still listening; not for ever, though. */
        x->swallowed += n;
        if (x->swallowed > (64u << 20))
            srv_reply_raw(k, 413, ERR_TOO_LARGE, "The request body is too large.");
        return MHD_YES;
    }
    if (x->body.len + n > x->body.limit) {
        srv_reply_raw(k, 413, ERR_TOO_LARGE,
                      "The request body is larger than max-body-bytes (max-audio-bytes) allows.");
        return MHD_YES;
    }
    if (bodies_full(x->s, n)) {
        srv_refuse(x, ERR_FULL, 503, "Too many request bodies at once; try again.");
        return MHD_YES;
    }
    buf_add(&x->body, data, n);
    if (x->body.failed)
        srv_refuse(x, ERR_NOMEM, 0, "Not enough memory for the request body.");
    else
        x->s->bodies += n;
    return MHD_YES;
}

/* The body is complete, or the connection was resumed. */
static enum MHD_Result on_ready(struct xchg *x, struct MHD_Connection *c)
{
    if (x->gone || x->stalled || x->conn->phase == CONN_CUT)
        return MHD_NO;
    if (!x->prepared) {
        x->prepared = true;
        srv_conn_phase(x->conn, CONN_WORK);
        if (x->refuse.code)
            srv_call_fail(x, x->refuse.code, x->refuse.text, 0);
        else
            srv_call_start(x);
    }
    if (!x->in_pool && (x->call.done || srv_call_unsent(x)))
        return srv_reply_queue(x, c);
    x->suspended = true;
    MHD_suspend_connection(c);
    return MHD_YES;
}

enum MHD_Result srv_http_request(void *arg, struct MHD_Connection *c, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *n, void **ctx)
{
    if (!*ctx)
        return on_head(arg, c, url, method, version, ctx);
    if (*n) {
        enum MHD_Result r = on_body(*ctx, data, *n);
        *n = 0;
        return r;
    }
    return on_ready(*ctx, c);
}

void srv_http_done(void *arg, struct MHD_Connection *c, void **ctx,
                   enum MHD_RequestTerminationCode code)
{
    struct xchg *x = *ctx;
    (void)arg;
    (void)c;
    *ctx = NULL;
    if (!x)
        return;
    struct conn *k = x->conn;
    srv_call_finish(x, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    k->x = NULL;
    k->body_bytes = 0;
    if (k->phase != CONN_CUT)
        srv_conn_phase(k, CONN_WAIT);
    srv_call_free(x);
}
