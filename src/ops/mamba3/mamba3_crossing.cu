/* mamba3_crossing.cu: sums of angles' shares in the gradient of Mamba 3's scan (psi in mamba3_params.h) from every
 * bound on, of the states before that token and their gradients, as the SSD's gradient left these; compiled once per
 * 16-bit storage type. */
#include "mamba3_rows.cuh"

/* Turning all tokens from one on, and nothing before, changes only what the state before that token gives to them, as
 * much as turning that state against its gradient: M_a S_b - M_b S_a over its channels. Sums of the tokens' shares
 * would be the same, but each rounding of a state is in all that its chunk's queries give and not in what the keys
 * before take: as a walk at random over all later chunks, which is more than all that is left after a thousand tokens.
 */
/* Where two neighbouring columns of a channel's row are in a tile, as the SSD's gradient on warpgroups or on tensor
 * cores (leave_state in ssd_bwd_chunks.cu) left it; in elements. */
KR_DEV int place_in_tile(const kr_mamba3_bwd_params &p, int row, int n) {
  if (p.has_warpgroup_tiles) return n / 64 * (CHUNK * 64) + row * 64 + ((n / 8 & 7) ^ (row & 7)) * 8 + (n & 7);
  return row * (p.f.N > 64 ? 128 : 64) + (n & ~31) + (n >> 1 & 3) * 8 + (n >> 3 & 3) * 2 + (n & 1);
}
KR_DEV int64_t tile_at(const kr_mamba3_bwd_params &p, int b, int h, int block, int n_blocks, int64_t chunk) {
  const kr_mamba3_params &f = p.f;
  const int64_t n_chunks = (f.n_rows + CHUNK - 1) / CHUNK,
                tile = p.has_warpgroup_tiles ? ((b * n_chunks + chunk) * f.H + h) * n_blocks + block
                                             : (((int64_t)b * f.H + h) * n_blocks + block) * n_chunks + chunk;
  return tile * CHUNK * (f.N > 64 ? 128 : 64);
}

KR_DEV kr_float2 pair_in_tile(const kr_mamba3_bwd_params &p, const void *tiles, int64_t tile, int row, int m) {
  const uint16_t *const from = (const uint16_t *)tiles + tile;
  uint32_t two;
  if (p.f.flags & KRAIT_MAMBA3_HALVES)
    two = from[place_in_tile(p, row, m)] | (uint32_t)from[place_in_tile(p, row, m + p.f.N / 2)] << 16;
  else
    two = *(const uint32_t *)(from + place_in_tile(p, row, 2 * m));
  return kr_float2{{kr_unpack(two, 0, KR_DTYPE), kr_unpack(two, 1, KR_DTYPE)}};
}

/* A warp's channels of what turning a lane's pair changes. */
KR_DEV float cross_states(const kr_mamba3_bwd_params &p, int b, int h, int64_t chunk, int m) {
  const int n_blocks = (p.f.P + CHUNK - 1) / CHUNK;
  float sum = 0;
#pragma unroll 1
  for (int block = 0; block < n_blocks; block++) {
    const int64_t before = tile_at(p, b, h, block, n_blocks, chunk),
                  after = tile_at(p, b, h, block, n_blocks, chunk - 1);
#pragma unroll
    for (int i = 0; i < CHUNK / WARPS; i++) {
      const int row = i * WARPS + (kr_thread() >> 5);
      const kr_float2 s = pair_in_tile(p, p.S, before, row, m), d = pair_in_tile(p, p.M_states, after, row, m);
      sum = kr_fma(d.v[0], s.v[1], kr_fma(-d.v[1], s.v[0], sum));
    }
  }
  return sum;
}

/* What turning the keys of the token before a bound changes: their rows are behind it. */
KR_DEV float cross_keys(const kr_mamba3_bwd_params &p, int b, int h, int64_t block, int m) {
  const kr_mamba3_params &f = p.f;
  const int halves = (f.flags & KRAIT_MAMBA3_HALVES) != 0, x = halves ? m : 2 * m, y = halves ? m + f.N / 2 : 2 * m + 1;
  float sum = 0;
#pragma unroll 1
  for (int r = 0; r < f.R; r++) {
    const int64_t row = row_of(f, b, h, block, r) * f.row_N;
    const element *const k = (const element *)f.k + row;
    const float *const dk = (const float *)p.dk + row;
    sum = kr_fma(value(k, x), dk[y], kr_fma(-value(k, y), dk[x], sum));
  }
  return sum;
}

/* A block per bound and head: a warp has every eighth channel, a lane a pair. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_crossing(const kr_mamba3_bwd_params p) {
  KR_SHARED float sums[WARPS][32];
  const kr_mamba3_params &f = p.f;
  const int bound = kr_block_x() / f.H, h = kr_block_x() - bound * f.H, b = kr_block_z(), lane = kr_thread() & 31,
            warp = kr_thread() >> 5;
  const int64_t unit = unit_of(f, b, h), block = (int64_t)(bound + 1) << p.bound_shift;
  for (int m = lane; m - lane < f.M; m += 32) {
    float sum = m < f.M ? cross_states(p, b, h, block * f.ranks / CHUNK, m) : 0.0f;
    if (warp == 0 && m < f.M && !f.is_direct) sum -= cross_keys(p, b, h, block, m);
    sums[warp][lane] = sum;
    kr_sync();
    if (warp == 0 && m < f.M) {
      for (int w = 1; w < WARPS; w++) sum += sums[w][lane];
      p.crossing[(unit * p.n_bounds + bound) * f.M + m] = p.spoilt[unit] ? kr_bits_to_float(0x7f800000u) : sum;
    }
    kr_sync();
  }
}
