/* Real language models against the reference implementation (tests/data/real/SOURCES): token ids, the best logits of
 * every position, log-likelihood of the prompts, greedy texts, in f32 and in the default precision. A model whose file is
 * not in $STEPD_MODELS is skipped, and said and counted. With arguments: those models only. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/load/gguf.h"
#include "engine/text/tokenizer.h"
#include "tests/engine_run.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

enum { IDS_MAX = 64, TOP = 5, N_GREEDY = 24 };

static const struct real_model {
    const char *name, *file; /* of conf/models.ini; the record is named as the file */
    const char *arch;
    const char *prompt, *answer; /* instead of a record: what a greedy answer must hold */
} models[] = {{"smollm2-135m", "smollm2-135m-instruct-q4_1", "llama", NULL, NULL},
              {"gemma3-270m", "gemma3-270m-q4_k_m", "gemma3", NULL, NULL},
              {"qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-q4_k_m", "qwen2", NULL, NULL},
              {"qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b-q4_k_m", "qwen2",
               "The capital of France is", "Paris"}};
enum { N_MODEL = sizeof models / sizeof *models };

/* What a precision must hold. A greedy token is compared while the record's best logit leads by more than `margin`. */
static const struct bounds {
    enum eng_precision precision;
    const char *name;
    double logit, lse, nll, margin;
} bounds[] = {{PRECISION_F32, "f32", 2e-3, 2e-3, 1e-3, 0},
              {PRECISION_DEFAULT, "default", 0.6, 0.5, 1e-2, 0.25}};

/* What was seen, over all prompts of one model and precision. */
struct seen {
    double logit, lse, nll_got, nll_want;
    int n_pos, n_top1, n_greedy, n_near;
};

static char dir[1024];

static void model_path(const struct real_model *m, char *out, size_t size)
{
    snprintf(out, size, "%s/%s.gguf", dir, m->file);
}

static int32_t ids_of(json_t *row, const char *key, int32_t *ids)
{
    json_t *v = json_object_get(row, key);
    size_t n = json_array_size(v);
    assert_true(n > 0 && n <= IDS_MAX);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(v, i));
    return (int32_t)n;
}

static double number_at(json_t *array, int32_t i)
{
    json_t *v = json_array_get(array, (size_t)i);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static double log_sum_exp(const float *l, int32_t n)
{
    double s = 0;
    float top = l[0];
    for (int32_t i = 1; i < n; i++)
        top = l[i] > top ? l[i] : top;
    for (int32_t i = 0; i < n; i++)
        s += exp((double)(l[i] - top));
    return (double)top + log(s);
}

static int32_t argmax(const float *l, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = l[i] > l[best] ? i : best;
    return best;
}

/* Every position of the prompt: its best logits, their logsumexp, the next token's share. */
static void check_prompt(struct engine *g, json_t *row, const int32_t *ids, int32_t n,
                         struct seen *s)
{
    int32_t n_vocab = eng_info(g)->n_vocab;
    float *l = calloc((size_t)n * (size_t)n_vocab, sizeof *l);
    json_t *all = json_object_get(row, "positions"), *nll = json_object_get(row, "prompt_nll");
    assert_non_null(l);
    assert_int_equal(json_array_size(all), n);
    run_logits(g, ids, n, 1, l);
    for (int32_t i = 0; i < n; i++) {
        const float *x = l + (size_t)i * (size_t)n_vocab;
        json_t *p = json_array_get(all, (size_t)i), *top = json_object_get(p, "top_ids");
        double lse = log_sum_exp(x, n_vocab);
        for (int32_t k = 0; k < TOP; k++) {
            int32_t id = (int32_t)number_at(top, k);
            assert_true(id >= 0 && id < n_vocab);
            double d = fabs((double)x[id] - number_at(json_object_get(p, "top_logits"), k));
            s->logit = d <= s->logit ? s->logit : d; /* NaN counts as worst */
        }
        s->lse = fmax(s->lse, fabs(lse - json_number_value(json_object_get(p, "logsumexp"))));
        s->n_pos++;
        s->n_top1 += argmax(x, n_vocab) == (int32_t)number_at(top, 0);
        if (i + 1 < n) {
            s->nll_got += lse - (double)x[ids[i + 1]];
            s->nll_want += number_at(nll, i);
        }
    }
    free(l);
}

/* Decoding token by token; up to the first token that the record itself holds for a near tie. */
static void check_greedy(struct engine *g, json_t *row, const int32_t *ids, int32_t n,
                         const struct bounds *b, struct seen *s)
{
    static struct run_seq seq;
    int32_t want[IDS_MAX];
    json_t *margin = json_object_get(row, "greedy_margins");
    assert_int_equal(ids_of(row, "greedy_ids", want), N_GREEDY);
    run_seq_init(&seq, ids, n, 1);
    run_generate(g, &seq, 64, N_GREEDY);
    for (int32_t i = 0; i < N_GREEDY; i++) {
        bool same = seq.tok[n + i] == want[i], sure = number_at(margin, i) > b->margin;
        if (!same && !sure)
            break;
        if (!same)
            fail_msg("%s: greedy token %d is %d, expected %d (ahead by %g)",
                     json_string_value(json_object_get(row, "text")), i, seq.tok[n + i], want[i],
                     number_at(margin, i));
        s->n_greedy++;
        s->n_near += !sure;
    }
}

static void check_precision(const struct real_model *m, json_t *rows, const struct bounds *b)
{
    char path[1200];
    struct seen s = {0};
    model_path(m, path, sizeof path);
    struct eng_opts o = {.path = path,
                         .device = "cpu",
                         .precision = b->precision,
                         .keep_logits = true,
                         .n_ctx = 256,
                         .max_rows = 64,
                         .max_logit_rows = 64,
                         .max_seqs = 4};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    assert_string_equal(eng_info(g)->arch, m->arch);
    size_t n_row = json_array_size(rows);
    for (size_t r = 0; r < n_row; r++) {
        int32_t ids[IDS_MAX];
        json_t *row = json_array_get(rows, r);
        int32_t n = ids_of(row, "ids", ids);
        check_prompt(g, row, ids, n, &s);
        check_greedy(g, row, ids, n, b, &s);
    }
    double nll = fabs(s.nll_got / s.nll_want - 1);
    print_message("%s, %s (%s): top-1 %d of %d, largest difference of a logit %.2g and of a "
                  "logsumexp %.2g;\n  log-likelihood of the prompts %.3f, recorded %.3f (%.3f %%); "
                  "greedy %d of %zu tokens equal, %d of them near ties\n",
                  m->name, b->name, eng_info(g)->backend, s.n_top1, s.n_pos, s.logit, s.lse,
                  -s.nll_got, -s.nll_want, 100 * nll, s.n_greedy, n_row * N_GREEDY, s.n_near);
    eng_close(g);
    assert_true(s.logit < b->logit && s.lse < b->lse && nll < b->nll);
    if (b->margin == 0)
        assert_int_equal(s.n_greedy, n_row * N_GREEDY);
    else /* near ties are few: most of every text was compared */
        assert_true((size_t)s.n_greedy * 2 > n_row * N_GREEDY);
}

/* The file's tokenizer gives the reference's ids. */
static void check_tokens(const struct real_model *m, json_t *rows)
{
    char path[1200];
    struct gguf *f = NULL;
    struct tokenizer *t = NULL;
    struct err e = {0};
    model_path(m, path, sizeof path);
    if (gguf_open(&f, path, &e) || tok_open_gguf(&t, f, &e))
        fail_msg("%s", e.text);
    for (size_t r = 0; r < json_array_size(rows); r++) {
        struct tok_ids got = {0};
        int32_t ids[IDS_MAX];
        json_t *row = json_array_get(rows, r);
        const char *text = json_string_value(json_object_get(row, "text"));
        int32_t n = ids_of(row, "ids", ids);
        assert_int_equal(tok_encode(t, text, strlen(text), TOK_SPECIAL | TOK_BOS_EOS, &got), 0);
        assert_int_equal(got.n, n);
        assert_memory_equal(got.id, ids, (size_t)n * sizeof *ids);
        tok_ids_free(&got);
    }
    tok_close(t);
    gguf_close(f);
}

/* A model that is too large for a record: it opens, and answers. */
static void check_answer(const struct real_model *m)
{
    static struct run_seq seq;
    char path[1200];
    struct gguf *f = NULL;
    struct tokenizer *t = NULL;
    struct err e = {0};
    struct tok_ids ids = {0};
    struct buf text = {0};
    model_path(m, path, sizeof path);
    if (gguf_open(&f, path, &e) || tok_open_gguf(&t, f, &e))
        fail_msg("%s", e.text);
    assert_int_equal(tok_encode(t, m->prompt, strlen(m->prompt), TOK_SPECIAL | TOK_BOS_EOS, &ids),
                     0);
    struct eng_opts o = {
        .path = path, .device = "cpu", .n_ctx = 128, .max_rows = 64, .max_seqs = 2};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    assert_string_equal(eng_info(g)->arch, m->arch);
    run_seq_init(&seq, ids.id, (int32_t)ids.n, 1);
    run_generate(g, &seq, 64, 12);
    assert_int_equal(tok_decode(t, seq.tok + ids.n, 12, false, &text), 0);
    print_message("%s (%s): %s%s\n", m->name, eng_info(g)->backend, m->prompt, buf_cstr(&text));
    if (!strstr(buf_cstr(&text), m->answer))
        fail_msg("'%s' without '%s'", buf_cstr(&text), m->answer);
    eng_close(g);
    buf_free(&text);
    tok_ids_free(&ids);
    tok_close(t);
    gguf_close(f);
}

static void test_model(void **st)
{
    const struct real_model *m = *st;
    if (m->prompt) {
        check_answer(m);
        return;
    }
    char path[128];
    json_error_t why;
    snprintf(path, sizeof path, "tests/data/real/%s.json", m->file);
    json_t *gold = json_load_file(path, 0, &why);
    if (!gold)
        fail_msg("%s: %s", path, why.text);
    json_t *rows = json_object_get(gold, "rows");
    assert_true(json_array_size(rows) >= 6);
    check_tokens(m, rows);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        check_precision(m, rows, &bounds[i]);
    json_decref(gold);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_MODEL];
    size_t n = 0;
    int n_skip = 0;
    const char *given = getenv("STEPD_MODELS");
    snprintf(dir, sizeof dir, "%s", given && given[0] ? given : "models");
    for (int i = 0; i < N_MODEL; i++) {
        char path[1200];
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted = wanted || !strcmp(argv[k], models[i].name);
        if (!wanted)
            continue;
        model_path(&models[i], path, sizeof path);
        if (SANITIZED) {
            printf("skipped: %s takes minutes in a sanitizer build\n", models[i].name);
            n_skip++;
            continue;
        }
        if (access(path, R_OK) == 0) {
            tests[n++] = (struct CMUnitTest){.name = models[i].name,
                                             .test_func = test_model,
                                             .initial_state = (void *)(uintptr_t)&models[i]};
            continue;
        }
        printf("skipped: %s is not there (`stepd pull %s` fetches it)\n", path, models[i].name);
        n_skip++;
    }
    if (n_skip)
        printf("0 passed, 0 failed, %d skipped\n", n_skip);
    if (n == 0)
        return n_skip ? 77 : 1;
    return _cmocka_run_group_tests("real", tests, n, NULL, NULL);
}
