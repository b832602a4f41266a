/* Batch invariance: chosen tokens and the bits of their logits are the same alone, in a batch of 64, at any
 * chunk size, after a prefix-cache hit, after preemption, and for any number of threads. A tiny model on
 * every kernel table and precision; the real one, when it is there, on the default table, default and int8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/hash.h"
#include "tests/engine_run.h"
#include "tests/unxz.h"

#define N_COMPANY 63

struct matrix { /* one model at one setting */
    struct eng_opts o;
    int32_t n_prompt, n_new;
    int32_t n_company_tok; /* length at which another sequence leaves the batch */
    int32_t seq_blocks;    /* blocks set aside for each sequence */
    int n_threads;         /* how many numbers of threads are tried, of 1, 2, 4 */
};

static struct run_seq target, other[N_COMPANY];

static void seq_fill(struct run_seq *s, int32_t n, int32_t n_vocab, uint64_t seed, int32_t block)
{
    int32_t ids[RUN_TOK_MAX];
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(hash_u64(seed * 4096 + (uint64_t)i) % (uint64_t)n_vocab);
    run_seq_init(s, ids, n, block);
    s->row.temperature = 0.8f;
    s->row.seed = seed;
}

static void target_fill(const struct matrix *m, struct engine *g, int32_t block)
{
    seq_fill(&target, m->n_prompt, eng_info(g)->n_vocab, 1, block);
}

/* Steps of up to 64 sequences; the target moves through the batch, others come to their end and leave. */
static void run_company(const struct matrix *m, struct engine *g)
{
    target_fill(m, g, 1);
    for (int i = 0; i < N_COMPANY; i++)
        seq_fill(&other[i], 3 + i % (m->n_company_tok - 4), eng_info(g)->n_vocab, 100 + (uint64_t)i,
                 1 + (i + 1) * m->seq_blocks);
    for (int step = 0; target.n_tok < m->n_prompt + m->n_new; step++) {
        struct run_seq *seq[N_COMPANY + 1];
        int32_t n[N_COMPANY + 1];
        int count = 0;
        for (int i = 0; i < N_COMPANY + 1; i++) {
            int at = (i + step * 5) % (N_COMPANY + 1);
            struct run_seq *s = at == N_COMPANY ? &target : &other[at];
            int32_t left = s->n_tok - s->n_done, most = s == &target ? 23 : 1 + at % 6;
            if (s != &target && s->n_tok >= m->n_company_tok)
                continue;
            seq[count] = s;
            n[count++] = left < most ? left : most;
        }
        run_step(g, seq, n, count);
    }
}

/* The first blocks were computed for an earlier request; only the rest is computed now. */
static void run_cached(const struct matrix *m, struct engine *g)
{
    target_fill(m, g, 1);
    run_generate(g, &target, 64, 1);
    target_fill(m, g, 1 + m->seq_blocks);
    int32_t shared = (m->n_prompt - 1) / 16;
    for (int32_t i = 0; i < shared; i++)
        target.block[i] = 1 + i;
    target.n_done = shared * 16;
    run_generate(g, &target, 64, m->n_new);
}

/* Half-way, all blocks are taken away; everything known is computed again elsewhere. */
static void run_preempted(const struct matrix *m, struct engine *g)
{
    target_fill(m, g, 1);
    run_generate(g, &target, 64, m->n_new / 2);
    target.n_done = 0;
    for (int32_t i = 0; i < m->seq_blocks; i++)
        target.block[i] = 1 + 2 * m->seq_blocks + i;
    run_generate(g, &target, 50, m->n_new);
}

struct outcome {
    int32_t tok[RUN_TOK_MAX];
    uint64_t digest;
};

static void compare(const struct matrix *m, struct engine *g, const struct outcome *want,
                    const char *what)
{
    size_t n = (size_t)(m->n_prompt + m->n_new);
    if (target.digest != want->digest || memcmp(target.tok, want->tok, n * sizeof *target.tok) != 0)
        fail_msg("%s: %s: other bytes than alone", eng_info(g)->backend, what);
}

static void scenarios(const struct matrix *m, struct engine *g, const struct outcome *want)
{
    static const int32_t chunk[] = {7, 64, 512};
    for (int i = 0; i < 3; i++) {
        char what[32];
        snprintf(what, sizeof what, "chunks of %d", chunk[i]);
        target_fill(m, g, 1);
        run_generate(g, &target, chunk[i], m->n_new);
        compare(m, g, want, what);
    }
    run_company(m, g);
    compare(m, g, want, "in company");
    run_cached(m, g);
    compare(m, g, want, "after a cache hit");
    run_preempted(m, g);
    compare(m, g, want, "after preemption");
}

static void matrix_run(struct matrix m)
{
    static struct outcome want;
    static const int threads[] = {1, 2, 4};
    m.o.keep_logits = true;
    m.o.no_pin = true; /* more workers than processors */
    m.o.max_logit_rows = 64;
    for (int i = 0; i < m.n_threads; i++) {
        m.o.n_threads = threads[i];
        struct engine *g = run_open(&m.o);
        if (!g)
            return;
        target_fill(&m, g, 1);
        run_generate(g, &target, 512, m.n_new);
        if (i == 0) {
            memcpy(want.tok, target.tok, sizeof want.tok);
            want.digest = target.digest;
            print_message("%s precision %d kv %s: digest %016llx\n", eng_info(g)->backend,
                          (int)m.o.precision, m.o.kv_dtype ? m.o.kv_dtype : "auto",
                          (unsigned long long)want.digest);
        }
        compare(&m, g, &want, "another number of threads");
        if (threads[i] == 2)
            scenarios(&m, g, &want);
        eng_close(g);
    }
}

static char tiny[64];

static void run_tiny(const char *device, const char *isa, enum eng_precision p, const char *kv)
{
    matrix_run((struct matrix){.o = {.path = tiny,
                                     .device = device,
                                     .isa = isa,
                                     .precision = p,
                                     .kv_dtype = kv,
                                     .max_seqs = 64,
                                     .kv_bytes = (size_t)32 << 20},
                               .n_prompt = 150,
                               .n_new = 24,
                               .n_company_tok = 90,
                               .seq_blocks = 16,
                               .n_threads = strcmp(device, "cpu") ? 2 : 3});
}

static void test_tiny(void **st)
{
    (void)st;
    static const char *const isa[] = {"scalar", "avx2", "avx512", "amx"};
    static const enum eng_precision p[] = {PRECISION_DEFAULT, PRECISION_F32, PRECISION_INT8};
    assert_int_equal(unxz_temp("tests/data/gguf-tiny/tiny-llama-q4_0.gguf.xz", tiny, sizeof tiny),
                     0);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            run_tiny("cpu", isa[i], p[k], NULL);
    for (int k = 0; k < 2; k++)
        run_tiny("cuda-emu", NULL, p[k], NULL);
    for (int i = 0; i < 4; i++)
        run_tiny("cpu", isa[i], PRECISION_DEFAULT, i % 2 ? "int8" : "fp8");
    run_tiny("cuda-emu", NULL, PRECISION_DEFAULT, "fp8");
    run_tiny("cuda-emu", NULL, PRECISION_F32, "int8");
    unlink(tiny);
}

static void test_real(void **st)
{
    (void)st;
    const char *path = run_model_path(0);
    if (!path)
        skip(); /* counted by the runner */
    static const enum eng_precision p[] = {PRECISION_DEFAULT, PRECISION_INT8};
    for (int k = 0; k < 2; k++)
        matrix_run((struct matrix){
            .o = {.path = path, .device = "cpu", .precision = p[k], .n_ctx = 1024, .max_seqs = 64},
            .n_prompt = 200,
            .n_new = 8,
            .n_company_tok = 20,
            .seq_blocks = 16,
            .n_threads = 3});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
