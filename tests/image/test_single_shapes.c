/* engine/image/files: checkpoints of the published sizes in single files, from their headers alone (the values are a hole
 * in the file): which pipeline, which components, which configuration, against what the models' folders say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/image/encoders.h"
#include "engine/image/files.h"
#include "engine/nn/nn_impl.h"
#include "tests/tree.h"
#include "tests/unxz.h"

#define DATA "tests/data/image/"

static char dir[TREE_PATH];

static int setup(void **state)
{
    (void)state;
    tree_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tree_remove(dir);
    return 0;
}

static struct img_files *open_ok(const char *path)
{
    struct err e = {0};
    struct img_files *f = NULL;
    if (img_files_open(&f, path, &e))
        fail_msg("%s: %s", path, e.text);
    return f;
}

struct fact {
    const char *comp, *key;
    const char *want; /* elements behind each other with commas */
};
static const struct shape {
    const char *name, *pipeline, *tokenizer, *comps; /* tokenizer: CLIP's is the program's */
    struct fact fact[24];
} shapes[] = {
    {"sd15",
     "StableDiffusionPipeline",
     NULL,
     "unet text_encoder tokenizer vae scheduler",
     {{"unet", "block_out_channels", "320,640,1280,1280"},
      {"unet", "down_block_types",
       "CrossAttnDownBlock2D,CrossAttnDownBlock2D,CrossAttnDownBlock2D,DownBlock2D"},
      {"unet", "up_block_types",
       "UpBlock2D,CrossAttnUpBlock2D,CrossAttnUpBlock2D,CrossAttnUpBlock2D"},
      {"unet", "layers_per_block", "2"},
      {"unet", "attention_head_dim", "8"},
      {"unet", "cross_attention_dim", "768"},
      {"unet", "in_channels", "4"},
      {"unet", "use_linear_projection", "false"},
      {"unet", "mid_block_type", "UNetMidBlock2DCrossAttn"},
      {"vae", "block_out_channels", "128,256,512,512"},
      {"vae", "latent_channels", "4"},
      {"vae", "layers_per_block", "2"},
      {"vae", "scaling_factor", "0.18215"},
      {"vae", "use_quant_conv", "true"},
      {"text_encoder", "hidden_size", "768"},
      {"text_encoder", "num_hidden_layers", "12"},
      {"text_encoder", "num_attention_heads", "12"},
      {"text_encoder", "intermediate_size", "3072"},
      {"text_encoder", "eos_token_id", "49407"},
      {"text_encoder", "max_position_embeddings", "77"},
      {"text_encoder", "hidden_act", "quick_gelu"},
      {"scheduler", "prediction_type", "epsilon"}}},
    {"sd15-inpaint",
     "StableDiffusionInpaintPipeline",
     NULL,
     "unet text_encoder tokenizer vae scheduler",
     {{"unet", "in_channels", "9"}}},
    {"sd21",
     "StableDiffusionPipeline",
     NULL,
     "unet text_encoder tokenizer vae scheduler",
     {{"unet", "attention_head_dim", "5,10,20,20"},
      {"unet", "use_linear_projection", "true"},
      {"unet", "cross_attention_dim", "1024"},
      {"unet", "sample_size", "96"},
      {"text_encoder", "hidden_size", "1024"},
      {"text_encoder", "num_hidden_layers", "23"},
      {"text_encoder", "num_attention_heads", "16"},
      {"text_encoder", "hidden_act", "gelu"},
      {"scheduler", "prediction_type", "v_prediction"}}},
    {"sdxl",
     "StableDiffusionXLPipeline",
     NULL,
     "unet text_encoder tokenizer text_encoder_2 tokenizer_2 vae scheduler",
     {{"unet", "block_out_channels", "320,640,1280"},
      {"unet", "down_block_types", "DownBlock2D,CrossAttnDownBlock2D,CrossAttnDownBlock2D"},
      {"unet", "up_block_types", "CrossAttnUpBlock2D,CrossAttnUpBlock2D,UpBlock2D"},
      {"unet", "transformer_layers_per_block", "1,2,10"},
      {"unet", "attention_head_dim", "5,10,20"},
      {"unet", "cross_attention_dim", "2048"},
      {"unet", "addition_embed_type", "text_time"},
      {"unet", "projection_class_embeddings_input_dim", "2816"},
      {"unet", "sample_size", "128"},
      {"vae", "scaling_factor", "0.13025"},
      {"text_encoder", "hidden_size", "768"},
      {"text_encoder_2", "hidden_size", "1280"},
      {"text_encoder_2", "num_hidden_layers", "32"},
      {"text_encoder_2", "num_attention_heads", "20"},
      {"text_encoder_2", "projection_dim", "1280"},
      {"text_encoder_2", "hidden_act", "gelu"},
      {"scheduler", "_class_name", "EulerDiscreteScheduler"}}},
    {"sdxl-refiner",
     "StableDiffusionXLImg2ImgPipeline",
     NULL,
     "unet text_encoder_2 tokenizer_2 vae scheduler",
     {{"unet", "block_out_channels", "384,768,1536,1536"},
      {"unet", "transformer_layers_per_block", "1,4,4,4"},
      {"unet", "attention_head_dim", "6,12,24,24"},
      {"unet", "cross_attention_dim", "1280"},
      {"unet", "projection_class_embeddings_input_dim", "2560"}}},
    {"flux-dev",
     "FluxPipeline",
     "flux-dev/tokenizer_2",
     "transformer text_encoder tokenizer text_encoder_2 tokenizer_2 vae scheduler",
     {{"transformer", "num_layers", "19"},
      {"transformer", "num_single_layers", "38"},
      {"transformer", "attention_head_dim", "128"},
      {"transformer", "num_attention_heads", "24"},
      {"transformer", "in_channels", "64"},
      {"transformer", "joint_attention_dim", "4096"},
      {"transformer", "pooled_projection_dim", "768"},
      {"transformer", "guidance_embeds", "true"},
      {"transformer", "axes_dims_rope", "16,56,56"},
      {"text_encoder_2", "d_model", "4096"},
      {"text_encoder_2", "d_kv", "64"},
      {"text_encoder_2", "d_ff", "10240"},
      {"text_encoder_2", "num_heads", "64"},
      {"text_encoder_2", "num_layers", "24"},
      {"text_encoder_2", "relative_attention_num_buckets", "32"},
      {"text_encoder_2", "feed_forward_proj", "gated-gelu"},
      {"text_encoder_2", "vocab_size", "32128"},
      {"vae", "latent_channels", "16"},
      {"vae", "scaling_factor", "0.3611"},
      {"vae", "shift_factor", "0.1159"},
      {"vae", "use_quant_conv", "false"},
      {"scheduler", "use_dynamic_shifting", "true"},
      {"scheduler", "max_shift", "1.15"}}},
    {"flux-schnell",
     "FluxPipeline",
     "flux-dev/tokenizer_2",
     "transformer text_encoder tokenizer text_encoder_2 tokenizer_2 vae scheduler",
     {{"transformer", "guidance_embeds", "false"},
      {"scheduler", "use_dynamic_shifting", "false"},
      {"scheduler", "shift", "1"}}},
    {"sd3-medium", /* its T5 is optional, and not in this one */
     "StableDiffusion3Pipeline",
     NULL,
     "transformer text_encoder tokenizer text_encoder_2 tokenizer_2 vae scheduler",
     {{"transformer", "num_layers", "24"},
      {"transformer", "num_attention_heads", "24"},
      {"transformer", "attention_head_dim", "64"},
      {"transformer", "pos_embed_max_size", "192"},
      {"transformer", "patch_size", "2"},
      {"transformer", "in_channels", "16"},
      {"transformer", "out_channels", "16"},
      {"transformer", "joint_attention_dim", "4096"},
      {"transformer", "caption_projection_dim", "1536"},
      {"transformer", "pooled_projection_dim", "2048"},
      {"transformer", "qk_norm", "absent"},
      {"text_encoder", "projection_dim", "768"},
      {"text_encoder", "hidden_act", "quick_gelu"},
      {"text_encoder_2", "hidden_size", "1280"},
      {"text_encoder_2", "hidden_act", "gelu"},
      {"text_encoder_2", "num_hidden_layers", "32"},
      {"vae", "scaling_factor", "1.5305"},
      {"vae", "shift_factor", "0.0609"},
      {"scheduler", "shift", "3"}}},
    {"sd35-large",
     "StableDiffusion3Pipeline",
     NULL,
     "transformer text_encoder tokenizer text_encoder_2 tokenizer_2 vae scheduler",
     {{"transformer", "num_layers", "38"},
      {"transformer", "num_attention_heads", "38"},
      {"transformer", "qk_norm", "rms_norm"}}},
    {"z-image",
     "ZImagePipeline",
     "z-image/tokenizer",
     "transformer text_encoder tokenizer vae scheduler",
     {{"transformer", "dim", "3840"},
      {"transformer", "n_layers", "30"},
      {"transformer", "n_refiner_layers", "2"},
      {"transformer", "n_heads", "30"},
      {"transformer", "in_channels", "16"},
      {"transformer", "cap_feat_dim", "2560"},
      {"transformer", "axes_dims", "32,48,48"},
      {"text_encoder", "hidden_size", "2560"},
      {"text_encoder", "num_hidden_layers", "36"},
      {"text_encoder", "num_attention_heads", "32"},
      {"text_encoder", "num_key_value_heads", "8"},
      {"text_encoder", "head_dim", "128"},
      {"scheduler", "shift", "3"}}},
    {"qwen-image",
     "QwenImagePipeline",
     "qwen-image/tokenizer",
     "transformer text_encoder tokenizer vae scheduler",
     {{"transformer", "num_layers", "60"},
      {"transformer", "num_attention_heads", "24"},
      {"transformer", "attention_head_dim", "128"},
      {"transformer", "joint_attention_dim", "3584"},
      {"transformer", "in_channels", "64"},
      {"transformer", "out_channels", "16"},
      {"transformer", "axes_dims_rope", "16,56,56"},
      {"text_encoder", "hidden_size", "3584"},
      {"text_encoder", "num_hidden_layers", "28"},
      {"text_encoder", "num_attention_heads", "28"},
      {"text_encoder", "num_key_value_heads", "4"},
      {"text_encoder", "intermediate_size", "18944"},
      {"vae", "base_dim", "96"},
      {"vae", "z_dim", "16"},
      {"vae", "dim_mult", "1,2,4,4"},
      {"scheduler", "shift_terminal", "0.02"}}},
};

/* The value as text: `want` says of which type. */
static void say(struct config *c, const char *key, const char *want, char *out, size_t size)
{
    bool number = *want >= '0' && *want <= '9', list = strchr(want, ',') != NULL;
    int n = 0;
    out[0] = 0;
    if (strcmp(want, "true") == 0 || strcmp(want, "false") == 0)
        snprintf(out, size, "%s", config_bool(c, key, *want == 'f') ? "true" : "false");
    else if (!number && !list)
        snprintf(out, size, "%s", config_str(c, key, "absent"));
    else
        for (int i = 0; i < config_len(c, key); i++)
            n += number ? snprintf(out + n, size - (size_t)n, "%s%g", i ? "," : "",
                                   config_num_at(c, key, i))
                        : snprintf(out + n, size - (size_t)n, "%s%s", i ? "," : "",
                                   config_str_at(c, key, i));
}

/* Bytes that the header's tensors take: where the last one ends. */
static uint64_t data_bytes(const char *json)
{
    uint64_t max = 0;
    for (const char *p = json; (p = strstr(p, "data_offsets\":[")) != NULL; p++) {
        const char *comma = strchr(p, ',');
        uint64_t end = strtoull(comma + 1, NULL, 10);
        max = end > max ? end : max;
    }
    return max;
}

/* CLIP's vocabulary is the program's own; OpenCLIP is padded with an exclamation mark. */
static void check_clip(struct img_files *f, bool sd2)
{
    static const int32_t want[] = {49406, 320, 1125, 539, 320, 2368, 49407};
    for (int k = 0; k < 2; k++) {
        const struct comp *c = img_files_comp(f, k ? "tokenizer_2" : "tokenizer");
        struct tokenizer *t = NULL;
        struct err e = {0};
        int32_t ids[77];
        int real = 0;
        if (!c)
            continue;
        assert_int_equal(enc_tokenizer_open(&t, c, &e), 0);
        assert_int_equal(tok_n_vocab(t), 49408);
        assert_int_equal(enc_pad_id(t, c), k || sd2 ? 0 : -1);
        assert_int_equal(enc_clip_ids(t, "A photo of a  cat", 77, enc_pad_id(t, c), ids, &real), 0);
        assert_int_equal(real, 7);
        assert_memory_equal(ids, want, sizeof want);
        assert_int_equal(ids[76], k || sd2 ? 0 : 49407);
        tok_close(t);
    }
}

/* Every tensor of diffusers' and transformers' models is found under its name, in its shape. */
static void check_names(const struct shape *s, struct img_files *f)
{
    char path[TREE_PATH], comp[64], name[256], dims[64];
    size_t n, count = 0;
    int used;
    snprintf(path, sizeof path, DATA "single/shapes/%s.want.xz", s->name);
    char *text = unxz_read(path, &n);
    assert_non_null(text);
    for (const char *p = text; sscanf(p, "%63s %255s %63[0-9x]\n%n", comp, name, dims, &used) == 3;
         p += used, count++) {
        int64_t d[SOURCE_DIMS], want[SOURCE_DIMS] = {1, 1, 1, 1, 1};
        int n_dim;
        const struct comp *c = img_files_comp(f, comp);
        char *at = dims;
        for (int i = 0; *at && i < SOURCE_DIMS; i++) {
            want[i] = strtoll(at, &at, 10);
            at += *at == 'x';
        }
        assert_non_null(c);
        /* OpenCLIP's projection keeps its own name, and lies the other way round */
        if (strcmp(name, "text_projection.weight") == 0 &&
            nn__find(c, "text_projection", d, &n_dim)) {
            assert_true(d[0] == want[1] && d[1] == want[0]);
            continue;
        }
        if (!nn__find(c, name, d, &n_dim))
            fail_msg("%s: %s %s is not found", s->name, comp, name);
        for (int i = 0; i < SOURCE_DIMS; i++)
            if ((i < n_dim ? d[i] : 1) != want[i])
                fail_msg("%s: %s %s has another shape than %s", s->name, comp, name, dims);
    }
    assert_true(count > 600 && text[n - 1] == '\n');
    free(text);
}

static void check_shape(const struct shape *s)
{
    char path[TREE_PATH], file[64], root[TREE_PATH], want[256] = "";
    struct err e = {0};
    size_t n;
    snprintf(path, sizeof path, DATA "single/shapes/%s.json.xz", s->name);
    snprintf(root, sizeof root, "%s", tree_path(dir, "big"));
    snprintf(file, sizeof file, "%s.safetensors", s->name);
    char *json = unxz_read(path, &n);
    assert_non_null(json);
    tree_header(root, file, json, n, data_bytes(json));
    free(json);
    if (s->tokenizer) {
        char from[TREE_PATH];
        snprintf(from, sizeof from, DATA "%s", s->tokenizer);
        tree_copy(from, tree_path(root, strrchr(s->tokenizer, '/') + 1));
    }
    struct img_files *f = open_ok(tree_path(root, file));
    assert_string_equal(f->pipeline, s->pipeline);
    for (int i = 0; i < f->n_comp; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s%s", i ? " " : "",
                 f->comp[i].name);
    assert_string_equal(want, s->comps);
    for (const struct fact *t = s->fact; t < s->fact + 24 && t->comp; t++) {
        char got[256];
        struct config *c = img_files_comp(f, t->comp)->cfg;
        say(c, t->key, t->want, got, sizeof got);
        if (strcmp(got, t->want) != 0)
            print_error("%s %s %s\n", s->name, t->comp, t->key);
        assert_string_equal(got, t->want);
        assert_int_equal(config_error(c, &e), 0);
    }
    if (!s->tokenizer)
        check_clip(f, strcmp(s->name, "sd21") == 0);
    check_names(s, f);
    img_files_close(f);
    tree_remove(root);
}

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(&shapes[i]);
}

/* A Stable Diffusion 2 that does not say what it predicts is judged by the spread of one bias. */
static void test_guess(void **state)
{
    (void)state;
    static const char said[] = "modelspec.prediction_type";
    static const char bias[] =
        "output_blocks.11.1.transformer_blocks.0.norm1.bias\":{\"dtype\":\"F16\",\"shape\":[320],"
        "\"data_offsets\":[";
    size_t n;
    char *json = unxz_read(DATA "single/shapes/sd21.json.xz", &n);
    assert_non_null(json);
    char *key = strstr(json, said), *at = strstr(json, bias);
    assert_true(key && at);
    key[0] = 'x';
    tree_header(dir, "sd2.safetensors", json, n, data_bytes(json));
    for (int v = 0; v < 2; v++) {
        struct img_files *f = open_ok(tree_path(dir, "sd2.safetensors"));
        assert_string_equal(config_str(img_files_comp(f, "scheduler")->cfg, "prediction_type", ""),
                            v ? "v_prediction" : "epsilon");
        assert_int_equal(config_int(img_files_comp(f, "unet")->cfg, "sample_size", 0, 0, 1000),
                         v ? 96 : 64);
        img_files_close(f);
        int fd = open(tree_path(dir, "sd2.safetensors"), O_WRONLY | O_CLOEXEC);
        off_t to = (off_t)(8 + n + strtoull(at + sizeof bias - 1, NULL, 10));
        for (int i = 0; i < 320; i++) {
            uint16_t x = f32_to_f16(i % 2 ? 0.1f : -0.1f);
            assert_int_equal(pwrite(fd, &x, 2, to + 2 * i), 2);
        }
        close(fd);
    }
    free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_guess)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
