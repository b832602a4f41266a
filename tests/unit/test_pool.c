/* engine/cpu/pool: every task once, on any worker; parking; errors. Meant to run under TSan too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/cpu/pool.h"
#include "engine/cpu/topo.h"

#define N_MAX 300
struct job {
    int count[N_MAX]; /* plain on purpose: TSan proves the hand-over */
    int salt;
    int n_worker;
    atomic_int bad;
    atomic_uint seen; /* bit per worker */
};

static void count_task(void *arg, int task, int worker)
{
    struct job *j = arg;
    j->count[task] += j->salt;
    if (worker < 0 || worker >= j->n_worker)
        atomic_fetch_add(&j->bad, 1);
    else
        atomic_fetch_or(&j->seen, 1u << worker);
}

static void nap(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static void run_jobs(int n_thread, int n_job, bool pause)
{
    struct cpu_pool *p = NULL;
    struct err e = {0};
    assert_int_equal(cpu_pool_open(&p, n_thread, false, &e), 0);
    assert_int_equal(cpu_pool_threads(p), n_thread);
    struct job j = {.n_worker = n_thread};
    int want[N_MAX] = {0};
    for (int i = 0; i < n_job; i++) {
        int n = (i * 37) % N_MAX;
        j.salt = i + 1;
        cpu_pool_run(p, count_task, &j, n);
        for (int t = 0; t < n; t++)
            want[t] += i + 1;
        assert_memory_equal(j.count, want, sizeof want);
        if (pause && i % 4 == 0)
            nap(300); /* longer than the spin: workers park */
    }
    assert_int_equal(j.bad, 0);
    cpu_pool_close(p);
}

static void test_once(void **st)
{
    (void)st;
    for (int n = 1; n <= 4; n++)
        run_jobs(n, 400, false);
}

static void test_parked(void **st)
{
    (void)st;
    run_jobs(2, 40, true);
    run_jobs(5, 40, true);
}

static void long_task(void *arg, int task, int worker)
{
    nap(2000);
    count_task(arg, task, worker);
}

/* Slow tasks: the engine thread has nothing left and must sleep until the others are done. */
static void test_wait(void **st)
{
    (void)st;
    struct cpu_pool *p = NULL;
    assert_int_equal(cpu_pool_open(&p, 3, false, NULL), 0);
    struct job j = {.n_worker = 3, .salt = 1};
    for (int i = 0; i < 5; i++)
        cpu_pool_run(p, long_task, &j, 7);
    for (int i = 0; i < 7; i++)
        assert_int_equal(j.count[i], 5);
    assert_true(__builtin_popcount(j.seen) > 1);
    cpu_pool_close(p);
}

struct chore {
    atomic_int left, done;
};
static bool chore_piece(void *arg)
{
    struct chore *c = arg;
    atomic_fetch_add(&c->done, 1);
    return atomic_fetch_sub(&c->left, 1) > 1;
}

/* Idle workers do a chore to its end, jobs go on meanwhile, and none of it is done behind its end. */
static void test_chore(void **st)
{
    (void)st;
    struct cpu_pool *p = NULL;
    struct chore c = {.left = 3};
    assert_int_equal(cpu_pool_open(&p, 3, false, NULL), 0);
    struct job j = {.n_worker = 3, .salt = 1};
    cpu_pool_chore(p, chore_piece, &c);
    cpu_pool_run(p, count_task, &j, 7);
    for (int i = 0; i < 2000 && atomic_load(&c.left) > 0; i++)
        nap(1000);
    assert_true(atomic_load(&c.left) <= 0);
    for (int i = 0; i < 50; i++) {
        atomic_store(&c.left, 100); /* a chore that does not end */
        cpu_pool_run(p, count_task, &j, 7);
        nap(i % 5 ? 10 : 5000);
    }
    for (int i = 0; i < 7; i++)
        assert_int_equal(j.count[i], 51);
    cpu_pool_chore(p, NULL, NULL);
    const int done = atomic_load(&c.done);
    nap(10000);
    cpu_pool_run(p, count_task, &j, 7);
    nap(10000);
    assert_int_equal(atomic_load(&c.done), done);
    cpu_pool_close(p);
}

static void test_pin(void **st)
{
    (void)st;
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    struct cpu_pool *p = NULL;
    assert_int_equal(cpu_pool_open(&p, 0, true, NULL), 0);
    assert_in_range(cpu_pool_threads(p), 1, CPU_COUNT(&before));
    struct job j = {.n_worker = cpu_pool_threads(p), .salt = 1};
    cpu_pool_run(p, count_task, &j, 64);
    for (int i = 0; i < 64; i++)
        assert_int_equal(j.count[i], 1);
    cpu_pool_close(p);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static void test_affinity_limit(void **st)
{
    (void)st;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct cpu_pool *p = NULL;
    assert_int_equal(cpu_pool_open(&p, 0, true, NULL), 0);
    assert_int_equal(cpu_pool_threads(p), 1);
    cpu_pool_close(p);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void test_errors(void **st)
{
    (void)st;
    struct cpu_pool *p = NULL;
    struct err e = {0};
    assert_int_equal(cpu_pool_open(&p, -1, false, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "threads"));
    assert_int_equal(cpu_pool_open(&p, 100000, false, &e), ERR_INVAL);
    for (int k = 1; k <= 4; k++) {
        mem_fail_after(k, true);
        assert_int_equal(cpu_pool_open(&p, 2, false, &e), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_null(p);
    }
    cpu_pool_close(NULL);
}

/* ---- nodes of memory: folders as Linux shows them ---- */

/* A folder with nodeN/cpulist for each list that is not NULL; to be removed by sys_free. */
static void sys_make(char *dir, const char *const *list, int n)
{
    char path[128];
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < n; i++) {
        if (!list[i])
            continue;
        snprintf(path, sizeof path, "%s/node%d", dir, i);
        assert_int_equal(mkdir(path, 0700), 0);
        snprintf(path, sizeof path, "%s/node%d/cpulist", dir, i);
        FILE *f = fopen(path, "we");
        assert_non_null(f);
        fputs(list[i], f);
        fclose(f);
    }
}

static void sys_free(const char *dir, int n)
{
    char path[128];
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/node%d/cpulist", dir, i);
        unlink(path);
        snprintf(path, sizeof path, "%s/node%d", dir, i);
        rmdir(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

static void test_topo(void **st)
{
    (void)st;
    int16_t node[TOPO_CPU_MAX];
    char dir[] = "/tmp/stepd-topo-XXXXXX";
    /* Numbers with a gap, a node without processors (memory only), one that begins later but has the lower number. */
    const char *const list[] = {"4-7,12\n", NULL, "0-3,8-11,5000\n", "\n", "x\n"};
    sys_make(dir, list, 5);
    assert_int_equal(cpu_topo_read(dir, node), 2);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(node[i], 0);
        assert_int_equal(node[4 + i], 1);
        assert_int_equal(node[8 + i], 0);
    }
    assert_int_equal(node[12], 1);
    assert_int_equal(node[13], 0);
    sys_free(dir, 5);
    assert_int_equal(cpu_topo_read(dir, node), 1); /* no such folder */
    assert_int_equal(cpu_topo_read(TOPO_SYS, node) >= 1, 1);
}

struct near {
    long first_us; /* how long task 0 takes; the others 1 ms */
    int by[N_MAX]; /* which worker */
};

static void near_task(void *arg, int task, int worker)
{
    struct near *j = arg;
    nap(task == 0 ? j->first_us : 1000);
    j->by[task] = worker;
}

/* Tasks of 40 that worker 1 did: of its own half (*own), and of the other's. */
static int near_run(struct cpu_pool *p, long first_us, int *own)
{
    struct near j = {.first_us = first_us};
    int other = 0;
    cpu_pool_run(p, near_task, &j, 40);
    *own = 0;
    for (int i = 0; i < 40; i++)
        *(i < 20 ? &other : own) += j.by[i] == 1;
    return other;
}

/* A node's workers take its part first, and those of one that is done help. */
static void test_nodes(void **st)
{
    (void)st;
    cpu_set_t mask;
    char dir[] = "/tmp/stepd-topo-XXXXXX", first[16], rest[32];
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &mask))
        cpu++;
    snprintf(first, sizeof first, "%zu\n", cpu);
    snprintf(rest, sizeof rest, "%zu-%d\n", cpu + 1, TOPO_CPU_MAX - 1);
    sys_make(dir, (const char *const[]){rest, first}, 2);
    struct cpu_pool *p = NULL;
    const int n = CPU_COUNT(&mask) > 1 ? 2 : 1;
    assert_int_equal(cpu_pool_open_on(&p, n, true, dir, NULL), 0);
    sys_free(dir, 2);
    assert_int_equal(cpu_pool_node(p, 0), 0);
    if (cpu_pool_node(p, n - 1) == 1) { /* not under a quota, which does not pin */
        int near = 0, helped = 0, own;
        for (int i = 0; i < 50 && !(near && helped);
             i++) { /* a worker may be kept waiting now and then */
            int other = near_run(p, 1000, &own);
            near += own >= 18 && other <= 2;
            helped += near_run(p, 60000, &own) >= 15;
        }
        assert_true(near);
        assert_true(helped);
        struct job k = {.n_worker = n};
        for (int i = 0; i < 200; i++) {
            k.salt = 1;
            cpu_pool_run(p, count_task, &k, i % 50);
        }
        for (int i = 0; i < 49; i++)
            assert_int_equal(k.count[i], 4 * (49 - i));
        assert_int_equal(k.bad, 0);
    }
    cpu_pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),           cmocka_unit_test(test_parked),
        cmocka_unit_test(test_wait),           cmocka_unit_test(test_pin),
        cmocka_unit_test(test_chore),          cmocka_unit_test(test_errors),
        cmocka_unit_test(test_affinity_limit), cmocka_unit_test(test_topo),
        cmocka_unit_test(test_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
