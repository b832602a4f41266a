/* Private to api/audio*.c: one call of a transcription endpoint. The form is read and the file decoded on a pool thread
 * (api_prepare); events and answers are the loop thread's. */
#ifndef API_AUDIO_IMPL_H
#define API_AUDIO_IMPL_H

#include "api/api_impl.h"
#include "api/multipart.h"

enum stt_format { STT_JSON, STT_TEXT, STT_SRT, STT_VERBOSE, STT_VTT };

struct stt_call {
    struct api_model *m;
    bool translate, stream, segments, words; /* the last two: in the answer */
    enum stt_format format;
    struct aud_params p;
    struct aud_mel *mel; /* until the request takes it, as prompt */
    int32_t *prompt;
    int64_t priority;
    double seconds;  /* of the recording */
    size_t held;     /* bytes of frames counted in the api's total */
    struct api *api; /* whose total that is */
    /* the answer so far */
    int language, n_segment;
    struct buf text;  /* of all segments */
    struct buf lines; /* segments as the format has them */
    struct buf word;  /* words as JSON */
};

/* Fields of both endpoints. */
extern const char *const stt_fields[];

/* audio_answer.c */
void stt_event(struct api_call *c, int req, const struct event *ev);

#endif
