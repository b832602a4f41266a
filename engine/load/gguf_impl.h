/* Shared by gguf.c (parser) and gguf_value.c (typed access); private to this folder. */
#ifndef ENGINE_LOAD_GGUF_IMPL_H
#define ENGINE_LOAD_GGUF_IMPL_H

#include "engine/load/gguf.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read in place");

/* Bytes of a value of fixed size, 0 for strings, arrays and unknown numbers. */
size_t gguf__type_bytes(uint32_t t);
/* "u8", "array"; "unknown" for a number that is no type. */
const char *gguf__type_name(uint32_t t);

/* A name from a file, made safe to print: control and non-ASCII bytes become '?', a long one is cut. */
struct gguf_shown {
    char s[72];
};
struct gguf_shown gguf__show(struct view v);
#define SHOW(v) (gguf__show(v).s)

/* Unaligned little-endian loads. */
static inline uint32_t gguf__u32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}
static inline uint64_t gguf__u64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

#endif
