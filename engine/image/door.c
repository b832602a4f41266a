/* The door's image side: stages run for the scheduler, previews, memory questions. See engine/image.h. */
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/engine_impl.h"
#include "engine/image/model.h"

#include <math.h>

int eng_image_step(struct engine *g, struct img_job *const *jobs, int n, const struct img_yield *y,
                   struct err *e)
{
    struct image_model *m = g->image;
    if (!m || n < 1)
        return err_set(e, ERR_INVAL, "image step: no jobs");
    if (m->failed.code)
        return err_set(e, m->failed.code, "%s", m->failed.text);
    for (int i = 1; i < n; i++)
        if (jobs[i]->stage != jobs[0]->stage)
            return err_set(e, ERR_INVAL, "image step: jobs of different stages");
    int rc;
    switch (jobs[0]->stage) {
    case IMG_ENCODE:
        rc = imodel__encode(m, jobs, n, y, e);
        break;
    case IMG_DENOISE:
        rc = imodel__denoise(m, jobs, n, y, e);
        break;
    case IMG_DECODE:
        rc = imodel__decode(m, jobs, n, y, e);
        break;
    default:
        return err_set(e, ERR_INVAL, "image step: a job is finished");
    }
    if (rc == ERR_DEVICE)
        err_set(&m->failed, rc, "%s", e ? e->text : "the device failed");
    return rc;
}

int eng_image_fit(struct engine *g, struct img_job *const *jobs, int n)
{
    struct image_model *m = g->image;
    /* All of them first: that is what most calls find, and what the next step then knows already. */
    if (n < 1 || imodel__denoise_peak(m, jobs, n) <= m->work_max)
        return n > 0 ? n : 0;
    int k = 0;
    while (k + 1 < n && imodel__denoise_peak(m, jobs, k + 1) <= m->work_max)
        k++;
    return k;
}

size_t img_job_decode_bytes(const struct engine *g, const struct img_job *j)
{
    return imodel__decode_peak(g->image, j->h, j->w);
}

int img_job_preview(const struct engine *g, const struct img_job *j, uint8_t **rgb, int *w, int *h)
{
    const struct pipe *p = &g->image->pipe[0];
    size_t map = (size_t)j->h * (size_t)j->w;
    if (!j->done)
        return ERR_AGAIN;
    uint8_t *dst = mem_alloc(map * 3);
    if (!dst)
        return ERR_NOMEM;
    for (size_t i = 0; i < map; i++)
        for (int k = 0; k < 3; k++) {
            float v = p->preview ? p->preview[j->c][k] : 0.5f;
            for (int c = 0; c < j->c; c++) {
                float x = j->x0[(size_t)c * map + i];
                v += p->preview ? x * p->preview[c][k] : c == k ? x / 4 : 0;
            }
            dst[i * 3 + (size_t)k] = (uint8_t)lrintf(255 * (v > 0 ? v < 1 ? v : 1 : 0));
        }
    *rgb = dst;
    *w = j->w;
    *h = j->h;
    return 0;
}
