/* mamba_inner_chain.c: mamba_inner and its gradient as calls of other operators. Work tensors are rows (b, l) of D (or other)
 * columns, so that products take them as they are and the scan reads B and C in place. A chain is walked twice: once
 * to learn how much scratch it needs, once to run. The gradient's reference is the same chain in float64. */
#include "mamba_inner_chain.h"

#include "copy.h"
#include "op_list.h"
#include "view.h"

typedef krait_mamba_inner_args inner_args;
typedef krait_mamba_inner_bwd_args bwd_args;

typedef struct chain {
  const krait_ctx *ctx;
  int32_t dtype; /* of work tensors: float32, or float64 on reference rows */
  int planning;
  int32_t status;
  char *base, *op_scratch; /* base is not read while planning */
  uint64_t used, op_bytes;
  int64_t B, L;
} chain;

enum { LINE = 256 };
static const uintptr_t planned_base = LINE;

static int is_reference(const chain *c) { return c->dtype == KRAIT_F64; }

static krait_view take(chain *c, int64_t rows, int64_t columns) {
  krait_view v = {.data = c->base + c->used, .stride = {columns, 1}, .dtype = c->dtype};
  c->used += ((uint64_t)(rows * columns) * krait_dtype_bytes(c->dtype) + LINE) / LINE * LINE;
  return v;
}

static void call_op(chain *c, const kr_op *op, void *args) {
  krait_call *call = args;
  if (c->status < 0) return;
  call->size = op->args_bytes;
  const kr_row *row = is_reference(c) ? &op->rows[op->n_rows - 1] : kr_op_resolve(op, c->ctx, args, &c->status);
  if (!row) return;
  const uint64_t bytes = row->scratch_bytes ? row->scratch_bytes(c->ctx, args) : 0;
  if (bytes > c->op_bytes) c->op_bytes = bytes;
  if (c->planning) return;
  call->scratch = c->op_scratch;
  call->scratch_bytes = bytes;
  c->status = row->run(c->ctx, args);
}

static void copy_views(chain *c, krait_view from, krait_view to, int64_t n_b, int64_t n_i, int64_t n_j) {
  if (!c->planning && c->status >= 0) kr_copy_view(is_reference(c) ? NULL : c->ctx, &from, &to, n_b, n_i, n_j);
}

/* ---- views ---- */

static krait_view turned(krait_view v) {
  int64_t row = v.stride[0];
  v.stride[0] = v.stride[1];
  v.stride[1] = row;
  return v;
}
static krait_view moved(krait_view v, int64_t elements) {
  v.data = (char *)v.data + elements * (int64_t)krait_dtype_bytes(v.dtype);
  return v;
}
/* Rows (b, l) as (B, L, columns), and as (B, columns, L). */
static krait_view as_steps(const chain *c, krait_view rows) {
  rows.stride[2] = rows.stride[1], rows.stride[1] = rows.stride[0], rows.stride[0] *= c->L;
  return rows;
}
static krait_view as_channels(const chain *c, krait_view rows) {
  krait_view v = as_steps(c, rows);
  int64_t step = v.stride[1];
  v.stride[1] = v.stride[2], v.stride[2] = step;
  return v;
}
/* (B,D,L) as (B,L,D). */
static krait_view steps_of(krait_view v) {
  int64_t step = v.stride[2];
  v.stride[2] = v.stride[1], v.stride[1] = step;
  return v;
}

static krait_view copied(chain *c, krait_view from, int64_t rows, int64_t columns) {
  krait_view to = take(c, rows, columns);
  from.stride[2] = from.stride[1], from.stride[1] = from.stride[0], from.stride[0] = 0;
  krait_view target = {to.data, {0, to.stride[0], to.stride[1]}, to.dtype, 0};
  copy_views(c, from, target, 1, rows, columns);
  return to;
}
static void put_matrix(chain *c, krait_view from, const krait_view *to, int64_t rows, int64_t columns) {
  krait_view source = {from.data, {0, from.stride[0], from.stride[1]}, from.dtype, 0};
  krait_view target = {to->data, {0, to->stride[0], to->stride[1]}, to->dtype, 0};
  copy_views(c, source, target, 1, rows, columns);
}
/* A weight as products take it. */
static krait_view weight_of(chain *c, const krait_view *v, int64_t rows, int64_t columns) {
  return is_reference(c) || v->dtype == c->dtype ? *v : copied(c, *v, rows, columns);
}

/* out = A B (+ bias) (+ residual). */
static void multiply(chain *c, int64_t M, int64_t N, int64_t K, krait_view A, krait_view B, const krait_view *bias, const krait_view *residual, krait_view out) {
  krait_gemm_args a = {.M = M, .N = N, .K = K, .A = A, .Bmat = B, .out = out};
  if (bias) a.bias = *bias;
  if (residual) a.residual = *residual;
  call_op(c, &kr_op_gemm, &a);
}

static void normalize(chain *c, const inner_args *a, int64_t columns, krait_view x, krait_view weight, krait_view out) {
  krait_add_norm_args n = {.call.flags = KRAIT_NORM_RMS, .R = c->B * c->L, .M = columns, .eps = a->eps, .x = x, .weight = weight, .out = out};
  call_op(c, &kr_op_add_norm, &n);
}

/* ---- forwards ---- */

typedef struct inner {
  krait_view x, proj, delta_raw, delta; /* after the convolution; x_proj's columns, dt first; before and after dt's norm */
  krait_view B, C;                      /* rows of columns, after their norms */
  krait_view scan_B, scan_C, z;
  int64_t n_columns, B_columns, C_columns;
} inner;

static krait_view z_of(const inner_args *a, const krait_view *xz) { return moved(*xz, a->D * xz->stride[1]); }

/* The first half of xz: itself where the chain has its type, else a copy in `to`. */
static krait_view x_of(chain *c, const inner_args *a, krait_view to) {
  if (a->xz.dtype == c->dtype) return a->xz;
  copy_views(c, steps_of(a->xz), as_steps(c, to), a->B, a->L, a->D);
  return as_channels(c, to);
}

static uint32_t conv_flags(const inner_args *a) { return a->call.flags & KRAIT_SCAN_REVERSE ? KRAIT_CONV1D_REVERSE : 0; }

static void convolve(chain *c, const inner_args *a, krait_view to) {
  krait_causal_conv1d_args n = {.call.flags = conv_flags(a), .B = a->B, .D = a->D, .L = a->L, .W = a->W, .activation = KRAIT_ACT_SILU, .x = x_of(c, a, to), .weight = a->conv_weight,
                                .bias = a->conv_bias, .out = as_channels(c, to)};
  call_op(c, &kr_op_causal_conv1d, &n);
}

/* Zeros for dt, then the biases of B and C. */
static krait_view columns_bias(chain *c, const inner_args *a, const inner *in) {
  krait_view bias = take(c, 1, in->n_columns);
  bias.stride[0] = 1;
  if (c->planning) return bias;
  for (int64_t n = 0; n < in->n_columns; n++) {
    int64_t in_B = n - a->R, in_C = n - (in->n_columns - in->C_columns);
    double value = 0;
    if (in_C >= 0 && kr_has(&a->C_proj_bias)) value = kr_get(&a->C_proj_bias, kr_at1(&a->C_proj_bias, in_C));
    else if (in_C < 0 && in_B >= 0 && kr_has(&a->B_proj_bias)) value = kr_get(&a->B_proj_bias, kr_at1(&a->B_proj_bias, in_B));
    kr_put(&bias, n, value);
  }
  return bias;
}

/* What the scan reads of B (or C): (B,1,N,L), or (B,1,N,2L) with real and imaginary parts interleaved in time. */
static krait_view scan_view(chain *c, const inner_args *a, krait_view rows) {
  krait_view v = {rows.data, {c->L * rows.stride[0], 0, 1, rows.stride[0]}, rows.dtype, 0};
  if (a->A.dtype != KRAIT_C64) return v;
  krait_view pairs = take(c, a->B * a->N, 2 * a->L);
  for (int64_t part = 0; part < 2; part++) {
    krait_view from = {rows.data, {c->L * rows.stride[0], 2, rows.stride[0]}, rows.dtype, 0};
    krait_view to = {pairs.data, {2 * a->N * a->L, 2 * a->L, 2}, pairs.dtype, 0};
    copy_views(c, moved(from, part), moved(to, part), a->B, a->N, a->L);
  }
  return (krait_view){pairs.data, {2 * a->N * a->L, 0, 2 * a->L, 1}, pairs.dtype, 0};
}

static krait_view project_parameter(chain *c, const inner_args *a, krait_view columns, const krait_view *norm, krait_view *rows) {
  *rows = columns;
  if (kr_has(norm)) {
    *rows = take(c, a->B * a->L, a->N);
    normalize(c, a, a->N, columns, *norm, *rows);
  }
  return scan_view(c, a, *rows);
}

/* Everything that the scan reads. */
static inner prepare(chain *c, const inner_args *a, krait_view x) {
  const int64_t rows = a->B * a->L;
  inner in = {.x = x, .z = z_of(a, &a->xz), .B_columns = kr_inner_columns(a, &a->Bmat), .C_columns = kr_inner_columns(a, &a->Cmat)};
  in.n_columns = a->R + in.B_columns + in.C_columns;
  convolve(c, a, x);
  in.proj = take(c, rows, in.n_columns);
  const krait_view bias = columns_bias(c, a, &in);
  multiply(c, rows, in.n_columns, a->D, x, turned(weight_of(c, &a->x_proj_weight, in.n_columns, a->D)), &bias, NULL, in.proj);
  in.delta = in.delta_raw = take(c, rows, a->D);
  multiply(c, rows, a->D, a->R, in.proj, turned(weight_of(c, &a->dt_proj_weight, a->D, a->R)), NULL, NULL, in.delta_raw);
  if (kr_has(&a->dt_norm_weight)) {
    in.delta = take(c, rows, a->D);
    normalize(c, a, a->D, in.delta_raw, a->dt_norm_weight, in.delta);
  }
  in.scan_B = a->Bmat, in.scan_C = a->Cmat;
  if (in.B_columns) in.scan_B = project_parameter(c, a, moved(in.proj, a->R), &a->B_norm_weight, &in.B);
  if (in.C_columns) in.scan_C = project_parameter(c, a, moved(in.proj, in.n_columns - in.C_columns), &a->C_norm_weight, &in.C);
  return in;
}

/* out: (B,D,L). */
static void scan(chain *c, const inner_args *a, const inner *in, krait_view out) {
  krait_selective_scan_args s = {.call.flags = a->call.flags, .B = a->B, .D = a->D, .L = a->L, .N = a->N, .G = 1, .u = as_channels(c, in->x), .delta = as_channels(c, in->delta),
                                 .A = a->A, .A_reverse = a->A_reverse, .Bmat = in->scan_B, .Cmat = in->scan_C, .Dvec = a->Dvec, .z = in->z, .delta_bias = a->delta_bias, .out = out};
  call_op(c, &kr_op_selective_scan, &s);
}

static void run_forward(chain *c, const inner_args *a) {
  const int64_t rows = a->B * a->L;
  inner in = prepare(c, a, take(c, rows, a->D));
  if (!a->M && a->out.dtype == c->dtype) {
    scan(c, a, &in, a->out);
    return;
  }
  scan(c, a, &in, as_channels(c, in.x));
  if (!a->M) {
    copy_views(c, as_steps(c, in.x), steps_of(a->out), a->B, a->L, a->D);
    return;
  }
  const int direct = a->out.dtype == c->dtype && a->out.stride[2] == 1 && (a->B == 1 || a->out.stride[0] == a->L * a->out.stride[1]);
  krait_view out = direct ? (krait_view){a->out.data, {a->out.stride[1], 1}, c->dtype, 0} : take(c, rows, a->M);
  multiply(c, rows, a->M, a->D, in.x, turned(weight_of(c, &a->out_proj_weight, a->M, a->D)), kr_has(&a->out_proj_bias) ? &a->out_proj_bias : NULL, NULL, out);
  if (!direct) copy_views(c, as_steps(c, out), a->out, a->B, a->L, a->M);
}

/* ---- backwards ---- */

typedef struct column_sums {
  krait_view rows;
  const krait_view *to;
  int64_t n_rows;
} column_sums;

static void sum_some_columns(void *user, int64_t begin, int64_t end, int worker) {
  const column_sums *s = user;
  (void)worker;
  for (int64_t n = begin; n < end; n++) {
    double sum = 0;
    for (int64_t m = 0; m < s->n_rows; m++) sum += kr_get(&s->rows, kr_at2(&s->rows, m, n));
    kr_put(s->to, kr_at1(s->to, n), sum);
  }
}

static void sum_columns(chain *c, krait_view rows, int64_t columns, const krait_view *to) {
  column_sums s = {rows, to, c->B * c->L};
  if (!kr_has(to) || c->planning || c->status < 0) return;
  if (is_reference(c)) sum_some_columns(&s, 0, columns, 0);
  else kr_parallel(c->ctx, columns, 16, sum_some_columns, &s);
}

/* to (columns of small, D) = small^T big: the gradient of a weight. */
static void weight_gradient(chain *c, const inner_args *a, krait_view small, int64_t columns, krait_view big, const krait_view *to) {
  const int64_t rows = a->B * a->L;
  if (!kr_has(to)) return;
  krait_view across = copied(c, turned(small), columns, rows), result = take(c, columns, a->D);
  multiply(c, columns, a->D, rows, across, big, NULL, NULL, result);
  put_matrix(c, result, to, columns, a->D);
}

static void norm_gradient(chain *c, const inner_args *a, int64_t columns, krait_view x, const krait_view *weight, krait_view dout, krait_view dx, const krait_view *dweight) {
  krait_add_norm_bwd_args n = {.call.flags = KRAIT_NORM_RMS, .R = c->B * c->L, .M = columns, .eps = a->eps, .v = x, .weight = *weight, .dout = dout, .dx = dx, .dweight = *dweight};
  call_op(c, &kr_op_add_norm_bwd, &n);
}

/* The gradient (B,D,L) of y, gated, from that of out; and those of the projection. y is work space for the output of the scan. */
static krait_view project_back(chain *c, const bwd_args *g, const inner_args *a, const inner *in, krait_view y) {
  const int64_t rows = a->B * a->L;
  if (!a->M && g->dout.dtype == c->dtype) return g->dout;
  krait_view dy = take(c, rows, a->D);
  if (!a->M) {
    copy_views(c, steps_of(g->dout), as_steps(c, dy), a->B, a->L, a->D);
    return as_channels(c, dy);
  }
  krait_view dout = take(c, rows, a->M);
  copy_views(c, g->dout, as_steps(c, dout), a->B, a->L, a->M);
  multiply(c, rows, a->D, a->M, dout, weight_of(c, &a->out_proj_weight, a->M, a->D), NULL, NULL, dy);
  sum_columns(c, dout, a->M, &g->dout_proj_bias);
  if (!kr_has(&g->dout_proj_weight)) return as_channels(c, dy);
  scan(c, a, in, as_channels(c, y));
  weight_gradient(c, a, dout, a->M, y, &g->dout_proj_weight);
  return as_channels(c, dy);
}

/* Where the scan puts the gradient of projected B (or C): pairs for a complex A, else rows. */
typedef struct parameter_gradient {
  krait_view rows, scan; /* before their norm's gradient; as the scan writes them */
} parameter_gradient;

static parameter_gradient begin_parameter(chain *c, const inner_args *a, krait_view columns, const krait_view *norm) {
  parameter_gradient p = {.rows = kr_has(norm) ? take(c, a->B * a->L, a->N) : columns};
  if (a->A.dtype != KRAIT_C64) {
    p.scan = (krait_view){p.rows.data, {c->L * p.rows.stride[0], 0, 1, p.rows.stride[0]}, c->dtype, 0};
    return p;
  }
  krait_view pairs = take(c, a->B * a->N, 2 * a->L);
  p.scan = (krait_view){pairs.data, {2 * a->N * a->L, 0, 2 * a->L, 1}, c->dtype, 0};
  return p;
}

static void end_parameter(chain *c, const inner_args *a, const parameter_gradient *p, krait_view columns, krait_view x, const krait_view *norm, const krait_view *dnorm) {
  for (int64_t part = 0; part < 2 && a->A.dtype == KRAIT_C64; part++) {
    krait_view from = {p->scan.data, {2 * a->N * a->L, 2, 2 * a->L}, c->dtype, 0}, to = {columns.data, {c->L * columns.stride[0], columns.stride[0], 2}, c->dtype, 0};
    copy_views(c, moved(from, part), moved(to, part), a->B, a->L, a->N);
  }
  if (kr_has(norm)) norm_gradient(c, a, a->N, x, norm, p->rows, columns, dnorm);
}

static void scan_back(chain *c, const bwd_args *g, const inner_args *a, const inner *in, krait_view dy, krait_view du, krait_view ddelta, krait_view dB, krait_view dC) {
  krait_selective_scan_bwd_args s = {.call.flags = a->call.flags, .B = a->B, .D = a->D, .L = a->L, .N = a->N, .G = 1, .u = as_channels(c, in->x), .delta = as_channels(c, in->delta),
                                     .A = a->A, .A_reverse = a->A_reverse, .Bmat = in->scan_B, .Cmat = in->scan_C, .Dvec = a->Dvec, .z = in->z, .delta_bias = a->delta_bias,
                                     .dout = dy, .du = as_channels(c, du), .ddelta = as_channels(c, ddelta), .dA = g->dA, .dA_reverse = g->dA_reverse,
                                     .dB = dB, .dC = dC, .dDvec = g->dDvec, .ddelta_bias = g->ddelta_bias};
  if (kr_has(&g->dxz)) s.dz = z_of(a, &g->dxz);
  call_op(c, &kr_op_selective_scan_bwd, &s);
}

/* dproj from the gradients of delta, B and C; ddelta is spent. */
static void project_gradients(chain *c, const bwd_args *g, const inner_args *a, const inner *in, krait_view ddelta, krait_view spare, krait_view dproj) {
  const int64_t rows = a->B * a->L;
  krait_view d = ddelta;
  if (kr_has(&a->dt_norm_weight)) {
    norm_gradient(c, a, a->D, in->delta_raw, &a->dt_norm_weight, ddelta, spare, &g->ddt_norm_weight);
    d = spare;
  }
  multiply(c, rows, a->R, a->D, d, weight_of(c, &a->dt_proj_weight, a->D, a->R), NULL, NULL, dproj);
  krait_view to = turned(g->ddt_proj_weight);
  weight_gradient(c, a, in->proj, a->R, d, &to);
}

/* x and dx are work space. */
static void convolve_back(chain *c, const bwd_args *g, const inner_args *a, krait_view x, krait_view dout, krait_view dx) {
  const int direct = g->dxz.dtype == c->dtype, wanted = kr_has(&g->dxz);
  krait_causal_conv1d_bwd_args n = {.call.flags = conv_flags(a), .B = a->B, .D = a->D, .L = a->L, .W = a->W, .activation = KRAIT_ACT_SILU, .x = x_of(c, a, x), .weight = a->conv_weight,
                                    .bias = a->conv_bias, .dout = as_channels(c, dout), .dweight = g->dconv_weight, .dbias = g->dconv_bias};
  if (wanted) n.dx = direct ? g->dxz : as_channels(c, dx);
  call_op(c, &kr_op_causal_conv1d_bwd, &n);
  if (wanted && !direct) copy_views(c, as_steps(c, dx), steps_of(g->dxz), a->B, a->L, a->D);
}

static void run_backward(chain *c, const bwd_args *g) {
  const inner_args forward = kr_inner_forward_of(g), *a = &forward;
  const int64_t rows = a->B * a->L;
  inner in = prepare(c, a, take(c, rows, a->D));
  krait_view du = take(c, rows, a->D), ddelta = take(c, rows, a->D), dproj = take(c, rows, in.n_columns);
  krait_view dy = project_back(c, g, a, &in, du);
  krait_view B_columns = moved(dproj, a->R), C_columns = moved(dproj, in.n_columns - in.C_columns), dB = g->dB, dC = g->dC;
  parameter_gradient from_B = {0}, from_C = {0};
  if (in.B_columns) from_B = begin_parameter(c, a, B_columns, &a->B_norm_weight), dB = from_B.scan;
  if (in.C_columns) from_C = begin_parameter(c, a, C_columns, &a->C_norm_weight), dC = from_C.scan;
  scan_back(c, g, a, &in, dy, du, ddelta, dB, dC);
  if (in.B_columns) end_parameter(c, a, &from_B, B_columns, moved(in.proj, a->R), &a->B_norm_weight, &g->dB_norm_weight);
  if (in.C_columns) end_parameter(c, a, &from_C, C_columns, moved(in.proj, in.n_columns - in.C_columns), &a->C_norm_weight, &g->dC_norm_weight);
  project_gradients(c, g, a, &in, ddelta, in.delta, dproj);
  sum_columns(c, B_columns, in.B_columns, &g->dB_proj_bias);
  sum_columns(c, C_columns, in.C_columns, &g->dC_proj_bias);
  weight_gradient(c, a, dproj, in.n_columns, in.x, &g->dx_proj_weight);
  multiply(c, rows, a->D, in.n_columns, dproj, weight_of(c, &a->x_proj_weight, in.n_columns, a->D), NULL, &du, du);
  convolve_back(c, g, a, in.x, du, ddelta);
}

/* ---- the two walks ---- */

typedef void walk_fn(chain *c, const void *args);
static void walk_forward(chain *c, const void *args) { run_forward(c, args); }
static void walk_backward(chain *c, const void *args) { run_backward(c, args); }

static chain planned(const krait_ctx *ctx, int32_t dtype, const krait_mamba_inner_args *sizes, const void *args, walk_fn *walk) {
  chain c = {.ctx = ctx, .dtype = dtype, .planning = 1, .base = (char *)planned_base, .B = sizes->B, .L = sizes->L};
  walk(&c, args);
  return c;
}

/* B and L stand at one place in both args. */
static int32_t run_chain(const krait_ctx *ctx, int32_t dtype, const krait_mamba_inner_args *sizes, const void *args, walk_fn *walk) {
  chain c = planned(ctx, dtype, sizes, args, walk);
  if (c.status < 0) return c.status;
  c.base = sizes->call.scratch;
  c.op_scratch = c.base + c.used;
  c.used = 0;
  c.planning = 0;
  walk(&c, args);
  return c.status;
}

static uint64_t chain_bytes(const krait_ctx *ctx, int32_t dtype, const krait_mamba_inner_args *sizes, const void *args, walk_fn *walk) {
  chain c = planned(ctx, dtype, sizes, args, walk);
  return c.used + c.op_bytes;
}

int32_t kr_mamba_inner_composed(const krait_ctx *ctx, const void *args) { return run_chain(ctx, KRAIT_F32, args, args, walk_forward); }
uint64_t kr_mamba_inner_composed_scratch(const krait_ctx *ctx, const void *args) { return chain_bytes(ctx, KRAIT_F32, args, args, walk_forward); }

int32_t kr_mamba_inner_bwd_composed(const krait_ctx *ctx, const void *args) {
  const krait_mamba_inner_args sizes = kr_inner_forward_of(args);
  return run_chain(ctx, KRAIT_F32, &sizes, args, walk_backward);
}
uint64_t kr_mamba_inner_bwd_composed_scratch(const krait_ctx *ctx, const void *args) {
  const krait_mamba_inner_args sizes = kr_inner_forward_of(args);
  return chain_bytes(ctx, KRAIT_F32, &sizes, args, walk_backward);
}
int32_t kr_mamba_inner_bwd_ref(const krait_ctx *ctx, const void *args) {
  const krait_mamba_inner_args sizes = kr_inner_forward_of(args);
  return run_chain(ctx, KRAIT_F64, &sizes, args, walk_backward);
}
uint64_t kr_mamba_inner_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  const krait_mamba_inner_args sizes = kr_inner_forward_of(args);
  return chain_bytes(ctx, KRAIT_F64, &sizes, args, walk_backward);
}
