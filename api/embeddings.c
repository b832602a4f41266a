/* POST /v1/embeddings: vectors of texts, as floats or as base64 of little-endian float32. */
#include "api/base64.h"
#include "api/embed.h"

static const char *const known[] = {"input",     "encoding_format", "dimensions",
                                    "normalize", "input_type",      NULL};

static void put_vector(struct buf *b, const struct emb *e, const float *v)
{
    if (e->base64) { /* every machine this runs on is little-endian */
        buf_char(b, '"');
        base64_write(b, v, (size_t)e->dim * sizeof *v);
        buf_char(b, '"');
        return;
    }
    for (int i = 0; i < e->dim; i++) {
        buf_char(b, i ? ',' : '[');
        emb_put_float(b, v[i]);
    }
    buf_char(b, ']');
}

/* A shortened vector is the head of the whole one, scaled to length 1 again. */
static void write_answer(struct emb *e, float *v, struct buf *b)
{
    buf_str(b, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < e->n_row; i++) {
        float *x = v + (size_t)i * (size_t)e->m->encoder.dim;
        if (e->normalise)
            emb_normalise(x, e->dim);
        buf_fmt(b, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        put_vector(b, e, x);
        buf_char(b, '}');
    }
    buf_str(b, "],\"model\":");
    buf_json(b, e->m->name, strlen(e->m->name));
    buf_fmt(b, ",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d}}\n", e->n_prompt,
            e->n_prompt);
}

static int bad_input(struct api_call *c, json_t *v)
{
    return api__bad(c, "input", v ? "invalid_type" : "missing_required_parameter",
                    v ? "Invalid type for 'input': expected a string, an array of strings, of "
                        "token ids, or of arrays of token ids, but got %s."
                      : "Missing required parameter: 'input'.",
                    api__json_type(v));
}

/* A string, an array of strings, of token ids, or of arrays of token ids. */
static int get_input(struct api_call *c, struct emb *e, json_t *o)
{
    json_t *v = json_object_get(o, "input"), *x;
    size_t i;
    if (json_is_null(v))
        v = NULL;
    if (json_is_string(v))
        return emb_add_text(c, e, "input",
                            (struct view){json_string_value(v), json_string_length(v)});
    if (!json_is_array(v))
        return bad_input(c, v);
    if (json_is_integer(json_array_get(v, 0)))
        return emb_add_ids(c, e, "input", v);
    if (emb_check_count(c, "input", json_array_size(v)))
        return ERR_INVAL;
    json_array_foreach(v, i, x)
    {
        char param[32];
        int rc;
        snprintf(param, sizeof param, "input[%zu]", i);
        if (json_typeof(x) != json_typeof(json_array_get(v, 0)))
            return api__bad(c, param, "invalid_type",
                            "Invalid 'input': strings and token ids are mixed.");
        if (json_is_string(x))
            rc = emb_add_text(c, e, param,
                              (struct view){json_string_value(x), json_string_length(x)});
        else if (json_is_array(x))
            rc = emb_add_ids(c, e, param, x);
        else
            rc = bad_input(c, x);
        if (rc)
            return rc;
    }
    return 0;
}

static int parse(struct api_call *c, struct emb *e, json_t *o)
{
    struct view format = {0};
    int64_t dim = e->m->encoder.dim;
    e->normalise = true;
    if (e->m->encoder.n_label)
        return api__refuse(c, 404, "model", "model_not_supported",
                           "This model is a classifier: it makes scores, not vectors. Did you mean "
                           "to use /v1/rerank or /v1/score?");
    if (api__get_str(c, o, "encoding_format", &format) ||
        api__get_int(c, o, "dimensions", (int64_t[2]){1, dim}, &dim) ||
        api__get_bool(c, o, "normalize", &e->normalise))
        return ERR_INVAL;
    if (format.p && !view_is(format, "float") && !view_is(format, "base64"))
        return api__bad(c, "encoding_format", "invalid_value",
                        "Invalid 'encoding_format': expected 'float' or 'base64', but got '%.40s'.",
                        format.p);
    e->base64 = format.p && view_is(format, "base64");
    e->dim = (int32_t)dim;
    return get_input(c, e, o);
}

int api_embeddings(struct api_call *c)
{
    return emb_run(c, known, write_answer, parse);
}
