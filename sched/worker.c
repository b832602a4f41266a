/* The engine thread: open the engine, then turn after turn take messages, step, post events, publish
 * statistics. See worker.h. What both threads touch is under `lock` or in the mailbox; the scheduler (or the image
 * lane) and the engine belong to the thread alone. */
#include "sched/worker.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "sched/audio.h"
#include "sched/draft.h"
#include "sched/encode.h"
#include "sched/image.h"
#include "sched/mailbox.h"
#include "sched/sched.h"

#define FILL_CPU      128 /* more rows cost a CPU as many times more */
#define QUEUE_DEFAULT 512
#define QUEUE_IMAGES  64     /* default of image models */
#define QUEUE_AUDIO   64     /* default of speech models */
#define TURN_MSGS     256    /* messages taken between two steps */
#define EVENT_SPACE   1024   /* events beyond one turn's worth */
#define IMAGE_SPACE   32     /* of an image model, where each may carry megabytes */
#define BEAT_US       100000 /* between two heartbeats inside a step */
#define IDLE_US       100000 /* heartbeat while there is nothing to do */

struct worker {
    struct worker_opts o; /* its strings are ours */
    struct mailbox mb;
    pthread_t thread;
    size_t turn_events; /* most events of one turn */

    pthread_mutex_t lock; /* guards what follows */
    enum worker_phase phase;
    struct err err;
    struct eng_info info;
    struct eng_image_info image;     /* what info.image points to */
    struct eng_encoder_info encoder; /* the same */
    struct eng_audio_info audio;     /* the same */
    bool have_info, stop, draining;
    int64_t drain_us;
    struct sched_stats stats;      /* as of the last turn, with: */
    int live, mail;                /* requests inside; submitted, not yet taken */
    int64_t waiting_tok, mail_tok; /* prompt tokens of those */

    struct engine *g;     /* engine thread only, from here on */
    struct engine *draft; /* NULL: no draft model */
    struct sched *s;      /* one of the four */
    struct image_lane *lane;
    struct encode_lane *enc;
    struct audio_lane *speech;
    struct turn_user *user; /* NULL: no turns are taken */
    int64_t beat_us;
};

static void set_phase(struct worker *w, enum worker_phase p, const struct err *e)
{
    pthread_mutex_lock(&w->lock);
    w->phase = p;
    if (e)
        w->err = *e;
    pthread_mutex_unlock(&w->lock);
    if (w->o.notify)
        w->o.notify(w->o.notify_arg);
}

static void emit(void *arg, const struct event *ev)
{
    struct worker *w = arg;
    mailbox_post(&w->mb, ev);
}

static int64_t pause_step(void *arg);

/* The one that plans, and the largest number of events in one turn. */
static int open_lane(struct worker *w, struct err *e)
{
    struct image_opts io = {.max_running = w->o.max_running_images,
                            .step_rows = w->o.image_step_rows,
                            .emit = emit,
                            .pause = pause_step,
                            .arg = w};
    w->o.max_queue = w->o.max_queue_images > 0 ? w->o.max_queue_images : QUEUE_IMAGES;
    w->o.max_queue_tokens = 0;
    w->o.max_running = 0; /* no place is kept for what starts at once: pictures are slow */
    int rc = image_lane_open(&w->lane, w->g, &io, e);
    if (!rc)
        w->turn_events = image_lane_events_max(w->lane, TURN_MSGS + (size_t)w->o.max_queue);
    return rc;
}

static int open_encoder(struct worker *w, struct err *e)
{
    struct encode_opts eo = {.step_tokens = w->o.step_tokens, .emit = emit, .arg = w};
    w->o.max_running = 0;
    int rc = encode_lane_open(&w->enc, w->g, &eo, e);
    if (!rc)
        w->turn_events = encode_lane_events_max(w->enc, TURN_MSGS + (size_t)w->o.max_queue);
    return rc;
}

static int open_speech(struct worker *w, struct err *e)
{
    struct audio_opts ao = {.emit = emit, .pause = pause_step, .arg = w};
    w->o.max_queue = w->o.max_queue_audio > 0 ? w->o.max_queue_audio : QUEUE_AUDIO;
    w->o.max_queue_tokens = 0;
    w->o.max_running = 0;
    int rc = audio_lane_open(&w->speech, w->g, &ao, e);
    if (!rc)
        w->turn_events = audio_lane_events_max(w->speech, TURN_MSGS + (size_t)w->o.max_queue);
    return rc;
}

/* Drafts of a step, if the model can have any. */
static int spec_tokens(const struct worker *w)
{
    const struct eng_info *info = eng_info(w->g);
    if (w->o.spec_tokens && info->n_state > 0)
        log_info("sched",
                 "speculation is off: the model has recurrent states, which can't be taken back");
    return info->n_state > 0 || w->o.spec_tokens < 0 ? 0 : w->o.spec_tokens;
}

/* The draft model: options as the served one's, with a cache for the few sequences that it is asked about. */
static int open_draft(struct worker *w, struct err *e)
{
    struct eng_opts o = w->o.eng;
    o.path = w->o.draft_path;
    o.max_seqs = DRAFT_SEQS;
    o.n_ctx = 0;
    o.kv_bytes = 0;
    o.max_logit_rows = 0;
    return eng_open(&w->draft, &o, e);
}

static int open_sched(struct worker *w, struct err *e)
{
    const struct eng_info *info = eng_info(w->g);
    int n_draft = spec_tokens(w), rc = w->o.draft_path && n_draft ? open_draft(w, e) : 0;
    if (rc)
        return rc;
    struct sched_opts so = {.policy = w->o.policy,
                            .max_running = w->o.max_running,
                            .step_tokens = w->o.step_tokens,
                            .fill_rows = strncmp(info->backend, "cpu", 3) ? 0 : FILL_CPU,
                            .step_us = w->o.step_us,
                            .no_prefix_cache = w->o.no_prefix_cache,
                            .spec_tokens = n_draft,
                            .draft = w->draft,
                            .emit = emit,
                            .arg = w};
    /* Every logit row a token and a finish, every started sequence a finish, every request inside or taken in
     * this turn its last event. */
    int run = w->o.max_running > 0 && w->o.max_running < info->max_seqs ? w->o.max_running
                                                                        : info->max_seqs;
    w->turn_events = 2 * (size_t)info->max_logit_rows + 2 * (size_t)run + TURN_MSGS +
                     (size_t)w->o.max_queue + 2 * (size_t)run;
    w->o.max_running = run;
    return sched_open(&w->s, w->g, &so, e);
}

static int open_engine(struct worker *w, struct err *e)
{
    int rc = eng_open(&w->g, &w->o.eng, e);
    if (rc)
        return rc;
    const struct eng_info *info = eng_info(w->g);
    bool image = info->image != NULL;
    rc = image           ? open_lane(w, e)
         : info->encoder ? open_encoder(w, e)
         : info->audio   ? open_speech(w, e)
                         : open_sched(w, e); /* refuse() reads the bounds once we are ready */
    if (rc)
        return rc;
    /* A device with look-ahead has its own queue: waiting for turns would only empty it. */
    if (w->o.turn && (image || !info->lookahead)) {
        w->user = turn_join(w->o.turn, image ? TURN_IMAGE : info->audio ? TURN_AUDIO : TURN_TEXT);
        if (!w->user)
            return err_set(e, ERR_NOMEM, "worker: no memory for its turns");
    }
    if (mailbox_events_alloc(&w->mb, w->turn_events + (image ? IMAGE_SPACE : EVENT_SPACE)))
        return err_set(e, ERR_NOMEM, "worker: no memory for %zu events", w->turn_events);
    pthread_mutex_lock(&w->lock);
    w->info = *info;
    if (image) { /* stays when the engine is closed */
        w->image = *info->image;
        w->info.image = &w->image;
    }
    if (info->encoder) {
        w->encoder = *info->encoder;
        w->info.encoder = &w->encoder;
    }
    if (info->audio) {
        w->audio = *info->audio;
        w->info.audio = &w->audio;
    }
    w->have_info = true;
    pthread_mutex_unlock(&w->lock);
    return 0;
}

/* ---- the one that plans ---- */

static bool idle(const struct worker *w)
{
    return w->lane     ? image_lane_idle(w->lane)
           : w->enc    ? encode_lane_idle(w->enc)
           : w->speech ? audio_lane_idle(w->speech)
                       : sched_idle(w->s);
}

static void submit(struct worker *w, struct request *r)
{
    if (w->lane)
        image_lane_submit(w->lane, r);
    else if (w->enc)
        encode_lane_submit(w->enc, r);
    else if (w->speech)
        audio_lane_submit(w->speech, r);
    else
        sched_submit(w->s, r);
}

static void cancel(struct worker *w, uint64_t req)
{
    if (w->lane)
        image_lane_cancel(w->lane, req);
    else if (w->enc)
        encode_lane_cancel(w->enc, req);
    else if (w->speech)
        audio_lane_cancel(w->speech, req);
    else
        sched_cancel(w->s, req);
}

static void fail_all(struct worker *w, int code, const char *text)
{
    if (w->lane)
        image_lane_fail_all(w->lane, code, text);
    else if (w->enc)
        encode_lane_fail_all(w->enc, code, text);
    else if (w->speech)
        audio_lane_fail_all(w->speech, code, text);
    else
        sched_fail_all(w->s, code, text);
}

static int step(struct worker *w, struct err *e)
{
    bool work = !idle(w);
    if (work)
        turn_take(w->user);
    int rc = w->lane     ? image_lane_step(w->lane, e)
             : w->enc    ? encode_lane_step(w->enc, e)
             : w->speech ? audio_lane_step(w->speech, e)
                         : sched_step(w->s, e);
    if (work)
        turn_give(w->user);
    return rc;
}

static void publish(struct worker *w, int taken, int64_t taken_tok)
{
    struct sched_stats st = {0};
    if (w->lane)
        image_lane_stats_get(w->lane, &st);
    else if (w->enc)
        encode_lane_stats_get(w->enc, &st);
    else if (w->speech)
        audio_lane_stats_get(w->speech, &st);
    else
        sched_stats_get(w->s, &st);
    st.heartbeat_us = clock_us();
    pthread_mutex_lock(&w->lock);
    w->stats = st;
    w->live = w->lane     ? image_lane_live(w->lane)
              : w->enc    ? encode_lane_live(w->enc)
              : w->speech ? audio_lane_live(w->speech)
                          : sched_live(w->s);
    w->waiting_tok = w->enc ? encode_lane_waiting_tokens(w->enc)
                     : w->s ? sched_waiting_tokens(w->s)
                            : 0;
    w->mail -= taken;
    w->mail_tok -= taken_tok;
    pthread_mutex_unlock(&w->lock);
}

static void take_messages(struct worker *w)
{
    struct msg m;
    int taken = 0;
    int64_t tok = 0;
    for (int i = 0; i < TURN_MSGS && mailbox_recv(&w->mb, &m); i++) {
        switch (m.kind) {
        case MSG_SUBMIT:
            taken++;
            tok += m.r->n_prompt;
            submit(w, m.r);
            break;
        case MSG_CANCEL:
            cancel(w, m.req);
            break;
        case MSG_FINISH_CHOICE:
            if (w->s)
                sched_finish_choice(w->s, m.req, m.choice, m.keep);
            break;
        }
    }
    if (taken)
        publish(w, taken, tok);
}

/* Between operations of a long step: others may have the device, the heart beats, and a cancelled step ends. */
static int64_t pause_step(void *arg)
{
    struct worker *w = arg;
    int64_t waited = turn_yield(w->user), now = clock_us();
    if (now - w->beat_us < BEAT_US)
        return waited;
    w->beat_us = now;
    pthread_mutex_lock(&w->lock);
    w->stats.heartbeat_us = now;
    bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    if (stop && w->lane)
        image_lane_interrupt(w->lane);
    else if (stop)
        audio_lane_interrupt(w->speech);
    else if (mailbox_room(&w->mb) >= w->turn_events) /* for a batch of messages and the step */
        take_messages(w);
    return waited;
}

static void tell(struct worker *w)
{
    if (mailbox_tell(&w->mb) && w->o.notify)
        w->o.notify(w->o.notify_arg);
}

/* Whether the turns go on; a drain that is over ends them, with what is left told so. */
static bool go_on(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool stop = w->stop, draining = w->draining, mail = w->mail > 0;
    bool failed = w->phase == WORKER_FAILED;
    int64_t until = w->drain_us;
    pthread_mutex_unlock(&w->lock);
    if (stop)
        return false;
    if (!draining)
        return true;
    if (!idle(w) && clock_us() >= until && mailbox_room(&w->mb) >= w->turn_events)
        fail_all(w, ERR_DRAINING, "the server is shutting down");
    if (!idle(w) || mail)
        return true;
    publish(w, 0, 0);
    if (!failed)
        set_phase(w, WORKER_STOPPED, NULL);
    tell(w);
    return false;
}

/* One turn; returns whether there was something to do. */
static bool turn(struct worker *w, struct err *failed)
{
    if (mailbox_room(&w->mb) < w->turn_events) {
        publish(w, 0, 0); /* nobody polls: keep the heart beating, do nothing that makes events */
        tell(w);
        mailbox_wait(&w->mb, w->turn_events, IDLE_US);
        return true;
    }
    take_messages(w);
    if (failed->code) {
        fail_all(w, ERR_DEVICE, failed->text);
    } else if (step(w, failed) < 0) {
        log_error("sched", "step failed: %s", failed->text);
        set_phase(w, WORKER_FAILED, failed);
    }
    publish(w, 0, 0);
    tell(w);
    return !idle(w);
}

static void *run(void *arg)
{
    struct worker *w = arg;
    struct err e = {0}, failed = {0};
    if (open_engine(w, &e)) {
        log_error("sched", "engine: %s", e.text);
        set_phase(w, WORKER_FAILED, &e);
    } else {
        pthread_mutex_lock(&w->lock);
        bool draining = w->draining;
        pthread_mutex_unlock(&w->lock);
        set_phase(w, draining ? WORKER_DRAINING : WORKER_READY, NULL);
        while (go_on(w))
            if (!turn(w, &failed))
                mailbox_wait(&w->mb, 0, IDLE_US);
    }
    sched_close(w->s);
    image_lane_close(w->lane);
    encode_lane_close(w->enc);
    audio_lane_close(w->speech);
    turn_leave(w->user);
    eng_close(w->draft);
    eng_close(w->g);
    return NULL;
}

static const char *keep_str(const char *s)
{
    return s ? xstrdup(s) : NULL;
}

static void worker_free(struct worker *w)
{
    free((void *)w->o.eng.path);
    free((void *)w->o.eng.device);
    free((void *)w->o.eng.isa);
    free((void *)w->o.eng.kv_dtype);
    free((void *)w->o.eng.refiner);
    free((void *)w->o.draft_path);
    mailbox_free(&w->mb);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int worker_start(struct worker **out, const struct worker_opts *o, struct err *e)
{
    struct worker *w = mem_calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "worker: no memory");
    if (mailbox_init(&w->mb, QUEUE_DEFAULT)) {
        free(w);
        return err_set(e, ERR_NOMEM, "worker: no memory for its mailbox");
    }
    CHECK(!pthread_mutex_init(&w->lock, NULL));
    w->o = *o;
    w->o.eng.path = keep_str(o->eng.path);
    w->o.eng.device = keep_str(o->eng.device);
    w->o.eng.isa = keep_str(o->eng.isa);
    w->o.eng.kv_dtype = keep_str(o->eng.kv_dtype);
    w->o.eng.refiner = keep_str(o->eng.refiner);
    w->o.draft_path = keep_str(o->draft_path);
    if (w->o.max_queue <= 0)
        w->o.max_queue = QUEUE_DEFAULT;
    w->stats.heartbeat_us = clock_us();
    if (thread_start(&w->thread, "engine", run, w)) {
        worker_free(w);
        return err_set(e, ERR_NOMEM, "worker: no thread");
    }
    *out = w;
    return 0;
}

enum worker_phase worker_state(struct worker *w, struct err *e)
{
    pthread_mutex_lock(&w->lock);
    enum worker_phase p = w->phase;
    if (e && p == WORKER_FAILED)
        *e = w->err;
    pthread_mutex_unlock(&w->lock);
    return p;
}

const struct eng_info *worker_engine(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    const struct eng_info *info = w->have_info ? &w->info : NULL;
    pthread_mutex_unlock(&w->lock);
    return info;
}

/* Under lock: 0, or why no request can be taken now. */
static int refuse(const struct worker *w, const struct request *r)
{
    if (w->phase == WORKER_FAILED)
        return ERR_DEVICE;
    if (w->draining || w->phase == WORKER_STOPPED)
        return ERR_DRAINING;
    if (w->phase == WORKER_LOADING)
        return ERR_AGAIN;
    /* What will start at once does not wait: free slots come on top of the queue. */
    int waiting = w->live + w->mail - w->stats.running;
    if (waiting >= w->o.max_queue + w->o.max_running - w->stats.running_seqs)
        return ERR_FULL;
    int64_t tok = w->waiting_tok + w->mail_tok;
    if (w->o.max_queue_tokens > 0 && tok > 0 && tok + r->n_prompt > w->o.max_queue_tokens)
        return ERR_FULL;
    return 0;
}

int worker_submit(struct worker *w, struct request *r)
{
    pthread_mutex_lock(&w->lock);
    int rc = refuse(w, r);
    int32_t n_prompt = r->n_prompt;
    if (!rc)
        rc = mailbox_send(&w->mb, (struct msg){.kind = MSG_SUBMIT, .req = r->id, .r = r});
    if (!rc) {
        w->mail++;
        w->mail_tok += n_prompt;
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static void send_or_log(struct worker *w, struct msg m)
{
    if (mailbox_send(&w->mb, m)) /* the request then runs to its own end */
        log_error("sched", "no memory for a message of kind %d", (int)m.kind);
}

void worker_cancel(struct worker *w, uint64_t req)
{
    send_or_log(w, (struct msg){.kind = MSG_CANCEL, .req = req});
}

void worker_finish_choice(struct worker *w, uint64_t req, int choice, int32_t keep)
{
    send_or_log(
        w, (struct msg){.kind = MSG_FINISH_CHOICE, .req = req, .choice = choice, .keep = keep});
}

int worker_poll(struct worker *w, struct event *ev, int n)
{
    return mailbox_poll(&w->mb, ev, n);
}

void worker_stats(struct worker *w, struct sched_stats *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->stats;
    pthread_mutex_unlock(&w->lock);
}

void worker_drain(struct worker *w, int64_t deadline_us)
{
    pthread_mutex_lock(&w->lock);
    w->draining = true;
    w->drain_us = deadline_us;
    if (w->phase == WORKER_READY)
        w->phase = WORKER_DRAINING;
    pthread_mutex_unlock(&w->lock);
    mailbox_wake(&w->mb);
}

void worker_stop(struct worker *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    mailbox_wake(&w->mb);
    pthread_join(w->thread, NULL);
    worker_free(w);
}
