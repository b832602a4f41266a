/* Reading .xz test data: runs `xz -dc FILE` and collects what it prints. Test programs only. */
#ifndef TESTS_UNXZ_H
#define TESTS_UNXZ_H

#include <stddef.h>

/* Unpacked bytes of the file, 0-terminated (not counted in *n); release with free(). A file whose
 * name does not end in .xz is read as it is. NULL, with a line on stderr, when it cannot be read. */
char *unxz_read(const char *path, size_t *n);

/* Unpacked copy as a temporary file, its name written to path[size]. 0, or -1 as above. The caller
 * removes it. */
int unxz_temp(const char *src, char *path, size_t size);

#endif
