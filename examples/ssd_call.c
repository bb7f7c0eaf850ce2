/* One call of Mamba-2's scan: cc ssd_call.c $(pkg-config --cflags --libs krait) */
#include <krait/ops.h>
#include <stdio.h>

int main(void) {
  static float x[64 * 4 * 16], dt[64 * 4], A[4], B[64 * 8], C[64 * 8], y[64 * 4 * 16];
  int64_t lhp[] = {1, 64, 4, 16}, lh[] = {1, 64, 4}, h[] = {4}, lgn[] = {1, 64, 1, 8};
  static krait_ssd_args a;
  krait_ctx *ctx = NULL;
  for (int i = 0; i < 64 * 64; i++) x[i] = dt[i % 256] = B[i % 512] = C[i % 512] = 0.5f, A[i % 4] = -1;
  a.call.size = sizeof a, a.x = krait_tensor_of(x, KRAIT_F32, 4, lhp), a.out = krait_tensor_of(y, KRAIT_F32, 4, lhp);
  a.dt = krait_tensor_of(dt, KRAIT_F32, 3, lh), a.A = krait_tensor_of(A, KRAIT_F32, 1, h);
  a.Bmat = krait_tensor_of(B, KRAIT_F32, 4, lgn), a.Cmat = krait_tensor_of(C, KRAIT_F32, 4, lgn);
  if (krait_ctx_open(NULL, &ctx) || krait_ssd(ctx, &a)) return fprintf(stderr, "%s\n", krait_error_detail()), 1;
  return printf("%g %g\n", y[0], y[64 * 63]), 0;
}
