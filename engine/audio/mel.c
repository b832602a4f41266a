/* Log-mel spectra: frames of 400 samples every 160, Hann window, 80 or 128 triangles on the Slaney scale, log10, cut off
 * 8 below the loudest value of the whole recording (Radford et al. 2022, section 2.2). Samples come in pieces: only the
 * frames are kept. */
#include "engine/audio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

#define N_FFT   400
#define N_BIN   (N_FFT / 2 + 1)
#define HALF    (N_FFT / 2)
#define MEL_MAX 256

struct aud_mel_maker {
    double window[N_FFT];
    double cs[N_FFT], sn[N_FFT];    /* cos and sin of 2 pi k / N_FFT */
    float *filter;                  /* [n_mel, N_BIN] */
    int from[MEL_MAX], to[MEL_MAX]; /* bins where a filter is not zero */
    float *pend; /* samples from the first of the next frame on; its centre is HALF further */
    size_t n_pend, cap_pend;
    bool begun; /* the reflected start is in pend */
    double loudest;
};

/* Hertz to the Slaney scale (linear below 1 kHz, logarithmic above) and back. */
static double to_mel(double hz)
{
    return hz < 1000 ? 3 * hz / 200 : 15 + log(hz / 1000) * 27 / log(6.4);
}

static double to_hz(double mel)
{
    return mel < 15 ? 200 * mel / 3 : 1000 * exp((mel - 15) * log(6.4) / 27);
}

static void make_filters(struct aud_mel_maker *k, int n_mel)
{
    double top = to_mel(AUD_RATE / 2.0), edge[MEL_MAX + 2];
    for (int i = 0; i < n_mel + 2; i++)
        edge[i] = to_hz(top * i / (n_mel + 1));
    for (int m = 0; m < n_mel; m++) {
        double lo = edge[m], mid = edge[m + 1], hi = edge[m + 2], area = 2 / (hi - lo);
        k->from[m] = N_BIN;
        k->to[m] = 0;
        for (int b = 0; b < N_BIN; b++) {
            double f = (double)b * AUD_RATE / N_FFT;
            double up = (f - lo) / (mid - lo), down = (hi - f) / (hi - mid);
            double v = up < down ? up : down;
            k->filter[m * N_BIN + b] = v > 0 ? (float)(v * area) : 0;
            if (v <= 0)
                continue;
            k->from[m] = b < k->from[m] ? b : k->from[m];
            k->to[m] = b + 1;
        }
    }
}

struct aud_mel *aud_mel_new(int n_mel)
{
    if (n_mel < 1 || n_mel > MEL_MAX)
        return NULL;
    struct aud_mel *m = mem_calloc(1, sizeof *m);
    struct aud_mel_maker *k = m ? m->maker = mem_calloc(1, sizeof *k) : NULL;
    if (k)
        k->filter = mem_calloc((size_t)n_mel * N_BIN, sizeof *k->filter);
    if (!k || !k->filter) {
        aud_mel_free(m);
        return NULL;
    }
    m->n_mel = n_mel;
    k->loudest = -10;
    for (int i = 0; i < N_FFT; i++) {
        double a = 2 * M_PI * i / N_FFT;
        k->cs[i] = cos(a);
        k->sn[i] = sin(a);
        k->window[i] = 0.5 - 0.5 * k->cs[i];
    }
    make_filters(k, n_mel);
    return m;
}

static void maker_free(struct aud_mel_maker *k)
{
    if (k) {
        free(k->filter);
        free(k->pend);
    }
    free(k);
}

void aud_mel_free(struct aud_mel *m)
{
    if (!m)
        return;
    maker_free(m->maker);
    free(m->v);
    free(m);
}

/* Transform of n = 2^a * 25 values x[0], x[step], ...: halves down to 25, which are summed as they stand. */
static void fft(const struct aud_mel_maker *k, const double *x, int n, int step, double *re,
                double *im)
{
    int turn = N_FFT / n;
    if (n % 2) {
        for (int f = 0; f < n; f++) {
            double r = 0, i = 0;
            for (int t = 0, at = 0; t < n; t++, at += f * turn) {
                at %= N_FFT;
                r += x[t * step] * k->cs[at];
                i -= x[t * step] * k->sn[at];
            }
            re[f] = r;
            im[f] = i;
        }
        return;
    }
    int h = n / 2;
    double er[HALF], ei[HALF];
    fft(k, x, h, 2 * step, er, ei);
    fft(k, x + step, h, 2 * step, re + h, im + h);
    for (int f = 0; f < h; f++) {
        double c = k->cs[f * turn], s = k->sn[f * turn], r = re[h + f], i = im[h + f];
        double or = r * c + i * s, oi = i * c - r * s;
        re[f] = er[f] + or ;
        im[f] = ei[f] + oi;
        re[h + f] = er[f] - or ;
        im[h + f] = ei[f] - oi;
    }
}

static void frame(struct aud_mel *m, const float *pcm)
{
    struct aud_mel_maker *k = m->maker;
    double x[N_FFT], re[N_FFT], im[N_FFT];
    float *out = m->v + m->n_row * m->n_mel;
    for (int i = 0; i < N_FFT; i++)
        x[i] = (double)pcm[i] * k->window[i];
    fft(k, x, N_FFT, 1, re, im);
    for (int b = 0; b < N_BIN; b++)
        re[b] = re[b] * re[b] + im[b] * im[b];
    for (int i = 0; i < m->n_mel; i++) {
        double sum = 0;
        for (int b = k->from[i]; b < k->to[i]; b++)
            sum += re[b] * (double)k->filter[i * N_BIN + b];
        double v = log10(sum > 1e-10 ? sum : 1e-10);
        out[i] = (float)v;
        k->loudest = v > k->loudest ? v : k->loudest;
    }
    m->n_row++;
}

static int grow(void *list, size_t want, size_t *cap, size_t size)
{
    void **p = list;
    size_t n = *cap ? *cap : 512, bytes;
    if (want <= *cap)
        return 0;
    while (n < want)
        n += n / 2;
    void *q = ck_mul(n, size, &bytes) ? mem_realloc(*p, bytes) : NULL;
    if (!q)
        return ERR_NOMEM;
    *p = q;
    *cap = n;
    return 0;
}

/* All frames that pend holds whole, up to row `last`. */
static int frames(struct aud_mel *m, int64_t last)
{
    struct aud_mel_maker *k = m->maker;
    size_t at = 0, cap = (size_t)m->cap;
    int rc = 0;
    while (!rc && m->n_row < last && k->n_pend - at >= N_FFT) {
        rc = grow(&m->v, (size_t)m->n_row + 1, &cap, (size_t)m->n_mel * sizeof *m->v);
        m->cap = (int64_t)cap;
        if (rc)
            break;
        frame(m, k->pend + at);
        at += AUD_HOP;
    }
    memmove(k->pend, k->pend + at, (k->n_pend - at) * sizeof *k->pend);
    k->n_pend -= at;
    return rc;
}

/* The first frame is centred on sample 0: what is before it is the start, mirrored. */
static int begin(struct aud_mel_maker *k)
{
    if (k->n_pend <= HALF)
        return ERR_AGAIN;
    if (grow(&k->pend, k->n_pend + HALF, &k->cap_pend, sizeof *k->pend))
        return ERR_NOMEM;
    memmove(k->pend + HALF, k->pend, k->n_pend * sizeof *k->pend);
    for (int i = 0; i < HALF; i++)
        k->pend[i] = k->pend[2 * HALF - i];
    k->n_pend += HALF;
    k->begun = true;
    return 0;
}

static int add(struct aud_mel *m, const float *pcm, size_t n)
{
    struct aud_mel_maker *k = m->maker;
    size_t want;
    if (!ck_add(k->n_pend, n, &want) || grow(&k->pend, want, &k->cap_pend, sizeof *k->pend))
        return ERR_NOMEM;
    if (pcm)
        memcpy(k->pend + k->n_pend, pcm, n * sizeof *pcm);
    else
        memset(k->pend + k->n_pend, 0, n * sizeof *pcm);
    k->n_pend = want;
    if (!k->begun) {
        int rc = begin(k);
        if (rc)
            return rc == ERR_AGAIN ? 0 : rc;
    }
    return frames(m, INT64_MAX);
}

int aud_mel_add(struct aud_mel *m, const float *pcm, size_t n)
{
    const size_t piece = 1 << 16; /* what waits for its frames stays small */
    for (int rc; n; pcm += piece) {
        size_t k = n < piece ? n : piece;
        if ((rc = add(m, pcm, k)))
            return rc;
        m->n_sample += (int64_t)k;
        n -= k;
    }
    return 0;
}

int aud_mel_finish(struct aud_mel *m)
{
    int rc = add(m, NULL, 2 * N_FFT); /* silence: the last frames that hear something */
    if (rc)
        return rc;
    double least = m->maker->loudest - 8;
    for (int64_t i = 0; i < m->n_row * m->n_mel; i++) {
        double v = (double)m->v[i];
        m->v[i] = (float)(((v > least ? v : least) + 4) / 4);
    }
    m->silence = (float)(((least > -10 ? least : -10) + 4) / 4);
    m->n_frame = m->n_sample / AUD_HOP;
    maker_free(m->maker);
    m->maker = NULL;
    return 0;
}
