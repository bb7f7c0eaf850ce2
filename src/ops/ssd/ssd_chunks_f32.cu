/* ssd_chunks_f32.cu: the SSD of float32 on tensor cores (equations in ssd_chunks.cu), Ampere and later: factors are
 * sums of two tf32 parts, as accurate as float32 multiply-adds, or (KRAIT_SSD_TF32) are rounded to tf32. A block of
 * four warps passes one head's state through time; each warp has 16 channels of it with all their states, in the
 * accumulators' layout. That is also an A operand's, if the states 2 q and 2 q + 1 of eight count as its columns q and
 * q + 4: so Y^T = S C^T, a warp needs no other warp's state, and the state is never stored.
 * kr_ssd_steps        cumulative log-decays of every chunk
 * kr_ssd_products_nN  C B^T of every chunk and group
 * kr_ssd_chunks_nN    output; from initial states, or from a segment's start state
 * kr_ssd_ends_nN      only the state at the end of each segment, from zero
 * each but the first also as _tf32. One stage of a chunk's rows is in shared memory: C arrives while the warps use x
 * and B, and the other way round. */
#include "ssd_f32.cuh"
#include "ssd_place.cuh"

enum { THREADS = KR_SSD_THREADS };

/* ---- rows in shared memory --------------------------------------------------------------------------------------- */

template <int N>
KR_DEV void copy_states(const kr_ssd_params &p, const place &at, float *to, const kr_ssd_tensor &v, int64_t t0) {
  copy_floats<N, THREADS>(to, v, at.b * v.b + at.g * v.h, t0, at.end, p.N);
}

KR_DEV void copy_channels(const kr_ssd_params &p, const place &at, float *to, int64_t t0) {
  copy_floats<PB, THREADS>(to, p.x, at.b * p.x.b + at.h * p.x.h + at.p0, t0, at.end, p.P - at.p0);
}

/* Place in rows of P: conflict-free are eight rows by four columns. */
KR_DEV int place_within(int row, int column) { return row * Q + (column ^ (row & 7) << 2); }

KR_DEV void copy_products(float *to, const float *from) {
#pragma unroll
  for (int k = 0; k < Q * Q / 4 / THREADS; k++) {
    const int i = k * THREADS + kr_thread();
    kr_copy_some(to + place_within(i / (Q / 4), i % (Q / 4) * 4), from + 4 * i, 16);
  }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Y^T = S C^T, decayed, for tokens of the incoming state's sequence: y[j] has tokens 8 j + 2 q and + 1. */
template <int N, int PARTS>
KR_DEV void output_before(float (&y)[Q / 8][4], const lane_place &me, const float (&s)[N / 8][4], const float *C,
                          const chunk_steps &steps) {
#pragma unroll
  for (int j = 0; j < Q / 8; j++) clear(y[j]);
#pragma unroll
  for (int k = 0; k < N / 8; k++) {
    kr_sync_warp(); /* or all reads would be moved here, and their registers to local memory */
    const kr_factor<PARTS, 4> a = kr_split<PARTS>({s[k][0], s[k][2], s[k][1], s[k][3]});
#pragma unroll
    for (int j = 0; j < Q / 8; j++)
      kr_multiply<PARTS>(y[j], a, ((const kr_float2 *)(C + place_of<N>(8 * j + me.g, 8 * k + 2 * me.q)))->v);
  }
#pragma unroll
  for (int j = 0; j < Q / 8; j++) {
    const int i = 8 * j + 2 * me.q;
    const float low = state_reaches(steps, i), high = state_reaches(steps, i + 1);
    y[j][0] *= low, y[j][1] *= high, y[j][2] *= low, y[j][3] *= high;
  }
}

/* C B^T to P, in place: of its 8 x 8 tiles the 36 up to the diagonal, sixteen threads each. Rows m and 7 - m of tiles
 * have nine together. */
KR_DEV void weight_products(float *products, const chunk_steps &steps, int has_sequences, int last_rank) {
#pragma unroll 1
  for (int tile = kr_thread() >> 4; tile < 36; tile += THREADS / 16) {
    const int pair = tile / 9, rest = tile - 9 * pair;
    const int i = 8 * (rest <= pair ? pair : 7 - pair) + (kr_thread() & 7),
              j = 8 * (rest <= pair ? rest : rest - pair - 1) + (kr_thread() >> 3 & 1) * 4;
    const float a = steps.a[i], low = steps.from[i], segment = steps.segment[i];
    kr_float4 *const four = (kr_float4 *)(products + place_within(i, j));
    kr_float4 v = *four;
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float passes = v.v[r] * (decay(steps.a[j + r], steps.from[j + r], a, low) * steps.d[j + r]);
      v.v[r] = j + r <= (i | last_rank) && (!has_sequences || steps.segment[j + r] == segment) ? passes : 0.0f;
    }
    *four = v;
  }
}

/* Y^T += X^T P^T. */
template <int PARTS>
KR_DEV void output_within(float (&y)[Q / 8][4], const lane_place &me, const float *products, const float *x) {
#pragma unroll 1
  for (int k = 0; k < Q / 8; k++) {
    float elements[4];
    read_channels(elements, me, x, k);
    const kr_factor<PARTS, 4> a = kr_split<PARTS>(elements);
#pragma unroll
    for (int j = 0; j < Q / 8; j++) {
      const float b[2] = {products[place_within(8 * j + me.g, 8 * k + me.q)],
                          products[place_within(8 * j + me.g, 8 * k + 4 + me.q)]};
      if (j >= k) kr_multiply<PARTS>(y[j], a, b);
    }
  }
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

/* (Y + D x) silu(z) to out, plus out's value from other states (p.adds). WHOLE: all tokens and channels of the chunk
 * exist, no padding, no accumulation. 16 of a lane's z are read before its next store, which no load may be moved
 * across. */
template <int WHOLE>
KR_DEV void write_floats(const kr_ssd_params &p, const place &at, const lane_place &me, const float (&y)[Q / 8][4],
                         const float *x, const float (&D)[2], const chunk_steps &steps, int64_t t0) {
  float *const out = (float *)p.out.data + at.b * p.out.b + at.h * p.out.h + at.p0 + me.c;
  const float *const z = (const float *)p.z.data + at.b * p.z.b + at.h * p.z.h + at.p0 + me.c;
  const int n = at.end - t0 < (int64_t)Q ? (int)(at.end - t0) : (int)Q, n_channels = p.P - at.p0;
#pragma unroll
  for (int first = 0; first < Q / 8; first += 4) {
    float gate[4][4];
    if (p.z.data)
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const int i = 8 * (first + j) + 2 * me.q + r % 2, c = r / 2 * 8;
          gate[j][r] = WHOLE || (i < n && me.c + c < n_channels) ? z[(t0 + i) * p.z.t + c] : 0.0f;
        }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int i = 8 * (first + j) + 2 * me.q + r % 2, c = r / 2 * 8;
        const int64_t t = t0 + i;
        float v = kr_fma(D[r / 2], x[place_of<PB>(i, me.c + c)], y[first + j][r]);
        if (!WHOLE && (i >= n || me.c + c >= n_channels)) continue;
        if (!WHOLE && p.adds) v += out[t * p.out.t + c];
        if (p.z.data) v *= kr_silu(gate[j][r]);
        if (!WHOLE && p.seq_idx && steps.segment[i] < 0) v = 0.0f;
        out[t * p.out.t + c] = v;
      }
  }
}

template <int N, int ONLY_ENDS, int PARTS>
KR_DEV void walk(const kr_ssd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const place at = here(p);
  const lane_place me = lane();
  float *const x = (float *)shared, *const B = x + Q * PB, *const C = B + Q * N, *const products = C + Q * N;
  chunk_steps *const steps = (chunk_steps *)(ONLY_ENDS ? C : products + Q * Q);
  const int has_sequences = p.seq_idx != 0, c = at.p0 + me.c - me.g;
  const int whole = p.P - at.p0 >= PB && !has_sequences && !p.adds;
  float s[N / 8][4], D[2] = {0, 0}, total = 0;
  int spoilt = 0, turn = 0;
  if (at.begin >= at.end && p.n_segments > 1) return;
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (!ONLY_ENDS && p.D.data && at.p0 + me.c + 8 * k < p.P)
      D[k] = kr_load(p.D.data, at.h * p.D.h + (int64_t)(at.p0 + me.c + 8 * k) * p.D.n, p.D.dtype);
  copy_steps(steps, steps_at(p, at.b, at.h, at.begin / Q));
  if (!ONLY_ENDS) copy_states<N>(p, at, C, p.Cmat, at.begin), kr_commit_copies();
  copy_channels(p, at, x, at.begin);
  copy_states<N>(p, at, B, p.Bmat, at.begin);
  if (!ONLY_ENDS) copy_products(products, products_of(p, at.b, at.g, at.begin / Q));
  kr_commit_copies();
  if (ONLY_ENDS) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) clear(s[j]);
  } else {
    load_state<N>(p, p.n_segments > 1 ? segment_states(p, at) : p.initial, at.b, at.h, c, 0, s);
  }
#pragma unroll 1
  for (int64_t t0 = at.begin; t0 < at.end; t0 += Q, turn ^= 1) {
    const chunk_steps &now = steps[turn];
    const int64_t next = t0 + Q;
    float y[Q / 8][4];
    if (!ONLY_ENDS) {
      kr_copied<1>();
      kr_sync();
      output_before<N, PARTS>(y, lane(), s, C, now);
    }
    kr_copied<0>();
    kr_sync();
    if (next < at.end) {
      copy_steps(steps + (turn ^ 1), steps_at(p, at.b, at.h, next / Q));
      if (!ONLY_ENDS) copy_states<N>(p, at, C, p.Cmat, next), kr_commit_copies();
    }
    if (!ONLY_ENDS) {
      weight_products(products, now, has_sequences, p.last_rank);
      kr_sync();
      output_within<PARTS>(y, lane(), products, x);
      spoilt |= is_spoilt<Q / 8>(y);
      if (whole && next <= at.end) write_floats<1>(p, at, lane(), y, x, D, now, t0);
      else write_floats<0>(p, at, lane(), y, x, D, now, t0);
    }
    spoilt |= take_floats<N, PARTS, 0>(s, lane(), x, B, now, has_sequences);
    if (now.last != 0) total = 1.0f;
    else if (total <= 0) total += now.total;
    kr_sync();
    if (next >= at.end) break;
    copy_channels(p, at, x, next);
    copy_states<N>(p, at, B, p.Bmat, next);
    if (!ONLY_ENDS) copy_products(products, products_of(p, at.b, at.g, next / Q));
    kr_commit_copies();
  }
  if (!ONLY_ENDS && p.spoilt && (spoilt || is_spoilt<N / 8>(s))) p.spoilt[at.b * p.H + at.h] = 1;
  if (ONLY_ENDS) {
    store_state<N>(p, segment_states(p, at), at.b, at.h, c, 0, s);
    if (kr_thread() == 0 && at.p0 == 0)
      p.segment_decay[((int64_t)at.b * p.H + at.h) * p.n_segments + at.segment] = total;
  } else if (p.final.data && at.segment == p.n_segments - 1) {
    store_state<N>(p, p.final, at.b, at.h, c, 0, s);
  }
}

/* A block per chunk, group and sequence; a warp per 16 tokens, which are its rows. */
template <int N, int PARTS>
KR_DEV void multiply_states(const kr_ssd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const lane_place me = lane();
  const int64_t chunk = kr_block_x();
  place at = {};
  at.g = kr_block_y(), at.b = kr_block_z(), at.end = p.L;
  float *const B = (float *)shared, *const C = B + Q * N, *const to = products_of(p, at.b, at.g, chunk);
  float d[Q / 8][4];
  copy_states<N>(p, at, B, p.Bmat, chunk * Q);
  copy_states<N>(p, at, C, p.Cmat, chunk * Q);
  kr_commit_copies();
#pragma unroll
  for (int j = 0; j < Q / 8; j++) clear(d[j]);
  kr_copied<0>();
  kr_sync();
#pragma unroll 2
  for (int k = 0; k < N / 8; k++) {
    const kr_float2 first = *(const kr_float2 *)(C + place_of<N>(me.c, 8 * k + 2 * me.q)),
                    second = *(const kr_float2 *)(C + place_of<N>(me.c + 8, 8 * k + 2 * me.q));
    const kr_factor<PARTS, 4> a = kr_split<PARTS>({first.v[0], second.v[0], first.v[1], second.v[1]});
#pragma unroll
    for (int j = 0; j < Q / 8; j++)
      kr_multiply<PARTS>(d[j], a, ((const kr_float2 *)(B + place_of<N>(8 * j + me.g, 8 * k + 2 * me.q)))->v);
  }
#pragma unroll
  for (int j = 0; j < Q / 8; j++) {
    *(kr_float2 *)(to + me.c * Q + 8 * j + 2 * me.q) = kr_float2{{d[j][0], d[j][1]}};
    *(kr_float2 *)(to + (me.c + 8) * Q + 8 * j + 2 * me.q) = kr_float2{{d[j][2], d[j][3]}};
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_products_n64(const kr_ssd_params p) { multiply_states<64, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_chunks_n64(const kr_ssd_params p) { walk<64, 0, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_ssd_ends_n64(const kr_ssd_params p) { walk<64, 1, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_products_n64_tf32(const kr_ssd_params p) { multiply_states<64, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_chunks_n64_tf32(const kr_ssd_params p) { walk<64, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_ssd_ends_n64_tf32(const kr_ssd_params p) { walk<64, 1, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_products_n128(const kr_ssd_params p) { multiply_states<128, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_chunks_n128(const kr_ssd_params p) { walk<128, 0, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_ssd_ends_n128(const kr_ssd_params p) { walk<128, 1, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_products_n128_tf32(const kr_ssd_params p) { multiply_states<128, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_chunks_n128_tf32(const kr_ssd_params p) { walk<128, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_ssd_ends_n128_tf32(const kr_ssd_params p) { walk<128, 1, 0>(p); }

KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_steps(const kr_ssd_params p) { leave_steps(p); }
