/* shared_lm_bundled.c: what libkrait-ops has in place of the loader of language models: theirs are on the caller's
 * weights (krait/shared_lm.h). */
#include "lm_config.h"
#include "lm_load.h"
#include "status.h"

static int32_t fail_load(const char *field) {
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "libkrait-ops loads no language models (field '%s'); use the program", field);
}
int32_t kr_lm_load(kr_lm_loader *l, const char *field, int is_needed, kr_sizes want, kr_weight_ref *to) {
  (void)l, (void)is_needed, (void)want, (void)to;
  return fail_load(field);
}
int32_t kr_lm_load_f32(kr_lm_loader *l, const char *field, kr_sizes want, double (*f)(double), kr_weight_ref *to) {
  (void)l, (void)want, (void)f, (void)to;
  return fail_load(field);
}
int32_t kr_lm_load_made(kr_lm_loader *l, const float *values, int64_t n, kr_weight_ref *to) {
  (void)l, (void)values, (void)n, (void)to;
  return fail_load("in_scales");
}
const kr_weight *kr_lm_peek(const kr_lm_loader *l, const char *field) { return (void)l, (void)field, NULL; }
