/* engine/image/files: single-file checkpoints and folders of single files against the diffusers folders that they were
 * made from, tensor by tensor; configurations that GGUF files tell; what is recognised as an image
 * model; every missing or doubled component named; failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/image/files.h"
#include "engine/nn/nn_impl.h"
#include "tests/tree.h"
#include "tests/unxz.h"

#define DATA "tests/data/image/"

static char dir[TREE_PATH]; /* of all tests; holds a copy of single/ */

static int setup(void **state)
{
    (void)state;
    tree_make(dir);
    tree_copy(DATA "single", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tree_remove(dir);
    return 0;
}

/* Opening must fail with this code and a text that has all of these in it. */
static void refuse(const char *path, int code, const char *a, const char *b)
{
    struct err e = {0};
    struct img_files *f = NULL;
    int rc = img_files_open(&f, path, &e);
    if (rc != code || !strstr(e.text, a) || !strstr(e.text, b))
        print_error("%s: %d '%s', expected %d with '%s' and '%s'\n", path, rc, e.text, code, a, b);
    assert_int_equal(rc, code);
    assert_null(f);
    assert_non_null(strstr(e.text, a));
    assert_non_null(strstr(e.text, b));
}

static struct img_files *open_ok(const char *path)
{
    struct err e = {0};
    struct img_files *f = NULL;
    int rc = img_files_open(&f, path, &e);
    if (rc)
        print_error("%s: %s\n", path, e.text);
    assert_int_equal(rc, 0);
    return f;
}

/* ---- the same tensors as the folder ---- */

/* Values and shape, but for dimensions of 1 at the end (a 1x1 convolution is a matrix to some). */
static void same_tensor(const struct comp *a, const struct comp *b, const char *name)
{
    struct nn_view v, w;
    struct err e = {0};
    int ra = nn__view(a, name, &v, &e), rb = nn__view(b, name, &w, &e);
    if (ra || rb)
        print_error("%s %s: %d %d %s\n", a->name, name, ra, rb, e.text);
    assert_int_equal(ra, 0);
    assert_int_equal(rb, 0);
    for (int i = 0; i < SOURCE_DIMS; i++)
        assert_int_equal(i < v.n_dim ? v.dim[i] : 1, i < w.n_dim ? w.dim[i] : 1);
    size_t n = (size_t)nn__count(&v);
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    nn__decode(&v, x);
    nn__decode(&w, y);
    assert_memory_equal(x, y, n * sizeof *x);
    free(x);
    free(y);
    free(v.own);
    free(w.own);
}

/* OpenCLIP's files hold the projection transposed, under a name without ".weight". */
static void same_projection(const struct comp *a, const struct comp *b)
{
    struct nn_view v, w;
    struct err e = {0};
    assert_int_equal(nn__view(a, "text_projection.weight", &v, &e), 0);
    assert_int_equal(nn__view(b, "text_projection", &w, &e), 0);
    assert_int_equal(v.dim[0], w.dim[1]);
    assert_int_equal(v.dim[1], w.dim[0]);
    size_t n = (size_t)nn__count(&v);
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    nn__decode(&v, x);
    nn__decode(&w, y);
    for (int64_t i = 0; i < v.dim[0]; i++)
        for (int64_t k = 0; k < v.dim[1]; k++)
            assert_true(x[i * v.dim[1] + k] == y[k * v.dim[0] + i]);
    free(x);
    free(y);
}

static void same_model(const char *name, const char *path, int n_weights, int n_all)
{
    char folder[TREE_PATH];
    int weights = 0;
    snprintf(folder, sizeof folder, DATA "%s", name);
    struct img_files *a = open_ok(folder), *b = open_ok(path);
    assert_string_equal(a->pipeline, b->pipeline);
    assert_int_equal(b->n_comp, n_all);
    for (int i = 0; i < a->n_comp; i++) {
        const struct comp *x = &a->comp[i], *y = img_files_comp(b, x->name);
        assert_non_null(y);
        if (!x->map.src)
            continue;
        assert_string_equal(x->cls, y->cls);
        weights++;
        for (size_t k = 0; k < source_n(x->map.src); k++) {
            const char *t = source_at(x->map.src, k)->name;
            if (strncmp(t, "visual.", 7) == 0)
                continue; /* a text encoder does not look */
            if (strcmp(t, "text_projection.weight") == 0 &&
                nn__find(y, "text_projection", NULL, NULL))
                same_projection(x, y);
            else
                same_tensor(x, y, t);
        }
        assert_false(nn__find(y, "no.such.tensor", NULL, NULL));
    }
    assert_int_equal(weights, n_weights);
    assert_true(img_files_sniff(path) && eng_path_is_image(folder));
    img_files_close(a);
    img_files_close(b);
}

static void test_same(void **state)
{
    (void)state;
    same_model("sd15", tree_path(dir, "sd15.safetensors"), 3, 5);
    same_model("sdxl", tree_path(dir, "sdxl.safetensors"), 4, 7);
    same_model("sd3", tree_path(dir, "sd3.safetensors"), 5, 9);
    same_model("flux-dev", tree_path(dir, "flux-dev"), 4, 7);
    same_model("z-image", tree_path(dir, "z-image"), 3, 5);
    same_model("qwen-image", tree_path(dir, "qwen-image"), 3, 5);
}

/* ---- the same pictures ---- */

/* A picture of 32 x 32 after two steps; release with free(). */
static uint8_t *picture(const char *path)
{
    struct engine *g = NULL;
    struct img_job *j = NULL;
    struct err e = {0};
    struct eng_opts o = {.path = path, .device = "cpu", .precision = PRECISION_F32, .n_threads = 1};
    struct img_params p = {.prompt = "the cat in the hat",
                           .negative = "a dog",
                           .width = 32,
                           .height = 32,
                           .steps = 2,
                           .guidance = 3,
                           .seed = 5};
    int w, h;
    if (eng_open(&g, &o, &e) || img_job_open(g, &p, &j, &e))
        fail_msg("%s: %s", path, e.text);
    while (img_job_stage(j) != IMG_DONE)
        if (eng_image_step(g, &j, 1, NULL, &e))
            fail_msg("%s: %s", path, e.text);
    const uint8_t *px = img_job_pixels(j, &w, &h);
    assert_true(w == 32 && h == 32);
    uint8_t *copy = malloc(32 * 32 * 3);
    memcpy(copy, px, 32 * 32 * 3);
    img_job_close(g, j);
    eng_close(g);
    return copy;
}

static void same_picture(const char *folder, const char *single)
{
    uint8_t *a = picture(folder), *b = picture(single);
    int flat = 0;
    for (int i = 3; i < 32 * 32 * 3; i++)
        flat += a[i] == a[i - 3];
    assert_true(flat < 32 * 32 * 2); /* of a grey picture the same would mean nothing */
    assert_memory_equal(a, b, 32 * 32 * 3);
    free(a);
    free(b);
}

/* The recorded folder has no tokenizer: a copy gets the one that lies beside the single file. */
static void same_sd(const char *name, const char *file, const char *tokenizers)
{
    char root[TREE_PATH], index[TREE_PATH], text[4096];
    size_t n = 0, at;
    snprintf(root, sizeof root, "%s", tree_path(dir, "folder"));
    tree_copy(tree_path(dir, name), root);
    snprintf(index, sizeof index, DATA "%s", name);
    tree_copy(index, root);
    char *old = unxz_read(tree_path(root, "model_index.json"), &n), *p = old;
    at = (size_t)snprintf(text, sizeof text, "{%s", tokenizers);
    /* the names of those that it says it has not are made other names */
    while ((p = strstr(p, "\"tokenizer")) != NULL)
        memcpy(p, "\"absent", 7);
    snprintf(text + at, sizeof text - at, "%s", old + 1);
    free(old);
    tree_text(root, "model_index.json", text);
    same_picture(root, tree_path(dir, file));
    tree_remove(root);
}

static void test_pictures(void **state)
{
    (void)state;
    same_picture(DATA "sd3", tree_path(dir, "sd3.safetensors"));
    same_picture(DATA "flux-dev", tree_path(dir, "flux-dev"));
    same_picture(DATA "z-image", tree_path(dir, "z-image"));
    same_picture(DATA "qwen-image", tree_path(dir, "qwen-image"));
    same_sd("sd15", "sd15.safetensors", "\"tokenizer\": [\"transformers\", \"CLIPTokenizer\"],");
    same_sd("sdxl", "sdxl.safetensors",
            "\"tokenizer\": [\"transformers\", \"CLIPTokenizer\"],"
            "\"tokenizer_2\": [\"transformers\", \"CLIPTokenizer\"],");
}

/* A GGUF text encoder has a tokenizer in itself. */
static void test_gguf_tokenizer(void **state)
{
    (void)state;
    char root[TREE_PATH];
    snprintf(root, sizeof root, "%s", tree_path(dir, "copy"));
    tree_copy(tree_path(dir, "z-image"), root);
    tree_remove(tree_path(root, "tokenizer"));
    struct img_files *f = open_ok(root);
    assert_string_equal(img_files_comp(f, "tokenizer")->dir, "");
    img_files_close(f);
    same_picture(DATA "z-image", root);
    tree_remove(root);
}

/* Text encoders in GGUF say their own sizes. */
static void test_gguf_config(void **state)
{
    (void)state;
    struct img_files *f = open_ok(tree_path(dir, "z-image"));
    struct config *c = img_files_comp(f, "text_encoder")->cfg;
    assert_int_equal(config_int(c, "hidden_size", 0, 0, 100), 32);
    assert_int_equal(config_int(c, "num_attention_heads", 0, 0, 100), 2);
    assert_int_equal(config_int(c, "num_key_value_heads", 0, 0, 100), 1);
    assert_int_equal(config_int(c, "head_dim", 0, 0, 100), 16);
    assert_int_equal(config_int(c, "num_hidden_layers", 0, 0, 100), 3);
    assert_true(config_num(c, "rope_theta", 0, 0, 1e9) == 10000);
    assert_string_equal(config_str(c, "model_type", ""), "qwen3");
    img_files_close(f);
    f = open_ok(tree_path(dir, "qwen-image"));
    c = img_files_comp(f, "text_encoder")->cfg;
    assert_int_equal(config_int(c, "num_attention_heads", 0, 0, 100), 2);
    assert_int_equal(config_int(c, "head_dim", 0, 0, 100), 16);
    assert_true(config_num(c, "rms_norm_eps", 0, 0, 1) == 1e-5 ||
                (float)config_num(c, "rms_norm_eps", 0, 0, 1) == 1e-5f);
    img_files_close(f);
}

/* ---- UNets of other shapes, in a file of their own ---- */

/* The key in both, as whole numbers or as texts. */
static void same_key(struct config *a, struct config *b, const char *key)
{
    assert_int_equal(config_has(a, key), config_has(b, key));
    if (!config_has(a, key))
        return;
    bool list = config_null_at(a, key, 0) || strstr(key, "block") != NULL;
    if (strstr(key, "_type") && !strstr(key, "_types")) {
        assert_string_equal(config_str(a, key, ""), config_str(b, key, ""));
        return;
    }
    assert_int_equal(config_len(a, key), config_len(b, key));
    for (int i = 0; list && i < config_len(a, key); i++)
        if (strstr(key, "_types"))
            assert_string_equal(config_str_at(a, key, i), config_str_at(b, key, i));
        else
            assert_int_equal(config_int_at(a, key, i, 0, 1 << 16),
                             config_int_at(b, key, i, 0, 1 << 16));
    if (!list)
        assert_int_equal(config_int(a, key, 0, 0, 1 << 16), config_int(b, key, 0, 0, 1 << 16));
}

static void test_unets(void **state)
{
    (void)state;
    static const struct {
        const char *name, *pipeline, *scheduler;
    } cases[] = {
        {"unet-lcm", "StableDiffusionPipeline", "LCMScheduler"},
        {"unet-nomid", "StableDiffusionPipeline", "PNDMScheduler"},
        {"unet-ssd", "StableDiffusionPipeline", "PNDMScheduler"},
        {"unet-sd2", "StableDiffusionPipeline", "PNDMScheduler"},
        {"unet-refiner", "StableDiffusionXLPipeline", "EulerDiscreteScheduler"},
        {"unet-inpaint", "StableDiffusionInpaintPipeline", "PNDMScheduler"},
    };
    static const char *const keys[] = {
        "in_channels",
        "out_channels",
        "block_out_channels",
        "layers_per_block",
        "cross_attention_dim",
        "time_cond_proj_dim",
        "down_block_types",
        "up_block_types",
        "mid_block_type",
        "addition_embed_type",
        "projection_class_embeddings_input_dim",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char root[TREE_PATH], file[TREE_PATH];
        struct err e = {0};
        struct config *want = NULL;
        size_t n;
        snprintf(root, sizeof root, "%s", tree_path(dir, "unet"));
        snprintf(file, sizeof file, DATA "%s/diffusion_pytorch_model.safetensors", cases[i].name);
        char *p = unxz_read(file, &n);
        assert_non_null(p);
        tree_put(root, "u.safetensors", p, n);
        free(p);
        tree_copy(DATA "sdxl/text_encoder", tree_path(root, "text_encoder"));
        tree_copy(DATA "sdxl/text_encoder_2", tree_path(root, "text_encoder_2"));
        assert_int_equal(rename(tree_path(root, "text_encoder_2/model.safetensors"),
                                tree_path(root, "text_encoder_2/clip_g.safetensors")),
                         0);
        tree_copy(DATA "sdxl/vae", tree_path(root, "vae"));
        tree_copy(tree_path(dir, "sd15/tokenizer"), tree_path(root, "tokenizer"));
        struct img_files *f = open_ok(root);
        assert_string_equal(f->pipeline, cases[i].pipeline);
        assert_string_equal(img_files_comp(f, "scheduler")->cls, cases[i].scheduler);
        snprintf(file, sizeof file, DATA "%s/config.json", cases[i].name);
        assert_int_equal(config_open(&want, file, &e), 0);
        struct config *got = img_files_comp(f, "unet")->cfg;
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            same_key(want, got, keys[k]);
        assert_int_equal(config_error(want, &e), 0);
        if (config_error(got, &e))
            fail_msg("%s: %s", cases[i].name, e.text);
        config_close(want);
        img_files_close(f);
        tree_remove(root);
    }
}

/* ---- what is missing or wrong in single files ---- */

/* A fresh copy of a case, its name in root[TREE_PATH]. */
static void copy_case(const char *name, char *root)
{
    char src[TREE_PATH];
    snprintf(src, sizeof src, "%s", tree_path(dir, name));
    snprintf(root, TREE_PATH, "%s", tree_path(dir, "copy"));
    tree_copy(src, root);
}

static void test_missing(void **state)
{
    (void)state;
    static const struct {
        const char *name, *gone, *comp, *marker;
    } cases[] = {
        {"z-image", "vae.safetensors", "no vae", "decoder.mid.block_1"},
        {"z-image", "qwen3.gguf", "no text_encoder", "layers.0.self_attn.q_proj.weight"},
        {"z-image", "z-image.gguf", "no file with a denoiser", "Z-Image"},
        {"qwen-image", "tokenizer", "no tokenizer", "looked for a folder 'tokenizer'"},
        {"qwen-image", "qwen_image_vae.safetensors", "no vae", "AutoencoderKLQwenImage"},
        {"flux-dev", "clip_l.safetensors", "no text_encoder (CLIP", "token_embedding"},
        {"flux-dev", "t5-encoder.gguf", "no text_encoder_2 (T5", "SelfAttention"},
        {"flux-dev", "tokenizer_2", "no tokenizer_2", "T5 encoder"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char root[TREE_PATH];
        copy_case(cases[i].name, root);
        tree_remove(tree_path(root, cases[i].gone));
        refuse(root, ERR_NOTFOUND, cases[i].comp, cases[i].marker);
        tree_remove(root);
    }
}

/* A file beside a checkpoint, in the folder of its name, replaces what it holds; equals are refused. */
static void test_two(void **state)
{
    (void)state;
    char root[TREE_PATH], src[TREE_PATH];
    struct err e = {0};
    copy_case("z-image", root);
    assert_int_equal(rename(tree_path(root, "vae.safetensors"), tree_path(root, "a.safetensors")),
                     0);
    assert_int_equal(link(tree_path(root, "a.safetensors"), tree_path(root, "b.safetensors")), 0);
    refuse(root, ERR_INVAL, "two of its kind", "b.safetensors");
    tree_remove(root);
    copy_case("sd15", root);
    snprintf(src, sizeof src, "%s", tree_path(dir, "flux-dev/ae.safetensors"));
    assert_int_equal(link(tree_path(dir, "sd15.safetensors"), tree_path(dir, "copy.safetensors")),
                     0);
    assert_int_equal(link(src, tree_path(root, "ae.safetensors")), 0);
    struct img_files *f = open_ok(tree_path(dir, "copy.safetensors"));
    const struct comp *vae = img_files_comp(f, "vae");
    assert_non_null(strstr(source_path(vae->map.src), "ae.safetensors"));
    assert_false(nn__find(vae, "quant_conv.weight", NULL, NULL));
    assert_int_equal(source_check_files(vae->map.src, &e), 0);
    img_files_close(f);
    tree_remove(root);
    unlink(tree_path(dir, "copy.safetensors"));
}

static void test_mismatch(void **state)
{
    (void)state;
    char root[TREE_PATH];
    copy_case("z-image", root);
    tree_remove(tree_path(root, "qwen3.gguf"));
    assert_int_equal(link(tree_path(dir, "qwen-image/qwen2.5-vl.gguf"), tree_path(root, "t.gguf")),
                     0);
    refuse(root, ERR_INVAL, "not Qwen3's", "Qwen3Model");
    tree_remove(tree_path(root, "t.gguf"));
    tree_safetensors(root, "t.safetensors",
                     (struct tree_tensor[]){
                         {"model.embed_tokens.weight", "F32", 2, {8, 64}, NULL},
                         {"model.layers.0.self_attn.q_norm.weight", "F32", 1, {16}, NULL},
                         {"model.layers.0.self_attn.q_proj.weight", "F32", 2, {32, 64}, NULL},
                     },
                     3);
    refuse(root, ERR_INVAL, "reads states of 32 values", "has 64");
    tree_remove(root);
    copy_case("z-image",
              root); /* the family's configuration would not fit: the user's is read, and checked */
    tree_text(root, "vae/config.json", "{\"latent_channels\": 4,, }");
    refuse(root, ERR_PARSE, "vae/config.json", "line 1");
    tree_remove(root);
}

static void test_families(void **state)
{
    (void)state;
    static const struct {
        const char *tensor, *with, *name;
    } cases[] = {
        {"double_stream_modulation_img.lin.weight", NULL, "FLUX.2"},
        {"txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.weight", NULL, "Hunyuan"},
        {"distilled_guidance_layer.in_proj.weight", NULL, "Chroma"},
        {"blocks.0.cross_attn.norm_k.weight", "head.modulation", "Wan"},
        {"adaln_single.linear.weight", NULL, "LTX"},
        {"layers.0.adaLN_modulation.1.weight", "cap_embedder.0.weight", "Lumina"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char root[TREE_PATH];
        snprintf(root, sizeof root, "%s", tree_path(dir, "family"));
        struct tree_tensor t[] = {{cases[i].tensor, "F16", 2, {2, 2}, NULL},
                                  {cases[i].with, "F16", 2, {2, 2}, NULL}};
        tree_safetensors(root, "x.safetensors", t, cases[i].with ? 2 : 1);
        assert_true(img_files_sniff(root));
        refuse(tree_path(root, "x.safetensors"), ERR_UNSUPPORTED, cases[i].name, "not served");
        tree_remove(root);
    }
}

static void test_sniff(void **state)
{
    (void)state;
    assert_true(img_files_sniff(tree_path(dir, "z-image/z-image.gguf")));
    assert_true(img_files_sniff(tree_path(dir, "qwen-image/qwen-image.gguf")));
    assert_true(img_files_sniff(tree_path(dir, "flux-dev/flux1-dev.safetensors")));
    refuse(tree_path(dir, "z-image/z-image.gguf"), ERR_NOTFOUND, "no text_encoder", "beside it");
    /* language models, encoders and autoencoders alone are no image models */
    assert_false(img_files_sniff(tree_path(dir, "z-image/qwen3.gguf")));
    assert_false(img_files_sniff(tree_path(dir, "qwen-image/qwen2.5-vl.gguf")));
    assert_false(img_files_sniff(tree_path(dir, "flux-dev/t5-encoder.gguf")));
    assert_false(img_files_sniff(tree_path(dir, "flux-dev/clip_l.safetensors")));
    assert_false(img_files_sniff(tree_path(dir, "flux-dev/ae.safetensors")));
    assert_false(img_files_sniff(DATA "qwen-image/text_encoder"));
    assert_false(img_files_sniff(DATA "sd15/unet"));
    assert_false(img_files_sniff(tree_path(dir, "nothing")));
    assert_false(eng_path_is_image("/dev/null"));
    tree_text(dir, "empty.safetensors", "");
    assert_false(img_files_sniff(tree_path(dir, "empty.safetensors")));
    refuse(tree_path(dir, "empty.safetensors"), ERR_PARSE, "empty.safetensors", "is empty");
    refuse(tree_path(dir, "nothing"), ERR_NOTFOUND, "nothing", "cannot open");
    assert_int_equal(mkdir(tree_path(dir, "hollow"), 0777), 0);
    refuse(tree_path(dir, "hollow"), ERR_NOTFOUND, "no model_index.json", "denoiser");
}

/* ---- diffusers folders ---- */

#define INDEX "model_index.json"
static const char vae_cfg[] = "{\"_class_name\": \"AutoencoderKL\"}";

static void index_text(const char *root, const char *text)
{
    tree_text(root, INDEX, text);
}

static void test_folder(void **state)
{
    (void)state;
    char root[TREE_PATH];
    snprintf(root, sizeof root, "%s", tree_path(dir, "folder"));
    index_text(root, "{}");
    refuse(root, ERR_INVAL, INDEX, "'_class_name' is missing");
    index_text(root, "{\"_class_name\": 3}");
    refuse(root, ERR_INVAL, INDEX, "'_class_name' must be a text");
    index_text(root, "{\"_class_name\": \"X\"}");
    refuse(root, ERR_INVAL, INDEX, "no component with weights");
    index_text(root, "{\"_class_name\": \"X\", \"vae\": [null, null], \"unet\": null}");
    refuse(root, ERR_INVAL, INDEX, "no component with weights");
    index_text(root, "{\"_class_name\": \"X\", \"vae\": \"AutoencoderKL\"}");
    refuse(root, ERR_INVAL, INDEX, "'vae' has no element 1");
    index_text(root, "{\"_class_name\": \"X\", \"vae\": [\"diffusers\", 7]}");
    refuse(root, ERR_INVAL, INDEX, "'vae' element 1 must be a text");
    index_text(root, "{\"_class_name\": \"X\", \"vae\": [\"diffusers\", \"A\"], \"vae\": 1}");
    refuse(root, ERR_PARSE, INDEX, "duplicate");
    index_text(root, "{\"_class_name\": \"X\", \"vae\": [\"diffusers\", \"AutoencoderKL\"]}");
    refuse(root, ERR_NOTFOUND, "'vae' (AutoencoderKL)", "no folder of it");
    assert_int_equal(mkdir(tree_path(root, "vae"), 0777), 0);
    refuse(root, ERR_NOTFOUND, "vae/config.json", "cannot open");
    tree_text(root, "vae/config.json", "[]");
    refuse(root, ERR_PARSE, "vae/config.json", "no object");
    tree_text(root, "vae/config.json", vae_cfg);
    refuse(root, ERR_NOTFOUND, "folder/vae", "no .safetensors or .gguf");
    tree_text(root, "vae/diffusion_pytorch_model.safetensors", "1234567");
    refuse(root, ERR_PARSE, "diffusion_pytorch_model", "too few");
    tree_safetensors(root, "vae/diffusion_pytorch_model.safetensors",
                     &(struct tree_tensor){"a", "F32", 1, {3}, NULL}, 1);
    struct img_files *f = open_ok(root);
    assert_string_equal(f->pipeline, "X");
    assert_int_equal(f->n_comp, 1);
    assert_int_equal(source_n(f->comp[0].map.src), 1);
    assert_null(img_files_comp(f, "unet"));
    img_files_close(f);
    img_files_close(NULL);
    tree_remove(root);
}

/* Bytes of the headers changed at random: an answer or an error, never more. */
static void test_flips(void **state)
{
    (void)state;
    static const char *const name[] = {"flux-dev/flux1-dev.safetensors", "z-image/z-image.gguf"};
    uint64_t r = 1;
    for (int k = 0; k < 2; k++) {
        size_t n = 0, good = 0;
        char *p = unxz_read(tree_path(dir, name[k]), &n);
        assert_non_null(p);
        for (int i = 0; i < 300; i++) {
            struct img_files *f = NULL;
            r = r * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(r >> 33) % 6000;
            char old = p[at];
            p[at] = (char)(r >> 24);
            tree_put(dir, "flip/x", p, n);
            p[at] = old;
            good += img_files_sniff(tree_path(dir, "flip/x"));
            assert_true(img_files_open(&f, tree_path(dir, "flip/x"), NULL) < 0); /* no encoder */
        }
        assert_true(good > 0 && good < 300);
        free(p);
    }
}

/* Opens with every k-th allocation failing: an error each time, nothing lost (the sanitizer counts). */
static void test_nomem(void **state)
{
    (void)state;
    static const char *const path[] = {"sd15.safetensors", "z-image", "flux-dev"};
    char all[4][TREE_PATH];
    snprintf(all[3], TREE_PATH, DATA "sd15");
    for (int i = 0; i < 3; i++)
        snprintf(all[i], TREE_PATH, "%s", tree_path(dir, path[i]));
    for (int i = 0; i < 4; i++) {
        long k = 1;
        for (;; k++) {
            struct err e = {0};
            struct img_files *f = NULL;
            mem_fail_after(k, k % 2);
            int rc = img_files_open(&f, all[i], &e);
            mem_fail_after(0, false);
            img_files_close(f);
            if (rc == 0)
                break;
            assert_int_equal(rc, ERR_NOMEM);
            assert_int_equal(e.code, ERR_NOMEM);
            assert_true(e.text[0]);
        }
        assert_true(k > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),           cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_gguf_tokenizer), cmocka_unit_test(test_gguf_config),
        cmocka_unit_test(test_flips),          cmocka_unit_test(test_missing),
        cmocka_unit_test(test_unets),          cmocka_unit_test(test_two),
        cmocka_unit_test(test_mismatch),       cmocka_unit_test(test_families),
        cmocka_unit_test(test_sniff),          cmocka_unit_test(test_folder),
        cmocka_unit_test(test_nomem),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
