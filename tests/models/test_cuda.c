/* The CUDA backend's host side, on the emulation: decode steps as graphs give the bits of plain launches and, once warm,
 * allocate nothing and wait only for results; tokens named before they are known outlive the growth of their array; each
 * call of the runtime that fails gives an error, no crash, and nothing that stays. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/unxz.h"

struct emu_stats { /* as in cuda/emu_rt.h, which is not for programs outside cuda/ */
    uint64_t mallocs, frees, launches, graph_launches, copies, syncs;
    uint64_t other[5];
};
static void (*rt_stats)(struct emu_stats *);
static int (*rt_fail)(const char *, long);
static size_t (*rt_live)(void);
static char tiny[64];
static struct run_seq one, two;

/* false: this build has no emulation beside it, which is said. */
static bool hooks_open(void)
{
    char path[1024];
    const char *dir = getenv("STEPD_LIBDIR");
    snprintf(path, sizeof path, "%s/stepd-cuda-emu.so", dir ? dir : "build/release");
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        printf("skipped: %s\n0 passed, 0 failed, 4 skipped\n", dlerror());
        return false;
    }
    setenv("STEPD_LIBDIR", dir ? dir : "build/release", 1);
    rt_stats = (void (*)(struct emu_stats *))(uintptr_t)dlsym(so, "emu_rt_stats");
    rt_fail = (int (*)(const char *, long))(uintptr_t)dlsym(so, "emu_rt_fail");
    rt_live = (size_t(*)(void))(uintptr_t)dlsym(so, "emu_rt_live");
    return rt_stats && rt_fail && rt_live;
}

static struct eng_opts options(void)
{
    return (struct eng_opts){
        .path = tiny, .device = "cuda-emu", .max_seqs = 16, .kv_bytes = (size_t)4 << 20};
}

static void prompt(struct run_seq *s, int32_t n, int32_t seed, int32_t block)
{
    int32_t ids[64];
    for (int32_t i = 0; i < n; i++)
        ids[i] = (seed * 31 + i * 7) % 250;
    run_seq_init(s, ids, n, block);
}

enum { N_DECODE = 230 };

static uint64_t decode(const char *graphs, struct emu_stats *delta)
{
    struct emu_stats from, to;
    struct eng_opts o = options();
    setenv("STEPD_CUDA_GRAPHS", graphs, 1);
    struct engine *g = run_open(&o);
    assert_non_null(g);
    prompt(&one, 20, 1, 1);
    run_generate(g, &one, 20, N_DECODE); /* warm: every number of KV splits has come */
    prompt(&one, 20, 1, 1);
    run_generate(g, &one, 20, 1);
    rt_stats(&from);
    run_generate(g, &one, 20, N_DECODE);
    rt_stats(&to);
    eng_close(g);
    unsetenv("STEPD_CUDA_GRAPHS");
    *delta = (struct emu_stats){.mallocs = to.mallocs - from.mallocs,
                                .frees = to.frees - from.frees,
                                .copies = to.copies - from.copies,
                                .graph_launches = to.graph_launches - from.graph_launches,
                                .syncs = to.syncs - from.syncs};
    return one.digest;
}

static void test_graphs(void **st)
{
    (void)st;
    static int32_t tok[RUN_TOK_MAX];
    struct emu_stats with, without;
    uint64_t digest = decode("1", &with);
    memcpy(tok, one.tok, sizeof tok);
    assert_true(decode("0", &without) == digest);
    assert_memory_equal(tok, one.tok, sizeof tok);
    enum { STEPS = N_DECODE - 1 };
    print_message("%d steps: %d graphs, %d mallocs, %d waits, %d copies\n", STEPS,
                  (int)with.graph_launches, (int)with.mallocs, (int)with.syncs, (int)with.copies);
    assert_int_equal(with.graph_launches, STEPS);
    assert_int_equal(without.graph_launches, 0);
    assert_int_equal(with.mallocs + with.frees, 0);
    assert_true(with.syncs <=
                2 * STEPS); /* for the result, and for the buffer of three steps ago */
    assert_true(with.copies <= 3 * STEPS); /* rows, sampling parameters, results */
}

/* One step of sequences [a, or a and b, ...]; tokens are given. */
static void begin(struct engine *g, const struct step_plan *p)
{
    struct err e = {0};
    if (eng_step_begin(g, p, &e))
        fail_msg("eng_step_begin: %s", e.text);
}

static void fill(struct step_seq *s, struct run_seq *r, const int32_t *tok, int32_t pos, int32_t n)
{
    r->row.position = (uint32_t)(pos + n);
    *s = (struct step_seq){.tok = tok,
                           .n_tok = n,
                           .pos = pos,
                           .block = r->block,
                           .n_block = (pos + n + 15) / 16,
                           .n_logit = 1,
                           .rows = &r->row,
                           .out = &r->out};
}

/* One sequence decodes ahead of its results while eleven others join: what it samples must be what it samples alone. */
static void test_sampled_grows(void **st)
{
    (void)st;
    enum { JOIN = 11, P = 20 };
    static struct run_seq more[JOIN];
    static struct step_seq seq[JOIN + 1], first[1];
    struct eng_opts o = options();
    struct err e = {0};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    prompt(&one, P, 1, 1);
    run_generate(g, &one, P, 3);
    eng_close(g);
    g = run_open(&o); /* its arrays are small again */
    assert_non_null(g);
    assert_true(eng_info(g)->lookahead);
    static const int32_t ahead[] = {STEP_SAMPLED(0)};
    struct run_seq late = one;
    prompt(&two, P, 1, 1);
    fill(first, &two, two.tok, 0, P);
    struct step_plan p1 = {.n_seq = 1, .seq = first}, p2 = {.n_seq = JOIN + 1, .seq = seq};
    begin(g, &p1);
    fill(&seq[0], &late, ahead, P, 1);
    for (int i = 0; i < JOIN; i++) {
        prompt(&more[i], 5, 2 + i, 10 + 2 * i);
        fill(&seq[i + 1], &more[i], more[i].tok, 0, 5);
    }
    begin(g, &p2);
    assert_int_equal(eng_step_end(g, &e), 0);
    assert_int_equal(eng_step_end(g, &e), 0);
    assert_int_equal(two.out.token, one.tok[P]);
    assert_int_equal(late.out.token, one.tok[P + 1]);
    eng_close(g);
}

/* Opens, runs a prompt and some decode steps, closes; the first error. */
static int life(struct err *e)
{
    struct eng_opts o = options();
    struct engine *g = NULL;
    int rc = eng_open(&g, &o, e);
    prompt(&one, 20, 3, 1);
    for (int i = 0; i < 4 && !rc; i++) {
        int32_t n = one.n_tok - one.n_done;
        struct step_seq s;
        fill(&s, &one, one.tok + one.n_done, one.n_done, n);
        rc = eng_step(g, &(struct step_plan){.n_seq = 1, .seq = &s}, e);
        one.n_done += n;
        one.tok[one.n_tok++] = one.out.token;
    }
    if (rc && g) { /* and stays so */
        struct err again = {0};
        assert_int_equal(eng_step(g, &(struct step_plan){0}, &again), ERR_DEVICE);
    }
    eng_close(g);
    return rc;
}

static void fail_each(const char *kind, long stride)
{
    struct err e, last = {0};
    long k = 1, n_failed = 0;
    for (;; k += stride, n_failed++) {
        e = (struct err){0};
        assert_int_equal(rt_fail(kind, k), 0);
        int rc = life(&e);
        rt_fail(kind, 0);
        if (rt_live() != 0)
            fail_msg("%s %ld: %zu objects stay", kind, k, rt_live());
        if (rc == 0)
            break;
        if (rc != ERR_NOMEM && rc != ERR_DEVICE)
            fail_msg("%s %ld: %s: %s", kind, k, err_name(rc), e.text);
        assert_true(e.text[0] != 0);
        last = e;
    }
    print_message("%s: %ld calls failed, one at a time; the last told: %s\n", kind, n_failed,
                  last.text);
    assert_true(n_failed > 3);
    e = (struct err){0};
    assert_int_equal(life(&e), 0); /* the process goes on */
}

static void test_fail_alloc(void **st)
{
    (void)st;
    fail_each("alloc", 1);
}

static void test_fail_calls(void **st)
{
    (void)st;
    fail_each("launch", 7);
    fail_each("copy", 3);
    fail_each("async", 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_sampled_grows),
        cmocka_unit_test(test_fail_alloc),
        cmocka_unit_test(test_fail_calls),
    };
    if (!hooks_open())
        return 77;
    if (unxz_temp("tests/data/gguf-tiny/tiny-llama-q4_0.gguf.xz", tiny, sizeof tiny))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(tiny);
    return rc;
}
