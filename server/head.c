/* What can be judged from a request's head: framing that MHD lets through, limits, route, key, media type, CORS
 * preflight. The first finding wins; it is answered once the body has been swallowed, so that the client sees it. */
#include "server/srv.h"

#include <stdarg.h>
#include <strings.h>

#include "engine/base/hash.h"

void srv_refuse(struct xchg *x, int code, int status, const char *fmt, ...)
{
    if (x->refuse.code)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->refuse.text, sizeof(x->refuse.text), fmt, ap);
    va_end(ap);
    x->refuse.code = code;
    x->refuse.status = status;
}

/* Framing errors: what follows on the connection cannot be trusted. */
static void refuse_now(struct xchg *x, int code, int status, const char *text)
{
    if (!x->refuse.code)
        srv_refuse(x, code, status, "%s", text);
    x->refuse.now = true;
}

const char *srv_head_value(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

struct counts {
    int fields, length, coding, host;
    bool bad_name, bad_coding;
};

static enum MHD_Result count(void *arg, enum MHD_ValueKind kind, const char *key, size_t key_n,
                             const char *value, size_t value_n)
{
    struct counts *n = arg;
    (void)kind;
    n->fields++;
    n->length += strcasecmp(key, "content-length") == 0;
    n->host += strcasecmp(key, "host") == 0;
    if (strcasecmp(key, "transfer-encoding") == 0) {
        n->coding++;
        n->bad_coding |= !value || strcasecmp(value, "chunked") != 0;
    }
    n->bad_name |= key_n == 0;
    for (size_t i = 0; i < key_n; i++)
        n->bad_name |= (unsigned char)key[i] <= ' ' || (unsigned char)key[i] >= 0x7f;
    for (size_t i = 0; value && i < value_n; i++)
        n->bad_name |= value[i] == 0 || value[i] == '\r' || value[i] == '\n';
    return MHD_YES;
}

/* MHD takes the first of two lengths and lets a length stand beside chunked coding: both are ways to make two
 * parsers see two different requests. */
static void check_framing(struct xchg *x, struct MHD_Connection *c, const char *version)
{
    struct counts n = {0};
    MHD_get_connection_values_n(c, MHD_HEADER_KIND, count, &n);
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (n.bad_name)
        refuse_now(x, ERR_PARSE, 400, "A header field is malformed.");
    else if (n.length > 1)
        refuse_now(x, ERR_PARSE, 400, "The request has more than one Content-Length.");
    else if (n.coding && n.length)
        refuse_now(x, ERR_PARSE, 400, "The request has both Content-Length and Transfer-Encoding.");
    else if (n.coding > 1 || n.bad_coding)
        refuse_now(x, ERR_UNSUPPORTED, 501, "Only the transfer coding 'chunked' is supported.");
    else if (n.host != 1 && (n.host > 1 || strcmp(version, "HTTP/1.1") == 0))
        refuse_now(x, ERR_PARSE, 400, "The request must have one Host header.");
    else if (n.fields > x->s->conf->max_head_fields)
        refuse_now(x, ERR_LIMIT, 431, "The request has too many header fields.");
    else if (i && (int64_t)i->header_size > x->s->conf->max_head_bytes)
        refuse_now(x, ERR_LIMIT, 431, "The request head is too large.");
}

static bool id_sane(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    if (!n || n > SRV_ID_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z') ||
              (s[i] >= 'A' && s[i] <= 'Z') || strchr("-_.:", s[i])))
            return false;
    return true;
}

static void set_id(struct xchg *x, const char *given)
{
    if (id_sane(given)) {
        snprintf(x->id, sizeof(x->id), "%s", given);
        return;
    }
    unsigned char r[16];
    random_bytes(r, sizeof(r));
    int n = snprintf(x->id, sizeof(x->id), "req-");
    for (size_t i = 0; i < sizeof(r); i++)
        n += snprintf(x->id + n, sizeof(x->id) - (size_t)n, "%02x", r[i]);
}

static void find_route(struct xchg *x, struct MHD_Connection *c)
{
    const char *allow = NULL;
    if (strcmp(x->method, "OPTIONS") == 0 && x->s->conf->cors_allow_origin.n &&
        srv_head_value(c, "Access-Control-Request-Method")) {
        x->preflight = true;
        return;
    }
    x->call.route = api_route_find(x->method, x->path, &allow);
    if (x->call.route && !x->s->conf->metrics && strcmp(x->call.route->path, "/metrics") == 0)
        x->call.route = NULL;
    if (x->call.route && !x->s->conf->playground && x->call.route->flags & API_PAGE)
        x->call.route = NULL;
    if (x->call.route)
        return;
    if (allow) {
        srv_refuse(x, ERR_METHOD, 0, "Method %.20s is not allowed for %.100s (allowed: %.60s).",
                   x->method, x->path, allow);
        snprintf(x->refuse.allow, sizeof(x->refuse.allow), "%s", allow);
    } else {
        srv_refuse(x, ERR_NOTFOUND, 0, "There is no %.20s %.120s.", x->method, x->path);
    }
}

static bool media_ok(const char *type)
{
    static const char *const known[] = {"application/json", "multipart/form-data"};
    for (int i = 0; type && i < 2; i++) {
        size_t n = strlen(known[i]);
        if (strncasecmp(type, known[i], n) == 0 && (!type[n] || strchr("; \t", type[n])))
            return true;
    }
    return !type;
}

static void check_body(struct xchg *x, struct MHD_Connection *c)
{
    const char *coding = srv_head_value(c, "Content-Encoding");
    const char *type = srv_head_value(c, "Content-Type");
    const char *length = srv_head_value(c, "Content-Length");
    bool sound = x->call.route && x->call.route->flags & API_AUDIO;
    int64_t max = x->s->conf->max_body_bytes;
    if (sound && x->s->conf->max_audio_bytes > max)
        max = x->s->conf->max_audio_bytes;
    x->body.limit = (size_t)max;
    if (coding && strcasecmp(coding, "identity") != 0)
        srv_refuse(x, ERR_MEDIA, 0,
                   "Content-Encoding '%.40s' is not supported; send the body plain.", coding);
    if (x->call.route && x->call.route->flags & API_BODY && !media_ok(type))
        srv_refuse(x, ERR_MEDIA, 0, "Content-Type '%.60s' is not supported; use application/json.",
                   type);
    long long n = length ? strtoll(length, NULL, 10) : 0;
    if (n > max)
        srv_refuse(x, ERR_TOO_LARGE, 0, "The request body of %lld bytes is larger than %s (%lld).",
                   n, sound ? "max-audio-bytes" : "max-body-bytes", (long long)max);
    /* A client that waits for "100 Continue" learns the refusal before it sends; a very long body is not read. */
    if (x->refuse.code && (srv_head_value(c, "Expect") || n > (64 << 20)))
        x->refuse.now = true;
}

/* A header's value for the life of the exchange; NULL when it is absent. */
static char *copy_value(struct MHD_Connection *c, const char *name)
{
    const char *v = srv_head_value(c, name);
    size_t n = v ? strlen(v) + 1 : 0;
    char *copy = n ? malloc(n) : NULL;
    return copy ? memcpy(copy, v, n) : NULL;
}

void srv_head_check(struct xchg *x, struct MHD_Connection *c, const char *version)
{
    set_id(x, srv_head_value(c, "X-Request-Id"));
    check_framing(x, c, version);
    find_route(x, c);
    bool open = x->preflight || (x->call.route && !(x->call.route->flags & API_KEY));
    if (x->call.route && !open &&
        !auth_ok(&x->s->auth, srv_head_value(c, "Authorization"), srv_head_value(c, "X-Api-Key"),
                 &x->call.owner))
        srv_refuse(x, ERR_AUTH, 0,
                   srv_head_value(c, "Authorization")
                       ? "Incorrect API key provided."
                       : "You did not provide an API key: send 'Authorization: Bearer KEY'.");
    check_body(x, c);
    const char *proto = srv_head_value(c, "X-Forwarded-Proto");
    x->https = *x->s->conf->tls_cert || (proto && strcasecmp(proto, "https") == 0);
    x->content_type = copy_value(c, "Content-Type");
    x->host = copy_value(c, "Host");
    x->if_none_match = copy_value(c, "If-None-Match");
}
