/* See sound.h. libsndfile reads from memory through callbacks; libsamplerate brings the mean of the channels to the
 * model's rate. */
#include "api/sound.h"

#include <math.h>
#include <samplerate.h>
#include <sndfile.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

#define BLOCK       16384 /* samples of all channels read at a time */
#define CHANNELS    64
#define SECONDS_MIN 0.1

#define PATCHES 8

/* Four bytes of the file that read as another number. */
struct patch {
    size_t at;
    uint32_t value;
};

struct memory {
    const char *p;
    sf_count_t n, at;
    struct patch patch[PATCHES];
    int n_patch;
};

static void add_patch(struct memory *m, size_t at, size_t value)
{
    if (m->n_patch < PATCHES)
        m->patch[m->n_patch++] = (struct patch){at, (uint32_t)value};
}

static uint32_t get_u32(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Who writes a wav file into a pipe can't go back to write its sizes: they are 0xffffffff, or 0. Chunks that reach over
 * the end of the file are given the size that they can have: samples up to the end, anything else up to the samples. */
static void mend_wav(struct memory *m)
{
    size_t n = (size_t)m->n, at = 12;
    if (n < 20 || n > UINT32_MAX || memcmp(m->p, "RIFF", 4) || memcmp(m->p + 8, "WAVE", 4))
        return;
    if (get_u32(m->p + 4) > n - 8)
        add_patch(m, 4, n - 8);
    while (n - at > 8) {
        const char *c = m->p + at;
        size_t size = get_u32(c + 4), left = n - at - 8;
        bool data = memcmp(c, "data", 4) == 0;
        if (data || size > left) {
            const char *next = data ? NULL : memmem(c + 8, left, "data", 4);
            if (data && (size > left || size == 0))
                add_patch(m, at + 4, left);
            if (data || !next)
                return;
            size = (size_t)(next - c - 8);
            add_patch(m, at + 4, size);
        }
        size += size & 1;
        if (size > left)
            return;
        at += 8 + size;
    }
}

/* Whether the header packets of an Ogg file are all there (RFC 3533): three of Vorbis, two of others. libsndfile loses memory
 * when they end early. */
static bool ogg_begins_whole(const struct memory *m)
{
    const unsigned char *p = (const unsigned char *)m->p;
    size_t n = (size_t)m->n, at = 0;
    int left = n > 35 && memcmp(p + 28, "\1vorbis", 7) == 0 ? 3 : 2;
    while (left > 0) {
        if (n - at < 27 || memcmp(p + at, "OggS", 4) != 0)
            return false;
        size_t n_seg = p[at + 26], body = 0;
        if (n - at - 27 < n_seg)
            return false;
        for (size_t i = 0; i < n_seg; i++) {
            body += p[at + 27 + i];
            left -= p[at + 27 + i] < 255;
        }
        at += 27 + n_seg;
        if (n - at < body)
            return false;
        at += body;
    }
    return true;
}

static sf_count_t mem_size(void *u)
{
    return ((struct memory *)u)->n;
}

static sf_count_t mem_seek(sf_count_t off, int whence, void *u)
{
    struct memory *m = u;
    sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? m->at : m->n, to;
    if (__builtin_add_overflow(from, off, &to) || to < 0)
        return -1;
    m->at = to < m->n ? to : m->n;
    return m->at;
}

static sf_count_t mem_read(void *dst, sf_count_t n, void *u)
{
    struct memory *m = u;
    if (n > m->n - m->at)
        n = m->n - m->at;
    if (n <= 0)
        return 0;
    memcpy(dst, m->p + m->at, (size_t)n);
    for (int i = 0; i < m->n_patch; i++)
        for (int k = 0; k < 4; k++) {
            sf_count_t at = (sf_count_t)m->patch[i].at + k - m->at;
            if (at >= 0 && at < n)
                ((char *)dst)[at] = (char)(m->patch[i].value >> (8 * k));
        }
    m->at += n;
    return n;
}

static sf_count_t mem_write(const void *p, sf_count_t n, void *u)
{
    (void)p;
    (void)n;
    (void)u;
    return 0;
}

static sf_count_t mem_tell(void *u)
{
    return ((struct memory *)u)->at;
}

struct sound {
    SNDFILE *file;
    SF_INFO info;
    SRC_STATE *rate;        /* NULL: the file has the model's rate */
    float *in, *mono, *out; /* BLOCK each */
    const struct sound_limits *lim;
    struct aud_mel *mel;
    int64_t n_in; /* frames of the file read */
};

static int open_rate(struct sound *s, struct err *e)
{
    int bad = 0;
    double ratio = (double)AUD_RATE / s->info.samplerate;
    if (s->info.samplerate == AUD_RATE)
        return 0;
    if (s->info.samplerate < 1 || !src_is_valid_ratio(ratio))
        return err_set(e, ERR_UNSUPPORTED, "a sample rate of %d is not supported",
                       s->info.samplerate);
    s->rate = src_new(SRC_SINC_MEDIUM_QUALITY, 1, &bad);
    return s->rate ? 0 : err_set(e, ERR_NOMEM, "no memory for a resampler");
}

static int room(struct sound *s, struct err *e)
{
    const struct sound_limits *l = s->lim;
    size_t bytes = (size_t)s->mel->cap * (size_t)s->mel->n_mel * sizeof *s->mel->v;
    if ((double)s->mel->n_sample > l->seconds_max * AUD_RATE)
        return err_set(e, ERR_LIMIT, "the recording is longer than %.0f s", l->seconds_max);
    if (l->room && !l->room(l->arg, bytes))
        return err_set(e, ERR_FULL, "too many recordings are waiting; try again later");
    return 0;
}

static int take(struct sound *s, const float *pcm, size_t n, struct err *e)
{
    if (aud_mel_add(s->mel, pcm, n))
        return err_set(e, ERR_NOMEM, "no memory for the recording");
    return room(s, e);
}

/* mono [n] through the resampler; last: nothing follows. */
static int resample(struct sound *s, size_t n, bool last, struct err *e)
{
    SRC_DATA d = {.data_in = s->mono,
                  .input_frames = (long)n,
                  .data_out = s->out,
                  .output_frames = BLOCK,
                  .end_of_input = last,
                  .src_ratio = (double)AUD_RATE / s->info.samplerate};
    if (!s->rate)
        return n ? take(s, s->mono, n, e) : 0;
    do {
        int bad = src_process(s->rate, &d), rc;
        if (bad)
            return err_set(e, ERR_PARSE, "it could not be resampled: %s", src_strerror(bad));
        if ((rc = take(s, s->out, (size_t)d.output_frames_gen, e)))
            return rc;
        d.data_in += d.input_frames_used;
        d.input_frames -= d.input_frames_used;
    } while (d.output_frames_gen || d.input_frames);
    return 0;
}

/* Values that are no numbers (float files may hold any bits) are silence; wild ones are cut, or their power would be
 * none. */
static float sane(double v)
{
    return (float)(isfinite(v) ? v > 8 ? 8 : v < -8 ? -8 : v : 0);
}

static int read_all(struct sound *s, struct err *e)
{
    int c = s->info.channels, rc = 0;
    sf_count_t want = BLOCK / c, n;
    while (!rc && (n = sf_readf_float(s->file, s->in, want)) > 0) {
        for (sf_count_t i = 0; i < n; i++) {
            double sum = 0;
            for (int k = 0; k < c; k++)
                sum += (double)s->in[i * c + k];
            s->mono[i] = sane(sum / c);
        }
        s->n_in += n;
        rc = resample(s, (size_t)n, false, e);
    }
    return rc ? rc : resample(s, 0, true, e);
}

/* What it says about libsndfile's own state at a failed open is the reason that a person wants. */
static int open_file(struct sound *s, struct memory *m, struct err *e)
{
    static SF_VIRTUAL_IO io = {mem_size, mem_seek, mem_read, mem_write, mem_tell};
    if (m->n == 0)
        return err_set(e, ERR_PARSE, "the file is empty");
    mend_wav(m);
    if (m->n >= 4 && memcmp(m->p, "OggS", 4) == 0 && !ogg_begins_whole(m))
        return err_set(e, ERR_PARSE, "the Ogg file ends within its headers");
    s->file = sf_open_virtual(&io, SFM_READ, &s->info, m);
    if (!s->file)
        return err_set(e, ERR_PARSE,
                       "it is no sound file that can be read (wav, flac, ogg, opus, mp3): %.100s",
                       sf_strerror(NULL));
    if (s->info.channels < 1 || s->info.channels > CHANNELS)
        return err_set(e, ERR_UNSUPPORTED, "%d channels; 1 to %d can be read", s->info.channels,
                       CHANNELS);
    /* Integer files to -1..1, float files as they are. */
    sf_command(s->file, SFC_SET_NORM_FLOAT, NULL, SF_TRUE);
    return open_rate(s, e);
}

int sound_read(struct aud_mel *m, const void *file, size_t n, const struct sound_limits *lim,
               struct err *e)
{
    struct memory mem = {.p = file, .n = (sf_count_t)n};
    struct sound s = {.lim = lim, .mel = m};
    int rc = open_file(&s, &mem, e);
    if (!rc) {
        s.in = mem_alloc(3 * BLOCK * sizeof *s.in);
        /* libsamplerate takes an input that ends where the output begins for an overlap */
        s.out = s.in ? s.in + BLOCK : NULL;
        s.mono = s.in ? s.in + 2 * BLOCK : NULL;
        rc = s.in ? read_all(&s, e) : err_set(e, ERR_NOMEM, "no memory for a recording");
    }
    if (!rc && (double)m->n_sample < SECONDS_MIN * AUD_RATE)
        rc = err_set(e, ERR_INVAL, "the recording has %.2f s of sound; %.1f s are the least",
                     (double)m->n_sample / AUD_RATE, SECONDS_MIN);
    if (!rc && aud_mel_finish(m))
        rc = err_set(e, ERR_NOMEM, "no memory for the recording");
    if (s.rate)
        src_delete(s.rate);
    if (s.file)
        sf_close(s.file);
    free(s.in);
    return rc;
}
