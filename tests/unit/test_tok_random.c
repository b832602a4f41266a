/* Random Unicode strings, five families: ids are those of Hugging Face tokenizers (digests recorded by
 * record_tok_random.py, which makes the same strings), and where the vocabulary keeps every byte, decode(encode(x)) = x.
 *
 *     test_tok_random [FAMILY FROM N]     with arguments: prints those strings' ids, as record_tok_random.py does
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/text/tokenizer.h"
#include "tests/unxz.h"

#define DIR   "tests/data/tokenizers/"
#define GROUP 1000
#define N     100000

static const struct {
    const char *name;
    bool lossless;
} families[] = {{"qwen3", false}, /* composes characters (NFC) */
                {"gptoss", true},
                {"deepseek_v3", true},
                {"whisper-multilingual", true},
                {"bert-minilm", false}};

static const uint32_t classes[][2] = {
    {0x61, 0x7A},       {0x61, 0x7A},     {0x61, 0x7A},     {0x61, 0x7A},     {0x41, 0x5A},
    {0x20, 0x20},       {0x20, 0x20},     {0x30, 0x39},     {0x21, 0x2F},     {0x3A, 0x40},
    {0x09, 0x0D},       {0x5B, 0x60},     {0xA0, 0x17F},    {0x370, 0x4FF},   {0x4E00, 0x9FFF},
    {0x1F300, 0x1F64F}, {0x300, 0x36F},   {0x5D0, 0x5EA},   {0x620, 0x64A},   {0x905, 0x939},
    {0xAC00, 0xD7A3},   {0x2000, 0x206F}, {0x3041, 0x30FF}, {0xE000, 0xE0FF}, {0x27, 0x27}};

static uint64_t seed;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static void put_char(struct buf *b, uint32_t c)
{
    char s[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3F));
    s[0] = (char)(lead[n] | c);
    buf_add(b, s, n);
    assert_false(b->failed);
}

static void next_string(struct buf *b)
{
    uint32_t n = 1 + rnd(40);
    b->len = 0;
    for (uint32_t k = 0; k < n;) {
        const uint32_t *c = classes[rnd(sizeof classes / sizeof *classes)];
        for (uint32_t run = 1 + rnd(4); run > 0; run--, k++)
            put_char(b, c[0] + rnd(c[1] - c[0] + 1));
    }
}

static uint64_t fnv(uint64_t h, const void *p, size_t n)
{
    for (const uint8_t *b = p; n > 0; n--)
        h = (h ^ *b++) * 0x100000001B3u;
    return h;
}

static struct tokenizer *open_family(const char *name)
{
    char src[160], path[128];
    struct err e = {0};
    struct tokenizer *t = NULL;
    snprintf(src, sizeof src, DIR "%s.tokenizer.json.xz", name);
    assert_int_equal(unxz_temp(src, path, sizeof path), 0);
    if (tok_open_hf(&t, path, &e))
        fail_msg("%s: %s", name, e.text);
    unlink(path);
    return t;
}

static void encode(const struct tokenizer *t, const struct buf *text, struct tok_ids *ids,
                   struct buf *back)
{
    ids->n = 0;
    back->len = 0;
    assert_int_equal(tok_encode(t, text->p, text->len, TOK_SPECIAL, ids), 0);
    assert_int_equal(tok_decode(t, ids->id, ids->n, true, back), 0);
}

static void check_family(size_t f, char *want)
{
    struct tokenizer *t = open_family(families[f].name);
    struct buf text = {0}, back = {0};
    struct tok_ids ids = {0};
    char *save = NULL, *word = strtok_r(want, " \n", &save);
    assert_string_equal(word, families[f].name);
    seed = 20260101;
    for (int group = 0; group < N / GROUP; group++) {
        uint64_t h = 0xCBF29CE484222325u;
        for (int i = 0; i < GROUP; i++) {
            next_string(&text);
            encode(t, &text, &ids, &back);
            h = fnv(fnv(h, ids.id, 4 * ids.n), "|", 1);
            if (families[f].lossless &&
                (back.len != text.len || memcmp(back.p, text.p, text.len) != 0))
                fail_msg("%s: string %d does not come back", families[f].name, group * GROUP + i);
        }
        word = strtok_r(NULL, " \n", &save);
        assert_non_null(word);
        if (h != strtoull(word, NULL, 16))
            fail_msg("%s: strings %d to %d differ from the reference", families[f].name,
                     group * GROUP, group * GROUP + GROUP - 1);
    }
    tok_ids_free(&ids);
    buf_free(&text);
    buf_free(&back);
    tok_close(t);
}

static void test_random(void **st)
{
    (void)st;
    size_t n;
    char *golden = unxz_read(DIR "random.txt", &n), *save = NULL;
    assert_non_null(golden);
    char *line = strtok_r(golden, "\n", &save);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        assert_non_null(line);
        char *next = strtok_r(NULL, "\n", &save);
        check_family(f, line);
        line = next;
    }
    free(golden);
}

static int print_some(const char *family, int from, int n)
{
    struct tokenizer *t = open_family(family);
    struct buf text = {0}, back = {0};
    struct tok_ids ids = {0};
    seed = 20260101;
    for (int i = 0; i < from + n; i++) {
        next_string(&text);
        if (i < from)
            continue;
        encode(t, &text, &ids, &back);
        printf("%d:", i);
        for (size_t k = 0; k < ids.n; k++)
            printf(" %d", (int)ids.id[k]);
        printf("\n");
    }
    tok_ids_free(&ids);
    buf_free(&text);
    buf_free(&back);
    tok_close(t);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    if (argc == 4)
        return print_some(argv[1], (int)strtol(argv[2], NULL, 10), (int)strtol(argv[3], NULL, 10));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
