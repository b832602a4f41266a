/* scheduler_config.json -> struct nsched_config, with the defaults of diffusers' classes. Engine thread. */
#ifndef ENGINE_IMAGE_SCHED_CONFIG_H
#define ENGINE_IMAGE_SCHED_CONFIG_H

#include "engine/image/schedule.h"
#include "engine/load/config.h"

/* The class is c's _class_name. One that is not known but is a relative of a known method (UniPC, Heun, LMS, ...), or a
 * variant of a method (another order, stochastic steps, ...), gives that method, with a warning. ERR_UNSUPPORTED: any
 * other class, and a setting that would change the schedule and is not done here (trained_betas, thresholding,
 * exponential sigmas, ...): the key is named. ERR_INVAL: a value's type or range. clip_sample is not read: pixels are
 * clipped, latents never (diffusers' pipelines switch it off too). */
int nsched_config_read(struct nsched_config *out, struct config *c, struct err *e);

#endif
