/* Private to api/: what a model wrote, taken apart. Token text goes in, in any pieces; events come out: text, reasoning,
 * and tool calls whose arguments arrive as they are produced. The events' fold (stream_fold) is the whole answer, and it
 * does not depend on how the text was cut. Text that is no call stays text: there are no parse errors.
 * One owner; no locks. */
#ifndef API_STREAM_H
#define API_STREAM_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum stream_kind {
    STREAM_TEXT,       /* text: some of the answer */
    STREAM_REASONING,  /* text: some of the thoughts before it */
    STREAM_CALL_BEGIN, /* call `call`: its name and id, whole */
    STREAM_CALL_ARGS, /* text: the next piece of that call's arguments, a JSON text when put together */
    STREAM_CALL_END, /* after it, nothing more of that call */
};

/* Calls do not interleave and are numbered from 0. Each BEGIN has its END, also where the model broke off: the
 * arguments of that call are then an incomplete JSON text. A call without arguments has "{}". */
struct stream_event {
    enum stream_kind kind;
    int call;         /* CALL_*: its number */
    const char *name; /* CALL_BEGIN; 0-terminated, valid during the event */
    const char *id;   /* CALL_BEGIN: unique within the answer */
    struct view
        text; /* TEXT, REASONING, CALL_ARGS: valid during the event, never empty, whole characters */
    size_t from; /* TEXT: where it stands in the text that was pushed, in bytes */
};

struct tool_family; /* how a family of models writes calls: tools.h */

struct stream_opts {                  /* zero = all is text */
    const struct tool_family *family; /* NULL: no calls are looked for */
    const json_t
        *tools; /* array as in a request, or NULL: types of arguments; outlives the stream */
    const char *think_open,
        *think_close; /* marks of reasoning; NULL: none. They outlive the stream */
    bool thinking;    /* the prompt has opened the reasoning already */
    int max_calls;    /* later calls are dropped; 0 = no limit (parallel_tool_calls false: 1) */
    uint64_t id_seed; /* of made-up call ids; the same seed gives the same ids */
    void (*event)(void *ctx, const struct stream_event *ev); /* never pushes or closes */
    void *ctx;
};

struct stream;
/* Copies *o. ERR_NOMEM. */
int stream_open(struct stream **out, const struct stream_opts *o);
void stream_close(struct stream *s); /* NULL is fine */
/* The next n bytes, whole characters. Events come before it returns. ERR_NOMEM: the stream is of no more use. */
int stream_push(struct stream *s, const char *text, size_t n);
/* The model has ended: what was held back comes out. */
int stream_finish(struct stream *s);
/* Within reasoning now: a token that comes next counts as a reasoning token. */
bool stream_thinking(const struct stream *s);
/* Whether the text of a control token has a meaning here, so that it must be pushed; else it is left out. */
bool stream_wants(const struct stream *s, const char *control, size_t n);

/* ---- the whole answer ---- */
struct stream_call {
    char *name, *id;
    struct buf args;
    bool ended;
};
struct stream_fold { /* zero is empty */
    struct buf text, reasoning;
    struct stream_call *call; /* [n_call] */
    int n_call, cap_call;
};
int stream_fold_add(struct stream_fold *f, const struct stream_event *ev); /* 0 or ERR_NOMEM */
void stream_fold_free(struct stream_fold *f);

#endif
