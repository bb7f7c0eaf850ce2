/* cmd_live.c: krait live: sound as it comes. Every quarter of a second the last second goes through the model again,
 * and the samples that a tenth of a second has followed are said: no model needs to know of it, and the delay is the
 * sum (docs/speed/2026-11-22-train5.md says what that costs and keeps). */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <krait/model.h>

#include "args.h"
#include "cmd.h"
#include "interrupt.h"
#include "say.h"

enum { WINDOW = 16000, HOP = 4000, AHEAD = 1600, FADE = 160 }; /* samples at 16 kHz */

typedef struct live {
  krait_session *session;
  float heard[WINDOW], said[WINDOW], tail[FADE]; /* tail: what the last answer went on with */
  int64_t n_heard, n_said;
} live;

/* Up to HOP samples, fewer at the end: -1 where that lies within a sample. */
static int64_t listen(float *to) {
  unsigned char bytes[2 * HOP];
  const size_t n = fread(bytes, 1, sizeof bytes, stdin);
  for (size_t i = 0; i + 1 < n; i += 2) to[i / 2] = (float)(int16_t)(uint16_t)(bytes[i] | bytes[i + 1] << 8) / 32768;
  return n % 2 ? -1 : (int64_t)(n / 2);
}

static int say(const float *from, int64_t n) {
  unsigned char bytes[2 * WINDOW];
  for (int64_t i = 0; i < n; i++) {
    const long v = lrintf(fminf(fmaxf(from[i] * 32768, -32768), 32767));
    bytes[2 * i] = (unsigned char)(v & 255), bytes[2 * i + 1] = (unsigned char)(v >> 8 & 255);
  }
  return fwrite(bytes, 2, (size_t)n, stdout) == (size_t)n && fflush(stdout) == 0;
}

static void remember(live *l, const float *block, int64_t n) {
  memmove(l->heard, l->heard + n, (size_t)(WINDOW - n) * sizeof(float));
  memcpy(l->heard + WINDOW - n, block, (size_t)n * sizeof(float));
  l->n_heard += n;
}

/* Says what is due: all at the end. 1: standard output took it; 0: it did not. */
static int32_t answer(live *l, int is_end) {
  const int64_t length = l->n_heard < WINDOW ? l->n_heard : WINDOW, begin = l->n_heard - length,
                due = is_end ? l->n_heard : l->n_heard - AHEAD;
  if (due <= l->n_said) return 1;
  const int32_t status =
      krait_enhance_samples(l->session, l->heard + WINDOW - length, l->said, length, NULL, NULL);
  if (status < 0) return status;
  float *const from = l->said + (l->n_said - begin);
  for (int64_t i = 0; i < FADE && i < due - l->n_said && l->n_said; i++) {
    const float share = ((float)i + 0.5f) / FADE;
    from[i] = share * from[i] + (1 - share) * l->tail[i];
  }
  if (!is_end) memcpy(l->tail, l->said + (due - begin), sizeof l->tail);
  const int is_said = say(from, due - l->n_said);
  l->n_said = due;
  return is_said;
}

static int32_t run(live *l, int *is_cut) {
  float block[HOP];
  for (;;) {
    const int64_t n = listen(block);
    *is_cut = n < 0 || ferror(stdin);
    if (*is_cut) return 1;
    remember(l, block, n);
    const int32_t status = answer(l, n < HOP);
    if (status != 1 || n < HOP) return status;
  }
}

static int say_cut(void) {
  fprintf(cli_err(), "krait live: standard input %s\n",
          ferror(stdin) ? "cannot be read" : "ends within a sample: samples have 16 bits");
  return 1;
}

static int live_with(const cli_run *how, const krait_model_options *options) {
  static live l;
  krait_ctx *ctx = NULL;
  krait_model *model = NULL;
  int is_cut = 0, exit_status = cli_run_open_ctx("live", how, &ctx);
  if (exit_status >= 0) return exit_status;
  int32_t status = krait_model_open(ctx, options, &model);
  if (status >= 0) status = krait_session_open(model, &l.session);
  if (status < 0) exit_status = cli_report("live", status) + 1;
  else if ((status = run(&l, &is_cut)) < 0) exit_status = cli_report("live", status);
  else if (is_cut) exit_status = say_cut();
  else exit_status = 0; /* main says it when standard output did not take all */
  krait_session_close(&l.session);
  krait_model_close(&model);
  krait_ctx_close(&ctx);
  return exit_status;
}

int cmd_live(int argc, char **argv) {
  int first;
  cli_run how = {.device = "cpu"};
  krait_model_options model = {.size = sizeof model};
  const cli_option options[] = {
      CLI_TEXT("weights", 'w', "FILE", &model.weights_path,
               "weights (.safetensors, .th, .pt); default: those inside the program"),
      CLI_TEXT("config", 0, "YAML", &model.config_path, "the model's configuration, when the weights do not say it"),
      CLI_TEXT("set", 0, "K=V,...", &model.overrides, "single values of the configuration; they win"),
      CLI_RUN_OPTIONS(&how),
  };
  const cli_verb verb = {"live",
                         "<SOUND >SOUND",
                         "Removes noise from speech as it comes: from standard input to standard output, 16 kHz, one "
                         "channel, 16-bit little-endian samples without a header. What it says is 0.35 s old, and "
                         "computing comes on top.",
                         options,
                         CLI_N(options),
                         0,
                         0};
  const int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  if (isatty(STDIN_FILENO) || isatty(STDOUT_FILENO))
    return cli_usage_error(verb.name, "standard input and output are sound, not a terminal: use pipes");
  cli_hush_libraries();
  cli_catch_signals(verb.name);
  return live_with(&how, &model);
}
