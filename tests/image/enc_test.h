/* Rigs of the text encoder tests: a device with a run on it, components from folders, comparisons. Included by one
 * program each. */
#ifndef TESTS_IMAGE_ENC_TEST_H
#define TESTS_IMAGE_ENC_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/cpu/dispatch.h"
#include "engine/image/enc_impl.h"
#include "tests/golden.h"

#define DATA "tests/data/image/encoders/"

struct rig {
    const struct backend *be;
    struct dev *dev;
    struct nn n;
    enum eng_precision precision;
    char name[64];
};

static inline void rig_open(struct rig *r, const struct backend *be, const char *isa,
                            enum eng_precision p)
{
    struct backend_opts o = {.n_threads = 2, .isa = isa, .precision = p};
    struct backend_info info;
    struct err e = {0};
    *r = (struct rig){.be = be, .precision = p};
    if (be->open(&r->dev, &o, &e))
        fail_msg("%s", e.text);
    be->info(r->dev, &info);
    snprintf(r->name, sizeof r->name, "%s", info.name);
    r->n = (struct nn){.be = be, .dev = r->dev, .mul = info.mul_dtype};
}

static inline void rig_close(struct rig *r)
{
    nn_close(&r->n);
    r->be->close(r->dev);
}

/* fn on ref and on every table that the processor can run, in f32. */
static inline void each_rig(void (*fn)(struct rig *r))
{
    struct rig r;
    rig_open(&r, &ref_backend, NULL, PRECISION_F32);
    fn(&r);
    rig_close(&r);
    for (int i = 0; i < CPU_N_ISA; i++) {
        if (!cpu_isa_usable(i)) {
            print_message("SKIP isa %s: this processor can't run it\n", cpu_isas[i].name);
            continue;
        }
        rig_open(&r, &cpu_backend, cpu_isas[i].name, PRECISION_F32);
        fn(&r);
        rig_close(&r);
    }
}

/* A component of a folder; cls may be "". */
static inline void comp_open(struct comp *c, const char *dir, const char *cls)
{
    struct source *s = NULL;
    struct err e = {0};
    char path[256];
    *c = (struct comp){.name = "text_encoder"};
    snprintf(c->cls, sizeof c->cls, "%s", cls);
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (config_open(&c->cfg, path, &e) || source_open(&s, dir, &e))
        fail_msg("%s", e.text);
    c->map.src = s;
}

static inline void comp_close(struct comp *c)
{
    config_close(c->cfg);
    source_close((struct source *)(uintptr_t)c->map.src);
    *c = (struct comp){0};
}

/* The component with another configuration: the folder's text with `from` replaced by `to`. */
static inline void comp_edit(struct comp *c, const char *dir, const char *from, const char *to)
{
    char path[256], text[4096], out[4608];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *p = strstr(text, from);
    assert_non_null(p);
    snprintf(out, sizeof out, "%.*s%s%s", (int)(p - text), text, to, p + strlen(from));
    config_close(c->cfg);
    c->cfg = NULL;
    if (config_open_text(&c->cfg, out, strlen(out), "config.json", &e))
        fail_msg("%s", e.text);
}

static inline void weights_open(struct nn_weights **w, const struct rig *r)
{
    assert_int_equal(nn_weights_open(w, r->be, r->dev, r->precision, NULL), 0);
}

/* |got - want| <= tol * max(1, |want|) */
static inline void near(const char *what, const float *got, const float *want, size_t n, double tol)
{
    assert_non_null(want);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tol * fmax(1, fabs((double)want[i]))))
            fail_msg("%s: value %zu is %.9g, not %.9g", what, i, (double)got[i], (double)want[i]);
}

static inline double nmse(const float *got, const float *want, size_t n)
{
    double err = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        err += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        all += (double)want[i] * (double)want[i];
    }
    return err / all;
}

/* Golden "<case>.<what>"; *n may be NULL. */
static inline const float *gold_f32(struct golden *g, const char *name, const char *what, size_t *n)
{
    char key[128];
    size_t k = 0;
    snprintf(key, sizeof key, "%s.%s", name, what);
    const float *v = golden_f32(g, key, &k);
    if (!v)
        fail_msg("no golden %s", key);
    if (n)
        *n = k;
    return v;
}
static inline const int32_t *gold_i32(struct golden *g, const char *name, const char *what,
                                      size_t *n)
{
    char key[128];
    size_t k = 0;
    snprintf(key, sizeof key, "%s.%s", name, what);
    const int32_t *v = golden_i32(g, key, &k);
    if (!v)
        fail_msg("no golden %s", key);
    if (n)
        *n = k;
    return v;
}

/* ---- batches ---- */

#define BATCH_IDS 1024
struct batch {
    int32_t ids[BATCH_IDS], start[ENC_TEXTS + 1];
    struct enc_batch b;
};

static inline void batch_clear(struct batch *b)
{
    *b = (struct batch){.b = {0}};
}

static inline void batch_add(struct batch *b, const int32_t *ids, size_t n)
{
    int32_t at = b->start[b->b.n];
    assert_true(b->b.n < ENC_TEXTS && (size_t)at + n <= BATCH_IDS);
    memcpy(b->ids + at, ids, n * sizeof *ids);
    b->start[++b->b.n] = at + (int32_t)n;
    b->b.ids = b->ids;
    b->b.start = b->start;
}

/* ---- runs: dry, then for real in exactly the memory that the dry run counted ---- */

#define RUN(r, call)                                                                               \
    do {                                                                                           \
        struct err e_ = {0};                                                                       \
        nn_begin(&(r)->n, true);                                                                   \
        call;                                                                                      \
        assert_int_equal(nn_end(&(r)->n, &e_), 0);                                                 \
        assert_int_equal((r)->n.mem.n, 0);                                                         \
        size_t peak_ = (r)->n.mem.peak;                                                            \
        nn_close_keep(r);                                                                          \
        assert_int_equal(nn_reserve(&(r)->n, peak_), 0);                                           \
        nn_begin(&(r)->n, false);                                                                  \
        call;                                                                                      \
        if (nn_end(&(r)->n, &e_))                                                                  \
            fail_msg("%s: %s", (r)->name, e_.text);                                                \
        assert_int_equal((r)->n.mem.n, 0);                                                         \
        assert_int_equal((r)->n.mem.peak, peak_);                                                  \
    } while (0)

/* Gives the work buffer back, so that the next one is exactly as large as asked for. */
static inline void nn_close_keep(struct rig *r)
{
    enum dtype mul = r->n.mul;
    nn_close(&r->n);
    r->n = (struct nn){.be = r->be, .dev = r->dev, .mul = mul};
}

#endif
