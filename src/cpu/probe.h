/* probe.h: what this CPU can do, as capability bits (krait_cpu_caps in krait.h). */
#ifndef KR_PROBE_H
#define KR_PROBE_H
#include <krait/krait.h>
uint64_t kr_cpu_probe(void); /* asks the CPU and the OS each time; krait_cpu_caps keeps the answer */
#endif
