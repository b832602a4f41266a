/* Private to api/: one generation call (chat or completions): parameters in, token events out. The
 * same incremental path (detokenise, match stop strings, hold back) feeds the streamed and the whole answer. Loop
 * thread after api_prepare. */
#ifndef API_GEN_H
#define API_GEN_H

#include "api/api_impl.h"
#include "api/stream.h"
#include "api/tools.h"
#include "engine/text/detok.h"

#define GEN_STOP_MAX     16
#define GEN_STOP_LONGEST 1024 /* bytes of one stop string */

/* A token with log-probabilities: its text is text[start, end) of the choice. */
struct gen_mark {
    size_t start, end; /* bytes; start == end while its character is incomplete */
    struct sample_out tok;
    bool no_logprob; /* the first prompt token has none */
    /* Chats: where it stands in what the stream was given; start and end are SIZE_MAX until that is decided. */
    size_t raw_start, raw_end;
    bool hidden; /* no part of the answer's text: reasoning, a call */
};

/* What the events of a choice's stream come back to. */
struct gen_sink {
    struct api_call *c;
    struct gen *g;
    int i;
    bool stopped, nomem;
};

struct gen_choice {
    struct detok detok;
    struct buf
        text; /* everything detokenised so far; of chats: the answer without reasoning and calls */
    struct stream *stream; /* chats: takes the text apart */
    struct gen_sink sink;
    size_t raw; /* bytes pushed into it */
    struct stream_fold
        fold;              /* chats: reasoning and calls so far (its text is not used: `text` is) */
    int32_t n_reasoning;   /* tokens of n_out within reasoning */
    size_t sent;           /* bytes of it handed out */
    size_t end;            /* where a stop string cut it; SIZE_MAX */
    size_t stop_from;      /* no stop string is looked for before this offset (min_tokens) */
    struct gen_mark *mark; /* [n_mark], when log-probabilities are wanted */
    size_t n_mark, cap_mark, mark_sent;
    size_t mark_open;   /* chats: marks before it have their places */
    int32_t n_out;      /* tokens that count */
    int32_t n_foretold; /* of those, the ones that the request's prediction named */
    bool opened;        /* the role frame went out */
    enum finish_reason finish;
    size_t chars_sent; /* characters handed out: text_offset */
    int64_t first_us;  /* when its first token came; kept with gen.write_us only */
};

struct gen_prompt {
    struct tok_ids ids;
    char *echo; /* text to repeat, or NULL */
    int32_t n_cached, n_prompt;
    bool done;
    struct sample_out *lp; /* [n_lp] of its tokens but the first, with show_prompt */
    int32_t n_lp;
};

struct gen;
/* How an endpoint writes: a delta (streaming), the end of a choice, and the whole answer. */
struct gen_writer {
    const char *id_prefix, *object, *chunk_object; /* "chatcmpl-", ... */
    void (*open)(struct api_call *c, struct gen *g, int i);
    void (*delta)(struct api_call *c, struct gen *g, int i, struct view text, size_t mark_to);
    void (*choice)(struct api_call *c, struct gen *g, int i); /* one element of "choices", whole */
    /* Of chat-like endpoints, whose answers are taken apart (stream.h); others leave them NULL. `event`, streaming:
     * everything but STREAM_TEXT, which comes through delta; fold is up to date then. `whole`: the answer without
     * streaming, in place of head + choices + usage. `end`: the last frames, in place of usage and [DONE]. */
    void (*event)(struct api_call *c, struct gen *g, int i, const struct stream_event *ev);
    void (*whole)(struct api_call *c, struct gen *g);
    void (*end)(struct api_call *c, struct gen *g);
    bool
        ordered; /* delta and event come without streaming too: the answer is put together from them */
};

struct gen {
    struct api_model *m;
    const struct gen_writer *w;
    bool stream, include_usage, continuous_usage;
    bool ignore_eos, include_stop, skip_special, echo;
    bool continues;     /* the answer goes on from the prompt's text: its first space counts */
    int n;              /* choices a prompt */
    int n_prompt;       /* prompts */
    int64_t max_tokens; /* -1 = what the context leaves */
    int64_t min_tokens, priority;
    int n_top;           /* -1 none */
    int prompt_logprobs; /* asked of the scheduler; -1 none */
    int show_prompt;     /* of them, those in a list of their own; -1 none */
    bool echo_marks;     /* they come before the answer's */
    char *stop[GEN_STOP_MAX];
    size_t stop_len[GEN_STOP_MAX], stop_longest;
    int n_stop;
    int32_t stop_id[REQ_STOP_MAX];
    int n_stop_id;
    struct req_sampling samp; /* bias and mask owned here until copied */
    uint64_t cache_salt;
    int64_t timeout_us; /* the request's own limit of time from its arrival; 0: none */
    int64_t
        write_us; /* of a choice's writing from its first token on, then it ends at a line break; 0: none */
    struct gen_prompt *prompt; /* [n_prompt] */
    struct gen_choice *choice; /* [n_prompt * n] */
    char id[96];
    struct buf head;          /* data: {"id":..., up to "choices":[ : the same for every frame */
    struct buf piece;         /* scratch: text of one token */
    const char *prompt_param; /* "messages" or "prompt" */
    const char *max_param;
    /* chats: how answers are taken apart (`event` and `ctx` are filled for each choice), and what to keep for it */
    struct stream_opts parse;
    json_t *
        tools; /* array of {"type": "function", "function": {...}} that the model may call, or NULL */
    bool must_call;          /* tool_choice required, or a function's name */
    const char *only_call;   /* that name (within tools), or NULL */
    bool strict;             /* some tool asks for arguments of its schema */
    const char *effort;      /* reasoning_effort, static storage, or NULL */
    bool think_first;        /* a grammar of the answer has to let reasoning through */
    bool hide_reasoning;     /* it is left out of the answer */
    int most_stop;           /* stop strings that this endpoint takes; 0: as configured */
    struct req_think *think; /* of the budget, for each request; or NULL */
    struct tok_ids predict;  /* chats: what the answer is expected to be */
    int64_t think_budget;    /* reasoning tokens at most; -1: no limit */
    int left;                /* requests still running */
    bool live;               /* deltas and events go to the writer as they come */
    void *own;               /* of the endpoint */
    void (*own_free)(void *own);
};

/* Parameters shared by the endpoints. Ends the call and returns ERR_INVAL on a bad one. */
int gen_params(struct api_call *c, struct gen *g, json_t *o);
struct gen *gen_new(struct api_call *c, struct api_model *m, const struct gen_writer *w);
int gen_prompts_alloc(struct gen *g, int n_prompt); /* 0 or ERR_NOMEM */
/* Tokens of a prompt's text; `wrap`: with those that the model wants around it, once, whether or not the text has the first
 * one already. As tok_encode. */
int gen_prompt_encode(const struct gen *g, struct view text, bool wrap, struct tok_ids *out);
/* Check lengths and build c->req[]: the call is ready to submit. */
int gen_submit(struct api_call *c, struct gen *g);
/* Prepare function of an endpoint: body, model, fields (`known` beside gen_fields), shared parameters, then
 * `parse`, which reads the endpoint's own and fills g->prompt, then gen_submit. */
int gen_run(struct api_call *c, const struct gen_writer *w, const char *const *known,
            int (*parse)(struct api_call *c, struct gen *g, json_t *o));
/* The same of a body that is read already. */
int gen_run_body(struct api_call *c, const struct gen_writer *w, const char *const *known,
                 json_t *o, int (*parse)(struct api_call *c, struct gen *g, json_t *o));
void gen_event(struct api_call *c, int req, const struct event *ev);
void gen_free(struct api_call *c);

/* ---- gen.c for gen_stream.c ---- */
/* Hand out text up to `to` (streaming), with the marks that lie wholly inside. */
void gen_emit(struct api_call *c, struct gen *g, int i, size_t to, bool last);
int gen_mark_add(struct gen_choice *ch, struct gen_mark m);
/* Look for a stop string in what was added since `before`; true: the choice's end is set. */
bool gen_stopped(struct gen *g, struct gen_choice *ch, size_t before);
/* ---- gen_prompt.c ---- */
/* Lay down one prompt token for echo: its mark and its text come before the output's. 0 or ERR_NOMEM. */
int gen_prompt_mark(struct gen *g, int i, const struct sample_out *tok, bool first);
/* Keep it for gen_prompt_logprobs. 0 or ERR_NOMEM. */
int gen_prompt_keep(struct gen_prompt *p, const struct sample_out *tok);
/* ,"prompt_logprobs":[...] of prompt i, as vLLM writes it; nothing where it was not asked for. */
void gen_prompt_logprobs(struct buf *b, const struct gen *g, int i);
/* ---- gen_stream.c: choices of chat-like endpoints. 0 or ERR_NOMEM ---- */
int gen_stream_open(struct api_call *c, struct gen *g, int i);
int gen_stream_token(struct gen *g, struct gen_choice *ch, const struct sample_out *tok);
int gen_stream_finish(struct gen *g, struct gen_choice *ch);

/* ---- pieces for writers ---- */
void gen_usage(struct buf *b, const struct gen *g);
const char *gen_finish_name(enum finish_reason f); /* "stop", "length" */
#define GEN_PUT(b, literal) buf_add(b, literal, sizeof(literal) - 1)
void gen_int(struct buf *b, long v); /* no printf: once a token */
/* Start and end one SSE frame; between them the writer adds the elements of "choices". */
void gen_frame_begin(struct api_call *c, struct gen *g);
void gen_frame_end(struct api_call *c, struct gen *g);
/* A float as JSON: never NaN or infinity (log-probabilities: -9999.0 stands for -inf). */
void gen_logprob(struct buf *b, float v);
/* gen_logprobs.c: the array of log-probabilities of marks [from, to), empty where none were asked for. `bytes`: with the
 * bytes of each token. */
void gen_logprobs(struct buf *b, const struct gen *g, const struct gen_choice *ch, size_t from,
                  size_t to, bool bytes);
/* Token text of a mark as the answer shows it (its own bytes; broken UTF-8 becomes U+FFFD in buf_json). */
struct view gen_mark_text(const struct gen_choice *ch, const struct gen_mark *m);
/* What a whole answer shows of a choice: bytes of its text, and marks. */
size_t gen_text_end(const struct gen_choice *ch);
size_t gen_marks_end(const struct gen_choice *ch);

/* Fields that both endpoints know. */
extern const char *const gen_fields[];

/* chat_prompt.c: messages -> prompt tokens. Ends the call on error. */
int chat_prompt(struct api_call *c, struct gen *g, json_t *o);
/* tools_request.c: "tools", "tool_choice", "parallel_tool_calls" and the old "functions" of a request. Ends the call on
 * error. */
int chat_tools(struct api_call *c, struct gen *g, json_t *o);
/* reasoning.c: reasoning_effort, include_reasoning and budgets; then, after chat_prompt, the budget as tokens. End the
 * call on error. */
int chat_reasoning(struct api_call *c, struct gen *g, json_t *o);
int chat_think_budget(struct api_call *c, struct gen *g);
/* prediction.c: "prediction" -> g->predict. Ends the call on error. */
int chat_prediction(struct api_call *c, struct gen *g, const json_t *o);
/* tools_grammar.c: what a forced call, or free text with strict calls, may be -> g->samp.grammar. After chat_prompt. Ends
 * the call on error. */
int tools_grammar(struct api_call *c, struct gen *g);
/* tools_prompt.c: tools for a model whose template knows none: messages of a normalised list in place, an instruction
 * ahead, calls and results as text. 0 or ERR_NOMEM. */
/* For templates that take tools as a JSON text, and the date (FireFunction): sets both. 0 or ERR_NOMEM. */
int chat_vars_functions(const struct api_model *m, json_t *vars, json_t *tools,
                        const struct tm *now);
int chat_tools_as_text(json_t *messages, const json_t *tools);
/* chat.c: the parse function of gen_run for endpoints that speak chat in other words: o has the fields of a chat
 * completions request ("messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort",
 * "max_completion_tokens", ...). g->prompt_param names the field that errors of a message speak of ("messages" when
 * NULL). */
int chat_parse(struct api_call *c, struct gen *g, json_t *o);

#endif
