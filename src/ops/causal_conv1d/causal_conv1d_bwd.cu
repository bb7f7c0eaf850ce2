/* causal_conv1d_bwd.cu: gradients of the short causal convolution (causal_conv1d_bwd_ref.c has the equation).
 *   kr_conv_bwd_rows   blocks share a channel; a thread takes 16-byte packs, W up to 4, and accumulates its own part of
 *                      the weight gradient, which the block then reduces in a fixed order
 *   kr_conv_bwd_whole  the same for aligned packed rows: two adjacent packs per thread, so that fewer steps are
 *                      recomputed
 *   kr_conv_bwd_fours  the same for 16-bit rows in aligned groups of four steps
 *   kr_conv_bwd_long   the same for long packed rows: one warp per row; _block: the few warps of a channel are a block,
 *                      which reduces
 *   kr_conv_bwd_far    the same for 16-bit types and many packs per warp: deeper prefetch, by asynchronous copies
 *   kr_conv_bwd_last   channels-last: a thread takes 4 channels of runs of steps; kr_conv_bwd_last_far has more of them
 *                      in flight
 *   kr_conv_bwd_any    the same element by element: any W up to 128, packed sequences, no dout
 *   kr_conv_bwd_sum    reduces the partial sums of a channel
 *   kr_conv_bwd_initial  gradient of the inputs before the start
 * The pre-activation is recomputed: three reads and a write of the tensor in all. */
#include "conv.cuh"

/* silu'(pre). */
KR_DEV float slope(float pre) {
  const float s = kr_sigmoid(pre);
  return s * kr_fma(pre, 1.0f - s, 1.0f);
}

/* The gradient of tap `slot` or, at W, of the bias. */
KR_DEV void write_sum(const kr_conv_params &p, int64_t d, int64_t slot, float v) {
  if (slot < p.W && p.dweight) kr_store(p.dweight, d * p.dweight_d + slot * p.dweight_w, p.dweight_dtype, v);
  if (slot == p.W && p.dbias) kr_store(p.dbias, d * p.dbias_d, p.dbias_dtype, v);
}

/* A sum of one part; final if there is no other. */
KR_DEV void keep_part(const kr_conv_params &p, int64_t d, int64_t part, int64_t slot, float v) {
  if (p.n_parts == 1) write_sum(p, d, slot, v);
  else p.part[(d * p.n_parts + part) * (p.W + 1) + slot] = v;
}

/* The sums of up to four taps and the bias, reduced over one warp. */
KR_DEV void keep_parts_of_warp(const kr_conv_params &p, int64_t d, int64_t part, const float (&sums)[5]) {
#pragma unroll
  for (int j = 0; j < 5; j++) {
    const int64_t slot = j < 4 ? j - 4 + p.W : p.W;
    float v = sums[j];
    for (int k = 16; k; k >>= 1) v += kr_shuffle_xor(v, k);
    if ((kr_thread() & 31) == j && slot >= 0) keep_part(p, d, part, slot, v);
  }
}

/* The same, reduced over the block. */
KR_DEV void keep_parts(const kr_conv_params &p, int64_t d, int64_t part, const float (&sums)[5]) {
  KR_SHARED float shared[5][KR_CONV_THREADS / 32];
#pragma unroll
  for (int j = 0; j < 5; j++) {
    float v = sums[j];
    for (int k = 16; k; k >>= 1) v += kr_shuffle_xor(v, k);
    if ((kr_thread() & 31) == 0) shared[j][kr_thread() >> 5] = v;
  }
  kr_sync();
  const int j = kr_thread();
  const int64_t slot = j < 4 ? j - 4 + p.W : p.W;
  if (j >= 5 || slot < 0) return;
  float v = 0;
  for (int k = 0; k < kr_block_threads() >> 5; k++) v += shared[j][k];
  keep_part(p, d, part, slot, v);
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 3) kr_conv_bwd_rows(const kr_conv_params p) {
  const int64_t n_packs = p.packs_per_row.by, d = kr_block_x() / p.n_parts, part = kr_block_x() % p.n_parts;
  float w[4], dw[4] = {0, 0, 0, 0}, db = 0;
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
  for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < p.B * n_packs; i += (int64_t)p.n_parts * KR_CONV_THREADS) {
    const uint32_t b32 = kr_divide((uint32_t)i, p.packs_per_row);
    const int64_t b = b32, t = (int64_t)((uint32_t)i - b32 * p.packs_per_row.by) * E, left = p.L - t;
    const int64_t at = b * p.x.b + d * p.x.row + t * p.x.t, g_at = b * p.dout.b + d * p.dout.row + t * p.dout.t;
    float x[16], before[4], now[8], g[12], slopes[12], next[8];
    read_pack(p.x, KR_DTYPE, at, left, now);
    read_before(p, b, d, t, before);
    read_pack(p.x, KR_DTYPE, at + E * p.x.t, left - E < 3 ? left - E : p.x.packs ? left - E : 3, next);
#pragma unroll
    for (int k = 0; k < 3; k++) x[k] = before[k + 1];
#pragma unroll
    for (int k = 0; k < 11; k++) x[k + 3] = k < E ? now[k < 8 ? k : 0] : next[k - E];
    read_pack(p.dout, KR_DTYPE, g_at, left, now);
    read_pack(p.dout, KR_DTYPE, g_at + E * p.dout.t, left - E < 3 ? left - E : p.dout.packs ? left - E : 3, next);
#pragma unroll
    for (int k = 0; k < 11; k++) {
      g[k] = 0.0f;
      if (k >= E + 3) continue;
      float pre = bias;
#pragma unroll
      for (int j = 0; j < 4; j++) pre = kr_fma(w[j], x[k + j], pre);
      slopes[k] = pre;
      g[k] = k < E ? now[k < 8 ? k : 0] : next[k - E];
    }
    if (p.silu) {
#pragma unroll
      for (int k = 0; k < E + 3; k++) g[k] *= slope(slopes[k]);
    }
    float dx[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      dx[k] = 0.0f;
      if (k >= E) continue;
#pragma unroll
      for (int j = 0; j < 4; j++) dx[k] = kr_fma(w[j], g[k + 3 - j], dx[k]), dw[j] = kr_fma(g[k], x[k + j], dw[j]);
      db += g[k];
    }
    if (p.dfinal.data) {
#pragma unroll
      for (int k = 0; k < 8; k++) {
        int64_t q = t + k - (p.L - (p.W - 1));
        if (k < E && k < left && q >= 0)
          dx[k] += kr_load(p.dfinal.data, b * p.dfinal.b + d * p.dfinal.row + q * p.dfinal.t, p.dfinal.dtype);
      }
    }
    if (p.dx.data) write_pack(p.dx, KR_DTYPE, b * p.dx.b + d * p.dx.row + t * p.dx.t, min64(E, left), dx);
  }
  const float sums[5] = {dw[0], dw[1], dw[2], dw[3], db};
  keep_parts(p, d, part, sums);
}

/* What dfinal adds to the gradient of the input at t. */
KR_DEV float from_final(const kr_conv_params &p, int64_t b, int64_t d, int64_t t) {
  const int64_t q = t - (p.L - (p.W - 1));
  return p.dfinal.data && q >= 0 && t < p.L
             ? kr_load(p.dfinal.data, b * p.dfinal.b + d * p.dfinal.row + q * p.dfinal.t, p.dfinal.dtype)
             : 0.0f;
}

KR_DEV kr_raw16 whole(const kr_rows &v, int64_t offset) {
  return *(const kr_raw16 *)((const char *)v.data + offset * (16 / E));
}

/* Turns the gradients g at n outputs into those at the pre-activation; x begins three steps earlier. */
KR_DEV void gradients_before(const kr_conv_params &p, const int n, const float (&w)[4], float bias, const float *x,
                             float *g) {
  if (!p.silu) return;
#pragma unroll
  for (int k = 0; k < n; k++)
    g[k] *= slope(kr_fma(w[3], x[k + 3], kr_fma(w[2], x[k + 2], kr_fma(w[1], x[k + 1], kr_fma(w[0], x[k], bias)))));
}

/* The gradient of one input from those at its own and the three next steps; adds its contribution to the weight
 * gradients. x begins three steps before it. */
KR_DEV float input_gradient(const float (&w)[4], const float *x, const float *g, float (&sums)[5]) {
#pragma unroll
  for (int j = 0; j < 4; j++) sums[j] = kr_fma(g[0], x[j], sums[j]);
  sums[4] += g[0];
  return kr_fma(w[0], g[3], kr_fma(w[1], g[2], kr_fma(w[2], g[1], w[3] * g[0])));
}

/* Two adjacent raw packs and the neighbouring steps. */
typedef struct pair {
  int64_t b, t;
  kr_raw16 x[2], g[2];
  quad x_left, x_right, g_right;
} pair;

KR_DEV void load_pair(const kr_conv_params &p, int64_t d, int64_t i, pair &to) {
  const uint32_t b = kr_divide((uint32_t)i, p.packs_per_row);
  to.b = b, to.t = (int64_t)((uint32_t)i - b * p.packs_per_row.by) * (2 * E);
  const int64_t at = to.b * p.x.b + d * p.x.row + to.t, g_at = to.b * p.dout.b + d * p.dout.row + to.t;
  const int two = to.t + E < p.L, more = to.t + 2 * E < p.L;
  to.x[0] = whole(p.x, at), to.g[0] = whole(p.dout, g_at);
  to.x[1] = to.g[1] = kr_raw16{};
  to.x_left = to.x_right = to.g_right = no_quad();
  if (two) to.x[1] = whole(p.x, at + E), to.g[1] = whole(p.dout, g_at + E);
  if (to.t > 0) to.x_left = load_quad(p.x, at - 4);
  if (more) to.x_right = load_quad(p.x, at + 2 * E), to.g_right = load_quad(p.dout, g_at + 2 * E);
}

KR_DEV kr_raw16 stored(const float (&v)[E]) {
  kr_raw16 raw;
#pragma unroll
  for (int k = 0; k < 4; k++)
    raw.w[k] = E == 4 ? kr_float_to_bits(v[k]) : kr_pack(v[2 * k % E], v[(2 * k + 1) % E], KR_DTYPE);
  return raw;
}

KR_DEV void store_pair(const kr_conv_params &p, int64_t d, int64_t b, int64_t t, const float (&dx)[2 * E]) {
  enum { M = 2 * E };
  const int64_t at = b * p.dx.b + d * p.dx.row + t;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    kr_raw16 raw;
    if (h && t + E >= p.L) break;
#pragma unroll
    for (int k = 0; k < 4; k++)
      raw.w[k] = E == 4 ? kr_float_to_bits(dx[h * E + k])
                        : kr_pack(dx[(h * E + 2 * k) % M], dx[(h * E + 2 * k + 1) % M], KR_DTYPE);
    *(kr_raw16 *)((char *)p.dx.data + (at + h * E) * (16 / E)) = raw;
  }
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 3) kr_conv_bwd_whole(const kr_conv_params p) {
  enum { M = 2 * E };
  const int64_t d = kr_block_x() / p.n_parts, part = kr_block_x() % p.n_parts, n_pairs = p.B * p.packs_per_row.by;
  float w[4], sums[5] = {0, 0, 0, 0, 0}; /* gradients of weights and bias */
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
  for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < n_pairs; i += (int64_t)p.n_parts * KR_CONV_THREADS) {
    pair now;
    load_pair(p, d, i, now);
    float x[M + 6], g[M + 3], dx[M];
#pragma unroll
    for (int k = 0; k < 3; k++)
      x[k] = quad_at(now.x_left, k + 1), x[M + 3 + k] = quad_at(now.x_right, k), g[M + k] = quad_at(now.g_right, k);
#pragma unroll
    for (int k = 0; k < M; k++)
      x[k + 3] = pack_at(now.x[k / E], k % E, KR_DTYPE), g[k] = pack_at(now.g[k / E], k % E, KR_DTYPE);
    gradients_before(p, M + 3, w, bias, x, g);
#pragma unroll
    for (int k = 0; k < M; k++) dx[k] = input_gradient(w, x + k, g + k, sums);
    if (p.dx.data) store_pair(p, d, now.b, now.t, dx);
  }
  keep_parts(p, d, part, sums);
}

/* Four adjacent raw groups of four steps and their neighbours. */
enum { FOURS = 4 };
typedef struct fours {
  int64_t b, t;
  quad x[FOURS], g[FOURS], x_left, x_right, g_right;
} fours;

KR_DEV void load_fours(const kr_conv_params &p, int64_t d, int64_t i, fours &to) {
  const uint32_t b = kr_divide((uint32_t)i, p.packs_per_row);
  to.b = b, to.t = (int64_t)((uint32_t)i - b * p.packs_per_row.by) * (4 * FOURS);
  const int64_t at = to.b * p.x.b + d * p.x.row + to.t, g_at = to.b * p.dout.b + d * p.dout.row + to.t;
#pragma unroll
  for (int k = 0; k < FOURS; k++) {
    to.x[k] = to.g[k] = no_quad();
    if (to.t + 4 * k < p.L) to.x[k] = load_quad(p.x, at + 4 * k), to.g[k] = load_quad(p.dout, g_at + 4 * k);
  }
  to.x_left = to.x_right = to.g_right = no_quad();
  if (to.t > 0) to.x_left = load_quad(p.x, at - 4);
  if (to.t + 4 * FOURS < p.L)
    to.x_right = load_quad(p.x, at + 4 * FOURS), to.g_right = load_quad(p.dout, g_at + 4 * FOURS);
}

/* 16-bit rows in aligned groups of four, not in 16-byte packs. */
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 3) kr_conv_bwd_fours(const kr_conv_params p) {
  enum { M = 4 * FOURS };
  const int64_t d = kr_block_x() / p.n_parts, part = kr_block_x() % p.n_parts, n = p.B * p.packs_per_row.by;
  float w[4], sums[5] = {0, 0, 0, 0, 0};
  if (E == 4) return;
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
  for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < n; i += (int64_t)p.n_parts * KR_CONV_THREADS) {
    fours now;
    load_fours(p, d, i, now);
    float x[M + 6], g[M + 3];
#pragma unroll
    for (int k = 0; k < 3; k++)
      x[k] = quad_at(now.x_left, k + 1), x[M + 3 + k] = quad_at(now.x_right, k), g[M + k] = quad_at(now.g_right, k);
#pragma unroll
    for (int k = 0; k < M; k++) x[k + 3] = quad_at(now.x[k / 4], k % 4), g[k] = quad_at(now.g[k / 4], k % 4);
    gradients_before(p, M + 3, w, bias, x, g);
#pragma unroll
    for (int q = 0; q < FOURS; q++) {
      float dx[4];
#pragma unroll
      for (int k = 0; k < 4; k++) dx[k] = input_gradient(w, x + q * 4 + k, g + q * 4 + k, sums);
      if (p.dx.data && now.t + 4 * q < p.L)
        store_quad(quad_pointer(p.dx, now.b * p.dx.b + d * p.dx.row + now.t + 4 * q), dx);
    }
  }
  keep_parts(p, d, part, sums);
}

/* One warp per row, one pack per lane: a pack's last three steps are in this many words. */
enum { TAIL_WORDS = E == 4 ? 3 : 2 };

/* The last steps of the previous lane's pack; lane 31's go to lane 0. */
KR_DEV quad pass_tail(const kr_raw16 &pack) {
  const int from = (kr_thread() + 31) & 31;
  quad tail = no_quad();
#pragma unroll
  for (int k = 0; k < TAIL_WORDS; k++)
    tail.w[(E == 4 ? 1 : 0) + k] =
        kr_float_to_bits(kr_shuffle_from(kr_bits_to_float(pack.w[4 - TAIL_WORDS + k]), from));
  return tail;
}

/* A lane's pack of x and dout. */
typedef struct lane_packs {
  kr_raw16 x, g;
} lane_packs;

/* Pack q of a row of n; x from pack 0, g within the run that starts at pack `first`. */
KR_DEV lane_packs load_lane(const char *x, const char *g, int q, int first, int n) {
  lane_packs to = {};
  if (q >= 0 && q < n) to.x = *(const kr_raw16 *)(x + (int64_t)q * 16);
  if (q >= first && q < n) to.g = *(const kr_raw16 *)(g + (int64_t)q * 16);
  return to;
}

/* The gradient at the pre-activation of the three steps from pack q, needed by the run before it. */
KR_DEV void gradient_after(const kr_conv_params &p, const char *x_row, const char *g_row, int q, int n,
                           const float (&w)[4], float bias, float (&g)[3]) {
#pragma unroll
  for (int k = 0; k < 3; k++) g[k] = 0.0f;
  if (q >= n) return;
  const char *const at = x_row + (int64_t)q * 16;
  const quad x_left = *(const quad *)(at - sizeof(quad)), x_right = *(const quad *)at,
             g_right = *(const quad *)(g_row + (int64_t)q * 16);
  float x[6];
#pragma unroll
  for (int k = 0; k < 3; k++) x[k] = quad_at(x_left, k + 1), x[k + 3] = quad_at(x_right, k), g[k] = quad_at(g_right, k);
  gradients_before(p, 3, w, bias, x, g);
}

/* A lane's pack: dx from x, the steps before, g, and the next pack's gradient, whose first steps lane 31 has in
 * `carry`. */
KR_DEV void walk_packs(const kr_conv_params &p, const lane_packs &now, const quad &left, const float (&w)[4],
                       float bias, float (&carry)[3], float (&sums)[5], float (&dx)[E]) {
  const int lane = kr_thread() & 31;
  float x[E + 3], g[E + 3];
#pragma unroll
  for (int k = 0; k < 3; k++) x[k] = quad_at(left, k + 1);
#pragma unroll
  for (int k = 0; k < E; k++) x[k + 3] = pack_at(now.x, k, KR_DTYPE), g[k] = pack_at(now.g, k, KR_DTYPE);
  gradients_before(p, E, w, bias, x, g);
#pragma unroll
  for (int k = 0; k < 3; k++) {
    const float right = kr_shuffle_from(g[k], (lane + 1) & 31);
    g[E + k] = lane == 31 ? carry[k] : right;
    carry[k] = right;
  }
#pragma unroll
  for (int k = 0; k < E; k++) dx[k] = input_gradient(w, x + k, g + k, sums);
}

/* Long packed rows: a warp goes backward along runs of a row, taking every n_warps-th of all runs, 32 packs at a time
 * with the next ones in flight. Values across a pack's ends come from the adjacent lanes, so nothing is read or
 * computed twice. */
KR_DEV void walk_runs(const kr_conv_params &p, int64_t d, int warp, int n_warps, float (&sums)[5]) {
  enum { FAR = E != 4 }; /* two loads in flight instead of one; 32-bit types benefit more from occupancy */
  const int lane = kr_thread() & 31, n = (int)p.packs_per_row.by;
  const int64_t n_tasks = p.B * p.runs.by;
  float w[4];
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
  for (int64_t task = warp; task < n_tasks; task += n_warps) {
    const uint32_t b32 = kr_divide((uint32_t)task, p.runs);
    const int first = (int)(((uint32_t)task - b32 * p.runs.by) * (uint32_t)p.run_packs),
              end = first + (int)p.run_packs < n ? first + (int)p.run_packs : n;
    const char *const x_row = (const char *)p.x.data + (b32 * p.x.b + d * p.x.row) * (16 / E),
                      *const g_row = (const char *)p.dout.data + (b32 * p.dout.b + d * p.dout.row) * (16 / E);
    char *const dx_row = (char *)p.dx.data + (b32 * p.dx.b + d * p.dx.row) * (16 / E);
    int q = first + (end - 1 - first) / 32 * 32 + lane;
    lane_packs next = load_lane(x_row, g_row, q, first, n), after = {};
    if (FAR) after = load_lane(x_row, g_row, q - 32, first, n);
    float carry[3];
    gradient_after(p, x_row, g_row, end, n, w, bias, carry);
    for (; q >= first; q -= 32) {
      const lane_packs now = next;
      next = FAR ? after : load_lane(x_row, g_row, q - 32, first, n);
      if (FAR) after = load_lane(x_row, g_row, q - 64, first, n);
      float dx[E];
      const quad left = pass_tail(lane == 31 ? next.x : now.x);
      walk_packs(p, now, left, w, bias, carry, sums, dx);
      if (p.dx.data && q < end) *(kr_raw16 *)(dx_row + (int64_t)q * 16) = stored(dx);
    }
  }
}

KR_KERNEL void KR_BOUNDS(32, E == 4 ? 32 : 24) kr_conv_bwd_long(const kr_conv_params p) {
  const int64_t d = kr_block_x() / p.n_parts, part = kr_block_x() % p.n_parts;
  float sums[5] = {0, 0, 0, 0, 0};
  walk_runs(p, d, (int)part, p.n_parts, sums);
  keep_parts_of_warp(p, d, part, sums);
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, E == 4 ? 4 : 3) kr_conv_bwd_block(const kr_conv_params p) {
  float sums[5] = {0, 0, 0, 0, 0};
  walk_runs(p, kr_block_x(), kr_thread() >> 5, kr_block_threads() >> 5, sums);
  keep_parts(p, kr_block_x(), 0, sums);
}

#if KR_TIER >= 80 || defined(KR_EMULATE)
/* A warp's position going backward along runs of rows: at 32 packs from pack c, this lane's at x and g; past the end
 * once c is below `first`. */
typedef struct walk {
  const char *x, *g;
  int task, c, first; /* task: row and run */
} walk;

KR_DEV int n_tasks_of(const kr_conv_params &p) { return (int)(p.B * p.runs.by); }

KR_DEV walk begin_run(const kr_conv_params &p, int64_t d, int task) {
  const uint32_t b = kr_divide((uint32_t)task, p.runs), run = (uint32_t)task - b * p.runs.by;
  const int n = (int)p.packs_per_row.by, first = (int)run * (int)p.run_packs, end = first + (int)p.run_packs,
            c = first + ((end < n ? end : n) - 1 - first) / 32 * 32;
  const int64_t at = (int64_t)(c + kr_thread()) * 16;
  return walk{(const char *)p.x.data + (b * p.x.b + d * p.x.row) * (16 / E) + at,
              (const char *)p.dout.data + (b * p.dout.b + d * p.dout.row) * (16 / E) + at, task, c, first};
}

KR_DEV void next_packs(const kr_conv_params &p, int64_t d, walk &w) {
  w.c -= 32, w.x -= 512, w.g -= 512;
  if (w.c < w.first && w.task + p.n_parts < n_tasks_of(p)) w = begin_run(p, d, w.task + p.n_parts);
}

/* Packs in flight, across the ends of runs. A lane reads only what it copied itself, so no barrier is needed. */
enum { AHEAD = 3, SLOTS = AHEAD + 1 /* the last one read is overwritten next */ };
typedef struct slot {
  kr_raw16 x[32], g[32], left; /* left: the pack before lane 0's */
} slot;

KR_DEV void fetch_packs(const kr_conv_params &p, int64_t d, walk &far, slot *ring, uint32_t &put) {
  slot &to = ring[put];
  if (far.c >= far.first) {
    const int lane = kr_thread(), exists = far.c + lane < (int)p.packs_per_row.by;
    kr_copy_or_zero<16>(&to.x[lane], far.x, exists);
    kr_copy_or_zero<16>(&to.g[lane], far.g, exists);
    if (lane == 0) kr_copy_or_zero<16>(&to.left, far.x - 16, far.c > 0);
    next_packs(p, d, far);
  }
  kr_commit_copies();
  put = (put + 1) % SLOTS;
}

/* The last steps before a lane's pack: from the previous lane, or from `left`. */
KR_DEV quad steps_before(const kr_raw16 &x, const kr_raw16 &left) {
  const int lane = kr_thread();
  quad tail = no_quad();
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const uint32_t word = kr_float_to_bits(kr_shuffle_from(kr_bits_to_float(x.w[k + 2]), (lane + 31) & 31));
    tail.w[k] = lane ? word : left.w[k + 2];
  }
  return tail;
}

KR_KERNEL void KR_BOUNDS(32, 24) kr_conv_bwd_far(const kr_conv_params p) {
  KR_SHARED slot ring[SLOTS];
  const int lane = kr_thread(), n = (int)p.packs_per_row.by, n_tasks = n_tasks_of(p), part = kr_block_x() % p.n_parts;
  const int64_t d = kr_block_x() / p.n_parts;
  float w[4], sums[5] = {0, 0, 0, 0, 0};
  uint32_t put = 0;
  if (E == 4) return;
  walk far = begin_run(p, d, part);
#pragma unroll 1
  for (int k = 0; k < AHEAD; k++) fetch_packs(p, d, far, ring, put);
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
  for (int task = part; task < n_tasks; task += p.n_parts) {
    const walk at = begin_run(p, d, task);
    const uint32_t b = kr_divide((uint32_t)task, p.runs);
    const int end = at.first + (int)p.run_packs < n ? at.first + (int)p.run_packs : n;
    int64_t to = (b * p.dx.b + d * p.dx.row) * (16 / E) + (int64_t)(at.c + lane) * 16;
    float carry[3];
    gradient_after(p, (const char *)p.x.data + (b * p.x.b + d * p.x.row) * (16 / E),
                   (const char *)p.dout.data + (b * p.dout.b + d * p.dout.row) * (16 / E), end, n, w, bias, carry);
#pragma unroll 1
    for (int q = at.c + lane; q >= at.first; q -= 32, to -= 512) {
      const slot &taken = ring[(put + 1) % SLOTS];
      kr_copied<AHEAD - 1>();
      const lane_packs now = {taken.x[lane], taken.g[lane]};
      const kr_raw16 before = taken.left;
      fetch_packs(p, d, far, ring, put);
      float dx[E];
      const quad left = steps_before(now.x, before);
      walk_packs(p, now, left, w, bias, carry, sums, dx);
      if (p.dx.data && q < end) *(kr_raw16 *)((char *)p.dx.data + to) = stored(dx);
    }
  }
  keep_parts_of_warp(p, d, part, sums);
}
#endif

/* Step t of a run of `own` steps plus three, at offset s after the three earlier steps. */
KR_DEV void last_step(const kr_conv_params &p, const float (&x)[5][4], float (&g)[5][4], int s, int t, int own,
                      const float (&w)[4][4], const float (&bias)[4], float (&dw)[4][4], float (&db)[4], char *to) {
  float dx[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (p.silu)
      g[s + 3][k] *=
          slope(kr_fma(w[k][3], x[s + 3][k],
                       kr_fma(w[k][2], x[s + 2][k], kr_fma(w[k][1], x[s + 1][k], kr_fma(w[k][0], x[s][k], bias[k])))));
    dx[k] = kr_fma(w[k][0], g[s + 3][k], kr_fma(w[k][1], g[s + 2][k], kr_fma(w[k][2], g[s + 1][k], w[k][3] * g[s][k])));
  }
  if (t >= 3 && t < own + 3 && p.dx.data) store_quad(to, dx);
  if (t >= own) return;
#pragma unroll
  for (int k = 0; k < 4; k++) {
#pragma unroll
    for (int j = 0; j < 4; j++) dw[k][j] = kr_fma(g[s + 3][k], x[s + j][k], dw[k][j]);
    db[k] += g[s + 3][k];
  }
}

/* Reduces a block's 128 channels over its warps, in a fixed order. */
KR_DEV void keep_last(const kr_conv_params &p, int64_t part, const float (&dw)[4][4], const float (&db)[4],
                      float (*sums)[32 * 20]) {
  enum { WARPS = KR_CONV_THREADS / 32 };
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5;
#pragma unroll
  for (int k = 0; k < 4; k++) {
#pragma unroll
    for (int j = 0; j < 4; j++) sums[warp][(k * 5 + j) * 32 + lane] = dw[k][j];
    sums[warp][(k * 5 + 4) * 32 + lane] = db[k];
  }
  kr_sync();
  for (int i = kr_thread(); i < 32 * 20; i += KR_CONV_THREADS) {
    const int64_t channel = ((int64_t)(kr_block_x() / p.n_parts) * 32 + i % 32) * 4 + i / 160,
                  slot = i / 32 % 5 < 4 ? i / 32 % 5 - 4 + p.W : p.W;
    float sum = 0;
    for (int k = 0; k < WARPS; k++) sum += sums[k][i];
    if (channel < p.D && slot >= 0) keep_part(p, channel, part, slot, sum);
  }
}

/* The warps of a block take turns at runs of the same 128 channels: task = batch and run. */
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_conv_bwd_last(const kr_conv_params p) {
  KR_SHARED float sums[KR_CONV_THREADS / 32][32 * 20];
  enum { WARPS = KR_CONV_THREADS / 32, HALVES = E == 4 ? 1 : 2 }; /* HALVES of two steps in flight */
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const int64_t d = ((int64_t)(kr_block_x() / p.n_parts) * 32 + lane) * 4, part = kr_block_x() % p.n_parts,
                n_tasks = p.B * p.runs.by;
  const int exists = d < p.D;
  float w[4][4], bias[4], dw[4][4], db[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    load_taps(p, exists ? d + k : 0, w[k]);
    bias[k] = load_bias(p, exists ? d + k : 0), db[k] = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) dw[k][j] = 0;
  }
  for (int64_t task = part * WARPS + warp; task < n_tasks && exists; task += (int64_t)p.n_parts * WARPS) {
    const uint32_t b = kr_divide((uint32_t)task, p.runs);
    const int64_t t0 = (int64_t)((uint32_t)task - b * p.runs.by) * p.run_steps;
    const int own = (int)min64(p.L - t0, p.run_steps), n = (int)min64(p.L - t0, p.run_steps + 3),
              n_before = t0 > 0 ? 3 : 0;
    const char *from = quad_pointer(p.x, b * p.x.b + d + (t0 - n_before) * p.x.t),
               *g_from = quad_pointer(p.dout, b * p.dout.b + d + t0 * p.dout.t);
    char *to = p.dx.data ? quad_pointer(p.dx, b * p.dx.b + d + (t0 - 3) * p.dx.t) : 0;
    float x[5][4], g[5][4]; /* the current two steps after three earlier ones */
    quad x_ahead[HALVES][2], g_ahead[HALVES][2];
    start_steps(from, p.x_step, n_before, x);
#pragma unroll
    for (int h = 0; h < HALVES; h++)
      fetch_steps(from, p.x_step, n - 2 * h, x_ahead[h]), fetch_steps(g_from, p.dout_step, n - 2 * h, g_ahead[h]);
#pragma unroll
    for (int k = 0; k < 4; k++) g[2][k] = g[3][k] = g[4][k] = 0.0f;
#pragma unroll 1
    for (int t0 = 0; t0 < own + 3; t0 += 2 * HALVES) {
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        const int at = t0 + 2 * h;
        take_steps(x_ahead[h], x);
        take_steps(g_ahead[h], g);
        fetch_steps(from, p.x_step, n - at - 2 * HALVES, x_ahead[h]);
        fetch_steps(g_from, p.dout_step, n - at - 2 * HALVES, g_ahead[h]);
#pragma unroll
        for (int s = 0; s < 2; s++) {
          last_step(p, x, g, s, at + s, own, w, bias, dw, db, to);
          to += p.dx_step;
          kr_one_pointer(to);
        }
      }
    }
  }
  keep_last(p, part, dw, db, sums);
}

#if KR_TIER >= 80 || defined(KR_EMULATE)
/* The same for 16-bit types, with asynchronous copies of the next steps of x and dout in flight. A thread reads only
 * what it copied itself. */
typedef struct last_pair {
  quad x[2][KR_CONV_THREADS], g[2][KR_CONV_THREADS]; /* two steps */
} last_pair;

KR_DEV void fetch_pair(const kr_conv_params &p, const char *&from, const char *&g_from, int left, last_pair *to) {
#pragma unroll
  for (int s = 0; s < 2; s++) {
    kr_copy_or_zero<8>(&to->x[s][kr_thread()], s < left ? from : (const char *)p.x.data, s < left);
    kr_copy_or_zero<8>(&to->g[s][kr_thread()], s < left ? g_from : (const char *)p.dout.data, s < left);
    from += p.x_step, g_from += p.dout_step;
    kr_one_pointer(from);
    kr_one_pointer(g_from);
  }
  kr_commit_copies();
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_conv_bwd_last_far(const kr_conv_params p) {
  KR_DYNAMIC_SHARED(memory);
  enum { WARPS = KR_CONV_THREADS / 32, PAIRS = KR_CONV_AHEAD + 1 /* the last one read is overwritten next */ };
  last_pair *const ring = (last_pair *)memory;
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const int64_t d = ((int64_t)(kr_block_x() / p.n_parts) * 32 + lane) * 4, part = kr_block_x() % p.n_parts,
                n_tasks = p.B * p.runs.by;
  const int exists = d < p.D;
  float w[4][4], bias[4], dw[4][4], db[4];
  if (E == 4) return;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    load_taps(p, exists ? d + k : 0, w[k]);
    bias[k] = load_bias(p, exists ? d + k : 0), db[k] = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) dw[k][j] = 0;
  }
  for (int64_t task = part * WARPS + warp; task < n_tasks && exists; task += (int64_t)p.n_parts * WARPS) {
    const uint32_t b = kr_divide((uint32_t)task, p.runs);
    const int64_t t0 = (int64_t)((uint32_t)task - b * p.runs.by) * p.run_steps;
    const int own = (int)min64(p.L - t0, p.run_steps), n = (int)min64(p.L - t0, p.run_steps + 3),
              n_before = t0 > 0 ? 3 : 0;
    const char *from = quad_pointer(p.x, b * p.x.b + d + (t0 - n_before) * p.x.t),
               *g_from = quad_pointer(p.dout, b * p.dout.b + d + t0 * p.dout.t);
    char *to = p.dx.data ? quad_pointer(p.dx, b * p.dx.b + d + (t0 - 3) * p.dx.t) : 0;
    float x[5][4], g[5][4]; /* the current two steps after three earlier ones */
    start_steps(from, p.x_step, n_before, x);
#pragma unroll 1
    for (int k = 0; k < KR_CONV_AHEAD; k++) fetch_pair(p, from, g_from, n - 2 * k, &ring[k]);
#pragma unroll
    for (int k = 0; k < 4; k++) g[2][k] = g[3][k] = g[4][k] = 0.0f;
    int take = 0;
#pragma unroll 1
    for (int t = 0; t < own + 3; t += 2) {
      kr_copied<KR_CONV_AHEAD - 1>();
      const last_pair *const taken = &ring[take];
      const quad xs[2] = {taken->x[0][kr_thread()], taken->x[1][kr_thread()]},
                 gs[2] = {taken->g[0][kr_thread()], taken->g[1][kr_thread()]};
      take_steps(xs, x);
      take_steps(gs, g);
      fetch_pair(p, from, g_from, n - t - 2 * KR_CONV_AHEAD, &ring[take ? take - 1 : PAIRS - 1]);
      take = take == PAIRS - 1 ? 0 : take + 1;
#pragma unroll
      for (int s = 0; s < 2; s++) {
        last_step(p, x, g, s, t + s, own, w, bias, dw, db, to);
        to += p.dx_step;
        kr_one_pointer(to);
      }
    }
    kr_copied<0>(); /* the next run starts at the ring's start */
  }
  kr_sync(); /* the sums reuse the ring's memory */
  keep_last(p, part, dw, db, (float (*)[32 * 20])memory);
}
#endif

/* The gradient at the pre-activation of step t, 0 outside. */
KR_DEV float gradient_at(const kr_conv_params &p, int64_t b, int64_t d, int64_t t) {
  if (!p.dout.data || t >= p.L || (p.seq_idx && sequence_at(p, b, t) < 0)) return 0.0f;
  float pre = load_bias(p, d), dout = kr_load(p.dout.data, b * p.dout.b + d * p.dout.row + t * p.dout.t, p.dout.dtype);
  if (!p.silu) return dout;
  for (int64_t w = 0; w < p.W; w++) {
    int64_t from = t - (p.W - 1) + w;
    if (!p.seq_idx || (from >= 0 && sequence_at(p, b, from) == sequence_at(p, b, t)))
      pre = kr_fma(weight_at(p, d, w), input_at(p, b, d, from), pre);
  }
  return dout * slope(pre);
}

/* Nothing at padding, whose gradient is 0 and whose input may be anything. */
KR_DEV int same_sequence(const kr_conv_params &p, int64_t b, int64_t from, int64_t t) {
  if (!p.seq_idx) return 1;
  const int32_t index = sequence_at(p, b, t);
  return from >= 0 && index >= 0 && sequence_at(p, b, from) == index;
}

/* Reduces v over the block in a fixed order; thread 0 has the sum. */
KR_DEV float block_sum(float v, float *shared) {
  for (int d = 16; d; d >>= 1) v += kr_shuffle_xor(v, d);
  kr_sync();
  if ((kr_thread() & 31) == 0) shared[kr_thread() >> 5] = v;
  kr_sync();
  if (kr_thread() == 0)
    for (int k = 1; k < kr_block_threads() >> 5; k++) v += shared[k];
  return v;
}

KR_DEV void keep_block_sum(const kr_conv_params &p, int64_t d, int64_t part, int64_t slot, float v, float *shared) {
  v = block_sum(v, shared);
  if (kr_thread() == 0) keep_part(p, d, part, slot, v);
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_conv_bwd_any(const kr_conv_params p) {
  KR_SHARED float shared[32];
  const int64_t d = kr_block_x() / p.n_parts, part = kr_block_x() % p.n_parts,
                step = (int64_t)p.n_parts * KR_CONV_THREADS;
  float db = 0;
  for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < p.B * p.L; i += step) {
    const int64_t b = i / p.L, t = i % p.L;
    float dx = 0;
    db += gradient_at(p, b, d, t);
    for (int64_t w = 0; w < p.W && p.dx.data; w++) {
      int64_t to = t + p.W - 1 - w;
      if (to < p.L && same_sequence(p, b, t, to)) dx = kr_fma(weight_at(p, d, w), gradient_at(p, b, d, to), dx);
    }
    dx += from_final(p, b, d, t);
    if (p.dx.data) kr_store(p.dx.data, b * p.dx.b + d * p.dx.row + t * p.dx.t, p.dx.dtype, dx);
  }
  keep_block_sum(p, d, part, p.W, db, shared);
  for (int64_t w = 0; w < p.W; w++) {
    float dw = 0;
    for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < p.B * p.L; i += step) {
      const int64_t b = i / p.L, t = i % p.L, from = t - (p.W - 1) + w;
      if (same_sequence(p, b, from, t)) dw = kr_fma(gradient_at(p, b, d, t), input_at(p, b, d, from), dw);
    }
    keep_block_sum(p, d, part, w, dw, shared);
  }
}

/* Reduces the parts of a sum in a fixed order: one thread each or, if there are many parts, one warp. */
KR_KERNEL void kr_conv_bwd_sum(const kr_conv_params p) {
  const int lanes = p.n_parts > KR_CONV_FEW_PARTS ? 32 : 1, lane = kr_thread() & (lanes - 1);
  const int64_t i = ((int64_t)kr_block_x() * kr_block_threads() + kr_thread()) / lanes, d = i / (p.W + 1),
                slot = i % (p.W + 1);
  float sum = 0;
  if (d >= p.D) return;
#pragma unroll 8
  for (int k = lane; k < p.n_parts; k += lanes) sum += p.part[(d * p.n_parts + k) * (p.W + 1) + slot];
  for (int k = lanes / 2; k; k >>= 1) sum += kr_shuffle_xor(sum, k);
  if (lane == 0) write_sum(p, d, slot, sum);
}

KR_KERNEL void kr_conv_bwd_initial(const kr_conv_params p) {
  const int64_t keep = p.W - 1, i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread();
  if (i >= p.B * p.D * keep) return;
  const int64_t k = i % keep, d = i / keep % p.D, b = i / keep / p.D, t = k - keep;
  float dx = 0;
  for (int64_t w = 0; w < p.W; w++)
    if (t + keep - w >= 0) dx = kr_fma(weight_at(p, d, w), gradient_at(p, b, d, t + keep - w), dx);
  int64_t q = t - (p.L - keep); /* short sequences: the last inputs reach back before the start */
  if (p.dfinal.data && q >= 0)
    dx += kr_load(p.dfinal.data, b * p.dfinal.b + d * p.dfinal.row + q * p.dfinal.t, p.dfinal.dtype);
  kr_store(p.dinitial.data, b * p.dinitial.b + d * p.dinitial.row + k * p.dinitial.t, p.dinitial.dtype, dx);
}
