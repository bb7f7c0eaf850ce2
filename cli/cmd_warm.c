/* cmd_warm.c: krait warm: has the GPU's driver translate device code before it is needed. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "args.h"
#include "cmd.h"
#include "output.h"
#include "warm.h"

static int is_folder_or_gguf(const char *path) {
  struct stat info;
  char config[4096];
  const size_t n = strlen(path);
  if (n > 5 && strcmp(path + n - 5, ".gguf") == 0) return 1;
  return snprintf(config, sizeof config, "%s/config.json", path) < (int)sizeof config && stat(config, &info) == 0;
}

static int report_cache(void) {
  static kr_warm_cache c;
  kr_warm_find_cache(&c);
  if (c.why[0]) {
    fprintf(cli_err(), "krait warm: nothing is kept: %s; set CUDA_CACHE_PATH to a folder that lasts\n", c.why);
    return 1;
  }
  printf("%s: %.1f MB\n", c.path, (double)c.used_bytes * 1e-6);
  if (c.most_bytes >= 0 && c.used_bytes > c.most_bytes / 10 * 9)
    fprintf(cli_err(),
            "krait warm: CUDA_CACHE_MAXSIZE is %.1f MB, so that the driver drops what does not fit; raise it\n",
            (double)c.most_bytes * 1e-6);
  return 0;
}

int cmd_warm(int argc, char **argv) {
  int first;
  const char *model = NULL;
  cli_run run = {.device = "cuda"};
  const cli_option options[] = {
      CLI_TEXT("for", 0, "MODEL", &model,
               "only what this model launches: a language model's folder or GGUF file, a denoiser's weights, or "
               "'builtin' (default: all device code, which takes longer)"),
      CLI_RUN_OPTIONS(&run)};
  const cli_verb verb = {"warm",
                         "",
                         "Has the GPU's driver translate device code into its cache on disk, so that first runs need "
                         "not wait, and says where the cache lies: CUDA_CACHE_PATH, else .nv/ComputeCache in the home "
                         "folder. Exit status 1 if it cannot keep anything.",
                         options,
                         CLI_N(options),
                         0,
                         0,
                         "krait warm --for mamba-130m-hf"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  krait_ctx *ctx = NULL;
  exit_status = cli_run_open_ctx(verb.name, &run, &ctx);
  if (exit_status >= 0) return exit_status;
  const int32_t status = !model                    ? kr_warm_all(ctx)
                         : is_folder_or_gguf(model) ? kr_warm_language(ctx, model)
                                                    : kr_warm_denoiser(ctx, model);
  krait_ctx_close(&ctx);
  if (status < 0) {
    fprintf(cli_err(), "krait warm: %s\n", krait_error_detail());
    return 1;
  }
  return report_cache();
}
