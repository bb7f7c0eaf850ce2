/* cmd_live.c: krait live: sound through krait_voices, from standard input to standard output, or from a microphone to a
 * loudspeaker or virtual device. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include <krait/enhance.h>

#include "args.h"
#include "cmd.h"
#include "interrupt.h"
#include "live_device.h"
#include "live_pipewire.h"
#include "live_sound.h"
#include "output.h"

typedef struct live_settings {
  cli_run how;
  krait_denoiser_options model;
  krait_voice_controls controls;
  const char *band, *in, *out;
  double limit_db; /* negative: none */
  int64_t rate_hz;
  int32_t is_narrow;
  int sets_up, removes;
} live_settings;

typedef struct live_voices {
  krait_ctx *ctx;
  krait_denoiser *model;
  krait_denoiser_session *sessions[LIVE_CHANNELS];
  krait_voice *voices[LIVE_CHANNELS];
  int n;
} live_voices;

/* ---- voices ---- */

/* One for each channel. -1, or the exit status. */
static int open_live(const live_settings *s, int32_t rate_hz, int n, live_voices *v) {
  const krait_voice_options options = {
      .size = sizeof options,
      .flags = (s->is_narrow ? KRAIT_VOICE_NARROW : 0) | (s->controls.gate > 0 ? KRAIT_VOICE_LOOKS_BACK : 0),
      .rate_hz = rate_hz};
  const int exit_status = cli_run_open_ctx("live", &s->how, &v->ctx);
  if (exit_status >= 0) return exit_status;
  int32_t status = krait_denoiser_open(v->ctx, &s->model, &v->model);
  for (v->n = 0; v->n < n && status >= 0; v->n++) {
    status = krait_denoiser_session_open(v->model, &v->sessions[v->n]);
    if (status >= 0) status = krait_voice_open(v->sessions[v->n], &options, &v->voices[v->n]);
    if (status >= 0) status = krait_voice_set(v->voices[v->n], &s->controls);
  }
  return status < 0 ? cli_report("live", status) + 1 : -1;
}

static void close_live(live_voices *v) {
  for (int c = 0; c < v->n; c++) {
    krait_voice_close(&v->voices[c]);
    krait_denoiser_session_close(&v->sessions[c]);
  }
  krait_denoiser_close(&v->model);
  krait_ctx_close(&v->ctx);
}

/* ---- from standard input to standard output ---- */

enum { MOST = 192000 }; /* samples written at once: more than LIVE_FRAMES and any latency */

/* 1: everything read has been written; 0: standard output cannot be written. */
static int32_t run_live(live_voices *v, live_sound *sound) {
  static float heard[LIVE_CHANNELS][LIVE_FRAMES], said[LIVE_CHANNELS][MOST];
  if (!live_sound_say_header(sound)) return 0;
  for (int64_t n = 1, n_said = 0; n;) { /* 0 also at a read error or a cut sample: what came before is written */
    n = live_sound_hear(sound, (float *const[]){heard[0], heard[1]});
    for (int c = 0; c < v->n; c++) {
      const int32_t status = n ? krait_voice_push(v->voices[c], heard[c], n, said[c], MOST, &n_said)
                               : krait_voice_finish(v->voices[c], said[c], MOST, &n_said);
      if (status < 0) return status;
    }
    if (n_said && !live_sound_say(sound, (const float *const[]){said[0], said[1]}, n_said)) return 0;
  }
  return 1;
}

static int live_with_pipes(const live_settings *s) {
  static live_sound sound;
  live_voices v = {0};
  sound.form = (live_form){.rate_hz = (int32_t)s->rate_hz, .n_channels = 1, .bits = 16};
  int exit_status = live_sound_begin(&sound);
  if (exit_status < 0) exit_status = open_live(s, sound.form.rate_hz, sound.form.n_channels, &v);
  if (exit_status < 0) {
    const int32_t status = run_live(&v, &sound);
    if (status < 0) exit_status = cli_report("live", status);
    else if (status) exit_status = live_sound_end(&sound);
    if (exit_status < 0) exit_status = 0; /* main reports failures of standard output */
  }
  close_live(&v);
  return exit_status;
}

/* ---- from a device to another ---- */

static struct termios terminal_before;

/* Single keys, without waiting for a line. */
static int open_keys(void) {
  if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &terminal_before)) return 0;
  struct termios now = terminal_before;
  now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
  return tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0;
}

/* The key that has been pressed; 0: none. */
static char take_key(void) {
  struct pollfd one = {.fd = STDIN_FILENO, .events = POLLIN};
  char key = 0;
  return poll(&one, 1, 0) == 1 && read(STDIN_FILENO, &key, 1) == 1 ? key : 0;
}

static double level_db(const float *x, double *smoothed) {
  double sum = 0;
  for (int i = 0; i < LIVE_DEVICE_FRAMES; i++) sum += (double)x[i] * x[i];
  *smoothed += 0.2 * (sum / LIVE_DEVICE_FRAMES - *smoothed);
  return 10 * log10(*smoothed + 1e-9);
}

static void show_meter(double in_db, double out_db, double speech, int is_on) {
  enum { WIDTH = 20 };
  char bar[WIDTH + 1];
  const int n = (int)fmin(fmax((out_db + 60) / 60 * WIDTH, 0), WIDTH);
  for (int i = 0; i < WIDTH; i++) bar[i] = i < n ? '#' : '.';
  bar[WIDTH] = 0;
  cli_set_mid_line(1);
  fprintf(cli_err(), "\rin %4.0f dB  out %4.0f dB %s  speech %3.0f %%  %s ", in_db, out_db, bar, 100 * speech,
          is_on ? "cleaned " : "as it is");
}

/* Until a key or Ctrl-C ends it: 0; or the exit status of a failure. */
static int run_devices(const live_settings *s, live_voices *v, live_devices *d, int has_keys) {
  const char *why = "";
  krait_voice_controls controls = s->controls;
  float heard[LIVE_DEVICE_FRAMES], said[LIVE_DEVICE_FRAMES];
  double in_square = 0, out_square = 0;
  const int has_meter = isatty(STDERR_FILENO) && !cli_is_quiet();
  int is_on = 1;
  for (int64_t i = 0; !cli_is_asked_to_stop(); i++) {
    const char key = has_keys ? take_key() : 0;
    if (key == 'q') break;
    if (key == ' ') {
      is_on = !is_on, controls.mix = is_on ? s->controls.mix : 0;
      krait_voice_set(v->voices[0], &controls);
    }
    int32_t status = live_devices_hear(d, heard, &why);
    if (status == 0) {
      if ((status = krait_voice_process(v->voices[0], heard, said, LIVE_DEVICE_FRAMES)) < 0)
        return cli_report("live", status);
      status = live_devices_say(d, said, &why);
    }
    if (status < 0) return fprintf(cli_err(), "krait live: the sound device: %s\n", why), 1;
    const double in_db = level_db(heard, &in_square), out_db = level_db(said, &out_square);
    if (has_meter && i % 10 == 0) show_meter(in_db, out_db, krait_voice_speech(v->voices[0]), is_on);
  }
  if (has_meter) fputc('\n', cli_err());
  return 0;
}

static int live_with_devices(const live_settings *s) {
  const char *why;
  live_voices v = {0};
  int exit_status = open_live(s, LIVE_DEVICE_HZ, 1, &v);
  if (exit_status < 0) {
    live_devices *d = live_devices_open(s->in, s->out, &why);
    if (!d) exit_status = cli_usage_error("live", "%s and %s cannot be opened: %s", s->in, s->out, why);
    else {
      if (!cli_is_quiet())
        fprintf(cli_err(), "krait live: %s -> %s, %.0f ms late and what the devices take; space: on or off; q: end\n",
                s->in, s->out, 1000.0 * (double)krait_voice_latency(v.voices[0]) / LIVE_DEVICE_HZ);
      cli_let_interrupt_ask();
      const int has_keys = open_keys();
      exit_status = run_devices(s, &v, d, has_keys);
      if (has_keys) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
      live_devices_close(&d);
    }
  }
  close_live(&v);
  return exit_status;
}

/* ---- the verb ---- */

static int check_live_settings(live_settings *s) {
  const int exit_status = cli_band_parse("live", s->band, &s->is_narrow);
  if (exit_status >= 0) return exit_status;
  if (s->sets_up && s->removes) return cli_usage_error("live", "give --setup-pipewire or --remove, not both");
  if (!s->in != !s->out)
    return cli_usage_error("live", "--in and --out go together, for example: --in default --out default");
  s->controls.limit_db = s->limit_db < 0 ? INFINITY : s->limit_db;
  if (s->in && !s->model.weights_path) s->model.weights_path = "streaming";
  if (s->in || s->sets_up || s->removes || (!isatty(STDIN_FILENO) && !isatty(STDOUT_FILENO))) return -1;
  return cli_usage_error("live",
                         "standard input and output carry audio, not text: use files or pipes instead of a terminal "
                         "(krait live <IN.wav >OUT.wav), or --in default --out default for the microphone");
}

int cmd_live(int argc, char **argv) {
  int first;
  live_settings s = {.how.device = "cpu",
                     .model.size = sizeof s.model,
                     .controls = {.size = sizeof s.controls, .mix = 1},
                     .limit_db = -1,
                     .rate_hz = 16000};
  const cli_option options[] = {
      CLI_TEXT(
          "weights", 'w', "FILE", &s.model.weights_path,
          "weights (.safetensors, .th, .pt), 'builtin' (the default), or 'streaming', the built-in streaming model "
          "(latency 25 ms; the default with --in)"),
      CLI_TEXT("config", 0, "YAML", &s.model.config_path,
               "the model's configuration, if the weights do not contain it"),
      CLI_TEXT("set", 0, "K=V,...", &s.model.overrides, "override single values of the configuration"),
      CLI_WHOLE("rate", 'r', "HZ", &s.rate_hz, 8000, 192000,
                "sample rate of samples without a header (default: 16000)"),
      CLI_REAL("mix", 0, "X", &s.controls.mix, 0, 1, "how much of the output is cleaned: 1 (the default) to 0"),
      CLI_REAL("limit", 0, "DB", &s.limit_db, 0, 1000, "attenuate by at most DB decibels"),
      CLI_REAL("gate", 0, "P", &s.controls.gate, 0, 1,
               "silence where speech is less probable than P (default: 0, never), from 30 ms before it, which adds to "
               "the latency"),
      CLI_BAND_OPTION(&s.band),
      CLI_TEXT("in", 0, "DEVICE", &s.in, "hear this source of PulseAudio or PipeWire ('default': the microphone)"),
      CLI_TEXT("out", 0, "DEVICE", &s.out, "play to this sink ('default': the loudspeaker)"),
      CLI_SWITCH("setup-pipewire", 0, &s.sets_up,
                 "write the configuration of a microphone without noise for this user's PipeWire, and end"),
      CLI_SWITCH("remove", 0, &s.removes, "remove it again"),
      CLI_RUN_OPTIONS(&s.how),
  };
  const cli_verb verb = {
      "live",
      "<SOUND >SOUND",
      "Removes noise from speech in real time, from standard input to standard output: a WAV stream, or mono 16-bit "
      "little-endian samples without a header; or from a sound device to another. The latency is 0.35 s (25 ms with a "
      "streaming model; at other rates than 16 kHz 4 ms more), plus the time to compute.",
      options,
      CLI_N(options),
      0,
      0,
      "krait live --in default --out default"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status < 0) exit_status = check_live_settings(&s);
  if (exit_status >= 0) return exit_status;
  if (s.sets_up) return live_pipewire_setup();
  if (s.removes) return live_pipewire_remove();
  cli_hush_libraries();
  cli_catch_signals(verb.name, "");
  return s.in ? live_with_devices(&s) : live_with_pipes(&s);
}
