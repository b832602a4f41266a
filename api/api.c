/* Models that the API serves: names, tokenizer, chat template. Set up before calls; read-only after,
 * except api_model_ready (loop thread). */
#include <ctype.h>
#include <stdlib.h>

#include "api/api_impl.h"
#include "api/image_store.h"
#include "api/response_store.h"
#include "api/structured.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

static void set_default(int *v, int d)
{
    if (*v <= 0)
        *v = d;
}

int api_open(struct api **out, const struct api_opts *o, struct err *e)
{
    api__json_init();
    struct api *a = mem_calloc(1, sizeof *a);
    if (!a)
        return err_set(e, ERR_NOMEM, "no memory");
    a->o = *o;
    set_default(&a->o.max_n, REQ_N_MAX);
    set_default(&a->o.max_prompts, 64);
    set_default(&a->o.max_inputs, 2048);
    set_default(&a->o.max_messages, 2048);
    set_default(&a->o.max_json_depth, 64);
    set_default(&a->o.max_logit_bias, 1024);
    if (a->o.template_max_bytes == 0)
        a->o.template_max_bytes = (size_t)64 << 20;
    set_default(&a->o.max_stop, 4);
    if (a->o.max_n > REQ_N_MAX)
        a->o.max_n = REQ_N_MAX;
    if (a->o.queue_timeout_s == 0)
        a->o.queue_timeout_s = 60;
    if (a->o.image_queue_timeout_s == 0)
        a->o.image_queue_timeout_s = 600;
    if (a->o.audio_queue_timeout_s == 0)
        a->o.audio_queue_timeout_s = 600;
    if (a->o.audio_seconds_max <= 0)
        a->o.audio_seconds_max = 7200;
    if (a->o.audio_memory == 0)
        a->o.audio_memory = (size_t)1 << 30;
    set_default(&a->o.max_image_n, 10);
    if (a->o.max_image_n > REQ_N_MAX)
        a->o.max_image_n = REQ_N_MAX;
    if (a->o.image_url_ttl_s <= 0)
        a->o.image_url_ttl_s = 3600;
    if (a->o.grammar_cache_bytes == 0)
        a->o.grammar_cache_bytes = (size_t)64 << 20;
    if (a->o.image_store_bytes == 0)
        a->o.image_store_bytes = (size_t)256 << 20;
    a->images = image_store_open(a->o.image_store_bytes, (int64_t)(a->o.image_url_ttl_s * 1e6));
    a->grammars = gram_cache_open(a->o.grammar_cache_bytes);
    if (a->o.responses_ttl_s <= 0)
        a->o.responses_ttl_s = 24 * 3600;
    if (a->o.responses_store_bytes == 0)
        a->o.responses_store_bytes = (size_t)64 << 20;
    a->responses =
        response_store_open(a->o.responses_store_bytes, (int64_t)(a->o.responses_ttl_s * 1e6));
    if (!a->images || !a->grammars || !a->responses) {
        api_close(a);
        return err_set(e, ERR_NOMEM, "no memory");
    }
    *out = a;
    return 0;
}

static void model_free(struct api_model *m)
{
    free(m->name);
    free(m->aliases);
    free(m->tmpl_error);
    free(m->control);
    grammar_vocab_unref(m->vocab);
    api_template_free(m->tmpl);
    text_model_close(m->text);
    *m = (struct api_model){0};
}

void api_close(struct api *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->n_model; i++)
        model_free(&a->model[i]);
    gram_cache_close(a->grammars);
    response_store_close(a->responses);
    image_store_close(a->images);
    free(a);
}

static int read_file(const char *path, struct buf *b, struct err *e)
{
    FILE *f = fopen(path, "rb");
    char part[4096];
    size_t n;
    if (!f)
        return err_set(e, ERR_IO, "chat template %s: cannot be opened", path);
    b->limit = 4 << 20;
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        buf_add(b, part, n);
    int bad = ferror(f) || b->failed;
    fclose(f);
    return bad ? err_set(e, ERR_IO, "chat template %s: cannot be read (4 MiB at most)", path) : 0;
}

/* `word` stands in the text as a word of its own. */
static bool names(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)); p += n)
        if ((p == text || !(isalnum((unsigned char)p[-1]) || strchr("_.'\"", p[-1]))) &&
            !(isalnum((unsigned char)p[n]) || strchr("_'\"", p[n])))
            return true;
    return false;
}

static json_t *probe_messages(bool text, bool null)
{
    json_t *args = text ? json_string("{\"needle\":1}") : json_pack("{s:i}", "needle", 1);
    return json_pack("[{s:s, s:s}, {s:s, s:o, s:[{s:s, s:s, s:{s:s, s:o}}]},"
                     " {s:s, s:s, s:s, s:s}]",
                     "role", "user", "content", "a", "role", "assistant", "content",
                     null ? json_null() : json_string(""), "tool_calls", "id", "abcdef123", "type",
                     "function", "function", "name", "f", "arguments", args, "role", "tool", "name",
                     "f", "tool_call_id", "abcdef123", "content", "b");
}

static json_t *probe_question(void)
{
    return json_pack("[{s:s, s:s}]", "role", "user", "content", "a");
}

static json_t *probe_tools(void)
{
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[]}}}]", "type", "function",
                     "function", "name", "f", "description", "d", "parameters", "type", "object",
                     "properties", "p", "type", "string", "description", "d", "required");
}

/* Render into *out; takes both values. */
static int probe(const struct api_model *m, json_t *messages, json_t *tools, struct buf *out)
{
    struct api_template_limits lim = {0};
    struct tm now = {.tm_mday = 1, .tm_year = 126};
    struct err e;
    json_t *vars = json_pack("{s:o, s:o, s:s, s:s, s:b}", "messages", messages, "tools", tools,
                             "bos_token", "", "eos_token", "", "add_generation_prompt", 0);
    int rc = vars ? chat_vars_functions(m, vars, NULL, &now) : ERR_NOMEM;
    buf_clear(out);
    if (!rc)
        rc = api_template_render(m->tmpl, vars, &now, &lim, out, &e);
    json_decref(vars);
    return rc;
}

/* How a template takes the calls of earlier turns: found by trying. Arguments are objects for most, a text for those that
 * put them out as they are (an object then fails, or comes out in Python's spelling); some show calls only where content
 * is null. */
static void probe_calls(struct api_model *m)
{
    struct buf out = {0};
    for (int k = 0; k < 8; k++) { /* with tools, then without: some show calls only beside tools */
        bool text = k & 1, null = k & 2;
        int rc = probe(m, probe_messages(text, null), k < 4 ? probe_tools() : json_null(), &out);
        if (rc || !strstr(buf_cstr(&out), "needle") || strstr(buf_cstr(&out), "'needle'") ||
            strstr(buf_cstr(&out), "\\\"needle"))
            continue;
        m->args_text = text;
        m->calls_null = null;
        break;
    }
    m->tools_empty = probe(m, probe_question(), json_null(), &out) &&
                     !probe(m, probe_question(), json_array(), &out);
    buf_free(&out);
}

/* A template that does not compile is fatal when the operator named it; from the model file it only
 * disables chat, with the reason in the answer. */
static int open_template(struct api_model *m, const char *file, struct err *e)
{
    struct buf b = {0};
    int rc = 0;
    const char *source = m->text->chat_template;
    if (file) {
        rc = read_file(file, &b, e);
        if (!rc)
            rc = api_template_compile(&m->tmpl, buf_cstr(&b), b.len, e);
        if (rc)
            err_prefix(e, "%s", file);
        source = buf_cstr(&b);
    } else if (m->text->chat_template) {
        struct err why;
        if (api_template_compile(&m->tmpl, m->text->chat_template, strlen(m->text->chat_template),
                                 &why))
            m->tmpl_error = xstrdup(why.text);
    }
    m->developer = source && strstr(source, "developer");
    tools_detect(source, tok_find(m->text->tok, "<think>", 7) >= 0, &m->format);
    m->flag_enable = source && strstr(source, "enable_thinking");
    m->flag_effort = source && strstr(source, "reasoning_effort");
    m->flag_thinking = source && names(source, "thinking");
    m->flag_functions = source && names(source, "functions") && names(source, "datetime");
    if (m->tmpl && m->format.declares)
        probe_calls(m);
    buf_free(&b);
    return rc;
}

static int control_order(const void *pa, const void *pb)
{
    const struct view *a = pa, *b = pb;
    int d = memcmp(a->p, b->p, a->len < b->len ? a->len : b->len);
    return d ? d : (a->len > b->len) - (a->len < b->len);
}

/* Texts of control tokens, so that a client's text can be told from them. */
static int collect_control(struct api_model *m, struct err *e)
{
    const struct tokenizer *t = m->text->tok;
    int n = 0, n_vocab = tok_n_vocab(t);
    for (int pass = 0; pass < 2; pass++) {
        if (pass && !(m->control = mem_calloc((size_t)n + 1, sizeof *m->control)))
            return err_set(e, ERR_NOMEM, "no memory");
        n = 0;
        for (int32_t id = 0; id < n_vocab; id++) {
            struct view v = tok_is_control(t, id) ? tok_entry(t, id) : (struct view){0};
            if (v.len < 2)
                continue;
            if (pass) {
                m->control[n] = v;
                m->control_first[(unsigned char)v.p[0]] = true;
            }
            n++;
        }
    }
    m->n_control = n;
    qsort(m->control, (size_t)n, sizeof *m->control, control_order);
    return 0;
}

static bool in_list(const char *list, const char *name, size_t n)
{
    for (const char *p = list; p && *p;) {
        size_t k = strcspn(p, ",");
        if (k && k == n && memcmp(p, name, n) == 0)
            return true;
        p += k + (p[k] == ',');
    }
    return false;
}

/* A name that some model has already, of this one's own and its aliases; NULL if none. The text lies in the
 * arguments, *n bytes long. */
static const char *taken(struct api *a, const char *name, const char *aliases, size_t *n)
{
    int at;
    *n = strlen(name);
    if (api__model_find(a, name, *n, &at))
        return name;
    for (const char *p = aliases; p && *p; p += *n + (p[*n] == ',')) {
        *n = strcspn(p, ",");
        if (*n && api__model_find(a, p, *n, &at))
            return p;
    }
    return NULL;
}

static int check_name(struct api *a, const char *name, const char *aliases, struct err *e)
{
    size_t n;
    if (a->n_model == API_MODELS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d models", API_MODELS_MAX);
    const char *twice = taken(a, name, aliases, &n);
    return twice ? err_set(e, ERR_INVAL, "two models are named %.*s", (int)n, twice) : 0;
}

static int add(struct api *a, const struct api_model *m, const char *name, const char *aliases)
{
    struct api_model *at = &a->model[a->n_model];
    *at = *m;
    at->name = xstrdup(name);
    at->aliases = aliases ? xstrdup(aliases) : NULL;
    return a->n_model++;
}

int api__image_model_add(struct api *a, const char *name, const char *aliases, struct err *e)
{
    struct api_model m = {.created = clock_unix()};
    int rc = check_name(a, name, aliases, e);
    return rc ? rc : add(a, &m, name, aliases);
}

int api_model_add(struct api *a, const char *name, const char *aliases, const char *path,
                  const char *chat_template, struct err *e)
{
    if (eng_path_is_image(path)) /* its files are the engine's business alone */
        return api__image_model_add(a, name, aliases, e);
    struct api_model m = {.created = clock_unix(),
                          .is_encoder = eng_path_is_encoder(path),
                          .is_audio = eng_path_is_audio(path)};
    int rc = check_name(a, name, aliases, e);
    if (!rc)
        rc = text_model_open(&m.text, path, e);
    if (!rc)
        rc = open_template(&m, chat_template, e);
    if (!rc)
        rc = collect_control(&m, e);
    if (rc) {
        model_free(&m);
        return rc;
    }
    return add(a, &m, name, aliases);
}

void api_model_ready(struct api *a, int model, const struct eng_info *info)
{
    struct api_model *m = &a->model[model];
    m->n_ctx = info->n_ctx;
    m->n_vocab = info->n_vocab;
    if (info->encoder)
        m->encoder = *info->encoder;
    if (info->image)
        m->image = *info->image;
    if (info->audio)
        m->audio = *info->audio;
    m->ready = true;
}

struct api_model *api__model_find(struct api *a, const char *name, size_t n, int *index)
{
    for (int i = 0; i < a->n_model; i++) {
        struct api_model *m = &a->model[i];
        if ((strlen(m->name) == n && memcmp(m->name, name, n) == 0) ||
            in_list(m->aliases, name, n)) {
            *index = i;
            return m;
        }
    }
    return NULL;
}

void api__request_start(const struct api_call *c, struct request *r, const char *name,
                        double queue_s)
{
    snprintf(r->name, sizeof r->name, "%.71s", c->request_id ? c->request_id : name);
    r->arrival_us = c->arrival_us;
    if (c->api->o.request_timeout_s > 0)
        r->deadline_us = c->arrival_us + (int64_t)(c->api->o.request_timeout_s * 1e6);
    if (queue_s > 0)
        r->queue_deadline_us = c->arrival_us + (int64_t)(queue_s * 1e6);
}
