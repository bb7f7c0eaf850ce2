/* distance.h: "did you mean". */
#ifndef KR_DISTANCE_H
#define KR_DISTANCE_H

#include <stdint.h>

/* How many letters (missing, superfluous, wrong, swapped) lie between a name as written and one that may be meant, for
 * "did you mean"; INT32_MAX if they are too different for that. Case does not matter. */
int32_t kr_text_distance(const char *written, const char *meant);

#endif
