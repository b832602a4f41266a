/* `stepd serve`: options to a running server. Exit codes: 0 drained, 1 cannot listen, 2 bad options or model, 70
 * the engine failed. */
#include "server/srv.h"

#include <sys/stat.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "server/models.h"
#include "server/plan.h"
#include "server/serve.h"

extern char **environ;

/* "name=path" or "path"; without a name it is the last part of the path, less a .gguf. */
static int split_model(const char *arg, char *name, size_t n, const char **path, struct err *e)
{
    const char *eq = strchr(arg, '=');
    struct stat st;
    if (eq && eq > arg && stat(arg, &st)) {
        if ((size_t)(eq - arg) >= n)
            return err_set(e, ERR_INVAL, "model name longer than %zu bytes", n - 1);
        snprintf(name, n, "%.*s", (int)(eq - arg), arg);
        *path = eq + 1;
        return 0;
    }
    *path = arg;
    size_t len = strlen(arg);
    while (len > 1 && arg[len - 1] == '/')
        len--;
    size_t start = len;
    while (start && arg[start - 1] != '/')
        start--;
    if (len - start > 5 && strncmp(arg + len - 5, ".gguf", 5) == 0)
        len -= 5;
    if (len - start >= n)
        len = start + n - 1;
    snprintf(name, n, "%.*s", (int)(len - start), arg + start);
    return 0;
}

static void on_async(uv_async_t *a)
{
    struct srv_model *m = a->data;
    srv_life_model(m);
    srv_call_events(m);
}

/* Engine thread. */
static void on_notify(void *arg)
{
    uv_async_send(arg);
}

static void worker_options(const struct conf *c, struct srv_model *m, const char *path,
                           struct worker_opts *o)
{
    *o = (struct worker_opts){
        .max_queue = (int)c->max_queue,
        .max_queue_tokens = (int32_t)c->max_queue_tokens,
        .step_us = (int64_t)(c->step_time * 1e6),
        .no_prefix_cache = !c->prefix_cache,
        .max_running_images = (int)c->max_running_images,
        .max_queue_images = (int)c->max_queue_images,
        .image_step_rows = c->image_step_rows,
        .max_queue_audio = (int)c->max_queue_audio,
        .turn = m->s->turn,
        .notify = on_notify,
        .notify_arg = &m->async,
    };
    if (strcmp(c->speculative, "none") && strcmp(c->device, "null")) /* that one says nothing */
        o->spec_tokens = (int)c->speculative_tokens;
    srv_engine_options(c, path, &o->eng);
    if (strcmp(c->policy, "priority") == 0)
        o->policy = SCHED_PRIORITY;
    else if (strcmp(c->policy, "shortest") == 0)
        o->policy = SCHED_SHORTEST;
}

/* The aliases of the first model as one comma-separated text, NULL if none. */
static char *aliases_of(const struct conf *c)
{
    struct buf b = {0};
    size_t n;
    for (int i = 1; i < c->served_model_name.n; i++)
        buf_fmt(&b, "%s%s", i > 1 ? "," : "", c->served_model_name.v[i]);
    return buf_take(&b, &n);
}

/* The draft model, for the first model: its path goes to buf [n]. */
static int draft_option(struct srv *s, int model, char *buf, size_t n, struct worker_opts *o,
                        struct err *e)
{
    const struct conf *c = s->conf;
    bool wanted = strcmp(c->speculative, "draft") == 0;
    if (wanted != (*c->draft_model != 0))
        return err_set(e, ERR_INVAL, "speculative = draft and draft-model need each other");
    if (!wanted || model)
        return 0;
    int rc = srv_model_resolve(c->draft_model, *c->models_dir ? c->models_dir : NULL, buf, n, e);
    if (!rc)
        rc = api_model_same_tokens(s->api, model, buf, e);
    o->draft_path = buf;
    return rc;
}

static int add_model(struct srv *s, int i, struct err *e)
{
    const struct conf *c = s->conf;
    struct srv_model *m = &s->m[i];
    const char *arg = NULL;
    char path[4096];
    int rc = split_model(c->model.v[i], m->name, sizeof(m->name), &arg, e);
    if (rc)
        return rc;
    rc = srv_model_resolve(arg, *c->models_dir ? c->models_dir : NULL, path, sizeof(path), e);
    if (rc)
        return rc;
    if (i == 0 && c->served_model_name.n)
        snprintf(m->name, sizeof(m->name), "%s", c->served_model_name.v[0]);
    char *aliases = i == 0 ? aliases_of(c) : NULL;
    rc = api_model_add(s->api, m->name, aliases, path, *c->chat_template ? c->chat_template : NULL,
                       e);
    free(aliases);
    if (rc < 0)
        return rc;
    m->s = s;
    m->index = rc;
    uv_async_init(&s->loop, &m->async, on_async);
    m->async.data = m;
    struct worker_opts o;
    char refiner[4096], draft[4096];
    worker_options(c, m, path, &o);
    rc = srv_refiner_option(c, path, refiner, sizeof(refiner), &o.eng, e);
    if (!rc)
        rc = draft_option(s, i, draft, sizeof(draft), &o, e);
    if (rc)
        return rc;
    s->n_model = i + 1;
    rc = worker_start(&m->w, &o, e);
    if (rc)
        s->n_model = i;
    return rc;
}

/* Weights of whole thousands: each kind beside text has its percentage when those two alone wait. */
static void shares(const struct conf *c, int share[TURN_N_CLASS])
{
    share[TURN_TEXT] = 1000;
    share[TURN_IMAGE] = (int)(1000 * c->image_share / (100 - c->image_share));
    share[TURN_AUDIO] = (int)(1000 * c->audio_share / (100 - c->audio_share));
}

static int open_models(struct srv *s, struct err *e)
{
    const struct conf *c = s->conf;
    struct api_opts o = {
        .max_n = (int)c->max_n,
        .max_prompts = (int)c->max_prompts,
        .max_messages = (int)c->max_messages,
        .max_json_depth = (int)c->max_json_depth,
        .max_inputs = (int)c->max_inputs,
        .max_logit_bias = (int)c->max_logit_bias,
        .template_max_steps = c->template_max_steps,
        .template_max_loop = c->template_max_loop,
        .template_max_bytes = (size_t)c->template_max_bytes,
        .reasoning_field = c->reasoning_field,
        .strict_fields = c->strict_fields,
        .request_timeout_s = c->request_timeout,
        .queue_timeout_s = c->queue_timeout > 0 ? c->queue_timeout : 1e8, /* 0 = none */
        .image_queue_timeout_s = c->image_queue_timeout > 0 ? c->image_queue_timeout : 1e8,
        .audio_queue_timeout_s = c->audio_queue_timeout > 0 ? c->audio_queue_timeout : 1e8,
        .audio_seconds_max = c->audio_seconds_max,
        .audio_memory = (size_t)c->audio_memory,
        .max_image_n = (int)c->image_n_max,
        .max_image_pixels = c->image_pixels_max,
        .image_url_ttl_s = c->image_url_ttl,
        .responses_ttl_s = c->responses_ttl,
        .responses_store_bytes = (size_t)c->responses_store_bytes,
        .image_store_bytes = (size_t)c->image_store_bytes,
    };
    if (c->model.n == 0)
        return err_set(e, ERR_INVAL,
                       "no model: stepd serve MODEL (a file, a folder or a name of "
                       "`stepd pull --list`)");
    if (c->model.n > SRV_MODELS)
        return err_set(e, ERR_INVAL, "more than %d models", SRV_MODELS);
    /* One turn object even for one model: it costs a lock a step, and its clock feeds the metrics. */
    int share[TURN_N_CLASS];
    shares(c, share);
    s->turn = turn_open(share);
    int rc = s->turn ? api_open(&s->api, &o, e) : err_set(e, ERR_NOMEM, "no memory");
    for (int i = 0; !rc && i < c->model.n; i++)
        rc = add_model(s, i, e);
    return rc;
}

static void srv_free(struct srv *s)
{
    if (s->handles_open)
        srv_loop_close(s);
    turn_close(s->turn);
    api_close(s->api);
    auth_free(&s->auth);
    slots_free(&s->slots);
    peers_free(s->peers);
    conf_free(s->conf);
    free(s);
}

static int serve(struct conf *conf)
{
    struct srv *s = xcalloc(1, sizeof(*s));
    struct err e = {0};
    enum log_level level;
    s->conf = conf;
    s->gone_fd = -1;
    s->start_us = clock_us();
    if (log_level_parse(conf->log_level, &level))
        log_set_level(level);
    s->peers = peers_new((int)conf->max_connections_per_address);
    s->max_conn = srv_limit_fds(s);
    int rc = auth_load(&s->auth, conf, &e), code = 2;
    if (!rc)
        rc = srv_loop_open(s, &e);
    s->handles_open = !rc;
    if (!rc)
        rc = srv_gone_open(s, &e);
    if (!rc)
        rc = srv_life_open(s, &e);
    if (!rc) {
        /* The port first: a second server on it must not load a model to find out. */
        rc = srv_listen_all(s, &e);
        code = rc == ERR_FULL || rc == ERR_IO ? 1 : 2;
    }
    for (int i = 0; !rc && i < s->n_listener; i++)
        log_info("stepd", "listening on %s", s->l[i].url);
    if (!rc) {
        code = 2;
        rc = open_models(s, &e);
    }
    if (!rc) {
        thread_prefer_latency(); /* workers, which compute, run already */
        uv_run(&s->loop, UV_RUN_DEFAULT);
        code = s->exit_code;
        log_info("stepd", "stopped with code %d", code);
    } else {
        fprintf(stderr, "stepd: %s\n", e.text);
    }
    srv_listen_unlink(s);
    srv_free(s);
    return code;
}

int srv_serve_main(int argc, char **argv)
{
    struct conf *conf;
    struct err e;
    struct buf b = {0};
    if (conf_parse(&conf, argc - 1, argv + 1, environ, &e)) {
        fprintf(stderr, "stepd: %s\n", e.text);
        return 2;
    }
    if (conf->action == CONF_RUN)
        return serve(conf);
    if (conf->action == CONF_HELP)
        conf_text_help(&b);
    else
        conf_text_print(conf, &b);
    fwrite(b.p, 1, b.len, stdout);
    buf_free(&b);
    conf_free(conf);
    return 0;
}
