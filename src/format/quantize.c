/* quantize.c: the scale is first rounded to float16, then the weights to its multiples. */
#include "quantize.h"

#include <math.h>

#include "view.h"

enum { BLOCK = 32 };

int kr_q8_fits(const kr_weight *item) {
  return item->n_dims == 2 && item->shape[0] > 0 && item->shape[1] > 0 && item->shape[1] % BLOCK == 0 &&
         kr_is_float_dtype(item->dtype);
}

static uint16_t quantize_block(const kr_view *view, int64_t at, int32_t *words) {
  float w[BLOCK], most = 0;
  for (int i = 0; i < BLOCK; i++) {
    w[i] = (float)kr_get(view, at + i);
    if (fabsf(w[i]) > most) most = fabsf(w[i]);
  }
  const uint16_t scale = kr_float_to_f16(most / 127 > 65504 ? 65504 : most / 127);
  const float step = kr_f16_to_float(scale);
  for (int i = 0; i < BLOCK; i += 4) {
    uint32_t word = 0;
    for (int k = 0; k < 4; k++) {
      const float q = step > 0 ? nearbyintf(w[i + k] / step) : 0;
      word |= (uint32_t)(uint8_t)(int8_t)(q > 127 ? 127 : q < -127 ? -127 : q) << (8 * k);
    }
    words[i / 4] = (int32_t)word;
  }
  return scale;
}

void kr_q8_quantize(const kr_weight *item, int64_t from, int64_t to, int32_t *words, uint16_t *scales) {
  const kr_view view = {.data = (void *)item->data, .dtype = item->dtype};
  const int64_t S = item->shape[1] / BLOCK;
  for (int64_t s = from * S; s < to * S; s++) scales[s] = quantize_block(&view, s * BLOCK, words + s * (BLOCK / 4));
}

void kr_q8_widen(const int32_t *words, const uint16_t *scales, int64_t S, int64_t from, int64_t to, uint16_t *halves) {
  for (int64_t s = from * S; s < to * S; s++) {
    const float scale = kr_f16_to_float(scales[s]);
    for (int i = 0; i < BLOCK; i++) {
      const uint32_t word = (uint32_t)words[s * (BLOCK / 4) + i / 4];
      halves[s * BLOCK + i] = kr_float_to_f16(scale * (float)(int8_t)(word >> (i % 4 * 8) & 255));
    }
  }
}
