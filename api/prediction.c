/* "prediction" of a chat: what the client expects the answer to be, as tokens. It makes the answer faster where it is
 * right (sched/spec.h) and never another one. */
#include <string.h>

#include "api/gen.h"

static int wrong_type(struct api_call *c, const char *what, const char *want, const json_t *v)
{
    return api__bad(c, "prediction", "invalid_type",
                    "Invalid type for '%s': expected %s, but got %s.", what, want,
                    v ? api__json_type(v) : "nothing");
}

/* One part of its text. */
static int add_part(struct api_call *c, const json_t *part, struct buf *text)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *s = json_object_get(part, "text");
    if (!json_is_object(part))
        return wrong_type(c, "prediction.content", "an array of objects", part);
    if (!type || strcmp(type, "text") != 0)
        return api__bad(c, "prediction", "invalid_value",
                        "Invalid 'prediction.content': its parts have the type 'text'.");
    if (!json_is_string(s))
        return wrong_type(c, "prediction.content.text", "a string", s);
    buf_add(text, json_string_value(s), json_string_length(s));
    return 0;
}

static int add_text(struct api_call *c, const json_t *content, struct buf *text)
{
    int rc = 0;
    if (json_is_string(content))
        buf_add(text, json_string_value(content), json_string_length(content));
    else if (!json_is_array(content))
        return wrong_type(c, "prediction.content", "a string or an array", content);
    for (size_t i = 0; !rc && i < json_array_size(content); i++)
        rc = add_part(c, json_array_get(content, i), text);
    return rc;
}

int chat_prediction(struct api_call *c, struct gen *g, const json_t *o)
{
    const json_t *v = json_object_get(o, "prediction");
    const char *type = json_string_value(json_object_get(v, "type"));
    struct buf text = {0};
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_object(v))
        return wrong_type(c, "prediction", "an object", v);
    if (!type || strcmp(type, "content") != 0)
        return api__bad(c, "prediction", "invalid_value",
                        "Invalid 'prediction.type': expected 'content'.");
    int rc = add_text(c, json_object_get(v, "content"), &text);
    if (!rc) {
        rc =
            text.failed ? ERR_NOMEM : tok_encode(g->m->text->tok, text.p, text.len, 0, &g->predict);
        if (rc == ERR_NOMEM)
            api__nomem(c);
        else if (rc)
            api__bad(c, "prediction", "invalid_value", "The prediction cannot be tokenised.");
    }
    buf_free(&text);
    /* An answer is no longer than the context. */
    if (!rc && g->predict.n > (size_t)g->m->n_ctx)
        g->predict.n = (size_t)g->m->n_ctx;
    return rc;
}
