/* cmd_doctor.c: krait doctor: explains why a CUDA library, wheel or environment does not run, and how to fix it. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <krait/doctor.h>

#include "args.h"
#include "cmd.h"
#include "output.h"

enum { EXIT_USAGE = 64, EXIT_INTERNAL = 70, MAX_LOG_BYTES = 8 << 20, MAPPED_BYTES = 4 << 20 };
static const long long MAX_READ_BYTES = 4ll << 30;

typedef struct doctor_args {
  krait_doctor_options options;
  const char *log, *explain, *list;
  int json, all, deep, strict, no_color, plan, issue;
} doctor_args;

/* A pipe without a writer must not block us; a device has no end. */
static int open_log(const char *path) {
  struct stat info;
  const int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0 && fstat(fd, &info) == 0 &&
      (S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode) || isatty(fd))) {
    if (strcmp(path, "-") != 0) fcntl(fd, F_SETFL, 0);
    return fd;
  }
  const int os_errno = fd < 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
  if (fd >= 0) close(fd);
  cli_usage_error("doctor", "cannot read the log %s: %s", path, os_errno ? strerror(os_errno) : "a device has no end");
  return -1;
}

/* The error is at the end of a long text: when the buffer is full, its older half is dropped. NULL after a line on
 * standard error. */
static const char *read_log(const char *path, size_t *n) {
  static char text[MAX_LOG_BYTES];
  long long total = 0;
  const int fd = open_log(path);
  *n = 0;
  for (ssize_t got = 1; fd >= 0 && got != 0;) {
    if (*n == sizeof text) memmove(text, text + sizeof text / 2, *n = sizeof text / 2);
    got = read(fd, text + *n, sizeof text - *n);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cli_usage_error("doctor", "cannot read the log %s: %s", path, strerror(errno));
    else if ((total += got) > MAX_READ_BYTES)
      cli_usage_error("doctor", "the log %s is larger than %d GiB; give only its end", path,
                      (int)(MAX_READ_BYTES >> 30));
    if (got < 0 || total > MAX_READ_BYTES) return close(fd), NULL;
    *n += (size_t)got;
  }
  if (fd >= 0) close(fd);
  return fd >= 0 ? text : NULL;
}

static int show_doctor(const char *text, krait_report **report, int status) {
  fputs(text, stdout); /* main reports failures of standard output */
  krait_report_close(report);
  return status;
}

static int fail(int32_t status) {
  cli_report("doctor", status);
  return status == KRAIT_ERR_ARGUMENT                                  ? EXIT_USAGE
         : status <= KRAIT_ERR_FILE_OPEN && status >= KRAIT_ERR_UNSAFE ? 3
                                                                       : EXIT_INTERNAL;
}

static int explain(const doctor_args *args) {
  krait_report *report;
  const char *text;
  int32_t status = krait_doctor_explain(args->options.tables, strcmp(args->explain, "list") == 0 ? "" : args->explain,
                                        &report, &text);
  return status < 0 ? fail(status) : show_doctor(text, &report, 0);
}

static int list(const doctor_args *args) {
  krait_report *report;
  const char *text;
  int32_t status =
      args->json ? krait_doctor_list_json(args->list, &report, &text) : krait_doctor_list(args->list, &report, &text);
  return status < 0 ? fail(status) : show_doctor(text, &report, 0);
}

static int diagnose(doctor_args *args) {
  krait_report *report;
  if (args->log && !(args->options.log = read_log(args->log, &args->options.log_bytes))) return 3;
  args->options.log_name = args->log && strcmp(args->log, "-") != 0 ? args->log : NULL;
  args->options.all = args->all;
  args->options.deep = args->deep;
  int32_t status = krait_doctor_run(&args->options, &report);
  if (status < 0) return fail(status);
  int code = krait_report_exit(report, args->strict);
  const char *text = args->json    ? krait_report_json(report, args->strict)
                     : args->plan  ? krait_report_plan(report)
                     : args->issue ? krait_report_issue(report)
                                   : krait_report_text(report, !args->no_color && isatty(1), args->strict);
  if (!*text) {
    krait_report_close(&report);
    cli_report_detail("doctor", KRAIT_ERR_NO_MEMORY, "out of memory for the report");
    return EXIT_INTERNAL;
  }
  if (!args->json) return show_doctor(text, &report, code);
  cli_print_json_text(stdout, text);
  putchar('\n');
  krait_report_close(&report);
  return code;
}

int cmd_doctor(int argc, char **argv) {
  doctor_args args = {.options = {.size = sizeof args.options}};
  krait_doctor_options *o = &args.options;
  const cli_option options[] = {
      CLI_TEXT("gpu", 0, "NAME|CC", &o->gpu, "judge for this GPU: \"RTX 5090\", 12.0 (default: this machine's)"),
      CLI_TEXT("driver", 0, "VERSION", &o->driver, "judge for this driver: 570.86"),
      CLI_TEXT("torch", 0, "VERSION", &o->torch, "judge for this torch: 2.8.0+cu128"),
      CLI_TEXT("machine", 0, "NAME", &o->machine,
               "judge for this processor: x86_64, aarch64 (default: the GPU's or this machine's)"),
      CLI_TEXT("python", 0, "VERSION", &o->python, "judge for this Python: 3.11"),
      CLI_TEXT("glibc", 0, "VERSION", &o->glibc, "judge for this C library: 2.35"),
      CLI_TEXT("log", 0, "FILE", &args.log,
               "a file with the text of an error, - for standard input; may be combined with PATH"),
      CLI_SWITCH("fix-plan", 0, &args.plan, "print only the commands that fix it, in order"),
      CLI_SWITCH("issue", 0, &args.issue, "print a summary for a bug report, without paths or user names"),
      CLI_SWITCH("json", 0, &args.json, "print the report as JSON (docs/doctor.schema.json)"),
      CLI_SWITCH("all", 0, &args.all, "also show what is fine or suppressed"),
      CLI_SWITCH("deep", 0, &args.deep, "also search other sections for GPU code, and check every hash"),
      CLI_SWITCH("strict", 0, &args.strict, "exit 2 if there are only warnings"),
      CLI_TEXT("root", 0, "DIR", &o->root, "read the facts about the machine below DIR"),
      CLI_TEXT("tables", 0, "FILE", &o->tables, "use these tables instead of the built-in ones"),
      CLI_TEXT("explain", 0, "ID", &args.explain, "explain the rule behind a diagnosis; 'list' lists all rules"),
      CLI_TEXT("list", 0, "FILE", &args.list, "list the GPU images and kernels in a file"),
      CLI_SWITCH("no-color", 0, &args.no_color, "no colours"),
  };
  const cli_verb verb = {
      "doctor",
      "[PATH...]",
      "Explains why a CUDA library, wheel or environment does not run, from its bytes, without a GPU or a toolkit. "
      "PATH: a .so, .whl, .tar.gz, .conda, .tar.bz2, .fatbin, .cubin, .ptx or .a file, a folder, a requirements.txt or "
      "pyproject.toml; default: this environment. Exit status: 0 no problem, 1 an error, 2 only warnings (--strict), 3 "
      "unreadable or damaged input, 4 GPU unknown, 64 usage error.",
      options,
      CLI_N(options),
      0,
      -1,
      "krait doctor mamba_ssm-2.2.whl --gpu \"RTX 5090\""};
  int first, status = cli_args_read(&verb, argc, argv, &first);
  if (status >= 0) return status == 2 ? EXIT_USAGE : status;
  if (args.explain) return explain(&args);
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES); /* return freed memory to the system; otherwise each thread that unpacks a
                                              wheel keeps its largest block */
#endif
  if (args.list) return list(&args);
  o->paths = (const char *const *)argv + first;
  o->n_paths = (uint32_t)(argc - first);
  return diagnose(&args);
}
