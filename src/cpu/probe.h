/* probe.h: this CPU's features, as capability bits (krait_cpu_caps in krait.h). */
#ifndef KR_PROBE_H
#define KR_PROBE_H
#include <krait/krait.h>
uint64_t kr_cpu_probe(void); /* queries the CPU and the OS each time; krait_cpu_caps caches the result */
/* AVX-512 with sums of products of 16-bit integers, which is no capability of its own: whoever asks has AVX-512. */
int kr_cpu_has_vnni(void);
#endif
