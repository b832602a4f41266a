/* POST /v1/messages and /v1/messages/count_tokens: chat as Anthropic's API says it. */
#include "api/messages_impl.h"

/* ---- pieces ---- */

/* Ids of calls begin as that API's clients know them. */
static void put_id(struct buf *b, const char *id)
{
    char text[160];
    const char *own = strncmp(id, "call_", 5) == 0 ? id + 5 : NULL;
    snprintf(text, sizeof text, "%s%.140s", own ? "toolu_" : "", own ? own : id);
    buf_json(b, text, strlen(text));
}

/* Arguments are an object here: those that broke off are left out. */
static void put_input(struct buf *b, const struct buf *text)
{
    json_t *v = NULL;
    char *s = NULL;
    if (!api__json_load(&v, (struct view){text->p ? text->p : "", text->len}, 0, NULL) &&
        json_is_object(v))
        s = json_dumps(v, JSON_COMPACT);
    buf_str(b, s ? s : "{}");
    free(s);
    json_decref(v);
}

/* Block k: whole, or as it is when it begins. */
static void put_block(struct buf *b, const struct talk_block *k, bool done)
{
    static const struct buf empty = {0};
    const struct buf *text = done ? &k->text : &empty;
    switch (k->kind) {
    case BLOCK_REASONING:
        GEN_PUT(b, "{\"type\":\"thinking\",\"thinking\":");
        talk_text(b, text);
        GEN_PUT(b, ",\"signature\":\"\"}");
        break;
    case BLOCK_TEXT:
        GEN_PUT(b, "{\"type\":\"text\",\"text\":");
        talk_text(b, text);
        buf_char(b, '}');
        break;
    case BLOCK_CALL:
        GEN_PUT(b, "{\"type\":\"tool_use\",\"id\":");
        put_id(b, k->id);
        GEN_PUT(b, ",\"name\":");
        buf_json(b, k->name, strlen(k->name));
        GEN_PUT(b, ",\"input\":");
        put_input(b, text);
        buf_char(b, '}');
        break;
    }
}

/* The stop string that ended the answer: it stands where the text was cut. NULL: none did. */
static const char *stop_string(const struct gen *g)
{
    const struct gen_choice *ch = &g->choice[0];
    const char *best = NULL;
    size_t len = 0;
    for (int i = 0; ch->end != SIZE_MAX && i < g->n_stop; i++)
        if (g->stop_len[i] > len && ch->text.len - ch->end >= g->stop_len[i] &&
            memcmp(ch->text.p + ch->end, g->stop[i], g->stop_len[i]) == 0) {
            best = g->stop[i];
            len = g->stop_len[i];
        }
    return best;
}

static void put_stop(struct buf *b, const struct gen *g)
{
    const struct msg *m = g->own;
    const char *stop = stop_string(g);
    const char *why = stop                                       ? "stop_sequence"
                      : g->choice[0].finish == FINISH_LENGTH     ? "max_tokens"
                      : m->t.n_block && g->choice[0].fold.n_call ? "tool_use"
                                                                 : "end_turn";
    buf_fmt(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", why);
    if (stop)
        buf_json(b, stop, strlen(stop));
    else
        GEN_PUT(b, "null");
}

/* What was found in the cache is counted apart, and known at the end only. */
static void put_usage(struct buf *b, const struct gen *g)
{
    int32_t cached = g->prompt[0].n_cached;
    buf_fmt(b,
            "\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,"
            "\"cache_read_input_tokens\":%d,\"output_tokens\":%d}",
            g->prompt[0].n_prompt - cached, cached, g->choice[0].n_out);
}

static void put_head(struct buf *b, const struct gen *g)
{
    buf_fmt(b, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    buf_json(b, g->m->name, strlen(g->m->name));
    GEN_PUT(b, ",\"content\":[");
}

/* ---- the answer ---- */

static void begin(struct api_call *c, struct gen *g)
{
    talk_frame(c, "message_start");
    GEN_PUT(&c->out, ",\"message\":");
    put_head(&c->out, g);
    GEN_PUT(&c->out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(&c->out, g);
    buf_char(&c->out, '}');
    talk_frame_end(c);
    talk_frame(c, "ping");
    talk_frame_end(c);
}

static void open_block(struct api_call *c, struct gen *g, int k)
{
    const struct talk *t = g->own;
    talk_frame(c, "content_block_start");
    buf_fmt(&c->out, ",\"index\":%d,\"content_block\":", k);
    put_block(&c->out, &t->block[k], false);
    talk_frame_end(c);
}

static void grow_block(struct api_call *c, struct gen *g, int k, struct view text)
{
    static const char *const names[][2] = {
        [BLOCK_REASONING] = {"thinking_delta", "thinking"},
        [BLOCK_TEXT] = {"text_delta", "text"},
        [BLOCK_CALL] = {"input_json_delta", "partial_json"},
    };
    const struct talk *t = g->own;
    enum block_kind kind = t->block[k].kind;
    if (!text.len)
        return;
    talk_frame(c, "content_block_delta");
    buf_fmt(&c->out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", k, names[kind][0],
            names[kind][1]);
    buf_json(&c->out, text.p, text.len);
    buf_char(&c->out, '}');
    talk_frame_end(c);
}

static void close_block(struct api_call *c, struct gen *g, int k)
{
    (void)g;
    talk_frame(c, "content_block_stop");
    buf_fmt(&c->out, ",\"index\":%d", k);
    talk_frame_end(c);
}

static void end(struct api_call *c, struct gen *g)
{
    talk_frame(c, "message_delta");
    GEN_PUT(&c->out, ",\"delta\":{");
    put_stop(&c->out, g);
    GEN_PUT(&c->out, "},");
    put_usage(&c->out, g);
    talk_frame_end(c);
    talk_frame(c, "message_stop");
    talk_frame_end(c);
}

static void whole(struct api_call *c, struct gen *g)
{
    const struct talk *t = g->own;
    struct buf *b = &c->out;
    put_head(b, g);
    for (int k = 0; k < t->n_block; k++) {
        if (k)
            buf_char(b, ',');
        put_block(b, &t->block[k], true);
    }
    GEN_PUT(b, "],");
    put_stop(b, g);
    buf_char(b, ',');
    put_usage(b, g);
    GEN_PUT(b, "}\n");
}

static const struct gen_writer writer = {
    .id_prefix = "msg_",
    .object = "message",
    .chunk_object = "message",
    .open = talk_open,
    .delta = talk_delta,
    .event = talk_event,
    .whole = whole,
    .end = end,
    .ordered = true,
};

static const char *const names[][2] = {
    {"max_completion_tokens", "max_tokens"},
    {"response_format.json_schema", "output_config.format"},
    {"response_format", "output_config.format"},
    {"thinking_token_budget", "thinking.budget_tokens"},
    {"reasoning_effort", "output_config.effort"},
    {"stop", "stop_sequences"},
    {".function.parameters", ".input_schema"},
    {".function", ""},
    {NULL, NULL},
};

static const struct talk_style style = {
    .begin = begin,
    .open = open_block,
    .grow = grow_block,
    .close = close_block,
    .list = "messages",
    .other = {"system", "messages"},
    .name = names,
};

/* ---- endpoints ---- */

static int prepare(struct api_call *c, bool counting)
{
    json_t *o = NULL;
    struct gen *g = talk_new(c, &writer, &style, sizeof(struct msg), &o);
    struct msg *m = g ? g->own : NULL;
    int rc = ERR_INVAL;
    if (g) {
        m->counting = counting;
        rc = msg_input(c, g, o) || talk_parse(c, g) ? ERR_INVAL : 0;
    }
    if (!rc && counting) {
        buf_fmt(&c->out, "{\"input_tokens\":%zu}\n", g->prompt[0].ids.n);
        c->done = true;
    } else if (!rc) {
        g->max_param = "max_tokens";
        rc = gen_submit(c, g);
    }
    json_decref(o);
    return rc;
}

int api_messages(struct api_call *c)
{
    return prepare(c, false);
}

int api_messages_count(struct api_call *c)
{
    return prepare(c, true);
}
