/* api/sound: files to frames. Sizes that lie, limits, want of memory; what HTTP clients see is in tests/api/test_audio.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/sound.h"
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "tests/unxz.h"

#define SOUND "tests/data/audio/sound/"

static void u(struct buf *b, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_char(b, (char)(v >> (8 * i)));
}

/* A wav file of n samples, 16 bit mono, of which the chunks say these sizes; `list` puts a chunk before the samples. */
static struct buf wav(uint32_t rate, uint32_t n, uint32_t riff, uint32_t data, bool list,
                      uint32_t list_size)
{
    struct buf b = {0};
    buf_str(&b, "RIFF");
    u(&b, riff, 4);
    buf_str(&b, "WAVEfmt ");
    u(&b, 16, 4);
    u(&b, 1, 2);
    u(&b, 1, 2);
    u(&b, rate, 4);
    u(&b, 2 * rate, 4);
    u(&b, 2, 2);
    u(&b, 16, 2);
    if (list) {
        buf_str(&b, "LIST");
        u(&b, list_size, 4);
        buf_str(&b, "INFOISFT");
        u(&b, 4, 4);
        buf_str(&b, "abcd");
    }
    buf_str(&b, "data");
    u(&b, data, 4);
    for (uint32_t i = 0; i < n; i++)
        u(&b, (uint32_t)(int32_t)(8000 * sin(0.05 * i)), 2);
    return b;
}

static bool never_mind(void *arg, size_t bytes)
{
    *(size_t *)arg = bytes;
    return true;
}

static bool at_most(void *arg, size_t bytes)
{
    return bytes <= *(size_t *)arg;
}

static int try(const void *p, size_t n, double seconds_max, struct aud_mel **out, struct err *e)
{
    size_t held = 0;
    *e = (struct err){0};
    struct sound_limits lim = {.seconds_max = seconds_max, .room = never_mind, .arg = &held};
    *out = aud_mel_new(80);
    if (!*out)
        return ERR_NOMEM;
    int rc = sound_read(*out, p, n, &lim, e);
    assert_true(!rc || (e->code == rc && e->text[0]));
    assert_true(rc || held > 0);
    return rc;
}

static int64_t samples(struct buf b)
{
    struct aud_mel *m;
    struct err e;
    int rc = try(b.p, b.len, 100, &m, &e);
    int64_t n = rc ? rc : m->n_sample;
    aud_mel_free(m);
    buf_free(&b);
    return n;
}

/* Sizes as a pipe leaves them, or worse: what is in the file counts. */
static void test_sizes(void **s)
{
    (void)s;
    uint32_t n = 4000, all = 0xffffffff;
    assert_int_equal(samples(wav(16000, n, 36 + 2 * n, 2 * n, false, 0)), n);
    assert_int_equal(samples(wav(16000, n, all, all, false, 0)), n);
    assert_int_equal(samples(wav(16000, n, all, 0x80000000, false, 0)), n);
    assert_int_equal(samples(wav(16000, n, 0, 0, false, 0)), n);
    assert_int_equal(samples(wav(16000, n, all, all, true, 16)), n);
    assert_int_equal(samples(wav(16000, n, all, all, true, all)), n);
    assert_int_equal(samples(wav(16000, n, all, 2 * n, true, 100000)), n);
    assert_int_equal(samples(wav(16000, n, 36 + n, n, false, 0)), n / 2);
    assert_int_equal(samples(wav(16000, 100, 236, 200, false, 0)), ERR_INVAL); /* too short */
    assert_int_equal(samples(wav(16000, 0, 36, 0, false, 0)), ERR_INVAL);
    assert_int_equal(samples(wav(50, n, 36 + 2 * n, 2 * n, false, 0)), ERR_UNSUPPORTED);
    for (uint32_t rate = 100; rate < 400000; rate = rate * 5 / 2) { /* as long as it was */
        int64_t k = samples(wav(rate, rate / 2, 36 + rate, rate, false, 0));
        assert_true(k > 7900 && k < 8100);
    }
}

static void test_limits(void **s)
{
    (void)s;
    struct buf b = wav(8000, 80000, 160036, 160000, false, 0);
    struct aud_mel *m;
    struct err e;
    assert_int_equal(try(b.p, b.len, 11, &m, &e), 0);
    aud_mel_free(m);
    assert_int_equal(try(b.p, b.len, 5, &m, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "longer than 5 s"));
    assert_true(m->n_sample < 7 * AUD_RATE);
    aud_mel_free(m);
    size_t most = 100000;
    struct sound_limits lim = {.seconds_max = 100, .room = at_most, .arg = &most};
    m = aud_mel_new(80);
    assert_int_equal(sound_read(m, b.p, b.len, &lim, &e), ERR_FULL);
    aud_mel_free(m);
    assert_int_equal(try("", 0, 5, &m, &e), ERR_PARSE);
    aud_mel_free(m);
    buf_free(&b);
}

/* Each file in pieces from its start: an error or a part of it, never worse. */
static void test_cut(void **s)
{
    (void)s;
    static const char *const names[] = {"jfk.flac",
                                        "jfk.mp3",
                                        "jfk.ogg",
                                        "jfk.opus",
                                        "jfk-3s-8k-alaw.wav",
                                        "streamed-size-ffffffff.wav"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        size_t n, whole = 0;
        snprintf(path, sizeof path, SOUND "%s", names[i]);
        char *p = unxz_read(path, &n);
        assert_non_null(p);
        for (size_t k = 1; k < n; k = k * 3 / 2 + 1) {
            struct aud_mel *m;
            struct err e;
            int rc = try(p, k, 100, &m, &e);
            assert_true(!rc || rc == ERR_PARSE || rc == ERR_INVAL || rc == ERR_UNSUPPORTED);
            assert_true(rc || (size_t)m->n_sample >= whole);
            whole = rc ? whole : (size_t)m->n_sample;
            aud_mel_free(m);
        }
        assert_true(whole > 8000);
        free(p);
    }
}

static void test_nomem(void **s)
{
    (void)s;
    struct buf b = wav(8000, 16000, 32036, 32000, false, 0);
    int failed = 0;
    for (long k = 1;; k++) {
        struct aud_mel *m;
        struct err e;
        uint64_t from = mem_count();
        mem_fail_after(k, false);
        int rc = try(b.p, b.len, 100, &m, &e);
        bool hit = mem_count() - from >= (uint64_t)k;
        mem_fail_after(0, false);
        aud_mel_free(m);
        if (!hit)
            break;
        assert_int_equal(rc, ERR_NOMEM);
        failed++;
    }
    assert_true(failed > 5);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_cut), cmocka_unit_test(test_nomem)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
