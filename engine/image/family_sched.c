/* Noise schedules of the families, as the scheduler_config.json of their folders on the hub says. */
#include "engine/image/family_impl.h"

#define BETAS                                                                                      \
    "\"num_train_timesteps\":1000,\"beta_start\":0.00085,\"beta_end\":0.012,"                      \
    "\"beta_schedule\":\"scaled_linear\",\"clip_sample\":false,\"set_alpha_to_one\":false,"        \
    "\"steps_offset\":1,\"timestep_spacing\":\"leading\","
#define FLOW "{\"_class_name\":\"FlowMatchEulerDiscreteScheduler\",\"num_train_timesteps\":1000,"

const char *family_sched(enum family_sched k)
{
    static const char *const text[] = {
        [FAMILY_SCHED_SD] = "{\"_class_name\":\"PNDMScheduler\"," BETAS
                            "\"skip_prk_steps\":true,\"prediction_type\":\"epsilon\"}",
        [FAMILY_SCHED_SD_V] =
            "{\"_class_name\":\"DDIMScheduler\"," BETAS "\"prediction_type\":\"v_prediction\"}",
        [FAMILY_SCHED_XL] =
            "{\"_class_name\":\"EulerDiscreteScheduler\"," BETAS "\"prediction_type\":\"epsilon\"}",
        [FAMILY_SCHED_XL_V] = "{\"_class_name\":\"EulerDiscreteScheduler\"," BETAS
                              "\"prediction_type\":\"v_prediction\","
                              "\"rescale_betas_zero_snr\":true}",
        [FAMILY_SCHED_LCM] = "{\"_class_name\":\"LCMScheduler\"," BETAS
                             "\"original_inference_steps\":50,\"timestep_scaling\":10.0,"
                             "\"prediction_type\":\"epsilon\"}",
        [FAMILY_SCHED_FLUX] = FLOW "\"shift\":3.0,\"use_dynamic_shifting\":true,\"base_shift\":0.5,"
                                   "\"max_shift\":1.15,\"base_image_seq_len\":256,"
                                   "\"max_image_seq_len\":4096}",
        [FAMILY_SCHED_SCHNELL] = FLOW "\"shift\":1.0,\"use_dynamic_shifting\":false}",
        [FAMILY_SCHED_SD3] = FLOW "\"shift\":3.0,\"use_dynamic_shifting\":false}",
        [FAMILY_SCHED_QWEN] = FLOW "\"shift\":1.0,\"use_dynamic_shifting\":true,\"base_shift\":0.5,"
                                   "\"max_shift\":0.9,\"base_image_seq_len\":256,"
                                   "\"max_image_seq_len\":8192,\"shift_terminal\":0.02,"
                                   "\"time_shift_type\":\"exponential\"}",
        [FAMILY_SCHED_ZIMAGE] = FLOW "\"shift\":3.0,\"use_dynamic_shifting\":false}",
    };
    return text[k];
}
