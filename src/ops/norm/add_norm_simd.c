/* add_norm_simd.c: add + norm and its gradient, a row at a time in float scratch, vectorised over features. */
#include "norm_block.h"
#include "op_list.h"

/* ---- forward ---- */

enum { MOST_SHORT = 8 }; /* vectors of a row of 64 */

typedef struct fwd_work {
  float *v, *y, *weight, *bias, *weight1, *bias1; /* [M] each */
} fwd_work;

static fwd_work cut_add_norm_work(float *scratch, int64_t M) {
  int64_t n = whole(M);
  return (fwd_work){scratch, scratch + n, scratch + 2 * n, scratch + 3 * n, scratch + 4 * n, scratch + 5 * n};
}

uint64_t KR_FN(kr_add_norm_scratch)(const krait_ctx *ctx, const void *args) {
  return (uint64_t)(6 * whole(((const kr_add_norm_args *)args)->M) * krait_ctx_n_threads(ctx)) * sizeof(float);
}

static void add_residual_row(const kr_add_norm_args *a, int64_t r, const fwd_work *w) {
  const int64_t M = a->M;
  read_row(w->v, &a->x, kr_at2(&a->x, r, 0), a->x.stride[1], M);
  if (kr_has(&a->rowscale)) {
    kr_v scale = kr_v_set1((float)kr_get(&a->rowscale, kr_at1(&a->rowscale, r)));
    for (int64_t i = 0; i < M; i += KR_VL) kr_v_store(w->v + i, kr_v_mul(kr_v_load(w->v + i), scale));
  }
  const kr_view *const more[] = {&a->x1, &a->residual};
  for (int k = 0; k < 2; k++) {
    if (!kr_has(more[k])) continue;
    read_row(w->y, more[k], kr_at2(more[k], r, 0), more[k]->stride[1], M);
    for (int64_t i = 0; i < M; i += KR_VL) kr_v_store(w->v + i, kr_v_add(kr_v_load(w->v + i), kr_v_load(w->y + i)));
  }
}

static void scale_row(const fwd_work *w, const float *weight, const float *bias, const kr_view *out, int64_t r,
                      int64_t M) {
  if (!kr_has(out)) return;
  for (int64_t i = 0; i < M; i += KR_VL)
    kr_v_store(w->y + i, kr_v_fma(kr_v_load(w->v + i), kr_v_load(weight + i), kr_v_load(bias + i)));
  write_row(w->y, out, kr_at2(out, r, 0), out->stride[1], M);
}

/* A row kept in registers between its sums. vectors and with_bias are constants after inlining. */
KR_INLINE void short_row(const float *x, const float *residual, float *sums, float *out, const int vectors,
                         const int scaled, const fwd_work *w, const kr_add_norm_args *a) {
  const float inverse = 1.0f / (float)(vectors * KR_VL);
  kr_v v[MOST_SHORT], sum = kr_v_zero(), squares = kr_v_zero();
  for (int i = 0; i < vectors; i++) {
    v[i] = kr_v_load(x + i * KR_VL);
    if (residual) v[i] = kr_v_add(v[i], kr_v_load(residual + i * KR_VL));
    if (sums) kr_v_store(sums + i * KR_VL, v[i]);
    sum = kr_v_add(sum, v[i]);
  }
  const int is_rms = (a->call.flags & KRAIT_NORM_RMS) != 0;
  const kr_v mean = kr_v_set1(is_rms ? 0 : kr_v_sum(sum) * inverse);
  for (int i = 0; i < vectors; i++) v[i] = kr_v_sub(v[i], mean), squares = kr_v_fma(v[i], v[i], squares);
  const kr_v scale = kr_v_div(kr_v_set1(1.0f), kr_v_sqrt(kr_v_set1(kr_v_sum(squares) * inverse + a->eps)));
  for (int i = 0; i < vectors; i++) {
    v[i] = kr_v_mul(v[i], scale);
    if (scaled) v[i] = kr_v_fma(v[i], kr_v_load(w->weight + i * KR_VL), kr_v_load(w->bias + i * KR_VL));
    kr_v_store(out + i * KR_VL, v[i]);
  }
}

/* Contiguous float32 rows of 64 or 32, to which at most the residual is added. */
static int is_short_for_add_norm(const kr_add_norm_args *a) {
  const kr_view *const rows[] = {&a->x, &a->residual, &a->residual_out, &a->out};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (kr_has(rows[i]) && (rows[i]->dtype != KRAIT_F32 || rows[i]->stride[1] != 1)) return 0;
  return (a->M == 64 || a->M == 32) && KR_VL >= 8 && kr_has(&a->out) && !kr_has(&a->x1) && !kr_has(&a->rowscale) &&
         !kr_has(&a->out1);
}
static float *row_at(const kr_view *v, int64_t r) { return kr_has(v) ? (float *)v->data + r * v->stride[0] : NULL; }

KR_INLINE void short_rows_of(const kr_add_norm_args *a, const fwd_work *w, int64_t begin, int64_t end, const int M) {
  const int scaled = kr_has(&a->weight) || kr_has(&a->bias), n = M / KR_VL < MOST_SHORT ? M / KR_VL : MOST_SHORT;
  for (int64_t r = begin; r < end; r++) {
    const float *x = row_at(&a->x, r), *residual = row_at(&a->residual, r);
    float *sums = row_at(&a->residual_out, r), *out = row_at(&a->out, r);
    if (scaled) short_row(x, residual, sums, out, n, 1, w, a);
    else short_row(x, residual, sums, out, n, 0, w, a);
  }
}

static void short_rows(const kr_add_norm_args *a, const fwd_work *w, int64_t begin, int64_t end) {
  if (a->M == 64) short_rows_of(a, w, begin, end, 64);
  else short_rows_of(a, w, begin, end, 32);
}

typedef struct fwd_run {
  const kr_add_norm_args *a;
} fwd_run;

static void norm_add_norm_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_add_norm_args *a = ((fwd_run *)user)->a;
  const int64_t M = a->M;
  fwd_work w = cut_add_norm_work((float *)a->call.scratch + worker * 6 * whole(M), M);
  read_features(w.weight, &a->weight, M, 1);
  read_features(w.bias, &a->bias, M, 0);
  read_features(w.weight1, &a->weight1, M, 1);
  read_features(w.bias1, &a->bias1, M, 0);
  if (is_short_for_add_norm(a)) {
    short_rows(a, &w, begin, end);
    return;
  }
  for (int64_t r = begin; r < end; r++) {
    add_residual_row(a, r, &w);
    write_row(w.v, &a->residual_out, kr_at2(&a->residual_out, r, 0), a->residual_out.stride[1], M);
    normalise_row(w.v, M, measure_row(w.v, M, a->eps, (a->call.flags & KRAIT_NORM_RMS) != 0));
    scale_row(&w, w.weight, w.bias, &a->out, r, M);
    scale_row(&w, w.weight1, w.bias1, &a->out1, r, M);
  }
}

int32_t KR_FN(kr_add_norm)(const krait_ctx *ctx, const void *args) {
  const kr_add_norm_args *a = args;
  fwd_run r = {a};
  kr_parallel(ctx, a->R, 1 + 16384 / a->M, norm_add_norm_rows, &r);
  return KRAIT_OK;
}

/* ---- backward ---- */

typedef struct run_bwd {
  const kr_add_norm_bwd_args *a;
  int64_t width, n_chunks; /* whole(M) */
  float *sums, *works;     /* [chunk][dweight, dbias, dweight1, dbias1][width]; 6 rows per thread */
} run_bwd;

static run_bwd plan_add_norm_bwd(const kr_add_norm_bwd_args *a) {
  run_bwd r = {a, whole(a->M), n_chunks_of(a->R), a->call.scratch, NULL};
  r.works = r.sums ? r.sums + r.n_chunks * 4 * r.width : NULL;
  return r;
}

uint64_t KR_FN(kr_add_norm_bwd_scratch)(const krait_ctx *ctx, const void *args) {
  kr_add_norm_bwd_args a = *(const kr_add_norm_bwd_args *)args;
  a.call.scratch = NULL;
  run_bwd r = plan_add_norm_bwd(&a);
  return (uint64_t)((r.n_chunks * 4 + krait_ctx_n_threads(ctx) * 6) * r.width) * sizeof(float);
}

/* Accumulates one output's contribution: w += d weight, dweight += d xhat, dbias += d. */
static void take_output(const kr_view *dout, int64_t r, int64_t M, const float *weight, const float *xhat, float *d,
                        float *w, float *dweight, float *dbias) {
  if (!kr_has(dout)) return;
  read_row(d, dout, kr_at2(dout, r, 0), dout->stride[1], M);
  for (int64_t i = 0; i < M; i += KR_VL) {
    kr_v di = kr_v_load(d + i);
    kr_v_store(w + i, kr_v_fma(di, kr_v_load(weight + i), kr_v_load(w + i)));
    kr_v_store(dweight + i, kr_v_fma(di, kr_v_load(xhat + i), kr_v_load(dweight + i)));
    kr_v_store(dbias + i, kr_v_add(kr_v_load(dbias + i), di));
  }
}

static void add_norm_simd_norm_row_back(const run_bwd *run, int64_t r, float *work, float *sums) {
  const kr_add_norm_bwd_args *a = run->a;
  const int64_t M = a->M, width = run->width;
  const int is_rms = (a->call.flags & KRAIT_NORM_RMS) != 0;
  float *weight = work, *weight1 = work + width, *xhat = work + 2 * width, *w = work + 3 * width, *d = work + 4 * width;
  read_row(xhat, &a->v, kr_at2(&a->v, r, 0), a->v.stride[1], M);
  norm_stats s = measure_row(xhat, M, a->eps, is_rms);
  normalise_row(xhat, M, s);
  memset(w, 0, (size_t)width * sizeof *w);
  take_output(&a->dout, r, M, weight, xhat, d, w, sums, sums + width);
  take_output(&a->dout1, r, M, weight1, xhat, d, w, sums + 2 * width, sums + 3 * width);
  gradient_row(w, xhat, M, s.scale, is_rms);
  if (kr_has(&a->dresidual_out)) {
    read_row(d, &a->dresidual_out, kr_at2(&a->dresidual_out, r, 0), a->dresidual_out.stride[1], M);
    for (int64_t i = 0; i < M; i += KR_VL) kr_v_store(w + i, kr_v_add(kr_v_load(w + i), kr_v_load(d + i)));
  }
  write_row(w, &a->dx1, kr_at2(&a->dx1, r, 0), a->dx1.stride[1], M);
  write_row(w, &a->dresidual, kr_at2(&a->dresidual, r, 0), a->dresidual.stride[1], M);
  if (kr_has(&a->rowscale)) {
    kr_v scale = kr_v_set1((float)kr_get(&a->rowscale, kr_at1(&a->rowscale, r)));
    for (int64_t i = 0; i < M; i += KR_VL) kr_v_store(w + i, kr_v_mul(kr_v_load(w + i), scale));
  }
  write_row(w, &a->dx, kr_at2(&a->dx, r, 0), a->dx.stride[1], M);
}

static void norm_chunks_back(void *user, int64_t begin, int64_t end, int worker) {
  const run_bwd *run = user;
  const kr_add_norm_bwd_args *a = run->a;
  float *work = run->works + worker * 6 * run->width;
  read_features(work, &a->weight, a->M, 1);
  read_features(work + run->width, &a->weight1, a->M, 1);
  const int64_t rows = rows_per_chunk(a->R);
  for (int64_t chunk = begin; chunk < end; chunk++) {
    float *sums = run->sums + chunk * 4 * run->width;
    memset(sums, 0, (size_t)(4 * run->width) * sizeof *sums);
    for (int64_t r = chunk * rows; r < (chunk + 1) * rows && r < a->R; r++)
      add_norm_simd_norm_row_back(run, r, work, sums);
  }
}

static void add_norm_add_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const run_bwd *run = user;
  const kr_view *const outputs[] = {&run->a->dweight, &run->a->dbias, &run->a->dweight1, &run->a->dbias1};
  (void)worker;
  for (int k = 0; k < 4; k++)
    write_sums(run->sums + k * run->width, run->n_chunks, 4 * run->width, outputs[k], begin, end);
}

int32_t KR_FN(kr_add_norm_bwd)(const krait_ctx *ctx, const void *args) {
  run_bwd r = plan_add_norm_bwd(args);
  kr_parallel(ctx, r.n_chunks, 1, norm_chunks_back, &r);
  kr_parallel(ctx, r.a->M, 1024, add_norm_add_chunks, &r);
  return KRAIT_OK;
}
