/* Text encoders against transformers: hidden states, pooled outputs, layers left out; prompts of different lengths in
 * one run. Goldens: tests/data/image/encoders, made by record_encoders.py. */
#include "tests/image/enc_test.h"

#define TOL 1e-4

static struct golden *gold;

static int open_goldens(void **st)
{
    (void)st;
    gold = golden_open(DATA "goldens.safetensors.xz");
    return gold ? 0 : -1;
}
static int close_goldens(void **st)
{
    (void)st;
    golden_close(gold);
    return 0;
}

/* ---- CLIP ---- */

/* Rows of a golden [2, 20, d] that are no padding. */
static void near_rows(const char *name, const char *what, const float *got, size_t d)
{
    const int32_t *mask = gold_i32(gold, name, "attention_mask", NULL);
    const float *want = gold_f32(gold, name, what, NULL);
    char label[96];
    snprintf(label, sizeof label, "%s %s", name, what);
    for (size_t i = 0; i < 40; i++)
        if (mask[i])
            near(label, got + i * d, want + i * d, d, TOL);
}

static void clip_case(struct rig *r, const char *name, const char *folder)
{
    static const char *const hidden[] = {"last_hidden_state", "hidden_02", "hidden_01",
                                         "hidden_00"};
    struct comp c;
    struct nn_weights *w;
    struct clip *m = NULL;
    struct err e = {0};
    struct batch b;
    float states[40 * 32], pooled[2 * 24];
    char dir[96];
    snprintf(dir, sizeof dir, DATA "%s", folder);
    comp_open(&c, dir, "CLIPTextModelWithProjection");
    weights_open(&w, r);
    if (clip_open(&m, w, &c, 0, &e))
        fail_msg("%s", e.text);
    assert_int_equal(clip_dim(m), 32);
    assert_int_equal(clip_positions(m), 77);
    assert_int_equal(clip_projection(m), 24);
    batch_clear(&b);
    const int32_t *ids = gold_i32(gold, name, "input_ids", NULL);
    batch_add(&b, ids, 20);
    batch_add(&b, ids + 20, 20);
    int32_t at[2] = {clip_eos_at(m, ids, 20), clip_eos_at(m, ids + 20, 20)};
    for (int skip = 0; skip < 4; skip++) {
        struct clip_out o = {.skip = skip, .states = states, .at = at, .pooled = pooled};
        memset(pooled, 0, sizeof pooled);
        RUN(r, clip_run(m, &r->n, &b.b, &o));
        near_rows(name, hidden[skip], states, 32);
        near("text_embeds", pooled, gold_f32(gold, name, "text_embeds", NULL), 48, TOL);
    }
    struct clip_out o = {.at = at, .pooled = pooled}; /* pooled alone */
    memset(pooled, 0, sizeof pooled);
    RUN(r, clip_run(m, &r->n, &b.b, &o));
    near("text_embeds", pooled, gold_f32(gold, name, "text_embeds", NULL), 48, TOL);
    clip_close(m);
    nn_weights_close(w);
    comp_close(&c);
}

static void clip_rig(struct rig *r)
{
    clip_case(r, "clip-text", "clip-text");
    clip_case(r, "clip-text-gelu", "clip-text-gelu");
    clip_case(r, "clip-text-gelu", "open-clip"); /* the projection's matrix turned */
}
static void test_clip(void **st)
{
    (void)st;
    each_rig(clip_rig);
}

/* One encoder over prompt and negative of a pipeline's golden; states [2, 77, 32]. */
static void pipe_clip(struct rig *r, const char *name, const char *dir, const char *cls, int skip,
                      float *states, float *pooled)
{
    struct comp c;
    struct nn_weights *w;
    struct clip *m = NULL;
    struct batch b;
    comp_open(&c, dir, cls);
    weights_open(&w, r);
    assert_int_equal(clip_open(&m, w, &c, pooled ? 0 : skip, NULL), 0);
    batch_clear(&b);
    const int32_t *ids[2] = {gold_i32(gold, name, "prompt_ids", NULL),
                             gold_i32(gold, name, "negative_ids", NULL)};
    int32_t at[2];
    for (int i = 0; i < 2; i++) {
        batch_add(&b, ids[i], 77);
        at[i] = clip_eos_at(m, ids[i], 77);
    }
    struct clip_out o = {.skip = skip, .states = states, .at = at, .pooled = pooled};
    RUN(r, clip_run(m, &r->n, &b.b, &o));
    clip_close(m);
    nn_weights_close(w);
    comp_close(&c);
}

static void near_cols(const char *name, const char *what, const float *got, size_t from,
                      size_t cols)
{
    const float *want = gold_f32(gold, name, what, NULL);
    for (size_t i = 0; i < 77; i++)
        near(what, got + i * 32, want + i * cols + from, 32, TOL);
}

static void pipes_rig(struct rig *r)
{
    static float states[2 * 77 * 32];
    float pooled[2 * 32];
    pipe_clip(r, "sd15", DATA "../sdxl/text_encoder", "CLIPTextModel", 0, states, NULL);
    near_cols("sd15", "prompt_embeds", states, 0, 32);
    near_cols("sd15", "negative_embeds", states + 77 * 32, 0, 32);
    pipe_clip(r, "sdxl", DATA "../sdxl/text_encoder", "CLIPTextModel", 1, states, NULL);
    near_cols("sdxl", "prompt_embeds", states, 0, 64);
    near_cols("sdxl", "negative_embeds", states + 77 * 32, 0, 64);
    pipe_clip(r, "sdxl", DATA "../sdxl/text_encoder_2", "CLIPTextModelWithProjection", 1, states,
              pooled);
    near_cols("sdxl", "prompt_embeds", states, 32, 64);
    near_cols("sdxl", "negative_embeds", states + 77 * 32, 32, 64);
    near("pooled", pooled, gold_f32(gold, "sdxl", "prompt_pooled", NULL), 24, TOL);
    near("pooled", pooled + 24, gold_f32(gold, "sdxl", "negative_pooled", NULL), 24, TOL);
}
static void test_sd_pipelines(void **st)
{
    (void)st;
    each_rig(pipes_rig);
}

static void flux_rig(struct rig *r)
{
    struct comp c;
    struct nn_weights *w;
    struct clip *m = NULL;
    struct t5 *t = NULL;
    struct batch b;
    float pooled[32], states[16 * 32];
    comp_open(&c, DATA "../sdxl/text_encoder", "CLIPTextModel");
    weights_open(&w, r);
    assert_int_equal(clip_open(&m, w, &c, 0, NULL), 0);
    assert_int_equal(clip_projection(m), 0);
    const int32_t *ids = gold_i32(gold, "flux-dev", "clip_ids", NULL);
    batch_clear(&b);
    batch_add(&b, ids, 77);
    struct clip_out o = {.at = (int32_t[]){clip_eos_at(m, ids, 77)}, .pooled = pooled};
    RUN(r, clip_run(m, &r->n, &b.b, &o));
    near("pooled", pooled, gold_f32(gold, "flux-dev", "pooled", NULL), 32, TOL);
    clip_close(m);
    comp_close(&c);
    comp_open(&c, DATA "flux-dev-text_encoder_2", "T5EncoderModel");
    assert_int_equal(t5_open(&t, w, &c, NULL), 0);
    assert_int_equal(t5_dim(t), 32);
    batch_clear(&b);
    batch_add(&b, gold_i32(gold, "flux-dev", "t5_ids", NULL), 16);
    RUN(r, t5_run(t, &r->n, &b.b, states));
    near("t5", states, gold_f32(gold, "flux-dev", "prompt_embeds", NULL), 16 * 32, TOL);
    t5_close(t);
    nn_weights_close(w);
    comp_close(&c);
}
static void test_flux(void **st)
{
    (void)st;
    each_rig(flux_rig);
}

/* Old configurations name the wrong token: the largest id is the end. */
static void test_clip_eos(void **st)
{
    struct rig r;
    struct comp c;
    struct nn_weights *w;
    struct clip *m = NULL;
    (void)st;
    rig_open(&r, &ref_backend, NULL, PRECISION_F32);
    comp_open(&c, DATA "clip-text", "");
    weights_open(&w, &r);
    assert_int_equal(clip_open(&m, w, &c, 0, NULL), 0);
    assert_int_equal(clip_projection(m), 24); /* no class is named: what the files have */
    assert_int_equal(clip_eos_at(m, (int32_t[]){510, 4, 511, 511}, 4), 2);
    assert_int_equal(clip_eos_at(m, (int32_t[]){510, 4, 5, 6}, 4), 0);
    clip_close(m);
    comp_edit(&c, DATA "clip-text", "\"eos_token_id\": 511", "\"eos_token_id\": 2");
    assert_int_equal(clip_open(&m, w, &c, 0, NULL), 0);
    assert_int_equal(clip_eos_at(m, (int32_t[]){3, 2, 9, 9, 1}, 5), 2);
    clip_close(m);
    nn_weights_close(w);
    comp_close(&c);
    rig_close(&r);
}

/* ---- T5 ---- */

static void test_t5_buckets(void **st)
{
    static const int kinds[][2] = {{32, 128}, {8, 16}, {32, 256}, {64, 512}};
    (void)st;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        char what[32];
        size_t n;
        snprintf(what, sizeof what, "%d.%d", kinds[k][0], kinds[k][1]);
        const int32_t *want = gold_i32(gold, "bucket", what, &n);
        assert_int_equal(n, 1401);
        for (int i = 0; i < 1401; i++)
            assert_int_equal(enc__t5_bucket(kinds[k][0], kinds[k][1], i - 700), want[i]);
    }
}

static float states_all[1024 * 64], states_one[1024 * 64];

/* Prompts "<name>.t0" ... together and alone. */
static void t5_case(struct rig *r, const char *name, int n_text, size_t dim)
{
    struct comp c;
    struct nn_weights *w;
    struct t5 *m = NULL;
    struct err e = {0};
    struct batch all, one;
    char dir[96], key[32];
    snprintf(dir, sizeof dir, DATA "%s", name);
    comp_open(&c, dir, "");
    weights_open(&w, r);
    if (t5_open(&m, w, &c, &e))
        fail_msg("%s", e.text);
    batch_clear(&all);
    for (int i = 0; i < n_text; i++) {
        size_t n;
        snprintf(key, sizeof key, "t%d.ids", i);
        const int32_t *ids = gold_i32(gold, name, key, &n);
        batch_add(&all, ids, n);
    }
    RUN(r, t5_run(m, &r->n, &all.b, states_all));
    for (int i = 0; i < n_text; i++) {
        size_t from = (size_t)all.start[i], n = (size_t)all.start[i + 1] - from;
        snprintf(key, sizeof key, "t%d.states", i);
        near(name, states_all + from * dim, gold_f32(gold, name, key, NULL), n * dim, TOL);
        batch_clear(&one);
        batch_add(&one, all.ids + from, n);
        RUN(r, t5_run(m, &r->n, &one.b, states_one));
        assert_memory_equal(states_one, states_all + from * dim, n * dim * sizeof(float));
    }
    t5_close(m);
    nn_weights_close(w);
    comp_close(&c);
}

static void t5_rig(struct rig *r)
{
    t5_case(r, "t5-encoder", 3, 64);
    t5_case(r, "umt5-encoder", 3, 64);
    t5_case(r, "t5-relu", 2, 48);
}
static void test_t5(void **st)
{
    (void)st;
    each_rig(t5_rig);
}

/* ---- language models ---- */

static void lm_batch(struct batch *b, const char *name)
{
    batch_clear(b);
    for (int i = 0; i < 3; i++) {
        char key[32];
        size_t n;
        snprintf(key, sizeof key, "lm%d.ids", i);
        const int32_t *ids = gold_i32(gold, name, key, &n);
        batch_add(b, ids, n);
    }
}

static void lm_near(const char *name, const struct batch *b, int skip, size_t dim)
{
    for (int i = 0; i < 3; i++) {
        char key[32];
        size_t n;
        snprintf(key, sizeof key, "lm%d.skip%d", i, skip);
        const float *want = gold_f32(gold, name, key, &n);
        assert_int_equal(n, (size_t)(b->start[i + 1] - b->start[i]) * dim);
        near(name, states_all + (size_t)b->start[i] * dim, want, n, TOL);
    }
}

static void lm_case(struct rig *r, const char *name, const char *folder, size_t dim)
{
    struct comp c;
    struct nn_weights *w;
    struct lm_enc *m = NULL;
    struct err e = {0};
    struct batch all, one;
    char dir[96];
    snprintf(dir, sizeof dir, DATA "%s", folder);
    comp_open(&c, dir, "");
    weights_open(&w, r);
    if (lm_enc_open(&m, w, &c, 0, &e))
        fail_msg("%s", e.text);
    assert_int_equal(lm_enc_dim(m), dim);
    lm_batch(&all, name);
    for (int skip = 2; skip >= 0; skip--) {
        RUN(r, lm_enc_run(m, &r->n, &all.b, skip, states_all));
        lm_near(name, &all, skip, dim);
    }
    for (int i = 0; i < 3; i++) { /* alone: the same bits */
        size_t from = (size_t)all.start[i], n = (size_t)all.start[i + 1] - from;
        batch_clear(&one);
        batch_add(&one, all.ids + from, n);
        RUN(r, lm_enc_run(m, &r->n, &one.b, 0, states_one));
        assert_memory_equal(states_one, states_all + from * dim, n * dim * sizeof(float));
    }
    lm_enc_close(m);
    nn_weights_close(w);
    comp_close(&c);
}

static void lm_rig(struct rig *r)
{
    lm_case(r, "qwen3", "qwen3", 64);
    lm_case(r, "qwen-image", "../qwen-image/text_encoder", 32);
    lm_case(r, "z-image", "../z-image/text_encoder", 32);
}
static void test_lm(void **st)
{
    (void)st;
    each_rig(lm_rig);
}

/* What the pipelines' own goldens say, in one run of prompt and negative. */
static void test_lm_pipelines(void **st)
{
    static const struct {
        const char *name, *dir;
        int skip;
    } cases[] = {{"qwen-image", DATA "../qwen-image/text_encoder", 0},
                 {"z-image", DATA "../z-image/text_encoder", 1}};
    (void)st;
    for (size_t k = 0; k < 2; k++) {
        struct rig r;
        struct comp c;
        struct nn_weights *w;
        struct lm_enc *m = NULL;
        struct batch b;
        rig_open(&r, &cpu_backend, NULL, PRECISION_F32);
        comp_open(&c, cases[k].dir, "");
        weights_open(&w, &r);
        assert_int_equal(lm_enc_open(&m, w, &c, cases[k].skip, NULL), 0);
        batch_clear(&b);
        batch_add(&b, gold_i32(gold, cases[k].name, "prompt_ids", NULL), 12);
        batch_add(&b, gold_i32(gold, cases[k].name, "negative_ids", NULL), 4);
        RUN(&r, lm_enc_run(m, &r.n, &b.b, cases[k].skip, states_all));
        near("prompt", states_all, gold_f32(gold, cases[k].name, "prompt_embeds", NULL), 12 * 32,
             TOL);
        near("negative", states_all + 12 * 32,
             gold_f32(gold, cases[k].name, "negative_embeds", NULL), 4 * 32, TOL);
        lm_enc_close(m);
        nn_weights_close(w);
        comp_close(&c);
        rig_close(&r);
    }
}

/* Tensors under other names: "<prefix>X" and GGUF's. arg: the prefix, or NULL for GGUF's. */
static int find_renamed(const struct source_map *m, const char *want,
                        struct source_slice slice[SOURCE_SLICES])
{
    static const char *const parts[][2] = {
        {"attn_norm.", "input_layernorm."},    {"attn_q.", "self_attn.q_proj."},
        {"attn_k.", "self_attn.k_proj."},      {"attn_v.", "self_attn.v_proj."},
        {"attn_output.", "self_attn.o_proj."}, {"attn_q_norm.", "self_attn.q_norm."},
        {"attn_k_norm.", "self_attn.k_norm."}, {"ffn_norm.", "post_attention_layernorm."},
        {"ffn_gate.", "mlp.gate_proj."},       {"ffn_up.", "mlp.up_proj."},
        {"ffn_down.", "mlp.down_proj."}};
    const char *prefix = m->arg;
    char *out = slice[0].name;
    int layer, at = 0;
    slice[0] = (struct source_slice){.n_part = 1};
    if (prefix) {
        if (strncmp(want, prefix, strlen(prefix)) != 0)
            return -1;
        snprintf(out, sizeof slice[0].name, "model.%s", want + strlen(prefix));
        return 1;
    }
    if (strcmp(want, "token_embd.weight") == 0)
        snprintf(out, sizeof slice[0].name, "model.embed_tokens.weight");
    else if (strcmp(want, "output_norm.weight") == 0)
        snprintf(out, sizeof slice[0].name, "model.norm.weight");
    else if (sscanf(want, "blk.%d.%n", &layer, &at) != 1)
        return -1;
    for (size_t i = 0; at && i < sizeof parts / sizeof parts[0]; i++)
        if (strncmp(want + at, parts[i][0], strlen(parts[i][0])) == 0)
            snprintf(out, sizeof slice[0].name, "model.layers.%d.%s%s", layer, parts[i][1],
                     want + at + strlen(parts[i][0]));
    return 1;
}

static void test_lm_names(void **st)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                           "language_model.", "", NULL};
    struct rig r;
    (void)st;
    rig_open(&r, &ref_backend, NULL, PRECISION_F32);
    for (size_t k = 0; k < sizeof prefixes / sizeof prefixes[0]; k++) {
        struct comp c;
        struct nn_weights *w;
        struct lm_enc *m = NULL;
        struct err e = {0};
        struct batch b;
        comp_open(&c, DATA "qwen3", "");
        c.map.find = find_renamed;
        c.map.arg = prefixes[k];
        weights_open(&w, &r);
        if (lm_enc_open(&m, w, &c, 0, &e))
            fail_msg("%s", e.text);
        lm_batch(&b, "qwen3");
        RUN(&r, lm_enc_run(m, &r.n, &b.b, 0, states_all));
        lm_near("qwen3", &b, 0, 64);
        lm_enc_close(m);
        nn_weights_close(w);
        comp_close(&c);
    }
    rig_close(&r);
}

/* Layers that no run needs take no memory; a plan counts what an open takes. */
static void test_skip(void **st)
{
    struct rig r;
    struct comp lm, cl;
    size_t lm_bytes[3], clip_bytes[3];
    (void)st;
    rig_open(&r, &cpu_backend, NULL, PRECISION_F32);
    comp_open(&lm, DATA "qwen3", "");
    comp_open(&cl, DATA "clip-text", "CLIPTextModelWithProjection");
    for (int skip = 0; skip < 3; skip++) {
        struct lm_enc *m = NULL;
        struct clip *t = NULL;
        struct batch b;
        for (int plan = 0; plan < 2; plan++) {
            struct nn_weights *w, *w2;
            struct rig p = r;
            p.dev = plan ? NULL : r.dev;
            weights_open(&w, &p);
            weights_open(&w2, &p);
            assert_int_equal(lm_enc_open(&m, w, &lm, skip, NULL), 0);
            assert_int_equal(clip_open(&t, w2, &cl, skip, NULL), 0);
            if (plan) {
                assert_int_equal(nn_weights_bytes(w), lm_bytes[skip]);
                assert_int_equal(nn_weights_bytes(w2), clip_bytes[skip]);
            } else {
                lm_bytes[skip] = nn_weights_bytes(w);
                clip_bytes[skip] = nn_weights_bytes(w2);
                lm_batch(&b, "qwen3");
                RUN(&r, lm_enc_run(m, &r.n, &b.b, skip, states_all));
                lm_near("qwen3", &b, skip, 64);
                assert_int_equal(clip_projection(t), skip ? 0 : 24);
            }
            lm_enc_close(m);
            clip_close(t);
            nn_weights_close(w);
            nn_weights_close(w2);
        }
    }
    assert_true(lm_bytes[0] > lm_bytes[1] && lm_bytes[1] > lm_bytes[2]);
    assert_true(clip_bytes[0] > clip_bytes[1] && clip_bytes[1] > clip_bytes[2]);
    comp_close(&lm);
    comp_close(&cl);
    rig_close(&r);
}

/* The default precision (bf16 products where the processor has them): close, and still the same bits in company. */
static void test_default_precision(void **st)
{
    struct rig r;
    struct comp c;
    struct nn_weights *w;
    struct lm_enc *m = NULL;
    struct t5 *t = NULL;
    struct batch b;
    size_t n;
    (void)st;
    rig_open(&r, &cpu_backend, NULL, PRECISION_DEFAULT);
    weights_open(&w, &r);
    comp_open(&c, DATA "../qwen-image/text_encoder", "");
    assert_int_equal(lm_enc_open(&m, w, &c, 0, NULL), 0);
    lm_batch(&b, "qwen-image");
    RUN(&r, lm_enc_run(m, &r.n, &b.b, 0, states_all));
    const float *want = gold_f32(gold, "qwen-image", "lm2.skip0", &n);
    double e = nmse(states_all + (size_t)b.start[2] * 32, want, n);
    print_message("%s: qwen2.5 nmse %.2e\n", r.name, e);
    assert_true(e < 1e-3);
    struct batch one;
    batch_clear(&one);
    batch_add(&one, b.ids + b.start[2], 33);
    RUN(&r, lm_enc_run(m, &r.n, &one.b, 0, states_one));
    assert_memory_equal(states_one, states_all + (size_t)b.start[2] * 32, n * sizeof(float));
    lm_enc_close(m);
    comp_close(&c);
    comp_open(&c, DATA "t5-encoder", "");
    assert_int_equal(t5_open(&t, w, &c, NULL), 0);
    batch_clear(&one);
    batch_add(&one, gold_i32(gold, "t5-encoder", "t2.ids", NULL), 130);
    RUN(&r, t5_run(t, &r.n, &one.b, states_one));
    e = nmse(states_one, gold_f32(gold, "t5-encoder", "t2.states", NULL), 130 * 64);
    print_message("%s: t5 nmse %.2e\n", r.name, e);
    assert_true(e < 1e-3);
    t5_close(t);
    comp_close(&c);
    nn_weights_close(w);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_sd_pipelines),
        cmocka_unit_test(test_flux),
        cmocka_unit_test(test_clip_eos),
        cmocka_unit_test(test_t5_buckets),
        cmocka_unit_test(test_t5),
        cmocka_unit_test(test_lm),
        cmocka_unit_test(test_lm_pipelines),
        cmocka_unit_test(test_lm_names),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_default_precision),
    };
    return cmocka_run_group_tests_name("encoders", tests, open_goldens, close_goldens);
}
