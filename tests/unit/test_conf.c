/* conf: precedence, typed values, errors with suggestions, generated texts, the sample file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "conf/conf.h"
#include "engine/base/mem.h"

static int parse(struct conf **c, struct err *e, char **env, int argc, ...)
{
    char *argv[16];
    va_list ap;
    va_start(ap, argc);
    for (int i = 0; i < argc; i++)
        argv[i] = va_arg(ap, char *);
    va_end(ap);
    memset(e, 0, sizeof(*e));
    return conf_parse(c, argc, argv, env, e);
}

static void write_file(char *path, const char *text)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void test_default(void **st)
{
    (void)st;
    struct conf *c;
    struct err e;
    assert_int_equal(parse(&c, &e, NULL, 0), 0);
    assert_string_equal(c->host, "127.0.0.1");
    assert_int_equal(c->port, 8000);
    assert_int_equal(c->max_body_bytes, 10 << 20);
    assert_int_equal(c->max_head_bytes, 32 << 10);
    assert_true(c->idle_timeout == 75 && c->head_timeout == 10);
    assert_true(c->prefix_cache && !c->strict_fields);
    assert_int_equal(c->model.n, 0);
    assert_int_equal(c->action, CONF_RUN);
    conf_free(c);
    conf_free(NULL);
}

static void test_precedence(void **st)
{
    (void)st;
    char path[] = "/tmp/stepd-conf-XXXXXX";
    write_file(path, "; comment\nport = 1\nthreads = 2\n[limits]\nmax-body-bytes = 5 KiB\n"
                     "[network]\napi_key = f1\napi-key = f2\ncors-allow-origin = a\n");
    char *env[] = {"STEPD_PORT=3", "STEPD_MAX_N=4",   "STEPD_API_KEY=e1,e2,e3",
                   "HOME=/x",      "STEPD_THREADS=9", NULL};
    struct conf *c;
    struct err e;
    assert_int_equal(parse(&c, &e, env, 5, "--config", path, "--threads=7", "--api-key", "k"), 0);
    assert_int_equal(c->port, 3);
    assert_int_equal(c->threads, 7);
    assert_int_equal(c->max_n, 4);
    assert_int_equal(c->max_body_bytes, 5 << 10);
    assert_int_equal(c->api_key.n, 1);
    assert_string_equal(c->api_key.v[0], "k");
    assert_string_equal(c->cors_allow_origin.v[0], "a");
    struct buf b = {0};
    conf_text_print(c, &b);
    assert_non_null(strstr(buf_cstr(&b), "; from argument\nthreads = 7\n"));
    assert_non_null(strstr(buf_cstr(&b), "; from environment\nport = 3\n"));
    assert_non_null(strstr(buf_cstr(&b), "api-key = ***"));
    buf_free(&b);
    conf_free(c);

    assert_int_equal(parse(&c, &e, env, 1, "--max-n=5"), 0);
    assert_int_equal(c->api_key.n, 3);
    assert_string_equal(c->api_key.v[2], "e3");
    conf_free(c);

    char *none[] = {"STEPD_CONFIG=", NULL};
    none[0] = malloc(64);
    snprintf(none[0], 64, "STEPD_CONFIG=%s", path);
    assert_int_equal(parse(&c, &e, none, 0), 0);
    assert_int_equal(c->api_key.n, 2);
    assert_string_equal(c->api_key.v[1], "f2");
    assert_string_equal(c->config, path);
    conf_free(c);
    free(none[0]);
    unlink(path);
}

static void test_argv(void **st)
{
    (void)st;
    struct conf *c;
    struct err e;
    assert_int_equal(parse(&c, &e, NULL, 9, "a=b.gguf", "--model", "c.gguf", "--no-pin",
                           "--strict-fields", "--metrics", "off", "--", "--x"),
                     0);
    assert_int_equal(c->model.n, 3);
    assert_string_equal(c->model.v[1], "c.gguf");
    assert_string_equal(c->model.v[2], "--x");
    assert_false(c->pin);
    assert_true(c->strict_fields);
    assert_false(c->metrics);
    conf_free(c);
    assert_int_equal(parse(&c, &e, NULL, 3, "--strict-fields", "m.gguf", "--queue-timeout=1500ms"),
                     0);
    assert_true(c->strict_fields && c->queue_timeout == 1.5);
    assert_string_equal(c->model.v[0], "m.gguf");
    conf_free(c);
    assert_int_equal(parse(&c, &e, NULL, 1, "--help"), 0);
    assert_int_equal(c->action, CONF_HELP);
    conf_free(c);
    assert_int_equal(parse(&c, &e, NULL, 1, "--print-config"), 0);
    assert_int_equal(c->action, CONF_PRINT);
    conf_free(c);
}

static void fails(const char *arg, const char *arg2, const char *part)
{
    struct conf *c = NULL;
    struct err e;
    int rc = parse(&c, &e, NULL, arg2 ? 2 : 1, arg, arg2);
    if (rc != ERR_INVAL || !strstr(e.text, part))
        fail_msg("%s: %d '%s' has not '%s'", arg, rc, e.text, part);
    assert_null(c);
}

static void test_errors(void **st)
{
    (void)st;
    fails("--prot", "1", "did you mean 'port'?");
    fails("--max-sequence", "1", "did you mean 'max-sequences'?");
    fails("--zzzzzzzzzzzzzzzzzzzzzz", NULL, "unknown option");
    fails("-p", NULL, "two dashes");
    fails("--port", NULL, "--port needs a value");
    fails("--port", "65536", "--port: '65536' is not a whole number in 0..65535");
    fails("--port", "-1", "0..65535");
    fails("--port", "8x", "whole number");
    fails("--port", "99999999999999999999", "whole number");
    fails("--max-body-bytes", "9999999999999GiB", "is not a size");
    fails("--max-body-bytes=10Q", NULL, "is not a size");
    fails("--idle-timeout=nan", NULL, "is not a time");
    fails("--idle-timeout=5d", NULL, "is not a time");
    fails("--device=gpu", NULL, "is not one of auto|cpu");
    fails("--device=", NULL, "is not one of");
    fails("--device=cud", NULL, "is not one of");
    fails("--pin=maybe", NULL, "is not yes or no");
    fails("--no-port", NULL, "unknown option");
    fails("--tls-cert=x", NULL, "go together");
    fails("--host=", NULL, "nothing to listen on");
}

static void fails_file(const char *text, int code, const char *part)
{
    char path[] = "/tmp/stepd-conf-XXXXXX";
    write_file(path, text);
    struct conf *c = NULL;
    struct err e;
    int rc = parse(&c, &e, NULL, 2, "--config", path);
    if (rc != code || !strstr(e.text, part))
        fail_msg("%s: %d '%s' has not '%s'", text, rc, e.text, part);
    unlink(path);
}

static void test_errors_file(void **st)
{
    (void)st;
    fails_file("port = 1\nporr = 2\n", ERR_INVAL, ":2: unknown key 'porr'; did you mean 'port'?");
    fails_file("[limitz]\nport = 2\n", ERR_INVAL, ":2: unknown section [limitz]");
    fails_file("port = a\n", ERR_INVAL, ":1: port: 'a'");
    fails_file("port\n", ERR_PARSE, ":1: not 'key = value'");
    char big[600];
    memset(big, 'a', sizeof(big) - 1);
    big[sizeof(big) - 1] = 0;
    fails_file(big, ERR_PARSE, ":1: line longer than");
    struct conf *c;
    struct err e;
    assert_int_equal(parse(&c, &e, NULL, 1, "--config=/nonexistent/x"), ERR_IO);
    assert_non_null(strstr(e.text, "/nonexistent/x"));
    char *pod[] = {"STEPD_PORT=tcp://10.0.0.1:8000",
                   "STEPD_SERVICE_HOST=10.0.0.1",
                   "STEPD_PORT_8000_TCP=tcp://10.0.0.1:8000",
                   "STEPD_MODELS=/m",
                   "STEPD_EMU_FAIL=launch:3",
                   "STEPD_CUDA_GRAPHS=0",
                   NULL};
    assert_int_equal(parse(&c, &e, pod, 0), 0);
    assert_int_equal(c->port, 8000);
    assert_string_equal(c->models_dir, "/m");
    conf_free(c);
    char *env[] = {"STEPD_PROT=3", NULL};
    assert_int_equal(parse(&c, &e, env, 0), ERR_INVAL);
    assert_non_null(strstr(e.text, "did you mean 'port'?"));
}

/* The sample equals what the table says, and reading it changes nothing. */
static void test_sample(void **st)
{
    (void)st;
    struct buf want = {0}, got = {0}, a = {0}, b = {0};
    conf_text_sample(&want);
    FILE *f = fopen("conf/stepd.ini", "r");
    assert_non_null(f);
    char chunk[4096];
    for (size_t n; (n = fread(chunk, 1, sizeof(chunk), f)) > 0;)
        buf_add(&got, chunk, n);
    fclose(f);
    assert_string_equal(buf_cstr(&got), buf_cstr(&want));
    struct conf *c, *d;
    struct err e;
    assert_int_equal(parse(&c, &e, NULL, 1, "--config=conf/stepd.ini"), 0);
    assert_int_equal(parse(&d, &e, NULL, 0), 0);
    memset(c->from, 0, sizeof(c->from));
    conf_text_print(c, &a);
    conf_text_print(d, &b);
    assert_string_equal(buf_cstr(&a), buf_cstr(&b));
    conf_free(c);
    conf_free(d);
    buf_free(&want);
    buf_free(&got);
    buf_free(&a);
    buf_free(&b);
}

static void test_texts(void **st)
{
    (void)st;
    struct buf h = {0}, m = {0};
    conf_text_help(&h);
    conf_text_markdown(&m);
    assert_non_null(strstr(buf_cstr(&h), "--max-sequences N"));
    assert_non_null(strstr(buf_cstr(&h), "--[no-]pin"));
    assert_non_null(strstr(buf_cstr(&m), "| `max-sequences` | N | `64` | 1..4096 |"));
    buf_free(&h);
    buf_free(&m);
}

static void test_nomem(void **st)
{
    (void)st;
    struct conf *c;
    struct err e;
    int ok = 0;
    for (long k = 1; !ok && k < 500; k++) {
        mem_fail_after(k, true);
        int rc = parse(&c, &e, NULL, 3, "--api-key", "k", "m.gguf");
        mem_fail_after(0, false);
        ok = rc == 0;
        if (!ok)
            assert_int_equal(rc, ERR_NOMEM);
    }
    assert_true(ok);
    conf_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default),     cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_argv),        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_errors_file), cmocka_unit_test(test_sample),
        cmocka_unit_test(test_texts),       cmocka_unit_test(test_nomem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
