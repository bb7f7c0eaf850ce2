/* cubins.c: which of a module's images is loaded: machine code for exactly this device first, PTX if there is none or
 * the driver rejects it. Links only src/cuda, with this test's table instead of the build's. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda.h"
#include "dlib.h"
#include "packed_code.h"
#include <krait/krait.h>

static const char base_text[] = "base", ampere_text[] = "ampere", other_text[] = "other",
                  exact_image[] = "\177ELF exact", newer_image[] = "\177ELF newer";
static const kr_cubin cubins[] = {{"one", "ampere", 86, newer_image, sizeof newer_image},
                                  {"one", "ampere", 80, exact_image, sizeof exact_image}};

uint64_t kr_cuda_built_tiers(void) { return KRAIT_CAP_CUDA_BASE | KRAIT_CAP_CUDA_AMPERE; }
const kr_cubin *kr_cuda_cubin(int index) { return index >= 0 && index < 2 ? &cubins[index] : NULL; }
static const struct {
  const char *module, *tier, *text;
} texts[] = {{"one", "base", base_text}, {"one", "ampere", ampere_text}, {"two", "ampere", other_text}};
int kr_cuda_embedded(int index, const char **module, const char **tier, const char **text, size_t *bytes) {
  (void)text, (void)bytes;
  if (index < 0 || index >= 3) return 0;
  *module = texts[index].module, *tier = texts[index].tier;
  return 1;
}
int32_t kr_cuda_text(int index, const char **text) { return *text = texts[index].text, KRAIT_OK; }

static void (*fail_at)(long n, int result);
static int (*n_held)(void);
static const void *(*loaded)(void);

/* Opens a device of this capability, loads the kernel and returns the last image loaded. */
static const void *image_of(const char *machine, uint64_t tier, const kr_kernel *kernel) {
  kr_cuda *cuda;
  setenv("KR_FAKE_CUDA", machine, 1);
  assert_int_equal(kr_cuda_open(0, KRAIT_CAPS_ALL, &cuda), KRAIT_OK);
  assert_int_equal(kr_cuda_prepare(cuda, tier, kernel), KRAIT_OK);
  kr_cuda_close(&cuda);
  assert_int_equal(n_held(), 0);
  return loaded();
}

static void the_exact_cubin_comes_first(void **state) {
  static const kr_kernel one = {"one", "kr_one"}, two = {"two", "kr_two"};
  (void)state;
  assert_ptr_equal(image_of("capability=80,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one), exact_image);
  assert_ptr_equal(image_of("capability=86,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one), newer_image);
  assert_ptr_equal(image_of("capability=80,cubins=1", KRAIT_CAP_CUDA_BASE, &one), base_text); /* a lower tier, forced */
  assert_ptr_equal(image_of("capability=80,cubins=1", KRAIT_CAP_CUDA_AMPERE, &two),
                   other_text); /* a module without machine code */
  assert_ptr_equal(image_of("capability=90,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one), ampere_text); /* another device */
}

static void ptx_takes_over_where_machine_code_is_refused(void **state) {
  static const kr_kernel one = {"one", "kr_one"};
  (void)state;
  assert_ptr_equal(image_of("capability=80,cubins=0", KRAIT_CAP_CUDA_AMPERE, &one), ampere_text);
}

/* Not for errors that PTX would also have. */
static void other_failures_are_reported(void **state) {
  static const kr_kernel one = {"one", "kr_one"};
  static const struct {
    int result;
    int32_t status;
  } cases[] = {{2, KRAIT_ERR_DEVICE_MEMORY}, {700, KRAIT_ERR_DEVICE_LOST}};
  kr_cuda *cuda;
  (void)state;
  setenv("KR_FAKE_CUDA", "capability=80,cubins=1", 1);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(kr_cuda_open(0, KRAIT_CAPS_ALL, &cuda), KRAIT_OK);
    fail_at(3, cases[i].result); /* two calls before: which context is current, and setting a recording aside */
    assert_int_equal(kr_cuda_prepare(cuda, KRAIT_CAP_CUDA_AMPERE, &one), cases[i].status);
    fail_at(0, 0);
    assert_int_equal(kr_cuda_prepare(cuda, KRAIT_CAP_CUDA_AMPERE, &one), KRAIT_OK);
    assert_ptr_equal(loaded(), exact_image);
    kr_cuda_close(&cuda);
    assert_int_equal(n_held(), 0);
  }
}

int main(int argc, char **argv) {
  const char *why;
  if (argc < 2) return 2;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  kr_dlib *fake = kr_dlib_open(argv[1], &why);
  if (!fake) return fprintf(stderr, "%s\n", why), 1;
  *(void **)&fail_at = kr_dlib_find(fake, "fake_cuda_fail_at");
  *(void **)&n_held = kr_dlib_find(fake, "fake_cuda_held");
  *(void **)&loaded = kr_dlib_find(fake, "fake_cuda_loaded");
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_exact_cubin_comes_first),
                                     cmocka_unit_test(ptx_takes_over_where_machine_code_is_refused),
                                     cmocka_unit_test(other_failures_are_reported)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
