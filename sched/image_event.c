/* See image.h: events of pictures, and what is expected of their time. */
#include "sched/image_impl.h"

#include "engine/base/mem.h"

/* `previews` of them, evenly spread over the steps, none at the last one. */
static bool preview_due(int previews, int step, int steps)
{
    int64_t parts = previews + 1;
    return step < steps && step * parts / steps > (step - 1) * parts / steps;
}

static struct img_pixels *preview(struct image_lane *l, const struct ijob *j)
{
    uint8_t *rgb = NULL;
    int w = 0, h = 0;
    if (img_job_preview(l->g, j->job, &rgb, &w, &h))
        return NULL; /* a rough view is no reason to fail */
    struct img_pixels *p = img_pixels_new(w, h);
    if (p)
        memcpy(p->rgb, rgb, (size_t)w * (size_t)h * 3);
    free(rgb);
    return p;
}

void image__emit_step(struct image_lane *l, struct ijob *j)
{
    const struct req_image *im = j->req->base.r->image;
    int step = img_job_step(j->job), steps = img_job_steps(j->job);
    if (j->step_end_us) {
        double now = (double)(l->base.now - j->step_end_us);
        j->interval_us = j->interval_us > 0 ? 0.7 * j->interval_us + 0.3 * now : now;
    }
    double each = j->interval_us > 0 ? j->interval_us : (double)j->device_us;
    double eta = each * (steps - step) + l->decode_us_px * im->p.width * im->p.height;
    j->step_end_us = l->base.now;
    struct event ev = {.kind = EV_IMAGE_STEP,
                       .req = j->req->base.r->id,
                       .choice = j->index,
                       .stop_token = -1,
                       .index = step,
                       .total = steps,
                       .eta_us = (int64_t)eta};
    if (preview_due(im->previews, step, steps))
        ev.px = preview(l, j);
    if (ev.px || im->progress)
        l->base.emit(l->base.arg, &ev);
}

void image__emit_picture(struct image_lane *l, struct ijob *j)
{
    struct ireq *q = j->req;
    int w = 0, h = 0;
    const uint8_t *rgb = img_job_pixels(j->job, &w, &h);
    struct img_pixels *p = img_pixels_new(w, h);
    if (!p) {
        lane_end(&l->base, &q->base, ERR_NOMEM, "no memory for a finished picture");
        return;
    }
    memcpy(p->rgb, rgb, (size_t)w * (size_t)h * 3);
    struct event ev = {.kind = EV_IMAGE,
                       .req = q->base.r->id,
                       .choice = j->index,
                       .stop_token = -1,
                       .index = img_job_step(j->job),
                       .total = img_job_steps(j->job),
                       .n_prompt = img_job_tokens(j->job),
                       .n_output = img_job_latent_tokens(j->job),
                       .px = p};
    struct image_stats *st = &l->base.st.image;
    double us = (double)j->device_us;
    st->us_per_image = st->us_per_image > 0 ? 0.7 * st->us_per_image + 0.3 * us : us;
    st->images++;
    q->n_output += ev.n_output;
    if (!q->first_us)
        q->first_us = l->base.now;
    image__job_close(l, j);
    q->n_done++;
    l->base.emit(l->base.arg, &ev);
    if (q->n_done == q->base.r->n)
        lane_end(&l->base, &q->base, 0, NULL);
}
