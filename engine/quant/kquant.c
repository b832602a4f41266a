/* Q2_K to Q6_K: super-blocks of 256 values, with small scales for each 16 or 32 of them, and a float
 * scale d (and dmin for the offsets) for those.
 *
 *   Q2_K  scales[16], qs[64], f16 d, f16 dmin             x = d*(s & 15)*q - dmin*(s >> 4)   84 bytes
 *   Q3_K  hmask[32], qs[64], scales[12], f16 d            x = d*(s - 32)*(q - 4)            110
 *   Q4_K  f16 d, f16 dmin, scales[12], qs[128]            x = d*s*q - dmin*m                144
 *   Q5_K  f16 d, f16 dmin, scales[12], qh[32], qs[128]    x = d*s*q - dmin*m                176
 *   Q6_K  ql[128], qh[64], i8 scales[16], f16 d           x = d*s*(q - 32)                  210
 *
 * Bits are spread so that one vector load serves several runs: in Q2_K and Q3_K, byte l of a group of 32
 * holds the two-bit values l, l + 32, l + 64, l + 96 of a half of 128; in Q4_K and Q5_K, its nibbles are
 * the values l and l + 32 of a quarter of 64. */
#include "engine/quant/quant_impl.h"

enum { LEN = 256 };

void quant__q2_k_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 84) {
        const uint8_t *qs = b + 16;
        float d = quant__half(b + 80), dmin = quant__half(b + 82), *y = dst + at;
        for (int run = 0; run < 16; run++) { /* 16 values each */
            const uint8_t *q = qs + 32 * (run / 8) + 16 * (run % 2);
            int shift = 2 * (run / 2 % 4);
            float scale = d * (float)(b[run] & 15), min = dmin * (float)(b[run] >> 4);
            for (int i = 0; i < 16; i++)
                *y++ = scale * (float)(q[i] >> shift & 3) - min;
        }
    }
}

/* Scale of a run of 16 in Q3_K: low four bits in the nibbles of s[0..8), upper two in s[8..12). */
static int q3_scale(const uint8_t *s, int run)
{
    int low = run < 8 ? s[run] & 15 : s[run - 8] >> 4;
    return low | (s[8 + run % 4] >> 2 * (run / 4) & 3) << 4;
}

void quant__q3_k_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 110) {
        const uint8_t *qs = b + 32, *scales = b + 96;
        float d = quant__half(b + 108), *y = dst + at;
        for (int run = 0; run < 16; run++) {
            const uint8_t *q = qs + 32 * (run / 8) + 16 * (run % 2), *h = b + 16 * (run % 2);
            int shift = 2 * (run / 2 % 4), bit = run / 2; /* a set mask bit means q >= 4 */
            float scale = d * (float)(q3_scale(scales, run) - 32);
            for (int i = 0; i < 16; i++)
                *y++ = scale * (float)((q[i] >> shift & 3) - (h[i] >> bit & 1 ? 0 : 4));
        }
    }
}

/* Six-bit scale and offset of the j-th 32 values (0..7) in Q4_K and Q5_K. */
static void k4_scale(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *min = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

void quant__q4_k_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 144) {
        float d = quant__half(b), dmin = quant__half(b + 2), *y = dst + at;
        for (int j = 0; j < 8; j++) {
            const uint8_t *q = b + 16 + 32 * (j / 2);
            int s, m, shift = 4 * (j % 2);
            k4_scale(b + 4, j, &s, &m);
            float scale = d * (float)s, min = dmin * (float)m;
            for (int i = 0; i < 32; i++)
                *y++ = scale * (float)(q[i] >> shift & 15) - min;
        }
    }
}

void quant__q5_k_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 176) {
        const uint8_t *qh = b + 16;
        float d = quant__half(b), dmin = quant__half(b + 2), *y = dst + at;
        for (int j = 0; j < 8; j++) {
            const uint8_t *q = b + 48 + 32 * (j / 2);
            int s, m, shift = 4 * (j % 2);
            k4_scale(b + 4, j, &s, &m);
            float scale = d * (float)s, min = dmin * (float)m;
            for (int i = 0; i < 32; i++)
                *y++ = scale * (float)((q[i] >> shift & 15) + (qh[i] >> j & 1) * 16) - min;
        }
    }
}

void quant__q6_k_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 210) {
        float d = quant__half(b + 208), *y = dst + at;
        for (int run = 0; run < 16; run++) {
            /* Quarters of a half of 128: low nibbles of ql[0..32), of ql[32..64), then the high ones. */
            int half = run / 8, quarter = run / 2 % 4, at16 = 16 * (run % 2);
            const uint8_t *l = b + 64 * half + 32 * (quarter % 2) + at16;
            const uint8_t *h = b + 128 + 32 * half + at16;
            float scale = d * (float)(int8_t)b[192 + run];
            for (int i = 0; i < 16; i++) {
                int q = (l[i] >> 4 * (quarter / 2) & 15) | (h[i] >> 2 * quarter & 3) << 4;
                *y++ = scale * (float)(q - 32);
            }
        }
    }
}
