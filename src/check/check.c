/* check.c: runs the reference, then every other implementation on the same inputs, and compares elements, guards and
 * gaps. */
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "case.h"
#include "conditioning.h"
#include "device_case.h"
#include "host_case.h"
#include "status.h"
#include "view.h"

typedef struct walk {
  const krait_ctx *ctx;
  const kr_op *op;
  const kr_check_options *options;
  kr_check_result *result;
  kr_case *c;
  int64_t index;
} walk;

static kr_view *check_view_of(kr_case *c, const kr_case_tensor *t) {
  return (kr_view *)(c->args + t->view_offset);
}

static void fail(walk *w, const kr_impl *impl, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void fail(walk *w, const kr_impl *impl, const char *format, ...) {
  char what[512], line[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(what, sizeof what, format, list);
  va_end(list);
  snprintf(line, sizeof line, "%s, implementation %s, case %lld, seed %llu%s%s: %s", w->op->name, impl->name,
           (long long)w->index, (unsigned long long)w->options->seed, w->c->label[0] ? ", " : "", w->c->label, what);
  if (!w->result->n_failures++) snprintf(w->result->first_failure, sizeof w->result->first_failure, "%s", line);
  if (w->options->report) w->options->report(w->options->user, line);
}

/* An infinity as the number beyond the type's largest one: either may round to the other. */
static double beyond(double v, int32_t dtype) {
  return isinf(v) ? copysign(dtype == KRAIT_F16 ? 0x1p16 : 0x1p128, v) : v;
}

/* Of the elements that are not zero: of an attention that masks most implementations, the others' terms are as large as
 * ever. */
static double rms_of(const kr_case_tensor *t, const kr_view *view) {
  double sum = 0;
  const int n_parts = view->dtype == KRAIT_C64 ? 2 : 1;
  int64_t counted = 0;
  for (kr_tensor_walk at = {.n_left = kr_tensor_elements(t)}; at.n_left; kr_tensor_step(&at, t, view))
    for (int part = 0; part < n_parts; part++) {
      const double value = beyond(kr_tensor_part(view, at.offset, part), view->dtype);
      if (isfinite(value) && value != 0) sum += value * value, counted++;
    }
  return counted ? sqrt(sum * n_parts / (double)counted) : 0;
}

/* How far beyond the inputs' last places a correct implementation may be: it rounds each of a sum's few hundred terms,
 * and one in 100,000 elements has five times the typical error. */
enum { MOST_MOVES = 32 };
static const double MOST_SHARE = 1e9;

/* With bounds from these on, implementations may round their factors to 16 bits, or to tf32: a unit in the last place
 * there, in units of a float32. Half of one is what a rounding costs at most; a draw of ten million elements has one
 * that exceeds the largest of a few draws with half. */
static double moves_of(const walk *w, const kr_case_tensor *t) {
  switch (w->c->dtype) {
  case KRAIT_BF16: return t->rtol < 1e-2 ? MOST_MOVES : 0x1p16;
  case KRAIT_F16: return t->rtol < 8e-3 ? MOST_MOVES : 0x1p13;
  default: return t->rtol < 5e-3 ? MOST_MOVES : 0x1p14; /* tf32 */
  }
}

/* A sum that is small compared with its terms is compared with the effect of its terms' last places; computed only if
 * the plain bound is violated. */
static double slack_of(walk *w, kr_case_tensor *t, int64_t at) {
  if (t->rtol == 0) return 0;
  if (!t->moved && kr_case_measure(w->c, w->ctx, &w->op->impls[w->op->n_impls - 1]) < 0) return 0;
  return moves_of(w, t) * t->moved[at];
}

/* The smallest normal number of a type: below it the spacing is constant. */
static double smallest_normal(int32_t dtype) { return dtype == KRAIT_F16 ? 0x1p-14 : 0x1p-126; }

static int agrees(walk *w, kr_case_tensor *t, double got, double want, double rms, int64_t at) {
  if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
  if (got == want) return 1;
  got = beyond(got, check_view_of(w->c, t)->dtype), want = beyond(want, check_view_of(w->c, t)->dtype);
  double error = fabs(got - want),
         bound = t->atol + t->rtol * fmax(fmax(fabs(want), rms), smallest_normal(check_view_of(w->c, t)->dtype));
  if (error > bound) bound += slack_of(w, t, at);
  const double share =
      error < MOST_SHARE * bound ? error / bound : MOST_SHARE; /* a finite number also where the bound is 0 */
  if (share > w->result->worst) w->result->worst = share;
  return error <= bound;
}

static void compare_elements(walk *w, const kr_impl *impl, kr_case_tensor *t) {
  kr_view got = *check_view_of(w->c, t), want = got;
  want.data = t->expected + ((unsigned char *)got.data - t->storage);
  double rms = rms_of(t, &want);
  int n_parts = got.dtype == KRAIT_C64 ? 2 : 1;
  kr_tensor_walk at = {.n_left = kr_tensor_elements(t)};
  const kr_view before = {t->initial + ((unsigned char *)got.data - t->storage), {0}, got.dtype, 0};
  int64_t n_nan = 0; /* no draw has NaN as its result: it would hide an implementation's own */
  for (int64_t i = 0; at.n_left; i++, kr_tensor_step(&at, t, &got))
    for (int part = 0; part < n_parts; part++) {
      double g = kr_tensor_part(&got, at.offset, part), e = kr_tensor_part(&want, at.offset, part);
      if (isnan(e) && isnan(g) && !(t->role & KR_IN && isnan(kr_tensor_part(&before, at.offset, part)))) n_nan++;
      if (agrees(w, t, g, e, rms, i * n_parts + part)) continue;
      fail(w, impl, "%s[%lld] is %.9g, the reference has %.9g (rms %.3g, %s)", t->name, (long long)i, g, e, rms,
           krait_dtype_name(got.dtype));
      return;
    }
  if (n_nan) fail(w, impl, "%s has %lld NaN, as the reference: the case tells nothing", t->name, (long long)n_nan);
}

/* Every byte that does not belong to an element of an output must be unchanged. */
static void compare_gaps(walk *w, const kr_impl *impl, const kr_case_tensor *t) {
  const kr_view *view = check_view_of(w->c, t);
  size_t element = krait_dtype_bytes(view->dtype), bytes = (size_t)t->n_storage * element;
  size_t start = (size_t)((unsigned char *)view->data - t->storage);
  unsigned char *const want = kr_alloc(bytes); /* as it was, but for an output's elements */
  if (!want) return;
  memcpy(want, t->initial, bytes);
  kr_tensor_walk at = {.n_left = t->role & KR_OUT ? kr_tensor_elements(t) : 0};
  for (; at.n_left; kr_tensor_step(&at, t, view)) {
    const size_t byte = start + (size_t)at.offset * element;
    memcpy(want + byte, t->storage + byte, element);
  }
  if (memcmp(want, t->storage, bytes) != 0) {
    size_t i = 0;
    while (want[i] == t->storage[i]) i++;
    fail(w, impl, "wrote outside the elements of %s, at byte %lld", t->name, (long long)i - (long long)start);
  }
  kr_free(want);
}

/* An implementation is selected by its name, or by the tier that its name begins with. */
static int is_of(const char *name, const char *asked) {
  const size_t length = strlen(asked);
  return strncmp(name, asked, length) == 0 && (name[length] == 0 || name[length] == '_');
}

static int32_t run_check_with_scratch(walk *w, const kr_impl *impl) {
  if (impl->needs & KRAIT_CAP_CPU) return kr_case_run_on_host(w->ctx, w->c, impl);
  return (w->options->run_device ? w->options->run_device : kr_case_run_on_device)(w->ctx, w->c, impl);
}

static void keep_expected(kr_case *c) {
  for (int i = 0; i < c->n_tensors; i++) {
    kr_case_tensor *t = &c->tensors[i];
    memcpy(t->expected, t->storage, (size_t)t->n_storage * krait_dtype_bytes(check_view_of(c, t)->dtype));
  }
}

static int is_meant(const walk *w, const kr_impl *impl) {
  return (impl->needs & w->ctx->caps) == impl->needs && (!w->options->impl || is_of(impl->name, w->options->impl));
}

static int is_refused(const walk *w, const kr_impl *impl) { return impl->refuse && impl->refuse(w->ctx, w->c->args); }

static void compare_case(walk *w, const kr_impl *impl) {
  for (int i = 0; i < w->c->n_tensors; i++) {
    kr_case_tensor *t = &w->c->tensors[i];
    if (t->role & KR_OUT) compare_elements(w, impl, t);
    compare_gaps(w, impl, t);
  }
}

static void check_impl(walk *w, const kr_impl *impl) {
  if (is_refused(w, impl)) {
    w->result->n_refused++;
    return;
  }
  kr_case_reset(w->c);
  w->result->n_runs++, w->result->n_hard += w->c->is_hard;
  const int32_t status = run_check_with_scratch(w, impl);
  if (status < 0) fail(w, impl, "%s: %s", krait_status_name(status), krait_error_detail());
  else compare_case(w, impl);
}

static void count_for(walk *w, int32_t impl) {
  if (w->options->by_impl) w->result = &w->options->by_impl[impl];
}

/* The reference, the last implementation, has just run: its guards, gaps and NaN. That it computes the same again is
 * asked of every eighth case, for its runs are half of all time. */
enum { EVERY = 8 };

static void check_reference(walk *w, const kr_impl *ref) {
  count_for(w, w->op->n_impls - 1);
  if (!is_meant(w, ref)) return;
  if (w->index % EVERY == 0) {
    check_impl(w, ref);
    return;
  }
  w->result->n_runs++, w->result->n_hard += w->c->is_hard;
  compare_case(w, ref);
}

static void check_rows(walk *w) {
  for (int32_t i = 0; i < w->op->n_impls - 1; i++) {
    count_for(w, i);
    if (is_meant(w, &w->op->impls[i])) check_impl(w, &w->op->impls[i]);
  }
}

/* Otherwise the reference need not run. */
static int some_row_runs(const walk *w) {
  for (int32_t i = 0; i < w->op->n_impls; i++)
    if (is_meant(w, &w->op->impls[i]) && !is_refused(w, &w->op->impls[i])) return 1;
  return 0;
}

/* Of a call that those asked for refuse no values are drawn: they would take nearly all of a selected row's time. */
static int32_t count_if_refused(walk *w, int *is_done) {
  KR_TRY(kr_case_open(w->c, w->op, w->options->seed, w->index, KR_CASE_ASKED));
  *is_done = kr_op_check(w->op, w->c->args) >= 0 && !some_row_runs(w);
  if (*is_done) check_rows(w);
  kr_case_close(w->c);
  return KRAIT_OK;
}

static int32_t check_case(walk *w) {
  const kr_impl *ref = &w->op->impls[w->op->n_impls - 1];
  kr_check_result *all = w->result;
  int is_done = 0;
  all->n_cases++;
  if (w->options->impl) KR_TRY(count_if_refused(w, &is_done));
  w->result = all;
  if (is_done) return KRAIT_OK;
  KR_TRY(kr_case_open(w->c, w->op, w->options->seed, w->index, KR_CASE_CHECKED));
  count_for(w, w->op->n_impls - 1);
  int32_t status = kr_op_check(w->op, w->c->args);
  if (status >= 0 && some_row_runs(w)) {
    status = run_check_with_scratch(w, ref);
    keep_expected(w->c);
    if (status >= 0) check_reference(w, ref);
  }
  if (status < 0) fail(w, ref, "%s: %s", krait_status_name(status), krait_error_detail());
  else check_rows(w);
  w->result = all;
  kr_case_close(w->c);
  return KRAIT_OK;
}

int32_t kr_check_op(const krait_ctx *ctx, const kr_op *op, const kr_check_options *options, kr_check_result *result) {
  *result = (kr_check_result){0};
  KR_CHECK(op->make_case, KRAIT_ERR_UNSUPPORTED, "%s has no cases", op->name);
  kr_case *c = kr_alloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a case");
  walk w = {ctx, op, options, result, c, 0};
  int32_t status = KRAIT_OK;
  int64_t n = options->n_cases > 0 ? options->n_cases : op->n_cases;
  for (w.index = options->first_case; w.index < options->first_case + n && status >= 0; w.index++)
    status = check_case(&w);
  kr_free(c);
  return status;
}
