/* emulated.c: the base and turing tiers' kernels, those only in the ampere tier, and hopper's of attention, SSD and
 * mamba_decode on the host, launched as on a GPU, against the reference: under AddressSanitizer and UBSan, threads run
 * forwards, backwards and at random, bytes between a tensor's elements poisoned. Then the harness itself: planted
 * faults, and barriers removed from the real kernels, must be found. Usage: emulated LIBRARY OP (KR_CHECK_IMPL: only
 * one implementation) or planted. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc.h"
#include "case.h"
#include "cuda.h"
#include "emulated_impls.h"
#include "emulator/emulator.h"
#include "emulator/planted_op.h"
#include "half.h"
#include "all_ops.h"
#include "overlap.h"
#include "status.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, bytes) ((void)(start), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(start, bytes) ((void)(start), (void)(bytes))
#endif

static const char *const order_names[] = {"forwards", "backwards", "random"};
/* ---- an implementation on host memory, poisoned outside its tensors ---------------------------------------------- */

static void poison_gaps(const kr_case *c, const kr_case_tensor *t) {
  const kr_view *view = (const kr_view *)(c->args + t->view_offset);
  const size_t element = krait_dtype_bytes(view->dtype), bytes = (size_t)t->n_storage * element;
  if ((unsigned char *)view->data < t->storage || (unsigned char *)view->data >= t->storage + bytes)
    return; /* another tensor's storage: in place */
  unsigned char *owned = calloc(bytes, 1);
  assert_non_null(owned);
  kr_tensor_walk at = {.n_left = kr_tensor_elements(t)};
  for (; at.n_left; kr_tensor_step(&at, t, view))
    memset(owned + ((unsigned char *)view->data - t->storage) + (size_t)at.offset * element, 1, element);
  for (size_t i = 0, end; i < bytes; i = end) {
    for (end = i; end < bytes && owned[end] == owned[i]; end++) continue;
    if (!owned[i]) ASAN_POISON_MEMORY_REGION(t->storage + i, end - i);
  }
  free(owned);
}

static uint32_t recorded; /* KR_CALL_PDL: calls as of a recording */

static int32_t run_in_place(const krait_ctx *ctx, kr_case *c, const kr_impl *impl) {
  kr_call *call = (kr_call *)c->args;
  call->flags |= recorded;
  call->scratch_bytes = impl->scratch_bytes ? impl->scratch_bytes(ctx, call) : 0;
  call->scratch = call->scratch_bytes ? aligned_alloc(256, (call->scratch_bytes + 255) & ~(uint64_t)255) : NULL;
  if (call->scratch) memset(call->scratch, 0xff, call->scratch_bytes);
  for (int i = 0; i < c->n_tensors; i++) poison_gaps(c, &c->tensors[i]);
  int32_t status = impl->run(ctx, call);
  for (int i = 0; i < c->n_tensors; i++) {
    const kr_case_tensor *t = &c->tensors[i];
    ASAN_UNPOISON_MEMORY_REGION(
        t->storage, (size_t)t->n_storage * krait_dtype_bytes(((const kr_view *)(c->args + t->view_offset))->dtype));
  }
  free(call->scratch);
  call->scratch = NULL;
  return status;
}

/* ---- real ops ---------------------------------------------------------------------------------------------------- */

static uint64_t seed;
static int64_t percent = 100;
/* Shared memory per block of the device: some kernels need several blocks per multiprocessor. The small value is that
 * of compute capabilities 8.6, 8.9 and 12.0, the smallest that of those before 7.0, between them that of 7.5. */
enum { OLD = 61, TURING = 75, LEAST = 49152, OF_TURING = 65536, LITTLE = 101376, MUCH = 232448 };

static int n_multiprocessors = 16, takes_together; /* launches whose blocks wait for each other */

static int capability = 80;

static void fake_device(int shared_bytes) {
  char fake[80];
  snprintf(fake, sizeof fake, "capability=%d,shared=%d,multiprocessors=%d,together=%d", capability, shared_bytes,
           n_multiprocessors, takes_together);
  setenv("KR_FAKE_CUDA", fake, 1);
}

static krait_ctx *open_ctx(void) {
  krait_ctx *ctx = NULL;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

static int is_of_few_rows(const kr_op *op) { return !strcmp(op->name, "gemm_q8") || !strcmp(op->name, "norm_gemm"); }
/* All layers in one launch, whose blocks wait for each other. */
static int is_of_layers(const kr_op *op) { return strstr(op->name, "mamba") && strstr(op->name, "_decode"); }
static int is_step(const kr_op *op) { return strcmp(op->name, "attention_step") == 0; }

static const char *row_of(const kr_op *op) {
  return is_of_layers(op)       ? "hopper_streamed"
         : is_of_few_rows(op)                  ? "ampere_few_rows"
         : is_step(op)                         ? "cuda_hopper"
         : strcmp(op->name, "expert_step") == 0 ? "cuda_ampere"
                                               : "cuda_base";
}

static int has_row(const kr_op *op) {
  for (int32_t i = 0; i < op->n_impls; i++)
    if (strncmp(op->impls[i].name, row_of(op), strlen(row_of(op))) == 0) return 1;
  return 0;
}

/* Rows that are graphs of other operators, tested there. */
static int is_composed(const kr_op *op) { return strstr(op->impls[0].name, "_composed") != NULL; }

static void print_line(void *user, const char *line) { (void)user, print_error("  %s\n", line); }

static double processor_s(void) { /* so that a loaded machine tests as much */
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Random calls from the given one on for the given processor seconds, at least 6 supported by the implementation (3
 * under a sanitizer, one of blocks that wait for each other), at most n_cases. */
static kr_check_result check_op(const krait_ctx *ctx, const kr_op *op, const char *row, int order, int64_t first,
                                double seconds, int64_t n_cases, void (*report)(void *, const char *)) {
  kr_check_result all = {0};
  const double start = processor_s();
  const int64_t least = takes_together ? 1 : percent < 100 ? 3 : 6;
  kr_emulated_order(order);
  for (int64_t k = 0; k < n_cases && (all.n_runs < least || processor_s() - start < seconds); k++) {
    kr_check_options options = {.seed = seed + (uint64_t)order,
                                .first_case = first + k,
                                .n_cases = 1,
                                .impl = row,
                                .report = report,
                                .run_device = run_in_place};
    kr_check_result one;
    assert_int_equal(kr_check_op(ctx, op, &options, &one), KRAIT_OK);
    all.n_cases++, all.n_runs += one.n_runs, all.n_refused += one.n_refused, all.n_failures += one.n_failures;
    if (one.worst > all.worst) all.worst = one.worst;
  }
  return all;
}

/* Each thread order starts at different calls: the first ones are small, and a slow machine gets no further. The
 * scan's call 22 is its first with aligned tensors of the usual sizes. */
enum { SECOND_START = 22 };
static int64_t check_rows(const kr_op *op, const char *const *rows) {
  const int is_least = strncmp(*rows, "cuda_base", 9) == 0, newest = capability;
  int64_t n_failures = 0, n_runs = 0;
  for (int order = 0; order < KR_N_ORDERS; order++) {
    const double start = processor_s();
    if (strcmp(op->name, "selective_scan_bwd") == 0 || strcmp(op->name, "dt_state_update") == 0)
      n_multiprocessors = order == 2 ? 1 : 16; /* small calls then count as large */
    if (strncmp(op->name, "ssd", 3) == 0 && order == 2)
      n_multiprocessors = (int[]){
          16, 3}[seed & 1]; /* time is split if units are fewer than multiprocessors; else states are handed over */
    if (!takes_together && !strncmp(op->name, "mamba3", 6)) n_multiprocessors = order == 2 ? 1 : 3; /* heads suffice */
    if (strncmp(op->name, "attention", 9) == 0)
      n_multiprocessors = order == 2 && (seed & 1) ? 3 : 16; /* blocks then take several tiles each */
    capability = is_least && !order ? OLD : newest;
    recorded = order && strcmp(op->name, "argmax_rows") == 0 ? KR_CALL_PDL : 0;
    const int usual = order || is_step(op) || takes_together ? MUCH : is_least ? LEAST : LITTLE;
    fake_device(capability == TURING ? OF_TURING : usual);
    krait_ctx *ctx = open_ctx();
    const int64_t first = takes_together ? op->n_cases - KR_N_ORDERS + order : order * SECOND_START;
    kr_check_result r = check_op(ctx, op, rows[order], order, first,
                                 (is_composed(op) ? 0.15 : 0.3) * (double)percent / 100, op->n_cases, print_line);
    print_message("  %-24s %-11s threads %-9s %5lld cases: %5lld run, %4lld refused, worst %.2f of the bound, %.1f s\n",
                  op->name, rows[order], order_names[order], (long long)r.n_cases, (long long)r.n_runs,
                  (long long)r.n_refused, r.worst, processor_s() - start);
    n_failures += r.n_failures, n_runs += r.n_runs;
    krait_ctx_close(&ctx);
  }
  assert_int_equal(n_failures, 0);
  return n_runs;
}

#define ALWAYS(name) {name, name, name}
/* Every implementation of the tier, on a device of it. */
static void check_turing(const kr_op *op) {
  const int newest = capability, usual = n_multiprocessors;
  capability = TURING;
  for (int32_t i = 0; i < op->n_impls; i++) {
    const char *const name = op->impls[i].name, *const rows[KR_N_ORDERS] = ALWAYS(name);
    if (strcmp(op->name, "gemm") == 0) n_multiprocessors = 2; /* factors of small products are scaled as well */
    assert_true(!(op->impls[i].needs & KRAIT_CAP_CUDA_TURING) || check_rows(op, rows) > 0);
  }
  capability = newest, n_multiprocessors = usual;
}

static void agrees_with_the_reference(void **state) {
  const kr_op *op = *state;
  if (!kr_cuda_built_tiers() || !has_row(op)) skip();
  static const char *const most[KR_N_ORDERS] = {"cuda_base", "cuda_ampere", "cuda_ampere"}; /* kernels of both */
  static const char *const products[KR_N_ORDERS] = {"cuda_base", "ampere_tiles", "ampere_few_rows"},
                           *const tf32[KR_N_ORDERS] = {"cuda_base", "ampere_tiles_tf32", "ampere_tiles_tf32"},
                           *const parts[KR_N_ORDERS] = {"ampere_tiles_halves", "base_few_rows",
                                                        "ampere_tiles_halves"},
                           *const halves[KR_N_ORDERS] = ALWAYS("hopper_tiles_halves"),
                           *const rounded[KR_N_ORDERS] = ALWAYS("hopper_tiles_tf32");
  static const char *const
      chunks_parts[KR_N_ORDERS] = ALWAYS("ampere_chunks_parts"),
      *const chunks_tf32[KR_N_ORDERS] = ALWAYS("ampere_chunks_tf32"),
      *const chunks[KR_N_ORDERS] = ALWAYS("ampere_chunks"), *const chunks_base[KR_N_ORDERS] = ALWAYS("base_chunks"),
      *const direct[KR_N_ORDERS] = ALWAYS("cuda_hopper"),
      *const tiles_parts[KR_N_ORDERS] = {"ampere_tiles_parts", "ampere_tiles_halves", "ampere_tiles_halves"},
      *const many[KR_N_ORDERS] = ALWAYS("ampere_long_k");
  static const char *const attention[KR_N_ORDERS] = {"cuda_base", "cuda_ampere", "cuda_hopper"};
  static const char *const decode[KR_N_ORDERS] = ALWAYS("hopper_streamed"),
                           *const few[KR_N_ORDERS] = ALWAYS("ampere_few_rows");
  static const char *const units[KR_N_ORDERS] = {"base_64_units", "ampere_64_units", "base_many_units"},
                           *const units_bwd[KR_N_ORDERS] = {"ampere_64_units", "ampere_64_units", "ampere_64_units"},
                           *const banks[KR_N_ORDERS] = {"ampere_half_factors", "ampere_64_channels",
                                                        "base_64_channels"},
                           *const maps[KR_N_ORDERS + 1] = {"ampere_half_factors", "ampere_aligned_rows",
                                                           "base_aligned_rows", "ampere_aligned_rows"},
                           *const thin[KR_N_ORDERS] = {"ampere_few_outputs", "base_few_outputs", "ampere_few_outputs"},
                           *const scans[KR_N_ORDERS] = {"base_16_states", "ampere_aligned_rows", "ampere_16_states"},
                           *const sums[KR_N_ORDERS] = {"cuda_ampere_any_order", "cuda_hopper_any_order",
                                                       "cuda_hopper_any_order"},
                           *const pairs[KR_N_ORDERS] = {"ampere_64_units", "cuda_ampere_composed", "ampere_64_units"};
  static const char *const windows[KR_N_ORDERS] = {"cuda_base", "ampere_tiles", "hopper_boxes"};
  static const char *const little[KR_N_ORDERS] = {"cuda_ampere", "cuda_ampere", "cuda_hopper"};
  const int is_attention = strncmp(op->name, "attention", 9) == 0, is_ssd = strncmp(op->name, "ssd", 3) == 0,
            is_little = is_attention && (seed & 2) && strcmp(op->name, "attention_append") != 0; /* of one tier only */
  const char *const *rows = strcmp(op->name, "gemm") == 0             ? products
                            : is_of_layers(op)                        ? decode
                            : is_of_few_rows(op)                      ? few
                            : is_step(op)                             ? direct
                            : strcmp(op->name, "rnn_pair") == 0       ? pairs
                            : strcmp(op->name, "projected_scan") == 0 ? scans
                            : strcmp(op->name, "filter_bank") == 0    ? banks
                            : strcmp(op->name, "dense_block") == 0    ? banks
                            : strcmp(op->name, "map_product") == 0    ? maps
                            : strcmp(op->name, "conv_norm") == 0      ? maps + 1
                            : strcmp(op->name, "conv3d") == 0         ? windows
                            : is_little                               ? little
                            : is_attention || is_ssd                  ? attention
                                                                      : most;
  const char *const only = getenv("KR_CHECK_IMPL"), *const one[KR_N_ORDERS] = {only, only, only};
  if (only) rows = one;
  if (is_attention || is_ssd || strcmp(op->name, "argmax_rows") == 0 || rows == windows ||
      (only && strstr(only, "hopper")))
    capability = 90;
  if (only && strstr(only, "turing")) capability = TURING;
  if (rows == decode && percent < 100) skip();                                      /* many blocks that wait */
  if (rows == decode) capability = 90, takes_together = 1, n_multiprocessors = 108; /* 48 of 5120 channels a block */
  const int is_scan = strcmp(op->name, "mamba3") == 0 || strcmp(op->name, "mamba3_bwd") == 0;
  kr_emulated_blocks_in_order(is_ssd || is_scan || strcmp(op->name, "rnn_pair") == 0); /* they hand states over */
  if (!only) check_turing(op);
  assert_true(check_rows(op, rows) > 0);
  if (!only && strcmp(op->name, "gated_delta_rule") == 0) assert_true(check_rows(op, chunks) > 0);
  if (rows == products) {
    assert_true(check_rows(op, tf32) > 0 && check_rows(op, many) > 0);
    n_multiprocessors = 2; /* small products are split as well */
    assert_true(check_rows(op, parts) > 0);
    capability = 90;
    assert_true(check_rows(op, halves) > 0);
    n_multiprocessors = 1; /* enough terms for it */
    assert_true(check_rows(op, rounded) > 0);
    capability = 80, n_multiprocessors = 16;
  }
  if (is_ssd && !only) assert_true(check_rows(op, chunks_parts) > 0 && check_rows(op, chunks_tf32) > 0);
  if ((is_ssd || is_scan) && !only) assert_true(check_rows(op, chunks_base) > 0);
  if (is_scan && !only) {
    capability = 90;
    assert_true(check_rows(op, direct) > 0);
    capability = 80;
  }
  if (strcmp(op->name, "rnn") == 0) assert_true(check_rows(op, units) > 0);
  if (rows == decode) capability = 80, takes_together = 0, n_multiprocessors = 16;
  if (rows == maps) assert_true(check_rows(op, thin) > 0);
  const int is_bwd = strcmp(op->name, "attention_bwd") == 0;
  if ((is_bwd || strcmp(op->name, "attention") == 0) && !only) assert_true(check_rows(op, tiles_parts) > 0);
  if (is_bwd && !only) assert_true(check_rows(op, sums) > 0);
  if (strcmp(op->name, "rnn_bwd") == 0) assert_true(check_rows(op, units_bwd) > 0);
}

enum { WITHOUT = 60 /* so many calls that meet no barrier: the kernel has none */ };

/* A barrier whose removal has no effect is either unnecessary or untested. Some are needed only by the next iteration,
 * so of the first four at least one must matter. Not with KR_CHECK_PERCENT: sanitizer builds have the same kernels. */
static void a_barrier_taken_out_is_missed(void **state) {
  const kr_op *op = *state;
  int64_t n_caught = 0, n_before = kr_emulated_skipped();
  if (!kr_cuda_built_tiers() || !has_row(op) || is_composed(op) || percent < 100) skip();
  if (is_of_layers(op)) skip(); /* its blocks would wait for ever */
  krait_ctx *ctx = open_ctx();
  for (int64_t barrier = 0; barrier < 4 && !n_caught && (!barrier || kr_emulated_skipped() > n_before); barrier++)
    for (int order = 0; order < 2 && !n_caught; order++) {
      kr_emulated_skip_barrier(barrier);
      const double start = processor_s();
      for (int64_t k = 0; k < 200 && !n_caught && processor_s() - start < 3; k += 10) {
        if (k == WITHOUT && kr_emulated_skipped() == n_before) break;
        n_caught += check_op(ctx, op, row_of(op), order, k, 0.05, 10, NULL).n_failures;
      }
    }
  kr_emulated_skip_barrier(-1);
  krait_ctx_close(&ctx);
  print_message("  %-24s barriers walked through %lld times, wrong results %lld\n", op->name,
                (long long)(kr_emulated_skipped() - n_before), (long long)n_caught);
  assert_true(n_caught > 0 || kr_emulated_skipped() == n_before);
}

/* ---- planted faults ---------------------------------------------------------------------------------------------- */

/* In a child: its exit status (1: a wrong result) and output. */
static int run_planted(const char *name, int is_cooperative, char *said, size_t said_bytes) {
  int ends[2], status = 0;
  size_t used = 0;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    krait_ctx *ctx = NULL;
    const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
    dup2(ends[1], 2);
    kr_planted_choose(name, is_cooperative);
    if (krait_ctx_open(&options, &ctx) < 0) _exit(2);
    int64_t n = 0;
    for (int order = 0; order < KR_N_ORDERS; order++)
      n += check_op(ctx, &kr_planted_op, "cuda_base", order, 0, 60, 20, NULL).n_failures;
    _exit(n > 0);
  }
  close(ends[1]);
  for (ssize_t n; used + 1 < said_bytes && (n = read(ends[0], said + used, said_bytes - 1 - used)) > 0;)
    used += (size_t)n;
  said[used] = 0;
  close(ends[0]);
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void planted_faults_are_found(void **state) {
  static const struct {
    const char *name, *says;
    int needs_sanitizer, is_cooperative;
  } faults[] = {{"kr_planted_missing_barrier", "", 0, 0},
                {"kr_planted_lucky_order", "", 0, 0},
                {"kr_planted_barrier_for_half", "wait at a block barrier", 0, 0},
                {"kr_planted_read_past_input", "use-after-poison", 1, 0},
                {"kr_planted_write_past_shared", "out of bounds", 1, 0},
                {"kr_planted_write_past_dynamic", "heap-buffer-overflow", 1, 0},
                {"kr_planted_read_past_own", "[32, 64) 'own'", 1, 0},
                {"kr_planted_misaligned", "misaligned address", 1, 0},
                {"kr_planted_misaligned_copy", "copies 16 bytes", 0, 0},
                {"kr_planted_word_forgotten", "in polls", 0, 1},
                {"kr_planted_bytes_not_awaited", "", 0, 1},
                {"kr_planted_static_shared", "static shared memory", 0, 1}};
  static const char *const right[] = {"kr_planted_right", "kr_planted_words", "kr_planted_bytes"};
  static char said[1 << 16];
#if defined(__SANITIZE_ADDRESS__)
  const int sanitized = 1;
#else
  const int sanitized = 0;
#endif
  (void)state;
  for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
    assert_int_equal(run_planted(right[i], i > 0, said, sizeof said), 0);
    assert_string_equal(said, "");
  }
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    if (faults[i].needs_sanitizer && !sanitized) continue;
    const int status = run_planted(faults[i].name, faults[i].is_cooperative, said, sizeof said);
    print_message("  %-32s exit status %d%s%s\n", faults[i].name, status,
                  faults[i].says[0] ? ", says: " : ", wrong results", faults[i].says);
    if (status == 0) fail_msg("%s went unnoticed", faults[i].name);
    if (!strstr(said, faults[i].says)) fail_msg("%s: expected '%s' in: %.400s", faults[i].name, faults[i].says, said);
  }
}

/* ---- indices that the host cannot read --------------------------------------------------------------------------- */

/* One of two steps has a row index out of range: its output is 0 and no state changes; the other one's state is
 * updated. N: 16 states or 5, W: 4 taps or 9. */
static void missing_rows_are_skipped(void **state) {
  enum { D = 3, N = 16, S = 8 };
  static const int32_t bad[] = {1, 7, INT32_MAX, -1, INT32_MIN};
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  krait_ctx *ctx = open_ctx();
  for (size_t k = 0; k < 2 * sizeof bad / sizeof *bad; k++) {
    float *s = malloc(D * N * sizeof *s), *window = malloc(D * S * sizeof *window), ones[2 * D * N], y[2 * D];
    int32_t rows[2] = {bad[k / 2], 0};
    for (int i = 0; i < 2 * D * N; i++) ones[i] = 1;
    for (int i = 0; i < D * N; i++) s[i] = 3;
    for (int i = 0; i < D * S; i++) window[i] = 3;
    const kr_view index = {.data = rows, .stride = {1}, .dtype = KRAIT_I32},
                     x = {.data = ones, .stride = {D, D, 1}, .dtype = KRAIT_F32},
                     out = {.data = y, .stride = {D, D, 1}, .dtype = KRAIT_F32};
    const kr_view steps = {.data = ones, .stride = {D, 1, 1}, .dtype = KRAIT_F32},
                     to = {.data = y, .stride = {D, 1, 1}, .dtype = KRAIT_F32};
    const kr_state_update_args update = {.call = {.size = sizeof update},
                                            .B = 2,
                                            .H = 1,
                                            .P = D,
                                            .N = k % 2 ? 5 : N,
                                            .G = 1,
                                            .n_states = 1,
                                            .state = {s, {D * N, D * N, N, 1}, KRAIT_F32, 0},
                                            .x = x,
                                            .dt = x,
                                            .A = {ones, {D * N, N, 1}, KRAIT_F32, 0},
                                            .Bmat = {ones, {N, N, 1}, KRAIT_F32, 0},
                                            .Cmat = {ones, {N, N, 1}, KRAIT_F32, 0},
                                            .state_batch_indices = index,
                                            .out = out};
    const kr_causal_conv1d_update_args conv = {.call = {.size = sizeof conv},
                                                  .B = 2,
                                                  .D = D,
                                                  .L = 1,
                                                  .W = k % 2 ? 9 : 4,
                                                  .S = S,
                                                  .n_states = 1,
                                                  .x = steps,
                                                  .conv_state = {window, {D * S, S, 1}, KRAIT_F32, 0},
                                                  .weight = {ones, {N, 1}, KRAIT_F32, 0},
                                                  .conv_state_indices = index,
                                                  .out = to};
    memset(y, 0xff, sizeof y);
    assert_int_equal(kr_op_run(&kr_op_state_update, ctx, &update), KRAIT_OK);
    for (int i = 0; i < D; i++) assert_true(y[i] == 0 && y[D + i] > 0 && s[i * N] != 3);
    memset(y, 0xff, sizeof y);
    assert_int_equal(kr_op_run(&kr_op_causal_conv1d_update, ctx, &conv), KRAIT_OK);
    for (int i = 0; i < D; i++)
      assert_true(y[i] == 0 && y[D + i] > 0 && window[i * S + S - 1] == 1 && window[i * S + S - 2] == 3);
    free(s);
    free(window);
  }
  krait_ctx_close(&ctx);
}

/* NaN in a token of the SSD reaches no earlier token and no other sequence, though chunks multiply it by zero; compared
 * with the same call without it. */
static void nan_reaches_no_other_token(void **state) {
  enum { L = 150, H = 2, P = 16, N = 24, WHERE = 70, LAST = 100 };
  static uint16_t x[L * H * P], B[L * N], C[L * N], out[2][L * H * P];
  static float dt[L * H], A[H] = {-0.5f, -2};
  static int32_t sequence[L];
  if (*state != kr_op_find("ssd")) skip();
  fake_device(MUCH);
  krait_ctx *ctx = open_ctx();
  for (int i = 0; i < L * H * P; i++) x[i] = kr_float_to_bf16((float)(i * 37 % 101) / 50 - 1);
  for (int i = 0; i < L * N; i++)
    B[i] = kr_float_to_bf16((float)(i * 29 % 97) / 48 - 1), C[i] = kr_float_to_bf16((float)(i * 53 % 89) / 44 - 1);
  for (int i = 0; i < L; i++) sequence[i] = i >= LAST, dt[i * H] = dt[i * H + 1] = 0.1f;
  kr_ssd_args a = {.call.size = sizeof a, .B = 1, .L = L, .H = H, .P = P, .N = N, .G = 1};
  a.x = (kr_view){x, {L * H * P, H * P, P, 1}, KRAIT_BF16, 0}, a.dt = (kr_view){dt, {L * H, H, 1}, KRAIT_F32, 0},
  a.A = (kr_view){A, {1}, KRAIT_F32, 0};
  a.Bmat = (kr_view){B, {L * N, N, N, 1}, KRAIT_BF16, 0}, a.Cmat = (kr_view){C, {L * N, N, N, 1}, KRAIT_BF16, 0},
  a.seq_idx = (kr_view){sequence, {L, 1}, KRAIT_I32, 0};
  for (int with = 0; with < 2; with++) {
    if (with) x[(WHERE * H + 1) * P + 3] = 0x7fc0;
    a.out = (kr_view){out[with], {L * H * P, H * P, P, 1}, KRAIT_BF16, 0};
    assert_int_equal(kr_op_scratch_bytes(&kr_op_ssd, ctx, &a, &a.call.scratch_bytes), KRAIT_OK);
    a.call.scratch = aligned_alloc(256, (a.call.scratch_bytes + 255) & ~(uint64_t)255);
    assert_non_null(a.call.scratch);
    assert_int_equal(kr_op_run(&kr_op_ssd, ctx, &a), KRAIT_OK);
    free(a.call.scratch);
  }
  for (int i = 0; i < L * H * P; i++) {
    const int token = i / (H * P), spoilt = i % (H * P) == P + 3 && token >= WHERE && token < LAST;
    const float got = kr_bf16_to_float(out[1][i]), want = kr_bf16_to_float(out[0][i]);
    if (spoilt ? !isnan(got) : !(fabsf(got - want) <= 0.02f * (1 + fabsf(want))))
      fail_msg("token %d, channel %d: %g, %g without NaN", token, i % (H * P), (double)got, (double)want);
  }
  krait_ctx_close(&ctx);
}

/* ---- NaN in the SSD's gradient: wherever the equation has it, and in no other sequence ---- */

/* Sequences of 50 tokens; NaN in the second one. */
enum {
  GL = 150,
  GH = 2,
  GP = 16,
  GN = 24,
  FIRST = 50,
  NAN_AT = 70,
  END = 100
};

typedef struct gradient_call {
  uint16_t x[GL * GH * GP], z[GL * GH * GP], dout[GL * GH * GP], B[GL * GN], C[GL * GN], dx[GL * GH * GP],
      dz[GL * GH * GP], dB[GL * GN], dC[GL * GN];
  float dt[GL * GH], A[GH], ddt[GL * GH], dA[GH];
  int32_t sequence[GL];
  kr_ssd_bwd_args args;
} gradient_call;

static kr_view rows_view(void *data, int32_t n, int32_t channels, int32_t dtype) {
  return (kr_view){data, {(int64_t)GL * n * channels, (int64_t)n * channels, channels, 1}, dtype, 0};
}

static void fill(uint16_t *to, int n, int step, int period) {
  for (int i = 0; i < n; i++) to[i] = kr_float_to_bf16((float)(i * step % period) / ((float)period / 2) - 1);
}

static void make_gradient_call(gradient_call *g, int with_gate) {
  fill(g->x, GL * GH * GP, 37, 101), fill(g->z, GL * GH * GP, 41, 103), fill(g->dout, GL * GH * GP, 43, 107),
      fill(g->B, GL * GN, 29, 97), fill(g->C, GL * GN, 53, 89);
  for (int i = 0; i < GL; i++)
    g->sequence[i] = i / FIRST, g->dt[i * GH] = g->dt[i * GH + 1] = 0.1f + 0.01f * (float)(i % 7);
  g->A[0] = -0.5f, g->A[1] = -2;
  g->args = (kr_ssd_bwd_args){.call.size = sizeof g->args, .B = 1, .L = GL, .H = GH, .P = GP, .N = GN, .G = 1};
  kr_ssd_bwd_args *const a = &g->args;
  a->x = rows_view(g->x, GH, GP, KRAIT_BF16), a->dout = rows_view(g->dout, GH, GP, KRAIT_BF16),
  a->dx = rows_view(g->dx, GH, GP, KRAIT_BF16);
  if (with_gate) a->z = rows_view(g->z, GH, GP, KRAIT_BF16), a->dz = rows_view(g->dz, GH, GP, KRAIT_BF16);
  a->Bmat = rows_view(g->B, 1, GN, KRAIT_BF16), a->dB = rows_view(g->dB, 1, GN, KRAIT_BF16),
  a->Cmat = rows_view(g->C, 1, GN, KRAIT_BF16), a->dC = rows_view(g->dC, 1, GN, KRAIT_BF16);
  a->dt = rows_view(g->dt, GH, 1, KRAIT_F32), a->ddt = rows_view(g->ddt, GH, 1, KRAIT_F32);
  a->A = (kr_view){g->A, {1}, KRAIT_F32, 0}, a->dA = (kr_view){g->dA, {1}, KRAIT_F32, 0},
  a->seq_idx = (kr_view){g->sequence, {GL, 1}, KRAIT_I32, 0};
}

static void run_gradient(const krait_ctx *ctx, const kr_impl *impl, gradient_call *g) {
  g->args.call.scratch_bytes = impl->scratch_bytes(ctx, &g->args);
  g->args.call.scratch = aligned_alloc(256, (g->args.call.scratch_bytes + 255) & ~(uint64_t)255);
  assert_non_null(g->args.call.scratch);
  memset(g->args.call.scratch, 0xff, g->args.call.scratch_bytes);
  assert_int_equal(impl->run(ctx, &g->args), KRAIT_OK);
  free(g->args.call.scratch);
}

static double element(const kr_view *v, int i) {
  return v->dtype == KRAIT_F32 ? (double)((const float *)v->data)[i]
                               : (double)kr_bf16_to_float(((const uint16_t *)v->data)[i]);
}

/* n elements per token. Skips the sequence's first token in ddt: its previous state is 0, times NaN, or absent. */
static void compare_tokens(const char *row, const char *planted, const char *name, const kr_view *got,
                           const kr_view *want, int n, double scale) {
  for (int i = 0; i < GL * n; i++) {
    const double g = element(got, i), w = element(want, i);
    if (i / n == FIRST && strcmp(name, "ddt") == 0) continue;
    if (isnan(w) ? !isnan(g) : !(fabs(g - w) <= 0.03 * (scale + fabs(w))))
      fail_msg("%s, NaN in %s: %s of token %d, element %d: %g, the reference has %g", row, planted, name, i / n, i % n,
               g, w);
  }
}

static void compare_gradients(const char *row, const char *planted, const gradient_call *got,
                              const gradient_call *want) {
  compare_tokens(row, planted, "dx", &got->args.dx, &want->args.dx, GH * GP, 1);
  if (want->args.z.data) compare_tokens(row, planted, "dz", &got->args.dz, &want->args.dz, GH * GP, 1);
  compare_tokens(row, planted, "dB", &got->args.dB, &want->args.dB, GN, 4);
  compare_tokens(row, planted, "dC", &got->args.dC, &want->args.dC, GN, 4);
  compare_tokens(row, planted, "ddt", &got->args.ddt, &want->args.ddt, GH, 20);
}

static void nan_stays_where_the_gradient_has_it(void **state) {
  static gradient_call got, want;
  static const char *const names[] = {"x", "dt", "B", "C", "dout", "z"};
  const kr_op *op = *state;
  if (op != kr_op_find("ssd_bwd")) skip();
  capability = 90;
  fake_device(MUCH);
  krait_ctx *ctx = open_ctx();
  kr_emulated_order(0);
  kr_emulated_blocks_in_order(1);
  for (int k = 0; k < 6; k++) {
    make_gradient_call(&want, k == 0 || k == 5);
    if (k == 1)
      want.dt[NAN_AT * GH + 1] = NAN;
    else
      (k == 0   ? &want.x[(NAN_AT * GH + 1) * GP]
       : k == 2 ? &want.B[NAN_AT * GN]
       : k == 3 ? &want.C[NAN_AT * GN]
       : k == 4 ? &want.dout[(NAN_AT * GH + 1) * GP]
                : &want.z[(NAN_AT * GH + 1) * GP])[3] = 0x7fc0;
    run_gradient(ctx, &op->impls[op->n_impls - 1], &want);
    for (int i = 0; strncmp(op->impls[i].name, "cuda_", 5) == 0; i++) {
      make_gradient_call(&got, k == 0 || k == 5);
      memcpy(got.x, want.x, sizeof want.x), memcpy(got.z, want.z, sizeof want.z), memcpy(got.B, want.B, sizeof want.B),
          memcpy(got.C, want.C, sizeof want.C);
      memcpy(got.dout, want.dout, sizeof want.dout), memcpy(got.dt, want.dt, sizeof want.dt);
      assert_null(op->impls[i].refuse(ctx, &got.args));
      run_gradient(ctx, &op->impls[i], &got);
      compare_gradients(op->impls[i].name, names[k], &got, &want);
    }
  }
  krait_ctx_close(&ctx);
}

/* ---- a product in two launches ----------------------------------------------------------------------------------- */

enum { TM = 40, TN = 1600, TK = 704, NARROW = 192 }; /* on two multiprocessors: three rounds of 256 columns, and 64 */
typedef struct product_call {
  uint16_t A[TM][TK], B[TN][TK], bias[TN], residual[TM][TN], out[TM][TN];
} product_call;

static kr_gemm_args args_of(product_call *c) {
  return (kr_gemm_args){.call = {.size = sizeof(kr_gemm_args)},
                           .M = TM,
                           .N = TN,
                           .K = TK,
                           .A = {c->A, {TK, 1}, KRAIT_BF16},
                           .Bmat = {c->B, {1, TK}, KRAIT_BF16},
                           .bias = {c->bias, {1}, KRAIT_BF16},
                           .residual = {c->residual, {TN, 1}, KRAIT_BF16},
                           .out = {c->out, {TN, 1}, KRAIT_BF16}};
}

/* Runs it by hopper_tiles on n multiprocessors, in so many launches, without scratch, and compares with the
 * reference. Each column has distinct factors, bias and residual, so that a wrong starting column is found. */
static void run_product(const kr_op *op, kr_gemm_args *args, product_call *c, int n, int64_t launches) {
  static uint16_t want[TM][TN];
  uint32_t random = 7;
  for (size_t i = 0; i < sizeof *c / sizeof(uint16_t); i++)
    ((uint16_t *)c)[i] = kr_float_to_bf16((float)((random = random * 1664525u + 1013904223u) >> 24) / 256 - 0.5f);
  capability = 90, n_multiprocessors = n;
  fake_device(MUCH);
  krait_ctx *ctx = open_ctx();
  memset(c->out, 0xff, sizeof c->out);
  assert_int_equal(op->impls[op->n_impls - 1].run(ctx, args), KRAIT_OK);
  memcpy(want, c->out, sizeof want);
  memset(c->out, 0xff, sizeof c->out);
  kr_emulated_order(0);
  const kr_impl *impl = op->impls;
  while (strcmp(impl->name, "hopper_tiles") != 0) impl++;
  assert_null(impl->refuse(ctx, args));
  assert_int_equal(impl->scratch_bytes(ctx, args), 0);
  const int64_t before = kr_emulated_launches();
  assert_int_equal(impl->run(ctx, args), KRAIT_OK);
  assert_int_equal(kr_emulated_launches() - before, launches);
  for (int m = 0; m < TM; m++)
    for (int i = 0; i < TN; i++) {
      const double got = kr_bf16_to_float(c->out[m][i]), right = kr_bf16_to_float(want[m][i]);
      if (c->out[m][i] != want[m][i] && !(fabs(got - right) <= 0.01 * fabs(right) + 0.01))
        fail_msg("row %d column %d: %g, not %g", m, i, got, right);
    }
  krait_ctx_close(&ctx);
}

static void a_product_in_two_launches_is_whole(void **state) {
  static _Alignas(64) product_call c;
  if (*state != kr_op_find("gemm")) skip();
  kr_gemm_args args = args_of(&c);
  run_product(*state, &args, &c, 2, 2);
}

/* Three tiles of 64 columns on four multiprocessors; on two, two of 96 columns of each factor, not two of 128. */
static void small_products_take_narrow_tiles(void **state) {
  static _Alignas(64) product_call c;
  if (*state != kr_op_find("gemm")) skip();
  kr_gemm_args args = args_of(&c);
  args.N = NARROW, args.activation = KRAIT_ACT_SILU, args.residual = (kr_view){0};
  run_product(*state, &args, &c, 4, 1);
  args.B2 = args.Bmat, args.B2.data = c.B[NARROW], args.bias2 = args.bias, args.bias2.data = c.bias + NARROW;
  run_product(*state, &args, &c, 2, 1);
}

/* ---- calls that random ones do not cover: whole heads; all of shared memory -------------------------------------- */

static krait_ctx *open_tight(int version, int shared_bytes) {
  capability = version, n_multiprocessors = 16;
  fake_device(shared_bytes);
  kr_emulated_order(0);
  return open_ctx();
}

/* ---- float16's range within the SSD ------------------------------------------------------------------------------ */

/* Three chunks of one head; outputs are in float16's range, what is summed or kept on the way is not. */
enum { RL = 160, RP = 64, RN = 256 };
typedef struct range_call {
  _Alignas(16) uint16_t x[RL * RP], dout[RL * RP], B[RL * RN], C[RL * RN], z[RL * RP];
  _Alignas(16) uint16_t results[3 * RL * RP + 2 * RL * RN]; /* out, dx, dz, dB, dC */
  float dt[RL], A[1];
} range_call;

static const struct range_draw {
  const char *what;
  int N, has_gate;
  float x, dout, B, C, C_rest; /* C_rest: beyond 128 states */
} range_draws[] = {{"states' slices cancel", 256, 0, 1, 1, 16, 16, -15},
                   {"states' slices cancel behind a gate", 256, 1, 1, 1, 16, 16, -15},
                   {"large states", 64, 0, 64, 0x1p-13f, 4096, 0x1p-12f, 0},
                   {"large gradients of states", 64, 0, 0x1p-13f, 64, 0x1p-12f, 4096, 0}};

static void make_range_call(range_call *c, const struct range_draw *d) {
  for (int i = 0; i < RL * RP; i++)
    c->x[i] = kr_float_to_f16(d->x), c->dout[i] = kr_float_to_f16(d->dout), c->z[i] = kr_float_to_f16((float)(i % 3));
  for (int i = 0; i < RL * d->N; i++)
    c->B[i] = kr_float_to_f16(d->B), c->C[i] = kr_float_to_f16(i % d->N < 128 ? d->C : d->C_rest);
  for (int i = 0; i < RL; i++) c->dt[i] = 1;
  c->A[0] = -0.5f;
}

static kr_view half_rows(uint16_t *data, int n) { return (kr_view){data, {RL * n, n, n, 1}, KRAIT_F16, 0}; }

static void run_range_call(const krait_ctx *ctx, const char *name, range_call *c, const struct range_draw *d) {
  kr_ssd_args a = {.call.size = sizeof a, .B = 1, .L = RL, .H = 1, .P = RP, .N = d->N, .G = 1};
  kr_ssd_bwd_args b = {.call.size = sizeof b, .B = 1, .L = RL, .H = 1, .P = RP, .N = d->N, .G = 1};
  a.x = b.x = half_rows(c->x, RP), b.dout = half_rows(c->dout, RP);
  a.Bmat = b.Bmat = half_rows(c->B, d->N), a.Cmat = b.Cmat = half_rows(c->C, d->N);
  a.dt = b.dt = (kr_view){c->dt, {RL, 1, 1}, KRAIT_F32, 0}, a.A = b.A = (kr_view){c->A, {1}, KRAIT_F32, 0};
  uint16_t *const results = c->results, *const dB = results + 3 * RL * RP;
  a.out = half_rows(results, RP), b.dx = half_rows(results + RL * RP, RP);
  b.dB = half_rows(dB, d->N), b.dC = half_rows(dB + RL * RN, d->N);
  if (d->has_gate) a.z = b.z = half_rows(c->z, RP), b.dz = half_rows(results + 2 * RL * RP, RP);
  run_row(ctx, "ssd", name, &a), run_row(ctx, "ssd_bwd", name, &b);
}

/* On devices with little shared memory too, where chunks take fewer states at once. */
static void float16_keeps_its_range(void **state) {
  if (*state != kr_op_find("ssd_bwd")) skip();
  static range_call want, got;
  static const char *const names[] = {"cuda_ampere_chunks", "cuda_ampere_chunks", "cuda_hopper"};
  kr_emulated_blocks_in_order(1);
  for (size_t k = 0; k < sizeof names / sizeof *names; k++)
    for (size_t i = 0; i < sizeof range_draws / sizeof *range_draws; i++) {
      const struct range_draw *const d = &range_draws[i];
      krait_ctx *ctx = open_tight(k ? 90 : 86, k ? MUCH : LITTLE);
      make_range_call(&want, d), run_range_call(ctx, "ref", &want, d);
      make_range_call(&got, d), run_range_call(ctx, names[k], &got, d);
      for (size_t n = 0; n < sizeof got.results / 2; n++) {
        const float g = kr_f16_to_float(got.results[n]), w = kr_f16_to_float(want.results[n]);
        if (!(fabsf(g - w) <= 0.01f * fabsf(w) + 0.5f))
          fail_msg("%s, %s: result %zu is %g, not %g", names[k], d->what, n, (double)g, (double)w);
      }
      krait_ctx_close(&ctx);
    }
}

enum { OL = 150, OH = 3, OP = 64, ON = 200 };
typedef struct whole_call {
  uint16_t x[OL * OH * OP], B[OL * ON], C[OL * ON], out[OL * OH * OP];
  float dt[OL * OH], A[OH], D[OH * OP];
} whole_call;

static void walk_whole(const krait_ctx *ctx, const char *name, whole_call *c, int32_t n_states, int has_D, int n_D) {
  kr_ssd_args a = {.call.size = sizeof a, .B = 1, .L = OL, .H = OH, .P = OP, .N = n_states, .G = 1};
  a.x = (kr_view){c->x, {OL * OH * OP, OH * OP, OP, 1}, KRAIT_BF16, 0}, a.out = a.x, a.out.data = c->out;
  a.Bmat = (kr_view){c->B, {OL * n_states, n_states, n_states, 1}, KRAIT_BF16, 0}, a.Cmat = a.Bmat;
  a.Cmat.data = c->C;
  a.dt = (kr_view){c->dt, {OL * OH, OH, 1}, KRAIT_F32, 0}, a.A = (kr_view){c->A, {1}, KRAIT_F32, 0};
  if (has_D) a.Dvec = (kr_view){c->D, {n_D, n_D > 1}, KRAIT_F32, 0};
  run_row(ctx, "ssd", name, &a);
}

/* Whole heads of 64 channels that lie side by side, with no gate: what models have, and random calls hardly ever. */
static void whole_heads_are_right(void **state) {
  const kr_op *op = *state;
  if (op != kr_op_find("ssd")) skip();
  static _Alignas(64) whole_call want, got;
  krait_ctx *ctx = open_tight(90, MUCH);
  fill(want.x, OL * OH * OP, 37, 101), fill(want.B, OL * ON, 29, 97), fill(want.C, OL * ON, 53, 89);
  for (int i = 0; i < OL * OH; i++) want.dt[i] = 0.02f + 0.01f * (float)(i % 7);
  for (int i = 0; i < OH * OP; i++) want.D[i] = (float)(i % 13) / 6 - 1;
  for (int i = 0; i < OH; i++) want.A[i] = -0.2f - (float)i;
  for (int k = 0; k < 9; k++) {
    const int n_states = (int[]){48, 128, ON}[k % 3];
    walk_whole(ctx, "ref", &want, n_states, k / 3, k / 3 == 1 ? 1 : OP);
    for (int i = 0; strncmp(op->impls[i].name, "cuda_", 5) == 0; i++) {
      got = want;
      memset(got.out, 0xff, sizeof got.out);
      walk_whole(ctx, op->impls[i].name, &got, n_states, k / 3, k / 3 == 1 ? 1 : OP);
      for (int j = 0; j < OL * OH * OP; j++) {
        const float g = kr_bf16_to_float(got.out[j]), w = kr_bf16_to_float(want.out[j]);
        if (!(fabsf(g - w) <= 0.02f * (1 + fabsf(w))))
          fail_msg("%s, %d states, call %d: number %d is %g, not %g", op->impls[i].name, n_states, k, j, g, w);
      }
    }
  }
  krait_ctx_close(&ctx);
}

/* On three multiprocessors: four heads, each by itself and handed on where a block's range ends; five, two a block. */
static void few_heads_have_blocks_of_their_own(void **state) {
  enum { LONG = 2048, HEADS = 5, STATES = 16 };
  static _Alignas(64) uint16_t x[LONG * HEADS * OP], BC[LONG * STATES], out[2][LONG * HEADS * OP];
  static float dt[LONG * HEADS], A[HEADS] = {-0.1f, -0.02f, -1, -0.3f, -0.05f};
  if (*state != kr_op_find("ssd")) skip();
  capability = 90, n_multiprocessors = 3;
  fake_device(MUCH);
  kr_emulated_order(0);
  krait_ctx *ctx = open_ctx();
  fill(x, LONG * HEADS * OP, 37, 101), fill(BC, LONG * STATES, 29, 97);
  for (int i = 0; i < LONG * HEADS; i++) dt[i] = 0.02f + 0.01f * (float)(i % 7);
  for (int heads = 4; heads <= HEADS; heads++) {
    kr_ssd_args a = {.call.size = sizeof a, .B = 1, .L = LONG, .H = heads, .P = OP, .N = STATES, .G = 1};
    a.x = (kr_view){x, {LONG * heads * OP, heads * OP, OP, 1}, KRAIT_BF16, 0}, a.out = a.x;
    a.Bmat = a.Cmat = (kr_view){BC, {LONG * STATES, STATES, STATES, 1}, KRAIT_BF16, 0};
    a.dt = (kr_view){dt, {LONG * heads, heads, 1}, KRAIT_F32, 0}, a.A = (kr_view){A, {1}, KRAIT_F32, 0};
    a.out.data = out[0], run_row(ctx, "ssd", "ref", &a);
    memset(out[1], 0xff, sizeof out[1]);
    const int64_t before = kr_emulated_launches();
    a.out.data = out[1], run_row(ctx, "ssd", "cuda_hopper", &a);
    assert_int_equal(kr_emulated_launches() - before, 3); /* none for ends of pieces */
    for (int i = 0; i < LONG * heads * OP; i++) {
      const float g = kr_bf16_to_float(out[1][i]), w = kr_bf16_to_float(out[0][i]);
      if (!(fabsf(g - w) <= 0.03f * (1 + fabsf(w)))) fail_msg("%d heads: number %d is %g, not %g", heads, i, g, w);
    }
  }
  krait_ctx_close(&ctx);
}

/* On sixteen multiprocessors twenty heads are too few for blocks of three: they are walked one by one and handed on,
 * forwards for the gate, then backwards, where only this walk has an initial state, the final one's gradient. */
static void a_long_gated_gradient_has_room(void **state) {
  enum { LONG = 1985, HEADS = 20, CHANNELS = 8, STATES = 8, ROWS = LONG * HEADS * CHANNELS };
  static _Alignas(64) uint16_t in[3][ROWS], BC[LONG * STATES], final[HEADS * CHANNELS * STATES], out[2][2][ROWS];
  static float dt[LONG * HEADS], A[HEADS];
  if (*state != kr_op_find("ssd_bwd")) skip();
  krait_ctx *ctx = open_tight(90, MUCH);
  kr_emulated_blocks_in_order(1);
  for (int i = 0; i < 3; i++) fill(in[i], ROWS, 37 + 4 * i, 101 + 2 * i);
  fill(BC, LONG * STATES, 29, 97), fill(final, HEADS * CHANNELS * STATES, 31, 89);
  for (int i = 0; i < LONG * HEADS; i++) dt[i] = 0.02f + 0.01f * (float)(i % 7);
  for (int i = 0; i < HEADS; i++) A[i] = -0.1f * (float)(1 + i % 5);
  const kr_view rows = {NULL, {ROWS, HEADS * CHANNELS, CHANNELS, 1}, KRAIT_BF16, 0};
  kr_ssd_bwd_args a = {.call.size = sizeof a, .B = 1, .L = LONG, .H = HEADS, .P = CHANNELS, .N = STATES, .G = 1};
  a.x = a.z = a.dout = a.dx = a.dz = rows, a.x.data = in[0], a.z.data = in[1], a.dout.data = in[2];
  a.Bmat = a.Cmat = (kr_view){BC, {LONG * STATES, STATES, STATES, 1}, KRAIT_BF16, 0};
  a.dt = (kr_view){dt, {LONG * HEADS, HEADS, 1}, KRAIT_F32, 0}, a.A = (kr_view){A, {1}, KRAIT_F32, 0};
  a.dfinal_states = (kr_view){final, {HEADS * CHANNELS * STATES, CHANNELS * STATES, STATES, 1}, KRAIT_BF16, 0};
  memset(out[1], 0xff, sizeof out[1]);
  for (int k = 0; k < 2; k++) {
    a.dx.data = out[k][0], a.dz.data = out[k][1];
    run_row(ctx, "ssd_bwd", k ? "cuda_hopper" : "ref", &a);
  }
  for (int i = 0; i < 2 * ROWS; i++) {
    const float g = kr_bf16_to_float(out[1][i / ROWS][i % ROWS]), w = kr_bf16_to_float(out[0][i / ROWS][i % ROWS]);
    if (!(fabsf(g - w) <= 0.05f * (1 + fabsf(w)))) fail_msg("number %d is %g, not %g", i, (double)g, (double)w);
  }
  krait_ctx_close(&ctx);
}

/* In float32 a chunk's products of B and C in parts keep their digits beside those with later tokens, or with another
 * sequence's, which are masked: B of these is 2^40 times as large. */
static void later_tokens_take_no_digits(void **state) {
  enum { L = 64, P = 16, N = 16, LATER = 32 };
  static _Alignas(64) float x[L * P], BC[2][L * N], dt[L], out[2][L * P];
  static float A[1] = {-0.5f};
  static int32_t sequence[L];
  if (*state != kr_op_find("ssd")) skip();
  krait_ctx *ctx = open_tight(80, MUCH);
  fill_random(x, L * P), fill_random(BC[0], 2 * L * N);
  for (int i = 0; i < L; i++) dt[i] = 0.1f, sequence[i] = i < LATER;
  kr_ssd_args a = {.call.size = sizeof a, .B = 1, .L = L, .H = 1, .P = P, .N = N, .G = 1};
  a.x = a.out = (kr_view){x, {L * P, P, P, 1}, KRAIT_F32, 0};
  a.Bmat = a.Cmat = (kr_view){BC[0], {L * N, N, N, 1}, KRAIT_F32, 0}, a.Cmat.data = BC[1];
  a.dt = (kr_view){dt, {L, 1, 1}, KRAIT_F32, 0}, a.A = (kr_view){A, {1}, KRAIT_F32, 0};
  for (int first = 0; first < 2; first++) { /* the others of one sequence, then the first of two */
    if (first) a.seq_idx = (kr_view){sequence, {L, 1}, KRAIT_I32, 0};
    for (int i = 0; first && i < LATER * N; i++) BC[0][i] *= 0x1p40f;
    for (int i = LATER * N; i < L * N; i++) BC[0][i] *= first ? 0x1p-40f : 0x1p40f;
    a.out.data = out[0], run_row(ctx, "ssd", "ref", &a);
    a.out.data = out[1], run_row(ctx, "ssd", "ampere_chunks_parts", &a);
    compare_floats("ampere_chunks_parts", out[1] + first * LATER * P, out[0] + first * LATER * P, LATER * P, 2e-5f);
  }
  krait_ctx_close(&ctx);
}

enum { NR = 8, NM = 5632 };
typedef struct norm_call {
  uint16_t x[NR][NM], z[NR][NM], dout[NR][NM], dx[NR][NM], dz[NR][NM];
  float weight[NM], dweight[NM];
} norm_call;

static void gate(const krait_ctx *ctx, const char *name, norm_call *c) {
#define ROWS(field) {c->field, {NM, 1}, KRAIT_BF16}
  run_row(ctx, "gated_norm_bwd", name,
          &(kr_gated_norm_bwd_args){.call = {.size = sizeof(kr_gated_norm_bwd_args),
                                                .flags = KRAIT_GATED_NORM_RMS},
                                       .R = NR,
                                       .M = NM,
                                       .group_size = NM,
                                       .eps = 1e-3f,
                                       .x = ROWS(x),
                                       .z = ROWS(z),
                                       .weight = {c->weight, {1}, KRAIT_F32},
                                       .dout = ROWS(dout),
                                       .dx = ROWS(dx),
                                       .dz = ROWS(dz),
                                       .dweight = {c->dweight, {1}, KRAIT_F32}});
#undef ROWS
}

/* NaN in a key, query or value of the delta rule reaches no earlier token, though sixteen are multiplied with each
 * other, and in a query no other one; compared with the same call without it. */
static void nan_reaches_no_earlier_token(void **state) {
  enum { L = 20, D = 64, Dv = 4, WHERE = 9 };
  static float rows[3][L * D], gates[L], out[2][L * Dv];
  if (*state != kr_op_find("gated_delta_rule")) skip();
  fake_device(MUCH);
  krait_ctx *ctx = open_ctx();
  fill_random(rows[0], 3 * L * D);
  fill_random(gates, L);
  kr_gated_delta_rule_args a = {.call.size = sizeof a, .B = 1, .L = L, .H = 1, .Hk = 1, .Dk = D, .Dv = Dv};
  a.eps = 1e-6f, a.beta_scale = 1;
  a.q = (kr_view){rows[0], {L * D, D, D, 1}, KRAIT_F32, 0}, a.k = (kr_view){rows[1], {L * D, D, D, 1}, KRAIT_F32, 0};
  a.v = (kr_view){rows[2], {L * D, D, D, 1}, KRAIT_F32, 0}, a.b = (kr_view){gates, {L, 1, 1}, KRAIT_F32, 0};
  for (int k = -1; k < 3; k++) { /* without, then of q, k, v */
    float *const at = k < 0 ? NULL : &rows[k][WHERE * D + 1], was = at ? *at : 0;
    a.out = (kr_view){out[k >= 0], {L * Dv, Dv, Dv, 1}, KRAIT_F32, 0};
    if (at) *at = NAN;
    assert_int_equal(kr_op_run(&kr_op_gated_delta_rule, ctx, &a), KRAIT_OK);
    if (at) *at = was;
    for (int i = 0; k >= 0 && i < L * Dv; i++)
      if (i / Dv < WHERE || (k == 0 && i / Dv > WHERE)) assert_true(out[1][i] == out[0][i]);
  }
  krait_ctx_close(&ctx);
}

/* The same where tokens are taken in chunks: a head with such a token runs one by one, and equals the reference. */
static void nan_reaches_no_earlier_token_of_a_chunk(void **state) {
  enum { L = 70, H = 2, D = 128, Dv = 4, WHERE = 40 };
  static _Alignas(16) uint16_t rows[3][L * H * D], gates[L * H], out[2][L * H * Dv];
  static float random[3 * L * H * D];
  if (*state != kr_op_find("gated_delta_rule")) skip();
  fake_device(MUCH);
  krait_ctx *ctx = open_ctx();
  fill_random(random, sizeof random / sizeof *random);
  for (int i = 0; i < 3 * L * H * D; i++) ((uint16_t *)rows)[i] = kr_float_to_bf16(random[i]);
  for (int i = 0; i < L * H; i++) gates[i] = kr_float_to_bf16(random[i]);
  kr_gated_delta_rule_args a = {.call.size = sizeof a, .B = 1, .L = L, .H = H, .Hk = H, .Dk = D, .Dv = Dv};
  a.eps = 1e-6f, a.beta_scale = 1;
  a.q = (kr_view){rows[0], {L * H * D, H * D, D, 1}, KRAIT_BF16, 0}, a.k = a.v = a.q;
  a.k.data = rows[1], a.v.data = rows[2], a.b = (kr_view){gates, {L * H, H, 1}, KRAIT_BF16, 0};
  for (int k = 0; k < 3; k++) { /* of the second head's q, k, v */
    uint16_t *const at = &rows[k][(WHERE * H + 1) * D + 1], was = *at;
    *at = 0x7fc0;
    for (int i = 0; i < 2; i++) {
      a.out = (kr_view){out[i], {L * H * Dv, H * Dv, Dv, 1}, KRAIT_BF16, 0};
      run_row(ctx, "gated_delta_rule", i ? "ampere_chunks" : "ref", &a);
    }
    *at = was;
    for (int i = 0; i < L * H * Dv; i++) {
      const float want = kr_bf16_to_float(out[0][i]), got = kr_bf16_to_float(out[1][i]);
      assert_int_equal(isnan(want),
                       i / Dv % H == 1 && (k ? i / Dv / H >= WHERE : i / Dv / H == WHERE) && (k < 2 || i % Dv == 1));
      assert_true(isnan(want) ? isnan(got) : fabsf(got - want) <= 0.01f * fabsf(want) + 1e-3f);
    }
  }
  krait_ctx_close(&ctx);
}

/* Three rows in flight would use all of compute capability 8.6's; the kernel also needs 512 bytes. */
static void rows_on_their_way_have_room(void **state) {
  if (*state != kr_op_find("gated_norm_bwd")) skip();
  static _Alignas(64) norm_call want, got;
  static float random[3 * NR * NM];
  fill_random(random, sizeof random / sizeof *random);
  fill_random(want.weight, NM);
  for (size_t i = 0; i < sizeof random / sizeof *random; i++) ((uint16_t *)&want)[i] = kr_float_to_bf16(random[i]);
  got = want;
  krait_ctx *ctx = open_tight(86, LITTLE);
  gate(ctx, "ref", &want);
  gate(ctx, "cuda_ampere_aligned_rows", &got);
  compare_floats("cuda_ampere_aligned_rows", got.dweight, want.dweight, NM, 1e-3f);
  krait_ctx_close(&ctx);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const char *given = getenv("KR_CHECK_SEED"), *scale = getenv("KR_CHECK_PERCENT");
  if (strncmp(argv[2], "causal_conv1d", 13) == 0)
    n_multiprocessors = 1; /* so few that a warp processes several runs of rows */
  fake_device(MUCH);
  seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
  if (scale) percent = strtoll(scale, NULL, 10);
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  print_message("seed %llu\n", (unsigned long long)seed);
  const struct CMUnitTest planted[] = {cmocka_unit_test(planted_faults_are_found),
                                       cmocka_unit_test(missing_rows_are_skipped)};
  if (strcmp(argv[2], "planted") == 0) return cmocka_run_group_tests(planted, NULL, NULL);
  void *op = (void *)kr_op_find(argv[2]);
  if (!op) return fprintf(stderr, "emulated: no such op: %s\n", argv[2]), 2;
  if (!kr_cuda_built_tiers() || !has_row(op))
    return printf("skipped: %s\n", kr_cuda_built_tiers() ? "the op has no GPU implementation"
                                                         : "this build has no device code (no clang)"),
           77;
  const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(agrees_with_the_reference, op),
                                     cmocka_unit_test_prestate(a_barrier_taken_out_is_missed, op),
                                     cmocka_unit_test_prestate(nan_reaches_no_other_token, op),
                                     cmocka_unit_test_prestate(nan_reaches_no_earlier_token, op),
                                     cmocka_unit_test_prestate(nan_reaches_no_earlier_token_of_a_chunk, op),
                                     cmocka_unit_test_prestate(nan_stays_where_the_gradient_has_it, op),
                                     cmocka_unit_test_prestate(a_product_in_two_launches_is_whole, op),
                                     cmocka_unit_test_prestate(small_products_take_narrow_tiles, op),
                                     cmocka_unit_test_prestate(whole_heads_are_right, op),
                                     cmocka_unit_test_prestate(float16_keeps_its_range, op),
                                     cmocka_unit_test_prestate(few_heads_have_blocks_of_their_own, op),
                                     cmocka_unit_test_prestate(a_long_gated_gradient_has_room, op),
                                     cmocka_unit_test_prestate(later_tokens_take_no_digits, op),
                                     cmocka_unit_test_prestate(rows_on_their_way_have_room, op)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
