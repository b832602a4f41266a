/* Opens what may be damaged and, where that goes well, takes one step with it; in a child process with little memory and
 * little time, so that a crash, a hang and greed are findings with a number. Test programs only. */
#ifndef TESTS_CORRUPT_H
#define TESTS_CORRUPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

/* Memory that a file's opening may take beside twice its bytes: pools, work tensors, tables of the tokenizer. */
#define CORRUPT_SPARE ((size_t)48 << 20)
#define CORRUPT_TIME  20 /* seconds that one opening and its step may take */

/* What a mutant belongs to: a model as a user names it. */
struct corrupt_model {
    const char *path;
    const char *file; /* that is damaged, within path; "" = path itself */
    bool text;        /* has a tokenizer: text_model_open reads it as well */
};

/* Opens on a device ("ref", "cpu"), takes a step, closes. The error of whatever failed first. */
int corrupt_try(const struct corrupt_model *m, const char *device, struct err *e);

struct corrupt_tally {
    uint64_t n, n_served, n_refused;
    size_t grown; /* most bytes of data that a child had more than at its start */
    int n_bad;    /* findings, each printed */
};
/* Case i: writes the damaged file and says in what [n_what] what was done to it. */
struct corrupt_run {
    struct corrupt_model m;
    void (*make)(void *arg, uint64_t i, char *what, size_t n_what);
    void *arg;
    uint64_t from, to;
};
void corrupt_run(const struct corrupt_run *r, struct corrupt_tally *t);

/* A folder's model.safetensors as two shards and an index. */
void corrupt_shard(const char *dir);
/* A folder's Whisper as CTranslate2 has it: model.bin instead of model.safetensors, a config.json that says little. */
void corrupt_to_ct2(const char *dir);

#endif
