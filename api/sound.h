/* Sound files in: wav, aiff, flac, ogg (vorbis, opus), mp3 and what else libsndfile reads, of any rate and number of
 * channels, to the frames that a speech model wants. Decoded in small blocks: memory goes with what a file really holds,
 * not with what its header claims. Pool threads. */
#ifndef API_SOUND_H
#define API_SOUND_H

#include "sched/request.h" /* engine/audio.h */

struct sound_limits {
    double seconds_max;
    /* Called with the bytes that the frames take by now; false: no more (ERR_FULL). */
    bool (*room)(void *arg, size_t bytes);
    void *arg;
};

/* Decode file [n] into m (new, see aud_mel_new) and finish it. ERR_PARSE: no sound file, or broken; ERR_UNSUPPORTED;
 * ERR_LIMIT: longer than seconds_max; ERR_INVAL: too short; ERR_FULL; ERR_NOMEM. e says why. */
int sound_read(struct aud_mel *m, const void *file, size_t n, const struct sound_limits *lim,
               struct err *e);

#endif
