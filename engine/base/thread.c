/* See thread.h. */
#include "engine/base/thread.h"
#include "engine/base/err.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

int thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return ERR_NOMEM;
    char short_name[16];
    snprintf(short_name, sizeof short_name, "%.15s", name);
    pthread_setname_np(*out, short_name);
    return 0;
}

int64_t clock_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t clock_unix(void)
{
    return (int64_t)time(NULL);
}

#ifndef NDEBUG
void thread_check(struct thread_owner *o, const char *file, int line)
{
    if (!o->set) {
        o->who = pthread_self();
        o->set = 1;
    } else if (!pthread_equal(o->who, pthread_self())) {
        check_failed(file, line, "called on the thread that owns this structure");
    }
}
#endif
