/* Recurrent states in the engine: slots that a plan may not name, a state that several texts go on from, and
 * what slots cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/tree.h"

static char dir[TREE_PATH], model[2][TREE_PATH + 16]; /* without KV, with both */

static int setup(void **st)
{
    static const char *const name[] = {"mamba2", "lfm2"};
    (void)st;
    tree_make(dir);
    for (int i = 0; i < 2; i++) {
        char src[TREE_PATH];
        snprintf(src, sizeof src, "tests/data/folders/%s", name[i]);
        snprintf(model[i], sizeof model[i], "%s/%s", dir, name[i]);
        tree_copy(src, model[i]);
        remove(tree_path(model[i], "golden.safetensors"));
    }
    return 0;
}

static int teardown(void **st)
{
    (void)st;
    tree_remove(dir);
    return 0;
}

static struct eng_opts opts(int i)
{
    return (struct eng_opts){.path = model[i],
                             .device = "cpu",
                             .precision = PRECISION_F32,
                             .keep_logits = true,
                             .max_seqs = 4,
                             .max_rows = 64};
}

static void refuse(struct engine *g, const struct step_seq *seq, int n, const char *want)
{
    struct err e = {0};
    assert_int_equal(eng_step(g, &(struct step_plan){.n_seq = n, .seq = seq}, &e), ERR_INVAL);
    if (!strstr(e.text, want))
        fail_msg("\"%s\" does not say \"%s\"", e.text, want);
}

static void test_slots(void **st)
{
    (void)st;
    struct eng_opts o = opts(0);
    struct engine *g = run_open(&o);
    int32_t tok[4] = {1, 2, 3, 4}, block[2] = {1, 2}, n = eng_info(g)->n_state;
    struct step_seq s[2];
    assert_int_equal(n, 4 + 64);
    for (int i = 0; i < 2; i++)
        s[i] = (struct step_seq){.tok = tok,
                                 .n_tok = 4,
                                 .block = block + i,
                                 .n_block = 1,
                                 .state_src = -1,
                                 .state_dst = i};
    struct step_seq t[2] = {s[0], s[1]};
    t[0].state_dst = n;
    refuse(g, t, 1, "state slots -1 to 68 of 68");
    t[0].state_dst = -1;
    refuse(g, t, 1, "state slots");
    t[0] = s[0];
    t[0].state_src = 3; /* at position 0 nothing has been seen */
    refuse(g, t, 1, "state slots 3 to 0 of 68 at 0");
    t[0] = s[0];
    t[0].pos = 4;
    refuse(g, t, 1, "state slots -1 to 0 of 68 at 4");
    t[0] = s[0];
    t[1].state_dst = 0;
    refuse(g, t, 2, "written twice");
    t[1] = s[1];
    t[1].pos = 4;
    t[1].state_src = 0;
    refuse(g, t, 2, "reads state slot 0");
    struct err e = {0};
    assert_int_equal(eng_step(g, &(struct step_plan){.n_seq = 2, .seq = s}, &e), 0);
    eng_close(g);
}

/* One prompt's state, read by two texts in one step: each goes on as if it had computed the prompt itself. */
static void test_shared(void **st)
{
    (void)st;
    static struct run_seq whole, part[2];
    static const int32_t ids[] = {5, 9, 200, 31, 7, 77, 410, 3, 12, 40, 41, 42, 99, 1, 2, 6, 8, 10};
    enum { N = sizeof ids / sizeof *ids, SHARED = 16 };
    for (int m = 0; m < 2; m++) {
        struct eng_opts o = opts(m);
        struct engine *g = run_open(&o);
        struct run_seq *both[2] = {&part[0], &part[1]};
        int32_t n[2] = {N - SHARED, N - SHARED};
        run_seq_init(&whole, ids, N, 1);
        run_generate(g, &whole, 64, 1);
        run_seq_init(&part[0], ids, N, 5);
        int32_t first = SHARED;
        run_step(g, both, &first, 1);
        part[1] = part[0]; /* the same full block, the same state to begin with */
        part[0].from = part[1].from = part[0].slot + 1;
        part[0].slot = 30;
        part[1].slot = 31;
        part[1].block[1] = 10;
        run_step(g, both, n, 2);
        assert_true(part[0].digest == whole.digest && part[1].digest == whole.digest);
        eng_close(g);
    }
}

static void test_memory(void **st)
{
    (void)st;
    struct eng_opts o = opts(0);
    struct eng_memory mem;
    struct err e = {0};
    /* mamba2 of the case: 3 layers of (4 - 1) * 192 + 128 * 16 floats */
    const size_t slot = 3 * (3 * 192 + 128 * 16) * sizeof(float);
    assert_int_equal(eng_memory_plan(&o, &mem, &e), 0);
    assert_int_equal(mem.state, 68 * slot);
    assert_int_equal(mem.kv, 0);
    assert_int_equal(mem.kv_per_token, 0);
    assert_true(mem.n_block > 64);
    o.n_state = 3;
    assert_int_equal(eng_memory_plan(&o, &mem, &e), 0);
    assert_int_equal(mem.state, 3 * slot);
    assert_int_equal(mem.total, mem.weights + mem.work + mem.state);
    o.n_state = -1;
    assert_int_equal(eng_memory_plan(&o, &mem, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "n_state is -1"));
    o = opts(1); /* with attention */
    assert_int_equal(eng_memory_plan(&o, &mem, &e), 0);
    assert_true(mem.kv > 0 && mem.state == (size_t)68 * 2 * 2 * 64 * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slots), cmocka_unit_test(test_shared),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
