/* Connections of the load generator: one state machine each, on one uv loop. HTTP/1.1 with keep-alive, chunked or
 * sized bodies, SSE frames. A connection that breaks is opened again for its next request. */
#include <netdb.h>
#include <stdlib.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "server/bench.h"

struct bench_client {
    struct bench *b;
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    struct buf req, in, body; /* request; raw bytes; decoded body not yet split into frames */
    bool open, head_done, chunked, finished;
    bool last_here;    /* the server closes this connection after the answer */
    bool used;         /* an answer has come over this connection */
    int64_t body_left; /* sized body: bytes to come; -1 = until close */
    struct buf talk,
        said; /* messages of the conversation so far; the answer that is coming, as JSON has it */
    int turn;
    int at; /* index of the request in flight, -1 = idle */
};

static int64_t now_us(void)
{
    return (int64_t)(uv_hrtime() / 1000);
}

static void start_next(struct bench_client *c);
static void connect_client(struct bench_client *c);

static void note_error(struct bench *b, const char *what, const char *detail)
{
    if (!b->error[0])
        snprintf(b->error, sizeof b->error, "%s%s%.120s", what, *detail ? ": " : "", detail);
}

static int32_t number_after(const char *s, const char *key)
{
    const char *p = strstr(s, key);
    return p ? (int32_t)strtol(p + strlen(key), NULL, 10) : -1;
}

static void add_itl(struct bench *b, int64_t us)
{
    if (b->n_itl == b->cap_itl) {
        b->cap_itl = b->cap_itl ? b->cap_itl * 2 : 4096;
        b->itl = xrealloc(b->itl, b->cap_itl * sizeof *b->itl);
    }
    b->itl[b->n_itl++] = us;
}

/* Does a frame carry text? "content":"x" of a chat delta or "text":"x" of a completion. */
static bool has_text(const char *s)
{
    const char *p = strstr(s, "\"content\":\"");
    if (p)
        return p[11] != '"';
    p = strstr(s, "\"text\":\"");
    return p && p[8] != '"';
}

/* The JSON text of a delta, still escaped, joins what was said. */
static void keep_text(struct buf *said, const char *frame)
{
    const char *p = strstr(frame, "\"content\":\"");
    if (!p)
        return;
    const char *from = p + 11;
    for (p = from; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    buf_add(said, from, (size_t)(p - from));
}

static void on_frame(struct bench_client *c, const char *frame)
{
    struct bench_result *r = &c->b->result[c->at];
    if (strncmp(frame, "data: {", 7) != 0)
        return;
    if (has_text(frame)) {
        int64_t t = now_us();
        if (!r->first)
            r->first = t;
        else
            add_itl(c->b, t - r->last_text);
        r->last_text = t;
        r->n_frames++;
        if (c->b->o.turns > 1)
            keep_text(&c->said, frame);
    }
    if (strstr(frame, "\"usage\":{")) {
        r->n_prompt = number_after(frame, "\"prompt_tokens\":");
        r->n_output = number_after(frame, "\"completion_tokens\":");
    }
    if (strstr(frame, "\"error\":{"))
        note_error(c->b, "error frame", frame);
}

/* Frames end with an empty line; servers write \n\n or \r\n\r\n. */
static void split_frames(struct bench_client *c)
{
    char *p = c->body.p, *end;
    while (p && (end = strstr(p, "\n\n"))) {
        *end = 0;
        on_frame(c, p);
        p = end + 2;
    }
    if (p && p != c->body.p)
        buf_drop(&c->body, (size_t)(p - c->body.p));
}

/* Take chunks out of `in`; true at the last one. */
static bool take_chunks(struct bench_client *c)
{
    for (;;) {
        char *eol = c->in.p ? strstr(c->in.p, "\r\n") : NULL;
        if (!eol)
            return false;
        unsigned long n = strtoul(c->in.p, NULL, 16);
        size_t head = (size_t)(eol - c->in.p) + 2;
        if (c->in.len < head + n + 2)
            return false;
        buf_add(&c->body, c->in.p + head, n);
        buf_drop(&c->in, head + n + 2);
        if (n == 0)
            return true;
    }
}

static bool take_sized(struct bench_client *c)
{
    size_t n = c->in.len;
    if (c->body_left >= 0 && (int64_t)n > c->body_left)
        n = (size_t)c->body_left;
    buf_add(&c->body, c->in.p, n);
    buf_drop(&c->in, n);
    if (c->body_left >= 0)
        c->body_left -= (int64_t)n;
    return c->body_left == 0;
}

static bool take_head(struct bench_client *c)
{
    char *end = c->in.p ? strstr(c->in.p, "\r\n\r\n") : NULL;
    if (!end)
        return false;
    *end = 0;
    struct bench_result *r = &c->b->result[c->at];
    r->status = c->in.len > 12 ? (int)strtol(c->in.p + 9, NULL, 10) : 0;
    const char *len = strcasestr(c->in.p, "\r\ncontent-length:");
    c->chunked = strcasestr(c->in.p, "\r\ntransfer-encoding: chunked") != NULL;
    c->last_here = strcasestr(c->in.p, "\r\nconnection: close") != NULL;
    c->body_left = len ? strtoll(len + 17, NULL, 10) : -1;
    c->head_done = true;
    buf_drop(&c->in, (size_t)(end - c->in.p) + 4);
    return true;
}

/* What was said becomes a part of the next request, or the conversation is over. */
static void next_turn(struct bench_client *c, bool answered)
{
    if (answered && ++c->turn < c->b->o.turns) {
        buf_fmt(&c->talk, ",{\"role\":\"assistant\",\"content\":\"%s\"},", buf_cstr(&c->said));
    } else {
        buf_clear(&c->talk);
        c->turn = 0;
    }
    buf_clear(&c->said);
}

static void finish(struct bench_client *c)
{
    struct bench_result *r = &c->b->result[c->at];
    r->last = now_us();
    if (r->status != 200)
        note_error(c->b, "HTTP status", buf_cstr(&c->body));
    next_turn(c, r->status == 200);
    c->b->n_done++;
    c->used = true;
    c->at = -1;
    start_next(c);
}

/* A server may close a kept connection while the next request is on its way: nothing was answered, so it is sent
 * again over a new one. */
static bool crossed(const struct bench_client *c)
{
    return c->at >= 0 && c->used && !c->head_done && !c->in.len;
}

static void on_closed(uv_handle_t *h)
{
    struct bench_client *c = h->data;
    c->open = false;
    if (crossed(c))
        connect_client(c);
    else if (c->at >= 0)
        finish(c);
    else if (!c->finished)
        start_next(c);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *u)
{
    struct bench_client *c = s->data;
    if (n > 0)
        buf_add(&c->in, u->base, (size_t)n);
    free(u->base);
    if (n < 0) {
        if (c->at >= 0 && !crossed(c) && !(c->head_done && c->body_left < 0 && !c->chunked)) {
            note_error(c->b, "connection", uv_strerror((int)n));
            c->b->result[c->at].status = 0; /* a part of an answer is none */
        }
        if (!uv_is_closing((uv_handle_t *)&c->tcp))
            uv_close((uv_handle_t *)&c->tcp, on_closed);
        return;
    }
    if (c->at < 0 || (!c->head_done && !take_head(c)))
        return;
    bool done = c->chunked ? take_chunks(c) : take_sized(c);
    split_frames(c);
    if (done)
        finish(c);
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *u)
{
    (void)h;
    u->base = xmalloc(want);
    u->len = want;
}

static void on_written(uv_write_t *w, int status)
{
    struct bench_client *c = w->data;
    if (status < 0 && status != UV_ECANCELED && !crossed(c))
        note_error(c->b, "write", uv_strerror(status));
}

static void send_request(struct bench_client *c)
{
    struct bench_result *r = &c->b->result[c->at];
    c->head_done = c->chunked = false;
    buf_clear(&c->in);
    buf_clear(&c->body);
    r->start = now_us();
    r->n_prompt = r->n_output = -1;
    c->write.data = c;
    uv_buf_t u = uv_buf_init(c->req.p, (unsigned)c->req.len);
    uv_write(&c->write, (uv_stream_t *)&c->tcp, &u, 1, on_written);
}

static void on_connect(uv_connect_t *q, int status)
{
    struct bench_client *c = q->data;
    if (c->finished)
        return; /* the time limit closed it */
    if (status < 0) {
        note_error(c->b, "connect", uv_strerror(status));
        c->b->result[c->at].start = now_us();
        uv_close((uv_handle_t *)&c->tcp, on_closed);
        return;
    }
    c->open = true;
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    send_request(c);
}

static void build_request(struct bench_client *c)
{
    const struct bench_opts *o = &c->b->o;
    struct buf body = {0};
    c->b->result[c->at].turn = c->turn;
    srv_bench_body(o, c->at, &c->talk, &body);
    buf_clear(&c->req);
    buf_fmt(&c->req, "POST %s/v1/%s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n",
            o->path, o->completions ? "completions" : "chat/completions", o->host, o->port);
    if (o->key[0])
        buf_fmt(&c->req, "Authorization: Bearer %s\r\n", o->key);
    buf_fmt(&c->req, "Content-Length: %zu\r\n\r\n", body.len);
    buf_add(&c->req, body.p, body.len);
    buf_free(&body);
}

/* The time is up: nothing new is started; what runs is marked and its connection closed. */
static void on_limit(uv_timer_t *t)
{
    struct bench *b = t->data;
    b->n_started = b->o.requests + b->o.warmup;
    for (int i = 0; i < b->o.concurrency; i++) {
        struct bench_client *c = &b->clients[i];
        if (c->at >= 0) {
            struct bench_result *r = &b->result[c->at];
            r->last = now_us();
            r->cut = true;
            r->start = r->start ? r->start : r->last; /* its connection is not there yet */
            c->at = -1;
        }
        c->finished = true;
        if (c->tcp.data && !uv_is_closing((uv_handle_t *)&c->tcp))
            uv_close((uv_handle_t *)&c->tcp, on_closed);
    }
    uv_close((uv_handle_t *)t, NULL);
}

static void start_next(struct bench_client *c)
{
    struct bench *b = c->b;
    if (b->n_started == b->o.requests + b->o.warmup) {
        c->finished = true;
        if (c->open && !uv_is_closing((uv_handle_t *)&c->tcp))
            uv_close((uv_handle_t *)&c->tcp, on_closed);
        return;
    }
    if (c->open && c->last_here) {
        c->last_here = false;
        uv_close((uv_handle_t *)&c->tcp, on_closed);
        return;
    }
    c->at = b->n_started++;
    if (c->at == b->o.warmup && b->o.seconds)
        uv_timer_start(&b->limit, on_limit, (uint64_t)b->o.seconds * 1000, 0);
    build_request(c);
    if (c->open && !uv_is_closing((uv_handle_t *)&c->tcp))
        send_request(c);
    else
        connect_client(c);
}

static void connect_client(struct bench_client *c)
{
    struct bench *b = c->b;
    c->used = c->last_here = false;
    uv_tcp_init(&b->loop, &c->tcp);
    uv_tcp_nodelay(&c->tcp, 1);
    c->tcp.data = c->connect.data = c;
    uv_tcp_connect(&c->connect, &c->tcp, (struct sockaddr *)&b->addr, on_connect);
}

int srv_bench_run(struct bench *b)
{
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM}, *ai = NULL;
    if (getaddrinfo(b->o.host, b->o.port, &hint, &ai) || !ai)
        return ERR_NOTFOUND;
    memcpy(&b->addr, ai->ai_addr, ai->ai_addrlen);
    freeaddrinfo(ai);
    uv_loop_init(&b->loop);
    uv_timer_init(&b->loop, &b->limit);
    uv_unref((uv_handle_t *)&b->limit);
    b->limit.data = b;
    struct bench_client *all = b->clients = xcalloc((size_t)b->o.concurrency, sizeof *all);
    for (int i = 0; i < b->o.concurrency; i++) {
        all[i].b = b;
        all[i].at = -1;
    }
    for (int i = 0; i < b->o.concurrency; i++)
        start_next(&all[i]);
    thread_prefer_latency(); /* it should measure the server, not how it waits itself */
    uv_run(&b->loop, UV_RUN_DEFAULT);
    if (!uv_is_closing((uv_handle_t *)&b->limit)) {
        uv_close((uv_handle_t *)&b->limit, NULL);
        uv_run(&b->loop, UV_RUN_DEFAULT);
    }
    for (int i = 0; i < b->o.concurrency; i++) {
        struct buf *own[] = {&all[i].req, &all[i].in, &all[i].body, &all[i].talk, &all[i].said};
        for (size_t k = 0; k < sizeof own / sizeof *own; k++)
            buf_free(own[k]);
    }
    free(all);
    uv_loop_close(&b->loop);
    return 0;
}
