/* Base64 (RFC 4648 section 4) of pictures in JSON. Pure; any thread. */
#ifndef API_BASE64_H
#define API_BASE64_H

#include "engine/base/buf.h"

/* Append the text of n bytes, padded, without line breaks. A failed growth shows in b->failed. */
void base64_write(struct buf *b, const void *p, size_t n);
/* Append the bytes of a text: white space is skipped, padding may be left out. ERR_PARSE: another character, or a
 * length that no bytes have; ERR_NOMEM. */
int base64_read(struct buf *b, struct view text);

#endif
