/* Threads, clocks, and the owner check. */
#ifndef ENGINE_BASE_THREAD_H
#define ENGINE_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* Start a joinable thread named `name` (15 bytes at most are shown); 0 or ERR_NOMEM. All signals
 * are blocked in it: the loop thread handles them. */
int thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *arg);

/* The calling thread does little at a time, and at once: Linux 6.12 and later let it run before threads that compute (a
 * short slice of the fair scheduler; its share stays the same, and so does that of others). Threads that it starts later
 * inherit this. Where the system can't, nothing happens. */
void thread_prefer_latency(void);

/* Monotonic microseconds since an arbitrary point; never goes back, not affected by wall time. */
int64_t clock_us(void);
/* Wall clock, seconds since 1970. */
int64_t clock_unix(void);

/* Owner of a single-threaded structure: the first THREAD_CHECK adopts the calling thread. */
struct thread_owner {
    pthread_t who;
    int set;
};
#ifdef NDEBUG
#define CHECK_THREAD(owner) ((void)(owner))
#else
void thread_check(struct thread_owner *o, const char *file, int line);
#define CHECK_THREAD(owner) thread_check((owner), __FILE__, __LINE__)
#endif

#endif
