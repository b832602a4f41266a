/* Tiny random models in Hugging Face folders against logits and greedy ids of the reference implementation, on every
 * backend and table of this machine, f32; and equal bytes alone, in chunks and in company. A case is a folder of
 * tests/data/folders: adding a model's test is adding its folder (record_folders.py). An argument FILE.gguf=CASE puts that
 * file in the folder's place (test_gguf_families.py). */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/golden.h"
#include "tests/tree.h"

#define DATA      "tests/data/folders"
#define CASES_MAX 160
#define N_VOCAB   512
#define BOUND     1e-4f /* of a logit; they are of order one */

static const struct {
    const char *device, *isa;
    int every; /* such cases only: emulation and the slow tables take turns */
} devices[] = {{"ref", NULL, 1},      {"cpu", "scalar", 3},    {"cpu", "avx2", 2},
               {"cpu", "avx512", 2},  {"cpu", "amx", 1},       {"cuda", NULL, 1},
               {"cuda-emu", NULL, 3}, {"cuda-emu", "/rev", 3}, {"cuda-emu", "/7", 3}};

static char cases[CASES_MAX][64];
static const char *files[CASES_MAX]; /* a GGUF file to read instead; NULL: the folder */
static int n_case;

/* Largest difference of a logit; with `off`, of all rows but those beyond `most`, which are counted there. */
static float worst_rows(struct engine *g, struct golden *want, const char *ids_name,
                        const char *logits_name, float most, int *off)
{
    static float got[64 * N_VOCAB];
    size_t n_in, n_logit;
    float worst = 0;
    const int32_t *ids = golden_i32(want, ids_name, &n_in);
    const float *logits = golden_f32(want, logits_name, &n_logit);
    assert_non_null(ids);
    assert_non_null(logits);
    assert_int_equal(eng_info(g)->n_vocab, N_VOCAB);
    assert_true(n_in > 0 && n_in <= 64);
    assert_int_equal(n_logit, n_in * N_VOCAB);
    run_logits(g, ids, (int32_t)n_in, 1, got);
    for (size_t r = 0; r < n_in; r++) {
        float row = 0;
        for (size_t i = r * N_VOCAB; i < (r + 1) * N_VOCAB; i++) {
            float d = fabsf(got[i] - logits[i]);
            row = d <= row ? row : d; /* NaN counts as worst */
        }
        if (off && row >= most)
            ++*off;
        else
            worst = row <= worst ? worst : row;
    }
    return worst;
}

static float worst_of(struct engine *g, struct golden *want, const char *ids_name,
                      const char *logits_name)
{
    return worst_rows(g, want, ids_name, logits_name, 0, NULL);
}

/* Greedy continuation in chunks; its ids are the reference's. The digest of all logits. */
static uint64_t generate(struct engine *g, struct golden *want, int32_t chunk)
{
    static struct run_seq s;
    size_t n_in, n_greedy;
    const int32_t *ids = golden_i32(want, "input_ids", &n_in);
    const int32_t *greedy = golden_i32(want, "greedy_ids", &n_greedy);
    assert_non_null(greedy);
    run_seq_init(&s, ids, (int32_t)n_in, 20);
    run_generate(g, &s, chunk, (int32_t)n_greedy);
    assert_memory_equal(s.tok + n_in, greedy, n_greedy * sizeof *greedy);
    return s.digest;
}

/* The same beside a second sequence that starts two steps later. */
static uint64_t generate_beside(struct engine *g, struct golden *want)
{
    static struct run_seq s[2];
    size_t n_in, n_short, n_greedy;
    const int32_t *ids = golden_i32(want, "input_ids", &n_in);
    const int32_t *other = golden_i32(want, "short_ids", &n_short);
    golden_i32(want, "greedy_ids", &n_greedy);
    assert_non_null(other);
    run_seq_init(&s[0], ids, (int32_t)n_in, 20);
    run_seq_init(&s[1], other, (int32_t)n_short, 60);
    for (int step = 0; s[0].n_tok < s[0].n_prompt + (int32_t)n_greedy; step++) {
        struct run_seq *both[2];
        int32_t n[2];
        int n_seq = 0;
        for (int i = 1; i >= 0; i--) {
            int32_t left = s[i].n_tok - s[i].n_done;
            if (i == 1 && step < 2)
                continue;
            both[n_seq] = &s[i];
            n[n_seq++] = left < 5 ? left : 5;
        }
        run_step(g, both, n, n_seq);
    }
    return s[0].digest;
}

/* Mamba has no norm between its products: what one rounds, the next ones carry far. */
static float bound_of(const char *path)
{
    const char *name = strrchr(path, '/');
    return name && (!strcmp(name, "/mamba") || !strcmp(name, "/mamba.gguf")) ? 10 * BOUND : BOUND;
}

static float check_device(const char *path, struct golden *want, size_t d)
{
    struct eng_opts o = {.path = path,
                         .device = devices[d].device,
                         .isa = devices[d].isa,
                         .precision = PRECISION_F32,
                         .n_ctx = 64, /* within the first context of those that scale by length */
                         .keep_logits = true,
                         .max_rows = 64,
                         .max_logit_rows = 64,
                         .max_seqs = 64};
    struct engine *g = run_open(&o);
    assert_true(g || strcmp(devices[d].device, "ref") != 0);
    if (!g)
        return 0;
    float a = worst_of(g, want, "input_ids", "logits"),
          b = worst_of(g, want, "short_ids", "short_logits");
    print_message("  %-24s largest difference of a logit %.2g\n", eng_info(g)->backend,
                  (double)fmaxf(a, b));
    assert_true(a < bound_of(path) && b < bound_of(path));
    uint64_t whole = generate(g, want, 64);
    assert_true(generate(g, want, 7) == whole);
    assert_true(generate(g, want, 1) == whole);
    assert_true(generate_beside(g, want) == whole);
    eng_close(g);
    return a;
}

/* A bound in the default precision. Which of equal positions a sparse row sees turns on the last bit there: finite is all that
 * can be asked (record_ties.py; f32 has every row). */
static float default_bound(const char *path, float f32)
{
    return strstr(path, "-ties") ? 100 : fmaxf(0.5f, f32 * 65536);
}

/* Which experts a row takes can turn on the last bit, too, where two of them are nearly equal (one case's row 10: 0.0008
 * between the second and the third). Then this row is another one, and hardly anything of the others changes. */
static int rows_off_most(const char *path)
{
    char name[TREE_PATH + 120], text[8192];
    snprintf(name, sizeof name, "%s/config.json", path);
    FILE *f = fopen(name, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    return strstr(text, "experts") ? 3 : 0; /* of two dozen */
}

/* The default precision: finite, near (bf16 rounds 2^16 times as much as f32 does, and some recurrent models carry that
 * far: f32 says how much), and the same bytes in chunks and in company. */
static void check_default(const char *path, struct golden *want, float f32)
{
    struct eng_opts o = {.path = path,
                         .n_ctx = 64,
                         .keep_logits = true,
                         .max_rows = 64,
                         .max_logit_rows = 64,
                         .max_seqs = 64,
                         .device = "cpu"};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    int off = 0;
    float bound = default_bound(path, f32);
    float worst = worst_rows(g, want, "input_ids", "logits", bound, &off);
    print_message("  %-24s largest difference of a logit %.2g (default precision), %d rows beyond "
                  "%.2g\n",
                  eng_info(g)->backend, (double)worst, off, (double)bound);
    assert_true(worst < bound && off <= rows_off_most(path));
    eng_close(g);
}

/* Of a GGUF file: the reference, one table of the CPU in turns, and of one case in five the emulation. */
static void check_file(const char *file, struct golden *want, int number)
{
    size_t n = sizeof devices / sizeof *devices, cpu = 1 + (size_t)number % 4;
    assert_string_equal(devices[cpu].device, "cpu");
    check_device(file, want, 0);
    check_device(file, want, cpu);
    if (number % 5 == 0)
        check_device(file, want, n - 1 - (size_t)number % 3);
}

static void test_case(void **st)
{
    const char *name = *st;
    int number = (int)((char(*)[64]) * st - cases);
    char dir[TREE_PATH], src[TREE_PATH], path[TREE_PATH + 96];
    float worst = 0;
    if (files[number]) {
        snprintf(src, sizeof src, DATA "/%s/golden.safetensors.xz", name);
        struct golden *own = golden_open(src);
        assert_non_null(own);
        check_file(files[number], own, number);
        golden_close(own);
        return;
    }
    tree_make(dir);
    snprintf(src, sizeof src, DATA "/%s", name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    tree_copy(src, path);
    snprintf(src, sizeof src, DATA "/%s/golden.safetensors.xz", name);
    struct golden *want = golden_open(src);
    assert_non_null(want);
    remove(tree_path(path, "golden.safetensors"));
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++)
        if ((number + (int)d) % devices[d].every == 0)
            worst = fmaxf(worst, check_device(path, want, d));
    check_default(path, want, worst);
    golden_close(want);
    tree_remove(dir);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void cases_list(void)
{
    DIR *d = opendir(DATA);
    struct dirent *x;
    while (d && (x = readdir(d)))
        if (x->d_name[0] != '.' && strcmp(x->d_name, "SOURCES") != 0) {
            CHECK(n_case < CASES_MAX);
            snprintf(cases[n_case++], sizeof cases[0], "%.63s", x->d_name);
        }
    if (d)
        closedir(d);
    qsort(cases, (size_t)n_case, sizeof cases[0], by_name);
}

/* Whether an argument asks for a case; the file that it names for it. */
static bool asked(const char *arg, int i)
{
    const char *eq = strrchr(arg, '=');
    if (strcmp(eq ? eq + 1 : arg, cases[i]) != 0)
        return false;
    if (eq) {
        static char path[CASES_MAX][TREE_PATH];
        snprintf(path[i], sizeof path[i], "%.*s", (int)(eq - arg), arg);
        files[i] = path[i];
    }
    return true;
}

/* With arguments: those cases only. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[CASES_MAX];
    int n = 0;
    cases_list();
    for (int i = 0; i < n_case; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted = asked(argv[k], i) || wanted;
        if (wanted)
            tests[n++] = (struct CMUnitTest){
                .name = cases[i], .test_func = test_case, .initial_state = cases[i]};
    }
    if (n == 0) {
        printf("no case in " DATA "\n");
        return 1;
    }
    return _cmocka_run_group_tests("folders", tests, (size_t)n, NULL, NULL);
}
