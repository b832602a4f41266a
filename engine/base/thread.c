/* See thread.h. */
#include "engine/base/thread.h"
#include "engine/base/err.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

#define SLICE_NS 100000 /* the least that the kernel takes */

void thread_prefer_latency(void)
{
    struct { /* struct sched_attr of sched_setattr(2), its first version: the C library has none */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = {.size = sizeof a, .policy = SCHED_OTHER, .runtime = SLICE_NS};
    if (sched_getscheduler(0) != SCHED_OTHER) /* who started us wants something else */
        return;
    a.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &a, 0);
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
