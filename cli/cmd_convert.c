/* cmd_convert.c: krait convert. */
#include <krait/language.h>
#include <krait/model.h>

#include "args.h"
#include "cmd.h"
#include "inputs.h"
#include "interrupt.h"

int cmd_convert(int argc, char **argv) {
  const char *config = NULL, *overrides = NULL, *quantize = NULL;
  int force = 0;
  const cli_option options[] = {
      CLI_SWITCH("force", 'f', &force, "replace OUT where it exists"),
      CLI_TEXT("config", 0, "YAML", &config,
               "the model's configuration: plain, conf/model/NAME.yaml or a run's .hydra/config.yaml"),
      CLI_TEXT("set", 0, "K=V,...", &overrides,
               "single values that win over --config and the file's metadata; model=NAME names the model"),
      CLI_TEXT("quantize", 0, "FORMAT", &quantize,
               "of a language model (IN may be its folder): large matrices in 8 bits a weight, q8_0, or 4, q4_k"),
  };
  const cli_verb verb = {"convert",
                         "IN OUT.safetensors | OUT.th",
                         "Writes the tensors of a safetensors file or of what torch.save wrote (best.th, "
                         "checkpoint.th, *.pt) as safetensors, with the "
                         "configuration in its metadata, or back as upstream's best.th. Nothing in the input is "
                         "executed.",
                         options,
                         CLI_N(options),
                         2,
                         2};
  int first, exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  const cli_outputs_rule rule = {.verb = verb.name, .read_too = &config, .n_read_too = 1, .force = force};
  if ((exit_status = cli_output_check(&rule, argv[first], argv[first + 1])) >= 0) return exit_status;
  cli_catch_signals(verb.name);
  if (quantize && (config || overrides))
    return cli_usage_error(verb.name,
                           "--quantize takes the configuration beside the weights; leave --config and --set out");
  int32_t status = quantize ? krait_lm_quantize(argv[first], argv[first + 1], quantize)
                            : krait_weights_convert(argv[first], argv[first + 1], config, overrides);
  return status < 0 ? cli_report(verb.name, status) : 0;
}
