/* Private to engine/load: reading a JSON file with bounds. Any thread. */
#ifndef ENGINE_LOAD_JSON_IMPL_H
#define ENGINE_LOAD_JSON_IMPL_H

#include <jansson.h>
#include <stddef.h>

#include "engine/base/err.h"

/* 0, or ERR_PARSE where brackets nest deeper than `max`: told before the parser, which recurses, sees the text. */
int load__json_depth(const char *p, size_t n, int max, struct err *e);
/* An object from text [n]; duplicate keys are refused. ERR_PARSE (with the line), ERR_NOMEM; the caller adds the
 * name. */
int load__json_object(json_t **out, const char *text, size_t n, struct err *e);
/* Of a file of at most `limit` bytes; the text begins with the path. Also ERR_NOTFOUND, ERR_IO, ERR_LIMIT. */
int load__json_file(json_t **out, const char *path, size_t limit, struct err *e);

#endif
