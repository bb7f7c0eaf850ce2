/* mamba_decode_hopper_cuda.c: which calls the streaming kernel accepts, its params, and its launch: all blocks
 * together. */
#include "cuda_impl.h"
#include "mamba_decode/mamba_decode_stream.h"
#include "mamba_decode_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

enum { TEAMS = KR_STREAM_WORKERS / 128 /* A team's next stage is so many further: its place must have been seen. */ };

static int32_t share_mamba_decode_hopper(int64_t n, int64_t blocks) { return (int32_t)((n + blocks - 1) / blocks); }
static int32_t up(int64_t n, int64_t to) { return (int32_t)((n + to - 1) / to * to); }
static int32_t lesser(int32_t a, int32_t b) { return a < b ? a : b; }

static kr_stream_share shares_of(int64_t n, int64_t blocks) {
  return (kr_stream_share){(int32_t)(n / blocks), (int32_t)(n % blocks)};
}

/* Behind the ring. */
static void lay_out_block(kr_stream_params *s, int64_t blocks, int32_t at) {
  const kr_decode_params *p = &s->p;
  const int32_t channels = up(share_mamba_decode_hopper(p->inner, blocks), 12),
                columns = share_mamba_decode_hopper(p->n_columns, blocks),
                width = up(share_mamba_decode_hopper(p->width, blocks), 4),
                inputs = (p->kind == KR_DECODE_MAMBA2 ? 4 : 2) * p->inner, is_q8 = p->in_proj.scales != NULL,
                out_rows = is_q8 ? KR_STREAM_OUT_ROWS_Q8 : KR_STREAM_OUT_ROWS;
  const int32_t bytes[] = {up(inputs > 4 * p->width ? inputs : 4 * p->width, 16),
                           is_q8 ? 2 * p->inner : 0,
                           is_q8 ? p->inner / 8 : 0,
                           up((int64_t)share_mamba_decode_hopper(p->inner, blocks) * 2 * p->R, 16),
                           16 * channels,
                           16 * channels,
                           p->kind != KR_DECODE_MAMBA ? 16 * columns : KR_STREAM_WORKERS / 4 * out_rows,
                           16 * width,
                           4 * up(p->n_columns, 4),
                           64,
                           64,
                           4 * width,
                           4 * channels,
                           4 * channels,
                           8 * KR_STREAM_MOST_STAGES,
                           8 * KR_STREAM_MOST_STAGES,
                           16,
                           p->kind == KR_DECODE_MAMBA3 ? KR_STREAM_HEADS * (int32_t)sizeof(kr_stream_head) : 0};
  int32_t *const to[] = {&s->at.inputs,       &s->at.bytes,       &s->at.steps,    &s->at.dt_rows, &s->at.sums,
                         &s->at.z_sums,       &s->at.column_sums, &s->at.out_sums, &s->at.columns, &s->at.squares,
                         &s->at.gate_squares, &s->at.residual,    &s->at.x,        &s->at.y,       &s->at.full,
                         &s->at.empty,        &s->at.dt_full,     &s->at.heads};
  for (size_t i = 0; i < sizeof to / sizeof *to; i++) *to[i] = at, at += bytes[i];
  s->at.end = at;
}

kr_stream_params kr_stream_params_of(const krait_ctx *ctx, const kr_decode_params *p) {
  kr_stream_params s = {.p = *p};
  const int64_t blocks = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  s.stage_bytes = KR_STREAM_SCALES_AT + (p->in_proj.scales ? KR_STREAM_SCALES_AT / 16 : 0);
  s.stream_pairs = share_mamba_decode_hopper(share_mamba_decode_hopper(p->width, blocks), 4);
  s.channel_pairs =
      share_mamba_decode_hopper(share_mamba_decode_hopper(p->inner, blocks), p->kind == KR_DECODE_MAMBA2 ? 4 : 6);
  s.column_pairs = share_mamba_decode_hopper(share_mamba_decode_hopper(p->n_columns, blocks), 4);
  s.over_column_pairs = 65536 / s.column_pairs + 1;
  s.over_stream_pairs = 65536 / s.stream_pairs + 1, s.over_channel_pairs = 65536 / s.channel_pairs + 1;
  s.over_head_width = (uint32_t)(((1ll << 32) + p->head_width - 1) / p->head_width);
  s.channels = shares_of(p->inner, blocks), s.columns = shares_of(p->n_columns, blocks);
  s.width = shares_of(p->width, blocks);
  lay_out_block(&s, blocks, 0);
  const int64_t capacity = (int64_t)kr_cuda_info(ctx->cuda)->shared_bytes - s.at.end;
  s.n_stages = capacity < 0 ? 0 : lesser((int32_t)(capacity / s.stage_bytes), KR_STREAM_MOST_STAGES);
  lay_out_block(&s, blocks, s.n_stages * s.stage_bytes);
  s.window = lesser(KR_STREAM_UNDER_WAY / s.stage_bytes, s.n_stages - TEAMS);
  if (s.window < 1) s.window = s.n_stages > TEAMS;
  return s;
}

static kr_stream_params mamba_decode_hopper_plan_of(const krait_ctx *ctx, const kr_mamba_decode_args *a) {
  const kr_decode_params p = kr_mamba_decode_describe(a);
  return kr_stream_params_of(ctx, &p);
}

/* Rows follow one another without gaps: bulk copies take several. */
static int is_dense(const kr_view *v, int64_t row) { return !v->data || v->stride[1] == row; }

/* And bulk copies are of whole 16 bytes. */
static int are_dense_scales(const kr_view *v, int64_t row) {
  return !v->data || (v->stride[1] == row && v->stride[0] % 8 == 0 && (uintptr_t)v->data % 16 == 0);
}

static int lies_dense(const kr_mamba_decode_args *a) {
  return is_dense(&a->in_proj, a->D) && is_dense(&a->x_proj, a->E) && is_dense(&a->out_proj, a->E) &&
         is_dense(&a->dt_proj, a->R) && is_dense(&a->in_proj_qweight, a->D / 4) &&
         is_dense(&a->x_proj_qweight, a->E / 4) && is_dense(&a->out_proj_qweight, a->E / 4) &&
         are_dense_scales(&a->in_proj_scales, a->SD) && are_dense_scales(&a->x_proj_scales, a->SE) &&
         are_dense_scales(&a->out_proj_scales, a->SE);
}

static const char *refuse_shape(const krait_ctx *ctx, const kr_mamba_decode_args *a) {
  const int64_t blocks = kr_cuda_info(ctx->cuda)->n_multiprocessors, is_first = kr_has(&a->dt_proj);
  if (a->B != 1) return "more than one sequence";
  if (a->W > 4) return "more than 4 taps";
  if (a->G != 1) return "several groups";
  if (a->D != KR_STREAM_WIDTH || a->E != 2 * a->D || a->R % 8) return "widths other than 2560 and 5120";
  if (is_first ? a->N != 16 : a->N % 4 || a->N > 128) return "Mamba's N is not 16, or Mamba-2's above 128";
  if (!is_first && a->H == a->E) return "heads of one channel"; /* 2^32 over 1 is no 32-bit number */
  if (a->E > KR_STREAM_MOST_CHANNELS * blocks) return "few multiprocessors for the width";
  if (a->R > 1 << 12 || a->Y >= 1 << 16 || a->n_states >= INT32_MAX) return "too large";
  return NULL;
}

const char *kr_mamba_decode_streamed_refuse(const krait_ctx *ctx, const void *args) {
  const kr_mamba_decode_args *a = args;
  if (!kr_cuda_has_cooperative(ctx->cuda)) return "a driver that does not start all blocks together";
  const char *why = kr_mamba_decode_refuse_tensors(a);
  if (!why) why = refuse_shape(ctx, a);
  if (why) return why;
  if (!lies_dense(a)) return "gaps between rows of a weight, or scales not aligned to 16 bytes";
  const kr_stream_params s = mamba_decode_hopper_plan_of(ctx, a);
  const int64_t blocks = kr_cuda_info(ctx->cuda)->n_multiprocessors,
                most = KR_STREAM_WORKERS * (s.p.kind == KR_DECODE_MAMBA2 ? KR_STREAM_Y_PAIRS : KR_STREAM_U_PAIRS);
  if (blocks * s.channel_pairs > most || blocks * s.stream_pairs > KR_STREAM_WORKERS * KR_STREAM_STREAM_PAIRS)
    return "too many blocks";
  return s.window > 0 ? NULL : "a block's memory does not hold its ring";
}

uint64_t kr_stream_lay_out_words(kr_stream_params *s, int64_t blocks, char *scratch) {
  const uint64_t sizes[] = {
      16 * (uint64_t)(blocks * s->stream_pairs), 16 * (uint64_t)(blocks * s->channel_pairs),
      16 * (uint64_t)(blocks * s->channel_pairs),
      s->p.kind == KR_DECODE_MAMBA3 ? 16 * (uint64_t)(blocks * s->column_pairs) : 8 * (uint64_t)s->p.n_columns};
  uint64_t **const to[] = {&s->stream_words, &s->u_words, &s->y_words, &s->column_words};
  uint64_t at = 0;
  for (int i = 0; i < 4; i++) {
    if (scratch) *to[i] = (uint64_t *)(scratch + at);
    at += kr_scratch_round(sizes[i]);
  }
  return at;
}

uint64_t kr_mamba_decode_streamed_scratch(const krait_ctx *ctx, const void *args) {
  kr_stream_params s = mamba_decode_hopper_plan_of(ctx, args);
  return kr_stream_lay_out_words(&s, kr_cuda_info(ctx->cuda)->n_multiprocessors, NULL);
}

int32_t kr_mamba_decode_streamed(const krait_ctx *ctx, const void *args) {
  static const kr_kernel by_type[2][2] = {
      {{"mamba_decode_hopper_f16", "kr_mamba_stream"}, {"mamba_decode_hopper_f16", "kr_mamba2_stream"}},
      {{"mamba_decode_hopper_bf16", "kr_mamba_stream"}, {"mamba_decode_hopper_bf16", "kr_mamba2_stream"}}};
  static const kr_kernel q8[2] = {{"mamba_decode_hopper_f16", "kr_mamba_stream_q8"},
                                  {"mamba_decode_hopper_f16", "kr_mamba2_stream_q8"}};
  const kr_mamba_decode_args *a = args;
  const int64_t blocks = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  kr_stream_params s = mamba_decode_hopper_plan_of(ctx, a);
  const uint64_t words = kr_stream_lay_out_words(&s, blocks, a->call.scratch);
  const kr_grid grid = {.x = (uint32_t)blocks,
                        .block = KR_STREAM_THREADS,
                        .shared_bytes = (uint32_t)s.at.end,
                        .stream = a->call.stream,
                        .is_cooperative = 1};
  KR_TRY(kr_cuda_fill(ctx->cuda, a->call.scratch, 0, words, a->call.stream)); /* no word has a layer's tag */
  const kr_kernel *const kernels = s.p.in_proj.scales ? q8 : by_type[a->x.dtype == KRAIT_BF16];
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &kernels[s.p.kind], &grid, &s, sizeof s);
}
