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

#endif
