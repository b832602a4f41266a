/* The fake engine's pictures, texts to encode and recordings. See fake_engine.h. */
#include <errno.h>

#include "engine/base/arena.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "tests/fake_engine_impl.h"

/* ---- pictures ----
 * A job's latents are a hash that each step moves on; its pixels are drawn from the last one. */
struct img_job {
    struct img_params p;
    enum img_stage stage;
    int step;
    uint64_t latent;
    uint8_t *px;
};

static const struct eng_image_info image_info = {
    .size_default = 64,
    .size_min = 64,
    .size_max = 1024,
    .size_step = 8,
    .pixels_max = 1 << 20,
    .steps_default = 4,
    .steps_max = 100,
    .guidance_default = 7,
    .guidance_max = 30,
    .negative = true,
    .edit = true,
    .prompt_tokens_max = 77,
    .sampler_default = IMG_SAMPLER_EULER,
    .schedule_default = IMG_SCHEDULE_NORMAL,
    .pipeline = "FakePipeline",
};

void fake_reset_image(void)
{
    fake_reset(0);
    fake.info = (struct eng_info){.backend = "fake", .arch = "fake-image", .image = &image_info};
    fake.image = (struct fake_image){.us_step = 1000, .us_row = 100};
}

bool eng_path_is_image(const char *path)
{
    (void)path;
    return fake.info.image != NULL;
}

/* A vector is the text's ids and where its second part begins, hashed. */
int eng_encode(struct engine *g, const struct eng_encode_row *rows, int n, struct err *e)
{
    CHECK(g == fake_the_engine && n > 0 && n <= ENG_ENCODE_ROWS);
    fake_count.steps++;
    int64_t tok = 0;
    for (int i = 0; i < n; i++) {
        tok += rows[i].n;
        for (int32_t k = 0; k < rows[i].n; k++)
            if (rows[i].ids[k] >= fake.info.n_vocab)
                return err_set(e, ERR_INVAL, "fake engine: token %d", rows[i].ids[k]);
    }
    fake_count.rows += (uint64_t)tok;
    if (fake.encode.nomem_tokens && tok > fake.encode.nomem_tokens)
        return err_set(e, ERR_NOMEM, "fake engine: no memory for %lld tokens", (long long)tok);
    if (fake.fail_step && fake_count.steps >= fake.fail_step)
        return err_set(e, ERR_DEVICE, "fake engine: told to fail");
    fake_now_us += fake.us_step + tok * fake.us_row;
    if (tok > fake_count.max_rows)
        fake_count.max_rows = (int32_t)tok;
    for (int i = 0; i < n; i++)
        fake_vector(rows[i].ids, rows[i].n, rows[i].second, rows[i].out);
    return 0;
}

void fake_vector(const int32_t *ids, int32_t n, int32_t second, float out[4])
{
    uint64_t h = (uint64_t)second;
    for (int32_t k = 0; k < n; k++)
        h = hash_u64(h ^ (uint64_t)ids[k]);
    for (int k = 0; k < 4; k++)
        out[k] = (float)(h >> (k * 16) & 0xffff);
}

void fake_reset_encoder(void)
{
    static const struct eng_encoder_info info = {.dim = 4, .n_tok_max = 64, .n_type = 2};
    fake_reset(0);
    fake.info.encoder = &info;
    fake.info.n_ctx = 64;
}

static uint64_t text_hash(uint64_t h, const char *s)
{
    for (; s && *s; s++)
        h = hash_u64(h ^ (uint8_t)*s);
    return h;
}

static uint64_t latent_first(const struct img_params *p)
{
    uint64_t h = text_hash(p->seed, p->prompt);
    h = text_hash(hash_u64(h), p->negative);
    h = hash_u64(h ^ (uint64_t)p->width << 32 ^ (uint64_t)p->height);
    return hash_u64(h ^ (uint64_t)p->steps << 8 ^ (uint64_t)p->sampler);
}

static uint8_t *draw(const struct img_params *p, uint64_t latent)
{
    size_t n = (size_t)p->width * (size_t)p->height * 3;
    uint8_t *px = xmalloc(n);
    for (size_t i = 0; i < n; i++)
        px[i] = (uint8_t)((latent >> (i % 8 * 8)) + i / 8);
    return px;
}

uint8_t *fake_picture(const struct img_params *p)
{
    uint64_t h = latent_first(p);
    for (int i = 0; i < p->steps; i++)
        h = hash_u64(h + (uint64_t)i);
    return draw(p, h);
}

int img_job_open(struct engine *g, const struct img_params *p, struct img_job **out, struct err *e)
{
    CHECK(g == fake_the_engine && p->prompt);
    if (p->width < 64 || p->width > 1024 || p->width == fake.image.bad_width)
        return err_set(e, ERR_LIMIT, "width: %d is not in 64 to 1024", p->width);
    struct img_job *j = mem_calloc(1, sizeof *j);
    if (!j)
        return err_set(e, ERR_NOMEM, "fake engine: no memory for a picture");
    j->p = *p;
    j->p.prompt = xstrdup(p->prompt);
    j->latent = latent_first(p);
    if (++fake_count.jobs_open > fake_count.jobs_open_max)
        fake_count.jobs_open_max = fake_count.jobs_open;
    *out = j;
    return 0;
}

void img_job_close(struct engine *g, struct img_job *j)
{
    CHECK(g == fake_the_engine);
    if (!j)
        return;
    fake_count.jobs_open--;
    free((void *)j->p.prompt);
    free(j->px);
    free(j);
}

enum img_stage img_job_stage(const struct img_job *j)
{
    return j->stage;
}

int img_job_step(const struct img_job *j)
{
    return j->step;
}

int img_job_steps(const struct img_job *j)
{
    return j->p.steps;
}

int img_job_tokens(const struct img_job *j)
{
    return (int)strlen(j->p.prompt);
}

int img_job_latent_tokens(const struct img_job *j)
{
    return j->p.width / 8 * (j->p.height / 8);
}

int64_t img_job_rows(const struct img_job *j)
{
    return 2 * (int64_t)img_job_latent_tokens(j);
}

size_t img_job_decode_bytes(const struct engine *g, const struct img_job *j)
{
    (void)g;
    return (size_t)j->p.width * (size_t)j->p.height * 12;
}

int eng_image_fit(struct engine *g, struct img_job *const *jobs, int n)
{
    int64_t rows = 0;
    CHECK(g == fake_the_engine);
    for (int i = 0; i < n; i++) {
        rows += img_job_rows(jobs[i]);
        if (i && fake.image.fit_rows && rows > fake.image.fit_rows)
            return i;
    }
    return n;
}

static bool decode_fits(struct img_job *const *jobs, int n)
{
    const struct fake_image *f = &fake.image;
    for (int i = 0; i < n; i++)
        if (jobs[i]->p.width == f->nomem_width)
            return false;
    return !((f->decode_alone || f->decode_partial) && n > 1) &&
           !(f->decode_jobs && fake_count.jobs_open > f->decode_jobs);
}

static void image_stage(struct img_job *j)
{
    if (j->stage == IMG_DECODE) {
        j->px = draw(&j->p, j->latent);
        j->stage = IMG_DONE;
    } else if (j->stage == IMG_DENOISE) {
        j->latent = hash_u64(j->latent + (uint64_t)j->step++);
        if (j->step == j->p.steps)
            j->stage = IMG_DECODE;
    } else {
        j->stage = IMG_DENOISE;
    }
}

int eng_image_step(struct engine *g, struct img_job *const *jobs, int n, const struct img_yield *y,
                   struct err *e)
{
    int64_t rows = 0;
    CHECK(g == fake_the_engine && n > 0);
    fake_count.image_steps++;
    if (g->failed || (fake.fail_step && fake_count.image_steps >= fake.fail_step)) {
        g->failed = true;
        return err_set(e, ERR_DEVICE, "fake engine: the device fell off");
    }
    enum img_stage stage = jobs[0]->stage;
    for (int i = 0; i < n; i++) {
        CHECK(jobs[i]->stage == stage && stage != IMG_DONE);
        for (int k = 0; k < i; k++)
            CHECK(jobs[i] != jobs[k]);
        rows += img_job_rows(jobs[i]);
    }
    CHECK(eng_image_fit(g, jobs, n) == n);
    if (stage == IMG_DECODE && n > 1 && fake.image.decode_partial)
        image_stage(jobs[0]);
    if ((stage == IMG_DECODE && !decode_fits(jobs, n)) ||
        (n > 1 && fake.image.nomem_every && fake_count.image_steps % fake.image.nomem_every == 0)) {
        fake_count.image_nomem++;
        return err_set(e, ERR_NOMEM, "fake engine: no work memory for %d pictures", n);
    }
    int ops = fake.image.ops > 0 ? fake.image.ops : 1;
    int64_t us = fake.image.us_step + (stage == IMG_DENOISE ? fake.image.us_row * rows / 64 : 0);
    for (int i = 0; i < ops; i++) {
        fake_now_us += us / ops;
        if (fake.sleep) {
            struct timespec ts = {.tv_sec = us / ops / 1000000,
                                  .tv_nsec = us / ops % 1000000 * 1000};
            nanosleep(&ts, NULL);
        }
        fake_count.image_yields += y && y->fn;
        if (y && y->fn && y->fn(y->arg))
            return err_set(e, ERR_CANCELLED, "fake engine: nobody wants this step");
    }
    for (int i = 0; i < n; i++)
        if (jobs[i]->stage == stage)
            image_stage(jobs[i]);
    fake_count.image_jobs += (uint64_t)n;
    if (stage == IMG_DENOISE && rows > fake_count.image_rows_max)
        fake_count.image_rows_max = rows;
    return 0;
}

const uint8_t *img_job_pixels(const struct img_job *j, int *width, int *height)
{
    *width = j->p.width;
    *height = j->p.height;
    return j->px;
}

int img_job_preview(const struct engine *g, const struct img_job *j, uint8_t **rgb, int *w, int *h)
{
    (void)g;
    if (!j->step)
        return ERR_AGAIN;
    *w = j->p.width / 8;
    *h = j->p.height / 8;
    size_t n = (size_t)*w * (size_t)*h * 3;
    *rgb = mem_alloc(n);
    if (!*rgb)
        return ERR_NOMEM;
    memset(*rgb, (int)(j->latent & 255), n);
    return 0;
}

/* ---- speech ----
 * A window is encoded, decoded in as many steps as its number and the recording's length say, perhaps aligned. */
struct aud_job {
    struct aud_params p;
    enum aud_stage stage;
    int window, left;
    struct aud_piece *piece;
};

#define WINDOW 200

void fake_reset_audio(int n_slot)
{
    static struct eng_audio_info info;
    fake_reset(0);
    info = (struct eng_audio_info){.n_mel = 80, .n_frame = WINDOW, .n_slot = n_slot};
    fake.info = (struct eng_info){.backend = "fake", .arch = "fake-audio", .audio = &info};
    fake.us_step = 1000;
}

void fake_says(int64_t n_frame, int language, int i, char out[32])
{
    snprintf(out, 32, " %lld/%d/%d", (long long)n_frame, language, i);
}

int fake_window_tokens(int64_t n_frame, int i)
{
    return 1 + (int)((n_frame / 7 + i * 3) % 9);
}

int aud_job_open(struct engine *g, const struct aud_params *p, struct aud_job **out, struct err *e)
{
    CHECK(g == fake_the_engine);
    if (p->language == fake.audio.bad_language && p->language)
        return err_set(e, ERR_INVAL, "fake engine: language %d", p->language);
    CHECK(fake_count.jobs_open < fake.info.audio->n_slot);
    if (fake.audio.open_nomem && fake_count.jobs_open >= fake.audio.open_nomem)
        return err_set(e, ERR_NOMEM, "fake engine: no memory for a recording");
    struct aud_job *j = xcalloc(1, sizeof *j);
    j->p = *p;
    if (++fake_count.jobs_open > fake_count.jobs_open_max)
        fake_count.jobs_open_max = fake_count.jobs_open;
    *out = j;
    return 0;
}

void aud_job_close(struct engine *g, struct aud_job *j)
{
    CHECK(g == fake_the_engine);
    fake_count.jobs_open--;
    aud_piece_free(j->piece);
    free(j);
}

enum aud_stage aud_job_stage(const struct aud_job *j)
{
    return j->stage;
}

struct aud_piece *aud_job_take(struct aud_job *j)
{
    struct aud_piece *p = j->piece;
    j->piece = NULL;
    return p;
}

int64_t aud_job_seek(const struct aud_job *j)
{
    return j->stage == AUD_DONE ? j->p.mel->n_frame : (int64_t)j->window * WINDOW;
}

int aud_job_retries(struct aud_job *j)
{
    (void)j;
    return 0;
}

void aud_job_tokens(const struct aud_job *j, int32_t *n_prompt, int32_t *n_output)
{
    *n_prompt = j->window;
    *n_output = j->window;
}

static void audio_window_end(struct aud_job *j)
{
    struct arena *a = xcalloc(1, sizeof *a);
    CHECK(!j->piece);
    j->piece = xcalloc(1, sizeof *j->piece);
    *j->piece = (struct aud_piece){.arena = a, .n = 1};
    j->piece->seg = arena_array(a, 1, sizeof *j->piece->seg);
    char *text = arena_alloc(a, 32);
    CHECK(j->piece->seg && text);
    fake_says(j->p.mel->n_frame, j->p.language, j->window, text);
    j->piece->seg[0].text = text;
    j->window++;
    j->stage = (int64_t)j->window * WINDOW < j->p.mel->n_frame ? AUD_ENCODE : AUD_DONE;
    if (j->window == fake.audio.fail_window)
        j->stage = AUD_FAILED;
}

static void audio_stage(struct aud_job *j)
{
    if (j->stage == AUD_ENCODE) {
        j->left = fake_window_tokens(j->p.mel->n_frame, j->window);
        j->stage = AUD_DECODE;
    } else if (j->stage == AUD_ALIGN) {
        audio_window_end(j);
    } else if (--j->left == 0) {
        if (j->p.words)
            j->stage = AUD_ALIGN;
        else
            audio_window_end(j);
    }
}

int eng_audio_step(struct engine *g, struct aud_job *const *jobs, int n, const struct img_yield *y,
                   struct err *e)
{
    enum aud_stage stage = jobs[0]->stage;
    CHECK(g == fake_the_engine && n > 0 && n <= fake.info.audio->n_slot);
    fake_count.steps++;
    if (g->failed || (fake.fail_step && fake_count.steps >= fake.fail_step)) {
        g->failed = true;
        return err_set(e, ERR_DEVICE, "fake engine: the device fell off");
    }
    CHECK(n == 1 || stage == AUD_DECODE);
    for (int i = 0; i < n; i++) {
        CHECK(jobs[i]->stage == stage && stage < AUD_DONE);
        for (int k = 0; k < i; k++)
            CHECK(jobs[i] != jobs[k]);
    }
    if (fake.audio.decode_nomem && n > fake.audio.decode_nomem) {
        fake_count.audio_nomem++;
        return err_set(e, ERR_NOMEM, "fake engine: no memory for %d recordings", n);
    }
    int ops = fake.audio.ops > 0 ? fake.audio.ops : 1;
    for (int i = 0; i < ops; i++) {
        fake_now_us += fake.us_step / ops;
        if (y && y->fn && y->fn(y->arg))
            return err_set(e, ERR_CANCELLED, "fake engine: nobody wants this step");
    }
    fake_count.audio_encodes += stage == AUD_ENCODE;
    fake_count.audio_aligns += stage == AUD_ALIGN;
    fake_count.audio_decodes += stage == AUD_DECODE;
    fake_count.audio_rows += stage == AUD_DECODE ? (uint64_t)n : 0;
    for (int i = 0; i < n; i++)
        audio_stage(jobs[i]);
    return 0;
}
