/* cmd_selftest.c: krait selftest: checks every implementation of every operator against the reference on this machine.
 */
#include <jansson.h>
#include <stdio.h>

#include "args.h"
#include "cmd.h"
#include "output.h"

typedef struct outcome {
  int as_json;
  int64_t n_lines, n_runs, n_failures, n_lost; /* n_lost: lines lost because JSON ran out of memory */
  json_t *lines;
} outcome;

static void take_line(void *user, const krait_selftest_line *line) {
  outcome *o = user;
  o->n_lines++;
  o->n_runs += line->n_runs;
  o->n_failures += line->n_failures;
  if (o->as_json) {
    o->n_lost +=
        json_array_append_new(
            o->lines, json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "op", line->op, "implementation", line->impl,
                                "runs", (json_int_t)line->n_runs, "refused", (json_int_t)line->n_refused, "failures",
                                (json_int_t)line->n_failures, "worst", cli_json_real(line->worst), "first_failure",
                                cli_json_text(line->first_failure))) != 0;
    return;
  }
  printf("%-28s %-14s %6lld runs %6lld refused  worst %5.2f of the bound  %s\n", line->op, line->impl,
         (long long)line->n_runs, (long long)line->n_refused, line->worst, line->n_failures ? "WRONG" : "ok");
  if (line->n_failures) printf("    %lld failures, the first: %s\n", (long long)line->n_failures, line->first_failure);
  fflush(stdout);
}

int cmd_selftest(int argc, char **argv) {
  int first;
  const char *name = NULL, *tier = NULL;
  uint64_t mask;
  int64_t n_cases = 0, seed = 1;
  int32_t device;
  outcome o = {0};
  const cli_option options[] = {
      CLI_TEXT("device", 0, "DEVICE", &name, "cpu, cuda, cuda:N or auto: the CPU and every GPU (default)"),
      CLI_WHOLE("cases", 0, "N", &n_cases, 0, 1e6,
                "random calls per operator (default: enough to take about a minute)"),
      CLI_WHOLE("seed", 0, "N", &seed, 0, 1e15, "seed of the random calls"), CLI_TIER_OPTION(&tier),
      CLI_SWITCH("json", 0, &o.as_json, "print JSON, for a bug report")};
  const cli_verb verb = {"selftest",
                         "",
                         "Compares every implementation of every operator with its reference, on this machine's CPU "
                         "and GPUs. Exit status 1 if a result is wrong.",
                         options,
                         CLI_N(options),
                         0,
                         0,
                         "krait selftest --device cpu --cases 20"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  if (cli_device_parse(name, &device) != 0)
    return cli_usage_error("selftest", "--device is '%s', not auto, cpu, cuda or cuda:N", name);
  if ((exit_status = cli_mask_parse("selftest", NULL, tier, &mask)) >= 0) return exit_status;
  if (device != KRAIT_DEVICE_CPU && (exit_status = cli_tier_check("selftest", tier, device)) >= 0) return exit_status;
  o.lines = json_array();
  int32_t status = krait_selftest_with(device, mask, n_cases, (uint64_t)seed, take_line, &o);
  json_t *report =
      json_pack("{s:s, s:o, s:b, s:o}", "version", krait_version(), "implementations", o.lines, "ok",
                status >= 0 && o.n_failures == 0, "error", cli_json_text(status < 0 ? krait_error_detail() : ""));
  if (o.n_lost > 0) json_decref(report), report = NULL;
  if (o.as_json && cli_print_json("selftest", report, JSON_INDENT(2)) != 0) return 1;
  if (!o.as_json) json_decref(report);
  if (status < 0) return cli_report("selftest", status);
  if (!o.as_json)
    printf("%s: %lld implementations, %lld runs, %lld failures\n", o.n_failures ? "WRONG NUMBERS" : "all right",
           (long long)o.n_lines, (long long)o.n_runs, (long long)o.n_failures);
  return o.n_failures ? 1 : 0;
}
