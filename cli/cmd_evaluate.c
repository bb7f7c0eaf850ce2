/* cmd_evaluate.c: krait evaluate: pairs recordings, scores them on several threads, and prints the tables. */
#define _GNU_SOURCE
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <krait/data.h>

#include "args.h"
#include "cmd.h"
#include "workers.h"
#include "inputs.h"
#include "interrupt.h"
#include "progress.h"
#include "output.h"

enum { MOST_RATIOS = 32, N_MEASURES = 9, MOST_NOTES = 1000 };

static const struct {
  const char *name, *title;
  size_t at;
  int digits;
} measures[N_MEASURES] = {{"pesq", "PESQ", offsetof(krait_quality, pesq), 3},
                          {"csig", "CSIG", offsetof(krait_quality, csig), 3},
                          {"cbak", "CBAK", offsetof(krait_quality, cbak), 3},
                          {"covl", "COVL", offsetof(krait_quality, covl), 3},
                          {"segmental_snr_db", "segmental SNR", offsetof(krait_quality, segmental_snr_db), 2},
                          {"si_sdr_db", "SI-SDR", offsetof(krait_quality, si_sdr_db), 2},
                          {"stoi", "STOI", offsetof(krait_quality, stoi), 4},
                          {"llr", "LLR", offsetof(krait_quality, llr), 3},
                          {"wss", "WSS", offsetof(krait_quality, wss), 2}};

static double measure_evaluate(const krait_quality *q, int which) {
  return *(const double *)((const char *)q + measures[which].at);
}

typedef struct settings {
  int as_json, enhance, force;
  const char *csv, *plot, *noise, *noise_dir, *rir, *rir_dir, *ratios;
  double reverb;
  int64_t n_jobs, repeats;
  cli_run run;
  const char *precision;
  krait_denoiser_options model;
} settings;

/* One comparison: two files, or an item of data. */
typedef struct piece {
  char *name;
  const char *clean, *other;
  krait_data *data;
  int64_t index;
  int condition;
  int32_t status;
  char *error;
  krait_evaluation found;
} piece;

typedef struct means {
  int64_t n;
  double audio_s, compute_s;
  double sum[2][N_MEASURES];
  int64_t count[2][N_MEASURES]; /* of the values that could be measured */
} means;

typedef struct evaluation {
  const settings *s;
  const krait_denoiser *model; /* NULL: score the recordings unprocessed */
  krait_denoiser_session *sessions[CLI_WORKERS_MOST];
  cli_pairs clean, other;
  krait_data *data[MOST_RATIOS];
  int ratios_db[MOST_RATIOS], n_ratios; /* 0: files */
  piece *pieces;
  int n_pieces, n_failed, n_untold;
  cli_progress progress;
  double audio_s;
  char *notes[MOST_NOTES];
  int n_notes;
  pthread_mutex_t notes_lock;
} evaluation;

/* ---- what is compared ---- */
static const char *evaluate_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* The path below its folder, without extension. */
static char *stem(const cli_pair *p) {
  const char *name = p->inside ? p->inside : evaluate_base_name(p->in), *dot = strrchr(evaluate_base_name(name), '.');
  return dot && dot != evaluate_base_name(name) ? strndup(name, (size_t)(dot - name)) : strdup(name);
}

static int compare_stems(const void *a, const void *b) {
  return strcmp((*(cli_pair *const *)a)->out, (*(cli_pair *const *)b)->out);
}

/* Pointers sorted by stem, which is stored in cli_pair.out. */
static cli_pair **sort_by_stem(cli_pairs *pairs) {
  cli_pair **sorted = calloc((size_t)pairs->n + 1, sizeof *sorted);
  for (int i = 0; sorted && i < pairs->n; i++) {
    sorted[i] = &pairs->pairs[i];
    if (!(sorted[i]->out = stem(sorted[i]))) return free(sorted), NULL;
  }
  if (sorted) qsort(sorted, (size_t)pairs->n, sizeof *sorted, compare_stems);
  return sorted;
}

static int evaluate_no_memory(void) { return cli_usage_error("evaluate", "out of memory"); }

static void tell_unpaired(int n, int n_pairs, const char *folder, const char *other) {
  if (n_pairs < n && !cli_is_quiet())
    fprintf(cli_err(), "krait evaluate: %d of %d recordings in %s have no match by name in %s\n", n - n_pairs, n,
            folder, other);
}

/* Pairs the recordings that have the same name in both folders. */
static int pair_folders(evaluation *e, char **operands) {
  cli_pair **clean = sort_by_stem(&e->clean), **other = sort_by_stem(&e->other);
  e->pieces = calloc((size_t)e->clean.n + 1, sizeof *e->pieces);
  int i = 0, k = 0;
  while (clean && other && e->pieces && i < e->clean.n && k < e->other.n) {
    const int order = strcmp(clean[i]->out, other[k]->out);
    if (order == 0)
      e->pieces[e->n_pieces++] = (piece){.name = strdup(clean[i]->out), .clean = clean[i]->in, .other = other[k]->in};
    i += order <= 0;
    k += order >= 0;
  }
  const int failed = !clean || !other || !e->pieces;
  free(clean);
  free(other);
  if (failed) return evaluate_no_memory();
  if (e->n_pieces == 0)
    return cli_usage_error("evaluate", "no recording in %s has a match by name in %s", operands[0], operands[1]);
  tell_unpaired(e->clean.n, e->n_pieces, operands[0], operands[1]);
  tell_unpaired(e->other.n, e->n_pieces, operands[1], operands[0]);
  return -1;
}

static int is_folder_for_evaluate(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int list_pairs(evaluation *e, char **operands) {
  for (int i = 0; i < 2; i++)
    if (access(operands[i], F_OK) != 0)
      return cli_usage_error("evaluate", "there is no file or folder %s", operands[i]);
  if (is_folder_for_evaluate(operands[0]) != is_folder_for_evaluate(operands[1]))
    return cli_usage_error("evaluate", "CLEAN and OTHER must be two files or two folders");
  int status = cli_inputs_list("evaluate", operands, 1, &e->clean);
  if (status < 0) status = cli_inputs_list("evaluate", operands + 1, 1, &e->other);
  if (status >= 0) return status;
  if (is_folder_for_evaluate(operands[0])) return pair_folders(e, operands);
  e->pieces = calloc(1, sizeof *e->pieces);
  if (!e->pieces || !(e->pieces[0].name = stem(&e->other.pairs[0]))) return evaluate_no_memory();
  e->pieces[0].clean = operands[0], e->pieces[0].other = operands[1];
  e->n_pieces = 1;
  return -1;
}

/* "name=value" with the value as JSON, which is also YAML: file names may contain anything. */
static char *setting(const char *name, const char *value) {
  json_t *text = json_string(value);
  char *quoted = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL, *whole = NULL;
  json_decref(text);
  if (!quoted || asprintf(&whole, "%s=%s", name, quoted) < 0) whole = NULL;
  free(quoted);
  return whole;
}

/* Bad recordings are reported with the results, once for all ratios. */
static void keep_line(void *user, const char *line) {
  evaluation *e = user;
  pthread_mutex_lock(&e->notes_lock);
  int is_new = e->n_notes < MOST_NOTES;
  for (int i = 0; is_new && i < e->n_notes; i++) is_new = strcmp(e->notes[i], line) != 0;
  if (is_new && (e->notes[e->n_notes] = strdup(line))) e->n_notes++;
  pthread_mutex_unlock(&e->notes_lock);
}

static void print_notes(const evaluation *e) {
  for (int i = 0; i < e->n_notes; i++) {
    fprintf(cli_err(), "krait evaluate: ");
    cli_print_clean(cli_err(), e->notes[i]);
    fprintf(cli_err(), "\n");
  }
}

static int open_ratio(evaluation *e, const char *clean, int which) {
  const settings *s = e->s;
  char *list[8], numbers[2][96];
  int n = 0;
  snprintf(numbers[0], sizeof numbers[0], "test_noise.snr_step=[%d]", e->ratios_db[which]);
  snprintf(numbers[1], sizeof numbers[1], "test_noise.reverb_proportion=%.6f", s->reverb);
  list[n++] = setting("dset.speech_test", clean);
  list[n++] = setting("dset.noise_test", s->noise);
  if (s->noise_dir) list[n++] = setting("dset.noise_dir", s->noise_dir);
  if (s->rir) list[n++] = setting("dset.rir_test", s->rir);
  if (s->rir_dir) list[n++] = setting("dset.rir_dir", s->rir_dir);
  list[n++] = strdup(numbers[0]);
  list[n++] = strdup(numbers[1]);
  char repeats[64];
  snprintf(repeats, sizeof repeats, "dset.test_augment_numb=%lld", (long long)s->repeats);
  list[n++] = strdup(repeats);
  int missing = 0;
  for (int i = 0; i < n; i++) missing |= !list[i];
  const int32_t status =
      missing ? 0 : krait_data_open(NULL, (const char *const *)list, n, "test", keep_line, e, &e->data[which]);
  for (int i = 0; i < n; i++) free(list[i]);
  if (missing) return evaluate_no_memory();
  return status < 0 ? cli_report("evaluate", status) + 1 : -1;
}

static int read_ratios(evaluation *e, const char *text) {
  for (const char *at = text; *at;) {
    char *end;
    const long db = strtol(at, &end, 10);
    if (end == at || (*end && *end != ',') || db < -100 || db > 100)
      return cli_usage_error("evaluate", "--snr is '%s', not whole decibels from -100 to 100 like -5,0,5", text);
    if (e->n_ratios == MOST_RATIOS) return cli_usage_error("evaluate", "--snr takes up to %d ratios", MOST_RATIOS);
    e->ratios_db[e->n_ratios++] = (int)db;
    at = *end ? end + 1 : end;
  }
  return e->n_ratios ? -1 : cli_usage_error("evaluate", "--snr is empty");
}

static int list_items(evaluation *e, const char *clean) {
  int status = read_ratios(e, e->s->ratios ? e->s->ratios : "0");
  for (int i = 0; status < 0 && i < e->n_ratios; i++) status = open_ratio(e, clean, i);
  if (status >= 0) return status;
  const int64_t n = krait_data_n_items(e->data[0]);
  if (n * e->n_ratios > 1 << 24) return cli_usage_error("evaluate", "%lld items are too many", (long long)n);
  e->pieces = calloc((size_t)(n * e->n_ratios), sizeof *e->pieces);
  for (int r = 0; e->pieces && r < e->n_ratios; r++)
    for (int64_t i = 0; i < n; i++)
      e->pieces[e->n_pieces++] =
          (piece){.name = strdup(krait_data_item_name(e->data[r], i)), .data = e->data[r], .index = i, .condition = r};
  return e->pieces ? -1 : evaluate_no_memory();
}

/* ---- the work ---- */
static void evaluate_one(void *user, cli_workers *crew, int worker, int which) {
  evaluation *e = user;
  piece *p = &e->pieces[which];
  p->found.size = sizeof p->found;
  if (e->model && !e->sessions[worker]) p->status = krait_denoiser_session_open(e->model, &e->sessions[worker]);
  if (p->status == 0)
    p->status = p->data ? krait_evaluate_item(e->sessions[worker], p->data, p->index, &p->found)
                        : krait_evaluate_files(e->sessions[worker], p->clean, p->other, &p->found);
  if (p->status < 0) p->error = strdup(krait_error_detail());
  if (cli_workers_is_next(crew, which)) cli_progress_show(&e->progress, which + 1, e->n_pieces);
}

static void tell_evaluate(void *user, int which) {
  evaluation *e = user;
  const piece *p = &e->pieces[which];
  if (p->status >= 0) return;
  cli_progress_end();
  e->n_failed++;
  cli_report_detail("evaluate", p->status, p->error ? p->error : "");
}

static means mean_of(const evaluation *e, int condition) {
  means m = {0};
  for (int i = 0; i < e->n_pieces; i++) {
    const piece *p = &e->pieces[i];
    if (p->condition != condition || p->status < 0) continue;
    m.n++;
    m.audio_s += p->found.audio_s;
    m.compute_s += p->found.compute_s;
    for (int side = 0; side <= p->found.has_enhanced; side++)
      for (int k = 0; k < N_MEASURES; k++) {
        const double v = measure_evaluate(side ? &p->found.enhanced : &p->found.noisy, k);
        if (isfinite(v)) m.sum[side][k] += v, m.count[side][k]++;
      }
  }
  return m;
}

static double mean_at(const means *m, int side, int k) {
  return m->count[side][k] ? m->sum[side][k] / (double)m->count[side][k] : NAN;
}

/* ---- tables ---- */
static void print_value(double value, int digits) {
  if (isfinite(value)) printf(" %10.*f", digits, value);
  else printf(" %10s", "-");
}

static void print_evaluate_table(const evaluation *e) {
  for (int c = 0; c < (e->n_ratios ? e->n_ratios : 1); c++) {
    const means m = mean_of(e, c);
    int64_t least = m.n;
    if (e->n_ratios) printf("%s%d dB: ", c ? "\n" : "", e->ratios_db[c]);
    printf("%lld recording%s, %.1f s\n", (long long)m.n, m.n == 1 ? "" : "s", m.audio_s);
    printf("  %-16s %10s%s\n", "mean of", e->n_ratios || e->model ? "noisy" : "other", e->model ? "   enhanced" : "");
    for (int k = 0; k < N_MEASURES; k++) {
      printf("  %-16s", measures[k].title);
      for (int side = 0; side <= (e->model != NULL); side++) {
        print_value(mean_at(&m, side, k), measures[k].digits);
        if (m.count[side][k] < least) least = m.count[side][k];
      }
      printf("\n");
    }
    if (least < m.n)
      printf("  %lld lack%s some measures (too short, silent, or no speech found)\n", (long long)(m.n - least),
             m.n - least == 1 ? "s" : "");
    if (e->model && m.audio_s > 0) printf("  %.3f s of computing per second of audio\n", m.compute_s / m.audio_s);
  }
}

static json_t *means_json(const means *m, int side) {
  json_t *object = json_object();
  for (int k = 0; k < N_MEASURES; k++)
    json_object_set_new(object, measures[k].name, cli_json_real(mean_at(m, side, k)));
  return object;
}

static int print_evaluate_json(const evaluation *e) {
  json_t *list = json_array();
  for (int c = 0; c < (e->n_ratios ? e->n_ratios : 1); c++) {
    const means m = mean_of(e, c);
    json_t *row = json_pack("{s:I, s:f, s:o}", "recordings", (json_int_t)m.n, "audio_s", m.audio_s,
                            e->n_ratios || e->model ? "noisy" : "other", means_json(&m, 0));
    if (e->n_ratios) json_object_set_new(row, "snr_db", json_integer(e->ratios_db[c]));
    if (e->model) json_object_set_new(row, "enhanced", means_json(&m, 1));
    if (e->model) json_object_set_new(row, "compute_s", json_real(m.compute_s));
    json_array_append_new(list, row);
  }
  return cli_print_json("evaluate", json_pack("{s:i, s:o}", "failed", e->n_failed, "results", list),
                        JSON_INDENT(2) | JSON_REAL_PRECISION(9));
}

/* A CSV field, quoted if needed. */
static void print_field(FILE *file, const char *text) {
  const int is_plain = !strpbrk(text, ",\"\n\r");
  if (!is_plain) fputc('"', file);
  for (; *text; text++) {
    if (*text == '"') fputc('"', file);
    fputc(*text, file);
  }
  if (!is_plain) fputc('"', file);
}

static void print_evaluate_rows(const evaluation *e, FILE *file) {
  static const char *const sides[] = {"noisy", "enhanced"};
  fprintf(file, "name,snr_db,audio_s");
  for (int side = 0; side <= (e->model != NULL); side++)
    for (int k = 0; k < N_MEASURES; k++)
      fprintf(file, ",%s_%s", e->n_ratios || e->model ? sides[side] : "other", measures[k].name);
  fprintf(file, "\n");
  for (int i = 0; i < e->n_pieces; i++) {
    const piece *p = &e->pieces[i];
    if (p->status < 0) continue;
    print_field(file, p->name);
    if (e->n_ratios) fprintf(file, ",%d", e->ratios_db[p->condition]);
    else fprintf(file, ",");
    fprintf(file, ",%.4f", p->found.audio_s);
    for (int side = 0; side <= (e->model != NULL); side++)
      for (int k = 0; k < N_MEASURES; k++) {
        const double v = measure_evaluate(side ? &p->found.enhanced : &p->found.noisy, k);
        if (isfinite(v)) fprintf(file, ",%.6f", v);
        else fprintf(file, ",");
      }
    fprintf(file, "\n");
  }
}

static int write_csv(const evaluation *e) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  if (!file) return evaluate_no_memory();
  print_evaluate_rows(e, file);
  if (fclose(file) != 0) return free(text), evaluate_no_memory();
  const int32_t status = krait_text_write(e->s->csv, text);
  free(text);
  return status < 0 ? cli_report("evaluate", status) : 0;
}

/* PESQ and SI-SDR of every recording. */
static int write_plot(const evaluation *e) {
  enum { SHOWN = 2 };
  const char *const titles[SHOWN] = {"PESQ", "SI-SDR (dB)"};
  const size_t n = (size_t)e->n_pieces;
  const char **names = calloc(n, sizeof *names);
  double *scores = calloc(2 * SHOWN * n, sizeof *scores);
  krait_score_rows rows = {.size = sizeof rows, .n_measures = SHOWN, .measures = titles, .names = names};
  int32_t status = names && scores ? KRAIT_OK : KRAIT_ERR_NO_MEMORY;
  for (size_t i = 0; i < n && status == KRAIT_OK; i++) {
    const piece *p = &e->pieces[i];
    if (p->status < 0) continue;
    double *before = scores + SHOWN * (size_t)rows.n_rows, *after = before + SHOWN * n;
    before[0] = p->found.noisy.pesq, before[1] = p->found.noisy.si_sdr_db;
    after[0] = p->found.enhanced.pesq, after[1] = p->found.enhanced.si_sdr_db;
    names[rows.n_rows++] = p->name;
  }
  rows.title = e->model ? "scores before and after" : "scores", rows.before = scores,
  rows.after = e->model ? scores + SHOWN * n : NULL;
  if (status == KRAIT_OK) status = krait_scores_plot(&rows, e->s->plot);
  free(names);
  free(scores);
  return status < 0 ? cli_report("evaluate", status) : 0;
}

/* The table or the picture replaces an existing file only with -f, and never an input file, under any of its names. */
static int check_output(evaluation *e, char **operands, const char *out) {
  const settings *s = e->s;
  char *sources[] = {operands[0], (char *)s->noise, (char *)s->rir}; /* only read */
  for (int i = 0; s->noise && s->force && i < 3; i++) {
    const int status = sources[i] ? cli_inputs_list("evaluate", &sources[i], 1, &e->clean) : -1;
    if (status >= 0) return status;
  }
  int n = 0;
  const char **read = calloc((size_t)e->clean.n + (size_t)e->other.n + 2, sizeof *read);
  if (!read) return evaluate_no_memory();
  for (int i = 0; i < e->clean.n; i++) read[n++] = e->clean.pairs[i].in;
  for (int i = 0; i < e->other.n; i++) read[n++] = e->other.pairs[i].in;
  read[n++] = s->model.weights_path, read[n++] = s->model.config_path;
  const cli_outputs_rule rule = {.verb = "evaluate", .read_too = read, .n_read_too = n, .force = s->force};
  const int status = cli_output_check(&rule, operands[0], out);
  free(read);
  return status;
}

/* ---- the whole run ---- */
static int compare_all(evaluation *e, int n_jobs) {
  const cli_workers_work work = {.n_pieces = e->n_pieces,
                              .n_workers = n_jobs < e->n_pieces ? n_jobs : e->n_pieces,
                              .user = e,
                              .work = evaluate_one,
                              .tell = tell_evaluate};
  for (int i = 0; i < e->n_pieces; i++)
    if (!e->pieces[i].name) return evaluate_no_memory();
  e->audio_s = e->n_pieces;
  cli_progress_begin(&e->progress, "evaluate", &e->audio_s);
  if (cli_workers_run(&work) != 0) return evaluate_no_memory();
  cli_progress_end();
  int failed = e->n_failed > 0;
  if (e->n_failed == e->n_pieces) return 1;
  print_notes(e);
  if (e->s->as_json) failed |= print_evaluate_json(e);
  else print_evaluate_table(e);
  if (e->s->csv) failed |= write_csv(e);
  if (e->s->plot) failed |= write_plot(e);
  return failed;
}

static int with_model(evaluation *e) {
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  int exit_status = cli_run_open_ctx("evaluate", &e->s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  int n_jobs = (int)e->s->n_jobs;
  if (!n_jobs) n_jobs = krait_ctx_n_threads(ctx) < CLI_WORKERS_MOST ? krait_ctx_n_threads(ctx) : CLI_WORKERS_MOST;
  int32_t status = e->s->enhance || e->s->model.weights_path ? krait_denoiser_open(ctx, &e->s->model, &model) : 0;
  e->model = model;
  exit_status = status < 0 ? cli_report("evaluate", status) + 1 : compare_all(e, n_jobs);
  for (int i = 0; i < CLI_WORKERS_MOST; i++) krait_denoiser_session_close(&e->sessions[i]);
  krait_denoiser_close(&model);
  krait_ctx_close(&ctx);
  return exit_status;
}

static void release(evaluation *e) {
  for (int i = 0; i < e->n_pieces; i++) free(e->pieces[i].name), free(e->pieces[i].error);
  free(e->pieces);
  for (int i = 0; i < e->n_notes; i++) free(e->notes[i]);
  for (int i = 0; i < e->n_ratios; i++) krait_data_close(&e->data[i]);
  cli_pairs_free(&e->clean);
  cli_pairs_free(&e->other);
}

static int check_evaluate_options(const settings *s, int n_operands) {
  if (!s->noise && (s->noise_dir || s->rir || s->rir_dir || s->ratios || s->reverb > 0))
    return cli_usage_error("evaluate", "--snr, --rir, --reverb and --noise-dir need --noise");
  if (!s->noise && n_operands != 2)
    return cli_usage_error("evaluate", "give CLEAN and OTHER, or only CLEAN with --noise");
  if (s->noise && n_operands != 1)
    return cli_usage_error("evaluate", "with --noise give only CLEAN: the noisy recordings are mixed from it");
  if (s->reverb > 0 && !s->rir)
    return cli_usage_error("evaluate", "--reverb needs --rir: a folder or list of room responses");
  if (s->rir && s->reverb <= 0)
    return cli_usage_error("evaluate",
                           "--rir needs --reverb: the share of the recordings that are reverberated, 1 for all");
  if ((s->model.config_path || s->model.overrides) && !s->enhance && !s->model.weights_path)
    return cli_usage_error("evaluate", "--config and --set need -w or --enhance");
  return -1;
}

int cmd_evaluate(int argc, char **argv) {
  int first;
  settings s = {.repeats = 1, .model.size = sizeof s.model};
  const cli_option options[] = {
      CLI_TEXT("weights", 'w', "FILE", &s.model.weights_path,
               "also enhance OTHER with these weights (a file, 'builtin' or 'streaming'), and score both"),
      CLI_SWITCH("enhance", 0, &s.enhance, "the same with the built-in weights"),
      CLI_TEXT("config", 0, "YAML", &s.model.config_path,
               "the model's configuration, if the weights do not contain it"),
      CLI_TEXT("set", 0, "K=V,...", &s.model.overrides, "override single values of the configuration"),
      CLI_TEXT("noise", 0, "SOURCE", &s.noise,
               "mix OTHER from CLEAN and this noise: a folder, a list (.txt) or a file; recording i gets noise i"),
      CLI_TEXT("noise-dir", 0, "DIR", &s.noise_dir, "base folder of the list's paths (default: the list's folder)"),
      CLI_TEXT("snr", 0, "DB,...", &s.ratios, "signal-to-noise ratios, one table for each (default: 0)"),
      CLI_TEXT("rir", 0, "SOURCE", &s.rir, "room impulse responses, given in the same way"),
      CLI_TEXT("rir-dir", 0, "DIR", &s.rir_dir, "base folder of that list's paths"),
      CLI_REAL("reverb", 0, "SHARE", &s.reverb, 0, 1, "share of the recordings that are reverberated"),
      CLI_WHOLE("repeats", 0, "N", &s.repeats, 1, 1000,
                "passes over the recordings, each with the next noises (default: 1)"),
      CLI_TEXT("csv", 0, "FILE", &s.csv, "write one row per recording"),
      CLI_TEXT("plot", 0, "PNG", &s.plot,
               "plot PESQ and SI-SDR of every recording, before and after the model, sorted"),
      CLI_SWITCH("force", 'f', &s.force, "replace the files of --csv and --plot if they exist"),
      CLI_SWITCH("json", 0, &s.as_json, "print the means as JSON"),
      CLI_WHOLE("jobs", 'j', "N", &s.n_jobs, 0, CLI_WORKERS_MOST,
                "recordings in parallel (default: the number of threads)"),
      CLI_PRECISION_OPTION(&s.precision, "tf32"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {"evaluate",
                         "CLEAN OTHER | CLEAN --noise SOURCE",
                         "Scores speech against its clean version: PESQ (P.862.2), CSIG, CBAK, COVL, segmental SNR, "
                         "SI-SDR, STOI, LLR and WSS, at 16 kHz. CLEAN and OTHER are files, or folders whose files are "
                         "paired by name; the longer of two is cut. With -w, OTHER is the input of a model. With "
                         "--noise, the noisy recordings are mixed as in the validation of krait train.",
                         options,
                         CLI_N(options),
                         1,
                         2,
                         "krait evaluate clean/ noisy/ -w builtin"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status < 0) exit_status = cli_precision_parse("evaluate", s.precision, &s.model.precision);
  if (exit_status < 0) exit_status = check_evaluate_options(&s, argc - first);
  if (exit_status >= 0) return exit_status;
  cli_hush_libraries();
  cli_catch_signals(verb.name, "");
  static evaluation e = {.notes_lock = PTHREAD_MUTEX_INITIALIZER};
  e.s = &s;
  exit_status = s.noise ? list_items(&e, argv[first]) : list_pairs(&e, argv + first);
  if (exit_status < 0 && s.csv) exit_status = check_output(&e, argv + first, s.csv);
  if (exit_status < 0 && s.plot) exit_status = cli_png_check("evaluate", "plot", s.plot);
  if (exit_status < 0 && s.plot) exit_status = check_output(&e, argv + first, s.plot);
  if (exit_status < 0) exit_status = with_model(&e);
  release(&e);
  return exit_status;
}
