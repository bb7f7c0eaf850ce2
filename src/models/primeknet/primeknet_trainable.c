/* primeknet_trainable.c: PrimeKnet for a framework's autograd (krait/trainable.h): one graph of the forward pass and
 * the gradients, run in two parts on the caller's tensors. */
#include "public_names.h"

#include <stdio.h>
#include <string.h>

#include <krait/trainable.h>

#include "alloc.h"
#include "ctx.h"
#include "primeknet_graph.h"
#include "sized.h"
#include "status.h"

typedef struct trainable_item {
  char name[KR_PK_MAX_NAME];
  int32_t role;
  kr_tensor tensor;
} trainable_item;

struct krait_trainable {
  const krait_ctx *ctx;
  kr_pk_config config;
  krait_trainable_options options;
  kr_graph *graph;
  kr_tensor last; /* the output that the forward pass ends with */
  trainable_item *items;
  int64_t n, capacity;
};

struct krait_trainable_run {
  const krait_trainable *trainable;
  kr_runner *runner;
  int has_run; /* forward, without a backward since */
};

/* ---- the graph ---- */

static kr_tensor add_item(krait_trainable *t, int32_t role, const char *name, kr_tensor tensor) {
  if (t->n == t->capacity) {
    const int64_t capacity = t->capacity ? 2 * t->capacity : 256;
    trainable_item *items =
        kr_realloc(t->items, (size_t)t->capacity * sizeof *items, (size_t)capacity * sizeof *items);
    if (!items) {
      kr_graph_set_error(t->graph, kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a list of parameters"));
      return tensor;
    }
    t->items = items, t->capacity = capacity;
  }
  trainable_item *item = &t->items[t->n++];
  *item = (trainable_item){.role = role, .tensor = tensor};
  snprintf(item->name, sizeof item->name, "%s", name);
  return tensor;
}

static kr_tensor add_parameter(void *trainable, kr_graph *g, const char *name, kr_dims dims) {
  return add_item(trainable, KRAIT_TRAINABLE_PARAMETER, name, kr_graph_weight(g, name, KRAIT_F32, dims, NULL));
}

static kr_tensor add_output(krait_trainable *t, const char *name, kr_dims dims) {
  return add_item(t, KRAIT_TRAINABLE_OUTPUT, name, kr_graph_output(t->graph, name, KRAIT_F32, dims));
}

static int is_frozen(const krait_trainable *t, const char *name) {
  for (int32_t i = 0; i < t->options.n_frozen; i++)
    if (strcmp(t->options.frozen[i], name) == 0) return 1;
  return 0;
}

/* The gradients of what is listed so far, after it in the list. */
static int32_t record_gradients(krait_trainable *t) {
  const int64_t n_listed = t->n;
  kr_gradient seeds[3], *wanted = kr_alloc_array((size_t)n_listed, sizeof *wanted);
  int n_seeds = 0, n_wanted = 0;
  KR_CHECK(wanted, KRAIT_ERR_NO_MEMORY, "no memory for a list of gradients");
  for (int64_t i = 0; i < n_listed; i++) {
    const trainable_item item = t->items[i];
    const kr_dims dims = kr_graph_dims(t->graph, item.tensor);
    const int of_input = item.role == KRAIT_TRAINABLE_INPUT && t->options.flags & KRAIT_TRAINABLE_INPUT_GRADIENT;
    if (item.role == KRAIT_TRAINABLE_OUTPUT)
      seeds[n_seeds++] = (kr_gradient){item.tensor, add_item(t, KRAIT_TRAINABLE_GRADIENT_OF_OUTPUT, item.name,
                                                             kr_graph_input(t->graph, item.name, KRAIT_F32, dims))};
    else if (of_input || (item.role == KRAIT_TRAINABLE_PARAMETER && !is_frozen(t, item.name)))
      wanted[n_wanted++] = (kr_gradient){
          item.tensor,
          add_item(t, of_input ? KRAIT_TRAINABLE_GRADIENT_OF_INPUT : KRAIT_TRAINABLE_GRADIENT_OF_PARAMETER, item.name,
                   kr_graph_output(t->graph, item.name, KRAIT_F32, dims))};
  }
  const int32_t status = kr_graph_backward(t->graph, seeds, n_seeds, wanted, n_wanted);
  kr_free(wanted);
  return status;
}

/* Without gradients a GPU runs it as krait enhance does, but for constants, which parameters are not. (On a CPU the
 * slices of KR_BUILD_PER_FRAME want the weights' addresses while they are recorded.) */
static int forward_mode(const krait_trainable *t) {
  if (t->options.flags & KRAIT_TRAINABLE_GRADIENT || !t->ctx->cuda || t->config.n_kernels > 8) return KR_BUILD_OPS;
  const int is_exact = !(t->options.flags & KRAIT_TRAINABLE_TF32) && !t->options.halves;
  return t->ctx->caps & KRAIT_CAP_CUDA_AMPERE && !is_exact ? KR_BUILD_FUSED_F16 : KR_BUILD_FUSED_F32;
}

static int32_t record_trainable(krait_trainable *t) {
  const int64_t B = t->options.B, T = t->options.T, F = t->config.F;
  const kr_dims plane = KR_DIMS(B, F, T), pairs = KR_DIMS(B, F, T, 2);
  kr_graph *g = t->graph;
  kr_pk_graph io = {.mode = forward_mode(t),
                    .halves = 0,
                    .recompute = (t->options.flags & KRAIT_TRAINABLE_RECOMPUTE) != 0};
  if (io.mode == KR_BUILD_OPS) io.halves = t->options.halves;
  io.com_in = add_item(t, KRAIT_TRAINABLE_INPUT, "com_in", kr_graph_input(g, "com_in", KRAIT_F32, pairs));
  io.mag = add_output(t, "mag", plane), io.pha = add_output(t, "pha", plane), io.com = add_output(t, "com", pairs);
  kr_pk_graph_record(g, &t->config, add_parameter, t, &io);
  t->last = io.com;
  KR_TRY(kr_graph_status(g));
  if (t->options.flags & KRAIT_TRAINABLE_GRADIENT) KR_TRY(record_gradients(t));
  return kr_graph_plan(g, t->ctx, t->options.flags & KRAIT_TRAINABLE_TF32 ? KR_PLAN_TF32 : 0);
}

/* ---- opening ---- */

static int32_t take_trainable_options(const krait_trainable_options *given, krait_trainable_options *o) {
  KR_TRY(kr_struct_take("krait_trainable_options", given, sizeof *o, o, sizeof *o));
  const uint32_t all = KRAIT_TRAINABLE_GRADIENT | KRAIT_TRAINABLE_INPUT_GRADIENT | KRAIT_TRAINABLE_TF32 |
                       KRAIT_TRAINABLE_RECOMPUTE;
  KR_CHECK(!(o->flags & ~all), KRAIT_ERR_ARGUMENT, "options.flags is %u, not KRAIT_TRAINABLE_*", o->flags);
  KR_CHECK(o->config, KRAIT_ERR_ARGUMENT, "options.config must not be NULL");
  KR_CHECK(o->B >= 1 && o->T >= 1 && o->B <= 65536 && o->T <= 1 << 24, KRAIT_ERR_ARGUMENT,
           "options: %lld windows of %lld frames: both must be at least 1", (long long)o->B, (long long)o->T);
  KR_CHECK(o->halves == 0 || o->halves == KRAIT_F16 || o->halves == KRAIT_BF16, KRAIT_ERR_ARGUMENT,
           "options.halves is %d, must be 0, KRAIT_F16 or KRAIT_BF16", (int)o->halves);
  KR_CHECK(o->n_frozen >= 0 && (o->frozen || !o->n_frozen), KRAIT_ERR_ARGUMENT,
           "options.frozen must have options.n_frozen names");
  return KRAIT_OK;
}

static int32_t open_trainable_parts(krait_trainable *t) {
  kr_config *config = NULL;
  KR_TRY(kr_config_open(NULL, NULL, t->options.config, &config));
  const int32_t status = kr_pk_config_read(kr_config_model(config), config, &t->config);
  kr_config_close(&config);
  KR_TRY(status);
  KR_CHECK(!t->config.streams, KRAIT_ERR_UNSUPPORTED, "a streaming model's batch norms change while it trains");
  KR_TRY(kr_graph_open(&t->graph));
  return record_trainable(t);
}

int32_t krait_trainable_open(const krait_ctx *ctx, const krait_trainable_options *options,
                             krait_trainable **trainable) {
  KR_CHECK(ctx && options && trainable, KRAIT_ERR_ARGUMENT, "ctx, options and trainable must not be NULL");
  *trainable = NULL;
  krait_trainable *t = kr_zalloc(sizeof *t);
  KR_CHECK(t, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  t->ctx = ctx;
  int32_t status = take_trainable_options(options, &t->options);
  if (status >= 0) status = open_trainable_parts(t);
  t->options.config = NULL, t->options.frozen = NULL;
  *trainable = t;
  if (status < 0) krait_trainable_close(trainable);
  return status;
}

void krait_trainable_close(krait_trainable **trainable) {
  if (!trainable || !*trainable) return;
  kr_graph_close(&(*trainable)->graph);
  kr_free((*trainable)->items);
  kr_free(*trainable);
  *trainable = NULL;
}

int64_t krait_trainable_n_tensors(const krait_trainable *t) { return t ? t->n : 0; }
uint64_t krait_trainable_bytes(const krait_trainable *t) { return t ? kr_graph_bytes(t->graph) : 0; }

int32_t krait_trainable_tensor_at(const krait_trainable *t, int64_t i, krait_trainable_tensor *tensor) {
  KR_CHECK(t && tensor, KRAIT_ERR_ARGUMENT, "trainable and tensor must not be NULL");
  KR_CHECK(tensor->size == sizeof *tensor, KRAIT_ERR_STRUCT_SIZE, "tensor.size is %u, must be %zu", tensor->size,
           sizeof *tensor);
  KR_CHECK(i >= 0 && i < t->n, KRAIT_ERR_ARGUMENT, "there is no tensor %lld: the model has %lld", (long long)i,
           (long long)t->n);
  const trainable_item *item = &t->items[i];
  const kr_dims dims = kr_graph_dims(t->graph, item->tensor);
  *tensor = (krait_trainable_tensor){
      .size = sizeof *tensor, .role = item->role, .name = item->name, .n_dims = (int32_t)dims.n};
  for (int k = 0; k < dims.n; k++) tensor->shape[k] = dims.size[k];
  return KRAIT_OK;
}

/* ---- runs ---- */

int32_t krait_trainable_run_open(const krait_trainable *t, void *memory, krait_trainable_run **run) {
  KR_CHECK(t && memory && run, KRAIT_ERR_ARGUMENT, "trainable, memory and run must not be NULL");
  KR_CHECK((uintptr_t)memory % 256 == 0, KRAIT_ERR_ARGUMENT, "memory must be aligned to 256 bytes");
  krait_trainable_run *r = *run = kr_zalloc(sizeof *r);
  KR_CHECK(r, KRAIT_ERR_NO_MEMORY, "no memory for a run");
  r->trainable = t;
  const int32_t status = kr_runner_open_in(t->graph, memory, kr_graph_bytes(t->graph), &r->runner);
  if (status < 0) krait_trainable_run_close(run);
  return status;
}

void krait_trainable_run_close(krait_trainable_run **run) {
  if (!run || !*run) return;
  kr_runner_close(&(*run)->runner);
  kr_free(*run);
  *run = NULL;
}

static int32_t bind_items(krait_trainable_run *run, void *const *tensors) {
  const krait_trainable *t = run->trainable;
  for (int64_t i = 0; i < t->n; i++) {
    KR_CHECK(tensors[i], KRAIT_ERR_ARGUMENT, "tensors[%lld], of %s, is NULL", (long long)i, t->items[i].name);
    KR_TRY(kr_runner_bind(run->runner, t->items[i].tensor, tensors[i]));
  }
  return KRAIT_OK;
}

int32_t krait_trainable_forward(krait_trainable_run *run, void *const *tensors, void *stream) {
  KR_CHECK(run && tensors, KRAIT_ERR_ARGUMENT, "run and tensors must not be NULL");
  run->has_run = 0;
  KR_TRY(bind_items(run, tensors));
  KR_TRY(kr_runner_run_to(run->runner, run->trainable->last, stream));
  run->has_run = 1;
  return KRAIT_OK;
}

int32_t krait_trainable_backward(krait_trainable_run *run, void *stream) {
  KR_CHECK(run, KRAIT_ERR_ARGUMENT, "run must not be NULL");
  KR_CHECK(run->trainable->options.flags & KRAIT_TRAINABLE_GRADIENT, KRAIT_ERR_ARGUMENT,
           "the model was opened without KRAIT_TRAINABLE_GRADIENT");
  KR_CHECK(run->has_run, KRAIT_ERR_ARGUMENT, "a gradient needs a forward pass of its own before it");
  run->has_run = 0;
  return kr_runner_run_after(run->runner, run->trainable->last, stream);
}
