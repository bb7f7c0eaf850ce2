/* probe.c: queries the CPU, and whether the OS saves the wide registers. */
#define _GNU_SOURCE
#include "probe.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static uint64_t read_xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

/* Linux grants the tile registers on request. */
static int asks_for_tiles(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
  enum { ASK = 0x1023, TILES = 18 };
  return syscall(SYS_arch_prctl, ASK, TILES) == 0;
#else
  return 0;
#endif
}

static int bit(uint32_t word, int index) { return word >> index & 1; }

uint64_t kr_cpu_probe(void) {
  uint64_t caps = KRAIT_CAP_CPU;
  uint32_t a, b, c, d, b7, c7, d7, a71 = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return caps;
  int fma = bit(c, 12), f16c = bit(c, 29), osxsave = bit(c, 27);
  if (!osxsave || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return caps;
  uint64_t xcr0 = read_xcr0();
  if ((xcr0 & 6) != 6) return caps;
  if (bit(b7, 5) && fma && f16c) caps |= KRAIT_CAP_AVX2;
  int avx512 = bit(b7, 16) && bit(b7, 17) && bit(b7, 30) && bit(b7, 31);
  if ((xcr0 & 0xe6) != 0xe6 || !avx512 || !(caps & KRAIT_CAP_AVX2)) return caps;
  caps |= KRAIT_CAP_AVX512;
  if (__get_cpuid_count(7, 1, &a71, &b, &c, &d) && bit(a71, 5)) caps |= KRAIT_CAP_AVX512_BF16;
  if (bit(d7, 23)) caps |= KRAIT_CAP_AVX512_FP16;
  if (bit(d7, 22) && bit(d7, 24) && (xcr0 >> 17 & 3) == 3 && asks_for_tiles()) caps |= KRAIT_CAP_AMX;
  return caps;
}

int kr_cpu_has_vnni(void) {
  uint32_t a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && bit(c, 11);
}
#elif defined(__aarch64__)
uint64_t kr_cpu_probe(void) { return KRAIT_CAP_CPU | KRAIT_CAP_NEON; } /* mandatory on AArch64 */
#else
uint64_t kr_cpu_probe(void) { return KRAIT_CAP_CPU; }
#endif
#if !defined(__x86_64__)
int kr_cpu_has_vnni(void) { return 0; }
#endif

uint64_t krait_cpu_caps(void) {
  static atomic_ullong known;
  uint64_t caps = atomic_load(&known);
  if (!caps) atomic_store(&known, caps = kr_cpu_probe());
  return caps;
}
