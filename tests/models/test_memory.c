/* Memory limits from files as the kernel shows them, the KV pool's size, and rotary frequencies. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/kv.h"
#include "engine/models/model.h"

static char root[64];

/* Write root + path, making folders on the way. */
static void put(const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static void drop(const char *path)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", root, path);
    assert_int_equal(unlink(full), 0);
}

static void test_available(void **st)
{
    (void)st;
    snprintf(root, sizeof root, "/tmp/stepd-mem-XXXXXX");
    assert_non_null(mkdtemp(root));
    assert_true(eng_memory_available(root) == SIZE_MAX);
    put("/proc/meminfo", "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:   1000 kB\n");
    assert_int_equal(eng_memory_available(root), 1000 * 1024);
    /* Version 2: the tightest of the group and its parents; page cache is free. */
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_int_equal(eng_memory_available(root), 1000 * 1024);
    put("/sys/fs/cgroup/a/memory.max", "500000\n");
    assert_int_equal(eng_memory_available(root), 500000);
    put("/sys/fs/cgroup/a/memory.current", "300000\n");
    assert_int_equal(eng_memory_available(root), 200000);
    put("/sys/fs/cgroup/a/memory.stat", "anon 1\nfile 7\ninactive_file 40000\nactive_file 10000\n");
    assert_int_equal(eng_memory_available(root), 250000);
    put("/sys/fs/cgroup/memory.max", "1000\n"); /* as a container sees its own group */
    assert_int_equal(eng_memory_available(root), 1000);
    drop("/sys/fs/cgroup/memory.max");
    put("/sys/fs/cgroup/a/memory.current", "900000\n"); /* over its limit */
    assert_int_equal(eng_memory_available(root), 0);
    /* Version 1. */
    put("/proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/x\n");
    put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "700000\n");
    put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "100000\n");
    assert_int_equal(eng_memory_available(root), 600000);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(eng_memory_available(root), 600000);
    put("/proc/meminfo", "MemTotal: 100 kB\n");
    assert_int_equal(eng_memory_available(root), 600000);
}

static size_t block_100(const struct kv_desc *k)
{
    (void)k;
    return 100;
}

static void test_kv_plan(void **st)
{
    (void)st;
    const struct backend be = {.kv_block_bytes = block_100};
    struct kv_request r = {
        .n_ctx_model = 160, .max_seqs = 64, .available = 1000000, .fixed = 100000};
    struct kv_desc k = {.n_layer = 1};
    struct kv_plan p;
    struct err e = {0};
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), 0);
    assert_int_equal(p.n_block, 16 * 10 + 1);
    assert_int_equal(k.n_block, p.n_block);
    assert_int_equal(p.n_ctx, 160);
    assert_int_equal(p.bytes, 16100);
    r.kv_bytes = 800000; /* 0.9 of what is available, less what is fixed */
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), 0);
    assert_int_equal(p.n_block, 8000);
    r.kv_bytes = 800100;
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), ERR_NOMEM);
    r.kv_bytes = 0;
    r.fixed = 899500; /* five blocks are left: four for tokens */
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), 0);
    assert_int_equal(p.n_block, 5);
    assert_int_equal(p.n_ctx, 64);
    r.n_ctx = 65;
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), ERR_NOMEM);
    r.n_ctx = 64;
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), 0);
    r.fixed = 899801;
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), ERR_NOMEM);
    r.fixed = SIZE_MAX;
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), ERR_NOMEM);
}

/* Without KV a block is only a name for sixteen tokens: no bytes, whatever is asked for. */
static void test_no_kv(void **st)
{
    (void)st;
    const struct backend be = {.kv_block_bytes = block_100};
    struct kv_request r = {
        .n_ctx_model = 160, .max_seqs = 64, .available = 1000, .fixed = 990, .kv_bytes = 1};
    struct kv_desc k = {0};
    struct kv_plan p;
    struct err e = {0};
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), 0);
    assert_int_equal(p.n_block, 16 * 10 + 1);
    assert_int_equal(p.n_ctx, 160);
    assert_int_equal(p.bytes, 0);
    r.n_ctx_model = 1 << 26; /* a whole context always fits */
    assert_int_equal(eng_kv_plan(&p, &k, 1, &r, &be, &e), 0);
    assert_int_equal(p.n_block, (1 << 22) + 1);
    assert_int_equal(p.n_ctx, 1 << 26);
}

/* Values by transformers 5.24.0: _compute_yarn_parameters, _compute_linear_scaling_rope_parameters. */
static void test_rope(void **st)
{
    (void)st;
    float f[8];
    struct model_hp hp = {.n_rot = 16,
                          .rope_base = 10000,
                          .rope_factor = 4,
                          .rope_ctx_orig = 64,
                          .rope_beta_fast = 32,
                          .rope_beta_slow = 1};
    model_rope_freqs(&hp, f);
    for (int i = 0; i < 8; i++)
        assert_float_equal(f[i], powf(10000, -(float)i / 8), 1e-7);
    hp.rope_scaling = ROPE_SCALING_LINEAR;
    model_rope_freqs(&hp, f);
    assert_float_equal(f[0], 0.25, 1e-7);
    assert_float_equal(hp.attn_factor, 1, 0);
    hp.rope_scaling = ROPE_SCALING_YARN;
    model_rope_freqs(&hp, f);
    static const float yarn[8] = {1,
                                  0.237170815f,
                                  0.049999997f,
                                  0.00790569466f,
                                  0.00249999994f,
                                  0.000790569466f,
                                  0.000250000012f,
                                  7.90569466e-05f};
    for (int i = 0; i < 8; i++)
        assert_float_equal(f[i], yarn[i], 1e-6f * yarn[i]);
    assert_float_equal(hp.attn_factor, 1.13862944, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_available),
        cmocka_unit_test(test_kv_plan),
        cmocka_unit_test(test_no_kv),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
