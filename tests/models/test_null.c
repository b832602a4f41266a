/* Device "null": scripted ordinary tokens, no weights, the limits of a real engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/load/gguf.h"
#include "tests/engine_run.h"
#include "tests/tiny_gguf.h"
#include "tests/unxz.h"

static void test_tokens(void **st)
{
    (void)st;
    char path[64];
    struct err e = {0};
    struct gguf *f;
    assert_int_equal(unxz_temp("tests/data/gguf-tiny/tiny-qwen2-f16.gguf.xz", path, sizeof path),
                     0);
    struct engine *g = run_open(&(struct eng_opts){.path = path, .device = "null"});
    assert_non_null(g);
    assert_string_equal(eng_info(g)->arch, "qwen2");
    assert_string_equal(eng_info(g)->backend, "null");
    assert_int_equal(eng_info(g)->weight_bytes, 0);
    assert_int_equal(eng_info(g)->n_ctx, 256);
    assert_int_equal(eng_info(g)->n_vocab, 512);
    assert_int_equal(gguf_open(&f, path, &e), 0);
    const struct gguf_kv *type = gguf_kv_find(f, "tokenizer.ggml.token_type");
    static struct run_seq a, b;
    int32_t ids[5] = {1, 2, 3, 4, 5};
    run_seq_init(&a, ids, 5, 1);
    run_seq_init(&b, ids, 5, 9);
    a.row.seed = b.row.seed = 42;
    run_generate(g, &a, 2, 100);
    run_generate(g, &b, 5, 100);
    assert_memory_equal(a.tok, b.tok, sizeof a.tok); /* from seed and position alone */
    int distinct = 0;
    for (int i = 5; i < 105; i++) {
        assert_int_equal(gguf_arr_int(type, (uint64_t)a.tok[i]), 1); /* never a control token */
        distinct += a.tok[i] != a.tok[i - 1];
    }
    assert_true(distinct > 50);
    b.row.seed = 43;
    b.n_tok = 5;
    b.n_done = 0;
    run_generate(g, &b, 5, 100);
    assert_memory_not_equal(a.tok, b.tok, sizeof a.tok);
    gguf_close(f);
    eng_close(g);
    unlink(path);
}

/* What a row asks for still holds: mask, ban, target, alternatives. */
static void test_rows(void **st)
{
    (void)st;
    char path[64];
    assert_int_equal(tiny_gguf_write(path, sizeof path, &(struct tiny_edit){.arch = "anything"}),
                     0);
    struct engine *g = run_open(&(struct eng_opts){.path = path, .device = "null"});
    assert_non_null(g);
    assert_string_equal(eng_info(g)->arch, "anything");
    static struct run_seq s;
    int32_t id = 1, ban[1] = {17}, n = 1;
    struct run_seq *p = &s;
    uint32_t mask[2] = {(1u << 17) | (1u << 19), 0};
    run_seq_init(&s, &id, 1, 1);
    s.row.mask = mask;
    s.row.ban = ban;
    s.row.n_ban = 1;
    s.row.n_top = 4;
    run_step(g, &p, &n, 1);
    assert_int_equal(s.out.token, 19);
    assert_int_equal(s.out.n_top, 4);
    assert_int_equal(s.out.top_id[0], 19);
    for (int i = 1; i < 4; i++) {
        assert_true(s.out.top_id[i] != s.out.top_id[i - 1]);
        assert_true(s.out.top_logprob[i] < s.out.top_logprob[i - 1]);
    }
    s.row.target = 3;
    run_step(g, &p, &n, 1);
    assert_int_equal(s.out.token, 3);
    float logit;
    assert_int_equal(eng_logits(g, 0, &logit), ERR_INVAL);
    eng_close(g);
    struct eng_memory m;
    struct err e = {0};
    struct eng_opts o = {.path = path, .device = "null", .n_ctx = 64, .max_seqs = 8};
    assert_int_equal(eng_memory_plan(&o, &m, &e), 0);
    assert_int_equal(m.n_ctx, 64);
    assert_int_equal(m.n_block, 2 * 4 + 1);
    assert_int_equal(m.weights, 0);
    unlink(path);
}

static void test_errors(void **st)
{
    (void)st;
    char path[64];
    struct engine *g = NULL;
    struct err e = {0};
    assert_int_equal(
        tiny_gguf_write(path, sizeof path, &(struct tiny_edit){.drop = "tokenizer.ggml.tokens"}),
        0);
    struct eng_opts o = {.path = path, .device = "null"};
    assert_int_equal(eng_open(&g, &o, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "tokenizer.ggml.tokens"));
    assert_null(g);
    unlink(path);
    assert_int_equal(tiny_gguf_write(path, sizeof path, &(struct tiny_edit){0}), 0);
    o.n_ctx = TINY_CTX + 1;
    assert_int_equal(eng_open(&g, &o, &e), ERR_LIMIT);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
