/* Typed access to the values of a GGUF file. See gguf.h. */
#include "engine/load/gguf_impl.h"

#include <math.h>

size_t gguf__type_bytes(uint32_t t)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return t < sizeof bytes ? bytes[t] : 0;
}

const char *gguf__type_name(uint32_t t)
{
    static const char *const name[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "string", "array", "u64", "i64", "f64"};
    return t < sizeof name / sizeof *name ? name[t] : "unknown";
}

struct gguf_shown gguf__show(struct view v)
{
    struct gguf_shown r;
    size_t n = v.len < sizeof r.s - 4 ? v.len : sizeof r.s - 4;
    for (size_t i = 0; i < n; i++)
        r.s[i] = (char)(v.p[i] >= 0x20 && v.p[i] < 0x7f ? v.p[i] : '?');
    memcpy(r.s + n, n < v.len ? "..." : "", n < v.len ? 4 : 1);
    return r;
}

/* An integer of type t at p: *neg tells that the result is that of a negative number. */
static bool int_load(enum gguf_type t, const uint8_t *p, uint64_t *out, bool *neg)
{
    int64_t v = 0;
    uint16_t h;
    switch (t) {
    case GGUF_U8:
    case GGUF_BOOL:
        v = *p;
        break;
    case GGUF_I8:
        v = (int8_t)*p;
        break;
    case GGUF_U16:
    case GGUF_I16:
        memcpy(&h, p, 2);
        v = t == GGUF_U16 ? h : (int16_t)h;
        break;
    case GGUF_U32:
        v = gguf__u32(p);
        break;
    case GGUF_I32:
        v = (int32_t)gguf__u32(p);
        break;
    case GGUF_U64:
        *out = gguf__u64(p);
        *neg = false;
        return true;
    case GGUF_I64:
        v = (int64_t)gguf__u64(p);
        break;
    default:
        return false;
    }
    *out = (uint64_t)v;
    *neg = v < 0;
    return true;
}

static bool float_load(enum gguf_type t, const uint8_t *p, double *out)
{
    float f;
    if (t == GGUF_F32) {
        memcpy(&f, p, 4);
        *out = (double)f;
    } else if (t == GGUF_F64) {
        memcpy(out, p, 8);
    } else {
        return false;
    }
    return true;
}

static int wrong_type(const struct gguf_kv *kv, const char *want, struct err *e)
{
    return err_set(e, ERR_INVAL, "key '%s': %s where %s is needed", SHOW(kv->key),
                   gguf__type_name(kv->type), want);
}

static int absent(const char *key, struct err *e)
{
    return err_set(e, ERR_NOTFOUND, "key '%s' is missing", key);
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);
    uint64_t v;
    bool neg;
    if (!kv)
        return absent(key, e);
    if (kv->type == GGUF_BOOL || !int_load(kv->type, kv->data, &v, &neg))
        return wrong_type(kv, "an integer", e);
    if (neg || v > UINT32_MAX)
        return err_set(e, ERR_INVAL, "key '%s': %s%llu does not fit 32 bits", key, neg ? "-" : "",
                       (unsigned long long)(neg ? 0 - v : v));
    *out = (uint32_t)v;
    return 0;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);
    double v;
    if (!kv)
        return absent(key, e);
    if (!float_load(kv->type, kv->data, &v))
        return wrong_type(kv, "a float", e);
    if (!isfinite(v) || fabs(v) > 3.4028234663852886e38)
        return err_set(e, ERR_INVAL, "key '%s': %g is no finite 32-bit number", key, v);
    *out = (float)v;
    return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);
    if (!kv)
        return absent(key, e);
    if (kv->type != GGUF_BOOL)
        return wrong_type(kv, "a bool", e);
    *out = *kv->data;
    return 0;
}

int gguf_get_str(const struct gguf *g, const char *key, struct view *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_kv_find(g, key);
    if (!kv)
        return absent(key, e);
    if (kv->type != GGUF_STRING)
        return wrong_type(kv, "a string", e);
    *out = (struct view){(const char *)kv->data + 8, gguf__u64(kv->data)};
    return 0;
}

struct view gguf_arr_str(const struct gguf_kv *kv, uint64_t i)
{
    CHECK(kv->str && i < kv->n);
    const uint8_t *p = kv->data + kv->str[i];
    return (struct view){(const char *)p + 8, gguf__u64(p)};
}

int64_t gguf_arr_int(const struct gguf_kv *kv, uint64_t i)
{
    uint64_t v;
    bool neg;
    CHECK(kv->type == GGUF_ARRAY && i < kv->n);
    CHECK(int_load(kv->elem, kv->data + i * gguf__type_bytes(kv->elem), &v, &neg));
    return !neg && v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

float gguf_arr_f32(const struct gguf_kv *kv, uint64_t i)
{
    double v;
    CHECK(kv->type == GGUF_ARRAY && i < kv->n);
    if (!float_load(kv->elem, kv->data + i * gguf__type_bytes(kv->elem), &v))
        return (float)gguf_arr_int(kv, i);
    return (float)v;
}
