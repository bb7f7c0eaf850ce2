/* run.c: a training run from a configuration: data, steps, validation, log and checkpoints (krait/train.h). In its
 * folder: checkpoint.safetensors, rewritten with every line of progress, best.safetensors whenever an epoch's
 * validation improves, log.jsonl, tensorbd with the same for TensorBoard, .hydra/config.yaml. */
#define _GNU_SOURCE
#include "public_names.h"

#include <krait/train.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "checkpoint.h"
#include "clock.h"
#include "event_file.h"
#include "feed.h"
#include "json_text.h"
#include "loss_plot.h"
#include "model_kind.h"
#include "outfile.h"
#include "ranks.h"
#include "recipe.h"
#include "saver.h"
#include "scorer.h"
#include "status.h"
#include "train_time.h"
#include "weights_io.h"

typedef struct run {
  const krait_ctx *ctx;
  const kr_recipe *recipe;
  const krait_train_options *options;
  kr_data *data, *valid;
  kr_feed *feed;
  kr_scorer *scorer;
  kr_trainer *trainer;
  kr_config *config;
  char *config_json, *recipe_json;
  kr_checkpoint_text text;
  FILE *log;
  kr_event_file *events; /* the same for TensorBoard */
  kr_progress_state state;
  kr_train_options train;
  kr_ranks *ranks; /* NULL: alone */
  int64_t B, F, T, N, n_steps, n_epochs, warmup; /* n_steps: of an epoch */
  double lr_decay, eta_min, warmup_start;
  kr_batch_buffers buffers; /* for validation, and for timed steps */
  kr_batch batch;     /* of the step */
  int64_t begun_ns, begun_step, saved_step; /* saved_step: the step of the folder's checkpoint; 0: none */
  kr_saver *saver;
  struct {         /* a line of progress, which appears when its checkpoint has been written */
    int is_due, ends;
    kr_step step;
    krait_train_report report;
  } line;
} run;

static int is_first(const run *r) { return kr_ranks_rank(r->ranks) == 0; } /* only this rank writes and reports */

static void path_in(const run *r, const char *name, char *path, size_t bytes) {
  snprintf(path, bytes, "%s/%s", r->options->folder, name);
}

/* ---- configuration ---- */

/* model.param as "key=value,..." */
static int32_t settings_of(const kr_recipe *recipe, char *text, size_t bytes) {
  const char *model = NULL, *key;
  json_t *value;
  KR_TRY(kr_recipe_text(recipe, "model.model_lib", NULL, &model));
  KR_CHECK(model, KRAIT_ERR_ARGUMENT,
           "the configuration names no model: add +model=primeknet_mamba_masking (or _gru_, _lstm_), or start from "
           "--weights");
  char *json = kr_recipe_json(recipe, "model.param");
  size_t n = (size_t)snprintf(text, bytes, "model=%s", model);
  json_t *tree = json ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
  json_object_foreach(tree, key, value) {
    char *one = json_is_string(value) ? kr_strdup(json_string_value(value))
                                      : kr_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (one && n < bytes) n += (size_t)snprintf(text + n, bytes - n, ",%s=%s", key, one);
    kr_free(one);
  }
  json_decref(tree);
  kr_free(json);
  KR_CHECK(n < bytes, KRAIT_ERR_ARGUMENT, "the model's arguments are longer than %zu characters", bytes);
  return KRAIT_OK;
}

/* float32 and tf32 say how products round; the 16-bit types are a GPU's. */
static int32_t read_precision(run *r) {
  const char *precision;
  KR_TRY(kr_recipe_text(r->recipe, "precision", "float32", &precision));
  const int32_t halves = strcmp(precision, "float16") == 0    ? KRAIT_F16
                         : strcmp(precision, "bfloat16") == 0 ? KRAIT_BF16
                                                              : 0;
  const int tf32 = halves || strcmp(precision, "tf32") == 0;
  KR_CHECK(tf32 || strcmp(precision, "float32") == 0, KRAIT_ERR_ARGUMENT,
           "precision is '%s', not float32, tf32, float16 or bfloat16", precision);
  r->train.tf32 = tf32, r->train.halves = r->ctx->cuda ? halves : 0;
  return KRAIT_OK;
}

static int32_t read_loss_weights(run *r) {
  static const struct {
    const char *name;
    int from, to;
  } terms[] = {{"loss.magnitude", KR_TERM_MAGNITUDE, KR_TERM_MAGNITUDE},
               {"loss.phase", KR_TERM_PHASE_IP, KR_TERM_PHASE_IAF},
               {"loss.complex", KR_TERM_COMPLEX, KR_TERM_COMPLEX},
               {"loss.consistency", KR_TERM_CONSISTENCY, KR_TERM_CONSISTENCY},
               {"loss.metric", KR_TERM_METRIC, KR_TERM_METRIC},
               {"loss.time", KR_TERM_TIME, KR_TERM_TIME},
               {"loss.disturbance", KR_TERM_DISTURBANCE, KR_TERM_DISTURBANCE},
               {"loss.pesq", KR_TERM_PESQ, KR_TERM_PESQ},
               {"loss.si_sdr", KR_TERM_SI_SDR, KR_TERM_SI_SDR},
               {"loss.stoi", KR_TERM_STOI, KR_TERM_STOI}};
  double *weights = r->train.weights;
  for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
    for (int k = terms[i].from; k <= terms[i].to; k++)
      KR_TRY(kr_recipe_float(r->recipe, terms[i].name, weights[k], 0, 1e6, &weights[k]));
  r->train.discriminator = weights[KR_TERM_METRIC] > 0;
  return KRAIT_OK;
}

static int32_t read_schedule(run *r) {
  const kr_recipe *c = r->recipe;
  KR_TRY(kr_recipe_float(c, "lr_decay", 0.99, 0, 1, &r->lr_decay));
  KR_TRY(kr_recipe_int(c, "warmup_epochs", 0, 0, 1000000, &r->warmup));
  KR_TRY(kr_recipe_float(c, "warmup_start_factor", 0.1, 0, 1, &r->warmup_start));
  KR_TRY(kr_recipe_float(c, "eta_min", 1e-6, 0, 1, &r->eta_min));
  return kr_recipe_int(c, "epochs", 200, 1, 1000000, &r->n_epochs);
}

static int32_t read_options(run *r) {
  const kr_recipe *c = r->recipe;
  kr_train_options *o = &r->train;
  double betas[2] = {o->beta1, o->beta2}, seed = (double)o->seed;
  int32_t n = 2;
  const int64_t n_ranks = kr_ranks_n(r->ranks);
  int64_t recompute;
  const char *first;
  KR_TRY(kr_recipe_float(c, "lr", o->lr, 0, 1, &o->lr));
  KR_TRY(kr_recipe_floats(c, "betas", betas, &n));
  KR_TRY(kr_recipe_float(c, "weight_decay", o->weight_decay, 0, 10, &o->weight_decay));
  KR_TRY(kr_recipe_float(c, "max_grad_norm", 0, 0, 1e9, &o->clip));
  KR_TRY(kr_recipe_float(c, "average_decay", 0, 0, 1, &o->average_decay));
  KR_TRY(kr_recipe_int(c, "accumulate", 1, 1, 1024, &o->accumulate));
  KR_TRY(kr_recipe_int(c, "discriminator_first", 0, 0, 1000000, &o->discriminator_first));
  KR_TRY(kr_recipe_int(c, "recompute", 0, 0, 1, &recompute));
  KR_TRY(kr_recipe_int(c, "micro_batch", 0, 0, 64, &o->micro_batch));
  KR_TRY(read_precision(r));
  KR_TRY(kr_recipe_text(c, "update_first", "generator", &first));
  o->generator_first = strcmp(first, "generator") == 0;
  KR_CHECK(o->generator_first || strcmp(first, "discriminator") == 0, KRAIT_ERR_ARGUMENT,
           "update_first is '%s', not generator or discriminator", first);
  KR_TRY(kr_recipe_float(c, "seed", seed, 0, 9e15, &seed));
  KR_TRY(read_schedule(r));
  KR_TRY(kr_recipe_int(c, "batch_size", 4, 1, 64 * n_ranks, &r->B));
  KR_CHECK(r->B % n_ranks == 0 && r->B / n_ranks <= 64, KRAIT_ERR_ARGUMENT,
           "batch_size %lld must be a multiple of the number of GPUs, %lld, and at most 64 times as large",
           (long long)r->B, (long long)n_ranks);
  r->B /= n_ranks, o->ranks = r->ranks, o->recompute = (int)recompute;
  o->beta1 = betas[0], o->beta2 = betas[1], o->seed = (uint64_t)seed;
  return read_loss_weights(r);
}

static double lr_of(const run *r, int64_t epoch) {
  if (r->warmup <= 0) return r->train.lr * pow(r->lr_decay, (double)epoch);
  if (epoch < r->warmup)
    return r->train.lr * (r->warmup_start + (1 - r->warmup_start) * (double)epoch / (double)r->warmup);
  const double part = (double)(epoch - r->warmup) / (double)(r->n_epochs > r->warmup ? r->n_epochs - r->warmup : 1);
  return r->eta_min + (r->train.lr - r->eta_min) * (1 + cos(3.14159265358979323846 * part)) / 2;
}

/* ---- the judge: PESQ, on its own threads ---- */

static int32_t ask(void *user, const float *wav) {
  const run *r = user;
  return kr_scorer_begin(r->scorer, wav, r->B, r->N);
}

static int32_t answer(void *user, float *quality) {
  const run *r = user;
  double mos[64]; /* read_options: a rank's maximum */
  KR_TRY(kr_scorer_end(r->scorer, mos, NULL));
  for (int64_t b = 0; b < r->B; b++) quality[b] = (float)((mos[b] - 1) / 3.5);
  return KRAIT_OK;
}

/* ---- the folder ---- */

static int32_t write_log(run *r, const kr_step *losses, const krait_train_report *report) {
  fprintf(r->log, "{\"step\":%lld,\"epoch\":%lld,\"lr\":%.9g", (long long)report->step, (long long)report->epoch,
          report->lr);
  fprintf(r->log, ",\"total\":%.9g,\"gradient_norm\":%.9g", losses->total, losses->gradient_norm);
  for (int k = 0; k < KR_TERMS; k++) fprintf(r->log, ",\"%s\":%.9g", kr_term_names[k], losses->terms[k]);
  if (!isnan(report->valid))
    fprintf(r->log, ",\"valid\":%.9g,\"best\":%s", report->valid, report->is_best ? "true" : "false");
  fprintf(r->log, ",\"audio_s_per_s\":%.4g}\n", report->audio_s_per_s);
  KR_CHECK(fflush(r->log) == 0, KRAIT_ERR_FILE_WRITE, "%s/log.jsonl: %s", r->options->folder, strerror(errno));
  return KRAIT_OK;
}

static int32_t write_events(run *r, const kr_step *losses, const krait_train_report *report) {
  enum { OTHERS = 5 };
  static const char *const others[OTHERS] = {"total", "valid", "lr", "gradient_norm", "audio_s_per_s"};
  const double values_of_others[OTHERS] = {losses->total, report->valid, report->lr, losses->gradient_norm,
                                           report->audio_s_per_s};
  const char *tags[OTHERS + KR_TERMS];
  double values[OTHERS + KR_TERMS];
  memcpy(tags, others, sizeof others), memcpy(values, values_of_others, sizeof values_of_others);
  for (int k = 0; k < KR_TERMS; k++) tags[OTHERS + k] = kr_term_names[k], values[OTHERS + k] = losses->terms[k];
  return kr_event_file_add(r->events, report->step, tags, values, OTHERS + KR_TERMS);
}

/* Begins to write the state; show_line waits for it. */
static int32_t write_state(run *r, int is_best) {
  char path[4096];
  if (is_best) {
    path_in(r, "best.safetensors", path, sizeof path);
    KR_TRY(kr_checkpoint_add_model(r->saver, path, r->trainer, r->train.average_decay > 0, &r->text));
  }
  path_in(r, "checkpoint.safetensors", path, sizeof path);
  KR_TRY(kr_checkpoint_add(r->saver, path, r->trainer, &r->state, &r->text));
  return kr_saver_begin(r->saver);
}

static int32_t save(run *r, int is_best) { return is_first(r) ? write_state(r, is_best) : KRAIT_OK; }

static int32_t validate(run *r, double *mean) {
  kr_batch batch;
  kr_step step;
  double sum = 0;
  const int64_t n_items = kr_data_n_items(r->valid), batch_of_all = r->B * kr_ranks_n(r->ranks),
                own = r->B * kr_ranks_rank(r->ranks);
  const int64_t all = (n_items + batch_of_all - 1) / batch_of_all,
                most = r->options->valid_batches ? r->options->valid_batches : 8, n = all < most ? all : most;
  for (int64_t k = 0; k < n; k++) {
    for (int64_t b = 0; b < r->B; b++) {
      int64_t length;
      KR_TRY(kr_data_item(r->valid, 0, (k * batch_of_all + own + b) % n_items, r->buffers.noisy + b * r->N,
                          r->buffers.clean + b * r->N, &length));
    }
    KR_TRY(kr_batch_make(&r->buffers, &batch));
    KR_TRY(kr_trainer_validate(r->trainer, &batch, &step, NULL));
    sum += step.total;
  }
  *mean = sum / (double)n;
  return KRAIT_OK;
}

/* ---- steps ---- */

/* If gradients are accumulated over several steps, the run and its epochs end after a complete accumulation: a
 * checkpoint never contains a partial sum. */
static int64_t whole_sums(const run *r, int64_t n_steps) {
  const int64_t n = r->train.accumulate;
  return (n_steps + n - 1) / n * n;
}

static int64_t all_steps(const run *r) {
  return r->options->most_steps ? whole_sums(r, r->options->most_steps) : r->n_steps * r->n_epochs;
}

static void describe_run(const run *r, const kr_step *s, krait_train_report *report) {
  const double seconds = (double)(kr_clock_ns() - r->begun_ns) * 1e-9, done = (double)(r->state.step - r->begun_step);
  const int64_t all = all_steps(r);
  *report = (krait_train_report){.step = r->state.step,
                                 .n_steps = all,
                                 .epoch = (r->state.step - 1) / r->n_steps,
                                 .n_epochs = r->n_epochs,
                                 .total = s->total,
                                 .magnitude = s->terms[KR_TERM_MAGNITUDE],
                                 .phase = s->phase,
                                 .complex_part = s->terms[KR_TERM_COMPLEX],
                                 .consistency = s->terms[KR_TERM_CONSISTENCY],
                                 .metric = s->terms[KR_TERM_METRIC],
                                 .discriminator = s->terms[KR_TERM_DISC_R] + s->terms[KR_TERM_DISC_G],
                                 .gradient_norm = s->gradient_norm,
                                 .valid = NAN};
  report->lr = lr_of(r, report->epoch);
  report->audio_s_per_s = done * (double)(kr_ranks_n(r->ranks) * r->B * r->N) / 16000 / seconds;
  report->left_s = seconds / done * (double)(all - r->state.step);
}

/* Chooses the best by complete epochs; a run that ends within its first uses its last weights. */
static int32_t end_epoch(run *r, int is_whole, krait_train_report *report) {
  report->valid = r->state.epoch_loss / r->state.epoch_steps;
  if (r->valid) KR_TRY(validate(r, &report->valid));
  report->is_best = is_whole ? report->valid < r->state.best_loss : isinf(r->state.best_loss);
  if (!is_whole) return save(r, report->is_best);
  if (report->is_best) r->state.best_loss = report->valid;
  r->state.epoch_loss = r->state.epoch_steps = 0;
  return save(r, report->is_best);
}

static int32_t draw_losses(const run *r) {
  char path[4096];
  path_in(r, "log.jsonl", path, sizeof path);
  return kr_loss_plot_write(path, r->options->plot_path);
}

/* Once its checkpoint has been written: what was shown can be resumed. */
static int32_t show_line(run *r) {
  if (!r->line.is_due) return KRAIT_OK;
  r->line.is_due = 0;
  KR_TRY(kr_saver_wait(r->saver));
  r->saved_step = r->line.report.step;
  KR_TRY(write_log(r, &r->line.step, &r->line.report));
  KR_TRY(write_events(r, &r->line.step, &r->line.report));
  if (r->line.ends && r->options->plot_path) KR_TRY(draw_losses(r));
  if (r->options->report) r->options->report(r->options->user, &r->line.report);
  return KRAIT_OK;
}

static int32_t tell_progress(const run *r, int64_t all) {
  return r->options->progress && r->options->progress(r->options->user, r->state.step, all)
             ? kr_fail(KRAIT_ERR_CANCELLED, "stopped on request")
             : KRAIT_OK;
}

static int32_t run_steps(run *r) {
  const int64_t all = all_steps(r);
  int64_t prints = 10;
  KR_TRY(kr_recipe_int(r->recipe, "num_prints", 10, 1, 1000000, &prints));
  const int64_t interval = r->n_steps > prints ? r->n_steps / prints : 1;
  r->begun_ns = kr_clock_ns(), r->begun_step = r->saved_step = r->state.step;
  const kr_judge judge = {r, ask, answer};
  KR_TRY(kr_data_begin(r->data, r->state.step));
  KR_TRY(kr_feed_open(r->ctx, r->data, r->B, r->F, &r->feed));
  while (r->state.step < all) {
    kr_step step;
    krait_train_report report;
    if (!kr_saver_is_busy(r->saver)) KR_TRY(show_line(r));
    KR_TRY(kr_feed_next(r->feed, &r->batch));
    if (r->scorer) KR_TRY(kr_scorer_expect(r->scorer, r->batch.wav, r->B, r->N));
    KR_TRY(kr_trainer_step(r->trainer, &r->batch, lr_of(r, r->state.step / r->n_steps), &judge, &step));
    r->state.step++;
    if (!step.alone) r->state.epoch_loss += step.total, r->state.epoch_steps++;
    if (is_first(r)) KR_TRY(tell_progress(r, all));
    const int is_whole = r->state.step % r->n_steps == 0, ends = is_whole || r->state.step == all;
    const int is_begun = r->state.step == r->train.accumulate; /* the first update shows that it works */
    if (!ends && !is_begun && (r->state.step % interval || r->state.step % r->train.accumulate)) continue;
    KR_TRY(show_line(r));
    describe_run(r, &step, &report);
    if (ends) KR_TRY(end_epoch(r, is_whole, &report));
    else KR_TRY(save(r, 0));
    r->line.is_due = is_first(r), r->line.ends = ends, r->line.step = step, r->line.report = report;
  }
  return show_line(r);
}

/* ---- open and close ---- */

static int32_t open_model(run *r, kr_weights **weights, kr_pk_config *config) {
  char settings[4096];
  const char *overrides = NULL, *start = r->options->weights;
  if (!start) KR_TRY(kr_recipe_text(r->recipe, "continue_from", NULL, &start));
  if (start) {
    KR_TRY(kr_weights_open_named(start, weights));
    if (kr_weights_refuse_checkpoint(*weights) < 0)
      return kr_fail(KRAIT_ERR_WEIGHTS, "%s: %s", start, krait_error_detail());
    KR_TRY(kr_weights_widen(*weights));
  } else {
    KR_TRY(settings_of(r->recipe, settings, sizeof settings));
    overrides = settings;
  }
  KR_TRY(kr_config_open(*weights, NULL, overrides, &r->config));
  KR_TRY(kr_pk_config_read(kr_config_model(r->config), r->config, config));
  r->config_json = kr_config_json(r->config), r->recipe_json = kr_recipe_json(r->recipe, "");
  KR_CHECK(r->config_json && r->recipe_json, KRAIT_ERR_NO_MEMORY, "no memory for the configuration");
  r->text = (kr_checkpoint_text){kr_config_model(r->config), r->config_json, r->recipe_json};
  return KRAIT_OK;
}

static int32_t open_data(run *r) {
  kr_data_config c;
  KR_TRY(kr_recipe_data(r->recipe, KR_RECIPE_TRAIN, &c));
  void (*const note)(void *, const char *) = is_first(r) ? r->options->note : NULL;
  c.batch = r->B, c.report = note, c.user = r->options->user, c.rank = kr_ranks_rank(r->ranks),
  c.n_ranks = kr_ranks_n(r->ranks);
  KR_TRY(kr_data_open(&c, &r->data));
  r->N = kr_data_samples(r->data), r->n_steps = whole_sums(r, kr_data_n_steps(r->data));
  if (!kr_recipe_has(r->recipe, "dset.speech_valid") && !kr_recipe_has(r->recipe, "dset.noisy_valid")) return KRAIT_OK;
  KR_TRY(kr_recipe_data(r->recipe, KR_RECIPE_VALID, &c));
  c.segment = c.stride = r->N, c.shift = 0, c.report = note,
  c.user = r->options->user; /* segments as long as in training: one graph serves both */
  KR_TRY(kr_data_open(&c, &r->valid));
  KR_CHECK(kr_data_samples(r->valid) == r->N, KRAIT_ERR_ARGUMENT,
           "validation segments have %lld samples, training segments %lld", (long long)kr_data_samples(r->valid),
           (long long)r->N);
  return KRAIT_OK;
}

/* A run's configuration file in its folder, as upstream's. */
static void config_path(const char *folder, char *path, size_t bytes) {
  snprintf(path, bytes, "%s/.hydra/config.yaml", folder);
}

static int is_same_file(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The process that holds the lock of an open file, or 0: /proc/locks has "FLOCK ADVISORY WRITE PID DEVICE:INODE". */
static long find_holder(int fd) {
  struct stat info;
  char line[256];
  long holder = 0;
  FILE *locks = fstat(fd, &info) == 0 ? fopen("/proc/locks", "r") : NULL;
  while (locks && !holder && fgets(line, sizeof line, locks)) {
    unsigned long long inode = 0;
    long pid = 0;
    if (sscanf(line, "%*s FLOCK %*s %*s %ld %*x:%*x:%llu", &pid, &inode) == 2 && inode == info.st_ino) holder = pid;
  }
  if (locks) fclose(locks);
  return holder;
}

/* Opens the log and locks it for the whole run: the system releases the lock however the process ends. A file system
 * without locks has none. */
static int32_t lock_folder(run *r) {
  char path[4096], who[48] = "";
  if (r->log) return KRAIT_OK;
  path_in(r, "log.jsonl", path, sizeof path);
  const int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  r->log = fd < 0 ? NULL : fdopen(fd, "a");
  if (!r->log) {
    const int os_errno = errno;
    if (fd >= 0) close(fd);
    return kr_fail_os(KRAIT_ERR_FILE_WRITE, os_errno, "cannot write %s", path);
  }
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return KRAIT_OK;
  const long holder = find_holder(fd);
  if (holder > 0) snprintf(who, sizeof who, " (process %ld)", holder);
  return kr_fail(KRAIT_ERR_FILE_WRITE,
                 "%s is in use by another training%s; wait for its end, or choose another --output", r->options->folder,
                 who);
}

/* Before recordings are read: a folder that exists is locked, and one that does not can be created. */
static int32_t check_folder(run *r) {
  struct stat info;
  char parent[4096];
  const char *folder = r->options->folder;
  if (stat(folder, &info) == 0 && !S_ISDIR(info.st_mode))
    return kr_fail(KRAIT_ERR_FILE_WRITE, "%s is a file, not a folder for a run", folder);
  if (stat(folder, &info) == 0) return lock_folder(r);
  snprintf(parent, sizeof parent, "%s", folder);
  for (size_t n = strlen(parent); n > 1 && parent[n - 1] == '/'; n--) parent[n - 1] = 0;
  char *const slash = strrchr(parent, '/');
  if (!slash) snprintf(parent, sizeof parent, ".");
  else slash[slash == parent] = 0;
  if (access(parent, W_OK | X_OK) == 0) return KRAIT_OK;
  return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot create the folder %s: %s", folder, parent);
}

/* The complete configuration, with the run's actual model: JSON is YAML, too. NULL if out of memory. */
static char *whole_config(const run *r) {
  json_t *tree = json_loads(r->recipe_json, 0, NULL), *model = json_object_get(tree, "model");
  int failed = !tree;
  if (!json_is_object(model)) failed |= json_object_set_new(tree, "model", json_object());
  model = json_object_get(tree, "model");
  failed |= json_object_set_new(model, "model_lib", json_string(kr_config_model(r->config)));
  failed |= json_object_set_new(model, "param", json_loads(r->config_json, 0, NULL));
  failed |= json_object_set_new(tree, "continue_from", json_null());
  char *text = failed ? NULL : kr_json_dump(tree, JSON_INDENT(2));
  json_decref(tree);
  return text;
}

static int32_t write_config(const run *r) {
  char path[4096], folder[4096];
  path_in(r, ".hydra", folder, sizeof folder), config_path(r->options->folder, path, sizeof path);
  if (r->options->config &&
      (is_same_file(r->options->config, r->options->folder) || is_same_file(r->options->config, path)))
    return KRAIT_OK; /* the configuration that was read is not changed */
  KR_CHECK(mkdir(folder, 0777) == 0 || errno == EEXIST, KRAIT_ERR_FILE_WRITE, "%s: %s", folder, strerror(errno));
  char *text = whole_config(r);
  KR_CHECK(text, KRAIT_ERR_NO_MEMORY, "no memory for the configuration");
  const int32_t status = kr_outfile_text(path, text);
  kr_free(text);
  return status;
}

static void describe_data(const run *r, char *text, size_t bytes) {
  snprintf(text, bytes, "%s", kr_data_fingerprint(r->data).text);
  const size_t n = strlen(text);
  if (r->valid) snprintf(text + n, bytes - n, "; for validation %s", kr_data_fingerprint(r->valid).text);
}

/* What a checkpoint says of its run must fit this one. */
static int32_t check_checkpoint(const run *r, const char *path) {
  char now[sizeof r->state.recordings];
  const int64_t end = r->n_steps * r->n_epochs > all_steps(r) ? r->n_steps * r->n_epochs : all_steps(r);
  describe_data(r, now, sizeof now);
  KR_CHECK(r->options->changed_data || strcmp(now, r->state.recordings) == 0, KRAIT_ERR_ARGUMENT,
           "%s was made with other recordings (then %s; now %s): restore them, or continue with --changed-data", path,
           r->state.recordings, now);
  KR_CHECK(r->state.step <= end, KRAIT_ERR_WEIGHTS,
           "%s is at step %lld, beyond the end of this run at %lld: it belongs to another configuration", path,
           (long long)r->state.step, (long long)end);
  return KRAIT_OK;
}

static int32_t read_checkpoint(run *r, const char *path) {
  KR_TRY(kr_checkpoint_read(path, r->trainer, &r->state));
  KR_TRY(check_checkpoint(r, path));
  describe_data(r, r->state.recordings, sizeof r->state.recordings);
  return KRAIT_OK;
}

static int32_t open_folder(run *r) {
  char path[4096];
  if (!is_first(r)) {
    path_in(r, "checkpoint.safetensors", path, sizeof path);
    return r->options->resume ? read_checkpoint(r, path) : KRAIT_OK;
  }
  KR_CHECK(mkdir(r->options->folder, 0777) == 0 || errno == EEXIST, KRAIT_ERR_FILE_WRITE, "%s: %s", r->options->folder,
           strerror(errno));
  KR_TRY(lock_folder(r));
  path_in(r, "checkpoint.safetensors", path, sizeof path);
  KR_CHECK(r->options->resume || access(path, F_OK) != 0, KRAIT_ERR_ARGUMENT,
           "%s already exists: continue it with --resume, or choose another --output for a new run", path);
  describe_data(r, r->state.recordings, sizeof r->state.recordings);
  KR_TRY(r->options->resume ? read_checkpoint(r, path) : write_config(r));
  path_in(r, "tensorbd", path, sizeof path);
  return kr_event_file_open(path, &r->events);
}

static uint32_t hash(uint32_t h, const void *data, size_t bytes) { /* FNV-1a */
  for (const unsigned char *at = data, *end = at + bytes; at < end; at++) h = (h ^ *at) * 16777619u;
  return h;
}

/* Processes that start with anything different would silently diverge. */
static int32_t compare_ranks(run *r) {
  const kr_parameters *g = kr_trainer_generator(r->trainer), *d = kr_trainer_discriminator(r->trainer);
  const int64_t counts[] = {kr_data_n_items(r->data), r->valid ? kr_data_n_items(r->valid) : 0, r->n_steps};
  KR_TRY(kr_ranks_agree(
      r->ranks, hash(hash(2166136261u, r->recipe_json, strlen(r->recipe_json)), r->config_json, strlen(r->config_json)),
      "settings"));
  KR_TRY(kr_ranks_agree(r->ranks, hash(2166136261u, counts, sizeof counts), "recordings"));
  return kr_ranks_agree(r->ranks,
                        hash(hash(hash(2166136261u, g->value, (size_t)g->n * 4), d->value, (size_t)d->n * 4),
                             &r->state.step, sizeof r->state.step),
                        "weights or checkpoints");
}

static int32_t open_run(run *r, kr_weights **weights) {
  kr_pk_config config;
  char line[256];
  KR_TRY(read_options(r));
  KR_TRY(open_model(r, weights, &config));
  if (is_first(r)) KR_TRY(check_folder(r));
  KR_TRY(open_data(r));
  r->F = config.F, r->T = 1 + r->N / (config.fft_len / 4);
  KR_CHECK(r->N % (config.fft_len / 4) == 0, KRAIT_ERR_ARGUMENT,
           "items have %lld samples, not a multiple of the frame size %lld: change segment or shift", (long long)r->N,
           (long long)config.fft_len / 4);
  KR_TRY(kr_batch_open(r->ctx->cuda, r->B, r->F, r->N, r->ctx->pool, &r->buffers));
  if (r->train.discriminator) KR_TRY(kr_scorer_open(kr_pool_size(r->ctx->pool), &r->scorer));
  KR_TRY(kr_saver_open(&r->saver));
  KR_TRY(kr_ranks_join(r->ranks, r->ctx));
  KR_TRY(kr_trainer_open(r->ctx, &config, &r->train, r->B, r->T, &r->trainer));
  KR_TRY(kr_trainer_draw_weights(r->trainer));
  kr_parameters *p = kr_trainer_generator(r->trainer);
  kr_parameters *s = kr_trainer_statistics(r->trainer);
  if (*weights) KR_TRY(kr_parameters_read(p, *weights, "", p->value));
  if (*weights) KR_TRY(kr_parameters_read(s, *weights, "", s->value));
  memcpy(p->average, p->value, (size_t)p->n * sizeof(float));
  if (s->n) memcpy(s->average, s->value, (size_t)s->n * sizeof(float));
  KR_TRY(kr_trainer_push(r->trainer));
  KR_TRY(open_folder(r));
  KR_TRY(compare_ranks(r));
  const kr_data_counts n = kr_data_count(r->data);
  snprintf(line, sizeof line, "%lld recording%s, %.0f s of speech, %lld steps per epoch, %.0f MB of memory per step",
           (long long)n.n_files, n.n_files == 1 ? "" : "s", n.speech_s, (long long)r->n_steps,
           (double)kr_trainer_bytes(r->trainer) * 1e-6);
  if (r->options->note && is_first(r)) r->options->note(r->options->user, line);
  if (r->state.step < all_steps(r)) return KRAIT_OK;
  snprintf(line, sizeof line, "nothing left to do: %lld of %lld steps are done; use epochs=N or --steps N for more",
           (long long)r->state.step, (long long)all_steps(r));
  if (r->options->note && is_first(r)) r->options->note(r->options->user, line);
  return KRAIT_OK;
}

static void close_run(run *r) {
  kr_feed_close(&r->feed), kr_scorer_close(&r->scorer), kr_batch_close(&r->buffers), kr_saver_close(&r->saver);
  kr_trainer_close(&r->trainer), kr_data_close(&r->data), kr_data_close(&r->valid), kr_config_close(&r->config);
  kr_free(r->config_json), kr_free(r->recipe_json);
  if (r->log) fclose(r->log);
  kr_event_file_close(&r->events);
  kr_ranks_close(&r->ranks);
}

/* The error also says where to continue: if another rank is the cause, rank 0 saves the step that all have reached. */
static int32_t end_run(run *r, int32_t status) {
  char why[600], path[4096];
  if (status >= 0) status = kr_ranks_end(r->ranks, KRAIT_OK);
  if (status >= 0) return status;
  const int is_blamed = kr_ranks_blame(r->ranks); /* the error is now the other rank's */
  if (!is_first(r) || !r->begun_ns) return kr_ranks_end(r->ranks, status);
  const int is_other = is_blamed && r->state.step > r->begun_step;
  snprintf(why, sizeof why, "%s", krait_error_detail());
  path_in(r, "checkpoint.safetensors", path, sizeof path);
  (void)show_line(r);
  if (is_other && r->saved_step < r->state.step && write_state(r, 0) >= 0 && kr_saver_wait(r->saver) >= 0)
    r->saved_step = r->state.step;
  const int64_t at = r->state.step + 1;
  if (r->saved_step && is_other)
    status = kr_fail(status, "step %lld: %s; %s has step %lld: continue with --resume", (long long)at, why, path,
                     (long long)r->saved_step);
  else if (r->saved_step)
    status = kr_fail(status, "%s; the last checkpoint, %s, has step %lld", why, path, (long long)r->saved_step);
  else if (is_other) status = kr_fail(status, "step %lld: %s", (long long)at, why);
  return kr_ranks_end(r->ranks, status);
}

/* A resumed run without a configuration uses its own, with the settings on top. */
static const char *config_of(const krait_train_options *o) {
  char path[4096];
  config_path(o->folder, path, sizeof path);
  return o->resume && !o->config && access(path, F_OK) == 0 ? o->folder : o->config;
}

static int32_t check_resume(const krait_train_options *o) {
  char path[4096];
  snprintf(path, sizeof path, "%s/checkpoint.safetensors", o->folder);
  KR_CHECK(!o->resume || access(path, F_OK) == 0 || errno != ENOENT, KRAIT_ERR_FILE_OPEN,
           "%s has no checkpoint to resume from; give the run's folder with --output, or start a run without --resume",
           o->folder);
  return KRAIT_OK;
}

int32_t krait_train(const krait_ctx *ctx, const krait_train_options *options) {
  KR_CHECK(ctx && options, KRAIT_ERR_ARGUMENT, "krait_train: ctx and options must not be NULL");
  KR_CHECK(options->size == sizeof *options, KRAIT_ERR_STRUCT_SIZE, "krait_train: options.size is %u, must be %zu",
           options->size, sizeof *options);
  KR_CHECK(options->folder && (options->settings || !options->n_settings) && options->n_settings >= 0 &&
               options->n_settings < 10000,
           KRAIT_ERR_ARGUMENT, "krait_train: folder and settings must be given");
  run r = {.ctx = ctx, .options = options, .train = kr_train_defaults, .state = {.best_loss = INFINITY}};
  kr_recipe *recipe = NULL;
  kr_weights *weights = NULL;
  KR_TRY(kr_ranks_open(options->place, &r.ranks));
  int32_t status = check_resume(options);
  if (status >= 0)
    status = kr_recipe_open(config_of(options), options->settings, (int32_t)options->n_settings, &recipe);
  r.recipe = recipe;
  if (status >= 0) status = open_run(&r, &weights);
  kr_weights_close(&weights);
  if (status >= 0) status = run_steps(&r);
  status = end_run(&r, status);
  close_run(&r);
  kr_recipe_close(&recipe);
  return status;
}

/* ---- times ---- */

static void draw_batch(kr_batch_buffers *r, kr_batch *batch) {
  const int64_t plane = r->B * r->F * r->T;
  uint32_t state = 1;
  for (int64_t i = 0; i < 4 * plane; i++)
    state = state * 1664525u + 1013904223u,
    r->com_in[i] = ((float)(state >> 8) * 0x1p-24f - 0.5f) * 2; /* com follows com_in */
  for (int64_t i = 0; i < plane; i++)
    r->mag[i] = sqrtf(r->com[2 * i] * r->com[2 * i] + r->com[2 * i + 1] * r->com[2 * i + 1]),
    r->pha[i] = atan2f(r->com[2 * i + 1], r->com[2 * i]);
  for (int64_t i = 0; i < r->B * r->N; i++) /* audible, or the perceptual losses would have nothing to do */
    state = state * 1664525u + 1013904223u, r->clean[i] = ((float)(state >> 8) * 0x1p-24f - 0.5f) * 0.2f;
  *batch = (kr_batch){.com_in = r->com_in, .mag = r->mag, .pha = r->pha, .com = r->com, .wav = r->clean};
}

static int32_t ask_nobody(void *user, const float *wav) {
  (void)user, (void)wav;
  return KRAIT_OK;
}

static int32_t give_half(void *user, float *quality) {
  const run *r = user;
  for (int64_t b = 0; b < r->B; b++) quality[b] = 0.5f;
  return KRAIT_OK;
}

static int32_t time_trainer(run *r, const kr_pk_config *config, int64_t n_steps, double *seconds, uint64_t *bytes,
                            void (*each)(void *, const char *, const char *, const char *, double), void *user) {
  const kr_judge judge = {r, ask_nobody, give_half};
  kr_batch batch;
  kr_step step;
  KR_TRY(kr_trainer_open(r->ctx, config, &r->train, r->B, r->T, &r->trainer));
  KR_TRY(kr_trainer_draw_weights(r->trainer));
  draw_batch(&r->buffers, &batch);
  *seconds = INFINITY, *bytes = kr_trainer_bytes(r->trainer);
  for (int64_t k = 0; k < n_steps + 2; k++) { /* the first two load kernels and capture graphs */
    const int64_t begun = kr_clock_ns();
    KR_TRY(kr_trainer_step(r->trainer, &batch, 1e-6, &judge, &step));
    const double took = (double)(kr_clock_ns() - begun) * 1e-9;
    if (k >= 2 && took < *seconds) *seconds = took;
  }
  if (each) KR_TRY(kr_trainer_profile(r->trainer, each, user));
  kr_trainer_close(&r->trainer);
  return KRAIT_OK;
}

static int32_t time_both(run *r, kr_weights **weights, kr_train_times *times,
                         void (*each)(void *, const char *, const char *, const char *, double), void *user) {
  kr_pk_config config;
  int64_t segment, shift;
  KR_TRY(read_options(r));
  KR_TRY(open_model(r, weights, &config));
  KR_TRY(kr_recipe_int(r->recipe, "segment", 64000, 1, 1 << 30, &segment));
  KR_TRY(kr_recipe_int(r->recipe, "shift", 32000, 0, 1 << 30, &shift));
  r->F = config.F, r->N = segment - shift, r->T = 1 + r->N / (config.fft_len / 4);
  KR_CHECK(r->N > 0 && r->N % (config.fft_len / 4) == 0, KRAIT_ERR_ARGUMENT,
           "items have %lld samples, not a multiple of the frame size %lld: change segment or shift", (long long)r->N,
           (long long)config.fft_len / 4);
  KR_TRY(kr_batch_open(r->ctx->cuda, r->B, r->F, r->N, r->ctx->pool, &r->buffers));
  times->batch = r->B, times->frames = r->T;
  r->train.discriminator_first = 0; /* those steps are the shorter ones */
  if (r->train.discriminator)
    KR_TRY(time_trainer(r, &config, times->n_steps, &times->step_s, &times->step_bytes, each, user));
  const int has_discriminator = r->train.discriminator;
  r->train.discriminator = 0;
  KR_TRY(time_trainer(r, &config, times->n_steps, &times->generator_s, &times->generator_bytes,
                      has_discriminator ? NULL : each, user));
  if (!has_discriminator) times->step_s = times->generator_s, times->step_bytes = times->generator_bytes;
  return KRAIT_OK;
}

int32_t kr_train_time(const krait_ctx *ctx, const krait_train_options *options, kr_train_times *times,
                         void (*each)(void *, const char *, const char *, const char *, double), void *user) {
  KR_CHECK(ctx && options && times, KRAIT_ERR_ARGUMENT, "kr_train_time: ctx, options and times must not be NULL");
  KR_CHECK(options->size == sizeof *options && times->size == sizeof *times, KRAIT_ERR_STRUCT_SIZE,
           "kr_train_time: options.size or times.size is not that of its struct");
  KR_CHECK(times->n_steps > 0 && times->n_steps < 1000000, KRAIT_ERR_ARGUMENT,
           "kr_train_time: n_steps must be 1 to 999999");
  KR_CHECK((options->settings || !options->n_settings) && options->n_settings >= 0 && options->n_settings < 10000,
           KRAIT_ERR_ARGUMENT, "kr_train_time: settings must be given");
  run r = {.ctx = ctx, .options = options, .train = kr_train_defaults};
  kr_recipe *recipe = NULL;
  kr_weights *weights = NULL;
  KR_TRY(kr_recipe_open(options->config, options->settings, (int32_t)options->n_settings, &recipe));
  r.recipe = recipe;
  const int32_t status = time_both(&r, &weights, times, each, user);
  kr_weights_close(&weights);
  close_run(&r);
  kr_recipe_close(&recipe);
  return status;
}
