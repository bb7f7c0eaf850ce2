/* causal_conv1d.cu: the short causal convolution forward, and its last inputs (causal_conv1d_ref.c has the equation).
 *   kr_conv_rows   four steps of one row per thread, any length, alignment and stride. W up to 4
 *   kr_conv_whole  rows in aligned 16-byte packs: two packs per thread, both loads in flight; kr_conv_whole_1 one, for
 *                  short calls
 *   kr_conv_last   channels-last: 4 channels and a run of steps per thread; kr_conv_last_far has the whole run in
 *                  flight, and may start ahead (overlap.cuh). W up to 4
 *   kr_conv_last_ring  the same for runs of any length, with asynchronous copies of the next steps always in flight
 *   kr_conv_walk   one row per block; any W up to 128, packed sequences, and out may be x
 *   kr_conv_final  the last W-1 inputs
 * Memory-bound: 2 accesses of 16 bytes per 8 outputs. */
#include "overlap.cuh"
#include "conv.cuh"

#if KR_TIER < 90 /* the hopper text has the kernel that starts ahead */
/* One branch for the whole pack. */
KR_DEV void activate(const kr_conv_params &p, float (&y)[8]) {
  if (!p.silu) return;
#pragma unroll
  for (int k = 0; k < E; k++) y[k] = kr_silu(y[k]);
}

/* Four steps of one row per thread, any length, alignment and stride; all loads are in flight before the first use. */
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_conv_rows(const kr_conv_params p) {
  const uint32_t i = (uint32_t)kr_block_x() * KR_CONV_THREADS + kr_thread(), row = kr_divide(i, p.packs_per_row),
                 b32 = kr_divide(row, p.rows);
  if (b32 >= p.B) return;
  const int64_t b = b32, d = row - b32 * p.rows.by, t = (int64_t)(i - row * p.packs_per_row.by) * 4,
                at = b * p.x.b + d * p.x.row + t * p.x.t, to = b * p.out.b + d * p.out.row + t * p.out.t;
  const int left = (int)min64(4, p.L - t);
  quad now = no_quad(), before = no_quad();
  uint32_t one[7];
  float x[7], w[4], y[4];
  if (p.quads) {
    now = load_quad(p.x, at);
    if (t > 0) before = load_quad(p.x, at - 4);
  } else {
#pragma unroll
    for (int k = 0; k < 7; k++) {
      one[k] = 0;
      if ((k < 3 ? t > 0 : k - 3 < left) && E == 4) one[k] = ((const uint32_t *)p.x.data)[at + (k - 3) * p.x.t];
      else if (k < 3 ? t > 0 : k - 3 < left) one[k] = ((const uint16_t *)p.x.data)[at + (k - 3) * p.x.t];
    }
  }
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
#pragma unroll
  for (int k = 0; k < 7; k++)
    x[k] = p.quads  ? quad_at(k < 3 ? before : now, (k + 1) & 3)
           : E == 4 ? kr_bits_to_float(one[k])
                    : kr_unpack(one[k], 0, KR_DTYPE);
  if (p.initial.data && t == 0) {
#pragma unroll
    for (int k = 0; k < 3; k++) x[k] = k >= 4 - p.W ? input_at(p, b, d, k - 3) : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    y[k] = kr_fma(w[3], x[k + 3], kr_fma(w[2], x[k + 2], kr_fma(w[1], x[k + 1], kr_fma(w[0], x[k], bias))));
    if (p.silu) y[k] = kr_silu(y[k]);
  }
  if (p.quads) return store_quad(quad_pointer(p.out, to), y);
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < left) kr_store(p.out.data, to + k * p.out.t, KR_DTYPE, y[k]);
}

typedef struct whole_pack {
  int64_t b, d, t;
  kr_raw16 now;
  quad before;
  float w[4], bias;
} whole_pack;

KR_DEV void whole_packs(const kr_conv_params &p, const int n_packs) {
  whole_pack packs[2];
  const uint32_t first = (uint32_t)kr_block_x() * (n_packs * KR_CONV_THREADS) + kr_thread(),
                 n = (uint32_t)(p.B * p.D) * p.packs_per_row.by;
#pragma unroll
  for (int k = 0; k < n_packs; k++) {
    const uint32_t i = first + k * KR_CONV_THREADS, row = kr_divide(i, p.packs_per_row), b = kr_divide(row, p.rows);
    packs[k].b = b, packs[k].d = row - b * p.rows.by, packs[k].t = (int64_t)(i - row * p.packs_per_row.by) * E;
    const int64_t at = packs[k].b * p.x.b + packs[k].d * p.x.row + packs[k].t;
    packs[k].before = no_quad();
    if (i >= n) continue;
    packs[k].now = *(const kr_raw16 *)((const char *)p.x.data + at * (16 / E));
    if (packs[k].t > 0) packs[k].before = load_quad(p.x, at - 4);
    if (E == 4)
      load_taps(p, packs[k].d, packs[k].w),
          packs[k].bias = load_bias(p, packs[k].d); /* 16-bit types benefit more from occupancy */
  }
#pragma unroll
  for (int k = 0; k < n_packs; k++) {
    whole_pack &pack = packs[k];
    float x[12], y[8];
    if (first + k * KR_CONV_THREADS >= n) return;
    if (E != 4) load_taps(p, pack.d, pack.w), pack.bias = load_bias(p, pack.d);
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = quad_at(pack.before, j);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j + 4] = j < E ? pack_at(pack.now, j, KR_DTYPE) : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++)
      y[j] = kr_fma(pack.w[3], x[j + 4],
                    kr_fma(pack.w[2], x[j + 3], kr_fma(pack.w[1], x[j + 2], kr_fma(pack.w[0], x[j + 1], pack.bias))));
    activate(p, y);
    write_pack(p.out, KR_DTYPE, pack.b * p.out.b + pack.d * p.out.row + pack.t, E, y);
  }
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_conv_whole(const kr_conv_params p) { whole_packs(p, 2); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_conv_whole_1(const kr_conv_params p) { whole_packs(p, 1); }
#endif

/* SiLU of two values with one reciprocal, of a product that stays finite: the special-function unit is the limit. */
KR_DEV void silu_pair(float &x, float &y) {
  const float a = -KR_LOG2E * x, b = -KR_LOG2E * y;
  const float p = 1.0f + kr_exp2(a < 60.0f ? a : 60.0f), q = 1.0f + kr_exp2(b < 60.0f ? b : 60.0f), r = kr_rcp(p * q);
  x *= q * r, y *= p * r;
}

/* Stores two steps of four channels, of which n exist; advances the pointer. PAIRED: silu_pair. */
template <int PAIRED = 0>
KR_DEV void write_steps(const kr_conv_params &p, const float (&w)[4][4], const float (&bias)[4], const float (&x)[5][4],
                        int n, char *&to) {
#pragma unroll
  for (int s = 0; s < 2; s++) {
    float y[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
      y[k] = kr_fma(w[k][3], x[s + 3][k],
                    kr_fma(w[k][2], x[s + 2][k], kr_fma(w[k][1], x[s + 1][k], kr_fma(w[k][0], x[s][k], bias[k]))));
    if (p.silu && PAIRED) {
#pragma unroll
      for (int k = 0; k < 4; k += 2) silu_pair(y[k], y[k + 1]);
    } else if (p.silu) {
#pragma unroll
      for (int k = 0; k < 4; k++) y[k] = kr_silu(y[k]);
    }
    if (s < n) store_quad(to, y);
    to += p.out_step;
    kr_one_pointer(to);
  }
}

/* Inputs before the first step, if given: all loads are in flight before the first use. */
KR_DEV void take_initial(const kr_conv_params &p, int64_t b, int64_t d, float (&x)[5][4]) {
  const int64_t at = b * p.initial.b + d * p.initial.row;
#pragma unroll
  for (int s = 0; s < 3; s++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int64_t i = at + k * p.initial.row + (s - 4 + p.W) * p.initial.t;
      x[s + 2][k] = 0.0f;
      if (s >= 4 - p.W && p.initial.dtype == KRAIT_F32) x[s + 2][k] = ((const float *)p.initial.data)[i];
      if (s >= 4 - p.W && p.initial.dtype != KRAIT_F32) x[s + 2][k] = kr_load(p.initial.data, i, p.initial.dtype);
    }
}

#if KR_TIER < 80 || KR_DTYPE == 0
/* Four channels and a run of steps per thread, the next four steps in flight. x.row is 1. */
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, KR_DTYPE == 0 ? 3 : 4) kr_conv_last(const kr_conv_params p) {
  const uint32_t i = (uint32_t)kr_block_x() * KR_CONV_THREADS + kr_thread(), run = kr_divide(i, p.packs_per_row),
                 b = kr_divide(run, p.runs);
  if (b >= p.B) return;
  const int64_t d = (int64_t)(i - run * p.packs_per_row.by) * 4, t0 = (int64_t)(run - b * p.runs.by) * p.run_steps;
  const int n = (int)min64(p.L - t0, p.run_steps), n_before = t0 > 0 ? 3 : 0;
  const char *from = quad_pointer(p.x, b * p.x.b + d + (t0 - n_before) * p.x.t);
  char *to = quad_pointer(p.out, b * p.out.b + d + t0 * p.out.t);
  float w[4][4], bias[4], x[5][4]; /* x: the current two steps after three earlier ones */
  quad ahead[2][2];
  start_steps(from, p.x_step, n_before, x);
#pragma unroll
  for (int h = 0; h < 2; h++) fetch_steps(from, p.x_step, n - 2 * h, ahead[h]);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    load_taps(p, d + k, w[k]);
    bias[k] = load_bias(p, d + k);
  }
  if (p.initial.data && t0 == 0) take_initial(p, b, d, x);
#pragma unroll 1
  for (int left = n; left > 0; left -= 4) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      take_steps(ahead[h], x);
      fetch_steps(from, p.x_step, left - 2 * h - 4, ahead[h]);
      write_steps(p, w, bias, x, left - 2 * h, to);
    }
  }
}
#endif

#if KR_TIER >= 80 || defined(KR_EMULATE)
/* Taps and biases of the channels d to d + 3. */
KR_DEV void load_parameters(const kr_conv_params &p, int64_t d, float (&w)[4][4], float (&bias)[4]) {
  if (p.fours) {
    float taps[16];
    load_packed<16>(p.weight, d * 4, p.weight_dtype, taps);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      bias[k] = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; j++) w[k][j] = taps[4 * k + j];
    }
    if (p.bias) load_packed<4>(p.bias, d, p.bias_dtype, bias);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    load_taps(p, d + k, w[k]);
    bias[k] = load_bias(p, d + k);
  }
}

/* The last inputs, in float32, by the threads of the last run. */
KR_DEV void write_final(const kr_conv_params &p, int64_t b, int64_t d) {
  const int64_t to = b * p.final.b + d * p.final.row;
  quad q[3];
#pragma unroll
  for (int k = 0; k < 3; k++)
    if (k >= 4 - p.W) q[k] = load_quad(p.x, b * p.x.b + d + (p.L - 3 + k) * p.x.t);
#pragma unroll
  for (int k = 0; k < 3; k++)
#pragma unroll
    for (int c = 0; c < 4; c++)
      if (k >= 4 - p.W) ((float *)p.final.data)[to + c * p.final.row + (k - 4 + p.W) * p.final.t] = quad_at(q[k], c);
}

/* The same for 16-bit types: the whole run is in flight by asynchronous copies before the first use. Writes the last
 * inputs, too. */
KR_KERNEL void KR_BOUNDS(KR_CONV_FAR_THREADS, 8) kr_conv_last_far(const kr_conv_params p) {
  enum { GROUPS = KR_CONV_RUN / 4 }; /* groups of four steps; the three steps before the run come first */
  KR_SHARED quad steps[E == 4 ? 1 : KR_CONV_RUN + 3][KR_CONV_FAR_THREADS];
  const uint32_t i = (uint32_t)kr_block_x() * KR_CONV_FAR_THREADS + kr_thread(), run = kr_divide(i, p.packs_per_row),
                 b = kr_divide(run, p.runs);
  kr_launch_dependents();
  if (E == 4 || b >= p.B) return;
  const int64_t d = (int64_t)(i - run * p.packs_per_row.by) * 4, t0 = (int64_t)(run - b * p.runs.by) * KR_CONV_RUN;
  const int n = (int)min64(p.L - t0, KR_CONV_RUN);
  const char *from = quad_pointer(p.x, b * p.x.b + d + (t0 - 3) * p.x.t);
  char *to = quad_pointer(p.out, b * p.out.b + d + t0 * p.out.t);
  quad *const mine = &steps[0][kr_thread()];
  float w[4][4], bias[4], x[5][4]; /* x: the current two steps after three earlier ones */
  load_parameters(p, d, w, bias);
  kr_keep_near(p.final.data), kr_keep_near(p.initial.data);
  kr_griddep_wait();
  if (t0 > 0 && n == KR_CONV_RUN) {
#pragma unroll
    for (int s = 0; s < KR_CONV_RUN + 3; s++, from += p.x_step) {
      kr_copy_or_zero<8>(&mine[s * KR_CONV_FAR_THREADS], from, 1);
      if (s % 4 == 2) kr_commit_copies();
      kr_one_pointer(from);
    }
  } else {
#pragma unroll 1
    for (int s = 0; s < KR_CONV_RUN + 3; s++, from += p.x_step) {
      const int exists = t0 + s >= 3 && s - 3 < n;
      kr_copy_or_zero<8>(&mine[s * KR_CONV_FAR_THREADS], exists ? from : (const char *)p.x.data, exists);
      if (s % 4 == 2) kr_commit_copies();
    }
  }
  if (p.final.data && t0 + n == p.L) write_final(p, b, d);
  if (p.initial.data && t0 == 0) take_initial(p, b, d, x);
  kr_copied<GROUPS>();
#pragma unroll
  for (int s = 0; s < 3; s++)
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (!p.initial.data || t0 > 0) x[s + 2][k] = quad_at(mine[s * KR_CONV_FAR_THREADS], k);
#pragma unroll 1
  for (int t = 0; t < n; t += 4) {
    kr_copied<GROUPS - 1>();
    kr_commit_copies(); /* an empty group, in place of the one waited for */
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const quad q[2] = {mine[(t + 2 * h + 3) * KR_CONV_FAR_THREADS], mine[(t + 2 * h + 4) * KR_CONV_FAR_THREADS]};
      take_steps(q, x);
      write_steps<1>(p, w, bias, x, n - t - 2 * h, to);
    }
  }
}

#if KR_TIER < 90
/* Copies two steps of this thread's channels to shared memory, of which n exist; advances the pointer. */
KR_DEV void copy_pair(const kr_conv_params &p, const char *&from, int n, quad *first, quad *second) {
#pragma unroll
  for (int s = 0; s < 2; s++) {
    kr_copy_or_zero<8>(&(s ? second : first)[E == 4 ? 0 : kr_thread()], s < n ? from : (const char *)p.x.data, s < n);
    from += p.x_step;
    kr_one_pointer(from);
  }
  kr_commit_copies();
}

/* Longer runs, for more work than one wave. A thread reads only what it copied itself. */
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_conv_last_ring(const kr_conv_params p) {
  enum { AHEAD = 5, PAIRS = AHEAD + 1 /* step pairs; the last one read is overwritten next */ };
  KR_SHARED quad ring[PAIRS][2][E == 4 ? 1 : KR_CONV_THREADS];
  const uint32_t i = (uint32_t)kr_block_x() * KR_CONV_THREADS + kr_thread(), run = kr_divide(i, p.packs_per_row),
                 b = kr_divide(run, p.runs);
  if (E == 4 || b >= p.B) return;
  const int64_t d = (int64_t)(i - run * p.packs_per_row.by) * 4, t0 = (int64_t)(run - b * p.runs.by) * p.run_steps;
  const int n = (int)min64(p.L - t0, p.run_steps), n_before = t0 > 0 ? 3 : 0;
  const char *from = quad_pointer(p.x, b * p.x.b + d + (t0 - n_before) * p.x.t);
  char *to = quad_pointer(p.out, b * p.out.b + d + t0 * p.out.t);
  float w[4][4], bias[4], x[5][4]; /* x: the current two steps after three earlier ones */
  start_steps(from, p.x_step, n_before, x);
#pragma unroll 1
  for (int k = 0; k < AHEAD; k++) copy_pair(p, from, n - 2 * k, ring[k][0], ring[k][1]);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    load_taps(p, d + k, w[k]);
    bias[k] = load_bias(p, d + k);
  }
  if (p.initial.data && t0 == 0) take_initial(p, b, d, x);
  int take = 0;
#pragma unroll 1
  for (int t = 0; t < n; t += 2) {
    kr_copied<AHEAD - 1>();
    const quad q[2] = {ring[take][0][kr_thread()], ring[take][1][kr_thread()]};
    const int put = take ? take - 1 : PAIRS - 1;
    copy_pair(p, from, n - t - 2 * AHEAD, ring[put][0], ring[put][1]);
    take = take == PAIRS - 1 ? 0 : take + 1;
    take_steps(q, x);
    write_steps(p, w, bias, x, n - t, to);
  }
  kr_copied<0>();
}
#endif
#endif

#if KR_TIER < 90
KR_KERNEL void KR_BOUNDS(KR_CONV_WALK, 4) kr_conv_walk(const kr_conv_params p) {
  KR_SHARED float window[KR_CONV_MOST_TAPS + KR_CONV_WALK];
  const int64_t b = kr_block_x() / p.D, d = kr_block_x() % p.D;
  const int thread = kr_thread(), keep = (int)p.W - 1;
  const float bias = load_bias(p, d);
  for (int k = thread; k < keep; k += KR_CONV_WALK) window[k] = input_at(p, b, d, k - keep);
  for (int64_t t0 = 0; t0 < p.L; t0 += KR_CONV_WALK) {
    int64_t t = t0 + thread;
    if (t < p.L) window[keep + thread] = kr_load(p.x.data, b * p.x.b + d * p.x.row + t * p.x.t, p.x.dtype);
    kr_sync(); /* every input of this stretch is read before any of its outputs is written */
    if (t < p.L) {
      float sum = bias;
      int32_t mine = p.seq_idx ? sequence_at(p, b, t) : 0;
      for (int w = 0; w <= keep; w++)
        if (!p.seq_idx || (t - keep + w >= 0 && sequence_at(p, b, t - keep + w) == mine))
          sum = kr_fma(weight_at(p, d, w), window[thread + w], sum);
      if (p.silu) sum = kr_silu(sum);
      kr_store(p.out.data, b * p.out.b + d * p.out.row + t * p.out.t, p.out.dtype, mine < 0 ? 0.0f : sum);
    }
    kr_sync();
    float kept = thread < keep ? window[KR_CONV_WALK + thread] : 0.0f;
    kr_sync();
    if (thread < keep) window[thread] = kept;
  }
}

KR_KERNEL void kr_conv_final(const kr_conv_params p) {
  const int64_t keep = p.W - 1, i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread();
  if (i >= p.B * p.D * keep) return;
  const int64_t k = i % keep, d = i / keep % p.D, b = i / keep / p.D;
  kr_store(p.final.data, b * p.final.b + d * p.final.row + k * p.final.t, p.final.dtype,
           input_at(p, b, d, p.L - keep + k));
}
#endif
