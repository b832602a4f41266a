/* Reads a safetensors file of reference results (F32, I64, I32 tensors). Test programs only. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <stddef.h>
#include <stdint.h>

struct golden;

/* .xz files are unpacked on the way. NULL, with a line on stderr, when it can't be read. */
struct golden *golden_open(const char *path);
void golden_close(struct golden *g);
/* Values of one tensor, converted; *n is their number. NULL if absent or of another kind. Valid until close. */
const float *golden_f32(struct golden *g, const char *name, size_t *n);
const int32_t *golden_i32(struct golden *g, const char *name, size_t *n);

#endif
