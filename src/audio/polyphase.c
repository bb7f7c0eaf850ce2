/* polyphase.c: see polyphase.h. One row of taps for each fraction of an input sample at which outputs lie; for pairs of
 * rates with many of these, rows for some, between which it interpolates. */
#include "polyphase.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

/* The filter ends HALF periods of the lower rate before and after its middle; it is down by 6 dB at `edge` of that
 * rate's half, and by 80 dB 0.08 of the half above it. */
enum { HALF = 32, MOST_ROWS = 1024, LANES = 8 };
static const double KAISER_BETA = 8;

struct kr_polyphase {
  int64_t in_hz, out_hz; /* without their common divisor */
  double edge;
  int64_t half, n_taps, n_rows; /* of taps; one more row if it interpolates. half 0: equal rates */
  float *taps;
  kr_queue queue;       /* from input sample i - (half - 1) on */
  int64_t i, remainder; /* the next output's time: i + remainder / out_hz input samples */
  int64_t n_in;
};

/* The modified Bessel function of order 0. */
static double bessel(double x) {
  double sum = 1, term = 1;
  for (int k = 1; term > 1e-12 * sum; k++) term *= (x / 2 / k) * (x / 2 / k), sum += term;
  return sum;
}

/* The filter at `t` input samples from its middle. */
static double filter_at(const kr_polyphase *p, double t) {
  const double period = p->in_hz > p->out_hz ? (double)p->in_hz / (double)p->out_hz : 1, x = t / period,
               u = x / HALF, angle = acos(-1) * p->edge * x;
  if (fabs(u) >= 1) return 0;
  return (fabs(angle) < 1e-9 ? 1 : sin(angle) / angle) * bessel(KAISER_BETA * sqrt(1 - u * u));
}

/* Each row sums to 1. */
static void fill_rows(kr_polyphase *p, int64_t n) {
  for (int64_t r = 0; r < n; r++) {
    float *row = p->taps + r * p->n_taps;
    double sum = 0;
    for (int64_t j = 0; j < p->n_taps; j++)
      sum += filter_at(p, (double)(j - (p->half - 1)) - (double)r / (double)p->n_rows);
    for (int64_t j = 0; j < p->n_taps; j++)
      row[j] = (float)(filter_at(p, (double)(j - (p->half - 1)) - (double)r / (double)p->n_rows) / sum);
  }
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

static int32_t open_filter(kr_polyphase *p, int64_t n_waiting) {
  const int is_exact = p->out_hz <= MOST_ROWS;
  const int64_t higher = p->in_hz > p->out_hz ? p->in_hz : p->out_hz;
  if (p->in_hz == p->out_hz) return kr_queue_reserve(&p->queue, 4 * n_waiting);
  p->half = (HALF * higher + p->out_hz - 1) / p->out_hz;
  p->n_taps = 2 * p->half, p->n_rows = is_exact ? p->out_hz : MOST_ROWS;
  p->taps = kr_alloc_array((size_t)((p->n_rows + !is_exact) * p->n_taps), sizeof *p->taps);
  KR_CHECK(p->taps, KRAIT_ERR_NO_MEMORY, "no memory for a resampler");
  fill_rows(p, p->n_rows + !is_exact);
  return kr_queue_reserve(&p->queue, 4 * (n_waiting + p->n_taps));
}

int32_t kr_polyphase_open(int32_t in_hz, int32_t out_hz, double edge, int64_t n_waiting, kr_polyphase **handle) {
  kr_polyphase *p = *handle = kr_zalloc(sizeof *p);
  KR_CHECK(p, KRAIT_ERR_NO_MEMORY, "no memory for a resampler");
  const int64_t divisor = common_divisor(in_hz, out_hz);
  p->in_hz = in_hz / divisor, p->out_hz = out_hz / divisor, p->edge = edge;
  const int32_t status = open_filter(p, n_waiting);
  if (status < 0) kr_polyphase_close(handle);
  else kr_polyphase_begin(p);
  return status;
}

void kr_polyphase_close(kr_polyphase **handle) {
  kr_polyphase *p = *handle;
  if (!p) return;
  kr_queue_free(&p->queue);
  kr_free(p->taps);
  kr_free(p);
  *handle = NULL;
}

void kr_polyphase_begin(kr_polyphase *p) {
  p->i = p->remainder = p->n_in = 0;
  p->queue.begin = 0, p->queue.end = p->half ? p->half - 1 : 0; /* the room is reserved */
  memset(p->queue.samples, 0, (size_t)p->queue.end * sizeof(float));
}

int64_t kr_polyphase_after(const kr_polyphase *p) { return p->half; }

int32_t kr_polyphase_push(kr_polyphase *p, const float *in, int64_t n) {
  p->n_in += n;
  return kr_queue_push(&p->queue, in, n);
}

int64_t kr_polyphase_ready(const kr_polyphase *p) {
  const int64_t last = p->n_in - p->half - 1; /* outputs before input sample last + 1 */
  if (last < p->i) return 0;
  return ((last + 1 - p->i) * p->out_hz - p->remainder + p->in_hz - 1) / p->in_hz;
}

static float dot(const float *a, const float *b, int64_t n) {
  float sums[LANES] = {0}, sum = 0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int k = 0; k < LANES; k++) sums[k] += a[i + k] * b[i + k];
  for (; i < n; i++) sum += a[i] * b[i];
  for (int k = 0; k < LANES; k++) sum += sums[k];
  return sum;
}

static float next_sample(const kr_polyphase *p) {
  const float *from = kr_queue_front(&p->queue);
  const int64_t at = p->remainder * p->n_rows;
  const float *row = p->taps + at / p->out_hz * p->n_taps, beyond = (float)(at % p->out_hz) / (float)p->out_hz;
  const float sample = dot(row, from, p->n_taps);
  return beyond > 0 ? sample + beyond * (dot(row + p->n_taps, from, p->n_taps) - sample) : sample;
}

void kr_polyphase_pull(kr_polyphase *p, float *out, int64_t n) {
  if (!p->half) {
    memcpy(out, kr_queue_front(&p->queue), (size_t)n * sizeof *out);
    p->i += n, p->queue.begin += n;
    return;
  }
  for (int64_t k = 0; k < n; k++) {
    out[k] = next_sample(p);
    const int64_t time = p->remainder + p->in_hz, step = time / p->out_hz;
    p->remainder = time % p->out_hz, p->i += step;
    p->queue.begin += step;
  }
}
