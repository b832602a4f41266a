#include "tests/corrupt.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/text/text_model.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define AT_STEP "opened, but at its step" /* what is refused must be refused before */

/* ---- one step of each kind of model ---- */

static int step_text(struct engine *g, struct err *e)
{
    const struct eng_info *i = eng_info(g);
    int32_t tok[3] = {0, i->n_vocab > 1, i->n_vocab - 1}, block[1] = {1};
    struct sample_row row = {.top_p = 1, .repetition_penalty = 1, .target = -1, .n_top = -1};
    struct sample_out out;
    row.hist = tok;
    row.n_prompt = row.n_hist = 3;
    struct step_seq s = {.tok = tok,
                         .n_tok = i->n_ctx < 4 ? 1 : 3,
                         .block = block,
                         .n_block = 1,
                         .state_src = -1,
                         .n_logit = 1,
                         .rows = &row,
                         .out = &out};
    return eng_step(g, &(struct step_plan){.n_seq = 1, .seq = &s}, e);
}

static int step_encoder(struct engine *g, struct err *e)
{
    const struct eng_encoder_info *i = eng_info(g)->encoder;
    int32_t ids[3] = {0, eng_info(g)->n_vocab > 1, eng_info(g)->n_vocab - 1};
    size_t n = (size_t)(i->dim > i->n_label ? i->dim : i->n_label);
    float *out = mem_calloc(n + 1, sizeof *out);
    struct eng_encode_row row = {ids, i->n_tok_max < 3 ? 1 : 3, 3, out};
    int rc = out ? eng_encode(g, &row, 1, e) : err_set(e, ERR_NOMEM, "vector of %zu", n);
    free(out);
    return rc;
}

static int step_audio(struct engine *g, struct err *e)
{
    struct aud_job *j = NULL;
    struct aud_mel *mel = aud_mel_new(eng_info(g)->audio->n_mel);
    float pcm[1600];
    for (int k = 0; k < 1600; k++)
        pcm[k] = (float)sin(k * 0.2) * 0.3f;
    if (!mel || aud_mel_add(mel, pcm, 1600) || aud_mel_finish(mel)) {
        aud_mel_free(mel);
        return err_set(e, ERR_NOMEM, "frames of %d bands", eng_info(g)->audio->n_mel);
    }
    struct aud_params p = {.mel = mel,
                           .language = -1,
                           .n_heat = 1,
                           .compression_max = 100,
                           .logprob_min = -100,
                           .no_speech_min = 2};
    int rc = aud_job_open(g, &p, &j, e);
    for (int k = 0; !rc && k < 6 && aud_job_stage(j) < AUD_DONE; k++) {
        rc = eng_audio_step(g, &j, 1, NULL, e);
        aud_piece_free(aud_job_take(j));
    }
    aud_job_close(g, j);
    aud_mel_free(mel);
    return rc;
}

static int step_image(struct engine *g, struct err *e)
{
    const struct eng_image_info *i = eng_info(g)->image;
    struct img_job *j = NULL;
    struct img_params p = {.prompt = "a b",
                           .negative = "",
                           .width = i->size_min,
                           .height = i->size_min,
                           .steps = 1,
                           .guidance = 1,
                           .strength = 1};
    int rc = img_job_open(g, &p, &j, e);
    for (int k = 0; !rc && k < 6 && img_job_stage(j) < IMG_DONE; k++)
        rc = eng_image_step(g, &j, 1, NULL, e);
    img_job_close(g, j);
    return rc;
}

int corrupt_try(const struct corrupt_model *m, const char *device, struct err *e)
{
    struct engine *g = NULL;
    struct text_model *t = NULL;
    struct err text = {0};
    struct eng_opts o = {.path = m->path,
                         .device = device,
                         .n_threads = 1,
                         .no_pin = true,
                         .n_ctx = 16,
                         .max_seqs = 2,
                         .max_rows = 4,
                         .max_logit_rows = 4,
                         .n_state = 2,
                         .kv_dtype = "f32",
                         .max_audio = 1,
                         .cond_bytes = 1 << 16};
    int said = m->text ? text_model_open(&t, m->path, &text) : 0;
    text_model_close(t);
    int rc = eng_open(&g, &o, e);
    if (rc == 0) {
        const struct eng_info *i = eng_info(g);
        rc = i->image     ? step_image(g, e)
             : i->encoder ? step_encoder(g, e)
             : i->audio   ? step_audio(g, e)
                          : step_text(g, e);
        if (rc)
            err_prefix(e, AT_STEP);
        eng_close(g);
    }
    if (said && !rc) {
        *e = text;
        return said;
    }
    return rc;
}

/* ---- children ---- */

/* Written by the child, read by its parent. */
struct shared {
    uint64_t at;
    struct corrupt_tally tally;
    char what[160];
    bool over;
};

static size_t data_bytes(void)
{
    char line[128];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmData: %zu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib << 10;
}

/* "clip_qkv": a word with '_' in it is a key's name. */
static bool has_key(const char *s)
{
    for (const char *p = s; (p = strchr(p, '_')) != NULL; p++)
        if (p > s && p[-1] >= 'a' && p[-1] <= 'z' && p[1] >= 'a' && p[1] <= 'z')
            return true;
    return false;
}

/* Does the text say where the fault is: in which file, or at which key, tensor or component? */
static bool names(const struct corrupt_run *r, const struct err *e)
{
    static const char *const words[] = {"key ",
                                        "tensor ",
                                        ".weight",
                                        ".bias",
                                        "tokenizer.",
                                        "general.",
                                        ".json",
                                        "architecture \"",
                                        "pipeline \"",
                                        "Pipeline has no",
                                        "class \"",
                                        "scheduler configuration: ",
                                        "the model was made for"};
    const char *base = strrchr(r->m.file, '/');
    base = base ? base + 1 : r->m.file;
    char part[64]; /* "unet:" */
    snprintf(part, sizeof part, "%.*s:", base > r->m.file ? (int)(base - r->m.file - 1) : 0,
             r->m.file);
    bool said = (part[1] && strstr(e->text, part)) || (base[0] && strstr(e->text, base)) ||
                strstr(e->text, r->m.path);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        said = said || strstr(e->text, words[i]);
    return said || has_key(e->text);
}

static void child_case(const struct corrupt_run *r, struct shared *s)
{
    struct err e = {0};
    struct corrupt_tally *t = &s->tally;
    r->make(r->arg, s->at, s->what, sizeof s->what);
    alarm(CORRUPT_TIME * (SANITIZED ? 4 : 1));
    int rc = corrupt_try(&r->m, s->at % 4 ? "ref" : "cpu", &e);
    alarm(0);
    t->n++;
    t->n_served += rc == 0;
    t->n_refused += rc != 0;
    bool known = rc == 0 || (e.code == rc && names(r, &e));
    if (!known || rc == ERR_INTERNAL || !strncmp(e.text, AT_STEP, strlen(AT_STEP)) ||
        (rc == ERR_NOMEM && !strstr(e.text, "context of"))) {
        t->n_bad++;
        printf("  case %llu (%s %s): %s \"%s\"\n", (unsigned long long)s->at, r->m.file, s->what,
               err_name(rc), e.text);
    } else if (getenv("CORRUPT_SAY")) {
        printf("  case %llu (%s): %s \"%s\"\n", (unsigned long long)s->at, s->what, err_name(rc),
               e.text);
    }
}

static void child(const struct corrupt_run *r, struct shared *s)
{
    struct stat st;
    size_t before = data_bytes(), file = 0;
    char path[1024];
    snprintf(path, sizeof path, "%s%s%s", r->m.path, r->m.file[0] ? "/" : "", r->m.file);
    if (stat(path, &st) == 0)
        file = (size_t)st.st_size;
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    log_set_level(LOG_ERROR);
    if (!SANITIZED) { /* a sanitizer has memory of its own */
        size_t most = before + 2 * file + CORRUPT_SPARE;
        struct rlimit lim = {most, most};
        CHECK(setrlimit(RLIMIT_DATA, &lim) == 0);
    }
    for (; s->at < r->to; s->at++) {
        child_case(r, s);
        size_t now = data_bytes();
        if (now > before && now - before > s->tally.grown)
            s->tally.grown = now - before;
    }
    s->over = true;
}

void corrupt_run(const struct corrupt_run *r, struct corrupt_tally *t)
{
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    s->tally = *t;
    for (s->at = r->from; !s->over && s->at < r->to && s->tally.n_bad < 60; s->at++) {
        fflush(NULL);
        pid_t pid = fork();
        int status;
        CHECK(pid >= 0);
        if (pid == 0) {
            child(r, s);
            fflush(NULL);
            exit(0); /* a leak check, where there is one */
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        s->tally.n_bad++;
        printf("  case %llu (%s %s): %s %d\n", (unsigned long long)s->at, r->m.file, s->what,
               WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit code",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    *t = s->tally;
    munmap(s, sizeof *s);
}
