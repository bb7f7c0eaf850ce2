/* conditioning.c: the largest change of each output of the reference when every input changes by one unit in the last
 * place of a float32, up or down at random, in a few draws. An implementation that rounds to float32 differs from the
 * reference by a small multiple of this, however small a sum is compared with its terms; a wrong implementation differs
 * by far more. 16-bit inputs change by one of their own units, and the result is scaled down. */
#include "conditioning.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "case.h"
#include "host_case.h"
#include "status.h"

enum { DRAWS = 8 };

static kr_view *conditioning_view_of(kr_case *c, const kr_case_tensor *t) {
  return (kr_view *)(c->args + t->view_offset);
}
static int parts_of(const kr_view *view) { return view->dtype == KRAIT_C64 ? 2 : 1; }
static size_t conditioning_bytes_of(kr_case *c, const kr_case_tensor *t) {
  return (size_t)t->n_storage * krait_dtype_bytes(conditioning_view_of(c, t)->dtype);
}

/* For each input type: its unit in the last place relative to a float32's. */
static const struct {
  int32_t dtype;
  double longer;
} groups[] = {{KRAIT_F32, 1}, {KRAIT_C64, 1}, {KRAIT_F16, 0x1p13}, {KRAIT_BF16, 0x1p16}};
enum { N_GROUPS = sizeof groups / sizeof *groups };

/* Zeros stay: they are exact. So do infinities, and the largest numbers do not become ones. */
static void nudge_float(float *value, int up) {
  const float moved = nextafterf(*value, up ? INFINITY : -INFINITY);
  if (isfinite(moved) && *value != 0) *value = moved;
}
static void nudge_half(uint16_t *value, int up, uint16_t exponent) {
  const uint16_t moved = (uint16_t)(*value + (up ? 1 : -1));
  if (*value & 0x7fff && (*value & exponent) != exponent && (moved & exponent) != exponent) *value = moved;
}

static void nudge(kr_case *c, const kr_case_tensor *t) {
  kr_view *view = conditioning_view_of(c, t);
  const int n_parts = parts_of(view), is_half = krait_dtype_bytes(view->dtype) == 2;
  for (kr_tensor_walk w = {.n_left = kr_tensor_elements(t)}; w.n_left; kr_tensor_step(&w, t, view))
    for (int part = 0; part < n_parts; part++) {
      const int64_t at = w.offset * n_parts + part;
      const int up = kr_case_chance(c, 0.5);
      if (is_half) nudge_half((uint16_t *)view->data + at, up, view->dtype == KRAIT_F16 ? 0x7c00 : 0x7f80);
      else nudge_float((float *)view->data + at, up);
    }
}

static int nudge_group(kr_case *c, int group) {
  int n = 0;
  for (int i = 0; i < c->n_tensors; i++)
    if (c->tensors[i].role & KR_IN && conditioning_view_of(c, &c->tensors[i])->dtype == groups[group].dtype)
      nudge(c, &c->tensors[i]), n++;
  return n;
}

static void note_moves(kr_case *c, kr_case_tensor *t, double longer) {
  kr_view now = *conditioning_view_of(c, t), was = now;
  was.data = t->expected + ((unsigned char *)now.data - t->storage);
  const int n_parts = parts_of(&now);
  double *moved = t->moved;
  for (kr_tensor_walk at = {.n_left = kr_tensor_elements(t)}; at.n_left; kr_tensor_step(&at, t, &now))
    for (int part = 0; part < n_parts; part++, moved++) {
      const double move = fabs(kr_tensor_part(&now, at.offset, part) - kr_tensor_part(&was, at.offset, part)) / longer;
      if (move > *moved) *moved = move;
    }
}

static int32_t draw_conditioning(kr_case *c, const krait_ctx *ctx, const kr_impl *reference, int group) {
  kr_case_reset(c);
  if (!nudge_group(c, group)) return KRAIT_OK;
  KR_TRY(kr_case_run_on_host(ctx, c, reference));
  for (int i = 0; i < c->n_tensors; i++)
    if (c->tensors[i].role & KR_OUT) note_moves(c, &c->tensors[i], groups[group].longer);
  return KRAIT_OK;
}

/* A few draws may hardly change one element of thousands: each counts as changed by at least the root mean square. */
static void level_moves(kr_case *c, kr_case_tensor *t) {
  const int64_t n = kr_tensor_elements(t) * parts_of(conditioning_view_of(c, t));
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += isfinite(t->moved[i]) ? t->moved[i] * t->moved[i] : 0;
  const double least = n ? sqrt(sum / (double)n) : 0;
  for (int64_t i = 0; i < n; i++)
    if (t->moved[i] < least) t->moved[i] = least;
}

int32_t kr_case_measure(kr_case *c, const krait_ctx *ctx, const kr_impl *reference) {
  unsigned char *kept[KR_CASE_MAX_VIEWS] = {0};
  int32_t status = KRAIT_OK;
  for (int i = 0; i < c->n_tensors && status >= 0; i++) {
    kr_case_tensor *t = &c->tensors[i];
    kept[i] = kr_alloc(conditioning_bytes_of(c, t));
    t->moved = kr_zalloc((size_t)(kr_tensor_elements(t) * parts_of(conditioning_view_of(c, t))) * sizeof *t->moved);
    if (!kept[i] || !t->moved) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a case");
    else memcpy(kept[i], t->storage, conditioning_bytes_of(c, t));
  }
  for (int k = 0; k < DRAWS * N_GROUPS && status >= 0; k++) status = draw_conditioning(c, ctx, reference, k / DRAWS);
  for (int i = 0; i < c->n_tensors; i++) {
    if (kept[i]) memcpy(c->tensors[i].storage, kept[i], conditioning_bytes_of(c, &c->tensors[i]));
    if (c->tensors[i].moved) level_moves(c, &c->tensors[i]);
    kr_free(kept[i]);
  }
  return status;
}
