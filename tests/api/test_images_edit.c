/* Edits without a server and without a model: pictures of forms and JSON bodies to init and mask, and what is refused; and
 * calls of every kind when memory runs out. */
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

/* ---- edits ---- */

/* A PNG of w x h; pixel (x, y) has red = x, green = y, blue 0 and this alpha; `hole` columns from the left have alpha 0. */
static void make_png(struct buf *out, int w, int h, bool alpha, int hole)
{
    int n = alpha ? 4 : 3;
    uint8_t *px = malloc((size_t)(w * h * n));
    struct picture_encode o = {.format = PICTURE_PNG, .quality = 100};
    assert_non_null(px);
    for (int i = 0; i < w * h; i++) {
        px[i * n] = (uint8_t)(i % w);
        px[i * n + 1] = (uint8_t)(i / w);
        px[i * n + 2] = 0;
        if (alpha)
            px[i * n + 3] = i % w < hole ? 0 : 255;
    }
    assert_int_equal(picture_write(out, px, w, h, alpha, &o, NULL), 0);
    free(px);
}

static void part(struct buf *form, const char *name, const char *text)
{
    buf_fmt(form, "--b\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n", name, text);
}

static void part_file(struct buf *form, const char *name, const struct buf *file)
{
    buf_fmt(form,
            "--b\r\nContent-Disposition: form-data; name=\"%s\"; filename=\"x.png\"\r\n"
            "Content-Type: image/png\r\n\r\n",
            name);
    buf_add(form, file->p, file->len);
    buf_str(form, "\r\n");
}

static void send_form(struct api_call *c, struct buf *form)
{
    buf_str(form, "--b--\r\n");
    api_run_send(api, c, EDIT, (struct view){form->p, form->len},
                 "multipart/form-data; boundary=b");
}

static void test_edit_form(void **state)
{
    struct buf image = {0}, mask = {0}, form = {0};
    struct api_call c;
    (void)state;
    make_png(&image, 64, 48, false, 0);
    make_png(&mask, 64, 48, true, 10);
    part(&form, "prompt", "a caf\xc3\xa9");
    part(&form, "model", "sd");
    part(&form, "n", "2");
    part(&form, "stream", "TRUE");
    part(&form, "cfg_scale", "3.25");
    part(&form, "seed", "-1");
    part(&form, "rng_seed", "");
    part(&form, "steps", "6");
    part(&form, "strength", "0.5");
    part(&form, "input_fidelity", "high");
    part(&form, "partial_images", "1");
    part_file(&form, "image", &image);
    part_file(&form, "mask", &mask);
    send_form(&c, &form);
    if (c.done)
        fail_msg("%s", buf_cstr(&c.out));
    const struct img_params *p = &c.req[0]->image->p;
    assert_int_equal(c.n_header, 0);
    assert_string_equal(p->prompt, "a caf\xc3\xa9");
    assert_true(p->width == 64 && p->height == 48); /* auto: the image's own */
    assert_true(p->guidance == 3.25f && p->steps == 6 && p->strength == 0.5f);
    assert_true(c.req[0]->n == 2 && c.stream && c.req[0]->image->previews == 1);
    for (int i = 0; i < 64 * 48; i++) {
        assert_true(p->init[3 * i] == i % 64 && p->init[3 * i + 1] == i / 64);
        assert_int_equal(p->mask[i], i % 64 < 10 ? 255 : 0);
    }
    api_run_step(&c, 0, 2, 16, 12, RED);
    api_run_picture(&c, 0, 64, 48, RED);
    api_run_picture(&c, 1, 64, 48, BLUE);
    api_run_pictures_done(&c, 2);
    api_run_jobs(&c, true);
    json_t *v = api_run_answer(&c);
    assert_int_equal(json_array_size(v), 3);
    assert_string_equal(api_run_str(json_array_get(v, 0), "type"), "image_edit.partial_image");
    assert_string_equal(api_run_str(json_array_get(v, 2), "type"), "image_edit.completed");
    api_run_image_usage(json_array_get(v, 2), 7, 16, 16);
    json_decref(v);
    api_call_free(&c);
    buf_free(&form);
    buf_free(&image);
    buf_free(&mask);
}

/* JSON: {"prompt":..., "images":[{"image_url":"data:..."}], members}. */
static void send_json(struct api_call *c, struct buf *body, const struct buf *image,
                      const char *members)
{
    buf_clear(body);
    buf_str(body, "{\"prompt\":\"x\",\"images\":[{\"image_url\":\"data:image/png;base64,");
    base64_write(body, image->p, image->len);
    buf_fmt(body, "\"}]%s}", members);
    api_run_start(api, c, EDIT, buf_cstr(body));
}

static void test_edit_json(void **state)
{
    struct buf image = {0}, mask = {0}, body = {0}, members = {0};
    struct api_call c;
    (void)state;
    make_png(&image, 40, 64, true, 4);
    /* The image's own transparency is the mask; its colour there is laid on white. */
    send_json(&c, &body, &image, "");
    if (c.done)
        fail_msg("%s", buf_cstr(&c.out));
    const struct img_params *p = &c.req[0]->image->p;
    assert_true(p->width == 40 && p->height == 64 && p->strength == 0.8f);
    assert_non_null(p->mask);
    for (int i = 0; i < 40 * 64; i++) {
        bool hole = i % 40 < 4;
        assert_int_equal(p->mask[i], hole ? 255 : 0);
        assert_int_equal(p->init[3 * i], hole ? 255 : i % 40);
        assert_int_equal(p->init[3 * i + 2], hole ? 255 : 0);
    }
    api_call_free(&c);
    /* A mask by brightness: white is repainted. Its red channel is x + 216 here, so the mask is not white anywhere
     * but where alpha 0 lies on white. */
    make_png(&mask, 40, 64, true, 7);
    buf_str(&members, ",\"size\":\"80x128\",\"mask_image\":\"data:;base64,");
    base64_write(&members, mask.p, mask.len);
    buf_str(&members, "\",\"denoising_strength\":1");
    send_json(&c, &body, &image, buf_cstr(&members));
    if (c.done)
        fail_msg("%s", buf_cstr(&c.out));
    p = &c.req[0]->image->p;
    assert_true(p->width == 80 && p->height == 128 && p->strength == 1);
    for (int i = 0; i < 80 * 128; i++) {
        assert_true(p->mask[i] == 0 || p->mask[i] == 255);
        if (i % 80 < 13 || i % 80 > 15)
            assert_int_equal(p->mask[i], i % 80 < 14 ? 255 : 0);
    }
    api_call_free(&c);
    buf_free(&image);
    buf_clear(&members);
    /* Opaque: image to image. */
    make_png(&image, 64, 64, false, 0);
    send_json(&c, &body, &image, "");
    assert_null(c.req[0]->image->p.mask);
    api_call_free(&c);
    buf_free(&image);
    buf_free(&mask);
    buf_free(&body);
    buf_free(&members);
}

static void test_auto_size(void **state)
{
    static const struct {
        int w, h, to_w, to_h;
    } sizes[] = {{64, 64, 64, 64},    {61, 67, 64, 64},   {1, 1, 32, 32},
                 {10, 20, 32, 64},    {128, 96, 128, 96}, {128, 128, 104, 104},
                 {640, 320, 128, 64}, {512, 1, 128, 32},  {3, 900, 32, 128}};
    struct buf image = {0}, body = {0};
    struct api_call c;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        buf_clear(&image);
        make_png(&image, sizes[i].w, sizes[i].h, false, 0);
        send_json(&c, &body, &image, "");
        if (c.done)
            fail_msg("%zu: %s", i, buf_cstr(&c.out));
        const struct img_params *p = &c.req[0]->image->p;
        if (p->width != sizes[i].to_w || p->height != sizes[i].to_h)
            fail_msg("%dx%d became %dx%d", sizes[i].w, sizes[i].h, p->width, p->height);
        api_call_free(&c);
    }
    buf_free(&image);
    buf_free(&body);
}

static void test_bad_edits(void **state)
{
    static const struct {
        const char *body, *param, *code;
    } bad[] = {
        {"{\"prompt\":\"x\"}", "images", "missing_required_parameter"},
        {"{\"prompt\":\"x\",\"images\":[]}", "images", "missing_required_parameter"},
        {"{\"prompt\":\"x\",\"images\":[{},{}]}", "images[0]", "invalid_type"},
        {"{\"prompt\":\"x\",\"images\":[{\"image_url\":\"data:;base64,\"},{}]}", "images",
         "unsupported_value"},
        {"{\"prompt\":\"x\",\"images\":[{\"image_url\":\"https://a.example/b.png\"}]}",
         "images[0].image_url", "unsupported_value"},
        {"{\"prompt\":\"x\",\"images\":[{\"file_id\":\"file-1\"}]}", "images[0]",
         "unsupported_value"},
        {"{\"prompt\":\"x\",\"image\":\"file:///etc/passwd\"}", "image", "invalid_value"},
        {"{\"prompt\":\"x\",\"image\":\"data:image/png,abc\"}", "image", "invalid_value"},
        {"{\"prompt\":\"x\",\"image\":\"data:image/png;base64,@@\"}", "image", "invalid_value"},
        {"{\"prompt\":\"x\",\"image\":\"data:image/png;base64,\"}", "image", "invalid_image"},
        {"{\"prompt\":\"x\",\"image\":\"data:image/png;base64,aGVsbG8=\"}", "image",
         "invalid_image"},
        {"{\"prompt\":\"x\",\"image\":\"data:;base64,\",\"images\":[]}", "image", "invalid_value"},
        {"{\"prompt\":\"x\",\"image\":5}", "image", "invalid_type"},
        {"{\"prompt\":\"x\",\"image\":\"data:;base64,\",\"strength\":0}", "strength",
         "decimal_below_min_value"},
        {"{\"prompt\":\"x\",\"image\":\"data:;base64,\",\"strength\":1.1}", "strength",
         "decimal_above_max_value"},
        {"{\"prompt\":\"x\",\"image\":\"data:;base64,\",\"input_fidelity\":\"x\"}",
         "input_fidelity", "invalid_value"},
        {"{\"model\":\"flow\",\"prompt\":\"x\",\"image\":\"data:;base64,\"}", "model",
         "unsupported_value"},
    };
    struct api_call c;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        api_run_start(api, &c, EDIT, bad[i].body);
        api_run_error(&c, 400, bad[i].param, bad[i].code);
        api_call_free(&c);
    }
}

static void bad_form(const char *name, const char *value, const char *file_name,
                     const struct buf *file, const char *param, const char *code)
{
    struct buf image = {0}, form = {0};
    struct api_call c;
    make_png(&image, 64, 64, false, 0);
    part(&form, "prompt", "x");
    part_file(&form, "image", &image);
    if (name)
        part(&form, name, value);
    if (file_name)
        part_file(&form, file_name, file);
    send_form(&c, &form);
    api_run_error(&c, 400, param, code);
    api_call_free(&c);
    buf_free(&image);
    buf_free(&form);
}

static void test_bad_forms(void **state)
{
    struct buf opaque = {0}, full = {0}, small = {0}, junk = {0};
    struct api_call c;
    (void)state;
    make_png(&opaque, 64, 64, false, 0);
    make_png(&full, 64, 64, true, 0);
    make_png(&small, 32, 64, true, 8);
    buf_str(&junk, "\x89PNG\r\n\x1a\nno");
    bad_form(NULL, NULL, "image[]", &opaque, "image", "unsupported_value");
    bad_form(NULL, NULL, "mask", &opaque, "mask", "invalid_value");
    bad_form(NULL, NULL, "mask", &full, "mask", "invalid_value");
    bad_form(NULL, NULL, "mask", &small, "mask", "invalid_value");
    bad_form(NULL, NULL, "mask", &junk, "mask", "invalid_image");
    bad_form(NULL, NULL, "mask_image", &full, "mask_image", "invalid_value");
    bad_form("mask", "data:image/png;base64,!", NULL, NULL, "mask", "invalid_value");
    bad_form("n", "two", NULL, NULL, "n", "invalid_type");
    bad_form("n", " 2", NULL, NULL, "n", "invalid_type");
    bad_form("n", "99999999999999999999", NULL, NULL, "n", "invalid_type");
    bad_form("cfg_scale", "nan", NULL, NULL, "cfg_scale", "invalid_type");
    bad_form("cfg_scale", "0x3", NULL, NULL, "cfg_scale", "invalid_type");
    bad_form("cfg_scale", "1e999", NULL, NULL, "cfg_scale", "invalid_type");
    bad_form("stream", "maybe", NULL, NULL, "stream", "invalid_type");
    bad_form("negative_prompt", "\xff", NULL, NULL, "negative_prompt", "invalid_value");
    bad_form("prompt", "again", NULL, NULL, "prompt", "");
    bad_form("", "x", NULL, NULL, "", "invalid_value");
    api_run_send(api, &c, EDIT, VIEW_LIT("--b\r\n"), "multipart/form-data; boundary=b");
    api_run_error(&c, 400, "", "invalid_multipart");
    api_call_free(&c);
    api_run_send(api, &c, EDIT, VIEW_LIT("x"), "text/plain");
    api_run_error(&c, 415, "", "unsupported_content_type");
    api_call_free(&c);
    api_run_send(api, &c, GEN, VIEW_LIT("--b\r\n"), "multipart/form-data; boundary=b");
    api_run_error(&c, 415, "", "unsupported_content_type");
    api_call_free(&c);
    buf_free(&opaque);
    buf_free(&full);
    buf_free(&small);
    buf_free(&junk);
}

/* ---- no memory ---- */

/* The whole call; the k-th allocation of the API's own fails (0: none). */
static void whole_call(struct api_call *c, struct view body, const char *path, const char *type,
                       long k)
{
    struct event step = {.kind = EV_IMAGE_STEP, .index = 1, .total = 4};
    struct event last = {.kind = EV_IMAGE, .n_prompt = 7, .n_output = 16};
    step.px = img_pixels_new(16, 16);
    last.px = img_pixels_new(64, 64);
    memset(step.px->rgb, 1, (size_t)16 * 16 * 3);
    memset(last.px->rgb, 2, (size_t)64 * 64 * 3);
    mem_fail_after(k, false);
    api_run_send(api, c, path, body, type);
    api_event(c, 0, &step);
    api_event(c, 0, &last);
    api_run_pictures_done(c, 1);
    api_run_jobs(c, false);
    mem_fail_after(0, false);
    assert_true(c->done);
}

/* Each allocation of a call fails once: an answer, or an error that says why; never half of one. */
static void fail_each(struct view body, const char *path, const char *type)
{
    struct api_call c;
    uint64_t before = mem_count();
    int failed = 0;
    whole_call(&c, body, path, type, 0);
    long n = (long)(mem_count() - before);
    assert_int_equal(c.status, 200);
    api_call_free(&c);
    for (long k = 1; k <= n; k++) {
        whole_call(&c, body, path, type, k);
        if (c.out.failed) {
            assert_true(c.close || c.status == 503);
            failed++;
        } else {
            json_t *v = api_run_answer(&c);
            bool error = strstr(buf_cstr(&c.out), "out_of_memory") != NULL;
            assert_true(error || c.status == 200);
            failed += error;
            json_decref(v);
        }
        api_call_free(&c);
    }
    assert_true(failed > 10);
}

static void test_no_memory(void **state)
{
    struct buf image = {0}, mask = {0}, form = {0};
    (void)state;
    fail_each(VIEW_LIT("{\"prompt\":\"x\",\"n\":1}"), GEN, NULL);
    fail_each(VIEW_LIT("{\"prompt\":\"x\",\"response_format\":\"url\"}"), GEN, NULL);
    fail_each(VIEW_LIT("{\"prompt\":\"x\",\"stream\":true,\"partial_images\":1,\"progress\":true}"),
              GEN, NULL);
    make_png(&image, 64, 64, false, 0);
    make_png(&mask, 64, 64, true, 10);
    part(&form, "prompt", "x");
    part(&form, "size", "72x72");
    part_file(&form, "image", &image);
    part_file(&form, "mask", &mask);
    buf_str(&form, "--b--\r\n");
    fail_each((struct view){form.p, form.len}, EDIT, "multipart/form-data; boundary=b");
    buf_free(&image);
    buf_free(&mask);
    buf_free(&form);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edit_form), cmocka_unit_test(test_edit_json),
        cmocka_unit_test(test_auto_size), cmocka_unit_test(test_bad_edits),
        cmocka_unit_test(test_bad_forms), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, api_run_images_close);
}
