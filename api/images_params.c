/* Fields of the image endpoints: OpenAI's, and the extras under every name that clients of other servers send. Two names
 * of one thing with different values are an error, as is a value out of range: nothing is clamped. */
#include <ctype.h>
#include <math.h>

#include "api/images_impl.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

const char *const img_fields[] = {"model",
                                  "prompt",
                                  "n",
                                  "size",
                                  "width",
                                  "height",
                                  "quality",
                                  "response_format",
                                  "output_format",
                                  "output_compression",
                                  "background",
                                  "moderation",
                                  "style",
                                  "user",
                                  "safety_identifier",
                                  "stream",
                                  "partial_images",
                                  "progress",
                                  "steps",
                                  "num_inference_steps",
                                  "step",
                                  "guidance_scale",
                                  "cfg_scale",
                                  "true_cfg_scale",
                                  "negative_prompt",
                                  "seed",
                                  "rng_seed",
                                  "sampler",
                                  "sampler_name",
                                  "sampler_index",
                                  "scheduler",
                                  "schedule",
                                  "flow_shift",
                                  "shift",
                                  "rng",
                                  "generator_device",
                                  "refiner_switch",
                                  "refiner_switch_at",
                                  "priority",
                                  NULL};

static bool in_list(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list;
}

char img_field_kind(const char *name)
{
    static const char *const integers[] = {
        "n",        "width",          "height",   "output_compression",
        "steps",    "step",           "seed",     "num_inference_steps",
        "rng_seed", "partial_images", "priority", NULL};
    static const char *const numbers[] = {
        "guidance_scale", "cfg_scale",         "true_cfg_scale", "flow_shift",         "shift",
        "refiner_switch", "refiner_switch_at", "strength",       "denoising_strength", NULL};
    static const char *const booleans[] = {"stream", "progress", NULL};
    return in_list(integers, name)   ? 'i'
           : in_list(numbers, name)  ? 'n'
           : in_list(booleans, name) ? 'b'
                                     : 's';
}

/* ---- one thing under several names ---- */

/* The first name of the list that the body has a value for (*at), or NULL. Names with different values end the call
 * (ERR_INVAL). */
static int find_alias(struct api_call *c, json_t *o, const char *const *names, const char **at)
{
    json_t *first = NULL;
    *at = NULL;
    for (; *names; names++) {
        json_t *v = json_object_get(o, *names);
        if (!v || json_is_null(v))
            continue;
        bool same = !first || json_equal(first, v) ||
                    (json_is_number(first) && json_is_number(v) &&
                     json_number_value(first) == json_number_value(v));
        if (!same)
            return api__bad(c, *names, "invalid_value",
                            "Invalid '%s': '%s' means the same and has another value.", *names,
                            *at);
        if (!first)
            *at = *names;
        first = first ? first : v;
    }
    return 0;
}

static int get_integer(struct api_call *c, json_t *o, const char *const *names, int64_t lo,
                       int64_t hi, int64_t *out)
{
    const char *at;
    return find_alias(c, o, names, &at) || (at && api__get_int(c, o, at, (int64_t[2]){lo, hi}, out))
               ? ERR_INVAL
               : 0;
}

static int get_number(struct api_call *c, json_t *o, const char *const *names, double lo, double hi,
                      float *out)
{
    const char *at;
    double d = *out;
    if (find_alias(c, o, names, &at) || (at && api__get_num(c, o, at, (double[2]){lo, hi}, &d)))
        return ERR_INVAL;
    *out = (float)d;
    return 0;
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- words ---- */

struct word {
    const char *text;
    int value;
};

/* A field whose value is one of a list. *out stays as it was when it is absent. */
static int get_word(struct api_call *c, json_t *o, const char *key, const struct word *w, int *out)
{
    struct view v = {0};
    char list[160] = "";
    if (api__get_str(c, o, key, &v))
        return ERR_INVAL;
    if (!v.p)
        return 0;
    for (const struct word *x = w; x->text; x++) {
        if (view_is(v, x->text)) {
            *out = x->value;
            return 0;
        }
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s'%s'", n ? ", " : "", x->text);
    }
    return api__bad(c, key, "invalid_value",
                    "Invalid value for '%s': '%.60s'. Supported values are: %s.", key, v.p, list);
}

static int get_words(struct api_call *c, json_t *o, const char *const *names, const struct word *w,
                     int *out)
{
    const char *at;
    return find_alias(c, o, names, &at) || (at && get_word(c, o, at, w, out)) ? ERR_INVAL : 0;
}

static const struct word schedules[] = {
    {"normal", IMG_SCHEDULE_NORMAL},     {"karras", IMG_SCHEDULE_KARRAS},
    {"default", IMG_SCHEDULE_DEFAULT},   {"automatic", IMG_SCHEDULE_DEFAULT},
    {"auto", IMG_SCHEDULE_DEFAULT},      {"discrete", IMG_SCHEDULE_NORMAL},
    {"Normal", IMG_SCHEDULE_NORMAL},     {"Karras", IMG_SCHEDULE_KARRAS},
    {"Automatic", IMG_SCHEDULE_DEFAULT}, {NULL, 0}};

/* Names as they are after `squeeze`: A1111's, diffusers' classes, stable-diffusion.cpp's, ComfyUI's. */
static const struct word samplers[] = {{"euler", IMG_SAMPLER_EULER},
                                       {"eulera", IMG_SAMPLER_EULER_A},
                                       {"ddim", IMG_SAMPLER_DDIM},
                                       {"dpm++2m", IMG_SAMPLER_DPMPP_2M},
                                       {"lcm", IMG_SAMPLER_LCM},
                                       {"floweuler", IMG_SAMPLER_FLOW_EULER},
                                       {"eulerancestral", IMG_SAMPLER_EULER_A},
                                       {"keuler", IMG_SAMPLER_EULER},
                                       {"keulera", IMG_SAMPLER_EULER_A},
                                       {"dpmpp2m", IMG_SAMPLER_DPMPP_2M},
                                       {"kdpmpp2m", IMG_SAMPLER_DPMPP_2M},
                                       {"kdpm++2m", IMG_SAMPLER_DPMPP_2M},
                                       {"eulerdiscrete", IMG_SAMPLER_EULER},
                                       {"eulerancestraldiscrete", IMG_SAMPLER_EULER_A},
                                       {"dpmsolvermultistep", IMG_SAMPLER_DPMPP_2M},
                                       {"flowmatcheuler", IMG_SAMPLER_FLOW_EULER},
                                       {"flowmatcheulerdiscrete", IMG_SAMPLER_FLOW_EULER},
                                       {"default", IMG_SAMPLER_DEFAULT},
                                       {"automatic", IMG_SAMPLER_DEFAULT},
                                       {"auto", IMG_SAMPLER_DEFAULT},
                                       {NULL, 0}};

const char *img_sampler_name(enum img_sampler s)
{
    static const char *const names[] = {"default", "euler", "euler_a",   "ddim",
                                        "dpm++2m", "lcm",   "flow_euler"};
    return names[s];
}

const char *img_schedule_name(enum img_schedule s)
{
    static const char *const names[] = {"default", "normal", "karras"};
    return names[s];
}

enum img_sampler img_sampler_used(const struct img_call *g)
{
    return g->p.sampler ? g->p.sampler : g->m->image.sampler_default;
}

enum img_schedule img_schedule_used(const struct img_call *g)
{
    enum img_schedule s = g->p.schedule ? g->p.schedule : g->m->image.schedule_default;
    return s ? s : IMG_SCHEDULE_NORMAL;
}

static bool is_flow(const struct img_call *g)
{
    return g->m->image.sampler_default == IMG_SAMPLER_FLOW_EULER;
}

/* Lower case without spaces, '_' and '-'. */
static void squeeze(struct view v, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < v.len && n + 1 < cap; i++)
        if (!strchr(" _-", v.p[i]))
            out[n++] = (char)tolower((unsigned char)v.p[i]);
    out[n] = 0;
}

static bool cut_tail(char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    if (n <= k || strcmp(s + n - k, tail) != 0)
        return false;
    s[n - k] = 0;
    return true;
}

/* The sampler that a text means, and Karras' schedule when its name ends in that, as A1111 once wrote it ("DPM++ 2M
 * Karras"). False: none. */
static bool parse_sampler(struct view v, enum img_sampler *sampler, bool *karras)
{
    char name[64];
    const struct word *w = samplers;
    squeeze(v, name, sizeof name);
    cut_tail(name, "scheduler");
    *karras = cut_tail(name, "karras");
    while (w->text && strcmp(w->text, name) != 0)
        w++;
    *sampler = (enum img_sampler)w->value;
    return w->text;
}

static int get_sampler(struct api_call *c, struct img_call *g, json_t *o)
{
    const char *at;
    struct view v = {0};
    bool karras = false;
    if (find_alias(c, o, NAMES("sampler", "sampler_name", "sampler_index"), &at) ||
        (at && api__get_str(c, o, at, &v)))
        return ERR_INVAL;
    if (v.p && !parse_sampler(v, &g->p.sampler, &karras))
        return api__bad(c, at, "invalid_value",
                        "Invalid value for '%s': '%.60s'. Supported values are: 'euler', "
                        "'euler_a', 'ddim', 'dpm++2m', 'lcm', 'flow_euler', 'default'.",
                        at, v.p);
    if (is_flow(g) && g->p.sampler == IMG_SAMPLER_EULER) /* what others call it */
        g->p.sampler = IMG_SAMPLER_FLOW_EULER;
    if (g->p.sampler && is_flow(g) != (g->p.sampler == IMG_SAMPLER_FLOW_EULER))
        return api__bad(c, at, "unsupported_value",
                        "Invalid '%s': the model '%.60s' is a %s model, which '%s' cannot sample.",
                        at, g->m->name, is_flow(g) ? "flow" : "diffusion",
                        img_sampler_name(g->p.sampler));
    if (karras && g->p.schedule == IMG_SCHEDULE_NORMAL)
        return api__bad(c, at, "invalid_value",
                        "Invalid '%s': it names the schedule 'karras', and another is asked for.",
                        at);
    if (karras)
        g->p.schedule = IMG_SCHEDULE_KARRAS;
    return 0;
}

static int get_schedule(struct api_call *c, struct img_call *g, json_t *o)
{
    const char *const names[] = {"scheduler", "schedule", NULL}, *at;
    int schedule = IMG_SCHEDULE_DEFAULT;
    if (get_words(c, o, names, schedules, &schedule) || find_alias(c, o, names, &at))
        return ERR_INVAL;
    g->p.schedule = (enum img_schedule)schedule;
    if (get_sampler(c, g, o))
        return ERR_INVAL;
    enum img_sampler s = img_sampler_used(g);
    if (g->p.schedule == IMG_SCHEDULE_KARRAS && s != IMG_SAMPLER_EULER &&
        s != IMG_SAMPLER_EULER_A && s != IMG_SAMPLER_DPMPP_2M)
        return api__bad(c, at ? at : "sampler", "unsupported_value",
                        "Invalid '%s': 'karras' needs the sampler 'euler', 'euler_a' or 'dpm++2m', "
                        "not '%s'.",
                        at ? at : "sampler", img_sampler_name(s));
    return 0;
}

/* ---- size ---- */

static int64_t pixels_max(const struct api_call *c, const struct img_call *g)
{
    int64_t own = g->m->image.pixels_max, set = c->api->o.max_image_pixels;
    return set > 0 && set < own ? set : own;
}

/* One side: digits, at most 6 of them. */
static const char *read_side(const char *p, int *out)
{
    int n = 0, v = 0;
    for (; isdigit((unsigned char)*p) && n < 6; n++)
        v = v * 10 + (*p++ - '0');
    *out = v;
    return n ? p : NULL;
}

/* Size and shape are refused here, by field: in the engine they would only fail, and perhaps after the queue. */
static int check_size(struct api_call *c, const struct img_call *g, const char *param)
{
    const struct eng_image_info *im = &g->m->image;
    int w = g->p.width, h = g->p.height, step = im->size_step;
    int64_t most = pixels_max(c, g);
    if (w % step || h % step)
        return api__bad(c, param, "invalid_value",
                        "Invalid '%s': %dx%d. Width and height must be multiples of %d.", param, w,
                        h, step);
    if (w < im->size_min || h < im->size_min || w > im->size_max || h > im->size_max)
        return api__bad(c, param, "invalid_value",
                        "Invalid '%s': %dx%d. Width and height must be from %d to %d.", param, w, h,
                        im->size_min, im->size_max);
    if ((int64_t)w * h > most)
        return api__bad(c, param, "invalid_value", "Invalid '%s': %dx%d has more than %lld pixels.",
                        param, w, h, (long long)most);
    return 0;
}

/* "size", or two numbers; both only when they agree. "auto" of an edit waits for the input's size. */
static int get_size(struct api_call *c, struct img_call *g, json_t *o)
{
    struct view v = {0};
    int64_t w = 0, h = 0, top = 999999;
    bool text = false;
    if (api__get_str(c, o, "size", &v) || get_integer(c, o, NAMES("width"), 1, top, &w) ||
        get_integer(c, o, NAMES("height"), 1, top, &h))
        return ERR_INVAL;
    if (v.p && !view_is(v, "auto")) {
        const char *p = read_side(v.p, &g->p.width);
        p = p && (*p == 'x' || *p == 'X') ? read_side(p + 1, &g->p.height) : NULL;
        if (!p || p != v.p + v.len)
            return api__bad(c, "size", "invalid_value",
                            "Invalid 'size': '%.40s'. Expected 'auto' or WIDTHxHEIGHT, such as "
                            "'%dx%d'.",
                            v.p, g->m->image.size_default, g->m->image.size_default);
        text = true;
    }
    if (!w && !h) {
        g->fixed_size = text;
        if (!text)
            img_size_near(c, g, g->m->image.size_default, g->m->image.size_default);
        return text ? check_size(c, g, "size") : 0;
    }
    if (!w != !h)
        return api__bad(c, w ? "height" : "width", "missing_required_parameter",
                        "Missing '%s': width and height come together.", w ? "height" : "width");
    if (text && (w != g->p.width || h != g->p.height))
        return api__bad(c, w != g->p.width ? "width" : "height", "invalid_value",
                        "Invalid 'width' and 'height': 'size' has another value.");
    g->p.width = (int)w;
    g->p.height = (int)h;
    g->fixed_size = true;
    const struct eng_image_info *im = &g->m->image;
    bool bad_w = w % im->size_step || w < im->size_min || w > im->size_max;
    return check_size(c, g, bad_w ? "width" : "height");
}

/* x rounded to the step: to the nearest, or down. */
static int near_side(const struct eng_image_info *im, double x, double half)
{
    int v = (int)(x / im->size_step + half) * im->size_step;
    int lo = (im->size_min + im->size_step - 1) / im->size_step * im->size_step;
    int hi = im->size_max / im->size_step * im->size_step;
    return v < lo ? lo : v > hi ? hi : v;
}

void img_size_near(const struct api_call *c, struct img_call *g, int w, int h)
{
    const struct eng_image_info *im = &g->m->image;
    double most = (double)pixels_max(c, g), s = 1;
    int big = w > h ? w : h, small = w > h ? h : w;
    if (small < im->size_min)
        s = (double)im->size_min / small;
    if (big * s > im->size_max)
        s = (double)im->size_max / big;
    if (w * s * (h * s) > most)
        s = sqrt(most / ((double)w * h));
    g->p.width = near_side(im, w * s, 0.5);
    g->p.height = near_side(im, h * s, 0.5);
    if ((double)g->p.width * g->p.height > most) {
        g->p.width = near_side(im, w * s, 0);
        g->p.height = near_side(im, h * s, 0);
    }
    /* A short side raised to its minimum may still be too much for a long one. */
    while ((double)g->p.width * g->p.height > most) {
        int *side = g->p.width >= g->p.height ? &g->p.width : &g->p.height;
        if (*side - im->size_step < im->size_min)
            break;
        *side -= im->size_step;
    }
}

/* ---- the rest ---- */

/* Characters of valid UTF-8: all bytes but continuations. */
static size_t count_chars(struct view v)
{
    size_t n = 0;
    for (size_t i = 0; i < v.len; i++)
        n += (v.p[i] & 0xc0) != 0x80;
    return n;
}

static int take_text(struct api_call *c, const char *key, struct view v, char **out)
{
    if (count_chars(v) > IMG_PROMPT_MAX)
        return api__bad(c, key, "string_above_max_length",
                        "Invalid '%s': string too long. Expected a string with maximum length %d, "
                        "but got one with length %zu.",
                        key, IMG_PROMPT_MAX, count_chars(v));
    char *s = mem_alloc(v.len + 1);
    if (!s)
        return api__nomem(c);
    memcpy(s, v.p, v.len);
    s[v.len] = 0;
    *out = s;
    return 0;
}

static int get_texts(struct api_call *c, struct img_call *g, json_t *o)
{
    struct view prompt = {0}, negative = {"", 0};
    if (api__get_str(c, o, "prompt", &prompt) || api__get_str(c, o, "negative_prompt", &negative))
        return ERR_INVAL;
    if (!prompt.p)
        return api__bad(c, "prompt", "missing_required_parameter",
                        "Missing required parameter: 'prompt'.");
    if (prompt.len == 0)
        return api__bad(c, "prompt", "invalid_value", "Invalid 'prompt': it is empty.");
    if (negative.len && !g->m->image.negative)
        return api__bad(c, "negative_prompt", "unsupported_parameter",
                        "Invalid 'negative_prompt': the model '%.60s' has no use for one.",
                        g->m->name);
    if (take_text(c, "prompt", prompt, &g->prompt) ||
        take_text(c, "negative_prompt", negative, &g->negative))
        return ERR_INVAL;
    g->p.prompt = g->prompt;
    g->p.negative = g->negative;
    return 0;
}

/* Quality is a number of steps for a model that knows no other: half, as they are, twice. */
static int get_steps(struct api_call *c, struct img_call *g, json_t *o)
{
    static const struct word qualities[] = {{"auto", IMG_MEDIUM},
                                            {"low", IMG_LOW},
                                            {"medium", IMG_MEDIUM},
                                            {"high", IMG_HIGH},
                                            {"standard", IMG_MEDIUM},
                                            {"hd", IMG_HIGH},
                                            {NULL, 0}};
    const struct eng_image_info *im = &g->m->image;
    int quality = IMG_MEDIUM;
    if (get_word(c, o, "quality", qualities, &quality))
        return ERR_INVAL;
    g->quality = (enum img_quality)quality;
    int64_t steps = im->steps_default;
    if (quality == IMG_LOW)
        steps = (steps + 1) / 2;
    if (quality == IMG_HIGH)
        steps = steps * 2 < im->steps_max ? steps * 2 : im->steps_max;
    if (get_integer(c, o, NAMES("steps", "num_inference_steps", "step"), 1, im->steps_max, &steps))
        return ERR_INVAL;
    g->p.steps = (int)steps;
    return 0;
}

/* -1 asks for a random one, as elsewhere. Random seeds have 32 bits, so that every client can send them back. */
static int get_seed(struct api_call *c, struct img_call *g, json_t *o)
{
    int64_t seed = -1;
    static const struct word rngs[] = {
        {"cpu", IMG_RNG_TORCH_CPU}, {"cuda", IMG_RNG_PHILOX}, {"gpu", IMG_RNG_PHILOX}, {NULL, 0}};
    int rng = IMG_RNG_TORCH_CPU;
    if (get_integer(c, o, NAMES("seed", "rng_seed"), -1, INT64_MAX, &seed) ||
        get_words(c, o, NAMES("rng", "generator_device"), rngs, &rng))
        return ERR_INVAL;
    uint32_t drawn;
    random_bytes(&drawn, sizeof drawn);
    g->p.seed = seed < 0 ? drawn : (uint64_t)seed;
    g->p.rng = (enum img_rng)rng;
    return 0;
}

/* The numbers of sampling. What a model does not have is refused when it is asked for, not when it is absent or off. */
static int get_guidance(struct api_call *c, struct img_call *g, json_t *o)
{
    const struct eng_image_info *im = &g->m->image;
    float refiner = im->refiner ? im->refiner_switch_default : 0;
    g->p.guidance = im->guidance_default;
    g->p.strength = 0.8f;
    if (get_number(c, o, NAMES("guidance_scale", "cfg_scale", "true_cfg_scale"), 0,
                   (double)im->guidance_max, &g->p.guidance) ||
        get_number(c, o, NAMES("flow_shift", "shift"), 0, 100, &g->p.flow_shift) ||
        get_number(c, o, NAMES("refiner_switch", "refiner_switch_at"), 0, 1, &refiner))
        return ERR_INVAL;
    if (g->edit &&
        get_number(c, o, NAMES("strength", "denoising_strength"), 0.001, 1, &g->p.strength))
        return ERR_INVAL;
    if (g->p.flow_shift > 0 && !is_flow(g))
        return api__bad(c, json_object_get(o, "flow_shift") ? "flow_shift" : "shift",
                        "unsupported_parameter",
                        "Invalid 'flow_shift': the model '%.60s' is not a flow model.", g->m->name);
    if (refiner > 0 && refiner < 1 && !im->refiner)
        return api__bad(
            c, json_object_get(o, "refiner_switch") ? "refiner_switch" : "refiner_switch_at",
            "unsupported_parameter",
            "Invalid 'refiner_switch': no refiner is loaded beside '%.60s'.", g->m->name);
    g->p.refiner_switch = refiner < 1 ? refiner : 0;
    return 0;
}

/* How the answer carries pictures. Base64 is the default, as with OpenAI's newer models: an address lives shorter than
 * many clients expect. */
static int get_format(struct api_call *c, struct img_call *g, json_t *o)
{
    static const struct word formats[] = {
        {"png", PICTURE_PNG}, {"jpeg", PICTURE_JPEG}, {"webp", PICTURE_WEBP}, {NULL, 0}};
    static const struct word answers[] = {{"b64_json", false}, {"url", true}, {NULL, 0}};
    static const struct word grounds[] = {
        {"auto", 0}, {"opaque", 0}, {"transparent", 1}, {NULL, 0}};
    int format = PICTURE_PNG, as_url = false, transparent = 0;
    int64_t compression = 100;
    if (get_word(c, o, "output_format", formats, &format) ||
        get_word(c, o, "response_format", answers, &as_url) ||
        get_word(c, o, "background", grounds, &transparent) ||
        get_integer(c, o, NAMES("output_compression"), 0, 100, &compression))
        return ERR_INVAL;
    if (transparent)
        return api__bad(c, "background", "unsupported_value",
                        "Invalid 'background': 'transparent' is not supported; the model '%.60s' "
                        "makes opaque pictures.",
                        g->m->name);
    if (format == PICTURE_PNG && compression < 100)
        return api__bad(
            c, "output_compression", "invalid_value",
            "Invalid 'output_compression': PNG has no quality; values under 100 are for "
            "'jpeg' and 'webp'.");
    if (as_url && g->stream)
        return api__bad(c, "response_format", "unsupported_value",
                        "Invalid 'response_format': a stream carries pictures as 'b64_json'.");
    g->enc.format = (enum picture_format)format;
    g->enc.quality = (int)compression;
    g->as_url = as_url;
    return 0;
}

/* What makes sense in a stream only is refused outside of one, as "stream_options" is for text. */
static int get_stream(struct api_call *c, struct img_call *g, json_t *o)
{
    int64_t partial = 0;
    if (api__get_bool(c, o, "stream", &g->stream) ||
        api__get_bool(c, o, "progress", &g->progress) ||
        get_integer(c, o, NAMES("partial_images"), 0, 3, &partial))
        return ERR_INVAL;
    if (!g->stream && (partial || g->progress))
        return api__bad(c, partial ? "partial_images" : "progress", "invalid_value",
                        "The '%s' parameter is only allowed when 'stream' is enabled.",
                        partial ? "partial_images" : "progress");
    g->partial = (int)partial;
    return 0;
}

/* Fields of OpenAI's that change nothing here: only their values are checked. */
static int check_others(struct api_call *c, json_t *o)
{
    static const struct word moderations[] = {{"auto", 0}, {"low", 0}, {NULL, 0}};
    static const struct word styles[] = {{"vivid", 0}, {"natural", 0}, {NULL, 0}};
    static const struct word fidelities[] = {{"low", 0}, {"high", 0}, {NULL, 0}};
    struct view user;
    int unused;
    return get_word(c, o, "moderation", moderations, &unused) ||
                   get_word(c, o, "style", styles, &unused) ||
                   get_word(c, o, "input_fidelity", fidelities, &unused) ||
                   api__get_str(c, o, "user", &user) ||
                   api__get_str(c, o, "safety_identifier", &user)
               ? ERR_INVAL
               : 0;
}

int img_params(struct api_call *c, struct img_call *g, json_t *o)
{
    int64_t n = 1;
    if (get_texts(c, g, o) || get_stream(c, g, o) ||
        get_integer(c, o, NAMES("n"), 1, c->api->o.max_image_n, &n) ||
        get_integer(c, o, NAMES("priority"), INT32_MIN, INT32_MAX, &g->priority))
        return ERR_INVAL;
    g->n = (int)n;
    if (get_size(c, g, o) || get_steps(c, g, o) || get_guidance(c, g, o) || get_seed(c, g, o) ||
        get_schedule(c, g, o) || get_format(c, g, o))
        return ERR_INVAL;
    return check_others(c, o);
}

/* ---- metadata ----
 * The text that A1111 writes and that galleries, prompt managers and A1111 itself read back: prompt, "Negative prompt:"
 * line, one line of settings. Names are A1111's own, so that they are found there. */

void img_parameters(struct buf *b, const struct img_call *g, int index)
{
    static const char *const names[] = {"Default",  "Euler", "Euler a", "DDIM",
                                        "DPM++ 2M", "LCM",   "Euler"};
    const struct img_params *p = &g->p;
    buf_str(b, g->prompt);
    if (*g->negative)
        buf_fmt(b, "\nNegative prompt: %s", g->negative);
    buf_fmt(b,
            "\nSteps: %d, Sampler: %s, Schedule type: %s, CFG scale: %g, Seed: %llu, Size: %dx%d",
            p->steps, names[img_sampler_used(g)],
            img_schedule_used(g) == IMG_SCHEDULE_KARRAS ? "Karras" : "Normal", (double)p->guidance,
            (unsigned long long)(p->seed + (uint64_t)index), p->width, p->height);
    buf_fmt(b, ", Model: %s", g->m->name);
    if (p->rng == IMG_RNG_PHILOX)
        buf_str(b, ", RNG: GPU");
    if (g->edit)
        buf_fmt(b, ", Denoising strength: %g", (double)p->strength);
    if (p->flow_shift > 0)
        buf_fmt(b, ", Flow shift: %g", (double)p->flow_shift);
    if (p->refiner_switch > 0)
        buf_fmt(b, ", Refiner switch at: %g", (double)p->refiner_switch);
    buf_str(b, ", Version: stepd " STEPD_VERSION);
}
