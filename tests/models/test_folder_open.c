/* Folders whose config.json asks for what is not there: each is refused with the name of the value. And every allocation
 * of opening one may fail. */
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
#include "tests/engine_run.h"
#include "tests/tree.h"

#define DATA "tests/data/folders"

static struct eng_opts options(const char *path)
{
    return (struct eng_opts){.path = path,
                             .device = "ref",
                             .n_threads = 1,
                             .no_pin = true,
                             .max_seqs = 4,
                             .max_rows = 16,
                             .max_logit_rows = 8};
}

/* A copy of the case; its path. */
static void copy(char *dir, char *path, size_t n, const char *name)
{
    char src[TREE_PATH];
    tree_make(dir);
    snprintf(src, sizeof src, DATA "/%s", name);
    snprintf(path, n, "%s/%s", dir, name);
    tree_copy(src, path);
    remove(tree_path(path, "golden.safetensors"));
}

static void edit(const char *path, const char *from, const char *to)
{
    static char text[65536], out[65536];
    FILE *f = fopen(tree_path(path, "config.json"), "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *at = strstr(text, from);
    if (!at)
        fail_msg("%s: no %s", path, from);
    else
        snprintf(out, sizeof out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    tree_text(path, "config.json", out);
}

static const struct {
    const char *name, *from, *to, *text;
    int code;
} bad[] = {
    {"phi3-longrope", "\"long_factor\": [", "\"long_factor\": [9.0,", "long_factor has 9",
     ERR_INVAL},
    {"phi3-longrope", "\"long_factor\": [", "\"long_factor\": [-1, 1, 1, 1, 1, 1, 1, 1], \"x\": [",
     "long_factor holds -1", ERR_INVAL},
    {"phi3-longrope", "\"short_factor\"", "\"x\"", "short_factor has 0", ERR_INVAL},
    {"phi4", "0.75", "1.5", "partial_rotary_factor", ERR_INVAL},
    {"opt", "\"do_layer_norm_before\": true", "\"do_layer_norm_before\": false",
     "do_layer_norm_before", ERR_UNSUPPORTED},
    {"gpt2", "\"scale_attn_by_inverse_layer_idx\": false",
     "\"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx",
     ERR_UNSUPPORTED},
    {"smollm3", "\"no_rope_layers\": [", "\"no_rope_layers\": [1], \"x\": [",
     "no_rope_layers has 1 elements", ERR_INVAL},
    {"cohere2", "\"sliding_attention\"", "\"slow_attention\"", "slow_attention", ERR_UNSUPPORTED},
    {"stablelm", "\"silu\"", "\"mish\"", "mish", ERR_UNSUPPORTED},
    {"bloom", "\"n_head\": 4", "\"n_head\": 5", "no multiple", ERR_INVAL},
    {"mpt", "\"alibi\": true", "\"alibi\": false", "ALiBi", ERR_UNSUPPORTED},
    {"olmo", "\"clip_qkv\": null", "\"clip_qkv\": -8.0", "clip_qkv is -8", ERR_INVAL},
    {"qwen2-window", "\"sliding_window\": 8", "\"sliding_window\": -1", "sliding_window is -1",
     ERR_INVAL},
    {"granite", "\"residual_multiplier\": 0.7", "\"residual_multiplier\": 0",
     "residual_multiplier is 0", ERR_INVAL},
    {"gptj", "\"rotary_dim\": 8", "\"rotary_dim\": 7", "must be even", ERR_INVAL},
    {"falcon-new", "\"num_kv_heads\": 2", "\"num_kv_heads\": 3", "no multiple", ERR_INVAL},
    {"llama-linear-rope", "\"factor\": 2.0", "\"factor\": -2.0", "factor is -2", ERR_INVAL},
    {"gpt_neox", "\"hidden_size\": 64", "\"hidden_size\": 128", "has shape", ERR_INVAL},
    {"gemma2", "\"query_pre_attn_scalar\": 16", "\"query_pre_attn_scalar\": \"x\"",
     "query_pre_attn_scalar", ERR_INVAL},
};

static void test_refused(void **st)
{
    (void)st;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char dir[TREE_PATH], path[TREE_PATH + 96];
        struct engine *g = NULL;
        struct err e = {0};
        copy(dir, path, sizeof path, bad[i].name);
        edit(path, bad[i].from, bad[i].to);
        struct eng_opts o = options(path);
        int rc = eng_open(&g, &o, &e);
        if (rc != bad[i].code || !strstr(e.text, bad[i].text))
            fail_msg("%s, %s: got %s \"%s\", expected %s \"%s\"", bad[i].name, bad[i].to,
                     err_name(rc), e.text, err_name(bad[i].code), bad[i].text);
        assert_null(g);
        tree_remove(dir);
    }
}

static void fail_each(const char *name)
{
    char dir[TREE_PATH], path[TREE_PATH + 96];
    copy(dir, path, sizeof path, name);
    struct eng_opts o = options(path);
    run_open_no_memory(&o, name);
    tree_remove(dir);
}

static void test_nomem(void **st)
{
    (void)st;
    fail_each("falcon-alibi");
    fail_each("gpt2");
    fail_each("phi3-longrope");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nomem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
