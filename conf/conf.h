/* Options: one table (options.def), four sources. argv beats environment beats file beats default; a list is
 * taken whole from the strongest source that names it. Owns the texts. One owner; no locks. */
#ifndef CONF_CONF_H
#define CONF_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct conf_list {
    char **v; /* [n] */
    int n;
};

#define CONF_T_STR  char *
#define CONF_T_ENUM char *
#define CONF_T_INT  int64_t
#define CONF_T_SIZE int64_t
#define CONF_T_SEC  double
#define CONF_T_BOOL bool
#define CONF_T_LIST struct conf_list

enum conf_action { CONF_RUN, CONF_HELP, CONF_PRINT };
enum conf_from { CONF_DEFAULT, CONF_FILE, CONF_ENV, CONF_ARGV };
#define CONF_MAX_OPTIONS 96

/* Values in force; the fields are those of options.def. STR and ENUM are never NULL ("" = not set). */
struct conf {
#define OPT_GROUP(name)
#define OPT(id, type, def, range, help) CONF_T_##type id;
#include "conf/options.def"
#undef OPT
#undef OPT_GROUP
    char *config;            /* the file that was read, "" if none */
    enum conf_action action; /* --help, --print-config */
    unsigned char from[CONF_MAX_OPTIONS];
};

/* argv: arguments after the sub-command; those without dashes go to `model`. env: NULL or a NULL-terminated
 * "NAME=value" array. ERR_INVAL names the option, its source and, for an unknown name, the nearest known one;
 * ERR_IO: the file cannot be read. On failure nothing is left behind. */
int conf_parse(struct conf **out, int argc, char **argv, char **env, struct err *e);
/* Defaults only. */
int conf_default(struct conf **out, struct err *e);
void conf_free(struct conf *c); /* NULL is fine */

/* Texts generated from the table. conf_text_print hides keys. */
void conf_text_help(struct buf *out);
void conf_text_markdown(struct buf *out);
void conf_text_print(const struct conf *c, struct buf *out);
/* The commented sample file: every option with its help, range and default. */
void conf_text_sample(struct buf *out);

#endif
