/* mamba_decode_cuda.c: which calls the persistent kernel accepts, its params, and its launch: one for all phases where
 * all blocks can be co-resident, else one per phase. */
#include "cuda_impl.h"
#include "mamba_decode/mamba_decode_params.h"
#include "mamba_decode_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

enum { N_DEPTHS = 3, FIXED_BYTES = 4096 /* static shared memory of the kernel */ };
static const int depths[2][N_DEPTHS] = {{12, 6, 3}, {9, 5, 3}}; /* 16-bit, 8-bit weights */

/* ---- the params -------------------------------------------------------------------------------------------------- */

static kr_decode_matrix mamba_decode_matrix_of(const kr_view *v) {
  return (kr_decode_matrix){v->data, 2 * v->stride[0], 2 * v->stride[1], NULL, 0, 0};
}
static kr_decode_matrix words_of(const kr_view *v, const kr_view *scales) {
  return (kr_decode_matrix){v->data,      4 * v->stride[0],  4 * v->stride[1],
                            scales->data, scales->stride[0], scales->stride[1]};
}
static kr_decode_halves halves_of(const kr_view *v) {
  return (kr_decode_halves){v->data, v->stride[0], v->stride[1]};
}
static kr_decode_floats floats_of(const kr_view *v) {
  return (kr_decode_floats){v->data, v->stride[0], v->stride[1]};
}
static kr_decode_state state_of(const kr_view *v) {
  return (kr_decode_state){v->data, v->stride[0], v->stride[1], v->stride[2], v->stride[3], v->dtype == KRAIT_F32, 0};
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t share_mamba_decode(int64_t n, int64_t blocks) { return (n + blocks - 1) / blocks; }

static int64_t n_columns_of(const kr_mamba_decode_args *a) {
  return kr_has(&a->dt_proj) ? a->R + 2 * a->N : 2 * a->G * a->N + a->H;
}

kr_decode_params kr_mamba_decode_describe(const krait_ctx *ctx, const kr_mamba_decode_args *a) {
  const int64_t blocks = kr_cuda_info(ctx->cuda)->n_multiprocessors, is_second = !kr_has(&a->dt_proj),
                columns = n_columns_of(a), K = most(a->D, a->E);
  kr_decode_params p = {.in_proj = mamba_decode_matrix_of(&a->in_proj),
                      .x_proj = mamba_decode_matrix_of(&a->x_proj),
                      .dt_proj = mamba_decode_matrix_of(&a->dt_proj),
                      .out_proj = mamba_decode_matrix_of(&a->out_proj),
                      .norm = halves_of(&a->norm_weight),
                      .conv = halves_of(&a->conv_weight),
                      .conv_bias = halves_of(&a->conv_bias),
                      .gate_norm = halves_of(&a->gate_norm),
                      .dt_bias = floats_of(&a->dt_bias),
                      .A = floats_of(&a->A),
                      .D = floats_of(&a->Dvec),
                      .conv_state = state_of(&a->conv_state),
                      .ssm_state = state_of(&a->ssm_state),
                      .x = a->x.data,
                      .out = a->out.data,
                      .slots = a->state_batch_indices.data,
                      .x_row = a->x.stride[0],
                      .out_row = a->out.stride[0],
                      .slots_stride = a->state_batch_indices.stride[0],
                      .eps = a->eps,
                      .n_tokens = (int32_t)a->B,
                      .n_layers = (int32_t)a->Y,
                      .n_slots = (int32_t)a->n_states,
                      .width = (int32_t)a->D,
                      .inner = (int32_t)a->E,
                      .N = (int32_t)a->N,
                      .W = (int32_t)a->W,
                      .R = (int32_t)a->R,
                      .H = (int32_t)a->H,
                      .n_columns = (int32_t)columns,
                      .is_second = (int32_t)is_second};
  if (kr_has(&a->in_proj_qweight)) {
    p.in_proj = words_of(&a->in_proj_qweight, &a->in_proj_scales),
    p.out_proj = words_of(&a->out_proj_qweight, &a->out_proj_scales);
    p.x_proj = words_of(&a->x_proj_qweight, &a->x_proj_scales);
  }
  p.act_pitch = (int32_t)((2 * K + 127) / 128 * 128 + 64); /* tokens' rows start in different banks */
  p.act_bytes = (int32_t)(p.act_pitch * a->B);
  p.result_rows =
      (int32_t)((most(2 * share_mamba_decode(a->E, blocks) + (is_second ? share_mamba_decode(columns, blocks) : 0),
                      most(share_mamba_decode(columns, blocks), share_mamba_decode(a->D, blocks))) +
                 15) /
                16 * 16);
  p.phase_to = (int32_t)(a->Y * (is_second ? 3 : 4));
  const int64_t parts[] = {2 * share_mamba_decode(a->E, blocks) + (is_second ? share_mamba_decode(columns, blocks) : 0),
                           is_second ? 0 : share_mamba_decode(columns, blocks),
                           is_second ? 0 : share_mamba_decode(a->E, blocks), share_mamba_decode(a->D, blocks)};
  for (int i = 0; i < 4; i++) p.n_tiles += (int32_t)share_mamba_decode(parts[i], 16);
  p.head_width = (int32_t)(is_second ? a->E / a->H : 1);
  while (4 << p.lane_bits < a->N) p.lane_bits++;
  return p;
}

/* Shared memory without tile descriptors and kept operands. */
static uint64_t without_tiles(const kr_decode_params *p, int depth) {
  const uint64_t floats = (uint64_t)p->n_tokens * (uint64_t)(2 * KR_DECODE_WARPS * 16 + p->result_rows + p->n_columns) +
                          KR_DECODE_WARPS + KR_DECODE_MOST_TOKENS;
  const int unit = KR_DECODE_UNIT_BYTES + (p->in_proj.scales ? KR_DECODE_SCALE_BYTES : 0);
  return ((uint64_t)(KR_DECODE_WARPS * unit * depth + p->act_bytes) + 4 * floats + 15) / 16 * 16;
}

static uint64_t mamba_decode_shared_bytes(const kr_decode_params *p, int depth) {
  return without_tiles(p, depth) + (uint64_t)p->n_tiles * KR_DECODE_TILE_BYTES;
}

static uint64_t room_of(const krait_ctx *ctx) {
  return (uint64_t)kr_cuda_info(ctx->cuda)->shared_bytes - FIXED_BYTES;
}

/* Index of the deepest pipeline that fits; N_DEPTHS: none. */
static int depth_of(const krait_ctx *ctx, const kr_decode_params *p) {
  int i = 0;
  while (i < N_DEPTHS && mamba_decode_shared_bytes(p, depths[p->in_proj.scales != NULL][i]) > room_of(ctx)) i++;
  return i;
}

/* Uses the remaining shared memory to keep operands of units; returns the block's total. */
static uint64_t keep_units(const krait_ctx *ctx, kr_decode_params *p, int depth) {
  const uint64_t taken = mamba_decode_shared_bytes(p, depth), fit = (room_of(ctx) - taken) / KR_DECODE_KEPT_BYTES;
  p->tiles_at = (int32_t)without_tiles(p, depth), p->kept_at = (int32_t)taken;
  p->kept_units = fit < KR_DECODE_MOST_KEPT ? (int32_t)fit / 32 * 32 : KR_DECODE_MOST_KEPT;
  return taken + (uint64_t)p->kept_units * KR_DECODE_KEPT_BYTES;
}

/* ---- accepted calls ---------------------------------------------------------------------------------------------- */

/* Last dimension contiguous, other strides multiples of `elements`, data aligned to as many. */
static int lies_in(const kr_view *v, int n_dims, int64_t elements) {
  int64_t strides = 0;
  for (int i = 0; i + 1 < n_dims; i++) strides |= v->stride[i];
  return !v->data || (v->stride[n_dims - 1] == 1 && strides % elements == 0 &&
                      (uintptr_t)v->data % ((uintptr_t)elements * krait_dtype_bytes(v->dtype)) == 0);
}

static int is_of(const kr_view *v, int32_t dtype) { return !v->data || v->dtype == dtype; }

static const char *refuse_types(const kr_mamba_decode_args *a) {
  const kr_view *const halves[] = {&a->x,         &a->norm_weight,    &a->in_proj,       &a->conv_weight,
                                      &a->conv_bias, &a->x_proj,         &a->dt_proj,       &a->gate_norm,
                                      &a->out_proj,  &a->in_proj_scales, &a->x_proj_scales, &a->out_proj_scales};
  const int is_q8 = kr_has(&a->in_proj_qweight);
  if (a->x.dtype != KRAIT_F16 && (is_q8 || a->x.dtype != KRAIT_BF16))
    return is_q8 ? "x is not float16 beside weights of 8 bits" : "x is not of 16 bits";
  for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
    if (!is_of(halves[i], a->x.dtype)) return "weights of another type than x";
  const kr_view *const states[] = {&a->conv_state, &a->ssm_state};
  for (int i = 0; i < 2; i++)
    if (states[i]->dtype != KRAIT_F32 && states[i]->dtype != a->x.dtype) return "states of another 16-bit type than x";
  return NULL;
}

static const char *refuse_places(const kr_mamba_decode_args *a) {
  const int rows = lies_in(&a->in_proj, 3, 8) && lies_in(&a->x_proj, 3, 8) && lies_in(&a->dt_proj, 3, 8) &&
                   lies_in(&a->out_proj, 3, 8) && lies_in(&a->in_proj_qweight, 3, 4) &&
                   lies_in(&a->x_proj_qweight, 3, 4) && lies_in(&a->out_proj_qweight, 3, 4) &&
                   lies_in(&a->in_proj_scales, 3, 2) && lies_in(&a->x_proj_scales, 3, 2) &&
                   lies_in(&a->out_proj_scales, 3, 2);
  const int fours = lies_in(&a->x, 2, 4) && lies_in(&a->norm_weight, 2, 4) && lies_in(&a->gate_norm, 2, 4) &&
                    lies_in(&a->out, 2, 4) && lies_in(&a->ssm_state, 4, 4) &&
                    (!kr_has(&a->dt_proj) || lies_in(&a->A, 3, 4));
  const int ones = lies_in(&a->conv_weight, 3, 1) && lies_in(&a->conv_bias, 2, 1) && lies_in(&a->dt_bias, 2, 1) &&
                   lies_in(&a->Dvec, 2, 1) && (kr_has(&a->dt_proj) || lies_in(&a->A, 2, 1));
  return rows && fours && ones ? NULL : "weights or states do not lie together, or unaligned";
}

const char *kr_mamba_decode_refuse_tensors(const kr_mamba_decode_args *a) {
  const char *why = refuse_types(a);
  return why ? why : refuse_places(a);
}

const char *kr_mamba_decode_persistent_refuse(const krait_ctx *ctx, const void *args) {
  const kr_mamba_decode_args *a = args;
  const int64_t lanes = a->N / 4;
  const char *why = kr_mamba_decode_refuse_tensors(a);
  if (why) return why;
  if (a->B > KR_DECODE_MOST_TOKENS) return "more than 8 sequences";
  if (a->W > 4) return "more than 4 taps";
  if (!kr_has(&a->dt_proj) && a->G != 1) return "several groups";
  if (kr_has(&a->in_proj_qweight) && (a->D % 64 || a->E % 64))
    return "a width that is no multiple of 64 beside weights of 8 bits";
  if (a->D % 8 || a->E % 8 || a->R % 8) return "a width that is no multiple of 8";
  if (a->N % 4 || lanes > 32 || (lanes & (lanes - 1))) return "N is not 4, 8, 16, 32, 64 or 128";
  if (a->D > 1 << 20 || a->E > 1 << 20 || a->R > 1 << 20 || a->Y > 1 << 16 || a->n_states >= INT32_MAX ||
      a->G * a->N > 1 << 20)
    return "too large for 32-bit numbers";
  const kr_decode_params p = kr_mamba_decode_describe(ctx, a);
  return depth_of(ctx, &p) < N_DEPTHS ? NULL : "a block's memory does not hold its part";
}

/* ---- scratch and launch ------------------------------------------------------------------------------------------ */

/* Assigns the scratch buffers that carry data between phases; returns their size. */
static uint64_t lay_out_mamba_decode(kr_decode_params *p, char *scratch) {
  const uint64_t channels = (uint64_t)p->n_tokens * (uint64_t)p->inner,
                 sizes[] = {sizeof *p->done, 2 * channels, 4 * channels, 4 * channels,
                            4 * (uint64_t)p->n_tokens * (uint64_t)p->n_columns};
  uint64_t at[6] = {0};
  for (int i = 0; i < 5; i++) at[i + 1] = at[i] + kr_scratch_round(sizes[i]);
  if (scratch)
    p->done = (int32_t *)scratch, p->u = (uint16_t *)(scratch + at[1]), p->z = (float *)(scratch + at[2]),
    p->y = (float *)(scratch + at[3]), p->columns = (float *)(scratch + at[4]);
  return at[5];
}

uint64_t kr_mamba_decode_persistent_scratch(const krait_ctx *ctx, const void *args) {
  kr_decode_params p = kr_mamba_decode_describe(ctx, args);
  return lay_out_mamba_decode(&p, NULL);
}

int32_t kr_mamba_decode_persistent(const krait_ctx *ctx, const void *args) {
  static const kr_kernel q8[N_DEPTHS] = {{"mamba_decode_f16", "kr_mamba_decode_q8_9"},
                                         {"mamba_decode_f16", "kr_mamba_decode_q8_5"},
                                         {"mamba_decode_f16", "kr_mamba_decode_q8_3"}};
  static const kr_kernel kernels[2][N_DEPTHS] = {{{"mamba_decode_f16", "kr_mamba_decode_12"},
                                                  {"mamba_decode_f16", "kr_mamba_decode_6"},
                                                  {"mamba_decode_f16", "kr_mamba_decode_3"}},
                                                 {{"mamba_decode_bf16", "kr_mamba_decode_12"},
                                                  {"mamba_decode_bf16", "kr_mamba_decode_6"},
                                                  {"mamba_decode_bf16", "kr_mamba_decode_3"}}};
  const kr_mamba_decode_args *a = args;
  if (a->B == 0) return KRAIT_OK;
  kr_decode_params p = kr_mamba_decode_describe(ctx, a);
  const int depth = depth_of(ctx, &p), n_phases = p.phase_to, is_q8 = p.in_proj.scales != NULL;
  const kr_kernel *kernel = is_q8 ? &q8[depth] : &kernels[a->x.dtype == KRAIT_BF16][depth];
  kr_grid grid = {.x = (uint32_t)kr_cuda_info(ctx->cuda)->n_multiprocessors,
                  .block = KR_DECODE_THREADS,
                  .shared_bytes = (uint32_t)keep_units(ctx, &p, depths[is_q8][depth]),
                  .stream = a->call.stream};
  lay_out_mamba_decode(&p, a->call.scratch);
  if (kr_cuda_has_cooperative(ctx->cuda)) {
    grid.is_cooperative = 1;
    KR_TRY(kr_cuda_fill(ctx->cuda, p.done, 0, sizeof *p.done, a->call.stream));
    return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, kernel, &grid, &p, sizeof p);
  }
  for (int phase = 0; phase < n_phases; phase++) {
    p.phase_from = phase, p.phase_to = phase + 1;
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, kernel, &grid, &p, sizeof p));
  }
  return KRAIT_OK;
}
