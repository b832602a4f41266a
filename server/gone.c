/* Peers that leave while nothing is read from them. MHD does not look at a suspended connection, so its socket
 * stands in an epoll set of our own. A reset or a full close of a unix socket shows as HUP. A FIN alone may be
 * either a half-close, whose answer is still wanted, or a full close: the two differ only when something is sent,
 * so a harmless interim answer (or a comment frame, in a stream) asks. Costs nothing while nobody leaves. */
#include "server/srv.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void on_fin(struct conn *k)
{
    struct xchg *x = k->x;
    k->half_closed = true;
    if (k->l->unix_path)
        return;
    /* Neither TLS nor HTTP/1.0 lets us ask. A client of these that stops sending counts as gone. */
    if (k->l->tls || (x->http_1_0 && !x->queued)) {
        srv_call_gone(x);
        return;
    }
    if (!x->queued) {
        static const char probe[] = "HTTP/1.1 100 Continue\r\n\r\n";
        (void)send(k->fd, probe, sizeof(probe) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (x->call.stream && !x->call.done) {
        buf_str(&x->call.out, ": still there?\n\n");
        srv_call_resume(x);
    }
}

static void on_event(uv_poll_t *p, int status, int events)
{
    struct srv *s = p->data;
    struct epoll_event ev[64];
    (void)status;
    (void)events;
    int n;
    do {
        n = epoll_wait(s->gone_fd, ev, 64, 0);
        for (int i = 0; i < n; i++) {
            struct conn *k = ev[i].data.ptr;
            if (!k->x)
                continue;
            if (ev[i].events & (EPOLLHUP | EPOLLERR))
                srv_call_gone(k->x);
            else if (ev[i].events & EPOLLRDHUP)
                on_fin(k);
        }
    } while (n == 64);
    srv_loop_pump(s); /* connections are freed here, after the last use of ev */
}

int srv_gone_open(struct srv *s, struct err *e)
{
    s->gone_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->gone_fd < 0)
        return err_set(e, ERR_IO, "epoll: %s", strerror(errno));
    uv_poll_init(&s->loop, &s->gone_poll, s->gone_fd);
    s->gone_poll.data = s;
    uv_poll_start(&s->gone_poll, UV_READABLE, on_event);
    return 0;
}

void srv_gone_watch(struct conn *k)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = k};
    if (!k->watched && epoll_ctl(k->s->gone_fd, EPOLL_CTL_ADD, k->fd, &ev) == 0)
        k->watched = true;
}

void srv_gone_unwatch(struct conn *k)
{
    if (k->watched)
        (void)epoll_ctl(k->s->gone_fd, EPOLL_CTL_DEL, k->fd, NULL);
    k->watched = false;
}

void srv_gone_close(struct srv *s)
{
    if (s->gone_fd < 0)
        return;
    uv_poll_stop(&s->gone_poll);
    close(s->gone_fd);
    s->gone_fd = -1;
}
