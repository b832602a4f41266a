/* Folders of test data in a temporary place, where tests may change them. Test programs only. */
#ifndef TESTS_TREE_H
#define TESTS_TREE_H

#include <stddef.h>
#include <stdint.h>

#define TREE_PATH 512

/* A new temporary folder, its name into dir[TREE_PATH]; fails the test when it can't be made. */
void tree_make(char *dir);
/* Copy of the folder src with everything in it, .xz files unpacked (the ".xz" gone from their names), as dst. */
void tree_copy(const char *src, const char *dst);
/* A file with these bytes; the folders of its path are made. */
void tree_put(const char *dir, const char *name, const void *p, size_t n);
void tree_text(const char *dir, const char *name, const char *text);
void tree_remove(const char *dir);
/* dir/name; one of a few static buffers in turn. */
const char *tree_path(const char *dir, const char *name);

/* A safetensors file of tensors, all of whose bytes are 0, 1, 2, ... mod 251, unless `data` says otherwise. */
struct tree_tensor {
    const char *name, *dtype;
    int n_dim;
    int64_t dim[6];
    const void *data;
};
void tree_safetensors(const char *dir, const char *name, const struct tree_tensor *t, int n);
/* A safetensors file of this header; its data is a hole in the file of `bytes` zeros. */
void tree_header(const char *dir, const char *name, const char *json, size_t n, uint64_t bytes);

#endif
