/* mamba3_inputs.h: the inputs shared by Mamba 3's scan and its gradient, in scan order, and the sequences of a call. */
#ifndef KR_MAMBA3_INPUTS_H
#define KR_MAMBA3_INPUTS_H

#include "op_args.h"
#include "view.h"

typedef struct kr_mamba3_inputs {
  uint32_t flags;
  int64_t B, L, H, P, N, G, R, M, S;
  float eps;
  kr_view x, log_decay, dt, trap, Bmat, Cmat, B_bias, C_bias, angles, Dvec, z, mimo_x, mimo_z, mimo_o, norm_weight,
      initial_angles, initial_states, initial_B, initial_x, cu_seqlens;
} kr_mamba3_inputs;

/* A tensor (B,L,..) in scan order: a reversed scan begins at the far end and steps back. */
static inline kr_view kr_mamba3_in_time(kr_view v, uint32_t flags, int64_t L) {
  if (!(flags & KRAIT_MAMBA3_REVERSE) || !kr_has(&v) || L == 0) return v;
  v.data = (char *)v.data + (L - 1) * v.stride[1] * (int64_t)krait_dtype_bytes(v.dtype);
  v.stride[1] = -v.stride[1];
  return v;
}

#define KR_MAMBA3_TIME(a, name) kr_mamba3_in_time((a)->name, (a)->call.flags, (a)->L)
#define KR_MAMBA3_INPUTS(a)                     \
  {(a)->call.flags,                             \
   (a)->B,                                      \
   (a)->L,                                      \
   (a)->H,                                      \
   (a)->P,                                      \
   (a)->N,                                      \
   (a)->G,                                      \
   (a)->R,                                      \
   (a)->M,                                      \
   (a)->S,                                      \
   (a)->eps,                                    \
   KR_MAMBA3_TIME(a, x),                        \
   KR_MAMBA3_TIME(a, log_decay),                \
   KR_MAMBA3_TIME(a, dt),                       \
   KR_MAMBA3_TIME(a, trap),                     \
   KR_MAMBA3_TIME(a, Bmat),                     \
   KR_MAMBA3_TIME(a, Cmat),                     \
   (a)->B_bias,                                 \
   (a)->C_bias,                                 \
   KR_MAMBA3_TIME(a, angles),                   \
   (a)->Dvec,                                   \
   KR_MAMBA3_TIME(a, z),                        \
   (a)->mimo_x,                                 \
   (a)->mimo_z,                                 \
   (a)->mimo_o,                                 \
   (a)->norm_weight,                            \
   (a)->initial_angles,                         \
   (a)->initial_states,                         \
   (a)->initial_B,                              \
   (a)->initial_x,                              \
   (a)->cu_seqlens}

/* Of a call that asks for what its gradient takes (`kept`): for a head and 64 tokens a state and the output before the
 * gate in 16 bits, of 64 x 128 and 64 x 64, the tokens' products with themselves, turns; and a flag for the head. */
static inline int64_t kr_mamba3_n_kept(int64_t L, int64_t M) { return (L + 63) / 64 * (4096 + 2048 + 64 + M) + 1; }

/* One sequence: a batch entry, or a run of a packed one's tokens. row: of the states. */
typedef struct kr_mamba3_sequence {
  int64_t b, row, begin, n;
} kr_mamba3_sequence;

static inline int64_t kr_mamba3_n_sequences(const kr_mamba3_inputs *in) {
  return kr_has(&in->cu_seqlens) ? in->S : in->B;
}

/* Reads host memory. */
static inline kr_mamba3_sequence kr_mamba3_sequence_at(const kr_mamba3_inputs *in, int64_t i) {
  if (!kr_has(&in->cu_seqlens)) return (kr_mamba3_sequence){i, i, 0, in->L};
  const int64_t begin = kr_get_i32(&in->cu_seqlens, kr_at1(&in->cu_seqlens, i)),
                end = kr_get_i32(&in->cu_seqlens, kr_at1(&in->cu_seqlens, i + 1));
  return (kr_mamba3_sequence){0, i, begin, end - begin};
}

/* The entries of N that rotate as pair m: neighbours, or halves. */
static inline int64_t kr_mamba3_first(uint32_t flags, int64_t m) { return flags & KRAIT_MAMBA3_HALVES ? m : 2 * m; }
static inline int64_t kr_mamba3_second(uint32_t flags, int64_t N, int64_t m) {
  return flags & KRAIT_MAMBA3_HALVES ? m + N / 2 : 2 * m + 1;
}

#endif
