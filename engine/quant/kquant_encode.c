/* Encoders of Q4_K, Q5_K and Q6_K. Scales of each group are searched for (a few candidates around the plain one, each
 * with the best offset by weighted least squares, as ggml's reference does), then rounded to their six (eight) bits, and
 * the codes chosen anew for the rounded scales. */
#include "engine/quant/quant_impl.h"

#include <math.h>

enum { LEN = 256 };

static int nearest(float v)
{
    return (int)nearbyintf(v);
}

static uint8_t clamp_code(float v, int top)
{
    if (!(v > 0)) /* NaN too */
        return 0;
    return v < (float)top ? (uint8_t)nearest(v) : (uint8_t)top;
}

struct affine {
    float scale, min; /* x = scale * code - min, both >= 0 */
};

/* Sums of a least-squares fit of x by codes. */
struct fit {
    float l, l2, xl;
};

/* x [32] by codes 0..top; larger values weigh more. */
static struct affine affine_fit(const float *x, int top)
{
    float w[32], sum2 = 0, lo = x[0], hi = x[0], sum_w = 0, sum_x = 0;
    for (int i = 0; i < 32; i++)
        sum2 += x[i] * x[i];
    float mean = sqrtf(sum2 / 32);
    for (int i = 0; i < 32; i++) {
        w[i] = mean + fabsf(x[i]);
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    lo = fminf(lo, 0);
    struct affine best = {(hi - lo) / (float)top, -lo};
    if (!(hi > lo) || !isfinite(hi - lo) || !isfinite(sum2))
        return (struct affine){0, isfinite(lo) ? -lo : 0};
    float least = INFINITY;
    for (int step = -1; step <= 20; step++) { /* -1: the plain scale itself */
        float inv = ((float)top + (step < 0 ? 0 : -1 + 0.1f * (float)step)) / (hi - lo);
        struct fit f = {0};
        for (int i = 0; i < 32; i++) {
            float l = clamp_code(inv * (x[i] - lo), top);
            f.l += w[i] * l;
            f.l2 += w[i] * l * l;
            f.xl += w[i] * l * x[i];
        }
        float det = sum_w * f.l2 - f.l * f.l;
        struct affine a = best;
        if (step >= 0) {
            if (!(det > 0))
                continue;
            a.scale = (sum_w * f.xl - sum_x * f.l) / det;
            a.min = -(f.l2 * sum_x - f.l * f.xl) / det;
            if (a.min < 0) {
                a.min = 0;
                a.scale = f.xl / f.l2;
            }
        }
        float err = 0;
        for (int i = 0; i < 32; i++) {
            float l = clamp_code(inv * (x[i] - lo), top), d = a.scale * l - a.min - x[i];
            err += w[i] * d * d;
        }
        if (err < least && a.scale > 0) {
            least = err;
            best = a;
        }
    }
    return best;
}

/* The six-bit scales and offsets of eight groups. */
static void scales_pack(uint8_t *s, const uint8_t *scale, const uint8_t *min)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* A block of Q4_K (top 15) or Q5_K (top 31). */
static void block_45(const float *x, uint8_t *b, int top)
{
    struct affine a[8];
    uint8_t scale[8], min[8], code[LEN];
    float most = 0, most_min = 0;
    for (int j = 0; j < 8; j++) {
        a[j] = affine_fit(x + 32 * j, top);
        most = fmaxf(most, a[j].scale);
        most_min = fmaxf(most_min, a[j].min);
    }
    for (int j = 0; j < 8; j++) {
        scale[j] = clamp_code(most > 0 ? a[j].scale * (63 / most) : 0, 63);
        min[j] = clamp_code(most_min > 0 ? a[j].min * (63 / most_min) : 0, 63);
    }
    quant__half_put(b, most / 63);
    quant__half_put(b + 2, most_min / 63);
    scales_pack(b + 4, scale, min);
    float d = quant__half(b), dmin = quant__half(b + 2);
    for (int i = 0; i < LEN; i++) {
        float s = d * (float)scale[i / 32], m = dmin * (float)min[i / 32];
        code[i] = s > 0 ? clamp_code((x[i] + m) / s, top) : 0;
    }
    uint8_t *qh = b + 16, *qs = b + (top == 31 ? 48 : 16);
    if (top == 31)
        memset(qh, 0, 32);
    for (int i = 0; i < LEN; i++) {
        int j = i / 32, at = i % 32;
        uint8_t *q = qs + 32 * (j / 2) + at;
        *q = (uint8_t)(j % 2 ? *q | (code[i] & 15) << 4 : code[i] & 15);
        if (top == 31)
            qh[at] = (uint8_t)(qh[at] | code[i] >> 4 << j);
    }
}

void quant__q4_k_encode(const float *src, void *dst, int64_t n)
{
    for (int64_t i = 0; i < n / LEN; i++)
        block_45(src + LEN * i, (uint8_t *)dst + 144 * i, 15);
}

void quant__q5_k_encode(const float *src, void *dst, int64_t n)
{
    for (int64_t i = 0; i < n / LEN; i++)
        block_45(src + LEN * i, (uint8_t *)dst + 176 * i, 31);
}

static int signed_code(float v)
{
    return v > -32 ? v < 31 ? nearest(v) : 31 : v != v ? 0 : -32;
}

/* The scale (of either sign) by which x [16] is nearest to whole numbers in -32..31, weighted by x^2. */
static float scale_fit(const float *x)
{
    float top = 0, best = 0, most = 0;
    for (int i = 0; i < 16; i++)
        if (fabsf(x[i]) > fabsf(top))
            top = x[i];
    if (!(fabsf(top) > 1e-15f) || !isfinite(top))
        return 0;
    for (int step = -9; step <= 9; step++) {
        float inv = -(32 + 0.1f * (float)step) / top, xl = 0, l2 = 0;
        for (int i = 0; i < 16; i++) {
            float l = (float)signed_code(inv * x[i]), w = x[i] * x[i];
            xl += w * x[i] * l;
            l2 += w * l * l;
        }
        if (l2 > 0 && xl * xl > most * l2) {
            most = xl * xl / l2;
            best = xl / l2;
        }
    }
    return best;
}

void quant__q6_k_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += LEN, b += 210) {
        const float *x = src + at;
        float s[16], top = 0;
        for (int g = 0; g < 16; g++) {
            s[g] = scale_fit(x + 16 * g);
            if (fabsf(s[g]) > fabsf(top))
                top = s[g];
        }
        memset(b, 0, 210);
        if (!isfinite(top)) /* of a block that has no meaning */
            top = 0;
        quant__half_put(b + 208, top / -128);
        float d = quant__half(b + 208);
        for (int g = 0; g < 16 && top != 0; g++) {
            float v = s[g] * (-128 / top);
            int8_t scale = (int8_t)(v < 127 ? v > -128 ? nearest(v) : -128 : v != v ? 0 : 127);
            b[192 + g] = (uint8_t)scale;
            for (int i = 0; i < 16; i++) {
                float f = d * (float)scale;
                int q = (f != 0 ? signed_code(x[16 * g + i] / f) : 0) + 32;
                int k = 16 * g + i, half = k / 128, quarter = k % 128 / 32, l = k % 32;
                uint8_t *ql = b + 64 * half + 32 * (quarter % 2) + l;
                uint8_t *qh = b + 128 + 32 * half + l;
                *ql = (uint8_t)(*ql | (q & 15) << 4 * (quarter / 2));
                *qh = (uint8_t)(*qh | q >> 4 << 2 * quarter);
            }
        }
    }
}
