/* The route table and a call's life. */
#include <stdlib.h>

#include "api/api_impl.h"

static const struct api_route routes[] = {
#define ROUTE(m, p, f, fn) {m, p, f, fn},
#include "api/routes.def"
#undef ROUTE
};
#define N_ROUTES (sizeof routes / sizeof *routes)

static bool path_matches(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    if (pattern[n - 1] == '*')
        return strncmp(pattern, path, n - 1) == 0 && path[n - 1];
    if (strncmp(pattern, path, n) != 0)
        return false;
    return path[n] == 0 || (path[n] == '/' && path[n + 1] == 0); /* one trailing slash */
}

const struct api_route *api_route_find(const char *method, const char *path, const char **allow)
{
    static const char *const lists[] = {
        NULL,     "GET, HEAD",         "POST",         "GET, HEAD, POST",
        "DELETE", "GET, HEAD, DELETE", "POST, DELETE", "GET, HEAD, POST, DELETE"};
    unsigned found = 0;
    bool head = strcmp(method, "HEAD") == 0;
    for (size_t i = 0; i < N_ROUTES; i++) {
        const struct api_route *r = &routes[i];
        if (!path_matches(r->path, path))
            continue;
        if (strcmp(r->method, method) == 0 || (head && strcmp(r->method, "GET") == 0))
            return r;
        found |= *r->method == 'G' ? 1 : *r->method == 'P' ? 2 : 4;
    }
    *allow = lists[found];
    return NULL;
}

bool api_wants_pool(const struct api_call *c)
{
    /* A word of these in a text costs a trip to the pool, nothing else. */
    static const char *const words[] = {
        "response_format", "structured_outputs", "guided_", "\"grammar\"",
        "json_schema",     "\"regex\"",          "ebnf",    "\"tools\"",
        "output_format",   "\"format\""};
    if (c->route->flags & API_POOL)
        return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (c->body_len && memmem(c->body, c->body_len, words[i], strlen(words[i])))
            return true;
    return false;
}

/* Allocation failures while an answer is written show up as a failed buffer. A stream keeps it, with what was not
 * sent yet: the server sends that and then cuts the connection, so that nobody takes it for the end. */
void api__check_out(struct api_call *c)
{
    if (!c->out.failed)
        return;
    c->close = true;
    c->done = c->streamed;
    if (!c->streamed)
        api__nomem(c);
}

void api_prepare(struct api_call *c)
{
    c->status = 200;
    c->out_type = "application/json";
    c->route->prepare(c);
    api__check_out(c);
    CHECK(c->done || c->n_req > 0);
}

void api_event(struct api_call *c, int req, const struct event *ev)
{
    if (c->done) {
        event_drop(ev);
        return;
    }
    c->on_event(c, req, ev);
    api__check_out(c);
}

void api_call_free(struct api_call *c)
{
    if (c->free_priv)
        c->free_priv(c);
    c->priv = NULL;
    for (int i = 0; i < c->n_req; i++)
        request_free(c->req[i]);
    free(c->req);
    free(c->req_id);
    free(c->cmd);
    c->req = NULL;
    c->req_id = NULL;
    c->cmd = NULL;
    c->n_req = c->n_cmd = c->cap_cmd = 0;
    buf_free(&c->out);
}
