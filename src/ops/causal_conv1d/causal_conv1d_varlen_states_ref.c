/* causal_conv1d_varlen_states_ref.c: states[s,d,k] = x[end_s - state_len + k, d], 0 before the sequence's start. A
 * bitwise copy. */
#include <string.h>

#include "contract.h"
#include "op_list.h"

static void copy_channels(const kr_causal_conv1d_varlen_states_args *a, int64_t s, int64_t k) {
  const size_t bytes = krait_dtype_bytes(a->x.dtype);
  int64_t begin = kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, s)),
          end = kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, s + 1));
  int64_t from = end - a->state_len + k;
  for (int64_t d = 0; d < a->D; d++) {
    char *to = (char *)a->states.data + kr_at3(&a->states, s, d, k) * (int64_t)bytes;
    if (from < begin) memset(to, 0, bytes);
    else memcpy(to, (const char *)a->x.data + kr_at2(&a->x, from, d) * (int64_t)bytes, bytes);
  }
}

static void copy_steps(void *user, int64_t first, int64_t last, int worker) {
  const kr_causal_conv1d_varlen_states_args *a = user;
  (void)worker;
  for (int64_t i = first; i < last; i++) copy_channels(a, i / a->state_len, i % a->state_len);
}

int32_t kr_causal_conv1d_varlen_states_ref(const krait_ctx *ctx, const void *args) {
  const kr_causal_conv1d_varlen_states_args *a = args;
  KR_TRY(kr_need_offsets_within("causal_conv1d_varlen_states", "cu_seqlens", &a->cu_seqlens, a->S, a->total));
  kr_parallel(ctx, a->S * a->state_len, 1 + 16384 / (a->D + 1), copy_steps, (void *)args);
  return KRAIT_OK;
}
