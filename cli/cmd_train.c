/* cmd_train.c: krait train: a training run, a line an interval. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <krait/train.h>

#include "args.h"
#include "cmd.h"
#include "interrupt.h"
#include "say.h"

static void show(void *user, const krait_train_report *r) {
  (void)user;
  printf("step %lld/%lld  total %.4f  magnitude %.4f  phase %.4f  complex %.4f  consistency %.4f  metric %.4f  disc %.4f  lr %.2e  %.2f s/s  %.0f s left", (long long)r->step, (long long)r->n_steps,
         r->total, r->magnitude, r->phase, r->complex_part, r->consistency, r->metric, r->discriminator, r->lr, r->audio_s_per_s, r->left_s);
  if (!isnan(r->valid)) printf("  valid %.4f%s", r->valid, r->is_best ? " (best so far)" : "");
  printf("\n");
  fflush(stdout);
}

static void note(void *user, const char *line) {
  (void)user;
  fprintf(kr_err(), "krait train: %s\n", line);
}

int cmd_train(int argc, char **argv) {
  kr_run run = {0};
  int resume = 0;
  krait_train_options options = {.size = sizeof options, .folder = "train-output", .valid_batches = 8, .report = show, .note = note};
  const kr_option table[] = {
      KR_TEXT("output", 'o', "DIR", &options.folder, "checkpoints, best.safetensors and log.jsonl (default: train-output)"),
      KR_TEXT("weights", 'w', "FILE", &options.weights, "begin with these, and with their model's configuration"),
      KR_SWITCH("resume", 0, &resume, "go on where the output's checkpoint was written"),
      KR_WHOLE("steps", 0, "N", &options.most_steps, 1, 1000000000, "stop after so many steps in all (default: the configuration's epochs)"),
      KR_WHOLE("valid-batches", 0, "N", &options.valid_batches, 1, 1000000, "batches of a validation at most (default: 8)"),
      KR_RUN_OPTIONS(&run),
  };
  const kr_verb verb = {"train", "[CONFIG] [NAME=VALUE | +NAME=VALUE]...",
                        "Trains PrimeKnet. CONFIG is a YAML file or a run's folder; +model=primeknet_mamba_masking and +dset=taps name shipped parts.", table, KR_N(table), 0, -1};
  int first;
  const int exit_status = kr_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  const char *path = first < argc && !strchr(argv[first], '=') ? argv[first++] : NULL;
  for (int i = first; i < argc; i++)
    if (!strchr(argv[i], '=')) return kr_usage_error("train", "'%s' is no setting NAME=VALUE", argv[i]);
  krait_ctx *ctx = NULL;
  const int opened = kr_run_open_ctx("train", &run, &ctx);
  if (opened >= 0) return opened;
  kr_catch_signals("train");
  options.config = path, options.settings = (const char *const *)argv + first, options.n_settings = argc - first, options.resume = (uint32_t)resume;
  const int32_t status = krait_train(ctx, &options);
  const int result = status < 0 ? kr_report("train", status) : 0;
  krait_ctx_close(&ctx);
  return result;
}
