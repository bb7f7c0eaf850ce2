/* block_mamba2.c: the mixer of Mamba-2. Fields: in_proj, conv, A, D, dt_bias, gate_norm, out_proj, and biases. */
#include "alloc.h"
#include "block_mamba.h"
#include "status.h"

/* One for each of in_proj's rows. */
static int32_t load_in_scales(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_mamba_sizes *s = block->sizes;
  kr_lm_mamba_weights *w = block->weights;
  const int64_t sizes[] = {s->Di, s->Di, s->G * s->N, s->G * s->N, s->H}, n = kr_mamba_rows(block);
  float *values = kr_alloc_array((size_t)n, sizeof *values), *at = values;
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for %lld multipliers", (long long)n);
  for (int k = 0; k < 5; k++)
    for (int64_t i = 0; i < sizes[k]; i++) *at++ = (float)s->scales[k];
  const int32_t status = kr_lm_load_made(l, values, n, &w->in_scales);
  kr_free(values);
  return status;
}

static int32_t load_mamba2(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_mamba_sizes *s = block->sizes;
  kr_lm_mamba_weights *w = block->weights;
  const kr_weight *D = kr_lm_peek(l, "D");
  w->is_D_per_channel = D && D->n_dims == 1 && D->shape[0] == s->Di && s->Di != s->H;
  KR_TRY(kr_mamba_load(l, block, w->is_D_per_channel ? s->Di : s->H));
  KR_TRY(kr_lm_load_f32(l, "dt_bias", KR_SIZES(s->H), NULL, &w->dt_bias));
  if (s->scales[0] != 0) KR_TRY(load_in_scales(l, block));
  return s->gate == KR_LM_GATE_ALONE ? KRAIT_OK : kr_lm_load(l, "gate_norm", 1, KR_SIZES(s->Di), &w->gate_norm);
}

/* ---- the scan ---- */

/* What it reads and writes, as rows. */
typedef struct head_rows {
  kr_tensor x, dt, B, C, y;
} head_rows;

/* A value for each head as (H,P), or (H,P,N). */
static kr_tensor for_heads(const kr_token_builder *r, const kr_lm_mamba_sizes *s, kr_tensor t, int with_states) {
  return with_states ? kr_graph_expand(r->g, kr_graph_reshape(r->g, t, KR_DIMS(s->H, 1, 1)), KR_DIMS(s->H, s->P, s->N))
                     : kr_graph_expand(r->g, kr_graph_reshape(r->g, t, KR_DIMS(s->H, 1)), KR_DIMS(s->H, s->P));
}

static kr_tensor record_D(const kr_token_builder *r, const kr_lm_mamba_sizes *s, const kr_lm_mamba_weights *w) {
  return w->is_D_per_channel ? weight(r, "D", &w->D, s->H, s->P) : for_heads(r, s, weight(r, "D", &w->D, s->H), 0);
}

static void update_heads(const kr_lm_builder *b, const kr_lm_block *block, const head_rows *t) {
  const kr_lm_mamba_sizes *s = block->sizes;
  const kr_lm_mamba_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_dims heads = KR_DIMS(r->rows, s->H, s->P), groups = KR_DIMS(r->rows, s->G, s->N);
  const kr_tensor dt = kr_graph_expand(r->g, kr_graph_reshape(r->g, t->dt, KR_DIMS(r->rows, s->H, 1)), heads);
  kr_graph_call(
      r->g, "scan", &kr_op_state_update,
      &(kr_state_update_args){.call.flags = KRAIT_UPDATE_SOFTPLUS,
                                 .state = view(r, kr_lm_state_of(b, block, KR_MAMBA_SSM)),
                                 .x = view_as(r, t->x, heads),
                                 .dt = view(r, dt),
                                 .A = view(r, for_heads(r, s, weight(r, "A", &w->A, s->H), 1)),
                                 .Bmat = view_as(r, t->B, groups),
                                 .Cmat = view_as(r, t->C, groups),
                                 .Dvec = view(r, record_D(r, s, w)),
                                 .dt_bias = view(r, for_heads(r, s, weight(r, "dt_bias", &w->dt_bias, s->H), 0)),
                                 .state_batch_indices = view(r, b->to->slots),
                                 .out = view_as(r, t->y, heads)});
}

static void scan_heads(kr_lm_builder *b, const kr_lm_block *block, const head_rows *t) {
  const kr_lm_mamba_sizes *s = block->sizes;
  const kr_lm_mamba_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_dims heads = KR_DIMS(1, r->rows, s->H, s->P), groups = KR_DIMS(1, r->rows, s->G, s->N);
  const kr_tensor after = kr_lm_state_after(b, block, KR_MAMBA_SSM);
  kr_graph_call(r->g, "scan", &kr_op_ssd,
                &(kr_ssd_args){.call.flags = KRAIT_SSD_SOFTPLUS,
                                  .x = view_as(r, t->x, heads),
                                  .dt = view_as(r, t->dt, KR_DIMS(1, r->rows, s->H)),
                                  .A = view(r, weight(r, "A", &w->A, s->H)),
                                  .Bmat = view_as(r, t->B, groups),
                                  .Cmat = view_as(r, t->C, groups),
                                  .Dvec = view(r, record_D(r, s, w)),
                                  .dt_bias = view(r, weight(r, "dt_bias", &w->dt_bias, s->H)),
                                  .initial_states = view(r, kr_lm_state_of(b, block, KR_MAMBA_SSM)),
                                  .out = view_as(r, t->y, heads),
                                  .final_states = view(r, after)});
  kr_lm_state_keep(b, block, KR_MAMBA_SSM, after);
}

/* ---- the mixer ---- */

/* Columns [from, from + n) of the product with a weight, at their position in the whole product. */
static void project_part(const kr_token_builder *r, const char *name, kr_tensor x, kr_tensor w, kr_tensor bias,
                         int64_t from, int64_t n, kr_tensor all) {
  linear(r, name, x, .matrix = kr_graph_slice(r->g, w, 0, from, n),
         .bias_row = bias ? kr_graph_slice(r->g, bias, 0, from, n) : 0, .out = columns(r, all, from, n));
}

/* z, x, B, C, dt as columns. dt's few would need their own tile, which tensor copies store slowly: prompts multiply
 * them separately. */
static kr_tensor project_mamba2(const kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_mamba_sizes *s = block->sizes;
  const kr_lm_mamba_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int64_t n = kr_mamba_rows(block);
  const kr_tensor all = columns(r, new_rows(r, (n + 63) / 64 * 64), 0, n); /* rows start at cache lines */
  if (b->run.is_step || w->in_proj.dtype == KRAIT_I32)
    return linear(r, "in_proj", x, .w = &w->in_proj, .bias = &w->in_proj_bias, .N = n, .K = s->d, .out = all), all;
  const kr_tensor matrix = weight(r, "in_proj", &w->in_proj, n, s->d),
                  bias = weight(r, "in_proj_bias", &w->in_proj_bias, n);
  project_part(r, "in_proj", x, matrix, bias, 0, n - s->H, all);
  project_part(r, "in_proj_dt", x, matrix, bias, n - s->H, s->H, all);
  return all;
}

static void scale_columns(const kr_token_builder *r, const kr_lm_mamba_weights *w, kr_tensor all, int64_t n) {
  if (w->in_scales.data)
    multiply_into(r, "in_scales", all,
                  kr_graph_expand(r->g, kr_graph_reshape(r->g, weight(r, "in_scales", &w->in_scales, n), KR_DIMS(1, n)),
                                  KR_DIMS(r->rows, n)),
                  all);
}

/* y with its gate z, and their norm. */
static void gate_mamba2(const kr_token_builder *r, const kr_lm_mamba_sizes *s, const kr_lm_mamba_weights *w,
                        kr_tensor y, kr_tensor z, kr_tensor gated) {
  const kr_pointwise_args silu = {
      .call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SILU, .x_scale = 1};
  if (s->gate == KR_LM_GATE_ALONE) {
    kr_graph_pointwise(r->g, "gate", silu, z, y, gated);
    return;
  }
  kr_graph_call(
      r->g, "gate_norm", &kr_op_gated_norm,
      &(kr_gated_norm_args){
          .call.flags = KRAIT_GATED_NORM_RMS | (s->gate == KR_LM_GATE_FIRST ? KRAIT_GATED_NORM_GATE_FIRST : 0),
          .group_size = s->Di / s->G,
          .eps = s->gate_eps > 0 ? (float)s->gate_eps : 1e-5f,
          .x = view(r, y),
          .z = view(r, z),
          .weight = view(r, weight(r, "gate_norm", &w->gate_norm, s->Di)),
          .out = view(r, gated)});
}

static kr_tensor record_mamba2(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_mamba_sizes *s = block->sizes;
  const kr_lm_mamba_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int64_t GN = s->G * s->N, C = kr_mamba_channels(block);
  const kr_tensor all = project_mamba2(b, block, x);
  scale_columns(r, w, all, kr_mamba_rows(block));
  const kr_tensor xBC = kr_lm_convolve(b, block, KR_MAMBA_CONV, columns(r, all, s->Di, C), &w->conv, &w->conv_bias,
                                       s->W, KRAIT_ACT_SILU),
                  y = new_rows(r, s->Di), gated = new_rows(r, s->Di);
  const head_rows t = {.x = columns(r, xBC, 0, s->Di),
                       .dt = columns(r, all, s->Di + C, s->H),
                       .B = columns(r, xBC, s->Di, GN),
                       .C = columns(r, xBC, s->Di + GN, GN),
                       .y = y};
  if (b->run.is_step)
    update_heads(b, block, &t);
  else
    scan_heads(b, block, &t);
  gate_mamba2(r, s, w, y, columns(r, all, 0, s->Di), gated);
  return kr_mamba_out(b, block, gated);
}

const kr_lm_block_kind kr_lm_mamba2 = {.name = "mamba2",
                                       .sizes_bytes = sizeof(kr_lm_mamba_sizes),
                                       .weights_bytes = sizeof(kr_lm_mamba_weights),
                                       .load = load_mamba2,
                                       .list_states = kr_mamba_list_states,
                                       .record = record_mamba2,
                                       .can_fuse = kr_mamba_can_fuse,
                                       .record_fused = kr_mamba_record_fused};
