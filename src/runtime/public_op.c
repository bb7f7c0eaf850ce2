/* public_op.c: a caller's tensors become the args of an operator, and the call runs. */
#include "public_op.h"

#include <string.h>

#include "answer.h"
#include "lent_scratch.h"
#include "status.h"

enum { MOST_TENSORS = KR_MOST_VIEWS };

_Static_assert(sizeof(krait_call) == sizeof(kr_call) && offsetof(krait_call, scratch) == offsetof(kr_call, scratch),
               "krait_call is not kr_call");
_Static_assert(sizeof(krait_tensor) == 80, "a krait_tensor as Python packs it");

static const krait_tensor *tensor_at(const kr_public_op *p, const void *given, int i) {
  return (const krait_tensor *)((const char *)given + p->tensors[i]);
}

/* Callers built with other headers: a shorter struct, whose rest is zero, or a longer one, whose tail must be zero. */
static int32_t complete_given(const kr_public_op *p, const void *given, void *buffer, const void **complete) {
  KR_CHECK(given, KRAIT_ERR_ARGUMENT, "%s: args must not be NULL", p->op->name);
  const uint32_t size = ((const krait_call *)given)->size;
  *complete = given;
  if (size == p->args_bytes) return KRAIT_OK;
  KR_CHECK(size >= sizeof(krait_call) && size <= KR_MOST_PUBLIC_BYTES, KRAIT_ERR_STRUCT_SIZE,
           "%s: args.call.size is %u, this library knows %u", p->op->name, size, p->args_bytes);
  for (uint32_t i = p->args_bytes; i < size; i++)
    KR_CHECK(((const unsigned char *)given)[i] == 0, KRAIT_ERR_STRUCT_SIZE,
             "%s: args is newer than this library and uses an unknown field (byte %u)", p->op->name, i);
  memset(buffer, 0, p->args_bytes);
  memcpy(buffer, given, size < p->args_bytes ? size : p->args_bytes);
  *complete = buffer;
  return KRAIT_OK;
}

/* ---- tensors ---- */

static void fill_dense_strides(const krait_tensor *t, int64_t *stride) {
  uint64_t n = 1; /* sizes of hostile callers: their products are the size of no tensor, but must not trap */
  for (int d = t->n_dims - 1; d >= 0; d--) {
    stride[d] = (int64_t)n;
    n *= (uint64_t)t->size[d];
  }
}

static int32_t take_tensor(const kr_public_op *p, int i, const krait_tensor *t, kr_view *view, kr_shape *shape) {
  const char *op = p->op->name, *name = p->op->sig->tensors[i].name;
  KR_CHECK(t->n_dims >= 1 && t->n_dims <= 4, KRAIT_ERR_SHAPE, "%s: %s has %d dimensions, must have 1 to 4", op, name,
           t->n_dims);
  KR_CHECK(!(t->flags & ~KRAIT_TENSOR_STRIDED), KRAIT_ERR_ARGUMENT, "%s: %s has unknown flags 0x%x", op, name,
           (unsigned)t->flags);
  int is_strided = t->flags & KRAIT_TENSOR_STRIDED;
  for (int d = 0; d < t->n_dims; d++) is_strided |= t->stride[d] != 0;
  for (int d = 0; d < t->n_dims; d++) {
    const int is_open = t->size[d] == -1 && is_strided && t->stride[d] == 0;
    KR_CHECK(t->size[d] >= 0 || is_open, KRAIT_ERR_SHAPE, "%s: %s has size %lld in dimension %d%s", op, name,
             (long long)t->size[d], d + 1, t->size[d] == -1 ? ", which needs stride 0" : "");
    shape->size[d] = t->size[d];
  }
  *view = (kr_view){.data = t->data, .dtype = t->dtype};
  shape->n_dims = t->n_dims;
  if (is_strided)
    memcpy(view->stride, t->stride, (size_t)t->n_dims * sizeof *view->stride);
  else
    fill_dense_strides(t, view->stride);
  return KRAIT_OK;
}

/* known: bits of the sizes that options say. */
static void take_options(const kr_public_op *p, const void *given, void *args, uint32_t *known) {
  for (int i = 0; i < p->n_options; i++) {
    const kr_public_option *o = &p->options[i];
    int64_t value = 0;
    memcpy(&value, (const char *)given + o->from, o->bytes);
    memcpy((char *)args + o->to, &value, o->bytes);
    if (o->size >= 0 && (value || !o->open)) *known |= 1u << o->size;
  }
}

/* All but the sizes. */
static int32_t take_parts(const kr_public_op *p, const void *given, void *args, kr_shape *shapes, uint32_t *known) {
  _Alignas(16) unsigned char buffer[KR_MOST_PUBLIC_BYTES];
  KR_TRY(complete_given(p, given, buffer, &given));
  memset(args, 0, p->op->args_bytes);
  memcpy(args, given, sizeof(kr_call));
  ((kr_call *)args)->size = p->op->args_bytes;
  *known = 0;
  take_options(p, given, args, known);
  for (int i = 0; i < p->op->sig->n_tensors; i++) {
    const krait_tensor *t = tensor_at(p, given, i);
    shapes[i].n_dims = KR_SHAPE_ABSENT;
    if (t->data) KR_TRY(take_tensor(p, i, t, kr_sig_view(p->op->sig, args, i), &shapes[i]));
  }
  return KRAIT_OK;
}

int32_t kr_public_take(const kr_public_op *p, const void *given, void *args) {
  kr_shape shapes[MOST_TENSORS];
  uint32_t known;
  KR_TRY(take_parts(p, given, args, shapes, &known));
  return kr_sig_derive(p->op->sig, args, shapes, known);
}

static void give_tensor(const kr_sig *sig, const void *args, uint32_t facts, int i, krait_tensor *t) {
  const kr_view *view = kr_sig_view(sig, args, i);
  const kr_shape shape = kr_sig_shape(sig, args, facts, i);
  if (!view->data) return;
  *t = (krait_tensor){
      .data = view->data, .dtype = view->dtype, .n_dims = (int16_t)shape.n_dims, .flags = KRAIT_TENSOR_STRIDED};
  memcpy(t->size, shape.size, sizeof t->size);
  memcpy(t->stride, view->stride, (size_t)shape.n_dims * sizeof *t->stride);
}

void kr_public_give(const kr_public_op *p, const void *args, void *made) {
  const kr_sig *sig = p->op->sig;
  memset(made, 0, p->args_bytes);
  memcpy(made, args, sizeof(kr_call));
  ((krait_call *)made)->size = p->args_bytes;
  for (int i = 0; i < p->n_options; i++)
    memcpy((char *)made + p->options[i].from, (const char *)args + p->options[i].to, p->options[i].bytes);
  for (int i = 0; i < sig->n_tensors; i++)
    give_tensor(sig, args, kr_sig_facts(sig, args), i, (krait_tensor *)((char *)made + p->tensors[i]));
}

/* ---- calls ---- */

int32_t kr_taken_run(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, void *args) {
  const uint64_t bytes = impl && impl->scratch_bytes ? impl->scratch_bytes(ctx, args) : 0;
  if (bytes && !((kr_call *)args)->scratch) return kr_lent_run(op, impl, ctx, args, bytes);
  return kr_op_run_impl(op, impl, ctx, args, bytes);
}

static int32_t run_public(const kr_public_op *p, const krait_ctx *ctx, const void *given) {
  _Alignas(16) unsigned char args[KR_MOST_ARGS_BYTES];
  const kr_impl *impl = NULL;
  KR_CHECK(ctx, KRAIT_ERR_ARGUMENT, "%s: ctx must not be NULL", p->op->name);
  KR_TRY(kr_public_take(p, given, args));
  KR_TRY(kr_op_prepare(p->op, ctx, args, NULL, &impl));
  return kr_taken_run(p->op, impl, ctx, args);
}

int32_t kr_public_run(const kr_public_op *p, const krait_ctx *ctx, const void *given) {
  return kr_answer(run_public(p, ctx, given));
}

int32_t kr_public_check_shapes(const kr_public_op *p, const void *given) {
  _Alignas(16) unsigned char args[KR_MOST_ARGS_BYTES];
  kr_shape shapes[MOST_TENSORS];
  uint32_t known;
  KR_TRY(take_parts(p, given, args, shapes, &known));
  return kr_sig_check_shapes(p->op->sig, args, shapes, known);
}
