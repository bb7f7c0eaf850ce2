/* conv3d_ref.c: the causal convolution, written to be read; double accumulation. The sequence e is x with frames in
 * front: initial_states, or KT - 1 copies of the first frame. With tap (i,j,l) = (i KH + j) KW + l:
 *   out[t,h,w,k] = residual[t,h,w,k] + bias[k]
 *                + sum over taps and c of weight[k,(i,j,l),c] e[t ST + i, h SH + j - PH, w SW + l - PW, c]
 * with zeros outside of a frame. final_states: the last KT - ST frames of e, the initial_states of the next part. */
#include "conv3d/conv3d_impls.h"

static double sum_taps(const kr_conv3d_args *a, int64_t t, int64_t h, int64_t w, int64_t k) {
  double sum = 0;
  for (int64_t tap = 0; tap < a->TAPS; tap++) {
    const int64_t i = tap / (a->KH * a->KW), y = h * a->SH + tap / a->KW % a->KH - a->PH,
                  x = w * a->SW + tap % a->KW - a->PW;
    int64_t frame;
    const kr_view *from = kr_conv3d_frame(a, t * a->ST + i, &frame);
    if (y < 0 || y >= a->H || x < 0 || x >= a->W) continue;
    for (int64_t c = 0; c < a->C; c++)
      sum += kr_get(&a->weight, kr_at3(&a->weight, k, tap, c)) * kr_get(from, kr_at4(from, frame, y, x, c));
  }
  return sum;
}

/* Frame m comes from frame m or a later one of the state: in place, in order. */
static void keep_frames(const kr_conv3d_args *a) {
  const int64_t first = kr_conv3d_front(a) + a->T - a->past;
  for (int64_t m = 0; m < a->past; m++) {
    int64_t frame;
    const kr_view *from = kr_conv3d_frame(a, first + m, &frame);
    for (int64_t i = 0; i < a->H * a->W * a->C; i++) {
      const int64_t y = i / a->C / a->W, x = i / a->C % a->W, c = i % a->C;
      kr_put(&a->final_states, kr_at4(&a->final_states, m, y, x, c), kr_get(from, kr_at4(from, frame, y, x, c)));
    }
  }
}

int32_t kr_conv3d_ref(const krait_ctx *ctx, const void *args) {
  const kr_conv3d_args *a = args;
  (void)ctx;
  for (int64_t i = 0; i < a->OT * a->OH * a->OW; i++) {
    const int64_t t = i / (a->OH * a->OW), h = i / a->OW % a->OH, w = i % a->OW;
    for (int64_t k = 0; k < a->K; k++) {
      double sum = sum_taps(a, t, h, w, k);
      if (kr_has(&a->bias)) sum += kr_get(&a->bias, kr_at1(&a->bias, k));
      if (kr_has(&a->residual)) sum += kr_get(&a->residual, kr_at4(&a->residual, t, h, w, k));
      kr_put(&a->out, kr_at4(&a->out, t, h, w, k), sum);
    }
  }
  if (kr_has(&a->final_states)) keep_frames(a);
  return KRAIT_OK;
}
