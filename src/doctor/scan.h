/* scan.h: the walker of krait/doctor.h over any source, and what else the doctor needs. */
#ifndef KR_SCAN_H
#define KR_SCAN_H

#include <krait/doctor.h>

#include "elf.h"
#include "fatbin.h"

/* The source must outlive the scan. */
int32_t kr_scan_open_source(kr_source *source, krait_scan **scan);
void kr_scan_set_deep(krait_scan *scan); /* before the first container: also search for cubins in other sections */
/* For sources where seeking back is expensive, before the first container: searches the file's loaded segments for
 * containers, in one direction. The section table at the end must then confirm them: kr_scan_begin_sections and
 * kr_scan_region. 1, or 0 when the file cannot be walked this way. */
int kr_scan_set_forward(krait_scan *scan);
/* Restarts at the first container, now section by section. */
int32_t kr_scan_begin_sections(krait_scan *scan);
typedef struct kr_scan_region {
  char section[24];
  uint64_t offset, end;
  int find, relocatable; /* find: 0: containers are adjacent; else search */
} kr_scan_region;
const kr_scan_region *kr_scan_regions(const krait_scan *scan, int *n);
/* NULL unless the file is an ELF file that the host's loader would read. */
kr_elf *kr_scan_elf(krait_scan *scan);
/* Read on first use, best after the containers, which precede it in the file. A damaged table counts as none. */
int32_t kr_scan_read_dynamic(krait_scan *scan);
const kr_dynamic *kr_scan_dynamic(krait_scan *scan); /* symbols: 0 when there is none */
kr_source *kr_scan_source(krait_scan *scan);
int kr_scan_has_relfatbin(const krait_scan *scan);
/* Whether a container is the linked one of -rdc=true, according to the file's wrappers: 1 yes, 0 no, -1 unknown. */
int kr_scan_is_linked(krait_scan *scan, uint64_t container_offset);
/* The number of instructions of the last kernel returned; 0 for PTX. */
uint64_t kr_scan_kernel_bytes(const krait_scan *scan);
/* The toolkit of the image whose kernels were requested last; ten times the version, 0 unknown. */
int32_t kr_scan_toolkit(const krait_scan *scan);

#endif
