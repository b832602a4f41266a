/* See engine_run.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "tests/engine_run.h"

void run_seq_init(struct run_seq *s, const int32_t *ids, int32_t n, int32_t first_block)
{
    assert_true(n <= RUN_TOK_MAX);
    memset(s, 0, sizeof *s);
    memcpy(s->tok, ids, (size_t)n * sizeof *ids);
    s->n_tok = s->n_prompt = n;
    for (int i = 0; i < RUN_BLOCK_MAX; i++)
        s->block[i] = first_block + i;
    s->slot = first_block;
    s->row = (struct sample_row){.top_p = 1, .repetition_penalty = 1, .target = -1, .n_top = -1};
}

static void digest_add(struct run_seq *s, struct engine *g, int logit)
{
    static float buf[1 << 18];
    const struct hash_key key = {1, 2};
    size_t n = (size_t)eng_info(g)->n_vocab;
    if (n <= sizeof buf / sizeof *buf && eng_logits(g, logit, buf) == 0)
        s->digest = hash_u64(s->digest ^ hash_bytes(key, buf, n * sizeof *buf));
    s->digest = hash_u64(s->digest ^ (uint64_t)(uint32_t)s->out.token);
}

void run_step(struct engine *g, struct run_seq *const *seq, const int32_t *n, int n_seq)
{
    static struct step_seq step[RUN_SEQ_MAX];
    struct err e = {0};
    assert_true(n_seq <= RUN_SEQ_MAX);
    for (int i = 0; i < n_seq; i++) {
        struct run_seq *s = seq[i];
        int32_t end = s->n_done + n[i];
        int32_t n_state = eng_info(g)->n_state, slot = n_state ? s->slot % n_state : 0;
        assert_true(n[i] > 0 && end <= s->n_tok && end < RUN_TOK_MAX);
        s->row.position = (uint32_t)s->n_tok;
        s->row.hist = s->tok;
        s->row.n_prompt = s->n_prompt;
        s->row.n_hist = s->n_tok;
        step[i] = (struct step_seq){.tok = s->tok + s->n_done,
                                    .n_tok = n[i],
                                    .pos = s->n_done,
                                    .block = s->block,
                                    .n_block = (end + 15) / 16,
                                    .state_src = s->from     ? s->from - 1
                                                 : s->n_done ? slot
                                                             : -1,
                                    .state_dst = slot,
                                    .n_logit = end == s->n_tok,
                                    .rows = &s->row,
                                    .out = &s->out};
    }
    if (eng_step(g, &(struct step_plan){.n_seq = n_seq, .seq = step}, &e))
        fail_msg("eng_step: %s", e.text);
    int logit = 0;
    for (int i = 0; i < n_seq; i++) {
        struct run_seq *s = seq[i];
        s->n_done += n[i];
        s->from = 0;
        if (!step[i].n_logit)
            continue;
        assert_false(s->out.bad);
        digest_add(s, g, logit++);
        s->tok[s->n_tok++] = s->out.token;
    }
}

void run_generate(struct engine *g, struct run_seq *s, int32_t chunk, int32_t n_new)
{
    int32_t end = s->n_prompt + n_new;
    while (s->n_tok < end) {
        int32_t left = s->n_tok - s->n_done, n = left < chunk ? left : chunk;
        run_step(g, &s, &n, 1);
    }
}

void run_logits(struct engine *g, const int32_t *ids, int32_t n, int32_t first_block, float *dst)
{
    static struct sample_row rows[RUN_TOK_MAX];
    static struct sample_out out[RUN_TOK_MAX];
    static struct run_seq s;
    struct err e = {0};
    run_seq_init(&s, ids, n, first_block);
    for (int i = 0; i < n; i++) {
        rows[i] = s.row;
        rows[i].position = (uint32_t)i + 1;
    }
    struct step_seq step = {.tok = s.tok,
                            .n_tok = n,
                            .block = s.block,
                            .n_block = (n + 15) / 16,
                            .state_src = -1,
                            .n_logit = n,
                            .rows = rows,
                            .out = out};
    if (eng_step(g, &(struct step_plan){.n_seq = 1, .seq = &step}, &e))
        fail_msg("eng_step: %s", e.text);
    for (int i = 0; i < n; i++)
        assert_int_equal(eng_logits(g, i, dst + (size_t)i * (size_t)eng_info(g)->n_vocab), 0);
}

struct engine *run_open(const struct eng_opts *o)
{
    struct engine *g = NULL;
    struct err e = {0};
    int rc = eng_open(&g, o, &e);
    if (rc == ERR_UNSUPPORTED || rc == ERR_NOTFOUND) {
        print_message("not on this machine: device %s table %s: %s\n",
                      o->device ? o->device : "auto", o->isa ? o->isa : "best", e.text);
        return NULL;
    }
    if (rc)
        fail_msg("eng_open %s: %s", o->path, e.text);
    return g;
}

const char *run_model_path(int n_test)
{
    static char path[1024];
    const char *given = getenv("STEPD_TEST_MODEL"), *dir = getenv("STEPD_MODELS");
    if (given)
        snprintf(path, sizeof path, "%s", given);
    else
        snprintf(path, sizeof path, "%s/smollm2-135m.gguf", dir && dir[0] ? dir : "models");
    if (access(path, R_OK) == 0)
        return path;
    printf("skipped: %s is not there (`stepd pull smollm2-135m` fetches it)\n", path);
    printf("0 passed, 0 failed, %d skipped\n", n_test);
    return NULL;
}

void run_open_no_memory(const struct eng_opts *o, const char *name)
{
    struct engine *g = NULL;
    struct err e = {0};
    uint64_t from = mem_count();
    assert_int_equal(eng_open(&g, o, &e), 0);
    eng_close(g);
    long n = (long)(mem_count() - from), done_without = 0;
    for (long k = 1; k <= n; k++) {
        g = NULL;
        e = (struct err){0};
        mem_fail_after(k, false);
        int rc = eng_open(&g, o, &e);
        mem_fail_after(0, false);
        eng_close(g);
        done_without += rc == 0; /* judging what kind of model a file is */
        if (rc && (rc != ERR_NOMEM || e.text[0] == 0))
            fail_msg("%s, allocation %ld: %s \"%s\"", name, k, err_name(rc), e.text);
    }
    print_message("%s: %ld allocations, each failed once; %ld could be done without\n", name, n,
                  done_without);
    assert_true(n > 10 && n < 5000 && done_without < 24);
}
