/* Private to the grammar files: sets of code points while a regular expression is read. */
#ifndef ENGINE_TEXT_GRAMMAR_CLASS_H
#define ENGINE_TEXT_GRAMMAR_CLASS_H

#include "engine/text/grammar_expr.h"

struct gr_class { /* zero = empty */
    struct gr_range *r;
    size_t n, cap;
};
/* 0 or ERR_NOMEM (noted in the builder). */
int gr__class_add(struct gr_builder *b, struct gr_class *c, uint32_t lo, uint32_t hi);
int gr__class_negate(struct gr_builder *b, struct gr_class *c);
int gr__class_fold(struct gr_builder *b, struct gr_class *c); /* ASCII letters in both cases */
/* What \d \D \w \W \s \S stand for. */
int gr__class_escape(struct gr_builder *b, struct gr_class *c, char name);
/* \p{name}: a general category; ERR_UNSUPPORTED for another property. */
int gr__class_property(struct gr_builder *b, struct gr_class *c, struct view name);
gr_expr gr__class_expr(struct gr_builder *b, struct gr_class *c, enum gr_encoding enc);
void gr__class_free(struct gr_class *c);

/* Of a text's characters: the code point at *at, which moves on. Broken UTF-8 is U+FFFD. */
uint32_t gr__next_char(struct view text, size_t *at);

#endif
