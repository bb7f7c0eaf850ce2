/* scan_channels_last_params.c: which calls the channels-last scan kernels accept (selective_scan_channels_last.cu,
 * selective_scan_channels_last_bwd.cu), how time is chunked for them, and their shared memory. */
#include "scan_host.h"

static int is_near(int64_t step) { return step > -(1ll << 28) && step < 1ll << 28; }
static int is_last(const kr_scan_params *p, const kr_rows *v) {
  return !v->data || (v->row == 1 && v->dtype == p->u.dtype && is_near(v->t));
}

/* The largest of 16, 4 and 2 bytes that divides an address and its strides. */
static int32_t alignment(const void *data, int64_t strides, int64_t element_bytes) {
  const uint64_t bits = (uint64_t)(uintptr_t)data | (uint64_t)(strides * element_bytes);
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 2;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t rows_alignment(const kr_rows *v) {
  const int64_t bytes = v->dtype == KRAIT_F32 ? 4 : 2;
  return v->data ? least(alignment(v->data, v->b, bytes), alignment(NULL, v->t, bytes)) : 16;
}

static int32_t mat_alignment(const kr_scan_mat *m) {
  const int64_t bytes = m->dtype == KRAIT_F32 ? 4 : 2;
  return m->n == 1
             ? least(alignment(m->data, m->b, bytes), least(alignment(NULL, m->g, bytes), alignment(NULL, m->t, bytes)))
             : 2;
}

/* Limits of selective_scan_channels_last.cu; with is_gradient, also those of selective_scan_channels_last_bwd.cu. */
const char *kr_scan_channels_last_refuse(const kr_scan_params *p, int is_gradient) {
  const kr_rows *const rows[] = {&p->u, &p->delta, &p->z, &p->out, &p->dout, &p->du, &p->ddelta, &p->dz};
  if (p->seq_idx || p->offsets) return "packed sequences";
  if (p->mixed) return "B or C differ in type from u";
  if (p->add.data) return "both directions in one call";
  if (p->N > (is_gradient ? 16 : 64)) return is_gradient ? "N above 16" : "N above 64";
  if (p->L <= 8 || p->L >= 1 << 28) return "8 steps or less, or 2^28 or more";
  if (p->D_group < 8) return "fewer than 8 channels";
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    if (!is_last(p, rows[i]))
      return "rows not channels-last, of mixed types, or with a time stride of 2^28 elements or more";
  return is_near(p->B_mat.t) && is_near(p->C_mat.t) ? NULL : "B or C with a time stride of 2^28 elements or more";
}

/* Time per step of `blocks` on a multiprocessor, which holds four at a time, relative to one block alone: they hide
 * each other's latency. Gradient: fewer than 2.2 blocks take as long as 2.2. */
static double time_of_step(int64_t blocks, int is_gradient) {
  if (is_gradient) return blocks > 2.2 ? (double)blocks : 2.2;
  const int64_t rest = blocks % 4;
  return (double)(blocks / 4) * 2.05 + (rest ? 0.65 + 0.35 * (double)rest : 0);
}

/* Blocks of 32 channels; time is chunked where that leaves multiprocessors idle, although chunking walks every step
 * twice. BEGIN: a block's start-up cost in steps, measured on an H200. */
static void cut_last(kr_scan_params *p, int64_t n_multiprocessors, int is_gradient) {
  enum { BEGIN = 32, LEAST = 64, MOST_CHUNKS = 256 };
  const double passes = is_gradient ? 1.1 : 1.8;
  p->S = 4, p->T_shift = 2;
  while (p->S << p->T_shift < p->N) p->T_shift++;
  p->T = 1 << p->T_shift, p->N_padded = 4 * p->T;
  p->blocks_per_group = (int32_t)((p->D_group + KR_SCAN_CHANNELS_LAST_CHANNELS - 1) / KR_SCAN_CHANNELS_LAST_CHANNELS);
  const int64_t blocks = p->B * p->G * p->blocks_per_group;
  int64_t chunks = 1;
  double best = 0;
  for (int64_t c = 1; c <= MOST_CHUNKS && (c == 1 || p->L >= c * LEAST); c++) {
    const int64_t tiles = ((p->L + c - 1) / c + KR_SCAN_CHANNELS_LAST_TILE - 1) / KR_SCAN_CHANNELS_LAST_TILE;
    const double steps = is_gradient ? (double)p->L / (double)c : (double)(tiles * KR_SCAN_CHANNELS_LAST_TILE),
                 cost = (c > 1 ? passes : 1) * time_of_step((blocks * c + n_multiprocessors - 1) / n_multiprocessors,
                                                            is_gradient) * (steps + BEGIN);
    if (c == 1 || cost < (is_gradient ? 0.9 : 0.95) * best) chunks = c, best = cost;
  }
  p->chunk = ((p->L + chunks - 1) / chunks + KR_SCAN_CHANNELS_LAST_TILE - 1) / KR_SCAN_CHANNELS_LAST_TILE *
             KR_SCAN_CHANNELS_LAST_TILE;
  p->n_chunks = (int32_t)((p->L + p->chunk - 1) / p->chunk);
}

/* The common case, for kernels without further checks: all tensors present, aligned, whole tiles; forward: 16-bit. The
 * gradient uses 32-bit step offsets. */
static int is_usual(const kr_scan_params *p, int is_gradient) {
  const kr_rows *const rows[] = {&p->u, &p->delta, &p->z, is_gradient ? &p->dout : &p->out, &p->du, &p->ddelta, &p->dz};
  const int n_rows = is_gradient ? 7 : 4, tile = is_gradient ? KR_SCAN_BWD_TILE : KR_SCAN_CHANNELS_LAST_TILE;
  for (int i = 0; i < n_rows; i++)
    if (!rows[i]->data || (is_gradient && (rows[i]->t < 0 || p->L * rows[i]->t >= 1ll << 29))) return 0;
  return (is_gradient ? p->n_chunks == 1 : p->u.dtype != KRAIT_F32) && p->align == 16 && p->align_bc == 16 &&
         p->softplus && p->N == 16 && p->D_group % KR_SCAN_CHANNELS_LAST_CHANNELS == 0 && p->L % tile == 0;
}

int kr_scan_channels_last_params(kr_scan_params *p, const krait_ctx *ctx, int is_gradient) {
  const kr_rows *const rows[] = {&p->u, &p->delta, &p->z, &p->out, &p->dout, &p->du, &p->ddelta, &p->dz};
  if (kr_scan_channels_last_refuse(p, is_gradient) ||
      (is_gradient ? kr_scan_channels_last_back_bytes(p) : kr_scan_channels_last_bytes(p, KR_SCAN_OUTPUT)) >
          kr_cuda_info(ctx->cuda)->shared_bytes)
    return 0;
  p->align = p->G > 1 ? alignment(NULL, p->D_group, p->u.dtype == KRAIT_F32 ? 4 : 2) : 16,
  p->align_bc = least(mat_alignment(&p->B_mat), mat_alignment(&p->C_mat));
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) p->align = least(p->align, rows_alignment(rows[i]));
  cut_last(p, kr_cuda_info(ctx->cuda)->n_multiprocessors, is_gradient);
  p->channels_last = 1;
  p->usual = is_usual(p, is_gradient);
  return 1;
}

/* Layout: selective_scan_channels_last_n16.cu. */
uint32_t kr_scan_channels_last_n16_bytes(void) {
  enum { TILE = KR_SCAN_CHANNELS_LAST_TILE, CHANNELS = KR_SCAN_CHANNELS_LAST_N16_CHANNELS, STATES = 16 };
  const int raw = (TILE + TILE / 4) * CHANNELS / 2, values = CHANNELS * (TILE + 4);
  return (uint32_t)(3 * raw + TILE * 3 * STATES + 6 * values) * 4;
}

/* Layout: scan_last. */
uint32_t kr_scan_channels_last_bytes(const kr_scan_params *p, kr_scan_walk walk) {
  const int raw = KR_SCAN_CHANNELS_LAST_TILE *
                  (KR_SCAN_CHANNELS_LAST_CHANNELS * (p->u.dtype == KRAIT_F32 ? 4 : 2) / 4 + 4),
            values = KR_SCAN_CHANNELS_LAST_CHANNELS * (KR_SCAN_CHANNELS_LAST_TILE + 4);
  const int inputs = walk == KR_SCAN_STATES   ? 2
                     : walk == KR_SCAN_OUTPUT ? 3
                                              : 4,
            arrays = walk == KR_SCAN_STATES   ? 2
                     : walk == KR_SCAN_OUTPUT ? 6
                                              : 3;
  return (uint32_t)(inputs * raw + arrays * values +
                    KR_SCAN_CHANNELS_LAST_TILE * p->N_padded * (walk == KR_SCAN_STATES ? 1 : 2)) *
         4;
}

/* Layout: selective_scan_channels_last_bwd.cu. */
uint32_t kr_scan_channels_last_back_bytes(const kr_scan_params *p) {
  enum {
    TILE = KR_SCAN_BWD_TILE,
    WARPS = KR_SCAN_THREADS / 32,
    STATES = 16,
    PARTS = TILE * (8 * (2 * STATES + 4) + 8)
  };
  const int raw = TILE * (KR_SCAN_CHANNELS_LAST_CHANNELS * (p->u.dtype == KRAIT_F32 ? 4 : 2) / 4 + 4),
            values = KR_SCAN_CHANNELS_LAST_CHANNELS * (TILE + 4);
  return (uint32_t)(4 * raw + (3 + 3 * WARPS) * values + TILE * 2 * STATES + PARTS) * 4;
}
