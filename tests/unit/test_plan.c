/* `stepd plan`: text, JSON, wrong usage, and models that cannot be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "server/plan.h"
#include "tests/tiny_gguf.h"

static char out[4096], model[64];

/* Run with up to three arguments; standard output goes to `out`. */
static int run(const char *a, const char *b, const char *c)
{
    char words[4][128] = {"plan"}, *argv[5] = {words[0]};
    const char *arg[3] = {a, b, c};
    int argc = 1;
    for (int i = 0; i < 3 && arg[i]; i++) {
        snprintf(words[argc], sizeof words[argc], "%s", arg[i]);
        argv[argc] = words[argc];
        argc++;
    }
    char path[] = "/tmp/stepd-plan-XXXXXX";
    int fd = mkstemp(path), keep = dup(1);
    assert_true(fd >= 0 && keep >= 0);
    fflush(stdout);
    dup2(fd, 1);
    int rc = srv_plan_main(argc, argv);
    fflush(stdout);
    dup2(keep, 1);
    ssize_t n = pread(fd, out, sizeof out - 1, 0);
    out[n > 0 ? n : 0] = 0;
    close(fd);
    close(keep);
    unlink(path);
    return rc;
}

static void test_text(void **st)
{
    (void)st;
    assert_int_equal(run("--device=cpu", model, NULL), 0);
    assert_non_null(strstr(out, model));
    assert_non_null(strstr(out, "72 bytes a token")); /* 1 layer, K and V, 16 halves, scales */
    assert_non_null(strstr(out, "128 tokens"));
    assert_int_equal(run("--help", NULL, NULL), 0);
    assert_non_null(strstr(out, "usage: stepd plan"));
}

static void test_json(void **st)
{
    (void)st;
    assert_int_equal(run("--json", "--device=ref", model), 0);
    json_t *j = json_loads(out, 0, NULL), *m = json_array_get(j, 0);
    assert_non_null(m);
    json_int_t total = 0;
    static const char *const parts[] = {"weight_bytes", "kv_bytes", "work_bytes"};
    for (int i = 0; i < 3; i++) {
        json_int_t v = json_integer_value(json_object_get(m, parts[i]));
        assert_true(v > 0);
        total += v;
    }
    assert_int_equal(json_integer_value(json_object_get(m, "total_bytes")), total);
    assert_int_equal(json_integer_value(json_object_get(m, "context_tokens")), TINY_CTX);
    assert_string_equal(json_string_value(json_object_get(m, "model")), model);
    json_decref(j);
}

static void test_wrong(void **st)
{
    (void)st;
    assert_int_equal(run(NULL, NULL, NULL), 2);
    assert_int_equal(run("--no-such-option", model, NULL), 2);
    assert_int_equal(run("/nonexistent.gguf", NULL, NULL), 1);
    assert_int_equal(run("--ctx-size=4096", model, NULL), 1); /* over the model's 128 */
    assert_int_equal(run("--json", model, "/nonexistent.gguf"), 1);
    assert_string_equal(out, ""); /* half a list would not be JSON */
}

static int setup(void **st)
{
    (void)st;
    return tiny_gguf_write(model, sizeof model, &(struct tiny_edit){0});
}

static int teardown(void **st)
{
    (void)st;
    return unlink(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
