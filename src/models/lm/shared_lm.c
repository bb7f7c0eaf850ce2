/* shared_lm.c: Mamba, Mamba-2, Mamba-3 and attention on the caller's weights and states (krait/shared_lm.h): the graphs
 * of lm_graph.c. */
#include "public_names.h"

#include <krait/shared_lm.h>

#include "alloc.h"
#include "block_given.h"
#include "block_mamba.h"
#include "ctx.h"
#include "lm_graph.h"
#include "sized.h"
#include "status.h"

enum { MOST_SLOTS = 1024, MOST_SIZE = 1 << 24, MOST_PROMPT = 1 << 20 };

struct krait_shared_lm {
  kr_lm_config *c;
  kr_lm_weights w;
  kr_lm_slots slots;
  kr_lm_graph_list graphs;
  const int32_t *lengths; /* with attention */
};

/* ---- opening ---- */

typedef struct shared_size {
  const char *name;
  int64_t n, least, most;
} shared_size;

static int32_t check_each_size(const shared_size *sizes, size_t n) {
  for (size_t i = 0; i < n; i++)
    KR_CHECK(sizes[i].n >= sizes[i].least && sizes[i].n <= sizes[i].most, KRAIT_ERR_ARGUMENT,
             "options.%s is %lld, must be %lld to %lld", sizes[i].name, (long long)sizes[i].n,
             (long long)sizes[i].least, (long long)sizes[i].most);
  return KRAIT_OK;
}

static int32_t check_shared_dtype(int32_t dtype) {
  KR_CHECK(dtype == KRAIT_F32 || dtype == KRAIT_F16 || dtype == KRAIT_BF16, KRAIT_ERR_ARGUMENT,
           "options.dtype is %d, must be KRAIT_F32, KRAIT_F16 or KRAIT_BF16", (int)dtype);
  return KRAIT_OK;
}

static int32_t check_shared_sizes(const krait_shared_lm_options *o) {
  const shared_size sizes[] = {{"n_layers", o->n_layers, 1, KR_LM_MOST_LAYERS},
                               {"n_slots", o->n_slots, 1, MOST_SLOTS},
                               {"D", o->D, 1, MOST_SIZE},
                               {"V", o->V, 1, MOST_SIZE},
                               {"E", o->E, 1, MOST_SIZE},
                               {"N", o->N, 1, MOST_SIZE},
                               {"W", o->W, 2, MOST_SIZE},
                               {"R", o->R, 0, MOST_SIZE},
                               {"H", o->H, o->R ? 0 : 1, MOST_SIZE},
                               {"G", o->G, o->R ? 0 : 1, MOST_SIZE}};
  KR_TRY(check_each_size(sizes, sizeof sizes / sizeof *sizes));
  KR_CHECK(o->R || (o->E % o->H == 0 && o->H % o->G == 0), KRAIT_ERR_ARGUMENT,
           "options: E %lld must be a multiple of H %lld, and that of G %lld", (long long)o->E, (long long)o->H,
           (long long)o->G);
  return KRAIT_OK;
}

static int32_t take_shared_options(const krait_shared_lm_options *given, krait_shared_lm_options *o) {
  KR_TRY(kr_struct_take("krait_shared_lm_options", given, sizeof *o, o, sizeof *o));
  KR_CHECK(!(o->flags & ~KRAIT_SHARED_LM_NARROW), KRAIT_ERR_ARGUMENT, "options.flags is %u, not KRAIT_SHARED_LM_*",
           o->flags);
  KR_TRY(check_shared_dtype(o->dtype));
  KR_CHECK(o->embedding && o->head && o->norm_f && o->states, KRAIT_ERR_ARGUMENT,
           "options.embedding, head, norm_f and states must not be NULL");
  return check_shared_sizes(o);
}

static int32_t take_shared_layer(const krait_shared_lm_layer *from, int64_t i, int32_t dtype, kr_lm_block *block) {
  kr_lm_mamba_weights *w = block->weights;
  const int is_second = kr_mamba_is_second(block);
  const struct {
    const char *name;
    const void *data;
    kr_weight_ref *to;
    int32_t is_float, is_absent, is_optional;
  } all[] = {{"norm", from->norm, &block->norm_weight, 0, 0, 0},
             {"in_proj", from->in_proj, &w->in_proj, 0, 0, 0},
             {"conv", from->conv, &w->conv, 0, 0, 0},
             {"conv_bias", from->conv_bias, &w->conv_bias, 0, 0, 1},
             {"x_proj", from->x_proj, &w->x_proj, 0, is_second, 0},
             {"dt_proj", from->dt_proj, &w->dt_proj, 0, is_second, 0},
             {"A", from->A, &w->A, 1, 0, 0},
             {"D", from->D, &w->D, 1, 0, 0},
             {"dt_bias", from->dt_bias, &w->dt_bias, 1, 0, 0},
             {"gate_norm", from->gate_norm, &w->gate_norm, 0, !is_second, 0},
             {"out_proj", from->out_proj, &w->out_proj, 0, 0, 0}};
  for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
    if (all[k].is_absent || (all[k].is_optional && !all[k].data)) continue;
    KR_CHECK(all[k].data, KRAIT_ERR_ARGUMENT, "layers[%lld].%s must not be NULL", (long long)i, all[k].name);
    *all[k].to = (kr_weight_ref){.data = all[k].data, .dtype = all[k].is_float ? KRAIT_F32 : dtype};
  }
  return KRAIT_OK;
}

static int32_t describe_shared(const krait_shared_lm_options *o, const krait_shared_lm_layer *layers, kr_lm_config *c) {
  const kr_lm_mamba_sizes sizes = {.d = o->D,
                                   .Di = o->E,
                                   .N = o->N,
                                   .W = o->W,
                                   .R = o->R,
                                   .H = o->R ? 1 : o->H,
                                   .P = o->R ? o->E : o->E / o->H,
                                   .G = o->R ? 1 : o->G};
  c->d = o->D, c->V = o->V, c->n_used = o->V, c->n_layers = o->n_layers;
  c->is_rms = 1, c->eps = o->eps;
  for (int64_t i = 0; i < o->n_layers; i++) {
    KR_TRY(kr_lm_config_add(c, o->R ? &kr_lm_mamba1 : &kr_lm_mamba2, i, "norm", &sizes));
    KR_TRY(take_shared_layer(&layers[i], i, o->dtype, kr_lm_config_last(c)));
  }
  return KRAIT_OK;
}

static const kr_lm_family shared_family = {.name = "shared_lm"};

static void take_shared_ends(krait_shared_lm *m, const krait_ctx *ctx, int32_t dtype, const void *embedding,
                             const void *head, const void *norm_f) {
  m->w = (kr_lm_weights){.embedding = {.data = embedding, .dtype = dtype},
                         .head = {.data = head, .dtype = dtype},
                         .norm_f = {.data = norm_f, .dtype = dtype},
                         .dtype = ctx->cuda ? dtype : KRAIT_F32};
}

static int32_t borrow_states(const krait_ctx *ctx, int64_t n_slots, int is_narrow, void *states, krait_shared_lm *m) {
  m->slots = (kr_lm_slots){
      .ctx = ctx, .c = m->c, .n = n_slots, .dtype = m->w.dtype, .is_narrow = is_narrow, .fixed = states, .borrows = 1};
  return kr_lm_slots_open(&m->slots);
}

static int32_t open_shared_parts(const krait_ctx *ctx, const krait_shared_lm_options *o,
                                 const krait_shared_lm_layer *layers, krait_shared_lm *m) {
  KR_TRY(kr_lm_config_open(&shared_family, o->n_layers, &m->c));
  KR_TRY(describe_shared(o, layers, m->c));
  take_shared_ends(m, ctx, o->dtype, o->embedding, o->head, o->norm_f);
  return borrow_states(ctx, o->n_slots, (o->flags & KRAIT_SHARED_LM_NARROW) != 0, o->states, m);
}

/* An empty model, if the arguments of an open function are there. */
static int32_t begin_shared(const krait_ctx *ctx, const void *options, const void *layers, krait_shared_lm **lm) {
  KR_CHECK(ctx && options && layers && lm, KRAIT_ERR_ARGUMENT, "ctx, options, layers and lm must not be NULL");
  *lm = kr_zalloc(sizeof **lm);
  KR_CHECK(*lm, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  return KRAIT_OK;
}

int32_t krait_shared_lm_open(const krait_ctx *ctx, const krait_shared_lm_options *options,
                             const krait_shared_lm_layer *layers, krait_shared_lm **lm) {
  krait_shared_lm_options o;
  KR_TRY(begin_shared(ctx, options, layers, lm));
  int32_t status = take_shared_options(options, &o);
  if (status >= 0) status = open_shared_parts(ctx, &o, layers, *lm);
  if (status < 0) krait_shared_lm_close(lm);
  return status;
}

typedef struct given_mlp {
  const void *gate, *up, *down;
  int64_t F;
} given_mlp;

/* The MLP behind a layer's mixer. */
static int32_t add_shared_mlp(kr_lm_config *c, int64_t i, int64_t D, int32_t dtype, const void *norm2,
                              const given_mlp *mlp) {
  KR_TRY(kr_lm_config_add(c, &kr_lm_mlp, i, "norm2", &(kr_lm_mlp_sizes){.d = D, .F = mlp->F}));
  kr_lm_config_last(c)->norm_weight = (kr_weight_ref){.data = norm2, .dtype = dtype};
  kr_lm_mlp_give(kr_lm_config_last(c), &(kr_lm_mlp_matrices){.gate = {.data = mlp->gate, .dtype = dtype},
                                                             .up = {.data = mlp->up, .dtype = dtype},
                                                             .down = {.data = mlp->down, .dtype = dtype}});
  return KRAIT_OK;
}

/* ---- Mamba-3 ---- */

static int32_t take_mamba3_options(const krait_shared_lm_mamba3_options *given, krait_shared_lm_mamba3_options *o) {
  KR_TRY(kr_struct_take("krait_shared_lm_mamba3_options", given, sizeof *o, o, sizeof *o));
  const shared_size sizes[] = {{"n_layers", o->n_layers, 1, KR_LM_MOST_LAYERS},
                               {"n_slots", o->n_slots, 1, MOST_SLOTS},
                               {"D", o->D, 1, MOST_SIZE},
                               {"V", o->V, 1, MOST_SIZE},
                               {"H", o->H, 1, MOST_SIZE},
                               {"P", o->P, 1, MOST_SIZE},
                               {"N", o->N, 1, MOST_SIZE},
                               {"G", o->G, 1, MOST_SIZE},
                               {"R", o->R, 1, MOST_SIZE},
                               {"M", o->M, 1, o->N / 2},
                               {"F", o->F, 0, MOST_SIZE}};
  KR_CHECK(!(o->flags & ~(KRAIT_SHARED_LM_NARROW | KRAIT_SHARED_LM_SOFTPLUS_A)), KRAIT_ERR_ARGUMENT,
           "options.flags is %u, not KRAIT_SHARED_LM_*", o->flags);
  KR_TRY(check_shared_dtype(o->dtype));
  KR_CHECK(o->embedding && o->head && o->norm_f && o->states, KRAIT_ERR_ARGUMENT,
           "options.embedding, head, norm_f and states must not be NULL");
  KR_TRY(check_each_size(sizes, sizeof sizes / sizeof *sizes));
  KR_CHECK(o->H % o->G == 0, KRAIT_ERR_ARGUMENT, "options: H %lld must be a multiple of G %lld", (long long)o->H,
           (long long)o->G);
  KR_CHECK(o->N % 2 == 0, KRAIT_ERR_ARGUMENT, "options.N is %lld, must be even", (long long)o->N);
  KR_CHECK(o->H * o->P <= MOST_SIZE && o->R * o->G <= MOST_SIZE / o->N, KRAIT_ERR_ARGUMENT,
           "options: H P and R G N must be at most %d", MOST_SIZE);
  return KRAIT_OK;
}

static int32_t check_mamba3_layer(const krait_shared_lm_mamba3_options *o, const krait_shared_lm_mamba3_layer *l,
                                  int64_t i) {
  const struct {
    const char *name;
    const void *data;
    int is_of_mlp;
  } all[] = {
      {"norm", l->norm, 0},       {"in_proj", l->in_proj, 0}, {"dt_bias", l->dt_bias, 0}, {"Dvec", l->Dvec, 0},
      {"BC_norm", l->BC_norm, 0}, {"B_bias", l->B_bias, 0},   {"C_bias", l->C_bias, 0},   {"out_proj", l->out_proj, 0},
      {"norm2", l->norm2, 1},     {"gate", l->gate, 1},       {"up", l->up, 1},           {"down", l->down, 1}};
  for (size_t k = 0; k < sizeof all / sizeof *all; k++)
    KR_CHECK(all[k].data || (all[k].is_of_mlp && !o->F), KRAIT_ERR_ARGUMENT, "layers[%lld].%s must not be NULL",
             (long long)i, all[k].name);
  KR_CHECK(!l->mimo_x == !l->mimo_z && !l->mimo_x == !l->mimo_o, KRAIT_ERR_ARGUMENT,
           "layers[%lld] has some of mimo_x, mimo_z and mimo_o", (long long)i);
  KR_CHECK(l->mimo_x || o->R == 1, KRAIT_ERR_ARGUMENT, "layers[%lld].mimo_x is NULL, and options.R is %lld, not 1",
           (long long)i, (long long)o->R);
  return KRAIT_OK;
}

static int32_t add_mamba3_layer(const krait_shared_lm_mamba3_options *o, const krait_shared_lm_mamba3_layer *l,
                                int64_t i, kr_lm_config *c) {
  const kr_lm_mamba3_sizes sizes = {.d = o->D,
                                    .H = o->H,
                                    .P = o->P,
                                    .N = o->N,
                                    .G = o->G,
                                    .R = o->R,
                                    .M = o->M,
                                    .is_mimo = l->mimo_x != NULL,
                                    .is_normed = l->gate_norm != NULL,
                                    .is_A_softplus = (o->flags & KRAIT_SHARED_LM_SOFTPLUS_A) != 0,
                                    .A_floor = (double)o->A_floor};
#define AS_FLOAT(name) {.data = l->name, .dtype = KRAIT_F32}
  const kr_lm_given_mamba3 weights = {.in_proj = {.data = l->in_proj, .dtype = o->dtype},
                                      .out_proj = {.data = l->out_proj, .dtype = o->dtype},
                                      .dt_bias = AS_FLOAT(dt_bias),
                                      .D = AS_FLOAT(Dvec),
                                      .BC_norm = AS_FLOAT(BC_norm),
                                      .B_bias = AS_FLOAT(B_bias),
                                      .C_bias = AS_FLOAT(C_bias),
                                      .mimo_x = AS_FLOAT(mimo_x),
                                      .mimo_z = AS_FLOAT(mimo_z),
                                      .mimo_o = AS_FLOAT(mimo_o),
                                      .gate_norm = AS_FLOAT(gate_norm)};
#undef AS_FLOAT
  KR_TRY(check_mamba3_layer(o, l, i));
  KR_TRY(kr_lm_config_add(c, &kr_lm_mamba3, i, "norm", &sizes));
  kr_lm_config_last(c)->norm_weight = (kr_weight_ref){.data = l->norm, .dtype = o->dtype};
  kr_lm_mamba3_give(kr_lm_config_last(c), &weights);
  return o->F ? add_shared_mlp(c, i, o->D, o->dtype, l->norm2, &(const given_mlp){l->gate, l->up, l->down, o->F})
              : KRAIT_OK;
}

static int32_t open_mamba3_parts(const krait_ctx *ctx, const krait_shared_lm_mamba3_options *o,
                                 const krait_shared_lm_mamba3_layer *layers, krait_shared_lm *m) {
  KR_TRY(kr_lm_config_open(&shared_family, 2 * o->n_layers, &m->c));
  m->c->d = o->D, m->c->V = o->V, m->c->n_used = o->V, m->c->n_layers = o->n_layers;
  m->c->is_rms = 1, m->c->eps = o->eps;
  for (int64_t i = 0; i < o->n_layers; i++) KR_TRY(add_mamba3_layer(o, &layers[i], i, m->c));
  take_shared_ends(m, ctx, o->dtype, o->embedding, o->head, o->norm_f);
  return borrow_states(ctx, o->n_slots, (o->flags & KRAIT_SHARED_LM_NARROW) != 0, o->states, m);
}

int32_t krait_shared_lm_open_mamba3(const krait_ctx *ctx, const krait_shared_lm_mamba3_options *options,
                                    const krait_shared_lm_mamba3_layer *layers, krait_shared_lm **lm) {
  krait_shared_lm_mamba3_options o;
  KR_TRY(begin_shared(ctx, options, layers, lm));
  int32_t status = take_mamba3_options(options, &o);
  if (status >= 0) status = open_mamba3_parts(ctx, &o, layers, *lm);
  if (status < 0) krait_shared_lm_close(lm);
  return status;
}

/* ---- attention ---- */

static int32_t take_attention_options(const krait_shared_lm_attention_options *given,
                                      krait_shared_lm_attention_options *o) {
  KR_TRY(kr_struct_take("krait_shared_lm_attention_options", given, sizeof *o, o, sizeof *o));
  const shared_size sizes[] = {{"n_layers", o->n_layers, 1, KR_LM_MOST_LAYERS},
                               {"n_slots", o->n_slots, 1, MOST_SLOTS},
                               {"n_tokens", o->n_tokens, 1, MOST_PROMPT},
                               {"D", o->D, 1, MOST_SIZE},
                               {"V", o->V, 1, MOST_SIZE},
                               {"Hk", o->Hk, 1, MOST_SIZE},
                               {"H", o->H, 1, MOST_SIZE},
                               {"P", o->P, 2, 2 * KR_LM_MOST_PAIRS},
                               {"F", o->F, 1, MOST_SIZE}};
  KR_TRY(check_shared_dtype(o->dtype));
  KR_CHECK(o->embedding && o->head && o->norm_f && o->frequencies && o->keys_values && o->lengths, KRAIT_ERR_ARGUMENT,
           "options.embedding, head, norm_f, frequencies, keys_values and lengths must not be NULL");
  KR_TRY(check_each_size(sizes, sizeof sizes / sizeof *sizes));
  KR_CHECK(o->H % o->Hk == 0 && o->P % 2 == 0, KRAIT_ERR_ARGUMENT,
           "options: H %lld must be a multiple of Hk %lld, and P %lld even", (long long)o->H, (long long)o->Hk,
           (long long)o->P);
  return KRAIT_OK;
}

static int32_t check_attention_layer(const krait_shared_lm_attention_layer *l, int64_t i) {
  const struct {
    const char *name;
    const void *data;
  } all[] = {{"norm", l->norm},   {"q", l->q},       {"k", l->k},   {"v", l->v},      {"o", l->o},
             {"norm2", l->norm2}, {"gate", l->gate}, {"up", l->up}, {"down", l->down}};
  for (size_t k = 0; k < sizeof all / sizeof *all; k++)
    KR_CHECK(all[k].data, KRAIT_ERR_ARGUMENT, "layers[%lld].%s must not be NULL", (long long)i, all[k].name);
  KR_CHECK(!l->q_bias == !l->k_bias && !l->q_bias == !l->v_bias, KRAIT_ERR_ARGUMENT,
           "layers[%lld] has some of q_bias, k_bias and v_bias", (long long)i);
  return KRAIT_OK;
}

/* Its two blocks. */
static int32_t add_attention_layer(const krait_shared_lm_attention_options *o, const krait_shared_lm_attention_layer *l,
                                   int64_t i, kr_lm_config *c) {
  const int32_t dtype = o->dtype;
  const kr_lm_given_attention attention = {
      .qkv = {{.data = l->q, .dtype = dtype}, {.data = l->k, .dtype = dtype}, {.data = l->v, .dtype = dtype}},
      .bias = {{.data = l->q_bias, .dtype = dtype},
               {.data = l->k_bias, .dtype = dtype},
               {.data = l->v_bias, .dtype = dtype}},
      .qk_norm = {.data = l->qk_norm, .dtype = KRAIT_F32},
      .o = {.data = l->o, .dtype = dtype}};
  const kr_lm_attention_sizes sizes = {.d = o->D,
                                       .H = o->H,
                                       .Hk = o->Hk,
                                       .D = o->P,
                                       .R = o->P / 2,
                                       .qk_norm = l->qk_norm ? KR_LM_NORM_OF_HEADS : KR_LM_NO_QK_NORM};
  KR_TRY(check_attention_layer(l, i));
  KR_TRY(kr_lm_config_add(c, &kr_lm_attention, i, "norm", &sizes));
  kr_lm_config_last(c)->norm_weight = (kr_weight_ref){.data = l->norm, .dtype = dtype};
  kr_lm_attention_give(kr_lm_config_last(c), &attention);
  return add_shared_mlp(c, i, o->D, dtype, l->norm2, &(const given_mlp){l->gate, l->up, l->down, o->F});
}

static int32_t open_attention_parts(const krait_ctx *ctx, const krait_shared_lm_attention_options *o,
                                    const krait_shared_lm_attention_layer *layers, krait_shared_lm *m) {
  int64_t rope;
  KR_TRY(kr_lm_config_open(&shared_family, 2 * o->n_layers, &m->c));
  m->c->d = o->D, m->c->V = o->V, m->c->n_used = o->V, m->c->n_layers = o->n_layers;
  m->c->is_rms = 1, m->c->eps = o->eps;
  KR_TRY(
      kr_lm_config_add_rope(m->c, o->P / 2, o->frequencies, o->angle_factor != 0 ? (double)o->angle_factor : 1, &rope));
  for (int64_t i = 0; i < o->n_layers; i++) KR_TRY(add_attention_layer(o, &layers[i], i, m->c));
  take_shared_ends(m, ctx, o->dtype, o->embedding, o->head, o->norm_f);
  m->lengths = o->lengths;
  m->slots = (kr_lm_slots){.ctx = ctx, .c = m->c, .n = o->n_slots, .dtype = m->w.dtype, .token_dtype = m->w.dtype};
  KR_TRY(kr_lm_slots_open(&m->slots));
  return kr_token_cache_lend(&m->slots.cache, o->n_tokens, o->keys_values);
}

int32_t krait_shared_lm_open_attention(const krait_ctx *ctx, const krait_shared_lm_attention_options *options,
                                       const krait_shared_lm_attention_layer *layers, krait_shared_lm **lm) {
  krait_shared_lm_attention_options o;
  KR_TRY(begin_shared(ctx, options, layers, lm));
  int32_t status = take_attention_options(options, &o);
  if (status >= 0) status = open_attention_parts(ctx, &o, layers, *lm);
  if (status < 0) krait_shared_lm_close(lm);
  return status;
}

void krait_shared_lm_close(krait_shared_lm **lm) {
  if (!lm || !*lm) return;
  kr_lm_graph_list_close(&(*lm)->graphs);
  kr_lm_slots_close(&(*lm)->slots);
  kr_lm_config_close(&(*lm)->c);
  kr_free(*lm);
  *lm = NULL;
}

/* ---- runs ---- */

typedef struct shared_call {
  const int32_t *slots, *ids;
  float *logits;
  int32_t *best;
} shared_call;

/* Lengths, and the angles of the rotary embedding. */
static int32_t bind_attention(const krait_shared_lm *m, const kr_lm_graph *g, int64_t slot) {
  if (!m->lengths) return KRAIT_OK;
  KR_TRY(kr_runner_bind(g->runner, g->lengths, (void *)(uintptr_t)(m->lengths + slot)));
  KR_TRY(kr_runner_bind(g->runner, g->cos[0], (void *)(uintptr_t)kr_token_cache_cos(&m->slots.cache, 0)));
  return kr_runner_bind(g->runner, g->sin[0], (void *)(uintptr_t)kr_token_cache_sin(&m->slots.cache, 0));
}

static int32_t run_shared(krait_shared_lm *m, const kr_lm_run *run, int64_t slot, const shared_call *call,
                          void *stream) {
  kr_lm_graph *g;
  KR_TRY(kr_lm_graph_list_get(&m->graphs, m->c, &m->w, &m->slots, run, &g));
  g->used = ++m->graphs.clock;
  const struct {
    kr_tensor t;
    const void *at;
  } all[] = {{g->ids, call->ids}, {g->slots, call->slots}, {g->logits, call->logits}, {g->argmax, call->best}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].t) KR_TRY(kr_runner_bind(g->runner, all[i].t, (void *)(uintptr_t)all[i].at));
  KR_TRY(bind_attention(m, g, slot));
  KR_TRY(kr_lm_graph_bind_states(g, &m->slots, slot));
  return kr_runner_run(g->runner, stream);
}

int32_t krait_shared_lm_prefill(krait_shared_lm *m, int64_t slot, const int32_t *ids, int64_t n, float *logits,
                                void *stream) {
  KR_CHECK(m && ids && logits, KRAIT_ERR_ARGUMENT, "lm, ids and logits must not be NULL");
  KR_CHECK(n >= 1 && n <= MOST_PROMPT, KRAIT_ERR_ARGUMENT, "a prompt of %lld tokens; it takes 1 to %d", (long long)n,
           MOST_PROMPT);
  KR_TRY(kr_lm_slots_check(&m->slots, slot));
  return run_shared(m, &(kr_lm_run){.B = 1, .L = n}, slot, &(shared_call){.ids = ids, .logits = logits}, stream);
}

int32_t krait_shared_lm_step(krait_shared_lm *m, int64_t B, const int32_t *slots, const int32_t *ids, float *logits,
                             int32_t *best, void *stream) {
  KR_CHECK(m && slots && ids && logits && best, KRAIT_ERR_ARGUMENT, "lm, slots, ids, logits and best must not be NULL");
  KR_CHECK(B >= 1 && B <= m->slots.n, KRAIT_ERR_ARGUMENT, "a step of %lld sequences; the model has %lld slots",
           (long long)B, (long long)m->slots.n);
  return run_shared(m, &(kr_lm_run){.B = B, .L = 1, .is_step = 1}, 0,
                    &(shared_call){.slots = slots, .ids = ids, .logits = logits, .best = best}, stream);
}
