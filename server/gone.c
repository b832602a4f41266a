/* Peers that leave while MHD does not look: at a suspended connection it looks never, and a FIN that comes together
 * with data it overlooks (edge-triggered, short read). So every socket also stands in an epoll set of our own.
 * A reset shows as HUP. A FIN alone may be either a half-close, whose answer is still wanted, or a full close: the
 * two differ only when something is sent, so a harmless interim answer (or a comment frame, in a stream) asks. Costs
 * nothing while nobody leaves. */
#include "server/srv.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* The peer has sent its FIN. MHD would read it before it looks for an answer, and close. With a timeout of its own a
 * connection is served answer first when it is resumed: MHD visits those before the ready ones. */
static void mark_half_closed(struct conn *k)
{
    if (k->half_closed)
        return;
    k->half_closed = true;
    MHD_set_connection_option(k->mhd, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned)(k->s->conf->idle_timeout + 1.999));
}

void srv_gone_ask(struct conn *k)
{
    static const char probe[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct xchg *x = k->x;
    if (!x || !k->half_closed || k->l->unix_path ||
        (k->phase != CONN_WORK && k->phase != CONN_SEND))
        return;
    if (k->l->tls || (x->http_1_0 && !x->queued)) {
        /* Neither lets us ask: a client of these that stops sending counts as gone. */
        srv_call_gone(x);
    } else if (!x->queued) {
        (void)send(k->fd, probe, sizeof(probe) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (x->call.stream && !x->call.done) {
        buf_str(&x->call.out, ": still there?\n\n");
        srv_call_resume(x);
    }
}

void srv_gone_before_answer(struct conn *k)
{
    char c;
    if (!k->half_closed && !k->l->tls && recv(k->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        mark_half_closed(k);
}

/* The kernel gave up on a reader that keeps its window shut. */
static bool timed_out(const struct conn *k)
{
    int err = 0;
    socklen_t n = sizeof(err);
    return getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &err, &n) == 0 && err == ETIMEDOUT;
}

static void on_leave(struct conn *k, unsigned events)
{
    if (events & (EPOLLHUP | EPOLLERR)) {
        if (!k->x)
            return;
        if (k->phase == CONN_SEND && events & EPOLLERR && timed_out(k))
            k->x->stalled = true;
        srv_call_gone(k->x);
    } else if (events & EPOLLRDHUP) {
        mark_half_closed(k);
        srv_gone_ask(k);
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
        for (int i = 0; i < n; i++)
            on_leave(ev[i].data.ptr, ev[i].events);
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
