/* judge.c: can this image run on that device with that driver? One rule for every kind of image. */
#include <string.h>

#include "status.h"
#include "tables.h"

static const char *const verdict_names[] = {"native",       "native_minor", "jit", "jit_blocked",
                                            "zstd_blocked", "none",         "stub"};

const char *krait_verdict_name(int32_t verdict) {
  return verdict >= 0 && verdict <= KRAIT_VERDICT_STUB ? verdict_names[verdict] : "unknown";
}

static int32_t rule_cubin(const krait_tables *t, const krait_image *image, int cc) {
  if (image->suffix == 'a') return image->sm == cc ? KRAIT_VERDICT_NATIVE : KRAIT_VERDICT_NONE;
  if (image->suffix == 'f' && !kr_tables_family_covers(t, image->sm, cc)) return KRAIT_VERDICT_NONE;
  if (image->sm == cc) return KRAIT_VERDICT_NATIVE;
  return image->sm / 10 == cc / 10 && image->sm < cc ? KRAIT_VERDICT_NATIVE_MINOR : KRAIT_VERDICT_NONE;
}

static int32_t rule_ptx(const krait_tables *t, const krait_image *image, const krait_target *target) {
  if (image->suffix == 'a' && image->sm != target->cc) return KRAIT_VERDICT_NONE;
  if (image->suffix == 'f' && !kr_tables_family_covers(t, image->sm, target->cc)) return KRAIT_VERDICT_NONE;
  if (image->sm > target->cc) return KRAIT_VERDICT_NONE;
  int most = target->driver || target->driver_cuda ? kr_tables_ptx_of_driver(t, target) : 0;
  return most && image->ptx > most ? KRAIT_VERDICT_JIT_BLOCKED : KRAIT_VERDICT_JIT;
}

static int can_unpack_zstd(const krait_tables *t, const krait_target *target) {
  if (target->driver) return target->driver >= kr_parse_driver(kr_tables_zstd_driver(t));
  return !target->driver_cuda || target->driver_cuda >= 12040;
}

int32_t krait_rule(const krait_tables *t, const krait_image *image, const krait_target *target) {
  int32_t verdict = KRAIT_VERDICT_NONE;
  if (!t || !image || !target || image->damaged || target->cc <= 0) return verdict;
  if (image->kind == KRAIT_IMAGE_CUBIN && !target->force_ptx_jit) verdict = rule_cubin(t, image, target->cc);
  if (image->kind == KRAIT_IMAGE_PTX) verdict = rule_ptx(t, image, target);
  if (verdict <= KRAIT_VERDICT_JIT && image->compression == KRAIT_COMPRESSION_ZSTD && !can_unpack_zstd(t, target))
    return KRAIT_VERDICT_ZSTD_BLOCKED;
  return verdict;
}
