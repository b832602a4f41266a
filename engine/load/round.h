/* Dense matrices rounded to a smaller format while they are loaded (option `quantize`). Any thread. */
#ifndef ENGINE_LOAD_ROUND_H
#define ENGINE_LOAD_ROUND_H

#include "engine/base/err.h"
#include "engine/quant/quant.h"

/* What rows of n_in values in `from` become for "q8", "q4" or "fp8": `from` itself when that is no float format, or when
 * a row is no whole blocks. NULL and "none": nothing. */
enum quant_fmt round_format(const char *to, enum quant_fmt from, int64_t n_in);
/* n_row rows of n_in values from src to dst. ERR_NOMEM. */
int round_rows(enum quant_fmt from, enum quant_fmt to, int64_t n_in, const void *src, int64_t n_row,
               void *dst, struct err *e);

#endif
