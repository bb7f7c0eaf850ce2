/* ssd_tiles.cu: the SSD in chunks by multiply-adds (equations in ssd_chunks.cu), for every GPU, type and stride. Where
 * tensor-core kernels walk over a head's chunks, here they are independent blocks: what a chunk adds to the state is a
 * product, and passing states on is a pass over memory.
 * kr_ssd_tiles_steps      cumulative log-decays of every chunk
 * kr_ssd_tiles_products   C B^T of every chunk and group
 * kr_ssd_tiles_additions  what every chunk adds to its head's state
 * kr_ssd_tiles_states     from these the state before every chunk
 * kr_ssd_tiles_output     output, given these */
#include "ssd_tiles.cuh"

KR_DEV void leave_output(const kr_ssd_params &f, const kr_ssd_slice &s, float *stages, chunk_steps &steps) {
  const int chunk = kr_block_x() / f.blocks_per_head;
  const chunk_place at =
      place_in(f, s.first + chunk, kr_block_y(), kr_block_x() - chunk * f.blocks_per_head, 0);
  const tile_place me = own_place();
  float y[8][8], D[8];
  load_steps_of(steps, f, at);
  clear(y);
  add_state_output(y, stages, f, s, at, steps);
  add_own_output(y, stages, f, at, steps);
  if (is_spoilt(y)) f.spoilt[(int64_t)at.b * f.H + at.h] = 1;
  read_D(f, at, D);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int row = result_at(me.y, i), is_padding = steps.segment[row] < 0;
    if (row >= at.n) continue;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int c = at.p0 + 32 * h + 4 * me.x, left = f.P - c;
      float x[4], z[4], v[4];
      read_four(f.x, element_at(f.x, at, row, c), f.D.data ? left : 0, x);
      if (f.z.data) read_four(f.z, element_at(f.z, at, row, c), left, z);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        v[k] = kr_fma(D[4 * h + k], x[k], y[i][4 * h + k]);
        if (f.z.data) v[k] *= kr_silu(z[k]);
        if (is_padding) v[k] = 0.0f;
      }
      write_four(f.out, element_at(f.out, at, row, c), left, v);
    }
  }
}

KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_tiles_steps(const kr_ssd_tiles_params p) { leave_steps(p.f); }
KR_KERNEL void KR_BOUNDS(TILERS, 6) kr_ssd_tiles_products(const kr_ssd_tiles_params p) {
  KR_SHARED float __attribute__((aligned(16))) stages[STAGES];
  leave_products(p.f, stages);
}
KR_KERNEL void KR_BOUNDS(TILERS, 6) kr_ssd_tiles_additions(const kr_ssd_tiles_params p) {
  KR_SHARED float __attribute__((aligned(16))) stages[STAGES];
  KR_SHARED float weights[Q];
  leave_additions<0>(p.f, p.s, kr_block_x(), p.f.x, p.f.Bmat, stages, weights);
}
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_tiles_states(const kr_ssd_tiles_params p) {
  const int spoilt = pass_states<0>(p.f, p.s, kr_block_x(), p.f.initial, p.f.final);
  if (spoilt) p.f.spoilt[kr_block_z() * p.f.H + kr_block_y()] = 1;
}
KR_KERNEL void KR_BOUNDS(TILERS, 6) kr_ssd_tiles_output(const kr_ssd_tiles_params p) {
  KR_SHARED float __attribute__((aligned(16))) stages[STAGES];
  KR_SHARED chunk_steps steps;
  leave_output(p.f, p.s, stages, steps);
}
