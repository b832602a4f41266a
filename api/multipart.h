/* multipart/form-data bodies (RFC 7578, RFC 2046): where the parts of a body lie. Copies nothing. Pure; any thread. */
#ifndef API_MULTIPART_H
#define API_MULTIPART_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum {
    MULTIPART_HEAD_MAX = 8 << 10 /* bytes of one part's header */
};

/* All views point into the body. */
struct multipart {
    struct view name;     /* as written between the quotes: browsers escape '"' as %22 */
    struct view filename; /* p NULL: not given, the part is a plain field */
    struct view type;     /* Content-Type, or p NULL */
    struct view data;
};

/* Whether a Content-Type header (may be NULL) says multipart/form-data. */
bool multipart_is(const char *content_type);
/* Splits `body` into part[0 .. *n), at most `max`. ERR_PARSE: no boundary, a malformed part header, or a body that ends
 * before its closing boundary; ERR_LIMIT: too many parts or too long a header; ERR_UNSUPPORTED: a transfer encoding.
 * e says which part. */
int multipart_parse(const char *content_type, struct view body, struct multipart *part, int max,
                    int *n, struct err *e);

#endif
