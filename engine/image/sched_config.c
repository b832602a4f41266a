/* Reading of scheduler_config.json. See sched_config.h. */
#include "engine/image/sched_config.h"

#include "engine/base/log.h"

#include <string.h>

/* Classes whose noise schedule is that of a method we have: pictures differ a little from theirs, no more than with
 * another sampler of the same model. */
static const struct {
    const char *cls;
    enum nsched_kind kind;
} relatives[] = {
    {"UniPCMultistepScheduler", NSCHED_DPMPP_2M},
    {"DEISMultistepScheduler", NSCHED_DPMPP_2M},
    {"DPMSolverSinglestepScheduler", NSCHED_DPMPP_2M},
    {"DPMSolverSDEScheduler", NSCHED_DPMPP_2M},
    {"HeunDiscreteScheduler", NSCHED_EULER},
    {"LMSDiscreteScheduler", NSCHED_EULER},
    {"KDPM2DiscreteScheduler", NSCHED_EULER},
    {"KDPM2AncestralDiscreteScheduler", NSCHED_EULER_A},
    {"DDPMScheduler", NSCHED_DDIM},
    {"FlowMatchHeunDiscreteScheduler", NSCHED_FLOW},
};

static int kind_read(struct config *c, enum nsched_kind *kind, struct err *e)
{
    const char *cls = config_str(c, "_class_name", "");
    if (nsched_kind_by_class(cls, kind))
        return 0;
    for (size_t i = 0; i < sizeof relatives / sizeof *relatives; i++)
        if (!strcmp(relatives[i].cls, cls)) {
            *kind = relatives[i].kind;
            log_warn("image", "scheduler=%s is served by its nearest relative", cls);
            return 0;
        }
    if (!*cls)
        return err_set(e, ERR_INVAL, "scheduler configuration: no _class_name");
    return err_set(e, ERR_UNSUPPORTED, "scheduler configuration: class %s is not supported", cls);
}

/* Settings that must be off. */
static int refused(struct config *c, struct err *e)
{
    static const char *const off[] = {
        "thresholding",  "use_exponential_sigmas", "use_beta_sigmas",     "use_lu_lambdas",
        "invert_sigmas", "use_flow_sigmas",        "stochastic_sampling", "euler_at_final"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (config_bool(c, off[i], false))
            return err_set(e, ERR_UNSUPPORTED, "scheduler configuration: %s is not supported",
                           off[i]);
    if (config_has(c, "trained_betas"))
        return err_set(e, ERR_UNSUPPORTED,
                       "scheduler configuration: trained_betas is not supported");
    const char *last = config_str(c, "final_sigmas_type", "zero");
    if (strcmp(last, "zero"))
        return err_set(e, ERR_UNSUPPORTED,
                       "scheduler configuration: final_sigmas_type \"%.40s\" is not supported",
                       last);
    return 0;
}

/* Variants of a method that are served by its plain form: the same schedule, other steps along it. */
static void simplify(enum nsched_kind kind, struct config *c)
{
    static const struct {
        const char *key, *plain;
    } text[] = {{"algorithm_type", "dpmsolver++"}, {"solver_type", "midpoint"}};
    const char *key = NULL;
    if (kind == NSCHED_DPMPP_2M &&
        !strcmp(config_str(c, "_class_name", ""), "DPMSolverMultistepScheduler")) {
        for (size_t i = 0; i < sizeof text / sizeof *text; i++)
            if (strcmp(config_str(c, text[i].key, text[i].plain), text[i].plain) != 0)
                key = text[i].key;
        if (config_int(c, "solver_order", 2, 1, 3) != 2)
            key = "solver_order";
        if (!config_bool(c, "lower_order_final", true))
            key = "lower_order_final";
        if (config_bool(c, "euler_at_final", false))
            key = "euler_at_final";
    }
    if (kind == NSCHED_PNDM && !config_bool(c, "skip_prk_steps", false))
        key = "skip_prk_steps";
    if (key)
        log_warn("image", "scheduler: %s is read as its usual value", key);
}

/* Index of key's text in names[0..n), `def` when absent. */
static int choice(struct config *c, const char *key, const char *const *names, int n, int def,
                  struct err *e)
{
    const char *v = config_str(c, key, names[def]);
    for (int i = 0; i < n; i++)
        if (!strcmp(v, names[i]))
            return i;
    return err_set(e, ERR_UNSUPPORTED, "scheduler configuration: %s \"%.40s\" is not supported",
                   key, v);
}

static int diffusion_read(struct nsched_config *o, struct config *c, struct err *e)
{
    static const char *const betas[] = {"linear", "scaled_linear"};
    static const char *const spacings[] = {"linspace", "leading", "trailing"};
    static const char *const predictions[] = {"epsilon", "v_prediction", "sample"};
    bool lcm = o->kind == NSCHED_LCM;
    o->beta_start = config_num(c, "beta_start", lcm ? 0.00085 : o->beta_start, 0, 1);
    o->beta_end = config_num(c, "beta_end", lcm ? 0.012 : o->beta_end, 0, 1);
    int beta = choice(c, "beta_schedule", betas, 2, lcm, e);
    if (beta < 0)
        return beta;
    o->scaled_linear = beta == 1;
    int spacing = choice(c, "timestep_spacing", spacings, 3, (int)o->spacing, e);
    if (spacing < 0)
        return spacing;
    o->spacing = (enum nsched_spacing)spacing;
    int prediction = choice(c, "prediction_type", predictions, 3, PREDICT_EPSILON, e);
    if (prediction < 0)
        return prediction;
    o->prediction = (enum nsched_prediction)prediction;
    o->steps_offset = (int)config_int(c, "steps_offset", 0, 0, 1000);
    o->alpha_to_one = config_bool(c, "set_alpha_to_one", o->alpha_to_one);
    o->zero_snr = config_bool(c, "rescale_betas_zero_snr", false);
    o->lcm_original_steps = (int)config_int(c, "original_inference_steps", 50, 1, 100000);
    o->lcm_timestep_scaling = config_num(c, "timestep_scaling", 10, 1e-3, 1e6);
    return 0;
}

static int flow_read(struct nsched_config *o, struct config *c, struct err *e)
{
    static const char *const shifts[] = {"exponential", "linear"};
    o->shift = config_num(c, "shift", 1, 1e-3, 1e3);
    o->dynamic_shift = config_bool(c, "use_dynamic_shifting", false);
    o->base_shift = config_num(c, "base_shift", 0.5, -100, 100);
    o->max_shift = config_num(c, "max_shift", 1.15, -100, 100);
    o->base_len = (int)config_int(c, "base_image_seq_len", 256, 1, 1 << 24);
    o->max_len = (int)config_int(c, "max_image_seq_len", 4096, 1, 1 << 24);
    o->shift_terminal = config_num(c, "shift_terminal", 0, 0, 0.999);
    int shift = choice(c, "time_shift_type", shifts, 2, 0, e);
    if (shift < 0)
        return shift;
    o->dynamic_linear = shift == 1;
    return 0;
}

int nsched_config_read(struct nsched_config *out, struct config *c, struct err *e)
{
    enum nsched_kind kind;
    int rc = kind_read(c, &kind, e);
    if (!rc)
        rc = refused(c, e);
    if (rc)
        return rc;
    simplify(kind, c);
    struct nsched_config o;
    nsched_config_default(&o, kind);
    o.n_train = (int)config_int(c, "num_train_timesteps", 1000, 2, 100000);
    o.karras = config_bool(c, "use_karras_sigmas", false);
    rc = kind == NSCHED_FLOW ? flow_read(&o, c, e) : diffusion_read(&o, c, e);
    if (!rc && kind == NSCHED_FLOW && o.karras)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "scheduler configuration: use_karras_sigmas is not supported");
    if (!rc)
        rc = config_error(c, e);
    if (!rc)
        rc = nsched_config_check(&o, e);
    if (!rc)
        *out = o;
    return rc;
}
