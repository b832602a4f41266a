/* What speech models add to /metrics. Every name is there always, rows only of speech models. */
#include "server/metrics_impl.h"
#include "server/srv.h"

static double running(const struct audio_stats *s)
{
    return s->jobs;
}

static double recordings(const struct audio_stats *s)
{
    return (double)s->recordings;
}

static double seconds(const struct audio_stats *s)
{
    return s->seconds;
}

static double windows(const struct audio_stats *s)
{
    return (double)s->windows;
}

static double retries(const struct audio_stats *s)
{
    return (double)s->retries;
}

static double steps(const struct audio_stats *s)
{
    return (double)s->decode_steps;
}

static double rows(const struct audio_stats *s)
{
    return (double)s->decode_rows;
}

static double pace(const struct audio_stats *s)
{
    return s->us_per_second / 1e6;
}

static const struct {
    const char *name, *type, *help;
    double (*value)(const struct audio_stats *s);
} plain[] = {
    {"stepd:audio_recordings_running", "gauge", "Recordings at work.", running},
    {"stepd:audio_recordings_total", "counter", "Finished recordings.", recordings},
    {"stepd:audio_seconds_total", "counter", "Seconds of sound that were transcribed.", seconds},
    {"stepd:audio_windows_total", "counter", "Windows of 30 s that were encoded.", windows},
    {"stepd:audio_retries_total", "counter",
     "Windows decoded again at a higher temperature, as their text looked bad.", retries},
    {"stepd:audio_decode_steps_total", "counter", "Decoding steps of the device.", steps},
    {"stepd:audio_decode_rows_total", "counter", "Recordings in those steps, summed.", rows},
    {"stepd:audio_pace", "gauge", "Device time of a second of sound, recent mean, seconds.", pace},
};

static bool is_audio(const struct srv_model *m)
{
    const struct eng_info *i = worker_engine(m->w);
    return i && i->audio;
}

static void put_stage(struct buf *b, const struct srv_model *m, const char *stage, int64_t us)
{
    char extra[32];
    snprintf(extra, sizeof(extra), "stage=\"%s\"", stage);
    buf_str(b, "stepd:audio_stage_seconds_total");
    metrics__labels(b, m, extra);
    buf_fmt(b, " %.6f\n", (double)us / 1e6);
}

void metrics__audio(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        metrics__head(b, plain[i].name, plain[i].type, plain[i].help);
        for (int m = 0; m < s->n_model; m++) {
            if (!is_audio(&s->m[m]))
                continue;
            buf_str(b, plain[i].name);
            metrics__labels(b, &s->m[m], NULL);
            buf_fmt(b, " %.10g\n", plain[i].value(&st[m].audio));
        }
    }
    metrics__head(b, "stepd:audio_stage_seconds_total", "counter",
                  "Device time of recordings by stage.");
    for (int m = 0; m < s->n_model; m++) {
        if (!is_audio(&s->m[m]))
            continue;
        put_stage(b, &s->m[m], "encode", st[m].audio.encode_us);
        put_stage(b, &s->m[m], "decode", st[m].audio.decode_us);
        put_stage(b, &s->m[m], "align", st[m].audio.align_us);
    }
}
