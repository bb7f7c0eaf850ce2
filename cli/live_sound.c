/* live_sound.c: see live_sound.h. */
#include "live_sound.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "output.h"

/* ---- what it is ---- */

/* The format of a file, which begins with a header, or NULL: such a stream is not samples only. */
static const char *format_of(const unsigned char *b, size_t n) {
  static const struct {
    const char *bytes, *name;
  } headers[] = {{"RIFF", "WAV"},  {"RF64", "RF64"}, {"fLaC", "FLAC"},                 {"OggS", "Ogg"},
                 {"FORM", "AIFF"}, {"caff", "CAF"},  {"\x1a\x45\xdf\xa3", "Matroska"}, {".snd", "AU"}};
  for (int i = 0; n >= 4 && i < CLI_N(headers); i++)
    if (memcmp(b, headers[i].bytes, 4) == 0) return headers[i].name;
  if (n >= 8 && memcmp(b + 4, "ftyp", 4) == 0) return "MP4";
  if (n >= 3 && memcmp(b, "ID3", 3) == 0) return "MP3";
  return NULL;
}

static int is_mp3_frame(const unsigned char *b) { /* layer III with a bit rate and a sample rate */
  return b[0] == 0xff && (b[1] & 0xe6) == 0xe2 && (b[1] & 0x18) != 8 && b[2] >> 4 != 0 && b[2] >> 4 != 15 &&
         (b[2] & 12) != 12;
}

/* Samples may look like one frame header, but hardly like two at the right distance. */
static int is_mp3(const unsigned char *b, size_t n) {
  static const int kbps[2][14] = {{32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320},
                                  {8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160}};
  static const int hz[3] = {44100, 48000, 32000};
  if (n < 4 || !is_mp3_frame(b)) return 0;
  const int version = b[1] >> 3 & 3, is_low = version != 3;
  const int rate = hz[b[2] >> 2 & 3] >> (version == 3 ? 0 : version == 2 ? 1 : 2);
  const size_t next = (size_t)((is_low ? 72 : 144) * kbps[is_low][(b[2] >> 4) - 1] * 1000 / rate + (b[2] >> 1 & 1));
  return next + 4 <= n && is_mp3_frame(b + next);
}

static uint32_t read_u16(const unsigned char *b) { return b[0] | (uint32_t)b[1] << 8; }
static uint32_t read_u32(const unsigned char *b) { return read_u16(b) | read_u16(b + 2) << 16; }

/* At least n bytes, unless the input ends. */
static void fill_to(live_sound *s, size_t n) {
  ssize_t got = 1;
  while (s->n < n && got > 0) {
    do got = read(STDIN_FILENO, s->bytes + s->n, n - s->n);
    while (got < 0 && errno == EINTR);
    if (got > 0) s->n += (size_t)got;
  }
  s->has_failed = got < 0;
}

static void drop_bytes(live_sound *s, size_t n) {
  memmove(s->bytes, s->bytes + n, s->n - n);
  s->n -= n;
}

/* The fmt chunk, of which n bytes are in b; 0: not samples that can be taken. */
static int take_form(live_form *f, const unsigned char *b, size_t n) {
  if (n < 16) return 0;
  uint32_t kind = read_u16(b);
  if (kind == 0xfffe && n >= 26) kind = read_u16(b + 24); /* extensible */
  f->n_channels = (int32_t)read_u16(b + 2), f->rate_hz = (int32_t)read_u32(b + 4), f->bits = (int32_t)read_u16(b + 14);
  f->is_float = kind == 3;
  return f->n_channels >= 1 && f->n_channels <= LIVE_CHANNELS &&
         (kind == 3 ? f->bits == 32 : kind == 1 && (f->bits == 16 || f->bits == 24 || f->bits == 32));
}

/* Up to the first sample. The chunks before it are few and short. */
static int take_wav(live_sound *s) {
  int has_form = 0;
  drop_bytes(s, s->n < 12 ? s->n : 12);
  for (int i = 0; i < 32; i++) {
    fill_to(s, 8);
    const uint32_t n_bytes = s->n < 8 ? 0 : read_u32(s->bytes + 4);
    if (s->n < 8 || (memcmp(s->bytes, "data", 4) != 0 && n_bytes > LIVE_HEAD - 16)) break;
    if (memcmp(s->bytes, "data", 4) == 0) {
      s->form.data_bytes = n_bytes;
      drop_bytes(s, 8);
      if (has_form) return -1;
      break;
    }
    const size_t whole = 8 + n_bytes + n_bytes % 2;
    fill_to(s, whole);
    if (s->n < whole) break;
    if (memcmp(s->bytes, "fmt ", 4) == 0) has_form = take_form(&s->form, s->bytes + 8, n_bytes);
    drop_bytes(s, whole);
  }
  return cli_usage_error("live",
                         "standard input is a WAV file, but not of 1 or %d channels of 16, 24 or 32 bits; convert "
                         "it: ffmpeg -i FILE -c:a pcm_s16le -ac 1 -f wav -",
                         LIVE_CHANNELS);
}

int live_sound_begin(live_sound *s) {
  for (size_t n = 8; n <= LIVE_HEAD; n = s->n + 1) {
    fill_to(s, n);
    if (s->n < n || !is_mp3_frame(s->bytes)) break;
  }
  const char *format = format_of(s->bytes, s->n);
  if (!format && is_mp3(s->bytes, s->n)) format = "MP3";
  if (!format) return -1;
  if (strcmp(format, "WAV") == 0) {
    fill_to(s, 12);
    s->form.is_wav = 1;
    return take_wav(s);
  }
  return cli_usage_error("live",
                         "standard input is a file (%s), not samples; use krait enhance - for files, or "
                         "convert it: ffmpeg -i FILE -f s16le -ar 16000 -ac 1 -",
                         format);
}

/* ---- samples ---- */

static float sample_at(const live_form *f, const unsigned char *b) {
  const uint32_t high = f->bits == 16 ? read_u16(b) << 16 : f->bits == 24 ? read_u16(b) << 8 | (uint32_t)b[2] << 24
                                                                          : read_u32(b);
  float value;
  memcpy(&value, &high, sizeof value);
  return f->is_float ? value : (float)((double)(int32_t)high / 2147483648.0);
}

static void put_sample(const live_form *f, float sample, unsigned char *b) {
  const double most = ldexp(1, f->bits - 1), scaled = rint((double)sample * most);
  uint32_t value = (uint32_t)(int32_t)fmin(fmax(isfinite(scaled) ? scaled : 0, -most), most - 1);
  if (f->is_float) memcpy(&value, &sample, sizeof value);
  for (int i = 0; i < f->bits / 8; i++) b[i] = (unsigned char)(value >> 8 * i & 255);
}

static size_t frame_bytes(const live_form *f) { return (size_t)(f->n_channels * f->bits / 8); }

/* Streams say 0 or nearly the largest number there, if they do not know. */
static int has_length(const live_form *f) { return f->is_wav && f->data_bytes && f->data_bytes < 0x7fff0000; }

int64_t live_sound_hear(live_sound *s, float *const *to) {
  const size_t each = frame_bytes(&s->form), room = LIVE_FRAMES * each;
  const uint64_t left = has_length(&s->form) ? s->form.data_bytes - s->n_heard : UINT64_MAX;
  ssize_t got = 1;
  while (s->n < each && s->n < left && got > 0) { /* as few bytes as come, so that nothing is held back */
    do got = read(STDIN_FILENO, s->bytes + s->n, room - s->n);
    while (got < 0 && errno == EINTR);
    if (got > 0) s->n += (size_t)got;
  }
  s->has_failed = got < 0;
  size_t n = (s->n < left ? s->n : (size_t)left) / each;
  if (n > LIVE_FRAMES) n = LIVE_FRAMES;
  for (size_t i = 0; i < n; i++)
    for (int32_t c = 0; c < s->form.n_channels; c++)
      to[c][i] = sample_at(&s->form, s->bytes + i * each + (size_t)(c * s->form.bits / 8));
  s->n_heard += n * each;
  drop_bytes(s, n * each);
  return (int64_t)n;
}

int live_sound_end(const live_sound *s) {
  const int is_short = has_length(&s->form) && s->n_heard + frame_bytes(&s->form) <= s->form.data_bytes;
  if (!s->has_failed && !is_short && (s->form.is_wav || !s->n)) return -1;
  fprintf(cli_err(), "krait live: standard input %s\n",
          s->has_failed ? "cannot be read"
          : is_short    ? "ends before its WAV header says"
                        : "ends within a 16-bit sample");
  return 1;
}

/* ---- the output ---- */

static void put_u32(unsigned char *b, uint32_t value, int n) {
  for (int i = 0; i < n; i++) b[i] = (unsigned char)(value >> 8 * i & 255);
}

int live_sound_say_header(const live_sound *s) {
  const live_form *f = &s->form;
  unsigned char b[44] = "RIFF\0\0\0\0WAVEfmt ";
  const uint32_t n_bytes = has_length(f) ? f->data_bytes / (uint32_t)frame_bytes(f) * (uint32_t)frame_bytes(f)
                                         : UINT32_MAX;
  if (!f->is_wav) return 1;
  put_u32(b + 4, n_bytes == UINT32_MAX ? n_bytes : n_bytes + 36, 4), put_u32(b + 16, 16, 4);
  put_u32(b + 20, f->is_float ? 3 : 1, 2), put_u32(b + 22, (uint32_t)f->n_channels, 2);
  put_u32(b + 24, (uint32_t)f->rate_hz, 4), put_u32(b + 28, (uint32_t)f->rate_hz * (uint32_t)frame_bytes(f), 4);
  put_u32(b + 32, (uint32_t)frame_bytes(f), 2), put_u32(b + 34, (uint32_t)f->bits, 2);
  memcpy(b + 36, "data", 4), put_u32(b + 40, n_bytes, 4);
  return fwrite(b, 1, sizeof b, stdout) == sizeof b && fflush(stdout) == 0;
}

int live_sound_say(const live_sound *s, const float *const *from, int64_t n) {
  unsigned char bytes[1024 * LIVE_CHANNELS * 4] = {0};
  const size_t each = frame_bytes(&s->form);
  for (int64_t i = 0; i < n;) {
    size_t used = 0;
    for (; i < n && used + each <= sizeof bytes; i++)
      for (int32_t c = 0; c < s->form.n_channels; c++, used += (size_t)s->form.bits / 8)
        put_sample(&s->form, from[c][i], bytes + used);
    if (fwrite(bytes, 1, used, stdout) != used) return 0;
  }
  return fflush(stdout) == 0;
}
