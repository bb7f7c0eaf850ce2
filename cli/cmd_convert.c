/* cmd_convert.c: krait convert. */
#include <string.h>
#include <sys/stat.h>

#include <krait/language.h>
#include <krait/enhance.h>

#include "args.h"
#include "cmd.h"
#include "inputs.h"

/* The name selects the format, so an unknown extension is an error. An existing file that is not a regular one (a pipe)
 * gets safetensors. */
static int check_name(const char *out, int is_safetensors_only) {
  static const char *const endings[] = {".safetensors", ".th", ".pt", ".pth"};
  const char *slash = strrchr(out, '/'), *dot = strrchr(slash ? slash : out, '.');
  const int n = is_safetensors_only ? 1 : CLI_N(endings);
  struct stat info;
  if (stat(out, &info) == 0 && !S_ISREG(info.st_mode)) return -1;
  for (int i = 0; dot && i < n; i++)
    if (strcmp(dot, endings[i]) == 0) return -1;
  return cli_usage_error("convert", "%s: the extension selects the format; use .safetensors%s", out,
                         is_safetensors_only ? "" : ", or .th, .pt or .pth for torch.load");
}

int cmd_convert(int argc, char **argv) {
  const char *config = NULL, *overrides = NULL, *quantize = NULL;
  int force = 0;
  const cli_option options[] = {
      CLI_SWITCH("force", 'f', &force, "replace OUT if it exists"),
      CLI_TEXT("config", 0, "YAML", &config,
               "the model's configuration: plain YAML, conf/model/NAME.yaml or a run's .hydra/config.yaml"),
      CLI_TEXT("set", 0, "K=V,...", &overrides,
               "override single values of --config and of the file's metadata; model=NAME sets the model"),
      CLI_TEXT("quantize", 0, "FORMAT", &quantize,
               "language models (IN may be the folder): quantize the large matrices to 8 bits (q8_0) or 4 bits (q4_k)"),
  };
  const cli_verb verb = {"convert",
                         "IN OUT.safetensors | OUT.th",
                         "Converts a safetensors or torch.save file (best.th, checkpoint.th, *.pt) to safetensors with "
                         "the configuration in its metadata, or, if OUT ends in .th, .pt or .pth, to the layout of "
                         "upstream's best.th for torch.load. IN may be 'builtin' or 'streaming', the program's own "
                         "weights. Nothing in the input is executed.",
                         options,
                         CLI_N(options),
                         2,
                         2,
                         "krait convert best.th model.safetensors --config .hydra/config.yaml"};
  int first, exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  const cli_outputs_rule rule = {.verb = verb.name,
                                 .read_too = &config,
                                 .n_read_too = 1,
                                 .model = quantize ? argv[first] : NULL,
                                 .force = force};
  if ((exit_status = check_name(argv[first + 1], quantize != NULL)) >= 0) return exit_status;
  if ((exit_status = cli_output_check(&rule, argv[first], argv[first + 1])) >= 0) return exit_status;
  if (quantize && (config || overrides))
    return cli_usage_error(verb.name, "--quantize uses the configuration beside the weights; omit --config and --set");
  int32_t status = quantize ? krait_lm_quantize(argv[first], argv[first + 1], quantize)
                            : krait_weights_convert(argv[first], argv[first + 1], config, overrides);
  return status < 0 ? cli_report_call(verb.name, status, krait_error_detail()) : 0;
}
