/* GGUF files that are malformed in one way each, and what their refusal says. Test programs only. */
#ifndef TESTS_BAD_GGUF_H
#define TESTS_BAD_GGUF_H

struct bad_gguf {
    const char *file; /* in tests/data/gguf-tiny, behind "bad-" */
    int rc;
    const char *says;
};
#define BAD_GGUF_N 19
extern const struct bad_gguf bad_gguf[BAD_GGUF_N];

#endif
