/* tiers.c: which tier of krait's own device code a GPU takes, and what that means there. */
#include "doc.h"
#include "report.h"

typedef struct tier {
  const char *name, *meaning;
  uint64_t cap;
  int low, high, ptx; /* compute capability as 90 for 9.0; high 0: unbounded */
} tier;

#define MEANING_hopper "warpgroups' tensor cores for 16 bits, tensor cores for float32 in parts"
#define MEANING_ampere "tensor cores for float16 and bfloat16, and for float32 in parts"
#define MEANING_turing                                                                            \
  "tensor cores for float16, the faster type, and in parts for products and attention of others " \
  "(GTX 16xx and the like have none)"
#define MEANING_base "multiply-adds for every type, no tensor cores"
static const tier tiers[] = {
#define KR_TIER(name, cap, low, high, ptx, arch) {#name, "tier " #name ": " MEANING_##name, cap, low, high, ptx},
#include "archs.def"
#undef KR_TIER
};
enum { N_TIERS = sizeof tiers / sizeof *tiers };

const char *krait_doctor_tier(uint64_t caps) {
  for (int i = 0; i < N_TIERS; i++)
    if (caps & tiers[i].cap) return tiers[i].meaning;
  return "no tier: this build has no device code for it";
}

/* By the compute capability and, if known, the driver; NULL: none. */
static const tier *tier_of(const doc *d, int cc) {
  const krait_target target = {
      .size = sizeof target, .driver = d->target.driver_number, .driver_cuda = d->target.driver_cuda};
  const int ptx = d->target.driver_number ? kr_tables_ptx_of_driver(d->tables, &target) : 0;
  for (int i = 0; i < N_TIERS && cc; i++)
    if (cc >= tiers[i].low && (!tiers[i].high || cc <= tiers[i].high) && (!ptx || ptx >= tiers[i].ptx))
      return &tiers[i];
  return NULL;
}

const char *doc_tier_name(const doc *d, int cc) {
  const tier *best = tier_of(d, cc);
  return best ? best->name : "";
}

const char *doc_tier_line(const doc *d, int cc) {
  const tier *best = tier_of(d, cc), *least = &tiers[N_TIERS - 1];
  const char *on = kr_print_cc(d->arena, cc);
  return best ? kr_arena_print(d->arena, "krait  runs on %s by its %s", on, best->meaning)
              : kr_arena_print(d->arena,
                               "krait  runs on the CPU there: its device code needs compute capability %s and a driver "
                               "for PTX %s",
                               kr_print_cc(d->arena, least->low), kr_print_tenths(d->arena, least->ptx));
}
