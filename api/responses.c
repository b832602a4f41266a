/* POST /v1/responses and /v1/responses/input_tokens. */
#include "api/responses_impl.h"
#include "engine/base/thread.h"

/* ---- items of the answer ---- */

static void put_id(struct buf *b, const struct gen *g, int k)
{
    static const char *const prefix[] = {
        [BLOCK_REASONING] = "rs", [BLOCK_TEXT] = "msg", [BLOCK_CALL] = "fc"};
    const struct talk *t = g->own;
    buf_fmt(b, "\"%s_%so%d\"", prefix[t->block[k].kind], resp_id(g), k);
}

static void put_part(struct buf *b, const struct gen *g, const struct talk_block *k, bool done)
{
    static const struct buf empty = {0};
    const struct resp *r = g->own;
    if (k->kind == BLOCK_TEXT) {
        GEN_PUT(b, "{\"type\":\"output_text\",\"text\":");
        talk_text(b, done ? &k->text : &empty);
        GEN_PUT(b, ",\"annotations\":[],\"logprobs\":");
        gen_logprobs(b, g, &g->choice[0], k->mark_from, done ? k->mark_to : k->mark_from, true);
    } else {
        buf_fmt(b, "{\"type\":\"%s\",\"text\":", r->summary ? "summary_text" : "reasoning_text");
        talk_text(b, done ? &k->text : &empty);
    }
    buf_char(b, '}');
}

/* Block k as an item of "output": whole, or as it is when it begins. */
static void put_item(struct buf *b, const struct gen *g, int k, bool done)
{
    const struct resp *r = g->own;
    const struct talk_block *t = &r->t.block[k];
    const char *status = !done ? "in_progress" : t->cut ? "incomplete" : "completed";
    GEN_PUT(b, "{\"id\":");
    put_id(b, g, k);
    if (t->kind == BLOCK_CALL) {
        GEN_PUT(b, ",\"type\":\"function_call\",\"call_id\":");
        buf_json(b, t->id, strlen(t->id));
        GEN_PUT(b, ",\"name\":");
        buf_json(b, t->name, strlen(t->name));
        GEN_PUT(b, ",\"arguments\":");
        talk_text(b, &t->text);
    } else if (t->kind == BLOCK_TEXT) {
        GEN_PUT(b, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (done)
            put_part(b, g, t, true);
        buf_char(b, ']');
    } else {
        GEN_PUT(b, ",\"type\":\"reasoning\",\"summary\":[");
        if (done && r->summary)
            put_part(b, g, t, true);
        GEN_PUT(b, "],\"content\":[");
        if (done && !r->summary)
            put_part(b, g, t, true);
        GEN_PUT(b, "],\"encrypted_content\":null");
    }
    buf_fmt(b, ",\"status\":\"%s\"}", status);
}

/* ---- the response object ---- */

static const char *end_status(const struct gen *g)
{
    return g->choice[0].finish == FINISH_LENGTH ? "incomplete" : "completed";
}

static void put_usage(struct buf *b, const struct gen *g)
{
    const struct gen_choice *ch = &g->choice[0];
    const struct gen_prompt *p = &g->prompt[0];
    buf_fmt(b,
            ",\"usage\":{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d,"
            "\"cache_write_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":{"
            "\"reasoning_tokens\":%d},\"total_tokens\":%d}",
            p->n_prompt, p->n_cached, ch->n_out, ch->n_reasoning, p->n_prompt + ch->n_out);
}

/* The object in a state: "in_progress" has no output yet; "failed" says why. */
static void put_response(struct buf *b, const struct api_call *c, const struct gen *g,
                         const char *status, const struct api_error *why)
{
    const struct resp *r = g->own;
    bool over = strcmp(status, "in_progress") != 0;
    buf_add(b, r->head.p, r->head.len);
    buf_fmt(b, ",\"status\":\"%s\",\"completed_at\":", status);
    if (strcmp(status, "completed") == 0)
        buf_fmt(b, "%lld", (long long)(c->created + (clock_us() - c->arrival_us) / 1000000));
    else
        GEN_PUT(b, "null");
    GEN_PUT(b, ",\"error\":");
    if (why) {
        GEN_PUT(b, "{\"code\":\"server_error\",\"message\":");
        buf_json(b, why->text, strlen(why->text));
        buf_char(b, '}');
    } else {
        GEN_PUT(b, "null");
    }
    buf_str(b, strcmp(status, "incomplete") == 0
                   ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                   : ",\"incomplete_details\":null");
    GEN_PUT(b, ",\"output\":[");
    for (int k = 0; over && k < r->t.n_block; k++) {
        if (k)
            buf_char(b, ',');
        put_item(b, g, k, true);
    }
    buf_char(b, ']');
    if (over && !why) /* the schema knows no null here */
        put_usage(b, g);
    buf_char(b, '}');
}

/* Only what is kept can be asked for later; an answer larger than the whole store cannot. */
static void keep(struct api_call *c, struct gen *g)
{
    struct resp *r = g->own;
    struct response_kept k = {0};
    if (!r->store)
        return;
    char *items = json_dumps(r->items, JSON_COMPACT);
    if (items)
        buf_str(&k.items, items);
    free(items);
    put_response(&k.response, c, g, end_status(g), NULL);
    if (!items || k.items.failed || k.response.failed)
        response_kept_free(&k);
    else
        response_store_put(c->api->responses, g->id, c->owner, &k, clock_us());
}

/* ---- streaming ---- */

static void frame(struct api_call *c, struct gen *g, const char *type)
{
    struct resp *r = g->own;
    talk_frame(c, type);
    GEN_PUT(&c->out, ",\"sequence_number\":");
    gen_int(&c->out, (long)r->seq++);
}

static void response_frame(struct api_call *c, struct gen *g, const char *type, const char *status,
                           const struct api_error *why)
{
    frame(c, g, type);
    GEN_PUT(&c->out, ",\"response\":");
    put_response(&c->out, c, g, status, why);
    talk_frame_end(c);
}

static void begin(struct api_call *c, struct gen *g)
{
    response_frame(c, g, "response.created", "in_progress", NULL);
    response_frame(c, g, "response.in_progress", "in_progress", NULL);
}

/* An event of block k's only part: with its item, and its places. */
static void part_frame(struct api_call *c, struct gen *g, int k, const char *type)
{
    const struct resp *r = g->own;
    frame(c, g, type);
    GEN_PUT(&c->out, ",\"item_id\":");
    put_id(&c->out, g, k);
    buf_fmt(&c->out, ",\"output_index\":%d", k);
    if (r->t.block[k].kind == BLOCK_REASONING && r->summary)
        GEN_PUT(&c->out, ",\"summary_index\":0");
    else if (r->t.block[k].kind != BLOCK_CALL)
        GEN_PUT(&c->out, ",\"content_index\":0");
}

static void item_frame(struct api_call *c, struct gen *g, int k, bool done)
{
    frame(c, g, done ? "response.output_item.done" : "response.output_item.added");
    buf_fmt(&c->out, ",\"output_index\":%d,\"item\":", k);
    put_item(&c->out, g, k, done);
    talk_frame_end(c);
}

/* content_part.added and .done, of a summary reasoning_summary_part. */
static void part_edge(struct api_call *c, struct gen *g, int k, bool done)
{
    const struct resp *r = g->own;
    const struct talk_block *b = &r->t.block[k];
    bool sum = b->kind == BLOCK_REASONING && r->summary;
    part_frame(c, g, k,
               sum    ? done ? "response.reasoning_summary_part.done"
                             : "response.reasoning_summary_part.added"
               : done ? "response.content_part.done"
                      : "response.content_part.added");
    GEN_PUT(&c->out, ",\"part\":");
    put_part(&c->out, g, b, done);
    talk_frame_end(c);
}

static void open_block(struct api_call *c, struct gen *g, int k)
{
    const struct resp *r = g->own;
    item_frame(c, g, k, false);
    if (r->t.block[k].kind != BLOCK_CALL)
        part_edge(c, g, k, false);
}

static const char *text_event(const struct resp *r, int k, bool done)
{
    switch (r->t.block[k].kind) {
    case BLOCK_TEXT:
        return done ? "response.output_text.done" : "response.output_text.delta";
    case BLOCK_CALL:
        return done ? "response.function_call_arguments.done"
                    : "response.function_call_arguments.delta";
    case BLOCK_REASONING:
        break;
    }
    if (r->summary)
        return done ? "response.reasoning_summary_text.done"
                    : "response.reasoning_summary_text.delta";
    return done ? "response.reasoning_text.done" : "response.reasoning_text.delta";
}

static void grow_block(struct api_call *c, struct gen *g, int k, struct view text)
{
    struct resp *r = g->own;
    const struct talk_block *b = &r->t.block[k];
    part_frame(c, g, k, text_event(r, k, false));
    GEN_PUT(&c->out, ",\"delta\":");
    buf_json(&c->out, text.p, text.len);
    if (b->kind == BLOCK_TEXT) {
        GEN_PUT(&c->out, ",\"logprobs\":");
        gen_logprobs(&c->out, g, &g->choice[0], r->t.mark_seen, b->mark_to, false);
    }
    talk_frame_end(c);
}

static void close_block(struct api_call *c, struct gen *g, int k)
{
    const struct resp *r = g->own;
    const struct talk_block *b = &r->t.block[k];
    part_frame(c, g, k, text_event(r, k, true));
    if (b->kind == BLOCK_CALL) {
        GEN_PUT(&c->out, ",\"name\":");
        buf_json(&c->out, b->name, strlen(b->name));
        GEN_PUT(&c->out, ",\"arguments\":");
    } else {
        GEN_PUT(&c->out, ",\"text\":");
    }
    talk_text(&c->out, &b->text);
    if (b->kind == BLOCK_TEXT) {
        GEN_PUT(&c->out, ",\"logprobs\":");
        gen_logprobs(&c->out, g, &g->choice[0], b->mark_from, b->mark_to, false);
    }
    talk_frame_end(c);
    if (b->kind != BLOCK_CALL)
        part_edge(c, g, k, true);
    item_frame(c, g, k, true);
}

static void end(struct api_call *c, struct gen *g)
{
    const char *status = end_status(g);
    keep(c, g);
    response_frame(c, g,
                   strcmp(status, "completed") == 0 ? "response.completed" : "response.incomplete",
                   status, NULL);
}

static void whole(struct api_call *c, struct gen *g)
{
    keep(c, g);
    put_response(&c->out, c, g, end_status(g), NULL);
    buf_char(&c->out, '\n');
}

static void fail(struct api_call *c, const struct api_error *x)
{
    struct gen *g = c->priv;
    frame(c, g, "error");
    GEN_PUT(&c->out, ",\"code\":");
    buf_json(&c->out, x->code ? x->code : x->type, strlen(x->code ? x->code : x->type));
    GEN_PUT(&c->out, ",\"message\":");
    buf_json(&c->out, x->text, strlen(x->text));
    GEN_PUT(&c->out, ",\"param\":null");
    talk_frame_end(c);
    response_frame(c, g, "response.failed", "failed", x);
}

static const struct gen_writer writer = {
    .id_prefix = "resp_",
    .object = "response",
    .chunk_object = "response",
    .open = talk_open,
    .delta = talk_delta,
    .event = talk_event,
    .whole = whole,
    .end = end,
    .ordered = true,
};

static void resp_free(void *own)
{
    struct resp *r = own;
    json_decref(r->items);
    buf_free(&r->head);
}

static const char *const names[][2] = {
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"max_completion_tokens", "max_output_tokens"},
    {"reasoning_effort", "reasoning.effort"},
    {".function", ""},
    {NULL, NULL},
};

static const struct talk_style style = {
    .begin = begin,
    .open = open_block,
    .grow = grow_block,
    .close = close_block,
    .list = "input",
    .other = {"instructions", "previous_response_id"},
    .name = names,
    .free = resp_free,
};

/* ---- truncation ---- */

/* Drop the oldest turns until `bytes` of text are gone, but the last message and the rules before all. A call goes with
 * its results. false: nothing is left to drop. */
static bool drop_oldest(struct resp *r, size_t bytes)
{
    json_t *list = json_object_get(r->t.chat, "messages");
    size_t at = 0, gone = 0, first = 0;
    const char *role;
    while ((role = json_string_value(json_object_get(json_array_get(list, at), "role"))) &&
           (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0))
        at++;
    while (json_array_size(list) - at > 1) {
        json_t *m = json_array_get(list, at);
        bool result = strcmp(json_string_value(json_object_get(m, "role")), "tool") == 0;
        if (first && gone >= bytes && !result)
            break;
        gone += json_string_length(json_object_get(m, "content")) + 8;
        json_array_remove(list, at);
        json_array_remove(r->t.source, at);
        first++;
    }
    return first > 0;
}

/* Render again with fewer messages until the prompt leaves room for an answer. */
static int shorten(struct api_call *c, struct gen *g)
{
    struct resp *r = g->own;
    struct tok_ids *ids = &g->prompt[0].ids;
    int64_t room = g->m->n_ctx - (g->max_tokens > 0 ? g->max_tokens : 1);
    while (room > 0 && (int64_t)ids->n > room) {
        size_t over = ids->n - (size_t)room;
        if (!drop_oldest(r, over)) /* a token is a byte at least: it may take more turns */
            break;
        ids->n = 0;
        if (chat_prompt(c, g, r->t.chat))
            return ERR_INVAL;
    }
    return 0;
}

/* ---- endpoints ---- */

static int prepare(struct api_call *c, struct gen *g, json_t *o)
{
    if (api__check_fields(c, o, resp_fields, resp_fields) || resp_params(c, g, o) ||
        resp_input(c, g, o) || talk_parse(c, g))
        return ERR_INVAL;
    struct resp *r = g->own;
    g->max_param = "max_output_tokens";
    return r->shorten ? shorten(c, g) : 0;
}

int api_responses(struct api_call *c)
{
    json_t *o = NULL;
    struct gen *g = talk_new(c, &writer, &style, sizeof(struct resp), &o);
    int rc = g ? prepare(c, g, o) : ERR_INVAL;
    if (!rc && resp_head(c, g, o))
        rc = api__nomem(c);
    if (!rc)
        rc = gen_submit(c, g);
    if (!rc)
        c->on_fail = fail;
    json_decref(o);
    return rc;
}

int api_responses_count(struct api_call *c)
{
    json_t *o = NULL;
    struct gen *g = talk_new(c, &writer, &style, sizeof(struct resp), &o);
    int rc = g ? prepare(c, g, o) : ERR_INVAL;
    if (!rc) {
        buf_fmt(&c->out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}\n",
                g->prompt[0].ids.n);
        c->done = true;
    }
    json_decref(o);
    return rc;
}
