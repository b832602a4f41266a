/* Damaged models of every kind that can be opened: cut at every hundredth, thousands of mutants of their headers,
 * configurations with every value replaced. Each ends in a served step or in an error that says where the fault is; never
 * in a signal, a hang, or more memory than the file gives reason for. CORRUPT=all: ten thousand mutants a format, every
 * configuration. CORRUPT_SAY=1 prints every outcome; "test_corrupt KIND [CASE]" runs one kind (from that case on). */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "tests/bad_gguf.h"
#include "tests/corrupt.h"
#include "tests/mutate.h"
#include "tests/tree.h"
#include "tests/unxz.h"

#define FOLDERS "tests/data/folders"
#define GGUFS   "tests/data/gguf-tiny/"
#define NAMES   256

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW      10
#define CUT_EVERY 5 /* of a hundred */
#else
#define SLOW      1
#define CUT_EVERY 1
#endif

static char root[TREE_PATH];

/* What is done to one file of a model; n: of 10,000 mutants, how many are this file's. */
struct part {
    const char *file;
    enum mutate_kind kind;
    int n;
    size_t head;
};
struct kind {
    const char *name, *from; /* a folder of test data, or a file */
    void (*prepare)(const char *dir);
    bool text;
    int share; /* of the mutants, in a run that is not CORRUPT=all: one in so many */
    struct part part[12];
};

static bool all(void)
{
    const char *s = getenv("CORRUPT");
    return s && strcmp(s, "all") == 0;
}

/* ---- folders as users have them ---- */

static void put_copy(const char *dir, const char *name, const char *src)
{
    size_t n;
    char *p = unxz_read(src, &n);
    assert_non_null(p);
    tree_put(dir, name, p, n);
    free(p);
}

static void with_text(const char *dir)
{
    put_copy(dir, "tokenizer.json", "tests/data/tiny-bpe/tokenizer.json.xz");
    put_copy(dir, "tokenizer_config.json", "tests/data/tiny-bpe/tokenizer_config.json");
    tree_text(
        dir, "generation_config.json",
        "{\"bos_token_id\": 1, \"eos_token_id\": [2, 3], \"temperature\": 0.7, \"top_p\": 0.9,\n"
        " \"top_k\": 20, \"do_sample\": true, \"repetition_penalty\": 1.1, \"min_p\": 0.05}\n");
}

static void with_shards(const char *dir)
{
    with_text(dir);
    corrupt_shard(dir);
}

#define WEIGHTS "model.safetensors"
#define DIFF    "diffusion_pytorch_model.safetensors"
static const struct kind kinds[] = {
    {"gguf-llama", GGUFS "tiny-llama-q4_0.gguf.xz", NULL, true, 1, {{"", MUTATE_BINARY, 10000, 0}}},
    {"gguf-gemma3",
     GGUFS "tiny-gemma3-f32.gguf.xz",
     NULL,
     true,
     10,
     {{"", MUTATE_BINARY, 10000, 0}}},
    {"folder",
     FOLDERS "/llama",
     with_text,
     true,
     5,
     {{"config.json", MUTATE_JSON, 3000, 0},
      {WEIGHTS, MUTATE_SAFETENSORS, 4000, 0},
      {"tokenizer.json", MUTATE_JSON, 1500, 0},
      {"tokenizer_config.json", MUTATE_JSON, 1000, 0},
      {"generation_config.json", MUTATE_JSON, 500, 0}}},
    {"shards",
     FOLDERS "/gemma3",
     with_shards,
     true,
     10,
     {{"model.safetensors.index.json", MUTATE_JSON, 5000, 0},
      {"model-00001-of-00002.safetensors", MUTATE_SAFETENSORS, 2500, 0},
      {"model-00002-of-00002.safetensors", MUTATE_SAFETENSORS, 2500, 0}}},
    {"quantised",
     FOLDERS "/q-gptq4",
     NULL,
     false,
     10,
     {{"config.json", MUTATE_JSON, 5000, 0}, {WEIGHTS, MUTATE_SAFETENSORS, 5000, 0}}},
    {"encoder",
     "tests/data/encode/bert",
     NULL,
     false,
     4,
     {{"config.json", MUTATE_JSON, 5000, 0}, {WEIGHTS, MUTATE_SAFETENSORS, 5000, 0}}},
    {"whisper",
     "tests/data/audio/tiny",
     NULL,
     true,
     20,
     {{"config.json", MUTATE_JSON, 3000, 0},
      {WEIGHTS, MUTATE_SAFETENSORS, 3000, 0},
      {"generation_config.json", MUTATE_JSON, 2000, 0},
      {"tokenizer.json", MUTATE_JSON, 2000, 0}}},
    {"ct2",
     "tests/data/audio/tiny",
     corrupt_to_ct2,
     true,
     10,
     {{"model.bin", MUTATE_BINARY, 9000, 0}, {"config.json", MUTATE_JSON, 1000, 0}}},
    {"diffusers",
     "tests/data/image/pipe-sd2",
     NULL,
     false,
     10,
     {{"model_index.json", MUTATE_JSON, 1500, 0},
      {"scheduler/scheduler_config.json", MUTATE_JSON, 1000, 0},
      {"text_encoder/config.json", MUTATE_JSON, 1000, 0},
      {"text_encoder/" WEIGHTS, MUTATE_SAFETENSORS, 1000, 0},
      {"tokenizer/vocab.json", MUTATE_JSON, 500, 0},
      {"tokenizer/tokenizer_config.json", MUTATE_JSON, 500, 0},
      {"unet/config.json", MUTATE_JSON, 1500, 0},
      {"unet/" DIFF, MUTATE_SAFETENSORS, 1000, 0},
      {"vae/config.json", MUTATE_JSON, 1000, 0},
      {"vae/" DIFF, MUTATE_SAFETENSORS, 1000, 0}}},
};
#define N_KIND ((int)(sizeof kinds / sizeof *kinds))

/* A model as it is when whole: its path in path[TREE_PATH]. */
static void lay_out(const struct kind *k, char *path)
{
    bool file = strstr(k->from, ".gguf") != NULL;
    snprintf(path, TREE_PATH, "%.200s/%s%s", root, k->name, file ? ".gguf" : "");
    if (file)
        put_copy(root, strrchr(path, '/') + 1, k->from);
    else
        tree_copy(k->from, path);
    if (!file)
        remove(tree_path(path, "golden.safetensors"));
    if (k->prepare)
        k->prepare(path);
}

static void must_open(const struct corrupt_model *m)
{
    struct err e = {0};
    for (int i = 0; i < 2; i++)
        if (corrupt_try(m, i ? "cpu" : "ref", &e))
            fail_msg("%s, whole: %s", m->path, e.text);
}

/* ---- what is done to a file ---- */

struct victim {
    struct mutate_file f;
    char path[TREE_PATH + 80];
    char *dst;
    size_t grid; /* of cuts */
};

static void victim_open(struct victim *v, const char *path, const struct part *p)
{
    size_t n;
    snprintf(v->path, sizeof v->path, "%s%s%s", path, p->file[0] ? "/" : "", p->file);
    char *good = unxz_read(v->path, &n);
    assert_non_null(good);
    size_t head = p->head;
    if (p->kind == MUTATE_BINARY) { /* the data behind the last name is no header */
        for (size_t i = head = n < 2000 ? n : 2000; i + 12 < n; i++)
            if (memcmp(good + i, ".weight", 7) == 0 || memcmp(good + i, "/weight", 7) == 0 ||
                memcmp(good + i, "norm/beta", 9) == 0 || memcmp(good + i, "tokenizer.", 10) == 0)
                head = i + 60 < n ? i + 60 : n;
        if (strstr(v->path, ".bin"))
            head = n; /* names and data take turns */
    }
    mutate_file_init(&v->f, p->kind, good, n, head);
    v->dst = malloc(mutate_room(&v->f));
    assert_non_null(v->dst);
}

static void put_bytes(const struct victim *v, const char *p, size_t n)
{
    FILE *f = fopen(v->path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f))
        abort();
}

static void victim_close(struct victim *v)
{
    put_bytes(v, v->f.good, v->f.n);
    mutate_file_free(&v->f);
    free(v->dst);
}

static void make_mutant(void *arg, uint64_t i, char *what, size_t n_what)
{
    struct victim *v = arg;
    put_bytes(v, v->dst, mutate(&v->f, i, v->dst, what, n_what));
}

static void make_cut(void *arg, uint64_t i, char *what, size_t n_what)
{
    struct victim *v = arg;
    size_t n = v->f.n * (size_t)i * CUT_EVERY / 100;
    snprintf(what, n_what, "the first %zu of %zu bytes", n, v->f.n);
    put_bytes(v, v->f.good, n);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void report(const char *what, const struct corrupt_tally *t, double from)
{
    print_message("  %-28s %6llu: %llu refused, %llu served, %d wrong; %zu MiB at most, %.1f s\n",
                  what, (unsigned long long)t->n, (unsigned long long)t->n_refused,
                  (unsigned long long)t->n_served, t->n_bad, t->grown >> 20, seconds() - from);
}

static uint64_t first_case;

static void test_kind(void **state)
{
    const struct kind *k = *state;
    struct corrupt_tally cuts = {0}, mutants = {0};
    char path[TREE_PATH];
    double start = seconds();
    lay_out(k, path);
    for (const struct part *p = k->part; p < k->part + 12 && p->file; p++) {
        struct victim v;
        struct corrupt_run r = {.m = {path, p->file, k->text}, .arg = &v};
        must_open(&r.m);
        victim_open(&v, path, p);
        r.make = make_cut;
        r.to = 100 / CUT_EVERY;
        if (!first_case)
            corrupt_run(&r, &cuts);
        r.make = make_mutant;
        r.from = first_case;
        r.to = first_case + (uint64_t)(all() ? p->n : p->n / (k->share * SLOW));
        corrupt_run(&r, &mutants);
        victim_close(&v);
    }
    report("cut", &cuts, start);
    report("mutants", &mutants, start);
    assert_int_equal(cuts.n_bad + mutants.n_bad, 0);
    assert_true(first_case || cuts.n_refused > cuts.n / 2);
}

/* ---- every value of every architecture's configuration ---- */

static const char *const config_values[] = {"0",    "-1",    "1",    "3",  "2147483647", "1e308",
                                            "0.37", "\"x\"", "null", "[]", "[1, 2]",     NULL};
#define N_VALUE (sizeof config_values / sizeof *config_values)

static void make_value(void *arg, uint64_t i, char *what, size_t n_what)
{
    struct victim *v = arg;
    size_t span = (size_t)(i / N_VALUE);
    const char *by = config_values[i % N_VALUE];
    snprintf(what, n_what, "%.60s -> %s", v->f.good + v->f.span[span].key, by ? by : "(none)");
    char *end = strchr(what, '\n');
    if (end)
        snprintf(end, n_what - (size_t)(end - what), " -> %s", by ? by : "(none)");
    put_bytes(v, v->dst, mutate_value(&v->f, span, by, v->dst));
}

static void make_pair(void *arg, uint64_t i, char *what, size_t n_what)
{
    struct victim *v = arg;
    put_bytes(v, v->dst, mutate_pair(&v->f, i, v->dst, what, n_what));
}

static char cases[NAMES][64];
static int n_case;

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void cases_list(void)
{
    DIR *d = opendir(FOLDERS);
    struct dirent *x;
    while (d && (x = readdir(d)) && n_case < NAMES)
        if (x->d_name[0] != '.' && strcmp(x->d_name, "SOURCES") != 0)
            snprintf(cases[n_case++], sizeof cases[0], "%.63s", x->d_name);
    if (d)
        closedir(d);
    qsort(cases, (size_t)n_case, sizeof cases[0], by_name);
}

static void config_of(const char *name, int stride, int offset, struct corrupt_tally *t)
{
    char path[TREE_PATH], src[TREE_PATH];
    struct victim v;
    const struct part p = {"config.json", MUTATE_JSON, 0, 0};
    snprintf(path, sizeof path, "%.200s/%s", root, name);
    snprintf(src, sizeof src, FOLDERS "/%s", name);
    tree_copy(src, path);
    remove(tree_path(path, "golden.safetensors"));
    struct corrupt_run r = {.m = {path, "config.json", false}, .make = make_value, .arg = &v};
    must_open(&r.m);
    victim_open(&v, path, &p);
    for (size_t i = 0; i < v.f.n_span; i++) {
        if ((int)(i % (size_t)stride) != offset)
            continue;
        r.from = i * N_VALUE;
        r.to = r.from + N_VALUE;
        corrupt_run(&r, t);
    }
    r.make = make_pair;
    r.from = 0;
    r.to = (uint64_t)(stride == 1 ? 2000 : 240 / stride);
    corrupt_run(&r, t);
    victim_close(&v);
    tree_remove(path);
}

static const char *one_case;

static void test_configs(void **state)
{
    (void)state;
    struct corrupt_tally t = {0};
    double start = seconds();
    cases_list();
    assert_true(n_case > 30 && n_case < NAMES);
    int stride = all() || one_case ? 1 : 8 * SLOW;
    for (int i = 0; i < n_case; i++) {
        struct corrupt_tally one = {0};
        if (one_case && strcmp(one_case, cases[i]) != 0)
            continue;
        config_of(cases[i], stride, i % stride, &one);
        if (one.n_bad || one_case)
            report(cases[i], &one, start);
        t.n += one.n;
        t.n_served += one.n_served;
        t.n_refused += one.n_refused;
        t.n_bad += one.n_bad;
        t.grown = one.grown > t.grown ? one.grown : t.grown;
    }
    report("configurations", &t, start);
    assert_int_equal(t.n_bad, 0);
}

/* ---- GGUF files that are malformed in one way each ---- */

static void test_malformed(void **state)
{
    (void)state;
    /* of a good file of 260 KB, which need not be there four times */
    static const struct bad_gguf more[] = {
        {"/magic", ERR_PARSE, "not a GGUF file: it starts with 47 47 55 58"},
        {"/version", ERR_UNSUPPORTED, "version 99"},
        {"/truncated-data", ERR_PARSE, "incomplete"},
    };
    char path[TREE_PATH], src[256];
    size_t n_more = sizeof more / sizeof *more;
    for (size_t i = 0; i < BAD_GGUF_N + n_more; i++) {
        bool made = i >= BAD_GGUF_N;
        const struct bad_gguf *b = made ? &more[i - BAD_GGUF_N] : &bad_gguf[i];
        size_t n;
        snprintf(src, sizeof src, GGUFS "%s%s", made ? "tiny-qwen2-f16.gguf.xz" : "bad-",
                 made ? "" : b->file);
        char *p = unxz_read(src, &n);
        assert_non_null(p);
        if (made && b->file[1] == 'm')
            memcpy(p, "GGUX", 4);
        if (made && b->file[1] == 'v')
            memcpy(p + 4, "\x63\0\0\0", 4);
        tree_put(root, "bad.gguf", p, made && b->file[1] == 't' ? n - 1000 : n);
        free(p);
        snprintf(path, sizeof path, "%.200s/bad.gguf", root);
        for (int k = 0; k < 2; k++) {
            struct err e = {0};
            int rc = corrupt_try(&(struct corrupt_model){path, "", k > 0}, k ? "cpu" : "ref", &e);
            if (rc != b->rc || !strstr(e.text, b->says) || !strstr(e.text, path))
                fail_msg("%s: %d %s", b->file, rc, e.text);
        }
    }
    assert_int_equal(BAD_GGUF_N + n_more, 22);
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[N_KIND + 2];
    log_set_level(LOG_ERROR);
    int n = 0;
    const char *want = argc > 1 ? argv[1] : NULL;
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    tree_make(root);
    for (int i = 0; i < N_KIND; i++)
        if (!want || !strcmp(want, kinds[i].name))
            tests[n++] = (struct CMUnitTest){.name = kinds[i].name,
                                             .test_func = test_kind,
                                             .initial_state = (void *)(uintptr_t)&kinds[i]};
    if (!want || !strcmp(want, "configs"))
        tests[n++] = (struct CMUnitTest){.name = "configs", .test_func = test_configs};
    if (!want || !strcmp(want, "malformed"))
        tests[n++] = (struct CMUnitTest){.name = "malformed", .test_func = test_malformed};
    if (argc > 2 && !strcmp(want, "configs"))
        one_case = argv[2];
    else if (argc > 2)
        first_case = strtoull(argv[2], NULL, 10);
    int failed = n ? _cmocka_run_group_tests("corrupt", tests, (size_t)n, NULL, NULL) : 1;
    tree_remove(root);
    return failed;
}
