/* Text encoders refuse what they cannot do: files with missing or misshapen tensors, configurations of other models,
 * batches that are wrong, memory that is not there. Every message names what is wrong. */
#include "tests/image/enc_test.h"

static struct rig rig;

static int open_rig(void **st)
{
    (void)st;
    rig_open(&rig, &ref_backend, NULL, PRECISION_F32);
    return 0;
}
static int close_rig(void **st)
{
    (void)st;
    rig_close(&rig);
    return 0;
}

enum kind { CLIP, T5, LM };
static const char *const dirs[] = {DATA "clip-text", DATA "t5-encoder", DATA "qwen3"};
union model {
    struct clip *clip;
    struct t5 *t5;
    struct lm_enc *lm;
};

static int model_open(enum kind k, union model *m, struct nn_weights *w, struct comp *c, int skip,
                      struct err *e)
{
    memset(m, 0, sizeof *m);
    return k == CLIP ? clip_open(&m->clip, w, c, skip, e)
           : k == T5 ? t5_open(&m->t5, w, c, e)
                     : lm_enc_open(&m->lm, w, c, skip, e);
}

static void model_close(enum kind k, union model *m)
{
    if (k == CLIP)
        clip_close(m->clip);
    else if (k == T5)
        t5_close(m->t5);
    else
        lm_enc_close(m->lm);
}

static void model_run(enum kind k, union model *m, struct nn *n, const struct enc_batch *b,
                      float *states)
{
    struct clip_out o = {.states = states};
    if (k == CLIP)
        clip_run(m->clip, n, b, &o);
    else if (k == T5)
        t5_run(m->t5, n, b, states);
    else
        lm_enc_run(m->lm, n, b, 0, states);
}

/* All tensors but the one that arg names. */
static int find_without(const struct source_map *m, const char *want,
                        struct source_slice slice[SOURCE_SLICES])
{
    (void)slice;
    return strcmp(want, m->arg) == 0 ? -1 : 0;
}

/* The projection is another tensor. */
static int find_turned(const struct source_map *m, const char *want,
                       struct source_slice slice[SOURCE_SLICES])
{
    (void)m;
    if (strcmp(want, "text_projection") != 0)
        return 0;
    slice[0] =
        (struct source_slice){.name = "text_model.encoder.layers.0.mlp.fc1.weight", .n_part = 1};
    return 1;
}

static void refused(enum kind k, struct comp *c, int rc, const char *names)
{
    struct nn_weights *w;
    union model m;
    struct err e = {0};
    weights_open(&w, &rig);
    int got = model_open(k, &m, w, c, 0, &e);
    if (got != rc || !strstr(e.text, names) || !strstr(e.text, "text_encoder"))
        fail_msg("%s: %d, '%s'", names, got, e.text);
    nn_weights_close(w);
}

static void test_missing_tensor(void **st)
{
    static const struct {
        enum kind k;
        const char *name;
    } gone[] = {
        {CLIP, "text_model.embeddings.token_embedding.weight"},
        {CLIP, "text_model.embeddings.position_embedding.weight"},
        {CLIP, "text_model.encoder.layers.2.self_attn.k_proj.weight"},
        {CLIP, "text_model.encoder.layers.1.mlp.fc1.weight"},
        {CLIP, "text_model.encoder.layers.0.layer_norm2.weight"},
        {CLIP, "text_model.final_layer_norm.weight"},
        {CLIP, "text_projection.weight"},
        {T5, "shared.weight"},
        {T5, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"},
        {T5, "encoder.block.1.layer.0.SelfAttention.o.weight"},
        {T5, "encoder.block.1.layer.1.DenseReluDense.wi_1.weight"},
        {T5, "encoder.block.0.layer.1.layer_norm.weight"},
        {T5, "encoder.final_layer_norm.weight"},
        {LM, "model.embed_tokens.weight"},
        {LM, "model.layers.1.self_attn.v_proj.weight"},
        {LM, "model.layers.2.mlp.up_proj.weight"},
        {LM, "model.layers.0.self_attn.k_norm.weight"},
        {LM, "model.norm.weight"},
    };
    (void)st;
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++) {
        struct comp c;
        comp_open(&c, dirs[gone[i].k], gone[i].k == CLIP ? "CLIPTextModelWithProjection" : "");
        c.map.find = find_without;
        c.map.arg = gone[i].name;
        const char *tail =
            strstr(gone[i].name, "layer") ? strstr(gone[i].name, "layer") : gone[i].name;
        refused(gone[i].k, &c, ERR_NOTFOUND,
                gone[i].k == LM && tail != gone[i].name ? tail + 6 : tail);
        comp_close(&c);
    }
}

static void test_configuration(void **st)
{
    static const struct {
        enum kind k;
        const char *from, *to;
        int rc;
        const char *names;
    } bad[] = {
        /* shapes that the files do not have */
        {CLIP, "\"hidden_size\": 32", "\"hidden_size\": 64", ERR_INVAL,
         "token_embedding.weight is"},
        {CLIP, "\"intermediate_size\": 64", "\"intermediate_size\": 128", ERR_INVAL, "mlp.fc1"},
        {CLIP, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", ERR_NOTFOUND, "layers.3."},
        {T5, "\"d_kv\": 16", "\"d_kv\": 8", ERR_INVAL, "SelfAttention.q"},
        {T5, "\"d_ff\": 96", "\"d_ff\": 97", ERR_INVAL, "wi_0"},
        {T5, "buckets\": 8", "buckets\": 16", ERR_INVAL, "relative_attention"},
        {LM, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4", ERR_INVAL, "k_proj"},
        {LM, "\"head_dim\": 24", "\"head_dim\": 12", ERR_INVAL, "q_proj"},
        /* values that make no sense */
        {CLIP, "\"num_attention_heads\": 4", "\"num_attention_heads\": 5", ERR_INVAL,
         "num_attention_heads 5"},
        {CLIP, "\"num_attention_heads\": 4", "\"num_attention_heads\": 0", ERR_INVAL,
         "num_attention_heads"},
        {CLIP, "\"hidden_size\": 32", "\"hidden_size\": \"x\"", ERR_INVAL, "hidden_size"},
        {CLIP, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 100000", ERR_INVAL,
         "num_hidden_layers"},
        {T5, "buckets\": 8", "buckets\": 6", ERR_INVAL, "num_buckets 6"},
        {T5, "max_distance\": 16", "max_distance\": 2", ERR_INVAL, "max_distance 2"},
        {T5, "\"num_heads\": 4,", "", ERR_INVAL, "num_heads"},
        {LM, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", ERR_INVAL,
         "num_key_value_heads 3"},
        {LM, "\"head_dim\": 24", "\"head_dim\": 25", ERR_INVAL, "head_dim 25"},
        /* other models */
        {CLIP, "quick_gelu", "mish", ERR_UNSUPPORTED, "'mish'"},
        {T5, "gated-gelu", "gated-relu", ERR_UNSUPPORTED, "'gated-relu'"},
        {T5, "gated-gelu", "snake", ERR_UNSUPPORTED, "'snake'"},
        {LM, "\"model_type\": \"qwen3\"", "\"model_type\": \"gemma2\"", ERR_UNSUPPORTED,
         "'gemma2'"},
        {LM, "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", ERR_UNSUPPORTED, "'yarn'"},
        {LM, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", ERR_UNSUPPORTED,
         "hidden_act 'gelu'"},
        {LM, "\"use_sliding_window\": false", "\"use_sliding_window\": true", ERR_UNSUPPORTED,
         "use_sliding_window"},
    };
    (void)st;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct comp c;
        comp_open(&c, dirs[bad[i].k], "");
        comp_edit(&c, dirs[bad[i].k], bad[i].from, bad[i].to);
        refused(bad[i].k, &c, bad[i].rc, bad[i].names);
        comp_close(&c);
    }
}

static void test_skip_range(void **st)
{
    (void)st;
    for (int skip = -1; skip < 5; skip += 5) {
        for (enum kind k = CLIP; k <= LM; k = k == CLIP ? LM : LM + 1) {
            struct comp c;
            struct nn_weights *w;
            union model m;
            struct err e = {0};
            comp_open(&c, dirs[k], "");
            weights_open(&w, &rig);
            assert_int_equal(model_open(k, &m, w, &c, skip, &e), ERR_INVAL);
            assert_non_null(strstr(e.text, "of 3 layers"));
            nn_weights_close(w);
            comp_close(&c);
        }
    }
}

/* The run's error, dry and for real; the run after it works. */
static void run_refused(enum kind k, union model *m, const struct enc_batch *b, int rc,
                        const char *names)
{
    static float states[1024 * 64];
    for (int dry = 0; dry < 2; dry++) {
        struct err e = {0};
        nn_begin(&rig.n, dry);
        model_run(k, m, &rig.n, b, states);
        assert_int_equal(nn_end(&rig.n, &e), rc);
        if (!strstr(e.text, names))
            fail_msg("'%s' does not say '%s'", e.text, names);
    }
    struct batch ok;
    batch_clear(&ok);
    batch_add(&ok, (int32_t[]){1, 2, 3}, 3);
    RUN(&rig, model_run(k, m, &rig.n, &ok.b, states));
}

static void test_batches(void **st)
{
    (void)st;
    for (enum kind k = CLIP; k <= LM; k++) {
        struct comp c;
        struct nn_weights *w;
        union model m;
        static int32_t ids[5000];
        comp_open(&c, dirs[k], "");
        weights_open(&w, &rig);
        assert_int_equal(model_open(k, &m, w, &c, 0, NULL), 0);
        struct enc_batch b = {1, (int32_t[]){1, 512}, (int32_t[]){0, 2}};
        run_refused(k, &m, &b, ERR_INVAL, "outside the vocabulary");
        b.ids = (int32_t[]){-1, 5};
        run_refused(k, &m, &b, ERR_INVAL, "outside the vocabulary");
        b = (struct enc_batch){2, (int32_t[]){1, 2}, (int32_t[]){0, 2, 2}};
        run_refused(k, &m, &b, ERR_INVAL, "without tokens");
        b = (struct enc_batch){1, (int32_t[]){1, 2}, (int32_t[]){1, 2}};
        run_refused(k, &m, &b, ERR_INVAL, "number of prompts");
        b.n = 0;
        run_refused(k, &m, &b, ERR_INVAL, "number of prompts");
        b.n = ENC_TEXTS + 1;
        run_refused(k, &m, &b, ERR_INVAL, "number of prompts");
        int longest = k == CLIP ? 77 : k == T5 ? 4096 : 256;
        b = (struct enc_batch){1, ids, (int32_t[]){0, longest + 1}};
        run_refused(k, &m, &b, ERR_LIMIT, "more tokens");
        model_close(k, &m);
        nn_weights_close(w);
        comp_close(&c);
    }
}

/* OpenCLIP's projection of another height. */
static void test_projection(void **st)
{
    struct comp c;
    (void)st;
    comp_open(&c, DATA "open-clip", "CLIPTextModelWithProjection");
    c.map.find = find_turned;
    refused(CLIP, &c, ERR_INVAL, "text_projection is no matrix of 32 rows");
    comp_close(&c);
}

/* What a run may ask of a CLIP or a language model. */
static void test_outputs(void **st)
{
    struct comp c, lc;
    struct nn_weights *w;
    struct clip *m = NULL;
    struct lm_enc *lm = NULL;
    float states[3 * 64], pooled[32];
    struct enc_batch b = {1, (int32_t[]){1, 2, 3}, (int32_t[]){0, 3}};
    (void)st;
    comp_open(&c, dirs[CLIP], "");
    comp_open(&lc, dirs[LM], "");
    weights_open(&w, &rig);
    assert_int_equal(clip_open(&m, w, &c, 1, NULL), 0);
    assert_int_equal(lm_enc_open(&lm, w, &lc, 1, NULL), 0);
    const struct clip_out bad[] = {
        {.skip = 0, .states = states},
        {.skip = 4, .states = states},
        {.skip = 1, .states = states, .at = (int32_t[]){2}, .pooled = pooled},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        nn_begin(&rig.n, false);
        clip_run(m, &rig.n, &b, &bad[i]);
        assert_int_equal(nn_end(&rig.n, NULL), ERR_INVAL);
    }
    for (int skip = 0; skip < 5; skip += 4) {
        nn_begin(&rig.n, false);
        lm_enc_run(lm, &rig.n, &b, skip, states);
        assert_int_equal(nn_end(&rig.n, NULL), ERR_INVAL);
    }
    clip_close(m);
    assert_int_equal(clip_open(&m, w, &c, 0, NULL), 0);
    struct clip_out o = {.at = (int32_t[]){1}, .pooled = pooled};
    RUN(&rig, clip_run(m, &rig.n, &b, &o));
    o.at = (int32_t[]){3};
    nn_begin(&rig.n, false);
    clip_run(m, &rig.n, &b, &o);
    struct err e = {0};
    assert_int_equal(nn_end(&rig.n, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "pooled row"));
    clip_close(m);
    lm_enc_close(lm);
    nn_weights_close(w);
    comp_close(&c);
    comp_close(&lc);
}

/* A norm that SD 2 adds to the penultimate layer changes the states; too little work memory is an error. */
static void test_final_norm(void **st)
{
    struct comp c;
    struct nn_weights *w;
    struct clip *m = NULL;
    float a[3 * 32], b[3 * 32];
    struct enc_batch in = {1, (int32_t[]){1, 2, 3}, (int32_t[]){0, 3}};
    struct clip_out o = {.skip = 1, .states = a};
    (void)st;
    comp_open(&c, dirs[CLIP], "");
    weights_open(&w, &rig);
    assert_int_equal(clip_open(&m, w, &c, 1, NULL), 0);
    RUN(&rig, clip_run(m, &rig.n, &in, &o));
    o = (struct clip_out){.skip = 1, .final_norm = true, .states = b};
    RUN(&rig, clip_run(m, &rig.n, &in, &o));
    struct nn_load l = {.w = w, .c = &c};
    int64_t n;
    float *g = nn_load_host(&l, &n, "text_model.final_layer_norm.weight");
    float *s = nn_load_host(&l, &n, "text_model.final_layer_norm.bias");
    assert_int_equal(n, 32);
    for (int r = 0; r < 3; r++) { /* the norm by hand */
        double mean = 0, var = 0, want;
        for (int k = 0; k < 32; k++)
            mean += (double)a[r * 32 + k] / 32;
        for (int k = 0; k < 32; k++)
            var += ((double)a[r * 32 + k] - mean) * ((double)a[r * 32 + k] - mean) / 32;
        for (int k = 0; k < 32; k++) {
            want = ((double)a[r * 32 + k] - mean) / sqrt(var + 1e-5) * (double)g[k] + (double)s[k];
            assert_true(fabs((double)b[r * 32 + k] - want) < 1e-4 * fmax(1, fabs(want)));
        }
    }
    free(g);
    free(s);
    nn_close_keep(&rig);
    assert_int_equal(nn_reserve(&rig.n, 256), 0);
    nn_begin(&rig.n, false);
    clip_run(m, &rig.n, &in, &o);
    assert_int_equal(nn_end(&rig.n, NULL), ERR_NOMEM);
    clip_close(m);
    nn_weights_close(w);
    comp_close(&c);
}

/* The n-th allocation of an open and a run fails: an error, nothing lost. */
static void test_no_memory(void **st)
{
    static float states[8 * 64];
    struct batch b;
    (void)st;
    batch_clear(&b);
    batch_add(&b, (int32_t[]){1, 2, 3}, 3);
    batch_add(&b, (int32_t[]){4, 5, 6, 7, 8}, 5);
    for (enum kind k = CLIP; k <= LM; k++) {
        struct comp c;
        int n_fail = 0;
        comp_open(&c, dirs[k], "");
        for (long i = 1; i < 2000; i++) {
            struct nn_weights *w = NULL;
            union model m;
            weights_open(&w, &rig);
            mem_fail_after(i, true);
            int rc = model_open(k, &m, w, &c, 0, NULL);
            if (rc == 0) {
                nn_begin(&rig.n, true);
                model_run(k, &m, &rig.n, &b.b, states);
                rc = nn_reserve(&rig.n, rig.n.mem.peak);
                nn_begin(&rig.n, false);
                model_run(k, &m, &rig.n, &b.b, states);
                int rc2 = nn_end(&rig.n, NULL);
                rc = rc ? rc : rc2;
                model_close(k, &m);
            }
            mem_fail_after(0, false);
            nn_weights_close(w);
            if (rc == 0)
                break;
            assert_int_equal(rc, ERR_NOMEM);
            n_fail++;
        }
        assert_in_range(n_fail, 3, 1998);
        comp_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_tensor), cmocka_unit_test(test_configuration),
        cmocka_unit_test(test_skip_range),     cmocka_unit_test(test_batches),
        cmocka_unit_test(test_outputs),        cmocka_unit_test(test_final_norm),
        cmocka_unit_test(test_projection),     cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("encoder errors", tests, open_rig, close_rig);
}
