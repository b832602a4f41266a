/* Forms and JSON bodies of the image endpoints come from anybody: any bytes give an error of a known kind, or a request
 * within what the engine is promised. The first byte chooses the endpoint and the content type. */
#include "tests/fuzz/fuzz.h"

#include "api/api_impl.h"
#include "api/base64.h"
#include "api/multipart.h"

const char *const fuzz_seeds[] = {"tests/data/fuzz/form-*", "tests/data/fuzz/image-*.json", NULL};

static const struct eng_image_info info = {.size_default = 64,
                                           .size_min = 16,
                                           .size_max = 128,
                                           .size_step = 8,
                                           .pixels_max = 64 * 128,
                                           .steps_default = 20,
                                           .steps_max = 100,
                                           .guidance_default = 7.5f,
                                           .guidance_max = 30,
                                           .negative = true,
                                           .edit = true,
                                           .sampler_default = IMG_SAMPLER_DDIM,
                                           .schedule_default = IMG_SCHEDULE_NORMAL,
                                           .pipeline = "StableDiffusionPipeline"};

static struct api *open_api(void)
{
    static const struct api_opts o = {.max_image_n = 4};
    struct api *a = NULL;
    struct err e = {0};
    CHECK(api_open(&a, &o, &e) == 0 && api__image_model_add(a, "p", NULL, &e) == 0);
    struct eng_info all = {.image = &info};
    api_model_ready(a, 0, &all);
    return a;
}

/* The parts lie in the body, in order, and none reaches into the next. */
static void check_parts(const char *type, struct view body)
{
    struct multipart part[32];
    struct err e = {0};
    int n;
    int rc = multipart_parse(type, body, part, 32, &n, &e);
    CHECK(rc == 0 || rc == ERR_PARSE || rc == ERR_LIMIT || rc == ERR_UNSUPPORTED);
    CHECK(rc == 0 || e.text[0]);
    const char *at = body.p;
    for (int i = 0; i < n; i++) {
        CHECK(part[i].name.p >= at && part[i].data.p >= part[i].name.p + part[i].name.len);
        at = part[i].data.p + part[i].data.len;
        CHECK(at <= body.p + body.len);
    }
}

static void check_base64(struct view text)
{
    struct buf bytes = {0}, again = {0}, back = {0};
    if (base64_read(&bytes, text) == 0) {
        base64_write(&again, bytes.p, bytes.len);
        CHECK(base64_read(&back, (struct view){again.p, again.len}) == 0);
        CHECK(back.len == bytes.len && (!back.len || memcmp(back.p, bytes.p, back.len) == 0));
    }
    buf_free(&bytes);
    buf_free(&again);
    buf_free(&back);
}

static void check_work(const struct api_call *c)
{
    const struct request *r = c->req[0];
    const struct img_params *p = &r->image->p;
    unsigned sum = 0;
    CHECK(c->n_req == 1 && r->n >= 1 && r->n <= 4 && r->image->previews <= 3);
    CHECK(p->width % 8 == 0 && p->height % 8 == 0 && p->width >= 16 && p->height >= 16);
    CHECK(p->width <= 128 && p->height <= 128 && p->width * p->height <= 64 * 128);
    CHECK(p->steps >= 1 && p->steps <= 100 && p->guidance >= 0 && p->guidance <= 30);
    CHECK(p->strength > 0 && p->strength <= 1 && p->flow_shift == 0 && p->refiner_switch == 0);
    CHECK(p->sampler <= IMG_SAMPLER_LCM && p->schedule <= IMG_SCHEDULE_KARRAS);
    CHECK(*p->prompt && utf8_valid(p->prompt, strlen(p->prompt)));
    CHECK(utf8_valid(p->negative, strlen(p->negative)));
    for (int i = 0; p->init && i < p->width * p->height * 3; i++)
        sum += p->init[i];
    for (int i = 0; p->mask && i < p->width * p->height; i++)
        CHECK(p->mask[i] == 0 || p->mask[i] == 255);
    CHECK(!p->mask || p->init);
    CHECK(sum <= 255u * 3 * 64 * 128);
}

static void end_call(struct api_call *c)
{
    struct event ev = {.kind = EV_IMAGE, .n_prompt = 3, .n_output = 4};
    const struct request *r = c->req[0];
    for (int i = 0; i < r->n; i++) {
        ev.choice = i;
        ev.px = img_pixels_new(r->image->p.width, r->image->p.height);
        CHECK(ev.px);
        memset(ev.px->rgb, 77, (size_t)(ev.px->width * ev.px->height) * 3);
        api_event(c, 0, &ev);
    }
    ev = (struct event){.kind = EV_DONE, .n_prompt = 3, .n_output = 4};
    api_event(c, 0, &ev);
    while (c->job) {
        struct api_job *j = c->job;
        c->job = j->next;
        j->run(j);
        j->done(c, j);
    }
    CHECK(c->done && c->status == 200 && utf8_valid(c->out.p, c->out.len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct api *api;
    const char *allow = NULL;
    if (!api)
        api = open_api();
    if (n < 1 || n > 1 << 16)
        return 0;
    /* Copies of that very length: reading past the body shows. */
    char *body = malloc(n), *text = malloc(n);
    CHECK(body && text);
    memcpy(body, data + 1, n - 1);
    body[n - 1] = 0;
    memcpy(text, data + 1, n - 1);
    text[n - 1] = 0;
    /* A form's content type is its own first line. */
    struct api_call c = {.api = api, .method = "POST", .body = body, .request_id = "r"};
    c.body_len = n - 1;
    c.path = data[0] == '0' ? "/v1/images/generations" : "/v1/images/edits";
    if (data[0] == '2') {
        text[strcspn(text, "\n")] = 0;
        size_t skip = strlen(text) < n - 1 ? strlen(text) + 1 : n - 1;
        c.content_type = text;
        c.body += skip;
        c.body_len -= skip;
        check_parts(text, (struct view){c.body, c.body_len});
    } else {
        check_base64((struct view){c.body, c.body_len});
    }
    c.route = api_route_find("POST", c.path, &allow);
    api_prepare(&c);
    if (!c.done) {
        check_work(&c);
        end_call(&c);
    }
    CHECK(c.status == 200 || c.status == 400 || c.status == 404 || c.status == 415);
    if (!c.stream) {
        json_t *v = json_loadb(c.out.p, c.out.len, 0, NULL);
        CHECK(v && (c.status == 200 || json_object_size(json_object_get(v, "error")) == 4));
        json_decref(v);
    }
    api_call_free(&c);
    free(body);
    free(text);
    return 0;
}
