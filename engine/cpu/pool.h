/* The CPU backend's workers: pinned threads that spin briefly, then park on a futex between jobs.
 * Worker 0 is the calling (engine) thread. */
#ifndef ENGINE_CPU_POOL_H
#define ENGINE_CPU_POOL_H

#include <stdbool.h>

#include "engine/base/err.h"

struct cpu_pool;

/* n_threads 0: what affinity and the cgroup's cpu.max allow, at least 1. */
int cpu_pool_open(struct cpu_pool **out, int n_threads, bool pin, struct err *e);
/* The same with the nodes of sys (topo.h) in the place of this machine's. */
int cpu_pool_open_on(struct cpu_pool **out, int n_threads, bool pin, const char *sys,
                     struct err *e);
void cpu_pool_close(struct cpu_pool *p); /* NULL is fine */
int cpu_pool_threads(const struct cpu_pool *p);
/* Node of memory that a worker is pinned to, 0.. ; 0 where workers are not pinned. */
int cpu_pool_node(const struct cpu_pool *p, int worker);

/* Run fn(arg, task, worker) for task 0..n_task-1, each once, on any worker; returns when all are done.
 * Tasks are taken dynamically (uneven cores stay busy), so a result must not depend on which worker runs a
 * task. On several nodes of memory each node's workers begin with its share of the tasks, in their order, and then help the
 * others: what one job wrote first (packed weights), the same part of a later job finds near. No allocation. One job at a time; called only by the engine thread. */
void cpu_pool_run(struct cpu_pool *p, void (*fn)(void *arg, int task, int worker), void *arg,
                  int n_task);

/* What a worker does that found no job for some ms: a few ms at a time; returns whether there is
 * more. One worker at a time; a job that comes meanwhile does not wait for it. NULL: nothing; the last is not running any
 * more on return. Engine thread. */
void cpu_pool_chore(struct cpu_pool *p, bool (*fn)(void *arg), void *arg);

#endif
