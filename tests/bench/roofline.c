/* What this machine can do at most, for comparison with what a model does: bytes read per second and multiply-adds per
 * second, by every core at once, the best of some tries. Prints one line of JSON; operations count 2 a multiply-add.
 * A kind of arithmetic that the processor (or the kernel, for AMX) does not give is left out. */
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TRIES      5
#define READ_BYTES ((size_t)1 << 30) /* of all threads together: more than any cache */
#define ROUNDS     200000

enum kind { READ, F32_AVX2, F32_AVX512, BF16_AVX512, INT8_AVX512, BF16_AMX, INT8_AMX, N_KINDS };

struct work {
    pthread_barrier_t *gate;
    enum kind kind;
    int n_threads;
    char *mem; /* [READ_BYTES / n_threads] */
    double seconds[TRIES];
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile int sink; /* keeps results alive */

__attribute__((target("avx2"))) static void read_all(const char *p, size_t n)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 128) {
        a = _mm256_or_si256(a, _mm256_load_si256((const __m256i *)(p + i)));
        b = _mm256_or_si256(b, _mm256_load_si256((const __m256i *)(p + i + 32)));
        c = _mm256_or_si256(c, _mm256_load_si256((const __m256i *)(p + i + 64)));
        d = _mm256_or_si256(d, _mm256_load_si256((const __m256i *)(p + i + 96)));
    }
    a = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    sink = _mm256_extract_epi32(a, 0);
}

/* Twelve chains of sums, each a register: more than latency x ports of any processor so far. */
#define CHAINS  12
#define EACH(m) m(0) m(1) m(2) m(3) m(4) m(5) m(6) m(7) m(8) m(9) m(10) m(11)
#define USED(k) __asm__ volatile("" : "+v"(s##k));
#define FMA_LOOP(name, isa, type, zero, one, step)                                                 \
    __attribute__((target(isa))) static void name(void)                                            \
    {                                                                                              \
        type s0 = zero, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0;    \
        type s9 = s0, s10 = s0, s11 = s0, x = one, y = one;                                        \
        __asm__ volatile("" : "+v"(x), "+v"(y));                                                   \
        for (int i = 0; i < ROUNDS; i++) {                                                         \
            EACH(step)                                                                             \
            EACH(USED)                                                                             \
        }                                                                                          \
    }
#define STEP_F32_AVX2(k)   s##k = _mm256_fmadd_ps(x, y, s##k);
#define STEP_F32_AVX512(k) s##k = _mm512_fmadd_ps(x, y, s##k);
#define STEP_BF16(k)       s##k = _mm512_dpbf16_ps(s##k, (__m512bh)x, (__m512bh)y);
#define STEP_INT8(k)       s##k = _mm512_dpbusd_epi32(s##k, x, y);

FMA_LOOP(f32_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), _mm256_set1_ps(0.5f), STEP_F32_AVX2)
FMA_LOOP(f32_avx512, "avx512f", __m512, _mm512_setzero_ps(), _mm512_set1_ps(0.5f), STEP_F32_AVX512)
FMA_LOOP(bf16_avx512, "avx512f,avx512bw,avx512vl,avx512bf16", __m512, _mm512_setzero_ps(),
         _mm512_set1_ps(0.5f), STEP_BF16)
FMA_LOOP(int8_avx512, "avx512f,avx512bw,avx512vl,avx512vnni", __m512i, _mm512_setzero_si512(),
         _mm512_set1_epi8(1), STEP_INT8)

struct tile_config {
    unsigned char palette, start, zero[14];
    unsigned short bytes[16];
    unsigned char rows[16];
};

/* Four sums of tiles from two times two factors, as a blocked product has them; the factors stay in their tiles. */
#define AMX_LOOP(name, what, op)                                                                   \
    __attribute__((target("amx-tile," what))) static void name(void)                               \
    {                                                                                              \
        struct tile_config c = {.palette = 1};                                                     \
        for (int i = 0; i < 8; i++) {                                                              \
            c.rows[i] = 16;                                                                        \
            c.bytes[i] = 64;                                                                       \
        }                                                                                          \
        _tile_loadconfig(&c);                                                                      \
        _tile_zero(0);                                                                             \
        _tile_zero(1);                                                                             \
        _tile_zero(2);                                                                             \
        _tile_zero(3);                                                                             \
        _tile_zero(4);                                                                             \
        _tile_zero(5);                                                                             \
        _tile_zero(6);                                                                             \
        _tile_zero(7);                                                                             \
        for (int i = 0; i < ROUNDS; i++) {                                                         \
            op(0, 4, 6);                                                                           \
            op(1, 4, 7);                                                                           \
            op(2, 5, 6);                                                                           \
            op(3, 5, 7);                                                                           \
        }                                                                                          \
        _tile_release();                                                                           \
    }

AMX_LOOP(bf16_amx, "amx-bf16", _tile_dpbf16ps)
AMX_LOOP(int8_amx, "amx-int8", _tile_dpbssd)

static const struct {
    const char *name;
    void (*run)(void);
    double ops; /* of one thread's run */
} kinds[N_KINDS] = {
    [READ] = {"read", NULL, 0},
    [F32_AVX2] = {"f32_avx2", f32_avx2, 2.0 * 8 * CHAINS *ROUNDS},
    [F32_AVX512] = {"f32_avx512", f32_avx512, 2.0 * 16 * CHAINS *ROUNDS},
    [BF16_AVX512] = {"bf16_avx512", bf16_avx512, 2.0 * 32 * CHAINS *ROUNDS},
    [INT8_AVX512] = {"int8_avx512", int8_avx512, 2.0 * 64 * CHAINS *ROUNDS},
    [BF16_AMX] = {"bf16_amx", bf16_amx, 4 * 2.0 * 16 * 16 * 32 * ROUNDS},
    [INT8_AMX] = {"int8_amx", int8_amx, 4 * 2.0 * 16 * 16 * 64 * ROUNDS},
};

static bool tiles(void)
{
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

static bool can(enum kind k)
{
    __builtin_cpu_init();
    switch (k) {
    case READ:
    case F32_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case F32_AVX512:
        return __builtin_cpu_supports("avx512f");
    case BF16_AVX512:
        return __builtin_cpu_supports("avx512bf16");
    case INT8_AVX512:
        return __builtin_cpu_supports("avx512vnni");
    case BF16_AMX:
        return __builtin_cpu_supports("amx-bf16") && tiles();
    case INT8_AMX:
        return __builtin_cpu_supports("amx-int8") && tiles();
    default:
        return false;
    }
}

static void *thread(void *arg)
{
    struct work *w = arg;
    size_t n = READ_BYTES / (size_t)w->n_threads / 4096 * 4096;
    if (w->kind == READ) {
        w->mem = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (w->mem == MAP_FAILED)
            exit(1);
        madvise(w->mem, n, MADV_HUGEPAGE);
        memset(w->mem, 1, n);
    }
    for (int t = 0; t < TRIES; t++) {
        pthread_barrier_wait(w->gate);
        double from = now();
        if (w->kind == READ)
            read_all(w->mem, n);
        else
            kinds[w->kind].run();
        pthread_barrier_wait(w->gate);
        w->seconds[t] = now() - from;
    }
    if (w->kind == READ)
        munmap(w->mem, n);
    return NULL;
}

/* Per second, of all threads together. */
static double measure(enum kind k, int n)
{
    pthread_barrier_t gate;
    pthread_barrier_init(&gate, NULL, (unsigned)n);
    struct work *w = calloc((size_t)n, sizeof *w);
    pthread_t *id = calloc((size_t)n, sizeof *id);
    if (!w || !id)
        exit(1);
    for (int i = 0; i < n; i++) {
        w[i] = (struct work){.gate = &gate, .kind = k, .n_threads = n};
        if (pthread_create(&id[i], NULL, thread, &w[i]))
            exit(1);
    }
    for (int i = 0; i < n; i++)
        pthread_join(id[i], NULL);
    double best = w[0].seconds[0];
    for (int t = 1; t < TRIES; t++)
        best = w[0].seconds[t] < best ? w[0].seconds[t] : best;
    pthread_barrier_destroy(&gate);
    free(w);
    free(id);
    return (k == READ ? (double)READ_BYTES : kinds[k].ops * n) / best;
}

int main(void)
{
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    int n = CPU_COUNT(&set);
    printf("{\"threads\":%d", n);
    for (int k = 0; k < N_KINDS; k++)
        if (can((enum kind)k))
            printf(",\"%s%s\":%.4g", kinds[k].name, k == READ ? "_bytes_per_s" : "_ops_per_s",
                   measure((enum kind)k, n));
    printf("}\n");
    return 0;
}
