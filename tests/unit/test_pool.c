/* engine/cpu/pool: every task once, on any worker; parking; errors. Meant to run under TSan too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/cpu/pool.h"

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
    for (int k = 1; k <= 2; k++) {
        mem_fail_after(k, true);
        assert_int_equal(cpu_pool_open(&p, 2, false, &e), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_null(p);
    }
    cpu_pool_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),   cmocka_unit_test(test_parked),
        cmocka_unit_test(test_wait),   cmocka_unit_test(test_pin),
        cmocka_unit_test(test_errors), cmocka_unit_test(test_affinity_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
