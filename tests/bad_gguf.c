/* See bad_gguf.h. */
#include "tests/bad_gguf.h"

#include "engine/base/err.h"

const struct bad_gguf bad_gguf[BAD_GGUF_N] = {
    {"alignment-odd.gguf", ERR_PARSE, "'general.alignment': 3"},
    {"alignment-zero.gguf", ERR_PARSE, "'general.alignment': 0"},
    {"array-length.gguf", ERR_PARSE, "key 'a': array of 2305843009213693952"},
    {"array-nesting.gguf.xz", ERR_UNSUPPORTED, "key 'a': an array of arrays"},
    {"block-remainder.gguf", ERR_PARSE, "tensor 't': rows of 33"},
    {"dims-overflow.gguf", ERR_PARSE, "tensor 't': dimension 1"},
    {"duplicate-key.gguf", ERR_PARSE, "key 'a.b' is there twice"},
    {"empty.gguf", ERR_PARSE, "empty"},
    {"huge-kv-count.gguf", ERR_PARSE, "key count 1152921504606846976"},
    {"huge-tensor-count.gguf", ERR_PARSE, "tensor count 1152921504606846976"},
    {"key-length.gguf", ERR_PARSE, "key count 1 "},
    {"n-dims.gguf", ERR_PARSE, "tensor 't': 9 dimensions"},
    {"offset-beyond.gguf", ERR_PARSE, "tensor 't': 128 bytes at"},
    {"offset-unaligned.gguf", ERR_PARSE, "tensor 't': offset 7"},
    {"short-header.gguf", ERR_PARSE, "11 bytes are too few"},
    {"string-length.gguf", ERR_PARSE, "'general.name' goes beyond"},
    {"tensor-type.gguf", ERR_UNSUPPORTED, "tensor 't': type 250"},
    {"truncated-kv.gguf", ERR_PARSE, "500 bytes"},
    {"value-type.gguf", ERR_PARSE, "37 bytes"},
};
