/* Which frame of sound each token belongs to: dynamic time warping over the attention of a decoder. Pure; any thread. */
#ifndef ENGINE_AUDIO_ALIGN_H
#define ENGINE_AUDIO_ALIGN_H

#include <stdint.h>

/* One head's attention to the sound, softmax(scale q k^T) [n_row, n_col], each column made mean 0 and deviation 1 over the
 * rows, then a median of 7 along the columns; added to sum [n_row, n_col]. q [n_row] rows of stride ldq, k [n_col] of
 * ldk, d values each. work: 2 * n_row * n_col values. */
struct align_head {
    const float *q, *k;
    int64_t ldq, ldk;
    int n_row, n_col, d;
    float scale;
};
void align_add(const struct align_head *h, float *work, float *sum);

/* The path through m [n_row, n_col] that gathers the most, from the first corner to the last: first[i] is the first
 * column of row i. 0 or ERR_NOMEM. */
int align_path(const float *m, int n_row, int n_col, int32_t *first);

#endif
