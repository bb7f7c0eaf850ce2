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
int32_t kr_lm_load_values(kr_lm_loader *l, const char *field, kr_sizes want, double (*f)(double), float *to) {
  (void)l, (void)want, (void)f, (void)to;
  return fail_load(field);
}
int32_t kr_lm_load_made(kr_lm_loader *l, const float *values, int64_t n, kr_weight_ref *to) {
  (void)l, (void)values, (void)n, (void)to;
  return fail_load("in_scales");
}
int32_t kr_lm_load_rows(kr_lm_loader *l, int n, const char *const *fields, int is_needed, const kr_sizes *want,
                        kr_weight_ref *to) {
  (void)l, (void)n, (void)is_needed, (void)want, (void)to;
  return fail_load(fields[0]);
}
int32_t kr_lm_load_norm(kr_lm_loader *l, const char *field, int64_t size, int64_t n, kr_weight_ref *to) {
  (void)l, (void)size, (void)n, (void)to;
  return fail_load(field);
}
int32_t kr_lm_load_norms(kr_lm_loader *l, int n, const kr_lm_norm_part *parts, kr_weight_ref *to) {
  (void)l, (void)n, (void)to;
  return fail_load(parts[0].field);
}
int32_t kr_lm_load_reordered(kr_lm_loader *l, const char *field, kr_sizes want,
                             int64_t (*row_of)(const void *user, int64_t i), const void *user, kr_weight_ref *to) {
  (void)l, (void)want, (void)row_of, (void)user, (void)to;
  return fail_load(field);
}
int kr_lm_has_key(const kr_lm_loader *l, const char *field) { return (void)l, (void)field, 0; }
int kr_lm_has(const kr_lm_loader *l, const char *field) { return (void)l, (void)field, 0; }
int kr_lm_is_on_gpu(const kr_lm_loader *l) { return (void)l, 0; }
kr_weight_ref kr_weight_rows(const kr_weight_ref *w, int64_t first,
                             int64_t K) { /* of packed matrices: none are given */
  return (void)first, (void)K, *w;
}
const kr_weight *kr_lm_peek(const kr_lm_loader *l, const char *field) { return (void)l, (void)field, NULL; }
