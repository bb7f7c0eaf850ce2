/* mamba3_block.c: intermediates are rows (b, l) of columns: in_proj's output is written once, and consumers of some of
 * its columns read them in place, as their gradients are written in place. */
#include "mamba3_block.h"

#include "op_list.h"

typedef struct mamba3_inner {
  kr_graph *g;
  kr_mamba3_block *b;
  int64_t B, L, H, P, N, R, G, M;
} mamba3_inner;

static kr_view mamba3_block_view(const mamba3_inner *i, kr_tensor t) { return kr_graph_view(i->g, t); }
static kr_tensor mamba3_block_columns(const mamba3_inner *i, kr_tensor t, int64_t from, int64_t n) {
  return kr_graph_slice(i->g, t, 2, from, n);
}
static kr_tensor mamba3_block_rows(const mamba3_inner *i, kr_tensor t) { /* a matrix, one row per token */
  return kr_graph_reshape(i->g, t, KR_DIMS(i->B * i->L, kr_graph_dims(i->g, t).size[2]));
}
static kr_tensor mamba3_block_heads(const mamba3_inner *i, kr_tensor t, int64_t n, int64_t each) {
  return kr_graph_reshape(i->g, t, KR_DIMS(i->B, i->L, n, each));
}
static void copy_mamba3_block(const mamba3_inner *i, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(i->g, name, (kr_pointwise_args){.x_scale = 1}, from, 0, to);
}

static int mamba3_block_is_rows(const mamba3_inner *i, kr_tensor t, int32_t dtype) {
  return kr_graph_dtype(i->g, t) == dtype &&
         kr_graph_can_reshape(i->g, t, KR_DIMS(i->B * i->L, kr_graph_dims(i->g, t).size[2]));
}

/* What a step may write directly for `out` (0: none): `out` itself, or rows that end_rows copies there. */
static kr_tensor begin_mamba3_rows(const mamba3_inner *i, kr_tensor out, int64_t columns, int32_t dtype) {
  return out && mamba3_block_is_rows(i, out, dtype) ? out : kr_graph_temp(i->g, dtype, KR_DIMS(i->B, i->L, columns));
}
static kr_tensor end_mamba3_rows(const mamba3_inner *i, const char *name, kr_tensor rows, kr_tensor out) {
  if (out && out != rows) copy_mamba3_block(i, name, rows, out);
  return rows;
}

/* Rows times a weight stored (columns, inputs). */
static void project_mamba3_block(const mamba3_inner *i, const char *name, kr_tensor rows, kr_tensor weight,
                                 kr_tensor out) {
  kr_graph_call(i->g, name, &kr_op_gemm,
                &(kr_gemm_args){.A = mamba3_block_view(i, mamba3_block_rows(i, rows)),
                                .Bmat = mamba3_block_view(i, kr_graph_permute(i->g, weight, (int[]){1, 0})),
                                .out = mamba3_block_view(i, mamba3_block_rows(i, out))});
}

static kr_tensor project_mamba3_in(const mamba3_inner *i) {
  const kr_mamba3_block *b = i->b;
  kr_tensor x = b->x;
  if (!mamba3_block_is_rows(i, x, b->dtype)) {
    x = kr_graph_temp(i->g, b->dtype, kr_graph_dims(i->g, x));
    copy_mamba3_block(i, "x", b->x, x);
  }
  if (!b->in_proj_weight) return x;
  const kr_tensor rows = begin_mamba3_rows(i, b->columns, kr_graph_dims(i->g, b->in_proj_weight).size[0], b->dtype);
  project_mamba3_block(i, "in_proj", x, b->in_proj_weight, rows);
  return end_mamba3_rows(i, "columns", rows, b->columns);
}

/* A norm's weight for every vector of B, or of C; wide, so that the sum over them of its gradient is rounded once. */
static kr_tensor repeat_norm(const mamba3_inner *i, const char *name, kr_tensor weight) {
  const int64_t copies = i->R * i->G;
  if (copies == 1) return weight;
  kr_tensor wide = weight;
  if (kr_graph_dtype(i->g, weight) != i->b->wide) {
    wide = kr_graph_temp(i->g, i->b->wide, KR_DIMS(i->N));
    copy_mamba3_block(i, name, weight, wide);
  }
  const kr_tensor all = kr_graph_temp(i->g, i->b->wide, KR_DIMS(copies, i->N)),
                  one = kr_graph_reshape(i->g, wide, KR_DIMS(1, i->N));
  copy_mamba3_block(i, name, kr_graph_expand(i->g, one, KR_DIMS(copies, i->N)), all);
  return kr_graph_reshape(i->g, all, KR_DIMS(copies * i->N));
}

/* The vectors (N) of some columns, each normed. */
static void norm_mamba3_vectors(const mamba3_inner *i, const char *name, kr_tensor from, kr_tensor weight,
                                kr_tensor to) {
  kr_graph_call(i->g, name, &kr_op_gated_norm,
                &(kr_gated_norm_args){.call.flags = KRAIT_GATED_NORM_RMS,
                                      .eps = i->b->BC_eps,
                                      .group_size = i->N,
                                      .x = mamba3_block_view(i, mamba3_block_rows(i, from)),
                                      .weight = mamba3_block_view(i, repeat_norm(i, name, weight)),
                                      .out = mamba3_block_view(i, mamba3_block_rows(i, to))});
}

static void decay_mamba3(const mamba3_inner *i, kr_tensor dt_raw, kr_tensor A_raw) {
  kr_mamba3_block *b = i->b;
  const kr_tensor dt = begin_mamba3_rows(i, b->dt, i->H, b->wide),
                  log_decay = begin_mamba3_rows(i, b->log_decay, i->H, b->wide);
  kr_graph_call(i->g, "decay", &kr_op_mamba3_decay,
                &(kr_mamba3_decay_args){.call.flags = b->softplus_A ? KRAIT_MAMBA3_SOFTPLUS_A : 0,
                                        .A_floor = b->A_floor,
                                        .dt_raw = mamba3_block_view(i, mamba3_block_rows(i, dt_raw)),
                                        .A_raw = mamba3_block_view(i, mamba3_block_rows(i, A_raw)),
                                        .dt_bias = mamba3_block_view(i, b->dt_bias),
                                        .dt = mamba3_block_view(i, mamba3_block_rows(i, dt)),
                                        .log_decay = mamba3_block_view(i, mamba3_block_rows(i, log_decay))});
  b->dt = end_mamba3_rows(i, "dt", dt, b->dt), b->log_decay = end_mamba3_rows(i, "log_decay", log_decay, b->log_decay);
}

/* The angles of a token are the same for all heads. */
static void scan_mamba3_block(const mamba3_inner *i, kr_tensor z, kr_tensor x, kr_tensor trap, kr_tensor angles,
                              kr_tensor y) {
  const kr_mamba3_block *b = i->b;
  const int64_t vectors = i->R * i->G, V = vectors * i->N;
  kr_graph_call(
      i->g, "scan", &kr_op_mamba3,
      &(kr_mamba3_args){
          .call.flags = b->halves ? KRAIT_MAMBA3_HALVES : 0,
          .G = i->G,
          .R = i->R,
          .eps = b->eps,
          .x = mamba3_block_view(i, mamba3_block_heads(i, x, i->H, i->P)),
          .log_decay = mamba3_block_view(i, b->log_decay),
          .dt = mamba3_block_view(i, b->dt),
          .trap = mamba3_block_view(i, trap),
          .Bmat = mamba3_block_view(i, mamba3_block_heads(i, mamba3_block_columns(i, b->BC, 0, V), vectors, i->N)),
          .Cmat = mamba3_block_view(i, mamba3_block_heads(i, mamba3_block_columns(i, b->BC, V, V), vectors, i->N)),
          .B_bias = mamba3_block_view(i, b->B_bias),
          .C_bias = mamba3_block_view(i, b->C_bias),
          .angles = mamba3_block_view(
              i, kr_graph_expand(i->g, mamba3_block_heads(i, angles, 1, i->M), KR_DIMS(i->B, i->L, i->H, i->M))),
          .Dvec = mamba3_block_view(i, b->Dvec),
          .z = mamba3_block_view(i, mamba3_block_heads(i, z, i->H, i->P)),
          .mimo_x = mamba3_block_view(i, b->mimo_x),
          .mimo_z = mamba3_block_view(i, b->mimo_z),
          .mimo_o = mamba3_block_view(i, b->mimo_o),
          .norm_weight = mamba3_block_view(i, b->norm_weight),
          .initial_angles = mamba3_block_view(i, b->initial_angles),
          .initial_states = mamba3_block_view(i, b->initial_states),
          .initial_B = mamba3_block_view(i, b->initial_B),
          .initial_x = mamba3_block_view(i, b->initial_x),
          .cu_seqlens = mamba3_block_view(i, b->cu_seqlens),
          .out = mamba3_block_view(i, mamba3_block_heads(i, y, i->H, i->P)),
          .final_angles = mamba3_block_view(i, b->final_angles),
          .final_states = mamba3_block_view(i, b->final_states),
          .final_B = mamba3_block_view(i, b->final_B),
          .final_x = mamba3_block_view(i, b->final_x),
          .n_kept = b->kept ? kr_graph_dims(i->g, b->kept).size[2] : 0,
          .kept = mamba3_block_view(i, b->kept)});
}

static void mix_mamba3(const mamba3_inner *i, kr_tensor columns, kr_tensor y) {
  kr_mamba3_block *b = i->b;
  const int64_t D = i->H * i->P, V = i->R * i->G * i->N, after = 2 * D + 2 * V;
  const kr_tensor BC = begin_mamba3_rows(i, b->BC, 2 * V, b->dtype);
  norm_mamba3_vectors(i, "B_norm", mamba3_block_columns(i, columns, 2 * D, V), b->B_norm,
                      mamba3_block_columns(i, BC, 0, V));
  norm_mamba3_vectors(i, "C_norm", mamba3_block_columns(i, columns, 2 * D + V, V), b->C_norm,
                      mamba3_block_columns(i, BC, V, V));
  b->BC = end_mamba3_rows(i, "BC", BC, b->BC);
  decay_mamba3(i, mamba3_block_columns(i, columns, after, i->H), mamba3_block_columns(i, columns, after + i->H, i->H));
  scan_mamba3_block(i, mamba3_block_columns(i, columns, 0, D), mamba3_block_columns(i, columns, D, D),
                    mamba3_block_columns(i, columns, after + 2 * i->H, i->H),
                    mamba3_block_columns(i, columns, after + 3 * i->H, i->M), y);
}

void kr_mamba3_block_record(kr_graph *g, kr_mamba3_block *b) {
  if (kr_graph_status(g) < 0) return;
  const kr_dims x = kr_graph_dims(g, b->x), bias = kr_graph_dims(g, b->B_bias);
  const mamba3_inner i = {g, b, x.size[0], x.size[1], bias.size[0], b->P, bias.size[2], bias.size[1], b->G, b->M};
  b->columns = project_mamba3_in(&i);
  const kr_tensor to = b->out_proj_weight ? b->y : b->out, y = begin_mamba3_rows(&i, to, i.H * i.P, b->dtype);
  mix_mamba3(&i, b->columns, y);
  b->y = end_mamba3_rows(&i, "y", y, to);
  if (!b->out_proj_weight) return;
  const kr_tensor out = begin_mamba3_rows(&i, b->out, kr_graph_dims(g, b->out).size[2], b->dtype);
  project_mamba3_block(&i, "out_proj", y, b->out_proj_weight, out);
  end_mamba3_rows(&i, "out", out, b->out);
}
