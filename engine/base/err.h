/* Error codes and the error record. One pattern for the whole program: a fallible function returns
 * 0 or a negative ERR_* value; where a person reads the reason, its last parameter is `struct err *`.
 * Any thread. No allocation. */
#ifndef ENGINE_BASE_ERR_H
#define ENGINE_BASE_ERR_H

enum err_code {
    ERR_OK = 0,
    ERR_AGAIN = -1,       /* stored where I was, call me later; never logged */
    ERR_NOMEM = -2,       /* a size that a client or a file chose could not be had */
    ERR_INVAL = -3,       /* a value is wrong */
    ERR_PARSE = -4,       /* malformed text or bytes */
    ERR_IO = -5,          /* read, write, open, map, network */
    ERR_NOTFOUND = -6,    /* no such file, key, model, route */
    ERR_UNSUPPORTED = -7, /* well formed, but not something this build does */
    ERR_LIMIT = -8,       /* over a named limit */
    ERR_FULL = -9,        /* queue or pool full: try again later */
    ERR_TIMEOUT = -10,    /* a deadline passed */
    ERR_CANCELLED = -11,  /* the client left or cancelled */
    ERR_DRAINING = -12,   /* the process is shutting down */
    ERR_DEVICE = -13,     /* sticky device failure */
    ERR_AUTH = -14,       /* missing or wrong credentials */
    ERR_METHOD = -15,     /* known path, other method */
    ERR_TOO_LARGE = -16,  /* body over its limit */
    ERR_MEDIA = -17,      /* content type that we do not read */
    ERR_CONTEXT = -18,    /* prompt or prompt + answer over the context length */
    ERR_INTERNAL = -19,   /* our bug, survived */
};

/* What went wrong, for a person. `text` names the field, file, key or tensor; always terminated. */
struct err {
    int code;
    char text[240];
};

/* Fill `e` (may be NULL) and return `code`, so that callers write `return err_set(e, ERR_IO, ...)`.
 * Text over 239 bytes is cut at a UTF-8 boundary. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Put "prefix: " before an existing text; returns e->code (ERR_INTERNAL for NULL). */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Short lower-case name of a code, "internal" for an unknown one. Static storage. */
const char *err_name(int code);

/* Our bug: print where and what, then abort. Stays on in release builds. */
void check_failed(const char *file, int line, const char *cond) __attribute__((noreturn, cold));
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            check_failed(__FILE__, __LINE__, #cond);                                               \
    } while (0)

#endif
