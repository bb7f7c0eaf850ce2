/* gated_delta_staged.cu: the recurrence over many tokens. A block has KR_DELTA_STAGED_COLUMNS columns of a head's state
 * in registers, each in eight lanes, four of every 32 rows in one; a lane has two columns, which share what it reads.
 * All threads bring KR_DELTA_TOKENS tokens at a time into shared memory, keys and queries of length one, while the next
 * ones are on their way. Both sums over a column, of k and of q by the state before the token, are independent:
 * q^T state' = decay q^T state + (q^T k) change. */
#include "pack.cuh"

#include "gated_delta_gates.cuh"

enum {
  TOKENS = KR_DELTA_TOKENS,
  COLUMNS = KR_DELTA_STAGED_COLUMNS,
  THREADS = KR_DELTA_STAGED_THREADS,
  LANES = 8,
  OWN = COLUMNS * LANES / THREADS, /* columns of a lane: c and c + COLUMNS / OWN */
  LINES = 2 * TOKENS * LANES / THREADS /* keys and queries that a thread brings a part of */
};

template <int DK>
struct stage {
  float k[TOKENS][DK], q[TOKENS][DK], v[TOKENS][COLUMNS], decay[TOKENS], beta[TOKENS], qk[TOKENS];
};

/* Sums over a column's lanes, in each of them. */
KR_DEV float sum_of_lanes(float v) {
#pragma unroll
  for (int d = 1; d < LANES; d *= 2) v += kr_shuffle_xor(v, d);
  return v;
}

/* Where a block is: sequence, head of values and of keys, first column. */
typedef struct place {
  int64_t b;
  int h, head, first;
} place;

/* A thread's share of a stage: eighths of keys and queries, some of v, and a token's a and b. */
template <int DK, int F32>
struct share {
  kr_raw16 row[LINES][DK / 64][F32 + 1];
  float v[TOKENS * COLUMNS / THREADS], a, b;
};

/* Line: the tokens' keys, then their queries. */
template <int DK, int F32>
KR_DEV void read_share(const kr_gated_delta_rule_args &a, const place &o, int64_t first, share<DK, F32> &to) {
  const int lane = kr_thread() % LANES;
#pragma unroll
  for (int r = 0; r < LINES; r++) {
    const int line = kr_thread() / LANES + r * (THREADS / LANES);
    const kr_view &from = line < TOKENS ? a.k : a.q;
    const int64_t t = first + line % TOKENS, at = o.b * from.stride[0] + t * from.stride[1] + o.head * from.stride[2];
#pragma unroll
    for (int m = 0; m < DK / 64; m++)
#pragma unroll
      for (int f = 0; f <= F32; f++) {
        const int64_t i = at + 8 * (lane + LANES * m) + 4 * f;
        to.row[r][m][f] = t < a.L ? *(const kr_raw16 *)((const char *)from.data + i * (F32 ? 4 : 2))
                                  : kr_raw16{{0, 0, 0, 0}};
      }
  }
#pragma unroll
  for (int i = 0; i < TOKENS * COLUMNS / THREADS; i++) {
    const int index = kr_thread() + i * THREADS, j = o.first + index % COLUMNS;
    const int64_t t = first + index / COLUMNS;
    to.v[i] = t < a.L && j < a.Dv ? kr_load(a.v.data, o.b * a.v.stride[0] + t * a.v.stride[1] + o.h * a.v.stride[2] +
                                                          j * a.v.stride[3], a.v.dtype)
                                  : 0.0f;
  }
  const int64_t own = first + kr_thread();
  if (kr_thread() < TOKENS && own < a.L) to.a = at_token(a.a, o.b, own, o.h), to.b = at_token(a.b, o.b, own, o.h);
}

/* This lane's eighth of a row, as given or of length one. */
template <int DK, int F32>
KR_DEV void put_line(const kr_gated_delta_rule_args &a, const kr_raw16 (&from)[DK / 64][F32 + 1], float scale,
                     float *line) {
  const int lane = kr_thread() % LANES;
  float x[DK / LANES], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < DK / LANES; i++) {
    const kr_raw16 &raw = from[i / 8][F32 ? i / 4 % 2 * F32 : 0];
    x[i] = F32 ? kr_bits_to_float(raw.w[i % 4]) : kr_unpack(raw.w[i / 2 % 4], i % 2, a.k.dtype);
    sum = kr_fma(x[i], x[i], sum);
  }
  const float length = kr_rsqrt(sum_of_lanes(sum) + a.eps),
              by = a.call.flags & KRAIT_DELTA_KEYS_AS_GIVEN ? scale : scale * length;
#pragma unroll
  for (int i = 0; i < DK / LANES; i += 4)
    *(kr_float4 *)(line + 8 * (lane + LANES * (i / 8)) + i % 8) =
        kr_float4{{by * x[i], by * x[i + 1], by * x[i + 2], by * x[i + 3]}};
}

template <int DK, int F32>
KR_DEV void put_share(const kr_gated_delta_rule_args &a, const place &o, const share<DK, F32> &from, stage<DK> &to) {
#pragma unroll
  for (int r = 0; r < LINES; r++) {
    const int line = kr_thread() / LANES + r * (THREADS / LANES);
    put_line<DK, F32>(a, from.row[r], line < TOKENS ? 1.0f : kr_rsqrt((float)DK),
                      line < TOKENS ? to.k[line % TOKENS] : to.q[line % TOKENS]);
  }
#pragma unroll
  for (int i = 0; i < TOKENS * COLUMNS / THREADS; i++) {
    const int index = kr_thread() + i * THREADS;
    to.v[index / COLUMNS][index % COLUMNS] = from.v[i];
  }
  if (kr_thread() >= TOKENS) return;
  to.decay[kr_thread()] = decay_of(a, o.h, from.a);
  to.beta[kr_thread()] = beta_of(a, from.b);
}

/* q^T k of each token. */
template <int DK>
KR_DEV void multiply_tokens(stage<DK> &s) {
  const int lane = kr_thread() % LANES;
#pragma unroll
  for (int r = 0; r < TOKENS * LANES / THREADS; r++) {
    const int token = kr_thread() / LANES + r * (THREADS / LANES);
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < DK / LANES; m++)
      sum = kr_fma(s.k[token][lane + LANES * m], s.q[token][lane + LANES * m], sum);
    sum = sum_of_lanes(sum);
    if (lane == 0) s.qk[token] = sum;
  }
}

template <int DK>
KR_DEV void move_state(const kr_view &v, int64_t at, float (&s)[DK / 32][4], int is_out) {
#pragma unroll
  for (int m = 0; m < DK / 32; m++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      float *place = (float *)v.data + at + (4 * (kr_thread() % LANES + LANES * m) + c) * v.stride[2];
      if (is_out)
        *place = s[m][c];
      else
        s[m][c] = *place;
    }
}

/* A lane's part of a token's key and query. */
template <int DK>
struct keys {
  kr_float4 k[DK / 32], q[DK / 32];
};

template <int DK>
KR_DEV void read_keys(const stage<DK> &from, int token, keys<DK> &to) {
#pragma unroll
  for (int m = 0; m < DK / 32; m++) {
    const int at = 4 * (kr_thread() % LANES + LANES * m);
    to.k[m] = *(const kr_float4 *)(from.k[token] + at), to.q[m] = *(const kr_float4 *)(from.q[token] + at);
  }
}

/* Returns out of a token and a column. */
template <int DK>
KR_DEV float take_token(const stage<DK> &from, const keys<DK> &of, int token, int column, float (&s)[DK / 32][4]) {
  const float decay = from.decay[token];
  float had[2] = {0.0f, 0.0f}, out[2] = {0.0f, 0.0f};
#pragma unroll
  for (int m = 0; m < DK / 32; m++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      had[c % 2] = kr_fma(of.k[m].v[c], s[m][c], had[c % 2]);
      out[c % 2] = kr_fma(of.q[m].v[c], s[m][c], out[c % 2]);
    }
  const float of_k = sum_of_lanes(had[0] + had[1]), of_q = sum_of_lanes(out[0] + out[1]),
              change = from.beta[token] * (from.v[token][column] - decay * of_k);
#pragma unroll
  for (int m = 0; m < DK / 32; m++)
#pragma unroll
    for (int c = 0; c < 4; c++) s[m][c] = kr_fma(of.k[m].v[c], change, decay * s[m][c]);
  return kr_fma(decay, of_q, from.qk[token] * change);
}

/* A token, for both columns. */
template <int DK>
KR_DEV void take_columns(const kr_gated_delta_rule_args &a, const place &o, const stage<DK> &now, const keys<DK> &of,
                         int64_t first, int token, float (&s)[OWN][DK / 32][4]) {
#pragma unroll
  for (int c = 0; c < OWN; c++) {
    const int at = kr_thread() / LANES + c * (COLUMNS / OWN), j = o.first + at;
    const float out = take_token<DK>(now, of, token, at, s[c]);
    if (kr_thread() % LANES == c && j < a.Dv)
      kr_store(a.out.data, o.b * a.out.stride[0] + (first + token) * a.out.stride[1] + o.h * a.out.stride[2] +
                               j * a.out.stride[3], a.out.dtype, out);
  }
}

/* The keys and queries of a token are read before the one before it is done; those beyond the last are not used. */
template <int DK>
KR_DEV void take_stage(const kr_gated_delta_rule_args &a, const place &o, const stage<DK> &now, int64_t first, int n,
                       float (&s)[OWN][DK / 32][4]) {
  keys<DK> even, odd;
  read_keys<DK>(now, 0, even);
  for (int token = 0; token < n; token += 2) {
    read_keys<DK>(now, token + 1, odd);
    take_columns<DK>(a, o, now, even, first, token, s);
    read_keys<DK>(now, (token + 2) % TOKENS, even);
    if (token + 1 < n) take_columns<DK>(a, o, now, odd, first, token + 1, s);
  }
}

template <int DK>
KR_DEV void move_states(const kr_view &v, const place &o, int64_t Dv, float (&s)[OWN][DK / 32][4], int is_out) {
#pragma unroll
  for (int c = 0; c < OWN; c++) {
    const int j = o.first + kr_thread() / LANES + c * (COLUMNS / OWN);
    if (v.data && j < Dv)
      move_state<DK>(v, o.b * v.stride[0] + o.h * v.stride[1] + j * v.stride[3], s[c], is_out);
  }
}

template <int DK, int F32>
KR_DEV void run_staged(const kr_delta_params &p, stage<DK> &now) {
  const kr_gated_delta_rule_args &a = p.a;
  const int block = kr_block_x(), h = block / p.parts % (int)a.H;
  const place o = {block / p.parts / (int)a.H, h, h / (int)(a.H / a.Hk), block % p.parts * COLUMNS};
  share<DK, F32> next = {};
  float s[OWN][DK / 32][4] = {};
  move_states<DK>(p.before, o, a.Dv, s, 0);
  read_share<DK, F32>(a, o, 0, next);
  for (int64_t first = 0; first < a.L; first += TOKENS) {
    kr_sync();
    put_share<DK, F32>(a, o, next, now);
    if (first + TOKENS < a.L) read_share<DK, F32>(a, o, first + TOKENS, next);
    kr_sync();
    multiply_tokens<DK>(now);
    kr_sync();
    take_stage<DK>(a, o, now, first, a.L - first < TOKENS ? (int)(a.L - first) : TOKENS, s);
  }
  move_states<DK>(p.after, o, a.Dv, s, 1);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_gated_delta_64(const kr_delta_params p) {
  KR_SHARED stage<64> now;
  if (p.a.q.dtype == KRAIT_F32) run_staged<64, 1>(p, now);
  else run_staged<64, 0>(p, now);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_gated_delta_128(const kr_delta_params p) {
  KR_SHARED stage<128> now;
  if (p.a.q.dtype == KRAIT_F32) run_staged<128, 1>(p, now);
  else run_staged<128, 0>(p, now);
}
