/* Sound files: whatever is accepted has at least 0.1 s and at most the limit, and frames that are numbers; wav files whose sizes
 * are wrong are read to their end. */
#include "tests/fuzz/fuzz.h"

#include "api/sound.h"
#include "engine/base/mem.h"

#include <math.h>

/* No Ogg: libsndfile loses memory over broken headers of a right length. */
const char *const fuzz_seeds[] = {"tests/data/audio/sound/bad-truncated.wav",
                                  "tests/data/audio/sound/bad-header-only.wav",
                                  "tests/data/audio/sound/jfk-3s-8k-*.wav",
                                  "tests/data/audio/sound/jfk-3s-11k-u8.wav",
                                  "tests/data/audio/sound/streamed-size-ffffffff.wav",
                                  NULL};

enum { SECONDS = 20, BYTES = 4 << 20 };

static bool room(void *arg, size_t bytes)
{
    *(size_t *)arg = bytes;
    return bytes <= BYTES;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    size_t held = 0;
    struct sound_limits lim = {.seconds_max = SECONDS, .room = room, .arg = &held};
    struct aud_mel *m = aud_mel_new(80);
    struct err e = {0};
    CHECK(m);
    int rc = sound_read(m, data, n, &lim, &e);
    if (rc) {
        CHECK(e.code == rc && e.text[0]);
        CHECK(rc == ERR_PARSE || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT || rc == ERR_INVAL ||
              rc == ERR_FULL);
    } else {
        CHECK(m->n_sample >= AUD_RATE / 10 && m->n_sample <= SECONDS * AUD_RATE + 65536);
        CHECK(m->n_frame == m->n_sample / AUD_HOP && m->n_row >= m->n_frame && !m->maker);
        for (int64_t i = 0; i < m->n_row * m->n_mel; i++)
            CHECK(isfinite(m->v[i]));
    }
    aud_mel_free(m);
    return 0;
}
