/* audio_out.c: writing audio: chooses the output's format; the output appears only when it is complete and has been
 * read back. Outputs that are not regular files (standard output, pipes, devices) get a finished copy at the end,
 * because headers are written last. */
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
#include "outfile.h"
#include "status.h"

struct kr_audio_out {
  char *path, *copy_path; /* the final name; if is_copied, the file with the content */
  kr_outfile target;
  int fd; /* the content: the target's descriptor, or a private file if is_copied */
  int is_copied, is_stdout, keep;
  SNDFILE *file;
  sf_count_t offset; /* libsndfile's place in the file */
  int os_errno;      /* errno of the first failed write: not every encoder reports it to libsndfile, which does not say
                        why */
  int64_t n_frames;  /* written */
  char note[160];
  int format, n_channels, sample_rate_hz, n_bits; /* bits of integer samples, 0 for other encodings */
};

/* ---- formats ---- */
enum { NOT_WRITTEN = -1 };
static const struct {
  const char *extension;
  int container, encoding; /* encoding 0: the nearest to the input's */
} by_extension[] = {
    {"wav", SF_FORMAT_WAV, 0},
    {"flac", SF_FORMAT_FLAC, 0},
    {"ogg", SF_FORMAT_OGG, SF_FORMAT_VORBIS},
    {"oga", SF_FORMAT_OGG, SF_FORMAT_VORBIS},
    {"opus", SF_FORMAT_OGG, SF_FORMAT_OPUS},
    {"mp3", KR_SF_FORMAT_MPEG, KR_SF_SUBTYPE_MPEG_3},
    {"aif", SF_FORMAT_AIFF, 0},
    {"aiff", SF_FORMAT_AIFF, 0},
    {"au", SF_FORMAT_AU, 0},
    {"snd", SF_FORMAT_AU, 0},
    {"caf", SF_FORMAT_CAF, 0},
    {"w64", SF_FORMAT_W64, 0},
    {"rf64", SF_FORMAT_RF64, 0},
    {"mp1", NOT_WRITTEN, 0},
    {"mp2", NOT_WRITTEN, 0},
    {"m4a", NOT_WRITTEN, 0},
    {"mp4", NOT_WRITTEN, 0},
    {"aac", NOT_WRITTEN, 0},
    {"webm", NOT_WRITTEN, 0},
    {"mkv", NOT_WRITTEN, 0},
    {"mka", NOT_WRITTEN, 0},
    {"mov", NOT_WRITTEN, 0},
    {"avi", NOT_WRITTEN, 0},
    {"wma", NOT_WRITTEN, 0},
};

/* Formats that preserve length and quality: low-bit speech codecs (GSM 6.10, G.72x, ADPCM) and a few old containers pad
 * their last block, and would degrade a cleaned recording more than the noise did. Not ALAC either: libsndfile's
 * encoder uses a named temporary file, and crashes if the disk is full. */
static int is_kept(int format) {
  static const int containers[] = {SF_FORMAT_WAV,     SF_FORMAT_WAVEX, SF_FORMAT_FLAC, SF_FORMAT_OGG,
                                   KR_SF_FORMAT_MPEG, SF_FORMAT_AIFF,  SF_FORMAT_AU,   SF_FORMAT_CAF,
                                   SF_FORMAT_W64,     SF_FORMAT_RF64,  SF_FORMAT_NIST, SF_FORMAT_IRCAM,
                                   SF_FORMAT_AVR,     SF_FORMAT_PVF,   SF_FORMAT_MAT4, SF_FORMAT_MAT5};
  static const int encodings[] = {SF_FORMAT_PCM_S8, SF_FORMAT_PCM_U8, SF_FORMAT_PCM_16, SF_FORMAT_PCM_24,
                                  SF_FORMAT_PCM_32, SF_FORMAT_FLOAT,  SF_FORMAT_DOUBLE, SF_FORMAT_ULAW,
                                  SF_FORMAT_ALAW,   SF_FORMAT_VORBIS, SF_FORMAT_OPUS,   KR_SF_SUBTYPE_MPEG_3};
  int is_container = 0, is_encoding = 0;
  for (size_t i = 0; i < sizeof containers / sizeof *containers; i++)
    is_container |= containers[i] == (format & SF_FORMAT_TYPEMASK);
  for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++)
    is_encoding |= encodings[i] == (format & SF_FORMAT_SUBMASK);
  const int is_mpeg = (format & SF_FORMAT_TYPEMASK) ==
                      KR_SF_FORMAT_MPEG; /* sf_format_check also accepts MP3 in WAV, which sf_open then refuses */
  return is_container && is_encoding && is_mpeg == ((format & SF_FORMAT_SUBMASK) == KR_SF_SUBTYPE_MPEG_3);
}

static int is_writable(int format, const kr_audio_info *info) {
  const SF_INFO probe = {.format = format, .samplerate = info->sample_rate_hz, .channels = info->n_channels};
  return is_kept(format) && sf_format_check(&probe);
}

/* The encoding in this container that loses least: the same, else the next higher bit depth, else 16 bit; 0 if none
 * supports these channels. */
static int nearest_format(int container, const kr_audio_info *info) {
  const int same = info->format & SF_FORMAT_SUBMASK;
  const int is_float = same == SF_FORMAT_FLOAT || same == SF_FORMAT_DOUBLE;
  const int is_deep = is_float || same == SF_FORMAT_PCM_24 || same == SF_FORMAT_PCM_32;
  const int is_byte = same == SF_FORMAT_PCM_U8 || same == SF_FORMAT_PCM_S8;
  const int choices[] = {same,
                         is_float ? SF_FORMAT_FLOAT : 0,
                         is_deep ? SF_FORMAT_PCM_24 : 0,
                         is_byte ? SF_FORMAT_PCM_U8 : 0,
                         is_byte ? SF_FORMAT_PCM_S8 : 0,
                         SF_FORMAT_PCM_16};
  for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
    if (choices[i] && is_writable(container | choices[i], info)) return container | choices[i];
  return 0;
}

static int same_container(int format, int container) {
  const int own = format & SF_FORMAT_TYPEMASK;
  return own == container || (container == SF_FORMAT_WAV && own == SF_FORMAT_WAVEX);
}

/* The row of path's extension, or -1. */
static int find_extension(const char *path) {
  const char *dot = strrchr(path, '.');
  if (!dot || strchr(dot, '/')) return -1;
  for (size_t i = 0; i < sizeof by_extension / sizeof *by_extension; i++)
    if (strcasecmp(dot + 1, by_extension[i].extension) == 0) return (int)i;
  return -1;
}

static int format_of_row(int row, const kr_audio_info *info) {
  const int container = by_extension[row].container, encoding = by_extension[row].encoding;
  if (container == NOT_WRITTEN) return 0;
  const int fits =
      same_container(info->format, container) && (!encoding || encoding == (info->format & SF_FORMAT_SUBMASK));
  if (fits && is_writable(info->format, info)) return info->format;
  if (encoding) return is_writable(container | encoding, info) ? container | encoding : 0;
  return nearest_format(container, info);
}

/* Its own format, else its own container, else WAV. */
static int format_like(const kr_audio_info *info) {
  if (is_writable(info->format, info)) return info->format;
  const int nearest = nearest_format(info->format & SF_FORMAT_TYPEMASK, info);
  return nearest ? nearest : nearest_format(SF_FORMAT_WAV, info);
}

const char *kr_audio_extension(const kr_audio_in *in, const char *name) {
  const int row = find_extension(name);
  const int is_own = row >= 0 ? format_of_row(row, &in->info) != 0
                              : same_container(format_like(&in->info), in->info.format & SF_FORMAT_TYPEMASK);
  return is_own ? NULL : "wav";
}

static const char *format_name(int format, int what) {
  SF_FORMAT_INFO info = {.format = format & what};
  return sf_command(NULL, SFC_GET_FORMAT_INFO, &info, sizeof info) == 0 && info.name ? info.name : "this format";
}

static void describe_format(kr_audio_out *out, const kr_audio_in *like, int format) {
  const int own = like->info.format;
  if (like->is_converted)
    snprintf(out->note, sizeof out->note, "%s; written as %s", like->is_converted,
             format_name(format, SF_FORMAT_TYPEMASK));
  else if (!is_writable(own, &like->info))
    snprintf(out->note, sizeof out->note, "%s cannot be written; this is %s in %s",
             format_name(
                 own, is_kept((own & SF_FORMAT_TYPEMASK) | SF_FORMAT_PCM_16) ? SF_FORMAT_SUBMASK : SF_FORMAT_TYPEMASK),
             format_name(format, SF_FORMAT_TYPEMASK), format_name(format, SF_FORMAT_SUBMASK));
}

static int32_t choose_format(kr_audio_out *out, const char *path, const kr_audio_in *like, int *format) {
  const int row = find_extension(path);
  KR_CHECK(row < 0 || by_extension[row].container != NOT_WRITTEN, KRAIT_ERR_FILE_WRITE,
           "%s: .%s can be read but not written; name the output NAME.wav or NAME.flac", path,
           by_extension[row].extension);
  *format = row >= 0 ? format_of_row(row, &like->info) : format_like(&like->info);
  KR_CHECK(*format, KRAIT_ERR_FILE_WRITE, "%s: this format does not support %d channels at %d Hz; use -o NAME.wav",
           path, like->info.n_channels, like->info.sample_rate_hz);
  describe_format(out, like, *format);
  return KRAIT_OK;
}

/* ---- the file, as libsndfile sees it ---- */
static sf_count_t audio_out_file_length(void *user) {
  struct stat info;
  return fstat(((kr_audio_out *)user)->fd, &info) == 0 ? (sf_count_t)info.st_size : -1;
}

static sf_count_t audio_out_file_seek(sf_count_t offset, int whence, void *user) {
  kr_audio_out *out = user;
  const sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? out->offset : audio_out_file_length(out);
  if (from < 0 || from + offset < 0) return -1;
  return out->offset = from + offset;
}

static sf_count_t audio_out_file_read(void *bytes, sf_count_t n, void *user) {
  kr_audio_out *out = user;
  ssize_t got;
  while ((got = pread(out->fd, bytes, (size_t)n, (off_t)out->offset)) < 0 && errno == EINTR) {}
  if (got > 0) out->offset += got;
  return got < 0 ? 0 : got;
}

/* The first failure is kept: some encoders continue after it. */
static sf_count_t audio_out_file_write(const void *bytes, sf_count_t n, void *user) {
  kr_audio_out *out = user;
  sf_count_t done = 0;
  while (done < n && !out->os_errno) {
    const ssize_t step = pwrite(out->fd, (const char *)bytes + done, (size_t)(n - done), (off_t)out->offset);
    if (step < 0 && errno == EINTR) continue;
    if (step <= 0) out->os_errno = step < 0 ? errno : ENOSPC;
    else done += step, out->offset += step;
  }
  return done;
}

static sf_count_t audio_out_file_tell(void *user) { return ((kr_audio_out *)user)->offset; }

/* ---- opening ---- */
static int32_t begin_target(kr_audio_out *out, const char *path, const kr_audio_in *like) {
  struct stat info;
  const int exists = !out->is_stdout && stat(path, &info) == 0;
  KR_CHECK(!exists || info.st_dev != like->device || info.st_ino != like->inode || !S_ISREG(info.st_mode),
           KRAIT_ERR_ARGUMENT, "%s is the input itself; choose another output", path);
  KR_CHECK(!exists || !S_ISDIR(info.st_mode), KRAIT_ERR_FILE_WRITE, "%s is a folder", path);
  out->is_copied = out->is_stdout || (exists && !S_ISREG(info.st_mode));
  if (out->is_copied) {
    char text[40];
    KR_TRY(kr_private_file(out->path, &out->fd));
    snprintf(text, sizeof text, "/proc/self/fd/%d", out->fd);
    out->copy_path = kr_strdup(text);
    KR_CHECK(out->copy_path, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
    return KRAIT_OK;
  }
  KR_TRY(kr_outfile_begin(&out->target, path));
  out->target.keep |= out->keep;
  out->fd = out->target.fd;
  return KRAIT_OK;
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

static int32_t open_audio_out_file(kr_audio_out *out, int format, const kr_audio_in *like) {
  static SF_VIRTUAL_IO io = {audio_out_file_length, audio_out_file_seek, audio_out_file_read, audio_out_file_write,
                             audio_out_file_tell};
  char text[200];
  SF_INFO info = {.format = format, .samplerate = like->info.sample_rate_hz, .channels = like->info.n_channels};
  out->file = sf_open_virtual(&io, SFM_WRITE, &info, out);
  if (!out->file && out->os_errno) return kr_fail_os(KRAIT_ERR_FILE_WRITE, out->os_errno, "cannot write %s", out->path);
  KR_CHECK(out->file, KRAIT_ERR_FILE_WRITE, "cannot write %s (libsndfile: %s)", out->path,
           kr_sndfile_text(NULL, text, sizeof text));
  out->format = format;
  out->n_channels = info.channels;
  out->sample_rate_hz = info.samplerate;
  out->n_bits = integer_bits(format & SF_FORMAT_SUBMASK);
  sf_command(out->file, SFC_SET_CLIPPING, NULL, SF_TRUE);
  sf_command(out->file, SFC_SET_ADD_PEAK_CHUNK, NULL,
             SF_FALSE); /* it contains the time: equal inputs must give equal files */
  copy_tags(like->file, out->file, like->info.n_channels);
  return KRAIT_OK;
}

int32_t kr_audio_create(const char *path, const kr_audio_in *like, int keep_existing, kr_audio_out **created) {
  int format = 0;
  kr_audio_out *out = kr_zalloc(sizeof *out);
  KR_CHECK(out, KRAIT_ERR_NO_MEMORY, "no memory for a file");
  out->fd = out->target.fd = -1;
  out->keep = keep_existing;
  out->is_stdout = strcmp(path, "-") == 0;
  out->path = kr_strdup(out->is_stdout ? "standard output" : path);
  int32_t status =
      out->path ? choose_format(out, path, like, &format) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  if (status == KRAIT_OK) status = begin_target(out, path, like);
  if (status == KRAIT_OK) status = open_audio_out_file(out, format, like);
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

static int32_t fail_write(const kr_audio_out *out, const char *why) {
  if (out->os_errno) return kr_fail_os(KRAIT_ERR_FILE_WRITE, out->os_errno, "cannot write %s", out->path);
  return kr_fail(KRAIT_ERR_FILE_WRITE, "cannot write %s (libsndfile: %s)", out->path, why);
}

int32_t kr_audio_write(kr_audio_out *out, const float *samples, int64_t n_frames) {
  char text[200];
  const int64_t done =
      out->n_bits ? write_steps(out, samples, n_frames) : sf_writef_float(out->file, samples, n_frames);
  if (done != n_frames || out->os_errno) return fail_write(out, kr_sndfile_text(out->file, text, sizeof text));
  out->n_frames += n_frames;
  return KRAIT_OK;
}

/* libsndfile reads the padding byte of an odd AIFF as one more frame. */
static int is_whole(const kr_audio_out *out, int64_t found) {
  const int is_padded = (out->format & SF_FORMAT_TYPEMASK) == SF_FORMAT_AIFF &&
                        out->n_frames * out->n_channels % 2 != 0 && out->n_channels == 1;
  return found == out->n_frames || (is_padded && found == out->n_frames + 1);
}

static int32_t count_frames(kr_audio_in *in, int64_t *n_frames) {
  enum { BLOCK = 4096 };
  const int32_t most = BLOCK / in->info.n_channels > 0 ? BLOCK / in->info.n_channels : 1;
  float samples[BLOCK];
  for (int64_t n = most; n == most; *n_frames += n) KR_TRY(kr_audio_read(in, samples, most, &n));
  return KRAIT_OK;
}

/* Data lost by an encoder or a disk shows only when the file is read back; a recording must not be replaced by a
 * shorter one. */
static int32_t read_again(const kr_audio_out *out) {
  kr_audio_in *in = NULL;
  int64_t found = 0;
  char why[400] = "";
  int32_t status = kr_audio_open(kr_audio_out_path(out), &in);
  if (status == KRAIT_OK) status = count_frames(in, &found);
  if (status < 0) snprintf(why, sizeof why, "; %s", krait_error_detail());
  const int is_same = status == KRAIT_OK && in->info.n_channels == out->n_channels &&
                      in->info.sample_rate_hz == out->sample_rate_hz && is_whole(out, found);
  kr_audio_close(&in);
  if (status == KRAIT_ERR_NO_MEMORY) return status;
  KR_CHECK(is_same, KRAIT_ERR_FILE_WRITE, "cannot write %s: read back, it has only %lld of %lld samples%s", out->path,
           (long long)found, (long long)out->n_frames, why);
  return KRAIT_OK;
}

int32_t kr_audio_finish(kr_audio_out *out) {
  if (!out->file) return KRAIT_OK;
  const int failed = sf_close(out->file);
  out->file = NULL;
  if (failed || out->os_errno) return fail_write(out, sf_error_number(failed));
  return read_again(out);
}

const char *kr_audio_out_path(const kr_audio_out *out) {
  return out->is_copied ? out->copy_path : out->target.temp_path;
}
const char *kr_audio_out_note(const kr_audio_out *out) { return out->note; }

static int32_t copy_out(const kr_audio_out *out) {
  if (lseek(out->fd, 0, SEEK_SET) != 0)
    return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read the temporary copy of %s", out->path);
  int to = out->is_stdout ? STDOUT_FILENO : open(out->path, O_WRONLY | O_CLOEXEC);
  int32_t status = to < 0 ? kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", out->path)
                          : kr_copy_bytes(out->fd, to, "the temporary copy", out->path);
  if (to >= 0 && !out->is_stdout && close(to) != 0 && status == KRAIT_OK)
    status = kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", out->path);
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
  if (out->is_copied && out->fd >= 0) close(out->fd);
  kr_outfile_abandon(&out->target);
  kr_free(out->path);
  kr_free(out->copy_path);
  kr_free(out);
  *handle = NULL;
}
