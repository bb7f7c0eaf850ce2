/* cmd_restore.c: krait restore: films and pictures, restored by SeedVR: one file, or all of a folder. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <krait/restore.h>

#include "args.h"
#include "cmd.h"
#include "inputs.h"
#include "interrupt.h"
#include "output.h"
#include "decode_loop.h"

enum { PATH_BYTES = 4096, MOST_FILES = 4096 };

typedef struct settings {
  krait_restorer_options models;
  krait_restore_options o;
  const char *out, *size, *colour, *precision, *memory;
  int64_t seed, quality;
  int as_json, force, is_padded, is_ten_bits, is_hevc, keep, resume, plan_shown;
  cli_run run;
  double start_s, shown_s;
  krait_restorer *restorer;
} settings;

/* ---- progress ---- */

static int show_restore_progress(void *user, const krait_restore_progress *p) {
  static const char *const names[] = {"encoding", "sampling", "decoding"};
  settings *s = user;
  const double now_s = cli_now_s();
  if (cli_is_asked_to_stop()) return 1;
  if (!s->plan_shown++ && !s->run.is_quiet) fprintf(cli_err(), "memory: %s\n", p->plan);
  if (s->run.is_quiet || !isatty(STDERR_FILENO) || now_s - s->shown_s < 0.2) return 0;
  s->shown_s = now_s;
  const double elapsed = now_s - s->start_s, left = p->n_done > 0 && p->n_frames > p->n_done
                             ? elapsed / (double)p->n_done * (double)(p->n_frames - p->n_done) : 0;
  fprintf(cli_err(), "\r\033[K%lld of %lld frames, %s %.0f %%", (long long)p->n_done, (long long)p->n_frames,
          names[p->stage], 100 * p->share);
  if (left > 0) fprintf(cli_err(), ", %.0f s left", left);
  fflush(cli_err());
  cli_set_mid_line(1);
  return 0;
}

static void end_progress(const settings *s) {
  if (!s->run.is_quiet && isatty(STDERR_FILENO)) fprintf(cli_err(), "\r\033[K");
  cli_set_mid_line(0);
}

/* ---- results ---- */

static int print_restore_json(const settings *s, const char *in, const char *out, const krait_restore_info *i) {
  (void)s;
  json_t *report = json_pack(
      "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:I, s:I, s:s}", "frames",
      (json_int_t)i->n_frames, "from_width", (json_int_t)i->from_width, "from_height", (json_int_t)i->from_height,
      "width", (json_int_t)i->width, "height", (json_int_t)i->height, "cropped_width", (json_int_t)i->cropped_width,
      "cropped_height", (json_int_t)i->cropped_height, "fps", cli_json_real(i->fps), "batches", (int)i->n_batches,
      "resumed", (int)i->n_resumed, "encode_s", cli_json_real(i->stage_s[0]), "sample_s", cli_json_real(i->stage_s[1]),
      "decode_s", cli_json_real(i->stage_s[2]), "seconds", cli_json_real(i->seconds), "device_bytes",
      (json_int_t)i->device_bytes, "host_bytes", (json_int_t)i->host_bytes, "note", i->note);
  if (report) cli_json_set_name(report, "path", in), cli_json_set_name(report, "output", out);
  return cli_print_json("restore", report, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0;
}

static void print_restore_notes(const char *in, const char *out, const krait_restore_info *i) {
  FILE *err = cli_err();
  if (i->note[0]) fprintf(err, "%s: %s\n", in, i->note);
  if (i->cropped_width || i->cropped_height)
    fprintf(err, "%s: %lld columns and %lld rows at the edges are cut off (--pad keeps them)\n", in,
            (long long)i->cropped_width, (long long)i->cropped_height);
  fprintf(err,
          "%s -> %s: %lld frame%s, %lld x %lld -> %lld x %lld, in %.1f s (encoder %.1f, transformer %.1f, decoder "
          "%.1f); memory: %.2f GiB, on the host %.2f GiB for frames\n",
          in, out, (long long)i->n_frames, i->n_frames == 1 ? "" : "s", (long long)i->from_width,
          (long long)i->from_height, (long long)i->width, (long long)i->height, i->seconds, i->stage_s[0],
          i->stage_s[1], i->stage_s[2], (double)i->device_bytes / (1 << 30), (double)i->host_bytes / (1 << 30));
}

/* ---- files ---- */

static int has_ending(const char *name, int n, const char *const *endings) {
  const char *dot = strrchr(name, '.');
  for (int i = 0; dot && i < n; i++)
    if (strcasecmp(dot + 1, endings[i]) == 0) return 1;
  return 0;
}
static int is_picture_name(const char *name) {
  static const char *const endings[] = {"png", "jpg", "jpeg", "bmp", "webp", "tif", "tiff"};
  return has_ending(name, 7, endings);
}
static int is_film_name(const char *name) {
  static const char *const endings[] = {"mp4", "m4v", "mov", "mkv", "webm", "avi", "flv", "mpg", "mpeg"};
  return has_ending(name, 9, endings);
}

/* NAME_restored.mp4 or .png: beside the file, or in a folder. */
static void name_result(const char *in, const char *folder, char *out) {
  const char *slash = strrchr(in, '/'), *name = slash ? slash + 1 : in, *dot = strrchr(name, '.');
  const int stem = (int)(dot && dot > name ? dot - name : (ptrdiff_t)strlen(name));
  const char *end = is_picture_name(in) ? ".png" : dot && strcasecmp(dot, ".mkv") == 0 ? ".mkv" : ".mp4";
  const int n = folder ? (int)strlen(folder) : 0, has_slash = n > 0 && folder[n - 1] == '/';
  if (folder) snprintf(out, PATH_BYTES, "%.*s/%.*s%s", n - has_slash, folder, stem, name, end);
  else snprintf(out, PATH_BYTES, "%.*s%.*s_restored%s", slash ? (int)(slash - in + 1) : 0, in, stem, name, end);
}

static int is_folder(const char *path) {
  struct stat st;
  return path && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int has_many_files(int n, char *const *files) { return n > 1 || is_folder(files[0]); }

/* Whether PATH is a folder that is there or, for several files and with a '/' at its end, one that can be made. */
static int names_folder(const char *path, int has_many) {
  const size_t n = strlen(path);
  const int may_be = (has_many && !is_film_name(path) && !is_picture_name(path)) || (n && path[n - 1] == '/');
  struct stat st;
  return is_folder(path) || (may_be && stat(path, &st) != 0);
}

/* Of numbered pictures the first stands for all. */
static int check_result(const cli_outputs_rule *rule, const char *in, const char *out) {
  const char *at = is_picture_name(out) && !is_picture_name(in) ? strchr(out, '%') : NULL;
  const size_t digits = at ? strspn(at + 1, "0123456789") : 0;
  char first[PATH_BYTES];
  if (!at || at[1 + digits] != 'd') return cli_output_check(rule, in, out);
  snprintf(first, sizeof first, "%.*s%0*d%s", (int)(at - out), out, at[1] == '0' ? atoi(at + 1) : 1, 1,
           at + 2 + digits);
  return cli_output_check(rule, in, first);
}

/* Exit status. */
static int restore_one(settings *s, const char *in, const char *out) {
  krait_restore_info info = {.size = sizeof info};
  const char *const read_too[] = {s->models.dit_path, s->models.vae_path};
  cli_outputs_rule rule = {.verb = "restore", .read_too = read_too, .n_read_too = 2, .model = s->models.path,
                           .write_too = s->o.plot_path, .force = s->force};
  int exit_status = check_result(&rule, in, out);
  if (exit_status < 0 && s->o.plot_path) {
    rule.write_too = NULL;
    exit_status = cli_output_check(&rule, in, s->o.plot_path);
  }
  if (exit_status >= 0) return exit_status;
  cli_let_interrupt_ask(); /* the check has caught the signal */
  s->start_s = cli_now_s(), s->shown_s = 0, s->plan_shown = 0;
  const int32_t status = krait_restorer_file(s->restorer, in, out, &s->o, &info);
  end_progress(s);
  if (status == KRAIT_ERR_CANCELLED) {
    fprintf(cli_err(), "krait restore: %s\n", krait_error_detail());
    return 130;
  }
  if (status < 0) return cli_report_call("restore", status, krait_error_detail());
  if (!s->run.is_quiet) print_restore_notes(in, out, &info);
  return s->as_json ? print_restore_json(s, in, out, &info) : 0;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Films and pictures of a folder, in order of their names; other files are left. */
static int restore_folder(settings *s, const char *folder) {
  char *names[MOST_FILES], in[PATH_BYTES], out[PATH_BYTES];
  int n = 0, exit_status = 0;
  DIR *dir = opendir(folder);
  if (!dir) return cli_usage_error("restore", "cannot read the folder %s", folder);
  for (struct dirent *entry; (entry = readdir(dir)) && n < MOST_FILES;)
    if (is_picture_name(entry->d_name) || is_film_name(entry->d_name)) names[n++] = strdup(entry->d_name);
  closedir(dir);
  if (n == MOST_FILES) {
    for (int i = 0; i < n; i++) free(names[i]);
    return cli_usage_error("restore", "%s has %d films and pictures or more; give them in several folders", folder,
                           MOST_FILES);
  }
  qsort(names, (size_t)n, sizeof *names, compare_names);
  for (int i = 0; i < n; i++) {
    snprintf(in, sizeof in, "%s/%s", folder, names[i] ? names[i] : "");
    name_result(in, s->out, out);
    const int one = exit_status == 130 ? 130 : restore_one(s, in, out);
    exit_status = one > exit_status ? one : exit_status;
    free(names[i]);
  }
  if (n == 0) return cli_usage_error("restore", "the folder %s has no film and no picture", folder);
  return exit_status;
}

/* 0, or an exit status. */
static int make_results_folder(const settings *s, int n, char *const *files) {
  if (!s->out || is_folder(s->out) || !names_folder(s->out, has_many_files(n, files))) return 0;
  return mkdir(s->out, 0777) == 0
             ? 0
             : cli_usage_error("restore", "cannot create the folder %s: %s", s->out, strerror(errno));
}

static int run_restore(settings *s, int n, char *const *files) {
  krait_ctx *ctx = NULL;
  char out[PATH_BYTES];
  int exit_status = cli_run_open_ctx("restore", &s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  const int32_t status = krait_restorer_open(ctx, &s->models, &s->restorer);
  exit_status = status < 0 ? cli_report("restore", status) + 1 : make_results_folder(s, n, files);
  for (int i = 0, opened = !exit_status; i < n && opened && exit_status != 130; i++) {
    int one;
    if (is_folder(files[i])) one = restore_folder(s, files[i]);
    else {
      const int names_it = s->out && !is_folder(s->out);
      name_result(files[i], s->out, out);
      one = restore_one(s, files[i], names_it ? s->out : out);
    }
    exit_status = one > exit_status ? one : exit_status;
  }
  krait_restorer_close(&s->restorer);
  krait_ctx_close(&ctx);
  return exit_status;
}

/* ---- options ---- */

static int parse_precision(settings *s) {
  if (!s->precision || strcmp(s->precision, "bf16") == 0) return -1;
  if (strcmp(s->precision, "fp32") != 0)
    return cli_usage_error("restore", "--precision is '%s', not bf16 or fp32", s->precision);
  s->models.precision = KRAIT_PRECISION_FP32;
  return -1;
}

static int parse_size(settings *s) {
  long long width, height;
  char rest;
  if (!s->size) return -1;
  if (sscanf(s->size, "%lldx%lld%c", &width, &height, &rest) != 2 || width < 1 || height < 1)
    return cli_usage_error("restore", "--res is '%s', must be WIDTHxHEIGHT, both above 0", s->size);
  if (s->o.shorter) return cli_usage_error("restore", "--res and --short are two ways to give the size; give one");
  s->o.width = width, s->o.height = height;
  return -1;
}

static int check_settings(settings *s, int n, char *const *files) {
  const int has_many = has_many_files(n, files);
  if (!s->models.path)
    return cli_usage_error("restore", "--weights is missing: give the folder with SeedVR's files (docs/RESTORE.md)");
  if (s->o.plot_path && has_many)
    return cli_usage_error("restore", "--plot draws one film or picture; give one");
  if (s->o.plot_path && cli_png_check("restore", "plot", s->o.plot_path) >= 0) return 2;
  if (s->out && has_many && !names_folder(s->out, 1))
    return cli_usage_error("restore", "several files need a folder for the results: --output %s is none", s->out);
  s->o.size = sizeof s->o, s->o.seed = (uint64_t)s->seed, s->o.quality = (int32_t)s->quality;
  s->o.colour = s->colour, s->o.is_padded = s->is_padded, s->o.is_ten_bits = s->is_ten_bits;
  s->o.is_hevc = s->is_hevc, s->o.keep = s->keep, s->o.resume = s->resume;
  s->o.progress = show_restore_progress, s->o.user = s;
  return parse_size(s);
}

int cmd_restore(int argc, char **argv) {
  int first;
  settings s = {.models.size = sizeof s.models, .seed = 666};
  const cli_option options[] = {
      CLI_TEXT("weights", 'w', "DIR", &s.models.path,
               "folder with SeedVR's transformer, autoencoder, pos_emb.pt and neg_emb.pt"),
      CLI_TEXT("dit", 0, "FILE", &s.models.dit_path, "the transformer, if the folder has several"),
      CLI_TEXT("vae", 0, "FILE", &s.models.vae_path, "the autoencoder, if the folder has several"),
      CLI_TEXT("output", 'o', "PATH", &s.out,
               "the result: .mp4, .mov, .mkv, for a picture .png; a folder; or numbered pictures: frames/%05d.png "
               "(default: IN_restored.mp4 or .png)"),
      CLI_TEXT("res", 0, "WxH", &s.size, "the result's area, in the film's own shape (default: 1280x720)"),
      CLI_WHOLE("short", 0, "N", &s.o.shorter, 1, 16384, "or the result's shorter side"),
      CLI_WHOLE("long", 0, "N", &s.o.longest, 1, 16384, "with --short: limit of the longer side"),
      CLI_SWITCH("pad", 0, &s.is_padded, "black borders up to a multiple of 16, cut off afterwards, instead of a crop"),
      CLI_WHOLE("frames-per-batch", 0, "N", &s.o.frames_per_batch, 1, 65536,
                "frames restored together, 4 n + 1 (default: 21, or fewer, so that the host needs at most 4 GiB)"),
      CLI_WHOLE("overlap", 0, "K", &s.o.overlap, 0, 65535, "frames shared by two batches, blended (default: 0)"),
      CLI_WHOLE("tile", 0, "N", &s.o.tile, 16, 16384,
                "frames go through the autoencoder in tiles of so many pixels, blended: less memory, another result"),
      CLI_WHOLE("tile-overlap", 0, "N", &s.o.tile_overlap, 1, 16384,
                "pixels shared by two tiles (default: 128, or half a tile)"),
      CLI_TEXT("colour", 0, "NAME", &s.colour, "colours from the film: wavelet, adain, lab or none (default: wavelet)"),
      CLI_WHOLE("seed", 0, "N", &s.seed, 0, 9007199254740992.0, "seed of the noise (default: 666)"),
      CLI_WHOLE("steps", 0, "N", &s.o.steps, 1, 1000, "sampling steps (default: 1 for SeedVR2, 50 for SeedVR)"),
      CLI_REAL("scale", 0, "X", &s.o.scale, 0.001, 100, "guidance (default: 1 for SeedVR2, 6.5 for SeedVR)"),
      CLI_REAL("rescale", 0, "X", &s.o.rescale, 0, 1, "rescaling of the guidance (default: 0)"),
      CLI_WHOLE("quality", 0, "N", &s.quality, 1, 51,
                "rate factor of the film's encoder, smaller is better (default: 14)"),
      CLI_SWITCH("hevc", 0, &s.is_hevc, "H.265 instead of H.264"),
      CLI_SWITCH("ten-bit", 0, &s.is_ten_bits, "10 bits a colour"),
      CLI_TEXT("plot", 0, "PNG", &s.o.plot_path, "plot the frame in the middle, before and after"),
      CLI_SWITCH("keep", 0, &s.keep, "after Ctrl-C, keep the film of the frames that are done"),
      CLI_SWITCH("resume", 0, &s.resume,
                 "keep finished batches beside the result until it is complete, and go on from them"),
      CLI_SWITCH("force", 'f', &s.force, "replace results that exist"),
      CLI_TEXT("precision", 0, "P", &s.precision, "on a GPU: bf16, as published (default from 8.0 on), or fp32"),
      CLI_TEXT("memory", 0, "SIZE", &s.memory,
               "use at most so much of the device's memory, such as 11G (default: what is free)"),
      CLI_SWITCH("json", 0, &s.as_json, "print a JSON object for each file"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {"restore",
                         "IN...",
                         "Restores films and pictures, or all of a folder, with SeedVR or SeedVR2. Sound and subtitles "
                         "are copied. Needs the programs ffmpeg and ffprobe.",
                         options,
                         CLI_N(options),
                         1,
                         -1,
                         "krait restore old.mp4 -w SeedVR2-3B -o restored.mp4"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  exit_status = parse_precision(&s);
  if (exit_status < 0) exit_status = cli_parse_bytes(verb.name, "memory", s.memory, &s.models.memory_bytes);
  if (exit_status < 0) exit_status = check_settings(&s, argc - first, argv + first);
  if (exit_status >= 0) return exit_status;
  cli_catch_signals(verb.name, "");
  return run_restore(&s, argc - first, argv + first);
}
