/* cmd_devices.c: krait devices: the GPUs of this machine and what runs on them. */
#include <jansson.h>
#include <stdio.h>

#include <krait/doctor.h>

#include "args.h"
#include "cmd.h"
#include "output.h"

static json_t *device_json(const krait_device_info *d) {
  char tiers[128], capability[16], driver[16], ptx[16];
  krait_caps_format(d->caps, tiers, sizeof tiers);
  snprintf(capability, sizeof capability, "%d.%d", d->major, d->minor);
  snprintf(driver, sizeof driver, "%d.%d", d->driver_version / 1000, d->driver_version % 1000 / 10);
  snprintf(ptx, sizeof ptx, "%d.%d", d->ptx_version / 10, d->ptx_version % 10);
  return json_pack("{s:i, s:s, s:s, s:i, s:I, s:I, s:s, s:s, s:s}", "index", d->index, "name", d->name, "capability",
                   capability, "multiprocessors", d->n_multiprocessors, "memory_bytes", (json_int_t)d->memory_bytes,
                   "l2_bytes", (json_int_t)d->l2_bytes, "driver_cuda", driver, "driver_ptx", ptx, "tiers", tiers);
}

static void print_device(const krait_device_info *d) {
  char tiers[128];
  krait_caps_format(d->caps, tiers, sizeof tiers);
  printf(
      "cuda:%d  %s, compute capability %d.%d, %d multiprocessors, %.1f GiB, driver for CUDA %d.%d (PTX %d.%d), tiers: "
      "%s\n",
      d->index, d->name, d->major, d->minor, d->n_multiprocessors, (double)d->memory_bytes / (1 << 30),
      d->driver_version / 1000, d->driver_version % 1000 / 10, d->ptx_version / 10, d->ptx_version % 10,
      tiers[0] ? tiers : "none");
  printf("        %s%s\n", d->caps ? "uses " : "is not used: ", krait_doctor_tier(d->caps));
}

int cmd_devices(int argc, char **argv) {
  int as_json = 0, first;
  int32_t n = 0;
  const cli_option options[] = {CLI_SWITCH("json", 0, &as_json, "print JSON")};
  const cli_verb verb = {"devices",
                         "",
                         "Lists the GPUs of this machine, or says why none is usable. The CPU is always usable.",
                         options,
                         CLI_N(options),
                         0,
                         0,
                         "krait devices --json"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  int32_t status = krait_device_count(&n);
  json_t *list = json_array();
  for (int32_t i = 0; i < n && status >= 0; i++) {
    krait_device_info d = {.size = sizeof d};
    if ((status = krait_device_read(i, &d)) < 0) break;
    if (!as_json) print_device(&d);
    else if (json_array_append_new(list, device_json(&d)) != 0)
      return json_decref(list), cli_print_json(verb.name, NULL, 0);
  }
  json_t *report = as_json ? json_pack("{s:o, s:o}", "devices", list, "why_none",
                                       cli_json_text(status < 0 ? krait_error_detail() : ""))
                           : list;
  if (!as_json) json_decref(report);
  else if (cli_print_json(verb.name, report, JSON_INDENT(2)) != 0) return 1;
  if (!as_json && status < 0) printf("no usable GPU: %s\n", krait_error_detail());
  return status < 0 ? 1 : 0;
}
