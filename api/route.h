/* What the server sees of the API: a table of endpoints, and a call that turns a request body into plain
 * `struct request`s and their events into response bytes. Knows JSON, never sockets.
 * Threads: api_prepare may run on a pool thread (it touches only the call and read-only state); everything else on
 * the loop thread. */
#ifndef API_ROUTE_H
#define API_ROUTE_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "sched/request.h"

struct api; /* models and limits; read-only after set-up */

struct api_opts {       /* 0 = default; the limits of the operations guide */
    int max_n;          /* choices a request: 128 */
    int max_prompts;    /* prompts a completions request: 64; n x prompts <= 256 */
    int max_inputs;     /* texts of one embeddings, rerank or score request: 2048 */
    int max_messages;   /* 2048 */
    int max_json_depth; /* 64 */
    int max_logit_bias; /* 1024 entries */
    int64_t template_max_steps,
        template_max_loop;        /* 1,000,000 and 10,000: see api_template_limits */
    size_t template_max_bytes;    /* 64 MiB of rendered prompt */
    int max_stop;                 /* 4 */
    const char *reasoning_field;  /* of a chat: "reasoning_content" (NULL), "reasoning", "both" */
    bool strict_fields;           /* unknown top-level fields are a 400, not a warning header */
    double request_timeout_s;     /* deadline of a whole answer; 0 = none */
    double queue_timeout_s;       /* longest wait before the first step; 60 */
    double image_queue_timeout_s; /* the same of pictures, which take longer; 600 */
    int max_image_n;              /* pictures a request: 10 */
    int64_t max_image_pixels;     /* width * height of a picture: 0 = the model's own limit */
    double image_url_ttl_s;     /* response_format "url": how long a picture can be fetched; 3600 */
    size_t grammar_cache_bytes; /* compiled grammars kept for the next request; 64 MiB */
    double responses_ttl_s;     /* how long a stored response can be asked for; a day */
    size_t responses_store_bytes; /* memory of stored responses, the oldest go first; 64 MiB */
    double audio_queue_timeout_s; /* as image_queue_timeout_s, of recordings; 600 */
    double audio_seconds_max;     /* of one recording: 7200 */
    size_t audio_memory;          /* frames of all recordings inside: 1 GiB */
    size_t image_store_bytes;     /* memory of those pictures, the oldest go first; 256 MiB */
};

int api_open(struct api **out, const struct api_opts *o, struct err *e);
void api_close(struct api *a);

/* Serve the model in `path` under `name` (and `aliases`, comma separated, may be NULL). Reads tokenizer and chat
 * template. chat_template: file that replaces the model's own, or NULL. Returns its index (>= 0), which is what
 * call->model says, or ERR_*. */
int api_model_add(struct api *a, const char *name, const char *aliases, const char *path,
                  const char *chat_template, struct err *e);
/* The small model in `path` has the tokens of the served one (index `model`), as a draft model must. ERR_INVAL names the first
 * that differs; ERR_* of reading it. */
int api_model_same_tokens(struct api *a, int model, const char *path, struct err *e);
/* Facts known once the engine is open: context length and vocabulary in force. Loop thread, before calls. */
void api_model_ready(struct api *a, int model, const struct eng_info *info);

enum api_route_flags {
    API_KEY = 1,    /* needs an API key when keys are set */
    API_BODY = 2,   /* reads a JSON body */
    API_SERVER = 4, /* answered by the server itself: /health /live /ready /metrics */
    API_POOL =
        8, /* api_prepare runs on a pool thread whatever the body's size: it decodes pictures */
    API_MESSAGES = 16, /* errors have the form of Anthropic's API */
    API_AUDIO = 64,    /* its body may be as large as sound files are */
    API_PAGE = 32,     /* of the playground: there unless it is switched off */
};
struct api_call;
struct api_route {
    const char *method; /* "POST" */
    const char *path;   /* "/v1/chat/completions"; a trailing "*" matches the rest of the path */
    unsigned flags;
    int (*prepare)(struct api_call *c);
};
/* The route of a method and path (without query), or NULL: then *allow is the comma-separated list of methods
 * that the path has (-> 405), or NULL (-> 404). HEAD finds GET. Static storage. */
const struct api_route *api_route_find(const char *method, const char *path, const char **allow);

enum api_cmd_kind { API_CANCEL /* the whole request */, API_FINISH_CHOICE };
struct api_cmd {
    enum api_cmd_kind kind;
    int req, choice; /* req: index in call->req */
    int32_t keep;    /* output tokens that count */
};

struct api_header {
    const char *name;
    char value[192];
};

/* Work for a pool thread after the call was prepared (encoding a picture): a struct of the endpoint's begins with
 * this. `run` may touch only the job; `done` is called on the loop thread and frees the job; its c is NULL when the
 * call has ended meanwhile. */
struct api_job {
    struct api_job *next;
    void (*run)(struct api_job *j);
    void (*done)(struct api_call *c, struct api_job *j);
};

/* What an error says; NULL: nothing. */
struct api_error {
    int status; /* HTTP */
    const char *type, *param, *code, *text;
};

/* One exchange. Zeroed and filled by the server ("in"), worked on by api ("out"). */
struct api_call {
    /* in */
    struct api *api;
    const struct api_route *route;
    const char *method, *path, *query;
    const char *body; /* [body_len], outlives the call */
    size_t body_len;
    const char *content_type;  /* of the request, or NULL */
    const char *host;          /* the Host header as sent, or NULL: for addresses in answers */
    const char *if_none_match; /* that header as sent, or NULL */
    bool https;                /* the client came over TLS */
    const char *request_id;
    int64_t arrival_us;
    int64_t created; /* wall clock, seconds */
    bool loading;    /* the model's engine is not open yet */
    uint64_t owner;  /* which API key asks: what it stores, no other key reads; 0 without keys */

    /* out: the response. Headers may be sent once out.len > 0 or done; before that, status may still change. */
    int status;           /* HTTP status, 200 unless set */
    const char *out_type; /* "application/json", "text/event-stream", ... */
    struct api_header header[6];
    int n_header;
    bool stream;    /* out is a stream of whole SSE frames */
    bool streamed;  /* frames were appended: the status is settled */
    struct buf out; /* bytes to send; the server drops what it sent */
    bool done;      /* nothing more will be appended */
    bool close;     /* close the connection after the answer */

    /* out: work. The server gives ids, submits each to the worker of `model`, and feeds events back. */
    int model;
    struct request **req; /* [n_req], moved to the worker: entries become NULL */
    uint64_t *req_id;     /* [n_req], filled by the server */
    int n_req;
    struct api_cmd *cmd; /* [n_cmd] to carry out after each api_event / api_fail, then n_cmd = 0 */
    int n_cmd, cap_cmd;
    struct api_job
        *job; /* list to start after api_prepare, api_event or a job's done; the server takes it */

    /* out: for the access log and metrics */
    int32_t n_prompt, n_output, n_cached;
    char error_code[48];
    char model_name[96];

    void *priv; /* of the endpoint */
    void (*on_event)(struct api_call *c, int req, const struct event *ev);
    void (*free_priv)(struct api_call *c);
    /* of the endpoint: the last frames of a stream that fails (NULL: one frame of the error), and the name that a
     * field of an error has in the request (in place; NULL: as it is) */
    void (*on_fail)(struct api_call *c, const struct api_error *x);
    void (*rename)(struct api_call *c, char *param, size_t cap);
};

/* Whether api_prepare of this call may take longer than the loop should wait: it belongs on the pool whatever the body's
 * size (a grammar is to be compiled). Looks at route and body only. */
bool api_wants_pool(const struct api_call *c);
/* Parse, check, render, tokenise. Afterwards either done is set (an answer or an error is in out) or req[] holds
 * work to submit. Never fails otherwise. */
void api_prepare(struct api_call *c);
/* An event of call->req[req]. Appends to out; sets done at the end, which may be only after the call's jobs are done.
 * Takes ev->px over. */
void api_event(struct api_call *c, int req, const struct event *ev);
/* End the call with an error made by the server (auth, limits, queue full, draining, ...). Before the first byte: an
 * HTTP status and an OpenAI error body; after it: one SSE error frame. param may be NULL.
 * retry_after_s > 0 adds Retry-After. */
void api_fail(struct api_call *c, int code, const char *param, const char *text, int retry_after_s);
/* For a call whose out failed for want of memory before anything was sent: sets status, type and error code, and
 * returns the body to send instead. Static storage. */
struct view api_out_failed(struct api_call *c);
/* Frees what api owns inside (out, req, cmd, priv), not the call. */
void api_call_free(struct api_call *c);

/* HTTP status of an ERR_* (the one table, api/error.c). */
int api_status(int code);

#endif
