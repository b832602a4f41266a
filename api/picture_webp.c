/* WebP through libwebp: the demuxer finds the first frame and the EXIF block, the muxer adds one. */
#include "api/picture_impl.h"

#include "engine/base/mem.h"

#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>
#include <webp/encode.h>
#include <webp/mux.h>

enum {
    EXTRA = 5, /* bytes per pixel inside the library: ARGB of a lossless frame, a plane of alpha */
    EXIF_MAX = 1 << 30,
    /* 1024 x 1024 of a photograph: lossless 135 ms (2: 166 ms, 1 % smaller); lossy 72 ms (2: 28 ms, 3 % larger, 0.6 dB worse). */
    LOSSLESS_EFFORT = 1, /* 0..9 */
    LOSSY_METHOD = 4,    /* 0..6 */
};

/* ---- reading ---- */

static int code_of(VP8StatusCode s)
{
    return s == VP8_STATUS_OUT_OF_MEMORY         ? ERR_NOMEM
           : s == VP8_STATUS_UNSUPPORTED_FEATURE ? ERR_UNSUPPORTED
                                                 : ERR_PARSE;
}

static const char *text_of(VP8StatusCode s)
{
    static const char *const texts[] = {
        [VP8_STATUS_OUT_OF_MEMORY] = "no memory to decode it",
        [VP8_STATUS_INVALID_PARAM] = "its sizes do not agree",
        [VP8_STATUS_BITSTREAM_ERROR] = "its pixels cannot be decoded",
        [VP8_STATUS_UNSUPPORTED_FEATURE] = "a feature of it is not known",
        [VP8_STATUS_SUSPENDED] = "it is cut",
        [VP8_STATUS_USER_ABORT] = "it was given up",
        [VP8_STATUS_NOT_ENOUGH_DATA] = "it is cut",
    };
    return (size_t)s < sizeof texts / sizeof *texts && texts[s] ? texts[s] : "it is broken";
}

/* The first frame onto an empty canvas. */
static int read_frame(struct picture *out, struct picture__job *j, const WebPIterator *it)
{
    WebPDecoderConfig c;
    int w = out->width, h = out->height;
    if (!WebPInitDecoderConfig(&c))
        return err_set(j->e, ERR_INTERNAL, "libwebp has another version than its header");
    if (it->width > w - it->x_offset || it->height > h - it->y_offset)
        return err_set(j->e, ERR_PARSE, "a broken WebP file: a frame outside of the canvas");
    bool whole = it->width == w && it->height == h;
    size_t start = ((size_t)it->y_offset * (size_t)w + (size_t)it->x_offset) * 4;
    size_t size = (size_t)w * (size_t)h * 4;
    if (!whole)
        memset(out->rgba, 0, size);
    out->alpha = it->has_alpha || !whole;
    c.output.colorspace = MODE_RGBA;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.rgba = out->rgba + start;
    c.output.u.RGBA.stride = w * 4;
    c.output.u.RGBA.size = size - start;
    VP8StatusCode s = WebPGetFeatures(it->fragment.bytes, it->fragment.size, &c.input);
    if (s == VP8_STATUS_OK && (c.input.width != it->width || c.input.height != it->height))
        s = VP8_STATUS_INVALID_PARAM;
    if (s == VP8_STATUS_OK)
        s = WebPDecode(it->fragment.bytes, it->fragment.size, &c);
    return s == VP8_STATUS_OK ? 0 : err_set(j->e, code_of(s), "a broken WebP file: %s", text_of(s));
}

static void find_orientation(struct picture__job *j, const WebPDemuxer *d)
{
    WebPChunkIterator it;
    if (!(WebPDemuxGetI(d, WEBP_FF_FORMAT_FLAGS) & EXIF_FLAG))
        return;
    if (WebPDemuxGetChunk(d, "EXIF", 1, &it))
        j->orientation = picture__exif_orientation(it.chunk.bytes, it.chunk.size);
    WebPDemuxReleaseChunkIterator(&it);
}

int picture__webp_read(struct picture *out, struct picture__job *j)
{
    WebPData data = {j->p, j->n};
    WebPIterator it = {0};
    WebPDemuxer *d = WebPDemux(&data);
    if (!d)
        return err_set(j->e, ERR_PARSE, "a broken WebP file: it is cut, or its chunks do not fit");
    uint32_t w = WebPDemuxGetI(d, WEBP_FF_CANVAS_WIDTH),
             h = WebPDemuxGetI(d, WEBP_FF_CANVAS_HEIGHT);
    int rc = picture__fits(j, w, h, EXTRA);
    if (!rc && !WebPDemuxGetFrame(d, 1, &it))
        rc = err_set(j->e, ERR_PARSE, "a broken WebP file: no frame");
    if (!rc)
        rc = picture__make(out, j, (int)w, (int)h);
    if (!rc)
        rc = read_frame(out, j, &it);
    if (!rc)
        find_orientation(j, d);
    WebPDemuxReleaseIterator(&it);
    WebPDemuxDelete(d);
    if (rc)
        picture_free(out);
    return rc;
}

/* ---- writing ---- */

static int on_write(const uint8_t *p, size_t n, const WebPPicture *pic)
{
    struct buf *out = pic->custom_ptr;
    buf_add(out, p, n);
    return !out->failed;
}

static int encode(struct buf *out, const struct picture *px, int quality, struct err *e)
{
    WebPConfig c;
    WebPPicture p;
    int step = px->width * (px->alpha ? 4 : 3);
    if (!WebPConfigInit(&c) || !WebPPictureInit(&p))
        return err_set(e, ERR_INTERNAL, "libwebp has another version than its header");
    c.quality = (float)quality;
    c.method = LOSSY_METHOD;
    if (quality >= 100) {
        WebPConfigLosslessPreset(&c, LOSSLESS_EFFORT);
        c.exact = 1; /* colours under full transparency too */
        p.use_argb = 1;
    }
    p.width = px->width;
    p.height = px->height;
    p.writer = on_write;
    p.custom_ptr = out;
    int ok = px->alpha ? WebPPictureImportRGBA(&p, px->rgba, step)
                       : WebPPictureImportRGB(&p, px->rgba, step);
    ok = ok && WebPEncode(&c, &p);
    WebPPictureFree(&p);
    if (ok)
        return 0;
    if (out->failed)
        return err_set(e, out->limit ? ERR_LIMIT : ERR_NOMEM, "no room for the WebP file");
    return err_set(e, ERR_NOMEM, "the WebP library failed (code %d)", (int)p.error_code);
}

/* `plain` is a file without metadata. */
static int add_exif(struct buf *out, const struct buf *plain, const struct buf *exif, struct err *e)
{
    WebPData file = {(const uint8_t *)plain->p, plain->len}, whole = {0};
    WebPData block = {(const uint8_t *)exif->p, exif->len};
    WebPMux *m = WebPMuxCreate(&file, 0);
    bool ok = m && WebPMuxSetChunk(m, "EXIF", &block, 0) == WEBP_MUX_OK &&
              WebPMuxAssemble(m, &whole) == WEBP_MUX_OK;
    if (ok)
        buf_add(out, whole.bytes, whole.size);
    WebPDataClear(&whole);
    WebPMuxDelete(m);
    return ok ? 0 : err_set(e, ERR_NOMEM, "no memory for the parameters of a picture");
}

int picture__webp_write(struct buf *out, const struct picture *px, const struct picture_encode *o,
                        struct err *e)
{
    struct buf plain = {0}, exif = {0};
    if (px->width > WEBP_MAX_DIMENSION || px->height > WEBP_MAX_DIMENSION)
        return err_set(e, ERR_LIMIT, "a WebP file has at most %d pixels on a side",
                       WEBP_MAX_DIMENSION);
    if (!o->parameters)
        return encode(out, px, o->quality, e);
    int rc = picture__exif_comment(&exif, o->parameters, EXIF_MAX);
    if (rc)
        err_set(e, rc, "parameters: no room for %zu bytes", strlen(o->parameters));
    if (!rc)
        rc = encode(&plain, px, o->quality, e);
    if (!rc)
        rc = add_exif(out, &plain, &exif, e);
    buf_free(&plain);
    buf_free(&exif);
    return rc;
}
