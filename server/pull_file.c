/* The file being pulled: lock, resume, check, publish; and the progress bar. See pull_impl.h. */
#include "server/pull_impl.h"

#include "engine/base/thread.h"
#include "server/models.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- progress ---- */

enum { BAR_WIDTH = 30, REDRAW_US = 100000 };

void pull__bar_start(struct pull_bar *b, const char *what, int64_t total, int64_t first, bool quiet)
{
    *b = (struct pull_bar){.what = what, .total = total, .first = first, .t_start = clock_us()};
    b->tenth = -1;
    b->quiet = quiet;
    b->tty = isatty(STDERR_FILENO) == 1;
}

static void bar_line(const struct pull_bar *b, int64_t done, struct buf *out)
{
    double secs = (double)(clock_us() - b->t_start) / 1e6;
    double speed = secs > 0.2 ? (double)(done - b->first) / secs : 0.0;
    buf_fmt(out, "%s: ", b->what);
    if (b->total > 0) {
        int at = (int)(done * BAR_WIDTH / b->total);
        if (b->tty)
            buf_fmt(out, "[%.*s%*s] ", at, "##############################", BAR_WIDTH - at, "");
        buf_fmt(out, "%3d%%  %.1f/%.1f MB", (int)(done * 100 / b->total), (double)done / 1e6,
                (double)b->total / 1e6);
    } else {
        buf_fmt(out, "%.1f MB", (double)done / 1e6);
    }
    if (speed > 0.0)
        buf_fmt(out, "  %.1f MB/s", speed / 1e6);
    if (speed > 0.0 && b->total > done) {
        int64_t left = (int64_t)((double)(b->total - done) / speed);
        buf_fmt(out, "  %lld:%02lld left", (long long)left / 60, (long long)left % 60);
    }
}

void pull__bar_set(struct pull_bar *b, int64_t done)
{
    int64_t now = clock_us();
    if (b->total > 0 && done > b->total)
        done = b->total;
    int tenth = b->total > 0 ? (int)(done * 10 / b->total) : (int)(done >> 26);
    bool last = b->total > 0 && done == b->total;
    if (b->quiet || (b->tty ? now - b->t_drawn < REDRAW_US && !last : tenth == b->tenth))
        return;
    struct buf line = {0};
    if (b->tty)
        buf_str(&line, "\r\x1b[K");
    bar_line(b, done, &line);
    if (!b->tty)
        buf_char(&line, '\n');
    fputs(buf_cstr(&line), stderr);
    buf_free(&line);
    b->open = b->tty;
    b->t_drawn = now;
    b->tenth = tenth;
}

void pull__bar_end(struct pull_bar *b)
{
    if (b->open)
        fputc('\n', stderr);
    b->open = false;
}

/* ---- sums ---- */

int pull__sha256(const char *path, struct pull_bar *bar, char hex[65], struct err *e)
{
    static unsigned char chunk[1 << 18];
    unsigned char sum[32];
    gnutls_hash_hd_t h = NULL;
    int64_t done = 0;
    ssize_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (gnutls_hash_init(&h, GNUTLS_DIG_SHA256) < 0) {
        close(fd);
        return err_set(e, ERR_INTERNAL, "no SHA-256 in the TLS library");
    }
    while ((n = read(fd, chunk, sizeof chunk)) > 0) {
        gnutls_hash(h, chunk, (size_t)n);
        done += n;
        if (bar)
            pull__bar_set(bar, done);
    }
    int rc = n < 0 ? err_set(e, ERR_IO, "%s: %s", path, strerror(errno)) : 0;
    gnutls_hash_deinit(h, sum);
    close(fd);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    return rc;
}

/* Read the stamp's sum; false if there is none. */
static bool stamp_read(const struct pull_file *f, char hex[65], struct stat *st)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s.sha256", f->path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ok = read(fd, hex, 64) == 64 && fstat(fd, st) == 0;
    close(fd);
    hex[64] = 0;
    return ok && strspn(hex, "0123456789abcdef") == 64;
}

static int stamp_write(const struct pull_file *f, const char *hex, struct err *e)
{
    char path[PATH_MAX + 8];
    const char *slash = strrchr(f->path, '/');
    snprintf(path, sizeof path, "%s.sha256", f->path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || dprintf(fd, "%s  %s\n", hex, slash ? slash + 1 : f->path) < 0) {
        int was = errno;
        if (fd >= 0)
            close(fd);
        return err_set(e, ERR_IO, "%s: %s", path, strerror(was));
    }
    close(fd);
    return 0;
}

/* ---- life of the file ---- */

int pull__file_init(struct pull_file *f, const char *dir, const char *name, struct err *e)
{
    struct pull_bar *bar = f->bar;
    *f = (struct pull_file){.fd = -1, .bar = bar};
    int rc = srv_path_fmt(f->path, sizeof f->path, e, "%s/%s", dir, name);
    return rc ? rc : srv_path_fmt(f->part, sizeof f->part, e, "%s.part", f->path);
}

static bool not_older(const struct stat *a, const struct stat *b)
{
    if (a->st_mtim.tv_sec != b->st_mtim.tv_sec)
        return a->st_mtim.tv_sec > b->st_mtim.tv_sec;
    return a->st_mtim.tv_nsec >= b->st_mtim.tv_nsec;
}

int pull__file_present(struct pull_file *f, bool verify, struct err *e)
{
    struct stat st, stamp;
    char hex[65], was[65];
    if (stat(f->path, &st))
        return errno == ENOENT || errno == ENOTDIR
                   ? 0
                   : err_set(e, ERR_IO, "%s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INVAL, "%s is in the way: not a regular file", f->path);
    if (f->size && st.st_size != f->size)
        return err_set(e, ERR_INVAL, "%s has %lld bytes, expected %lld: remove it and pull again",
                       f->path, (long long)st.st_size, (long long)f->size);
    bool stamped = stamp_read(f, was, &stamp);
    const char *want = f->sha256[0] ? f->sha256 : stamped ? was : "";
    if (!verify && stamped && not_older(&stamp, &st) && strcmp(was, want) == 0)
        return 1;
    pull__bar_start(f->bar, "checking", st.st_size, 0, f->bar->quiet);
    int rc = pull__sha256(f->path, f->bar, hex, e);
    pull__bar_end(f->bar);
    if (rc)
        return rc;
    if (*want && strcmp(hex, want) != 0)
        return err_set(e, ERR_INVAL,
                       "%.60s: sha256 is %.12s..., expected %.12s...: remove it and pull "
                       "again",
                       f->path, hex, want);
    rc = stamp_write(f, hex, e);
    return rc ? rc : 1;
}

static int make_parents(const char *path, struct err *e)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    for (char *p = strchr(dir + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        if (mkdir(dir, 0755) && errno != EEXIST)
            return err_set(e, ERR_IO, "cannot make folder %s: %s", dir, strerror(errno));
        *p = '/';
    }
    return 0;
}

int pull__file_open(struct pull_file *f, struct err *e)
{
    struct stat mine, there;
    int rc = make_parents(f->part, e);
    if (rc)
        return rc;
    for (;;) {
        f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0644);
        if (f->fd < 0)
            return err_set(e, ERR_IO, "%s: %s", f->part, strerror(errno));
        if (flock(f->fd, LOCK_EX | LOCK_NB)) {
            pull__file_close(f);
            return err_set(e, ERR_FULL, "%s is being pulled by another process", f->path);
        }
        /* Another pull may have renamed the part between our open and our lock. */
        if (fstat(f->fd, &mine) == 0 && stat(f->part, &there) == 0 && mine.st_ino == there.st_ino)
            return 0;
        pull__file_close(f);
    }
}

int64_t pull__file_have(const struct pull_file *f)
{
    struct stat st;
    return fstat(f->fd, &st) == 0 ? st.st_size : 0;
}

int pull__file_cut(struct pull_file *f, int64_t size, struct err *e)
{
    if (ftruncate(f->fd, size))
        return err_set(e, ERR_IO, "%s: %s", f->part, strerror(errno));
    return 0;
}

int pull__file_write(struct pull_file *f, const void *p, size_t n, struct err *e)
{
    const char *at = p;
    while (n) {
        ssize_t k = write(f->fd, at, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(e, ERR_IO, "cannot write %s: %s", f->part, strerror(errno));
        at += k;
        n -= (size_t)k;
    }
    return 0;
}

int pull__file_room(const struct pull_file *f, int64_t more, struct err *e)
{
    struct statvfs v;
    if (fstatvfs(f->fd, &v))
        return 0; /* unknown: the write itself will tell */
    double avail = (double)v.f_bavail * (double)v.f_frsize;
    if ((double)more > avail)
        return err_set(e, ERR_IO, "disk full: %.1f MB more are needed for %s, %.1f MB are free",
                       (double)more / 1e6, f->path, avail / 1e6);
    return 0;
}

static int sync_folder(const char *path, struct err *e)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        *slash = 0;
    int fd = open(*dir ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    int rc = fsync(fd) && errno != EINVAL ? err_set(e, ERR_IO, "%s: %s", dir, strerror(errno)) : 0;
    close(fd);
    return rc;
}

int pull__file_finish(struct pull_file *f, struct err *e)
{
    char hex[65];
    int64_t have = pull__file_have(f);
    if (f->size && have != f->size) {
        if (have > f->size)
            unlink(f->part); /* no resume can make it right */
        return err_set(e, ERR_IO, "%s: %lld bytes came, expected %lld", f->path, (long long)have,
                       (long long)f->size);
    }
    pull__bar_start(f->bar, "checking", have, 0, f->bar->quiet || !isatty(STDERR_FILENO));
    int rc = pull__sha256(f->part, f->bar, hex, e);
    pull__bar_end(f->bar);
    if (rc)
        return rc;
    if (f->sha256[0] && strcmp(hex, f->sha256) != 0) {
        unlink(f->part);
        return err_set(e, ERR_INVAL,
                       "%s: wrong sum: sha256 is %.16s..., expected %.16s...; removed", f->path,
                       hex, f->sha256);
    }
    if (fsync(f->fd))
        return err_set(e, ERR_IO, "%s: %s", f->part, strerror(errno));
    if (rename(f->part, f->path))
        return err_set(e, ERR_IO, "cannot rename %s: %s", f->part, strerror(errno));
    rc = stamp_write(f, hex, e);
    return rc ? rc : sync_folder(f->path, e);
}

void pull__file_close(struct pull_file *f)
{
    if (f->fd >= 0)
        close(f->fd); /* drops the lock */
    f->fd = -1;
}
