/* PNG through libpng. libpng leaves by longjmp: each direction has one function with a setjmp whose state lives in a struct
 * of the caller, so no local variable is changed between the two (C17 7.13.2.1). libpng's and zlib's memory is counted. */
#include "api/picture_impl.h"

#include "engine/base/mem.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

/* Run lengths after adaptive filters: 1024 x 1024 of a photograph take 50 ms and 819 KB (with noise on it 1427 KB), where
 * zlib's level 6 needs 254 ms for 822 KB (1504 KB): little repeats in a picture but what the filters already took out. */
enum { LEVEL = 1, STRATEGY = 3 /* Z_RLE */, FILTERS = PNG_ALL_FILTERS };

struct job {
    struct picture__job *in; /* reading */
    size_t at;
    struct buf *sink; /* writing */
    struct err *e;
    int code; /* why memory was refused; 0 = it was not */
    int rc;
    png_structp png;
    png_infop info;
    struct picture pic;
};

/* ---- what libpng calls ---- */

static void on_error(png_structp png, const char *text)
{
    struct job *j = png_get_error_ptr(png);
    if (j->code)
        j->rc = j->code; /* its text stands already */
    else
        j->rc = err_set(j->e, ERR_PARSE, "a broken PNG file: %s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, const char *text)
{
    (void)png;
    (void)text;
}

static void *take(png_structp png, png_alloc_size_t n)
{
    struct job *j = png_get_mem_ptr(png);
    if (j->in && picture__take(j->in, n)) {
        j->code = ERR_LIMIT;
        return NULL;
    }
    void *p = mem_alloc(n);
    if (!p)
        j->code = err_set(j->e, ERR_NOMEM, "no memory for the PNG library");
    return p;
}

/* Not given back to the budget: libpng does not tell the size, and allocates few blocks again. */
static void give(png_structp png, void *p)
{
    (void)png;
    free(p);
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    struct job *j = png_get_io_ptr(png);
    if (n > j->in->n - j->at)
        png_error(png, "the file is cut");
    memcpy(to, j->in->p + j->at, n);
    j->at += n;
}

static void on_write(png_structp png, png_bytep from, size_t n)
{
    struct job *j = png_get_io_ptr(png);
    buf_add(j->sink, from, n);
    if (j->sink->failed) {
        j->code = err_set(j->e, j->sink->limit ? ERR_LIMIT : ERR_NOMEM, "no room for the PNG file");
        png_error(png, "no room");
    }
}

static void on_flush(png_structp png)
{
    (void)png;
}

/* ---- reading ---- */

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* To RGBA 8 whatever the file holds: 16 bits cut to the high byte, palettes and tRNS spread out. */
static void set_transforms(struct job *j)
{
    png_structp png = j->png;
    int type = png_get_color_type(png, j->info);
    bool trns = png_get_valid(png, j->info, PNG_INFO_tRNS) != 0;
    j->pic.alpha = trns || (type & PNG_COLOR_MASK_ALPHA);
    png_set_expand(png);
    png_set_strip_16(png);
    if (!(type & PNG_COLOR_MASK_COLOR))
        png_set_gray_to_rgb(png);
    if (!j->pic.alpha)
        png_set_add_alpha(png, 0xffff, PNG_FILLER_AFTER);
}

static void set_strict(struct job *j)
{
    /* Texts and profiles are of no use here, and may be bombs. Their checksums are read all the same. */
    static const char skipped[] = "iCCP\0iTXt\0zTXt\0tEXt\0sPLT\0hIST\0";
    png_set_keep_unknown_chunks(j->png, PNG_HANDLE_CHUNK_NEVER, (png_const_bytep)skipped, 6);
    png_set_crc_action(j->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_user_limits(j->png, (png_uint_32)j->in->max.side_max, (png_uint_32)j->in->max.side_max);
}

/* An eXIf chunk may stand before the pixels or after them. */
static void find_orientation(struct job *j)
{
    png_uint_32 n = 0;
    png_bytep exif = NULL;
    if (png_get_eXIf_1(j->png, j->info, &n, &exif) == PNG_INFO_eXIf)
        j->in->orientation = picture__exif_orientation(exif, n);
}

static int run_read(struct job *j)
{
    if (setjmp(png_jmpbuf(j->png)))
        return j->rc;
    set_strict(j);
    png_set_read_fn(j->png, j, on_read);
    png_read_info(j->png, j->info);
    set_transforms(j);
    int passes = png_set_interlace_handling(j->png);
    png_read_update_info(j->png, j->info);
    int w = (int)png_get_image_width(j->png, j->info);
    int h = (int)png_get_image_height(j->png, j->info);
    CHECK(png_get_rowbytes(j->png, j->info) == (size_t)w * 4);
    int rc = picture__make(&j->pic, j->in, w, h);
    if (rc)
        return rc;
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < h; y++)
            png_read_row(j->png, j->pic.rgba + (size_t)y * (size_t)w * 4, NULL);
    png_read_end(j->png, j->info);
    find_orientation(j);
    return 0;
}

int picture__png_read(struct picture *out, struct picture__job *in)
{
    struct job j = {.in = in, .e = in->e};
    /* The header must come first; read here so that its refusal takes no memory at all. */
    if (in->n < 33 || be32(in->p + 8) != 13 || memcmp(in->p + 12, "IHDR", 4) != 0)
        return err_set(in->e, ERR_PARSE, "a broken PNG file: no header");
    int rc = picture__fits(in, be32(in->p + 16), be32(in->p + 20), 0);
    if (rc)
        return rc;
    j.png =
        png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &j, on_error, on_warning, &j, take, give);
    if (j.png)
        j.info = png_create_info_struct(j.png);
    if (j.info)
        rc = run_read(&j);
    else
        rc = j.code ? j.code : err_set(in->e, ERR_NOMEM, "no memory for the PNG library");
    png_destroy_read_struct(&j.png, &j.info, NULL);
    /* libpng goes on without a chunk that it has no memory for; the picture might lie on its side then. */
    rc = rc ? rc : j.code;
    if (rc) {
        picture_free(&j.pic);
        return rc;
    }
    *out = j.pic;
    return 0;
}

/* ---- writing ---- */

/* One byte per character when the text is Latin-1 (PNG 1.2, 4.2.3.1: tEXt); false when it is not. */
static bool to_latin1(const char *s, char *to)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c >= 0x80) {
            if (c != 0xC2 && c != 0xC3)
                return false;
            c = (unsigned char)((c & 3) << 6 | ((unsigned char)*++s & 0x3F));
        }
        *to++ = (char)c;
    }
    *to = 0;
    return true;
}

/* `room` has strlen(parameters) + 1 bytes. */
static void add_text(struct job *j, const char *parameters, char *room)
{
    png_text t = {.key = (png_charp)(uintptr_t) "parameters"};
    if (to_latin1(parameters, room)) {
        t.compression = PNG_TEXT_COMPRESSION_NONE;
        t.text = room;
    } else {
        t.compression = PNG_ITXT_COMPRESSION_NONE;
        t.text = (png_charp)(uintptr_t)parameters;
    }
    png_set_text(j->png, j->info, &t, 1);
}

static int run_write(struct job *j, const struct picture *px, const char *parameters, char *room)
{
    int w = px->width, h = px->height;
    if (setjmp(png_jmpbuf(j->png)))
        return j->rc;
    png_set_write_fn(j->png, j, on_write, on_flush);
    png_set_user_limits(j->png, 0x7fffffff, 0x7fffffff);
    png_set_IHDR(j->png, j->info, (png_uint_32)w, (png_uint_32)h, 8,
                 px->alpha ? PNG_COLOR_TYPE_RGB_ALPHA : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_compression_level(j->png, LEVEL);
    png_set_compression_strategy(j->png, STRATEGY);
    png_set_filter(j->png, PNG_FILTER_TYPE_BASE, FILTERS);
    if (parameters)
        add_text(j, parameters, room);
    png_write_info(j->png, j->info);
    for (int y = 0; y < h; y++)
        png_write_row(j->png, px->rgba + (size_t)y * (size_t)w * (px->alpha ? 4 : 3));
    png_write_end(j->png, NULL);
    return 0;
}

int picture__png_write(struct buf *out, const struct picture *px, const struct picture_encode *o,
                       struct err *e)
{
    struct job j = {.sink = out, .e = e};
    char *room = NULL;
    int rc;
    if (o->parameters) {
        room = mem_alloc(strlen(o->parameters) + 1);
        if (!room)
            return err_set(e, ERR_NOMEM, "no memory for the parameters of a picture");
    }
    j.png =
        png_create_write_struct_2(PNG_LIBPNG_VER_STRING, &j, on_error, on_warning, &j, take, give);
    if (j.png)
        j.info = png_create_info_struct(j.png);
    if (j.info)
        rc = run_write(&j, px, o->parameters, room);
    else
        rc = j.code ? j.code : err_set(e, ERR_NOMEM, "no memory for the PNG library");
    png_destroy_write_struct(&j.png, &j.info);
    free(room);
    return rc ? rc : j.code;
}
