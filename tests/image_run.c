/* See image_run.h. */
#include "tests/image_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct engine *image_run_open(const struct eng_opts *o)
{
    struct engine *g = NULL;
    struct err e = {0};
    if (eng_open(&g, o, &e))
        fail_msg("%s: %s", o->path, e.text);
    assert_non_null(eng_info(g)->image);
    return g;
}

void image_run_finish(struct engine *g, struct img_job *const *j, int n)
{
    struct err e = {0};
    assert_true(n <= IMAGE_RUN_MAX);
    for (int stage = IMG_ENCODE; stage < IMG_DONE;) {
        struct img_job *now[IMAGE_RUN_MAX];
        int k = 0;
        for (int i = 0; i < n; i++)
            if ((int)img_job_stage(j[i]) == stage)
                now[k++] = j[i];
        if (!k)
            stage++;
        else if (eng_image_step(g, now, k, NULL, &e))
            fail_msg("stage %d: %s", stage, e.text);
    }
}
