/* Phases of the process: engines become ready or fail, signals, drain, the service manager's watchdog. */
#include "server/srv.h"

#include <signal.h>

#include "engine/base/log.h"
#include "engine/base/thread.h"

#define EXIT_ENGINE 70 /* EX_SOFTWARE: the supervisor restarts us */

static void stop(struct srv *s)
{
    if (s->stopping)
        return;
    s->stopping = true;
    uv_stop(&s->loop);
}

void srv_life_check(struct srv *s)
{
    if (!s->draining || s->stopping || s->in_pool || s->slots.n_used)
        return;
    for (const struct conn *k = s->conns; k; k = k->next)
        if (k->x)
            return;
    stop(s);
}

static void on_drain_end(uv_timer_t *t)
{
    struct srv *s = t->data;
    log_warn("stepd", "drain time is over, %d requests are cut", s->slots.n_used);
    stop(s);
}

void srv_life_drain(struct srv *s, const char *why, int exit_code)
{
    if (exit_code)
        s->exit_code = exit_code;
    if (s->draining)
        return;
    s->draining = true;
    log_info("stepd", "draining: %s; %d requests are running", why, s->slots.n_used);
    srv_notify("STOPPING=1\nSTATUS=draining\n");
    srv_loop_quiesce(s);
    int64_t us = (int64_t)(s->conf->drain_timeout * 1e6);
    for (int i = 0; i < s->n_model; i++)
        worker_drain(s->m[i].w, clock_us() + us);
    /* Two seconds more for the last bytes of what was cut at the deadline. */
    uv_timer_start(&s->drain_timer, on_drain_end, (uint64_t)us / 1000 + 2000, 0);
    for (struct conn *k = s->conns; k; k = k->next)
        if (k->phase == CONN_WAIT)
            srv_conn_shut(k);
    srv_loop_pump(s);
}

static void log_model(const struct srv_model *m, const struct eng_info *e, int64_t ms)
{
    const struct eng_image_info *i = e->image;
    if (i)
        log_info("stepd", "model=%s backend=\"%s\" pipeline=%s size=%d steps=%d load_ms=%lld",
                 m->name, e->backend, i->pipeline, i->size_default, i->steps_default,
                 (long long)ms);
    else
        log_info("stepd", "model=%s backend=\"%s\" ctx=%d kv_blocks=%d load_ms=%lld", m->name,
                 e->backend, e->n_ctx, e->n_block, (long long)ms);
}

enum kind { KIND_TEXT, KIND_ENCODER, KIND_IMAGE, KIND_AUDIO, N_KIND };

static enum kind kind_of(const struct eng_info *e)
{
    return e->image ? KIND_IMAGE : e->encoder ? KIND_ENCODER : e->audio ? KIND_AUDIO : KIND_TEXT;
}

/* A line to try for the first model of each kind. */
static void print_curl(const struct srv *s, const char *at, enum kind kind)
{
    static const struct {
        const char *path, *fields;
    } line[N_KIND] = {
        [KIND_TEXT] = {"chat/completions",
                       "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"},
        [KIND_ENCODER] = {"embeddings", "\"input\":\"Hello\""},
        [KIND_IMAGE] = {"images/generations",
                        "\"prompt\":\"a red cube\",\"response_format\":\"url\""},
    };
    int i = 0;
    while (i < s->n_model && kind_of(worker_engine(s->m[i].w)) != kind)
        i++;
    if (i == s->n_model)
        return;
    if (kind == KIND_AUDIO) {
        fprintf(stderr, "  curl %s/v1/audio/transcriptions%s -F model=%s -F file=@speech.wav\n", at,
                s->auth.n ? " -H \"Authorization: Bearer $KEY\"" : "", s->m[i].name);
        return;
    }
    fprintf(stderr,
            "  curl %s/v1/%s -H 'Content-Type: application/json'%s -d '{\"model\":\"%s\",%s}'\n",
            at, line[kind].path, s->auth.n ? " -H \"Authorization: Bearer $KEY\"" : "",
            s->m[i].name, line[kind].fields);
}

static void announce(struct srv *s)
{
    const char *url = s->l[0].url;
    char at[200];
    for (int i = 0; i < s->n_model; i++)
        log_model(&s->m[i], worker_engine(s->m[i].w), (clock_us() - s->start_us) / 1000);
    if (strncmp(url, "unix:", 5) == 0)
        snprintf(at, sizeof(at), "--unix-socket %s http://localhost", url + 5);
    else
        snprintf(at, sizeof(at), "%s", url);
    fprintf(stderr, "stepd is ready on %s; try:\n", url);
    for (int k = 0; k < N_KIND; k++)
        print_curl(s, at, (enum kind)k);
    srv_notify("READY=1\nSTATUS=serving\n");
}

static void model_ready(struct srv_model *m)
{
    struct srv *s = m->s;
    m->ready = true;
    api_model_ready(s->api, m->index, worker_engine(m->w));
    for (int i = 0; i < s->n_model; i++)
        if (!s->m[i].ready)
            return;
    s->ready = true;
    announce(s);
}

void srv_life_model(struct srv_model *m)
{
    struct srv *s = m->s;
    struct err e = {0};
    enum worker_phase p = worker_state(m->w, &e);
    if (p == WORKER_READY && !m->ready)
        model_ready(m);
    if (p != WORKER_FAILED || m->ended)
        return;
    m->ended = true;
    if (!m->ready) {
        /* Never served: a wrong model or too little memory, so the reason is the operator's to read. */
        fprintf(stderr, "stepd: %s: %s\n", m->name, e.text);
        s->exit_code = 2;
        stop(s);
        return;
    }
    log_error("stepd", "engine of %s failed: %s", m->name, e.text);
    srv_life_drain(s, "engine failure", EXIT_ENGINE);
}

static void reload(struct srv *s)
{
    struct err e = {0};
    if (auth_load(&s->auth, s->conf, &e))
        log_error("stepd", "reload: %s; the old keys stay", e.text);
    else
        log_info("stepd", "reload: %d keys", s->auth.n);
    if (!*s->conf->config)
        return;
    /* Of the file only the log level is taken anew: the rest shapes memory and threads. */
    char arg[4096];
    snprintf(arg, sizeof(arg), "--config=%s", s->conf->config);
    struct conf *c;
    enum log_level level;
    if (conf_parse(&c, 1, (char *[]){arg}, NULL, &e)) {
        log_error("stepd", "reload: %s; the old settings stay", e.text);
        return;
    }
    if (log_level_parse(c->log_level, &level))
        log_set_level(level);
    log_info("stepd", "reload: log level %s", c->log_level);
    conf_free(c);
}

static void on_signal(uv_signal_t *h, int sig)
{
    struct srv *s = h->data;
    if (sig == SIGHUP) {
        reload(s);
    } else if (s->draining) {
        log_warn("stepd", "second signal: stopping at once");
        stop(s);
    } else {
        srv_life_drain(s, sig == SIGTERM ? "SIGTERM" : "SIGINT", 0);
    }
}

/* Tell the watchdog that we live only when the engines have moved, or have nothing to do. */
static void on_watchdog(uv_timer_t *t)
{
    struct srv *s = t->data;
    bool ok = true;
    for (int i = 0; i < s->n_model; i++) {
        struct sched_stats st;
        worker_stats(s->m[i].w, &st);
        ok &= st.running + st.waiting == 0 || st.heartbeat_us != s->last_beat[i];
        s->last_beat[i] = st.heartbeat_us;
    }
    if (ok)
        srv_notify("WATCHDOG=1\n");
}

int srv_life_open(struct srv *s, struct err *e)
{
    static const int sig[] = {SIGTERM, SIGINT, SIGHUP};
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        uv_signal_init(&s->loop, &s->sig[i]);
        s->sig[i].data = s;
        int rc = uv_signal_start(&s->sig[i], on_signal, sig[i]);
        if (rc)
            return err_set(e, ERR_IO, "signals: %s", uv_strerror(rc));
    }
    uint64_t us = srv_notify_watchdog_us();
    if (us) {
        uint64_t ms = us / 2000 > 0 ? us / 2000 : 1;
        uv_timer_start(&s->watchdog, on_watchdog, ms, ms);
    }
    return 0;
}
