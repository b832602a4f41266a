/* Private to engine/image/files*.c and names_*.c. */
#ifndef ENGINE_IMAGE_FILES_IMPL_H
#define ENGINE_IMAGE_FILES_IMPL_H

#include "engine/image/files.h"

/* dir/name into out; ERR_LIMIT, never cut. */
int files__join(char *out, size_t size, const char *dir, const char *name, struct err *e);
/* The next component, zeroed but for its name and class (cut to their room); NULL and ERR_LIMIT when all are taken. */
struct comp *files__add(struct img_files *f, const char *name, const char *cls, struct err *e);
/* Open path as one more source of f. */
int files__source(struct img_files *f, const char *path, struct source **out, struct err *e);
/* Zeroed; NULL: no memory. Closed by img_files_close. */
struct img_files *files__new(void);
/* A folder that has a model_index.json (files_folder.c). */
bool files__is_folder(const char *path);
int files__folder(struct img_files *f, const char *path, struct err *e);
/* A checkpoint in one file, or a folder of single files (files_single.c). */
bool files__single_sniff(const char *path);
int files__single(struct img_files *f, const char *path, struct err *e);

#endif
