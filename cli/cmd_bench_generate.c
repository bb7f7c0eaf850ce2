/* cmd_bench_generate.c: krait bench generate and describe: prefill and decode with random weights of a published
 * model's sizes, compared with memory bandwidth. */
#include <jansson.h>
#include <stdio.h>

#include <krait/bench.h>

#include "bench_generate.h"
#include "model_time.h"
#include "output.h"

static int print_bench_generate_json(const krait_ctx *ctx, const cli_bench_generate *b, const kr_lm_timing *t,
                      const krait_limits *l) {
  return cli_print_json(
      "bench",
      json_pack("{s:s, s:I, s:I, s:I, s:i, s:o, s:o, s:o, s:o, s:I, s:o}", "model", b->model, "batch",
                (json_int_t)b->batch, "prompt_tokens", (json_int_t)b->n_prompt, "tokens", (json_int_t)b->n_tokens,
                "threads", krait_ctx_n_threads(ctx), "open_s", cli_json_real(t->open_s), "prompt_s",
                cli_json_real(t->prompt_s), "token_s", cli_json_real(t->token_s), "step_s", cli_json_real(t->step_s),
                "token_bytes", (json_int_t)t->token_bytes, "copy_bytes_per_s", cli_json_real(l->copy_bytes_per_s)),
      JSON_INDENT(2));
}

static int print_bench_generate_text(const cli_bench_generate *b, const kr_lm_timing *t, const krait_limits *l) {
  const double bytes_per_s = (double)t->token_bytes / t->step_s;
  printf("generate: random weights of %s, %s, %lld sequence%s\n", b->model,
         b->dtype == KRAIT_Q8_0  ? "q8_0"
         : b->dtype == KRAIT_Q4_K ? "q4_k"
                                : krait_dtype_name(b->dtype),
         (long long)b->batch, b->batch == 1 ? "" : "s");
  printf("  prompt of %-6lld %9.3f ms   %10.0f tokens/s\n", (long long)b->n_prompt, t->prompt_s * 1e3,
         (double)b->n_prompt / t->prompt_s);
  printf("  a token          %9.3f ms   %10.0f tokens/s, with argmax on the host\n", t->token_s * 1e3,
         (double)b->batch / t->token_s);
  printf("  a step           %9.3f ms   %10.2f GB/s of weights, %.1f %% of a copy's %.2f\n", t->step_s * 1e3,
         bytes_per_s * 1e-9, 100 * bytes_per_s / l->copy_bytes_per_s, l->copy_bytes_per_s * 1e-9);
  return 0;
}

static void print_kind(void *user, const char *run, const char *name, const char *op, const char *impl, int64_t n_calls,
                       double seconds) {
  (void)user;
  printf("  %-6s %-14s %-20s %-28s %4lld calls %10.1f us\n", run, name, op, impl, (long long)n_calls, seconds * 1e6);
}

int cli_bench_generate_run(const cli_run *run, const cli_bench_generate *b) {
  krait_ctx *ctx = NULL;
  kr_lm_timing t = {.size = sizeof t, .narrow_states = b->narrow_states};
  krait_limits limits = {.size = sizeof limits};
  int exit_status = cli_run_open_ctx("bench", run, &ctx);
  if (exit_status >= 0) return exit_status;
  int32_t status = kr_lm_measure(ctx, b->model, b->dtype, b->batch, b->n_prompt, b->n_tokens, &t);
  if (status >= 0) status = krait_measure_limits(ctx, &limits);
  exit_status = status < 0   ? cli_report("bench", status) + 1
                : b->as_json ? print_bench_generate_json(ctx, b, &t, &limits)
                             : print_bench_generate_text(b, &t, &limits);
  if (status >= 0 && b->by_kernel)
    status =
        kr_lm_measure_kernels(ctx, b->model, b->dtype, b->batch, b->n_prompt, b->narrow_states, print_kind, NULL);
  if (status < 0 && exit_status == 0) exit_status = cli_report("bench", status) + 1;
  krait_ctx_close(&ctx);
  return exit_status;
}

/* ---- describe ---- */

static int print_describe(int32_t dtype, const kr_describer_timing *t) {
  printf("describe: random weights of Mobile-VideoGPT-0.5B, %s, %.2f GB of weights\n", krait_dtype_name(dtype),
         (double)t->bytes * 1e-9);
  printf("  frames to rows   %9.3f ms   both towers and projectors, for 16 decoded frames\n", t->encode_s * 1e3);
  printf("  prompt of %-6d %9.3f ms\n", t->n_prompt, t->prefill_s * 1e3);
  printf("  first token      %9.3f ms\n", (t->encode_s + t->prefill_s) * 1e3);
  printf("  a token          %9.3f ms   %10.0f tokens/s\n", t->token_s * 1e3, 1 / t->token_s);
  return 0;
}

static int print_describe_json(const kr_describer_timing *t) {
  return cli_print_json(
      "bench",
      json_pack("{s:i, s:o, s:o, s:o, s:o, s:I}", "prompt_tokens", t->n_prompt, "open_s", cli_json_real(t->open_s),
                "encode_s", cli_json_real(t->encode_s), "prompt_s", cli_json_real(t->prefill_s), "token_s",
                cli_json_real(t->token_s), "weight_bytes", (json_int_t)t->bytes),
      JSON_INDENT(2));
}

int cli_bench_describe_run(const cli_run *run, int32_t dtype, int64_t n_tokens, int as_json) {
  krait_ctx *ctx = NULL;
  kr_describer_timing t = {.size = sizeof t};
  int exit_status = cli_run_open_ctx("bench", run, &ctx);
  if (exit_status >= 0) return exit_status;
  const int32_t status = kr_describer_measure(ctx, dtype, n_tokens, &t);
  exit_status = status < 0 ? cli_report("bench", status) + 1
                : as_json  ? print_describe_json(&t)
                           : print_describe(dtype, &t);
  krait_ctx_close(&ctx);
  return exit_status;
}
