/* See picture.h. Which format, the limits, turning upright; the formats themselves are in picture_png.c and its
 * neighbours. */
#include "api/picture.h"
#include "api/picture_impl.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { SIDE_MAX = 16384 };
#define PIXELS_MAX (INT64_C(64) * 1000 * 1000)
#define BYTES_MAX  ((size_t)1 << 30)

/* ---- limits ---- */

int picture__fits(const struct picture__job *j, uint64_t w, uint64_t h, uint64_t extra)
{
    const struct picture_limits *m = &j->max;
    if (w == 0 || h == 0)
        return err_set(j->e, ERR_PARSE, "the picture has no pixels (%llu x %llu)",
                       (unsigned long long)w, (unsigned long long)h);
    if (w > (uint64_t)m->side_max || h > (uint64_t)m->side_max)
        return err_set(j->e, ERR_LIMIT, "the picture has %llu x %llu pixels; at most %d on a side",
                       (unsigned long long)w, (unsigned long long)h, m->side_max);
    if (w * h > (uint64_t)m->pixels_max)
        return err_set(j->e, ERR_LIMIT, "the picture has %llu x %llu pixels; at most %lld in all",
                       (unsigned long long)w, (unsigned long long)h, (long long)m->pixels_max);
    if (w * h > j->left / (4 + extra))
        return err_set(j->e, ERR_LIMIT,
                       "decoding %llu x %llu pixels takes more than %zu MiB of memory",
                       (unsigned long long)w, (unsigned long long)h, m->bytes_max >> 20);
    return 0;
}

int picture__take(struct picture__job *j, size_t n)
{
    if (n > j->left)
        return err_set(j->e, ERR_LIMIT, "decoding the picture takes more than %zu MiB of memory",
                       j->max.bytes_max >> 20);
    j->left -= n;
    return 0;
}

int picture__make(struct picture *out, struct picture__job *j, int w, int h)
{
    size_t px, n;
    if (!ck_mul((size_t)w, (size_t)h, &px) || !ck_mul(px, 4, &n))
        return err_set(j->e, ERR_LIMIT, "the picture is too large");
    int rc = picture__take(j, n);
    if (rc)
        return rc;
    out->rgba = mem_alloc(n);
    if (!out->rgba)
        return err_set(j->e, ERR_NOMEM, "no memory for a picture of %d x %d pixels", w, h);
    out->width = w;
    out->height = h;
    return 0;
}

void picture_free(struct picture *p)
{
    free(p->rgba);
    *p = (struct picture){0};
}

/* ---- formats ---- */

/* What a file starts with; `at` is where. */
static const struct magic {
    const char *name;
    int (*read)(struct picture *out, struct picture__job *j); /* NULL: not for us */
    size_t at, n;
    const char *bytes;
} magics[] = {
    {"a PNG", picture__png_read, 0, 8, "\x89PNG\r\n\x1a\n"},
    {"a JPEG", picture__jpeg_read, 0, 3, "\xff\xd8\xff"},
    {"a WebP", picture__webp_read, 8, 4, "WEBP"},
    {"a GIF", NULL, 0, 4, "GIF8"},
    {"a BMP", NULL, 0, 2, "BM"},
    {"a TIFF", NULL, 0, 4, "II*\0"},
    {"a TIFF", NULL, 0, 4, "MM\0*"},
    {"an AVIF", NULL, 4, 8, "ftypavif"},
    {"an AVIF", NULL, 4, 8, "ftypavis"},
    {"a HEIC", NULL, 4, 8, "ftypheic"},
    {"a HEIC", NULL, 4, 8, "ftypheix"},
    {"a HEIC", NULL, 4, 8, "ftypmif1"},
    {"a JPEG XL", NULL, 0, 2, "\xff\x0a"},
    {"a JPEG XL", NULL, 4, 8, "JXL \r\n\x87\n"},
    {"a JPEG 2000", NULL, 4, 8, "jP  \r\n\x87\n"},
    {"a JPEG 2000", NULL, 0, 4, "\xff\x4f\xff\x51"},
    {"an ICO", NULL, 0, 4, "\0\0\1\0"},
    {"a PSD", NULL, 0, 4, "8BPS"},
    {"a PDF", NULL, 0, 5, "%PDF-"},
    {"an SVG", NULL, 0, 4, "<svg"},
};

static const struct magic *find(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const struct magic *m = &magics[i];
        if (n >= m->at + m->n && memcmp(p + m->at, m->bytes, m->n) == 0 &&
            (m->at != 8 || memcmp(p, "RIFF", 4) == 0))
            return m;
    }
    return NULL;
}

int picture_decode(struct picture *out, const void *data, size_t n, const struct picture_limits *l,
                   struct err *e)
{
    struct picture__job j = {.p = data, .n = n, .orientation = 1, .e = e};
    struct picture p = {0};
    *out = p;
    if (l)
        j.max = *l;
    if (!j.max.side_max)
        j.max.side_max = SIDE_MAX;
    if (!j.max.pixels_max)
        j.max.pixels_max = PIXELS_MAX;
    if (!j.max.bytes_max)
        j.max.bytes_max = BYTES_MAX;
    j.left = j.max.bytes_max;
    if (n == 0)
        return err_set(e, ERR_PARSE, "the image file is empty");
    const struct magic *m = find(j.p, n);
    if (!m)
        return err_set(e, ERR_PARSE, "this is no image file: send PNG, JPEG or WebP");
    if (!m->read)
        return err_set(e, ERR_UNSUPPORTED, "%s image: send PNG, JPEG or WebP", m->name);
    int rc = m->read(&p, &j);
    if (!rc)
        rc = picture__turn(&p, &j);
    if (rc) {
        picture_free(&p);
        return rc;
    }
    *out = p;
    return 0;
}

/* ---- turning ---- */

int picture__turn(struct picture *p, struct picture__job *j)
{
    int o = j->orientation, w = p->width, h = p->height;
    struct picture q = {.alpha = p->alpha};
    if (o <= 1 || o > 8)
        return 0;
    int rc = o >= 5 ? picture__make(&q, j, h, w) : picture__make(&q, j, w, h);
    if (rc)
        return rc;
    /* Where the stored pixel (x, y) goes; from 5 on, stored rows are columns (TIFF 6.0, tag 274). */
    bool flip_x = o == 2 || o == 3 || o == 7 || o == 8,
         flip_y = o == 3 || o == 4 || o == 6 || o == 7;
    for (int y = 0; y < h; y++) {
        const uint8_t *src = p->rgba + (size_t)y * (size_t)w * 4;
        for (int x = 0; x < w; x++, src += 4) {
            int sx = flip_x ? w - 1 - x : x, sy = flip_y ? h - 1 - y : y;
            size_t at =
                o >= 5 ? (size_t)sx * (size_t)h + (size_t)sy : (size_t)sy * (size_t)w + (size_t)sx;
            memcpy(q.rgba + at * 4, src, 4);
        }
    }
    free(p->rgba);
    *p = q;
    return 0;
}

/* ---- writing ---- */

int picture_write(struct buf *out, const uint8_t *px, int width, int height, bool alpha,
                  const struct picture_encode *o, struct err *e)
{
    /* Only read from: the encoders take the picture's fields, never its ownership. */
    struct picture p = {width, height, alpha, (uint8_t *)(uintptr_t)px};
    size_t start = out->len;
    int rc = ERR_INVAL;
    if (width < 1 || height < 1)
        return err_set(e, ERR_INVAL, "a picture of %d x %d pixels", width, height);
    if (o->parameters && !utf8_valid(o->parameters, strlen(o->parameters)))
        return err_set(e, ERR_INVAL, "parameters: not UTF-8");
    switch (o->format) {
    case PICTURE_PNG:
        rc = picture__png_write(out, &p, o, e);
        break;
    case PICTURE_JPEG:
        rc = picture__jpeg_write(out, &p, o, e);
        break;
    case PICTURE_WEBP:
        rc = picture__webp_write(out, &p, o, e);
        break;
    }
    if (!rc && out->failed)
        rc = err_set(e, out->limit ? ERR_LIMIT : ERR_NOMEM,
                     "no room for a picture of %d x %d pixels", width, height);
    if (rc && out->p) {
        out->len = start;
        out->p[start] = 0;
    }
    return rc;
}

const char *picture_type(enum picture_format f)
{
    static const char *const types[] = {"image/png", "image/jpeg", "image/webp"};
    return types[f];
}

const char *picture_name(enum picture_format f)
{
    static const char *const names[] = {"png", "jpeg", "webp"};
    return names[f];
}
