/* The model catalogue: conf/models.ini, whose head documents the format. A copy is compiled in, so that
 * the binary suffices; a file found overrides it: $STEPD_CATALOGUE, else conf/models.ini of the source
 * tree that the program was built in (build/VARIANT/stepd), else STEPD_DATADIR/models.ini.
 * Read-only after load: any thread. */
#ifndef SERVER_CATALOGUE_H
#define SERVER_CATALOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

struct srv_model_row {
    const char *name, *about, *licence;
    const char *file;          /* relative to the models folder */
    const char *sha256;        /* 64 lower-case hex digits */
    int64_t size;              /* bytes */
    const char *const *source; /* ranges expanded; >= 1, and more than 1 only of pypi: */
    int n_source;
};

struct srv_catalogue;

int srv_catalogue_load(struct srv_catalogue **out, struct err *e);
/* The same from text; `origin` names it in errors. */
int srv_catalogue_parse(struct srv_catalogue **out, const char *text, const char *origin,
                        struct err *e);
void srv_catalogue_free(struct srv_catalogue *c); /* NULL is fine */

int srv_catalogue_count(const struct srv_catalogue *c);
const struct srv_model_row *srv_catalogue_at(const struct srv_catalogue *c, int i);
const struct srv_model_row *srv_catalogue_find(const struct srv_catalogue *c, const char *name);
/* Whether the row is a folder, that is, its file a .tar: then its path below `dir` goes to out [n]. */
bool srv_catalogue_folder(const struct srv_model_row *r, const char *dir, char *out, size_t n);
/* ERR_NOTFOUND with the names that are known. */
int srv_catalogue_unknown(const struct srv_catalogue *c, const char *name, struct err *e);

#endif
