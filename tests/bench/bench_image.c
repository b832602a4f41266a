/* Speed of an image model's stages, without a server.
 *
 *     bench_image MODEL [--device cpu] [--precision f32|default] [--isa NAME] [--threads N] [--size N] [--steps N]
 *                 [--batch N] [--guidance X] [--rounds N] [--no-decode] [--each]
 *
 * One JSON line: seconds a denoising step (median over all steps but the first of each round) and seconds of decoding one
 * picture, with what ran. The prompts are of no matter; the prompt's encoding is timed too. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"

#define BATCH_MAX 64
#define TIMES_MAX 4096

static struct {
    struct eng_opts eng;
    int size, steps, batch, rounds;
    float guidance;
    bool no_decode, each;
} opt = {.steps = 4, .batch = 1, .rounds = 3, .guidance = 7.5f};
static double times[3][TIMES_MAX];
static int n_times[3];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(int stage)
{
    int n = n_times[stage];
    if (!n)
        return 0;
    for (int i = 0; opt.each && i < n; i++)
        fprintf(stderr, "stage %d: %.5f s\n", stage, times[stage][i]);
    qsort(times[stage], (size_t)n, sizeof(double), by_value);
    return n % 2 ? times[stage][n / 2] : (times[stage][n / 2 - 1] + times[stage][n / 2]) / 2;
}

static void note(int stage, double s)
{
    if (n_times[stage] < TIMES_MAX)
        times[stage][n_times[stage]++] = s;
}

static void die(const struct err *e)
{
    fprintf(stderr, "bench_image: %s\n", e->text);
    exit(1);
}

/* All jobs through all stages. */
static void round_run(struct engine *g, int round)
{
    struct img_job *job[BATCH_MAX];
    struct err e = {0};
    char prompt[64];
    const struct eng_image_info *info = eng_info(g)->image;
    int size = opt.size ? opt.size : info->size_default;
    for (int i = 0; i < opt.batch; i++) {
        snprintf(prompt, sizeof prompt, "a red circle, number %d", round * opt.batch + i);
        struct img_params p = {.prompt = prompt,
                               .negative = "",
                               .width = size,
                               .height = size,
                               .steps = opt.steps,
                               .guidance = opt.guidance,
                               .seed = (uint64_t)i};
        if (img_job_open(g, &p, &job[i], &e))
            die(&e);
    }
    for (enum img_stage s; (s = img_job_stage(job[0])) != IMG_DONE;) {
        if (s == IMG_DECODE && opt.no_decode)
            break;
        bool first = s == IMG_DENOISE && img_job_step(job[0]) == 0 && opt.steps > 1;
        double t = now();
        if (eng_image_step(g, job, s == IMG_DECODE ? 1 : opt.batch, NULL, &e))
            die(&e);
        if (!first)
            note((int)s, now() - t);
    }
    for (int i = 0; i < opt.batch; i++)
        img_job_close(g, job[i]);
}

static int whole(const char *v)
{
    return (int)strtol(v, NULL, 10);
}

static bool option(const char *name, const char *v)
{
    static const char *const names[] = {"--device", "--isa",   "--threads",  "--size",
                                        "--steps",  "--batch", "--guidance", "--rounds"};
    size_t i = 0;
    while (i < sizeof names / sizeof *names && strcmp(name, names[i]) != 0)
        i++;
    switch (i) {
    case 0:
        opt.eng.device = v;
        return true;
    case 1:
        opt.eng.isa = v;
        return true;
    case 2:
        opt.eng.n_threads = whole(v);
        return true;
    case 3:
        opt.size = whole(v);
        return true;
    case 4:
        opt.steps = whole(v);
        return opt.steps > 0;
    case 5:
        opt.batch = whole(v);
        return opt.batch > 0 && opt.batch <= BATCH_MAX;
    case 6:
        opt.guidance = strtof(v, NULL);
        return true;
    case 7:
        opt.rounds = whole(v);
        return opt.rounds > 0;
    default:
        return false;
    }
}

int main(int argc, char **argv)
{
    struct engine *g;
    struct err e = {0};
    bool ok = argc > 1;
    for (int i = 2; i < argc && ok; i++) {
        if (!strcmp(argv[i], "--no-decode")) {
            opt.no_decode = true;
        } else if (!strcmp(argv[i], "--each")) {
            opt.each = true;
        } else if (!strcmp(argv[i], "--precision") && i + 1 < argc) {
            opt.eng.precision = strcmp(argv[++i], "f32") ? PRECISION_DEFAULT : PRECISION_F32;
        } else {
            ok = i + 1 < argc && option(argv[i], argv[i + 1]);
            i++;
        }
    }
    if (!ok) {
        fprintf(stderr, "usage: bench_image MODEL [options]; see tests/bench/bench_image.c\n");
        return 2;
    }
    opt.eng.path = argv[1];
    opt.eng.no_pin = false;
    double t = now();
    if (eng_open(&g, &opt.eng, &e))
        die(&e);
    double load = now() - t;
    if (!eng_info(g)->image) {
        fprintf(stderr, "bench_image: %s makes no pictures\n", argv[1]);
        return 2;
    }
    for (int i = 0; i < opt.rounds; i++)
        round_run(g, i);
    printf("{\"engine\": \"stepd\", \"backend\": \"%s\", \"size\": %d, \"batch\": %d, \"load_s\": "
           "%.3f, "
           "\"encode_s\": %.4f, \"step_s\": %.5f, \"decode_s\": %.4f}\n",
           eng_info(g)->backend, opt.size ? opt.size : eng_info(g)->image->size_default, opt.batch,
           load, median(IMG_ENCODE), median(IMG_DENOISE), median(IMG_DECODE));
    eng_close(g);
    return 0;
}
