/* audio_out.c: writing audio: which format an output gets, and how it appears only when complete. What is not a regular file
 * (standard output, pipes, devices) gets a finished copy at the end, because headers are written last. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "audio.h"
#include "audio_file.h"
#include "env.h"
#include "outfile.h"
#include "status.h"

struct kr_audio_out {
  char *path;
  kr_outfile target; /* the output, or the temporary copy when is_copied */
  int is_copied, is_stdout;
  SNDFILE *file;
  int n_channels, n_bits; /* bits of integer samples, 0 for other encodings */
};

/* ---- formats ---- */
static const struct {
  const char *extension;
  int container, encoding; /* encoding 0: the nearest to the input's */
} by_extension[] = {
    {"wav", SF_FORMAT_WAV, 0},   {"flac", SF_FORMAT_FLAC, 0}, {"ogg", SF_FORMAT_OGG, SF_FORMAT_VORBIS}, {"oga", SF_FORMAT_OGG, SF_FORMAT_VORBIS},
    {"opus", SF_FORMAT_OGG, SF_FORMAT_OPUS}, {"mp3", KR_SF_FORMAT_MPEG, KR_SF_SUBTYPE_MPEG_3}, {"aif", SF_FORMAT_AIFF, 0},
    {"aiff", SF_FORMAT_AIFF, 0}, {"au", SF_FORMAT_AU, 0},     {"snd", SF_FORMAT_AU, 0},                 {"caf", SF_FORMAT_CAF, 0},
    {"w64", SF_FORMAT_W64, 0},   {"rf64", SF_FORMAT_RF64, 0},
};

static int is_writable(int format, const kr_audio_info *info) {
  const int is_mpeg = (format & SF_FORMAT_TYPEMASK) == KR_SF_FORMAT_MPEG;
  if (is_mpeg && (format & SF_FORMAT_SUBMASK) != KR_SF_SUBTYPE_MPEG_3) return 0; /* sf_format_check takes layers 1 and 2, sf_open does not */
  const SF_INFO probe = {.format = format, .samplerate = info->sample_rate_hz, .channels = info->n_channels};
  return sf_format_check(&probe);
}

/* The encoding of the container that loses least: the same, else the next deeper, else 16 bit. */
static int nearest_encoding(int container, const kr_audio_info *info) {
  const int same = info->format & SF_FORMAT_SUBMASK;
  const int is_float = same == SF_FORMAT_FLOAT || same == SF_FORMAT_DOUBLE;
  const int is_deep = is_float || same == SF_FORMAT_PCM_24 || same == SF_FORMAT_PCM_32;
  const int is_byte = same == SF_FORMAT_PCM_U8 || same == SF_FORMAT_PCM_S8;
  const int choices[] = {same, is_float ? SF_FORMAT_FLOAT : 0, is_deep ? SF_FORMAT_PCM_24 : 0, is_byte ? SF_FORMAT_PCM_U8 : 0,
                         is_byte ? SF_FORMAT_PCM_S8 : 0, SF_FORMAT_PCM_16};
  for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
    if (choices[i] && is_writable(container | choices[i], info)) return container | choices[i];
  return 0;
}

static int same_container(int format, int container) {
  const int own = format & SF_FORMAT_TYPEMASK;
  return own == container || (container == SF_FORMAT_WAV && own == SF_FORMAT_WAVEX);
}

/* 0: no extension that names a format. */
static int format_by_extension(const char *path, const kr_audio_info *info) {
  const char *dot = strrchr(path, '.');
  if (!dot || strchr(dot, '/')) return 0;
  for (size_t i = 0; i < sizeof by_extension / sizeof *by_extension; i++) {
    if (strcasecmp(dot + 1, by_extension[i].extension) != 0) continue;
    const int container = by_extension[i].container, encoding = by_extension[i].encoding;
    const int fits = same_container(info->format, container) && (!encoding || encoding == (info->format & SF_FORMAT_SUBMASK));
    if (fits && is_writable(info->format, info)) return info->format;
    if (encoding) return container | encoding;
    const int nearest = nearest_encoding(container, info);
    return nearest ? nearest : container | SF_FORMAT_PCM_16;
  }
  return 0;
}

static int32_t choose_format(const char *path, const kr_audio_in *like, int *format) {
  SF_FORMAT_INFO own = {.format = like->info.format & SF_FORMAT_TYPEMASK};
  const char *own_name = sf_command(NULL, SFC_GET_FORMAT_INFO, &own, sizeof own) == 0 && own.name ? own.name : "this format";
  const int named = format_by_extension(path, &like->info);
  *format = named ? named : like->info.format;
  KR_CHECK(named || is_writable(*format, &like->info), KRAIT_ERR_FILE_WRITE,
           "%s: %s can be read but not written; name the output with -o NAME.wav or -o NAME.flac", like->name, own_name);
  KR_CHECK(is_writable(*format, &like->info), KRAIT_ERR_FILE_WRITE, "%s: this format does not take %d channels at %d Hz; use -o NAME.wav", path,
           like->info.n_channels, like->info.sample_rate_hz);
  return KRAIT_OK;
}

/* ---- opening ---- */
static int32_t begin_target(kr_audio_out *out, const char *path, const kr_audio_in *like) {
  char spool[512];
  struct stat info;
  const int exists = !out->is_stdout && stat(path, &info) == 0;
  KR_CHECK(!exists || info.st_dev != like->device || info.st_ino != like->inode || !S_ISREG(info.st_mode), KRAIT_ERR_ARGUMENT,
           "%s is the input itself; choose another output", path);
  KR_CHECK(!exists || !S_ISDIR(info.st_mode), KRAIT_ERR_FILE_WRITE, "%s is a folder", path);
  out->is_copied = out->is_stdout || (exists && !S_ISREG(info.st_mode));
  snprintf(spool, sizeof spool, "%s/krait-out", kr_env_tmpdir());
  return kr_outfile_begin(&out->target, out->is_copied ? spool : path);
}

static void copy_tags(SNDFILE *from, SNDFILE *to, int n_channels) {
  int map[KR_AUDIO_MAX_CHANNELS];
  for (int tag = SF_STR_FIRST; tag <= SF_STR_LAST; tag++) {
    const char *text = sf_get_string(from, tag);
    if (text) sf_set_string(to, tag, text);
  }
  if (sf_command(from, SFC_GET_CHANNEL_MAP_INFO, map, (int)sizeof(int) * n_channels) == SF_TRUE)
    sf_command(to, SFC_SET_CHANNEL_MAP_INFO, map, (int)sizeof(int) * n_channels);
}

static int integer_bits(int encoding) {
  switch (encoding) {
    case SF_FORMAT_PCM_S8:
    case SF_FORMAT_PCM_U8: return 8;
    case SF_FORMAT_PCM_16: return 16;
    case SF_FORMAT_PCM_24: return 24;
    case SF_FORMAT_PCM_32: return 32;
    default: return 0;
  }
}

static int32_t open_file(kr_audio_out *out, int format, const kr_audio_in *like) {
  char text[200];
  SF_INFO info = {.format = format, .samplerate = like->info.sample_rate_hz, .channels = like->info.n_channels};
  out->file = sf_open(out->target.temp_path, SFM_WRITE, &info);
  KR_CHECK(out->file, KRAIT_ERR_FILE_WRITE, "cannot write %s (libsndfile: %s)", out->path, kr_sndfile_text(NULL, text, sizeof text));
  out->n_channels = info.channels;
  out->n_bits = integer_bits(format & SF_FORMAT_SUBMASK);
  sf_command(out->file, SFC_SET_CLIPPING, NULL, SF_TRUE);
  sf_command(out->file, SFC_SET_ADD_PEAK_CHUNK, NULL, SF_FALSE); /* it carries the time: equal inputs give equal files */
  copy_tags(like->file, out->file, like->info.n_channels);
  return KRAIT_OK;
}

int32_t kr_audio_create(const char *path, const kr_audio_in *like, kr_audio_out **created) {
  int format = 0;
  KR_TRY(choose_format(path, like, &format));
  kr_audio_out *out = kr_zalloc(sizeof *out);
  KR_CHECK(out, KRAIT_ERR_NO_MEMORY, "no memory for a file");
  int32_t status = KRAIT_OK;
  out->is_stdout = strcmp(path, "-") == 0;
  out->path = kr_strdup(out->is_stdout ? "standard output" : path);
  if (!out->path) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  if (status == KRAIT_OK) status = begin_target(out, path, like);
  if (status == KRAIT_OK) status = open_file(out, format, like);
  if (status < 0) kr_audio_abandon(&out);
  else *created = out;
  return status;
}

/* ---- writing ---- */
/* Rounded to the nearest step and clipped. libsndfile's own conversion truncates, or scales by 32767/32768. */
static void to_steps(const float *samples, int *steps, int64_t n, int n_bits) {
  const double scale = ldexp(1, n_bits - 1);
  for (int64_t i = 0; i < n; i++) {
    const double v = rint(samples[i] * scale);
    steps[i] = (int)((unsigned)(int)(v < -scale ? -scale : v > scale - 1 ? scale - 1 : v) << (32 - n_bits));
  }
}

static int64_t write_steps(kr_audio_out *out, const float *samples, int64_t n_frames) {
  int steps[2048];
  const int64_t most = (int64_t)(sizeof steps / sizeof *steps) / out->n_channels;
  int64_t done = 0;
  while (done < n_frames) {
    const int64_t n = n_frames - done < most ? n_frames - done : most;
    to_steps(samples + done * out->n_channels, steps, n * out->n_channels, out->n_bits);
    if (sf_writef_int(out->file, steps, n) != n) break;
    done += n;
  }
  return done;
}

int32_t kr_audio_write(kr_audio_out *out, const float *samples, int64_t n_frames) {
  char text[200];
  const int64_t done = out->n_bits ? write_steps(out, samples, n_frames) : sf_writef_float(out->file, samples, n_frames);
  KR_CHECK(done == n_frames, KRAIT_ERR_FILE_WRITE, "cannot write %s (libsndfile: %s)", out->path, kr_sndfile_text(out->file, text, sizeof text));
  return KRAIT_OK;
}

int32_t kr_audio_finish(kr_audio_out *out) {
  if (!out->file) return KRAIT_OK;
  const int failed = sf_close(out->file);
  out->file = NULL;
  KR_CHECK(!failed, KRAIT_ERR_FILE_WRITE, "cannot write %s (libsndfile: %s)", out->path, sf_error_number(failed));
  return KRAIT_OK;
}

const char *kr_audio_out_path(const kr_audio_out *out) { return out->target.temp_path; }

static int32_t copy_out(const kr_audio_out *out) {
  int from = open(out->target.temp_path, O_RDONLY | O_CLOEXEC);
  if (from < 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read the temporary copy of %s", out->path);
  int to = out->is_stdout ? STDOUT_FILENO : open(out->path, O_WRONLY | O_CLOEXEC);
  int32_t status = to < 0 ? kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", out->path) : kr_copy_bytes(from, to, "the temporary copy", out->path);
  close(from);
  if (to >= 0 && !out->is_stdout && close(to) != 0 && status == KRAIT_OK) status = kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", out->path);
  return status;
}

int32_t kr_audio_commit(kr_audio_out **handle) {
  kr_audio_out *out = *handle;
  int32_t status = kr_audio_finish(out);
  if (status == KRAIT_OK && out->is_copied) status = copy_out(out);
  else if (status == KRAIT_OK) status = kr_outfile_commit(&out->target);
  kr_audio_abandon(handle);
  return status;
}

void kr_audio_abandon(kr_audio_out **handle) {
  kr_audio_out *out = *handle;
  if (!out) return;
  if (out->file) sf_close(out->file);
  kr_outfile_abandon(&out->target);
  kr_free(out->path);
  kr_free(out);
  *handle = NULL;
}
