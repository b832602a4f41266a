/* Stored answers of /v1/responses: GET, DELETE, input_items, cancel. */
#include "api/responses_impl.h"
#include "engine/base/thread.h"

/* The id in the path, and what follows it ("" or "/input_items"). */
static struct view path_id(const struct api_call *c, struct view *rest)
{
    const char *p = c->path + strlen("/v1/responses/");
    size_t n = strcspn(p, "/");
    rest->p = p + n;
    rest->len = strlen(p + n);
    if (rest->len == 1) /* one trailing slash */
        rest->len = 0;
    return (struct view){p, n};
}

static int not_found(struct api_call *c, struct view id)
{
    char text[160];
    snprintf(text, sizeof text, "Response with id '%.*s' not found.",
             id.len > 80 ? 80 : (int)id.len, id.p);
    return api__refuse(c, 404, NULL, NULL, text);
}

/* Fetch it, or end the call. */
static int fetch(struct api_call *c, struct view id, struct response_kept *k)
{
    int rc = response_store_get(c->api->responses, id, c->owner, clock_us(), k);
    if (rc == ERR_NOTFOUND)
        return not_found(c, id);
    return rc ? api__nomem(c) : 0;
}

/* The value of a query parameter, percent signs undecoded; false: it is not there. */
static bool query(const struct api_call *c, const char *key, struct view *out)
{
    size_t n = strlen(key);
    for (const char *p = c->query; p && *p;) {
        size_t len = strcspn(p, "&");
        if (len > n && strncmp(p, key, n) == 0 && p[n] == '=') {
            *out = (struct view){p + n + 1, len - n - 1};
            return true;
        }
        p += len + (p[len] == '&');
    }
    return false;
}

/* ---- input_items ---- */

struct page {
    int limit;
    bool oldest_first;
    struct view after;
};

static int get_page(struct api_call *c, struct page *p)
{
    struct view v;
    *p = (struct page){.limit = 20};
    if (query(c, "limit", &v)) {
        p->limit = 0;
        for (size_t i = 0; i < v.len && i < 4; i++)
            p->limit = v.p[i] >= '0' && v.p[i] <= '9' ? p->limit * 10 + (v.p[i] - '0') : 1000;
        if (p->limit < 1 || p->limit > 100 || v.len > 3)
            return talk_bad(c, "limit", "invalid_value", "expected 1 to 100.");
    }
    if (query(c, "order", &v)) {
        p->oldest_first = view_is(v, "asc");
        if (!p->oldest_first && !view_is(v, "desc"))
            return talk_bad(c, "order", "invalid_value", "expected 'asc' or 'desc'.");
    }
    query(c, "after", &p->after);
    return 0;
}

static const char *id_at(const json_t *list, size_t i)
{
    const char *s = json_string_value(json_object_get(json_array_get(list, i), "id"));
    return s ? s : "";
}

/* The items from `all` that the page shows, in its order. *more: others follow. NULL without memory. */
static json_t *pick(const json_t *all, const struct page *p, bool *found, bool *more)
{
    json_t *out = json_array();
    size_t n = json_array_size(all);
    *found = !p->after.len;
    *more = false;
    for (size_t k = 0; out && k < n; k++) {
        size_t i = p->oldest_first ? k : n - 1 - k;
        if (!*found) {
            *found = view_is(p->after, id_at(all, i));
        } else if (json_array_size(out) == (size_t)p->limit) {
            *more = true;
        } else if (json_array_append(out, json_array_get(all, i))) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

static int list_items(struct api_call *c, struct view id)
{
    struct response_kept k = {0};
    struct page p;
    json_t *all = NULL, *out = NULL;
    bool found = false, more = false;
    int rc = get_page(c, &p) || fetch(c, id, &k) ? ERR_INVAL : 0;
    if (!rc) {
        if (!api__json_load(&all, (struct view){k.items.p, k.items.len}, 0, NULL))
            out = pick(all, &p, &found, &more);
        rc = out ? 0 : api__nomem(c);
    }
    if (!rc && !found)
        rc = talk_bad(c, "after", "invalid_value", "there is no item of this id.");
    char *text = rc ? NULL : json_dumps(out, JSON_COMPACT);
    if (!rc && !text)
        rc = api__nomem(c);
    if (!rc) {
        size_t n = json_array_size(out);
        buf_fmt(&c->out, "{\"object\":\"list\",\"data\":%s,\"first_id\":", text);
        buf_json(&c->out, id_at(out, 0), strlen(id_at(out, 0)));
        buf_str(&c->out, ",\"last_id\":");
        buf_json(&c->out, id_at(out, n ? n - 1 : 0), strlen(id_at(out, n ? n - 1 : 0)));
        buf_fmt(&c->out, ",\"has_more\":%s}\n", more ? "true" : "false");
        c->done = true;
    }
    free(text);
    json_decref(all);
    json_decref(out);
    response_kept_free(&k);
    return rc;
}

/* ---- endpoints ---- */

int api_response_get(struct api_call *c)
{
    struct response_kept k = {0};
    struct view rest, id = path_id(c, &rest), v;
    if (view_is(rest, "/input_items"))
        return list_items(c, id);
    if (rest.len)
        return api__refuse(c, 404, NULL, NULL, "There is nothing at this address.");
    if (query(c, "stream", &v) && view_is(v, "true"))
        return talk_bad(c, "stream", "unsupported_value",
                        "only answers of background requests can be streamed again.");
    int rc = fetch(c, id, &k);
    if (!rc) {
        buf_add(&c->out, k.response.p, k.response.len);
        buf_char(&c->out, '\n');
        c->done = true;
    }
    response_kept_free(&k);
    return rc;
}

int api_response_delete(struct api_call *c)
{
    struct view rest, id = path_id(c, &rest);
    if (rest.len)
        return api__refuse(c, 404, NULL, NULL, "There is nothing at this address.");
    if (response_store_drop(c->api->responses, id, c->owner, clock_us()))
        return not_found(c, id);
    buf_str(&c->out, "{\"id\":");
    buf_json(&c->out, id.p, id.len);
    buf_str(&c->out, ",\"object\":\"response\",\"deleted\":true}\n");
    c->done = true;
    return 0;
}

/* POST /v1/responses/ID/cancel: no answer here is made in the background. */
int api_response_cancel(struct api_call *c)
{
    struct response_kept k = {0};
    struct view rest, id = path_id(c, &rest);
    if (!view_is(rest, "/cancel"))
        return api__refuse(c, 404, NULL, NULL, "There is nothing at this address.");
    int rc = fetch(c, id, &k);
    response_kept_free(&k);
    return rc ? rc
              : talk_bad(c, "background", "unsupported_value",
                         "only answers of background requests can be cancelled; to stop a running "
                         "one, close its connection.");
}
