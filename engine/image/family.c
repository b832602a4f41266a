/* See family_impl.h. The denoiser says which family it is; each family then asks for its text encoders and its
 * autoencoder and names the one that it does not find:
 *
 *   Stable Diffusion 1   UNet · CLIP · AutoencoderKL                    2: OpenCLIP in CLIP's place
 *   Stable Diffusion XL  UNet · CLIP · OpenCLIP · AutoencoderKL         refiner: without CLIP
 *   Stable Diffusion 3   transformer · CLIP · OpenCLIP · [T5] · AutoencoderKL
 *   FLUX.1               transformer · CLIP · T5 · AutoencoderKL
 *   Qwen-Image           transformer · Qwen2.5-VL · its autoencoder
 *   Z-Image              transformer · Qwen3 · AutoencoderKL
 *
 * Numbers that no tensor tells (scaling of the latents, noise schedule) are those of the families' folders on the hub. */
#include "engine/image/family_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "engine/load/gguf.h"
#include "engine/load/map.h"

/* ---- choosing parts ---- */

#define TEXTS (PART_BIT(PART_CLIP) | PART_BIT(PART_OPENCLIP))
#define VAES  (PART_BIT(PART_VAE) | PART_BIT(PART_VAE_D))
#define WANS  (PART_BIT(PART_WAN) | PART_BIT(PART_WAN_D))
#define T5S   (PART_BIT(PART_T5) | PART_BIT(PART_T5_GGUF))
#define LMS   (PART_BIT(PART_LM) | PART_BIT(PART_LM_GGUF))

/* Of CLIP's two sizes in a pipeline: bigG by width, by OpenCLIP's names, by what people call its file. */
static bool is_big(const struct part *p)
{
    const char *file = strrchr(source_path(p->src), '/');
    file = file ? file + 1 : source_path(p->src);
    return p->kind == PART_OPENCLIP || part_width(p) >= 1280 || strcasestr(file, "clip_g") ||
           strcasestr(file, "bigg") || strcasestr(file, "text_encoder_2") ||
           strstr(p->prefix, "clip_g");
}

/* SMALL is CLIP's own (768 wide), BIG OpenCLIP's: H of Stable Diffusion 2, bigG of XL and 3. */
enum size { ANY, SMALL, BIG };

/* The part of one of these kinds, NULL when there is none. A file beside the one that was asked for replaces what that
 * holds; two that are equals are an error. */
static const struct part *pick(const struct single *s, unsigned kinds, enum size size, int *rc,
                               struct err *e)
{
    const struct part *best = NULL;
    for (int i = 0; !*rc && i < s->parts.n; i++) {
        const struct part *p = &s->parts.at[i];
        if (!(PART_BIT(p->kind) & kinds) || (size != ANY && is_big(p) != (size == BIG)))
            continue;
        if (!best || (p->extra && !best->extra)) { /* the user put it there to be taken */
            best = p;
        } else if (p->extra == best->extra) {
            *rc = err_set(e, ERR_INVAL,
                          "two of its kind, %s: '%.60s' in %.60s and '%.60s' in %.60s", p->what,
                          best->prefix, source_path(best->src), p->prefix, source_path(p->src));
            file_map_prefix(e, s->path);
        }
    }
    return best;
}

static const char *where(const struct single *s)
{
    return strcmp(s->beside, s->path) ? " in it and in the folder beside it that has its name"
                                      : " in its files";
}

/* ERR_NOTFOUND: which component, what it would be, what would have shown it. */
static int missing(const struct single *s, const char *comp, const char *what, const char *marker,
                   struct err *e)
{
    err_set(e, ERR_NOTFOUND, "no %s (%s): looked for a tensor '...%s'%s", comp, what, marker,
            where(s));
    return file_map_prefix(e, s->path);
}

/* ---- filling components ---- */

/* Where the user would put a component's configuration; whether it is there. */
static bool own_config(const struct single *s, const char *comp, const char *file,
                       char path[PATH_MAX])
{
    struct stat st;
    int n = snprintf(path, PATH_MAX, "%s/%s/%s", s->beside, comp, file);
    return n > 0 && n < PATH_MAX && stat(path, &st) == 0;
}

/* The user's, else what the text in b says. */
static int open_config(const struct single *s, struct comp *c, const char *file, struct buf *b,
                       struct err *e)
{
    char path[PATH_MAX];
    if (own_config(s, c->name, file, path))
        return config_open(&c->cfg, path, e);
    if (b->failed)
        return err_set(e, ERR_NOMEM, "no memory for the configuration of %s", c->name);
    return config_open_text(&c->cfg, buf_cstr(b), b->len, s->path, e);
}

/* Whether the family's configuration is wanted: what it can't be made for may have one of its own. */
static bool needs(const struct single *s, const char *comp)
{
    char path[PATH_MAX];
    return !own_config(s, comp, "config.json", path);
}

/* A component of the part with the configuration in b, which is used up. */
static int add(struct single *s, const char *name, const char *cls, const struct part *p,
               struct buf *b, struct err *e)
{
    struct comp *c = files__add(s->f, name, cls, e);
    if (!c)
        return ERR_LIMIT;
    /* the map points into its component, which stays where it is as long as the files are open */
    snprintf(c->prefix, sizeof c->prefix, "%s", p->prefix);
    c->arg = p->arg;
    c->map =
        (struct source_map){.find = p->find, .src = p->src, .prefix = c->prefix, .arg = &c->arg};
    int rc = open_config(s, c, "config.json", b, e);
    buf_clear(b);
    return rc;
}

/* Its class is what the configuration says: the user's may be another. */
static int add_sched(struct single *s, enum family_sched k, struct err *e)
{
    struct comp *c = files__add(s->f, "scheduler", "", e);
    struct buf b = {0};
    if (!c)
        return ERR_LIMIT;
    buf_str(&b, family_sched(k));
    int rc = open_config(s, c, "scheduler_config.json", &b, e);
    buf_free(&b);
    if (!rc)
        snprintf(c->cls, sizeof c->cls, "%.63s", config_str(c->cfg, "_class_name", ""));
    return rc;
}

/* dir[0..n)/name as the component's folder; its dir stays empty when there is none. */
static bool have_dir(struct comp *c, const char *dir, size_t n, const char *name)
{
    struct stat st;
    int len = snprintf(c->dir, sizeof c->dir, "%.*s/%s", (int)n, dir, name);
    if (len > 0 && (size_t)len < sizeof c->dir && stat(c->dir, &st) == 0 && S_ISDIR(st.st_mode))
        return true;
    c->dir[0] = 0;
    return false;
}

/* Whether the encoder has the vocabulary that all published CLIPs share. */
static bool is_clip(const struct part *p)
{
    int64_t d[SOURCE_DIMS];
    struct source_map m = part_map(p);
    return (PART_BIT(p->kind) & TEXTS) && names_has(&m, d, "embeddings.token_embedding.weight") &&
           d[0] == 49408;
}

/* `name`, or `other` (may be NULL), beside the model or in the folder of the file; else what a GGUF text encoder has in
 * itself, or CLIP's own. */
static int add_tokenizer(struct single *s, const char *name, const char *other,
                         const struct part *text, struct err *e)
{
    const char *const names[2] = {name, other}, *slash = strrchr(s->path, '/');
    struct comp *c = files__add(s->f, name, is_clip(text) ? "CLIPTokenizer" : "", e);
    bool own = false;
    if (!c)
        return ERR_LIMIT;
    for (int i = 0; i < 2 && names[i] && !*c->dir; i++) {
        if (!have_dir(c, s->beside, strlen(s->beside), names[i]))
            have_dir(c, slash ? s->path : ".", slash ? (size_t)(slash - s->path) : 1, names[i]);
        own = i == 0 && *c->dir;
    }
    /* OpenCLIP's are padded with entry 0, which is an exclamation mark, CLIP's with the end of text */
    const char *cfg = !own && *c->cls && part_width(text) >= 1024 ? "{\"pad_token\":\"!\"}" : "{}";
    int rc = config_open_text(&c->cfg, cfg, strlen(cfg), s->path, e);
    if (rc || *c->dir)
        return rc;
    if (source_gguf(text->src) && gguf_kv_find(source_gguf(text->src), "tokenizer.ggml.model")) {
        c->map.src = text->src;
        return 0;
    }
    if (*c->cls)
        return 0;
    err_set(e, ERR_NOTFOUND, "no %s for the %s: looked for a folder '%s'%s", name, text->what, name,
            strcmp(s->beside, s->path) ? " beside it and in the folder that has its name"
                                       : " in it");
    return file_map_prefix(e, s->path);
}

/* ---- Stable Diffusion ---- */

/* SD 2 does not say which of its two kinds it is. The one of v-prediction has learnt larger offsets here (as ComfyUI
 * found). */
static bool looks_v(const struct part *unet)
{
    float v[4096];
    struct source_map m = part_map(unet);
    const char *name = "output_blocks.11.1.transformer_blocks.0.norm1.bias";
    char full[256];
    snprintf(full, sizeof full, "%s%s", m.prefix, name);
    const struct source_tensor *t = source_find(unet->src, full);
    if (!t || t->n_dim != 1 || t->dim[0] < 2 || t->dim[0] > 4096 ||
        source_decode(t, 0, t->dim[0], v))
        return false;
    double sum = 0, sq = 0, n = (double)t->dim[0];
    for (int i = 0; i < t->dim[0]; i++)
        sum += (double)v[i];
    for (int i = 0; i < t->dim[0]; i++)
        sq += ((double)v[i] - sum / n) * ((double)v[i] - sum / n);
    return sqrt(sq / (n - 1)) > 0.09;
}

/* Said by the file (modelspec, or the empty tensor "v_pred" that trainers of XL put into theirs), or guessed. */
static bool v_prediction(const struct part *unet, bool sd2)
{
    const char *said = source_meta(unet->src, "modelspec.prediction_type");
    if (said)
        return strcmp(said, "v") == 0 || strcmp(said, "v_prediction") == 0;
    return source_find(unet->src, "v_pred") || (sd2 && looks_v(unet));
}

/* An AutoencoderKL: latents = (encoded - shift) * scaling. */
static int add_vae(struct single *s, double scaling, double shift, struct err *e)
{
    int rc = 0;
    struct buf b = {0};
    const struct part *p = pick(s, VAES, ANY, &rc, e);
    if (!rc && !p)
        rc = missing(s, "vae", "AutoencoderKL", part_marker(PART_VAE), e);
    if (!rc && needs(s, "vae"))
        rc = part_config_vae(p, scaling, shift, &b, e);
    rc = rc ? rc : add(s, "vae", "AutoencoderKL", p, &b, e);
    buf_free(&b);
    return rc;
}

/* What a transformer reads of a text encoder is told by its first layer for it. */
static int check_width(const struct single *s, const struct part *text, int64_t want, struct err *e)
{
    int64_t have = part_width(text);
    if (have == want)
        return 0;
    err_set(e, ERR_INVAL, "the transformer reads states of %lld values, the %s has %lld",
            (long long)want, text->what, (long long)have);
    return file_map_prefix(e, s->path);
}

/* Where one of a pipeline's CLIPs goes. */
struct clip_place {
    const char *name, *tokenizer, *other; /* other: a tokenizer folder that would do; may be NULL */
    bool projection;
    enum part_kind marker;
};
static const struct clip_place first_clip = {"text_encoder", "tokenizer", NULL, false, PART_CLIP};
static const struct clip_place second_clip = {"text_encoder_2", "tokenizer_2", "tokenizer", true,
                                              PART_OPENCLIP};

static int add_clip(struct single *s, const struct part *p, const struct clip_place *at,
                    struct err *e)
{
    struct buf b = {0};
    int rc = 0;
    if (!p)
        return missing(s, at->name, "CLIP text encoder", part_marker(at->marker), e);
    if (needs(s, at->name))
        rc = part_config_clip(p, at->projection, &b, e);
    rc = rc ? rc
            : add(s, at->name, at->projection ? "CLIPTextModelWithProjection" : "CLIPTextModel", p,
                  &b, e);
    buf_free(&b);
    return rc ? rc : add_tokenizer(s, at->tokenizer, at->other, p, e);
}

static int add_t5(struct single *s, const struct part *p, const char *name, const char *tokenizer,
                  int64_t width, struct err *e)
{
    struct buf b = {0};
    int rc =
        p ? check_width(s, p, width, e) : missing(s, name, "T5 encoder", part_marker(PART_T5), e);
    if (!rc && needs(s, name))
        rc = part_config_t5(p, &b, e);
    rc = rc ? rc : add(s, name, "T5EncoderModel", p, &b, e);
    buf_free(&b);
    return rc ? rc : add_tokenizer(s, tokenizer, NULL, p, e);
}

/* The UNet tells XL by its added embedding, inpainting by nine channels (latents, mask, masked latents), the refiner by
 * reading bigG alone, LCM by its guidance input. 2 is told from 1 by its text encoder. */
static int open_sd(struct single *s, const struct part *unet, struct err *e)
{
    struct buf b = {0};
    int rc = 0;
    struct source_map m = part_map(unet);
    int64_t in[SOURCE_DIMS] = {0};
    const struct part *small = pick(s, TEXTS, SMALL, &rc, e);
    const struct part *big = rc ? NULL : pick(s, TEXTS, BIG, &rc, e);
    bool xl = names_has(&m, NULL, "add_embedding.linear_1.weight"), sd2 = !xl && big && !small;
    bool paint = names_has(&m, in, "conv_in.weight") && in[1] == 9, v = v_prediction(unet, sd2);
    /* the refiner reads bigG alone */
    bool refiner = xl && (big ? part_context(unet) == part_width(big) : part_context(unet) < 2048);
    snprintf(s->f->pipeline, sizeof s->f->pipeline, "StableDiffusion%s%sPipeline", xl ? "XL" : "",
             paint     ? "Inpaint"
             : refiner ? "Img2Img"
                       : "");
    if (!rc && needs(s, "unet"))
        rc = part_config_unet(unet, v, &b, e);
    rc = rc ? rc : add(s, "unet", "UNet2DConditionModel", unet, &b, e);
    buf_free(&b);
    if (!rc && !refiner)
        rc = add_clip(s, sd2 ? big : small, &first_clip, e);
    if (!rc && xl)
        rc = add_clip(s, big, &second_clip, e);
    rc = rc ? rc : add_vae(s, xl ? 0.13025 : 0.18215, 0, e);
    if (rc)
        return rc;
    if (names_has(&m, NULL, "time_embedding.cond_proj.weight"))
        return add_sched(s, FAMILY_SCHED_LCM, e);
    return add_sched(s, (xl ? FAMILY_SCHED_XL : FAMILY_SCHED_SD) + (v ? 1 : 0), e);
}

/* ---- transformers ---- */

/* Without a guidance input it is schnell, which was trained to need neither guidance nor many steps. */
static int open_flux(struct single *s, const struct part *den, struct err *e)
{
    struct buf b = {0};
    int rc = 0;
    int64_t d[SOURCE_DIMS] = {0};
    struct source_map m = part_map(den);
    bool dev = names_has(&m, NULL, "time_text_embed.guidance_embedder.linear_1.weight");
    const struct part *clip = pick(s, TEXTS, SMALL, &rc, e);
    const struct part *t5 = rc ? NULL : pick(s, T5S, ANY, &rc, e);
    snprintf(s->f->pipeline, sizeof s->f->pipeline, "FluxPipeline");
    if (!rc && needs(s, "transformer"))
        rc = part_config_flux(den, &b, e);
    rc = rc ? rc : add(s, "transformer", "FluxTransformer2DModel", den, &b, e);
    rc = rc ? rc : add_clip(s, clip, &first_clip, e);
    names_has(&m, d, "context_embedder.weight");
    rc = rc ? rc : add_t5(s, t5, "text_encoder_2", "tokenizer_2", d[1], e);
    rc = rc ? rc : add_vae(s, 0.3611, 0.1159, e);
    buf_free(&b);
    return rc ? rc : add_sched(s, dev ? FAMILY_SCHED_FLUX : FAMILY_SCHED_SCHNELL, e);
}

/* T5 may be left out: the pipeline puts zeros in its place. */
static int open_sd3(struct single *s, const struct part *den, struct err *e)
{
    static const struct clip_place first = {"text_encoder", "tokenizer", NULL, true, PART_CLIP};
    struct buf b = {0};
    int rc = 0;
    int64_t d[SOURCE_DIMS] = {0};
    struct source_map m = part_map(den);
    const struct part *small = pick(s, TEXTS, SMALL, &rc, e);
    const struct part *big = rc ? NULL : pick(s, TEXTS, BIG, &rc, e);
    const struct part *t5 = rc ? NULL : pick(s, T5S, ANY, &rc, e);
    snprintf(s->f->pipeline, sizeof s->f->pipeline, "StableDiffusion3Pipeline");
    if (!rc && needs(s, "transformer"))
        rc = part_config_sd3(den, &b, e);
    rc = rc ? rc : add(s, "transformer", "SD3Transformer2DModel", den, &b, e);
    buf_free(&b);
    rc = rc ? rc : add_clip(s, small, &first, e);
    rc = rc ? rc : add_clip(s, big, &second_clip, e);
    names_has(&m, d, "context_embedder.weight");
    if (!rc && t5)
        rc = add_t5(s, t5, "text_encoder_3", "tokenizer_3", d[1], e);
    rc = rc ? rc : add_vae(s, 1.5305, 0.0609, e);
    return rc ? rc : add_sched(s, FAMILY_SCHED_SD3, e);
}

/* The language model that a transformer reads; norm: Qwen3's layers, which norm q and k. */
static int add_lm(struct single *s, const char *cls, bool norm, int64_t width, struct err *e)
{
    struct buf b = {0};
    int rc = 0;
    const struct part *p = pick(s, LMS, ANY, &rc, e);
    if (!rc && !p)
        rc = missing(s, "text_encoder", cls, part_marker(PART_LM), e);
    if (rc)
        return rc;
    struct source_map m = part_map(p);
    if (names_has(&m, NULL, "layers.0.self_attn.q_norm.weight") != norm) {
        err_set(e, ERR_INVAL, "the text encoder in %.80s is %s; the transformer needs %s",
                source_path(p->src), norm ? "not Qwen3's" : "Qwen3's", cls);
        return file_map_prefix(e, s->path);
    }
    rc = check_width(s, p, width, e);
    if (!rc && needs(s, "text_encoder"))
        rc = part_config_lm(p, &b, e);
    rc = rc ? rc : add(s, "text_encoder", cls, p, &b, e);
    rc = rc ? rc : add_tokenizer(s, "tokenizer", NULL, p, e);
    buf_free(&b);
    return rc;
}

static int open_qwen(struct single *s, const struct part *den, struct err *e)
{
    struct buf b = {0};
    int64_t d[SOURCE_DIMS] = {0};
    struct source_map m = part_map(den);
    snprintf(s->f->pipeline, sizeof s->f->pipeline, "QwenImagePipeline");
    names_has(&m, d, "txt_in.weight");
    int rc = needs(s, "transformer") ? part_config_qwen(den, &b, e) : 0;
    rc = rc ? rc : add(s, "transformer", "QwenImageTransformer2DModel", den, &b, e);
    rc = rc ? rc : add_lm(s, "Qwen2_5_VLForConditionalGeneration", false, d[1], e);
    const struct part *vae = rc ? NULL : pick(s, WANS, ANY, &rc, e);
    if (!rc && !vae)
        rc = missing(s, "vae", "AutoencoderKLQwenImage", part_marker(PART_WAN), e);
    if (!rc && needs(s, "vae"))
        rc = part_config_vae(vae, 0, 0, &b, e);
    rc = rc ? rc : add(s, "vae", "AutoencoderKLQwenImage", vae, &b, e);
    buf_free(&b);
    return rc ? rc : add_sched(s, FAMILY_SCHED_QWEN, e);
}

static int open_zimage(struct single *s, const struct part *den, struct err *e)
{
    struct buf b = {0};
    int64_t d[SOURCE_DIMS] = {0};
    struct source_map m = part_map(den);
    snprintf(s->f->pipeline, sizeof s->f->pipeline, "ZImagePipeline");
    names_has(&m, d, "cap_embedder.1.weight");
    int rc = needs(s, "transformer") ? part_config_zimage(den, &b, e) : 0;
    rc = rc ? rc : add(s, "transformer", "ZImageTransformer2DModel", den, &b, e);
    buf_free(&b);
    rc = rc ? rc : add_lm(s, "Qwen3Model", true, d[1], e);
    rc = rc ? rc : add_vae(s, 0.3611, 0.1159, e);
    return rc ? rc : add_sched(s, FAMILY_SCHED_ZIMAGE, e);
}

int family_open(struct single *s, struct err *e)
{
    static int (*const open[PART_N_KIND])(struct single *, const struct part *, struct err *) = {
        [PART_UNET] = open_sd,     [PART_UNET_D] = open_sd,     [PART_FLUX] = open_flux,
        [PART_FLUX_D] = open_flux, [PART_QWEN] = open_qwen,     [PART_SD3] = open_sd3,
        [PART_SD3_D] = open_sd3,   [PART_ZIMAGE] = open_zimage, [PART_ZIMAGE_D] = open_zimage,
    };
    int rc = 0;
    const struct part *den = pick(s, PART_DENOISER, ANY, &rc, e);
    if (rc)
        return rc;
    if (!den) {
        err_set(e, ERR_NOTFOUND,
                "no model_index.json, and no file with a denoiser of a known "
                "family (Stable Diffusion 1, 2, 3, XL, FLUX.1, Qwen-Image, Z-Image)");
        return file_map_prefix(e, s->path);
    }
    if (open[den->kind])
        return open[den->kind](s, den, e);
    err_set(e, ERR_UNSUPPORTED, "it holds %s, a family that is not served", den->what);
    return file_map_prefix(e, s->path);
}
