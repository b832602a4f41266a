/* `stepd health`: one GET /ready, for container health checks and scripts on machines without curl. */
#include "server/probe.h"

#include <curl/curl.h>
#include <stdio.h>

#include "conf/conf.h"

#define PROBE_MS 1500 /* under the two seconds that container runtimes are told to wait */

extern char **environ;

/* Where a server with these options answers on this machine. The wildcard addresses are no destination. */
static void probe_url(const struct conf *c, struct buf *url)
{
    const char *host = c->host;
    const char *scheme = *c->tls_cert ? "https" : "http";
    if (!*host) /* only the socket file: the name does not matter */
        host = "localhost";
    else if (strcmp(host, "0.0.0.0") == 0)
        host = "127.0.0.1";
    else if (strcmp(host, "::") == 0 || strcmp(host, "[::]") == 0)
        host = "[::1]";
    bool bare6 = strchr(host, ':') && *host != '[';
    buf_fmt(url, "%s://%s%s%s:%lld/ready", scheme, bare6 ? "[" : "", host, bare6 ? "]" : "",
            (long long)c->port);
}

/* Body bytes, as many as one line needs. */
static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct buf *b = arg;
    size_t len = size * n, room = b->len < 400 ? 400 - b->len : 0;
    for (size_t i = 0; i < len && i < room; i++)
        if (p[i] != '\n' && p[i] != '\r')
            buf_char(b, p[i]);
    return len;
}

static int ask(const struct conf *c, const char *url)
{
    struct buf body = {0};
    char why[CURL_ERROR_SIZE] = "";
    long status = 0;
    CURL *h = curl_easy_init();
    if (!h) {
        fputs("stepd health: out of memory\n", stderr);
        return 1;
    }
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, (long)PROBE_MS);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_PROXY, ""); /* the way to this machine has none */
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, &body);
    /* The certificate names the public host, not the loopback address; no secret is sent. */
    curl_easy_setopt(h, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(h, CURLOPT_SSL_VERIFYHOST, 0L);
    if (!*c->host)
        curl_easy_setopt(h, CURLOPT_UNIX_SOCKET_PATH, c->unix_socket);
    CURLcode rc = curl_easy_perform(h);
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
    if (rc != CURLE_OK)
        printf("no answer from %s: %s\n", *c->host ? url : c->unix_socket,
               *why ? why : curl_easy_strerror(rc));
    else
        printf("%s: %ld %s\n", status == 200 ? "ready" : "not ready", status, buf_cstr(&body));
    curl_easy_cleanup(h);
    buf_free(&body);
    return rc == CURLE_OK && status == 200 ? 0 : 1;
}

int srv_health_main(int argc, char **argv)
{
    struct conf *c;
    struct err e;
    struct buf url = {0};
    if (conf_parse(&c, argc - 1, argv + 1, environ, &e)) {
        fprintf(stderr, "stepd health: %s\n", e.text);
        return 2;
    }
    if (c->action != CONF_RUN) {
        puts("usage: stepd health [--host H] [--port P] [--unix-socket FILE] [--config FILE]\n"
             "Asks the server that these options of `stepd serve` start whether it is ready.");
        conf_free(c);
        return 0;
    }
    probe_url(c, &url);
    int rc = url.failed ? 1 : ask(c, buf_cstr(&url));
    buf_free(&url);
    conf_free(c);
    return rc;
}
