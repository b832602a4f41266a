/* Sixteen rows at a time: what is left of a vector of 16 lanes a row becomes a lane. Included by kern_*.c alone, where vectors
 * have 16 lanes. */
#ifndef ENGINE_CPU_FOLD16_H
#define ENGINE_CPU_FOLD16_H

#include <immintrin.h>
#include <stdint.h>

typedef int32_t fold_lanes __attribute__((vector_size(64)));

/* Lanes i (to = 0), or i ^ s (to = s), of two vectors x, y whose lanes with bit s are those of y. By name: made in a loop the
 * compiler builds them lane by lane, each time. */
#define FOLD_LANE(i, s, to) ((i) & (s) ? 16 + (i) - (s) + (to) : (i) + (to))
#define FOLD_LANES(s, to)                                                                          \
    ((fold_lanes){                                                                                 \
        FOLD_LANE(0, s, to), FOLD_LANE(1, s, to), FOLD_LANE(2, s, to), FOLD_LANE(3, s, to),        \
        FOLD_LANE(4, s, to), FOLD_LANE(5, s, to), FOLD_LANE(6, s, to), FOLD_LANE(7, s, to),        \
        FOLD_LANE(8, s, to), FOLD_LANE(9, s, to), FOLD_LANE(10, s, to), FOLD_LANE(11, s, to),      \
        FOLD_LANE(12, s, to), FOLD_LANE(13, s, to), FOLD_LANE(14, s, to), FOLD_LANE(15, s, to)})

/* v[0]'s lane r = op over the lanes of v[r], lane i with i ^ 1, then ^ 2, ^ 4, ^ 8: the same bits for n = 4 rows (then lanes
 * r + 4 and so on are as r) and for 16. pick(x, y, lanes) takes lanes of two vectors. The other v are lost. */
#define FOLD_STEP(T, v, n, s, op, pick)                                                            \
    for (int i_ = 0; i_ < ((n) > (s) ? (n) / (s) : 2); i_ += 2) {                                  \
        const T x_ = (v)[i_], y_ = (n) > (s) ? (v)[i_ + 1] : x_;                                   \
        (v)[i_ / 2] = op(pick(x_, y_, FOLD_LANES(s, 0)), pick(x_, y_, FOLD_LANES(s, s)));          \
    }
#define FOLD_ROWS(T, v, n, op, pick)                                                               \
    do {                                                                                           \
        FOLD_STEP(T, v, n, 1, op, pick)                                                            \
        FOLD_STEP(T, v, n, 2, op, pick)                                                            \
        FOLD_STEP(T, v, n, 4, op, pick)                                                            \
        FOLD_STEP(T, v, n, 8, op, pick)                                                            \
    } while (0)

#endif
