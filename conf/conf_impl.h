/* Private to conf/: the option table as data. */
#ifndef CONF_CONF_IMPL_H
#define CONF_CONF_IMPL_H

#include "conf/conf.h"

enum conf_type { CONF_STR, CONF_ENUM, CONF_INT, CONF_SIZE, CONF_SEC, CONF_BOOL, CONF_LIST };

struct conf_option {
    const char *group; /* set in a row that only starts a group; then nothing else is */
    const char *id;    /* "max_body_bytes" */
    enum conf_type type;
    const char *def, *range, *help;
    size_t offset; /* in struct conf */
};

extern const struct conf_option conf__options[];
extern const int conf__n_options;

/* "max-body-bytes" in dst [n >= 48]; returns dst. */
const char *conf__name(const struct conf_option *o, char *dst, size_t n);
/* Index of the option called `name` (dashes or underscores), -1 if unknown. */
int conf__find(const char *name, size_t len);
/* Nearest option name for a mistyped one, NULL if nothing is near. dst [n >= 48] holds it. */
const char *conf__nearest(const char *name, size_t len, char *dst, size_t n);

/* Set one option from text. `from` orders the sources; `where` is for messages ("--port"). */
int conf__set(struct conf *c, int option, const char *text, enum conf_from from, const char *where,
              struct err *e);

/* Read the file into c. */
int conf__file(struct conf *c, const char *path, struct err *e);

/* Text to number; false if malformed. */
bool conf__parse_size(const char *s, int64_t *out);
bool conf__parse_sec(const char *s, double *out);

#endif
