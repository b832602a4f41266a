/* The index of runs: what it finds is what came before, by comparison with a plain search; what it forgets is only old. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "sched/ngram.h"

#define N 3000

/* The latest place before n whose run of k equals the one before n; -1. */
static int32_t plain(const int32_t *tok, int32_t n, int32_t k)
{
    for (int32_t at = n - 1; at >= k; at--)
        if (ngram_equal(tok, at, tok, n, k) == k)
            return at;
    return -1;
}

static void test_find(void **st)
{
    (void)st;
    static int32_t tok[N];
    for (int words = 2; words <= 200; words *= 3) {
        struct ngram x;
        int found = 0, latest = 0;
        for (int32_t i = 0; i < N; i++)
            tok[i] = (int32_t)(hash_u64((uint64_t)i * 7 + (uint64_t)words) % (uint64_t)words);
        assert_int_equal(ngram_open(&x, N), 0);
        for (int32_t n = 1; n <= N; n++) {
            int32_t len = 0, k = NGRAM_MAX, want = -1;
            ngram_extend(&x, tok, n);
            assert_int_equal(x.n, n);
            int32_t at = ngram_find(&x, tok, n, 10, &len);
            while (k >= NGRAM_MIN && (want = plain(tok, n, k)) < 0)
                k--;
            if (at < 0) /* forgotten at most */
                continue;
            assert_true(at >= NGRAM_MIN && at < n && len >= NGRAM_MIN && len <= 10);
            assert_int_equal(ngram_equal(tok, at, tok, n, 10), len);
            found++;
            latest += at == want;
        }
        print_message("%d words: %d found, %d of them the latest longest\n", words, found, latest);
        assert_true(found > N / 100 && latest > found * 3 / 4);
        ngram_close(&x);
    }
}

static void test_edges(void **st)
{
    (void)st;
    struct ngram x;
    int32_t tok[5] = {7, 7, 7, 7, 7}, len = 0;
    assert_int_equal(ngram_equal(tok, 0, tok, 5, 9), 0);
    assert_int_equal(ngram_equal(tok, 2, tok, 5, 9), 2);
    assert_int_equal(ngram_open(&x, 1 << 30), 0); /* bounded memory */
    assert_true(x.mask < 1 << 20);
    for (int32_t n = 0; n < 3; n++) { /* a run has to be followed by something */
        ngram_extend(&x, tok, n);
        assert_int_equal(ngram_find(&x, tok, n, 9, &len), -1);
    }
    ngram_extend(&x, tok, 3);
    assert_int_equal(ngram_find(&x, tok, 3, 9, &len), 2);
    assert_int_equal(len, 2);
    ngram_close(&x);
    ngram_close(&x);
    mem_fail_after(1, false);
    assert_int_equal(ngram_open(&x, 100), ERR_NOMEM);
    mem_fail_after(0, false);
    ngram_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_find), cmocka_unit_test(test_edges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
