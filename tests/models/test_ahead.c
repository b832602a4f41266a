/* Look-ahead on a real engine: the scheduler plans and begins step n + 1 while step n runs on the emulated device, naming
 * tokens that the host does not know yet. What comes out is what comes without it, and what the CPU backend says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "sched/sched.h"
#include "tests/engine_run.h"
#include "tests/unxz.h"

enum { N_REQ = 6, N_CHOICE = 2, N_TOK = 40, N_SHARED = 48 };

static char tiny[64];
struct answer {
    int32_t tok[N_REQ][N_CHOICE][N_TOK];
    float logprob[N_REQ][N_CHOICE][N_TOK];
    int n[N_REQ][N_CHOICE];
    int failed;
    struct sched_stats st;
};
static struct answer told, known, cpu;

static void take(void *arg, const struct event *ev)
{
    struct answer *a = arg;
    a->failed += ev->kind == EV_ERROR;
    if (ev->kind != EV_TOKEN)
        return;
    int i = (int)ev->req - 1, *n = &a->n[i][ev->choice];
    assert_true(*n < N_TOK && ev->index == *n);
    a->tok[i][ev->choice][*n] = ev->tok.token;
    a->logprob[i][ev->choice][(*n)++] = ev->tok.logprob;
}

/* Some share a prefix of three blocks, some have two choices, some are greedy, some drawn; lengths differ, so that
 * sequences come and go while others are in flight. */
static struct request *request(int i)
{
    struct request *r = request_new();
    int32_t n = i % 2 ? N_SHARED + 5 + i : 7 + 3 * i;
    r->id = (uint64_t)i + 1;
    r->prompt = xcalloc((size_t)n, sizeof *r->prompt);
    for (int32_t k = 0; k < n; k++)
        r->prompt[k] = i % 2 && k < N_SHARED ? k * 5 % 250 : (i * 31 + k * 7) % 250;
    r->n_prompt = n;
    r->n = 1 + i % N_CHOICE;
    r->max_tokens = N_TOK - 4 * i;
    r->prompt_logprobs = -1;
    r->samp = (struct req_sampling){.temperature = i < 3 ? 0 : 0.9f,
                                    .seed = (uint64_t)i * 77 + 5,
                                    .n_top = 0,
                                    .top_p = 0.95f,
                                    .repetition_penalty = i == 4 ? 1.3f : 1};
    return r;
}

static void answer(struct answer *a, const char *device, bool keep_logits)
{
    struct err e = {0};
    struct sched *s = NULL;
    struct eng_opts o = {.path = tiny,
                         .device = device,
                         .precision = PRECISION_F32,
                         .max_seqs = 8,
                         .kv_bytes = (size_t)4 << 20,
                         .keep_logits = keep_logits};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    *a = (struct answer){0};
    struct sched_opts so = {.step_tokens = 24, .emit = take, .arg = a};
    assert_int_equal(sched_open(&s, g, &so, &e), 0);
    for (int i = 0; i < N_REQ; i++) {
        sched_submit(s, request(i));
        for (int k = 0; k < 3 * i; k++)
            assert_true(sched_step(s, &e) >= 0);
    }
    for (int k = 0; k < 2000 && !sched_idle(s); k++) {
        struct err bad = {0};
        assert_true(sched_step(s, &e) >= 0);
        assert_int_equal(sched_check(s, &bad), 0);
    }
    assert_true(sched_idle(s));
    sched_stats_get(s, &a->st);
    sched_close(s);
    eng_close(g);
}

static void same(const struct answer *a, const struct answer *b, bool bits)
{
    assert_int_equal(a->failed + b->failed, 0);
    for (int i = 0; i < N_REQ; i++)
        for (int c = 0; c < 1 + i % N_CHOICE; c++) {
            assert_int_equal(a->n[i][c], N_TOK - 4 * i);
            assert_int_equal(b->n[i][c], N_TOK - 4 * i);
            assert_memory_equal(a->tok[i][c], b->tok[i][c],
                                (size_t)a->n[i][c] * sizeof a->tok[0][0][0]);
            if (bits)
                assert_memory_equal(a->logprob[i][c], b->logprob[i][c],
                                    (size_t)a->n[i][c] * sizeof a->logprob[0][0][0]);
        }
}

/* keep_logits takes look-ahead out. */
static void test_same(void **state)
{
    (void)state;
    answer(&told, "cuda-emu", true);
    answer(&known, "cuda-emu", false);
    assert_int_equal(told.st.steps_ahead, 0);
    assert_true(known.st.steps_ahead > known.st.steps / 2);
    same(&told, &known, true);
}

static void test_cpu(void **state)
{
    (void)state;
    answer(&cpu, "cpu", false);
    assert_int_equal(cpu.st.steps_ahead, 0);
    same(&known, &cpu, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_cpu)};
    if (unxz_temp("tests/data/gguf-tiny/tiny-llama-q4_0.gguf.xz", tiny, sizeof tiny))
        return 1;
    struct eng_opts o = {.path = tiny, .device = "cuda-emu", .kv_bytes = (size_t)4 << 20};
    struct err e = {0};
    struct engine *g = NULL;
    setenv("STEPD_LIBDIR", getenv("STEPD_LIBDIR") ? getenv("STEPD_LIBDIR") : "build/release", 1);
    int rc = eng_open(&g, &o, &e);
    eng_close(g);
    if (rc == ERR_NOTFOUND || rc == ERR_UNSUPPORTED) {
        printf("skipped: %s\n0 passed, 0 failed, 2 skipped\n", e.text);
        unlink(tiny);
        return 77;
    }
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(tiny);
    return rc;
}
