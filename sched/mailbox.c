/* See mailbox.h. */
#include "sched/mailbox.h"

#include "engine/base/mem.h"

int mailbox_init(struct mailbox *m, size_t msg_cap)
{
    *m = (struct mailbox){.msg_cap = msg_cap};
    m->msg = mem_calloc(m->msg_cap, sizeof *m->msg);
    if (!m->msg)
        return ERR_NOMEM;
    pthread_condattr_t attr;
    CHECK(!pthread_condattr_init(&attr));
    CHECK(!pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
    CHECK(!pthread_mutex_init(&m->lock, NULL));
    CHECK(!pthread_cond_init(&m->wake, &attr));
    pthread_condattr_destroy(&attr);
    return 0;
}

void mailbox_free(struct mailbox *m)
{
    struct msg left;
    while (mailbox_recv(m, &left))
        request_free(left.r);
    for (size_t i = 0; i < m->n_ev + m->n_new; i++)
        event_drop(&m->ev[(m->ev_head + i) % m->ev_cap]);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    free(m->msg);
    free(m->ev);
    *m = (struct mailbox){0};
}

int mailbox_events_alloc(struct mailbox *m, size_t ev_cap)
{
    struct event *ev = mem_calloc(ev_cap, sizeof *ev);
    if (!ev)
        return ERR_NOMEM;
    pthread_mutex_lock(&m->lock);
    CHECK(!m->ev);
    m->ev = ev;
    m->ev_cap = ev_cap;
    pthread_mutex_unlock(&m->lock);
    return 0;
}

static int grow(struct mailbox *m)
{
    struct msg *to = mem_calloc(2 * m->msg_cap, sizeof *to);
    if (!to)
        return ERR_NOMEM;
    for (size_t i = 0; i < m->n_msg; i++)
        to[i] = m->msg[(m->msg_head + i) % m->msg_cap];
    free(m->msg);
    m->msg = to;
    m->msg_head = 0;
    m->msg_cap *= 2;
    return 0;
}

int mailbox_send(struct mailbox *m, struct msg msg)
{
    pthread_mutex_lock(&m->lock);
    int rc = m->n_msg == m->msg_cap ? grow(m) : 0;
    if (!rc) {
        m->msg[(m->msg_head + m->n_msg++) % m->msg_cap] = msg;
        pthread_cond_signal(&m->wake);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

bool mailbox_recv(struct mailbox *m, struct msg *out)
{
    pthread_mutex_lock(&m->lock);
    bool any = m->n_msg > 0;
    if (any) {
        *out = m->msg[m->msg_head];
        m->msg_head = (m->msg_head + 1) % m->msg_cap;
        m->n_msg--;
    }
    pthread_mutex_unlock(&m->lock);
    return any;
}

void mailbox_wait(struct mailbox *m, size_t need, int64_t timeout_us)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t ns = ts.tv_nsec + timeout_us % 1000000 * 1000;
    ts.tv_sec += timeout_us / 1000000 + ns / 1000000000;
    ts.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&m->lock);
    bool ready = need ? m->ev_cap - m->n_ev >= need : m->n_msg > 0;
    if (!ready && !m->woken) /* a spurious wake-up is one idle turn: harmless */
        pthread_cond_timedwait(&m->wake, &m->lock, &ts);
    m->woken = false;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_wake(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->woken = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

void mailbox_post(struct mailbox *m, const struct event *ev)
{
    if (m->n_new == m->n_free)
        CHECK(mailbox_room(m));
    event_copy(&m->ev[m->ev_tail], ev); /* nobody else looks there before mailbox_tell */
    m->ev_tail = m->ev_tail + 1 == m->ev_cap ? 0 : m->ev_tail + 1;
    m->n_new++;
}

size_t mailbox_room(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->n_free = m->ev_cap - m->n_ev;
    if (!m->n_ev && !m->n_new) /* the same few slots again: the whole ring is larger than a cache */
        m->ev_head = m->ev_tail = 0;
    pthread_mutex_unlock(&m->lock);
    return m->n_free - m->n_new;
}

int mailbox_poll(struct mailbox *m, struct event *ev, int n)
{
    int got = 0;
    pthread_mutex_lock(&m->lock);
    for (; got < n && m->n_ev; got++, m->n_ev--) {
        event_copy(&ev[got], &m->ev[m->ev_head]);
        m->ev_head = m->ev_head + 1 == m->ev_cap ? 0 : m->ev_head + 1;
    }
    m->told = false;
    if (got)
        pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    return got;
}

bool mailbox_tell(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->n_ev += m->n_new;
    m->n_free -= m->n_new;
    m->n_new = 0;
    bool tell = m->n_ev && !m->told;
    m->told = m->told || tell;
    pthread_mutex_unlock(&m->lock);
    return tell;
}
