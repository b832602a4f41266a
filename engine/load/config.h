/* A JSON configuration file of a model component (config.json, scheduler_config.json, model_index.json), read once,
 * asked by key. Values are checked where they are asked for: a wrong type or a value out of range is remembered with the
 * key's name, and config_error says the first one, so that a reader asks for everything and checks once. Read-only
 * after open but for that note: one thread. */
#ifndef ENGINE_LOAD_CONFIG_H
#define ENGINE_LOAD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

struct config;

/* ERR_NOTFOUND, ERR_IO, ERR_PARSE (text has the path and the line), ERR_LIMIT (over 16 MiB). */
int config_open(struct config **out, const char *path, struct err *e);
/* From text [n]; `name` stands for the path in messages. */
int config_open_text(struct config **out, const char *text, size_t n, const char *name,
                     struct err *e);
void config_close(struct config *c); /* NULL is fine */

bool config_has(const struct config *c, const char *key); /* present and not null */
/* `def` when the key is absent or null. Keys may be dotted paths into objects ("text_config.hidden_size") and
 * arrays ("alignment_heads.0"). */
int64_t config_int(struct config *c, const char *key, int64_t def, int64_t min, int64_t max);
double config_num(struct config *c, const char *key, double def, double min, double max);
bool config_bool(struct config *c, const char *key, bool def);
/* Lives as long as c. */
const char *config_str(struct config *c, const char *key, const char *def);
/* Elements of an array: how many (0 when absent, or no array: noted), then by index; a bare number counts as an array
 * of one. */
int config_len(struct config *c, const char *key);
int64_t config_int_at(struct config *c, const char *key, int i, int64_t min, int64_t max);
double config_num_at(struct config *c, const char *key, int i);
const char *config_str_at(struct config *c, const char *key, int i);
/* Whether the array has an element i and it is null; notes nothing. */
bool config_null_at(const struct config *c, const char *key, int i);
/* Keys of the object (in file order). */
/* Whether the value (i < 0) or the array's element i is there and a number; notes nothing. */
bool config_is_num(const struct config *c, const char *key, int i);
int config_n_key(const struct config *c);
const char *config_key_at(const struct config *c, int i);

/* A key that must be there. */
void config_need(struct config *c, const char *key);
/* 0, or ERR_INVAL with the first complaint: file, key, what it must be. */
int config_error(const struct config *c, struct err *e);

#endif
