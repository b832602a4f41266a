/* Tokenizers under bad input: bytes that are no text, very long runs, damaged files, no memory; and
 * text_model_open of both kinds of model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/load/gguf.h"
#include "engine/text/detok.h"
#include "engine/text/text_model.h"
#include "tests/unxz.h"

#define DIR "tests/data/tokenizers/"

static char tmp_dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(tmp_dir, sizeof tmp_dir, "/tmp/stepd-tok-XXXXXX");
    return mkdtemp(tmp_dir) ? 0 : -1;
}

static const char *in_dir(const char *name)
{
    static char path[4][160];
    static int k;
    k = (k + 1) & 3;
    snprintf(path[k], sizeof path[k], "%s/%s", tmp_dir, name);
    return path[k];
}

static const char *put(const char *name, const void *p, size_t n)
{
    const char *path = in_dir(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static const char *put_text(const char *name, const char *s)
{
    return put(name, s, strlen(s));
}

static const char *unpack(const char *src, const char *name)
{
    char path[160];
    size_t n;
    snprintf(path, sizeof path, DIR "%s", src);
    char *p = unxz_read(path, &n);
    assert_non_null(p);
    const char *out = put(name, p, n);
    free(p);
    return out;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {
        "m.gguf",  "tokenizer.json",      "tokenizer_config.json", "x.json",    "config.json",
        "m.model", "chat_template.jinja", "w.safetensors",         "merges.txt"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(in_dir(names[i]));
    return rmdir(tmp_dir);
}

static struct text_model *open_model(const char *src)
{
    struct text_model *m = NULL;
    struct err e = {0};
    if (text_model_open(&m, unpack(src, "m.gguf"), &e) != 0)
        fail_msg("%s: %s", src, e.text);
    return m;
}

/* ---- bytes ---- */

/* Byte-level BPE can say every byte: decode(encode(x)) == x, read as bytes. */
static void test_bytes_round_trip(void **state)
{
    (void)state;
    struct text_model *m = open_model("ggml-vocab-gpt-2.gguf.xz");
    uint32_t x = 1;
    for (int round = 0; round < 400; round++) {
        char text[300];
        size_t n = 1 + (x >> 8) % sizeof text;
        for (size_t i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            text[i] =
                round & 1 ? (char)(x >> 24) : "ab \xc3\xa9\xf0\x9f\x98\x80\0\xff"[(x >> 24) % 12];
        }
        struct tok_ids ids = {0};
        struct buf b = {0};
        assert_int_equal(tok_encode(m->tok, text, n, TOK_SPECIAL, &ids), 0);
        for (size_t i = 0; i < ids.n; i++) {
            struct view v = tok_bytes(m->tok, ids.id[i], true);
            buf_add(&b, v.p, v.len);
        }
        assert_int_equal(b.len, n);
        assert_memory_equal(buf_cstr(&b), text, n);
        buf_clear(&b);
        assert_int_equal(tok_decode(m->tok, ids.id, ids.n, true, &b), 0);
        assert_true(utf8_valid(buf_cstr(&b), b.len));
        buf_free(&b);
        tok_ids_free(&ids);
    }
    text_model_close(m);
}

/* The streaming side holds half characters back and marks broken ones. */
static void test_stream_holds(void **state)
{
    (void)state;
    struct text_model *m = open_model("ggml-vocab-gpt-2.gguf.xz");
    int32_t f0 = tok_find(m->tok, "\xc3\xb0", 2); /* the letter of byte F0 */
    int32_t a = tok_find(m->tok, "a", 1);
    assert_true(f0 >= 0 && a >= 0);
    struct detok d;
    struct buf b = {0};
    detok_init(&d, m->tok, false);
    detok_push(&d, f0, &b);
    assert_int_equal(b.len, 0);
    detok_push(&d, a, &b);
    assert_string_equal(buf_cstr(&b), "\xef\xbf\xbd"
                                      "a");
    detok_push(&d, f0, &b);
    detok_flush(&d, &b);
    assert_string_equal(buf_cstr(&b), "\xef\xbf\xbd"
                                      "a\xef\xbf\xbd");
    buf_free(&b);
    text_model_close(m);
}

/* ---- length ---- */

static double encode_seconds(const struct tokenizer *t, const char *p, size_t n, size_t *n_ids)
{
    struct timespec a, b;
    struct tok_ids ids = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    assert_int_equal(tok_encode(t, p, n, TOK_SPECIAL, &ids), 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    *n_ids = ids.n;
    tok_ids_free(&ids);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* Runs that no pattern cuts: time may grow little more than the text does (quadratic would be 64x). */
static void check_linear(const char *src, size_t big)
{
    static const char *const units[] = {
        "a",   "<|", " ", "1", "A", "\n", "\xff", "!", "\xcc\x95\xcc\x96", "\xf0\x9f\x98\x80",
        "\n ", "x "};
    struct text_model *m = open_model(src);
    const size_t small = big / 8;
    char *p = malloc(big);
    assert_non_null(p);
    for (size_t k = 0; k < sizeof units / sizeof units[0]; k++) {
        size_t w = strlen(units[k]), n_small, n_big;
        for (size_t i = 0; i < big; i++)
            p[i] = units[k][i % w];
        double s = encode_seconds(m->tok, p, small / w * w, &n_small);
        double t = encode_seconds(m->tok, p, big / w * w, &n_big);
        if (t > 0.2 && t > 30 * s)
            fail_msg("%s, run of '%s': %.3f s for an eighth, %.3f s for %zu bytes", src, units[k],
                     s, t, big);
    }
    free(p);
    text_model_close(m);
}

static void test_long_runs(void **state)
{
    (void)state;
    check_linear("ggml-vocab-gpt-2.gguf.xz", 1 << 20);
    check_linear("ggml-vocab-llama-spm.gguf.xz", 1 << 18);
    check_linear("ggml-vocab-nomic-bert-moe.gguf.xz", 1 << 18);
    check_linear("ggml-vocab-bert-bge.gguf.xz", 1 << 18);
    check_linear("ggml-vocab-deepseek-llm.gguf.xz", 1 << 18);
}

/* ---- damaged files ---- */

static void expect_hf(const char *json, int code, const char *word)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    int rc = tok_open_hf(&t, put_text("x.json", json), &e);
    if (rc != code || !strstr(e.text, word))
        fail_msg("%.80s: got %d '%s', expected %d with '%s'", json, rc, e.text, code, word);
    assert_null(t);
}

static void test_bad_json(void **state)
{
    (void)state;
    expect_hf("{", ERR_PARSE, "line");
    expect_hf("{}", ERR_UNSUPPORTED, "model.type");
    expect_hf("{\"model\":{\"type\":\"BPE\"}}", ERR_INVAL, "model.vocab");
    expect_hf("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", ERR_INVAL, "model.vocab");
    expect_hf("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999}}}", ERR_INVAL,
              "model.vocab");
    expect_hf("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"}}}", ERR_INVAL, "model.vocab");
    expect_hf("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", ERR_INVAL, "model.merges");
    expect_hf("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[7]}}", ERR_PARSE,
              "merges[0]");
    expect_hf("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", ERR_INVAL,
              "merge 0");
    expect_hf("{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}}", ERR_UNSUPPORTED,
              "WordLevel");
    expect_hf("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", ERR_INVAL, "vocab[0]");
    expect_hf("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0.5]],\"unk_id\":5}}", ERR_INVAL,
              "unk_id");
    expect_hf(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":{\"type\":"
        "\"Nmt\"}}",
        ERR_UNSUPPORTED, "Nmt");
    expect_hf("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{"
              "\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&[b]]\"}}}",
              ERR_UNSUPPORTED, "&&");
    expect_hf("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{"
              "\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}}",
              ERR_UNSUPPORTED, "pattern");
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tok_open_hf(&t, "/nonexistent/tokenizer.json", &e), ERR_NOTFOUND);
}

/* A SentencePiece file cut anywhere is refused or opens; it is never read past its end. */
static void test_cut_model(void **state)
{
    (void)state;
    size_t n;
    char *p = unxz_read(DIR "tiny-spm-bpe-bytefallback.model.xz", &n);
    assert_non_null(p);
    int refused = 0;
    for (size_t k = 0; k < n; k += k < 200 ? 1 : 97) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        int rc = tok_open_spm(&t, put("m.model", p, k), &e);
        refused += rc != 0;
        assert_true(rc == 0 || e.text[0]);
        tok_close(t);
    }
    assert_true(refused > 100);
    free(p);
}

/* GGUF with three keys: model, pre, tokens. */
static size_t tiny_gguf(char *out, const char *model, const char *pre)
{
    const char *kv[2][2] = {{"tokenizer.ggml.model", model}, {"tokenizer.ggml.pre", pre}};
    const char *tokens = "tokenizer.ggml.tokens";
    char *p = out;
    uint64_t n;
    uint32_t u;
#define RAW(x, k)                                                                                  \
    do {                                                                                           \
        memcpy(p, (x), (k));                                                                       \
        p += (k);                                                                                  \
    } while (0)
    RAW("GGUF", 4);
    u = 3;
    RAW(&u, 4);
    n = 0;
    RAW(&n, 8);
    n = 3;
    RAW(&n, 8);
    for (int i = 0; i < 2; i++) {
        n = strlen(kv[i][0]);
        RAW(&n, 8);
        RAW(kv[i][0], n);
        u = GGUF_STRING;
        RAW(&u, 4);
        n = strlen(kv[i][1]);
        RAW(&n, 8);
        RAW(kv[i][1], n);
    }
    n = strlen(tokens);
    RAW(&n, 8);
    RAW(tokens, n);
    u = GGUF_ARRAY;
    RAW(&u, 4);
    u = GGUF_STRING;
    RAW(&u, 4);
    n = 1;
    RAW(&n, 8);
    RAW(&n, 8);
    RAW("a", 1);
#undef RAW
    while ((p - out) % 32)
        *p++ = 0;
    return (size_t)(p - out);
}

static void expect_gguf(const char *model, const char *pre, int code, const char *word)
{
    char file[1024];
    struct text_model *m = NULL;
    struct err e = {0};
    size_t n = tiny_gguf(file, model, pre);
    int rc = text_model_open(&m, put("m.gguf", file, n), &e);
    if (rc != code || !strstr(e.text, word))
        fail_msg("%s, %s: got %d '%s'", model, pre, rc, e.text);
}

static void test_bad_gguf(void **state)
{
    (void)state;
    expect_gguf("gpt2", "no-such-pre", ERR_UNSUPPORTED, "tokenizer.ggml.pre");
    expect_gguf("gpt2", "no-such-pre", ERR_UNSUPPORTED, "no-such-pre");
    expect_gguf("rwkv", "gpt-2", ERR_UNSUPPORTED, "rwkv");
    expect_gguf("gpt2", "gpt-2", ERR_NOTFOUND, "tokenizer.ggml.merges");
    expect_gguf("llama", "x", ERR_NOTFOUND, "tokenizer.ggml.scores");
    struct text_model *m = NULL;
    struct err e = {0};
    assert_true(text_model_open(&m, "/nonexistent.gguf", &e) < 0);
    assert_true(text_model_open(&m, tmp_dir, &e) < 0);
}

/* ---- no memory ---- */

/* Every allocation fails once: an error comes back, nothing leaks (the sanitizer variant checks). */
static void test_no_memory(void **state)
{
    (void)state;
    static const char text[] =
        "Hello w\xc3\xb6rld, 123 \xff<s> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const char *path = unpack("tiny-spm-bpe-bytefallback.model.xz", "m.model");
    bool opened = false, encoded = false;
    for (long k = 1; k < 5000 && !encoded; k++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        struct tok_ids ids = {0};
        mem_fail_after(k, true);
        int rc = tok_open_spm(&t, path, &e);
        mem_fail_after(0, false);
        opened |= rc == 0;
        if (rc != 0) {
            assert_true(rc == ERR_NOMEM || rc == ERR_LIMIT);
            continue;
        }
        for (long j = 1; j < 100 && !encoded; j++) {
            mem_fail_after(j, true);
            rc = tok_encode(t, text, sizeof text - 1, TOK_SPECIAL, &ids);
            mem_fail_after(0, false);
            assert_true(rc == 0 || rc == ERR_NOMEM);
            assert_true(rc == 0 || ids.n == 0);
            encoded = rc == 0;
        }
        tok_ids_free(&ids);
        tok_close(t);
    }
    assert_true(opened && encoded);
}

/* ---- models ---- */

static void test_gguf_model(void **state)
{
    (void)state;
    struct text_model *m = open_model("ggml-vocab-phi-3.gguf.xz");
    assert_string_equal(m->arch, "phi3");
    assert_string_equal(m->bos_token, "<s>");
    assert_string_equal(m->eos_token, "<|endoftext|>");
    assert_string_equal(m->pad_token, "<|endoftext|>");
    assert_non_null(m->chat_template);
    assert_true(strstr(m->chat_template, "<|assistant|>") != NULL);
    assert_true(m->n_ctx_train > 0);
    assert_true(m->file_bytes > 700000);
    int n;
    const int32_t *stop = tok_stop_ids(m->tok, &n);
    assert_int_equal(n, 2);
    assert_int_equal(stop[0], 32000);
    assert_int_equal(stop[1], 32007); /* <|end|> */
    text_model_close(m);
}

static void test_hf_model(void **state)
{
    (void)state;
    static const char head[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";
    char w[200];
    uint64_t n = sizeof head - 1;
    struct text_model *m = NULL;
    struct err e = {0};
    unpack("qwen3.tokenizer.json.xz", "tokenizer.json");
    unpack("qwen3.tokenizer_config.json", "tokenizer_config.json");
    put_text("config.json", "{\"model_type\":\"qwen3\",\"max_position_embeddings\":40960}");
    put_text("chat_template.jinja", "{{ messages }}");
    memcpy(w, &n, 8);
    memcpy(w + 8, head, sizeof head - 1);
    put("w.safetensors", w, 8 + sizeof head - 1);
    if (text_model_open(&m, tmp_dir, &e) != 0)
        fail_msg("%s", e.text);
    assert_string_equal(m->arch, "qwen3");
    assert_int_equal(m->n_ctx_train, 40960);
    assert_int_equal(m->n_params, 6);
    assert_int_equal(m->file_bytes, 8 + sizeof head - 1);
    assert_string_equal(m->chat_template, "{{ messages }}");
    assert_string_equal(m->eos_token, "<|im_end|>");
    assert_string_equal(m->pad_token, "<|endoftext|>");
    assert_string_equal(m->bos_token, "");
    assert_int_equal(tok_eos(m->tok), 151645);
    assert_int_equal(tok_bos(m->tok), -1);
    text_model_close(m);
    m = NULL;
    put("w.safetensors", w, 12); /* header cut */
    assert_int_equal(text_model_open(&m, tmp_dir, &e), ERR_PARSE);
    put_text("config.json", "[");
    assert_int_equal(text_model_open(&m, tmp_dir, &e), ERR_PARSE);
    assert_true(strstr(e.text, "config.json") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_round_trip), cmocka_unit_test(test_stream_holds),
        cmocka_unit_test(test_long_runs),        cmocka_unit_test(test_bad_json),
        cmocka_unit_test(test_cut_model),        cmocka_unit_test(test_bad_gguf),
        cmocka_unit_test(test_no_memory),        cmocka_unit_test(test_gguf_model),
        cmocka_unit_test(test_hf_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
