/* Where the components of an image model lie: a diffusers folder (model_index.json), a single-file checkpoint, or a
 * folder of single files (as ComfyUI users keep them: transformer, text encoders and VAE apart), each recognised by the
 * names of its tensors. Gives for every component tensors under diffusers' names and a configuration; where the files
 * have none, it is the family's. Engine thread (plans: any thread). */
#ifndef ENGINE_IMAGE_FILES_H
#define ENGINE_IMAGE_FILES_H

#include <stdbool.h>

#include "engine/load/config.h"
#include "engine/load/source.h"
#include "engine/nn/comp.h"

#define COMP_MAX 12

struct img_files {
    /* model_index.json's _class_name, or what the detection found: "StableDiffusionPipeline",
     * "StableDiffusionXLPipeline", "FluxPipeline", "QwenImagePipeline", "ZImagePipeline", ... */
    char pipeline[64];
    struct config *index; /* model_index.json, or an empty object */
    struct comp comp[COMP_MAX];
    int n_comp;
    struct source *src[COMP_MAX]; /* owned; components may share one */
    int n_src;
};

/* Whether `path` looks like an image model (reads no more than names). Any thread. */
bool img_files_sniff(const char *path);
/* ERR_NOTFOUND names the component that is missing and what was looked for; ERR_UNSUPPORTED a pipeline or layout that
 * is not known. */
int img_files_open(struct img_files **out, const char *path, struct err *e);
void img_files_close(struct img_files *f); /* NULL is fine */
/* NULL if there is none. */
struct comp *img_files_comp(struct img_files *f, const char *name);

#endif
