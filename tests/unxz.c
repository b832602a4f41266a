#include "tests/unxz.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/buf.h"

extern char **environ;

/* Everything that fd has to say; 0 or -1. */
static int drain(int fd, struct buf *b)
{
    static char chunk[1 << 16];
    for (;;) {
        ssize_t k = read(fd, chunk, sizeof chunk);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k == 0 && !b->failed ? 0 : -1;
        buf_add(b, chunk, (size_t)k);
    }
}

static int run_xz(const char *path, struct buf *b)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return -1;
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, fds[1], 1);
    char *const argv[] = {(char *)"xz", (char *)"-dc", (char *)"--", (char *)path, NULL};
    pid_t pid = 0;
    int rc = posix_spawnp(&pid, "xz", &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    close(fds[1]);
    if (rc != 0) {
        close(fds[0]);
        return -1;
    }
    rc = drain(fds[0], b);
    close(fds[0]);
    int st = 0;
    while (waitpid(pid, &st, 0) < 0 && errno == EINTR)
        ;
    return rc == 0 && WIFEXITED(st) && WEXITSTATUS(st) == 0 ? 0 : -1;
}

char *unxz_read(const char *path, size_t *n)
{
    struct buf b = {0};
    size_t len = path ? strlen(path) : 0;
    int rc = -1;
    if (len > 3 && memcmp(path + len - 3, ".xz", 3) == 0) {
        rc = run_xz(path, &b);
    } else if (path) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            rc = drain(fd, &b);
            close(fd);
        }
    }
    if (rc != 0) {
        fprintf(stderr, "unxz: cannot read %s\n", path ? path : "(null)");
        buf_free(&b);
        return NULL;
    }
    buf_char(&b, 0); /* also makes an empty file a real pointer */
    char *p = buf_take(&b, n);
    *n -= 1;
    return p;
}

int unxz_temp(const char *src, char *path, size_t size)
{
    size_t n = 0;
    char *p = unxz_read(src, &n);
    if (!p)
        return -1;
    const char *dir = getenv("TMPDIR");
    snprintf(path, size, "%s/stepd-test-XXXXXX", dir && *dir ? dir : "/tmp");
    int fd = mkostemp(path, O_CLOEXEC);
    int rc = fd < 0 ? -1 : 0;
    for (size_t i = 0; rc == 0 && i < n;) {
        ssize_t k = write(fd, p + i, n - i);
        if (k <= 0 && errno != EINTR)
            rc = -1;
        else if (k > 0)
            i += (size_t)k;
    }
    if (fd >= 0)
        close(fd);
    free(p);
    if (rc != 0)
        fprintf(stderr, "unxz: cannot write %s\n", path);
    return rc;
}
