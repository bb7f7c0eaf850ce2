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
  const kr_option options[] = {
      KR_SWITCH("force", 'f', &force, "replace OUT.safetensors where it exists"),
      KR_TEXT("config", 0, "YAML", &config, "the model's configuration: plain, conf/model/NAME.yaml or a run's .hydra/config.yaml"),
      KR_TEXT("set", 0, "K=V,...", &overrides, "single values that win over --config and the file's metadata; model=NAME names the model"),
      KR_TEXT("quantize", 0, "FORMAT", &quantize, "of a language model (IN may be its folder): large matrices in 8 bits a weight, q8_0, or 4, q4_k"),
  };
  const kr_verb verb = {"convert", "IN OUT.safetensors",
                        "Writes the tensors of a safetensors file or of what torch.save wrote (best.th, checkpoint.th, *.pt) as safetensors, with the "
                        "configuration in its metadata. Nothing in the input is executed.",
                        options, KR_N(options), 2, 2};
  int first, exit_status = kr_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  const kr_outputs_rule rule = {.verb = verb.name, .read_too = &config, .n_read_too = 1, .force = force};
  if ((exit_status = kr_output_check(&rule, argv[first], argv[first + 1])) >= 0) return exit_status;
  kr_catch_signals(verb.name);
  if (quantize && (config || overrides)) return kr_usage_error(verb.name, "--quantize takes the configuration beside the weights; leave --config and --set out");
  int32_t status = quantize ? krait_lm_quantize(argv[first], argv[first + 1], quantize) : krait_weights_convert(argv[first], argv[first + 1], config, overrides);
  return status < 0 ? kr_report(verb.name, status) : 0;
}
