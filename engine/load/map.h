/* A file mapped read-only, and whether it is still the file that was mapped. Owns mapping and
 * descriptor. Read-only after open: any thread.
 *
 * The mapping is MAP_PRIVATE: a later write to the file by somebody else may or may not show through,
 * and a later truncation turns the lost pages into SIGBUS on access. */
#ifndef ENGINE_LOAD_MAP_H
#define ENGINE_LOAD_MAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "engine/base/err.h"

struct file_map {
    const uint8_t *p; /* NULL until open; page-aligned */
    size_t size;      /* bytes, > 0 */
    int fd;
    struct stat st; /* as at open */
};

/* Regular files of at least one byte only; never hangs, on a FIFO neither. ERR_NOTFOUND, ERR_IO,
 * ERR_INVAL (no regular file) or ERR_PARSE (empty, or Git's stand-in for a big file); the text leaves the path to the caller. On
 * failure nothing is held. */
int file_map_open(struct file_map *m, const char *path, struct err *e);
/* Of an opened, closed or zeroed one. */
void file_map_close(struct file_map *m);
/* 0, or ERR_IO when size or modification time of the file are no longer what they were at open. */
int file_map_check(const struct file_map *m, struct err *e);

/* Put the path, cut from the left when long, before e's text; returns e->code. */
int file_map_prefix(struct err *e, const char *path);

#endif
