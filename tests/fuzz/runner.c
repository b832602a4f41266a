/* Coverage-guided fuzzing with gcc alone: the code under test is compiled with -fsanitize-coverage=trace-pc, which
 * calls __sanitizer_cov_trace_pc at each edge; inputs that reach new edges (or known ones in a new order of
 * magnitude of counts) join the corpus, as in AFL. One thread, seeded, nothing written unless an input fails.
 *
 *   PROGRAM [-t SECONDS] [-s SEED] [-n RUNS]    fuzz from the target's own seeds
 *   PROGRAM FILE...                             run these inputs once (to reproduce)
 *
 * A failing input (sanitizer report, abort, more than 10 s of work or 2 minutes) is written to crash-TARGET-HASH. */
#include "tests/fuzz/fuzz.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/unxz.h"

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

enum { MAP = 1 << 16, INPUT_MAX = 1 << 19, CORPUS_MAX = 4096, HANG_S = 10, STUCK_S = 120 };

struct input {
    uint8_t *p;
    size_t n;
};

static uint8_t edges[MAP], seen[MAP];
static uintptr_t last_edge;
static struct input corpus[CORPUS_MAX];
static int n_corpus;
static struct input now; /* what runs, for the report of its failure */
static const char *target;

/* Called before the sanitizers are up, and by all that is instrumented: itself must not be. */
#define BARE __attribute__((no_sanitize_coverage, no_sanitize("address", "undefined")))

void __sanitizer_cov_trace_pc(void);
BARE void __sanitizer_cov_trace_pc(void)
{
    uintptr_t pc = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&LLVMFuzzerTestOneInput;
    pc = (pc >> 2) * 0x9E3779B1u & (MAP - 1);
    edges[pc ^ last_edge]++;
    last_edge = pc >> 1;
}

/* A hostile size must be refused by the code under test, not served by the allocator. */
const char *__asan_default_options(void);
BARE const char *__asan_default_options(void)
{
    return "max_allocation_size_mb=256:allocator_may_return_null=0:detect_leaks=1:handle_abort=1";
}

/* ---- failures ---- */

static void keep_failing(void)
{
    char name[128];
    struct hash_key k = {1, 2};
    if (!now.p)
        return;
    snprintf(name, sizeof name, "crash-%s-%016llx", target,
             (unsigned long long)hash_bytes(k, now.p, now.n));
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, now.p, now.n) == (ssize_t)now.n)
        dprintf(2, "the failing input is in %s (%zu bytes)\n", name, now.n);
    if (fd >= 0)
        close(fd);
}

static void on_alarm(int sig)
{
    dprintf(2, "%s: an input took more than %d s%s\n", target, sig == SIGPROF ? HANG_S : STUCK_S,
            sig == SIGPROF ? " of work" : "");
    keep_failing();
    _exit(1);
}

static void work_limit(int seconds)
{
    struct itimerval t = {.it_value.tv_sec = seconds};
    setitimer(ITIMER_PROF, &t, NULL);
}

static void run_input(const uint8_t *p, size_t n)
{
    /* Exactly sized, so that a read past its end is seen. */
    now = (struct input){memcpy(xmalloc(n), p, n), n};
    last_edge = 0;
    work_limit(HANG_S); /* of work: a busy machine is no finding */
    alarm(STUCK_S);
    LLVMFuzzerTestOneInput(now.p, n);
    alarm(0);
    work_limit(0);
    free(now.p);
    now.p = NULL;
}

/* ---- coverage ---- */

static uint8_t bucket(uint8_t count) /* 1, 2, 3, 4-7, 8-15, ... each a bit */
{
    static const uint8_t of[] = {0, 1, 2, 4, 8, 8, 8, 8};
    return count < 8 ? of[count] : count < 16 ? 16 : count < 32 ? 32 : count < 128 ? 64 : 128;
}

static bool new_coverage(void)
{
    bool fresh = false;
    for (size_t i = 0; i < MAP; i += 8) {
        uint64_t any;
        memcpy(&any, edges + i, 8);
        for (size_t k = i; any && k < i + 8; k++) {
            uint8_t b = bucket(edges[k]);
            fresh = fresh || (b & ~seen[k]);
            seen[k] |= b;
        }
    }
    memset(edges, 0, sizeof edges);
    return fresh;
}

static int edges_seen(void)
{
    int n = 0;
    for (size_t i = 0; i < MAP; i++)
        n += seen[i] != 0;
    return n;
}

static void corpus_add(const uint8_t *p, size_t n)
{
    if (n_corpus < CORPUS_MAX && n <= INPUT_MAX)
        corpus[n_corpus++] = (struct input){memcpy(xmalloc(n), p, n), n};
}

static void try_input(const uint8_t *p, size_t n)
{
    run_input(p, n);
    if (new_coverage())
        corpus_add(p, n);
}

/* ---- mutation ---- */

static uint64_t rng_state;
static uint64_t rnd(void)
{
    return hash_u64(rng_state++);
}
static size_t below(size_t n)
{
    return n ? rnd() % n : 0;
}

static void put_number(uint8_t *p, size_t n)
{
    static const uint64_t nasty[] = {0,          1,          2,         0x7f,       0x80,
                                     0xff,       0x7fff,     0x8000,    0xffff,     0x7fffffff,
                                     1u << 31,   UINT32_MAX, INT64_MAX, 1ull << 63, UINT64_MAX,
                                     1ull << 61, 1ull << 40};
    size_t width = (size_t)1 << below(4);
    if (n < width)
        return;
    size_t at = below(n - width + 1);
    uint64_t v = nasty[below(sizeof nasty / sizeof *nasty)];
    if (rnd() % 4 == 0)
        v = n + below(3) - 1;
    if (rnd() % 4 == 0) {
        memcpy(&v, p + at, width);
        v += below(9) - 4;
    }
    memcpy(p + at, &v, width);
}

static size_t mutate_once(uint8_t *p, size_t n)
{
    static const char tokens[] = "{}[]\":,\\%<>|#=\n\0\xff\xc0 -0.e";
    size_t at = below(n), len = 1 + below(rnd() % 4 ? 16 : 512), from;
    switch (rnd() % 8) {
    case 0:
        if (n)
            p[at] ^= (uint8_t)(1u << below(8));
        return n;
    case 1:
        if (n)
            p[at] = (uint8_t)rnd();
        return n;
    case 2:
        put_number(p, n);
        return n;
    case 3: /* cut out */
        len = len < n - at ? len : n - at;
        memmove(p + at, p + at + len, n - at - len);
        return n - len;
    case 4: /* repeat a piece elsewhere */
        from = below(n);
        len = len < n - from ? len : n - from;
        if (n + len > INPUT_MAX)
            return n;
        memmove(p + at + len, p + at, n - at);
        memmove(p + at, p + (from >= at ? from + len : from), len);
        return n + len;
    case 5:
        return rnd() % 8 ? n : at; /* cut short, now and then */
    case 6:
        if (n)
            p[at] = (uint8_t)tokens[below(sizeof tokens - 1)];
        return n;
    default: { /* a piece of another input */
        const struct input *o = &corpus[below((size_t)n_corpus)];
        from = below(o->n);
        len = len < o->n - from ? len : o->n - from;
        len = len < n - at ? len : n - at;
        memcpy(p + at, o->p + from, len);
        return n;
    }
    }
}

static void fuzz(double seconds, uint64_t seed, long runs_max)
{
    static uint8_t work[INPUT_MAX + 1024];
    int64_t end = clock_us() + (int64_t)(seconds * 1e6);
    long runs = 0;
    rng_state = hash_u64(seed);
    for (; (runs_max ? runs < runs_max : clock_us() < end); runs++) {
        /* Half of the time one of the newest: they have been tried least. */
        size_t i = below((size_t)n_corpus);
        if (rnd() % 2 && n_corpus > 16)
            i = (size_t)n_corpus - 1 - below(16);
        size_t n = corpus[i].n;
        memcpy(work, corpus[i].p, n);
        for (size_t k = 1 + below(rnd() % 2 ? 2 : 12); k; k--)
            n = mutate_once(work, n);
        try_input(work, n);
    }
    printf("%s: %ld runs, %d inputs kept, %d edges, seed %llu\n", target, runs, n_corpus,
           edges_seen(), (unsigned long long)seed);
}

static int load(const char *path)
{
    size_t n;
    char *p = unxz_read(path, &n);
    if (!p)
        return -1;
    run_input((const uint8_t *)p, n);
    new_coverage();
    corpus_add((const uint8_t *)p, n);
    free(p);
    return 0;
}

static int load_seeds(void)
{
    for (int i = 0; fuzz_seeds[i]; i++) {
        glob_t g;
        if (glob(fuzz_seeds[i], 0, NULL, &g)) {
            fprintf(stderr, "%s: no seed matches %s\n", target, fuzz_seeds[i]);
            return -1;
        }
        for (size_t k = 0; k < g.gl_pathc; k++)
            if (load(g.gl_pathv[k]))
                return -1;
        globfree(&g);
    }
    return n_corpus ? 0 : -1;
}

/* Present when linked with a sanitizer. */
extern void __sanitizer_set_death_callback(void (*fn)(void)) __attribute__((weak));

int main(int argc, char **argv)
{
    double seconds = 10;
    uint64_t seed = 1;
    long runs = 0;
    int c;
    target = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    while ((c = getopt(argc, argv, "t:s:n:")) != -1) {
        if (c == '?')
            return 2;
        if (c == 't')
            seconds = strtod(optarg, NULL);
        else if (c == 's')
            seed = strtoull(optarg, NULL, 10);
        else
            runs = strtol(optarg, NULL, 10);
    }
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(keep_failing);
    signal(SIGALRM, on_alarm);
    signal(SIGPROF, on_alarm);
    for (int i = optind; i < argc; i++)
        if (load(argv[i]))
            return 1;
    if (optind == argc) {
        if (load_seeds())
            return 1;
        fuzz(seconds, seed, runs);
    }
    for (int i = 0; i < n_corpus; i++)
        free(corpus[i].p);
    return 0;
}
