/* A request body comes from anybody: any bytes give an answer of a known kind or work to submit, for every endpoint
 * that reads JSON; some tokens then go through what was asked for. The first byte chooses the endpoint. */
#include "tests/fuzz/fuzz.h"

#include "api/api_impl.h"
#include "tests/unxz.h"

#include <unistd.h>

const char *const fuzz_seeds[] = {"tests/data/fuzz/request-*.json", NULL};

static struct api *open_api(void)
{
    static const struct api_opts o = {.max_prompts = 8, .max_n = 4, .max_messages = 8};
    struct api *a = NULL;
    struct err e = {0};
    char path[64];
    CHECK(unxz_temp("tests/data/gguf-tiny/tiny-llama-q8_0.gguf.xz", path, sizeof path) == 0);
    CHECK(api_open(&a, &o, &e) == 0 && api_model_add(a, "m", NULL, path, NULL, &e) == 0);
    unlink(path);
    struct eng_info info = {.n_ctx = 512, .n_vocab = tok_n_vocab(a->model[0].text->tok)};
    api_model_ready(a, 0, &info);
    return a;
}

/* What went into the work must be within what the scheduler is promised. */
static void check_work(const struct api_call *c)
{
    for (int i = 0; i < c->n_req; i++) {
        const struct request *r = c->req[i];
        CHECK(r && r->n >= 1 && r->n <= 4 && r->n_prompt >= 1 && r->n_prompt <= 512);
        CHECK(r->max_tokens >= 0 && r->max_tokens + r->n_prompt <= 512);
        CHECK(r->min_tokens >= 0 && r->min_tokens <= r->max_tokens);
        CHECK(r->samp.temperature >= 0 && r->samp.temperature <= 2);
        CHECK(r->samp.top_p >= 0 && r->samp.top_p <= 1 && r->samp.repetition_penalty > 0);
        CHECK(r->samp.n_top >= -1 && r->samp.n_top <= SAMPLE_TOP_MAX);
        CHECK(r->n_stop_id >= 0 && r->n_stop_id <= REQ_STOP_MAX);
        for (int k = 0; k < r->n_prompt; k++)
            CHECK(r->prompt[k] >= 0 && r->prompt[k] < c->api->model[0].n_vocab);
        for (int k = 0; k < r->samp.n_bias; k++)
            CHECK(r->samp.bias[k].token >= 0 && r->samp.bias[k].token < c->api->model[0].n_vocab);
    }
}

static void answer(struct api_call *c)
{
    for (int i = 0; i < c->n_req && !c->done; i++) {
        const struct request *r = c->req[i];
        struct event ev = {.kind = EV_PROMPT};
        for (int k = 1; r->prompt_logprobs >= 0 && k < r->n_prompt; k++) {
            ev.tok.token = r->prompt[k];
            api_event(c, i, &ev);
        }
        ev.kind = EV_TOKEN;
        for (int k = 0; k < 12 * r->n && k < r->max_tokens * r->n; k++) {
            ev.choice = k % r->n;
            ev.tok.token = r->prompt[k % r->n_prompt];
            api_event(c, i, &ev);
        }
        ev.kind = EV_DONE;
        api_event(c, i, &ev);
    }
    CHECK(c->done);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/tokenize",
                                        "/detokenize"};
    static struct api *api;
    const char *allow = NULL;
    if (!api)
        api = open_api();
    if (n < 1 || n > 1 << 16)
        return 0;
    char *body = malloc(n);
    CHECK(body);
    memcpy(body, data + 1, n - 1);
    body[n - 1] = 0;
    struct api_call c = {.api = api, .method = "POST", .path = paths[data[0] % 4]};
    c.body = body;
    c.body_len = n - 1;
    c.request_id = "r";
    c.route = api_route_find("POST", c.path, &allow);
    api_prepare(&c);
    if (!c.done) {
        check_work(&c);
        answer(&c);
        CHECK(c.status == 200 && utf8_valid(c.out.p, c.out.len));
    }
    CHECK(c.status == 200 || c.status == 400 || c.status == 404);
    if (!c.stream) {
        json_t *v = json_loadb(c.out.p, c.out.len, 0, NULL);
        CHECK(v && (c.status == 200 || json_object_size(json_object_get(v, "error")) == 4));
        json_decref(v);
    }
    api_call_free(&c);
    free(body);
    return 0;
}
