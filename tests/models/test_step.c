/* eng_step: a plan over its limits is refused and harms nothing; copies, scoring and several sequences in
 * one step; no allocation after warm-up. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "tests/engine_run.h"
#include "tests/tiny_gguf.h"
#include "tests/unxz.h"

/* Every allocation of this process, whoever makes it. The sanitizers bring their own malloc. */
static atomic_long n_malloc;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC 0
#else
#define COUNTS_MALLOC 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n)
{
    atomic_fetch_add(&n_malloc, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_malloc, 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&n_malloc, 1);
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&n_malloc, 1);
    return __libc_memalign(align, n);
}
#endif

static char model[64];

static int setup(void **st)
{
    (void)st;
    return unxz_temp("tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz", model, sizeof model);
}

static int teardown(void **st)
{
    (void)st;
    return unlink(model);
}

static struct engine *open_cpu(void)
{
    struct eng_opts o = {.path = model,
                         .device = "cpu",
                         .keep_logits = true,
                         .max_seqs = 16,
                         .max_rows = 64,
                         .max_logit_rows = 64};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    return g;
}

static void refuse(struct engine *g, struct step_seq s, struct step_copy c, int n_seq,
                   const char *text)
{
    struct err e = {0};
    struct step_seq all[32];
    for (int i = 0; i < 32; i++)
        all[i] = s;
    struct step_plan p = {.n_seq = n_seq, .seq = all, .copy = &c, .n_copy = c.src != 0};
    int rc = eng_step(g, &p, &e);
    if (rc != ERR_INVAL || !strstr(e.text, text))
        fail_msg("got %s \"%s\", expected \"%s\"", err_name(rc), e.text, text);
}

static void test_limits(void **st)
{
    (void)st;
    struct engine *g = open_cpu();
    static int32_t tok[300], block[64];
    struct sample_row row[65] = {{.top_p = 1, .target = -1, .n_top = -1}};
    struct sample_out out[65];
    int32_t bad_tok[1] = {512}, bad_block[1] = {0}, far_block[1] = {eng_info(g)->n_block};
    for (int i = 0; i < 64; i++)
        block[i] = i + 1;
    struct step_seq s = {
        .tok = tok, .n_tok = 8, .block = block, .n_block = 16, .rows = row, .out = out};
    struct step_copy none = {0};
    struct step_seq t = s;
    t.n_tok = 0;
    refuse(g, t, none, 1, "tokens 0");
    t = s;
    t.pos = -1;
    refuse(g, t, none, 1, "at -1");
    t.pos = 249;
    refuse(g, t, none, 1, "context is 256");
    t = s;
    t.n_block = 0;
    refuse(g, t, none, 1, "0 blocks do not cover 8");
    t = s;
    t.n_logit = 9;
    refuse(g, t, none, 1, "9 logit rows of 8");
    t = s;
    t.n_tok = 1;
    t.tok = bad_tok;
    refuse(g, t, none, 1, "token 512");
    bad_tok[0] = -1;
    refuse(g, t, none, 1, "token -1");
    t.tok = tok;
    t.block = bad_block;
    refuse(g, t, none, 1, "block 0");
    t.block = far_block;
    refuse(g, t, none, 1, "block ");
    refuse(g, s, none, 9, "72 rows");
    refuse(g, s, none, 17, "17 sequences");
    refuse(g, s, (struct step_copy){1, 0}, 1, "copy 0");
    refuse(g, s, (struct step_copy){1, far_block[0]}, 1, "copy 0");
    /* Still in order afterwards. */
    struct err e = {0};
    s.n_logit = 1;
    assert_int_equal(eng_step(g, &(struct step_plan){.n_seq = 1, .seq = &s}, &e), 0);
    assert_int_equal(eng_step(g, &(struct step_plan){0}, &e), 0);
    eng_close(g);
}

/* Scoring of given text: log-probabilities agree with the logits. */
static void test_score(void **st)
{
    (void)st;
    struct engine *g = open_cpu();
    static float logits[20 * 512];
    int32_t ids[20];
    for (int i = 0; i < 20; i++)
        ids[i] = 5 + i * 7;
    run_logits(g, ids, 20, 1, logits);
    struct sample_row row[20];
    struct sample_out out[20];
    static const int32_t block[2] = {3, 4};
    for (int i = 0; i < 20; i++)
        row[i] = (struct sample_row){
            .top_p = 1, .repetition_penalty = 1, .target = i < 19 ? ids[i + 1] : 0, .n_top = 3};
    struct step_seq s = {.tok = ids,
                         .n_tok = 20,
                         .block = block,
                         .n_block = 2,
                         .n_logit = 20,
                         .rows = row,
                         .out = out};
    struct err e = {0};
    assert_int_equal(eng_step(g, &(struct step_plan){.n_seq = 1, .seq = &s}, &e), 0);
    for (int i = 0; i < 20; i++) {
        const float *l = logits + (size_t)i * 512;
        double sum = 0;
        int rank = 1;
        for (int v = 0; v < 512; v++) {
            sum += exp((double)l[v]);
            rank += l[v] > l[row[i].target];
        }
        assert_int_equal(out[i].token, row[i].target);
        assert_int_equal(out[i].rank, rank);
        assert_float_equal(out[i].logprob, (float)((double)l[row[i].target] - log(sum)), 1e-4);
        assert_int_equal(out[i].n_top, 3);
        assert_true(l[out[i].top_id[0]] >= l[out[i].top_id[1]]);
    }
    eng_close(g);
}

/* A branch that copies its last, half-full block goes on as if it had computed it. */
static void test_copy(void **st)
{
    (void)st;
    struct engine *g = open_cpu();
    static struct run_seq a, b;
    int32_t ids[21];
    for (int i = 0; i < 21; i++)
        ids[i] = 3 + i * 11;
    run_seq_init(&a, ids, 21, 1);
    run_generate(g, &a, 21, 1);
    b = a;
    b.block[1] = 40;
    struct step_copy c = {.src = 2, .dst = 40};
    struct err e = {0};
    assert_int_equal(eng_step(g, &(struct step_plan){.n_copy = 1, .copy = &c}, &e), 0);
    run_generate(g, &a, 21, 8);
    run_generate(g, &b, 21, 8);
    assert_memory_equal(a.tok, b.tok, sizeof a.tok);
    assert_true(a.digest == b.digest);
    eng_close(g);
}

/* A step that fails half-way leaves KV unknown: the engine says so from then on. */
static void test_failure(void **st)
{
    (void)st;
    struct engine *g = open_cpu();
    static const int32_t tok[4] = {5, 6, 7, 8}, block[1] = {1};
    struct step_seq s = {.tok = tok, .n_tok = 4, .block = block, .n_block = 1};
    struct step_plan p = {.n_seq = 1, .seq = &s};
    struct err e = {0};
    mem_fail_after(1, false);
    int rc = eng_step(g, &p, &e);
    mem_fail_after(0, false);
    assert_int_equal(rc, ERR_DEVICE);
    assert_non_null(strstr(e.text, "op "));
    e = (struct err){0};
    assert_int_equal(eng_step(g, &p, &e), ERR_DEVICE);
    assert_non_null(strstr(e.text, "op "));
    eng_close(g);
}

static void test_no_allocation(void **st)
{
    (void)st;
    struct engine *g = open_cpu();
    static struct run_seq s[8];
    struct run_seq *p[8];
    int32_t ids[8], n[8];
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 8; k++)
            ids[k] = 7 + i * 8 + k;
        run_seq_init(&s[i], ids, 8, 1 + i * 8);
        s[i].row.temperature = 0.7f;
        s[i].row.seed = (uint64_t)i;
        s[i].row.n_top = 5;
        p[i] = &s[i];
        n[i] = 8;
    }
    run_step(g, p, n, 8); /* full-sized: warm-up */
    uint64_t before = mem_count();
    long malloc_before = atomic_load(&n_malloc);
    for (int step = 0; step < 1000; step++) {
        for (int i = 0; i < 8; i++) {
            n[i] = 1;
            if (s[i].n_tok == 120) { /* start over inside the context */
                s[i].n_tok = 9;
                s[i].n_done = 8;
            }
        }
        run_step(g, p, n, 8);
    }
    assert_int_equal(mem_count() - before, 0);
    assert_int_equal(atomic_load(&n_malloc) - malloc_before, 0);
    if (COUNTS_MALLOC) {
        void *volatile probe = malloc(1); /* the counter does count */
        free(probe);
        assert_true(atomic_load(&n_malloc) > malloc_before);
    }
    eng_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_score),
        cmocka_unit_test(test_copy),          cmocka_unit_test(test_failure),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
