/* See encode.h. */
#include "sched/encode.h"
#include "sched/lane.h"

#include "engine/base/mem.h"

/* A request inside.   lane -- list of ereq, each with its vectors so far */
struct ereq {
    struct lane_req base;
    int n_taken;       /* rows that were encoded, or are in the step being made */
    float *vec;        /* [rows, width] */
    struct err failed; /* code != 0: a row of the step could not be encoded */
};

struct encode_lane {
    struct lane base;
    struct engine *g;
    struct encode_opts o;
    int width; /* values of a row */
    int64_t waiting_tok;
    struct eng_encode_row row[ENG_ENCODE_ROWS]; /* of the step being made */
    struct ereq *of[ENG_ENCODE_ROWS];           /* whose they are */
    int n_row;
    int64_t n_tok;
    double us_per_tok, tok_per_req; /* smoothed */
};

static struct ereq *ereq(struct lane_req *q)
{
    return (struct ereq *)q;
}

static int32_t row_len(const struct ereq *q, int i)
{
    return q->base.r->encode->start[i + 1] - q->base.r->encode->start[i];
}

/* Tokens of rows that are not encoded. */
static int64_t left(const struct ereq *q)
{
    return q->base.r->n_prompt - q->base.r->encode->start[q->n_taken];
}

static void leave(struct lane *lane, struct lane_req *q)
{
    ((struct encode_lane *)lane)->waiting_tok -= left(ereq(q));
}

/* Usage counts what was encoded. */
static void report(const struct lane_req *q, struct event *ev)
{
    ev->n_prompt = q->r->encode->start[((const struct ereq *)q)->n_taken];
}

static void drop(struct lane_req *q)
{
    free(ereq(q)->vec);
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
    l->base = (struct lane){.clock = o->clock,
                            .emit = o->emit,
                            .arg = o->arg,
                            .leave = leave,
                            .report = report,
                            .drop = drop};
    *out = l;
    return 0;
}

void encode_lane_close(struct encode_lane *l)
{
    if (!l)
        return;
    lane_clear(&l->base);
    free(l);
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
    lane_tick(&l->base);
    int rc = check_request(l, r, &e);
    if (!rc) {
        q = mem_calloc(1, sizeof *q);
        if (q)
            q->vec = mem_calloc((size_t)r->encode->n_row * (size_t)l->width, sizeof *q->vec);
        if (!q || !q->vec)
            rc = err_set(&e, ERR_NOMEM, "no memory for %d vectors", r->encode->n_row);
    }
    if (rc) {
        lane_refuse(&l->base, r, rc, e.text);
        free(q);
        return;
    }
    lane_add(&l->base, &q->base, r);
    l->waiting_tok += r->n_prompt;
}

void encode_lane_cancel(struct encode_lane *l, uint64_t req)
{
    lane_cancel(&l->base, req);
}

void encode_lane_fail_all(struct encode_lane *l, int code, const char *text)
{
    lane_fail_all(&l->base, code, text);
}

/* The next row of q joins the step if it fits. */
static bool take_row(struct encode_lane *l, struct ereq *q)
{
    const struct req_encode *x = q->base.r->encode;
    int i = q->n_taken;
    if (i == x->n_row || l->n_row == ENG_ENCODE_ROWS)
        return false;
    int32_t n = row_len(q, i);
    if (l->n_row && l->n_tok + n > l->o.step_tokens)
        return false;
    l->of[l->n_row] = q;
    l->row[l->n_row++] = (struct eng_encode_row){.ids = q->base.r->prompt + x->start[i],
                                                 .n = n,
                                                 .second = x->second ? x->second[i] : n,
                                                 .out = q->vec + (size_t)i * (size_t)l->width};
    l->n_tok += n;
    l->waiting_tok -= n;
    q->n_taken++;
    if (!q->base.scheduled_us)
        q->base.scheduled_us = l->base.now;
    return true;
}

/* Requests of a more urgent priority have all of their rows taken before the next ones get any. */
static void gather(struct encode_lane *l)
{
    l->n_row = 0;
    l->n_tok = 0;
    for (struct lane_req *from = l->base.head, *to; from; from = to) {
        bool any = true;
        for (to = from; to && to->r->priority == from->r->priority;)
            to = to->next;
        while (any) {
            any = false;
            for (struct lane_req *q = from; q != to; q = q->next)
                any |= take_row(l, ereq(q));
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
    l->base.st.step_tokens_hist[b]++;
    l->base.st.step_tokens_sum += (double)l->n_tok;
    l->base.st.steps++;
    l->base.st.prompt_tokens += (uint64_t)l->n_tok;
    l->base.st.step_us_total += us;
    double each = (double)us / (double)l->n_tok;
    l->us_per_tok = l->us_per_tok > 0 ? l->us_per_tok * 0.9 + each * 0.1 : each;
}

/* Requests with all of their rows: the vectors go up, then the end. */
static void finish(struct encode_lane *l)
{
    for (struct lane_req *r = l->base.head, *next; r; r = next) {
        struct ereq *q = ereq(r);
        next = r->next;
        if (q->failed.code) {
            lane_end(&l->base, r, q->failed.code, q->failed.text);
            continue;
        }
        if (q->n_taken < q->base.r->encode->n_row)
            continue;
        double n = q->base.r->n_prompt;
        l->tok_per_req = l->tok_per_req > 0 ? l->tok_per_req * 0.9 + n * 0.1 : n;
        struct event ev = {.kind = EV_EMBED, .req = q->base.r->id, .stop_token = -1, .vec = q->vec};
        q->vec = NULL;
        l->base.emit(l->base.arg, &ev);
        lane_end(&l->base, r, 0, NULL);
    }
}

int encode_lane_step(struct encode_lane *l, struct err *e)
{
    struct err local = {0};
    e = e ? e : &local;
    lane_tick(&l->base);
    lane_expire(&l->base);
    lane_bury(&l->base);
    gather(l);
    if (!l->n_row)
        return 0;
    int64_t start = l->base.now;
    int rc = run(l, 0, l->n_row, e);
    lane_tick(&l->base);
    if (rc) {
        lane_fail_all(&l->base, rc, e->text);
        return rc;
    }
    count(l, l->base.now - start);
    finish(l);
    lane_bury(&l->base);
    return 1;
}

bool encode_lane_idle(const struct encode_lane *l)
{
    return !l->base.n_req;
}

int encode_lane_live(const struct encode_lane *l)
{
    return l->base.n_req;
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
    *out = l->base.st;
    for (const struct lane_req *q = l->base.head; q; q = q->next) {
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
    int64_t tok = 0;
    int rc = lane_check(&l->base, e);
    if (rc)
        return rc;
    for (struct lane_req *r = l->base.head; r; r = r->next) {
        const struct ereq *q = ereq(r);
        if (!q->vec || q->n_taken < 0 || q->n_taken >= r->r->encode->n_row)
            return err_set(e, ERR_INTERNAL, "request %d: %d of %d rows taken", (int)r->order,
                           q->n_taken, r->r->encode->n_row);
        tok += left(q);
    }
    if (tok != l->waiting_tok)
        return err_set(e, ERR_INTERNAL, "%lld tokens, counted %lld", (long long)l->waiting_tok,
                       (long long)tok);
    return 0;
}
