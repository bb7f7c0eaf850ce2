/* probe.h: this CPU's features, as capability bits (krait_cpu_caps in krait.h). */
#ifndef KR_PROBE_H
#define KR_PROBE_H
#include <krait/krait.h>
uint64_t kr_cpu_probe(void); /* queries the CPU and the OS each time; krait_cpu_caps caches the result */
#endif
