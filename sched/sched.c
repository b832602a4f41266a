/* The scheduler's door: requests in, steps, events out. See sched.h. */
#include "sched/sched_impl.h"

#include <limits.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"

static int64_t real_clock(void *arg)
{
    (void)arg;
    return clock_us();
}

static void no_emit(void *arg, const struct event *ev)
{
    (void)arg;
    (void)ev;
}

static void set_defaults(struct sched *s, const struct sched_opts *o)
{
    struct sched_opts *d = &s->o;
    *d = *o;
    if (d->max_running <= 0 || d->max_running > s->info.max_seqs)
        d->max_running = s->info.max_seqs;
    if (s->info.n_state > 0 && d->max_running > s->info.n_state)
        d->max_running = s->info.n_state;
    if (d->step_tokens <= 0 || d->step_tokens > s->info.max_rows)
        d->step_tokens = s->info.max_rows;
    if (d->spec_tokens < 0 || s->info.n_state > 0) /* a state can't go back behind a wrong draft */
        d->spec_tokens = 0;
    if (d->spec_tokens > SPEC_TOKENS_MAX)
        d->spec_tokens = SPEC_TOKENS_MAX;
    if (d->age_us <= 0)
        d->age_us = 10000000;
    if (!d->clock)
        d->clock = real_clock;
    if (!d->emit)
        d->emit = no_emit;
    int64_t pool = (int64_t)(s->info.n_block - 1) * s->info.block_len;
    s->n_ctx = s->info.n_ctx < pool ? s->info.n_ctx : (int32_t)pool;
    s->next_deadline = INT64_MAX;
}

static void block_gone(void *arg, block_id id)
{
    state_forget(arg, id);
}

static int open_parts(struct sched *s, struct err *e)
{
    int rc = block_pool_open(&s->pool, s->info.n_block, NULL, NULL, e);
    if (!rc && s->info.n_state > 0)
        rc = state_pool_open(&s->states, s->info.n_state, s->info.n_block, e);
    if (rc)
        return rc;
    struct prefix_opts po = {.block_len = s->info.block_len,
                             .layout_id = s->info.layout_id,
                             .key = hash_key_random(),
                             .gone = s->states ? block_gone : NULL,
                             .arg = s->states,
                             .hash_mask = s->o.hash_mask};
    if (!s->o.no_prefix_cache && (rc = prefix_open(&s->prefix, s->pool, &po, e)))
        return rc;
    s->run = mem_calloc((size_t)s->o.max_running, sizeof(struct seq *));
    s->list = mem_calloc((size_t)s->o.max_running, sizeof(struct seq *));
    if (!s->run || !s->list || plan_init(&s->ring[0], s->o.max_running, s->info.max_logit_rows) ||
        plan_init(&s->ring[1], s->o.max_running, s->info.max_logit_rows))
        return err_set(e, ERR_NOMEM, "scheduler: no memory for %d sequences", s->o.max_running);
    return 0;
}

int sched_open(struct sched **out, struct engine *g, const struct sched_opts *o, struct err *e)
{
    struct sched *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "scheduler: no memory");
    s->g = g;
    s->info = *eng_info(g);
    int rc = 0;
    if (s->info.n_block < 2 || s->info.block_len < 1 || s->info.max_seqs < 1 ||
        s->info.max_rows < 1 || s->info.max_logit_rows < 1 || s->info.n_ctx < 1)
        rc = err_set(e, ERR_INVAL, "scheduler: the engine reports no room (%d blocks, %d rows)",
                     s->info.n_block, s->info.max_rows);
    if (!rc) {
        set_defaults(s, o);
        rc = open_parts(s, e);
        if (!rc)
            rc = sched__model_open(s, e);
    }
    if (rc) {
        sched_close(s);
        return rc;
    }
    s->rate_from_us = s->o.clock(s->o.arg);
    *out = s;
    return 0;
}

static void unlist(struct sched *s, struct sreq *r)
{
    *(r->prev ? &r->prev->next : &s->head) = r->next;
    *(r->next ? &r->next->prev : &s->tail) = r->prev;
    s->n_req--;
}

void sched__req_bury(struct sched *s)
{
    while (s->dead) {
        struct sreq *r = s->dead;
        s->dead = r->next;
        request_free(r->r);
        free(r);
    }
}

static void end_seqs(struct sched *s, struct sreq *r)
{
    for (int i = 0; i < r->r->n; i++)
        if (r->seq[i].state != SEQ_DONE)
            sched__seq_end(s, &r->seq[i]);
}

/* Nothing that is still open brings anything: its sequences have ended. */
static void close_open(struct sched *s)
{
    struct err ignored = {0};
    for (; s->n_open; s->n_open--, s->first = !s->first)
        eng_step_end(s->g, &ignored);
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    while (s->head) {
        struct sreq *r = s->head;
        end_seqs(s, r);
        unlist(s, r);
        r->next = s->dead;
        s->dead = r;
    }
    close_open(s);
    sched__req_bury(s);
    prefix_close(s->prefix);
    block_pool_close(s->pool);
    state_pool_close(s->states);
    plan_free(&s->ring[0]);
    plan_free(&s->ring[1]);
    drafter_close(s->spec.drafter);
    free(s->run);
    free(s->list);
    free(s);
}

/* Last event of a request: totals are final. */
static void emit_last(struct sched *s, const struct request *r, const struct sreq *q, int code,
                      const char *text)
{
    struct event ev = {.kind = code ? EV_ERROR : EV_DONE,
                       .req = r->id,
                       .stop_token = -1,
                       .n_prompt = r->n_prompt,
                       .arrival_us = r->arrival_us,
                       .done_us = s->now};
    if (code)
        err_set(&ev.err, code, "%s", text);
    if (q) {
        ev.n_cached = q->n_cached > 0 ? q->n_cached : 0;
        ev.n_output = q->n_output;
        ev.n_preempted = q->n_preempted;
        ev.scheduled_us = q->scheduled_us;
        ev.first_token_us = q->first_token_us;
    }
    s->o.emit(s->o.arg, &ev);
}

void sched__req_end(struct sched *s, struct sreq *r, int code, const char *text)
{
    CHECK(!r->ended);
    end_seqs(s, r);
    r->ended = true;
    if (!r->scheduled_us)
        s->n_unstarted_tok -= r->r->n_prompt;
    emit_last(s, r->r, r, code, text);
    unlist(s, r);
    r->next = s->dead;
    s->dead = r;
    s->rate_requests++;
}

void sched__emit_finish(struct sched *s, struct seq *q, enum finish_reason why, int32_t stop)
{
    struct event ev = {.kind = EV_FINISH,
                       .req = q->req->r->id,
                       .choice = q->choice,
                       .index = q->n_output,
                       .finish = why,
                       .stop_token = stop};
    sched__seq_end(s, q);
    s->o.emit(s->o.arg, &ev);
    if (!q->req->n_live)
        sched__req_end(s, q->req, 0, NULL);
}

static int check_tokens(const struct sched *s, const struct request *r, struct err *e)
{
    for (int32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= s->info.n_vocab)
            return err_set(e, ERR_INVAL, "prompt: token %d is %d, the model has tokens 0 to %d", i,
                           r->prompt[i], s->info.n_vocab - 1);
    for (int i = 0; i < r->samp.n_bias; i++)
        if (r->samp.bias[i].token < 0 || r->samp.bias[i].token >= s->info.n_vocab)
            return err_set(e, ERR_INVAL, "logit_bias: token %d, the model has tokens 0 to %d",
                           r->samp.bias[i].token, s->info.n_vocab - 1);
    return 0;
}

/* Everything that would keep the request from ever finishing, or the engine from running it. */
static int check_request(const struct sched *s, const struct request *r, struct err *e)
{
    if (r->image)
        return err_set(e, ERR_INVAL, "the model answers in words, it makes no pictures");
    if (r->n_prompt < 1 || !r->prompt)
        return err_set(e, ERR_INVAL, "prompt: at least one token is needed");
    if (r->n < 1 || r->n > REQ_N_MAX)
        return err_set(e, ERR_INVAL, "n: %d is not in 1 to %d", r->n, REQ_N_MAX);
    if (r->max_tokens < 0)
        return err_set(e, ERR_INVAL, "max_tokens: %d is negative", r->max_tokens);
    if (r->n_stop_id < 0 || r->n_stop_id > REQ_STOP_MAX)
        return err_set(e, ERR_INVAL, "stop_token_ids: %d given, %d are the most", r->n_stop_id,
                       REQ_STOP_MAX);
    if (r->samp.n_top > SAMPLE_TOP_MAX || r->prompt_logprobs > SAMPLE_TOP_MAX)
        return err_set(e, ERR_INVAL, "logprobs: %d are the most", SAMPLE_TOP_MAX);
    if (r->n_prompt > s->info.n_ctx || (r->n_prompt == s->info.n_ctx && r->max_tokens > 0))
        return err_set(e, ERR_CONTEXT,
                       "prompt: %d tokens leave no room for an answer in a context of %d",
                       r->n_prompt, s->info.n_ctx);
    if (r->n_prompt > s->n_ctx || (r->n_prompt == s->n_ctx && r->max_tokens > 0))
        return err_set(e, ERR_LIMIT, "prompt: %d tokens do not fit into a KV cache of %d",
                       r->n_prompt, s->n_ctx);
    return check_tokens(s, r, e);
}

static struct sreq *sreq_new(struct sched *s, struct request *r)
{
    struct sreq *q = mem_calloc(1, sizeof *q + (size_t)r->n * sizeof q->seq[0]);
    if (!q)
        return NULL;
    int32_t room = s->n_ctx - r->n_prompt;
    q->r = r;
    q->order = ++s->n_arrived;
    q->entered_us = s->now;
    q->max_out = r->max_tokens < room ? r->max_tokens : room;
    q->n_live = q->n_ready = r->n;
    q->n_cached = -1;
    for (int i = 0; i < r->n; i++) {
        q->seq[i] = (struct seq){.req = q, .choice = i, .n_known = r->n_prompt, .avail_tried = -1};
        sched__state_init(&q->seq[i]);
    }
    return q;
}

void sched_submit(struct sched *s, struct request *r)
{
    struct err e = {0};
    struct sreq *q = NULL;
    s->now = s->o.clock(s->o.arg);
    int rc = check_request(s, r, &e);
    if (!rc && !(q = sreq_new(s, r)))
        rc = err_set(&e, ERR_NOMEM, "no memory for %d choices", r->n);
    if (rc) {
        emit_last(s, r, NULL, rc, e.text);
        request_free(r);
        return;
    }
    q->prev = s->tail;
    *(s->tail ? &s->tail->next : &s->head) = q;
    s->tail = q;
    s->n_req++;
    s->n_unstarted_tok += r->n_prompt;
    if (r->deadline_us && r->deadline_us < s->next_deadline)
        s->next_deadline = r->deadline_us;
    if (r->queue_deadline_us && r->queue_deadline_us < s->next_deadline)
        s->next_deadline = r->queue_deadline_us;
}

static struct sreq *find(const struct sched *s, uint64_t id)
{
    struct sreq *r = s->head;
    while (r && r->r->id != id)
        r = r->next;
    return r;
}

void sched_cancel(struct sched *s, uint64_t req)
{
    struct sreq *r = find(s, req);
    if (!r)
        return;
    s->now = s->o.clock(s->o.arg);
    s->st.cancelled++;
    sched__req_end(s, r, 0, NULL);
    sched__req_bury(s);
}

void sched_finish_choice(struct sched *s, uint64_t req, int choice, int32_t keep)
{
    struct sreq *r = find(s, req);
    if (!r || choice < 0 || choice >= r->r->n || r->seq[choice].state == SEQ_DONE)
        return;
    s->now = s->o.clock(s->o.arg);
    struct seq *q = &r->seq[choice];
    if (keep >= 0 && keep < q->n_output)
        q->n_output = keep;
    sched__seq_end(s, q);
    if (!r->n_live)
        sched__req_end(s, r, 0, NULL);
    sched__req_bury(s);
}

void sched_fail_all(struct sched *s, int code, const char *text)
{
    s->now = s->o.clock(s->o.arg);
    while (s->head)
        sched__req_end(s, s->head, code, text);
    sched__req_bury(s);
}

static void expire(struct sched *s)
{
    if (s->now < s->next_deadline)
        return;
    int64_t soonest = INT64_MAX;
    for (struct sreq *r = s->head, *next; r; r = next) {
        next = r->next;
        int64_t all = r->r->deadline_us ? r->r->deadline_us : INT64_MAX;
        int64_t queue =
            r->r->queue_deadline_us && !r->scheduled_us ? r->r->queue_deadline_us : INT64_MAX;
        if (s->now >= all)
            sched__req_end(s, r, ERR_TIMEOUT, "the deadline of the request has passed");
        else if (s->now >= queue)
            sched__req_end(s, r, ERR_TIMEOUT, "the request waited too long in the queue");
        else if ((all < queue ? all : queue) < soonest)
            soonest = all < queue ? all : queue;
    }
    s->next_deadline = soonest;
}

static int device_failed(struct sched *s, int rc, struct err *e)
{
    sched_fail_all(s, ERR_DEVICE, e->text);
    close_open(s);
    return rc;
}

/* Begin the step just planned. What it holds counts as computed from here on: later steps run later. */
static int begin_step(struct sched *s, struct err *e)
{
    struct plan *p = s->plan;
    p->step =
        (struct step_plan){.n_seq = p->n_seq, .n_copy = p->n_copy, .seq = p->seq, .copy = p->copy};
    p->begin_us = s->o.clock(s->o.arg);
    if (!s->n_open && s->end_us)
        s->st.gap_us_total += p->begin_us - s->end_us;
    s->st.steps_ahead += s->n_open > 0;
    int rc = eng_step_begin(s->g, &p->step, e);
    for (int i = 0; i < p->n_copy; i++)
        block_drop(s->pool, &p->copy_of[i]);
    if (rc)
        return device_failed(s, rc, e);
    for (int i = 0; i < p->n_seq; i++) {
        struct plan_entry *en = &p->entry[i];
        en->q->n_computed += en->n_tok;
        en->q->n_flight++;
        sched__state_begun(s, en->q);
        en->q->n_coming += en->samples;
        en->q->ref = STEP_SAMPLED(en->first_logit + p->seq[i].n_logit - 1);
    }
    s->n_open++;
    return 0;
}

/* Wait for the oldest open step and take what it brought. */
static int end_step(struct sched *s, struct err *e)
{
    struct plan *p = &s->ring[s->first];
    int rc = eng_step_end(s->g, e);
    s->now = s->o.clock(s->o.arg);
    if (rc)
        return device_failed(s, rc, e);
    /* It ran from when it was begun, or from the end of the one before. */
    int64_t from = p->begin_us > s->end_us ? p->begin_us : s->end_us;
    s->end_us = s->now;
    sched__stats_step(s, p->n_tok, s->now - from);
    sched__spec_cost(s, p);
    sched__harvest(s, p); /* still among the open ones: what ends now is found there */
    s->n_open--;
    s->first = !s->first;
    return 0;
}

static int run_steps(struct sched *s, struct err *e)
{
    int rc = 0;
    if (!s->n_open) {
        sched__admit(s);
        sched__plan(s);
        if (!s->plan->n_seq) {
            s->end_us = 0;
            sched__spec_pause(s);
            return 0;
        }
        rc = begin_step(s, e);
    }
    if (!rc && sched__plan_ahead(s))
        rc = begin_step(s, e);
    if (!rc)
        rc = end_step(s, e);
    while (!rc && s->n_open && sched_idle(s)) /* only rows for nobody */
        rc = end_step(s, e);
    return rc ? rc : 1;
}

int sched_step(struct sched *s, struct err *e)
{
    struct err local = {0};
    s->now = s->o.clock(s->o.arg);
    expire(s);
    int rc = run_steps(s, e ? e : &local);
    sched__req_bury(s);
    if (sched_idle(s)) {
        s->end_us = 0; /* what follows is no gap */
        sched__spec_pause(s);
    }
    sched__stats_tick(s);
    return rc;
}

bool sched_idle(const struct sched *s)
{
    return !s->n_req;
}

int sched_live(const struct sched *s)
{
    return s->n_req;
}

int32_t sched_waiting_tokens(const struct sched *s)
{
    return s->n_unstarted_tok;
}
