/* Events of an image request to its answer. A picture is encoded by a pool job; frames of a stream wait in a queue, so
 * that they leave in the order of their events however long each job takes. Loop thread, but for `encode`. */
#include <stdlib.h>

#include "api/base64.h"
#include "api/image_store.h"
#include "api/images_impl.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

/* ---- the job ---- */

struct encode_job {
    struct api_job job;
    struct img_pixels *px;
    int width, height; /* of the file; the pixels of a preview are fewer */
    bool base64;       /* text for JSON, else the file's bytes */
    struct picture_encode o;
    struct buf parameters, out;
    int rc;
    /* not touched by the pool */
    struct img_frame *frame; /* of the call, or NULL */
    int choice, partial;     /* partial: -1 for the finished picture */
    int32_t n_in, n_out;
};

static void job_free(struct encode_job *j)
{
    img_pixels_free(j->px);
    buf_free(&j->parameters);
    buf_free(&j->out);
    free(j);
}

/* Pixels of a preview, which come at the size of the latents, at the picture's size: clients show one in the place of the
 * other. */
static int enlarge(struct encode_job *j)
{
    size_t n = (size_t)j->px->width * (size_t)j->px->height;
    struct picture small = {.width = j->px->width, .height = j->px->height}, big = {0};
    small.rgba = mem_alloc(n * 4);
    if (!small.rgba)
        return ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        memcpy(small.rgba + 4 * i, j->px->rgb + 3 * i, 3);
        small.rgba[4 * i + 3] = 255;
    }
    int rc = picture_resize(&big, &small, j->width, j->height);
    struct img_pixels *px = rc ? NULL : img_pixels_new(j->width, j->height);
    n = (size_t)j->width * (size_t)j->height;
    for (size_t i = 0; px && i < n; i++)
        memcpy(px->rgb + 3 * i, big.rgba + 4 * i, 3);
    picture_free(&small);
    picture_free(&big);
    if (!px)
        return ERR_NOMEM;
    img_pixels_free(j->px);
    j->px = px;
    return 0;
}

static void encode(struct api_job *job)
{
    struct encode_job *j = (struct encode_job *)job;
    struct buf file = {0};
    if (j->px->width != j->width || j->px->height != j->height)
        j->rc = enlarge(j);
    if (!j->rc)
        j->rc = picture_write(&file, j->px->rgb, j->width, j->height, false, &j->o, NULL);
    if (!j->rc && file.failed)
        j->rc = ERR_NOMEM;
    if (!j->rc && j->base64)
        base64_write(&j->out, file.p, file.len);
    else if (!j->rc) {
        j->out = file;
        file = (struct buf){0};
    }
    if (j->out.failed)
        j->rc = ERR_NOMEM;
    buf_free(&file);
}

/* ---- writing ---- */

static const char *quality_name(enum img_quality q)
{
    static const char *const names[] = {"low", "medium", "high"};
    return names[q];
}

/* What was asked for, as a client may repeat it: "stepd":{...} of picture i. */
static void put_resolved(struct buf *b, const struct img_call *g, int i)
{
    const struct img_params *p = &g->p;
    buf_fmt(b, "\"stepd\":{\"index\":%d,\"model\":", i);
    buf_json(b, g->m->name, strlen(g->m->name));
    buf_fmt(b,
            ",\"seed\":%llu,\"rng\":\"%s\",\"width\":%d,\"height\":%d,\"steps\":%d,"
            "\"sampler\":\"%s\",\"schedule\":\"%s\",\"guidance_scale\":%.7g",
            (unsigned long long)(p->seed + (uint64_t)i), p->rng == IMG_RNG_PHILOX ? "cuda" : "cpu",
            p->width, p->height, p->steps, img_sampler_name(img_sampler_used(g)),
            img_schedule_name(img_schedule_used(g)), (double)p->guidance);
    buf_str(b, ",\"negative_prompt\":");
    buf_json(b, g->negative, strlen(g->negative));
    if (g->edit)
        buf_fmt(b, ",\"strength\":%.7g", (double)p->strength);
    if (p->flow_shift > 0)
        buf_fmt(b, ",\"flow_shift\":%.7g", (double)p->flow_shift);
    if (p->refiner_switch > 0)
        buf_fmt(b, ",\"refiner_switch\":%.7g", (double)p->refiner_switch);
    buf_char(b, '}');
}

/* n_out: latent tokens of `pictures` pictures; an edit reads as many for its input. */
static void put_usage(struct buf *b, const struct img_call *g, int32_t n_in, int32_t n_out,
                      int pictures)
{
    int image = g->edit && pictures ? n_out / pictures : 0;
    buf_fmt(b,
            "\"usage\":{\"input_tokens\":%d,\"output_tokens\":%d,\"total_tokens\":%d,"
            "\"input_tokens_details\":{\"text_tokens\":%d,\"image_tokens\":%d}}",
            n_in + image, n_out, n_in + image + n_out, n_in, image);
}

static void put_echo(struct buf *b, const struct img_call *g)
{
    buf_fmt(b,
            "\"background\":\"opaque\",\"output_format\":\"%s\",\"quality\":\"%s\","
            "\"size\":\"%dx%d\"",
            picture_name(g->enc.format), quality_name(g->quality), g->p.width, g->p.height);
}

static void frame_head(struct buf *b, const struct img_call *g, const char *kind)
{
    const char *what = g->edit ? "image_edit" : "image_generation";
    buf_fmt(b, "event: %s.%s\ndata: {\"type\":\"%s.%s\"", what, kind, what, kind);
}

/* "b64_json" comes last: whoever looks at a frame in a log sees the rest. */
static void put_picture_frame(struct buf *b, const struct img_call *g, const struct encode_job *j)
{
    bool partial = j->partial >= 0;
    frame_head(b, g, partial ? "partial_image" : "completed");
    buf_fmt(b, ",\"created_at\":%lld,", (long long)clock_unix());
    put_echo(b, g);
    buf_char(b, ',');
    if (partial)
        buf_fmt(b, "\"partial_image_index\":%d", j->partial);
    else
        put_usage(b, g, j->n_in, j->n_out, 1);
    buf_char(b, ',');
    put_resolved(b, g, j->choice);
    buf_str(b, ",\"b64_json\":\"");
    buf_add(b, j->out.p, j->out.len);
    buf_str(b, "\"}\n\n");
}

/* The address leads back to the name by which this client reached the server, which no option can know. */
static void put_address(struct api_call *c, const char *id, enum picture_format format)
{
    const char *host = c->host && *c->host ? c->host : "localhost";
    struct buf url = {0};
    buf_fmt(&url, "%s://%s/v1/images/files/%s.%s", c->https ? "https" : "http", host, id,
            picture_name(format));
    buf_str(&c->out, "\"url\":");
    buf_json(&c->out, buf_cstr(&url), url.len);
    c->out.failed |= url.failed;
    buf_free(&url);
}

static void put_answer(struct api_call *c, struct img_call *g)
{
    struct buf *b = &c->out;
    buf_fmt(b, "{\"created\":%lld,\"data\":[", (long long)c->created);
    for (int i = 0; i < g->n; i++) {
        struct img_done *d = &g->pic[i];
        buf_str(b, i ? ",{" : "{");
        if (g->as_url) {
            put_address(c, d->id, g->enc.format);
        } else {
            buf_str(b, "\"b64_json\":\"");
            buf_add(b, d->base64.p, d->base64.len);
            buf_char(b, '"');
            buf_free(&d->base64);
        }
        buf_char(b, ',');
        put_resolved(b, g, i);
        buf_char(b, '}');
    }
    buf_str(b, "],");
    put_echo(b, g);
    buf_char(b, ',');
    put_usage(b, g, g->n_in, g->n_out, g->n);
    buf_fmt(b, ",\"stepd\":{\"encode_ms\":%.1f,\"denoise_ms\":%.1f,\"decode_ms\":%.1f}}\n",
            (double)g->stage_us[IMG_ENCODE] / 1e3, (double)g->stage_us[IMG_DENOISE] / 1e3,
            (double)g->stage_us[IMG_DECODE] / 1e3);
}

/* ---- the queue ---- */

/* A frame takes its place in the stream when its event comes, and its text when that is known. */
static struct img_frame *frame_new(struct img_call *g)
{
    struct img_frame *f = mem_calloc(1, sizeof *f);
    if (!f)
        return NULL;
    if (g->last)
        g->last->next = f;
    else
        g->first = f;
    g->last = f;
    return f;
}

static void frame_pop(struct img_call *g)
{
    struct img_frame *f = g->first;
    g->first = f->next;
    if (!g->first)
        g->last = NULL;
    buf_free(&f->text);
    free(f);
}

void img_call_free(struct api_call *c)
{
    struct img_call *g = c->priv;
    if (!g)
        return;
    while (g->first)
        frame_pop(g);
    for (int i = 0; g->pic && i < g->n; i++)
        buf_free(&g->pic[i].base64);
    free(g->pic);
    free(g->prompt);
    free(g->negative);
    free((void *)g->p.init);
    free((void *)g->p.mask);
    free(g);
    c->priv = NULL;
}

static void no_memory(struct api_call *c)
{
    api_fail(c, ERR_NOMEM, NULL, "Not enough memory for this answer.", 0);
}

/* Send what is ready, and the end after it. */
static void flush(struct api_call *c, struct img_call *g)
{
    while (!c->done && g->first && g->first->ready) {
        if (g->first->text.failed) {
            no_memory(c);
            return;
        }
        c->streamed = true;
        buf_add(&c->out, g->first->text.p, g->first->text.len);
        frame_pop(g);
    }
    if (c->done || !g->ended || g->n_job || g->first)
        return;
    for (int i = 0; i < g->n; i++)
        if (!g->pic[i].done) {
            api_fail(c, ERR_INTERNAL, NULL, "The request ended before all pictures were there.", 0);
            return;
        }
    if (!g->stream)
        put_answer(c, g);
    c->done = true;
}

/* The finished picture of a whole answer: kept until all are there, or put where its address leads. */
static int keep(struct api_call *c, struct img_call *g, struct encode_job *j)
{
    struct img_done *d = &g->pic[j->choice];
    d->done = true;
    if (g->stream)
        return 0;
    if (g->as_url)
        return image_store_put(c->api->images, &j->out, picture_type(g->enc.format), clock_us(),
                               d->id);
    d->base64 = j->out;
    j->out = (struct buf){0};
    return 0;
}

/* A job is done. The call may have ended (c NULL), or have failed while others of its jobs ran. */
static void encoded(struct api_call *c, struct api_job *job)
{
    struct encode_job *j = (struct encode_job *)job;
    struct img_call *g = c ? c->priv : NULL;
    if (g && !c->done) {
        g->n_job--;
        int rc = j->rc;
        if (!rc && j->partial < 0)
            rc = keep(c, g, j);
        if (rc == ERR_LIMIT) {
            api_fail(c, ERR_NOMEM, NULL,
                     "The picture does not fit into image-store-bytes; ask for 'b64_json'.", 0);
        } else if (rc) {
            no_memory(c);
        } else {
            if (j->frame) {
                put_picture_frame(&j->frame->text, g, j);
                j->frame->ready = true;
            }
            flush(c, g);
        }
        api__check_out(c);
    }
    job_free(j);
}

/* ---- events ---- */

/* Encode the event's pixels; takes them over. partial: the preview's number, or -1. */
static void start_job(struct api_call *c, struct img_call *g, const struct event *ev, int partial)
{
    struct encode_job *j = mem_calloc(1, sizeof *j);
    struct img_frame *f = j && g->stream ? frame_new(g) : NULL;
    if (!j || (g->stream && !f)) {
        free(j);
        img_pixels_free(ev->px);
        no_memory(c);
        return;
    }
    *j = (struct encode_job){.job = {.run = encode, .done = encoded},
                             .px = ev->px,
                             .width = g->p.width,
                             .height = g->p.height,
                             .base64 = !g->as_url,
                             .o = g->enc,
                             .frame = f,
                             .choice = ev->choice,
                             .partial = partial,
                             .n_in = ev->n_prompt,
                             .n_out = ev->n_output};
    if (partial < 0) {
        img_parameters(&j->parameters, g, ev->choice);
        j->o.parameters = buf_cstr(&j->parameters);
        if (j->parameters.failed) {
            job_free(j);
            no_memory(c);
            return;
        }
    }
    struct api_job **at = &c->job;
    while (*at)
        at = &(*at)->next;
    *at = &j->job;
    g->n_job++;
}

/* A step with or without a preview. More previews than were asked for would break clients that count: they are dropped. */
static void on_step(struct api_call *c, struct img_call *g, const struct event *ev)
{
    if (g->progress) {
        struct img_frame *f = frame_new(g);
        if (!f) {
            img_pixels_free(ev->px);
            no_memory(c);
            return;
        }
        frame_head(&f->text, g, "progress");
        buf_fmt(&f->text, ",\"index\":%d,\"step\":%d,\"total\":%d,\"eta_ms\":%lld}\n\n", ev->choice,
                ev->index, ev->total, (long long)(ev->eta_us / 1000));
        f->ready = true;
    }
    struct img_done *d = &g->pic[ev->choice];
    if (ev->px && d->n_partial < g->partial)
        start_job(c, g, ev, d->n_partial++);
    else
        img_pixels_free(ev->px);
    flush(c, g);
}

/* The engine is done; pictures may still be with the pool. */
static void on_done(struct api_call *c, struct img_call *g, const struct event *ev)
{
    g->ended = true;
    g->n_in = c->n_prompt = ev->n_prompt;
    g->n_out = c->n_output = ev->n_output;
    c->n_cached = 0;
    g->stage_us[IMG_ENCODE] = ev->encode_us;
    g->stage_us[IMG_DENOISE] = ev->denoise_us;
    g->stage_us[IMG_DECODE] = ev->decode_us;
    flush(c, g);
}

void img_event(struct api_call *c, int req, const struct event *ev)
{
    struct img_call *g = c->priv;
    (void)req;
    switch (ev->kind) {
    case EV_EMBED:
    case EV_AUDIO:
        event_drop(ev); /* of no image model */
        break;
    case EV_IMAGE_STEP:
        on_step(c, g, ev);
        break;
    case EV_IMAGE:
        CHECK(ev->px && ev->choice >= 0 && ev->choice < g->n);
        start_job(c, g, ev, -1);
        break;
    case EV_DONE:
        on_done(c, g, ev);
        break;
    case EV_ERROR:
        api__fail_event(c, ev);
        break;
    case EV_PROMPT:
    case EV_TOKEN:
    case EV_FINISH:
        break; /* of no image model */
    }
}
