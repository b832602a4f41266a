/* Private to api/: endpoints that speak chat in other words (responses, messages). A request becomes the fields of a chat
 * completions request; of the answer's events come blocks in order (reasoning, text, calls), which the endpoint writes as
 * they grow (streaming) or at the end: both from the same blocks. Loop thread after api_prepare. */
#ifndef API_TALK_H
#define API_TALK_H

#include "api/gen.h"

enum block_kind { BLOCK_REASONING, BLOCK_TEXT, BLOCK_CALL };
struct talk_block {
    enum block_kind kind;
    struct buf text; /* reasoning, text, or arguments */
    char *name, *id; /* BLOCK_CALL */
    size_t mark_from,
        mark_to; /* BLOCK_TEXT: marks of its tokens, when log-probabilities are wanted */
    bool ended;  /* nothing more comes */
    bool cut;    /* the model broke off within it */
};

/* What an endpoint does with blocks, streaming only: block k has begun, has grown by `text`, has ended. */
struct talk_style {
    void (*begin)(struct api_call *c, struct gen *g); /* the frames before the first block */
    void (*open)(struct api_call *c, struct gen *g, int k);
    void (*grow)(struct api_call *c, struct gen *g, int k, struct view text);
    void (*close)(struct api_call *c, struct gen *g, int k);
    const char *list;             /* what the request calls its messages */
    const char *other[2];         /* and what messages of source -1 and -2 come from */
    const char *const (*name)[2]; /* fields of chat and their names here, until a NULL */
    void (*free)(void *talk);     /* of an endpoint's own members; NULL: none */
};

/* An endpoint's struct begins with this; it is g->own. */
struct talk {
    const struct talk_style *style;
    struct talk_block *block; /* [n_block] */
    int n_block, cap_block;
    size_t mark_seen;
    json_t *chat; /* the chat request that is made */
    json_t *
        source; /* message i came from element source[i] of the request's list; -1, -2: see style; -3: the list is
                       a string */
};

/* Body, model, gen_new, and g->own of `size` bytes with an empty chat request. NULL after ending the call. *o: the body,
 * which the caller drops. */
struct gen *talk_new(struct api_call *c, const struct gen_writer *w, const struct talk_style *style,
                     size_t size, json_t **o);
/* Parse the chat request: errors speak in the endpoint's words. */
int talk_parse(struct api_call *c, struct gen *g);
/* Add a message (the reference is taken over) that came from `source`. 0 or ERR_INVAL. */
int talk_message(struct api_call *c, struct talk *t, json_t *message, int source);
/* Copy fields of the request that chat calls the same, NULL-terminated. */
int talk_copy(struct api_call *c, struct talk *t, json_t *o, const char *const *keys);

/* "tools" of the request and the list that becomes those of the chat request, empty yet; *list NULL or null: there
 * are none. */
int talk_tools(struct api_call *c, struct talk *t, json_t *o, json_t **list, json_t **out);

/* open, delta and event of the writer. */
void talk_open(struct api_call *c, struct gen *g, int i);
void talk_delta(struct api_call *c, struct gen *g, int i, struct view text, size_t mark_to);
void talk_event(struct api_call *c, struct gen *g, int i, const struct stream_event *ev);

/* ---- pieces for writers ---- */
/* Begin a frame: its event line and {"type":"NAME"; the writer adds members, then its end. */
void talk_frame(struct api_call *c, const char *type);
void talk_frame_end(struct api_call *c);
void talk_text(struct buf *b, const struct buf *text); /* as a JSON string */

/* ---- pieces for parsers ---- */
/* Refuse a field: "Invalid 'PARAM': why". */
int talk_bad(struct api_call *c, const char *param, const char *code, const char *why);
/* A shallow copy of an object; NULL without memory (json_copy drops members then, without a word). */
json_t *talk_object(json_t *o);
/* The path "a.b" or "a[i]" into out. */
const char *talk_at(char *out, size_t cap, const char *list, size_t i, const char *sub);

#endif
