/* GET /v1/models and /v1/models/NAME, POST /tokenize and /detokenize. */
#include "api/gen.h"
#include "api/images_impl.h"

/* What an image model can do, once its engine has said so. */
static void put_image_meta(struct buf *b, const struct eng_image_info *im)
{
    buf_str(b, "\"kind\":\"image\",\"meta\":{\"arch\":");
    buf_json(b, im->pipeline, strlen(im->pipeline));
    buf_fmt(b,
            ",\"size_default\":%d,\"size_min\":%d,\"size_max\":%d,\"size_step\":%d,"
            "\"pixels_max\":%lld,\"steps_default\":%d,\"steps_max\":%d,\"guidance_default\":%g,"
            "\"guidance_max\":%g,",
            im->size_default, im->size_min, im->size_max, im->size_step, (long long)im->pixels_max,
            im->steps_default, im->steps_max, (double)im->guidance_default,
            (double)im->guidance_max);
    buf_fmt(b, "\"negative_prompt\":%s,\"edit\":%s,\"refiner\":%s,\"sampler_default\":\"%s\"}}",
            im->negative ? "true" : "false", im->edit ? "true" : "false",
            im->refiner ? "true" : "false", img_sampler_name(im->sampler_default));
}

static void put_encoder_meta(struct buf *b, const struct eng_encoder_info *i)
{
    static const char *const pooling[] = {"mean", "cls", "last", "max"};
    if (i->n_label)
        buf_fmt(b, ",\"labels\":%d", i->n_label);
    else
        buf_fmt(b, ",\"dimensions\":%d,\"pooling\":\"%s\"", i->dim, pooling[i->pooling]);
}

static void put_model(struct buf *b, const struct api_model *m)
{
    buf_str(b, "{\"id\":");
    buf_json(b, m->name, strlen(m->name));
    buf_fmt(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"stepd\",",
            (long long)m->created);
    if (!m->text) {
        if (m->ready)
            put_image_meta(b, &m->image);
        else
            buf_str(b, "\"kind\":\"image\"}");
        return;
    }
    buf_fmt(b, "\"max_model_len\":%d,\"kind\":\"%s\",", m->n_ctx ? m->n_ctx : m->text->n_ctx_train,
            m->is_audio              ? "transcription"
            : !m->is_encoder         ? "text"
            : m->encoder.n_label > 0 ? "classifier"
                                     : "embedding");
    buf_str(b, "\"meta\":{\"arch\":");
    buf_json(b, m->text->arch, strlen(m->text->arch));
    if (m->is_encoder && m->ready)
        put_encoder_meta(b, &m->encoder);
    buf_fmt(b, ",\"n_vocab\":%d,\"n_params\":%lld,\"size\":%lld}}", tok_n_vocab(m->text->tok),
            (long long)m->text->n_params, (long long)m->text->file_bytes);
}

/* Language models first, then encoders: clients that ask for no model by name take the first of the list for a chat. */
int api_models(struct api_call *c)
{
    const char *comma = "";
    buf_str(&c->out, "{\"object\":\"list\",\"data\":[");
    for (int kind = 0; kind < 4; kind++)
        for (int i = 0; i < c->api->n_model; i++) {
            const struct api_model *m = &c->api->model[i];
            if (kind != (!m->text ? 3 : m->is_audio ? 2 : m->is_encoder))
                continue;
            buf_str(&c->out, comma);
            put_model(&c->out, m);
            comma = ",";
        }
    buf_str(&c->out, "]}\n");
    c->done = true;
    return 0;
}

int api_model(struct api_call *c)
{
    const char *name = c->path + strlen("/v1/models/");
    struct api_model *m = api__model_find(c->api, name, strlen(name), &c->model);
    if (!m) {
        char text[200];
        snprintf(text, sizeof text, "The model '%.100s' does not exist.", name);
        return api__refuse(c, 404, "model", "model_not_found", text);
    }
    put_model(&c->out, m);
    buf_char(&c->out, '\n');
    c->done = true;
    return 0;
}

static void put_tokens(struct api_call *c, struct gen *g, bool strings)
{
    struct buf *b = &c->out;
    const struct tok_ids *ids = &g->prompt[0].ids;
    buf_fmt(b, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", ids->n, g->m->n_ctx);
    for (size_t i = 0; i < ids->n; i++)
        buf_fmt(b, "%s%d", i ? "," : "", ids->id[i]);
    buf_str(b, "],\"token_strs\":");
    if (!strings)
        buf_str(b, "null");
    for (size_t i = 0; strings && i < ids->n; i++) {
        struct view v = tok_entry(g->m->text->tok, ids->id[i]);
        buf_char(b, i ? ',' : '[');
        buf_json(b, v.p, v.len);
    }
    if (strings)
        buf_str(b, ids->n ? "]" : "[]");
    buf_str(b, "}\n");
    c->done = true;
}

/* Either "prompt" (text; "content" is llama-server's name for it) or "messages" with their tools, as in chat. */
static int tokenize(struct api_call *c, struct gen *g, json_t *o)
{
    struct view text = {0};
    bool special = true, strings = false;
    if (api__get_bool(c, o, "add_special_tokens", &special) ||
        api__get_bool(c, o, "add_special", &special) ||
        api__get_bool(c, o, "return_token_strs", &strings) ||
        api__get_bool(c, o, "with_pieces", &strings) || api__get_str(c, o, "prompt", &text) ||
        api__get_str(c, o, "content", &text))
        return ERR_INVAL;
    g->n = 1;
    if (gen_prompts_alloc(g, 1))
        return api__nomem(c);
    if (json_object_get(o, "messages")) {
        if (chat_tools(c, g, o) || chat_prompt(c, g, o))
            return ERR_INVAL;
    } else if (!text.p) {
        return api__bad(c, "prompt", "missing_required_parameter",
                        "Missing required parameter: 'prompt' (or 'messages').");
    } else {
        int rc = gen_prompt_encode(g, text, special, &g->prompt[0].ids);
        if (rc)
            return rc == ERR_NOMEM ? api__nomem(c)
                                   : api__bad(c, "prompt", "invalid_value",
                                              "Invalid 'prompt': it could not be tokenised.");
    }
    put_tokens(c, g, strings);
    return 0;
}

static int detokenize(struct api_call *c, struct gen *g, json_t *o)
{
    json_t *v = json_object_get(o, "tokens"), *x;
    size_t k;
    bool skip = false;
    struct tok_ids *ids;
    g->n = 1;
    if (gen_prompts_alloc(g, 1))
        return api__nomem(c);
    ids = &g->prompt[0].ids;
    if (!json_is_array(v))
        return api__bad(c, "tokens", v ? "invalid_type" : "missing_required_parameter",
                        "Invalid 'tokens': expected an array of token ids.");
    if (api__get_bool(c, o, "skip_special_tokens", &skip))
        return ERR_INVAL;
    json_array_foreach(v, k, x)
    {
        if (!json_is_integer(x) || json_integer_value(x) < 0 ||
            json_integer_value(x) >= g->m->n_vocab)
            return api__bad(c, "tokens", "invalid_value",
                            "Invalid 'tokens[%zu]': not a token id of this model (0 to %d).", k,
                            g->m->n_vocab - 1);
        if (tok_ids_add(ids, (int32_t)json_integer_value(x)))
            return api__nomem(c);
    }
    struct buf text = {0};
    if (ids->n && tok_decode(g->m->text->tok, ids->id, ids->n, !skip, &text)) {
        buf_free(&text);
        return api__nomem(c);
    }
    buf_str(&c->out, "{\"prompt\":");
    buf_json(&c->out, buf_cstr(&text), text.len);
    buf_str(&c->out, ",\"content\":");
    buf_json(&c->out, buf_cstr(&text), text.len);
    buf_str(&c->out, "}\n");
    buf_free(&text);
    c->done = true;
    return 0;
}

const struct api_model *api__only_text(const struct api *a)
{
    const struct api_model *m = NULL;
    for (int i = 0; i < a->n_model; i++) {
        if (!a->model[i].text)
            continue;
        if (m)
            return NULL;
        m = &a->model[i];
    }
    return m;
}

/* "model" may be left out when there is only one. */
static int with_model(struct api_call *c, int (*fn)(struct api_call *, struct gen *, json_t *))
{
    static const struct gen_writer none = {.id_prefix = ""};
    json_t *o = api__body(c);
    if (!o)
        return ERR_INVAL;
    struct api_model *m = NULL;
    const struct api_model *only = api__only_text(c->api);
    if (!json_object_get(o, "model") && only &&
        json_object_set_new(o, "model", json_string(only->name)))
        api__nomem(c);
    else
        m = api__get_text_model(c, o);
    struct gen *g = m ? gen_new(c, m, &none) : NULL;
    int rc = g ? fn(c, g, o) : ERR_INVAL;
    json_decref(o);
    return rc;
}

int api_tokenize(struct api_call *c)
{
    return with_model(c, tokenize);
}

int api_detokenize(struct api_call *c)
{
    return with_model(c, detokenize);
}
