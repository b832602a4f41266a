/* Private to the stream and its families of call formats. The core (stream.c) keeps what was pushed and not yet decided
 * in a window p[0, n) and hands out text and reasoning; from an opening mark on, a family's step function reads the
 * window. What a step decides may depend on the window's beginning only, never on where it happens to end: then
 * the answer does not depend on how the text was cut. */
#ifndef API_STREAM_IMPL_H
#define API_STREAM_IMPL_H

#include <string.h>

#include "api/stream.h"
#include "api/tools.h"

enum st_step {
    ST_MORE,   /* the window is too short to decide */
    ST_AGAIN,  /* went on: call again */
    ST_DONE,   /* the calls are over: what follows is text */
    ST_REJECT, /* no call after all; only before st_begin: the opening mark is text */
};

struct tool_family {
    const char *name;
    const char *const *open; /* NULL-terminated marks that may open calls; NULL: see `bare` */
    const char *const
        *control;     /* further control tokens that mean something, NULL-terminated; NULL */
    const char *bare; /* first characters of an answer that may be calls without a mark */
    const char *
        loose; /* the same of a family with marks, which small models leave out: read, but never asked for */
    bool whole;    /* step reads everything, text and reasoning too */
    bool wraps;    /* stands around texts, too: read with or without tools */
    bool brief_id; /* ids of 9 letters and digits, which the template asks for */
    enum st_step (*step)(struct stream *s);
    const void *form; /* of families that share a step: their table */
};

/* One JSON value being passed over; zeroed at its start. */
struct st_scan {
    int depth;
    bool any, str, esc;
};

enum st_phase { PHASE_START, PHASE_THINK, PHASE_TEXT, PHASE_CALL };

struct stream {
    struct stream_opts o;
    struct buf pend;   /* the window is pend[head, len) */
    size_t head, base; /* base: offset of the window in all that was pushed */
    const char *p;
    size_t n;
    bool final, failed;
    enum st_phase phase;
    bool lead;       /* white space before the next text is dropped */
    bool any_text;   /* some text went out */
    bool after_call; /* nothing but white space since a call */
    size_t skip; /* bytes of the window's beginning that open nothing (a mark that was rejected) */
    /* calls */
    int n_call;
    bool in_call, mute, began; /* began: a call of this section went out */
    bool any_args;             /* of the open call */
    size_t mark;               /* white space before the opening mark */
    /* the families' own; zeroed at an opening mark */
    struct st_own {
        int state, which; /* which: the opening mark, -1 bare */
        int key;          /* what the key at hand means */
        size_t at, from;  /* offsets in the window */
        size_t args, args_end;
        unsigned types; /* of the argument at hand */
        bool array, has_args, has_name, first, think;
        enum st_step (*step)(struct stream *s); /* another family's that took over */
        struct st_scan scan;
    } own;
    struct buf name, id, key, value, close;
    struct buf ids; /* that models gave so far */
};

/* One of these characters; texts may hold zeros, which are in no set. */
static inline bool st_in(const char *set, char c)
{
    return c && strchr(set, c);
}

/* ---- window ---- */
void st_drop(struct stream *s, size_t k); /* k <= n */
bool st_at(const struct stream *s, size_t at, const char *mark);
/* At `at` stands a part of `mark` that the window cuts off (never once final). */
bool st_part(const struct stream *s, size_t at, const char *mark);
/* First of the NULL-terminated marks at or after `from`: its offset, *which; else SIZE_MAX and *safe, the offset up to
 * which none can begin. */
size_t st_find(const struct stream *s, size_t from, const char *const *marks, int *which,
               size_t *safe);
size_t st_space(const struct stream *s, size_t at); /* the first offset that is no white space */
/* Pass over one JSON value from *at on: 1 it ends at *at, 0 more is needed, -1 there is none. */
int st_value(const struct stream *s, size_t *at, struct st_scan *sc);

/* The model has ended within `mark`, which nothing else follows. */
bool st_cut(const struct stream *s, size_t at, const char *mark);

/* ---- events ---- */
void st_text(struct stream *s, size_t k);      /* the window's first k bytes are text; drops them */
void st_reasoning(struct stream *s, size_t k); /* or reasoning */
/* A call of s->name (and s->id, if not empty) begins. */
void st_begin(struct stream *s);
void st_args(struct stream *s, const char *p, size_t n);
void st_end(struct stream *s, bool whole); /* whole: without arguments it has "{}" */
/* The text of a JSON string; false: it is none. */
bool st_text_of(struct stream *s, const char *p, size_t n, struct buf *out);
/* Parameters of the request's tool of that name, or NULL. */
const json_t *st_parameters(const struct stream *s, const char *name, bool *known);

/* ---- steps that formats have alike (stream_step.c) ---- */
/* No call is to be had from here on. */
enum st_step st_broken(struct stream *s);
/* The call that begins next has this name, and no id yet. */
void st_name(struct stream *s, const char *p, size_t n);
/* Drops all up to the end of `mark`, if that stands at `at` or the model has ended within it. */
bool st_pass(struct stream *s, size_t at, const char *mark);
/* From own.at on: `open`, behind which state `then` goes on from own.from, or the end with `close` (may be NULL). */
enum st_step st_section(struct stream *s, const char *open, const char *close, int then);
/* More of arguments that are one JSON value, from own.at and own.scan on: 1 they end, 0 more is needed, -1 they are none. */
int st_args_more(struct stream *s);
/* The same; at its end the call is over and state `then` goes on. */
enum st_step st_args_value(struct stream *s, int then);
/* The format's last mark, which may be missing. */
enum st_step st_close(struct stream *s, const char *close);

/* ---- families (one file each) ---- */
enum st_step tools_json_step(struct stream *s);
enum st_step tools_named_step(struct stream *s);
enum st_step tools_xml_step(struct stream *s);
enum st_step tools_python_step(struct stream *s);
enum st_step tools_gemma_step(struct stream *s);
enum st_step tools_harmony_step(struct stream *s);
enum st_step tools_recipient_step(struct stream *s);

/* Form of tools_json_step. */
struct json_form {
    const char *close[4];     /* of each opening mark; NULL: none */
    const char *name, *name2; /* keys */
    const char *args, *args2;
    bool list;                               /* calls stand in an array */
    bool keyed;                              /* {"NAME": {ARGUMENTS}} */
    enum st_step (*other)(struct stream *s); /* reads what is no JSON after the mark; NULL */
    const void *other_form;
};

/* Of tools_named_step: OPEN HEAD SEPARATOR {ARGUMENTS} CLOSE, where the head has the name. */
struct named_form {
    const char *call_open; /* NULL: the opening mark opens one call */
    const char *separator, *call_close, *close;
    const char *mid; /* parts the head: ID mid NAME, or NAME mid ID with id_last; NULL */
    bool id_last;
    bool id_head; /* the head is an id that has the name in it: functions.NAME:0 */
    bool brace;   /* "{" may stand for the separator */
    bool fenced;  /* KIND SEPARATOR NAME, then the arguments in a code block; or as above */
};

/* Of tools_xml_step. */
struct xml_form {
    bool section; /* the family's first mark opens several calls, its second one */
    const char *call_open;
    const char *name_end
        [4]; /* kept: the first that begins with "<" or is white space stays in the window */
    const char *arg_open, *arg_name_end, *arg_mid, *arg_close;
    const char *call_close, *close;
    bool newline; /* a line break on either side of a value is none of it */
    bool attrs;   /* a name ends at its quotation mark; string="true" or type="string" may follow */
    const char *ns; /* arg_close goes on with the key and ">"; values may be tags of their own, each
                       after this (tools_nested.c) */
    const char *json_open, *json_close; /* around all arguments as one JSON text; NULL */
    const char *name_tail; /* of forced calls: between a function's name and name_end */
    bool tight;            /* of forced calls: no line breaks between tags */
    int noise; /* the family's last so many opening marks open nothing and are left out */
};

/* Of tools_python_step and tools_gemma_step: the closing mark, and what quotes texts. */
struct other_form {
    const char *close, *quote;
};

/* ---- values that are no JSON yet (tools_value.c) ---- */
enum {
    TYPE_STRING = 1,
    TYPE_NUMBER = 2,
    TYPE_BOOL = 4,
    TYPE_NULL = 8,
    TYPE_OBJECT = 16,
    TYPE_ARRAY = 32,
    TYPE_ANY = 63
};
/* Types that the schema of argument `key` of the tool s->name allows; TYPE_ANY where it is unknown. */
unsigned st_types(const struct stream *s, const char *key);
const json_t *st_schema(const struct stream *s, const char *key); /* its schema, or NULL */
unsigned st_schema_types(const json_t *schema);                   /* of a schema; TYPE_ANY */
/* A written value of these types as JSON: itself, a Python literal brought to JSON, else a string. */
void st_put_value(struct stream *s, const char *p, size_t n, unsigned types);
void st_put_text(struct stream *s, const char *p, size_t n); /* as the inside of a JSON string */
/* What stands between the tags of an argument: tags of its own, after `ns`, or a value as above. */
void st_put_nested(struct stream *s, struct view text, const char *ns, const json_t *schema);
/* `{"key": ` or `, "key": ` of s->own.first. */
void st_put_key(struct stream *s, const char *p, size_t n);
/* A Python literal (quote NULL) or a value of Gemma's with that mark around texts -> JSON; false: it is none. */
bool st_literal(const char *p, size_t n, const char *quote, struct buf *out);
/* A written value of argument s->key as JSON: such a literal, or by the argument's types. */
void st_put_literal(struct stream *s, const char *p, size_t n, const char *quote);
/* Passes over one argument value: its end, at a "," or the closing bracket of `ends` outside of all brackets and texts;
 * SIZE_MAX: it is not there yet. */
size_t st_literal_end(const struct stream *s, size_t at, const char *ends, const char *quote);
bool st_name_ok(const char *p, size_t n);

#endif
