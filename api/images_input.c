/* The pictures of an edit: found in a form or a JSON body, decoded, brought to the output size. What comes out is what
 * the engine wants: opaque RGB, and a mask of 255 (repaint) and 0 (keep). Nothing is fetched: addresses and file ids are
 * refused. Pool thread. */
#include <stdlib.h>
#include <strings.h>

#include "api/base64.h"
#include "api/images_impl.h"
#include "engine/base/mem.h"

struct input {
    char param[40]; /* as the client named it */
    struct view bytes;
    struct buf own; /* of a data URL */
    struct picture pic;
};

struct inputs {
    struct input image, mask;
    int n_image;
    bool white; /* the mask says by brightness what to repaint, not by transparency */
};

/* ---- where they are ---- */

static int bad_data_url(struct api_call *c, const char *param)
{
    return api__bad(c, param, "invalid_value",
                    "Invalid '%s': expected a data URL with base64, such as "
                    "'data:image/png;base64,iVBORw0...'.",
                    param);
}

/* The bytes of a data URL (RFC 2397). Any other address is refused: this server fetches nothing. */
static int read_url(struct api_call *c, struct input *in, struct view url)
{
    if (url.len < 5 || strncasecmp(url.p, "data:", 5) != 0) {
        if (view_starts(url, "http://") || view_starts(url, "https://"))
            return api__bad(c, in->param, "unsupported_value",
                            "Invalid '%s': this server fetches no addresses; send the picture as a "
                            "data URL or as a file of a form.",
                            in->param);
        return bad_data_url(c, in->param);
    }
    const char *comma = memchr(url.p, ',', url.len);
    if (!comma || comma - url.p < 7 || strncasecmp(comma - 7, ";base64", 7) != 0)
        return bad_data_url(c, in->param);
    struct view text = {comma + 1, url.len - (size_t)(comma + 1 - url.p)};
    int rc = base64_read(&in->own, text);
    if (rc)
        return rc == ERR_NOMEM ? api__nomem(c)
                               : api__bad(c, in->param, "invalid_value",
                                          "Invalid '%s': its base64 is malformed.", in->param);
    in->bytes = (struct view){buf_cstr(&in->own), in->own.len};
    return 0;
}

/* A picture in JSON: {"image_url": "data:..."}, or the string alone. */
static int read_ref(struct api_call *c, struct input *in, const json_t *v, const char *param)
{
    snprintf(in->param, sizeof in->param, "%s", param);
    const json_t *url = json_is_object(v) ? json_object_get(v, "image_url") : v;
    if (json_is_object(v) && json_object_get(v, "file_id"))
        return api__bad(c, param, "unsupported_value",
                        "Invalid '%s': 'file_id' is not supported; send the picture as a data URL "
                        "in 'image_url'.",
                        param);
    if (!json_is_string(url))
        return api__bad(c, param, "invalid_type",
                        "Invalid type for '%s': expected an object with 'image_url', but got %s.",
                        param, json_is_object(v) ? "one without" : api__json_type(v));
    if (json_is_object(v))
        snprintf(in->param, sizeof in->param, "%s.image_url", param);
    return read_url(c, in, (struct view){json_string_value(url), json_string_length(url)});
}

static int find_json(struct api_call *c, struct inputs *s, json_t *o)
{
    const char *key = json_object_get(o, "images") ? "images" : "image";
    json_t *v = json_object_get(o, key), *mask = json_object_get(o, "mask");
    json_t *white = json_object_get(o, "mask_image");
    char param[40];
    if (strcmp(key, "images") == 0 && json_object_get(o, "image"))
        return api__bad(c, "image", "invalid_value",
                        "Invalid 'image': 'images' means the same; send one of them.");
    s->n_image = json_is_array(v) ? (int)(json_array_size(v) & INT32_MAX) : v && !json_is_null(v);
    snprintf(param, sizeof param, json_is_array(v) ? "%s[0]" : "%s", key);
    if (s->n_image && read_ref(c, &s->image, json_is_array(v) ? json_array_get(v, 0) : v, param))
        return ERR_INVAL;
    if (mask && !json_is_null(mask) && read_ref(c, &s->mask, mask, "mask"))
        return ERR_INVAL;
    if (!white || json_is_null(white))
        return 0;
    s->white = true;
    if (s->mask.bytes.p)
        return api__bad(c, "mask_image", "invalid_value",
                        "Invalid 'mask_image': 'mask' is there too; send one of them.");
    return read_ref(c, &s->mask, white, "mask_image");
}

static int take_part(struct api_call *c, struct input *in, const struct multipart *m,
                     const char *param)
{
    snprintf(in->param, sizeof in->param, "%s", param);
    if (view_starts(m->data, "data:"))
        return read_url(c, in, m->data);
    in->bytes = m->data;
    return 0;
}

static int find_parts(struct api_call *c, struct inputs *s, const struct multipart *part, int n)
{
    snprintf(s->image.param, sizeof s->image.param, "image");
    for (int i = 0; i < n; i++) {
        const struct multipart *m = &part[i];
        bool white = view_is(m->name, "mask_image");
        int rc = 0;
        if (view_is(m->name, "image") || view_starts(m->name, "image[")) {
            if (s->n_image++ == 0)
                rc = take_part(c, &s->image, m, "image");
        } else if (white || view_is(m->name, "mask")) {
            if (s->mask.bytes.p)
                return api__bad(c, white ? "mask_image" : "mask", "invalid_value",
                                "Invalid 'mask': there is more than one.");
            s->white = white;
            rc = take_part(c, &s->mask, m, white ? "mask_image" : "mask");
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- pixels ---- */

static int decode(struct api_call *c, struct input *in)
{
    struct err e = {0};
    int rc = picture_decode(&in->pic, in->bytes.p, in->bytes.len, NULL, &e);
    if (rc == ERR_NOMEM)
        return api__nomem(c);
    return rc ? api__bad(c, in->param, rc == ERR_LIMIT ? "image_too_large" : "invalid_image",
                         "Invalid '%s': %s.", in->param, e.text)
              : 0;
}

static size_t n_pixel(const struct picture *p)
{
    return (size_t)p->width * (size_t)p->height;
}

/* Lay the picture on white: what is behind a transparent pixel is nobody's business. */
static void flatten(struct picture *p)
{
    uint8_t *x = p->rgba;
    for (size_t i = 0; i < n_pixel(p); i++, x += 4) {
        unsigned a = x[3];
        for (int k = 0; k < 3; k++)
            x[k] = (uint8_t)((x[k] * a + 255 * (255 - a) + 127) / 255);
        x[3] = 255;
    }
    p->alpha = false;
}

/* Turn a picture into an opaque black and white one: white where it is to be repainted. Number of white pixels. */
static size_t to_mask(struct picture *p, bool by_brightness)
{
    size_t n = 0;
    uint8_t *x = p->rgba;
    if (by_brightness)
        flatten(p);
    for (size_t i = 0; i < n_pixel(p); i++, x += 4) {
        unsigned grey = (299u * x[0] + 587u * x[1] + 114u * x[2] + 500u) / 1000u;
        bool paint = by_brightness ? grey >= 128 : x[3] == 0;
        memset(x, paint ? 255 : 0, 3);
        x[3] = 255;
        n += paint;
    }
    p->alpha = false;
    return n;
}

static int fit(struct api_call *c, struct picture *p, int w, int h)
{
    struct picture out;
    if (p->width == w && p->height == h)
        return 0;
    if (picture_resize(&out, p, w, h))
        return api__nomem(c);
    picture_free(p);
    *p = out;
    return 0;
}

/* The first n bytes of every pixel: 3 are RGB, 1 is a grey plane. NULL: no memory. */
static uint8_t *take_planes(const struct picture *p, size_t n)
{
    uint8_t *out = mem_alloc(n_pixel(p) * n);
    const uint8_t *x = p->rgba;
    for (size_t i = 0; out && i < n_pixel(p); i++, x += 4)
        memcpy(out + i * n, x, n);
    return out;
}

static int copy_picture(struct api_call *c, struct picture *out, const struct picture *in)
{
    *out = *in;
    out->rgba = mem_alloc(n_pixel(in) * 4);
    if (!out->rgba)
        return api__nomem(c);
    memcpy(out->rgba, in->rgba, n_pixel(in) * 4);
    return 0;
}

static bool has_hole(const struct picture *p)
{
    for (size_t i = 0; p->alpha && i < n_pixel(p); i++)
        if (p->rgba[4 * i + 3] == 0)
            return true;
    return false;
}

/* OpenAI's masks speak by transparency: only what is fully transparent is repainted, and a file without an alpha channel
 * says nothing. Other servers' masks speak by brightness; those come under another name, so neither is ever taken for
 * the other. Decode the mask, or take the picture's own transparency for one. *use: there is a mask. */
static int make_mask(struct api_call *c, struct inputs *s, bool *use)
{
    struct input *m = &s->mask;
    const struct picture *image = &s->image.pic;
    *use = true;
    if (!m->bytes.p) {
        *use = has_hole(image);
        if (!*use || copy_picture(c, &m->pic, image))
            return *use ? ERR_INVAL : 0;
    } else if (decode(c, m)) {
        return ERR_INVAL;
    }
    if (m->pic.width != image->width || m->pic.height != image->height)
        return api__bad(c, m->param, "invalid_value",
                        "Invalid '%s': it is %dx%d, and the image is %dx%d; they must be equal.",
                        m->param, m->pic.width, m->pic.height, image->width, image->height);
    if (!s->white && !m->pic.alpha)
        return api__bad(c, m->param, "invalid_value",
                        "Invalid '%s': it has no alpha channel; the area to repaint must be fully "
                        "transparent (or send it as 'mask_image', where white is repainted).",
                        m->param);
    if (to_mask(&m->pic, s->white) == 0)
        return api__bad(c, m->param, "invalid_value",
                        "Invalid '%s': no pixel of it is %s, so there is nothing to repaint.",
                        m->param, s->white ? "white" : "fully transparent");
    return 0;
}

/* The mask is made at the input's size and resampled by itself: its edge moves by less than an output pixel, and colours
 * behind transparent pixels never mix into the picture. */
static int make_pixels(struct api_call *c, struct img_call *g, struct inputs *s)
{
    bool masked;
    if (decode(c, &s->image) || make_mask(c, s, &masked))
        return ERR_INVAL;
    flatten(&s->image.pic);
    if (!g->fixed_size)
        img_size_near(c, g, s->image.pic.width, s->image.pic.height);
    if (fit(c, &s->image.pic, g->p.width, g->p.height) ||
        (masked && fit(c, &s->mask.pic, g->p.width, g->p.height)))
        return ERR_INVAL;
    uint8_t *mask = masked ? take_planes(&s->mask.pic, 1) : NULL;
    g->p.init = take_planes(&s->image.pic, 3);
    g->p.mask = mask;
    if (!g->p.init || (masked && !mask))
        return api__nomem(c);
    for (size_t i = 0; masked && i < n_pixel(&s->mask.pic); i++) /* resampling made greys */
        mask[i] = mask[i] >= 128 ? 255 : 0;
    return 0;
}

int img_inputs(struct api_call *c, struct img_call *g, json_t *o, const struct multipart *part,
               int n_part)
{
    struct inputs s = {0};
    const char *many = part ? "image" : "images";
    int rc = part ? find_parts(c, &s, part, n_part) : find_json(c, &s, o);
    if (!rc && s.n_image == 0)
        rc = api__bad(c, many, "missing_required_parameter", "Missing required parameter: '%s'.",
                      many);
    if (!rc && s.n_image > IMG_INPUTS_MAX)
        rc = api__bad(c, many, "array_above_max_length", "Invalid '%s': at most %d pictures.", many,
                      IMG_INPUTS_MAX);
    if (!rc && s.n_image > 1)
        rc = api__bad(c, many, "unsupported_value",
                      "Invalid '%s': the model '%.60s' edits one picture, not %d.", many,
                      g->m->name, s.n_image);
    if (!rc)
        rc = make_pixels(c, g, &s);
    picture_free(&s.image.pic);
    picture_free(&s.mask.pic);
    buf_free(&s.image.own);
    buf_free(&s.mask.own);
    return rc;
}
