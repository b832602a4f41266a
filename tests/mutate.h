/* Seeded damage to the headers of model files: bits, bytes, lengths and offsets of binary ones; members and values of JSON.
 * Test programs only. */
#ifndef TESTS_MUTATE_H
#define TESTS_MUTATE_H

#include <stddef.h>
#include <stdint.h>

enum mutate_kind {
    MUTATE_BINARY,      /* GGUF, CTranslate2: numbers beside names */
    MUTATE_JSON,        /* a configuration, a tokenizer */
    MUTATE_SAFETENSORS, /* a length, JSON, data */
};

struct mutate_span { /* in a JSON text */
    size_t key, from,
        to; /* its member's first byte (= from: an element), its own, the one behind */
};

/* A good file, and what in it can be damaged. */
struct mutate_file {
    enum mutate_kind kind;
    char *good;
    size_t n, head;           /* bytes; of which belong to the header */
    struct mutate_span *span; /* JSON: every value */
    size_t *anchor;           /* MUTATE_BINARY: where names begin and end */
    size_t n_span, n_anchor;
};

/* Takes `good` (n bytes, malloc'ed, as unxz_read gives it). head: 0 = judge by the kind. */
void mutate_file_init(struct mutate_file *f, enum mutate_kind kind, char *good, size_t n,
                      size_t head);
void mutate_file_free(struct mutate_file *f);

/* Bytes that hold any mutant. */
size_t mutate_room(const struct mutate_file *f);
/* Mutant number `seed` into dst, its length; a short description into what [n_what]. */
size_t mutate(const struct mutate_file *f, uint64_t seed, char *dst, char *what, size_t n_what);
/* The JSON text with value `span` replaced by `by`; NULL: its member is taken out. */
size_t mutate_value(const struct mutate_file *f, size_t span, const char *by, char *dst);
/* Two values at once, chosen by `seed`, become small or large numbers: each may be right, and both together not. */
size_t mutate_pair(const struct mutate_file *f, uint64_t seed, char *dst, char *what,
                   size_t n_what);

#endif
