/* any_fft.c: see any_fft.h. */
#include "any_fft.h"

#include <kiss_fftr.h>

#include "alloc.h"
#include "status.h"

struct kr_any_fft {
  int64_t n;
  kiss_fftr_cfg forward, inverse;
  kiss_fft_cpx *spectrum; /* (n/2 + 1) */
};

static kiss_fftr_cfg open_kiss(int64_t n, int inverse) {
  size_t bytes = 0;
  kiss_fftr_alloc((int)n, inverse, NULL, &bytes);
  void *memory = kr_alloc(bytes);
  return memory ? kiss_fftr_alloc((int)n, inverse, memory, &bytes) : NULL;
}

int32_t kr_any_fft_open(int64_t n, kr_any_fft **fft) {
  kr_any_fft *f = *fft = kr_zalloc(sizeof *f);
  KR_CHECK(f, KRAIT_ERR_NO_MEMORY, "no memory for the transform");
  *f = (kr_any_fft){n, open_kiss(n, 0), open_kiss(n, 1), kr_alloc_array((size_t)n / 2 + 1, sizeof *f->spectrum)};
  if (f->forward && f->inverse && f->spectrum) return KRAIT_OK;
  kr_any_fft_close(fft);
  return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the transform");
}

void kr_any_fft_close(kr_any_fft **fft) {
  kr_any_fft *f = *fft;
  if (!f) return;
  kr_free(f->forward);
  kr_free(f->inverse);
  kr_free(f->spectrum);
  kr_free(f);
  *fft = NULL;
}

void kr_any_fft_forward(kr_any_fft *fft, const float *x, float *re, float *im) {
  kiss_fftr(fft->forward, x, fft->spectrum);
  for (int64_t f = 0; f <= fft->n / 2; f++) re[f] = fft->spectrum[f].r, im[f] = fft->spectrum[f].i;
}

void kr_any_fft_inverse(kr_any_fft *fft, const float *re, const float *im, float *x) {
  for (int64_t f = 0; f <= fft->n / 2; f++) fft->spectrum[f] = (kiss_fft_cpx){re[f], im[f]};
  fft->spectrum[0].i = fft->spectrum[fft->n / 2].i = 0;
  kiss_fftri(fft->inverse, fft->spectrum, x);
}
