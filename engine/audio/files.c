/* What a path's model is, by its configuration alone: for who asks before anything is opened. */
#include <string.h>

#include "engine/audio/model.h"
#include "engine/encode/encode.h"
#include "engine/load/config.h"

bool eng_path_is_audio(const char *path)
{
    struct config *c = NULL;
    if (!path || encode__config_open(&c, path, NULL))
        return false;
    if (!config_has(c, "model_type")) { /* CTranslate2's says nothing of the kind */
        config_close(c);
        return aud_is_ct2(path);
    }
    bool is = strcmp(config_str(c, "model_type", ""), "whisper") == 0;
    config_close(c);
    return is;
}
