/* One component of an image model on every backend that this host runs: for tests of the modules under engine/image.
 * Test programs only. */
#ifndef TESTS_IMAGE_COMP_H
#define TESTS_IMAGE_COMP_H

#include "engine/nn/nn.h"

#define IMAGE_BACKS 8

/* A device: "ref", then each usable table of the CPU backend with one thread, then the best with three. */
struct image_back {
    const struct backend *be;
    struct dev *dev;
    enum dtype mul;
    enum eng_precision precision;
    char name[80];
};
/* Opens them all at one precision ("ref" only at f32): how many. */
int image_backs_open(struct image_back out[IMAGE_BACKS], enum eng_precision p);
void image_backs_close(struct image_back *b, int n);

/* The tensors and config.json of the folder `dir` as the component `name`; cls from the configuration. 0 or ERR_*; close
 * it in any case. */
int image_comp_open(struct comp *c, const char *dir, const char *name, struct err *e);
void image_comp_close(struct comp *c);

/* A run on b; `dry` gives the work memory first: nn_reserve(n, peak). */
void image_nn_open(struct nn *n, const struct image_back *b);

/* max |a - b| / max |b| */
double image_error(const float *a, const float *b, size_t n);

#endif
