/* Models write anything: every family takes any text apart without harm, and the same whatever pieces it comes in. The
 * first bytes choose the family, marks of reasoning and the pieces. */
#include "tests/fuzz/fuzz.h"

#include <jansson.h>

#include "api/stream_impl.h"

const char *const fuzz_seeds[] = {"tests/data/fuzz/stream-*", NULL};

static const char *const families[] = {
#define FAMILY(table, mark, mark2) #table,
#include "api/tools.def"
#undef FAMILY
};

struct seen {
    struct stream_fold fold;
    int open;
};

static void on_event(void *ctx, const struct stream_event *ev)
{
    struct seen *w = ctx;
    CHECK(ev->kind == STREAM_CALL_BEGIN || ev->kind == STREAM_CALL_END || ev->text.len > 0);
    if (ev->kind == STREAM_CALL_ARGS || ev->kind == STREAM_CALL_END)
        CHECK(w->open == ev->call);
    else
        CHECK(w->open < 0);
    if (ev->kind == STREAM_CALL_BEGIN)
        w->open = ev->call;
    if (ev->kind == STREAM_CALL_END)
        w->open = -1;
    CHECK(!stream_fold_add(&w->fold, ev));
}

static const json_t *tools(void)
{
    static json_t *v;
    if (!v)
        v = json_loads(
            "[{\"function\":{\"name\":\"now\"}},{\"function\":{\"name\":\"get_weather\","
            "\"parameters\":"
            "{\"properties\":{\"city\":{\"type\":\"string\"},\"k\":{\"type\":\"integer\"}}}}}]",
            0, NULL);
    CHECK(v);
    return v;
}

/* `step` bytes at a time, to the next whole character; 0: all at once. */
static void run(const uint8_t head[3], const char *text, size_t n, size_t step, struct seen *w)
{
    struct stream_opts o = {
        .family = tools_family(families[head[0] % (sizeof families / sizeof *families)]),
        .tools = tools(),
        .event = on_event,
        .ctx = w,
        .max_calls = head[1] >> 6,
        .thinking = head[1] & 1};
    struct stream *s;
    *w = (struct seen){.open = -1};
    if (head[1] & 2) {
        o.think_open = "<think>";
        o.think_close = "</think>";
    }
    CHECK(!stream_open(&s, &o));
    for (size_t at = 0; at < n;) {
        size_t k = step && step < n - at ? step : n - at;
        while (at + k < n && ((uint8_t)text[at + k] & 0xC0) == 0x80)
            k++;
        CHECK(!stream_push(s, text + at, k));
        at += k;
    }
    CHECK(!stream_finish(s));
    CHECK(w->open < 0);
    stream_close(s);
}

static bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && memcmp(buf_cstr(a), buf_cstr(b), a->len) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct seen a, b;
    if (n < 3 || n > 1 << 13 || !utf8_valid((const char *)data + 3, n - 3))
        return 0;
    run(data, (const char *)data + 3, n - 3, 0, &a);
    run(data, (const char *)data + 3, n - 3, 1 + data[2] % 16u, &b);
    CHECK(same(&a.fold.text, &b.fold.text) && same(&a.fold.reasoning, &b.fold.reasoning));
    CHECK(a.fold.n_call == b.fold.n_call);
    for (int i = 0; i < a.fold.n_call; i++) {
        CHECK(strcmp(a.fold.call[i].name, b.fold.call[i].name) == 0);
        CHECK(strcmp(a.fold.call[i].id, b.fold.call[i].id) == 0);
        CHECK(same(&a.fold.call[i].args, &b.fold.call[i].args));
    }
    stream_fold_free(&a.fold);
    stream_fold_free(&b.fold);
    return 0;
}
