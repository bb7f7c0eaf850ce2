/* gated_norm_simd.c: the gated norm and its gradient, one group of a row at a time in float scratch, vectorised over
 * features. */
#include "norm_block.h"
#include "op_list.h"

/* Parameters and sums are stored by group, each padded to whole vectors. */
static void read_grouped(float *to, const kr_view *v, int64_t M, int64_t size, float other) {
  for (int64_t first = 0; first < M; first += size) {
    kr_view part = *v;
    if (kr_has(v)) part.data = (char *)v->data + (size_t)(first * v->stride[0]) * krait_dtype_bytes(v->dtype);
    read_features(to + first / size * whole(size), &part, size, other);
  }
}

static void read_part(float *to, const kr_view *v, int64_t r, int64_t first, int64_t size) {
  read_row(to, v, kr_at2(v, r, first), v->stride[1], size);
}
static void write_part(const float *from, const kr_view *v, int64_t r, int64_t first, int64_t size) {
  write_row(from, v, kr_at2(v, r, first), v->stride[1], size);
}

static void multiply_gated_norm(float *to, const float *by, int64_t n) {
  for (int64_t i = 0; i < n; i += KR_VL) kr_v_store(to + i, kr_v_mul(kr_v_load(to + i), kr_v_load(by + i)));
}
static void multiply_add(float *to, const float *a, const float *b, const float *c, int64_t n) {
  for (int64_t i = 0; i < n; i += KR_VL)
    kr_v_store(to + i, kr_v_fma(kr_v_load(a + i), kr_v_load(b + i), kr_v_load(c + i)));
}

/* ---- forward ---- */

static int64_t grouped_floats(int64_t M, int64_t size) { return M / size * whole(size); }

uint64_t KR_FN(kr_gated_norm_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_gated_norm_args *a = args;
  return (uint64_t)((2 * grouped_floats(a->M, a->group_size) + 2 * whole(a->group_size)) * krait_ctx_n_threads(ctx)) *
         sizeof(float);
}

static void norm_group(const kr_gated_norm_args *a, int64_t r, int64_t first, const float *weight, const float *bias,
                       float *x, float *gate) {
  const int64_t n = a->group_size;
  const int gates_first = (a->call.flags & KRAIT_GATED_NORM_GATE_FIRST) != 0;
  read_part(x, &a->x, r, first, n);
  if (kr_has(&a->z)) {
    read_part(gate, &a->z, r, first, n);
    for (int64_t i = 0; i < n; i += KR_VL) kr_v_store(gate + i, kr_v_silu(kr_v_load(gate + i)));
  }
  if (kr_has(&a->z) && gates_first) multiply_gated_norm(x, gate, n);
  normalise_row(x, n, measure_row(x, n, a->eps, (a->call.flags & KRAIT_GATED_NORM_RMS) != 0));
  multiply_add(x, x, weight, bias, n);
  if (kr_has(&a->z) && !gates_first) multiply_gated_norm(x, gate, n);
  write_part(x, &a->out, r, first, n);
}

typedef struct fwd_run {
  const kr_gated_norm_args *a;
} fwd_run;

static void norm_gated_norm_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_gated_norm_args *a = ((fwd_run *)user)->a;
  const int64_t size = a->group_size, width = whole(size), all = grouped_floats(a->M, size);
  float *weight = (float *)a->call.scratch + worker * (2 * all + 2 * width), *bias = weight + all, *x = bias + all;
  read_grouped(weight, &a->weight, a->M, size, 1);
  read_grouped(bias, &a->bias, a->M, size, 0);
  for (int64_t r = begin; r < end; r++)
    for (int64_t k = 0; k < a->M / size; k++)
      norm_group(a, r, k * size, weight + k * width, bias + k * width, x, x + width);
}

int32_t KR_FN(kr_gated_norm)(const krait_ctx *ctx, const void *args) {
  const kr_gated_norm_args *a = args;
  fwd_run r = {a};
  kr_parallel(ctx, a->R, 1 + 16384 / a->M, norm_gated_norm_rows, &r);
  return KRAIT_OK;
}

/* ---- backward ---- */

typedef struct run_bwd {
  const kr_gated_norm_bwd_args *a;
  int64_t width, all, n_chunks; /* whole(group_size), all groups */
  float *sums, *works;          /* [chunk][dweight, dbias][all]; 2 all + 5 width per thread */
} run_bwd;

static run_bwd plan_gated_norm_bwd(const kr_gated_norm_bwd_args *a) {
  run_bwd r = {a, whole(a->group_size), grouped_floats(a->M, a->group_size), n_chunks_of(a->R), a->call.scratch, NULL};
  r.works = r.sums ? r.sums + r.n_chunks * 2 * r.all : NULL;
  return r;
}

uint64_t KR_FN(kr_gated_norm_bwd_scratch)(const krait_ctx *ctx, const void *args) {
  kr_gated_norm_bwd_args a = *(const kr_gated_norm_bwd_args *)args;
  a.call.scratch = NULL;
  run_bwd r = plan_gated_norm_bwd(&a);
  return (uint64_t)(r.n_chunks * 2 * r.all + krait_ctx_n_threads(ctx) * (2 * r.all + 5 * r.width)) * sizeof(float);
}

/* Replaces z by silu(z), and slope by its derivative; 1 and 0 without z. */
static void open_gate(const kr_gated_norm_bwd_args *a, int64_t r, int64_t first, float *gate, float *slope) {
  const int64_t n = a->group_size;
  if (kr_has(&a->z)) read_part(gate, &a->z, r, first, n);
  for (int64_t i = 0; i < n; i += KR_VL) {
    kr_v steep = kr_v_zero();
    kr_v_store(gate + i, kr_has(&a->z) ? kr_v_silu_and_slope(kr_v_load(gate + i), &steep) : kr_v_set1(1.0f));
    kr_v_store(slope + i, steep);
  }
}

static void gated_norm_simd_group_back(const run_bwd *run, int64_t r, int64_t k, float *work, float *sums) {
  const kr_gated_norm_bwd_args *a = run->a;
  const int64_t n = a->group_size, width = run->width, first = k * n;
  const int gates_first = (a->call.flags & KRAIT_GATED_NORM_GATE_FIRST) != 0,
            is_rms = (a->call.flags & KRAIT_GATED_NORM_RMS) != 0;
  const float *weight = work + k * width, *bias = work + run->all + k * width;
  float *xhat = work + 2 * run->all, *gate = xhat + width, *slope = gate + width, *d = slope + width, *w = d + width;
  float *dweight = sums + k * width, *dbias = sums + run->all + k * width;
  open_gate(a, r, first, gate, slope);
  read_part(xhat, &a->x, r, first, n);
  read_part(d, &a->dout, r, first, n);
  if (gates_first) multiply_gated_norm(slope, xhat, n); /* dz = dh x gate' */
  if (gates_first) multiply_gated_norm(xhat, gate, n);
  norm_stats s = measure_row(xhat, n, a->eps, is_rms);
  normalise_row(xhat, n, s);
  if (!gates_first) { /* dz = dout (xhat weight + bias) gate' */
    multiply_add(w, xhat, weight, bias, n);
    multiply_gated_norm(slope, w, n);
    multiply_gated_norm(slope, d, n);
    multiply_gated_norm(d, gate, n);
  }
  for (int64_t i = 0; i < n; i += KR_VL) {
    kr_v di = kr_v_load(d + i);
    kr_v_store(dweight + i, kr_v_fma(di, kr_v_load(xhat + i), kr_v_load(dweight + i)));
    kr_v_store(dbias + i, kr_v_add(kr_v_load(dbias + i), di));
    kr_v_store(w + i, kr_v_mul(di, kr_v_load(weight + i)));
  }
  gradient_row(w, xhat, n, s.scale, is_rms);
  if (gates_first) {
    multiply_gated_norm(slope, w, n);
    multiply_gated_norm(w, gate, n);
  }
  write_part(w, &a->dx, r, first, n);
  write_part(slope, &a->dz, r, first, n);
}

static void gated_norm_chunks_back(void *user, int64_t begin, int64_t end, int worker) {
  const run_bwd *run = user;
  const kr_gated_norm_bwd_args *a = run->a;
  float *work = run->works + worker * (2 * run->all + 5 * run->width);
  read_grouped(work, &a->weight, a->M, a->group_size, 1);
  read_grouped(work + run->all, &a->bias, a->M, a->group_size, 0);
  const int64_t rows = rows_per_chunk(a->R);
  for (int64_t chunk = begin; chunk < end; chunk++) {
    float *sums = run->sums + chunk * 2 * run->all;
    memset(sums, 0, (size_t)(2 * run->all) * sizeof *sums);
    for (int64_t r = chunk * rows; r < (chunk + 1) * rows && r < a->R; r++)
      for (int64_t k = 0; k < a->M / a->group_size; k++) gated_norm_simd_group_back(run, r, k, work, sums);
  }
}

static void add_gated_norm_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const run_bwd *run = user;
  const int64_t size = run->a->group_size;
  (void)worker;
  for (int64_t k = begin; k < end; k++) {
    kr_view outputs[2] = {run->a->dweight, run->a->dbias};
    for (int i = 0; i < 2; i++) {
      if (!outputs[i].data) continue;
      outputs[i].data =
          (char *)outputs[i].data + (size_t)(k * size * outputs[i].stride[0]) * krait_dtype_bytes(outputs[i].dtype);
      write_sums(run->sums + i * run->all + k * run->width, run->n_chunks, 2 * run->all, &outputs[i], 0, size);
    }
  }
}

int32_t KR_FN(kr_gated_norm_bwd)(const krait_ctx *ctx, const void *args) {
  run_bwd r = plan_gated_norm_bwd(args);
  kr_parallel(ctx, r.n_chunks, 1, gated_norm_chunks_back, &r);
  kr_parallel(ctx, r.a->M / r.a->group_size, 1, add_gated_norm_chunks, &r);
  return KRAIT_OK;
}
