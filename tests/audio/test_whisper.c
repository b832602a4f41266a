/* Whisper's frames and networks against transformers: a tiny model of random weights on the reference backend and every CPU
 * table; rows of several windows in one step. Goldens: tests/data/audio/tiny. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/audio/whisper.h"
#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/cpu/dispatch.h"
#include "engine/engine.h"
#include "tests/golden.h"
#include "tests/tree.h"

#define DATA    "tests/data/audio/tiny"
#define N_FRAME 200
#define N_SOUND 100
#define D       64
#define N_VOCAB 512

static char dir[TREE_PATH];
static struct golden *gold;

static const float *want(const char *name, size_t n)
{
    size_t k;
    const float *v = golden_f32(gold, name, &k);
    assert_non_null(v);
    assert_int_equal(k, n);
    return v;
}

static void near(const char *what, const float *got, const float *ref, size_t n, double tol)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)ref[i]);
        worst = d > worst || isnan(d) ? d : worst;
        if (!(d <= tol))
            fail_msg("%s: value %zu is %g, expected %g", what, i, (double)got[i], (double)ref[i]);
    }
    print_message("%s: worst difference %.2g\n", what, worst);
}

/* ---- frames ---- */

static struct aud_mel *mel_of(const float *pcm, size_t n, int n_mel, size_t piece)
{
    struct aud_mel *m = aud_mel_new(n_mel);
    assert_non_null(m);
    for (size_t at = 0; at < n; at += piece)
        assert_int_equal(aud_mel_add(m, pcm + at, n - at < piece ? n - at : piece), 0);
    assert_int_equal(aud_mel_finish(m), 0);
    assert_int_equal(m->n_sample, n);
    assert_int_equal(m->n_frame, n / AUD_HOP);
    return m;
}

/* Golden [n_mel, frames] against frames of m. */
static void near_mel(const struct aud_mel *m, const float *ref, int n_frame, int upto)
{
    float *got = xmalloc((size_t)m->n_mel * (size_t)upto * sizeof *got), *to = got;
    float *exp = xmalloc((size_t)m->n_mel * (size_t)upto * sizeof *exp), *x = exp;
    for (int b = 0; b < m->n_mel; b++)
        for (int t = 0; t < upto; t++) {
            *to++ = t < m->n_row ? m->v[t * m->n_mel + b] : m->silence;
            *x++ = ref[b * n_frame + t];
        }
    near("mel", got, exp, (size_t)m->n_mel * (size_t)upto, 1e-4);
    free(got);
    free(exp);
}

/* The golden of 2 s mirrors the sound at its end, which a recording that goes on does not: all frames but the last. */
static void test_mel(void **s)
{
    (void)s;
    const float *pcm = want("waveform", 32000);
    struct aud_mel *m = mel_of(pcm, 32000, 80, 32000);
    near_mel(m, want("input_features", 80 * N_FRAME), N_FRAME, N_FRAME - 1);
    near_mel(m, want("features_30s_first_250_frames", 80 * 250), 250, 250);
    aud_mel_free(m);
    m = mel_of(pcm, 32000, 128, 32000);
    near_mel(m, want("features_128", 128 * N_FRAME), N_FRAME, N_FRAME - 1);
    aud_mel_free(m);
}

/* However the samples come. */
static void test_mel_pieces(void **s)
{
    (void)s;
    static const size_t pieces[] = {1, 7, 159, 160, 400, 4097};
    const float *pcm = want("waveform", 32000);
    struct aud_mel *whole = mel_of(pcm, 32000, 80, 32000);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct aud_mel *m = mel_of(pcm, 32000, 80, pieces[i]);
        assert_int_equal(m->n_row, whole->n_row);
        assert_memory_equal(m->v, whole->v, (size_t)(m->n_row * 80) * sizeof *m->v);
        aud_mel_free(m);
    }
    aud_mel_free(whole);
}

static void test_mel_little(void **s)
{
    (void)s;
    float few[300] = {0.5f, -0.5f};
    for (size_t n = 1; n < 300; n += 33) {
        struct aud_mel *m = mel_of(few, n, 80, n);
        for (int64_t i = 0; i < m->n_row * 80; i++)
            assert_true(isfinite(m->v[i]));
        aud_mel_free(m);
    }
    struct aud_mel *m = mel_of(few, 0, 80, 1); /* silence */
    assert_true(m->silence == -1.5f);
    aud_mel_free(m);
    assert_null(aud_mel_new(0));
    assert_null(aud_mel_new(257));
    for (long k = 1; k < 6; k++) {
        mem_fail_after(k, true);
        m = aud_mel_new(80);
        int rc = m ? aud_mel_add(m, few, 300) : ERR_NOMEM;
        mem_fail_after(0, false);
        assert_true(k > 4 || rc == ERR_NOMEM);
        aud_mel_free(m);
    }
}

/* ---- networks ---- */

struct net {
    struct comp comp;
    struct source *src;
    const struct backend *be;
    struct dev *dev;
    struct nn_weights *w;
    struct nn nn;
    struct whisper *m;
};

static void net_open_kv(struct net *t, const char *device, const char *isa, enum eng_precision p,
                        enum dtype kv)
{
    struct err e = {0};
    struct backend_info bi = {0};
    *t = (struct net){0};
    assert_int_equal(backend_find(device, &t->be, &e), 0);
    assert_int_equal(t->be->open(&t->dev,
                                 &(struct backend_opts){.n_threads = 2, .isa = isa, .precision = p},
                                 &e),
                     0);
    t->be->info(t->dev, &bi);
    t->nn = (struct nn){.be = t->be, .dev = t->dev, .mul = bi.mul_dtype, .failed = ""};
    assert_int_equal(config_open(&t->comp.cfg, tree_path(dir, "m/config.json"), &e), 0);
    assert_int_equal(source_open(&t->src, tree_path(dir, "m"), &e), 0);
    t->comp.map.src = t->src;
    assert_int_equal(nn_weights_open(&t->w, t->be, t->dev, p, &e), 0);
    if (whisper_open(&t->m, t->w, &t->comp, &e))
        fail_msg("%s", e.text);
    assert_int_equal(whisper_slots_open(t->m, &t->nn, kv, 3, &e), 0);
}

static void net_open(struct net *t, const char *device, const char *isa, enum eng_precision p)
{
    net_open_kv(t, device, isa, p, p == PRECISION_F32 ? DT_F32 : DT_F16);
}

static void net_close(struct net *t)
{
    nn_close(&t->nn);
    whisper_close(t->m);
    nn_weights_close(t->w);
    t->be->close(t->dev);
    source_close(t->src);
    config_close(t->comp.cfg);
}

static void encode(struct net *t, const float *mel, int slot, float *states)
{
    struct err e = {0};
    for (int dry = 1; dry >= 0; dry--) {
        nn_begin(&t->nn, dry);
        whisper_encode(t->m, &t->nn, mel, slot, states);
        if (nn_end(&t->nn, &e))
            fail_msg("%s", e.text);
        if (dry)
            assert_int_equal(nn_reserve(&t->nn, t->nn.mem.peak), 0);
    }
}

static void decode(struct net *t, const struct whisper_row *row, int n, float *logits)
{
    struct err e = {0};
    for (int dry = 1; dry >= 0; dry--) {
        nn_begin(&t->nn, dry);
        whisper_decode(t->m, &t->nn, row, n, logits, NULL);
        if (nn_end(&t->nn, &e))
            fail_msg("%s", e.text);
        if (dry)
            assert_int_equal(nn_reserve(&t->nn, t->nn.mem.peak), 0);
    }
}

/* The golden's frames [n_mel, frame] as rows, `scale` times. */
static float *golden_mel(float scale)
{
    const float *f = want("input_features", 80 * N_FRAME);
    float *v = xmalloc(80 * N_FRAME * sizeof *v);
    for (int b = 0; b < 80; b++)
        for (int t = 0; t < N_FRAME; t++)
            v[t * 80 + b] = scale * f[b * N_FRAME + t];
    return v;
}

static int32_t top(const float *z)
{
    int32_t best = 0;
    for (int32_t i = 1; i < N_VOCAB; i++)
        best = z[i] > z[best] ? i : best;
    return best;
}

/* n more tokens after seq[0 .. *len), one row a step. */
static void greedy(struct net *t, int slot, int32_t *seq, int *len, int n)
{
    float z[N_VOCAB];
    int from = 0;
    for (int i = 0; i < n; i++) {
        decode(t, &(struct whisper_row){slot, seq + from, *len - from, from, 1}, 1, z);
        from = *len;
        seq[(*len)++] = top(z);
    }
}

static void check_golden(struct net *t, double tol)
{
    float *mel = golden_mel(1), states[N_SOUND * D], z[3 * N_VOCAB];
    int32_t seq[19] = {1, 7, 9};
    int len = 3;
    size_t n;
    encode(t, mel, 1, states);
    near("encoder", states, want("encoder_last_hidden_state", N_SOUND * D), N_SOUND * D, tol);
    decode(t, &(struct whisper_row){1, seq, 3, 0, 3}, 1, z);
    near("logits", z, want("logits", 3 * N_VOCAB), 3 * N_VOCAB, tol);
    greedy(t, 1, seq, &len, 16);
    const int32_t *ids = golden_i32(gold, "greedy_ids", &n);
    assert_non_null(ids);
    assert_memory_equal(seq + 3, ids, 16 * sizeof *ids);
    free(mel);
}

static void test_golden(void **s)
{
    (void)s;
    struct net t;
    net_open(&t, "ref", NULL, PRECISION_F32);
    check_golden(&t, 1e-3);
    net_close(&t);
    for (int i = 0; i < CPU_N_ISA; i++) {
        if (!cpu_isa_usable(i)) {
            print_message("SKIP isa %s: this processor can't run it\n", cpu_isas[i].name);
            continue;
        }
        net_open(&t, "cpu", cpu_isas[i].name, PRECISION_F32);
        check_golden(&t, 1e-3);
        net_close(&t);
    }
}

/* The kernels of the GPU plug-in, emulated. */
static void test_golden_emu(void **s)
{
    (void)s;
    struct net t;
    const struct backend *be;
    struct err e = {0};
    if (backend_find("cuda-emu", &be, &e)) {
        print_message("SKIP %s\n", e.text);
        skip();
    }
    net_open(&t, "cuda-emu", NULL, PRECISION_F32);
    check_golden(&t, 1e-3);
    net_close(&t);
}

/* bf16 products: coarser, and still the same tokens, which are 0.09 apart at least. */
static void test_golden_bf16(void **s)
{
    (void)s;
    struct net t;
    net_open(&t, "cpu", NULL, PRECISION_DEFAULT);
    check_golden(&t, 0.15);
    net_close(&t);
}

/* Keys and values in eight bits, of the text and of the sound: coarser, the same tokens, and on every table what the reference
 * backend has of such a cache. */
static void check_kv8(enum dtype kv, double tol)
{
    struct net t;
    static float first[3 * N_VOCAB], z[3 * N_VOCAB];
    float *mel = golden_mel(1);
    const struct whisper_row row = {1, (int32_t[]){1, 7, 9}, 3, 0, 3};
    net_open_kv(&t, "ref", NULL, PRECISION_F32, kv);
    check_golden(&t, tol);
    encode(&t, mel, 1, NULL);
    decode(&t, &row, 1, first);
    net_close(&t);
    double off = 0; /* were nothing rounded, it would be 1e-3 at most */
    for (size_t i = 0; i < 3 * N_VOCAB; i++)
        off = fmax(off, fabs((double)first[i] - (double)want("logits", 3 * N_VOCAB)[i]));
    assert_true(off > 1e-3);
    for (int i = 0; i < CPU_N_ISA; i++) {
        if (!cpu_isa_usable(i))
            continue; /* said by test_golden */
        net_open_kv(&t, "cpu", cpu_isas[i].name, PRECISION_F32, kv);
        encode(&t, mel, 1, NULL);
        decode(&t, &row, 1, z);
        near("eight bits", z, first, 3 * N_VOCAB, 5e-2 * tol);
        net_close(&t);
    }
    free(mel);
}

static void test_kv8(void **s)
{
    (void)s;
    check_kv8(DT_I8, 0.05);
    check_kv8(DT_F8, 0.2);
}

/* Three windows alone, and in the same steps with prefixes beside single tokens: the same bytes. */
static void check_company(enum eng_precision p)
{
    struct net t;
    static const int32_t prefix[3][4] = {{1, 7, 9, 30}, {1, 8}, {1, 44, 45}};
    static const int n_prefix[3] = {4, 2, 3};
    float alone[3][4][N_VOCAB], z[3 * N_VOCAB];
    net_open(&t, "cpu", NULL, p);
    for (int k = 0; k < 3; k++) {
        float *mel = golden_mel(1 - 0.2f * (float)k);
        int32_t seq[10];
        encode(&t, mel, k, NULL);
        free(mel);
        memcpy(seq, prefix[k], sizeof prefix[k]);
        for (int i = 0, len = n_prefix[k], from = 0; i < 4; i++) {
            decode(&t, &(struct whisper_row){k, seq + from, len - from, from, 1}, 1, alone[k][i]);
            from = len;
            seq[len++] = top(alone[k][i]);
        }
    }
    int32_t seq[3][10];
    int len[3], from[3] = {0}, done[3] = {0};
    for (int k = 0; k < 3; k++) {
        memcpy(seq[k], prefix[k], sizeof prefix[k]);
        len[k] = n_prefix[k];
    }
    for (int step = 0; step < 6; step++) { /* window k begins in step k */
        struct whisper_row row[3];
        int who[3], n = 0;
        for (int k = 2; k >= 0; k--)
            if (step >= k && done[k] < 4) {
                row[n] = (struct whisper_row){k, seq[k] + from[k], len[k] - from[k], from[k], 1};
                who[n++] = k;
            }
        decode(&t, row, n, z);
        for (int i = 0; i < n; i++) {
            int k = who[i];
            assert_memory_equal(z + i * N_VOCAB, alone[k][done[k]], sizeof alone[k][0]);
            from[k] = len[k];
            seq[k][len[k]++] = top(z + i * N_VOCAB);
            done[k]++;
        }
    }
    net_close(&t);
}

static void test_company(void **s)
{
    (void)s;
    check_company(PRECISION_F32);
    check_company(PRECISION_DEFAULT);
}

/* Keys once more from the states are those that the decoder looks at: the softmax of both heads agree in sum. */
static void test_keys(void **s)
{
    (void)s;
    struct net t;
    struct err e = {0};
    float *mel = golden_mel(1), *states = xmalloc(N_SOUND * D * sizeof *states);
    float *k = xmalloc(N_SOUND * D * sizeof *k), *q = xmalloc(3 * D * sizeof *q);
    float *taps[2] = {NULL, q};
    int32_t seq[3] = {1, 7, 9};
    net_open(&t, "ref", NULL, PRECISION_F32);
    encode(&t, mel, 0, states);
    struct whisper_row row = {0, seq, 3, 0, 0};
    for (int dry = 1; dry >= 0; dry--) {
        nn_begin(&t.nn, dry);
        whisper_decode(t.m, &t.nn, &row, 1, NULL, &(struct whisper_tap){.q = taps});
        whisper_keys(t.m, &t.nn, states, 1, k);
        assert_int_equal(nn_end(&t.nn, &e), 0);
        if (dry)
            assert_int_equal(nn_reserve(&t.nn, t.nn.mem.peak), 0);
    }
    double power = 0;
    for (int i = 0; i < N_SOUND * D; i++) {
        assert_true(isfinite(k[i]));
        power += fabs((double)k[i]);
    }
    assert_true(power > 1);
    for (int i = 0; i < 3 * D; i++)
        assert_true(isfinite(q[i]));
    net_close(&t);
    free(mel);
    free(states);
    free(k);
    free(q);
}

/* ---- bad folders ---- */

static void expect(const char *config, const char *part)
{
    struct err e = {0};
    struct eng_memory mem;
    tree_text(dir, "bad/config.json", config);
    struct eng_opts o = {.path = tree_path(dir, "bad"), .device = "ref"};
    int rc = eng_memory_plan(&o, &mem, &e);
    if (!rc || !strstr(e.text, part))
        fail_msg("rc %d: %s; expected '%s'", rc, e.text, part);
}

static void test_bad(void **s)
{
    (void)s;
#define REST                                                                                       \
    "\"vocab_size\":512,\"num_mel_bins\":80,\"max_source_positions\":100,\"encoder_layers\":2,"    \
    "\"decoder_layers\":2,\"encoder_attention_heads\":4,\"encoder_ffn_dim\":96,"                   \
    "\"decoder_ffn_dim\":96}"
    expect("{\"model_type\":\"whisper\"}", "d_model");
    expect("{\"model_type\":\"whisper\",\"d_model\":64,\"decoder_attention_heads\":4," REST,
           "max_target_positions");
    expect("{\"model_type\":\"whisper\",\"d_model\":64,\"decoder_attention_heads\":5,"
           "\"max_target_positions\":64," REST,
           "do not divide");
    expect("{\"model_type\":\"whisper\",\"d_model\":128,\"decoder_attention_heads\":4,"
           "\"max_target_positions\":64," REST,
           "model.encoder.conv1.weight");
    expect("{\"model_type\":\"whisper\",\"d_model\":64,\"decoder_attention_heads\":4,"
           "\"activation_function\":\"swish\",\"max_target_positions\":64," REST,
           "activation_function 'swish'");
    expect("{\"model_type\":\"whisper\",\"d_model\":64,\"decoder_attention_heads\":4,"
           "\"scale_embedding\":true,\"max_target_positions\":64," REST,
           "scale_embedding");
    tree_text(dir, "bad/tokenizer.json",
              "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},"
              "\"merges\":[]}}");
    expect("{\"model_type\":\"whisper\",\"d_model\":64,\"decoder_attention_heads\":4,"
           "\"max_target_positions\":64," REST,
           "<|startoftranscript|>");
}

static int setup(void **s)
{
    (void)s;
    tree_make(dir);
    tree_copy(DATA, tree_path(dir, "m"));
    tree_copy(DATA, tree_path(dir, "bad"));
    gold = golden_open(DATA "/golden.safetensors.xz");
    return gold ? 0 : -1;
}

static int teardown(void **s)
{
    (void)s;
    golden_close(gold);
    tree_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mel),         cmocka_unit_test(test_mel_pieces),
        cmocka_unit_test(test_mel_little),  cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_bf16), cmocka_unit_test(test_golden_emu),
        cmocka_unit_test(test_company),     cmocka_unit_test(test_keys),
        cmocka_unit_test(test_kv8),         cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
