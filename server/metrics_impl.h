/* Private to the metrics files: histogram definitions, finish reasons. */
#ifndef SERVER_METRICS_IMPL_H
#define SERVER_METRICS_IMPL_H

#include "server/metrics.h"

struct metrics_hist_def {
    const char *name, *help;
    const double *bound; /* [n], ascending */
    size_t n;
};
extern const struct metrics_hist_def metrics__hist[HIST_COUNT];

enum metrics_reason { METRICS_STOP, METRICS_LENGTH, METRICS_ABORT, METRICS_ERROR, METRICS_REASONS };
/* Pieces of the text format (metrics_text.c). `extra`: more labels, or NULL. */
struct srv_model;
void metrics__head(struct buf *b, const char *name, const char *type, const char *help);
void metrics__labels(struct buf *b, const struct srv_model *m, const char *extra);
void metrics__bucket(struct buf *b, const char *name, const struct srv_model *m, double bound,
                     uint64_t n); /* cumulative; bound < 0: +Inf */
void metrics__tail(struct buf *b, const char *name, const struct srv_model *m, double sum,
                   uint64_t n);

/* metrics_image.c: of image models, and the shares of the device. st[n_model]. */
struct srv;
struct sched_stats;
void metrics__images(struct srv *s, const struct sched_stats *st, struct buf *b);
/* metrics_audio.c: of speech models. */
void metrics__audio(struct srv *s, const struct sched_stats *st, struct buf *b);

#endif
