/* See align.h. */
#include "engine/audio/align.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"

#define MEDIAN 7
#define HALF   (MEDIAN / 2)

static void attention_row(const struct align_head *h, int row, float *w)
{
    const float *q = h->q + row * h->ldq;
    float max = -INFINITY;
    double sum = 0;
    for (int c = 0; c < h->n_col; c++) {
        const float *k = h->k + c * h->ldk;
        float s = 0;
        for (int i = 0; i < h->d; i++)
            s += q[i] * k[i];
        w[c] = s * h->scale;
        max = w[c] > max ? w[c] : max;
    }
    for (int c = 0; c < h->n_col; c++)
        sum += (double)(w[c] = expf(w[c] - max));
    for (int c = 0; c < h->n_col; c++)
        w[c] = (float)((double)w[c] / sum);
}

static void normalise(float *w, int n_row, int n_col)
{
    for (int c = 0; c < n_col; c++) {
        double sum = 0, square = 0;
        for (int r = 0; r < n_row; r++)
            sum += (double)w[(size_t)r * (size_t)n_col + (size_t)c];
        double mean = sum / n_row;
        for (int r = 0; r < n_row; r++) {
            double v = (double)w[(size_t)r * (size_t)n_col + (size_t)c] - mean;
            square += v * v;
        }
        double dev = sqrt(square / n_row);
        for (int r = 0; r < n_row; r++) {
            float *v = &w[(size_t)r * (size_t)n_col + (size_t)c];
            *v = dev > 0 ? (float)(((double)*v - mean) / dev) : 0;
        }
    }
}

/* Mirrored at both ends. */
static float median(const float *w, int n, int at)
{
    float v[MEDIAN];
    for (int i = 0; i < MEDIAN; i++) {
        int c = at + i - HALF, k = i;
        c = c < 0 ? -c : c >= n ? 2 * n - 2 - c : c;
        for (; k && v[k - 1] > w[c]; k--)
            v[k] = v[k - 1];
        v[k] = w[c];
    }
    return v[HALF];
}

void align_add(const struct align_head *h, float *work, float *sum)
{
    size_t n = (size_t)h->n_col;
    for (int r = 0; r < h->n_row; r++)
        attention_row(h, r, work + (size_t)r * n);
    normalise(work, h->n_row, h->n_col);
    for (int r = 0; r < h->n_row; r++)
        for (int c = 0; c < h->n_col; c++)
            sum[(size_t)r * n + (size_t)c] += h->n_col > HALF
                                                  ? median(work + (size_t)r * n, h->n_col, c)
                                                  : work[(size_t)r * n + (size_t)c];
}

enum move { BOTH, DOWN, RIGHT }; /* from (i - 1, j - 1), (i - 1, j), (i, j - 1) */

/* Cheapest way to every point, column by column: only the column before is kept, but all moves are. */
static void sweep(const float *m, int n_row, int n_col, double *cost, uint8_t *move)
{
    for (int c = 0; c < n_col; c++) {
        double corner = c ? INFINITY : 0, above = INFINITY; /* of the row before the first */
        for (int r = 0; r < n_row; r++) {
            double left = c ? cost[r] : INFINITY;
            enum move w = corner < above && corner < left  ? BOTH
                          : above < corner && above < left ? DOWN
                                                           : RIGHT;
            double least = w == BOTH ? corner : w == DOWN ? above : left;
            corner = left;
            above = cost[r] = least - (double)m[(size_t)r * (size_t)n_col + (size_t)c];
            move[(size_t)r * (size_t)n_col + (size_t)c] = (uint8_t)w;
        }
    }
}

int align_path(const float *m, int n_row, int n_col, int32_t *first)
{
    size_t all;
    double *cost = mem_alloc((size_t)n_row * sizeof *cost);
    uint8_t *move = ck_mul((size_t)n_row, (size_t)n_col, &all) ? mem_alloc(all) : NULL;
    if (cost && move) {
        sweep(m, n_row, n_col, cost, move);
        int r = n_row - 1, c = n_col - 1;
        for (;;) {
            first[r] = c;
            enum move w = (enum move)move[(size_t)r * (size_t)n_col + (size_t)c];
            if (r == 0 && c == 0)
                break;
            r -= r && (c == 0 || w != RIGHT);
            c -= c && w != DOWN;
        }
    }
    int rc = cost && move ? 0 : ERR_NOMEM;
    free(cost);
    free(move);
    return rc;
}
