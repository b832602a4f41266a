/* Private to api/images*.c: one call of an image endpoint. Parameters and pictures come in on a pool thread
 * (api_prepare), events and answers on the loop thread; encoding is a pool job that touches only itself. */
#ifndef API_IMAGES_IMPL_H
#define API_IMAGES_IMPL_H

#include "api/api_impl.h"
#include "api/multipart.h"
#include "api/picture.h"

#define IMG_PARTS_MAX  96
#define IMG_INPUTS_MAX 16
#define IMG_PROMPT_MAX 32000 /* characters */

enum img_quality { IMG_LOW, IMG_MEDIUM, IMG_HIGH };

/* A frame of the stream, in the order of its event: it goes out when it and all before it are ready. */
struct img_frame {
    struct img_frame *next;
    bool ready;
    struct buf text;
};

struct img_done {      /* one finished picture */
    struct buf base64; /* or, of a url: */
    char id[40];
    int n_partial; /* previews that began to be encoded */
    bool done;
};

struct img_call {
    struct api_model *m;
    bool edit, stream, as_url, progress;
    int n;       /* pictures */
    int partial; /* previews of each */
    int64_t priority;
    enum img_quality quality;
    struct picture_encode enc;
    char *prompt, *negative; /* owned; p points to them */
    struct img_params p;     /* resolved; init and mask are owned until the request takes them */
    bool fixed_size;         /* the client gave one */
    struct img_done *pic;    /* [n] */
    struct img_frame *first, *last;
    int n_job;
    bool ended;                 /* EV_DONE came: n_in .. decode_us are set */
    int32_t n_in, n_out;        /* tokens */
    int64_t stage_us[IMG_DONE]; /* encode, denoise, decode */
};

/* Fields that every image endpoint knows. */
extern const char *const img_fields[];
/* Field kinds, as form_value takes them. */
char img_field_kind(const char *name);

/* images_params.c: all fields but the pictures. Ends the call and returns ERR_INVAL on a bad one. */
int img_params(struct api_call *c, struct img_call *g, json_t *o);
/* The output size for an input of w x h: the client's, or the nearest that the model makes with its shape. */
void img_size_near(const struct api_call *c, struct img_call *g, int w, int h);
const char *img_sampler_name(enum img_sampler s);   /* "dpm++2m" */
const char *img_schedule_name(enum img_schedule s); /* "karras" */
/* The sampler and schedule in force, defaults resolved. */
enum img_sampler img_sampler_used(const struct img_call *g);
enum img_schedule img_schedule_used(const struct img_call *g);
/* Generation parameters as a picture file carries them (A1111's form), of picture `index`. */
void img_parameters(struct buf *b, const struct img_call *g, int index);

/* images_input.c: the pictures of an edit, from a form's parts or a JSON body; sets p.width, height, init, mask. */
int img_inputs(struct api_call *c, struct img_call *g, json_t *o, const struct multipart *part,
               int n_part);

/* images_answer.c */
void img_event(struct api_call *c, int req, const struct event *ev);
void img_call_free(struct api_call *c);

#endif
