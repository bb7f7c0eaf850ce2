/* emulated_attention.c: attention's kernels on the emulator, in calls that random ones do not cover: the widest heads,
 * rows of very different sizes, heads in groups. Usage: emulated_attention LIBCUDA. */
#define _GNU_SOURCE
#include "../test.h"

#include <stdio.h>

#include "cuda.h"
#include "emulated_impls.h"
#include "emulator/emulator.h"
#include "half.h"
#include "view.h"

enum { MUCH = 232448 }; /* shared memory of compute capability 9.0 */

static krait_ctx *open_device(int capability, int shared_bytes, int n_multiprocessors) {
  char fake[100];
  krait_ctx *ctx = NULL;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1};
  snprintf(fake, sizeof fake, "capability=%d,shared=%d,multiprocessors=%d,l2=%d", capability, shared_bytes,
           n_multiprocessors, n_multiprocessors > 100 ? 50 << 20 : 8);
  setenv("KR_FAKE_CUDA", fake, 1);
  kr_emulated_order(0);
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

/* A head of L rows and keys of D channels: q, k, v, dout, out, dq, dk, dv, and the rows' log-sum-exp. */
#define HEAD_FLOATS(L, D) (8 * (L) * (D) + (L))
static void attend(const krait_ctx *ctx, const char *name, float *c, int L, int D, uint32_t flags, int has_gradient) {
#define ROWS(i) {c + (i) * L * D, {L * D, D, D, 1}, KRAIT_F32}
#define SIZES .B = 1, .Lq = L, .Lk = L, .H = 1, .Hk = 1, .D = D, .Dv = D, .Bk = 1
#define INPUTS .q = ROWS(0), .k = ROWS(1), .v = ROWS(2), .out = ROWS(4), .lse = {c + 8 * L * D, {L, L, 1}, KRAIT_F32}
  run_row(ctx, "attention", name,
          &(kr_attention_args){.call = {.size = sizeof(kr_attention_args), .flags = flags}, SIZES, INPUTS});
  if (!has_gradient) return;
  run_row(ctx, "attention_bwd", name,
          &(kr_attention_bwd_args){.call = {.size = sizeof(kr_attention_bwd_args), .flags = flags},
                                   SIZES,
                                   INPUTS,
                                   .dout = ROWS(3),
                                   .dq = ROWS(5),
                                   .dk = ROWS(6),
                                   .dv = ROWS(7)});
#undef ROWS
#undef SIZES
#undef INPUTS
}

/* Before compute capability 7.0: 32 rows of 256 floats, and eight of both factors. */
static void widest_heads_have_room(void **state) {
  enum { WL = 5, WD = 256, N = HEAD_FLOATS(WL, WD) };
  (void)state;
  static _Alignas(16) float want[N], got[N];
  fill_random(want, N);
  memcpy(got, want, sizeof got);
  krait_ctx *ctx = open_device(61, 49152, 16);
  attend(ctx, "ref", want, WL, WD, 0, 1);
  attend(ctx, "cuda_base", got, WL, WD, 0, 1);
  compare_floats("cuda_base", got, want, N, 1e-4f);
  krait_ctx_close(&ctx);
}

/* Float32 in parts: rows of each tensor differ by up to 2^70, and the first see small values alone. Compared to each
 * row's largest number; of dq and dk, which are differences, to the tensor's. */
static void rows_of_any_size_keep_their_digits(void **state) {
  enum { AL = 150, AD = 64, N = HEAD_FLOATS(AL, AD), TENSOR = AL * AD };
  static const int powers[4][4] = {{0, -8, -3, -9}, {0, -12, -40, 1}, {-40, -39, 0, 30}, {20, -30, -60, 0}};
  static const char *const names[] = {"ampere_tiles_halves", "ampere_tiles_parts", "turing_tiles_halves"};
  (void)state;
  static _Alignas(16) float want[N], got[N];
  krait_ctx *ctx = open_device(80, MUCH, 16);
  fill_random(want, N);
  for (int i = 0; i < 4 * TENSOR; i++) want[i] = ldexpf(want[i], powers[i / TENSOR][i % TENSOR / AD % 4]);
  attend(ctx, "ref", want, AL, AD, KRAIT_ATTENTION_CAUSAL, 1);
  for (int k = 0; k < 3; k++) {
    const int has_gradient = k < 2;
    memcpy(got, want, sizeof got), memset(got + 4 * TENSOR, 0xff, 4 * TENSOR * sizeof(float));
    attend(ctx, names[k], got, AL, AD, KRAIT_ATTENTION_CAUSAL, has_gradient);
    for (int i = 4 * TENSOR; i < (has_gradient ? 8 : 5) * TENSOR; i += AD) {
      const int is_sum = i / TENSOR == 4 || i / TENSOR == 7, n = is_sum ? AD : TENSOR,
                first = is_sum ? i : i / TENSOR * TENSOR;
      float most = 0;
      for (int j = first; j < first + n; j++) most = fmaxf(most, fabsf(want[j]));
      compare_floats(names[k], got + i, want + i, AD, 2e-6f * most);
    }
  }
  krait_ctx_close(&ctx);
}

/* bfloat16 as scaled float16: the sizes of q, k and v differ by 2^160 from head to head, and by 2^16 within a head. A
 * result, of 64 numbers at most, is compared to the largest of its head. */
static void heads_of_any_size_keep_their_digits(void **state) {
  enum { GH = 4, GL = 150, GD = 64, TENSOR = GL * GH * GD };
  static const int powers[3][GH] = {{-60, 60, 0, -2}, {60, -60, -3, 0}, {90, -70, 0, -100}};
  static uint16_t in[3 * TENSOR], out[TENSOR];
  static float want[4 * TENSOR];
  (void)state;
  fill_random(want, 3 * TENSOR);
  for (int i = 0; i < 3 * TENSOR; i++) {
    const int h = i / GD % GH, t = i % TENSOR / GD / GH, up = powers[i / TENSOR][h] - (i < 2 * TENSOR ? 0 : t % 5 * 4);
    in[i] = kr_float_to_bf16(ldexpf(want[i], up)), want[i] = kr_bf16_to_float(in[i]);
  }
  krait_ctx *ctx = open_device(75, 65536, 16);
#define TENSOR_OF(at, type) {at, {TENSOR, GH * GD, GD, 1}, type}
#define CALL(from, to, type)                                                                                           \
  &(kr_attention_args) {                                                                                               \
    .call = {.size = sizeof(kr_attention_args), .flags = KRAIT_ATTENTION_CAUSAL}, .B = 1, .Lq = GL, .Lk = GL, .H = GH, \
    .Hk = GH, .D = GD, .Dv = GD, .Bk = 1, .q = TENSOR_OF(from, type), .k = TENSOR_OF(from + TENSOR, type),             \
    .v = TENSOR_OF(from + 2 * TENSOR, type), .out = TENSOR_OF(to, type)                                                \
  }
  run_row(ctx, "attention", "ref", CALL(want, want + 3 * TENSOR, KRAIT_F32));
  run_row(ctx, "attention", "turing_tiles_scaled", CALL(in, out, KRAIT_BF16));
#undef CALL
#undef TENSOR_OF
  for (int h = 0; h < GH; h++) {
    float most = 0;
    for (int i = 0; i < TENSOR; i++)
      if (i / GD % GH == h) most = fmaxf(most, fabsf(want[3 * TENSOR + i]));
    for (int i = 0; i < TENSOR; i++) {
      const float got = kr_bf16_to_float(out[i]);
      if (i / GD % GH == h) compare_floats("turing_tiles_scaled", &got, want + 3 * TENSOR + i, 1, 0.01f * most);
    }
  }
  krait_ctx_close(&ctx);
}

/* The same of several batches, sequences in one batch, and heads that share keys: results, and log-sum-exps. */
static void copies_of_every_layout_are_right(void **state) {
  enum { MOST = 2 * 150 * 4 * 136, MOST_ROWS = 2 * 150 * 4 };
  static const struct {
    int B, H, Hk, Lq, Lk, D, is_packed;
  } cases[] = {{2, 4, 2, 70, 150, 64, 0}, {2, 4, 1, 150, 130, 136, 0}, {2, 2, 2, 140, 150, 72, 1}};
  static uint16_t in[3 * MOST], out[MOST];
  static float wide[3 * MOST], want[MOST], lse[2][MOST_ROWS];
  (void)state;
  krait_ctx *ctx = open_device(75, 65536, 16);
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    const int B = cases[k].B, H = cases[k].H, Hk = cases[k].Hk, Lq = cases[k].Lq, Lk = cases[k].Lk, D = cases[k].D,
              in_memory = cases[k].is_packed ? 1 : B, n_q = in_memory * Lq * H * D, n_k = in_memory * Lk * Hk * D;
    int32_t cu_q[3] = {0, Lq / 2 + 5, Lq}, cu_k[3] = {0, Lk / 2, Lk};
    fill_random(wide, 3 * MOST);
    for (int i = 0; i < 3 * MOST; i++)
      in[i] = kr_float_to_bf16(ldexpf(wide[i], i / D % H)), wide[i] = kr_bf16_to_float(in[i]);
#define TENSOR_OF(at, L, heads, type) {at, {L * heads * D, heads * D, D, 1}, type}
#define INDEX_OF(at) {cases[k].is_packed ? at : NULL, {1}, KRAIT_I32}
#define CALL(from, to, row, type)                                                                                     \
  &(kr_attention_args) {                                                                                              \
    .call = {.size = sizeof(kr_attention_args)}, .B = B, .Lq = Lq, .Lk = Lk, .H = H, .Hk = Hk, .D = D, .Dv = D,       \
    .Bk = in_memory, .q = TENSOR_OF(from, Lq, H, type), .k = TENSOR_OF(from + n_q, Lk, Hk, type),                     \
    .v = TENSOR_OF(from + n_q + n_k, Lk, Hk, type), .out = TENSOR_OF(to, Lq, H, type), .cu_seqlens_q = INDEX_OF(cu_q), \
    .cu_seqlens_k = INDEX_OF(cu_k), .lse = {row, {H * Lq, Lq, 1}, KRAIT_F32}                                          \
  }
    run_row(ctx, "attention", "ref", CALL(wide, want, lse[0], KRAIT_F32));
    run_row(ctx, "attention", "turing_tiles_scaled", CALL(in, out, lse[1], KRAIT_BF16));
#undef CALL
#undef INDEX_OF
#undef TENSOR_OF
    compare_floats("log-sum-exp", lse[1], lse[0], (size_t)(in_memory * Lq * H), 2e-3f);
    for (int i = 0; i < n_q; i++) {
      const float got = kr_bf16_to_float(out[i]);
      compare_floats("result", &got, want + i, 1, 0.01f * fabsf(want[i]) + 0.02f);
    }
  }
  krait_ctx_close(&ctx);
}

/* Forward and gradient of sizes B, H, Hk, L, D: q, k, v, dout follow one another, and dq, dk, dv, out, log-sum-exp. */
static void attend_in_heads(const krait_ctx *ctx, const int *sizes, float *in, float *to) {
  const int B = sizes[0], H = sizes[1], Hk = sizes[2], L = sizes[3], D = sizes[4], rows = B * L * H * D,
            keys = B * L * Hk * D;
#define ROWS(at) {at, {L * H * D, H * D, D, 1}, KRAIT_F32}
#define KEYS(at) {at, {L * Hk * D, Hk * D, D, 1}, KRAIT_F32}
#define SIZES .B = B, .Lq = L, .Lk = L, .H = H, .Hk = Hk, .D = D, .Dv = D, .Bk = B
#define INPUTS                                                                                         \
  .q = ROWS(in), .k = KEYS(in + rows), .v = KEYS(in + rows + keys), .out = ROWS(to + rows + 2 * keys), \
  .lse = {to + 2 * (rows + keys), {H * L, L, 1}, KRAIT_F32}
  run_row(ctx, "attention", "ampere_tiles_halves",
          &(kr_attention_args){
              .call = {.size = sizeof(kr_attention_args), .flags = KRAIT_ATTENTION_CAUSAL}, SIZES, INPUTS});
  run_row(ctx, "attention_bwd", "ampere_tiles_halves",
          &(kr_attention_bwd_args){.call = {.size = sizeof(kr_attention_bwd_args), .flags = KRAIT_ATTENTION_CAUSAL},
                                   SIZES,
                                   INPUTS,
                                   .dout = ROWS(in + rows + 2 * keys),
                                   .dq = ROWS(to),
                                   .dk = KEYS(to + rows),
                                   .dv = KEYS(to + rows + keys)});
#undef ROWS
#undef KEYS
#undef SIZES
#undef INPUTS
}

static uint64_t scratch_of(const krait_ctx *ctx, const char *name, const void *args) {
  const kr_impl *impl = row_named(name, "ampere_tiles_halves");
  assert_null(impl->refuse(ctx, args));
  return impl->scratch_bytes(ctx, args);
}

/* Float32 in float16 parts: parts of batches and heads are made in turn, in the same scratch, where few blocks fill the
 * device; the bits are those of all at once. */
static void groups_of_heads_give_the_same_bits(void **state) {
  enum { GB = 2, GH = 4, GK = 2, GL = 130, GD = 64, ROWS = GB * GH * GL, KEYS = GB * GK * GL };
  static _Alignas(16) float in[2 * ROWS * GD + 2 * KEYS * GD], out[2][2 * ROWS * GD + 2 * KEYS * GD + ROWS];
  (void)state;
  fill_random(in, sizeof in / sizeof *in);
  int64_t launches[2];
  for (int k = 0; k < 2; k++) {
    krait_ctx *ctx = open_device(80, MUCH, k ? 1 : 64);
    const int64_t before = kr_emulated_launches();
    attend_in_heads(ctx, (int[]){GB, GH, GK, GL, GD}, in, out[k]);
    launches[k] = kr_emulated_launches() - before;
    krait_ctx_close(&ctx);
  }
  assert_int_equal(launches[0], 2 + 5);      /* parts and sums, then delta, and parts and sums of dq, of dk and dv */
  assert_int_equal(launches[1], 4 * 2 + 17); /* two batches, two heads of keys each */
  assert_memory_equal(out[0], out[1], sizeof out[0]);
}

/* The same: how much scratch a call needs is bounded by what fills the device, whatever its batches, heads and, up to
 * 32768, its rows, or by a quarter of q; with 8192 or more rows it is less than q. */
static void scratch_of_parts_is_bounded(void **state) {
  static const int calls[][5] = {{1, 16, 16, 2048, 64},  {1, 16, 16, 2048, 128}, {1, 16, 16, 8192, 64},
                                 {1, 16, 16, 8192, 128}, {1, 16, 16, 32768, 64}, {1, 16, 16, 32768, 128},
                                 {64, 16, 16, 512, 64},  {8, 32, 8, 4096, 128},  {3, 7, 7, 5000, 64}};
  static _Alignas(16) float any[4];
  (void)state;
  krait_ctx *ctx = open_device(90, MUCH, 132);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    const int B = calls[i][0], H = calls[i][1], Hk = calls[i][2], L = calls[i][3], D = calls[i][4];
    const kr_view rows = {any, {(int64_t)L * H * D, H * D, D, 1}, KRAIT_F32, 0},
                  keys = {any, {(int64_t)L * Hk * D, Hk * D, D, 1}, KRAIT_F32, 0},
                  lse = {any, {H * L, L, 1}, KRAIT_F32, 0};
    kr_attention_args a = {.call.size = sizeof a, .B = B, .Lq = L, .Lk = L, .H = H, .Hk = Hk, .D = D, .Dv = D, .Bk = B};
    kr_attention_bwd_args b = {.call.size = sizeof b, .B = B, .Lq = L, .Lk = L, .H = H, .Hk = Hk, .D = D, .Dv = D};
    a.q = a.out = b.q = b.dout = b.out = b.dq = rows, a.k = a.v = b.k = b.v = b.dk = b.dv = keys, a.lse = b.lse = lse;
    b.Bk = B;
    const uint64_t q = (uint64_t)B * (uint64_t)L * (uint64_t)(H * D) * sizeof(float), delta = q / (uint64_t)D,
                   given[2] = {scratch_of(ctx, "attention", &a), scratch_of(ctx, "attention_bwd", &b)};
    for (int k = 0; k < 2; k++) {
      const uint64_t parts = given[k] - (k ? delta : 0), mib = (uint64_t)1 << 20;
      if ((parts > 65 * mib && parts > q / 4 + q / 64) || parts > 101 * mib || (L >= 8192 && parts >= q))
        fail_msg("call %d of rows of %d bytes: %.1f MiB of parts", (int)i, (int)q, (double)parts / (1 << 20));
    }
  }
  krait_ctx_close(&ctx);
}

enum { MOST_KEYS = 700, PD = 64, PH = 2 };

/* What is not a number in a query, or in a key that a query sees, is in its output and log-sum-exp, never 0 and
 * infinity, which say that it sees no key. */
static void what_is_no_number_stays(const krait_ctx *ctx, const kr_impl *impl, int32_t dtype, int in_key, int n_queries,
                                    int n_keys) {
  enum { N = MOST_KEYS * PH * PD };
  static _Alignas(64) float q[N], k[N], v[N], out[N], lse[PH * MOST_KEYS];
#define ROWS(from, n) {from, {(n) * PH * PD, PH * PD, PD, 1}, dtype}
  kr_attention_args a = {.call = {.size = sizeof a},
                         .B = 1,
                         .Lq = n_queries,
                         .Lk = n_keys,
                         .H = PH,
                         .Hk = PH,
                         .D = PD,
                         .Dv = PD,
                         .Bk = 1,
                         .q = ROWS(q, n_queries),
                         .k = ROWS(k, n_keys),
                         .v = ROWS(v, n_keys),
                         .out = ROWS(out, n_queries),
                         .lse = {lse, {PH * n_queries, n_queries, 1}, KRAIT_F32}};
#undef ROWS
  for (int i = 0; i < n_keys * PH * PD; i++)
    kr_put(&a.q, i, i % 7 - 3), kr_put(&a.k, i, i % 5), kr_put(&a.v, i, 1), kr_put(&a.out, i, 5);
  kr_put(in_key ? &a.k : &a.q, PD + 3, NAN); /* of head 1 */
  if (impl->refuse && impl->refuse(ctx, &a)) return;
  run_row(ctx, "attention", impl->name, &a);
  for (int i = 0; i < n_queries; i++)
    for (int h = 0; h < PH; h++) {
      const int is_number = h == 0 || (!in_key && i > 0);
      if (isnan(kr_get(&a.out, (i * PH + h) * PD + 5)) == is_number || isnan(lse[h * n_queries + i]) == is_number)
        fail_msg("%s, type %d: query %d of head %d has log-sum-exp %g", impl->name, (int)dtype, i, h,
                 (double)lse[h * n_queries + i]);
    }
}

static void no_number_becomes_one(void **state) {
  static const int devices[] = {61, 75, 80, 90};
  static const int32_t types[] = {KRAIT_F32, KRAIT_F16, KRAIT_BF16};
  const kr_op *op = kr_op_find("attention");
  (void)state;
  for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
    krait_ctx *ctx = open_device(devices[d], devices[d] < 80 ? 49152 : MUCH, 16);
    for (int i = 0; i < op->n_impls; i++)
      for (int type = 0; type < 3; type++)
        for (int c = 0; c < 6 && (op->impls[i].needs & ctx->caps) == op->impls[i].needs; c++)
          if (!(op->impls[i].needs & KRAIT_CAP_CPU))
            what_is_no_number_stays(ctx, &op->impls[i], types[type], c & 1, c < 2 ? 9 : 1, c < 4 ? 9 : MOST_KEYS);
    krait_ctx_close(&ctx);
  }
}

/* A causal call of one turn of hopper's blocks, which take 64 rows of either end each: numbers of 64 rows that are even
 * or odd, rows that see no key, and heads of 256 channels. */
static void either_end_of_a_causal_call_is_right(void **state) {
  enum { MOST = 600, MOST_D = 256 };
  static const int calls[][3] = {{512, 512, 128}, {300, 300, 128}, {129, 400, 72}, {300, 130, 128}, {330, 330, 256}};
  static float random[(PH + 2) * MOST * MOST_D];
  static _Alignas(16) uint16_t c[(PH + 2) * MOST * MOST_D], out[2][PH * MOST * MOST_D];
  (void)state;
  fill_random(random, sizeof random / sizeof *random);
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) c[i] = kr_float_to_bf16(random[i]);
  krait_ctx *ctx = open_device(90, MUCH, 16);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    const int Lq = calls[i][0], Lk = calls[i][1], D = calls[i][2];
    kr_attention_args a = {.call = {.size = sizeof a, .flags = KRAIT_ATTENTION_CAUSAL},
                           .B = 1,
                           .Lq = Lq,
                           .Lk = Lk,
                           .H = PH,
                           .Hk = 1,
                           .D = D,
                           .Dv = D,
                           .Bk = 1};
    a.q = (kr_view){c, {Lq * PH * D, PH * D, D, 1}, KRAIT_BF16, 0};
    a.k = (kr_view){c + PH * MOST * MOST_D, {Lk * D, D, D, 1}, KRAIT_BF16, 0}, a.v = a.k;
    a.v.data = c + (PH + 1) * MOST * MOST_D;
    memset(out, 0xff, sizeof out);
    for (int k = 0; k < 2; k++) {
      a.out = a.q, a.out.data = out[k];
      run_row(ctx, "attention", k ? "cuda_hopper" : "ref", &a);
    }
    for (int j = 0; j < PH * MOST * MOST_D; j++) {
      const float want = kr_bf16_to_float(out[0][j]), got = kr_bf16_to_float(out[1][j]);
      if (out[0][j] != out[1][j] && !(fabsf(got - want) <= 0.01f * fabsf(want) + 2e-3f))
        fail_msg("call %d, row %d: %g, not %g", (int)i, j / (PH * D), (double)got, (double)want);
    }
  }
  krait_ctx_close(&ctx);
}

/* The gradient on hopper, where blocks of keys are few: the heads that share keys in parts of unlike size, whose sums
 * are added; with packed sequences, one of them empty. */
static void parts_of_heads_are_added(void **state) {
  enum { SQ = 70, SK = 130, SB = 3, SH = 10, SD = 64, ROWS_N = SB * SQ * SH * SD, KEYS_N = SB * SK * SD };
  static float random[2 * ROWS_N + 2 * KEYS_N];
  static _Alignas(16) uint16_t in[2 * ROWS_N + 2 * KEYS_N], out[ROWS_N], got[2][ROWS_N + 2 * KEYS_N];
  static float lse[SB * SH * SQ];
  static int32_t offsets[2][SB + 1] = {{0, SQ, SQ, SB * SQ}, {0, 40, 50, SB * SK}};
  (void)state;
  fill_random(random, sizeof random / sizeof *random);
  for (size_t i = 0; i < sizeof in / sizeof *in; i++) in[i] = kr_float_to_bf16(random[i]);
  for (int call = 0; call < 4; call++) {
    const int packed = call / 2, Lq = packed ? SB * SQ : SQ, Lk = packed ? SB * SK : 128;
    krait_ctx *ctx = open_device(90, MUCH, packed ? 13 : 4); /* 10 parts for 3 blocks, 9 for 12 */
    const uint32_t flags = KRAIT_ATTENTION_CAUSAL;
#define OF_ROWS(at) {at, {(int64_t)Lq * SH * SD, SH * SD, SD, 1}, KRAIT_BF16, 0}
#define OF_KEYS(at) {at, {(int64_t)Lk * SD, SD, SD, 1}, KRAIT_BF16, 0}
#define COUNTS .B = SB, .Lq = Lq, .Lk = Lk, .H = SH, .Hk = 1, .D = SD, .Dv = SD, .Bk = packed ? 1 : SB
#define GIVEN                                                                                                   \
  .q = OF_ROWS(in), .k = OF_KEYS(in + 2 * ROWS_N), .v = OF_KEYS(in + 2 * ROWS_N + KEYS_N), .out = OF_ROWS(out), \
  .lse = {lse, {(int64_t)SH * Lq, Lq, 1}, KRAIT_F32, 0}
    kr_attention_args a = {.call = {.size = sizeof a, .flags = flags}, COUNTS, GIVEN};
    if (packed) {
      a.max_q = 2 * SQ, a.max_k = SB * SK, a.cu_seqlens_q = (kr_view){offsets[0], {1}, KRAIT_I32, 0};
      a.cu_seqlens_k = (kr_view){offsets[1], {1}, KRAIT_I32, 0};
    }
    run_row(ctx, "attention", "ref", &a);
    for (int k = 0; k < 2; k++) {
      kr_attention_bwd_args b = {.call = {.size = sizeof b, .flags = flags | KRAIT_ATTENTION_ANY_ORDER}, COUNTS, GIVEN};
      b.max_q = a.max_q, b.max_k = a.max_k, b.cu_seqlens_q = a.cu_seqlens_q, b.cu_seqlens_k = a.cu_seqlens_k;
      b.dout = (kr_view)OF_ROWS(in + ROWS_N), b.dq = (kr_view)OF_ROWS(got[k]);
      b.dk = (kr_view)OF_KEYS(got[k] + ROWS_N), b.dv = (kr_view)OF_KEYS(got[k] + ROWS_N + KEYS_N);
      memset(got[k], 0, sizeof got[k]);
      run_row(ctx, "attention_bwd", k == 0 ? "ref" : call % 2 ? "cuda_hopper" : "cuda_hopper_any_order", &b);
    }
    for (int j = 0; j < ROWS_N + 2 * KEYS_N; j++) {
      const float want = kr_bf16_to_float(got[0][j]), is = kr_bf16_to_float(got[1][j]);
      if (!(fabsf(is - want) <= 0.01f * fabsf(want) + 1e-2f))
        fail_msg("call %d, number %d: %g, not %g", call, j, (double)is, (double)want);
    }
    krait_ctx_close(&ctx);
  }
#undef OF_ROWS
#undef OF_KEYS
#undef COUNTS
#undef GIVEN
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  if (!kr_cuda_built_tiers()) return 77;
  const struct CMUnitTest tests[] = {cmocka_unit_test(widest_heads_have_room),
                                     cmocka_unit_test(rows_of_any_size_keep_their_digits),
                                     cmocka_unit_test(heads_of_any_size_keep_their_digits),
                                     cmocka_unit_test(copies_of_every_layout_are_right),
                                     cmocka_unit_test(groups_of_heads_give_the_same_bits),
                                     cmocka_unit_test(scratch_of_parts_is_bounded),
                                     cmocka_unit_test(no_number_becomes_one),
                                     cmocka_unit_test(either_end_of_a_causal_call_is_right),
                                     cmocka_unit_test(parts_of_heads_are_added)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
