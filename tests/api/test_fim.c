/* Holes in a text: which tokens mark them, and the prompts that are made of them. Vocabularies of real models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api_impl.h"
#include "engine/base/mem.h"
#include "tests/api_run.h"
#include "tests/unxz.h"

#define DATA "tests/data/tokenizers/"
#define COMP "/v1/completions"

/* ---- models ---- */

struct key {
    const char *name;
    uint32_t value;
};

static void put(FILE *f, uint64_t v, size_t n)
{
    assert_int_equal(fwrite(&v, n, 1, f), 1);
}

/* A copy of a vocabulary (GGUF, no tensors) with these keys ahead of its own. */
static void with_keys(const char *src, const struct key *key, size_t n_key, char *path)
{
    size_t n;
    char *all = unxz_read(src, &n);
    assert_true(all && n > 24);
    uint64_t n_kv;
    memcpy(&n_kv, all + 16, 8);
    n_kv += n_key;
    memcpy(all + 16, &n_kv, 8);
    snprintf(path, 64, "/tmp/stepd-fim-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    assert_int_equal(fwrite(all, 1, 24, f), 24);
    for (size_t i = 0; i < n_key; i++) {
        put(f, strlen(key[i].name), 8);
        assert_int_equal(fwrite(key[i].name, 1, strlen(key[i].name), f), strlen(key[i].name));
        put(f, 4, 4); /* u32 */
        put(f, key[i].value, 4);
    }
    assert_int_equal(fwrite(all + 24, 1, n - 24, f), n - 24);
    fclose(f);
    free(all);
}

static struct api *open_keys(const char *src, const struct key *key, size_t n_key, struct err *e)
{
    struct api *a = NULL;
    struct api_opts o = {0};
    char path[64];
    with_keys(src, key, n_key, path);
    assert_int_equal(api_open(&a, &o, e), 0);
    int rc = api_model_add(a, "m", NULL, path, NULL, e);
    unlink(path);
    if (rc < 0) {
        api_close(a);
        return NULL;
    }
    struct eng_info info = {.n_ctx = RUN_CTX, .n_vocab = tok_n_vocab(a->model[0].text->tok)};
    api_model_ready(a, 0, &info);
    return a;
}

/* ---- prompts ---- */

/* The tokens of a prompt, markers by what they mean and every text in brackets: "PRE [def][ f] SUF ". */
static char *shown(const struct api *a, const struct api_call *c)
{
    const struct tokenizer *t = a->model[0].text->tok;
    struct buf b = {0};
    for (int32_t i = 0; i < c->req[0]->n_prompt; i++) {
        int32_t id = c->req[0]->prompt[i];
        struct view v = tok_bytes(t, id, false), e = tok_entry(t, id);
        const struct text_fim *m = &a->model[0].text->fim;
        const char *mark = id == m->prefix   ? "PRE"
                           : id == m->suffix ? "SUF"
                           : id == m->middle ? "MID"
                           : id == m->repo   ? "REPO"
                           : id == m->file   ? "FILE"
                                             : NULL;
        if (mark)
            buf_fmt(&b, " %s ", mark);
        else if (tok_is_control(t, id))
            buf_add(&b, e.p, e.len);
        else
            buf_fmt(&b, "[%.*s]", (int)v.len, v.p);
    }
    char *s = strdup(buf_cstr(&b));
    buf_free(&b);
    return s;
}

static void expect(struct api *a, const char *path, const char *body, const char *want)
{
    struct api_call c;
    api_run_start(a, &c, path, body);
    if (c.done)
        fail_msg("%s: %s", body, buf_cstr(&c.out));
    char *got = shown(a, &c);
    assert_string_equal(got, want);
    free(got);
    api_call_free(&c);
}

static void refused(struct api *a, const char *path, const char *body, const char *param,
                    const char *code)
{
    struct api_call c;
    api_run_start(a, &c, path, body);
    api_run_error(&c, 400, param, code);
    api_call_free(&c);
}

static const char files[] =
    "{\"model\":\"\",\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"prompt\":\"c\","
    "\"input_extra\":[{\"filename\":\"x.c\",\"text\":\"int\"},{\"text\":\"f\"}]}";

static void test_starcoder(void **state)
{
    (void)state;
    struct err e;
    struct api *a = open_keys(DATA "ggml-vocab-starcoder.gguf.xz", NULL, 0, &e);
    assert_non_null(a);
    expect(a, COMP, "{\"model\":\"m\",\"prompt\":\"def f\",\"suffix\":\"x\"}",
           " PRE [de][f][ f] SUF [x] MID ");
    /* markers in texts are texts */
    expect(a, COMP, "{\"model\":\"m\",\"prompt\":\"a\",\"suffix\":\" <fim_middle>\"}",
           " PRE [a] SUF [ <][f][im][_][m][id][d][le][>] MID ");
    expect(a, COMP, "{\"model\":\"m\",\"prompt\":[40,41],\"suffix\":\"x\"}",
           " PRE [#][$] SUF [x] MID ");
    expect(a, COMP, "{\"model\":\"m\",\"prompt\":\"a\",\"suffix\":\"\"}", "[a]");
    expect(a, "/infill", "{\"input_prefix\":\"def f\",\"input_suffix\":\"x\"}",
           " PRE [de][f][ f] SUF [x] MID ");
    expect(a, "/infill", files,
           " REPO [re][p][o][s][it][or][y][\n] FILE [x][.][c][\n][int] FILE [fi][le][\n][f] FILE "
           "[fi][l][en][ame][\n] PRE [a] SUF [b] MID [c]");
    api_close(a);
}

static void test_deepseek(void **state)
{
    (void)state;
    struct err e;
    struct api *a = open_keys(DATA "ggml-vocab-deepseek-coder.gguf.xz", NULL, 0, &e);
    assert_non_null(a);
    expect(a, COMP, "{\"model\":\"m\",\"prompt\":\"def f\",\"suffix\":\"return x\"}",
           "<｜begin▁of▁sentence｜> PRE [def][ f] SUF [return][ x] MID ");
    api_close(a);
}

/* Mistral's own file: the suffix comes first, and nothing marks the hole itself. */
static void test_codestral(void **state)
{
    (void)state;
    char dir[] = "/tmp/stepd-fim-XXXXXX", path[64], config[64];
    struct api_opts o = {0};
    struct api *a = NULL;
    struct err e;
    size_t n;
    char *all = unxz_read(DATA "tekken_240911.json.xz", &n);
    assert_true(all && mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tekken.json", dir);
    snprintf(config, sizeof config, "%s/config.json", dir);
    FILE *f = fopen(path, "wb"), *k = fopen(config, "wb");
    assert_int_equal(fwrite(all, 1, n, f), n);
    fputs("{\"model_type\":\"mistral\"}", k);
    fclose(f);
    fclose(k);
    free(all);
    assert_int_equal(api_open(&a, &o, &e), 0);
    int rc = api_model_add(a, "m", NULL, dir, NULL, &e);
    remove(path);
    remove(config);
    remove(dir);
    if (rc < 0)
        fail_msg("%s", e.text);
    struct eng_info info = {.n_ctx = RUN_CTX, .n_vocab = tok_n_vocab(a->model[0].text->tok)};
    api_model_ready(a, 0, &info);
    expect(a, COMP, "{\"model\":\"m\",\"prompt\":\"def f\",\"suffix\":\"return x\"}",
           "<s> SUF [re][t][ur][n][ x] PRE [de][f][ f]");
    api_close(a);
}

/* A vocabulary that puts a space before each text: not behind the hole. */
static void test_keys(void **state)
{
    (void)state;
    static const struct key old[] = {{"tokenizer.ggml.prefix_token_id", 3100},
                                     {"tokenizer.ggml.suffix_token_id", 3101},
                                     {"tokenizer.ggml.middle_token_id", 3102}};
    static const struct key now[] = {
        {"tokenizer.ggml.fim_pre_token_id", 3100}, {"tokenizer.ggml.fim_suf_token_id", 3101},
        {"tokenizer.ggml.fim_mid_token_id", 3102}, {"tokenizer.ggml.fim_pad_token_id", 3103},
        {"tokenizer.ggml.fim_rep_token_id", 3104}, {"tokenizer.ggml.fim_sep_token_id", 3105}};
    static const struct key half[] = {{"tokenizer.ggml.fim_pre_token_id", 3100}};
    static const struct key wrong[] = {{"tokenizer.ggml.fim_pre_token_id", 5000000}};
    static const char *const src = DATA "ggml-vocab-llama-spm.gguf.xz";
    struct err e;
    for (int i = 0; i < 2; i++) {
        struct api *a = open_keys(src, i ? now : old, i ? sizeof now / sizeof *now : 3, &e);
        if (!a)
            fail_msg("%s", e.text);
        expect(a, COMP, "{\"model\":\"m\",\"prompt\":\"def f\",\"suffix\":\"return x\"}",
               "<s> PRE [ def][ f] SUF [return][ x] MID ");
        expect(a, COMP, "{\"model\":\"m\",\"prompt\":\"def f\",\"suffix\":\" x\"}",
               "<s> PRE [ def][ f] SUF [ x] MID ");
        expect(a, COMP, "{\"model\":\"m\",\"prompt\":[1,822],\"suffix\":\"\\n\"}",
               "<s> PRE [ def] SUF [\n] MID ");
        expect(a, "/infill", files,
               i ? "<s> REPO [ repository][\n] FILE [ x][.][c][\n][int] FILE [ file][\n][f] FILE "
                   "[ filename][\n] PRE [ a] SUF [b] MID [c]"
                 : "<s>[ int][ f] PRE [ a] SUF [b] MID [c]");
        api_close(a);
    }
    struct api *a = open_keys(src, half, 1, &e);
    assert_non_null(a);
    refused(a, COMP, "{\"model\":\"m\",\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix",
            "unsupported_value");
    refused(a, "/infill", "{\"input_prefix\":\"a\"}", "input_prefix", "unsupported_value");
    api_close(a);
    assert_null(open_keys(src, wrong, 1, &e));
    assert_non_null(strstr(e.text, "fim_pre_token_id: 5000000 is not in the vocabulary"));
}

/* ---- answers and errors ---- */

static bool stops_at(const struct request *r, int32_t id)
{
    for (int i = 0; i < r->n_stop_id; i++)
        if (r->stop_id[i] == id)
            return true;
    return false;
}

static void test_infill(void **state)
{
    (void)state;
    struct err e;
    struct api *a = open_keys(DATA "ggml-vocab-starcoder.gguf.xz", NULL, 0, &e);
    const struct text_fim *f = &a->model[0].text->fim;
    int32_t x = tok_find(a->model[0].text->tok, "x", 1);
    assert_true(x >= 0);
    for (int why = 0; why < 3; why++) {
        struct api_call c;
        api_run_start(a, &c, "/infill",
                      "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"n_predict\":3,\"stop\":"
                      "[\"xxx\"],\"cache_prompt\":true}");
        assert_int_equal(c.req[0]->max_tokens, 3);
        assert_true(stops_at(c.req[0], f->pad) && stops_at(c.req[0], f->file) &&
                    stops_at(c.req[0], f->prefix));
        for (int i = 0; i < (why == 2 ? 3 : 2); i++)
            api_run_token(&c, 0, 0, x);
        api_run_finish(&c, 0, 0, why ? FINISH_STOP : FINISH_LENGTH);
        api_run_done(&c, 0, 1);
        json_t *v = api_run_answer(&c);
        assert_string_equal(api_run_str(v, "content"), why == 2 ? "" : "xx");
        assert_string_equal(api_run_str(v, "stop_type"), why == 0   ? "limit"
                                                         : why == 1 ? "eos"
                                                                    : "word");
        assert_int_equal(api_run_int(v, "tokens_evaluated"), 5);
        assert_int_equal(api_run_int(v, "tokens_predicted"), why == 2 ? 3 : 2);
        assert_int_equal(api_run_int(v, "tokens_cached"), 1);
        json_decref(v);
        api_call_free(&c);
    }
    struct api_call c;
    api_run_start(a, &c, "/infill", "{\"input_prefix\":\"a\",\"stream\":true}");
    api_run_token(&c, 0, 0, x);
    api_run_finish(&c, 0, 0, FINISH_STOP);
    api_run_done(&c, 0, 0);
    const char *s = buf_cstr(&c.out);
    assert_int_equal(strncmp(s, "data: {\"index\":0,\"content\":\"x\",", 31), 0);
    assert_non_null(strstr(s, "\"stop\":true,\"stop_type\":\"eos\",\"tokens_predicted\":1"));
    assert_true(c.done && s[c.out.len - 1] == '\n');
    api_call_free(&c);
    api_close(a);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *path, *fields, *param, *code;
    } bad[] = {
        {COMP, "\"prompt\":\"a\",\"suffix\":5", "suffix", "invalid_type"},
        {COMP, "\"prompt\":\"a\",\"suffix\":\"b\",\"echo\":true", "echo", "unsupported_value"},
        {"/infill", "\"input_prefix\":[]", "input_prefix", "invalid_type"},
        {"/infill", "\"input_suffix\":1", "input_suffix", "invalid_type"},
        {"/infill", "\"input_extra\":{}", "input_extra", "invalid_type"},
        {"/infill", "\"input_extra\":[1]", "input_extra[0]", "invalid_type"},
        {"/infill", "\"input_extra\":[{\"filename\":\"x\"}]", "input_extra[0].text",
         "invalid_type"},
        {"/infill", "\"input_extra\":[{\"text\":\"x\",\"filename\":1}]", "input_extra[0].filename",
         "invalid_type"},
        {"/infill", "\"n_predict\":-2", "n_predict", NULL},
        {"/infill", "\"n\":2", "n", "unsupported_value"},
    };
    struct err e;
    struct api *a = open_keys(DATA "ggml-vocab-starcoder.gguf.xz", NULL, 0, &e);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"model\":\"m\",%s}", bad[i].fields);
        refused(a, bad[i].path, body, bad[i].param, bad[i].code);
    }
    api_close(a);
}

/* Each allocation fails once: an answer, or an error of the server. */
static void test_no_memory(void **state)
{
    (void)state;
    struct err e;
    struct api *a = open_keys(DATA "ggml-vocab-llama-spm.gguf.xz",
                              (const struct key[]){{"tokenizer.ggml.fim_pre_token_id", 3100},
                                                   {"tokenizer.ggml.fim_suf_token_id", 3101}},
                              2, &e);
    bool again = true;
    for (int k = 1; again && k < 500; k++) {
        struct api_call c;
        mem_fail_after(k, true);
        api_run_start(a, &c, "/infill", files);
        again = c.done;
        mem_fail_after(0, false);
        if (again)
            assert_int_equal(c.status, 503);
        api_call_free(&c);
    }
    assert_false(again);
    api_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_starcoder), cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_codestral), cmocka_unit_test(test_keys),
        cmocka_unit_test(test_infill),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
