/* Private to engine/image/files_single.c and family*.c: from the parts found in single files to the components of a
 * pipeline. */
#ifndef ENGINE_IMAGE_FAMILY_IMPL_H
#define ENGINE_IMAGE_FAMILY_IMPL_H

#include <limits.h>

#include "engine/image/parts_impl.h"

struct single {
    struct img_files *f;
    const char *path;      /* as it was asked for */
    char beside[PATH_MAX]; /* where configurations and tokenizers may lie */
    struct parts parts;
};

/* Name the pipeline and fill the components of s->f. ERR_NOTFOUND names what is missing, ERR_INVAL what is there
 * twice, ERR_UNSUPPORTED a family that is not served. */
int family_open(struct single *s, struct err *e);

/* Scheduler configurations as the families' folders have them. */
enum family_sched {
    FAMILY_SCHED_SD,
    FAMILY_SCHED_SD_V, /* v-prediction */
    FAMILY_SCHED_XL,
    FAMILY_SCHED_XL_V,
    FAMILY_SCHED_LCM,
    FAMILY_SCHED_FLUX,
    FAMILY_SCHED_SCHNELL,
    FAMILY_SCHED_SD3,
    FAMILY_SCHED_QWEN,
    FAMILY_SCHED_ZIMAGE,
};
const char *family_sched(enum family_sched k);

#endif
