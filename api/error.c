/* Errors: the one table from ERR_* to HTTP status and OpenAI error type, and the error body. */
#include <stdarg.h>

#include "api/api_impl.h"

static const struct {
    int code, status;
    const char *type, *openai_code;
} table[] = {
    {ERR_NOMEM, 503, "server_error", "out_of_memory"},
    {ERR_INVAL, 400, "invalid_request_error", NULL},
    {ERR_PARSE, 400, "invalid_request_error", NULL},
    {ERR_IO, 500, "server_error", NULL},
    {ERR_NOTFOUND, 404, "invalid_request_error", NULL},
    {ERR_UNSUPPORTED, 400, "invalid_request_error", "unsupported_value"},
    {ERR_LIMIT, 400, "invalid_request_error", NULL},
    {ERR_FULL, 429, "rate_limit_error", "queue_full"},
    {ERR_TIMEOUT, 503, "server_error", "timeout"},
    {ERR_CANCELLED, 499, "server_error", "cancelled"},
    {ERR_DRAINING, 503, "server_error", "shutting_down"},
    {ERR_DEVICE, 503, "server_error", "engine_failed"},
    {ERR_AUTH, 401, "invalid_request_error", "invalid_api_key"},
    {ERR_METHOD, 405, "invalid_request_error", "method_not_supported"},
    {ERR_TOO_LARGE, 413, "invalid_request_error", "request_too_large"},
    {ERR_MEDIA, 415, "invalid_request_error", "unsupported_content_type"},
    {ERR_CONTEXT, 400, "invalid_request_error", "context_length_exceeded"},
    {ERR_AGAIN, 503, "server_error", "model_loading"},
    {ERR_INTERNAL, 500, "server_error", "internal_error"},
};

static size_t row_of(int code)
{
    size_t n = sizeof table / sizeof *table;
    for (size_t i = 0; i < n; i++)
        if (table[i].code == code)
            return i;
    return n - 1;
}

int api_status(int code)
{
    return table[row_of(code)].status;
}

static void json_or_null(struct buf *b, const char *s)
{
    if (s)
        buf_json(b, s, strlen(s));
    else
        buf_str(b, "null");
}

void api__error_body(struct buf *b, const char *type, const char *param, const char *code,
                     const char *text)
{
    buf_str(b, "{\"error\":{\"message\":");
    buf_json(b, text, strlen(text));
    buf_str(b, ",\"type\":");
    json_or_null(b, type);
    buf_str(b, ",\"param\":");
    json_or_null(b, param);
    buf_str(b, ",\"code\":");
    json_or_null(b, code);
    buf_str(b, "}}");
}

void api__header(struct api_call *c, const char *name, const char *fmt, ...)
{
    if (c->n_header >= (int)(sizeof c->header / sizeof *c->header))
        return;
    struct api_header *h = &c->header[c->n_header++];
    h->name = name;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h->value, sizeof h->value, fmt, ap);
    va_end(ap);
    for (char *p = h->value; *p; p++) /* a client's text must not end the header */
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = '?';
}

/* Anthropic's names of what went wrong. */
static const char *messages_type(int status, const char *code)
{
    if (code && strcmp(code, "timeout") == 0)
        return "timeout_error";
    static const struct {
        int status;
        const char *type;
    } names[] = {{401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},      {408, "timeout_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"},
                 {503, "overloaded_error"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].status == status)
            return names[i].type;
    return status >= 500 ? "api_error" : "invalid_request_error";
}

static void put_body(struct api_call *c, const struct api_error *x)
{
    struct buf *b = &c->out;
    if (!c->route || !(c->route->flags & API_MESSAGES)) {
        api__error_body(b, x->type, x->param, x->code, x->text);
        return;
    }
    buf_fmt(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
            messages_type(x->status, x->code));
    buf_json(b, x->text, strlen(x->text));
    buf_str(b, "},\"request_id\":");
    json_or_null(b, c->request_id);
    buf_char(b, '}');
}

/* An error after the first byte can only be more frames. */
static void end_stream(struct api_call *c, const struct api_error *x)
{
    if (c->on_fail) {
        c->on_fail(c, x);
    } else {
        buf_str(&c->out, c->route->flags & API_MESSAGES ? "event: error\ndata: " : "data: ");
        put_body(c, x);
        buf_str(&c->out, "\n\n");
    }
    c->done = true;
}

static void end_call(struct api_call *c, const struct api_error *x)
{
    snprintf(c->error_code, sizeof c->error_code, "%s", x->code ? x->code : x->type);
    if (c->stream && c->streamed) {
        end_stream(c, x);
        c->close |= c->out.failed;
        return;
    }
    buf_clear(&c->out);
    c->stream = false;
    c->status = x->status;
    c->out_type = "application/json";
    put_body(c, x);
    buf_char(&c->out, '\n');
    c->done = true;
}

/* `text` with 'from' in quotes replaced by 'to', into out. */
static void say_name(char *out, size_t cap, const char *text, const char *from, const char *to)
{
    size_t n = 0, len = strlen(from);
    while (*text && n + 1 < cap) {
        out[n++] = *text++;
        if (text[-1] != '\'' || strncmp(text, from, len) != 0 || text[len] != '\'')
            continue;
        int k = snprintf(out + n, cap - n, "%s", to);
        n += (size_t)k < cap - n ? (size_t)k : cap - n - 1;
        text += len;
    }
    out[n] = 0;
}

int api__refuse(struct api_call *c, int status, const char *param, const char *code,
                const char *text)
{
    const char *type = status >= 500 ? "server_error" : "invalid_request_error";
    char name[192], said[1200];
    if (c->rename && param) {
        snprintf(name, sizeof name, "%s", param);
        c->rename(c, name, sizeof name);
        say_name(said, sizeof said, text, param, name);
        param = name;
        text = said;
    }
    end_call(c, &(struct api_error){status, type, param, code, text});
    return ERR_INVAL;
}

int api__bad(struct api_call *c, const char *param, const char *code, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return api__refuse(c, 400, param, code, text);
}

void api__fail_event(struct api_call *c, const struct event *ev)
{
    api_fail(c, ev->err.code, NULL, ev->err.text,
             ev->err.code == ERR_TIMEOUT || ev->err.code == ERR_DRAINING ? 1 : 0);
}

int api__nomem(struct api_call *c)
{
    return api__refuse(c, 503, NULL, "out_of_memory", "Not enough memory for this request.");
}

struct view api_out_failed(struct api_call *c)
{
    static const char messages[] = "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                                   "\"message\":\"Not enough memory for "
                                   "this answer.\"}}\n";
    static const char body[] =
        "{\"error\":{\"message\":\"Not enough memory for this answer.\",\"type\":\"server_error\","
        "\"param\":null,\"code\":\"out_of_memory\"}}\n";
    c->status = api_status(ERR_NOMEM);
    c->out_type = "application/json";
    snprintf(c->error_code, sizeof c->error_code, "out_of_memory");
    buf_free(&c->out);
    if (c->route && c->route->flags & API_MESSAGES)
        return (struct view){messages, sizeof messages - 1};
    return (struct view){body, sizeof body - 1};
}

void api_fail(struct api_call *c, int code, const char *param, const char *text, int retry_after_s)
{
    size_t i = row_of(code);
    if (c->done)
        return;
    if (retry_after_s <= 0 && (table[i].status == 429 || table[i].status == 503))
        retry_after_s = 1;
    if (retry_after_s > 0)
        api__header(c, "Retry-After", "%d", retry_after_s);
    if (code == ERR_AUTH)
        api__header(c, "WWW-Authenticate", "Bearer");
    end_call(
        c, &(struct api_error){table[i].status, table[i].type, param, table[i].openai_code, text});
}
