/* server/catalogue, server/models, api/hub: what a model's name means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/hub.h"
#include "engine/base/mem.h"
#include "server/catalogue.h"
#include "server/models.h"
#include "server/pull_impl.h"

#define SUM "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ROW "file = a.gguf\nsize = 7\nsha256 = " SUM "\n"

static void test_ranges(void **st)
{
    (void)st;
    struct srv_catalogue *c = NULL;
    struct err e = {0};
    const char *text = "[a]\n" ROW "source = pypi:p{8..11}==1:/x{08..11}\nsource = pypi:q==2:/y\n"
                       "[b]\nabout = B\n" ROW "source = https://h/x\n";
    assert_int_equal(srv_catalogue_parse(&c, text, "t", &e), 0);
    assert_int_equal(srv_catalogue_count(c), 2);
    const struct srv_model_row *r = srv_catalogue_find(c, "a");
    assert_int_equal(r->n_source, 5);
    assert_string_equal(r->source[0], "pypi:p8==1:/x08");
    assert_string_equal(r->source[3], "pypi:p11==1:/x11");
    assert_string_equal(r->source[4], "pypi:q==2:/y");
    assert_int_equal(r->size, 7);
    assert_string_equal(srv_catalogue_at(c, 1)->about, "B");
    assert_null(srv_catalogue_find(c, "c"));
    assert_int_equal(srv_catalogue_unknown(c, "c", &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "known: a, b"));
    srv_catalogue_free(c);
    srv_catalogue_free(NULL);
}

static void test_catalogue_faults(void **st)
{
    (void)st;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"[a]\n" ROW, "[a] lacks"},
        {"[a]\n" ROW "source = ftp://x/y\n", "none of pypi: hf: http: https:"},
        {"[a]\n" ROW "source = http://x/y\nsource = http://x/z\n", "only pypi"},
        {"[a]\n" ROW "source = pypi:a==1:x\nsource = http://x/z\n", "only pypi"},
        {"[a]\n" ROW "source = pypi:a{1..2}==1:x{1..3}\n", "range"},
        {"[a]\n" ROW "source = pypi:a{2..1}==1:x\n", "range"},
        {"[a]\n" ROW "source = pypi:a{1..99999}==1:x\n", "range"},
        {"[a]\n" ROW "source = pypi:a{1..}==1:x\n", "range"},
        {"[a]\nfile = ../x\n", "line 2: [a] file: '../x'"},
        {"[a]\nfile = /x\n", "[a] file"},
        {"[a]\nsize = 0\n", "[a] size"},
        {"[a]\nsize = 9x\n", "[a] size"},
        {"[a]\nsha256 = abc\n", "[a] sha256"},
        {"[a]\ncolour = red\n", "unknown key 'colour'"},
        {"[A b]\nsize = 1\n", "[A b] is no model name"},
        {"[a]\nsize = 1\n[b]\nsize = 1\n[a]\nsize = 2\n", "line 6: [a] is there twice"},
        {"[a]\nno line\n", "line 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct srv_catalogue *c = NULL;
        struct err e = {0};
        if (!srv_catalogue_parse(&c, bad[i].text, "t.ini", &e) || !strstr(e.text, bad[i].says) ||
            !strstr(e.text, "t.ini"))
            fail_msg("wanted '%s', got '%s'", bad[i].says, e.text);
    }
}

static void test_catalogue_no_memory(void **st)
{
    (void)st;
    for (long k = 1;; k++) {
        struct srv_catalogue *c = NULL;
        struct err e = {0};
        mem_fail_after(k, true);
        int rc = srv_catalogue_parse(&c, "[a]\n" ROW "source = pypi:a{1..9}==1:x\n", "t", &e);
        mem_fail_after(0, false);
        srv_catalogue_free(c);
        if (rc == 0) {
            assert_true(k > 2);
            break;
        }
        assert_int_equal(e.code, rc);
    }
}

/* The catalogue that is compiled in: every row whole, the default model there. */
static void test_built_in(void **st)
{
    (void)st;
    struct srv_catalogue *c = NULL;
    struct err e = {0};
    unsetenv("STEPD_CATALOGUE");
    if (srv_catalogue_load(&c, &e))
        fail_msg("%s", e.text);
    const struct srv_model_row *r = srv_catalogue_find(c, "smollm2-135m");
    assert_non_null(r);
    assert_int_equal(r->size, 98362432);
    assert_string_equal(r->licence, "Apache-2.0");
    assert_int_equal(srv_catalogue_find(c, "gemma3-270m")->n_source, 4);
    assert_int_equal(srv_catalogue_find(c, "qwen2.5-coder-1.5b")->n_source, 22);
    srv_catalogue_free(c);
    setenv("STEPD_CATALOGUE", "/nonexistent/models.ini", 1);
    assert_int_equal(srv_catalogue_load(&c, &e), ERR_NOTFOUND);
    unsetenv("STEPD_CATALOGUE");
}

static void touch(const char *path)
{
    FILE *fp = fopen(path, "we");
    assert_non_null(fp);
    fclose(fp);
}

static void test_resolve(void **st)
{
    (void)st;
    char dir[] = "/tmp/stepd-models-XXXXXX", path[PATH_MAX], want[PATH_MAX];
    struct err e;
    assert_non_null(mkdtemp(dir));
    unsetenv("STEPD_CATALOGUE");
    assert_int_equal(srv_model_resolve(dir, NULL, path, sizeof path, &e), 0);
    assert_string_equal(path, dir);
    assert_int_equal(srv_model_resolve("smollm2-135m", dir, path, sizeof path, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "stepd pull smollm2-135m"));
    snprintf(want, sizeof want, "%s/smollm2-135m-instruct-q4_1.gguf", dir);
    touch(want);
    assert_int_equal(srv_model_resolve("smollm2-135m", dir, path, sizeof path, &e), 0);
    assert_string_equal(path, want);
    snprintf(want, sizeof want, "%s/all-minilm-l6-v2", dir); /* a folder: its file is a tar */
    assert_int_equal(srv_model_resolve("all-minilm-l6-v2", dir, path, sizeof path, &e),
                     ERR_NOTFOUND);
    mkdir(want, 0700);
    assert_int_equal(srv_model_resolve("all-minilm-l6-v2", dir, path, sizeof path, &e), 0);
    assert_string_equal(path, want);
    rmdir(want);
    snprintf(want, sizeof want, "%s/smollm2-135m-instruct-q4_1.gguf", dir);
    setenv("STEPD_MODELS", dir, 1);
    assert_int_equal(srv_model_resolve("smollm2-135m", NULL, path, sizeof path, &e), 0);
    unsetenv("STEPD_MODELS");
    assert_int_equal(
        srv_model_resolve("smollm2-135m-instruct-q4_1.gguf", dir, path, sizeof path, &e), 0);
    unlink(want);
    snprintf(want, sizeof want, "%s/o", dir);
    mkdir(want, 0700);
    snprintf(want, sizeof want, "%s/o/r", dir);
    mkdir(want, 0700);
    assert_int_equal(srv_model_resolve("hf:o/r", dir, path, sizeof path, &e), 0);
    assert_string_equal(path, want);
    assert_int_equal(srv_model_resolve("hf:o/r:x.gguf", dir, path, sizeof path, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "stepd pull hf:o/r:x.gguf"));
    snprintf(want, sizeof want, "%s/o/r/x.gguf", dir);
    touch(want);
    assert_int_equal(srv_model_resolve("hf:o/r:x.gguf", dir, path, sizeof path, &e), 0);
    assert_string_equal(path, want);
    assert_int_equal(srv_model_resolve("o/r/y.gguf", dir, path, sizeof path, &e), ERR_NOTFOUND);
    assert_int_equal(srv_model_resolve("nosuch", dir, path, sizeof path, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "known: smollm2-135m"));
    assert_int_equal(srv_model_resolve("", dir, path, sizeof path, &e), ERR_INVAL);
    assert_int_equal(srv_model_resolve(dir, dir, path, 5, &e), ERR_LIMIT);
    unlink(want);
    snprintf(path, sizeof path, "%s/o/r", dir);
    rmdir(path);
    snprintf(path, sizeof path, "%s/o", dir);
    rmdir(path);
    rmdir(dir);
}

static int pick(const char *json, struct arena *mem, struct api_hub_files *f)
{
    struct err e;
    return api_hub_pick(json, strlen(json), mem, f, &e);
}

static void test_hub_pick(void **st)
{
    (void)st;
    struct arena mem = {0};
    struct api_hub_files f;
    assert_int_equal(pick("{", &mem, &f), ERR_PARSE);
    assert_int_equal(pick("{\"siblings\": 3}", &mem, &f), ERR_PARSE);
    assert_int_equal(pick("[]", &mem, &f), ERR_PARSE);
    assert_int_equal(pick("{\"siblings\": [3, {}, {\"rfilename\": 4}]}", &mem, &f), ERR_NOTFOUND);
    assert_int_equal(
        pick("{\"siblings\": [{\"rfilename\": \"../x.gguf\"}, {\"rfilename\": \"/x.gguf\"},"
             "{\"rfilename\": \"a/.x.gguf\"}, {\"rfilename\": \"a\\nb.gguf\"},"
             "{\"rfilename\": \"m-00001-of-00002.gguf\"}]}",
             &mem, &f),
        ERR_NOTFOUND);
    assert_int_equal(pick("{\"sha\": \"../..\", \"siblings\": [{\"rfilename\": \"x-F16.gguf\"},"
                          "{\"rfilename\": \"x-Q8_0.gguf\"}, {\"rfilename\": \"x-IQ2.gguf\"}]}",
                          &mem, &f),
                     0);
    assert_int_equal(f.n, 1);
    assert_int_equal(f.n_gguf, 3);
    assert_string_equal(f.name[0], "x-Q8_0.gguf");
    assert_string_equal(f.revision, "main");
    for (long k = 1; k < 4; k++) {
        struct arena m = {0};
        mem_fail_after(k, true);
        int rc = pick("{\"siblings\": [{\"rfilename\": \"x.gguf\"}]}", &m, &f);
        mem_fail_after(0, false);
        assert_true(rc == ERR_NOMEM || (k > 1 && rc == 0));
        arena_free(&m);
    }
    arena_free(&mem);
}

static void test_origin(void **st)
{
    (void)st;
    assert_true(pull__same_origin("https://a.b/x", "https://A.b:443/y?z"));
    assert_false(pull__same_origin("https://a.b/x", "http://a.b/x"));
    assert_false(pull__same_origin("https://a.b/x", "https://a.b:444/x"));
    assert_false(pull__same_origin("https://a.b/x", "https://a.b.c/x"));
    assert_false(pull__same_origin("https://a.b/x", "https://c@a.bc/x"));
    assert_true(pull__same_origin("https://a.b/x", "https://u:p@a.b/x"));
    assert_false(pull__same_origin("https://a.b/x", "not a url"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),   cmocka_unit_test(test_catalogue_faults),
        cmocka_unit_test(test_built_in), cmocka_unit_test(test_catalogue_no_memory),
        cmocka_unit_test(test_resolve),  cmocka_unit_test(test_hub_pick),
        cmocka_unit_test(test_origin),
    };
    return cmocka_run_group_tests_name("catalogue", tests, NULL, NULL);
}
