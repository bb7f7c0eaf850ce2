/* pieces.c: a Mamba block that hands its states from piece to piece equals the whole, with one runner for all pieces
 * at any addresses; and a runner whose addresses become equal, or differ again. */
#include "../test.h"
#include "graph.h"
#include "mamba_block.h"
#include "op_list.h"

enum { D = 12, N = 4, R = 2, L = 21, PIECE = 7, MOST_W = 4 };

static uint32_t random_state;
static float draw_pieces(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return ((float)(random_state >> 8) * 0x1p-24f - 0.5f) * 2;
}

static float conv_w[D * MOST_W], conv_b[D], x_w[(R + 2 * N) * D], dt_w[D * R], dt_b[D], A[D * N], Dvec[D];

typedef struct block {
  kr_graph *g;
  kr_tensor xz, out, conv[2], scan[2];
} block;

static krait_ctx *open_pieces_ctx(void) {
  krait_ctx *ctx = NULL;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 2};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

static kr_tensor weight(kr_graph *g, const char *name, kr_dims dims, const float *data) {
  return kr_graph_weight(g, name, KRAIT_F32, dims, data);
}

/* Over n steps, rows of channels; states only for a block in pieces. */
static block record_pieces(const krait_ctx *ctx, int64_t n, int64_t W, int in_pieces) {
  const int by_channel[] = {0, 2, 1};
  block b = {0};
  assert_int_equal(kr_graph_open(&b.g), KRAIT_OK);
  b.xz = kr_graph_input(b.g, "xz", KRAIT_F32, KR_DIMS(1, n, 2 * D));
  b.out = kr_graph_output(b.g, "out", KRAIT_F32, KR_DIMS(1, n, D));
  for (int i = 0; i < 2 && in_pieces; i++) {
    kr_tensor (*const make)(kr_graph *, const char *, int32_t, kr_dims) = i ? kr_graph_output : kr_graph_input;
    b.scan[i] = make(b.g, "scan", KRAIT_F32, KR_DIMS(1, D, N));
    b.conv[i] = W > 1 ? make(b.g, "conv", KRAIT_F32, KR_DIMS(1, D, W - 1)) : 0;
  }
  kr_mamba_block_record(b.g, &(kr_mamba_block){.flags = KRAIT_SCAN_SOFTPLUS,
                                               .dtype = KRAIT_F32,
                                               .xz = kr_graph_permute(b.g, b.xz, by_channel),
                                               .conv_weight = weight(b.g, "conv_w", KR_DIMS(D, W), conv_w),
                                               .conv_bias = weight(b.g, "conv_b", KR_DIMS(D), conv_b),
                                               .x_proj_weight = weight(b.g, "x_w", KR_DIMS(R + 2 * N, D), x_w),
                                               .dt_proj_weight = weight(b.g, "dt_w", KR_DIMS(D, R), dt_w),
                                               .delta_bias = weight(b.g, "dt_b", KR_DIMS(D), dt_b),
                                               .A = weight(b.g, "A", KR_DIMS(D, N), A),
                                               .Dvec = weight(b.g, "D", KR_DIMS(D), Dvec),
                                               .conv_states = b.conv[0],
                                               .conv_states_out = b.conv[1],
                                               .scan_state = b.scan[0],
                                               .scan_state_out = b.scan[1],
                                               .out = kr_graph_permute(b.g, b.out, by_channel)});
  if (kr_graph_plan(b.g, ctx, 0) < 0) fail_msg("%s", krait_error_detail());
  return b;
}

static void bind(kr_runner *r, kr_tensor t, float *data) {
  if (t) assert_int_equal(kr_runner_bind(r, t, data), KRAIT_OK);
}

static void run_pieces(kr_runner *r) {
  if (kr_runner_run(r, NULL) < 0) fail_msg("%s", krait_error_detail());
}

static void pieces_equal_the_whole(void **state) {
  static float xz[L * 2 * D + 4], want[L * D], out[L * D + 4], conv[2][D * MOST_W], scan[2][D * N];
  krait_ctx *ctx = open_pieces_ctx();
  (void)state;
  random_state = 7;
  for (int i = 0; i < D * MOST_W; i++) conv_w[i] = draw_pieces();
  for (int i = 0; i < D; i++) conv_b[i] = draw_pieces(), dt_b[i] = draw_pieces() - 1, Dvec[i] = draw_pieces();
  for (int i = 0; i < (R + 2 * N) * D; i++) x_w[i] = draw_pieces();
  for (int i = 0; i < D * R; i++) dt_w[i] = draw_pieces();
  for (int i = 0; i < D * N; i++) A[i] = -0.6f + 0.5f * draw_pieces();
  for (int64_t W = 1; W <= MOST_W; W += 3) {
    block whole = record_pieces(ctx, L, W, 0), piece = record_pieces(ctx, PIECE, W, 1);
    kr_runner *r = NULL, *p = NULL;
    assert_int_equal(kr_runner_open(whole.g, &r), KRAIT_OK);
    assert_int_equal(kr_runner_open(piece.g, &p), KRAIT_OK);
    for (int shift = 0; shift < 4; shift++) { /* of the addresses, by elements */
      for (int i = 0; i < L * 2 * D; i++) xz[shift + i] = draw_pieces();
      bind(r, whole.xz, xz + shift), bind(r, whole.out, want);
      run_pieces(r);
      memset(conv, 0, sizeof conv), memset(scan, 0, sizeof scan);
      for (int i = 0; i < L / PIECE; i++) {
        bind(p, piece.xz, xz + shift + i * PIECE * 2 * D), bind(p, piece.out, out + (4 - shift) % 4 + i * PIECE * D);
        for (int k = 0, at = i % 2; k < 2; k++, at = 1 - at)
          bind(p, piece.conv[k], conv[at]), bind(p, piece.scan[k], scan[at]);
        run_pieces(p);
      }
      for (int i = 0; i < L * D; i++) assert_float_equal(out[(4 - shift) % 4 + i], want[i], 1e-5f);
    }
    kr_runner_close(&r), kr_runner_close(&p), kr_graph_close(&whole.g), kr_graph_close(&piece.g);
  }
  krait_ctx_close(&ctx);
}

/* out = x W + residual, where residual is out, is separate, and is out again. */
static void addresses_may_meet(void **state) {
  enum { ROWS = 9, K = 5, COLUMNS = 37 };
  static float x[ROWS * K], w[K * COLUMNS], residual[ROWS * COLUMNS], out[ROWS * COLUMNS], want[ROWS * COLUMNS];
  krait_ctx *ctx = open_pieces_ctx();
  kr_graph *g = NULL;
  kr_runner *r = NULL;
  (void)state;
  random_state = 9;
  for (int i = 0; i < ROWS * K; i++) x[i] = draw_pieces();
  for (int i = 0; i < K * COLUMNS; i++) w[i] = draw_pieces();
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  const kr_tensor tx = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(ROWS, K)),
                  added = kr_graph_input(g, "residual", KRAIT_F32, KR_DIMS(ROWS, COLUMNS)),
                  to = kr_graph_output(g, "out", KRAIT_F32, KR_DIMS(ROWS, COLUMNS)),
                  tw = weight(g, "w", KR_DIMS(K, COLUMNS), w);
  kr_graph_call(g, "product", &kr_op_gemm,
                &(kr_gemm_args){.A = kr_graph_view(g, tx),
                                   .Bmat = kr_graph_view(g, tw),
                                   .residual = kr_graph_view(g, added),
                                   .out = kr_graph_view(g, to)});
  if (kr_graph_plan(g, ctx, 0) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_runner_open(g, &r), KRAIT_OK);
  bind(r, tx, x), bind(r, to, out);
  for (int round = 0; round < 4; round++) {
    float *from = round % 2 ? residual : out;
    for (int i = 0; i < ROWS * COLUMNS; i++) {
      want[i] = residual[i] = out[i] = draw_pieces();
      for (int k = 0; k < K; k++) want[i] += x[i / COLUMNS * K + k] * w[k * COLUMNS + i % COLUMNS];
    }
    bind(r, added, from);
    run_pieces(r);
    for (int i = 0; i < ROWS * COLUMNS; i++) assert_float_equal(out[i], want[i], 1e-5f);
  }
  kr_runner_close(&r), kr_graph_close(&g), krait_ctx_close(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_equal_the_whole), cmocka_unit_test(addresses_may_meet)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
