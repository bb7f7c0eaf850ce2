/* Tests of GGUF files that are no language models: their tensors' names and types; read whole, and in parts. */
#define _GNU_SOURCE
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "half.h"
#include "pool.h"
#include "weights.h"

enum { ROWS = 40, COLUMNS = 96, BLOCKS = ROWS * COLUMNS / 32, FLOATS = 5, HEAD = 512 };

typedef struct writer {
  unsigned char bytes[HEAD + 32 * 1024];
  size_t n;
} writer;

static void put_whole(writer *w, uint64_t v, int n) {
  for (int i = 0; i < n; i++) w->bytes[w->n++] = (unsigned char)(v >> (8 * i));
}
static void put_text(writer *w, const char *text) {
  put_whole(w, strlen(text), 8);
  memcpy(w->bytes + w->n, text, strlen(text));
  w->n += strlen(text);
}
static void put_tensor(writer *w, const char *name, uint32_t type, int n_dims, const uint64_t *sizes, uint64_t at) {
  put_text(w, name);
  put_whole(w, (uint64_t)n_dims, 4);
  for (int i = 0; i < n_dims; i++) put_whole(w, sizes[i], 8);
  put_whole(w, type, 4), put_whole(w, at, 8);
}

static float float_of(int i) { return (float)i - 1.5f; }
static int word_of(int block, int k) { return (block * 7 + k * 5) % 255 - 127; }

/* A vector of float32, and behind it a matrix of Q8_0. */
static void fill_file(writer *w) {
  enum { F32 = 0, Q8_0 = 8 };
  *w = (writer){.n = 4};
  memcpy(w->bytes, "GGUF", 4);
  put_whole(w, 3, 4), put_whole(w, 2, 8), put_whole(w, 0, 8);
  put_tensor(w, "model.diffusion_model.vector", F32, 1, (uint64_t[]){FLOATS}, 0);
  put_tensor(w, "matrix", Q8_0, 2, (uint64_t[]){COLUMNS, ROWS}, 32);
  w->n = (w->n + 31) / 32 * 32;
  for (int i = 0; i < FLOATS; i++) put_whole(w, kr_float_bits(float_of(i)), 4);
  w->n += 32 - FLOATS * 4;
  for (int b = 0; b < BLOCKS; b++) {
    put_whole(w, kr_float_to_f16(0.25f * (float)(b + 1)), 2);
    for (int k = 0; k < 32; k++) put_whole(w, (uint64_t)word_of(b, k), 1);
  }
}

static void check_tensors(const kr_weights *weights, kr_pool *pool) {
  const kr_weight *vector = kr_weights_find(weights, "vector"), *matrix = kr_weights_find(weights, "matrix");
  float floats[FLOATS];
  uint16_t halves[ROWS * COLUMNS];
  assert_non_null(vector), assert_non_null(matrix);
  assert_int_equal(vector->dtype, KRAIT_F32), assert_int_equal(matrix->dtype, KRAIT_F16);
  assert_int_equal(matrix->shape[0], ROWS), assert_int_equal(matrix->shape[1], COLUMNS);
  assert_int_equal(matrix->bytes, sizeof halves);
  const kr_weight copy = *matrix; /* as the loader has it */
  assert_int_equal(kr_weights_read(weights, &copy, pool, halves), KRAIT_OK);
  assert_int_equal(kr_weights_read(weights, vector, pool, floats), KRAIT_OK);
  for (int i = 0; i < FLOATS; i++) assert_true(floats[i] == float_of(i));
  for (int i = 0; i < ROWS * COLUMNS; i++)
    assert_true(kr_f16_to_float(halves[i]) ==
                kr_f16_to_float(kr_float_to_f16(0.25f * (float)(i / 32 + 1) * (float)word_of(i / 32, i % 32))));
}

static void write_file(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

static void blocks_become_float16_whole_and_in_parts(void **state) {
  writer *w = malloc(sizeof *w);
  char path[] = "/tmp/krait-test-XXXXXX.gguf";
  kr_weights *weights = NULL;
  kr_pool *pool = kr_pool_open(2);
  (void)state;
  close(mkstemps(path, 5));
  fill_file(w);
  write_file(path, w->bytes, w->n);
  assert_int_equal(kr_weights_open(path, &weights), KRAIT_OK);
  assert_false(kr_weights_are_in_parts(weights));
  check_tensors(weights, NULL);
  kr_weights_close(&weights);
  assert_int_equal(kr_weights_open_in_parts(path, &weights), KRAIT_OK);
  assert_true(kr_weights_are_in_parts(weights));
  check_tensors(weights, NULL), check_tensors(weights, pool);
  assert_int_equal(truncate(path, (off_t)w->n - 1), 0);
  const kr_weight *matrix = kr_weights_find(weights, "matrix");
  void *to = malloc(matrix->bytes);
  assert_int_equal(kr_weights_read(weights, matrix, pool, to), KRAIT_ERR_FILE_READ);
  free(to);
  kr_weights_close(&weights);
  assert_int_equal(kr_weights_open_in_parts(path, &weights), KRAIT_ERR_FILE_READ); /* says so at once */
  assert_non_null(strstr(krait_error_detail(), "truncated"));
  kr_pool_close(&pool);
  unlink(path);
  free(w);
}

/* A header beyond what is read of it: as ever, whole. */
static void a_long_header_is_read_whole(void **state) {
  enum { TEXT = 17 << 20 };
  writer *w = malloc(sizeof *w);
  unsigned char *all = calloc(1, TEXT + sizeof w->bytes);
  char path[] = "/tmp/krait-test-XXXXXX.gguf", other[sizeof path + 12];
  kr_weights *weights = NULL;
  (void)state;
  close(mkstemps(path, 5));
  snprintf(other, sizeof other, "%s.safetensors", path);
  fill_file(w);
  writer value = {.n = 0}; /* one text, of a length that keeps what follows aligned */
  put_text(&value, "long"), put_whole(&value, 8, 4), put_whole(&value, TEXT - 24, 8);
  memcpy(all, w->bytes, 24);
  all[16] = 1; /* one value */
  memcpy(all + 24, value.bytes, value.n);
  memset(all + 24 + value.n, 'x', TEXT - 24);
  const size_t before = 24 + value.n + TEXT - 24;
  assert_int_equal(before % 32, 24);
  memcpy(all + before, w->bytes + 24, w->n - 24);
  write_file(path, all, before + w->n - 24);
  for (int i = 0; i < 2; i++) { /* under another kind's name, too */
    if (i == 1) assert_int_equal(rename(path, other), 0);
    assert_int_equal(kr_weights_open_in_parts(i == 1 ? other : path, &weights), KRAIT_OK);
    assert_false(kr_weights_are_in_parts(weights));
    check_tensors(weights, NULL);
    kr_weights_close(&weights);
  }
  unlink(other);
  free(all), free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_become_float16_whole_and_in_parts),
                                     cmocka_unit_test(a_long_header_is_read_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
