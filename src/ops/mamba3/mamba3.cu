/* mamba3.cu: what surrounds the SSD in Mamba 3's scan (equations in mamba3_ref.c), compiled once per storage type of
 * the rows that the SSD is given (mamba3_params.h); mamba3_plain.cu has most kernels' forms for plain calls.
 *   kr_mamba3_turns     angles within a span, and its sum
 *   kr_mamba3_carry     angles before every span
 *   kr_mamba3_rows      rows of a chunk's tokens: queries, keys, inputs, weights; the products of a token with itself
 *   kr_mamba3_edges     rows beside the tokens', states after sequences without tokens
 *   kr_mamba3_finish_P  the token's own term, D, norm, gate and the sum over ranks, from the SSD's output; up to P
 *                       channels
 *   kr_mamba3_ends      final states of a pack */
#include "mamba3_rows.cuh"

/* ---- angles ------------------------------------------------------------------------------------------------------ */

/* Half the hyperbolic tangents of a span's angles, to a lane's column of `halves`. */
KR_DEV void put_halves(const kr_mamba3_params &p, int b, int h, int64_t t0, int m, float (*halves)[32]) {
  const int n = m >= p.M ? 0 : p.L - t0 < SPAN ? (int)(p.L - t0) : SPAN;
  float angle[SPAN];
  get_column(p.angles, at4(p.angles, b, t0, h, m), p.angles.stride[1], n, angle);
#pragma unroll
  for (int i = 0; i < SPAN; i++) halves[i][kr_thread() & 31] = 0.5f * tanh_close(angle[i]);
}

/* A warp per span, 32 pairs and p.span_heads heads; a lane has a pair. */
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_mamba3_turns(const kr_mamba3_params p) {
  KR_SHARED float shared[WARPS][SPAN][32];
  const int groups = (p.H + p.span_heads - 1) / p.span_heads, b = kr_block_z(), lane = kr_thread() & 31;
  const int64_t warp = (int64_t)kr_block_x() * WARPS + (kr_thread() >> 5), part = warp / groups,
                span = part % p.n_spans, t0 = span * SPAN;
  const int first = (int)(warp - part * groups) * p.span_heads, m = (int)(part / p.n_spans) * 32 + lane,
            n = p.L - t0 < SPAN ? (int)(p.L - t0) : SPAN, is_one = p.angles.stride[2] == 0;
  if (m - lane >= p.M) return;
  float(*const halves)[32] = shared[kr_thread() >> 5];
#pragma unroll 1
  for (int h = first; h < first + p.span_heads && h < p.H; h++) {
    if (h == first || !is_one) put_halves(p, b, h, t0, m, halves);
    const float steps = lane < n ? get(p.dt, at3(p.dt, b, t0 + lane, h)) : 0.0f;
    const int64_t unit = unit_of(p, b, h);
    uint32_t sum = 0;
    uint32_t *const to = p.angles_within + (unit * p.L + t0) * p.M + m;
    if (!p.cu_seqlens.data && t0 && n == SPAN) {
#pragma unroll
      for (int i = 0; i < SPAN; i++) {
        sum = add_turns(sum, turn_of_half(halves[i][lane], kr_shuffle_from(steps, i)));
        if (m < p.M) to[i * p.M] = sum;
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < n; i++) {
        const float d = kr_shuffle_from(steps, i);
        const token at = token_at(p, b, t0 + i);
        if (at.begins && m < p.M) sum = turn_before(p, at.row, h, m);
        sum = add_turns(sum, turn_of_half(halves[i][lane], d));
        if (m < p.M) to[i * p.M] = sum;
      }
    }
    if (m < p.M) p.angles_before[span_of(p, unit, span) + m] = sum;
  }
}

/* Whether a span's sum does not continue the one before it. */
KR_DEV int restarts(const kr_mamba3_params &p, int b, int64_t span) {
  const int64_t t0 = span * SPAN, last = (t0 + SPAN < p.L ? t0 + SPAN : p.L) - 1;
  return span == 0 || (p.cu_seqlens.data && token_at(p, b, last).start >= t0);
}

/* The sum over spans from `begin` to `end`, onto `sum`; leaves (PUTS) what is before each. Returns whether it restarts.
 */
template <int PUTS>
KR_DEV int sum_spans(const kr_mamba3_params &p, int b, uint32_t *at, int64_t begin, int64_t end, uint32_t &sum) {
  enum { AHEAD = 8 };
  int is_new = 0;
  for (int64_t span = begin; span < end; span += AHEAD) {
    uint32_t own[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) own[i] = span + i < end ? at[(span + i) * p.M] : 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (span + i >= end) continue;
      const int is_first = restarts(p, b, span + i);
      if (PUTS) at[(span + i) * p.M] = sum;
      sum = is_first ? own[i] : add_turns(sum, own[i]), is_new |= is_first;
    }
  }
  return is_new;
}

/* A block per head of a sequence: each warp has a part of the spans, a lane a pair. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_carry(const kr_mamba3_params p) {
  KR_SHARED uint32_t sums[WARPS][32];
  KR_SHARED int are_new[WARPS];
  const int64_t unit = kr_block_x(), each = (p.n_spans + WARPS - 1) / WARPS, warp = kr_thread() >> 5,
                begin = warp * each, end = begin + each < p.n_spans ? begin + each : p.n_spans;
  const int b = (int)(unit / p.H), lane = kr_thread() & 31;
  for (int m = lane; m - lane < p.M; m += 32) {
    uint32_t *const at = p.angles_before + span_of(p, unit, 0) + m;
    uint32_t sum = 0;
    int is_new = 0;
    kr_sync();
    if (m < p.M) is_new = sum_spans<0>(p, b, at, begin, end, sum);
    sums[warp][lane] = sum;
    if (lane == 0) are_new[warp] = is_new;
    kr_sync();
    sum = 0;
    for (int w = 0; w < warp; w++) sum = are_new[w] ? sums[w][lane] : add_turns(sum, sums[w][lane]);
    if (m < p.M) sum_spans<1>(p, b, at, begin, end, sum);
  }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A token's input in the rows of its key. */
KR_DEV void put_inputs(const kr_mamba3_params &p, int b, int h, const token &at) {
  for (int r = 0; r < p.ranks; r++)
    for (int c = 2 * (kr_thread() & 31); c < p.row_P; c += 64) {
      kr_float2 x = {{0, 0}};
      if (r < p.R) x = get_two(p.x, at4(p.x, b, at.t, h, c), p.x.stride[3], p.P - c);
      if (r < p.R && p.mimo_x.data) {
        const kr_float2 by = get_two(p.mimo_x, at3(p.mimo_x, h, r, c), p.mimo_x.stride[2], p.P - c);
        x.v[0] *= by.v[0], x.v[1] *= by.v[1];
      }
      put_row_two(p.rows_x, row_of(p, b, h, at.block + 1, r) * p.row_P + c, x.v[0], x.v[1]);
    }
}

KR_DEV void clear_beyond(const kr_mamba3_params &p, void *rows, int64_t row) {
  const int n = p.N + (kr_thread() & 31);
  if (n < p.row_N) put((element *)rows, row * p.row_N + n, 0.0f);
}

/* Two pairs of a token's queries and keys, by a lane; n: how many of these turn. Returns its part of q k of the first
 * rank. */
KR_DEV float put_token(const kr_mamba3_params &p, int b, int h, const token &at, const runs &two,
                       const rotation (&by)[2], int n) {
  const int next = has_next(p, at);
  float own = 0;
#pragma unroll 1
  for (int r = 0; r < p.ranks; r++) {
    pairs q = {}, k = {};
    if (r < p.R)
      q = read_rank(p, two, p.Cmat, p.C_bias, b, h, at.t, r, by, n),
      k = read_rank(p, two, p.Bmat, p.B_bias, b, h, at.t, r, by, n);
    if (r == 0) own = dot(q, k);
    store_pairs(two, row_view(p.q), row_of(p, b, h, at.block, r) * p.row_N, 1, q);
    if (next) store_pairs(two, row_view(p.k), row_of(p, b, h, at.block + 1, r) * p.row_N, 1, k);
    if (at.ends && p.final_B.data && r < p.R)
      store_pairs(two, p.final_B, at4(p.final_B, at.row, r, h, 0), p.final_B.stride[3], k);
  }
  return own;
}

/* q_r k_s of a token with several ranks or more pairs than a warp takes at once, by a warp: the rotation cancels. */
KR_DEV void put_dots(const kr_mamba3_params &p, int b, int h, int64_t t) {
  float *const to = dots_of(p.dots, p, b, h, t);
  const int lane = kr_thread() & 31;
  const rotation none[2] = {};
#pragma unroll 1
  for (int i = 0; i < p.R * p.R; i++) {
    float sum = 0;
#pragma unroll 1
    for (int first = 2 * lane; first < p.N / 2; first += 64) {
      const runs two = runs_of(p, first);
      sum += dot(read_rank(p, two, p.Cmat, p.C_bias, b, h, t, i / p.R, none, 0),
                 read_rank(p, two, p.Bmat, p.B_bias, b, h, t, i % p.R, none, 0));
    }
    sum = add_warp(sum);
    if (lane == 0) to[i] = sum;
  }
}

KR_DEV void put_final_x(const kr_mamba3_params &p, int b, int h, const token &at) {
  if (!at.ends || !p.final_x.data) return;
  for (int c = kr_thread() & 31; c < p.P; c += 32)
    kr_store(p.final_x.data, at3(p.final_x, at.row, h, c), p.final_x.dtype, get(p.x, at4(p.x, b, at.t, h, c)));
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_rows(const kr_mamba3_params p) {
  const int chunk = kr_block_x() / p.H, h = kr_block_x() - chunk * p.H, b = kr_block_z(), lane = kr_thread() & 31;
  const int64_t t0 = (int64_t)chunk * CHUNK;
  const int n = p.L - t0 < CHUNK ? (int)(p.L - t0) : CHUNK, is_small = p.R == 1 && p.N <= 2 * PAIRS;
  if (kr_thread() < n) put_weights(p, b, h, token_at(p, b, t0 + kr_thread()));
  for (int first = 0; first < p.N / 2; first += PAIRS) {
    for (int t = kr_thread() >> 5; t < n; t += WARPS) {
      const token at = token_at(p, b, t0 + t);
      const int own = first + 2 * lane;
      rotation by[2] = {};
#pragma unroll
      for (int k = 0; k < 2; k++)
        if (own + k < p.M) by[k] = rotation_of(angle_at(p, b, h, at, own + k));
      const float sum = own < p.N / 2 ? put_token(p, b, h, at, runs_of(p, own), by, p.M - own) : 0.0f,
                  all = is_small ? add_warp(sum) : 0.0f;
      if (is_small && lane == 0) *dots_of(p.dots, p, b, h, at.t) = all;
    }
  }
  for (int t = kr_thread() >> 5; t < n; t += WARPS) {
    const token at = token_at(p, b, t0 + t);
    if (!is_small) put_dots(p, b, h, at.t);
    if (has_next(p, at)) put_inputs(p, b, h, at);
    put_final_x(p, b, h, at);
    for (int r = 0; r < p.ranks; r++) {
      clear_beyond(p, p.q, row_of(p, b, h, at.block, r));
      if (has_next(p, at)) clear_beyond(p, p.k, row_of(p, b, h, at.block + 1, r));
    }
  }
}

/* ---- beside tokens ----------------------------------------------------------------------------------------------- */

/* The initial states' key and input, of what a sequence's first block has. */
KR_DEV void put_first(const kr_mamba3_params &p, int b, int h, int row, int64_t block) {
  for (int i = kr_thread(); i < p.ranks * p.row_N; i += THREADS) {
    const int r = i / p.row_N, n = i % p.row_N, there = p.initial_B.data && r < p.R && n < p.N;
    put((element *)p.k, row_of(p, b, h, block, 0) * p.row_N + i,
        there ? get(p.initial_B, at4(p.initial_B, row, r, h, n)) : 0.0f);
  }
  for (int i = kr_thread(); i < p.ranks * p.row_P; i += THREADS) {
    const int r = i / p.row_P, c = i % p.row_P;
    float x = p.initial_x.data && r < p.R && c < p.P ? get(p.initial_x, at3(p.initial_x, row, h, c)) : 0.0f;
    if (p.mimo_x.data && r < p.R && c < p.P) x *= get(p.mimo_x, at3(p.mimo_x, h, r, c));
    put((element *)p.rows_x, row_of(p, b, h, block, 0) * p.row_P + i, x);
  }
}

/* Blocks from `block` on without key, query or input; of unit keys and the initial state, or unit queries. */
KR_DEV void put_units(const kr_mamba3_params &p, int b, int h, int row, int64_t block, int n_blocks, int keys,
                      int queries) {
  const int64_t first = row_of(p, b, h, block, 0);
  const int n = n_blocks * p.ranks;
  for (int i = kr_thread(); i < n * p.row_N; i += THREADS) {
    const float is_unit = i / p.row_N == i % p.row_N && i % p.row_N < p.N ? 1.0f : 0.0f;
    put((element *)p.k, first * p.row_N + i, keys ? is_unit : 0.0f);
    put((element *)p.q, first * p.row_N + i, queries ? is_unit : 0.0f);
  }
  for (int i = kr_thread(); i < n * p.row_P; i += THREADS) {
    const int state = i / p.row_P, c = i % p.row_P, there = keys && state < p.N && c < p.P;
    put((element *)p.rows_x, first * p.row_P + i,
        there ? get(p.initial_states, at4(p.initial_states, row, h, c, state)) : 0.0f);
  }
  for (int i = kr_thread(); i < n; i += THREADS) p.weight[first + i] = keys ? 1.0f : 0.0f, p.decay[first + i] = 0;
}

/* States after a sequence without tokens: those before it. The state itself passes through the SSD. */
KR_DEV void pass_states(const kr_mamba3_params &p, int h, int row) {
  for (int m = kr_thread(); p.final_angles.data && m < p.M; m += THREADS)
    ((float *)p.final_angles.data)[at3(p.final_angles, row, h, m)] = angle_of(turn_before(p, row, h, m));
  for (int i = kr_thread(); p.final_B.data && i < p.R * p.N; i += THREADS) {
    const int r = i / p.N, n = i % p.N;
    kr_store(p.final_B.data, at4(p.final_B, row, r, h, n), p.final_B.dtype,
             p.initial_B.data ? get(p.initial_B, at4(p.initial_B, row, r, h, n)) : 0.0f);
  }
  for (int c = kr_thread(); p.final_x.data && c < p.P; c += THREADS)
    kr_store(p.final_x.data, at3(p.final_x, row, h, c), p.final_x.dtype,
             p.initial_x.data ? get(p.initial_x, at3(p.initial_x, row, h, c)) : 0.0f);
}

/* Queries behind the last token: none. */
KR_DEV void clear_queries(const kr_mamba3_params &p, int b, int h, int64_t block) {
  for (int i = kr_thread(); i < p.ranks * p.row_N; i += THREADS)
    put((element *)p.q, row_of(p, b, h, block, 0) * p.row_N + i, 0.0f);
}

/* at: the sequence's last token. */
KR_DEV void put_final_angles(const kr_mamba3_params &p, int b, int h, const token &at) {
  for (int m = kr_thread(); m < p.M; m += THREADS)
    ((float *)p.final_angles.data)[at3(p.final_angles, at.row, h, m)] = angle_of(angle_at(p, b, h, at, m));
}

/* A block per sequence (of the batch or a pack) and head. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_edges(const kr_mamba3_params p) {
  const int row = kr_block_x() / p.H, h = kr_block_x() - row * p.H, is_pack = p.cu_seqlens.data != 0,
            b = is_pack ? 0 : row;
  const int64_t begin = is_pack ? offset_at(p, row) : 0, end = is_pack ? offset_at(p, row + 1) : p.L,
                n = end > begin ? end - begin : 0, first = is_pack ? first_block(p, row, begin) : 0;
  if (is_pack && p.before) put_units(p, b, h, row, first - p.before, p.before, 1, 0);
  if (n || p.has_ends) put_first(p, b, h, row, first);
  if (p.has_ends) clear_queries(p, b, h, first + n);
  if (p.has_ends && n == 0)
    for (int r = kr_thread(); r < p.ranks; r += THREADS)
      p.weight[row_of(p, b, h, first, r)] = 0, p.decay[row_of(p, b, h, first, r)] = 0;
  if (is_pack && p.after) put_units(p, b, h, row, first + n + 1, p.after, 0, 1);
  if (n == 0)
    pass_states(p, h, row);
  else if (p.final_angles.data)
    put_final_angles(p, b, h, token_at(p, b, end - 1));
  if (!is_pack || h) return;
  const int64_t from = (first - p.before) * p.ranks, to = (first + n + p.has_ends + p.after) * p.ranks;
  for (int64_t i = from + kr_thread(); i < to; i += THREADS) p.seq_idx[i] = row;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

template <int TWOS>
KR_DEV void finish_token(const kr_mamba3_params &p, int b, int h, const token &at) {
  const steps now = steps_at(p, b, h, at.t);
  const float weight = now.lambda * now.d, D = p.Dvec.data ? get(p.Dvec, h * p.Dvec.stride[0]) : 0.0f;
  kr_float2 x[TWOS], z[TWOS], y[TWOS], sum[TWOS] = {};
  load_twos(p, p.x, at4(p.x, b, at.t, h, 0), p.x.stride[3], x);
  if (p.z.data) load_twos(p, p.z, at4(p.z, b, at.t, h, 0), p.z.stride[3], z);
  for (int r = 0; r < p.R; r++) {
#pragma unroll
    for (int i = 0; i < TWOS; i++) {
      const int c = 64 * i + 2 * (kr_thread() & 31);
      y[i] = c < p.P ? complete(p, b, h, at, r, c, weight, x[i], D) : kr_float2{{0, 0}};
      if (c == p.P - 1) y[i].v[1] = 0;
    }
    const float scale = p.norm_weight.data ? norm_scale(p, y) : 1.0f;
#pragma unroll
    for (int i = 0; i < TWOS; i++) {
      const int c = 64 * i + 2 * (kr_thread() & 31), left = p.P - c;
      if (left <= 0) continue;
      kr_float2 o = y[i], norm = {{1, 1}}, by = {{1, 1}};
      if (p.norm_weight.data) {
        norm = get_two(p.norm_weight, at2(p.norm_weight, h, c), p.norm_weight.stride[1], left);
        o.v[0] *= scale * norm.v[0], o.v[1] *= scale * norm.v[1];
      }
      if (p.z.data) {
        if (p.mimo_z.data) by = get_two(p.mimo_z, at3(p.mimo_z, h, r, c), p.mimo_z.stride[2], left);
        o.v[0] *= kr_silu(z[i].v[0] * by.v[0]), o.v[1] *= kr_silu(z[i].v[1] * by.v[1]);
      }
      if (!p.mimo_o.data) {
        put_two(p.out, at4(p.out, b, at.t, r * p.H + h, c), p.out.stride[3], left, o);
        continue;
      }
      by = get_two(p.mimo_o, at3(p.mimo_o, h, r, c), p.mimo_o.stride[2], left);
      sum[i].v[0] = kr_fma(by.v[0], o.v[0], sum[i].v[0]), sum[i].v[1] = kr_fma(by.v[1], o.v[1], sum[i].v[1]);
    }
  }
#pragma unroll
  for (int i = 0; i < TWOS; i++) {
    const int c = 64 * i + 2 * (kr_thread() & 31);
    if (p.mimo_o.data && c < p.P) put_two(p.out, at4(p.out, b, at.t, h, c), p.out.stride[3], p.P - c, sum[i]);
  }
}

template <int TWOS>
KR_DEV void finish(const kr_mamba3_params &p) {
  const int chunk = kr_block_x() / p.H, h = kr_block_x() - chunk * p.H;
  const int64_t t0 = (int64_t)chunk * CHUNK, end = t0 + CHUNK < p.L ? t0 + CHUNK : p.L;
  for (int64_t t = t0 + (kr_thread() >> 5); t < end; t += WARPS)
    finish_token<TWOS>(p, kr_block_z(), h, token_at(p, kr_block_z(), t));
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_finish_64(const kr_mamba3_params p) { finish<1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_finish_256(const kr_mamba3_params p) { finish<4>(p); }

/* A block per sequence of a pack and head. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_ends(const kr_mamba3_params p) {
  const int row = kr_block_x() / p.H, h = kr_block_x() - row * p.H;
  const int64_t begin = offset_at(p, row), end = offset_at(p, row + 1), n = end > begin ? end - begin : 0,
                from = row_of(p, 0, h, first_block(p, row, begin) + n + 1, 0);
  for (int i = kr_thread(); i < p.P * p.N; i += THREADS)
    ((float *)p.final_states.data)[at4(p.final_states, row, h, i / p.N, i % p.N)] =
        value((const element *)p.y, (from + i % p.N) * p.row_P + i / p.N);
}
