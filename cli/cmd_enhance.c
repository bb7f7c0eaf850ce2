/* cmd_enhance.c: krait enhance: where each output goes, progress, and what is left after Ctrl-C. */
#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <krait/enhance.h>

#include "args.h"
#include "cmd.h"
#include "workers.h"
#include "inputs.h"
#include "interrupt.h"
#include "progress.h"
#include "output.h"

typedef struct settings {
  const char *out, *plot, *reference, *noise, *rir, *mixed;
  double snr_db;
  int as_json, force, skip_existing;
  double limit_db; /* negative: none */
  double mix, gate;
  const char *band;
  int32_t is_narrow;
  int64_t n_jobs;
  cli_run run;
  const char *precision;
  krait_denoiser_options model;
} settings;

static const char *short_name(const char *path) {
  const char *slash = strrchr(path, '/');
  if (strcmp(path, "-") == 0) return "standard input";
  return slash ? slash + 1 : path;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static json_t *scores_json(const krait_scores *scores) {
  return json_pack("{s:o, s:o, s:o}", "si_sdr_db", cli_json_real(scores->si_sdr_db), "segmental_snr_db",
                   cli_json_real(scores->segmental_snr_db), "stoi", cli_json_real(scores->stoi));
}

/* object, or NULL (and object freed) when something could not be added. */
static json_t *enhance_whole_or_null(json_t *object, int failed) {
  if (!failed) return object;
  json_decref(object);
  return NULL;
}

static json_t *names_json(const cli_pair *pair, int with_output) {
  json_t *object = json_object();
  int failed = cli_json_set_name(object, "input", pair->in);
  if (with_output) failed |= cli_json_set_name(object, "output", pair->out);
  return enhance_whole_or_null(object, failed);
}

static json_t *error_json(const cli_pair *pair, int32_t status, const char *error) {
  json_t *object = names_json(pair, 0),
         *more = json_pack("{s:s, s:o}", "status", krait_status_name(status), "error", cli_json_text(error));
  object = enhance_whole_or_null(object, json_object_update(object, more));
  json_decref(more);
  return object;
}

static json_t *skipped_json(const cli_pair *pair) {
  json_t *object = names_json(pair, 1);
  return enhance_whole_or_null(object, json_object_set_new(object, "skipped", json_true()));
}

static json_t *result_json(const cli_pair *pair, const krait_ctx *ctx, const krait_enhance_result *r) {
  char device[32] = "cpu", caps[256];
  if (krait_ctx_device(ctx) != KRAIT_DEVICE_CPU)
    snprintf(device, sizeof device, "cuda:%d", krait_ctx_device(ctx) - KRAIT_DEVICE_CUDA(0));
  krait_caps_format(krait_ctx_caps(ctx), caps, sizeof caps);
  json_t *object = names_json(pair, 1);
  json_t *more =
      json_pack("{s:s, s:s, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:b}", "device", device, "caps", caps, "threads",
                krait_ctx_n_threads(ctx), "sample_rate_hz", r->sample_rate_hz, "channels", r->n_channels, "samples",
                (json_int_t)r->n_samples, "audio_s", r->audio_s, "compute_s", r->compute_s, "total_s", r->total_s,
                "rtf", r->total_s / r->audio_s, "replaced", pair->out_exists);
  int failed = json_object_update(object, more);
  json_decref(more);
  if (*r->note) failed |= json_object_set_new(object, "note", cli_json_text(r->note));
  if (r->has_scores) {
    failed |= json_object_set_new(object, "noisy", scores_json(&r->noisy));
    failed |= json_object_set_new(object, "enhanced", scores_json(&r->enhanced));
  }
  return enhance_whole_or_null(object, failed);
}

static void print_enhanced_score(FILE *file, const char *name, const char *unit, int digits, double before,
                                 double after) {
  fprintf(file, "  %-13s %9.*f -> %.*f%s\n", name, digits, before, digits, after, unit);
}

/* To standard error when standard output carries the audio. */
static FILE *results_to(const cli_pair *pair) { return strcmp(pair->out, "-") == 0 ? cli_err() : stdout; }

static void print_names(FILE *file, const cli_pair *pair) {
  cli_print_clean(file, strcmp(pair->in, "-") == 0 ? "standard input" : pair->in);
  fprintf(file, " -> ");
  cli_print_clean(file, strcmp(pair->out, "-") == 0 ? "standard output" : pair->out);
}

static void print_result(const cli_pair *pair, const krait_enhance_result *r) {
  FILE *file = results_to(pair);
  print_names(file, pair);
  fprintf(file, ": %.2f s of audio in %.2f s (RTF %.3f)%s\n", r->audio_s, r->total_s, r->total_s / r->audio_s,
          pair->out_exists ? ", replacing the previous file" : "");
  if (*r->note) fprintf(file, "  %s\n", r->note);
  if (!r->has_scores) return;
  print_enhanced_score(file, "SI-SDR", " dB", 2, r->noisy.si_sdr_db, r->enhanced.si_sdr_db);
  print_enhanced_score(file, "segmental SNR", " dB", 2, r->noisy.segmental_snr_db, r->enhanced.segmental_snr_db);
  print_enhanced_score(file, "STOI", "", 4, r->noisy.stoi, r->enhanced.stoi);
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

typedef struct outcome {
  int32_t status;
  char *error;
  krait_enhance_result result;
} outcome;

typedef struct batch {
  const settings *s;
  const krait_ctx *ctx;
  const krait_denoiser *model;
  krait_denoiser_session *sessions[CLI_WORKERS_MOST];
  const cli_pairs *pairs;
  outcome *outcomes;
  int n_failed, n_untold; /* n_untold: results that could not be printed */
  double audio_s;
} batch;

/* The exit status of the first recording that failed. */
typedef struct watched {
  cli_progress progress;
  cli_workers *crew;
  int piece;
} watched;

static int32_t show_enhance(void *user, int64_t done, int64_t total) {
  watched *w = user;
  return cli_workers_is_next(w->crew, w->piece) ? cli_progress_show(&w->progress, done, total) : 0;
}

static void enhance_one(void *user, cli_workers *crew, int worker, int piece) {
  batch *b = user;
  const cli_pair *pair = &b->pairs->pairs[piece];
  outcome *o = &b->outcomes[piece];
  watched w = {.crew = crew, .piece = piece};
  if (pair->is_skipped) return;
  cli_progress_begin(&w.progress, short_name(pair->in), &o->result.audio_s);
  const int replaces = b->s->force || (b->pairs->is_default && pair->out_exists);
  const krait_enhance_options options = {.size = sizeof options,
                                         .flags = replaces ? 0 : KRAIT_ENHANCE_KEEP,
                                         .in_path = pair->in,
                                         .out_path = pair->out,
                                         .plot_path = b->s->plot,
                                         .reference_path = b->s->reference,
                                         .progress = show_enhance,
                                         .user = &w,
                                         .has_limit = b->s->limit_db >= 0,
                                         .limit_db = b->s->limit_db,
                                         .is_narrow = b->s->is_narrow,
                                         .dry = 1 - b->s->mix,
                                         .gate = b->s->gate,
                                         .noise_path = b->s->noise,
                                         .rir_path = b->s->rir,
                                         .mixed_path = b->s->mixed,
                                         .snr_db = b->s->snr_db};
  o->result.size = sizeof o->result;
  o->status = b->sessions[worker] ? KRAIT_OK : krait_denoiser_session_open(b->model, &b->sessions[worker]);
  if (o->status == KRAIT_OK) o->status = krait_enhance_file(b->sessions[worker], &options, &o->result);
  if (o->status < 0) o->error = strdup(krait_error_detail());
}

static void tell_enhance(void *user, int piece) {
  batch *b = user;
  const cli_pair *pair = &b->pairs->pairs[piece];
  const outcome *o = &b->outcomes[piece];
  const char *error = o->error ? o->error : "";
  cli_progress_end();
  if (o->status < 0) {
    b->n_failed++;
    if (b->s->as_json) b->n_untold += cli_print_json("enhance", error_json(pair, o->status, error), JSON_COMPACT);
    cli_report_detail("enhance", o->status, error);
  } else if (pair->is_skipped) {
    if (b->s->as_json) b->n_untold += cli_print_json("enhance", skipped_json(pair), JSON_COMPACT);
  } else if (b->s->as_json) {
    b->n_untold +=
        cli_print_json("enhance", result_json(pair, b->ctx, &o->result), JSON_COMPACT | JSON_REAL_PRECISION(9));
  } else if (!cli_is_quiet()) {
    print_result(pair, &o->result);
  }
  if (o->status == KRAIT_OK) b->audio_s += o->result.audio_s;
  fflush(stdout);
}

static double enhance_now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One summary line after several recordings. */
static void print_summary(const batch *b, double seconds) {
  const int n_done = b->pairs->n - b->pairs->n_skipped - b->n_failed;
  if (b->pairs->n < 2 || b->s->as_json || cli_is_quiet() || cli_is_stopped()) return;
  printf("%d of %d recordings done: %.2f s of audio in %.2f s", n_done, b->pairs->n, b->audio_s, seconds);
  if (b->pairs->n_skipped) printf(", %d skipped because their output exists", b->pairs->n_skipped);
  printf(", %d failed\n", b->n_failed);
}

static int enhance_pairs(batch *b) {
  const cli_workers_work work = {
      .n_pieces = b->pairs->n, .n_workers = (int)b->s->n_jobs, .user = b, .work = enhance_one, .tell = tell_enhance};
  const double start_s = enhance_now_s();
  b->outcomes = calloc((size_t)b->pairs->n, sizeof *b->outcomes);
  if (!b->outcomes || cli_workers_run(&work) != 0)
    b->n_untold += cli_report_detail("enhance", KRAIT_ERR_NO_MEMORY, "no memory for a list of recordings");
  else print_summary(b, enhance_now_s() - start_s);
  for (int i = 0; i < CLI_WORKERS_MOST; i++) krait_denoiser_session_close(&b->sessions[i]);
  for (int i = 0; b->outcomes && i < b->pairs->n; i++) free(b->outcomes[i].error);
  free(b->outcomes);
  return b->n_failed > 0 || b->n_untold > 0;
}

/* Whether there is more audio than the CPU cleans while a GPU starts (0.3 s): one second per thread
 * (docs/speed/primeknet-gpu.md). Unreadable files count as 0; their error is reported at their turn. */
static int is_worth_a_gpu(const cli_pairs *pairs, int32_t n_threads) {
  double audio_s = 0, one_s;
  for (int i = 0; i < pairs->n && audio_s <= n_threads; i++)
    if (!pairs->pairs[i].is_skipped && krait_audio_length(pairs->pairs[i].in, &one_s) == KRAIT_OK) audio_s += one_s;
  return audio_s > n_threads;
}

static int open_ctx(const settings *s, const cli_pairs *pairs, krait_ctx **ctx) {
  cli_run run = s->run;
  if ((!run.device || strcmp(run.device, "auto") == 0) && !run.tier && !run.caps) {
    run.device = "cpu";
    const int exit_status = cli_run_open_ctx("enhance", &run, ctx);
    if (exit_status >= 0 || (krait_ctx_caps(*ctx) & KRAIT_CAP_CPU && !is_worth_a_gpu(pairs, krait_ctx_n_threads(*ctx))))
      return exit_status;
    krait_ctx_close(ctx);
  }
  return cli_run_open_ctx("enhance", &s->run, ctx);
}

static int enhance_all(const settings *s, const cli_pairs *pairs) {
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  int exit_status = open_ctx(s, pairs, &ctx);
  if (exit_status >= 0) return exit_status;
  batch b = {.s = s, .ctx = ctx, .pairs = pairs};
  int32_t status = krait_denoiser_open(ctx, &s->model, &model);
  b.model = model;
  if (status == KRAIT_OK) status = krait_denoiser_session_open(model, &b.sessions[0]);
  exit_status = status < 0 ? cli_report("enhance", status) + 1 : enhance_pairs(&b);
  krait_denoiser_close(&model);
  krait_ctx_close(&ctx);
  return exit_status;
}

static int check_enhance_settings(const settings *s, const cli_pairs *pairs) {
  const int to_stdout = strcmp(pairs->pairs[0].out, "-") == 0;
  if (pairs->n > 1 && (s->plot || s->reference || s->mixed))
    return cli_usage_error("enhance", "--%s takes one input, not %d",
                           s->plot        ? "plot"
                           : s->reference ? "reference"
                                          : "mixed",
                           pairs->n);
  const int wrong = s->plot ? cli_png_check("enhance", "plot", s->plot) : -1;
  if (wrong >= 0) return wrong;
  if (to_stdout && s->as_json)
    return cli_usage_error("enhance", "--json and the audio cannot both go to standard output; use -o FILE");
  if (to_stdout && isatty(STDOUT_FILENO))
    return cli_usage_error("enhance", "standard output is a terminal; use -o FILE or a pipe");
  if (strcmp(pairs->pairs[0].in, "-") == 0 && isatty(STDIN_FILENO))
    return cli_usage_error("enhance", "standard input is a terminal; name a file");
  return -1;
}

/* Checks that need no file access. */
static int check_enhance_options(const settings *s) {
  struct stat info;
  if (s->reference && strcmp(s->reference, "-") == 0)
    return cli_usage_error("enhance", "--reference must be a file, not standard input");
  if (s->reference && stat(s->reference, &info) == 0 && !S_ISREG(info.st_mode))
    return cli_usage_error("enhance", "--reference %s is not a regular file", s->reference);
  if (s->plot && strcmp(s->plot, "-") == 0) return cli_usage_error("enhance", "--plot needs the name of a PNG file");
  if ((s->noise || s->rir) && (s->plot || s->reference))
    return cli_usage_error("enhance", "--%s cannot be combined with --noise and --rir; krait evaluate scores mixtures",
                           s->plot ? "plot" : "reference");
  if (s->mixed && !s->noise && !s->rir) return cli_usage_error("enhance", "--mixed needs --noise or --rir");
  if (s->mixed && strcmp(s->mixed, "-") == 0) return cli_usage_error("enhance", "--mixed needs the name of a file");
  if (s->gate > 0 && s->is_narrow) return cli_usage_error("enhance", "--gate cannot be combined with --band 16k");
  if (!s->noise && s->snr_db != 0) return cli_usage_error("enhance", "--snr needs --noise");
  if (s->force && s->skip_existing)
    return cli_usage_error("enhance", "-f replaces existing files, --skip-existing keeps them; give only one");
  return -1;
}

/* Two operands of which the second does not exist are an input and its output, as other programs take them. */
static int check_enhance_operands(const settings *s, char **operands, int n_operands) {
  if (n_operands != 2 || s->out || strcmp(operands[1], "-") == 0 || access(operands[1], F_OK) == 0) return -1;
  return cli_usage_error("enhance", "%s does not exist; to write the result there: krait enhance %s -o %s",
                         operands[1], operands[0], operands[1]);
}

static int run_enhance(const settings *s, char **operands, int n_operands) {
  const char *const read_too[] = {s->model.weights_path, s->model.config_path, s->reference, s->noise, s->rir};
  const cli_outputs_rule rule = {.verb = "enhance",
                                 .read_too = read_too,
                                 .n_read_too = CLI_N(read_too),
                                 .write_too = s->plot ? s->plot : s->mixed,
                                 .force = s->force,
                                 .skip_existing = s->skip_existing};
  cli_pairs pairs = {0};
  int exit_status = check_enhance_operands(s, operands, n_operands);
  if (exit_status < 0) exit_status = cli_pairs_plan(&rule, operands, n_operands, s->out, &pairs);
  if (exit_status < 0) exit_status = check_enhance_settings(s, &pairs);
  if (exit_status < 0) exit_status = enhance_all(s, &pairs);
  cli_pairs_free(&pairs);
  return exit_status;
}

int cmd_enhance(int argc, char **argv) {
  int first;
  settings s = {.n_jobs = 1, .limit_db = -1, .mix = 1, .model.size = sizeof s.model};
  const cli_option options[] = {
      CLI_TEXT("output", 'o', "FILE|DIR", &s.out,
               "output file or folder; '-' is standard output. A file's extension selects its format. Default: "
               "NAME.enhanced.EXT beside each input"),
      CLI_SWITCH("force", 'f', &s.force,
                 "replace existing outputs. Without it, only NAME.enhanced.EXT from an earlier run is replaced"),
      CLI_SWITCH("skip-existing", 0, &s.skip_existing,
                 "skip recordings whose output exists: continues an interrupted run"),
      CLI_REAL("limit", 0, "DB", &s.limit_db, 0, 1000,
               "attenuate by at most DB decibels: 6 to 20 keep some of the room, 0 changes nothing"),
      CLI_REAL("mix", 0, "X", &s.mix, 0, 1, "how much of the output is cleaned: 1 (the default) to 0"),
      CLI_REAL("gate", 0, "P", &s.gate, 0, 1, "silence where speech is less probable than P (default: 0, never)"),
      CLI_BAND_OPTION(&s.band),
      CLI_TEXT(
          "weights", 'w', "FILE", &s.model.weights_path,
          "weights (.safetensors, .th, .pt), 'builtin' (the default), or 'streaming', the built-in streaming model "
          "(latency 25 ms)"),
      CLI_TEXT("config", 0, "YAML", &s.model.config_path,
               "the model's configuration, if the weights do not contain it"),
      CLI_TEXT("set", 0, "K=V,...", &s.model.overrides, "override single values of the configuration"),
      CLI_TEXT("plot", 0, "PNG", &s.plot, "plot spectrograms before and after, and of --reference"),
      CLI_TEXT("reference", 0, "CLEAN", &s.reference,
               "the same recording without noise: print SI-SDR, segmental SNR and STOI before and after"),
      CLI_TEXT("noise", 0, "FILE", &s.noise,
               "for demonstrations: mix this noise (looped) into the input, and enhance the mixture"),
      CLI_REAL("snr", 0, "DB", &s.snr_db, -100, 100, "signal-to-noise ratio of the mixture (default: 0)"),
      CLI_TEXT("rir", 0, "FILE", &s.rir, "convolve the input with this room impulse response first"),
      CLI_TEXT("mixed", 0, "FILE", &s.mixed, "also write the mixture here"),
      CLI_SWITCH("json", 0, &s.as_json, "print one JSON object per input"),
      CLI_WHOLE("jobs", 'j', "N", &s.n_jobs, 1, CLI_WORKERS_MOST,
                "recordings in parallel (default: 1), each with its own working memory. On a GPU, 4 take about a "
                "quarter less time"),
      CLI_PRECISION_OPTION(&s.precision, "tf32"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {"enhance",
                         "IN... [-o FILE|DIR]",
                         "Removes noise from recordings of speech. IN is an audio file of any format, sample rate and "
                         "channel count that libsndfile reads (with the program ffmpeg also m4a, webm and video "
                         "files), a folder of them (searched recursively), or '-' for standard input. The output keeps "
                         "the sample rate, length, channels and, if it can be written, the format. By default a GPU is "
                         "used if there is one and the input has more than one second of audio per CPU thread; the CPU "
                         "is faster for less.",
                         options,
                         CLI_N(options),
                         1,
                         -1,
                         "krait enhance interview.wav -o clean.wav"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status < 0) exit_status = cli_precision_parse("enhance", s.precision, &s.model.precision);
  if (exit_status < 0) exit_status = cli_band_parse("enhance", s.band, &s.is_narrow);
  if (exit_status < 0) exit_status = check_enhance_options(&s);
  if (exit_status >= 0) return exit_status;
  cli_hush_libraries();
  cli_catch_signals(verb.name, "");
  return run_enhance(&s, argv + first, argc - first);
}
