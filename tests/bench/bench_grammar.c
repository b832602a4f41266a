/* What structured output costs: time to compile each schema, and time of each token's mask, along valid instances.
 *     bench_grammar TOKENIZER.json SCHEMAS.jsonl      (lines {"schema": ..., "valid": [...]}; both may be .xz)
 * Prints medians, 99th percentiles and worst. "first" is a grammar's first text, "again" the following ones. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/schema.h"
#include "engine/base/mem.h"
#include "tests/unxz.h"

struct series {
    double *v;
    size_t n, cap;
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* machines that test are busy */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void add(struct series *s, double v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 1024;
        s->v = xrealloc(s->v, s->cap * sizeof *s->v);
    }
    s->v[s->n++] = v;
}

static int by_value(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return (a > b) - (a < b);
}

static void print(const char *name, struct series *s)
{
    if (!s->n)
        return;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->v[i];
    printf("%-14s n=%-7zu median %9.1f  mean %9.1f  p99 %9.1f  worst %10.1f us\n", name, s->n,
           s->v[s->n / 2], sum / (double)s->n, s->v[s->n * 99 / 100], s->v[s->n - 1]);
    free(s->v);
}

struct bench {
    struct tokenizer *tok;
    struct grammar_vocab *vocab;
    uint32_t *bits;
    size_t n_word;
    struct series compile, first, again, accept;
    size_t refused, bytes;
};

static void walk(struct bench *b, struct grammar *g, const char *text, struct series *mask)
{
    struct grammar_state *s;
    struct tok_ids ids = {0};
    if (grammar_state_open(&s, g) || tok_encode(b->tok, text, strlen(text), 0, &ids))
        abort();
    for (size_t i = 0; i < ids.n; i++) {
        double t0 = now_us();
        grammar_mask(s, b->bits, b->n_word);
        double t1 = now_us();
        int rc = grammar_accept(s, ids.id[i]);
        add(mask, t1 - t0);
        add(&b->accept, now_us() - t1);
        if (rc)
            break;
    }
    tok_ids_free(&ids);
    grammar_state_close(s);
}

static void one(struct bench *b, const json_t *o)
{
    struct gr_builder *gb;
    struct schema_err e;
    struct grammar *g;
    if (gr_builder_open(&gb, b->vocab, NULL))
        abort();
    double t0 = now_us();
    int rc = gr_compile(gb, schema_add(gb, json_object_get(o, "schema"), NULL, &e), &g, &e.err);
    add(&b->compile, now_us() - t0);
    gr_builder_close(gb);
    if (rc) {
        b->refused++;
        return;
    }
    b->bytes += grammar_bytes(g);
    json_t *v = json_object_get(o, "valid");
    for (size_t i = 0; i < json_array_size(v); i++) {
        char *text = json_dumps(json_array_get(v, i), JSON_COMPACT | JSON_ENCODE_ANY);
        walk(b, g, text, i ? &b->again : &b->first);
        free(text);
    }
    grammar_unref(g);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct err e;
    char path[128];
    size_t n;
    if (argc != 3) {
        fprintf(stderr, "usage: %s TOKENIZER.json[.xz] SCHEMAS.jsonl[.xz]\n", argv[0]);
        return 2;
    }
    char *lines = unxz_read(argv[2], &n), *save = NULL;
    if (!lines || unxz_temp(argv[1], path, sizeof path) || tok_open_hf(&b.tok, path, &e)) {
        fprintf(stderr, "cannot read the files\n");
        return 1;
    }
    unlink(path);
    double t0 = now_us();
    if (grammar_vocab_open(&b.vocab, b.tok, tok_n_vocab(b.tok), &e))
        return 1;
    b.n_word = ((size_t)tok_n_vocab(b.tok) + 31) / 32;
    b.bits = xcalloc(b.n_word, 4);
    printf("vocabulary of %d tokens: trie in %.1f ms\n", tok_n_vocab(b.tok), (now_us() - t0) / 1e3);
    for (char *l = strtok_r(lines, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        json_t *o = json_loads(l, JSON_DECODE_ANY, NULL);
        if (o)
            one(&b, o);
        json_decref(o);
    }
    printf("schemas: %zu compiled, %zu refused, %zu KiB each\n", b.compile.n - b.refused, b.refused,
           b.bytes / 1024 / (b.compile.n - b.refused));
    print("compile", &b.compile);
    print("mask, first", &b.first);
    print("mask, again", &b.again);
    print("accept", &b.accept);
    free(b.bits);
    free(lines);
    grammar_vocab_unref(b.vocab);
    tok_close(b.tok);
    return 0;
}
