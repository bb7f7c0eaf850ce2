/* block_mamba3.c: the mixer of Mamba-3. Fields: in_proj, dt_bias, B_bias, C_bias, B_norm, C_norm, mimo_x, mimo_z,
 * mimo_o, D, gate_norm, out_proj. in_proj's rows are z, x, B, C (by rank, then group), dt, A, trap, angles. */
#include "alloc.h"
#include "block_given.h"
#include "block_mamba.h"
#include "ctx.h"
#include "lm_blocks.h"
#include "lm_builder.h"
#include "lm_ops.h"
#include "mamba3_raw_step/mamba3_raw_step.h"
#include "status.h"

typedef kr_lm_given_mamba3 mamba3_weights;

static int64_t inner_of_mamba3(const kr_lm_mamba3_sizes *s) { return s->H * s->P; }
static int64_t vectors_of_mamba3(const kr_lm_mamba3_sizes *s) { return s->R * s->G * s->N; } /* columns of B, of C */
static int64_t columns_of_mamba3(const kr_lm_mamba3_sizes *s) {
  return 2 * inner_of_mamba3(s) + 2 * vectors_of_mamba3(s) + 3 * s->H + s->M;
}

/* All in float32, since they are read again by every token; angles are modulo 2 pi. */
static int32_t list_mamba3_states(const kr_lm_block *block, kr_lm_state *states) {
  const kr_lm_mamba3_sizes *s = block->sizes;
  states[KR_MAMBA3_ANGLE] = (kr_lm_state){.name = "angle", .n_dims = 2, .size = {s->H, s->M}};
  states[KR_MAMBA3_SSM] = (kr_lm_state){.name = "ssm", .is_narrowable = 1, .n_dims = 3, .size = {s->H, s->P, s->N}};
  states[KR_MAMBA3_KEY] = (kr_lm_state){.name = "k", .n_dims = 3, .size = {s->R, s->H, s->N}};
  states[KR_MAMBA3_VALUE] = (kr_lm_state){.name = "v", .n_dims = 2, .size = {s->H, s->P}};
  return 4;
}

/* ---- weights ---- */

static int32_t load_BC_norm(kr_lm_loader *l, const kr_lm_mamba3_sizes *s, kr_weight_ref *to) {
  const int64_t n = vectors_of_mamba3(s), N = s->N;
  float *values = kr_alloc_array(2 * (size_t)n, sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for a norm of %lld features", (long long)n);
  int32_t status = kr_lm_load_values(l, "B_norm", KR_SIZES(N), NULL, values);
  if (status >= 0) status = kr_lm_load_values(l, "C_norm", KR_SIZES(N), NULL, values + n);
  for (int64_t i = N; i < n && status >= 0; i++) values[i] = values[i - N], values[n + i] = values[n + i - N];
  if (status >= 0) status = kr_lm_load_made(l, values, 2 * n, to);
  kr_free(values);
  return status;
}

static int32_t load_mamba3(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_mamba3_sizes *s = block->sizes;
  mamba3_weights *w = block->weights;
  KR_TRY(kr_lm_load(l, "in_proj", 1, KR_SIZES(columns_of_mamba3(s), s->d), &w->in_proj));
  KR_TRY(kr_lm_load_f32(l, "dt_bias", KR_SIZES(s->H), NULL, &w->dt_bias));
  KR_TRY(kr_lm_load_f32(l, "B_bias", KR_SIZES(s->H, s->R, s->N), NULL, &w->B_bias));
  KR_TRY(kr_lm_load_f32(l, "C_bias", KR_SIZES(s->H, s->R, s->N), NULL, &w->C_bias));
  KR_TRY(load_BC_norm(l, s, &w->BC_norm));
  KR_TRY(kr_lm_load_f32(l, "D", KR_SIZES(s->H), NULL, &w->D));
  if (s->is_mimo) {
    KR_TRY(kr_lm_load_f32(l, "mimo_x", KR_SIZES(s->H, s->R, s->P), NULL, &w->mimo_x));
    KR_TRY(kr_lm_load_f32(l, "mimo_z", KR_SIZES(s->H, s->R, s->P), NULL, &w->mimo_z));
    KR_TRY(kr_lm_load_f32(l, "mimo_o", KR_SIZES(s->H, s->R, s->P), NULL, &w->mimo_o));
  }
  if (s->is_normed) KR_TRY(kr_lm_load_f32(l, "gate_norm", KR_SIZES(inner_of_mamba3(s)), NULL, &w->gate_norm));
  return kr_lm_load(l, "out_proj", 1, KR_SIZES(s->d, inner_of_mamba3(s)), &w->out_proj);
}

void kr_lm_mamba3_give(const kr_lm_block *block, const kr_lm_given_mamba3 *from) {
  *(mamba3_weights *)block->weights = *from;
}

/* ---- the scan ---- */

/* What it reads and writes, as rows. */
typedef struct mamba3_rows {
  kr_tensor x, z, B, C, dt, log_decay, trap, angles, y;
} mamba3_rows;

/* Time steps and decays in float32, from in_proj's columns. */
static void record_decay(const kr_token_builder *r, const kr_lm_mamba3_sizes *s, const mamba3_weights *w,
                         kr_tensor dt_raw, kr_tensor A_raw, mamba3_rows *t) {
  t->dt = kr_graph_temp(r->g, KRAIT_F32, KR_DIMS(r->rows, s->H));
  t->log_decay = kr_graph_temp(r->g, KRAIT_F32, KR_DIMS(r->rows, s->H));
  kr_graph_call(r->g, "decay", &kr_op_mamba3_decay,
                &(kr_mamba3_decay_args){.call.flags = s->is_A_softplus ? KRAIT_MAMBA3_SOFTPLUS_A : 0,
                                        .A_floor = (float)s->A_floor,
                                        .dt_raw = view(r, dt_raw),
                                        .A_raw = view(r, A_raw),
                                        .dt_bias = view(r, weight(r, "dt_bias", &w->dt_bias, s->H)),
                                        .dt = view(r, t->dt),
                                        .log_decay = view(r, t->log_decay)});
}

/* B and C, each vector normed. */
static void norm_BC(const kr_token_builder *r, const kr_lm_mamba3_sizes *s, const mamba3_weights *w, kr_tensor BC,
                    mamba3_rows *t) {
  const int64_t n = vectors_of_mamba3(s);
  const kr_tensor normed = new_rows(r, 2 * n);
  kr_graph_call(r->g, "BC_norm", &kr_op_gated_norm,
                &(kr_gated_norm_args){.call.flags = KRAIT_GATED_NORM_RMS,
                                      .group_size = s->N,
                                      .eps = 1e-5f,
                                      .x = view(r, BC),
                                      .weight = view(r, weight(r, "BC_norm", &w->BC_norm, 2 * n)),
                                      .out = view(r, normed)});
  t->B = columns(r, normed, 0, n), t->C = columns(r, normed, n, n);
}

/* What in_proj gives. */
typedef struct mamba3_columns {
  kr_tensor z, x, BC, dt, A, trap, angles;
} mamba3_columns;

static mamba3_columns project_mamba3(const kr_token_builder *r, const kr_lm_mamba3_sizes *s, const mamba3_weights *w,
                                     kr_tensor x) {
  const int64_t D = inner_of_mamba3(s), V = vectors_of_mamba3(s), n = columns_of_mamba3(s), after = 2 * D + 2 * V;
  const kr_tensor all = columns(r, new_rows(r, (n + 63) / 64 * 64), 0, n); /* rows start at cache lines */
  linear(r, "in_proj", x, .w = &w->in_proj, .N = n, .K = s->d, .out = all);
  return (mamba3_columns){.z = columns(r, all, 0, D),
                          .x = columns(r, all, D, D),
                          .BC = columns(r, all, 2 * D, 2 * V),
                          .dt = columns(r, all, after, s->H),
                          .A = columns(r, all, after + s->H, s->H),
                          .trap = columns(r, all, after + 2 * s->H, s->H),
                          .angles = columns(r, all, after + 3 * s->H, s->M)};
}

static mamba3_rows rows_of_columns(const kr_token_builder *r, const kr_lm_mamba3_sizes *s, const mamba3_weights *w,
                                   const mamba3_columns *c) {
  mamba3_rows t = {.z = c->z, .x = c->x, .trap = c->trap, .angles = c->angles, .y = new_rows(r, inner_of_mamba3(s))};
  norm_BC(r, s, w, c->BC, &t);
  record_decay(r, s, w, c->dt, c->A, &t);
  return t;
}

/* The angles of a token are the same for all heads. */
static kr_view for_all_heads(const kr_token_builder *r, kr_tensor angles, kr_dims one, kr_dims heads) {
  return view(r, kr_graph_expand(r->g, kr_graph_reshape(r->g, angles, one), heads));
}

/* of_heads: a tensor of weights (H,R,P), or absent. */
static kr_view ranks_of(const kr_token_builder *r, const kr_lm_mamba3_sizes *s, const char *name,
                        const kr_weight_ref *of_heads) {
  return view(r, weight(r, name, of_heads, s->H, s->R, s->P));
}

/* The fields that scan and step share. */
#define MAMBA3_WEIGHTS(r, s, w)                                                                         \
  .call.flags = s->is_mimo ? KRAIT_MAMBA3_HALVES : 0, .G = s->G, .R = s->R, .eps = 1e-5f,               \
  .B_bias = view(r, weight(r, "B_bias", &w->B_bias, s->H, s->R, s->N)),                                 \
  .C_bias = view(r, weight(r, "C_bias", &w->C_bias, s->H, s->R, s->N)),                                 \
  .Dvec = view(r, weight(r, "D", &w->D, s->H)), .mimo_x = ranks_of(r, s, "mimo_x", &w->mimo_x),         \
  .mimo_z = ranks_of(r, s, "mimo_z", &w->mimo_z), .mimo_o = ranks_of(r, s, "mimo_o", &w->mimo_o),       \
  .norm_weight = view(r, weight(r, "gate_norm", &w->gate_norm, s->H, s->P))

static void step_mamba3(const kr_lm_builder *b, const kr_lm_block *block, const mamba3_rows *t) {
  const kr_lm_mamba3_sizes *s = block->sizes;
  const mamba3_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_dims heads = KR_DIMS(r->rows, s->H, s->P), vectors = KR_DIMS(r->rows, s->R * s->G, s->N);
  kr_graph_call(r->g, "scan", &kr_op_mamba3_step,
                &(kr_mamba3_step_args){MAMBA3_WEIGHTS(r, s, w),
                                       .angle_state = view(r, kr_lm_state_of(b, block, KR_MAMBA3_ANGLE)),
                                       .state = view(r, kr_lm_state_of(b, block, KR_MAMBA3_SSM)),
                                       .B_state = view(r, kr_lm_state_of(b, block, KR_MAMBA3_KEY)),
                                       .x_state = view(r, kr_lm_state_of(b, block, KR_MAMBA3_VALUE)),
                                       .x = view_as(r, t->x, heads),
                                       .log_decay = view(r, t->log_decay),
                                       .dt = view(r, t->dt),
                                       .trap = view(r, t->trap),
                                       .Bmat = view_as(r, t->B, vectors),
                                       .Cmat = view_as(r, t->C, vectors),
                                       .angles = for_all_heads(r, t->angles, KR_DIMS(r->rows, 1, s->M),
                                                               KR_DIMS(r->rows, s->H, s->M)),
                                       .z = view_as(r, t->z, heads),
                                       .state_batch_indices = view(r, b->to->slots),
                                       .out = view_as(r, t->y, heads)});
}

static void scan_mamba3(kr_lm_builder *b, const kr_lm_block *block, const mamba3_rows *t) {
  const kr_lm_mamba3_sizes *s = block->sizes;
  const mamba3_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_dims heads = KR_DIMS(1, r->rows, s->H, s->P), vectors = KR_DIMS(1, r->rows, s->R * s->G, s->N),
                each = KR_DIMS(1, r->rows, s->H);
  kr_tensor before[4], after[4];
  for (int k = 0; k < 4; k++)
    before[k] = kr_lm_state_of(b, block, k), after[k] = kr_lm_state_after(b, block, k);
  kr_graph_call(r->g, "scan", &kr_op_mamba3,
                &(kr_mamba3_args){MAMBA3_WEIGHTS(r, s, w),
                                  .x = view_as(r, t->x, heads),
                                  .log_decay = view_as(r, t->log_decay, each),
                                  .dt = view_as(r, t->dt, each),
                                  .trap = view_as(r, t->trap, each),
                                  .Bmat = view_as(r, t->B, vectors),
                                  .Cmat = view_as(r, t->C, vectors),
                                  .angles = for_all_heads(r, t->angles, KR_DIMS(1, r->rows, 1, s->M),
                                                          KR_DIMS(1, r->rows, s->H, s->M)),
                                  .z = view_as(r, t->z, heads),
                                  .initial_angles = view(r, before[KR_MAMBA3_ANGLE]),
                                  .initial_states = view(r, before[KR_MAMBA3_SSM]),
                                  .initial_B = view(r, before[KR_MAMBA3_KEY]),
                                  .initial_x = view(r, before[KR_MAMBA3_VALUE]),
                                  .out = view_as(r, t->y, heads),
                                  .final_angles = view(r, after[KR_MAMBA3_ANGLE]),
                                  .final_states = view(r, after[KR_MAMBA3_SSM]),
                                  .final_B = view(r, after[KR_MAMBA3_KEY]),
                                  .final_x = view(r, after[KR_MAMBA3_VALUE])});
  for (int k = 0; k < 4; k++) kr_lm_state_keep(b, block, k, after[k]);
}

/* On a GPU one kernel makes a token's rows and advances the states: launches are what a small model's step takes. It
 * takes states in aligned groups of four, and those of a layer lie behind its angles. */
static int has_raw_step(const kr_lm_builder *b, const kr_lm_mamba3_sizes *s) {
  return b->run.is_step && b->rows.ctx->cuda && s->R == 1 && !s->is_mimo && !s->is_normed &&
         s->H * s->M % 4 == 0 && kr_mamba3_raw_step_has(s->P, s->N);
}

static kr_tensor raw_step_mamba3(const kr_lm_builder *b, const kr_lm_block *block, const mamba3_columns *c) {
  const kr_lm_mamba3_sizes *s = block->sizes;
  const mamba3_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int64_t V = vectors_of_mamba3(s), N = s->N;
  const kr_tensor y = new_rows(r, inner_of_mamba3(s)), norm = weight(r, "BC_norm", &w->BC_norm, 2 * V),
                  keys = kr_lm_state_of(b, block, KR_MAMBA3_KEY);
  const kr_dims heads = KR_DIMS(r->rows, s->H, s->P), groups = KR_DIMS(r->rows, s->G, N);
  kr_graph_call(
      r->g, "scan", &kr_op_mamba3_raw_step,
      &(kr_mamba3_raw_step_args){
          .call.flags = s->is_A_softplus ? KRAIT_MAMBA3_SOFTPLUS_A : 0,
          .G = s->G,
          .eps = 1e-5f,
          .A_floor = (float)s->A_floor,
          .angle_state = view(r, kr_lm_state_of(b, block, KR_MAMBA3_ANGLE)),
          .state = view(r, kr_lm_state_of(b, block, KR_MAMBA3_SSM)),
          .B_state = view_as(r, keys, KR_DIMS(kr_graph_dims(r->g, keys).size[0], s->H, N)),
          .x_state = view(r, kr_lm_state_of(b, block, KR_MAMBA3_VALUE)),
          .arrivals = view(r, kr_graph_state(r->g, "arrivals", KRAIT_F32, KR_DIMS(r->rows, s->H))),
          .x = view_as(r, c->x, heads),
          .z = view_as(r, c->z, heads),
          .Bmat = view_as(r, columns(r, c->BC, 0, V), groups),
          .Cmat = view_as(r, columns(r, c->BC, V, V), groups),
          .dt_raw = view(r, c->dt),
          .A_raw = view(r, c->A),
          .trap = view(r, c->trap),
          .angles = view(r, c->angles),
          .B_norm = view(r, kr_graph_slice(r->g, norm, 0, 0, N)),
          .C_norm = view(r, kr_graph_slice(r->g, norm, 0, V, N)),
          .B_bias = view(r, weight(r, "B_bias", &w->B_bias, s->H, N)),
          .C_bias = view(r, weight(r, "C_bias", &w->C_bias, s->H, N)),
          .dt_bias = view(r, weight(r, "dt_bias", &w->dt_bias, s->H)),
          .Dvec = view(r, weight(r, "D", &w->D, s->H)),
          .state_batch_indices = view(r, b->to->slots),
          .out = view_as(r, y, heads)});
  return y;
}

static kr_tensor record_mamba3(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_mamba3_sizes *s = block->sizes;
  const mamba3_weights *w = block->weights;
  const mamba3_columns c = project_mamba3(&b->rows, s, w, x);
  kr_tensor y;
  if (has_raw_step(b, s)) {
    y = raw_step_mamba3(b, block, &c);
  } else {
    const mamba3_rows t = rows_of_columns(&b->rows, s, w, &c);
    if (b->run.is_step) step_mamba3(b, block, &t);
    else scan_mamba3(b, block, &t);
    y = t.y;
  }
  return result_of(b, block, "out_proj", y, .w = &w->out_proj, .N = s->d, .K = inner_of_mamba3(s));
}

const kr_lm_block_kind kr_lm_mamba3 = {.name = "mamba3",
                                       .sizes_bytes = sizeof(kr_lm_mamba3_sizes),
                                       .weights_bytes = sizeof(mamba3_weights),
                                       .load = load_mamba3,
                                       .list_states = list_mamba3_states,
                                       .record = record_mamba3,
                                       .can_fuse = kr_mamba3_can_fuse,
                                       .record_fused = kr_mamba3_record_fused};
