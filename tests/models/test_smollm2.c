/* The default chat model against the reference implementation. f32: greedy text token by token, and logits.
 * Default precision and int8: top-1 agreement and mean KL divergence. All: the France question, a near tie
 * of 0.1 nats. Memory after loading. Data: tests/data/smollm2/SOURCES. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/engine_run.h"
#include "tests/unxz.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

enum { N_VOCAB = 49152, TEXT_TOK = 64, TOP = 64, N_ROW_MAX = 32, CHAT_TOK_MAX = 192 };

static const char *model;
static struct engine *exact, *fast, *int8; /* f32, default precision, int8 */

static struct engine *open_model(enum eng_precision p)
{
    struct eng_opts o = {.path = model,
                         .device = "cpu",
                         .precision = p,
                         .keep_logits = true,
                         .n_ctx = 1024,
                         .max_logit_rows = CHAT_TOK_MAX};
    return run_open(&o);
}

/* ---- memory ---- */

static size_t resident_bytes(void)
{
    size_t kib = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %zu", &kib) == 1)
            break;
    fclose(f);
    return kib * 1024;
}

/* Packed weights replace the file's pages: about one copy is resident after the load. */
static void test_resident(void **st)
{
    (void)st;
    struct eng_memory mem;
    struct err e = {0};
    struct eng_opts o = {.path = model, .device = "cpu", .n_ctx = 1024};
    size_t before = resident_bytes();
    assert_int_equal(eng_memory_plan(&o, &mem, &e), 0);
    struct engine *g = run_open(&o);
    assert_non_null(g);
    static struct run_seq s;
    int32_t ids[4] = {1, 2, 3, 4};
    run_seq_init(&s, ids, 4, 1);
    run_generate(g, &s, 4, 4);
    size_t after = resident_bytes(), file = mem.file;
    print_message("file %zu MiB, weights %zu MiB, KV %zu MiB, resident %zu MiB (%zu before)\n",
                  file >> 20, mem.weights >> 20, mem.kv >> 20, after >> 20, before >> 20);
#ifndef SANITIZED
    assert_true(after < file + file * 3 / 10 + mem.kv);
    /* KV is not touched before it is used. */
    assert_true(after < file + file * 3 / 10 + ((size_t)16 << 20));
#endif
    eng_close(g);
}

/* ---- greedy text ---- */

static struct run_seq seq[N_ROW_MAX];
static json_t *greedy;

/* All prompts together, each until it has as many tokens as its record. */
static int run_greedy(struct engine *g, json_t *rows, int n_row)
{
    int32_t want[N_ROW_MAX], n[N_ROW_MAX];
    struct run_seq *all[N_ROW_MAX];
    for (int i = 0; i < n_row; i++) {
        int32_t ids[256];
        json_t *p = json_object_get(json_array_get(rows, (size_t)i), "ids");
        int32_t len = (int32_t)json_array_size(p);
        assert_true(len > 0 && len <= 256);
        for (int32_t k = 0; k < len; k++)
            ids[k] = (int32_t)json_integer_value(json_array_get(p, (size_t)k));
        run_seq_init(&seq[i], ids, len, 1 + i * 20);
        want[i] = len + (int32_t)json_array_size(
                            json_object_get(json_array_get(rows, (size_t)i), "greedy"));
    }
    for (;;) {
        int count = 0, rows_left = 512;
        for (int i = 0; i < n_row; i++) {
            int32_t left = seq[i].n_tok - seq[i].n_done;
            if (seq[i].n_tok >= want[i] || left > rows_left)
                continue;
            rows_left -= left;
            n[count] = left;
            all[count++] = &seq[i];
        }
        if (count == 0)
            break;
        run_step(g, all, n, count);
    }
    int equal = 0;
    for (int i = 0; i < n_row; i++) {
        json_t *ids = json_object_get(json_array_get(rows, (size_t)i), "greedy");
        bool same = true;
        for (int32_t k = seq[i].n_prompt; k < want[i]; k++)
            same = same && seq[i].tok[k] == (int32_t)json_integer_value(
                                                json_array_get(ids, (size_t)(k - seq[i].n_prompt)));
        equal += same;
    }
    return equal;
}

static json_t *greedy_rows(void)
{
    if (!greedy) {
        size_t n;
        char *text = unxz_read("tests/data/smollm2/greedy.json.xz", &n);
        assert_non_null(text);
        greedy = json_loadb(text, n, 0, NULL);
        free(text);
        assert_non_null(greedy);
    }
    return json_object_get(greedy, "rows");
}

static void test_greedy_f32(void **st)
{
    (void)st;
    json_t *rows = greedy_rows();
    int n = (int)json_array_size(rows);
    assert_true(n >= 21 && n <= N_ROW_MAX);
    int equal = run_greedy(exact, rows, n);
    print_message("f32: %d of %d greedy texts equal\n", equal, n);
    assert_int_equal(equal, n);
}

/* 37 prompt tokens; the answer is "The capital of France is Paris." and the end of the turn. */
static void test_france(void **st)
{
    (void)st;
    json_t *rows = greedy_rows(), *row = json_array_get(rows, 0);
    assert_string_equal(json_string_value(json_object_get(row, "text")),
                        "The capital of France is Paris.");
    assert_int_equal(json_array_size(json_object_get(row, "ids")), 37);
    assert_int_equal(run_greedy(exact, rows, 1), 1);
    assert_int_equal(run_greedy(fast, rows, 1), 1);
    assert_int_equal(run_greedy(int8, rows, 1), 1);
}

/* ---- given texts ---- */

struct record { /* one position, as recorded */
    float lse, logit[TOP];
    uint16_t id[TOP];
};

static char *teacher;
static size_t teacher_bytes;

static int teacher_open(void)
{
    uint32_t n;
    teacher = unxz_read("tests/data/smollm2/teacher.bin.xz", &teacher_bytes);
    assert_non_null(teacher);
    assert_memory_equal(teacher, "STG1", 4);
    memcpy(&n, teacher + 4, 4);
    assert_int_equal(teacher_bytes, 8 + (size_t)n * (4 + TEXT_TOK * 4 + TEXT_TOK * (4 + TOP * 6)));
    return (int)n;
}

static const char *teacher_text(int text, int32_t *ids)
{
    const char *p = teacher + 8 + (size_t)text * (4 + TEXT_TOK * 4 + TEXT_TOK * (4 + TOP * 6));
    memcpy(ids, p + 4, TEXT_TOK * sizeof *ids);
    return p + 4 + TEXT_TOK * 4;
}

static struct record teacher_record(const char *text, int pos)
{
    struct record r;
    const char *p = text + (size_t)pos * (4 + TOP * 6);
    memcpy(&r.lse, p, 4);
    memcpy(r.logit, p + 4, sizeof r.logit);
    memcpy(r.id, p + 4 + sizeof r.logit, sizeof r.id);
    return r;
}

static double log_sum_exp(const float *l)
{
    float top = l[0];
    for (int i = 1; i < N_VOCAB; i++)
        top = l[i] > top ? l[i] : top;
    double s = 0;
    for (int i = 0; i < N_VOCAB; i++)
        s += (double)expf(l[i] - top);
    return (double)top + log(s);
}

static int argmax(const float *l)
{
    int best = 0;
    for (int i = 1; i < N_VOCAB; i++)
        best = l[i] > l[best] ? i : best;
    return best;
}

/* sum p (log p - log q) over the vocabulary. */
static double kl_full(const float *p, const float *q)
{
    double lp = log_sum_exp(p), lq = log_sum_exp(q), s = 0;
    for (int i = 0; i < N_VOCAB; i++)
        s += (double)expf((float)((double)p[i] - lp)) * (((double)p[i] - lp) - ((double)q[i] - lq));
    return s;
}

/* The same against a record: its best tokens, and all others as one. */
static double kl_record(const struct record *r, const float *q)
{
    double lq = log_sum_exp(q), s = 0, tail_p = 1, tail_q = 1;
    for (int i = 0; i < TOP; i++) {
        double a = (double)r->logit[i] - (double)r->lse, b = (double)q[r->id[i]] - lq;
        s += exp(a) * (a - b);
        tail_p -= exp(a);
        tail_q -= exp(b);
    }
    return tail_p > 1e-6 && tail_q > 1e-6 ? s + tail_p * log(tail_p / tail_q) : s;
}

/* Positions of one kind of text, exact engine against another. */
struct agreement {
    int n, top1;
    double kl;
};
enum { FAST, INT8, N_OTHER };

static float le[(size_t)CHAT_TOK_MAX * N_VOCAB], lf[(size_t)CHAT_TOK_MAX * N_VOCAB];

/* The exact engine's logits stay in le, those of the default precision in lf. */
static void all_run(struct agreement a[N_OTHER], const int32_t *ids, int32_t n)
{
    struct engine *const other[N_OTHER] = {fast, int8};
    run_logits(exact, ids, n, 1, le);
    for (int k = N_OTHER - 1; k >= 0; k--) {
        run_logits(other[k], ids, n, 1, lf);
        for (int32_t i = 0; i < n; i++) {
            const float *x = le + (size_t)i * N_VOCAB, *y = lf + (size_t)i * N_VOCAB;
            a[k].n++;
            a[k].top1 += argmax(x) == argmax(y);
            a[k].kl += kl_full(x, y);
        }
    }
}

static void show(const struct engine *g, const char *what, const struct agreement *a)
{
    print_message("%s: %s: top-1 %d of %d (%.2f %%), mean KL %.3g nats\n", eng_info(g)->backend,
                  what, a->top1, a->n, 100.0 * a->top1 / a->n, a->kl / a->n);
}

/* Texts without a chat template: f32 against the record, then the default precision against both. */
static void texts_compare(struct agreement a[N_OTHER])
{
    int exact_top1 = 0, n_text = teacher_open();
    double worst = 0, kl = 0;
    for (int t = 0; t < n_text; t++) {
        int32_t ids[TEXT_TOK];
        const char *text = teacher_text(t, ids);
        all_run(a, ids, TEXT_TOK);
        for (int i = 0; i < TEXT_TOK; i++) {
            struct record r = teacher_record(text, i);
            const float *x = le + (size_t)i * N_VOCAB;
            for (int k = 0; k < TOP; k++)
                worst = fmax(worst, fabs((double)(x[r.id[k]] - r.logit[k])));
            exact_top1 += argmax(x) == r.id[0];
            kl += kl_record(&r, lf + (size_t)i * N_VOCAB);
        }
    }
    free(teacher);
    print_message("f32: top-1 %d of %d, largest difference of a logit %.2g\n", exact_top1, a->n,
                  worst);
    print_message("default against the record: mean KL %.3g nats\n", kl / a->n);
    assert_true(a->n >= 1000);
    assert_true(worst < 2e-3);
    assert_int_equal(exact_top1, a->n);
    assert_true(kl / a->n <= 5e-4);
}

/* The recorded chats, prompt and answer. */
static void chats_compare(struct agreement a[N_OTHER])
{
    json_t *rows = greedy_rows();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        int32_t ids[CHAT_TOK_MAX], n = 0;
        json_t *part[2] = {json_object_get(json_array_get(rows, i), "ids"),
                           json_object_get(json_array_get(rows, i), "greedy")};
        for (int k = 0; k < 2; k++)
            for (size_t t = 0; t < json_array_size(part[k]) && n < CHAT_TOK_MAX; t++)
                ids[n++] = (int32_t)json_integer_value(json_array_get(part[k], t));
        all_run(a, ids, n);
    }
}

static void check(const struct engine *g, const struct agreement *t, const struct agreement *c,
                  double top1, double kl)
{
    struct agreement all = {t->n + c->n, t->top1 + c->top1, t->kl + c->kl};
    show(g, "texts", t);
    show(g, "chats", c);
    show(g, "all", &all);
    assert_true(all.top1 >= all.n * top1);
    assert_true(t->kl / t->n <= kl);
    assert_true(c->kl / c->n <= kl);
}

static void test_precision(void **st)
{
    (void)st;
    struct agreement t[N_OTHER] = {{0}}, c[N_OTHER] = {{0}};
    assert_non_null(strstr(eng_info(int8)->backend, "int8"));
    texts_compare(t);
    chats_compare(c);
    check(fast, &t[FAST], &c[FAST], 0.995, 5e-4);
    check(int8, &t[INT8], &c[INT8], 0.99, 2e-3);
}

static int setup(void **st)
{
    (void)st;
    exact = open_model(PRECISION_F32);
    fast = open_model(PRECISION_DEFAULT);
    int8 = open_model(PRECISION_INT8);
    return exact && fast && int8 ? 0 : -1;
}

static int teardown(void **st)
{
    (void)st;
    eng_close(exact);
    eng_close(fast);
    eng_close(int8);
    json_decref(greedy);
    return 0;
}

int main(void)
{
    const struct CMUnitTest alone[] = {cmocka_unit_test(test_resident)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_france),
        cmocka_unit_test(test_greedy_f32),
        cmocka_unit_test(test_precision),
    };
    size_t n_test = sizeof tests / sizeof *tests;
    model = run_model_path(4);
    if (!model)
        return 77;
    int failed = cmocka_run_group_tests(alone, NULL, NULL);
#ifdef SANITIZED
    n_test = 1;
    print_message("skipped: the long comparisons take half an hour in a sanitizer build\n");
#endif
    return failed + _cmocka_run_group_tests("smollm2", tests, n_test, setup, teardown);
}
