/* Chat templates come with model files: any text compiles or is refused, and renders within its limits. */
#include "tests/fuzz/fuzz.h"

#include "api/template.h"

const char *const fuzz_seeds[] = {"tests/data/fuzz/*.jinja", NULL};

static json_t *conversation(void)
{
    static const char text[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \" be \\u00e9 \"}, {\"role\": "
        "\"user\", "
        "\"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
        "[{\"function\": "
        "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, true]}}}]}, {\"role\": \"tool\", "
        "\"content\": "
        "[{\"type\": \"text\", \"text\": \"7\"}]}], \"tools\": [{\"type\": \"function\"}], "
        "\"bos_token\": \"<s>\", \"add_generation_prompt\": true}";
    json_t *v = json_loads(text, 0, NULL);
    CHECK(v);
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct api_template_limits lim = {.max_steps = 5000, .max_output = 1 << 16};
    struct api_template *t = NULL;
    struct err e = {0};
    struct tm now = {.tm_year = 126, .tm_mday = 1};
    struct buf out = {0};
    if (n > 1 << 14)
        return 0;
    int rc = api_template_compile(&t, (const char *)data, n, &e);
    CHECK(rc == 0 ? t != NULL : t == NULL && e.code == rc && e.text[0]);
    if (rc == 0) {
        json_t *vars = conversation();
        rc = api_template_render(t, vars, &now, &lim, &out, &e);
        CHECK(rc == 0 || (e.code == rc && e.text[0]));
        CHECK(out.len <= lim.max_output);
        json_decref(vars);
    }
    buf_free(&out);
    api_template_free(t);
    return 0;
}
