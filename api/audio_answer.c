/* Windows of a recording to its answer: text, JSON, subtitles, or the events of a stream. Loop thread. */
#include <math.h>
#include <stdlib.h>

#include "api/audio_impl.h"
#include "engine/base/mem.h"

/* The text without the spaces around it. */
static struct view trim(const char *s, size_t n)
{
    while (n && strchr(" \t\r\n", *s))
        s++, n--;
    while (n && strchr(" \t\r\n", s[n - 1]))
        n--;
    return (struct view){s, n};
}

static struct view trimmed(const struct buf *b)
{
    return trim(buf_cstr(b), b->len);
}

static void put_time(struct buf *b, double s, char point)
{
    int64_t ms = llround(s * 1000);
    buf_fmt(b, "%02lld:%02lld:%02lld%c%03lld", (long long)(ms / 3600000),
            (long long)(ms / 60000 % 60), (long long)(ms / 1000 % 60), point,
            (long long)(ms % 1000));
}

/* A subtitle; an arrow in the text would end it. */
static void put_cue(struct stt_call *g, const struct aud_segment *s)
{
    struct buf *b = &g->lines;
    struct view v = trim(s->text, strlen(s->text));
    char point = g->format == STT_SRT ? ',' : '.';
    if (g->format == STT_SRT)
        buf_fmt(b, "%d\n", g->n_segment + 1);
    put_time(b, s->start, point);
    buf_str(b, " --> ");
    put_time(b, s->end, point);
    buf_char(b, '\n');
    for (size_t i = 0; i < v.len; i++) {
        bool arrow = v.len - i >= 3 && memcmp(v.p + i, "-->", 3) == 0;
        if (v.p[i] != '\n')
            buf_add(b, arrow ? "->" : v.p + i, arrow ? 2 : 1);
        i += arrow ? 2 : 0;
    }
    buf_str(b, "\n\n");
}

static void put_segment(struct stt_call *g, const struct aud_segment *s)
{
    struct buf *b = &g->lines;
    buf_fmt(b, "%s{\"id\":%d,\"seek\":%lld,\"start\":%.2f,\"end\":%.2f,\"text\":",
            g->n_segment ? "," : "", g->n_segment, (long long)s->seek, s->start, s->end);
    buf_json(b, s->text, strlen(s->text));
    buf_str(b, ",\"tokens\":[");
    for (int i = 0; i < s->n_tok; i++)
        buf_fmt(b, "%s%d", i ? "," : "", s->tok[i]);
    buf_fmt(b,
            "],\"temperature\":%.6g,\"avg_logprob\":%.6g,\"compression_ratio\":%.6g,"
            "\"no_speech_prob\":%.6g}",
            (double)s->heat, (double)s->avg_logprob, (double)s->compression, (double)s->no_speech);
}

static void put_words(struct stt_call *g, const struct aud_segment *s)
{
    struct buf *b = &g->word;
    for (int i = 0; i < s->n_word; i++) {
        struct view v = trim(s->word[i].text, strlen(s->word[i].text));
        if (!v.len)
            continue;
        buf_str(b, b->len ? ",{\"word\":" : "{\"word\":");
        buf_json(b, v.p, v.len);
        buf_fmt(b, ",\"start\":%.2f,\"end\":%.2f}", s->word[i].start, s->word[i].end);
    }
}

static void put_delta(struct api_call *c, const char *text)
{
    buf_str(&c->out, "event: transcript.text.delta\ndata: "
                     "{\"type\":\"transcript.text.delta\",\"delta\":");
    buf_json(&c->out, text, strlen(text));
    buf_str(&c->out, "}\n\n");
    c->streamed = true;
}

static void on_piece(struct api_call *c, struct stt_call *g, const struct aud_piece *p)
{
    g->language = p->language;
    for (int i = 0; i < p->n; i++) {
        const struct aud_segment *s = &p->seg[i];
        const char *text = s->text;
        if (!*text)
            continue;
        while (!g->text.len && *text && strchr(" \t\r\n", *text))
            text++; /* the answer begins with its first word */
        buf_str(&g->text, text);
        if (g->stream)
            put_delta(c, text);
        else if (g->format == STT_SRT || g->format == STT_VTT)
            put_cue(g, s);
        else if (g->format == STT_VERBOSE)
            put_segment(g, s);
        put_words(g, s);
        g->n_segment++;
    }
}

static void put_seconds(struct buf *b, const struct stt_call *g)
{
    buf_fmt(b, "\"usage\":{\"type\":\"duration\",\"seconds\":%lld}", (long long)ceil(g->seconds));
}

static void put_verbose(struct buf *b, const struct stt_call *g)
{
    struct view t = trimmed(&g->text);
    buf_fmt(b, "{\"task\":\"%s\",\"language\":\"%s\",\"duration\":%.6g,\"text\":",
            g->translate ? "translate" : "transcribe", aud_language_name(g->language),
            round(g->seconds * 1000) / 1000);
    buf_json(b, t.p, t.len);
    if (g->words) {
        buf_str(b, ",\"words\":[");
        buf_add(b, buf_cstr(&g->word), g->word.len);
        buf_char(b, ']');
    }
    if (g->segments) {
        buf_str(b, ",\"segments\":[");
        buf_add(b, buf_cstr(&g->lines), g->lines.len);
        buf_char(b, ']');
    }
    buf_char(b, ',');
    put_seconds(b, g);
    buf_str(b, "}\n");
}

/* Sound counts 50 tokens a second: what the encoder makes of it. */
static void put_end(struct api_call *c, const struct stt_call *g)
{
    struct buf *b = &c->out;
    struct view t = trimmed(&g->text);
    long long sound = (long long)ceil(g->seconds * 50);
    buf_str(b, "event: transcript.text.done\ndata: {\"type\":\"transcript.text.done\",\"text\":");
    buf_json(b, t.p, t.len);
    buf_fmt(b,
            ",\"usage\":{\"type\":\"tokens\",\"input_tokens\":%lld,\"output_tokens\":%d,"
            "\"total_tokens\":%lld,\"input_token_details\":{\"text_tokens\":%d,"
            "\"audio_tokens\":%lld}}}\n\n",
            sound + c->n_prompt, c->n_output, sound + c->n_prompt + c->n_output, c->n_prompt,
            sound);
    c->streamed = true;
}

static void answer(struct api_call *c, struct stt_call *g)
{
    struct buf *b = &c->out;
    struct view t = trimmed(&g->text);
    if (g->stream) {
        put_end(c, g);
    } else if (g->format == STT_VERBOSE) {
        put_verbose(b, g);
    } else if (g->format == STT_JSON) {
        buf_str(b, "{\"text\":");
        buf_json(b, t.p, t.len);
        buf_char(b, ',');
        put_seconds(b, g);
        buf_str(b, "}\n");
    } else if (g->format == STT_TEXT) {
        buf_add(b, t.p, t.len);
        buf_char(b, '\n');
    } else {
        buf_str(b, g->format == STT_VTT ? "WEBVTT\n\n" : "");
        buf_add(b, buf_cstr(&g->lines), g->lines.len);
    }
    c->done = true;
}

static void on_done(struct api_call *c, struct stt_call *g, const struct event *ev)
{
    c->n_prompt = ev->n_prompt;
    c->n_output = ev->n_output;
    if (g->text.failed || g->lines.failed || g->word.failed)
        api_fail(c, ERR_NOMEM, NULL, "Not enough memory for this answer.", 0);
    else
        answer(c, g);
}

void stt_event(struct api_call *c, int req, const struct event *ev)
{
    struct stt_call *g = c->priv;
    (void)req;
    switch (ev->kind) {
    case EV_AUDIO:
        on_piece(c, g, ev->audio);
        event_drop(ev);
        break;
    case EV_DONE:
        on_done(c, g, ev);
        break;
    case EV_ERROR:
        api__fail_event(c, ev);
        break;
    default:
        event_drop(ev); /* of no speech model */
    }
}
