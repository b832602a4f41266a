/* Speed of a tokenizer.
 *     bench_tok TOKENIZER.json TEXT...      (files; each may be .xz)
 * Prints a line of JSON for each text: tokens, best time of several runs, MB/s. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/text/tokenizer.h"
#include "tests/unxz.h"

#define RUNS 5

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* machines that test are busy */
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int run(const struct tokenizer *t, const char *path)
{
    size_t n = 0, n_token = 0;
    double best = 1e9;
    char *text = unxz_read(path, &n);
    if (!text)
        return 1;
    for (int i = 0; i < RUNS; i++) {
        struct tok_ids ids = {0};
        double t0 = now_s();
        if (tok_encode(t, text, n, TOK_SPECIAL, &ids))
            return 1;
        double s = now_s() - t0;
        best = s < best ? s : best;
        n_token = ids.n;
        tok_ids_free(&ids);
    }
    printf("{\"text\":\"%s\",\"bytes\":%zu,\"tokens\":%zu,\"ms\":%.3f,\"mb_per_s\":%.2f}\n", path,
           n, n_token, best * 1e3, (double)n / best / 1e6);
    free(text);
    return 0;
}

int main(int argc, char **argv)
{
    struct tokenizer *t;
    struct err e = {0};
    char path[200];
    if (argc < 3 || unxz_temp(argv[1], path, sizeof path)) {
        fprintf(stderr, "usage: bench_tok TOKENIZER.json TEXT...\n");
        return 2;
    }
    int rc = tok_open_hf(&t, path, &e);
    unlink(path);
    if (rc) {
        fprintf(stderr, "bench_tok: %s\n", e.text);
        return 1;
    }
    for (int i = 2; i < argc && !rc; i++)
        rc = run(t, argv[i]);
    tok_close(t);
    return rc;
}
