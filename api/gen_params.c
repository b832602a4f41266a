/* Request parameters that chat and completions share: OpenAI's, and the extras under the names that users of
 * vLLM and llama-server already send. */
#include <math.h>
#include <stdlib.h>

#include "api/gen.h"
#include "api/structured.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

const char *const gen_fields[] = {"model",
                                  "stream",
                                  "stream_options",
                                  "n",
                                  "seed",
                                  "temperature",
                                  "top_p",
                                  "top_k",
                                  "min_p",
                                  "presence_penalty",
                                  "frequency_penalty",
                                  "repetition_penalty",
                                  "repeat_penalty",
                                  "stop",
                                  "stop_token_ids",
                                  "logit_bias",
                                  "logprobs",
                                  "max_tokens",
                                  "min_tokens",
                                  "ignore_eos",
                                  "priority",
                                  "allowed_token_ids",
                                  "cache_salt",
                                  "timeout",
                                  "t_max_predict_ms",
                                  "include_stop_str_in_output",
                                  "response_format",
                                  "skip_special_tokens",
                                  "user",
                                  "grammar",
                                  "guided_json",
                                  "guided_regex",
                                  "guided_choice",
                                  "guided_grammar",
                                  "json_schema",
                                  "structured_outputs",
                                  "regex",
                                  "ebnf",
                                  "prompt_embeds",
                                  "use_beam_search",
                                  "bad_words",
                                  "truncate_prompt_tokens",
                                  "prompt_logprobs",
                                  "logits_processors",
                                  NULL};

#define RANGE_INT(lo, hi) ((int64_t[2]){lo, hi})
#define RANGE_NUM(lo, hi) ((double[2]){lo, hi})

struct num_param {
    const char *key;
    double lo, hi;
    size_t off; /* float in struct req_sampling */
};
#define SAMP(f) offsetof(struct req_sampling, f)
static const struct num_param nums[] = {
    {"temperature", 0, 2, SAMP(temperature)},
    {"top_p", 0, 1, SAMP(top_p)},
    {"min_p", 0, 1, SAMP(min_p)},
    {"presence_penalty", -2, 2, SAMP(presence_penalty)},
    {"frequency_penalty", -2, 2, SAMP(frequency_penalty)},
    {"repeat_penalty", 1e-3, 100, SAMP(repetition_penalty)},
    {"repetition_penalty", 1e-3, 100, SAMP(repetition_penalty)},
};

static float said(double v, float otherwise)
{
    return v >= 0 ? (float)v : otherwise;
}

/* Where a request says nothing, what the model's folder asks for counts, then OpenAI's defaults. */
static int get_numbers(struct api_call *c, struct gen *g, json_t *o)
{
    static const struct text_sampling none = {-1, -1, -1, -1, -1};
    const struct text_sampling *s = g->m->text ? &g->m->text->sampling : &none;
    g->samp.temperature = said(s->temperature, 1);
    g->samp.top_p = said(s->top_p, 1);
    g->samp.min_p = said(s->min_p, 0);
    g->samp.repetition_penalty = said(s->repetition_penalty, 1);
    for (size_t i = 0; i < sizeof nums / sizeof *nums; i++) {
        float *at = (float *)((char *)&g->samp + nums[i].off);
        double d = *at;
        if (api__get_num(c, o, nums[i].key, RANGE_NUM(nums[i].lo, nums[i].hi), &d))
            return ERR_INVAL;
        *at = (float)d;
    }
    if (g->samp.temperature < 1e-5f) /* division by it would overflow: greedy is its limit */
        g->samp.temperature = 0;
    int64_t k = s->top_k;
    if (api__get_int(c, o, "top_k", RANGE_INT(-1, INT32_MAX), &k))
        return ERR_INVAL;
    g->samp.top_k = k < 0 ? 0 : (int32_t)k;
    return 0;
}

static int get_seed(struct api_call *c, struct gen *g, json_t *o)
{
    int64_t seed = 0;
    if (api__get_int(c, o, "seed", RANGE_INT(INT64_MIN, INT64_MAX), &seed))
        return ERR_INVAL;
    json_t *v = json_object_get(o, "seed");
    if (v && !json_is_null(v))
        g->samp.seed = (uint64_t)seed;
    else
        random_bytes(&g->samp.seed, sizeof g->samp.seed);
    return 0;
}

static int add_stop(struct api_call *c, struct gen *g, json_t *v)
{
    if (!json_is_string(v))
        return api__bad(
            c, "stop", "invalid_type",
            "Invalid type for 'stop': expected a string or an array of strings, but got %s.",
            api__json_type(v));
    size_t n = json_string_length(v);
    if (n == 0)
        return api__bad(c, "stop", "invalid_value",
                        "Invalid 'stop': an empty string is not a stop sequence.");
    if (n > GEN_STOP_LONGEST) /* each token is compared with it */
        return api__bad(c, "stop", "string_above_max_length",
                        "Invalid 'stop': a stop sequence is at most %d bytes long.",
                        GEN_STOP_LONGEST);
    char *s = mem_alloc(n + 1);
    if (!s)
        return api__nomem(c);
    memcpy(s, json_string_value(v), n + 1);
    g->stop[g->n_stop] = s;
    g->stop_len[g->n_stop++] = n;
    if (n > g->stop_longest)
        g->stop_longest = n;
    return 0;
}

static int get_stop(struct api_call *c, struct gen *g, json_t *o)
{
    json_t *v = json_object_get(o, "stop");
    int most = g->most_stop ? g->most_stop : c->api->o.max_stop;
    if (most > GEN_STOP_MAX)
        most = GEN_STOP_MAX;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return add_stop(c, g, v);
    if (json_array_size(v) > (size_t)most)
        return api__bad(c, "stop", "array_above_max_length",
                        "Invalid 'stop': array too long. Expected at most %d strings, but got %zu.",
                        most, json_array_size(v));
    for (size_t i = 0; i < json_array_size(v); i++)
        if (add_stop(c, g, json_array_get(v, i)))
            return ERR_INVAL;
    return 0;
}

static bool token_ok(const struct gen *g, const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 &&
           json_integer_value(v) < g->m->n_vocab;
}

static int get_stop_ids(struct api_call *c, struct gen *g, json_t *o)
{
    json_t *v = json_object_get(o, "stop_token_ids");
    int n_own = 0;
    const int32_t *own = tok_stop_ids(g->m->text->tok, &n_own);
    if (!g->ignore_eos)
        for (int i = 0; i < n_own && g->n_stop_id < REQ_STOP_MAX; i++)
            g->stop_id[g->n_stop_id++] = own[i];
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return api__bad(
            c, "stop_token_ids", "invalid_type",
            "Invalid type for 'stop_token_ids': expected an array of integers, but got %s.",
            api__json_type(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *t = json_array_get(v, i);
        if (!token_ok(g, t))
            return api__bad(
                c, "stop_token_ids", "invalid_value",
                "Invalid 'stop_token_ids[%zu]': not a token id of this model (0 to %d).", i,
                g->m->n_vocab - 1);
        if (g->n_stop_id == REQ_STOP_MAX)
            return api__bad(c, "stop_token_ids", "array_above_max_length",
                            "Invalid 'stop_token_ids': at most %d with the model's own.",
                            REQ_STOP_MAX);
        g->stop_id[g->n_stop_id++] = (int32_t)json_integer_value(t);
    }
    return 0;
}

static int get_bias(struct api_call *c, struct gen *g, json_t *o)
{
    json_t *v = json_object_get(o, "logit_bias"), *x;
    const char *key;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_object(v))
        return api__bad(c, "logit_bias", "invalid_type",
                        "Invalid type for 'logit_bias': expected an object, but got %s.",
                        api__json_type(v));
    size_t n = json_object_size(v);
    if (n > (size_t)c->api->o.max_logit_bias)
        return api__bad(c, "logit_bias", "object_above_max_properties",
                        "Invalid 'logit_bias': at most %d entries.", c->api->o.max_logit_bias);
    g->samp.bias = mem_calloc(n, sizeof *g->samp.bias);
    if (!g->samp.bias)
        return api__nomem(c);
    json_object_foreach(v, key, x)
    {
        size_t len = strlen(key);
        long id = strspn(key, "0123456789") == len && len <= 10 ? strtol(key, NULL, 10) : -1;
        if (len == 0 || id < 0 || id >= g->m->n_vocab)
            return api__bad(
                c, "logit_bias", "invalid_value",
                "Invalid key in 'logit_bias': '%.40s' is not a token id of this model (0 to %d).",
                key, g->m->n_vocab - 1);
        double b = json_is_number(x) ? json_number_value(x) : 1e9;
        if (!(b >= -100 && b <= 100))
            return api__bad(
                c, "logit_bias", "invalid_value",
                "Invalid value for 'logit_bias.%ld': expected a number from -100 to 100.", id);
        g->samp.bias[g->samp.n_bias++] = (struct token_bias){(int32_t)id, (float)b};
    }
    return 0;
}

static int get_allowed(struct api_call *c, struct gen *g, json_t *o)
{
    json_t *v = json_object_get(o, "allowed_token_ids");
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v) || json_array_size(v) == 0)
        return api__bad(c, "allowed_token_ids", "invalid_type",
                        "Invalid 'allowed_token_ids': expected a non-empty array of integers.");
    g->samp.mask = mem_calloc((size_t)(g->m->n_vocab + 31) / 32, 4);
    if (!g->samp.mask)
        return api__nomem(c);
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *t = json_array_get(v, i);
        if (!token_ok(g, t))
            return api__bad(
                c, "allowed_token_ids", "invalid_value",
                "Invalid 'allowed_token_ids[%zu]': not a token id of this model (0 to %d).", i,
                g->m->n_vocab - 1);
        int64_t id = json_integer_value(t);
        g->samp.mask[id / 32] |= 1u << (id % 32);
    }
    return 0;
}

static int get_stream(struct api_call *c, struct gen *g, json_t *o)
{
    json_t *so = json_object_get(o, "stream_options");
    if (api__get_bool(c, o, "stream", &g->stream))
        return ERR_INVAL;
    if (!so || json_is_null(so))
        return 0;
    if (!json_is_object(so))
        return api__bad(c, "stream_options", "invalid_type",
                        "Invalid type for 'stream_options': expected an object, but got %s.",
                        api__json_type(so));
    if (!g->stream)
        return api__bad(c, "stream_options", NULL,
                        "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
    if (api__bool_at(c, json_object_get(so, "include_usage"), "stream_options.include_usage",
                     &g->include_usage) ||
        api__bool_at(c, json_object_get(so, "continuous_usage_stats"),
                     "stream_options.continuous_usage_stats", &g->continuous_usage))
        return ERR_INVAL;
    return 0;
}

/* A salt is any string; its keyed hash goes into the prefix index. The key lives as long as the process. */
static int get_salt(struct api_call *c, struct gen *g, json_t *o)
{
    static const struct hash_key fixed = {0x73746570642d7361u, 0x6c742d6b65792d31u};
    struct view s = {0};
    if (api__get_str(c, o, "cache_salt", &s))
        return ERR_INVAL;
    if (s.p) {
        g->cache_salt = hash_bytes(fixed, s.p, s.len);
        g->cache_salt += g->cache_salt == 0;
    }
    return 0;
}

/* A limit of time for the whole answer, in seconds, and of its writing, in milliseconds (-1 or 0: none). */
static int get_times(struct api_call *c, struct gen *g, json_t *o)
{
    double all = 0;
    int64_t write = 0;
    if (api__get_num(c, o, "timeout", RANGE_NUM(1e-3, 86400), &all) ||
        api__get_int(c, o, "t_max_predict_ms", RANGE_INT(-1, INT32_MAX), &write))
        return ERR_INVAL;
    g->timeout_us = (int64_t)(all * 1e6);
    g->write_us = write > 0 ? write * 1000 : 0;
    return 0;
}

static int get_prompt_logprobs(struct api_call *c, struct gen *g, json_t *o)
{
    int64_t n = -1;
    if (api__get_int(c, o, "prompt_logprobs", RANGE_INT(0, SAMPLE_TOP_MAX), &n))
        return ERR_INVAL;
    if (n >= 0 && g->stream)
        return api__bad(c, "prompt_logprobs", "unsupported_value",
                        "'prompt_logprobs' is not allowed with 'stream'.");
    g->prompt_logprobs = g->show_prompt = (int)n;
    return 0;
}

/* Does a field's value ask for nothing? null, false, "", [] and {} do. */
static bool asks_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v)) ||
           (json_is_string(v) && !json_string_length(v));
}

/* Fields that would change the answer, and that this build does not do, are refused by name; what only names
 * the caller (user, metadata, store, ...) is accepted and ignored. */
static int refuse_unsupported(struct api_call *c, json_t *o)
{
    static const char *const no[] = {"prompt_embeds",          "audio",
                                     "web_search_options",     "documents",
                                     "chat_template",          "use_beam_search",
                                     "truncate_prompt_tokens", "bad_words",
                                     "logits_processors",      NULL};
    for (int i = 0; no[i]; i++)
        /* {} asks for a web search */
        if (!asks_nothing(json_object_get(o, no[i])) ||
            (strcmp(no[i], "web_search_options") == 0 && json_is_object(json_object_get(o, no[i]))))
            return api__bad(c, no[i], "unsupported_parameter",
                            "'%s' is not supported by this server.", no[i]);
    return 0;
}

int gen_params(struct api_call *c, struct gen *g, json_t *o)
{
    int64_t n = 1;
    g->max_tokens = -1;
    g->n_top = -1;
    g->prompt_logprobs = g->show_prompt = -1;
    g->skip_special = true;
    if (get_stream(c, g, o) || get_numbers(c, g, o) || get_seed(c, g, o))
        return ERR_INVAL;
    if (api__get_int(c, o, "n", RANGE_INT(1, c->api->o.max_n), &n) ||
        api__get_int(c, o, "min_tokens", RANGE_INT(0, INT32_MAX), &g->min_tokens) ||
        api__get_int(c, o, "priority", RANGE_INT(INT32_MIN, INT32_MAX), &g->priority) ||
        api__get_bool(c, o, "ignore_eos", &g->ignore_eos) ||
        api__get_bool(c, o, "include_stop_str_in_output", &g->include_stop) ||
        api__get_bool(c, o, "skip_special_tokens", &g->skip_special))
        return ERR_INVAL;
    g->n = (int)n;
    if (get_stop(c, g, o) || get_stop_ids(c, g, o) || get_bias(c, g, o) || get_allowed(c, g, o) ||
        get_salt(c, g, o) || get_times(c, g, o) || get_prompt_logprobs(c, g, o))
        return ERR_INVAL;
    return refuse_unsupported(c, o) ? ERR_INVAL : structured_params(c, g, o);
}
