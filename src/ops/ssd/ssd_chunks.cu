/* ssd_chunks.cu: the SSD on tensor cores (ssd_ref.c has the equation), from Ampere on: a block of four warps walks along time with one
 * head's state (64 channels, N states) in its accumulators, chunk by chunk of 64 tokens; compiled for float16 and bfloat16 storage.
 * With a the running sum of d A since the chunk began (in powers of two):
 *   Y = 2^a (C S_before^T) + (C B^T o 2^(a_i - a_j) d_j, j <= i) X       S = 2^a_end S_before + (2^(a_end - a_j) d_j X)^T B
 * A warp makes 16 rows of Y and 16 channels of S. C B^T goes from accumulators to factors without leaving its registers. Decays are
 * float32; exponents are differences, at most 0 for A <= 0. Copies of the next chunk and its step sizes are under way meanwhile.
 * kr_ssd_chunks_nN   output; from initial states, or from a segment's start state
 * kr_ssd_ends_nN     only the state at the end of each segment, from zero
 * kr_ssd_join        start states of the segments from their ends */
#include "ssd_mma.cuh"

enum { THREADS = KR_SSD_THREADS };

template <int N>
KR_DEV constexpr int stage_bytes(void) { return X_BYTES + 2 * Q * N * 2; }

/* Where a block works. */
typedef struct place {
  int b, h, g, p0, segment;
  int64_t begin, end;
} place;

KR_DEV place here(const kr_ssd_plan &p) {
  place at;
  at.h = kr_block_x() / p.blocks_per_head;
  at.p0 = (kr_block_x() - at.h * p.blocks_per_head) * PB;
  at.g = at.h / p.heads, at.b = kr_block_z(), at.segment = kr_block_y();
  at.begin = at.segment * p.segment;
  at.end = at.begin + p.segment < p.L ? at.begin + p.segment : p.L;
  return at;
}

template <int N, int ONLY_ENDS>
KR_DEV void copy_chunk(const kr_ssd_plan &p, const place &at, unsigned char *stage, int64_t t0) {
  copy_rows<PB * 2, THREADS>(stage, p.x, at.b * p.x.b + at.h * p.x.h + at.p0, t0, at.end, p.P - at.p0);
  copy_rows<N * 2, THREADS>(stage + X_BYTES, p.Bmat, at.b * p.Bmat.b + at.g * p.Bmat.h, t0, at.end, p.N);
  if (!ONLY_ENDS) copy_rows<N * 2, THREADS>(stage + X_BYTES + Q * N * 2, p.Cmat, at.b * p.Cmat.b + at.g * p.Cmat.h, t0, at.end, p.N);
  kr_commit_copies();
}

/* Where a state's element (channel c of the head) lies, and how far apart those along N are. */
typedef struct state_row {
  int64_t at, step;
} state_row;

KR_DEV state_row segment_row(const kr_ssd_plan &p, const place &at, int c) {
  return state_row{((((int64_t)at.b * p.H + at.h) * p.n_segments + at.segment) * p.P + c) * p.N, 1};
}
KR_DEV state_row tensor_row(const kr_ssd_tensor &v, const place &at, int c) { return state_row{at.b * v.b + at.h * v.h + c * v.t, v.n}; }

/* Rows p0 + 16 w + g and 8 more, columns 8 j + 2 q and one more. */
template <int N>
KR_DEV void load_state(const kr_ssd_plan &p, const place &at, float (&s)[N / 8][4]) {
  const int lane = kr_thread() & 31, q = lane & 3, c0 = at.p0 + 16 * (kr_thread() >> 5) + (lane >> 2);
  const int from_segment = p.n_segments > 1, exists = from_segment || p.initial.data != 0;
  const void *const data = from_segment ? p.segment_state : p.initial.data;
  const int32_t dtype = from_segment ? KRAIT_F32 : p.initial.dtype;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int c = c0 + 8 * half;
    const state_row row = from_segment ? segment_row(p, at, c) : tensor_row(p.initial, at, c);
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int n = anew(8 * j + 2 * q + k);
        s[j][2 * half + k] = exists && c < p.P && n < p.N ? kr_load(data, row.at + n * row.step, dtype) : 0.0f;
      }
  }
}

template <int N>
KR_DEV void store_state(const kr_ssd_plan &p, const place &at, const float (&s)[N / 8][4], int to_segment) {
  const int lane = kr_thread() & 31, q = lane & 3, c0 = at.p0 + 16 * (kr_thread() >> 5) + (lane >> 2);
  float *const data = to_segment ? p.segment_state : (float *)p.final.data;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int c = c0 + 8 * half;
    const state_row row = to_segment ? segment_row(p, at, c) : tensor_row(p.final, at, c);
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int n = anew(8 * j + 2 * q + k);
        if (c < p.P && n < p.N) data[row.at + n * row.step] = s[j][2 * half + k];
      }
  }
}

/* The state as a factor of the next chunk: [channel][state] in the storage type. */
template <int N>
KR_DEV void share_state(unsigned char *shared, const float (&s)[N / 8][4]) {
  const int lane = kr_thread() & 31, g = lane >> 2, q = lane & 3, row = 16 * (kr_thread() >> 5) + g;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    *(uint32_t *)(shared + kr_swizzle<N * 2>(row, j) + 4 * q) = pack(s[j][0], s[j][1]);
    *(uint32_t *)(shared + kr_swizzle<N * 2>(row + 8, j) + 4 * q) = pack(s[j][2], s[j][3]);
  }
}

/* A warp's 16 rows of C as a factor, 16 states from 16 k on. */
template <int N>
KR_DEV void load_C(uint32_t (&c)[4], const unsigned char *C, int k) {
  const int lane = kr_thread() & 31, w = kr_thread() >> 5;
  kr_load_matrices(c, C + kr_swizzle<N * 2>(16 * w + (lane & 15), 2 * k + (lane >> 4)));
}

/* Y = 2^a (C S^T) for the tokens of the sequence that was there before. */
template <int N>
KR_DEV void output_before(float (&y)[PB / 8][4], const unsigned char *C, const unsigned char *state, const chunk_steps &steps) {
  const int lane = kr_thread() & 31, row = 16 * (kr_thread() >> 5) + (lane >> 2);
#pragma unroll
  for (int j = 0; j < PB / 8; j++) y[j][0] = y[j][1] = y[j][2] = y[j][3] = 0;
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    uint32_t b[4], c[4];
    load_C<N>(c, C, k);
#pragma unroll
    for (int j = 0; j < PB / 16; j++) {
      kr_load_matrices(b, state + kr_swizzle<N * 2>(16 * j + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)));
      kr_mma_as(half_type(), y[2 * j], c, b[0], b[1]);
      kr_mma_as(half_type(), y[2 * j + 1], c, b[2], b[3]);
    }
  }
  const float low = steps.segment[row] == 0 ? kr_exp2(steps.a[row]) : 0.0f, high = steps.segment[row + 8] == 0 ? kr_exp2(steps.a[row + 8]) : 0.0f;
#pragma unroll
  for (int j = 0; j < PB / 8; j++) y[j][0] *= low, y[j][1] *= low, y[j][2] *= high, y[j][3] *= high;
}

/* Two factors of a row of C B^T o decays: tokens j and j + 1 for token i. ALL: every token reaches this one, but for sequences. */
template <int ALL>
KR_DEV uint32_t given(const chunk_steps &s, int has_sequences, int i, int j, float a, float segment, float first, float second) {
  const kr_float2 from = *(const kr_float2 *)&s.from[j];
  first *= kr_exp2(a - from.v[0]), second *= kr_exp2(a - from.v[1]);
  if (!ALL) first = j <= i ? first : 0.0f, second = j < i ? second : 0.0f;
  if (has_sequences) {
    const kr_float2 other = *(const kr_float2 *)&s.segment[j];
    first = other.v[0] == segment ? first : 0.0f, second = other.v[1] == segment ? second : 0.0f;
  }
  return pack(first, second);
}

/* Y += (C B^T o decays) X for 16 tokens j from 16 k on. */
template <int N, int ALL>
KR_DEV void output_of(float (&y)[PB / 8][4], const uint32_t (&c)[N / 16][4], const unsigned char *x, const unsigned char *B, const chunk_steps &steps, int k, int has_sequences) {
  const int lane = kr_thread() & 31, q = lane & 3, row = 16 * (kr_thread() >> 5) + (lane >> 2);
  float cb[2][4] = {};
  uint32_t b[4], f[4];
#pragma unroll
  for (int n = 0; n < N / 16; n++) {
    kr_load_matrices(b, B + kr_swizzle<N * 2>(16 * k + (lane & 7) + (lane >> 4) * 8, 2 * n + (lane >> 3 & 1)));
    kr_mma_as(half_type(), cb[0], c[n], b[0], b[1]);
    kr_mma_as(half_type(), cb[1], c[n], b[2], b[3]);
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int j = 16 * k + 8 * half + 2 * q;
    f[2 * half] = given<ALL>(steps, has_sequences, row, j, steps.a[row], steps.segment[row], cb[half][0], cb[half][1]);
    f[2 * half + 1] = given<ALL>(steps, has_sequences, row + 8, j, steps.a[row + 8], steps.segment[row + 8], cb[half][2], cb[half][3]);
  }
#pragma unroll
  for (int j = 0; j < PB / 16; j++) {
    kr_load_matrices_turned(b, x + kr_swizzle<PB * 2>(16 * k + (lane & 7) + (lane >> 3 & 1) * 8, 2 * j + (lane >> 4)));
    kr_mma_as(half_type(), y[2 * j], f, b[0], b[1]);
    kr_mma_as(half_type(), y[2 * j + 1], f, b[2], b[3]);
  }
}

template <int N>
KR_DEV void output_within(float (&y)[PB / 8][4], const unsigned char *C, const unsigned char *x, const unsigned char *B, const chunk_steps &steps, int has_sequences) {
  const int w = kr_thread() >> 5;
  uint32_t c[N / 16][4];
#pragma unroll
  for (int n = 0; n < N / 16; n++) load_C<N>(c[n], C, n);
#pragma unroll 1
  for (int k = 0; k < w; k++) output_of<N, 1>(y, c, x, B, steps, k, has_sequences);
  output_of<N, 0>(y, c, x, B, steps, w, has_sequences);
}

/* Two elements that lie side by side; the second may not exist. */
KR_DEV uint32_t load_pair(const void *data, int64_t at, int both) {
  const uint16_t *from = (const uint16_t *)data + at;
  return both ? *(const uint32_t *)from : from[0];
}

/* (Y + D x) silu(z) to out, through this warp's own 16 rows of C, which nobody needs any more. */
template <int N>
KR_DEV void write_output(const kr_ssd_plan &p, const place &at, float (&y)[PB / 8][4], const unsigned char *x, unsigned char *staging, const float *D, const chunk_steps &steps, int64_t t0) {
  const int lane = kr_thread() & 31, g = lane >> 2, q = lane & 3, first = 16 * (kr_thread() >> 5);
  staging += first * N * 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first + g + 8 * half;
    const int64_t t = t0 + row;
    const int there = t < at.end;
#pragma unroll
    for (int j = 0; j < PB / 8; j++) {
      const int c = 8 * j + 2 * q, left = p.P - at.p0 - c;
      float low = y[j][2 * half], high = y[j][2 * half + 1];
      if (p.D.data) {
        const uint32_t two = *(const uint32_t *)(x + kr_swizzle<PB * 2>(row, j) + 4 * q);
        const kr_float2 d = *(const kr_float2 *)&D[c];
        low = kr_fma(d.v[0], kr_unpack(two, 0, KR_DTYPE), low), high = kr_fma(d.v[1], kr_unpack(two, 1, KR_DTYPE), high);
      }
      if (p.z.data && there && left > 0) {
        const uint32_t two = load_pair(p.z.data, at.b * p.z.b + t * p.z.t + at.h * p.z.h + at.p0 + c, left > 1);
        low *= kr_silu(kr_unpack(two, 0, KR_DTYPE)), high *= kr_silu(kr_unpack(two, 1, KR_DTYPE));
      }
      if (p.seq_idx && steps.segment[row] < 0) low = high = 0;
      *(uint32_t *)(staging + kr_swizzle<PB * 2>(row - first, j) + 4 * q) = pack(low, high);
    }
  }
  kr_sync_warp();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int row = first + i * 4 + (lane >> 3), piece = lane & 7, left = p.P - at.p0 - piece * 8;
    const int64_t t = t0 + row;
    const unsigned char *from = staging + kr_swizzle<PB * 2>(row - first, piece);
    uint16_t *to = (uint16_t *)p.out.data + at.b * p.out.b + t * p.out.t + at.h * p.out.h + at.p0 + piece * 8;
    if (t >= at.end || left <= 0) continue;
    if (left >= 8) *(kr_raw16 *)to = *(const kr_raw16 *)from;
    else for (int k = 0; k < left; k++) to[k] = ((const uint16_t *)from)[k];
  }
}

template <int N, int ONLY_ENDS>
KR_DEV void walk(const kr_ssd_plan &p) {
  KR_DYNAMIC_SHARED(shared);
  const place at = here(p);
  const int w = kr_thread() >> 5;
  chunk_steps *const steps = (chunk_steps *)(shared + 2 * stage_bytes<N>() + PB * N * 2);
  float *const D = (float *)(steps + 2); /* [channel] */
  const float A = kr_load(p.A.data, at.h * p.A.h, KRAIT_F32) * KR_LOG2E, bias = p.bias.data ? kr_load(p.bias.data, at.h * p.bias.h, p.bias.dtype) : 0.0f;
  float s[N / 8][4], decay = 0;
  if (at.begin >= at.end && p.n_segments > 1) return;
  if (kr_thread() < PB) D[kr_thread()] = p.D.data && at.p0 + kr_thread() < p.P ? kr_load(p.D.data, at.h * p.D.h + (int64_t)(at.p0 + kr_thread()) * p.D.n, p.D.dtype) : 0.0f;
  copy_chunk<N, ONLY_ENDS>(p, at, shared, at.begin);
  if (w == 0) prepare_steps(p, steps[0], load_steps(p, at.b, at.h, at.begin, at.end), A, bias, at.begin, at.end);
  if (ONLY_ENDS) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
  } else {
    load_state<N>(p, at, s);
    share_state<N>(shared + 2 * stage_bytes<N>(), s);
  }
  int turn = 0;
  for (int64_t t0 = at.begin; t0 < at.end; t0 += Q, turn ^= 1) {
    unsigned char *const stage = shared + anew(turn * stage_bytes<N>()), *const state = shared + anew(2 * stage_bytes<N>()), *const x = stage, *const B = stage + X_BYTES, *const C = B + Q * N * 2;
    const chunk_steps &now = steps[turn];
    raw_steps next = {};
    kr_copied<0>();
    kr_sync();
    if (t0 + Q < at.end) copy_chunk<N, ONLY_ENDS>(p, at, shared + (turn ^ 1) * stage_bytes<N>(), t0 + Q);
    if (w == 0 && t0 + Q < at.end) next = load_steps(p, at.b, at.h, t0 + Q, at.end);
    if (!ONLY_ENDS) {
      float y[PB / 8][4];
      output_before<N>(y, C, state, now);
      output_within<N>(y, C, x, B, now, p.seq_idx != 0);
      kr_sync_warp();
      write_output<N>(p, at, y, x, C, D, now, t0);
    }
    update_state<N>(s, x, B, now.into, now.keeps);
    if (now.last_segment != 0) decay = 1.0f;
    else if (decay <= 0) decay += now.total;
    if (!ONLY_ENDS) {
      kr_sync();
      share_state<N>(state, s);
    }
    if (w == 0 && t0 + Q < at.end) prepare_steps(p, steps[turn ^ 1], next, A, bias, t0 + Q, at.end);
  }
  if (ONLY_ENDS) {
    store_state<N>(p, at, s, 1);
    if (kr_thread() == 0 && at.p0 == 0) p.segment_decay[((int64_t)at.b * p.H + at.h) * p.n_segments + at.segment] = decay;
  } else if (p.final.data && at.segment == p.n_segments - 1) {
    store_state<N>(p, at, s, 0);
  }
}

/* C's rows of a warp must hold its 16 rows of Y: N of 64 at least. */
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 3) kr_ssd_chunks_n64(const kr_ssd_plan p) { walk<64, 0>(p); }
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 3) kr_ssd_ends_n64(const kr_ssd_plan p) { walk<64, 1>(p); }
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 2) kr_ssd_chunks_n128(const kr_ssd_plan p) { walk<128, 0>(p); }
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 2) kr_ssd_ends_n128(const kr_ssd_plan p) { walk<128, 1>(p); }

/* A thread per element of a head's state. */
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_join(const kr_ssd_plan p) {
  const int64_t i = (int64_t)kr_block_x() * KR_SSD_THREADS + kr_thread(), size = (int64_t)p.P * p.N;
  const int h = kr_block_y(), b = kr_block_z();
  if (i >= size) return;
  const int64_t head = (int64_t)b * p.H + h;
  const int c = (int)(i / p.N), n = (int)(i - (int64_t)c * p.N);
  float s = p.initial.data ? kr_load(p.initial.data, b * p.initial.b + h * p.initial.h + c * p.initial.t + n * p.initial.n, p.initial.dtype) : 0.0f;
  for (int k = 0; k < p.n_segments; k++) {
    float *const place = p.segment_state + (head * p.n_segments + k) * size + i;
    const float end = *place, decay = p.segment_decay[head * p.n_segments + k];
    *place = s;
    s = decay > 0 ? end : kr_fma(kr_exp2(decay), s, end);
  }
}
