/* data.c: opens and counts sources; worker threads fill a ring of steps ahead of the caller (data.h). */
#define _GNU_SOURCE
#include "data.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "arena.h"
#include "clock.h"
#include "item.h"
#include "pool.h"
#include "random.h"
#include "status.h"

enum { MOST_WORKERS = 256 };

typedef struct step {
  float *noisy, *clean; /* batch items */
  int64_t n_done;
  int32_t status;       /* of the first item that failed */
  char error[512];
} step;

struct kr_data {
  kr_data_config config;
  kr_arena *arena;
  kr_item_source source;
  kr_piece_file *files;
  int64_t n_items;
  double speech_s;
  pthread_mutex_t report_lock;
  /* the ring: items are claimed in order, steps wait at their number modulo n_ahead */
  pthread_mutex_t lock;
  pthread_cond_t work, ready, idle;
  pthread_t threads[MOST_WORKERS];
  int n_threads, n_busy, is_running, is_closing;
  step *steps;
  int64_t first_unclaimed_step, first_unclaimed_item, next_step;
  double waited_s;
};

/* ---- open ---- */
static int is_share(double v) { return v >= 0 && v <= 1; }

static int32_t check_config(const kr_data_config *c) {
  KR_CHECK(c->speech, KRAIT_ERR_ARGUMENT, "speech: give a folder, a list or a safetensors file of clean recordings");
  KR_CHECK(c->segment == 0 || (c->segment > 0 && c->stride > 0 && c->shift >= 0 && c->shift < c->segment),
           KRAIT_ERR_ARGUMENT,
           "segment %lld, stride %lld, shift %lld (in samples): stride must be positive, and shift less than segment",
           (long long)c->segment, (long long)c->stride, (long long)c->shift);
  KR_CHECK(c->snr_low_db <= c->snr_high_db && c->snr_low_db >= -100 && c->snr_high_db <= 100, KRAIT_ERR_ARGUMENT,
           "snr_range %d..%d: the lower end comes first, within -100 to 100 dB", c->snr_low_db, c->snr_high_db);
  KR_CHECK(c->level_float_db >= 0, KRAIT_ERR_ARGUMENT, "target_dB_FS_floating_value %d must not be negative",
           c->level_float_db);
  KR_CHECK(c->silence_s >= 0 && c->silence_s < 60 && c->reverb_early_s >= 0 && c->reverb_early_s < 10,
           KRAIT_ERR_ARGUMENT, "silence_length and reverb_early (in seconds) must not be negative");
  KR_CHECK(is_share(c->reverb_proportion) && (c->noise_proportion < 0 || is_share(c->noise_proportion)) &&
               is_share(c->gain_proportion) && is_share(c->speed_proportion) && is_share(c->band_proportion) &&
               is_share(c->rumble_proportion) && is_share(c->tilt_proportion) && is_share(c->babble_proportion) &&
               is_share(c->colour_proportion) && is_share(c->curve_proportion) && is_share(c->clip_proportion) &&
               is_share(c->codec_proportion),
           KRAIT_ERR_ARGUMENT, "a proportion must be from 0 to 1");
  KR_CHECK(c->batch >= 1 && c->batch <= 65536 && c->n_ranks >= 1 && c->rank >= 0 && c->rank < c->n_ranks,
           KRAIT_ERR_ARGUMENT, "batch %lld of rank %d of %d", (long long)c->batch, c->rank, c->n_ranks);
  KR_CHECK(c->repeats >= 1 && c->most_noises >= 1 && c->most_noises <= 16, KRAIT_ERR_ARGUMENT,
           "repeats must be 1 or more, most_noises 1 to 16");
  KR_CHECK(c->noise || c->noisy || c->noise_proportion == 0 || c->babble_proportion + c->colour_proportion >= 1,
           KRAIT_ERR_ARGUMENT, "noise: give a folder or list of noises, or noisy: the same recordings with noise");
  KR_CHECK(c->rir || c->reverb_proportion == 0, KRAIT_ERR_ARGUMENT,
           "reverb_proportion %g needs rir: a folder or list of room responses", c->reverb_proportion);
  return KRAIT_OK;
}

/* All four sources report through this function. */
static void report_line(void *user, const char *line) {
  kr_data *d = user;
  pthread_mutex_lock(&d->report_lock);
  if (d->config.report) d->config.report(d->config.user, line);
  pthread_mutex_unlock(&d->report_lock);
}

static const char *copy(kr_data *d, const char *text) {
  return text && *text ? kr_arena_copy(d->arena, text, strlen(text)) : NULL;
}

static int32_t open_sources(kr_data *d) {
  kr_data_config *c = &d->config;
  const char **const texts[] = {&c->speech, &c->speech_dir, &c->noisy, &c->noisy_dir,
                                &c->noise,  &c->noise_dir,  &c->rir,   &c->rir_dir};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) *texts[i] = copy(d, *texts[i]);
  KR_TRY(check_config(c));
  if (c->noise_proportion < 0) c->noise_proportion = c->noisy ? 0 : 1;
  d->source.config = c;
  KR_TRY(kr_recordings_open(c->speech, c->speech_dir, "speech", report_line, d, &d->source.speech));
  if (c->noisy) KR_TRY(kr_recordings_open(c->noisy, c->noisy_dir, "noisy", report_line, d, &d->source.noisy));
  if (c->noise && c->noise_proportion > 0)
    KR_TRY(kr_recordings_open(c->noise, c->noise_dir, "noise", report_line, d, &d->source.noise));
  if (c->rir && c->reverb_proportion > 0)
    KR_TRY(kr_recordings_open(c->rir, c->rir_dir, "rir", report_line, d, &d->source.rir));
  return KRAIT_OK;
}

/* Headers of all speech files, on several threads, since this is mostly waiting for the disk. */
static void probe_range(void *user, int64_t begin, int64_t end, int worker) {
  kr_data *d = user;
  int64_t n_samples;
  int32_t n_channels;
  (void)worker;
  for (int64_t i = begin; i < end; i++) (void)kr_recordings_probe(d->source.speech, i, &n_samples, &n_channels);
}

static int32_t count_pieces(kr_data *d) {
  kr_item_source *s = &d->source;
  const kr_data_config *c = &d->config;
  const int64_t n = kr_recordings_count(s->speech);
  kr_pool *pool = kr_pool_open(kr_usable_cores() < 16 ? 16 : kr_usable_cores());
  d->files = kr_alloc_array((size_t)n, sizeof *d->files);
  if (pool) kr_pool_run(pool, n, 16, probe_range, d);
  kr_pool_close(&pool);
  KR_CHECK(d->files, KRAIT_ERR_NO_MEMORY, "no memory for %lld files", (long long)n);
  int64_t longest = 0;
  for (int64_t i = 0; i < n; i++) {
    kr_piece_file file = {.recording = i, .partner = -1, .first = s->n_pieces};
    int32_t n_channels;
    if (kr_recordings_probe(s->speech, i, &file.n_samples, &n_channels) < 0) continue;
    if (s->noisy && (file.partner = kr_recordings_find(s->noisy, kr_recordings_name(s->speech, i))) < 0) continue;
    s->n_pieces += kr_item_pieces(c, file.n_samples);
    d->speech_s += (double)file.n_samples / KR_RECORDINGS_HZ;
    longest = file.n_samples > longest ? file.n_samples : longest;
    d->files[s->n_files++] = file;
  }
  KR_CHECK(s->n_files > 0, KRAIT_ERR_FILE_FORMAT,
           s->noisy ? "no recording in %s has a match by name in %s" : "no recording in %s can be used", c->speech,
           c->noisy);
  s->files = d->files;
  s->n_samples = c->segment ? c->segment - c->shift : longest;
  d->n_items = s->n_pieces * c->repeats;
  return KRAIT_OK;
}

static int32_t open_steps(kr_data *d) {
  const size_t n = (size_t)(d->config.batch * d->source.n_samples);
  d->steps = kr_alloc_array((size_t)d->config.n_ahead, sizeof *d->steps);
  KR_CHECK(d->steps, KRAIT_ERR_NO_MEMORY, "no memory for the steps ahead");
  for (int i = 0; i < d->config.n_ahead; i++) {
    d->steps[i].noisy = kr_alloc_array(n, sizeof(float));
    d->steps[i].clean = kr_alloc_array(n, sizeof(float));
    KR_CHECK(d->steps[i].noisy && d->steps[i].clean, KRAIT_ERR_NO_MEMORY, "no memory for %d steps of %lld samples",
             d->config.n_ahead, (long long)n);
  }
  return KRAIT_OK;
}

int32_t kr_data_open(const kr_data_config *config, kr_data **data) {
  kr_data *d = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory for training data");
  d->config = *config;
  pthread_mutex_init(&d->lock, NULL);
  pthread_mutex_init(&d->report_lock, NULL);
  pthread_cond_init(&d->work, NULL);
  pthread_cond_init(&d->ready, NULL);
  pthread_cond_init(&d->idle, NULL);
  const int cores = kr_usable_cores();
  if (d->config.n_workers <= 0) d->config.n_workers = cores > 1 ? cores - 1 : 1;
  if (d->config.n_workers > MOST_WORKERS) d->config.n_workers = MOST_WORKERS;
  if (d->config.n_ahead <= 0) d->config.n_ahead = 4;
  d->arena = kr_arena_open();
  int32_t status = d->arena ? open_sources(d) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for training data");
  if (status == KRAIT_OK) status = count_pieces(d);
  if (status < 0) kr_data_close(&d);
  else *data = d;
  return status;
}

/* ---- what is known ---- */
kr_data_counts kr_data_count(kr_data *d) {
  kr_recordings *const all[] = {d->source.speech, d->source.noisy, d->source.noise, d->source.rir};
  kr_data_counts counts = {.n_files = d->source.n_files, .speech_s = d->speech_s};
  if (d->source.noise) counts.n_noises = kr_recordings_count(d->source.noise);
  if (d->source.rir) counts.n_rirs = kr_recordings_count(d->source.rir);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) counts.n_bad += all[i] ? kr_recordings_n_bad(all[i]) : 0;
  return counts;
}

kr_data_print kr_data_fingerprint(const kr_data *d) {
  const kr_recordings *const others[] = {d->source.noise, d->source.rir};
  kr_data_print print;
  uint64_t hash = 14695981039346656037u, n_samples = 0; /* FNV-1a, of whole numbers */
  for (int64_t i = 0; i < d->source.n_files; i++) {
    n_samples += (uint64_t)d->source.files[i].n_samples;
    hash = (hash ^ (uint64_t)d->source.files[i].n_samples) * 1099511628211u;
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    hash = (hash ^ (uint64_t)(others[i] ? kr_recordings_count(others[i]) : 0)) * 1099511628211u;
  snprintf(print.text, sizeof print.text, "%lld recordings of %llu samples, %016llx", (long long)d->source.n_files,
           (unsigned long long)n_samples, (unsigned long long)hash);
  return print;
}

int64_t kr_data_n_items(const kr_data *d) { return d->n_items; }
int64_t kr_data_samples(const kr_data *d) { return d->source.n_samples; }

int64_t kr_data_n_steps(const kr_data *d) {
  const int64_t n = d->n_items / (d->config.batch * d->config.n_ranks);
  return n > 0 ? n : 1;
}

int32_t kr_data_item(kr_data *d, int64_t epoch, int64_t index, float *noisy, float *clean, int64_t *n_samples) {
  KR_CHECK(index >= 0 && index < d->n_items, KRAIT_ERR_ARGUMENT, "item %lld of %lld", (long long)index,
           (long long)d->n_items);
  return kr_item_make(&d->source, epoch, index, noisy, clean, n_samples);
}

const char *kr_data_item_name(const kr_data *d, int64_t index) {
  return kr_recordings_name(d->source.speech, kr_item_file(&d->source, index)->recording);
}
double kr_data_item_snr_db(kr_data *d, int64_t epoch, int64_t index) {
  return (double)kr_item_snr_db(&d->source, epoch, index);
}

/* ---- the ring ---- */
static int32_t make_for_step(kr_data *d, int64_t at_step, int64_t item, float *noisy, float *clean) {
  const int64_t n_steps = kr_data_n_steps(d), epoch = at_step / n_steps,
                global_batch = d->config.batch * d->config.n_ranks;
  const int64_t position = (at_step % n_steps * global_batch + d->config.rank * d->config.batch + item) % d->n_items;
  const uint64_t key = kr_random_mix(d->config.seed ^ kr_random_mix((uint64_t)epoch + 1));
  int64_t n;
  return kr_data_item(d, epoch, d->config.shuffle ? kr_random_place(key, d->n_items, position) : position, noisy, clean,
                      &n);
}

/* The lock is held on entry and on return. */
static void make_claimed(kr_data *d, int64_t at_step, int64_t item) {
  step *s = &d->steps[at_step % d->config.n_ahead];
  pthread_mutex_unlock(&d->lock);
  const int64_t n = d->source.n_samples;
  const int32_t status = make_for_step(d, at_step, item, s->noisy + item * n, s->clean + item * n);
  pthread_mutex_lock(&d->lock);
  if (status < 0 && s->status == KRAIT_OK) {
    s->status = status;
    snprintf(s->error, sizeof s->error, "%s", krait_error_detail());
  }
  if (++s->n_done == d->config.batch) pthread_cond_broadcast(&d->ready);
}

static void *data_worker(void *user) {
  kr_data *d = user;
  pthread_mutex_lock(&d->lock);
  while (!d->is_closing) {
    if (!d->is_running || d->first_unclaimed_step >= d->next_step + d->config.n_ahead) {
      pthread_cond_wait(&d->work, &d->lock);
      continue;
    }
    const int64_t at_step = d->first_unclaimed_step, item = d->first_unclaimed_item++;
    if (d->first_unclaimed_item == d->config.batch) d->first_unclaimed_step++, d->first_unclaimed_item = 0;
    d->n_busy++;
    make_claimed(d, at_step, item);
    if (--d->n_busy == 0) pthread_cond_broadcast(&d->idle);
  }
  pthread_mutex_unlock(&d->lock);
  return NULL;
}

static void stop(kr_data *d) {
  d->is_running = 0;
  while (d->n_busy > 0) pthread_cond_wait(&d->idle, &d->lock);
}

static int32_t start_workers(kr_data *d) {
  while (d->n_threads < d->config.n_workers && pthread_create(&d->threads[d->n_threads], NULL, data_worker, d) == 0)
    d->n_threads++;
  KR_CHECK(d->n_threads > 0, KRAIT_ERR_NO_MEMORY, "no thread can be started for the training data");
  return KRAIT_OK;
}

int32_t kr_data_begin(kr_data *d, int64_t first_step) {
  KR_CHECK(first_step >= 0, KRAIT_ERR_ARGUMENT, "step %lld", (long long)first_step);
  if (!d->steps) KR_TRY(open_steps(d));
  pthread_mutex_lock(&d->lock);
  stop(d);
  for (int i = 0; i < d->config.n_ahead; i++) d->steps[i].n_done = 0, d->steps[i].status = KRAIT_OK;
  d->first_unclaimed_step = d->next_step = first_step;
  d->first_unclaimed_item = 0;
  d->waited_s = 0;
  d->is_running = 1;
  const int32_t status = start_workers(d);
  pthread_cond_broadcast(&d->work);
  pthread_mutex_unlock(&d->lock);
  return status;
}

int32_t kr_data_next(kr_data *d, float *noisy, float *clean) {
  KR_CHECK(d->is_running, KRAIT_ERR_ARGUMENT, "kr_data_begin comes before kr_data_next");
  const size_t bytes = (size_t)(d->config.batch * d->source.n_samples) * sizeof(float);
  const int64_t start_ns = kr_clock_ns();
  pthread_mutex_lock(&d->lock);
  step *s = &d->steps[d->next_step % d->config.n_ahead];
  while (s->n_done < d->config.batch) pthread_cond_wait(&d->ready, &d->lock);
  d->waited_s += (double)(kr_clock_ns() - start_ns) * 1e-9;
  pthread_mutex_unlock(&d->lock); /* no other thread uses a finished step */
  memcpy(noisy, s->noisy, bytes);
  memcpy(clean, s->clean, bytes);
  const int32_t status = s->status < 0 ? kr_fail(s->status, "%s", s->error) : KRAIT_OK;
  pthread_mutex_lock(&d->lock);
  s->n_done = 0;
  s->status = KRAIT_OK;
  d->next_step++;
  pthread_cond_broadcast(&d->work);
  pthread_mutex_unlock(&d->lock);
  return status;
}

double kr_data_waited_s(const kr_data *d) { return d->waited_s; }

void kr_data_close(kr_data **data) {
  kr_data *d = *data;
  if (!d) return;
  pthread_mutex_lock(&d->lock);
  d->is_closing = 1;
  pthread_cond_broadcast(&d->work);
  pthread_mutex_unlock(&d->lock);
  for (int i = 0; i < d->n_threads; i++) pthread_join(d->threads[i], NULL);
  for (int i = 0; d->steps && i < d->config.n_ahead; i++) kr_free(d->steps[i].noisy), kr_free(d->steps[i].clean);
  kr_free(d->steps);
  kr_free(d->files);
  kr_recordings_close(&d->source.speech);
  kr_recordings_close(&d->source.noisy);
  kr_recordings_close(&d->source.noise);
  kr_recordings_close(&d->source.rir);
  kr_arena_close(&d->arena);
  pthread_cond_destroy(&d->work);
  pthread_cond_destroy(&d->ready);
  pthread_cond_destroy(&d->idle);
  pthread_mutex_destroy(&d->lock);
  pthread_mutex_destroy(&d->report_lock);
  kr_free(d);
  *data = NULL;
}
