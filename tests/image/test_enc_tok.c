/* Tokenizers of text encoders against transformers: CLIP's and Qwen2's files, padding, the default model from text to
 * states. Goldens: tests/data/image/encoders and tests/data/image/tiny-t2i.safetensors.xz. */
#include <sys/stat.h>
#include <unistd.h>

#include "tests/image/enc_test.h"
#include "tests/unxz.h"

static struct golden *gold, *tiny;

static int open_goldens(void **st)
{
    (void)st;
    gold = golden_open(DATA "goldens.safetensors.xz");
    tiny = golden_open("tests/data/image/tiny-t2i.safetensors.xz");
    return gold && tiny ? 0 : -1;
}
static int close_goldens(void **st)
{
    (void)st;
    golden_close(gold);
    golden_close(tiny);
    return 0;
}

static struct comp tok_comp(const char *dir)
{
    struct comp c = {.name = "tokenizer"};
    snprintf(c.dir, sizeof c.dir, "%s", dir);
    return c;
}

static struct tokenizer *open_tok(const char *dir)
{
    struct comp c = tok_comp(dir);
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (enc_tokenizer_open(&t, &c, &e))
        fail_msg("%s", e.text);
    return t;
}

/* The prompts of the recorders. */
static const char *const tiny_texts[] = {
    "a red circle on a white background",
    "A cute baby sea otter, wearing a beret!",
    "three   GREEN hearts",
    "it's a 3d robot & a cat (20% off) - na\xc3\xafve caf\xc3\xa9 \xf0\x9f\xa6\x8a",
    "a very long prompt about a house near a river with many green trees, two red cars, a yellow "
    "sun, white clouds, a dog, a cat and a bird in the blue sky above the mountains",
    ""};
static const int tiny_real[] = {9, 14, 5, 30, 32, 2};
static const char *const texts[] = {
    "a red circle on a white background",
    "Hello!world! it's 3d, don't",
    "",
    "na\xc3\xafve caf\xc3\xa9 \xf0\x9f\xa6\x8a  two  spaces\n\nlines",
    "the <|endoftext|> the",
    "<|im_start|>system\nDescribe the image<|im_end|>\n<|im_start|>user\na THE heat<|im_end|>\n"};
#define N_TEXT 6

/* The default model: text to ids to states, all prompts in one run. */
static void tiny_rig(struct rig *r)
{
    static float states[6 * 32 * 128], pooled[6 * 128];
    struct tokenizer *t = open_tok("models/tiny-t2i/tokenizer");
    struct comp tc = tok_comp("models/tiny-t2i/tokenizer"), c;
    struct nn_weights *w;
    struct clip *m = NULL;
    struct batch b;
    int32_t at[6];
    size_t n;
    comp_open(&c, "models/tiny-t2i/text_encoder", "CLIPTextModel");
    weights_open(&w, r);
    assert_int_equal(clip_open(&m, w, &c, 0, NULL), 0);
    int len = clip_positions(m);
    int32_t pad = enc_pad_id(t, &tc);
    assert_int_equal(len, 32);
    assert_int_equal(pad, 3999);
    const int32_t *want = golden_i32(tiny, "tokenizer.input_ids", &n);
    assert_non_null(want);
    batch_clear(&b);
    for (int i = 0; i < 6; i++) {
        int32_t ids[32];
        int real = 0;
        assert_int_equal(enc_clip_ids(t, tiny_texts[i], len, pad, ids, &real), 0);
        assert_memory_equal(ids, want + i * 32, sizeof ids);
        assert_int_equal(real, tiny_real[i]);
        at[i] = clip_eos_at(m, ids, len);
        assert_int_equal(at[i], real - 1);
        batch_add(&b, ids, 32);
    }
    struct clip_out o = {.states = states, .at = at, .pooled = pooled};
    RUN(r, clip_run(m, &r->n, &b.b, &o));
    const float *h = golden_f32(tiny, "text_encoder.last_hidden_state", &n);
    assert_int_equal(n, 6 * 32 * 128);
    near("states", states, h, n, 1e-4);
    h = golden_f32(tiny, "text_encoder.pooler_output", &n);
    assert_int_equal(n, 6 * 128);
    near("pooled", pooled, h, n, 1e-4);
    clip_close(m);
    nn_weights_close(w);
    comp_close(&c);
    tok_close(t);
}
static void test_tiny(void **st)
{
    (void)st;
    each_rig(tiny_rig);
}

/* Its merges alone give the same vocabulary. */
static void test_merges_alone(void **st)
{
    struct tokenizer *a = open_tok("models/tiny-t2i/tokenizer"), *b = NULL;
    (void)st;
    assert_int_equal(tok_open_clip(&b, "models/tiny-t2i/tokenizer/merges.txt", NULL), 0);
    assert_int_equal(tok_n_vocab(a), 4000);
    assert_int_equal(tok_n_vocab(b), 4000);
    for (int32_t i = 0; i < 4000; i++) {
        struct view x = tok_entry(a, i), y = tok_entry(b, i);
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.p, y.p, x.len);
    }
    tok_close(a);
    tok_close(b);
}

/* SDXL's second tokenizer pads with "!", which makes it a special token in the text too. */
static void test_clip_pad(void **st)
{
    struct tokenizer *t = open_tok(DATA "tok-clip-pad");
    struct comp c = tok_comp(DATA "tok-clip-pad");
    size_t n;
    (void)st;
    const int32_t *want = gold_i32(gold, "tok-clip-pad", "ids", &n);
    assert_int_equal(n, N_TEXT * 24);
    assert_int_equal(enc_pad_id(t, &c), 0);
    for (int i = 0; i < N_TEXT; i++) {
        int32_t ids[24];
        int real;
        assert_int_equal(enc_clip_ids(t, texts[i], 24, 0, ids, &real), 0);
        for (int k = 0; k < 24; k++)
            if (ids[k] != want[i * 24 + k])
                fail_msg("text %d, token %d: %d, not %d", i, k, ids[k], want[i * 24 + k]);
    }
    int32_t id;
    int real;
    assert_int_equal(enc_clip_ids(t, "a", 1, 0, &id, &real), ERR_INVAL);
    tok_close(t);
}

static void ids_equal(const struct tokenizer *t, const char *text, const char *what)
{
    struct tok_ids v = {0};
    size_t n;
    const int32_t *want = gold_i32(gold, "tok-qwen", what, &n);
    assert_int_equal(tok_encode(t, text, strlen(text), TOK_SPECIAL | TOK_BOS_EOS, &v), 0);
    assert_int_equal(v.n, n == 1 && want[0] == -1 ? 0 : n);
    for (size_t i = 0; i < v.n; i++)
        if (v.id[i] != want[i])
            fail_msg("'%s', token %zu: %d, not %d", text, i, v.id[i], want[i]);
    tok_ids_free(&v);
}

static void test_qwen(void **st)
{
    struct tokenizer *t = open_tok(DATA "tok-qwen");
    struct comp c = tok_comp(DATA "tok-qwen");
    (void)st;
    for (int i = 0; i < N_TEXT; i++) {
        char what[16];
        snprintf(what, sizeof what, "%d", i);
        ids_equal(t, texts[i], what);
    }
    ids_equal(t, "a <think>the</think>", "think");
    assert_int_equal(enc_pad_id(t, &c), tok_find(t, "<|endoftext|>", 13));
    assert_int_equal(tok_eos(t), tok_find(t, "<|im_end|>", 10));
    assert_true(tok_is_control(t, tok_find(t, "<|im_start|>", 12)));
    assert_false(tok_is_control(t, tok_find(t, "<think>", 7)));
    tok_close(t);
}

/* ---- folders made here ---- */

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void drop_folder(const char *dir)
{
    static const char *const names[] = {
        "vocab.json",   "merges.txt",     "tokenizer_config.json",  "added_tokens.json",
        "spiece.model", "tokenizer.json", "special_tokens_map.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* A SentencePiece file alone: T5's end token, no start token. */
static void test_t5_ids(void **st)
{
    char dir[] = "/tmp/enc-tok-XXXXXX", from[64], to[96];
    struct tok_ids v = {0};
    int32_t ids[32];
    int real;
    (void)st;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(
        unxz_temp("tests/data/tokenizers/tiny-spm-unigram.model.xz", from, sizeof from), 0);
    snprintf(to, sizeof to, "%s/spiece.model", dir);
    size_t size;
    char *bytes = unxz_read(from, &size);
    FILE *f = fopen(to, "wb");
    assert_true(bytes && f);
    fwrite(bytes, 1, size, f);
    fclose(f);
    free(bytes);
    unlink(from);
    struct tokenizer *t = open_tok(dir);
    const char *text = "The quick brown fox jumps over the lazy dog";
    assert_int_equal(tok_encode(t, text, strlen(text), 0, &v), 0);
    int n = (int)v.n;
    assert_in_range(n, 4, 30);
    int32_t pad = tok_find(t, "<pad>", 5) < 0 ? 0 : tok_find(t, "<pad>", 5);
    assert_int_equal(enc_t5_ids(t, text, 32, ids, &real), 0);
    assert_int_equal(real, n + 1);
    assert_memory_equal(ids, v.id, v.n * sizeof *ids);
    assert_int_equal(ids[n], tok_eos(t));
    for (int i = n + 1; i < 32; i++)
        assert_int_equal(ids[i], pad);
    assert_int_equal(enc_t5_ids(t, text, 3, ids, &real), 0); /* cut */
    assert_int_equal(real, 3);
    assert_memory_equal(ids, v.id, 2 * sizeof *ids);
    assert_int_equal(ids[2], tok_eos(t));
    assert_int_equal(enc_t5_ids(t, "", 2, ids, &real), 0);
    assert_int_equal(real, 1);
    assert_int_equal(enc_t5_ids(t, text, 0, ids, &real), ERR_INVAL);
    tok_ids_free(&v);
    tok_close(t);
    drop_folder(dir);
}

#define VOCAB                                                                                      \
    "{\"a\": 0, \"b\": 1, \"ab</w>\": 2, \"b</w>\": 3, \"<|startoftext|>\": 4, "                   \
    "\"<|endoftext|>\": 5}"

/* Files that are wrong: what, and what the message must name. */
static void test_bad_folders(void **st)
{
    static const struct {
        const char *vocab, *merges, *config, *added;
        int rc;
        const char *names;
    } bad[] = {
        {VOCAB, "#version: 0.2\na b</w>\n", NULL, NULL, 0, NULL},
        {VOCAB, "a b</w>\r\n", NULL, "{\"<x>\": 6}", 0, NULL},
        {"[1]", "a b</w>\n", NULL, NULL, ERR_PARSE, "vocab.json: no object"},
        {"{\"a\": 0", "a b</w>\n", NULL, NULL, ERR_PARSE, "vocab.json: line 1"},
        {"{\"a\": -1}", "", NULL, NULL, ERR_INVAL, "bos_token"},
        {"{\"a\": \"x\", \"<|startoftext|>\": 4, \"<|endoftext|>\": 5}", "", NULL, NULL, ERR_INVAL,
         "model.vocab"},
        {VOCAB, "a q</w>\n", NULL, NULL, ERR_INVAL, "q</w>"},
        {VOCAB, "nothing\n", NULL, NULL, ERR_PARSE, "merges[0]"},
        {VOCAB, "a \xff\n", NULL, NULL, ERR_PARSE, "merges.txt: line 1"},
        {VOCAB, "a b</w>\n", "{\"tokenizer_class\": \"BertTokenizer\"}", NULL, ERR_UNSUPPORTED,
         "BertTokenizer"},
        {VOCAB, "a b</w>\n", "{\"added_tokens_decoder\": {\"6\": 7}}", NULL, ERR_PARSE, "token"},
        {VOCAB, "a b</w>\n", "{\"bos_token\": \"<s>\"}", NULL, ERR_INVAL, "bos_token"},
        {VOCAB, "a b</w>\n", NULL, "{\"<x>\": \"y\"}", ERR_INVAL, "added_tokens"},
        {VOCAB, "a b</w>\n", NULL, "7", ERR_PARSE, "added_tokens.json"},
    };
    (void)st;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char dir[] = "/tmp/enc-tok-XXXXXX";
        struct tokenizer *t = NULL;
        struct err e = {0};
        assert_non_null(mkdtemp(dir));
        put_file(dir, "vocab.json", bad[i].vocab);
        put_file(dir, "merges.txt", bad[i].merges);
        if (bad[i].config)
            put_file(dir, "tokenizer_config.json", bad[i].config);
        if (bad[i].added)
            put_file(dir, "added_tokens.json", bad[i].added);
        struct comp c = tok_comp(dir);
        int rc = enc_tokenizer_open(&t, &c, &e);
        if (rc != bad[i].rc || (rc && !strstr(e.text, bad[i].names)))
            fail_msg("case %zu: %d, '%s'", i, rc, e.text);
        if (rc == 0) {
            int32_t ids[4];
            int real;
            assert_int_equal(enc_clip_ids(t, "AB", 4, -1, ids, &real), 0);
            assert_memory_equal(ids, ((int32_t[]){4, 2, 5, 5}), sizeof ids);
            assert_int_equal(enc_pad_id(t, &c), -1);
        }
        tok_close(t);
        drop_folder(dir);
    }
}

static void test_no_files(void **st)
{
    struct comp c = tok_comp("tests/data/image/encoders/qwen3");
    struct tokenizer *t = NULL;
    struct err e = {0};
    (void)st;
    assert_int_equal(enc_tokenizer_open(&t, &c, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "vocab.json"));
    assert_non_null(strstr(e.text, "encoders/qwen3"));
    c.dir[0] = 0;
    assert_int_equal(enc_tokenizer_open(&t, &c, &e), ERR_NOTFOUND);
    assert_null(t);
}

/* The n-th allocation fails: an error, nothing lost. */
static void test_no_memory(void **st)
{
    struct comp c = tok_comp(DATA "tok-clip-pad");
    int n_fail = 0;
    (void)st;
    for (long k = 1; k < 200; k++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        mem_fail_after(k, true);
        int rc = enc_tokenizer_open(&t, &c, &e);
        int32_t ids[24];
        int real;
        if (rc == 0)
            rc = enc_clip_ids(t, texts[0], 24, 0, ids, &real);
        mem_fail_after(0, false);
        tok_close(t);
        if (rc == 0)
            break;
        assert_true(rc == ERR_NOMEM || rc == ERR_LIMIT);
        n_fail++;
    }
    assert_in_range(n_fail, 3, 198);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),     cmocka_unit_test(test_merges_alone),
        cmocka_unit_test(test_clip_pad), cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_t5_ids),   cmocka_unit_test(test_bad_folders),
        cmocka_unit_test(test_no_files), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("encoder tokenizers", tests, open_goldens, close_goldens);
}
