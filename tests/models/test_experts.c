/* Mixtures of experts and latent attention that are broken: refused by the name of the tensor or the key, and every
 * failing allocation leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/engine.h"
#include "tests/tree.h"

/* Every `from` in a file becomes `to`, which is as long. */
static void patch(const char *dir, const char *name, const char *from, const char *to)
{
    FILE *f = fopen(tree_path(dir, name), "r+b");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f), len = strlen(from), hits = 0;
    assert_int_equal(len, strlen(to));
    char *p = malloc(n);
    rewind(f);
    assert_int_equal(fread(p, 1, n, f), n);
    for (size_t i = 0; i + len <= n; i++)
        if (!memcmp(p + i, from, len)) {
            memcpy(p + i, to, len);
            hits++;
        }
    assert_true(hits > 0);
    rewind(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
    free(p);
}

/* A case's copy with one change does not open; the message has `text` in it. */
static void refused(const char *name, const char *file, const char *from, const char *to,
                    const char *text)
{
    char dir[TREE_PATH], src[TREE_PATH];
    struct engine *g = NULL;
    struct err e = {0};
    tree_make(dir);
    snprintf(src, sizeof src, "tests/data/folders/%s", name);
    tree_copy(src, tree_path(dir, name));
    char path[TREE_PATH];
    snprintf(path, sizeof path, "%.255s/%.64s", dir, name);
    remove(tree_path(path, "golden.safetensors"));
    patch(path, file, from, to);
    struct eng_opts o = {.path = path, .device = "cpu", .max_rows = 16, .max_seqs = 4};
    int rc = eng_open(&g, &o, &e);
    if (rc == 0 || !strstr(e.text, text))
        fail_msg("%s, %s: %d \"%s\", expected \"%s\"", name, to, rc, e.text, text);
    assert_null(g);
    tree_remove(dir);
}

static void test_tensors(void **st)
{
    (void)st;
    static const char weights[] = "model.safetensors";
    refused("mixtral", weights, "layers.1.block_sparse_moe.experts.2.w3",
            "layers.1.block_sparse_moe.experts.9.w3",
            "layers.1.block_sparse_moe.experts.2.w3.weight is missing");
    refused("mixtral", weights, "layers.2.block_sparse_moe.experts.0.w2",
            "layers.2.block_sparse_moe.experts.0.w9",
            "layers.2.block_sparse_moe.experts.0.w2.weight is missing");
    refused("qwen3_moe", weights, "layers.0.mlp.gate.weight", "layers.0.mlp.gaga.weight",
            "layers.0.mlp.gate.weight is missing");
    refused("gpt_oss", weights, "layers.3.mlp.experts.down_proj_bias",
            "layers.3.mlp.experts.down_proj_bios",
            "layers.3.mlp.experts.down_proj_bias is missing");
    refused("deepseek_v3", weights, "layers.1.self_attn.kv_b_proj", "layers.1.self_attn.kv_c_proj",
            "layers.1.self_attn.kv_b_proj.weight is missing");
    refused("deepseek_v3", weights, "layers.2.self_attn.q_b_proj", "layers.2.self_attn.q_c_proj",
            "layers.2.self_attn.q_b_proj.weight is missing");
}

static void test_keys(void **st)
{
    (void)st;
    static const char config[] = "config.json";
    refused("mixtral", config, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9",
            "num_experts_per_tok is 9 of 4 experts");
    refused("qwen3_moe", config, "\"num_local_experts\": 8", "\"num_local_experts\": 7", "tensor");
    refused("deepseek_v3", config, "\"topk_group\": 2", "\"topk_group\": 9", "n_group");
    refused("deepseek_v3", config, "\"kv_lora_rank\": 32", "\"kv_lora_rank\": 31", "tensor");
    refused("deepseek_v3", config, "\"qk_rope_head_dim\": 8", "\"qk_rope_head_dim\": 7",
            "7 are rotated");
}

/* The n-th allocation fails, for every n until it opens. */
static void test_memory(void **st)
{
    static const char *const names[] = {"gpt_oss", "deepseek_v3"};
    (void)st;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[TREE_PATH], src[TREE_PATH], path[TREE_PATH];
        struct engine *g = NULL;
        tree_make(dir);
        snprintf(src, sizeof src, "tests/data/folders/%s", names[i]);
        snprintf(path, sizeof path, "%.255s/%.64s", dir, names[i]);
        tree_copy(src, path);
        remove(tree_path(path, "golden.safetensors"));
        struct eng_opts o = {.path = path, .device = "ref", .max_rows = 16, .max_seqs = 4};
        for (int n = 1; !g; n += 1 + n / 16) {
            struct err e = {0};
            mem_fail_after(n, false);
            int rc = eng_open(&g, &o, &e);
            mem_fail_after(0, false);
            assert_true(rc == 0 ? g != NULL : g == NULL && e.text[0] != 0);
            assert_true(n < 100000);
        }
        eng_close(g);
        tree_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
