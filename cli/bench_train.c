/* bench_train.c: krait bench train: times a training step, with and without its discriminator, and its calls. */
#include "bench_train.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"
#include "train_time.h"

enum { MOST_KINDS = 256 };

typedef struct kind {
  char op[40], impl[48], node[48];
  double seconds;
  long n_calls;
} kind;

typedef struct kinds {
  kind all[MOST_KINDS];
  int n;
} kinds;

/* Gradient nodes have the name of the node they belong to: the op tells them apart. */
static void add_call(void *user, const char *node, const char *op, const char *impl, double seconds) {
  kinds *k = user;
  int i = 0;
  while (i < k->n && (strcmp(k->all[i].op, op) != 0 || strncmp(k->all[i].impl, impl, sizeof k->all[i].impl - 1) != 0 ||
                      strncmp(k->all[i].node, node, sizeof k->all[i].node - 1) != 0))
    i++;
  if (i == MOST_KINDS) return;
  if (i == k->n) {
    snprintf(k->all[i].op, sizeof k->all[i].op, "%s", op), snprintf(k->all[i].impl, sizeof k->all[i].impl, "%s", impl),
        snprintf(k->all[i].node, sizeof k->all[i].node, "%s", node);
    k->n++;
  }
  k->all[i].seconds += seconds, k->all[i].n_calls++;
}

static int longest_first(const void *a, const void *b) {
  const kind *x = a, *y = b;
  return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : strcmp(x->node, y->node);
}

static void print_kinds(kinds *k) {
  double all = 0, rest = 0;
  for (int i = 0; i < k->n; i++) all += k->all[i].seconds;
  qsort(k->all, (size_t)k->n, sizeof *k->all, longest_first);
  printf("calls timed one by one, %.1f ms in total:\n", 1e3 * all);
  for (int i = 0; i < k->n; i++) {
    if (i < 60)
      printf("  %8.3f ms %5ld x  %-20s %-26s %s\n", 1e3 * k->all[i].seconds, k->all[i].n_calls, k->all[i].op,
             k->all[i].impl, k->all[i].node);
    else rest += k->all[i].seconds;
  }
  if (rest > 0) printf("  %8.3f ms          others\n", 1e3 * rest);
}

static json_t *times_json(const kr_train_times *t, const kinds *k) {
  json_t *calls = json_array(),
         *all = json_pack("{s:I, s:I, s:f, s:f, s:I, s:I}", "batch", (json_int_t)t->batch, "frames",
                          (json_int_t)t->frames, "step_ms", 1e3 * t->step_s, "generator_ms", 1e3 * t->generator_s,
                          "step_bytes", (json_int_t)t->step_bytes, "generator_bytes", (json_int_t)t->generator_bytes);
  for (int i = 0; i < k->n; i++)
    json_array_append_new(
        calls, json_pack("{s:s, s:s, s:s, s:I, s:f}", "node", k->all[i].node, "op", k->all[i].op, "implementation",
                         k->all[i].impl, "calls", (json_int_t)k->all[i].n_calls, "ms", 1e3 * k->all[i].seconds));
  json_object_set_new(all, "calls", calls);
  return all;
}

int bench_train(char **arguments, int n_arguments, const cli_run *run, int64_t n_steps, int by_call, int as_json) {
  static kinds all;
  krait_ctx *ctx = NULL;
  const char *config = n_arguments > 0 && !strchr(arguments[0], '=') ? arguments[0] : NULL;
  const int skip = config != NULL;
  const krait_train_options options = {.size = sizeof options,
                                       .config = config,
                                       .settings = (const char *const *)arguments + skip,
                                       .n_settings = n_arguments - skip};
  kr_train_times times = {.size = sizeof times, .n_steps = (uint32_t)n_steps};
  for (int i = skip; i < n_arguments; i++)
    if (!strchr(arguments[i], '=')) return cli_usage_error("bench", "'%s' is not a setting NAME=VALUE", arguments[i]);
  const int opened = cli_run_open_ctx("bench", run, &ctx);
  if (opened >= 0) return opened;
  const int32_t status = kr_train_time(ctx, &options, &times, by_call ? add_call : NULL, &all);
  int failed = 0;
  if (status >= 0 && as_json) failed = cli_print_json("bench", times_json(&times, &all), JSON_INDENT(2));
  else if (status >= 0) {
    printf("batch %lld, %lld frames: step %.2f ms, %.0f MB of activations; without discriminator %.2f ms, %.0f MB\n",
           (long long)times.batch, (long long)times.frames, 1e3 * times.step_s, 1e-6 * (double)times.step_bytes,
           1e3 * times.generator_s, 1e-6 * (double)times.generator_bytes);
    if (by_call) print_kinds(&all);
  }
  krait_ctx_close(&ctx);
  return status < 0 ? cli_report("bench", status) + 1 : failed;
}
