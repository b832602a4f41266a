/* Jobs of recordings through the engine's door: windows, fallback, languages, words, company, cancelling, want of memory. The
 * tiny model says nonsense, but the same nonsense each time; whisper-tiny.en, where it is pulled, says what transformers
 * does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <jansson.h>
#include <sndfile.h>

#include "engine/audio/align.h"
#include "engine/audio/model.h"
#include "engine/base/mem.h"
#include "tests/golden.h"
#include "tests/tree.h"

#define DATA "tests/data/audio/"

static char dir[TREE_PATH];

static struct engine *open_model(const char *path, enum eng_precision p)
{
    struct engine *g = NULL;
    struct err e = {0};
    assert_true(eng_path_is_audio(path));
    assert_false(eng_path_is_image(path));
    assert_false(eng_path_is_encoder(path));
    if (eng_open(&g,
                 &(struct eng_opts){
                     .path = path, .device = "cpu", .n_threads = 2, .no_pin = true, .precision = p},
                 &e))
        fail_msg("%s", e.text);
    return g;
}

static struct engine *open_tiny(void)
{
    return open_model(tree_path(dir, "m"), PRECISION_F32);
}

/* A tone that moves, different for each `seed`. */
static struct aud_mel *sound(double seconds, int seed)
{
    size_t n = (size_t)(seconds * AUD_RATE);
    float *pcm = xmalloc((n + 1) * sizeof *pcm);
    for (size_t i = 0; i < n; i++) {
        double t = (double)i / AUD_RATE;
        pcm[i] = (float)(0.4 * sin(2 * M_PI * (150 + 90 * seed + 120 * t) * t) +
                         0.2 * sin(900.0 * (seed + 1) * t) * (fmod(t, 0.8) > 0.4));
    }
    struct aud_mel *m = aud_mel_new(80);
    assert_int_equal(aud_mel_add(m, pcm, n), 0);
    assert_int_equal(aud_mel_finish(m), 0);
    free(pcm);
    return m;
}

static struct aud_params params(const struct aud_mel *mel)
{
    return (struct aud_params){.mel = mel,
                               .language = -1,
                               .n_heat = 1,
                               .compression_max = 100,
                               .logprob_min = -100,
                               .no_speech_min = 2};
}

/* What a job said, as text. */
static void note(struct buf *b, struct aud_piece *p)
{
    for (int i = 0; p && i < p->n; i++) {
        const struct aud_segment *s = &p->seg[i];
        buf_fmt(b, "%s %lld %.2f-%.2f heat %.1f avg %.9g zip %.9g none %.9g:",
                aud_language_code(p->language), (long long)s->seek, s->start, s->end,
                (double)s->heat, (double)s->avg_logprob, (double)s->compression,
                (double)s->no_speech);
        for (int k = 0; k < s->n_tok; k++)
            buf_fmt(b, " %d", s->tok[k]);
        for (int k = 0; k < s->n_word; k++)
            buf_fmt(b, " [%.2f %.2f]", s->word[k].start, s->word[k].end);
        buf_char(b, '\n');
    }
    aud_piece_free(p);
}

static void step(struct engine *g, struct aud_job **j, int n)
{
    struct err e = {0};
    if (eng_audio_step(g, j, n, NULL, &e))
        fail_msg("%s", e.text);
}

static struct aud_job *job(struct engine *g, const struct aud_params *p)
{
    struct aud_job *j = NULL;
    struct err e = {0};
    if (aud_job_open(g, p, &j, &e))
        fail_msg("%s", e.text);
    return j;
}

static void run_alone(struct engine *g, const struct aud_params *p, struct buf *out)
{
    struct aud_job *j = job(g, p);
    int steps = 0;
    for (; aud_job_stage(j) < AUD_DONE; steps++) {
        assert_true(steps < 4000);
        step(g, &j, 1);
        note(out, aud_job_take(j));
    }
    assert_int_equal(aud_job_stage(j), AUD_DONE);
    assert_int_equal(aud_job_seek(j), p->mel->n_frame);
    aud_job_close(g, j);
}

/* Windows follow each other to the end; segments are in order of time. */
static void test_windows(void **s)
{
    (void)s;
    struct engine *g = open_tiny();
    const struct eng_audio_info *i = eng_info(g)->audio;
    assert_int_equal(i->n_frame, 200);
    assert_int_equal(i->n_mel, 80);
    assert_int_equal(i->n_slot, 4);
    assert_true(i->multilingual && i->words && i->language[0] && !i->language[3]);
    struct aud_mel *mel = sound(7.3, 1);
    struct aud_params p = params(mel);
    struct buf a = {0}, b = {0};
    run_alone(g, &p, &a);
    run_alone(g, &p, &b);
    assert_string_equal(buf_cstr(&a), buf_cstr(&b));
    long long seek = -1, before = -1;
    int n = 0;
    for (const char *at = buf_cstr(&a); *at; at = strchr(at, '\n') + 1, n++) {
        double from, to;
        assert_int_equal(sscanf(at, "%*s %lld %lf-%lf", &seek, &from, &to), 3);
        assert_true(n || seek == 0);
        assert_true(seek >= before && from >= (double)seek / 100 - 0.006 && to >= from);
        assert_true(to <= (double)(seek + 490) / 100 + 0.006);
        before = seek;
    }
    assert_true(n > 3 && seek > 400);
    buf_free(&a);
    buf_free(&b);
    aud_mel_free(mel);
    eng_close(g);
}

/* Four recordings with all kinds of wishes: what each says alone, and while the others come and go. */
static void test_company(void **s)
{
    (void)s;
    static const double length[4] = {5.1, 1.2, 3.9, 2.0};
    static const int32_t prompt[3] = {72, 105, 33};
    struct engine *g = open_tiny();
    struct aud_mel *mel[4];
    struct aud_params p[4];
    struct aud_job *j[4] = {NULL};
    struct buf alone[4] = {{0}}, both[4] = {{0}};
    for (int k = 0; k < 4; k++) {
        mel[k] = sound(length[k], k);
        p[k] = params(mel[k]);
        run_alone(g, &p[k], &alone[k]);
        buf_free(&alone[k]);
    }
    p[0].words = true;
    p[1].language = 2;
    p[1].prompt = prompt;
    p[1].n_prompt = 3;
    p[2].heat[0] = 0.8f;
    p[2].seed = 5;
    p[3].translate = true;
    p[3].no_history = true;
    for (int k = 0; k < 4; k++)
        run_alone(g, &p[k], &alone[k]);
    int left = 4, turn = 0;
    for (; left; turn++) {
        struct aud_job *list[4];
        int n = 0;
        if (turn % 5 == 0 && turn / 5 < 4)
            j[turn / 5] = job(g, &p[turn / 5]);
        for (int k = 0; k < 4; k++)
            if (j[k] && aud_job_stage(j[k]) != AUD_DECODE)
                step(g, &j[k], 1);
        for (int k = 3; k >= 0; k--)
            if (j[k] && aud_job_stage(j[k]) == AUD_DECODE)
                list[n++] = j[k];
        if (n)
            step(g, list, n);
        for (int k = 0; k < 4; k++) {
            if (!j[k])
                continue;
            note(&both[k], aud_job_take(j[k]));
            if (aud_job_stage(j[k]) == AUD_DONE) {
                aud_job_close(g, j[k]);
                j[k] = NULL;
                left--;
            }
        }
        assert_true(turn < 4000);
    }
    for (int k = 0; k < 4; k++) {
        assert_true(alone[k].len > 20);
        assert_string_equal(buf_cstr(&alone[k]), buf_cstr(&both[k]));
        for (int i = 0; i < k; i++)
            assert_string_not_equal(buf_cstr(&alone[k]), buf_cstr(&alone[i]));
        buf_free(&alone[k]);
        buf_free(&both[k]);
        aud_mel_free(mel[k]);
    }
    eng_close(g);
}

/* A bound that no text meets: every temperature is tried, the last one stays. */
static void test_fallback(void **s)
{
    (void)s;
    struct engine *g = open_tiny();
    struct aud_mel *mel = sound(2.0, 2);
    struct aud_params p = params(mel);
    p.n_heat = 3;
    p.heat[1] = 0.4f;
    p.heat[2] = 0.9f;
    p.logprob_min = 1;
    struct aud_job *j = job(g, &p);
    while (aud_job_stage(j) < AUD_DONE)
        step(g, &j, 1);
    struct aud_piece *q = aud_job_take(j);
    assert_true(q->n > 0 && q->seg[0].heat > 0.89f && q->seg[0].avg_logprob < 0);
    assert_int_equal(aud_job_retries(j), 2);
    assert_int_equal(aud_job_retries(j), 0);
    aud_piece_free(q);
    aud_job_close(g, j);
    p.no_speech_min = -1; /* silence: one attempt, no text */
    j = job(g, &p);
    while (aud_job_stage(j) < AUD_DONE)
        step(g, &j, 1);
    q = aud_job_take(j);
    assert_int_equal(q->n, 0);
    assert_int_equal(aud_job_retries(j), 0);
    aud_piece_free(q);
    aud_job_close(g, j);
    aud_mel_free(mel);
    eng_close(g);
}

static void expect_bad(struct engine *g, const struct aud_params *p, int code, const char *part)
{
    struct aud_job *j;
    struct err e = {0};
    int rc = aud_job_open(g, p, &j, &e);
    if (rc != code || !strstr(e.text, part))
        fail_msg("%d: %s; expected %d, '%s'", rc, e.text, code, part);
}

static void test_bad(void **s)
{
    (void)s;
    struct engine *g = open_tiny();
    struct aud_mel *mel = sound(1, 1), *raw = aud_mel_new(80), *wide = aud_mel_new(128);
    aud_mel_finish(wide);
    int32_t time = 300;
    struct aud_params p = params(NULL), ok = params(mel);
    expect_bad(g, &p, ERR_INVAL, "80 bands");
    p = params(raw);
    expect_bad(g, &p, ERR_INVAL, "80 bands");
    p = params(wide);
    expect_bad(g, &p, ERR_INVAL, "80 bands");
    p = ok;
    p.language = 5;
    expect_bad(g, &p, ERR_INVAL, "language");
    p = ok;
    p.n_heat = 0;
    expect_bad(g, &p, ERR_INVAL, "temperature");
    p = ok;
    p.heat[0] = NAN;
    expect_bad(g, &p, ERR_INVAL, "temperature");
    p = ok;
    p.prompt = &time;
    p.n_prompt = 1;
    expect_bad(g, &p, ERR_INVAL, "prompt");
    struct aud_job *j[4];
    struct err e = {0};
    for (int k = 0; k < 4; k++)
        j[k] = job(g, &ok);
    expect_bad(g, &ok, ERR_AGAIN, "slots");
    assert_int_equal(eng_audio_step(g, j, 2, NULL, &e), ERR_INVAL); /* windows come one by one */
    for (int k = 0; k < 4; k++)
        aud_job_close(g, j[k]);
    aud_mel_free(mel);
    aud_mel_free(raw);
    aud_mel_free(wide);
    eng_close(g);
}

static int stop_at;
static int countdown(void *arg)
{
    (void)arg;
    return --stop_at <= 0;
}

/* A step that was given up leaves its job as it was. */
static void test_cancel(void **s)
{
    (void)s;
    struct engine *g = open_tiny();
    struct aud_mel *mel = sound(3, 3);
    struct aud_params p = params(mel);
    struct buf want = {0}, got = {0};
    struct err e = {0};
    p.words = true;
    run_alone(g, &p, &want);
    struct aud_job *j = job(g, &p);
    for (int k = 0; aud_job_stage(j) < AUD_DONE; k++) {
        stop_at = 1 + k % 7;
        int rc = eng_audio_step(g, &j, 1, &(struct img_yield){.fn = countdown}, &e);
        assert_int_equal(rc, ERR_CANCELLED);
        step(g, &j, 1);
        note(&got, aud_job_take(j));
    }
    assert_string_equal(buf_cstr(&want), buf_cstr(&got));
    buf_free(&want);
    buf_free(&got);
    aud_job_close(g, j);
    aud_mel_free(mel);
    eng_close(g);
}

/* Every allocation of a job fails once: an error or a failed job, and afterwards all goes on. */
static void test_nomem(void **s)
{
    (void)s;
    struct engine *g = open_tiny();
    struct aud_mel *mel = sound(1.5, 3);
    struct aud_params p = params(mel);
    struct buf want = {0}, got = {0};
    struct err e = {0};
    p.words = true;
    run_alone(g, &p, &want);
    int failed = 0, k = 1;
    for (bool hit = true; hit; k++) {
        struct aud_job *j = NULL;
        int rc = 0;
        mem_fail_after(k, false);
        uint64_t from = mem_count();
        rc = aud_job_open(g, &p, &j, &e);
        while (!rc && aud_job_stage(j) < AUD_DONE)
            rc = eng_audio_step(g, &j, 1, NULL, &e);
        hit = mem_count() - from >= (uint64_t)k;
        mem_fail_after(0, false);
        if (rc || aud_job_stage(j) == AUD_FAILED) {
            assert_true(!rc || rc == ERR_NOMEM);
            failed++;
        }
        aud_job_close(g, j);
        assert_true(k < 500);
    }
    assert_true(failed > 10);
    run_alone(g, &p, &got);
    assert_string_equal(buf_cstr(&want), buf_cstr(&got));
    buf_free(&want);
    buf_free(&got);
    aud_mel_free(mel);
    eng_close(g);
}

/* ---- rules ---- */

static void test_rules(void **s)
{
    (void)s;
    uint8_t ban[20] = {[3] = AUD_BAN_ALWAYS, [4] = AUD_BAN_FIRST};
    struct aud_tokens t = {
        .eot = 5, .first_time = 10, .n_vocab = 20, .first_time_max = 3, .ban = ban};
    float flat[20], z[20];
    for (int i = 0; i < 20; i++)
        flat[i] = -(float)i;
#define NEXT(n, ...)                                                                               \
    (memcpy(z, flat, sizeof z), aud_pick_next(&t, z, (int32_t[]){__VA_ARGS__}, n, 0, 0))
    flat[19] = 5;
    assert_int_equal(NEXT(0, 0).token, 10); /* a time first, and a small one */
    flat[13] = 6;
    assert_int_equal(NEXT(0, 0).token, 13);
    flat[13] = -13;
    flat[19] = -19;
    assert_int_equal(NEXT(1, 12).token, 0);    /* text after the time that opens */
    assert_int_equal(NEXT(2, 12, 1).token, 0); /* text is likelier than all times together */
    flat[17] = 0.5f;
    assert_int_equal(NEXT(2, 12, 1).token, 17); /* or not */
    flat[11] = 9;
    assert_int_equal(NEXT(2, 12, 1).token, 17);     /* time does not go back */
    assert_int_equal(NEXT(3, 12, 1, 17).token, 17); /* the partner of a time that closes */
    flat[17] = -17;
    flat[5] = 8;
    assert_int_equal(NEXT(3, 12, 1, 17).token, 5); /* or the end */
    assert_int_equal(NEXT(4, 12, 1, 17, 17).token, 5);
    flat[5] = -5;
    flat[3] = 9;
    assert_int_equal(NEXT(1, 12).token, 0); /* banned */
    /* drawn: u walks through the probabilities */
    for (int i = 0; i < 20; i++)
        flat[i] = -INFINITY;
    flat[0] = logf(1);
    flat[1] = logf(3);
    int n0 = 0;
    for (int u = 0; u < 1000; u++) {
        memcpy(z, flat, sizeof z);
        n0 += aud_pick_next(&t, z, (int32_t[]){12, 1}, 2, 1, u / 1000.0).token == 0;
    }
    assert_int_equal(n0, 250);
    assert_true(fabsf(aud_prob(flat, 20, 1) - 0.75f) < 1e-6f);
    assert_true(aud_prob(flat, 20, -1) == 0);
}

static void test_align(void **s)
{
    (void)s;
    /* three rows whose attention lies in steps */
    static const int at[10] = {0, 0, 0, 1, 1, 1, 1, 2, 2, 2};
    float m[30];
    int32_t first[3];
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 10; c++)
            m[r * 10 + c] = at[c] == r ? 1 : -1;
    assert_int_equal(align_path(m, 3, 10, first), 0);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[1], 3);
    assert_int_equal(first[2], 7);
    float one = 1;
    assert_int_equal(align_path(&one, 1, 1, first), 0);
    mem_fail_after(1, false);
    assert_int_equal(align_path(m, 3, 10, first), ERR_NOMEM);
    mem_fail_after(0, false);
}

static void test_languages(void **s)
{
    (void)s;
    assert_int_equal(aud_language_find("en", 2), 0);
    assert_int_equal(aud_language_find("German", 6), 2);
    assert_int_equal(aud_language_find("yue", 3), 99);
    assert_int_equal(aud_language_find("xx", 2), -1);
    assert_int_equal(aud_language_find("", 0), -1);
    assert_string_equal(aud_language_name(7), "japanese");
}

/* ---- the real model ---- */

static float *read_jfk(size_t *n)
{
    SF_INFO info = {0};
    SNDFILE *f = sf_open(DATA "sound/jfk.wav", SFM_READ, &info);
    assert_non_null(f);
    float *pcm = xmalloc((size_t)info.frames * sizeof *pcm);
    *n = (size_t)sf_readf_float(f, pcm, info.frames);
    sf_close(f);
    return pcm;
}

/* The golden's segments: times and tokens, in one text. */
static char *golden_text(json_t *list)
{
    struct buf b = {0};
    size_t i, k, n;
    json_t *x, *t;
    json_array_foreach(list, i, x)
    {
        buf_fmt(&b, "%.2f-%.2f", json_number_value(json_object_get(x, "start")),
                json_number_value(json_object_get(x, "end")));
        /* where a window is cut, transformers keeps the time that opens what was cut off */
        json_t *tok = json_object_get(x, "tokens");
        k = json_array_size(tok);
        if (k > 2 && json_equal(json_array_get(tok, k - 1), json_array_get(tok, k - 2)))
            json_array_remove(tok, k - 1);
        json_array_foreach(tok, k, t) buf_fmt(&b, " %lld", (long long)json_integer_value(t));
        buf_char(&b, '\n');
    }
    return buf_take(&b, &n);
}

static void check_real(struct engine *g, json_t *golden, const char *name, int times)
{
    size_t n, k;
    float *pcm = read_jfk(&n), gap[8000] = {0};
    struct aud_mel *mel = aud_mel_new(80);
    for (int i = 0; i < times; i++) {
        assert_int_equal(aud_mel_add(mel, pcm, n), 0);
        if (times > 1)
            assert_int_equal(aud_mel_add(mel, gap, 8000), 0);
    }
    assert_int_equal(aud_mel_finish(mel), 0);
    struct aud_params p = params(mel);
    struct buf b = {0};
    struct aud_job *j = job(g, &p);
    while (aud_job_stage(j) < AUD_DONE) {
        step(g, &j, 1);
        struct aud_piece *q = aud_job_take(j);
        for (int i = 0; q && i < q->n; i++) {
            buf_fmt(&b, "%.2f-%.2f", q->seg[i].start, q->seg[i].end);
            for (int t = 0; t < q->seg[i].n_tok; t++)
                buf_fmt(&b, " %d", q->seg[i].tok[t]);
            buf_char(&b, '\n');
        }
        aud_piece_free(q);
    }
    char *want = golden_text(json_object_get(golden, name));
    assert_string_equal(buf_cstr(&b), want);
    k = strlen(want);
    assert_true(k > 50);
    aud_job_close(g, j);
    aud_mel_free(mel);
    buf_free(&b);
    free(want);
    free(pcm);
}

static void test_real(void **s)
{
    static const char *const names[] = {"whisper-tiny.en", "whisper-base"};
    const char *models = getenv("STEPD_MODELS");
    int n = 0;
    (void)s;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("SKIP whisper-tiny.en: minutes under a sanitizer\n");
    skip();
#endif
    for (int i = 0; i < 2; i++) {
        char path[600], file[200];
        snprintf(path, sizeof path, "%s/%s", models ? models : "models", names[i]);
        snprintf(file, sizeof file, DATA "real-%s.json", names[i]);
        if (access(path, R_OK)) {
            print_message("SKIP %s: not here (stepd pull %s)\n", path, names[i]);
            continue;
        }
        json_t *golden = json_load_file(file, 0, NULL);
        assert_non_null(golden);
        struct engine *g = open_model(path, PRECISION_F32);
        check_real(g, golden, "jfk", 1);
        check_real(g, golden, "jfk6", 6);
        eng_close(g);
        json_decref(golden);
        n++;
    }
    if (!n)
        skip();
}

static int setup(void **s)
{
    (void)s;
    tree_make(dir);
    tree_copy(DATA "tiny", tree_path(dir, "m"));
    return 0;
}

static int teardown(void **s)
{
    (void)s;
    tree_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),   cmocka_unit_test(test_company),
        cmocka_unit_test(test_fallback),  cmocka_unit_test(test_bad),
        cmocka_unit_test(test_cancel),    cmocka_unit_test(test_nomem),
        cmocka_unit_test(test_rules),     cmocka_unit_test(test_align),
        cmocka_unit_test(test_languages), cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
