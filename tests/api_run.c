/* See api_run.h. */
#include "tests/api_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api_impl.h"
#include "tests/unxz.h"

const struct eng_image_info api_run_sd = {.size_default = 64,
                                          .size_min = 32,
                                          .size_max = 128,
                                          .size_step = 8,
                                          .pixels_max = 128 * 96,
                                          .steps_default = 20,
                                          .steps_max = 30,
                                          .guidance_default = 7.5f,
                                          .guidance_max = 30,
                                          .negative = true,
                                          .edit = true,
                                          .sampler_default = IMG_SAMPLER_DDIM,
                                          .schedule_default = IMG_SCHEDULE_NORMAL,
                                          .pipeline = "StableDiffusionPipeline"};
const struct eng_image_info api_run_flow = {.size_default = 64,
                                            .size_min = 32,
                                            .size_max = 128,
                                            .size_step = 16,
                                            .pixels_max = 128 * 128,
                                            .steps_default = 4,
                                            .steps_max = 50,
                                            .guidance_default = 3.5f,
                                            .guidance_max = 10,
                                            .refiner = true,
                                            .refiner_switch_default = 0.8f,
                                            .sampler_default = IMG_SAMPLER_FLOW_EULER,
                                            .schedule_default = IMG_SCHEDULE_NORMAL,
                                            .pipeline = "FluxPipeline"};

struct api *api_run_open(const char *file, int32_t n_ctx, struct tokenizer **tok)
{
    struct api *a = NULL;
    struct api_opts o = {0};
    struct err e = {0};
    char path[64];
    assert_int_equal(unxz_temp(file, path, sizeof path), 0);
    assert_int_equal(api_open(&a, &o, &e), 0);
    if (api_model_add(a, "m", "other,third", path, NULL, &e) != 0)
        fail_msg("%s: %s", file, e.text);
    unlink(path);
    struct eng_info info = {.n_ctx = n_ctx, .n_vocab = tok_n_vocab(a->model[0].text->tok)};
    api_model_ready(a, 0, &info);
    if (tok)
        *tok = a->model[0].text->tok;
    return a;
}

void api_run_image_model(struct api *a, const char *name, const struct eng_image_info *im)
{
    struct err e = {0};
    int at = api__image_model_add(a, name, NULL, &e);
    if (at < 0)
        fail_msg("%s", e.text);
    struct eng_info info = {.image = im};
    api_model_ready(a, at, &info);
}

int api_run_images_open(void **state)
{
    struct api *a = api_run_open("tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz", RUN_CTX, NULL);
    api_run_image_model(a, "sd", &api_run_sd);
    api_run_image_model(a, "flow", &api_run_flow);
    *state = a;
    return 0;
}

int api_run_images_close(void **state)
{
    api_close(*state);
    return 0;
}

void api_run_start(struct api *a, struct api_call *c, const char *path, const char *body)
{
    api_run_send(a, c, path, view_str(body), NULL);
}

void api_run_send(struct api *a, struct api_call *c, const char *path, struct view body,
                  const char *content_type)
{
    const char *allow = NULL;
    *c = (struct api_call){.api = a, .method = "POST", .path = path, .body = body.p};
    c->body_len = body.len;
    c->content_type = content_type;
    c->host = "pictures.example:8000";
    c->request_id = "req-test";
    c->created = 1700000000;
    c->route = api_route_find("POST", path, &allow);
    assert_non_null(c->route);
    api_prepare(c);
    assert_true(c->done ? c->status != 0 : c->n_req > 0);
}

static struct sample_out made_up(int32_t token)
{
    struct sample_out s = {.token = token, .rank = 1, .n_top = SAMPLE_TOP_MAX};
    s.logprob = -0.25f * (float)(token % 7);
    for (int i = 0; i < SAMPLE_TOP_MAX; i++) {
        s.top_id[i] = (token + i) % 500;
        s.top_logprob[i] = s.logprob - 0.5f * (float)i;
    }
    return s;
}

void api_run_token(struct api_call *c, int req, int choice, int32_t token)
{
    struct event ev = {.kind = EV_TOKEN, .choice = choice, .tok = made_up(token)};
    api_event(c, req, &ev);
}

void api_run_prompt(struct api_call *c, int req, int32_t index, int32_t token)
{
    struct event ev = {.kind = EV_PROMPT, .index = index, .tok = made_up(token)};
    api_event(c, req, &ev);
}

void api_run_finish(struct api_call *c, int req, int choice, enum finish_reason why)
{
    struct event ev = {.kind = EV_FINISH, .choice = choice, .finish = why, .stop_token = -1};
    api_event(c, req, &ev);
}

void api_run_done(struct api_call *c, int req, int32_t n_cached)
{
    struct event ev = {.kind = EV_DONE, .n_cached = n_cached};
    api_event(c, req, &ev);
}

static struct img_pixels *filled(int w, int h, const uint8_t rgb[3])
{
    if (!w)
        return NULL;
    struct img_pixels *p = img_pixels_new(w, h);
    for (int i = 0; p && i < w * h; i++)
        memcpy(p->rgb + 3 * i, rgb, 3);
    return p;
}

void api_run_step(struct api_call *c, int choice, int index, int w, int h, const uint8_t rgb[3])
{
    struct event ev = {.kind = EV_IMAGE_STEP, .choice = choice, .index = index, .total = 4};
    ev.eta_us = 1500000;
    ev.px = filled(w, h, rgb);
    api_event(c, 0, &ev);
}

void api_run_picture(struct api_call *c, int choice, int w, int h, const uint8_t rgb[3])
{
    struct event ev = {.kind = EV_IMAGE, .choice = choice, .n_prompt = 7, .n_output = 16};
    ev.px = filled(w, h, rgb);
    assert_non_null(ev.px);
    api_event(c, 0, &ev);
}

void api_run_pictures_done(struct api_call *c, int n)
{
    struct event ev = {.kind = EV_DONE, .n_prompt = 7, .n_output = 16 * n};
    ev.encode_us = 1000, ev.denoise_us = 20000, ev.decode_us = 3000;
    api_event(c, 0, &ev);
}

void api_run_jobs(struct api_call *c, bool last_first)
{
    struct api_job *list = c->job, *back = NULL;
    c->job = NULL;
    while (last_first && list) {
        struct api_job *j = list;
        list = j->next;
        j->next = back;
        back = j;
    }
    for (struct api_job *j = last_first ? back : list, *next; j; j = next) {
        next = j->next;
        j->next = NULL;
        j->run(j);
        j->done(c, j);
    }
}

static json_t *parse(const char *p, size_t n)
{
    json_error_t e;
    json_t *v = json_loadb(p, n, JSON_REJECT_DUPLICATES, &e);
    if (!v)
        fail_msg("no JSON: %s in %.*s", e.text, (int)n, p);
    return v;
}

json_t *api_run_answer(const struct api_call *c)
{
    const char *p = buf_cstr(&c->out), *end = p + c->out.len;
    bool finished = false, error = false, pictures = false;
    if (!c->stream)
        return parse(p, c->out.len);
    json_t *all = json_array();
    while (p < end) {
        const char *to = memmem(p, (size_t)(end - p), "\n\n", 2), *name = NULL;
        assert_non_null(to);
        assert_false(finished || error);
        if (memcmp(p, "event: ", 7) == 0) {
            name = p + 7;
            p = memchr(p, '\n', (size_t)(to - p));
            assert_non_null(p++);
            pictures = true;
        }
        assert_memory_equal(p, "data: ", 6);
        p += 6;
        if (to - p == 6 && memcmp(p, "[DONE]", 6) == 0) {
            finished = true;
        } else {
            json_t *v = parse(p, (size_t)(to - p));
            error = json_object_get(v, "error");
            const char *type = json_string_value(json_object_get(v, "type"));
            assert_true(!name || (type && strncmp(name, type, strlen(type)) == 0 &&
                                  name[strlen(type)] == '\n'));
            json_array_append_new(all, v);
        }
        p = to + 2;
    }
    assert_true(!c->done || finished != error || (pictures && !finished));
    return all;
}

/* Choice i of the next frame that has it, from frame *at on; an answer that is not streamed is one frame. */
static json_t *next_choice(json_t *answer, int i, size_t *at)
{
    size_t n = json_is_array(answer) ? json_array_size(answer) : 1, k;
    while (*at < n) {
        json_t *f = json_is_array(answer) ? json_array_get(answer, *at) : answer, *ch;
        (*at)++;
        json_array_foreach(json_object_get(f, "choices"), k,
                           ch) if (json_integer_value(json_object_get(ch, "index")) == i) return ch;
    }
    return NULL;
}

char *api_run_text(json_t *answer, int i)
{
    struct buf b = {0};
    json_t *ch;
    for (size_t at = 0; (ch = next_choice(answer, i, &at));) {
        json_t *t = json_object_get(ch, "text"), *m = json_object_get(ch, "message");
        if (!t)
            t = json_object_get(m ? m : json_object_get(ch, "delta"), "content");
        if (t)
            buf_add(&b, json_string_value(t), json_string_length(t));
    }
    buf_char(&b, 0);
    return buf_take(&b, NULL);
}

json_t *api_run_logprobs(json_t *answer, int i)
{
    json_t *all = json_array(), *ch, *e;
    size_t k;
    for (size_t at = 0; (ch = next_choice(answer, i, &at));) {
        json_t *lp = json_object_get(ch, "logprobs"), *tokens = json_object_get(lp, "tokens");
        json_t *values = json_object_get(lp, "token_logprobs");
        assert_int_equal(json_array_size(tokens), json_array_size(values));
        json_array_foreach(json_object_get(lp, "content"), k, e) json_array_append_new(
            all, json_pack("[O,O]", json_object_get(e, "token"), json_object_get(e, "logprob")));
        json_array_foreach(tokens, k, e)
            json_array_append_new(all, json_pack("[O,O]", e, json_array_get(values, k)));
    }
    return all;
}

const char *api_run_finish_reason(json_t *answer, int i)
{
    const char *why = NULL;
    json_t *ch;
    for (size_t at = 0; (ch = next_choice(answer, i, &at));) {
        json_t *f = json_object_get(ch, "finish_reason");
        assert_true(why == NULL); /* the last frame of a choice, and the only one */
        if (json_is_string(f))
            why = json_string_value(f);
    }
    return why;
}

const char *api_run_str(json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

long long api_run_int(json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!json_is_integer(v))
        fail_msg("no integer %s", key);
    return json_integer_value(v);
}

void api_run_error(struct api_call *c, int status, const char *param, const char *code)
{
    if (!c->done)
        fail_msg("no error for %s", c->body);
    json_t *v = api_run_answer(c), *e = json_object_get(v, "error");
    const char *p = api_run_str(e, "param"), *k = api_run_str(e, "code");
    if (c->status != status || strcmp(p ? p : "", param) != 0 ||
        (code && strcmp(k ? k : "", code) != 0))
        fail_msg("%s: %d %s", c->body, c->status, buf_cstr(&c->out));
    assert_true(strlen(api_run_str(e, "message")) > 10);
    json_decref(v);
}

void api_run_image_usage(json_t *v, int in, int image, int out)
{
    json_t *u = json_object_get(v, "usage"), *d = json_object_get(u, "input_tokens_details");
    assert_int_equal(api_run_int(u, "input_tokens"), in + image);
    assert_int_equal(api_run_int(u, "output_tokens"), out);
    assert_int_equal(api_run_int(u, "total_tokens"), in + image + out);
    assert_int_equal(api_run_int(d, "text_tokens"), in);
    assert_int_equal(api_run_int(d, "image_tokens"), image);
}
