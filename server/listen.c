/* Listening sockets: TCP by name or address, a unix socket, sockets passed by the service manager. */
#include "server/srv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/log.h"

/* "http://127.0.0.1:8000", "https://[::1]:8000": of the bound address, so that port 0 shows the real one. */
static void url_of(const struct srv *s, int fd, char *dst, size_t n)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    char ip[INET6_ADDRSTRLEN] = "?";
    const char *scheme = *s->conf->tls_cert ? "https" : "http";
    if (getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)&a;
        inet_ntop(AF_INET6, &v6->sin6_addr, ip, sizeof(ip));
        snprintf(dst, n, "%s://[%s]:%d", scheme, ip, ntohs(v6->sin6_port));
    } else if (a.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)&a;
        inet_ntop(AF_INET, &v4->sin_addr, ip, sizeof(ip));
        snprintf(dst, n, "%s://%s:%d", scheme, ip, ntohs(v4->sin_port));
    } else {
        const struct sockaddr_un *u = (const void *)&a;
        snprintf(dst, n, "unix:%s", u->sun_path);
    }
}

static int bind_tcp(const struct srv *s, const struct addrinfo *a, int *out, struct err *e)
{
    int on = 1, off = 0;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(e, ERR_IO, "host %s: %s", s->conf->host, strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (a->ai_family == AF_INET6) {
        /* "::" means every address of both kinds; any other IPv6 address only itself. */
        bool any = IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_addr);
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, any ? &off : &on, sizeof(on));
    }
    if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, SOMAXCONN)) {
        int err = errno;
        close(fd);
        return err_set(e, err == EADDRINUSE ? ERR_FULL : ERR_IO, "%s port %lld: %s", s->conf->host,
                       (long long)s->conf->port, strerror(err));
    }
    *out = fd;
    return 0;
}

static int listen_tcp(struct srv *s, struct err *e)
{
    char port[16], url[160];
    struct addrinfo hint = {.ai_family = AF_UNSPEC,
                            .ai_socktype = SOCK_STREAM,
                            .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    snprintf(port, sizeof(port), "%lld", (long long)s->conf->port);
    size_t n = strlen(s->conf->host);
    char host[256];
    bool brackets = n > 2 && s->conf->host[0] == '[' && s->conf->host[n - 1] == ']';
    snprintf(host, sizeof(host), "%.*s", brackets ? (int)n - 2 : (int)n,
             s->conf->host + (brackets ? 1 : 0));
    int rc = getaddrinfo(host, port, &hint, &list);
    if (rc)
        return err_set(e, ERR_INVAL, "host %s: %s", s->conf->host, gai_strerror(rc));
    int done = 0;
    rc = 0;
    for (const struct addrinfo *a = list; a && !rc && done < 4; a = a->ai_next) {
        int fd = -1;
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        rc = bind_tcp(s, a, &fd, e);
        if (rc == ERR_IO && (done || a->ai_next)) {
            rc = 0; /* a name with an address family that this machine does not have */
            continue;
        }
        if (rc)
            break;
        url_of(s, fd, url, sizeof(url));
        rc = srv_loop_listen(s, fd, false, url, e);
        if (rc)
            close(fd);
        done += !rc;
        if (s->conf->port == 0)
            break; /* a second address would get another free port */
    }
    freeaddrinfo(list);
    if (!rc && !done)
        return err_set(e, ERR_IO, "host %s: no address to listen on", s->conf->host);
    return rc;
}

/* A socket file is stale when nobody answers behind it; anything else in its place is left alone. */
static int clear_stale(const struct sockaddr_un *a, struct err *e)
{
    struct stat st;
    if (lstat(a->sun_path, &st))
        return errno == ENOENT
                   ? 0
                   : err_set(e, ERR_IO, "unix-socket %s: %s", a->sun_path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_INVAL, "unix-socket %s: exists and is not a socket", a->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = fd < 0 ? -1 : connect(fd, (const struct sockaddr *)a, sizeof(*a));
    int err = errno;
    if (fd >= 0)
        close(fd);
    if (rc == 0 || err != ECONNREFUSED)
        return err_set(e, ERR_FULL, "unix-socket %s: in use by another process", a->sun_path);
    return unlink(a->sun_path)
               ? err_set(e, ERR_IO, "unix-socket %s: %s", a->sun_path, strerror(errno))
               : 0;
}

static int listen_unix(struct srv *s, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *path = s->conf->unix_socket;
    char url[160];
    if (strlen(path) >= sizeof(a.sun_path))
        return err_set(e, ERR_INVAL, "unix-socket: path longer than %zu bytes",
                       sizeof(a.sun_path) - 1);
    memcpy(a.sun_path, path, strlen(path));
    int rc = clear_stale(&a, e);
    if (rc)
        return rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, SOMAXCONN)) {
        rc = err_set(e, ERR_IO, "unix-socket %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    url_of(s, fd, url, sizeof(url));
    rc = srv_loop_listen(s, fd, true, url, e);
    if (rc)
        close(fd);
    return rc;
}

static int listen_passed(struct srv *s, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        struct sockaddr_storage a = {0};
        socklen_t len = sizeof(a);
        char url[160];
        if (getsockname(3 + i, (struct sockaddr *)&a, &len))
            return err_set(e, ERR_INVAL, "passed descriptor %d is not a socket", 3 + i);
        url_of(s, 3 + i, url, sizeof(url));
        int rc = srv_loop_listen(s, 3 + i, a.ss_family == AF_UNIX, url, e);
        if (rc)
            return rc;
    }
    return 0;
}

int srv_listen_all(struct srv *s, struct err *e)
{
    int n = srv_notify_fds();
    if (n > 0)
        return listen_passed(s, n, e); /* the service manager says where */
    int rc = *s->conf->host ? listen_tcp(s, e) : 0;
    if (!rc && *s->conf->unix_socket)
        rc = listen_unix(s, e);
    return rc;
}

void srv_listen_unlink(struct srv *s)
{
    for (int i = 0; i < s->n_listener; i++)
        if (s->l[i].unix_path && *s->conf->unix_socket && srv_notify_fds() == 0)
            (void)unlink(s->conf->unix_socket);
}

/* Raise the descriptor limit and return how many connections fit under it. */
int srv_limit_fds(struct srv *s)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r))
        return (int)s->conf->max_connections;
    rlim_t want = (rlim_t)(s->conf->max_connections + s->conf->reserve_fds + 64);
    if (r.rlim_cur < want) {
        r.rlim_cur = r.rlim_max == RLIM_INFINITY || want < r.rlim_max ? want : r.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &r);
        (void)getrlimit(RLIMIT_NOFILE, &r);
    }
    /* A tiny limit still leaves half of it to connections. */
    int64_t all = r.rlim_cur > INT32_MAX ? INT32_MAX : (int64_t)r.rlim_cur;
    int64_t reserve = s->conf->reserve_fds < all / 2 ? s->conf->reserve_fds : all / 2;
    int64_t fit = all - reserve;
    if (fit < s->conf->max_connections)
        log_warn("http", "connections limited to %lld by %lld file descriptors", (long long)fit,
                 (long long)all);
    return (int)(fit < s->conf->max_connections ? fit : s->conf->max_connections);
}
