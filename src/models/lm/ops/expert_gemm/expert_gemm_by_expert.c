/* expert_gemm_by_expert.c: the CPU's implementation: some rows at a time, those of one expert after another's, each
 * expert's by the products of its matrix (gemm, gemm_q8, gemm_q4k); then back to their places, or summed. */
#include <string.h>

#include "expert_gemm/expert_gemm.h"
#include "lent_scratch.h"
#include "lm_ops.h"
#include "status.h"
#include "view.h"

enum { MOST_ROWS = 512 }; /* of A at a time */

/* A part of the rows: its pairs (row, choice), sorted by expert. */
typedef struct part {
  const kr_expert_gemm_args *a;
  int64_t first, n;       /* rows of A */
  int64_t *ends;          /* (E + 1) where an expert's pairs end; [0]: where the first one's begin */
  int64_t *pairs, *place; /* (n J): by place the pair; by pair the place, or -1 */
  float *in, *out;        /* (n J, K), (n J, N) */
} part;

/* ---- scratch ---- */

static uint64_t round_up(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }

static int64_t most_rows(const kr_expert_gemm_args *a) { return a->T < MOST_ROWS ? a->T : MOST_ROWS; }

uint64_t kr_expert_gemm_by_expert_scratch(const krait_ctx *ctx, const void *args) {
  const kr_expert_gemm_args *a = args;
  const uint64_t pairs = (uint64_t)(most_rows(a) * a->J);
  (void)ctx;
  return round_up((uint64_t)(a->E + 1) * sizeof(int64_t)) + 2 * round_up(pairs * sizeof(int64_t)) +
         round_up(pairs * (uint64_t)a->K * sizeof(float)) + round_up(pairs * (uint64_t)a->N * sizeof(float));
}

static void lay_out_scratch(const kr_expert_gemm_args *a, part *p) {
  const uint64_t pairs = (uint64_t)(most_rows(a) * a->J);
  char *at = a->call.scratch;
  p->a = a;
  p->ends = (int64_t *)at, at += round_up((uint64_t)(a->E + 1) * sizeof(int64_t));
  p->pairs = (int64_t *)at, at += round_up(pairs * sizeof(int64_t));
  p->place = (int64_t *)at, at += round_up(pairs * sizeof(int64_t));
  p->in = (float *)at, at += round_up(pairs * (uint64_t)a->K * sizeof(float));
  p->out = (float *)at;
}

/* ---- order ---- */

static int64_t expert_of(const part *p, int64_t pair) {
  const kr_expert_gemm_args *a = p->a;
  return kr_get_i32(&a->index, kr_at2(&a->index, p->first + pair / a->J, pair % a->J));
}

/* By counting; pairs of one expert stay in their order. */
static void sort_pairs(part *p) {
  const kr_expert_gemm_args *a = p->a;
  const int64_t n = p->n * a->J;
  memset(p->ends, 0, (size_t)(a->E + 1) * sizeof *p->ends);
  for (int64_t i = 0; i < n; i++)
    if (expert_of(p, i) >= 0) p->ends[expert_of(p, i) + 1]++;
  for (int64_t e = 0; e < a->E; e++) p->ends[e + 1] += p->ends[e];
  for (int64_t i = 0; i < n; i++) {
    const int64_t e = expert_of(p, i);
    p->place[i] = e < 0 ? -1 : p->ends[e]++;
    if (e >= 0) p->pairs[p->place[i]] = i;
  }
  memmove(p->ends + 1, p->ends, (size_t)a->E * sizeof *p->ends);
  p->ends[0] = 0;
}

static const float *row_of_pair(const part *p, int64_t pair) {
  const kr_expert_gemm_args *a = p->a;
  return (const float *)a->A.data + kr_at3(&a->A, p->first + pair / a->J, a->S > 1 ? pair % a->J : 0, 0);
}

static void gather_pairs(void *user, int64_t begin, int64_t end, int worker) {
  const part *p = user;
  const int64_t K = p->a->K;
  (void)worker;
  for (int64_t i = begin; i < end; i++)
    memcpy(p->in + i * K, row_of_pair(p, p->pairs[i]), (size_t)K * sizeof(float));
}

/* ---- products ---- */

static int32_t run_lent(const kr_op *op, const krait_ctx *ctx, void *args) {
  const kr_impl *impl = NULL;
  KR_TRY(kr_op_prepare(op, ctx, args, NULL, &impl));
  const uint64_t bytes = impl && impl->scratch_bytes ? impl->scratch_bytes(ctx, args) : 0;
  return bytes ? kr_lent_run(op, impl, ctx, args, bytes) : kr_op_run_impl(op, impl, ctx, args, 0);
}

static kr_view rows_view(float *rows, int64_t columns) {
  return (kr_view){.data = rows, .dtype = KRAIT_F32, .stride = {columns, 1}};
}

/* An expert's matrix as (N,K); of gemm (K,N). */
static kr_view matrix_of(const kr_view *v, int64_t e, int is_swapped) {
  if (!kr_has(v)) return (kr_view){0};
  return (kr_view){.data = (char *)v->data + e * v->stride[0] * (int64_t)krait_dtype_bytes(v->dtype),
                   .dtype = v->dtype,
                   .stride = {is_swapped ? v->stride[2] : v->stride[1], is_swapped ? v->stride[1] : v->stride[2]}};
}

static int32_t multiply_expert(const krait_ctx *ctx, const part *p, int64_t e, int64_t begin, int64_t n) {
  const kr_expert_gemm_args *a = p->a;
  const kr_view A = rows_view(p->in + begin * a->K, a->K), out = rows_view(p->out + begin * a->N, a->N),
                words = matrix_of(&a->qweight, e, 0);
  if (kr_has(&a->Bmat))
    return run_lent(&kr_op_gemm, ctx,
                    &(kr_gemm_args){.M = n,
                                    .N = a->N,
                                    .K = a->K,
                                    .activation = a->activation,
                                    .A = A,
                                    .Bmat = matrix_of(&a->Bmat, e, 1),
                                    .B2 = matrix_of(&a->B2, e, 1),
                                    .out = out});
  if (kr_has(&a->scales))
    return run_lent(&kr_op_gemm_q8, ctx,
                    &(kr_gemm_q8_args){.M = n,
                                       .N = a->N,
                                       .S = a->U,
                                       .A = A,
                                       .qweight = words,
                                       .scales = matrix_of(&a->scales, e, 0),
                                       .out = out});
  return run_lent(
      &kr_op_gemm_q4k, ctx,
      &(kr_gemm_q4k_args){.M = n, .N = a->N, .S = a->K / 256, .A = A, .qweight = words, .out = out});
}

/* ---- results ---- */

static void put_back(const part *p, int64_t i) {
  const kr_expert_gemm_args *a = p->a;
  for (int64_t j = 0; j < a->J; j++) {
    float *to = (float *)a->out.data + kr_at3(&a->out, p->first + i, j, 0);
    const int64_t place = p->place[i * a->J + j];
    if (place < 0)
      memset(to, 0, (size_t)a->N * sizeof *to);
    else
      memcpy(to, p->out + place * a->N, (size_t)a->N * sizeof *to);
  }
}

static void sum_choices(const part *p, int64_t i) {
  const kr_expert_gemm_args *a = p->a;
  float *to = (float *)a->out.data + kr_at2(&a->out, p->first + i, 0);
  memset(to, 0, (size_t)a->N * sizeof *to);
  for (int64_t j = 0; j < a->J; j++) {
    const int64_t place = p->place[i * a->J + j];
    const float by = (float)kr_get(&a->weights, kr_at2(&a->weights, p->first + i, j));
    for (int64_t n = 0; place >= 0 && n < a->N; n++) to[n] += by * p->out[place * a->N + n];
  }
}

static void finish_rows(void *user, int64_t begin, int64_t end, int worker) {
  const part *p = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) (kr_has(&p->a->weights) ? sum_choices : put_back)(p, i);
}

/* ---- the whole ---- */

const char *kr_expert_gemm_by_expert_refuse(const krait_ctx *ctx, const void *args) {
  const kr_expert_gemm_args *a = args;
  const int last = kr_has(&a->weights) ? 1 : 2;
  (void)ctx;
  if (a->A.dtype != KRAIT_F32 || a->out.dtype != KRAIT_F32) return "A or out is not float32";
  return (a->K > 1 && a->A.stride[2] != 1) || (a->N > 1 && a->out.stride[last] != 1) ? "rows of A or out have gaps"
                                                                                      : NULL;
}

int32_t kr_expert_gemm_by_expert(const krait_ctx *ctx, const void *args) {
  const kr_expert_gemm_args *a = args;
  part p;
  lay_out_scratch(a, &p);
  KR_TRY(kr_expert_gemm_check_index(a));
  for (p.first = 0; p.first < a->T; p.first += p.n) {
    p.n = a->T - p.first < MOST_ROWS ? a->T - p.first : MOST_ROWS;
    sort_pairs(&p);
    kr_parallel(ctx, p.ends[a->E], 1 + 4096 / a->K, gather_pairs, &p);
    for (int64_t e = 0; e < a->E; e++)
      if (p.ends[e + 1] > p.ends[e]) KR_TRY(multiply_expert(ctx, &p, e, p.ends[e], p.ends[e + 1] - p.ends[e]));
    kr_parallel(ctx, p.n, 1 + 4096 / a->N, finish_rows, &p);
  }
  return KRAIT_OK;
}
