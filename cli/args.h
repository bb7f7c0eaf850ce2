/* args.h: how every verb reads its command line, based on getopt_long: a table of options that is also the help text.
 *
 *   const cli_option options[] = {CLI_TEXT("output", 'o', "FILE", &out, "write here"), CLI_SWITCH("json", 0, &json,
 *     "print JSON")};
 *   const cli_verb verb = {"convert", "IN OUT.safetensors", "Converts weights.", options, CLI_N(options), 2, 2,
 *     "krait convert a.th b.safetensors"};
 *   int first, status = cli_args_read(&verb, argc, argv, &first);
 *   if (status >= 0) return status;             the operands are argv[first] ... argv[argc - 1]
 */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <krait/krait.h>

#define CLI_N(array) (int)(sizeof(array) / sizeof *(array))

typedef struct cli_option {
  const char *name;  /* "weights" for --weights */
  char letter;       /* 'o' for -o, or 0 */
  const char *value; /* the value's name in the help, NULL for a switch */
  const char *help;
  int *is_set; /* exactly one of these four is not NULL; the value stays unchanged when the option is not given */
  const char **text;
  int64_t *whole;
  double *real;
  double low, high;  /* range of whole and real */
} cli_option;

#define CLI_SWITCH(name, letter, target, help) {name, letter, NULL, help, target, NULL, NULL, NULL, 0, 0}
#define CLI_TEXT(name, letter, value, target, help) {name, letter, value, help, NULL, target, NULL, NULL, 0, 0}
#define CLI_WHOLE(name, letter, value, target, low, high, help) \
  {name, letter, value, help, NULL, NULL, target, NULL, low, high}
#define CLI_REAL(name, letter, value, target, low, high, help) \
  {name, letter, value, help, NULL, NULL, NULL, target, low, high}

typedef struct cli_verb {
  const char *name, *operands, *summary; /* "enhance", "IN... [-o OUT]", one or more sentences */
  const cli_option *options;
  int n_options;
  int min_operands, max_operands; /* max -1: any number */
  const char *example;            /* a whole command, for the help */
} cli_verb;

/* argv[0] is the verb's name; options and operands may be mixed, "--" ends options. -1: continue; otherwise the exit
 * status (0 after --help on standard output, 2 after a line on standard error). */
int cli_args_read(const cli_verb *verb, int argc, char **argv, int *first_operand);

/* Where and how to compute, for every verb that computes: put CLI_RUN_OPTIONS(&run) into its table. */
typedef struct cli_run {
  const char *device, *tier, *caps; /* NULL: automatic, the best, all */
  int64_t n_threads;                /* 0: every core */
  int no_fallback, is_quiet, is_verbose;
} cli_run;
#define CLI_RUN_OPTIONS(run)                                                                                \
  CLI_TEXT("device", 0, "DEVICE", &(run)->device, "auto, cpu, cuda or cuda:N (default: auto)"),             \
      CLI_WHOLE("threads", 0, "N", &(run)->n_threads, 0, 4096, "threads on the CPU (default: every core)"), \
      CLI_TEXT("caps", 0, "LIST", &(run)->caps,                                                             \
               "use only these capabilities, or all except -NAME (krait info lists them)"),                 \
      CLI_TIER_OPTION(&(run)->tier),                                                                        \
      CLI_SWITCH("no-fallback", 0, &(run)->no_fallback,                                                     \
                 "fail instead of falling back to a slower device, tier or implementation"),                           \
      CLI_SWITCH("quiet", 'q', &(run)->is_quiet, "print results and errors, but no progress, notes or rates"), \
      CLI_SWITCH("verbose", 'v', &(run)->is_verbose,                                                        \
                 "say on standard error which device computes, and how (KRAIT_VERBOSE=1: every operator call)")
/* For verbs that choose a device themselves. */
#define CLI_TIER_OPTION(tier)       \
  CLI_TEXT("tier", 0, "NAME", tier, \
           "on a GPU: use device code up to this tier: base, turing, ampere or hopper (default: the best for the "  \
           "device)")
/* -1: *mask is what both texts (NULL: all) allow, 0 if neither is given; otherwise the exit status 2. */
int cli_mask_parse(const char *verb, const char *caps, const char *tier, uint64_t *mask);
/* -1: the device supports the tier (NULL: any); otherwise the exit status 2 after one line on standard error. */
int cli_tier_check(const char *verb, const char *tier, int32_t device);
/* 0: *device is a KRAIT_DEVICE_*; NULL is automatic. */
int cli_device_parse(const char *text, int32_t *device);
/* -1: *ctx is open; otherwise the exit status 2 after one line on standard error. */
int cli_run_open_ctx(const char *verb, const cli_run *run, krait_ctx **ctx);

/* For verbs that run models. -1: *precision is a KRAIT_PRECISION_*, untouched where text is NULL; otherwise the exit
 * status 2. */
#define CLI_PRECISION_OPTION(text, default_text) \
  CLI_TEXT("precision", 0, "P", text,            \
           "matrix products on a GPU: tf32 (tensor cores, if any) or fp32 (default: " default_text ")")
int cli_precision_parse(const char *verb, const char *text, uint32_t *precision);

/* Likewise, for verbs that clean speech. */
#define CLI_BAND_OPTION(text)                                                                                      \
  CLI_TEXT(                                                                                                        \
      "band", 0, "WIDTH", text,                                                                                    \
      "whole (the default): what lies above 8 kHz is kept, as loud as the model leaves what is below; 16k: it is " \
      "dropped")
int cli_band_parse(const char *verb, const char *text, int32_t *is_narrow);

/* One line on standard error: the verb, the library's last error, its remedy. Returns the exit status 1. */
int cli_report(const char *verb, int32_t status);
int cli_report_detail(const char *verb, int32_t status, const char *detail); /* for an error of another thread */
/* The same for a call that got what the user wrote (a prompt, a question): 2 if that is what was wrong. */
int cli_report_call(const char *verb, int32_t status, const char *detail);
/* Of several names that may be meant by one that is not known, the nearest. Start with {.written = word}, offer each;
 * meant is NULL if none is near enough. */
typedef struct cli_guess {
  const char *written, *meant;
  int32_t slips;
} cli_guess;
void cli_guess_offer(cli_guess *guess, const char *name);
/* A size of memory, such as 11G or 11500M; NULL is 0. Returns -1, or reports it and returns the exit status. */
int cli_parse_bytes(const char *verb, const char *option, const char *text, uint64_t *bytes);
/* One line on standard error: the verb and the given text. Returns the exit status 2. */
int cli_usage_error(const char *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
