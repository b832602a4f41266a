/* What image models add to /metrics. Every name is there always, rows only of image models. */
#include "server/metrics_impl.h"
#include "server/srv.h"

static bool is_image(const struct srv_model *m)
{
    const struct eng_info *i = worker_engine(m->w);
    return i && i->image;
}

static double running(const struct image_stats *s)
{
    return s->jobs;
}

static double waiting(const struct image_stats *s)
{
    return s->waiting;
}

static double pictures(const struct image_stats *s)
{
    return (double)s->images;
}

static double job_steps(const struct image_stats *s)
{
    return (double)s->job_steps;
}

static double steps(const struct image_stats *s)
{
    return (double)s->steps;
}

static double recent(const struct image_stats *s)
{
    return s->us_per_image / 1e6;
}

/* Values by function, not by offset: their types differ. */
static const struct {
    const char *name, *type, *help;
    double (*value)(const struct image_stats *s);
} plain[] = {
    {"stepd:image_pictures_running", "gauge", "Pictures at work.", running},
    {"stepd:image_pictures_waiting", "gauge", "Pictures that have not started.", waiting},
    {"stepd:image_pictures_total", "counter", "Finished pictures.", pictures},
    {"stepd:image_steps_total", "counter", "Denoising steps of pictures.", job_steps},
    {"stepd:image_device_steps_total", "counter",
     "Denoising steps of the device; each moves several pictures on.", steps},
    {"stepd:image_picture_seconds", "gauge", "Device time of a picture, recent mean.", recent},
};

static void write_stages(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    static const char *const name = "stepd:image_stage_seconds_total";
    static const char *const stage[IMG_DONE] = {"encode", "denoise", "decode"};
    metrics__head(b, name, "counter", "Device time of pictures by stage.");
    for (int m = 0; m < s->n_model; m++)
        for (int i = 0; i < IMG_DONE && is_image(&s->m[m]); i++) {
            char extra[32];
            snprintf(extra, sizeof(extra), "stage=\"%s\"", stage[i]);
            buf_str(b, name);
            metrics__labels(b, &s->m[m], extra);
            buf_fmt(b, " %.6f\n", (double)st[m].image.stage_us[i] / 1e6);
        }
}

/* The engine thread counts in powers of two from 64 on. */
static void write_rows(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    static const char *const name = "stepd:image_step_rows";
    metrics__head(b, name, "histogram", "Latent rows in one denoising step of the device.");
    for (int m = 0; m < s->n_model; m++) {
        uint64_t n = 0;
        if (!is_image(&s->m[m]))
            continue;
        for (int i = 0; i < 15; i++)
            metrics__bucket(b, name, &s->m[m], (double)(64 << i),
                            n += st[m].image.step_rows_hist[i]);
        n += st[m].image.step_rows_hist[15];
        metrics__bucket(b, name, &s->m[m], -1, n);
        metrics__tail(b, name, &s->m[m], st[m].image.step_rows_sum, n);
    }
}

void metrics__images(struct srv *s, const struct sched_stats *st, struct buf *b)
{
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        metrics__head(b, plain[i].name, plain[i].type, plain[i].help);
        for (int m = 0; m < s->n_model; m++) {
            if (!is_image(&s->m[m]))
                continue;
            buf_str(b, plain[i].name);
            metrics__labels(b, &s->m[m], NULL);
            buf_fmt(b, " %.10g\n", plain[i].value(&st[m].image));
        }
    }
    write_stages(s, st, b);
    write_rows(s, st, b);
    metrics__head(b, "stepd:device_seconds_total", "counter",
                  "Time that models of words, of pictures and of speech had the device in turns.");
    static const char *const class[TURN_N_CLASS] = {"text", "images", "audio"};
    for (int i = 0; i < TURN_N_CLASS; i++)
        buf_fmt(b, "stepd:device_seconds_total{class=\"%s\"} %.6f\n", class[i],
                (double)turn_used_us(s->turn, (enum turn_class)i) / 1e6);
}
