/* emulated_impls.h: one implementation of an operator on host memory, by its name, for tests on the emulator. */
#ifndef KR_EMULATED_IMPLS_H
#define KR_EMULATED_IMPLS_H

#include "../test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "all_ops.h"
#include "status.h"

static inline const kr_impl *row_named(const char *op, const char *name) {
  const kr_impl *impl = kr_op_find(op)->impls;
  while (strcmp(impl->name, name) != 0) impl++;
  return impl;
}

static inline void run_row(const krait_ctx *ctx, const char *op, const char *name, void *args) {
  const kr_impl *impl = row_named(op, name);
  kr_call *call = args;
  const uint64_t bytes = impl->scratch_bytes ? impl->scratch_bytes(ctx, args) : 0;
  call->scratch_bytes = bytes, call->scratch = bytes ? aligned_alloc(256, (bytes + 255) & ~(uint64_t)255) : NULL;
  assert_null(impl->refuse ? impl->refuse(ctx, args) : NULL);
  if (impl->run(ctx, args) < 0) fail_msg("%s: %s", name, krait_error_detail());
  free(call->scratch);
}

static inline void fill_random(float *to, size_t n) {
  uint32_t random = 11;
  for (size_t i = 0; i < n; i++) to[i] = (float)((random = random * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1;
}

static inline void compare_floats(const char *what, const float *got, const float *want, size_t n, float bound) {
  for (size_t i = 0; i < n; i++)
    if (!(fabsf(got[i] - want[i]) <= bound)) fail_msg("%s: number %zu is %g, not %g", what, i, got[i], want[i]);
}

#endif
