/* Tokenizers against published and reference ids: every kind and reader, encode and decode, and the
 * streaming detokeniser against tok_decode. Data: tests/data/tokenizers (SOURCES there). */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/load/gguf.h"
#include "engine/text/detok.h"
#include "engine/text/tokenizer.h"
#include "tests/unxz.h"

#define DIR "tests/data/tokenizers/"
#define SEP "\n__ggml_vocab_test__\n"

struct opened {
    struct gguf *g;
    struct tokenizer *t;
    char path[128];
};

/* The reader follows from the name. */
static void open_any(struct opened *o, const char *name)
{
    struct err e = {0};
    char src[160];
    *o = (struct opened){0};
    snprintf(src, sizeof src, DIR "%s.xz", name);
    assert_int_equal(unxz_temp(src, o->path, sizeof o->path), 0);
    int rc;
    if (strstr(name, ".gguf")) {
        rc = gguf_open(&o->g, o->path, &e);
        rc = rc ? rc : tok_open_gguf(&o->t, o->g, &e);
    } else if (strstr(name, "tekken")) {
        rc = tok_open_tekken(&o->t, o->path, &e);
    } else if (strstr(name, ".model")) {
        rc = tok_open_spm(&o->t, o->path, &e);
    } else if (strstr(name, "clip")) {
        rc = tok_open_clip(&o->t, o->path, &e);
    } else {
        rc = tok_open_hf(&o->t, o->path, &e);
    }
    if (rc != 0)
        fail_msg("%s: %s", name, e.text);
}

static void close_any(struct opened *o)
{
    tok_close(o->t);
    gguf_close(o->g);
    unlink(o->path);
}

static void check_ids(const char *what, size_t row, const struct tok_ids *got, const int32_t *want,
                      size_t n)
{
    for (size_t i = 0; i < n && i < got->n; i++)
        if (got->id[i] != want[i])
            fail_msg("%s text %zu: id %zu is %d, not %d", what, row, i, got->id[i], want[i]);
    if (got->n != n)
        fail_msg("%s text %zu: %zu ids, not %zu", what, row, got->n, n);
}

/* Pieces of the streaming detokeniser are whole characters and add up to tok_decode. */
static void check_stream(const struct tokenizer *t, const int32_t *ids, size_t n, bool special)
{
    struct buf all = {0}, sum = {0}, one = {0};
    struct detok d;
    assert_int_equal(tok_decode(t, ids, n, special, &all), 0);
    detok_init(&d, t, special);
    for (size_t i = 0; i < n; i++) {
        detok_push(&d, ids[i], &one);
        assert_true(utf8_valid(buf_cstr(&one), one.len));
        buf_add(&sum, buf_cstr(&one), one.len);
        buf_clear(&one);
    }
    detok_flush(&d, &sum);
    assert_int_equal(sum.len, all.len);
    assert_memory_equal(buf_cstr(&sum), buf_cstr(&all), all.len);
    buf_free(&all);
    buf_free(&sum);
    buf_free(&one);
}

/* ---- llama.cpp's texts and ids ---- */

static size_t parse_line(char **line, int32_t *ids, size_t cap)
{
    size_t n = 0;
    char *p = *line;
    for (;;) {
        while (*p == ' ')
            p++;
        if (*p == '\n' || *p == 0)
            break;
        assert_true(n < cap);
        ids[n++] = (int32_t)strtol(p, &p, 10);
    }
    *line = *p ? p + 1 : p;
    return n;
}

static void check_vocab(const char *name)
{
    char file[160];
    size_t n_in, n_out, row = 0;
    struct opened o;
    snprintf(file, sizeof file, "ggml-vocab-%s.gguf", name);
    open_any(&o, file);
    snprintf(file, sizeof file, DIR "ggml-vocab-%s.gguf.inp", name);
    char *in = unxz_read(file, &n_in);
    snprintf(file, sizeof file, DIR "ggml-vocab-%s.gguf.out", name);
    char *out = unxz_read(file, &n_out), *line = out;
    assert_non_null(in);
    assert_non_null(out);
    for (char *p = in; p; row++) {
        static int32_t want[4096];
        char *end = strstr(p, SEP);
        size_t len = end ? (size_t)(end - p) : (size_t)(in + n_in - p);
        size_t n = parse_line(&line, want, 4096);
        struct tok_ids ids = {0};
        assert_int_equal(tok_encode(o.t, p, len, TOK_SPECIAL, &ids), 0);
        check_ids(name, row, &ids, want, n);
        check_stream(o.t, ids.id, ids.n, true);
        tok_ids_free(&ids);
        p = end ? end + sizeof SEP - 1 : NULL;
        if (*line == 0)
            break;
    }
    assert_true(row >= 40);
    free(in);
    free(out);
    close_any(&o);
}

static void test_ggml_vocab(void **state)
{
    (void)state;
    static const char *const names[] = {
        "bert-bge", "deepseek-coder", "deepseek-llm", "falcon",    "gemma-4",
        "gpt-2",    "llama-bpe",      "llama-spm",    "mpt",       "phi-3",
        "qwen2",    "qwen35",         "refact",       "starcoder",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check_vocab(names[i]);
}

/* ---- ids and decodings of the reference libraries ---- */

struct golden {
    const char *name, *file;
    unsigned flags;
    bool special; /* the reference decoded with special tokens shown */
    int32_t pad;  /* padding that the reference added, -1 = none */
    size_t cut;   /* ... and its truncation; 0 = none */
    int skip_row; /* row not compared, -1 = none */
};

static const struct golden goldens[] = {
    {"deepseek_v3", "deepseek_v3.tokenizer.json", TOK_SPECIAL, true, -1, 0, -1},
    {"gptoss", "gptoss.tokenizer.json", TOK_SPECIAL, true, -1, 0, -1},
    {"qwen3", "qwen3.tokenizer.json", TOK_SPECIAL, true, -1, 0, -1},
    {"whisper-multilingual", "whisper-multilingual.tokenizer.json", TOK_SPECIAL, true, -1, 0, -1},
    {"bert-minilm", "bert-minilm.tokenizer.json", TOK_SPECIAL, true, 0, 128, -1},
    {"bert-minilm-special", "bert-minilm.tokenizer.json", TOK_SPECIAL | TOK_BOS_EOS, false, 0, 128,
     -1},
    {"mistral-tekken-240911", "tekken_240911.json", 0, false, -1, 0, -1},
    {"mistral-spm-v3", "mistral-spm-v3.model", 0, false, -1, 0, -1},
    {"clip", "clip-merges.txt", TOK_SPECIAL | TOK_BOS_EOS, true, -1, 0, -1},
    /* Row 70 holds "<s></s>": the reference's unigram takes control tokens from plain text, ours does
     * not (test_control_is_text). */
    {"xlmr-unigram-nomic-bert-moe", "ggml-vocab-nomic-bert-moe.gguf", 0, true, -1, 0, 70},
    {"tiny-spm-unigram", "tiny-spm-unigram.model", 0, false, -1, 0, -1},
    {"tiny-spm-bpe-bytefallback", "tiny-spm-bpe-bytefallback.model", 0, false, -1, 0, -1},
};

static json_t *load_json(const char *name)
{
    char path[160];
    size_t n;
    snprintf(path, sizeof path, DIR "%s.json.xz", name);
    char *p = unxz_read(path, &n);
    assert_non_null(p);
    json_t *j = json_loadb(p, n, JSON_ALLOW_NUL, NULL);
    assert_non_null(j);
    free(p);
    return j;
}

static void check_row(const struct golden *g, const struct tokenizer *t, size_t row,
                      const json_t *text, const json_t *want)
{
    static int32_t ids[4096];
    const json_t *list = json_object_get(want, "ids"), *dec = json_object_get(want, "decoded");
    size_t all = json_array_size(list), n = all;
    assert_true(n <= 4096);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    while (g->pad >= 0 && n && ids[n - 1] == g->pad)
        n--;
    struct tok_ids got = {0};
    assert_int_equal(
        tok_encode(t, json_string_value(text), json_string_length(text), g->flags, &got), 0);
    if (g->cut && got.n > g->cut) { /* truncation keeps what the template puts at the end */
        if (g->flags & TOK_BOS_EOS)
            got.id[g->cut - 1] = got.id[got.n - 1];
        got.n = g->cut;
    }
    check_ids(g->name, row, &got, ids, n);
    tok_ids_free(&got);
    struct buf b = {0};
    assert_int_equal(tok_decode(t, ids, all, g->special, &b), 0);
    if (b.len != json_string_length(dec) ||
        memcmp(buf_cstr(&b), json_string_value(dec), b.len) != 0)
        fail_msg("%s text %zu decodes to '%s', not '%s'", g->name, row, buf_cstr(&b),
                 json_string_value(dec));
    buf_free(&b);
    check_stream(t, ids, all, g->special);
}

static void check_random(const struct tokenizer *t)
{
    uint32_t x = 12345;
    for (int round = 0; round < 50; round++) {
        int32_t ids[64];
        for (int i = 0; i < 64; i++) {
            x = x * 1664525u + 1013904223u;
            ids[i] = (int32_t)(x % ((uint32_t)tok_n_vocab(t) + 3)) - 1; /* some outside */
        }
        check_stream(t, ids, 64, round & 1);
    }
}

static void test_goldens(void **state)
{
    (void)state;
    json_t *shared = load_json("texts");
    for (size_t k = 0; k < sizeof goldens / sizeof goldens[0]; k++) {
        const struct golden *g = &goldens[k];
        char name[80];
        struct opened o;
        snprintf(name, sizeof name, "golden-%s", g->name);
        json_t *j = load_json(name), *rows = json_object_get(j, "rows");
        json_t *texts = json_object_get(j, "texts");
        if (!json_is_array(texts))
            texts = shared;
        open_any(&o, g->file);
        assert_true(json_array_size(rows) >= 20);
        assert_int_equal(json_array_size(rows), json_array_size(texts));
        for (size_t i = 0; i < json_array_size(rows); i++)
            if ((int)i != g->skip_row)
                check_row(g, o.t, i, json_array_get(texts, i), json_array_get(rows, i));
        check_random(o.t);
        close_any(&o);
        json_decref(j);
    }
    json_decref(shared);
}

/* Without TOK_SPECIAL no control token comes out of text, under any kind. */
static void test_control_is_text(void **state)
{
    (void)state;
    static const char *const files[] = {"ggml-vocab-nomic-bert-moe.gguf",
                                        "ggml-vocab-llama-spm.gguf", "ggml-vocab-qwen2.gguf",
                                        "mistral-spm-v3.model", "tekken_240911.json"};
    static const char text[] = "<s></s><|im_start|>[INST]<unk><|endoftext|>x";
    for (size_t k = 0; k < sizeof files / sizeof files[0]; k++) {
        struct opened o;
        struct tok_ids ids = {0};
        open_any(&o, files[k]);
        assert_int_equal(tok_encode(o.t, text, sizeof text - 1, 0, &ids), 0);
        for (size_t i = 0; i < ids.n; i++)
            assert_false(tok_is_control(o.t, ids.id[i]) && ids.id[i] != tok_unk(o.t));
        tok_ids_free(&ids);
        close_any(&o);
    }
}

static void test_facts(void **state)
{
    (void)state;
    struct opened o;
    int n;
    open_any(&o, "qwen3.tokenizer.json");
    assert_int_equal(tok_find(o.t, "<|im_start|>", 12), 151644);
    assert_true(tok_is_control(o.t, 151644));
    assert_false(tok_is_control(o.t, 151667)); /* <think> is visible */
    const int32_t *stop = tok_stop_ids(o.t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(stop[0], 151645);
    assert_int_equal(stop[1], 151643);
    assert_int_equal(tok_bytes(o.t, 151644, false).len, 0);
    assert_true(view_is(tok_bytes(o.t, 151644, true), "<|im_start|>"));
    assert_int_equal(tok_bytes(o.t, -1, true).len, 0);
    assert_int_equal(tok_entry(o.t, 1 << 30).len, 0);
    close_any(&o);
    open_any(&o, "gptoss.tokenizer.json"); /* <|end|> closes a message, not the answer */
    stop = tok_stop_ids(o.t, &n);
    for (int i = 0; i < n; i++)
        assert_int_not_equal(stop[i], 200007);
    assert_true(n >= 2);
    close_any(&o);
    open_any(&o, "ggml-vocab-llama-spm.gguf");
    assert_int_equal(tok_bos(o.t), 1);
    assert_true(tok_adds_bos(o.t));
    struct tok_ids ids = {0};
    assert_int_equal(tok_encode(o.t, "Hello", 5, TOK_BOS_EOS, &ids), 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.id[0], 1);
    tok_ids_free(&ids);
    close_any(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ggml_vocab),
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_control_is_text),
        cmocka_unit_test(test_facts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
