/* cmd_live.c: krait live: streams audio from standard input through a krait_stream to standard output. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <krait/model.h>

#include "args.h"
#include "cmd.h"
#include "interrupt.h"
#include "output.h"

enum { HOP = 4000, MOST = 16000 }; /* samples: the most that is read at once; the most that is written at once */

typedef struct ears {
  unsigned char bytes[2 * HOP];
  size_t n; /* the first byte of a sample that has arrived in part */
  int has_failed;
} ears;

/* What is available, up to HOP samples; 0 at the end. */
static int64_t listen(ears *e, float *to) {
  ssize_t n = 1;
  while (e->n < 2 && n > 0) {
    do n = read(STDIN_FILENO, e->bytes + e->n, sizeof e->bytes - e->n);
    while (n < 0 && errno == EINTR);
    if (n > 0) e->n += (size_t)n;
  }
  e->has_failed = n < 0;
  const size_t n_samples = e->n / 2;
  for (size_t i = 0; i < n_samples; i++)
    to[i] = (float)(int16_t)(uint16_t)(e->bytes[2 * i] | e->bytes[2 * i + 1] << 8) / 32768;
  if (n_samples && e->n % 2) e->bytes[0] = e->bytes[e->n - 1];
  if (n_samples) e->n %= 2;
  return (int64_t)n_samples;
}

/* The format of a file, which begins with a header, or NULL: such a stream is not samples only. */
static const char *format_of(const unsigned char *b, size_t n) {
  static const struct {
    const char *bytes, *name;
  } headers[] = {{"RIFF", "WAV"}, {"RF64", "WAV"}, {"fLaC", "FLAC"},         {"OggS", "Ogg"},
                 {"FORM", "AIFF"}, {"caff", "CAF"}, {"\x1a\x45\xdf\xa3", "Matroska"}, {".snd", "AU"}};
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

/* Looks at the first bytes, of which a pipe may bring only some. -1, or the exit status. */
static int refuse_file(ears *e) {
  ssize_t n = 1;
  while (e->n < 2000 && n > 0) {
    do n = read(STDIN_FILENO, e->bytes + e->n, 2000 - e->n);
    while (n < 0 && errno == EINTR);
    if (n > 0) e->n += (size_t)n;
    if (e->n >= 8 && !is_mp3_frame(e->bytes)) break;
  }
  e->has_failed = n < 0;
  const char *format = format_of(e->bytes, e->n);
  if (!format && is_mp3(e->bytes, e->n)) format = "MP3";
  return format ? cli_usage_error("live",
                                  "standard input is a file (%s), not samples; use krait enhance - for files, or "
                                  "convert it: ffmpeg -i FILE -f s16le -ar 16000 -ac 1 -",
                                  format)
                : -1;
}

static int say(const float *from, int64_t n) {
  unsigned char bytes[2 * MOST];
  for (int64_t i = 0; i < n; i++) {
    const long v = lrintf(fminf(fmaxf(from[i] * 32768, -32768), 32767));
    bytes[2 * i] = (unsigned char)(v & 255), bytes[2 * i + 1] = (unsigned char)(v >> 8 & 255);
  }
  return fwrite(bytes, 2, (size_t)n, stdout) == (size_t)n && fflush(stdout) == 0;
}

/* 1: everything read has been written; 0: standard output cannot be written. */
static int32_t run_live(krait_stream *stream, ears *e) {
  float heard[HOP], said[MOST];
  for (;;) {
    int64_t n_said;
    const int64_t n = listen(e, heard); /* 0 also at a read error or a cut sample: what came before is written */
    int32_t status = krait_stream_push(stream, heard, n, said, MOST, &n_said);
    if (status < 0) return status;
    if (n_said && !say(said, n_said)) return 0;
    if (n) continue;
    status = krait_stream_finish(stream, said, MOST, &n_said);
    return status < 0 ? status : say(said, n_said);
  }
}

static int say_cut(const ears *e) {
  fprintf(cli_err(), "krait live: standard input %s\n",
          e->has_failed ? "cannot be read" : "ends within a 16-bit sample");
  return 1;
}

static int live_with(const cli_run *how, const krait_model_options *options) {
  krait_ctx *ctx = NULL;
  krait_model *model = NULL;
  krait_session *session = NULL;
  krait_stream *stream = NULL;
  ears e = {.n = 0};
  int exit_status = cli_run_open_ctx("live", how, &ctx);
  if (exit_status >= 0) return exit_status;
  int32_t status = krait_model_open(ctx, options, &model);
  if (status >= 0) status = krait_session_open(model, &session);
  if (status >= 0) status = krait_stream_open(session, &stream);
  if (status < 0) exit_status = cli_report("live", status) + 1;
  else if ((exit_status = refuse_file(&e)) >= 0) status = KRAIT_OK;
  else if ((status = run_live(stream, &e)) < 0) exit_status = cli_report("live", status);
  else if (status && (e.has_failed || e.n)) exit_status = say_cut(&e);
  else
    exit_status = 0; /* main reports failures of standard output */
  krait_stream_close(&stream);
  krait_session_close(&session);
  krait_model_close(&model);
  krait_ctx_close(&ctx);
  return exit_status;
}

int cmd_live(int argc, char **argv) {
  int first;
  cli_run how = {.device = "cpu"};
  krait_model_options model = {.size = sizeof model};
  const cli_option options[] = {
      CLI_TEXT(
          "weights", 'w', "FILE", &model.weights_path,
          "weights (.safetensors, .th, .pt), 'builtin' (the default), or 'streaming', the built-in streaming model "
          "(latency 31 ms)"),
      CLI_TEXT("config", 0, "YAML", &model.config_path, "the model's configuration, if the weights do not contain it"),
      CLI_TEXT("set", 0, "K=V,...", &model.overrides, "override single values of the configuration"),
      CLI_RUN_OPTIONS(&how),
  };
  const cli_verb verb = {
      "live",
      "<SOUND >SOUND",
      "Removes noise from speech in real time, from standard input to standard output: 16 kHz, mono, 16-bit "
      "little-endian samples without a header. The latency is 0.35 s (31 ms with a streaming model), plus the time to "
      "compute.",
      options,
      CLI_N(options),
      0,
      0};
  const int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  if (isatty(STDIN_FILENO) || isatty(STDOUT_FILENO))
    return cli_usage_error(verb.name,
                           "standard input and output carry audio, not text: use pipes instead of a terminal");
  cli_hush_libraries();
  cli_catch_signals(verb.name, "");
  return live_with(&how, &model);
}
