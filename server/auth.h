/* API keys: kept as SHA-256 digests only; every check costs the same whatever is sent. Loop thread. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "conf/conf.h"
#include "engine/base/err.h"

struct auth {
    unsigned char (*digest)[32]; /* [n] */
    int n;
};

/* Keys of the options and of the key file (read now). On failure `a` is as it was. */
int auth_load(struct auth *a, const struct conf *c, struct err *e);
void auth_free(struct auth *a);
/* No keys: everybody may. Otherwise the key stands in `authorization` ("Bearer KEY", any case, any spaces) or is
 * `x_api_key`; both may be NULL. *owner (may be NULL): which key it was, 0 without keys; equal keys give equal numbers. */
bool auth_ok(const struct auth *a, const char *authorization, const char *x_api_key,
             uint64_t *owner);

#endif
