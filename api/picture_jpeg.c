/* JPEG through libjpeg-turbo. Errors leave by longjmp, as in picture_png.c: one setjmp per direction, all state in a struct of
 * the caller. Warnings that mean lost pixels are errors: half a grey picture is no input for a model. */
#include "api/picture_impl.h"

#include "engine/base/mem.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

/* The library's message numbers, by its own table: the rest of jerror.h uses a call that banned.h forbids. */
#define JERROR_H
#define JMESSAGE(code, text) code,
enum message {
#include <jerror.h>
};

enum {
    /* Each scan of a progressive file walks over all pixels, even when 31 bytes say "nothing new": 100 of them over 62 million
     * pixels took 5 s. */
    SCANS_MAX = 100,
    SCANS_USUAL = 16,       /* encoders write about 10 */
    WORK_MAX = 1 << 29,     /* pixels times scans, from there on */
    MARKER_MAX = 65533,     /* bytes of a marker segment */
    SUBSAMPLING_BELOW = 90, /* quality from which colours keep full resolution */
    EXIF_HEAD = 6,          /* "Exif\0\0" */
    OUT_SIZE = 16384,
};

struct job {
    struct jpeg_error_mgr err; /* first: libjpeg knows only this part */
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct d;
    struct jpeg_compress_struct c;
    struct jpeg_destination_mgr dest;
    jmp_buf jump;
    struct picture__job *in;
    struct err *e;
    int rc;
    struct picture pic;
    struct buf *sink;
    struct buf exif;
    uint8_t *row;
    uint8_t out[OUT_SIZE];
};

/* ---- what libjpeg calls ---- */

static int code_of(int msg)
{
    switch (msg) {
    case JERR_OUT_OF_MEMORY:
        return ERR_NOMEM;
    case JERR_NO_BACKING_STORE: /* over mem->max_memory_to_use */
    case JERR_IMAGE_TOO_BIG:
    case JERR_WIDTH_OVERFLOW:
        return ERR_LIMIT;
    case JERR_BAD_PRECISION:
    case JERR_ARITH_NOTIMPL:
    case JERR_CCIR601_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
        return ERR_UNSUPPORTED;
    default:
        return ERR_PARSE;
    }
}

static _Noreturn void on_error(j_common_ptr c)
{
    struct job *j = (struct job *)c->err;
    char text[JMSG_LENGTH_MAX];
    int code = code_of(c->err->msg_code);
    c->err->format_message(c, text);
    if (code == ERR_LIMIT && c->err->msg_code == JERR_NO_BACKING_STORE)
        j->rc = err_set(j->e, code, "decoding the picture takes more than %zu MiB of memory",
                        j->in->max.bytes_max >> 20);
    else
        j->rc = err_set(j->e, code, "%s JPEG file: %s",
                        code == ERR_PARSE ? "a broken" : "an unsupported", text);
    longjmp(j->jump, 1);
}

static void on_message(j_common_ptr c, int level)
{
    if (level >= 0)
        return; /* a trace */
    switch (c->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
        on_error(c);
    default:
        c->err->num_warnings++;
    }
}

static void on_progress(j_common_ptr c)
{
    struct job *j = (struct job *)c->err;
    int scans = j->d.input_scan_number;
    uint64_t work = (uint64_t)scans * j->d.image_width * j->d.image_height;
    if (scans > SCANS_MAX || (scans > SCANS_USUAL && work > WORK_MAX)) {
        j->rc = err_set(j->e, ERR_LIMIT, "a JPEG file of %d scans or more", scans);
        longjmp(j->jump, 1);
    }
}

static struct jpeg_error_mgr *errors(struct job *j)
{
    jpeg_std_error(&j->err);
    j->err.error_exit = on_error;
    j->err.emit_message = on_message;
    return &j->err;
}

/* ---- reading ---- */

static void find_orientation(struct job *j)
{
    for (jpeg_saved_marker_ptr m = j->d.marker_list; m; m = m->next)
        if (m->data_length > EXIF_HEAD && memcmp(m->data, "Exif\0\0", EXIF_HEAD) == 0) {
            j->in->orientation = picture__exif_orientation(m->data, m->data_length);
            return;
        }
}

/* Ink to light, in place. Adobe's files hold 255 - ink. */
static void cmyk_to_rgba(uint8_t *p, int w, bool inverted)
{
    for (int x = 0; x < w; x++, p += 4) {
        unsigned flip = inverted ? 0 : 255, k = p[3] ^ flip;
        for (int c = 0; c < 3; c++)
            p[c] = (uint8_t)(((p[c] ^ flip) * k + 127) / 255);
        p[3] = 255;
    }
}

static int run_read(struct job *j)
{
    struct jpeg_decompress_struct *d = &j->d;
    if (setjmp(j->jump))
        return j->rc;
    jpeg_create_decompress(d);
    d->progress = &j->progress;
    jpeg_mem_src(d, j->in->p, j->in->n);
    jpeg_save_markers(d, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(d, TRUE);
    find_orientation(j);
    int rc = picture__fits(j->in, d->image_width, d->image_height, 0);
    if (rc)
        return rc;
    int w = (int)d->image_width, h = (int)d->image_height;
    bool cmyk = d->jpeg_color_space == JCS_CMYK || d->jpeg_color_space == JCS_YCCK;
    d->out_color_space = cmyk ? JCS_CMYK : JCS_EXT_RGBA;
    rc = picture__make(&j->pic, j->in, w, h);
    if (rc)
        return rc;
    /* 0 would mean no limit. */
    d->mem->max_memory_to_use = j->in->left ? (long)j->in->left : 1;
    jpeg_start_decompress(d);
    while (d->output_scanline < d->output_height) {
        JSAMPROW row = j->pic.rgba + (size_t)d->output_scanline * (size_t)w * 4;
        jpeg_read_scanlines(d, &row, 1);
        if (cmyk)
            cmyk_to_rgba(row, w, d->saw_Adobe_marker);
    }
    jpeg_finish_decompress(d);
    return 0;
}

int picture__jpeg_read(struct picture *out, struct picture__job *in)
{
    /* On the heap: larger than a frame should be. */
    struct job *j = mem_calloc(1, sizeof *j);
    if (!j)
        return err_set(in->e, ERR_NOMEM, "no memory for the JPEG library");
    j->in = in;
    j->e = in->e;
    j->d.err = errors(j);
    j->progress.progress_monitor = on_progress;
    int rc = run_read(j);
    jpeg_destroy_decompress(&j->d);
    if (rc)
        picture_free(&j->pic);
    else
        *out = j->pic;
    free(j);
    return rc;
}

/* ---- writing ---- */

static void dest_init(j_compress_ptr c)
{
    struct job *j = (struct job *)c->err;
    c->dest->next_output_byte = j->out;
    c->dest->free_in_buffer = OUT_SIZE;
}

static void put(struct job *j, size_t n)
{
    buf_add(j->sink, j->out, n);
    if (j->sink->failed) {
        j->rc = err_set(j->e, j->sink->limit ? ERR_LIMIT : ERR_NOMEM, "no room for the JPEG file");
        longjmp(j->jump, 1);
    }
}

static boolean dest_flush(j_compress_ptr c)
{
    put((struct job *)c->err, OUT_SIZE);
    dest_init(c);
    return TRUE;
}

static void dest_end(j_compress_ptr c)
{
    put((struct job *)c->err, OUT_SIZE - c->dest->free_in_buffer);
}

/* JPEG has no transparency: over white, as on a page. */
static void flatten(uint8_t *to, const uint8_t *px, int w)
{
    for (int x = 0; x < w; x++, px += 4, to += 3)
        for (int c = 0; c < 3; c++)
            to[c] = (uint8_t)((px[c] * px[3] + 255 * (255 - px[3]) + 127) / 255);
}

static void set_params(struct job *j, const struct picture *px, int quality)
{
    struct jpeg_compress_struct *c = &j->c;
    c->image_width = (JDIMENSION)px->width;
    c->image_height = (JDIMENSION)px->height;
    c->input_components = 3;
    c->in_color_space = JCS_RGB;
    jpeg_set_defaults(c);
    jpeg_set_quality(c, quality, TRUE);
    if (quality >= SUBSAMPLING_BELOW)
        c->comp_info[0].h_samp_factor = c->comp_info[0].v_samp_factor = 1;
}

static int run_write(struct job *j, const struct picture *px, int quality)
{
    size_t step = (size_t)px->width * (px->alpha ? 4 : 3);
    if (setjmp(j->jump))
        return j->rc;
    jpeg_create_compress(&j->c);
    j->c.dest = &j->dest;
    set_params(j, px, quality);
    jpeg_start_compress(&j->c, TRUE);
    if (j->exif.len)
        jpeg_write_marker(&j->c, JPEG_APP0 + 1, (const JOCTET *)j->exif.p, (unsigned)j->exif.len);
    while (j->c.next_scanline < j->c.image_height) {
        const uint8_t *src = px->rgba + (size_t)j->c.next_scanline * step;
        JSAMPROW row = (JSAMPROW)(uintptr_t)src;
        if (px->alpha) {
            flatten(j->row, src, px->width);
            row = j->row;
        }
        jpeg_write_scanlines(&j->c, &row, 1);
    }
    jpeg_finish_compress(&j->c);
    return 0;
}

static int prepare(struct job *j, const struct picture *px, const char *parameters)
{
    if (px->width > JPEG_MAX_DIMENSION || px->height > JPEG_MAX_DIMENSION)
        return err_set(j->e, ERR_LIMIT, "a JPEG file has at most %ld pixels on a side",
                       (long)JPEG_MAX_DIMENSION);
    if (px->alpha) {
        j->row = mem_alloc((size_t)px->width * 3);
        if (!j->row)
            return err_set(j->e, ERR_NOMEM, "no memory for a row of pixels");
    }
    if (!parameters)
        return 0;
    buf_add(&j->exif, "Exif\0\0", EXIF_HEAD);
    int rc = picture__exif_comment(&j->exif, parameters, MARKER_MAX - EXIF_HEAD);
    if (rc == ERR_LIMIT)
        return err_set(j->e, rc, "parameters: %zu bytes are too many for a JPEG file",
                       strlen(parameters));
    return rc ? err_set(j->e, rc, "no memory for the parameters of a picture") : 0;
}

int picture__jpeg_write(struct buf *out, const struct picture *px, const struct picture_encode *o,
                        struct err *e)
{
    struct job *j = mem_calloc(1, sizeof *j);
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for the JPEG library");
    j->e = e;
    j->sink = out;
    j->c.err = errors(j);
    j->dest.init_destination = dest_init;
    j->dest.empty_output_buffer = dest_flush;
    j->dest.term_destination = dest_end;
    int rc = prepare(j, px, o->parameters);
    if (!rc)
        rc = run_write(j, px, o->quality);
    jpeg_destroy_compress(&j->c);
    buf_free(&j->exif);
    free(j->row);
    free(j);
    return rc;
}
