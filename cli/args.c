/* args.c: getopt_long driven by a verb's table; help, numbers with ranges, one-line errors. */
#include "args.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <krait/enhance.h>

#include "distance.h"
#include "interrupt.h"
#include "output.h"

enum { MAX_OPTIONS = 48, FIRST_LONG = 256, HELP = 'h', WIDTH = 80, HELP_COLUMN = 26 };

int cli_parse_bytes(const char *verb, const char *option, const char *text, uint64_t *bytes) {
  char *end = NULL;
  *bytes = 0;
  if (!text) return -1;
  const double n = strtod(text, &end);
  const int is_size = (*end == 'M' || *end == 'G') && !end[1] && n > 0 && n <= 1e6;
  if (!is_size) return cli_usage_error(verb, "--%s is '%s', must be a size such as 11G or 11500M", option, text);
  *bytes = (uint64_t)(n * (*end == 'G' ? 1 << 30 : 1 << 20));
  return -1;
}

int cli_usage_error(const char *verb, const char *format, ...) {
  char text[4096];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  fprintf(cli_err(), "krait %s: %s; see krait %s --help\n", verb, cli_clean(text), verb);
  return 2;
}

void cli_guess_offer(cli_guess *guess, const char *name) {
  const int32_t slips = kr_text_distance(guess->written, name);
  if (slips == INT32_MAX || (guess->meant && slips >= guess->slips)) return;
  guess->meant = name, guess->slips = slips;
}

int cli_report(const char *verb, int32_t status) { return cli_report_detail(verb, status, krait_error_detail()); }

/* The remedy, unless the detail already gives one after a ';'. Advice for callers of the C library does not help
 * here. */
static const char *cure_of(int32_t status, const char *detail) {
  const int is_of_a_call = status == KRAIT_ERR_ARGUMENT || status == KRAIT_ERR_SHAPE;
  return is_of_a_call || strchr(detail, ';') ? "" : krait_status_cure(status);
}

int cli_report_detail(const char *verb, int32_t status, const char *detail) {
  char text[2048];
  const char *cure = cure_of(status, detail);
  if (cli_is_stopped()) return 1; /* the signal handler has already printed its line */
  snprintf(text, sizeof text, "krait %s: %s%s%s%s", verb, *detail ? detail : krait_status_text(status),
           *cure ? " (" : "", cure, *cure ? ")" : "");
  fprintf(cli_err(), "%s\n", cli_clean(text));
  return 1;
}

int cli_report_call(const char *verb, int32_t status, const char *detail) {
  const int exit_status = cli_report_detail(verb, status, detail);
  return status == KRAIT_ERR_ARGUMENT && !cli_is_stopped() ? exit_status + 1 : exit_status;
}

/* ---- help ------------------------------------------------------------------------------------------------------- */

/* Prints text word-wrapped from this column on; continuation lines are indented to it. */
static void print_wrapped(const char *text, int column) {
  int at = column;
  while (*text) {
    int length = (int)strcspn(text, " ");
    if (at > column && at + 1 + length > WIDTH) at = printf("\n%*s", column, "") - 1;
    else if (at > column) at += printf(" ");
    at += printf("%.*s", length, text);
    text += length + (text[length] == ' ');
  }
  printf("\n");
}

static void print_option(char letter, const char *name, const char *value, const char *help) {
  char head[96], letters[8] = "    ";
  if (letter) snprintf(letters, sizeof letters, "-%c, ", letter);
  int used = snprintf(head, sizeof head, "  %s--%s%s%s", letters, name, value ? " " : "", value ? value : "");
  printf("%s", head);
  if (used >= HELP_COLUMN) printf("\n%*s", HELP_COLUMN, "");
  else printf("%*s", HELP_COLUMN - used, "");
  print_wrapped(help, HELP_COLUMN);
}

static void print_args_help(const cli_verb *verb) {
  printf("usage: krait %s%s%s%s\n\n", verb->name, *verb->operands ? " " : "", verb->operands,
         verb->n_options ? " [options]" : "");
  print_wrapped(verb->summary, 0);
  printf("\n");
  for (int i = 0; i < verb->n_options; i++) {
    const cli_option *o = &verb->options[i];
    print_option(o->letter, o->name, o->value, o->help);
  }
  print_option(HELP, "help", NULL, "print this and stop");
  printf("\nExample: %s\n", verb->example);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static int read_number(const cli_verb *verb, const cli_option *option, const char *text) {
  char *end = NULL;
  errno = 0;
  long long whole = option->whole ? strtoll(text, &end, 10) : 0;
  double value = option->whole ? (double)whole : strtod(text, &end);
  if (end == text || *end || errno || !(value >= option->low && value <= option->high))
    return cli_usage_error(verb->name, "--%s is '%s', not a %s from %.10g to %.10g", option->name, text,
                          option->whole ? "whole number" : "number", option->low, option->high);
  if (option->whole) *option->whole = whole;
  else *option->real = value;
  return -1;
}

static int take_value(const cli_verb *verb, const cli_option *option, const char *text) {
  if (option->is_set) *option->is_set = 1;
  else if (option->text) *option->text = text;
  else return read_number(verb, option, text);
  return -1;
}

/* ---- getopt ----------------------------------------------------------------------------------------------------- */

typedef struct cli_getopt {
  struct option longs[MAX_OPTIONS + 2];
  char shorts[2 * MAX_OPTIONS + 4];
} cli_getopt;

static void make_tables(const cli_verb *verb, cli_getopt *tables) {
  char *s = tables->shorts;
  *s++ = ':'; /* a missing value returns ':' instead of printing getopt's own message */
  *s++ = HELP;
  for (int i = 0; i < verb->n_options; i++) {
    const cli_option *o = &verb->options[i];
    tables->longs[i] = (struct option){o->name, o->value ? required_argument : no_argument, NULL, FIRST_LONG + i};
    if (!o->letter) continue;
    *s++ = o->letter;
    if (o->value) *s++ = ':';
  }
  *s = 0;
  tables->longs[verb->n_options] = (struct option){"help", no_argument, NULL, HELP};
  tables->longs[verb->n_options + 1] = (struct option){0};
}

static const cli_option *find_option(const cli_verb *verb, int code) {
  if (code >= FIRST_LONG) return &verb->options[code - FIRST_LONG];
  for (int i = 0; i < verb->n_options; i++)
    if (verb->options[i].letter == code) return &verb->options[i];
  return NULL;
}

static int check_args_operands(const cli_verb *verb, int n) {
  if (n < verb->min_operands)
    return cli_usage_error(verb->name, "%s is missing; usage: krait %s %s", n ? "an operand" : "the operand",
                           verb->name, verb->operands);
  if (verb->max_operands == 0 && n > 0)
    return cli_usage_error(verb->name, "%d operand%s given, but it takes none", n, n > 1 ? "s" : "");
  if (verb->max_operands >= 0 && n > verb->max_operands)
    return cli_usage_error(verb->name, "%d operands given, at most %d allowed", n, verb->max_operands);
  return -1;
}

/* The option that the word names on its own, or NULL. */
static const cli_option *option_of(const cli_verb *verb, const char *word) {
  for (int i = 0; i < verb->n_options; i++) {
    const cli_option *o = &verb->options[i];
    const int is_letter = word[0] == '-' && word[1] && word[1] == o->letter && !word[2];
    if (is_letter || (strncmp(word, "--", 2) == 0 && strcmp(o->name, word + 2) == 0)) return o;
  }
  return NULL;
}

/* A file whose name begins like an option, as '*' may expand to, would be taken apart into letters: '-foo.wav' is -f
 * and -o oo.wav. */
static int check_file_names(const cli_verb *verb, int argc, char **argv) {
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    const char *word = argv[i];
    const cli_option *before = option_of(verb, argv[i - 1]);
    const int is_value = before && before->value;
    if (word[0] == '-' && strlen(word) > 2 && !is_value && !option_of(verb, word) && access(word, F_OK) == 0)
      return cli_usage_error(verb->name, "for the file '%s' write ./%s, or -- before it", word, word);
  }
  return -1;
}

static int refuse_option(const cli_verb *verb, const char *word) {
  char name[64];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
  cli_guess guess = {.written = name};
  for (int i = 0; i < verb->n_options; i++) cli_guess_offer(&guess, verb->options[i].name);
  if (guess.meant && guess.slips > 0)
    return cli_usage_error(verb->name, "option '%s' is unknown (did you mean --%s?)", word, guess.meant);
  return cli_usage_error(verb->name, "option '%s' is unknown, ambiguous, or takes no value", word);
}

int cli_args_read(const cli_verb *verb, int argc, char **argv, int *first_operand) {
  cli_getopt tables;
  if (verb->n_options > MAX_OPTIONS)
    return cli_usage_error(verb->name, "more than %d options in the table", MAX_OPTIONS);
  make_tables(verb, &tables);
  const int is_file = check_file_names(verb, argc, argv);
  if (is_file >= 0) return is_file;
  opterr = 0;
  optind = 0; /* restart the scan */
  for (int code; (code = getopt_long(argc, argv, tables.shorts, tables.longs, NULL)) != -1;) {
    const char *word = argv[optind - 1];
    if (code == ':') return cli_usage_error(verb->name, "option '%s' needs a value", word);
    if (code == HELP) return print_args_help(verb), 0;
    const cli_option *option = find_option(verb, code);
    if (!option && optopt && optopt < FIRST_LONG)
      return cli_usage_error(verb->name, "unknown option '-%c'", optopt);
    if (!option) return refuse_option(verb, word);
    int status = take_value(verb, option, optarg);
    if (status >= 0) return status;
  }
  *first_operand = optind;
  return check_args_operands(verb, argc - optind);
}

/* ---- where to compute ------------------------------------------------------------------------------------------- */

int cli_device_parse(const char *text, int32_t *device) {
  char *end;
  *device = KRAIT_DEVICE_AUTO;
  if (!text || strcmp(text, "auto") == 0) return 0;
  *device = strcmp(text, "cpu") == 0 ? KRAIT_DEVICE_CPU : KRAIT_DEVICE_CUDA(0);
  if (*device == KRAIT_DEVICE_CPU || strcmp(text, "cuda") == 0) return 0;
  if (strncmp(text, "cuda:", 5) != 0 || text[5] < '0' || text[5] > '9') return -1;
  long index = strtol(text + 5, &end, 10);
  *device = KRAIT_DEVICE_CUDA((int32_t)index);
  return *end || index > 1023 ? -1 : 0;
}

int cli_mask_parse(const char *verb, const char *caps, const char *tier, uint64_t *mask) {
  uint64_t by_caps = KRAIT_CAPS_ALL, by_tier = KRAIT_CAPS_ALL;
  int32_t status = caps ? krait_caps_parse(caps, &by_caps) : KRAIT_OK;
  if (status == KRAIT_OK && tier) status = krait_tier_parse(tier, &by_tier);
  *mask = caps || tier ? by_caps & by_tier : 0;
  return status < 0 ? cli_report(verb, status) + 1 : -1;
}

/* Without this check, the rest of the mask would silently be used without the requested tier. */
int cli_tier_check(const char *verb, const char *tier, int32_t device) {
  krait_ctx_options options = {.size = sizeof options, .device = device, .fallback = KRAIT_FALLBACK_NEVER};
  krait_ctx *ctx = NULL;
  char name[32];
  if (!tier) return -1;
  snprintf(name, sizeof name, "cuda_%s", tier);
  int32_t status = krait_caps_parse(name, &options.caps_mask);
  if (status == KRAIT_OK) status = krait_ctx_open(&options, &ctx);
  krait_ctx_close(&ctx);
  return status < 0 ? cli_report(verb, status) + 1 : -1;
}

static void say_where(const char *verb, const krait_ctx *ctx) {
  char device[32] = "cpu", caps[256];
  const int32_t index = krait_ctx_device(ctx);
  if (index != KRAIT_DEVICE_CPU) snprintf(device, sizeof device, "cuda:%d", index - KRAIT_DEVICE_CUDA(0));
  krait_caps_format(krait_ctx_caps(ctx), caps, sizeof caps);
  fprintf(cli_err(), "krait %s: krait %s on %s (%s), %d threads\n", verb, krait_version(), device, caps,
          krait_ctx_n_threads(ctx));
}

int cli_run_open_ctx(const char *verb, const cli_run *run, krait_ctx **ctx) {
  krait_ctx_options options = {.size = sizeof options,
                               .n_threads = (int32_t)run->n_threads,
                               .fallback = run->no_fallback ? KRAIT_FALLBACK_NEVER : KRAIT_FALLBACK_DEFAULT};
  if (cli_device_parse(run->device, &options.device) != 0)
    return cli_usage_error(verb, "--device is '%s', not auto, cpu, cuda or cuda:N", run->device);
  int exit_status = cli_mask_parse(verb, run->caps, run->tier, &options.caps_mask);
  if (exit_status >= 0) return exit_status;
  if (run->tier && options.device == KRAIT_DEVICE_AUTO)
    options.device = KRAIT_DEVICE_CUDA(0); /* the CPU has no tiers */
  if (options.device != KRAIT_DEVICE_CPU && (exit_status = cli_tier_check(verb, run->tier, options.device)) >= 0)
    return exit_status;
  int32_t status = krait_ctx_open(&options, ctx);
  if (status < 0) return cli_report(verb, status) + 1;
  cli_set_quiet(run->is_quiet);
  if (run->is_verbose) say_where(verb, *ctx);
  return -1;
}

int cli_band_parse(const char *verb, const char *text, int32_t *is_narrow) {
  *is_narrow = text && strcmp(text, "16k") == 0;
  return !text || *is_narrow || strcmp(text, "whole") == 0
             ? -1
             : cli_usage_error(verb, "--band is %s, not whole or 16k", text);
}

int cli_precision_parse(const char *verb, const char *text, uint32_t *precision) {
  if (!text) return -1;
  if (strcmp(text, "fp32") == 0) *precision = KRAIT_PRECISION_FP32;
  else if (strcmp(text, "tf32") == 0) *precision = KRAIT_PRECISION_TF32;
  else return cli_usage_error(verb, "--precision is '%s', not fp32 or tf32", text);
  return -1;
}
