/* cubins.c: which of a module's images is loaded: machine code for exactly this device first, PTX if there is none or
 * the driver rejects it. Links only src/cuda, with this test's table instead of the build's. */
#define _XOPEN_SOURCE 700 /* truncate */
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cubin_file.h"
#include "cuda.h"
#include "dlib.h"
#include "packed_code.h"
#include <krait/krait.h>

static const char one_text[] = ".version 6.0\n.visible .entry kr_zero(\n)\n{\n}\n"
                               ".visible .entry kr_one(\n)\n{\nret;\n}\n",
                  two_text[] = ".version 6.0\n.visible .entry kr_two(\n)\n{\n}\n",
                  one_alone[] = "\n.version 6.0\n.visible .entry kr_one(\n)\n{\nret;\n}\n",
                  exact_image[] = "\177ELF exact", newer_image[] = "\177ELF newer";
static const kr_cubin cubins[] = {{"one", "ampere", 86, newer_image, sizeof newer_image},
                                  {"one", "ampere", 80, exact_image, sizeof exact_image}};

uint64_t kr_cuda_built_tiers(void) { return KRAIT_CAP_CUDA_BASE | KRAIT_CAP_CUDA_AMPERE; }
const kr_cubin *kr_cuda_cubin(int index) { return index >= 0 && index < 2 ? &cubins[index] : NULL; }
static const struct {
  const char *module, *tier, *text;
} texts[] = {{"one", "base", one_text}, {"one", "ampere", one_text}, {"two", "ampere", two_text}};
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
static const char *(*loaded_head)(void);

/* Of kr_one alone. */
static void assert_ptx(const char *image, const char *tier) {
  char text[200];
  snprintf(text, sizeof text, "// one.%s%s", tier, one_alone);
  assert_string_equal(image, text);
}

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
  assert_ptx(image_of("capability=80,cubins=1", KRAIT_CAP_CUDA_BASE, &one), "base"); /* a lower tier, forced */
  assert_string_equal(image_of("capability=80,cubins=1", KRAIT_CAP_CUDA_AMPERE, &two),
                      "// two.ampere\n.version 6.0\n.visible .entry kr_two(\n)\n{\n}\n"); /* without machine code */
  assert_ptx(image_of("capability=90,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one), "ampere"); /* another device */
}

static void ptx_takes_over_where_machine_code_is_refused(void **state) {
  static const kr_kernel one = {"one", "kr_one"};
  (void)state;
  assert_ptx(image_of("capability=80,cubins=0", KRAIT_CAP_CUDA_AMPERE, &one), "ampere");
}

/* "\177ELF file" as tools/cubins packs it, in a file that has it twice: of another text, and of kr_one's. */
static void write_cubins(const char *path, uint32_t capability, uint64_t wrong) {
  static const uint8_t packed[] = {0,   63, 145, 208, 107, 144, 171, 195, 227, 92, 121,
                                   203, 176, 87, 99,  255, 255, 195, 160, 0,   0};
  char text[200];
  snprintf(text, sizeof text, "// one.ampere%s", one_alone);
  const uint64_t hash = kr_cubin_hash(text) + wrong;
  const uint32_t head[] = {capability, 2};
  kr_cubin_row rows[] = {{1, 64, sizeof packed, 10}, {hash, 64, sizeof packed, 10}};
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  fwrite("KRCUBIN1", 1, 8, file), fwrite(head, 1, sizeof head, file), fwrite(rows, 1, sizeof rows, file);
  fwrite(packed, 1, sizeof packed, file);
  fclose(file);
}

/* In a folder or by its own name; only of this very text, of this architecture, and if the driver accepts it. */
static void machine_code_is_found_in_a_file(void **state) {
  static const kr_kernel one = {"one", "kr_one"}, two = {"two", "kr_two"};
  char folder[] = "/tmp/krait-cubins-XXXXXX", path[64];
  (void)state;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/sm_89.cubins", folder);
  write_cubins(path, 89, 0);
  setenv("KRAIT_CUBINS", folder, 1);
  image_of("capability=89,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one);
  assert_string_equal(loaded_head(), "\177ELF file");
  image_of("capability=89,cubins=1", KRAIT_CAP_CUDA_AMPERE, &two);
  assert_string_equal(loaded_head(), "// two.ampere\n.v");
  assert_ptx(image_of("capability=89,cubins=1", KRAIT_CAP_CUDA_BASE, &one), "base"); /* another text */
  assert_ptx(image_of("capability=89,cubins=0", KRAIT_CAP_CUDA_AMPERE, &one), "ampere");
  assert_ptx(image_of("capability=90,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one), "ampere"); /* no such file */
  setenv("KRAIT_CUBINS", path, 1);
  assert_ptx(image_of("capability=87,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one), "ampere"); /* the file is of another */
  image_of("capability=89,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one);
  assert_string_equal(loaded_head(), "\177ELF file");
  image_of("capability=87,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one); /* so that the file is read again */
  write_cubins(path, 89, 1);
  assert_ptx(image_of("capability=89,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one), "ampere");
  image_of("capability=87,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one);
  for (long n = 0; n < 85; n++) { /* every truncated file */
    write_cubins(path, 89, 0);
    assert_int_equal(truncate(path, n), 0);
    assert_ptx(image_of("capability=89,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one), "ampere");
    image_of("capability=87,cubins=1", KRAIT_CAP_CUDA_AMPERE, &one);
  }
  unsetenv("KRAIT_CUBINS");
  unlink(path), rmdir(folder);
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
  *(void **)&loaded_head = kr_dlib_find(fake, "fake_cuda_head");
  const struct CMUnitTest tests[] = {cmocka_unit_test(machine_code_is_found_in_a_file),
                                     cmocka_unit_test(the_exact_cubin_comes_first),
                                     cmocka_unit_test(ptx_takes_over_where_machine_code_is_refused),
                                     cmocka_unit_test(other_failures_are_reported)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
