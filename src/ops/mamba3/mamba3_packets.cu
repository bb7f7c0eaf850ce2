/* mamba3_packets.cu: what mamba3_walk.cu is given of each head's chunk, and the scan of heads that it could not do.
 *   kr_mamba3_turn_sums   the sums of chunks' turns, for kr_mamba3_carry
 *   kr_mamba3_packets     packets; also clears the flags of heads and blocks
 *   kr_mamba3_walk_again  heads that met NaN or infinity, token by token */
#include "mamba3_views.cuh"
#include "mamba3_walk_params.h"

enum {
  THREADS = KR_MAMBA3_PACKET_THREADS,
  HEADS = KR_MAMBA3_PACKET_HEADS,
  CHUNK = KR_MAMBA3_CHUNK,
  WARPS = THREADS / 32,
  SPAN = CHUNK / WARPS /* tokens of a warp */
};

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* turn_of_half for finite half, d below 100, as bits to be shifted: 2^-15 of a turn by one addition, the rest by
 * another. Sums of both are those of turns. */
enum { FINE_BITS = 0x3bc00000 }; /* of 0.005859375 */
KR_DEV void split_turn(float half, float d, uint32_t &coarse_bits, uint32_t &fine_bits) {
  const float to_coarse = 384.0f, to_fine = 0.005859375f, turns = half * d, low = kr_fma(half, d, -turns),
              coarse = turns + to_coarse, fine = (turns - (coarse - to_coarse)) + low + to_fine;
  coarse_bits += kr_float_to_bits(coarse), fine_bits += kr_float_to_bits(fine);
}
KR_DEV uint32_t turn_of_usual(float half, float d) {
  uint32_t coarse = 0, fine = 0;
  split_turn(half, d, coarse, fine);
  return (coarse << 17) + ((fine - FINE_BITS) << 1);
}

/* near_rotation_of for what is finite, packed. */
KR_DEV uint32_t rotation_of_usual(uint32_t turn) {
  const float turns = kr_bits_to_float((turn >> 9 ^ 0x400000u) | 0x3f800000u) - 1.5f, a = 6.283185307f * turns;
#ifdef KR_EMULATE
  return kr_pack_f16(__builtin_cosf(a), __builtin_sinf(a));
#else
  float c, s;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(c) : "f"(a));
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(a));
  return kr_pack_f16(c, s);
#endif
}
KR_DEV uint32_t rotation_of_any(uint32_t turn) {
  const rotation by = near_rotation_of(turn);
  return kr_pack_f16(by.cosine, by.sine);
}

/* A warp's tokens of a chunk, a lane's pair. */
typedef struct span_turns {
  uint32_t turn[SPAN]; /* since the span began */
  int are_usual;       /* of the warp */
} span_turns;

/* Whether a warp's turns are what split_turn takes. */
KR_DEV int are_finite(const float (&halves)[SPAN]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < SPAN; i++) zero = kr_fma(halves[i], 0.0f, zero);
  return !kr_any_lane(!(zero == 0));
}
KR_DEV int are_small(const float *dts) {
  const float last = dts[kr_thread() & (SPAN - 1)];
  return !kr_any_lane(!(last * last < 1e4f));
}

/* halves: as turn_of_half takes them; dts: of the span's tokens. */
KR_DEV span_turns sum_turns(const float (&halves)[SPAN], const float *dts, int are_usual) {
  kr_float4 d[SPAN / 4];
#pragma unroll
  for (int i = 0; i < SPAN / 4; i++) d[i] = ((const kr_float4 *)dts)[i];
  span_turns v;
  uint32_t sum = 0;
  v.are_usual = are_usual;
  if (v.are_usual) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) v.turn[i] = sum += turn_of_usual(halves[i], d[i / 4].v[i % 4]);
  } else {
#pragma unroll
    for (int i = 0; i < SPAN; i++) v.turn[i] = sum = add_turns(sum, turn_of_half(halves[i], d[i / 4].v[i % 4]));
  }
  return v;
}

/* The sum of a span's turns alone. */
KR_DEV uint32_t total_of(const float (&halves)[SPAN], const float *dts, int are_usual) {
  uint32_t coarse = 0, fine = 0, sum = 0;
  if (are_usual) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) split_turn(halves[i], dts[i], coarse, fine);
    return (coarse << 17) + ((fine - SPAN * (uint32_t)FINE_BITS) << 1);
  }
#pragma unroll
  for (int i = 0; i < SPAN; i++) sum = add_turns(sum, turn_of_half(halves[i], dts[i]));
  return sum;
}

KR_DEV void load_halves(const kr_mamba3_params &p, int b, int h, int64_t t0, int m, float (&halves)[SPAN]) {
  const int64_t left = m < p.M ? p.L - t0 : 0;
  get_column(p.angles, at4(p.angles, b, t0, h, m), p.angles.stride[1], left < SPAN ? (int)left : (int)SPAN, halves);
#pragma unroll
  for (int i = 0; i < SPAN; i++) halves[i] = 0.5f * tanh_close(halves[i]);
}

/* A lane's rotations to a packet. before: the turn before the span. */
KR_DEV void put_rotations(const span_turns &v, uint32_t before, int are_usual, int is_turning, int m,
                          unsigned char *turns) {
  uint32_t *const to =
      (uint32_t *)(turns + (m >> 3) * 2048 + (32 * (kr_thread() >> 5) + (m & 3)) * 16) + 2 * (m >> 2 & 1);
  const uint32_t none = kr_pack_f16(1.0f, 0.0f);
#pragma unroll
  for (int g = 0; g < 8; g++) {
    uint32_t two[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
      two[r] = are_usual ? rotation_of_usual(before + v.turn[g + 8 * r])
                         : rotation_of_any(add_turns(before, v.turn[g + 8 * r]));
    *(kr_float2 *)(to + 16 * g) =
        kr_float2{{kr_bits_to_float(is_turning ? two[0] : none), kr_bits_to_float(is_turning ? two[1] : none)}};
  }
}

/* ---- step sizes -------------------------------------------------------------------------------------------------- */

/* Of a chunk's tokens and the one behind, for n_heads heads: to [head][token], zeros beyond the last token. All
 * threads; in one branch of the type, since in a branch of its own each load waits for the one before. */
enum { STAGED = CHUNK + 4 };
KR_DEV void stage(const kr_mamba3_params &p, const kr_view &v, int b, int first, int n_heads, int64_t t0,
                  float (*to)[STAGED]) {
  enum { EACH = (HEADS * (CHUNK + 1) + THREADS - 1) / THREADS };
  const float *const wide = (const float *)v.data;
  const uint16_t *const narrow = (const uint16_t *)v.data;
  uint32_t e[EACH];
  const int64_t start = at3(v, b, t0, first);
#pragma unroll
  for (int i = 0; i < EACH; i++) e[i] = 0;
  if (v.dtype == KRAIT_F32) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int k = kr_thread() + i * THREADS, h = k % HEADS, j = k / HEADS;
      if (h < n_heads && j <= CHUNK && t0 + j < p.L)
        e[i] = kr_float_to_bits(wide[start + j * v.stride[1] + h * v.stride[2]]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int k = kr_thread() + i * THREADS, h = k % HEADS, j = k / HEADS;
      if (h < n_heads && j <= CHUNK && t0 + j < p.L) e[i] = narrow[start + j * v.stride[1] + h * v.stride[2]];
    }
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int k = kr_thread() + i * THREADS, h = k % HEADS, j = k / HEADS;
    if (j <= CHUNK) to[h][j] = v.dtype == KRAIT_F32 ? kr_bits_to_float(e[i]) : kr_unpack(e[i], 0, v.dtype);
  }
}

KR_DEV float sum_lanes_up(float v) {
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    const float other = kr_shuffle_up(v, by, 32);
    if ((kr_thread() & 31) >= by) v += other;
  }
  return v;
}

/* Of the gradient: whether it takes what the forward call kept. */
KR_DEV int has_kept(const kr_mamba3_walk_params &w) { return w.f.weight && w.y; }

/* By a warp. A next token's share that is not finite is the next one's matter. For the gradient (p.weight), its SSD's
 * weights and decays, and the shares; given tokens' products with themselves, also what multiplies x beside them. */
KR_DEV void put_chunk_steps(const kr_mamba3_walk_params &w, int b, int h, int64_t t0, const float *dt,
                            const float *trap, const float *log_decay, kr_mamba3_chunk_steps &to) {
  const kr_mamba3_params &p = w.f;
  const int has_products = has_kept(w);
  const float D = has_products && p.Dvec.data ? get(p.Dvec, h * p.Dvec.stride[0]) : 0.0f;
  const int lane = kr_thread() & 31;
  float a[2], weight[2], own[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int j = lane + 32 * k;
    const float decay = log_decay[j] * KR_LOG2E; /* of no token: all are 0 */
    float share = kr_sigmoid(-trap[j + 1]) * dt[j + 1];
    share = share * 0.0f == 0.0f ? share : 0.0f;
    own[k] = kr_sigmoid(trap[j]) * dt[j], weight[k] = own[k] + share;
    a[k] = decay < -160.0f ? -160.0f : decay; /* 2^-160 is 0, and sums keep their digits */
    if (!p.weight || t0 + j >= p.L) continue;
    const int64_t place = ((int64_t)b * p.H + h) * p.L + t0 + j;
    p.weight[place] = weight[k], p.decay[place] = log_decay[j], p.gamma[place] = -share;
    if (has_products) p.skips[place] = kr_fma(-share, p.dots[place], D);
  }
  a[0] = sum_lanes_up(a[0]), a[1] = sum_lanes_up(a[1]) + kr_shuffle_from(a[0], 31);
  const float total = kr_shuffle_from(a[1], 31);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int j = lane + 32 * k;
    const float from = a[k] - kr_log2(weight[k]);
    to.a[j] = a[k], to.from[j] = from, to.left[j] = kr_exp2(total - from), to.reach[j] = kr_exp2(a[k]);
    to.own[j] = own[k];
  }
  if (lane == 0) to.keeps = kr_exp2(total);
}

/* ---- packets ----------------------------------------------------------------------------------------------------- */

/* A chunk's sum of turns about a pair, or what is before it. */
KR_DEV uint32_t *sum_at(const kr_mamba3_params &p, int b, int h, int chunk, int m) {
  return p.angles_before + (((int64_t)b * p.H + h) * p.n_chunks + chunk) * p.M + m;
}

/* A block per chunk and w.packet_heads heads. */
typedef struct part {
  int chunk, first, n_heads, b, is_one; /* is_one: the angle of all heads */
} part;
KR_DEV part own_part(const kr_mamba3_walk_params &w) {
  const int groups = (w.f.H + w.packet_heads - 1) / w.packet_heads, chunk = kr_block_x() / groups,
            first = (kr_block_x() - chunk * groups) * w.packet_heads, left = w.f.H - first;
  return part{chunk, first, left < w.packet_heads ? left : w.packet_heads, (int)kr_block_z(),
              w.f.angles.stride[2] == 0};
}

/* The sums of turns. */
KR_DEV void sum_chunks(const kr_mamba3_walk_params &w) {
  KR_SHARED __attribute__((aligned(16))) float dts[HEADS][STAGED];
  KR_SHARED uint32_t totals[WARPS][HEADS][32];
  const kr_mamba3_params &p = w.f;
  const part own = own_part(w);
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const int64_t t0 = (int64_t)own.chunk * CHUNK;
  stage(p, p.dt, own.b, own.first, own.n_heads, t0, dts);
  for (int m0 = 0; m0 < p.M; m0 += 32) {
    float halves[SPAN];
    const int m = m0 + lane;
    int is_usual = 0;
    kr_sync(); /* step sizes are there, totals have been read */
#pragma unroll 1
    for (int i = 0; i < own.n_heads; i++) {
      if (i == 0 || !own.is_one)
        load_halves(p, own.b, own.first + i, t0 + warp * SPAN, m, halves), is_usual = are_finite(halves);
      const float *const of_span = dts[i] + warp * SPAN;
      totals[warp][i][lane] = total_of(halves, of_span, is_usual && are_small(of_span));
    }
    kr_sync();
    for (int i = warp; i < own.n_heads && m < p.M; i += WARPS) {
      uint32_t sum = 0;
#pragma unroll
      for (int k = 0; k < WARPS; k++) sum = add_turns(sum, totals[k][i][lane]);
      *sum_at(p, own.b, own.first + i, own.chunk, m) = sum;
    }
  }
}

KR_DEV void make_packets(const kr_mamba3_walk_params &w) {
  KR_SHARED __attribute__((aligned(16))) float dts[HEADS][STAGED], traps[HEADS][STAGED], decays[HEADS][STAGED];
  KR_SHARED uint32_t totals[2][WARPS][32];
  const kr_mamba3_params &p = w.f;
  const part own = own_part(w);
  const int chunk = own.chunk, first = own.first, n_heads = own.n_heads, b = own.b, lane = kr_thread() & 31,
            warp = kr_thread() >> 5;
  const int64_t t0 = (int64_t)chunk * CHUNK;
  stage(p, p.dt, b, first, n_heads, t0, dts);
  stage(p, p.trap, b, first, n_heads, t0, traps), stage(p, p.log_decay, b, first, n_heads, t0, decays);
  kr_sync();
  for (int h = warp; h < n_heads; h += WARPS)
    put_chunk_steps(
        w, b, first + h, t0, dts[h], traps[h], decays[h],
        *(kr_mamba3_chunk_steps *)(p.packets + (((int64_t)b * p.H + first + h) * p.n_chunks + chunk) * p.packet_bytes));
  int use = 0;
  for (int m0 = 0; m0 < p.M; m0 += 32) {
    float halves[SPAN];
    const int m = m0 + lane, is_there = m < p.M;
    int is_usual = 0;
    uint32_t next = is_there ? *sum_at(p, b, first, chunk, m) : 0;
#pragma unroll 1
    for (int i = 0; i < n_heads; i++, use++) {
      const int64_t unit = (int64_t)b * p.H + first + i;
      uint32_t before = next;
      if (is_there && i + 1 < n_heads) next = *sum_at(p, b, first + i + 1, chunk, m);
      if (i == 0 || !own.is_one)
        load_halves(p, b, first + i, t0 + warp * SPAN, m, halves), is_usual = are_finite(halves);
      const span_turns v = sum_turns(halves, dts[i] + warp * SPAN, is_usual && are_small(dts[i] + warp * SPAN));
      totals[use & 1][warp][lane] = v.turn[SPAN - 1];
      kr_sync();
      for (int k = 0; k < warp; k++) before = add_turns(before, totals[use & 1][k][lane]);
      put_rotations(v, before, !kr_any_lane(before & 1) && v.are_usual, is_there, m,
                    w.f.packets + (unit * p.n_chunks + chunk) * w.f.packet_bytes + KR_MAMBA3_STEPS_BYTES);
    }
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 8) kr_mamba3_turn_sums(const kr_mamba3_walk_params params) { sum_chunks(params); }

KR_KERNEL void KR_BOUNDS(THREADS, 6) kr_mamba3_packets(const kr_mamba3_walk_params params) {
  const int64_t first = (int64_t)kr_block_x() * THREADS + kr_thread(), each = (int64_t)kr_grid_x() * THREADS;
  const int clears = kr_block_z() == 0, has_flags = has_kept(params);
  for (int64_t i = first; clears && !has_flags && i < (int64_t)params.f.B * params.f.H; i += each) params.spoilt[i] = 0;
  for (int64_t i = first; clears && i < params.n_blocks; i += each) params.ready[i] = 0;
  make_packets(params);
}

/* ---- token by token ---------------------------------------------------------------------------------------------- */

enum { ROWS = 4, PAIRS = KR_MAMBA3_WALK_N / 64 }; /* channels of a warp, pairs of a lane */

/* A token's query or key: a lane's pairs. */
KR_DEV void load_turned(const kr_mamba3_walk_params &w, const kr_view &v, const kr_view &bias, int b, int h, int64_t t,
                        float (&to)[PAIRS][2]) {
  const kr_mamba3_params &p = w.f;
  const unsigned char *const turns =
      w.f.packets + (((int64_t)b * p.H + h) * p.n_chunks + t / CHUNK) * w.f.packet_bytes + KR_MAMBA3_STEPS_BYTES;
  const int64_t row = at4(v, b, t, h / (p.H / p.G), 0), own = at3(bias, h, 0, 0);
  const int j = (int)(t % CHUNK);
#pragma unroll
  for (int k = 0; k < PAIRS; k++) {
    const int m = (kr_thread() & 31) + 32 * k, lane = 32 * (j >> 4) + 4 * (j & 7) + (m & 3);
    const int64_t n = 2 * m;
    to[k][0] = to[k][1] = 0;
    if (n >= p.N) continue;
    const float x = get(v, row + n * v.stride[3]) + get(bias, own + n * bias.stride[2]),
                y = get(v, row + (n + 1) * v.stride[3]) + get(bias, own + (n + 1) * bias.stride[2]);
    to[k][0] = x, to[k][1] = y;
    if (m >= p.M) continue;
    const uint32_t by = ((const uint32_t *)(turns + (m >> 3) * 2048 + lane * 16))[2 * (m >> 2 & 1) + (j >> 3 & 1)];
    const float c = kr_unpack(by, 0, KRAIT_F16), s = kr_unpack(by, 1, KRAIT_F16);
    to[k][0] = kr_fma(c, x, -(s * y)), to[k][1] = kr_fma(s, x, c * y);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_walk_again(const kr_mamba3_walk_params params) {
  const kr_mamba3_walk_params &w = params;
  const kr_mamba3_params &p = w.f;
  const int blocks = (p.P + ROWS * WARPS - 1) / (ROWS * WARPS), h = kr_block_x() / blocks, b = kr_block_z(),
            c0 = ((kr_block_x() - h * blocks) * WARPS + (kr_thread() >> 5)) * ROWS, lane = kr_thread() & 31;
  if (!w.spoilt[(int64_t)b * p.H + h] || c0 >= p.P) return;
  const float D = p.Dvec.data ? get(p.Dvec, h * p.Dvec.stride[0]) : 0.0f;
  float s[ROWS][PAIRS][2] = {}, x_before[ROWS] = {}, k_before[PAIRS][2] = {};
#pragma unroll 1
  for (int64_t t = 0; t < p.L; t++) {
    const float d = get(p.dt, at3(p.dt, b, t, h)), trap = get(p.trap, at3(p.trap, b, t, h)),
                decay = kr_exp(get(p.log_decay, at3(p.log_decay, b, t, h))), own = kr_sigmoid(trap) * d,
                earlier = decay * kr_sigmoid(-trap) * d;
    float q[PAIRS][2], k[PAIRS][2];
    load_turned(w, p.Cmat, p.C_bias, b, h, t, q), load_turned(w, p.Bmat, p.B_bias, b, h, t, k);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int c = c0 + r;
      const float x = c < p.P ? get(p.x, at4(p.x, b, t, h, c)) : 0.0f;
      float y = 0;
#pragma unroll
      for (int i = 0; i < PAIRS; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float before = t ? earlier * k_before[i][e] * x_before[r] : 0.0f;
          s[r][i][e] = 2 * (lane + 32 * i) < p.N ? kr_fma(decay, s[r][i][e], kr_fma(own * k[i][e], x, before)) : 0.0f;
          y = kr_fma(q[i][e], s[r][i][e], y);
        }
      x_before[r] = x;
      y = add_warp(y);
      if (p.Dvec.data) y = kr_fma(D, x, y);
      if (c >= p.P || lane) continue;
      if (p.z.data) y *= kr_silu(get(p.z, at4(p.z, b, t, h, c)));
      kr_store(p.out.data, at4(p.out, b, t, h, c), p.out.dtype, y);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) k_before[i][0] = k[i][0], k_before[i][1] = k[i][1];
  }
}
