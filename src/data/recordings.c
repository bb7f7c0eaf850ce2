/* recordings.c: folders, lists and safetensors as recordings; reports each bad file once; caches decoded recordings in
 * memory. */
#define _GNU_SOURCE
#include "recordings.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "alloc.h"
#include "arena.h"
#include "audio.h"
#include "half.h"
#include "mapfile.h"
#include "mix.h"
#include "open_error.h"
#include "resample.h"
#include "status.h"
#include "track.h"
#include "weights.h"

enum { MAX_DEPTH = 64, UNKNOWN = 0, PROBED, GOOD, BAD };
static const int64_t KEPT_BYTES = (int64_t)1 << 30; /* decoded, over all sources of this kind */

typedef struct recording {
  char *path, *name;
  const kr_weight *tensor;
  int32_t state;        /* under the lock */
  int64_t n_samples;
  int32_t n_channels;
  int16_t *kept;    /* all of channel 0 while there is space: as 16 bits if that is exact, */
  float *kept_wide; /* as float otherwise; under the lock until set, then constant */
} recording;

struct kr_recordings {
  kr_arena *arena;
  recording *items;
  int64_t n, capacity, n_bad, kept_bytes;
  int64_t *by_base; /* sorted by the last part of the name */
  const char *what;
  kr_weights *weights;
  kr_recordings_report report;
  void *user;
  pthread_mutex_t lock;
};

static const char *base_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* ---- listing ---- */
static int32_t add_recordings(kr_recordings *r, const char *path, const char *inside, const kr_weight *tensor) {
  if (r->n == r->capacity) {
    const int64_t capacity = r->capacity ? 2 * r->capacity : 256;
    recording *grown = kr_realloc(r->items, (size_t)r->capacity * sizeof *grown, (size_t)capacity * sizeof *grown);
    KR_CHECK(grown, KRAIT_ERR_NO_MEMORY, "no memory for a list of recordings");
    r->items = grown, r->capacity = capacity;
  }
  const char *dot = tensor ? NULL : strrchr(base_of(inside), '.');
  recording *item = &r->items[r->n++];
  *item = (recording){.tensor = tensor, .n_channels = 1};
  item->path = kr_arena_copy(r->arena, path, strlen(path));
  item->name = kr_arena_copy(r->arena, inside, dot && dot != base_of(inside) ? (size_t)(dot - inside) : strlen(inside));
  return KRAIT_OK;
}

static int is_audio(const char *name) {
  static const char *const extensions[] = {"wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "aifc",
                                           "au",  "snd",  "caf", "w64", "rf64", "sph", "m4a", "mp4",  "webm"};
  const char *dot = strrchr(name, '.');
  for (size_t i = 0; dot && dot != name && i < sizeof extensions / sizeof *extensions; i++)
    if (strcasecmp(dot + 1, extensions[i]) == 0) return 1;
  return 0;
}

/* Links to folders are not followed: they may form a loop. */
static int32_t walk(kr_recordings *r, const char *folder, const char *inside, int depth) {
  KR_CHECK(depth <= MAX_DEPTH, KRAIT_ERR_FILE_OPEN, "%s is more than %d folders deep", folder, MAX_DEPTH);
  DIR *dir = opendir(folder);
  if (!dir) return kr_fail_os(KRAIT_ERR_FILE_OPEN, errno, "cannot read the folder %s", folder);
  int32_t status = KRAIT_OK;
  for (struct dirent *entry; status == KRAIT_OK && (entry = readdir(dir));) {
    struct stat info;
    if (entry->d_name[0] == '.') continue;
    char *path = kr_arena_print(r->arena, "%s/%s", folder, entry->d_name),
         *below = *inside ? kr_arena_print(r->arena, "%s/%s", inside, entry->d_name)
                          : kr_arena_print(r->arena, "%s", entry->d_name);
    if (lstat(path, &info) != 0) continue;
    if (S_ISDIR(info.st_mode)) status = walk(r, path, below, depth + 1);
    else if (is_audio(entry->d_name)) status = add_recordings(r, path, below, NULL);
  }
  closedir(dir);
  return status;
}

static int32_t read_list(kr_recordings *r, const char *list, const char *dir) {
  kr_mapfile file;
  KR_TRY(kr_mapfile_open(list, &file));
  const char *slash = strrchr(list, '/'), *at = (const char *)file.bytes, *end = at + file.n_bytes;
  const char *folder = dir ? dir : slash ? kr_arena_copy(r->arena, list, (size_t)(slash - list)) : ".";
  int32_t status = KRAIT_OK;
  while (status == KRAIT_OK && at < end) {
    const char *stop = memchr(at, '\n', (size_t)(end - at)), *last = stop ? stop : end;
    const char *next = stop ? stop + 1 : end;
    while (last > at && strchr(" \t\r", last[-1])) last--;
    while (at < last && strchr(" \t", *at)) at++;
    char *line = kr_arena_copy(r->arena, at, (size_t)(last - at));
    if (*line && *line != '#')
      status = add_recordings(r, *line == '/' ? line : kr_arena_print(r->arena, "%s/%s", folder, line), line, NULL);
    at = next;
  }
  kr_mapfile_close(&file);
  return status;
}

/* FILE or FILE:PREFIX. */
static int32_t read_tensors(kr_recordings *r, const char *source, const char *colon) {
  const char *path = colon ? kr_arena_copy(r->arena, source, (size_t)(colon - source)) : source,
             *prefix = colon ? colon + 1 : "";
  KR_TRY(kr_weights_open(path, &r->weights));
  for (int64_t i = 0; i < kr_weights_count(r->weights); i++) {
    const kr_weight *w = kr_weights_at(r->weights, i);
    const int is_pcm = w->dtype == KRAIT_F32 || w->dtype == KRAIT_F16 || w->dtype == KRAIT_I16;
    if (w->n_dims != 1 || !is_pcm || strncmp(w->name, prefix, strlen(prefix)) != 0) continue;
    KR_TRY(add_recordings(r, kr_arena_print(r->arena, "%s:%s", path, w->name), w->name + strlen(prefix), w));
    r->items[r->n - 1].n_samples = w->shape[0];
  }
  return KRAIT_OK;
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const recording *)a)->path, ((const recording *)b)->path);
}

static int by_base_name(const void *a, const void *b, void *user) {
  const kr_recordings *r = user;
  return strcmp(base_of(r->items[*(const int64_t *)a].name), base_of(r->items[*(const int64_t *)b].name));
}

static int32_t list_source(kr_recordings *r, const char *source, const char *dir) {
  struct stat info;
  const char *tensors = strstr(source, ".safetensors"), *after = tensors ? tensors + strlen(".safetensors") : NULL;
  const size_t length = strlen(source);
  if (tensors && (!*after || *after == ':')) return read_tensors(r, source, *after ? after : NULL);
  if (stat(source, &info) != 0) {
    char similar[4400] = "";
    const int reason = errno;
    kr_similar_file(source, similar, sizeof similar);
    return kr_fail(KRAIT_ERR_FILE_OPEN, "cannot open the %s %s: %s%s", r->what, source, strerror(reason), similar);
  }
  if (S_ISDIR(info.st_mode)) {
    KR_TRY(walk(r, source, "", 0));
    qsort(r->items, (size_t)r->n, sizeof *r->items, by_path); /* the same order on every file system */
    return KRAIT_OK;
  }
  if (length > 4 && strcmp(source + length - 4, ".txt") == 0) return read_list(r, source, dir);
  return add_recordings(r, source, base_of(source), NULL);
}

int32_t kr_recordings_open(const char *source, const char *dir, const char *what, kr_recordings_report report,
                           void *user, kr_recordings **recordings) {
  kr_recordings *r = kr_zalloc(sizeof *r);
  KR_CHECK(r, KRAIT_ERR_NO_MEMORY, "no memory for recordings");
  *r = (kr_recordings){
      .what = what, .report = report, .user = user, .lock = PTHREAD_MUTEX_INITIALIZER, .arena = kr_arena_open()};
  int32_t status = r->arena ? list_source(r, source, dir) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for recordings");
  if (status == KRAIT_OK && r->n == 0) status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: no recordings in %s", what, source);
  if (status == KRAIT_OK) r->by_base = kr_alloc_array((size_t)r->n, sizeof *r->by_base);
  if (status == KRAIT_OK && (!r->by_base || kr_arena_failed(r->arena)))
    status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld recordings", (long long)r->n);
  if (status == KRAIT_OK) {
    for (int64_t i = 0; i < r->n; i++) r->by_base[i] = i;
    qsort_r(r->by_base, (size_t)r->n, sizeof *r->by_base, by_base_name, r);
    *recordings = r;
  } else {
    kr_recordings_close(&r);
  }
  return status;
}

void kr_recordings_close(kr_recordings **recordings) {
  kr_recordings *r = *recordings;
  if (!r) return;
  for (int64_t i = 0; i < r->n; i++) kr_free(r->items[i].kept), kr_free(r->items[i].kept_wide);
  kr_free(r->items);
  kr_free(r->by_base);
  kr_weights_close(&r->weights);
  kr_arena_close(&r->arena);
  pthread_mutex_destroy(&r->lock);
  kr_free(r);
  *recordings = NULL;
}

int64_t kr_recordings_count(const kr_recordings *r) { return r->n; }
const char *kr_recordings_name(const kr_recordings *r, int64_t i) { return r->items[i].name; }

int64_t kr_recordings_n_bad(kr_recordings *r) {
  pthread_mutex_lock(&r->lock);
  const int64_t n = r->n_bad;
  pthread_mutex_unlock(&r->lock);
  return n;
}

int64_t kr_recordings_find(const kr_recordings *r, const char *name) {
  int64_t low = 0, high = r->n;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (strcmp(base_of(r->items[r->by_base[middle]].name), base_of(name)) < 0) low = middle + 1;
    else high = middle;
  }
  return low < r->n && strcmp(base_of(r->items[r->by_base[low]].name), base_of(name)) == 0 ? r->by_base[low] : -1;
}

/* ---- contents ---- */
static int32_t state_of(kr_recordings *r, recording *item) {
  pthread_mutex_lock(&r->lock);
  const int32_t state = item->state;
  pthread_mutex_unlock(&r->lock);
  return state;
}

/* Stores this thread's last error as the recording's error; reports it the first time. */
static int32_t mark_bad(kr_recordings *r, recording *item, int32_t status) {
  char line[512];
  if (status == KRAIT_ERR_NO_MEMORY) return status; /* not the recording's fault */
  snprintf(line, sizeof line, "%s skipped: %s", r->what, krait_error_detail());
  pthread_mutex_lock(&r->lock);
  const int is_new = item->state != BAD;
  item->state = BAD;
  r->n_bad += is_new;
  if (is_new && r->report) r->report(r->user, line);
  pthread_mutex_unlock(&r->lock);
  return kr_fail(status, "%s", line);
}

static int32_t read_header(recording *item, int64_t *n_samples, int32_t *n_channels) {
  if (item->tensor) {
    *n_samples = item->n_samples, *n_channels = 1;
    KR_CHECK(*n_samples > 0, KRAIT_ERR_FILE_FORMAT, "%s is empty", item->path);
    return KRAIT_OK;
  }
  kr_audio_in *in = NULL;
  KR_TRY(kr_audio_open(item->path, &in));
  const kr_audio_info info = *kr_audio_in_info(in);
  kr_audio_close(&in);
  KR_CHECK(info.sample_rate_hz >= KR_RECORDINGS_HZ, KRAIT_ERR_FILE_FORMAT,
           "%s has a sample rate of %d Hz; at least 16000 Hz are needed", item->path, info.sample_rate_hz);
  *n_samples = kr_resampled_length(info.n_frames, info.sample_rate_hz, KR_RECORDINGS_HZ);
  *n_channels = info.n_channels;
  return KRAIT_OK;
}

int32_t kr_recordings_probe(kr_recordings *r, int64_t i, int64_t *n_samples, int32_t *n_channels) {
  recording *item = &r->items[i];
  const int32_t state = state_of(r, item);
  KR_CHECK(state != BAD, KRAIT_ERR_FILE_FORMAT, "%s cannot be used and was skipped before", item->path);
  if (state == UNKNOWN) {
    int64_t found = 0;
    int32_t channels = 1;
    const int32_t status = read_header(item, &found, &channels);
    if (status < 0) return mark_bad(r, item, status);
    pthread_mutex_lock(&r->lock);
    if (item->state == UNKNOWN) item->n_samples = found, item->n_channels = channels, item->state = PROBED;
    pthread_mutex_unlock(&r->lock);
  }
  *n_samples = item->n_samples;
  *n_channels = item->n_channels;
  return KRAIT_OK;
}

static void read_tensor(const kr_weight *tensor, int64_t from, int64_t n, float *samples) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = from + i;
    if (tensor->dtype == KRAIT_F32) samples[i] = ((const float *)tensor->data)[at];
    else if (tensor->dtype == KRAIT_F16) samples[i] = kr_f16_to_float(((const uint16_t *)tensor->data)[at]);
    else samples[i] = (float)((const int16_t *)tensor->data)[at] / 32768;
  }
}

/* n samples from the start on, inside the recording. */
static int32_t read_file(const recording *item, int32_t channel, int64_t from, int64_t n, float *samples) {
  kr_track *track = NULL;
  float block[4096];
  KR_TRY(kr_track_open(item->path, channel, KR_RECORDINGS_HZ, &track));
  int32_t status = KRAIT_OK;
  for (int64_t at = 0, got = 1; status == KRAIT_OK && got > 0 && at < from + n; at += got) {
    const int64_t skipped = at < from, most = (int64_t)(sizeof block / sizeof *block),
                  left = skipped ? from - at : from + n - at;
    status = kr_track_read(track, skipped ? block : samples + (at - from), skipped && left > most ? most : left, &got);
  }
  kr_track_close(&track);
  return status;
}

/* Reads its whole first channel once to check it. Caches it in memory if there is space; cached reads are bit-identical
 * to reads from the file. */
static int32_t read_all(kr_recordings *r, recording *item) {
  float *all = kr_alloc_array((size_t)item->n_samples, sizeof *all);
  int16_t *kept = kr_alloc_array((size_t)item->n_samples, sizeof *kept);
  int32_t status =
      all && kept ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld samples", (long long)item->n_samples);
  if (status == KRAIT_OK && item->tensor) read_tensor(item->tensor, 0, item->n_samples, all);
  else if (status == KRAIT_OK) status = read_file(item, 0, 0, item->n_samples, all);
  const double level = status == KRAIT_OK ? kr_rms(all, item->n_samples) : 0;
  if (status == KRAIT_OK && !isfinite(level))
    status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s has samples that are not finite", item->path);
  if (status == KRAIT_OK && !(level > 0)) status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is silent", item->path);
  int is_exact = status == KRAIT_OK && !item->tensor;
  for (int64_t i = 0; is_exact && i < item->n_samples; i++) {
    const float scaled = all[i] * 32768;
    is_exact = scaled >= -32768 && scaled <= 32767 && scaled == floorf(scaled);
    if (is_exact) kept[i] = (int16_t)scaled;
  }
  if (status < 0) return kr_free(all), kr_free(kept), mark_bad(r, item, status);
  pthread_mutex_lock(&r->lock);
  if (item->state != BAD) item->state = GOOD;
  const int64_t bytes = item->n_samples * (int64_t)(is_exact ? sizeof *kept : sizeof *all);
  if (!item->tensor && !item->kept && !item->kept_wide && r->kept_bytes + bytes <= KEPT_BYTES) {
    r->kept_bytes += bytes;
    if (is_exact) item->kept = kept, kept = NULL;
    else item->kept_wide = all, all = NULL;
  }
  pthread_mutex_unlock(&r->lock);
  kr_free(all);
  kr_free(kept);
  return KRAIT_OK;
}

int32_t kr_recordings_check(kr_recordings *r, int64_t i, int64_t *n_samples, int32_t *n_channels) {
  KR_TRY(kr_recordings_probe(r, i, n_samples, n_channels));
  return state_of(r, &r->items[i]) == GOOD ? KRAIT_OK : read_all(r, &r->items[i]);
}

int32_t kr_recordings_read(kr_recordings *r, int64_t i, int32_t channel, int64_t from, int64_t n, float *samples) {
  recording *item = &r->items[i];
  int64_t n_samples;
  int32_t n_channels;
  KR_TRY(kr_recordings_check(r, i, &n_samples, &n_channels));
  const int64_t inside = from >= n_samples ? 0 : n < n_samples - from ? n : n_samples - from;
  memset(samples + inside, 0, (size_t)(n - inside) * sizeof *samples);
  if (inside == 0) return KRAIT_OK;
  pthread_mutex_lock(&r->lock);
  const int16_t *kept = channel == 0 ? item->kept : NULL;
  const float *kept_wide = channel == 0 ? item->kept_wide : NULL;
  pthread_mutex_unlock(&r->lock);
  if (kept_wide) return memcpy(samples, kept_wide + from, (size_t)inside * sizeof *samples), KRAIT_OK;
  for (int64_t k = 0; kept && k < inside; k++) samples[k] = (float)kept[from + k] / 32768;
  if (kept) return KRAIT_OK;
  if (item->tensor) return read_tensor(item->tensor, from, inside, samples), KRAIT_OK;
  const int32_t status = read_file(item, channel, from, inside, samples);
  return status < 0 ? mark_bad(r, item, status) : KRAIT_OK;
}
