/* Encoders against transformers: vectors and scores of tiny models of every family, on the reference backend and every
 * CPU table; the same bytes alone and in company; bad files and bad rows. Goldens: tests/data/encode. */
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

#define DATA "tests/data/encode/"
#define TOL  1e-4

/* A model open on a device, in f32 unless said otherwise. */
static struct engine *open_on(const char *name, const char *device, const char *isa,
                              enum eng_precision p)
{
    char path[128];
    struct engine *g = NULL;
    struct err e = {0};
    snprintf(path, sizeof path, DATA "%s", name);
    struct eng_opts o = {
        .path = path, .device = device, .isa = isa, .n_threads = 2, .no_pin = true, .precision = p};
    assert_true(eng_path_is_encoder(path));
    assert_false(eng_path_is_image(path));
    if (eng_open(&g, &o, &e))
        fail_msg("%s", e.text);
    return g;
}

/* fn on ref and on every table that the processor can run. */
static void each_device(const char *name, void (*fn)(struct engine *g, const char *name))
{
    struct engine *g = open_on(name, "ref", NULL, PRECISION_F32);
    fn(g, name);
    eng_close(g);
    for (int i = 0; i < CPU_N_ISA; i++) {
        if (!cpu_isa_usable(i)) {
            print_message("SKIP isa %s: this processor can't run it\n", cpu_isas[i].name);
            continue;
        }
        g = open_on(name, "cpu", cpu_isas[i].name, PRECISION_F32);
        fn(g, name);
        eng_close(g);
    }
}

static void normalise(float *v, int d)
{
    double sum = 0;
    for (int i = 0; i < d; i++)
        sum += (double)v[i] * (double)v[i];
    for (int i = 0; i < d; i++)
        v[i] = (float)((double)v[i] / sqrt(sum));
}

static void near(const char *what, const float *got, const float *want, int n, double tol)
{
    for (int i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tol))
            fail_msg("%s: value %d is %g, expected %g", what, i, (double)got[i], (double)want[i]);
}

/* Both rows of a golden, their padding taken off, in one batch. */
struct pair {
    struct golden *gold;
    struct eng_encode_row row[2];
    float out[2][64];
};

static void pair_open(struct pair *p, const char *name)
{
    char path[128];
    size_t k;
    snprintf(path, sizeof path, DATA "%s/golden.safetensors.xz", name);
    p->gold = golden_open(path);
    assert_non_null(p->gold);
    const int32_t *ids = golden_i32(p->gold, "input_ids", &k);
    const int32_t *mask = golden_i32(p->gold, "attention_mask", &k);
    for (int r = 0; r < 2; r++) {
        int32_t n = 0;
        while (n < 20 && mask[r * 20 + n])
            n++;
        p->row[r] = (struct eng_encode_row){.ids = ids + r * 20, .n = n, .second = n};
        p->row[r].out = p->out[r];
    }
    assert_true(p->row[1].n < 20); /* padding is a part of the golden */
}

static const float *gold_f32(struct golden *g, const char *name)
{
    size_t n;
    const float *v = golden_f32(g, name, &n);
    assert_non_null(v);
    return v;
}

static void check_vectors(struct engine *g, const char *name)
{
    struct pair p;
    struct err e = {0};
    pair_open(&p, name);
    const struct eng_encoder_info *i = eng_info(g)->encoder;
    assert_int_equal(i->dim, 64);
    assert_int_equal(i->n_label, 0);
    assert_int_equal(i->n_tok_max, 64);
    assert_int_equal(eng_info(g)->n_vocab, 512);
    if (eng_encode(g, p.row, 2, &e))
        fail_msg("%s", e.text);
    for (int r = 0; r < 2; r++) {
        normalise(p.out[r], 64);
        near(name, p.out[r], gold_f32(p.gold, "embed_mean_l2") + r * 64, 64, TOL);
    }
    golden_close(p.gold);
}

static void check_scores(struct engine *g, const char *name)
{
    struct pair p;
    struct err e = {0};
    pair_open(&p, name);
    assert_int_equal(eng_info(g)->encoder->dim, 0);
    assert_int_equal(eng_info(g)->encoder->n_label, 1);
    if (eng_encode(g, p.row, 2, &e))
        fail_msg("%s", e.text);
    for (int r = 0; r < 2; r++)
        near(name, p.out[r], gold_f32(p.gold, "logits") + r, 1, TOL);
    golden_close(p.gold);
}

static void test_bert(void **st)
{
    (void)st;
    each_device("bert", check_vectors);
}
static void test_roberta(void **st)
{
    (void)st;
    each_device("roberta", check_vectors);
}
static void test_nomic(void **st)
{
    (void)st;
    each_device("nomic_bert", check_vectors);
}
static void test_modernbert(void **st)
{
    (void)st;
    each_device("modernbert", check_vectors);
}
static void test_classifier(void **st)
{
    (void)st;
    each_device("bert-cross-encoder", check_scores);
}

/* The default is f32; 8-bit products are the opt-in: a looser bound. */
static void test_precision(void **st)
{
    (void)st;
    for (int i = 0; i < 2; i++) {
        struct pair p;
        struct engine *g = open_on("bert", "cpu", NULL, i ? PRECISION_INT8 : PRECISION_DEFAULT);
        pair_open(&p, "bert");
        assert_int_equal(eng_encode(g, p.row, 2, NULL), 0);
        for (int r = 0; r < 2; r++) {
            normalise(p.out[r], 64);
            near("precision", p.out[r], gold_f32(p.gold, "embed_mean_l2") + r * 64, 64,
                 i ? 0.02 : TOL);
        }
        golden_close(p.gold);
        eng_close(g);
    }
}

/* The second text of a pair has token type 1, and that counts; RoBERTa has no such thing. */
static void test_types(void **st)
{
    (void)st;
    int32_t ids[6] = {1, 20, 30, 2, 40, 2};
    float a[64], b[64];
    struct eng_encode_row one = {ids, 6, 6, a}, two = {ids, 6, 4, b};
    struct engine *g = open_on("bert", "cpu", NULL, PRECISION_F32);
    assert_int_equal(eng_info(g)->encoder->n_type, 2);
    assert_int_equal(eng_encode(g, &one, 1, NULL), 0);
    assert_int_equal(eng_encode(g, &two, 1, NULL), 0);
    assert_memory_not_equal(a, b, sizeof a);
    eng_close(g);
    g = open_on("roberta", "cpu", NULL, PRECISION_F32);
    assert_int_equal(eng_info(g)->encoder->n_type, 1);
    assert_true(eng_info(g)->encoder->double_sep);
    assert_int_equal(eng_encode(g, &one, 1, NULL), 0);
    assert_int_equal(eng_encode(g, &two, 1, NULL), 0);
    assert_memory_equal(a, b, sizeof a);
    eng_close(g);
}

/* ---- the same bytes in any company ---- */

#define N_TEXT ENG_ENCODE_ROWS

static void company(const char *name, enum eng_precision precision)
{
    static int32_t ids[N_TEXT][64];
    static float alone[N_TEXT][64], together[N_TEXT][64], turned[N_TEXT][64];
    struct eng_encode_row row[N_TEXT], back[N_TEXT];
    struct engine *g = open_on(name, "cpu", NULL, precision);
    uint32_t seed = 7;
    size_t bytes = 4 * (size_t)(eng_info(g)->encoder->dim + eng_info(g)->encoder->n_label);
    for (int i = 0; i < N_TEXT; i++) {
        int32_t n = 1 + i * 13 % 64;
        for (int k = 0; k < n; k++)
            ids[i][k] = (int32_t)((seed = seed * 1664525u + 1013904223u) >> 8) % 512;
        row[i] = (struct eng_encode_row){ids[i], n, n / 2, alone[i]};
        assert_int_equal(eng_encode(g, &row[i], 1, NULL), 0);
        back[N_TEXT - 1 - i] = row[i];
        row[i].out = together[i];
        back[N_TEXT - 1 - i].out = turned[i];
    }
    assert_int_equal(eng_encode(g, row, N_TEXT, NULL), 0);
    assert_int_equal(eng_encode(g, back, N_TEXT, NULL), 0);
    for (int i = 0; i < N_TEXT; i++) {
        assert_memory_equal(alone[i], together[i], bytes);
        assert_memory_equal(alone[i], turned[i], bytes);
    }
    eng_close(g);
}

static void test_company(void **st)
{
    (void)st;
    static const char *const names[] = {"bert", "roberta", "nomic_bert", "bert-cross-encoder"};
    for (int i = 0; i < 4; i++)
        for (int p = 0; p < 2; p++)
            company(names[i], p ? PRECISION_INT8 : PRECISION_DEFAULT);
}

/* ---- what is refused ---- */

static void test_bad_rows(void **st)
{
    (void)st;
    struct err e = {0};
    float out[64];
    int32_t ids[65] = {0};
    struct engine *g = open_on("bert", "cpu", NULL, PRECISION_F32);
    struct eng_encode_row row = {ids, 65, 65, out};
    assert_int_equal(eng_encode(g, &row, 1, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "65 tokens"));
    row.n = 0;
    assert_int_equal(eng_encode(g, &row, 1, &e), ERR_INVAL);
    row.n = 2;
    assert_int_equal(eng_encode(g, &row, 0, &e), ERR_INVAL);
    ids[1] = 512;
    assert_int_equal(eng_encode(g, &row, 1, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "512"));
    ids[1] = -1;
    assert_int_equal(eng_encode(g, &row, 1, &e), ERR_INVAL);
    ids[1] = 3;
    struct step_plan p = {0};
    assert_int_equal(eng_step(g, &p, &e), ERR_INVAL);
    assert_int_equal(eng_encode(g, &row, 1, &e), 0); /* none of it did harm */
    eng_close(g);
}

/* Work memory of a few KiB: the batch says so, the engine lives on. */
static void test_small_memory(void **st)
{
    (void)st;
    struct err e = {0};
    struct engine *g = NULL;
    float out[64];
    int32_t ids[64] = {0};
    struct eng_encode_row row = {ids, 64, 64, out};
    struct eng_opts o = {
        .path = DATA "bert", .device = "cpu", .n_threads = 1, .no_pin = true, .work_bytes = 40000};
    assert_int_equal(eng_open(&g, &o, &e), 0);
    assert_int_equal(eng_encode(g, &row, 1, &e), ERR_NOMEM);
    row.n = 4;
    assert_int_equal(eng_encode(g, &row, 1, &e), 0);
    eng_close(g);
}

/* A folder with the files of a model but this configuration, and maybe a file beside it: what opening it says. */
static void refused(const char *model, const char *config, const char *name, const char *text,
                    int code, const char *word)
{
    char dir[TREE_PATH], from[128];
    struct err e = {0};
    struct engine *g = NULL;
    tree_make(dir);
    snprintf(from, sizeof from, DATA "%s", model);
    tree_copy(from, dir);
    if (config)
        tree_text(dir, "config.json", config);
    if (name)
        tree_text(dir, name, text);
    struct eng_opts o = {.path = dir, .device = "cpu", .n_threads = 1, .no_pin = true};
    assert_int_equal(eng_open(&g, &o, &e), code);
    assert_null(g);
    if (!strstr(e.text, word))
        fail_msg("\"%s\" does not say %s", e.text, word);
    tree_remove(dir);
}

#define CONFIG(more)                                                                               \
    "{\"model_type\":\"bert\",\"hidden_size\":64,\"num_attention_heads\":4,"                       \
    "\"num_hidden_layers\":2,\"max_position_embeddings\":64," more "}"

static void test_bad_files(void **st)
{
    (void)st;
    refused("bert", CONFIG("\"vocab_size\":512"), NULL, NULL, ERR_INVAL, "intermediate_size");
    refused("bert", CONFIG("\"intermediate_size\":\"96\""), NULL, NULL, ERR_INVAL,
            "intermediate_size");
    refused("bert", CONFIG("\"intermediate_size\":95"), NULL, NULL, ERR_INVAL,
            "encoder.layer.0.intermediate.dense");
    refused("bert", CONFIG("\"intermediate_size\":96,\"hidden_act\":\"mish\""), NULL, NULL,
            ERR_UNSUPPORTED, "mish");
    refused("bert", CONFIG("\"intermediate_size\":96,\"position_embedding_type\":\"relative_key\""),
            NULL, NULL, ERR_UNSUPPORTED, "relative_key");
    refused(
        "bert",
        CONFIG("\"intermediate_size\":96,\"architectures\":[\"BertForSequenceClassification\"]"),
        NULL, NULL, ERR_NOTFOUND, "classifier");
    refused("bert", NULL, "1_Pooling/config.json", "{}", ERR_UNSUPPORTED, "pooling");
    refused("bert", NULL, "1_Pooling/config.json",
            "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":true}", ERR_UNSUPPORTED,
            "pooling");
    refused("bert", NULL, "2_Dense/config.json", "{}", ERR_INVAL, "out_features");
    refused("bert", NULL, "2_Dense/config.json", "{\"in_features\":32,\"out_features\":8}",
            ERR_INVAL, "in_features is 32");
    refused("bert", NULL, "2_Dense/config.json",
            "{\"in_features\":64,\"out_features\":8,\"activation_function\":\"torch.nn.GELU\"}",
            ERR_UNSUPPORTED, "GELU");
    refused("bert", NULL, "2_Dense/config.json", "{\"in_features\":64,\"out_features\":8}",
            ERR_NOTFOUND, "2_Dense");
    refused("bert", NULL, "3_LayerNorm/config.json", "{}", ERR_UNSUPPORTED, "3_LayerNorm");
    refused("bert", NULL, "sentence_bert_config.json", "{\"max_seq_length\":0}", ERR_INVAL,
            "max_seq_length");
    refused("bert", NULL, "model.safetensors", "no tensors", ERR_LIMIT, "model.safetensors");
}

/* What lies beside the model decides about pooling, length and prompt. */
static void test_files(void **st)
{
    (void)st;
    char dir[TREE_PATH];
    struct pair p;
    struct err e = {0};
    struct engine *g = NULL;
    struct eng_memory mem;
    tree_make(dir);
    tree_copy(DATA "bert", dir);
    tree_text(dir, "1_Pooling/config.json",
              "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":false}");
    tree_text(dir, "sentence_bert_config.json", "{\"max_seq_length\":32}");
    tree_text(dir, "config_sentence_transformers.json",
              "{\"prompts\":{\"a\":\"no\",\"b\":\"query: \"},\"default_prompt_name\":\"b\"}");
    struct eng_opts o = {
        .path = dir, .device = "cpu", .n_threads = 2, .no_pin = true, .precision = PRECISION_F32};
    assert_int_equal(eng_memory_plan(&o, &mem, &e), 0);
    assert_int_equal(mem.n_ctx, 32);
    if (eng_open(&g, &o, &e))
        fail_msg("%s", e.text);
    const struct eng_encoder_info *i = eng_info(g)->encoder;
    assert_int_equal(i->n_tok_max, 32);
    assert_string_equal(i->prompt, "query: ");
    assert_int_equal(mem.weights, eng_info(g)->weight_bytes);
    pair_open(&p, "bert");
    assert_int_equal(eng_encode(g, p.row, 2, NULL), 0);
    for (int r = 0; r < 2; r++) {
        normalise(p.out[r], 64);
        near("cls", p.out[r], gold_f32(p.gold, "embed_cls_l2") + r * 64, 64, TOL);
    }
    golden_close(p.gold);
    eng_close(g);
    tree_remove(dir);
}

/* The n-th allocation fails, for every n: an error, nothing left behind. */
static void test_nomem(void **st)
{
    (void)st;
    int rc = ERR_NOMEM;
    for (int n = 1; rc && n < 2000; n++) {
        struct engine *g = NULL;
        struct pair p;
        struct err e = {0};
        struct eng_opts o = {.path = DATA "bert-cross-encoder", .device = "ref", .no_pin = true};
        pair_open(&p, "bert-cross-encoder");
        mem_fail_after(n, true);
        rc = eng_open(&g, &o, &e);
        if (!rc)
            rc = eng_encode(g, p.row, 2, &e);
        mem_fail_after(0, false);
        eng_close(g);
        golden_close(p.gold);
    }
    assert_int_equal(rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bert),       cmocka_unit_test(test_roberta),
        cmocka_unit_test(test_nomic),      cmocka_unit_test(test_modernbert),
        cmocka_unit_test(test_classifier), cmocka_unit_test(test_precision),
        cmocka_unit_test(test_types),      cmocka_unit_test(test_company),
        cmocka_unit_test(test_bad_rows),   cmocka_unit_test(test_small_memory),
        cmocka_unit_test(test_bad_files),  cmocka_unit_test(test_files),
        cmocka_unit_test(test_nomem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
