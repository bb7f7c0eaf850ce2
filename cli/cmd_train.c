/* cmd_train.c: krait train: a training run, one line per logging interval. */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <krait/train.h>

#include "args.h"
#include "cmd.h"
#include "gpus.h"
#include "inputs.h"
#include "interrupt.h"
#include "progress.h"
#include "output.h"

typedef struct watched {
  cli_progress progress;
  int64_t first; /* steps done by an earlier run; -1 before the first step of this one */
  int has_checkpoint;
} watched;

/* What Ctrl-C says; a line of progress comes with a checkpoint. */
static void say_when_stopped(int has_checkpoint) {
  cli_catch_signals("train", has_checkpoint ? "; --resume continues from the last checkpoint"
                                            : "; there was no checkpoint yet: start again");
}

static void show_train(void *user, const krait_train_report *r) {
  watched *w = user;
  if (!w->has_checkpoint) say_when_stopped(w->has_checkpoint = 1);
  cli_progress_end();
  if (cli_is_quiet()) return;
  printf(
      "step %lld/%lld  total %.4f  magnitude %.4f  phase %.4f  complex %.4f  consistency %.4f  metric %.4f  disc %.4f  "
      "lr %.2e  %.2f s/s  %.0f s left",
      (long long)r->step, (long long)r->n_steps, r->total, r->magnitude, r->phase, r->complex_part, r->consistency,
      r->metric, r->discriminator, r->lr, r->audio_s_per_s, r->left_s);
  if (!isnan(r->valid)) printf("  valid %.4f%s", r->valid, r->is_best ? " (best so far)" : "");
  printf("\n");
  fflush(stdout);
}

static int32_t watch(void *user, int64_t done, int64_t total) {
  watched *w = user;
  if (w->first < 0) w->first = done - 1;
  return cli_progress_show(&w->progress, done - w->first, total - w->first);
}

static void note(void *user, const char *line) {
  (void)user;
  if (cli_is_quiet()) return;
  cli_progress_end();
  fprintf(cli_err(), "krait train: %s\n", line);
}

/* With several processes, each uses the GPU of its local rank if more than one is visible. -1, or the exit status. */
static int choose_device(const krait_train_launcher *place, int64_t n_gpus, cli_run *run, char *device, size_t bytes) {
  int32_t n = 0;
  if (place->n_ranks == 1) return -1;
  if (n_gpus && n_gpus != place->n_ranks)
    return cli_usage_error("train", "--gpus %lld, but a launcher has already started %d processes", (long long)n_gpus,
                           place->n_ranks);
  if (run->device && strcmp(run->device, "cuda") != 0)
    return cli_usage_error("train",
                           "--device is '%s': several processes train only on GPUs, each on the GPU of its local rank",
                           run->device);
  const int32_t status = krait_device_count(&n);
  if (status < 0) return cli_report("train", status) + 1;
  snprintf(device, bytes, "cuda:%d", n > 1 ? place->local_rank : 0);
  run->device = device;
  return -1;
}

/* The processes of a machine share its cores, unless their launcher has bound each of them to some. */
static void share_cores(const krait_train_launcher *place, cli_run *run) {
  cpu_set_t set;
  const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (place->n_local < 2 || run->n_threads || getenv("KRAIT_THREADS")) return;
  const long n_usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : n_cores;
  run->n_threads = n_usable < n_cores ? n_usable : n_cores / place->n_local > 1 ? n_cores / place->n_local : 1;
  if (place->rank == 0 && n_usable < n_cores / place->n_local)
    note(NULL, "each process is bound to fewer cores than its share: mpirun needs --bind-to none");
}

/* The plot replaces an existing file only with -f or --resume, and never an input file. */
static int check_plot(const krait_train_options *o, const char *config, int force) {
  static const char *const own[] = {"checkpoint.safetensors", "best.safetensors", "log.jsonl", ".hydra/config.yaml"};
  char paths[CLI_N(own)][4096];
  const char *read_too[CLI_N(own) + 1] = {o->weights};
  for (int i = 0; i < CLI_N(own); i++) {
    snprintf(paths[i], sizeof paths[i], "%s/%s", o->folder, own[i]);
    read_too[i + 1] = paths[i];
  }
  const cli_outputs_rule rule = {.verb = "train",
                                 .read_too = read_too,
                                 .n_read_too = CLI_N(read_too),
                                 .makes = o->folder,
                                 .force = force || o->resume};
  const int status = cli_output_check(&rule, config ? config : "-", o->plot_path);
  return status < 0 ? cli_png_check("train", "plot", o->plot_path) : status;
}

int cmd_train(int argc, char **argv) {
  cli_run run = {0};
  int resume = 0, force = 0, changed_data = 0;
  int64_t n_gpus = 0;
  char device[32];
  watched watcher = {.first = -1};
  krait_train_launcher place = {.size = sizeof place};
  krait_train_options options = {.size = sizeof options,
                                 .folder = "train-output",
                                 .valid_batches = 8,
                                 .report = show_train,
                                 .note = note,
                                 .user = &watcher,
                                 .progress = watch};
  const cli_option table[] = {
      CLI_TEXT("output", 'o', "DIR", &options.folder,
               "checkpoints, best.safetensors and log.jsonl (default: train-output)"),
      CLI_TEXT("weights", 'w', "FILE", &options.weights,
               "start from these weights, and from their model's configuration: a file, or 'builtin' or 'streaming' "
               "for those in the program"),
      CLI_SWITCH("resume", 0, &resume, "resume from the checkpoint in the output folder"),
      CLI_SWITCH("changed-data", 0, &changed_data,
                 "resume although recordings were added, removed or changed in length since the checkpoint"),
      CLI_WHOLE("steps", 0, "N", &options.most_steps, 1, 1000000000,
                "stop after N steps in total (default: the configuration's epochs)"),
      CLI_WHOLE("valid-batches", 0, "N", &options.valid_batches, 1, 1000000,
                "validate on at most N batches (default: 8)"),
      CLI_WHOLE("gpus", 0, "N", &n_gpus, 1, 64,
                "train on N GPUs of this machine, one process per GPU; batch_size is the total over all GPUs"),
      CLI_TEXT("plot", 0, "PNG", &options.plot_path, "plot the losses, updated at the end of every epoch"),
      CLI_SWITCH("force", 'f', &force, "replace the file of --plot if it exists"),
      CLI_RUN_OPTIONS(&run),
  };
  const cli_verb verb = {"train",
                         "[CONFIG] [NAME=VALUE | +NAME=VALUE]...",
                         "Trains PrimeKnet. CONFIG is a YAML file or the folder of a run; "
                         "+model=primeknet_mamba_masking and +dset=taps select built-in sections (docs/TRAIN.md).",
                         table,
                         CLI_N(table),
                         0,
                         -1,
                         "krait train -w builtin dset.speech_train=clean dset.noise_train=noise lr=1e-4 -o run"};
  int first;
  const int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  const char *path = first < argc && !strchr(argv[first], '=') ? argv[first++] : NULL;
  for (int i = first; i < argc; i++)
    if (!strchr(argv[i], '=')) return cli_usage_error("train", "'%s' is not a setting NAME=VALUE", argv[i]);
  if (krait_train_launcher_read(&place) < 0) return cli_report("train", KRAIT_ERR_ARGUMENT) + 1;
  if (n_gpus > 1 && run.device && strcmp(run.device, "cuda") != 0)
    return cli_usage_error("train", "--device is '%s', but --gpus uses the first %lld GPUs", run.device,
                           (long long)n_gpus);
  options.resume = (uint32_t)resume, options.changed_data = (uint32_t)changed_data;
  const int refused = options.plot_path && place.rank == 0 ? check_plot(&options, path, force) : -1;
  if (refused >= 0) return refused;
  if (n_gpus > 1 && place.n_ranks == 1) return cli_gpus_run((int)n_gpus, argc, argv);
  krait_ctx *ctx = NULL;
  int opened = choose_device(&place, n_gpus, &run, device, sizeof device);
  share_cores(&place, &run);
  if (opened < 0) opened = cli_run_open_ctx("train", &run, &ctx);
  if (opened >= 0) return opened;
  watcher.has_checkpoint = resume;
  if (place.rank == 0) say_when_stopped(resume); /* only one process prints the line */
  options.place = &place;
  options.config = path, options.settings = (const char *const *)argv + first, options.n_settings = argc - first;
  cli_progress_begin(&watcher.progress, options.folder, NULL);
  const int32_t status = krait_train(ctx, &options);
  cli_progress_end();
  const int result = status >= 0 ? 0
                     : place.rank && status == KRAIT_ERR_CANCELLED
                         ? 1
                         : cli_report_call("train", status, krait_error_detail()); /* another rank reports it */
  krait_ctx_close(&ctx);
  return result;
}
