/* A language model's folder as the metadata and tensors of a GGUF file; private to engine/. */
#ifndef ENGINE_EXPORT_H
#define ENGINE_EXPORT_H

#include "engine/load/gguf.h"
#include "engine/load/gguf_write.h"

struct export;

/* ERR_UNSUPPORTED names the architecture, tensor or tokenizer that a GGUF file can't have. */
int export_open(struct export **out, const char *dir, struct err *e);
void export_close(struct export *x); /* NULL is fine */
/* All metadata but general.file_type and general.quantization_version. */
struct gguf_kvs *export_keys(struct export *x);
bool export_has_tokenizer(const struct export *x);
int export_n_tensor(const struct export *x);
/* Name, dims and the format of its rows in the folder; no data. Lives as long as x. */
const struct gguf_tensor *export_tensor_at(const struct export *x, int i);
bool export_is_vector(const struct export *x, int i);
/* A matrix of which rows are looked up and no more: what --quantize leaves as it is. */
bool export_is_looked_up(const struct export *x, int i);
/* Row r of a matrix in its format; all of a vector at r = 0. */
int export_row(const struct export *x, int i, int64_t r, void *dst, struct err *e);
/* Whether a file with this metadata and such tensors is the model that the folder is: its hyper-parameters and tokenizer,
 * read back. `path`: the file, whose tensors need no data yet. Before rows are asked for. */
int export_check(struct export *x, const char *path, struct err *e);
int export_files_check(const struct export *x, struct err *e); /* ERR_IO: the folder has changed */

#endif
