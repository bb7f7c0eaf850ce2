/* rotary_append_ref.c: attention_append, then rotary (their _ref.c have the equations). */
#include "op_list.h"
#include "attention/rotary_append_impls.h"
#include "status.h"

int32_t kr_rotary_append_ref(const krait_ctx *ctx, const void *args) {
  const kr_rotary_args rotary = kr_rotary_of(args);
  const kr_attention_append_args append = kr_append_of(args);
  KR_TRY(kr_attention_append_ref(ctx, &append));
  return kr_rotary_ref(ctx, &rotary);
}
