#include "tests/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tests/unxz.h"

const char *tree_path(const char *dir, const char *name)
{
    static char path[4][TREE_PATH];
    static int at;
    at = (at + 1) % 4;
    int n = snprintf(path[at], TREE_PATH, "%s/%s", dir, name);
    CHECK(n > 0 && n < TREE_PATH);
    return path[at];
}

void tree_make(char *dir)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, TREE_PATH, "%s/stepd-tree-XXXXXX", tmp ? tmp : "/tmp");
    CHECK(mkdtemp(dir));
}

static void make_parents(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = 0;
        CHECK(mkdir(path, 0777) == 0 || errno == EEXIST);
        *p = '/';
    }
}

static FILE *create(const char *dir, const char *name)
{
    char path[TREE_PATH];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK(n > 0 && n < TREE_PATH);
    make_parents(path);
    FILE *f = fopen(path, "wb");
    CHECK(f);
    return f;
}

void tree_put(const char *dir, const char *name, const void *p, size_t n)
{
    FILE *f = create(dir, name);
    CHECK(fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

void tree_text(const char *dir, const char *name, const char *text)
{
    tree_put(dir, name, text, strlen(text));
}

void tree_copy(const char *src, const char *dst)
{
    DIR *d = opendir(src);
    const struct dirent *f;
    CHECK(d);
    CHECK(mkdir(dst, 0777) == 0 || errno == EEXIST);
    while ((f = readdir(d)) != NULL) {
        struct stat st;
        char from[TREE_PATH], to[TREE_PATH];
        size_t n = strlen(f->d_name);
        if (f->d_name[0] == '.')
            continue;
        snprintf(from, sizeof from, "%.250s/%.250s", src, f->d_name);
        snprintf(to, sizeof to, "%.250s/%.250s", dst, f->d_name);
        CHECK(stat(from, &st) == 0);
        if (S_ISDIR(st.st_mode)) {
            tree_copy(from, to);
            continue;
        }
        size_t len;
        char *p = unxz_read(from, &len), name[256];
        CHECK(p);
        bool xz = n > 3 && strcmp(f->d_name + n - 3, ".xz") == 0;
        snprintf(name, sizeof name, "%.*s", (int)(xz ? n - 3 : n), f->d_name);
        tree_put(dst, name, p, len);
        free(p);
    }
    closedir(d);
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *w)
{
    (void)st, (void)type, (void)w;
    return remove(path);
}

void tree_remove(const char *dir)
{
    nftw(dir, drop, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- safetensors ---- */

static size_t bits_of(const char *dtype)
{
    const char *p = dtype;
    while (*p && (*p < '0' || *p > '9'))
        p++;
    return strcmp(dtype, "BOOL") == 0 ? 8 : strncmp(dtype, "F8", 2) == 0 ? 8 : strtoul(p, NULL, 10);
}

void tree_safetensors(const char *dir, const char *name, const struct tree_tensor *t, int n)
{
    struct buf head = {0}, data = {0};
    buf_str(&head, "{");
    for (int i = 0; i < n; i++) {
        size_t bytes = bits_of(t[i].dtype) / 8, at = data.len;
        buf_fmt(&head, "%s", i ? "," : "");
        buf_json(&head, t[i].name, strlen(t[i].name));
        buf_fmt(&head, ":{\"dtype\":\"%s\",\"shape\":[", t[i].dtype);
        for (int d = 0; d < t[i].n_dim; d++) {
            buf_fmt(&head, "%s%lld", d ? "," : "", (long long)t[i].dim[d]);
            bytes *= (size_t)t[i].dim[d];
        }
        for (size_t k = 0; k < bytes && !t[i].data; k++)
            buf_char(&data, (char)(k % 251));
        if (t[i].data)
            buf_add(&data, t[i].data, bytes);
        buf_fmt(&head, "],\"data_offsets\":[%zu,%zu]}", at, data.len);
    }
    buf_str(&head, "}");
    uint64_t len = head.len;
    FILE *f = create(dir, name);
    CHECK(fwrite(&len, 8, 1, f) == 1 && fwrite(head.p, 1, head.len, f) == head.len &&
          fwrite(buf_cstr(&data), 1, data.len, f) == data.len && fclose(f) == 0);
    buf_free(&head);
    buf_free(&data);
}

void tree_header(const char *dir, const char *name, const char *json, size_t n, uint64_t bytes)
{
    uint64_t len = n;
    FILE *f = create(dir, name);
    CHECK(fwrite(&len, 8, 1, f) == 1 && fwrite(json, 1, n, f) == n && fflush(f) == 0);
    CHECK(ftruncate(fileno(f), (off_t)(8 + n + bytes)) == 0 && fclose(f) == 0);
}
