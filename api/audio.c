/* POST /v1/audio/transcriptions and /v1/audio/translations: a form with a sound file to a request. Answers are in
 * audio_answer.c. */
#include <stdatomic.h>
#include <stdlib.h>

#include "api/audio_impl.h"
#include "api/form.h"
#include "api/sound.h"
#include "engine/base/mem.h"

#define PARTS_MAX    64
#define PROMPT_BYTES (64 << 10)

const char *const stt_fields[] = {"file",
                                  "model",
                                  "prompt",
                                  "response_format",
                                  "temperature",
                                  "language",
                                  "timestamp_granularities",
                                  "stream",
                                  "include",
                                  "chunking_strategy",
                                  "known_speaker_names",
                                  "known_speaker_references",
                                  "seed",
                                  "condition_on_previous_text",
                                  "priority",
                                  "user",
                                  NULL};

/* ---- the form ---- */

static char field_kind(const char *name)
{
    static const struct {
        const char *name;
        char kind;
    } kinds[] = {{"temperature", 'n'},
                 {"stream", 'b'},
                 {"seed", 'i'},
                 {"priority", 'i'},
                 {"condition_on_previous_text", 'b'}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return kinds[i].kind;
    return 's';
}

/* "name[]" (or "name[0]") is an element of the list `name`. */
static int add_part(struct api_call *c, json_t *o, const struct multipart *m)
{
    char name[FORM_NAME_MAX];
    if (form_name(c, m, name))
        return ERR_INVAL;
    char *bracket = strchr(name, '[');
    if (bracket)
        *bracket = 0;
    if (strcmp(name, "file") == 0 || m->filename.p)
        return json_object_set_new(o, name, json_null()) ? api__nomem(c) : 0;
    json_t *v = form_value(c, name, field_kind(name), m);
    if (!v ||
        (!bracket && strcmp(name, "timestamp_granularities") != 0 && strcmp(name, "include") != 0))
        return form_set(c, o, name, v);
    json_t *list = json_object_get(o, name);
    if (!list) {
        list = json_array();
        if (json_object_set_new(o, name, list))
            list = NULL;
    }
    if (json_array_append_new(list, v))
        return api__nomem(c);
    return 0;
}

/* ---- parameters ---- */

static int get_format(struct api_call *c, struct stt_call *g, json_t *o)
{
    static const char *const names[] = {"json", "text", "srt", "verbose_json", "vtt"};
    struct view v = {0};
    if (api__get_str(c, o, "response_format", &v))
        return ERR_INVAL;
    if (!v.p)
        return 0;
    for (int i = 0; i < 5; i++)
        if (view_is(v, names[i])) {
            g->format = (enum stt_format)i;
            return 0;
        }
    return api__bad(c, "response_format", "invalid_value",
                    "Invalid 'response_format': expected 'json', 'text', 'srt', 'verbose_json' or "
                    "'vtt', but got '%.40s'.",
                    v.p);
}

static int get_language(struct api_call *c, struct stt_call *g, json_t *o)
{
    struct view v = {0};
    g->p.language = -1;
    if (api__get_str(c, o, "language", &v))
        return ERR_INVAL;
    if (!v.p || !v.len)
        return 0;
    g->p.language = aud_language_find(v.p, v.len);
    if (g->p.language < 0)
        return api__bad(c, "language", "invalid_value",
                        "Invalid 'language': '%.40s' is no ISO 639-1 code of a language that is "
                        "known here.",
                        v.p);
    if (!g->m->audio.language[g->p.language])
        return api__bad(c, "language", "unsupported_value",
                        "Invalid 'language': the model '%.60s' does not know '%.40s'.", g->m->name,
                        v.p);
    return 0;
}

static int get_granularities(struct api_call *c, struct stt_call *g, json_t *o)
{
    const char *key = "timestamp_granularities";
    json_t *v = json_object_get(o, key), *x;
    size_t i;
    g->segments = true;
    if (!v || json_is_null(v))
        return 0;
    if (g->format != STT_VERBOSE)
        return api__bad(c, key, "unsupported_value",
                        "Invalid '%s': it needs the response_format 'verbose_json'.", key);
    g->segments = false;
    json_array_foreach(v, i, x)
    {
        const char *s = json_string_value(x);
        if (s && strcmp(s, "segment") == 0)
            g->segments = true;
        else if (s && strcmp(s, "word") == 0)
            g->words = g->p.words = true;
        else
            return api__bad(c, key, "invalid_value",
                            "Invalid '%s': expected 'segment' or 'word', but got '%.40s'.", key,
                            s ? s : "something else");
    }
    if (g->words && !g->m->audio.words)
        return api__bad(c, key, "unsupported_value",
                        "Invalid '%s': the files of the model '%.60s' do not say which of its "
                        "attention heads align words (alignment_heads).",
                        key, g->m->name);
    return 0;
}

/* 0: greedy, and warmer where the text looks bad; else this one alone. */
static int get_temperature(struct api_call *c, struct stt_call *g, json_t *o)
{
    double t = 0;
    if (api__get_num(c, o, "temperature", (double[2]){0, 1}, &t))
        return ERR_INVAL;
    g->p.n_heat = t > 0 ? 1 : 6;
    g->p.heat[0] = (float)t;
    for (int i = 1; i < g->p.n_heat; i++)
        g->p.heat[i] = 0.2f * (float)i;
    return 0;
}

static int get_prompt(struct api_call *c, struct stt_call *g, json_t *o)
{
    struct view v = {0};
    struct tok_ids ids = {0};
    struct buf b = {0};
    if (api__get_str(c, o, "prompt", &v))
        return ERR_INVAL;
    while (v.len && strchr(" \t\r\n", v.p[0]))
        v = (struct view){v.p + 1, v.len - 1};
    while (v.len && strchr(" \t\r\n", v.p[v.len - 1]))
        v.len--;
    if (!v.len)
        return 0;
    if (v.len > PROMPT_BYTES)
        return api__bad(c, "prompt", "string_above_max_length",
                        "Invalid 'prompt': it has %zu bytes, %d at most.", v.len, PROMPT_BYTES);
    buf_char(&b, ' ');
    buf_add(&b, v.p, v.len);
    int rc = b.failed ? ERR_NOMEM : tok_encode(g->m->text->tok, b.p, b.len, 0, &ids);
    buf_free(&b);
    if (rc) {
        tok_ids_free(&ids);
        return rc == ERR_NOMEM ? api__nomem(c)
                               : api__bad(c, "prompt", "invalid_value",
                                          "Invalid 'prompt': it could not be tokenised.");
    }
    size_t keep = (size_t)g->m->audio.n_tok_prompt, skip = ids.n > keep ? ids.n - keep : 0;
    memmove(ids.id, ids.id + skip, (ids.n - skip) * sizeof *ids.id);
    g->prompt = ids.id;
    g->p.n_prompt = (int32_t)(ids.n - skip);
    return 0;
}

/* What other models of OpenAI's have and this kind has not: refused by name unless it asks for nothing. */
static int refuse_others(struct api_call *c, json_t *o)
{
    static const char *const none[] = {"include", "known_speaker_names",
                                       "known_speaker_references"};
    struct view v = {0};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        json_t *x = json_object_get(o, none[i]);
        if (x && !json_is_null(x) && !(json_is_array(x) && !json_array_size(x)))
            return api__bad(c, none[i], "unsupported_value",
                            "Invalid '%s': this model does not support it.", none[i]);
    }
    if (api__get_str(c, o, "chunking_strategy", &v))
        return ERR_INVAL;
    if (v.p && v.len && !view_is(v, "auto"))
        return api__bad(c, "chunking_strategy", "unsupported_value",
                        "Invalid 'chunking_strategy': only 'auto' is supported.");
    return 0;
}

static int params(struct api_call *c, struct stt_call *g, json_t *o)
{
    int64_t seed = 0;
    bool history = true;
    g->p.compression_max = 2.4f;
    g->p.logprob_min = -1;
    g->p.no_speech_min = 0.6f;
    g->p.translate = g->translate;
    if (g->translate && !g->m->audio.multilingual)
        return api__bad(c, "model", "unsupported_value",
                        "Invalid 'model': '%.60s' knows English only; it cannot translate.",
                        g->m->name);
    if (get_format(c, g, o) || get_language(c, g, o) || get_granularities(c, g, o) ||
        get_temperature(c, g, o) || get_prompt(c, g, o) || refuse_others(c, o) ||
        api__get_bool(c, o, "stream", &g->stream) ||
        api__get_bool(c, o, "condition_on_previous_text", &history) ||
        api__get_int(c, o, "seed", (int64_t[2]){INT64_MIN, INT64_MAX}, &seed) ||
        api__get_int(c, o, "priority", (int64_t[2]){-1000000, 1000000}, &g->priority))
        return ERR_INVAL;
    g->p.seed = (uint64_t)seed;
    g->p.no_history = !history;
    if (g->stream && g->format != STT_JSON && g->format != STT_TEXT)
        return api__bad(c, "stream", "unsupported_value",
                        "Invalid 'stream': it needs the response_format 'json' or 'text'.");
    return 0;
}

/* ---- the file ---- */

static bool room(void *arg, size_t bytes)
{
    struct stt_call *g = arg;
    if (bytes <= g->held)
        return true;
    size_t more = bytes - g->held;
    size_t before = atomic_fetch_add(&g->api->audio_bytes, more);
    g->held = bytes;
    return before + more <= g->api->o.audio_memory;
}

static int read_file(struct api_call *c, struct stt_call *g, const struct multipart *file)
{
    struct err e = {0};
    struct sound_limits lim = {.seconds_max = c->api->o.audio_seconds_max, .room = room, .arg = g};
    g->mel = aud_mel_new(g->m->audio.n_mel);
    if (!g->mel)
        return api__nomem(c);
    int rc = sound_read(g->mel, file->data.p, file->data.len, &lim, &e);
    if (rc == ERR_NOMEM)
        return api__nomem(c);
    if (rc == ERR_FULL) {
        api_fail(c, ERR_FULL, NULL, "Too many recordings are waiting; try again later.", 10);
        return ERR_INVAL;
    }
    if (rc)
        return api__bad(c, "file", rc == ERR_LIMIT ? "audio_too_long" : "invalid_audio",
                        "Invalid 'file': %s.", e.text);
    g->seconds = (double)g->mel->n_sample / AUD_RATE;
    return 0;
}

/* ---- the request ---- */

static void stt_free(struct api_call *c)
{
    struct stt_call *g = c->priv;
    if (!g)
        return;
    atomic_fetch_sub(&g->api->audio_bytes, g->held);
    aud_mel_free(g->mel);
    free(g->prompt);
    buf_free(&g->text);
    buf_free(&g->lines);
    buf_free(&g->word);
    free(g);
    c->priv = NULL;
}

static int submit(struct api_call *c, struct stt_call *g)
{
    struct request *r = request_new();
    c->req = mem_calloc(1, sizeof *c->req);
    c->req_id = mem_calloc(1, sizeof *c->req_id);
    if (r)
        r->audio = req_audio_new();
    if (!r || !r->audio || !c->req || !c->req_id) {
        request_free(r);
        return api__nomem(c);
    }
    c->req[0] = r;
    c->n_req = 1;
    r->audio->p = g->p;
    r->audio->p.mel = r->audio->mel = g->mel;
    r->audio->p.prompt = r->audio->prompt = g->prompt;
    g->mel = NULL;
    g->prompt = NULL;
    api__request_start(c, r, "audio", c->api->o.audio_queue_timeout_s);
    r->n = 1;
    r->prompt_logprobs = -1;
    r->samp.n_top = -1;
    r->priority = (int)g->priority;
    c->stream = g->stream;
    c->out_type = g->stream                                       ? "text/event-stream"
                  : g->format == STT_VTT                          ? "text/vtt; charset=utf-8"
                  : g->format == STT_TEXT || g->format == STT_SRT ? "text/plain; charset=utf-8"
                                                                  : "application/json";
    return 0;
}

static const struct multipart *find_file(const struct multipart *part, int n, int *n_file)
{
    const struct multipart *file = NULL;
    for (int i = 0; i < n; i++)
        if (view_is(part[i].name, "file")) {
            file = &part[i];
            ++*n_file;
        }
    return file;
}

static int run(struct api_call *c, json_t *o, const struct multipart *part, int n, bool translate)
{
    static const char *const none[] = {NULL};
    int n_file = 0;
    struct api_model *m = api__get_audio_model(c, o);
    struct stt_call *g = m ? mem_calloc(1, sizeof *g) : NULL;
    if (!g)
        return m ? api__nomem(c) : ERR_INVAL;
    g->m = m;
    g->api = c->api;
    g->translate = translate;
    c->priv = g;
    c->free_priv = stt_free;
    c->on_event = stt_event;
    const struct multipart *file = find_file(part, n, &n_file);
    if (api__check_fields(c, o, stt_fields, none) || params(c, g, o))
        return ERR_INVAL;
    if (n_file != 1)
        return api__bad(c, "file", n_file ? NULL : "missing_required_parameter",
                        n_file ? "The field 'file' is there twice."
                               : "Missing required parameter: 'file'.");
    return read_file(c, g, file) ? ERR_INVAL : submit(c, g);
}

static int transcribe(struct api_call *c, bool translate)
{
    struct form f;
    if (!multipart_is(c->content_type))
        return api__bad(c, NULL, "invalid_content_type",
                        "Expected a form (multipart/form-data) with a field 'file'.");
    int rc = form_read(c, PARTS_MAX, &f);
    for (int i = 0; !rc && i < f.n; i++)
        rc = add_part(c, f.o, &f.part[i]);
    if (!rc)
        rc = run(c, f.o, f.part, f.n, translate);
    form_free(&f);
    return rc;
}

int api_audio_transcriptions(struct api_call *c)
{
    return transcribe(c, false);
}

int api_audio_translations(struct api_call *c)
{
    return transcribe(c, true);
}
