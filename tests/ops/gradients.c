/* gradients.c: the reference gradients against finite differences of the reference forward calls, in float64, to 1e-6.
 * Fourth-order central differences on the checker's random calls, made exact: small, in float64, with every output
 * given. The signatures say which gradient belongs to which input; every op with a gradient is tested. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "alloc.h"
#include "case.h"
#include "all_ops.h"
#include "view.h"

enum { MOST_SAMPLES = 12, SEEDS = 8 };
static const double step = 0x1p-10; /* exact on the grid of complex parameters, which are stored in float32 */

typedef struct problem {
  const kr_op *op, *gradient;
  krait_ctx *ctx;
  kr_case c;
  _Alignas(16) unsigned char backward[4096];
  void *blocks[128];
  int n_blocks;
  uint32_t random;
} problem;

static int is_given_for_gradients(const problem *p, int tensor) {
  return kr_has(kr_sig_view(p->op->sig, p->c.args, tensor));
}
static int parts_of(const kr_view *v) { return v->dtype == KRAIT_C64 ? 2 : 1; }

static kr_case_tensor *find(problem *p, int tensor) {
  for (int i = 0; i < p->c.n_tensors; i++)
    if (p->c.tensors[i].view_offset == p->op->sig->tensors[tensor].offset) return &p->c.tensors[i];
  return NULL;
}

static double draw(problem *p) {
  p->random = p->random * 1664525u + 1013904223u;
  return round(((double)(p->random >> 8) * 0x1p-24 - 0.5) * 1024) / 512; /* -1..1 on a grid of 2^-9 */
}

static void *place(const kr_view *v, const kr_case_tensor *t, int64_t i) {
  const int parts = parts_of(v);
  const int64_t at = kr_tensor_offset(t, v, i / parts) * parts + i % parts;
  return v->dtype == KRAIT_F64 ? (void *)((double *)v->data + at) : (void *)((float *)v->data + at);
}
static double get(const kr_view *v, const kr_case_tensor *t, int64_t i) {
  return v->dtype == KRAIT_F64 ? *(double *)place(v, t, i) : *(float *)place(v, t, i);
}
static void put(const kr_view *v, const kr_case_tensor *t, int64_t i, double value) {
  if (v->dtype == KRAIT_F64) *(double *)place(v, t, i) = value;
  else *(float *)place(v, t, i) = (float)value;
}
static int64_t numbers_of(const kr_view *v, const kr_case_tensor *t) { return kr_tensor_elements(t) * parts_of(v); }

/* The gradient of a tensor of the call, in the tensor's layout; an output's contains weights. */
static void give_gradient(problem *p, int tensor) {
  const kr_sig_tensor *t = &p->op->sig->tensors[tensor];
  const kr_case_tensor *of = find(p, tensor);
  kr_view *v = kr_sig_view(p->gradient->sig, p->backward, t->gradient),
             *view = kr_sig_view(p->op->sig, p->c.args, tensor);
  *v = *view;
  unsigned char *block = p->blocks[p->n_blocks++] = kr_zalloc((size_t)of->n_storage * krait_dtype_bytes(v->dtype));
  v->data = block + ((unsigned char *)view->data - of->storage);
  for (int64_t i = 0, n = numbers_of(v, of); t->role & KR_OUT && i < n; i++) put(v, of, i, draw(p));
}

static void run_gradients(problem *p, const kr_op *op, void *args) {
  const kr_impl *ref = &op->impls[op->n_impls - 1];
  kr_call *call = args;
  const uint64_t bytes = ref->scratch_bytes ? ref->scratch_bytes(p->ctx, args) : 0;
  call->scratch_bytes = bytes, call->scratch = kr_alloc(bytes + 1);
  if (ref->run(p->ctx, args) < 0) fail_msg("%s: %s", op->name, krait_error_detail());
  kr_free(call->scratch);
}

static double loss(problem *p) {
  double sum = 0;
  run_gradients(p, p->op, p->c.args);
  for (int t = 0; t < p->op->sig->n_tensors; t++) {
    const kr_sig_tensor *about = &p->op->sig->tensors[t];
    if (!(about->role & KR_OUT) || about->gradient < 0 || !is_given_for_gradients(p, t)) continue;
    const kr_view *out = kr_sig_view(p->op->sig, p->c.args, t),
                     *weight = kr_sig_view(p->gradient->sig, p->backward, about->gradient);
    for (int64_t i = 0, n = numbers_of(out, find(p, t)); i < n; i++) {
      const double value = get(out, find(p, t), i);
      if (isfinite(value)) sum += value * get(weight, find(p, t), i); /* log 0 has no slope */
    }
  }
  return sum;
}

static double slope(problem *p, const kr_view *v, const kr_case_tensor *t, int64_t i) {
  static const double moves[] = {1, -1, 2, -2};
  const double was = get(v, t, i);
  double at[4];
  for (int k = 0; k < 4; k++) {
    put(v, t, i, was + moves[k] * step);
    at[k] = loss(p);
  }
  put(v, t, i, was);
  return (8 * (at[0] - at[1]) - (at[2] - at[3])) / (12 * step);
}

static int compare_gradients(problem *p, int tensor, uint64_t seed, int64_t index) {
  const kr_sig_tensor *about = &p->op->sig->tensors[tensor];
  const kr_case_tensor *t = find(p, tensor);
  const kr_view *view = kr_sig_view(p->op->sig, p->c.args, tensor),
                   *grad = kr_sig_view(p->gradient->sig, p->backward, about->gradient);
  const int64_t n = numbers_of(view, t), stride = n / MOST_SAMPLES + 1;
  double square = 0;
  for (int64_t i = 0; i < n; i++) square += get(grad, t, i) * get(grad, t, i);
  const double rms = sqrt(square / (double)n);
  for (int64_t i = 0; i < n; i += stride) {
    const double want = slope(p, view, t, i), got = get(grad, t, i);
    if (!(fabs(got - want) <= 1e-6 * (fabs(want) + rms) + 1e-10))
      fail_msg("%s, case %d, seed %d: gradient of %s[%d] is %.12g, differences give %.12g (rms %.3g)", p->op->name,
               (int)index, (int)seed, about->name, (int)i, got, want, rms);
  }
  return 1;
}

/* Rounds complex numbers to a grid on which the step is exact. */
static void round_complex(problem *p) {
  for (int i = 0; i < p->c.n_tensors; i++) {
    const kr_view *v = (const kr_view *)(p->c.args + p->c.tensors[i].view_offset);
    for (int64_t k = 0; v->dtype == KRAIT_C64 && p->c.tensors[i].role & KR_IN && k < numbers_of(v, &p->c.tensors[i]);
         k++)
      put(v, &p->c.tensors[i], k, round(get(v, &p->c.tensors[i], k) * 1024) / 1024);
  }
}

/* Float32 states, with complex A, would make the differences inaccurate. */
static int is_blurred(const problem *p, int tensor) {
  return p->c.is_complex && p->op->sig->tensors[tensor].tensor_class == KR_CLASS_STATE;
}

static void take_out(problem *p, int tensor) { kr_sig_view(p->op->sig, p->c.args, tensor)->data = NULL; }

static void check_case(problem *p, uint64_t seed, int64_t index, int *seen) {
  const kr_sig *sig = p->op->sig;
  assert_int_equal(kr_case_open(&p->c, p->op, seed, index, KR_CASE_EXACT), KRAIT_OK);
  p->n_blocks = 0;
  round_complex(p);
  for (int t = 0; t < sig->n_tensors; t++)
    if (is_blurred(p, t)) take_out(p, t);
  run_gradients(p, p->op, p->c.args); /* its outputs may be read later */
  kr_sig_begin_gradient(sig, p->c.args, p->backward);
  for (int t = 0; t < sig->n_tensors; t++)
    if (sig->tensors[t].gradient >= 0 && is_given_for_gradients(p, t)) give_gradient(p, t);
  run_gradients(p, p->gradient, p->backward);
  for (int t = 0; t < sig->n_tensors; t++)
    if (!(sig->tensors[t].role & KR_OUT) && sig->tensors[t].gradient >= 0 && is_given_for_gradients(p, t))
      seen[t] += compare_gradients(p, t, seed, index);
  while (p->n_blocks) kr_free(p->blocks[--p->n_blocks]);
  kr_case_close(&p->c);
}

/* KR_CHECK_PERCENT scales this test like the checker's, but every tensor must occur. */
static uint64_t n_seeds(void) {
  const char *percent = getenv("KR_CHECK_PERCENT");
  return percent ? (uint64_t)(SEEDS * atoi(percent) / 100) : SEEDS;
}

/* A tensor that occurred in no case, or NULL. */
static const char *not_seen(const kr_sig *sig, const int *seen) {
  for (int t = 0; t < sig->n_tensors; t++)
    if (!(sig->tensors[t].role & KR_OUT) && sig->tensors[t].gradient >= 0 && !seen[t]) return sig->tensors[t].name;
  return NULL;
}

static void check_op(void **state) {
  static problem p;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  int seen[64] = {0};
  p.op = *state, p.gradient = p.op->sig->gradient->op, p.random = 7;
  assert_int_equal(krait_ctx_open(&options, &p.ctx), KRAIT_OK);
  static const int64_t cases[] = {1,  4,  5, 9,
                                  11, 13, 29}; /* without the sizes that only matter to fast implementations */
  for (uint64_t seed = 1, n = n_seeds(); seed <= n || (seed <= SEEDS && not_seen(p.op->sig, seen)); seed++)
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) check_case(&p, seed, cases[k], seen);
  if (not_seen(p.op->sig, seen)) fail_msg("%s: no case has %s", p.op->name, not_seen(p.op->sig, seen));
  krait_ctx_close(&p.ctx);
}

int main(void) {
  struct CMUnitTest tests[64];
  size_t n = 0;
  for (int32_t i = 0; i < kr_n_ops; i++)
    if (kr_ops[i]->sig->gradient)
      tests[n++] = (struct CMUnitTest){kr_ops[i]->name, check_op, NULL, NULL, (void *)kr_ops[i]};
  return _cmocka_run_group_tests("gradients", tests, n, NULL, NULL);
}
