/* conv2d_ref.c: channels-last convolutions, (B,H,W,C), and their gradients, written to be read; double accumulation.
 *   depthwise_conv  out[b,h,w,c] = bias[c] + sum over i, j of weight[c,i,j] x[b, h + i DH - PH, w + j DW - PW, c],
 *                   zero-padded
 *   unfold          out[b,i,j,(k,l,c)] = x[b, i SH + k - PH, j SW + l - PW, c]
 *   fold            out[b,h,w,c] = sum of x[b,i,j,(k,l,c)] over all i, j, k, l with i SH + k - PH = h and
 *                   j SW + l - PW = w */
#include "op_list.h"
#include "view.h"

int32_t kr_depthwise_conv_ref(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_args *a = args;
  (void)ctx;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t h = 0; h < a->H; h++)
      for (int64_t w = 0; w < a->W; w++)
        for (int64_t c = 0; c < a->C; c++) {
          double sum = kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, c)) : 0;
          for (int64_t i = 0; i < a->KH; i++)
            for (int64_t j = 0; j < a->KW; j++) {
              const int64_t y = h + i * a->DH - a->PH, x = w + j * a->DW - a->PW;
              if (y >= 0 && y < a->H && x >= 0 && x < a->W)
                sum += kr_get(&a->weight, kr_at3(&a->weight, c, i, j)) * kr_get(&a->x, kr_at4(&a->x, b, y, x, c));
            }
          kr_put(&a->out, kr_at4(&a->out, b, h, w, c), sum);
        }
  return KRAIT_OK;
}

static void conv_dx(const kr_depthwise_conv_bwd_args *a) {
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t h = 0; h < a->H; h++)
      for (int64_t w = 0; w < a->W; w++)
        for (int64_t c = 0; c < a->C; c++) {
          double sum = 0;
          for (int64_t i = 0; i < a->KH; i++)
            for (int64_t j = 0; j < a->KW; j++) {
              const int64_t y = h - i * a->DH + a->PH, x = w - j * a->DW + a->PW;
              if (y >= 0 && y < a->H && x >= 0 && x < a->W)
                sum += kr_get(&a->weight, kr_at3(&a->weight, c, i, j)) * kr_get(&a->dout, kr_at4(&a->dout, b, y, x, c));
            }
          kr_put(&a->dx, kr_at4(&a->dx, b, h, w, c), sum);
        }
}

/* Of one tap; of the bias if i is negative. */
static double tap_gradient(const kr_depthwise_conv_bwd_args *a, int64_t c, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t h = 0; h < a->H; h++)
      for (int64_t w = 0; w < a->W; w++) {
        const double d = kr_get(&a->dout, kr_at4(&a->dout, b, h, w, c));
        const int64_t y = h + i * a->DH - a->PH, x = w + j * a->DW - a->PW;
        if (i < 0) sum += d;
        else if (y >= 0 && y < a->H && x >= 0 && x < a->W) sum += d * kr_get(&a->x, kr_at4(&a->x, b, y, x, c));
      }
  return sum;
}

int32_t kr_depthwise_conv_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_bwd_args *a = args;
  (void)ctx;
  if (kr_has(&a->dx)) conv_dx(a);
  for (int64_t c = 0; c < a->C; c++) {
    for (int64_t i = 0; i < a->KH && kr_has(&a->dweight); i++)
      for (int64_t j = 0; j < a->KW; j++) kr_put(&a->dweight, kr_at3(&a->dweight, c, i, j), tap_gradient(a, c, i, j));
    if (kr_has(&a->dbias)) kr_put(&a->dbias, kr_at1(&a->dbias, c), tap_gradient(a, c, -1, 0));
  }
  return KRAIT_OK;
}

int32_t kr_unfold_ref(const krait_ctx *ctx, const void *args) {
  const kr_unfold_args *a = args;
  (void)ctx;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t i = 0; i < a->OH; i++)
      for (int64_t j = 0; j < a->OW; j++)
        for (int64_t n = 0; n < a->K; n++) {
          const int64_t y = i * a->SH + n / a->C / a->KW - a->PH, x = j * a->SW + n / a->C % a->KW - a->PW;
          const int inside = y >= 0 && y < a->H && x >= 0 && x < a->W;
          kr_put(&a->out, kr_at4(&a->out, b, i, j, n), inside ? kr_get(&a->x, kr_at4(&a->x, b, y, x, n % a->C)) : 0);
        }
  return KRAIT_OK;
}

int32_t kr_fold_ref(const krait_ctx *ctx, const void *args) {
  const kr_fold_args *a = args;
  (void)ctx;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t h = 0; h < a->H; h++)
      for (int64_t w = 0; w < a->W; w++)
        for (int64_t c = 0; c < a->C; c++) {
          double sum = 0;
          for (int64_t k = 0; k < a->KH; k++)
            for (int64_t l = 0; l < a->KW; l++) {
              const int64_t y = h + a->PH - k, x = w + a->PW - l;
              if (y < 0 || x < 0 || y % a->SH || x % a->SW || y / a->SH >= a->OH || x / a->SW >= a->OW) continue;
              sum += kr_get(&a->x, kr_at4(&a->x, b, y / a->SH, x / a->SW, (k * a->KW + l) * a->C + c));
            }
          kr_put(&a->out, kr_at4(&a->out, b, h, w, c), sum);
        }
  return KRAIT_OK;
}
