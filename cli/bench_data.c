/* bench_data.c: krait bench data: how many training items per second this machine makes, with files not yet read and
 * with files already known, compared with what a training step needs. */
#include "bench_data.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <krait/data.h>

#include "args.h"
#include "interrupt.h"
#include "output.h"

enum { SAMPLE_RATE_HZ = 16000 };
static const double PHASE_S = 3;

typedef struct rate {
  double items_per_s, seconds, cpu_s; /* cpu_s: processor time per item, which other load on the machine disturbs
                                       * less */
  int64_t n_steps;
} rate;

static double bench_data_wall_s(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void report_line(void *user, const char *line) {
  ++*(int *)user;
  fprintf(cli_err(), "krait bench: ");
  cli_print_clean(cli_err(), line);
  fprintf(cli_err(), "\n");
}

/* Steps from *step on for about PHASE_S, at least least_steps. */
static int32_t time_steps(krait_data *data, int64_t *step, int64_t least_steps, float *noisy, float *clean, rate *r) {
  const double start_s = bench_data_wall_s();
  const clock_t start = clock();
  int32_t status = krait_data_begin(data, *step);
  *r = (rate){0};
  while (status >= 0 && (r->seconds < PHASE_S || r->n_steps < least_steps)) {
    status = krait_data_next(data, noisy, clean);
    r->seconds = bench_data_wall_s() - start_s;
    r->n_steps++;
  }
  *step += r->n_steps;
  r->items_per_s = (double)(r->n_steps * krait_data_batch(data)) / r->seconds;
  r->cpu_s = (double)(clock() - start) / CLOCKS_PER_SEC / (double)(r->n_steps * krait_data_batch(data));
  return status;
}

static int tell_bench_data(const krait_data *data, const rate *first, const rate *later, double step_ms, int n_bad,
                           int as_json) {
  const double batch = (double)krait_data_batch(data), item_s = (double)krait_data_samples(data) / SAMPLE_RATE_HZ,
               need = step_ms > 0 ? 1e3 * batch / step_ms : 0;
  const int keeps_up = step_ms <= 0 || later->items_per_s >= need;
  if (as_json)
    return cli_print_json(
               "bench",
               json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:i}", "items",
                         (json_int_t)krait_data_n_items(data), "batch", (json_int_t)krait_data_batch(data), "item_s",
                         item_s, "first_items_per_s", first->items_per_s, "items_per_s", later->items_per_s,
                         "cpu_s_per_item", later->cpu_s, "shortest_step_ms", 1e3 * batch / later->items_per_s,
                         "needed_items_per_s", need, "keeps_up", keeps_up, "bad_files", n_bad),
               JSON_INDENT(2)) ||
           !keeps_up;
  printf("data: %lld items of %.2f s per epoch, batch %lld\n", (long long)krait_data_n_items(data), item_s,
         (long long)krait_data_batch(data));
  printf("  first pass       %8.1f items/s   %8.1f s of audio per second\n", first->items_per_s,
         first->items_per_s * item_s);
  printf("  later passes     %8.1f items/s   %8.1f s of audio per second, one step per %.1f ms\n", later->items_per_s,
         later->items_per_s * item_s, 1e3 * batch / later->items_per_s);
  printf("  processor time   %8.2f ms per item in the first pass, %.2f ms later\n", first->cpu_s * 1e3,
         later->cpu_s * 1e3);
  if (step_ms > 0)
    printf("  a step of %g ms needs %.1f items/s: %s, %.1f times\n", step_ms, need,
           keeps_up ? "there are enough" : "TOO FEW", later->items_per_s / need);
  if (n_bad) printf("  %d bad recordings skipped\n", n_bad);
  return !keeps_up;
}

int bench_data(char **arguments, int n_arguments, double step_ms, int as_json) {
  krait_data *data = NULL;
  rate first, later;
  int n_bad = 0;
  int64_t step = 0;
  const int has_file = n_arguments > 0 && !strchr(arguments[0], '=');
  cli_hush_libraries();
  cli_catch_signals("bench", "");
  int32_t status = krait_data_open(has_file ? arguments[0] : NULL, (const char *const *)arguments + has_file,
                                   n_arguments - has_file, "train", report_line, &n_bad, &data);
  if (status < 0) return cli_report("bench", status) + 1;
  const size_t n = (size_t)(krait_data_batch(data) * krait_data_samples(data));
  float *noisy = malloc(n * sizeof *noisy), *clean = malloc(n * sizeof *clean);
  if (!noisy || !clean) status = KRAIT_ERR_NO_MEMORY;
  if (status >= 0) status = time_steps(data, &step, 1, noisy, clean, &first);
  int64_t again = 0; /* the same steps again */
  if (status >= 0) status = time_steps(data, &again, 1, noisy, clean, &later);
  const int exit_status =
      status < 0 ? cli_report("bench", status) + 1 : tell_bench_data(data, &first, &later, step_ms, n_bad, as_json);
  free(noisy);
  free(clean);
  krait_data_close(&data);
  return exit_status;
}
