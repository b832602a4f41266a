/* Choices under a grammar: every one writes a text of it, whatever the company; they end with it, wait for their tokens, keep
 * their place over preemption, and intersect with allowed tokens. The fake engine chooses at random among what its mask
 * allows. */
#include <unistd.h>

#include "tests/sched/rig.h"

#include "engine/text/grammar_build.h"
#include "tests/unxz.h"

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static int drafts; /* tried beside each token, in the second round of the tests */

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
    fake.habit = 4; /* guesses come true now and then */
    rig_open((struct sched_opts){.spec_tokens = drafts, .spec_eager = drafts > 0});
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
                                  "\\{\"a\":[0-9]{1,9}\\}", "(ab|cd|ef)( (ab|cd|ef)){12,30}"};
#define N_RE 5

/* Alone, in company of free rows, n choices, with and without look-ahead, with few blocks, with drafts: the same texts. */
static void test_texts(void **st)
{
    (void)st;
    static struct buf first[N_RE];
    struct buf again = {0};
    uint64_t right = 0;
    for (int run = 0; run < 4; run++) {
        uint64_t id[N_RE];
        open_rig(80, run == 1);
        for (int i = 0; i < N_RE; i++) {
            id[i] = submit(res[i], i, 2, 100);
            if (run == 1)
                rig_submit(i + 20, 12, 30);
        }
        for (int step = 0; run == 3 && step < 40; step++) { /* throw one out now and then */
            rig_step();
            if (step % 5 == 4 && rig.s->n_run > 1)
                sched__seq_preempt(rig.s, rig.s->run[rig.s->n_run - 1]);
        }
        rig_run(3000);
        for (int i = 0; i < N_RE; i++) {
            check(id[i], 0, res[i]);
            check(id[i], 1, res[i]);
            if (!run && !drafts)
                answer(id[i], 0, &first[i]);
            answer(id[i], 0, &again);
            assert_string_equal(buf_cstr(&again), buf_cstr(&first[i]));
        }
        struct sched_stats s;
        sched_stats_get(rig.s, &s);
        assert_true(run != 3 || s.preemptions > 0);
        right += s.draft_accepted;
        rig_close();
    }
    print_message("%llu drafts came true\n", (unsigned long long)right);
    assert_true(drafts ? right > 50 : !right);
    for (int i = 0; drafts && i < N_RE; i++)
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
    for (long k = 1; k < 30; k++) {
        open_rig(80, false);
        uint64_t id = submit(res[0], 1, 1, 40);
        mem_fail_after(k, false);
        rig_run(200);
        mem_fail_after(0, false);
        assert_int_equal(rig_count(id, EV_ERROR) + rig_count(id, EV_DONE), 1);
        rig_close();
    }
}

/* Items that differ: where a choice stands there depends on all of its text. */
static struct grammar *different(void)
{
    struct gr_builder *b;
    struct grammar *g;
    struct err e;
    assert_int_equal(gr_builder_open(&b, vocab, NULL), 0);
    gr_expr key = gr_key(b, gr_regex(b, view_str("[a-d]{1,2}"), GR_UTF8, 0));
    gr_expr more = gr_seq2(b, gr_regex(b, view_str(","), GR_UTF8, 0), key);
    assert_int_equal(gr_compile(b, gr_unique(b, key, more, 1, 12), &g, &e), 0);
    gr_builder_close(b);
    return g;
}

/* A copy goes its own way: what it takes changes nothing of the state it came from, and it allows what that one allows after
 * the same tokens. */
static void test_copy(void **st)
{
    (void)st;
    size_t n_word = ((size_t)tok_n_vocab(tok) + 31) / 32;
    uint32_t *mask[3];
    for (int i = 0; i < 3; i++)
        mask[i] = xmalloc(n_word * 4);
    for (int i = 0; i <= N_RE; i++) {
        struct grammar *g = i < N_RE ? compiled(res[i]) : different();
        struct grammar_state *s, *copy;
        assert_int_equal(grammar_state_open(&s, g), 0);
        assert_int_equal(grammar_state_open(&copy, g), 0);
        grammar_unref(g);
        for (uint64_t n = 0; n < 40 && !grammar_must_end(s); n++) {
            assert_int_equal(grammar_mask(s, mask[0], n_word), 1);
            uint32_t id = (uint32_t)(hash_u64(n * 5 + (uint64_t)i) % (n_word * 32));
            while (!(mask[0][id / 32] >> (id % 32) & 1))
                id = (id + 1) % (uint32_t)(n_word * 32);
            mem_fail_after(n % 3 == 2, false);
            int rc = grammar_state_copy(copy, s);
            mem_fail_after(0, false);
            assert_true(rc == 0 || (rc == ERR_NOMEM && n % 3 == 2));
            assert_int_equal(grammar_state_copy(copy, s), 0);
            assert_int_equal(grammar_accept(copy, (int32_t)id), 0);
            assert_true(grammar_mask(copy, mask[1], n_word) >= 0);
            assert_int_equal(grammar_mask(s, mask[2], n_word), 1);
            assert_memory_equal(mask[0], mask[2], n_word * 4);
            assert_int_equal(grammar_accept(s, (int32_t)id), 0);
            assert_true(grammar_mask(s, mask[2], n_word) >= 0);
            assert_memory_equal(mask[1], mask[2], n_word * 4);
            assert_int_equal(grammar_may_end(s), grammar_may_end(copy));
        }
        grammar_state_close(copy);
        grammar_state_close(s);
    }
    for (int i = 0; i < 3; i++)
        free(mask[i]);
}

static int with_drafts(void **st)
{
    (void)st;
    drafts = 4;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_may_end),
        cmocka_unit_test(test_nothing_allowed),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_copy),
        cmocka_unit_test_setup(test_texts, with_drafts),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_may_end),
        cmocka_unit_test(test_nothing_allowed),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
