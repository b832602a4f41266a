/* Answers: headers, whole bodies, streams with back-pressure, and the bare-socket answer for late body errors. */
#include "server/srv.h"

#include <errno.h>
#include <strings.h>
#include <sys/socket.h>

#include "engine/base/log.h"
#include "engine/base/thread.h"

/* MHD asks for the next bytes of a stream. No bytes yet: the connection sleeps until events bring some (returning 0
 * without suspending would be asked again at once, for ever). */
static ssize_t read_stream(void *arg, uint64_t pos, char *dst, size_t max)
{
    struct xchg *x = arg;
    struct buf *out = &x->call.out;
    (void)pos;
    if (x->gone || x->stalled)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = srv_call_unsent(x);
    if (n) {
        n = n < max ? n : max;
        memcpy(dst, out->p + x->taken, n);
        x->taken += n;
        /* Moving the rest for every piece would cost the square of a long backlog. */
        if (x->taken >= out->len / 2) {
            buf_drop(out, x->taken);
            x->taken = 0;
        }
        x->conn->since_us = clock_us();
        return (ssize_t)n;
    }
    if (x->call.done)
        return out->failed ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    x->suspended = true;
    MHD_suspend_connection(x->conn->mhd);
    return 0;
}

static void header(struct MHD_Response *r, const char *name, const char *value)
{
    if (value && *value && MHD_add_response_header(r, name, value) != MHD_YES)
        log_warn("http", "header %s was not accepted", name);
}

static bool origin_allowed(const struct conf *c, const char *origin, bool *any)
{
    *any = false;
    for (int i = 0; i < c->cors_allow_origin.n; i++) {
        if (strcmp(c->cors_allow_origin.v[i], "*") == 0)
            return *any = true;
        if (strcasecmp(c->cors_allow_origin.v[i], origin) == 0)
            return true;
    }
    return false;
}

/* Header names that a page asks for are echoed when they look like names. */
static bool names_sane(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    if (!n || n > 500)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z') ||
              (s[i] >= 'A' && s[i] <= 'Z') || strchr("-_, ", s[i])))
            return false;
    return true;
}

static void cors(struct xchg *x, struct MHD_Connection *c, struct MHD_Response *r)
{
    const char *origin = srv_head_value(c, "Origin");
    bool any;
    if (!x->s->conf->cors_allow_origin.n)
        return;
    header(r, "Vary", "Origin");
    if (!origin || !origin_allowed(x->s->conf, origin, &any))
        return;
    header(r, "Access-Control-Allow-Origin", any ? "*" : origin);
    header(r, "Access-Control-Expose-Headers", "x-request-id, retry-after");
    if (!x->preflight)
        return;
    const char *names = srv_head_value(c, "Access-Control-Request-Headers");
    header(r, "Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
    header(r, "Access-Control-Allow-Headers",
           names_sane(names) ? names : "authorization, content-type, x-api-key, x-request-id");
    header(r, "Access-Control-Max-Age", "600");
}

static struct MHD_Response *make(struct xchg *x)
{
    struct api_call *call = &x->call;
    if (!call->done)
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, x, NULL);
    size_t n = 0;
    if (call->out.failed) { /* half an answer must not pass for one */
        struct view v = api_out_failed(call);
        x->refuse.status = 0;
        return MHD_create_response_from_buffer(v.len, (void *)(uintptr_t)v.p,
                                               MHD_RESPMEM_PERSISTENT);
    }
    char *body = buf_take(&call->out, &n);
    if (!body)
        return MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    struct MHD_Response *r = MHD_create_response_from_buffer(n, body, MHD_RESPMEM_MUST_FREE);
    if (!r)
        free(body);
    return r;
}

enum MHD_Result srv_reply_queue(struct xchg *x, struct MHD_Connection *c)
{
    struct api_call *call = &x->call;
    struct MHD_Response *r = make(x);
    if (!r)
        return MHD_NO;
    x->status = x->refuse.code && x->refuse.status ? x->refuse.status
                : call->status                     ? call->status
                                                   : 200;
    if (call->out_type && x->status != 204)
        header(r, "Content-Type", call->out_type);
    header(r, "X-Request-Id", x->id);
    header(r, "Allow", x->refuse.allow);
    for (int i = 0; i < call->n_header; i++)
        header(r, call->header[i].name, call->header[i].value);
    if (call->stream) {
        header(r, "Cache-Control", "no-cache");
        header(r, "X-Accel-Buffering", "no"); /* nginx would hold the stream back */
    }
    if (call->close || x->s->draining || x->s->n_kept >= x->s->max_kept)
        header(r, "Connection", "close");
    cors(x, c, r);
    enum MHD_Result ok = MHD_queue_response(c, (unsigned)x->status, r);
    MHD_destroy_response(r);
    x->queued = true;
    srv_conn_phase(x->conn, CONN_SEND);
    return ok;
}

void srv_reply_raw(struct conn *k, int status, int code, const char *text)
{
    struct buf b = {0}, body = {0};
    struct api_call call = {.status = status};
    api_fail(&call, code, NULL, text, 0);
    buf_add(&body, call.out.p, call.out.len);
    buf_fmt(&b,
            "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
            "Connection: close\r\n",
            status, MHD_get_reason_phrase_for((unsigned)status), body.len);
    if (k->x)
        buf_fmt(&b, "X-Request-Id: %s\r\n", k->x->id);
    buf_str(&b, "\r\n");
    buf_add(&b, body.p, body.len);
    /* Inside TLS only MHD can write: there the connection just ends. */
    if (!k->l->tls && !b.failed)
        (void)send(k->fd, b.p, b.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k->x) {
        k->x->status = status;
        snprintf(k->x->call.error_code, sizeof(k->x->call.error_code), "%s", call.error_code);
    }
    api_call_free(&call);
    buf_free(&b);
    buf_free(&body);
    srv_conn_phase(k, CONN_CUT);
    (void)shutdown(k->fd, SHUT_WR);
}
