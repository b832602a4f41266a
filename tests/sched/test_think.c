/* A bound on reasoning: after so many tokens its end is forced, once, with and without look-ahead. */
#include "tests/sched/rig.h"

#define N_OUT 24

static int32_t out[N_OUT];

/* Tokens of one request with this bound (NULL: none). */
static int run(const struct req_think *t, bool lookahead)
{
    int n = 0;
    fake_reset(32);
    fake.info.lookahead = lookahead;
    rig_open((struct sched_opts){0});
    struct request *r = rig_request(3, 20, N_OUT);
    if (t) {
        r->think = xmalloc(sizeof *t);
        *r->think = *t;
    }
    sched_submit(rig.s, r);
    for (int i = 0; i < 200 && rig_step() > 0; i++)
        ;
    for (int i = 0; i < rig.n_ev; i++) {
        assert_int_not_equal(rig.ev[i].kind, EV_ERROR);
        if (rig.ev[i].kind == EV_TOKEN)
            out[n++] = rig.ev[i].tok.token;
    }
    rig_close();
    return n;
}

static void forced(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        for (int budget = 0; budget < 6; budget++) {
            struct req_think t = {.budget = budget, .inside = true, .n_close = 2, .n_force = 2};
            t.close[0] = t.force[0] = 900;
            t.close[1] = t.force[1] = 901;
            assert_int_equal(run(NULL, ahead), N_OUT);
            int32_t before[N_OUT];
            memcpy(before, out, sizeof before);
            assert_int_equal(run(&t, ahead), N_OUT);
            assert_memory_equal(out, before, (size_t)budget * sizeof *out);
            assert_int_equal(out[budget], 900);
            assert_int_equal(out[budget + 1], 901);
            for (int i = budget + 2; i < N_OUT; i++) /* and not again */
                assert_false(out[i] == 900 && out[i - 1] != 900 && out[i] == 901);
        }
    }
}

/* Reasoning that ends by itself, and reasoning that never began, are left alone. */
static void left_alone(void **state)
{
    (void)state;
    int32_t before[N_OUT];
    assert_int_equal(run(NULL, true), N_OUT);
    memcpy(before, out, sizeof before);
    struct req_think t = {.budget = 4, .inside = true, .n_close = 1, .n_force = 1, .force = {900}};
    t.close[0] = before[3];
    assert_int_equal(run(&t, true), N_OUT);
    assert_memory_equal(out, before, sizeof before);
    t = (struct req_think){.n_open = 2,
                           .open = {998, 999},
                           .n_close = 1,
                           .close = {997},
                           .n_force = 1,
                           .force = {900}};
    assert_int_equal(run(&t, true), N_OUT);
    assert_memory_equal(out, before, sizeof before);
}

static void opened_by_the_model(void **state)
{
    (void)state;
    int32_t before[N_OUT];
    assert_int_equal(run(NULL, true), N_OUT);
    memcpy(before, out, sizeof before);
    struct req_think t = {
        .budget = 3, .n_open = 2, .n_close = 1, .close = {997}, .n_force = 1, .force = {900}};
    t.open[0] = before[4];
    t.open[1] = before[5];
    assert_int_equal(run(&t, true), N_OUT);
    assert_memory_equal(out, before, 9 * sizeof *out);
    assert_int_equal(out[9], 900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced),
        cmocka_unit_test(left_alone),
        cmocka_unit_test(opened_by_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
