#include "engine/text/grammar_expr.h"
gr_expr gr_grammar_text(struct gr_builder *b, struct view text)
{
    (void)text;
    return gr_fail(b, ERR_UNSUPPORTED, "grammars are not supported");
}
