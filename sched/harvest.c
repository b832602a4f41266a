/* What a step brought: computed counts move, full blocks are indexed, chosen tokens become events. */
#include "sched/sched_impl.h"

static void emit_token(struct sched *s, struct seq *q, enum event_kind kind, int32_t index,
                       const struct sample_out *out, bool predicted)
{
    struct event ev = {.kind = kind,
                       .req = q->req->r->id,
                       .choice = q->choice,
                       .index = index,
                       .tok = *out,
                       .predicted = predicted,
                       .stop_token = -1};
    s->o.emit(s->o.arg, &ev);
}

static void take_token(struct sched *s, struct seq *q, const struct sample_out *out)
{
    struct sreq *r = q->req;
    if (sched__is_stop(r->r, out->token)) {
        sched__emit_finish(s, q, FINISH_STOP, out->token);
        return;
    }
    CHECK(q->n_known < q->cap && q->n_coming > 0);
    q->n_coming--;
    q->tok[q->n_known++] = out->token;
    if (!r->first_token_us)
        r->first_token_us = s->now;
    s->st.generated_tokens++;
    bool predicted = sched__spec_token(q);
    emit_token(s, q, EV_TOKEN, q->n_output++, out, predicted);
    int more = 1;
    if (q->gram)
        more = sched__gram_accept(s, q, out->token);
    sched__think_next(s, q, out->token);
    if (more < 0)
        sched__req_end(s, r, more == ERR_NOTFOUND ? ERR_INVAL : more, sched__gram_error(more));
    else if (!more)
        sched__emit_finish(s, q, FINISH_STOP, -1);
    else if (q->n_output == r->max_out)
        sched__emit_finish(s, q, FINISH_LENGTH, -1);
}

/* Leading rows whose logits are finite. */
static int32_t finite(const struct sample_out *out, int32_t n_logit)
{
    int32_t n = 0;
    while (n < n_logit && !out[n].bad)
        n++;
    return n;
}

static void harvest_seq(struct sched *s, const struct plan *p, struct plan_entry *en, int32_t pos,
                        int32_t n_logit)
{
    struct seq *q = en->q;
    const struct sample_out *out = p->out + en->first_logit;
    if (!q) /* ended while the step ran, or earlier in this harvest */
        return;
    int32_t fresh = q->req->r->n_prompt - pos;
    int32_t right = sched__spec_accept(s, p, en), wrong = en->n_draft - right;
    CHECK(q->state == SEQ_RUNNING && q->n_final == pos);
    en->q = NULL;
    q->n_flight--;
    /* Behind a wrong draft nothing counts, neither rows nor KV. */
    n_logit -= wrong;
    sched__seq_trim(s, q, wrong);
    bool bad = finite(out, n_logit) < n_logit;
    if (!bad) {
        q->n_final += en->n_tok - wrong;
        sched__seq_index(s, q);
    }
    if (fresh > 0)
        s->st.prompt_tokens += (uint64_t)(fresh < en->n_tok ? fresh : en->n_tok);
    for (int32_t i = 0; !bad && i < n_logit - right - en->samples; i++)
        emit_token(s, q, EV_PROMPT, ++q->n_scored, out + i, false);
    for (int32_t i = 0; i < right; i++) {
        q->n_coming = 1; /* each chose the next one */
        take_token(s, q, out + i);
        if (q->state != SEQ_RUNNING) /* drafts end no sequence, but its grammar may find no memory */
            return;
    }
    if (bad) {
        sched__seq_distrust(s, q);
        sched__req_end(s, q->req, ERR_DEVICE, "logits are not finite");
        return;
    }
    q->n_coming = right ? 1 : q->n_coming;
    if (en->samples)
        take_token(s, q, out + n_logit - 1);
    else if (!q->req->max_out && q->n_final >= sched__seq_goal(q))
        sched__emit_finish(s, q, FINISH_LENGTH, -1);
}

void sched__harvest(struct sched *s, struct plan *p)
{
    for (int i = 0; i < p->n_seq; i++)
        harvest_seq(s, p, &p->entry[i], p->seq[i].pos, p->seq[i].n_logit);
}
