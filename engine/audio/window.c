/* The end of a window's attempt: is the text sound, which segments does it make, where does the next window begin. See
 * model.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/audio/model.h"
#include "engine/base/mem.h"

#define TIME_STEP   0.02 /* seconds of one time token: two frames */
#define FRAMES_TIME 2
#define HOT         0.5f /* text drawn above this is no guide for the next window */

/* begin_attempt is job.c's: a fallback is asked for by this flag. */
static int retry(struct aud_job *j)
{
    j->heat++;
    j->n_retry++;
    j->begun = false;
    j->n_seq = j->n_prefix;
    j->sum_logprob = 0;
    return 0;
}

/* Segments: between pairs of time tokens; one of all where there is no pair. */
static int cut(struct aud_job *j, struct aud_piece *p)
{
    const struct aud_tokens *t = &j->m->t;
    const int32_t *tok = j->seq + j->n_prefix;
    int n = j->n_seq - j->n_prefix, last = 0, rc = 0;
    double at = (double)j->seek * AUD_HOP / AUD_RATE;
    j->single_end = n >= 2 && tok[n - 1] >= t->first_time && tok[n - 2] < t->first_time;
    j->next_seek = j->seek + j->n_content;
    for (int i = 1; i <= n && !rc; i++) {
        bool pair = i < n && tok[i] >= t->first_time && tok[i - 1] >= t->first_time;
        if (!pair && !(i == n && last && j->single_end))
            continue;
        rc = aud_piece_add(p, j, at + TIME_STEP * (tok[last] - t->first_time),
                           at + TIME_STEP * (tok[i - 1] - t->first_time), tok + last, i - last);
        last = i;
    }
    if (last &&
        !j->single_end) /* what follows the last pair is cut off by the window's end: again in the next one */
        j->next_seek = j->seek + FRAMES_TIME * (int64_t)(tok[last - 1] - t->first_time);
    if (last || rc)
        return rc;
    double length = (double)j->n_content * AUD_HOP / AUD_RATE;
    for (int i = n - 1; i >= 0; i--)
        if (tok[i] >= t->first_time) {
            if (tok[i] > t->first_time)
                length = TIME_STEP * (tok[i] - t->first_time);
            break;
        }
    return aud_piece_add(p, j, at, at + length, tok, n);
}

static int accept(struct aud_job *j, float avg, float compression)
{
    bool silent = j->no_speech > j->p.no_speech_min && avg <= j->p.logprob_min;
    struct aud_piece *p = aud_piece_new(j->n_seq - j->n_prefix + 1);
    int rc = p ? 0 : ERR_NOMEM;
    if (!rc && silent)
        j->next_seek = j->seek + j->n_content;
    else if (!rc)
        rc = cut(j, p);
    if (rc) {
        aud_piece_free(p);
        return rc;
    }
    for (int i = 0; i < p->n; i++) {
        p->seg[i].avg_logprob = avg;
        p->seg[i].compression = compression;
    }
    p->language = j->language;
    j->made = p;
    if (j->p.words && p->n) {
        j->stage = AUD_ALIGN;
        return 0;
    }
    return aud_window_done(j);
}

int aud_window_end(struct aud_job *j)
{
    struct buf b = {0};
    const int32_t *tok = j->seq + j->n_prefix;
    int n = j->n_seq - j->n_prefix;
    float avg = (float)(j->sum_logprob / (n + 1));
    if (aud_text(j->m, tok, n, &b)) {
        buf_free(&b);
        return ERR_NOMEM;
    }
    const char *s = buf_cstr(&b);
    size_t from = strspn(s, " \t\r\n"), len = b.len;
    while (len > from && strchr(" \t\r\n", s[len - 1]))
        len--;
    float compression = aud_compression(s + from, len - from);
    buf_free(&b);
    bool low = avg < j->p.logprob_min;
    bool again = compression > j->p.compression_max || low;
    if (j->no_speech > j->p.no_speech_min && low)
        again = false; /* silence, not a bad text */
    return again && j->heat + 1 < j->p.n_heat ? retry(j) : accept(j, avg, compression);
}

int aud_window_done(struct aud_job *j)
{
    struct aud_piece *p = j->made;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->seg[i].n_tok; k++)
            if (tok_ids_add(&j->history, p->seg[i].tok[k]))
                return ERR_NOMEM;
    if (j->p.no_history || j->p.heat[j->heat] > HOT)
        j->history_from = j->history.n;
    j->piece = p; /* the one before was taken after its step */
    j->made = NULL;
    j->seek = j->next_seek > j->seek ? j->next_seek : j->seek + j->n_content;
    return aud_window_next(j);
}
