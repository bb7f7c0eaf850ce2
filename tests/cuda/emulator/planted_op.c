/* planted_op.c: see planted_op.h. */
#include "planted_op.h"

#include <string.h>

#include "case.h"
#include "emulator.h"
#include "planted.h"
#include "status.h"

typedef struct planted_args {
  kr_call call;
  int64_t n;
  kr_view x, out;
} planted_args;

static const char planted_image[] = "// planted.\n", *planted_name;
static int is_planted_together;

void kr_planted_choose(const char *name, int is_cooperative) {
  planted_name = name, is_planted_together = is_cooperative;
}

static int32_t make_planted(kr_case *c, int64_t index) {
  planted_args *a = (planted_args *)c->args;
  (void)index;
  a->n = kr_case_int(c, 2, 120);
  kr_case_view(c, &a->x, "x", KR_IN, KRAIT_F32, KR_SHAPE(a->n));
  kr_case_view(c, &a->out, "out", KR_OUT, KRAIT_F32, KR_SHAPE(a->n));
  a->x.stride[0] = a->out.stride[0] = 1; /* the storage is at least this large */
  kr_case_fill_normal(c, &a->x, 0, 1);
  return KRAIT_OK;
}

static int32_t planted_reference(const krait_ctx *ctx, const void *args) {
  const planted_args *a = args;
  (void)ctx;
  for (int64_t i = 0; i < a->n; i++) ((float *)a->out.data)[i] = ((const float *)a->x.data)[a->n - 1 - i];
  return KRAIT_OK;
}

static int32_t planted_run(const krait_ctx *ctx, const void *args) {
  const planted_args *a = args;
  static _Alignas(16) uint64_t words[KR_PLANTED_WORDS];
  const kr_planted_params plan = {a->x.data, a->out.data, (int32_t)a->n, memset(words, 0, sizeof words)};
  void *kernel = kr_emulated_find(planted_image, planted_name);
  (void)ctx;
  KR_CHECK(kernel, KRAIT_ERR_DRIVER, "no kernel %s", planted_name);
  if (is_planted_together)
    kr_emulated_launch_cooperative(kernel, (const unsigned[]){KR_PLANTED_BLOCKS, 1, 1}, 40, 520, &plan);
  else
    kr_emulated_launch(kernel, (const unsigned[]){1, 1, 1}, 128, (unsigned)a->n * 4, &plan);
  return KRAIT_OK;
}

static const kr_impl planted_impls[] = {{"cuda_base", 0, NULL, planted_run, NULL},
                                      {"ref", KRAIT_CAP_CPU, NULL, planted_reference, NULL}};
static const kr_sig planted_sig = {.name = "planted", .args_bytes = sizeof(planted_args)}; /* nothing to check */
const kr_op kr_planted_op = {.name = "planted",
                                 .args_bytes = sizeof(planted_args),
                                 .sig = &planted_sig,
                                 .n_impls = 2,
                                 .impls = planted_impls,
                                 .make_case = make_planted,
                                 .n_cases = 20};
