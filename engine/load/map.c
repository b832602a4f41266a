/* See map.h. */
#include "engine/load/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A clone without `git lfs pull` has such a text in each big file's place. */
static int check_pointer(const struct file_map *m, struct err *e)
{
    static const char first[] = "version https://git-lfs.github.com/spec/";
    if (m->size < sizeof first || memcmp(m->p, first, sizeof first - 1) != 0)
        return 0;
    return err_set(e, ERR_PARSE,
                   "a pointer of Git LFS, not the file: `git lfs pull` fetches what it stands for");
}

static int map_fill(struct file_map *m, const char *path, struct err *e)
{
    /* O_NONBLOCK: opening a FIFO by mistake must not hang. */
    m->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (m->fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open: %s",
                       strerror(errno));
    if (fstat(m->fd, &m->st))
        return err_set(e, ERR_IO, "cannot stat: %s", strerror(errno));
    if (!S_ISREG(m->st.st_mode))
        return err_set(e, ERR_INVAL, "not a regular file");
    m->size = (size_t)m->st.st_size;
    if (!m->size)
        return err_set(e, ERR_PARSE, "the file is empty");
    void *p = mmap(NULL, m->size, PROT_READ, MAP_PRIVATE, m->fd, 0);
    if (p == MAP_FAILED)
        return err_set(e, ERR_IO, "cannot map %zu bytes: %s", m->size, strerror(errno));
    m->p = p;
    return check_pointer(m, e);
}

int file_map_open(struct file_map *m, const char *path, struct err *e)
{
    *m = (struct file_map){.fd = -1};
    int rc = map_fill(m, path, e);
    if (rc && m->p)
        file_map_close(m);
    else if (rc && m->fd >= 0)
        close(m->fd);
    return rc;
}

void file_map_close(struct file_map *m)
{
    if (!m->p)
        return;
    munmap((void *)(uintptr_t)m->p, m->size);
    close(m->fd);
    m->p = NULL;
}

int file_map_check(const struct file_map *m, struct err *e)
{
    struct stat now;
    if (fstat(m->fd, &now))
        return err_set(e, ERR_IO, "cannot stat: %s", strerror(errno));
    if (now.st_size != m->st.st_size || now.st_mtim.tv_sec != m->st.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != m->st.st_mtim.tv_nsec)
        return err_set(e, ERR_IO, "the file was changed while it was being read");
    return 0;
}

int file_map_prefix(struct err *e, const char *path)
{
    size_t n = strlen(path); /* the end of a long path tells more than its start */
    bool cut = n > 100;
    return err_prefix(e, "%s%s", cut ? "..." : "", cut ? path + n - 97 : path);
}
