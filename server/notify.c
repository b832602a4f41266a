/* The service manager's protocol: state lines to the NOTIFY_SOCKET datagram socket, passed listening sockets from
 * descriptor 3 on (sd_notify(3), sd_listen_fds(3)). A few lines, so no library for it. Loop thread. */
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/srv.h"

void srv_notify(const char *fmt, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof(a.sun_path) || (*path != '/' && *path != '@'))
        return;
    memcpy(a.sun_path, path, n);
    if (*path == '@')
        a.sun_path[0] = 0; /* abstract name */
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    socklen_t alen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (len > 0)
        (void)sendto(fd, text, (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1,
                     MSG_NOSIGNAL, (struct sockaddr *)&a, alen);
    close(fd);
}

static uint64_t env_number(const char *name)
{
    const char *s = getenv(name);
    char *end;
    if (!s || *s < '0' || *s > '9')
        return 0;
    unsigned long long v = strtoull(s, &end, 10);
    return *end ? 0 : v;
}

/* A variable meant for another process (a parent that forgot to clear it) does not count. */
static bool for_us(const char *pid_name)
{
    uint64_t pid = env_number(pid_name);
    return pid == (uint64_t)getpid();
}

int srv_notify_fds(void)
{
    uint64_t n = for_us("LISTEN_PID") ? env_number("LISTEN_FDS") : 0;
    if (n > SRV_LISTENERS - 2)
        n = SRV_LISTENERS - 2;
    for (int i = 0; i < (int)n; i++) {
        int fl = fcntl(3 + i, F_GETFL);
        if (fl < 0)
            return i;
        (void)fcntl(3 + i, F_SETFL, fl | O_NONBLOCK);
        (void)fcntl(3 + i, F_SETFD, FD_CLOEXEC);
    }
    return (int)n;
}

uint64_t srv_notify_watchdog_us(void)
{
    uint64_t us = env_number("WATCHDOG_USEC");
    return getenv("WATCHDOG_PID") && !for_us("WATCHDOG_PID") ? 0 : us;
}
