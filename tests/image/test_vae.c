/* Autoencoders against diffusers' numbers (record_vae.py), on every backend; sizes in company; what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/image/vae.h"
#include "tests/golden.h"
#include "tests/image_comp.h"

#define DATA "tests/data/image/"

static struct image_back backs[IMAGE_BACKS], backs16[IMAGE_BACKS];
static int n_back, n_back16;
static struct golden *gold;

struct model {
    struct comp c;
    struct nn_weights *w;
    struct vae *m;
    struct nn n;
};

static int model_try(struct model *x, const struct image_back *b, struct err *e)
{
    int rc = nn_weights_open(&x->w, b->be, b->dev, b->precision, e);
    image_nn_open(&x->n, b);
    return rc ? rc : vae_open(&x->m, x->w, &x->c, e);
}

static void model_close(struct model *x)
{
    vae_close(x->m);
    nn_weights_close(x->w);
    if (x->n.be)
        nn_close(&x->n);
    image_comp_close(&x->c);
    *x = (struct model){0};
}

static void model_open(struct model *x, const struct image_back *b, const char *dir,
                       const char *cls)
{
    struct err e = {0};
    *x = (struct model){0};
    int rc = image_comp_open(&x->c, dir, "vae", &e);
    if (!rc && cls)
        snprintf(x->c.cls, sizeof x->c.cls, "%s", cls);
    if (!rc)
        rc = model_try(x, b, &e);
    if (rc)
        fail_msg("%s on %s: %s", dir, b->name, e.text);
}

typedef void run_fn(struct vae *m, struct nn *n, const struct img_tile *in, int n_in);

/* As a pipeline does it: dry for the memory, then for real in just that much. */
static void run(struct model *x, run_fn *fn, const struct img_tile *in, int n_in)
{
    struct err e = {0};
    nn_begin(&x->n, true);
    fn(x->m, &x->n, in, n_in);
    assert_int_equal(nn_end(&x->n, &e), 0);
    size_t peak = x->n.mem.peak;
    assert_true(peak > 0);
    assert_int_equal(x->n.mem.n, 0);
    assert_int_equal(nn_reserve(&x->n, peak), 0);
    nn_begin(&x->n, false);
    fn(x->m, &x->n, in, n_in);
    if (nn_end(&x->n, &e))
        fail_msg("%s", e.text);
    assert_int_equal(x->n.mem.n, 0);
    assert_int_equal(x->n.mem.peak, peak);
}

static const float *want(const char *name, const char *sub, size_t *n)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", name, sub);
    const float *p = golden_f32(gold, key, n);
    if (!p)
        fail_msg("no %s", key);
    return p;
}

static void near(const struct image_back *b, const char *what, const float *got, const float *ref,
                 size_t n, double bound)
{
    double err = image_error(got, ref, n);
    if (!(err < bound))
        fail_msg("%s: %s is off by %g, bound %g", b->name, what, err, bound);
}

static void clamp(float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = p[i] < -1 ? -1 : p[i] > 1 ? 1 : p[i];
}

/* ---- one decoding of each pipeline's golden; the latents there are the autoencoder's own, not the denoiser's ---- */

struct one {
    const char *name, *dir;
    int h, w;
    bool video;
    float scale, shift; /* not video */
};
static const struct one ones[] = {
    {"sd15", DATA "sd15/vae", 16, 16, false, 0.18215f, 0},
    {"sdxl", DATA "sd15/vae", 16, 16, false, 0.18215f, 0}, /* the same weights */
    {"flux-dev", DATA "flux-dev/vae", 16, 16, false, 0.3611f, 0.1159f},
    {"flux-schnell", DATA "flux-dev/vae", 16, 16, false, 0.3611f, 0.1159f},
    {"z-image", DATA "flux-dev/vae", 16, 16, false, 0.3611f, 0.1159f},
    {"qwen-image", DATA "qwen-image/vae", 8, 8, true, 0, 0},
};
static const float video_mean[4] = {0, 0.1f, -0.1f, 0.2f}, video_std[4] = {1, 1.1f, 0.9f, 1.2f};

static void decode_golden(const struct image_back *b, const struct one *o, double bound)
{
    struct model x;
    size_t n_in, n_out;
    const float *in = want(o->name, "vae_latents_in", &n_in),
                *out = want(o->name, "vae_decoded", &n_out);
    model_open(&x, b, o->dir, NULL);
    size_t hw = (size_t)(o->h * o->w), f = (size_t)vae_factor(x.m);
    assert_int_equal(n_in, 4 * hw);
    assert_int_equal(n_out, 3 * hw * f * f);
    struct img_tile t = {
        .h = o->h, .w = o->w, .latent = malloc(n_in * 4), .rgb = malloc(n_out * 4)};
    for (size_t i = 0; i < n_in; i++)
        t.latent[i] = o->video ? (in[i] - video_mean[i / hw]) / video_std[i / hw]
                               : (in[i] - o->shift) * o->scale;
    run(&x, vae_decode, &t, 1);
    if (o->video)
        clamp(t.rgb, n_out);
    near(b, o->name, t.rgb, out, n_out, bound);
    free(t.latent);
    free(t.rgb);
    model_close(&x);
}

static void test_golden(void **st)
{
    (void)st;
    for (int b = 0; b < n_back; b++)
        for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
            decode_golden(&backs[b], &ones[i], 1e-4);
    for (int b = 0; b < n_back16; b++)
        for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
            decode_golden(&backs16[b], &ones[i], 0.05);
}

/* ---- two sizes in one run, both ways; alone they give the same bytes ---- */

static const struct {
    const char *name, *dir, *cls;
    bool video;
} pairs[] = {{"sd15", DATA "sd15/vae", NULL, false},
             {"flux-dev", DATA "flux-dev/vae", NULL, false},
             {"qwen-image", DATA "qwen-image/vae", NULL, true},
             {"wan", DATA "qwen-image/vae", "AutoencoderKLWan", true}};
static const int pair_size[2][2] = {{5, 9}, {8, 4}};

static void same_alone(struct model *x, run_fn *fn, const struct img_tile *both, bool rgb)
{
    for (int i = 0; i < 2; i++) {
        int f = vae_factor(x->m), hw = both[i].h * both[i].w;
        size_t m = (size_t)(rgb ? 3 * hw * f * f : 4 * hw);
        float *out = malloc(m * sizeof *out);
        struct img_tile t = both[i];
        *(rgb ? &t.rgb : &t.latent) = out;
        run(x, fn, &t, 1);
        assert_memory_equal(out, rgb ? both[i].rgb : both[i].latent, m * sizeof *out);
        free(out);
    }
}

static void both_ways(const struct image_back *b, size_t k, double bound)
{
    struct model x;
    struct img_tile t[2] = {{0}};
    const float *rgb[2], *latent[2], *decoded[2];
    size_t n_rgb[2], n_lat[2];
    model_open(&x, b, pairs[k].dir, pairs[k].cls);
    assert_true(vae_has_encoder(x.m));
    assert_int_equal(vae_channels(x.m), 4);
    for (int i = 0; i < 2; i++) {
        char key[32];
        snprintf(key, sizeof key, "%d.rgb", i);
        rgb[i] = want(pairs[k].name, key, &n_rgb[i]);
        snprintf(key, sizeof key, "%d.latent", i);
        latent[i] = want(pairs[k].name, key, &n_lat[i]);
        snprintf(key, sizeof key, "%d.decoded", i);
        decoded[i] = want(pairs[k].name, key, &n_rgb[i]);
        t[i] = (struct img_tile){.h = pair_size[i][0],
                                 .w = pair_size[i][1],
                                 .rgb = malloc(n_rgb[i] * 4),
                                 .latent = malloc(n_lat[i] * 4)};
        memcpy(t[i].rgb, rgb[i], n_rgb[i] * 4);
    }
    run(&x, vae_encode, t, 2);
    for (int i = 0; i < 2; i++)
        near(b, pairs[k].name, t[i].latent, latent[i], n_lat[i], bound);
    same_alone(&x, vae_encode, t, false);
    for (int i = 0; i < 2; i++)
        memcpy(t[i].latent, latent[i], n_lat[i] * 4);
    run(&x, vae_decode, t, 2);
    same_alone(&x, vae_decode, t, true);
    for (int i = 0; i < 2; i++) {
        if (pairs[k].video)
            clamp(t[i].rgb, n_rgb[i]);
        near(b, pairs[k].name, t[i].rgb, decoded[i], n_rgb[i], bound);
        free(t[i].rgb);
        free(t[i].latent);
    }
    model_close(&x);
}

static void test_pairs(void **st)
{
    (void)st;
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        for (int b = 0; b < n_back; b++)
            both_ways(&backs[b], k, 1e-4);
        for (int b = 0; b < n_back16; b++)
            both_ways(&backs16[b], k, 0.05);
    }
}

/* ---- the default model ---- */

static void test_tiny(void **st)
{
    (void)st;
    struct golden *g = golden_open(DATA "tiny-t2i.safetensors.xz");
    size_t n_lat, n_rgb;
    const float *z = golden_f32(g, "vae.latent", &n_lat), *rgb = golden_f32(g, "vae.image", &n_rgb);
    const float *dec = golden_f32(g, "vae.decoded", &n_rgb),
                *mean = golden_f32(g, "vae.enc_mean", &n_lat);
    assert_true(z && rgb && dec && mean);
    struct model x;
    model_open(&x, &backs[n_back - 1], "models/tiny-t2i/vae", NULL);
    assert_int_equal(vae_factor(x.m), 4);
    assert_true(vae_scaling(x.m) > 0.588433 && vae_scaling(x.m) < 0.588435);
    struct img_tile t = {.h = 16, .w = 16, .latent = malloc(n_lat * 4), .rgb = malloc(n_rgb * 4)};
    memcpy(t.latent, z, n_lat * 4);
    run(&x, vae_decode, &t, 1);
    near(&backs[n_back - 1], "decoded", t.rgb, dec, n_rgb, 1e-4);
    memcpy(t.rgb, rgb, n_rgb * 4);
    run(&x, vae_encode, &t, 1);
    for (size_t i = 0; i < n_lat; i++)
        t.latent[i] /= (float)vae_scaling(x.m);
    near(&backs[n_back - 1], "mean", t.latent, mean, n_lat, 1e-4);
    free(t.latent);
    free(t.rgb);
    model_close(&x);
    golden_close(g);
}

/* ---- the head of a full-size autoencoder's attention is its 512 channels ---- */

#define HEAD 512
#define ROWS 103

static void wide_head(const struct image_back *b, const float *data, float *out)
{
    static const int32_t start[] = {0, 70, ROWS};
    struct image_meta meta = {.n_layout = 1, .layout = {{.n_seg = 2, .start = start}}};
    struct nn n;
    struct err e = {0};
    image_nn_open(&n, b);
    assert_int_equal(nn_reserve(&n, (size_t)ROWS * HEAD * 6 * sizeof(float)), 0);
    nn_begin(&n, false);
    nn_layouts(&n, &meta);
    struct tensor qkv = nn_tmp(&n, DT_F32, ROWS, 3 * HEAD), dst = nn_tmp(&n, n.mul, ROWS, HEAD);
    nn_put(&n, &qkv, data);
    NN_OP(&n, attend, .dst = dst, .q = tensor_cols(qkv, 0, HEAD), .k = tensor_cols(qkv, HEAD, HEAD),
          .v = tensor_cols(qkv, 2 * HEAD, HEAD), .n_head = 1, .n_kv_head = 1, .head_dim = HEAD,
          .scale = 0.1f);
    nn_get(&n, &dst, out);
    assert_int_equal(nn_end(&n, &e), 0);
    nn_close(&n);
}

static void test_wide_head(void **st)
{
    (void)st;
    const size_t n = (size_t)ROWS * HEAD;
    float *data = malloc(3 * n * sizeof *data), *ref = malloc(n * sizeof *ref),
          *got = malloc(n * sizeof *got);
    uint32_t x = 1;
    for (size_t i = 0; i < 3 * n; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (float)(int32_t)x * 0x1p-30f;
    }
    wide_head(&backs[0], data, ref);
    for (int b = 1; b < n_back; b++) {
        wide_head(&backs[b], data, got);
        near(&backs[b], "attention of one wide head", got, ref, n, 1e-5);
    }
    free(data);
    free(ref);
    free(got);
}

/* ---- other names, missing parts, planning ---- */

static const char *hidden; /* part of the names that a map hides */

/* The attention's names of before 2023. */
static int old_names(const struct source_map *m, const char *name,
                     struct source_slice slice[SOURCE_SLICES])
{
    static const char *const pair[4][2] = {{".query.", ".to_q."},
                                           {".key.", ".to_k."},
                                           {".value.", ".to_v."},
                                           {".proj_attn.", ".to_out.0."}};
    (void)m;
    if (hidden)
        return strstr(name, hidden) ? -1 : 0;
    for (int i = 0; i < 4; i++) {
        const char *at = strstr(name, pair[i][0]);
        if (strstr(name, pair[i][1]))
            return -1;
        if (at) {
            slice[0] = (struct source_slice){.n_part = 1};
            snprintf(slice[0].name, sizeof slice[0].name, "%.*s%s%s", (int)(at - name), name,
                     pair[i][1], at + strlen(pair[i][0]));
            return 1;
        }
    }
    return 0;
}

static void decode_zeros(struct model *x, float rgb[3 * 64])
{
    float latent[4 * 16];
    for (int i = 0; i < 4 * 16; i++)
        latent[i] = (float)(i % 7) / 7;
    struct img_tile t = {.h = 4, .w = 4, .latent = latent, .rgb = rgb};
    run(x, vae_decode, &t, 1);
}

static void test_names(void **st)
{
    (void)st;
    struct model x;
    struct err e = {0};
    float a[3 * 64], b[3 * 64];
    model_open(&x, &backs[0], DATA "sd15/vae", NULL);
    decode_zeros(&x, a);
    model_close(&x);
    hidden = NULL;
    assert_int_equal(image_comp_open(&x.c, DATA "sd15/vae", "vae", &e), 0);
    x.c.map.find = old_names;
    assert_int_equal(model_try(&x, &backs[0], &e), 0);
    decode_zeros(&x, b);
    assert_memory_equal(a, b, sizeof a);
    model_close(&x);
}

/* Without an encoder pictures can be decoded, and encoding says why not. */
static void test_no_encoder(void **st)
{
    (void)st;
    static const char *const dir[] = {DATA "sd15/vae", DATA "qwen-image/vae"};
    for (int i = 0; i < 2; i++) {
        struct model x = {0};
        struct err e = {0};
        float latent[4 * 16] = {0}, rgb[3 * 64 * 16] = {0};
        struct img_tile t = {.h = 4, .w = 4, .latent = latent, .rgb = rgb};
        hidden = "encoder.";
        assert_int_equal(image_comp_open(&x.c, dir[i], "vae", &e), 0);
        x.c.map.find = old_names;
        if (model_try(&x, &backs[0], &e))
            fail_msg("%s", e.text);
        assert_false(vae_has_encoder(x.m));
        run(&x, vae_decode, &t, 1);
        nn_begin(&x.n, false);
        vae_encode(x.m, &x.n, &t, 1);
        assert_int_equal(nn_end(&x.n, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "encoder"));
        model_close(&x);
    }
}

static void test_missing(void **st)
{
    (void)st;
    static const struct {
        const char *dir, *part;
    } row[] = {{DATA "sd15/vae", "decoder.conv_norm_out"},
               {DATA "sd15/vae", "decoder.up_blocks.1.resnets.0.conv_shortcut"},
               {DATA "sd15/vae", "encoder.mid_block.attentions.0.to_k"},
               {DATA "sd15/vae", "post_quant_conv"},
               {DATA "qwen-image/vae", "decoder.norm_out"},
               {DATA "qwen-image/vae", "encoder.down_blocks.4.conv_shortcut"},
               {DATA "qwen-image/vae", "up_blocks.1.upsamplers.0.resample.1"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct model x = {0};
        struct err e = {0};
        hidden = row[i].part;
        assert_int_equal(image_comp_open(&x.c, row[i].dir, "vae", &e), 0);
        x.c.map.find = old_names;
        int rc = model_try(&x, &backs[0], &e);
        if (rc != ERR_NOTFOUND || !strstr(e.text, row[i].part))
            fail_msg("%s \"%s\" does not name %s", err_name(rc), e.text, row[i].part);
        model_close(&x);
    }
}

/* A plan counts what opening takes, and its dry runs what runs take. */
static void test_plan(void **st)
{
    (void)st;
    const struct image_back *b = &backs[n_back - 1];
    struct img_tile t = {.h = 16, .w = 24};
    size_t bytes[2], peak[2];
    for (int plan = 0; plan < 2; plan++) {
        struct model x = {0};
        struct err e = {0};
        struct image_back p = *b;
        if (plan)
            p.dev = NULL;
        assert_int_equal(image_comp_open(&x.c, DATA "flux-dev/vae", "vae", &e), 0);
        assert_int_equal(model_try(&x, &p, &e), 0);
        bytes[plan] = nn_weights_bytes(x.w);
        nn_begin(&x.n, true);
        vae_decode(x.m, &x.n, &t, 1);
        assert_int_equal(nn_end(&x.n, &e), 0);
        peak[plan] = x.n.mem.peak;
        model_close(&x);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_int_equal(peak[0], peak[1]);
    /* At full size: the last level's input, its norm and its first product, and the hole that what they came from
     * leaves, but no more. */
    size_t px = 16 * 24 * 4;
    assert_true(peak[0] <= px * (32 + 32 + 16 + 32 / 4) * sizeof(float) + 16384);
}

static void test_short_memory(void **st)
{
    (void)st;
    struct model x;
    struct err e = {0};
    float latent[4 * 16] = {0}, rgb[3 * 64];
    struct img_tile t = {.h = 4, .w = 4, .latent = latent, .rgb = rgb};
    model_open(&x, &backs[n_back - 1], DATA "sd15/vae", NULL);
    assert_int_equal(nn_reserve(&x.n, 4096), 0);
    nn_begin(&x.n, false);
    vae_decode(x.m, &x.n, &t, 1);
    assert_int_equal(nn_end(&x.n, &e), ERR_NOMEM);
    run(&x, vae_decode, &t, 1);
    float want_rgb[3 * 64];
    memcpy(want_rgb, rgb, sizeof rgb);
    for (int k = 1;; k++) { /* every allocation of a run */
        mem_fail_after(k, false);
        nn_begin(&x.n, false);
        vae_decode(x.m, &x.n, &t, 1);
        int rc = nn_end(&x.n, &e);
        mem_fail_after(0, false);
        if (!rc)
            break;
        assert_int_equal(rc, ERR_NOMEM);
        assert_true(k < 100);
    }
    assert_memory_equal(rgb, want_rgb, sizeof rgb);
    t.h = t.w = 1 << 15; /* more positions than a layout can number */
    nn_begin(&x.n, true);
    vae_decode(x.m, &x.n, &t, 1);
    assert_int_equal(nn_end(&x.n, &e), ERR_LIMIT);
    model_close(&x);
}

static void test_open_memory(void **st)
{
    (void)st;
    for (int k = 1, rc = 1; rc; k++) {
        struct model x = {0};
        struct err e = {0};
        assert_int_equal(image_comp_open(&x.c, DATA "sd15/vae", "vae", &e), 0);
        mem_fail_after(k, false);
        rc = model_try(&x, &backs[n_back - 1], &e);
        mem_fail_after(0, false);
        if (rc)
            assert_int_equal(rc, ERR_NOMEM);
        assert_true(k < 2000);
        model_close(&x);
    }
}

/* ---- configurations that are refused ---- */

static void refuse(const char *dir, const char *cls, const char *json, int code, const char *say)
{
    struct model x = {0};
    struct err e = {0};
    assert_int_equal(image_comp_open(&x.c, dir, "vae", &e), 0);
    if (cls)
        snprintf(x.c.cls, sizeof x.c.cls, "%s", cls);
    if (json) {
        config_close(x.c.cfg);
        x.c.cfg = NULL;
        assert_int_equal(config_open_text(&x.c.cfg, json, strlen(json), "vae/config.json", &e), 0);
    }
    int rc = model_try(&x, &backs[0], &e);
    if (rc != code || !strstr(e.text, say))
        fail_msg("%s: got %s \"%s\", expected %s \"%s\"", json ? json : cls, err_name(rc), e.text,
                 err_name(code), say);
    model_close(&x);
}

static void test_refused(void **st)
{
    (void)st;
    const char *kl = DATA "sd15/vae", *wan = DATA "qwen-image/vae";
#define KL(more, code, say)                                                                        \
    refuse(kl, NULL, "{\"norm_num_groups\": 8, \"block_out_channels\": [16, 32]" more "}", code,   \
           say)
#define WAN(mean, more, code, say)                                                                 \
    refuse(wan, NULL,                                                                              \
           "{\"dim_mult\": [1, 2, 4], \"base_dim\": 8, \"z_dim\": 4, \"num_res_blocks\": 1,"       \
           "\"latents_std\": [1, 1, 1, 1], \"latents_mean\": " mean more "}",                      \
           code, say)
    refuse(kl, "AutoencoderDC", NULL, ERR_UNSUPPORTED, "AutoencoderDC");
    refuse(kl, NULL, "{}", ERR_INVAL, "block_out_channels");
    refuse(kl, NULL, "{\"block_out_channels\": []}", ERR_INVAL, "block_out_channels");
    refuse(kl, NULL, "{\"block_out_channels\": [16, 32]}", ERR_INVAL, "norm_num_groups");
    refuse(kl, NULL, "{\"block_out_channels\": [1,1,1,1,1,1,1,1]}", ERR_UNSUPPORTED, "8 levels");
    KL(", \"down_block_types\": [\"AttnDownEncoderBlock2D\"]", ERR_UNSUPPORTED, "AttnDown");
    KL(", \"act_fn\": \"mish\"", ERR_UNSUPPORTED, "mish");
    KL(", \"in_channels\": 4", ERR_UNSUPPORTED, "in_channels");
    KL(", \"scaling_factor\": 0", ERR_INVAL, "scaling_factor");
    KL(", \"layers_per_block\": 99", ERR_INVAL, "layers_per_block");
    KL(", \"layers_per_block\": 2", ERR_NOTFOUND, "resnets.1");
    KL(", \"latent_channels\": 8", ERR_INVAL, "conv_out");
    KL(", \"latents_std\": [1, 0, 1, 1]", ERR_INVAL, "channel 1");
    KL(", \"latents_std\": [1]", ERR_INVAL, "latents_std");
    WAN("[0, 0, 0]", "", ERR_INVAL, "latents_mean");
    WAN("[0, 0, 0, 0]", ", \"is_residual\": true", ERR_UNSUPPORTED, "is_residual");
    WAN("[0, 0, 0, 0]", ", \"patch_size\": 2", ERR_UNSUPPORTED, "patch_size");
    WAN("[0, 0, 0, 0]", ", \"attn_scales\": [1.0]", ERR_UNSUPPORTED, "attn_scales");
    WAN("[0, 0, 0, 0]", ", \"input_channels\": 4", ERR_UNSUPPORTED, "channels");
    WAN("[0, 0, 0, 0]", ", \"decoder_base_dim\": 7", ERR_INVAL, "conv_in");
    refuse(wan, NULL, "{\"dim_mult\": []}", ERR_INVAL, "latents_mean");
}

static int open_all(void **st)
{
    (void)st;
    n_back = image_backs_open(backs, PRECISION_F32);
    n_back16 = image_backs_open(backs16, PRECISION_DEFAULT);
    gold = golden_open(DATA "vae.safetensors.xz");
    return gold ? 0 : -1;
}

static int close_all(void **st)
{
    (void)st;
    image_backs_close(backs, n_back);
    image_backs_close(backs16, n_back16);
    golden_close(gold);
    return 0;
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_tiny),         cmocka_unit_test(test_wide_head),
        cmocka_unit_test(test_names),        cmocka_unit_test(test_no_encoder),
        cmocka_unit_test(test_missing),      cmocka_unit_test(test_plan),
        cmocka_unit_test(test_short_memory), cmocka_unit_test(test_open_memory),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(t, open_all, close_all);
}
