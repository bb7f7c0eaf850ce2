/* parts.c: the elements of a view, against counting them one by one; and a context's cached graphs of an op: many
 * sizes, many threads. */
#include <pthread.h>
#include <stdlib.h>

#include "../test.h"
#include "graph_parts.h"
#include "all_ops.h"

static uint32_t random_state;
static int64_t draw_parts(int64_t low, int64_t high) {
  random_state = random_state * 1664525u + 1013904223u;
  return low + (int64_t)((random_state >> 8) % (uint32_t)(high - low + 1));
}

/* ---- views ---- */

enum { MOST_ELEMENTS = 4096 };

/* A storage of random sizes, sometimes padded or permuted; and a view by a few random steps. */
static kr_tensor random_storage(kr_graph *g) {
  kr_dims dims = {.n = (int32_t)draw_parts(1, 4)};
  int order[4] = {0, 1, 2, 3};
  kr_view layout = {.dtype = KRAIT_F32};
  int64_t next = 1;
  for (int i = 0; i < dims.n; i++) dims.size[i] = draw_parts(1, 5);
  for (int i = dims.n - 1; i > 0; i--) {
    const int k = (int)draw_parts(0, i), swap = order[i];
    order[i] = order[k], order[k] = swap;
  }
  for (int i = dims.n - 1; i >= 0; i--)
    layout.stride[order[i]] = next, next = next * dims.size[order[i]] + draw_parts(0, 3) / 3;
  return draw_parts(0, 1) ? kr_graph_temp(g, KRAIT_F32, dims) : kr_graph_input_like(g, "x", &layout, dims);
}

static kr_tensor random_view(kr_graph *g, kr_tensor t) {
  for (int step = (int)draw_parts(0, 4); step > 0; step--) {
    const kr_dims d = kr_graph_dims(g, t);
    const int dim = (int)draw_parts(0, d.n - 1);
    const int64_t kind = draw_parts(0, 2);
    if (kind == 0 && d.size[dim] > 1) {
      const int64_t from = draw_parts(0, d.size[dim] - 1);
      t = kr_graph_slice(g, t, dim, from, draw_parts(1, d.size[dim] - from));
    } else if (kind == 1) {
      int order[4] = {0, 1, 2, 3};
      const int other = (int)draw_parts(0, d.n - 1);
      order[dim] = other, order[other] = dim;
      t = kr_graph_permute(g, t, order);
    } else if (d.n > 1) { /* two dimensions merged, or one split */
      kr_dims merged = {.n = d.n - 1};
      const int at = (int)draw_parts(0, d.n - 2);
      for (int i = 0; i < merged.n; i++)
        merged.size[i] = i < at ? d.size[i] : i == at ? d.size[i] * d.size[i + 1] : d.size[i + 1];
      if (kr_graph_can_reshape(g, t, merged)) t = kr_graph_reshape(g, t, merged);
    }
  }
  return t;
}

/* Marks the elements of a view among those of memory; returns how many. */
static int mark(const kr_graph *g, kr_tensor t, char *has) {
  const kr_part *p = KR_PART(g, t);
  int n = 0;
  memset(has, 0, MOST_ELEMENTS);
  for (int64_t flat = 0, all = kr_dims_elements(p->dims); flat < all; flat++) {
    int64_t left = flat, at = p->at_bytes / 4;
    for (int i = p->dims.n - 1; i >= 0; i--) at += left % p->dims.size[i] * p->stride[i], left /= p->dims.size[i];
    assert_true(at >= 0 && at < MOST_ELEMENTS);
    n += !has[at], has[at] = 1;
  }
  return n;
}

static void boxes_are_what_views_have(void **state) {
  static char a_has[MOST_ELEMENTS], b_has[MOST_ELEMENTS];
  int n_exact = 0, n_meet = 0, n_moved = 0;
  (void)state;
  random_state = 11;
  for (int round = 0; round < 4000; round++) {
    kr_graph *g = NULL;
    assert_int_equal(kr_graph_open(&g), KRAIT_OK);
    const kr_tensor whole = random_storage(g), a = random_view(g, whole), b = random_view(g, whole);
    const int32_t storage = KR_PART(g, whole)->storage;
    const kr_box x = kr_box_of(g, a), y = kr_box_of(g, b);
    const int n_a = mark(g, a, a_has), n_b = mark(g, b, b_has);
    int64_t in_box = 1;
    int share = 0;
    for (int k = 0; k < 4; k++) in_box *= x.to[k] - x.from[k] + 1;
    for (int i = 0; i < MOST_ELEMENTS; i++) share += a_has[i] && b_has[i];
    assert_true(in_box >= n_a);
    if (x.exact) assert_int_equal(in_box, n_a);
    if (!kr_boxes_meet(&x, &y)) assert_int_equal(share, 0);
    if (kr_boxes_equal(&x, &y)) assert_true(share == n_a && share == n_b);
    n_exact += x.exact, n_meet += share > 0;
    /* the same elements in another memory layout: as many, and disjoint where they were disjoint */
    const kr_tensor other = kr_graph_temp_like(g, storage), moved_a = kr_graph_moved(g, a, KR_PART(g, other)->storage),
                    moved_b = kr_graph_moved(g, b, KR_PART(g, other)->storage);
    if (moved_a && moved_b) {
      assert_int_equal(mark(g, moved_a, a_has), n_a);
      assert_int_equal(mark(g, moved_b, b_has), n_b);
      int still = 0;
      for (int i = 0; i < MOST_ELEMENTS; i++) still += a_has[i] && b_has[i];
      assert_int_equal(still, share);
      n_moved++;
    }
    assert_int_equal(kr_graph_status(g), KRAIT_OK);
    kr_graph_close(&g);
  }
  print_message("  of 4000 pairs of views %d are boxes, %d meet, %d fit another layout\n", n_exact, n_meet, n_moved);
  assert_true(n_exact > 2000 && n_meet > 1000 && n_moved > 3000);
}

/* ---- cached graphs ---- */

enum { MOST_L = 90, D = 8, N = 4, R = 2, M = 6 }; /* more lengths than a context caches graphs */

typedef struct job {
  const krait_ctx *ctx;
  const float *values;
  float *out;
  int first;
  int32_t status;
} job;

static void call(const krait_ctx *ctx, const float *x, int64_t L, float *out, int32_t *status) {
  float *at = (float *)x;
  kr_mamba_inner_args a = {
      .call = {.size = sizeof a, .flags = KRAIT_SCAN_SOFTPLUS}, .B = 1, .D = D, .L = L, .N = N, .W = 3, .R = R, .M = M};
#define TAKE(field, ...) a.field = (kr_view){at, {__VA_ARGS__}, KRAIT_F32, 0}, at += 512
  TAKE(conv_weight, 3, 1), TAKE(x_proj_weight, D, 1), TAKE(dt_proj_weight, R, 1), TAKE(out_proj_weight, D, 1),
      TAKE(A, N, 1), TAKE(xz, 2 * D * L, L, 1);
  a.out = (kr_view){out, {L * M, M, 1}, KRAIT_F32, 0};
  *status = kr_op_scratch_bytes(&kr_op_mamba_inner, ctx, &a, &a.call.scratch_bytes);
  if (*status < 0) return;
  a.call.scratch = aligned_alloc(64, (a.call.scratch_bytes + 63) & ~(uint64_t)63);
  *status = kr_op_run(&kr_op_mamba_inner, ctx, &a);
  free(a.call.scratch);
}

static void *walk(void *user) {
  job *j = user;
  for (int round = 0; round < 3 && j->status >= 0; round++)
    for (int i = 0; i < MOST_L && j->status >= 0; i++) {
      const int L = 1 + (i + j->first) % MOST_L;
      call(j->ctx, j->values, L, j->out + L * MOST_L * M, &j->status);
    }
  return NULL;
}

static void many_sizes_and_threads(void **state) {
  enum { THREADS = 4, OUT = (MOST_L + 1) * MOST_L * M };
  static float values[8 * 512 + 2 * D * MOST_L], out[THREADS][OUT];
  krait_ctx *ctx = NULL;
  job jobs[THREADS];
  pthread_t threads[THREADS];
  (void)state;
  random_state = 2;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) values[i] = (float)draw_parts(-1000, 1000) * 5e-4f;
  for (int i = 0; i < 512; i++) values[4 * 512 + i] -= 1; /* A */
  assert_int_equal(
      krait_ctx_open(
          &(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU, .n_threads = 2}, &ctx),
      KRAIT_OK);
  for (int i = 0; i < THREADS; i++) {
    jobs[i] = (job){ctx, values, out[i], i * 31, KRAIT_OK};
    assert_int_equal(pthread_create(&threads[i], NULL, walk, &jobs[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0), assert_int_equal(jobs[i].status, KRAIT_OK);
  for (int i = 1; i < THREADS; i++) assert_memory_equal(out[0], out[i], sizeof out[0]);
  krait_ctx_close(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(boxes_are_what_views_have),
                                     cmocka_unit_test(many_sizes_and_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
