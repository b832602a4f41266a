/* Where models lie, and what a MODEL argument means. Any thread. */
#ifndef SERVER_MODELS_H
#define SERVER_MODELS_H

#include <stddef.h>

#include "engine/base/err.h"

/* The models folder: `given` if not NULL or empty, else $STEPD_MODELS, $XDG_DATA_HOME/stepd/models or
 * ~/.local/share/stepd/models. It need not exist. ERR_INVAL without any home, ERR_LIMIT if too long. */
int srv_models_dir(const char *given, char *out, size_t n, struct err *e);

/* MODEL to a path: an existing file or folder as it is; else a catalogue name, or a path below the models
 * folder (as `stepd pull` leaves them, "hf:" in front allowed), or below the installed one (tiny-t2i). models_dir as `given` above.
 * ERR_NOTFOUND says what to do. */
int srv_model_resolve(const char *arg, const char *models_dir, char *path, size_t n, struct err *e);

/* printf into a path: 0, or ERR_LIMIT when it does not fit. */
int srv_path_fmt(char *out, size_t n, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
