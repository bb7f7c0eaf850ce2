/* draw.h: counter-based random numbers, and the initial weights of a training. */
#ifndef KR_DRAW_H
#define KR_DRAW_H

#include "parameters.h"
#include "primeknet/primeknet.h"

double kr_draw_uniform(uint64_t seed, uint64_t stream, uint64_t i); /* in 0..1 */
/* Initialises like the published modules; parameter i uses the random stream stream + i. */
void kr_draw_parameters(kr_parameters *p, const kr_pk_config *config, uint64_t seed, uint64_t stream);
void kr_draw_statistics(kr_parameters *p); /* running means 0, variances 1 */

#endif
