/* model.c: fuzz target: opens and verifies weights, or verifies against recorded outputs. The first byte selects which
 * one is the input; the other is valid. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <krait/enhance.h>

enum { MAX_ROWS = 8 };

static void verify(const char *weights, const char *golden) {
  const krait_ctx_options on_cpu = {.size = sizeof on_cpu, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  const krait_denoiser_options options = {
      .size = sizeof options, .precision = KRAIT_PRECISION_FP32, .weights_path = weights};
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  krait_verify_result rows[MAX_ROWS];
  int32_t n = 0;
  if (krait_ctx_open(&on_cpu, &ctx) == KRAIT_OK && krait_denoiser_open(ctx, &options, &model) == KRAIT_OK) {
    krait_denoiser_json(model);
    if (krait_denoiser_session_open(model, &session) == KRAIT_OK) krait_verify(session, golden, rows, MAX_ROWS, &n);
  }
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
  krait_ctx_close(&ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[40], *json = NULL;
  const int fd = memfd_create("model", 0);
  if (fd < 0) return 0;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (size && write(fd, data + 1, size - 1) == (ssize_t)(size - 1)) {
    if (data[0] % 2) verify(WEIGHTS, path);
    else verify(path, GOLDEN);
    if (krait_weights_describe(path, &json) == KRAIT_OK) krait_text_free(&json);
  }
  close(fd);
  return 0;
}
