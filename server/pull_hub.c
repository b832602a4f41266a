/* Names and addresses of the model hub. HF_ENDPOINT and HF_TOKEN mean what they mean to its own client. */
#include "server/pull_impl.h"

#include "server/models.h"

#define DEFAULT_ENDPOINT "https://huggingface.co"

/* ORG/REPO: one slash, plain characters, no dot first. */
static bool repo_ok(const char *s)
{
    const char *slash = strchr(s, '/');
    return slash && slash != s && slash[1] && !strchr(slash + 1, '/') && *s != '.' &&
           slash[1] != '.' && !strstr(s, "..") &&
           s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")] == 0;
}

int pull__hub_parse(struct pull_hub *h, const char *name, struct err *e)
{
    *h = (struct pull_hub){0};
    const char *at = strncmp(name, "hf:", 3) == 0 ? name + 3 : name;
    size_t n = strcspn(at, ":");
    const char *file = at[n] ? at + n + 1 : "";
    if (n < sizeof h->repo)
        memcpy(h->repo, at, n);
    if (n >= sizeof h->repo || !repo_ok(h->repo))
        return err_set(e, ERR_INVAL, "'%.100s' is not hf:ORG/REPO or hf:ORG/REPO:FILE", name);
    if (at[n] && (!*file || *file == '/' || *file == '.' || strstr(file, "..") ||
                  strlen(file) >= sizeof h->file))
        return err_set(e, ERR_INVAL, "'%.100s': the file must be a plain path in the repository",
                       name);
    snprintf(h->file, sizeof h->file, "%.*s", (int)sizeof h->file - 1, file);
    return 0;
}

const char *pull__hub_token(void)
{
    const char *t = getenv("HF_TOKEN");
    return t && *t && t[strcspn(t, "\r\n")] == 0 ? t : NULL;
}

/* Percent-encode all of a path but its slashes. */
static void encode(struct buf *b, const char *s)
{
    for (; *s; s++) {
        bool plain =
            strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/", *s);
        if (plain)
            buf_char(b, *s);
        else
            buf_fmt(b, "%%%02X", (unsigned char)*s);
    }
}

int pull__hub_url(const struct pull_hub *h, const char *file, const char *revision, char *url,
                  size_t n, struct err *e)
{
    const char *end = getenv("HF_ENDPOINT");
    struct buf b = {0};
    if (!end || !*end)
        end = DEFAULT_ENDPOINT;
    int len = (int)strlen(end);
    while (len && end[len - 1] == '/')
        len--;
    if (file) {
        buf_fmt(&b, "%.*s/%s/resolve/%s/", len, end, h->repo, revision);
        encode(&b, file);
    } else {
        buf_fmt(&b, "%.*s/api/models/%s", len, end, h->repo);
    }
    int rc =
        b.failed ? err_set(e, ERR_NOMEM, "no memory") : srv_path_fmt(url, n, e, "%s", buf_cstr(&b));
    buf_free(&b);
    return rc;
}
