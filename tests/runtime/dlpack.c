/* dlpack.c: tensors to and from DLPack's structs, and what is refused. */
#include "../test.h"

#include <krait/dlpack.h>

static float data[24];

static void a_tensor_comes_back(void **state) {
  (void)state;
  krait_tensor t = krait_tensor_of(data, KRAIT_F32, 3, (int64_t[]){2, 3, 4}), back;
  krait_dl_managed *made = NULL;
  assert_int_equal(krait_tensor_to_dlpack(&t, KRAIT_DEVICE_CUDA(3), &made), KRAIT_OK);
  const krait_dl_tensor *d = &made->tensor;
  assert_true(d->data == data && d->n_dims == 3 && d->code == 2 && d->bits == 32 && d->lanes == 1);
  assert_true(d->device_type == 2 && d->device_id == 3 && d->shape[2] == 4 && d->strides[0] == 12 &&
              d->strides[2] == 1);
  assert_int_equal(krait_tensor_from_dlpack(d, &back), KRAIT_OK);
  assert_true(back.data == data && back.n_dims == 3 && back.size[1] == 3 && back.stride[1] == 4);
  made->deleter(made);
  krait_dl_versioned *versioned = NULL;
  t.stride[0] = 12, t.stride[2] = 1; /* expanded along the second */
  assert_int_equal(krait_tensor_to_dlpack_versioned(&t, KRAIT_DEVICE_CPU, &versioned), KRAIT_OK);
  assert_true(versioned->major == 1 && versioned->tensor.device_type == 1 && versioned->tensor.strides[1] == 0);
  versioned->deleter(versioned);
}

static void strides_and_offsets_are_taken_as_they_are(void **state) {
  (void)state;
  int64_t shape[] = {2, 3}, expanded[] = {0, 0};
  krait_dl_tensor d = {.data = data, .device_type = 1, .n_dims = 2, .code = 2, .bits = 32, .lanes = 1, .shape = shape,
                       .byte_offset = 8};
  krait_tensor t;
  assert_int_equal(krait_tensor_from_dlpack(&d, &t), KRAIT_OK);
  assert_true(t.data == data + 2 && t.flags == 0 && t.stride[0] == 0 && t.size[1] == 3);
  d.strides = expanded;
  assert_int_equal(krait_tensor_from_dlpack(&d, &t), KRAIT_OK);
  assert_true(t.flags == KRAIT_TENSOR_STRIDED && t.stride[0] == 0);
  d.n_dims = 0, d.shape = NULL;
  assert_int_equal(krait_tensor_from_dlpack(&d, &t), KRAIT_OK);
  assert_true(t.n_dims == 1 && t.size[0] == 1);
}

static void types_are_those_of_dlpack(void **state) {
  (void)state;
  for (int32_t dtype = KRAIT_F32; dtype <= KRAIT_U64; dtype++) {
    krait_tensor t = krait_tensor_of(data, dtype, 1, (int64_t[]){2}), back;
    krait_dl_managed *made = NULL;
    assert_int_equal(krait_tensor_to_dlpack(&t, KRAIT_DEVICE_CPU, &made), KRAIT_OK);
    assert_int_equal(made->tensor.bits, 8 * krait_dtype_bytes(dtype));
    assert_int_equal(krait_tensor_from_dlpack(&made->tensor, &back), KRAIT_OK);
    assert_int_equal(back.dtype, dtype);
    made->deleter(made);
  }
}

static void what_krait_has_not_is_refused(void **state) {
  (void)state;
  int64_t shape[] = {1, 1, 1, 1, 1};
  const krait_dl_tensor good = {.data = data, .device_type = 1, .n_dims = 2, .code = 2, .bits = 32, .lanes = 1,
                                .shape = shape};
  krait_dl_tensor d = good;
  krait_tensor t;
  krait_dl_managed *made;
  d.device_type = 8;
  assert_int_equal(krait_tensor_from_dlpack(&d, &t), KRAIT_ERR_ARGUMENT);
  d = good, d.n_dims = 5;
  assert_int_equal(krait_tensor_from_dlpack(&d, &t), KRAIT_ERR_SHAPE);
  d = good, d.bits = 4;
  assert_int_equal(krait_tensor_from_dlpack(&d, &t), KRAIT_ERR_DTYPE);
  d = good, d.lanes = 2;
  assert_int_equal(krait_tensor_from_dlpack(&d, &t), KRAIT_ERR_DTYPE);
  d = good, d.shape = NULL;
  assert_int_equal(krait_tensor_from_dlpack(&d, &t), KRAIT_ERR_ARGUMENT);
  shape[0] = -1;
  assert_int_equal(krait_tensor_from_dlpack(&good, &t), KRAIT_ERR_SHAPE);
  assert_null(krait_tensor_of(data, KRAIT_F32, 5, shape).data);
  t = krait_tensor_of(data, KRAIT_Q8_0, 1, (int64_t[]){2});
  assert_int_equal(krait_tensor_to_dlpack(&t, KRAIT_DEVICE_CPU, &made), KRAIT_ERR_DTYPE);
  assert_null(made);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_tensor_comes_back), cmocka_unit_test(strides_and_offsets_are_taken_as_they_are),
      cmocka_unit_test(types_are_those_of_dlpack), cmocka_unit_test(what_krait_has_not_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
