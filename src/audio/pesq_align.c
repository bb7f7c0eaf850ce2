/* pesq_align.c: aligns the other signal: pauses and speech by level, utterances, and a delay for each, first in steps
 * of 4 ms by the envelopes, then in samples by a vote of frames; long utterances are split if that increases the
 * confidence of both halves. */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "convolve.h"
#include "lane_fft.h"
#include "pesq_parts.h"
#include "status.h"

enum {
  STEP = KR_PESQ_STEP, MARGIN_STEPS = KR_PESQ_MARGIN_STEPS,
  SHORTEST_SPEECH = 4, LONGEST_GAP = 50, SHORTEST_UTTERANCE = 50, SHORTEST_TO_CUT = 200, MOST_CUTS = 41,
  FRAME = 1024, HOP = FRAME / 4, SPREAD = FRAME / 64, /* samples */
  LANES = 8, /* frames that vote at once */
  LONGEST_SWEPT = 16384 /* steps, about a minute */
};

/* ---- speech and pauses ---- */
typedef struct activity {
  float *level;
  unsigned char *is_speech;
  int64_t n;
  float floor;
  double threshold;
} activity;

/* The end of the next run of equal is_speech that begins at or after `from`; *from becomes its start. 0: no more. */
static int64_t next_run(const activity *a, int64_t *from) {
  while (*from < a->n && !a->is_speech[*from]) ++*from;
  if (*from == a->n) return 0;
  int64_t end = *from;
  while (end < a->n && a->is_speech[end]) end++;
  return end;
}

/* Twelve iterations: two standard deviations above the mean of the values below. */
static void find_threshold(activity *a) {
  double sum = 0;
  for (int64_t i = 0; i < a->n; i++) sum += a->level[i];
  a->threshold = sum / (double)a->n;
  for (int64_t i = 0; i < a->n; i++) a->level[i] = fmaxf(a->level[i], a->floor);
  for (int round = 0; round < 12; round++) {
    double mean = 0, square = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < a->n; i++)
      if (a->level[i] <= a->threshold) mean += a->level[i], count++;
    if (count) mean /= (double)count;
    for (int64_t i = 0; i < a->n; i++)
      if (a->level[i] <= a->threshold) square += (a->level[i] - mean) * (a->level[i] - mean);
    a->threshold = 1.001 * (mean + 2 * (count ? sqrt(square / (double)count) : 0));
  }
}

/* Marks steps above the threshold; *is_quiet: these are 30 dB above the rest. */
static void classify(activity *a, int *is_quiet) {
  double speech = 0, rest = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < a->n; i++) {
    if (a->level[i] > a->threshold) speech += a->level[i], count++;
    else rest += a->level[i];
  }
  if (count) speech /= (double)count;
  else a->threshold = -1;
  rest = count < a->n ? rest / (double)(a->n - count) : 1;
  for (int64_t i = 0; i < a->n; i++) a->is_speech[i] = a->level[i] > a->threshold;
  *is_quiet = speech >= 1000 * rest;
}

static void close_ends(activity *a) {
  a->level[0] = a->level[a->n - 1] = a->floor;
  a->is_speech[0] = a->is_speech[a->n - 1] = 0;
}

/* Runs that are too short, or too weak in a quiet recording, are not speech. */
static void drop_runs(activity *a, int is_quiet) {
  for (int64_t start = 0, end; (end = next_run(a, &start)) > 0; start = end)
    if (end - start <= SHORTEST_SPEECH) memset(a->is_speech + start, 0, (size_t)(end - start));
  for (int64_t start = 0, end; is_quiet && (end = next_run(a, &start)) > 0; start = end) {
    double sum = 0;
    for (int64_t i = start; i < end; i++) sum += a->level[i];
    if (sum < 3 * a->threshold * (double)(end - start)) memset(a->is_speech + start, 0, (size_t)(end - start));
  }
}

static void join_runs(activity *a) {
  int64_t start = 0, last_end = 0, end;
  for (; (end = next_run(a, &start)) > 0; last_end = start = end)
    for (int64_t i = last_end; last_end > 0 && start - last_end <= LONGEST_GAP && i < start; i++)
      a->is_speech[i] = 1, a->level[i] = a->floor;
  if (last_end > 0) return;
  memset(a->is_speech, 1, (size_t)a->n); /* no speech found: everything counts as speech */
  close_ends(a);
}

/* Two steps before and after each run. */
static void soften_edges(activity *a) {
  for (int64_t i = 3; i < a->n - 2; i++) {
    if (a->is_speech[i] && !a->is_speech[i - 2]) {
      a->level[i - 2] = a->level[i] * 0.1f;
      a->level[i - 1] = a->level[i] * 0.3f;
      a->is_speech[i - 2] = a->is_speech[i - 1] = 1;
      i++;
    }
    if (!a->is_speech[i] && a->is_speech[i - 1]) {
      a->level[i] = a->level[i - 1] * 0.3f;
      a->level[i + 1] = a->level[i - 1] * 0.1f;
      a->is_speech[i] = a->is_speech[i + 1] = 1;
      i += 3;
    }
  }
}

/* ---- memory ---- */
struct kr_pesq_aligner {
  kr_pesq_pair *pair;
  int64_t n_steps;
  kr_convolver *envelopes; /* for whole envelopes */
  kr_lane_fft frames;      /* for LANES frames */
  float window[FRAME];
  unsigned char *is_speech; /* (n_steps) */
  float *products;          /* sums by shift, (2 n_steps + 1) */
};
typedef struct kr_pesq_aligner aligner;

int32_t kr_pesq_aligner_open(kr_pesq_pair *pair, kr_pesq_aligner **opened) {
  aligner *w = *opened = kr_zalloc(sizeof *w);
  KR_CHECK(w, KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  w->pair = pair, w->n_steps = pair->n / STEP;
  for (int i = 0; i < FRAME; i++) w->window[i] = (float)(0.5 - 0.5 * cos(6.283185307179586 * i / FRAME));
  w->is_speech = kr_alloc_array((size_t)w->n_steps, 1);
  w->products = kr_alloc_array((size_t)(2 * w->n_steps + 1), sizeof *w->products);
  int32_t status = w->is_speech && w->products ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  if (status == KRAIT_OK) status = kr_convolver_open(2 * kr_power_of_two(w->n_steps), &w->envelopes);
  if (status == KRAIT_OK) status = kr_lane_fft_open(FRAME, LANES, &w->frames);
  if (status < 0) kr_pesq_aligner_close(opened);
  return status;
}

void kr_pesq_aligner_close(kr_pesq_aligner **opened) {
  aligner *w = *opened;
  if (!w) return;
  kr_convolver_close(&w->envelopes), kr_lane_fft_close(&w->frames);
  kr_free(w->is_speech), kr_free(w->products), kr_free(w);
  *opened = NULL;
}

void kr_pesq_find_speech(kr_pesq_aligner *w, kr_pesq_signal *s) {
  const int64_t n_steps = w->n_steps;
  activity a = {.level = s->level, .is_speech = w->is_speech, .n = n_steps};
  float loudest = 0;
  for (int64_t i = 0; i < n_steps; i++) {
    double sum = 0;
    for (int k = 0; k < STEP; k++) sum += (double)s->aligned_by[i * STEP + k] * s->aligned_by[i * STEP + k];
    s->level[i] = (float)(sum / STEP);
    loudest = fmaxf(loudest, s->level[i]);
  }
  a.floor = loudest > 0 ? loudest * 1e-4f : 1;
  int is_quiet;
  find_threshold(&a);
  classify(&a, &is_quiet);
  close_ends(&a);
  drop_runs(&a, is_quiet);
  join_runs(&a);
  soften_edges(&a);
  const double threshold = a.threshold > 0 ? a.threshold : a.floor;
  for (int64_t i = 0; i < n_steps; i++) {
    if (!a.is_speech[i]) s->level[i] = 0;
    s->logs[i] = s->level[i] <= threshold ? 0 : (float)log(s->level[i] / threshold);
  }
}

/* ---- delays ---- */
/* In samples, by the envelopes of steps [start, end) when the other is late by about `guess`. */
static int64_t crude_delay(aligner *w, int64_t start, int64_t end, int64_t guess) {
  const int64_t n_steps = w->n_steps;
  int64_t other_start = start + guess / STEP;
  if (other_start < 0) start = -guess / STEP, other_start = 0;
  const int64_t n = end - start, n_other = other_start + n > n_steps ? n_steps - other_start : n;
  if (n <= 1 || n_other <= 1) return guess;
  const float *at =
      kr_convolver_correlate(w->envelopes, w->pair->clean.logs + start, n, w->pair->other.logs + other_start, n_other);
  const int64_t size = kr_convolver_size(w->envelopes);
  float most = 0;
  int64_t best = 0;
  for (int64_t shift = 1 - n; shift < n_other; shift++) {
    const float v = at[shift < 0 ? shift + size : shift];
    if (v > most) most = v, best = shift;
  }
  return best * STEP + guess;
}

/* The votes of frames for delays around a crude one. */
typedef struct votes {
  double counts[FRAME], sum;
  int64_t at, other_at; /* where the next frame begins */
} votes;

/* n frames of both signals, HOP apart in the given direction: the clean one's are real parts, the other's imaginary. */
static void load_frames(aligner *w, const votes *v, int n, int direction) {
  float *const re = w->frames.re, *const im = w->frames.im;
  if (n < LANES) memset(re, 0, FRAME * LANES * sizeof *re), memset(im, 0, FRAME * LANES * sizeof *im);
  for (int l = 0; l < n; l++) {
    const float *const clean = w->pair->clean.aligned_by + v->at + l * direction * HOP,
                *const other = w->pair->other.aligned_by + v->other_at + l * direction * HOP;
    for (int i = 0; i < FRAME; i++)
      re[i * LANES + l] = clean[i] * w->window[i], im[i * LANES + l] = other[i] * w->window[i];
  }
}

/* From the spectra of pairs to those of their correlations, two in one transform of half the lanes: a lane of the
 * first half as real part, its neighbour of the second as imaginary. Both parts are exchanged, for the inverse. */
static void correlate_spectra(kr_lane_fft *fft) {
  enum { HALF = LANES / 2 };
  const float scale = 0.25f / FRAME;
  for (int k = 0; k <= FRAME / 2; k++) {
    const int m = (FRAME - k) % FRAME;
    const float *const x_re = fft->re + k * LANES, *const x_im = fft->im + k * LANES,
                *const y_re = fft->re + m * LANES, *const y_im = fft->im + m * LANES;
    float re[LANES], im[LANES];
    for (int l = 0; l < LANES; l++) {
      const float a_re = x_re[l] + y_re[l], a_im = x_im[l] - y_im[l], b_re = x_im[l] + y_im[l],
                  b_im = y_re[l] - x_re[l];
      re[l] = (a_re * b_re + a_im * b_im) * scale, im[l] = (a_re * b_im - a_im * b_re) * scale;
    }
    for (int l = 0; l < HALF; l++) {
      fft->im_next[k * HALF + l] = re[l] - im[l + HALF], fft->re_next[k * HALF + l] = im[l] + re[l + HALF];
      fft->im_next[m * HALF + l] = re[l] + im[l + HALF], fft->re_next[m * HALF + l] = re[l + HALF] - im[l];
    }
  }
  kr_lane_fft_turn(fft);
  kr_lane_fft_run(fft, HALF);
}

/* A frame votes for the shifts at which it correlates within 1 % of its best. correlations: (FRAME, LANES / 2). */
static void count_votes(const float *correlations, int n, votes *v) {
  enum { HALF = LANES / 2 };
  float most[HALF] = {0}, bound[HALF];
  double weight[HALF];
  for (int i = 0; i < FRAME; i++)
    for (int l = 0; l < HALF; l++) {
      const float c = fabsf(correlations[i * HALF + l]);
      most[l] = c > most[l] ? c : most[l];
    }
  for (int l = 0; l < HALF; l++) {
    const double b = 0.99 * (double)most[l];
    bound[l] = l < n ? (float)b : INFINITY, weight[l] = pow(b, 0.125);
  }
  for (int i = 0; i < FRAME; i++) {
    int n_votes = 0;
    for (int l = 0; l < HALF; l++) n_votes += fabsf(correlations[i * HALF + l]) > bound[l];
    for (int l = 0; l < HALF && n_votes; l++)
      if (fabsf(correlations[i * HALF + l]) > bound[l]) v->counts[i] += weight[l], v->sum += weight[l];
  }
}

/* The next n frames, forward or backward. */
static void vote(aligner *w, votes *v, int64_t n_frames, int direction) {
  for (int64_t done = 0; done < n_frames; done += LANES) {
    const int n = n_frames - done < LANES ? (int)(n_frames - done) : LANES;
    load_frames(w, v, n, direction);
    kr_lane_fft_run(&w->frames, LANES);
    correlate_spectra(&w->frames);
    count_votes(w->frames.im, n, v);
    count_votes(w->frames.re, n - LANES / 2, v);
    v->at += n * direction * HOP, v->other_at += n * direction * HOP;
  }
}

static void vote_forward(aligner *w, votes *v, int64_t end) {
  const int64_t left = end - v->at, other_left = w->pair->n - v->other_at, n = left < other_left ? left : other_left;
  if (n >= FRAME) vote(w, v, (n - FRAME) / HOP + 1, 1);
}

static void vote_backward(aligner *w, votes *v, int64_t start) {
  const int64_t left = v->at - start, n = left < v->other_at ? left : v->other_at;
  if (n >= 0) vote(w, v, n / HOP + 1, -1);
}

static votes votes_from(int64_t start, int64_t guess) {
  votes v = {.at = start, .other_at = start + guess};
  if (v.other_at < 0) v.at = -guess, v.other_at = 0;
  return v;
}

static votes votes_before(const kr_pesq_pair *pair, int64_t end, int64_t guess) {
  votes v = {.at = end - FRAME, .other_at = end - FRAME + guess};
  if (v.other_at + FRAME > pair->n) v.other_at = pair->n - FRAME, v.at = v.other_at - guess;
  return v;
}

/* The shift with the most votes, neighbours weighted by distance; its share of all votes is the confidence. */
static int64_t elect(const votes *v, double *confidence) {
  double sums[FRAME] = {0}, most = 0;
  int64_t best = 0;
  for (int i = 0; i < FRAME; i++) /* most shifts have no vote */
    for (int k = 1 - SPREAD; k < SPREAD && v->counts[i] > 0; k++)
      sums[(i + k + FRAME) % FRAME] += v->counts[i] * (SPREAD - (k < 0 ? -k : k)) / SPREAD;
  for (int i = 0; i < FRAME; i++)
    if (sums[i] > most) most = sums[i], best = i;
  *confidence = v->sum > 0 ? most / v->sum : 0;
  return best >= FRAME / 2 ? best - FRAME : best;
}

/* ---- utterances ---- */
/* Runs of speech that are long enough and lie inside the other signal, with the delay of each. */
static void find_utterances(aligner *w, int64_t overall) {
  kr_pesq_pair *p = w->pair;
  const int64_t n_steps = w->n_steps, first = SHORTEST_UTTERANCE - overall / STEP,
                last = (p->n - overall) / STEP - SHORTEST_UTTERANCE;
  for (int64_t i = 0, start = -1; i < n_steps && p->n_utterances < KR_PESQ_MOST_UTTERANCES - 1; i++) {
    const int is_speech = p->clean.level[i] > 0;
    if (is_speech && start < 0) start = i;
    if (start < 0 || (is_speech && i < n_steps - 1)) continue;
    if (i - start >= SHORTEST_UTTERANCE && start < last && i > first) {
      kr_pesq_utterance *u = &p->utterances[p->n_utterances++];
      const int64_t from = start > MARGIN_STEPS ? start - MARGIN_STEPS : 0,
                    to = i + MARGIN_STEPS < n_steps - 1 ? i + MARGIN_STEPS : n_steps - 1;
      *u = (kr_pesq_utterance){.start = start, .end = i, .crude_delay = crude_delay(w, from, to, overall)};
      votes v = votes_from(from * STEP, u->crude_delay);
      vote_forward(w, &v, to * STEP);
      u->delay = u->crude_delay + elect(&v, &u->confidence);
    }
    start = -1;
  }
}

/* Each gets half the pause on both sides, without leaving the other signal or overlapping the part used by a neighbour
 * there. */
static void widen_utterances(kr_pesq_pair *p, int64_t n_steps) {
  kr_pesq_utterance *u = p->utterances, *last = &u[p->n_utterances - 1];
  u[0].start = MARGIN_STEPS;
  last->end = n_steps - MARGIN_STEPS;
  for (int i = 1; i < p->n_utterances; i++) u[i].start = u[i - 1].end = (u[i].start + u[i - 1].end) / 2;
  if (u[0].start * STEP + u[0].delay < KR_PESQ_MARGIN) u[0].start = MARGIN_STEPS + (STEP - 1 - u[0].delay) / STEP;
  if (last->end * STEP + last->delay > p->n - KR_PESQ_MARGIN) last->end = (p->n - last->delay) / STEP - MARGIN_STEPS;
  for (int i = 1; i < p->n_utterances; i++) {
    const int64_t begins = u[i].start * STEP + u[i].delay, ends = u[i - 1].end * STEP + u[i - 1].delay;
    if (begins >= ends) continue;
    u[i].start = (STEP - 1 + (begins + ends) / 2 - u[i].delay) / STEP;
    u[i - 1].end = ((begins + ends) / 2 - u[i - 1].delay) / STEP;
  }
}

/* ---- cutting an utterance in two ---- */
typedef struct half {
  int64_t crude_delay, delay;
  double confidence;
  int is_done;
} half;
typedef struct cuts {
  int64_t at[MOST_CUTS];
  half before[MOST_CUTS], after[MOST_CUTS];
  int n;
} cuts;

static void elect_half(const votes *v, half *h) {
  h->delay = h->crude_delay + elect(v, &h->confidence);
  h->is_done = 1;
}

/* Splits whose halves have the same crude delay share the votes of their common frames. */
static void elect_before(aligner *w, const kr_pesq_utterance *u, cuts *c) {
  for (int first = 0; first < c->n; first++) {
    if (c->before[first].is_done) continue;
    votes v = votes_from(u->start * STEP, c->before[first].crude_delay);
    for (int i = first; i < c->n; i++) {
      if (c->before[i].is_done || c->before[i].crude_delay != c->before[first].crude_delay) continue;
      vote_forward(w, &v, c->at[i] * STEP);
      elect_half(&v, &c->before[i]);
    }
  }
}

static void elect_after(aligner *w, const kr_pesq_utterance *u, cuts *c) {
  for (int i = 0; i < c->n; i++)
    c->after[i].is_done = c->before[i].confidence <= u->confidence; /* not a better split: skipped */
  for (int last = c->n - 1; last >= 0; last--) {
    if (c->after[last].is_done) continue;
    votes v = votes_before(w->pair, u->end * STEP, c->after[last].crude_delay);
    for (int i = last; i >= 0; i--) {
      if (c->after[i].is_done || c->after[i].crude_delay != c->after[last].crude_delay) continue;
      vote_backward(w, &v, c->at[i] * STEP);
      elect_half(&v, &c->after[i]);
    }
  }
}

/* Parts of both envelopes: steps [begin, end). */
typedef struct windows {
  int64_t begin, end, other_begin, other_end;
} windows;

/* Those of crude_delay. */
static windows windows_of(const aligner *w, int64_t start, int64_t end, int64_t shift) {
  const int64_t begin = start + shift < 0 ? -shift : start, last = end < w->n_steps ? end : w->n_steps;
  return (windows){begin, last, begin + shift, last + shift < w->n_steps ? last + shift : w->n_steps};
}

/* products[j - i] += clean[i] other[j]. */
static void add_products(aligner *w, int64_t begin, int64_t end, int64_t other_begin, int64_t other_end) {
  const float *const other = w->pair->other.logs;
  for (int64_t i = begin; i < end; i++) {
    const float clean = w->pair->clean.logs[i];
    float *const sums = w->products + w->n_steps - i;
    if (clean != 0)
      for (int64_t j = other_begin; j < other_end; j++) sums[j] += clean * other[j];
  }
}

static int64_t best_shift(const aligner *w, const windows *in, int64_t shift) {
  float most = 0;
  int64_t best = 0;
  for (int64_t k = in->other_begin - in->end + 1; k < in->other_end - in->begin; k++)
    if (w->products[w->n_steps + k] > most) most = w->products[w->n_steps + k], best = k - shift;
  return best;
}

/* The crude delays of all parts before a cut (direction 1: from the utterance's start on) or after it (-1), like
 * crude_delay. Each part continues the last one, and so do its sums of products. */
static void sweep_delays(aligner *w, const kr_pesq_utterance *u, int direction, cuts *c) {
  const int64_t shift = u->crude_delay / STEP;
  windows before = {0};
  memset(w->products, 0, (size_t)(2 * w->n_steps + 1) * sizeof *w->products);
  for (int i = direction > 0 ? 0 : c->n - 1, is_first = 1; i >= 0 && i < c->n; i += direction) {
    const windows now =
        direction > 0 ? windows_of(w, u->start, c->at[i], shift) : windows_of(w, c->at[i], u->end, shift);
    half *const h = direction > 0 ? &c->before[i] : &c->after[i];
    h->crude_delay = u->crude_delay;
    if (now.end - now.begin <= 1 || now.other_end - now.other_begin <= 1) continue;
    if (is_first) add_products(w, now.begin, now.end, now.other_begin, now.other_end);
    else if (direction > 0) {
      add_products(w, before.end, now.end, now.other_begin, now.other_end);
      add_products(w, before.begin, before.end, before.other_end, now.other_end);
    } else {
      add_products(w, now.begin, before.begin, now.other_begin, now.other_end);
      add_products(w, before.begin, before.end, now.other_begin, before.other_begin);
    }
    h->crude_delay += best_shift(w, &now, shift) * STEP;
    before = now, is_first = 0;
  }
}

/* Sweeping needs work by the square of the length, with a small factor. */
static void find_crude_delays(aligner *w, const kr_pesq_utterance *u, cuts *c) {
  if (u->end - u->start <= LONGEST_SWEPT) {
    sweep_delays(w, u, 1, c);
    sweep_delays(w, u, -1, c);
    return;
  }
  for (int i = 0; i < c->n; i++) {
    c->before[i].crude_delay = crude_delay(w, u->start, c->at[i], u->crude_delay);
    c->after[i].crude_delay = crude_delay(w, c->at[i], u->end, u->crude_delay);
  }
}

/* The split with the highest total confidence, with each half more confident than the whole, and at least one step
 * apart; -1: none. */
static int best_cut(aligner *w, const kr_pesq_utterance *u, int64_t speech_start, int64_t speech_end, cuts *c) {
  const int64_t length = speech_end - speech_start, unit = FRAME / (4 * STEP);
  const int64_t step = (int64_t)((0.801 * (double)length + (double)(40 * unit) - 1) / (double)(40 * unit)) * unit,
                pad = length / 10 < 75 ? 75 : length / 10;
  memset(c, 0, sizeof *c);
  do {
    c->at[c->n] = speech_start + pad + c->n * step;
    c->n++;
  } while (speech_start + pad + c->n * step <= speech_end - pad && c->n < 40);
  find_crude_delays(w, u, c);
  elect_before(w, u, c);
  elect_after(w, u, c);
  int best = -1;
  double most = 0;
  for (int i = 0; i < c->n; i++) {
    const half *a = &c->before[i], *b = &c->after[i];
    const int64_t apart = b->delay > a->delay ? b->delay - a->delay : a->delay - b->delay;
    if (apart >= STEP && a->confidence + b->confidence > most && a->confidence > u->confidence &&
        b->confidence > u->confidence)
      best = i, most = a->confidence + b->confidence;
  }
  return best;
}

static void cut_utterance(kr_pesq_pair *p, int which, int64_t at, const half *a, const half *b) {
  kr_pesq_utterance *u = &p->utterances[which];
  memmove(u + 1, u, (size_t)(p->n_utterances - which) * sizeof *u);
  p->n_utterances++;
  const int64_t overlap =
      b->delay < a->delay
          ? 0
          : (b->delay - a->delay) / (2 * STEP); /* time that was cut out of the other signal belongs to both */
  u[0] = (kr_pesq_utterance){u[0].start, at + overlap, a->crude_delay, a->delay, a->confidence};
  u[1] = (kr_pesq_utterance){at - overlap, u[1].end, b->crude_delay, b->delay, b->confidence};
  if ((u[0].start - MARGIN_STEPS) * STEP + a->delay < 0) u[0].start = MARGIN_STEPS + (STEP - 1 - a->delay) / STEP;
  if (u[1].end * STEP + b->delay > p->n - KR_PESQ_MARGIN) u[1].end = (p->n - b->delay) / STEP - MARGIN_STEPS;
}

static void cut_utterances(aligner *w) {
  kr_pesq_pair *p = w->pair;
  const int64_t n_steps = w->n_steps;
  for (int i = 0; i < p->n_utterances && p->n_utterances < KR_PESQ_MOST_UTTERANCES;) {
    const kr_pesq_utterance *u = &p->utterances[i];
    int64_t start = u->start, end = u->end < n_steps ? u->end : n_steps - 1;
    while (start >= 0 && start < end && p->clean.level[start] <= 0) start++;
    while (end > u->start && p->clean.level[end] <= 0) end--;
    cuts c;
    const int best = u->start >= 0 && end + 1 - start >= SHORTEST_TO_CUT ? best_cut(w, u, start, end + 1, &c) : -1;
    if (best >= 0) cut_utterance(p, i, c.at[best], &c.before[best], &c.after[best]);
    else i++;
  }
}

int32_t kr_pesq_align(kr_pesq_aligner *w) {
  w->pair->n_utterances = 0;
  find_utterances(w, crude_delay(w, 0, w->n_steps, 0));
  KR_CHECK(w->pair->n_utterances > 0, KRAIT_ERR_UNSUPPORTED, "PESQ: no speech was found in the clean signal");
  widen_utterances(w->pair, w->n_steps);
  cut_utterances(w);
  return KRAIT_OK;
}
