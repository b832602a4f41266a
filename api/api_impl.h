/* Private to api/: the shared state, and helpers that endpoints use. See route.h for threads. */
#ifndef API_API_IMPL_H
#define API_API_IMPL_H

#include <jansson.h>
#include <stdatomic.h>

#include "api/route.h"
#include "api/template.h"
#include "api/tools.h"
#include "engine/text/text_model.h"

#define API_MODELS_MAX 32

struct api_model {
    char *name;                /* what clients say */
    char *aliases;             /* comma separated or NULL */
    struct text_model *text;   /* NULL: an image model */
    struct api_template *tmpl; /* NULL: no chat template */
    char *tmpl_error;          /* why not, when the file has one that does not compile */
    int64_t created;           /* seconds since 1970, when it was added */
    bool ready;
    int32_t n_ctx, n_vocab; /* in force; from the engine */
    bool developer;         /* the template knows the role of that name */
    bool calls_null;        /* it shows calls of earlier turns only where content is null */
    bool args_text;         /* it wants arguments of earlier calls as a text, not as an object */
    bool flag_enable, flag_thinking, flag_effort; /* it knows these variables */
    bool flag_functions;                          /* and takes tools as a text, with the date */
    bool tools_empty;                /* no tools are an empty list to it, as null fails */
    struct chat_format format;       /* how answers are written */
    bool is_encoder;                 /* makes vectors or scores */
    bool is_audio;                   /* transcribes speech */
    struct eng_encoder_info encoder; /* of an encoder; known once it is ready */
    struct eng_image_info image;     /* of an image model; known once it is ready */
    struct eng_audio_info audio;     /* of a speech model; known once it is ready */
    struct view
        *control; /* [n_control] texts of control tokens in byte order, owned by the tokenizer */
    int n_control;
    struct grammar_vocab *vocab; /* of grammars; made when the first one is (structured.c) */
    bool control_first[256];     /* first bytes of those texts */
};

struct api {
    struct api_opts o;
    struct api_model model[API_MODELS_MAX];
    int n_model;
    struct gram_cache *grammars;      /* compiled ones */
    struct response_store *responses; /* answers that clients come back to */
    struct image_store *images;       /* pictures behind addresses */
    atomic_size_t audio_bytes;        /* frames of recordings inside */
};

/* Endpoints; each is the prepare function of a route. */
int api_chat(struct api_call *c);
int api_completions(struct api_call *c);
int api_infill(struct api_call *c);
int api_responses(struct api_call *c);
int api_responses_count(struct api_call *c);
int api_response_get(struct api_call *c);
int api_response_delete(struct api_call *c);
int api_response_cancel(struct api_call *c);
int api_messages(struct api_call *c);
int api_messages_count(struct api_call *c);
int api_models(struct api_call *c);
int api_page(struct api_call *c);
int api_openapi(struct api_call *c);
int api_model(struct api_call *c);
int api_tokenize(struct api_call *c);
int api_detokenize(struct api_call *c);

int api_embeddings(struct api_call *c);
int api_rerank(struct api_call *c);
int api_score(struct api_call *c);

int api_images_generations(struct api_call *c);
int api_images_edits(struct api_call *c);
int api_images_file(struct api_call *c);

int api_audio_transcriptions(struct api_call *c);
int api_audio_translations(struct api_call *c);

/* Serve an image model under this name, as api_model_add does for a path that holds one. */
int api__image_model_add(struct api *a, const char *name, const char *aliases, struct err *e);
/* The model that `name` means (name or alias), or NULL. */
struct api_model *api__model_find(struct api *a, const char *name, size_t n, int *index);

/* ---- errors (error.c) ---- */

/* End the call with 400 (or `status`): OpenAI error body. param and code may be NULL. Always returns
 * ERR_INVAL, so that parsers write `return api__bad(...)`. */
int api__bad(struct api_call *c, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int api__refuse(struct api_call *c, int status, const char *param, const char *code,
                const char *text);
/* Append {"error":{...}} (no newline). */
void api__error_body(struct buf *b, const char *type, const char *param, const char *code,
                     const char *text);
/* After writing into out: an allocation that failed ends the call. */
void api__check_out(struct api_call *c);
int api__nomem(struct api_call *c); /* 503: a size that the client chose could not be had */
void api__header(struct api_call *c, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* End the call with an error of the engine or the scheduler; what passes by itself may be tried again in a second. */
void api__fail_event(struct api_call *c, const struct event *ev);

/* ---- requests ---- */

/* The name (`name` where the client gave none) and the times of a request of this call; queue_s: how long it may wait,
 * 0 without end. */
void api__request_start(const struct api_call *c, struct request *r, const char *name,
                        double queue_s);

/* ---- JSON in (json.c): typed getters. `param` is the full path for messages ("messages[0].role").
 * Each returns 0 (absent or null leave *out as it was) or has ended the call and returns ERR_INVAL. ---- */

/* The body as a JSON object (caller decrefs), or NULL after ending the call. */
json_t *api__body(struct api_call *c);
/* Let JSON values take their memory through mem.h. Process-wide, before the first value is made. */
void api__json_init(void);
/* Parse a text with jansson's flags: 0, ERR_PARSE (*je says why) or ERR_NOMEM. Any thread. */
int api__json_load(json_t **out, struct view text, size_t flags, json_error_t *je);
/* Deepest nesting of a text, strings skipped. jansson recurses: look before parsing. */
int api__json_depth(const char *s, size_t n);
int api__get_int(struct api_call *c, json_t *o, const char *key, int64_t range[2], int64_t *out);
int api__get_num(struct api_call *c, json_t *o, const char *key, double range[2], double *out);
int api__get_bool(struct api_call *c, json_t *o, const char *key, bool *out);
int api__get_str(struct api_call *c, json_t *o, const char *key, struct view *out);
/* The same of a value found already, under its full path. */
int api__bool_at(struct api_call *c, const json_t *v, const char *param, bool *out);
const char *api__json_type(const json_t *v); /* "an integer", "a string", ... */
/* Top-level fields outside both NULL-terminated lists: 400 in strict mode, else a warning header. */
int api__check_fields(struct api_call *c, json_t *o, const char *const *known,
                      const char *const *own);
/* "model" of a request -> language model; ends the call when missing, unknown, of the other kind or still loading. */
struct api_model *api__get_model(struct api_call *c, json_t *o);
/* The same for encoders, and for whatever has a tokenizer. */
struct api_model *api__get_encoder(struct api_call *c, json_t *o);
struct api_model *api__get_text_model(struct api_call *c, json_t *o);
/* What has a tokenizer, if there is exactly one such. */
const struct api_model *api__only_text(const struct api *a);
/* The same for image models; the first of them when the request names none. */
struct api_model *api__get_image_model(struct api_call *c, json_t *o);
/* The same for speech models. */
struct api_model *api__get_audio_model(struct api_call *c, json_t *o);

#endif
