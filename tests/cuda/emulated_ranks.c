/* emulated_ranks.c: krait_train as two and four processes on emulated GPUs, with fake_nccl.c between them: the losses
 * of one process with the same total batch; a killed process, a failing one, and one with other settings end both with
 * one message. Usage: emulated_ranks LIBCUDA LIBNCCL. */
#define _GNU_SOURCE
#include "../test.h"

#include <jansson.h>
#include <krait/train.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "cuda.h"
#include "emulator/emulator.h"
#include "safetensors.h"

enum { N_RECORDINGS = 6, N_SAMPLES = 700, MOST_STEPS = 64 };

static char folder[256];
static int port;

/* ---- a process ---- */

static int64_t
    stop_after; /* 0: never; after this many steps this process stops */
static int32_t count(void *user, int64_t done, int64_t total) {
  (void)user, (void)total;
  if (stop_after && done >= stop_after) raise(SIGSTOP); /* meanwhile the test kills the other one */
  return 0;
}

static int is_streaming; /* the model has batch norms */
static int n_items = 2;  /* of a batch */

static int train(const krait_train_launcher *place, const char *run, int64_t n_steps, const char *extra) {
  char output[400], speech[400], noise[400], batch[32];
  krait_ctx *ctx = NULL;
  const int resumes = extra && strcmp(extra, "resume") == 0;
  snprintf(output, sizeof output, "%s/%s", folder, run),
      snprintf(speech, sizeof speech, "dset.speech_train=%s/speech.safetensors", folder);
  snprintf(noise, sizeof noise, "dset.noise_train=%s/noise.safetensors", folder),
      snprintf(batch, sizeof batch, "batch_size=%d", n_items);
  const char *const settings[] = {speech,
                                  noise,
                                  is_streaming ? "+model=primeknet_streaming" : "+model=primeknet_gru_masking",
                                  "model.param.fft_len=16",
                                  "model.param.dense_channel=4",
                                  "model.param.dense_depth=1",
                                  "model.param.num_tsblock=1",
                                  "model.param.time_block_num=1",
                                  "model.param.freq_block_num=1",
                                  "model.param.freq_block_kernel=[3]",
                                  is_streaming ? "model.param.mamba_d_state=4" : "model.param.gru_hidden_size=4",
                                  "segment=128",
                                  "stride=128",
                                  "shift=0",
                                  batch,
                                  "loss.metric=0",
                                  "precision=float32",
                                  "num_prints=1000",
                                  "lr=1e-4",
                                  "max_grad_norm=5",
                                  "average_decay=0.9",
                                  extra && !resumes ? extra : "epochs=50"};
  const krait_ctx_options o = {.size = sizeof o,
                               .device = KRAIT_DEVICE_CUDA(place->local_rank),
                               .n_threads = 1,
                               .fallback = KRAIT_FALLBACK_NEVER};
  const krait_train_options options = {.size = sizeof options,
                                       .settings = settings,
                                       .n_settings = sizeof settings / sizeof *settings,
                                       .folder = output,
                                       .most_steps = n_steps,
                                       .place = place,
                                       .progress = count,
                                       .resume = (uint32_t)resumes};
  int32_t status = krait_ctx_open(&o, &ctx);
  if (status >= 0) status = krait_train(ctx, &options);
  if (status < 0 && status != KRAIT_ERR_CANCELLED) fprintf(stderr, "%s\n", krait_error_detail());
  krait_ctx_close(&ctx);
  return status < 0;
}

/* A separate process; its output goes to FOLDER/RUN.RANK.txt. */
static pid_t start(int rank, int n_ranks, const char *run, int64_t n_steps, int64_t pause, const char *extra) {
  const pid_t child = fork();
  if (child) return child;
  char path[400];
  krait_train_launcher place = {.size = sizeof place, .rank = rank, .n_ranks = n_ranks, .local_rank = rank};
  snprintf(place.meet, sizeof place.meet, "127.0.0.1:%d", port),
      snprintf(path, sizeof path, "%s/%s.%d.txt", folder, run, rank);
  if (!freopen(path, "w", stderr)) _exit(9);
  stop_after = pause;
  const int result = train(&place, run, n_steps, extra);
  fflush(stderr);
  _exit(result);
}

static int end_of(pid_t child) {
  int how;
  assert_int_equal(waitpid(child, &how, 0), child);
  return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

static const char *said(const char *run, int rank) {
  static char texts[2][2000];
  char path[400];
  snprintf(path, sizeof path, "%s/%s.%d.txt", folder, run, rank);
  FILE *file = fopen(path, "r");
  if (!file) return "";
  texts[rank][fread(texts[rank], 1, sizeof texts[0] - 1, file)] = 0;
  fclose(file);
  return texts[rank];
}

/* ---- recordings and logs ---- */

static void write_recordings(const char *name, uint32_t seed, double hz) {
  static float samples[N_RECORDINGS][N_SAMPLES];
  kr_weight items[N_RECORDINGS];
  char path[400];
  static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
  for (int i = 0; i < N_RECORDINGS; i++) {
    for (int n = 0; n < N_SAMPLES; n++) {
      seed = seed * 1664525u + 1013904223u;
      samples[i][n] = 0.2f * sinf((float)(hz * (1 + i) * n / 16000)) + 0.1f * ((float)(seed >> 8) * 0x1p-24f - 0.5f);
    }
    items[i] = (kr_weight){.name = names[i],
                           .dtype = KRAIT_F32,
                           .n_dims = 1,
                           .shape = {N_SAMPLES},
                           .data = samples[i],
                           .bytes = sizeof samples[i]};
  }
  snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
  assert_int_equal(kr_safetensors_write(path, items, N_RECORDINGS, NULL, 0), KRAIT_OK);
}

static int read_log(const char *run, const char *key, double *values) {
  char path[400], line[4096];
  int n = 0;
  snprintf(path, sizeof path, "%s/%s/log.jsonl", folder, run);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) && n < MOST_STEPS) {
    json_t *row = json_loads(line, 0, NULL);
    values[n++] = json_number_value(json_object_get(row, key));
    json_decref(row);
  }
  fclose(file);
  return n;
}

static double furthest(const char *run, const char *other, int n_steps) {
  static const char *const keys[] = {"total",       "magnitude", "phase_gd", "complex",
                                     "consistency", "metric",    "disc_r",   "gradient_norm"};
  double worst = 0, a[MOST_STEPS], b[MOST_STEPS];
  for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
    assert_int_equal(read_log(run, keys[k], a), n_steps);
    assert_int_equal(read_log(other, keys[k], b), n_steps);
    for (int i = 0; i < n_steps; i++) worst = fmax(worst, fabs(a[i] - b[i]) / (fabs(b[i]) + 1e-9));
  }
  return worst;
}

/* ---- tests ---- */

/* One process with as many items at once as each of two has computes the same sums in the same order. */
static void two_as_one(void **state) {
  enum { N = 3 };
  (void)state;
  assert_int_equal(end_of(start(0, 1, "one", N, 0, NULL)), 0);
  assert_int_equal(end_of(start(0, 1, "halves", N, 0, "micro_batch=1")), 0);
  const pid_t first = start(0, 2, "two", N, 0, NULL), second = start(1, 2, "two", N, 0, NULL);
  assert_int_equal(end_of(second), 0);
  assert_int_equal(end_of(first), 0);
  const double apart = furthest("two", "one", N);
  print_message("two processes and one over %d steps: losses and norms within %.1e\n", N, apart);
  assert_true(apart < 1e-4);
  assert_true(furthest("two", "halves", N) == 0);
  /* and an error of a thousandth in one of them shows in the first step's norm */
  setenv("KR_FAKE_NCCL", "off=1", 1);
  const pid_t off = start(0, 2, "off", 1, 0, NULL), other = start(1, 2, "off", 1, 0, NULL);
  unsetenv("KR_FAKE_NCCL");
  (void)end_of(other), (void)end_of(off);
  double a[MOST_STEPS], b[MOST_STEPS];
  (void)read_log("off", "gradient_norm", a), (void)read_log("one", "gradient_norm", b);
  assert_true(fabs(a[0] / b[0] - 1) > 1e-4);
}

/* With more than two the order of sums matters. */
static void four_as_one(void **state) {
  enum { N = 3, RANKS = 4 };
  pid_t ranks[RANKS];
  (void)state;
  n_items = RANKS;
  assert_int_equal(end_of(start(0, 1, "quarters", N, 0, "micro_batch=1")), 0);
  for (int k = 0; k < RANKS; k++) ranks[k] = start(k, RANKS, "four", N, 0, NULL);
  n_items = 2;
  for (int k = RANKS; k-- > 0;) assert_int_equal(end_of(ranks[k]), 0);
  assert_true(furthest("four", "quarters", N) == 0);
}

static int64_t read_weights(const char *run, char *bytes, size_t room) {
  char path[400];
  snprintf(path, sizeof path, "%s/%s/best.safetensors", folder, run);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  const size_t n = fread(bytes, 1, room, file);
  fclose(file);
  return (int64_t)n;
}

/* Batch norms are over each GPU's own items, and running statistics are their means: the same as one process with as
 * many items at once. */
static void batch_norms(void **state) {
  enum { N = 3 };
  static char one[1 << 18], two[1 << 18];
  (void)state;
  is_streaming = 1;
  assert_int_equal(end_of(start(0, 1, "stream", N, 0, "micro_batch=1")), 0);
  const pid_t first = start(0, 2, "streams", N, 0, NULL), second = start(1, 2, "streams", N, 0, NULL);
  is_streaming = 0;
  assert_int_equal(end_of(second), 0);
  assert_int_equal(end_of(first), 0);
  assert_true(furthest("streams", "stream", N) == 0);
  const int64_t n = read_weights("stream", one, sizeof one);
  assert_int_equal(read_weights("streams", two, sizeof two), n);
  assert_true(n > 1000 && n < (int64_t)sizeof one && memmem(one, (size_t)n, "running_var", 11));
  assert_memory_equal(one, two, (size_t)n);
}

/* The second is killed while the first waits for it: the first keeps the last complete step, from which a resumed pair
 * reaches the same losses. */
static void killed(void **state) {
  enum { N = 3 };
  (void)state;
  const pid_t first = start(0, 2, "killed", N, 2, NULL), second = start(1, 2, "killed", N, 0, NULL);
  int how;
  assert_int_equal(waitpid(first, &how, WUNTRACED), first);
  assert_true(WIFSTOPPED(how)); /* after its second step */
  kill(second, SIGKILL);
  assert_int_equal(end_of(second), 128 + SIGKILL);
  const int64_t begun = kr_clock_ns();
  kill(first, SIGCONT);
  stop_after = 0;
  while (waitpid(first, &how, WUNTRACED) == first && WIFSTOPPED(how)) kill(first, SIGCONT);
  assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 1);
  assert_true(kr_clock_ns() - begun < 60 * 1000000000ll);
  print_message("killed: %s", said("killed", 0));
  assert_non_null(strstr(said("killed", 0), "rank 1 (process "));
  assert_non_null(strstr(said("killed", 0), "checkpoint.safetensors has step 2"));
  assert_true(strchr(said("killed", 0), '\n') == strrchr(said("killed", 0), '\n'));
  const pid_t third = start(0, 2, "killed", N, 0, "resume"), fourth = start(1, 2, "killed", N, 0, "resume");
  assert_int_equal(end_of(fourth), 0);
  assert_int_equal(end_of(third), 0);
  assert_true(furthest("killed", "two", N) == 0);
}

/* Rank 0 prints rank 1's message. */
static void differ(void **state) {
  (void)state;
  const pid_t first = start(0, 2, "differ", 4, 0, NULL), second = start(1, 2, "differ", 4, 0, "lr_decay=0.5");
  assert_int_equal(end_of(second), 1);
  assert_int_equal(end_of(first), 1);
  assert_non_null(strstr(said("differ", 0), "the ranks differ in their settings"));
  assert_string_equal(said("differ", 1), "");
  const pid_t third = start(0, 2, "fails", 4, 0, NULL), fourth = start(1, 2, "fails", 4, 0, "frobnicate=1");
  assert_int_equal(end_of(fourth), 1);
  assert_int_equal(end_of(third), 1);
  print_message("fails: %s", said("fails", 0));
  assert_non_null(strstr(said("fails", 0), "rank 1: "));
  assert_non_null(strstr(said("fails", 0), "frobnicate"));
  assert_string_equal(said("fails", 1), "");
  const pid_t fifth = start(1, 2, "gone", 40, 0, NULL),
              sixth = start(0, 2, "gone", 40, 1, NULL); /* without rank 0, rank 1 prints it */
  int how;
  assert_int_equal(waitpid(sixth, &how, WUNTRACED), sixth);
  kill(sixth, SIGKILL);
  (void)end_of(sixth);
  assert_int_equal(end_of(fifth), 1);
  assert_non_null(strstr(said("gone", 1), "rank 0 (process "));
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(two_as_one), cmocka_unit_test(four_as_one),
                                     cmocka_unit_test(batch_norms), cmocka_unit_test(killed), cmocka_unit_test(differ)};
  if (argc != 3) return fprintf(stderr, "usage: emulated_ranks LIBCUDA LIBNCCL\n"), 2;
  if (!kr_cuda_built_tiers()) return printf("skipped: this build has no device code (no clang)\n"), 77;
  setenv("KRAIT_LIBCUDA", argv[1], 1), setenv("KRAIT_LIBNCCL", argv[2], 1);
  setenv("KR_FAKE_CUDA", "capability=80,shared=98304,multiprocessors=16,count=4", 1);
  snprintf(folder, sizeof folder, "%s/krait-ranks-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  if (!mkdtemp(folder)) return perror("mkdtemp"), 2;
  port = 20000 + (int)(getpid() % 20000);
  write_recordings("speech", 1, 400), write_recordings("noise", 2, 3000);
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[400];
  snprintf(command, sizeof command, "rm -r '%s'", folder);
  return system(command) ? 2 : failed;
}
