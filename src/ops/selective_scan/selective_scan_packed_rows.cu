/* selective_scan_packed_rows.cu: the forward scan, common case (selective_scan_ref.c has the equation): real A, B and C
 * per time step, one type, rows along time in aligned 16-byte packs, forward with unit stride; states over T lanes of
 * four. _any, for N up to 16: unaligned rows, of any length (scan_packed_rows.cuh). kr_scan_packed_rows_t{4,8,16} y of
 * one chunk per block from the chunk's first state kr_scan_packed_rows_state_t{4,8,16}  the chunk's last state from
 * zero, and its sum of dt kr_scan_packed_rows_sweep_t{4,8,16}  for the gradient: the state before every 8 steps
 *   kr_scan_packed_rows_cut_t{4,8,16}    the same if chunked, from zero: last states, sums of dt, and the gradient of
 * the chunk's first state from zero at its end, which is the sum of g C times all decays up to there A warp holds 2 *
 * 32 / T channels. Its lanes copy packs of their rows asynchronously to slots of their own (the next tile's while this
 * one is processed), put dt and dt u into the warp's part of shared memory as float32, and read y there; only B and C,
 * transposed to (step, state), are shared by the block, double-buffered, so that a tile takes one barrier. Lane bits:
 * lowest, group; next log2 T, state; rest, group: neighbours by bit 0 read the same B, by bit 1 the same dt, which
 * halves the wavefronts of a 16-byte read. A lane in the upper half of its group has its two channels swapped, so that
 * the halves exchange sums without selects. */
#include "scan_packed_rows.cuh"

enum whole_mode { OUTPUT, STATE, SWEEP, CUT };
enum { PACKS = KR_SCAN_PACKED_ROWS_PACKS, TL = PACKS * E, WIDTH = TL + 4, THREADS = KR_SCAN_THREADS };

typedef struct whole_place {
  int64_t b, d0, begin, end; /* d0: first channel of the warp; steps of the chunk */
  int chunk, g, n_channels;  /* valid channels of this warp */
  int thread, lane, group, slot, swap;
} whole_place;

KR_DEV whole_place place_warp(const kr_scan_params &p, const int T) {
  whole_place w;
  const int x = kr_block_x(), per_batch = p.blocks_per_group * p.G, log_T = T == 4 ? 2 : T == 8 ? 3 : 4;
  w.b = x / per_batch;
  w.g = x % per_batch / p.blocks_per_group;
  w.thread = kr_thread();
  w.lane = w.thread & 31;
  w.slot = w.lane >> 1 & (T - 1);
  w.group = (w.lane & 1) | w.lane >> (1 + log_T) << 1;
  w.swap = w.slot / (T / 2);
  const int64_t c0 = (int64_t)(x % p.blocks_per_group) * (2 * THREADS / T) + w.thread / 32 * (64 / T),
                left = p.D_group - c0;
  w.d0 = w.g * p.D_group + c0;
  w.n_channels = left < 0 ? 0 : (int)min64(64 / T, left);
  w.chunk = kr_block_y();
  w.begin = w.chunk * p.chunk;
  w.end = min64(p.L, w.begin + p.chunk);
  return w;
}

/* A warp's rows of a tile: lane / PACKS + i * (32 / PACKS) is the lane's row i, lane % PACKS its pack. */
KR_DEV int n_rows(const int T) { return (64 / T * PACKS + 31) / 32; }

/* Channel c of 2 of a group is row group + 32 / T * c of the warp; the second half is offset by 16 banks. */
KR_DEV int second(const int T) { return 32 / T * WIDTH + 16; }
KR_DEV int warp_floats(const int T, const int ANY) { return 2 * second(T) - (ANY ? 16 : 0); }
KR_DEV int at_row(const int T, int row) { return row * WIDTH + (row >= 32 / T ? 16 : 0); }

/* One of a lane's rows in global memory, and its 16-byte slot in shared memory; ANY: a row's slots are followed by one
 * for the next block. */
typedef struct whole_row {
  const char *from;
  kr_raw16 *place;
} whole_row;

KR_DEV int n_places(const int T, const int ANY) {
  return ANY ? THREADS / 32 * (64 / T) * (PACKS + 1) : n_rows(T) * THREADS;
}

KR_DEV whole_row row_of(const kr_rows &v, const whole_place &w, const int ANY, int i, kr_raw16 *places) {
  const int row = w.lane / PACKS + i * (32 / PACKS);
  const int64_t offset = w.b * v.b + (w.d0 + row) * v.row + w.begin + w.lane % PACKS * E;
  if (ANY)
    return {(const char *)v.data + offset * (16 / E),
            places + (w.thread / 32 * (32 / PACKS) * n_rows(4) + row) * (PACKS + 1) + w.lane % PACKS};
  return {(const char *)v.data + offset * (16 / E), places + i * THREADS + w.thread};
}

/* left: steps from the lane's pack to the chunk's end; not ANY: whether there are any. inside: all packs of the tile,
 * and the next one, are in range. */
KR_DEV void copy_row(const int ANY, const whole_place &w, const whole_row &r, int exists, int left, int inside,
                     int begins) {
  const int at = w.lane % PACKS;
  if (ANY)
    copy_anywhere(r.place, r.place + 1, r.from, exists, left * (16 / E), at == PACKS - 1, inside, begins && at == 0);
  else copy_pack(r.place, r.from, exists && left > 0);
}

KR_DEV kr_raw16 read_row(const int ANY, const whole_row &r) {
  return ANY ? read_anywhere(r.place, r.place + 1, misfit(r.from)) : *r.place;
}

/* B and C of a tile: pack id is row id % (8 T), steps id / (8 T) * E ... */
KR_DEV int bc_rows(const int T, const int MODE) { return (MODE == OUTPUT || MODE == CUT ? 8 : 4) * T; }
KR_DEV int n_bc(const int T, const int MODE) { return bc_rows(T, MODE) * PACKS / THREADS; }

KR_DEV void copy_bc(const kr_scan_params &p, const whole_place &w, const int T, const int MODE, int64_t t0,
                    kr_raw16 *places) {
  const int rows = bc_rows(T, MODE);
#pragma unroll
  for (int i = 0; i < n_bc(T, MODE) || i == 0; i++) {
    const int id = w.thread + i * THREADS, r = id % rows, is_C = r >= 4 * T, n = is_C ? r - 4 * T : r;
    if (id >= rows * PACKS) break;
    const kr_scan_mat &m = is_C ? p.C_mat : p.B_mat;
    const int64_t t = t0 + id / rows * E;
    copy_pack(places + id, (const char *)m.data + (w.b * m.b + w.g * m.g + n * m.n + t) * (16 / E),
              n < p.N && t < w.end);
  }
}

KR_DEV void turn_bc(const whole_place &w, const int T, const int MODE, const kr_raw16 *places, float *s_bc) {
  const int rows = bc_rows(T, MODE);
#pragma unroll
  for (int i = 0; i < n_bc(T, MODE) || i == 0; i++) {
    const int id = w.thread + i * THREADS;
    if (id >= rows * PACKS) break;
    const kr_raw16 raw = places[id];
    float *to = s_bc + id / rows * E * rows + id % rows;
#pragma unroll
    for (int k = 0; k < E; k++) to[k * rows] = pack_at(raw, k, KR_DTYPE);
  }
}

/* ANY: the lane's pack of B or C, row id / PACKS, so that one warp has a whole row. The blocks use the padding of the
 * rows of s_dt and the next arrays, `extra` if that is too little. Every four steps of s_bc are padded, too: a warp's
 * transpose is conflict-free. */
typedef struct whole_bc {
  kr_raw16 *place, *next;
  int row, at;
} whole_bc;

KR_DEV int bc_gap(const int ANY) { return ANY ? 128 / TL : 0; }
KR_DEV int bc_floats(const int T, const int MODE, const int ANY) {
  return TL * bc_rows(T, MODE) + TL / 4 * bc_gap(ANY);
}

KR_DEV kr_raw16 *gap_at(const int T, float *s_all, unsigned id) {
  const unsigned n_rows = 64 / T; /* of a warp; the next array's warps follow those of the first */
  return (kr_raw16 *)(s_all + id / n_rows * warp_floats(T, 1) + at_row(T, (int)(id % n_rows)) + TL);
}

KR_DEV whole_bc bc_of(const int T, const int MODE, unsigned thread, float *s_all, kr_raw16 *extra) {
  const unsigned r = thread / PACKS, after = bc_rows(T, MODE) * PACKS + r;
  kr_raw16 *const place = gap_at(T, s_all, thread), *const behind =
                                                        MODE == OUTPUT ? extra + r : gap_at(T, s_all, after);
  return {place, thread % PACKS < PACKS - 1 ? place + WIDTH / 4 : behind, (int)r, (int)(thread % PACKS)};
}

KR_DEV const char *bc_from(const kr_scan_params &p, const whole_place &w, const int T, const whole_bc &s) {
  const int is_C = s.row >= 4 * T, n = is_C ? s.row - 4 * T : s.row;
  const kr_scan_mat &m = is_C ? p.C_mat : p.B_mat;
  return (const char *)m.data + (w.b * m.b + w.g * m.g + n * m.n + w.begin + s.at * E) * (16 / E);
}

KR_DEV void copy_bc_any(const kr_scan_params &p, const int T, const int MODE, const whole_bc &s, const char *from,
                        int left_of_tile, int inside, int begins) {
  const int n = s.row >= 4 * T ? s.row - 4 * T : s.row;
  if (s.row < bc_rows(T, MODE))
    copy_anywhere(s.place, s.next, from, n < p.N, (left_of_tile - s.at * E) * (16 / E), s.at == PACKS - 1, inside,
                  begins && s.at == 0);
}

KR_DEV void turn_bc_any(const int T, const int MODE, const whole_bc &s, const char *from, float *s_bc) {
  const int rows = bc_rows(T, MODE);
  if (s.row >= rows) return;
  const kr_raw16 raw = read_anywhere(s.place, s.next, misfit(from));
  float *to = s_bc + s.at * (E * rows + E / 4 * bc_gap(1)) + s.row;
#pragma unroll
  for (int k = 0; k < E; k++) to[k * rows + k / 4 * bc_gap(1)] = pack_at(raw, k, KR_DTYPE);
}

KR_DEV void put_pack(float *to, const float (&v)[E]) {
#pragma unroll
  for (int half = 0; half < E; half += 4)
    *(kr_float4 *)(to + half) = kr_float4{{v[half], v[half + 1], v[half + 2], v[half + 3]}};
}

/* Stores y of a pack: plus D u, times silu(z); ANY: to shared memory. */
KR_DEV void write_pack(const int ANY, const kr_scan_params &p, const float *s_y, const kr_raw16 &u, float skip,
                       const whole_row &z, char *to) {
  float y[E];
#pragma unroll
  for (int half = 0; half < E; half += 4) {
    const kr_float4 q = *(const kr_float4 *)(s_y + half);
#pragma unroll
    for (int k = 0; k < 4; k++) y[half + k] = kr_fma(skip, pack_at(u, half + k, KR_DTYPE), q.v[k]);
  }
  if (p.z.data) {
    const kr_raw16 raw = read_row(ANY, z);
#pragma unroll
    for (int k = 0; k < E; k++) y[k] *= gate_of(pack_at(raw, k, KR_DTYPE));
  }
  *(kr_raw16 *)to = round_pack(y);
}

/* ANY: stores the rows of the warp's tile at t0, held as packs in dt's space. */
KR_DEV void write_rows(const kr_scan_params &p, const whole_place &w, const int T, const float *s_dt, int64_t t0) {
  enum { WORDS = PACKS * 4, AT_ONCE = 32 / WORDS };
  const int word = w.lane % WORDS, left = (int)(w.end - t0);
  char *to = (char *)p.out.data + (w.b * p.out.b + (w.d0 + w.lane / WORDS) * p.out.row + t0) * (16 / E);
#pragma unroll
  for (int i = 0; i < 64 / T; i += AT_ONCE, to += AT_ONCE * p.out.row * (16 / E)) {
    const uint32_t *const from = (const uint32_t *)(s_dt + at_row(T, i + w.lane / WORDS)) + word;
    if (i + w.lane / WORDS < w.n_channels) store_word(to, word, WORDS, from[0], from[word < WORDS - 1], left);
  }
}

/* Four states of two channels; decays so far, and the gradient of the first states from the steps so far. */
typedef struct whole_state {
  float A[2][4], x[2][4], decay[2][4], carry[2][4];
} whole_state;

/* Whether the lane's decay k of its channel c is moved off the special-function unit, which bounds these kernels: one
 * in eight, as many as there are free issue slots. */
KR_DEV int is_moved(const int MODE, int c, int k) { return (MODE == STATE || MODE == SWEEP) && c == 1 && k == 0; }

/* The row within the warp of a lane's channel c. */
KR_DEV int row_of_channel(const whole_place &w, const int T, int c) { return w.group + 32 / T * (c ^ w.swap); }

KR_DEV void first_states(const kr_scan_params &p, const whole_place &w, const int T, const int MODE, whole_state &s) {
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = row_of_channel(w, T, c), n = w.slot * 4 + k, exists = row < w.n_channels && n < p.N;
      const int64_t d = w.d0 + row;
      s.A[c][k] = exists ? p.A[d * p.A_d + n * p.A_n] * KR_LOG2E : 0.0f;
      s.x[c][k] = s.carry[c][k] = 0.0f, s.decay[c][k] = 1.0f;
      if (exists && MODE != STATE && MODE != CUT) {
        if (MODE == OUTPUT && p.n_chunks > 1)
          s.x[c][k] = p.chunk_state[((w.b * p.n_chunks + w.chunk) * p.D + d) * p.N_padded + n];
        else if (p.initial.data) s.x[c][k] = p.initial.data[w.b * p.initial.b + d * p.initial.d + n * p.initial.n];
      }
      if (is_moved(MODE, c, k) && s.A[c][k] != s.A[c][k]) s.x[c][k] = s.A[c][k]; /* exp2_of_product loses NaN */
    }
}

KR_DEV void last_states(const kr_scan_params &p, const whole_place &w, const int T, const int MODE,
                        const whole_state &s) {
  if (MODE == SWEEP || (MODE == OUTPUT && (!p.last.data || w.chunk + 1 < p.n_chunks))) return;
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = row_of_channel(w, T, c), n = w.slot * 4 + k;
      const int64_t d = w.d0 + row;
      if (row >= w.n_channels) continue;
      const int64_t at = ((w.b * p.n_chunks + w.chunk) * p.D + d) * p.N_padded + n;
      if (MODE == CUT) p.chunk_carry[at] = s.carry[c][k];
      if (MODE) p.chunk_state[at] = s.x[c][k];
      else if (n < p.N) p.last.data[w.b * p.last.b + d * p.last.d + n * p.last.n] = s.x[c][k];
    }
}

/* Stores the lane's states; `to` is at its first channel. */
KR_DEV void keep_states(const whole_place &w, const int T, const whole_state &s, float *to) {
#pragma unroll
  for (int c = 0; c < 2; c++)
    if (row_of_channel(w, T, c) < w.n_channels)
      *(kr_float4 *)(to + (c ? w.swap ? -32 / T * 4 * T : 32 / T * 4 * T : 0)) =
          kr_float4{{s.x[c][0], s.x[c][1], s.x[c][2], s.x[c][3]}};
}

/* Stores the sum of dt since the chunk's start before every 8 steps of a row; this lane's pack begins at t. */
KR_DEV void keep_sums(const kr_scan_params &p, const whole_place &w, int64_t t, int exists, int64_t d,
                      const float (&dt)[E], float &sum) {
  float own = 0, before = 0;
#pragma unroll
  for (int k = 0; k < E; k++) own += dt[k];
#pragma unroll
  for (int by = 1; by < PACKS; by++) {
    const float other = kr_shuffle_up(own, by, PACKS);
    before += w.lane % PACKS >= by ? other : 0.0f;
  }
  if (exists && t % KR_SCAN_KEPT == 0) p.kept_dt[(w.b * p.n_kept + t / KR_SCAN_KEPT) * p.D + d] = sum + before;
  sum += sum_packs(PACKS, own);
}

/* Four steps. `near`: the lane's first channel in s_dt; far_by: offset of its other channel; by: offset from dt to dt
 * u, and on to g. */
KR_DEV void advance4(const int T, const int MODE, const float *near, int far_by, int by, const float *bc,
                     whole_state &s, kr_float4 &y) {
  const int rows = bc_rows(T, MODE);
  kr_float4 dt[2], du[2], g[2];
  dt[0] = *(const kr_float4 *)near, dt[1] = *(const kr_float4 *)(near + far_by);
  du[0] = *(const kr_float4 *)(near + by), du[1] = *(const kr_float4 *)(near + by + far_by);
  if (MODE == CUT) g[0] = *(const kr_float4 *)(near + 2 * by), g[1] = *(const kr_float4 *)(near + 2 * by + far_by);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const kr_float4 B = *(const kr_float4 *)(bc + i * rows);
    float sum[2];
    kr_float4 C;
    if (rows == 8 * T) C = *(const kr_float4 *)(bc + i * rows + 4 * T);
#pragma unroll
    for (int c = 0; c < 2; c++) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float decay =
            is_moved(MODE, c, k) ? exp2_of_product(dt[c].v[i], s.A[c][k]) : kr_exp2(dt[c].v[i] * s.A[c][k]);
        s.x[c][k] = kr_fma(decay, s.x[c][k], du[c].v[i] * B.v[k]);
        if (MODE == OUTPUT) sum[c] = k ? kr_fma(C.v[k], s.x[c][k], sum[c]) : C.v[0] * s.x[c][0];
        if (MODE == CUT)
          s.decay[c][k] *= decay, s.carry[c][k] = kr_fma(s.decay[c][k], g[c].v[i] * C.v[k], s.carry[c][k]);
      }
    }
    if (!MODE) y.v[i] = sum[0] + kr_shuffle_xor(sum[1], T);
  }
  if (MODE) return;
#pragma unroll
  for (int lane = T / 2; lane >= 2; lane /= 2) {
#pragma unroll
    for (int i = 0; i < 4; i++) y.v[i] += kr_shuffle_xor(y.v[i], lane);
  }
}

/* g = dout silu(z) of a pack. */
KR_DEV void output_gradients(const kr_scan_params &p, const kr_raw16 &dout, const kr_raw16 &z, float (&g)[E]) {
#pragma unroll
  for (int k = 0; k < E; k++) g[k] = pack_at(dout, k, KR_DTYPE);
  if (!p.z.data) return;
#pragma unroll
  for (int k = 0; k < E; k++) g[k] *= kr_silu(pack_at(z, k, KR_DTYPE));
}

KR_DEV void scan_whole(const kr_scan_params &p, const int T, const int MODE, const int ANY) {
  KR_DYNAMIC_SHARED(shared);
  const whole_place w = place_warp(p, T);
  const int R = n_rows(T), by = THREADS / 32 * warp_floats(T, ANY);
  kr_raw16 *const places = (kr_raw16 *)shared, *const z_places = places + 2 * n_places(T, ANY),
                  *const dout_places = z_places + (MODE == OUTPUT || MODE == CUT ? n_places(T, ANY) : 0);
  kr_raw16 *const bc_places = dout_places + (MODE == CUT ? n_places(T, ANY) : 0);
  float *const s_all = (float *)(bc_places + (!ANY             ? bc_rows(T, MODE) * PACKS
                                              : MODE == OUTPUT ? bc_rows(T, MODE)
                                                               : 0)),
               *const s_dt = s_all + w.thread / 32 * warp_floats(T, ANY);
  float *s_bc = s_all + (MODE == CUT ? 3 : 2) * by, *other = s_bc + bc_floats(T, MODE, ANY);
  float *const near = s_dt + at_row(T, w.group) + (w.swap ? second(T) : 0);
  const int far_by = w.swap ? -second(T) : second(T), pack = w.lane % PACKS * E;
  whole_row u_row[2], delta_row[2], z_row[2], dout_row[2];
  char *to[2];
  float bias[2], skip[2], sum_dt[2] = {0, 0};
  int exists[2];
  whole_state s;
  first_states(p, w, T, MODE, s);
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = w.lane / PACKS + i * (32 / PACKS);
    exists[i] = row < w.n_channels;
    u_row[i] = row_of(p.u, w, ANY, i, places), delta_row[i] = row_of(p.delta, w, ANY, i, places + n_places(T, ANY));
    if (MODE == OUTPUT || MODE == CUT) z_row[i] = row_of(p.z.data ? p.z : p.u, w, ANY, i, z_places);
    if (MODE == OUTPUT) to[i] = (char *)row_of(p.out, w, ANY, i, places).from;
    if (MODE == CUT) dout_row[i] = row_of(p.dout.data ? p.dout : p.u, w, ANY, i, dout_places);
    bias[i] = p.bias && exists[i] ? p.bias[(w.d0 + row) * p.bias_stride] : 0.0f;
    skip[i] = !MODE && p.D_vec && exists[i] ? p.D_vec[(w.d0 + row) * p.D_stride] : 0.0f;
    const int left = ANY ? (int)(w.end - w.begin) - pack : w.begin + pack < w.end;
    copy_row(ANY, w, u_row[i], exists[i], left, 0, 1);
    copy_row(ANY, w, delta_row[i], exists[i], left, 0, 1);
    if (MODE == CUT && p.z.data) copy_row(ANY, w, z_row[i], exists[i], left, 0, 1);
    if (MODE == CUT) copy_row(ANY, w, dout_row[i], exists[i] && p.dout.data, left, 0, 1);
  }
  const char *bc_next = 0;
  if (ANY) {
    const whole_bc own = bc_of(T, MODE, (unsigned)w.thread, s_all, bc_places);
    bc_next = bc_from(p, w, T, own);
    copy_bc_any(p, T, MODE, own, bc_next, (int)(w.end - w.begin), 0, 1);
  } else copy_bc(p, w, T, MODE, w.begin, bc_places);
  kr_commit_copies();
  if (MODE == OUTPUT) {
#pragma unroll
    for (int i = 0; i < R; i++)
      if (p.z.data)
        copy_row(ANY, w, z_row[i], exists[i], ANY ? (int)(w.end - w.begin) - pack : w.begin + pack < w.end, 0, 1);
    kr_commit_copies();
  }
  float *kept = MODE >= SWEEP ? p.kept_state +
                                    ((w.b * p.n_kept + w.begin / KR_SCAN_KEPT) * p.D + w.d0 + row_of_channel(w, T, 0)) *
                                        p.N_padded +
                                    w.slot * 4
                              : 0;
  const int64_t kept_end = w.begin + (w.end - w.begin + KR_SCAN_BWD_TILE - 1) / KR_SCAN_BWD_TILE *
                                         KR_SCAN_BWD_TILE; /* the gradient works in whole tiles */
  int left = (int)(w.end - w.begin) - pack; /* steps from this lane's pack to the end */
  for (int64_t t0 = w.begin; t0 < w.end; t0 += TL, left -= TL) {
    kr_raw16 u[2];
    const int inside = t0 + 2 * TL + E <= w.end;
    if (MODE == OUTPUT) kr_copied<1>(); /* all but z has arrived */
    else kr_copied<0>();
    if (ANY) kr_sync_warp();
#pragma unroll
    for (int i = 0; i < R; i++) {
      float dt[E], du[E];
      u[i] = read_row(ANY, u_row[i]);
      step_sizes(p.softplus, read_row(ANY, delta_row[i]), bias[i], dt);
      if (t0 + TL > w.end) {
#pragma unroll
        for (int k = 0; k < E; k++) dt[k] = ANY ? until(dt[k], k, left) : left > 0 ? dt[k] : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < E; k++) {
        du[k] = dt[k] * pack_at(u[i], k, KR_DTYPE);
        if (MODE == STATE) sum_dt[i] += dt[k];
      }
      if (MODE == OUTPUT) keep_packed(u[i]);
      if (MODE == CUT)
        keep_sums(p, w, t0 + pack, exists[i] && t0 + pack < kept_end, w.d0 + w.lane / PACKS + i * (32 / PACKS), dt,
                  sum_dt[i]);
      float *const at = s_dt + at_row(T, w.lane / PACKS + i * (32 / PACKS)) + pack;
      if (w.lane / PACKS + i * (32 / PACKS) >= 64 / T) continue;
      put_pack(at, dt), put_pack(at + by, du);
      if (MODE == CUT)
        output_gradients(p, read_row(ANY, dout_row[i]), read_row(ANY, z_row[i]), dt), put_pack(at + 2 * by, dt);
    }
    whole_bc own;
    if (ANY) own = bc_of(T, MODE, (unsigned)thread_again(), s_all, bc_places), turn_bc_any(T, MODE, own, bc_next, s_bc);
    else turn_bc(w, T, MODE, bc_places, s_bc);
    if (ANY) kr_sync_warp(); /* others have read what this lane copied */
    if (t0 + TL < w.end) {
#pragma unroll
      for (int i = 0; i < R; i++) {
        u_row[i].from += 16 * PACKS, delta_row[i].from += 16 * PACKS;
        if (MODE == CUT) dout_row[i].from += 16 * PACKS, z_row[i].from += 16 * PACKS;
      }
      bc_next += 16 * PACKS;
#pragma unroll
      for (int in = 1; in >= 0; in--) {
        if (in != (ANY && inside)) continue;
#pragma unroll
        for (int i = 0; i < R; i++) {
          copy_row(ANY, w, u_row[i], exists[i], left - TL, in, 0);
          copy_row(ANY, w, delta_row[i], exists[i], left - TL, in, 0);
          if (MODE != CUT) continue;
          copy_row(ANY, w, dout_row[i], exists[i] && p.dout.data, left - TL, in, 0);
          copy_row(ANY, w, z_row[i], exists[i] && p.z.data, left - TL, in, 0);
        }
        if (ANY) copy_bc_any(p, T, MODE, own, bc_next, (int)(w.end - t0) - TL, in, 0);
      }
      if (!ANY) copy_bc(p, w, T, MODE, t0 + TL, bc_places);
    }
    kr_commit_copies();
    kr_sync();
    const int U = MODE == CUT
                      ? 1
                      : 2; /* groups of four steps per iteration: loads of the next need not wait for this one's sums */
    const float *step = near, *bc = s_bc + w.slot * 4;
#pragma unroll 1
    for (int k = 0; k < TL; k += 4 * U, step += 4 * U, bc += U * (4 * bc_rows(T, MODE) + bc_gap(ANY))) {
      kr_float4 y[2];
#pragma unroll
      for (int j = 0; j < U; j++) {
        if (MODE >= SWEEP && (k + 4 * j) % KR_SCAN_KEPT == 0 && t0 + k < kept_end)
          keep_states(w, T, s, kept), kept += p.D * p.N_padded;
        advance4(T, MODE, step + 4 * j, far_by, by, bc + j * (4 * bc_rows(T, MODE) + bc_gap(ANY)), s, y[j]);
      }
      if (MODE) continue;
      kr_sync_warp(); /* all lanes have read dt u before y overwrites it */
      if ((w.slot & (T / 2 - 1)) == 0) {
#pragma unroll
        for (int j = 0; j < U; j++) *(kr_float4 *)(step + 4 * j + by) = y[j];
      }
    }
    float *const swap = s_bc;
    s_bc = other, other = swap;
    kr_sync_warp();
    if (MODE) continue;
    kr_copied<1>(); /* z has arrived */
    if (ANY) kr_sync_warp();
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int row = w.lane / PACKS + i * (32 / PACKS);
      if (exists[i] && left > 0)
        write_pack(ANY, p, s_dt + by + at_row(T, row) + pack, u[i], skip[i], z_row[i],
                   ANY ? (char *)(s_dt + at_row(T, row)) + w.lane % PACKS * 16 : to[i]);
      to[i] += 16 * PACKS;
      if (!ANY && p.z.data && t0 + TL < w.end)
        z_row[i].from += 16 * PACKS, copy_row(ANY, w, z_row[i], exists[i], left - TL, inside, 0);
    }
    if (ANY) {
      kr_sync_warp();
#pragma unroll
      for (int i = 0; i < R; i++)
        if (p.z.data && t0 + TL < w.end)
          z_row[i].from += 16 * PACKS, copy_row(ANY, w, z_row[i], exists[i], left - TL, inside, 0);
      write_rows(p, w, T, s_dt, t0);
    }
    kr_commit_copies();
    kr_sync_warp(); /* y is read before the next tile's dt u overwrites it */
  }
  last_states(p, w, T, MODE, s);
  if (MODE == OUTPUT || MODE == SWEEP) return;
#pragma unroll
  for (int i = 0; i < R; i++) {
    if (MODE == STATE) sum_dt[i] = sum_packs(PACKS, sum_dt[i]);
    if (exists[i] && w.lane % PACKS == 0)
      p.chunk_dt[(w.b * p.n_chunks + w.chunk) * p.D + w.d0 + w.lane / PACKS + i * (32 / PACKS)] = sum_dt[i];
  }
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_t4(const kr_scan_params p) {
  scan_whole(p, 4, OUTPUT, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_t8(const kr_scan_params p) {
  scan_whole(p, 8, OUTPUT, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_t16(const kr_scan_params p) {
  scan_whole(p, 16, OUTPUT, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_state_t4(const kr_scan_params p) {
  scan_whole(p, 4, STATE, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_state_t8(const kr_scan_params p) {
  scan_whole(p, 8, STATE, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_state_t16(const kr_scan_params p) {
  scan_whole(p, 16, STATE, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_sweep_t4(const kr_scan_params p) {
  scan_whole(p, 4, SWEEP, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_sweep_t8(const kr_scan_params p) {
  scan_whole(p, 8, SWEEP, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_sweep_t16(const kr_scan_params p) {
  scan_whole(p, 16, SWEEP, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_cut_t4(const kr_scan_params p) {
  scan_whole(p, 4, CUT, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_cut_t8(const kr_scan_params p) {
  scan_whole(p, 8, CUT, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_cut_t16(const kr_scan_params p) {
  scan_whole(p, 16, CUT, 0);
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_any(const kr_scan_params p) {
  scan_whole(p, 4, OUTPUT, 1);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_state_any(const kr_scan_params p) {
  scan_whole(p, 4, STATE, 1);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_sweep_any(const kr_scan_params p) {
  scan_whole(p, 4, SWEEP, 1);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_cut_any(const kr_scan_params p) {
  scan_whole(p, 4, CUT, 1);
}
