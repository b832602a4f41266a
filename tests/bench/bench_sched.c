/* The host's share of a step: plan, block tables, harvest and events of many decode rows, with a device that answers at once.
 *     bench_sched [MODEL.gguf]        (default $STEPD_TEST_MODEL; only its vocabulary is read)
 * Prints a line of JSON for each number of rows and length of context. Fails where 256 rows take 100 us or more. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/base/mem.h"
#include "sched/sched.h"

#define STEPS   400
#define MOST_US 100
#define ROWS_OF 256
#define EVENTS  8192

static struct event ring[EVENTS];
static size_t n_event;

static void keep(void *arg, const struct event *ev)
{
    (void)arg;
    event_copy(&ring[n_event++ % EVENTS], ev);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* machines that test are busy */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return (a > b) - (a < b);
}

static void submit(struct sched *s, int i, int32_t n_prompt)
{
    struct request *r = request_new();
    if (!r)
        abort();
    r->id = (uint64_t)i + 1;
    r->prompt = xmalloc((size_t)n_prompt * sizeof *r->prompt);
    for (int32_t k = 0; k < n_prompt; k++)
        r->prompt[k] = (i * 7919 + k) % 60;
    r->n_prompt = n_prompt;
    r->n = 1;
    r->max_tokens = STEPS * 2;
    r->prompt_logprobs = -1;
    r->samp.temperature = r->samp.top_p = r->samp.repetition_penalty = 1;
    r->samp.n_top = -1;
    sched_submit(s, r);
}

/* Median, 90th percentile and worst time of a step of `rows` rows in us; the first steps compute the prompts. */
static void run(const char *path, int rows, int32_t n_prompt, double us[3])
{
    static double t[STEPS];
    struct err e = {0};
    struct engine *g;
    struct sched *s;
    struct eng_opts eo = {.path = path, .device = "null", .max_seqs = 2 * rows, .max_rows = 65536};
    if (eng_open(&g, &eo, &e)) {
        fprintf(stderr, "bench_sched: %s\n", e.text);
        exit(1);
    }
    struct sched_opts so = {.emit = keep};
    if (sched_open(&s, g, &so, &e))
        abort();
    for (int i = 0; i < rows; i++)
        submit(s, i, n_prompt);
    struct sched_stats st = {0};
    while (st.generated_tokens < (uint64_t)rows * 2) { /* all of them have begun */
        if (sched_step(s, &e) != 1)
            abort();
        sched_stats_get(s, &st);
    }
    for (int i = 0; i < STEPS; i++) {
        double t0 = now_us();
        if (sched_step(s, &e) != 1)
            abort();
        t[i] = now_us() - t0;
    }
    sched_stats_get(s, &st);
    if (st.running_seqs != rows)
        abort();
    qsort(t, STEPS, sizeof t[0], by_value);
    us[0] = t[STEPS / 2];
    us[1] = t[STEPS * 9 / 10];
    us[2] = t[STEPS - 1];
    sched_close(s);
    eng_close(g);
}

int main(int argc, char **argv)
{
    static const struct {
        int rows;
        int32_t n_prompt;
    } load[] = {{1, 140}, {64, 140}, {256, 140}, {256, 2000}, {256, 4000}, {1024, 140}};
    const char *path = argc > 1 ? argv[1] : getenv("STEPD_TEST_MODEL");
    int bad = 0;
    if (!path) {
        fprintf(stderr, "usage: bench_sched MODEL.gguf\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof load / sizeof load[0]; i++) {
        double us[3];
        run(path, load[i].rows, load[i].n_prompt, us);
        printf("{\"rows\":%d,\"prompt_tokens\":%d,\"us_median\":%.1f,\"us_p90\":%.1f,\"us_worst\":%"
               ".1f}\n",
               load[i].rows, load[i].n_prompt, us[0], us[1], us[2]);
        bad |= load[i].rows == ROWS_OF && us[0] >= MOST_US;
    }
    if (bad)
        printf("a step of %d rows takes %d us or more\n", ROWS_OF, MOST_US);
    return bad;
}
