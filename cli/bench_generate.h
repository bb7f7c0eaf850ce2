/* bench_generate.h: what krait bench generate and describe time. */
#ifndef CLI_BENCH_GENERATE_H
#define CLI_BENCH_GENERATE_H

#include "args.h"

typedef struct cli_bench_generate {
  const char *model;
  int32_t dtype;
  int64_t batch, n_prompt, n_tokens;
  int as_json, by_kernel, narrow_states;
} cli_bench_generate;

int cli_bench_generate_run(const cli_run *run, const cli_bench_generate *bench); /* the exit status */
int cli_bench_describe_run(const cli_run *run, int32_t dtype, int64_t n_tokens, int as_json);

#endif
