/* Streams: model outputs of every family and what they mean; the same for every way to cut them into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_impl.h"
#include "api/stream.h"
#include "api/tools.h"
#include "engine/base/mem.h"

static json_t *tools, *cases;

/* Check what every sequence of events must keep. */
struct watch {
    struct stream_fold fold;
    int open; /* the call that is open, or -1 */
    int next;
    size_t from; /* end of the text so far, in what was pushed */
    bool nomem;
};

static void on_event(void *ctx, const struct stream_event *ev)
{
    struct watch *w = ctx;
    switch (ev->kind) {
    case STREAM_TEXT:
        assert_true(ev->from >= w->from);
        w->from = ev->from + ev->text.len;
        /* fall through */
    case STREAM_REASONING:
        assert_int_equal(w->open, -1);
        break;
    case STREAM_CALL_BEGIN:
        assert_int_equal(w->open, -1);
        assert_int_equal(ev->call, w->next++);
        assert_true(ev->name[0] && ev->id[0]);
        w->open = ev->call;
        break;
    case STREAM_CALL_ARGS:
    case STREAM_CALL_END:
        assert_int_equal(ev->call, w->open);
        if (ev->kind == STREAM_CALL_END)
            w->open = -1;
        break;
    }
    if (ev->kind == STREAM_TEXT || ev->kind == STREAM_REASONING || ev->kind == STREAM_CALL_ARGS) {
        assert_true(ev->text.len > 0);
        assert_true(utf8_valid(ev->text.p, ev->text.len));
    }
    if (!w->nomem && stream_fold_add(&w->fold, ev))
        w->nomem = true;
}

static struct stream_opts opts_of(const json_t *c, struct watch *w)
{
    const char *family = json_string_value(json_object_get(c, "family"));
    struct stream_opts o = {.family = family ? tools_family(family) : NULL,
                            .tools = tools,
                            .max_calls = (int)json_integer_value(json_object_get(c, "max_calls")),
                            .thinking = json_is_true(json_object_get(c, "opened")),
                            .id_seed = 7,
                            .event = on_event,
                            .ctx = w};
    assert_true(!family || o.family);
    const json_t *think = json_object_get(c, "think");
    if (json_is_array(think)) {
        o.think_open = json_string_value(json_array_get(think, 0));
        o.think_close = json_string_value(json_array_get(think, 1));
    }
    return o;
}

/* Cut at the given ascending offsets. */
static int feed(const json_t *c, struct watch *w, const size_t *cut, size_t n_cut)
{
    const char *text = json_string_value(json_object_get(c, "text"));
    size_t n = json_string_length(json_object_get(c, "text")), at = 0;
    *w = (struct watch){.open = -1};
    struct stream_opts o = opts_of(c, w);
    struct stream *s;
    int rc = stream_open(&s, &o);
    if (rc)
        return rc;
    for (size_t k = 0; k <= n_cut && !rc; k++) {
        size_t to = k < n_cut ? cut[k] : n;
        /* as a stream gets it: a buffer that ends with the piece */
        char *piece = malloc(to - at + 1);
        memcpy(piece, text + at, to - at);
        rc = stream_push(s, piece, to - at);
        free(piece);
        at = to;
    }
    if (!rc)
        rc = stream_finish(s);
    stream_close(s);
    return rc ? rc : w->nomem ? ERR_NOMEM : 0;
}

static json_t *fold_json(const struct stream_fold *f)
{
    json_t *o = json_object(), *calls = json_array();
    json_object_set_new(o, "text", json_stringn(buf_cstr(&f->text), f->text.len));
    json_object_set_new(o, "reasoning", json_stringn(buf_cstr(&f->reasoning), f->reasoning.len));
    for (int i = 0; i < f->n_call; i++) {
        const struct stream_call *k = &f->call[i];
        json_array_append_new(calls, json_pack("{s:s, s:s%, s:s, s:b}", "name", k->name, "args",
                                               buf_cstr(&k->args), k->args.len, "id", k->id,
                                               "ended", k->ended));
    }
    json_object_set_new(o, "calls", calls);
    return o;
}

static json_t *fold_cut(const json_t *c, const size_t *cut, size_t n_cut)
{
    struct watch w;
    assert_int_equal(feed(c, &w, cut, n_cut), 0);
    assert_int_equal(w.open, -1);
    json_t *o = fold_json(&w.fold);
    stream_fold_free(&w.fold);
    return o;
}

static bool same(json_t *got, json_t *want, const json_t *c)
{
    if (json_equal(got, want))
        return true;
    char *a = json_dumps(got, JSON_SORT_KEYS), *b = json_dumps(want, JSON_SORT_KEYS);
    print_error("%s: %s\n got  %s\n want %s\n", json_string_value(json_object_get(c, "family")),
                json_string_value(json_object_get(c, "what")), a, b);
    free(a);
    free(b);
    return false;
}

static void assert_same(json_t *got, json_t *want, const json_t *c)
{
    if (!same(got, want, c))
        fail();
}

/* Offsets where characters begin. */
static size_t boundaries(const char *text, size_t n, size_t *at)
{
    size_t k = 0;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)text[i] & 0xC0) != 0x80)
            at[k++] = i;
    return k;
}

static void meanings(void **state)
{
    (void)state;
    size_t i, k;
    int bad = 0;
    json_t *c, *want, *call;
    json_array_foreach(cases, i, c)
    {
        json_t *got = fold_cut(c, NULL, 0);
        want = json_object();
        json_object_set_new(want, "text", json_string(""));
        json_object_set_new(want, "reasoning", json_string(""));
        json_object_set_new(want, "calls", json_array());
        json_object_update(want, json_object_get(c, "want"));
        json_array_foreach(json_object_get(got, "calls"), k, call)
        {
            json_t *w = json_array_get(json_object_get(want, "calls"), k);
            if (!json_object_get(w, "id"))
                json_object_del(call, "id");
            if (!json_object_get(w, "ended"))
                json_object_del(call, "ended");
            /* The exact text is of no matter, but that it is that JSON. */
            json_t *args = json_object_get(w, "json");
            if (args) {
                json_t *v = json_loads(json_string_value(json_object_get(call, "args")),
                                       JSON_ALLOW_NUL, NULL);
                bad += !same(v, args, c);
                json_decref(v);
                json_object_set(call, "json", args);
                json_object_del(call, "args");
            }
        }
        bad += !same(got, want, c);
        json_decref(got);
        json_decref(want);
    }
    assert_int_equal(bad, 0);
    assert_true(json_array_size(cases) > 100);
}

static void any_cut(void **state)
{
    (void)state;
    static size_t at[16384];
    uint64_t rnd = 88172645463325252u;
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c)
    {
        const char *text = json_string_value(json_object_get(c, "text"));
        size_t n = json_string_length(json_object_get(c, "text"));
        assert_true(n < sizeof at / sizeof *at);
        json_t *want = fold_cut(c, NULL, 0), *got;
        size_t n_at = boundaries(text, n, at);
        for (size_t k = 0; k < n_at; k++) { /* every cut in two */
            got = fold_cut(c, &at[k], 1);
            assert_same(got, want, c);
            json_decref(got);
        }
        got = fold_cut(c, at, n_at); /* every character alone */
        assert_same(got, want, c);
        json_decref(got);
        for (int round = 0; round < 200; round++) { /* and many pieces at random */
            size_t cut[64], n_cut = 0;
            for (size_t k = 0; k < n_at && n_cut < 64; k++) {
                rnd ^= rnd << 13, rnd ^= rnd >> 7, rnd ^= rnd << 17;
                if (rnd % 100 < 5 + (unsigned)round % 60)
                    cut[n_cut++] = at[k];
            }
            got = fold_cut(c, cut, n_cut);
            assert_same(got, want, c);
            json_decref(got);
        }
        json_decref(want);
    }
}

/* Each beginning of each output is an answer that was broken off: no error, nothing lost but marks. */
static void any_end(void **state)
{
    (void)state;
    static size_t at[16384];
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c)
    {
        json_t *text = json_object_get(c, "text");
        size_t n_at = boundaries(json_string_value(text), json_string_length(text), at);
        for (size_t k = 0; k < n_at; k++) {
            json_t *part = json_copy(c);
            json_object_set_new(part, "text", json_stringn(json_string_value(text), at[k]));
            size_t half = at[k / 2];
            json_t *one = fold_cut(part, NULL, 0), *two = fold_cut(part, &half, k > 0);
            assert_same(two, one, part);
            json_decref(one);
            json_decref(two);
            json_decref(part);
        }
    }
}

static void no_memory(void **state)
{
    (void)state;
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c)
    {
        for (long k = 1;; k++) {
            struct watch w = {0};
            mem_fail_after(k, false);
            int rc = feed(c, &w, NULL, 0);
            mem_fail_after(0, false);
            stream_fold_free(&w.fold);
            if (!rc)
                break;
            assert_int_equal(rc, ERR_NOMEM);
            assert_true(k < 1000);
        }
    }
}

static int setup(void **state)
{
    (void)state;
    json_error_t e;
    api__json_init();
    json_t *o = json_load_file("tests/data/tools/outputs.json", JSON_ALLOW_NUL, &e);
    if (!o)
        fail_msg("outputs.json:%d: %s", e.line, e.text);
    tools = json_incref(json_object_get(o, "tools"));
    cases = json_incref(json_object_get(o, "cases"));
    json_decref(o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(tools);
    json_decref(cases);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meanings),
        cmocka_unit_test(any_cut),
        cmocka_unit_test(any_end),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
