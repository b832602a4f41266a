/* JSON schemas, regular expressions and grammar texts as token masks over a real vocabulary. Without arguments: unit
 * tests. With "tool": a line of JSON in, a line out, for the Python side (test_schema_grammar.py), which judges what is
 * sampled here with another validator:
 *   {"schema"|"regex"|"grammar": ..., "texts": [...], "samples": n, "seed": s, "times": bool}
 *   -> {"ok": true, "accepts": [...], "stops": [bytes accepted, ...], "samples": [...], "us": n, "mask_ns": [...]} | {"ok": false, "code", "where", "text"}
 * "tool TOKENIZER.json" takes another vocabulary. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/schema.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "tests/unxz.h"
#include <time.h>

static struct tokenizer *tok;
static struct grammar_vocab *vocab;
static size_t n_word;
static uint32_t *bits;

/* What each mask took, where a job asks for it; NULL else. */
static json_t *mask_ns;

static int open_tokenizer(const char *path)
{
    struct err e;
    if (tok_open_hf(&tok, path, &e))
        return -1;
    n_word = ((size_t)tok_n_vocab(tok) + 31) / 32;
    bits = xcalloc(n_word, 4);
    return grammar_vocab_open(&vocab, tok, tok_n_vocab(tok), &e);
}

static int open_vocab(void **state)
{
    char path[128];
    (void)state;
    if (unxz_temp("tests/data/tokenizers/qwen3.tokenizer.json.xz", path, sizeof path))
        return -1;
    int rc = open_tokenizer(path);
    unlink(path);
    return rc;
}

static int close_vocab(void **state)
{
    (void)state;
    grammar_vocab_unref(vocab);
    tok_close(tok);
    free(bits);
    return 0;
}

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool allowed(int32_t id)
{
    return bits[id / 32] >> (id % 32) & 1;
}

/* Whether the text is in the grammar, token by token; masks and steps must agree. */
static bool accepts(struct grammar *g, const char *text, size_t n, size_t *stop)
{
    struct grammar_state *s;
    struct tok_ids ids = {0};
    if (grammar_state_open(&s, g) || tok_encode(tok, text, n, 0, &ids))
        abort();
    struct buf back = {0}; /* a tokenizer that normalises tells nothing about this text */
    bool ok = !tok_decode(tok, ids.id, ids.n, true, &back) && back.len == n &&
              (!n || memcmp(back.p, text, n) == 0);
    buf_free(&back);
    *stop = 0;
    for (size_t i = 0; i < ids.n && ok; i++) {
        int64_t from = cpu_ns();
        int any = grammar_mask(s, bits, n_word);
        if (mask_ns)
            json_array_append_new(mask_ns, json_integer(cpu_ns() - from));
        bool in = any > 0 && allowed(ids.id[i]);
        ok = grammar_accept(s, ids.id[i]) == 0;
        if (in != ok) {
            fprintf(stderr, "mask and step disagree: token %d of %.*s\n", (int)i, (int)n, text);
            abort();
        }
        if (ok)
            *stop += tok_bytes(tok, ids.id[i], false).len;
    }
    ok = ok && grammar_may_end(s);
    tok_ids_free(&ids);
    grammar_state_close(s);
    return ok;
}

/* A random text of the grammar; false when it did not come to an end. Long ones are drawn to closing tokens. */
static bool sample(struct grammar *g, uint64_t *seed, struct buf *out)
{
    struct grammar_state *s;
    int32_t *may = xmalloc((size_t)tok_n_vocab(tok) * sizeof *may);
    bool ended = false;
    if (grammar_state_open(&s, g))
        abort();
    for (int step = 0; step < 800 && !ended; step++) {
        size_t n = 0, n_close = 0;
        *seed = hash_u64(*seed);
        if (grammar_may_end(s) && (grammar_must_end(s) || step > 20 || *seed % 3 == 0)) {
            ended = true;
            break;
        }
        int any = grammar_mask(s, bits, n_word);
        if (any <= 0) {
            fprintf(stderr, "dead end after: %s\n", buf_cstr(out));
            abort();
        }
        bool want_close = step > 60 || *seed % 7 == 0;
        for (int pass = want_close ? 0 : 1; pass < 2 && !n; pass++)
            for (size_t w = 0; w < n_word; w++)
                for (uint32_t b = bits[w]; b; b &= b - 1) {
                    int32_t id = (int32_t)(w * 32) + __builtin_ctz(b);
                    struct view v = tok_bytes(tok, id, false);
                    bool close = v.len && strchr("\"]},", v.p[0]) && v.len < 3;
                    if (pass == 0 && !close)
                        continue;
                    n_close += close;
                    may[n++] = id;
                }
        int32_t id = may[(*seed >> 20) % n];
        struct view v = tok_bytes(tok, id, false);
        buf_add(out, v.p, v.len);
        if (grammar_accept(s, id)) {
            fprintf(stderr, "a token of the mask is not accepted after: %s\n", buf_cstr(out));
            abort();
        }
    }
    free(may);
    grammar_state_close(s);
    return ended;
}

static int compile(const json_t *job, struct grammar **g, struct schema_err *e)
{
    struct gr_builder *b;
    const json_t *v;
    gr_expr root = GR_FAIL;
    *e = (struct schema_err){0};
    if (gr_builder_open(&b, vocab, NULL))
        abort();
    if ((v = json_object_get(job, "schema")))
        root = schema_add(b, v, NULL, e);
    else if ((v = json_object_get(job, "regex")))
        root = gr_regex(b, (struct view){json_string_value(v), json_string_length(v)}, GR_UTF8, 0);
    else if ((v = json_object_get(job, "grammar")))
        root = gr_grammar_text(b, (struct view){json_string_value(v), json_string_length(v)});
    int rc = gr_compile(b, root, g, &e->err);
    gr_builder_close(b);
    return rc;
}

static json_t *answer(const json_t *job)
{
    struct grammar *g;
    struct schema_err e;
    int64_t from = cpu_ns();
    if (compile(job, &g, &e))
        return json_pack("{s:b,s:s,s:s,s:s}", "ok", 0, "code", err_name(e.err.code), "where",
                         e.where, "text", e.err.text);
    int64_t us = (cpu_ns() - from) / 1000;
    mask_ns = json_is_true(json_object_get(job, "times")) ? json_array() : NULL;
    json_t *acc = json_array(), *stops = json_array(), *samples = json_array(),
           *v = json_object_get(job, "texts");
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *t = json_array_get(v, i);
        size_t stop;
        json_array_append_new(
            acc, json_boolean(accepts(g, json_string_value(t), json_string_length(t), &stop)));
        json_array_append_new(stops, json_integer((json_int_t)stop));
    }
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(job, "seed")) + 1;
    for (json_int_t i = 0; i < json_integer_value(json_object_get(job, "samples")); i++) {
        struct buf out = {0};
        if (sample(g, &seed, &out))
            json_array_append_new(samples, json_stringn(buf_cstr(&out), out.len));
        buf_free(&out);
    }
    size_t bytes = grammar_bytes(g);
    grammar_unref(g);
    return json_pack("{s:b,s:o,s:o,s:o,s:I,s:I,s:o*}", "ok", 1, "accepts", acc, "stops", stops,
                     "samples", samples, "us", (json_int_t)us, "bytes", (json_int_t)bytes,
                     "mask_ns", mask_ns);
}

static int tool(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_t *job = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        json_t *out = job ? answer(job) : NULL;
        char *text = out ? json_dumps(out, JSON_COMPACT) : NULL;
        puts(text ? text : "null");
        fflush(stdout);
        free(text);
        json_decref(out);
        json_decref(job);
    }
    free(line);
    return 0;
}

/* ---- unit tests ---- */

static void check(const char *kind, const char *source, const char *const *yes,
                  const char *const *no)
{
    json_t *job = strcmp(kind, "schema") == 0
                      ? json_pack("{s:o}", kind, json_loads(source, JSON_DECODE_ANY, NULL))
                      : json_pack("{s:s}", kind, source);
    struct grammar *g;
    struct schema_err e;
    assert_non_null(job);
    if (compile(job, &g, &e))
        fail_msg("%s: %s (%s)", source, e.err.text, e.where);
    size_t stop;
    for (; *yes; yes++)
        if (!accepts(g, *yes, strlen(*yes), &stop))
            fail_msg("%s refuses %s at byte %zu", source, *yes, stop);
    for (; *no; no++)
        if (accepts(g, *no, strlen(*no), &stop))
            fail_msg("%s accepts %s", source, *no);
    grammar_unref(g);
    json_decref(job);
}
#define S(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void test_regex(void **state)
{
    (void)state;
    check("regex", "[a-z]{2,4}\\d+", S("ab1", "abcd123"), S("a1", "ab", "abcde1", ""));
    check("regex", "(foo|bar)*", S("", "foo", "foobarfoo"), S("fo", "foob"));
    check("regex", "(?i)yes|no", S("YES", "yEs", "No"), S("maybe"));
    check("regex", "[^a-c]+", S("xyz", "\xC3\xA9\xF0\x9F\x98\x80"), S("a", "xa"));
    check("regex", "(?!ab)[a-z]{2}", S("aa", "bb"), S("ab"));
}

static void test_schema_basics(void **state)
{
    (void)state;
    check("schema", "{\"type\":\"integer\"}", S("0", "-1", "12345"), S("01", "1.5", "-0", "\"1\""));
    check("schema", "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12}", S("-3", "0", "9", "12"),
          S("-4", "13", "120"));
    check("schema", "{\"type\":\"number\",\"minimum\":1.5,\"exclusiveMaximum\":3}",
          S("1.5", "2", "2.999", "1.50"), S("3", "1.49", "1", "3.0"));
    check("schema", "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
          S("\"ab\"", "\"\\n\xC3\xA9x\""), S("\"a\"", "\"abcd\""));
    check("schema",
          "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
          "\"boolean\"}},\"required\":[\"b\"],\"additionalProperties\":false}",
          S("{\"b\":true}", "{\"a\": 1, \"b\": false}", "{\n  \"b\": true\n}"),
          S("{\"a\":1}", "{}", "{\"b\":true,\"c\":1}", "{\"b\":true,}"));
    check("schema", "{\"type\":\"array\",\"items\":{\"enum\":[1,\"x\"]},\"uniqueItems\":true}",
          S("[]", "[1]", "[\"x\",1]"), S("[1,1]", "[2]"));
}

static void refuses(const char *kind, const char *source, const char *why)
{
    json_t *job = strcmp(kind, "schema") == 0
                      ? json_pack("{s:o}", kind, json_loads(source, JSON_DECODE_ANY, NULL))
                      : json_pack("{s:s}", kind, source);
    struct grammar *g;
    struct schema_err e;
    assert_non_null(job);
    if (!compile(job, &g, &e))
        fail_msg("%s compiles", source);
    if (!strstr(e.err.text, why) && !strstr(e.where, why))
        fail_msg("%s: %s (%s), not %s", source, e.err.text, e.where, why);
    json_decref(job);
}

static void test_unique(void **state)
{
    (void)state;
    check("schema", "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
          S("[]", "[\"a\", \"\", \"aa\"]", "[\"1\",\"2\",\"12\"]"),
          S("[\"a\",\"a\"]", "[\"a\",\"b\", \"a\"]", "[\"\",\"\"]", "[1]"));
    check("schema",
          "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":100},"
          "\"uniqueItems\":true,\"minItems\":2}",
          S("[1,12]", "[100,10,1]"), S("[1]", "[1,1]", "[12,1,12]"));
    check("schema", "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"uniqueItems\":true}",
          S("[1,1.5,-0.5]"), S("[1,1.0]", "[0.5,0.50]", "[-0]"));
    /* all of them, and no more */
    check("schema",
          "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[ab]{2}$\"},"
          "\"uniqueItems\":true,\"minItems\":4}",
          S("[\"aa\",\"bb\",\"ab\",\"ba\"]"),
          S("[\"aa\",\"bb\",\"ab\"]", "[\"aa\",\"bb\",\"ab\",\"ab\"]"));
    /* objects by a member; a list in a list has keys of its own */
    check("schema",
          "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\"},"
          "\"kids\":{"
          "\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"$ref\":\"#/$defs/"
          "n\"}}},\"required\":[\"id\"],"
          "\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}",
          S("{\"id\":\"a\",\"kids\":[{\"id\":\"a\",\"kids\":[{\"id\":\"a\"}]},{\"id\":\"b\"}]}"),
          S("{\"id\":\"a\",\"kids\":[{\"id\":\"q\",\"kids\":[{\"id\":\"b\"}]},{\"id\":\"q\"}]}"));
    refuses("schema",
            "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[ab]$\"},"
            "\"uniqueItems\":true,\"minItems\":3}",
            "no text fits");
}

static void test_gbnf(void **state)
{
    (void)state;
    check("grammar", "root ::= \"a\" (b | [0-9]{2,3})* # end\nb ::= \"b\" root? \"c\"\n",
          S("a", "abc", "a12", "ababcc123"), S("", "b", "a1", "abb"));
    /* arithmetic, left-recursive */
    check("grammar",
          "root ::= expr\nexpr ::= expr \"+\" term | term\nterm ::= \"(\" expr \")\" | num\nnum "
          "::= [0-9]+\n",
          S("1", "1+2", "(1+23)+4", "((7))"), S("", "1+", "(1", "1)"));
    check("grammar", "root ::= [^\\x00-\\x1F\"] . \"\\u00e9\"\n",
          S("xy\xC3\xA9", "\xC3\xA9!\xC3\xA9"), S("xy", "\"y\xC3\xA9"));
}

static void test_lark(void **state)
{
    (void)state;
    check("grammar",
          "// sums\nstart: sum\n?sum: product\n    | sum \"+\" product -> add\n?product: NUMBER | "
          "\"(\" sum \")\"\n"
          "%import common.NUMBER\n%import common.WS_INLINE\n%ignore WS_INLINE\n",
          S("1", "1 + 2.5", " (3+4) + 5"), S("", "1 +", "1\n"));
    check("grammar", "start: \"select\"i \" \" COL (\",\" COL)~0..2\nCOL: /[a-z]+/ | \"*\"\n",
          S("SELECT a", "select a,b,c", "Select *"), S("select", "select a,b,c,d"));
}

static void test_refused(void **state)
{
    (void)state;
    refuses("regex", "[a-z", "]");
    refuses("regex", "(a", ")");
    refuses("regex", "*a", "nothing to repeat");
    refuses("regex", "(a)\\1", "back-reference");
    refuses("regex", "((a{1000}){1000}){1000}", "too many parts");
    refuses("regex", "(a|b)*a(a|b){25}", "too large");
    refuses("grammar", "root ::= a\n", "'a' is used but not defined");
    refuses("grammar", "a ::= \"x\"\n", "no rule 'root'");
    refuses("grammar", "root ::= \"a\\", "closing quote");
    refuses("grammar", "root ::= \"a\nb ::= \"c\"", "line");
    refuses("grammar", "root ::= a \"x\"\na ::= b\nb ::= a \"y\" | \"z\"\n", "left recursion");
    refuses("grammar", "root ::= \"a\" root\n", "no text fits");
    refuses("schema", "{\"type\":\"strnig\"}", "'type'");
    refuses("schema", "{\"properties\":{\"s\":{\"pattern\":\"^[a-z$\"}}}", "properties.s.pattern");
    refuses("schema", "{\"$ref\":\"#/$defs/nowhere\"}", "$ref");
    refuses("schema", "{\"type\":\"array\",\"items\":{\"type\":\"object\"},\"uniqueItems\":true}",
            "uniqueItems");
    refuses("schema", "false", "no text fits");
    refuses("schema", "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no text fits");
    refuses("schema", "[]", "object or a boolean");
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "tool") == 0) {
        if (argc > 2 ? open_tokenizer(argv[2]) : open_vocab(NULL))
            return 1;
        int rc = tool();
        close_vocab(NULL);
        return rc;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex),  cmocka_unit_test(test_schema_basics),
        cmocka_unit_test(test_unique), cmocka_unit_test(test_gbnf),
        cmocka_unit_test(test_lark),   cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
