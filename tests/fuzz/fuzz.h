/* A fuzz target: one file fuzz_NAME.c with these two symbols. The entry point has libFuzzer's name and contract, so a
 * target links with libFuzzer as well as with runner.c. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Run one input; 0. Must not keep state that changes what a later input does. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
/* Seeds: glob patterns of files (.xz are unpacked), NULL-terminated. */
extern const char *const fuzz_seeds[];

#endif
