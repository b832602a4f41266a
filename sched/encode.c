/* See encode.h. */
#include "sched/encode.h"

#include "engine/base/mem.h"
#include "engine/base/thread.h"

/* A request inside.   lane -- list of ereq (by priority, then arrival), each with its vectors so far */
struct ereq {
    struct ereq *prev, *next;
    struct request *r;
    uint64_t order;
    int n_taken; /* rows that were encoded, or are in the step being made */
    float *vec;  /* [rows, width] */
    int64_t scheduled_us;
    struct err failed; /* code != 0: a row of the step could not be encoded */
};

struct encode_lane {
    struct engine *g;
    struct encode_opts o;
    int width; /* values of a row */
    struct ereq *head, *tail;
    int n_req;
    uint64_t n_arrived;
    int64_t now, waiting_tok;
    struct eng_encode_row row[ENG_ENCODE_ROWS]; /* of the step being made */
    struct ereq *of[ENG_ENCODE_ROWS];           /* whose they are */
    int n_row;
    int64_t n_tok;
    struct sched_stats st;
    double us_per_tok, tok_per_req; /* smoothed */
};

static int64_t clock_default(void *arg)
{
    (void)arg;
    return clock_us();
}

int encode_lane_open(struct encode_lane **out, struct engine *g, const struct encode_opts *o,
                     struct err *e)
{
    const struct eng_info *info = eng_info(g);
    if (!info->encoder)
        return err_set(e, ERR_INVAL, "encoder lane: the model is no encoder");
    struct encode_lane *l = mem_calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "encoder lane: no memory");
    l->g = g;
    l->o = *o;
    l->width = info->encoder->n_label ? info->encoder->n_label : info->encoder->dim;
    if (l->o.step_tokens <= 0)
        l->o.step_tokens = info->max_rows;
    if (!l->o.clock)
        l->o.clock = clock_default;
    *out = l;
    return 0;
}

static int32_t row_len(const struct ereq *q, int i)
{
    return q->r->encode->start[i + 1] - q->r->encode->start[i];
}

/* Tokens of rows that are not encoded. */
static int64_t left(const struct ereq *q)
{
    return q->r->n_prompt - q->r->encode->start[q->n_taken];
}

static void take_out(struct encode_lane *l, struct ereq *q)
{
    *(q->prev ? &q->prev->next : &l->head) = q->next;
    *(q->next ? &q->next->prev : &l->tail) = q->prev;
    l->n_req--;
    l->waiting_tok -= left(q);
    request_free(q->r);
    free(q->vec);
    free(q);
}

void encode_lane_close(struct encode_lane *l)
{
    if (!l)
        return;
    while (l->head)
        take_out(l, l->head);
    free(l);
}

/* q NULL: refused before it was anything. Usage counts what was encoded. */
static void emit_last(struct encode_lane *l, const struct request *r, const struct ereq *q,
                      int code, const char *text)
{
    struct event ev = {.kind = code ? EV_ERROR : EV_DONE,
                       .req = r->id,
                       .stop_token = -1,
                       .arrival_us = r->arrival_us,
                       .done_us = l->now};
    if (code)
        err_set(&ev.err, code, "%s", text);
    if (q) {
        ev.n_prompt = r->encode->start[q->n_taken];
        ev.scheduled_us = q->scheduled_us;
    }
    l->o.emit(l->o.arg, &ev);
}

static void end(struct encode_lane *l, struct ereq *q, int code, const char *text)
{
    emit_last(l, q->r, q, code, text);
    take_out(l, q);
}

/* Token ids are the engine's to judge. */
static int check_request(const struct encode_lane *l, const struct request *r, struct err *e)
{
    const struct req_encode *x = r->encode;
    int32_t most = eng_info(l->g)->encoder->n_tok_max;
    if (!x || x->n_row < 1 || x->start[0] != 0 || x->start[x->n_row] != r->n_prompt)
        return err_set(e, ERR_INVAL, "the model makes vectors of texts, nothing else");
    for (int i = 0; i < x->n_row; i++) {
        int32_t n = x->start[i + 1] - x->start[i];
        if (n < 1 || n > most)
            return err_set(e, n < 1 ? ERR_INVAL : ERR_CONTEXT,
                           "text %d has %d tokens; 1 to %d are possible", i, n, most);
    }
    return 0;
}

void encode_lane_submit(struct encode_lane *l, struct request *r)
{
    struct err e = {0};
    struct ereq *q = NULL;
    l->now = l->o.clock(l->o.arg);
    int rc = check_request(l, r, &e);
    if (!rc) {
        q = mem_calloc(1, sizeof *q);
        if (q)
            q->vec = mem_calloc((size_t)r->encode->n_row * (size_t)l->width, sizeof *q->vec);
        if (!q || !q->vec)
            rc = err_set(&e, ERR_NOMEM, "no memory for %d vectors", r->encode->n_row);
    }
    if (rc) {
        emit_last(l, r, NULL, rc, e.text);
        request_free(r);
        free(q);
        return;
    }
    q->r = r;
    q->order = ++l->n_arrived;
    struct ereq *after = l->tail;
    while (after && after->r->priority > r->priority)
        after = after->prev;
    q->prev = after;
    q->next = after ? after->next : l->head;
    *(after ? &after->next : &l->head) = q;
    *(q->next ? &q->next->prev : &l->tail) = q;
    l->n_req++;
    l->waiting_tok += r->n_prompt;
}

void encode_lane_cancel(struct encode_lane *l, uint64_t req)
{
    struct ereq *q = l->head;
    while (q && q->r->id != req)
        q = q->next;
    if (!q)
        return;
    l->now = l->o.clock(l->o.arg);
    l->st.cancelled++;
    end(l, q, 0, NULL);
}

void encode_lane_fail_all(struct encode_lane *l, int code, const char *text)
{
    l->now = l->o.clock(l->o.arg);
    while (l->head)
        end(l, l->head, code, text);
}

static void expire(struct encode_lane *l)
{
    for (struct ereq *q = l->head, *next; q; q = next) {
        next = q->next;
        const struct request *r = q->r;
        if (r->deadline_us && l->now >= r->deadline_us)
            end(l, q, ERR_TIMEOUT, "the deadline of the request has passed");
        else if (r->queue_deadline_us && !q->scheduled_us && l->now >= r->queue_deadline_us)
            end(l, q, ERR_TIMEOUT, "the request waited too long in the queue");
    }
}

/* The next row of q joins the step if it fits. */
static bool take_row(struct encode_lane *l, struct ereq *q)
{
    const struct req_encode *x = q->r->encode;
    int i = q->n_taken;
    if (i == x->n_row || l->n_row == ENG_ENCODE_ROWS)
        return false;
    int32_t n = row_len(q, i);
    if (l->n_row && l->n_tok + n > l->o.step_tokens)
        return false;
    l->of[l->n_row] = q;
    l->row[l->n_row++] = (struct eng_encode_row){.ids = q->r->prompt + x->start[i],
                                                 .n = n,
                                                 .second = x->second ? x->second[i] : n,
                                                 .out = q->vec + (size_t)i * (size_t)l->width};
    l->n_tok += n;
    l->waiting_tok -= n;
    q->n_taken++;
    if (!q->scheduled_us)
        q->scheduled_us = l->now;
    return true;
}

/* Requests of a more urgent priority have all of their rows taken before the next ones get any. */
static void gather(struct encode_lane *l)
{
    l->n_row = 0;
    l->n_tok = 0;
    for (struct ereq *from = l->head, *to; from; from = to) {
        bool any = true;
        for (to = from; to && to->r->priority == from->r->priority;)
            to = to->next;
        while (any) {
            any = false;
            for (struct ereq *q = from; q != to; q = q->next)
                any |= take_row(l, q);
        }
    }
}

/* Rows [from, to) of the step. What fails is tried again in halves: memory may do for fewer, and one bad row must not
 * fail its neighbours. An error that stays is the row's request's; only a device error is everyone's. */
static int run(struct encode_lane *l, int from, int to, struct err *e)
{
    int rc = eng_encode(l->g, l->row + from, to - from, e);
    if (!rc || rc == ERR_DEVICE)
        return rc;
    if (to - from == 1) {
        l->of[from]->failed = *e;
        return 0;
    }
    int half = from + (to - from) / 2;
    rc = run(l, from, half, e);
    return rc ? rc : run(l, half, to, e);
}

static void count(struct encode_lane *l, int64_t us)
{
    int b = 0;
    while (b < 15 && l->n_tok > (int64_t)1 << b)
        b++;
    l->st.step_tokens_hist[b]++;
    l->st.step_tokens_sum += (double)l->n_tok;
    l->st.steps++;
    l->st.prompt_tokens += (uint64_t)l->n_tok;
    l->st.step_us_total += us;
    double each = (double)us / (double)l->n_tok;
    l->us_per_tok = l->us_per_tok > 0 ? l->us_per_tok * 0.9 + each * 0.1 : each;
}

/* Requests with all of their rows: the vectors go up, then the end. */
static void finish(struct encode_lane *l)
{
    for (struct ereq *q = l->head, *next; q; q = next) {
        next = q->next;
        if (q->failed.code) {
            end(l, q, q->failed.code, q->failed.text);
            continue;
        }
        if (q->n_taken < q->r->encode->n_row)
            continue;
        double n = q->r->n_prompt;
        l->tok_per_req = l->tok_per_req > 0 ? l->tok_per_req * 0.9 + n * 0.1 : n;
        struct event ev = {.kind = EV_EMBED, .req = q->r->id, .stop_token = -1, .vec = q->vec};
        q->vec = NULL;
        l->o.emit(l->o.arg, &ev);
        end(l, q, 0, NULL);
    }
}

int encode_lane_step(struct encode_lane *l, struct err *e)
{
    struct err local = {0};
    e = e ? e : &local;
    l->now = l->o.clock(l->o.arg);
    expire(l);
    gather(l);
    if (!l->n_row)
        return 0;
    int64_t start = l->now;
    int rc = run(l, 0, l->n_row, e);
    l->now = l->o.clock(l->o.arg);
    if (rc) {
        encode_lane_fail_all(l, rc, e->text);
        return rc;
    }
    count(l, l->now - start);
    finish(l);
    return 1;
}

bool encode_lane_idle(const struct encode_lane *l)
{
    return !l->n_req;
}

int encode_lane_live(const struct encode_lane *l)
{
    return l->n_req;
}

int64_t encode_lane_waiting_tokens(const struct encode_lane *l)
{
    return l->waiting_tok;
}

size_t encode_lane_events_max(const struct encode_lane *l, size_t extra)
{
    (void)l;
    return 2 * (ENG_ENCODE_ROWS + extra); /* a row ends one request at most */
}

void encode_lane_stats_get(const struct encode_lane *l, struct sched_stats *out)
{
    *out = l->st;
    for (const struct ereq *q = l->head; q; q = q->next) {
        out->running += q->scheduled_us != 0;
        out->waiting += !q->scheduled_us;
    }
    if (l->us_per_tok > 0) {
        out->tokens_per_s = 1e6 / l->us_per_tok;
        if (l->tok_per_req > 0)
            out->requests_per_s = out->tokens_per_s / l->tok_per_req;
    }
}

int encode_lane_check(const struct encode_lane *l, struct err *e)
{
    int n = 0;
    int64_t tok = 0;
    for (const struct ereq *q = l->head; q; q = q->next, n++) {
        if (q->next && (q->next->prev != q || q->next->r->priority < q->r->priority ||
                        (q->next->r->priority == q->r->priority && q->next->order < q->order)))
            return err_set(e, ERR_INTERNAL, "request %d: not in its place", n);
        if (!q->vec || q->n_taken < 0 || q->n_taken >= q->r->encode->n_row)
            return err_set(e, ERR_INTERNAL, "request %d: %d of %d rows taken", n, q->n_taken,
                           q->r->encode->n_row);
        tok += left(q);
    }
    if (n != l->n_req || tok != l->waiting_tok)
        return err_set(e, ERR_INTERNAL, "%d requests and %lld tokens, counted %d and %lld",
                       l->n_req, (long long)l->waiting_tok, n, (long long)tok);
    return 0;
}
