/* spectrum.c: window, zero padding and a real FFT by kissfft. */
#include "spectrum.h"

#include <kiss_fftr.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

struct kr_spectrum {
  int n_fft, n_window;
  kiss_fftr_cfg plan;
  float *window, *frame;
  kiss_fft_cpx *bins;
};

int32_t kr_spectrum_open(int n_fft, const float *window, int n_window, kr_spectrum **spectrum) {
  size_t plan_bytes = 0;
  kiss_fftr_alloc(n_fft, 0, NULL, &plan_bytes);
  kr_spectrum *s = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a spectrum");
  *s = (kr_spectrum){.n_fft = n_fft, .n_window = n_window};
  void *plan_memory = kr_alloc(plan_bytes);
  if (plan_memory) s->plan = kiss_fftr_alloc(n_fft, 0, plan_memory, &plan_bytes);
  s->window = kr_alloc_array((size_t)n_window, sizeof(float));
  s->frame = kr_alloc_array((size_t)n_fft, sizeof(float));
  s->bins = kr_alloc_array((size_t)n_fft / 2 + 1, sizeof(kiss_fft_cpx));
  if (!s->plan || !s->window || !s->frame || !s->bins) {
    kr_spectrum_close(&s);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a spectrum of %d points", n_fft);
  }
  memcpy(s->window, window, (size_t)n_window * sizeof(float));
  *spectrum = s;
  return KRAIT_OK;
}

void kr_spectrum_close(kr_spectrum **spectrum) {
  kr_spectrum *s = *spectrum;
  if (!s) return;
  kr_free(s->plan);
  kr_free(s->window);
  kr_free(s->frame);
  kr_free(s->bins);
  kr_free(s);
  *spectrum = NULL;
}

void kr_spectrum_power(kr_spectrum *s, const float *frame, float *power) {
  for (int i = 0; i < s->n_window; i++) s->frame[i] = frame[i] * s->window[i];
  kiss_fftr(s->plan, s->frame, s->bins);
  for (int k = 0; k <= s->n_fft / 2; k++) power[k] = s->bins[k].r * s->bins[k].r + s->bins[k].i * s->bins[k].i;
}
