/* A generation call's life: build the requests, take token events, cut at stop strings, write. */
#include <math.h>
#include <stdlib.h>

#include "api/gen.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

struct gen *gen_new(struct api_call *c, struct api_model *m, const struct gen_writer *w)
{
    struct gen *g = mem_calloc(1, sizeof *g);
    if (!g) {
        api__nomem(c);
        return NULL;
    }
    g->m = m;
    g->w = w;
    uint64_t r[2];
    random_bytes(r, sizeof r);
    snprintf(g->id, sizeof g->id, "%s%016llx%016llx", w->id_prefix, (unsigned long long)r[0],
             (unsigned long long)r[1]);
    c->priv = g;
    c->free_priv = gen_free;
    c->on_event = gen_event;
    return g;
}

int gen_prompt_encode(const struct gen *g, struct view text, bool wrap, struct tok_ids *out)
{
    const struct tokenizer *t = g->m->text->tok;
    size_t from = out->n;
    unsigned flags = TOK_SPECIAL | (wrap ? (unsigned)TOK_BOS_EOS : 0u);
    int rc = tok_encode(t, text.p, text.len, flags, out);
    int32_t bos = tok_bos(t), *id = out->id + from;
    if (rc || !wrap || !tok_adds_bos(t) || out->n - from < 2 || id[0] != bos || id[1] != bos)
        return rc;
    out->n--;
    memmove(id, id + 1, (out->n - from) * sizeof *id);
    return 0;
}

int gen_prompts_alloc(struct gen *g, int n_prompt)
{
    g->prompt = mem_calloc((size_t)n_prompt, sizeof *g->prompt);
    g->choice = mem_calloc((size_t)n_prompt * (size_t)g->n, sizeof *g->choice);
    if (!g->prompt || !g->choice)
        return ERR_NOMEM;
    g->n_prompt = n_prompt;
    return 0;
}

void gen_free(struct api_call *c)
{
    struct gen *g = c->priv;
    if (!g)
        return;
    for (int i = 0; g->choice && i < g->n_prompt * g->n; i++) {
        buf_free(&g->choice[i].text);
        stream_close(g->choice[i].stream);
        stream_fold_free(&g->choice[i].fold);
        free(g->choice[i].mark);
    }
    for (int i = 0; i < g->n_prompt; i++) {
        tok_ids_free(&g->prompt[i].ids);
        free(g->prompt[i].echo);
        free(g->prompt[i].lp);
    }
    for (int i = 0; i < g->n_stop; i++)
        free(g->stop[i]);
    free(g->choice);
    free(g->prompt);
    free(g->samp.bias);
    free(g->samp.mask);
    grammar_unref(g->samp.grammar);
    buf_free(&g->head);
    buf_free(&g->piece);
    json_decref(g->tools);
    free(g->think);
    tok_ids_free(&g->predict);
    if (g->own)
        g->own_free(g->own);
    free(g);
    c->priv = NULL;
}

static void *dup_bytes(const void *p, size_t n)
{
    void *q = p ? mem_alloc(n) : NULL;
    return q ? memcpy(q, p, n) : NULL;
}

/* The request of prompt i; takes its ids over. */
static struct request *make_request(struct api_call *c, struct gen *g, int i, int32_t max_tokens)
{
    struct request *r = request_new();
    struct tok_ids *ids = &g->prompt[i].ids;
    if (!r)
        return NULL;
    api__request_start(c, r, g->id, c->api->o.queue_timeout_s);
    if (g->timeout_us && (!r->deadline_us || c->arrival_us + g->timeout_us < r->deadline_us))
        r->deadline_us = c->arrival_us + g->timeout_us;
    r->n = g->n;
    r->max_tokens = max_tokens;
    r->min_tokens = (int32_t)(g->min_tokens < max_tokens ? g->min_tokens : max_tokens);
    memcpy(r->stop_id, g->stop_id, sizeof r->stop_id);
    r->n_stop_id = g->n_stop_id;
    r->prompt_logprobs = g->prompt_logprobs;
    r->samp = g->samp;
    r->samp.n_top = g->n_top;
    r->samp.grammar = grammar_ref(g->samp.grammar);
    r->think = dup_bytes(g->think, sizeof *g->think);
    r->samp.bias = dup_bytes(g->samp.bias, (size_t)g->samp.n_bias * sizeof *g->samp.bias);
    r->samp.mask = dup_bytes(g->samp.mask, (size_t)(g->m->n_vocab + 31) / 32 * 4);
    if (g->predict.n)
        r->predict = dup_bytes(g->predict.id, g->predict.n * sizeof *g->predict.id);
    r->n_predict = r->predict ? (int32_t)g->predict.n : 0;
    if ((g->think && !r->think) || (g->predict.n && !r->predict) ||
        (g->samp.bias && !r->samp.bias) || (g->samp.mask && !r->samp.mask)) {
        request_free(r);
        return NULL;
    }
    r->priority = (int)g->priority;
    r->cache_salt = g->cache_salt;
    if (g->echo || g->prompt_logprobs >= 0) { /* the ids are needed again for the answer */
        r->prompt = dup_bytes(ids->id, ids->n * sizeof *ids->id);
        if (!r->prompt) {
            request_free(r);
            return NULL;
        }
    } else {
        r->prompt = ids->id;
        ids->id = NULL;
    }
    r->n_prompt = (int32_t)ids->n;
    ids->cap = 0;
    return r;
}

/* Output tokens that prompt i may have, or -1 after ending the call. */
static int64_t room_for(struct api_call *c, struct gen *g, int i)
{
    int64_t n = (int64_t)g->prompt[i].ids.n, ctx = g->m->n_ctx;
    if (n == 0) {
        api__bad(c, g->prompt_param, "invalid_value", "Invalid '%s': the prompt is empty.",
                 g->prompt_param);
        return -1;
    }
    if (n > ctx || (n == ctx && g->max_tokens != 0)) {
        api__bad(c, g->prompt_param, "context_length_exceeded",
                 "This model's maximum context length is %lld tokens. However, your %s resulted in "
                 "%lld tokens. Please shorten it.",
                 (long long)ctx, g->prompt_param, (long long)n);
        return -1;
    }
    if (g->max_tokens > ctx - n) {
        api__bad(c, g->max_param, "context_length_exceeded",
                 "This model's maximum context length is %lld tokens. However, you requested %lld "
                 "tokens (%lld in the %s, %lld in the completion). Please reduce one of them.",
                 (long long)ctx, (long long)(n + g->max_tokens), (long long)n, g->prompt_param,
                 (long long)g->max_tokens);
        return -1;
    }
    return g->max_tokens >= 0 ? g->max_tokens : ctx - n;
}

#define DATA "data: "

static void write_head(struct api_call *c, struct gen *g)
{
    struct buf *b = &g->head;
    GEN_PUT(b, DATA "{\"id\":");
    buf_json(b, g->id, strlen(g->id));
    buf_fmt(b, ",\"object\":\"%s\",\"created\":%lld,\"model\":",
            g->stream ? g->w->chunk_object : g->w->object, (long long)c->created);
    buf_json(b, g->m->name, strlen(g->m->name));
    GEN_PUT(b, ",\"system_fingerprint\":\"stepd-" STEPD_VERSION "\",\"choices\":[");
}

int gen_submit(struct api_call *c, struct gen *g)
{
    if (g->max_tokens >= 0 && g->min_tokens > g->max_tokens)
        return api__bad(c, "min_tokens", "invalid_value",
                        "Invalid 'min_tokens': it is more than '%s' (%lld).", g->max_param,
                        (long long)g->max_tokens);
    c->req = mem_calloc((size_t)g->n_prompt, sizeof *c->req);
    c->req_id = mem_calloc((size_t)g->n_prompt, sizeof *c->req_id);
    if (!c->req || !c->req_id)
        return api__nomem(c);
    for (int i = 0; i < g->n_prompt; i++) {
        int64_t room = room_for(c, g, i);
        if (room < 0)
            return ERR_INVAL;
        g->prompt[i].n_prompt = (int32_t)g->prompt[i].ids.n;
        struct request *r = make_request(c, g, i, (int32_t)room);
        if (!r)
            return api__nomem(c);
        c->req[c->n_req++] = r;
        for (int k = 0; k < g->n; k++) {
            struct gen_choice *ch = &g->choice[i * g->n + k];
            detok_init(&ch->detok, g->m->text->tok, !g->skip_special);
            ch->detok.started = g->continues && !g->echo_marks;
            ch->end = SIZE_MAX;
            if (g->w->event && gen_stream_open(c, g, i * g->n + k))
                return api__nomem(c);
        }
    }
    g->left = g->n_prompt;
    g->live = g->stream || g->w->ordered;
    c->stream = g->stream;
    c->out_type = g->stream ? "text/event-stream" : "application/json";
    write_head(c, g);
    return g->head.failed ? api__nomem(c) : 0;
}

int gen_run_body(struct api_call *c, const struct gen_writer *w, const char *const *known,
                 json_t *o, int (*parse)(struct api_call *c, struct gen *g, json_t *o))
{
    struct api_model *m = api__get_model(c, o);
    struct gen *g = m ? gen_new(c, m, w) : NULL;
    if (!g)
        return ERR_INVAL;
    int rc = api__check_fields(c, o, gen_fields, known);
    if (!rc)
        rc = gen_params(c, g, o);
    if (!rc)
        rc = parse(c, g, o);
    return rc ? rc : gen_submit(c, g);
}

int gen_run(struct api_call *c, const struct gen_writer *w, const char *const *known,
            int (*parse)(struct api_call *c, struct gen *g, json_t *o))
{
    json_t *o = api__body(c);
    int rc = o ? gen_run_body(c, w, known, o, parse) : ERR_INVAL;
    json_decref(o);
    return rc;
}

/* ---- text ---- */

/* The stop string that is complete first at or after `from` (so that the cut does not depend on where tokens
 * end), the longest of several; its length in *len. SIZE_MAX if none. */
static size_t find_stop(const struct gen *g, const struct buf *t, size_t from, size_t *len)
{
    size_t end = SIZE_MAX;
    *len = 0;
    for (int i = 0; i < g->n_stop; i++) {
        size_t n = g->stop_len[i];
        const char *at =
            t->len < from + n ? NULL : memmem(t->p + from, t->len - from, g->stop[i], n);
        size_t e = at ? (size_t)(at - t->p) + n : SIZE_MAX;
        if (e < end || (at && e == end && n > *len)) {
            end = e;
            *len = n;
        }
    }
    return end == SIZE_MAX ? end : end - *len;
}

/* Bytes at the end of the text that may be the head of a stop string. */
static size_t held_back(const struct gen *g, const struct buf *t, size_t from)
{
    size_t most = 0;
    for (int i = 0; i < g->n_stop; i++) {
        size_t k = g->stop_len[i] - 1;
        if (k > t->len - from)
            k = t->len - from;
        for (; k > most; k--)
            if (memcmp(t->p + t->len - k, g->stop[i], k) == 0)
                most = k;
    }
    return most;
}

static void add_cmd(struct api_call *c, struct api_cmd cmd)
{
    if (c->n_cmd == c->cap_cmd) {
        int cap = c->cap_cmd ? c->cap_cmd * 2 : 8;
        c->cmd = xrealloc(c->cmd, (size_t)cap * sizeof *c->cmd);
        c->cap_cmd = cap;
    }
    c->cmd[c->n_cmd++] = cmd;
}

/* No memory for the answer: end the call and all of its work. Always ERR_NOMEM. */
static int give_up(struct api_call *c, const struct gen *g)
{
    for (int i = 0; i < g->n_prompt; i++)
        add_cmd(c, (struct api_cmd){.kind = API_CANCEL, .req = i});
    api_fail(c, ERR_NOMEM, NULL, "Not enough memory for this answer.", 0);
    return ERR_NOMEM;
}

int gen_mark_add(struct gen_choice *ch, struct gen_mark m)
{
    if (ch->n_mark == ch->cap_mark) {
        size_t cap = ch->cap_mark ? ch->cap_mark * 2 : 32;
        struct gen_mark *p = mem_realloc(ch->mark, cap * sizeof *p);
        if (!p)
            return ERR_NOMEM;
        ch->mark = p;
        ch->cap_mark = cap;
    }
    ch->mark[ch->n_mark++] = m;
    return 0;
}

/* Hand out text up to `to` (streaming), with the marks that lie wholly inside. The last mark waits while bytes of
 * its token do: they may still become text of its own. */
void gen_emit(struct api_call *c, struct gen *g, int i, size_t to, bool last)
{
    struct gen_choice *ch = &g->choice[i];
    size_t marks = ch->mark_sent;
    if (!g->live)
        return;
    size_t n_mark = ch->n_mark - (!last && ch->n_mark && ch->detok.n_hold);
    while (marks < n_mark && (ch->mark[marks].end <= to || (last && ch->mark[marks].start < to)))
        marks++;
    if (to <= ch->sent && !(last && marks > ch->mark_sent))
        return;
    struct view v = {ch->text.p ? ch->text.p + ch->sent : "", to - ch->sent};
    g->w->delta(c, g, i, v, marks);
    ch->sent = to;
    ch->mark_sent = marks;
}

/* Before the first of anything of choice i. 0, or ERR_NOMEM with the call ended. */
static int open_choice(struct api_call *c, struct gen *g, int i)
{
    struct gen_choice *ch = &g->choice[i];
    if (ch->opened)
        return 0;
    ch->opened = true;
    if (g->live && g->w->open)
        g->w->open(c, g, i);
    const struct gen_prompt *p = &g->prompt[i / g->n];
    if (g->echo_marks) { /* the first token has no log-probability, hence no event */
        struct sample_out first = {.token = p->ids.id[0]};
        if (gen_prompt_mark(g, i, &first, true))
            return give_up(c, g);
    } else if (g->echo) {
        buf_str(&ch->text, p->echo);
        ch->stop_from = ch->text.len;
    }
    return ch->text.failed ? give_up(c, g) : 0;
}

static void finish_choice(struct api_call *c, struct gen *g, int i, enum finish_reason why)
{
    struct gen_choice *ch = &g->choice[i];
    ch->finish = why;
    gen_emit(c, g, i, gen_text_end(ch), true);
    if (g->live)
        g->w->delta(c, g, i, (struct view){NULL, 0}, ch->mark_sent);
}

/* Look for a stop string in what was added since `before`. */
bool gen_stopped(struct gen *g, struct gen_choice *ch, size_t before)
{
    size_t back = g->stop_longest ? g->stop_longest - 1 : 0;
    size_t from = before > back ? before - back : 0, len = 0;
    if (from < ch->stop_from)
        from = ch->stop_from;
    size_t at = g->n_stop ? find_stop(g, &ch->text, from, &len) : SIZE_MAX;
    if (at == SIZE_MAX)
        return false;
    ch->end = g->include_stop ? at + len : at;
    return true;
}

static int plain_token(struct gen *g, struct gen_choice *ch, const struct sample_out *tok)
{
    size_t before = ch->text.len;
    detok_push(&ch->detok, tok->token, &ch->text);
    if (ch->text.failed)
        return ERR_NOMEM;
    if (g->n_top < 0)
        return 0;
    return gen_mark_add(ch, (struct gen_mark){.start = before, .end = ch->text.len, .tok = *tok});
}

static void on_finish(struct api_call *c, struct gen *g, int i, enum finish_reason why)
{
    struct gen_choice *ch = &g->choice[i];
    if (ch->finish != FINISH_NONE || open_choice(c, g, i))
        return;
    size_t before = ch->text.len;
    if (ch->stream) {
        if (gen_stream_finish(g, ch)) {
            give_up(c, g);
            return;
        }
    } else {
        detok_flush(&ch->detok, &ch->text);
        if (ch->text.failed) {
            give_up(c, g);
            return;
        }
        if (ch->n_mark)
            ch->mark[ch->n_mark - 1].end = ch->text.len;
    }
    if (ch->stream ? ch->sink.stopped : gen_stopped(g, ch, before))
        why = FINISH_STOP;
    finish_choice(c, g, i, why);
}

/* The choice has written for as long as its request lets it. As in llama-server's t_max_predict_ms a line is
 * finished first: nothing ends before there is a line break in the text. */
static bool wrote_long(const struct gen *g, struct gen_choice *ch)
{
    if (!g->write_us)
        return false;
    int64_t now = clock_us();
    if (!ch->first_us)
        ch->first_us = now;
    return now - ch->first_us >= g->write_us && ch->text.len > ch->stop_from &&
           memchr(ch->text.p + ch->stop_from, '\n', ch->text.len - ch->stop_from);
}

static void on_token(struct api_call *c, struct gen *g, int req, const struct event *ev)
{
    int i = req * g->n + ev->choice;
    struct gen_choice *ch = &g->choice[i];
    if (ch->finish != FINISH_NONE) /* tokens in flight when a stop string matched */
        return;
    if (open_choice(c, g, i))
        return;
    size_t before = ch->text.len;
    ch->n_out++;
    ch->n_foretold += ev->predicted;
    if (ch->stream ? gen_stream_token(g, ch, &ev->tok) : plain_token(g, ch, &ev->tok)) {
        give_up(c, g);
        return;
    }
    if (ch->n_out <= g->min_tokens)
        ch->stop_from = ch->text.len;
    if (ch->stream ? ch->sink.stopped : gen_stopped(g, ch, before)) {
        add_cmd(c, (struct api_cmd){API_FINISH_CHOICE, req, ev->choice, ch->n_out});
        finish_choice(c, g, i, FINISH_STOP);
        return;
    }
    if (wrote_long(g, ch)) {
        add_cmd(c, (struct api_cmd){API_FINISH_CHOICE, req, ev->choice, ch->n_out});
        on_finish(c, g, i, FINISH_LENGTH);
        return;
    }
    size_t lo = ch->sent > ch->stop_from ? ch->sent : ch->stop_from;
    gen_emit(c, g, i, ch->text.len - held_back(g, &ch->text, lo < ch->text.len ? lo : ch->text.len),
             false);
}

static void on_prompt(struct api_call *c, struct gen *g, int req, const struct event *ev)
{
    if (g->show_prompt >= 0 && gen_prompt_keep(&g->prompt[req], &ev->tok)) {
        give_up(c, g);
        return;
    }
    for (int k = 0; k < g->n; k++) {
        int i = req * g->n + k;
        if (open_choice(c, g, i))
            return;
        if (g->echo_marks && gen_prompt_mark(g, i, &ev->tok, false)) {
            give_up(c, g);
            return;
        }
    }
}

static void end_all(struct api_call *c, struct gen *g)
{
    struct buf *b = &c->out;
    c->n_prompt = c->n_output = c->n_cached = 0;
    for (int i = 0; i < g->n_prompt; i++) {
        c->n_prompt += g->prompt[i].n_prompt;
        c->n_cached += g->prompt[i].n_cached;
        for (int k = 0; k < g->n; k++)
            c->n_output += g->choice[i * g->n + k].n_out;
    }
    if (g->stream && g->w->end) {
        g->w->end(c, g);
    } else if (!g->stream && g->w->whole) {
        g->w->whole(c, g);
    } else if (g->stream) {
        if (g->include_usage) {
            gen_frame_begin(c, g);
            GEN_PUT(b, "],\"usage\":");
            gen_usage(b, g);
            GEN_PUT(b, "}\n\n");
        }
        buf_str(b, "data: [DONE]\n\n");
    } else {
        buf_add(b, g->head.p + strlen(DATA), g->head.len - strlen(DATA));
        for (int i = 0; i < g->n_prompt * g->n; i++) {
            if (i)
                buf_char(b, ',');
            g->w->choice(c, g, i);
        }
        buf_str(b, "],\"usage\":");
        gen_usage(b, g);
        if (g->w->event) /* of a chat: there is one prompt */
            gen_prompt_logprobs(b, g, 0);
        buf_str(b, "}\n");
    }
    c->done = true;
}

void gen_event(struct api_call *c, int req, const struct event *ev)
{
    struct gen *g = c->priv;
    switch (ev->kind) {
    case EV_TOKEN:
        on_token(c, g, req, ev);
        break;
    case EV_PROMPT:
        on_prompt(c, g, req, ev);
        break;
    case EV_IMAGE_STEP:
    case EV_IMAGE:
    case EV_EMBED:
    case EV_AUDIO:
        event_drop(ev); /* of no language model */
        break;
    case EV_FINISH:
        on_finish(c, g, req * g->n + ev->choice, ev->finish);
        break;
    case EV_DONE:
        g->prompt[req].n_cached = ev->n_cached;
        /* Every choice has said why it ended; a cancelled one has not. */
        for (int k = 0; k < g->n && !c->done; k++)
            on_finish(c, g, req * g->n + k, FINISH_LENGTH);
        if (--g->left == 0 && !c->done)
            end_all(c, g);
        break;
    case EV_ERROR:
        for (int i = 0; i < g->n_prompt; i++)
            if (i != req)
                add_cmd(c, (struct api_cmd){.kind = API_CANCEL, .req = i});
        api__fail_event(c, ev);
        break;
    }
}

/* ---- pieces for writers ---- */

void gen_usage(struct buf *b, const struct gen *g)
{
    long in = 0, out = 0, cached = 0, thought = 0, foretold = 0, wrong = 0;
    for (int i = 0; i < g->n_prompt; i++) {
        in += g->prompt[i].n_prompt;
        cached += g->prompt[i].n_cached;
        for (int k = 0; k < g->n; k++) {
            out += g->choice[i * g->n + k].n_out;
            thought += g->choice[i * g->n + k].n_reasoning;
            long hit = g->choice[i * g->n + k].n_foretold, all = (long)g->predict.n;
            foretold += hit;
            wrong += hit < all ? all - hit : 0;
        }
    }
    buf_fmt(b,
            "{\"prompt_tokens\":%ld,\"completion_tokens\":%ld,\"total_tokens\":%ld,"
            "\"prompt_tokens_details\":{\"cached_tokens\":%ld}",
            in, out, in + out, cached);
    if (g->w->event)
        buf_fmt(b,
                ",\"completion_tokens_details\":{\"reasoning_tokens\":%ld,"
                "\"accepted_prediction_tokens\":%ld,\"rejected_prediction_tokens\":%ld}",
                thought, foretold, wrong);
    buf_char(b, '}');
}

const char *gen_finish_name(enum finish_reason f)
{
    return f == FINISH_LENGTH ? "length" : "stop";
}

size_t gen_text_end(const struct gen_choice *ch)
{
    return ch->end < ch->text.len ? ch->end : ch->text.len;
}

size_t gen_marks_end(const struct gen_choice *ch)
{
    size_t end = gen_text_end(ch), k = 0;
    while (k < ch->n_mark && (ch->mark[k].end <= end || ch->mark[k].start < end))
        k++;
    return k;
}

void gen_int(struct buf *b, long v)
{
    char text[24], *p = text + sizeof text;
    unsigned long u = v < 0 ? 0 - (unsigned long)v : (unsigned long)v;
    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    buf_add(b, p, (size_t)(text + sizeof text - p));
}

void gen_frame_begin(struct api_call *c, struct gen *g)
{
    c->streamed = true;
    buf_add(&c->out, g->head.p, g->head.len);
}

void gen_frame_end(struct api_call *c, struct gen *g)
{
    if (g->continuous_usage) {
        GEN_PUT(&c->out, "],\"usage\":");
        gen_usage(&c->out, g);
        GEN_PUT(&c->out, "}\n\n");
    } else if (g->include_usage) {
        GEN_PUT(&c->out, "],\"usage\":null}\n\n");
    } else {
        GEN_PUT(&c->out, "]}\n\n");
    }
}

void gen_logprob(struct buf *b, float v)
{
    char text[32];
    if (!isfinite(v))
        v = -9999.0f;
    else if (v > 0 || v == 0) /* rounding above log 1; and no "-0" */
        v = 0;
    int n = snprintf(text, sizeof text, "%.9g", (double)v);
    buf_add(b, text, (size_t)n);
    if (v == floorf(v) && fabsf(v) < 1e6f)
        GEN_PUT(b, ".0");
}

struct view gen_mark_text(const struct gen_choice *ch, const struct gen_mark *m)
{
    return (struct view){ch->text.p ? ch->text.p + m->start : "", m->end - m->start};
}
