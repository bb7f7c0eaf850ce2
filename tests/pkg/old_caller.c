/* old_caller.c: built with an older release's headers, run on today's library; and structs shorter than that release's,
 * like those of even older callers. Exit status 0: all as promised. */
#include <krait/doctor.h>
#include <krait/model.h>
#include <krait/ops.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int good, const char *what) {
  if (good) return;
  printf("%s: %s\n", what, krait_error_detail());
  exit(1);
}

int main(void) {
  krait_ctx *ctx = NULL;
  krait_model *model = NULL;
  krait_ctx_options options;
  krait_ctx_stats stats;
  krait_model_options which;
  memset(&options, 0xee, sizeof options); /* memory beyond the caller's struct is not read */
  options.size = offsetof(krait_ctx_options, n_threads), options.device = KRAIT_DEVICE_CPU, options.caps_mask = 0;
  expect(krait_ctx_open(&options, &ctx) == KRAIT_OK, "a context from a shorter struct");
  memset(&which, 0xee, sizeof which);
  which.size = offsetof(krait_model_options, config_path), which.precision = KRAIT_PRECISION_FP32,
  which.weights_path = NULL;
  expect(krait_model_open(ctx, &which, &model) == KRAIT_OK, "a model from a shorter struct");
  krait_model_close(&model);
  which.size = 4;
  expect(krait_model_open(ctx, &which, &model) == KRAIT_ERR_STRUCT_SIZE && !model, "a struct that is too short");
  memset(&which, 0, sizeof which);
  which.size = sizeof which;
  expect(krait_model_open(ctx, &which, &model) == KRAIT_OK, "a model");
  krait_model_close(&model);
  memset(&stats, 0, sizeof stats);
  stats.size = sizeof stats;
  expect(krait_ctx_read_stats(ctx, &stats) == KRAIT_OK && stats.size == sizeof stats, "statistics");
  krait_ctx_close(&ctx);
  return 0;
}
