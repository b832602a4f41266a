/* Speed of whole decode steps, and equality of devices, without text.
 *
 *     bench_model DEVICE MODEL [--steps N] [--context N] [--tag TEXT] BATCH...
 *     bench_model DEVICE MODEL --same CPU_DEVICE
 *
 * First form: for each batch, that many sequences of --context tokens (64) decode --steps (32) greedy tokens each;
 * one JSON line a batch, with --tag, which is JSON members, inside. Second form: greedy tokens of both devices in f32 must
 * be equal; exit status 1 otherwise. tests/device.sh runs it; it speaks as a cmocka test does when an engine fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/engine_run.h"

#define CHUNK 128

static struct {
    const char *device, *model, *same, *tag;
    int steps, context, n_batch, batch[8];
} opt = {.steps = 32, .context = 64, .tag = ""};
static struct run_seq seqs[RUN_SEQ_MAX];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fill(int32_t *ids, int n, int n_vocab, unsigned seed)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((seed = seed * 1664525u + 1013904223u) % (unsigned)n_vocab);
}

static void batch_run(struct engine *g, int n_seq)
{
    static int32_t ids[RUN_TOK_MAX], one[RUN_SEQ_MAX];
    struct run_seq *all[RUN_SEQ_MAX];
    int blocks = (opt.context + opt.steps + 3) / 16 + 1;
    double start = now();
    for (int i = 0; i < n_seq; i++) {
        fill(ids, opt.context, eng_info(g)->n_vocab, (unsigned)i);
        run_seq_init(&seqs[i], ids, opt.context, 1 + i * blocks);
        run_generate(g, &seqs[i], CHUNK, 1);
        all[i] = &seqs[i];
        one[i] = 1;
    }
    double prefill = now() - start;
    for (int i = 0; i < 2; i++) /* the first steps of a batch prepare its graph */
        run_step(g, all, one, n_seq);
    start = now();
    for (int i = 0; i < opt.steps; i++)
        run_step(g, all, one, n_seq);
    double s = now() - start;
    printf("{\"model_step\": %d, \"context\": %d, \"ms\": %.3f, \"tokens_s\": %.1f, "
           "\"prefill_tokens_s\": %.1f, "
           "\"weight_gb_s\": %.1f, \"backend\": \"%s\"%s%s}\n",
           n_seq, opt.context, s * 1e3 / opt.steps, n_seq * opt.steps / s,
           n_seq * opt.context / prefill, (double)eng_info(g)->weight_bytes * opt.steps / s * 1e-9,
           eng_info(g)->backend, opt.tag[0] ? ", " : "", opt.tag);
    fflush(stdout);
}

static void test_speed(void **st)
{
    (void)st;
    int most = 1;
    for (int i = 0; i < opt.n_batch; i++)
        most = opt.batch[i] > most ? opt.batch[i] : most;
    struct eng_opts o = {.path = opt.model,
                         .device = opt.device,
                         .n_ctx = RUN_TOK_MAX,
                         .max_seqs = most,
                         .max_rows = most > CHUNK ? most : CHUNK};
    struct eng_memory mem;
    struct err e = {0};
    if (eng_memory_plan(&o, &mem, &e))
        fail_msg("%s", e.text);
    o.kv_bytes = mem.kv_per_token * 16 *
                 (size_t)(most * ((opt.context + opt.steps + 3) / 16 + 1) + RUN_BLOCK_MAX);
    struct engine *g = run_open(&o);
    assert_non_null(g);
    for (int i = 0; i < opt.n_batch; i++)
        batch_run(g, opt.batch[i]);
    eng_close(g);
}

static void greedy(const char *device, struct run_seq *s)
{
    int32_t ids[40];
    struct eng_opts o = {
        .path = opt.model, .device = device, .precision = PRECISION_F32, .n_ctx = 512};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    fill(ids, 40, eng_info(g)->n_vocab, 7);
    run_seq_init(s, ids, 40, 1);
    run_generate(g, s, 16, opt.steps);
    eng_close(g);
}

static void test_same(void **st)
{
    (void)st;
    greedy(opt.device, &seqs[0]);
    greedy(opt.same, &seqs[1]);
    for (int i = 0; i < seqs[1].n_tok; i++)
        if (seqs[0].tok[i] != seqs[1].tok[i])
            fail_msg("token %d: %s says %d, %s says %d", i, opt.device, seqs[0].tok[i], opt.same,
                     seqs[1].tok[i]);
    printf("{\"same_tokens\": %d, \"device\": \"%s\", \"as\": \"%s\"%s%s}\n", opt.steps, opt.device,
           opt.same, opt.tag[0] ? ", " : "", opt.tag);
}

/* -1 when it is no number; the ranges are checked after. */
static int number(const char *s)
{
    char *end;
    long v = strtol(s, &end, 10);
    return end == s || *end || v < 0 || v > RUN_TOK_MAX ? -1 : (int)v;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: bench_model DEVICE MODEL [--steps N] [--context N] [--tag TEXT] "
                        "BATCH... | --same DEVICE\n");
        return 2;
    }
    opt.device = argv[1], opt.model = argv[2];
    for (int i = 3; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--same"))
            opt.same = next, i++;
        else if (!strcmp(argv[i], "--tag"))
            opt.tag = next, i++;
        else if (!strcmp(argv[i], "--steps"))
            opt.steps = number(next), i++;
        else if (!strcmp(argv[i], "--context"))
            opt.context = number(next), i++;
        else if (opt.n_batch < 8)
            opt.batch[opt.n_batch++] = number(argv[i]);
    }
    bool bad = opt.steps < 1 || opt.context < 1 || opt.context + opt.steps + 4 > RUN_TOK_MAX;
    for (int i = 0; i < opt.n_batch; i++)
        bad = bad || opt.batch[i] < 1 || opt.batch[i] > RUN_SEQ_MAX;
    if (bad || (!opt.same && !opt.n_batch)) {
        fprintf(stderr, "bench_model: steps, context or a batch is out of range\n");
        return 2;
    }
    const struct CMUnitTest speed[] = {cmocka_unit_test(test_speed)},
                            same[] = {cmocka_unit_test(test_same)};
    return opt.same ? cmocka_run_group_tests(same, NULL, NULL)
                    : cmocka_run_group_tests(speed, NULL, NULL);
}
