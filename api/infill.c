/* POST /infill: the text for a hole, as llama-server's clients (completion in editors) ask for it. */
#include "api/fim.h"

#include <stdlib.h>

#include "engine/base/mem.h"

static const char *const known[] = {
    "input_prefix", "input_suffix", "input_extra", "prompt", "n_predict",
    /* without effect */
    "samplers", "cache_prompt", "t_max_prompt_ms", "n_indent", "n_keep", "id_slot",
    "response_fields", "n_probs", "timings_per_token", "return_progress", "return_tokens", NULL};

enum { FILES_MAX = 256 };

/* ---- the answer ---- */

static void put_model(struct buf *b, const struct gen *g)
{
    GEN_PUT(b, ",\"model\":");
    buf_json(b, g->m->name, strlen(g->m->name));
}

/* What is known at the end only. */
static void put_end(struct buf *b, const struct gen *g)
{
    const struct gen_choice *ch = &g->choice[0];
    const struct gen_prompt *p = &g->prompt[0];
    size_t n = gen_text_end(ch);
    const char *why = ch->end != SIZE_MAX ? "word" : ch->finish == FINISH_LENGTH ? "limit" : "eos";
    buf_fmt(b,
            ",\"stop\":true,\"stop_type\":\"%s\",\"tokens_predicted\":%d,\"tokens_evaluated\":%d,"
            "\"tokens_cached\":%d,\"truncated\":false,\"has_new_line\":%s,\"timings\":{\"cache_n\":"
            "%d,\"prompt_n\":%d,\"predicted_n\":%d}",
            why, ch->n_out, p->n_prompt, p->n_cached,
            n && memchr(ch->text.p, '\n', n) ? "true" : "false", p->n_cached,
            p->n_prompt - p->n_cached, ch->n_out);
    put_model(b, g);
    buf_char(b, '}');
}

static void delta(struct api_call *c, struct gen *g, int i, struct view text, size_t mark_to)
{
    (void)g;
    (void)i;
    (void)mark_to;
    if (!text.p)
        return; /* the end says it all */
    c->streamed = true;
    GEN_PUT(&c->out, "data: {\"index\":0,\"content\":");
    buf_json(&c->out, text.p, text.len);
    GEN_PUT(&c->out, ",\"tokens\":[],\"stop\":false}\n\n");
}

static void end(struct api_call *c, struct gen *g)
{
    c->streamed = true;
    GEN_PUT(&c->out, "data: {\"index\":0,\"content\":\"\",\"tokens\":[]");
    put_end(&c->out, g);
    GEN_PUT(&c->out, "\n\n");
}

static void whole(struct api_call *c, struct gen *g)
{
    const struct gen_choice *ch = &g->choice[0];
    GEN_PUT(&c->out, "{\"index\":0,\"content\":");
    buf_json(&c->out, ch->text.p ? ch->text.p : "", gen_text_end(ch));
    GEN_PUT(&c->out, ",\"tokens\":[]");
    put_end(&c->out, g);
    buf_char(&c->out, '\n');
}

static const struct gen_writer writer = {
    .id_prefix = "infill-",
    .object = "infill",
    .chunk_object = "infill",
    .delta = delta,
    .whole = whole,
    .end = end,
};

/* ---- the request ---- */

/* What that server does where a request says nothing; and its model may be left out or empty. */
static int defaults(struct api_call *c, json_t *o)
{
    static const struct {
        const char *key;
        double value;
    } own[] = {{"temperature", 0.8}, {"top_k", 40}, {"top_p", 0.95}, {"min_p", 0.05}};
    int bad = 0;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        json_t *v = json_object_get(o, own[i].key);
        if (!v || json_is_null(v))
            bad |= json_object_set_new(o, own[i].key, json_real(own[i].value));
    }
    json_t *name = json_object_get(o, "model");
    const struct api_model *only = api__only_text(c->api);
    if (only &&
        (!name || json_is_null(name) || (json_is_string(name) && !json_string_length(name))))
        bad |= json_object_set_new(o, "model", json_string(only->name));
    return bad ? api__nomem(c) : 0;
}

static int bad_file(struct api_call *c, size_t i, const char *sub, const char *why)
{
    char param[64];
    snprintf(param, sizeof param, "input_extra[%zu]%s", i, sub);
    return api__bad(c, param, "invalid_type", "Invalid '%s': expected %s.", param, why);
}

static int get_files(struct api_call *c, json_t *o, struct fim_file *file, size_t *n)
{
    json_t *v = json_object_get(o, "input_extra"), *x;
    size_t i;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return api__bad(c, "input_extra", "invalid_type",
                        "Invalid type for 'input_extra': expected an array, but got %s.",
                        api__json_type(v));
    if (json_array_size(v) > FILES_MAX)
        return api__bad(c, "input_extra", "array_above_max_length",
                        "Invalid 'input_extra': at most %d files.", FILES_MAX);
    json_array_foreach(v, i, x)
    {
        json_t *text = json_object_get(x, "text"), *name = json_object_get(x, "filename");
        if (!json_is_object(x))
            return bad_file(c, i, "", "an object with 'filename' and 'text'");
        if (!json_is_string(text))
            return bad_file(c, i, ".text", "a string");
        if (name && !json_is_null(name) && !json_is_string(name))
            return bad_file(c, i, ".filename", "a string");
        file[i].text = (struct view){json_string_value(text), json_string_length(text)};
        file[i].name = json_is_string(name)
                           ? (struct view){json_string_value(name), json_string_length(name)}
                           : view_str("file");
    }
    *n = json_array_size(v);
    return 0;
}

static int parse(struct api_call *c, struct gen *g, json_t *o)
{
    struct fim_file file[FILES_MAX];
    struct fim f = {.file = file, .special = true};
    int64_t old = -1, most = -1, range[2] = {-1, INT32_MAX};
    g->prompt_param = "input_prefix";
    g->max_param = "n_predict";
    g->continues = true;
    if (fim_check(c, g, "input_prefix") || api__get_str(c, o, "input_prefix", &f.prefix) ||
        api__get_str(c, o, "input_suffix", &f.suffix) || api__get_str(c, o, "prompt", &f.start) ||
        get_files(c, o, file, &f.n_file) || api__get_int(c, o, "max_tokens", range, &old) ||
        api__get_int(c, o, "n_predict", range, &most))
        return ERR_INVAL;
    if (g->n != 1)
        return api__bad(c, "n", "unsupported_value", "'n' is 1 at this endpoint.");
    if (g->show_prompt >= 0)
        return api__bad(c, "prompt_logprobs", "unsupported_value",
                        "'prompt_logprobs' is not supported by this endpoint.");
    g->max_tokens = most >= 0 ? most : old;
    if (g->max_tokens == 0)
        g->max_tokens = 1; /* such clients warm the cache so */
    fim_stops(g);
    if (gen_prompts_alloc(g, 1))
        return api__nomem(c);
    return fim_encode(c, g, &f, &g->prompt[0].ids);
}

int api_infill(struct api_call *c)
{
    json_t *o = api__body(c);
    if (!o)
        return ERR_INVAL;
    int rc = defaults(c, o);
    if (!rc)
        rc = gen_run_body(c, &writer, known, o, parse);
    json_decref(o);
    return rc;
}
