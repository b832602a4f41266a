/* Fields of a request that are no sampling: limits of time, and how the prompt is made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/talk_run.h"

#define CHAT "/v1/chat/completions"
#define COMP "/v1/completions"

static struct talk_run run;

static int setup(void **state)
{
    (void)state;
    talk_run_open(&run);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    talk_run_close(&run);
    return 0;
}

#define HI "\"model\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* ---- limits of time ---- */

static const struct {
    const char *path, *body;
} ends[] = {{CHAT, HI},
            {COMP, "\"model\":\"t\",\"prompt\":\"hi\""},
            {"/v1/responses", "\"model\":\"t\",\"input\":\"hi\""},
            {"/v1/messages", "\"max_tokens\":9," HI}};

static void test_timeout(void **state)
{
    (void)state;
    static const char *const bad[] = {"0", "-1", "86401", "\"5\"", "true"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct api_call c;
        char body[400];
        snprintf(body, sizeof body, "{%s,\"timeout\":2.5}", ends[i].body);
        api_run_start(run.api, &c, ends[i].path, body);
        assert_false(c.done);
        assert_int_equal(c.req[0]->deadline_us, c.arrival_us + 2500000);
        api_call_free(&c);
        snprintf(body, sizeof body, "{%s,\"timeout\":null}", ends[i].body);
        api_run_start(run.api, &c, ends[i].path, body);
        assert_int_equal(c.req[0]->deadline_us, 0);
        api_call_free(&c);
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            snprintf(body, sizeof body, "{%s,\"timeout\":%s}", ends[i].body, bad[k]);
            api_run_start(run.api, &c, ends[i].path, body);
            assert_int_equal(c.status, 400);
            assert_non_null(strstr(buf_cstr(&c.out), "'timeout'"));
            api_call_free(&c);
        }
    }
}

/* What the scheduler says at the deadline, before the first token and after it. */
static void test_timeout_passed(void **state)
{
    (void)state;
    struct event ev = {.kind = EV_ERROR, .err = {ERR_TIMEOUT, "the deadline has passed"}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct api_call c;
        char body[400];
        snprintf(body, sizeof body, "{%s,\"timeout\":2.5}", ends[i].body);
        api_run_start(run.api, &c, ends[i].path, body);
        talk_run_text(&run, &c, "some");
        api_event(&c, 0, &ev);
        assert_int_equal(c.status, 503);
        assert_non_null(strstr(buf_cstr(&c.out), i < 3 ? "\"timeout\"" : "\"timeout_error\""));
        api_call_free(&c);
        snprintf(body, sizeof body, "{%s,\"stream\":true}", ends[i].body);
        api_run_start(run.api, &c, ends[i].path, body);
        talk_run_text(&run, &c, "some");
        api_event(&c, 0, &ev);
        assert_true(c.done && c.status == 200);
        assert_non_null(strstr(buf_cstr(&c.out), i < 3 ? "\"timeout\"" : "\"timeout_error\""));
        assert_null(strstr(buf_cstr(&c.out), "[DONE]"));
        api_call_free(&c);
    }
}

/* Writing for too long ends a choice behind a line break, as a limit does. */
static void test_writing_time(void **state)
{
    (void)state;
    for (int streaming = 0; streaming < 2; streaming++) {
        struct api_call c;
        char body[400];
        snprintf(body, sizeof body,
                 "{\"model\":\"t\",\"prompt\":\"hi\",\"t_max_predict_ms\":1,\"stream\":%s}",
                 streaming ? "true" : "false");
        api_run_start(run.api, &c, COMP, body);
        talk_run_text(&run, &c, "one");
        usleep(2000);
        talk_run_text(&run, &c, " two");
        assert_int_equal(c.n_cmd, 0);
        talk_run_text(&run, &c, "\nthree");
        assert_true(c.n_cmd == 1 && c.cmd[0].kind == API_FINISH_CHOICE);
        assert_int_equal(c.cmd[0].keep, 8);
        api_run_done(&c, 0, 0);
        json_t *v = api_run_answer(&c);
        char *text = api_run_text(v, 0);
        assert_string_equal(text, "one two\n");
        assert_string_equal(api_run_finish_reason(v, 0), "length");
        free(text);
        json_decref(v);
        api_call_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_timeout_passed),
        cmocka_unit_test(test_writing_time),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
