/* See dispatch.h. A CPUID bit alone is not enough: the operating system must save the registers (XCR0), for
 * AMX the process must ask for the tile data (arch_prctl), and some virtual machines grant all of that and
 * still fault at the first tile instruction, so that one is tried in a child process. */
#include "engine/cpu/dispatch.h"

#include "engine/cpu/kern_state.h"

#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TABLES(i, ...)                                                                             \
    {                                                                                              \
        .name = #i, .gemm = &cpu_gemm_##i, .norm = &cpu_norm_##i, .attn = &cpu_attn_##i,           \
        .sample = &cpu_sample_##i, .image = &cpu_image_##i, .state = &cpu_state_##i,               \
        .mla = &cpu_mla_##i, __VA_ARGS__                                                           \
    }
const struct cpu_isa cpu_isas[CPU_N_ISA] = {
    TABLES(scalar, ), TABLES(avx2, ), TABLES(avx512, .words = &cpu_attn_words_avx512),
    TABLES(amx, .attend = &cpu_attend_amx, .tiles = &cpu_attn_tiles_amx)};

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA  18

#define BIT(n) (1u << (n))
/* Bits that each table's compiler flags may use (Intel SDM vol. 2A, CPUID). */
#define L1_C    (BIT(12) | BIT(27) | BIT(28) | BIT(29)) /* fma osxsave avx f16c */
#define L7_B_2  BIT(5)                                  /* avx2 */
#define L7_B_5  (BIT(16) | BIT(17) | BIT(30) | BIT(31)) /* avx512 f dq bw vl */
#define L7_C_AM (BIT(1) | BIT(11))                      /* avx512 vbmi vnni */
#define L7_D_AM (BIT(22) | BIT(24) | BIT(25))           /* amx bf16 tile int8 */
#define L71_A   BIT(5)                                  /* avx512 bf16 */
#define XCR0_2  0x6u                                    /* xmm ymm */
#define XCR0_5  (XCR0_2 | 0xe0u)                        /* k, upper zmm, zmm16-31 */
#define XCR0_AM (XCR0_5 | 0x60000u)                     /* tile config, tile data */

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool has(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

/* Configure one tile, zero it, release: ldtilecfg, tilezero tmm0, tilerelease. By bytes, because this
 * object is compiled without wide flags. */
static void tile_touch(void)
{
    struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } cfg;
    memset(&cfg, 0, sizeof cfg);
    cfg.palette = 1;
    cfg.bytes[0] = 64;
    cfg.rows[0] = 16;
    __asm__ volatile(".byte 0xc4,0xe2,0x78,0x49,0x00\n\t" /* ldtilecfg (%rax) */
                     ".byte 0xc4,0xe2,0x7b,0x49,0xc0\n\t" /* tilezero %tmm0 */
                     ".byte 0xc4,0xe2,0x78,0x49,0xc0"     /* tilerelease */
                     :
                     : "a"(&cfg), "m"(cfg)
                     : "memory");
}

/* In a child, so that a fault there costs nothing here. Only async-signal-safe calls after fork. */
static bool tile_probe(void)
{
    pid_t pid = fork();
    if (pid < 0)
        return false;
    if (pid == 0) {
        /* A sanitizer's or a library's handler must not turn the fault into a report. */
        struct {
            void *handler;
            unsigned long flags, restorer, mask;
        } dfl = {0};
        for (int sig = 4; sig <= 11; sig++) /* SIGILL, SIGTRAP, SIGABRT, SIGBUS .. SIGSEGV */
            syscall(SYS_rt_sigaction, sig, &dfl, NULL, 8);
        tile_touch();
        _exit(0);
    }
    int st = 0;
    while (waitpid(pid, &st, 0) < 0)
        if (errno != EINTR)
            return false;
    return WIFEXITED(st) && WEXITSTATUS(st) == 0;
}

static bool usable[CPU_N_ISA];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void detect(void)
{
    uint32_t a, b, c, d, c1, a71 = 0, x;
    usable[0] = true;
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !has(c1, L1_C))
        return;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    if (a >= 1)
        __get_cpuid_count(7, 1, &a71, &x, &x, &x);
    uint64_t os = xcr0();
    usable[1] = has(b, L7_B_2) && (os & XCR0_2) == XCR0_2;
    usable[2] = usable[1] && has(b, L7_B_5) && (os & XCR0_5) == XCR0_5;
    usable[3] = usable[2] && has(c, L7_C_AM) && has(d, L7_D_AM) && has(a71, L71_A) &&
                (os & XCR0_AM) == XCR0_AM &&
                syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 &&
                tile_probe();
}

bool cpu_isa_usable(int i)
{
    pthread_once(&once, detect);
    return i >= 0 && i < CPU_N_ISA && usable[i];
}

int cpu_isa_pick(const struct cpu_isa **out, const char *want, struct err *e)
{
    bool any = !want || strcmp(want, "auto") == 0;
    for (int i = CPU_N_ISA - 1; i >= 0; i--) {
        if (!any && strcmp(want, cpu_isas[i].name) != 0)
            continue;
        if (cpu_isa_usable(i)) {
            *out = &cpu_isas[i];
            return 0;
        }
        if (!any)
            return err_set(e, ERR_UNSUPPORTED, "isa '%s': this processor can't run it", want);
    }
    return err_set(e, ERR_INVAL, "isa '%s' is unknown: scalar, avx2, avx512, amx", want);
}
