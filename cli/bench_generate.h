/* bench_generate.h: what krait bench generate and describe time. */
#ifndef KR_BENCH_GENERATE_H
#define KR_BENCH_GENERATE_H

#include "args.h"

typedef struct kr_bench_generate {
  const char *model;
  int32_t dtype;
  int64_t batch, n_prompt, n_tokens;
  int as_json, by_kernel, narrow_states;
} kr_bench_generate;

int kr_bench_generate_run(const kr_run *run, const kr_bench_generate *bench); /* the exit status */
int kr_bench_describe_run(const kr_run *run, int32_t dtype, int64_t n_tokens, int as_json);

#endif
