/* gemm_check.c: random sizes around the edges of tiles and panels; every third call as layers make it: contiguous,
 * aligned rows or columns, often of 16 bits, often few rows. */
#include "check.h"
#include "op_list.h"

/* Gives a contiguous tensor (rows, columns, P) other strides over the same memory: products one after another, each
 * row-major or, turned, column-major. */
static void lay_out_gemm(kr_view *view, int64_t rows, int64_t columns, int turned) {
  if (!view) return;
  view->stride[0] = turned ? 1 : columns, view->stride[1] = turned ? rows : 1, view->stride[2] = rows * columns;
}

static kr_view *give_by_chance(kr_case *c, const char *name, double chance) {
  if (kr_case_chance(c, chance)) return kr_case_give(c, name);
  kr_case_leave_out(c, name);
  return NULL;
}

static int is_half_for_gemm_check(int32_t dtype) { return dtype == KRAIT_F16 || dtype == KRAIT_BF16; }

/* turned: 0 to 2: weights (N,K); 3: weights as stored; 4: weight gradients. far: weights as stored, with a row stride
 * of an odd number of cache lines. */
static void give_aligned(kr_case *c, kr_gemm_args *a, int turned, int far) {
  c->contiguous = 1;
  lay_out_gemm(kr_case_give(c, "A"), a->M, a->K, turned == 4);
  if (far) a->N = (a->N + 31) / 32 * 32 + 16;
  lay_out_gemm(kr_case_give(c, "Bmat"), a->K, a->N, turned < 3);
  if (far) { /* the last columns are only padding */
    a->N -= 16, c->tensors[c->n_tensors - 1].shape[1] -= 16;
    kr_case_leave_out(c, "B2"), kr_case_leave_out(c, "bias2");
  }
  lay_out_gemm(give_by_chance(c, "residual", 0.5), a->M, a->N, 0);
  lay_out_gemm(kr_case_give(c, "out"), a->M, a->N, 0);
  if (!far) lay_out_gemm(give_by_chance(c, "B2", 0.2), a->K, a->N, turned < 3);
}

/* The error of rounding both factors to 11 bits in a sum of random terms, relative to the sums; and the residue of
 * GELU's two terms far below zero, where rows differ in the last places of a sum of about one. */
static int32_t bound_result(kr_case *c, kr_gemm_args *a) {
  kr_case_give_rest(c);
  const int is_tf32 = a->call.flags & KRAIT_GEMM_TF32 && a->A.dtype == KRAIT_F32 && a->Bmat.dtype == KRAIT_F32;
  const int is_gelu = a->activation == KRAIT_ACT_GELU || a->activation == KRAIT_ACT_GELU_TANH;
  if (!c->is_exact && a->out.dtype == KRAIT_F32 && (is_tf32 || is_gelu))
    kr_case_bound(c, &a->out, is_tf32 ? 6e-3 : 1e-5, is_gelu ? 2e-6 : 1e-30);
  return KRAIT_OK;
}

/* 16 bits, often whole tiles, no epilogue: rows may have a store path of their own for it. */
static void give_plain(kr_case *c, kr_gemm_args *a) {
  static const char *const left_out[] = {"residual", "bias", "row_scale", "B2", "bias2", "factor"};
  c->dtype = c->other = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16, c->contiguous = 1;
  a->M = 128 * kr_case_int(c, 1, 2) + 8 * kr_case_int(c, 0, 1), a->N = 64 * kr_case_int(c, 2, 6), a->P = 0;
  a->K = 32 * kr_case_int(c, 1, 3) + 8 * kr_case_int(c, 0, 1), a->activation = KRAIT_ACT_NONE;
  lay_out_gemm(kr_case_give(c, "A"), a->M, a->K, 0);
  lay_out_gemm(kr_case_give(c, "Bmat"), a->K, a->N, kr_case_chance(c, 0.7));
  lay_out_gemm(kr_case_give(c, "out"), a->M, a->N, 0);
  for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) kr_case_leave_out(c, left_out[i]);
}

int32_t kr_gemm_case(kr_case *c, int64_t index) {
  kr_gemm_args *a = (kr_gemm_args *)c->args;
  const int far = index % 12 == 5 && !c->is_exact, aligned = (index % 3 == 0 || far) && !c->is_exact;
  if (!c->is_exact) {
    if (!kr_case_chance(c, 0.2)) c->dtype = c->other = KRAIT_F32;
    if (far) c->dtype = c->other = KRAIT_F32;
    else if (aligned && kr_case_chance(c, 0.7)) c->dtype = c->other = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16;
  }
  kr_case_hard(c, KR_NAMES("A", "Bmat", "residual"), KR_MOST_CUBED);
  a->M = kr_case_edge(c, index % 8 == 0 ? 300 : 40);
  a->N = kr_case_edge(c, index % 8 == 2 ? 300 : 130);
  a->K = kr_case_edge(c, index % 8 == 1 ? 600 : 130);
  a->P = !c->is_exact && kr_case_chance(c, 0.2) ? kr_case_int(c, 1, 4) : 0;
  a->scale = !c->is_exact && kr_case_chance(c, 0.2) ? (float)kr_case_uniform(c, 0.1, 2) : 0;
  if (!aligned && index % 60 == 19 && !c->is_exact) /* several tiles of a matrix unit */
    a->M = kr_case_int(c, 80, 100), a->N = kr_case_int(c, 80, 100), a->K = kr_case_int(c, 84, 130), a->P = 2;
  if (!aligned && index % 7 == 1 &&
      !c->is_exact) { /* few rows on a CPU: float32 against weights of any type, as layers store them */
    a->M = kr_case_int(c, 1, 17), a->P = 0;
    c->contiguous = 1, c->dtype = KRAIT_F32, c->other = kr_case_activation_dtype(c);
    lay_out_gemm(kr_case_give(c, "A"), a->M, a->K, 0);
    lay_out_gemm(kr_case_give(c, "Bmat"), a->K, a->N, 1);
    c->other = KRAIT_F32; /* type of the added tensors and of out */
    kr_case_leave_out(c, "B2"), kr_case_leave_out(c, "bias2");
    if (kr_case_chance(c, 0.7)) a->activation = KRAIT_ACT_NONE;
  }
  if (!aligned) return bound_result(c, a);
  if (index % 30 == 9) {
    give_plain(c, a);
    return bound_result(c, a);
  }
  a->M = kr_case_chance(c, 0.4) ? kr_case_int(c, 1, 16) : 8 * kr_case_int(c, 1, 20), a->N = 8 * kr_case_int(c, 1, 20),
  a->K = 8 * kr_case_int(c, 1, 24);
  if (!far && kr_case_chance(c, 0.1)) a->K = 8 * kr_case_int(c, 64, 160), a->N = 8 * kr_case_int(c, 1, 3);
  if (!far && kr_case_chance(c, 0.05))
    a->K = 8 * kr_case_int(c, 500, 3000), a->M = 8 * kr_case_int(c, 1, 2), a->N = 8 * kr_case_int(c, 1, 2),
    a->P = 0; /* many splits of K */
  const int many_sequences = !far && is_half_for_gemm_check(c->dtype) && kr_case_chance(c, 0.2); /* a decoding step */
  if (many_sequences)
    a->M = kr_case_int(c, 17, 64), a->N = 8 * kr_case_int(c, 1, 40), a->K = 8 * kr_case_int(c, 64, 160), a->P = 0;
  if (many_sequences && kr_case_chance(c, 0.05)) /* more tiles than multiprocessors */
    a->M = kr_case_int(c, 17, 20), a->N = 96 * 132 + 8 * kr_case_int(c, 1, 20), a->K = 8 * kr_case_int(c, 64, 80);
  if (!many_sequences && !far && kr_case_chance(c, 0.08)) /* whole tiles and stages, and remainders of both */
    a->M = 128 + 8 * kr_case_int(c, 0, 2), a->N = 64 * kr_case_int(c, 2, 4) + 8 * kr_case_int(c, 0, 2),
    a->K = 32 * kr_case_int(c, 1, 5) + 8 * kr_case_int(c, 0, 1), a->P = 0;
  const int many_terms = !far && index % 90 == 63; /* enough for 16 multiprocessors */
  if (many_terms) a->call.flags |= KRAIT_GEMM_TF32, c->dtype = c->other = KRAIT_F32;
  if (many_terms) {
    const int64_t more = 8 * kr_case_int(c, 1, 20), less = 8 * kr_case_int(c, 1, 2), turn = kr_case_int(c, 0, 1);
    a->M = turn ? less : more, a->N = turn ? more : less, a->K = 2048 + kr_case_int(c, 0, 70), a->P = 0;
  }
  const int is_large = !far && index % 120 == 33; /* enough for one multiprocessor to round its factors first */
  if (is_large) a->call.flags |= KRAIT_GEMM_TF32, c->dtype = c->other = KRAIT_F32;
  if (is_large) {
    a->M = 8 * kr_case_int(c, 22, 40), a->N = 64 * kr_case_int(c, 3, 5) + 8 * kr_case_int(c, 0, 1);
    a->K = 8 * kr_case_int(c, 34, 48), a->P = 0;
  }
  if (!far && !many_terms && is_half_for_gemm_check(c->dtype) && kr_case_chance(c, 0.02)) /* an output head */
    a->M = 1, a->N = 32768 + 8 * kr_case_int(c, 0, 3), a->K = 8 * kr_case_int(c, 1, 5), a->P = 0;
  give_aligned(c, a, far ? 3 : many_terms ? 4 : (int)kr_case_int(c, 0, many_sequences ? 2 : 4), far);
  return bound_result(c, a);
}
