/* Times of words. See model.h. */
#include "engine/audio/model.h"

int aud_words(struct aud_job *j, const struct img_yield *y, struct err *e)
{
    (void)j;
    (void)y;
    return err_set(e, ERR_UNSUPPORTED, "words");
}
