/* cmd_classify.c: krait classify: classifies videos and images. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <krait/vision.h>

#include "args.h"
#include "cmd.h"
#include "interrupt.h"
#include "output.h"
#include "texts.h"

typedef struct settings {
  const char *weights, *model, *labels;
  int64_t top;
  int as_json;
  cli_run run;
} settings;

typedef struct labels {
  char *text, **of; /* one per class, or NULL */
} labels;

/* One label per line, as many as there are classes. */
static int read_names(const char *path, int64_t n, labels *names) {
  size_t bytes = 0;
  if (!path) return -1;
  const int exit_status = cli_text_read("classify", path, &names->text, &bytes);
  if (exit_status >= 0) return exit_status;
  names->of = calloc((size_t)n, sizeof *names->of);
  int64_t found = 0;
  for (char *line = names->of ? strtok(names->text, "\r\n") : NULL; line; line = strtok(NULL, "\r\n"), found++)
    if (found < n) names->of[found] = line;
  if (found == n) return -1;
  return cli_usage_error("classify", "%s has %lld labels, the weights have %lld classes", path, (long long)found,
                         (long long)n);
}

static int64_t best_of(const float *p, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (p[i] > p[best]) best = i;
  return best;
}

static int print_one(const settings *s, const char *path, float *p, int64_t n, const int64_t *at, int64_t n_frames,
                     const labels *names) {
  json_t *classes = json_array(), *frames = json_array();
  for (int64_t i = 0; i < n_frames; i++) json_array_append_new(frames, json_integer(at[i]));
  if (!s->as_json) cli_print_clean(stdout, path), printf("\n");
  for (int64_t k = 0; k < s->top && k < n; k++) {
    const int64_t i = best_of(p, n);
    char *label = names->of ? names->of[i] : NULL;
    if (!s->as_json)
      printf("  %6.2f %%  %lld%s%s\n", (double)p[i] * 100, (long long)i, label ? "  " : "",
             label ? cli_clean(label) : "");
    json_t *class = json_pack("{s:I, s:f}", "class", (json_int_t)i, "probability", (double)p[i]);
    if (label) json_object_set_new(class, "label", cli_json_text(label));
    json_array_append_new(classes, class);
    p[i] = -1;
  }
  json_t *report = json_pack("{s:o, s:o}", "frames", frames, "classes", classes);
  cli_json_set_name(report, "file", path);
  if (s->as_json) return cli_print_json("classify", report, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0;
  json_decref(report);
  return 0;
}

static int classify_files(const settings *s, krait_classifier *classifier, char **paths, int n_paths) {
  const int64_t n = krait_classifier_n_classes(classifier), n_frames = krait_classifier_n_frames(classifier);
  float *p = calloc((size_t)n, sizeof *p);
  int64_t *at = calloc((size_t)n_frames, sizeof *at);
  labels names = {0};
  int failed = p && at ? read_names(s->labels, n, &names) : 1;
  if (failed < 0) {
    failed = 0;
    for (int i = 0; i < n_paths && !cli_is_stopped(); i++) {
      const int32_t status = krait_classifier_file(classifier, paths[i], p, at);
      if (status < 0) failed |= cli_report("classify", status);
      else failed |= print_one(s, paths[i], p, n, at, n_frames, &names);
    }
  }
  free(p), free(at), free(names.of), free(names.text);
  return failed;
}

int cmd_classify(int argc, char **argv) {
  int first;
  settings s = {.top = 5};
  const cli_option options[] = {
      CLI_TEXT("weights", 'w', "FILE", &s.weights,
               "VideoMamba or Vim with a classification head: upstream's .pth, or safetensors"),
      CLI_TEXT("model", 0, "NAME", &s.model,
               "of weights for images that do not say it: vim, videomamba, or upstream's name of a size"),
      CLI_TEXT("labels", 0, "FILE", &s.labels, "class names, one per line"),
      CLI_WHOLE("top", 0, "N", &s.top, 1, 1000000, "print the N most likely classes (default: 5)"),
      CLI_SWITCH("json", 0, &s.as_json, "print one JSON object per file"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {
      "classify",
      "VIDEO|IMAGE...",
      "Classifies videos and images with VideoMamba, from frames spread evenly over the video, and images with Vim. "
      "Needs the program ffmpeg.",
      options,
      CLI_N(options),
      1,
      -1,
      "krait classify film.mp4 -w videomamba_s16_k400_f16_res224.pth --labels kinetics.txt"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  if (!s.weights)
    return cli_usage_error(verb.name, "--weights is missing: give a file with VideoMamba's or Vim's weights");
  krait_ctx *ctx = NULL;
  krait_classifier *classifier = NULL;
  cli_catch_signals(verb.name, "");
  exit_status = cli_run_open_ctx(verb.name, &s.run, &ctx);
  if (exit_status >= 0) return exit_status;
  const int32_t status = krait_classifier_open(ctx, s.weights, s.model, &classifier);
  exit_status =
      status < 0 ? cli_report(verb.name, status) + 1 : classify_files(&s, classifier, argv + first, argc - first);
  krait_classifier_close(&classifier);
  krait_ctx_close(&ctx);
  return exit_status;
}
