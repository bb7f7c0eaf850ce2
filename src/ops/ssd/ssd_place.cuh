/* ssd_place.cuh: which part of the SSD a block of the chunked kernels computes: channels of a head, and a segment of
 * time. */
#ifndef KR_SSD_PLACE_CUH
#define KR_SSD_PLACE_CUH

#include "ssd_mma.cuh"

/* The work of a block. */
typedef struct place {
  int b, h, g, p0, segment;
  int64_t begin, end;
} place;

KR_DEV place here(const kr_ssd_params &p) {
  place at;
  at.h = kr_block_x() / p.blocks_per_head;
  at.p0 = (kr_block_x() - at.h * p.blocks_per_head) * PB;
  at.g = at.h / p.heads, at.b = kr_block_z(), at.segment = kr_block_y();
  at.begin = at.segment * p.segment;
  at.end = at.begin + p.segment < p.L ? at.begin + p.segment : p.L;
  return at;
}

/* This segment's states as a tensor. */
KR_DEV kr_ssd_tensor segment_states(const kr_ssd_params &p, const place &at) {
  const int64_t size = (int64_t)p.P * p.N, head = p.n_segments * size;
  kr_ssd_tensor v = {};
  v.data = p.segment_state + at.segment * size, v.b = p.H * head, v.h = head, v.t = p.N, v.n = 1, v.dtype = KRAIT_F32;
  return v;
}

#endif
