/* POST /v1/images/generations and /v1/images/edits: body to request. GET /v1/images/files/ID: a picture that an answer
 * named. See images_impl.h for the other files. */
#include <stdlib.h>

#include "api/form.h"
#include "api/image_store.h"
#include "api/images_impl.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

static struct img_call *img_new(struct api_call *c, struct api_model *m, bool edit)
{
    struct img_call *g = mem_calloc(1, sizeof *g);
    if (!g) {
        api__nomem(c);
        return NULL;
    }
    g->m = m;
    g->edit = edit;
    c->priv = g;
    c->free_priv = img_call_free;
    c->on_event = img_event;
    return g;
}

static char *dup_text(const char *s)
{
    size_t n = strlen(s) + 1;
    char *t = mem_alloc(n);
    return t ? memcpy(t, s, n) : NULL;
}

/* One request of n pictures; takes init and mask over. */
static struct request *make_request(const struct api_call *c, struct img_call *g)
{
    struct request *r = request_new();
    struct req_image *im = r ? req_image_new() : NULL;
    if (!im) {
        request_free(r);
        return NULL;
    }
    r->image = im;
    im->p = g->p;
    g->p.init = g->p.mask = NULL;
    im->p.prompt = dup_text(g->prompt);
    im->p.negative = dup_text(g->negative);
    if (!im->p.prompt || !im->p.negative) {
        request_free(r);
        return NULL;
    }
    im->previews = g->partial;
    im->progress = g->progress;
    api__request_start(c, r, "image", c->api->o.image_queue_timeout_s);
    r->n = g->n;
    r->prompt_logprobs = -1;
    r->samp.n_top = -1;
    r->priority = (int)g->priority;
    return r;
}

static int img_submit(struct api_call *c, struct img_call *g)
{
    g->pic = mem_calloc((size_t)g->n, sizeof *g->pic);
    c->req = mem_calloc(1, sizeof *c->req);
    c->req_id = mem_calloc(1, sizeof *c->req_id);
    struct request *r = g->pic && c->req && c->req_id ? make_request(c, g) : NULL;
    if (!r)
        return api__nomem(c);
    c->req[0] = r;
    c->n_req = 1;
    c->stream = g->stream;
    c->out_type = g->stream ? "text/event-stream" : "application/json";
    return 0;
}

static int img_run(struct api_call *c, json_t *o, bool edit, const struct multipart *part,
                   int n_part)
{
    static const char *const none[] = {NULL};
    static const char *const edits[] = {"image",          "images",   "mask",
                                        "mask_image",     "strength", "denoising_strength",
                                        "input_fidelity", NULL};
    struct api_model *m = api__get_image_model(c, o);
    struct img_call *g = m ? img_new(c, m, edit) : NULL;
    if (!g || api__check_fields(c, o, img_fields, edit ? edits : none))
        return ERR_INVAL;
    if (edit && !m->image.edit)
        return api__bad(c, "model", "unsupported_value",
                        "The model '%.60s' makes pictures from text alone; it cannot edit.",
                        m->name);
    int rc = img_params(c, g, o);
    if (!rc && edit)
        rc = img_inputs(c, g, o, part, n_part);
    return rc ? rc : img_submit(c, g);
}

int api_images_generations(struct api_call *c)
{
    json_t *o = api__body(c);
    int rc = o ? img_run(c, o, false, NULL, 0) : ERR_INVAL;
    json_decref(o);
    return rc;
}

/* ---- forms ---- */

/* Pictures are read from the parts; here their names only take part in the look for unknown fields. */
static bool is_picture(const struct multipart *m)
{
    return m->filename.p || view_is(m->name, "image") || view_starts(m->name, "image[") ||
           view_is(m->name, "mask") || view_is(m->name, "mask_image");
}

static int add_part(struct api_call *c, json_t *o, const struct multipart *m)
{
    char name[FORM_NAME_MAX];
    if (form_name(c, m, name))
        return ERR_INVAL;
    if (view_starts(m->name, "image["))
        name[5] = 0;
    if (is_picture(m))
        return json_object_set_new(o, name, json_null()) ? api__nomem(c) : 0;
    return form_set(c, o, name, form_value(c, name, img_field_kind(name), m));
}

static int edit_form(struct api_call *c)
{
    struct form f;
    int rc = form_read(c, IMG_PARTS_MAX, &f);
    for (int i = 0; !rc && i < f.n; i++)
        rc = add_part(c, f.o, &f.part[i]);
    if (!rc)
        rc = img_run(c, f.o, true, f.part, f.n);
    form_free(&f);
    return rc;
}

int api_images_edits(struct api_call *c)
{
    if (multipart_is(c->content_type))
        return edit_form(c);
    json_t *o = api__body(c);
    int rc = o ? img_run(c, o, true, NULL, 0) : ERR_INVAL;
    json_decref(o);
    return rc;
}

int api_images_file(struct api_call *c)
{
    const char *name = c->path + strlen("/v1/images/files/");
    struct view id = {name, strspn(name, "0123456789abcdef")};
    int64_t left = 0;
    int rc = ERR_NOTFOUND;
    if (id.len == IMAGE_ID_LEN && (name[id.len] == 0 || name[id.len] == '.'))
        rc = image_store_get(c->api->images, id, clock_us(), &c->out, &c->out_type, &left);
    if (rc == ERR_NOTFOUND)
        return api__refuse(c, 404, NULL, NULL, "There is no such picture, or its time is over.");
    if (rc)
        return api__nomem(c);
    api__header(c, "Cache-Control", "private, max-age=%lld, immutable",
                (long long)(left / 1000000));
    api__header(c, "X-Content-Type-Options", "nosniff");
    c->done = true;
    return 0;
}
