/* The two queues between the loop thread and the engine thread, under one lock. Messages are plain
 * structs and move: the receiver owns them. Down (requests, cancels) grows on the sender's side, who bounds it
 * by what it admits; up (events) is a ring of fixed size: the engine thread plans no step while a
 * step's worth of events might not fit. Any thread. */
#ifndef SCHED_MAILBOX_H
#define SCHED_MAILBOX_H

#include <pthread.h>

#include "sched/request.h"

enum msg_kind { MSG_SUBMIT, MSG_CANCEL, MSG_FINISH_CHOICE };
struct msg {
    enum msg_kind kind;
    uint64_t req;
    struct request *r; /* MSG_SUBMIT: moves */
    int choice;
    int32_t keep;
};

struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* something for the engine thread: a message, or room for events */
    struct msg *msg;     /* ring [msg_cap] */
    size_t msg_cap, msg_head, n_msg;
    struct event *ev; /* ring [ev_cap] */
    size_t ev_cap, ev_head, n_ev;
    size_t ev_tail, n_new, n_free; /* engine thread's own: where the next one goes, those not handed
                                    * out yet, and free places (them included) as far as it knows */
    bool woken;
    bool told; /* notify was called and nothing has been polled since */
};

/* msg_cap is where the way down starts; it doubles when full. ERR_NOMEM. */
int mailbox_init(struct mailbox *m, size_t msg_cap);
/* Room for events, once, before the first is posted. ERR_NOMEM. */
int mailbox_events_alloc(struct mailbox *m, size_t ev_cap);
void mailbox_free(struct mailbox *m); /* with requests and pictures still in it */

/* ERR_NOMEM: not queued, the message is still the caller's. */
int mailbox_send(struct mailbox *m, struct msg msg);
/* false: none waiting. */
bool mailbox_recv(struct mailbox *m, struct msg *out);
/* Sleep until there is a message (need == 0), or room for `need` events, or for timeout_us. */
void mailbox_wait(struct mailbox *m, size_t need, int64_t timeout_us);

/* End a mailbox_wait. */
void mailbox_wake(struct mailbox *m);

/* The ring must have room (mailbox_room): an event is never dropped. Handed out, all at once, by the next mailbox_tell:
 * a step's events cost one lock. Engine thread, as the two that follow. */
void mailbox_post(struct mailbox *m, const struct event *ev);
size_t mailbox_room(struct mailbox *m);
/* true once after events were posted, then not before the next poll. */
bool mailbox_tell(struct mailbox *m);
int mailbox_poll(struct mailbox *m, struct event *ev, int n);

#endif
