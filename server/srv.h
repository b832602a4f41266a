/* Private to server/: the process, its listeners, connections and exchanges. Everything here belongs to the loop
 * thread, except that api_prepare of a big body runs on a uv pool thread while its exchange is `in_pool`.
 *
 *   listener (one MHD daemon) --< conn (one socket) --- xchg (one request and answer)
 *                                                        |  one slot for each request in an engine
 *   model (worker, uv_async) ---- events ----------------+
 */
#ifndef SERVER_SRV_H
#define SERVER_SRV_H

#include <microhttpd.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "api/route.h"
#include "conf/conf.h"
#include "engine/base/buf.h"
#include "sched/worker.h"
#include "server/auth.h"
#include "server/metrics.h"
#include "server/peers.h"
#include "server/slots.h"

#define SRV_LISTENERS 16
#define SRV_MODELS    16
#define SRV_ID_MAX    64

struct srv;
struct srv_job;

struct srv_listener {
    struct srv *s;
    struct MHD_Daemon *mhd;
    int fd;
    bool tls, unix_path;
    uv_poll_t poll;
    uv_timer_t timer;
    bool running; /* inside MHD_run: do not enter again */
    char url[160];
};

struct srv_model {
    struct srv *s;
    struct worker *w;
    uv_async_t async; /* the worker has events, or a new phase */
    char name[96];
    int index;
    bool ready, ended;
    double rate; /* of stats, for Retry-After */
};

/* Where a connection is, for the deadlines that MHD does not keep. */
enum conn_phase {
    CONN_WAIT, /* no request yet, or between two */
    CONN_HEAD, /* a head has begun */
    CONN_BODY, /* head complete, body on its way */
    CONN_WORK, /* body complete: no deadline here, the engine has its own */
    CONN_SEND, /* answer begun */
    CONN_CUT,  /* answered behind MHD's back; input is swallowed until the close */
};

struct conn {
    struct srv *s;
    struct srv_listener *l;
    struct MHD_Connection *mhd;
    int fd;
    enum conn_phase phase;
    int64_t since_us;    /* when the phase began; CONN_SEND: last byte taken by the reader */
    int64_t head_us;     /* when the head began, 0 = not yet */
    uint64_t seen_bytes; /* received on the socket up to the end of the last request */
    uint64_t body_bytes;
    char *uri; /* raw request target, for the query */
    bool watched;
    bool kept;        /* idle after an answer: counted in n_kept */
    bool half_closed; /* the peer sent FIN */
    struct peer_key peer;
    struct xchg *x; /* current exchange or NULL */
    struct conn *prev, *next;
};

/* An error found before the body is complete; answered when the body has been swallowed. */
struct refusal {
    int code;   /* ERR_*, 0 = none */
    int status; /* overrides the code's status when set */
    char text[200];
    char allow[96]; /* Allow header of a 405 */
    bool now;       /* do not wait for the body */
};

struct xchg {
    struct srv *s;
    struct conn *conn;
    struct api_call call;
    struct refusal refuse;
    char id[SRV_ID_MAX + 1];
    char *method, *path;
    char *content_type;  /* or NULL */
    char *host;          /* or NULL */
    char *if_none_match; /* or NULL */
    struct buf body;
    int64_t start_us;
    uint64_t swallowed;
    bool http_1_0;
    bool https;     /* by our own TLS, or by the word of a proxy before us */
    bool preflight; /* answered 204 with CORS headers */
    bool prepared, suspended, queued, in_pool;
    bool gone;     /* the client left: end without an answer */
    bool stalled;  /* cut off: it did not read */
    bool picture;  /* its answer has pictures in it */
    bool finished; /* accounted for in log and metrics */
    size_t taken;  /* bytes at the front of call.out that MHD has: dropped in large pieces */
    int n_live;    /* slots still in an engine */
    int status;    /* sent */
    uv_work_t work;
    struct srv_job *jobs; /* on the pool for it */
    struct xchg *touched; /* list of exchanges that got events in this turn */
    bool in_touched;
};

struct srv {
    struct conf *conf;
    uv_loop_t loop;
    struct api *api;
    struct turn *turn; /* of the device that all models share */
    struct srv_listener l[SRV_LISTENERS];
    int n_listener;
    struct srv_model m[SRV_MODELS];
    int n_model;
    struct auth auth;
    struct peers *peers;
    struct slots slots;
    struct metrics metrics;
    struct conn *conns; /* list */
    int n_conn, max_conn;
    int n_kept,
        max_kept; /* idle ones that were used: each holds MHD's whole pool; beyond, answers close */
    size_t bodies;         /* bytes of request bodies held */
    uint64_t prepare_turn; /* turn of the loop, and time that requests were parsed in it */
    int64_t prepare_us;
    int in_pool;
    int gone_fd; /* epoll set of sockets whose peer may leave */
    uv_poll_t gone_poll;
    uv_timer_t sweep, drain_timer, watchdog, retry;
    uv_signal_t sig[3];
    struct xchg *touched;
    int64_t start_us;
    bool ready, draining, stopping;
    int exit_code;
    struct err fatal;
    uint64_t watchdog_us;
    int64_t last_beat[SRV_MODELS];
    bool handles_open;
};

/* loop.c */
int srv_loop_open(struct srv *s, struct err *e);
/* Start serving on a bound, listening socket. */
int srv_loop_listen(struct srv *s, int fd, bool unix_path, const char *url, struct err *e);
void srv_loop_pump(struct srv *s); /* run MHD now: connections were resumed */
void srv_loop_quiesce(struct srv *s);
void srv_loop_close(struct srv *s);

/* listen.c: bind everything that the options and the service manager name. */
int srv_listen_all(struct srv *s, struct err *e);
void srv_listen_unlink(struct srv *s);
int srv_limit_fds(struct srv *s);

/* http.c: MHD callbacks. */
void *srv_http_uri(void *arg, const char *uri, struct MHD_Connection *c);
enum MHD_Result srv_http_request(void *arg, struct MHD_Connection *c, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *n, void **ctx);
void srv_http_done(void *arg, struct MHD_Connection *c, void **ctx,
                   enum MHD_RequestTerminationCode code);
void srv_http_conn(void *arg, struct MHD_Connection *c, void **ctx,
                   enum MHD_ConnectionNotificationCode code);
enum MHD_Result srv_http_accept(void *arg, const struct sockaddr *addr, socklen_t n);

/* head.c: everything that can be judged from the head. Fills x->refuse. */
void srv_head_check(struct xchg *x, struct MHD_Connection *c, const char *version);
void srv_refuse(struct xchg *x, int code, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const char *srv_head_value(struct MHD_Connection *c, const char *name);

/* reply.c: hand the answer to MHD. Called inside MHD's request callback only. */
enum MHD_Result srv_reply_queue(struct xchg *x, struct MHD_Connection *c);
/* Answer on the bare socket, then swallow input and close: where MHD takes no answer (late body errors). */
void srv_reply_raw(struct conn *k, int status, int code, const char *text);

/* call.c: life of an exchange after its body is complete. */
void srv_call_start(struct xchg *x); /* prepare and submit; sets call.done or leaves work running */
void srv_call_fail(struct xchg *x, int code, const char *text, int retry_after_s);
void srv_call_gone(struct xchg *x); /* cancel what runs, let the connection end */
void srv_call_resume(struct xchg *x);
void srv_call_free(struct xchg *x);
/* Bytes of the answer that MHD does not have yet. */
static inline size_t srv_call_unsent(const struct xchg *x)
{
    return x->call.out.len - x->taken;
}
void srv_call_events(struct srv_model *m);
void srv_call_finish(struct xchg *x, bool ok); /* access log and metrics, once */
int srv_retry_after(const struct srv *s, int model);

/* job.c: work of the api on the pool while its call waits or goes on. */
void srv_jobs_start(struct xchg *x); /* takes call.job */
/* The exchange ends: what runs goes on and finds nobody, what has not begun is dropped. */
void srv_jobs_leave(struct xchg *x);
void srv_call_settle(struct xchg *x); /* call.c: after anything was appended to the answer */
void srv_call_commands(struct xchg *x);

/* gone.c: peers that leave while nothing is read from them. */
int srv_gone_open(struct srv *s, struct err *e);
void srv_gone_watch(struct conn *k);
void srv_gone_unwatch(struct conn *k);
/* The peer has half-closed and an exchange waits: find out whether it is still there. */
void srv_gone_ask(struct conn *k);
/* To be called before a waiting connection is resumed with its answer. */
void srv_gone_before_answer(struct conn *k);
void srv_gone_close(struct srv *s);

/* sweep.c: deadlines of connections; the timer runs only while there is something to time. */
void srv_sweep_arm(struct srv *s);
void srv_sweep_timer(uv_timer_t *t);
void srv_conn_phase(struct conn *k, enum conn_phase p);
void srv_conn_kept(struct conn *k, bool kept);
void srv_conn_shut(struct conn *k); /* end the connection whatever its state */

/* health.c: the answers of API_SERVER routes. */
void srv_health_answer(struct xchg *x);
/* false with a reason while an engine makes no progress. */
bool srv_health_alive(struct srv *s, struct err *why);

/* life.c: signals, phases of engines, drain. */
int srv_life_open(struct srv *s, struct err *e);
void srv_life_model(struct srv_model *m); /* look at the worker's phase */
void srv_life_drain(struct srv *s, const char *why, int exit_code);
void srv_life_check(struct srv *s); /* stop the loop once drained */

/* notify.c: the service manager's notify socket and socket activation. */
void srv_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int srv_notify_fds(void); /* number of passed sockets, first is 3 */
uint64_t srv_notify_watchdog_us(void);

#endif
