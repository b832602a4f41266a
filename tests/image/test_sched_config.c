/* Scheduler configurations to schedules: what diffusers' classes make of the same texts (tables of test_schedule.c's
 * goldens), their defaults, what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/image/sched_config.h"
#include "tests/golden.h"

#define BETAS     "\"beta_start\": 0.00085, \"beta_end\": 0.012, \"beta_schedule\": \"scaled_linear\""
#define CLS(name) "{\"_class_name\": \"" name "\""
#define SD(name)  CLS(name) ", " BETAS

static int read_text(const char *text, struct nsched_config *o, struct err *e)
{
    struct config *c = NULL;
    if (config_open_text(&c, text, strlen(text), "scheduler_config.json", e))
        fail_msg("%s", e->text);
    int rc = nsched_config_read(o, c, e);
    config_close(c);
    return rc;
}

/* |a - b| <= 1e-6 max(1, |b|) */
static void near(const char *key, const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= 1e-6 * fmax(1, fabs((double)b[i]))))
            fail_msg("%s: %s %zu: %.9g, diffusers %.9g", key, what, i, (double)a[i], (double)b[i]);
}

static void test_tables(void **st)
{
    (void)st;
    static const struct {
        const char *key, *text;
        int n_token;
    } rows[] = {
        {"ddim",
         SD("DDIMScheduler") ", \"clip_sample\": false, \"set_alpha_to_one\": false, "
                             "\"steps_offset\": 1}",
         0},
        {"ddim_v_zsnr",
         SD("DDIMScheduler") ", \"prediction_type\": \"v_prediction\", \"rescale_betas_zero_snr\": "
                             "true, \"timestep_spacing\": \"trailing\"}",
         0},
        {"pndm", SD("PNDMScheduler") ", \"skip_prk_steps\": true, \"steps_offset\": 1}", 0},
        {"euler",
         SD("EulerDiscreteScheduler") ", \"steps_offset\": 1, \"timestep_spacing\": \"leading\"}",
         0},
        {"euler_karras", SD("EulerDiscreteScheduler") ", \"use_karras_sigmas\": true}", 0},
        {"euler_linspace", SD("EulerDiscreteScheduler") "}", 0},
        {"euler_trailing",
         SD("EulerDiscreteScheduler") ", \"timestep_spacing\": \"trailing\", \"trained_betas\": "
                                      "null}",
         0},
        {"dpmpp_2m", SD("DPMSolverMultistepScheduler") "}", 0},
        {"dpmpp_2m_karras", SD("DPMSolverMultistepScheduler") ", \"use_karras_sigmas\": true}", 0},
        {"dpmpp_2m_v", SD("DPMSolverMultistepScheduler") ", \"prediction_type\": \"v_prediction\"}",
         0},
        {"flow_shift1", CLS("FlowMatchEulerDiscreteScheduler") "}", 0},
        {"flow_shift3", CLS("FlowMatchEulerDiscreteScheduler") ", \"shift\": 3.0}", 0},
        {"flow_dynamic",
         CLS("FlowMatchEulerDiscreteScheduler") ", \"shift\": 3.0, \"use_dynamic_shifting\": true}",
         1024},
        {"flow_terminal",
         CLS("FlowMatchEulerDiscreteScheduler") ", \"use_dynamic_shifting\": true, "
                                                "\"shift_terminal\": 0.02, \"max_shift\": 0.9, "
                                                "\"max_image_seq_len\": 8192}",
         1024},
    };
    struct golden *g = golden_open("tests/data/image/schedulers.safetensors.xz");
    assert_non_null(g);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int steps = 4; steps <= 20; steps += 16) {
            struct nsched_config c;
            struct nsched_table *t = NULL;
            struct err e = {0};
            char name[64];
            size_t n = 0;
            if (read_text(rows[i].text, &c, &e) ||
                nsched_table_open(&t, &c, steps, rows[i].n_token, &e))
                fail_msg("%s: %s", rows[i].key, e.text);
            snprintf(name, sizeof name, "%s.%d.timesteps", rows[i].key, steps);
            const float *v = golden_f32(g, name, &n);
            if (!v || n != (size_t)t->n)
                fail_msg("%s: %zu timesteps, not %d", name, n, t->n);
            near(name, "timestep", t->timestep, v, n);
            snprintf(name, sizeof name, "%s.%d.sigmas", rows[i].key, steps);
            v = golden_f32(g, name, &n);
            if (v && t->sigma[0] > 0)
                near(name, "sigma", t->sigma, v, n);
            nsched_table_close(t);
        }
    golden_close(g);
}

static void test_defaults(void **st)
{
    (void)st;
    struct err e = {0};
    struct nsched_config c;
    assert_int_equal(read_text(CLS("LCMScheduler") "}", &c, &e), 0);
    assert_true(c.kind == NSCHED_LCM && c.scaled_linear && c.alpha_to_one);
    assert_float_equal(c.beta_start, 0.00085, 1e-9);
    assert_float_equal(c.beta_end, 0.012, 1e-9);
    assert_int_equal(read_text(CLS("DDIMScheduler") "}", &c, &e), 0);
    assert_true(c.kind == NSCHED_DDIM && !c.scaled_linear && c.alpha_to_one);
    assert_float_equal(c.beta_end, 0.02, 1e-9);
    assert_int_equal(read_text(CLS("PNDMScheduler") "}", &c, &e), 0);
    assert_true(c.kind == NSCHED_PNDM && !c.alpha_to_one && c.spacing == SPACING_LEADING);
    assert_int_equal(read_text(CLS("HeunDiscreteScheduler") "}", &c, &e), 0);
    assert_true(c.kind == NSCHED_EULER && c.spacing == SPACING_LINSPACE);
    assert_int_equal(
        read_text(CLS("DPMSolverMultistepScheduler") ", \"algorithm_type\": \"sde-dpmsolver++\"}",
                  &c, &e),
        0);
    assert_int_equal(c.kind, NSCHED_DPMPP_2M);
}

static void test_refused(void **st)
{
    (void)st;
    static const struct {
        const char *text;
        int rc;
        const char *says;
    } bad[] = {
        {"{}", ERR_INVAL, "_class_name"},
        {CLS("OddScheduler") "}", ERR_UNSUPPORTED, "OddScheduler"},
        {CLS("DDIMScheduler") ", \"thresholding\": true}", ERR_UNSUPPORTED, "thresholding"},
        {CLS("DDIMScheduler") ", \"trained_betas\": [0.1]}", ERR_UNSUPPORTED, "trained_betas"},
        {CLS("DDIMScheduler") ", \"beta_schedule\": \"squaredcos_cap_v2\"}", ERR_UNSUPPORTED,
         "beta_schedule"},
        {CLS("DDIMScheduler") ", \"timestep_spacing\": \"odd\"}", ERR_UNSUPPORTED,
         "timestep_spacing"},
        {CLS("DDIMScheduler") ", \"prediction_type\": \"flow\"}", ERR_UNSUPPORTED,
         "prediction_type"},
        {CLS("DDIMScheduler") ", \"num_train_timesteps\": 0}", ERR_INVAL, "num_train_timesteps"},
        {CLS("DDIMScheduler") ", \"beta_start\": \"x\"}", ERR_INVAL, "beta_start"},
        {CLS("DDIMScheduler") ", \"steps_offset\": -1}", ERR_INVAL, "steps_offset"},
        {CLS("EulerDiscreteScheduler") ", \"use_exponential_sigmas\": true}", ERR_UNSUPPORTED,
         "use_exponential_sigmas"},
        {CLS("EulerDiscreteScheduler") ", \"use_beta_sigmas\": true}", ERR_UNSUPPORTED,
         "use_beta_sigmas"},
        {CLS("EulerDiscreteScheduler") ", \"final_sigmas_type\": \"sigma_min\"}", ERR_UNSUPPORTED,
         "final_sigmas_type"},
        {CLS("FlowMatchEulerDiscreteScheduler") ", \"use_karras_sigmas\": true}", ERR_UNSUPPORTED,
         "use_karras_sigmas"},
        {CLS("FlowMatchEulerDiscreteScheduler") ", \"invert_sigmas\": true}", ERR_UNSUPPORTED,
         "invert_sigmas"},
        {CLS("FlowMatchEulerDiscreteScheduler") ", \"time_shift_type\": \"odd\"}", ERR_UNSUPPORTED,
         "time_shift_type"},
        {CLS("FlowMatchEulerDiscreteScheduler") ", \"shift\": 0}", ERR_INVAL, "shift"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        struct nsched_config c = {.n_train = 7};
        int rc = read_text(bad[i].text, &c, &e);
        if (rc != bad[i].rc || !strstr(e.text, bad[i].says))
            fail_msg("%s: %d %s", bad[i].text, rc, e.text);
        assert_int_equal(c.n_train, 7); /* untouched */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
