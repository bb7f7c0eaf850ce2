/* extremes.c: cases not drawn by the checker, for every operator: NaN or infinity in the inputs, elements more than
 * 2^31 apart, outputs that are inputs. KR_EMULATED: NaN alone, on the emulator's GPU: extremes LIBCUDA OPERATOR... */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../test.h"
#include "case.h"
#include "host_case.h"
#include "all_ops.h"
#include "half.h"
#include "view.h"

static krait_ctx *open_extremes_ctx(int n_threads) {
  krait_ctx *ctx;
#ifdef KR_EMULATED
  const int32_t device = KRAIT_DEVICE_CUDA(0);
#else
  const int32_t device = KRAIT_DEVICE_CPU;
#endif
  krait_ctx_options options = {.size = sizeof options, .device = device, .n_threads = n_threads};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

static kr_view *view_of(kr_case *c, const kr_case_tensor *t) { return (kr_view *)(c->args + t->view_offset); }
static size_t bytes_of(kr_case *c, const kr_case_tensor *t) {
  return (size_t)t->n_storage * krait_dtype_bytes(view_of(c, t)->dtype);
}
static int is_float(kr_case *c, const kr_case_tensor *t) { return view_of(c, t)->dtype != KRAIT_I32; }

/* KR_CHECK_PERCENT scales this test like the checker's, down to a fifth. */
static int percent(void) {
  const char *given = getenv("KR_CHECK_PERCENT");
  return given ? atoi(given) : 100;
}

static int64_t n_cases(void) { return percent() < 20 ? 12 : 60 * percent() / 100; }

static void keep_outputs(kr_case *c) {
  for (int i = 0; i < c->n_tensors; i++)
    memcpy(c->tensors[i].expected, c->tensors[i].storage, bytes_of(c, &c->tensors[i]));
}

/* ---- NaN and infinity ---- */

/* Filter taps may multiply the zeros around a sequence, and decays the empty state before it, or skip them: both are
 * correct. */
static int may_be_planted(kr_case *c, const kr_op *op, const kr_case_tensor *t) {
  const int is_tap = strcmp(t->name, "conv_weight") == 0 ||
                     (strcmp(op->name, "dense_block") == 0 && strcmp(t->name, "taps") == 0) ||
                     (strstr(op->name, "conv") && strcmp(t->name, "weight") == 0),
            is_decay = strstr(op->name, "_bwd") && t->name[0] == 'A';
  return t->role & KR_IN && is_float(c, t) && kr_tensor_elements(t) > 0 && !is_tap && !is_decay;
}

/* Plants the value in one element of an input's initial copy. Returns the tensor's name. */
static const char *plant(kr_case *c, const kr_op *op, double value) {
  kr_case_tensor *t;
  do t = &c->tensors[kr_case_int(c, 0, c->n_tensors - 1)];
  while (!may_be_planted(c, op, t));
  kr_view initial = *view_of(c, t);
  initial.data = t->initial + ((unsigned char *)initial.data - t->storage);
  const int64_t at = kr_tensor_offset(t, &initial, kr_case_int(c, 0, kr_tensor_elements(t) - 1));
  if (initial.dtype == KRAIT_C64) ((float *)initial.data)[2 * at] = (float)value;
  else kr_put(&initial, at, value);
  return t->name;
}

/* A decay rounded to 0 in float32 turns an infinite state into NaN. */
static int same_kind(double got, double want) { return isfinite(got) == isfinite(want); }

static int has_tensor(const kr_case *c, const char *name) {
  for (int i = 0; i < c->n_tensors; i++)
    if (strcmp(c->tensors[i].name, name) == 0) return 1;
  return 0;
}

/* A first step's contribution to the decay's gradient, and to the SSD's step size's, is its gradient times the empty
 * state before it, or nothing: both are correct. */
static int may_meet_zeros(const kr_op *op, const kr_case_tensor *t) {
  return strstr(op->name, "_bwd") &&
         (strncmp(t->name, "dA", 2) == 0 || strcmp(t->name, "dlog_decay") == 0 ||
          (strcmp(op->name, "ssd_bwd") == 0 && strncmp(t->name, "ddt", 3) == 0));
}

/* Where NaN beside a number is right: of a NaN in D padding has a part, or none; on a GPU it may reach more of its own
 * sequence (docs/NUMERICS.md): attention's out of a value, dq of a key, dv of dout, and a convolution's neighbours; and
 * a step of padding its own dB, 0 otherwise. A token's own product C B in Mamba 3 is the same turned or not: of a NaN
 * in one of two channels that turn together the other's gradient may have no part. */
static int may_differ(const kr_op *op, const kr_impl *impl, const char *planted, const char *name, double got,
                      double want) {
  static const char *const more[] = {"attention v out", "attention_bwd k dq", "attention_bwd dout dv"};
  const int is_more = !isfinite(got) && isfinite(want);
  char pair[64];
  if (strcmp(op->name, "ssd_bwd") == 0 && strcmp(planted, "Dvec") == 0) return want == 0; /* padding's dx */
  if (impl->needs & KRAIT_CAP_CPU) return 0;
  snprintf(pair, sizeof pair, "%s %s %s", op->name, planted, name);
  for (size_t i = 0; i < sizeof more / sizeof *more; i++)
    if (strcmp(pair, more[i]) == 0) return is_more;
  if (strncmp(op->name, "causal_conv1d", 13) == 0)
    return is_more && (strcmp(name, "out") == 0 || strcmp(name, "dx") == 0);
  if (strcmp(op->name, "ssd_bwd") == 0) return strcmp(name, "dB") == 0 && strncmp(planted, "dt", 2) == 0 && want == 0;
  return isfinite(got) && (strcmp(pair, "mamba3_bwd Bmat dC") == 0 || strcmp(pair, "mamba3_bwd Cmat dB") == 0);
}

static void compare_kinds(kr_case *c, const kr_op *op, const kr_impl *impl, const char *planted, int64_t index) {
  for (int i = 0; i < c->n_tensors; i++) {
    const kr_case_tensor *t = &c->tensors[i];
    kr_view got = *view_of(c, t), want = got;
    want.data = t->expected + ((unsigned char *)got.data - t->storage);
    const int n_parts = got.dtype == KRAIT_C64 ? 2 : 1;
    if (may_meet_zeros(op, t)) continue;
    kr_tensor_walk at = {.n_left = t->role & KR_OUT ? kr_tensor_elements(t) : 0};
    for (int64_t k = 0; at.n_left; k++, kr_tensor_step(&at, t, &got))
      for (int part = 0; part < n_parts; part++) {
        const double g = kr_tensor_part(&got, at.offset, part), w = kr_tensor_part(&want, at.offset, part);
        if (!same_kind(g, w) && !may_differ(op, impl, planted, t->name, g, w))
          fail_msg("%s, implementation %s, case %d, planted in %s: %s[%d] is %g, the reference has %g", op->name,
                   impl->name, (int)index, planted, t->name, (int)k, g, w);
      }
  }
}

/* Without an output's gradient NaN meets zeros, or nothing. */
static int is_whole(const kr_case *c, const kr_op *op) {
  return !strstr(op->name, "_bwd") || (has_tensor(c, "dout") && has_tensor(c, "dout1") == has_tensor(c, "weight1"));
}

static void spread(const krait_ctx *ctx, const kr_op *op, kr_case *c, int64_t index, double value) {
  assert_int_equal(kr_case_open(c, op, 31, index, KR_CASE_USUAL), KRAIT_OK);
  const char *planted = plant(c, op, value);
  kr_case_reset(c);
  assert_int_equal(kr_case_run_on_host(ctx, c, &op->impls[op->n_impls - 1]), KRAIT_OK);
  keep_outputs(c);
  for (int i = 0; i < op->n_impls - 1 && is_whole(c, op); i++) {
    const kr_impl *impl = &op->impls[i];
    if ((impl->needs & ctx->caps) != impl->needs || (impl->refuse && impl->refuse(ctx, c->args))) continue;
    kr_case_reset(c);
    assert_int_equal(kr_case_run_on_host(ctx, c, impl), KRAIT_OK);
    compare_kinds(c, op, impl, planted, index);
  }
  kr_case_close(c);
}

static void nan_spreads_as_in_the_reference(void **state) {
  (void)state;
  krait_ctx *ctx = open_extremes_ctx(2);
  kr_case *c = malloc(sizeof *c);
  for (int32_t i = 0; i < kr_n_ops; i++)
    for (int64_t index = 0, n = n_cases(); index < n; index++) spread(ctx, kr_ops[i], c, index, NAN);
  free(c);
  krait_ctx_close(&ctx);
}

/* Where only the planted value can overflow. */
static void infinity_spreads_as_in_the_reference(void **state) {
  (void)state;
  static const char *const names[] = {"causal_conv1d",  "causal_conv1d_update", "causal_conv1d_varlen_states",
                                      "selective_scan", "state_update",         "gemm"};
  krait_ctx *ctx = open_extremes_ctx(2);
  kr_case *c = malloc(sizeof *c);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (int64_t index = 0, n = n_cases(); index < n; index++)
      spread(ctx, kr_op_find(names[i]), c, index, index % 2 ? INFINITY : -INFINITY);
  free(c);
  krait_ctx_close(&ctx);
}

static void nan_stays_in_its_sequence(void **state) {
  (void)state;
  enum { L = 24, D = 9, N = 5 };
  float u[D * L], delta[D * L], B[N * L], A[D * N], out[D * L], scratch[1 << 15];
  int32_t indices[L];
  for (int i = 0; i < D * L; i++) u[i] = sinf((float)i), delta[i] = 0.3f;
  for (int i = 0; i < N * L; i++) B[i] = cosf((float)i);
  for (int i = 0; i < D * N; i++) A[i] = -1;
  for (int t = 0; t < L; t++) indices[t] = t / 8;
  u[2 * L + 9] = NAN;       /* channel 2, sequence 1 */
  u[3 * L + 10] = INFINITY; /* channel 3, sequence 1 */
  krait_ctx *ctx = open_extremes_ctx(1);
  kr_selective_scan_args a = {.call = {.size = sizeof a, .scratch = scratch, .scratch_bytes = sizeof scratch},
                                 .B = 1,
                                 .D = D,
                                 .L = L,
                                 .N = N,
                                 .G = 1};
  a.u = (kr_view){.data = u, .stride = {0, L, 1}};
  a.delta = (kr_view){.data = delta, .stride = {0, L, 1}};
  a.out = (kr_view){.data = out, .stride = {0, L, 1}};
  a.A = (kr_view){.data = A, .stride = {N, 1}};
  a.Bmat = a.Cmat = (kr_view){.data = B, .stride = {0, 0, L, 1}};
  a.seq_idx = (kr_view){.data = indices, .stride = {0, 1}, .dtype = KRAIT_I32};
  assert_int_equal(kr_op_run(&kr_op_selective_scan, ctx, &a), KRAIT_OK);
  for (int d = 0; d < D; d++)
    for (int t = 0; t < L; t++) {
      int touched = (d == 2 && t >= 9 && t < 16) || (d == 3 && t >= 10 && t < 16);
      if (touched != !isfinite(out[d * L + t])) fail_msg("out[%d][%d] is %g", d, t, (double)out[d * L + t]);
    }
  krait_ctx_close(&ctx);
}

/* ---- sequences beside each other ---- */

/* How a tensor's elements belong to sequences: by a dimension of tokens beside one of rows, or by one of sequences. */
typedef struct layout {
  int rows, tokens; /* dimensions, or -1 */
  int is_keys;      /* of attention */
  int is_packed;    /* a row for each sequence of a pack */
} layout;

static layout layout_of(kr_case *c, const kr_case_tensor *t) {
  layout at = {-1, -1, 0, 0};
  int i = 0;
  while (kr_sig_view(c->sig, c->args, i) != view_of(c, t)) i++;
  const kr_sig_dims *dims = c->sig->tensors[i].dims;
  while (!kr_sig_holds(kr_sig_facts(c->sig, c->args), dims->when)) dims++;
  for (int d = 0; d < dims->n_dims; d++) {
    const char *name = dims->only[d] < 0 ? "" : c->sig->sizes[dims->only[d]].name;
    if (strcmp(name, "L") == 0 || strcmp(name, "Lq") == 0 || strcmp(name, "Lk") == 0)
      at.tokens = d, at.is_keys = name[1] == 'k';
    if (d == 0 && (strcmp(name, "B") == 0 || strcmp(name, "S") == 0 || strcmp(name, "Bk") == 0))
      at.rows = 0, at.is_packed = name[0] == 'S';
  }
  return at;
}

static const kr_view *given(kr_case *c, const char *name) {
  const int i = kr_sig_find(c->sig, name);
  const kr_view *view = i < 0 ? NULL : kr_sig_view(c->sig, c->args, i);
  return view && view->data ? view : NULL;
}

/* The sequence that an element belongs to, -1 if to none: all of them have a part in it. */
static int64_t owner_of(kr_case *c, const layout *at, const int64_t *index) {
  const kr_view *indices = given(c, "seq_idx"),
                *offsets = given(c, at->is_keys ? "cu_seqlens_k" : strstr(c->sig->name, "attention") ? "cu_seqlens_q"
                                                                                                     : "cu_seqlens");
  const int64_t row = at->rows < 0 ? 0 : index[0];
  const int are_marks = offsets && strncmp(c->sig->name, "ssd", 3) == 0; /* of states to keep in a sequence */
  if (at->tokens < 0) return at->rows < 0 || indices || are_marks || (offsets && !at->is_packed) ? -1 : row;
  const int64_t t = index[at->tokens];
  if (indices) return row << 32 | (uint32_t)((const int32_t *)indices->data)[kr_at2(indices, row, t)];
  if (!offsets || are_marks) return row;
  int64_t b = 0;
  while (((const int32_t *)offsets->data)[kr_at1(offsets, b + 1)] <= t) b++;
  return b;
}

static void put_nan(const kr_view *view, int64_t at) {
  if (view->dtype == KRAIT_C64) ((float *)view->data)[2 * at] = ((float *)view->data)[2 * at + 1] = NAN;
  else kr_put(view, at, NAN);
}

/* All of a sequence's own inputs become NaN. */
static void spoil_sequence(kr_case *c, int64_t sequence) {
  for (int i = 0; i < c->n_tensors; i++) {
    const kr_case_tensor *t = &c->tensors[i];
    const layout at = layout_of(c, t);
    kr_tensor_walk w = {.n_left = t->role & KR_IN && is_float(c, t) ? kr_tensor_elements(t) : 0};
    for (; w.n_left; kr_tensor_step(&w, t, view_of(c, t)))
      if (owner_of(c, &at, w.index) == sequence) put_nan(view_of(c, t), w.offset);
  }
}

/* On a CPU the bits are the same. On a GPU heads with NaN go by other sums. */
static void compare_others(kr_case *c, const kr_op *op, const kr_impl *impl, int64_t sequence, int64_t index) {
  const double bound = impl->needs & KRAIT_CAP_CPU ? 0 : 0.01;
  for (int i = 0; i < c->n_tensors; i++) {
    const kr_case_tensor *t = &c->tensors[i];
    const layout at = layout_of(c, t);
    kr_view got = *view_of(c, t), want = got;
    want.data = t->expected + ((unsigned char *)got.data - t->storage);
    kr_tensor_walk w = {.n_left = t->role & KR_OUT && is_float(c, t) ? kr_tensor_elements(t) : 0};
    for (; w.n_left; kr_tensor_step(&w, t, &got)) {
      const int64_t owner = owner_of(c, &at, w.index);
      const double g = kr_tensor_part(&got, w.offset, 0), v = kr_tensor_part(&want, w.offset, 0);
      if (owner >= 0 && owner != sequence && !(fabs(g - v) <= bound * (1 + fabs(v))) && g != v)
        fail_msg("%s, implementation %s, case %d: %s[%d,%d,%d,%d] is %g beside a sequence of NaN, %g beside one of "
                 "numbers", op->name, impl->name, (int)index, t->name, (int)w.index[0], (int)w.index[1],
                 (int)w.index[2], (int)w.index[3], g, v);
    }
  }
}

/* One token's sequence, of the first input that has tokens. */
static int64_t choose_sequence(kr_case *c) {
  for (int i = 0; i < c->n_tensors; i++) {
    const kr_case_tensor *t = &c->tensors[i];
    const layout at = layout_of(c, t);
    int64_t index[4] = {0};
    if (at.tokens < 0 || !(t->role & KR_IN) || !is_float(c, t) || !kr_tensor_elements(t)) continue;
    for (int d = 0; d < t->n_dims; d++) index[d] = kr_case_int(c, 0, t->shape[d] - 1);
    return owner_of(c, &at, index);
  }
  return -1;
}

/* Where rows of a cache are chosen by index tensors, the checker has its own draws (kr_case_spoil). */
static void spoil_one_of(const krait_ctx *ctx, const kr_op *op, kr_case *c, int64_t index) {
  assert_int_equal(kr_case_open(c, op, 67, index, KR_CASE_USUAL), KRAIT_OK);
  const int64_t sequence =
      given(c, "block_table") || given(c, "cache_batch_idx") || !is_whole(c, op) ? -1 : choose_sequence(c);
  for (int i = 0; i < op->n_impls && sequence >= 0; i++) {
    const kr_impl *impl = &op->impls[i];
    if ((impl->needs & ctx->caps) != impl->needs || (impl->refuse && impl->refuse(ctx, c->args))) continue;
    kr_case_reset(c);
    assert_int_equal(kr_case_run_on_host(ctx, c, impl), KRAIT_OK);
    keep_outputs(c);
    kr_case_reset(c);
    spoil_sequence(c, sequence);
    assert_int_equal(kr_case_run_on_host(ctx, c, impl), KRAIT_OK);
    compare_others(c, op, impl, sequence, index);
  }
  kr_case_close(c);
}

static const char *const with_sequences[] = {"attention",
                                             "attention_bwd",
                                             "rotary",
                                             "causal_conv1d",
                                             "causal_conv1d_bwd",
                                             "ssd",
                                             "ssd_bwd",
                                             "mamba3",
                                             "rnn_bwd",
                                             "mamba3_bwd",
                                             "selective_scan_bwd",
                                             "gated_delta_rule",
                                             "selective_scan",
                                             "rnn"};

static int has_sequences(const char *op) {
  for (size_t i = 0; i < sizeof with_sequences / sizeof *with_sequences; i++)
    if (strcmp(with_sequences[i], op) == 0) return 1;
  return 0;
}

static void nan_never_reaches_another_sequence(void **state) {
  krait_ctx *ctx = open_extremes_ctx(2);
  kr_case *c = malloc(sizeof *c);
  (void)state;
  for (int32_t i = 0; i < kr_n_ops; i++)
    for (int64_t index = 0; index < n_cases() && has_sequences(kr_ops[i]->name); index++)
      spoil_one_of(ctx, kr_ops[i], c, index);
  free(c);
  krait_ctx_close(&ctx);
}

/* ---- far strides ---- */

static const int64_t far = (1ll << 31) + 1000;

typedef struct field {
  float *memory;
  size_t bytes;
} field;

/* Of size two, or any. Not one whose elements overlap: where an output's may (ssd_bwd's dDvec) it means a sum. */
static int far_dim(const kr_case_tensor *t, const kr_view *view, int of_any) {
  for (int i = 0; i < t->n_dims; i++)
    if ((t->shape[i] == 2 || (of_any && t->shape[i] > 2)) && view->stride[i]) return i;
  return -1;
}

static void copy_elements(kr_case *c, const kr_case_tensor *t, const kr_view *to, const kr_view *from) {
  const size_t bytes = krait_dtype_bytes(view_of(c, t)->dtype);
  kr_tensor_walk there = {.n_left = kr_tensor_elements(t)}, here = there;
  for (; here.n_left; kr_tensor_step(&there, t, to), kr_tensor_step(&here, t, from))
    memcpy((unsigned char *)to->data + (size_t)there.offset * bytes,
           (unsigned char *)from->data + (size_t)here.offset * bytes, bytes);
}

static int can_be_far(kr_case *c, const kr_case_tensor *t, int of_any) {
  return is_float(c, t) && view_of(c, t)->dtype != KRAIT_C64 && far_dim(t, view_of(c, t), of_any) >= 0;
}

/* Repeats the case with one tensor spread out; every output must be bitwise equal. Returns whether it ran. */
static int run_far(const krait_ctx *ctx, kr_case *c, const kr_op *op, const kr_impl *impl, kr_case_tensor *t,
                   const field *f, int of_any) {
  kr_view *view = view_of(c, t), near = *view, distant = near;
  const int dim = far_dim(t, view, of_any);
  distant.data = f->memory;
  distant.stride[dim] = far / (t->shape[dim] - 1);
  kr_case_reset(c);
  copy_elements(c, t, &distant, &near);
  *view = distant;
  assert_int_equal(kr_op_check(op, c->args), KRAIT_OK);
  const int refused = impl->refuse && impl->refuse(ctx, c->args);
  if (!refused) assert_int_equal(kr_case_run_on_host(ctx, c, impl), KRAIT_OK);
  *view = near;
  if (!refused && t->role & KR_OUT) copy_elements(c, t, &near, &distant);
  madvise(f->memory, f->bytes, MADV_DONTNEED);
  return !refused;
}

/* A graph's calls use other rows for other strides, with another summation order. */
static int is_near(kr_case *c, const kr_case_tensor *t) {
  kr_view got = *view_of(c, t), want = got;
  want.data = t->expected + ((unsigned char *)got.data - t->storage);
  for (int64_t k = 0; k < kr_tensor_elements(t); k++) {
    const int64_t at = kr_tensor_offset(t, &got, k);
    const double w = kr_get(&want, at);
    if (fabs(kr_get(&got, at) - w) > 0.02 * (1 + fabs(w))) return 0;
  }
  return 1;
}

static int is_same(kr_case *c, const kr_impl *impl, const kr_case_tensor *t) {
  return strcmp(impl->name, "composed") == 0 ? is_near(c, t) : memcmp(t->expected, t->storage, bytes_of(c, t)) == 0;
}

/* With KR_CHECK_PERCENT below 20 every tensor is spread out in only two of the cases. */
static void far_cases(const krait_ctx *ctx, const kr_op *op, const kr_impl *impl, kr_case *c, const field *f) {
  const int most = percent() < 20 ? 2 : INT32_MAX;
  int n = 0, n_of[KR_CASE_MAX_VIEWS] = {0};
  const int64_t n_tried = n_cases() < 120 ? 20 : 30; /* fewer contain no spreadable case of gemm */
  for (int64_t index = 0; index < n_tried || (!n && index < 6 * n_tried); index++) {
    const int of_any = index >= n_tried; /* a row may support no dimension of size two */
    assert_int_equal(kr_case_open(c, op, 41, index, KR_CASE_USUAL), KRAIT_OK);
    int n_wanted = 0, wanted[KR_CASE_MAX_VIEWS];
    for (int i = 0; i < c->n_tensors && !(impl->refuse && impl->refuse(ctx, c->args)); i++)
      if (n_of[i] < most && can_be_far(c, &c->tensors[i], of_any)) wanted[n_wanted++] = i;
    if (n_wanted) assert_int_equal(kr_case_run_on_host(ctx, c, impl), KRAIT_OK);
    if (n_wanted) keep_outputs(c);
    for (int w = 0; w < n_wanted; w++) {
      const int i = wanted[w];
      if (!run_far(ctx, c, op, impl, &c->tensors[i], f, of_any)) continue;
      n++, n_of[i]++;
      for (int k = 0; k < c->n_tensors; k++)
        if (c->tensors[k].role & KR_OUT && !is_same(c, impl, &c->tensors[k]))
          fail_msg("%s, implementation %s, case %d: %s differs where %s is spread out", op->name, impl->name,
                   (int)index, c->tensors[k].name, c->tensors[i].name);
    }
    kr_case_close(c);
  }
  if (!n) fail_msg("%s, implementation %s: no case could be spread out", op->name, impl->name);
}

/* In memory that is reserved but hardly used. */
static void elements_beyond_two_to_the_31(void **state) {
  (void)state;
  field f = {.bytes = (size_t)(far + (1 << 24)) * sizeof(float)};
  f.memory = mmap(NULL, f.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (f.memory == MAP_FAILED) skip();
  krait_ctx *ctx = open_extremes_ctx(2);
  kr_case *c = malloc(sizeof *c);
  for (int32_t i = 0; i < kr_n_ops; i++)
    for (int k = 0; k < kr_ops[i]->n_impls; k++)
      if ((kr_ops[i]->impls[k].needs & ctx->caps) == kr_ops[i]->impls[k].needs)
        far_cases(ctx, kr_ops[i], &kr_ops[i]->impls[k], c, &f);
  free(c);
  krait_ctx_close(&ctx);
  munmap(f.memory, f.bytes);
}

/* ---- in place ---- */

typedef struct pair {
  const char *op;
  size_t in, out;
} pair;
#define PAIR(type, in, out) {#type, offsetof(kr_##type##_args, in), offsetof(kr_##type##_args, out)}

static const pair pairs[] = {PAIR(causal_conv1d, x, out),  PAIR(causal_conv1d_update, x, out),
                             PAIR(selective_scan, u, out), PAIR(selective_scan, z, out),
                             PAIR(add_norm, x, out),       PAIR(add_norm, residual, residual_out)};

static const kr_case_tensor *tensor_at(const kr_case *c, size_t offset) {
  const kr_case_tensor *t = c->tensors;
  while (t < c->tensors + c->n_tensors && t->view_offset != offset) t++;
  return t;
}

static void extremes_in_place(const krait_ctx *ctx, const pair *p, const kr_impl *impl, kr_case *c, int64_t index) {
  const kr_op *op = kr_op_find(p->op);
  assert_int_equal(kr_case_open(c, op, 3, index, KR_CASE_USUAL), KRAIT_OK);
  kr_view *in = (kr_view *)(c->args + p->in), *out = (kr_view *)(c->args + p->out);
  const kr_case_tensor *t = tensor_at(c, p->in);
  const int possible =
      kr_has(in) && kr_has(out) && in->dtype == out->dtype && !(impl->refuse && impl->refuse(ctx, c->args));
  if (possible) {
    assert_int_equal(kr_case_run_on_host(ctx, c, impl), KRAIT_OK);
    kr_view apart = *out;
    keep_outputs(c);
    apart.data = tensor_at(c, p->out)->expected + ((unsigned char *)apart.data - tensor_at(c, p->out)->storage);
    kr_case_reset(c);
    *out = *in;
    if (kr_op_check(op, c->args) != KRAIT_OK) fail_msg("%s, case %d: %s", op->name, (int)index, krait_error_detail());
    if (!(impl->refuse && impl->refuse(ctx, c->args))) assert_int_equal(kr_case_run_on_host(ctx, c, impl), KRAIT_OK);
    else copy_elements(c, t, out, &apart);
    for (int64_t i = 0; i < kr_tensor_elements(t); i++) {
      const double want = kr_get(&apart, kr_tensor_offset(t, &apart, i)),
                   got = kr_get(out, kr_tensor_offset(t, out, i));
      if (want != got && !(isnan(want) && isnan(got)))
        fail_msg("%s, implementation %s, case %d: in place %g, apart %g", op->name, impl->name, (int)index, got, want);
    }
  }
  kr_case_close(c);
}

static void outputs_that_are_inputs(void **state) {
  (void)state;
  krait_ctx *ctx = open_extremes_ctx(2);
  kr_case *c = malloc(sizeof *c);
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    const kr_op *op = kr_op_find(pairs[i].op);
    for (int k = 0; k < op->n_impls; k++)
      for (int64_t index = 0, n = n_cases(); (op->impls[k].needs & ctx->caps) == op->impls[k].needs && index < n;
           index++)
        extremes_in_place(ctx, &pairs[i], &op->impls[k], c, index);
  }
  free(c);
  krait_ctx_close(&ctx);
}

#ifdef KR_EMULATED
static char **op_names;

/* By every tier's implementations: those of a GPU of 9.0, and of one without tensor cores for bfloat16. */
static const char *const devices[] = {"capability=90,shared=232448,multiprocessors=16,together=1",
                                      "capability=75,shared=65536,multiprocessors=16,together=1"};

static void walk_gpus(void (*check)(const krait_ctx *, const kr_op *, kr_case *, int64_t)) {
  kr_case *c = malloc(sizeof *c);
  for (int d = 0; d < 2; d++) {
    setenv("KR_FAKE_CUDA", devices[d], 1);
    krait_ctx *ctx = open_extremes_ctx(1);
    for (char **name = op_names; *name; name++)
      for (int64_t index = 0, n = n_cases() / 3; index < n; index++) check(ctx, kr_op_find(*name), c, index);
    krait_ctx_close(&ctx);
  }
  free(c);
}

static void spread_nan(const krait_ctx *ctx, const kr_op *op, kr_case *c, int64_t index) {
  spread(ctx, op, c, index, NAN);
}

static void spoil_one_of_sequences(const krait_ctx *ctx, const kr_op *op, kr_case *c, int64_t index) {
  if (has_sequences(op->name)) spoil_one_of(ctx, op, c, index);
}

static void nan_spreads_on_gpus(void **state) { (void)state, walk_gpus(spread_nan); }
static void nan_never_reaches_another_sequence_on_gpus(void **state) { (void)state, walk_gpus(spoil_one_of_sequences); }

/* An infinite step of the SSD, whose sums over a chunk NaN would pass on to the sequences beside it. */
static void infinity_stays_in_its_sequence(void **state) {
  enum { L = 100, H = 2, P = 16, N = 16, FIRST = 32, BAD = 20 };
  static uint16_t x[L * H * P], B[L * N], C[L * N], dx[L * H * P], dB[L * N], dC[L * N];
  static float dt[L * H], A[H] = {-0.5f, -2}, ddt[L * H], dA[H];
  static int32_t sequence[L];
  const kr_op *op = kr_op_find("ssd_bwd");
  (void)state;
  setenv("KR_FAKE_CUDA", "capability=90,shared=232448,multiprocessors=16,together=1", 1);
  krait_ctx *ctx = open_extremes_ctx(1);
  for (int i = 0; i < L * H * P; i++) x[i] = kr_float_to_bf16((float)(i * 37 % 101) / 50 - 1);
  for (int i = 0; i < L * N; i++) B[i] = kr_float_to_bf16((float)(i * 29 % 97) / 48 - 1), C[i] = B[L * N - 1 - i];
  for (int i = 0; i < L * H; i++) dt[i] = 0.1f, sequence[i / H] = i / H >= FIRST;
  dt[BAD * H + 1] = INFINITY;
  kr_ssd_bwd_args a = {.call.size = sizeof a, .B = 1, .L = L, .H = H, .P = P, .N = N, .G = 1};
  const kr_view rows = {x, {L * H * P, H * P, P, 1}, KRAIT_BF16, 0}, matrix = {B, {L * N, N, N, 1}, KRAIT_BF16, 0},
                steps = {dt, {L * H, H, 1}, KRAIT_F32, 0};
  a.x = a.dout = a.dx = rows, a.dx.data = dx;
  a.Bmat = a.Cmat = a.dB = a.dC = matrix, a.Cmat.data = C, a.dB.data = dB, a.dC.data = dC;
  a.dt = a.ddt = steps, a.ddt.data = ddt, a.A = (kr_view){A, {1}, KRAIT_F32, 0}, a.dA = a.A, a.dA.data = dA;
  a.seq_idx = (kr_view){sequence, {L, 1}, KRAIT_I32, 0};
  for (const kr_impl *impl = op->impls; impl < op->impls + op->n_impls; impl++) {
    if (strstr(impl->name, "simd_") || strcmp(impl->name, "ref") == 0 || (impl->refuse && impl->refuse(ctx, &a)))
      continue;
    a.call.scratch_bytes = impl->scratch_bytes(ctx, &a);
    a.call.scratch = aligned_alloc(256, (a.call.scratch_bytes + 255) & ~(uint64_t)255);
    assert_int_equal(impl->run(ctx, &a), KRAIT_OK);
    free(a.call.scratch);
    for (int i = 0; i < L * H; i++)
      if (!isfinite(ddt[i]) && (i / H >= FIRST || i % H == 0))
        fail_msg("%s: step %d of head %d: %g", impl->name, i / H, i % H, (double)ddt[i]);
    for (int i = FIRST * H * P; i < L * H * P; i++) assert_true(isfinite(kr_bf16_to_float(dx[i])));
  }
  krait_ctx_close(&ctx);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  setenv("KRAIT_LIBCUDA", argv[1], 1), op_names = argv + 2;
  const struct CMUnitTest tests[] = {cmocka_unit_test(nan_spreads_on_gpus),
                                     cmocka_unit_test(infinity_stays_in_its_sequence),
                                     cmocka_unit_test(nan_never_reaches_another_sequence_on_gpus)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nan_spreads_as_in_the_reference), cmocka_unit_test(infinity_spreads_as_in_the_reference),
      cmocka_unit_test(nan_stays_in_its_sequence),       cmocka_unit_test(nan_never_reaches_another_sequence),
      cmocka_unit_test(elements_beyond_two_to_the_31),   cmocka_unit_test(outputs_that_are_inputs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
