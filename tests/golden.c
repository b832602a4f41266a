/* See golden.h. Format: u64 length, JSON header {name: {dtype, shape, data_offsets}}, data. */
#include "tests/golden.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/arena.h"
#include "tests/unxz.h"

struct golden {
    char *bytes;
    size_t n;
    const char *data;
    json_t *head;
    struct arena arena;
};

struct golden *golden_open(const char *path)
{
    struct golden *g = calloc(1, sizeof *g);
    uint64_t len = 0;
    g->bytes = unxz_read(path, &g->n);
    if (g->bytes && g->n >= 8)
        memcpy(&len, g->bytes, 8);
    if (len > 0 && len <= g->n - 8)
        g->head = json_loadb(g->bytes + 8, (size_t)len, 0, NULL);
    if (!g->head) {
        fprintf(stderr, "%s: no safetensors file\n", path);
        golden_close(g);
        return NULL;
    }
    g->data = g->bytes + 8 + len;
    return g;
}

void golden_close(struct golden *g)
{
    if (!g)
        return;
    json_decref(g->head);
    arena_free(&g->arena);
    free(g->bytes);
    free(g);
}

/* Bytes of the tensor and its dtype; NULL if absent or out of the file. */
static const char *tensor_find(struct golden *g, const char *name, const char **dtype,
                               size_t *bytes)
{
    json_int_t from, to;
    json_t *t = json_object_get(g->head, name);
    if (!t || json_unpack(t, "{s:s, s:[I, I]}", "dtype", dtype, "data_offsets", &from, &to))
        return NULL;
    size_t room = g->n - (size_t)(g->data - g->bytes);
    if (from < 0 || to < from || (size_t)to > room)
        return NULL;
    *bytes = (size_t)(to - from);
    return g->data + from;
}

const float *golden_f32(struct golden *g, const char *name, size_t *n)
{
    const char *dtype;
    size_t bytes;
    const char *p = tensor_find(g, name, &dtype, &bytes);
    if (!p || strcmp(dtype, "F32"))
        return NULL;
    *n = bytes / 4;
    float *out = arena_alloc(&g->arena, bytes + 4);
    return out ? memcpy(out, p, bytes) : NULL;
}

const int32_t *golden_i32(struct golden *g, const char *name, size_t *n)
{
    const char *dtype;
    size_t bytes;
    const char *p = tensor_find(g, name, &dtype, &bytes);
    if (!p || (strcmp(dtype, "I64") && strcmp(dtype, "I32")))
        return NULL;
    size_t width = dtype[1] == '6' ? 8 : 4;
    *n = bytes / width;
    int32_t *out = arena_alloc(&g->arena, *n * 4 + 4);
    for (size_t i = 0; out && i < *n; i++)
        memcpy(&out[i], p + i * width, 4); /* little-endian: the low half */
    return out;
}
