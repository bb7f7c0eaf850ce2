/* causal_conv1d_update_simd.c: the running convolution with channels across lanes: the last W-1 inputs and the new ones
 * form a small float window [step][lane]. */
#include <string.h>

#include "contract.h"
#include "op_list.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

typedef kr_causal_conv1d_update_args update_args;

enum { MAX_W = 16, MAX_S = 32, MAX_L = 32 };

typedef struct place {
  int64_t b, row, d;
  int lanes;
} place;

static kr_plane plane3(const kr_view *v, int64_t i, int64_t d, int64_t t) {
  return (kr_plane){v->data, v->dtype, kr_at3(v, i, d, t), v->stride[2], v->stride[1]};
}

static int64_t ring_start(const update_args *a, int64_t b) {
  if (!kr_has(&a->cache_seqlens)) return 0;
  int64_t at = kr_get_i32(&a->cache_seqlens, kr_at1(&a->cache_seqlens, b)) % a->S;
  return at < 0 ? at + a->S : at;
}

/* inputs: S rows of the state, oldest first, then L of x. */
static void read_conv1d_update_inputs(const update_args *a, const place *p, float *inputs) {
  int64_t start = ring_start(a, p->b);
  kr_plane old = plane3(&a->conv_state, p->row, p->d, start), young = plane3(&a->conv_state, p->row, p->d, 0),
           x = plane3(&a->x, p->b, p->d, 0);
  kr_tile_load(inputs, KR_VL, &old, (int)(a->S - start), p->lanes);
  kr_tile_load(inputs + (a->S - start) * KR_VL, KR_VL, &young, (int)start, p->lanes);
  kr_tile_load(inputs + a->S * KR_VL, KR_VL, &x, (int)a->L, p->lanes);
}

static void write_state(const update_args *a, const place *p, const float *inputs) {
  if (!kr_has(&a->cache_seqlens)) {
    kr_plane state = plane3(&a->conv_state, p->row, p->d, 0);
    kr_tile_store(inputs + a->L * KR_VL, KR_VL, &state, (int)a->S, p->lanes);
    return;
  }
  int64_t start = ring_start(a, p->b);
  for (int64_t t = 0; t < a->L; t++) {
    kr_plane state = plane3(&a->conv_state, p->row, p->d, (start + t) % a->S);
    kr_tile_store(inputs + (a->S + t) * KR_VL, KR_VL, &state, 1, p->lanes);
  }
}

/* Prefetches what a later block will read, where channels are contiguous: lines the hardware would not fetch in time.
 * */
static void prefetch_later(const update_args *a, const place *p) {
  enum { BLOCKS = 6, LINE = 64 };
  const kr_view *const views[] = {&a->conv_state, &a->weight};
  const int64_t stride[] = {a->conv_state.stride[1], a->weight.stride[0]},
                at[] = {kr_at3(&a->conv_state, p->row, p->d, 0), kr_at2(&a->weight, p->d, 0)};
  for (int i = 0; i < 2; i++) {
    const int64_t bytes = (int64_t)krait_dtype_bytes(views[i]->dtype), step = stride[i] * KR_VL * bytes;
    if (step <= 0 || step > 16 * LINE) continue;
    const char *next = (const char *)views[i]->data + at[i] * bytes + BLOCKS * step;
    for (int64_t byte = 0; byte < step; byte += LINE) __builtin_prefetch(next + byte);
  }
}

/* One new input, four taps, full blocks, taps and states contiguous per channel, as in language models. */
enum { TAPS = 4 };
static int is_one_step(const update_args *a) {
  return a->L == 1 && a->W == TAPS && a->S == TAPS - 1 && !kr_has(&a->cache_seqlens) &&
         a->conv_state.dtype == KRAIT_F32 && a->conv_state.stride[2] == 1 && a->conv_state.stride[1] == TAPS - 1 &&
         a->weight.stride[1] == 1 && a->weight.stride[0] == TAPS && a->x.stride[1] == 1 && a->out.stride[1] == 1 &&
         (!kr_has(&a->bias) || a->bias.stride[0] == 1);
}

static void load_taps(const update_args *a, int64_t d, kr_v *weight) {
  float rows[TAPS * KR_VL];
  kr_row_load(rows, a->weight.data, a->weight.dtype, kr_at2(&a->weight, d, 0), 1, TAPS * KR_VL);
  kr_v_load_apart(weight, rows, TAPS);
}

static void update_one_block(const update_args *a, const place *p, const kr_v *weight) {
  float *state = (float *)a->conv_state.data + kr_at3(&a->conv_state, p->row, p->d, 0);
  kr_v window[TAPS], sum = kr_has(&a->bias) ? kr_v_load_as(a->bias.data, kr_at1(&a->bias, p->d), KR_VL, a->bias.dtype)
                                            : kr_v_zero();
  kr_v_load_apart(window, state, TAPS - 1);
  window[TAPS - 1] = kr_v_load_as(a->x.data, kr_at3(&a->x, p->b, p->d, 0), KR_VL, a->x.dtype);
#pragma GCC unroll 4
  for (int k = 0; k < TAPS; k++) sum = kr_v_fma(weight[k], window[k], sum);
  if (a->activation == KRAIT_ACT_SILU) sum = kr_v_silu_fast(sum);
  kr_v_store_apart(state, window + 1, TAPS - 1);
  kr_v_store_as(a->out.data, kr_at3(&a->out, p->b, p->d, 0), KR_VL, a->out.dtype, sum);
}

/* One new input, full blocks, in float32, channels contiguous: states move up by a row as they are read. */
static int is_one_row(const update_args *a) {
  return a->L == 1 && a->S == a->W - 1 && !kr_has(&a->cache_seqlens) && a->conv_state.dtype == KRAIT_F32 &&
         a->weight.dtype == KRAIT_F32 && a->x.dtype == KRAIT_F32 && a->conv_state.stride[1] == 1 &&
         a->weight.stride[0] == 1 && a->x.stride[1] == 1 && a->out.stride[1] == 1 &&
         (!kr_has(&a->bias) || (a->bias.dtype == KRAIT_F32 && a->bias.stride[0] == 1));
}

static void step_rows(const update_args *a, const place *p) {
  const int64_t next = a->conv_state.stride[2], next_tap = a->weight.stride[1], last = a->W - 1;
  const float *taps = (const float *)a->weight.data + kr_at2(&a->weight, p->d, 0);
  float *state = (float *)a->conv_state.data + kr_at3(&a->conv_state, p->row, p->d, 0);
  const kr_v x = kr_v_load((const float *)a->x.data + kr_at3(&a->x, p->b, p->d, 0));
  kr_v sum = kr_has(&a->bias) ? kr_v_load((const float *)a->bias.data + p->d) : kr_v_zero();
  for (int64_t k = 0; k < last; k++) {
    const kr_v old = kr_v_load(state + k * next);
    sum = kr_v_fma(kr_v_load(taps + k * next_tap), old, sum);
    if (k) kr_v_store(state + (k - 1) * next, old);
  }
  if (last) kr_v_store(state + (last - 1) * next, x);
  sum = kr_v_fma(kr_v_load(taps + last * next_tap), x, sum);
  if (a->activation == KRAIT_ACT_SILU) sum = kr_v_silu_fast(sum);
  kr_v_store((float *)a->out.data + kr_at3(&a->out, p->b, p->d, 0), sum);
}

static void update_block(const update_args *a, const place *p) {
  float inputs[(MAX_S + MAX_L) * KR_VL], weight[MAX_W * KR_VL], bias[KR_VL] = {0}, out[MAX_L * KR_VL];
  const int W = (int)a->W, L = (int)a->L;
  kr_plane weights = {a->weight.data, a->weight.dtype, kr_at2(&a->weight, p->d, 0), a->weight.stride[1],
                      a->weight.stride[0]};
  kr_plane biases = {a->bias.data, a->bias.dtype, kr_at1(&a->bias, p->d), 0, a->bias.stride[0]},
           to = plane3(&a->out, p->b, p->d, 0);
  kr_tile_load(weight, KR_VL, &weights, W, p->lanes);
  if (kr_has(&a->bias)) kr_tile_load(bias, KR_VL, &biases, 1, p->lanes);
  read_conv1d_update_inputs(a, p, inputs);
  const float *window = inputs + (a->S - (W - 1)) * KR_VL;
  for (int t = 0; t < L; t++) {
    kr_v sum = kr_v_load(bias);
    for (int k = 0; k < W; k++) sum = kr_v_fma(kr_v_load(weight + k * KR_VL), kr_v_load(window + (t + k) * KR_VL), sum);
    kr_v_store(out + t * KR_VL, a->activation == KRAIT_ACT_SILU ? kr_v_silu_fast(sum) : sum);
  }
  write_state(a, p, inputs);
  kr_tile_store(out, KR_VL, &to, L, p->lanes);
}

static void silence_block(const update_args *a, const place *p) {
  float zeros[MAX_L * KR_VL] = {0};
  kr_plane to = plane3(&a->out, p->b, p->d, 0);
  kr_tile_store(zeros, KR_VL, &to, (int)a->L, p->lanes);
}

enum { FEW_BLOCKS = 8 }; /* whose taps are laid apart once for all sequences */

static void update_blocks(void *user, int64_t begin, int64_t end, int worker) {
  const update_args *a = user;
  const int64_t n_blocks = (a->D + KR_VL - 1) / KR_VL;
  const int one_step = is_one_step(a), one_row = is_one_row(a),
            is_few = n_blocks <= FEW_BLOCKS && end - begin > n_blocks;
  kr_v taps[FEW_BLOCKS][TAPS], own[TAPS];
  (void)worker;
  for (int64_t k = 0; one_step && is_few && k < a->D / KR_VL; k++) load_taps(a, k * KR_VL, taps[k]);
  for (int64_t i = begin; i < end; i++) {
    place p = {.b = i / n_blocks, .d = i % n_blocks * KR_VL};
    p.row =
        kr_has(&a->conv_state_indices) ? kr_get_i32(&a->conv_state_indices, kr_at1(&a->conv_state_indices, p.b)) : p.b;
    p.lanes = (int)(a->D - p.d < KR_VL ? a->D - p.d : KR_VL);
    if (p.row < 0) silence_block(a, &p);
    else if (one_row && p.lanes == KR_VL) step_rows(a, &p);
    else if (one_step && is_few && p.lanes == KR_VL) update_one_block(a, &p, taps[p.d / KR_VL]);
    else if (one_step && p.lanes == KR_VL) {
      prefetch_later(a, &p);
      load_taps(a, p.d, own);
      update_one_block(a, &p, own);
    } else update_block(a, &p);
  }
}

int32_t KR_FN(kr_causal_conv1d_update)(const krait_ctx *ctx, const void *args) {
  const update_args *a = args;
  KR_TRY(kr_need_rows("causal_conv1d_update", "conv_state_indices", &a->conv_state_indices, a->B, a->n_states));
  kr_parallel_long(ctx, a->B * ((a->D + KR_VL - 1) / KR_VL), 12, update_blocks, (void *)args);
  return KRAIT_OK;
}
