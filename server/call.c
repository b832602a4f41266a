/* Life of an exchange: prepare (on the loop, or on the pool for big bodies), submit, events to bytes, cancel. */
#include "server/srv.h"

#include <math.h>

#include "engine/base/log.h"
#include "engine/base/thread.h"

#define POOL_BYTES  (8u << 10) /* bodies from this size on are parsed off the loop */
#define PREPARE_US  400 /* and those that come when the loop has parsed for so long in one turn */
#define POLL_EVENTS 128
#define POLL_TURNS  2 /* event batches between two turns of the sockets */

static bool is_image(const struct srv *s, int model)
{
    const struct eng_info *i = worker_engine(s->m[model].w);
    return i && i->image;
}

/* Seconds until a place in the queue is likely: waiting requests over the measured service rate. */
int srv_retry_after(const struct srv *s, int model)
{
    struct sched_stats st;
    if (model < 0 || model >= s->n_model)
        return 5;
    worker_stats(s->m[model].w, &st);
    if (is_image(s, model)) {
        double each = st.image.us_per_image > 0 ? st.image.us_per_image / 1e6 : 10;
        double eta = ceil(each * (st.image.waiting / 8 + 1));
        return eta < 1 ? 1 : eta > 600 ? 600 : (int)eta;
    }
    double rate = st.requests_per_s > 0.01 ? st.requests_per_s : 1;
    bool sound = worker_engine(s->m[model].w) && worker_engine(s->m[model].w)->audio;
    double sec = ceil((double)(sound ? st.waiting + 1 : st.waiting / 8 + 1) / rate);
    return sec < 1 ? 1 : sec > 60 ? 60 : (int)sec;
}

void srv_call_fail(struct xchg *x, int code, const char *text, int retry_after_s)
{
    if (code == ERR_FULL && !retry_after_s)
        retry_after_s = srv_retry_after(x->s, 0);
    api_fail(&x->call, code, NULL, text, retry_after_s);
}

static void queue_full(struct xchg *x)
{
    struct sched_stats st;
    char text[160] = "Too many requests are waiting; try again later.";
    int model = x->call.model;
    if (is_image(x->s, model)) {
        worker_stats(x->s->m[model].w, &st);
        double sec = st.image.us_per_image / 1e6 * (st.image.waiting + st.image.jobs);
        int n = snprintf(text, sizeof(text), "%d image requests are waiting", st.waiting);
        if (sec > 0)
            n += snprintf(text + n, sizeof(text) - (size_t)n, " (about %.0f s)", ceil(sec));
        snprintf(text + n, sizeof(text) - (size_t)n, "; try again later.");
    }
    srv_call_fail(x, ERR_FULL, text, srv_retry_after(x->s, model));
}

static void submit_failed(struct xchg *x, int code)
{
    switch (code) {
    case ERR_FULL:
        queue_full(x);
        break;
    case ERR_DRAINING:
        srv_call_fail(x, code, "The server is shutting down.", 5);
        break;
    case ERR_AGAIN:
        srv_call_fail(x, code, "The model is still loading; try again shortly.", 2);
        break;
    case ERR_DEVICE:
        srv_call_fail(x, code, "The engine has failed; the server is about to restart.", 10);
        break;
    case ERR_NOMEM:
        srv_call_fail(x, code, "Not enough memory for this request.", 2);
        break;
    default:
        srv_call_fail(x, code, "The engine did not take the request.", 0);
    }
}

static void cancel_live(struct xchg *x)
{
    for (int i = 0; x->n_live && i < x->call.n_req; i++) {
        struct slot *t = slots_find(&x->s->slots, x->call.req_id[i]);
        if (t && t->x == x)
            worker_cancel(x->s->m[t->model].w, t->id);
    }
}

static int submit_one(struct xchg *x, int i)
{
    struct api_call *c = &x->call;
    struct srv *s = x->s;
    struct request *r = c->req[i];
    struct slot *t = slots_take(&s->slots, r->n > 0 ? r->n : 1);
    if (!t)
        return ERR_NOMEM;
    t->x = x;
    t->model = c->model;
    t->index = i;
    t->n = r->n;
    t->image = r->image != NULL;
    t->encode = r->encode != NULL;
    t->audio = r->audio != NULL;
    t->max_tokens = r->max_tokens;
    r->id = c->req_id[i] = t->id;
    int rc = worker_submit(s->m[c->model].w, r);
    if (rc) {
        slots_drop(&s->slots, t);
        c->req_id[i] = 0;
        return rc;
    }
    c->req[i] = NULL;
    x->n_live++;
    return 0;
}

/* After api_prepare: hand the work over, unless the answer is there already. */
static void submit(struct xchg *x)
{
    struct api_call *c = &x->call;
    if (c->done)
        return;
    CHECK(c->model >= 0 && c->model < x->s->n_model);
    for (int i = 0; i < c->n_req; i++) {
        int rc = submit_one(x, i);
        if (rc) {
            cancel_live(x);
            submit_failed(x, rc);
            return;
        }
    }
}

static void pool_work(uv_work_t *w)
{
    struct xchg *x = w->data;
    api_prepare(&x->call);
}

static void pool_done(uv_work_t *w, int status)
{
    struct xchg *x = w->data;
    struct srv *s = x->s;
    (void)status;
    x->in_pool = false;
    s->in_pool--;
    if (!x->gone)
        submit(x);
    srv_jobs_start(x);
    srv_call_resume(x);
    srv_loop_pump(s);
}

static void fill(struct xchg *x)
{
    struct api_call *c = &x->call;
    struct srv *s = x->s;
    const char *q = x->conn->uri ? strchr(x->conn->uri, '?') : NULL;
    c->api = s->api;
    c->method = x->method;
    c->path = x->path;
    c->query = q ? q + 1 : NULL;
    c->body = buf_cstr(&x->body);
    c->body_len = x->body.len;
    c->content_type = x->content_type;
    c->host = x->host;
    c->if_none_match = x->if_none_match;
    c->https = x->https;
    c->request_id = x->id;
    c->arrival_us = clock_us();
    c->created = clock_unix();
    c->loading = !s->ready;
}

/* Streams and health checks must not wait for a crowd of new requests: a turn parses few of them. */
static bool loop_busy(struct srv *s)
{
    if (s->prepare_turn != uv_now(&s->loop)) {
        s->prepare_turn = uv_now(&s->loop);
        s->prepare_us = 0;
    }
    return s->prepare_us >= PREPARE_US;
}

void srv_call_start(struct xchg *x)
{
    struct srv *s = x->s;
    if (x->preflight) {
        x->call.status = 204;
        x->call.done = true;
        return;
    }
    if (x->call.route->flags & API_SERVER) {
        srv_health_answer(x);
        return;
    }
    if (s->draining) {
        submit_failed(x, ERR_DRAINING);
        return;
    }
    fill(x);
    srv_gone_ask(x->conn);
    if (x->body.len >= POOL_BYTES || api_wants_pool(&x->call) || loop_busy(s)) {
        x->work.data = x;
        if (uv_queue_work(&s->loop, &x->work, pool_work, pool_done) == 0) {
            x->in_pool = true;
            s->in_pool++;
            return;
        }
    }
    int64_t from = clock_us();
    api_prepare(&x->call);
    s->prepare_us += clock_us() - from;
    submit(x);
    srv_jobs_start(x);
}

void srv_call_resume(struct xchg *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    if (!x->queued && !x->gone)
        srv_gone_before_answer(x->conn);
    MHD_resume_connection(x->conn->mhd);
}

void srv_call_gone(struct xchg *x)
{
    if (!x->gone) {
        x->gone = true;
        cancel_live(x);
    }
    /* While the pool works on it the exchange must live: pool_done resumes it. */
    if (!x->in_pool)
        srv_call_resume(x);
}

void srv_call_commands(struct xchg *x)
{
    struct api_call *c = &x->call;
    for (int i = 0; i < c->n_cmd; i++) {
        const struct api_cmd *m = &c->cmd[i];
        struct slot *t = slots_find(&x->s->slots, c->req_id[m->req]);
        if (!t)
            continue;
        if (m->kind == API_CANCEL) {
            worker_cancel(x->s->m[t->model].w, t->id);
        } else {
            worker_finish_choice(x->s->m[t->model].w, t->id, m->choice, m->keep);
            metrics_finish(&x->s->metrics, t->model, FINISH_STOP);
        }
    }
    c->n_cmd = 0;
}

static void touch(struct xchg *x)
{
    if (x->in_touched)
        return;
    x->in_touched = true;
    x->touched = x->s->touched;
    x->s->touched = x;
}

static void on_event(struct srv *s, const struct event *ev, int64_t now_us)
{
    struct slot *t = slots_find(&s->slots, ev->req);
    if (!t) {
        event_drop(ev);
        return;
    }
    struct xchg *x = t->x;
    bool last = ev->kind == EV_DONE || ev->kind == EV_ERROR;
    metrics_event(&s->metrics, t, ev, now_us);
    if (x) {
        x->picture |= ev->px || ev->vec; /* much at once, as asked for */
        api_event(&x->call, t->index, ev);
        srv_call_commands(x);
        srv_jobs_start(x);
        touch(x);
    } else {
        event_drop(ev);
    }
    if (!last)
        return;
    if (x)
        x->n_live--;
    slots_drop(&s->slots, t);
}

/* Too much unsent, and not merely because the engine is faster than the loop for a moment. */
static bool reader_stalled(const struct xchg *x)
{
    int64_t len = (int64_t)srv_call_unsent(x), max = x->s->conf->max_unsent_bytes;
    if (x->picture) /* a few pictures at once are what was asked for */
        max *= 16;
    return x->queued && !x->stalled && len > max &&
           (len > 16 * max || clock_us() - x->conn->since_us > 250000);
}

/* After a batch of events: wake what has bytes, cut what does not read them. */
void srv_call_settle(struct xchg *x)
{
    struct api_call *c = &x->call;
    if (c->done && x->n_live)
        cancel_live(x); /* the answer is complete without the rest */
    if (reader_stalled(x)) {
        x->stalled = true;
        cancel_live(x);
        srv_conn_shut(x->conn);
    }
    if (c->done || srv_call_unsent(x))
        srv_call_resume(x);
}

void srv_call_events(struct srv_model *m)
{
    struct srv *s = m->s;
    struct event ev[POLL_EVENTS];
    int n = POLL_EVENTS;
    for (int turn = 0; turn < POLL_TURNS && n == POLL_EVENTS; turn++) {
        n = worker_poll(m->w, ev, POLL_EVENTS);
        int64_t now_us = n ? clock_us() : 0;
        for (int i = 0; i < n; i++)
            on_event(s, &ev[i], now_us);
    }
    if (n == POLL_EVENTS)
        uv_async_send(&m->async); /* sockets get their turn before the rest */
    while (s->touched) {
        struct xchg *x = s->touched;
        s->touched = x->touched;
        x->in_touched = false;
        srv_call_settle(x);
    }
    srv_loop_pump(s);
}

static void log_access(const struct xchg *x, double ms)
{
    char path[128];
    size_t n = 0;
    for (const char *p = x->path; *p && n + 1 < sizeof(path); p++)
        path[n++] = *p > ' ' && *p < 0x7f && *p != '"' ? *p : '?';
    path[n] = 0;
    const struct api_call *c = &x->call;
    log_info("access",
             "method=%.16s path=%s status=%d ms=%.1f model=%.60s prompt=%d cached=%d output=%d "
             "code=%.47s end=%s req=%s",
             x->method, path, x->status, ms, *c->model_name ? c->model_name : "-", c->n_prompt,
             c->n_cached, c->n_output, *c->error_code ? c->error_code : "-",
             x->stalled ? "stalled"
             : x->gone  ? "gone"
                        : "ok",
             x->id);
}

void srv_call_finish(struct xchg *x, bool ok)
{
    struct metrics *m = &x->s->metrics;
    if (x->finished)
        return;
    x->finished = true;
    /* MHD ends a connection behind our back when its peer resets it. */
    if (!ok && !x->gone && !x->stalled && x->conn->phase != CONN_CUT)
        x->gone = true;
    if (x->stalled)
        m->stalled_readers++;
    else if (x->gone && x->prepared)
        m->aborted++;
    m->open_requests--;
    cancel_live(x);
    metrics_http(m, x->call.route ? x->call.route->path : "other",
                 x->gone && !x->queued ? 499 : x->status);
    if (x->s->conf->access_log)
        log_access(x, (double)(clock_us() - x->start_us) / 1000);
}

void srv_call_free(struct xchg *x)
{
    struct srv *s = x->s;
    CHECK(!x->in_pool && !x->suspended);
    for (int i = 0; i < x->call.n_req; i++) {
        struct slot *t = x->call.req_id ? slots_find(&s->slots, x->call.req_id[i]) : NULL;
        if (t && t->x == x)
            t->x = NULL; /* its last event frees the slot */
    }
    for (struct xchg **p = &s->touched; *p; p = &(*p)->touched)
        if (*p == x) {
            *p = x->touched;
            break;
        }
    srv_jobs_leave(x);
    s->bodies -= x->body.len;
    api_call_free(&x->call);
    buf_free(&x->body);
    free(x->content_type);
    free(x->host);
    free(x->if_none_match);
    free(x->method);
    free(x->path);
    free(x);
}
