/* Shared by api/picture*.c: what a decoder gets, and the pieces that every format needs. */
#ifndef API_PICTURE_IMPL_H
#define API_PICTURE_IMPL_H

#include "api/picture.h"

/* One decoding. `left` is what may still be allocated; decoders take from it with picture__take before they allocate. */
struct picture__job {
    const uint8_t *p;
    size_t n;
    struct picture_limits max; /* no zero: the defaults are filled in */
    size_t left;               /* bytes */
    int orientation;           /* EXIF, 1..8; 1 = upright */
    struct err *e;
};

/* From the header, before pixels are touched: sides, pixels, and the memory of the RGBA picture plus `extra` bytes per pixel
 * that the library needs. ERR_LIMIT, ERR_PARSE (a side of 0). */
int picture__fits(const struct picture__job *j, uint64_t w, uint64_t h, uint64_t extra);
/* Counts n bytes against the limit; ERR_LIMIT. */
int picture__take(struct picture__job *j, size_t n);
/* picture__take and allocate [h, w, 4]. ERR_LIMIT, ERR_NOMEM. */
int picture__make(struct picture *out, struct picture__job *j, int w, int h);

/* One file of their format into *out and j->orientation. On failure nothing is held. */
int picture__png_read(struct picture *out, struct picture__job *j);
int picture__jpeg_read(struct picture *out, struct picture__job *j);
int picture__webp_read(struct picture *out, struct picture__job *j);

/* See picture_write; o->format is theirs. `out` may hold half a file on failure: the caller cuts it off. */
int picture__png_write(struct buf *out, const struct picture *px, const struct picture_encode *o,
                       struct err *e);
int picture__jpeg_write(struct buf *out, const struct picture *px, const struct picture_encode *o,
                        struct err *e);
int picture__webp_write(struct buf *out, const struct picture *px, const struct picture_encode *o,
                        struct err *e);

/* Orientation 1..8 in a TIFF block, with or without "Exif\0\0" before it; 1 when there is none or the block is broken
 * (a picture is not refused for its metadata). */
int picture__exif_orientation(const uint8_t *p, size_t n);
/* Appends a TIFF block whose only entry is UserComment = text (valid UTF-8), as "UNICODE" UTF-16BE; as ASCII when
 * that is needed to stay within max bytes. ERR_LIMIT: too long all the same; ERR_NOMEM. */
int picture__exif_comment(struct buf *out, const char *text, size_t max);
/* Replaces *p by the picture that its orientation means. ERR_LIMIT, ERR_NOMEM. */
int picture__turn(struct picture *p, struct picture__job *j);

#endif
