/* Picture files: PNG, JPEG and WebP in and out (libpng, libjpeg-turbo, libwebp). Decoding gives 8-bit RGBA whatever the
 * file holds (palette, grey, 16 bit, CMYK, first frame of an animation), turned upright by its EXIF orientation. Sizes
 * are checked from the header, before any pixel is decoded; never more memory than the limit. Pure; any thread. */
#ifndef API_PICTURE_H
#define API_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum picture_format { PICTURE_PNG, PICTURE_JPEG, PICTURE_WEBP };

struct picture {
    int width, height;
    bool alpha;    /* the file has transparency (not all opaque by its type) */
    uint8_t *rgba; /* [height, width, 4], straight alpha; malloc'ed */
};
struct picture_limits {
    int side_max;       /* pixels; 0 = 16384 */
    int64_t pixels_max; /* 0 = 64 million */
    size_t bytes_max;   /* memory while decoding; 0 = 1 GiB */
};

/* By content, not by name. ERR_PARSE: broken or cut; ERR_UNSUPPORTED: another format (text names it); ERR_LIMIT: over
 * the limits; ERR_NOMEM. On failure nothing is held. */
int picture_decode(struct picture *out, const void *data, size_t n, const struct picture_limits *l,
                   struct err *e);
void picture_free(struct picture *p);

/* Resampled (area average down, cubic up) to w x h. ERR_NOMEM. */
int picture_resize(struct picture *out, const struct picture *in, int w, int h);

struct picture_encode {
    enum picture_format format;
    int quality; /* 0..100, JPEG and WebP (100: WebP lossless); PNG: ignored */
    const char *
        parameters; /* UTF-8 generation parameters: PNG iTXt/tEXt "parameters", EXIF UserComment elsewhere; NULL */
};
/* rgb [height, width, 3] or, with alpha, rgba [.., 4] (JPEG: laid over white). Appends to *out, which is as before on failure.
 * ERR_INVAL: parameters are no UTF-8, no pixels; ERR_LIMIT: too large for the format (JPEG: 65500 pixels on a side, 32 K
 * characters of parameters, twice that if ASCII; WebP: 16383 pixels) or for out->limit; ERR_NOMEM. */
int picture_write(struct buf *out, const uint8_t *px, int width, int height, bool alpha,
                  const struct picture_encode *o, struct err *e);
const char *picture_type(enum picture_format f); /* "image/png" */
const char *picture_name(enum picture_format f); /* "png" */

#endif
