/* Structured log: one line, key=value, one write(2). Never from inside a step at info. Prompts,
 * answers and keys are never logged. Lines that the descriptor cannot take at once are dropped and
 * counted (a blocked pipe must not stall the daemon). Any thread.
 * Line: 2026-01-31T12:00:00.123Z info sched req=... blocks=3 */
#ifndef ENGINE_BASE_LOG_H
#define ENGINE_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level l);
/* false if `name` is none of error, warn, info, debug. */
bool log_level_parse(const char *name, enum log_level *out);
bool log_enabled(enum log_level l);
/* Default 2 (stderr). */
void log_set_fd(int fd);
uint64_t log_dropped(void);

void log_line(enum log_level l, const char *module, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(mod, ...) log_line(LOG_ERROR, mod, __VA_ARGS__)
#define log_warn(mod, ...)  log_line(LOG_WARN, mod, __VA_ARGS__)
#define log_info(mod, ...)  log_line(LOG_INFO, mod, __VA_ARGS__)
#define log_debug(mod, ...)                                                                        \
    do {                                                                                           \
        if (log_enabled(LOG_DEBUG))                                                                \
            log_line(LOG_DEBUG, mod, __VA_ARGS__);                                                 \
    } while (0)

#endif
