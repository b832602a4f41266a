/* Private to api/: tool calls. How a model writes calls and reasoning is found from its chat template; families stand in
 * tools.def. */
#ifndef API_TOOLS_H
#define API_TOOLS_H

#include "api/stream.h"

/* What a chat template says of the model's way to answer. Static storage. */
struct chat_format {
    const struct tool_family *family;     /* never NULL after tools_detect */
    bool declares;                        /* the template shows tools to the model */
    const char *think_open, *think_close; /* NULL: does not reason aloud */
};
/* From the text of a template (NULL: none). think_token: the vocabulary has "<think>". */
void tools_detect(const char *tmpl, bool think_token, struct chat_format *out);
const char *tools_family_name(const struct tool_family *f);
/* By name, or NULL. */
const struct tool_family *tools_family(const char *name);

#endif
