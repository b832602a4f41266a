/* Encoders that are decoders (a folder with a pooling beside it), T5, dense layers after the pooling, and GGUF files of
 * encoders: vectors of transformers, on the reference backend, every CPU table and the emulation; the same bytes alone and
 * in company; what is refused. Goldens: tests/data/encode, record_embed.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/cpu/dispatch.h"
#include "engine/engine.h"
#include "tests/golden.h"
#include "tests/tree.h"

#define DATA    "tests/data/encode/"
#define FOLDERS "tests/data/folders/"
#define TOL     1e-4
#define DIM_MAX 256

#define QWEN2(more)                                                                                \
    "{\"model_type\":\"qwen2\",\"hidden_size\":64,\"intermediate_size\":96,"                       \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_hidden_layers\":3,"                 \
    "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-6,\"rope_theta\":10000" more "}"
#define POOL(mode) "{\"pooling_mode_" mode "\":true}"

/* A folder is `model` (where its weights are another test's) with the golden's folder over it. */
static const struct emb_case {
    const char *name, *model, *config, *pooling;
    bool gguf;
    int dim, n_max;
} all[] = {
    {"qwen3-embed", FOLDERS "qwen3", NULL, POOL("lasttoken"), false, 64, 256},
    {"qwen2-embed", FOLDERS "qwen2", QWEN2(",\"is_causal\":false"), POOL("mean_tokens"), false, 64,
     256},
    {"mistral-embed", FOLDERS "mistral-swa", NULL, POOL("lasttoken"), false, 64, 8},
    {"t5-embed", NULL, NULL, POOL("mean_tokens"), false, 32, 512},
    {"bert-dense", DATA "bert", NULL, POOL("cls_token"), false, 40, 64},
    {"bert-gguf", NULL, NULL, NULL, true, 64, 64},
    {"nomic-gguf", NULL, NULL, NULL, true, 64, 64},
    {"qwen3-embed", NULL, NULL, NULL, true, 64, 256},
    {"bert-q2_k", NULL, NULL, NULL, true, 256, 64},
    {"bert-q3_k", NULL, NULL, NULL, true, 256, 64},
    {"bert-q4_k", NULL, NULL, NULL, true, 256, 64},
    {"bert-q5_k", NULL, NULL, NULL, true, 256, 64},
    {"bert-q6_k", NULL, NULL, NULL, true, 256, 64},
    {"nomic-k", NULL, NULL, NULL, true, 256, 64},
};

static char dir[TREE_PATH], path[TREE_PATH + 32];

static void make(const struct emb_case *c)
{
    char from[128];
    tree_make(dir);
    if (c->model)
        tree_copy(c->model, dir);
    snprintf(from, sizeof from, DATA "%s", c->name);
    tree_copy(from, dir);
    if (c->config)
        tree_text(dir, "config.json", c->config);
    if (c->pooling)
        tree_text(dir, "1_Pooling/config.json", c->pooling);
    remove(tree_path(dir, "golden.safetensors"));
    if (!c->gguf)
        remove(tree_path(dir, "model.gguf"));
    snprintf(path, sizeof path, "%s%s", dir, c->gguf ? "/model.gguf" : "");
}

static void check_row(const struct emb_case *c, const float *v, const float *want)
{
    double sum = 0;
    for (int i = 0; i < c->dim; i++)
        sum += (double)v[i] * (double)v[i];
    for (int i = 0; i < c->dim; i++) {
        double got = (double)v[i] / sqrt(sum);
        if (!(fabs(got - (double)want[i]) <= TOL))
            fail_msg("%s: value %d is %g, expected %g", c->name, i, got, (double)want[i]);
    }
}

static void check_engine(const struct emb_case *c, struct engine *g)
{
    static float together[2][DIM_MAX], alone[DIM_MAX];
    char at[128];
    size_t k;
    struct err e = {0};
    struct eng_encode_row row[2];
    const struct eng_encoder_info *info = eng_info(g)->encoder;
    assert_non_null(info);
    assert_int_equal(info->dim, c->dim);
    assert_int_equal(info->n_tok_max, c->n_max);
    assert_int_equal(eng_info(g)->n_vocab, 512);
    snprintf(at, sizeof at, DATA "%s/golden.safetensors.xz", c->name);
    struct golden *gold = golden_open(at);
    assert_non_null(gold);
    const int32_t *ids = golden_i32(gold, "input_ids", &k);
    const int32_t *mask = golden_i32(gold, "attention_mask", &k);
    const float *want = golden_f32(gold, "embed", &k);
    assert_int_equal(k, 2 * c->dim);
    for (int r = 0; r < 2; r++) {
        int32_t n = 0;
        while (n < 20 && mask[r * 20 + n])
            n++;
        row[r] = (struct eng_encode_row){ids + r * 20, n, n, together[r]};
    }
    if (eng_encode(g, row, 2, &e))
        fail_msg("%s: %s", c->name, e.text);
    for (int r = 0; r < 2; r++) {
        check_row(c, together[r], want + r * c->dim);
        row[r].out = alone;
        assert_int_equal(eng_encode(g, &row[r], 1, &e), 0);
        assert_memory_equal(alone, together[r], (size_t)c->dim * sizeof *alone);
    }
    golden_close(gold);
}

static struct engine *open_on(const char *device, const char *isa, struct err *e)
{
    struct engine *g = NULL;
    struct eng_opts o = {.path = path,
                         .device = device,
                         .isa = isa,
                         .n_threads = 2,
                         .no_pin = true,
                         .precision = PRECISION_F32};
    int rc = eng_open(&g, &o, e);
    assert_true((rc == 0) == (g != NULL));
    return g;
}

static void test_case(void **st)
{
    const struct emb_case *c = *st;
    struct err e = {0};
    struct eng_memory mem;
    make(c);
    assert_true(eng_path_is_encoder(path));
    assert_int_equal(eng_memory_plan(&(struct eng_opts){.path = path, .device = "cpu"}, &mem, &e),
                     0);
    assert_int_equal(mem.n_ctx, c->n_max);
    for (int i = -2; i < CPU_N_ISA; i++) {
        if (i >= 0 && !cpu_isa_usable(i)) {
            print_message("SKIP isa %s: this processor can't run it\n", cpu_isas[i].name);
            continue;
        }
        const char *device = i == -2 ? "ref" : i == -1 ? "cuda-emu" : "cpu";
        struct engine *g = open_on(device, i < 0 ? NULL : cpu_isas[i].name, &e);
        if (!g && i == -1) {
            print_message("SKIP cuda-emu: %s\n", e.text);
            continue;
        }
        if (!g)
            fail_msg("%s", e.text);
        check_engine(c, g);
        eng_close(g);
    }
    tree_remove(dir);
}

/* ---- what is refused ---- */

/* The last case's folder is open to one more file. */
static void refused(const struct emb_case *c, const char *name, const char *text, const char *word)
{
    struct err e = {0};
    make(c);
    tree_text(dir, name, text);
    if (open_on("cpu", NULL, &e))
        fail_msg("%s with %s opens", c->name, name);
    if (!strstr(e.text, word))
        fail_msg("\"%s\" does not say %s", e.text, word);
    tree_remove(dir);
}

static void test_refused(void **st)
{
    (void)st;
    static const char dense[] = "2_Dense/config.json";
    refused(&all[1], "config.json", QWEN2(",\"auto_map\":{\"AutoModel\":\"x.Y\"}"), "auto_map");
    refused(&all[1], "config.json", QWEN2(",\"is_causal\":3"), "is_causal");
    refused(&all[1], "config.json", QWEN2(",\"use_sliding_window\":true"), "use_sliding_window");
    refused(&all[3], "config.json", "{\"model_type\":\"t5\"}", "d_model");
    refused(&all[4], dense, "{\"in_features\":64}", "out_features");
    refused(&all[4], dense, "{\"in_features\":32,\"out_features\":8}", "in_features is 32");
    refused(&all[4], dense, "{\"out_features\":8,\"bias\":false}", "linear.weight");
    refused(&all[4], dense, "{\"out_features\":48,\"activation_function\":\"torch.nn.GELU\"}",
            "GELU");
    refused(&all[4], "3_Dense/config.json", "{\"in_features\":48,\"out_features\":40}",
            "linear.bias");
    refused(&all[4], "2_Dense/model.safetensors", "no tensors", "2_Dense");
    refused(&all[4], "4_LayerNorm/config.json", "{}", "4_LayerNorm");
    refused(&all[6], "model.gguf", "GGUF", "model.gguf");
}

/* Without a pooling a decoder is a language model, and so is a GGUF file that says none. */
static void test_kind(void **st)
{
    (void)st;
    assert_false(eng_path_is_encoder(FOLDERS "qwen3"));
    assert_false(eng_path_is_encoder("tests/data/folders/SOURCES"));
    make(&all[0]);
    assert_true(eng_path_is_encoder(dir));
    remove(tree_path(dir, "1_Pooling/config.json"));
    assert_false(eng_path_is_encoder(dir));
    tree_remove(dir);
}

/* The n-th allocation fails, for every n: an error, nothing left behind. */
static void nomem(const struct emb_case *c)
{
    float out[2][DIM_MAX];
    int32_t ids[5] = {3, 4, 5, 6, 7};
    struct eng_encode_row row[2] = {{ids, 5, 5, out[0]}, {ids, 3, 3, out[1]}};
    int rc = ERR_NOMEM;
    make(c);
    for (int n = 1; rc && n < 3000; n++) {
        struct err e = {0};
        struct engine *g = NULL;
        struct eng_opts o = {.path = path, .device = "ref", .no_pin = true};
        mem_fail_after(n, true);
        rc = eng_open(&g, &o, &e);
        if (!rc)
            rc = eng_encode(g, row, 2, &e);
        mem_fail_after(0, false);
        eng_close(g);
    }
    assert_int_equal(rc, 0);
    tree_remove(dir);
}

static void test_nomem(void **st)
{
    (void)st;
    nomem(&all[3]);
    nomem(&all[4]);
    nomem(&all[5]);
    nomem(&all[7]);
}

int main(void)
{
    enum { N = sizeof all / sizeof *all };
    struct CMUnitTest tests[N + 3];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){.name = all[i].name,
                                       .test_func = test_case,
                                       .initial_state = (void *)(uintptr_t)&all[i]};
    tests[N] = (struct CMUnitTest)cmocka_unit_test(test_refused);
    tests[N + 1] = (struct CMUnitTest)cmocka_unit_test(test_kind);
    tests[N + 2] = (struct CMUnitTest)cmocka_unit_test(test_nomem);
    return _cmocka_run_group_tests("embed", tests, N + 3, NULL, NULL);
}
