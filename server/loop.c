/* The uv loop and libmicrohttpd's epoll descriptor in one thread. One MHD daemon per listening socket; MHD runs
 * when its descriptor is readable, when its own timeout asks for it, and after connections were resumed. */
#include "server/srv.h"

#include <stdarg.h>
#include <unistd.h>

#include "engine/base/log.h"

#define KEPT_BYTES (160 << 20) /* memory of connections that wait for their next request */

static void on_timer(uv_timer_t *t);

static void pump(struct srv_listener *l)
{
    if (!l->mhd || l->running)
        return;
    l->running = true;
    MHD_run(l->mhd);
    l->running = false;
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(l->mhd, &ms) == MHD_YES)
        uv_timer_start(&l->timer, on_timer, ms, 0);
    else
        uv_timer_stop(&l->timer);
}

static void on_timer(uv_timer_t *t)
{
    pump(t->data);
    srv_life_check(((struct srv_listener *)t->data)->s);
}

static void on_readable(uv_poll_t *p, int status, int events)
{
    struct srv_listener *l = p->data;
    (void)events;
    if (status < 0)
        log_error("http", "poll of the listener failed: %s", uv_strerror(status));
    pump(l);
    srv_life_check(l->s);
}

void srv_loop_pump(struct srv *s)
{
    for (int i = 0; i < s->n_listener; i++)
        pump(&s->l[i]);
    srv_life_check(s);
}

static void __attribute__((format(printf, 2, 0))) on_mhd_log(void *arg, const char *fmt, va_list ap)
{
    char text[300];
    (void)arg;
    if (!log_enabled(LOG_DEBUG))
        return;
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    while (n > 0 && (size_t)n < sizeof(text) && text[n - 1] == '\n')
        text[--n] = 0;
    log_debug("mhd", "%s", text);
}

static char *read_pem(const char *path, struct err *e)
{
    struct buf b = {.limit = 1 << 20};
    char part[4096];
    FILE *f = fopen(path, "re");
    size_t n;
    while (f && (n = fread(part, 1, sizeof(part), f)) > 0)
        buf_add(&b, part, n);
    bool bad = !f || ferror(f) || b.failed || !b.len;
    if (f)
        fclose(f);
    if (bad) {
        buf_free(&b);
        err_set(e, ERR_IO, "%s: cannot be read", path);
        return NULL;
    }
    return buf_take(&b, &n);
}

/* Fields cost pool memory beyond their bytes, so the pool is larger than the head limit. MHD clears all of it after each
 * request: from then on every page of it is there. */
static int pool_bytes(const struct conf *c)
{
    return (int)(c->max_head_bytes + 80 * c->max_head_fields + 4096);
}

/* max_conn counts the whole process; MHD counts per daemon, which is the same but for several listeners. */
static struct MHD_Daemon *start_mhd(struct srv *s, int fd, bool tls, const char *key,
                                    const char *cert)
{
    struct MHD_OptionItem o[] = {
        {MHD_OPTION_EXTERNAL_LOGGER, (intptr_t)on_mhd_log, NULL},
        {MHD_OPTION_LISTEN_SOCKET, fd, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, s->max_conn, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)(s->conf->idle_timeout + 0.999), NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, pool_bytes(s->conf), NULL},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)srv_http_conn, s},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)srv_http_done, s},
        {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)srv_http_uri, s},
        {MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, NULL},
        {tls ? MHD_OPTION_HTTPS_MEM_KEY : MHD_OPTION_END, 0, (void *)(uintptr_t)key},
        {tls ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0, (void *)(uintptr_t)cert},
        {MHD_OPTION_END, 0, NULL},
    };
    unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (tls ? MHD_USE_TLS : 0u);
    return MHD_start_daemon(flags, 0, srv_http_accept, s, srv_http_request, s, MHD_OPTION_ARRAY, o,
                            MHD_OPTION_END);
}

int srv_loop_listen(struct srv *s, int fd, bool unix_path, const char *url, struct err *e)
{
    CHECK(s->n_listener < SRV_LISTENERS);
    struct srv_listener *l = &s->l[s->n_listener];
    char *key = NULL, *cert = NULL;
    bool tls = *s->conf->tls_cert && !unix_path;
    if (tls &&
        (!(key = read_pem(s->conf->tls_key, e)) || !(cert = read_pem(s->conf->tls_cert, e)))) {
        free(key);
        return ERR_IO;
    }
    s->max_kept = KEPT_BYTES / pool_bytes(s->conf);
    *l = (struct srv_listener){.s = s, .fd = fd, .tls = tls, .unix_path = unix_path};
    snprintf(l->url, sizeof(l->url), "%s", url);
    l->mhd = start_mhd(s, fd, tls, key, cert);
    free(key);
    free(cert);
    if (!l->mhd)
        return err_set(e, ERR_INVAL, "%s: the HTTP library refuses to start%s", url,
                       tls ? "; are tls-cert and tls-key a pair?" : "");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    CHECK(info);
    uv_poll_init(&s->loop, &l->poll, info->epoll_fd);
    uv_timer_init(&s->loop, &l->timer);
    l->poll.data = l->timer.data = l;
    s->n_listener++;
    uv_poll_start(&l->poll, UV_READABLE, on_readable);
    pump(l); /* puts the socket into the epoll set */
    return 0;
}

/* Stop accepting: running exchanges go on. */
void srv_loop_quiesce(struct srv *s)
{
    for (int i = 0; i < s->n_listener; i++) {
        MHD_socket fd = s->l[i].mhd ? MHD_quiesce_daemon(s->l[i].mhd) : -1;
        if (fd >= 0)
            close(fd);
        s->l[i].fd = -1;
    }
    srv_listen_unlink(s);
}

int srv_loop_open(struct srv *s, struct err *e)
{
    int rc = uv_loop_init(&s->loop);
    if (rc)
        return err_set(e, ERR_IO, "event loop: %s", uv_strerror(rc));
    uv_timer_init(&s->loop, &s->sweep);
    uv_timer_init(&s->loop, &s->drain_timer);
    uv_timer_init(&s->loop, &s->watchdog);
    s->sweep.data = s->drain_timer.data = s->watchdog.data = s;
    return 0;
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

void srv_loop_close(struct srv *s)
{
    /* MHD must not be stopped over suspended connections, nor an exchange freed under the pool. */
    for (struct conn *k = s->conns; k; k = k->next)
        if (k->x)
            srv_call_gone(k->x);
    while (s->in_pool)
        uv_run(&s->loop, UV_RUN_ONCE);
    for (int i = 0; i < s->n_listener; i++) {
        struct srv_listener *l = &s->l[i];
        l->running = true; /* callbacks below must not pump */
        for (struct conn *k = s->conns; k; k = k->next)
            if (k->x)
                srv_call_gone(k->x);
        MHD_run(l->mhd);
        uv_poll_stop(&l->poll);
        MHD_stop_daemon(l->mhd);
        l->mhd = NULL;
    }
    for (int i = 0; i < s->n_model; i++)
        worker_stop(s->m[i].w);
    srv_gone_close(s);
    uv_walk(&s->loop, close_handle, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&s->loop) == 0);
}
