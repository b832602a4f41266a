/* engine/text/text_keys: tokenizers of folders as keys of a GGUF file: the ids of many texts are the folder's, or the kind is
 * refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/load/gguf_write.h"
#include "engine/text/text_keys.h"
#include "engine/text/text_model.h"
#include "tests/tree.h"
#include "tests/unxz.h"

#define DATA "tests/data/tokenizers/"

/* A file of keys alone. */
static void put_keys(const char *dir, const struct gguf_kvs *k)
{
    struct buf b = {0};
    const uint32_t version = 3;
    const uint64_t none = 0;
    buf_add(&b, "GGUF", 4);
    buf_add(&b, &version, 4);
    buf_add(&b, &none, 8);
    buf_add(&b, &k->n, 8);
    buf_add(&b, k->b.p, k->b.len);
    tree_put(dir, "keys.gguf", b.p, b.len);
    buf_free(&b);
}

static void folder(char dir[TREE_PATH], const char *json, size_t n, const char *config)
{
    static const char empty[] = "{\"model_type\": \"x\", \"_name_or_path\": \"some/name\"}";
    tree_make(dir);
    tree_put(dir, "config.json", empty, sizeof empty - 1);
    tree_put(dir, "tokenizer.json", json, n);
    if (config)
        tree_put(dir, "tokenizer_config.json", config, strlen(config));
}

/* The same ids of random texts out of pieces that tokenizers cut differently. */
static void texts_equal(const struct tokenizer *a, const struct tokenizer *b)
{
    static const char *const part[] = {"Hello",
                                       " world",
                                       "'s",
                                       "'LL",
                                       "  ",
                                       "\n",
                                       "\t",
                                       "123",
                                       "4567",
                                       ".",
                                       ",",
                                       "!?",
                                       "caf\xc3\xa9",
                                       "e\xcc\x81",
                                       "\xe4\xbd\xa0\xe5\xa5\xbd",
                                       "\xd0\x9f\xd1\x80",
                                       "\xf0\x9f\x98\x80",
                                       "_x",
                                       "ABCdef",
                                       "\r\n",
                                       " \n ",
                                       "(",
                                       "==",
                                       "\xc2\xa0",
                                       "\xe3\x81\x82"};
    uint64_t seed = 7;
    for (int i = 0; i < 400; i++) {
        struct buf s = {0};
        struct tok_ids x = {0}, y = {0};
        for (int k = 0; k < 12; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            buf_str(&s, part[(seed >> 33) % (sizeof part / sizeof *part)]);
        }
        assert_int_equal(tok_encode(a, s.p, s.len, TOK_SPECIAL | TOK_BOS_EOS, &x), 0);
        assert_int_equal(tok_encode(b, s.p, s.len, TOK_SPECIAL | TOK_BOS_EOS, &y), 0);
        if (x.n != y.n || memcmp(x.id, y.id, x.n * sizeof *x.id) != 0)
            fail_msg("other ids of '%s'", buf_cstr(&s));
        tok_ids_free(&x);
        tok_ids_free(&y);
        buf_free(&s);
    }
}

static void written(const char *name, const char *json, size_t n, const char *config)
{
    char dir[TREE_PATH];
    struct gguf_kvs k = {0};
    struct err e = {0};
    struct text_model *a = NULL, *b = NULL;
    bool have = false;
    folder(dir, json, n, config);
    if (text_model_open(&a, dir, &e))
        fail_msg("%s: %s", name, e.text);
    int64_t rows = tok_n_vocab(a->tok) + 13;
    if (text_keys_write(&k, dir, rows, &have, &e))
        fail_msg("%s: %s", name, e.text);
    assert_true(have);
    put_keys(dir, &k);
    if (text_keys_check(dir, tree_path(dir, "keys.gguf"), &e))
        fail_msg("%s: %s", name, e.text);
    assert_int_equal(text_model_open(&b, tree_path(dir, "keys.gguf"), &e), 0);
    texts_equal(a->tok, b->tok);
    assert_int_equal(tok_n_vocab(b->tok), rows);
    assert_string_equal(b->name, "some/name");
    assert_string_equal(a->bos_token, b->bos_token);
    assert_string_equal(a->eos_token, b->eos_token);
    assert_true(!a->chat_template == !b->chat_template);
    if (a->chat_template)
        assert_string_equal(a->chat_template, b->chat_template);
    text_model_close(a);
    text_model_close(b);
    gguf_kvs_free(&k);
    tree_remove(dir);
}

static void round_trip(const char *name)
{
    char path[256];
    struct buf config = {0};
    size_t n;
    snprintf(path, sizeof path, DATA "%s.tokenizer.json.xz", name);
    char *json = unxz_read(path, &n);
    assert_non_null(json);
    snprintf(path, sizeof path, DATA "%s.tokenizer_config.json", name);
    FILE *f = fopen(path, "rb");
    for (int c; f && (c = fgetc(f)) != EOF;)
        buf_char(&config, (char)c);
    if (f)
        fclose(f);
    written(name, json, n, config.len ? buf_cstr(&config) : NULL);
    free(json);
    buf_free(&config);
}

/* Characters with bytes as fallback and merges in the order of a vocabulary, as converters of SentencePiece write it. */
static void test_characters(void **st)
{
    (void)st;
    static const char *const plain[] = {"<unk>", "<s>", "</s>"};
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzHLE0123456789.,'";
    static const char *const merges[][2] = {{"l", "l"},
                                            {"\xe2\x96\x81", "w"},
                                            {"o", "r"},
                                            {"H", "e"},
                                            {"He", "ll"},
                                            {"Hell", "o"},
                                            {"l", "d"},
                                            {"\xe2\x96\x81w", "or"},
                                            {"\xe2\x96\x81wor", "ld"},
                                            {"1", "2"},
                                            {"12", "3"}};
    for (int prefix = 0; prefix < 2; prefix++) {
        struct buf j = {0};
        int id = 0;
        buf_str(&j, "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
        if (prefix)
            buf_str(&j, "{\"type\": \"Prepend\", \"prepend\": \"\xe2\x96\x81\"}, ");
        buf_str(
            &j,
            "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": "
            "\"\xe2\x96\x81\"}]}, "
            "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}]}, "
            "\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"fuse_unk\": true, "
            "\"unk_token\": \"<unk>\", \"vocab\": {");
        for (int i = 0; i < 3; i++)
            buf_fmt(&j, "\"%s\": %d, ", plain[i], id++);
        for (int i = 0; i < 256; i++)
            buf_fmt(&j, "\"<0x%02X>\": %d, ", (unsigned)i, id++);
        for (const char *p = letters; *p; p++)
            buf_fmt(&j, "\"%c\": %d, ", *p, id++);
        size_t n = sizeof merges / sizeof *merges;
        for (size_t i = 0; i < n; i++)
            buf_fmt(&j, "\"%s%s\": %d, ", merges[i][0], merges[i][1], id++);
        buf_fmt(&j, "\"\xe2\x96\x81\": %d}, \"merges\": [", id);
        for (size_t i = 0; i < n; i++)
            buf_fmt(&j, "%s\"%s %s\"", i ? ", " : "", merges[i][0], merges[i][1]);
        buf_str(&j, "]}}");
        written(prefix ? "with a space in front" : "without", j.p, j.len,
                "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_bos_token\": true}");
        buf_free(&j);
    }
}

static void test_round_trip(void **st)
{
    (void)st;
    static const char *const names[] = {"deepseek_v3", "gptoss", "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        round_trip(names[i]);
}

static void refused(const char *json, const char *text)
{
    char dir[TREE_PATH];
    struct gguf_kvs k = {0};
    struct err e = {0};
    bool have = false;
    folder(dir, json, strlen(json), NULL);
    assert_int_equal(text_keys_write(&k, dir, 100, &have, &e), ERR_UNSUPPORTED);
    if (!strstr(e.text, text))
        fail_msg("'%s' does not say '%s'", e.text, text);
    gguf_kvs_free(&k);
    tree_remove(dir);
}

static void test_refused(void **st)
{
    (void)st;
    struct gguf_kvs k = {0};
    bool have = true;
    char dir[TREE_PATH];
    struct err e = {0};
    refused("{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], "
            "[\"a\", -1]]}}",
            "unigram");
    refused("{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"vocab\": "
            "{\"[UNK]\": 0, \"a\": 1}}}",
            "WordPiece");
    refused("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}",
            "without bytes");
    refused("{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
            "\"Split\", \"pattern\": "
            "{\"Regex\": \"[abc]+\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", "
            "\"use_regex\": false, "
            "\"add_prefix_space\": false}]}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, "
            "\"merges\": []}}",
            "cuts text");
    tree_make(dir); /* no tokenizer: nothing is written */
    assert_int_equal(text_keys_write(&k, dir, 100, &have, &e), 0);
    assert_true(!have && k.n == 0);
    tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip),
                                       cmocka_unit_test(test_characters),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("text_keys", tests, NULL, NULL);
}
