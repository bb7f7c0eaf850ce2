/* resample.c: soxr at its very high quality (linear phase, which soxr delivers with its delay already removed). Equal
 * rates pass through untouched. The input counts as silent before its start and after its end. */
#include "resample.h"

#include <soxr.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

enum { BLOCK = 4096 };

struct kr_resampler {
  soxr_t soxr; /* NULL: equal rates */
  int32_t in_hz, out_hz;
  kr_sink sink;
  int64_t n_in, n_out;
  int64_t n_out_limit; /* finish: nothing goes out beyond it */
  float block[BLOCK];
};

int64_t kr_resampled_length(int64_t n_in, int32_t in_hz, int32_t out_hz) {
  int64_t whole = n_in / in_hz, rest = n_in % in_hz;
  return whole * out_hz + (rest * out_hz + in_hz - 1) / in_hz;
}

int32_t kr_resampler_open(int32_t in_hz, int32_t out_hz, kr_sink sink, kr_resampler **resampler) {
  kr_resampler *r = kr_zalloc(sizeof *r);
  KR_CHECK(r, KRAIT_ERR_NO_MEMORY, "no memory for a resampler");
  *r = (kr_resampler){.in_hz = in_hz, .out_hz = out_hz, .sink = sink, .n_out_limit = INT64_MAX};
  if (in_hz != out_hz) {
    soxr_error_t error = NULL;
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_VHQ, 0);
    r->soxr = soxr_create(in_hz, out_hz, 1, &error, NULL, &quality, NULL);
    if (!r->soxr || error) {
      kr_resampler_close(&r);
      return kr_fail(KRAIT_ERR_UNSUPPORTED, "cannot resample %d Hz to %d Hz (%s)", in_hz, out_hz,
                     error ? error : "no reason given");
    }
  }
  *resampler = r;
  return KRAIT_OK;
}

void kr_resampler_close(kr_resampler **resampler) {
  if (!*resampler) return;
  if ((*resampler)->soxr) soxr_delete((*resampler)->soxr);
  kr_free(*resampler);
  *resampler = NULL;
}

static int32_t deliver_resample(kr_resampler *r, const float *samples, int64_t n) {
  if (n > r->n_out_limit - r->n_out) n = r->n_out_limit - r->n_out;
  r->n_out += n;
  return kr_sink_push(&r->sink, samples, n);
}

/* samples NULL: flush. */
static int32_t convert(kr_resampler *r, const float *samples, int64_t n) {
  for (;;) {
    size_t n_used = 0, n_made = 0;
    soxr_error_t error = soxr_process(r->soxr, samples, samples ? (size_t)n : 0, &n_used, r->block, BLOCK, &n_made);
    KR_CHECK(!error, KRAIT_ERR_UNSUPPORTED, "resampling %d Hz to %d Hz failed: %s", r->in_hz, r->out_hz, error);
    KR_TRY(deliver_resample(r, r->block, (int64_t)n_made));
    if (samples) samples += n_used;
    n -= (int64_t)n_used;
    if (n_made < BLOCK && n <= 0) return KRAIT_OK;
    if (n_made == 0 && n_used == 0) return KRAIT_OK;
  }
}

int32_t kr_resampler_push(kr_resampler *r, const float *samples, int64_t n) {
  r->n_in += n;
  if (n == 0) return KRAIT_OK;
  return r->soxr ? convert(r, samples, n) : deliver_resample(r, samples, n);
}

static int32_t push_zeros(kr_resampler *r, int64_t n,
                          int32_t (*push)(kr_resampler *r, const float *samples, int64_t n)) {
  static const float zeros[1024];
  while (n > 0) {
    int64_t step = n < 1024 ? n : 1024;
    KR_TRY(push(r, zeros, step));
    n -= step;
  }
  return KRAIT_OK;
}

int32_t kr_resampler_finish(kr_resampler *r, int64_t n_out) {
  r->n_out_limit = n_out;
  if (r->soxr) {
    KR_TRY(push_zeros(r, kr_resampled_length(n_out + 1, r->out_hz, r->in_hz) - r->n_in, convert));
    KR_TRY(convert(r, NULL, 0));
  }
  return push_zeros(r, n_out - r->n_out, deliver_resample);
}
