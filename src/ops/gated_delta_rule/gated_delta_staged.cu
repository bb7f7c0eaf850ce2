/* gated_delta_staged.cu: the recurrence over many tokens, KR_DELTA_TOKENS at a time. A block has
 * KR_DELTA_STAGED_COLUMNS columns of a head's state in shared memory. With S the state before the tokens, g their
 * decays, u_t what token t adds for its key, and d_ti the product of g from i + 1 to t (d_t from the first to t):
 *   u_t = beta_t (v_t - d_t k_t^T S - sum over i < t of d_ti (k_t^T k_i) u_i)
 *   out_t = d_t q_t^T S + sum over i <= t of d_ti (q_t^T k_i) u_i
 *   S' = d_last S + sum over i of d_last,i k_i u_i^T
 * so that only the sums of u are one after the other. The next tokens are on their way meanwhile. */
#include "pack.cuh"

#include "gated_delta_gates.cuh"
#include "gated_delta_triangle.cuh"

enum {
  TOKENS = KR_DELTA_TOKENS,
  COLUMNS = KR_DELTA_STAGED_COLUMNS,
  THREADS = KR_DELTA_STAGED_THREADS,
  LANES = 8,
  LINES = 2 * TOKENS * LANES / THREADS, /* keys and queries that a thread brings a part of */
  ROWS = THREADS / TOKENS,              /* a thread has tokens r and r + ROWS, of a key or a column */
  PAD = 4
};

/* Between: d, of no token before (0), and of token i (i + 1). */
template <int DK>
struct stage {
  float k[TOKENS][DK + PAD], q[TOKENS][DK + PAD], state[COLUMNS][DK + PAD];
  float v[TOKENS][COLUMNS], u[TOKENS][COLUMNS], out[TOKENS][COLUMNS], beta[TOKENS], between[TOKENS + 1][TOKENS];
  float solve[TOKENS][TOKENS], weigh[TOKENS][TOKENS]; /* of u_i in u_t at [i][t], in out_t at [t][i] */
};

/* Sums over a row's lanes, in each of them. */
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

/* By one warp, of which lane t has token t's decay. */
KR_DEV void put_decays(float decay, float (&between)[TOKENS + 1][TOKENS]) {
  const int lane = kr_thread() & 31;
  float product = 1.0f;
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
    const float one = kr_shuffle_from(decay, t);
    if (t >= lane) product *= one;
    if (lane <= TOKENS) between[lane][t] = product;
  }
}

/* n: tokens that there are; what follows them changes nothing. */
template <int DK, int F32>
KR_DEV void put_share(const kr_gated_delta_rule_args &a, const place &o, const share<DK, F32> &from, int64_t n,
                      stage<DK> &to) {
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
  if (kr_thread() >= 32) return;
  const int exists = kr_thread() < n;
  put_decays(exists ? decay_of(a, o.h, from.a) : 1.0f, to.between);
  if (kr_thread() < TOKENS) to.beta[kr_thread()] = exists ? beta_of(a, from.b) : 0.0f;
}

/* ---- some tokens ---- */

KR_DEV float add_products(const kr_float4 &a, const kr_float4 &b, float sum) {
#pragma unroll
  for (int i = 0; i < 4; i++) sum = kr_fma(a.v[i], b.v[i], sum);
  return sum;
}

/* Keys and queries of two tokens by the key of one, and by a column of the state. NaN of a later token is no part of a
 * sum, not multiplied by 0, and tokens beyond the n that exist add nothing. */
template <int DK>
KR_DEV void multiply_stage(stage<DK> &s, int64_t n) {
  const int r = kr_thread() / TOKENS, c = kr_thread() % TOKENS;
  const float *const rows[4] = {s.k[r], s.k[r + ROWS], s.q[r], s.q[r + ROWS]};
  float sums[4][2] = {};
#pragma unroll 4
  for (int d = 0; d < DK; d += 4) {
    const kr_float4 key = *(const kr_float4 *)(s.k[c] + d), column = *(const kr_float4 *)(s.state[c] + d);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const kr_float4 row = *(const kr_float4 *)(rows[i] + d);
      sums[i][0] = add_products(row, key, sums[i][0]), sums[i][1] = add_products(row, column, sums[i][1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int t = r + i * ROWS;
    const float decay = s.between[0][t], since = c <= t ? s.between[c + 1][t] : 0.0f;
    s.solve[c][t] = c < t ? s.beta[t] * since * sums[i][0] : 0.0f;
    s.weigh[t][c] = c <= t ? since * sums[2 + i][0] : 0.0f;
    s.u[t][c] = t < n ? s.beta[t] * (s.v[t][c] - decay * sums[i][1]) : 0.0f;
    s.out[t][c] = decay * sums[2 + i][1];
  }
}

/* u, of a column by a thread. */
template <int DK>
KR_DEV void solve_stage(stage<DK> &s) {
  const int c = kr_thread();
  float u[TOKENS];
  if (c >= COLUMNS) return;
#pragma unroll
  for (int t = 0; t < TOKENS; t++) u[t] = s.u[t][c];
  solve_triangle(s.solve, u);
#pragma unroll
  for (int t = 0; t < TOKENS; t++) s.u[t][c] = u[t];
}

/* out of a column, of two tokens. */
template <int DK>
KR_DEV void store_stage(const kr_gated_delta_rule_args &a, const place &o, const stage<DK> &s, int64_t first,
                        int64_t n) {
  const int r = kr_thread() / TOKENS, c = kr_thread() % TOKENS, j = o.first + c;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int t = r + i * ROWS;
    float out = s.out[t][c];
#pragma unroll
    for (int k = 0; k < TOKENS; k++) out = kr_fma(s.weigh[t][k], k <= t ? s.u[k][c] : 0.0f, out);
    if (t < n && j < a.Dv)
      kr_store(a.out.data, o.b * a.out.stride[0] + (first + t) * a.out.stride[1] + o.h * a.out.stride[2] +
                               j * a.out.stride[3], a.out.dtype, out);
  }
}

/* The state after the tokens: four rows of some columns by a thread. */
template <int DK>
KR_DEV void move_on(stage<DK> &s) {
  enum { QUADS = DK / 4, OWN = COLUMNS * QUADS / THREADS };
  const int row = kr_thread() % QUADS * 4, column = kr_thread() / QUADS * OWN;
  kr_float4 sum[OWN];
#pragma unroll
  for (int c = 0; c < OWN; c++) {
    sum[c] = *(const kr_float4 *)(s.state[column + c] + row);
#pragma unroll
    for (int k = 0; k < 4; k++) sum[c].v[k] *= s.between[0][TOKENS - 1];
  }
#pragma unroll 4
  for (int i = 0; i < TOKENS; i++) {
    const kr_float4 key = *(const kr_float4 *)(s.k[i] + row);
    const float since = s.between[i + 1][TOKENS - 1];
#pragma unroll
    for (int c = 0; c < OWN; c++) {
      const float by = since * s.u[i][column + c];
#pragma unroll
      for (int k = 0; k < 4; k++) sum[c].v[k] = kr_fma(key.v[k], by, sum[c].v[k]);
    }
  }
#pragma unroll
  for (int c = 0; c < OWN; c++) *(kr_float4 *)(s.state[column + c] + row) = sum[c];
}

/* Neighbouring threads take neighbouring columns. */
template <int DK>
KR_DEV void move_states(const kr_view &v, const place &o, int64_t Dv, stage<DK> &s, int is_out) {
  for (int i = kr_thread(); i < COLUMNS * DK; i += THREADS) {
    const int c = i % COLUMNS, row = i / COLUMNS, exists = v.data && o.first + c < Dv;
    float *place = (float *)v.data + o.b * v.stride[0] + o.h * v.stride[1] + row * v.stride[2] +
                   (o.first + c) * v.stride[3];
    if (!is_out)
      s.state[c][row] = exists ? *place : 0.0f;
    else if (exists)
      *place = s.state[c][row];
  }
}

template <int DK, int F32>
KR_DEV void run_staged(const kr_delta_params &p, stage<DK> &now) {
  const kr_gated_delta_rule_args &a = p.a;
  const int block = kr_block_x(), h = block / p.parts % (int)a.H;
  const place o = {block / p.parts / (int)a.H, h, h / (int)(a.H / a.Hk), block % p.parts * COLUMNS};
  share<DK, F32> next = {};
  move_states<DK>(p.before, o, a.Dv, now, 0);
  read_share<DK, F32>(a, o, 0, next);
  for (int64_t first = 0; first < a.L; first += TOKENS) {
    put_share<DK, F32>(a, o, next, a.L - first, now);
    if (first + TOKENS < a.L) read_share<DK, F32>(a, o, first + TOKENS, next);
    kr_sync();
    multiply_stage<DK>(now, a.L - first);
    kr_sync();
    solve_stage<DK>(now);
    kr_sync();
    store_stage<DK>(a, o, now, first, a.L - first);
    move_on<DK>(now);
    kr_sync();
  }
  move_states<DK>(p.after, o, a.Dv, now, 1);
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_gated_delta_64(const kr_delta_params p) {
  KR_SHARED stage<64> now;
  if (p.a.q.dtype == KRAIT_F32) run_staged<64, 1>(p, now);
  else run_staged<64, 0>(p, now);
}
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_gated_delta_128(const kr_delta_params p) {
  KR_SHARED stage<128> now;
  if (p.a.q.dtype == KRAIT_F32) run_staged<128, 1>(p, now);
  else run_staged<128, 0>(p, now);
}
