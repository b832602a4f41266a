/* Drives image jobs through the engine's door. Test programs only. */
#ifndef TESTS_IMAGE_RUN_H
#define TESTS_IMAGE_RUN_H

#include "engine/engine.h"

#define IMAGE_RUN_MAX 16 /* jobs beside each other */

/* An image model; fails the test on an error. */
struct engine *image_run_open(const struct eng_opts *o);
/* All jobs to their end, those of one stage beside each other. */
void image_run_finish(struct engine *g, struct img_job *const *j, int n);

#endif
