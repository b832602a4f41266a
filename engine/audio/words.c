/* Times of words: the window's text once more through the decoder, the attention of the heads that align followed through
 * the sound (align.h), tokens joined to words. Which text there is does not change. See model.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/audio/align.h"
#include "engine/audio/model.h"
#include "engine/base/arena.h"
#include "engine/base/mem.h"

#define FRAME_S  0.02 /* seconds of an encoder position */
#define LONG_MAX 0.7  /* median length of a word at most, for the cut of long ones */

struct word {
    int tok, n_tok; /* of the text tokens */
    size_t at, len; /* of the text; 0: merged into another */
    double start, end;
};

struct run {
    struct aud_job *j;
    struct whisper_row row;
    int n_head; /* tokens before the first text token; the last of them predicts it */
    int n_text;
    int32_t *tok; /* [n_head + n_text + 1] */
    float **q;    /* [dec_layer] */
    float **k;
    float *sum; /* [rows, n_col] */
    int n_col;
    struct buf text;
    size_t *end; /* [n_text] where each token's text ends */
    struct word *word;
    int n_word;
};

static void run_fn(struct nn *n, void *arg)
{
    struct run *r = arg;
    struct whisper *net = r->j->m->net;
    whisper_decode(net, n, &r->row, 1, NULL, &(struct whisper_tap){.q = r->q});
    for (int l = 0; l < whisper_dims(net)->dec_layer; l++)
        if (r->q[l])
            whisper_keys(net, n, r->j->states, l, r->k[l]);
}

static void run_free(struct run *r)
{
    int n = whisper_dims(r->j->m->net)->dec_layer;
    for (int l = 0; l < n; l++) {
        if (r->q)
            free(r->q[l]);
        if (r->k)
            free(r->k[l]);
    }
    free(r->q);
    free(r->k);
    free(r->tok);
    free(r->sum);
    free(r->end);
    free(r->word);
    buf_free(&r->text);
}

/* Start, language, task, no times, the text of all segments, end. */
static int fill_tokens(struct run *r)
{
    const struct aud_job *j = r->j;
    const struct aud_tokens *t = &j->m->t;
    const struct aud_piece *p = j->made;
    int n = 8;
    for (int i = 0; i < p->n; i++)
        n += p->seg[i].n_tok;
    r->tok = mem_alloc((size_t)n * sizeof *r->tok);
    if (!r->tok)
        return ERR_NOMEM;
    n = 0;
    r->tok[n++] = t->sot;
    if (t->multilingual) {
        r->tok[n++] = t->lang[j->language];
        r->tok[n++] = j->p.translate ? t->translate : t->transcribe;
    }
    r->tok[n++] = t->no_times;
    r->n_head = n;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->seg[i].n_tok; k++)
            if (p->seg[i].tok[k] < t->eot)
                r->tok[n++] = p->seg[i].tok[k];
    r->n_text = n - r->n_head;
    r->tok[n++] = t->eot;
    r->row = (struct whisper_row){.slot = j->slot, .tok = r->tok, .n_tok = n};
    return 0;
}

static int fill_buffers(struct run *r)
{
    const struct audio_model *m = r->j->m;
    const struct whisper_dims *d = whisper_dims(m->net);
    size_t rows = (size_t)r->row.n_tok, width = (size_t)d->d;
    r->q = mem_calloc((size_t)d->dec_layer, sizeof *r->q);
    r->k = mem_calloc((size_t)d->dec_layer, sizeof *r->k);
    for (int i = 0; r->q && r->k && i < m->t.n_align; i++) {
        int l = m->t.align[i].layer;
        if (!r->q[l])
            r->q[l] = mem_alloc(rows * width * sizeof **r->q);
        if (!r->k[l])
            r->k[l] = mem_alloc((size_t)d->n_sound * width * sizeof **r->k);
        if (!r->q[l] || !r->k[l])
            return ERR_NOMEM;
    }
    r->n_col = (int)(r->j->n_content + 1) / 2;
    r->sum = mem_calloc(3 * rows * (size_t)r->n_col, sizeof *r->sum); /* and align_add's work */
    r->end = mem_alloc(((size_t)r->n_text + 1) * sizeof *r->end);
    r->word = mem_calloc((size_t)r->n_text + 1, sizeof *r->word);
    return r->q && r->k && r->sum && r->end && r->word ? 0 : ERR_NOMEM;
}

/* ---- words ---- */

static bool stands_in(const char *set, const char *s, size_t n)
{
    return n && memmem(set, strlen(set), s, n) != NULL;
}

/* ASCII punctuation alone. */
static bool is_mark(const char *s, size_t n)
{
    size_t from = n && *s == ' ';
    return n == from + 1 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", s[from]);
}

/* Languages that put no spaces between words: every character stands alone. */
static bool no_spaces(int language)
{
    static const char *const codes[] = {"zh", "ja", "th", "lo", "my", "yue"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(aud_language_code(language), codes[i]) == 0)
            return true;
    return false;
}

/* Tokens whose bytes make whole characters together; a space or a mark begins a word. */
static int split_words(struct run *r)
{
    const struct audio_model *m = r->j->m;
    bool apart = no_spaces(r->j->language);
    size_t at = 0;
    for (int i = 0, from = 0; i < r->n_text; i++) {
        if (aud_text(m, r->tok + r->n_head + i, 1, &r->text))
            return ERR_NOMEM;
        r->end[i] = r->text.len;
        const char *s = buf_cstr(&r->text) + at;
        size_t len = r->text.len - at;
        if (len == 0 || (!utf8_valid(s, len) && i + 1 < r->n_text))
            continue;
        bool begins = !r->n_word || apart || *s == ' ' || is_mark(s, len);
        if (begins)
            r->word[r->n_word++] = (struct word){.tok = from, .at = at};
        struct word *w = &r->word[r->n_word - 1];
        w->n_tok = i + 1 - w->tok;
        w->len = r->text.len - w->at;
        at = r->text.len;
        from = i + 1;
    }
    return 0;
}

static void merge(struct run *r)
{
    static const char before[] = "\"'“¿([{-", after[] = "\"'.。,，!！?？:：”)]}、";
    const char *text = buf_cstr(&r->text);
    int k = r->n_word - 1;
    for (int i = r->n_word - 2; i >= 0; i--) {
        struct word *a = &r->word[i], *b = &r->word[k];
        if (text[a->at] == ' ' && stands_in(before, text + a->at + 1, a->len - 1)) {
            b->len += b->at - a->at;
            b->at = a->at;
            a->len = 0;
        } else {
            k = i;
        }
    }
    k = 0;
    for (int i = 1; i < r->n_word; i++) {
        struct word *a = &r->word[k], *b = &r->word[i];
        if (b->len && a->len && text[a->at + a->len - 1] != ' ' &&
            stands_in(after, text + b->at, b->len)) {
            a->len = b->at + b->len - a->at;
            b->len = 0;
        } else if (b->len) {
            k = i;
        }
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A word after a pause, or a mark at the end of a sentence, gets the pause too: twice the median is enough. */
static int cut_long(struct run *r)
{
    static const char ends[] = ".。!！?？";
    const char *text = buf_cstr(&r->text);
    double *len = mem_alloc(((size_t)r->n_word + 1) * sizeof *len);
    int n = 0;
    if (!len)
        return ERR_NOMEM;
    for (int i = 0; i < r->n_word; i++)
        if (r->word[i].end > r->word[i].start)
            len[n++] = r->word[i].end - r->word[i].start;
    qsort(len, (size_t)n, sizeof *len, by_value);
    double median = n ? (len[n / 2] + len[(n - 1) / 2]) / 2 : 0;
    double most = 2 * (median < LONG_MAX ? median : LONG_MAX);
    free(len);
    for (int i = 0; i < r->n_word && n; i++) {
        struct word *w = &r->word[i], *b = i ? w - 1 : NULL;
        if (w->end - w->start <= most)
            continue;
        if (i && stands_in(ends, text + w->at, w->len))
            w->end = w->start + most;
        else if (!b || stands_in(ends, text + b->at, b->len))
            w->start = w->end - most;
    }
    return 0;
}

static int time_words(struct run *r)
{
    const struct aud_job *j = r->j;
    const struct audio_model *m = j->m;
    const struct whisper_dims *d = whisper_dims(m->net);
    int hd = d->d / d->dec_head, rows = r->row.n_tok;
    size_t all = (size_t)rows * (size_t)r->n_col;
    double at = (double)j->seek * AUD_HOP / AUD_RATE;
    for (int i = 0; i < m->t.n_align; i++) {
        int l = m->t.align[i].layer, col = m->t.align[i].head * hd;
        struct align_head h = {.q = r->q[l] + col,
                               .k = r->k[l] + col,
                               .ldq = d->d,
                               .ldk = d->d,
                               .n_row = rows,
                               .n_col = r->n_col,
                               .d = hd,
                               .scale = 1 / sqrtf((float)hd)};
        align_add(&h, r->sum + all, r->sum);
    }
    /* Row i belongs to the token that it predicts: the first is that of "no times", the last text token predicts the
     * end. */
    int n = r->n_text + 1;
    int32_t *first = mem_alloc((size_t)n * sizeof *first);
    int rc =
        first ? align_path(r->sum + (size_t)(r->n_head - 1) * (size_t)r->n_col, n, r->n_col, first)
              : ERR_NOMEM;
    for (int i = 0; i < r->n_word && !rc; i++) {
        struct word *w = &r->word[i];
        w->start = at + FRAME_S * first[w->tok];
        w->end = at + FRAME_S * first[w->tok + w->n_tok];
    }
    free(first);
    return rc ? rc : cut_long(r);
}

/* Words to the segments that their first tokens are in. */
static int hand_out(struct run *r)
{
    struct aud_piece *p = r->j->made;
    struct arena *a = aud_piece_arena(p);
    int32_t eot = r->j->m->t.eot;
    int at = 0, to = 0;
    for (int i = 0; i < p->n; i++) {
        struct aud_segment *s = &p->seg[i];
        for (int k = 0; k < s->n_tok; k++)
            to += s->tok[k] < eot;
        struct aud_word *w = arena_array(a, (size_t)r->n_word + 1, sizeof *w);
        if (!w)
            return ERR_NOMEM;
        s->word = w;
        for (; at < r->n_word && r->word[at].tok < to; at++) {
            const struct word *x = &r->word[at];
            if (!x->len)
                continue;
            char *text = arena_copy(a, buf_cstr(&r->text) + x->at, x->len);
            if (!text)
                return ERR_NOMEM;
            w[s->n_word++] = (struct aud_word){.start = x->start, .end = x->end, .text = text};
        }
    }
    return 0;
}

int aud_words(struct aud_job *j, const struct img_yield *y, struct err *e)
{
    struct run r = {.j = j};
    int rc = fill_tokens(&r);
    if (!rc && !r.n_text) {
        run_free(&r);
        return 0;
    }
    rc = rc ? rc : fill_buffers(&r);
    rc = rc ? rc : split_words(&r);
    if (rc)
        err_set(e, rc, "no memory for the times of words");
    else
        rc = audio__run(j->m, y, run_fn, &r, e);
    if (!rc && (rc = time_words(&r)) == 0) {
        merge(&r);
        rc = hand_out(&r);
        if (rc)
            err_set(e, rc, "no memory for the times of words");
    }
    run_free(&r);
    return rc;
}
