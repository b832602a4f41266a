/* API keys. */
#include "server/auth.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <strings.h>

#include "engine/base/mem.h"

static int add(struct auth *a, const char *key, size_t n)
{
    void *p = mem_realloc(a->digest, (size_t)(a->n + 1) * sizeof(*a->digest));
    if (!p)
        return ERR_NOMEM;
    a->digest = p;
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, key, n, a->digest[a->n]))
        return ERR_INTERNAL;
    a->n++;
    return 0;
}

static int add_file(struct auth *a, const char *path, struct err *e)
{
    char line[1024];
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(e, ERR_IO, "api-key-file %s: %s", path, strerror(errno));
    int rc = 0, n = 0;
    while (!rc && fgets(line, sizeof(line), f)) {
        n++;
        size_t len = strlen(line);
        if (len + 1 == sizeof(line)) {
            rc = err_set(e, ERR_PARSE, "api-key-file %s:%d: line too long", path, n);
            break;
        }
        const char *p = line + strspn(line, " \t");
        len = strcspn(p, "\r\n");
        while (len && (p[len - 1] == ' ' || p[len - 1] == '\t'))
            len--;
        if (len && *p != '#' && add(a, p, len))
            rc = err_set(e, ERR_NOMEM, "api-key-file: out of memory");
    }
    if (!rc && ferror(f))
        rc = err_set(e, ERR_IO, "api-key-file %s: %s", path, strerror(errno));
    fclose(f);
    return rc;
}

int auth_load(struct auth *a, const struct conf *c, struct err *e)
{
    struct auth n = {0};
    int rc = 0;
    for (int i = 0; !rc && i < c->api_key.n; i++)
        if (add(&n, c->api_key.v[i], strlen(c->api_key.v[i])))
            rc = err_set(e, ERR_NOMEM, "api-key: out of memory");
    if (!rc && *c->api_key_file) {
        rc = add_file(&n, c->api_key_file, e);
        /* An empty key file would open the server to everybody: an operator's slip, not a wish. */
        if (!rc && !n.n)
            rc = err_set(e, ERR_INVAL, "api-key-file %s: holds no key", c->api_key_file);
    }
    if (rc) {
        auth_free(&n);
        return rc;
    }
    auth_free(a);
    *a = n;
    return 0;
}

void auth_free(struct auth *a)
{
    free(a->digest);
    *a = (struct auth){0};
}

static bool match(const struct auth *a, const char *key, size_t n, uint64_t *owner)
{
    unsigned char d[32];
    unsigned found = 0;
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, key, n, d))
        return false;
    for (int i = 0; i < a->n; i++) {
        unsigned diff = 0;
        for (int j = 0; j < 32; j++)
            diff |= (unsigned)(d[j] ^ a->digest[i][j]);
        found |= diff == 0;
    }
    if (found) /* part of a digest of a key that an operator chose: nobody finds another with it */
        memcpy(owner, d, sizeof *owner);
    return found != 0;
}

bool auth_ok(const struct auth *a, const char *authorization, const char *x_api_key,
             uint64_t *owner)
{
    uint64_t who = 0;
    if (owner)
        *owner = 0;
    if (!a->n)
        return true;
    bool ok = false;
    if (authorization && strncasecmp(authorization, "bearer", 6) == 0 &&
        (authorization[6] == ' ' || authorization[6] == '\t')) {
        const char *p = authorization + 6 + strspn(authorization + 6, " \t");
        ok = match(a, p, strlen(p), &who);
    }
    if (x_api_key)
        ok |= match(a, x_api_key, strlen(x_api_key), &who);
    if (owner)
        *owner = who;
    return ok;
}
