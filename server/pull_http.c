/* HTTP downloads for `stepd pull`: redirects followed here, hop by hop, so that a token never leaves the
 * origin it was meant for and the hub's headers on the redirect itself are seen. See pull_impl.h. */
#include "server/pull_impl.h"

#include "server/models.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

enum {
    HOPS_MAX = 8,
    TRIES_MAX = 5, /* in a row without one new byte */
    TEXT_MAX = 16 << 20,
    STALL_S = 60,
    CONNECT_S = 30,
};

/* One download: state over its hops and tries. */
struct xfer {
    CURL *curl;
    struct pull_file *f; /* NULL: into text */
    struct buf *text;
    struct err *e;
    int64_t have;    /* bytes in the part when this request began */
    int64_t best;    /* most bytes that the part ever had */
    int64_t got;     /* body bytes of this request */
    int64_t from;    /* start of a 206 answer; -1 = not told */
    int64_t whole;   /* size told by Content-Range; -1 = not told */
    char etag[200];  /* strong validator of this answer */
    char linked[65]; /* hub: sha256 of the file */
    int64_t linked_size;
    bool broken; /* our side failed: e is set */
    char reason[CURL_ERROR_SIZE];
};

static bool hex64(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr("0123456789abcdef", s[i]))
            return false;
    return n == 64;
}

/* Value of header `name` in the line, unquoted and trimmed. */
static bool header_is(const char *line, size_t n, const char *name, struct view *out)
{
    size_t k = strlen(name);
    if (n <= k || strncasecmp(line, name, k) != 0 || line[k] != ':')
        return false;
    const char *p = line + k + 1, *end = line + n;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && strchr("\r\n \t", end[-1]))
        end--;
    *out = (struct view){p, (size_t)(end - p)};
    return true;
}

static size_t on_header(char *line, size_t one, size_t n, void *user)
{
    struct xfer *x = user;
    struct view v;
    char num[64];
    (void)one;
    if (n > 5 && memcmp(line, "HTTP/", 5) == 0) { /* a new answer (100-continue, proxy) */
        x->etag[0] = 0;
        x->from = x->whole = -1;
    } else if (header_is(line, n, "etag", &v)) {
        /* Weak validators ("W/...") must not be used for ranges. */
        if (v.len < sizeof x->etag && v.len && *v.p == '"')
            snprintf(x->etag, sizeof x->etag, "%.*s", (int)v.len, v.p);
    } else if (header_is(line, n, "x-linked-etag", &v)) {
        if (v.len >= 2 && *v.p == '"')
            v = (struct view){v.p + 1, v.len - 2};
        if (hex64(v.p, v.len))
            snprintf(x->linked, sizeof x->linked, "%.*s", (int)v.len, v.p);
    } else if (header_is(line, n, "x-linked-size", &v) && v.len < sizeof num) {
        snprintf(num, sizeof num, "%.*s", (int)v.len, v.p);
        x->linked_size = strtoll(num, NULL, 10);
    } else if (header_is(line, n, "content-range", &v) && v.len < sizeof num) {
        long long from = -1, to = -1, whole = -1;
        snprintf(num, sizeof num, "%.*s", (int)v.len, v.p);
        if (sscanf(num, "bytes %lld-%lld/%lld", &from, &to, &whole) < 2)
            sscanf(num, "bytes */%lld", &whole);
        x->from = from;
        x->whole = whole;
    }
    return n;
}

static size_t text_body(struct xfer *x, const char *p, size_t n)
{
    buf_add(x->text, p, n);
    if (!x->text->failed)
        return n;
    err_set(x->e, ERR_LIMIT, "the answer is over %d bytes", TEXT_MAX);
    x->broken = true;
    return 0;
}

/* First bytes of a file's body: resume, or start again when the server sends all of it. */
static int body_begins(struct xfer *x, long status)
{
    curl_off_t length = -1;
    if (status == 200 && x->have) {
        int rc = pull__file_cut(x->f, 0, x->e);
        x->have = 0;
        if (rc)
            return rc;
    }
    if (status == 206 && x->from != x->have)
        return err_set(x->e, ERR_IO, "the server answered with another range than asked for");
    curl_easy_getinfo(x->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    int64_t total = x->f->size ? x->f->size : length >= 0 ? x->have + length : 0;
    char tag[PATH_MAX + 8];
    snprintf(tag, sizeof tag, "%s.etag", x->f->part);
    int fd = x->etag[0] ? open(tag, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) {
        dprintf(fd, "%s", x->etag);
        close(fd);
    } else {
        unlink(tag); /* no validator: without a sum, what came so far cannot be continued */
    }
    x->f->bar->total = total;
    if (x->f->bar->first < 0)
        x->f->bar->first = x->have;
    return total ? pull__file_room(x->f, total - x->have, x->e) : 0;
}

static size_t on_body(char *p, size_t one, size_t n, void *user)
{
    struct xfer *x = user;
    long status = 0;
    (void)one;
    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206)
        return n; /* an error's page */
    if (x->text)
        return text_body(x, p, n);
    if ((x->got == 0 && body_begins(x, status)) || pull__file_write(x->f, p, n, x->e)) {
        x->broken = true;
        return 0;
    }
    x->got += (int64_t)n;
    pull__bar_set(x->f->bar, x->have + x->got);
    return n;
}

bool pull__same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *ua = curl_url(), *ub = curl_url();
    bool same = ua && ub && !curl_url_set(ua, CURLUPART_URL, a, 0) &&
                !curl_url_set(ub, CURLUPART_URL, b, 0);
    for (size_t i = 0; same && i < sizeof parts / sizeof *parts; i++) {
        char *pa = NULL, *pb = NULL;
        same = !curl_url_get(ua, parts[i], &pa, CURLU_DEFAULT_PORT) &&
               !curl_url_get(ub, parts[i], &pb, CURLU_DEFAULT_PORT) && strcasecmp(pa, pb) == 0;
        curl_free(pa);
        curl_free(pb);
    }
    curl_url_cleanup(ua);
    curl_url_cleanup(ub);
    return same;
}

/* ETag that was kept beside the part, "" if none. */
static void kept_etag(const struct pull_file *f, char *out, size_t n)
{
    char tag[PATH_MAX + 8];
    snprintf(tag, sizeof tag, "%s.etag", f->part);
    int fd = open(tag, O_RDONLY | O_CLOEXEC);
    ssize_t k = fd >= 0 ? read(fd, out, n - 1) : 0;
    if (fd >= 0)
        close(fd);
    out[k > 0 ? k : 0] = 0;
}

static void set_common(struct xfer *x)
{
    CURL *c = x->curl;
    const char *ca = getenv("SSL_CERT_FILE");
    curl_easy_reset(c);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "stepd/" STEPD_VERSION);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, x->reason);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    if (ca && *ca)
        curl_easy_setopt(c, CURLOPT_CAINFO, ca);
}

/* One request to one URL. */
static CURLcode request(struct xfer *x, const char *url, const char *token)
{
    struct curl_slist *h = NULL;
    char line[1200], range[32], etag[200];
    set_common(x);
    x->got = 0;
    x->reason[0] = 0;
    if (x->text)
        buf_clear(x->text);
    x->have = x->f ? pull__file_have(x->f) : 0;
    curl_easy_setopt(x->curl, CURLOPT_URL, url);
    if (token && srv_path_fmt(line, sizeof line, NULL, "Authorization: Bearer %s", token) == 0)
        h = curl_slist_append(h, line);
    if (x->have) {
        snprintf(range, sizeof range, "%lld-", (long long)x->have);
        curl_easy_setopt(x->curl, CURLOPT_RANGE, range);
        kept_etag(x->f, etag, sizeof etag);
        if (etag[0] && srv_path_fmt(line, sizeof line, NULL, "If-Range: %s", etag) == 0)
            h = curl_slist_append(h, line);
    }
    curl_easy_setopt(x->curl, CURLOPT_HTTPHEADER, h);
    CURLcode rc = curl_easy_perform(x->curl);
    curl_slist_free_all(h);
    return rc;
}

/* The URL that a 3xx answer leads to, copied to `next`; a step down from TLS is refused. */
static int redirect(struct xfer *x, const char *url, char *next, size_t n)
{
    char *to = NULL;
    curl_easy_getinfo(x->curl, CURLINFO_REDIRECT_URL, &to);
    if (!to)
        return err_set(x->e, ERR_IO, "a redirect without a place to go");
    if (strncasecmp(url, "https:", 6) == 0 && strncasecmp(to, "https:", 6) != 0)
        return err_set(x->e, ERR_IO, "a redirect from https to '%.60s' was refused", to);
    return srv_path_fmt(next, n, x->e, "%s", to);
}

static int status_error(struct xfer *x, long status, const char *token)
{
    switch (status) {
    case 401:
    case 403:
        return err_set(x->e, ERR_AUTH, "HTTP %ld: %s", status,
                       token ? "the token (HF_TOKEN) has no access to it"
                             : "access is restricted; set HF_TOKEN if it is a gated model");
    case 404:
    case 410:
        return err_set(x->e, ERR_NOTFOUND, "HTTP %ld: not found", status);
    case 408:
    case 429:
        return err_set(x->e, ERR_AGAIN, "HTTP %ld: the server is busy", status);
    default:
        return err_set(x->e, status >= 500 ? ERR_AGAIN : ERR_IO, "HTTP %ld", status);
    }
}

/* ERR_AGAIN for what a later try may mend. */
static int curl_error(struct xfer *x, CURLcode c)
{
    const char *why = x->reason[0] ? x->reason : curl_easy_strerror(c);
    switch (c) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return err_set(x->e, ERR_IO, "%s (no network?)", why);
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
        return err_set(x->e, ERR_AGAIN, "%s", why);
    default:
        return err_set(x->e, ERR_IO, "%s", why);
    }
}

/* 416: the part is complete, or is no part of this file. */
static int range_refused(struct xfer *x)
{
    if (x->f && x->have && (x->whole == x->have || x->f->size == x->have))
        return 0;
    if (x->f && x->have && pull__file_cut(x->f, 0, x->e) == 0)
        return err_set(x->e, ERR_AGAIN, "the server does not know the range asked for");
    return err_set(x->e, ERR_IO, "HTTP 416");
}

/* Follow url to its end once. */
static int attempt(struct xfer *x, const char *first, const char *token)
{
    char url[4096], next[4096];
    int rc = srv_path_fmt(url, sizeof url, x->e, "%s", first);
    for (int hop = 0; !rc && hop < HOPS_MAX; hop++) {
        long status = 0;
        CURLcode c = request(x, url, pull__same_origin(first, url) ? token : NULL);
        curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &status);
        if (x->f && x->linked[0] && !x->f->sha256[0])
            memcpy(x->f->sha256, x->linked, sizeof x->linked);
        if (x->f && x->linked_size > 0 && !x->f->size)
            x->f->size = x->linked_size;
        if (x->broken)
            return x->e->code;
        if (c != CURLE_OK)
            return curl_error(x, c);
        if (status == 200 && x->f && !x->got && x->have) /* an empty file after all */
            return pull__file_cut(x->f, 0, x->e);
        if (status == 200 || status == 206)
            return 0;
        if (status == 416)
            return range_refused(x);
        if (status < 300 || status >= 400)
            return status_error(x, status, token);
        rc = redirect(x, url, next, sizeof next);
        memcpy(url, next, rc ? 0 : sizeof url);
    }
    return rc ? rc : err_set(x->e, ERR_IO, "more than %d redirects", HOPS_MAX);
}

static int with_retries(struct xfer *x, const char *url, const char *token)
{
    int rc = ERR_INTERNAL;
    for (int left = TRIES_MAX; left > 0; left--) {
        rc = attempt(x, url, token);
        if (rc != ERR_AGAIN)
            return rc;
        /* New bytes: the line is bad, not dead. Bytes that came before do not count, or a server that
         * always begins anew and always breaks off would be asked for ever. */
        if (x->f && x->have + x->got > x->best) {
            x->best = x->have + x->got;
            left = TRIES_MAX;
        }
        if (left > 1)
            usleep(100000u << 2 * (TRIES_MAX - left)); /* 0.1, 0.4, 1.6, 6.4 s */
    }
    x->e->code = ERR_IO;
    return err_prefix(x->e, "gave up after %d tries", TRIES_MAX);
}

static int run(struct xfer *x, const char *url, const char *token, struct err *e)
{
    x->e = e;
    x->from = x->whole = -1;
    x->curl = curl_easy_init();
    if (!x->curl)
        return err_set(e, ERR_NOMEM, "no memory for a transfer");
    int rc = with_retries(x, url, token);
    if (rc)
        err_prefix(e, "%.90s", url);
    curl_easy_cleanup(x->curl);
    return rc;
}

int pull__http_file(struct pull_file *f, const char *url, const char *token, struct err *e)
{
    struct xfer x = {.f = f};
    char etag[200], tag[PATH_MAX + 8];
    /* What came so far may be continued when a sum will judge the whole, or a validator guards it. */
    kept_etag(f, etag, sizeof etag);
    int64_t have = pull__file_have(f);
    if (have && ((!f->sha256[0] && !etag[0]) || (f->size && have > f->size))) {
        int rc = pull__file_cut(f, 0, e);
        if (rc)
            return rc;
    }
    if (f->size && have == f->size)
        return 0;
    f->bar->first = -1; /* set when the first byte comes */
    int rc = run(&x, url, token, e);
    pull__bar_end(f->bar);
    snprintf(tag, sizeof tag, "%s.etag", f->part);
    if (!rc)
        unlink(tag);
    return rc;
}

int pull__http_text(const char *url, const char *token, struct buf *out, struct err *e)
{
    struct xfer x = {.text = out};
    out->limit = TEXT_MAX;
    return run(&x, url, token, e);
}
