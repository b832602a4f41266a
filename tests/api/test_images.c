/* The image endpoints without a server and without a model: fields to request, hand-made events to answers. Edits:
 * test_images_edit.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api_impl.h"
#include "api/base64.h"
#include "api/picture.h"
#include "engine/base/mem.h"
#include "tests/api_run.h"

#define GEN  "/v1/images/generations"
#define EDIT "/v1/images/edits"

static const uint8_t RED[3] = {255, 0, 0}, BLUE[3] = {0, 0, 255};

static struct api *api;

static int setup(void **state)
{
    int rc = api_run_images_open(state);
    api = *state;
    return rc;
}

/* ---- fields ---- */

/* Start a generation whose body has these members beside a prompt. */
static void start(struct api_call *c, const char *members)
{
    static char body[2048]; /* outlives the call */
    snprintf(body, sizeof body, "{\"prompt\":\"a cat\"%s%s}", *members ? "," : "", members);
    api_run_start(api, c, GEN, body);
}

static void test_defaults(void **state)
{
    struct api_call c;
    (void)state;
    start(&c, "");
    assert_int_equal(c.n_req, 1);
    assert_int_equal(c.model, 1); /* the first image model */
    assert_string_equal(c.model_name, "sd");
    const struct request *r = c.req[0];
    assert_non_null(r->image);
    const struct img_params *p = &r->image->p;
    assert_string_equal(p->prompt, "a cat");
    assert_string_equal(p->negative, "");
    assert_int_equal(r->n, 1);
    assert_true(p->width == 64 && p->height == 64 && p->steps == 20 && p->guidance == 7.5f);
    assert_true(p->sampler == IMG_SAMPLER_DEFAULT && p->schedule == IMG_SCHEDULE_DEFAULT);
    assert_true(p->rng == IMG_RNG_TORCH_CPU && p->flow_shift == 0 && p->refiner_switch == 0);
    assert_true(!p->init && !p->mask && p->seed <= UINT32_MAX);
    assert_true(r->image->previews == 0 && !r->image->progress && !c.stream);
    uint64_t seed = p->seed;
    api_call_free(&c);
    start(&c, "\"seed\":-1,\"model\":\"flow\"");
    assert_int_equal(c.model, 2);
    assert_true(c.req[0]->image->p.seed != seed);
    assert_true(c.req[0]->image->p.refiner_switch == 0.8f);
    api_call_free(&c);
}

static void check_value(const struct img_params *p, const char *what, double want)
{
    const struct {
        const char *name;
        double v;
    } all[] = {{"width", p->width},
               {"height", p->height},
               {"steps", p->steps},
               {"guidance", (double)p->guidance},
               {"seed", (double)p->seed},
               {"sampler", p->sampler},
               {"schedule", p->schedule},
               {"rng", p->rng},
               {"shift", (double)p->flow_shift},
               {"refiner", (double)p->refiner_switch}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, what) == 0) {
            if (all[i].v != want)
                fail_msg("%s is %g, not %g", what, all[i].v, want);
            return;
        }
    fail_msg("%s?", what);
}

static void test_good_fields(void **state)
{
    static const struct {
        const char *members, *what;
        double want;
    } good[] = {
        {"\"size\":\"96x32\"", "width", 96},
        {"\"size\":\"96x32\"", "height", 32},
        {"\"size\":\"auto\"", "height", 64},
        {"\"size\":null", "height", 64},
        {"\"width\":48,\"height\":40", "height", 40},
        {"\"size\":\"48x40\",\"width\":48,\"height\":40.0", "width", 48},
        {"\"size\":\"auto\",\"width\":48,\"height\":40", "width", 48},
        {"\"quality\":\"low\"", "steps", 10},
        {"\"quality\":\"medium\"", "steps", 20},
        {"\"quality\":\"standard\"", "steps", 20},
        {"\"quality\":\"auto\"", "steps", 20},
        {"\"quality\":\"high\"", "steps", 30},
        {"\"quality\":\"hd\",\"model\":\"flow\"", "steps", 8},
        {"\"quality\":\"high\",\"steps\":3", "steps", 3},
        {"\"num_inference_steps\":5", "steps", 5},
        {"\"step\":1", "steps", 1},
        {"\"steps\":5,\"num_inference_steps\":5,\"step\":5.0", "steps", 5},
        {"\"guidance_scale\":0", "guidance", 0},
        {"\"cfg_scale\":4", "guidance", 4},
        {"\"true_cfg_scale\":4.5,\"cfg_scale\":4.5", "guidance", 4.5},
        {"\"seed\":0", "seed", 0},
        {"\"rng_seed\":17", "seed", 17},
        {"\"seed\":9223372036854775807", "seed", 9223372036854775807.0},
        {"\"sampler\":\"Euler a\"", "sampler", IMG_SAMPLER_EULER_A},
        {"\"sampler\":\"euler_a\"", "sampler", IMG_SAMPLER_EULER_A},
        {"\"sampler\":\"k_euler_ancestral\",\"sampler_name\":null", "sampler", -1},
        {"\"sampler_name\":\"EulerAncestralDiscreteScheduler\"", "sampler", IMG_SAMPLER_EULER_A},
        {"\"sampler_name\":\"DPM++ 2M Karras\"", "sampler", IMG_SAMPLER_DPMPP_2M},
        {"\"sampler_name\":\"DPM++ 2M Karras\"", "schedule", IMG_SCHEDULE_KARRAS},
        {"\"sampler_name\":\"DPM++ 2M Karras\",\"scheduler\":\"Karras\"", "schedule",
         IMG_SCHEDULE_KARRAS},
        {"\"sampler_index\":\"dpm++2m\"", "sampler", IMG_SAMPLER_DPMPP_2M},
        {"\"sampler\":\"dpmpp_2m\"", "sampler", IMG_SAMPLER_DPMPP_2M},
        {"\"sampler\":\"DPMSolverMultistepScheduler\"", "sampler", IMG_SAMPLER_DPMPP_2M},
        {"\"sampler\":\"DDIM\"", "sampler", IMG_SAMPLER_DDIM},
        {"\"sampler\":\"LCM\"", "sampler", IMG_SAMPLER_LCM},
        {"\"sampler\":\"Euler\"", "sampler", IMG_SAMPLER_EULER},
        {"\"sampler\":\"default\"", "sampler", IMG_SAMPLER_DEFAULT},
        {"\"model\":\"flow\",\"sampler\":\"euler\"", "sampler", IMG_SAMPLER_FLOW_EULER},
        {"\"model\":\"flow\",\"sampler\":\"flow_euler\"", "sampler", IMG_SAMPLER_FLOW_EULER},
        {"\"scheduler\":\"karras\",\"sampler\":\"euler\"", "schedule", IMG_SCHEDULE_KARRAS},
        {"\"schedule\":\"normal\"", "schedule", IMG_SCHEDULE_NORMAL},
        {"\"scheduler\":\"Automatic\"", "schedule", IMG_SCHEDULE_DEFAULT},
        {"\"rng\":\"cuda\"", "rng", IMG_RNG_PHILOX},
        {"\"generator_device\":\"cpu\"", "rng", IMG_RNG_TORCH_CPU},
        {"\"model\":\"flow\",\"flow_shift\":2.5", "shift", 2.5},
        {"\"model\":\"flow\",\"shift\":3", "shift", 3},
        {"\"flow_shift\":0", "shift", 0},
        {"\"model\":\"flow\",\"refiner_switch_at\":0.5", "refiner", 0.5},
        {"\"model\":\"flow\",\"refiner_switch\":0", "refiner", 0},
        {"\"model\":\"flow\",\"refiner_switch\":1", "refiner", 0},
        {"\"refiner_switch\":1", "refiner", 0},
        {"\"moderation\":\"low\",\"style\":\"vivid\",\"user\":\"u\",\"background\":\"opaque\"",
         "width", 64},
        {"\"output_format\":\"webp\",\"output_compression\":0", "width", 64},
        {"\"output_format\":\"png\",\"output_compression\":100", "width", 64},
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct api_call c;
        start(&c, good[i].members);
        if (good[i].want < 0) {
            assert_int_equal(c.status, 400);
        } else {
            if (c.done)
                fail_msg("%s: %s", good[i].members, buf_cstr(&c.out));
            check_value(&c.req[0]->image->p, good[i].what, good[i].want);
        }
        api_call_free(&c);
    }
}

static void test_bad_fields(void **state)
{
    static const struct {
        const char *members, *param, *code;
    } bad[] = {
        {"\"size\":\"big\"", "size", "invalid_value"},
        {"\"size\":\"64\"", "size", "invalid_value"},
        {"\"size\":\"64x\"", "size", "invalid_value"},
        {"\"size\":\"x64\"", "size", "invalid_value"},
        {"\"size\":\"64x64x64\"", "size", "invalid_value"},
        {"\"size\":\" 64x64\"", "size", "invalid_value"},
        {"\"size\":\"-64x64\"", "size", "invalid_value"},
        {"\"size\":\"0x64\"", "size", "invalid_value"},
        {"\"size\":\"99999x99999\"", "size", "invalid_value"},
        {"\"size\":\"99999999999999999999x64\"", "size", "invalid_value"},
        {"\"size\":\"65x64\"", "size", "invalid_value"},
        {"\"size\":\"24x64\"", "size", "invalid_value"},
        {"\"size\":\"136x64\"", "size", "invalid_value"},
        {"\"size\":\"128x128\"", "size", "invalid_value"}, /* pixels_max */
        {"\"size\":64", "size", "invalid_type"},
        {"\"width\":64", "height", "missing_required_parameter"},
        {"\"height\":64", "width", "missing_required_parameter"},
        {"\"width\":0,\"height\":64", "width", "integer_below_min_value"},
        {"\"width\":65,\"height\":64", "width", "invalid_value"},
        {"\"width\":64,\"height\":65", "height", "invalid_value"},
        {"\"width\":64,\"height\":64,\"size\":\"64x72\"", "height", "invalid_value"},
        {"\"width\":\"64\",\"height\":64", "width", "invalid_type"},
        {"\"n\":0", "n", "integer_below_min_value"},
        {"\"n\":11", "n", "integer_above_max_value"},
        {"\"n\":\"2\"", "n", "invalid_type"},
        {"\"n\":1.5", "n", "invalid_type"},
        {"\"quality\":\"ultra\"", "quality", "invalid_value"},
        {"\"response_format\":\"tiff\"", "response_format", "invalid_value"},
        {"\"output_format\":\"gif\"", "output_format", "invalid_value"},
        {"\"output_format\":\"jpeg\",\"output_compression\":101", "output_compression",
         "integer_above_max_value"},
        {"\"output_compression\":50", "output_compression", "invalid_value"},
        {"\"background\":\"transparent\"", "background", "unsupported_value"},
        {"\"background\":\"green\"", "background", "invalid_value"},
        {"\"moderation\":\"high\"", "moderation", "invalid_value"},
        {"\"style\":\"dull\"", "style", "invalid_value"},
        {"\"user\":5", "user", "invalid_type"},
        {"\"stream\":\"yes\"", "stream", "invalid_type"},
        {"\"partial_images\":1", "partial_images", "invalid_value"},
        {"\"stream\":true,\"partial_images\":4", "partial_images", "integer_above_max_value"},
        {"\"progress\":true", "progress", "invalid_value"},
        {"\"stream\":true,\"response_format\":\"url\"", "response_format", "unsupported_value"},
        {"\"steps\":0", "steps", "integer_below_min_value"},
        {"\"num_inference_steps\":31", "num_inference_steps", "integer_above_max_value"},
        {"\"steps\":5,\"num_inference_steps\":6", "num_inference_steps", "invalid_value"},
        {"\"cfg_scale\":-1", "cfg_scale", "decimal_below_min_value"},
        {"\"guidance_scale\":31", "guidance_scale", "decimal_above_max_value"},
        {"\"guidance_scale\":3,\"cfg_scale\":4", "cfg_scale", "invalid_value"},
        {"\"guidance_scale\":\"3\"", "guidance_scale", "invalid_type"},
        {"\"seed\":-2", "seed", "integer_below_min_value"},
        {"\"seed\":1,\"rng_seed\":2", "rng_seed", "invalid_value"},
        {"\"seed\":1.5", "seed", "invalid_type"},
        {"\"sampler\":\"heun\"", "sampler", "invalid_value"},
        {"\"sampler\":\"\"", "sampler", "invalid_value"},
        {"\"sampler\":\"karras\"", "sampler", "invalid_value"},
        {"\"sampler_name\":7", "sampler_name", "invalid_type"},
        {"\"sampler\":\"euler\",\"sampler_name\":\"ddim\"", "sampler_name", "invalid_value"},
        {"\"sampler\":\"flow_euler\"", "sampler", "unsupported_value"},
        {"\"model\":\"flow\",\"sampler\":\"ddim\"", "sampler", "unsupported_value"},
        {"\"sampler\":\"DPM++ 2M Karras\",\"scheduler\":\"normal\"", "sampler", "invalid_value"},
        {"\"scheduler\":\"karras\"", "scheduler", "unsupported_value"},
        {"\"schedule\":\"karras\",\"sampler\":\"lcm\"", "schedule", "unsupported_value"},
        {"\"sampler\":\"DDIM Karras\"", "sampler", "unsupported_value"},
        {"\"model\":\"flow\",\"scheduler\":\"karras\"", "scheduler", "unsupported_value"},
        {"\"scheduler\":\"exponential\"", "scheduler", "invalid_value"},
        {"\"flow_shift\":2", "flow_shift", "unsupported_parameter"},
        {"\"shift\":2", "shift", "unsupported_parameter"},
        {"\"rng\":\"nv\"", "rng", "invalid_value"},
        {"\"refiner_switch\":0.5", "refiner_switch", "unsupported_parameter"},
        {"\"model\":\"flow\",\"refiner_switch\":1.5", "refiner_switch", "decimal_above_max_value"},
        {"\"model\":\"flow\",\"negative_prompt\":\"x\"", "negative_prompt",
         "unsupported_parameter"},
        {"\"negative_prompt\":[]", "negative_prompt", "invalid_type"},
        {"\"model\":\"m\"", "model", "invalid_value"},
        {"\"model\":5", "model", "invalid_type"},
        {"\"prompt\":\"\"", "prompt", NULL}, /* twice in the body */
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct api_call c;
        start(&c, bad[i].members);
        api_run_error(&c, 400, bad[i].param, bad[i].code);
        api_call_free(&c);
    }
}

static void test_prompt(void **state)
{
    struct buf b = {0};
    struct api_call c;
    (void)state;
    api_run_start(api, &c, GEN, "{}");
    api_run_error(&c, 400, "prompt", "missing_required_parameter");
    api_call_free(&c);
    api_run_start(api, &c, GEN, "{\"prompt\":\"\"}");
    api_run_error(&c, 400, "prompt", "invalid_value");
    api_call_free(&c);
    api_run_start(api, &c, GEN, "{\"prompt\":\"x\",\"model\":\"none\"}");
    api_run_error(&c, 404, "model", "model_not_found");
    api_call_free(&c);
    for (int over = 0; over < 2;
         over++) { /* 32,000 characters of two bytes are fine, one more is not */
        buf_clear(&b);
        buf_str(&b, "{\"prompt\":\"");
        for (int i = 0; i < 32000 + over; i++)
            buf_str(&b, "\xc3\xa9");
        buf_str(&b, "\"}");
        api_run_start(api, &c, GEN, b.p);
        if (over)
            api_run_error(&c, 400, "prompt", "string_above_max_length");
        else
            assert_int_equal(strlen(c.req[0]->image->p.prompt), 64000);
        api_call_free(&c);
    }
    buf_free(&b);
}

static void test_unknown_fields(void **state)
{
    struct api_call c;
    (void)state;
    start(&c, "\"hires\":true,\"strength\":0.5");
    assert_int_equal(c.n_req, 1);
    assert_int_equal(c.n_header, 1);
    assert_non_null(strstr(c.header[0].value, "hires"));
    assert_non_null(strstr(c.header[0].value, "strength")); /* of edits only */
    api_call_free(&c);
    api->o.strict_fields = true;
    start(&c, "\"hires\":true");
    api_run_error(&c, 400, "hires", "unknown_parameter");
    api_call_free(&c);
    api->o.strict_fields = false;
    api->o.max_image_pixels = 64 * 64;
    start(&c, "\"size\":\"64x72\"");
    api_run_error(&c, 400, "size", "invalid_value");
    api_call_free(&c);
    api->o.max_image_pixels = 0;
}

static void test_kinds(void **state)
{
    static const char *const text[] = {"/v1/chat/completions", "/v1/completions", "/tokenize",
                                       "/detokenize"};
    struct api_call c;
    const char *allow;
    (void)state;
    for (int i = 0; i < 4; i++) {
        api_run_start(api, &c, text[i],
                      "{\"model\":\"sd\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                      "\"prompt\":\"a\",\"tokens\":[1]}");
        api_run_error(&c, 404, "model", NULL);
        assert_non_null(strstr(buf_cstr(&c.out), GEN));
        api_call_free(&c);
    }
    c = (struct api_call){.api = api, .method = "GET", .path = "/v1/models"};
    c.route = api_route_find("GET", c.path, &allow);
    api_prepare(&c);
    json_t *v = api_run_answer(&c), *data = json_object_get(v, "data");
    assert_int_equal(json_array_size(data), 3);
    static const char *const kinds[] = {"text", "image", "image"};
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(api_run_str(json_array_get(data, i), "kind"), kinds[i]);
    json_t *meta = json_object_get(json_array_get(data, 2), "meta");
    assert_string_equal(api_run_str(meta, "arch"), "FluxPipeline");
    assert_int_equal(api_run_int(meta, "size_step"), 16);
    json_decref(v);
    api_call_free(&c);
}

/* ---- answers ---- */

/* The picture in a base64 text: w x h of one colour (JPEG and WebP are not exact). Its file bytes in *file. */
static void check_picture(const char *text, int w, int h, const uint8_t rgb[3], struct buf *file)
{
    struct picture p;
    struct err e = {0};
    assert_non_null(text);
    assert_int_equal(base64_read(file, view_str(text)), 0);
    if (picture_decode(&p, file->p, file->len, NULL, &e))
        fail_msg("%s", e.text);
    assert_true(p.width == w && p.height == h);
    for (int i = 0; i < 3; i++)
        assert_in_range(p.rgba[4 * (w * h / 2) + i] + 6 - rgb[i], 0, 12);
    picture_free(&p);
}

static void test_whole(void **state)
{
    static const char *const formats[] = {"png", "jpeg", "webp"};
    (void)state;
    for (int f = 0; f < 3; f++) {
        char members[400];
        struct api_call c;
        snprintf(
            members, sizeof members,
            "\"n\":2,\"seed\":41,\"size\":\"48x32\",\"output_format\":\"%s\",\"negative_prompt\":"
            "\"dogs\",\"sampler\":\"Euler a\",\"cfg_scale\":4.1,\"quality\":\"low\",\"rng\":"
            "\"cuda\",\"scheduler\":\"karras\"",
            formats[f]);
        start(&c, members);
        assert_int_equal(c.req[0]->n, 2);
        api_run_step(&c, 0, 1, 0, 0, NULL); /* not asked for: nothing comes of it */
        api_run_picture(&c, 1, 48, 32, BLUE);
        api_run_picture(&c, 0, 48, 32, RED);
        api_run_pictures_done(&c, 2);
        assert_false(c.done); /* not encoded yet */
        assert_int_equal(c.out.len, 0);
        api_run_jobs(&c, f == 1);
        assert_true(c.done);
        assert_int_equal(c.status, 200);
        assert_true(c.n_prompt == 7 && c.n_output == 32);
        json_t *v = api_run_answer(&c), *data = json_object_get(v, "data");
        assert_int_equal(api_run_int(v, "created"), 1700000000);
        assert_string_equal(api_run_str(v, "size"), "48x32");
        assert_string_equal(api_run_str(v, "quality"), "low");
        assert_string_equal(api_run_str(v, "background"), "opaque");
        assert_string_equal(api_run_str(v, "output_format"), formats[f]);
        api_run_image_usage(v, 7, 0, 32);
        assert_int_equal(json_array_size(data), 2);
        for (size_t i = 0; i < 2; i++) {
            json_t *d = json_array_get(data, i), *s = json_object_get(d, "stepd");
            struct buf file = {0};
            check_picture(api_run_str(d, "b64_json"), 48, 32, i ? BLUE : RED, &file);
            if (f == 0) {
                char want[300];
                snprintf(
                    want, sizeof want,
                    "a cat\nNegative prompt: dogs\nSteps: 10, Sampler: Euler a, Schedule type: "
                    "Karras, CFG scale: 4.1, Seed: %zu, Size: 48x32, Model: sd, RNG: GPU, "
                    "Version: stepd " STEPD_VERSION,
                    41 + i);
                assert_non_null(memmem(file.p, file.len, want, strlen(want)));
            }
            buf_free(&file);
            assert_int_equal(api_run_int(s, "seed"), 41 + i);
            assert_int_equal(api_run_int(s, "steps"), 10);
            assert_int_equal(api_run_int(s, "width"), 48);
            assert_string_equal(api_run_str(s, "sampler"), "euler_a");
            assert_string_equal(api_run_str(s, "schedule"), "karras");
            assert_string_equal(api_run_str(s, "negative_prompt"), "dogs");
            assert_string_equal(api_run_str(s, "model"), "sd");
            assert_true(json_real_value(json_object_get(s, "guidance_scale")) == 4.1);
            assert_null(json_object_get(s, "strength"));
        }
        json_decref(v);
        api_call_free(&c);
    }
}

/* Frames leave in the order of their events, whatever order their jobs end in. */
static void test_stream(void **state)
{
    (void)state;
    for (int order = 0; order < 2; order++) {
        struct api_call c;
        start(&c, "\"n\":2,\"stream\":true,\"partial_images\":2,\"progress\":true,\"seed\":1");
        assert_true(c.stream && c.req[0]->image->progress && c.req[0]->image->previews == 2);
        assert_string_equal(c.out_type, "text/event-stream");
        api_run_step(&c, 0, 1, 0, 0, NULL);
        assert_true(c.streamed && c.out.len > 0); /* at once: no picture to wait for */
        size_t first = c.out.len;
        api_run_step(&c, 0, 2, 16, 16, RED);
        api_run_step(&c, 1, 2, 16, 16, BLUE);
        if (order) {
            api_run_picture(&c, 0, 64, 64, RED);
            assert_true(memmem(c.out.p + first, c.out.len - first, "b64_json", 8) == NULL);
        }
        api_run_jobs(&c, order);
        if (!order) {
            api_run_picture(&c, 0, 64, 64, RED);
            api_run_jobs(&c, false);
        }
        assert_false(c.done);
        api_run_picture(&c, 1, 64, 64, BLUE);
        api_run_pictures_done(&c, 2);
        assert_false(c.done);
        api_run_jobs(&c, order);
        assert_true(c.done);
        json_t *v = api_run_answer(&c), *e;
        static const char *const kinds[] = {"progress", "progress",      "partial_image",
                                            "progress", "partial_image", "completed",
                                            "completed"};
        static const int pictures[] = {0, 0, 0, 1, 1, 0, 1};
        size_t i;
        assert_int_equal(json_array_size(v), 7);
        json_array_foreach(v, i, e)
        {
            const char *type = api_run_str(e, "type");
            assert_int_equal(strncmp(type, "image_generation.", 17), 0);
            assert_string_equal(type + 17, kinds[i]);
            if (strcmp(kinds[i], "progress") == 0) {
                assert_int_equal(api_run_int(e, "index"), pictures[i]);
                assert_int_equal(api_run_int(e, "total"), 4);
                assert_int_equal(api_run_int(e, "step"), i ? 2 : 1);
                assert_int_equal(api_run_int(e, "eta_ms"), 1500);
                continue;
            }
            struct buf file = {0};
            check_picture(api_run_str(e, "b64_json"), 64, 64, pictures[i] ? BLUE : RED, &file);
            buf_free(&file);
            assert_int_equal(api_run_int(json_object_get(e, "stepd"), "index"), pictures[i]);
            assert_int_equal(api_run_int(json_object_get(e, "stepd"), "seed"), 1 + pictures[i]);
            assert_string_equal(api_run_str(e, "size"), "64x64");
            assert_string_equal(api_run_str(e, "quality"), "medium");
            assert_true(api_run_int(e, "created_at") > 1600000000);
            if (*kinds[i] == 'p')
                assert_int_equal(api_run_int(e, "partial_image_index"), 0);
            else
                api_run_image_usage(e, 7, 0, 16);
        }
        json_decref(v);
        api_call_free(&c);
    }
}

static void fail_event(struct api_call *c, int code, const char *text)
{
    struct event ev = {.kind = EV_ERROR};
    err_set(&ev.err, code, "%s", text);
    api_event(c, 0, &ev);
}

static void test_errors_of_the_engine(void **state)
{
    struct api_call c;
    (void)state;
    start(&c, "\"stream\":true");
    fail_event(&c, ERR_INVAL, "prompt: too long for this encoder");
    api_run_error(&c, 400, "", NULL); /* nothing was sent: a plain error */
    api_call_free(&c);

    start(&c, "\"stream\":true,\"progress\":true,\"n\":2");
    api_run_step(&c, 0, 1, 0, 0, NULL);
    api_run_picture(&c, 0, 64, 64, RED); /* its job is still out when the error comes */
    fail_event(&c, ERR_DEVICE, "the device is lost");
    assert_true(c.done);
    size_t n = c.out.len;
    api_run_jobs(&c, false);
    assert_int_equal(c.out.len, n);
    json_t *v = api_run_answer(&c);
    assert_int_equal(json_array_size(v), 2);
    assert_string_equal(api_run_str(json_object_get(json_array_get(v, 1), "error"), "code"),
                        "engine_failed");
    json_decref(v);
    api_run_picture(&c, 1, 64, 64, RED); /* still on its way: dropped */
    assert_null(c.job);
    api_call_free(&c);

    start(&c, "\"n\":2"); /* the call ends while a picture is encoded */
    api_run_picture(&c, 0, 64, 64, RED);
    struct api_job *j = c.job;
    c.job = NULL;
    api_call_free(&c);
    j->run(j);
    j->done(NULL, j);

    start(&c, "\"n\":2"); /* ended without all of them */
    api_run_picture(&c, 0, 64, 64, RED);
    api_run_jobs(&c, false);
    api_run_pictures_done(&c, 1);
    assert_int_equal(c.status, 500);
    api_call_free(&c);
}

/* ---- addresses ---- */

static int get_file(struct api_call *c, const char *path)
{
    const char *allow;
    *c = (struct api_call){.api = api, .method = "GET", .path = path};
    c->route = api_route_find("GET", path, &allow);
    assert_non_null(c->route);
    assert_false(c->route->flags & API_KEY);
    api_prepare(c);
    assert_true(c->done);
    return c->status;
}

static void test_url(void **state)
{
    struct api_call c, f;
    struct picture p;
    (void)state;
    start(&c, "\"n\":2,\"response_format\":\"url\",\"output_format\":\"webp\"");
    api_run_picture(&c, 0, 64, 64, RED);
    api_run_picture(&c, 1, 64, 64, BLUE);
    api_run_pictures_done(&c, 2);
    api_run_jobs(&c, true);
    assert_true(c.done && c.status == 200);
    json_t *v = api_run_answer(&c), *d;
    size_t i;
    json_array_foreach(json_object_get(v, "data"), i, d)
    {
        const char *url = api_run_str(d, "url"), *head = "http://pictures.example:8000";
        assert_null(json_object_get(d, "b64_json"));
        assert_int_equal(strncmp(url, head, strlen(head)), 0);
        assert_int_equal(get_file(&f, url + strlen(head)), 200);
        assert_string_equal(f.out_type, "image/webp");
        assert_int_equal(picture_decode(&p, f.out.p, f.out.len, NULL, NULL), 0);
        assert_true((p.rgba[0] > 200) == (i == 0) && (p.rgba[2] > 200) == (i == 1));
        assert_int_equal(strncmp(f.header[0].value, "private, max-age=3", 18), 0);
        picture_free(&p);
        api_call_free(&f);
    }
    json_decref(v);
    api_call_free(&c);
    static const char *const none[] = {"x", "00000000000000000000000000000000",
                                       "00000000000000000000000000000000.png", "../../etc/passwd"};
    for (i = 0; i < 4; i++) {
        char path[100];
        snprintf(path, sizeof path, "/v1/images/files/%s", none[i]);
        assert_int_equal(get_file(&f, path), 404);
        api_call_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_good_fields),
        cmocka_unit_test(test_bad_fields),
        cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_unknown_fields),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_errors_of_the_engine),
        cmocka_unit_test(test_url),
    };
    return cmocka_run_group_tests(tests, setup, api_run_images_close);
}
