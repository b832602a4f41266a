/* Opening models: every wrong file gets an error that names what is wrong and leaves nothing behind; every
 * allocation may fail. Runs on the reference backend and the CPU one. */
#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "tests/engine_run.h"
#include "tests/tiny_gguf.h"

static struct eng_opts options(const char *path, const char *device)
{
    return (struct eng_opts){.path = path,
                             .device = device,
                             .n_threads = 1,
                             .no_pin = true,
                             .max_seqs = 4,
                             .max_rows = 16,
                             .max_logit_rows = 8};
}

static int open_edit(const struct tiny_edit *edit, struct eng_info *info, struct err *e)
{
    char path[64];
    struct engine *g = NULL;
    assert_int_equal(tiny_gguf_write(path, sizeof path, edit), 0);
    struct eng_opts o = options(path, "ref");
    int rc = eng_open(&g, &o, e);
    if (rc)
        assert_null(g);
    else if (info)
        *info = *eng_info(g);
    struct eng_memory mem;
    struct err again = {0};
    int plan = eng_memory_plan(&o, &mem, &again);
    if (rc && plan) /* the plan shares the load's checks */
        assert_string_equal(again.text, e->text);
    eng_close(g);
    unlink(path);
    return rc;
}

static void expect(int code, const char *text, struct tiny_edit edit)
{
    struct err e = {0};
    int rc = open_edit(&edit, NULL, &e);
    if (rc != code || e.code != code || !strstr(e.text, text))
        fail_msg("got %s \"%s\", expected %s \"%s\"", err_name(rc), e.text, err_name(code), text);
}

static void test_good(void **st)
{
    (void)st;
    struct err e = {0};
    struct eng_info i = {0};
    assert_int_equal(open_edit(&(struct tiny_edit){0}, &i, &e), 0);
    assert_string_equal(i.arch, "llama");
    assert_int_equal(i.n_ctx, TINY_CTX);
    assert_int_equal(i.n_vocab, TINY_VOCAB);
    assert_int_equal(i.block_len, 16);
    assert_int_equal(i.n_block,
                     TINY_CTX / 16 + 1); /* max_seqs / 4 = 1 context and the null block */
    assert_int_equal(open_edit(&(struct tiny_edit){.drop = "output.weight"}, &i, &e), 0);
    assert_int_equal(
        open_edit(&(struct tiny_edit){.tensor = "blk.0.attn_k.weight", .fmt = QF_Q8_0}, &i, &e), 0);
}

static void test_missing(void **st)
{
    (void)st;
    static const char *const tensors[] = {
        "token_embd.weight",     "output_norm.weight",   "blk.0.attn_norm.weight",
        "blk.0.attn_q.weight",   "blk.0.attn_k.weight",  "blk.0.attn_v.weight",
        "blk.0.ffn_norm.weight", "blk.0.ffn_up.weight",  "blk.0.attn_output.weight",
        "blk.0.ffn_gate.weight", "blk.0.ffn_down.weight"};
    static const char *const keys[] = {"general.architecture",
                                       "block_count",
                                       "context_length",
                                       "embedding_length",
                                       "feed_forward_length",
                                       "attention.head_count",
                                       "attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        expect(ERR_NOTFOUND, tensors[i], (struct tiny_edit){.drop = tensors[i]});
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        expect(ERR_NOTFOUND, keys[i], (struct tiny_edit){.drop = keys[i]});
}

static void test_shapes(void **st)
{
    (void)st;
    expect(ERR_INVAL, "blk.0.attn_q.weight has shape [48, 32], expected [32, 32]",
           (struct tiny_edit){.tensor = "blk.0.attn_q.weight", .dim = {32, 48}});
    expect(ERR_INVAL, "blk.0.ffn_down.weight has shape [64, 32], expected [32, 64]",
           (struct tiny_edit){.tensor = "blk.0.ffn_down.weight", .dim = {32, 64}});
    expect(ERR_INVAL, "token_embd.weight has shape [64, 16], expected [64, 32]",
           (struct tiny_edit){.tensor = "token_embd.weight", .dim = {16, 64}});
    expect(ERR_INVAL, "token_embd.weight",
           (struct tiny_edit){.tensor = "token_embd.weight", .dim = {32, 0}});
    expect(ERR_INVAL, "tokenizer.ggml.tokens has 64 tokens",
           (struct tiny_edit){.tensor = "token_embd.weight", .dim = {32, 63}});
    expect(ERR_INVAL, "output_norm.weight has shape [16], expected [32]",
           (struct tiny_edit){.tensor = "output_norm.weight", .dim = {16, 0}});
    expect(ERR_INVAL, "output_norm.weight has shape [1, 32], expected [32]",
           (struct tiny_edit){.tensor = "output_norm.weight", .dim = {32, 1}});
    expect(ERR_INVAL, "output_norm.weight: a vector must be F32, F16 or BF16, not Q8_0",
           (struct tiny_edit){.tensor = "output_norm.weight", .fmt = QF_Q8_0});
    expect(ERR_UNSUPPORTED, "blk.0.mystery.weight",
           (struct tiny_edit){.extra = "blk.0.mystery.weight", .extra_value = 1});
    expect(ERR_NOTFOUND, "blk.0.attn_v.bias is missing",
           (struct tiny_edit){.extra = "blk.0.attn_k.bias", .extra_value = 1});
}

static void test_keys(void **st)
{
    (void)st;
    expect(ERR_UNSUPPORTED,
           "architecture \"mamba9\" is not known; docs/models.md lists those that are",
           (struct tiny_edit){.arch = "mamba9"});
    expect(ERR_NOTFOUND, "attn_v.bias", (struct tiny_edit){.arch = "qwen2"});
    expect(ERR_INVAL, "llama.block_count is 0",
           (struct tiny_edit){.key = "block_count", .value = 0});
    expect(ERR_INVAL, "llama.block_count is 4.29497e+09",
           (struct tiny_edit){.key = "block_count", .value = UINT32_MAX});
    expect(ERR_NOTFOUND, "blk.1.", (struct tiny_edit){.key = "block_count", .value = 2});
    expect(ERR_INVAL, "no multiple of head_count_kv",
           (struct tiny_edit){.key = "attention.head_count_kv", .value = 3});
    expect(ERR_INVAL, "no multiple of attention.head_count",
           (struct tiny_edit){.key = "attention.head_count", .value = 3});
    expect(ERR_UNSUPPORTED, "a head of 2048 values is over the limit",
           (struct tiny_edit){.key = "embedding_length", .value = 4096});
    expect(ERR_INVAL, "rope.dimension_count 32 and head size 16",
           (struct tiny_edit){.key = "rope.dimension_count", .value = 32});
    expect(ERR_INVAL, "both must be even",
           (struct tiny_edit){.key = "rope.dimension_count", .value = 7});
    expect(ERR_UNSUPPORTED, "attention.value_length",
           (struct tiny_edit){.key = "attention.value_length", .value = 8});
    expect(ERR_INVAL, "expert_used_count is 0 of 8 experts",
           (struct tiny_edit){.key = "expert_count", .value = 8});
    expect(ERR_UNSUPPORTED, "rope.scaling.type is \"wavelet\"",
           (struct tiny_edit){.scaling = "wavelet"});
    expect(ERR_NOTFOUND, "original_context_length", (struct tiny_edit){.scaling = "yarn"});
    expect(ERR_INVAL, "rope_freqs.weight has shape [16], expected [8]",
           (struct tiny_edit){.extra = "rope_freqs.weight", .extra_value = 1});
    expect(ERR_INVAL, "blk.0.attn_q.weight has shape [32, 32], expected [16, 32]",
           (struct tiny_edit){.key = "attention.key_length", .value = 8});
}

static void test_options(void **st)
{
    (void)st;
    char path[64];
    struct err e = {0};
    struct engine *g = NULL;
    assert_int_equal(tiny_gguf_write(path, sizeof path, &(struct tiny_edit){0}), 0);
    static const struct {
        const char *device, *kv_dtype, *text;
        int32_t n_ctx;
        int max_seqs;
        size_t kv_bytes;
        int code;
    } bad[] = {
        {"tpu", NULL, "device \"tpu\"", 0, 0, 0, ERR_NOTFOUND},
        {"ref", "f8", "kv_dtype is \"f8\"; known: auto, f32, f16, bf16, int8, fp8, fp8_e4m3", 0, 0,
         0, ERR_INVAL},
        {"ref", "fp8_e5m2", "kv_dtype is \"fp8_e5m2\"", 0, 0, 0, ERR_INVAL},
        {"ref", NULL, "a context of 129 tokens is asked for; the model was made for 128", 129, 0, 0,
         ERR_LIMIT},
        {"ref", NULL, "max_seqs is -1", 0, -1, 0, ERR_INVAL},
        {"ref", NULL, "kv_bytes is 10; two blocks take", 0, 0, 10, ERR_LIMIT},
        {"ref", NULL, "a context of 128 tokens takes", 128, 0, 4096, ERR_NOMEM},
        {"ref", NULL, "kv_bytes is", 0, 0, (size_t)1 << 60, ERR_NOMEM},
        {"cuda-emu", NULL, "stepd-cuda-emu.so is neither", 0, 0, 0, ERR_NOTFOUND},
    };
    setenv("STEPD_LIBDIR", "/nonexistent", 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct eng_opts o = options(path, bad[i].device);
        o.kv_dtype = bad[i].kv_dtype;
        o.n_ctx = bad[i].n_ctx;
        o.max_seqs = bad[i].max_seqs;
        o.kv_bytes = bad[i].kv_bytes;
        int rc = eng_open(&g, &o, &e);
        if (rc != bad[i].code || !strstr(e.text, bad[i].text))
            fail_msg("%zu: got %s \"%s\"", i, err_name(rc), e.text);
    }
    struct eng_opts o = options("/tmp", "ref");
    assert_int_equal(eng_open(&g, &o, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "folder"));
    o.path = "/nonexistent.gguf";
    assert_int_not_equal(eng_open(&g, &o, &e), 0);
    assert_non_null(strstr(e.text, "/nonexistent.gguf"));
    unlink(path);
}

/* Plug-ins that are no plug-ins. */
static void test_plugin(void **st)
{
    (void)st;
    const struct backend *b;
    struct err e = {0};
    char dir[] = "/tmp/stepd-plug-XXXXXX", file[64];
    assert_non_null(mkdtemp(dir));
    setenv("STEPD_LIBDIR", dir, 1);
    assert_int_equal(backend_find("auto", &b, &e), 0); /* none there: the CPU */
    assert_string_equal(b->name, "cpu");
    snprintf(file, sizeof file, "%s/stepd-cuda.so", dir);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs("not a library", f);
    fclose(f);
    assert_int_equal(backend_find("cuda", &b, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "stepd-cuda.so"));
    assert_null(b);
    assert_int_equal(backend_find(NULL, &b, &e), 0);
    assert_string_equal(b->name, "cpu");
    unlink(file);
    Dl_info libc;
    assert_true(dladdr((void *)(uintptr_t)&fputs, &libc) != 0);
    assert_int_equal(symlink(libc.dli_fname, file), 0);
    assert_int_equal(backend_find("cuda", &b, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "no symbol stepd_backend"));
    unlink(file);
    rmdir(dir);
    unsetenv("STEPD_LIBDIR");
}

/* A short pool shortens the context instead of failing. */
static void test_small_pool(void **st)
{
    (void)st;
    char path[64];
    struct err e = {0};
    struct engine *g = NULL;
    struct eng_memory mem;
    assert_int_equal(tiny_gguf_write(path, sizeof path, &(struct tiny_edit){0}), 0);
    struct eng_opts o = options(path, "ref");
    o.kv_dtype = "f16";
    o.kv_bytes = 3 * 16 * 2 * 16 * 2; /* 3 blocks of 16 tokens, K and V, 16 halves */
    assert_int_equal(eng_memory_plan(&o, &mem, &e), 0);
    assert_int_equal(mem.n_block, 3);
    assert_int_equal(mem.n_ctx, 32);
    assert_int_equal(mem.kv_per_token, 64);
    assert_int_equal(mem.total, mem.weights + mem.kv + mem.work);
    assert_int_equal(eng_open(&g, &o, &e), 0);
    assert_int_equal(eng_info(g)->n_ctx, 32);
    uint64_t id = eng_info(g)->layout_id;
    eng_close(g);
    o.kv_dtype = "f32";
    o.kv_bytes = 0;
    assert_int_equal(eng_open(&g, &o, &e), 0);
    assert_true(eng_info(g)->layout_id != id);
    eng_close(g);
    o.kv_dtype = "int8";
    o.kv_bytes = 1;
    while (eng_memory_plan(&o, &mem, &e)) /* to the first pool of two blocks */
        o.kv_bytes++;
    assert_int_equal(mem.n_block, 2);
    assert_int_equal(mem.kv_per_token, 2 * (16 + 4));
    assert_int_equal(o.kv_bytes, mem.kv);
    unlink(path);
}

static int descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void fail_each(const char *path, const char *device)
{
    struct eng_opts o = options(path, device);
    o.keep_logits = true;
    int before = descriptors();
    run_open_no_memory(&o, device);
    assert_int_equal(descriptors(), before);
}

/* Under the asan variant a leak on any of these paths fails the run. */
static void test_nomem(void **st)
{
    (void)st;
    char path[64];
    assert_int_equal(tiny_gguf_write(path, sizeof path, &(struct tiny_edit){0}), 0);
    fail_each(path, "ref");
    fail_each(path, "cpu");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),    cmocka_unit_test(test_missing),
        cmocka_unit_test(test_shapes),  cmocka_unit_test(test_keys),
        cmocka_unit_test(test_options), cmocka_unit_test(test_small_pool),
        cmocka_unit_test(test_nomem),   cmocka_unit_test(test_plugin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
