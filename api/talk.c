/* See talk.h. */
#include "api/talk.h"

#include <stdlib.h>

#include "engine/base/mem.h"

static void talk_free(void *own)
{
    struct talk *t = own;
    if (t->style->free)
        t->style->free(t);
    for (int k = 0; k < t->n_block; k++) {
        buf_free(&t->block[k].text);
        free(t->block[k].name);
        free(t->block[k].id);
    }
    free(t->block);
    json_decref(t->chat);
    json_decref(t->source);
    free(t);
}

struct gen *talk_new(struct api_call *c, const struct gen_writer *w, const struct talk_style *style,
                     size_t size, json_t **o)
{
    *o = api__body(c);
    struct api_model *m = *o ? api__get_model(c, *o) : NULL;
    struct gen *g = m ? gen_new(c, m, w) : NULL;
    struct talk *t = g ? mem_calloc(1, size) : NULL;
    if (!g)
        return NULL;
    if (!t) {
        api__nomem(c);
        return NULL;
    }
    g->own = t;
    g->own_free = talk_free;
    t->style = style;
    t->chat = json_object();
    t->source = json_array();
    if (!t->chat || !t->source || json_object_set_new(t->chat, "messages", json_array())) {
        api__nomem(c);
        return NULL;
    }
    return g;
}

/* ---- errors in the endpoint's words ---- */

/* messages[3].content -> the place that message came from. */
static void rename_message(const struct talk *t, char *param, size_t cap)
{
    char rest[192];
    char *end = NULL;
    const char *list = t->style->list;
    size_t head = strlen("messages");
    if (param[head] != '[') {
        snprintf(rest, sizeof rest, "%s%s", list, param + head);
    } else {
        size_t i = strtoul(param + head + 1, &end, 10);
        json_t *v = json_array_get(t->source, i);
        int from = v ? (int)json_integer_value(v) : 0;
        if (from >= 0)
            snprintf(rest, sizeof rest, "%s[%d%s", list, from, end);
        else
            snprintf(rest, sizeof rest, "%s", from == -3 ? list : t->style->other[-from - 1]);
    }
    snprintf(param, cap, "%s", rest);
}

static void rename_param(struct api_call *c, char *param, size_t cap)
{
    const struct gen *g = c->priv;
    const struct talk *t = g->own;
    if (strncmp(param, "messages", strlen("messages")) == 0) {
        rename_message(t, param, cap);
        return;
    }
    for (int i = 0; t->style->name[i][0]; i++) {
        const char *from = t->style->name[i][0];
        char *at = strstr(param, from), rest[192];
        if (!at || (*from != '.' && at != param))
            continue;
        snprintf(rest, sizeof rest, "%.*s%s%s", (int)(at - param), param, t->style->name[i][1],
                 at + strlen(from));
        snprintf(param, cap, "%s", rest);
        return;
    }
}

int talk_parse(struct api_call *c, struct gen *g)
{
    struct talk *t = g->own;
    g->prompt_param = t->style->list;
    c->rename = rename_param;
    int rc = gen_params(c, g, t->chat);
    if (!rc)
        rc = chat_parse(c, g, t->chat);
    c->rename = NULL;
    return rc;
}

int talk_bad(struct api_call *c, const char *param, const char *code, const char *why)
{
    return api__bad(c, param, code, "Invalid '%s': %s", param, why);
}

json_t *talk_object(json_t *o)
{
    json_t *copy = json_copy(o);
    if (copy && json_object_size(copy) == json_object_size(o))
        return copy;
    json_decref(copy);
    return NULL;
}

const char *talk_at(char *out, size_t cap, const char *list, size_t i, const char *sub)
{
    snprintf(out, cap, "%s[%zu]%s%s", list, i, *sub ? "." : "", sub);
    return out;
}

int talk_message(struct api_call *c, struct talk *t, json_t *message, int source)
{
    json_t *list = json_object_get(t->chat, "messages");
    if (json_array_append_new(list, message) ||
        json_array_append_new(t->source, json_integer(source)))
        return api__nomem(c);
    return 0;
}

int talk_copy(struct api_call *c, struct talk *t, json_t *o, const char *const *keys)
{
    for (int i = 0; keys[i]; i++) {
        json_t *v = json_object_get(o, keys[i]);
        if (v && json_object_set(t->chat, keys[i], v))
            return api__nomem(c);
    }
    return 0;
}

int talk_tools(struct api_call *c, struct talk *t, json_t *o, json_t **list, json_t **out)
{
    *list = json_object_get(o, "tools");
    *out = NULL;
    if (!*list || json_is_null(*list))
        return 0;
    if (!json_is_array(*list))
        return talk_bad(c, "tools", "invalid_type", "expected an array.");
    *out = json_array();
    if (!*out || json_object_set_new(t->chat, "tools", *out))
        return api__nomem(c);
    return 0;
}

/* ---- blocks ---- */

static bool is_json(const struct buf *text)
{
    json_t *v = NULL;
    bool ok = !api__json_load(&v, (struct view){text->p ? text->p : "", text->len}, JSON_DECODE_ANY,
                              NULL);
    json_decref(v);
    return ok;
}

static void end_block(struct api_call *c, struct gen *g)
{
    struct talk *t = g->own;
    struct talk_block *b = t->n_block ? &t->block[t->n_block - 1] : NULL;
    if (!b || b->ended)
        return;
    b->ended = true;
    b->cut = b->kind == BLOCK_CALL ? !is_json(&b->text) : g->choice[0].finish == FINISH_LENGTH;
    if (g->stream)
        t->style->close(c, g, t->n_block - 1);
}

/* A new block, after the one before has ended; NULL without memory: the call's output has failed then. */
static struct talk_block *begin_block(struct api_call *c, struct gen *g, enum block_kind kind)
{
    struct talk *t = g->own;
    end_block(c, g);
    if (t->n_block == t->cap_block) {
        int cap = t->cap_block ? t->cap_block * 2 : 4;
        void *p = mem_realloc(t->block, (size_t)cap * sizeof *t->block);
        if (!p) {
            c->out.failed = true;
            return NULL;
        }
        t->block = p;
        t->cap_block = cap;
    }
    struct talk_block *b = &t->block[t->n_block++];
    *b = (struct talk_block){.kind = kind, .mark_from = t->mark_seen, .mark_to = t->mark_seen};
    return b;
}

static void grow(struct api_call *c, struct gen *g, enum block_kind kind, struct view text)
{
    struct talk *t = g->own;
    struct talk_block *b = t->n_block ? &t->block[t->n_block - 1] : NULL;
    if (!b || b->ended || b->kind != kind) {
        b = begin_block(c, g, kind);
        if (!b)
            return;
        if (g->stream)
            t->style->open(c, g, t->n_block - 1);
    }
    buf_add(&b->text, text.p, text.len);
    c->out.failed |= b->text.failed;
}

void talk_open(struct api_call *c, struct gen *g, int i)
{
    const struct talk *t = g->own;
    (void)i;
    if (g->stream)
        t->style->begin(c, g);
}

void talk_delta(struct api_call *c, struct gen *g, int i, struct view text, size_t mark_to)
{
    struct talk *t = g->own;
    (void)i;
    if (c->out.failed)
        return;
    if (!text.p) {
        end_block(c, g);
        return;
    }
    const struct talk_block *last = t->n_block ? &t->block[t->n_block - 1] : NULL;
    bool open = last && !last->ended && last->kind == BLOCK_TEXT;
    if (text.len || open) { /* marks without text begin no block */
        grow(c, g, BLOCK_TEXT, text);
        if (c->out.failed)
            return;
        t->block[t->n_block - 1].mark_to = mark_to;
        if (g->stream)
            t->style->grow(c, g, t->n_block - 1, text);
    }
    t->mark_seen = mark_to;
}

static void begin_call(struct api_call *c, struct gen *g, const struct stream_event *ev)
{
    struct talk *t = g->own;
    struct talk_block *b = begin_block(c, g, BLOCK_CALL);
    if (!b)
        return;
    b->name = mem_alloc(strlen(ev->name) + 1);
    b->id = mem_alloc(strlen(ev->id) + 1);
    if (!b->name || !b->id) { /* a failure's last frames tell of whole blocks only */
        free(b->name);
        free(b->id);
        t->n_block--;
        c->out.failed = true;
        return;
    }
    memcpy(b->name, ev->name, strlen(ev->name) + 1);
    memcpy(b->id, ev->id, strlen(ev->id) + 1);
    if (g->stream)
        t->style->open(c, g, t->n_block - 1);
}

void talk_event(struct api_call *c, struct gen *g, int i, const struct stream_event *ev)
{
    struct talk *t = g->own;
    (void)i;
    if (c->out.failed)
        return;
    switch (ev->kind) {
    case STREAM_TEXT:
        break; /* comes as a delta */
    case STREAM_REASONING:
        if (g->hide_reasoning)
            break;
        grow(c, g, BLOCK_REASONING, ev->text);
        if (g->stream && !c->out.failed)
            t->style->grow(c, g, t->n_block - 1, ev->text);
        break;
    case STREAM_CALL_BEGIN:
        begin_call(c, g, ev);
        break;
    case STREAM_CALL_ARGS:
        grow(c, g, BLOCK_CALL, ev->text);
        if (g->stream && !c->out.failed)
            t->style->grow(c, g, t->n_block - 1, ev->text);
        break;
    case STREAM_CALL_END:
        end_block(c, g);
        break;
    }
}

/* ---- pieces for writers ---- */

void talk_frame(struct api_call *c, const char *type)
{
    c->streamed = true;
    buf_fmt(&c->out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

void talk_frame_end(struct api_call *c)
{
    GEN_PUT(&c->out, "}\n\n");
}

void talk_text(struct buf *b, const struct buf *text)
{
    buf_json(b, text->p ? text->p : "", text->len);
}
