/* safetensors.c: round trips, and every kind of inconsistent header. */
#define _GNU_SOURCE
#include "../test.h"

#include <math.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "safetensors.h"
#include "half.h"
#include "pool.h"
#include "weights.h"

/* A file in memory: the header's length (or `length` when not 0), the header, data_bytes bytes 0, 1, 2 ... */
typedef struct kr_made {
  unsigned char bytes[4096];
  size_t n_bytes;
} kr_made;

static void make(kr_made *file, uint64_t length, const char *header, size_t data_bytes) {
  size_t header_bytes = strlen(header);
  uint64_t stated = length ? length : header_bytes;
  for (int i = 0; i < 8; i++) file->bytes[i] = (unsigned char)(stated >> 8 * i);
  memcpy(file->bytes + 8, header, header_bytes);
  for (size_t i = 0; i < data_bytes; i++) file->bytes[8 + header_bytes + i] = (unsigned char)i;
  file->n_bytes = 8 + header_bytes + data_bytes;
}

static int32_t open_made(const kr_made *file, kr_weights **weights) {
  unsigned char *exact = malloc(file->n_bytes); /* exact size, so that a sanitizer detects overruns */
  memcpy(exact, file->bytes, file->n_bytes);
  int32_t status = kr_weights_open_memory(exact, file->n_bytes, "made", weights);
  if (*weights) kr_weights_close(weights);
  free(exact);
  return status;
}

static void safetensors_assert_refused(const char *header, size_t data_bytes, int32_t status, const char *words) {
  kr_made file;
  kr_weights *weights = NULL;
  make(&file, 0, header, data_bytes);
  assert_int_equal(open_made(&file, &weights), status);
  assert_non_null(strstr(krait_error_detail(), "made"));
  if (!strstr(krait_error_detail(), words)) fail_msg("'%s' lacks '%s'", krait_error_detail(), words);
}

#define GOOD                                                                                                      \
  "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_" \
  "offsets\":[8,16]}}"

static void inconsistent_headers_are_refused(void **state) {
  (void)state;
  const int32_t format = KRAIT_ERR_FILE_FORMAT, read = KRAIT_ERR_FILE_READ;
  safetensors_assert_refused(GOOD, 15, read, "truncated");
  safetensors_assert_refused(GOOD, 17, format, "1 bytes after the last tensor");
  safetensors_assert_refused(
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_"
      "offsets\":[4,12]}}",
      12, format, "overlap");
  safetensors_assert_refused(
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_"
      "offsets\":[0,8]}}",
      8, format, "overlap");
  safetensors_assert_refused(
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
      "offsets\":[12,16]}}",
      16, format, "belong to no tensor");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, format,
                 "has the invalid byte range 8 to 0");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, format,
                 "has the invalid byte range");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, format, "need 12");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9223372036854775807]}}", 8,
                             read, "ends at byte");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9223372036854775808]}}", 8,
                             format, "not JSON");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
                             format, "2^63");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, format,
                             "not a count");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, format,
                             "not a count");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
                             format, "9 dimensions");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":7,\"data_offsets\":[0,4]}}", 4, format,
                             "no list 'shape'");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, format,
                             "F8_E5M2");
  safetensors_assert_refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, format, "no 'dtype'");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, format,
                             "data_offsets");
  safetensors_assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, format, "data_offsets");
  safetensors_assert_refused("{\"a\":[]}", 0, format, "not an object");
  safetensors_assert_refused(
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
      "offsets\":[4,8]}}",
      8, format, "duplicate");
  safetensors_assert_refused("{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, format,
                             "not JSON");
  safetensors_assert_refused("{\"__metadata__\":{\"k\":3}}", 0, format, "not a string");
  safetensors_assert_refused("{\"__metadata__\":[]}", 0, format, "__metadata__");
  safetensors_assert_refused("{\"a\":", 0, format, "not JSON");
}

static void header_lengths_are_bounded(void **state) {
  (void)state;
  const uint64_t lengths[] = {1ull << 63, ~0ull, 1ull << 40, (16u << 20) + 1};
  for (size_t i = 0; i < 4; i++) {
    kr_made file;
    kr_weights *weights = NULL;
    make(&file, lengths[i], GOOD, 16);
    assert_int_equal(open_made(&file, &weights), KRAIT_ERR_FILE_FORMAT);
    assert_non_null(strstr(krait_error_detail(), "neither safetensors"));
  }
}

static void safetensors_every_prefix_is_refused(void **state) {
  (void)state;
  kr_made file;
  make(&file, 0, GOOD, 16);
  for (size_t full = file.n_bytes, n = 0; n < full; n++) {
    kr_weights *weights = NULL;
    file.n_bytes = n;
    assert_true(open_made(&file, &weights) < 0);
  }
}

static void misaligned_tensors_are_aligned(void **state) {
  (void)state;
  kr_made file;
  kr_weights *weights = NULL;
  make(&file, 0,
       "{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_"
       "offsets\":[1,9]}}",
       9);
  assert_int_equal(kr_weights_open_memory(file.bytes, file.n_bytes, "made", &weights), KRAIT_OK);
  const kr_weight *item = kr_weights_find(weights, "d");
  assert_int_equal((uintptr_t)item->data % 8, 0);
  assert_memory_equal(item->data, file.bytes + file.n_bytes - 8, 8);
  kr_weights_close(&weights);
}

static void a_written_file_reads_back(void **state) {
  (void)state;
  const float a[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
  const uint8_t b[3] = {7, 8, 9};
  const double c = 2.5;
  const kr_weight items[] = {
      {.name = "b \"quoted\"", .dtype = KRAIT_U8, .n_dims = 1, .shape = {3}, .data = b, .bytes = 3},
      {.name = "a", .dtype = KRAIT_F32, .n_dims = 2, .shape = {2, 3}, .data = a, .bytes = 24},
      {.name = "c", .dtype = KRAIT_F64, .data = &c, .bytes = 8},
      {.name = "none", .dtype = KRAIT_F32, .n_dims = 2, .shape = {0, 5}, .data = a, .bytes = 0}};
  const kr_metadata metadata[] = {{"model", "primeknet_gru"}, {"config", "{\"causal\": true}"}};
  char path[] = "/tmp/krait-test-XXXXXX";
  close(mkstemp(path));
  kr_weights *weights = NULL;
  assert_int_equal(kr_safetensors_write(path, items, 4, metadata, 2), KRAIT_OK);
  assert_int_equal(kr_weights_open(path, &weights), KRAIT_OK);
  assert_int_equal(kr_weights_count(weights), 4);
  for (int i = 0; i < 4; i++) {
    const kr_weight *found = kr_weights_find(weights, items[i].name);
    assert_non_null(found);
    assert_int_equal(found->dtype, items[i].dtype);
    assert_int_equal(found->n_dims, items[i].n_dims);
    assert_memory_equal(found->shape, items[i].shape, sizeof found->shape);
    assert_int_equal(found->bytes, items[i].bytes);
    assert_memory_equal(found->data, items[i].data, items[i].bytes);
  }
  assert_null(kr_weights_find(weights, "d"));
  assert_string_equal(kr_weights_metadata(weights, "config"), "{\"causal\": true}");
  assert_null(kr_weights_metadata(weights, "absent"));
  const float *data;
  assert_int_equal(kr_weights_take_f32(weights, "a", 2, (const int64_t[]){2, 3}, &data), KRAIT_OK);
  assert_int_equal(kr_weights_take_f32(weights, "a", 2, (const int64_t[]){3, 2}, &data), KRAIT_ERR_WEIGHTS);
  assert_string_equal(krait_error_detail(), "tensor 'a' has shape (2, 3), the configuration requires (3, 2)");
  assert_int_equal(kr_weights_take_f32(weights, "c", 0, NULL, &data), KRAIT_ERR_WEIGHTS);
  assert_int_equal(kr_weights_take_f32(weights, "x", 0, NULL, &data), KRAIT_ERR_WEIGHTS);
  kr_weights_close(&weights);
  unlink(path);
}

enum { FLOAT8_HEAD = 72, FLOAT8_BYTES = 8 + FLOAT8_HEAD + 256 };

/* A tensor of all bytes. */
static void make_float8(unsigned char file[FLOAT8_BYTES]) {
  static const char head[] = "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[256],\"data_offsets\":[0,256]}}";
  memset(file, 0, 8);
  file[0] = FLOAT8_HEAD;
  memset(file + 8, ' ', FLOAT8_HEAD);
  memcpy(file + 8, head, sizeof head - 1);
  for (int i = 0; i < 256; i++) file[8 + FLOAT8_HEAD + i] = (unsigned char)i;
}

static void write_float8(const char *path) {
  unsigned char file[FLOAT8_BYTES];
  FILE *to = fopen(path, "wb");
  make_float8(file);
  assert_non_null(to);
  assert_int_equal(fwrite(file, 1, sizeof file, to), sizeof file);
  assert_int_equal(fclose(to), 0);
}

/* Every byte of float8 against its definition: 4 bits of exponent above -7, 3 of fraction. */
static void float8_is_widened(void **state) {
  unsigned char file[FLOAT8_BYTES];
  kr_weights *weights = NULL;
  (void)state;
  make_float8(file);
  assert_int_equal(kr_weights_open_memory(file, sizeof file, "float8", &weights), KRAIT_OK);
  const kr_weight *item = kr_weights_find(weights, "a");
  assert_non_null(item);
  assert_int_equal(item->dtype, KRAIT_F16);
  for (int i = 0; i < 256; i++) {
    const int exponent = i >> 3 & 15, fraction = i & 7;
    const double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9),
                 got = (double)kr_f16_to_float(((const uint16_t *)item->data)[i]);
    if ((i & 0x7f) == 0x7f) assert_true(isnan(got));
    else assert_true(got == (i & 0x80 ? -size : size));
  }
  kr_weights_close(&weights);
}

/* Data that stay in the file: at any place, at any time, until the file becomes shorter. */
static void a_file_is_read_in_parts(void **state) {
  enum { N = 700001 }; /* more than one piece, at no round place */
  float *a = malloc(N * sizeof *a), *got = malloc(N * sizeof *got);
  uint16_t b[3] = {1, 2, 3}, got_b[3];
  char path[] = "/tmp/krait-test-XXXXXX.safetensors";
  kr_weights *weights = NULL;
  kr_pool *pool = kr_pool_open(2);
  (void)state;
  close(mkstemps(path, 12));
  for (int i = 0; i < N; i++) a[i] = (float)i;
  const kr_weight items[] = {{.name = "b", .dtype = KRAIT_F16, .n_dims = 1, .shape = {3}, .data = b, .bytes = sizeof b},
                             {.name = "a", .dtype = KRAIT_F32, .n_dims = 1, .shape = {N}, .data = a,
                              .bytes = N * sizeof *a}};
  assert_int_equal(kr_safetensors_write(path, items, 2, NULL, 0), KRAIT_OK);
  const int kept = dup(0);
  close(0); /* the file may get any number */
  assert_int_equal(kr_weights_open_in_parts(path, &weights), KRAIT_OK);
  assert_true(kr_weights_are_in_parts(weights));
  const kr_weight *long_one = kr_weights_find(weights, "a"), *short_one = kr_weights_find(weights, "b");
  for (int i = 0; i < 2; i++) {
    memset(got, 0, N * sizeof *got);
    assert_int_equal(kr_weights_read(weights, long_one, i ? pool : NULL, got), KRAIT_OK);
    assert_memory_equal(got, a, N * sizeof *a);
  }
  assert_int_equal(kr_weights_read(weights, short_one, pool, got_b), KRAIT_OK);
  assert_memory_equal(got_b, b, sizeof b);
  assert_int_equal(truncate(path, 1000), 0);
  assert_int_equal(kr_weights_read(weights, long_one, pool, got), KRAIT_ERR_FILE_READ);
  assert_non_null(strstr(krait_error_detail(), "truncated"));
  kr_weights_close(&weights);
  if (kept >= 0) dup2(kept, 0), close(kept);
  kr_pool_close(&pool);
  uint16_t halves[256];
  write_float8(path);
  assert_int_equal(kr_weights_open_in_parts(path, &weights), KRAIT_OK);
  assert_true(kr_weights_are_in_parts(weights));
  assert_int_equal(kr_weights_read(weights, kr_weights_find(weights, "a"), NULL, halves), KRAIT_OK);
  assert_true(kr_f16_to_float(halves[0x38]) == 1 && kr_f16_to_float(halves[0xb9]) == -1.125f);
  kr_weights_close(&weights);
  unlink(path);
  free(a), free(got);
}

static void missing_and_odd_files_are_refused(void **state) {
  (void)state;
  kr_weights *weights = NULL;
  assert_int_equal(kr_weights_open("/nonexistent/w.safetensors", &weights), KRAIT_ERR_FILE_OPEN);
  assert_int_equal(kr_weights_open("/tmp", &weights), KRAIT_ERR_FILE_FORMAT);
  assert_int_equal(kr_weights_open("/dev/null", &weights), KRAIT_ERR_FILE_FORMAT);
  char path[] = "/tmp/krait-test-XXXXXX";
  close(mkstemp(path));
  assert_int_equal(kr_weights_open(path, &weights), KRAIT_ERR_FILE_FORMAT);
  assert_non_null(strstr(krait_error_detail(), "is empty"));
  assert_null(weights);
  unlink(path);
}

static void writing_reports_a_full_disk(void **state) {
  (void)state;
  const float a = 1;
  const kr_weight item = {.name = "a", .dtype = KRAIT_F32, .data = &a, .bytes = 4};
  if (access("/dev/full", W_OK) != 0) skip();
  assert_int_equal(kr_safetensors_write("/dev/full", &item, 1, NULL, 0), KRAIT_ERR_FILE_WRITE);
  assert_non_null(strstr(krait_error_detail(), "No space left"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(float8_is_widened), cmocka_unit_test(a_file_is_read_in_parts),
      cmocka_unit_test(inconsistent_headers_are_refused),         cmocka_unit_test(header_lengths_are_bounded),
      cmocka_unit_test(safetensors_every_prefix_is_refused),  cmocka_unit_test(misaligned_tensors_are_aligned),
      cmocka_unit_test(a_written_file_reads_back), cmocka_unit_test(missing_and_odd_files_are_refused),
      cmocka_unit_test(writing_reports_a_full_disk)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
