/* Choices under a grammar: every one writes a text of it, whatever the company; they end with it, wait for their tokens, keep
 * their place over preemption, and intersect with allowed tokens. The fake engine chooses at random among what its mask
 * allows. */
#include <unistd.h>

#include "tests/sched/rig.h"

#include "engine/text/grammar_build.h"
#include "tests/unxz.h"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;

static int open_vocab(void **st)
{
    (void)st;
    struct err e;
    char path[128];
    if (unxz_temp("tests/data/tokenizers/whisper-multilingual.tokenizer.json.xz", path,
                  sizeof path) ||
        tok_open_hf(&tok, path, &e))
        return -1;
    unlink(path);
    return grammar_vocab_open(&vocab, tok, tok_n_vocab(tok), &e);
}

static int close_vocab(void **st)
{
    (void)st;
    grammar_vocab_unref(vocab);
    tok_close(tok);
    return 0;
}

static struct grammar *compiled(const char *re)
{
    struct gr_builder *b;
    struct grammar *g;
    struct err e;
    assert_int_equal(gr_builder_open(&b, vocab, NULL), 0);
    assert_int_equal(gr_compile(b, gr_regex(b, view_str(re), GR_UTF8, 0), &g, &e), 0);
    gr_builder_close(b);
    return g;
}

static void open_rig(int32_t n_block, bool ahead)
{
    fake_reset(n_block);
    fake.info.n_vocab = tok_n_vocab(tok);
    fake.info.lookahead = ahead;
    rig_open((struct sched_opts){0});
}

static uint64_t submit(const char *re, int text, int n, int32_t max_tokens)
{
    struct request *r = rig_request(text, 10 + text, max_tokens);
    r->samp.grammar = compiled(re);
    r->samp.seed = 100 + (uint64_t)text;
    r->n = n;
    r->stop_id[r->n_stop_id++] = tok_find(tok, "<|endoftext|>", 13);
    uint64_t id = r->id;
    sched_submit(rig.s, r);
    return id;
}

/* Text of a choice, and how it ended. */
static enum finish_reason answer(uint64_t id, int choice, struct buf *out)
{
    enum finish_reason why = FINISH_NONE;
    buf_clear(out);
    for (int i = 0; i < rig.n_ev; i++) {
        const struct event *ev = &rig.ev[i];
        if (ev->req != id || ev->choice != choice)
            continue;
        if (ev->kind == EV_TOKEN) {
            struct view v = tok_bytes(tok, ev->tok.token, false);
            buf_add(out, v.p, v.len);
        } else if (ev->kind == EV_FINISH) {
            why = ev->finish;
        }
    }
    return why;
}

static void check(uint64_t id, int choice, const char *re)
{
    struct buf text = {0};
    struct gr_builder *b;
    assert_int_equal(answer(id, choice, &text), FINISH_STOP);
    assert_int_equal(gr_builder_open(&b, vocab, NULL), 0);
    if (gr_matches(b, gr_regex(b, view_str(re), GR_UTF8, 0), text.p, text.len) != 1)
        fail_msg("'%s' is not in %s", buf_cstr(&text), re);
    gr_builder_close(b);
    buf_free(&text);
}

static const char *const res[] = {"[a-z]{5}-[0-9]{3}", "(yes|no|perhaps) [A-Z]{1,12}", "x{20}",
                                  "\\{\"a\":[0-9]{1,9}\\}"};

/* Alone, in company of free rows, n choices, with and without look-ahead, with few blocks: the same texts. */
static void test_texts(void **st)
{
    (void)st;
    struct buf first[4] = {{0}}, again = {0};
    for (int run = 0; run < 4; run++) {
        uint64_t id[4];
        open_rig(80, run == 1);
        for (int i = 0; i < 4; i++) {
            id[i] = submit(res[i], i, 2, 60);
            if (run == 1)
                rig_submit(i + 20, 12, 30);
        }
        for (int step = 0; run == 3 && step < 40; step++) { /* throw one out now and then */
            rig_step();
            if (step % 5 == 4 && rig.s->n_run > 1)
                sched__seq_preempt(rig.s, rig.s->run[rig.s->n_run - 1]);
        }
        rig_run(3000);
        for (int i = 0; i < 4; i++) {
            check(id[i], 0, res[i]);
            check(id[i], 1, res[i]);
            if (!run)
                answer(id[i], 0, &first[i]);
            answer(id[i], 0, &again);
            assert_string_equal(buf_cstr(&again), buf_cstr(&first[i]));
        }
        if (run == 3) {
            struct sched_stats s;
            sched_stats_get(rig.s, &s);
            assert_true(s.preemptions > 0);
        }
        rig_close();
    }
    for (int i = 0; i < 4; i++)
        buf_free(&first[i]);
    buf_free(&again);
}

static void test_length(void **st)
{
    (void)st;
    struct buf text = {0};
    open_rig(80, true);
    uint64_t id = submit("x{200}", 1, 1, 3);
    rig_run(100);
    assert_int_equal(answer(id, 0, &text), FINISH_LENGTH);
    assert_int_equal(rig_count(id, EV_TOKEN), 3);
    buf_free(&text);
    rig_close();
}

/* Stop tokens come only where the text is whole. */
static void test_may_end(void **st)
{
    (void)st;
    bool stopped = false;
    for (int i = 0; i < 30; i++) {
        open_rig(80, false);
        uint64_t id = submit("ab*", i, 1, 200);
        rig_run(1000);
        struct buf text = {0};
        enum finish_reason why = answer(id, 0, &text);
        assert_true(text.len > 0 && text.p[0] == 'a' && strspn(text.p + 1, "b") == text.len - 1);
        const struct event *ev = rig_find(id, EV_FINISH, 0, NULL);
        stopped |= why == FINISH_STOP && ev->stop_token == tok_find(tok, "<|endoftext|>", 13);
        buf_free(&text);
        rig_close();
    }
    assert_true(stopped);
}

/* allowed_token_ids and a grammar that have nothing in common end the request with an error, not the process. */
static void test_nothing_allowed(void **st)
{
    (void)st;
    open_rig(80, false);
    struct request *r = rig_request(1, 10, 10);
    r->samp.grammar = compiled("[0-9]+");
    r->samp.mask = xcalloc(((size_t)tok_n_vocab(tok) + 31) / 32, 4);
    r->samp.mask[2] = 1u << 3; /* some token that is no digit */
    uint64_t id = r->id;
    sched_submit(rig.s, r);
    rig_run(50);
    assert_int_equal(rig_count(id, EV_ERROR), 1);
    assert_int_equal(rig_find(id, EV_ERROR, 0, NULL)->err.code, ERR_INVAL);
    rig_close();
}

static void test_no_memory(void **st)
{
    (void)st;
    for (long k = 1; k < 12; k++) {
        open_rig(80, false);
        uint64_t id = submit(res[0], 1, 1, 40);
        mem_fail_after(k, false);
        rig_run(200);
        mem_fail_after(0, false);
        assert_int_equal(rig_count(id, EV_ERROR) + rig_count(id, EV_DONE), 1);
        rig_close();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),     cmocka_unit_test(test_length),
        cmocka_unit_test(test_may_end),   cmocka_unit_test(test_nothing_allowed),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
