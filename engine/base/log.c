/* See log.h. */
#include "engine/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int level = LOG_INFO;
static atomic_int log_fd = 2;
static atomic_uint_fast64_t dropped;
static const char *const level_name[] = {"error", "warn", "info", "debug"};

void log_set_level(enum log_level l)
{
    atomic_store(&level, (int)l);
}

bool log_level_parse(const char *name, enum log_level *out)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(name, level_name[i]) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    return false;
}

bool log_enabled(enum log_level l)
{
    return (int)l <= atomic_load_explicit(&level, memory_order_relaxed);
}

void log_set_fd(int fd)
{
    atomic_store(&log_fd, fd);
}

uint64_t log_dropped(void)
{
    return atomic_load(&dropped);
}

/* Control characters would let a client's text forge lines. */
static void scrub(char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            s[i] = '?';
}

void log_line(enum log_level l, const char *module, const char *fmt, ...)
{
    if (!log_enabled(l))
        return;
    char line[1024];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s %s ", ts.tv_nsec / 1000000,
                          level_name[l], module);
    va_list ap;
    va_start(ap, fmt);
    int k = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    size_t room = sizeof line - n - 2;
    size_t got = k < 0 ? 0 : (size_t)k > room ? room : (size_t)k;
    scrub(line + n, got);
    n += got;
    line[n++] = '\n';
    if (write(atomic_load(&log_fd), line, n) != (ssize_t)n)
        atomic_fetch_add(&dropped, 1);
}
