/* sigs.c: signatures as used by their readers: tensors of a call, sizes and outputs from shapes, from forward call to
 * gradient. The calls are the checker's random cases: sizes set by hand or drawn, tensors declared in <op>_check.c. */
#include "../test.h"

#include "case.h"
#include "all_ops.h"
#include "plan.h"
#include "view.h"

static const kr_view_use *find_use(const kr_view_uses *uses, size_t offset) {
  for (int i = 0; i < uses->n; i++)
    if (uses->list[i].offset == offset) return &uses->list[i];
  return NULL;
}

static void tensors_of_random_calls_are_listed_with_their_sizes(void **state) {
  (void)state;
  for (int32_t i = 0; i < kr_n_ops; i++)
    for (int64_t k = 0; k < 100; k++) {
      kr_case c;
      kr_view_uses uses = {.args = c.args};
      assert_int_equal(kr_case_open(&c, kr_ops[i], 7, k, KR_CASE_UNFILLED), KRAIT_OK);
      kr_op_views(kr_ops[i], &uses);
      if (uses.n != c.n_tensors)
        fail_msg("%s: lists %d tensors, the walker drew %d", kr_ops[i]->name, uses.n, c.n_tensors);
      for (int t = 0; t < c.n_tensors; t++) {
        const kr_view_use *use = find_use(&uses, c.tensors[t].view_offset);
        if (!use) fail_msg("%s: %s is not listed", kr_ops[i]->name, c.tensors[t].name);
        assert_int_equal(use->role, c.tensors[t].role);
        assert_int_equal(use->n_dims, c.tensors[t].n_dims);
        if (memcmp(use->shape, c.tensors[t].shape, (size_t)use->n_dims * sizeof *use->shape) != 0)
          fail_msg("%s: %s has other sizes than the walker's", kr_ops[i]->name, c.tensors[t].name);
      }
      kr_case_close(&c);
    }
}

/* The checker asks who computes a call before its values are drawn. */
static void a_call_is_the_same_without_its_values(void **state) {
  (void)state;
  for (int32_t i = 0; i < kr_n_ops; i++)
    for (int64_t k = 0; k < 4; k++) {
      kr_case asked, drawn;
      assert_int_equal(kr_case_open(&asked, kr_ops[i], 13, k, KR_CASE_ASKED), KRAIT_OK);
      assert_int_equal(kr_case_open(&drawn, kr_ops[i], 13, k, KR_CASE_CHECKED), KRAIT_OK);
      assert_true(asked.n_tensors == drawn.n_tensors && asked.is_hard == drawn.is_hard);
      for (int t = 0; t < drawn.n_tensors; t++) {
        const kr_view *a = (const kr_view *)(asked.args + asked.tensors[t].view_offset),
                      *b = (const kr_view *)(drawn.args + drawn.tensors[t].view_offset);
        if (asked.tensors[t].view_offset != drawn.tensors[t].view_offset || a->dtype != b->dtype ||
            memcmp(asked.tensors[t].shape, drawn.tensors[t].shape, sizeof drawn.tensors[t].shape) != 0 ||
            memcmp(a->stride, b->stride, sizeof b->stride) != 0)
          fail_msg("%s, call %ld: %s differs", kr_ops[i]->name, (long)k, drawn.tensors[t].name);
      }
      kr_case_close(&asked), kr_case_close(&drawn);
    }
}

static int is_given_for_sigs(const kr_case *c, const kr_sig *sig, int tensor) {
  return kr_has(kr_sig_view(sig, c->args, tensor));
}

/* Sizes that no tensor of this call determines: set by the caller. */
static int is_undecided(const kr_case *c, const kr_sig *sig, const char *size) {
  const uint32_t constants = KRAIT_SCAN_B_CONSTANT | KRAIT_SCAN_C_CONSTANT;
  if (strncmp(sig->name, "selective_scan", 14) == 0 && strcmp(size, "G") == 0)
    return (((const kr_call *)c->args)->flags & constants) == constants;
  if (strncmp(sig->name, "mamba2_inner", 12) == 0 && strchr("FGKMNP", *size))
    return 1; /* tensors have sums of them, or none if they are 0 */
  if (strncmp(sig->name, "mamba3_inner", 12) == 0 && strchr("DGKMPV", *size)) return 1; /* likewise */
  if (strcmp(sig->name, "mamba_decode") == 0 && strchr("GH", *size))
    return 1; /* no tensor has them for Mamba, one has their sum for Mamba-2 */
  if (strcmp(sig->name, "expert_route") == 0 && strchr("Knb", *size)) return 1; /* outputs', and groups */
  if (strcmp(size, "conv_from") == 0 || strcmp(size, "silu_from") == 0) return 1;
  if (strcmp(sig->name, "conv_norm") == 0 && strchr("SO", *size)) return 1; /* strides, and their results */
  if (strcmp(sig->name, "map_product") == 0 && *size == 'M') return 1; /* N, or half of it */
  if (strcmp(sig->name, "expert_route") == 0 && (*size == 'K' || strstr(size, "groups"))) return 1; /* an output's */
  if (strcmp(sig->name, "gemm") == 0 && strcmp(size, "P") == 0) return 1; /* determines the number of dimensions */
  if (strcmp(sig->name, "gated_filter") == 0 && strcmp(size, "P") == 0) return 1; /* zeros in front */
  if (strcmp(sig->name, "filter_bank") == 0 && (*size == 'J' || strlen(size) == 2)) return 1; /* lengths of chunks */
  if (strcmp(sig->name, "unfold") == 0 || strcmp(sig->name, "fold") == 0)
    return strlen(size) == 2 ||
           (sig->name[0] == 'f' ? strchr("HWC", *size) != NULL : *size == 'K'); /* windows, and what they omit */
  if (strncmp(sig->name, "depthwise_conv", 14) == 0) return strchr("DP", *size) && strlen(size) == 2;
  if (strcmp(sig->name, "conv3d") == 0)
    return strcmp(size, "past") == 0 || strlen(size) == 2; /* windows, and what they omit */
  if (strcmp(sig->name, "group_norm") == 0) return *size == 'G';
  if (strcmp(sig->name, "expert_step") == 0) return *size == 'K'; /* choices */
  if (strcmp(size, "n_kept") == 0) return !sig->forward; /* an output's */
  static const char *const fields[] = {"state_len", "group_size", "window_left", "window_right", "max_q", "max_k"};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (strcmp(size, fields[i]) == 0) return 1;
  return 0;
}

static void infer_again(const kr_case *c, const kr_op *op) {
  const kr_sig *sig = op->sig;
  static _Alignas(16) unsigned char args[4096];
  kr_shape shapes[64];
  const uint32_t facts = kr_sig_facts(sig, c->args);
  memcpy(args, c->args, sizeof args);
  for (int s = 0; s < sig->n_sizes; s++)
    if (!is_undecided(c, sig, sig->sizes[s].name)) kr_sig_set_size(sig, args, s, 0);
  for (int i = 0; i < sig->n_tensors; i++) {
    const int out = sig->tensors[i].role == KR_OUT;
    shapes[i] = !is_given_for_sigs(c, sig, i) ? (kr_shape){.n_dims = KR_SHAPE_ABSENT}
                : out                ? (kr_shape){.n_dims = KR_SHAPE_ASKED}
                                     : kr_sig_shape(sig, c->args, facts, i);
    kr_sig_view(sig, args, i)->data = NULL;
  }
  if (kr_sig_infer(sig, args, shapes) < 0) fail_msg("%s", krait_error_detail());
  for (int s = 0; s < sig->n_sizes; s++)
    if (kr_sig_get_size(sig, args, s) != kr_sig_get_size(sig, c->args, s))
      fail_msg("%s: %s is %lld, shapes say %lld", sig->name, sig->sizes[s].name,
               (long long)kr_sig_get_size(sig, c->args, s), (long long)kr_sig_get_size(sig, args, s));
  for (int i = 0; i < sig->n_tensors; i++) {
    if (!is_given_for_sigs(c, sig, i)) continue;
    const kr_shape want = kr_sig_shape(sig, c->args, facts, i);
    assert_int_equal(shapes[i].n_dims, want.n_dims);
    assert_memory_equal(shapes[i].size, want.size, (size_t)want.n_dims * sizeof *want.size);
  }
}

static void sizes_come_from_shapes(void **state) {
  (void)state;
  for (int32_t i = 0; i < kr_n_ops; i++)
    for (int64_t k = 0; k < 100; k++) {
      kr_case c;
      assert_int_equal(kr_case_open(&c, kr_ops[i], 11, k, KR_CASE_UNFILLED), KRAIT_OK);
      infer_again(&c, kr_ops[i]);
      kr_case_close(&c);
    }
}

static kr_shape shape_of(int n, int64_t a, int64_t b, int64_t c, int64_t d) { return (kr_shape){n, {a, b, c, d}}; }

static void mismatched_shapes_are_named(void **state) {
  (void)state;
  const kr_sig *sig = &kr_sig_causal_conv1d;
  kr_causal_conv1d_args a = {.call.size = sizeof a};
  kr_shape shapes[16];
  for (int i = 0; i < sig->n_tensors; i++) shapes[i].n_dims = KR_SHAPE_ABSENT;
  const int x = kr_sig_find(sig, "x"), weight = kr_sig_find(sig, "weight"), out = kr_sig_find(sig, "out"),
            final = kr_sig_find(sig, "final_states");
  assert_int_equal(kr_sig_find(sig, "nothing"), -1);
  shapes[x] = shape_of(3, 2, 64, 100, 0), shapes[weight] = shape_of(2, 64, 4, 0, 0),
  shapes[out].n_dims = shapes[final].n_dims = KR_SHAPE_ASKED;
  assert_int_equal(kr_sig_infer(sig, &a, shapes), KRAIT_OK);
  assert_true(a.B == 2 && a.D == 64 && a.L == 100 && a.W == 4);
  assert_true(shapes[final].n_dims == 3 && shapes[final].size[2] == 3 && shapes[out].size[2] == 100);
  shapes[weight] = shape_of(2, 96, 4, 0, 0);
  assert_int_equal(kr_sig_infer(sig, &a, shapes), KRAIT_ERR_SHAPE);
  assert_string_equal(krait_error_detail(),
                      "causal_conv1d: weight is (96,4), must be (D,W) = (64,4): its dimension D is 96, not 64");
  shapes[weight] = shape_of(3, 64, 1, 4, 0);
  assert_int_equal(kr_sig_infer(sig, &a, shapes), KRAIT_ERR_SHAPE);
  assert_string_equal(krait_error_detail(), "causal_conv1d: weight is (64,1,4), must be (D,W)");
}

static void check_refusal(int32_t status, const char *sentence) {
  assert_int_equal(status, KRAIT_ERR_SHAPE);
  assert_string_equal(krait_error_detail(), sentence);
}

#define SHAPED(...) \
  krait_tensor_of(&element, KRAIT_F32, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

/* For callers who have no outputs yet. */
static void a_mismatch_lists_the_shapes_of_all_inputs(void **state) {
  (void)state;
  float element;
  krait_causal_conv1d_args a = {.call.size = sizeof a, .x = SHAPED(2, 64, 100), .weight = SHAPED(64, 4)};
  a.bias = (krait_tensor){.data = &element, .n_dims = 1, .size = {-1}, .flags = KRAIT_TENSOR_STRIDED};
  assert_int_equal(krait_shapes_check("causal_conv1d", &a), KRAIT_OK);
  a.bias.data = NULL, a.weight.size[0] = 96;
  check_refusal(krait_shapes_check("causal_conv1d", &a),
                "causal_conv1d: x must be (B,D,L), weight (D,W); got x (2,64,100), weight (96,4): weight is (96,4), "
                "must be (D,W) = (64,4): its dimension D is 96, not 64");
  a.weight.n_dims = 5;
  check_refusal(krait_shapes_check("causal_conv1d", &a),
                "causal_conv1d: weight has 5 dimensions, must have 1 to 4");
  krait_ssd_args s = {.call.size = sizeof s, .x = SHAPED(2, 9, 4, 3), .dt = SHAPED(2, 9, 4), .A = SHAPED(4)};
  s.Bmat = s.Cmat = SHAPED(2, 9, 3, 5);
  check_refusal(krait_shapes_check("ssd", &s),
                "ssd: x must be (B,L,H,P), dt (B,L,H), A (H), Bmat and Cmat (B,L,G,N); got x (2,9,4,3), dt (2,9,4), A "
                "(4), Bmat (2,9,3,5), Cmat (2,9,3,5): H 4 is not a multiple of G 3");
  assert_int_equal(krait_shapes_check("nothing", &a), KRAIT_ERR_ARGUMENT);
}

/* Every input's gradient is in the gradient op, with its sizes, and everything read again has a source. */
static void gradients_belong_to_inputs(void **state) {
  (void)state;
  int n = 0;
  for (int32_t i = 0; i < kr_n_ops; i++) {
    const kr_sig *sig = kr_ops[i]->sig, *gradient = sig->gradient;
    if (!gradient) continue;
    assert_ptr_equal(gradient->forward, sig);
    for (int t = 0; t < sig->n_tensors; t++) {
      const kr_sig_tensor *to = &sig->tensors[t];
      if (to->gradient >= 0) {
        assert_int_equal(gradient->tensors[to->gradient].gradient_of, t);
        assert_int_equal(gradient->tensors[to->gradient].role, to->role == KR_OUT ? KR_IN : KR_OUT);
        assert_string_equal(gradient->tensors[to->gradient].dims[0].text, to->dims[0].text);
        n++;
      }
      if (to->reread >= 0)
        assert_true(gradient->tensors[to->reread].rereads[0] == t || gradient->tensors[to->reread].rereads[1] == t);
    }
    for (int g = 0; g < gradient->n_tensors; g++)
      assert_true((gradient->tensors[g].gradient_of >= 0) != (gradient->tensors[g].rereads[0] >= 0));
  }
  assert_true(n > 40);
  const kr_sig *scan = &kr_sig_selective_scan;
  assert_string_equal(scan->gradient->tensors[scan->tensors[kr_sig_find(scan, "delta")].gradient].name, "ddelta");
  assert_string_equal(scan->gradient->tensors[scan->tensors[kr_sig_find(scan, "out")].gradient].name, "dout");
  assert_int_equal(scan->tensors[kr_sig_find(scan, "seq_idx")].gradient, -1);
}

static void a_gradient_call_begins_as_the_forward_call_was(void **state) {
  (void)state;
  float storage[64] = {0};
  const kr_view view = {.data = storage, .stride = {4, 1}, .dtype = KRAIT_F16},
                   other = {.data = storage + 8, .stride = {4, 1}};
  kr_add_norm_args a = {.call = {.size = sizeof a, .flags = KRAIT_NORM_RMS},
                           .R = 2,
                           .M = 4,
                           .eps = 0.5f,
                           .x = view,
                           .out = view,
                           .weight = other};
  kr_add_norm_bwd_args g;
  kr_sig_begin_gradient(&kr_sig_add_norm, &a, &g);
  assert_true(g.call.size == sizeof g && g.call.flags == KRAIT_NORM_RMS && g.R == 2 && g.M == 4 && g.eps == 0.5f);
  assert_ptr_equal(g.v.data, storage); /* nothing was added: v is x */
  assert_ptr_equal(g.weight.data, storage + 8);
  assert_null(g.dx.data);
  a.residual_out = other;
  kr_sig_begin_gradient(&kr_sig_add_norm, &a, &g);
  assert_ptr_equal(g.v.data, storage + 8);
  assert_int_equal(kr_sig_output_type(&kr_sig_add_norm_bwd, &g, 0, kr_sig_find(&kr_sig_add_norm_bwd, "dweight")),
                   KRAIT_F32);
  assert_int_equal(kr_sig_output_type(&kr_sig_add_norm, &a, 0, kr_sig_find(&kr_sig_add_norm, "out")), KRAIT_F16);
}

/* A plan on other addresses equals a call; also misaligned and in place; a named implementation is used, or reports why
 * not. */
static void plans_run_on_other_addresses(void **state) {
  (void)state;
  enum { M = 3, N = 8, K = 5 };
  static _Alignas(64) float A[M * K], B[K * N], want[M * N], out[M * N + 4], residual[M * N];
  static _Alignas(64) unsigned char scratch[1 << 22];
  krait_ctx *ctx;
  kr_plan *plan;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  for (int i = 0; i < M * K; i++) A[i] = (float)i;
  for (int i = 0; i < K * N; i++) B[i] = 1 / (float)(i + 1);
  kr_gemm_args a = {
      .call = {.size = sizeof a, .scratch = scratch, .scratch_bytes = sizeof scratch}, .M = M, .N = N, .K = K};
  a.A = (kr_view){.data = A, .stride = {K, 1}}, a.Bmat = (kr_view){.data = B, .stride = {N, 1}},
  a.out = (kr_view){.data = want, .stride = {N, 1}};
  a.residual = (kr_view){.data = residual, .stride = {N, 1}};
  assert_int_equal(kr_op_run(&kr_op_gemm, ctx, &a), KRAIT_OK);
  krait_gemm_args given;
  const kr_public_op *p = kr_public_find("gemm");
  kr_public_give(p, &a, &given);
  assert_int_equal(krait_plan_open(ctx, "gemm", &given, NULL, &plan), KRAIT_OK);
  assert_true(krait_plan_scratch_bytes(plan) <= sizeof scratch);
  void *addresses[8] = {0};
  const int at_A = kr_sig_find(&kr_sig_gemm, "A"), at_B = kr_sig_find(&kr_sig_gemm, "Bmat"),
            at_residual = kr_sig_find(&kr_sig_gemm, "residual"), at_out = kr_sig_find(&kr_sig_gemm, "out");
  addresses[at_A] = A, addresses[at_B] = B, addresses[at_residual] = residual;
  for (int shift = 0; shift < 2; shift++) { /* as aligned as planned; and not */
    addresses[at_out] = out + shift;
    assert_int_equal(krait_plan_run(plan, addresses, NULL, scratch, sizeof scratch), KRAIT_OK);
    for (int i = 0; i < M * N; i++) assert_true(out[shift + i] == want[i]);
  }
  addresses[at_out] = residual; /* in place, which was not planned */
  assert_int_equal(krait_plan_run(plan, addresses, NULL, scratch, sizeof scratch), KRAIT_OK);
  assert_memory_equal(residual, want, sizeof want);
  assert_int_equal(krait_plan_run(plan, addresses, NULL, NULL, 0),
                   krait_plan_scratch_bytes(plan) ? KRAIT_ERR_SCRATCH : KRAIT_OK);
  addresses[at_A] = NULL;
  assert_int_equal(krait_plan_run(plan, addresses, NULL, scratch, sizeof scratch), KRAIT_ERR_ARGUMENT);
  assert_string_equal(krait_error_detail(), "gemm: A was planned, so it must be given");
  krait_plan_close(&plan);
  assert_null(plan);
  assert_int_equal(krait_plan_open(ctx, "gemm", &given, "ref", &plan), KRAIT_OK);
  assert_string_equal(krait_plan_impl_name(plan), "ref");
  krait_plan_close(&plan);
  given.Bmat.dtype = KRAIT_F64;
  assert_int_equal(krait_plan_open(ctx, "gemm", &given, "simd_scalar", &plan), KRAIT_ERR_UNSUPPORTED);
  assert_non_null(strstr(krait_error_detail(), "gemm: implementation simd_scalar refuses: "));
  assert_int_equal(krait_plan_open(ctx, "gemm", &given, "none", &plan), KRAIT_ERR_ARGUMENT);
  assert_string_equal(krait_error_detail(), "gemm has no implementation 'none'");
  assert_int_equal(krait_plan_open(ctx, "nothing", &given, NULL, &plan), KRAIT_ERR_ARGUMENT);
  krait_ctx_close(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(tensors_of_random_calls_are_listed_with_their_sizes),
                                     cmocka_unit_test(a_call_is_the_same_without_its_values),
                                     cmocka_unit_test(sizes_come_from_shapes),
                                     cmocka_unit_test(mismatched_shapes_are_named),
                                     cmocka_unit_test(gradients_belong_to_inputs),
                                     cmocka_unit_test(a_mismatch_lists_the_shapes_of_all_inputs),
                                     cmocka_unit_test(plans_run_on_other_addresses),
                                     cmocka_unit_test(a_gradient_call_begins_as_the_forward_call_was)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
