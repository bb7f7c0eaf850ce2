/* driver.c: tier selection, fallback to the CPU and every failing driver call, against a fake driver library. Start-up
 * happens once per process, so each start-up case runs in a child. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctx.h"
#include "cuda.h"
#include "dlib.h"
#include "driver.h"
#include "ladder.h"
#include "op_list.h"
#include "packed_code.h"
#include "plan.h"
#include "pool.h"
#include "ptx_entry.h"
#include "turing_impl.h"
#include <krait/bench.h>

static const char *fake_path;

/* In a child with its own environment: opens the device and returns the status; the message is in text. */
static int32_t open_in_child(const char *library, const char *fake, int32_t device, int32_t fallback, char *text,
                             size_t text_bytes) {
  int ends[2];
  struct { int32_t status, device; char detail[600]; } answer = {0};
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    setenv("KRAIT_LIBCUDA", library, 1);
    if (fake) setenv("KR_FAKE_CUDA", fake, 1);
    krait_ctx *ctx = NULL;
    krait_ctx_options options = {.size = sizeof options, .device = device, .fallback = fallback};
    answer.status = krait_ctx_open(&options, &ctx);
    answer.device = ctx ? krait_ctx_device(ctx) : -1;
    snprintf(answer.detail, sizeof answer.detail, "%s", krait_error_detail());
    krait_ctx_close(&ctx);
    ssize_t written = write(ends[1], &answer, sizeof answer);
    _exit(written == sizeof answer ? 0 : 1);
  }
  close(ends[1]);
  assert_int_equal(read(ends[0], &answer, sizeof answer), sizeof answer);
  close(ends[0]);
  waitpid(child, NULL, 0);
  snprintf(text, text_bytes, "%s", answer.detail);
  return answer.status < 0 ? answer.status : answer.device;
}

static void start_up_failures_have_reasons(void **state) {
  static const struct { const char *library, *fake; int32_t status; const char *says; } cases[] = {
    {"/no/such/libcuda.so", NULL, KRAIT_ERR_DRIVER_MISSING, "no NVIDIA driver"},
    {NULL, "init=100", KRAIT_ERR_NO_DEVICE, "CUDA_VISIBLE_DEVICES"},
    {NULL, "init=999", KRAIT_ERR_DRIVER, "as the test asked"},
    {NULL, "count=0", KRAIT_ERR_NO_DEVICE, "no GPU"},
    {NULL, "version=8000", KRAIT_ERR_DRIVER_OLD, "CUDA 8.0"},
    {NULL, "capability=35", KRAIT_ERR_UNSUPPORTED, "the device is older"},
  };
  char text[700];
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *library = cases[i].library ? cases[i].library : fake_path;
    assert_int_equal(open_in_child(library, cases[i].fake, KRAIT_DEVICE_CUDA(0), 0, text, sizeof text),
                     cases[i].status);
    assert_non_null(strstr(text, cases[i].says));
    assert_int_equal(open_in_child(library, cases[i].fake, KRAIT_DEVICE_AUTO, 0, text, sizeof text), KRAIT_DEVICE_CPU);
    assert_int_equal(open_in_child(library, cases[i].fake, KRAIT_DEVICE_AUTO, KRAIT_FALLBACK_NEVER, text, sizeof text),
                     KRAIT_ERR_FALLBACK);
    assert_non_null(strstr(text, cases[i].says));
  }
}

static void tiers_follow_device_and_driver(void **state) {
  static const struct { int capability, ptx; const char *tiers;
  } cases[] = {{50, 60, "cuda_base"},
               {72, 90, "cuda_base"},
               {75, 64, "cuda_base"},
               {75, 90, "cuda_base,cuda_turing"},
               {80, 65, "cuda_base,cuda_turing"},
               {80, 70, "cuda_base,cuda_turing,cuda_ampere"},
               {86, 90, "cuda_base,cuda_turing,cuda_ampere"},
               {90, 78, "cuda_base,cuda_turing,cuda_ampere"},
               {90, 80, "cuda_base,cuda_turing,cuda_ampere,cuda_hopper"},
               {100, 86, "cuda_base,cuda_turing,cuda_ampere"},
               {120, 90, "cuda_base,cuda_turing,cuda_ampere"},
               {35, 90, ""},
               {90, 59, ""}};
  (void)state;
  if (!kr_cuda_built_tiers()) skip(); /* this build has no device code */
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[64], why[400];
    const kr_device_info info = {.major = cases[i].capability / 10, .minor = cases[i].capability % 10};
    krait_caps_format(kr_ladder(&info, cases[i].ptx, KRAIT_CAPS_ALL, why, sizeof why), text, sizeof text);
    assert_string_equal(text, cases[i].tiers);
    assert_true((strstr(why, "hopper") == NULL) == (strstr(text, "hopper") != NULL));
    assert_int_equal(kr_ladder(&info, cases[i].ptx, KRAIT_CAP_CUDA_BASE, NULL, 0) & ~KRAIT_CAP_CUDA_BASE, 0);
  }
}

/* One step of work with every kind of call: open, memory, copies, a kernel. */
static int32_t work(void) {
  krait_ctx *ctx = NULL;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1};
  kr_cuda *cuda = NULL;
  void *block = NULL;
  float values[16] = {0};
  int32_t status = krait_ctx_open(&options, &ctx);
  if (status < 0) return status;
  status = kr_cuda_open(0, KRAIT_CAPS_ALL, &cuda);
  if (status >= 0) status = kr_cuda_alloc(cuda, sizeof values, &block);
  if (status >= 0) status = kr_cuda_copy_in(cuda, block, values, sizeof values, NULL);
  kr_view view = {.data = block, .stride = {1, 1, 1, 1}, .dtype = KRAIT_F32};
  kr_state_update_args args = {.call = {.size = sizeof args},
                                  .B = 1,
                                  .H = 1,
                                  .P = 1,
                                  .N = 4,
                                  .G = 1,
                                  .n_states = 1,
                                  .state = view,
                                  .x = view,
                                  .dt = view,
                                  .A = view,
                                  .Bmat = view,
                                  .Cmat = view,
                                  .out = view};
  if (status >= 0) status = kr_op_run(&kr_op_state_update, ctx, &args);
  if (status >= 0) status = kr_cuda_copy_out(cuda, values, block, sizeof values, NULL);
  if (status >= 0) status = kr_cuda_wait(cuda, NULL);
  kr_cuda_free(cuda, block);
  kr_cuda_close(&cuda);
  krait_ctx_close(&ctx);
  return status;
}

static void (*fail_at)(long n, int result);
static long (*n_calls)(void);
static int (*n_held)(void);
static long (*n_ahead)(void), (*n_loads)(void);
static void (*capture)(int mode);
static int (*capture_mode)(void);

static void every_failing_call_is_a_status_and_leaks_nothing(void **state) {
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  fail_at(0, 0);
  assert_int_equal(work(), KRAIT_OK);
  assert_int_equal(n_held(), 0);
  const long n = n_calls();
  assert_true(n > 10);
  int n_failed = 0;
  for (int sticky = 0; sticky < 2; sticky++)
    for (long i = 1; i <= n; i++) {
      fail_at(i, sticky ? 700 : 2);
      int32_t status = work();
      n_failed += status < 0;
      if (status < 0) assert_true(status == (sticky ? KRAIT_ERR_DEVICE_LOST : KRAIT_ERR_DEVICE_MEMORY));
      if (n_held() != 0) fail_msg("call %ld of %ld failed and %d things were kept", i, n, n_held());
    }
  fail_at(0, 0);
  assert_true(n_failed > n);
}

/* GPUs of 7.5, where products by tensor cores are not worth it on those that have none. */
static void names_tell_who_has_no_tensor_cores(void **state) {
  static const char *const with[] = {"Tesla T4", "NVIDIA T4G", "NVIDIA GeForce RTX 2080 Ti", "Quadro RTX 5000",
                                     "NVIDIA TITAN RTX", "NVIDIA T10"},
                           *const without[] = {"NVIDIA GeForce GTX 1650", "GeForce GTX 1660 Ti", "NVIDIA GeForce MX450",
                                               "NVIDIA T400 4GB", "NVIDIA T1000 8GB", "Quadro T2000"};
  (void)state;
  for (int i = 0; i < 6; i++) {
    kr_device_info info = {.major = 7, .minor = 5};
    snprintf(info.name, sizeof info.name, "%s", with[i]);
    assert_null(kr_turing_refuse_parts(&info));
    snprintf(info.name, sizeof info.name, "%s", without[i]);
    assert_non_null(kr_turing_refuse_parts(&info));
  }
  assert_non_null(kr_turing_refuse_parts(&(kr_device_info){.name = "NVIDIA GeForce RTX 3090", .major = 8, .minor = 6}));
  assert_null(kr_turing_refuse_parts(&(kr_device_info){.name = "NVIDIA H200", .major = 9}));
}

static void out_of_memory_reports_the_size(void **state) {
  kr_cuda *cuda;
  void *block;
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  assert_int_equal(kr_cuda_open(0, KRAIT_CAPS_ALL, &cuda), KRAIT_OK);
  assert_int_equal(kr_cuda_alloc(cuda, (size_t)2 << 30, &block), KRAIT_ERR_DEVICE_MEMORY);
  assert_non_null(strstr(krait_error_detail(), "2147483648 bytes needed, "));
  kr_cuda_close(&cuda);
}

static void sticky_errors_are_distinguished(void **state) {
  static const struct {
    int result;
    int32_t status;
  } cases[] = {{1, KRAIT_ERR_DRIVER},        {2, KRAIT_ERR_DEVICE_MEMORY}, {209, KRAIT_ERR_DRIVER},
               {218, KRAIT_ERR_DRIVER},      {600, KRAIT_ERR_DRIVER},      {700, KRAIT_ERR_DEVICE_LOST},
               {715, KRAIT_ERR_DEVICE_LOST}, {719, KRAIT_ERR_DEVICE_LOST}, {214, KRAIT_ERR_DEVICE_LOST},
               {701, KRAIT_ERR_DRIVER}};
  const kr_driver *driver;
  (void)state;
  assert_int_equal(kr_driver_load(&driver), KRAIT_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(kr_driver_fail(driver, cases[i].result, "testing"), cases[i].status);
    assert_int_equal(krait_error_native(), cases[i].result);
    assert_string_equal(krait_error_origin(), "cuda");
    assert_non_null(strstr(krait_error_detail(), "as the test asked"));
  }
}

static krait_ctx *open_gpu(void) {
  krait_ctx *ctx = NULL;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1};
  fail_at(0, 0);
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

static int32_t norm(krait_ctx *ctx) {
  static float values[16];
  kr_view view = {.data = values, .stride = {1, 1, 1, 1}, .dtype = KRAIT_F32};
  kr_add_norm_args args = {.call = {.size = sizeof args}, .R = 1, .M = 8, .x = view, .out = view};
  return kr_op_run(&kr_op_add_norm, ctx, &args);
}

/* Per launch the only driver calls are the current context and the launch. */
static void a_launch_is_two_driver_calls(void **state) {
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  krait_ctx *ctx = open_gpu();
  assert_int_equal(norm(ctx), KRAIT_OK); /* loads the kernel */
  for (int i = 0; i < 3; i++) {
    fail_at(0, 0);
    assert_int_equal(norm(ctx), KRAIT_OK);
    assert_true(n_calls() <= 2);
  }
  krait_ctx_close(&ctx);
}

/* Launches are noted, once each, until their kernels are loaded; nothing runs. */
static void a_rehearsal_loads_what_would_be_launched(void **state) {
  static kr_kernel_list list;
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  krait_ctx *ctx = open_gpu();
  const long before = n_loads();
  list.n = 0;
  kr_cuda_note(&list);
  for (int i = 0; i < 2; i++) assert_int_equal(norm(ctx), KRAIT_OK);
  kr_cuda_note(NULL);
  assert_int_equal(list.n, 1);
  assert_int_equal(n_loads(), before);
  kr_cuda_load(ctx->cuda, &list, 0, list.n);
  assert_int_equal(n_loads(), before + 1);
  list.n = 0;
  kr_cuda_note(&list);
  assert_int_equal(norm(ctx), KRAIT_OK);
  kr_cuda_note(NULL);
  assert_int_equal(list.n, 0);
  assert_int_equal(norm(ctx), KRAIT_OK);
  assert_int_equal(n_loads(), before + 1);
  krait_ctx_close(&ctx);
}

static int32_t norm_gradient(krait_ctx *ctx, void *stream);

/* Of both plans at once, before either runs; afterwards nothing is left to load. */
static void plans_load_their_kernels(void **state) {
  static float values[64], scratch[4096];
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  krait_ctx *ctx = open_gpu();
  const kr_view view = {.data = values, .stride = {8, 1, 1, 1}, .dtype = KRAIT_F32},
                row = {.data = values, .stride = {1, 1, 1, 1}, .dtype = KRAIT_F32};
  const kr_add_norm_args forward = {.call = {.size = sizeof forward}, .R = 1, .M = 8, .x = row, .out = row};
  const kr_add_norm_bwd_args backward = {.call = {.size = sizeof backward}, .R = 8, .M = 8, .v = view, .dout = view,
                                         .dx = view, .dweight = row};
  kr_plan *plans[2];
  assert_int_equal(kr_plan_open(&kr_op_add_norm, ctx, &forward, NULL, &plans[0]), KRAIT_OK);
  assert_int_equal(kr_plan_open(&kr_op_add_norm_bwd, ctx, &backward, NULL, &plans[1]), KRAIT_OK);
  const long before = n_loads();
  assert_true(krait_plan_scratch_bytes(plans[1]) > 0);
  assert_int_equal(krait_plans_load((const krait_plan *const *)plans, 2, NULL, 0), KRAIT_ERR_SCRATCH);
  assert_int_equal(krait_plans_load((const krait_plan *const *)plans, 2, scratch, sizeof scratch), KRAIT_OK);
  const long after = n_loads();
  assert_true(after >= before + 2);
  assert_int_equal(norm(ctx), KRAIT_OK);
  assert_int_equal(norm_gradient(ctx, NULL), KRAIT_OK);
  assert_int_equal(krait_plans_load((const krait_plan *const *)plans, 2, scratch, sizeof scratch), KRAIT_OK);
  assert_int_equal(n_loads(), after);
  for (int i = 0; i < 2; i++) krait_plan_close(&plans[i]);
  krait_ctx_close(&ctx);
}

/* If device and allowed tiers support it, a kernel starts while the previous one runs; otherwise it is launched
 * normally. */
static void only_hopper_starts_kernels_ahead(void **state) {
  static const uint64_t masks[] = {KRAIT_CAPS_ALL, KRAIT_CAP_CUDA_BASE | KRAIT_CAP_CUDA_AMPERE};
  static const kr_kernel kernel = {"norm_f32", "kr_norm_1"};
  (void)state;
  if (!(kr_cuda_built_tiers() & KRAIT_CAP_CUDA_HOPPER)) skip();
  fail_at(0, 0);
  for (int i = 0; i < 2; i++) {
    kr_cuda *cuda = NULL;
    const int args[64] = {0};
    const long before = n_ahead();
    assert_int_equal(kr_cuda_open(0, masks[i], &cuda), KRAIT_OK);
    for (int32_t ahead = 0; ahead < 2; ahead++)
      assert_int_equal(kr_cuda_launch(cuda, KRAIT_CAP_CUDA_AMPERE, &kernel,
                                      &(kr_grid){.x = 1, .block = 32, .is_pdl = ahead}, args, sizeof args),
                       KRAIT_OK);
    assert_int_equal(n_ahead() - before, i == 0);
    assert_int_equal(kr_cuda_in_order(1), 0);
    assert_int_equal(kr_cuda_launch(cuda, KRAIT_CAP_CUDA_AMPERE, &kernel,
                                    &(kr_grid){.x = 1, .block = 32, .is_pdl = 1}, args, sizeof args),
                     KRAIT_OK);
    assert_int_equal(kr_cuda_in_order(0), 1);
    assert_int_equal(n_ahead() - before, i == 0);
    const uint32_t n = (uint32_t)kr_cuda_info(cuda)->n_multiprocessors, own = 1024,
                   room = (uint32_t)kr_cuda_info(cuda)->shared_bytes + own;
    for (uint32_t share = 1; share < 40; share++) { /* blocks per multiprocessor: so many fit, and no more */
      const uint32_t even = kr_cuda_even_bytes(cuda, (share - 1) * n + 1);
      if (i || share >= 32) assert_int_equal(even, 0);
      else assert_true(share * (even + own) <= room && (share + 1) * (even + own) > room);
    }
    kr_cuda_close(&cuda);
  }
}

/* The table of loaded kernels is finite; when it is full, further kernels are refused and those in it still run. */
static void more_kernels_than_a_context_holds(void **state) {
  enum { MORE = 2049 };
  static kr_kernel kernels[MORE];
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  kr_cuda *cuda = NULL;
  fail_at(0, 0);
  assert_int_equal(kr_cuda_open(0, KRAIT_CAP_CUDA_BASE, &cuda), KRAIT_OK);
  for (int i = 0; i < MORE; i++) {
    kernels[i] = (kr_kernel){"limits", "kr_limit_fmas"};
    const int32_t status = kr_cuda_prepare(cuda, KRAIT_CAP_CUDA_BASE, &kernels[i]);
    assert_int_equal(status, i < MORE - 1 ? KRAIT_OK : KRAIT_ERR_UNSUPPORTED);
  }
  assert_string_equal(krait_error_detail(), "kr_limit_fmas: a context holds at most 2048 kernels");
  assert_int_equal(kr_cuda_prepare(cuda, KRAIT_CAP_CUDA_BASE, &kernels[7]), KRAIT_OK);
  kr_cuda_close(&cuda);
}

static void compile_range(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t i = begin; i < end; i++) kr_cuda_compile(user, (int)i, 3);
}

static long count_kernels(int index) {
  const char *text;
  long n = 0;
  assert_int_equal(kr_cuda_text(index, &text), KRAIT_OK);
  for (kr_ptx_part part = {.end = text}; kr_ptx_next(&part); n++)
    assert_memory_equal(part.end - 2, "}\n", 2); /* all variables precede the kernels */
  assert_true(n > 0);
  return n;
}

/* Every kernel of the context's tiers is translated once, by parallel threads, without leaks. */
static void kernels_are_translated_side_by_side(void **state) {
  static const uint64_t masks[] = {KRAIT_CAPS_ALL, KRAIT_CAP_CUDA_BASE};
  const char *module, *tier;
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  fail_at(0, 0);
  kr_pool *pool = kr_pool_open(4);
  assert_non_null(pool);
  for (int k = 0; k < 2; k++) {
    kr_cuda *cuda = NULL;
    long n = 0;
    assert_int_equal(kr_cuda_open(0, masks[k], &cuda), KRAIT_OK);
    for (int i = 0; kr_cuda_embedded(i, &module, &tier, NULL, NULL); i++)
      n += k == 0 || strcmp(tier, "base") == 0 ? count_kernels(i) : 0;
    const long before = n_loads();
    const int held = n_held();
    kr_pool_run(pool, 3, 1, compile_range, cuda);
    assert_int_equal(n_loads() - before, n);
    assert_int_equal(n_held(), held);
    kr_cuda_close(&cuda);
    assert_int_equal(n_held(), 0);
  }
  kr_pool_close(&pool);
}

/* Frameworks capture in the strictest mode, and an op's first call may be captured. */
static void a_first_call_may_be_recorded(void **state) {
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  for (int mode = 0; mode < 2; mode++) {
    krait_ctx *ctx = open_gpu();
    capture(mode);
    assert_int_equal(norm(ctx), KRAIT_OK);
    assert_int_equal(capture_mode(), mode);
    capture(2);
    krait_ctx_close(&ctx);
  }
}

/* Two launches; counts their driver calls. */
static int32_t norm_gradient(krait_ctx *ctx, void *stream) {
  static float values[64], scratch[4096];
  kr_view view = {.data = values, .stride = {8, 1, 1, 1}, .dtype = KRAIT_F32},
             row = {.data = values, .stride = {1}, .dtype = KRAIT_F32};
  kr_add_norm_bwd_args args = {
      .call = {.size = sizeof args, .scratch = scratch, .scratch_bytes = sizeof scratch, .stream = stream},
      .R = 8,
      .M = 8,
      .v = view,
      .dout = view,
      .dx = view,
      .dweight = row};
  return kr_op_run(&kr_op_add_norm_bwd, ctx, &args);
}

static long calls_of_gradient(krait_ctx *ctx) {
  fail_at(0, 0);
  assert_int_equal(norm_gradient(ctx, NULL), KRAIT_OK);
  return n_calls();
}

/* Current context, capture status, two kernels and one launch; with an older driver, or during capture, two
 * launches. */
static void launches_are_merged(void **state) {
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  krait_ctx *ctx = open_gpu();
  kr_cuda *cuda;
  void *stream, *graph;
  calls_of_gradient(ctx); /* loads the kernels */
  for (int i = 0; i < 3; i++) assert_int_equal(calls_of_gradient(ctx), 5);
  assert_int_equal(kr_cuda_open(0, KRAIT_CAPS_ALL, &cuda), KRAIT_OK);
  assert_int_equal(kr_cuda_stream_open(cuda, &stream), KRAIT_OK);
  assert_int_equal(kr_cuda_graph_begin(cuda, stream), KRAIT_OK);
  assert_int_equal(calls_of_gradient(ctx), 4);
  assert_int_equal(kr_cuda_graph_end(cuda, stream, &graph), KRAIT_OK);
  kr_cuda_graph_close(cuda, &graph);
  kr_cuda_stream_close(cuda, &stream);
  kr_cuda_close(&cuda);
  krait_ctx_close(&ctx);
}

/* 128 graphs, then they are reused. */
static void streams_beyond_the_graphs_share_them(void **state) {
  static char streams[300];
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  krait_ctx *ctx = open_gpu();
  calls_of_gradient(ctx);
  const int held = n_held();
  for (int i = 0; i < 300; i++) {
    fail_at(0, 0);
    assert_int_equal(norm_gradient(ctx, &streams[i]), KRAIT_OK);
    assert_true(i < 127 || n_calls() == 5);
  }
  assert_int_equal(n_held() - held, 127 * 2); /* a graph and its instance */
  krait_ctx_close(&ctx);
  assert_true(n_held() < held);
}

/* If graph calls fail, launches are used. */
static void a_graph_that_fails_is_launches(void **state) {
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  for (int first = 0; first < 2; first++) {
    krait_ctx *ctx = open_gpu();
    const int held = n_held();
    for (int i = 0; i < 1 + first; i++) calls_of_gradient(ctx);
    const long n = calls_of_gradient(ctx);
    for (long i = 1; i <= n; i++) {
      fail_at(i, 2);
      assert_int_equal(norm_gradient(ctx, NULL), KRAIT_OK);
      calls_of_gradient(ctx);
    }
    krait_ctx_close(&ctx);
    assert_true(n_held() < held);
  }
}

static int32_t time_norm(krait_ctx *ctx, krait_op_timing *timing) {
  krait_limits limits = {.size = sizeof limits};
  int32_t status = krait_op_measure(ctx, "add_norm", "R=4,M=64", KRAIT_F16, 0, 0, timing);
  return status < 0 ? status : krait_measure_limits(ctx, &limits);
}

static void timing_an_operator_takes_turns_and_leaks_nothing(void **state) {
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  setenv("KR_FAKE_CUDA", "l2=4096,memory=1048576", 1);
  krait_ctx *ctx = open_gpu();
  krait_op_timing timing = {.size = sizeof timing};
  assert_int_equal(time_norm(ctx, &timing), KRAIT_OK);
  assert_string_equal(timing.impl, "cuda_ampere_aligned_rows");
  assert_int_equal(timing.n_copies,
                   3 * 4096 / (4 * 512 + 256) + 1); /* four tensors of 512 bytes, and one of 128 that takes 256 */
  assert_int_equal(timing.n_runs % timing.n_copies, 0);
  assert_int_equal(timing.from_graph, 1);
  assert_true(timing.best_s > 0 && timing.best_s <= timing.median_s && timing.host_s > 0);
  const int held_before = n_held();
  fail_at(0, 0);
  assert_int_equal(time_norm(ctx, &timing), KRAIT_OK);
  const long n = n_calls();
  int n_failed = 0;
  for (long i = 1; i <= n; i++) {
    fail_at(i, 2);
    n_failed += time_norm(ctx, &timing) < 0;
    if (n_held() != held_before)
      fail_msg("call %ld of %ld failed and %d things were kept", i, n, n_held() - held_before);
  }
  assert_true(n_failed > n / 2);
  fail_at(0, 0);
  assert_int_equal(krait_op_measure(ctx, "add_norm", NULL, KRAIT_F32, 0, 1, &timing), KRAIT_ERR_UNSUPPORTED);
  krait_ctx_close(&ctx);
  unsetenv("KR_FAKE_CUDA");
}

static char gemm_said[1024];

/* gemm has no GPU implementation for float64 tensors. out is residual, and A has negative strides. */
static int32_t run_gemm(int32_t device, uint64_t caps, int32_t fallback, float *out, krait_ctx_stats *stats) {
  static const float A[6] = {1, 2, 3, 4, 5, 6};
  static const double B[6] = {1, -1, 2, 0.5, 3, 7};
  krait_ctx *ctx = NULL;
  krait_ctx_options options = {
      .size = sizeof options, .device = device, .caps_mask = caps, .n_threads = 1, .fallback = fallback};
  kr_gemm_args args = {.call = {.size = sizeof args},
                          .M = 2,
                          .N = 2,
                          .K = 3,
                          .A = {.data = (void *)(A + 5), .stride = {-3, -1}},
                          .Bmat = {.data = (void *)B, .stride = {2, 1}, .dtype = KRAIT_F64},
                          .residual = {.data = out, .stride = {3, 1}},
                          .out = {.data = out, .stride = {3, 1}}};
  uint64_t scratch_bytes = 1;
  int32_t status = krait_ctx_open(&options, &ctx);
  if (status >= 0) status = kr_op_scratch_bytes(&kr_op_gemm, ctx, &args, &scratch_bytes);
  void *scratch = malloc(scratch_bytes + 1);
  args.call.scratch = scratch, args.call.scratch_bytes = scratch_bytes;
  if (status >= 0) status = kr_op_run(&kr_op_gemm, ctx, &args);
  snprintf(gemm_said, sizeof gemm_said, "%s", krait_error_detail()); /* the next call that succeeds clears it */
  if (ctx) krait_ctx_read_stats(ctx, stats);
  krait_ctx_close(&ctx);
  free(scratch);
  return status;
}

static void a_call_that_nothing_accepts_goes_through_the_host_only_if_asked(void **state) {
  krait_ctx_stats stats = {.size = sizeof stats};
  float want[6] = {1, 2, 99, 3, 4, 99}, got[6] = {1, 2, 99, 3, 4, 99};
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  fail_at(0, 0);
  assert_int_equal(run_gemm(KRAIT_DEVICE_CUDA(0), 0, KRAIT_FALLBACK_WARN, got, &stats), KRAIT_ERR_UNSUPPORTED);
  assert_non_null(strstr(gemm_said, "KRAIT_FALLBACK=cpu copies"));
  assert_int_equal(run_gemm(KRAIT_DEVICE_CUDA(0), 0, KRAIT_FALLBACK_NEVER, got, &stats), KRAIT_ERR_UNSUPPORTED);
  assert_null(strstr(gemm_said, "KRAIT_FALLBACK=cpu"));
  assert_float_equal(got[0], 1, 0);
  assert_int_equal(run_gemm(KRAIT_DEVICE_CPU, 0, 0, want, &stats), KRAIT_OK);
  assert_int_equal(stats.n_fallbacks, 0);
  assert_int_equal(run_gemm(KRAIT_DEVICE_CUDA(0), 0, KRAIT_FALLBACK_CPU, got, &stats), KRAIT_OK);
  assert_int_equal(stats.n_fallbacks, 1);
  assert_int_equal(stats.n_calls, 1);
  assert_memory_equal(got, want, sizeof got);
  const uint64_t no_tiers = KRAIT_CAP_CUDA_BASE - 1;
  float no_tier[6] = {1, 2, 99, 3, 4, 99};
  assert_int_equal(run_gemm(KRAIT_DEVICE_CUDA(0), no_tiers, KRAIT_FALLBACK_WARN, no_tier, &stats),
                   KRAIT_ERR_UNSUPPORTED);
  assert_int_equal(run_gemm(KRAIT_DEVICE_CUDA(0), no_tiers, KRAIT_FALLBACK_CPU, no_tier, &stats), KRAIT_OK);
  assert_int_equal(stats.n_fallbacks, 1);
  assert_memory_equal(no_tier, want, sizeof want);
  const long n = n_calls();
  int n_failed = 0;
  for (long i = 1; i <= n; i++) {
    fail_at(i, 2);
    n_failed += run_gemm(KRAIT_DEVICE_CUDA(0), 0, KRAIT_FALLBACK_CPU, got, &stats) < 0;
    assert_int_equal(n_held(), 0);
  }
  fail_at(0, 0);
  assert_true(n_failed > 5);
}

/* The host reading device memory crashes here too, so that such faults are found without a GPU. */
static void device_memory_is_not_the_hosts(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip();
#endif
  kr_cuda *cuda = NULL;
  void *block = NULL;
  const int32_t value = 7;
  int32_t back = 0;
  assert_int_equal(kr_cuda_open(0, KRAIT_CAPS_ALL, &cuda), KRAIT_OK);
  assert_int_equal(kr_cuda_alloc(cuda, sizeof value, &block), KRAIT_OK);
  assert_int_equal(kr_cuda_copy_in(cuda, block, &value, sizeof value, NULL), KRAIT_OK);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(*(volatile int32_t *)block == value ? 0 : 1);
  }
  int how = 0;
  assert_int_equal(waitpid(child, &how, 0), child);
  assert_true(WIFSIGNALED(how));
  assert_int_equal(kr_cuda_copy_out(cuda, &back, block, sizeof back, NULL), KRAIT_OK);
  assert_int_equal(back, value);
  kr_cuda_free(cuda, block);
  kr_cuda_close(&cuda);
}

/* Rows of better tiers would have supported the call. */
static void an_implementation_requested_by_name_is_not_a_fallback(void **state) {
  const krait_ctx_options options = {
      .size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .fallback = KRAIT_FALLBACK_NEVER};
  krait_ctx_stats stats = {.size = sizeof stats};
  krait_op_timing timing = {.size = sizeof timing};
  krait_ctx *ctx = NULL;
  (void)state;
  if (!kr_cuda_built_tiers()) skip();
  fail_at(0, 0);
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  if (krait_op_measure_impl(ctx, "selective_scan", "cuda_base_time_over_lanes", "D=8,L=32,N=2", KRAIT_F32, 0.001,
                           &timing) < 0)
    fail_msg("%s", krait_error_detail());
  krait_ctx_read_stats(ctx, &stats);
  assert_true(stats.n_calls > 0);
  assert_int_equal(stats.n_fallbacks, 0);
  krait_ctx_close(&ctx);
}

int main(int argc, char **argv) {
  const char *why;
  if (argc < 2) return 2;
  fake_path = argv[1];
  setenv("KRAIT_LIBCUDA", fake_path, 1);
  kr_dlib *fake = kr_dlib_open(fake_path, &why);
  if (!fake) return fprintf(stderr, "%s\n", why), 1;
  *(void **)&fail_at = kr_dlib_find(fake, "fake_cuda_fail_at");
  *(void **)&n_calls = kr_dlib_find(fake, "fake_cuda_calls");
  *(void **)&n_held = kr_dlib_find(fake, "fake_cuda_held");
  *(void **)&n_ahead = kr_dlib_find(fake, "fake_cuda_ahead");
  *(void **)&n_loads = kr_dlib_find(fake, "fake_cuda_loads");
  *(void **)&capture = kr_dlib_find(fake, "fake_cuda_capture");
  *(void **)&capture_mode = kr_dlib_find(fake, "fake_cuda_capture_mode");
  const struct CMUnitTest tests[] = {cmocka_unit_test(start_up_failures_have_reasons),
                                     cmocka_unit_test(tiers_follow_device_and_driver),
                                     cmocka_unit_test(names_tell_who_has_no_tensor_cores),
                                     cmocka_unit_test(every_failing_call_is_a_status_and_leaks_nothing),
                                     cmocka_unit_test(out_of_memory_reports_the_size),
                                     cmocka_unit_test(device_memory_is_not_the_hosts),
                                     cmocka_unit_test(sticky_errors_are_distinguished),
                                     cmocka_unit_test(a_launch_is_two_driver_calls),
                                     cmocka_unit_test(a_rehearsal_loads_what_would_be_launched),
                                     cmocka_unit_test(plans_load_their_kernels),
                                     cmocka_unit_test(only_hopper_starts_kernels_ahead),
                                     cmocka_unit_test(a_first_call_may_be_recorded),
                                     cmocka_unit_test(more_kernels_than_a_context_holds),
                                     cmocka_unit_test(kernels_are_translated_side_by_side),
                                     cmocka_unit_test(launches_are_merged),
                                     cmocka_unit_test(a_graph_that_fails_is_launches),
                                     cmocka_unit_test(streams_beyond_the_graphs_share_them),
                                     cmocka_unit_test(timing_an_operator_takes_turns_and_leaks_nothing),
                                     cmocka_unit_test(a_call_that_nothing_accepts_goes_through_the_host_only_if_asked),
                                     cmocka_unit_test(an_implementation_requested_by_name_is_not_a_fallback)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
